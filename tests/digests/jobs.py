"""The jobs whose bits are compared: tiny models, a few steps each, over what decides the order of sums and what must not."""
import os

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "data")
STORIES = os.path.realpath(DATA + "/stories260K")
PREPARE = {
    "pipeline": {"name": "digest", "stages": "prepare train", "folder": "out"},
    "prepare": {"input": os.path.realpath(DATA + "/tinystories-1000.jsonl"), "tokenizer": STORIES + "/tokenizer.json",
                "prepend": "bos", "workers": 1},
    "data": {"train": "corpus", "split": "90,10,0"},
    "checkpoint": {"every": 0},
}

MODELS = {
    "llama": {"plugin": "llama", "blocks": 2, "hidden": 32, "ffn": 56, "heads": 4, "kv_heads": 2, "max_tokens": 32},
    "tied": {"plugin": "llama", "blocks": 2, "hidden": 32, "ffn": 56, "heads": 4, "max_tokens": 32, "tied": "yes"},
    "gpt2": {"plugin": "gpt2", "blocks": 2, "hidden": 32, "heads": 4, "max_tokens": 32},
}
SITES = {"1": None, "2": None, "4": None, "1+1": (1, 1), "2+2": (2, 2), "1+2": (1, 2)}

# Ranks, stage, cut, order of micro-batches, what is computed again: each for every device, model and precision.
LAYOUTS = [
    ("1", "zero0", "data", "depth", "none"),
    ("1", "zero3", "data", "breadth", "selective"),
    ("2", "zero0", "data", "depth", "full"),
    ("2", "zero1", "data", "depth", "none"),
    ("2", "zero2", "data", "depth", "selective"),
    ("2", "zero3", "data", "depth", "none"),
    ("2", "zero1", "data", "breadth", "selective"),
    ("1+1", "zero3", "data", "breadth", "full"),
    ("4", "zero3", "data", "breadth", "none"),
    ("2+2", "zero3", "site", "depth", "selective"),
]

# The rest of what a job can say, where it touches sums, states or what moves: on the fast device alone.
# name: ranks, stage, cut, order, what is computed again, further keys
SINGLE = {
    "zero1-sites": ("1+1", "zero1", "data", "breadth", "none", {}),
    "zero1-site": ("2+2", "zero1", "site", "depth", "none", {}),
    "zero2-site": ("2+2", "zero2", "site", "breadth", "none", {}),
    "zero3-sites": ("2+2", "zero3", "data", "depth", "none", {}),
    "zero0-sites": ("2+2", "zero0", "data", "depth", "none", {}),
    "border-zero0": ("2+2", "zero0", "data", "depth", "none", {"comm": {"border": "bf16"}}),
    "border-zero2": ("1+2", "zero2", "data", "depth", "none", {"comm": {"border": "bf16"}}),
    "border-site": ("2+2", "zero1", "site", "depth", "none", {"comm": {"border": "bf16"}}),
    "uneven-sites": ("1+2", "zero2", "data", "breadth", "none", {}),
    "zero2-four": ("4", "zero2", "data", "breadth", "full", {}),
    "sgd": ("1", "zero0", "data", "depth", "none", {"optimizer": {"rule": "rules:sgd"}}),
    "sgd-nesterov": ("2", "zero3", "data", "depth", "none",
                     {"optimizer": {"rule": "rules:sgd"}, "rule.sgd": {"nesterov": "yes"}}),
    "unclipped": ("2", "zero2", "data", "depth", "none", {"optimizer": {"clip": 0}}),
    "clipped": ("2", "zero3", "data", "breadth", "none", {"optimizer": {"clip": 0.05}}),
    "groups": ("2", "zero3", "data", "depth", "none",
               {"group.norms": {"match": "*norm*", "rate": 0.5, "decay": 0}, "group.still": {"match": "embed", "frozen": "yes"}}),
    "documents-apart": ("2", "zero1", "data", "depth", "none", {"data": {"documents": "apart"}, "train": {"sequence": 32}}),
    "filled-up": ("2", "zero2", "data", "depth", "none", {"train": {"batch": 7}}),
    "one-pass": ("1", "zero0", "data", "depth", "none", {"train": {"micro_batch": 8}}),
    "head-chunk": ("1", "zero0", "data", "depth", "full", {"train": {"head_chunk": 5}}),
    "small-buckets": ("2", "zero3", "data", "breadth", "none", {"comm": {"bucket": "4KiB"}}),
    "ring": ("4", "zero1", "data", "depth", "none", {"comm": {"algorithm": "ring", "chunk": "1KiB"}}),
    "halving": ("4", "zero0", "data", "depth", "none", {"comm": {"algorithm": "halving"}}),
    "ordered": ("4", "zero2", "data", "depth", "none", {"comm": {"bits": "ordered", "algorithm": "ring"}}),
    "tcp": ("2", "zero3", "data", "depth", "none", {"transport.node": {"plugin": "tcp"}}),
    "threads": ("2", "zero1", "data", "depth", "none", {"device": {"threads": 2}}),
    "baseline": ("1", "zero0", "data", "depth", "none", {"device": {"isa": "baseline"}}),
    "evaluated": ("2", "zero2", "data", "breadth", "none", {"train": {"evaluate_every": 2, "evaluate_batches": 3}}),
}

# Saved by one layout, gone on with by another (and by another program, where one is named).
RESUMED = {
    "same": (("2", "zero1", "data", "depth", "none"), ("2", "zero1", "data", "depth", "none")),
    "fewer": (("2+2", "zero3", "site", "breadth", "none"), ("1", "zero0", "data", "depth", "none")),
    "more": (("1", "zero2", "data", "depth", "none"), ("4", "zero3", "data", "breadth", "full")),
}

QUICK = [
    "cpu/llama/f32/1-zero0-depth-none", "cpu/tied/bf16/2-zero1-depth-none", "cpu/gpt2/f32/2-zero3-depth-none",
    "cpu/llama/bf16/1+1-zero3-breadth-full", "cpu/gpt2/bf16/4-zero3-breadth-none", "cpu/tied/f32/2+2-zero3-site-depth-selective",
    "reference/llama/bf16/2-zero2-depth-selective", "reference/gpt2/f32/2-zero1-breadth-selective",
    "cpu/llama/f32/single-groups", "cpu/llama/bf16/single-filled-up", "cpu/llama/f32/resumed-more",
]


class Job:
    """A name, and trainings that go on from each other in one folder: {section: {key: value}} of each."""

    def __init__(self, name, *parts):
        self.name, self.parts = name, parts


def sections(device, model, precision, layout, more=None, steps=3):
    ranks, stage, cut, order, recompute = layout
    out = {
        "model": dict(MODELS[model], vocab=512),
        "train": {"sequence": 16, "batch": 8, "micro_batch": 1, "steps": steps, "precision": precision, "recompute": recompute},
        "optimizer": {"plugin": stage, "rule": "rules:adamw", "decay": 0.1,
                      "learning_rate": "warmup_cosine(step, peak=1e-2, warmup=2, total=6)"},
        "parallel": {"accumulation": order},
        "device": {"plugin": device},
    }
    if stage != "zero0":
        out["optimizer"]["cut"] = cut
    if device == "cpu":
        out["device"]["threads"] = 1
    if SITES[ranks] is None:
        out["launch"] = {"ranks_per_node": ranks}
    else:
        for name, count in zip(("tokyo", "osaka"), SITES[ranks]):
            out["site." + name] = {"hosts": "localhost:%d" % count}
        out["comm"] = {"border": "f32"}
    for section, keys in (more or {}).items():
        out.setdefault(section, {}).update(keys)
    return out


def every_job():
    jobs = []
    for device in ("cpu", "reference"):
        for model in MODELS:
            for precision in ("f32", "bf16"):
                for layout in LAYOUTS:
                    ranks, stage, cut, order, recompute = layout
                    tail = [ranks, stage] + ([cut] if cut != "data" else []) + [order, recompute]
                    jobs.append(Job("/".join((device, model, precision, "-".join(tail))),
                                    sections(device, model, precision, layout)))
    for precision in ("f32", "bf16"):
        for name, row in SINGLE.items():
            jobs.append(Job("cpu/llama/%s/single-%s" % (precision, name),
                            sections("cpu", "llama", precision, row[:5], row[5])))
        for name, (first, then) in RESUMED.items():
            jobs.append(Job("cpu/llama/%s/resumed-%s" % (precision, name),
                            sections("cpu", "llama", precision, first, steps=2),
                            sections("cpu", "llama", precision, then, {"train": {"same_bits": "no"}}, steps=4)))
        imported = sections("cpu", "llama", precision, LAYOUTS[3], {"train": {"sequence": 32}}, steps=2)
        imported.update({"model": {"plugin": "llama", "vocab": "from_import"}, "import": {"from": STORIES}})
        jobs.append(Job("cpu/llama/%s/imported" % precision, imported))
    return jobs
