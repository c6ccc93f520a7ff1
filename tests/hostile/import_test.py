"""A model's folder that takes the import over gets nothing: what reads it may open no other file, no socket and no
program, its end is one sentence, and nothing of a model is left.

    python3 import_test.py LONGHAUL SOURCE INTRUDER.so
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE, INTRUDER = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
MODEL = os.path.join(SOURCE, "tests", "golden", "llama")
INI = """[pipeline]
name = foreign
stages = import
folder = new/out
[model]
plugin = llama
vocab = from_import
[import]
from = %s
"""
VERSION, CREATE_RULESET = 1, 444


def has_landlock():
    return ctypes.CDLL(None).syscall(CREATE_RULESET, 0, 0, VERSION) > 0


class Import(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="longhaul-import-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, model=MODEL, command="run", **environment):
        ini = os.path.join(self.folder, "job.ini")
        with open(ini, "w") as f:
            f.write(INI % model)
        if "INTRUDER" in environment:
            environment["LD_PRELOAD"] = INTRUDER
        return subprocess.Popen([PROGRAM, command, ini], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **environment})

    def run_import(self, model=MODEL, command="run", **environment):
        process = self.start(model, command, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def made(self, *names):
        return os.path.exists(os.path.join(self.folder, "new", *names))

    def test_a_thief_gets_nothing(self):
        private = os.path.join(self.folder, "private")
        with open(private, "w") as f:
            f.write("x")
        code, out, err = self.run_import(INTRUDER="try " + private)
        said = dict(line.split(": ")[1:] for line in err.splitlines() if line.startswith("intruder: "))
        self.assertEqual((code, out[:27]), (0, "imported 21 tensors, 0.1 MB"), err)
        self.assertEqual(said["socket"], "Operation not permitted")
        self.assertEqual(said["execve"], "Operation not permitted")
        if not has_landlock():
            self.skipTest("this kernel has no Landlock")
        self.assertEqual([said[what] for what in ("read", "write", "make")], 3 * ["Permission denied"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["job.ini", "new", "private"])

    def test_a_crash_is_one_sentence(self):
        code, out, err = self.run_import(INTRUDER="crash")
        self.assertEqual((code, out), (1, ""), err)
        self.assertEqual(err.splitlines()[-1], "longhaul: the import was ended by signal 11 (Segmentation fault)")
        self.assertFalse(self.made("out", "import"))
        self.assertEqual(self.run_import()[0], 0)
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "new", "out"))), ["import", "stages.json"])

    def test_what_it_starts_ends_with_it(self):
        code, out, err = self.run_import(INTRUDER="linger")
        self.assertEqual((code, out[:27]), (0, "imported 21 tensors, 0.1 MB"), err)

    def test_a_signal_ends_it_as_ever(self):
        process = self.start(INTRUDER="wait")
        while process.stderr.readline() != "intruder: waits\n":
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75)
        # Whoever reads has ended too: nobody holds the pipe.
        said = "longhaul: stopped by signal 15 (Terminated) while no step was under way\n"
        self.assertEqual(process.communicate(timeout=60), ("", said))
        self.assertFalse(self.made("out", "import"))

    def test_links_of_the_cache_are_followed(self):
        cache = os.path.join(self.folder, "cache")
        blobs, snapshot = os.path.join(cache, "blobs"), os.path.join(cache, "snapshots", "main")
        os.makedirs(blobs)
        os.makedirs(snapshot)
        for name in os.listdir(MODEL):
            shutil.copy(os.path.join(MODEL, name), os.path.join(blobs, name))
            os.symlink(f"../../blobs/{name}", os.path.join(snapshot, name))
        code, out, err = self.run_import(snapshot)
        self.assertEqual(code, 0, err)
        self.assertTrue(self.made("out", "import", "config.json"))

    def test_what_is_refused_leaves_no_folder(self):
        model = os.path.join(self.folder, "model")
        shutil.copytree(MODEL, model)
        with open(os.path.join(model, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(model, "config.json"), "w") as f:
            json.dump({**config, "hidden_size": "many"}, f)
        # Without the checks of `run`, which come before any stage.
        code, out, err = self.run_import(model, "import")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("config.json", err.splitlines()[-1])
        self.assertFalse(self.made())
        code, out, err = self.run_import(os.path.join(self.folder, "nowhere"), "import")
        self.assertEqual(code, 1)
        self.assertIn("No such file or directory", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
