#!/usr/bin/env python3
"""What checkpoints cost a run: the same training with a checkpoint every 10 steps and with none, in
turns (A B A B ...), 16.9M parameters.

    bench/checkpoint_cost.py [--binary build/release/bin/longhaul] [--rounds 3] [--steps 30]
                             [--every 10] [--folder .]

Prints the median time of a step each way and the difference, and the same of processor time, which
means something on a busy machine too. The folder is where checkpoints are written: a disk, not memory,
is what is of interest. Measure on a machine that does nothing else."""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "examples", "data")
JOB = """
[pipeline]
name = cost
stages = prepare train
folder = out
[prepare]
input = %(data)s/tinystories-1000.jsonl
tokenizer = %(data)s/stories260K/tokenizer.json
prepend = bos
[data]
train = corpus
split = 100,0,0
[model]
plugin = llama
vocab = 8192
hidden = 384
blocks = 6
heads = 6
kv_heads = 6
ffn = 1024
max_tokens = 512
[train]
sequence = 512
batch = 8
micro_batch = 8
steps = %(steps)d
[optimizer]
plugin = zero0
rule = rules:adamw
learning_rate = 1e-4
[checkpoint]
every = 0
keep = 2
[device]
plugin = cpu
"""
WARM = 3  # first steps touch memory for the first time


def run(binary, folder, *args):
    """Processor seconds of the program and of those that write its checkpoints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([binary, *args], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("longhaul %s: %s" % (" ".join(args), done.stderr[-2000:]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def train(binary, folder, every):
    """Seconds of each step after the first ones, how long saves held them up, processor seconds."""
    for name in ("checkpoints", "metrics.jsonl", "events"):
        path = os.path.join(folder, "out", name)
        shutil.rmtree(path, True) if os.path.isdir(path) else os.path.exists(path) and os.unlink(path)
    busy = run(binary, folder, "train", "job.ini", "--set", "checkpoint.every=%d" % every)
    with open(os.path.join(folder, "out", "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    rows = [r for r in rows if "learning_rate" in r][WARM:]
    return [r["seconds"] for r in rows], sum(r["parts"]["save"] for r in rows), busy


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--binary", default=os.path.join(ROOT, "build", "release", "bin", "longhaul"))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=33)
    options.add_argument("--every", type=int, default=10)
    options.add_argument("--folder", default=".")
    given = options.parse_args()
    folder = tempfile.mkdtemp(prefix="checkpoint-cost-", dir=given.folder)
    try:
        with open(os.path.join(folder, "job.ini"), "w") as f:
            f.write(JOB % {"data": DATA, "steps": given.steps})
        binary = os.path.abspath(given.binary)
        run(binary, folder, "prepare", "job.ini")
        with_them, without, stalls, busy = [], [], [], []
        for n in range(given.rounds):
            a, _, busy_a = train(binary, folder, 0)
            b, stall, busy_b = train(binary, folder, given.every)
            busy.append(busy_b / busy_a)
            without.append(statistics.mean(a))
            with_them.append(statistics.mean(b))
            stalls.append(stall / sum(b))
            print("round %d: %.1f ms a step without, %.1f ms with a checkpoint every %d (%+.2f %%), "
                  "stood still %.2f %%, processors busy %+.2f %%"
                  % (n + 1, without[-1] * 1e3, with_them[-1] * 1e3, given.every,
                     (with_them[-1] / without[-1] - 1) * 100, stalls[-1] * 100,
                     (busy[-1] - 1) * 100), flush=True)
        a, b = statistics.median(without), statistics.median(with_them)
        print("median: %.1f ms without, %.1f ms with: %+.2f %%; processors busy %+.2f %%; load %.1f"
              % (a * 1e3, b * 1e3, (b / a - 1) * 100, (statistics.median(busy) - 1) * 100,
                 os.getloadavg()[0]))
    finally:
        shutil.rmtree(folder, True)


main()
