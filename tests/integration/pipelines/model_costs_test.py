"""What a model costs that is not its own work: a conversion's memory is the largest tensor and a little more, a routed
model's grows with the experts that a token goes to and not with those that there are, the largest is planned from its
config.json alone, each rank reads its own slices of an import, and `check` is quick."""
import json
import os
import resource
import struct
import subprocess
import sys
import unittest

from pipeline_case import BINARY, SOURCE, PipelineCase, add_plugin, main

MIB = 1 << 20
SLACK = 256 * MIB  # beside the largest tensor
BESIDE = 20 * MIB  # of what a rank reads
CHECK_S = 0.05     # of processors
PUBLISHED = os.path.join(os.environ.get("LONGHAUL_REFERENCE", ""), "data", "hf-metadata")
LACKING = "LONGHAUL_REFERENCE names no folder with published config.json files"
SANITIZED = os.environ.get("LONGHAUL_SANITIZED") == "1"
HIDDEN, FFN, BLOCKS, VOCAB, FILES = 1024, 4096, 10, 512, 3
# Of a token: what it asks of the experts that it goes to, and its router.
ROUTED = {"plugin": "mixtral", "blocks": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 2, "vocab": 512,
          "max_tokens": 256, "balanced": "yes"}


def llama_config(blocks, **other):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN,
            "num_hidden_layers": blocks, "num_attention_heads": 16, "vocab_size": VOCAB, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "dtype": "float32", **other}


def llama_tensors(blocks, vocab=VOCAB):
    yield "model.embed_tokens.weight", (vocab, HIDDEN)
    for i in range(blocks):
        at = "model.layers.%d." % i
        for name, shape in (("input_layernorm", (HIDDEN,)), ("post_attention_layernorm", (HIDDEN,)),
                            ("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (HIDDEN, HIDDEN)),
                            ("self_attn.v_proj", (HIDDEN, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HIDDEN)),
                            ("mlp.gate_proj", (FFN, HIDDEN)), ("mlp.up_proj", (FFN, HIDDEN)), ("mlp.down_proj", (HIDDEN, FFN))):
            yield at + name + ".weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (vocab, HIDDEN)


def gpt2_tensors(width):
    """One block; its matrices are [in, out], and queries, keys and values stand beside each other."""
    yield "wte.weight", (VOCAB, width)
    yield "wpe.weight", (256, width)
    for name, shape in (("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)), ("mlp.c_fc", (width, 4 * width)),
                        ("mlp.c_proj", (4 * width, width))):
        yield "h.0.%s.weight" % name, shape
        yield "h.0.%s.bias" % name, shape[1:]
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        yield name + ".weight", (width,)
        yield name + ".bias", (width,)


def qwen3_tensors(config):
    hidden, d, ffn = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q, kv = d * config["num_attention_heads"], d * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        for name, shape in (("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)), ("self_attn.q_norm", (d,)),
                            ("self_attn.k_norm", (d,)), ("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)), ("mlp.gate_proj", (ffn, hidden)),
                            ("mlp.up_proj", (ffn, hidden)), ("mlp.down_proj", (hidden, ffn))):
            yield "model.layers.%d.%s.weight" % (i, name), shape
    yield "model.norm.weight", (hidden,)


def place(path, name):
    """Where a tensor of a file begins and ends in it."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        begin, end = json.loads(f.read(length))[name]["data_offsets"]
    return 8 + length + begin, 8 + length + end


def bytes_at(path, at, count):
    with open(path, "rb") as f:
        f.seek(at)
        return f.read(count)


def sparse_folder(folder, config, tensors, dtype, files=FILES):
    """A folder of noughts in some files, which lie nowhere on the disk. Gives its bytes and those of the largest tensor."""
    os.mkdir(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    tensors, weight_map, total, largest = list(tensors), {}, 0, 0
    for i in range(files):
        file, header, at = "model-%05d-of-%05d.safetensors" % (i + 1, files), {}, 0
        for name, shape in tensors[i::files]:
            size = {"F32": 4, "BF16": 2}[dtype] * shape[0] * (shape[1] if len(shape) == 2 else 1)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            weight_map[name] = file
            at, total, largest = at + size, total + size, max(largest, size)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    return total, largest


class ModelCosts(PipelineCase):
    def sparse_llama(self, blocks=BLOCKS):
        folder = self.path("from")
        return (folder, *sparse_folder(folder, llama_config(blocks), llama_tensors(blocks), "F32"))

    def rusage(self, *words):
        """What a command used: it is the child of a process that has no other."""
        with open(self.path("said"), "w+") as said:
            child = os.posix_spawn(BINARY, [BINARY, *words], os.environ,
                                   file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)])
            _, status, used = os.wait4(child, 0)
            said.seek(0)
            self.assertEqual(os.waitstatus_to_exitcode(status), 0, said.read()[-3000:])
        return used

    def converted(self, folder):
        """The most memory of an import and of the export of what it made."""
        job = self.ini({"pipeline": {"name": "x", "stages": "import export", "folder": self.path("out")}, "import": {"from": folder},
                        "model": {"plugin": "from_import"}, "device": {"plugin": "cpu", "threads": 1}})
        for command in ("import", "export"):
            yield command, self.rusage(command, job).ru_maxrss * 1024

    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is not the program's")
    def test_a_conversion_holds_a_tensor_at_a_time(self):
        folder, total, largest = self.sparse_llama()
        self.assertGreater(total, 2 * (largest + SLACK))
        for command, peak in self.converted(folder):
            self.assertLess(peak, largest + SLACK, "%s: %d MiB of a model of %d MiB" % (command, peak // MIB, total // MIB))

    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is not the program's")
    def test_a_large_tensor_goes_through_in_pieces(self):
        """What is stored as the parameter is, is never in memory whole, not even as it is in the file."""
        folder, vocab = self.path("from"), 128 * 1024
        config = llama_config(1, vocab_size=vocab, tie_word_embeddings=True)
        tensors = [t for t in llama_tensors(1, vocab) if t[0] != "lm_head.weight"]
        _, largest = sparse_folder(folder, config, tensors, "BF16")
        self.assertEqual(largest, 256 * MIB)
        for command, peak in self.converted(folder):
            self.assertLess(peak, largest // 2, "%s: %d MiB beside a tensor of %d MiB" % (command, peak // MIB, largest // MIB))

    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is not the program's")
    def test_a_transposed_tensor_is_held_as_in_the_file(self):
        folder, width = self.path("from"), 4096
        config = {"model_type": "gpt2", "n_embd": width, "n_layer": 1, "n_head": 32, "n_positions": 256, "n_ctx": 256,
                  "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
        _, largest = sparse_folder(folder, config, gpt2_tensors(width), "BF16")
        self.assertEqual(largest, 128 * MIB)
        for command, peak in self.converted(folder):
            self.assertLess(peak, largest + largest // 2, "%s: %d MiB beside a tensor of %d MiB" % (command, peak // MIB, largest // MIB))

    def last_row(self, checkpoint, parameter, width):
        """Of a parameter in F32, out of the part that holds its last element."""
        with open(os.path.join(checkpoint, "manifest.json")) as f:
            manifest = json.load(f)
        part = max(manifest["tensors"][parameter]["parts"], key=lambda p: p.get("first", 0))
        path = os.path.join(checkpoint, manifest["files"][part["file"]]["name"])
        return bytes_at(path, place(path, part["stored"])[1] - 4 * width, 4 * width)

    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is not capped")
    def test_a_plugins_own_function_gets_tensors_that_lie_on_the_disk(self):
        """It gets both sides whole as F32, each of twice the bytes that the tensor has in the file. RLIMIT_DATA bounds what memory
        the system can't take back, to less than one side."""
        folder, golden = self.path("from"), os.path.join(SOURCE, "tests", "golden", "qwen3", "config.json")
        with open(golden) as f:
            config = dict(json.load(f), vocab_size=64 * 1024, hidden_size=HIDDEN, tie_word_embeddings=True)
        _, largest = sparse_folder(folder, config, qwen3_tensors(config), "BF16")
        self.assertEqual(largest, 128 * MIB)
        row = [0x3f80 + i % 64 for i in range(HIDDEN)]  # BF16 from 1 on
        file = os.path.join(folder, "model-00001-of-%05d.safetensors" % FILES)
        with open(file, "r+b") as f:
            f.seek(place(file, "model.embed_tokens.weight")[0])
            f.write(struct.pack("<%dH" % HIDDEN, *row))

        with open(os.path.join(SOURCE, "examples", "specs", "qwen3.ini")) as f:
            spec = f.read()
        line, call = "model.embed_tokens.weight\n", "test_hooks:upside_down(source)"
        self.assertEqual(spec.count(line), 1)
        self.write("arch.ini", spec.replace(line, "%simport = %s\nexport = %s\n" % (line, call, call)))
        job = self.ini({"pipeline": {"name": "x", "stages": "import export", "folder": "out"}, "import": {"from": folder},
                        "model": {"vocab": "from_import"}, "device": {"plugin": "cpu", "threads": 1}})
        with open(job) as f:
            text = f.read()
        job = self.write("job.ini", "include = arch.ini\n" + text)

        cap = largest + largest // 2
        held = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))}
        whole = subprocess.run([sys.executable, "-c", "bytearray(%d)" % (2 * largest)], stderr=subprocess.DEVNULL, **held)
        self.assertNotEqual(whole.returncode, 0, "this system holds nobody to RLIMIT_DATA")
        plugins = add_plugin(self, "parts", "test_hooks")
        for command in ("import", "export"):
            self.run_longhaul(command, job, "--plugins", plugins, **held)
        self.assertEqual(self.last_row(self.path("out", "import", "checkpoints", "step-%012d" % 0), "embed", HIDDEN),
                         struct.pack("<%dI" % HIDDEN, *(bits << 16 for bits in row)))
        exported = self.path("out", "hf", "model.safetensors")
        begin, end = place(exported, "model.embed_tokens.weight")
        self.assertEqual(end - begin, largest)
        self.assertEqual(bytes_at(exported, begin, 2 * HIDDEN), struct.pack("<%dH" % HIDDEN, *row))
        self.assertEqual(bytes_at(exported, end - 2 * HIDDEN, 2 * HIDDEN), bytes(2 * HIDDEN))
        for name in ("import", "hf"):
            self.assertNotIn("values.tmp", os.listdir(self.path("out", name)))

    def descendants(self, pid):
        """Itself and what it has started, in turn: numbers of processes."""
        found = [pid]
        for one in found:
            try:
                for task in os.listdir("/proc/%d/task" % one):
                    with open("/proc/%d/task/%s/children" % (one, task)) as f:
                        found += map(int, f.read().split())
            except OSError:  # it has ended
                continue
        return found

    def read_by(self, pid):
        try:
            with open("/proc/%d/io" % pid) as f:
                return int(f.readline().split()[1])
        except OSError:
            return 0

    def started(self, run):
        """Its metrics have a step: weights are loaded."""
        path = self.path("out", "metrics.jsonl")
        if not os.path.exists(path):
            return False
        with open(path) as f:
            return '"step"' in f.read()

    @unittest.skipIf(SANITIZED, "a sanitizer's programs and plugins, which are read as well, are as large as slices")
    def test_each_rank_reads_its_own_slices(self):
        """Of an import, at stage 3: bytes that each process has asked the system for once it trains."""
        folder, total, _ = self.sparse_llama(blocks=2)
        sizes = ("blocks", "hidden", "ffn", "heads", "kv_heads", "max_tokens")
        for ranks in (1, 2, 4):
            job = self.small_job(stages="prepare import train", train={"steps": 1000, "batch": 4, "micro_batch": 1},
                                 model={"plugin": "from_import", "vocab": "from_import", **{key: None for key in sizes}},
                                 launch={"ranks_per_node": ranks}, optimizer={"plugin": "zero3"}, **{"import": {"from": folder}})
            if ranks == 1:
                self.run_longhaul("prepare", job)
                self.run_longhaul("import", job)
            run = self.start("train", job, stderr=subprocess.STDOUT)
            self.assertTrue(self.wait_for(lambda: self.started(run), run, 240), run.stdout.read() if run.poll() is not None else "")
            read = sorted((self.read_by(pid) for pid in self.descendants(run.pid)), reverse=True)
            self.end(run)
            run.stdout.close()
            # The last of them is no rank: programs, plugins and the corpus are BESIDE.
            self.assertGreater(read[ranks - 1], total // ranks - MIB, read)
            self.assertLess(read[0], total // ranks + BESIDE, "%d ranks of a model of %d MiB" % (ranks, total // MIB))
            os.remove(self.path("out", "metrics.jsonl"))

    def planned(self, **model):
        job = self.small_job(stages="train", model=dict(ROUTED, **model), train={"precision": "f32", "sequence": 128, "micro_batch": 4})
        out, _ = self.run_longhaul("plan", "--json", job)
        return json.loads(out)

    def test_a_routed_step_grows_with_what_a_token_goes_to(self):
        few, many, more = self.planned(experts=8), self.planned(experts=64), self.planned(experts=8, chosen=4)
        self.assertGreater(many["parameters"], 5 * few["parameters"])
        # A token's share of the router is all that more experts make it do and keep.
        self.assertLess(many["memory"]["activations"], 1.05 * few["memory"]["activations"])
        self.assertLess(many["step"]["flops"], 1.15 * few["step"]["flops"])
        self.assertEqual(many["step"]["calls"], few["step"]["calls"])
        self.assertGreater(more["memory"]["activations"], 1.3 * few["memory"]["activations"])
        self.assertGreater(more["step"]["flops"], 1.4 * few["step"]["flops"])

    def planned_from(self, source):
        """A plan for the model of a folder that has no weights, and its config.json."""
        job = self.small_job(stages="import train", train={"sequence": 512, "batch": 1, "micro_batch": 1, "precision": "bf16"},
                             model={key: None for key in ("blocks", "hidden", "ffn", "heads", "kv_heads", "max_tokens")},
                             **{"import": {"from": source}, "prepare": {key: None for key in ("input", "tokenizer", "prepend", "workers")}})
        out, _ = self.run_longhaul("plan", "--json", job, "--set", "model.plugin=from_import", "--set", "model.vocab=from_import")
        with open(os.path.join(source, "config.json")) as f:
            return json.loads(out), json.load(f)

    @unittest.skipUnless(os.path.isdir(PUBLISHED), LACKING)
    def test_published_models_are_planned_without_weights(self):
        """Those of BF16 whose index has the bytes; one that is tied may have the table once more, as its head."""
        for name, index, copies in (("falcon-180b", "model.safetensors.index.json", 1), ("falcon-7b", "pytorch_model.bin.index.json", 1),
                                    ("gemma-2b-it", "model.safetensors.index.json", 0), ("llama-3.2-3b", "model.safetensors.index.json", 0),
                                    ("mistral-7b-v0.3", "model.safetensors.index.json", 0)):
            with self.subTest(model=name):
                planned, config = self.planned_from(os.path.join(PUBLISHED, name))
                with open(os.path.join(PUBLISHED, name, index)) as f:
                    stored = json.load(f)["metadata"]["total_size"]
                count, table = planned["parameters"], config["vocab_size"] * config["hidden_size"]
                self.assertEqual(2 * (count + copies * table), stored)
                self.assertEqual(planned["memory"]["parameters"] // 100, 2 * count // 100)
                # Of matrices, there and back; attention comes on top, and a table that is looked up only costs nothing.
                flops = 6 * (count if copies or config.get("tie_word_embeddings", True) else count - table) * 512
                self.assertTrue(flops < planned["step"]["flops"] < 1.08 * flops, (flops, planned["step"]))

    def test_falcon_40b_of_before_transformers_knew_it_is_planned(self):
        """Its config.json of then; its index counts the table twice, in BF16."""
        source = self.path("falcon-40b")
        os.mkdir(source)
        self.write("falcon-40b/config.json", json.dumps({
            "model_type": "RefinedWeb", "architectures": ["RWForCausalLM"], "hidden_size": 8192, "n_head": 128, "n_head_kv": 8,
            "n_layer": 60, "vocab_size": 65024, "layer_norm_epsilon": 1e-05, "alibi": False, "bias": False, "parallel_attn": True,
            "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "hidden_dropout": 0.0,
            "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "use_cache": True}))
        planned, config = self.planned_from(source)
        self.assertEqual(planned["parameters"], 41303293952)
        self.assertEqual(2 * (planned["parameters"] + config["vocab_size"] * config["hidden_size"]), 83671941120)

    @unittest.skipIf(SANITIZED, "as released")
    def test_check_is_quick(self):
        times = []
        for _ in range(5):
            used = self.rusage("check", os.path.join(SOURCE, "examples", "shakespeare.ini"))
            times.append(used.ru_utime + used.ru_stime)
        self.assertLess(min(times), CHECK_S, times)


main()
