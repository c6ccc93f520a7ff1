"""Several sets in one evaluation: texts by name, and questions with choices, whose log-likelihoods and
shares are those of lm-evaluation-harness's formulas with Transformers (tests/reference/choices.json)."""
import json
import os

from pipeline_case import DATA, REFUSED, SOURCE, PipelineCase, main

STORIES = os.path.join(DATA, "stories260K")


class EvalSets(PipelineCase):
    def imported(self, **sections):
        job = {"pipeline": {"name": "sets", "stages": "import", "folder": "out"},
               "import": {"from": STORIES},
               "model": {"plugin": "llama", "vocab": "from_import"},
               "train": {"precision": "f32"},
               "device": {"plugin": "cpu", "threads": 1}}
        job.update({name.replace("__", "."): rows for name, rows in sections.items()})
        path = self.ini(job)
        self.run_longhaul("import", path)
        return path

    def questions(self, name, rows):
        self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def test_choices_are_those_of_the_harness(self):
        with open(os.path.join(SOURCE, "tests", "reference", "choices.json")) as f:
            reference = json.load(f)
        self.questions("questions.jsonl", reference["questions"])
        sets = {"space": {}, "space_bos": {"bos": "yes"}, "none": {"delimiter": "none"},
                "line": {"delimiter": "line"}}
        job = self.imported(**{"eval__" + name: {"kind": "choice", "data": "questions.jsonl", **rows}
                               for name, rows in sets.items()})
        out, _ = self.run_longhaul("eval", job, "--json", "--per-document")
        lines = [json.loads(line) for line in out.splitlines()]
        count = len(reference["questions"])
        self.assertEqual(len(lines), 4 * count + 1)
        for name in sets:
            of_set = [line for line in lines[:-1] if line["set"] == name]
            for n, (line, expected) in enumerate(zip(of_set, reference[name]["loglikelihood"])):
                self.assertEqual(line["question"], n)
                self.assertEqual(len(line["loglikelihood"]), len(expected))
                for got, value in zip(line["loglikelihood"], expected):
                    self.assertLess(abs(got - value), 2e-4 * max(1, abs(value)), (name, n))
        with open(self.path("out", "eval.json")) as f:
            kept = json.load(f)
        self.assertEqual(kept, lines[-1])
        for row in kept["sets"]:
            self.assertEqual(row["questions"], count)
            for key in ("acc", "acc_norm", "acc_bytes"):
                self.assertAlmostEqual(row[key], reference[row["name"]][key], 6, (row["name"], key))

    def test_the_tokenizer_of_eval_goes_before_that_of_prepare(self):
        with open(os.path.join(STORIES, "tokenizer.json")) as f:
            tokenizer = json.load(f)
        tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:20]
        other = self.write("tokenizer.json", json.dumps(tokenizer))
        self.write("texts.jsonl", '{"text": "Once upon a time there was a dog."}\n')
        tokens = []
        for prepare, own in ((STORIES, None), (other, None), (STORIES, other)):
            job = self.imported(prepare={"input": "texts.jsonl", "tokenizer": prepare},
                                eval={"data": "texts.jsonl", "tokenizer": own})
            tokens.append(json.loads(self.run_longhaul("eval", job, "--json")[0])["tokens"])
        self.assertLess(tokens[0], tokens[1])
        self.assertEqual(tokens[2], tokens[1])

    def test_ids_that_the_model_has_no_row_for_are_refused(self):
        self.questions("questions.jsonl", [{"prompt": "Once upon a", "choices": ["time", "tree"], "answer": 0}])
        self.write("texts.jsonl", '{"text": "Once upon a time"}\n')
        for rows in ({"kind": "choice", "data": "questions.jsonl"}, {"data": "texts.jsonl"}):
            job = self.imported(eval={"tokenizer": os.path.join(DATA, "gpt2-tiny")}, eval__one=rows)
            _, said = self.run_longhaul("eval", job, code=REFUSED)
            self.assertRegex(said, r"jsonl: the tokenizer makes the id \d+ of it; the model has ids 0 to 511\n")

    def test_an_empty_prompt_is_the_end_token_where_there_is_none_to_begin_with(self):
        """Be it that the vocabulary has another one behind documents, as Qwen's has."""
        self.questions("questions.jsonl", [{"prompt": "", "choices": ["Once", "Tim"], "answer": 0}])
        with open(os.path.join(STORIES, "tokenizer.json")) as f:
            tokenizer = json.load(f)
        with open(os.path.join(STORIES, "tokenizer_config.json")) as f:
            config = dict(json.load(f), bos_token=None)
        vocab = tokenizer["model"]["vocab"]
        del vocab[next(piece for piece, number in vocab.items() if number == 511)]
        said = []
        for word in ("<|endoftext|>", "<|another|>"):
            vocab[word] = 511
            folder = self.path(word.strip("<|>"))
            os.makedirs(folder)
            for name in ("config.json", "model.safetensors"):
                os.symlink(os.path.join(STORIES, name), os.path.join(folder, name))
            for name, rows in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
                with open(os.path.join(folder, name), "w") as f:
                    json.dump(rows, f)
            job = self.imported(**{"import": {"from": folder}},
                                eval__a={"kind": "choice", "data": "questions.jsonl"})
            said.append(self.run_longhaul("eval", job, "--json", "--per-document")[0])
            del vocab[word]
        self.assertEqual(said[0], said[1])

    def test_texts_and_questions_side_by_side(self):
        with open(DATA + "/tinystories-1000.jsonl") as f:
            texts = [f.readline() for _ in range(6)]
        self.write("first.jsonl", "".join(texts[:3]))
        self.write("second.jsonl", "".join(texts[3:]))
        self.questions("questions.jsonl", [{"q": "Once upon a", "c": ["time", "tree"], "a": "time"}])
        files = {"first": {"data": "first.jsonl", "bos": "yes", "tokens_per_document": 200},
                 "second": {"data": "second.jsonl", "bos": "yes", "tokens_per_document": 200}}
        job = self.imported(**{"eval__first": files["first"], "eval__second": files["second"],
                               "eval__ask": {"kind": "choice", "data": "questions.jsonl", "prompt": "q",
                                             "choices": "c", "answer": "a"}})
        out, _ = self.run_longhaul("eval", job)
        self.assertRegex(out, r"first: loss \S+  perplexity \S+  over \d+ tokens of \S+first.jsonl\n"
                              r"second: loss .*\nask: acc 1.0000  acc_norm 1.0000  over 1 questions of ")
        with open(self.path("out", "eval.json")) as f:
            together = {row.pop("name"): row for row in json.load(f)["sets"]}
        for name, rows in files.items():
            alone = self.ini({"pipeline": {"name": "sets", "stages": "import", "folder": "out"},
                              "import": {"from": STORIES},
                              "model": {"plugin": "llama", "vocab": "from_import"},
                              "train": {"precision": "f32"}, "device": {"plugin": "cpu", "threads": 1},
                              "eval": rows}, name + ".ini")
            out, _ = self.run_longhaul("eval", alone, "--json")
            self.assertEqual(json.loads(out)["tokens"], together[name]["tokens"])
            self.assertAlmostEqual(json.loads(out)["loss"], together[name]["loss"], 5)

    def test_what_is_refused(self):
        job = self.imported(eval__ask={"kind": "choice", "data": "questions.jsonl"})
        good = {"prompt": "Once", "choices": ["upon", "a"], "answer": 0}
        for change, sentence in (
                ({"answer": 2}, r"questions.jsonl:2: 'answer' is 2, a number from 0 to 1 or the text"),
                ({"answer": "time"}, r":2: 'answer' is \"time\", a number from 0 to 1"),
                ({"choices": []}, r":2: 'choices' is .*, a list of 1 to 1024 texts was expected"),
                ({"choices": ["a", 3]}, r":2: choice 1 is 3, a text of at least one character"),
                ({"choices": ["a", ""]}, r":2: choice 1 is \"\", a text of at least one character"),
                ({"prompt": None}, r":2: 'prompt' is null, a text was expected"),
                ({"prompt": " \n "}, r":2: 'prompt' has no token; expected a text, or an empty one"),
                ({"choices": ["word " * 600]}, r":2: choice 0 has \d+ tokens; the model is made for 512")):
            self.questions("questions.jsonl", [good, {**good, **change}])
            _, errors = self.run_longhaul("eval", job, code=REFUSED)
            self.assertRegex(errors, sentence)
            self.assertFalse(os.path.exists(self.path("out", "eval.json")))
        self.questions("questions.jsonl", [good])
        for key, value in (("data", "test"), ("bos", "yes"), ("key", "story"),
                           ("tokens_per_document", "64")):
            _, errors = self.run_longhaul("eval", job, "--set", "eval.%s=%s" % (key, value),
                                          code=REFUSED)
            self.assertRegex(errors, r"%s = %s: what is scored are the sets \[eval.NAME\] of this "
                                     r"job; expected no %s beside them" % (key, value, key))
        out, _ = self.run_longhaul("check", job, "--set", "pipeline.stages=import eval")
        self.assertRegex(out, r"\ndata +=? valid +; default\n")
        self.run_longhaul("check", self.write("again.ini", out))
        _, errors = self.run_longhaul("eval", job, "--set", "eval.ask.data=test", code=REFUSED)
        self.assertRegex(errors, "data = test: expected a JSONL file of prompts and choices")
        _, errors = self.run_longhaul("check", job, "--set", "pipeline.stages=eval", "--set",
                                      "eval.ask.data=none.jsonl", code=REFUSED)
        self.assertRegex(errors, "none.jsonl: not there")
        self.write("long.jsonl", json.dumps({"text": "word " * 600}) + "\n")
        _, errors = self.run_longhaul("eval", job, "--set", "eval.long.data=long.jsonl", code=REFUSED)
        self.assertRegex(errors, r"set \[eval.long\] tokens_per_document")
        _, errors = self.run_longhaul("eval", job, "--set", "eval.split.data=valid", "--per-document",
                                      code=REFUSED)
        self.assertIn("--per-document needs [eval.split] data to be a JSONL file", errors)

    def test_a_split_is_opened_before_anything_is_scored(self):
        """Weights that are damaged, too, are not even read."""
        self.write("first.jsonl", '{"text": "Once upon a time."}\n')
        job = self.imported(eval__first={"data": "first.jsonl"}, eval__second={"data": "valid"},
                            data={"train": "nowhere"},
                            train={"precision": "f32", "sequence": 32, "batch": 1})
        self.damage_shard(self.step_folder(0, "out/import"))
        _, errors = self.run_longhaul("eval", job, "--set", "eval.second.data=first.jsonl",
                                      code=REFUSED)
        self.assertNotIn("nowhere", errors)
        _, errors = self.run_longhaul("eval", job, code=REFUSED)
        self.assertIn("nowhere", errors)


main()
