"""Ranks on a device that works off queues, with random delays and memory that the host can't reach:
the same bits as on the cpu, whose kernels it runs, at every stage of ZeRO."""
import json
import os
import re
import shutil
import signal
import socket
import time

from pipeline_case import (LOST, REFUSED, TERMINATED, TORTURE, PipelineCase, add_plugin, logical, main,
                           read_json_lines, set_flags)

# ranks or sites, optimizer, accumulation, settings of the device
TWO, FOUR, SITES = ["launch.ranks_per_node=2"], ["launch.ranks_per_node=4"], \
    ["site.a.hosts=localhost:2", "site.b.hosts=localhost:2"]
BY_SITE = ["optimizer.cut=site"]
# Two machines of one site, which this one plays under two names: links of a site, and none inside a machine.
MACHINES = ["site.a.hosts=localhost:1, %s:1" % socket.gethostname()]
# The stand-in of libibverbs, whose cards take any file that can be mapped for a dma-buf.
FAKE_VERBS = os.environ["LONGHAUL_FAKE_VERBS"]
# A sample: each stage of ZeRO, one site and two, each kind of device once. A device that can't capture launches
# every call of a list in each step; where streams await words, lists with transfers are captured too.
CASES = [
    (TWO, "zero0", "breadth", ["device.capture=no"]),
    (TWO, "zero1", "breadth", []),
    (TWO, "zero3", "depth", ["device.host_access=yes", "train.precision=bf16", "train.logits=compute"]),
    (SITES, "zero2", "depth", BY_SITE + ["device.words=no"]),
    (TWO, "zero2", "breadth", ["device.shares=no"]),
]
if TORTURE:
    CASES = [(world, "zero%d" % z, order, device + cut)
             for world in (TWO, FOUR, SITES) for z in range(4) for order in ("depth", "breadth")
             for device in ([], ["device.words=no"], ["device.host_access=yes"], ["device.shares=no"],
                            ["device.capture=no"])
             for cut in ([], BY_SITE) if not cut or z > 0 and world is SITES]
# What sanitizers see of it (test_delays_change_no_bit); whole where a torture runs in their build, which is asked for by hand.
RACES = [(TWO, "zero3", "breadth", [])]
if TORTURE and os.environ.get("LONGHAUL_SANITIZED") == "1":
    RACES = [(world, "zero%d" % z, order, device + cut)
             for world in (TWO, FOUR, SITES) for z in range(4) for order in ("depth", "breadth")
             for device in ([], ["device.capture=no"]) for cut in ([], BY_SITE) if not cut or z > 0 and world is SITES]


class QueuedRanks(PipelineCase):
    def prepared(self):
        # Of the more than a hundred micro-batches of the valid part, which are read four times; 72 are trained on. Ten are no
        # whole turns of four ranks.
        job = self.small_job(train={"steps": 9, "batch": 8, "micro_batch": 1, "evaluate_every": 4, "evaluate_batches": 10},
                             checkpoint={"every": 3}, comm={"bucket": "16KiB"})
        self.run_longhaul("prepare", job)
        return job

    def settings(self, folder, *sets):
        self.link_data(folder)
        return set_flags("pipeline.folder=" + folder, *sets)

    def curve(self, folder):
        """Steps and evaluations; a save is told whenever it is done."""
        return [(r["step"], r.get("loss"), r.get("gradient_norm"), r.get("valid_loss"))
                for r in read_json_lines(self.path(folder, "metrics.jsonl"))
                if "loss" in r or "valid_loss" in r]

    def told(self, folder, what="replays"):
        """A count of what the device of each rank has seen: of captured lists, by default."""
        found = []
        for name in sorted(os.listdir(self.path(folder))):
            if re.fullmatch(r"train\.log|rank-\d+\.log", name):
                with open(self.path(folder, name)) as f:
                    found += [int(count) for count in re.findall(r"; (\d+) %s" % what, f.read())]
        return found

    def test_bits_are_those_of_the_cpu(self):
        job, on_cpu = self.prepared(), {}
        for i, (world, optimizer, order, more) in enumerate(CASES):
            layout = world + ["optimizer.plugin=" + optimizer, "parallel.accumulation=" + order]
            cut = [text for text in more if not text.startswith("device.")]
            device = ["device.plugin=fake", "device.delay=30us", "device.seed=%d" % i, "device.tells=yes"]
            # Kinds of the device are nothing to the cpu: one run there for all of a layout.
            key = tuple(layout + cut)
            if key not in on_cpu:
                self.run_longhaul("train", job, *self.settings("cpu%d" % i, *layout, *cut))
                on_cpu[key] = self.outcome("cpu%d" % i)
            self.run_longhaul("train", job,
                              *self.settings("fake%d" % i, *layout, *more, *device))
            found = self.told("fake%d" % i)
            self.assertEqual(len(found), 2 if world is TWO else 4, CASES[i])
            if "device.capture=no" in more:
                self.assertEqual(set(found), {0}, CASES[i])
            if not {"device.capture=no", "device.words=no", "device.host_access=yes"} & set(more):
                self.assertGreater(min(found), 0, CASES[i])
            curve, steps = self.outcome("fake%d" % i)
            self.assertEqual(curve, on_cpu[key][0], CASES[i])
            for step in steps:
                self.assertEqual(steps[step], on_cpu[key][1][step], (CASES[i], step))

    def outcome(self, folder):
        """Its curve, and the tensors of each checkpoint by step. Its folder goes: there are hundreds in torture. Steps 3 and 6 are
        copied while the passes of the next step run, step 9 with nothing behind it."""
        found = self.curve(folder), {step: logical(self.step_folder(step, folder)) for step in (3, 6, 9)}
        shutil.rmtree(self.path(folder))
        return found

    def over_ib(self, job, folder, zero, *more, orders=""):
        """Trains on both machines; bytes of pinned memory by rank."""
        sets = self.settings(folder, *MACHINES, "optimizer.plugin=" + zero, "transport.site.plugin=ib",
                             "transport.site.security=plain", "device.plugin=fake", "device.delay=30us", "device.tells=yes", *more)
        _, said = self.run_longhaul("train", job, *sets, env=dict(os.environ, LD_LIBRARY_PATH=FAKE_VERBS, FAKE_VERBS=orders))
        (rows,) = [line["memory"] for line in read_json_lines(self.path(folder, "metrics.jsonl")) if "memory" in line]
        with open(self.path(folder, "train.log")) as f:
            return said, f.read(), [row["planned"]["pinned"] for row in rows]

    def test_gathered_values_travel_from_device_memory_and_into_it(self):
        """Over cards that reach it: no mirrors of values, and the bits of the cpu over tcp, captured or not. The device is told of
        what has arrived. Where a card, the device or the job has none of it all ranks have mirrors, and the line says why."""
        job = self.prepared()
        mirrored = (("device", ["device.dmabuf=no"], "", "device memory as a dma-buf, both where options say so"),
                    ("card", ["device.dmabuf=yes"], "no_dmabuf=1", "[transport.site]: 'ib' takes no memory of a device here"),
                    ("room", ["device.dmabuf=yes"], "dmabuf_fails=1", "bytes of a device with fake0"),
                    ("words", ["device.dmabuf=yes", "device.words=no"], "", None),
                    ("asked", ["device.dmabuf=yes", "comm.device_memory=no"], "", "[comm] device_memory = no"))
        direct = (("replayed", []), ("launched", ["device.capture=no"]))
        for zero in ("zero1", "zero2", "zero3") if TORTURE else ("zero1", "zero3"):
            self.run_longhaul("train", job, *self.settings("tcp" + zero, *MACHINES, "optimizer.plugin=" + zero))
            expected, pinned = self.outcome("tcp" + zero), {}
            for name, more, orders, why in mirrored if zero == "zero3" else mirrored[:1]:
                folder = name + zero
                said, log, pinned[name] = self.over_ib(job, folder, zero, *more, orders=orders)
                self.assertEqual(self.told(folder, "arrivals"), [0, 0], folder)
                for text in (said, log) if why is not None else ():
                    self.assertIn("gathered values travel by pinned mirrors: ", text, folder)
                    self.assertIn(why, text, folder)
                self.assertEqual(self.outcome(folder), expected, folder)
            for name, more in direct:
                folder = name + zero
                said, log, less = self.over_ib(job, folder, zero, "device.dmabuf=yes", *more)
                for text in (said, log):
                    self.assertIn("gathered values travel in the device's own memory, by dma-buf: ", text, folder)
                for rank in range(2):
                    self.assertGreater(self.told(folder, "arrivals")[rank], 9, folder)
                    self.assertLess(less[rank], pinned["device"][rank], folder)
                self.assertEqual(self.outcome(folder), expected, folder)

    def test_a_level_that_seals_keeps_mirrors_and_says_which_do_not(self):
        """Between sites of one rank each, over apn, whose level is `private` unless another one is written."""
        job = self.prepared()
        apn = ["site.a.hosts=localhost:1", "site.b.hosts=localhost:1", "transport.wan.plugin=apn", "optimizer.plugin=zero1",
               "device.plugin=fake", "device.delay=30us", "device.tells=yes", "device.dmabuf=yes"]
        for folder, more, texts in (
                ("sealed", [], ["gathered values travel by pinned mirrors: ", "[transport.wan] security = private seals messages in "
                                "memory of the host; write security = plain or known"]),
                ("open", ["transport.wan.security=known"], ["gathered values travel in the device's own memory, by dma-buf: "])):
            _, said = self.run_longhaul("train", job, *self.settings(folder, *apn, *more),
                                        env=dict(os.environ, LD_LIBRARY_PATH=FAKE_VERBS, FAKE_VERBS=""))
            for text in texts:
                self.assertIn(text, said)
        self.assertEqual(self.outcome("open"), self.outcome("sealed"))

    def test_delays_change_no_bit(self):
        """Cut values, gathered and summed while interleaved micro-batches run. Under sanitizers alone, too: cheap."""
        job = self.small_job(train={"steps": 3, "batch": 4, "micro_batch": 1}, comm={"bucket": "16KiB"})
        self.run_longhaul("prepare", job)
        for i, (world, optimizer, order, more) in enumerate(RACES):
            found = []
            for seed in (1, 2):
                folder = "delays%d.%d" % (i, seed)
                batch = [] if world is TWO else ["train.batch=8"]  # so that a rank has two micro-batches
                self.run_longhaul("train", job, *self.settings(
                    folder, *world, *batch, *more, "optimizer.plugin=" + optimizer, "parallel.accumulation=" + order,
                    "device.plugin=fake", "device.delay=30us", "device.seed=%d" % seed))
                found.append((self.curve(folder), logical(self.step_folder(3, folder))))
                shutil.rmtree(self.path(folder))
            self.assertEqual(len(found[0][0]), 3, RACES[i])
            self.assertEqual(found[0], found[1], RACES[i])

    def test_pairs_are_scored_between_steps_that_are_queued(self):
        """Phase dpo asks for figures of a pass while the step before it is still under way."""
        self.run_longhaul("run", self.small_job(pipeline={"folder": "start"}, train={"steps": 0}))
        pairs = [{"prompt": "Once upon a time", "chosen": " there was a dog." * (1 + i % 2),
                  "rejected": " no" * (1 + i % 3)} for i in range(24)]
        lines = "".join(json.dumps(p) + "\n" for p in pairs)
        job = self.small_job(
            prepare={"input": self.write("pairs.jsonl", lines), "prepend": "none", "append": "none"},
            chat={"format": "plain", "pairs": "yes"}, dpo={"reference": "start/checkpoints"},
            data={"split": "20,4,0", "too_long": "cut"}, comm={"bucket": "16KiB"},
            train={"phase": "dpo", "sequence": 64, "steps": 8, "batch": 8, "micro_batch": 1,
                   "evaluate_every": 4})
        self.run_longhaul("prepare", job)
        for optimizer in ("zero1", "zero3"):
            found = []
            for name, more in (("cpu", []), ("fake", ["device.plugin=fake", "device.delay=30us"])):
                folder = name + optimizer
                self.run_longhaul("train", job, *self.settings(
                    folder, *TWO, "optimizer.plugin=" + optimizer, *more))
                found.append((self.curve(folder), logical(self.step_folder(8, folder))))
            self.assertEqual(found[0], found[1], optimizer)

    def test_a_step_is_queued_before_the_one_before_it_is_told(self):
        """A stop that the hook of step 2 asks for: a device that queues work has step 3 by then, which
        is made and saved; one whose launches return when the work is done has not."""
        job = self.small_job(train={"steps": 20, "batch": 8},
                             hook__after_step={"call": "test_hooks:stop(step, at=2)"})
        self.run_longhaul("prepare", job)
        for world, folder in (([], "alone"), (TWO + ["optimizer.plugin=zero2"], "two"),
                              (FOUR + ["optimizer.plugin=zero3"], "four")):
            told = {}
            for device, more in (("cpu", []), ("fake", ["device.delay=30us"])):
                args = self.settings(folder + device, "device.plugin=" + device, *world, *more)
                self.run_longhaul("train", job, *args, "--plugins",
                                  add_plugin(self, "parts", "test_hooks"), code=TERMINATED)
                told[device] = self.curve(folder + device)
            # Ranks agree on a stop in the step after the one in which they were asked.
            last = 3 if world else 2
            self.assertEqual([step for step, *_ in told["cpu"]], list(range(1, last + 1)))
            self.assertEqual([step for step, *_ in told["fake"]], list(range(1, last + 2)))
            self.assertEqual(told["fake"][:last], told["cpu"])
            self.assertTrue(os.path.isdir(self.step_folder(last + 1, folder + "fake")))

    def test_a_hook_that_reads_figures_has_them_before_more_is_queued(self):
        """So that what it asks for is of the step whose loss it saw, on any device."""
        job = self.small_job(train={"steps": 20, "batch": 8},
                             hook__after_step={"call": "test_hooks:stop_seen(step, at=2)"})
        self.run_longhaul("prepare", job)
        for world, last in (([], 2), (TWO + ["optimizer.plugin=zero2"], 3)):
            folder = "seen%d" % last
            args = self.settings(folder, "device.plugin=fake", "device.delay=30us", *world)
            self.run_longhaul("train", job, *args, "--plugins", add_plugin(self, "parts", "test_hooks"), code=TERMINATED)
            self.assertEqual([step for step, *_ in self.curve(folder)], list(range(1, last + 1)))
            self.assertTrue(os.path.isdir(self.step_folder(last, folder)))

    def test_memory_that_misses_its_alignment_is_refused_before_step_0(self):
        job = self.prepared()
        args = self.settings("misplaced", "device.plugin=fake", "device.misplaced=32")
        _, said = self.run_longhaul("train", job, *args, code=REFUSED)
        self.assertRegex(said, r"slot \d+ lies at 0x[0-9a-f]+, and not on 64 bytes, as the device says of all the "
                               "memory that it gives")
        self.assertFalse(os.path.exists(self.path("misplaced", "metrics.jsonl")))

    def test_the_head_is_cut_by_the_memory_of_the_device(self):
        """Logits of 16,384 tokens of a vocabulary of 512 are 32 MiB: two chunks where they should stay in
        caches or where the device does not say what it has, one where a 32nd of its memory is 64 MiB."""
        job = self.small_job(train={"sequence": 64, "batch": 256, "micro_batch": 256})
        calls = {}
        for memory in ("0", "1GiB", "3GiB"):
            planned, _ = self.run_longhaul("plan", job, "--json", "--set", "device.plugin=fake", "--set",
                                           "device.memory=" + memory)
            calls[memory] = json.loads(planned)["step"]["calls"]
        self.assertEqual(calls["1GiB"], calls["3GiB"])
        self.assertLess(calls["3GiB"], calls["0"])

    def test_cut_inside_machines_as_inside_sites(self):
        """Two machines of one site: sums are those of two sites of one machine, and what they save is whole."""
        job = self.prepared()
        nodes = ["site.a.hosts=localhost:2, %s:2" % socket.gethostname(), "parallel.inside=node"]
        for zero in ("zero1", "zero3"):
            found = []
            for folder, world in (("sites" + zero, SITES), ("nodes" + zero, nodes)):
                self.run_longhaul("train", job, *self.settings(folder, "optimizer.plugin=" + zero, "train.steps=6",
                                                               *world, *BY_SITE))
                found.append((self.curve(folder), logical(self.step_folder(6, folder))))
            self.assertEqual(found[0], found[1], zero)
            args = set_flags("pipeline.folder=nodes" + zero, "optimizer.plugin=" + zero, "train.steps=9")
            one = set_flags(*nodes[:1], *BY_SITE)
            _, said = self.run_longhaul("train", job, "--resume", *args, *one, code=REFUSED)
            self.assertIn("was made with 'parallel.inside = node of 0-1, 2-3'", said)
            self.run_longhaul("train", job, "--resume", *args, "--set", TWO[0], "--set", "train.same_bits=no")
            self.assertEqual(self.curve("nodes" + zero)[-1][0], 9)

    def ranks_of(self, runner):
        children = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % pid) as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == runner.pid:
                children.append(int(pid))
        return children

    def mapped(self, pid):
        """Pinned memory of the device that a process has mapped, its own and others', by inode."""
        with open("/proc/%d/maps" % pid) as f:
            return {line.split()[4] for line in f if "/memfd:fake" in line}

    def test_ranks_read_what_is_staged_where_it_lies(self):
        """Each maps the other's pinned memory that travels, where the device shares it."""
        job = self.prepared()
        for shares in ("yes", "no"):
            folder = "shares_" + shares
            args = self.settings(folder, *TWO, "optimizer.plugin=zero3", "device.plugin=fake", "device.delay=30us",
                                 "train.steps=100000", "device.shares=" + shares)
            runner = self.start("train", job, *args)
            self.assertTrue(self.wait_for(lambda: os.path.exists(self.path(folder, "metrics.jsonl")) and
                                          len(self.curve(folder)) > 1, runner))
            both = [found for found in map(self.mapped, self.ranks_of(runner)) if found]
            self.assertEqual(len(both), 2)
            (self.assertGreater if shares == "yes" else self.assertEqual)(len(both[0] & both[1]), 0)
            self.end(runner)

    def test_a_rank_that_dies_leaves_no_queue_waiting(self):
        job = self.prepared()
        args = self.settings("dies", *TWO, "optimizer.plugin=zero3", "device.plugin=fake",
                             "device.delay=30us", "train.steps=100000")
        runner = self.start("train", job, *args)
        self.assertTrue(self.wait_for(lambda: os.path.exists(self.path("dies", "metrics.jsonl")) and
                                      len(self.curve("dies")) > 3, runner))
        os.kill(max(self.ranks_of(runner)), signal.SIGKILL)
        since = time.monotonic()
        _, said = runner.communicate(timeout=60)
        self.assertEqual(runner.returncode, LOST, said)
        self.assertLess(time.monotonic() - since, 30)


if __name__ == "__main__":
    main()
