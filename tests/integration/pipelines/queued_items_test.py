"""What the core does for a device that works off queues, each with two and with four ranks on the fake device
(random delays, memory out of the host's reach). The device counts what it is asked for (`[device] tells`), and a
checkpoint names the kernel of each call: so each test shows that what it is about was there, and what became of
the bits. That a step is queued before the one before it is told is in queued_ranks_test.py. Outside of the long lists
a test takes one of the two worlds, by turns."""
import json
import os
import re

from pipeline_case import REFUSED, TORTURE, PipelineCase, logical, main, read_json_lines, set_flags

WORLDS = {"two": (2, ["launch.ranks_per_node=2", "optimizer.plugin=zero3"]),
          "four": (4, ["launch.ranks_per_node=4", "optimizer.plugin=zero2", "parallel.accumulation=breadth"])}
FAKE = ["device.plugin=fake", "device.delay=30us", "device.tells=yes"]
HALF = ["train.precision=bf16", "train.logits=compute"]
TALLY = re.compile(r"device (\d+): (\d+) calls bound, (\d+) launched, (\d+) of them misaligned, (\d+) of whole rows; "
                   r"(\d+) kernels timed; (\d+) copies up, (\d+) down, (\d+) of them beside kernels, through (\d+) slots")
TALLIED = ("index", "bound", "launched", "misaligned", "whole_rows", "timed", "ups", "downs", "beside", "slots")


class QueuedItems(PipelineCase):
    def setUp(self):
        super().setUp()
        os.environ["XDG_CACHE_HOME"] = self.path("cache")
        self.addCleanup(os.environ.pop, "XDG_CACHE_HOME")
        tests = sorted(name for name in dir(self) if name.startswith("test_"))
        mine = tests.index(self._testMethodName) % len(WORLDS)
        self.worlds = WORLDS if TORTURE else dict([list(WORLDS.items())[mine]])

    def prepared(self, **changes):
        changes.setdefault("train", {}).update({"steps": 6, "batch": 8, "micro_batch": 1})
        changes.setdefault("checkpoint", {}).update({"every": 3})
        changes.setdefault("device", {}).update({"threads": 1})
        job = self.small_job(comm={"bucket": "16KiB"}, **changes)
        self.run_longhaul("prepare", job)
        return job

    def train(self, job, folder, *sets, flags=(), **how):
        if not os.path.isdir(self.path(folder)):
            self.link_data(folder)
        words = set_flags("pipeline.folder=" + folder, *sets)
        return self.run_longhaul("train", job, *flags, *words, **how)[1]

    def planned(self, job, *sets):
        words = set_flags(*sets)
        return json.loads(self.run_longhaul("plan", job, "--json", *words)[0])

    def log(self, folder, rank=0):
        with open(self.path(folder, "train.log" if rank == 0 else "rank-%d.log" % rank)) as f:
            return f.read()

    def tallies(self, folder, ranks):
        """By rank: what its device has counted."""
        found = []
        for rank in range(ranks):
            (numbers,) = TALLY.findall(self.log(folder, rank))
            found.append(dict(zip(TALLIED, map(int, numbers))))
        return found

    def kernels(self, folder, step=6):
        """Of a checkpoint: call -> kernel and variant."""
        with open(os.path.join(self.step_folder(step, folder), "manifest.json")) as f:
            lines = json.load(f)["variants"].splitlines()
        return dict(line.split(" = ") for line in lines)

    def ops(self, folder):
        return {call.split()[0] for call in self.kernels(folder)}

    def assert_same(self, folder, other, steps=(3, 6)):
        self.assertEqual(self.curve(folder), self.curve(other))
        for step in steps:
            self.assertEqual(logical(self.step_folder(step, folder)), logical(self.step_folder(step, other)),
                             (folder, other, step))

    def test_kernels_are_told_and_copies_go_beside_steps(self):
        """Every call is bound, lies where it was said to, and knows that documents are whole rows; each rank has the
        device of its number; weights and what is saved go through two slots, the latter beside the passes."""
        job = self.prepared()
        for name, (ranks, world) in self.worlds.items():
            self.train(job, name + "cpu", *world, *HALF)
            self.train(job, name, *world, *HALF, *FAKE)
            self.assert_same(name, name + "cpu")
            found = self.tallies(name, ranks)
            self.assertEqual([t["index"] for t in found], list(range(ranks)))
            for t in found:
                self.assertGreater(t["bound"], 100)
                self.assertGreater(t["launched"], t["bound"])
                self.assertGreater(t["whole_rows"], 0)
                self.assertGreater(t["ups"], 0)
                self.assertGreater(t["downs"], 0)
                self.assertEqual(t["slots"], 2)
            # Step 3 is copied beside step 4, step 6 with nothing behind it.
            self.assertGreater(sum(t["beside"] for t in found), 0)
            self.assertTrue(all("@" in call for call in self.kernels(name)))

    def test_documents_of_any_length_have_no_whole_rows(self):
        job = self.prepared(data={"documents": "apart"}, train={"max_documents": 8})
        for name, (ranks, world) in self.worlds.items():
            self.train(job, name + "cpu", *world)
            self.train(job, name, *world, *FAKE)
            self.assert_same(name, name + "cpu")
            self.assertEqual([t["whole_rows"] for t in self.tallies(name, ranks)], [0] * ranks)

    def test_memory_that_misses_its_alignment_is_refused(self):
        job = self.prepared()
        for name, (_, world) in self.worlds.items():
            said = self.train(job, name, *world, *FAKE, "device.misplaced=32", code=REFUSED)
            self.assertIn("and not on 64 bytes, as the device says of all the memory that it gives", said)

    def test_the_head_is_cut_by_memory(self):
        """Logits of 16,384 tokens a rank and 512 words are 32 MiB: two chunks where a 32nd of the device's memory is
        less, else one. The sums of the head's gradient are longer then, and the losses near."""
        job = self.prepared(train={"sequence": 64}, checkpoint={"every": 0})
        for name, (ranks, world) in self.worlds.items():
            large = ["train.batch=%d" % (256 * ranks), "train.micro_batch=256", "train.steps=2"]
            few = ["device.plugin=fake", "device.delay=30us"]
            calls = [self.planned(job, *world, *large, *few, "device.memory=" + memory)["step"]["calls"]
                     for memory in ("0", "3GiB")]
            self.assertGreater(calls[0], calls[1])
            self.train(job, name + "cpu", *world, *large)
            self.train(job, name + "cut", *world, *large, *few)
            self.train(job, name + "whole", *world, *large, *few, "device.memory=3GiB")
            self.assertEqual(self.curve(name + "cut"), self.curve(name + "cpu"))
            self.assert_curves_near(name + "whole", name + "cut", 1e-5)

    def assert_lacks(self, job, op, parts, *sets):
        """Without a kernel for the fused op its parts stand there, with the same bits and more calls."""
        for name, (_, world) in self.worlds.items():
            folder = name + op
            self.train(job, folder, *world, *sets, *FAKE)
            self.train(job, folder + "lacks", *world, *sets, *FAKE, "device.lacks=" + op)
            self.assertIn(op, self.ops(folder))
            self.assertNotIn(op, self.ops(folder + "lacks"))
            self.assertLessEqual(set(parts), self.ops(folder + "lacks"))
            self.assert_same(folder, folder + "lacks")
            calls = [self.planned(job, *world, *sets, *FAKE, *more)["step"]["calls"]
                     for more in ([], ["device.lacks=" + op])]
            self.assertLess(calls[0], calls[1])

    def test_cross_entropy_in_one_pass(self):
        self.assert_lacks(self.prepared(), "cross_entropy", ["ce_stats", "ce_loss", "ce_grad"], *HALF)

    def test_a_residuals_gradient_in_the_norms(self):
        self.assert_lacks(self.prepared(), "rms_norm_grad_add", ["rms_norm_grad", "add"], *HALF)
        gpt2 = self.prepared(model={"plugin": "gpt2", "ffn": None, "kv_heads": None})
        self.assert_lacks(gpt2, "layer_norm_grad_add", ["layer_norm_grad", "add"], *HALF)

    def test_products_that_share_an_input_are_one(self):
        job = self.prepared(model={"hidden": 64, "ffn": 96})
        for name, (ranks, world) in self.worlds.items():
            calls = [self.planned(job, *world, *FAKE, *more)["step"]["calls"]
                     for more in ([], ["device.packs=yes"])]
            # Of a block in a micro-batch q, k and v, gate and up: forward and both gradients.
            self.assertEqual(calls[0] - calls[1], 3 * (2 + 1) * 2 * (8 // ranks))
            self.train(job, name, *world, *FAKE)
            self.train(job, name + "packs", *world, *FAKE, "device.packs=yes")
            self.assert_curves_near(name + "packs", name, 2e-5)
            # Rotary positions turn q and k where they lie as columns, and their kernels know it.
            self.assertTrue(any(re.match(r"rope .*/\d+@\d+ .* -> .*/\d+~1@", call) for call in self.kernels(name + "packs")))
            self.assertFalse(any("~" in call for call in self.kernels(name) if call.startswith("rope ")))
            self.train(job, name + "again", *world, *FAKE, "device.packs=yes", "device.seed=7")
            self.assert_same(name + "again", name + "packs")

    def test_all_ranks_take_what_rank_0_has_timed(self):
        """The fake's candidates have the same bits, and a clock takes the last; none but rank 0 asks it."""
        job = self.prepared()
        for name, (ranks, world) in self.worlds.items():
            few = world + FAKE + ["device.candidates=3"]
            self.train(job, name, *few)
            before = self.planned(job, *few, "device.tune=yes")
            self.train(job, name + "timed", *few, "device.tune=yes")
            self.assert_same(name + "timed", name)
            guessed, timed = self.kernels(name), self.kernels(name + "timed")
            products = {call for call in timed if call.startswith("matmul ")}
            for call in timed:
                kinds = [table[call].split() for table in (guessed, timed)]
                self.assertEqual(kinds[0][0], kinds[1][0])
                self.assertEqual(int(kinds[1][1]) - int(kinds[0][1]), 2 if call in products else 0)
            self.assertEqual([t["timed"] for t in self.tallies(name + "timed", ranks)],
                             [len(products)] + [0] * (ranks - 1))
            said = [re.findall(r"tune: (.*)", self.log(name + "timed", rank)) for rank in range(ranks)]
            self.assertRegex(said[0][0], r"^%d kernels timed in " % len(products))
            self.assertEqual(said[0][1:], ["rank 0 has %d kernels as rank 0 timed them" % len(products)])
            for rank in range(1, ranks):
                self.assertEqual(said[rank], ["rank %d has %d kernels as rank 0 timed them" % (rank, len(products))])
            self.assert_planned(before, name + "timed")
            # A candidate of the clock's needs more than a guessed one.
            self.assertGreater(self.memory(name + "timed")[0]["scratch"], self.memory(name)[0]["scratch"])
            # What is known now, a plan counts; and neither a run nor a resume times it anew.
            self.assert_planned(self.planned(job, *few, "device.tune=yes"), name + "timed")
            self.train(job, name + "again", *few, "device.tune=yes")
            self.train(job, name + "parts", *few, "device.tune=yes", "train.steps=3")
            refused = self.train(job, name + "parts", *few, flags=["--resume"], code=REFUSED)
            self.assertIn("device.tune", refused)
            self.train(job, name + "parts", *few, "device.tune=yes", flags=["--resume"])
            for folder in (name + "again", name + "parts"):
                self.assertEqual(self.kernels(folder), timed)
                self.assert_same(folder, name, (6,))
            self.assertEqual([t["timed"] for t in self.tallies(name + "again", ranks)], [0] * ranks)
            self.forget()

    def forget(self):
        folder = self.path("cache", "longhaul")
        for file in os.listdir(folder):
            os.remove(os.path.join(folder, file))

    def memory(self, folder):
        """By rank, measured."""
        (rows,) = [line["memory"] for line in read_json_lines(self.path(folder, "metrics.jsonl")) if "memory" in line]
        return [row["measured"] for row in rows]

    def assert_planned(self, plan, folder):
        """What a run had in the end is within 3 % of the plan, and no more."""
        measured = self.memory(folder)
        self.assertEqual(len(plan["ranks"]), len(measured))
        for planned, had in zip(plan["ranks"], measured):
            for kind in set(planned) - {"library", "total"}:
                self.assertLessEqual(had.get(kind, 0), planned[kind], kind)
                self.assertLessEqual(0.97 * planned[kind], had.get(kind, 0), kind)

    def test_kernels_that_are_not_ordered_are_let_in_by_name(self):
        job = self.prepared()
        loose = FAKE + ["device.unordered=yes"]
        for name, (_, world) in self.worlds.items():
            self.train(job, name, *world, *FAKE)
            self.train(job, name + "ordered", *world, *loose)
            self.assert_same(name + "ordered", name)
            self.train(job, name + "loose", *world, *loose, "train.deterministic=no")
            self.assertIn("deterministic = no: two runs may differ in their bits", self.log(name + "loose"))
            self.assertIn("matmul.unordered", {kernel.split()[0] for kernel in self.kernels(name + "loose").values()})
            self.assertNotEqual(logical(self.step_folder(6, name + "loose")), logical(self.step_folder(6, name)))
            self.assert_curves_near(name + "loose", name, 1e-4)
            said = self.train(job, name + "loose", *world, *loose, "train.steps=7", flags=["--resume"], code=REFUSED)
            self.assertIn("train.deterministic", said)

    def test_which_device_a_rank_has(self):
        job = self.prepared()
        for name, (ranks, world) in self.worlds.items():
            few = world + FAKE + ["train.steps=1", "checkpoint.every=0"]
            self.train(job, name + "one", *few, "device.index=0", "device.devices=1")
            self.assertEqual([t["index"] for t in self.tallies(name + "one", ranks)], [0] * ranks)
            self.train(job, name, *few, "device.devices=%d" % ranks)
            self.assertEqual([t["index"] for t in self.tallies(name, ranks)], list(range(ranks)))
            self.assertEqual(self.curve(name), self.curve(name + "one"))
            said = self.train(job, name + "few", *few, "device.devices=%d" % (ranks - 1), code=REFUSED)
            self.assertIn("this machine has %d fake devices, number %d is wanted" % (ranks - 1, ranks - 1), said)
            self.assertFalse(os.path.exists(self.path(name + "few", "metrics.jsonl")))


if __name__ == "__main__":
    main()
