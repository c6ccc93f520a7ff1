"""Checkpoints of earlier builds load: each folder of tests/data/checkpoints was written by the build that it is named after, and
a run that goes on from it is the run that went on there.

    LONGHAUL_BINARY=... old_checkpoint_test.py --write NAME    writes such a folder with that build

Kernels of the reference device are plain doubles, so figures are compared closely on any processor, and bits where this build
comes to those of the folder by itself."""
import json
import os
import shutil
import sys

from pipeline_case import SOURCE, PipelineCase, logical, main, set_flags

WRITTEN = os.path.join(SOURCE, "tests", "data", "checkpoints")
STEP, STEPS = 2, 4  # that was saved, and to which the run went on


class OldCheckpoint(PipelineCase):
    def prepared(self):
        """Two ranks that cut gradients, masters and states: each tensor in parts, whole ones beside them."""
        job = self.small_job(
            model={"hidden": 8, "ffn": 16, "heads": 2, "kv_heads": None, "max_tokens": 16, "tied": "yes"},
            train={"sequence": 16, "batch": 8, "micro_batch": 2, "steps": STEPS, "precision": "bf16"},
            optimizer={"plugin": "zero2"}, checkpoint={"every": STEP}, launch={"ranks_per_node": 2},
            device={"plugin": "reference", "threads": None})
        self.run_longhaul("prepare", job)
        return job

    def train(self, job, folder, *sets, resume=None):
        self.link_data(folder)
        if resume is not None:
            shutil.copytree(resume, self.step_folder(STEP, folder))
        self.run_longhaul("train", job, *(["--resume"] if resume else []), *set_flags("pipeline.folder=" + folder, *sets))
        return [row for row in self.curve(folder) if row[0] > STEP]

    def write_folder(self, name):
        job = self.prepared()
        curve = self.train(job, "out2")
        shutil.rmtree(os.path.join(WRITTEN, name), ignore_errors=True)
        shutil.copytree(self.step_folder(STEP, "out2"), os.path.join(WRITTEN, name, os.path.basename(self.step_folder(STEP))))
        with open(os.path.join(WRITTEN, name, "curve.json"), "w") as f:
            f.write(json.dumps(curve) + "\n")

    def assert_near(self, curve, expected, most, what):
        self.assertEqual([row[0] for row in curve], [row[0] for row in expected], what)
        for row, like in zip(curve, expected):
            for a, b in zip(row[1:], like[1:]):
                self.assertLess(abs(a - b), most * abs(b), (what, curve, expected))

    def test_a_run_goes_on_from_what_an_earlier_build_saved(self):
        job = self.prepared()
        again = self.train(job, "again")
        names = sorted(os.listdir(WRITTEN))
        self.assertTrue(names)
        for name in names:
            saved = os.path.join(WRITTEN, name, os.path.basename(self.step_folder(STEP)))
            with open(os.path.join(WRITTEN, name, "curve.json")) as f:
                expected = json.load(f)
            self.run_longhaul("verify", saved)
            curve = self.train(job, name, resume=saved)
            self.assert_near(curve, expected, 1e-5, name)
            if logical(self.step_folder(STEP, "again")) == logical(saved):
                self.assertEqual(curve, again, name)
                self.assertEqual(logical(self.step_folder(STEPS, name)), logical(self.step_folder(STEPS, "again")), name)
            alone = self.train(job, name + "-alone", "launch.ranks_per_node=1", "optimizer.plugin=zero0", "train.same_bits=no",
                               resume=saved)
            self.assert_near(alone, expected, 1e-3, name)


if __name__ == "__main__":
    if "--write" in sys.argv:
        case = OldCheckpoint("write_folder")
        case.setUp()
        try:
            case.write_folder(sys.argv[-1])
        finally:
            case.doCleanups()
    else:
        main()
