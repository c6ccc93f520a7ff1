"""Which checkpoints stay: the newest, those of every so many steps, the best by its held-out loss."""
import os

from pipeline_case import REFUSED, PipelineCase, main, read_json_lines


class Keep(PipelineCase):
    def kept(self, **checkpoint):
        """Steps that are left of a training of 40, saved and evaluated at every other one."""
        for ranks in (1, 2):
            job = self.small_job(train={"steps": 40, "evaluate_every": 2, "evaluate_batches": 1}, launch={"ranks_per_node": ranks},
                                 checkpoint=dict({"every": 2, "keep": 2}, **checkpoint),
                                 # A rate that rises until it learns no more: the best is not the last.
                                 optimizer={"learning_rate": "warmup_cosine(step, peak=8, warmup=400, total=1000)", "clip": 0})
            self.run_longhaul("prepare", job)
            self.run_longhaul("train", job)
            steps = sorted(int(name[5:]) for name in os.listdir(self.path("out", "checkpoints")) if name.startswith("step-"))
            losses = {row["step"]: row["evaluation"]["loss"] for row in read_json_lines(self.path("out", "metrics.jsonl"))
                      if "evaluation" in row and row["step"] > 0}
            self.run_longhaul("verify", self.path("out", "checkpoints"))
            os.rename(self.path("out"), self.path("out%d%s" % (ranks, "".join(sorted(checkpoint)))))
            yield steps, min(losses, key=lambda step: (losses[step], step))

    def test_the_newest_alone(self):
        for steps, _ in self.kept():
            self.assertEqual(steps, [38, 40])

    def test_those_of_every_so_many_steps(self):
        for steps, _ in self.kept(keep_every=10):
            self.assertEqual(steps, [10, 20, 30, 38, 40])

    def test_the_best(self):
        for steps, best in self.kept(keep_best="yes"):
            self.assertLess(best, 38)
            self.assertEqual(steps, [best, 38, 40])

    def test_both(self):
        for steps, best in self.kept(keep_best="yes", keep_every=20):
            self.assertEqual(steps, sorted({best, 20, 38, 40}))

    def test_the_best_wants_an_evaluation(self):
        job = self.small_job(checkpoint={"keep_best": "yes"})
        _, said = self.run_longhaul("check", job, code=REFUSED)
        self.assertIn("keep_best = yes: nothing is evaluated; [train] evaluate_every was expected", said)


if __name__ == "__main__":
    main()
