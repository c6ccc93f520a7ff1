"""links_test.py - what bench/links makes of a record's links, and what it holds against a share of the limit. Nothing is played: sides
have rates that are made up."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
loader = importlib.machinery.SourceFileLoader("links", os.path.join(ROOT, "bench", "links"))
links = importlib.util.module_from_spec(importlib.util.spec_from_loader("links", loader))
sys.modules["links"] = links
loader.exec_module(links)

RECORD = {"version": 1, "links": [
    {"sites": ["tokyo", "osaka"], "round_trip_ns": 10000000, "bytes_per_second": [12060000, 12100000], "loss": [0, 2e-6],
     "path_mtu": 1500},
    {"sites": ["tokyo", "nagoya"], "round_trip_ns": 20000000, "bytes_per_second": [24900000, 24800000], "loss": [1e-3, 0],
     "path_mtu": 9000}]}


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.mkdir(self.path("tests"))
        for name in ("far_ends", "wan_lab"):
            with open(self.path("tests", name), "w"):
                os.chmod(self.path("tests", name), 0o755)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def run_with(self, shares, *words, lab=mock.MagicMock()):
        """(exit code or last words, what was printed, sides that were asked, the medians of each cell)."""
        asked, out = [], io.StringIO()

        def side(_, cell, name):
            def measure():
                asked.append(name)
                return {"bits_per_second": shares[name] * cell.limit}
            return measure
        argv = ["links", "--build", self.folder.name, "--json", self.path("out.json"), "--rounds", "1", *words]
        with mock.patch.object(links, "side", side), mock.patch.object(links, "Lab", lab), mock.patch.object(sys, "argv", argv), \
                mock.patch.object(links, "has_bbr", lambda: True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                links.main()
                code = 0
            except SystemExit as end:
                code = end.code
        rows = []
        if os.path.exists(self.path("out.json")):
            with open(self.path("out.json")) as f:
                rows = json.load(f)["results"]
        return code, out.getvalue(), asked, rows

    def test_the_links_of_a_record_are_cells(self):
        with open(self.path("links.json"), "w") as f:
            json.dump(RECORD, f)
        code, said, asked, rows = self.run_with({"known": 1}, "--emulate", self.path("links.json"), "--sides", "known")
        self.assertEqual((code, asked), (0, ["known", "known"]), said)
        # Payload of 96.5 Mb/s is 0.1 Gb/s of the wire in packets of 1500; two losses in a million were not seen but only not ruled out.
        self.assertRegex(said, r"tokyo-osaka: 10 ms, 0\.1\d* Gb/s, loss 0, queue 1\n")
        self.assertRegex(said, r"tokyo-nagoya: 20 ms, 0\.2\d* Gb/s, loss 0\.001, queue 1\n")
        for row, link in zip(rows, RECORD["links"]):
            self.assertAlmostEqual(row["medians"]["known"], 8 * min(link["bytes_per_second"]), delta=1)

    def test_a_matrix_is_cut_by_what_is_given(self):
        """Parts of it are run one at a time: together they are all cells, each once."""
        def cells(*words):
            code, said, _, rows = self.run_with({"known": 1}, "--matrix", "--sides", "known", *words)
            self.assertEqual(code, 0, said)
            return [row["cell"] for row in rows]
        with open(os.path.join(ROOT, "tests", "lab", "CMakeLists.txt")) as f:
            parts = re.findall(r"^add_goodput\(\w+ ([^)]*)\)", f.read(), re.M)
        whole = cells()
        self.assertEqual(len(whole), 6 * 3 * 4 * 3)
        self.assertEqual(sorted(cell for part in parts for cell in cells(*part.split())), sorted(whole))

    def test_who_fills_the_limit_is_asked_alone(self):
        one = ("--round-trips", "10", "--rates", "1", "--sides", "ceiling,known", "--hold", "0.95")
        code, said, asked, _ = self.run_with({"ceiling": 1, "known": 0.97}, *one)
        self.assertEqual((code, asked), (0, ["known", "known"]), said)
        # Of an emulator that gives 0.92 of its limit 0.90 is enough.
        code, said, asked, _ = self.run_with({"ceiling": 0.92, "known": 0.90}, *one, "--losses", "0")
        self.assertEqual((code, asked), (0, ["known", "ceiling", "known"]), said)
        code, said, asked, _ = self.run_with({"ceiling": 1, "known": 0.955}, *one)
        self.assertEqual(asked.count("known"), 1 + 1 + 5 + 1, said)  # without loss 0.96 is asked for, and five rounds say so
        self.assertRegex(str(code), r"\Aless than 0\.95:\n10 ms, 1 Gb/s, loss 0, queue 1: 0\.955 of the bound\Z")

    def test_slow_links_are_asked_two_at_once_and_by_themselves_where_they_miss(self):
        two = ("--round-trips", "10,50", "--rates", "0.3", "--losses", "1e-3", "--sides", "ceiling,known", "--hold", "0.95")
        code, said, asked, rows = self.run_with({"ceiling": 1, "known": 0.97}, *two)
        self.assertEqual((code, asked, len(rows)), (0, ["known", "known"], 2), said)
        code, said, asked, _ = self.run_with({"ceiling": 0.92, "known": 0.90}, *two)
        self.assertEqual((code, asked), (0, ["known", "known"] + 2 * ["known", "ceiling", "known"]), said)
        code, said, asked, _ = self.run_with({"ceiling": 1, "known": 0.90}, *two)
        self.assertEqual((str(code).count("0.900 of the bound"), asked.count("known")), (2, 2 * (1 + 1 + 1 + 5)), said)

    def test_a_goal_that_was_missed_ends_a_run_that_holds(self):
        def of(took):
            return lambda given, goals, tell: tell("a first contact", goals.at_most(took, 3, "%.2f s"), [took])

        goals = ("burst_goals", "all_reduce_goal", "private_goal", "tuned_goals")
        for took, words, expected in ((2.5, ("--hold", "0.95"), 0), (3.5, ("--hold", "0.95"), 1), (3.5, (), 0)):
            for bad in range(len(goals)):
                with contextlib.ExitStack() as patches:
                    for i, name in enumerate(goals):
                        patches.enter_context(mock.patch.object(links, name, of(took if i == bad else 1)))
                    code, said, _, rows = self.run_with({}, "--goals", *words)
                self.assertEqual((code, len(rows)), (expected, 4), said)
                self.assertEqual((said.count("MISSED"), "3 goals met, 1 missed" in said), (int(took > 3), took > 3), said)

    def test_where_no_links_can_be_played_a_test_is_skipped(self):
        lab = mock.MagicMock(side_effect=links.LabMissing("there is no /dev/net/tun"))
        for words, expected in (((), 1), (("--sides", "known", "--hold", "0.95"), 77)):
            code, said, asked, _ = self.run_with({"known": 1}, *words, lab=lab)
            self.assertEqual((code, asked), (expected, []), said)
            self.assertIn("no links can be played: there is no /dev/net/tun", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
