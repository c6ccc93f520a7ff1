"""What sums cross a border as: losses beside those of F32 at every stage, the bits of int8 at any way and
after a resume, and the bytes that a plan says."""
import json
import os
import shutil

from pipeline_case import DATA, NOT_FINITE, REFUSED, TORTURE, PipelineCase, add_plugin, logical, main, read_json_lines, set_flags

STEPS = 30
STAGES = {"zero0": (), "zero1": (), "zero2": (), "zero3": (), "site": ("optimizer.cut=site",)}


class Borders(PipelineCase):
    def prepared(self, steps=STEPS, **changes):
        job = self.small_job(train={"steps": steps, "batch": 4, "micro_batch": 1},
                             checkpoint={"every": 3}, comm={"bucket": "16KiB"},
                             optimizer={"learning_rate": "warmup_cosine(step, peak=1e-2, warmup=2, total=30)"}, **changes)
        self.run_longhaul("prepare", job)
        return job

    def of(self, folder, stage, border, *more, sites=(1, 1)):
        if not os.path.isdir(self.path(folder)):
            self.link_data(folder)
        sets = ("pipeline.folder=" + folder, "site.tokyo.hosts=localhost:%d" % sites[0],
                "site.osaka.hosts=localhost:%d" % sites[1], "comm.border=" + border,
                "optimizer.plugin=" + ("zero1" if stage == "site" else stage)) + STAGES.get(stage, ()) + more
        return set_flags(*sets)

    def losses(self, folder):
        return [r["loss"] for r in read_json_lines(self.path(folder, "metrics.jsonl")) if "loss" in r]

    def forget(self, folder, step):
        """As if the run had ended before that step."""
        shutil.rmtree(self.step_folder(step, folder))
        os.unlink(self.path(folder, "checkpoints", "latest"))

    def test_losses_stay_beside_those_of_f32_at_every_stage(self):
        job = self.prepared()
        for stage in STAGES:
            sites = (2, 2) if stage == "site" else (1, 1)
            curves = {}
            for border in ("f32", "bf16", "int8"):
                folder = stage + border
                self.run_longhaul("train", job, *self.of(folder, stage, border, "checkpoint.every=0", sites=sites))
                curves[border] = self.losses(folder)
                self.assertEqual(len(curves[border]), STEPS)
            self.assertLess(curves["f32"][-1], 0.9 * curves["f32"][0])
            for border in ("bf16", "int8"):
                self.assertNotEqual(curves[border], curves["f32"])
                worst = max(abs(a - b) / b for a, b in zip(curves[border], curves["f32"]))
                print("%s, %s: at most %.3f %% from f32" % (stage, border, 100 * worst))
                self.assertLess(worst, 0.02, (stage, border))

    def test_losses_after_300_steps_are_those_of_f32(self):
        steps, last = 300, 20
        rate = "warmup_cosine(step, peak=%s, warmup=20, total=300)"
        changes = {"train": {"steps": steps, "batch": 4, "micro_batch": 2},
                   "optimizer": {"learning_rate": rate % "2e-3"}}
        if TORTURE:
            # At a peak of 1e-3 losses part by 0.6 % where only micro-batches are halved (+0.4 % by a border of BF16,
            # +0.1 % by one of INT8), which hides what is asked here; at 3e-4 by 0.014 % (measured with a batch of 8).
            changes = {"model": {"blocks": 6, "hidden": 384, "ffn": 1024, "heads": 6, "kv_heads": 6, "max_tokens": 128},
                       "train": {"steps": steps, "batch": 4, "micro_batch": 2, "sequence": 128, "precision": "bf16"},
                       "prepare": {"input": DATA + "/tinystories-1000.jsonl"},
                       "optimizer": {"learning_rate": rate % "3e-4"}}
        job = self.small_job(**changes)
        self.run_longhaul("prepare", job)
        ends = {}
        for border in ("f32", "bf16", "int8"):
            # Bits are those of any transport; 43 MB a step and way are sealed and opened where they go over tcp.
            over = ("transport.wan.plugin=shm", "transport.wan.security=plain") if TORTURE and border != "int8" else ()
            self.run_longhaul("train", job, *self.of(border, "zero1", border, *over))
            curve = self.losses(border)
            self.assertEqual(len(curve), steps)
            ends[border] = sum(curve[-last:]) / last
            self.assertLess(ends[border], 0.75 * curve[0])
        print("loss after %d steps:" % steps, ", ".join("%s %.5f" % row for row in ends.items()))
        self.assertLess(abs(ends["bf16"] - ends["f32"]) / ends["f32"], 0.002)
        self.assertLess(abs(ends["int8"] - ends["bf16"]) / ends["bf16"], 0.005)

    def test_int8_gives_one_set_of_bits_by_every_way(self):
        job = self.prepared(steps=3)
        for stage, sites in (("zero0", (2, 2)), ("zero2", (1, 2)), ("site", (2, 2))):
            expected = None
            for i, more in enumerate(((), ("comm.between_sites=mesh", "comm.chunk=1KiB"),
                                      ("comm.between_sites=exchange", "comm.algorithm=ring"))):
                folder = "%s-%d" % (stage, i)
                self.run_longhaul("train", job, *self.of(folder, stage, "int8", *more, sites=sites))
                found = logical(self.step_folder(3, folder))
                errors = [n for n in found if n.startswith("border_error.")]
                whole = [n for n in found if "/" not in n]
                self.assertEqual(len(errors), 2 * len(whole))  # of each site
                self.assertTrue(any(any(found[n]) for n in errors))
                self.assertEqual(found, expected or found, folder)
                expected = found

    def test_int8_goes_on_to_the_same_bits(self):
        job = self.prepared(steps=6)
        for stage, sites in (("zero0", (1, 1)), ("zero1", (2, 2)), ("zero2", (1, 2)), ("zero3", (2, 1)), ("site", (2, 2))):
            whole, cut = self.of("whole" + stage, stage, "int8", sites=sites), self.of("cut" + stage, stage, "int8", sites=sites)
            self.run_longhaul("train", job, *whole)
            self.run_longhaul("train", job, *cut)
            self.forget("cut" + stage, 6)
            self.run_longhaul("train", job, "--resume", *cut)
            self.assertEqual(logical(self.step_folder(6, "cut" + stage)), logical(self.step_folder(6, "whole" + stage)), stage)

    def test_errors_of_a_step_that_is_not_applied_are_forgotten(self):
        """Step 1 throws every weight out of range, so that steps 2 and 3 are not applied; what rounding took from
        step 1 would be in the next sum that is finite."""
        job = self.prepared(steps=3)
        for stage, sites in (("zero0", (1, 1)), ("zero1", (2, 2)), ("zero2", (1, 2))):
            self.run_longhaul("train", job, *self.of(stage, stage, "int8", "optimizer.clip=0",
                                                     "optimizer.learning_rate=constant(1e30)",
                                                     "train.not_finite_limit=100", sites=sites), code=NOT_FINITE)
            found = logical(self.step_folder(3, stage))
            errors = [n for n in found if n.startswith("border_error.")]
            self.assertTrue(errors)
            self.assertFalse(any(any(found[n]) for n in errors), stage)

    def test_another_border_is_another_run(self):
        job = self.prepared(steps=6)
        for then, now in (("int8", "bf16"), ("bf16", "int8")):
            folder = then + now
            self.run_longhaul("train", job, *self.of(folder, "zero1", then))
            self.forget(folder, 6)
            _, said = self.run_longhaul("train", job, "--resume", *self.of(folder, "zero1", now), code=REFUSED)
            self.assertIn("now it is 'comm.border = %s': that would be another run" % now, said)
            self.run_longhaul("train", job, "--resume", *self.of(folder, "zero1", now, "train.same_bits=no"))
            names = logical(self.step_folder(6, folder))
            self.assertEqual(any(n.startswith("border_error.") for n in names), now == "int8")

    def test_a_table_that_gathers_gradients_is_refused(self):
        """Before anything is rounded for a border: no rank begins, and the sentence names the move."""
        job = self.prepared(steps=1, device={"plugin": "reference", "threads": None})
        plugins = ["--plugins", add_plugin(self, "optimizers", "half_gradients")]
        for command in ("check", "train"):
            _, said = self.run_longhaul(command, job, *plugins, *self.of("gathered", "half_gradients", "int8", "optimizer.stage=gathered",
                                                                         sites=(2, 2)), code=REFUSED)
            self.assertIn("move GATHER from 'grad' to 'wide_grad' over several ranks is not built there; expected sums of gradients "
                          "and gathers of values", said)

    def test_a_plan_counts_a_byte_and_a_part_of_a_scale(self):
        # 132 bytes of a block of 128 cross in an exchange; half of them, and half of the values in BF16, elsewhere.
        job = self.prepared()
        for stage, border, expected in (("zero0", "int8", 1.03), ("zero1", "int8", 1.515), ("zero0", "bf16", 2),
                                        ("zero1", "bf16", 2), ("site", "int8", 1.03)):
            sites = (2, 2) if stage == "site" else (1, 1)
            said, _ = self.run_longhaul("plan", job, "--json", *self.of("planned", stage, border, "train.precision=bf16",
                                                                        "train.batch=4", "train.micro_batch=%d" % (1 if stage == "site" else 2),
                                                                        sites=sites))
            plan = json.loads(said)
            sent = sum(b["bytes"] for b in plan["borders"]) / len(plan["borders"]) / plan["parameters"]
            print("%s, %s: %.4f bytes a parameter and direction" % (stage, border, sent))
            self.assertTrue(expected - 0.005 <= sent < 1.03 * expected, (stage, border, sent))


if __name__ == "__main__":
    main()
