"""Trains a demo pipeline a second time with PyTorch and Transformers, from our step-0 weights and our
batches, and compares the losses on the held-out data.

    python demo.py LONGHAUL examples/shakespeare.ini WORK [--autocast] [--threads N]
                   [--out demo.json]

WORK is a folder for everything that is made. Ours: `longhaul` prepares, saves the start weights
(steps = 0) and exports them, then trains with --dump-batches and evaluates. Theirs: Transformers loads
the exported start weights and is fed the dumped batches by torch.optim.AdamW, with the rate, the decay
(on matrices only), the clipping and the betas that the pipeline names; then both are judged on the same
held-out rows, cut from the token files by gptdataset.py. The stored demo.json is what CI compares the
first steps with. Needs numpy, torch and transformers.
"""
import argparse
import json
import math
import os
import subprocess

import numpy
import torch
from transformers import AutoModelForCausalLM

import gptdataset


def longhaul(arguments, *command):
    subprocess.run([arguments.longhaul, *command], check=True)


def set_of(values):
    return [word for key, value in values.items() for word in ("--set", "%s=%s" % (key, value))]


def effective(arguments, sets):
    """What `longhaul check` says, as {"train.steps": "1000"}."""
    text = subprocess.run([arguments.longhaul, "check", arguments.ini, *sets], check=True,
                          capture_output=True, text=True).stdout
    values, section = {}, ""
    for line in text.splitlines():
        line = line.split(" ;")[0].strip()
        if line.startswith("["):
            section = line.strip("[]")
        elif " = " in line:
            key, value = line.split("=", 1)
            values[section + "." + key.strip()] = value.strip()
    return values


def run_ours(arguments, steps):
    base = {"pipeline.folder": os.path.abspath(arguments.work),
            "device.threads": arguments.threads}
    start = dict(base, **{"checkpoint.folder": "start", "export.folder": "start-hf",
                          "train.steps": 0})
    longhaul(arguments, "prepare", arguments.ini, *set_of(base))
    longhaul(arguments, "train", arguments.ini, *set_of(start))
    longhaul(arguments, "export", arguments.ini, *set_of(start))
    longhaul(arguments, "train", arguments.ini, "--dump-batches", str(steps), *set_of(base))
    longhaul(arguments, "eval", arguments.ini, *set_of(base))
    with open(os.path.join(arguments.work, "eval.json")) as f:
        return json.load(f)


def batches_of(arguments):
    """[(tokens, labels)] of every step, as they lie in batches.safetensors."""
    with open(os.path.join(arguments.work, "batches.safetensors"), "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(length))
        body = f.read()
    rows = {}
    for name in ("tokens", "labels", "weights"):
        begin, end = header[name]["data_offsets"]
        kind = "<f4" if name == "weights" else "<i4"
        rows[name] = numpy.frombuffer(body[begin:end], kind).reshape(header[name]["shape"])
    assert (rows["weights"] == 1).all(), "this script knows no masked tokens"
    return list(zip(rows["tokens"].astype(numpy.int64), rows["labels"].astype(numpy.int64)))


def held_out(arguments, job):
    """[rows, sequence + 1] of the valid split, whole runs of micro_batch rows as `eval` takes them."""
    lengths, tokens = gptdataset.pair(os.path.join(arguments.work, "corpus"))
    sequence = int(job["train.sequence"])
    bounds = gptdataset.split_bounds(job["data.split"], len(lengths))[1]
    _, documents, cuts, shuffle = gptdataset.order(lengths, *bounds, sequence, None,
                                                   int(job["data.seed"]))
    starts = numpy.concatenate([[0], numpy.cumsum(lengths.astype(numpy.int64))])
    rows = [gptdataset.sample(starts, tokens, lengths, documents, cuts, int(i)) for i in shuffle]
    whole = len(rows) // int(job["train.micro_batch"]) * int(job["train.micro_batch"])
    return numpy.stack(rows[:whole]).astype(numpy.int64)


def rate_of(job, step):
    call = job["optimizer.learning_rate"]
    assert call.startswith("warmup_cosine(step,"), call
    words = dict(w.split("=") for w in call[:-1].replace(" ", "").split(",")[1:])
    peak, warmup, total = float(words["peak"]), int(words["warmup"]), int(words["total"])
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * min(1, (step - warmup) / (total - warmup))))


def loss_of(model, tokens, labels, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(torch.from_numpy(tokens)).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1),
                                             torch.from_numpy(labels).flatten())


def optimizer_of(model, job):
    assert job["optimizer.rule"] == "rules:adamw"
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    betas = (float(job["rule.adamw.beta1"]), float(job["rule.adamw.beta2"]))
    return torch.optim.AdamW([{"params": matrices, "weight_decay": float(job["optimizer.decay"])},
                              {"params": vectors, "weight_decay": 0.0}],
                             betas=betas, eps=float(job["rule.adamw.epsilon"]))


def run_theirs(arguments, job):
    model = AutoModelForCausalLM.from_pretrained(os.path.join(arguments.work, "start-hf"),
                                                 dtype=torch.float32)
    optimizer = optimizer_of(model, job)
    losses = []
    for step, (tokens, labels) in enumerate(batches_of(arguments)):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(job, step)
        loss = loss_of(model, tokens, labels, arguments.autocast)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float(job["optimizer.clip"]))
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            print("step %d loss %.4f" % (step + 1, losses[-1]), flush=True)
    rows, total = held_out(arguments, job), 0.0
    with torch.no_grad():
        for i in range(0, len(rows), 8):
            part = rows[i:i + 8]
            total += loss_of(model, part[:, :-1], part[:, 1:], arguments.autocast).item() * len(part)
    return losses, total / len(rows), rows.shape[0] * (rows.shape[1] - 1)


def our_losses(arguments):
    with open(os.path.join(arguments.work, "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    return [row["loss"] for row in rows if "learning_rate" in row]


def report(arguments, job, ours, theirs):
    losses, loss, tokens = theirs
    difference = abs(ours["loss"] - loss) / loss
    result = {
        "command": "python tests/reference/demo.py build/release/bin/longhaul "
                   + arguments.ini + " WORK" + (" --autocast" if arguments.autocast else ""),
        "made_with": "torch %s, %s" % (torch.__version__,
                                       "bf16 autocast" if arguments.autocast else "float32"),
        "precision": job["train.precision"],
        "held_out_tokens": {"ours": ours["tokens"], "pytorch": tokens},
        "held_out_loss": {"ours": ours["loss"], "pytorch": loss,
                          "relative_difference": difference},
        "train_loss": {"ours": our_losses(arguments), "pytorch": losses},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "train_loss"}, indent=1))
    if arguments.out:
        with open(arguments.out, "w") as f:
            f.write(json.dumps(result, indent=1) + "\n")
    assert ours["tokens"] == tokens, "not the same held-out rows"
    assert difference < 0.02, "more than 2 % apart"


def main():
    parser = argparse.ArgumentParser()
    for name in ("longhaul", "ini", "work"):
        parser.add_argument(name)
    parser.add_argument("--autocast", action="store_true", help="bf16, instead of f32")
    parser.add_argument("--threads", type=int, default=2, help="of ours and of theirs")
    parser.add_argument("--out", help="where the figures go, as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    job = effective(arguments, [])
    ours = run_ours(arguments, int(job["train.steps"]))
    report(arguments, job, ours, run_theirs(arguments, job))


if __name__ == "__main__":
    main()
