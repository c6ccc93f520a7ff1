#!/usr/bin/env python3
"""Reads a Hugging Face folder with nothing but the standard library, by the format's own rules, and
compares two of them: same tensors, same dtypes and shapes, same bytes; same keys in config.json.

    read_folder.py FOLDER                 checks one folder and lists what is in it
    read_folder.py FOLDER LIKE            and compares its tensors and config with LIKE's
    read_folder.py FOLDER LIKE --tensors  compares tensors only
"""
import json
import os
import struct
import sys

BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
        "U8": 8, "BOOL": 8}


def no_duplicates(pairs):
    keys = [k for k, _ in pairs]
    assert len(keys) == len(set(keys)), "a key twice: %s" % keys
    return dict(pairs)


def read_file(path):
    """name -> (dtype, shape, bytes)"""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0 and 8 + length <= len(data), path
    header = json.loads(data[8:8 + length].decode("utf-8"), object_pairs_hook=no_duplicates)
    assert header.pop("__metadata__", {}).get("format") == "pt", path
    tensors, end = {}, 0
    for name, row in sorted(header.items(), key=lambda x: x[1]["data_offsets"]):
        begin, last = row["data_offsets"]
        count = 1
        for size in row["shape"]:
            count *= size
        assert begin == end, (path, name, "hole or overlap")
        assert (last - begin) * 8 == count * BITS[row["dtype"]], (path, name)
        tensors[name] = (row["dtype"], row["shape"], data[8 + length + begin:8 + length + last])
        end = last
    assert 8 + length + end == len(data), (path, "bytes follow the last tensor")
    return tensors


def read_weights(folder):
    whole = os.path.join(folder, "model.safetensors")
    if os.path.exists(whole):
        assert not os.path.exists(whole + ".index.json")
        return read_file(whole)
    with open(whole + ".index.json") as f:
        index = json.load(f)
    tensors = {}
    for name in sorted(set(index["weight_map"].values())):
        assert os.path.basename(name) == name
        for tensor, value in read_file(os.path.join(folder, name)).items():
            assert index["weight_map"][tensor] == name and tensor not in tensors
            tensors[tensor] = value
    assert set(tensors) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in tensors.values())
    return tensors


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f, object_pairs_hook=no_duplicates)


def compare(mine, like, what):
    for key in sorted(set(mine) | set(like)):
        if key not in mine:
            sys.exit("%s %s is missing" % (what, key))
        if key not in like and what == "tensor":
            sys.exit("tensor %s is new" % key)
        if key in like and mine[key] != like[key]:
            detail = "" if what == "tensor" else ": %r, not %r" % (mine[key], like[key])
            sys.exit("%s %s differs%s" % (what, key, detail))


def main():
    folders = [a for a in sys.argv[1:] if not a.startswith("--")]
    tensors, config = read_weights(folders[0]), read_config(folders[0])
    assert config["architectures"] and config["model_type"]
    if len(folders) > 1:
        compare(tensors, read_weights(folders[1]), "tensor")
        if "--tensors" not in sys.argv:
            compare(config, read_config(folders[1]), "config.json key")
        print("%d tensors are the same" % len(tensors))
        return
    for name, (dtype, shape, data) in sorted(tensors.items()):
        print("%-60s %-5s %s" % (name, dtype, shape))


main()
