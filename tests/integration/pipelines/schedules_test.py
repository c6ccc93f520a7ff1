"""Schedules of one's own: whatever the table, the bits are those of the generated one whose rounds
take as many micro-batches; and what can't be run is refused before anything is."""
from pipeline_case import REFUSED, TORTURE, PipelineCase, logical, main, read_json_lines, set_flags

MICRO_BATCHES = 4


def there(rows, chunks, m, frames):
    rows += ["forward,%d,%d,%d" % (c, m, m % frames) for c in range(chunks)]


def back(rows, chunks, m, frames, split):
    if not split:
        rows += ["backward,%d,%d,%d" % (c, m, m % frames) for c in reversed(range(chunks))]
        return
    rows += ["backward_input,%d,%d,%d" % (c, m, m % frames) for c in reversed(range(chunks))]
    rows += ["backward_weights,%d,%d,%d" % (c, m, m % frames) for c in range(chunks)]


def one_by_one(chunks, split):
    rows = []
    for m in range(MICRO_BATCHES):
        there(rows, chunks, m, 1)
        back(rows, chunks, m, 1, split)
    return rows


def all_at_once(chunks, split):
    rows = []
    for m in range(MICRO_BATCHES):
        there(rows, chunks, m, MICRO_BATCHES)
    for m in range(MICRO_BATCHES):
        back(rows, chunks, m, MICRO_BATCHES, split)
    return rows


def two_in_flight(chunks, split):
    rows = []
    there(rows, chunks, 0, 2)
    for m in range(MICRO_BATCHES):
        if m + 1 < MICRO_BATCHES:
            there(rows, chunks, m + 1, 2)
        back(rows, chunks, m, 2, split)
    return rows


# Ranks of one machine, or SITES of one each, where a generated table takes the first block in legs; stage, recompute, precision, table,
# chunks (of 4 blocks; 6: embedding and head apart), split
SITES = "1+1"
CASES = [
    (1, "zero0", "none", "f32", one_by_one, 3, True),
    (1, "zero0", "selective", "bf16", two_in_flight, 4, False),
    (2, "zero3", "full", "f32", two_in_flight, 2, True),
    (2, "zero2", "none", "bf16", one_by_one, 6, False),
    (SITES, "zero1", "selective", "f32", all_at_once, 1, True),
    (2, "zero3", "none", "bf16", one_by_one, 4, True),
]
if TORTURE:
    CASES = [(ranks, "zero%d" % z, recompute, ("f32", "bf16")[(ranks != 2) ^ (z % 2)], table, chunks,
              split)
             for ranks in (1, 2, SITES) for z in range(4) for recompute in ("none", "selective", "full")
             for table, chunks in ((one_by_one, 2), (one_by_one, 6), (all_at_once, 1),
                                   (all_at_once, 4), (two_in_flight, 3))
             for split in (False, True)]


class Schedules(PipelineCase):
    def prepared(self):
        job = self.small_job(train={"steps": 2, "micro_batch": 1, "batch": 8},
                             model={"blocks": 4}, comm={"bucket": "16KiB"})
        self.run_longhaul("prepare", job)
        self.known = {}
        return job

    def table(self, name, rows):
        return self.write(name, "\n".join(["program,chunk,micro_batch,frame"] + rows) + "\n")

    def train(self, job, folder, *sets):
        self.link_data(folder)
        self.run_longhaul("train", job, *set_flags("pipeline.folder=" + folder, *sets))
        curve = [(r["step"], r.get("loss"), r.get("gradient_norm"))
                 for r in read_json_lines(self.path(folder, "metrics.jsonl")) if "step" in r]
        return curve, logical(self.step_folder(2, folder))

    def generated(self, job, order, sets):
        key = (order,) + sets
        if key not in self.known:
            self.known[key] = self.train(job, "known%d" % len(self.known),
                                         "parallel.accumulation=" + order, *sets)
        return self.known[key]

    def test_bits_are_those_of_the_generated_table(self):
        job = self.prepared()
        for i, (ranks, zero, recompute, precision, table, chunks, split) in enumerate(CASES):
            world = ("launch.ranks_per_node=%d" % ranks,) if ranks != SITES else \
                ("site.a.hosts=localhost:1", "site.b.hosts=localhost:1", "comm.probe=no")
            sets = world + ("optimizer.plugin=" + zero, "train.recompute=" + recompute, "train.precision=" + precision,
                            "train.batch=%d" % (MICRO_BATCHES * (2 if ranks == SITES else ranks)))
            path = self.table("t%d.csv" % i, table(chunks, split))
            order = "depth" if table is one_by_one else "breadth"
            found = self.train(job, "own%d" % i, "parallel.schedule=" + path, *sets)
            self.assertEqual(found, self.generated(job, order, sets), CASES[i])

    def test_a_device_that_works_off_a_queue_makes_the_same_bits(self):
        job = self.prepared()
        path = self.table("t.csv", two_in_flight(2, True))
        for i, zero in enumerate(("zero1", "zero3")):
            sets = ("launch.ranks_per_node=2", "optimizer.plugin=" + zero)
            found = self.train(job, "queued%d" % i, "parallel.schedule=" + path,
                               "device.plugin=fake", "device.delay=30us", "device.seed=7", *sets)
            self.assertEqual(found, self.generated(job, "breadth", sets), zero)

    def test_what_cannot_be_run_is_refused_by_all_commands_in_the_same_words(self):
        job = self.prepared()
        rows = one_by_one(2, False)
        bad = {
            "bad.csv:4: backward of micro-batch 0 through chunk 0 comes before its backward through "
            "chunk 1, expected behind it": rows[:2] + [rows[3], rows[2]] + rows[4:],
            "bad.csv:3: chunk 'x', expected a whole number from 0 to 4095":
                rows[:1] + ["forward,x,0,0"] + rows[2:],
            "bad.csv: has rows for 3 micro-batches, expected 8: as many as a rank makes of [train] "
            "batch = 8 and micro_batch = 1": rows[:12],
            "bad.csv: cuts the model into 5 chunks, expected are 1 to 4, or 6 with the embedding "
            "and the head by themselves: it has 4 blocks": all_at_once(5, False),
        }
        for sentence, rows in bad.items():
            path = self.table("bad.csv", rows)
            batch = "8" if "expected 8" in sentence else str(MICRO_BATCHES)
            for command in ("check", "plan", "train"):
                _, said = self.run_longhaul(command, job, "--set", "parallel.schedule=" + path,
                                            "--set", "train.batch=" + batch, code=REFUSED)
                self.assertIn(sentence, said, command)

    def test_a_resume_takes_the_same_order(self):
        job = self.prepared()
        path = self.table("t.csv", two_in_flight(2, False))
        sets = ["--set", "train.batch=4"]
        self.run_longhaul("train", job, *sets, "--set", "parallel.schedule=" + path)
        more = sets + ["--set", "train.steps=3", "--resume"]
        _, said = self.run_longhaul("train", job, *more, code=REFUSED)
        self.assertIn("parallel.accumulation = table ", said)
        self.run_longhaul("train", job, *more, "--set", "parallel.schedule=" + path)


if __name__ == "__main__":
    main()
