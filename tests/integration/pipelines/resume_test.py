"""A run that is killed and resumed ends in the same weights and optimizer state, bit for bit, as one
that was left alone; and what SIGTERM, a second one and an existing run do."""
import ctypes
import errno
import hashlib
import os
import random
import signal
import time

from pipeline_case import (DONE, NOT_FINITE, REFUSED, TERMINATED, TORTURE, PipelineCase, checkpoint_digest,
                           log_lines, main, read_json_lines)

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def no_rights():
    """Permissions of files hold for root too, from the next exec on."""
    if os.geteuid() == 0:
        for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0)


class Resume(PipelineCase):
    def prepared(self, **changes):
        job = self.small_job(**changes)
        self.run_longhaul("prepare", job)
        return job

    def saved_steps(self, folder="out"):
        root = self.path(folder, "checkpoints")
        names = os.listdir(root) if os.path.isdir(root) else []
        return sorted(int(n[5:]) for n in names if n.startswith("step-") and n[5:].isdigit())

    def test_a_killed_and_resumed_run_ends_in_the_same_bits(self):
        # Steps long enough for the signal to come between the saves.
        job = self.prepared(train={"batch": 32, "sequence": 64, "micro_batch": 8})
        for precision in ("f32", "bf16"):
            for threads in ("1", "2") if TORTURE else ("1",) if precision == "f32" else ("2",):
                way = precision + threads
                sets = ["--set", "train.precision=" + precision, "--set",
                        "device.threads=" + threads, "--set", "checkpoint.every=10"]
                for folder in ("whole" + way, "cut" + way):
                    self.link_data(folder)
                whole = ["--set", "pipeline.folder=whole" + way]
                cut = ["--set", "pipeline.folder=cut" + way]
                self.run_longhaul("train", job, *sets, *whole)

                process = self.start("train", job, *sets, *cut)
                self.wait_for(lambda: os.path.exists(self.path("cut" + way, "checkpoints",
                                                               "latest")), process)
                self.kill(process)
                ten = self.step_folder(10, "cut" + way)
                last = self.step_folder(20, "cut" + way)
                if os.path.isdir(last):  # it was faster than the signal, on a busy machine
                    self.forget(last, "cut" + way, 10)
                self.assertTrue(os.path.isdir(ten))
                self.run_longhaul("train", job, *sets, *cut, "--resume")
                self.assertEqual(checkpoint_digest(last),
                                 checkpoint_digest(self.step_folder(20, "whole" + way)), way)
                names = checkpoint_digest(last)[1]
                self.assertEqual(len([n for n in names if n.startswith("exp_avg/")]),
                                 len([n for n in names if "/" not in n]), names)

    def test_other_data_are_refused(self):
        job = self.prepared(train={"steps": 4})
        self.run_longhaul("train", job)
        with open(self.path("out", "corpus.bin"), "r+b") as f:
            first = f.read(2)
            f.seek(0)
            f.write(bytes([first[0] ^ 1, first[1]]))
        more = ("train", job, "--resume", "--set", "train.steps=6")
        _, said = self.run_longhaul(*more, code=REFUSED)
        self.assertRegex(said, r"step-0+4 was made with 'data.content = [0-9a-f]{16}', now it is 'data.content = ")
        self.run_longhaul(*more, "--set", "train.same_bits=no")

    def test_logits_of_another_dtype_are_refused(self):
        job = self.prepared(train={"steps": 2, "precision": "bf16"})
        self.run_longhaul("train", job)
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=3", "--set", "train.logits=compute",
                                    code=REFUSED)
        self.assertIn("was made with 'train.logits = f32', now it is 'train.logits = compute'", said)

    def test_another_cut_of_the_head_is_refused(self):
        job = self.prepared(train={"steps": 4})
        self.run_longhaul("train", job)
        more = ("train", job, "--resume", "--set", "train.steps=6", "--set", "train.head_chunk=7")
        _, said = self.run_longhaul(*more, code=REFUSED)
        self.assertIn("was made with 'train.head_chunk = 0', now it is 'train.head_chunk = 7'", said)
        self.run_longhaul(*more, "--set", "train.same_bits=no")

    def damage(self, step):
        self.damage_shard(self.step_folder(step))

    def test_damage_that_a_load_finds_costs_the_steps_since_the_checkpoint_before(self):
        job = self.prepared(checkpoint={"every": 5})
        self.run_longhaul("train", job)
        whole = checkpoint_digest(self.step_folder(20))
        self.damage(20)
        said = "".join(self.run_longhaul("train", job, "--resume"))
        for text in ("step-%012d is skipped" % 20, "its bytes hash to", "after step 15"):
            self.assertIn(text, said)
        self.assertTrue(os.path.isdir(self.path("out", "checkpoints", "damaged-step-%012d" % 20)))
        self.assertEqual(checkpoint_digest(self.step_folder(20)), whole)

    def test_where_all_are_damaged_nothing_begins_anew(self):
        job = self.prepared(checkpoint={"every": 10})
        self.run_longhaul("train", job)
        self.damage(10)
        self.damage(20)
        names = sorted(os.listdir(self.path("out", "checkpoints")))
        for how in (["--resume"], ["--resume"], []):
            # Without --resume only what stands before the data is looked at.
            why = "checkpoints is whole" if how else "go on from it with --resume"
            self.assertIn(why, self.run_longhaul("train", job, *how, code=REFUSED)[1])
            self.assertEqual(sorted(os.listdir(self.path("out", "checkpoints"))), names)
        for step in (10, 20):
            with open(os.path.join(self.step_folder(step), "manifest.json"), "w"):
                pass
        for how in (["--resume"], [], ["--resume"]):
            said = self.run_longhaul("train", job, *how, code=REFUSED)[1]
            self.assertIn("none of its 2 checkpoints is whole", said)
            self.assertEqual(sorted(os.listdir(self.path("out", "checkpoints"))), names)

    def refuses_to_resume(self, job, why):
        """Nothing is renamed, no older one taken, nothing begun anew."""
        folder, metrics = self.path("out", "checkpoints"), self.path("out", "metrics.jsonl")
        names, rows = sorted(os.listdir(folder)), os.path.getsize(metrics)
        said = "".join(self.run_longhaul("train", job, "--resume", code=REFUSED, preexec_fn=no_rights))
        self.assertIn(why, said)
        self.assertIn("step-%012d" % 20, said)
        self.assertNotIn("is skipped", said)
        self.assertEqual((sorted(os.listdir(folder)), os.path.getsize(metrics)), (names, rows))

    def test_a_checkpoint_that_may_not_be_read_is_not_passed_over(self):
        job = self.prepared(checkpoint={"every": 10})
        self.run_longhaul("train", job)
        folder = self.step_folder(20)
        shard = [n for n in os.listdir(folder) if n.startswith("shard-")][0]
        for path in (os.path.join(folder, "manifest.json"), os.path.join(folder, shard), folder):
            mode = os.stat(path).st_mode
            os.chmod(path, 0)
            self.refuses_to_resume(job, os.strerror(errno.EACCES))
            os.chmod(path, mode)
        self.run_longhaul("train", job, "--resume", preexec_fn=no_rights)

    def test_a_checkpoint_of_a_newer_version_is_not_passed_over(self):
        job = self.prepared(checkpoint={"every": 10})
        self.run_longhaul("train", job)
        manifest = os.path.join(self.step_folder(20), "manifest.json")
        with open(manifest) as f:
            text = f.read()
        head = text[:text.index('"self": ')].replace('"version": 1,', '"version": 2,')
        with open(manifest, "w") as f:
            f.write(head + '"self": "%s"\n}\n' % hashlib.sha256(head.encode()).hexdigest())
        self.refuses_to_resume(job, "version 2, this program reads 1")

    def forget(self, last, folder, step):
        """As if the run had been killed before its last save."""
        for name in os.listdir(last):
            os.unlink(os.path.join(last, name))
        os.rmdir(last)
        latest = self.path(folder, "checkpoints", "latest")
        with open(latest) as f:
            text = f.read()
        with open(latest, "w") as f:
            f.write(text.replace("%012d" % 20, "%012d" % step))

    def test_kills_at_random_moments_lose_nothing_that_was_saved(self):
        job = self.prepared(train={"steps": 60}, checkpoint={"every": 3})
        self.link_data("alone")
        self.run_longhaul("train", job, "--set", "pipeline.folder=alone")
        chance = random.Random(7)
        latest = self.path("out", "checkpoints", "latest")
        for _ in range(100 if TORTURE else 5):
            before = self.saved_steps()
            process = self.start("train", job, "--resume")
            time.sleep(chance.random() * 0.5)
            self.kill(process)
            # What was committed stays, and is whole.
            self.assertTrue(set(before) <= set(self.saved_steps()))
            if os.path.exists(latest):
                self.run_longhaul("verify", self.path("out", "checkpoints"))
        self.run_longhaul("train", job, "--resume")
        self.assertEqual(checkpoint_digest(self.step_folder(60)),
                         checkpoint_digest(self.step_folder(60, "alone")))

    def test_sigterm_saves_and_exits_75(self):
        job = self.prepared(train={"steps": 100000}, checkpoint={"every": 0})
        process = self.start("train", job)
        self.wait_for(self.some_steps_are_made, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, TERMINATED, said)
        steps = self.saved_steps()
        self.assertEqual(len(steps), 1)
        self.assertGreater(steps[0], 0)
        self.assertIn("--resume", said)
        self.assertEqual(log_lines(self.path("out", "train.log"))[-1],
                         "stopped after step %d, which is saved; go on with --resume" % steps[0])
        # It goes on from there, and a run that is not asked to go on is refused in one sentence.
        _, said = self.run_longhaul("train", job, code=REFUSED)
        self.assertIn("--resume", said)
        self.assertIn(str(steps[0]), said)
        self.run_longhaul("train", job, "--resume", "--set", "train.steps=%d" % (steps[0] + 3))
        self.assertEqual(self.saved_steps(), [steps[0], steps[0] + 3])

    def test_an_evaluation_that_an_end_left_out_is_made_by_the_resume(self):
        job = self.prepared(train={"steps": 100000, "evaluate_every": 1, "evaluate_batches": 1})
        process = self.start("train", job)
        self.wait_for(self.some_steps_are_made, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, TERMINATED, said)
        last = self.saved_steps()[-1] + 2
        # One that is killed before it saves has made it, too, and leaves the checkpoint as it was.
        process = self.start("train", job, "--resume", "--set", "checkpoint.every=100000")
        self.wait_for(lambda: any("evaluation" in r and r["step"] >= last - 2
                                  for r in read_json_lines(self.path("out", "metrics.jsonl"))), process)
        self.kill(process)
        self.assertEqual(self.saved_steps()[-1], last - 2)
        for _ in range(2):  # once, however often it is resumed
            self.run_longhaul("train", job, "--resume", "--set", "train.steps=%d" % last)
            evaluated = [r["step"] for r in read_json_lines(self.path("out", "metrics.jsonl")) if "evaluation" in r]
            self.assertEqual(evaluated, list(range(last + 1)))

    def some_steps_are_made(self):
        path = self.path("out", "metrics.jsonl")
        return os.path.exists(path) and len(read_json_lines(path)) > 3

    def test_a_second_sigterm_exits_at_once(self):
        # One step takes half a minute: only the second signal can end it sooner.
        job = self.prepared(model={"hidden": 256, "blocks": 6, "ffn": 704, "max_tokens": 256},
                            train={"sequence": 256, "batch": 1024, "micro_batch": 4})
        process = self.start("train", job)
        self.wait_for(lambda: os.path.exists(self.path("out", "metrics.jsonl")), process)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        since = time.monotonic()
        process.wait(timeout=120)
        self.assertLess(time.monotonic() - since, 5)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(self.saved_steps(), [])

    def test_a_resume_that_would_be_another_run_is_refused(self):
        job = self.prepared(train={"steps": 2})
        self.run_longhaul("train", job)
        for setting in ("model.rope_base=1234", "data.seed=5", "model.epsilon=0.5",
                        "optimizer.rule=rules:sgd"):
            said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=3", "--set",
                                     setting, code=REFUSED)[1]
            self.assertIn("that would be another run", said, setting)
            self.assertIn(setting.replace("=", " = "), said)
        self.assertEqual(self.saved_steps()[-1], 2)
        self.run_longhaul("train", job, "--resume", "--set", "train.steps=3")
        self.assertEqual(self.saved_steps()[-1], 3)

    def test_metrics_and_events_go_on_where_the_resumed_run_began(self):
        job = self.prepared(checkpoint={"every": 5}, train={"steps": 12})
        process = self.start("train", job)
        self.wait_for(lambda: 5 in self.saved_steps(), process)
        self.kill(process)
        self.run_longhaul("train", job, "--resume")
        rows = read_json_lines(self.path("out", "metrics.jsonl"))
        steps = [r["step"] for r in rows if "learning_rate" in r]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps, list(range(1, 13)))
        alone = self.path("alone")
        self.link_data("alone")
        self.run_longhaul("train", job, "--set", "pipeline.folder=alone")
        whole = {r["step"]: r["loss"] for r in read_json_lines(alone + "/metrics.jsonl")
                 if "learning_rate" in r}
        self.assertEqual({r["step"]: r["loss"] for r in rows if "learning_rate" in r}, whole)

    def test_checkpoints_behind_refused_steps_displace_no_good_one(self):
        """A rate that throws every weight out of range, from step 5 on."""
        job = self.small_job(train={"steps": 4, "same_bits": "no"}, checkpoint={"every": 2, "keep": 2},
                             optimizer={"clip": 0, "learning_rate": "constant(1e-3)"})
        self.run_longhaul("run", job)
        checkpoints = self.path("out", "checkpoints")
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=12", "--set",
                                    "optimizer.learning_rate=constant(1e30)", "--set", "train.not_finite_limit=100",
                                    code=NOT_FINITE)
        self.assertIn("ended with step 12: the last 7 were not finite and not applied; --resume goes on from the last "
                      "good checkpoint", said.splitlines()[-1])
        self.assertEqual(sorted(n for n in os.listdir(checkpoints) if "step" in n),
                         ["step-%012d" % n for n in (2, 4, 12)])
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=6")
        self.assertIn("step-000000000012 is passed over: the 7 steps before it were not applied", said)
        self.assertRegex(said, r"(?m)\b2 steps in ")  # of this run: 5 and 6
        self.assertNotIn("latest names", said)
        self.assertEqual(sorted(n for n in os.listdir(checkpoints) if "step" in n),
                         ["refused-step-000000000012", "step-000000000004", "step-000000000006"])

    def test_a_checkpoint_behind_refused_steps_is_taken_where_no_good_one_is_whole(self):
        """That good ones are not shows as their data are read."""
        job = self.small_job(train={"steps": 4, "same_bits": "no", "not_finite_limit": 100}, checkpoint={"every": 2, "keep": 2},
                             optimizer={"clip": 0, "learning_rate": "constant(1e-3)"})
        refused = ["--resume", "--set", "optimizer.learning_rate=constant(1e30)"]
        self.run_longhaul("run", job)
        self.run_longhaul("train", job, *refused, "--set", "train.steps=12", code=NOT_FINITE)

        def damage(*steps):
            for step in steps:
                with open(os.path.join(self.step_folder(step), "shard-00000-00000.safetensors"), "r+b") as f:
                    f.seek(-1, os.SEEK_END)
                    byte = f.read(1)[0]
                    f.seek(-1, os.SEEK_END)
                    f.write(bytes([byte ^ 4]))
        damage(2, 4)
        said = self.run_longhaul("train", job, *refused, "--set", "train.steps=13", code=NOT_FINITE)[1]
        self.assertIn("resumed after step 12", said)
        self.assertIn("ended with step 13: the last 8 were not finite", said.splitlines()[-1])
        damage(13)
        before = sorted(os.listdir(self.path("out", "checkpoints")))
        for _ in range(2):
            said = self.run_longhaul("train", job, *refused, "--set", "train.steps=14", code=REFUSED)[1]
            self.assertRegex(said, r"none of its 3 checkpoints is whole")
            self.assertEqual(sorted(os.listdir(self.path("out", "checkpoints"))), before)

    def test_a_resume_behind_refused_steps_alone_counts_them_on(self):
        """Where there is no good checkpoint to go back to."""
        job = self.prepared(train={"steps": 6, "not_finite_limit": 8},
                            optimizer={"clip": 0, "learning_rate": "constant(1e30)"})
        self.run_longhaul("train", job, code=NOT_FINITE)
        _, first = self.run_longhaul("train", job, "--resume", code=NOT_FINITE)
        self.assertIn("ended with step 6: the last 5 were not finite", first.splitlines()[-1])
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=8", code=NOT_FINITE)
        self.assertIn("ended with step 8: the last 7 were not finite", said.splitlines()[-1])
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=12", code=NOT_FINITE)
        self.assertIn("8 steps in a row were not finite, the last was 9", said.splitlines()[-1])


main()
