"""Run by the Python of the peers (PyTorch, Transformers), which takes seconds to begin: one process answers for any number
of models. Each line of its input is a request in JSON, {"folder": FOLDER, ...}; the line that answers has the mean loss of
rows of ids, the greedy continuation of one, logits after others, and logits at all positions of rows. It ends with its input."""
import json
import sys

import torch
from transformers import AutoModelForCausalLM


def answer(request):
    model, info = AutoModelForCausalLM.from_pretrained(request["folder"], dtype=torch.float32,
                                                       output_loading_info=True)
    model.eval()
    complaints = {k: sorted(v) for k, v in info.items()
                  if k in ("missing_keys", "unexpected_keys", "mismatched_keys") and v}
    losses, logits, rows, greedy = [], [], [], []
    with torch.no_grad():
        for ids in request.get("documents", []):
            row = torch.tensor([ids])
            out = model(row).logits[0, :-1].double()
            losses.append(torch.nn.functional.cross_entropy(out, row[0, 1:]).item())
        for ids in request.get("prompts", []):
            logits.append(model(torch.tensor([ids])).logits[0, -1].tolist())
        for ids in request.get("rows", []):
            rows.append(model(torch.tensor([ids])).logits[0].flatten().tolist())
        ids = list(request.get("start", []))
        for _ in range(request.get("tokens", 0)):
            greedy.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            ids.append(greedy[-1])
    return {"losses": losses, "logits": logits, "rows": rows, "greedy": greedy, "complaints": complaints}


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


main()
