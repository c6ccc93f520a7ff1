"""Compares the safetensors reader with the reference implementation's rules, written down anew, on files
made at random: good ones, then the same with headers, offsets, shapes and bytes changed.

    python3 safetensors_rules.py DUMP_PROGRAM [SEED [FILES]]
"""

import json
import random
import struct
import subprocess
import sys
import tempfile

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64,
        "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
TOP = 2 ** 64


class Refused(Exception):
    pass


def unique(members):
    names = [name for name, _ in members]
    if len(set(names)) != len(names):
        raise Refused
    for name, value in members:
        name.encode()
        if isinstance(value, str):
            value.encode()
    return dict(members)


def constant(_):
    raise Refused


def whole(value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused
    return value


def expected(data):
    try:
        if len(data) < 8:
            raise Refused
        n = struct.unpack("<Q", data[:8])[0]
        if n > 100_000_000 or 8 + n > len(data) or n == 0 or data[8:9] != b"{":
            raise Refused
        header = json.loads(data[8:8 + n].decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
        metadata = header.pop("__metadata__", {})
        if metadata is not None and (not isinstance(metadata, dict) or
                                     any(not isinstance(v, str) for v in metadata.values())):
            raise Refused
        tensors = []
        for name, entry in header.items():
            if not isinstance(entry, dict) or entry.get("dtype") not in BITS or not isinstance(entry["dtype"], str):
                raise Refused
            shape, offsets = entry.get("shape"), entry.get("data_offsets")
            if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
                raise Refused
            tensors.append((whole(offsets[0]), whole(offsets[1]), name, entry["dtype"], [whole(s) for s in shape]))
        at = 0
        for begin, end, name, dtype, shape in sorted(tensors):
            if begin != at or end < begin:
                raise Refused
            elements = 1
            for size in shape:
                elements *= size
                if elements >= TOP:
                    raise Refused
            bits = elements * BITS[dtype]
            if bits >= TOP or bits % 8 != 0 or end - begin != bits // 8:
                raise Refused
            at = end
        if 8 + n + at != len(data):
            raise Refused
        return "=" + "".join("%s:%s:%s:%d-%d;" % (name, dtype, "".join("%d," % s for s in shape), begin, end)
                             for begin, end, name, dtype, shape in sorted(tensors))
    except (Refused, ValueError, KeyError, TypeError, RecursionError):
        return "-"


def good(rng):
    at, header = 0, {}
    if rng.random() < 0.4:
        header["__metadata__"] = rng.choice([{"format": "pt"}, {}, {"a": "b", "c": "\u00e9"}, None])
    for i in range(rng.randrange(5)):
        dtype = rng.choice(list(BITS))
        shape = [rng.choice([0, 1, 1, 2, 3, 4, 8]) for _ in range(rng.randrange(5))]
        elements = 1
        for s in shape:
            elements *= s
        if elements * BITS[dtype] % 8 != 0 or elements > 4096:
            continue
        size = elements * BITS[dtype] // 8
        header["t%d" % rng.choice([i, i + 100])] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    items = list(header.items())
    rng.shuffle(items)
    return dict(items), at


def change(rng, header):
    names = [n for n in header if n != "__metadata__"]
    if not names:
        return
    entry = header[rng.choice(names)]
    if len(entry) < 3 or len(entry["data_offsets"]) != 2 or not isinstance(entry["data_offsets"], list):
        return
    number = rng.choice([0, 1, 2, 3, -1, 7, 2 ** 31, 2 ** 32, 2 ** 61, 2 ** 62, 2 ** 63 - 1, 1.0, "1", None, True])
    how = rng.randrange(8)
    if how == 0:
        entry["data_offsets"][rng.randrange(2)] = number
    elif how == 1 and entry["shape"]:
        entry["shape"][rng.randrange(len(entry["shape"]))] = number
    elif how == 2:
        entry["shape"].append(number)
    elif how == 3:
        entry["dtype"] = rng.choice(["F32", "U8", "F4", "Q8", "f32", "", 1, None])
    elif how == 4:
        del entry[rng.choice(list(entry))]
    elif how == 5:
        entry["extra"] = number
    elif how == 6:
        header["__metadata__"] = rng.choice([{"a": 1}, [], "x", 3, {"a": None}])
    else:
        entry["data_offsets"] = rng.choice([[], [0], [0, 1, 2], {}, entry["data_offsets"][::-1]])


def make(rng):
    header, size = good(rng)
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        change(rng, header)
    text = json.dumps(header, ensure_ascii=rng.random() < 0.5).encode()
    if rng.random() < 0.1:
        text = text.replace(b"}", b"}" + rng.choice([b" ", b"}", b",", b"\0", b"\n"]), 1)
    if rng.random() < 0.05:
        text = b'{"t0":' + text + b',"t0":' + text + b"}"
    text += b" " * rng.choice([0, 0, 1, 8])
    if rng.random() < 0.05:
        text = rng.choice([b" ", b"\xef\xbb\xbf"]) + text
    size = max(0, size + rng.choice([0, 0, 0, 0, 0, 1, -1]))
    data = bytearray(struct.pack("<Q", len(text) + rng.choice([0] * 30 + [1, -1, 2 ** 40])) + text + bytes(size))
    if rng.random() < 0.2:
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 9, 32, 34, 44, 48, 57, 58, 91, 93, 123, 125, 255])
    return bytes(data)


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    rng = random.Random(seed)
    files = [make(rng) for _ in range(count)]
    # jansson reads -0 as 0, the reference refuses it: no tensor's number has two signs.
    files = [f for f in files if b"-0" not in f]
    with tempfile.NamedTemporaryFile() as pack:
        for data in files:
            pack.write(struct.pack("<I", len(data)) + data)
        pack.flush()
        out = subprocess.run([sys.argv[1], pack.name], check=True, capture_output=True)
    got = out.stdout.decode("utf-8").split("\n")[:-1]
    if len(got) != len(files):
        sys.exit("%d answers to %d files" % (len(got), len(files)))
    taken = 0
    for data, mine in zip(files, got):
        theirs = expected(data)
        taken += theirs != "-"
        if mine != theirs:
            sys.exit("%r: the reader says %s, the rules %s" % (data, mine, theirs))
    print("%d files of seed %d agree, %d of them taken" % (len(files), seed, taken))


main()
