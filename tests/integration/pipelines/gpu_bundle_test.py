"""bench/gpu: the bundle runs from anywhere, is small, and its parts go as far over the stand-ins of NVIDIA's libraries as
those do; without a GPU each says in a sentence what is missing."""
import json
import os
import subprocess

from cuda_case import LIBRARIES
from pipeline_case import BINARY, PipelineCase, main

SOURCE = os.environ["LONGHAUL_SOURCE"]
BUILD = os.path.dirname(os.path.dirname(BINARY))
LIMIT = 60e6


class GpuBundle(PipelineCase):
    def bundled(self):
        folder = self.path("bundle")
        done = subprocess.run([os.path.join(SOURCE, "bench", "gpu", "bundle"), folder, "--build", BUILD],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        moved = self.path("elsewhere")
        os.rename(folder, moved)
        return moved

    def part(self, bundle, name, *more, fake="", code=0):
        out = self.path("results")
        done = subprocess.run([os.path.join(bundle, "run"), name, "--out", out, "--tiny", "--rounds", "1", *more],
                              capture_output=True, text=True, cwd="/", env=dict(os.environ, LH_FAKE_CUDA=fake))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertTrue(os.path.exists(os.path.join(out, name + ".txt")))
        return None if name == "all" else self.told(name)

    def told(self, name):
        """Rows by their names, and notes."""
        with open(self.path("results", name + ".json")) as f:
            report = json.load(f)
        return {row["what"]: row for row in report["rows"]}, " ".join(report["notes"])

    def test_parts_run_from_a_bundle(self):
        bundle = self.bundled()
        held = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(bundle) for name in names)
        self.assertLess(held, LIMIT)
        over = ("--libraries", LIBRARIES)
        self.part(bundle, "all", *over, fake="gpus=2 delay_us=5")
        rows, _ = self.told("check")
        for what in ("longhaul-check cuda", "captured or not, the same bits", "losses of the reference device",
                     "killed and resumed, the same bits", "test cuda_test"):
            self.assertEqual(rows[what]["result"], "ok", rows[what])
        rows, _ = self.told("ranks")
        for what in ("NCCL in a group of one, every call", "two ranks on a GPU, ZeRO 3"):
            self.assertEqual(rows[what]["result"], "ok", rows[what])
        self.assertIn("s a step", rows["NCCL over 2 GPUs, ZeRO 3"]["result"])
        _, notes = self.told("sanitize")
        self.assertIn("compute-sanitizer", notes)
        rows, _ = self.told("speed")
        self.assertIn("tokens/s", rows["1B, ours, ordered"]["result"])
        for what, unit in (("of the matrix rate of this run", "%, goal 70 %"), ("memory beside its plan", "off the plan, goal 3 %"),
                           ("device idle", "% of a step, goal 1 %"), ("from exec to the first step", "s, goal 6 s"),
                           ("saves", "% of a step held up, goal 1 %")):
            self.assertIn(unit, rows["1B, " + what]["result"])
        rows, _ = self.told("large")
        self.assertEqual(rows["3B, kernel by kernel"]["result"], "ok")
        with open(self.path("results", "all.txt")) as f:
            table = f.read()
        for line in ("---- check", "---- ranks", "3B, kernel by kernel"):
            self.assertIn(line, table)
        rows, notes = self.part(bundle, "large", *over, "--minutes", "0.1", fake="gpus=1 delay_us=5")
        self.assertNotIn("3B, kernel by kernel", [w for w, row in rows.items() if row["result"] == "ok"])

    def test_what_is_missing_is_one_sentence(self):
        bundle = self.bundled()
        for name in ("speed", "large", "ranks"):
            rows, notes = self.part(bundle, name, "--libraries", LIBRARIES, fake="gpus=0")
            self.assertEqual(rows, {})
            self.assertIn("finds no GPU", notes)


if __name__ == "__main__":
    main()
