"""The models of tests/golden through the commands, by plugin and, where there is one, by spec; two have no plugin: what is imported
comes back bit for bit, greedy ids are those of Transformers, and Transformers loads what is exported and computes the
same. Models of other sizes and seeds, made by the Python of the peers (tests/reference/golden.py), go through all of it
and through the C tests that compare logits, gradients and loss curves: one layout in each run, LONGHAUL_TORTURE=1 all
models of three sizes, every way."""
import json
import os
import shutil
import struct
import subprocess
import unittest

from pipeline_case import BINARY, SOURCE, TORTURE, PipelineCase, checkpoint_digest, floats, main, tensors_of
from transformers_peer import Peer

GOLDEN = os.path.join(SOURCE, "tests", "golden")
REFERENCE = os.path.join(SOURCE, "tests", "reference")
PEERS = os.environ.get("LONGHAUL_PEERS", os.path.join(SOURCE, "build", "peers", "bin", "python"))
HAS_PEERS = os.access(PEERS, os.X_OK)
LACKING = "Transformers is not there (make peers, or LONGHAUL_PEERS)"
SPECS = {"falcon-7b-kind": "falcon-7b", "qwen3": "qwen3", "gpt2": "gpt2", "mixtral": "mixtral", "mla": "mla", "phi3": "phi3"}
WITHOUT_PLUGIN = ("mla", "phi3")
# The model_type of each kind before Transformers knew Falcon, and keys of today that those files had not.
OLD_FALCONS = {"falcon-7b-kind": "RefinedWebModel", "falcon-40b-kind": "RefinedWeb", "falcon-rw-kind": "RefinedWebModel"}
NEWER = ("activation", "ffn_hidden_size", "max_position_embeddings", "new_decoder_architecture", "num_ln_in_parallel_attn",
         "rope_parameters", "tie_word_embeddings")
MODELS = sorted(n for n in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, n, "expected.json")) and n != "phases")
# What torture makes: heads that share keys by threes, one head, and more blocks than the models of tests/golden.
SIZES = ({"hidden": 48, "heads": 6, "kv_heads": 2, "ffn": 40, "layers": 3, "vocab": 97, "seed": 7},
         {"hidden": 64, "heads": 8, "kv_heads": 8, "ffn": 72, "layers": 1, "vocab": 259, "seed": 11},
         {"hidden": 64, "heads": 4, "kv_heads": 1, "ffn": 112, "layers": 4, "vocab": 131, "seed": 13})
PROGRAMS = ("golden_engine_test", "golden_ranks_test", "golden_curves_test", "spec_models_test")
ROWS, TOKENS = 4, 32  # of a batch


def ways(name):
    """The specs by which a model is read; None: its plugin."""
    return {SPECS.get(name)} | ({None} if name not in WITHOUT_PLUGIN else set())


class Models(PipelineCase):
    peer = Peer(PEERS)

    @classmethod
    def tearDownClass(cls):
        cls.peer.end()

    def job(self, source, spec=None, precision="f32"):
        model = {"vocab": "from_import"}
        if spec is None:
            model["plugin"] = "from_import"
        path = self.ini({"pipeline": {"name": "golden", "stages": "import export", "folder": "out"},
                         "import": {"from": source}, "model": model, "train": {"precision": precision},
                         "device": {"plugin": "cpu", "threads": 1}})
        if spec is not None:
            with open(path) as f:
                text = f.read()
            self.write(os.path.basename(path), "include = %s/examples/specs/%s.ini\n%s" % (SOURCE, spec, text))
        return path

    def there_and_back(self, source, spec=None):
        """The exported folder; what is greedy by either is compared on the way."""
        job = self.job(source, spec)
        self.run_longhaul("run", job)
        out = self.path("out", "hf")
        self.assertEqual(tensors_of(out + "/model.safetensors"), tensors_of(source + "/model.safetensors"))
        with open(os.path.join(source, "expected.json")) as f:
            greedy = json.load(f)["greedy"]
        said, _ = self.run_longhaul("generate", job, "--greedy", "--json", "--ids", ",".join(map(str, greedy["prompt"])),
                                    "--tokens", str(len(greedy["continuation"])))
        self.assertEqual(json.loads(said)["new_ids"], greedy["continuation"])
        return out

    def probe(self, source, folder):
        """The logits at every position of the first batch, by Transformers, of a folder that was exported."""
        (_, shape, data) = tensors_of(source + "/batch.safetensors")["tokens"]
        ids = struct.unpack("<%di" % (len(data) // 4), data)
        rows = [list(ids[i * shape[2]:i * shape[2] + TOKENS]) for i in range(ROWS)]
        got = self.peer.ask(folder=folder, rows=rows)
        self.assertEqual(got["complaints"], {})
        (_, shape, data) = tensors_of(source + "/expected.safetensors")["logits"]
        expected = floats(data)
        logits = [value for row in got["rows"] for value in row]
        self.assertEqual((len(logits), shape[:2]), (len(expected), [ROWS, TOKENS]))
        self.assertLess(max(abs(a - b) for a, b in zip(logits, expected)), 2e-4, source)

    def test_what_is_imported_comes_back_and_greedy_ids_are_transformers(self):
        """In torture Transformers loads what is exported of each of them, too; else of four, in a test of its own."""
        self.assertEqual(len(MODELS), 14 + len(WITHOUT_PLUGIN))
        for name in MODELS:
            for spec in ways(name):
                with self.subTest(model=name, spec=spec):
                    source = os.path.join(GOLDEN, name)
                    out = self.there_and_back(source, spec)
                    if TORTURE and HAS_PEERS and (spec is None or name in WITHOUT_PLUGIN):
                        self.probe(source, out)
                    self.fresh()

    def fresh(self):
        shutil.rmtree(self.path("out"))

    def old_falcon(self, name):
        """A folder of tests/golden with the config.json that it would have had."""
        folder = self.path("old-" + name)
        shutil.copytree(os.path.join(GOLDEN, name), folder)
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
        kv_heads, grouped = config.pop("num_kv_heads"), config["new_decoder_architecture"]
        for key in NEWER:
            del config[key]
        for new, old in (("num_attention_heads", "n_head"), ("num_hidden_layers", "n_layer"), ("dtype", "torch_dtype")):
            config[old] = config.pop(new)
        if grouped:
            config["n_head_kv"] = kv_heads
            del config["multi_query"]
        config.update(model_type=OLD_FALCONS[name], architectures=["RWForCausalLM"], apply_residual_connection_post_layernorm=False,
                      auto_map={"AutoConfig": "configuration_RW.RWConfig", "AutoModelForCausalLM": "modelling_RW.RWForCausalLM"})
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        return folder

    def test_falcon_of_before_transformers_knew_it(self):
        """Its parameters are those of today's folder, and the export says what today's says."""
        checkpoint = self.path("out", "import", "checkpoints", "step-000000000000")
        for name in OLD_FALCONS:
            with self.subTest(model=name):
                self.there_and_back(os.path.join(GOLDEN, name))
                parameters = checkpoint_digest(checkpoint)
                self.fresh()
                source = self.old_falcon(name)
                out = self.there_and_back(source)
                self.assertEqual(checkpoint_digest(checkpoint), parameters)
                with open(os.path.join(out, "config.json")) as f:
                    written = json.load(f)
                with open(os.path.join(GOLDEN, name, "config.json")) as f:
                    today = json.load(f)
                for key in ("model_type", "architectures", "num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size",
                            "new_decoder_architecture", "multi_query", "parallel_attn", "alibi", "bias"):
                    self.assertEqual(written[key], today[key], key)
                self.assertNotIn("auto_map", written)
                if today["new_decoder_architecture"]:
                    self.assertEqual(written["num_kv_heads"], today["num_kv_heads"])
                if HAS_PEERS and (TORTURE or today["new_decoder_architecture"]):
                    self.probe(source, out)
                self.fresh()

    @unittest.skipUnless(HAS_PEERS, LACKING)
    @unittest.skipIf(TORTURE, "Transformers has loaded each of them once it had come back")
    def test_transformers_loads_what_is_exported(self):
        for name in ("gemma3", "mixtral", *WITHOUT_PLUGIN):
            with self.subTest(model=name):
                source = os.path.join(GOLDEN, name)
                self.probe(source, self.there_and_back(source, SPECS[name] if name in WITHOUT_PLUGIN else None))
                self.fresh()

    def made(self, folder, sizes, names):
        """Models of other sizes, as tests/golden has them."""
        flags = [word for key, value in sizes.items() for word in ("--" + key.replace("_", "-"), str(value))]
        classes = []
        for name in names:
            with open(os.path.join(GOLDEN, name, "config.json")) as f:
                classes += json.load(f)["architectures"]
        for words in ([os.path.join(REFERENCE, "golden.py"), *flags, folder, *names],
                      *[[os.path.join(REFERENCE, "micro_batches.py"), os.path.join(folder, n)] for n in names if n == "mixtral"]):
            code, _, err = self.peer.run(*words, models=classes)
            self.assertEqual(code, 0, err[-3000:])

    @unittest.skipUnless(HAS_PEERS, LACKING)
    def test_models_of_other_sizes_and_seeds(self):
        for i, sizes in enumerate(SIZES if TORTURE else SIZES[:1]):
            folder = self.path("made%d" % i)
            names = MODELS if TORTURE else ("qwen3", "mixtral", "mla")
            self.made(folder, sizes, names)
            for program in PROGRAMS if TORTURE else PROGRAMS[:2]:
                with self.subTest(program=program, sizes=sizes):
                    # golden_curves_test says of each way how many threads it has.
                    env = dict(os.environ, LH_TEST_GOLDEN=folder, LH_TEST_DEVICE="cpu", LH_TEST_THREADS="1")
                    done = subprocess.run([os.path.join(os.path.dirname(BINARY), "..", "tests", program)], capture_output=True,
                                          text=True, env=env)
                    self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-6000:])
                    self.assertIn("[  PASSED  ]", done.stdout + done.stderr)
            for name in names:
                for spec in ways(name):
                    with self.subTest(model=name, spec=spec, sizes=sizes):
                        out = self.there_and_back(os.path.join(folder, name), spec)
                        if TORTURE:
                            self.probe(os.path.join(folder, name), out)
                        self.fresh()


main()
