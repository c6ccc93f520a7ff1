"""One training step of a Llama by Longhaul and by PyTorch on the same shapes: what bench/step, bench/startup,
bench/memory, bench/scaling and bench/status measure.

Both sides get tokens drawn at random from the whole vocabulary, AdamW with decay on matrices, clipping at 1.0, FP32
master weights, and either BF16 or FP32 compute. FLOPs are counted alike, by the formula of peers/pytorch_step.py."""
import array
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import time

import turns

# micro: sequences at a time of ours; PyTorch takes the batch whole. Goals: ratio to PyTorch's best of that precision.
MODELS = {
    "1.07M": dict(hidden=128, layers=4, heads=4, kv_heads=4, ffn=352, vocab=1024, seq=256, batch=8, micro=8),
    "16.9M": dict(hidden=384, layers=6, heads=6, kv_heads=6, ffn=1024, vocab=8192, seq=512, batch=8, micro=8),
    "134M": dict(hidden=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=32000, seq=512, batch=8, micro=2),
}
PRECISIONS = {"bf16": "bf16", "fp32": "f32"}  # PyTorch's script and we spell them differently

JOB = """[pipeline]
name = step
stages = train
folder = out
[data]
train = ../tokens
split = 100,0,0
[model]
%(kind)s
vocab = %(vocab)d
hidden = %(hidden)d
blocks = %(layers)d
heads = %(heads)d
kv_heads = %(kv_heads)d
ffn = %(ffn)d
max_tokens = %(seq)d
[train]
sequence = %(seq)d
batch = %(batch)d
micro_batch = %(micro)d
steps = %(steps)d
precision = %(precision)s
[optimizer]
plugin = zero0
rule = rules:adamw
decay = 0.1
clip = 1.0
learning_rate = 3e-4
[checkpoint]
every = 0
[device]
plugin = cpu
threads = %(threads)d
"""


def parameters(m):
    block = 2 * m["hidden"] ** 2 + 2 * m["hidden"] * (m["hidden"] // m["heads"]) * m["kv_heads"] \
        + 2 * m["hidden"]
    experts = m.get("experts", 0)
    block += (experts or 1) * 3 * m["hidden"] * m["ffn"] + experts * m["hidden"]
    return m["layers"] * block + 2 * m["vocab"] * m["hidden"] + m["hidden"]


def flops(m):
    """Of one step; the causal mask counts half, the embedding's rows not at all."""
    tokens = m["batch"] * m["seq"]
    return 6 * (parameters(m) - m["vocab"] * m["hidden"]) * tokens + 6 * m["layers"] * m["hidden"] * m["seq"] * tokens


def write_tokens(prefix, m, count):
    """Megatron's pair of files: documents of one sequence each, ids drawn evenly."""
    draw = random.Random(1)
    length = m["seq"] + 1
    documents = count // length + 2
    ids = array.array("H", (draw.randrange(m["vocab"]) for _ in range(documents * length)))
    if sys.byteorder != "little":
        ids.byteswap()
    with open(prefix + ".bin", "wb") as f:
        ids.tofile(f)
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        f.write(struct.pack("<%di" % documents, *[length] * documents))
        f.write(struct.pack("<%dq" % documents, *[2 * length * i for i in range(documents)]))
        f.write(struct.pack("<%dq" % (documents + 1), *range(documents + 1)))


def write_job(folder, m, precision, threads, steps):
    """The folder of a job of ours, with its tokens; returns the INI file."""
    os.makedirs(folder, exist_ok=True)
    write_tokens(os.path.join(folder, "tokens"), m, (steps + 1) * m["batch"] * m["seq"])
    path = os.path.join(folder, "job.ini")
    with open(path, "w") as f:
        kind = "plugin = llama"
        if "experts" in m:
            kind = "plugin = mixtral\nexperts = %d\nchosen = %d" % (m["experts"], m["chosen"])
        f.write(JOB % dict(m, kind=kind, precision=PRECISIONS[precision], threads=threads, steps=steps))
    return path


def ours(binary, job, warm, **more):
    """One run of longhaul train, of a process made with `more`: figures as peers/pytorch_step.py gives them."""
    folder = os.path.dirname(job)
    subprocess.run(["rm", "-rf", os.path.join(folder, "out")], check=True)
    begin, first, text = time.monotonic(), None, []
    with subprocess.Popen([binary, "train", job], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", **more) as process:
        for line in process.stdout:
            text.append(line)
            if first is None and re.match(r"step 1/", line):
                first = time.monotonic() - begin
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or first is None:
        sys.exit("longhaul train ended with %d:\n%s" % (process.returncode, "".join(text)[-2000:]))
    with open(os.path.join(folder, "out", "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    rows = [r for r in rows if "seconds" in r]
    measured = rows[warm:] or rows
    return {"step_s": statistics.median(r["seconds"] for r in measured),
            "mean_step_s": statistics.mean(r["seconds"] for r in measured), "first_step_s": first,
            "least_step_s": min(r["seconds"] for r in measured), "peak_mib": used.ru_maxrss / 1024,
            "loss": rows[-1]["loss"]}


def pytorch(python, m, precision, threads, steps, warm, compiled=False, cache=None):
    """One run of the peer. Its first step is counted from the start of its script, ours from exec."""
    command = [python, os.path.join(turns.PEERS, "pytorch_step.py"), "--dtype", precision, "--threads", str(threads),
               "--steps", str(steps), "--warmup", str(warm)]
    for key in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq", "batch"):
        command += ["--" + key.replace("_", "-"), str(m[key])]
    for key in ("experts", "chosen"):
        command += ["--" + key, str(m[key])] if key in m else []
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    if cache is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = cache
    got = json.loads(turns.run(command + ["--compile"] * compiled, env=environment).strip().splitlines()[-1])
    if got["parameters"] != parameters(m):
        sys.exit("PyTorch's model has %d parameters, ours %d" % (got["parameters"], parameters(m)))
    return got


def limit(binary, job, precision, quick=False):
    """The matrix rate of the device: its peak on large matrices, and over the matrix calls of this very job."""
    folder = os.path.dirname(job)
    command = [binary, "bench", "device", job, "--json"] + ["--quick"] * quick
    got = json.loads(turns.run(command, cwd=folder, env=dict(os.environ, XDG_CACHE_HOME=os.path.join(folder, "cache"))))
    calls = [c for c in got["calls"] if c["kind"].startswith("matmul")]
    seconds = sum(c["seconds"] * c["calls"] for c in calls)
    dtype = {"bf16": "BF16", "fp32": "F32"}[precision]
    return {"peak_gflops": got["peak_flops"].get(dtype, 0) / 1e9, "bytes_per_s": got["bytes_per_second"],
            "own_gflops": sum(c["flops"] * c["calls"] for c in calls) / seconds / 1e9 if seconds else 0}


def options(parser, models="1.07M,16.9M,134M", steps=12):
    parser.add_argument("--models", default=models, help="of %s; %s if not given" % (", ".join(MODELS), models))
    parser.add_argument("--precisions", default="bf16,fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=steps, help="measured; %d if not given" % steps)
    parser.add_argument("--warm", type=int, default=3, help="steps before them; 3 if not given")
    parser.add_argument("--micro-batch", type=int, default=0, help="sequences of ours at a time; 0: as the model's row says")
    parser.add_argument("--no-compile", action="store_true", help="no torch.compile")


def chosen(given):
    """[(name, model, precision)] that were asked for."""
    names, precisions = given.models.split(","), given.precisions.split(",")
    for name in names:
        if name not in MODELS:
            sys.exit("--models %s: there are %s" % (name, ", ".join(MODELS)))
    for precision in precisions:
        if precision not in PRECISIONS:
            sys.exit("--precisions %s: there are %s" % (precision, ", ".join(PRECISIONS)))
    return [(n, dict(MODELS[n], micro=given.micro_batch or MODELS[n]["micro"]), p) for n in names for p in precisions]


def peers(given, m, precision, cache, steps, warm):
    """{name: function} of PyTorch's sides that were asked for."""
    if given.python is None:
        return {}
    sides = {"PyTorch eager": lambda: pytorch(given.python, m, precision, given.threads, steps, warm)}
    if not given.no_compile:
        sides["PyTorch compile"] = lambda: pytorch(given.python, m, precision, given.threads, steps, warm, True, cache())
    return sides
