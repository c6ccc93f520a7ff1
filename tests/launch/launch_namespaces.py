"""Hosts as network namespaces joined by veth: a launcher on each, one site or two, and a link that is cut."""
import os
import subprocess
import time
import uuid

import launch_case
from launch_case import LaunchCase

HOSTS = ("t1", "o1")


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class NamespaceCase(LaunchCase):
    hosts = HOSTS

    def setUp(self):
        super().setUp()
        tag = uuid.uuid4().hex[:5]
        self.bridge = f"lhb{tag}"
        self.names = {h: f"lh-{h}-{tag}" for h in self.hosts}
        self.addCleanup(self.remove)
        self.must("link", "add", self.bridge, "type", "bridge")
        self.must("link", "set", self.bridge, "up")
        for i, (host, name) in enumerate(self.names.items()):
            self.must("netns", "add", name)
            self.furnish(name)
            self.must("link", "add", f"lh{tag}{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.must("link", "set", f"lh{tag}{i}", "master", self.bridge, "up")
            self.must("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            self.must("-n", name, "link", "set", "eth0", "up")
            self.must("-n", name, "link", "set", "lo", "up")

    def furnish(self, name):
        """What a namespace has before the link to the others."""

    def must(self, *words):
        done = ip(*words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def remove(self):
        for name in self.names.values():
            ip("netns", "del", name)
        ip("link", "del", self.bridge)

    def wrap(self, host):
        return ("ip", "netns", "exec", self.names[host])

    def start_said(self, ini):
        """A launcher on each host, which writes into a file, and these files."""
        said = {h: os.path.join(self.folder, f"said-{h}") for h in self.hosts}
        processes = {}
        for host in self.hosts:
            with open(said[host], "w") as f:
                processes[host] = subprocess.Popen(
                    [*self.wrap(host), launch_case.PROGRAM, "train", ini, "--host", host], stdout=f, stderr=f,
                    env=launch_case.clean_environment(LH_MARK=self.folder, LH_STEPS=100000))
        return processes, said


class Namespaces(NamespaceCase):
    def hosts_ini(self, restart=0):
        return self.ini(f"[launch]\naddress = 10.77.0.1\nport = 29400\nsecret = job.key\njoin_timeout = 20s\nrestart = {restart}\n"
                        "[site.tokyo]\nhosts = t1:2\n[site.osaka]\nhosts = o1:2\n")

    def start_on(self, host, ini, **environment):
        return self.start(ini, "--host", host, wrap=self.wrap(host), **environment)

    def test_two_hosts_meet_in_either_order(self):
        ini = self.hosts_ini()
        for order in (HOSTS, HOSTS[::-1]):
            processes = {}
            for host in order:
                processes[host] = self.start_on(host, ini)
                time.sleep(0.3)
            results = {h: self.finish(p) for h, p in processes.items()}
            self.assertEqual({h: r[0] for h, r in results.items()}, {"t1": 0, "o1": 0}, results)
            self.assertEqual(results["t1"][1], "rank 0 of 4 on t1\n")
            self.assertIn("rank 3 of 4 on o1", launch_case.read(os.path.join(self.folder, "out", "rank-3.log")))
            self.nothing_is_left()

    def start_both(self, restart=0, **environment):
        ini = self.hosts_ini(restart)
        processes = {h: self.start_on(h, ini, **environment) for h in HOSTS}
        self.ranks(4)
        time.sleep(0.6)
        return processes

    def test_a_killed_rank_is_named_on_both_hosts(self):
        processes = self.start_both(LH_STEPS=100000)
        os.kill(self.seen()[3], 9)
        begin = time.time()
        results = {h: self.finish(p) for h, p in processes.items()}
        self.assertLess(time.time() - begin, 20)
        self.assertEqual([r[0] for r in results.values()], [3, 3], results)
        self.assertRegex(results["o1"][2], r"\Alonghaul: rank 3 on osaka/o1 was killed by signal 9 \(Killed\) in step \d+, a test barrier\n\Z")
        self.assertRegex(results["t1"][2], r"\Alonghaul: rank 3 on osaka/o1 \(process \d+\) was lost in step \d+, a test barrier: its connection (ended|broke: [^\n]*) \(seen by rank 0 on tokyo/t1\)\n\Z")
        self.nothing_is_left()

    def test_a_cut_link_is_named_on_both_hosts(self):
        processes = self.start_both(LH_STEPS=100000)
        self.must("-n", self.names["o1"], "link", "set", "eth0", "down")
        begin = time.time()
        results = {h: self.finish(p) for h, p in processes.items()}
        print(f"cut link: both ended after {time.time() - begin:.2f} s")
        self.assertLess(time.time() - begin, 20)
        self.assertEqual([r[0] for r in results.values()], [3, 3], results)
        self.assertRegex(results["t1"][2], r"\Alonghaul: rank [23] on osaka/o1 \(process \d+\) was lost in step \d+, [^\n]*: (silent for 3\.\d s|its connection [^\n]*) \(seen by rank 0 on tokyo/t1\)\n\Z")
        self.assertRegex(results["o1"][2], r"\Alonghaul: rank 0 on tokyo/t1 \(process \d+\) was lost in step \d+, [^\n]*: (silent for 3\.\d s|its connection [^\n]*) \(seen by rank [23] on osaka/o1\)\n\Z")
        self.nothing_is_left()

    def test_an_address_that_is_gone_with_its_link_is_waited_for(self):
        processes = self.start_both(restart=3, LH_STEPS=100000)
        before = self.seen()
        self.must("-n", self.names["t1"], "addr", "del", "10.77.0.1/24", "dev", "eth0")
        time.sleep(6)  # 3 s of silence, the end of the ranks, and two tries to listen
        self.assertIsNone(processes["t1"].poll())
        self.must("-n", self.names["t1"], "addr", "add", "10.77.0.1/24", "dev", "eth0")
        launch_case.wait_for(lambda: len(self.seen()) == 4 and not set(self.seen().values()) & set(before.values()))
        time.sleep(1)
        processes["t1"].terminate()
        results = {h: self.finish(p) for h, p in processes.items()}
        self.assertEqual([r[0] for r in results.values()], [75, 75], results)
        self.nothing_is_left()


class Partition(NamespaceCase):
    """Rank 0's machine is cut off, and lives: the others go on without it, and it does not without them."""
    hosts = ("t1", "o1", "k1")

    def test_a_leader_that_is_cut_off_is_taken_for_lost_and_waits(self):
        ini = self.ini("[launch]\naddress = 10.77.0.1\nport = 29400\nsecret = job.key\njoin_timeout = 20s\nrejoin = 4s\nrestart = 20\n"
                       "go_on_with = ranks\n[site.tokyo]\nhosts = t1:1\naddresses = 10.77.0.1\n"
                       "[site.osaka]\nhosts = o1:1\naddresses = 10.77.0.2\n[site.kyoto]\nhosts = k1:1\naddresses = 10.77.0.3\n")
        processes, said = self.start_said(ini)
        self.ranks(3)
        time.sleep(0.6)
        self.must("-n", self.names["t1"], "link", "set", "eth0", "down")
        begin = time.time()
        launch_case.wait_for(lambda: "rank 0 of 2 on o1\n" in launch_case.read(said["o1"]), 90)
        print(f"cut off: the others go on {time.time() - begin:.1f} s after the cut, 4 s of which are rejoin")
        launch_case.wait_for(lambda: "are not most of those of the last meeting" in launch_case.read(said["t1"]), 90)
        self.must("-n", self.names["t1"], "link", "set", "eth0", "up")
        launch_case.wait_for(lambda: "the job is in epoch " in launch_case.read(said["t1"]), 90)
        time.sleep(1)
        self.assertEqual(launch_case.read(said["t1"]).count("rank 0 of "), 1)  # it has not worked by itself
        for p in processes.values():
            p.terminate()
        self.assertEqual({h: p.wait(60) for h, p in processes.items()}, {h: 75 for h in self.hosts},
                         {h: launch_case.read(path) for h, path in said.items()})
        self.nothing_is_left()


class PoweredOff(NamespaceCase):
    """A machine without power refuses no connection: whoever dials it hears nothing at all."""
    hosts = ("t1", "t2", "t3", "o1", "o2")

    def test_a_spare_is_there_when_the_others_decide(self):
        """They wait for machines that notice later, for seconds: a spare that asked the lost one again and again would miss them."""
        ini = self.ini("[launch]\naddress = 10.77.0.1\nport = 29400\nsecret = job.key\njoin_timeout = 20s\nrejoin = 4s\nrestart = 20\n"
                       "go_on_with = sites\n[site.tokyo]\nhosts = t1:1, t2:1\nspare = t3:1\naddresses = 10.77.0.1, 10.77.0.2, 10.77.0.3\n"
                       "[site.osaka]\nhosts = o1:1, o2:1\naddresses = 10.77.0.4, 10.77.0.5\n")
        processes, said = self.start_said(ini)
        launch_case.wait_for(lambda: "rank 0 of 4 on t1\n" in launch_case.read(said["t1"]), 90)
        time.sleep(0.6)
        self.must("-n", self.names["t1"], "link", "set", "eth0", "down")
        begin = time.time()
        launch_case.wait_for(lambda: "rank 0 of 4 on t3\n" in launch_case.read(said["t3"]), 90)
        print(f"no power: the spare goes on with all {time.time() - begin:.1f} s after the loss, 4 s of which are rejoin")
        self.assertNotIn(" is gone", "".join(launch_case.read(said[h]) for h in ("t2", "t3", "o1", "o2")))
        self.must("-n", self.names["t1"], "link", "set", "eth0", "up")
        launch_case.wait_for(lambda: "the job is in epoch " in launch_case.read(said["t1"]), 90)
        for p in processes.values():
            p.terminate()
        codes = {h: p.wait(60) for h, p in processes.items()}
        self.assertIn(codes.pop("t1"), (0, 75))  # it has none of the ranks, and may hear of the end before its own signal
        self.assertEqual(set(codes.values()), {75}, {h: launch_case.read(path) for h, path in said.items()})
        self.nothing_is_left()


class Waiting(NamespaceCase):
    """Who waits says for whom: two jobs, as each host waits for the other in vain."""

    def test_a_rank_that_waits_says_for_whom(self):
        processes = {}
        for i, host in enumerate(HOSTS):
            ini = self.ini(f"[launch]\naddress = 10.77.0.1\nport = {29400 + i}\nsecret = job{i}.key\n"
                           "join_timeout = 13s\n[site.tokyo]\nhosts = t1:1\n[site.osaka]\nhosts = o1:3\n", f"{host}.ini")
            with open(os.path.join(self.folder, f"job{i}.key"), "w") as f:
                f.write("0123456789abcdef" * 4 + "\n")
            os.chmod(f.name, 0o600)
            processes[host] = self.start(ini, "--host", host, wrap=self.wrap(host))
        results = {h: self.finish(p) for h, p in processes.items()}
        self.assertEqual([r[0] for r in results.values()], [3, 3], results)
        for since in (r"5", r"1[01]"):  # again each 5 s
            self.assertRegex(results["t1"][2], rf"(?m)^(rank 0: )?warning: waiting for ranks 1 to 3 on osaka/o1 since {since} s, at 10\.77\.0\.1, port 29400$")
        self.assertIn("1 of 4 ranks have come in 13 s; missing: ranks 1 to 3 on osaka/o1\n", results["t1"][2])
        told = [line for line in results["o1"][2].splitlines() if "waiting for" in line]
        self.assertEqual(len(told), 2, results["o1"][2])  # of three ranks one speaks
        for line, since in zip(told, (r"5", r"1[01]")):
            self.assertRegex(line, rf"waiting for rank 0 on tokyo/t1 since {since} s: rank 0 at 10\.77\.0\.1, port 29401: ")
        self.nothing_is_left()


def need_namespaces():
    probe = "lhp" + uuid.uuid4().hex[:5]
    if os.geteuid() != 0 or ip("link", "add", probe, "type", "bridge").returncode != 0:
        launch_case.skip("network namespaces and veth need root")
    ip("link", "del", probe)


if __name__ == "__main__":
    need_namespaces()
    launch_case.main()
