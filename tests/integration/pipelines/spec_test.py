"""An architecture in the INI through the commands: what the specs under examples/specs make of a Hugging
Face folder, of a training run and of a checkpoint is what their plugins make, to the byte; mistakes are
told before anything is written."""
import json
import os
import re
import resource
import shutil

from pipeline_case import REFUSED, SOURCE, TORTURE, PipelineCase, checkpoint_digest, floats, logical, main, read_json_lines

SPECS = os.path.join(SOURCE, "examples", "specs")
GOLDEN = os.path.join(SOURCE, "tests", "golden")
# spec, plugin, folder of tests/golden
PAIRS = (("falcon-7b", "falcon", "falcon-7b-kind"), ("qwen3", "qwen", "qwen3"), ("gpt2", "gpt2", "gpt2"),
         ("mixtral", "mixtral", "mixtral"))
# What a new model needs besides SIZES.
MORE = {"qwen3": {"ffn": 56, "kv_heads": 2},
        "mixtral": {"ffn": 56, "kv_heads": 2, "experts": 4, "balanced": "yes", "balance": 0.02}}
# A matrix the wrong way round.
SWAPPED = ("shape = ffn, hidden\ncut   = out\nhf    = model.layers.{}.mlp.up_proj",
           "shape = hidden, ffn\ncut   = out\nhf    = model.layers.{}.mlp.up_proj")
SIZES = {"blocks": 2, "hidden": 32, "heads": 4, "max_tokens": 64}


def read(*names):
    with open(os.path.join(*names), "rb") as f:
        return f.read()


class Specs(PipelineCase):
    def including(self, spec, sections, name):
        """An INI that includes a spec; sections as of ini()."""
        path = self.ini(sections, name)
        with open(path) as f:
            text = f.read()
        return self.write(name, "include = %s\n%s" % (spec, text))

    def pair(self, spec, plugin, sections):
        """The job by the plugin and by the spec, each with its folder."""
        for way in ("plugin", "spec"):
            sections["pipeline"] = dict(sections["pipeline"], folder="out-" + way)
            if way == "plugin":
                sections["model"]["plugin"] = plugin
                yield way, self.ini(sections, "plugin.ini")
            else:
                del sections["model"]["plugin"]
                yield way, self.including(os.path.join(SPECS, spec + ".ini"), sections, "spec.ini")

    def test_an_export_of_what_has_no_hugging_face_form_is_refused_before_it_trains(self):
        with open(os.path.join(SOURCE, "docs", "specs.md")) as f:
            text = f.read().split("```ini")[2].split("```")[0]
        text = text.replace("stages = prepare train", "stages = prepare train export")
        os.makedirs(self.path("data"))
        for name in ("tinyshakespeare.jsonl", "gpt2-tiny"):
            os.symlink(os.path.join(SOURCE, "examples", "data", name), self.path("data", name))
        job = self.write("whole.ini", text + "\n[export]\nfolder = hf\n")
        for command in ("check", "run"):
            _, said = self.run_longhaul(command, job, code=REFUSED)
            self.assertIn("whole.ini:4: stages = ... export: the model plugin spec has no Hugging Face form",
                          said)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_parts_of_a_tensor_have_no_rows_in_common(self):
        with open(os.path.join(SPECS, "gpt2.ini")) as f:
            spec = self.write("twice.ini", f.read().replace("part=2", "part=1"))
        job = self.including(spec, {"pipeline": {"name": "x", "stages": "import", "folder": "out"},
                                    "import": {"from": os.path.join(GOLDEN, "gpt2")},
                                    "model": {"vocab": "from_import"}}, "job.ini")
        _, said = self.run_longhaul("import", job, code=REFUSED)
        self.assertIn("is of parameter blocks.0.bk and of blocks.0.bv; expected parts that have none in "
                      "common", said)
        self.assertFalse(os.path.exists(self.path("out", "import")))

    def test_an_import_goes_back_as_by_the_plugin(self):
        for spec, plugin, golden in PAIRS:
            with self.subTest(spec=spec):
                for way, job in self.pair(spec, plugin, {
                        "pipeline": {"name": "x", "stages": "import export"},
                        "import": {"from": os.path.join(GOLDEN, golden)},
                        "model": {"vocab": "from_import"},
                        "train": {"precision": "f32"},
                        "device": {"plugin": "cpu", "threads": 1}}):
                    _, said = self.run_longhaul("run", job)
                    self.assertNotIn("not read", said)
                    exported = self.path("out-" + way, "hf")
                    self.assertEqual(read(exported, "model.safetensors"),
                                     read(GOLDEN, golden, "model.safetensors"))
                    greedy = json.loads(read(GOLDEN, golden, "expected.json"))["greedy"]
                    out, _ = self.run_longhaul("generate", job, "--greedy", "--json", "--ids",
                                               ",".join(map(str, greedy["prompt"])), "--tokens",
                                               str(len(greedy["continuation"])))
                    self.assertEqual(json.loads(out)["new_ids"], greedy["continuation"])
                self.assertEqual(read(self.path("out-plugin"), "hf", "config.json"),
                                 read(self.path("out-spec"), "hf", "config.json"))
                self.assertEqual(read(self.path("out-plugin"), "hf", "model.safetensors"),
                                 read(self.path("out-spec"), "hf", "model.safetensors"))
                for way in ("plugin", "spec"):
                    shutil.rmtree(self.path("out-" + way))

    def trained(self, **model):
        return {"pipeline": {"name": "x", "stages": "prepare train export"},
                "prepare": {"input": self.stories(), "tokenizer": self.tokenizer(), "prepend": "bos",
                            "workers": 1},
                "data": {"split": "80,20,0"},
                "model": dict(SIZES, **model),
                "train": {"sequence": 32, "batch": 4, "micro_batch": 2, "steps": 6,
                          "evaluate_every": 3, "recompute": "selective"},
                "optimizer": {"plugin": "zero0", "rule": "rules:adamw", "decay": 0.1, "clip": 1.0,
                              "learning_rate": "3e-3"},
                "device": {"plugin": "cpu", "threads": 1}}

    def test_ranks_of_a_spec_train_as_those_of_the_plugin(self):
        """Two of stage 3, with all recomputed, in BF16."""
        for spec, plugin, _ in PAIRS if TORTURE else PAIRS[-1:]:
            with self.subTest(spec=spec):
                sections = self.trained(**MORE.get(spec, {}))
                sections["pipeline"]["stages"] = "prepare train"
                sections["train"].update(precision="bf16", recompute="full")
                sections["optimizer"]["plugin"] = "zero3"
                sections["launch"] = {"ranks_per_node": 2}
                digests = []
                for way, job in self.pair(spec, plugin, sections):
                    self.run_longhaul("run", job)
                    digests.append(checkpoint_digest(self.step_folder(6, "out-" + way)))
                self.assertEqual(digests[0], digests[1])
                for way in ("plugin", "spec"):
                    shutil.rmtree(self.path("out-" + way))

    def calls_of(self, job):
        """Memory and calls of a step as `plan` prints them, without what depends on the machine at hand."""
        env = dict(os.environ, XDG_CACHE_HOME=self.path("cache"))  # no record of how fast the device is
        plan, _ = self.run_longhaul("plan", job, env=env)
        return plan[plan.index("\nmemory"):plan.index("\nplanning")]

    @staticmethod
    def tokenizer():
        return os.path.join(SOURCE, "examples", "data", "stories260K", "tokenizer.json")

    def test_a_new_model_is_trained_and_exported_as_by_the_plugin(self):
        for spec, plugin, _ in PAIRS:
            with self.subTest(spec=spec):
                model = MORE.get(spec, {})
                metrics, digests, plans = [], [], []
                for way, job in self.pair(spec, plugin, self.trained(**model)):
                    plans.append(self.calls_of(job))
                    self.run_longhaul("run", job)
                    metrics.append([[row.get("step"), row.get("loss"), row.get("gradient_norm"),
                                     row.get("evaluation", {}).get("loss")]
                                    for row in read_json_lines(self.path("out-" + way, "metrics.jsonl"))])
                    digests.append(checkpoint_digest(self.step_folder(6, "out-" + way)))
                for i in (1, 2, 3):
                    self.assertTrue(any(row[i] for row in metrics[0]))
                self.assertEqual(metrics[0], metrics[1])
                self.assertIn("matmul", plans[0])
                self.assertEqual(plans[0], plans[1])  # the same calls of the same sizes, so the same speed
                self.assertEqual(digests[0], digests[1])
                self.assertEqual(read(self.path("out-plugin"), "hf", "model.safetensors"),
                                 read(self.path("out-spec"), "hf", "model.safetensors"))
                # What a key must be stands behind the others in a spec, in a plugin's table anywhere.
                self.assertEqual(json.loads(read(self.path("out-plugin"), "hf", "config.json")),
                                 json.loads(read(self.path("out-spec"), "hf", "config.json")))
                for way in ("plugin", "spec"):
                    shutil.rmtree(self.path("out-" + way))

    def test_ranks_train_it_as_one_does(self):
        digests = []
        for ranks in (1, 2):
            job = self.spec_job()
            self.run_longhaul("prepare", job)
            self.run_longhaul("train", job, "--set", "launch.ranks_per_node=%d" % ranks, "--set",
                              "optimizer.plugin=zero3", "--set", "train.micro_batch=1", "--set",
                              "train.recompute=full", "--set", "train.steps=2")
            digests.append(self.whole_weights(2))
            shutil.rmtree(self.path("out"))
        for name in digests[0]:
            for a, b in zip(digests[0][name], digests[1][name]):
                self.assertAlmostEqual(a, b, delta=1e-3)

    def whole_weights(self, step):
        return {name: floats(data) for name, data in logical(self.step_folder(step)).items()}

    def spec_job(self, change=None, name="spec.ini", **model):
        """A job of the Qwen 3 spec, in which a piece of text is another; a copy beside the job."""
        with open(os.path.join(SPECS, "qwen3.ini")) as f:
            text = f.read()
        if change is not None:
            self.assertIn(change[0], text)
            text = text.replace(*change)
        self.write("arch.ini", text)
        sections = self.trained(**dict({"ffn": 56, "kv_heads": 2}, **model))
        sections["pipeline"]["folder"] = "out"
        return self.including("arch.ini", sections, name)

    def test_check_and_plan_read_a_spec(self):
        job = self.spec_job()
        out, _ = self.run_longhaul("check", job)
        self.assertIn("; model spec ", out)
        self.assertRegex(out, r"\nkv_heads += 2 +; \S+/spec.ini:\d+")
        self.assertRegex(out, r"\nlogits += linear\(rms_norm\(x, norm, epsilon=epsilon\), head\)")
        again, _ = self.run_longhaul("check", self.write("again.ini", out))
        values = lambda text: [line.split(" ;")[0].rstrip() for line in text.splitlines()
                               if not line.startswith(";")]
        self.assertEqual(values(out), values(again))
        plan = [self.run_longhaul("plan", path)[0] for path in (job, self.write("again.ini", out))]
        self.assertIn("parameters", plan[0])
        # A plugin's file is read, hashed and tried in a child: a spec costs less, some 20 ms in all.
        by_plugin = self.small_job()
        times = [(self.seconds("check", job), self.seconds("check", by_plugin)) for _ in range(3)]
        self.assertLess(min(a for a, _ in times), 2 * min(b for _, b in times) + 0.02, times)

    def seconds(self, *args):
        """Of processors, which a busy machine does not lengthen."""
        used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        begin = used()
        self.run_longhaul(*args)
        return used() - begin

    def test_a_mistake_is_told_with_line_call_and_shapes(self):
        for change, sentence in (
                (SWAPPED,
                 r"arch.ini:%d: \[spec.block\] x: linear\(\) of x \[\d+, 32\], weight \[32, 56\]: w_up: linear: "
                 r"input weight is \w+ \[32, 56\], expected \w+ \[any, 32\]"),
                (("linear(n, w_up)", "lniear(n, w_up)"),
                 r"arch.ini:%d: \[spec.block\] x: there is no op 'lniear' in the core or in \[model\] ops; "
                 r"did you mean 'linear'\?"),
                (("multiply(gate, linear(n, w_up))", "multiply(gate, gate)"),
                 r"arch.ini:\d+: \[spec.parameter.w_up\] is read by no line of \[spec.block\]")):
            job = self.spec_job(change)
            with open(self.path("arch.ini")) as f:
                line = next(i for i, text in enumerate(f, 1) if text.startswith("x    = "))
            wanted = sentence % line if "%d" in sentence else sentence
            for command in ("check", "plan", "run"):
                _, said = self.run_longhaul(command, job, code=REFUSED)
                self.assertRegex(said, wanted)
                self.assertEqual(len(said.splitlines()), 1, said)
            self.assertFalse(os.path.exists(self.path("out", "checkpoints")))

    def test_a_checkpoint_of_another_formula_is_refused(self):
        job = self.spec_job()
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        self.spec_job(("query heads\n", "heads of queries\n"))
        self.run_longhaul("export", job)  # what an option is called is nothing that is computed
        self.spec_job(("function=silu", "function=gelu"))
        for command in (["export"], ["generate", "--ids", "1,2", "--tokens", "2"]):
            _, said = self.run_longhaul(command[0], job, *command[1:], code=REFUSED)
            self.assertIn("was made with 'model.architecture = ", said)

    def test_a_changed_spec_is_a_changed_input_of_its_stages(self):
        job = self.spec_job()
        self.run_longhaul("run", job)
        _, said = self.run_longhaul("run", job)
        self.assertEqual(said.count("nothing has changed"), 3, said)
        self.spec_job(("function=silu", "function=gelu"))
        _, said = self.run_longhaul("run", job, code=REFUSED)
        self.assertEqual(said.count("nothing has changed"), 1, said)
        self.assertIn("holds step 6 of an earlier run", said)
        _, said = self.run_longhaul("run", job, "--resume", code=REFUSED)
        self.assertIn("model.architecture", said)

    def test_ops_of_a_plugin_are_called_by_name(self):
        job = self.spec_job(("q1   = rms_norm(q0,", "q2   = acme.cap(q0, bound=4)\nq1   = rms_norm(q2,"))
        ops = ["--set", "model.ops=acme_smooth"]
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job, *ops)
        _, said = self.run_longhaul("check", job, code=REFUSED)
        self.assertIn("there is no op 'acme.cap' in the core or in [model] ops", said)
        job = self.spec_job(("q1   = rms_norm(q0,", "q2   = acme.cap(q0, bound=-4)\nq1   = rms_norm(q2,"))
        _, said = self.run_longhaul("check", job, *ops, code=REFUSED)
        self.assertRegex(said, r"arch.ini:\d+: \[spec.block\] q2: acme.cap\(\): bound = -4: expected ")

    def test_a_plugins_linear_layer_has_an_adapter(self):
        """By what its row says: with and without the bias that a magnitude takes out, the losses of `linear`."""
        with open(os.path.join(SPECS, "gpt2.ini")) as f:
            text = f.read()
        for kind in ("lora", "dora"):
            curves = []
            for op in ("linear", "acme.linear"):
                folder = kind + "-" + op
                self.write("arch.ini", text.replace("linear(", op + "("))
                sections = self.trained(ops="acme_smooth")
                sections["pipeline"] = {"name": "x", "stages": "prepare train", "folder": folder}
                sections["train"]["precision"] = "f32"
                sections["adapter.a"] = {"kind": kind, "match": "blocks.*.wq, blocks.*.w_down", "rank": 4, "alpha": 8}
                self.run_longhaul("run", self.including("arch.ini", sections, "job.ini"))
                curves.append([number for row in read_json_lines(self.path(folder, "metrics.jsonl")) if "loss" in row
                               for number in (row["loss"], row["gradient_norm"])])
                trained = {name: floats(data) for name, data in logical(self.step_folder(6, folder)).items()}
                factors = [data for name, data in trained.items() if re.fullmatch(r"blocks\.\d\.(wq|w_down)\.lora_b", name)]
                self.assertEqual(len(factors), 2 * SIZES["blocks"], sorted(trained))
                for data in factors:
                    self.assertTrue(any(data))
            self.assertEqual(len(curves[0]), 12)
            for a, b in zip(*curves):
                self.assertLess(abs(a - b), 1e-4 * max(1, abs(a)), (kind, curves))

    def test_sections_that_nobody_reads_are_refused(self):
        job = self.spec_job()
        _, said = self.run_longhaul("check", job, "--set", "model.plugin=llama", code=REFUSED)
        self.assertRegex(said, r"arch.ini:\d+: \[spec\] is read where \[model\] plugin = spec, which is llama")

    def test_the_page_has_a_job_that_runs(self):
        with open(os.path.join(SOURCE, "docs", "specs.md")) as f:
            page = f.read()
        job = next(block for block in re.findall(r"```ini\n(.*?)```", page, re.S) if "[spec]" in block)
        data = os.path.join(SOURCE, "examples", "data") + "/"
        path = self.write("page.ini", job.replace("= data/", "= " + data))
        self.run_longhaul("run", path, "--set", "train.steps=2", "--set", "train.batch=4")
        rows = [row for row in read_json_lines(self.path("out", "parallel", "metrics.jsonl")) if "loss" in row]
        self.assertTrue(rows and all(row["loss"] > 0 for row in rows))
        lines = re.search(r"```ini\n(\[spec.block\]\nload .*?)```", page, re.S).group(1).split("\n")
        with open(os.path.join(SPECS, "mixtral.ini")) as f:
            self.assertEqual(set(lines) - set(f.read().split("\n")), set())
        said = re.search(r"```\nlonghaul: block 0, arch.ini:159: (.*?)\n```", page).group(1)
        _, told = self.run_longhaul("check", self.spec_job(SWAPPED), code=REFUSED)
        self.assertIn("arch.ini:159: " + said, told)

    def test_help_lists_the_keys(self):
        out, _ = self.run_longhaul("help", "spec")
        for word in ("[spec.parameter.NAME]", "hf_shape", "rotary(...)", "alibi(...)"):
            self.assertIn(word, out)


main()
