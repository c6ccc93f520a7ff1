"""rdma_vm.py LONGHAUL LONGHAUL-CHECK PLUGINS - ib and apn over the real libibverbs and librdmacm and a kernel's soft-RoCE, in a
virtual machine: every fact of a transport; cards; the prober, and a cell of bench/rdma; and two ranks of a training between two
sites, whose link is cut for a second, have the weights that they have over tcp, and so have those with faults at random that are shorter
than their patience. LONGHAUL_RDMA_VM is the program that runs a command in such a machine (`--sites`,
`--delay-ms`, `--out`, `site K COMMAND`, /sbin/tc of wan1 and wan2); where it is not set this is skipped."""
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ib_ranks

LONGHAUL = CHECK = PLUGINS = ""
VM = os.environ.get("LONGHAUL_RDMA_VM", "")
TORTURE = ib_ranks.TORTURE
SEED = int(os.environ.get("LONGHAUL_SEED", random.randrange(1 << 32)))
# transport.wan makes a network namespace of its own, which has no RDMA device.
FACTS = r"^transport\.([^w]|w[^a])"
# The counters of receivers that were not ready; WATCHED runs a command between two looks at them.
RNR = """rnr() { echo "rnr $1: $(cat /sys/class/infiniband/*/ports/1/hw_counters/*rnr* | tr '\\n' ' ')"; }
"""
WATCHED = RNR + """rnr before
"$@"
code=$?
rnr after
exit $code
"""
SITES = """[site.a]
hosts = s1:1
[site.b]
hosts = s2:1
[transport.wan]
outage = 10s
"""
# What the kernel holds for whoever uses a card, and those counters. A process's end gives back what it held a moment later.
LEFT = RNR + """resources() { rdma resource show | tr '\\n' ';'; rdma resource show cm_id | grep -c comm; }
at_first=$(resources)
echo "at first: $at_first"
left() {
    for i in 1 2 3 4 5 6 7 8 9 10; do [ "$(resources)" = "$at_first" ] && break; sleep 0.5; done
    echo "left $1: $(resources)"
    rnr $1
}
"""
# The link is cut when the first step is done.
SCRIPT = "cd $1\n" + LEFT + """for n in tcp apn private; do
    site 1 $2 run $n.ini --host s1 >$n.1 2>&1 & one=$!
    site 2 $2 run $n.ini --host s2 >$n.2 2>&1 & two=$!
    if [ $n = apn ]; then
        until grep -q "step 1/" $n.1 || ! kill -0 $one; do sleep 0.2; done
        for d in wan1 wan2; do tc qdisc replace dev $d root netem loss 100%; done
        sleep 1
        for d in wan1 wan2; do tc qdisc replace dev $d root netem limit 1000000 delay 1ms; done
    fi
    wait $one; a=$?
    wait $two; echo "$n $a $?"
    cat $n.1 $n.2 out-$n/train.log
    cat out-$n/checkpoints/step-*/*.safetensors | sha256sum
    left $n
done
"""

# Rounds: number, fault, seconds, and the step behind which it happens. Both ranks are those of the two sites that have loaded
# libibverbs.
FAULTS = "cd $1\n" + LEFT + """ranks() { for p in $(pgrep longhaul); do grep -q libibverbs /proc/$p/maps 2>/dev/null && echo $p; done; }
shape() { for d in wan1 wan2; do tc qdisc replace dev $d root netem $*; done; }
while read n fault seconds step; do
    (site 1 $2 run fault.ini --host s1 >one.log 2>&1 </dev/null; a=$?; date +%s%N >one.end; exit $a) & one=$!
    (site 2 $2 run fault.ini --host s2 >two.log 2>&1 </dev/null; a=$?; date +%s%N >two.end; exit $a) & two=$!
    until grep -q "step $step/" one.log || ! kill -0 $one 2>/dev/null; do sleep 0.1; done
    hit=$(ranks | tail -1)
    begin=$(date +%s%N)
    case $fault in
    cut) shape loss 100%; sleep $seconds; shape limit 1000000 delay 1ms ;;
    port) ip link set wan1 down; sleep $seconds; ip link set wan1 up ;;
    stop) kill -STOP $hit; sleep $seconds; kill -CONT $hit ;;
    kill) kill -KILL $hit ;;
    esac
    wait $one; a=$?
    wait $two; b=$?
    end=$(sort -n one.end two.end | tail -1)
    echo "round $n $fault $seconds: $a $b $(( (end - begin) / 1000000 )) $(cat out-fault/checkpoints/step-*/*.safetensors 2>/dev/null | sha256sum | cut -c1-64)"
    left $n
    echo "processes $n: $(ranks | wc -l)"
    [ $a = 0 ] || cat one.log two.log out-fault/train.log
    rm -rf out-fault
done <rounds
"""

LINKS = "cd $1\n" + RNR + """rnr before
site 1 $2 bench links apn.ini --host s1 >links.1 2>&1 & one=$!
site 2 $2 bench links apn.ini --host s2 >links.2 2>&1 & two=$!
wait $one; a=$?
wait $two; echo "links $a $?"
rnr after
cat links.1 links.2
"""


# A link that is cut has two ends; who is killed is named by his launcher.
NAMED = {"cut": "rank 0.*rank 1|rank 1.*rank 0", "kill": r"rank \d on \S+ was killed by signal 9"}


class Vm(unittest.TestCase):
    def in_vm(self, command, *flags, seconds=900):
        for _ in range(3):  # 125: the machine did not start, as happens where processors are busy
            done = subprocess.run([VM, *flags, "--timeout", str(seconds), "--", *command], capture_output=True, text=True,
                                  timeout=seconds + 100)
            if done.returncode != 125:
                break
        return done.returncode, done.stdout + done.stderr

    def test_facts_hold(self):
        with tempfile.TemporaryDirectory() as folder:
            watched = os.path.join(folder, "watched.sh")
            with open(watched, "w", encoding="utf-8") as f:
                f.write(WATCHED)
            for flags in ([], ["--delay-ms", "1", "--loss", "0.1"]) if TORTURE else ([],):
                for name in ("ib", "apn"):
                    code, said = self.in_vm(["sh", watched, "site", "1", CHECK, "--only", FACTS, "--plugins", PLUGINS,
                                             os.path.join(PLUGINS, "transports", name + ".so")], *flags)
                    self.assertEqual(code, 0, said)
                    self.assertIn("transport.killed_peer", said)
                    self.assert_all_were_ready(said, 2)

    def test_cards_are_told_of(self):
        code, said = self.in_vm(["site", "1", LONGHAUL, "plugins"])
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"rxe1 port 1: active, [0-9.]+ Gb/s, MTU \d+, Ethernet \(RoCE\)")
        self.assertIn("::ffff:10.77.0.1, RoCE v2, of eth0", said)

    def assert_all_were_ready(self, said, looks):
        """No write has met a queue pair without a receive work request, as the kernel has counted at each look."""
        counted = re.findall(r"^rnr \w+: (.*)$", said, re.M)
        self.assertEqual(len(counted), looks, said)
        for row in counted:
            self.assertRegex(row, r"^(0 )+$", said)

    def assert_nothing_left(self, said, runs):
        """The kernel's resources are those of before, and no write has met a queue pair without a receive work request."""
        first = re.search(r"^at first: (.*)$", said, re.M).group(1)
        self.assertRegex(first, r"qp \d+ .*mr \d+ ", "rdma tells nothing\n" + said)
        self.assertEqual(re.findall(r"^left \w+: (.*)$", said, re.M), [first] * runs, said)
        self.assert_all_were_ready(said, runs)

    def write_jobs(self, folder):
        """tcp.ini, apn.ini and private.ini, a text to train on, and both scripts."""
        with open(os.path.join(ib_ranks.SOURCE, "examples/data/tinyshakespeare.jsonl"), encoding="utf-8") as f:
            text = f.readlines()[:20]
        with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(text)
        job = ib_ranks.JOB.format(source=ib_ranks.SOURCE)
        for old, new in (("ranks_per_node = 2", "address = 10.77.0.1\nport = 29400\nsecret = job.key"),
                         ("blocks = 2", "blocks = 1"), ("hidden = 64", "hidden = 32"), ("ffn = 128", "ffn = 64"),
                         ("sequence = 64", "sequence = 16"), ("batch = 4", "batch = 2")):
            self.assertIn(old, job)
            job = job.replace(old, new)
        for name, wan in (("tcp", "plugin = tcp\n"), ("apn", "plugin = apn\nsecurity = known\n"),
                          ("private", "plugin = apn\n")):
            with open(os.path.join(folder, name + ".ini"), "w", encoding="utf-8") as f:
                f.write(job.replace("folder = out", "folder = out-" + name) + SITES + wan)
        for name, script in (("go.sh", SCRIPT), ("links.sh", LINKS)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(script)

    def test_links_are_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write_jobs(folder)
            code, said = self.in_vm(["sh", os.path.join(folder, "links.sh"), folder, LONGHAUL], "--delay-ms", "2.5", "--rate-gbit",
                                    "0.2")
            self.assertEqual(code, 0, said)
            self.assertIn("links 0 0\n", said)
            row = re.search(r"^a +b +([0-9.]+) +[0-9.]+ +[0-9.]+ +([0-9.]+) .* 4096$", said, re.M)
            self.assertIsNotNone(row, said)
            print("the prober: %s ms, %s Gb/s of 5 ms and 0.2 Gb/s" % row.groups(), flush=True)
            self.assertGreater(float(row.group(1)), 4.9)
            # Without a limit 1 Gb/s are measured, and beside other work up to 0.22 with it.
            self.assertLess(float(row.group(2)), 0.21 if TORTURE else 0.4)
            self.assertIn("s2: rxe2 port 1: active", said)
            self.assert_all_were_ready(said, 2)

    def test_a_cell_of_the_table(self):
        done = subprocess.run([os.path.join(ib_ranks.SOURCE, "bench", "rdma"), "--round-trips", "5", "--windows", "16384", "--losses",
                               "0", "--sizes", "1M", "--pairs", "4", "--build", os.path.dirname(os.path.dirname(LONGHAUL))],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        print(done.stdout, flush=True)
        # An emulated machine, which others may keep busy while one of both is measured.
        self.assertGreater(float(done.stdout.split()[-1]), 0.5 if TORTURE else 0.05, "of ib_write_bw")

    def test_faults_at_random(self):
        """A cut, a port that is down and a rank that is stopped for less than `outage` leave the bits; a longer cut and a killed rank
        end both ends with exit code 3 and a line that names both, or who was killed; no queue pair and no process stays behind. 20
        rounds in torture, where both ends of nine faults in ten that last, of all but one of ten or less, end within 3.5 s."""
        outage, chance = 8, random.Random(SEED)
        kinds = (("cut", 0.1), ("cut", 1), ("cut", 20), ("port", 1), ("stop", 1), ("kill", 0))
        count = int(os.environ.get("LONGHAUL_ROUNDS", 20 if TORTURE else 2))
        rounds = [("none", 0)] + [chance.choice(kinds) if TORTURE else kinds[1 + i % 2] for i in range(count)]
        print("seed", SEED, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            self.write_jobs(folder)
            with open(os.path.join(folder, "apn.ini"), encoding="utf-8") as f:
                job = f.read()
            for old, new in (("steps = 4", "steps = 30\nlog_every = 1"), ("out-apn", "out-fault"), ("outage = 10s", "outage = %ds" % outage),
                             ("address = 10.77.0.1", "restart = 0\naddress = 10.77.0.1")):
                self.assertIn(old, job)
                job = job.replace(old, new)
            for name, text in (("fault.ini", job), ("go.sh", FAULTS), ("rounds", "".join(
                    "%d %s %g %d\n" % (n, kind, seconds, chance.randrange(1, 15)) for n, (kind, seconds) in enumerate(rounds)))):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(text)
            code, said = self.in_vm(["sh", os.path.join(folder, "go.sh"), folder, LONGHAUL], "--delay-ms", "1",
                                    seconds=300 + 90 * len(rounds))
            self.assertEqual(code, 0, said)
            rows = re.findall(r"^round (\d+) (\w+) (\S+): (\d+) (\d+) (-?\d+) (\w+)$", said, re.M)
            self.assertEqual(len(rows), len(rounds), said)
            parts, all_late = re.split(r"(?m)^round (?=\d+ )", said)[1:], []
            for (n, kind, seconds, one, two, took, digest), part in zip(rows, parts):
                lasts = kind == "kill" or float(seconds) > outage
                late = int(took) / 1e3 - (0 if kind == "kill" else outage)
                print("round %s: %s %s s: exit codes %s %s after %s ms%s" %
                      (n, kind, seconds, one, two, took, ", %.1f s after what lasts" % late if lasts else ""), flush=True)
                self.assertEqual((one, two), ("3", "3") if lasts else ("0", "0"), said)
                if lasts and kind == "cut":  # by themselves
                    self.assertLess(int(took), 1000 * float(seconds), said)
                if lasts:
                    self.assertRegex(part, NAMED[kind])
                    all_late.append(late)
                if not lasts:
                    self.assertEqual(digest, rows[0][6], said)
            self.assert_nothing_left(said, len(rounds))
            self.assertEqual(re.findall(r"^processes \d+: (.*)$", said, re.M), ["0"] * len(rounds), said)
            # One in ten may be late by what the machine around the virtual one did meanwhile.
            if TORTURE and all_late:
                self.assertLess(sorted(all_late)[(len(all_late) - 1) * 9 // 10], 3.5, all_late)

    def test_a_training_between_sites_outlives_a_cut(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write_jobs(folder)
            code, said = self.in_vm(["sh", os.path.join(folder, "go.sh"), folder, LONGHAUL], "--delay-ms", "1")
            self.assertEqual(code, 0, said)
            self.assertIn("tcp 0 0\n", said)
            self.assertIn("apn 0 0\n", said)
            self.assertIn("private 0 0\n", said)
            self.assertIn("links between sites over apn: security = known", said)
            self.assertIn("links between sites over apn: security = private", said)
            digests = re.findall(r"\b[0-9a-f]{64}(?=  -)", said)
            self.assertEqual(len(digests), 3, said)
            self.assertEqual(len(set(digests)), 1, said)
            self.assert_nothing_left(said, 3)


if __name__ == "__main__":
    PLUGINS, CHECK, LONGHAUL = sys.argv.pop(), sys.argv.pop(), sys.argv.pop()
    if VM == "" or shutil.which(VM) is None:
        print("LONGHAUL_RDMA_VM names no program that runs commands in a virtual machine with RDMA")
        sys.exit(77)
    unittest.main()
