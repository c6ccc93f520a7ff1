"""One truth: the same job over any number of ranks, at any ZeRO stage, over any transport and any
division into sites makes the same model. Bits are equal wherever the order of sums is: stages,
transports, chunks and buckets change none; ranks and sites change rounding only."""
import hashlib
import math
import os
import shutil

from pipeline_case import REFUSED, TORTURE, PipelineCase, add_plugin, floats, logical, main, read_json_lines, set_flags

ZEROS = ["zero0", "zero1", "zero2", "zero3"]
# Ranks a site, sites one after the other; a single number is one machine without sites.
SHAPES = [[2], [3], [4], [8], [1, 1], [2, 1], [2, 2], [3, 1], [4, 4], [5, 3], [1, 2, 1]]
# A sample of each column, which a few minutes hold.
SAMPLE = [([2], "zero0", "shm"), ([2], "zero1", "tcp"), ([2], "zero2", "shm"),
          ([2], "zero3", "shm"), ([3], "zero0", "tcp"), ([3], "zero3", "tcp"),
          ([4], "zero1", "shm"), ([4], "zero2", "tcp"), ([8], "zero3", "shm"),
          ([1, 1], "zero0", "tcp"), ([2, 2], "zero1", "tcp"), ([2, 2], "zero3", "shm"),
          ([2, 1], "zero2", "tcp"), ([3, 1], "zero3", "shm"),
          ([3], "zero1", "ib"), ([4], "zero0", "apn"), ([2, 1], "zero3", "apn"), ([2, 2], "zero2", "ib")]
# Over the stand-in of libibverbs, which drives each rank's card by a thread of its own: of few ranks.
RDMA, RDMA_RANKS = ("ib", "apn"), 4
FAKE_VERBS = os.environ["LONGHAUL_FAKE_VERBS"]


def digest(tensors):
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name])
    return total.hexdigest()


def far(a, b):
    """Distance of two tensors, relative to the second."""
    a, b = floats(a), floats(b)
    size = math.sqrt(sum(x * x for x in b))
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b))) / (size or 1)


class OneTruth(PipelineCase):
    def setUp(self):
        super().setUp()
        self.runs = {}
        self.made = 0

    def job(self, steps=30, tied=False, **changes):
        changes.setdefault("train", {}).update({"sequence": 32, "batch": 24, "steps": steps,
                                                "micro_batch": changes["train"].get("micro_batch",
                                                                                    24)})
        changes["model"] = {"blocks": 8, "tied": "yes" if tied else "no"}
        changes.setdefault("optimizer", {})["learning_rate"] = \
            "warmup_cosine(step, peak=1e-3, warmup=4, total=%d)" % steps
        job = self.small_job(**changes)
        if not os.path.exists(self.path("out", "corpus.idx")):
            self.run_longhaul("prepare", job)
        return job

    def train(self, job, shape, zero="zero0", transport="shm", *more):
        """Losses by step, and every logical tensor at the end."""
        folder = "run%d" % self.made
        self.made += 1
        self.link_data(folder)
        args = ["--set", "pipeline.folder=" + folder, "--set", "optimizer.plugin=" + zero]
        host = os.uname().nodename
        if len(shape) > 1:
            for i, ranks in enumerate(shape):
                args += ["--set", "site.s%d.hosts=%s:%d" % (i, host, ranks)]
        elif shape[0] > 1:
            args += ["--set", "launch.ranks_per_node=%d" % shape[0]]
        for scope in ("node", "site", "wan") if sum(shape) > 1 else ():
            # shm is allowed between sites that one machine plays.
            args += ["--set", "transport.%s.plugin=%s" % (scope, transport)]
            if transport not in ("tcp", "apn"):
                args += ["--set", "transport.%s.security=%s" % (scope, "plain" if transport == "shm" else "known")]
        self.run_longhaul("train", job, *args, *more, env=dict(os.environ, LD_LIBRARY_PATH=FAKE_VERBS))
        rows = [r for r in read_json_lines(self.path(folder, "metrics.jsonl")) if "loss" in r]
        steps = sorted(os.listdir(self.path(folder, "checkpoints")))
        last = [s for s in steps if s.startswith("step-")][-1]
        tensors = logical(self.path(folder, "checkpoints", last))
        shutil.rmtree(self.path(folder))
        return [r["loss"] for r in rows], tensors

    def assert_near(self, found, alone, within, what):
        losses, tensors = found
        self.assertEqual(len(losses), len(alone[0]))
        for step, (a, b) in enumerate(zip(losses, alone[0]), 1):
            self.assertLess(abs(a - b), within * abs(b), (what, step, a, b))
        if within > 1e-3:
            return
        for name, data in alone[1].items():
            if "/" not in name:
                self.assertLess(far(tensors[name], data), 1e-3, (what, name))

    def layouts(self):
        if not TORTURE:
            return SAMPLE
        return [(s, z, t) for s in SHAPES for z in ZEROS for t in ("shm", "tcp", *RDMA)
                if t not in RDMA or sum(s) <= RDMA_RANKS]

    def matrix(self, within, **how):
        job = self.job(**how)
        alone = self.train(job, [1])
        bits = {}
        for shape, zero, transport in self.layouts():
            with self.subTest(shape=shape, zero=zero, transport=transport, **how.get("train", {})):
                found = self.train(job, shape, zero, transport)
                known, these = bits.setdefault(str(shape), set()), (digest(found[1]), tuple(found[0]))
                if these not in known:  # the same bits are as near
                    self.assert_near(found, alone, within, (shape, zero, transport))
                known.add(these)
        for shape, different in bits.items():
            self.assertEqual(len(different), 1, "stages or transports differ in bits: %s" % shape)

    def test_every_layout_makes_the_same_model(self):
        self.matrix(1e-4, steps=30 if TORTURE else 12, train={"precision": "f32"})

    def test_every_layout_makes_the_same_tied_model(self):
        if not TORTURE:
            self.skipTest("a list of make torture")
        self.matrix(1e-4, steps=12, tied=True, train={"precision": "f32"})

    def test_every_layout_makes_the_same_model_in_bf16(self):
        if not TORTURE:
            self.skipTest("a list of make torture")
        self.matrix(0.02, steps=12, train={"precision": "bf16"})

    def test_bf16_and_tied_in_one_sample(self):
        job = self.job(steps=12, tied=True, train={"precision": "bf16"})
        alone = self.train(job, [1])
        bits = set()
        for zero, transport in (("zero0", "shm"), ("zero1", "tcp"), ("zero2", "tcp"),
                                ("zero3", "shm")):
            found = self.train(job, [3], zero, transport)
            self.assert_near(found, alone, 0.02, zero)
            bits.add(digest(found[1]))
        self.assertEqual(len(bits), 1)

    def test_chunks_buckets_algorithms_and_a_second_run_change_no_bit(self):
        job = self.job(steps=6, train={"precision": "f32"})
        ways = [[], [], ["comm.bucket=16KiB"], ["comm.bucket=100KiB", "comm.chunk=4KiB"],
                ["comm.algorithm=ring"], ["comm.algorithm=direct"]]
        for i, (shape, zero) in enumerate((([3], "zero0"), ([4], "zero3"), ([2, 1], "zero2"))):
            bits = set()
            # Beside the first, the others by turns; in torture all of them.
            for way in ways if TORTURE else ways[:1] + ways[1 + i::2]:
                more = set_flags(*way)
                bits.add(digest(self.train(job, shape, zero, "tcp", *more)[1]))
            self.assertEqual(len(bits), 1, (shape, zero))

    def test_micro_batches_add_up_in_every_layout(self):
        job = self.job(steps=6, train={"precision": "f32", "micro_batch": 2})
        alone = self.train(job, [1])
        for breadth in ("depth", "breadth"):
            bits = {}
            for zero in ZEROS:
                found = self.train(job, [3], zero, "shm", "--set",
                                   "parallel.accumulation=" + breadth)
                self.assert_near(found, alone, 1e-4, (zero, breadth))
                bits[zero] = digest(found[1])
            self.assertEqual(bits["zero0"], bits["zero1"])
            self.assertEqual(bits["zero2"], bits["zero3"])
            if breadth == "breadth":  # one sum a step at every stage
                self.assertEqual(bits["zero0"], bits["zero2"])

    def test_data_cut_inside_sites_and_repeated_in_each_is_the_same_model(self):
        job = self.job(steps=6, train={"precision": "f32"})
        alone = self.train(job, [1])
        bits = set()
        for zero in ZEROS[1:]:
            found = self.train(job, [2, 2], zero, "tcp", "--set", "optimizer.cut=site")
            self.assert_near(found, alone, 1e-4, zero)
            bits.add(digest(found[1]))
        self.assertEqual(len(bits), 1)

    def test_sites_of_one_rank_have_nothing_to_cut(self):
        job = self.job(steps=3, train={"precision": "f32"})
        whole = digest(self.train(job, [1, 1], "zero0", "tcp")[1])
        for zero in ZEROS[1:]:
            self.assertEqual(digest(self.train(job, [1, 1], zero, "tcp", "--set", "optimizer.cut=site")[1]), whole, zero)

    def test_gradients_that_an_optimizer_keeps_in_bf16(self):
        job = self.small_job(train={"steps": 4, "batch": 8, "micro_batch": 8, "sequence": 16,
                                    "precision": "bf16"},
                             device={"plugin": "reference", "threads": None})
        self.run_longhaul("prepare", job)
        plugins = ["--plugins", add_plugin(self, "optimizers", "half_gradients")]

        def half(shape, stage, size):
            return self.train(job, shape, "half_gradients", "shm", *plugins, "--set",
                              "optimizer.stage=" + stage, "--set", "train.micro_batch=%d" % size)

        alone = self.train(job, [1])
        bits = set()
        for stage in ("whole", "cut"):
            found = half([2], stage, 4)
            self.assert_near(found, alone, 0.02, stage)
            bits.add(digest(found[1]))
        self.assertEqual(len(bits), 1)
        self.assert_near(half([2, 2], "cut", 1), alone, 0.02, "cut inside sites")
        _, said = self.run_longhaul("train", job, *plugins, "--set", "optimizer.plugin=half_gradients",
                                    "--set", "optimizer.stage=apart", "--set",
                                    "launch.ranks_per_node=2", code=REFUSED)
        self.assertIn("spaces 'grad' and 'wide_grad' hold gradients as BF16 and F32", said)


if __name__ == "__main__":
    main()
