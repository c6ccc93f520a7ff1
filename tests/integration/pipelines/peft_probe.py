"""Run by the Python of the peers (PyTorch, Transformers, PEFT). The request has `models`, a list of pairs of a model's
folder and an adapter's, and `rows` of ids; of each pair prints, as JSON, the logits behind each row with the adapter, and
without it.

    peft_probe.py REQUEST.json"""
import json
import sys
import warnings

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def probe(base, adapter, rows):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
    complaints = [str(w.message) for w in said if "missing" in str(w.message).lower()]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0, -1].tolist() for ids in rows]
        with model.disable_adapter():
            alone = [model(torch.tensor([ids])).logits[0, -1].tolist() for ids in rows]
    return {"logits": logits, "alone": alone, "complaints": complaints}


def main():
    request = json.load(open(sys.argv[1]))
    torch.set_num_threads(1)
    print(json.dumps([probe(base, adapter, request["rows"]) for base, adapter in request["models"]]))


main()
