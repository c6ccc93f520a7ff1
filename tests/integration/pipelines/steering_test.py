"""A run asked and steered from another shell: status, stop and save, through its folder alone."""
import contextlib
import datetime
import fcntl
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import time

from pipeline_case import (BINARY, DATA, DONE, LOST, REFUSED, TERMINATED, USAGE, PipelineCase, checkpoint_digest, log_lines, main,
                           read_json_lines)

ENDLESS = 1000000
UNSEEN = "whether a run is at work here can't be told (.run.lock can't be read, or there are no locks)"


class Steering(PipelineCase):
    def run_of(self, steps=ENDLESS, **changes):
        """A training that has made its first step."""
        job = self.small_job(train={"steps": steps}, **changes)
        self.run_longhaul("prepare", job)
        process = self.start("train", job)
        self.assertTrue(self.wait_for(lambda: self.now().get("step", 0) > 0, process, seconds=300), "it has ended")
        return job, process

    def now(self):
        """status.json is renamed into place: it is there whole, or not at all."""
        try:
            with open(self.path("out", "status.json")) as f:
                return json.load(f)
        except FileNotFoundError:
            return {}

    def status(self, *flags):
        return self.run_longhaul("status", "out", *flags)[0]

    def test_status_tells_of_a_run_and_of_its_end(self):
        _, process = self.run_of(checkpoint={"every": 50})
        self.wait_for(lambda: self.now().get("saved") is not None, process)
        told = json.loads(self.status("--json"))
        rows = read_json_lines(self.path("out", "metrics.jsonl"))
        self.assertIs(told["held"], True)
        self.assertRegex(told["holder"], r"\Aprocess %d on \S+ since \S+: longhaul train .*job\.ini\Z" % process.pid)
        self.assertLess(told["age_s"], 3)
        run = told["run"]
        self.assertEqual((run["name"], run["ranks"], run["sites"], run["steps"], run["process"], run["end"]),
                         ("small", 1, 1, ENDLESS, process.pid, None))
        step = [row for row in rows if "loss" in row and row["step"] == run["step"]]
        for key in ("loss", "learning_rate", "gradient_norm", "tokens", "tokens_per_s", "parts"):
            self.assertEqual(step[0][key], run[key], key)
        lines = self.status().splitlines()
        self.assertRegex(lines[0], r"\Asmall: step \d+ of %d, loss \d+\.\d{4}, \S+ tokens/s, \S+ \S+ a step, .* left\Z" % ENDLESS)
        self.assertRegex(lines[1], r"\A  process %d on " % process.pid)
        self.assertRegex(lines[2], r"\A  saved: step \d+ \(\S+Z\), again at \d+\Z")
        # It goes on by itself until the run has ended.
        follower = self.start("status", "out", "--json", "--follow")
        first = json.loads(follower.stdout.readline())["run"]["step"]
        self.assertGreater(json.loads(follower.stdout.readline())["run"]["step"], first)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, TERMINATED)
        rest = follower.communicate(timeout=60)[0].splitlines()
        self.assertIs(json.loads(rest[-1])["held"], False)
        self.assertRegex(self.status().splitlines()[0], r"; the training ended at \S+Z\Z")
        ended = json.loads(self.status("--json"))
        self.assertEqual((ended["holder"], ended["run"]["end"]["failed"]), ("", False))
        self.assertEqual(ended["run"]["saved"]["step"], ended["run"]["step"])

    def test_status_answers_at_once(self):
        if os.environ.get("LONGHAUL_SANITIZED") == "1":
            self.skipTest("a sanitizer takes its time")
        _, process = self.run_of()
        took, used = [], []
        for _ in range(20):
            begin, before = time.monotonic(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
            subprocess.run([BINARY, "status", "out"], cwd=self.folder, stdout=subprocess.DEVNULL, check=True)
            took.append(time.monotonic() - begin)
            used.append(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before)
        print("status: %.1f ms, %.1f ms at best, %.1f ms of processors" % tuple(
            1000 * seconds for seconds in (statistics.median(took), min(took), statistics.median(used))))
        self.assertLess(statistics.median(used), 0.05)  # which a busy machine does not lengthen
        self.assertLess(min(took), 0.05)  # the least of twenty: what a busy machine lengthens is the others
        self.kill(process)

    def test_a_run_that_was_killed_has_not_said_why(self):
        _, process = self.run_of()
        self.kill(process)
        self.assertRegex(self.status().splitlines()[0], "; it is not at work any more, and has not said why")
        _, said = self.run_longhaul("stop", "out", code=REFUSED)
        self.assertEqual(said, "longhaul: out: no run is at work here\n")

    def test_stop_ends_as_sigterm_does(self):
        for changes in ({}, {"launch": {"ranks_per_node": 2}}):
            subprocess.run(["rm", "-rf", self.path("out")], check=True)
            job, process = self.run_of(**changes)
            out, said = self.stop_again(process) if changes else self.run_longhaul("stop", "out")
            self.assertRegex(out, r"\Aout: ended after step (\d+), which is saved\n\Z")
            self.assertRegex(said, r"\Aprocess %d on .* is asked to end\n\Z" % process.pid)
            self.assertIsNotNone(process.wait(timeout=60))
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, TERMINATED, err)
            self.assertRegex(err, r"an end is asked for by process \d+ on \S+\n")
            step = int(out.split()[4].rstrip(","))
            self.assertEqual(log_lines(self.path("out", "train.log"))[-1],
                             "stopped after step %d, which is saved; go on with --resume" % step)
            self.assertFalse(os.path.exists(self.path("out", ".request-stop")))
            # The next one counts that it goes on, and finds no old request.
            self.write("out/.request-stop", "stop\n")
            self.run_longhaul("train", job, "--resume", "--set", "train.steps=%d" % (step + 3))
            self.assertEqual((self.now()["restarts"], self.now()["step"]), (1, step + 3))

    def stop_again(self, process):
        """Asked to stop three times, as the save behind the last step takes long: by a signal and twice through the folder. What stands
        still is processes that save, which have minutes; a rank that did would soon be missed."""
        ranks = self.children(str(process.pid))
        savers = [int(pid) for pid in self.children(",".join(ranks), "-x", "longhaul-save")]
        self.assertEqual(len(savers), len(ranks))
        try:
            for pid in savers:
                os.kill(pid, signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            request = self.write("out/.request-stop", "stop\n")
            self.assertTrue(self.wait_for(lambda: not os.path.exists(request), process), "it has ended")
            stop = self.start("stop", "out")
            said = stop.stderr.readline()
            self.assertIsNone(process.poll())
        finally:
            for pid in savers:
                os.kill(pid, signal.SIGCONT)
        out, more = stop.communicate(timeout=60)
        self.assertEqual((stop.returncode, more), (DONE, ""))
        return out, said

    def children(self, parents, *more):
        """Pids of processes that have one of these parents, between commas."""
        return subprocess.run(["pgrep", "-P", parents, *more], capture_output=True, text=True, check=True).stdout.split()

    def test_stages_that_save_nothing_end_as_asked_too(self):
        """`prepare` half way through its input and `eval`: 75, and nothing half written."""
        with open(os.path.join(DATA, "tinyshakespeare.jsonl")) as f:
            text = f.read()
        self.write("short.jsonl", text)
        self.write("long.jsonl", text * 40)
        job = self.small_job(train={"steps": 2}, prepare={"input": "short.jsonl", "workers": 1},
                             eval={"data": "long.jsonl", "tokens_per_document": 64})
        ends = {"prepare": r"longhaul: prepare was stopped after \d+ of \d+ bytes\n\Z",
                "eval": r"longhaul: stopped by signal 15 \(Terminated\) while no step was under way\n\Z"}
        for stage, *more in (("prepare", "prepare", "--set", "prepare.input=long.jsonl"),
                             ("eval", "run", "--set", "pipeline.stages=prepare train eval"),
                             ("eval", "run", "--set", "pipeline.stages=prepare train eval", "--set", "launch.ranks_per_node=2")):
            if stage == "eval":  # behind a training that begins in the same run
                self.run_longhaul("run", job, "--set", "pipeline.stages=prepare train")
                os.unlink(self.path("out", "train.log"))
                subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            before = self.files()
            process = self.start(more[0], job, *more[1:])
            # It has the folder a moment after it began, and `prepare` reads some moments after that.
            if stage == "prepare":
                self.wait_for(lambda: os.path.exists(self.path("out", "corpus.bin.tmp")), process)
            else:
                self.wait_for(lambda: "report: " in self.log(), process)
            self.assertTrue(self.wait_for(self.is_stopped, process), stage + " has ended")
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, TERMINATED, err)
            self.assertRegex(err, ends[stage])
            if stage == "eval":  # the log of that training says so, too
                self.assertRegex(self.log().splitlines()[-1] + "\n", r"\A\d{4}-\d\d-\d\dT[\d:.]{12}Z " + ends[stage])
            self.assertLessEqual(self.files(), before | {".run.lock", "train.log", "events", "checkpoints", "rank-1.log"}, stage)

    def log(self):
        try:
            with open(self.path("out", "train.log")) as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def is_stopped(self):
        return subprocess.run([BINARY, "stop", "out"], cwd=self.folder, capture_output=True).returncode == DONE

    def files(self):
        return set(os.listdir(self.path("out"))) if os.path.isdir(self.path("out")) else set()

    def test_stop_now_does_not_save(self):
        for changes in ({}, {"launch": {"ranks_per_node": 2}}):
            subprocess.run(["rm", "-rf", self.path("out")], check=True)
            _, process = self.run_of(**changes)
            self.run_longhaul("stop", "out", "--now")
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM)
            self.assertNotIn("stopped after step", log_lines(self.path("out", "train.log"))[-1])

    def saved_at_work(self, ranks):
        """A save of a run at its steps; as fast machines have made few before the request comes, as many as it takes."""
        for steps in (500, 2000, 8000, 32000, 128000):
            subprocess.run(["rm", "-rf", self.path("out")], check=True)
            job, process = self.run_of(steps=steps, checkpoint={"every": 0}, launch={"ranks_per_node": ranks})
            before = self.now()["step"]
            saved = subprocess.run([BINARY, "save", "out"], cwd=self.folder, capture_output=True, text=True, timeout=60)
            # A run that came to its end before it saw the request has saved its last step: done too, but not this case.
            if saved.returncode == DONE and not saved.stdout.startswith("step %d " % steps):
                return steps, job, process, before, saved.stdout
            if saved.returncode != DONE:
                self.assertRegex(saved.stderr, r"nothing is trained here now|no run is at work")
            process.communicate(timeout=120)
        self.fail("no run of %d steps is at work when a save is asked for" % steps)

    def test_save_commits_the_step_at_hand_and_changes_no_bit(self):
        for ranks in (1, 2):
            steps, job, process, before, out = self.saved_at_work(ranks)
            self.assertRegex(out, r"\Astep \d+ saved to \S+\n\Z")
            step = int(out.split()[1])
            self.assertGreater(step, before)
            self.run_longhaul("verify", self.step_folder(step))
            _, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, DONE, err)
            self.assertRegex(err, r"a checkpoint is asked for by process \d+ on \S+\n")
            asked = checkpoint_digest(self.step_folder(steps))
            subprocess.run(["rm", "-rf", self.path("out", "checkpoints")], check=True)
            self.run_longhaul("train", job)
            self.assertEqual(checkpoint_digest(self.step_folder(steps)), asked)
            _, said = self.run_longhaul("save", "out", code=REFUSED)
            self.assertEqual(said, "longhaul: out: no run is at work here\n")

    def test_a_save_that_fails_says_why(self):
        _, process = self.run_of(checkpoint={"folder": "kept"})
        self.run_longhaul("save", "out")
        os.rename(self.path("out", "kept"), self.path("out", "moved"))
        _, said = self.run_longhaul("save", "out", code=REFUSED)
        self.assertRegex(said, r"\Alonghaul: out: step \d+ was not saved: .*kept")
        self.assertIn("not saved: step ", self.status())
        self.assertIn("warning: ", self.status())
        self.kill(process)

    def test_a_rank_that_stands_still_is_late(self):
        _, process = self.run_of(launch={"ranks_per_node": 3})
        others = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
        ranks = {}
        for pid in others.split():
            with open("/proc/%s/environ" % pid, "rb") as f:
                start = f.read().split(b"LONGHAUL_LAUNCH=rank=")
            if len(start) > 1:
                ranks[int(start[1].split()[0])] = int(pid)
        os.kill(ranks[2], signal.SIGSTOP)
        rows = []  # one that waits for its last piece may be late by that

        def is_late():
            rows[:] = [row for row in self.now()["late"] if row["rank"] == 2]
            return rows or process.poll() is not None
        self.wait_for(is_late, pause=0.02)
        self.assertEqual(len(rows), 1)
        self.assertRegex(rows[0]["name"], r"\Arank 2 on ")
        self.assertRegex(rows[0]["why"], r"\A(silent for \d\.\d s|in step \d+ for )")
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, LOST)
        self.assertRegex(self.status().splitlines()[0], "; failed at .*rank 2 ")

    def test_requests_of_strangers_are_not_taken(self):
        if os.geteuid() != 0:
            self.skipTest("it takes root to write files of another user")
        _, process = self.run_of()
        path = self.write("out/.request-stop", "stop\n")
        os.chown(path, 65534, 65534)
        log = self.path("out", "train.log")
        self.wait_for(lambda: any("may ask nothing of this run" in line for line in log_lines(log)), process)
        self.assertIsNone(process.poll())
        os.unlink(path)
        os.symlink(self.write("elsewhere", "stop\n"), path)
        time.sleep(1)
        self.assertIsNone(process.poll())
        os.unlink(path)
        self.run_longhaul("stop", "out")
        self.assertEqual(process.wait(timeout=60), TERMINATED)

    def test_where_nothing_is_at_work(self):
        os.mkdir(self.path("empty"))
        self.write("job.ini", "")
        for command in ("status", "stop", "save"):
            for folder, sentence in (("nowhere", "there is no such folder; [pipeline] folder was expected"),
                                     ("job.ini", "there is no such folder; [pipeline] folder was expected"),
                                     ("empty", "no run is at work here, and none has trained here")):
                _, said = self.run_longhaul(command, folder, code=REFUSED)
                self.assertEqual(said, "longhaul: %s: %s\n" % (folder, sentence))
            self.run_longhaul(command, code=USAGE)
        self.assertEqual(os.listdir(self.path("empty")), [])

    # ---- folders that are written here, as no run of this version leaves them

    def leave(self, status):
        """status.json, renewed as a run does it."""
        os.makedirs(self.path("out"), exist_ok=True)
        self.write("out/new", status if isinstance(status, str) else json.dumps(status))
        os.rename(self.path("out", "new"), self.path("out", "status.json"))

    def refused(self, sentence):
        """By each of those who look."""
        for command in ("status", "stop", "save"):
            _, said = self.run_longhaul(command, "out", code=REFUSED)
            self.assertEqual(said, "longhaul: out: %s\n" % sentence)

    def test_what_the_lock_does_not_tell_is_null(self):
        """A link in its place is looked at no more than another user's file. There, the end of the training is what is followed to."""
        run = {"name": "small", "step": 3, "steps": 9, "end": None}
        self.leave(run)
        os.symlink("elsewhere", self.path("out", ".run.lock"))
        told = json.loads(self.status("--json"))
        self.assertEqual((told["held"], told["holder"], told["run"]), (None, "", run))
        self.assertIn("\n  whether it is at work can't be told: .run.lock can't be read, or there are no locks\n", self.status())
        follower = self.start("status", "out", "--json", "--follow")
        self.assertIsNone(json.loads(follower.stdout.readline())["held"])
        self.leave(dict(run, end={"time": "2026-11-27T08:15:00.000Z", "failed": False, "reason": ""}))
        rest = follower.communicate(timeout=60)[0].splitlines()
        self.assertEqual(follower.returncode, DONE)
        self.assertIsNone(json.loads(rest[-1])["held"])
        lines = self.status().splitlines()
        self.assertEqual(lines[0], "small: step 3 of 9; the training ended at 2026-11-27T08:15:00.000Z")
        self.assertNotIn("can't be told", "".join(lines))
        self.leave(run)  # as a run that was killed leaves it: no end is told, and nothing more
        os.utime(self.path("out", "status.json"), (time.time() - 60,) * 2)
        self.assertIn("small: step 3 of 9", self.status("--follow"))
        os.unlink(self.path("out", "status.json"))
        self.refused(UNSEEN + ", and none has trained here")

    def test_only_its_owner_sees_whether_a_run_is_at_work(self):
        root = os.geteuid() == 0
        other = {"user": 65534, "group": 65534, "extra_groups": []} if root else {}
        self.leave({"name": "small", "step": 3, "steps": 9, "end": None})
        lock = self.write("out/.run.lock", "process 7 on t1")
        for name, mode in ((lock, 0o600), (self.path("out", "status.json"), 0o644), (self.path("out"), 0o755), (self.folder, 0o755)):
            os.chmod(name, mode)
        with open(lock) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            told = json.loads(self.status("--json"))
            self.assertEqual((told["held"], told["holder"]), (True, "process 7 on t1"))
            if not root:
                os.chmod(lock, 0)  # there is no other user to be had
            try:
                told = json.loads(self.run_longhaul("status", "out", "--json", **other)[0])
            except PermissionError:
                self.skipTest("other users may not run %s" % BINARY)
            self.assertEqual((told["held"], told["holder"], told["run"]["step"]), (None, "", 3))
            os.chmod(self.path("out"), 0)
            try:
                _, said = self.run_longhaul("status", "out", code=REFUSED, **other)
            finally:
                os.chmod(self.path("out"), 0o755)
        self.assertEqual(said, "longhaul: out: %s, and nothing is known of what has trained here: "
                               "out/status.json: cannot stat: Permission denied\n" % UNSEEN)

    def test_a_run_of_an_older_version_is_told_of_as_far_as_it_goes(self):
        run = {"name": "old", "step": 7}
        self.leave(run)
        self.assertEqual(self.status(), "old: step 7; it is not at work any more, and has not said why\n  saved: nothing yet\n")
        self.assertEqual(json.loads(self.status("--json"))["run"], run)
        os.unlink(self.path("out", "status.json"))
        self.write("out/metrics.jsonl", "")
        self.refused("no run is at work here, and what has trained here left no status.json, as older versions did; "
                     "see its train.log and metrics.jsonl")

    def test_all_that_a_status_knows_is_told(self):
        at = "2026-11-23T22:12:4%d.117Z"
        self.leave({"name": "shakespeare", "started": at % 1, "step": 412, "steps": 1000, "loss": 2.3412, "tokens_per_s": 18200,
                    "seconds_a_step": 0.452, "seconds_left": 266, "ranks": 4, "sites": 2, "late_count": 10,
                    "late": [{"rank": 3, "name": "rank 3 on tokyo/t2", "why": "silent for 2.1 s"}], "save_every": 100,
                    "saved": {"step": 400, "time": at % 2, "path": "x"}, "in_memory": {"step": 410, "time": at % 3},
                    "not_saved": {"step": 300, "time": at % 4, "reason": "the disk is full"},
                    "evaluation": {"step": 250, "loss": 2.4107, "time": at % 5}, "restarts": 2, "launcher_restarts": 1,
                    "restart_reason": "rank 2 was lost", "refused_steps": 3, "end": None})
        self.write("out/train.log", "".join("%s %s\n" % (at % i, text) for i, text in (
            (0, "warning: of the run before"), (1, "warning: a"), (2, "rank 2: error: b"), (3, "no warning: x"), (4, "warning: c"),
            (5, "warning: d"))))
        rest = ["  process 7 on t1", "  4 ranks, 2 sites", "  late: rank 3 on tokyo/t2, silent for 2.1 s", "  late: 9 more",
                "  saved: step 400 (%s), again at 500" % (at % 2), "  in memory: step 410 (%s)" % (at % 3),
                "  not saved: step 300 (%s): the disk is full" % (at % 4), "  held-out loss: 2.4107 at step 250",
                "  gone on with 2 times", "  started again by its launcher 1 time: rank 2 was lost", "  steps that were not applied: 3",
                "  %s rank 2: error: b" % (at % 2), "  %s warning: c" % (at % 4), "  %s warning: d" % (at % 5)]
        with open(self.write("out/.run.lock", "process 7 on t1")) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            head = "shakespeare: step 412 of 1000, loss 2.3412, 18.2k tokens/s, 452 ms a step, 4m 26s left"
            self.assertEqual(self.status().splitlines(), [head, *rest])
            os.utime(self.path("out", "status.json"), (0, time.time() - 60))
            said = self.status().splitlines()
            self.assertRegex(said[0], re.escape(head) + r"; nothing was heard for 6\d s\Z")
            self.assertEqual(said[1:], rest)

    def test_a_status_that_can_not_be_read_is_told_of(self):
        for text in ('{"name": "small", "st', "[]", "{}", '{"step": "three"}', ""):
            self.leave(text)
            for command in ("status", "stop", "save"):
                _, said = self.run_longhaul(command, "out", code=REFUSED)
                self.assertRegex(said, r"\Alonghaul: out: no run is at work here, and nothing is known of what has trained here: "
                                       r"out/status\.json: [^\n]+\n\Z")
        # A run that is at work is about to write it anew.
        with open(self.write("out/.run.lock", "process 7 on t1")) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            self.assertEqual(self.status(), "out: at work, nothing is trained yet\n  process 7 on t1\n")

    def saves_anew(self, run, request, save):
        """Ranks that were started again are asked by the command that waits, and save."""
        run = dict(run, started="2026-11-27T08:16:00.000Z", step=2)
        self.leave(run)
        self.wait_for(lambda: os.path.exists(request), save)
        os.unlink(request)
        self.leave(dict(run, asked_step=5, step=5, saved={"step": 5, "time": "", "path": "out/checkpoints/step-5"}))
        out = save.communicate(timeout=60)[0]
        self.assertEqual((save.returncode, out), (DONE, "step 5 saved to out/checkpoints/step-5\n"))

    def test_a_save_that_was_lost_with_its_ranks_is_asked_for_anew(self):
        run = {"name": "small", "started": "2026-11-27T08:15:00.000Z", "step": 3, "steps": 9, "asked_step": 0, "end": None}
        self.leave(run)
        request = self.path("out", ".request-save")
        with open(self.write("out/.run.lock", "process 7 on t1")) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            save = self.start("save", "out")
            self.wait_for(lambda: os.path.exists(request), save)
            os.unlink(request)
            time.sleep(0.2)
            # Rank 0 was killed, and its launcher has started another one.
            self.saves_anew(run, request, save)

    @contextlib.contextmanager
    def save_taken(self, locked=True, **outcomes):
        """(`longhaul save`, whose request a run has taken as of step 4 while it made two more, what that run says of itself). locked: it
        is seen to be at work."""
        run = {"name": "small", "started": "2026-11-27T08:15:00.000Z", "step": 3, "steps": 9, "asked_step": 0, "end": None}
        self.leave(run)
        request = self.path("out", ".request-save")
        if not locked:
            os.symlink("elsewhere", self.path("out", ".run.lock"))
        with open(self.write("out/.run.lock" if locked else "out/.no.lock", "process 7 on t1")) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            save = self.start("save", "out")
            self.wait_for(lambda: os.path.exists(request), save)
            os.unlink(request)
            run.update(asked_step=4, step=6, **outcomes)
            self.leave(run)
            yield save, run

    def test_a_save_is_waited_for_though_a_later_one_was_not_made(self):
        """That came due while it was written, and had no patience; nor had one that somebody else has asked for."""
        later = {"step": 6, "time": "", "reason": "the save before is still being written"}
        with self.save_taken(not_saved=later) as (save, run):
            time.sleep(0.3)
            self.assertIsNone(save.poll())
            run.update(asked_step=6, asked_not_saved=later)
            self.leave(run)
            time.sleep(0.3)
            self.assertIsNone(save.poll())
            self.leave(dict(run, step=7, saved={"step": 4, "time": "", "path": "out/checkpoints/step-4"}))
            out = save.communicate(timeout=60)[0]
            self.assertEqual((save.returncode, out), (DONE, "step 4 saved to out/checkpoints/step-4\n"))

    def test_a_save_that_was_refused_is_told_though_another_one_was_since(self):
        refused = {"time": "", "reason": "the save before is still being written"}
        with self.save_taken(not_saved=dict(refused, step=5), asked_not_saved=dict(refused, step=4)) as (save, _):
            said = save.communicate(timeout=60)[1]
            self.assertEqual((save.returncode, said),
                             (REFUSED, "longhaul: out: step 4 was not saved: the save before is still being written\n"))

    def test_a_save_of_a_run_that_is_not_heard_any_more(self):
        """No lock tells that it was killed."""
        with self.save_taken(locked=False) as (save, _):
            time.sleep(0.3)
            self.assertIsNone(save.poll())
            os.utime(self.path("out", "status.json"), (0, time.time() - 60))
            said = save.communicate(timeout=60)[1]
            self.assertEqual((save.returncode, said), (REFUSED, "longhaul: out: the run has ended, and step 4 was not saved\n"))

    def test_saves_that_fail_one_after_the_other_are_told(self):
        """Also where the next one has failed before anybody has looked."""
        _, process = self.run_of(checkpoint={"folder": "kept", "every": 1})
        self.wait_for(lambda: self.now().get("saved") is not None, process)
        os.rename(self.path("out", "kept"), self.path("out", "moved"))
        _, said = self.run_longhaul("save", "out", code=REFUSED)
        self.assertRegex(said, r"\Alonghaul: out: step \d+ was not saved: .*kept")
        self.kill(process)

    def test_what_was_saved_before_is_told_by_a_run_that_goes_on(self):
        """Before its own first save, too."""
        job = self.small_job(train={"steps": 2})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        before = self.now()["saved"]
        job = self.small_job(train={"steps": ENDLESS}, watch={"textfile": self.path("small.prom")})
        process = self.start("train", job, "--resume")
        self.wait_for(lambda: self.now().get("step", 0) > 2, process, seconds=300)
        self.assertEqual((self.now()["saved"]["step"], self.now()["saved"]["path"]), (2, before["path"]))
        times = [datetime.datetime.fromisoformat(saved["time"].rstrip("Z")) for saved in (before, self.now()["saved"])]
        self.assertLess(abs((times[1] - times[0]).total_seconds()), 10)
        self.assertRegex(self.status(), r"(?m)^  saved: step 2 \(\S+Z\)")
        with open(self.path("small.prom")) as f:
            self.assertRegex(f.read(), r'(?m)^longhaul_saved_step\{run="small"\} 2$')
        self.run_longhaul("stop", "out", "--now")
        process.communicate(timeout=60)

    def test_a_save_waits_for_ranks_that_are_started_again(self):
        """Another rank was lost than rank 0, which has told its end: the launcher has the folder still, but for a moment in which rank 0
        may move to another one. Once nobody has it for longer, none comes."""
        end = {"time": "2026-11-27T08:15:30.000Z", "failed": True, "reason": "rank 1 was lost"}
        request = self.path("out", ".request-save")
        for goes_on in (True, False):
            run = {"name": "small", "started": "2026-11-27T08:15:00.000Z", "step": 3, "steps": 9, "asked_step": 0, "end": None}
            self.leave(run)
            with open(self.write("out/.run.lock", "process 7 on t1")) as f:
                fcntl.flock(f, fcntl.LOCK_EX)
                save = self.start("save", "out")
                self.wait_for(lambda: os.path.exists(request), save)
                os.unlink(request)
                self.leave(dict(run, end=end))
                time.sleep(0.2)
                self.assertIsNone(save.poll())
                if goes_on:
                    fcntl.flock(f, fcntl.LOCK_UN)
                    time.sleep(0.3)
                    self.assertIsNone(save.poll())
                    fcntl.flock(f, fcntl.LOCK_EX)
                    self.saves_anew(run, request, save)
            if not goes_on:
                said = save.communicate(timeout=60)[1]
                self.assertEqual((save.returncode, said), (REFUSED, "longhaul: out: the run has ended, and step 3 was not saved\n"))

    def test_stop_finds_a_run_that_moves_to_another_machine(self):
        """Ranks were lost, and nobody has the folder for a moment: that is not the end, and who takes it then is asked anew."""
        end = {"time": "2026-11-27T08:15:30.000Z", "failed": True, "reason": "rank 0 was lost"}
        request = self.path("out", ".request-stop")
        for goes_on in (True, False):
            self.leave({"name": "small", "step": 3, "steps": 9, "end": end})
            with open(self.write("out/.run.lock", "process 7 on t1")) as f:
                fcntl.flock(f, fcntl.LOCK_EX)
                stop = self.start("stop", "out")
                self.wait_for(lambda: os.path.exists(request), stop)
                fcntl.flock(f, fcntl.LOCK_UN)
                time.sleep(0.3)
                self.assertIsNone(stop.poll())
                if goes_on:
                    fcntl.flock(f, fcntl.LOCK_EX)
                    self.write("out/.run.lock", "process 8 on o1")
                    os.unlink(request)  # as whoever takes the folder begins
                    self.wait_for(lambda: os.path.exists(request), stop)
                    os.unlink(request)
                    fcntl.flock(f, fcntl.LOCK_UN)
                out = stop.communicate(timeout=60)[0]
            self.assertEqual((stop.returncode, out), (DONE, "out: ended after step 3\n"))
            self.assertFalse(os.path.exists(request))

    def test_stop_does_not_wait_for_the_run_after_the_one_that_it_ends(self):
        self.leave({"name": "small", "step": 3, "steps": 9, "end": None})
        with open(self.write("out/.run.lock", "process 7 on t1")) as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            stop = self.start("stop", "out")
            request = self.path("out", ".request-stop")
            self.wait_for(lambda: os.path.exists(request), stop)
            os.unlink(request)
            time.sleep(0.2)
            self.assertIsNone(stop.poll())
            self.write("out/.run.lock", "process 8 on t1")
            out = stop.communicate(timeout=60)[0]
        self.assertEqual((stop.returncode, out), (DONE, "out: ended; now there is process 8 on t1\n"))

    @staticmethod
    def who_takes(process, number):
        """The threads of a process that a signal may reach."""
        tasks = "/proc/%d/task" % process.pid
        open_to = []
        for task in os.listdir(tasks):
            with open("%s/%s/status" % (tasks, task)) as f:
                blocked = int(re.search(r"^SigBlk:\s*([0-9a-f]+)$", f.read(), re.M).group(1), 16)
            if not blocked >> number - 1 & 1:
                open_to.append(int(task))
        return open_to

    def test_the_control_thread_alone_takes_signals(self):
        """Threads of OpenMP have no stack for handlers."""
        _, process = self.run_of(device={"threads": 2})
        self.assertGreater(len(os.listdir("/proc/%d/task" % process.pid)), 1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            self.assertEqual(self.who_takes(process, number), [process.pid])
        self.kill(process)

    def test_signals_in_the_middle_of_products_do_no_harm(self):
        """oneDNN's product in F32 for AVX2 uses the register of the stack for something else meanwhile."""
        job = self.small_job(train={"steps": 200, "sequence": 64, "batch": 6, "micro_batch": 1},
                             prepare={"tokenizer": DATA + "/gpt2-tiny/vocab.json", "prepend": "none"},
                             model={"hidden": 64, "ffn": 128, "heads": 2})
        self.run_longhaul("prepare", job)
        digests = []
        for storm in (False, True):
            process = self.start("train", job, env=dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2", DNNL_MAX_CPU_ISA="AVX2"),
                                 start_new_session=True, stderr=subprocess.DEVNULL)
            self.wait_for(lambda: self.now().get("step", 0) > 0, process, seconds=300)
            while storm and process.poll() is None and self.now().get("step", 0) < 190:
                process.send_signal(signal.SIGHUP)  # without a terminal: logs are opened anew
                time.sleep(0.002)
            process.communicate(timeout=600)
            self.assertEqual(process.returncode, DONE, storm)
            digests.append(checkpoint_digest(self.step_folder(200)))
            os.rename(self.path("out", "checkpoints"), self.path("out", "checkpoints-%s" % storm))
            os.unlink(self.path("out", "status.json"))
        self.assertEqual(digests[0], digests[1])

    def test_a_run_that_does_not_answer(self):
        _, process = self.run_of()
        process.send_signal(signal.SIGSTOP)
        _, said = self.run_longhaul("stop", "out", code=LOST)
        self.assertRegex(said, r"\Alonghaul: out: process %d on .* does not take the request within 10 s\n" % process.pid)
        self.assertFalse(os.path.exists(self.path("out", ".request-stop")))
        self.kill(process)


if __name__ == "__main__":
    main()
