"""The launcher of longhaul on one machine: ranks come, end, fail, are killed, and leave nothing."""
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import launch_case
from launch_case import LaunchCase, TORTURE, listeners

FOUR = "[launch]\nranks_per_node = 4\n"


class Local(LaunchCase):
    def test_ranks_run_and_rank_0_prints(self):
        code, out, err = self.run_ranks(self.ini(FOUR))
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"\Arank 0 of 4 on \S+\n\Z")
        self.assertEqual(err, "rank 0 is done\n")
        log = launch_case.read(os.path.join(self.folder, "out", "rank-3.log"))
        self.assertIn("rank 3 of 4 on", log)
        self.assertIn("rank 3: rank 3 is done", log)
        self.nothing_is_left()

    def processors_of(self, count, more=""):
        process = self.start(self.ini(f"[launch]\nranks_per_node = {count}\n{more}"), LH_STEPS=100000)
        found = [os.sched_getaffinity(pid) for _, pid in sorted(self.ranks(count).items())]
        process.terminate()
        self.finish(process)
        return found

    def test_ranks_have_processors_of_their_own(self):
        here = os.sched_getaffinity(0)
        if len(here) < 2:
            self.skipTest("one processor")
        first, second = self.processors_of(2)
        self.assertEqual(((first | second) - here, first & second), (set(), set()))
        self.assertEqual((len(first), len(second)), (len(here) // 2, len(here) // 2))
        self.assertEqual(self.processors_of(2, "bind = no\n"), [here, here])
        if len(here) < 8:
            more = len(here) + 1
            found = self.processors_of(more)  # one each, and as evenly as can be
            self.assertEqual({len(f) for f in found}, {1})
            self.assertEqual(set().union(*found), here)

    def test_no_port_is_open_once_the_ranks_have_met(self):
        sites = "[site.tokyo]\nhosts = localhost:2\n[site.osaka]\nhosts = localhost:1\n"
        for more in ("", "address = 192.0.2.1\n"):  # of nobody: others would reach this machine there
            process = self.start(self.ini("[launch]\n" + more + sites), LH_STEPS=100000)
            self.ranks(3)
            self.assertEqual(self.ports_open(), [])
            process.terminate()
            self.assertEqual(self.finish(process)[0], 75)
            self.nothing_is_left()
            shutil.rmtree(os.path.join(self.folder, "out"))  # logs there say that ranks have begun

    def test_one_machine_plays_two_sites(self):
        code, out, err = self.run_ranks(self.ini("[site.tokyo]\nhosts = localhost:2\n[site.osaka]\nhosts = localhost:1\n"))
        self.assertEqual((code, out), (0, "rank 0 of 3 on localhost\n"), err)

    def test_the_reason_of_a_rank_is_the_one_line(self):
        code, _, err = self.run_ranks(self.ini(FOUR), LH_FAILS=2)
        self.assertEqual(code, 1)
        self.assertRegex(err, r"\Alonghaul: rank 2 on \S+ \(process \d+\) failed in step 3, a test barrier: token 70000 of 512\n\Z")
        self.nothing_is_left()

    def test_an_assertion_that_does_not_hold_is_an_internal_error(self):
        sentence = r"internal error at rank_program\.c:\d+: 'rank_is_well' does not hold"
        for rank in (0, 2):
            code, _, err = self.run_ranks(self.ini(FOUR), LH_ASSERTS=rank)
            self.assertEqual(code, 5, err)
            self.assertRegex(err, rf"\Alonghaul: rank {rank} on \S+ failed in step 3, a test barrier: {sentence}\n\Z")
            self.nothing_is_left()
        log = launch_case.read(os.path.join(self.folder, "out", "rank-2.log"))
        self.assertRegex(log, rf"(?m)^\S+Z rank 2: longhaul: {sentence}$")

    def test_a_rank_that_does_not_hear_the_end_is_ended(self):
        process = self.start(self.ini(FOUR), LH_STEPS=1000, LH_SLEEPS=1)
        ranks = self.ranks(4)
        self.one_sleeps()
        os.kill(ranks[3], signal.SIGKILL)
        begin = time.time()
        code, _, err = self.finish(process)
        self.assertLess(time.time() - begin, 20)  # it sleeps for a minute
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"\Alonghaul: rank 3 on \S+ was killed by signal 9 \(Killed\) in step \d+, a test barrier\n\Z")
        self.nothing_is_left()

    def test_a_stopped_rank_is_named(self):
        for _ in range(3):
            process = self.start(self.ini(FOUR), LH_STEPS=100000)
            ranks = self.ranks(4)
            time.sleep(0.6)
            os.kill(ranks[2], signal.SIGSTOP)
            begin = time.time()
            code, _, err = self.finish(process)
            took = time.time() - begin
            if took < 5 and "silent for 3." in err:  # nor waited for then; a machine that does much else is looked at again
                break
        self.assertLess(took, 5)
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"\Alonghaul: rank 2 on \S+ \(process \d+\) was lost in step \d+, a test barrier: silent for 3\.\d s\n\Z")
        self.nothing_is_left()

    def test_a_rank_that_has_said_why_it_ends_holds_up_nobody(self):
        process = self.start(self.ini("[launch]\nranks_per_node = 2\n"), LH_STEPS=100000, LH_LINGERS=0)
        ranks = self.ranks(2)
        time.sleep(0.6)
        os.kill(ranks[1], signal.SIGSTOP)
        begin = time.time()
        code, _, err = self.finish(process)
        self.assertLess(time.time() - begin, 8)  # 3 s of silence, and 3 s for the end
        self.assertEqual(code, 3, err)
        self.assertRegex(err, r"\Alonghaul: rank 1 on \S+ \(process \d+\) was lost in step \d+, a test barrier: silent for 3\.\d s\n\Z")
        self.nothing_is_left()

    def memory_group(self, limit):
        """A control group of this test's own with a limit; its folder."""
        for line in launch_case.read("/proc/self/mountinfo").splitlines():
            mount, _, kind = line.partition(" - ")
            point, kind, options = mount.split()[4], kind.split()[0], kind.split()[2].split(",")
            if kind == "cgroup" and "memory" in options:
                limits = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
            elif kind == "cgroup2" and "memory" in launch_case.read(os.path.join(point, "cgroup.controllers")).split():
                limits = {"memory.max": limit, "memory.swap.max": 0}
            else:
                continue
            try:
                folder = tempfile.mkdtemp(prefix="longhaul-test-", dir=point)
                self.addCleanup(os.rmdir, folder)
                for name, value in limits.items():
                    if os.path.exists(os.path.join(folder, name)):
                        with open(os.path.join(folder, name), "w") as f:
                            f.write(str(value))
                return folder
            except OSError as error:
                self.skipTest(f"no control group of its own: {error}")
        self.skipTest("no control group counts memory here")

    def test_a_kill_by_the_limit_of_memory_is_told_as_such(self):
        group = self.memory_group(256 << 20)
        enter = ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group)
        process = self.start(self.ini(FOUR), wrap=enter, LH_STEPS=1000, LH_EATS=2, LH_EATS_MIB=512)
        code, _, err = self.finish(process)
        self.assertEqual(code, 3, err)
        # The kernel takes whoever has most then: where sanitizers need much of the limit, not always who eats.
        self.assertRegex(err, r"\Alonghaul: rank \d on \S+ was killed by signal 9 \(Killed\) in step 3, a test barrier, "
                              r"likely for want of memory: the kernel has killed a process of this control group for it, "
                              r"whose limit is 256 MiB\n\Z")
        self.nothing_is_left()

    def test_any_rank_may_be_killed_at_any_moment(self):
        random.seed(7)
        worst = 0
        for round_ in range(200 if TORTURE else 8):
            before = listeners()
            process = self.start(self.ini(FOUR), LH_STEPS=100000, LH_STEP_MS=1)
            victim = random.randrange(4)
            # Some before the ranks have met, some after.
            if round_ % 2 == 0:
                time.sleep(random.uniform(0, 0.12))
                pids = self.seen()
                while victim not in pids:
                    pids = self.seen()
            else:
                pids = self.ranks(4)
                time.sleep(random.uniform(0, 0.3))
            os.kill(pids[victim], signal.SIGKILL)
            begin = time.time()
            code, _, err = self.finish(process)
            worst = max(worst, time.time() - begin)
            self.assertEqual(code, 3, err)
            lines = [l for l in err.splitlines() if not l.startswith("rank 0 is done")]
            self.assertEqual(len(lines), 1, err)
            self.assertRegex(lines[0], rf"^longhaul: rank {victim} on \S+ was killed by signal 9 \(Killed\)")
            self.nothing_is_left()
            self.no_port_is_left(before)
            shutil.rmtree(os.path.join(self.folder, "out"), True)
        print(f"slowest end after a kill: {worst:.2f} s")
        self.assertLess(worst, 3.5)

    def test_ranks_die_with_their_launcher(self):
        process = self.start(self.ini(FOUR), LH_STEPS=100000)
        self.ranks(4)
        process.kill()
        process.communicate()
        self.nothing_is_left()

    def test_sigterm_is_passed_on_once_and_all_agree(self):
        process = self.start(self.ini(FOUR), LH_STEPS=100000)
        self.ranks(4)
        time.sleep(0.3)
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual((code, err), (75, "rank 0 is done\n"))
        self.nothing_is_left()

    def test_a_signal_while_ranks_start_is_what_ended_them(self):
        ini = self.ini("[launch]\naddress = 127.0.0.1\nsecret = job.key\n"
                       "[site.a]\nhosts = localhost:2, elsewhere:1\n")
        log = os.path.join(self.folder, "out", "train.log")  # of a training that is gone on with
        os.makedirs(os.path.dirname(log))
        with open(log, "w"):
            pass
        for number, name in ((signal.SIGTERM, "Terminated"), (signal.SIGINT, "Interrupt"), (signal.SIGHUP, "Hangup")):
            port = launch_case.free_port()
            process = self.start(ini, "--resume", "--set", f"launch.port={port}", preexec_fn=self.terminal())
            launch_case.wait_for(lambda: os.path.exists(os.path.join(self.folder, "out", "rank-1.log")))
            time.sleep(0.3)
            process.send_signal(number)
            code, _, err = self.finish(process)
            self.assertEqual((code, err), (75, f"longhaul: stopped by signal {number:d} ({name}) while no step was under way\n"))
            self.assertEqual(launch_case.without_times(launch_case.read(log)).splitlines()[-1] + "\n", err)
            self.nothing_is_left()
            os.unlink(os.path.join(self.folder, "out", "rank-1.log"))

    def test_a_signal_while_one_rank_starts_is_what_ended_it(self):
        for number, name in ((signal.SIGTERM, "Terminated"), (signal.SIGINT, "Interrupt"), (signal.SIGHUP, "Hangup")):
            process = self.start(self.ini(), LH_START_MS=20000, preexec_fn=self.terminal())
            self.assertEqual(process.stdout.readline(), "starting\n")
            process.send_signal(number)
            if os.environ.get("LONGHAUL_SANITIZED") == "1":  # ThreadSanitizer's own handler loses one in thousands, which is sent once more
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.send_signal(number)
            code, _, err = self.finish(process)
            self.assertEqual((code, err), (75, f"longhaul: stopped by signal {number:d} ({name}) while no step was under way\n"))

    def test_a_hangup_without_a_terminal_opens_the_logs_of_all_ranks_anew(self):
        process = self.start(self.ini(FOUR), preexec_fn=os.setsid, LH_STEPS=100000, LH_PRINTS=1)
        self.ranks(4)
        logs = [os.path.join(self.folder, "out", f"rank-{r}.log") for r in (1, 2, 3)]
        before = [launch_case.read(log) for log in logs]
        for log in logs:
            os.rename(log, log + ".1")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        code, _, err = self.finish(process)
        self.assertEqual((code, err), (75, "rank 0 is done\n"))
        for log, text in zip(logs, before):
            self.assertEqual(launch_case.read(log + ".1"), text)
            self.assertRegex(launch_case.read(log), r"is done\nrank \d prints\n\Z")
        self.nothing_is_left()

    def test_ctrl_z_stops_the_ranks_and_they_go_on_together(self):
        # A group of its own, as a shell makes one: the kernel stops none that nobody could wake.
        process = self.start(self.ini(FOUR), preexec_fn=os.setpgrp, LH_STEPS=100000)
        ranks = self.ranks(4)
        time.sleep(0.3)
        everyone = [process.pid, *ranks.values()]
        self.addCleanup(process.kill)

        def stopped():
            return [launch_case.state_of(pid) == "T" for pid in everyone]
        for length in (4.5, 0.5):  # longer than the silence that makes a rank lost, and shorter than a heartbeat's patience
            process.send_signal(signal.SIGTSTP)
            launch_case.wait_for(lambda: all(stopped()), 20)
            time.sleep(length)
            self.assertTrue(all(stopped()))
            process.send_signal(signal.SIGCONT)
            launch_case.wait_for(lambda: not any(stopped()), 20)
            time.sleep(1)
            self.assertIsNone(process.poll())
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual((code, err), (75, "rank 0 is done\n"))
        self.nothing_is_left()

    def test_a_machine_without_loopback_is_told(self):
        if subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs network namespaces")
        process = self.start(self.ini("[launch]\nranks_per_node = 2\njoin_timeout = 8s\n"), wrap=("unshare", "-n"))
        code, _, err = self.finish(process)
        self.assertEqual(code, 3)
        self.assertRegex(err, r"\A(warning: waiting [^\n]+\n)*longhaul: rank 1 has not met rank 0 in 8 s: rank 0 at \S+, port \d+: [^\n]+\n\Z")

    def test_the_log_of_a_rank_outlasts_a_resume(self):
        log = os.path.join(self.folder, "out", "rank-1.log")
        for count in (1, 2):  # only a training that begins takes the lines of before away
            code, _, err = self.run_ranks(self.ini(FOUR), "--resume")
            self.assertEqual(code, 0, err)
            self.assertEqual(launch_case.read(log).count("rank 1: rank 1 is done"), count)

    def test_a_log_that_cannot_be_opened_is_told_once(self):
        log = os.path.join(self.folder, "out", "rank-1.log")
        os.makedirs(log)
        code, _, err = self.run_ranks(self.ini("[launch]\nranks_per_node = 2\n"))
        self.assertEqual(code, 1)
        self.assertEqual(err, f"longhaul: {log}: cannot create: Is a directory\n")

    def ended_by(self, number):
        process = self.start(self.ini(FOUR), LH_STEPS=100000, LH_SLEEPS=1)
        self.ranks(4)
        self.one_sleeps()
        process.send_signal(number)
        launch_case.wait_until_taken(process.pid, number)
        process.send_signal(number)
        begin = time.time()
        code, _, _ = self.finish(process)
        self.assertLess(time.time() - begin, 20)  # rank 1 sleeps for a minute
        self.nothing_is_left()
        self.forget_logs()
        return code

    def test_a_second_signal_ends_all(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            self.assertEqual(self.ended_by(number), 128 + number)

    def one_sleeps(self):
        log = os.path.join(self.folder, "out", "rank-1.log")
        launch_case.wait_for(lambda: "rank 1 sleeps" in launch_case.read(log))

    def test_what_a_rank_left_at_work_does_not_outlive_a_notice(self):
        two = self.ini("[launch]\nranks_per_node = 2\nnotice = 500ms\n")
        process = self.start(two, LH_STEPS=100000, LH_SLEEPS=1, LH_LEAVES=0)
        self.ranks(2)
        self.one_sleeps()
        process.terminate()
        begin = time.time()
        code, _, err = self.finish(process)
        self.assertLess(time.time() - begin, 20)  # a minute is what a saver has else
        self.assertEqual(code, 3, err)
        self.assertIn("ranks were killed: no save came to its end within [launch] notice = 0.5 s", err)
        self.nothing_is_left()

    def unkillable(self, rank):
        """For the environment: SIGKILL does not end that rank, nor what it leaves."""
        if os.environ.get("LONGHAUL_SANITIZED") == "1":
            self.skipTest("a sanitizer must come first")
        return {"LD_PRELOAD": os.path.join(os.path.dirname(launch_case.PROGRAM), "unkillable.so"), "UNKILLABLE": rank}

    def test_a_rank_that_can_not_be_ended_is_left_behind(self):
        two = self.ini("[launch]\nranks_per_node = 2\nnotice = 500ms\n")  # by which ranks are killed soonest
        process = self.start(two, LH_STEPS=100000, LH_SLEEPS=1, **self.unkillable(1))
        stuck = self.ranks(2)[1]
        self.one_sleeps()
        process.terminate()
        self.assertEqual(process.wait(timeout=20), 3)
        self.addCleanup(launch_case.kill_processes_with, self.mark)
        _, _, err = self.finish(process)  # the kernel ends a rank whose launcher has ended
        self.assertIn(f"rank 1 (process {stuck}) can't be ended; it is left behind\n", err)
        self.assertTrue(err.endswith(f"longhaul: rank 1 (process {stuck}) can't be ended\n"), err)
        self.nothing_is_left()

    def test_a_stop_stays_one_where_a_rank_can_not_be_ended(self):
        process = self.start(self.ini("[launch]\nranks_per_node = 2\n"), LH_START_MS=20000, **self.unkillable(1))
        self.addCleanup(launch_case.kill_processes_with, self.mark)
        log = os.path.join(self.folder, "out", "rank-1.log")
        self.assertEqual(process.stdout.readline(), "starting\n")
        launch_case.wait_for(lambda: os.path.exists(log) and "starting" in launch_case.read(log))
        stuck = self.seen()[1]
        os.kill(stuck, signal.SIGSTOP)  # the signal of the stop does not end it either, if it comes when this has
        launch_case.wait_for(lambda: launch_case.state_of(stuck) == "T")
        process.terminate()
        self.assertEqual(process.wait(timeout=20), 75)  # by 3 the unit for systemd would start the job again
        _, _, err = self.finish(process)
        self.assertTrue(err.endswith("longhaul: stopped by signal 15 (Terminated) while no step was under way; "
                                     f"rank 1 (process {stuck}) can't be ended\n"), err)
        self.nothing_is_left()

    def test_what_a_rank_left_at_work_and_can_not_be_ended_is_left_behind(self):
        process = self.start(self.ini("[launch]\nranks_per_node = 2\n"), LH_LEAVES=0, **self.unkillable(0))
        self.addCleanup(launch_case.kill_processes_with, self.mark)
        log = os.path.join(self.folder, "out", "rank-1.log")
        launch_case.wait_for(lambda: os.path.exists(log) and "is done" in launch_case.read(log) and 1 not in self.seen())
        for _ in range(2):  # it would wait for a minute
            process.terminate()
            launch_case.wait_until_taken(process.pid, signal.SIGTERM)
        self.assertEqual(process.wait(timeout=20), 128 + signal.SIGTERM)
        left = launch_case.processes_with(self.mark)
        launch_case.kill_processes_with(self.mark)
        _, _, err = self.finish(process)
        self.assertEqual(len(left), 1)
        self.assertIn(f"process {left[0]}, which a rank left at work, can't be ended; it is left behind\n", err)

    def test_what_can_not_be_ended_is_waited_for_once(self):
        """Each restart would take another minute for it."""
        process = self.start(self.ini("[launch]\nranks_per_node = 2\nrestart = 9\n"), LH_STEPS=100000, LH_LEAVES=0, **self.unkillable(0))
        self.addCleanup(launch_case.kill_processes_with, self.mark)
        log = os.path.join(self.folder, "out", "rank-1.log")
        for starts in (1, 2):
            launch_case.wait_for(lambda: os.path.exists(log) and launch_case.read(log).count("rank 1 of 2 on") == starts)
            os.kill(self.seen()[1], signal.SIGKILL)
        launch_case.wait_for(lambda: launch_case.read(log).count("rank 1 of 2 on") == 3)
        process.terminate()
        self.assertEqual(process.wait(timeout=20), 75)
        left = launch_case.processes_with(self.mark)
        launch_case.kill_processes_with(self.mark)
        _, _, err = self.finish(process)
        self.assertEqual(len(left), 1)
        self.assertEqual(err.count(f"process {left[0]}, which a rank left at work, can't be ended; it is left behind\n"), 1, err)

    def test_contradictions_are_refused_before_a_rank_starts(self):
        for more, sentence in (
                ("[site.a]\nhosts = elsewhere:2\n", "no [site.*] hosts names; --host NAME says which one it is"),
                ("[site.a]\nhosts = localhost:1, elsewhere:1\n", "[launch] address is missing, which says where rank 0 listens"),
                ("[launch]\naddress = 127.0.0.1\n[site.a]\nhosts = localhost:1, elsewhere:1\n", "[launch] port is missing"),
                ("[launch]\naddress = 127.0.0.1\nport = 29999\n[site.a]\nhosts = localhost:1, elsewhere:1\n",
                 "[launch] secret is missing")):
            code, _, err = self.run_ranks(self.ini(more))
            self.assertEqual(code, 1)
            self.assertIn(sentence, err)

    def test_a_host_of_no_site_is_refused(self):
        code, _, err = self.run_ranks(self.ini("[launch]\nranks_per_node = 2\n"), "--host", "t1")
        self.assertEqual(code, 1)
        self.assertIn("--host t1: the job has no [site.NAME] whose hosts it could be of", err)

    def test_a_port_that_is_taken_is_told_with_who_has_it(self):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        code, _, err = self.run_ranks(self.ini(f"[launch]\nranks_per_node = 2\nport = {port}\n"))
        self.assertEqual(code, 1)
        self.assertRegex(err, rf"port {port} on 127\.0\.0\.1 is used by process {os.getpid()} \(python3\S*\)")
        s.close()

    def test_a_run_that_goes_on_waits_for_a_port_that_is_about_to_be_free(self):
        """As that of a launcher that was killed, whose rank 0 has yet to end."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            process = self.start(self.ini(f"[launch]\nranks_per_node = 2\nport = {s.getsockname()[1]}\n"), "--resume")
            time.sleep(0.7)
            self.assertIsNone(process.poll())
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)

    def test_a_key_that_others_can_read_is_refused(self):
        key = os.path.join(self.folder, "job.key")
        two = "[launch]\nranks_per_node = 2\nsecret = job.key\n"
        code, _, err = self.run_ranks(self.ini(two))
        self.assertEqual(code, 0, err)
        self.assertEqual(os.stat(key).st_mode & 0o777, 0o600)
        self.assertEqual(os.listdir(self.folder).count("job.key"), 1)
        os.chmod(key, 0o640)
        code, _, err = self.run_ranks(self.ini(two))
        self.assertEqual(code, 1)
        self.assertIn("has mode 0640: others may read the job's key; expected 0600", err)


if __name__ == "__main__":
    launch_case.main()
