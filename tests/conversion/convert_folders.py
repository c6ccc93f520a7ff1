#!/usr/bin/env python3
"""Runs import and export pipelines through the program: whole folders and shards, the dtype they came
in, and another one. What came out is read by read_folder.py, which shares no code with the program.

    convert_folders.py LONGHAUL SOURCE_FOLDER
"""
import json
import os
import shutil
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
    ("qwen", "tests/golden/qwen2"),
    ("qwen", "tests/golden/qwen3"),
    ("llama", "tests/golden/mistral-window"),
    ("gptneox", "tests/golden/gptneox"),
    ("falcon", "tests/golden/falcon-7b-kind"),
    ("falcon", "tests/golden/falcon-40b-kind"),
    ("falcon", "tests/golden/falcon-rw-kind"),
    ("gemma", "tests/golden/gemma"),
    ("gemma", "tests/golden/gemma2"),
    ("gemma", "tests/golden/gemma3"),
    ("mixtral", "tests/golden/mixtral"),
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


def config_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)


def import_of(folder, source, *words, model="plugin = from_import", check=True):
    """longhaul import of a folder whose plugin config.json chooses: what it prints."""
    os.makedirs(folder, exist_ok=True)
    ini = os.path.join(folder, "pipeline.ini")
    with open(ini, "w") as f:
        f.write(PIPELINE.format(folder=folder, plugin="from_import", source=source, dtype="f32", shard_bytes="1TiB")
                .replace("plugin = from_import", model))
    done = subprocess.run([LONGHAUL, "import", ini, *words], capture_output=True, text=True)
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout, done.stderr


def weights_of(folder):
    """Bytes of the checkpoint's files, by their names."""
    at = os.path.join(folder, "import/checkpoints/step-000000000000")
    found = {}
    for name in os.listdir(at):
        if name.endswith(".safetensors"):
            with open(os.path.join(at, name), "rb") as f:
                found[name] = f.read()
    assert found
    return found


def chosen_by_config(scratch, plugin, source):
    """from_import takes the plugin that reads the model_type, and --print shows a section that stands for it."""
    at = os.path.join(scratch, "chosen")
    section, _ = import_of(at, source, "--print")
    assert section.startswith(f"[model]\nplugin = {plugin}\n"), section
    assert not os.path.exists(os.path.join(at, "import"))
    _, told = import_of(at, source)
    assert "not read" not in told, told
    import_of(os.path.join(scratch, "printed"), source, model=section.removeprefix("[model]\n"))
    assert weights_of(os.path.join(scratch, "printed")) == weights_of(at)
    for folder in ("chosen", "printed"):
        shutil.rmtree(os.path.join(scratch, folder))


def misspelled(scratch):
    """A key that no row reads is told with the one that was meant; a type that no plugin reads, with those that are."""
    source = os.path.join(scratch, "misspelled-hf")
    shutil.copytree(os.path.join(SOURCE, "tests/golden/llama"), source)
    config = config_of(source)
    config["rms_norm_esp"] = config.pop("rms_norm_eps")
    with open(os.path.join(source, "config.json"), "w") as f:
        json.dump(config, f)
    _, told = import_of(os.path.join(scratch, "misspelled"), source)
    assert "knows no such key: rms_norm_esp = 1e-05 (rms_norm_eps?)" in told, told
    config["model_type"] = "mystery"
    with open(os.path.join(source, "config.json"), "w") as f:
        json.dump(config, f)
    _, told = import_of(os.path.join(scratch, "mystery"), source, check=False)
    assert "model_type is mystery; the model plugins in " in told and "llama|mistral" in told, told


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
        if "golden" in model:
            # An export of an untrained model leaves every key as it was; older spellings may be added.
            written = config_of(at + "-whole/hf")
            assert all(written[key] == value for key, value in config_of(source).items()), written
            chosen_by_config(scratch, plugin, source)
    misspelled(scratch)
functions = subprocess.run([LONGHAUL, "help", "functions"], check=True, capture_output=True, text=True).stdout
for name in ("transposed", "rows_in", "rows_out", "columns_in", "columns_out", "split_qkv", "join_qkv", "rows_from", "rows_to",
             "scaled", "warmup_cosine"):
    assert f"\n  {name}  " in functions, name
print("ok")
