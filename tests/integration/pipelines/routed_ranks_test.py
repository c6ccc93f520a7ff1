"""Ranks whose experts have other numbers of tokens than each other's train as one rank does: one of the two sequences is a
token again and again, whose positions all go to the same experts, so that the others have none; the other is of all tokens. Without
the loss that balances experts, which is of a micro-batch, one rank has all sequences in one."""
import random
import shutil

from pipeline_case import TORTURE, PipelineCase, floats, logical, main, read_json_lines, write_pair

SEQUENCE, VOCAB, STEPS, EXPERTS = 32, 97, 5, 6
MODEL = {"plugin": "mixtral", "vocab": VOCAB, "blocks": 2, "hidden": 32, "ffn": 24, "heads": 4, "kv_heads": 2, "max_tokens": 64,
         "experts": EXPERTS, "balance": 0.02}
WAYS = [(2, "zero3", "full"), (2, "zero1", "none")]
if TORTURE:
    WAYS = [(ranks, "zero%d" % stage, how) for ranks in (2, 4) for stage in range(4) for how in ("none", "selective", "full")]


class RoutedRanks(PipelineCase):
    def job(self, ranks, optimizer, recompute, chosen, micro_batch):
        draw = random.Random(3)
        rows = [[7] * (SEQUENCE + 1) if i % 2 == 0 else [draw.randrange(VOCAB) for _ in range(SEQUENCE + 1)] for i in range(4)]
        write_pair(self.path("corpus"), [[row] for row in rows])
        return self.ini({"pipeline": {"name": "routed", "stages": "train", "folder": "out"},
                         "data": {"train": self.path("corpus"), "split": "100,0,0"},
                         "model": dict(MODEL, chosen=chosen, balanced="yes" if chosen == 2 else "no"),
                         "train": {"sequence": SEQUENCE, "batch": 4, "micro_batch": micro_batch, "steps": STEPS, "precision": "f32", "recompute": recompute},
                         "optimizer": {"plugin": optimizer, "rule": "rules:adamw", "decay": 0.1, "clip": 1.0, "learning_rate": "3e-3"},
                         "launch": {"ranks_per_node": ranks}, "device": {"plugin": "cpu", "threads": 1}}, "job.ini")

    def trained(self, *how):
        shutil.rmtree(self.path("out"), True)
        self.run_longhaul("train", self.job(*how))
        losses = [row["loss"] for row in read_json_lines(self.path("out", "metrics.jsonl")) if "loss" in row]
        self.assertEqual(len(losses), STEPS)
        return losses, {name: floats(data) for name, data in logical(self.step_folder(STEPS)).items()}

    def test_ranks_with_other_counts_train_as_one_does(self):
        for chosen, whole in ((1, 4), (2, 1)):
            expected, weights = self.trained(1, "zero0", "none", chosen, whole)
            for way in WAYS:
                with self.subTest(way=way, chosen=chosen):
                    losses, found = self.trained(*way, chosen, 1)
                    for a, b in zip(expected, losses):
                        self.assertAlmostEqual(a, b, delta=2e-6 * a)
                    self.assertEqual(set(weights), set(found))
                    for name in weights:
                        worst = max(abs(a - b) for a, b in zip(weights[name], found[name]))
                        self.assertLess(worst, 1e-3, name)


main()
