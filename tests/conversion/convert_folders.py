#!/usr/bin/env python3
"""Runs import and export pipelines through the program: whole folders and shards, the dtype they came
in, and another one. What came out is read by read_folder.py, which shares no code with the program.
Every model goes through whole, and by turns through one of the rest: LONGHAUL_TORTURE=1 does all of it.

    convert_folders.py LONGHAUL SOURCE_FOLDER
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

LONGHAUL, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
READ = os.path.join(SOURCE, "tests/integration/read_folder.py")
TORTURE = os.environ.get("LONGHAUL_TORTURE", "0") not in ("", "0")
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


def shards_hold(folder, most):
    """No file of weights has more bytes of tensors than that, unless it has one tensor alone."""
    for name in os.listdir(folder):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        ends = [row["data_offsets"][1] for tensor, row in header.items() if tensor != "__metadata__"]
        assert max(ends) <= most or len(ends) == 1, (name, ends)


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
    """from_import takes the plugin that reads the model_type, and --print shows a section that stands for it,
    whatever the INI still lacks for its other stages."""
    at = os.path.join(scratch, "chosen")
    section, _ = import_of(at, source, "--print")
    assert section.startswith(f"[model]\nplugin = {plugin}\n"), section
    assert not os.path.exists(os.path.join(at, "import"))
    asked, _ = import_of(at, source, "--print", "--set", "pipeline.stages=import train")  # no [train], [optimizer], [device]
    assert asked == section, asked
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


def read_tensors(folder):
    """{name: (shape, bytes)} of the weights in a folder, of Hugging Face's or a checkpoint."""
    found = {}
    for file in os.listdir(folder):
        if file.startswith(("model", "shard-")) and file.endswith(".safetensors"):
            with open(os.path.join(folder, file), "rb") as f:
                data = f.read()
            (length,) = struct.unpack("<Q", data[:8])
            for name, row in json.loads(data[8:8 + length]).items():
                if name != "__metadata__":
                    begin, end = row["data_offsets"]
                    found[name] = (row["shape"], data[8 + length + begin:8 + length + end])
    return found


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def turned(shape, data):
    """The bytes of a matrix with rows for columns."""
    rows, columns = shape
    values = [data[4 * i:4 * i + 4] for i in range(rows * columns)]
    return b"".join(values[r * columns + c] for c in range(columns) for r in range(rows))


def values_of(checkpoint, name):
    """A parameter's elements, whose experts may be parts: name@expert+1,..."""
    parts = [(int(key[len(name) + 1:].split("+")[0]) if "@" in key else 0, data)
             for key, (_, data) in read_tensors(checkpoint).items() if key == name or key.startswith(name + "@")]
    return b"".join(data for _, data in sorted(parts))


def stacked_experts(scratch):
    """Mixtral's experts in one tensor [experts, 2 ffn, hidden], gates above what they gate, and in one [experts, hidden, 2 ffn],
    as later models have them, by a spec that names the core's functions: the parameters are those of the plugin, and the
    tensors come back."""
    golden = os.path.join(SOURCE, "tests/golden/mixtral")
    tensors, config = read_tensors(golden), config_of(golden)
    experts, ffn, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    with open(os.path.join(SOURCE, "examples/specs/mixtral.ini")) as f:
        spec = f.read()
    spec = spec[spec.index("[spec]"):]
    known = os.path.join(scratch, "by-plugin")
    convert(known, "mixtral", golden)
    for turn in (False, True):
        words = (("columns_in", "columns_out", "experts, hidden, 2 * ffn") if turn else ("rows_in", "rows_out", "experts, 2 * ffn, hidden"))
        stacked, text = dict(tensors), spec
        for i in range(config["num_hidden_layers"]):
            at = "model.layers.%d.block_sparse_moe.experts." % i
            both = []
            for e in range(experts):
                (_, gate), (_, up) = stacked.pop(at + "%d.w1.weight" % e), stacked.pop(at + "%d.w3.weight" % e)
                both.append(turned((2 * ffn, hidden), gate + up) if turn else gate + up)
            stacked[at + "gate_up_proj"] = ([experts, hidden, 2 * ffn] if turn else [experts, 2 * ffn, hidden], b"".join(both))
        for part, name in enumerate(("w1", "w3")):
            line = "experts.{e}.%s.weight\n" % name
            assert text.count(line) == 1
            text = text.replace(line, "experts.gate_up_proj\nhf_shape = %s\nimport = %s(source, part=%d, parts=2)\n"
                                "export = %s(source, part=%d, parts=2)\n" % (words[2], words[0], part, words[1], part))
        folder = os.path.join(scratch, "stacked-%d" % turn)
        os.mkdir(folder)
        shutil.copy(os.path.join(golden, "config.json"), folder)
        write_tensors(os.path.join(folder, "model.safetensors"), stacked)
        out = os.path.join(scratch, "by-spec-%d" % turn)
        os.mkdir(out)
        ini = os.path.join(out, "pipeline.ini")
        with open(ini, "w") as f:
            f.write(PIPELINE.format(folder=out, plugin="spec", source=folder, dtype="as_imported", shard_bytes="1TiB") + text)
        subprocess.run([LONGHAUL, "run", ini], check=True)
        same(os.path.join(out, "hf"), folder)
        for name in ["blocks.%d.%s" % (i, n) for i in range(config["num_hidden_layers"]) for n in ("w_gate", "w_up", "w_down")]:
            found = values_of(os.path.join(out, "import/checkpoints/step-000000000000"), name)
            assert found and found == values_of(os.path.join(known, "import/checkpoints/step-000000000000"), name), name


def dtypes(folder):
    listing = subprocess.run([sys.executable, READ, folder], check=True, capture_output=True,
                             text=True).stdout
    return {line.split()[1] for line in listing.splitlines()}


with tempfile.TemporaryDirectory() as scratch:
    for i, (plugin, model) in enumerate(MODELS):
        source = os.path.join(SOURCE, model)
        at = os.path.join(scratch, str(i))
        same(convert(at + "-whole", plugin, source), source)
        if TORTURE or i % 3 == 0:
            shards = convert(at + "-shards", plugin, source, shard_bytes="40KiB")
            assert len([f for f in os.listdir(shards) if f.endswith(".safetensors")]) > 1
            shards_hold(shards, 40 << 10)
            same(shards, source)
            same(convert(at + "-again", plugin, shards), source)
        if TORTURE or i % 3 == 1:
            narrow = convert(at + "-bf16", plugin, source, dtype="bf16")
            assert dtypes(narrow) == {"BF16"}, dtypes(narrow)
            back = convert(at + "-kept", plugin, narrow)
            same(back, narrow)
        if "golden" in model:
            # An export of an untrained model leaves every key as it was; older spellings may be added.
            written = config_of(at + "-whole/hf")
            assert all(written[key] == value for key, value in config_of(source).items()), written
            if TORTURE or i % 3 == 2:
                chosen_by_config(scratch, plugin, source)
    misspelled(scratch)
    stacked_experts(scratch)
functions = subprocess.run([LONGHAUL, "help", "functions"], check=True, capture_output=True, text=True).stdout
for name in ("transposed", "rows_in", "rows_out", "columns_in", "columns_out", "split_qkv", "join_qkv", "rows_from", "rows_to",
             "scaled", "plus", "warmup_cosine"):
    assert f"\n  {name}  " in functions, name
print("ok")
