"""[group.*] rule: matrices by Muon or Adafactor, the rest by the job's rule; over ranks and resumes."""
import os

from pipeline_case import (REFUSED, PipelineCase, add_plugin, checkpoint_digest, logical, main,
                           read_json_lines)


class Rules(PipelineCase):
    MATRICES = {"match": "blocks.*.w*", "rule": "rules:muon", "rate": 4}

    def job(self, **changes):
        changes.setdefault("group__matrices", self.MATRICES)
        changes.setdefault("train", {"steps": 8})
        return self.small_job(**changes)

    def losses(self, folder="out"):
        return [row["loss"] for row in read_json_lines(self.path(folder, "metrics.jsonl"))
                if "learning_rate" in row]

    def train(self, job, *args, folder="out", **more):
        self.run_longhaul("train", job, "--set", "pipeline.folder=" + self.path(folder), "--set",
                          "data.train=" + self.path("out", "corpus"), *args, **more)

    def names(self, step, folder="out"):
        return checkpoint_digest(self.step_folder(step, folder))[1]

    def test_each_group_has_the_states_of_its_rule(self):
        job = self.job()
        self.run_longhaul("prepare", job)
        self.train(job)
        names = self.names(8)
        for matrix in ("wq", "wk", "wv", "wo"):
            self.assertTrue(any("muon_momentum/blocks.0" in n and matrix in n for n in names), names)
            self.assertFalse(any("exp_avg/blocks.0" in n and n.endswith(matrix) for n in names))
        self.assertTrue(any(n.startswith("exp_avg/embed") for n in names), names)
        self.assertFalse(any("muon_momentum/embed" in n or "muon_momentum/head" in n for n in names))
        # It learns, and otherwise than without.
        muon = self.losses()
        self.assertLess(muon[-1], muon[0] - 0.1)
        self.train(job, "--set", "group.matrices.rule=rules:adafactor", folder="adafactor")
        names = self.names(8, "adafactor")
        self.assertTrue(any("row_moment/blocks.1" in n for n in names), names)
        self.assertTrue(any("column_moment/blocks.1" in n for n in names), names)
        adafactor = self.losses("adafactor")
        self.assertEqual(adafactor[0], muon[0])
        self.assertLess(adafactor[-1], adafactor[0] - 0.1)
        self.assertNotEqual(adafactor[-1], muon[-1])

    def test_any_stage_and_a_resume_give_the_same_bits(self):
        job = self.job(launch={"ranks_per_node": 2}, train={"steps": 4})
        self.run_longhaul("prepare", job)
        for rule in ("muon", "adafactor"):
            digests = set()
            rules = ["--set", "group.matrices.rule=rules:" + rule]
            for stage in ("zero0", "zero1", "zero3"):
                folder = rule + stage
                self.run_longhaul("run", job, "--set", "pipeline.stages=train", "--set",
                                  "pipeline.folder=" + self.path(folder), "--set",
                                  "data.train=" + self.path("out", "corpus"), "--set",
                                  "optimizer.plugin=" + stage, *rules)
                digests.add(tuple(self.losses(folder)))
            self.assertEqual(len(digests), 1, rule)
            one = ["--set", "launch.ranks_per_node=1"] + rules
            self.train(job, *one, folder=rule + "whole")
            self.train(job, "--set", "train.steps=2", *one, folder=rule + "half")
            self.train(job, "--resume", *one, folder=rule + "half")
            self.assertEqual(checkpoint_digest(self.step_folder(4, rule + "whole")),
                             checkpoint_digest(self.step_folder(4, rule + "half")))

    def test_experts_are_turned_one_by_one(self):
        """Stacks of five matrices, wherever a stage of ZeRO cuts them."""
        job = self.job(model={"plugin": "mixtral", "experts": 5, "chosen": 2}, train={"steps": 4},
                       launch={"ranks_per_node": 2})
        self.run_longhaul("prepare", job)
        for stage in ("zero0", "zero3"):
            self.train(job, "--set", "optimizer.plugin=" + stage, folder=stage)
            for matrix in ("w_gate", "w_up", "w_down"):
                self.assertTrue(any("muon_momentum/blocks.0" in n and n.endswith(matrix)
                                    for n in self.names(4, stage)), matrix)
        self.assertEqual(self.losses("zero0"), self.losses("zero3"))
        self.assertLess(self.losses("zero0")[-1], self.losses("zero0")[0])

    def test_a_rule_is_told_the_name_of_its_parameter(self):
        plugins = add_plugin(self, "parts", "test_hooks")
        job = self.small_job(train={"steps": 2}, checkpoint={"every": 1},
                             optimizer={"rule": "test_hooks:spare", "learning_rate": "0.1"})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job, "--plugins", plugins)
        one, two = (logical(self.step_folder(step)) for step in (1, 2))
        self.assertEqual([name for name in one if one[name] == two[name]], ["embed"])

    def test_what_does_not_fit_is_refused(self):
        job = self.job()
        self.run_longhaul("prepare", job)
        for key, value, sentence in (
                ("group.matrices.match", "blocks.*", "rule 'muon' of parameter 'blocks.0."),
                ("group.matrices.rule", "muon", "rule = muon: expected plugin:rule"),
                ("group.matrices.rule", "rules:muom", "muom"),
                ("rule.lion.beta1", "0.5", "the job's rule is rules:adamw, rules:muon")):
            with self.subTest(key=key, value=value):
                _, said = self.run_longhaul("check", job, "--set", key + "=" + value, code=REFUSED)
                self.assertIn(sentence, said)
        _, said = self.run_longhaul("check", job, "--set", "group.matrices.match=blocks.*",
                                    code=REFUSED)
        self.assertIn("muon is for matrices, found a vector of 32", said)
        said, _ = self.run_longhaul("check", job, "--set", "rule.muon.momentum=0.9")
        self.assertIn("[rule.muon]", said)
        self.assertIn("[rule.adamw]", said)
        self.run_longhaul("train", job, "--set", "train.steps=1")
        _, said = self.run_longhaul("train", job, "--resume", "--set",
                                    "group.matrices.rule=rules:adafactor", code=REFUSED)
        self.assertIn("was made with 'group.matrices.rule = rules:muon'", said)
        self.assertFalse(os.path.exists(self.step_folder(8)))


main()
