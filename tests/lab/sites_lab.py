"""sites_lab.py WAN_LAB LONGHAUL - one row of bench/sites in short steps, over a link that is played: whether the bench still finds
its figures in what a run writes, and whether they are of the order of what they should be. No goal is held."""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import skip_unless_played

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WAN_LAB = LONGHAUL = ""
SIDES = {"one site", "off", "nothing set"}
PARAMETERS = 16913280  # 6 blocks of 1770240, two tables of 8192 x 384, the last norm
# Of a Llama of 7B that 16 devices of 400 TFLOP/s train on 1M tokens a step: what all gradients in BF16 take of its 6.6 s at 100 Gb/s.
SHARE = 0.163
TABLE_7B = 1.003  # two sites, 0.4 ms: tests/lab/sites_test.py


class Sites(unittest.TestCase):
    def test_a_row_has_its_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "sites.json")
            got = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "bench", "sites"), "--quick", "--row", "2x40",
                                  "--longhaul", LONGHAUL, "--folder", folder, "--json", out],
                                 capture_output=True, text=True, timeout=1000)
            self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
            print(got.stdout, flush=True)
            with open(out) as f:
                row, = json.load(f)["results"]
        self.assertEqual((row["row"], set(row["steps"])), ("2x40", SIDES))
        for side, steps in row["steps"].items():
            self.assertEqual(len(steps), 2, side)
            for step in steps:
                self.assertTrue(0.2 < step["compute"] < 1.1 * step["seconds"], (side, step))  # it is made for a second
                # The rank that waited least waited no longer than rank 0.
                self.assertTrue(0 <= step["least"] <= step["exposed"] + 1e-3, (side, step))
                self.assertLess(step["exposed"], 1.1 * step["seconds"], (side, step))
            self.assertAlmostEqual(row["step_s"][side], statistics.median(s["seconds"] for s in steps))
        alone = statistics.median(s["compute"] for s in row["steps"]["one site"])
        self.assertAlmostEqual(2 * PARAMETERS / row["rate"] / alone, SHARE, delta=0.002)
        # A round trip is waited for at least, and steps are no multiple of what they compute.
        for side in ("off", "nothing set"):
            self.assertTrue(1 < row["share"][side] < 2, row["share"])
            self.assertGreater(row["share_0"][side], row["share"][side] - 2e-3)
        self.assertTrue(1.005 < row["predicted"] < 1.1, row["predicted"])
        self.assertAlmostEqual(row["predicted_7b"], TABLE_7B, delta=6e-4)
        line = re.search(r"(?m)^2 sites, 40 km +1\.005 +(\S+) +(\S+) of <= 1\.01", got.stdout)
        self.assertIsNotNone(line, got.stdout)
        self.assertEqual(line.groups(), tuple("%.3f" % row["share"][side] for side in ("off", "nothing set")))


if __name__ == "__main__":
    WAN_LAB, LONGHAUL = sys.argv[1:3]
    skip_unless_played(WAN_LAB)
    unittest.main(argv=sys.argv[:1], verbosity=2)
