"""Phase dpo: PyTorch's losses and gradients of pairs, in any layout; chat files to pairs; what is refused."""
import json
import math
import os
import shutil

from pipeline_case import (DATA, REFUSED, SOURCE, PipelineCase, checkpoint_digest, floats, main,
                           read_json_lines, read_pair, tensors_of, write_pair)

GOLDEN = os.path.join(SOURCE, "tests", "golden")
DPO = os.path.join(GOLDEN, "phases", "dpo")
with open(os.path.join(DPO, "expected.json")) as golden_file:
    EXPECTED = json.load(golden_file)
SPLIT = {"split": "1,0,0"}


def documents(pairs):
    """A pair is two conversations with an empty sequence between them."""
    return [[p["prompt"], p["chosen"], [], p["prompt"], p["rejected"]] for p in pairs]


def margin_of(pair):
    (c, r), (qc, qr) = pair["policy_logp"], pair["reference_logp"]
    return (c - qc) - (r - qr)


def loss_of(margin):
    return math.log1p(math.exp(-EXPECTED["beta"] * margin))


class Golden(PipelineCase):
    """The policy is the model that is imported, the reference another one's checkpoint."""

    def setUp(self):
        super().setUp()
        write_pair(self.path("pairs"), documents(EXPECTED["pairs"]))
        policy = self.path("policy")
        os.mkdir(policy)
        shutil.copy(os.path.join(GOLDEN, "llama", "config.json"), policy)
        shutil.copy(os.path.join(DPO, "policy.safetensors"),
                    os.path.join(policy, "model.safetensors"))
        base = self.job("base", source=os.path.join(GOLDEN, "llama"), dpo={"reference": None},
                        pipeline={"stages": "import"})
        self.run_longhaul("run", base)

    def job(self, name="job", source=None, **changes):
        sections = {
            "pipeline": {"name": "dpo", "stages": "import train export", "folder": name},
            "import": {"from": source or self.path("policy")},
            "data": {"train": self.path("pairs"), "split": "1,0,0"},
            "model": {"plugin": "llama", "vocab": "from_import"},
            "train": {"phase": "dpo", "sequence": 64, "batch": 1, "steps": 1, "precision": "f32"},
            "dpo": {"beta": EXPECTED["beta"], "reference": self.path("base", "import", "checkpoints")},
            "optimizer": {"plugin": "zero0", "rule": "rules:sgd", "clip": 0, "learning_rate": 1},
            "rule.sgd": {"momentum": "0"},
            "device": {"plugin": "cpu", "threads": 1}}
        for section, keys in changes.items():
            sections.setdefault(section.replace("__", "."), {}).update(keys)
        return self.ini({k: v for k, v in sections.items() if any(v.values())}, name + ".ini")

    def steps(self, name):
        return [r for r in read_json_lines(self.path(name, "metrics.jsonl"))
                if "learning_rate" in r]

    def test_loss_and_gradients_are_pytorchs_in_any_layout(self):
        start = tensors_of(os.path.join(DPO, "policy.safetensors"))
        gradients = tensors_of(os.path.join(DPO, "gradients.safetensors"))
        margins = [margin_of(p) for p in EXPECTED["pairs"]]
        apart = {"data": {"packing": "no"}, "train": {"batch": 3, "sequence": 32}}
        for name, changes in (
                ("packed", {"train": {"batch": 2, "sequence": 48}}),
                ("alone", apart),
                ("passes", {"data": apart["data"], "train": dict(apart["train"], micro_batch=1),
                            "parallel": {"accumulation": "breadth"}}),
                ("zero1", dict(apart, launch={"ranks_per_node": 2}, optimizer={"plugin": "zero1"})),
                ("zero3", dict(apart, launch={"ranks_per_node": 2},
                               optimizer={"plugin": "zero3"}))):
            with self.subTest(name=name):
                self.run_longhaul("run", self.job(name, **changes))
                (row,) = self.steps(name)
                self.assertAlmostEqual(row["loss"], EXPECTED["loss"], delta=1e-5)
                self.assertEqual(row["pairs"], 3)
                self.assertAlmostEqual(row["accuracy"], sum(m > 0 for m in margins) / 3, delta=1e-9)
                self.assertAlmostEqual(row["margin"], sum(margins) / 3, delta=1e-4)
                # Plain descent at rate 1: what is gone is the gradient.
                written = tensors_of(self.path(name, "hf", "model.safetensors"))
                self.assertEqual(sorted(written), sorted(start))
                for tensor, (_, _, data) in written.items():
                    gone = [a - b for a, b in zip(floats(start[tensor][2]), floats(data))]
                    wanted = floats(gradients["grad." + tensor][2])
                    most = max(abs(g) for g in wanted)
                    self.assertLessEqual(max(abs(a - b) for a, b in zip(gone, wanted)),
                                         1e-3 * most + 1e-6, tensor)

    def test_each_pair_is_pytorchs_and_a_cut_one_is_a_shorter_one(self):
        for i, pair in enumerate(EXPECTED["pairs"]):
            write_pair(self.path("pairs"), documents([pair]))
            self.run_longhaul("run", self.job("one%d" % i))
            self.assertAlmostEqual(self.steps("one%d" % i)[0]["loss"], loss_of(margin_of(pair)),
                                   delta=1e-5)
        pair = EXPECTED["pairs"][0]  # 5 + 6 and 5 + 9 tokens: 10 and 13 places
        losses = []
        for name, sequence, kept in (("cut", 18, None), ("short", 64, (5, 5))):
            if kept is not None:
                pair = dict(pair, chosen=pair["chosen"][:kept[0]], rejected=pair["rejected"][:kept[1]])
                write_pair(self.path("pairs"), documents([pair]))
            else:
                write_pair(self.path("pairs"), documents([pair]))
            self.run_longhaul("run", self.job(name, data={"too_long": "cut"},
                                              train={"sequence": sequence}))
            losses.append(self.steps(name)[0]["loss"])
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-6)

    def test_an_adapter_compares_with_the_model_without_it(self):
        """The first loss is log 2, as nothing has changed; a reference of one's own says the same."""
        losses = {}
        for name, changes in (
                ("adapter", {"adapter__a": {"match": "blocks.*.wq", "rank": 4},
                             "dpo": {"reference": None}}),
                ("whole", {"dpo": {"reference": None}}),
                ("named", {"dpo": {"reference": "whole/import/checkpoints"}})):
            job = self.job(name, train={"steps": 4, "batch": 2, "sequence": 48},
                           optimizer={"rule": "rules:adamw", "learning_rate": 1e-2},
                           rule__sgd={"momentum": None}, **changes)
            self.run_longhaul("run", job)
            losses[name] = [r["loss"] for r in self.steps(name)]
            self.assertAlmostEqual(losses[name][0], math.log(2), delta=1e-6)
            self.assertLess(losses[name][-1], losses[name][0] - 1e-4)
            out, _ = self.run_longhaul("plan", job, "--json")
            planned = json.loads(out)
            held, (forward, backward) = planned["memory"], planned["parts"][:2]
            if name != "adapter":  # both models score the pairs, and the way there is made once more
                self.assertAlmostEqual(forward["flops"] / backward["flops"], 1.5, delta=0.05)
            self.assertEqual(held["reference"] > 0, name != "adapter")
            if name != "adapter":
                self.assertEqual(held["reference"], held["parameters"])
            out, _ = self.run_longhaul("check", job)
            self.assertEqual(" reference" in out.split("total")[0].split("rank")[-1],
                             name != "adapter")
        self.assertEqual(losses["whole"], losses["named"])

    def test_a_resumed_run_has_the_same_bits_and_another_reference_is_refused(self):
        changes = {"train": {"steps": 4, "batch": 2, "micro_batch": 1, "sequence": 32,
                             "evaluate_every": 2},
                   "data": {"packing": "no", "valid": self.path("pairs")},
                   "checkpoint": {"every": 2}}
        job = self.job("whole", optimizer={"rule": "rules:adamw", "learning_rate": 1e-3},
                       rule__sgd={"momentum": None}, **changes)
        self.run_longhaul("run", job)
        whole = checkpoint_digest(self.step_folder(4, "whole"))
        rows = read_json_lines(self.path("whole", "metrics.jsonl"))
        held_out = [r["evaluation"] for r in rows if "evaluation" in r]
        self.assertEqual([e["pairs"] for e in held_out], [3, 3, 3])
        self.assertLess(held_out[-1]["loss"], held_out[0]["loss"])
        # Refused: the newer checkpoint stays where it is.
        steps = sorted(os.listdir(self.path("whole", "checkpoints")))
        other = "dpo.reference=whole/import/checkpoints"
        _, said = self.run_longhaul("train", job, "--resume", "2", "--set", other, code=REFUSED)
        self.assertIn("dpo.reference = ", said)
        self.assertEqual(sorted(os.listdir(self.path("whole", "checkpoints"))), steps)
        # What the pairs are compared with, and how much it counts, is what training was made from.
        latest = self.path("base", "import", "checkpoints", "latest")
        for change in (["--set", other], ["--set", "dpo.beta=0.3"], []):
            self.run_longhaul("run", job, "--resume")
            _, said = self.run_longhaul("run", job)
            self.assertIn("-- train: nothing has changed", said)
            if not change:
                os.utime(latest, (1, 1))
            _, said = self.run_longhaul("run", job, *change, code=REFUSED)
            self.assertNotIn("-- train: nothing has changed", said)
        shutil.rmtree(self.step_folder(4, "whole"))
        _, said = self.run_longhaul("train", job, "--resume", "--set", "dpo.reference=whole/import/checkpoints",
                                    code=REFUSED)
        self.assertIn("dpo.reference = ", said)
        _, said = self.run_longhaul("train", job, "--resume", "--set", "dpo.beta=0.3", code=REFUSED)
        self.assertIn("dpo.beta = ", said)
        self.run_longhaul("train", job, "--resume")
        self.assertEqual(checkpoint_digest(self.step_folder(4, "whole")), whole)
        out, _ = self.run_longhaul("eval", job, "--json")
        found = json.loads(out)
        self.assertEqual(found["pairs"], 3)
        self.assertAlmostEqual(found["loss"], held_out[-1]["loss"], delta=1e-6)
        self.run_longhaul("generate", job, "--ids", "1,2,3", "--tokens", "2")

    def test_what_check_prints_is_a_job_again(self):
        for phase in ("dpo", "sft"):
            dpo = {"beta": None, "reference": None} if phase == "sft" else {}
            out, _ = self.run_longhaul("check", self.job(phase, train={"phase": phase}, dpo=dpo))
            self.assertRegex(out, r"\ndocuments += apart +; \[train\] phase\n")
            again, _ = self.run_longhaul("check", self.write("again.ini", out))
            self.assertRegex(again, r"\ndocuments += apart +; .*again.ini:")

    def test_what_does_not_fit_is_refused(self):
        for made, phase, sentence in (
                ([[[1, 2], [3]]], "dpo", "document 0 has no two answers to choose from; [train] "
                                         "phase = dpo expects a set that prepare made with a [chat]"),
                ([[[1], [2], [], [1, 3]]], "dpo", "document 0 has no two answers"),
                ([[[1], [2], [], [1], [3], [], [1], [4]]], "dpo", "document 0 has no two answers"),
                ([[[1], [2], [], [1], [3]]], "sft", "document 0 has two answers to choose from; "
                                                    "[train] phase = sft expects conversations"),
                ([[[1] * 40, [2], [], [1], [3] * 40]], "dpo",
                 "document 0 has 82 tokens, a sequence of [train] sequence = 64 takes 66")):
            write_pair(self.path("pairs"), made)
            with self.subTest(sentence=sentence):
                of_sft = {"beta": None, "reference": None} if phase == "sft" else {}
                _, said = self.run_longhaul("run", self.job("bad", train={"phase": phase},
                                                            dpo=of_sft), code=REFUSED)
                self.assertIn(sentence, said)
                self.assertFalse(os.path.exists(self.path("bad", "checkpoints")))
        write_pair(self.path("pairs"), documents(EXPECTED["pairs"]))
        _, said = self.run_longhaul("run", self.job("bad", dpo={"reference": "nowhere"}),
                                    code=REFUSED)
        self.assertRegex(said, r"bad.ini:\d+: reference = .*nowhere: not there")
        _, said = self.run_longhaul("run", self.job("bad", train={"phase": "sft"}, dpo={"beta": 0.2, "reference": None}), code=REFUSED)
        self.assertRegex(said, r"bad.ini:\d+: beta = 0.2: \[train\] phase is sft; expected dpo")
        for changes, sentence in (
                ({"dpo": {"beta": 0}}, r"bad.ini:\d+: beta = 0: no pair would count"),
                ({"adapter__a": {"match": "blocks.*.wq", "rank": 4}},
                 r"bad.ini:\d+: reference = .*: a model with \[adapter.a\] is compared with itself"),
                ({"pipeline": {"stages": "eval"}, "dpo": {"reference": "nowhere"}},
                 r"bad.ini:\d+: reference = .*nowhere: not there")):
            with self.subTest(sentence=sentence):
                _, said = self.run_longhaul("check", self.job("bad", **changes), code=REFUSED)
                self.assertRegex(said, sentence)
        # A reference of another shape.
        other = self.job("other", source=os.path.join(GOLDEN, "llama-tied-scaled-rope"),
                         pipeline={"stages": "import"}, dpo={"reference": None})
        self.run_longhaul("run", other)
        _, said = self.run_longhaul("run", self.job("bad", dpo={"reference": "other/import/checkpoints"}),
                                    code=REFUSED)
        self.assertRegex(said, "other/import/checkpoints.*(the model has|which the model needs|no place)")


class Chat(PipelineCase):
    PAIRS = [
        {"prompt": "Once upon a time", "chosen": " there was a dog.", "rejected": " a"},
        {"prompt": [{"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Who was Lily?"}],
         "chosen": [{"role": "assistant", "content": "A little girl."}],
         "rejected": [{"role": "assistant", "content": "I do not know."}]},
        {"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
                    {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Tom."}],
         "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
                      {"role": "user", "content": "Who?"},
                      {"role": "assistant", "content": "Nobody at all."}]},
    ]

    def job(self, lines=None, **changes):
        text = "".join(json.dumps(c) + "\n" for c in self.PAIRS) if lines is None else lines
        changes.setdefault("prepare", {}).update(
            {"input": self.write("pairs.jsonl", text), "prepend": "none", "append": "none"})
        changes.setdefault("chat", {"format": "plain", "pairs": "yes"})
        changes.setdefault("data", SPLIT)
        changes.setdefault("dpo", {"reference": "start/checkpoints"})
        train = {"phase": "dpo", "sequence": 128, "batch": 2, "micro_batch": 1, "steps": 12}
        train.update(changes.get("train", {}))
        changes["train"] = train
        return self.small_job(**changes)

    def test_pairs_are_prepared_and_preferred(self):
        start = self.small_job(pipeline={"folder": "start"}, train={"steps": 0}, model={
            "max_tokens": 128})
        self.run_longhaul("run", start)
        job = self.job(model={"max_tokens": 128})
        self.run_longhaul("run", job)
        made = read_pair(self.path("out", "corpus"))
        # What both begin with is no answer, replies in it included.
        self.assertEqual([[len(part) > 0 for part in d] for d in made],
                         [[True, True, False, True, True]] * 3)
        for d in made:
            self.assertEqual(d[0], d[3])
            self.assertNotEqual(d[1], d[4])
        rows = [r for r in read_json_lines(self.path("out", "metrics.jsonl"))
                if "learning_rate" in r]
        self.assertAlmostEqual(rows[0]["loss"], math.log(2), delta=1e-6)
        self.assertEqual(rows[-1]["accuracy"], 1)
        self.assertLess(rows[-1]["loss"], math.log(2) - 1e-3)

    def test_bad_lines_have_one_sentence(self):
        good = json.dumps(self.PAIRS[0])

        def line(**changes):
            return json.dumps({k: v for k, v in dict(self.PAIRS[0], **changes).items()
                               if v is not None})
        tool = [{"role": "tool", "content": "x"}]
        cases = (
            (line(rejected=" there was a dog."), "'chosen' and 'rejected' are equal, the same "),
            (line(rejected=None), "'rejected' is not there; expected 'chosen' and 'rejected'"),
            (line(prompt=None), "'prompt' is not there, and 'chosen' is no list"),
            (line(rejected=3), "'rejected' is 3, a text was expected"),
            (line(rejected=tool), "message 2: role 'tool' found, expected system, user or"),
            (line(chosen=[{"role": "user", "content": "x"}]),
             "'chosen' begins with a message of role 'user', and 'prompt' is not what both answers"),
            (line(chosen=[]), "'chosen' is [], a list of messages was expected"),
            (json.dumps(dict(self.PAIRS[2], rejected=self.PAIRS[2]["chosen"][:2])),
             "'rejected' has no answer of its own"),
            ('{"prompt": "a"', "at byte"),
        )
        for text, sentence in cases:
            with self.subTest(line=text):
                _, said = self.run_longhaul("prepare", self.job(good + "\n" + text + "\n"),
                                            code=REFUSED)
                self.assertIn("pairs.jsonl:2: ", said)
                self.assertIn(sentence, said)
                self.assertFalse(os.path.exists(self.path("out", "corpus.idx")))

    def test_jobs_that_do_not_fit_are_refused(self):
        for changes, sentence in (
                ({"chat": {"format": "plain"}}, "dpo: [chat] pairs = no prepares conversations; "
                                                "expected sft"),
                ({"train": {"phase": "sft"}}, "sft: [chat] pairs = yes prepares pairs of answers; "
                                              "expected dpo"),
                ({"chat": {"pairs": "yes"}}, "yes: [chat] format is none"),
                ({"data": {"documents": "joined"}}, "joined: [train] phase is dpo; expected apart"),
                ({"dpo": {"beta": 0.1}}, "a new model has nothing to compare with")):
            with self.subTest(**changes):
                _, said = self.run_longhaul("check", self.job(**changes), code=REFUSED)
                self.assertIn(sentence, said)


main()
