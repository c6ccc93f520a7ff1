"""A training over two sites in namespaces: kill -9 of everything, then --resume, ends in the same bits."""
import os
import random
import re
import shutil
import signal
import subprocess
import time

import launch_case
from launch_case import SOURCE, TORTURE, clean_environment
from launch_namespaces import HOSTS, NamespaceCase, ip, need_namespaces
from launch_train import JOB
import launch_train

PLACES = """address = 10.77.0.1
port = 29400
secret = job.key
join_timeout = 30s
restart = 0
[site.tokyo]
hosts = t1:2
[site.osaka]
hosts = o1:1
"""


class Bridges(NamespaceCase):
    """Machines with containers: a bridge that is up comes before the card, the same on each."""

    def furnish(self, name):
        self.must("-n", name, "link", "add", "docker0", "type", "bridge")
        self.must("-n", name, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        self.must("-n", name, "link", "set", "docker0", "up")

    def start_hosts(self, more, steps, hosts=HOSTS, places=PLACES, words=("train",)):
        ini = os.path.join(self.folder, "job.ini")
        with open(ini, "w") as f:
            f.write(JOB.format(source=SOURCE, steps=steps, ranks=1) + places.replace("30s", "7s") + more)
        subprocess.run([launch_case.LONGHAUL, "prepare", ini], check=True, capture_output=True)
        return [subprocess.Popen([*self.wrap(host), launch_case.LONGHAUL, *words, ini, "--host", host],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=clean_environment(LH_MARK=self.folder)) for host in hosts]

    def test_a_machine_that_plays_all_sites_is_not_seen_from_outside(self):
        process, = self.start_hosts("", 1000000, HOSTS[:1], PLACES.replace("o1:1", "t1:1"))
        launch_case.wait_for(lambda: os.path.exists(os.path.join(self.folder, "out", "metrics.jsonl")), 90)
        table = subprocess.run([*self.wrap("t1"), "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True).stdout
        listening = {line.split()[1].split(":")[0] for line in table.splitlines() if len(line.split()) > 3 and line.split()[3] == "0A"}
        self.assertEqual(listening, {"0100007F"})  # of the links; 127.0.0.1
        process.terminate()
        self.assertEqual(self.finish(process)[0], 75)

    def test_links_take_the_way_on_which_ranks_meet(self):
        for code, _, err in [self.finish(p) for p in self.start_hosts("", 1)]:
            self.assertEqual(code, 0, err)
            self.assertNotIn("waiting", err)

    def test_check_connect_dials_every_pair_of_hosts(self):
        """Two machines of three hosts: one plays two of them."""
        check = ("check", "--connect")
        results = [self.finish(p) for p in self.start_hosts("", 1, words=check)]
        self.assertEqual([r[0] for r in results], [0, 0], results)
        rows = results[0][1].splitlines()
        self.assertRegex(rows[1], r"\Atokyo/t1 +osaka/o1 +wan +tcp +\d+\.\d{3} ms\Z")
        self.assertEqual(rows[2:], ["3 ranks on 2 hosts have met; 1 pairs of hosts reach each other"])
        self.assertEqual(results[1][1], "")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "out", "checkpoints")))
        # What would stop a night's run: a way that is closed. It is told within join_timeout, and nothing starts again.
        results = [self.finish(p) for p in self.start_hosts("[transport.wan]\nbind = docker0\n", 1, words=check,
                                                            places=PLACES.replace("restart = 0\n", ""))]
        for code, _, err in results:
            self.assertEqual(code, 3, err)
            self.assertIn("1 of 1 pairs of hosts do not reach each other", err)
            self.assertNotIn("starting again", err)
        self.assertRegex(results[0][1], r"(?m)^tokyo/t1 +osaka/o1 +wan +tcp +none: rank 2 on osaka/o1, link over tcp: .*172\.17\.0\.1:\d+: no connection after")

    def test_a_link_that_does_not_come_is_told_with_its_address(self):
        begin = time.time()
        results = [self.finish(p) for p in self.start_hosts("[transport.wan]\nbind = docker0\n", 1)]
        self.assertLess(time.time() - begin, 40)
        for code, _, err in results:
            self.assertEqual(code, 3, err)
            self.assertRegex(err, r"rank 2 on osaka/o1, link over tcp: \S* ?rank 2 on o1 at 172\.17\.0\.1:\d+: no connection after 6\.1 s: Connection refused")
        self.assertRegex(results[0][2], r"waiting for rank 2 on osaka/o1 since 5 s: link over tcp, which this rank dials at 172\.17\.0\.1:\d+")
        self.assertRegex(results[1][2], r"waiting for ranks 0 to 1 on tokyo/t1 since 5 s: link over tcp, which it dials at this rank's 172\.17\.0\.1:\d+")


class Cards(NamespaceCase):
    """Machines with two cards, each in a network of its own, both of which carry the link between sites."""
    start_hosts = Bridges.start_hosts

    def setUp(self):
        super().setUp()
        second = self.bridge + "b"
        self.addCleanup(ip, "link", "del", second)
        self.must("link", "add", second, "type", "bridge")
        self.must("link", "set", second, "up")
        for i, name in enumerate(self.names.values()):
            self.must("link", "add", f"{second}{i}", "type", "veth", "peer", "name", "eth1", "netns", name)
            self.must("link", "set", f"{second}{i}", "master", second, "up")
            self.must("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth1")
            self.must("-n", name, "link", "set", "eth1", "up")
            for card in ("eth0", "eth1"):
                launch_case.wait_for(lambda: "state UP" in ip("-n", name, "link", "show", card).stdout, 20)

    def sent(self, host):
        """Bytes by card."""
        table = subprocess.run([*self.wrap(host), "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(":") for line in table.splitlines() if ":" in line]
        return {name.strip(): int(figures.split()[8]) for name, figures in rows}

    def test_a_job_goes_over_the_cards_that_it_names(self):
        page = os.path.join(self.folder, "run.prom")
        more = f"[transport.wan]\nnics = eth0, eth1\n[watch]\ntextfile = {page}\n"
        results = [self.finish(p) for p in self.start_hosts(more, 4)]
        for code, _, err in results:
            self.assertEqual(code, 0, err)
        self.assertRegex(results[0][2], r"tokyo-osaka, cards of tokyo: eth0 .+, eth1 .+; of osaka: eth0 .+, eth1 ")
        said = launch_case.read(os.path.join(self.folder, "out", "rank-2.log"))
        self.assertIn("nics: streams go over eth0, eth1; this process is on ", said)
        self.assertIn('longhaul_transport_info{run="launch",link="wan",transport="tcp",security="private",cards="eth0, eth1"} 1\n',
                      launch_case.read(page))
        for host in HOSTS:
            sent = self.sent(host)
            print(f"{host} sent {sent['eth0']} bytes by eth0, {sent['eth1']} by eth1")
            self.assertGreater(min(sent["eth0"], sent["eth1"]), 100000)

    def test_a_name_that_is_no_card_ends_the_job_with_what_there_is(self):
        results = [self.finish(p) for p in self.start_hosts("[transport.wan]\nnics = eth0, eth7\n", 1)]
        for code, _, err in results:
            self.assertNotEqual(code, 0)
        self.assertRegex(results[0][2] + results[1][2], r"nics: this machine has no network interface eth7; expected some of [^\n]*eth0")


class OneWayClosed(NamespaceCase):
    hosts = ("t1", "o1", "k1", "k2")

    def test_check_connect_tells_of_every_pair(self):
        """Of six pairs two are closed; all meet at t1, and the other four are measured."""
        for a, b in (("o1", 4), ("k2", 2), ("k1", 4), ("k2", 3)):
            self.must("-n", self.names[a], "route", "add", "unreachable", f"10.77.0.{b}/32")
        ini = os.path.join(self.folder, "job.ini")
        with open(ini, "w") as f:
            f.write(JOB.format(source=SOURCE, steps=1, ranks=1) + PLACES.replace("30s", "5s") + "[site.kobe]\nhosts = k1:1, k2:2\n")
        subprocess.run([launch_case.LONGHAUL, "prepare", ini], check=True, capture_output=True)
        begin = time.time()
        results = [self.finish(p) for p in [
            subprocess.Popen([*self.wrap(host), launch_case.LONGHAUL, "check", "--connect", ini, "--host", host],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=clean_environment(LH_MARK=self.folder)) for host in self.hosts]]
        self.assertLess(time.time() - begin, 30)
        rows = [row.split(None, 4) for row in results[0][1].splitlines()[1:]]
        told = {tuple(row[:4]): row[4] for row in rows}
        kobe = ("kobe/k1", "kobe/k2", "site", "tcp"), ("osaka/o1", "kobe/k2", "wan", "tcp")
        self.assertEqual(len(told), 6, results)
        for pair, trip in told.items():
            self.assertRegex(trip, r"\Anone: rank \d on kobe/k2, .*No route to host" if pair in kobe else r"\A\d+\.\d{3} ms\Z", pair)
        for code, _, err in results:
            self.assertEqual(code, 3, err)
            self.assertIn("2 of 6 pairs of hosts do not reach each other", err)
        self.nothing_is_left()


class Sites(NamespaceCase):
    weights = launch_train.Train.weights

    def job(self, folder):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(JOB.format(source=SOURCE, steps=12, ranks=1) + PLACES)
        return os.path.join(path, "job.ini")

    def start_hosts(self, ini, *flags, command="run", before=()):
        """`before` stands before the command on the last host."""
        return [subprocess.Popen([*self.wrap(host), *(before if host == HOSTS[-1] else ()), launch_case.LONGHAUL,
                                  command, ini, "--host", host, *flags],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=clean_environment(LH_MARK=self.folder)) for host in HOSTS]

    def finish_well(self, processes):
        results = [self.finish(p, 200) for p in processes]
        self.assertEqual([r[0] for r in results], [0, 0], results)

    def test_a_host_that_sees_another_folder_is_named_before_training(self):
        ini = self.job("apart")
        shared = os.path.join(self.folder, "apart", "out", "checkpoints")
        alone = os.path.join(self.folder, "apart", "alone")
        os.makedirs(shared)
        os.makedirs(alone)
        subprocess.run([launch_case.LONGHAUL, "prepare", ini], check=True, capture_output=True)
        mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', alone, shared)
        for code, _, err in map(self.finish, self.start_hosts(ini, command="train", before=mount)):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, "rank 2 on osaka/o1 .*failed in its start: .*/checkpoints: what rank 0 has just made")
        self.assertEqual([n for folder in (shared, alone) for n in os.listdir(folder) if "shared" in n], [])
        self.nothing_is_left()

    def test_a_host_with_other_tokens_is_named_before_training(self):
        ini = self.job("tokens")
        subprocess.run([launch_case.LONGHAUL, "prepare", ini], check=True, capture_output=True)
        corpus, other = (os.path.join(self.folder, "tokens", "out", name) for name in ("corpus.bin", "other.bin"))
        with open(corpus, "rb") as f:
            data = bytearray(f.read())
        data[0] ^= 1
        with open(other, "wb") as f:
            f.write(data)
        mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', other, corpus)
        for code, _, err in map(self.finish, self.start_hosts(ini, command="train", before=mount)):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"the ranks' token files differ \(digests: ranks 0 to 1: train \w+, held out \w+; "
                                  r"rank 2: train \w+, held out \w+\)")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "tokens", "out", "checkpoints", "latest")))
        self.nothing_is_left()

    def furnished(self, folder, whole):
        """A job with the text that a run has prepared and the link that it has measured."""
        ini = self.job(folder)
        shutil.copytree(os.path.join(os.path.dirname(whole), "out"), os.path.join(os.path.dirname(ini), "out"), ignore=lambda _, names: [
            name for name in names if not re.fullmatch(r"corpus\..*|(prepare|stages|links)\.json", name)])
        return ini

    def undisturbed(self, ini):
        """Seconds that it takes."""
        begin = time.time()
        self.finish_well(self.start_hosts(ini))
        took = time.time() - begin
        self.nothing_is_left()
        return took

    def test_a_run_goes_on_after_all_was_killed(self):
        """In torture three of four begin with a text and a link that are known, which take most of a start."""
        whole = self.job("whole")
        lengths = [self.undisturbed(whole)]
        if TORTURE:
            known = self.furnished("known", whole)
            lengths += [self.undisturbed(known)] * 3
            self.assertEqual(self.weights(known), self.weights(whole))
        random.seed(5)
        for i in range(20 if TORTURE else 1):
            ini = self.furnished(f"cut{i}", whole) if i % 4 else self.job(f"cut{i}")
            processes = self.start_hosts(ini)
            time.sleep(random.uniform(0.3, 0.9) * lengths[i % 4])
            for pid in launch_case.processes_with(self.mark):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for p in processes:
                p.communicate()
            self.nothing_is_left()
            self.finish_well(self.start_hosts(ini, "--resume"))
            self.assertEqual(self.weights(ini), self.weights(whole))
            self.nothing_is_left()


if __name__ == "__main__":
    need_namespaces()
    launch_case.main()
