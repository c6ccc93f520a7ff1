"""What may end or hold up a step while the next one is queued already, on the fake device (random delays, memory out of
the host's reach), alone and with two ranks: the same bits as on the cpu, where a step is over before the next begins.
Which of the host's waits leave the device idle is counted in unit.train.queued_steps_test."""
import os

from pipeline_case import NOT_FINITE, TERMINATED, PipelineCase, add_plugin, logical, main, read_json_lines

WORLDS = {"alone": [], "two": ["launch.ranks_per_node=2", "optimizer.plugin=zero2"]}
FAKE = ["device.plugin=fake", "device.delay=30us"]


class QueuedSteps(PipelineCase):
    def prepared(self, **changes):
        changes.setdefault("train", {}).update({"steps": 9, "batch": 8, "micro_batch": 2})
        job = self.small_job(comm={"bucket": "16KiB"}, **changes)
        self.run_longhaul("prepare", job)
        return job

    def train(self, job, folder, *sets, flags=(), **how):
        if not os.path.isdir(self.path(folder)):
            os.makedirs(self.path(folder))
            for file in ("corpus.bin", "corpus.idx"):
                os.link(self.path("out", file), self.path(folder, file))
        words = [word for text in ("pipeline.folder=" + folder,) + sets for word in ("--set", text)]
        self.run_longhaul("train", job, *flags, *words, "--plugins", add_plugin(self, "parts", "test_hooks"), **how)

    def curve(self, folder):
        """NaN is null there."""
        return [(r["step"], r["loss"], r["gradient_norm"], r["applied"])
                for r in read_json_lines(self.path(folder, "metrics.jsonl")) if "learning_rate" in r]

    def saved(self, folder):
        """By name; a run that ends as not finite may have saved nothing."""
        checkpoints = self.path(folder, "checkpoints")
        names = sorted(n for n in os.listdir(checkpoints) if "step-" in n) if os.path.isdir(checkpoints) else []
        return {name: logical(os.path.join(checkpoints, name)) for name in names}

    def test_a_hook_that_reads_figures_and_saves(self):
        """At each step, and at every second one; the hook has its own step's figures, and all of them."""
        notes = self.path("notes.jsonl")
        job = self.prepared(checkpoint={"every": 2})
        for name, world in WORLDS.items():
            self.train(job, name + "cpu", *world)
            self.train(job, name + "fake", *world, *FAKE)
        job = self.prepared(checkpoint={"every": 2}, hook__after_step={
            "call": 'test_hooks:note_step("%s", step, loss, learning_rate, norm, tokens)' % notes})
        for name, world in WORLDS.items():
            self.train(job, name + "hook", *world, *FAKE)
            curve = self.curve(name + "cpu")
            self.assertEqual([row[0] for row in curve], list(range(1, 10)))
            self.assertEqual(len(self.saved(name + "cpu")), 5)
            for folder in (name + "fake", name + "hook"):
                self.assertEqual(self.curve(folder), curve, folder)
                self.assertEqual(self.saved(folder), self.saved(name + "cpu"), folder)
            noted = {(r["step"], r["loss"], r["norm"]) for r in read_json_lines(notes)}  # each rank notes the same
            os.remove(notes)
            self.assertEqual(len(noted), 9)
            for (step, loss, norm, _), (at, seen, length) in zip(curve, sorted(noted)):
                self.assertEqual(step, at)
                self.assertLess(abs(loss - seen), 1e-6)
                self.assertLess(abs(norm - length), 1e-6 * max(1, norm))

    def test_steps_that_are_not_finite(self):
        """Step 1 throws every weight out of range, and no step behind it is applied; the device decides that for each,
        also for one that is queued before the figures of the one before it are read."""
        job = self.prepared(optimizer={"clip": 0, "learning_rate": "constant(1e30)"}, checkpoint={"every": 4})
        for name, world in WORLDS.items():
            for limit, told in ((100, 9), (3, 4)):
                more = world + ["train.not_finite_limit=%d" % limit]
                folders = [name + device + str(limit) for device in ("cpu", "fake")]
                self.train(job, folders[0], *more, code=NOT_FINITE)
                self.train(job, folders[1], *more, *FAKE, code=NOT_FINITE)
                rows = self.curve(folders[0])
                self.assertEqual([(step, applied) for step, _, _, applied in rows],
                                 [(step, step == 1) for step in range(1, told + 1)])
                self.assertEqual(self.curve(folders[1]), rows)
                self.assertEqual(self.saved(folders[1]), self.saved(folders[0]))

    def test_a_stop_at_a_steps_border_and_a_resume(self):
        """The step that is queued behind the one in which a stop is asked for is made and saved, and from there on all is
        as though nobody had asked."""
        job = self.prepared()
        for name, world in WORLDS.items():
            self.train(job, name + "cpu", *world, "checkpoint.every=1")
        job = self.prepared(hook__after_step={"call": "test_hooks:stop(step, at=3)"})
        for name, world in WORLDS.items():
            folder = name + "fake"
            self.train(job, folder, *world, *FAKE, code=TERMINATED)
            stopped = self.curve(folder)[-1][0]
            self.assertIn(stopped, (4, 5) if world else (4,))  # ranks agree on it as a step ends
            self.assertEqual(list(self.saved(folder)), ["step-%012d" % stopped])
            self.train(job, folder, *world, *FAKE, flags=["--resume"])
            self.assertEqual(self.curve(folder), self.curve(name + "cpu"))
            on_cpu, found = self.saved(name + "cpu"), self.saved(folder)
            self.assertEqual(list(found), ["step-%012d" % step for step in (stopped, 9)])
            for step, tensors in found.items():
                self.assertEqual(tensors, on_cpu[step], (name, step))


if __name__ == "__main__":
    main()
