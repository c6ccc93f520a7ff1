"""Loss curves of a model with a loss of its own that is no sum over tokens, by micro-batches: the mean
over all tokens of the cross-entropy, and over micro-batches of the other loss.

    python tests/reference/micro_batches.py tests/golden/mixtral

Writes micro_batches.json there: curves and norms by 2 sequences and by 1, as expected.json has them of
all 4 at once. Made with torch 2.15.0 and transformers 5.24.0."""
import json
import os
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
tokens = load_file(os.path.join(folder, "batch.safetensors"))["tokens"]


def loss_of(model, rows, by):
    entropy, own = 0, 0
    for begin in range(0, len(rows), by):
        part = rows[begin:begin + by]
        out = model(input_ids=part[:, :-1].long(), use_cache=False)
        logits = out.logits.float().reshape(-1, model.config.vocab_size)
        share = len(part) / len(rows)
        entropy = entropy + share * torch.nn.functional.cross_entropy(logits, part[:, 1:].reshape(-1).long())
        own = own + share * out.aux_loss
    return entropy + model.config.router_aux_loss_coef * own


def curve(by, autocast):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
                                  lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for rows in tokens:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, rows, by)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms


made = {}
for by in (1, 2):
    made["loss_curve_fp32_by_%d" % by], made["gradient_norms_fp32_by_%d" % by] = curve(by, False)
    made["loss_curve_bf16_autocast_by_%d" % by], _ = curve(by, True)
with open(os.path.join(folder, "micro_batches.json"), "w") as f:
    json.dump(made, f, indent=1)
    f.write("\n")
