#!/usr/bin/env python3
"""Runs import and export pipelines through the program: whole folders and shards, the dtype they came
in, and another one. What came out is read by read_folder.py, which shares no code with the program.

    convert_folders.py LONGHAUL SOURCE_FOLDER
"""
import os
import subprocess
import sys
import tempfile

LONGHAUL, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
READ = os.path.join(SOURCE, "tests/integration/read_folder.py")
MODELS = [
    ("llama", "examples/data/stories260K"),
    ("gpt2", "tests/data/models/capp-gpt2"),
    ("llama", "tests/golden/llama"),
    ("llama", "tests/golden/llama-tied-scaled-rope"),
    ("gpt2", "tests/golden/gpt2"),
]
PIPELINE = """[pipeline]
name = convert
stages = import export
folder = {folder}
[import]
from = {source}
[model]
plugin = {plugin}
[export]
folder = hf
dtype = {dtype}
shard_bytes = {shard_bytes}
"""


def convert(folder, plugin, source, dtype="as_imported", shard_bytes="1TiB"):
    os.makedirs(folder)
    ini = os.path.join(folder, "pipeline.ini")
    with open(ini, "w") as f:
        f.write(PIPELINE.format(folder=folder, plugin=plugin, source=source, dtype=dtype,
                                shard_bytes=shard_bytes))
    subprocess.run([LONGHAUL, "run", ini], check=True)
    subprocess.run([LONGHAUL, "verify", os.path.join(folder, "import/checkpoints")], check=True)
    return os.path.join(folder, "hf")


def same(folder, like):
    subprocess.run([sys.executable, READ, folder, like, "--tensors"], check=True)


def dtypes(folder):
    listing = subprocess.run([sys.executable, READ, folder], check=True, capture_output=True,
                             text=True).stdout
    return {line.split()[1] for line in listing.splitlines()}


with tempfile.TemporaryDirectory() as scratch:
    for i, (plugin, model) in enumerate(MODELS):
        source = os.path.join(SOURCE, model)
        at = os.path.join(scratch, str(i))
        same(convert(at + "-whole", plugin, source), source)
        shards = convert(at + "-shards", plugin, source, shard_bytes="40KiB")
        assert len([f for f in os.listdir(shards) if f.endswith(".safetensors")]) > 1
        same(shards, source)
        same(convert(at + "-again", plugin, shards), source)
        narrow = convert(at + "-bf16", plugin, source, dtype="bf16")
        assert dtypes(narrow) == {"BF16"}, dtypes(narrow)
        back = convert(at + "-kept", plugin, narrow)
        same(back, narrow)
print("ok")
