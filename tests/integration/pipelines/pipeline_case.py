"""What the tests here share: the real binary, a folder of their own, pipelines written as INI files.

The binary is named by LONGHAUL_BINARY, the repository by LONGHAUL_SOURCE (both set by ctest)."""
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = os.environ.get("LONGHAUL_BINARY", "longhaul")
SOURCE = os.environ.get(
    "LONGHAUL_SOURCE",
    os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))
DATA = os.path.join(SOURCE, "examples", "data")
TORTURE = os.environ.get("LONGHAUL_TORTURE", "0") not in ("", "0")

DONE, REFUSED, USAGE, LOST, NOT_FINITE, INTERNAL, TERMINATED = 0, 1, 2, 3, 4, 5, 75
# Seconds that a command may take: those of long lists are long, and a machine may be three times slower than another.
LIMIT = 7200 if TORTURE else 600


def tensors_of(path):
    """A safetensors file: name -> (dtype, shape, bytes)."""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length].decode("utf-8"))
    header.pop("__metadata__", None)
    return {name: (row["dtype"], row["shape"],
                   data[8 + length + row["data_offsets"][0]:8 + length + row["data_offsets"][1]])
            for name, row in header.items()}


def write_tensors(path, tensors):
    """The reverse; in the order of the dictionary, as Transformers writes it."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def floats(data):
    return struct.unpack("<%df" % (len(data) // 4), data)


def checkpoint_digest(folder):
    """One SHA-256 over every tensor of a checkpoint, by name: weights and optimizer state."""
    total = hashlib.sha256()
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(tensors_of(os.path.join(folder, name)))
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        total.update(("%s %s %s\n" % (name, dtype, shape)).encode() + data)
    return total.hexdigest(), sorted(tensors)


def logical(folder):
    """name -> bytes of the whole tensor, put together by the manifest's parts; each element once."""
    with open(os.path.join(folder, "manifest.json")) as f:
        manifest = json.load(f)
    files = [tensors_of(os.path.join(folder, row["name"])) for row in manifest["files"]]
    whole = {}
    for name, row in manifest["tensors"].items():
        elements = 1
        for n in row["shape"]:
            elements *= n
        data, seen = bytearray(4 * elements), bytearray(elements)
        for part in row["parts"]:
            first, count = part.get("first", 0), part.get("count", elements)
            data[4 * first:4 * (first + count)] = files[part["file"]][part["stored"]][2]
            assert first + count <= elements and 1 not in seen[first:first + count], name
            seen[first:first + count] = b"\1" * count
        assert 0 not in seen, name
        whole[name] = bytes(data)
    return whole


def write_pair(prefix, documents):
    """Megatron's pair: each document a list of sequences, each of uint16 ids."""
    lengths, offsets, boundaries, ids = [], [], [0], []
    for document in documents:
        for sequence in document:
            offsets.append(2 * len(ids))
            lengths.append(len(sequence))
            ids += sequence
        boundaries.append(len(lengths))
    with open(prefix + ".bin", "wb") as f:
        f.write(struct.pack("<%dH" % len(ids), *ids))
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(boundaries)))
        f.write(struct.pack("<%di" % len(lengths), *lengths))
        f.write(struct.pack("<%dQ" % len(offsets), *offsets))
        f.write(struct.pack("<%dQ" % len(boundaries), *boundaries))


def read_pair(prefix):
    """The reverse."""
    with open(prefix + ".idx", "rb") as f:
        data = f.read()
    sequences, bounds = struct.unpack_from("<QQ", data, 18)
    lengths = struct.unpack_from("<%di" % sequences, data, 34)
    offsets = struct.unpack_from("<%dQ" % sequences, data, 34 + 4 * sequences)
    boundaries = struct.unpack_from("<%dQ" % bounds, data, 34 + 12 * sequences)
    with open(prefix + ".bin", "rb") as f:
        tokens = f.read()
    parts = [list(struct.unpack_from("<%dH" % n, tokens, at)) for n, at in zip(lengths, offsets)]
    return [parts[a:b] for a, b in zip(boundaries, boundaries[1:])]


def read_json_lines(path):
    """But for a last line of which a run has yet to write the rest."""
    with open(path) as f:
        return [json.loads(line) for line in f if line.endswith("\n") and line.strip()]


def set_flags(*texts):
    """--set for each "section.key=value"."""
    return [word for text in texts for word in ("--set", text)]


def log_lines(path):
    """The whole lines of a log, each of which begins with its time of day, without it."""
    with open(path) as f:
        lines = [line.rstrip("\n") for line in f if line.endswith("\n")]
    for line in lines:
        if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line):
            raise AssertionError("no time of day: %r" % line)
    return [line[25:] for line in lines]


class PipelineCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="longhaul-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def ini(self, sections, name="job.ini"):
        """sections: {"train": {"steps": 3}}"""
        lines = []
        for section, keys in sections.items():
            lines.append("[%s]" % section)
            lines += ["%s = %s" % (k, v) for k, v in keys.items() if v is not None]
        return self.write(name, "\n".join(lines) + "\n")

    def small_job(self, stages="prepare train", **changes):
        """A model that learns a few stories in no time. changes: train={"steps": 3}, ..."""
        sections = {
            "pipeline": {"name": "small", "stages": stages, "folder": "out"},
            "prepare": {"input": self.stories(), "tokenizer": DATA + "/stories260K/tokenizer.json",
                        "prepend": "bos", "workers": 1},
            "data": {"train": "corpus", "split": "80,20,0"},
            "model": {"plugin": "llama", "vocab": "from_tokenizer", "blocks": 2, "hidden": 32,
                      "ffn": 56, "heads": 4, "kv_heads": 2, "max_tokens": 64},
            "train": {"sequence": 32, "batch": 4, "micro_batch": 2, "steps": 20,
                      "precision": "f32"},
            "optimizer": {"plugin": "zero0", "rule": "rules:adamw", "decay": 0.1, "clip": 1.0,
                          "learning_rate": "warmup_cosine(step, peak=3e-3, warmup=4, total=20)"},
            "checkpoint": {"every": 0, "keep": 100},
            "device": {"plugin": "cpu", "threads": 1},
        }
        for section, keys in changes.items():
            sections.setdefault(section.replace("__", "."), {}).update(keys)
        return self.ini({k: v for k, v in sections.items() if v})

    def link_data(self, folder):
        """A pipeline's folder of its own, with the tokens that were prepared in `out`."""
        os.makedirs(self.path(folder))
        for file in ("corpus.bin", "corpus.idx"):
            os.link(self.path("out", file), self.path(folder, file))

    def curve(self, folder):
        """Step, loss and gradient norm of each step."""
        return [(r["step"], r["loss"], r["gradient_norm"])
                for r in read_json_lines(self.path(folder, "metrics.jsonl")) if "loss" in r]

    def assert_curves_near(self, folder, other, most):
        ours, theirs = self.curve(folder), self.curve(other)
        self.assertEqual([row[0] for row in ours], [row[0] for row in theirs])
        for row, like in zip(ours, theirs):
            for a, b in zip(row[1:], like[1:]):
                self.assertLess(abs(a - b), most * max(1, abs(b)), (folder, ours, theirs))

    @staticmethod
    def damage_shard(folder):
        """A bit of a checkpoint's data, which only who reads all of it sees."""
        shard = [n for n in os.listdir(folder) if n.startswith("shard-")][0]
        with open(os.path.join(folder, shard), "r+b") as f:
            f.seek(-1000, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-1000, os.SEEK_END)
            f.write(bytes([byte ^ 4]))

    def stories(self, count=60):
        path = self.path("stories.jsonl")
        if not os.path.exists(path):
            with open(DATA + "/tinystories-1000.jsonl") as f, open(path, "w") as out:
                out.writelines(f.readline() for _ in range(count))
        return path

    def start(self, *args, **more):
        """It does not outlive the test, however that ends."""
        process = subprocess.Popen([BINARY] + list(args), stdout=subprocess.PIPE,
                                   stderr=more.pop("stderr", subprocess.PIPE), text=True,
                                   errors="replace", cwd=self.folder, **more)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.wait()

    def run_longhaul(self, *args, code=DONE, **more):
        """stdout and stderr; fails unless it exits with `code`."""
        done = subprocess.run([BINARY] + list(args), capture_output=True, text=True,
                              errors="replace", cwd=self.folder, timeout=LIMIT, **more)
        self.assertEqual(done.returncode, code,
                         "longhaul %s\n%s%s" % (" ".join(args), done.stdout[-2000:],
                                                done.stderr[-4000:]))
        return done.stdout, done.stderr

    def wait_for(self, there, process=None, seconds=60, pause=0.002):
        """Until there() is true; false if the process ended before."""
        until = time.monotonic() + seconds
        while not there():
            if process is not None and process.poll() is not None:
                return there()
            self.assertLess(time.monotonic(), until, "waited too long")
            time.sleep(pause)
        return True

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.communicate()
        # The writer of checkpoints is a process of its own and ends by itself.
        time.sleep(0.05)

    def step_folder(self, step, folder="out"):
        return self.path(folder, "checkpoints", "step-%012d" % step)


def add_plugin(case, kind, name):
    """A folder with the plugins of the build and one of the tests' own; what --plugins takes."""
    built = os.path.join(os.path.dirname(os.path.dirname(BINARY)), "lib", "longhaul")
    folder = case.path("plugins")
    if not os.path.isdir(folder):
        shutil.copytree(built, folder)
    os.makedirs(os.path.join(folder, kind), exist_ok=True)
    shutil.copy(os.path.join(os.environ["LONGHAUL_TEST_FOLDER"], name + ".so"),
                os.path.join(folder, kind))
    return folder


def main():
    result = unittest.main(verbosity=2, exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped) > 0:
        print("skipped:", result.skipped[0][1])
        sys.exit(77)
