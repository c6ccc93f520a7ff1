"""What a disk may do to a run: errors in every call that writes a checkpoint, and a file system that
hangs. The run goes on, says which save is missing and why, and the next one is whole."""
import ctypes
import errno
import glob
import os
import signal
import subprocess
import tempfile
import time
import unittest

from pipeline_case import (DONE, REFUSED, TERMINATED, TORTURE, PipelineCase, checkpoint_digest, log_lines,
                           main, read_json_lines)

# Hundreds of saves: where memory can be had, a busy disk is none of this test's business.
if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK):
    tempfile.tempdir = "/dev/shm"

PRELOAD = os.path.join(os.environ.get("LONGHAUL_TEST_FOLDER", ""), "disk_faults.so")
CALLS = {"mkdir": errno.EACCES, "fallocate": errno.ENOSPC, "pwrite": errno.EIO, "write": errno.EDQUOT,
         "fsync": errno.EIO, "close": errno.EIO, "rename": errno.EIO}


def helpers_alive(folder):
    """Processes that still write checkpoints of this test's run."""
    found = []
    for name in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(name) as f:
                comm = f.read().strip()
            if comm.startswith("longhaul-") and os.readlink(name[:-4] + "cwd") == folder:
                found.append((comm, int(name.split("/")[2])))
        except OSError:
            continue
    return found


CLONE_NEWNS, MS_REC_PRIVATE, MNT_DETACH = 0x20000, 1 << 14 | 1 << 18, 2


def own_mounts():
    """The C library, with this process and those it starts from now on in a mount namespace of their
    own; None: not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = os.geteuid() == 0 and libc.unshare(CLONE_NEWNS) == 0 \
        and libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
    return libc if allowed else None


@unittest.skipIf(os.environ.get("LONGHAUL_SANITIZED") == "1", "a sanitizer must come first")
class Disk(PipelineCase):
    def prepared(self, **changes):
        job = self.small_job(**changes)
        self.run_longhaul("prepare", job)
        return job

    def faults(self, *rows):
        """The environment of a run in which these go wrong; a row: (step, call, n, what)."""
        path = self.write("faults", "".join("%d %s %d %s\n" % row for row in rows))
        return dict(os.environ, LD_PRELOAD=PRELOAD, DISK_FAULTS=path)

    def steps(self):
        names = os.listdir(self.path("out", "checkpoints"))
        return sorted(int(n[5:]) for n in names if n.startswith("step-")), \
            [n for n in names if n.startswith((".tmp-", ".del-"))]

    def start_again(self):
        for name in glob.glob(self.path("out", "*")):
            if os.path.basename(name).startswith("corpus") or name.endswith("stages.json"):
                continue
            subprocess.run(["rm", "-rf", name], check=True)

    def text(self, path):
        with open(path, errors="replace") as f:
            return f.read()

    def trained(self):
        return [r["step"] for r in read_json_lines(self.path("out", "metrics.jsonl"))
                if "learning_rate" in r]

    def test_an_error_in_any_call_costs_one_save(self):
        job = self.prepared(train={"steps": 9}, checkpoint={"every": 3})
        self.run_longhaul("train", job)
        whole = checkpoint_digest(self.step_folder(9))
        for call, error in CALLS.items():
            for n in ((1, 2, 3) if TORTURE and call != "mkdir" else (1,)):
                self.start_again()
                struck = self.path("faults.struck")
                if os.path.exists(struck):
                    os.unlink(struck)
                _, said = self.run_longhaul("train", job, env=self.faults((3, call, n, error)))
                if n > 1 and not os.path.exists(struck):
                    self.assertNotIn("was not saved", said)
                    break  # a save makes fewer such calls
                steps, left = self.steps()
                what = "%s %d: %s" % (call, n, said)
                self.assertEqual(left, [], what)
                if n > 1 and 3 in steps:  # it struck what follows the commit, perhaps the word of it
                    words = said.count("step 3 saved to") + said.count("step 3 was not saved")
                    self.assertEqual((steps, words), ([3, 6, 9], 1), what)
                else:
                    self.assertEqual((steps, said.count("step 3 was not saved")), ([6, 9], 1), what)
                    self.assertIn(os.strerror(error), said)
                self.assertEqual(self.trained(), list(range(1, 10)), what)
                self.assertEqual(checkpoint_digest(self.step_folder(9)), whole, what)
                self.run_longhaul("verify", self.path("out", "checkpoints"))

    def test_a_disk_that_stays_full_fails_the_run_at_its_end(self):
        job = self.prepared(train={"steps": 6}, checkpoint={"every": 3})
        code, rows = REFUSED, ((0, "fallocate", 1, errno.ENOSPC),)
        _, said = self.run_longhaul("train", job, code=code, env=self.faults(*rows))
        self.assertEqual(self.steps(), ([], []))
        self.assertEqual(self.trained(), list(range(1, 7)))
        self.assertIn(os.strerror(errno.ENOSPC), said)
        self.assertEqual(log_lines(self.path("out", "train.log"))[-1], said.splitlines()[-1])
        # Once there is space the run is made again to its end.
        self.run_longhaul("train", job, "--resume")
        self.assertEqual(self.steps()[0], [3, 6])

    def test_several_ranks_say_in_one_line_what_failed(self):
        job = self.prepared(train={"steps": 6}, site__one={"hosts": "localhost:2"})
        full = self.faults((0, "fallocate", 1, errno.ENOSPC))
        _, said = self.run_longhaul("train", job, code=REFUSED, env=full)
        self.assertRegex(said.splitlines()[-1], r"\Alonghaul: rank [01] on one/localhost \(process \d+\) failed in step 6, "
                                                r"the last save: .*: No space left on device\Z")
        self.assertEqual(log_lines(self.path("out", "train.log"))[-1], said.splitlines()[-1])
        self.run_longhaul("train", job, "--resume")
        self.assertEqual(self.steps()[0], [6])

    def hanging(self, what, every=3, steps=30):
        job = self.prepared(train={"steps": steps}, checkpoint={"every": every, "deadline": "5s",
                                                                "patience": "200ms"})
        begin = time.monotonic()
        _, said = self.run_longhaul("train", job, env=self.faults((every, "fsync", 1, what)))
        took = time.monotonic() - begin
        steps_saved, left = self.steps()
        self.assertNotIn(every, steps_saved)
        self.assertEqual(steps_saved[-1], steps)
        self.assertIn("step %d was not saved: step %d was not written within 5.0 s and is given up"
                      % (every, every), said)
        self.assertEqual(self.trained(), list(range(1, steps + 1)))
        self.assertEqual(helpers_alive(self.folder), [])
        self.run_longhaul("verify", self.path("out", "checkpoints"))
        return took

    def test_a_file_system_that_hangs_costs_one_save(self):
        # Training waits 0.2 s in all, and at its end until the deadline.
        self.assertLess(self.hanging("hang"), 60)

    def test_a_helper_that_is_stopped_costs_one_save(self):
        self.assertLess(self.hanging("stop"), 60)

    def test_a_hanging_disk_does_not_stop_training(self):
        """While one save hangs, steps go on: they stand still once for the patience, then no more."""
        job = self.prepared(train={"steps": 100000}, checkpoint={"every": 2, "deadline": "600s",
                                                                 "patience": "500ms"})
        process = self.start("train", job, env=self.faults((2, "fsync", 1, "hang")))
        metrics = self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(metrics) and len(self.trained()) > 60, process)
        rows = [r for r in read_json_lines(metrics) if "learning_rate" in r]
        process.send_signal(signal.SIGKILL)
        for _, pid in helpers_alive(self.folder):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=120)
        # 30 saves fell into that time; each would have waited.
        self.assertGreater(len(rows), 60)

    def test_a_file_system_that_hangs_in_the_kernel_costs_saves_and_no_steps(self):
        """FUSE with nobody behind it, over the folder of checkpoints: each call waits in the kernel."""
        job = self.prepared(train={"steps": 100000}, checkpoint={"every": 2, "deadline": "5s",
                                                                 "patience": "200ms"})
        mounts = own_mounts() if os.access("/dev/fuse", os.R_OK | os.W_OK) else None
        if mounts is None:
            self.skipTest("needs root, FUSE and mount namespaces")
        process = self.start("train", job)
        folder, metrics = self.path("out", "checkpoints"), self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(os.path.join(folder, "latest")), process)
        dead = os.open("/dev/fuse", os.O_RDWR)
        how = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % dead
        self.assertEqual(mounts.mount(b"dead", folder.encode(), b"fuse", 0, how), 0)
        try:
            begun = len(self.trained())
            self.wait_for(lambda: len(self.trained()) > begun + 60, process)
            self.wait_for(lambda: any(r["save"]["failed"] for r in read_json_lines(metrics)
                                      if "save" in r), process)
        finally:
            mounts.umount2(folder.encode(), MNT_DETACH)
            os.close(dead)
        before = self.steps()[0][-1]
        self.wait_for(lambda: self.steps()[0][-1] > before, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, TERMINATED)
        self.assertEqual(helpers_alive(self.folder), [])
        self.run_longhaul("verify", folder)

    def test_a_helper_that_hangs_without_its_trainer_gives_the_folder_back(self):
        job = self.prepared(train={"steps": 8}, checkpoint={"every": 4, "deadline": "5s"})
        process = self.start("train", job, env=self.faults((8, "fsync", 1, "hang")))
        self.wait_for(lambda: os.path.exists(self.path("faults.struck")), process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)  # the pipes are closed: all its processes have ended
        self.assertEqual(self.steps()[0], [4])
        self.run_longhaul("train", job, "--resume")
        self.assertEqual(self.steps()[0], [4, 8])

    def test_whoever_saves_is_killed_and_the_one_in_reserve_takes_over(self):
        job = self.prepared(train={"steps": 600}, checkpoint={"every": 50, "keep": 2})
        process = self.start("train", job)
        for kill in ("longhaul-save", "longhaul-spare", "longhaul-save"):
            before = len(self.trained()) if os.path.exists(self.path("out", "metrics.jsonl")) else 0
            self.wait_for(lambda: os.path.isdir(self.path("out", "checkpoints")) and self.steps()[0] and
                          len(self.trained()) > before + 50 and
                          {comm for comm, _ in helpers_alive(self.folder)} >= {"longhaul-save", "longhaul-spare"},
                          process)  # a new one in reserve takes its time where the processors are busy
            for pid in [pid for comm, pid in helpers_alive(self.folder) if comm == kill]:
                os.kill(pid, signal.SIGKILL)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, DONE, said)
        self.assertEqual(self.trained(), list(range(1, 601)))
        self.assertEqual(self.steps()[0][-1], 600)
        self.assertEqual(helpers_alive(self.folder), [])
        self.run_longhaul("verify", self.path("out", "checkpoints"))

    def test_a_run_whose_savers_are_all_killed_ends_with_a_line(self):
        """At its next save, and at SIGTERM: it neither hangs nor goes on for nothing."""
        gone = "the process that saves and the one in reserve were killed: checkpoints can't be saved any more\n"
        for ranks, every in ((1, 50), (1, 1000000), (2, 1000000)):
            job = self.prepared(train={"steps": 100000}, checkpoint={"every": every},
                                site__one={"hosts": "localhost:%d" % ranks})
            self.start_again()
            process = self.start("train", job)
            self.wait_for(lambda: os.path.exists(self.path("out", "metrics.jsonl")) and
                          len(self.trained()) > 5, process)
            def kill_them():  # a save between two kills is made by a new one
                for _, pid in helpers_alive(self.folder):
                    os.kill(pid, signal.SIGKILL)
                return process.poll() is not None
            kill_them()
            if every > 50:
                self.wait_for(lambda: helpers_alive(self.folder) == [])  # they die a while after the signal
                process.send_signal(signal.SIGTERM)
            else:
                self.wait_for(kill_them)
            _, said = process.communicate(timeout=120)
            self.assertEqual(process.returncode, REFUSED, said)
            self.assertTrue(said.endswith(gone), said[-2000:])
            self.assertEqual(helpers_alive(self.folder), [])

    def test_a_full_disk_under_metrics_and_log_costs_whole_lines(self):
        """Steps go on, each file warns once, and what is written once there is room is whole."""
        job = self.prepared(train={"steps": 1000000, "log_every": 1})
        mounts = own_mounts()
        if mounts is None:
            self.skipTest("needs root and mount namespaces")
        small = self.path("small")
        os.mkdir(small)
        self.assertEqual(mounts.mount(b"tmpfs", small.encode(), b"tmpfs", 0, b"size=64m"), 0)
        self.addCleanup(mounts.umount2, small.encode(), MNT_DETACH)
        said = open(self.path("said"), "w+", errors="replace")  # a pipe would fill meanwhile
        self.addCleanup(said.close)
        process = self.start("train", job, "--set", "data.train=" + self.path("out", "corpus"), "--set",
                             "pipeline.folder=small/out", "--set", "checkpoint.folder=" + self.path("ck"),
                             stderr=said)
        metrics = os.path.join(small, "out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 0, process)
        fill = os.open(os.path.join(small, "fill"), os.O_CREAT | os.O_WRONLY)
        with self.assertRaises(OSError):
            while True:
                os.write(fill, bytes(65536))
        names = ("metrics.jsonl", "train.log")  # they still grow to the end of their last page
        self.wait_for(lambda: all(name + ": cannot write" in self.text(said.name) for name in names), process,
                      pause=0.05)
        full_at = os.path.getsize(metrics)
        os.ftruncate(fill, 0)
        os.close(fill)
        self.wait_for(lambda: os.path.getsize(metrics) > full_at + 1000, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        said = self.text(said.name)
        self.assertEqual(process.returncode, TERMINATED, said[-4000:])
        self.assertTrue(all(self.text(os.path.join(small, "out", name)).endswith("\n") for name in names))
        steps = [r["step"] for r in read_json_lines(metrics) if "learning_rate" in r]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertLess(len(steps), steps[-1])
        for name, what in (("metrics.jsonl", "lines of metrics"), ("train.log", "lines")):
            self.assertEqual(said.count(name + ": cannot write: No space left on device; "), 1, said)
            self.assertRegex(said, r"warning: .*%s: \d+ %s were lost\n" % (name, what))
        log = log_lines(os.path.join(small, "out", "train.log"))
        printed = set(said.splitlines())
        self.assertEqual([line for line in log if line not in printed and not line.startswith("plugin ")], [])

    def test_sigterm_while_the_disk_hangs_ends_within_the_deadline(self):
        job = self.prepared(train={"steps": 100000}, checkpoint={"every": 5, "deadline": "5s",
                                                                 "patience": "0s"})
        process = self.start("train", job, env=self.faults((5, "fsync", 1, "hang")))
        self.wait_for(lambda: os.path.exists(self.path("out", "metrics.jsonl")) and
                      len(self.trained()) > 5, process)
        since = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, TERMINATED, said)
        self.assertLess(time.monotonic() - since, 40)
        self.assertGreater(self.steps()[0][-1], 5)
        self.run_longhaul("verify", self.path("out", "checkpoints"))


main()
