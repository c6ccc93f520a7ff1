"""Gives the program files that were made to hurt it. Each must end in one sentence that names the file, what
was found and what was expected, with exit code 1, and leave nothing behind.

    python3 hostile_files.py LONGHAUL TESTS_FOLDER
"""

import base64
import gzip
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from small_job import MODEL, TRAIN

PROGRAM, TESTS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
LLAMA = os.path.join(TESTS, "golden", "llama")
TOKENIZER = os.path.join(TESTS, "data", "tokenizers", "mini-llama")
failures = []
count = 0


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data.encode() if isinstance(data, str) else data)


def listing(folder):
    """Files and folders, by their path in it."""
    return sorted(os.path.relpath(os.path.join(d, name), folder) for d, folders, files in os.walk(folder)
                  for name in folders + files)


def refused(name, files, ini, command, sentence, left=()):
    """files: path -> bytes, or a function that makes it. sentence: a regular expression over all of it."""
    global count
    count += 1
    with tempfile.TemporaryDirectory(prefix="longhaul-hostile-") as folder:
        for path, data in files.items():
            full = os.path.join(folder, path)
            if callable(data):
                os.makedirs(os.path.dirname(full), exist_ok=True)
                data(full)
            else:
                write(full, data)
        write(os.path.join(folder, "job.ini"), ini)
        before = listing(folder)
        words = [folder + "/" + c if c.endswith((".ini", "/ckpt")) else c for c in command.split()]
        try:
            done = subprocess.run([PROGRAM] + words, capture_output=True, timeout=60, cwd=folder)
        except subprocess.TimeoutExpired:
            failures.append(f"{name}: still running after 60 s")
            return
        lines = [l for l in done.stderr.decode("utf-8", "replace").splitlines() if l.startswith("longhaul: ")]
        said = lines[-1] if lines else ""
        if done.returncode != 1 or len(lines) != 1:
            failures.append(f"{name}: exit code {done.returncode}, {done.stderr[-600:]!r}")
        elif re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stderr.decode("utf-8", "replace")):
            failures.append(f"{name}: control characters reach the terminal: {done.stderr!r}")
        elif not re.fullmatch(sentence, said[len("longhaul: "):].replace(folder + "/", "")):
            failures.append(f"{name}: says {said!r}, expected {sentence!r}")
        after = [name for name in listing(folder) if name not in before]
        if after != sorted(left):
            failures.append(f"{name}: leaves {after}")


def ini_files():
    base = "[pipeline]\nname = a\nstages = train\nfolder = out\n"
    for name, text, sentence in [
        ("a line of a megabyte", base + "[data]\nseed = " + "1" * 900000 + "\n",
         r"job\.ini:6: the line has 900007 bytes, more than 199.*"),
        ("more than a mebibyte", base + "\n" * (1 << 20), r"job\.ini: \d+ bytes, at most 1048576 are allowed"),
        ("a NUL", base + "[data]\nseed = 1\0\n", r"job\.ini:6: byte 9 is the control character 0x00"),
        ("a terminal's escape", base + "[data]\nseed = \x1b[2J\n", r"job\.ini:6: byte 8 is the control character 0x1b"),
        ("no UTF-8", (base + "[data]\nseed = ").encode() + b"\xff\n", r"job\.ini:6: byte 8, 0xff, is not UTF-8"),
        ("a key twice", base + "[data]\nseed = 1\nseed = 2\n",
         r"job\.ini:7: 'seed' in \[data\] again; it is at line 6 too"),
        ("a section twice", base + "[data]\n[data]\n", r"job\.ini:6: \[data\] stands here again; it began at line 5"),
        ("an include of itself", "include = job.ini\n" + base, r"job\.ini:1: job\.ini is included by itself"),
        ("an include of a folder", "include = .\n" + base, r"job\.ini:1: include: \.: not a regular file"),
        ("an include of a device", "include = /dev/zero\n" + base, r"job\.ini:1: include: /dev/zero: not a regular file"),
        ("an include of a memory", "include = /proc/self/mem\n" + base,
         r"job\.ini:1: include: /proc/self/mem: not a regular file: its size is 0, and yet it is not empty"),
        ("paths of which one is empty", base.replace("train", "prepare") + "[prepare]\ninput = d.jsonl,,\ntokenizer = t\n",
         r"job\.ini:6: input = d\.jsonl,,: a path is empty; expected paths with commas between"),
        ("paths that end in a comma", base.replace("train", "prepare") + "[prepare]\ninput = d.jsonl ,\ntokenizer = t\n",
         r"job\.ini:6: input = d\.jsonl ,: a path is empty; expected paths with commas between"),
        ("a split whose sum is infinite", base + MODEL + TRAIN.replace("split = 1,0,0", "split = 1e308,1e308,1e308"),
         r"job\.ini:\d+: split = 1e308,1e308,1e308: expected three parts such as 969,30,1, of at most 1e\+15"),
        ("a negative rate", base + MODEL + TRAIN.replace("= 0.01", "= -1"),
         r"job\.ini:\d+: learning_rate is -1 at step 0; a rate is not negative"),
        ("an unknown key", base + "[data]\nsede = 1\n", r"job\.ini:6: unknown key 'sede' in \[data\]; did you mean 'seed'\?"),
        ("a number too large", base + "[data]\nseed = 99999999999999999999\n",
         r"job\.ini:6: seed = 99999999999999999999: expected a whole number such as 8, 10k or 2M"),
        ("[ without ]", base + "[data\n", r"job\.ini:5: '\[' without '\]'"),
        ("a line that is nothing", base + "seed\n", r"job\.ini:5: 'seed' is neither \[section\] nor key = value"),
    ]:
        refused("INI: " + name, {}, text, "check job.ini", sentence)
    for name, value, sentence in [
        ("an escape", "a\x1bb", r"--set pipeline\.name=a\\x1bb: byte 16 is the control character 0x1b"),
        ("no UTF-8", "a\udcff", r"--set pipeline\.name=a\\xff: byte 16, 0xff, is not UTF-8"),
        ("no key", "", r"--set pipeline: write section\.key=value"),
    ]:
        words = "pipeline.name=" + value if value else "pipeline"
        refused("--set: " + name, {}, base, "check job.ini --set " + words, sentence)


def json_lines():
    ini = ("[pipeline]\nname = a\nstages = prepare\nfolder = out\n[prepare]\ninput = a.jsonl\ntokenizer = %s\n"
           "[limits]\nline_bytes = 2KiB\n" % TOKENIZER)
    good = b'{"text":"fine"}\n'
    for name, line, sentence in [
        ("no UTF-8", b'{"text":"\xc3("}', r"at byte 10, 0xc3: invalid UTF-8 encoding in string"),
        ("an overlong form", b'{"text":"\xc0\x80"}', r"at byte 10, 0xc0: invalid UTF-8 encoding in string"),
        ("a surrogate as UTF-8", b'{"text":"\xed\xa0\x80"}', r"at byte 10, 0xed: invalid UTF-8 encoding in string"),
        ("half of a pair", b'{"text":"\\ud800"}', r"at byte 10, '.': no low surrogate in string"),
        ("a raw NUL", b'{"text":"a\0"}', r"at byte 11, 0x00: unexpected control character in string"),
        ("a raw escape", b'{"text":"\x1b[2J"}', r"at byte 10, 0x1b: unexpected control character in string"),
        ("a line over the limit", b'{"text":"' + b"x" * 5000 + b'"}', r"longer than 2048 bytes"),
        ("no object", b"[1]", r"a list found, an object was expected"),
        ("no text", b'{"txt":"a"}', r"key 'text' is missing"),
        ("text twice", b'{"text":"a","text":"b"}', r"key 'text' stands twice"),
        ("a number for a text", b'{"text":1}', r"key 'text' holds a number, a text was expected"),
        ("a bomb of brackets", b"[" * 1500, r"at byte \d+, '\[': nested deeper than 64 levels"),
        ("a bomb inside", b'{"a":' + b"[" * 1500, r"at byte \d+, '\[': nested deeper than 64 levels"),
        ("a cut line", b'{"text":"a', r"at byte 11: unexpected end of data"),
        ("something behind", b'{"text":"a"} x', r"at byte 14, 'x': unexpected content after document"),
    ]:
        refused("JSONL: " + name, {"a.jsonl": good + line + b"\n" + good}, ini, "prepare job.ini",
                r"a\.jsonl:2: " + sentence)
    cut = gzip.compress(good * 100, mtime=0)[:-9]
    refused("JSONL: a cut gzip", {"a.jsonl.gz": cut}, ini.replace("a.jsonl", "a.jsonl.gz"), "prepare job.ini",
            r"a\.jsonl\.gz: ends at byte \d+ inside a gzip stream")
    refused("JSONL: a FIFO", {"a.jsonl": os.mkfifo}, ini, "prepare job.ini", r"a\.jsonl: not a regular file")


def tokenizer_files():
    ini = "[pipeline]\nname = a\nstages = prepare\nfolder = out\n[prepare]\ninput = a.jsonl\nappend = none\ntokenizer = t/%s\n"
    text = json.dumps({"text": "a" * 60 + "!"}) + "\n"

    def case(name, file, data, sentence, more=""):
        refused("tokenizer: " + name, {"a.jsonl": text, "t/" + file: data}, ini % file + more, "prepare job.ini", sentence)

    def made(vocab={"a": 0, "b": 1, "ab": 2}, merges=("a b",), **more):
        return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": list(merges)}, **more})

    T = "tokenizer.json"
    case("a merge of no piece", T, made(merges=["a b", "a c"]),
         r"t/tokenizer\.json: merge 1 joins 'a' and 'c', but 'c' is not a piece of the vocabulary")
    case("a huge id", T, made({"a": 2 ** 40}), r"t/tokenizer\.json: 'a' has the id 1099511627776; ids from 0 to \d+ are supported")
    case("an id twice", T, made({"a": 0, "b": 0}), r"t/tokenizer\.json: the pieces 'a' and 'b' both have the id 0")
    case("a piece over the limit", T, made({"a": 0, "b" * 5000: 1}, []),
         r"t/tokenizer\.json: the piece with the id 1 has 5000 bytes; at most 4096 are supported")
    case("merges over the limit", T, made(merges=["a b", "a b"]), r"t/tokenizer\.json: merge 0: more than 0 merges, the limit|"
         r"t/tokenizer\.json: merge 1: more than 1 merges, the limit", "[limits]\nmerges = 1\n")
    case("millions of values", T, '{"model":[' + "[]," * 5000000 + "[]]}", r"t/tokenizer\.json: more than 101200 values in its JSON",
         "[limits]\nmerges = 100\nvocabulary = 100\n")
    case("a file over the limit", T, made() + " " * 2000, r"t/tokenizer\.json: \d+ bytes, at most 1024 are allowed",
         "[limits]\ntokenizer_bytes = 1KiB\n")
    case("a bomb of brackets", T, '{"model":' + "[" * 100000, r"t/tokenizer\.json: not JSON, line 1 column \d+, '\[': nested deeper than 64 levels")
    case("a NUL in a string", T, made(normalizer={"type": "Prepend", "prepend": "a\0b"}),
         r"t/tokenizer\.json: \\u0000 is not allowed in its texts")
    case("a raw NUL", T, made() + "\0", r"t/tokenizer\.json: not JSON, line 1 column \d+, 0x00: unexpected content after document")
    case("a regex that explodes", T, made(pre_tokenizer={"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(?:a|a|b)+(?:x|y)"}}),
         r"a\.jsonl:1: the tokenizer's pattern .* gave up at byte 0: match limit exceeded")
    case("a regex that is none", T, made(pre_tokenizer={"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "("}}),
         r"t/tokenizer\.json: the pattern '\(' can't be used: missing closing parenthesis")
    case("a text that grows without end", T,
         made(normalizer={"type": "Sequence", "normalizers": [
             {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}] * 20}),
         r"a\.jsonl:1: the tokenizer's normalizer makes more than \d+ bytes of \d+")
    case("a thousand steps", T, made(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}),
         r"t/tokenizer\.json: the normalizer has 1000 steps; at most 64 are supported")
    case("an escape in a piece", T, made({"a": 0, "\x1b[2J": 0}),
         r"t/tokenizer\.json: the pieces 'a' and '\\x1b\[2J' both have the id 0")

    def field(number, data):
        n, out = len(data), b""
        while n >= 128:
            out += bytes([n & 127 | 128])
            n >>= 7
        return bytes([number << 3 | 2]) + out + bytes([n]) + data

    def piece(text, kind=1):
        return field(1, field(1, text) + b"\x15\0\0\0\0\x18" + bytes([kind]))

    pieces = piece(b"<unk>", 2) + piece(b"a")
    M = "tokenizer.model"
    case("a cut model", M, pieces[:-3], r"t/tokenizer\.model: the protobuf is cut off at byte \d+: .*")
    case("a model's piece over the limit", M, pieces + piece(b"x" * 5000) + field(2, b"\x18\x02"),
         r"t/tokenizer\.model: the piece with the id 2 has 5000 bytes; at most 4096 are supported")
    case("a charsmap beyond its end", M, pieces + field(2, b"\x18\x02") + field(3, field(2, struct.pack("<I", 4096) + b"x")),
         r"t/tokenizer\.model: the charsmap's trie has 4096 bytes of the map's 5")
    case("another kind of model", M, pieces + field(2, b"\x18\x03") + field(3, b"\x18\x01"),
         r"t/tokenizer\.model: the sentencepiece model is of kind 'word'; unigram and BPE are supported")
    case("a model with white space behind words", M, pieces + field(2, b"\x18\x02\xc0\x01\x01") + field(3, b"\x18\x01"),
         r"t/tokenizer\.model: treat_whitespace_as_suffix is set, which is not supported")
    case("a model cut off behind its pieces", M, pieces, r"t/tokenizer\.model has no trainer_spec; is it cut off\?")
    case("a model cut off at its end", M, pieces + field(2, b"\x18\x01"),
         r"t/tokenizer\.model has no normalizer_spec; is it cut off\?")
    case("a score that is not finite", M, field(1, field(1, b"a") + b"\x15\0\0\x80\x7f"),
         r"t/tokenizer\.model: the score of piece 0 is not finite")
    case("a unigram model without an unknown id", T, json.dumps({"model": {"type": "Unigram", "vocab": [["b", -1]]}}),
         r"a\.jsonl:1: the character '.*' is not in the vocabulary, and the tokenizer has no id for unknown ones")
    case("a number without an end", M, pieces + b"\x18" + b"\xff" * 12,
         r"t/tokenizer\.model: a number of more than ten bytes at byte \d+")
    single = "".join("%s %d\n" % (base64.b64encode(bytes([b])).decode(), b) for b in range(256))
    R = "ranks.tiktoken"
    case("a huge rank", R, single + "YWI= 99999999999\n", r"t/ranks\.tiktoken:257: the rank is 99999999999; below \d+ is supported")
    case("a missing byte", R, "YWI= 0\n", r"t/ranks\.tiktoken: the byte 0x00 has no rank; each of the 256 is expected to have one")
    case("no base64", R, single + "YW*= 256\n", r"t/ranks\.tiktoken:257: 'YW\*= 256' found, base64 text, a space and a rank are expected")
    case("a long piece", R, single + "YWFh" * 2000 + " 256\n",
         r"t/ranks\.tiktoken:257: a piece of 8000 base64 digits; at most 4096 are supported")
    case("a rank twice", R, single + "YWI= 7\n", r"t/ranks\.tiktoken: the pieces '\\x07' and 'ab' both have the id 7")
    B, unk = "tokenizer.bin", struct.pack("<IfI", 5, 0, 5) + b"<unk>"
    case("a cut export of llama2.c", B, unk[:-2], r"t/tokenizer\.bin: piece 0 at byte 4 has 11 bytes left, expected 13")
    case("a piece longer than the longest", B, unk + struct.pack("<fI", 0, 6) + b"<0x00>",
         r"t/tokenizer\.bin: piece 1 at byte 17 has 6 bytes; expected at most 5, which the file begins with")
    case("an export of llama2.c without bytes", B, unk,
         r"t/tokenizer\.bin: byte_fallback is on, but the piece '<0x00>' is missing")
    case("no tokenizer at all", R, "nothing", r"t/ranks\.tiktoken is no tokenizer: .*")


def safetensors(header, data=b"", length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def import_folder():
    ini = "[pipeline]\nname = a\nstages = import\nfolder = out\n[model]\nplugin = llama\nvocab = from_import\n[import]\nfrom = hf\n"
    config = open(os.path.join(LLAMA, "config.json"), "rb").read()

    def tensor(begin=0, end=1, shape=(1,), dtype="U8"):
        return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}

    def weights(name, data, sentence, more=""):
        refused("safetensors: " + name, {"hf/config.json": config, "hf/model.safetensors": data}, ini + more,
                "import job.ini", r"hf/model\.safetensors: " + sentence)

    weights("a header of 2^60 bytes", safetensors({}, length=1 << 60), r"a header of 1152921504606846976 bytes, at most \d+ are allowed")
    weights("a header past the end", safetensors({}, length=100), r"a header of 100 bytes, the file has 2 behind its length")
    weights("a header over the limit", safetensors(b"{}" + b" " * 5000), r"a header of 5002 bytes, at most 1024 are allowed",
            "[limits]\nheader_bytes = 1KiB\n")
    weights("too short", b"abc", r"3 bytes, a safetensors file has at least 10")
    weights("no {", safetensors(b" {}"), r"the header begins at byte 8 with 0x20, '\{' was expected")
    weights("no UTF-8", safetensors(b'{"\xff":1}'), r"not JSON, line 1 column \d+, 0xff: invalid UTF-8 encoding in string")
    weights("a NUL", safetensors(b'{"a":1\0}'), r"not JSON, line 1 column 7, 0x00: unexpected character, expected ',' or '}'")
    weights("data behind", safetensors({"a": tensor()}, b"xy"), r"1 bytes of data follow the last tensor")
    weights("a hole", safetensors({"a": tensor(1, 2)}, b"xy"), r"tensor a: its data begin at 1, a hole is left at 0")
    weights("an overlap", safetensors({"a": tensor(0, 2, (2,)), "b": tensor(1, 2)}, b"xy"),
            r"tensor b: its data begin at 1, the one before ends at 2")
    weights("data out of the file", safetensors({"a": tensor(0, 9, (9,))}, b"xy"),
            r"tensor a: its data end at 9, the file holds 2 bytes of data")
    weights("offsets reversed", safetensors({"a": tensor(2, 0)}, b"xy"), r"tensor a: data_offsets is \[2,0\], \[begin, end\] with 0 <= begin <= end was expected")
    weights("a product that overflows", safetensors({"a": tensor(0, 0, (2 ** 32, 2 ** 32))}),
            r"tensor a: more than 2\^64 elements")
    weights("bits that overflow", safetensors({"a": tensor(0, 0, (2 ** 62,), "F64")}), r"tensor a: more than 2\^64 bits")
    weights("another size", safetensors({"a": tensor(0, 2, (3,))}, b"xy"), r"tensor a: 2 bytes of data, its shape and dtype need 3")
    weights("an unknown dtype", safetensors({"a": tensor(dtype="Q4\x1b[2J")}, b"x"), 
            r"tensor a: unknown dtype Q4\\x1b\[2J, one of BOOL U8 I8 .* F32 .* F4 was expected")
    weights("a name twice", safetensors(b'{"a":1,"a":2}'), r"key 'a' stands twice")
    weights("a negative size", safetensors({"a": tensor(0, 1, (-1,))}, b"x"), 
            r"tensor a: dimension 0 is -1, a whole number of 0 or more was expected")
    weights("a real size", safetensors(b'{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}', b"x"),
            r"tensor a: dimension 0 is 1\.0, a whole number of 0 or more was expected")
    weights("a long name", safetensors({"x" * 600: tensor()}, b"x"), r"tensor x+\.\.\.: a name of 600 bytes, at most 512 are allowed")
    weights("nine dimensions", safetensors({"a": tensor(0, 1, (1,) * 9)}, b"x"), r"tensor a: 9 dimensions, at most 8 are allowed")
    weights("metadata of numbers", safetensors({"__metadata__": {"a": 1}}), r"__metadata__: a is 1, a text was expected")
    weights("a bomb", safetensors(b'{"a":' + b"[" * 5000), r"not JSON, line 1 column \d+, '\[': nested deeper than 64 levels")
    refused("safetensors: a FIFO", {"hf/config.json": config, "hf/model.safetensors": os.mkfifo}, ini, "import job.ini",
            r"hf/model\.safetensors: not a regular file")

    def index(name, weight_map, sentence, more="", **files):
        data = weight_map if isinstance(weight_map, bytes) else json.dumps({"weight_map": weight_map})
        refused("index: " + name, {"hf/config.json": config, "hf/model.safetensors.index.json": data,
                                   "hf/1.safetensors": safetensors({"a": tensor()}, b"x"),
                                   "secret.safetensors": safetensors({"a": tensor()}, b"x"), **files}, ini + more,
                "import job.ini", sentence)

    plain = r"hf/model\.safetensors\.index\.json: tensor a: file %s: a plain file name was expected"
    index("a way out", {"a": "../secret.safetensors"}, plain % r'"\.\./secret\.safetensors"')
    index("an absolute path", {"a": "/etc/passwd"}, plain % '"/etc/passwd"')
    index("dots", {"a": ".."}, plain % r'"\.\."')
    index("nothing", {"a": ""}, plain % '""')
    index("a number", {"a": 1}, plain % "1")
    index("a NUL", b'{"weight_map":{"a":"1\\u0000"}}', r"hf/model\.safetensors\.index\.json: \\u0000 is not allowed in its texts")
    index("a missing shard", {"a": "2.safetensors"}, r"hf/2\.safetensors: cannot open: No such file or directory")
    index("a tensor that is not there", {"b": "1.safetensors"}, r"hf/model\.safetensors\.index\.json: tensor b is not in 1\.safetensors")
    index("a tensor in another's shard", {"a": "2.safetensors", "b": "1.safetensors"},
          r"hf/model\.safetensors\.index\.json: tensor a lies in 1\.safetensors, the index says 2\.safetensors",
          **{"hf/2.safetensors": safetensors({"b": tensor()}, b"x")})
    index("a tensor in two shards", {"a": "1.safetensors", "b": "2.safetensors"}, r"hf: tensor a lies in [12]\.safetensors and in [12]\.safetensors",
          **{"hf/2.safetensors": safetensors({"a": tensor()}, b"x")})
    index("a folder for a shard", {"a": "d.safetensors"}, r"hf/d\.safetensors: not a regular file", **{"hf/d.safetensors": os.mkdir})
    index("more shards than allowed", {"a": "1.safetensors", "b": "2.safetensors"},
          r"hf/model\.safetensors\.index\.json: 2 shards, at most 1 are allowed", "[limits]\nshards = 1\n")
    pair = {"%s%d" % (n, i): "%d.safetensors" % i for i in (1, 2, 3) for n in "ab"}
    shards = {"hf/%d.safetensors" % i: safetensors({"a%d" % i: tensor(), "b%d" % i: tensor(1, 2)}, b"xy") for i in (1, 2, 3)}
    index("more tensors in all shards than allowed", pair,
          r"hf/2\.safetensors: 4 tensors with those of the shards before it, at most 3 are allowed", "[limits]\ntensors = 3\n", **shards)
    million = b'{"weight_map":{' + b'"a":"1.safetensors",' * 3000000 + b'"b":"1.safetensors"}}'
    index("millions of entries", million, r"hf/model\.safetensors\.index\.json: 60000036 bytes, at most 1089536 are allowed",
          "[limits]\ntensors = 1000\n")
    index("millions of entries, usual limits", million,
          r"hf/model\.safetensors\.index\.json: more than 1065536 values in its JSON")
    index("a list of thousands", b'{"metadata":[' + b"0," * 80000 + b"0]}",
          r"hf/model\.safetensors\.index\.json: more than 65636 values in its JSON", "[limits]\ntensors = 100\n")
    weights("millions of values", safetensors(b'{"a":[' + b"[]," * 5000000 + b"[]]}"),
            r"more than 116000 values in its JSON", "[limits]\ntensors = 1000\n")
    index("no map", b'{"weight_map":[]}', r"hf/model\.safetensors\.index\.json: weight_map is \[\], an object was expected")
    index("a bomb", b'{"a":' + b"[" * 100000, r"hf/model\.safetensors\.index\.json: not JSON, line 1 column \d+, '\[': nested deeper than 64 levels")

    for name, data, sentence in [
        ("no JSON", b"{", r"not JSON, line 1 column 2: .*"),
        ("a list", b"[]", r"\[\] found, a JSON object was expected"),
        ("a bomb", b'{"a":' + b"[" * 100000, r"not JSON, line 1 column \d+, '\[': nested deeper than 64 levels"),
        ("another model", b'{"model_type":"\\u001b[2Jevil"}', r"model_type is \\x1b\[2Jevil, this model plugin reads .*"),
        ("a number for a type", b'{"model_type":1}', r"model_type is 1, a text was expected"),
        ("quantised", json.dumps({**json.loads(config), "quantization_config": {}}).encode(),
         r"quantization_config: quantised weights are not read"),
        ("a list for a number", json.dumps({**json.loads(config), "hidden_size": [1]}).encode(),
         r"hidden_size is \[1\], a number, a text, true or false was expected"),
        ("a text for rope_parameters", json.dumps({**json.loads(config), "rope_parameters": "x"}).encode(),
         r"rope_parameters is x, an object was expected"),
        ("a list for rope_parameters", json.dumps({**json.loads(config), "rope_parameters": []}).encode(),
         r"rope_parameters is a list, an object was expected"),
        ("a text for rope_scaling", json.dumps({**json.loads(config), "rope_scaling": "x"}).encode(),
         r"rope_scaling is x, an object was expected"),
        ("a text for architectures", json.dumps({**json.loads(config), "architectures": "x"}).encode(),
         r"architectures is x, a list of names was expected"),
        ("another's architecture", json.dumps({**json.loads(config), "architectures": ["GPT2LMHeadModel"]}).encode(),
         r"architectures is GPT2LMHeadModel, this model plugin reads LlamaForCausalLM.*"),
        ("a negative id", json.dumps({**json.loads(config), "bos_token_id": -1}).encode(),
         r"bos_token_id is -1, a token id from 0 on was expected"),
        ("a text for an id", json.dumps({**json.loads(config), "eos_token_id": ["x"]}).encode(),
         r"eos_token_id is x, a token id from 0 on was expected"),
        ("too large a number", json.dumps({**json.loads(config), "hidden_size": 10 ** 30}).encode(),
         r"\[model\], config\.json: hidden = 1e\+30: expected a whole number such as .*"),
    ]:
        refused("config: " + name, {"hf/config.json": data, "hf/model.safetensors": safetensors({})}, ini, "import job.ini",
                sentence if sentence.startswith(r"\[model") else r"hf/config\.json: " + sentence)


def token_files():
    ini = "[pipeline]\nname = a\nstages = train\nfolder = out\n" + MODEL + "vocab = 100\n" + TRAIN
    bin_file = struct.pack("<64H", *range(64))

    def idx(lengths=(64,), offsets=(0,), boundaries=(0, 1), code=8, version=1, counts=None, magic=b"MMIDIDX\0\0"):
        s, b = counts or (len(lengths), len(boundaries))
        return (magic + struct.pack("<QBQQ", version, code, s, b) + struct.pack("<%di" % len(lengths), *lengths) +
                struct.pack("<%dq" % len(offsets), *offsets) + struct.pack("<%dq" % len(boundaries), *boundaries))

    for name, data, sentence in [
        ("another magic", idx(magic=b"MMIDIDY\0\0"), r"its first 9 bytes are 4d4d49444944590000, a Megatron index begins with 4d4d49444944580000 \(MMIDIDX\)"),
        ("another version", idx(version=7), r"version 7 at byte 9, expected 1"),
        ("an unknown dtype", idx(code=77), r"dtype code 77 at byte 17, expected 1 to 8"),
        ("reals", idx(code=6), r"dtype code 6 at byte 17 is float64, token ids are whole numbers"),
        ("2^63 sequences", idx(counts=(1 << 63, 2)), r"62 bytes, but 34 \+ 12 x 9223372036854775808 sequences \+ 8 x 2 boundaries are wanted"),
        ("counts that wrap around", idx(counts=(0x5555555555555557, 2)), r"62 bytes, but 34 \+ 12 x \d+ sequences .*"),
        ("a negative length", idx(lengths=(-1,)), r"sequence 0 has -1 tokens at byte 34, expected 0 or more"),
        ("an offset out of the file", idx(offsets=(1 << 62,)), r"sequence 0 has 64 tokens at byte 4611686018427387904, but out/corpus\.bin has 128 bytes"),
        ("offsets that go back", idx((8, 8), (32, 0), (0, 2)), r"sequence 1 begins at 0 of the \.bin, expected at least 32 and a multiple of 2"),
        ("boundaries that go back", idx((8, 8), (0, 16), (0, 2, 1, 2)), r"document boundary 2 is 1; boundaries go from 0 up to 2 and never down"),
        ("a boundary out of range", idx(boundaries=(0, 9)), r"document boundary 1 is 9; boundaries go from 0 up to 1 and never down"),
        ("a single boundary", idx(boundaries=(0,)),
         r"the last document boundary, 0, is 0; expected the number of sequences, 1"),
        ("too short", b"MMIDIDX", r"7 bytes, an index has at least 34"),
    ]:
        refused("idx: " + name, {"out/corpus.idx": data, "out/corpus.bin": bin_file}, ini, "train job.ini",
                r"out/corpus\.idx: " + sentence)
    refused("idx: a .bin that is short", {"out/corpus.idx": idx(), "out/corpus.bin": bin_file[:40]}, ini, "train job.ini",
            r"out/corpus\.idx: sequence 0 has 64 tokens at byte 0, but out/corpus\.bin has 40 bytes")
    refused("idx: an id outside of the vocabulary", {"out/corpus.idx": idx(), "out/corpus.bin": b"\xff\x7f" * 64}, ini,
            "train job.ini", r"out/corpus\.bin: token id 32767 at byte \d+, the vocabulary has \d+")


def manifests():
    def sealed(text):
        text = text.encode()
        return text + b'"self": "' + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'

    head = ('{\n"version": %s,\n"run": "r",\n"step": 1,\n"parent": "",\n"config": "",\n"model": "",\n"plugins": [],\n'
            '"variants": "",\n"device": "",\n"seed": "1",\n"cursor": 1,\n"tokens": 1,\n"scalars": {},\n')
    body = '"files": [{"name": %s, "bytes": 8, "header": "0"}],\n"tensors": {%s},\n'
    whole = '"w": {"dtype": "F32", "shape": [4], "parts": [%s]}'
    part = '{"file": %d, "stored": "w", "at": [%d], "box": [%d], "first": 0, "count": %d, "xxh3": "0"}'

    def make(version="1", name='"a.safetensors"', tensors="", was="", now=""):
        return sealed((head % version + body % (name, tensors)).replace(was, now))

    flipped = bytearray(make())
    flipped[20] ^= 1
    for name, data, sentence in [
        ("no seal", b"{}", r"no seal at its end, byte 2: '\{\}', a line \"self\": \"SHA-256\" and \} was expected"),
        ("a flipped bit", bytes(flipped), r"its lines hash to [0-9a-f]{64}, its seal says [0-9a-f]{64}"),
        ("a later version", make("2"), r"version 2, this program reads 1"),
        ("a way out", make(name='"../../etc/passwd"'), r"file \.\./\.\./etc/passwd: a plain name was expected"),
        ("a file that it does not have", make(tensors=whole % part % (7, 0, 4, 4)), r"tensor w: file 7 of 1"),
        ("a part outside", make(tensors=whole % part % (0, 2, 4, 4)), r"tensor w: a part lies outside of it"),
        ("parts that overlap", make(tensors=whole % (part % (0, 0, 4, 4) + "," + part % (0, 2, 2, 2))),
         r"tensor w: parts 0 and 1 overlap"),
        ("a hole", make(tensors=whole % part % (0, 0, 2, 2)), r"tensor w: its parts hold 2 elements of 4"),
        ("a size of 2^64", make(tensors='"w": {"dtype": "F32", "shape": [4294967296, 4294967296], "parts": [1]}'),
         r"tensor w: more than 2\^63 bytes"),
        ("a seed of 77 bits", make(was='"seed": "1"', now='"seed": "99999999999999999999999"'),
         r"seed: 99999999999999999999999 was found, a whole number below 2\^64 was expected"),
        ("a seed below 0", make(was='"seed": "1"', now='"seed": " -1"'), r"seed:  -1 was found, a whole number below 2\^64 was expected"),
        ("no seed", make(was='"seed": "1"', now='"seed": ""'), r"seed:  was found, a whole number below 2\^64 was expected"),
        ("a hash of 68 bits", make(was='"header": "0"', now='"header": "10000000000000000"'),
         r"header: 10000000000000000 was found, a hash of 1 to 16 digits was expected"),
        ("a hash with a sign", make(was='"header": "0"', now='"header": "+0x1"'),
         r"header: \+0x1 was found, a hash of 1 to 16 digits was expected"),
        ("a scalar of 1e999", make(was='"scalars": {}', now='"scalars": {"loss": "1e999"}'),
         r"scalars: loss: 1e999 was found, a number up to 1e308 was expected"),
        ("an abi of 33 bits", make(was='"plugins": []', now='"plugins": [{"kind": "", "name": "", "version": "", "sha256": "", "abi": 4294967297}]'),
         r"plugins: abi 4294967297 was found, at most 4294967295 was expected"),
        ("an unknown dtype", make(tensors='"w": {"dtype": "Q4", "shape": [4], "parts": [1]}'), r"tensor w: unknown dtype Q4, one of U8 .* F32 .* was expected"),
        ("a bomb", sealed('{"a":' + "[" * 100000), r"not JSON, line 1 column \d+, '\[': nested deeper than 64 levels"),
    ]:
        refused("manifest: " + name, {"c/ckpt/manifest.json": data, "c/ckpt/a.safetensors": b"12345678"}, "",
                "verify c/ckpt", r"c/ckpt/manifest\.json: " + sentence)


def what_is_no_file():
    """Names that lead to no regular file, keys that stand twice further inside, values that look like commands."""
    ini = "[pipeline]\nname = a\nstages = import\nfolder = out\n[model]\nplugin = llama\nvocab = from_import\n[import]\nfrom = hf\n"
    config = open(os.path.join(LLAMA, "config.json"), "rb").read()
    index = json.dumps({"weight_map": {"a": "1.safetensors"}})

    def link(to):
        return lambda path: os.symlink(to, path)

    for name, made, sentence in [
        ("a FIFO", os.mkfifo, "not a regular file"),
        ("a link to a FIFO", lambda path: (os.mkfifo(path + ".fifo"), os.symlink(path + ".fifo", path)), "not a regular file"),
        ("a link to a device", link("/dev/zero"), "(not a regular file|cannot open: Permission denied)"),
        ("a link to a terminal", link("/dev/tty"), "(not a regular file|cannot open: (No such device or address|Permission denied))"),
        ("a link to nothing", link("nothing"), "cannot open: No such file or directory"),
        ("a link to itself", link("1.safetensors"), "cannot open: Too many levels of symbolic links"),
    ]:
        refused("index: " + name, {"hf/config.json": config, "hf/model.safetensors.index.json": index, "hf/1.safetensors": made},
                ini, "import job.ini", r"hf/1\.safetensors: " + sentence)
    refused("config: a FIFO", {"hf/config.json": os.mkfifo, "hf/model.safetensors": safetensors({})}, ini, "import job.ini",
            r"hf/config\.json: not a regular file")
    refused("index: it is a FIFO", {"hf/config.json": config, "hf/model.safetensors.index.json": os.mkfifo}, ini, "import job.ini",
            r"hf/model\.safetensors\.index\.json: not a regular file")
    refused("safetensors: a key twice in its metadata", {"hf/config.json": config, "hf/model.safetensors":
            safetensors(b'{"__metadata__":{"a":"1","a":"2"}}')}, ini, "import job.ini",
            r"hf/model\.safetensors: key 'a' stands twice")
    prepare = "[pipeline]\nname = a\nstages = prepare\nfolder = out\n[prepare]\ninput = %s\ntokenizer = %s\n"
    for file in ("tokenizer.json", "tokenizer.model", "vocab.json"):
        refused(f"tokenizer: {file} is a FIFO", {"a.jsonl": '{"text":"a"}\n', "t/" + file: os.mkfifo},
                prepare % ("a.jsonl", "t/" + file), "prepare job.ini", rf"t/{re.escape(file)}: not a regular file")
    refused("INI: a variable in a number", {}, ini + "[data]\nseed = ${env:HOME}\n", "check job.ini",
            r"job\.ini:\d+: seed = \$\{env:HOME\}: expected a whole number.*")
    refused("INI: a variable in a path", {}, prepare % ("${env:HOME}/a.jsonl", TOKENIZER), "prepare job.ini",
            r".*\$\{env:HOME\}/a\.jsonl.*")


def a_document_of_one_character():
    """A million times, in milliseconds: what splits and merges is linear in its text."""
    global count
    tokenizers = os.path.join(TESTS, "data", "tokenizers")
    for tokenizer in ("gpt2-tiny", "mini-llama", "stories260K"):
        for character in ("a", " ", "0", "\u00e9", "\n", "\U0001f600"):
            count += 1
            with tempfile.TemporaryDirectory(prefix="longhaul-hostile-") as folder:
                write(folder + "/a.jsonl", json.dumps({"text": character * 1000000}) + "\n")
                write(folder + "/job.ini", "[pipeline]\nname = a\nstages = prepare\nfolder = out\n[prepare]\ninput = a.jsonl\n"
                      f"append = none\ntokenizer = {os.path.join(tokenizers, tokenizer)}\n")
                begin = time.monotonic()
                done = subprocess.run([PROGRAM, "prepare", folder + "/job.ini"], capture_output=True, timeout=60, cwd=folder)
                seconds = time.monotonic() - begin
                print(f"{tokenizer}: {character!r} a million times in {seconds:.2f} s")
                if done.returncode != 0 or seconds > 20:
                    failures.append(f"{tokenizer}, {character!r} a million times: {seconds:.2f} s, {done.stderr[-300:]!r}")


what_is_no_file()
a_document_of_one_character()
for part in (ini_files, json_lines, tokenizer_files, import_folder, token_files, manifests):
    part()
with open(os.path.join(os.path.dirname(TESTS), "docs", "reliability.md"), encoding="utf-8") as page:
    if f"`hostile.files` ({count} files;" not in page.read():
        failures.append(f"docs/reliability.md has another number of hostile.files than {count}")
for failure in failures:
    print(failure)
print(f"{count} hostile files, {len(failures)} not refused as expected")
sys.exit(bool(failures))
