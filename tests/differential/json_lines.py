"""Compares the JSONL scanner with Python's json on lines made at random: grammar-made ones, then the
same with bytes changed, cut and doubled.

    python3 json_lines.py DUMP_PROGRAM [SEED [LINES]]
"""

import json
import random
import subprocess
import sys
import tempfile

KEY = "text"
DEPTH = 64
PIECES = ["a", " ", "text", "\u00e9", "\u20ac", "\U0001f600", "\\", '"', "\n", "\t", "\x00", "\x1f", "/", "\x7f",
          "\u2028", "0", "null"]
NUMBERS = ["0", "-0", "1.5", "-2e10", "1E+3", "12345678901234567890", "NaN", "Infinity", "-Infinity", "1e-7"]
NOISE = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\\u", b"\\ud83d", b"\\ude00", b"d8", b"\x80", b"\xc3",
         b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\x00", b"\x01", b"0", b"-", b".", b"e", b"\xff",
         b"true", b"nul", b"text", b" ", b"\r", b"\x0b", b"\xc2\xa0"]


class Refused(Exception):
    pass


def make_string(rng):
    text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def make_value(rng, depth):
    kind = rng.randrange(7 if depth < 5 else 5)
    if kind < 2:
        return make_string(rng)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice(["true", "false", "null"])
    if kind == 5:
        return "[" + ",".join(make_value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    return make_object(rng, depth + 1)


def make_object(rng, depth):
    members = [make_string(rng) + rng.choice([":", ": ", " :\t"]) + make_value(rng, depth)
               for _ in range(rng.randrange(4))]
    if rng.random() < 0.8:
        name = rng.choice(['"text"', '"text"', '"te\\u0078t"'])
        value = make_string(rng) if rng.random() < 0.8 else make_value(rng, depth)
        members.insert(rng.randrange(len(members) + 1), name + ":" + value)
    return "{" + rng.choice([",", " , "]).join(members) + "}"


def make_line(rng):
    if rng.random() < 0.02:
        levels = rng.choice([1, 63, 64, 65, 200])
        return ('{"d":' + "[" * (levels - 1) + "]" * (levels - 1) + ',"text":"x"}').encode()
    line = make_object(rng, 0).encode("utf-8", "surrogatepass")
    if rng.random() < 0.5:
        return line
    line = bytearray(line)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(line) + 1)
        how = rng.randrange(3)
        if how == 0:
            line[at:at] = rng.choice(NOISE)
        elif how == 1:
            del line[at:at + rng.randrange(1, 4)]
        else:
            line[at:at + 1] = rng.choice(NOISE)
    return bytes(line).replace(b"\n", b" ")


def depth_of(line):
    """Brackets outside strings: only asked of lines that are valid JSON."""
    deepest = depth = 0
    inside = False
    at = 0
    while at < len(line):
        c = line[at]
        if inside:
            if c == "\\":
                at += 1
            elif c == '"':
                inside = False
        elif c == '"':
            inside = True
        elif c in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "}]":
            depth -= 1
        at += 1
    return deepest


def check_strings(value):
    """Half of a surrogate pair: Python takes it, text for training can't hold it."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list):
        for item in value:
            check_strings(item)


def expected(line):
    top = []

    def pairs(members):
        for name, value in members:
            check_strings(name)
            check_strings(value)
        top[:] = members
        return dict(members)

    try:
        text = line.decode("utf-8")
        if not text.strip(" \t\r\n"):
            return "-"
        value = json.loads(text, object_pairs_hook=pairs)
        if not isinstance(value, dict) or depth_of(text) > DEPTH:
            return "-"
        found = [v for name, v in top if name == KEY]
        if len(found) != 1 or not isinstance(found[0], str):
            return "-"
        return "=" + found[0].encode().hex()
    except (ValueError, RecursionError):
        return "-"


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    rng = random.Random(seed)
    lines = [make_line(rng) for _ in range(count)]
    lines[0] = b'{"text":"first"}'  # a mark at the file's start would be skipped
    with tempfile.NamedTemporaryFile() as f:
        f.write(b"\n".join(lines) + b"\n")
        f.flush()
        out = subprocess.run([sys.argv[1], f.name, KEY], check=True, capture_output=True)
    got = out.stdout.decode().splitlines()
    assert len(got) == len(lines), (len(got), len(lines))
    taken = 0
    for line, mine in zip(lines, got):
        theirs = expected(line)
        taken += theirs != "-"
        if mine != theirs:
            sys.exit("%r: the scanner says %s, Python %s" % (line, mine, theirs))
    print("%d lines of seed %d agree, %d of them taken" % (count, seed, taken))


main()
