"""A run that is steered by hand: gone on with from a step that somebody names, without batches that spoilt it, with another
batch or other sequences."""
import os
import re

from pipeline_case import REFUSED, PipelineCase, checkpoint_digest, main, read_json_lines, tensors_of

MANY = ("--set", "checkpoint.every=3")


class SteeringData(PipelineCase):
    def prepared(self, **changes):
        job = self.small_job(train={"steps": 12, "batch": 4, "micro_batch": 2}, **changes)
        self.run_longhaul("prepare", job)
        return job

    def folder_of(self, name):
        self.link_data(name)
        return ("--set", f"pipeline.folder={name}")

    def names(self, folder="out"):
        return sorted(n for n in os.listdir(self.path(folder, "checkpoints")) if "step-" in n)

    def cursor(self, step, folder="out"):
        with open(os.path.join(self.step_folder(step, folder), "manifest.json")) as f:
            return int(re.search(r'"cursor": *"?(\d+)', f.read())[1])

    def batches(self, job, count, *sets):
        """The first batches that a run takes, as rows of tokens."""
        self.run_longhaul("train", job, "--set", "train.steps=%d" % count, "--dump-batches", str(count), *sets)
        folder = [s.split("=")[1] for s in sets if s.startswith("pipeline.folder=")]
        _, shape, data = tensors_of(self.path(folder[0] if folder else "out", "batches.safetensors"))["tokens"]
        row = len(data) // shape[0]
        return [data[i * row:(i + 1) * row] for i in range(shape[0])]

    def test_a_named_step_is_gone_on_from_and_what_lay_above_is_put_aside(self):
        job = self.prepared()
        self.run_longhaul("run", job, *MANY)
        whole = checkpoint_digest(self.step_folder(12))
        said = self.run_longhaul("run", job, *MANY, "--resume", "7", code=REFUSED)[1]
        self.assertRegex(said.splitlines()[-1], r"\Alonghaul: --resume 7: there is no .*step-0{11}7\Z")
        self.run_longhaul("run", job, *MANY, "--resume=six", code=REFUSED)
        self.assertEqual(len(self.names()), 4)
        # Training is done, and is made again from there.
        self.run_longhaul("run", job, *MANY, "--resume", "6")
        self.assertEqual(checkpoint_digest(self.step_folder(12)), whole)
        self.assertEqual(self.names(), ["left-step-%012d" % s for s in (9, 12)] + ["step-%012d" % s for s in (3, 6, 9, 12)])
        self.assertEqual(checkpoint_digest(self.path("out", "checkpoints", "left-step-%012d" % 12)), whole)
        steps = [r["step"] for r in read_json_lines(self.path("out", "metrics.jsonl")) if "learning_rate" in r]
        self.assertEqual(steps, list(range(1, 13)))
        # The flag's value may stand before the INI, and twice the same is no conflict of names.
        self.run_longhaul("train", "--resume", "9", job, *MANY)
        self.assertIn("left-step-%012d.1" % 12, self.names())
        # A damaged one is refused: somebody meant this one and no other.
        (weights,) = [n for n in os.listdir(self.step_folder(6)) if n.endswith(".safetensors")]
        with open(os.path.join(self.step_folder(6), weights), "r+b") as f:
            f.seek(-5, 2)
            byte = f.read(1)
            f.seek(-5, 2)
            f.write(bytes([byte[0] ^ 1]))
        before = self.names()
        said = self.run_longhaul("train", job, *MANY, "--resume", "6", code=REFUSED)[1]
        self.assertIn("step-%012d is damaged" % 6, said)
        self.assertEqual(self.names(), before)

    def test_several_ranks_go_on_from_a_named_step(self):
        job = self.prepared(launch={"ranks_per_node": 2})
        self.run_longhaul("train", job, *MANY)
        whole = checkpoint_digest(self.step_folder(12))
        self.run_longhaul("train", job, *MANY, "--resume", "3")
        self.assertEqual(checkpoint_digest(self.step_folder(12)), whole)
        self.assertIn("left-step-%012d" % 12, self.names())

    def test_skipped_batches_are_passed_over_and_the_rest_move_up(self):
        job = self.prepared()
        plain = self.batches(job, 12, *self.folder_of("plain"))
        skip = ("--set", "data.skip=4..6, 9")
        self.assertEqual(self.batches(job, 8, *self.folder_of("skipped"), *skip),
                         [plain[n - 1] for n in (1, 2, 3, 7, 8, 10, 11, 12)])
        # From the start, or from before them once they are known: the same run.
        whole, cut = self.folder_of("whole"), self.folder_of("cut")
        steps = ("--set", "train.steps=8")
        self.run_longhaul("train", job, *MANY, *steps, *whole, *skip)
        self.run_longhaul("train", job, *MANY, *steps, *cut)
        self.run_longhaul("train", job, *MANY, *steps, *cut, *skip, "--resume", "3")
        self.assertEqual(checkpoint_digest(self.step_folder(8, "cut")), checkpoint_digest(self.step_folder(8, "whole")))
        self.assertEqual(self.cursor(8, "cut"), 12 * 4)
        self.assertEqual(self.cursor(3, "cut"), 3 * 4)
        # In the middle, as any resume.
        self.run_longhaul("train", job, *MANY, *steps, *cut, *skip, "--resume", "6")
        self.assertEqual(checkpoint_digest(self.step_folder(8, "cut")), checkpoint_digest(self.step_folder(8, "whole")))
        # A range that was trained on can't be left out any more.
        said = self.run_longhaul("train", job, *MANY, *cut, "--set", "data.skip=2..3", "--resume", code=REFUSED)[1]
        self.assertIn("that would be another run", said)
        for wrong in ("5..4", "0..3", "4..6, 6", "a", "1..2..3"):
            said = self.run_longhaul("check", job, "--set", f"data.skip={wrong}", code=REFUSED)[1]
            self.assertRegex(said, r"skip = .*: '", wrong)

    def test_a_device_that_is_queued_a_step_ahead_skips_the_same(self):
        job = self.prepared()
        sets = ("--set", "data.skip=2, 4..6, 9", "--set", "train.steps=7", *MANY)
        self.run_longhaul("train", job, *sets, *self.folder_of("cpu"))
        self.run_longhaul("train", job, *sets, *self.folder_of("fake"), "--set", "device.plugin=fake", "--set", "device.delay=30us")
        self.assertEqual(self.cursor(7, "fake"), 12 * 4)
        self.assertEqual(checkpoint_digest(self.step_folder(7, "fake")), checkpoint_digest(self.step_folder(7, "cpu")))

    def test_another_batch_and_other_sequences_where_the_bits_need_not_be_the_same(self):
        job = self.prepared()
        self.run_longhaul("train", job, *MANY)
        self.assertEqual(self.cursor(6), 24)
        for key in ("batch=8", "sequence=16"):
            said = self.run_longhaul("train", job, "--resume", "6", "--set", "train." + key, code=REFUSED)[1]
            self.assertIn("set [train] same_bits = no to go on", said)
        free = ("--set", "train.same_bits=no", *MANY)
        self.run_longhaul("train", job, *free, "--resume", "6", "--set", "train.batch=8")
        self.assertEqual((self.cursor(9), self.cursor(12)), (24 + 3 * 8, 24 + 6 * 8))
        whole = checkpoint_digest(self.step_folder(12))
        # A resume of that goes on with the same data.
        self.run_longhaul("train", job, *free, "--resume", "9", "--set", "train.batch=8")
        self.assertEqual(checkpoint_digest(self.step_folder(12)), whole)
        # Half the sequence: twice as many of them are behind.
        self.run_longhaul("train", job, *free, "--resume", "6", "--set", "train.sequence=16")
        self.assertEqual(self.cursor(9), 48 + 3 * 4)
        rows = [r for r in read_json_lines(self.path("out", "metrics.jsonl")) if "learning_rate" in r]
        self.assertEqual([r["tokens"] for r in rows if r["step"] in (6, 9)], [6 * 4 * 32, 6 * 4 * 32 + 3 * 4 * 16])


if __name__ == "__main__":
    main()
