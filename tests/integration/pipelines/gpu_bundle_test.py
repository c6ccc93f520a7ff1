"""bench/gpu: the bundle runs from anywhere, is small, and its parts go as far over the stand-ins of NVIDIA's libraries as
those do; without a GPU each says in a sentence what is missing."""
import argparse
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


# longhaul train JOB --set ...: steps of a second, those beside a save of 1.1; one that comes to its end makes a save.
LONGHAUL = """#!/usr/bin/env python3
import json, os, sys, time
sets = dict(word.split("=", 1) for word in sys.argv[3:] if "=" in word)
folder = os.path.join(os.path.dirname(sys.argv[2]), sets["pipeline.folder"])
every = int(sets.get("checkpoint.every", 0))
os.makedirs(folder)
with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
    def tell(step, **more):
        f.write(json.dumps(dict(step=step, **more)) + "\\n")
        f.flush()
    for step in range(1, int(sets["train.steps"]) + 1):
        time.sleep(0.01 if every > 0 or step <= 3 else 1)
        tell(step, loss=9.0 - step, seconds=1.1 if 0 < every < step <= every + 2 else 1.0)
        if every > 0 and step == every + 2:
            tell(every, save=dict(committed=True, failed=False, stall_s=0.02))
os.makedirs(os.path.join(folder, "checkpoints"))
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

    def parts(self, minutes):
        """The module, and a part of so many minutes whose program is LONGHAUL."""
        sys.path[:0] = [os.path.join(SOURCE, "bench", "gpu"), os.path.join(SOURCE, "bench")]
        import gpu_parts
        os.makedirs(self.path("build", "bin"), exist_ok=True)
        program = os.path.join(self.path("build", "bin"), "longhaul")
        with open(program, "w") as f:
            f.write(LONGHAUL)
        os.chmod(program, 0o755)
        given = argparse.Namespace(part="check", out=self.path("results"), minutes=minutes, build=self.path("build"), libraries="",
                                   rounds=3, tiny=True)
        part = gpu_parts.Part(given, None)
        part.facts = []
        return gpu_parts, part

    def test_what_is_measured_makes_no_save(self):
        """A training ends with a checkpoint, of 3B parameters 39 GB: more than the rest of a row, and than many a disk."""
        gpu_parts, part = self.parts(1)
        job = os.path.join(self.path("results"), "job.ini")
        got, why = gpu_parts.ours(part, job, 2, 3)
        self.assertEqual((got["step_s"], got["losses"], why), (1.0, [8.0, 7.0, 6.0], None))
        self.assertEqual(os.listdir(self.path("results", "speed")), ["metrics.jsonl"])
        gpu_parts.saves(part, "1B", job, 2)
        self.assertEqual(part.rows[-1]["result"], "2.00 % of a step held up, goal 1 %; the 2 steps beside it +10.0 %, goal 2 %")
        self.assertFalse(os.path.exists(self.path("results", "saves")))
        self.assertIsNone(gpu_parts.ours(part, job, 2, 3, "train.steps=2")[0])

    def test_time_that_is_over_is_no_fault(self):
        gpu_parts, part = self.parts(0.05)
        gpu_parts.has_gpu = lambda part: {"peak_flops": {"BF16": 1e12}, "bytes_per_second": 1e12}
        self.addCleanup(sys.modules.pop, "gpu_parts")
        gpu_parts.check(part)
        self.assertEqual([row["result"] for row in part.rows if row["result"] == "failed"], [])
        for what in ("longhaul-check cuda", "lists are captured", "twice the same bits", "killed and resumed, the same bits"):
            self.assertIn(what + " is left out: its time was over", part.notes)
        gpu_parts.ranks(part)
        self.assertIn("one rank is left out: its time was over", part.notes)
        self.assertEqual(part.failed, 0)

    def test_rows_behind_a_comparison_have_time_kept(self):
        """An hour, of which the rows behind need nothing, or more than there is."""
        gpu_parts, part = self.parts(60)
        for keep, counts in ((0, [3, 3]), (7200, [1, 0])):
            got = gpu_parts.in_turn(part, "1B", {"ours": lambda: (1, None), "torch.compile": lambda: (1, None)}, keep)
            self.assertEqual([len(results) for results in got.values()], counts)
        self.assertEqual(part.notes, ["1B, torch.compile is left out: the rows behind it have the time",
                                      "1B: rounds from number 2 on are left out: the rows behind them have the time"])

    def test_goals_are_by_size_and_gpu(self):
        gpu_parts, _ = self.parts(1)
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
