"""A tokenizer's tokens hold terminal escapes, and so does a file's name: neither reaches a terminal as such.

    python3 shown_tokens.py LONGHAUL
"""

import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from small_job import MODEL, TRAIN

PROGRAM = os.path.abspath(sys.argv[1])
INI = """[pipeline]
name = shown
stages = prepare train generate
folder = out
[prepare]
input = *.jsonl
tokenizer = t/tokenizer.json
append = none
on_error = skip
""" + MODEL + TRAIN + """threads = 1
[generate]
ids = 2,3,0,2
tokens = 2
greedy = yes
"""
VOCABULARY = {"a": 0, "b": 1, "\x1b[2J": 2, "\u009b31m": 3}
ODD = "x\x1b]0;title\x07\udc9b.jsonl"  # a byte that is no UTF-8 at its end


def plain(name, data):
    assert not any(c in data for c in (b"\x1b", b"\x07", b"\x9b")), f"{name}: a terminal would obey {data!r}"


def main():
    with tempfile.TemporaryDirectory(prefix="longhaul-shown-") as folder:
        os.mkdir(os.path.join(folder, "t"))
        with open(os.path.join(folder, "t/tokenizer.json"), "w") as f:
            json.dump({"model": {"type": "BPE", "vocab": VOCABULARY, "merges": []},
                       "added_tokens": [{"id": i, "content": t} for t, i in VOCABULARY.items() if i > 1]}, f)
        with open(os.path.join(folder, ODD), "w") as f:
            f.write(json.dumps({"text": "ab" * 100}) + '\n{"text":"\x1b[2J"}\n')
        with open(os.path.join(folder, "a.ini"), "w") as f:
            f.write(INI)
        done = subprocess.run([PROGRAM, "run", os.path.join(folder, "a.ini")], capture_output=True, timeout=200)
        assert done.returncode == 0, done.stderr
        plain("stdout", done.stdout)
        plain("stderr", done.stderr)
        assert b"\\x1b[2J" in done.stdout and b"\\xc2\\x9b31m" in done.stdout, done.stdout
        out = os.path.join(folder, "out")
        for name in ("train.log", "report.html", "metrics.jsonl", "prepare.json", "prepare.rejected.txt", "generated.json"):
            with open(os.path.join(out, name), "rb") as f:
                plain(name, f.read().replace("\u009b".encode(), b"") if name == "generated.json" else f.read())
        with open(os.path.join(out, "prepare.json")) as f:
            assert json.load(f)["files"][0]["path"].endswith("x\\x1b]0;title\\x07\\x9b.jsonl")
        with open(os.path.join(out, "generated.json")) as f:
            json.load(f)
    print("tokens and names are shown as text")


main()
