"""Products that share an input, as one (LH_DEVICE_PACKS), on the fake device, which asks for them where it is told to: the
losses of `reference` and of products apart, in every place where parameters are cut, kept, frozen or adapted."""
import json
import os

from pipeline_case import TORTURE, PipelineCase, checkpoint_digest, logical, main, set_flags

TWO = ["launch.ranks_per_node=2"]
SITES = ["site.a.hosts=localhost:1", "site.b.hosts=localhost:1"]
FAKE = ["device.plugin=fake", "device.threads=1", "device.delay=10us"]
PACKED = FAKE + ["device.packs=yes"]
BLOCKS, ROUNDS = 2, 4
# Of a block in a micro-batch: q, k and v, forward and both gradients; gate and up likewise.
FEWER = 3 * (3 - 1) + 3 * (2 - 1)


class PackedProducts(PipelineCase):
    def prepared(self, **changes):
        changes.setdefault("device", {}).update({"threads": None})
        changes.setdefault("model", {}).update({"hidden": 64, "ffn": 96})
        changes.setdefault("train", {}).update({"steps": 3, "batch": ROUNDS, "micro_batch": 1})
        job = self.small_job(comm={"bucket": "16KiB"}, **changes)
        self.run_longhaul("prepare", job)
        return job

    def train(self, job, folder, *sets, flags=()):
        if not os.path.isdir(self.path(folder)):
            self.link_data(folder)
        words = set_flags("pipeline.folder=" + folder, *sets)
        self.run_longhaul("train", job, *flags, *words)

    def assert_near(self, folder, other, most=2e-5):
        self.assert_curves_near(folder, other, most)

    def assert_same(self, folder, other, step=3):
        self.assertEqual(self.curve(folder), self.curve(other))
        self.assertTrue(logical(self.step_folder(step, folder)) ==
                        logical(self.step_folder(step, other)), (folder, other))

    def planned(self, job, *sets):
        words = set_flags(*sets)
        return json.loads(self.run_longhaul("plan", job, "--json", *words)[0])

    def fewer(self, job, *sets):
        """By how many calls a step has fewer."""
        apart, packed = (self.planned(job, *device, *sets) for device in (FAKE, PACKED))
        return apart["step"]["calls"] - packed["step"]["calls"]

    def test_losses_are_those_of_reference(self):
        """F32, and BF16, whose columns are half as wide; captured or launched call by call."""
        job = self.prepared()
        for precision, most in (("f32", 2e-5), ("bf16", 2e-2)):
            dtype = "train.precision=" + precision
            self.assertEqual(self.fewer(job, dtype), FEWER * BLOCKS * ROUNDS)
            self.train(job, "reference" + precision, "device.plugin=reference", dtype)
            self.train(job, "packed" + precision, *PACKED, dtype)
            self.assert_near("packed" + precision, "reference" + precision, most)

    def test_every_stage_of_zero_has_the_same_bits(self):
        """Neighbours lie together in stores, in buckets of whole gradients, and where values are gathered."""
        job = self.prepared()
        self.train(job, "alone", *PACKED)
        worlds = [(TWO, [])] + ([(SITES, ["optimizer.cut=site"])] if TORTURE else [])
        for world, more in worlds:
            for stage in range(4):
                folder = "zero%d%d" % (stage, len(world))
                layout = world + ["optimizer.plugin=zero%d" % stage, "parallel.accumulation=breadth"]
                layout += more if stage > 0 else []
                self.assertEqual(self.fewer(job, *layout), FEWER * BLOCKS * ROUNDS // 2)
                self.train(job, folder, *PACKED, *layout, "device.seed=%d" % stage)
                self.assert_near(folder, "alone")
                if stage > 0:
                    self.assert_same(folder, "zero0%d" % len(world))

    def test_recomputed_products_have_the_same_bits(self):
        """And memory is not held longer for a neighbour's sake: rotary positions turn q and k where they lie."""
        job = self.prepared()
        for kind in ("none", "selective", "full"):
            self.train(job, kind, *PACKED, "train.recompute=" + kind)
            self.assert_same(kind, "none")
            apart, packed = (self.planned(job, *device, "train.recompute=" + kind)
                             for device in (FAKE, PACKED))
            bytes_of = [p["memory"]["activations"] for p in (apart, packed)]
            self.assertLessEqual(bytes_of[1], 1.02 * bytes_of[0])

    def test_what_is_frozen_has_no_gradient_to_join(self):
        for name, match, fewer in (("k", "blocks.*.wk", FEWER - 2), ("v", "blocks.*.wv", FEWER - 1),
                                   ("up", "blocks.*.w_up", FEWER - 1)):
            job = self.prepared(group__still={"match": match, "frozen": "yes"})
            self.assertEqual(self.fewer(job), fewer * BLOCKS * ROUNDS, name)
            self.train(job, "reference" + name, "device.plugin=reference")
            self.train(job, "packed" + name, *PACKED)
            self.assert_near("packed" + name, "reference" + name)
            self.train(job, "cut" + name, *PACKED, *TWO, "optimizer.plugin=zero3")
            self.assert_near("cut" + name, "reference" + name)

    def test_adapted_weights(self):
        """Weights that are frozen under an adapter are joined in the forward product."""
        job = self.prepared(adapter__a={"match": "blocks.*.wq, blocks.*.wv", "rank": 4, "alpha": 8})
        self.assertGreater(self.fewer(job), 0)
        self.train(job, "reference", "device.plugin=reference")
        self.train(job, "packed", *PACKED)
        self.assert_near("packed", "reference")

    def test_a_checkpoint_of_products_apart_goes_on(self):
        """Names and pieces are the same, so either goes on from the other's."""
        job = self.prepared()
        self.train(job, "whole", *FAKE)
        self.train(job, "parts", *FAKE, "train.steps=2")
        apart = checkpoint_digest(self.step_folder(2, "parts"))[1]
        self.train(job, "parts", *PACKED, "train.steps=3", flags=["--resume"])
        self.assertEqual(checkpoint_digest(self.step_folder(3, "parts"))[1], apart)
        self.assert_near("parts", "whole")
        self.train(job, "parts", *FAKE, *TWO, "optimizer.plugin=zero3", "train.steps=4",
                   "train.same_bits=no", flags=["--resume"])


if __name__ == "__main__":
    main()
