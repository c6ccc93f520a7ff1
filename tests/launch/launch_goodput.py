"""Goodput: two sites train while ranks, launchers, savers and the link between them are hit at random, and nobody helps but what
starts a killed launcher anew, as systemd does. The end has the bits of a run that was left alone.

By itself: launch_goodput.py RANK_PROGRAM LONGHAUL WAN_LAB [SECONDS [EVERY [SEED [MODEL [AROUND]]]]]. Of a fault a minute goodput of 88 %
is asked for, with ten minutes or more between two of 97 %. MODEL: small, or one of bench/llama_step.py by its name; what is promised is
promised of 16.9M.

A run that is left alone for as long takes as long again. With AROUND it goes on from what was saved so many seconds before a fault,
for each of them, to what is saved as long after it: what lies between is a run without a fault by itself. 3600 600 17 16.9M 15: an hour
with each kind of fault once, and some minutes."""
import contextlib
import datetime
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import launch_case
import launch_train
from launch_case import LaunchCase, SOURCE, TORTURE, clean_environment

sys.path.insert(0, os.path.join(SOURCE, "tests", "lab"))
from lab import Lab, LabMissing, Link
sys.path.insert(0, os.path.join(SOURCE, "bench"))
import llama_step

HOSTS = ("t1", "o1")
FINAL = (0, 1, 2, 4, 5, 75, 143)  # exit codes after which deploy/longhaul@.service starts nothing
WAIT = 120  # seconds that a fault may cost before it counts as never made good
LAB, LENGTH, EVERY, SEED, MODEL, AROUND = "", 1800 if TORTURE else 20, 60 if TORTURE else 6, 17, "small", 0
# A step of 16.9M parameters sends 68 MB each way, and each snapshot 102 MB. What is measured is what faults cost: the link carries a
# step's in the time of its compute, and has a router's queue, not one of two packets.
LINKS = {"small": Link(0, 1, delay=0.0005)}
FAST = Link(0, 1, delay=0.0005, rate=2.5e9, queue=2e6, offload=True)
PLACES = """address = {address}
port = {port}
secret = job.key
join_timeout = 60s
restart = 1000
[comm]
probe = no
[site.tokyo]
hosts = t1:2
[site.osaka]
hosts = o1:2
"""


def parse_time(text):
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc).timestamp()


class Service(threading.Thread):
    """A launcher that is started again when it is killed or ends with exit code 3, until that is over."""

    def __init__(self, start):
        super().__init__(daemon=True)
        self.start_one, self.codes, self.process, self.over = start, [], None, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            self.process = self.start_one()
            self.codes.append(self.process.wait())
            if self.codes[-1] in FINAL:
                return
            self.over.wait(1)  # RestartSec


class Goodput(LaunchCase):
    weights = launch_train.Train.weights

    def setUp(self):
        super().setUp()
        self.lab, self.cuts, self.services = None, [], []
        try:
            self.lab = Lab(LAB, [LINKS.get(MODEL, FAST)])
            self.addCleanup(self.lab.close)
        except LabMissing as why:
            print("no link is cut:", why)
        self.addCleanup(self.end_all)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = 29400 if self.lab else s.getsockname()[1]

    def end_all(self):
        """Nothing trains on behind a test that has failed."""
        for s in self.services:
            s.over.set()
        launch_case.kill_processes_with(self.mark)
        for s in self.services:
            s.join(10)
        launch_case.kill_processes_with(self.mark)  # one may have been about to start

    def job(self, name):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        # More than there is time for; each start draws the order of all of their samples.
        steps = (100 if MODEL == "small" else 20) * LENGTH
        text = launch_train.JOB.format(source=SOURCE, steps=steps, ranks=1).replace("batch = 6", "batch = 8")
        often = 5 if MODEL == "small" else 2  # steps; of more parameters one takes longer
        text = text.replace("every = 4\n", f"every = 2000\nmemory_every = {often}\n").replace("ranks_per_node = 1\n", "")
        if MODEL != "small":
            m = llama_step.MODELS[MODEL]
            small = "vocab = from_tokenizer\nblocks = 2\nhidden = 64\nffn = 128\nheads = 2\n"
            self.assertIn(small, text)
            text = text.replace(small, "vocab = {vocab}\nblocks = {layers}\nhidden = {hidden}\nffn = {ffn}\n"
                                       "heads = {heads}\n".format(**m))
        with open(os.path.join(folder, "job.ini"), "w") as f:
            f.write(text + PLACES.format(address="10.90.0.1" if self.lab else "127.0.0.1", port=self.port))
        return os.path.join(folder, "job.ini")

    def start_site(self, ini, site, *flags):
        with open(ini + f".{HOSTS[site]}.log", "a") as log:
            command = [launch_case.LONGHAUL, "run", ini, "--host", HOSTS[site], "--resume", *flags]
            more = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment(LH_MARK=self.folder))
            return self.lab.popen(site, command, **more) if self.lab else subprocess.Popen(command, **more)

    # ---- what the run tells

    def rows(self, ini):
        """Lines of steps, whole ones alone."""
        try:
            lines = launch_case.read(os.path.join(os.path.dirname(ini), "out", "metrics.jsonl")).splitlines(True)
        except OSError:
            return []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if "loss" in row]

    def step_after(self, ini, moment, limit=WAIT):
        """When the first step was made behind this moment; None: none was."""
        path, end = os.path.join(os.path.dirname(ini), "out", "metrics.jsonl"), time.time() + limit
        while time.time() < end:
            try:
                with open(path, "rb") as f:
                    f.seek(max(0, os.path.getsize(path) - 65536))
                    lines = f.read().split(b"\n")[1:-1]
            except OSError:
                lines = []
            try:
                times = [parse_time(row["time"]) for row in map(json.loads, lines) if "loss" in row]
            except ValueError:  # read while ranks that start again cut it to the step that they go on from
                times = []
            later = [t for t in times if t > moment]
            if later:
                return min(later)
            time.sleep(0.02)
        return None

    # ---- what is done to it

    def savers(self):
        """Helpers of ranks: those that save, and those in reserve."""
        ranks = set(self.seen().values())
        found = []
        for pid in launch_case.processes_with(self.mark):
            try:
                parent = int(launch_case.read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent in ranks:
                found.append(pid)
        return found

    def hit(self, what, draw, services):
        """Returns what it was, the moment from which on it counts, and whether ranks must start again."""
        ranks = self.seen()
        if what == "cut":
            begin, length = time.time(), draw.uniform(1, 20) if TORTURE or LENGTH > 60 else draw.uniform(1, 5)
            self.lab.cut(0)
            time.sleep(length)
            self.lab.heal(0)
            self.cuts.append((begin, time.time()))
            return f"the link was cut for {length:.1f} s", time.time(), False
        if what == "saver":
            savers = self.savers()
            if savers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(savers), signal.SIGKILL)
            return "a saver was killed", time.time(), False
        if what in ("launcher", "lead"):
            site = 0 if what == "lead" else 1
            services[site].process.kill()
            return f"the launcher of {HOSTS[site]} was killed", time.time(), True
        rank = draw.choice(sorted(ranks)) if ranks else None
        if rank is None:
            return "nothing: no rank was there", time.time(), False
        try:
            os.kill(ranks[rank], signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        except ProcessLookupError:
            return f"nothing: rank {rank} had ended by itself", time.time(), False
        return f"rank {rank} was {'stopped' if what == 'stop' else 'killed'}", time.time(), True

    def recovered(self, ini, begin, restarts, before):
        """Seconds from the fault to the next step: of ranks that were started after it, where they had to be."""
        end = begin + WAIT
        while restarts and self.seen().get(0, before) == before and time.time() < end:
            time.sleep(0.05)
        moment = time.time() if restarts else begin
        step = self.step_after(ini, moment)
        self.assertIsNotNone(step, f"no step within {WAIT} s")
        return step - begin

    def kinds(self, draw):
        """Each kind once in each round, each round in another order; what matters most first where there are few."""
        some = ["lead", "rank", "cut" if self.lab else "stop"]
        rest = ["launcher", "stop", "saver"] if self.lab else ["launcher", "saver"]
        yield from some
        draw.shuffle(rest)
        yield from rest
        while True:
            both = some + rest
            draw.shuffle(both)
            yield from both

    def share(self, ini, begin, end):
        """Of the time without the cuts, that of the steps that count."""
        def cut_of(a, b):
            return sum(max(0, min(b, to) - max(a, since)) for since, to in self.cuts)
        good = 0
        for row in self.rows(ini):
            to = parse_time(row["time"])
            good += row["seconds"] - cut_of(to - row["seconds"], to)
        return good / (end - begin - cut_of(begin, end))

    # ---- beside a run that is left alone

    def step_folder(self, ini, step):
        return os.path.join(os.path.dirname(ini), "out", "checkpoints", f"step-{step:012d}")

    def save(self, ini):
        """The step that the run has saved when it was asked to."""
        done = subprocess.run([launch_case.LONGHAUL, "save", os.path.join(os.path.dirname(ini), "out")], capture_output=True, text=True,
                              timeout=WAIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(re.match(r"step (\d+) saved to ", done.stdout)[1])

    def keep_one_before(self, ini, kept):
        """A save that outlives those after it."""
        step = self.save(ini)
        shutil.copytree(self.step_folder(ini, step), self.step_folder(kept, step), copy_function=os.link)
        return step

    def is_as_if_left_alone(self, kept, rows, since, to, weights):
        """Losses from step `since` on, and the weights behind step `to`: of a run that begins with what was kept of step `since`, or
        at the beginning."""
        whole = self.job(f"whole-{to}")
        if since > 0:
            shutil.copytree(self.step_folder(kept, since), self.step_folder(whole, since), copy_function=os.link)
        # As many steps are planned, as the order of the data depends on that.
        launchers = [self.start_site(whole, site, "--set", f"checkpoint.every={to}", "--set", "checkpoint.keep=1000000",
                                     "--set", "checkpoint.memory_every=0")
                     for site in range(2)]
        saved = self.step_folder(whole, to)
        launch_case.wait_for(lambda: os.path.isdir(saved) or any(p.poll() is not None for p in launchers), WAIT + 2 * LENGTH)
        self.assertTrue(os.path.isdir(saved), "the run without faults has ended before step %d" % to)
        subprocess.run([launch_case.LONGHAUL, "stop", os.path.join(os.path.dirname(whole), "out")], check=True, capture_output=True)
        self.assertEqual([p.wait() for p in launchers], [75, 75])
        self.assertEqual(self.weights(whole, to), weights)
        theirs = [(row["step"], row["loss"]) for row in self.rows(whole)]
        self.assertEqual([(row["step"], row["loss"]) for row in rows if since < row["step"] <= to], theirs[:to - since])
        shutil.rmtree(os.path.dirname(whole))

    def test_faults_at_random_cost_little_and_no_bit(self):
        draw = random.Random(SEED)
        ini = self.job("hit")
        self.services = services = [Service(lambda site=site: self.start_site(ini, site)) for site in range(2)]
        launch_case.wait_for(lambda: self.rows(ini), WAIT)
        begin, took, spans, kept = time.time(), [], [], os.path.join(self.folder, "kept", "job.ini")
        for what in self.kinds(draw):
            next_at = begin + EVERY * (len(took) + draw.uniform(0.3, 0.7))
            if next_at > begin + LENGTH:
                break
            since = 0
            if AROUND:
                time.sleep(max(0, next_at - AROUND - time.time()))
                since = self.keep_one_before(ini, kept)
            time.sleep(max(0, next_at - time.time()))
            before = self.seen().get(0)
            said, moment, restarts = self.hit(what, draw, services)
            took.append(self.recovered(ini, moment, restarts, before))
            print(f"{moment - begin:7.1f} s: {said}; the next step came after {took[-1]:.2f} s", flush=True)
            if AROUND:
                time.sleep(AROUND)
                to = self.save(ini)
                spans.append((since, to, self.weights(ini, to)))
        time.sleep(max(0, begin + LENGTH - time.time()))
        end = time.time()
        share = self.share(ini, begin, end)
        subprocess.run([launch_case.LONGHAUL, "stop", os.path.join(os.path.dirname(ini), "out")], check=True, capture_output=True)
        for s in services:
            s.join(WAIT)
        self.assertEqual([s.is_alive() for s in services], [False, False], "a launcher goes on after longhaul stop")
        self.assertEqual([s.codes[-1] for s in services], [75, 75], [s.codes for s in services])
        self.nothing_is_left()
        took.sort()
        p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
        steps = self.rows(ini)[-1]["step"]
        print(f"{MODEL}: {len(took)} faults in {end - begin:.0f} s, seed {SEED}: goodput {100 * share:.1f} %; from a fault to the next step "
              f"{p50:.2f} s (p50), {p99:.2f} s (p99); {steps} steps", flush=True)
        if LENGTH > 60:
            self.assertGreaterEqual(share, 0.97 if EVERY >= 600 else 0.88)
            self.assertLessEqual(p50, 5)
            self.assertLessEqual(p99, 10)
        rows = self.rows(ini)
        self.assertEqual([row["step"] for row in rows], list(range(1, steps + 1)))  # each stands there once
        begin = time.time()
        for since, to, weights in spans or [(0, steps, self.weights(ini, steps))]:
            self.is_as_if_left_alone(kept, rows, since, to, weights)
        print(f"the same bits without a fault, after {time.time() - begin:.0f} s: " +
              ("all steps" if not spans else ", ".join(f"steps {since + 1} to {to}" for since, to, _ in spans)), flush=True)


if __name__ == "__main__":
    LAB = sys.argv[3]
    LENGTH, EVERY, SEED = [int(word) for word in sys.argv[4:7]] + [LENGTH, EVERY, SEED][len(sys.argv[4:7]):]
    MODEL = sys.argv[7] if len(sys.argv) > 7 else MODEL
    AROUND = int(sys.argv[8]) if len(sys.argv) > 8 else AROUND
    launch_case.main()
