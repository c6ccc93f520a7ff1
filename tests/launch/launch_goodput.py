"""Goodput: two sites train while ranks, launchers, savers and the link between them are hit at random, and nobody helps but what
starts a killed launcher anew, as systemd does. The end has the bits of a run that was left alone.

By itself: launch_goodput.py RANK_PROGRAM LONGHAUL WAN_LAB [SECONDS [EVERY [SEED [MODEL [AROUND]]]]]. Of a fault a minute goodput of 88 %
is asked for, with ten minutes or more between two of 97 %; of 20 faults or more 5 s to the next step in the median, and of any number
10 s in 99 of 100. MODEL: small, or one of bench/llama_step.py by its name; what is promised is
promised of 16.9M.

A run that is left alone for as long takes as long again. With AROUND it goes on from what was saved so many seconds before a fault,
for each of them, to what is saved as long after it: what lies between is a run without a fault by itself. 3600 600 17 16.9M 15: an hour
with each kind of fault once, and some minutes.

A failure leaves the whole folder, cores and what processes were doing. A long run leaves its logs, metrics and faults.jsonl, one line a
fault, in the folder that it was started in, too (goodput-MODEL-EVERY), however it ends."""
import contextlib
import datetime
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import statistics
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
SLOW = 20  # and those behind which it is kept what processes wait for
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


def time_text(moment):
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def note(log, words):
    """Between the lines of launchers, which have no time of day."""
    with open(log, "a") as f:
        f.write(f"---- {time_text(time.time())} {words}\n")


def lives(pid):
    try:
        return launch_case.state_of(pid) != "Z"
    except OSError:
        return False


def is_large(path):
    """What a record of a run leaves out: checkpoints, cores, tokens; and what is no file."""
    return not os.path.isdir(path) and (not os.path.isfile(path) or os.path.getsize(path) > 32 << 20)


class Service(threading.Thread):
    """A launcher that is started again when it is killed or ends with exit code 3, until that is over."""

    def __init__(self, start, log):
        super().__init__(daemon=True)
        self.start_one, self.log, self.codes, self.process, self.over = start, log, [], None, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            self.process = self.start_one()
            self.codes.append(self.process.wait())
            note(self.log, f"launcher {self.process.pid} ended with code {self.codes[-1]}")
            if self.codes[-1] in FINAL:
                return
            self.over.wait(1)  # RestartSec


class Goodput(LaunchCase):
    weights = launch_train.Train.weights

    def setUp(self):
        super().setUp()
        self.lab, self.cuts, self.services, self.wrong, self.states, self.whole = None, [], [], [], 0, False
        self.last = 0  # the last step before the fault
        print("in", self.folder, flush=True)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))  # the processes' too
        try:
            self.lab = Lab(LAB, [LINKS.get(MODEL, FAST)])
            self.addCleanup(self.lab.close)
        except LabMissing as why:
            print("no link is cut:", why)
        self.addCleanup(self.end_all)
        self.port = 29400 if self.lab else launch_case.free_port()

    def end_all(self):
        """Nothing trains on behind a test that has failed."""
        for s in self.services:
            s.over.set()
        launch_case.kill_processes_with(self.mark)
        for s in self.services:
            s.join(10)
        launch_case.kill_processes_with(self.mark)  # one may have been about to start

    def remove_folder(self):
        if LENGTH > 60:
            record = os.path.abspath(f"goodput-{MODEL}-{EVERY}")
            with contextlib.suppress(OSError):
                shutil.rmtree(record, True)
                shutil.copytree(self.folder, record, ignore=lambda folder, names: [
                    n for n in names if n == "checkpoints" or is_large(os.path.join(folder, n))])
            print("logs, metrics and faults.jsonl are in", record, flush=True)
        if self.whole:
            super().remove_folder()
        else:
            print("it has failed: all of it is kept in", self.folder, flush=True)

    def tell(self, text):
        print(text, flush=True)
        with open(os.path.join(self.folder, "figures.txt"), "a") as f:
            f.write(text + "\n")

    def keep_state(self, why, stacks=False):
        """What all processes wait for."""
        self.states += 1
        path = os.path.join(self.folder, f"state-{self.states}.txt")
        self.tell(f"{why}: what processes were doing is in {path}")
        with open(path, "w") as f:
            f.write(f"{time_text(time.time())} {why}\nload {launch_case.read('/proc/loadavg')}codes {[s.codes for s in self.services]}\n")
            with contextlib.suppress(OSError, ValueError):
                f.write(f"link {self.lab.counts() if self.lab else None}\n")
            for pid in launch_case.processes_with(self.mark):
                f.write(f"\n==== process {pid}\n")
                with contextlib.suppress(OSError):
                    f.write(launch_case.read(f"/proc/{pid}/cmdline").replace("\0", " ") + "\n")
                    words = launch_case.read(f"/proc/{pid}/environ", "rb").split(b"\0")
                    f.write(f"{[w.decode(errors='replace') for w in words if w.startswith(b'LONGHAUL_LAUNCH=')]}\n")
                    f.write(f"sockets of its network:\n{launch_case.read(f'/proc/{pid}/net/tcp')}")
                f.write(launch_case.waits_of(pid))
                if stacks and shutil.which("gdb"):
                    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                        f.write(subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"], capture_output=True,
                                               text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=30).stdout)
                f.flush()

    def job(self, name):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        # More than there is time for; each start draws the order of all of their samples.
        steps = (100 if MODEL == "small" else 20) * LENGTH
        text = launch_train.JOB.format(source=SOURCE, steps=steps, ranks=1).replace("batch = 6", "batch = 8")
        often = 5 if MODEL == "small" else 2  # steps; of more parameters one takes longer
        # A save that is asked for waits so long for one before.
        text = text.replace("every = 4\n", f"every = 2000\nmemory_every = {often}\npatience = 60s\n").replace("ranks_per_node = 1\n", "")
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
        note(self.log(ini, site), "a launcher is started")
        with open(self.log(ini, site), "a") as log:
            command = [launch_case.LONGHAUL, "run", ini, "--host", HOSTS[site], "--resume", *flags]
            more = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=os.path.dirname(ini),  # where a core is written
                        env=clean_environment(LH_MARK=self.folder, LONGHAUL_CORE=1))
            return self.lab.popen(site, command, **more) if self.lab else subprocess.Popen(command, **more)

    def log(self, ini, site):
        return ini + f".{HOSTS[site]}.log"

    def stop(self, ini):
        done = subprocess.run([launch_case.LONGHAUL, "stop", os.path.join(os.path.dirname(ini), "out")], capture_output=True, text=True,
                              timeout=WAIT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    # ---- what the run tells

    def rows(self, ini):
        """Lines of steps, whole ones alone."""
        try:
            lines = launch_case.read(os.path.join(os.path.dirname(ini), "out", "metrics.jsonl")).splitlines(True)
        except OSError:
            return []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if "loss" in row]

    def last_rows(self, ini):
        """When the last steps were made, and which they are; of a file that is just being cut to what ranks go on from, none."""
        path = os.path.join(os.path.dirname(ini), "out", "metrics.jsonl")
        try:
            with open(path, "rb") as f:
                begin = max(0, os.path.getsize(path) - 16384)
                f.seek(begin)
                rows = [json.loads(line) for line in f.read().split(b"\n")[1 if begin else 0:-1]]
            return [(parse_time(row["time"]), row["step"]) for row in rows if "loss" in row]
        except (OSError, ValueError):
            return []

    def step_after(self, ini, moment, limit):
        """When the first step was made behind this moment, and which; None: none was."""
        end, before = time.time() + limit, None
        path = os.path.join(os.path.dirname(ini), "out", "metrics.jsonl")
        while time.time() < end and not self.ended():
            with contextlib.suppress(OSError):
                now = os.stat(path).st_mtime_ns, os.stat(path).st_size
                rows = self.last_rows(ini) if now != before else []
                later = [row for row in rows if row[0] > moment]
                if later:
                    return min(later)
                before = now if rows or now == before else None
            time.sleep(0.02)
        return None

    def ended(self):
        """Launchers that nothing starts again."""
        return [(HOSTS[i], s.codes) for i, s in enumerate(self.services) if s.codes and s.codes[-1] in FINAL]

    def log_since(self, ini, at):
        """The lines of train.log from there on, and where it ends."""
        try:
            with open(os.path.join(os.path.dirname(ini), "out", "train.log"), errors="replace") as f:
                f.seek(at)
                return f.read().splitlines(), f.tell()
        except OSError:
            return [], at

    # ---- what is done to it

    def savers(self):
        """Helpers of ranks: those that save, and those in reserve."""
        ranks = {pid: rank for rank, pid in self.seen().items()}
        found = []
        for pid in launch_case.processes_with(self.mark):
            with contextlib.suppress(OSError):
                name, rest = launch_case.read(f"/proc/{pid}/stat").rsplit(")", 1)
                parent = int(rest.split()[1])
                # A reserve that a saver has forked is its child.
                if name.endswith(launch_case.SAVERS) and parent not in ranks:
                    parent = int(launch_case.read(f"/proc/{parent}/stat").rsplit(")", 1)[1].split()[1])
                if name.endswith(launch_case.SAVERS) and parent in ranks:
                    found.append((f"{'the saver' if name.endswith('save') else 'the reserve'} of rank {ranks[parent]}", pid))
        return sorted(found)

    def below(self, pid):
        """Its children, and theirs."""
        parents = {}
        for p in launch_case.processes_with(self.mark):
            with contextlib.suppress(OSError):
                parents[p] = int(launch_case.read(f"/proc/{p}/stat").rsplit(")", 1)[1].split()[1])
        found = {pid}
        while more := {p for p, parent in parents.items() if parent in found and p not in found}:
            found |= more
        return sorted(found - {pid})

    def strike(self, what, draw):
        """A process is hit; there may be none for a moment. Returns which it was."""
        end = time.time() + 10
        while time.time() < end:
            some = self.savers() if what == "saver" else [(f"rank {rank}", pid) for rank, pid in sorted(self.seen().items())]
            with contextlib.suppress(ProcessLookupError):
                if some:
                    name, pid = draw.choice(some)
                    os.kill(pid, signal.SIGSTOP if what == "stop" else signal.SIGKILL)
                    return f"{name} (process {pid}) was {'stopped' if what == 'stop' else 'killed'}"
            time.sleep(0.1)
        self.fail(f"no process was there for 10 s to be hit: {what}")

    def hit(self, ini, what, draw):
        """Returns what it was, the moment from which on it counts, and whether ranks must start again."""
        if what == "cut":
            begin, length = time.time(), draw.uniform(1, 20) if TORTURE or LENGTH > 60 else draw.uniform(1, 5)
            self.lab.cut(0)
            time.sleep(0.5)
            self.note_last(ini)
            time.sleep(max(0, begin + length - time.time()))
            self.lab.heal(0)
            self.cuts.append((begin, time.time()))
            return f"the link was cut for {length:.1f} s", time.time(), False
        if what in ("launcher", "lead"):
            site = 0 if what == "lead" else draw.randrange(2)
            launch_case.wait_for(lambda: self.services[site].process.poll() is None, 10)
            launcher = self.services[site].process
            if what == "launcher":
                launcher.kill()
                return f"the launcher of {HOSTS[site]} (process {launcher.pid}) was killed", time.time(), True
            others = self.below(launcher.pid)
            launcher.kill()
            for pid in others:  # savers, too, which outlive their rank: it is the machine that is lost
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return f"{HOSTS[site]}, rank 0's machine, was lost ({1 + len(others)} processes were killed)", time.time(), True
        said = self.strike(what, draw)
        return said, time.time(), what != "saver"

    def note_last(self, ini):
        rows = self.last_rows(ini)
        self.last = rows[-1][1] if rows else self.last

    def recovered(self, ini, begin, restarts, before):
        """The first step behind a fault, of ranks that were started after it where they had to be: when and which."""
        end = time.time() + WAIT
        while restarts and before is not None and lives(before) and time.time() < end:
            time.sleep(0.02)
        since = begin
        if restarts:
            since = time.time()
            self.note_last(ini)
        step = self.step_after(ini, since, SLOW)
        if step is None and not self.ended():
            self.keep_state(f"no step within {SLOW} s")
            step = self.step_after(ini, since, end - time.time())
        self.assertEqual(self.ended(), [], "a launcher has ended for good")
        self.assertIsNotNone(step, f"no step within {WAIT} s")
        return step

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
        good, lengths = 0, []
        for row in self.rows(ini):
            to = parse_time(row["time"])
            if begin < to < end:
                lengths.append(row["seconds"])
                good += row["seconds"] - cut_of(to - row["seconds"], to)
        length, median = end - begin - cut_of(begin, end), statistics.median(lengths)
        # Beside what is promised: of each step no more than the median's time, as one that has waited for a link has waited.
        return good / length, median * len(lengths) / length, median

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

    def same_losses(self, whole, rows, since, to):
        """How many steps of a run without faults have the losses of the one with faults so far: all that it has made."""
        ours = {row["step"]: row["loss"] for row in rows}
        theirs = {row["step"]: row["loss"] for row in self.rows(whole) if since < row["step"] <= to}
        for step, loss in theirs.items():
            self.assertEqual(ours[step], loss, f"the loss of step {step} is another without faults")
        return len(theirs)

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
        saved, end, look = self.step_folder(whole, to), time.time() + WAIT + 2 * (LENGTH if since == 0 else 10 * AROUND), time.time() + 30
        while not os.path.isdir(saved):
            self.assertEqual([p.poll() for p in launchers], [None, None], f"the run without faults has ended before step {to}")
            self.assertLess(time.time(), end, f"the run without faults did not come to step {to}")
            if time.time() > look:
                look = time.time() + 30
                with contextlib.suppress(ValueError):  # a line that is just being written
                    print(f"without faults: {self.same_losses(whole, rows, since, to)} of {to - since} steps, the same losses", flush=True)
            time.sleep(0.05)
        self.stop(whole)
        self.assertEqual([p.wait(WAIT) for p in launchers], [75, 75])
        self.assertEqual(self.same_losses(whole, rows, since, to), to - since)
        self.assertEqual(self.weights(whole, to), weights, f"the weights behind step {to} are others without faults")
        shutil.rmtree(os.path.join(os.path.dirname(whole), "out", "checkpoints"))

    def hit_now(self, ini, kind, draw, begin):
        """The row of a fault."""
        at = self.log_since(ini, 0)[1]
        before = self.seen().get(0)
        self.note_last(ini)
        said, moment, restarts = self.hit(ini, kind, draw)
        row = dict(kind=kind, said=said, time=time_text(moment), at=round(moment - begin, 2), restarts=restarts)
        try:
            when, step = self.recovered(ini, moment, restarts, before)
            row.update(seconds=round(when - moment, 3), last_step=self.last, next_step=step, redone=max(0, self.last + 1 - step))
        finally:
            row.update(codes=[s.codes[:] for s in self.services], log=self.log_since(ini, at)[0])
            with open(os.path.join(self.folder, "faults.jsonl"), "a") as f:
                f.write(json.dumps(row) + "\n")
            self.tell(f"{row['at']:7.1f} s, {row['time']}: {said}; " +
                      (f"the next step came after {row['seconds']:.2f} s, {row['redone']} steps were made again" if "seconds" in row
                       else "no step came"))
        return row

    def must_be(self, fact, sentence):
        """What fails the test once all the rest has been looked at."""
        if not fact:
            self.wrong.append(sentence)
            self.tell(f"wrong: {sentence}")

    def test_faults_at_random_cost_little_and_no_bit(self):
        try:
            self.run_with_faults()
        except BaseException as why:
            self.keep_state(f"{type(why).__name__}: {str(why)[:500]}", stacks=True)
            raise
        self.assertEqual(self.wrong, [])
        self.whole = True

    def run_with_faults(self):
        draw = random.Random(SEED)
        ini = self.job("hit")
        self.services = [Service(lambda site=site: self.start_site(ini, site), self.log(ini, site)) for site in range(2)]
        launch_case.wait_for(lambda: self.rows(ini) or self.ended(), WAIT)
        self.assertEqual(self.ended(), [], "the run did not begin")
        begin, faults, spans, kept = time.time(), [], [], os.path.join(self.folder, "kept", "job.ini")
        for kind in self.kinds(draw):
            next_at = begin + EVERY * (len(faults) + draw.uniform(0.3, 0.7))
            if next_at > begin + LENGTH:
                break
            since = 0
            if AROUND:
                time.sleep(max(0, next_at - AROUND - time.time()))
                since = self.keep_one_before(ini, kept)
            time.sleep(max(0, next_at - time.time()))
            faults.append(self.hit_now(ini, kind, draw, begin))
            if AROUND:
                time.sleep(AROUND)
                to = self.save(ini)
                spans.append((since, to, self.weights(ini, to)))
        time.sleep(max(0, begin + LENGTH - time.time()))
        end = time.time()
        self.assertEqual(self.ended(), [], "a launcher has ended for good")
        self.tell_figures(ini, faults, begin, end)
        self.stop(ini)
        for s in self.services:
            s.join(WAIT)
        self.assertEqual([s.is_alive() for s in self.services], [False, False], "a launcher goes on after longhaul stop")
        codes = [s.codes for s in self.services]
        self.must_be([c[-1] for c in codes] == [75, 75], f"exit codes of launchers {codes}, expected 75 at last")
        try:
            self.nothing_is_left()
        except AssertionError as why:
            self.must_be(False, f"something is left: {why}")
        rows = self.rows(ini)
        steps = rows[-1]["step"]
        self.must_be([row["step"] for row in rows] == list(range(1, steps + 1)), "a step stands twice in the metrics, or not at all")
        begin = time.time()
        for since, to, weights in spans or [(0, steps, self.weights(ini, steps))]:
            self.is_as_if_left_alone(kept, rows, since, to, weights)
        self.tell(f"the same bits without a fault, after {time.time() - begin:.0f} s: " +
                  (f"{steps} steps" if not spans else ", ".join(f"steps {since + 1} to {to}" for since, to, _ in spans)))

    def tell_figures(self, ini, faults, begin, end):
        share, least, median = self.share(ini, begin, end)
        took = sorted(row["seconds"] for row in faults)
        p50, p99 = statistics.median(took), took[math.ceil(len(took) * 0.99) - 1]
        for kind in sorted({row["kind"] for row in faults}):
            some = sorted(row["seconds"] for row in faults if row["kind"] == kind)
            again = sum(row["redone"] for row in faults if row["kind"] == kind)
            self.tell(f"  {kind:8} {len(some):3} times, the next step after {some[0]:.2f} to {some[-1]:.2f} s, median "
                      f"{statistics.median(some):.2f} s; {again} steps were made again")
        again, cut = sum(row["redone"] for row in faults), sum(to - since for since, to in self.cuts)
        self.tell(f"{MODEL}: {len(took)} faults in {end - begin:.0f} s, seed {SEED}: goodput {100 * share:.1f} %; from a fault to the next "
                  f"step {p50:.2f} s (p50), {p99:.2f} s (p99); {again} steps were made again. Beside it: a step takes {median:.3f} s in "
                  f"the median, by which those that count were {100 * least:.1f} %; the link was cut for {cut:.0f} s")
        if LENGTH > 60:
            most = 0.97 if EVERY >= 600 else 0.88
            self.must_be(share >= most, f"goodput {100 * share:.1f} %, expected at least {100 * most:.0f} %")
            if len(took) >= 20:  # of a few, each of another kind, two are the median
                self.must_be(p50 <= 5, f"{p50:.2f} s to the next step at p50, expected at most 5 s")
            self.must_be(p99 <= 10, f"{p99:.2f} s to the next step at p99, expected at most 10 s")


def end_by_signal(*_):
    raise RuntimeError("told to end")  # and cleaned up behind it


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_by_signal)
    LAB = sys.argv[3]
    LENGTH, EVERY, SEED = [int(word) for word in sys.argv[4:7]] + [LENGTH, EVERY, SEED][len(sys.argv[4:7]):]
    MODEL = sys.argv[7] if len(sys.argv) > 7 else MODEL
    AROUND = int(sys.argv[8]) if len(sys.argv) > 8 else AROUND
    launch_case.main()
