"""Run by the Python of the peers (PyTorch, Transformers), which takes seconds to begin: one process answers for any number
of models. Each line of its input is a request in JSON, {"folder": FOLDER, ...}; the line that answers has the mean loss of
rows of ids, the greedy continuation of one, logits after others, and logits at all positions of rows. It ends with its input.

{"run": [SCRIPT, WORD, ...], "out": FILE, "err": FILE, "models": [CLASS, ...]} runs a script in a fork, with what this process has
imported, those classes of Transformers among it; the answer has its exit code. Backward passes, which make threads, are for forks
alone: after one here no fork could make another."""
import json
import os
import runpy
import sys
import traceback

import torch
import transformers
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


def script_run(request):
    """In the fork, up to its end. The exit code is that of a Python of its own."""
    for number, name in ((1, request["out"]), (2, request["err"])):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    os.environ.pop("OMP_NUM_THREADS", None)  # was for PyTorch here, and not for programs that the script starts
    sys.argv = request["run"]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # a fork that went on would read the requests that are not its own
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def script_answer(request):
    for name in request["models"]:
        getattr(transformers, name)
    child = os.fork()
    if child == 0:
        script_run(request)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(script_answer(request) if "run" in request else answer(request)), flush=True)


main()
