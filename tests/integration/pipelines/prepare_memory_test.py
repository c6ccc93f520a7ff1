"""The memory of prepare is constant in its input: long inputs of every kind under a cap on the address
space, and no more resident memory for eight times as much. LONGHAUL_TORTURE=1: 10 GB in 1 GiB."""
import gzip
import json
import os
import random
import resource
import shutil
import subprocess
import unittest

from pipeline_case import BINARY, DATA, TORTURE, PipelineCase, main

MIB = 1 << 20
# Threads' stacks and arenas of the allocator are address space that nobody touches; so is the program itself.
CAP = 1 << 30
SLACK = 2 * MIB  # of resident memory, for how threads happen to overtake each other
SMALL, LARGE = (8 * MIB, 64 * MIB)
VAST = 10 * 10 ** 9 if TORTURE else 192 * MIB
WORKERS = 2
VOCABULARY = DATA + "/gpt2-tiny/vocab.json"


@unittest.skipIf(os.environ.get("LONGHAUL_SANITIZED") == "1", "a sanitizer's own memory is not capped")
class PrepareMemory(PipelineCase):
    def job(self, pattern, **more):
        keys = dict({"input": pattern, "tokenizer": DATA + "/stories260K/tokenizer.json",
                     "workers": WORKERS}, **more)
        return self.ini({"pipeline": {"name": "memory", "stages": "prepare", "folder": "out"},
                         "prepare": keys})

    def peak(self, job):
        """Greatest resident memory in bytes of a prepare that may map CAP bytes at most."""
        with open(self.path("said"), "w+") as said:
            process = subprocess.Popen(
                [BINARY, "prepare", job], cwd=self.folder, stdout=said, stderr=said,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (CAP, CAP)))
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            self.assertEqual(process.returncode, 0, said.read()[-3000:])
        return used.ru_maxrss * 1024

    def repeated(self, name, block, size):
        """A file of whole blocks, at least that long."""
        with open(self.path(name), "wb") as f:
            for _ in range(-(-size // len(block))):
                f.write(block)
        return self.path(name)

    def tokens(self):
        return os.path.getsize(self.path("out", "corpus.bin")) // 2

    def no_more_for_the_larger(self, block, **more):
        few = self.peak(self.job(self.repeated("small.jsonl", block, SMALL), **more))
        many = self.peak(self.job(self.repeated("large.jsonl", block, LARGE), **more))
        self.assertLess(many - few, SLACK, "%d MiB for %d, %d MiB for %d"
                        % (few // MIB, SMALL, many // MIB, LARGE))

    def test_text_eight_times_as_long_takes_no_more_memory(self):
        with open(DATA + "/tinystories-1000.jsonl", "rb") as f:
            self.no_more_for_the_larger(f.read())

    def test_millions_of_tiny_documents_take_no_more_memory(self):
        self.no_more_for_the_larger(b'{"text": "a"}\n' * 1000)

    def test_millions_of_bad_lines_take_no_more_memory(self):
        self.no_more_for_the_larger(b'{"text": 1}\n' * 999 + b'{"text": "a"}\n', on_error="skip")

    def test_words_that_never_come_again_take_no_more_memory(self):
        # What tokenizers remember of pieces is bounded too.
        for name, size in (("small.jsonl", SMALL // 4), ("large.jsonl", LARGE // 4)):
            with open(self.path(name), "w") as f:
                for at in range(size // 70):
                    f.write('{"text": "%020d %020d %012x"}\n' % (at * 7919, at * 104729, at))
        few = self.peak(self.job(self.path("small.jsonl")))
        many = self.peak(self.job(self.path("large.jsonl")))
        self.assertLess(many - few, SLACK, "%d MiB, then %d MiB" % (few // MIB, many // MIB))

    def test_a_sparse_file_of_one_endless_line_is_left_out(self):
        path = self.path("sparse.jsonl")
        with open(path, "wb") as f:
            f.write(b'{"text": "first"}\n')
            f.truncate(VAST)
        with open(path, "ab") as f:
            f.write(b'\n{"text": "last"}\n')
        used = self.peak(self.job(path, on_error="skip"))
        self.assertLess(used, 256 * MIB)
        with open(self.path("out", "corpus.idx"), "rb") as f:
            self.assertEqual(int.from_bytes(f.read()[18:26], "little"), 2)

    def long_words(self):
        """A megabyte of documents, of words that are a token each, the longest of the vocabulary: what takes time is to read
        them, as is asked here, and not to write 7 GB of tokens. Each ten times, so that ten GB of them are half of one when they are
        compressed, and not two or three."""
        with open(VOCABULARY, encoding="utf-8") as f:
            behind_a_space = [name[1:] for name in json.load(f) if name.startswith("\u0120")]
        words = sorted((word for word in behind_a_space if word.isascii() and word.isalpha()), key=len)[-64:]
        chance = random.Random(1)
        lines = [json.dumps({"text": " ".join(chance.choices(words, k=90))}) + "\n" for _ in range(100)]
        return "".join(10 * line for line in lines).encode()

    def test_a_compressed_file_of_gigabytes_is_read_in_the_same_memory(self):
        # Members of a gzip file one after the other are one text.
        pair = {"tokenizer": VOCABULARY}
        if shutil.disk_usage(self.folder).free < 2 * VAST:
            self.skipTest("tokens of %.1f GB of text need more room than the disk has" % (VAST / 1e9))
        block = self.long_words()
        count = -(-(VAST if TORTURE else LARGE) // len(block))
        packed = gzip.compress(block, 1)
        with open(self.path("small.jsonl.gz"), "wb") as f:
            f.write(packed * (SMALL // len(block)))
        few = self.peak(self.job(self.path("small.jsonl.gz"), **pair))
        tokens = self.tokens() // (SMALL // len(block))
        with open(self.path("large.jsonl.gz"), "wb") as f:
            for _ in range(count):
                f.write(packed)
        many = self.peak(self.job(self.path("large.jsonl.gz"), **pair))
        self.assertEqual(self.tokens(), tokens * count)
        self.assertLess(many - few, SLACK, "%d MiB, then %d MiB" % (few // MIB, many // MIB))


main()
