"""bench/gpu: the bundle runs from anywhere, is small, and its parts go as far over the stand-ins of NVIDIA's libraries as
those do; without a GPU each says in a sentence what is missing."""
import json
import os
import subprocess
import sys

from cuda_case import LIBRARIES
from pipeline_case import BINARY, TORTURE, PipelineCase, main

SOURCE = os.environ["LONGHAUL_SOURCE"]
BUILD = os.path.dirname(os.path.dirname(BINARY))
LIMIT = 60e6

# As much of PyTorch and Transformers as the peers' script calls: a model that only waits. It has no memory for 4 sequences,
# no kernel of cuDNN's, and is the fastest with `efficient`.
TORCH = """
import contextlib, types
allowed = "flash"
class Tensor:
    grad = None
    def __init__(self, rows=8): self.rows = rows
    def numel(self): return 10
    def dim(self): return 2
    def __len__(self): return self.rows
    def __getitem__(self, at): return Tensor(min(self.rows, at.stop)) if isinstance(at, slice) else Tensor()
    def split(self, rows): return [Tensor(rows) for _ in range(self.rows // rows)]
    def __mul__(self, other): return self
    def __add__(self, other): return self
    __radd__ = __add__
    def backward(self): pass
    def detach(self): return self
    def __float__(self): return 1.0
class AdamW:
    def __init__(self, groups, **how): pass
    def step(self): pass
    def zero_grad(self, set_to_none): pass
def switch(name):
    def set_it(on):
        global allowed
        allowed = name if on else allowed
    return set_it
def nothing(*given, **named): pass
manual_seed = set_num_threads = nothing
optim, bfloat16 = types.SimpleNamespace(AdamW=AdamW), 1
def compile(model, dynamic=None): return lambda **given: model(**given)
def randint(*given, **named): return Tensor()
def zeros_like(tensor): return Tensor()
def autocast(*given, **named): return contextlib.nullcontext()
cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=nothing, empty_cache=nothing,
                             reset_peak_memory_stats=nothing, max_memory_allocated=lambda: 2**30)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(
    enable_flash_sdp=switch("flash"), enable_mem_efficient_sdp=switch("efficient"), enable_cudnn_sdp=switch("cudnn"),
    enable_math_sdp=switch("math")))
nn = types.SimpleNamespace(utils=types.SimpleNamespace(clip_grad_norm_=nothing))
"""
TRANSFORMERS = """
import time, types
import torch
class LlamaConfig:
    def __init__(self, **how): pass
class LlamaForCausalLM:
    def __init__(self, config): pass
    def to(self, device): return self
    def parameters(self): return [torch.Tensor()]
    def zero_grad(self, set_to_none): pass
    def __call__(self, input_ids, labels):
        if len(input_ids) == 4: raise RuntimeError("CUDA out of memory")
        if torch.allowed == "cudnn": raise RuntimeError("No available kernel")
        time.sleep(0.002 if torch.allowed == "efficient" else 0.02)
        return types.SimpleNamespace(loss=torch.Tensor())
MixtralConfig, MixtralForCausalLM = LlamaConfig, LlamaForCausalLM
"""


# compute-sanitizer --tool TOOL --error-exitcode 1 COMMAND: one comes to no end, one finds a fault, one runs the command.
SANITIZER = """#!/bin/sh
tool=$2
shift 4
case $tool in
memcheck) exec sleep 1000 ;;
racecheck) echo "a race"; exit 1 ;;
initcheck) exec "$@" ;;
esac
"""


class GpuBundle(PipelineCase):
    def bundled(self):
        folder = self.path("bundle")
        done = subprocess.run([os.path.join(SOURCE, "bench", "gpu", "bundle"), folder, "--build", BUILD],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        moved = self.path("elsewhere")
        os.rename(folder, moved)
        return moved

    def part(self, bundle, name, *more, fake="", code=0, **environment):
        out = self.path("results")
        done = subprocess.run([os.path.join(bundle, "run"), name, "--out", out, "--tiny", "--rounds", "1", *more],
                              capture_output=True, text=True, cwd="/", env=dict(os.environ, LH_FAKE_CUDA=fake, **environment))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertTrue(os.path.exists(os.path.join(out, name + ".txt")))
        return None if name == "all" else self.told(name)

    def told(self, name):
        """Rows by their names, and notes."""
        with open(self.path("results", name + ".json")) as f:
            report = json.load(f)
        return {row["what"]: row for row in report["rows"]}, " ".join(report["notes"])

    def all_others(self):
        rows, _ = self.told("check")
        for what in ("longhaul-check cuda", "lists are captured", "captured or not, the same bits", "losses of the reference device",
                     "killed and resumed, the same bits", "test cuda_test"):
            self.assertEqual(rows[what]["result"], "ok", rows[what])
        rows, _ = self.told("ranks")
        for what in ("NCCL in a group of one, every call", "two ranks on a GPU, ZeRO 3"):
            self.assertEqual(rows[what]["result"], "ok", rows[what])
        self.assertIn("s a step", rows["NCCL over 2 GPUs, ZeRO 3"]["result"])
        _, notes = self.told("sanitize")
        self.assertIn("compute-sanitizer", notes)
        rows, _ = self.told("large")
        self.assertEqual(rows["3B, kernel by kernel"]["result"], "ok")
        for count in (1024, 4096, 16384):
            self.assertIn("s a step", rows["3B, %d rows of logits at a time" % count]["result"])
        with open(self.path("results", "all.txt")) as f:
            table = f.read()
        for line in ("---- check", "---- ranks", "3B, kernel by kernel"):
            self.assertIn(line, table)

    def speed(self):
        rows, _ = self.told("speed")
        self.assertIn("tokens/s", rows["1B, ours, ordered"]["result"])
        _, notes = self.told("speed")
        for side in ("PyTorch eager", "torch.compile"):
            self.assertIn("micro-batch 2, SDPA efficient, loss 1.0000", rows["1B, " + side]["result"])
            self.assertRegex(notes, r"1B, %s tried, .*flash of 4: left out, .*cudnn of 2: left out, efficient of 2: \d+" % side)
        self.assertIn("x, goal 1.15x", rows["1B, of torch.compile"]["result"])
        self.assertRegex(rows["1B, ours"]["result"], r", loss \d\.\d{4} to \d\.\d{4}$")
        # The micro-batch of the shortest step is taken.
        steps = {micro: rows["1B, ours, micro-batch %d" % micro]["figures"]["step_s"] for micro in (4, 2)}
        self.assertIn("micro-batch %d" % min(steps, key=steps.get), rows["1B, ours"]["result"])
        for what, unit in (("of the matrix rate of this run", "%, goal 70 %"), ("memory beside its plan", "off the plan, goal 3 %"),
                           ("device idle", "% of a step, goal 1 %"), ("from exec to the first step", "s, goal 6 s"),
                           ("saves", "% of a step held up, goal 1 %")):
            self.assertIn(unit, rows["1B, " + what]["result"])
        self.assertRegex(" ".join(row["result"] for what, row in rows.items() if what.startswith("1B, ")),
                         r"GB/s, \d+ % of copies' \d+ GB/s, goal 80 %; \d+\.\d % of a step")

    def sanitized(self, bundle):
        """Each tool has its share of the time; without one of them the others still say something."""
        tools = self.path("tools")
        os.makedirs(tools)
        tool = os.path.join(tools, "compute-sanitizer")
        with open(tool, "w") as f:
            f.write(SANITIZER)
        os.chmod(tool, 0o755)
        rows, notes = self.part(bundle, "sanitize", "--libraries", LIBRARIES, "--minutes", "0.6", fake="gpus=1 delay_us=5", code=1,
                                PATH=tools + ":" + os.environ["PATH"])
        self.assertEqual({what: row["result"] for what, row in rows.items()},
                         {"racecheck": "failed", "initcheck": "ok", "synccheck": "ok"})
        self.assertIn("a race", rows["racecheck"]["said"])
        self.assertIn("memcheck is left out: its time was over", notes)

    def test_goals_are_by_size_and_gpu(self):
        sys.path[:0] = [os.path.join(SOURCE, "bench", "gpu"), os.path.join(SOURCE, "bench")]
        import gpu_parts
        h100, other = {"name": "NVIDIA H100 80GB HBM3"}, {"name": "Fake GPU 9.0"}
        for name, side, device, text in (("1B", "ours", h100, ", goal 55 %"), ("1B", "ours, ordered", h100, ", goal 52 %"),
                                         ("3B", "ours, ordered", {"name": "NVIDIA H200"}, ", goal 56 %"),
                                         ("160M", "ours", h100, ""), ("1B", "torch.compile", h100, ""), ("1B", "ours", other, ""),
                                         ("1B", "ours", None, "")):
            self.assertEqual(gpu_parts.share_goal(name, side, device), text, (name, side))
        one = [(1, 10.0, 1.0), (2, 9.0, 1.0)]
        self.assertTrue(gpu_parts.losses_near([(1, 10.0005, 1.0), (2, 9.0, 1.0)], one))
        for got in ([], one[:1], [(1, 10.0, 1.0), (2, 9.002, 1.0)]):
            self.assertFalse(gpu_parts.losses_near(got, one))

    def test_parts_run_from_a_bundle(self):
        bundle = self.bundled()
        held = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(bundle) for name in names)
        self.assertLess(held, LIMIT)
        over = ("--libraries", LIBRARIES)
        peers = self.path("peers")
        os.makedirs(peers)
        for name, text in (("torch.py", TORCH), ("transformers.py", TRANSFORMERS)):
            with open(os.path.join(peers, name), "w") as f:
                f.write(text)
        parts = "all" if TORTURE else "speed"  # of the others, what they call is tested without the bundle as well
        self.part(bundle, parts, *over, fake="gpus=2 delay_us=5", PYTHONPATH=peers, PYTHONDONTWRITEBYTECODE="1")
        self.speed()
        if TORTURE:
            self.all_others()
        self.sanitized(bundle)
        rows, notes = self.part(bundle, "large", *over, "--minutes", "0.1", fake="gpus=1 delay_us=5")
        self.assertNotIn("3B, kernel by kernel", [w for w, row in rows.items() if row["result"] == "ok"])

    def test_what_is_missing_is_one_sentence(self):
        bundle = self.bundled()
        for name in ("speed", "large", "ranks"):
            rows, notes = self.part(bundle, name, "--libraries", LIBRARIES, fake="gpus=0")
            self.assertEqual(rows, {})
            self.assertIn("finds no GPU", notes)


if __name__ == "__main__":
    main()
