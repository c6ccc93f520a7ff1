"""The demo learns as PyTorch does: the losses of its first steps are those that tests/reference/demo.py
stored, and so is the loss on held-out data at the end (LONGHAUL_TORTURE=1 trains to the end)."""
import json
import os
import unittest

from pipeline_case import SOURCE, TORTURE, PipelineCase, main, set_flags

STEPS = 60 if TORTURE else 30
WITHIN = 0.02
# Two threads would wait for each other at each kernel while tests beside this one have a processor.
THREADS = "device.threads=1"


class DemoReference(PipelineCase):
    def setUp(self):
        super().setUp()
        with open(os.path.join(SOURCE, "tests", "reference", "demo.json")) as f:
            self.stored = json.load(f)
        self.job = os.path.join(SOURCE, "examples", "shakespeare.ini")
        self.sets = set_flags("pipeline.folder=" + self.path("out"), THREADS)
        self.run_longhaul("prepare", self.job, *self.sets)

    def losses(self):
        path = self.path("out", "metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path) as f:
            whole = [line for line in f if line.endswith("\n")]
        rows = [json.loads(line) for line in whole]
        return [row["loss"] for row in rows if "learning_rate" in row]

    def assert_near(self, ours, theirs, what):
        self.assertLess(abs(ours - theirs), WITHIN * theirs, what)

    def assert_first_steps(self):
        losses = self.losses()
        self.assertGreaterEqual(len(losses), STEPS)
        for step, (ours, theirs) in enumerate(zip(losses[:STEPS], self.stored["train_loss"]["pytorch"])):
            self.assert_near(ours, theirs, "step %d" % (step + 1))

    @unittest.skipIf(TORTURE, "the whole training has these steps")
    def test_the_first_steps_are_those_of_pytorch(self):
        # The order of the data depends on how many steps there are: a whole run, cut short.
        process = self.start("train", self.job, *self.sets, "--set", "train.evaluate_every=0")
        self.wait_for(lambda: len(self.losses()) >= STEPS, process, seconds=900, pause=0.1)
        self.kill(process)
        self.assert_first_steps()

    def test_the_stored_losses_on_held_out_data_agree(self):
        loss = self.stored["held_out_loss"]
        self.assert_near(loss["ours"], loss["pytorch"], "held-out loss")
        self.assertEqual(*self.stored["held_out_tokens"].values())
        if not TORTURE:
            return
        self.run_longhaul("train", self.job, *self.sets)
        self.assert_first_steps()
        out, _ = self.run_longhaul("eval", self.job, *self.sets, "--json")
        self.assert_near(json.loads(out)["loss"], loss["pytorch"], "held-out loss")


main()
