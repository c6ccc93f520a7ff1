"""Machines that are lost for good, rank 0's among them: a spare takes their ranks, or the job goes on without them and takes them in again."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import launch_case
from launch_case import LaunchCase, SOURCE, TORTURE
import launch_restart
import launch_train

WAIT = 200  # seconds; on a machine that does much else
MANY = "hosts = " + ",\n    ".join(f"h{i}" for i in range(256))  # as many as a layout has room for
EVERY = 10  # steps between checkpoints
REJOIN = 6  # seconds
HERALDS = 65535  # the rank of each that waits beside the others
# Waits for what others of these wait for, too, in another shape.
LONG = unittest.skipUnless(TORTURE, "make torture")


def listens(address, port):
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((address, port), 1):
        return True
    return False


def unread(pipe):
    """What a process has written into a pipe and nobody has read, without waiting for more."""
    if pipe.closed:
        return ""
    os.set_blocking(pipe.fileno(), False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe.fileno(), 65536):
            found += part
    return found.decode(errors="replace")


def launch_ini(sites, more="", rejoin=f"{REJOIN}s"):
    return (f"[launch]\naddress = 127.0.0.1\nport = {launch_case.free_port()}\nsecret = job.key\njoin_timeout = 60s\nrejoin = {rejoin}\n{more}"
            + ("" if "restart" in more else "restart = 50\n")  # a machine that does much else may lose a rank by itself
            + "".join(f"[site.{name}]\n{text}\n" for name, text in sites.items()))


class Ranks(LaunchCase):
    """A program that only counts steps."""

    def setUp(self):
        super().setUp()
        self.launchers = []  # (host, process), in the order of their starts

    def start(self, ini, *flags, **environment):
        process = super().start(ini, *flags, **environment)
        self.launchers.append((flags[flags.index("--host") + 1] if "--host" in flags else "", process))
        return process

    def all_said(self):
        """What all launchers of this test have said, for a failure: of those with pipes what nobody has read yet."""
        found = []
        for host, p in self.launchers:
            said = launch_case.read(p.said) if hasattr(p, "said") else "".join(unread(pipe) for pipe in (p.stdout, p.stderr))
            found.append(f"---- {host} (process {p.pid}, {'at work' if p.poll() is None else f'code {p.returncode}'}):\n{said}")
        return "\n".join(["", *found])

    def wait_for(self, fact, what):
        """fact() is true, or false, or None where it never will be."""
        try:
            launch_case.wait_for(lambda: fact() is not False, WAIT)
        except AssertionError:
            self.fail(f"not said in {WAIT} s: {what}{self.all_said()}")
        if fact() is None:
            self.fail(f"not said, and nothing is any more: {what}{self.all_said()}")

    def start_all(self, ini, *hosts, **environment):
        return {host: self.start(ini, "--host", host, **dict({"LH_STEPS": 100000}, **environment)) for host in hosts}

    def lose(self, processes, host):
        """For good: the launcher, and with it its ranks."""
        processes[host].kill()
        processes.pop(host).communicate()

    def begun(self, rank, text, times=1):
        log = os.path.join(self.folder, "out", f"rank-{rank}.log")
        self.wait_for(lambda: os.path.exists(log) and launch_case.read(log).count(text) >= times, f"{log}: {times} times {text!r}")

    def stop(self, processes, code=75):
        for host in processes:
            processes[host].terminate()
        try:
            results = {host: self.finish(p, WAIT) for host, p in processes.items()}
        except subprocess.TimeoutExpired as e:
            self.fail(f"{e}: {e.stdout!r} {e.stderr!r}{self.all_said()}")
        # This program agrees on no end: its ranks may hear of another's before they have the signal.
        early = {host for host, r in results.items() if r[0] == 3 and "was lost: its connection ended" in r[2]}
        self.assertLess(len(early), len(results), results)
        self.assertEqual({r[0] for host, r in results.items() if host not in early}, {code}, results)
        self.nothing_is_left()
        return {host: r[2] for host, r in results.items()}

    def test_a_spare_takes_the_ranks_of_a_machine_that_does_not_come_back(self):
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1\nspare = o2:1"}))
        processes = self.start_all(ini, "t1", "o1", "o2")
        self.begun(2, "rank 2 of 3 on o1")
        time.sleep(0.5)
        self.lose(processes, "o1")
        self.begun(2, "rank 2 of 3 on o2")
        said = self.stop(processes)
        line = rf"warning: rank 2 on osaka/o1 have not come in {REJOIN} s: osaka/o2 takes the ranks of o1; "
        self.assertRegex(said["t1"], line + "starting again\n")
        self.assertRegex(said["o2"], line + "this machine waited\n")

    def test_a_spare_takes_the_ranks_of_a_machine_that_leaves(self):
        """By [launch] notice: what waits beside the job is not told that it is over."""
        saved = os.path.join(self.folder, "saved")
        with open(saved, "w"):
            pass
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1\nspare = o2:1"}, "notice = 30s\n"))
        processes = self.start_all(ini, "t1", "o2", LH_SAVES=saved)
        time.sleep(1)  # o2 comes while ranks meet, and stays
        processes.update(self.start_all(ini, "o1", LH_SAVES=saved))
        self.begun(2, "rank 2 of 3 on o1\n")
        processes["o1"].terminate()
        code, _, err = self.finish(processes.pop("o1"), WAIT)
        self.assertEqual(code, 75, err)
        self.begun(2, "rank 2 of 3 on o2\n")
        said = self.stop(processes)
        self.assertIn("another machine was told to leave, and left after a save; starting again", said["t1"])
        self.assertIn("osaka/o2 takes the ranks of o1; this machine waited", said["o2"])

    @LONG
    def test_a_site_that_is_lost_is_taken_in_again_only_by_what_saves(self):
        """This program saves nothing: the others go on without it, and it waits."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1"}, "go_on_with = sites\n"))
        processes = self.start_all(ini, "t1", "o1")
        self.begun(2, "rank 2 of 3 on o1")
        self.lose(processes, "o1")
        self.begun(1, "rank 1 of 2 on t1")
        processes.update(self.start_all(ini, "o1"))
        time.sleep(2)
        self.assertIsNone(processes["o1"].poll())
        os.kill(self.seen()[0], signal.SIGKILL)
        self.begun(1, "rank 1 of 2 on t1", 2)
        said = self.stop(processes)
        self.assertRegex(said["t1"], rf"warning: rank 2 on osaka/o1 have not come in {REJOIN} s: osaka/o1 is gone; starting again\n")
        self.assertIn("the job has gone on without osaka/o1; this machine waits\n", said["o1"])

    def test_a_machine_that_is_left_out_with_its_site_stands_with_the_others(self):
        """Of tokyo t1, on which rank 0 is, is lost; osaka alone is a third of the ranks, and most with t2, which has none then."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1, t2:1\naddresses = 127.0.0.1, 127.0.0.3", "osaka": "hosts = o1:1\naddresses = 127.0.0.2"},
                                  "go_on_with = sites\n"))
        processes = self.start_told(ini, "t1", "t2", "o1")
        self.begun(2, "rank 2 of 3 on o1")
        self.lose(processes, "t1")
        self.says(processes["o1"], "rank 0 of 1 on o1\n")
        self.says(processes["t2"], "tokyo/t1 is gone, tokyo/t2 is gone; this machine waits\n")
        os.kill(self.seen()[0], signal.SIGKILL)  # and again, of those that have met so
        self.wait_for(lambda: self.said_by(processes["o1"]).count("rank 0 of 1 on o1\n") == 2, "that they meet once more")
        self.end(processes)

    def test_less_than_most_wait(self):
        """Half of the ranks with no site that is preferred: neither half goes on, until the other is back."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1"}, "go_on_with = ranks\n"))
        log = os.path.join(self.folder, "out", "train.log")  # as a training leaves it: this program makes none
        os.makedirs(os.path.dirname(log))
        with open(log, "w"):
            pass
        processes = self.start_all(ini, "t1", "o1")
        self.begun(1, "rank 1 of 2 on o1")
        self.assertEqual(launch_case.read(log), "")  # a first meeting may be of another run
        self.lose(processes, "o1")
        time.sleep(REJOIN + 3)
        self.assertIsNone(processes["t1"].poll())
        processes.update(self.start_all(ini, "o1"))
        self.begun(1, "rank 1 of 2 on o1", 2)
        line = "warning: the ranks that have come are not most of those of the last meeting: "
        self.assertIn(line, self.stop(processes)["t1"])
        self.assertIn(line, launch_case.without_times(launch_case.read(log)))

    def waited_in_vain(self, processes, missing):
        """All launchers that are left end, with what is missing and what a person can do."""
        for host, (code, _, err) in {host: self.finish(p, WAIT) for host, p in processes.items()}.items():
            self.assertEqual(code, 3, (host, err))
            self.assertIn("longhaul: those that have come may not go on by themselves, and have waited for others in vain for 2.0 s "
                          f"([launch] quorum_timeout); not here: {missing}", err)
            self.assertIn("; if it is sure that nobody trains there, take them out of [site.*] and start with --resume on all others\n", err)
        self.nothing_is_left()

    def test_less_than_most_end_after_quorum_timeout(self):
        """Half of the ranks with nothing that decides: the job ends, and goes on once a person has said that the others are lost."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1, t2:1", "osaka": "hosts = o1:2"}, "go_on_with = ranks\nquorum_timeout = 2s\n"))
        processes = self.start_all(ini, "t1", "t2", "o1")
        self.begun(3, "rank 3 of 4 on o1")
        self.lose(processes, "o1")
        self.waited_in_vain(processes, "osaka/o1;")
        left = self.ini(launch_ini({"tokyo": "hosts = t1:1, t2:1"}, "go_on_with = ranks\n"), "left.ini")
        for code, _, err in [self.finish(p, WAIT) for p in [self.start(left, "--host", host, "--resume", LH_STEPS=3) for host in ("t1", "t2")]]:
            self.assertEqual(code, 0, err)
        self.nothing_is_left()

    def test_who_elects_in_vain_ends_after_quorum_timeout(self):
        """Rank 0's machine is lost with half of the ranks: whoever would lead may not, nor who has come to it."""
        sites = {"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1\naddresses = 127.0.0.2", "kyoto": "hosts = k1:1\naddresses = 127.0.0.3"}
        ini = self.ini(launch_ini(sites, "go_on_with = ranks\nquorum_timeout = 2s\n"))
        processes = self.start_all(ini, "t1", "o1", "k1")
        self.begun(3, "rank 3 of 4 on k1")
        self.lose(processes, "t1")
        self.waited_in_vain(processes, "tokyo/t1")

    @LONG
    def test_of_two_halves_the_preferred_goes_on(self):
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1"}, "go_on_with = ranks\nprefer = tokyo\n"))
        processes = self.start_all(ini, "t1", "o1")
        self.begun(1, "rank 1 of 2 on o1")
        self.lose(processes, "o1")
        launch_case.wait_for(lambda: processes["t1"].poll() is not None or list(self.seen()) == [0], WAIT)
        time.sleep(REJOIN + 1)
        processes.update(self.start_all(ini, "o1"))
        time.sleep(3)
        said = self.stop(processes)
        self.assertIn("the job has gone on without osaka/o1; this machine waits\n", said["o1"])
        self.assertRegex(said["t1"], rf"warning: rank 1 on osaka/o1 have not come in {REJOIN} s: osaka/o1 is gone; starting again\n")

    def said_by(self, process):
        """What a launcher has said so far, in a file."""
        return launch_case.read(process.said)

    def start_told(self, ini, *hosts, flags=(), **environment):
        """As start_all; what each says can be read while it runs."""
        processes = {}
        for host in hosts:
            path = os.path.join(self.folder, f"said-{host}-{len(os.listdir(self.folder))}")
            with open(path, "w") as f:
                processes[host] = subprocess.Popen(
                    [launch_case.PROGRAM, "train", ini, "--host", host, *flags], stdout=f, stderr=f,
                    env=launch_case.clean_environment(LH_MARK=self.folder, LH_STEPS=100000, **environment))
            processes[host].said = path
            self.launchers.append((host, processes[host]))
        return processes

    def says(self, process, text):
        """A process that has ended says nothing more."""
        def said():
            ended = process.poll() is not None
            return text in self.said_by(process) or (None if ended else False)
        self.wait_for(said, repr(text))

    def witness_knows(self, host):
        """It has been told of a meeting."""
        votes = os.path.join(self.folder, "out", f".votes-{host}")
        self.wait_for(lambda: os.path.exists(votes) and re.search(r"(?m)^met [1-9]", launch_case.read(votes)) is not None,
                      f"{votes}: a meeting")

    def end(self, processes):
        """Those that wait beside the others go first: when the others have ended they would, too, with another code."""
        leads = {launch_case.parent_of(pid) for rank, pid in self.seen().items() if rank < HERALDS}
        for p in sorted(processes.values(), key=lambda p: p.pid in leads):
            p.terminate()
            if p.pid not in leads:
                launch_case.wait_until_taken(p.pid, signal.SIGTERM)
        try:
            codes = {h: p.wait(WAIT) for h, p in processes.items()}
        except subprocess.TimeoutExpired as e:
            self.fail(f"{e}{self.all_said()}")
        self.assertEqual(codes, {h: 75 for h in processes}, self.all_said())
        self.nothing_is_left()

    def test_rank_0s_machine_is_lost_and_another_leads(self):
        """Two thirds of the ranks go on; whom they have lost is told so when it comes, as rank 0 of all, and waits."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:2\naddresses = 127.0.0.2"}, "go_on_with = sites\n"))
        processes = self.start_told(ini, "t1", "o1")
        self.begun(2, "rank 2 of 3 on o1")
        self.lose(processes, "t1")
        self.begun(1, "rank 1 of 2 on o1")
        said = self.said_by(processes["o1"])
        self.assertIn(f"warning: rank 0 on tokyo/t1 was not reached in {REJOIN} s; those that are here look for another machine to lead\n", said)
        self.assertIn("warning: rank 0 on tokyo/t1 was not reached: tokyo/t1 is gone; starting again\n", said)
        self.says(processes["o1"], "rank 0 of 2 on o1\n")
        processes.update(self.start_told(ini, "t1"))
        self.says(processes["t1"], "and tokyo/t1 was in 1; this machine waits\n")
        time.sleep(1)
        self.assertEqual(sorted(self.seen())[:2], [0, 1])
        self.assertNotIn("rank 0 of", self.said_by(processes["t1"]))
        self.end(processes)

    @LONG
    def test_a_spare_leads_in_the_place_of_rank_0s_machine(self):
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1\nspare = t2:1\naddresses = 127.0.0.1, 127.0.0.3",
                                   "osaka": "hosts = o1:2\naddresses = 127.0.0.2"}))
        processes = self.start_told(ini, "t1", "o1", "t2")
        self.begun(2, "rank 2 of 3 on o1")
        time.sleep(0.5)
        self.lose(processes, "t1")
        self.says(processes["t2"], "rank 0 of 3 on t2\n")
        self.begun(2, "rank 2 of 3 on o1", 2)
        self.end(processes)

    @LONG
    def test_a_spare_that_leads_in_vain_is_told_once_more(self):
        """The others come to it later than it waits for them: it is a spare again by then, and is given rank 0 again."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1\nspare = t2:1\naddresses = 127.0.0.1, 127.0.0.3",
                                   "osaka": "hosts = o1:2\naddresses = 127.0.0.2"}))
        port = int(re.search(r"(?m)^port = (\d+)$", launch_case.read(ini)).group(1))
        processes = self.start_told(ini, "t1", "o1", "t2")
        self.begun(2, "rank 2 of 3 on o1")
        self.lose(processes, "t1")
        self.says(processes["o1"], "those that are here look for another machine to lead\n")
        self.wait_for(lambda: listens("127.0.0.2", port), "that o1 listens")  # and decides 5 s behind that
        processes["o1"].send_signal(signal.SIGSTOP)  # its launcher alone: whoever elects is a process of its own
        self.says(processes["t2"], "1 of 3 ranks have come in 6 s; missing: ranks 1 to 2 on osaka/o1; this machine waits as a spare again\n")
        processes["o1"].send_signal(signal.SIGCONT)
        self.says(processes["t2"], "rank 0 on tokyo/t2 was not reached: its machine is here now, and all meet as before; this machine waited\n")
        self.says(processes["t2"], "rank 0 of 3 on t2\n")
        self.begun(2, "rank 2 of 3 on o1", 2)
        self.end(processes)

    @LONG
    def test_without_most_nobody_leads(self):
        """The half that has lost rank 0's machine waits for it, though it has found another to lead."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1\naddresses = 127.0.0.2"}, "go_on_with = ranks\n"))
        processes = self.start_told(ini, "t1", "o1")
        self.begun(1, "rank 1 of 2 on o1")
        self.lose(processes, "t1")
        self.says(processes["o1"], "warning: the ranks that have come are not most of those of the last meeting: ")
        processes.update(self.start_told(ini, "t1"))
        self.begun(1, "rank 1 of 2 on o1", 2)
        self.end(processes)

    def test_a_tie_goes_to_the_half_that_the_witness_sees(self):
        """It remembers, too, when it was started again: what it gave to one half the other does not get."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1\naddresses = 127.0.0.2"}, "go_on_with = ranks\nwitness = w1\n"))
        processes = self.start_told(ini, "w1", "t1", "o1")
        self.begun(1, "rank 1 of 2 on o1")
        self.witness_knows("w1")
        self.lose(processes, "w1")
        processes.update(self.start_told(ini, "w1", flags=["--resume"]))
        self.lose(processes, "t1")
        self.says(processes["o1"], "rank 0 of 1 on o1\n")
        self.assertIn(0, self.seen())
        # Both are lost; the other half comes with its votes, and the witness with the one that it gave away.
        self.lose(processes, "o1")
        self.lose(processes, "w1")
        processes.update(self.start_told(ini, "t1", "w1", flags=["--resume"]))
        time.sleep(REJOIN + 6)
        self.assertNotIn("rank 0 of 1 on ", self.said_by(processes["t1"]))
        processes.update(self.start_told(ini, "o1", flags=["--resume"]))
        self.says(processes["o1"], "rank 0 of ")
        self.end(processes)

    def test_an_end_at_once_is_the_witness_s_too(self):
        """A second signal to one launcher: nobody goes on without it, and nobody waits for it."""
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1\naddresses = 127.0.0.2"}, "go_on_with = ranks\nwitness = w1\n"))
        processes = self.start_told(ini, "w1", "t1", "o1", LH_DEAF=1)
        self.begun(1, "rank 1 of 2 on o1")
        self.witness_knows("w1")
        for _ in range(2):
            processes["t1"].terminate()
            launch_case.wait_until_taken(processes["t1"].pid, signal.SIGTERM)
        launch_case.wait_for(lambda: all(p.poll() is not None for p in processes.values()), 60)
        self.assertEqual({h: p.returncode for h, p in processes.items()}, {"w1": 0, "t1": 143, "o1": 143},
                         {h: self.said_by(p) for h, p in processes.items()})
        self.nothing_is_left()

    def test_votes_outlive_a_launcher(self):
        """Of three machines two were lost, and one is back: with its vote they are most of three. One that is started without --resume has none."""
        sites = {"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1\naddresses = 127.0.0.2", "kyoto": "hosts = k1:1\naddresses = 127.0.0.3"}
        for flags, goes_on in (([], False), (["--resume"], True)):
            ini = self.ini(launch_ini(sites, "go_on_with = ranks\n"), f"votes-{goes_on}.ini")
            processes = self.start_told(ini, "t1", "o1", "k1")
            self.begun(2, "rank 2 of 3 on k1", 1 + goes_on)
            votes = os.path.join(self.folder, "out", ".votes-k1")
            launch_case.wait_for(lambda: os.path.exists(votes))
            self.assertEqual(os.stat(votes).st_mode & 0o777, 0o600)
            self.lose(processes, "t1")
            self.lose(processes, "k1")
            processes.update(self.start_told(ini, "k1", flags=flags))
            if goes_on:
                self.says(processes["o1"], "rank 0 of 2 on o1\n")
            else:
                time.sleep(3 * REJOIN)
                self.assertNotIn("rank 0 of 2", self.said_by(processes["o1"]))
                self.lose(processes, "k1")  # it waits for rank 0's machine, and would end for want of it
            self.end(processes)

    def test_a_record_that_is_not_this_machines_has_no_vote(self):
        ini = self.ini(launch_ini({"tokyo": "hosts = t1:1", "osaka": "hosts = o1:1"}, "go_on_with = ranks\nprefer = tokyo\n"))
        processes = self.start_told(ini, "t1", "o1")
        self.begun(1, "rank 1 of 2 on o1")
        votes = os.path.join(self.folder, "out", ".votes-o1")
        launch_case.wait_for(lambda: os.path.exists(votes))
        # Another launcher of that name has the votes already.
        second = self.start_told(ini, "o1", flags=["--resume"])
        self.says(second["o1"], ".votes-o1 is locked: another launcher is this machine too, and its votes are not this one's\n")
        self.lose(second, "o1")
        self.lose(processes, "o1")
        self.lose(processes, "t1")  # nobody is there to meet and to be lost again
        text = launch_case.read(votes)
        for damaged in (text.replace("system ", "system 0"), text.replace("end\n", ""), text.replace("hosts ", "hosts f"), ""):
            with open(votes, "w") as f:
                f.write(damaged)
            second = self.start_told(ini, "o1", flags=["--resume"])
            self.says(second["o1"], "this machine remembers no meeting\n")
            self.lose(second, "o1")
        self.end(processes)

    def test_options_are_checked(self):
        for sites, more, sentence in (
                ({"a": "hosts = t1", "b": "hosts = t2"}, "go_on_with = ranks\nwitness = t2\n",
                 "witness = t2: it is a host of [site.b], and would be lost with it; expected another machine"),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "go_on_with = ranks\nwitness = t2.lan\n", "witness = t2.lan: it is a host of [site.b]"),
                ({"a": "hosts = t1\nspare = t3", "b": "hosts = t2"}, "witness = t3\n", "witness = t3: it is a spare of [site.a], and would be lost with it"),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "witness = w\n", "witness = w: nobody goes on without the others, so that it decides nothing"),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "go_on_with = ranks\nwitness = localhost\n", "witness = localhost: expected the name of another machine"),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "go_on_with = ranks\nwitness = 10.0.0.1:80\n", "witness = 10.0.0.1:80: expected the name of another machine"),
                ({"a": "hosts = t1, t2\naddresses = 10.0.0.1"}, "", "addresses names 1; expected 2, as many as hosts and spares"),
                ({"a": "hosts = t1, t2\naddresses = 10.0.0.1, 10.0.0.2, x"}, "", "addresses = ... x: expected 2, as many as hosts and spares"),
                ({"a": "hosts = t1, t2\naddresses = 10.0.0.1, a b"}, "", "addresses = ... a b: expected a host's name or an address"),
                ({"a": "hosts = t1:2\nspare = t2:1"}, "", "spare = ... t2:1: no host of [site.a] has as few ranks; expected 2 or more"),
                ({"a": "hosts = t1:2\nspare = t1:2"}, "", "spare = ... t1: named twice in [site.a]"),
                ({"a": "hosts = t1", "b": "hosts = t2\nspare = t1"}, "", "spare = ... t1: it is a host of [site.a] already"),
                ({"a": "hosts = t1, t2"}, "go_on_with = sites\n", "go_on_with = sites: the job has one site; expected ranks"),
                ({"a": "hosts = t1:2"}, "go_on_with = ranks\n", "go_on_with = ranks: the job has one host; expected none, or another host"),
                ({"a": "hosts = t1:2\nspare = t2:2"}, "", "spare = ... t2: the job has one host, and once that is lost nobody is left who may"),
                ({}, "go_on_with = ranks\n", "go_on_with = ranks: the job has no [site.NAME]"),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "go_on_with = most\n", "go_on_with = most: "),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "go_on_with = ranks\nrestart = 0\n", "go_on_with = ranks: [launch] restart is 0"),
                ({"a": MANY, "b": "hosts = t2"}, "go_on_with = ranks\n", "go_on_with = ranks: the job has 257 hosts; expected at most 256"),
                ({"a": MANY + "\nspare = t3"}, "", "spare = ... t3: the job has 257 hosts; expected at most 256"),
                ({"a": "hosts = t1", "b": "hosts = t2"}, "prefer = c\n", "prefer = c: there is no [site.c]")):
            code, _, err = self.run_ranks(self.ini(launch_ini(sites, more)))
            self.assertEqual(code, 1, err)
            self.assertIn(sentence, err)
            self.assertEqual(len(err.splitlines()), 1, err)


class Training(LaunchCase):
    """Runs are ended when they have come far enough: how long a step takes depends on what else the machine does."""
    weights = launch_train.Train.weights
    rows = launch_restart.Training.rows
    losses = launch_restart.Training.losses
    reached = launch_restart.Training.reached
    start_run = launch_restart.Training.start_run

    def job(self, folder, sites, more="", steps=100000):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        text = launch_train.JOB.format(source=SOURCE, steps=steps, ranks=1).replace("every = 4\nkeep = 2", f"every = {EVERY}\nkeep = 100000")
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(text[:text.index("[launch]")] + launch_ini(sites, more))
        return os.path.join(path, "job.ini")

    def start_all(self, ini, *hosts, flags=()):
        return {host: self.start_run(ini, "--host", host, *flags) for host in hosts}

    lose = Ranks.lose

    def until(self, ini, processes, step):
        """Ends the run behind this step, which need not be the last that it is planned for."""
        launch_case.wait_for(lambda: self.reached(ini, step), WAIT)
        folder = os.path.join(os.path.dirname(ini), "out")
        subprocess.run([launch_case.LONGHAUL, "stop", folder], check=True, capture_output=True)
        results = {host: self.finish(p, WAIT) for host, p in processes.items()}
        self.assertEqual({r[0] for r in results.values()}, {75}, results)
        return {host: r[2] for host, r in results.items()}

    def restarts(self, ini):
        return [(row["step"], row["restart"]["reason"]) for row in self.rows(ini) if "restart" in row]

    def is_told(self, ini, *reasons):
        """What the job has done by itself stands in its log; the last of it in status and report, too."""
        folder = os.path.join(os.path.dirname(ini), "out")
        log = launch_case.without_times(launch_case.read(os.path.join(folder, "train.log")))
        for reason in reasons:
            self.assertRegex(log, rf"(?m)^warning: .*{reason}; starting again$")
        last = self.restarts(ini)[-1][1]
        self.assertEqual(json.loads(launch_case.read(os.path.join(folder, "status.json")))["restart_reason"], last)
        self.assertIn(f"the last time after: {last}", launch_case.read(os.path.join(folder, "report.html")))

    def lost(self, ini, reason):
        """Once ranks have started again for that reason; the step behind which they went on."""
        launch_case.wait_for(lambda: [s for s, why in self.restarts(ini) if reason in why], WAIT)
        return [s for s, why in self.restarts(ini) if reason in why][0]

    @LONG
    def test_a_spare_goes_on_to_the_same_bits(self):
        sites = {"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1\nspare = o2:1"}
        ini, whole = self.job("cut", sites), self.job("whole", sites)
        processes = self.start_all(ini, "t1", "o1", "o2")
        launch_case.wait_for(lambda: self.reached(ini, EVERY + 2), WAIT)
        self.lose(processes, "o1")
        last = self.lost(ini, "osaka/o2 takes the ranks of o1") + EVERY
        self.until(ini, processes, last + 1)
        self.until(whole, self.start_all(whole, "t1", "o1"), last + 1)
        self.assertEqual(self.weights(ini, last), self.weights(whole, last))
        theirs = self.losses(whole)
        self.assertEqual({s: l for s, l in self.losses(ini).items() if s <= last}, {s: theirs[s] for s in range(1, last + 1)})
        self.nothing_is_left()

    @LONG
    def test_a_site_is_lost_and_comes_back_at_a_checkpoint(self):
        sites = {"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1"}
        ini, whole = self.job("cut", sites, "go_on_with = sites\n"), self.job("whole", sites)
        processes = self.start_all(ini, "t1", "o1")
        launch_case.wait_for(lambda: self.reached(ini, EVERY + 2), WAIT)
        self.lose(processes, "o1")
        since = time.time()
        begin = self.lost(ini, "osaka/o1 is gone")
        launch_case.wait_for(lambda: self.reached(ini, max(self.losses(ini)) + 1), WAIT)
        print(f"the other site goes on {time.time() - since:.1f} s after the loss, {REJOIN} s of which are rejoin")
        self.assertLess(time.time() - since, 30)
        processes.update(self.start_all(ini, "o1", flags=["--resume"]))
        back = self.lost(ini, "osaka/o1 is back")
        self.assertEqual(back % EVERY, 0)
        said = self.until(ini, processes, back + 5)
        self.assertIn("osaka/o1 is back; starting again", said["t1"])
        self.is_told(ini, "osaka/o1 is gone", "osaka/o1 is back")
        self.planned(ini, begin, back)
        self.until(whole, self.start_all(whole, "t1", "o1"), back + 5)
        self.same_losses(ini, whole, 1, back + 5)
        self.nothing_is_left()

    def test_a_site_that_is_told_to_leave_is_gone_on_without(self):
        """It saves and leaves, and nobody comes in its place: the other goes on behind that save, not behind the last that was due."""
        ini = self.job("left", {"tokyo": "hosts = t1:2", "osaka": "hosts = o1:1"}, "go_on_with = sites\nnotice = 60s\n")
        processes = self.start_all(ini, "t1", "o1")
        launch_case.wait_for(lambda: self.reached(ini, EVERY + 2), WAIT)
        processes["o1"].terminate()
        code, _, err = self.finish(processes.pop("o1"), WAIT)
        self.assertEqual(code, 75, err)
        begin = self.lost(ini, "osaka/o1 is gone")
        self.assertGreaterEqual(begin, EVERY + 2)
        said = self.until(ini, processes, begin + 2)
        self.assertIn("warning: another machine was told to leave, and left after a save; starting again, ", said["t1"])
        self.nothing_is_left()

    def test_a_machine_whose_device_is_gone_leaves_its_ranks_to_a_spare(self):
        """Its launcher lives, or is started again: of its two ranks one could still compute, and comes to no meeting either."""
        for lives in (True, False):
            ini = self.job(f"gone-{lives}", {"tokyo": "hosts = t1:4", "osaka": "hosts = o1:2\nspare = o2:2"})
            text = launch_case.read(ini).replace("plugin = cpu\n", "plugin = fake\ndelay = 0s\ndevices = 4\n")
            own = ini.replace("job.ini", "own.ini")
            for path in (ini, own):
                with open(path, "w") as f:
                    f.write(text)
            processes = self.start_all(ini, "t1", "o2")
            processes.update(self.start_all(own, "o1"))
            launch_case.wait_for(lambda: self.reached(ini, EVERY + 2), WAIT)
            with open(own, "w") as f:
                f.write(text.replace("devices = 4\n", "devices = 1\n"))
            if lives:
                os.kill(self.seen()[4], signal.SIGKILL)
                gone = processes.pop("o1")
            else:
                self.lose(processes, "o1")
                gone = self.start_run(own, "--host", "o1", "--resume")
            code, _, err = self.finish(gone, WAIT)
            self.assertEqual(code, 3, err)
            self.assertEqual(err.splitlines()[-1], "longhaul: fake: this machine has 1 fake devices, number 1 is wanted; this machine takes no part")
            last = self.lost(ini, "osaka/o2 takes the ranks of o1")
            self.assertEqual(len(self.restarts(ini)), 1, self.restarts(ini))  # all start once, for both
            self.until(ini, processes, last + 1)
            self.nothing_is_left()

    def test_rank_0s_machine_is_lost_and_comes_back_at_a_checkpoint(self):
        """The site that is left goes on with the losses of a run that was planned so; its `stop` and its files are the job's."""
        osaka = "hosts = o1:2\naddresses = 127.0.0.2"
        sites = {"tokyo": "hosts = t1:1", "osaka": osaka}
        ini, whole = self.job("cut", sites, "go_on_with = sites\n"), self.job("whole", sites)
        processes = self.start_all(ini, "t1", "o1")
        launch_case.wait_for(lambda: self.reached(ini, EVERY + 2), WAIT)
        self.lose(processes, "t1")
        since = time.time()
        begin = self.lost(ini, "tokyo/t1 is gone")
        launch_case.wait_for(lambda: self.reached(ini, max(self.losses(ini)) + 1), WAIT)
        print(f"without rank 0's machine the others go on after {time.time() - since:.1f} s, {REJOIN} s of which are rejoin")
        processes.update(self.start_all(ini, "t1", flags=["--resume"]))
        back = self.lost(ini, "tokyo/t1 is back")
        self.assertEqual(back % EVERY, 0)
        said = self.until(ini, processes, back + 5)
        self.assertIn("tokyo/t1 is back; starting again", said["o1"])
        self.planned(ini, begin, back, {"osaka": osaka}, "o1")
        self.until(whole, self.start_all(whole, "t1", "o1"), back + 5)
        self.same_losses(ini, whole, 1, back + 5)
        self.nothing_is_left()

    @LONG
    def test_the_job_is_stopped_where_it_is_led(self):
        """Rank 0's machine is lost and stays away: the launcher that leads hears `longhaul stop`, and all goes on from there."""
        ini = self.job("stopped", {"tokyo": "hosts = t1:1", "osaka": "hosts = o1:2\naddresses = 127.0.0.2"}, "go_on_with = sites\n")
        processes = self.start_all(ini, "t1", "o1")
        launch_case.wait_for(lambda: self.reached(ini, EVERY + 2), WAIT)
        self.lose(processes, "t1")
        begin = self.lost(ini, "tokyo/t1 is gone")
        self.until(ini, processes, begin + 2)
        last = max(self.losses(ini))
        processes = self.start_all(ini, "o1", flags=["--resume"])
        launch_case.wait_for(lambda: processes["o1"].poll() is not None or self.reached(ini, last + 2), WAIT)
        self.until(ini, processes, last + 2)
        self.nothing_is_left()

    def planned(self, ini, begin, end, sites=None, host="t1"):
        """A run of that site alone from the same checkpoint has the same losses."""
        planned = self.job("planned", sites or {"tokyo": "hosts = t1:2"})
        name = f"step-{begin:012d}"
        folder = os.path.join(os.path.dirname(planned), "out", "checkpoints")
        os.makedirs(folder)
        shutil.copytree(os.path.join(os.path.dirname(ini), "out", "checkpoints", name), os.path.join(folder, name))
        self.until(planned, self.start_all(planned, host, flags=["--resume", "--set", "train.same_bits=no"]), end)
        self.assertGreater(end, begin)
        self.same_losses(ini, planned, begin + 1, end, end - begin)

    def same_losses(self, a, b, begin, end, steps=50):
        """To 1e-4 over so many steps. Other ranks add in another order, which hundreds of steps make visible; another batch
        differs by far more."""
        ours, theirs = self.losses(a), self.losses(b)
        for step in range(begin, end + 1):
            near = 1e-4 if step < begin + steps else 1e-2
            self.assertAlmostEqual(ours[step], theirs[step], delta=near * theirs[step], msg="step %d" % step)


if __name__ == "__main__":
    launch_case.main()
