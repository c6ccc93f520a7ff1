"""Checkpoints of several ranks: any number of them goes on where any other number stopped, one process
reads them, and what SIGTERM and kill -9 of everything leave is whole."""
import json
import os
import random
import shutil
import signal
import subprocess
import time

from pipeline_case import (DONE, REFUSED, TERMINATED, TORTURE, PipelineCase, floats, logical, main,
                           read_json_lines, tensors_of)

WORLDS = [(1, "zero0"), (2, "zero1"), (3, "zero2"), (4, "zero3"), (2, "zero0"), (3, "zero3")]
if TORTURE:
    WORLDS = [(n, "zero%d" % z) for n in (1, 2, 3, 4, 8) for z in range(4)]


class RanksCheckpoint(PipelineCase):
    def prepared(self, **changes):
        changes.setdefault("train", {}).update({"steps": 6, "batch": 5, "micro_batch": 1,
                                                "evaluate_every": 3})
        changes["checkpoint"] = {"every": 3}
        job = self.small_job(**changes)
        self.run_longhaul("prepare", job)
        return job

    def of(self, folder, ranks, zero, *more):
        if not os.path.isdir(self.path(folder)):
            self.link_data(folder)
        return ["--set", "pipeline.folder=" + folder, "--set",
                "launch.ranks_per_node=%d" % ranks, "--set", "optimizer.plugin=" + zero] + list(more)

    def rows(self, folder, key):
        return {r["step"]: r[key] for r in read_json_lines(self.path(folder, "metrics.jsonl"))
                if key in r}

    def evaluations(self, folder):
        return {step: row["loss"] for step, row in self.rows(folder, "evaluation").items()}

    def assert_close(self, folder, alone, evaluations=True):
        for key in ("loss", "gradient_norm"):
            expected = self.rows(alone, key)
            found = self.rows(folder, key)
            self.assertEqual(sorted(found), sorted(expected))
            for step, value in found.items():
                self.assertLess(abs(value - expected[step]), 1e-4 * expected[step],
                                (folder, key, step))
        # The start weights are the same bits, and so is what they make of the held-out data.
        if evaluations:
            self.assertEqual(self.evaluations(folder)[0], self.evaluations(alone)[0])

    def forget(self, folder, step, keep):
        """As if the run had ended at step `keep`."""
        shutil.rmtree(self.step_folder(step, folder))
        os.unlink(self.path(folder, "checkpoints", "latest"))
        self.assertTrue(os.path.isdir(self.step_folder(keep, folder)))

    def test_any_number_of_ranks_goes_on_where_any_other_stopped(self):
        job = self.prepared()
        self.run_longhaul("train", job, *self.of("alone", 1, "zero0"))
        final = logical(self.step_folder(6, "alone"))
        for i, (ranks, zero) in enumerate(WORLDS):
            folder = "from%d%s" % (ranks, zero)
            self.run_longhaul("train", job, *self.of(folder, ranks, zero))
            self.run_longhaul("verify", self.step_folder(3, folder))
            self.assert_close(folder, "alone")
            for k in (1, 2) if TORTURE else (1,):
                then, stage = WORLDS[(i + k) % len(WORLDS)]
                self.forget(folder, 6, 3)
                self.run_longhaul("train", job, "--resume",
                                  *self.of(folder, then, stage, "--set", "train.same_bits=no"))
                self.assert_close(folder, "alone")
                names = logical(self.step_folder(6, folder))
                self.assertEqual(sorted(names), sorted(final))
                for name, data in names.items():
                    for a, b in zip(floats(data), floats(final[name])):
                        self.assertLess(abs(a - b), 1e-3 * max(1, abs(b)), name)

    def test_token_weights_are_divided_by_the_sum_over_all_ranks(self):
        # Documents apart: how many tokens count differs from rank to rank. 7 sequences over 4 ranks.
        job = self.prepared(data={"documents": "apart"})
        sets = ["--set", "train.batch=7", "--set", "train.micro_batch=7"]
        self.run_longhaul("train", job, *self.of("alone", 1, "zero0", *sets))
        for ranks, passes in ((4, 7), (3, 7), (2, 1), (8, 7)):
            folder = "apart%d" % ranks
            self.run_longhaul("train", job,
                              *self.of(folder, ranks, "zero1", "--set", "train.batch=7", "--set",
                                       "train.micro_batch=%d" % passes))
            self.assert_close(folder, "alone", evaluations=passes == 7)

    def test_a_file_that_is_not_there_is_refused_as_one_rank_refuses_it(self):
        job = self.prepared()
        more = self.of("gone", 2, "zero1")
        os.unlink(self.path("gone", "corpus.bin"))
        _, said = self.run_longhaul("train", job, *more, code=REFUSED)
        self.assertEqual(said.count("gone/corpus.bin: cannot open"), 1, said)

    def test_another_number_of_ranks_asks_for_other_bits(self):
        job = self.prepared()
        self.run_longhaul("train", job, *self.of("two", 2, "zero1"))
        self.forget("two", 6, 3)
        _, err = self.run_longhaul("train", job, "--resume", *self.of("two", 1, "zero1"),
                                   code=REFUSED)
        self.assertIn("was made with 'launch.ranks = 2', now it is 'launch.ranks = 1'", err)

    def test_another_order_of_sums_asks_for_other_bits(self):
        job = self.prepared()

        def sites(tokyo, osaka):
            return self.of("sites", 1, "zero2", "--set", "site.tokyo.hosts=localhost:%d" % tokyo, "--set",
                           "site.osaka.hosts=localhost:%d" % osaka, "--set", "train.micro_batch=1")

        self.run_longhaul("train", job, *sites(1, 2), "--set", "parallel.accumulation=breadth")
        self.forget("sites", 6, 3)
        for changed, named in ((sites(2, 1) + ["--set", "parallel.accumulation=breadth"], "ranks of sites = 2 + 1"),
                               (sites(1, 2) + ["--set", "parallel.accumulation=breadth", "--set", "comm.border=bf16"],
                                "comm.border = bf16"),
                               (sites(1, 2) + ["--set", "parallel.accumulation=breadth", "--set", "comm.bits=ordered"],
                                "comm.bits = ordered"),
                               (sites(1, 2), "parallel.accumulation = depth")):
            _, err = self.run_longhaul("train", job, "--resume", *changed, code=REFUSED)
            self.assertIn("now it is '%s': that would be another run" % named, err)

    def test_weights_that_are_loaded_are_saved_again_bit_for_bit(self):
        # A rate of 0 leaves weights as they are; what was saved by 3 is loaded by 2.
        job = self.prepared()
        self.run_longhaul("train", job, *self.of("still", 3, "zero3"))
        before = logical(self.step_folder(3, "still"))
        self.forget("still", 6, 3)
        self.run_longhaul("train", job, "--resume",
                          *self.of("still", 2, "zero2", "--set", "train.same_bits=no", "--set",
                                   "optimizer.learning_rate=constant(0)"))
        after = logical(self.step_folder(6, "still"))
        for name in before:
            if "/" not in name:
                self.assertEqual(before[name], after[name], name)

    def test_one_process_evaluates_and_exports_what_ranks_saved(self):
        job = self.prepared()
        self.run_longhaul("train", job, *self.of("out", 3, "zero2"))
        whole = logical(self.step_folder(6, "out"))
        self.run_longhaul("export", job, "--set", "export.dtype=f32")
        exported = tensors_of(self.path("out", "hf", "model.safetensors"))
        sizes = sorted(len(data) for name, data in whole.items() if "/" not in name)
        self.assertEqual(sorted(len(t[2]) for t in exported.values()), sizes)
        self.assertEqual(exported["model.embed_tokens.weight"][2], whole["embed"])
        self.assertEqual(exported["model.norm.weight"][2], whole["norm"])

    def ranks_of(self, process):
        out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)],
                             capture_output=True, text=True).stdout
        return [int(p) for p in out.split()]

    def long_run(self, folder):
        """Long enough for a signal to come between saves."""
        return self.of(folder, 3, "zero1", "--set", "train.steps=40", "--set",
                       "checkpoint.every=4", "--set", "train.sequence=64", "--set",
                       "train.batch=12", "--set", "train.micro_batch=4")

    def test_sigterm_saves_on_all_ranks_and_the_bits_go_on(self):
        job = self.prepared()
        self.run_longhaul("train", job, *self.long_run("whole"))
        process = self.start("train", job, *self.long_run("cut"))
        self.wait_for(lambda: os.path.exists(self.path("cut", "checkpoints", "latest")), process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        self.assertIn(process.returncode, (TERMINATED, DONE))
        self.run_longhaul("train", job, "--resume", *self.long_run("cut"))
        self.assertEqual(logical(self.step_folder(40, "cut")),
                         logical(self.step_folder(40, "whole")))

    def test_ranks_that_die_at_any_moment_cost_nothing_that_was_saved(self):
        job = self.prepared()
        often = ["--set", "checkpoint.every=1", "--set", "checkpoint.keep=3"]
        self.run_longhaul("train", job, *self.long_run("whole"))
        whole = logical(self.step_folder(40, "whole"))
        chance, folder, struck = random.Random(5), self.path("cut", "checkpoints"), 0
        for _ in range(40 if TORTURE else 4):
            if os.path.isdir(self.step_folder(40, "cut")):  # it came to its end: once more
                self.assertEqual(logical(self.step_folder(40, "cut")), whole)
                shutil.rmtree(folder)
            process = self.start("train", job, "--resume", *self.long_run("cut"), *often)
            self.wait_for(lambda: self.ranks_of(process), process)
            time.sleep(chance.random() * 0.5)
            ranks = self.ranks_of(process)
            if ranks:
                try:
                    os.kill(chance.choice(ranks), signal.SIGKILL)
                    struck += 1
                except ProcessLookupError:
                    pass
            process.communicate(timeout=120)
            steps = [n for n in os.listdir(folder) if n.startswith("step-")] \
                if os.path.isdir(folder) else []
            if steps:
                self.run_longhaul("verify", os.path.join(folder, max(steps)))
        self.assertGreater(struck, 0)
        self.run_longhaul("train", job, "--resume", *self.long_run("cut"), *often)
        self.assertEqual([n for n in os.listdir(folder)
                          if n.startswith((".tmp-", ".del-", "damaged-"))], [])
        self.assertEqual(logical(self.step_folder(40, "cut")), whole)

    def test_damage_that_one_rank_finds_makes_all_take_the_checkpoint_before(self):
        job = self.prepared()
        for zero in ("zero0", "zero3"):
            cut = self.of("cut" + zero, 2, zero)
            self.run_longhaul("train", job, *self.of("whole" + zero, 2, zero))
            self.run_longhaul("train", job, *cut)
            newest = self.step_folder(6, "cut" + zero)
            with open(os.path.join(newest, sorted(n for n in os.listdir(newest)
                                                  if n.startswith("shard-"))[-1]), "r+b") as f:
                f.seek(-100, os.SEEK_END)
                f.write(b"\xff" * 8)
            said = "".join(self.run_longhaul("train", job, "--resume", *cut))
            self.assertIn("step-%012d is skipped" % 6, said)
            self.assertEqual(logical(self.step_folder(6, "cut" + zero)),
                             logical(self.step_folder(6, "whole" + zero)))

    def test_kill_of_everything_goes_on_to_the_same_bits(self):
        job = self.prepared()
        self.run_longhaul("train", job, *self.long_run("whole"))
        process = self.start("train", job, *self.long_run("cut"))
        self.wait_for(lambda: os.path.exists(self.path("cut", "checkpoints", "latest")), process)
        for pid in self.ranks_of(process) + [process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate()
        time.sleep(0.05)
        self.run_longhaul("train", job, "--resume", *self.long_run("cut"))
        self.assertEqual(logical(self.step_folder(40, "cut")),
                         logical(self.step_folder(40, "whole")))



main()
