"""One training run that is killed again and again, at any moment, saves and restarts included, and
resumed each time: it ends in the same bits as a run that was left alone: weights, optimizer state,
place in the data, and every number in metrics.jsonl but the times.

100 kills with LONGHAUL_TORTURE=1, a few without; LONGHAUL_SEED=n: other moments."""
import hashlib
import json
import os
import random
import signal
import tempfile
import time

from pipeline_case import (TORTURE, PipelineCase, checkpoint_digest, main, read_json_lines)

# Hundreds of saves: where memory can be had, a busy disk is none of this test's business.
if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK):
    tempfile.tempdir = "/dev/shm"

KILLS = 100 if TORTURE else 10
STEPS = 1200 if TORTURE else 140
SEED = int(os.environ.get("LONGHAUL_SEED", "20261121"))


class CrashResume(PipelineCase):
    def newest(self, folder="out"):
        root = self.path(folder, "checkpoints")
        names = os.listdir(root) if os.path.isdir(root) else []
        return max([int(n[5:]) for n in names if n.startswith("step-") and n[5:].isdigit()] + [0])

    def in_a_save(self):
        root = self.path("out", "checkpoints")
        return os.path.isdir(root) and any(n.startswith((".tmp-", ".del-"))
                                           for n in os.listdir(root))

    def numbers(self, folder):
        """What metrics.jsonl says of steps and evaluations, without times."""
        rows = []
        for row in read_json_lines(self.path(folder, "metrics.jsonl")):
            if "save" in row or "memory" in row:
                continue  # when a save was heard of, how much memory a process took: of one start
            for key in ("time", "seconds", "tokens_per_s", "parts"):
                row.pop(key, None)
                row.get("evaluation", {}).pop(key, None)
            rows.append(json.dumps(row, sort_keys=True))
        return rows

    def manifest(self, folder):
        with open(os.path.join(self.step_folder(STEPS, folder), "manifest.json")) as f:
            m = json.load(f)
        return {k: m[k] for k in ("step", "seed", "cursor", "tokens", "scalars", "model")}

    def kill_at_some_moment(self, process, chance):
        """Its own time, or after some more saves; the trainer alone, or its helpers with it."""
        way = chance.random()
        if way < 0.25:
            time.sleep(chance.random() * 0.4)
        elif way < 0.6:  # in the middle of a save
            self.wait_for(lambda: self.in_a_save() or process.poll() is not None, pause=0)
            time.sleep(chance.random() * 0.002)
        else:
            wanted = self.newest() + 2 * chance.randrange(4)
            self.wait_for(lambda: self.newest() >= wanted, process)
            time.sleep(chance.random() * 0.04)
        if process.poll() is not None:
            self.fail("the run ended by itself: %d\n%s%s" % ((process.returncode,) +
                                                             process.communicate()))
        if chance.random() < 0.5:
            os.kill(process.pid, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def test_a_run_that_is_killed_again_and_again_ends_in_the_same_bits(self):
        rate = "warmup_cosine(step, peak=3e-3, warmup=10, total=%d)" % STEPS
        job = self.small_job(train={"steps": STEPS, "batch": 32, "micro_batch": 8, "sequence": 64,
                                    "evaluate_every": 20, "evaluate_batches": 2},
                             checkpoint={"every": 2, "keep": 3}, data={"seed": 3},
                             optimizer={"learning_rate": rate})
        self.run_longhaul("prepare", job)
        self.link_data("alone")
        self.run_longhaul("train", job, "--set", "pipeline.folder=alone", "--set",
                          "checkpoint.every=0")

        chance, kills, inside, resumed = random.Random(SEED), 0, 0, set()
        while kills < KILLS:
            before = self.newest()
            process = self.start("train", job, "--resume", start_new_session=True)
            self.kill_at_some_moment(process, chance)
            kills += 1
            inside += self.in_a_save()
            self.assertGreaterEqual(self.newest(), before)
            resumed.add(before)
        self.run_longhaul("train", job, "--resume")
        self.run_longhaul("verify", self.path("out", "checkpoints"))

        cut, whole = (checkpoint_digest(self.step_folder(STEPS, f)) for f in ("out", "alone"))
        print("%d kills, %d of them within a save, at %d different steps of %d; seed %d; sha256 %s"
              % (kills, inside, len(resumed), STEPS, SEED, cut[0]), flush=True)
        self.assertEqual(cut, whole)
        self.assertEqual(self.manifest("out"), self.manifest("alone"))
        cut, whole = self.numbers("out"), self.numbers("alone")
        self.assertEqual(len(cut), STEPS + STEPS // 20 + 1)
        self.assertEqual(hashlib.sha256("\n".join(cut).encode()).hexdigest(),
                         hashlib.sha256("\n".join(whole).encode()).hexdigest(),
                         [pair for pair in zip(cut, whole) if pair[0] != pair[1]][:3])


main()
