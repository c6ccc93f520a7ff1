"""Models whose products are taken apart and joined (columns, concat, heads: examples/specs/phi3.ini and mla.ini) through the
commands: what is recomputed, cut over ranks, packed or made for a device with memory of its own has the same bits or losses."""
import os

from pipeline_case import SOURCE, TORTURE, PipelineCase, logical, main, set_flags

SPECS = os.path.join(SOURCE, "examples", "specs")
SIZES = {"mla": {"q_rank": 24, "kv_rank": 16, "still": 8, "turning": 8, "value_dim": 12},
         "phi3": {"kv_heads": 2, "window": 20}}
FAKE = ["device.plugin=fake", "device.delay=10us"]
PACKED = FAKE + ["device.packs=yes"]
TWO = ["launch.ranks_per_node=2"]
STEPS = 3


class Views(PipelineCase):
    def prepared(self, spec):
        model = dict(SIZES[spec], plugin=None, kv_heads=SIZES[spec].get("kv_heads"))
        path = self.small_job(model=model, train={"steps": STEPS}, device={"threads": None}, comm={"bucket": "16KiB"})
        with open(path) as f:
            text = f.read()
        job = self.write("views.ini", "include = %s/%s.ini\n%s" % (SPECS, spec, text))
        self.run_longhaul("prepare", job)
        return job

    def train(self, job, folder, *sets):
        self.link_data(folder)
        words = set_flags("pipeline.folder=" + folder, *sets)
        self.run_longhaul("train", job, *words)
        return logical(self.step_folder(STEPS, folder))

    def assert_near(self, folder, other, most):
        self.assertEqual(len(self.curve(folder)), STEPS)
        self.assert_curves_near(folder, other, most)

    def test_bits_are_the_same_whatever_is_recomputed_or_cut(self):
        for spec in SIZES:
            for precision in ("f32", "bf16"):
                with self.subTest(spec=spec, precision=precision):
                    job = self.prepared(spec)
                    how = "train.precision=" + precision
                    bits = self.train(job, "none", how)
                    for kind in ("selective", "full"):
                        self.assertTrue(self.train(job, kind, how, "train.recompute=" + kind) == bits, kind)
                    two = self.train(job, "zero0", how, *TWO)
                    for stage in (1, 2, 3) if TORTURE else (3,):
                        name = "zero%d" % stage
                        self.assertTrue(self.train(job, name, how, *TWO, "optimizer.plugin=" + name) == two, name)
                    self.assert_near("zero0", "none", 2e-5 if precision == "f32" else 2e-2)
                    self.doCleanups()
                    self.setUp()

    def test_devices_with_memory_of_their_own_agree(self):
        for spec in SIZES:
            for precision, most in (("f32", 2e-5), ("bf16", 2e-2)):
                with self.subTest(spec=spec, precision=precision):
                    job = self.prepared(spec)
                    how = "train.precision=" + precision
                    self.train(job, "reference", how, "device.plugin=reference")
                    self.train(job, "cpu", how)
                    self.train(job, "apart", how, *FAKE)
                    self.train(job, "packed", how, *PACKED, "train.recompute=selective")
                    for name in ("cpu", "apart", "packed"):
                        self.assert_near(name, "reference", most)
                    self.doCleanups()
                    self.setUp()


main()
