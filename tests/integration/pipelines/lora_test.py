"""[adapter.NAME], LoRA and DoRA: PEFT's losses, gradients and merged weights; its files in and out; what is
refused."""
import json
import os
import shutil
import struct
import subprocess
import unittest

from pipeline_case import (REFUSED, SOURCE, PipelineCase, checkpoint_digest, floats, main,
                           read_json_lines, set_flags, tensors_of, write_pair, write_tensors)

GOLDEN = os.path.join(SOURCE, "tests", "golden")
LORA = os.path.join(GOLDEN, "phases", "lora")
DORA = os.path.join(GOLDEN, "phases", "dora")
KINDS = (("lora", LORA), ("dora", DORA))
MATCH = "blocks.*.wq, blocks.*.wv, blocks.*.w_down"
STEPS, BATCH, TOKENS = 8, 4, 33
PEERS = os.environ.get("LONGHAUL_PEERS", os.path.join(SOURCE, "build", "peers", "bin", "python"))


def has_peft():
    return os.access(PEERS, os.X_OK) and subprocess.run(
        [PEERS, "-c", "import importlib.util as u; exit(u.find_spec('peft') is None)"]).returncode == 0


class Lora(PipelineCase):
    def job(self, name="job", **changes):
        sections = {
            "pipeline": {"name": "lora", "stages": "import train export", "folder": name},
            "import": {"from": os.path.join(GOLDEN, "llama"), "adapter": LORA},
            "adapter.a": {"match": MATCH, "rank": 4, "alpha": 8},
            "data": {"train": self.path("batches"), "split": "1,0,0", "packing": "no"},
            "model": {"plugin": "llama", "vocab": "from_import"},
            "train": {"phase": "sft", "sequence": 32, "batch": BATCH, "steps": STEPS,
                      "precision": "f32"},
            "optimizer": {"plugin": "zero0", "rule": "rules:adamw", "clip": 0,
                          "learning_rate": 1e-2},
            "device": {"plugin": "cpu", "threads": 1}}
        for section, keys in changes.items():
            sections.setdefault(section.replace("__", "."), {}).update(keys)
        return self.ini(sections, name + ".ini")

    def batches(self):
        """Row j of training is sequence j of the golden batches: the order is asked first."""
        (dtype, shape, data), = [t for n, t in tensors_of(os.path.join(
            GOLDEN, "llama", "batch.safetensors")).items() if n == "tokens"]
        tokens = struct.unpack("<%di" % (len(data) // 4), data)
        rows = [list(tokens[i * TOKENS:(i + 1) * TOKENS]) for i in range(STEPS * BATCH)]
        count = len(rows)
        write_pair(self.path("batches"), [[[i], [i] * (TOKENS - 1)] for i in range(count)])
        job = self.job("order", pipeline={"stages": "import train"})
        self.run_longhaul("import", job)
        self.run_longhaul("train", job, "--dump-batches", str(STEPS))
        order = tensors_of(self.path("order", "batches.safetensors"))["tokens"][2]
        first = struct.unpack("<%di" % (len(order) // 4), order)[::TOKENS - 1]
        documents = [None] * count
        for j, i in enumerate(first):
            documents[i] = [rows[j][:1], rows[j][1:]]
        write_pair(self.path("batches"), documents)

    def losses(self, name):
        return [r["loss"] for r in read_json_lines(self.path(name, "metrics.jsonl"))
                if "learning_rate" in r]

    def close(self, found, expected, tolerance, what):
        self.assertEqual(len(found), len(expected), what)
        for i, (a, b) in enumerate(zip(found, expected)):
            self.assertLessEqual(abs(a - b), tolerance * (1 + abs(b)), "%s, element %d" % (what, i))

    def test_losses_and_merged_weights_are_pefts(self):
        self.batches()
        for kind, folder in KINDS:
            self.check_losses(kind, folder)

    def check_losses(self, kind, folder):
        with open(os.path.join(folder, "expected.json")) as f:
            curve = json.load(f)["loss_curve"]
        merged = tensors_of(os.path.join(folder, "merged_after.safetensors"))
        base = tensors_of(os.path.join(GOLDEN, "llama", "model.safetensors"))
        for name, changes in (("one", {}),
                              ("two", {"launch": {"ranks_per_node": 2},
                                       "optimizer": {"plugin": "zero3"}}),
                              ("full", {"train": {"recompute": "full", "micro_batch": 1}})):
            with self.subTest(kind=kind, name=name):
                name = kind + name
                job = self.job(name, adapter__a={"kind": kind}, **changes,
                               **{"import": {"adapter": folder}})
                self.run_longhaul("run", job)
                self.close(self.losses(name), curve, 1e-5, "loss")
                written = tensors_of(self.path(name, "hf", "model.safetensors"))
                self.assertEqual(sorted(written), sorted(base))
                for tensor, row in written.items():
                    if tensor in merged:
                        self.close(floats(row[2]), floats(merged[tensor][2]), 2e-5, tensor)
                    else:
                        self.assertEqual(row, base[tensor], tensor)

    def test_gradients_are_pefts_and_a_separate_export_is_its_files(self):
        self.batches()
        for kind, folder in KINDS:
            with self.subTest(kind=kind):
                self.check_gradients(kind, folder)

    def check_gradients(self, kind, folder):
        # One step of plain descent at rate 1: what is gone is the gradient.
        step, again = kind + "step", kind + "again"
        job = self.job(step, train={"steps": 1}, rule__sgd={"momentum": 0},
                       optimizer={"rule": "rules:sgd", "learning_rate": 1},
                       export={"adapter": "separate"}, adapter__a={"kind": kind},
                       **{"import": {"adapter": folder}})
        self.run_longhaul("run", job)
        self.run_longhaul("export", job)  # in the place of the one before
        # But not in that of what was imported.
        given = shutil.copytree(folder, self.path(kind + "given"))
        os.chmod(given, 0o755)
        _, said = self.run_longhaul("export", job, "--set", "import.adapter=" + given, "--set",
                                    "export.folder=" + given, code=REFUSED)
        self.assertIn("the adapter that is imported", said)
        start = tensors_of(os.path.join(folder, "adapter_model.safetensors"))
        gradients = tensors_of(os.path.join(folder, "gradients.safetensors"))
        written = tensors_of(self.path(step, "hf", "adapter_model.safetensors"))
        self.assertEqual({n: (d, s) for n, (d, s, _) in written.items()},
                         {n: (d, s) for n, (d, s, _) in start.items()})
        for name, (_, _, data) in written.items():
            gone = [a - b for a, b in zip(floats(start[name][2]), floats(data))]
            key = "grad." + (name.replace(".weight", ".default.weight") if name.endswith(".weight")
                             else name + ".default.weight")
            wanted = floats(gradients[key][2])
            most = max(abs(g) for g in wanted)
            self.assertLessEqual(max(abs(a - b) for a, b in zip(gone, wanted)), 1e-3 * most + 1e-7)
        with open(self.path(step, "hf", "adapter_config.json")) as f:
            said = json.load(f)
        with open(os.path.join(folder, "adapter_config.json")) as f:
            for key, value in json.load(f).items():
                if key not in said or key == "base_model_name_or_path":
                    continue
                self.assertEqual(said[key], value, key)
        # Its own files come in again, and an import that nothing trained goes out as it came.
        job = self.job(again, train={"steps": 0}, export={"adapter": "separate"},
                       adapter__a={"kind": kind},
                       **{"import": {"adapter": self.path(step, "hf")}})
        self.run_longhaul("run", job)
        same = tensors_of(self.path(again, "hf", "adapter_model.safetensors"))
        for name, row in written.items():
            if name.endswith("magnitude_vector"):  # kept as a difference
                self.close(floats(same[name][2]), floats(row[2]), 2e-7, name)
            else:
                self.assertEqual(same[name], row, name)

    def test_a_new_adapter_changes_nothing_at_first_and_resumes(self):
        self.batches()
        job = self.job("new", train={"steps": 4}, **{"import": {"adapter": None}})
        self.run_longhaul("run", job)
        names = checkpoint_digest(self.step_folder(4, "new"))[1]
        states = [n for n in names if n.startswith("exp_avg/")]
        self.assertEqual(len(states), 12)
        self.assertTrue(all(".lora_" in n for n in states))
        whole = checkpoint_digest(self.step_folder(4, "new"))
        first = self.losses("new")[0]
        shutil.rmtree(self.path("new", "checkpoints"))
        self.run_longhaul("train", job, "--set", "train.steps=2")
        self.run_longhaul("train", job, "--resume")
        self.assertEqual(checkpoint_digest(self.step_folder(4, "new")), whole)
        # Without an adapter the first loss is the same.
        with open(os.path.join(GOLDEN, "llama", "expected.json")) as f:
            self.assertAlmostEqual(first, json.load(f)["loss_first_batch"], delta=1e-5)
        self.run_longhaul("generate", job, "--ids", "1,2,3", "--tokens", "2")
        _, said = self.run_longhaul("generate", job, "--ids", "1,2,3", "--tokens", "2", "--set",
                                    "adapter.a.alpha=4", code=REFUSED)
        self.assertIn("was made with 'model.adapter = ", said)

    @unittest.skipUnless(has_peft(), "PEFT is not there (make peers, or LONGHAUL_PEERS)")
    def test_peft_loads_what_is_exported(self):
        """Its logits with the adapter are those of the model that it was merged into, by our own tokens."""
        self.batches()
        models = []
        for kind, _ in KINDS:
            job = self.job(kind, adapter__a={"kind": kind}, train={"steps": 4},
                           export={"adapter": "separate"}, **{"import": {"adapter": None}})
            self.run_longhaul("run", job)
            self.run_longhaul("export", job, "--set", "export.adapter=merged", "--set",
                              "export.folder=merged")
            models += [(base, self.path(kind, "hf"))
                       for base in (os.path.join(GOLDEN, "llama"), self.path(kind, "merged"))]
        request = {"models": models, "rows": [[5, 6, 7], [100, 3, 58, 21]]}
        probe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peft_probe.py")
        done = subprocess.run([PEERS, "-B", probe, self.write("request.json", json.dumps(request))],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        found = json.loads(done.stdout)
        self.assertEqual([f["complaints"] for f in found], [[]] * len(models))
        for i in range(0, len(models), 2):
            for with_adapter, merged, plain in zip(found[i]["logits"], found[i + 1]["alone"],
                                                   found[i]["alone"]):
                worst = max(abs(a - b) for a, b in zip(with_adapter, merged))
                moved = max(abs(a - b) for a, b in zip(with_adapter, plain))
                self.assertLess(worst, 2e-5)
                self.assertGreater(moved, 1e-2)

    def test_dora_of_layers_with_biases_and_in_bf16(self):
        """A new one changes nothing at first; what is merged gives what it gave beside the weights."""
        write_pair(self.path("batches"), [[[1], list(range(2, 34))] for _ in range(8)])
        for model, plugin, more in (("qwen2", "qwen", {}), ("gptneox", "gptneox", {}),
                                    ("gpt2", "gpt2", {"recompute": "full"}),
                                    ("llama", "llama", {"precision": "bf16"})):
            first = {}
            for kind in ("lora", "dora"):
                name = model + kind
                job = self.job(name, adapter__a={"kind": kind, "match": "blocks.*.w*", "rank": 2},
                               train=dict({"steps": 6, "micro_batch": 2}, **more),
                               model={"plugin": plugin},
                               **{"import": {"from": os.path.join(GOLDEN, model), "adapter": None}})
                self.run_longhaul("run", job)
                losses = self.losses(name)
                first[kind] = losses[0]
                self.assertLess(losses[-1], losses[0] - 0.1)
            self.assertAlmostEqual(first["lora"], first["dora"], delta=1e-6, msg=model)
            out, _ = self.run_longhaul("generate", job, "--ids", "5,6,7", "--tokens", "6",
                                       "--greedy", "--json")
            plain = self.ini({"pipeline": {"name": "m", "stages": "import",
                                           "folder": name + "-merged"},
                              "import": {"from": self.path(name, "hf")},
                              "train": {"precision": more.get("precision", "f32")},
                              "model": {"plugin": plugin, "vocab": "from_import"},
                              "device": {"plugin": "cpu", "threads": 1}}, "merged.ini")
            self.run_longhaul("import", plain)
            if "precision" in more:
                self.check_merged_loss(model, job, plugin, more)
                continue
            merged, _ = self.run_longhaul("generate", plain, "--ids", "5,6,7", "--tokens", "6",
                                          "--greedy", "--json")
            self.assertEqual(json.loads(out)["new_ids"], json.loads(merged)["new_ids"], model)

    def check_merged_loss(self, model, job, plugin, more):
        """Where products are rounded, what is merged is so elsewhere than what stands beside, and one of two likely
        tokens may be the other: the loss that the next step finds is what both have in common. All batches are the
        same here."""
        longer = ("--set", "train.steps=7", "--set", "pipeline.folder=" + model + "-longer")
        self.run_longhaul("run", job, *longer)
        losses = self.losses(model + "-longer")
        again = self.job(model + "-again", train=dict({"steps": 1, "micro_batch": 2}, **more), model={"plugin": plugin},
                         adapter__a={"match": "blocks.*.w*", "rank": 2},
                         **{"import": {"from": self.path(model + "dora", "hf"), "adapter": None}})
        self.run_longhaul("run", again)
        merged = self.losses(model + "-again")[0]
        print("%s: %.4f beside, %.4f merged; a step before it was %.4f" % (model, losses[-1], merged, losses[-2]))
        self.assertLess(abs(merged - losses[-1]), 0.25 * abs(losses[-2] - losses[-1]), model)

    def test_any_model_has_adapters(self):
        """Also where several matrices are one tensor, or lie the other way round, merged alone."""
        write_pair(self.path("batches"), [[[1], list(range(2, 34))] for _ in range(8)])
        for model, plugin, alone in (("qwen3", "qwen", True), ("gemma2", "gemma", True),
                                     ("gpt2", "gpt2", False), ("falcon-7b-kind", "falcon", False),
                                     ("gptneox", "gptneox", False), ("mixtral", "mixtral", True)):
            with self.subTest(model=model):
                job = self.job(model, adapter__a={"match": "blocks.*.w*", "rank": 2},
                               train={"steps": 6, "micro_batch": 2},
                               model={"plugin": plugin},
                               **{"import": {"from": os.path.join(GOLDEN, model),
                                             "adapter": None}})
                self.run_longhaul("run", job)
                losses = self.losses(model)
                self.assertLess(losses[-1], losses[0] - 0.1)
                before = tensors_of(os.path.join(GOLDEN, model, "model.safetensors"))
                after = tensors_of(self.path(model, "hf", "model.safetensors"))
                self.assertEqual(sorted(after), sorted(before))
                changed = [n for n in after if after[n] != before[n]]
                self.assertTrue(changed)
                self.assertFalse([n for n in changed if "norm" in n or "embed" in n or "wte" in n])
                # What was merged alone gives what the adapter gave beside the weights.
                out, _ = self.run_longhaul("generate", job, "--ids", "5,6,7", "--tokens", "8",
                                           "--greedy", "--json")
                plain = self.ini({"pipeline": {"name": "m", "stages": "import",
                                               "folder": model + "-merged"},
                                  "import": {"from": self.path(model, "hf")},
                                  "train": {"precision": "f32"},
                                  "model": {"plugin": plugin, "vocab": "from_import"},
                                  "device": {"plugin": "cpu", "threads": 1}}, "merged.ini")
                self.run_longhaul("import", plain)
                merged, _ = self.run_longhaul("generate", plain, "--ids", "5,6,7", "--tokens", "8",
                                              "--greedy", "--json")
                self.assertEqual(json.loads(out)["new_ids"], json.loads(merged)["new_ids"])
                more = ["--set", "export.adapter=separate", "--set", "export.folder=alone"]
                if alone:
                    self.run_longhaul("export", job, *more)
                else:
                    for command in ("export", "check"):
                        _, said = self.run_longhaul(command, job, *more, code=REFUSED)
                        self.assertIn("is no tensor of its own", said)

    def test_files_of_an_adapter_may_be_links(self):
        """As in Hugging Face's cache, where they lead to another folder."""
        os.chmod(shutil.copytree(LORA, self.path("blobs")), 0o755)
        os.mkdir(self.path("snapshot"))
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            os.symlink(os.path.join("..", "blobs", name), self.path("snapshot", name))
        job = self.job("links", pipeline={"stages": "import"},
                       **{"import": {"adapter": self.path("snapshot")}})
        self.run_longhaul("import", job)

    def test_what_does_not_fit_is_refused(self):
        write_pair(self.path("batches"), [[[1], [2, 3]]])

        def refused(sentence, *sets, **changes):
            job = self.job("bad", **changes)
            more = set_flags(*sets)
            _, said = self.run_longhaul("run", job, *more, code=REFUSED)
            self.assertIn(sentence, said)
            self.assertFalse(os.path.exists(self.path("bad", "checkpoints")))
        refused("r is 4, 3, as [adapter.NAME] has it, was expected", "adapter.a.rank=3")
        refused("lora_alpha is 8, 16, as [adapter.NAME] has it", "adapter.a.alpha=16")
        refused("use_dora is false, true was expected", "adapter.a.kind=dora")
        refused("names no matrix of the model's blocks", "adapter.a.match=blocks.*.norm1, embed")
        refused("names blocks.0.w_gate, a stack of 4 experts: adapters are of single matrices", "adapter.a.match=blocks.*.w_gate",
                model={"plugin": "mixtral"}, **{"import": {"from": os.path.join(GOLDEN, "mixtral"), "adapter": None}})
        refused("expected a rank of at most its shorter side", "adapter.a.rank=17",
                **{"import": {"adapter": None}})
        refused("is of no matrix that [adapter.NAME] match names",
                "adapter.a.match=" + MATCH.split(",")[0])
        refused("is the second adapter", adapter__b={"match": "blocks.*"})
        folder = self.path("peft")
        shutil.copytree(LORA, folder)
        os.chmod(folder, 0o755)
        with open(os.path.join(LORA, "adapter_config.json")) as f:
            config = json.load(f)
        for key, value, sentence in (("use_dora", True, "use_dora is true, false was expected"),
                                     ("bias", "all", "bias is \"all\""),
                                     ("rank_pattern", {"q_proj": 2}, "rank_pattern is"),
                                     ("init_lora_weights", "pissa", "init_lora_weights is \"pissa\""),
                                     ("init_lora_weights", "pissa_niter_4", "init_lora_weights is"),
                                     ("alora_invocation_tokens", [1, 2], "alora_invocation_tokens is [1,2]"),
                                     ("peft_type", "IA3", "peft_type is \"IA3\"")):
            with open(os.path.join(folder, "adapter_config.json"), "w") as f:
                json.dump(dict(config, **{key: value}), f)
            refused(sentence, "import.adapter=" + folder)
        with open(os.path.join(folder, "adapter_config.json"), "w") as f:
            json.dump(config, f)
        tensors = tensors_of(os.path.join(LORA, "adapter_model.safetensors"))
        name = sorted(tensors)[0]
        dtype, shape, data = tensors[name]
        write_tensors(os.path.join(folder, "adapter_model.safetensors"),
                      dict(tensors, **{name: (dtype, [shape[1], shape[0]], data)}))
        refused("the model wants [4, 56]", "import.adapter=" + folder, "pipeline.folder=" + self.path("shapes"))
        self.assertFalse(os.path.exists(self.path("shapes", "import", "checkpoints", "latest")))
        tensors.pop(name)
        write_tensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
        refused("peft: tensor %s is missing" % name, "import.adapter=" + folder)


main()
