"""What tests of packages and places share: the source, the build, and how one that can't run here says why."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, CMAKE = (os.path.abspath(p) for p in sys.argv[1:4])
LONGHAUL = os.path.join(BUILD, "bin", "longhaul")
DATA = os.path.join(SOURCE, "examples", "data")
TORTURE = os.environ.get("LONGHAUL_TORTURE", "") not in ("", "0")


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class PlacesCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lh-places-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def call(self, *words, code=0, **how):
        """A command's stdout; its exit code must be `code`."""
        how.setdefault("timeout", 240)
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, **how)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout


def main():
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
