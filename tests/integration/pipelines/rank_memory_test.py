"""Memory of every rank: `check`, `plan` and the run say the same, and for a model whose parameters
dominate it falls with the stage and the number of ranks as the theory says."""
import json
import os
import shutil

from pipeline_case import REFUSED, TORTURE, PipelineCase, main, read_json_lines

LASTING = ["parameters", "gradients", "master weights", "optimizer state"]
# Bytes a parameter over n ranks: value + gradient + master + two moments.
THEORY = {("bf16", 1): lambda n: 6 + 12 / n, ("bf16", 2): lambda n: 2 + 16 / n,
          ("bf16", 3): lambda n: 18 / n,
          ("f32", 1): lambda n: 8 + 8 / n, ("f32", 2): lambda n: 4 + 12 / n,
          ("f32", 3): lambda n: 16 / n}
SAMPLE = [("bf16", 1, 2), ("bf16", 2, 4), ("bf16", 3, 2), ("f32", 1, 4), ("f32", 2, 2),
          ("f32", 3, 4)]
# What libraries pack lies in the heap of others.
MEASURED_ALONE = {"library", "total"}

# A long and fast link, by the keys of links.json.
LINK = dict(measured=1, took_ns=1, round_trip_ns=50000000, median_ns=50000000, p99_ns=50000000, loaded_ns=0, path_mtu=0,
            chunk=0, window=0, buffer=0, choice=0, streams=1, bytes_per_second=[1000000000] * 2,
            burst_bytes_per_second=[1000000000] * 2, loss=[0, 0], loss_most=[-1, -1])


class RankMemory(PipelineCase):
    def job(self, **changes):
        sections = {"model": {"vocab": 512, "blocks": 4, "hidden": 192, "ffn": 512, "heads": 4,
                              "kv_heads": 4},
                    "train": {"sequence": 16, "batch": 8, "micro_batch": 1, "steps": 2}}
        for name, keys in changes.items():
            sections.setdefault(name, {}).update(keys)
        job = self.small_job(**sections)
        if not os.path.exists(self.path("out", "corpus.idx")):
            self.run_longhaul("prepare", job)
        return job

    def ranks_of(self, shape):
        host = os.uname().nodename
        if len(shape) == 1:
            return ["--set", "launch.ranks_per_node=%d" % shape[0]]
        return [word for i, ranks in enumerate(shape)
                for word in ("--set", "site.s%d.hosts=%s:%d" % (i, host, ranks))]

    def checked(self, job, *args):
        """By rank: the lasting kinds and their total, from the table of comments."""
        lines = self.run_longhaul("check", job, *args)[0].splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith(";   rank")) + 1
        rows = []
        while lines[first + len(rows)].startswith("; "):
            words = [int(word) for word in lines[first + len(rows)][1:].split()]
            self.assertEqual(words[0], len(rows))
            rows.append(dict(zip(LASTING + ["total"], words[1:])))
        return rows

    def planned(self, job, *args):
        return json.loads(self.run_longhaul("plan", job, "--json", *args)[0])

    def trained(self, job, *args):
        shutil.rmtree(self.path("out", "checkpoints"), True)
        self.run_longhaul("train", job, *args)
        lines = read_json_lines(self.path("out", "metrics.jsonl"))
        (row,) = [line["memory"] for line in lines if "memory" in line]
        return row

    def compare(self, job, *args):
        """All three; returns what was measured, by rank, and the number of parameters."""
        plan, check, run = (f(job, *args) for f in (self.planned, self.checked, self.trained))
        self.assertEqual(len(run), len(plan["ranks"]))
        self.assertEqual(len(check), len(run))
        for rank, row in enumerate(run):
            self.assertEqual(row["rank"], rank)
            for kind in LASTING:
                self.assertEqual(check[rank][kind], plan["ranks"][rank][kind], (rank, kind))
            for kind, size in plan["ranks"][rank].items():
                if kind in MEASURED_ALONE:
                    continue
                self.assertEqual(row["planned"].get(kind, 0), size, (rank, kind))
                self.assertEqual(row["measured"].get(kind, 0), size, (rank, kind))
            self.assertGreater(row["resident"], row["measured"]["total"] * 0.9)
        return [row["measured"] for row in run], plan["parameters"]

    def test_memory_falls_with_the_stage_and_the_ranks_as_theory_says(self):
        rows = SAMPLE
        if TORTURE:
            rows = [(p, s, n) for p, s in THEORY for n in (2, 4, 8)]
        for precision, stage, ranks in rows:
            with self.subTest(precision=precision, stage=stage, ranks=ranks):
                job = self.job(train={"precision": precision},
                               optimizer={"plugin": "zero%d" % stage})
                measured, parameters = self.compare(job, *self.ranks_of([ranks]))
                expected = THEORY[precision, stage](ranks) * parameters
                for row in measured:
                    held = sum(row.get(kind, 0) for kind in LASTING)
                    self.assertLess(abs(held - expected), 0.05 * expected)
                    if stage > 1:
                        self.assertGreater(row["buckets"], 0)
                    self.assertEqual(stage == 3, row.get("gathered blocks", 0) > 0)
                    self.assertGreater(row["transfers"], 0)

    def test_the_plan_holds_over_unequal_sites_and_uneven_batches(self):
        job = self.job(train={"batch": 8, "micro_batch": 2, "precision": "bf16"},
                       optimizer={"plugin": "zero1"})
        self.compare(job, *self.ranks_of([2, 1]))

    def test_all_ranks_count_the_memory_that_a_record_of_links_asks_for(self):
        """Rank 0 alone can read the record; `plan` reads it, too. One machine plays both sites, so nothing is measured
        and what is allocated later is what links without figures need."""
        job = self.job(train={"precision": "bf16"}, optimizer={"plugin": "zero1"}, comm={"bucket": "1MiB"})
        args = self.ranks_of([2, 2])

        def transfers(ranks):
            return [row.get("transfers", 0) for row in ranks]

        without = transfers(self.planned(job, *args)["ranks"])
        with open(self.path("out", "links.json"), "w") as f:
            json.dump({"version": 1, "links": [dict(
                LINK, sites=["s0", "s1"], addresses=["192.0.2.1", "192.0.2.2"], plugin="tcp",
                tuned="")]}, f)
        known = transfers(self.planned(job, *args)["ranks"])
        self.assertGreater(min(known), max(without))
        # For people both commands tell of the record.
        self.assertRegex(self.run_longhaul("plan", job, *args)[0], r"(?m)^links, as measured .*\n  s0-s1 +50\.00 +8\.000 +8\.000$")
        self.assertRegex(self.run_longhaul("check", job, *args)[0], r"(?m)^; as measured before, s0-s1: 50\.00 ms, 8 Gb/s, ")
        self.assertEqual(transfers(row["planned"] for row in self.trained(job, *args)), known)

    def test_a_plan_takes_of_a_record_of_many_ranks_what_its_own_can_have(self):
        job = self.job(train={"precision": "bf16"}, optimizer={"plugin": "zero1"}, comm={"bucket": "1MiB"})

        def planned(args, **figures):
            with open(self.path("out", "links.json"), "w") as f:
                json.dump({"version": 1, "links": [dict(LINK, sites=["s0", "s1"], addresses=["192.0.2.1", "192.0.2.2"],
                                                        plugin="tcp", tuned="", **figures)]}, f)
            plan = self.planned(job, *args)
            return plan["links"]["sums_s"], [row.get("transfers", 0) for row in plan["ranks"]]

        for each in (1, 2):
            args = self.ranks_of([each, each])
            many = planned(args, together_bytes_per_second=[8000000000] * 2, together_ranks=8)
            self.assertEqual(many, planned(args, together_bytes_per_second=[each * 1000000000] * 2, together_ranks=each))
            self.assertEqual(many, planned(args, together_bytes_per_second=[8000000000] * 2))  # a build that said no number
            self.assertGreater(many[0], 0)

    def test_the_plan_holds_for_breadth_first_accumulation(self):
        changes = {"train": {"batch": 12, "micro_batch": 2, "precision": "f32",
                             "recompute": "full"}, "optimizer": {"plugin": "zero3"}}
        deep = self.planned(self.job(**changes), *self.ranks_of([2]))
        job = self.job(parallel={"accumulation": "breadth"}, **changes)
        wide = self.planned(job, *self.ranks_of([2]))
        self.assertGreater(wide["memory"]["activations"], deep["memory"]["activations"])
        self.compare(job, *self.ranks_of([2]))

    def test_a_check_of_many_ranks_shows_some(self):
        """Of more than 8 ranks the first and the one with the most, of more than 64 the first; what each holds is what its plan has."""
        job = self.job(train={"batch": 72}, optimizer={"plugin": "zero3"})
        for ranks, rest in ((9, ": the first and the largest"), (72, ", which differ by little")):
            lines = self.run_longhaul("check", job, *self.ranks_of([ranks]))[0].splitlines()
            first = next(i for i, line in enumerate(lines) if line.startswith(";   rank")) + 1
            rows = [[int(word) for word in line[1:].split()] for line in lines[first:lines.index("; of %d ranks%s" % (ranks, rest))]]
            held = [[row.get(kind, 0) for kind in LASTING] for row in self.planned(job, *self.ranks_of([ranks]))["ranks"]]
            most = max(range(ranks), key=lambda rank: sum(held[rank])) if ranks < 64 else 0
            self.assertEqual([row[0] for row in rows], sorted({0, most}))
            for row in rows:
                self.assertEqual(row[1:-1], held[row[0]])

    def test_frozen_parameters_have_no_gradient_and_no_state(self):
        job = self.job(train={"precision": "f32"}, optimizer={"plugin": "zero2"},
                       group__embed={"match": "embed*", "frozen": "yes"})
        measured, parameters = self.compare(job, *self.ranks_of([2]))
        frozen = 512 * 192
        expected = 4 * parameters + 12 / 2 * (parameters - frozen)
        for row in measured:
            held = sum(row.get(kind, 0) for kind in LASTING)
            self.assertLess(abs(held - expected), 0.01 * expected)

    def test_a_model_that_is_frozen_as_a_whole_is_refused(self):
        job = self.job(group__all={"match": "*", "frozen": "yes"})
        for ranks in ([1], [2]):
            _, err = self.run_longhaul("train", job, *self.ranks_of(ranks), code=REFUSED)
            self.assertIn("every parameter of the model is frozen", err)

    def test_plan_speaks_of_the_rank_that_is_asked_for(self):
        job = self.job(optimizer={"plugin": "zero3"})
        args = self.ranks_of([3])
        plan = self.planned(job, *args, "--rank", "2")
        self.assertEqual(plan["rank"], 2)
        self.assertEqual(plan["memory"], plan["ranks"][2])
        text = self.run_longhaul("plan", job, *args)[0]
        self.assertIn("total by rank", text)
        error = self.run_longhaul("plan", job, *args, "--rank", "3", code=1)[1]
        self.assertIn("--rank 3: the job has ranks 0 to 2", error)

    def test_a_script_sees_which_ranks_were_bounded(self):
        """Of more than 64 ranks a few are planned, and the one that is asked for; the table says how many."""
        job = self.job(train={"batch": 72})
        plan = self.planned(job, *self.ranks_of([72]), "--rank", "7")
        bounded = [r for r, row in enumerate(plan["ranks"]) if row.get("planned") is False]
        self.assertEqual(len(plan["ranks"]), 72)
        self.assertEqual(len(bounded), 72 - plan["ranks_planned"] - 1)
        self.assertNotIn(0, bounded)
        self.assertNotIn(7, bounded)
        self.assertNotIn("planned", plan["memory"])
        self.assertIn(f"planned: {plan['ranks_planned']} of 72 ranks;", self.run_longhaul("plan", job, *self.ranks_of([72]))[0])


if __name__ == "__main__":
    main()
