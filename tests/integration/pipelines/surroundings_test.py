"""What surrounds a run: closed standard files, a limit of files' size, a reader that goes, a terminal that closes,
outputs that are no plain files, others who work in the same folder."""
import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from pipeline_case import BINARY, DONE, REFUSED, TERMINATED, PipelineCase, checkpoint_digest, main


def closed(*fds):
    """Closes these before the program starts."""
    def close():
        for fd in fds:
            os.close(fd)
    return close


class Surroundings(PipelineCase):
    def prepared(self, **changes):
        job = self.small_job(**changes)
        self.run_longhaul("prepare", job)
        return job

    def bare(self, *args, before):
        """Exit code of a run whose standard files `before` has changed."""
        return subprocess.run([BINARY] + list(args), cwd=self.folder, timeout=120, preexec_fn=before).returncode

    def test_closed_standard_files_take_nothing(self):
        job = self.prepared(train={"steps": 6}, checkpoint={"every": 2})
        self.run_longhaul("train", job)
        whole = checkpoint_digest(self.step_folder(6))
        for fds in ((0, 1, 2), (2,), (0, 1)):
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            self.assertEqual(self.bare("train", job, before=closed(*fds)), DONE, fds)
            self.assertEqual(checkpoint_digest(self.step_folder(6)), whole)
            self.assertTrue(os.path.isdir(self.step_folder(2)) and os.path.isdir(self.step_folder(4)), fds)
            self.assertEqual(os.path.getsize(self.path("out", "checkpoints", ".lock")), 0)
        self.assertEqual(self.bare("help", before=closed(1)), REFUSED)

    def test_a_limit_of_files_is_a_reason(self):
        job = self.prepared(train={"steps": 4}, checkpoint={"every": 2})
        for limit in (0, 100 * 1024):
            _, said = self.run_longhaul("train", job, code=REFUSED,
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            self.assertRegex(said.splitlines()[-1], r"\Alonghaul: .*: File too large\Z")

    def test_a_limit_of_open_files_is_one_whole_reason(self):
        job = self.prepared(train={"steps": 2}, launch={"ranks_per_node": 2})
        for limit in range(14, 50, 3):
            process = self.start("train", job, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
            _, said = process.communicate(timeout=120)
            if process.returncode == DONE:
                break
            last = said.splitlines()[-1]
            self.assertRegex(last, r"\Alonghaul: ", said)
            self.assertNotRegex(last, r"(: [^:]+)\1\Z|can't be\Z|files: [A-Z][^:]*\Z")

    def test_a_reader_that_goes_does_not_end_the_run(self):
        job = self.prepared(train={"steps": 30, "log_every": 1})
        process = self.start("train", job)
        process.stderr.readline()
        process.stderr.close()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=120), DONE)
        self.assertTrue(os.path.isdir(self.step_folder(30)))

    def closing(self, job, ignored):
        """Sends what a terminal that closes may send, or under nohup a SIGTERM after it."""
        subprocess.run(["rm", "-rf", self.path("out", "checkpoints"), self.path("out", "metrics.jsonl")], check=True)
        leader, follower = pty.openpty()
        for fd in (leader, follower):
            self.addCleanup(os.close, fd)

        def become():
            os.setsid()
            fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
            if ignored:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
        process = self.start("train", job, preexec_fn=become)
        rows = self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(rows) and os.path.getsize(rows) > 0, process)
        process.send_signal(signal.SIGHUP)
        if ignored:
            before = os.path.getsize(rows)
            self.wait_for(lambda: os.path.getsize(rows) > before, process)
            self.assertIsNone(process.poll())
        else:
            process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, TERMINATED, said)
        self.assertTrue(os.path.exists(self.path("out", "checkpoints", "latest")))

    def test_a_terminal_that_closes_ends_it_with_a_save(self):
        alone = self.prepared(train={"steps": 1000000})
        for ignored in (False, True):
            self.closing(alone, ignored)
        several = self.small_job(train={"steps": 1000000}, site__one={"hosts": "localhost:2"})
        for ignored in (False, True):
            self.closing(several, ignored)

    def test_a_hangup_without_a_terminal_opens_the_log_anew(self):
        """What logrotate does: the file is renamed, then the run is told."""
        job = self.prepared(train={"steps": 1000000, "log_every": 1})
        process = self.start("train", job, preexec_fn=os.setsid)
        log, rows = self.path("out", "train.log"), self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(rows) and os.path.getsize(rows) > 2000, process)
        os.rename(log, log + ".1")
        process.send_signal(signal.SIGHUP)
        self.wait_for(lambda: os.path.exists(log), process)
        old = os.path.getsize(log + ".1")
        size = os.path.getsize(log)
        self.wait_for(lambda: os.path.getsize(log) > size, process)
        # A name that can't be opened: lines go on to the file that has been there.
        os.rename(log, log + ".2")
        os.mkdir(log)
        process.send_signal(signal.SIGHUP)
        self.wait_for(lambda: "cannot open it anew" in self.text(log + ".2"), process)
        os.rmdir(log)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, TERMINATED, said)
        self.assertEqual(os.path.getsize(log + ".1"), old)
        self.assertRegex(self.text(log + ".2"), r"stopped after step \d+, which is saved")

    @staticmethod
    def text(path):
        with open(path) as f:
            return f.read()

    def test_the_level_of_logs(self):
        """Of a run with a line of each kind: a refused step is a warning, the end a piece of information."""
        said = {}
        for level in ("info", "warning", "error"):
            job = self.prepared(train={"steps": 6}, watch={"log": level}, optimizer={"learning_rate": "1e30", "clip": 0})
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints"), self.path("out", "train.log")], check=True)
            process = self.start("train", job)
            process.communicate(timeout=120)
            said[level] = self.text(self.path("out", "train.log"))
        self.assertIn("report: ", said["info"])
        self.assertIn("warning: ", said["info"])
        self.assertNotIn("report: ", said["warning"])
        self.assertIn("warning: ", said["warning"])
        self.assertNotIn("warning: ", said["error"])
        self.run_longhaul("train", job, "--set", "watch.log=loud", code=REFUSED)

    def for_journal(self, *args, own=True):
        """Lines that a stream gets which JOURNAL_STREAM names, or another one."""
        with tempfile.TemporaryFile("w+") as stream:
            at = os.fstat(stream.fileno())
            named = "%d:%d" % (at.st_dev, at.st_ino if own else at.st_ino + 1)
            subprocess.run([BINARY] + list(args), cwd=self.folder, stderr=stream, stdout=subprocess.DEVNULL, timeout=120,
                           env=dict(os.environ, JOURNAL_STREAM=named))
            stream.seek(0)
            return stream.read().splitlines()

    def test_lines_for_the_journal_begin_with_their_priority(self):
        job = self.prepared(train={"steps": 3}, site__one={"hosts": "localhost:2"})
        for own in (True, False):
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            hot = ("--set", "optimizer.learning_rate=1e30", "--set", "optimizer.clip=0", "--set", "train.not_finite_limit=2",
                   "--set", "train.steps=20")
            for lines, level, text in ((self.for_journal("train", job, own=own), "6", "report: "),
                                       (self.for_journal("train", job, own=own), "3", "longhaul: "),
                                       (self.for_journal("train", job, *hot, "--set", "checkpoint.folder=hot", own=own), "4",
                                        "warning: step ")):
                begin = "<" if own else ""
                self.assertTrue(all(line.startswith(begin) and (not own or line[2] == ">") for line in lines), lines)
                self.assertTrue(any(line.startswith("<%s>%s" % (level, text) if own else text) for line in lines), lines)
        # A sentence of several lines is as many entries.
        differ = self.for_journal("train", job, "--set", "a\nb=1")
        self.assertEqual([line[:3] for line in differ], ["<3>", "<3>"], differ)

    def on_terminal(self, *args, columns=80, background_stops=False, **environment):
        """Exit code and what a terminal of that width is sent."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            if background_stops:  # stty tostop
                how = termios.tcgetattr(0)
                how[3] |= termios.TOSTOP
                termios.tcsetattr(0, termios.TCSANOW, how)
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "NO_COLOR"))}
            kept.update(dict({"TERM": "xterm", "LC_ALL": "C.UTF-8"}, **environment))
            os.execve(BINARY, [BINARY] + list(args), kept)
        sent = b""
        while True:
            try:
                more = os.read(terminal, 65536)
            except OSError:  # nobody has it open any more
                break
            sent += more
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sent.decode()

    def test_the_progress_line_stays_within_the_terminal(self):
        job = self.prepared(train={"steps": 30}, site__one={"hosts": "localhost:2"})
        for columns, bar, end in ((120, 20, True), (70, 5, True), (40, 0, False)):
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            code, sent = self.on_terminal("train", job, columns=columns)
            self.assertEqual(code, DONE, sent)
            lines = [part.split("\r")[0] for part in sent.split("\r\x1b[K") if "30  loss " in part]
            self.assertGreaterEqual(len(lines), 2, sent)
            for line in lines:
                self.assertLess(len(line), columns, line)
            self.assertGreaterEqual(lines[-1].count("\u2588"), bar, lines)
            self.assertEqual(lines[-1].endswith(" s"), end, lines)  # the time that is left

    def test_a_terminal_gets_what_it_can_show(self):
        job = self.prepared(train={"steps": 30}, site__one={"hosts": "localhost:2"})
        for environment in ({"TERM": "dumb"}, {"NO_COLOR": "1"}, {"LC_ALL": "C"}, {"LC_ALL": "", "LANG": "de_DE"}):
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            code, sent = self.on_terminal("train", job, **environment)
            self.assertEqual(code, DONE, sent)
            self.assertTrue(sent.isascii(), sent)
            if "TERM" in environment or "NO_COLOR" in environment:
                self.assertNotIn("\x1b", sent)
                self.assertRegex(sent, r"\nstep 30/30  loss ")
            else:
                self.assertRegex(sent, r"\r\x1b\[K#+\.* \d+/30  loss ")

    def test_ranks_write_to_a_terminal_that_stops_others_in_the_background(self):
        job = self.prepared(train={"steps": 30}, site__one={"hosts": "localhost:2"})
        code, sent = self.on_terminal("train", job, background_stops=True)
        self.assertEqual(code, DONE, sent)

    def test_outputs_that_are_no_files_are_left_alone(self):
        job = self.prepared(train={"steps": 2})
        for name in ("train.log", "metrics.jsonl"):
            for other in ("train.log", "metrics.jsonl"):
                if os.path.exists(self.path("out", other)):
                    os.unlink(self.path("out", other))
            os.mkfifo(self.path("out", name))
            _, said = self.run_longhaul("train", job)
            self.assertIn(name + ": cannot create: No such device or address", said)
            os.unlink(self.path("out", name))
            os.symlink(self.write("own", "mine\n"), self.path("out", name))
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            self.run_longhaul("train", job)
            with open(self.path("own")) as f:
                self.assertEqual(f.read(), "mine\n")
            os.unlink(self.path("out", name))
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)

    def test_two_that_prepare_in_one_folder(self):
        job = self.prepared()
        with open(self.path("out", "corpus.bin"), "rb") as f:
            tokens = f.read()
        for name in ("corpus.lengths.tmp", "corpus.bin.tmp", "prepare.rejected.txt.tmp"):
            with open(self.path("out", name), "w") as held:
                held.write("another's")
                held.flush()
                fcntl.flock(held, fcntl.LOCK_EX)
                _, said = self.run_longhaul("prepare", job, code=REFUSED)
                self.assertIn(name + ": another process writes it", said)
                with open(self.path("out", name)) as f:
                    self.assertEqual(f.read(), "another's")
            self.run_longhaul("prepare", job)  # what a killed one left is nobody's
            self.assertEqual([n for n in os.listdir(self.path("out")) if ".tmp" in n], [])
            with open(self.path("out", "corpus.bin"), "rb") as f:
                self.assertEqual(f.read(), tokens)

    def test_a_folder_where_one_runs_is_left_as_it_is_by_others(self):
        for ranks in (1, 2):
            job = self.prepared(train={"steps": 1000000}, checkpoint={"every": 5}, launch={"ranks_per_node": ranks})
            first = self.start("run", job)
            self.wait_for(lambda: os.path.exists(self.path("out", "checkpoints", "latest")), first)
            names = [self.path("out", name) for name in ("corpus.bin", "corpus.idx", "prepare.json", "stages.json")]
            before = [os.stat(name) for name in names]
            took = []
            for removed in (False, True):  # whoever removes the file of the lock is not let in either
                for words in (("run", job), ("prepare", job), ("import", job), ("train", job, "--resume")):
                    begin = time.monotonic()
                    _, said = self.run_longhaul(*words, "--set", "prepare.on_error=skip", code=REFUSED)
                    who = "" if removed else rf": process {first.pid} on \S+ since \d{{4}}-\d\d-\d\dT[\d:]{{8}}Z: longhaul run \S+"
                    self.assertRegex(said, rf"\Alonghaul: \S*/out/\.run\.lock: another run still writes in this folder{who}\n\Z")
                    took.append(time.monotonic() - begin)
                if not removed:
                    os.unlink(self.path("out", ".run.lock"))
            self.assertLess(min(took), 5)  # at once: the least of eight, which a busy machine does not lengthen
            self.assertEqual([(s.st_ino, s.st_mtime_ns) for s in map(os.stat, names)], [(s.st_ino, s.st_mtime_ns) for s in before])
            self.run_longhaul("generate", job, "--prompt", "Once", "--tokens", "2")
            first.send_signal(signal.SIGTERM)
            self.assertEqual((first.communicate(timeout=120), first.returncode)[1], TERMINATED)
            self.assertFalse(os.path.exists(self.path("out", ".run.lock")))
            with open(self.path("out", "checkpoints", "latest")) as f:
                step = int(f.read().split()[0].split("-")[1])
            self.run_longhaul("run", job, "--resume", "--set", f"train.steps={step + 2}")
            subprocess.run(["rm", "-rf", self.path("out")], check=True)

    def test_a_folder_that_is_removed_is_told_at_the_next_line(self):
        job = self.prepared(train={"steps": 1000000, "log_every": 1}, checkpoint={"every": 1})
        first = self.start("train", job)
        self.wait_for(lambda: os.path.exists(self.path("out", "checkpoints", "latest")), first)
        os.rename(self.path("out"), self.path("away"))  # in the middle of a save, more often than not
        said = ""
        while "was not saved: " not in said or "metrics.jsonl: " not in said:
            line = first.stderr.readline()
            self.assertTrue(line, said)
            said += line
        self.assertRegex(said, r"/out/metrics\.jsonl: was removed or replaced, or its folder was: lines of this run are lost from here on\n")
        self.assertRegex(said, r"/out/checkpoints: this folder was removed or replaced while a run writes in it\n")
        # A save that has just found its folder there makes one of that name anew.
        self.assertLessEqual(set(os.listdir(self.path("out")) if os.path.exists(self.path("out")) else ()), {"checkpoints"}, said)
        first.kill()
        first.communicate()

    def test_two_runs_in_one_folder_with_checkpoints_apart(self):
        job = self.prepared(train={"steps": 1000000}, checkpoint={"every": 5})
        first = self.start("train", job)
        metrics = self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(self.path("out", "checkpoints", "latest")), first)
        self.run_longhaul("generate", job, "--prompt", "Once", "--tokens", "2")
        before = os.path.getsize(metrics)
        _, said = self.run_longhaul("train", job, "--set", "train.steps=6", "--set", "checkpoint.folder=ck2",
                                    code=REFUSED)
        self.assertRegex(said, r"\Alonghaul: \S*/out/\.run\.lock: another run still writes in this folder: process \d+ on ")
        self.assertGreater(os.path.getsize(metrics), before)
        self.assertFalse(os.path.exists(self.path("out", "ck2")))
        first.send_signal(signal.SIGKILL)  # its helpers may still write
        self.run_longhaul("train", job, "--set", "train.steps=6", "--set", "checkpoint.folder=ck2")
        first.communicate()
        # One folder for all has one lock.
        self.run_longhaul("train", job, "--set", "train.steps=2", "--set", "checkpoint.folder=.")

    def test_many_may_read_at_the_same_time(self):
        job = self.prepared(train={"steps": 2})
        self.run_longhaul("train", job)
        for _ in range(5):
            several = [self.start("generate", job, "--prompt", "Once", "--tokens", "2") for _ in range(3)]
            for process in several:
                said = process.communicate(timeout=120)
                self.assertEqual(process.returncode, DONE, said)
        self.assertEqual([n for n in os.listdir(self.path("out")) if ".tmp" in n], [])


if __name__ == "__main__":
    main()
