"""Launchers of two to five hosts in two or three sites are cut into parts at random, and see each other again. The part that the rule
names goes on, no other does, and all end together with the bits of a run that had those ranks at those steps and was left alone.

Each host has a folder of its own and each site its own checkpoints, so that nothing but the rule keeps two parts from going on.

By itself: launch_partitions.py RANK_PROGRAM LONGHAUL WAN_LAB [ROUNDS [SEED]]."""
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import launch_case
import launch_train
from launch_case import LaunchCase, SOURCE, TORTURE, clean_environment

sys.path.insert(0, os.path.join(SOURCE, "tests", "lab"))
from lab import Lab, mesh, skip_unless_played
sys.path.insert(0, os.path.join(SOURCE, "tests", "integration", "pipelines"))
from pipeline_case import logical

LAB, ROUNDS, SEED = "", 20 if TORTURE else 2, 19
AT_ONCE = 3 if TORTURE else 2  # most of its time a round waits
WAIT = 200  # seconds; on a machine that does much else
HOLD = 3  # seconds; those that may not go on look each second whether they may
EVERY = 20  # steps between checkpoints
SITES = ("tokyo", "osaka", "kyoto")
KINDS = ("prefer", "neither", "witness")
WAITS = "are not most of those of the last meeting"
PLACES = """[launch]
address = 10.90.0.1
port = 29400
secret = job.key
join_timeout = 60s
rejoin = 4s
restart = 50
go_on_with = {go_on}
{tie}[transport.wan]
outage = 2s
"""

# A checkpoint, in one of the sites that have it. `ranks` as its manifest has them: "2 + 1", by site.
Made = namedtuple("Made", "site step digest parent ranks")


def model(every):
    """An INI up to where its ranks are. A small model: its checkpoints are many, and cross links."""
    text = launch_train.JOB.format(source=SOURCE, steps=100000, ranks=1)
    text = text.replace("blocks = 2\nhidden = 64\nffn = 128\nheads = 2", "blocks = 1\nhidden = 16\nffn = 32\nheads = 1")
    text = text.replace("every = 4\nkeep = 2", f"every = {every}\nkeep = 100000")
    return text[:text.index("[launch]")] + "[comm]\nprobe = no\n"


class Job:
    """What a round is of, drawn: hosts and their ranks in sites, what breaks a tie, and who is in which part."""

    def __init__(self, n):
        self.draw = draw = random.Random(f"{SEED} {n}")
        count = 2 + n % 4
        self.hosts = [f"h{h + 1}" for h in range(count)]
        self.kind = KINDS[n % len(KINDS)]
        self.machines = self.hosts + (["w1"] if self.kind == "witness" else [])
        self.sites = SITES[:min(count, draw.choice((2, 3)))]
        borders = draw.sample(range(1, count), len(self.sites) - 1)
        self.site = {host: self.sites[sum(h >= b for b in borders)] for h, host in enumerate(self.hosts)}
        self.ranks = dict.fromkeys(self.hosts, 1)
        if draw.random() < 0.5:
            self.ranks[draw.choice(self.hosts)] = 2
        self.prefer = draw.choice(self.sites)
        some = [{m: draw.randrange(parts) for m in self.machines} for parts in draw.choices((2, 3), k=200)]
        some = [part for part in some if len({part[h] for h in self.hosts}) > 1]
        halves = [part for part in some if any(2 * votes == self.all_ranks() for votes in self.votes(part).values())]
        self.part = draw.choice(halves if halves and draw.random() < 0.5 else some)
        # Sites go as a whole: those that are left of one stand with the others.
        self.go_on = "sites" if n % 5 in (1, 4) else "ranks"
        helped = [part for part in some if self.go_on == "sites" and self.helps(part)]
        if helped and draw.random() < 0.8:
            self.part = draw.choice(helped)

    def all_ranks(self):
        return sum(self.ranks.values())

    def members(self, part):
        return [h for h in self.hosts if self.part[h] == part]

    def whole_sites(self, part, of):
        """The sites of which all hosts are in one part."""
        return [s for s in self.sites if all(part[h] == of for h in self.hosts if self.site[h] == s)]

    def helps(self, part):
        """Whether one part has most votes by hosts of a site that is not whole there, and a site that is."""
        for p, votes in self.votes(part).items():
            sites = self.whole_sites(part, p)
            own = sum(self.ranks[h] for h in self.hosts if self.site[h] in sites)
            if own > 0 and 2 * own <= self.all_ranks() < 2 * votes:
                return True
        return False

    def may_train(self, part):
        return self.go_on == "ranks" or bool(self.whole_sites(self.part, part))

    def votes(self, part):
        return {p: sum(self.ranks[h] for h in self.hosts if part[h] == p) for p in set(part.values())}

    def winner(self):
        """The part that the rule names; None: all wait. Before the cut the last that had met are all hosts."""
        first = next(h for h in self.hosts if self.site[h] == self.prefer)
        decides = {"prefer": first, "witness": "w1", "neither": None}[self.kind]
        for part, votes in self.votes(self.part).items():
            if 2 * votes > self.all_ranks() or (2 * votes == self.all_ranks() and decides and self.part[decides] == part):
                return part if self.may_train(part) else None
        return None

    def whole(self):
        """As Made.ranks has it."""
        return " + ".join(str(sum(self.ranks[h] for h in self.hosts if self.site[h] == s)) for s in self.sites)

    def layout(self):
        return "." * len(self.hosts)

    def ini(self, folder):
        tie = {"prefer": f"prefer = {self.prefer}\n", "witness": "witness = w1\n", "neither": ""}[self.kind]
        text = model(EVERY) + PLACES.format(tie=tie, go_on=self.go_on)
        for site in self.sites:
            hosts = [h for h in self.hosts if self.site[h] == site]
            text += f"[site.{site}]\nhosts = " + ", ".join(f"{h}:{self.ranks[h]}" for h in hosts)
            text += "\naddresses = " + ", ".join(f"10.90.0.{self.hosts.index(h) + 1}" for h in hosts)
            text += f"\ncheckpoint_folder = {os.path.join(folder, site)}\n"
        return text

    def __str__(self):
        parts = " | ".join(" ".join(f"{m}:{self.ranks[m]}@{self.site[m]}" if m in self.ranks else m for m in self.machines
                                    if self.part[m] == p) for p in sorted(set(self.part.values())))
        tie = {"prefer": f"{self.prefer} preferred", "witness": "a witness", "neither": "nothing for a tie"}[self.kind]
        return f"{parts}, {tie}, {self.go_on}"


class Partitions(LaunchCase):
    def case(self):
        """For rounds beside those of others: a folder and a mark of its own."""
        made = type(self)()
        made.setUp()
        made.processes, made.known = {}, {}
        return made

    def end_round(self):
        """Nothing of a round stays, also where that failed."""
        launch_case.kill_processes_with(self.mark)
        for process in self.processes.values():
            process.wait()
        self.doCleanups()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def furnish(self, name, ini, corpus):
        """A machine's folder, with the text as it was prepared once for all."""
        shutil.copytree(corpus, self.path(name, "out"), ignore=lambda _, files: [
            f for f in files if not re.fullmatch(r"corpus\..*|prepare\.json", f)])
        with open(self.path(name, "job.ini"), "w") as f:
            f.write(ini)
        with open(self.path(name, "job.key"), "w") as f:
            f.write("0123456789abcdef" * 4 + "\n")
        os.chmod(f.name, 0o600)

    def start_machine(self, name, *flags, lab=None, site=0):
        command = [launch_case.LONGHAUL, "train", self.path(name, "job.ini"), *flags]
        with open(self.path(name, "said"), "a") as f:
            more = dict(stdin=subprocess.DEVNULL, stdout=f, stderr=f, env=clean_environment(LH_MARK=self.folder))
            process = subprocess.Popen(command, **more) if lab is None else lab.popen(site, command, **more)
        self.processes[name] = process
        return process

    # ---- what machines tell

    def said(self, name):
        return launch_case.read(self.path(name, "said"))

    def come(self, what, fact, ends=False):
        """Waits for it, as long as all launchers live; ends: they may end."""
        end = time.time() + WAIT
        while not fact():
            ended = {name: p.returncode for name, p in self.processes.items() if p.poll() is not None}
            if (ended and not ends) or time.time() > end:
                logs = "".join(f"\n---- {name}\n{self.said(name)[-4000:]}" for name in self.processes)
                self.fail(f"{self.job}: {what}; have ended: {ended or 'none'}{logs}")
            time.sleep(0.05)

    def met(self, name):
        """The last meeting that a machine remembers: epoch and layout."""
        try:
            found = re.search(r"(?m)^met (\d+):(\S+)$", launch_case.read(self.path(name, "out", ".votes-" + name)))
        except FileNotFoundError:
            found = None
        return (int(found[1]), found[2]) if found else (0, "")

    def all_met(self, names, after=0):
        """All hosts in one meeting, of which these know."""
        first = self.met(names[0])
        return first[0] > after and first[1] == self.job.layout() and all(self.met(name) == first for name in names)

    def begun(self, name):
        """How often a training was gone on with where this machine led."""
        path = self.path(name, "out", "metrics.jsonl")
        return launch_case.read(path).count('"restart"') if os.path.exists(path) else 0

    def read_manifest(self, site, folder):
        manifest = json.loads(launch_case.read(os.path.join(folder, "manifest.json")))
        ranks = (re.search(r"(?m)^ranks of sites = (.*)$", manifest["model"])
                 or re.search(r"(?m)^launch\.ranks = (.*)$", manifest["model"]))  # of one rank
        return Made(site, manifest["step"], manifest["self"], manifest["parent"], ranks[1])

    def made(self):
        """All checkpoints that were ever seen, in all sites; those that were set aside, too. They come whole, by a rename."""
        for site in self.job.sites:
            folder = self.path(site)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = os.path.join(folder, name)
                if path in self.known or not re.fullmatch(r"(\w+-)?step-\d{12}(\.\d+)?", name):
                    continue
                with contextlib.suppress(FileNotFoundError):  # renamed since
                    self.known[path] = self.read_manifest(site, path)
        return list(self.known.values())

    def newest(self):
        return max((m.step for m in self.made()), default=0)

    # ---- a round

    def steady(self, names, after=0):
        """All have met, and a checkpoint has been made by all since."""
        self.come("not all have met", lambda: self.all_met(names, after))
        step = self.newest()
        self.come("those that have met save nothing", lambda: any(
            m.step > step and m.ranks == self.job.whole() for m in self.made()))

    def gone_on(self):
        """Two checkpoints by fewer ranks, behind all that was made by all."""
        whole = max((m.step for m in self.made() if m.ranks == self.job.whole()), default=0)
        return len({m.step for m in self.made() if m.ranks != self.job.whole() and m.step > whole}) > 1

    def others_have_waited(self, winner, begun):
        """Who is not of the part that goes on has met nobody since the cut, trains nothing, and commits nothing."""
        job = self.job
        for name in job.hosts:
            if job.part[name] != winner:
                self.assertEqual((self.met(name)[1], self.begun(name)), (job.layout(), begun[name]), f"{job}: {name} has gone on")
        theirs = {job.site[h] for h in job.hosts if job.part[h] == winner}
        for m in self.made():
            if m.site not in theirs:
                self.assertEqual(m.ranks, job.whole(), f"{job}: {m} was made beside the part that goes on")

    def no_end_is_noted(self):
        """A training that has come to its end stands in stages.json, where it was led."""
        for name in self.job.hosts:
            path = self.path(name, "out", "stages.json")
            self.assertNotIn('"train"', launch_case.read(path) if os.path.exists(path) else "", f"{self.job}: {name}")

    def cut_and_heal(self, lab):
        job, winner = self.job, self.job.winner()
        self.steady(job.machines)
        time.sleep(job.draw.uniform(0, 0.5))
        begun = {name: self.begun(name) for name in job.hosts}
        waits = {name: self.said(name).count(WAITS) for name in job.hosts}
        apart = [k for k, link in enumerate(lab.links) if job.part[job.machines[link.a]] != job.part[job.machines[link.b]]]
        for k in apart:
            lab.cut(k)
        begin = time.time()
        for part in sorted(set(job.part.values()) - {winner}):
            hosts = job.members(part)
            if hosts and job.may_train(part):  # else they wait for whoever is missing, as ever
                self.come(f"none of {hosts} says that they wait", lambda: any(self.said(h).count(WAITS) > waits[h] for h in hosts))
        if winner is None:
            time.sleep(HOLD)
        else:
            self.come(f"{job.members(winner)} do not go on", self.gone_on)
        took = time.time() - begin
        self.others_have_waited(winner, begun)
        self.no_end_is_noted()
        last = max(self.met(name)[0] for name in job.hosts)
        for k in apart:
            lab.heal(k)
        begin = time.time()
        self.steady(job.hosts, last)
        return took, time.time() - begin

    def stop(self):
        """Where rank 0 is again; the last step is saved in all sites."""
        done = subprocess.run([launch_case.LONGHAUL, "stop", self.path("h1", "out")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{self.job}: {done.stderr}")
        self.come("launchers do not end", lambda: all(self.processes[h].poll() is not None for h in self.job.hosts), ends=True)
        if "w1" in self.processes and self.processes["w1"].poll() is None:
            self.processes["w1"].terminate()  # the job's end may have found it between two connections
        codes = {name: p.wait(WAIT) for name, p in self.processes.items()}
        self.assertIn(codes.pop("w1", 0), (0, 75))
        self.assertEqual(codes, dict.fromkeys(self.job.hosts, 75), f"{self.job}: {[self.said(h)[-2000:] for h in self.job.hosts]}")

    def history(self, winner):
        """The checkpoints from the first to the last, each made behind the one before it. What is not among them was committed by all
        as the cut came, in a site of which nobody went on."""
        job, made = self.job, self.made()
        by = {m.digest: m for m in made}
        last = [m for m in made if m.step == self.newest()]
        self.assertEqual(({m.site for m in last}, len({m.digest for m in last})), (set(job.sites), 1), f"{job}: {last}")
        line = [last[0]]
        while line[0].parent:
            self.assertIn(line[0].parent, by, f"{job}: what {line[0]} was made behind is not there")
            line.insert(0, by[line[0].parent])
        digests = {m.digest for m in line}
        theirs = {job.site[h] for h in job.hosts if job.part[h] == winner}
        for m in made:
            if m.digest not in digests:
                self.assertEqual((m.ranks, m.site in theirs, m.parent in digests | {""}), (job.whole(), False, True),
                                 f"{job}: {m} is beside the history of {line[-1]}")
        fewer = [m for m in line if m.ranks != job.whole()]
        if winner is not None:
            self.assertTrue(fewer, f"{job}: {line}")
        else:
            # Not while they were cut (cut_and_heal looks); once they are together most of them may be, before the last has come.
            for m in fewer if job.go_on == "ranks" else ():
                self.assertGreater(2 * sum(map(int, m.ranks.split(" + "))), sum(job.ranks.values()), f"{job}: {line}")
        return line

    def again(self, line, corpus):
        """A run with the same ranks at the same steps, which nothing happens to; on this machine alone. The folder of its last checkpoint."""
        runs = []
        for m in line:
            if not runs or runs[-1][0] != m.ranks:
                runs.append([m.ranks, 0])
            runs[-1][1] = m.step
        self.processes, before = {}, 0
        for ranks, step in runs:
            sites = ranks.split(" + ")
            places = "".join(f"[site.s{i}]\nhosts = localhost:{count}\n" for i, count in enumerate(sites))
            ini = model(step) + (places if ranks != "1" else "")
            if before == 0:
                self.furnish("again", ini, corpus)
            with open(self.path("again", "job.ini"), "w") as f:
                f.write(ini)
            said = len(self.said("again")) if before else 0
            process = self.start_machine("again", "--set", "train.same_bits=no", *(("--resume", str(before)) if before else ()))
            # What it says, not what is there: the run before has made some steps more than it was asked for, maybe this one.
            self.come(f"no undisturbed run of {ranks} ranks from step {before} to {step}",
                      lambda: f"step {step} saved to " in self.said("again")[said:])
            process.terminate()
            self.assertEqual(process.wait(WAIT), 75, f"{self.job}: {self.said('again')[-4000:]}")
            before = step
        return self.path("again", "out", "checkpoints", f"step-{before:012d}")

    def round(self, n, corpus):
        self.job = job = Job(n)
        winner = job.winner()
        lab = Lab(LAB, mesh(len(job.machines), delay=0.002))
        self.addCleanup(lab.close)
        for site, name in enumerate(job.machines):
            self.furnish(name, job.ini(self.folder), corpus)
            self.start_machine(name, "--host", name, lab=lab, site=site)
        went_on, back = self.cut_and_heal(lab)
        self.stop()
        self.no_end_is_noted()
        line = self.history(winner)
        self.come("processes are left", lambda: not launch_case.processes_with(self.mark), ends=True)
        begin = time.time()
        whole = logical(self.again(line, corpus))
        same = logical(self.path(job.sites[0], f"step-{line[-1].step:012d}")) == whole
        self.assertTrue(same, f"{job}: step {line[-1].step} has other bits than the run that was left alone; {[(m.ranks, m.step) for m in line]}")
        what = f"{' '.join(job.members(winner))} went on" if winner is not None else "all wait"
        print(f"round {n}: {job}: {what} after {went_on:.1f} s, all together {back:.1f} s after the cut; {line[-1].step} steps, again in "
              f"{time.time() - begin:.1f} s", flush=True)

    def test_of_parts_that_do_not_see_each_other_one_goes_on_at_most(self):
        first = self.case()
        self.addCleanup(first.end_round)
        with open(first.path("job.ini"), "w") as f:
            f.write(model(EVERY))
        subprocess.run([launch_case.LONGHAUL, "prepare", first.path("job.ini")], check=True, capture_output=True)

        def run(n):
            case = self.case()
            with contextlib.ExitStack() as ends:
                ends.callback(case.end_round)
                case.round(n, first.path("out"))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            ends = [threads.submit(run, n) for n in range(ROUNDS)]
        for n, end in enumerate(ends):
            with self.subTest(n=n):
                end.result()


if __name__ == "__main__":
    LAB = sys.argv[3]
    ROUNDS, SEED = [int(word) for word in sys.argv[4:6]] + [ROUNDS, SEED][len(sys.argv[4:6]):]
    skip_unless_played(LAB)
    launch_case.main()
