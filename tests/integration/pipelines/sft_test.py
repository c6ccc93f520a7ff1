"""Phase sft: PyTorch's losses of answers, packed or not; chat files to token files; what is refused."""
import json
import os

from pipeline_case import DATA, REFUSED, SOURCE, PipelineCase, main, read_json_lines, read_pair, set_flags, write_pair

GOLDEN = os.path.join(SOURCE, "tests", "golden")
with open(os.path.join(GOLDEN, "phases", "sft", "expected.json")) as golden_file:
    EXPECTED = json.load(golden_file)


class Golden(PipelineCase):
    def first_step(self, name, *sets):
        job = self.ini({
            "pipeline": {"name": "sft", "stages": "import train", "folder": name},
            "import": {"from": os.path.join(GOLDEN, "llama")},
            "data": {"train": self.path("answers"), "split": "1,0,0"},
            "model": {"plugin": "llama", "vocab": "from_import"},
            "train": {"phase": "sft", "sequence": 32, "batch": 1, "steps": 1, "precision": "f32"},
            "optimizer": {"plugin": "zero0", "rule": "rules:sgd", "clip": 0, "learning_rate": 0},
            "device": {"plugin": "cpu", "threads": 1}}, name + ".ini")
        more = set_flags(*sets)
        self.run_longhaul("run", job, *more)
        (row,) = [r for r in read_json_lines(self.path(name, "metrics.jsonl"))
                  if "learning_rate" in r]
        return row["loss"], row["gradient_norm"]

    def test_losses_are_pytorchs_packed_or_not(self):
        write_pair(self.path("answers"),
                   [[d["ids"][:d["prompt_tokens"]], d["ids"][d["prompt_tokens"]:]]
                    for d in EXPECTED["documents"]])
        loss, norm = self.first_step("packed")
        self.assertAlmostEqual(loss, EXPECTED["mean_loss"], delta=1e-5)
        for name, sets in (("alone", ["data.packing=no", "train.batch=4"]),
                           ("passes", ["data.packing=no", "train.batch=4", "train.micro_batch=1"]),
                           ("short", ["train.sequence=12", "train.batch=3"]),
                           ("ranks", ["data.packing=no", "train.batch=4",
                                      "launch.ranks_per_node=2", "optimizer.plugin=zero2"])):
            with self.subTest(name=name):
                other, other_norm = self.first_step(name, *sets)
                self.assertAlmostEqual(other, loss, delta=1e-5)
                self.assertAlmostEqual(other_norm, norm, delta=1e-5 * norm)

    def test_each_document_is_pytorchs(self):
        for i, d in enumerate(EXPECTED["documents"]):
            write_pair(self.path("answers"), [[d["ids"][:d["prompt_tokens"]],
                                               d["ids"][d["prompt_tokens"]:]]])
            loss, _ = self.first_step("one%d" % i)
            self.assertAlmostEqual(loss, d["loss_sum"] / d["answer_tokens"], delta=1e-5)


class Chat(PipelineCase):
    CHATS = [
        {"messages": [{"role": "system", "content": "Be brief."},
                      {"role": "user", "content": "Who was Lily?"},
                      {"role": "assistant", "content": "A little girl."},
                      {"role": "user", "content": "And Tom?"},
                      {"role": "assistant", "content": "Her friend."}]},
        {"prompt": "Once upon a time", "answer": " there was a dog."},
        {"messages": [{"role": "user", "content": "Tell me a story."},
                      {"role": "assistant", "content": "The sun was up and the birds sang."}]},
    ]

    def job(self, lines=None, **changes):
        text = "".join(json.dumps(c) + "\n" for c in self.CHATS) if lines is None else lines
        changes.setdefault("prepare", {}).update(
            {"input": self.write("chat.jsonl", text), "prepend": "none", "append": "none"})
        changes.setdefault("chat", {"format": "chatml"})
        changes.setdefault("data", {"split": "1,0,0"})
        train = {"phase": "sft", "sequence": 64, "batch": 2, "micro_batch": 1, "steps": 12}
        train.update(changes.get("train", {}))
        changes["train"] = train
        return self.small_job(**changes)

    def test_answers_are_parts_of_their_own_and_are_learnt(self):
        said = self.run_longhaul("run", self.job(data={"split": "1,0,0", "too_long": "cut"}))
        self.assertIn("the tokenizer has no token '<|im_start|>'", said[1])
        documents = read_pair(self.path("out", "corpus"))
        self.assertEqual([len(d) for d in documents], [5, 3, 3])
        with open(self.path("out", "prepare.json")) as f:
            self.assertEqual(json.load(f)["chat"], "chatml")
        losses = [r["loss"] for r in read_json_lines(self.path("out", "metrics.jsonl"))
                  if "learning_rate" in r]
        self.assertLess(losses[-1], losses[0] - 0.05)
        # What stands there is the text, and an answer ends with its mark.
        out, _ = self.run_longhaul("verify", self.path("out"))
        job = self.job(chat={"format": "plain"}, data={"split": "1,0,0"})
        self.run_longhaul("prepare", job)
        plain = read_pair(self.path("out", "corpus"))
        self.assertEqual([len(d) for d in plain], [4, 2, 2])
        self.assertEqual(plain[1][1][-1], 2)  # </s>

    def test_any_number_of_workers_makes_the_same_files(self):
        lines = "".join(json.dumps(c) + "\n" for c in self.CHATS * 4000)
        made = set()
        for workers in (1, 3):
            job = self.job(lines, prepare={"workers": workers})
            self.run_longhaul("prepare", job)
            with open(self.path("out", "prepare.json")) as f:
                pair = json.load(f)["pair"]
            made.add(pair["bin"]["sha256"] + pair["idx"]["sha256"])
        self.assertEqual(len(made), 1)

    def test_bad_lines_have_one_sentence(self):
        def messages(*rows):
            return json.dumps({"messages": [{"role": r, "content": c} for r, c in rows]})
        good = json.dumps(self.CHATS[1])
        cases = (
            (messages(("user", "a"), ("tool", "b")),
             "message 2: role 'tool' found, expected system, user or assistant"),
            (messages(("user", "a"), ("system", "b")), "message 2: role 'system' found"),
            (messages(("user", "a")), "no message is the assistant's"),
            (messages(("user", "</s>"), ("assistant", "b")), None),
            ('{"messages": []}', "'messages' is [], a list of messages was expected"),
            ('{"messages": [{"role": "user"}]}', "message 1: 'content' is nothing"),
            ('{"text": "a"}', "neither 'messages' nor 'prompt' is there"),
            ('{"prompt": "a", "answer": 3}', "'answer' is 3, a text was expected"),
            ('{"prompt": "a"', "at byte"),
        )
        for line, sentence in cases:
            with self.subTest(line=line):
                job = self.job(good + "\n" + line + "\n", chat={"format": "zephyr"})
                _, said = self.run_longhaul("prepare", job, code=REFUSED)
                self.assertIn("chat.jsonl:2: ", said)
                self.assertIn(sentence or "message 1 holds '</s>', which is a token of the format",
                              said)
                self.assertFalse(os.path.exists(self.path("out", "corpus.idx")))
                job = self.job(good + "\n" + line + "\n", chat={"format": "zephyr"},
                               prepare={"on_error": "skip"})
                self.run_longhaul("prepare", job)
                self.run_longhaul("prepare", job)
                self.assertEqual(len(read_pair(self.path("out", "corpus"))), 1)
                os.remove(self.path("out", "corpus.idx"))

    def test_jobs_that_do_not_fit_are_refused(self):
        for changes, sentence in (
                ({"chat": {"format": "none"}}, "answers are trained on, and [chat] format is none"),
                ({"train": {"phase": "pretrain"}}, "[chat] format prepares conversations"),
                ({"data": {"documents": "joined"}}, "joined: [train] phase is sft"),
                ({"chat": {"format": "vicuna"}}, "vicuna")):
            with self.subTest(**changes):
                _, said = self.run_longhaul("check", self.job(**changes), code=REFUSED)
                self.assertIn(sentence, said)
        for changes, sentence in (
                ({"chat": {"format": "chatml", "user": "no place"}}, "expected {content} in it"),
                ({"chat": {"format": "chatml", "tail": "\\q"}}, "'\\q' found, expected \\n")):
            with self.subTest(**changes):
                _, said = self.run_longhaul("prepare", self.job(**changes), code=REFUSED)
                self.assertIn(sentence, said)
        job = self.job(train={"sequence": 8})
        self.run_longhaul("prepare", job)
        _, said = self.run_longhaul("train", job, code=REFUSED)
        self.assertIn("a sequence of [train] sequence = 8 takes 9; set [data] too_long", said)
        plain = self.small_job(data={"split": "1,0,0"})
        self.run_longhaul("prepare", plain)
        _, said = self.run_longhaul("train", plain, "--set", "train.phase=sft", "--set",
                                    "pipeline.stages=train", code=REFUSED)
        self.assertIn("document 0 has no answer; [train] phase = sft expects a set", said)
        self.assertFalse(os.path.exists(self.path("out", "checkpoints")))


main()
