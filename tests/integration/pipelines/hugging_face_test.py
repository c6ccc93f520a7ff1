"""Folders of Hugging Face: import then export gives the same tensors bit for bit, whatever their dtypes
and files, and config.json's other keys; Transformers loads what comes out and computes the same."""
import json
import os
import shutil
import struct
import subprocess
import sys
import unittest

from pipeline_case import DATA, REFUSED, SOURCE, PipelineCase, floats, main, tensors_of, write_tensors
from transformers_peer import Peer

GOLDEN = os.path.join(SOURCE, "tests", "golden")
CAPP = os.path.join(SOURCE, "tests", "data", "models", "capp-gpt2")
STORIES = os.path.join(DATA, "stories260K")
MODELS = {"stories260K": (STORIES, "llama"), "capp-gpt2": (CAPP, "gpt2"),
          "llama": (GOLDEN + "/llama", "llama"), "gpt2": (GOLDEN + "/gpt2", "gpt2"),
          "llama-tied-scaled-rope": (GOLDEN + "/llama-tied-scaled-rope", "llama")}
READER = os.path.join(SOURCE, "tests", "integration", "read_folder.py")
PEERS = os.environ.get("LONGHAUL_PEERS", os.path.join(SOURCE, "build", "peers", "bin", "python"))
NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def narrowed(tensor, dtype):
    """F32 as BF16 (cut off: any bits will do here) or F16."""
    _, shape, data = tensor
    if dtype == "F32":
        return tensor
    if dtype == "BF16":
        return dtype, shape, b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
    return dtype, shape, struct.pack("<%de" % (len(data) // 4), *floats(data))


class HuggingFace(PipelineCase):
    def variant(self, name, dtype="F32", shards=1):
        """A copy of a model in another dtype ("mixed": each tensor another), maybe in shards."""
        source, plugin = MODELS[name]
        folder = self.path("from")
        shutil.rmtree(folder, True)
        os.makedirs(folder)
        for file in os.listdir(source):
            if not file.endswith(".safetensors") and file not in ("expected.json",
                                                                  "reference.json"):
                shutil.copy(os.path.join(source, file), folder)
        tensors = tensors_of(source + "/model.safetensors")
        kinds = sorted(NAMES)
        tensors = {n: narrowed(t, kinds[i % 3] if dtype == "mixed" else dtype)
                   for i, (n, t) in enumerate(tensors.items())}
        with open(folder + "/config.json") as f:
            config = json.load(f)
        config["dtype" if "dtype" in config else "torch_dtype"] = NAMES.get(dtype, "float32")
        config["a_key_of_somebody_else"] = {"kept": [1, 2.5, None, "ä"]}
        with open(folder + "/config.json", "w") as f:
            json.dump(config, f)
        self.write_shards(folder, tensors, shards)
        return folder, plugin

    def write_shards(self, folder, tensors, shards):
        if shards == 1:
            write_tensors(folder + "/model.safetensors", tensors)
            return
        index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())},
                 "weight_map": {}}
        names = sorted(tensors)
        for i in range(shards):
            file = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
            part = {n: tensors[n] for n in names[i::shards]}
            write_tensors(os.path.join(folder, file), part)
            index["weight_map"].update((n, file) for n in part)
        with open(folder + "/model.safetensors.index.json", "w") as f:
            json.dump(index, f)

    def converted(self, folder, plugin, **export):
        shutil.rmtree(self.path("out"), True)
        job = self.ini({"pipeline": {"name": "convert", "stages": "import export",
                                     "folder": "out"},
                        "import": {"from": folder},
                        "model": {"plugin": plugin, "vocab": "from_import"},
                        "device": {"plugin": "cpu"}, "export": export})
        self.run_longhaul("run", job)
        return self.path("out", "hf")

    def read(self, *args):
        done = subprocess.run([sys.executable, "-B", READER] + list(args), capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_import_then_export_is_the_same_bit_for_bit(self):
        for name in MODELS:
            for dtype in ("F32", "BF16", "F16", "mixed"):
                with self.subTest(name=name, dtype=dtype):
                    folder, plugin = self.variant(name, dtype)
                    self.read(self.converted(folder, plugin), folder)

    def test_shards_come_in_and_go_out(self):
        folder, plugin = self.variant("stories260K", "mixed", shards=3)
        self.read(self.converted(folder, plugin), folder)
        folder, plugin = self.variant("stories260K", "F32", shards=3)
        out = self.converted(folder, plugin, shard_bytes="1MB")
        self.assertEqual(len([n for n in os.listdir(out) if n.endswith(".safetensors")]), 2)
        self.read(out, folder)

    def test_another_dtype_is_written_where_it_is_asked_for(self):
        folder, plugin = self.variant("llama")
        out = self.converted(folder, plugin, dtype="bf16")
        self.assertEqual({t[0] for t in tensors_of(out + "/model.safetensors").values()},
                         {"BF16"})
        with open(out + "/config.json") as f:
            config = json.load(f)
        self.assertIn("bfloat16", (config.get("dtype"), config.get("torch_dtype")))

    def test_values_that_a_narrow_dtype_has_no_number_for_are_told(self):
        folder, plugin = self.variant("llama")
        tensors = tensors_of(folder + "/model.safetensors")
        dtype, shape, data = tensors["model.embed_tokens.weight"]
        tensors["model.embed_tokens.weight"] = dtype, shape, struct.pack("<2f", 1e6, 65504) + data[8:]
        write_tensors(folder + "/model.safetensors", tensors)
        job = self.ini({"pipeline": {"name": "convert", "stages": "import export", "folder": "out"},
                        "import": {"from": folder},
                        "model": {"plugin": plugin, "vocab": "from_import"},
                        "device": {"plugin": "cpu"}})
        self.run_longhaul("import", job)
        for dtype, told in (("f16", True), ("bf16", False), ("f32", False)):
            _, said = self.run_longhaul("export", job, "--set", "export.dtype=" + dtype)
            self.assertEqual("model.embed_tokens.weight: 1 of 4192 values are too large for F16" in said,
                             told, dtype)

    def test_nothing_is_generated_of_weights_that_are_no_numbers(self):
        folder, plugin = self.variant("llama")
        tensors = tensors_of(folder + "/model.safetensors")
        dtype, shape, data = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = dtype, shape, struct.pack("<f", float("nan")) + data[4:]
        write_tensors(folder + "/model.safetensors", tensors)
        job = self.ini({"pipeline": {"name": "x", "stages": "import", "folder": "out"},
                        "import": {"from": folder}, "train": {"precision": "f32"},
                        "model": {"plugin": plugin, "vocab": "from_import"},
                        "device": {"plugin": "cpu"}})
        self.run_longhaul("import", job)
        for how in ((), ("--greedy",)):
            _, said = self.run_longhaul("generate", job, "--ids", "1,2", "--tokens", "3", *how,
                                        code=REFUSED)
            self.assertIn("its weights are not finite", said)

    def test_stretched_rope_of_gemma_2_is_refused_in_either_spelling(self):
        with open(GOLDEN + "/gemma2/config.json") as f:
            config = json.load(f)
        config.pop("rope_parameters")
        for key in ("type", "rope_type"):
            folder = self.path("stretched-" + key)
            os.makedirs(folder)
            shutil.copy(GOLDEN + "/gemma2/model.safetensors", folder)
            with open(folder + "/config.json", "w") as f:
                json.dump(dict(config, rope_scaling={key: "linear", "factor": 8.0}), f)
            job = self.ini({"pipeline": {"name": "g", "stages": "import", "folder": "out"},
                            "import": {"from": folder},
                            "model": {"plugin": "gemma", "vocab": "from_import"}})
            _, said = self.run_longhaul("import", job, code=REFUSED)
            self.assertIn("rope_scaling.%s is linear, expected default" % key, said)

    def edited(self, name, change, tensors=None):
        """Imports a copy of a golden model with another config.json, or other tensors: code and words."""
        folder = self.path("edited")
        shutil.rmtree(folder, True)
        shutil.rmtree(self.path("out"), True)
        os.makedirs(folder)
        with open("%s/%s/config.json" % (GOLDEN, name)) as f:
            config = json.load(f)
        config.update(change)
        with open(folder + "/config.json", "w") as f:
            json.dump({k: v for k, v in config.items() if v is not ...}, f)
        values = tensors_of("%s/%s/model.safetensors" % (GOLDEN, name))
        write_tensors(folder + "/model.safetensors", tensors(values) if tensors else values)
        return self.ini({"pipeline": {"name": "e", "stages": "import", "folder": "out"},
                         "import": {"from": folder}, "model": {"plugin": "from_import", "vocab": "from_import"}})

    def test_what_transformers_computes_otherwise_is_refused(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
        for name, change, words in (
                ("qwen3", {"rope_scaling": yarn}, "rope_parameters.rope_type is default and rope_scaling.rope_type is yarn"),
                ("falcon-7b-kind", {"rope_scaling": yarn}, "rope_scaling.rope_type is yarn"),
                ("mistral-window", {"layer_types": ["full_attention", "sliding_attention"]},
                 "layer_types[0] is full_attention, expected sliding_attention"),
                ("qwen2", {"is_causal": False}, "is_causal is false, expected true"),
                ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor is missing")):
            with self.subTest(name=name, change=change):
                _, said = self.run_longhaul("import", self.edited(name, change), code=REFUSED)
                self.assertIn(words, said)

    def test_absent_rope_keys_say_what_they_say_to_transformers(self):
        for rope, words in (({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                             "rope_original = 128"),
                            ({"type": "linear", "factor": 4.0}, "rope_scaling = linear")):
            job = self.edited("llama", {"rope_parameters": rope})
            out, _ = self.run_longhaul("import", job, "--print")
            self.assertIn(words, out)

    def test_a_tied_tensor_of_other_values_is_refused(self):
        def other_head(tensors):
            dtype, shape, data = tensors["transformer.wte.weight"]
            tensors["lm_head.weight"] = dtype, shape, data[:-4] + struct.pack("<f", 3.5)
            return tensors
        _, said = self.run_longhaul("import", self.edited("gpt2", {}, other_head), code=REFUSED)
        self.assertIn("lm_head.weight has other values than transformer.wte.weight", said)

    def test_names_without_the_models_prefix_are_read(self):
        for name, prefix in (("qwen3", "model."), ("gptneox", "gpt_neox.")):
            job = self.edited(name, {}, lambda t, p=prefix: {n[len(p):] if n.startswith(p) else n: v
                                                             for n, v in t.items()})
            self.run_longhaul("import", job)

    def test_rope_keys_are_written_in_the_old_and_the_new_form(self):
        for name, base, kind in (("llama-tied-scaled-rope", 500000, "llama3"),
                                 ("stories260K", 10000, "default")):
            folder, plugin = self.variant(name)
            with open(self.converted(folder, plugin) + "/config.json") as f:
                config = json.load(f)
            self.assertEqual(config["rope_theta"], base)
            self.assertEqual(config["rope_parameters"]["rope_theta"], base)
            self.assertEqual(config["rope_parameters"]["rope_type"], kind)
            if kind == "llama3":
                for key in ("factor", "low_freq_factor", "high_freq_factor",
                            "original_max_position_embeddings"):
                    self.assertEqual(config["rope_scaling"][key], config["rope_parameters"][key])
            self.assertEqual(config["a_key_of_somebody_else"], {"kept": [1, 2.5, None, "ä"]})

    def test_the_tokenizer_comes_along(self):
        folder, plugin = self.variant("stories260K")
        out = self.converted(folder, plugin)
        for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"):
            with open(os.path.join(out, name), "rb") as a, open(STORIES + "/" + name, "rb") as b:
                self.assertEqual(a.read(), b.read(), name)

    def test_another_tokenizer_than_the_imported_one_is_told(self):
        folder, plugin = self.variant("stories260K")
        for tokenizer, told in ((STORIES + "/tokenizer.json", False), (DATA + "/gpt2-tiny/vocab.json", True)):
            shutil.rmtree(self.path("out"), True)
            job = self.ini({"pipeline": {"name": "x", "stages": "import", "folder": "out"},
                            "import": {"from": folder}, "device": {"plugin": "cpu"},
                            "prepare": {"input": self.stories(), "tokenizer": tokenizer},
                            "model": {"plugin": plugin, "vocab": "from_import"}})
            self.run_longhaul("import", job)
            _, said = self.run_longhaul("export", job)
            self.assertEqual("tokenizer of the model that was imported" in said, told, said)

    def test_dropout_is_ignored_with_one_line(self):
        folder, plugin = self.variant("capp-gpt2")
        job = self.ini({"pipeline": {"name": "x", "stages": "import", "folder": "out"},
                        "import": {"from": folder}, "device": {"plugin": "cpu"},
                        "model": {"plugin": plugin, "vocab": "from_import"}})
        _, said = self.run_longhaul("import", job)
        lines = [line for line in said.splitlines() if "ignored" in line]
        self.assertEqual(len(lines), 1, said)
        self.assertIn("attn_pdrop", lines[0])


@unittest.skipUnless(os.access(PEERS, os.X_OK), "Transformers is not there (make peers, or LONGHAUL_PEERS)")
class Transformers(PipelineCase):
    peer = Peer(PEERS)

    @classmethod
    def tearDownClass(cls):
        cls.peer.end()

    def probe(self, folder, request):
        got = self.peer.ask(folder=folder, **request)
        self.assertEqual(got["complaints"], {})
        return got

    def test_the_logits_of_exported_models_are_those_of_the_reference(self):
        for name in ("stories260K", "capp-gpt2"):
            source, plugin = MODELS[name]
            with open(source + "/reference.json") as f:
                reference = json.load(f)
            prompts = [reference["prompt"]] if "prompt" in reference else reference["cases"]
            out = HuggingFace.converted(self, source, plugin)
            got = self.probe(out, {"prompts": [p["ids"] for p in prompts]})
            for prompt, logits in zip(prompts, got["logits"]):
                worst = max(abs(a - b) for a, b in zip(prompt["logits_at_last_position"], logits))
                self.assertLess(worst, 1e-4, name)

    def test_a_model_trained_here_computes_the_same_there(self):
        job = self.small_job(stages="prepare train export", train={"precision": "f32"},
                             model={"max_tokens": 2048},  # a whole document is a prompt below
                             eval={"data": "documents.jsonl", "bos": "yes",
                                   "tokens_per_document": 64})
        with open(DATA + "/tinystories-1000.jsonl") as f:
            self.write("documents.jsonl", "".join(f.readlines()[200:212]))
        self.run_longhaul("run", job)
        out, _ = self.run_longhaul("eval", job, "--json", "--per-document")
        ours = [json.loads(line)["loss"] for line in out.splitlines()[:-1]]
        out, _ = self.run_longhaul("generate", job, "--ids", "1,403,407", "--greedy", "--tokens",
                                   "40", "--json")
        text = json.loads(out)["new_ids"]
        documents = self.ids_of_documents(job)
        got = self.probe(self.path("out", "hf"), {"documents": documents, "start": [1, 403, 407],
                                                  "tokens": 40})
        self.assertEqual(got["greedy"], text)
        self.assertEqual(len(got["losses"]), len(ours))
        for a, b in zip(ours, got["losses"]):
            self.assertLess(abs(a - b), 1e-5)

    def test_models_begun_here_load_there_whatever_stands_at_its_default(self):
        for kind in ({"plugin": "qwen"}, {"plugin": "llama", "kind": "mistral"}, {"plugin": "mixtral"},
                     {"plugin": "gemma"}, {"plugin": "gemma", "kind": "gemma3_text"}):
            with self.subTest(**kind):
                shutil.rmtree(self.path("out"), True)
                job = self.small_job(stages="prepare train export", train={"steps": 1}, model=dict(kind, kv_heads=None))
                self.run_longhaul("run", job)
                self.probe(self.path("out", "hf"), {"prompts": [[1, 403, 407]]})

    def ids_of_documents(self, job):
        """What our own tokenizer makes of them; it has tests of its own."""
        ids = []
        with open(self.path("documents.jsonl")) as f:
            for line in f:
                out, _ = self.run_longhaul("generate", job, "--prompt", json.loads(line)["text"],
                                           "--tokens", "1", "--json", "--set", "generate.bos=yes")
                ids.append(json.loads(out)["prompt_ids"][:64])
        return ids


main()
