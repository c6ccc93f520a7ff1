"""Real models through the commands: losses of documents and greedy text are those of plain Python in
double precision (reference.json beside the weights)."""
import json
import os
import shutil

from pipeline_case import DATA, SOURCE, PipelineCase, main, tensors_of, write_tensors

STORIES = os.path.join(DATA, "stories260K")
CAPP = os.path.join(SOURCE, "tests", "data", "models", "capp-gpt2")


def reference(folder):
    with open(os.path.join(folder, "reference.json")) as f:
        return json.load(f)


class TrainedModels(PipelineCase):
    def imported(self, folder, plugin, **sections):
        job = {"pipeline": {"name": "trained", "stages": "import", "folder": "out"},
               "import": {"from": folder},
               "model": {"plugin": plugin, "vocab": "from_import"},
               "train": {"precision": "f32"},
               "device": {"plugin": "cpu", "threads": 1}}
        job.update(sections)
        path = self.ini(job)
        self.run_longhaul("import", path)
        return path

    def test_losses_of_documents_are_those_of_the_reference(self):
        with open(DATA + "/tinystories-1000.jsonl") as f:
            self.write("documents.jsonl", "".join(f.readline() for _ in range(8)))
        job = self.imported(STORIES, "llama", eval={"data": "documents.jsonl", "bos": "yes",
                                                    "tokens_per_document": 257})
        out, _ = self.run_longhaul("eval", job, "--json", "--per-document")
        lines = [json.loads(line) for line in out.splitlines()]
        expected = reference(STORIES)["documents"]
        self.assertEqual(len(lines), 9)
        for line, document in zip(lines, expected["per_document"]):
            self.assertEqual(line["document"], document["line"])
            self.assertEqual(line["tokens"], document["predicted_tokens"])
            self.assertLess(abs(line["loss"] - document["mean_nll"]), 1e-5)
        self.assertEqual(set(lines[8]), {"loss", "perplexity", "tokens"})
        self.assertEqual(lines[8]["tokens"], expected["predicted_tokens"])
        self.assertLess(abs(lines[8]["loss"] - expected["mean_nll_over_all_predicted_tokens"]),
                        1e-5)

    def test_greedy_text_of_stories260K_is_exact(self):
        job = self.imported(STORIES, "llama")
        expected = reference(STORIES)["greedy_from_bos"]
        out, _ = self.run_longhaul("generate", job, "--ids", "1", "--greedy", "--tokens", "200",
                                   "--json")
        got = json.loads(out)
        self.assertEqual(set(got), {"prompt_ids", "new_ids", "text"})
        self.assertEqual(got["prompt_ids"] + got["new_ids"], expected["ids"])
        self.assertEqual(got["text"].strip(), expected["text"].strip())

    def test_a_prompt_goes_on_with_the_likeliest_token(self):
        prompt = reference(STORIES)["prompt"]
        job = self.imported(STORIES, "llama", generate={"prompt": prompt["text"], "bos": "yes"})
        out, _ = self.run_longhaul("generate", job, "--greedy", "--tokens", "1", "--json")
        got = json.loads(out)
        self.assertEqual(got["prompt_ids"], prompt["ids"])
        self.assertEqual(got["new_ids"], [prompt["argmax"]])

    def test_prompts_of_a_file_are_continued_as_each_alone(self):
        texts = ["", "Once upon a time, there was a little girl named Lily.", "Tom", "The dog " * 30,
                 "One day, a big bear came to the park and", "She"]
        self.write("prompts.jsonl", "".join(json.dumps({"prompt": t}) + "\n" for t in texts))
        job = self.imported(STORIES, "llama", generate={"bos": "yes", "greedy": "yes", "tokens": 90})
        expected = reference(STORIES)["greedy_from_bos"]["ids"]
        alone = []
        for text in texts:
            out, _ = self.run_longhaul("generate", job, "--prompt", text, "--json")
            alone.append(json.loads(out))
        for batch in (1, 4, 6):
            out, _ = self.run_longhaul("generate", job, "--prompts", self.path("prompts.jsonl"), "--json",
                                       "--set", "generate.batch=%d" % batch)
            lines = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(lines, alone)
            with open(self.path("out", "generated.json")) as f:
                self.assertEqual(json.load(f), {"texts": lines})
            self.assertEqual(lines[0]["prompt_ids"] + lines[0]["new_ids"], expected[:91])
        # What is drawn for a text depends on its line, not on the batch.
        drawn = [self.run_longhaul("generate", job, "--prompts", self.path("prompts.jsonl"), "--json", "--set",
                                   "generate.greedy=no", "--set", "generate.batch=%d" % batch)[0]
                 for batch in (1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        out, _ = self.run_longhaul("generate", job, "--prompts", self.path("prompts.jsonl"))
        self.assertIn("\n[2] Tom", out)

    def test_prompts_that_are_no_good(self):
        job = self.imported(STORIES, "llama", generate={"prompts": "prompts.jsonl", "tokens": 8})
        for line, sentence in (('{"text": "a"}', r"prompts.jsonl:2: key 'prompt' is missing"),
                               ('{"prompt": 1}', r"prompts.jsonl:2: .*prompt"),
                               ('nothing', r"prompts.jsonl:2: at byte 1")):
            self.write("prompts.jsonl", '{"prompt": "a"}\n' + line + "\n")
            _, said = self.run_longhaul("generate", job, code=1)
            self.assertRegex(said, sentence)
            self.assertFalse(os.path.exists(self.path("out", "generated.json")))
        # All are checked before the first is continued, and before weights are read.
        wide = "prepare.tokenizer=" + os.path.join(SOURCE, "tests", "data", "tokenizers", "unigram",
                                                   "tokenizer.json")
        self.write("prompts.jsonl", '{"prompt": "a"}\n{"prompt": "house"}\n')
        out, said = self.run_longhaul("generate", job, "--set", wide, "--set", "generate.batch=1", "--json",
                                      code=1)
        self.assertEqual(out, "")
        self.assertRegex(said, r"token \d+ of the prompt is \d+; the model has ids 0 to 511")
        self.write("prompts.jsonl", "\n")
        _, said = self.run_longhaul("generate", job, code=1)
        self.assertIn("no prompt in it; expected one a line", said)
        _, said = self.run_longhaul("generate", job, "--chat", code=1)
        self.assertIn("chat = yes: [chat] format is not set", said)
        _, said = self.run_longhaul("generate", job, "--prompt", "a", "--prompts", "b", code=1)
        self.assertIn("--prompt and --prompts: only one of them can be the start", said)

    def test_conversations_are_answered(self):
        job = self.imported(STORIES, "llama", chat={"format": "llama2"},
                            generate={"chat": "yes", "tokens": 12, "greedy": "yes"})
        self.write("talk.jsonl", json.dumps({"messages": [{"role": "user", "content": "Who was Tom?"},
                                                          {"role": "assistant", "content": "A boy."},
                                                          {"role": "user", "content": "And Lily?"}]}) + "\n" +
                   json.dumps({"prompt": "Who was Lily?", "answer": "not looked at"}) + "\n")
        out, _ = self.run_longhaul("generate", job, "--prompts", self.path("talk.jsonl"), "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        texts = ("<s>[INST] Who was Tom? [/INST] A boy. </s><s>[INST] And Lily? [/INST]",
                 "<s>[INST] Who was Lily? [/INST]")
        for line, text in zip(lines, texts):
            out, _ = self.run_longhaul("generate", job, "--prompt", text, "--json", "--set", "generate.chat=no")
            self.assertEqual(json.loads(out), line)
        out, _ = self.run_longhaul("generate", job, "--prompt", "Who was Lily?", "--json")
        self.assertEqual(json.loads(out), lines[1])

    def test_text_on_the_terminal_is_that_of_the_whole(self):
        job = self.imported(STORIES, "llama")
        byte = lambda b: b + 3  # the id of <0xNN>
        whole = [byte(b) for b in "\u00e9".encode()]
        for ids, begins in (([403] + whole, "\u00e9"), ([403] + whole + [byte(0xff)], "\ufffd" * 3),
                            ([403, byte(0xe2)] + [403], "\ufffd"),
                            ([byte(b) for b in b"\xe2\x80\xae"] + [byte(0xbf)], "\ufffd" * 4)):
            out, _ = self.run_longhaul("generate", job, "--greedy", "--tokens", "3", "--ids",
                                       ",".join(map(str, ids)))
            with open(self.path("out", "generated.json")) as f:
                text = json.load(f)["text"]
            self.assertNotIn("\ufffd", text)
            self.assertIn(begins, out)
            self.assertEqual(out.count("\ufffd"), begins.count("\ufffd"))
            self.assertTrue(out.endswith(text + "\n"), (out, text))
            self.assertNotIn("\\x", out)

    def test_greedy_tokens_of_capp_gpt2_are_exact(self):
        # Its bos_token_id, 50256, lies outside its vocabulary of 53.
        job = self.imported(CAPP, "gpt2")
        for case in reference(CAPP)["cases"]:
            new = case["greedy"]["ids"][len(case["ids"]):]
            out, _ = self.run_longhaul("generate", job, "--greedy", "--json", "--ids",
                                       ",".join(map(str, case["ids"])), "--tokens",
                                       str(len(new)))
            self.assertEqual(json.loads(out)["new_ids"], new)

    def test_a_missing_an_extra_and_a_misshapen_tensor_are_refused_by_name(self):
        name = "model.layers.3.mlp.up_proj.weight"
        for change in ("missing", "extra", "misshapen"):
            folder = self.path(change)
            shutil.copytree(STORIES, folder)
            tensors = tensors_of(folder + "/model.safetensors")
            if change == "missing":
                del tensors[name]
            elif change == "extra":
                tensors["model.layers.9.mlp.up_proj.weight"] = tensors[name]
            else:
                dtype, shape, data = tensors[name]
                tensors[name] = (dtype, shape[::-1], data)
            write_tensors(folder + "/model.safetensors", tensors)
            job = self.ini({"pipeline": {"name": "changed", "stages": "import",
                                          "folder": "out-" + change},
                            "import": {"from": folder}, "device": {"plugin": "cpu"},
                            "model": {"plugin": "llama", "vocab": "from_import"}})
            _, said = self.run_longhaul("import", job, code=1)
            self.assertIn("model.layers.9" if change == "extra" else name, said)
            self.assertFalse(os.path.exists(self.path("out-" + change, "import", "checkpoints",
                                                      "latest")))


main()
