"""Ranks that are lost start again by themselves, from the last checkpoint, and end in the same bits."""
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

import launch_case
from launch_case import LaunchCase, SOURCE, TORTURE, clean_environment, listeners
import launch_train

STEPS = 20
TAIL = 65536  # bytes of metrics.jsonl
WAIT = 200  # seconds; on a machine that does much else
AGAIN = "[launch]\nranks_per_node = 4\nrestart = {most}\n"


def caught(pid):
    """The set of signals that a process has handlers for, as /proc has it."""
    line = next(line for line in launch_case.read(f"/proc/{pid}/status").splitlines() if line.startswith("SigCgt:"))
    return int(line.split()[1], 16)


class Ranks(LaunchCase):
    """A program that only counts steps: which ends are a loss, how often one is made good, and what is said."""

    def test_a_rank_that_is_killed_starts_again_with_all_others(self):
        before = listeners()
        process = self.start(self.ini(AGAIN.format(most=2)), LH_STEPS=150, LH_STEP_MS=10)
        first = self.ranks(4)
        time.sleep(0.3)
        os.kill(first[2], signal.SIGKILL)
        launch_case.wait_for(lambda: len(self.seen()) == 4 and not set(self.seen().values()) & set(first.values()), WAIT)
        log = os.path.join(self.folder, "out", "rank-3.log")
        launch_case.wait_for(lambda: launch_case.read(log).count("rank 3 of 4 on") == 2, WAIT)
        self.assertEqual(self.ports_open(), [])  # that of the second meeting is closed as well
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"\Awarning: rank 2 on \S+ was killed by signal 9 \(Killed\) in step \d+, a test barrier; "
                              r"starting again, 1 of 2 within 1h 00m\nrank 0 is done\n\Z")
        self.nothing_is_left()
        self.no_port_is_left(before)

    def test_a_crash_that_comes_again_at_the_same_step_ends_the_job(self):
        code, _, err = self.run_ranks(self.ini(AGAIN.format(most=9)), LH_DIES=1, LH_STEPS=100)
        died = r"rank 1 on \S+ was killed by signal 9 \(Killed\) in step 3, a test barrier; "
        self.assertEqual(code, 3, err)
        self.assertRegex(err, rf"\Awarning: {died}starting again, 1 of 9 within 1h 00m\nwarning: {died}starting again, 2 of 9 within 1h 00m\n"
                              rf"longhaul: {died}not started again: the same rank was lost in the same step by the same cause 3 times\n\Z")
        self.nothing_is_left()

    def test_as_many_restarts_as_are_allowed(self):
        process = self.start(self.ini(AGAIN.format(most=1)), LH_STEPS=100000)
        for round_ in range(2):
            ranks = self.ranks(4)
            launch_case.wait_for(lambda: len(self.seen()) == 4)
            ranks = self.seen()
            time.sleep(0.5 + 0.3 * round_)
            os.kill(ranks[round_], signal.SIGKILL)
            launch_case.wait_for(lambda: ranks[3] not in self.seen().values())
        code, _, err = self.finish(process)
        self.assertEqual(code, 3, err)
        self.assertRegex(err.splitlines()[-1], r"\Alonghaul: rank 1 on .*; not started again: 1 restart within 1h 00m, as \[launch\] restart allows\Z")
        self.nothing_is_left()

    def test_what_is_no_loss_ends_the_job(self):
        for failure, code in ((("LH_FAILS", 2), 1), (("LH_ASSERTS", 2), 5)):
            got, _, err = self.run_ranks(self.ini(AGAIN.format(most=9)), **dict([failure]))
            self.assertEqual(got, code, err)
            self.assertNotIn("starting again", err)
            self.assertEqual(len(err.splitlines()), 1, err)

    def test_a_stop_that_was_asked_for_is_final(self):
        process = self.start(self.ini(AGAIN.format(most=9)), LH_STEPS=100000)
        ranks = self.ranks(4)
        time.sleep(0.3)
        os.kill(ranks[3], signal.SIGSTOP)
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 3, err)
        self.assertNotIn("starting again", err)
        self.nothing_is_left()

    def test_a_rank_that_stands_still_is_lost_as_well(self):
        process = self.start(self.ini(AGAIN.format(most=1)), LH_STEPS=150)
        ranks = self.ranks(4)
        time.sleep(0.3)
        os.kill(ranks[1], signal.SIGSTOP)
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"\Awarning: rank 1 on \S+ \(process \d+\) was lost in step \d+, a test barrier: silent for 3\.\d s; starting again, ")
        self.nothing_is_left()

    def test_options_are_checked(self):
        for value in ("-1", "often", "1001"):
            code, _, err = self.run_ranks(self.ini(f"[launch]\nranks_per_node = 2\nrestart = {value}\n"))
            self.assertEqual(code, 1)
            self.assertIn(f"restart = {value}: expected auto or a whole number from 0 to 1000", err)


class Launchers(LaunchCase):
    """A launcher for each of two sites, as on two machines: they know of each other by nothing but their ranks."""

    def sites_ini(self, more="", join="30s"):
        port = launch_case.free_port()
        return (f"[launch]\naddress = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = {join}\n{more}"
                "[site.tokyo]\nhosts = t1:2\n[site.osaka]\nhosts = o1:2\n")

    def start_both(self, more="", join="30s", **environment):
        ini = self.ini(self.sites_ini(more, join))
        return ini, [self.start(ini, "--host", host, **environment) for host in ("t1", "o1")]

    def new_ranks(self, before):
        """Once all four are others than those of before, and have met."""
        ranks = {}

        def are_new():
            ranks.clear()
            ranks.update(self.seen())
            return len(ranks) == 4 and not set(ranks.values()) & set(before.values())
        launch_case.wait_for(are_new, WAIT)
        return ranks

    def test_all_launchers_start_their_ranks_again(self):
        """By default, where there are several machines."""
        _, processes = self.start_both(LH_STEPS=100000)
        ranks = self.ranks(4)
        for times, victim in enumerate((3, 0), 1):
            self.met(times)
            time.sleep(1)  # all of them are in a step by then
            os.kill(ranks[victim], signal.SIGKILL)
            ranks = self.new_ranks(ranks)
        self.met(3)
        for p in processes:
            p.terminate()
        results = [self.finish(p) for p in processes]
        self.assertEqual([r[0] for r in results], [75, 75], results)
        ours, theirs = r"was killed by signal 9 \(Killed\)", r"\(process \d+\) was lost"
        for (_, _, err), first, second in zip(results, (theirs, ours), (ours, theirs)):
            lines = [line for line in err.splitlines() if "starting again" in line]
            self.assertEqual(len(lines), 2, err)
            self.assertRegex(lines[0], rf"\Awarning: rank 3 on osaka/o1 {first} in step \d+, .*; starting again, 1 of 3 within 1h 00m\Z")
            self.assertRegex(lines[1], rf"\Awarning: rank 0 on tokyo/t1 {second} in step \d+, .*; starting again, 2 of 3 within 1h 00m\Z")
        self.nothing_is_left()

    def met(self, times):
        """Once rank 3 has begun its work so often."""
        log = os.path.join(self.folder, "out", "rank-3.log")
        launch_case.wait_for(lambda: launch_case.read(log).count("rank 3 of 4 on o1") == times, WAIT)

    def test_a_launcher_that_is_killed_may_come_back(self):
        for gone in (1, 0):
            self.forget_logs()
            ini, processes = self.start_both(LH_STEPS=100000)
            self.ranks(4)
            self.met(1)
            time.sleep(0.5)
            processes[gone].kill()
            processes[gone].communicate()
            time.sleep(1)
            processes[gone] = self.start(ini, "--host", ("t1", "o1")[gone], LH_STEPS=100000)
            self.met(2)
            for p in processes:
                p.terminate()
            results = [self.finish(p) for p in processes]
            self.assertEqual([r[0] for r in results], [75, 75], results)
            self.assertEqual(results[1 - gone][2].count("starting again, 1 of 3"), 1, results)
            self.nothing_is_left()
            shutil.rmtree(os.path.join(self.folder, "out"))
            os.unlink(os.path.join(self.folder, "job.key"))

    def test_who_comes_back_with_another_ini_is_refused_alone(self):
        """The others wait on, for one that has the job's."""
        ini, processes = self.start_both("rejoin = 60s\n", LH_STEPS=100000)
        self.ranks(4)
        self.met(1)
        time.sleep(0.5)
        processes[1].kill()
        processes[1].communicate()
        time.sleep(1)
        code, _, err = self.finish(self.start(ini, "--host", "o1", "--set", "train.batch=16", LH_STEPS=100000))
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"longhaul: rank \d on osaka/o1 was started anew and differs from rank 0 on tokyo/t1, which has met the others "
                              r"before: it is refused\n  \[train\] batch: 16, expected \(not set\)\n\Z")
        self.assertIsNone(processes[0].poll())
        processes[1] = self.start(ini, "--host", "o1", LH_STEPS=100000)
        self.met(2)
        for p in processes:
            p.terminate()
        results = [self.finish(p) for p in processes]
        self.assertEqual([r[0] for r in results], [75, 75], results)
        self.assertEqual(results[0][2].count("starting again"), 1, results)
        self.nothing_is_left()

    def test_an_end_at_once_is_one_of_all_machines(self):
        """A second signal to one launcher, or `longhaul stop` and then `--now`: the others neither start their ranks again nor wait for its,
        whoever has rank 0."""
        for told in (0, 1):
            self.forget_logs()
            _, processes = self.start_both(LH_STEPS=100000, LH_DEAF=1, LH_SERVES=1)
            self.ranks(4)
            self.met(1)
            time.sleep(0.5)
            for word in ("stop", "now"):
                if told == 0:  # who serves the folder
                    request = os.path.join(self.folder, "out", ".request-stop")
                    with open(request + ".new", "w") as f:
                        f.write(word + "\n")
                    os.rename(request + ".new", request)
                    launch_case.wait_for(lambda request=request: not os.path.exists(request))
                else:
                    processes[told].terminate()
                    launch_case.wait_until_taken(processes[told].pid, signal.SIGTERM)
            begin = time.time()
            results = [self.finish(p) for p in processes]
            self.assertLess(time.time() - begin, 20)
            self.assertEqual([r[0] for r in results], [143, 143], results)
            others = results[1 - told][2]
            self.assertNotIn("starting again", others)
            self.assertRegex(others.splitlines()[-1], r"\Alonghaul: rank \d on (tokyo/t1|osaka/o1) \(process \d+\) failed in step \d+, "
                                                      r"a test barrier: its machine was told to end at once\Z")
            self.nothing_is_left()
            shutil.rmtree(os.path.join(self.folder, "out"))
            os.unlink(os.path.join(self.folder, "job.key"))

    def stopped_with(self, told, processes, *signals, code=75, within=8):
        """What the other launcher says; neither starts its ranks again, nor waits for the other's."""
        begin = time.time()
        for number in signals:
            processes[told].send_signal(number)
        results = [self.finish(p) for p in processes]
        self.assertLess(time.time() - begin, within)
        self.assertEqual([r[0] for r in results], [code, code], results)
        self.nothing_is_left()
        shutil.rmtree(os.path.join(self.folder, "out"))
        return results[1 - told][2]

    def test_a_stop_while_ranks_meet_is_one_of_all_machines(self):
        """Another site has not come, and would be waited for."""
        word = {75: "asked to stop", 143: "told to end at once"}
        ways = ((0, (signal.SIGTERM,), 75), (1, (signal.SIGINT, signal.SIGTERM), 143), (1, (signal.SIGTERM,), 75))
        for told, signals, code in ways if launch_case.TORTURE else ways[:2]:
            ini = self.ini(self.sites_ini(join="60s") + "[site.kyoto]\nhosts = k1:1\n")
            processes = [self.start(ini, "--host", host) for host in ("t1", "o1")]
            launch_case.wait_for(lambda: all(os.path.exists(os.path.join(self.folder, "out", f"rank-{r}.log")) for r in (1, 2, 3)))
            time.sleep(0.5)
            others = self.stopped_with(told, processes, *signals, code=code)
            self.assertEqual(others, f"longhaul: {('tokyo/t1', 'osaka/o1')[told]} was {word[code]} while no step was under way\n")

    def test_a_stop_while_ranks_open_what_they_train_is_one_of_all_machines(self):
        for told in (0, 1) if launch_case.TORTURE else (1,):
            _, processes = self.start_both(LH_STEPS=100000, LH_START_MS=30000)
            log = os.path.join(self.folder, "out", "rank-3.log")
            launch_case.wait_for(lambda: os.path.exists(log) and "starting\n" in launch_case.read(log))
            others = self.stopped_with(told, processes, signal.SIGTERM)
            self.assertEqual(others, f"longhaul: {('tokyo/t1', 'osaka/o1')[told]} was asked to stop while no step was under way\n")

    def test_a_stop_between_two_starts_is_one_of_all_machines(self):
        """The other has lost its ranks, too, and waits for those of the machine that is asked."""
        _, processes = self.start_both("rejoin = 60s\n", LH_STEPS=100000)
        ranks = self.ranks(4)
        self.met(1)
        time.sleep(0.5)
        os.kill(ranks[3], signal.SIGSTOP)  # it is missed after 3 s
        time.sleep(2)
        others = self.stopped_with(1, processes, signal.SIGTERM, within=15)
        # Ranks that have started again to tell it may be at work by then, and end as others do.
        self.assertIn(others.splitlines()[-1], ("longhaul: osaka/o1 was asked to stop while no step was under way", "rank 0 is done"))

    def test_a_key_whose_file_is_gone_is_that_of_the_job_all_the_same(self):
        """Each machine has a copy of its own: one that rank 0's made anew would be no other's."""
        ini, keys = self.sites_ini(), []
        for host in ("t1", "o1"):
            keys.append(os.path.join(self.folder, f"{host}.key"))
            with open(os.open(keys[-1], os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                f.write("0123456789abcdef" * 4 + "\n")
        processes = [self.start(self.ini(ini.replace("job.key", f"{host}.key"), f"{host}.ini"), "--host", host, LH_STEPS=100000)
                     for host in ("t1", "o1")]
        ranks = self.ranks(4)
        self.met(1)
        for key in keys:
            os.unlink(key)
        os.kill(ranks[3], signal.SIGKILL)
        self.new_ranks(ranks)
        self.met(2)
        for p in processes:
            p.terminate()
        results = [self.finish(p) for p in processes]
        self.assertEqual([r[0] for r in results], [75, 75], results)
        self.assertEqual([k for k in keys if os.path.exists(k)], [])
        self.nothing_is_left()

    def test_a_machine_that_does_not_come_back_is_waited_for_as_long_as_is_said(self):
        _, processes = self.start_both("rejoin = 12s\n", "10s", LH_STEPS=100000)
        self.ranks(4)
        self.met(1)
        time.sleep(0.5)
        processes[1].kill()
        processes[1].communicate()
        code, _, err = self.finish(processes[0], WAIT)
        self.assertEqual(code, 3, err)
        self.assertRegex(err.splitlines()[-1], r"\Alonghaul: 2 of 4 ranks have come in 12 s; missing: ranks 2 to 3 on osaka/o1")
        self.nothing_is_left()

    def test_an_address_that_is_gone_is_waited_for_as_long_as_ranks_wait(self):
        """Somebody else has the port meanwhile: for longer than join_timeout, then until the job is stopped. A SIGHUP is no stop."""
        ini = self.ini(self.sites_ini("rejoin = 60s\n", "8s"))
        port = int(next(line for line in launch_case.read(ini).splitlines() if line.startswith("port")).split()[-1])
        processes = [self.start(ini, "--host", host, preexec_fn=os.setsid, LH_STEPS=100000) for host in ("t1", "o1")]
        ranks = self.ranks(4)
        self.met(1)
        for hold in (12, 4):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", port))
                other.listen(100)
                os.kill(ranks[3], signal.SIGKILL)
                time.sleep(2)
                processes[0].send_signal(signal.SIGHUP)
                time.sleep(hold - 2)
                self.assertEqual([p.poll() for p in processes], [None, None])
                if hold == 4:
                    processes[0].terminate()
                    code, _, err = self.finish(processes[0])
                    self.assertEqual(code, 75, err)
                    self.assertIn("longhaul: stopped by signal 15 (Terminated) while no step was under way\n", err)
            if hold == 12:
                ranks = self.new_ranks(ranks)
                self.met(2)
        processes[1].terminate()
        self.assertEqual(self.finish(processes[1])[0], 75)
        self.nothing_is_left()

    def test_who_is_started_again_waits_for_its_name_and_address(self):
        """As one that takes the place of another may be up before the network knows of it. Who is started by hand is refused at once."""
        ini = self.ini(self.sites_ini("", "4s"))
        text = launch_case.read(ini)
        self.assertIn("address = 127.0.0.1\n", text)
        for address in ("192.0.2.1", "no-such-host.invalid"):
            with open(ini, "w") as f:
                f.write(text.replace("address = 127.0.0.1\n", f"address = {address}\n"))
            begin = time.time()
            code, _, err = self.finish(self.start(ini, "--resume", "--host", "t1"))
            self.assertEqual(code, 3, err)
            self.assertGreaterEqual(time.time() - begin, 4)
            self.assertIn(address, err.splitlines()[-1])
            if address[0] != "n":  # a resolver that does not answer says to try again
                self.assertEqual(self.finish(self.start(ini, "--host", "t1"))[0], 1)
            process = self.start(ini, "--resume", "--host", "t1")
            launch_case.wait_for(lambda: caught(process.pid) >> (signal.SIGTERM - 1) & 1)
            process.terminate()
            code, _, err = self.finish(process)
            self.assertEqual(code, 75, err)

    def test_a_machine_that_is_told_to_leave_leaves_within_its_notice(self):
        """A program that does not end within it: the machine leaves all the same, and the others take it for lost."""
        _, processes = self.start_both("notice = 2s\nrejoin = 3s\n", "10s", LH_STEPS=100000, LH_DEAF=1)
        self.ranks(4)
        self.met(1)
        since = time.time()
        processes[1].terminate()
        code, _, err = self.finish(processes[1], WAIT)
        self.assertLess(time.time() - since, 5)
        self.assertEqual(code, 3, err)
        self.assertIn("longhaul: ranks were killed: no save came to its end within [launch] notice = 2.0 s\n", err)
        code, _, err = self.finish(processes[0], WAIT)
        self.assertEqual(code, 3, err)
        self.assertIn("starting again, 1 of 3", err)
        self.nothing_is_left()

    def test_a_stop_behind_the_signal_by_which_a_machine_leaves_is_the_jobs(self):
        """All have agreed that it leaves, and save: its ranks start once more to tell the others, which would wait for it."""
        saved, request = os.path.join(self.folder, "saved"), os.path.join(self.folder, "out", ".request-stop")
        _, processes = self.start_both("notice = 60s\nrejoin = 10s\n", "10s", LH_STEPS=100000, LH_SAVES=saved, LH_SERVES=1)

        def logs_have(words):
            files = [os.path.join(self.folder, "out", f"rank-{r}.log") for r in (1, 2, 3)]
            launch_case.wait_for(lambda: all(os.path.exists(f) and words in launch_case.read(f) for f in files))
        self.assertEqual(processes[0].stdout.readline(), "rank 0 of 4 on t1\n")  # each hears signals by then
        logs_have(" of 4 on ")
        processes[0].terminate()
        logs_have("saving\n")
        with open(request + ".new", "w") as f:
            f.write("stop\n")
        os.rename(request + ".new", request)
        launch_case.wait_for(lambda: not os.path.exists(request))
        with open(saved, "w"):
            pass
        results = [self.finish(p) for p in processes]
        self.assertEqual([r[0] for r in results], [75, 75], results)
        self.assertIn("warning: the job was asked to stop as a machine was about to leave it: the ranks here start once more to tell the others\n",
                      results[0][2])
        self.assertIn("warning: another machine was told to leave, and left after a save; starting again, 1 of 3 within 1h 00m\n", results[1][2])
        self.nothing_is_left()

    def test_a_crash_loop_ends_all_launchers(self):
        """Its own launcher sees the step on the board, the other one by heartbeats, of which each step sends one."""
        _, processes = self.start_both("restart = 9\n", LH_STEPS=100000, LH_DIES=2)
        for code, _, err in [self.finish(p, WAIT) for p in processes]:
            self.assertEqual(code, 3, err)
            self.assertEqual(err.count("starting again"), 2, err)
            self.assertRegex(err.splitlines()[-1], r"\Alonghaul: rank 2 on osaka/o1 .*; not started again: the same rank was lost in the same step ")
        self.nothing_is_left()


class Training(LaunchCase):
    weights = launch_train.Train.weights

    def job(self, folder, more="", ranks=3):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(launch_train.JOB.format(source=SOURCE, steps=STEPS, ranks=ranks) + more)
        return os.path.join(path, "job.ini")

    def start_run(self, ini, *flags):
        return subprocess.Popen([launch_case.LONGHAUL, "run", ini, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=clean_environment(LH_MARK=self.folder))

    def test_a_stop_while_a_stage_runs_is_one_of_all_machines(self):
        """Half way through `prepare` on rank 0's machine, which another one waits for."""
        text = launch_case.read(os.path.join(SOURCE, "examples", "data", "tinyshakespeare.jsonl"))
        with open(os.path.join(self.folder, "long.jsonl"), "w") as f:
            f.writelines(text for _ in range(100))
        port = launch_case.free_port()
        for told in (0, 1) if launch_case.TORTURE else (0,):
            ini = self.job(f"told{told}", f"address = 127.0.0.1\nport = {port}\nsecret = job.key\n"
                           "[site.tokyo]\nhosts = t1:1\n[site.osaka]\nhosts = o1:1\n", ranks=1)
            out = os.path.join(os.path.dirname(ini), "out")
            words = ("--set", f"prepare.input={self.folder}/long.jsonl", "--set", "prepare.workers=1", "--host")
            processes = [self.start_run(ini, *words, "t1")]
            launch_case.wait_for(lambda: os.path.exists(os.path.join(out, "corpus.bin.tmp")))
            self.assertEqual(os.stat(os.path.join(os.path.dirname(ini), "job.key")).st_mode & 0o777, 0o600)
            processes.append(self.start_run(ini, *words, "o1"))
            log = os.path.join(out, "rank-1.log")
            launch_case.wait_for(lambda: os.path.exists(log) and "tokyo/t1 runs the stages before" in launch_case.read(log))
            if told == 0:
                subprocess.run([launch_case.LONGHAUL, "stop", out], check=True, capture_output=True, timeout=60)
            else:
                processes[1].terminate()
            results = [self.finish(p) for p in processes]
            self.assertEqual([r[0] for r in results], [75, 75], results)
            sentence = f"longhaul: {('tokyo/t1', 'osaka/o1')[told]} was asked to stop while no step was under way"
            self.assertEqual(results[1 - told][2].splitlines()[-1], sentence, results)
            self.nothing_is_left()

    def test_stages_behind_training_need_no_other_machine(self):
        """Their machine comes back when the others have ended well, and meets nobody to tell that training is done."""
        more = (f"address = 127.0.0.1\nport = {launch_case.free_port()}\nsecret = job.key\njoin_timeout = 3s\n"
                "[site.tokyo]\nhosts = t1:1\n[site.osaka]\nhosts = o1:1\n")
        ini = self.job("behind", more, ranks=1)
        few = ("--set", "train.steps=2", "--set", "pipeline.stages=prepare train")
        results = [self.finish(p) for p in [self.start_run(ini, *few, "--host", host) for host in ("t1", "o1")]]
        self.assertEqual([r[0] for r in results], [0, 0], results)
        begin = time.time()
        code, _, err = self.finish(self.start_run(ini, "--resume", *few[:3], "pipeline.stages=prepare train export", "--host", "t1"))
        self.assertEqual(code, 0, err)
        self.assertGreaterEqual(time.time() - begin, 3)
        self.assertRegex(err, r"(?m)^(warning: )?1 of 2 ranks have come in 3 s; missing: rank 1 on osaka/o1.*; nothing was left to do for "
                              r"those ranks: the job goes on without them$")
        self.assertIn("-- export\n", err)
        self.nothing_is_left()

    def rows(self, ini):
        """But for one that is just being written."""
        with open(os.path.join(os.path.dirname(ini), "out", "metrics.jsonl")) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def losses(self, ini):
        return {row["step"]: row["loss"] for row in self.rows(ini) if "loss" in row}

    def reached(self, ini, step):
        """Whether training has told of this step. Asked fifty times a second, so of the last rows alone."""
        try:
            with open(os.path.join(os.path.dirname(ini), "out", "metrics.jsonl"), "rb") as f:
                f.seek(max(0, f.seek(0, os.SEEK_END) - TAIL))
                lines = f.read().splitlines()[1 if f.tell() > TAIL else 0:]
            return max(json.loads(line)["step"] for line in lines) >= step
        except (OSError, ValueError):
            return False

    def test_a_training_goes_on_by_itself_to_the_same_bits(self):
        whole = self.job("whole")
        code, _, err = self.finish(self.start_run(whole), 200)
        self.assertEqual(code, 0, err)
        random.seed(17)
        ini = self.job("cut", "restart = 20\n")
        process = self.start_run(ini)
        killed = []
        for step in (2, 10):  # before the first checkpoint, and behind a later one
            launch_case.wait_for(lambda: self.reached(ini, step) and len(self.seen()) == 3, WAIT)
            victim = random.randrange(3)
            os.kill(self.seen()[victim], signal.SIGKILL)
            killed.append((time.time(), victim))
            launch_case.wait_for(lambda: any(r.get("restart", {}).get("count") == len(killed) for r in self.rows(ini)), WAIT)
            print(f"rank {victim} killed behind step {step}: at work again after {time.time() - killed[-1][0]:.2f} s")
        code, out, err = self.finish(process, 200)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.weights(ini, STEPS), self.weights(whole, STEPS))
        self.assertEqual(self.losses(ini), self.losses(whole))
        steps = [row["step"] for row in self.rows(ini) if "loss" in row]
        self.assertEqual(steps, list(range(1, STEPS + 1)))  # each stands there once
        restarts = [row["restart"] for row in self.rows(ini) if "restart" in row]
        self.assertEqual([r["count"] for r in restarts], [1, 2])
        folder = os.path.join(os.path.dirname(ini), "out")
        log = launch_case.without_times(launch_case.read(os.path.join(folder, "train.log")))
        for n, (_, victim) in enumerate(killed, 1):
            self.assertRegex(restarts[n - 1]["reason"], rf"^rank {victim} on \S+ was killed by signal 9 \(Killed\)")
            self.assertIn(f"warning: {restarts[n - 1]['reason']}; starting again, {n} of 20 within 1h 00m\n", log)
        state = json.loads(launch_case.read(os.path.join(folder, "status.json")))
        self.assertEqual((state["restarts"], state["launcher_restarts"], state["restart_reason"]), (2, 2, restarts[1]["reason"]))
        said = subprocess.run([launch_case.LONGHAUL, "status", folder], capture_output=True, text=True).stdout
        self.assertIn(f"  started again by its launcher 2 times: {restarts[1]['reason']}\n", said)
        self.assertIn("started again by its launcher 2 times, the last time after: rank",
                      launch_case.read(os.path.join(folder, "report.html")))
        self.nothing_is_left()

    @unittest.skipUnless(TORTURE, "make torture")
    def test_a_lock_that_the_lost_ranks_still_have_is_waited_for(self):
        """As a server of files may hold it for a machine that is gone, or a saver that writes: half a minute and more."""
        ini = self.job("locked", "restart = 20\n")
        process = self.start_run(ini)
        launch_case.wait_for(lambda: self.reached(ini, 6) and len(self.seen()) == 3, WAIT)
        folder = os.path.join(os.path.dirname(ini), "out", "checkpoints")
        taken, lock = threading.Event(), os.open(folder, os.O_RDONLY)

        def take():
            fcntl.flock(lock, fcntl.LOCK_EX)  # as soon as the ranks that are killed have let it go
            taken.set()
        threading.Thread(target=take, daemon=True).start()
        for pid in self.seen().values():
            os.kill(pid, signal.SIGKILL)
        self.assertTrue(taken.wait(60))
        since = time.time()
        while time.time() - since < 36:
            self.assertIsNone(process.poll())
            time.sleep(0.2)
        os.close(lock)
        code, _, err = self.finish(process, WAIT)
        self.assertEqual(code, 0, err)
        self.assertIn("another run still writes in this folder; that may be what is left of ranks that are lost, and is waited for\n", err)
        self.assertEqual(self.losses(ini).keys(), set(range(1, STEPS + 1)))
        self.nothing_is_left()

    def test_a_machine_that_is_told_to_leave_saves_and_the_others_go_on(self):
        port = launch_case.free_port()
        places = (f"address = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = 30s\nnotice = 60s\n"
                  "[site.tokyo]\nhosts = t1:2\n[site.osaka]\nhosts = o1:1\n")
        hosts = ("t1", "o1")
        steps = 150  # so many that none is at its end before the signal comes

        def start(folder, more=""):
            ini = self.job(folder, places.replace("notice", more + "notice"))
            with open(ini) as f:
                text = f.read()
            with open(ini, "w") as f:
                f.write(text.replace("ranks_per_node = 3\n", "").replace("every = 4", "every = 1000").replace(f"steps = {STEPS}", f"steps = {steps}"))
            return ini, [self.start_run(ini, "--host", host) for host in hosts]

        whole, launchers = start("whole")
        self.assertEqual([self.finish(p, WAIT)[0] for p in launchers], [0, 0])
        for leaves in (1, 0):
            ini, launchers = start(f"leaves-{leaves}")
            launch_case.wait_for(lambda: self.reached(ini, 5) and len(self.seen()) == 3, WAIT)
            launchers[leaves].terminate()
            code, _, err = self.finish(launchers[leaves], WAIT)
            self.assertEqual(code, 75, err)
            self.assertNotIn("starting again", err)
            launchers[leaves] = self.start_run(ini, "--host", hosts[leaves], "--resume")
            code, _, err = self.finish(launchers[1 - leaves], WAIT)
            self.assertEqual(code, 0, err)
            self.assertIn("warning: another machine was told to leave, and left after a save; starting again, 1 of 3 within 1h 00m\n", err)
            self.assertEqual(self.finish(launchers[leaves], WAIT)[0], 0)
            self.assertEqual(self.weights(ini, steps), self.weights(whole, steps))
            self.assertEqual(self.losses(ini), self.losses(whole))
            self.nothing_is_left()
        # A disk that takes nothing at that moment costs the steps since the save before, as a loss would.
        ini, launchers = start("full")
        launch_case.wait_for(lambda: self.reached(ini, 5) and len(self.seen()) == 3, WAIT)
        for pid in launch_case.descendants(self.seen()[2]):  # who saves for the rank of the machine that leaves
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        launchers[1].terminate()
        code, _, err = self.finish(launchers[1], WAIT)
        self.assertEqual(code, 75, err)
        launchers[1] = self.start_run(ini, "--host", "o1", "--resume")
        code, _, err = self.finish(launchers[0], WAIT)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"warning: step \d+ was not saved: .*File too large\n")
        self.assertIn("warning: another machine was told to leave, and left without a save; starting again, 1 of 3 within 1h 00m\n", err)
        self.assertEqual(self.finish(launchers[1], WAIT)[0], 0)
        self.assertEqual(self.weights(ini, steps), self.weights(whole, steps))
        self.assertEqual(self.losses(ini), self.losses(whole))
        # What nobody leaves is an end without its save, with a notice as without.
        ini, launchers = start("full-at-the-end")
        launch_case.wait_for(lambda: self.reached(ini, 5) and len(self.seen()) == 3, WAIT)
        for pid in launch_case.descendants(self.seen()[2]):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        results = [self.finish(p, WAIT) for p in launchers]
        self.assertEqual([code for code, _, _ in results], [1, 1], results)
        ini, launchers = start("no-restart", "restart = 0\n")
        launch_case.wait_for(lambda: self.reached(ini, 5) and len(self.seen()) == 3, WAIT)
        launchers[0].terminate()
        results = [self.finish(p, WAIT) for p in launchers]
        self.assertEqual([code for code, _, _ in results], [75, 75], results)
        self.assertIn("warning: another machine was told to leave, and left after a save\n", results[1][2])
        # The job as a whole is ended by hand, and by `longhaul stop`.
        for end in ("interrupt", "stop"):
            ini, launchers = start(end)
            launch_case.wait_for(lambda: self.reached(ini, 3) and len(self.seen()) == 3, WAIT)
            if end == "stop":
                subprocess.run([launch_case.LONGHAUL, "stop", os.path.join(os.path.dirname(ini), "out")], check=True,
                               capture_output=True, timeout=WAIT)
            else:
                launchers[0].send_signal(signal.SIGINT)
            results = [self.finish(p, WAIT) for p in launchers]
            self.assertEqual([code for code, _, _ in results], [75, 75], results)
            self.assertNotIn("starting again", results[0][2] + results[1][2])

    def test_a_named_step_is_gone_on_from_once(self):
        """Ranks that start again take the newest checkpoint, whatever --resume has named at first."""
        ini = self.job("job", "restart = 5\n")
        keep = ("--set", "checkpoint.keep=10")
        code, _, err = self.finish(self.start_run(ini, *keep), 200)
        self.assertEqual(code, 0, err)
        whole = self.weights(ini, STEPS)
        checkpoints = os.path.join(os.path.dirname(ini), "out", "checkpoints")
        saved = sorted(n for n in os.listdir(checkpoints) if n.startswith("step-"))
        newest = saved[-1]
        self.assertEqual(int(saved[0][5:]), 4)
        process = self.start_run(ini, "--resume", "4", *keep)
        launch_case.wait_for(lambda: os.path.isdir(os.path.join(checkpoints, "left-" + newest)) and len(self.seen()) == 3, WAIT)
        os.kill(self.seen()[1], signal.SIGKILL)
        code, _, err = self.finish(process, 200)
        self.assertEqual(code, 0, err)
        self.assertIn("starting again, 1 of 5", err)
        self.assertEqual(self.weights(ini, STEPS), whole)
        self.assertEqual(sorted(n for n in os.listdir(checkpoints) if n.startswith("left-")), ["left-" + n for n in saved[1:]])

    def test_an_earlier_run_in_the_folder_is_not_gone_on_with(self):
        """A rank that is lost before training has begun is no reason to take what lies there."""
        ini = self.job("job", "restart = 5\n")
        with open(ini) as f:
            text = f.read()
        with open(ini, "w") as f:
            f.write(text.replace(f"steps = {STEPS}", "steps = 4"))
        self.assertEqual(self.finish(self.start_run(ini), 200)[0], 0)
        with open(ini, "w") as f:
            f.write(text)
        process = self.start_run(ini)
        launch_case.wait_for(lambda: 2 in self.seen() or process.poll() is not None)
        if 2 in self.seen():
            os.kill(self.seen()[2], signal.SIGKILL)
        code, _, err = self.finish(process, 200)
        self.assertEqual(code, 1, err)
        self.assertIn("go on from it with --resume", err)


if __name__ == "__main__":
    launch_case.main()
