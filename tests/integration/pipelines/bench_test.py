"""Benchmarks run, count what they say they count, and take turns; without peers, as short as can be."""
import json
import os
import subprocess
import sys
import unittest

from pipeline_case import BINARY, SOURCE, PipelineCase, main

BENCH = os.path.join(SOURCE, "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, BENCH)
import llama_step
import turns


@unittest.skipIf(os.environ.get("LONGHAUL_SANITIZED") == "1", "what is measured is not the program")
class Bench(PipelineCase):
    def bench(self, name, *more):
        """The JSON of a benchmark, and what it printed."""
        out = self.path(name + ".json")
        done = subprocess.run([sys.executable, os.path.join(BENCH, name), "--longhaul", BINARY,
                               "--no-peers", "--rounds", "2", "--folder", self.folder, "--json",
                               out, *more], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(out) as f:
            return json.load(f), done.stdout

    def small(self, name, *more):
        return self.bench(name, "--models", "1.07M", "--precisions", "bf16", *more)

    def test_a_step_is_set_beside_the_limit_of_the_same_rounds(self):
        report, said = self.small("step", "--steps", "2", "--warm", "1", "--quick-limit")
        result = report["results"][0]
        self.assertEqual([len(result["rounds"][side]) for side in ("longhaul", "limit")], [2, 2])
        self.assertGreater(result["share_percent"], 0)
        self.assertIsNone(result["ratio"])
        self.assertIn("no figure", said)

    def test_the_first_step_ends_after_it_began(self):
        report, _ = self.small("startup")
        for row in report["results"][0]["rounds"]["longhaul"]:
            self.assertGreater(row["first_step_s"], row["step_s"] / 2)

    def test_memory_is_at_least_what_the_parameters_need(self):
        report, _ = self.small("memory", "--steps", "1", "--warm", "0")
        # Values and gradients, master weights, two moments: 2 or 4 bytes each.
        needed = 18 * llama_step.parameters(llama_step.MODELS["1.07M"]) / 2 ** 20
        self.assertGreater(report["results"][0]["peak_mib"]["longhaul"], needed)

    def test_prepare_is_measured_by_workers(self):
        report, said = self.bench("prepare", "--mb", "2")
        self.assertIn("longhaul, 2 processors", report["results"][0]["medians_s"])
        self.assertIn(">= 1.80x", said)

    def test_a_step_that_is_planned_says_how_long_that_took(self):
        report, said = self.bench("planning", "--step", "--blocks", "2", "--micro-batches", "2")
        rows = report["results"][0]["rounds"]
        self.assertEqual(len(rows), 2)
        for row in rows:
            self.assertGreater(row["planning_s"], 0)
            self.assertLess(row["planning_s"], row["s"])
        self.assertIn("2 blocks, 2 micro-batches", said)
        self.assertNotIn("goals", said)  # those are of the whole size

    def test_the_models_have_as_many_parameters_as_pytorch_counts(self):
        # By sum(x.numel()) over LlamaForCausalLM of these shapes.
        counted = {"1.07M": 1066112, "16.9M": 16913280, "134M": 134105856}
        for name, model in llama_step.MODELS.items():
            self.assertEqual(llama_step.parameters(model), counted[name], name)

    def test_sides_take_turns(self):
        calls = []
        sides = {name: (lambda name=name: calls.append(name)) for name in "ABC"}
        turns.in_turn(sides, 2)
        self.assertEqual("".join(calls), "ABCABC")

    def test_a_goal_is_met_missed_or_without_a_figure(self):
        goals = turns.Goals()
        self.assertNotIn("MISSED", goals.at_least(2.0, 2))
        self.assertIn("MISSED", goals.at_most(2.0, 1.9))
        goals.at_least(None, 3)
        self.assertEqual((goals.met, goals.missed, goals.open), (1, 1, 1))
        self.assertEqual(goals.closing(), 1)


main()
