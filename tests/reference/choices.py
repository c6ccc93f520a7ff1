"""Makes choices.json: questions with several continuations, and what lm-evaluation-harness's formulas
make of them with Transformers and a model of examples/data.

    python tests/reference/choices.py examples/data/stories260K examples/data/tinystories-1000.jsonl

What is done here stands there in lm_eval/api/model.py (_encode_pair, loglikelihood),
lm_eval/models/huggingface.py (_loglikelihood_tokens) and lm_eval/api/task.py (process_results of
multiple_choice). Made with torch 2.15.0 and transformers 5.24.0."""
import json
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

folder, corpus = sys.argv[1:3]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"),
                                    bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
LONGEST = model.config.max_position_embeddings


def questions():
    """The next sentence of a story, among those of other stories; and what is at the edges."""
    with open(corpus) as f:
        stories = [json.loads(line)["text"] for line, _ in zip(f, range(40))]
    cut = [[s.strip() + "." for s in story.replace("\n", " ").split(".") if s.strip()] for story in stories]
    cut = [s for s in cut if len(s) > 4]
    out = []
    for i in range(12):
        right = i % 3
        choices = [cut[(i + 7 * (1 + j)) % len(cut)][2] for j in range(3)]
        choices[right] = cut[i][2]
        out.append({"prompt": " ".join(cut[i][:2]), "choices": choices, "answer": right})
    once = "Once upon a time, there was a little girl"
    out += [{"prompt": once + "  ", "choices": ["named Lily.", "who", "named Lily. She liked to play outside."],
             "answer": "who"},
            {"prompt": once + "\n", "choices": ["She", "He was big", "The end"], "answer": 0},
            {"prompt": "", "choices": ["Once upon a time", "The dog", "<s>Tom"], "answer": 0},
            {"prompt": "Tom said: \u201c", "choices": ["\u00e9t\u00e9", "hello", "\u4f60\u597d\u4f60\u597d"],
             "answer": 1},
            {"prompt": "The answer is", "choices": ["yes", "no", "yes"], "answer": 2},
            {"prompt": "Lily and Ben went to the park. " * 90, "choices": ["They were happy.", "Tree"],
             "answer": 0},
            {"prompt": "One", "choices": ["day"], "answer": 0}]
    return out


def encode(text, bos, special=True):
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [tokenizer.bos_token_id] * (bos and special) + ids


def pair(context, continuation, bos):
    if context == "":
        own = encode(continuation, bos, special=False)
        prefix = tokenizer.bos_token_id
        return ([prefix], own) if prefix != own[0] else (own[:1], own[1:])
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole, before = encode(context + continuation, bos), encode(context, bos)
    return before, whole[len(before):]


@torch.no_grad()
def log_likelihood(before, own):
    ids = torch.tensor((before + own)[-(LONGEST + 1):][:-1])
    logits = torch.log_softmax(model(ids[None]).logits[0].float(), dim=-1)[-len(own):]
    return logits.gather(1, torch.tensor(own)[:, None]).sum().item()


def scored(all_questions, delimiter, bos):
    results, hits = [], np.zeros(3)
    for q in all_questions:
        gold = q["answer"] if isinstance(q["answer"], int) else q["choices"].index(q["answer"])
        lls = np.array([log_likelihood(*pair(q["prompt"], delimiter + c, bos)) for c in q["choices"]])
        characters = np.array([float(len(c)) for c in q["choices"]])
        of_bytes = np.array([float(len(c.encode("utf-8"))) for c in q["choices"]])
        hits += [np.argmax(x) == gold for x in (lls, lls / characters, lls / of_bytes)]
        results.append([float(x) for x in lls])
    acc, acc_norm, acc_bytes = hits / len(all_questions)
    return {"acc": acc, "acc_norm": acc_norm, "acc_bytes": acc_bytes, "loglikelihood": results}


asked = questions()
made = {"questions": asked,
        "space": scored(asked, " ", False), "space_bos": scored(asked, " ", True),
        "none": scored(asked, "", False), "line": scored(asked, "\n", False)}
with open(os.path.join(os.path.dirname(__file__), "choices.json"), "w") as f:
    json.dump(made, f, indent=1)
    f.write("\n")
print({k: {m: v[m] for m in ("acc", "acc_norm", "acc_bytes")} for k, v in made.items() if k != "questions"})
