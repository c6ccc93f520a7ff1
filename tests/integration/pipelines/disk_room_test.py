"""What `check` and `plan` say that checkpoints take on disk is what they take."""
import json
import os
import re

from pipeline_case import PipelineCase, main, set_flags


class DiskRoom(PipelineCase):
    def taken(self, step):
        folder = self.step_folder(step)
        return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith(".safetensors"))

    def test_as_much_as_a_checkpoint_takes(self):
        of_sites = set_flags("comm.border=int8", "site.tokyo.hosts=localhost:2", "site.osaka.hosts=localhost:1")
        for ranks, optimizer, rule, precision, more in ((1, "zero0", "rules:adamw", "f32", ()), (2, "zero3", "rules:adamw", "bf16", ()),
                                                        (1, "zero0", "rules:sgd", "bf16", ()), (3, "zero1", "rules:sgd", "bf16", of_sites),
                                                        (4, "zero1", "rules:sgd", "bf16", of_sites)):
            job = self.small_job(train={"steps": 2, "precision": precision}, launch={} if more else {"ranks_per_node": ranks},
                                 **({"group__still": {"match": "blocks.*", "frozen": "yes"}} if ranks == 4 else {}),
                                 checkpoint={"keep": 7, "folder": "kept"},
                                 optimizer={"plugin": optimizer, "rule": rule, "learning_rate": "1e-3"})
            self.run_longhaul("prepare", job)
            plan = json.loads(self.run_longhaul("plan", job, *more, "--json")[0])["checkpoints"]
            room = os.statvfs(self.folder)
            self.assertEqual(plan["at_once"], 8)
            self.assertAlmostEqual(plan["free"], room.f_bavail * room.f_frsize, delta=1 << 30)
            line = r"checkpoints: \S+ KiB each, 8 at once: \S+ [KM]iB, of \S+ [KMGT]iB free in %s\n" % self.path("out", "kept")
            self.assertRegex(self.run_longhaul("plan", job, *more)[0], line)
            self.assertRegex(self.run_longhaul("check", job, *more)[0], "; " + line)
            self.run_longhaul("train", job, *more)
            os.rename(self.path("out", "kept"), self.path("out", "checkpoints"))
            taken = self.taken(2)
            # Headers of the files, and places in memory that are rounded up.
            self.assertLess(abs(plan["bytes"] - taken), 0.05 * taken, (plan["bytes"], taken))
            os.rename(self.path("out"), self.path("out%d%s" % (ranks, rule[-4:])))

    def test_what_is_kept_for_good_is_counted(self):
        """Against the saves of a whole training, one after the other."""
        self.run_longhaul("prepare", self.small_job())
        for steps, every, keep, keep_every in ((100, 4, 2, 6), (101, 4, 2, 6), (100, 5, 3, 20), (30, 7, 2, 1), (12, 4, 3, 4), (50, 0, 2, 5)):
            kept, most = [], 0
            for step in range(1, steps + 1):
                if step == steps or (every > 0 and step % every == 0):
                    kept.append(step)
                    most = max(most, len(kept))
                    kept = [s for n, s in enumerate(kept) if n >= len(kept) - keep or s % keep_every == 0]
            job = self.small_job(train={"steps": steps, "evaluate_every": 1},
                                 checkpoint={"every": every, "keep": keep, "keep_every": keep_every, "keep_best": "yes"})
            plan = json.loads(self.run_longhaul("plan", job, "--json")[0])["checkpoints"]
            self.assertEqual(plan["at_once"], max(most, keep + 1) + 1, (steps, every, keep, keep_every))

    def test_a_disk_that_is_too_small_is_a_warning(self):
        for keep in (1000000000000, (1 << 64) - 1):
            job = self.small_job(checkpoint={"keep": keep})
            _, said = self.run_longhaul("check", job)
            self.assertRegex(said, r"warning: \[checkpoint\] keep = %d: there is no room for so many\n" % keep)
        job = self.small_job(train={"evaluate_every": 1}, checkpoint={"keep": 1000000000000, "keep_every": 5, "keep_best": "yes"})
        _, said = self.run_longhaul("check", job)
        self.assertRegex(said, r"warning: \[checkpoint\] keep = 1000000000000, keep_every = 5, keep_best = yes: there is no room for so many\n")


if __name__ == "__main__":
    main()
