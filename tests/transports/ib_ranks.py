"""ib_ranks.py LONGHAUL - two ranks train over ib, which finds the stand-in of libibverbs by LD_LIBRARY_PATH: the weights are
those over shm, bit for bit, also over several queue pairs that lose packets, or answers and immediates alone, and over a line with a
rate and completion queues of one queue pair's entries. Where there is no library or no device a run says so in one sentence, or takes
the fallback that the INI names."""
import glob
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

LONGHAUL = ""
TORTURE = os.environ.get("LONGHAUL_TORTURE", "") not in ("", "0")
LIBM = next(iter(glob.glob("/lib/*/libm.so.6") + glob.glob("/lib64/libm.so.6")), "")
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "launch"))
from launch_case import free_port
JOB = """[pipeline]
name = ib
stages = prepare train
folder = out
[prepare]
input = text.jsonl
tokenizer = {source}/examples/data/gpt2-tiny/vocab.json
[model]
plugin = llama
vocab = from_tokenizer
blocks = 2
hidden = 64
ffn = 128
heads = 2
max_tokens = 64
[train]
sequence = 64
batch = 4
micro_batch = 1
steps = 4
precision = f32
[optimizer]
plugin = zero2
rule = rules:adamw
learning_rate = 1e-3
[device]
plugin = cpu
threads = 1
[launch]
ranks_per_node = 2
"""


def assert_nothing_left(test, counts, said, least=0):
    """counts: the file in which each process that has closed its cards has a line (FAKE_VERBS_COUNTS). No write met a queue pair
    without a receive work request, and no queue pair, registration or id has stayed; `least` processes made queue pairs."""
    lines = []
    if os.path.exists(counts):
        with open(counts, encoding="ascii") as f:
            lines = f.read().splitlines()
    for line in lines:
        test.assertRegex(line, r"^\d+ made=\d+ rnr=0 overruns=0 pairs=0 regions=0 ids=0$", said)
    test.assertGreaterEqual(sum(" made=0 " not in line for line in lines), least, said)


class Ranks(unittest.TestCase):
    def run_job(self, node, faults="", more=(), card="", optimizer="zero2"):
        """What longhaul's exit code, stderr and the digest of the weights are; node: keys of [transport.node]; more: lines
        behind them; card: what the kernel tells of it."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(SOURCE, "examples/data/tinyshakespeare.jsonl"), encoding="utf-8") as f:
                text = f.readlines()[:200]
            with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as f:
                f.writelines(text)
            ini = os.path.join(folder, "job.ini")
            with open(ini, "w", encoding="utf-8") as f:
                f.write(JOB.format(source=SOURCE).replace("zero2", optimizer) + "[transport.node]\n" + "\n".join([*node, *more]) + "\n")
            done = subprocess.run([LONGHAUL, "run", ini], capture_output=True, text=True, timeout=300,
                                  env=dict(os.environ, FAKE_VERBS=faults, FAKE_VERBS_FOLDER=card,
                                           FAKE_VERBS_COUNTS=os.path.join(folder, "counts")))
            digest = hashlib.sha256()
            for path in sorted(glob.glob(os.path.join(folder, "out", "checkpoints", "step-*", "*.safetensors"))):
                with open(path, "rb") as f:
                    digest.update(f.read())
            said = done.stdout + done.stderr
            for path in sorted(glob.glob(os.path.join(folder, "out", "*.log"))):
                with open(path, encoding="utf-8") as f:
                    said += f.read()
            used = done.returncode == 0 and any("over %s: security" % plugin in said for plugin in ("ib", "apn"))
            assert_nothing_left(self, os.path.join(folder, "counts"), said, 2 if used else 0)
            return done.returncode, said, digest.hexdigest()

    def test_bits_are_those_over_shm(self):
        code, said, shm = self.run_job(["plugin = shm"])
        self.assertEqual(code, 0, said)
        self.assertNotEqual(shm, hashlib.sha256().hexdigest())
        for node, faults in ((["plugin = ib", "security = plain"], ""),
                             (["plugin = ib", "security = plain", "queue_pairs = 3", "chunk = 64KiB"],
                              "loss=500 reorder=1"),
                             (["plugin = ib", "security = plain", "queue_pairs = 3", "chunk = 64KiB"],
                              "lose_answer=50 lose_immediate=70"),
                             (["plugin = ib", "security = plain"], "rate=50000000 cqe_most=512"),
                             (["plugin = ib", "security = plain", "bind = 127.0.0.1, 127.0.0.2"], "devices=2 loss=500"),
                             (["plugin = ib", "security = plain", "bind = 127.0.0.1, 127.0.0.2"], "devices=2 dead_device=1")):
            code, said, ib = self.run_job(node, faults)
            self.assertEqual(code, 0, said)
            self.assertEqual(ib, shm, node)
        code, said, ib = self.run_job(["plugin = ib", "security = known"])
        self.assertEqual(code, 0, said)
        self.assertIn("links inside a machine over ib: security = known", said)
        self.assertEqual(ib, shm)
        code, said, tcp = self.run_job(["plugin = ib", "security = plain", "fallback = tcp"], "no_device=1")
        self.assertEqual(code, 0, said)
        self.assertIn("this machine has no RDMA device", said)
        self.assertEqual(tcp, shm)

    def test_two_sites_over_apn_have_the_bits_of_tcp(self):
        sites = ["[site.a]", "hosts = localhost:2", "[site.b]", "hosts = localhost:2", "[transport.wan]"]
        digests = []
        for wan in (["plugin = tcp"], ["plugin = apn", "security = known"],
                    ["plugin = apn", "security = known", "chunk = 64KiB"], ["plugin = apn"]):
            code, said, digest = self.run_job(["plugin = shm"], "loss=500" if len(wan) > 2 else "", sites + wan)
            self.assertEqual(code, 0, said)
            digests.append(digest)
            if wan[0] != "plugin = tcp":
                level = "known" if len(wan) > 1 else "private"
                self.assertIn("links between sites over apn: security = " + level, said)
        self.assertEqual(len(set(digests)), 1, digests)

    def test_machines_of_a_site_over_ib_have_the_bits_of_tcp(self):
        """Two machines, which this one plays under two names: only then a site has links of its own."""
        site = ["[site.a]", "hosts = localhost:2, %s:2" % socket.gethostname(), "[transport.site]"]
        digests = []
        for keys, faults in ((["plugin = tcp"], ""), (["plugin = ib", "security = known"], ""),
                             (["plugin = ib", "security = plain", "queue_pairs = 3", "chunk = 64KiB"], "loss=500 reorder=1")):
            code, said, digest = self.run_job(["plugin = shm"], faults, site + keys)
            self.assertEqual(code, 0, said)
            self.assertRegex(said, "links inside a site over %s: security = %s" %
                             (keys[0].split()[-1], keys[1].split()[-1] if len(keys) > 1 else "proven"))
            digests.append(digest)
        self.assertNotEqual(digests[0], hashlib.sha256().hexdigest())
        self.assertEqual(len(set(digests)), 1, digests)
        code, said, _ = self.run_job(["plugin = shm"], "", site + ["plugin = ib"])
        self.assertEqual(code, 1, said)
        self.assertIn("[transport.site] security = proven: the transport 'ib' cannot give it; write security = plain or known", said)

    def test_the_example_runs(self):
        """As two machines in each of its sites, and with its fallback where there is no card; as it is over tcp it has the same weights."""
        digests = []
        for hosts, faults, sets in (("localhost:1, %s:1", "", ()), ("localhost:1, %s:1", "no_device=1", ()),
                                    (None, "", ("transport.wan.plugin=tcp",))):
            with tempfile.TemporaryDirectory() as folder:
                sets = ["pipeline.folder=" + folder, "pipeline.stages=prepare train", "train.steps=2", *sets]
                if hosts is not None:
                    sets += ["site.%s.hosts=%s" % (site, hosts % socket.gethostname()) for site in ("tokyo", "osaka")]
                done = subprocess.run([LONGHAUL, "run", os.path.join(SOURCE, "examples/two-sites-rdma.ini"),
                                       *[word for text in sets for word in ("--set", text)]], capture_output=True, text=True,
                                      timeout=300, env=dict(os.environ, FAKE_VERBS=faults))
                said = done.stdout + done.stderr
                self.assertEqual(done.returncode, 0, said)
                with open(os.path.join(folder, "train.log"), encoding="utf-8") as f:
                    said += f.read()
                plugins = ("tcp", "tcp") if faults or "transport.wan.plugin=tcp" in sets else ("ib", "apn")
                self.assertIn("links between sites over %s: security = private" % plugins[1], said)
                check = self.assertIn if hosts else self.assertNotIn
                check("links inside a site over %s: security = known" % plugins[0], said)
                digest = hashlib.sha256()
                for path in sorted(glob.glob(os.path.join(folder, "checkpoints", "step-*", "*.safetensors"))):
                    with open(path, "rb") as f:
                        digest.update(f.read())
                digests.append(digest.hexdigest())
        self.assertNotEqual(digests[0], hashlib.sha256().hexdigest())
        self.assertEqual(len(set(digests)), 1, digests)

    def test_every_cut_has_the_bits_of_tcp(self):
        """Two machines a site, which this one plays, ib inside and apn between, for each way of cutting what ranks hold."""
        hosts = "hosts = localhost:1, %s:1" % socket.gethostname()
        sites = ["[site.a]", hosts, "[site.b]", hosts]
        for optimizer in ("zero0", "zero1", "zero2", "zero3") if TORTURE else ("zero3",):
            digests = []
            for site, wan in (("tcp", ["plugin = tcp"]), ("ib", ["plugin = apn", "security = known"])):
                more = sites + ["[transport.site]", "plugin = " + site, "security = known", "[transport.wan]"] + wan
                code, said, digest = self.run_job(["plugin = shm"], "loss=1000" if site == "ib" else "", more, optimizer=optimizer)
                self.assertEqual(code, 0, said)
                self.assertIn("links inside a site over %s: security = known" % site, said)
                digests.append(digest)
            self.assertNotEqual(digests[0], hashlib.sha256().hexdigest())
            self.assertEqual(digests[0], digests[1], optimizer)

    def test_a_card_that_leaves_the_ack_timeout_aside_is_seen_by_its_counter(self):
        sites = ["[site.a]", "hosts = localhost:1", "[site.b]", "hosts = localhost:1", "[transport.wan]", "plugin = apn",
                 "security = plain"]
        for order in ("delay_us=2000", "delay_us=2000 adaptive_us=2000"):
            with tempfile.TemporaryDirectory() as card:
                os.makedirs(os.path.join(card, "ports/1/hw_counters"))
                with open(os.path.join(card, "ports/1/hw_counters/roce_adp_retrans"), "w", encoding="ascii") as f:
                    f.write("0\n")
                code, said, _ = self.run_job(["plugin = shm"], order, sites, card)
            self.assertEqual(code, 0, said)
            check = self.assertIn if "adaptive" in order else self.assertNotIn
            check("fake0 sends again by a timer of its own, not by ack_timeout (roce_adp_retrans: ", said)
            check("mlxreg -d fake0 --yes --reg_name ROCE_ACCL", said)

    def test_cards_are_listed_once(self):
        for order, said in (("", "fake0 port 1: active, 100 Gb/s, MTU 4096, Ethernet (RoCE)"),
                            ("port_down=1", "fake0 port 1: down"), ("no_device=1", "ib: this machine has no RDMA device")):
            out = subprocess.run([LONGHAUL, "plugins"], capture_output=True, text=True, timeout=60, check=True,
                                 env=dict(os.environ, FAKE_VERBS=order)).stdout
            self.assertEqual(out.count(said), 1, out)

    def test_help_has_the_formula_of_each_option_and_says_what_its_letters_are(self):
        rate, trip, chunk, window = "b: (the link's|its) rate", "t: (the link's|its) round trip", "c: the chunk", "w: the window"
        shared = {"queue_pairs": [r"max\(%d, ports, p b t / \(MTU x 0\.02\), w / \(126 c\), over soft-RoCE w / \(128 MTU\), between sites 16 before t is known\)", "p: the link's loss", rate, trip, chunk, window],
                  "chunk": [r"0: b x 100 us", rate], "window": [r"0: 1\.25 b t \+ 2 c where the link's rate b and round trip t ", chunk],
                  "ack_timeout": [r"4\.096 us x 2\^n >= 4 t \+ 1 ms \+ max\(2 c, w - b t\) / b, ", rate, trip, chunk, window, "not measured %d"]}
        for plugin, numbers, pace in (("ib", (1, 14), "0: none"), ("apn", (4, 16), r"0: the rank's share of 0\.97 b, " + rate)):
            text = subprocess.run([LONGHAUL, "help", plugin], capture_output=True, text=True, timeout=60, check=True).stdout
            lines = {key: rest for key, rest in re.findall(r"(?m)^  (\w+) +(.*)$", text)}
            for key, words in dict(shared, pace=[pace]).items():
                for word in words:
                    number = numbers[0 if key == "queue_pairs" else 1]
                    self.assertRegex(lines[key], word.replace("%d", str(number)), key)

    @staticmethod
    def write_card(folder, address):
        """What the kernel tells of a card with one GID, of RoCE v2, and one counter."""
        for name, text in (("gids/0", "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % address), ("gid_attrs/types/0", "RoCE v2"),
                           ("hw_counters/roce_adp_retrans", "3")):
            path = os.path.join(folder, "ports/1", name)
            os.makedirs(os.path.dirname(path))
            with open(path, "w", encoding="ascii") as f:
                f.write(text + "\n")
        return folder

    def test_bench_links_shows_the_cards_of_both_machines(self):
        """A launcher for each, as on two machines. Their cards have another address, as sites of one are one machine. Both have
        one processor, so that the end that closes a connection has often done so before the other hears of its last send."""
        every = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, every)
        os.sched_setaffinity(0, {min(every)})
        with tempfile.TemporaryDirectory() as folder:
            port = free_port()
            ini = os.path.join(folder, "job.ini")
            with open(ini, "w", encoding="utf-8") as f:
                f.write(JOB.format(source=SOURCE).replace("ranks_per_node = 2", "address = 127.0.0.1\nport = %d\nsecret = job.key" % port)
                        + "[site.a]\nhosts = one:1\n[site.b]\nhosts = two:1\n[transport.wan]\nplugin = apn\nsecurity = known\ngid = 0\n")
            both = [subprocess.Popen([LONGHAUL, "bench", "links", ini, "--host", host], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True,
                                     env=dict(os.environ, FAKE_VERBS_FOLDER=self.write_card(os.path.join(folder, host), (127, 0, 0, last))))
                    for host, last in (("one", 1), ("two", 3))]
            said, other = (process.communicate(timeout=120)[0] for process in both)
            self.assertEqual([process.returncode for process in both], [0, 0], said + other)
            for host, last in (("one", 1), ("two", 3)):
                self.assertIn(host + ": fake0 port 1: active, 100 Gb/s, MTU 4096, Ethernet (RoCE)", said)
                self.assertIn(host + ":   GID 0: ::ffff:127.0.0.%d, RoCE v2" % last, said)
            self.assertRegex(said, r"(?m)^a +b +[0-9.]+ .* 4096$")
            with open(os.path.join(folder, "out", "links.json"), encoding="utf-8") as f:
                machines = json.load(f)["machines"]
            self.assertEqual([m["site"] for m in machines], ["a", "b"])
            for m in machines:
                self.assertRegex(m["before"], r"(?m)^fake0 port 1: active, .*\n  counters of fake0 port 1: roce_adp_retrans 3$")
                self.assertEqual(m["after"], "")

    def test_a_level_it_cannot_give_is_refused_with_those_that_it_can(self):
        code, said, _ = self.run_job(["plugin = ib", "security = proven"])
        self.assertEqual(code, 1, said)
        self.assertIn("[transport.node] security = proven: the transport 'ib' cannot give it; write security = plain or known",
                      said)

    def test_no_library_is_one_sentence(self):
        """A file that is none, and a library that is another one."""
        for content, said_then in ((b"no library", "RDMA needs libibverbs.so.1, which this machine does not have (Debian's package "
                                    "libibverbs1)"), (None, "libibverbs.so.1 has no ibv_get_device_list: it is too old, or another library")):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "libibverbs.so.1")
                if content is None:
                    os.symlink(LIBM, path)
                    os.symlink(LIBM, os.path.join(folder, "librdmacm.so.1"))
                else:
                    with open(path, "wb") as f:
                        f.write(content)
                former, os.environ["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"], folder
                try:
                    code, said, _ = self.run_job(["plugin = ib", "security = plain"])
                    self.assertEqual(code, 1, said)
                    self.assertIn(said_then, said)
                    code, said, _ = self.run_job(["plugin = ib", "security = plain", "fallback = tcp"])
                    self.assertEqual(code, 0, said)
                    self.assertIn(said_then, said)
                    listed = subprocess.run([LONGHAUL, "plugins"], capture_output=True, text=True, timeout=60, check=True).stdout
                    for plugin in ("ib", "apn"):
                        self.assertEqual(listed.count("%s: %s" % (plugin, said_then)), 1, listed)
                finally:
                    os.environ["LD_LIBRARY_PATH"] = former

    def test_no_device_is_one_sentence(self):
        code, said, _ = self.run_job(["plugin = ib", "security = plain"], "no_device=1")
        self.assertEqual(code, 1, said)
        self.assertIn("this machine has no RDMA device", said)


if __name__ == "__main__":
    LONGHAUL = sys.argv.pop(1)
    unittest.main()
