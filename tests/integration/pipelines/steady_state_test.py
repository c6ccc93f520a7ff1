"""A training step in its steady state allocates nothing from our own code. The libraries' allocations
(oneDNN builds a map of arguments in every call) are counted apart and printed."""
import os
import unittest

from pipeline_case import PipelineCase, add_plugin, main

COUNTER = os.path.join(os.environ.get("LONGHAUL_TEST_FOLDER", ""), "allocation_counter.so")
FIRST, LAST = 6, 12  # the fifth step is profiled; its rows are read behind it


@unittest.skipIf(os.environ.get("LONGHAUL_SANITIZED") == "1", "a sanitizer's own allocator")
class SteadyState(PipelineCase):
    def count(self, **changes):
        job = self.small_job(
            hook__after_step={"call": "test_hooks:count_allocations(step, first=%d, last=%d)"
                                      % (FIRST, LAST)}, **changes)
        plugins = add_plugin(self, "parts", "test_hooks")
        self.run_longhaul("prepare", job)
        table = self.path("allocations.txt")
        environment = dict(os.environ, LD_PRELOAD=COUNTER, ALLOCATION_TABLE=table)
        self.run_longhaul("train", job, "--plugins", plugins, env=environment)
        with open(table) as f:
            rows = [line.rstrip("\n").split("\t") for line in f]
        libraries = {}
        own = []
        for count, path, symbol, offset in rows:
            name = os.path.basename(path)
            if name.startswith("lib") and ".so" in name:
                libraries[name] = libraries.get(name, 0) + int(count)
            else:
                own.append("%s times by %s %s+%s" % (count, path, symbol, offset))
        print("%d steps: libraries allocated %s" % (LAST - FIRST, libraries or "nothing"))
        self.assertEqual(own, [])
        self.assertNotIn("libjansson", " ".join(libraries))

    def test_a_step_allocates_nothing_of_our_own(self):
        self.count(train={"precision": "f32"})

    def test_neither_in_bf16_with_recomputation_and_documents_apart(self):
        self.count(train={"precision": "bf16", "recompute": "full"},
                   data={"documents": "apart"}, device={"threads": 2})

    def test_neither_do_evaluations_and_log_lines(self):
        self.count(train={"evaluate_every": 2, "log_every": 1})

    def test_the_counter_sees_what_allocates(self):
        with self.assertRaises(AssertionError):
            self.count(checkpoint={"every": 2, "keep": 2}, hook__before_save={
                "call": "test_hooks:note_save(\"%s\", step, loss)" % self.path("saves.txt")})


main()
