"""The time of day that jumps by a year, either way, at each look: two ranks meet, train and save as if nothing were."""
import os
import time
import unittest

from pipeline_case import PipelineCase, checkpoint_digest, main

PRELOAD = os.path.join(os.environ.get("LONGHAUL_TEST_FOLDER", ""), "clock_jumps.so")


@unittest.skipIf(os.environ.get("LONGHAUL_SANITIZED") == "1", "a sanitizer must come first")
class Clock(PipelineCase):
    # Waits that an hour could end at once, or a year could draw out, are seconds here.
    CHANGES = {"train": {"steps": 8, "micro_batch": 2}, "launch": {"ranks_per_node": 2},
               "checkpoint": {"every": 2, "keep": 100, "deadline": "20s", "patience": "5s"}}

    def train(self, job, folder, env):
        sets = ["--set", "pipeline.folder=" + folder]
        self.link_data(folder)
        before = time.monotonic()
        said = "".join(self.run_longhaul("train", job, *sets, env=env))
        self.assertNotIn("was not saved", said)
        self.assertNotIn("given up", said)
        return time.monotonic() - before

    def test_a_year_either_way_changes_nothing(self):
        job = self.small_job(**self.CHANGES)
        self.run_longhaul("prepare", job)
        still = self.train(job, "still", None)
        took = self.train(job, "jumps", dict(os.environ, LD_PRELOAD=PRELOAD))
        self.assertLess(took, still + 20)
        for step in (2, 4, 6, 8):
            self.assertEqual(checkpoint_digest(self.step_folder(step, "still")),
                             checkpoint_digest(self.step_folder(step, "jumps")))
        # It did jump: what only people read, the times in the names of events, tells so.
        now = time.time()
        stamps = [int(n.split(".")[3]) for n in os.listdir(self.path("jumps", "events"))]
        self.assertTrue(all(abs(s - now) > 300 * 86400 for s in stamps), stamps)


main()
