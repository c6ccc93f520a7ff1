"""The parts of bench/gpu/run: what each runs, in which order, and what becomes of it where something is missing.

A part is a list of rows, measured one after the other; each is written down when it is there, so that what breaks later costs
nothing. Peers are measured in turn with ours (A B A B). FLOPs of a token: 6 x parameters (a table that only embeds not
counted) + 6 x blocks x width x sequence; shares are of 989.4 TFLOP/s, a dense H100's BF16."""
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import llama_step
import turns

PEAK = 989.4e12
TOKENS = 131072
# Sequences at a time that are tried, each side's fastest is taken.
SIZES = {
    "160M": dict(hidden=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=50304, seq=2048, tied=False, micros=(16, 8, 4)),
    "1B": dict(hidden=2048, layers=16, heads=32, kv_heads=8, ffn=8192, vocab=128256, seq=2048, tied=True, micros=(8, 4, 2)),
    "3B": dict(hidden=3072, layers=28, heads=24, kv_heads=8, ffn=8192, vocab=128256, seq=2048, tied=True, micros=(4, 2, 1)),
}
TINY = dict(hidden=32, layers=2, heads=2, kv_heads=1, ffn=48, vocab=64, seq=16, tied=True, micros=(4, 2))
# What each size is to reach: tokens/s of torch.compile's; the share of a step in which the device is idle, in percent; from
# exec to the end of the first step, in seconds.
GOALS = {"160M": 1.3, "1B": 1.15, "3B": 1.15}
IDLE_GOALS = {"160M": 3, "1B": 1, "3B": 1}
FIRST_GOALS = {"160M": 3, "1B": 6}
MEMORY_GOAL, PLAN_GOAL, MATRIX_GOAL = 0.8, 3, 70  # of torch.compile's peak; percent off the plan; percent of the matrix rate
# Shares of the peak in percent, by size and GPU: with kernels that are not ordered, and ordered.
SHARE_GOALS = {("1B", "H100"): (55, 52), ("1B", "H200"): (57, 54), ("3B", "H100"): (55, 53), ("3B", "H200"): (58, 56)}
PASS_SHARE, PASS_GOAL = 0.01, 80  # a pass over memory that takes more of a step; percent of the rate of copies
PROFILE_STEPS = 6  # --profile looks at the fifth
SAVES_STEPS = 30  # about: until a save of step 20 is written
CHUNKS = (1024, 4096, 16384)  # rows of logits at a time that are tried, in three steps each
# Tests that a GPU alone can pass or fail, in the order in which they are run: those of `ctest -L gpu`.
GPU_TESTS = ["cuda_test", "cudnn_attention_test", "golden_curves_test", "cuda_kernels_test", "cuda_shapes_test"]
SANITIZERS = ["memcheck", "racecheck", "initcheck", "synccheck"]
# Minutes of the parts of `all`, in this order: 35 in all. What a part leaves the next one has, up to nine.
MINUTES = {"check": 6, "speed": 9, "large": 9, "sanitize": 6, "ranks": 5}


class Part:
    """What a part has at hand; collects its rows."""

    def __init__(self, given, bundle):
        self.given, self.until = given, time.monotonic() + 60 * given.minutes - 5
        self.out = os.path.abspath(given.out)
        os.makedirs(self.out, exist_ok=True)
        build = bundle or given.build
        self.bin = os.path.join(build, "bin")
        self.plugins = os.path.join(build, "lib", "longhaul")
        self.golden = os.path.join(bundle, "golden") if bundle else os.path.join(turns.ROOT, "tests", "golden")
        self.tests = os.path.join(build, "tests")
        self.env = dict(os.environ)
        folders = ([os.path.join(bundle, "libs")] if bundle else []) + given.libraries.split(":") + wheels()
        self.libraries = ":".join(f for f in given.libraries.split(":") + wheels() if f)
        self.env["LD_LIBRARY_PATH"] = ":".join([f for f in folders if f] + [self.env.get("LD_LIBRARY_PATH", "")]).rstrip(":")
        self.rows, self.notes, self.failed = [], [], 0
        self.gpus = None

    def left(self):
        return self.until - time.monotonic()

    def note(self, sentence):
        print(sentence, flush=True)
        self.notes.append(sentence)

    def row(self, what, result, **figures):
        """result: ok, failed, or a figure's text."""
        self.failed += result == "failed"
        self.rows.append(dict(figures, what=what, result=result))
        print("%-44s %s" % (what, result), flush=True)
        self.write()

    def write(self):
        name = os.path.join(self.out, self.given.part)
        with open(name + ".json", "w") as f:
            json.dump({"part": self.given.part, "facts": self.facts, "rows": self.rows, "notes": self.notes}, f, indent=1)
        with open(name + ".txt", "w") as f:
            f.write("".join("%-44s %s\n" % (row["what"], row["result"]) for row in self.rows) +
                    "".join(note + "\n" for note in self.notes))

    def call(self, command, seconds=None, **more):
        """(exit code, what it said); 124 where the part's time was over, or `seconds` of it."""
        limit = self.left() if seconds is None else min(seconds, self.left())
        if limit <= 1:
            return 124, "no time was left"
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              env=dict(self.env, **more.pop("env", {})), start_new_session=True, **more) as process:
            try:
                said, _ = process.communicate(timeout=limit)
                return process.returncode, said
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return 124, process.communicate()[0]

    def over(self, what, code):
        """Whether a row had no time, which is no fault of ours."""
        if code == 124:
            self.note("%s is left out: its time was over" % what)
        return code == 124

    def judged(self, what, right, codes, **figures):
        """A row that is ok or failed; none where one of the commands behind it, whose exit codes these are, had no time."""
        if not self.over(what, 124 if 124 in codes else 0):
            self.row(what, "ok" if right else "failed", **figures)

    def checked(self, what, command, **more):
        """A row of a command that must end with 0; what it said is kept where it does not."""
        code, said = self.call(command, **more)
        if not self.over(what, code):
            self.row(what, "ok" if code == 0 else "failed", said=said[-4000:] if code else "")
        return code == 0

    def test(self, what, name):
        """A row of one of the tree's tests, on the GPU."""
        path = os.path.join(self.tests, name)
        if not os.path.exists(path):
            self.note("%s is left out: the build has no %s" % (what, name))
            return
        self.checked(what, [path], env={"LH_TEST_GPU": "1", "LH_TEST_DEVICE": "cuda", "LH_TEST_PLUGINS": self.plugins,
                                        "LH_TEST_GOLDEN": self.golden})

    def longhaul(self, *words, **more):
        return self.call([os.path.join(self.bin, "longhaul"), *words, "--plugins", self.plugins], **more)


def wheels():
    """Folders of CUDA's libraries in a PyTorch that this Python has."""
    found = []
    for path in sys.path:
        found += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))
    return found


def facts(part):
    """What nvidia-smi tells of the GPUs; without it, that it is missing."""
    asked = "name,pci.bus_id,driver_version,compute_cap,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,ecc.mode.current"
    if shutil.which("nvidia-smi") is None:
        part.note("nvidia-smi is not here, so no clocks and no power are told")
        return []
    code, said = part.call(["nvidia-smi", "--query-gpu=" + asked, "--format=csv,noheader"])
    if code != 0:
        part.note("nvidia-smi fails: %s" % said.strip().split("\n")[0])
        return []
    return [dict(zip(asked.split(","), (cell.strip() for cell in line.split(",")))) for line in said.strip().split("\n")]


def has_gpu(part):
    """Whether the device can be opened; says why not."""
    code, said = part.longhaul("bench", "device", "--quick", "--json", "--device", "cuda")
    if code == 0:
        return json.JSONDecoder().raw_decode(said[said.index("{"):])[0]
    part.note("no part of a training runs here: %s" % said.strip().split("\n")[-1])
    return None


# ---- trainings ----

def shape(part, name):
    m = dict(TINY if part.given.tiny else SIZES[name])
    m["batch"] = 8 if part.given.tiny else TOKENS // m["seq"]
    return m


def parameters(m):
    return llama_step.parameters(m) - (m["vocab"] * m["hidden"] if m["tied"] else 0)


def flops(m):
    """Of a token."""
    embeds = 0 if m["tied"] else m["vocab"] * m["hidden"]
    return 6 * (parameters(m) - embeds) + 6 * m["layers"] * m["hidden"] * m["seq"]


def job_of(part, name, m, steps, precision="bf16", device="cuda"):
    """An INI with its tokens, in a folder of its own."""
    folder = os.path.join(part.out, "jobs", name)
    if not os.path.exists(os.path.join(folder, "tokens.bin")):
        os.makedirs(folder, exist_ok=True)
        width = "<u4" if m["vocab"] > 65535 else "<u2"
        write_tokens(os.path.join(folder, "tokens"), m, (steps + 1) * m["batch"] * m["seq"], width)
    path = os.path.join(folder, "job.ini")
    with open(path, "w") as f:
        f.write((llama_step.JOB % dict(m, kind="plugin = llama", micro=m["micros"][0], precision=llama_step.PRECISIONS[precision], threads=1,
                                       steps=steps)).replace("plugin = cpu\nthreads = 1\n", "plugin = %s\n" % device)
                .replace("[train]\n", "tied = %s\n[train]\n" % ("yes" if m["tied"] else "no")))
        if part.libraries and device == "cuda":
            f.write("libraries = %s\n" % part.libraries)
    return path


def write_tokens(prefix, m, count, width):
    """As llama_step.write_tokens, for vocabularies of any size."""
    if width == "<u2":
        llama_step.write_tokens(prefix, m, count)
        return
    import array
    import random
    import struct
    draw, length = random.Random(1), m["seq"] + 1
    documents = count // length + 2
    with open(prefix + ".bin", "wb") as f:
        for _ in range(documents):
            array.array("I", (draw.randrange(m["vocab"]) for _ in range(length))).tofile(f)
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, documents, documents + 1))
        f.write(struct.pack("<%di" % documents, *[length] * documents))
        f.write(struct.pack("<%dq" % documents, *[4 * length * i for i in range(documents)]))
        f.write(struct.pack("<%dq" % (documents + 1), *range(documents + 1)))


def train(part, job, folder, *sets, resume=False):
    """(exit code, what it said, the rows of metrics.jsonl)."""
    words = [word for text in ("pipeline.folder=" + folder,) + sets for word in ("--set", text)]
    code, said = part.longhaul("train", job, *(["--resume"] if resume else []), *words)
    return code, said, told(os.path.join(os.path.dirname(job), folder, "metrics.jsonl"))


def told(path):
    """The rows of a metrics.jsonl; what is not written whole is none."""
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def steps_of(rows):
    return [r for r in rows if "seconds" in r and "loss" in r]


def train_until(part, job, folder, enough, *sets):
    """As train, which is killed once `enough` of its rows is true: so it makes no save at its end, which is 39 GB at 3B."""
    begin(job, folder)
    words = [word for text in ("pipeline.folder=" + folder,) + sets for word in ("--set", text)]
    path = os.path.join(os.path.dirname(job), folder, "metrics.jsonl")
    with tempfile.TemporaryFile("w+", dir=part.out, errors="replace") as out, \
         subprocess.Popen([os.path.join(part.bin, "longhaul"), "train", job, *words, "--plugins", part.plugins], env=part.env,
                          stdout=out, stderr=subprocess.STDOUT, start_new_session=True) as process:
        while process.poll() is None and part.left() > 0 and not enough(told(path)):
            time.sleep(0.01)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        said = out.read()
    rows = told(path)
    if enough(rows):
        return 0, said, rows
    return (124 if part.left() <= 0 else process.returncode or 1), said, rows


def begin(job, folder):
    """A folder that another training had is empty again."""
    shutil.rmtree(os.path.join(os.path.dirname(job), folder), ignore_errors=True)


def curve(rows):
    return [(r["step"], r["loss"], r["gradient_norm"]) for r in rows if "loss" in r]


def ours(part, job, warm, last, *sets):
    """Figures of a training up to step `last`, or None where it failed, with what it said last."""
    begun = time.monotonic()
    code, said, rows = train_until(part, job, "speed", lambda rows: len(steps_of(rows)) >= last,
                                   "train.steps=%d" % (last + 2), *sets)
    steps = steps_of(rows)[:last]
    if code != 0:
        return None, said.strip().split("\n")[-1] if code != 124 else "its time was over"
    return {"step_s": statistics.median(r["seconds"] for r in steps[warm:]), "whole_s": time.monotonic() - begun,
            "losses": [r["loss"] for r in steps]}, None


def fastest(part, name, job, m):
    """(seconds of a step, micro-batch, seconds of a run beside its steps) of the micro-batch with which a step is the
    shortest, and None; or None and why none trains. Each that was tried is a row. The third step counts: lists are captured
    in the second."""
    best, said = None, "none was tried"
    for micro in m["micros"]:
        got, why = ours(part, job, 2, 3, "train.micro_batch=%d" % micro, "train.deterministic=no")
        step_row(part, "%s, ours, micro-batch %d" % (name, micro), (got, why))
        said = why or said
        if got is not None and (best is None or got["step_s"] < best[0]):
            best = got["step_s"], micro, max(0, got["whole_s"] - 3 * got["step_s"])
    return best, said if best is None else None


def in_turn(part, name, sides, keep):
    """As turns.in_turn, where time is left: `keep` seconds are for the rows behind it. Without them sides of the first round
    are left out, all but the first, and so is each later round that would not be over by then, as long as the one before."""
    got, took = {side: [] for side in sides}, 0
    for n in range(part.given.rounds):
        begun = time.monotonic()
        if n > 0 and part.left() < took + keep:
            part.note("%s: rounds from number %d on are left out: the rows behind them have the time" % (name, n + 1))
            break
        for at, (side, measure) in enumerate(sides.items()):
            if n == 0 and at > 0 and part.left() < keep:
                part.note("%s, %s is left out: the rows behind it have the time" % (name, side))
            elif n == 0 or got[side]:
                got[side].append(measure())
        took = time.monotonic() - begun
    return got


SDPA = ("flash", "cudnn", "efficient")


def peer(part, m, picked, compiled, steps, warm):
    """PyTorch's figures, or None with a sentence. Its micro-batch and the backend of its attention are the fastest of those
    in `picked`, which has only these from then on."""
    script = os.path.join(turns.PEERS, "pytorch_step.py")
    command = [sys.executable, script, "--device", "cuda", "--dtype", "bf16", "--steps", str(steps), "--warmup", str(warm),
               "--micro", ",".join(map(str, picked["micro"])), "--sdpa", ",".join(picked["sdpa"])]
    for key in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq", "batch"):
        command += ["--" + key.replace("_", "-"), str(m[key])]
    code, said = part.call(command + ["--tied"] * m["tied"] + ["--compile"] * compiled,
                           env={"TORCHINDUCTOR_CACHE_DIR": os.path.join(part.out, "inductor")})
    if code != 0:
        return None, said.strip().split("\n")[-1][:300]
    figures = json.loads(said.strip().split("\n")[-1])
    picked.update(micro=[figures["micro"]], sdpa=[figures["sdpa"]])
    return figures, None


def tried_text(figures):
    """What a side of PyTorch's tried before its steps, in words."""
    return ", ".join("%s%s of %d: %s" % ("compiled, " if one["compile"] else "", one["sdpa"], one["micro"],
                                         "%.0f" % one["tokens_per_s"] if one["tokens_per_s"] else "left out")
                     for one in figures.get("tried", []))


def torch_missing():
    code = subprocess.run([sys.executable, "-c", "import torch, transformers; assert torch.cuda.is_available()"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return None if code.returncode == 0 else code.stderr.strip().split("\n")[-1]


def memory_of(rows):
    """(planned, measured on the device) of rank 0, in bytes; None where the run, which tells it at its end, did not."""
    found = [r["memory"][0] for r in rows if r.get("memory")]
    return (found[-1]["planned"]["total"], found[-1]["measured"]["total"]) if found else None


def goals(part, name, m, job, micro, step, got, device):
    """The figures beside tokens/s that a size is held to; `got` are the rounds of each side."""
    rate = (device or {}).get("peak_flops", {}).get("BF16", 0)
    if rate > 0:
        share = 100 * m["batch"] * m["seq"] * flops(m) / step / rate
        part.row("%s, of the matrix rate of this run" % name, "%.1f %%, goal %d %%" % (share, MATRIX_GOAL), share=share)
    memory = memory_of(profile(part, name, job, micro, step, device))
    if memory is not None:
        off = 100 * (memory[1] / memory[0] - 1)
        part.row("%s, memory beside its plan" % name, "%.0f MiB, %+.1f %% off the plan, goal %d %%" %
                 (memory[1] / 2**20, off, PLAN_GOAL), planned=memory[0], measured=memory[1])
        peers = [result["peak_mib"] for result, _ in got.get("torch.compile", []) if result is not None]
        if peers:
            ratio = memory[1] / 2**20 / min(peers)
            part.row("%s, memory of torch.compile's" % name, "%.2fx, goal %.2fx" % (ratio, MEMORY_GOAL), ratio=ratio)
    first = first_step(part, job, micro)
    if first is None:
        part.note("%s, first step is left out: none was made in time" % name)
    elif name in FIRST_GOALS:
        part.row("%s, from exec to the first step" % name, "%.2f s, goal %d s" % (first, FIRST_GOALS[name]), seconds=first)


def passes(part, name, rows, device):
    """GB/s of each kernel that memory bounds and that counts, beside the rate of copies of the same run."""
    rate, peak = (device or {}).get("bytes_per_second", 0), (device or {}).get("peak_flops", {}).get("BF16", 0)
    whole = sum(row["ns"] for row in rows)
    if rate <= 0 or peak <= 0 or whole == 0:
        return
    found = [(row["bytes"] / row["ns"] * 1e9, row) for row in rows
             if row["op"] and row["ns"] > PASS_SHARE * whole and row["bytes"] / rate > row["flops"] / peak]
    for speed, row in sorted(found, key=lambda one: -one[1]["ns"]):
        part.row("%s, %s%s" % (name, row["op"], " backward" if row["backward"] else ""),
                 "%.0f GB/s, %.0f %% of copies' %.0f GB/s, goal %d %%; %.1f %% of a step; %s" %
                 (speed / 1e9, 100 * speed / rate, rate / 1e9, PASS_GOAL, 100 * row["ns"] / whole, row["kernel"]),
                 bytes_per_s=speed, copies_bytes_per_s=rate)


def profile(part, name, job, micro, step, device):
    """One step kernel by kernel, and how long the device has none of them in a step that is not profiled. The rows of its
    metrics: this is the training of a size that comes to its end."""
    folder = os.path.join(os.path.dirname(job), "profile")
    begin(job, "profile")
    words = [word for text in ("pipeline.folder=profile", "train.steps=%d" % PROFILE_STEPS, "train.micro_batch=%d" % micro,
                               "train.deterministic=no") for word in ("--set", text)]
    code, said = part.longhaul("train", job, "--profile", *words)
    shutil.rmtree(os.path.join(folder, "checkpoints"), ignore_errors=True)
    what, path = "%s, kernel by kernel" % name, os.path.join(folder, "profile.json")
    if part.over(what, code):
        return []
    if code != 0 or not os.path.exists(path):
        part.row(what, "failed", said=said[-4000:])
        return []
    rows = json.load(open(path))
    part.row(what, "ok", kernels=rows, said=said[-12000:])
    passes(part, name, rows, device)
    kernels = sum(row["ns"] for row in rows) * 1e-9
    part.row("%s, device idle" % name, "%.1f %% of a step, goal %d %%" % (100 * (1 - kernels / step), IDLE_GOALS[name]),
             kernels_s=kernels, step_s=step)
    return told(os.path.join(folder, "metrics.jsonl"))


def first_step(part, job, micro):
    """Seconds from exec to the line of the first step, which is the last of this training; None: there was none."""
    words = [word for text in ("pipeline.folder=first", "train.steps=1", "train.micro_batch=%d" % micro, "train.deterministic=no")
             for word in ("--set", text)]
    begin(job, "first")
    if part.left() <= 1:
        return None
    begun, found = time.monotonic(), None
    with subprocess.Popen([os.path.join(part.bin, "longhaul"), "train", job, *words, "--plugins", part.plugins], text=True,
                          env=part.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        timer = threading.Timer(max(1, part.left()), os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        for line in process.stdout:
            if found is None and "step 1/" in line:
                found = time.monotonic() - begun
                os.killpg(process.pid, signal.SIGKILL)  # the save is no part of it
        process.wait()
        timer.cancel()
    return found


def share_goal(name, side, device):
    """The goal for a side's share of the peak, in words; nothing where this size or this GPU has none."""
    for (size, gpu), (loose, ordered) in SHARE_GOALS.items():
        if size == name and gpu in (device or {}).get("name", "") and side.startswith("ours"):
            return ", goal %d %%" % (ordered if side.endswith("ordered") else loose)
    return ""


def losses_text(figures):
    """Ours tells the loss of each step, PyTorch's script the last one."""
    losses = figures.get("losses") or [figures["loss"]]
    return "loss " + " to ".join("%.4f" % loss for loss in losses[:1] + losses[1:][-1:])


def compare(part, name, steps=6, warm=2, device=None, later=(0, 0), after=0):
    """One size beside PyTorch, in turn, each side with the micro-batch that suits it best; ours ordered and not. Time is kept
    for what follows: `later` steps and runs of ours, and `after` seconds of others; and for the profile's save, at 1 GB/s."""
    m = shape(part, name)
    job = job_of(part, name, m, steps + warm)
    best, why = fastest(part, name, job, m)
    if best is None:
        part.note("%s does not train here: %s" % (name, why))
        return None
    step, micro, start = best
    keep = (PROFILE_STEPS + 1 + later[0]) * step + (2 + later[1]) * start + 12e-9 * parameters(m) + after
    sides = {"ours": lambda: ours(part, job, warm, steps + warm, "train.micro_batch=%d" % micro, "train.deterministic=no"),
             "ours, ordered": lambda: ours(part, job, warm, steps + warm, "train.micro_batch=%d" % micro)}
    missing = torch_missing()
    if missing:
        part.note("only ours is measured: PyTorch with CUDA and Transformers is not in this Python (%s)" % missing)
    else:
        picked = [{"micro": m["micros"], "sdpa": SDPA} for _ in range(2)]
        sides["torch.compile"] = lambda: peer(part, m, picked[1], True, steps, warm)
        sides["PyTorch eager"] = lambda: peer(part, m, picked[0], False, steps, warm)
    got = in_turn(part, name, sides, keep)
    medians = {}
    for side, results in got.items():
        figures = [result for result, _ in results if result is not None]
        if not figures:
            if results:
                part.note("%s, %s is left out: %s" % (name, side, results[0][1]))
            continue
        step = medians[side] = statistics.median(f["step_s"] for f in figures)
        rate = m["batch"] * m["seq"] / step
        with_ = "micro-batch %d" % figures[0].get("micro", micro)
        if "sdpa" in figures[0]:
            with_ += ", SDPA " + figures[0]["sdpa"]
            part.note("%s, %s tried, in tokens/s of the passes: %s" % (name, side, tried_text(figures[0])))
        part.row("%s, %s" % (name, side), "%.0f tokens/s, %.1f %% of the peak%s, %s, %s" %
                 (rate, 100 * rate * flops(m) / PEAK, share_goal(name, side, device), with_, losses_text(figures[0])),
                 tokens_per_s=rate, rounds=figures)
    if "torch.compile" in medians and "ours" in medians:
        ratio = medians["torch.compile"] / medians["ours"]
        part.row("%s, of torch.compile" % name, "%.2fx, goal %.2fx" % (ratio, GOALS[name]), ratio=ratio)
    if "ours" in medians:
        goals(part, name, m, job, micro, medians["ours"], got, device)
    return job, micro


# ---- the parts ----

def check(part):
    device = has_gpu(part)
    if device is not None:
        part.row("matrix rate, BF16", "%.1f TFLOP/s" % (device["peak_flops"].get("BF16", 0) / 1e12), device=device)
        part.row("copies", "%.2f TB/s" % (device["bytes_per_second"] / 1e12))
    code, said = part.call([os.path.join(part.bin, "longhaul-check"), "--only-failed", "--plugins", part.plugins,
                            os.path.join(part.plugins, "devices", "cuda.so")] +
                           (["--only", "device.memory|device.streams|file"] if part.given.tiny else []))
    part.judged("longhaul-check cuda", code == 0, [code], said=said[-8000:])
    if device is None:
        return
    m = TINY | {"batch": 8}
    job = job_of(part, "bits", m, 6, "fp32")
    first, said, whole = train(part, job, "captured")
    whole = curve(whole)
    part.judged("lists are captured", whole and "launched one by one" not in said, [first], said=said[-2000:])
    code, _, launched = train(part, job, "launched", "device.capture=no")
    part.judged("captured or not, the same bits", whole and whole == curve(launched), [first, code], said=said[-2000:])
    code, _, again = train(part, job, "again")
    part.judged("twice the same bits", whole and whole == curve(again), [first, code])
    code, _, truth = train(part, job_of(part, "truth", m, 6, "fp32", "reference"), "reference")
    truth = curve(truth)
    near = len(truth) == len(whole) > 0 and all(abs(a[1] - b[1]) < 1e-4 for a, b in zip(whole, truth))
    part.judged("losses of the reference device", near, [first, code], ours=whole, reference=truth)
    killed(part, job)
    for name in GPU_TESTS[:1] if part.given.tiny else GPU_TESTS:
        part.test("test " + name, name)


def killed(part, job):
    """A training that is killed behind a save, and its resume, beside one that is left alone."""
    sets = ("train.steps=12", "checkpoint.every=3")
    first, said, whole = train(part, job, "alone", *sets)
    folder = os.path.join(os.path.dirname(job), "killed")
    words = [word for text in ("pipeline.folder=killed",) + sets for word in ("--set", text)]
    with subprocess.Popen([os.path.join(part.bin, "longhaul"), "train", job, *words, "--plugins", part.plugins], env=part.env,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        path = os.path.join(folder, "metrics.jsonl")
        while process.poll() is None and part.left() > 0 and not (os.path.exists(path) and '"save"' in open(path).read()):
            time.sleep(0.005)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        part.note("it trained to its end before it could be killed")
    code, more, rows = train(part, job, "killed", *sets, resume=True)
    part.judged("killed and resumed, the same bits", curve(rows) == curve(whole) != [], [first, code],
                said=said[-1000:] + more[-1000:])


def speed(part):
    device = has_gpu(part)
    if device is None:
        return
    compare(part, "160M", device=device, after=0.6 * part.left())  # the larger one needs more
    trained = compare(part, "1B", device=device, later=(SAVES_STEPS, 1))
    if trained is not None:
        saves(part, "1B", *trained)


def saves(part, name, job, micro, every=20):
    """Steps beside a save and those before it: what a save holds up, and how much slower the steps beside it are."""
    if part.given.tiny:
        every = 6
    code, said, rows = train_until(
        part, job, "saves", lambda rows: any("save" in r for r in rows) and len(steps_of(rows)) >= every + 4,
        "train.steps=%d" % (20 * every), "train.micro_batch=%d" % micro, "checkpoint.every=%d" % every)
    begin(job, "saves")
    what = "%s, saves" % name
    if part.over(what, code):
        return
    at = min((i for i, r in enumerate(rows) if "save" in r), default=0)
    stalls = [r["save"]["stall_s"] for r in rows[at:at + 1] if r.get("save", {}).get("committed")]
    plain = [r["seconds"] for r in steps_of(rows) if 2 < r["step"] <= every]
    behind = [r["seconds"] for r in steps_of(rows) if r["step"] > every]
    beside = behind[:max(1, sum(r["step"] > every for r in steps_of(rows[:at])))]  # all that were told before it
    if code != 0 or not stalls or not plain or not beside:
        part.row(what, "failed", said=said[-2000:])
        return
    usual = statistics.median(plain)
    part.row(what, "%.2f %% of a step held up, goal 1 %%; the %d steps beside it %+.1f %%, goal 2 %%" %
             (100 * stalls[0] / usual, len(beside), 100 * (statistics.median(beside) / usual - 1)), stalls=stalls, plain=plain,
             beside=beside)


def step_row(part, what, result):
    got, why = result
    if got is None:
        part.note("%s is left out: %s" % (what, why))
    else:
        part.row(what, "%.3f s a step" % got["step_s"], figures=got)


def large(part):
    device = has_gpu(part)
    if device is None:
        return
    m = shape(part, "3B")
    job = job_of(part, "3B", m, 8)
    trained = compare(part, "3B", steps=4, device=device, later=(3 * len(CHUNKS) + SAVES_STEPS, len(CHUNKS) + 1))
    if trained is None:
        return
    for rows in CHUNKS:
        step_row(part, "3B, %d rows of logits at a time" % rows,
                 ours(part, job, 2, 3, "train.micro_batch=%d" % trained[1], "train.deterministic=no",
                      "train.head_chunk=%d" % rows))
    saves(part, "3B", *trained)


def sanitize(part):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        part.note("compute-sanitizer is not here: the CUDA toolkit has it, in PATH or in /usr/local/cuda/bin")
        return
    if has_gpu(part) is None:
        return
    # Each has its share of the time that is left: all four say something where one takes too long.
    for at, name in enumerate(SANITIZERS):
        part.checked(name, [tool, "--tool", name, "--error-exitcode", "1", os.path.join(part.bin, "longhaul-check"),
                            "--in-process", "--only", "device.streams" if part.given.tiny else "device.kernels",
                            "--plugins", part.plugins, os.path.join(part.plugins, "devices", "cuda.so")],
                     seconds=part.left() / (len(SANITIZERS) - at))


def losses_near(got, one):
    """Whether a curve's losses are those of one rank, to 1e-4."""
    return len(got) == len(one) > 0 and all(abs(a[1] - b[1]) < 1e-4 * abs(b[1]) for a, b in zip(got, one))


def ranks(part):
    if has_gpu(part) is None:
        return
    part.test("NCCL in a group of one, every call", "nvlink_test")
    m = shape(part, "160M")
    job = job_of(part, "ranks", m, 4)
    fixed = ("train.steps=4", "optimizer.clip=1.0")
    code, said, rows = train(part, job, "one", *fixed)
    one = curve(rows)
    part.judged("one rank", code == 0, [code], curve=one, said=said[-2000:])
    if code == 124:
        return
    first = None
    for stage in range(4):
        code, said, rows = train(part, job, "two%d" % stage, *fixed, "optimizer.plugin=zero%d" % stage, "device.index=0",
                                 "launch.ranks_per_node=2", "parallel.accumulation=breadth")
        if part.over("ZeRO %d" % stage, code):
            return
        got = curve(rows)
        first = first or got
        same = code == 0 and losses_near(got, one) and got == first
        part.row("two ranks on a GPU, ZeRO %d" % stage, "ok" if same else "failed",
                 curve=got, said="" if code == 0 else said[-2000:])
    count = len(part.facts) or part.given.tiny * 2
    if count < 2:
        part.note("NCCL between ranks is left out: it takes a GPU for each, and there is one")
        return
    while m["batch"] % count != 0:
        count -= 1  # ranks share a batch evenly
    micro = min(m["micros"][0], m["batch"] // count)
    while m["batch"] // count % micro != 0:
        micro -= 1
    more = ("launch.ranks_per_node=%d" % count, "train.micro_batch=%d" % micro, "transport.node.collectives=nvlink") + \
        (("transport.node.libraries=" + part.libraries,) if part.libraries else ())
    for stage in range(4):
        code, said, rows = train(part, job, "nccl%d" % stage, *fixed, "optimizer.plugin=zero%d" % stage, *more)
        if part.over("NCCL", code):
            return
        steps = [r["seconds"] for r in rows if "seconds" in r]
        right = code == 0 and len(steps) > 2 and losses_near(curve(rows), one)
        part.row("NCCL over %d GPUs, ZeRO %d" % (count, stage),
                 "%.3f s a step" % statistics.median(steps[2:]) if right else "failed",
                 curve=curve(rows), said="" if code == 0 else said[-2000:])


PARTS = {"check": check, "speed": speed, "large": large, "sanitize": sanitize, "ranks": ranks}


def run_all(given, bundle):
    """Every part, one after the other, within the time of all; their tables together are all.txt."""
    until = time.monotonic() + 60 * sum(MINUTES.values())
    waiting, failed = list(MINUTES), 0
    while waiting:
        given.part = waiting.pop(0)
        left = (until - time.monotonic()) / 60 - sum(MINUTES[name] for name in waiting)
        given.minutes = max(0.1, min(9, left))
        print("---- %s, %.1f minutes at most" % (given.part, given.minutes), flush=True)
        failed |= run(given, bundle)
    with open(os.path.join(given.out, "all.txt"), "w") as f:
        for name in MINUTES:
            f.write("---- %s\n" % name)
            f.write(open(os.path.join(given.out, name + ".txt")).read())
    print("all: %s" % os.path.join(os.path.abspath(given.out), "all.txt"))
    return failed


def run(given, bundle):
    part = Part(given, bundle)
    begun = time.monotonic()
    part.facts = []
    part.facts = facts(part)
    PARTS[given.part](part)
    part.write()
    print("%s: %d rows, %d failed, %.0f s; %s" % (given.part, len(part.rows), part.failed, time.monotonic() - begun,
                                                os.path.join(part.out, given.part + ".json")))
    return 1 if part.failed else 0
