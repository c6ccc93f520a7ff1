"""What surrounds a run: closed standard files, a limit of files' size, a reader that goes, a terminal that closes,
outputs that are no plain files, others who work in the same folder."""
import fcntl
import os
import resource
import signal
import subprocess
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
        process = self.start("train", job, preexec_fn=(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
                             if ignored else None)
        rows = self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(rows) and os.path.getsize(rows) > 0, process)
        process.send_signal(signal.SIGHUP)
        if ignored:
            before = os.path.getsize(rows)
            time.sleep(0.3)
            self.assertGreater(os.path.getsize(rows), before)
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

    def test_two_runs_in_one_folder_with_checkpoints_apart(self):
        job = self.prepared(train={"steps": 1000000}, checkpoint={"every": 5})
        first = self.start("train", job)
        metrics = self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(self.path("out", "checkpoints", "latest")), first)
        self.run_longhaul("generate", job, "--prompt", "Once", "--tokens", "2")
        before = os.path.getsize(metrics)
        _, said = self.run_longhaul("train", job, "--set", "train.steps=6", "--set", "checkpoint.folder=ck2",
                                    code=REFUSED)
        self.assertRegex(said, r"\Alonghaul: \S*/out/\.lock: another run still writes in this folder\n\Z")
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
