"""What is left of a run when ranks, machines, bits of memory or the checkpoints of a site are lost: it ends as if nothing had been."""
import json
import os
import random
import re
import shutil
import signal
import struct
import time

import launch_case
from launch_case import SOURCE
from launch_restart import Training, WAIT
import launch_train

STEPS = 100
HOSTS = ("t1", "o1")
PAGE = 4096
SEALED = re.compile(r"step (\d+) was whole in memory \((\d) of (\d) snapshots with a partner\) and is saved: ")


class Memory(Training):
    """No test of its own is inherited: those of Training run where they are."""

    undisturbed = {}  # see whole

    def job(self, folder, more="", memory=2, every=1000, ranks=4):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        text = launch_train.JOB.format(source=SOURCE, steps=STEPS, ranks=ranks).replace("batch = 6", "batch = 8")
        text = text.replace("every = 4\n", f"every = {every}\nmemory_every = {memory}\npatience = 60s\n")  # a busy disk skips none
        if "[site." in more:
            text = text.replace(f"ranks_per_node = {ranks}\n", "")
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(text + more)
        return os.path.join(path, "job.ini")

    def whole(self, more=""):
        """The weights and losses of a run in which nothing is lost: one for all tests of four ranks, one for all of two sites. What
        is saved, and when, changes neither."""
        sites = "[site." in more
        if sites not in Memory.undisturbed:
            ini = self.job("whole", more, memory=0)
            for p in [self.start_run(ini, "--host", host) for host in HOSTS] if sites else [self.start_run(ini)]:
                code, _, err = self.finish(p, WAIT)
                self.assertEqual(code, 0, err)
            Memory.undisturbed[sites] = self.weights(ini, STEPS), self.losses(ini)
        return Memory.undisturbed[sites]

    def log(self, ini, name="train.log"):
        return launch_case.read(os.path.join(os.path.dirname(ini), "out", name))

    def restarts(self, ini):
        return [row["restart"] for row in self.rows(ini) if "restart" in row]

    def same_as(self, ini, whole):
        self.assertEqual((self.weights(ini, STEPS), self.losses(ini)), whole)

    def kept(self, ini):
        """The last step that all say is whole in memory; 0: none yet."""
        try:
            return max((row["step"] for row in self.rows(ini) if row.get("save", {}).get("memory")), default=0)
        except (OSError, ValueError):
            return 0

    def test_a_rank_that_is_killed_costs_the_steps_since_the_last_snapshot(self):
        whole = self.whole()
        ini = self.job("cut", "restart = 9\n")
        process = self.start_run(ini)
        begin = 0  # what was taken from memory is on disk since
        for number, (step, victim) in enumerate(((9, 2), (23, 0), (40, 3)), 1):
            launch_case.wait_for(lambda: self.reached(ini, step) and self.kept(ini) > begin and len(self.seen()) == 4, WAIT)
            kept = self.kept(ini)
            os.kill(self.seen()[victim], signal.SIGKILL)
            launch_case.wait_for(lambda: len(self.restarts(ini)) == number, WAIT)
            last = self.restarts(ini)[-1]
            self.assertGreaterEqual(last["memory_step"], kept)
            begin = last["memory_step"]
            checkpoints = os.listdir(os.path.join(os.path.dirname(ini), "out", "checkpoints"))
            self.assertIn(f"step-{last['memory_step']:012d}", checkpoints)
        code, _, err = self.finish(process, WAIT)
        self.assertEqual(code, 0, err)
        self.assertEqual(len(SEALED.findall(err)), 3, err)
        self.same_as(ini, whole)
        state = json.loads(self.log(ini, "status.json"))
        self.assertGreater(state["in_memory"]["step"], 40)
        self.nothing_is_left()

    def test_a_machine_that_is_lost_leaves_its_snapshots_with_its_partner(self):
        port = launch_case.free_port()
        more = (f"address = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = 30s\nrestart = 5\n"
                "[site.tokyo]\nhosts = t1:2\n[site.osaka]\nhosts = o1:2\n")
        whole = self.whole(more)
        for lost in (1, 0) if launch_case.TORTURE else (1,):
            ini = self.job(f"lost-{lost}", more)
            launchers = [self.start_run(ini, "--host", host) for host in HOSTS]
            launch_case.wait_for(lambda: self.kept(ini) >= 6 and len(self.seen()) == 4, WAIT)
            launchers[lost].kill()  # the ranks of a launcher end with it, and so does its memory
            launchers[lost].communicate()
            launchers[lost] = self.start_run(ini, "--host", HOSTS[lost], "--resume")
            results = [self.finish(p, WAIT) for p in launchers]
            self.assertEqual([code for code, _, _ in results], [0, 0], results)
            said = SEALED.search(results[0][2])
            self.assertIsNotNone(said, results)
            self.assertEqual(said.groups()[1:], ("2", "4"))
            self.assertGreaterEqual(int(said.group(1)), 6)
            self.same_as(ini, whole)
            self.nothing_is_left()

    def test_one_rank_that_is_left_goes_on_from_its_snapshot_and_its_partners(self):
        """And makes snapshots again with the other, also where its launcher began with one rank."""
        port = launch_case.free_port()
        more = (f"address = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = 30s\nrejoin = 4s\nrestart = 5\n"
                "go_on_with = ranks\nprefer = tokyo\n[site.tokyo]\nhosts = t1:1\n[site.osaka]\nhosts = o1:1\n")
        ini = self.job("left", more, every=50)
        more_steps = ("--set", "train.steps=100000")
        launchers = [self.start_run(ini, "--host", host, *more_steps) for host in HOSTS]
        launch_case.wait_for(lambda: self.kept(ini) >= 6 and len(self.seen()) == 2, WAIT)
        launchers[1].kill()
        launchers[1].communicate()
        launch_case.wait_for(lambda: self.restarts(ini) and len(self.seen()) == 1 and "osaka/o1 is gone" in self.log(ini), WAIT)
        last = self.restarts(ini)[-1]
        self.assertGreaterEqual(last["memory_step"], 6)
        launch_case.wait_for(lambda: self.reached(ini, last["memory_step"] + 2), WAIT)
        launchers[0].kill()  # its launcher remembers a layout of one rank
        launchers[0].communicate()
        launchers = [self.start_run(ini, "--host", host, "--resume", *more_steps) for host in HOSTS]
        launch_case.wait_for(lambda: "osaka/o1 is back" in self.log(ini), WAIT)
        step = max(self.losses(ini))
        launch_case.wait_for(lambda: self.kept(ini) > step, WAIT)
        for p in launchers:
            p.terminate()
        results = [self.finish(p, WAIT) for p in launchers]
        self.assertEqual([r[0] for r in results], [75, 75])
        self.assertNotIn("no rank's snapshots stay in memory", results[0][2])
        self.nothing_is_left()

    # ---- bits that change

    def memory_of(self, launcher, rank):
        """The file of a rank's snapshots, which its launcher holds: in the order of ranks."""
        folder = f"/proc/{launcher.pid}/fd"
        files = sorted((int(n) for n in os.listdir(folder)
                        if "longhaul-snapshots" in os.readlink(os.path.join(folder, n))))
        return os.path.join(folder, str(files[rank]))

    def slots(self, path):
        """Where each slot begins, and the step it holds; 0: it is empty."""
        with open(path, "rb") as f:
            _, count = struct.unpack("<QI", f.read(12))
            f.seek(16)
            begins = [struct.unpack("<QQ", f.read(16))[0] for _ in range(count)]
            found = []
            for begin in begins:
                f.seek(begin)
                magic, _, step = struct.unpack("<QQQ", f.read(24))
                found.append((begin, step if magic != 0 else 0))
        return found

    def test_a_bit_that_changes_in_memory_is_found_and_the_older_step_taken(self):
        whole = self.whole()
        ini = self.job("flip", "restart = 9\n", memory=5)
        process = self.start_run(ini)
        launch_case.wait_for(lambda: self.kept(ini) >= 10 and len(self.seen()) == 4, WAIT)
        for _ in range(50):
            ranks = self.seen()
            for pid in ranks.values():
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.05)  # what savers do goes on
            slots = [self.slots(self.memory_of(process, r)) for r in range(4)]
            steps = {tuple(sorted(step for _, step in of)) for of in slots}
            if len(steps) == 1 and min(min(steps)) > 0:
                break
            for pid in ranks.values():
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.03)
        else:
            self.fail("no moment at which all slots were whole")
        older, newer = min(steps)
        begin = next(b for b, step in slots[1] if step == newer)
        with open(self.memory_of(process, 1), "r+b") as f:
            f.seek(begin + PAGE + 1000)
            byte = f.read(1)[0]
            f.seek(begin + PAGE + 1000)
            f.write(bytes([byte ^ 4]))
        for pid in ranks.values():  # one that went on would begin the next snapshot in the older slot
            os.kill(pid, signal.SIGKILL)
        code, _, err = self.finish(process, WAIT)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, rf"rank 1: warning: rank 1's snapshot of step {newer} in memory is damaged: tensor \S+: its bytes hash to ")
        self.assertIn(f"step {older} was whole in memory (0 of 4 snapshots with a partner) and is saved: "
                      "there was no checkpoint on disk", err)
        self.same_as(ini, whole)

    def test_what_is_newer_on_disk_is_taken(self):
        ini = self.job("job", "restart = 9\n", memory=3, every=20)
        process = self.start_run(ini)
        folder = os.path.join(os.path.dirname(ini), "out", "checkpoints", f"step-{20:012d}")
        launch_case.wait_for(lambda: os.path.isdir(folder) and len(self.seen()) == 4, WAIT)
        os.kill(self.seen()[1], signal.SIGKILL)
        code, _, err = self.finish(process, WAIT)
        self.assertEqual(code, 0, err)
        first = self.restarts(ini)[0]
        self.assertTrue("memory_step" not in first or first["memory_step"] > 20, first)

    def test_ranks_that_others_start_are_warned(self):
        """Nobody holds memory for them."""
        ini = self.job("job", ranks=1)
        run = self.start_run(ini, "--set", "train.steps=6", "--set", "launch.restart=3")
        code, _, err = self.finish(run, WAIT)  # alone: there is nobody to start it again
        self.assertEqual(code, 0, err)
        self.assertIn("warning: [launch] restart = 3: one rank has no launcher that would start it again\n", err)
        self.assertNotIn("memory", err)
        shutil.rmtree(os.path.join(os.path.dirname(ini), "out", "checkpoints"))
        port = launch_case.free_port()
        processes = []
        for rank in range(2):
            os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank),
                              LOCAL_WORLD_SIZE="2")
            processes.append(launch_case.subprocess.Popen(
                [launch_case.LONGHAUL, "train", ini, "--set", "launch.secret=job.key", "--set", "train.steps=6",
                 "--set", "launch.ranks_per_node=2"], text=True,
                stdout=launch_case.subprocess.PIPE, stderr=launch_case.subprocess.PIPE, env=dict(os.environ, LH_MARK=self.folder)))
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name)
        results = [self.finish(p, WAIT) for p in processes]
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        self.assertIn("warning: [checkpoint] memory_every: no rank's snapshots stay in memory", results[0][2])


class Sites(Memory):
    """Two sites, each with a folder of checkpoints that the other does not look into."""

    def places(self, port):
        return (f"address = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = 30s\nrestart = 0\n"
                "[site.tokyo]\nhosts = t1:2\n[site.osaka]\nhosts = o1:2\ncheckpoint_folder = osaka\n")

    def setUp(self):
        super().setUp()
        self.more = self.places(launch_case.free_port())

    def start_sites(self, ini, *flags):
        return [self.start_run(ini, "--host", host, *flags) for host in HOSTS]

    def end_sites(self, ini, *flags, codes=(0, 0)):
        results = [self.finish(p, WAIT) for p in self.start_sites(ini, *flags)]
        self.assertEqual(tuple(code for code, _, _ in results), codes, results)
        return results

    def reference(self):
        """The losses of a run of both sites in which nothing is lost."""
        return self.whole(self.more.replace("checkpoint_folder = osaka\n", ""))[1]

    def folders(self, ini):
        out = os.path.join(os.path.dirname(ini), "out")
        return os.path.join(out, "checkpoints"), os.path.join(out, "osaka")

    def steps(self, folder):
        return sorted(n for n in os.listdir(folder) if n.startswith("step-")) if os.path.isdir(folder) else []

    def files(self, folder):
        """All that is in it, but for what people may never see."""
        found = {}
        for top, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(top, name)
                if name != ".lock" and "/." not in path[len(folder):]:
                    found[os.path.relpath(path, folder)] = launch_case.read(path, "rb")
        return found

    def test_each_site_has_a_copy_and_gets_what_it_lacks(self):
        ini = self.job("job", self.more, memory=0, every=15)
        self.end_sites(ini, "--set", "train.steps=30")
        tokyo, osaka = self.folders(ini)
        self.assertEqual(self.steps(tokyo), ["step-000000000015", "step-000000000030"])
        self.assertEqual(self.files(tokyo), self.files(osaka))
        # One that has lost the newest, one that is new; each of the two sites, as rank 0 is in one of them.
        for steps, lacks, all_of_it in ((32, osaka, False), (34, tokyo, False), (36, osaka, True), (STEPS, tokyo, True)):
            newest = self.steps(lacks)[-1]
            before = self.files(os.path.join(lacks, newest))
            shutil.rmtree(lacks if all_of_it else os.path.join(lacks, newest))
            results = self.end_sites(ini, "--resume", "--set", f"train.steps={steps}")
            self.assertIn("was brought to the sites that lacked it", results[0][2])
            self.assertEqual(self.files(os.path.join(lacks, newest)) if newest in self.steps(lacks) else before, before)
            last = f"step-{steps:012d}"
            self.assertEqual(self.files(os.path.join(tokyo, last)), self.files(os.path.join(osaka, last)))
        self.assertEqual(self.losses(ini), self.reference())

    def test_killed_at_any_moment_no_site_has_half_of_a_copy(self):
        ini = self.job("job", self.more, memory=0, every=3)
        tokyo, osaka = self.folders(ini)
        random.seed(23)
        for round_ in range(12 if launch_case.TORTURE else 4):
            launchers = self.start_sites(ini, *(("--resume",) if round_ else ()))
            before = set(self.steps(tokyo))
            launch_case.wait_for(lambda: set(self.steps(tokyo)) - before or all(p.poll() is not None for p in launchers), WAIT)
            time.sleep(random.random() * 0.3)
            for p in launchers:
                p.kill()
            for p in launchers:
                p.communicate()
            launch_case.wait_for(lambda: not launch_case.processes_with(self.mark), WAIT)
            for folder in (tokyo, osaka):
                if self.steps(folder):
                    done = launch_case.subprocess.run([launch_case.LONGHAUL, "verify", folder], capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            if self.reached(ini, STEPS):
                break
        self.end_sites(ini, "--resume")
        self.assertEqual(self.files(os.path.join(tokyo, f"step-{STEPS:012d}")), self.files(os.path.join(osaka, f"step-{STEPS:012d}")))
        self.assertEqual(self.losses(ini), self.reference())

    def damage(self, folder):
        """The last byte of each file, which is a tensor's. All ranks load all tensors."""
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                with open(os.path.join(folder, name), "r+b") as f:
                    f.seek(-1, os.SEEK_END)
                    byte = f.read(1)[0]
                    f.seek(-1, os.SEEK_END)
                    f.write(bytes([byte ^ 4]))

    def test_a_copy_that_is_damaged_in_one_site_comes_from_another(self):
        """No step is made again for it. Where all copies are damaged the step before is gone on from."""
        ini = self.job("job", self.more, memory=0, every=15)
        folders, names = self.folders(ini), ("tokyo", "osaka")
        keep = ("--set", "checkpoint.keep=9")
        self.end_sites(ini, *keep, "--set", "train.steps=30")
        for damaged, steps in (((1,), 32), ((0,), 34), ((0, 1), 36)):
            newest = self.steps(folders[0])[-1]
            before = self.files(os.path.join(folders[0], newest))
            for site in damaged:
                self.damage(os.path.join(folders[site], newest))
            results = self.end_sites(ini, "--resume", *keep, "--set", f"train.steps={steps}")
            said = "".join(err for _, _, err in results)
            for site in (0, 1):
                self.assertEqual("damaged-" + newest in os.listdir(folders[site]), site in damaged)
            last = json.loads(launch_case.read(os.path.join(folders[0], f"step-{steps:012d}", "manifest.json")))
            if len(damaged) == 1:
                self.assertIn(f"site {names[damaged[0]]}: its copy of step {int(newest[5:])} is damaged (", said)
                self.assertIn(f"): that of site {names[1 - damaged[0]]} is taken", said)
                self.assertTrue(self.files(os.path.join(folders[damaged[0]], newest)) == before)
                self.assertEqual(last["parent"], json.loads(before["manifest.json"])["self"])
            else:
                self.assertNotIn("): that of site ", said)
                self.assertNotIn(newest, self.steps(folders[0]) + self.steps(folders[1]))
            self.assertTrue(self.files(os.path.join(folders[0], f"step-{steps:012d}")) == self.files(os.path.join(folders[1], f"step-{steps:012d}")))

    def test_a_site_that_failed_to_commit_once_holds_the_same_afterwards(self):
        """What stands in the way of one save is no checkpoint; those after it name one that the site never had, or had alone."""
        for blocked in (1, 0):
            ini = self.job(f"blocked-{blocked}", self.more, memory=0, every=45)
            tokyo, osaka = folders = self.folders(ini)
            os.makedirs(folders[blocked])
            with open(os.path.join(folders[blocked], f"step-{45:012d}"), "w"):
                pass
            results = self.end_sites(ini, "--set", "checkpoint.keep=3")
            self.assertRegex(results[0][2], "step 45 was not saved: .*cannot rename")
            self.assertEqual(os.path.isdir(os.path.join(folders[1 - blocked], f"step-{45:012d}")), True)
            for steps in (90, STEPS):
                last = f"step-{steps:012d}"
                self.assertTrue(self.files(os.path.join(tokyo, last)) == self.files(os.path.join(osaka, last)))
            self.end_sites(ini, "--resume", "--set", f"train.steps={STEPS + 2}")

    def test_a_manifest_of_more_than_one_message_comes_whole(self):
        ini = self.job("job", self.more, memory=0)
        with open(ini) as f:
            text = f.read()
        with open(ini, "w") as f:
            f.write(text.replace("blocks = 2\nhidden = 64\nffn = 128\nheads = 2", "blocks = 140\nhidden = 16\nffn = 16\nheads = 1"))
        self.end_sites(ini, "--set", "train.steps=2")
        tokyo, osaka = self.folders(ini)
        self.assertGreater(os.path.getsize(os.path.join(tokyo, f"step-{2:012d}", "manifest.json")), 512 << 10)
        for steps, lacks in ((3, osaka), (4, tokyo)):
            newest = os.path.join(lacks, self.steps(lacks)[-1])
            before = self.files(newest)
            shutil.rmtree(lacks)
            results = self.end_sites(ini, "--resume", "--set", f"train.steps={steps}")
            self.assertIn("was brought to the sites that lacked it", results[0][2])
            self.assertTrue(self.files(newest) == before)

    def test_sites_that_hold_other_training_are_refused(self):
        ini = self.job("job", self.more, memory=0, every=15)
        self.end_sites(ini, "--set", "train.steps=15")
        tokyo, osaka = self.folders(ini)
        shutil.move(osaka, osaka + ".kept")
        shutil.rmtree(tokyo)
        self.end_sites(ini, "--set", "train.steps=15", "--set", "train.seed=2")
        shutil.rmtree(osaka)
        shutil.move(osaka + ".kept", osaka)
        results = self.end_sites(ini, "--resume", codes=(1, 1))
        self.assertIn("sites have different checkpoints of step 15, as rank 2's and others", results[0][2])

    def end_tokyo_alone(self, ini, *flags):
        alone = os.path.join(os.path.dirname(ini), "alone.ini")
        with open(alone, "w") as f:
            f.write(launch_case.read(ini).replace("[site.osaka]\nhosts = o1:2\ncheckpoint_folder = osaka\n", ""))
        code, _, err = self.finish(self.start_run(alone, "--host", "t1", *flags), WAIT)
        self.assertEqual(code, 0, err)

    def test_a_site_takes_what_the_run_has_gone_on_from_without_it(self):
        """Step 30 is saved in osaka alone; then tokyo goes on by itself, from step 15, and makes 30 again with fewer ranks. Where osaka has
        a newer step, too, that does not count either."""
        for newer in (False, True):
            ini = self.job(f"job-{newer}", self.more, memory=0, every=15)
            tokyo, osaka = self.folders(ini)
            keep = ("--set", "checkpoint.keep=9")
            os.makedirs(tokyo)
            with open(os.path.join(tokyo, f"step-{30:012d}"), "w"):
                pass
            results = self.end_sites(ini, *keep, "--set", "train.steps=32")
            self.assertRegex(results[0][2], "step 30 was not saved: .*cannot rename")
            os.remove(os.path.join(tokyo, f"step-{30:012d}"))
            for folder in (tokyo, osaka)[:1 if newer else 2]:
                shutil.rmtree(os.path.join(folder, f"step-{32:012d}"))
            stale = {f"step-{step:012d}": self.files(os.path.join(osaka, f"step-{step:012d}")) for step in ((30, 32) if newer else (30,))}
            others = ("--resume", *keep, "--set", "train.same_bits=no")
            self.end_tokyo_alone(ini, *others, "--set", "train.steps=30")
            theirs = self.files(os.path.join(tokyo, f"step-{30:012d}"))
            results = self.end_sites(ini, *others, "--set", "train.steps=34")
            for step in (30, 32) if newer else (30,):
                self.assertEqual(results[0][2].count(
                    f"warning: site osaka: its checkpoint of step {step} was made in incarnation 1 of the run, which has gone on without it in "
                    f"incarnation 2: it is set aside there as stale-step-{step:012d}\n"), 1, results)
            self.assertEqual(sorted(n for n in os.listdir(osaka) if "-step-" in n), sorted("stale-" + n for n in stale))
            self.assertEqual(self.steps(tokyo), [f"step-{step:012d}" for step in (15, 30, 34)])
            self.assertEqual(self.steps(osaka), self.steps(tokyo))
            for name, files in stale.items():
                self.assertTrue(self.files(os.path.join(osaka, "stale-" + name)) == files)
            self.assertTrue(self.files(os.path.join(osaka, f"step-{30:012d}")) == theirs)
            last = f"step-{34:012d}"
            self.assertTrue(self.files(os.path.join(tokyo, last)) == self.files(os.path.join(osaka, last)))
            shared = [json.loads(launch_case.read(os.path.join(tokyo, name, "manifest.json"))) for name in self.steps(tokyo)]
            self.assertEqual([m["scalars"]["incarnation"] for m in shared], ["1", "2", "3"])
            self.assertEqual([m["parent"] for m in shared], ["", shared[0]["self"], shared[1]["self"]])

    def test_of_many_steps_that_the_run_has_gone_on_without_each_is_told(self):
        """More than a site tells at a time. Osaka has them from the first start; tokyo went on from step 10 by itself."""
        ini = self.job("job", self.more, memory=0, every=2)
        tokyo, osaka = self.folders(ini)
        others = ("--resume", "--set", "checkpoint.keep=99", "--set", "train.same_bits=no")
        self.end_sites(ini, *others[1:], "--set", "train.steps=30")
        stale = [f"step-{step:012d}" for step in range(12, 31, 2)]
        for name in stale:
            shutil.rmtree(os.path.join(tokyo, name))
        self.end_tokyo_alone(ini, *others, "--set", "train.steps=12")
        results = self.end_sites(ini, *others, "--set", "train.steps=14")
        for name in stale:
            self.assertEqual(results[0][2].count(f"it is set aside there as stale-{name}\n"), 1, results)
        self.assertEqual(sorted(n for n in os.listdir(osaka) if "-step-" in n), ["stale-" + name for name in stale])
        self.assertEqual(self.steps(tokyo), [f"step-{step:012d}" for step in range(2, 15, 2)])
        self.assertEqual(self.steps(osaka), self.steps(tokyo))

    def test_a_run_is_not_begun_over_what_one_site_holds(self):
        ini = self.job("job", self.more, memory=0, every=15)
        self.end_sites(ini, "--set", "train.steps=15")
        shutil.rmtree(self.folders(ini)[0])
        results = self.end_sites(ini, codes=(1, 1))
        self.assertIn("a site holds step 15 of an earlier run; go on from it with --resume", results[0][2])

    def test_a_machine_that_is_lost_with_its_memory_and_its_disk(self):
        """Its site is left with nothing; the other has all images, and sends what comes of them. A sample loses rank 0's machine:
        the other one is lost where snapshots are left with a partner."""
        more = self.more.replace("restart = 0\n", "restart = 5\n")
        for lost in (1, 0) if launch_case.TORTURE else (0,):
            ini = self.job(f"lost-{lost}", more)
            launchers = self.start_sites(ini)
            launch_case.wait_for(lambda: self.kept(ini) >= 6 and len(self.seen()) == 4, WAIT)
            launchers[lost].kill()
            launchers[lost].communicate()
            shutil.rmtree(self.folders(ini)[lost], True)
            launchers[lost] = self.start_run(ini, "--host", HOSTS[lost], "--resume")
            results = [self.finish(p, WAIT) for p in launchers]
            self.assertEqual([code for code, _, _ in results], [0, 0], results)
            self.assertRegex(results[0][2], r"step \d+ was whole in memory \(2 of 4 snapshots with a partner\) and is saved: ")
            self.assertIn("was brought to the sites that lacked it", results[0][2])
            tokyo, osaka = self.folders(ini)
            self.assertEqual(self.files(os.path.join(tokyo, f"step-{STEPS:012d}")), self.files(os.path.join(osaka, f"step-{STEPS:012d}")))
            self.assertEqual(self.losses(ini), self.reference())


class ThreeSites(Sites):
    """Of a rank each, whose optimizer states no other rank loads: a copy may be damaged where its own site does not see it."""
    names = ("tokyo", "osaka", "kyoto")
    keep = ("--set", "train.batch=6", "--set", "optimizer.plugin=zero1", "--set", "checkpoint.keep=9")

    def places(self, port):
        return (f"address = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = 30s\nrestart = 0\n[site.tokyo]\nhosts = t1:1\n"
                "[site.osaka]\nhosts = o1:1\ncheckpoint_folder = osaka\n[site.kyoto]\nhosts = k1:1\ncheckpoint_folder = kyoto\n")

    def start_sites(self, ini, *flags):
        return [self.start_run(ini, "--host", host, *self.keep, *flags) for host in (*HOSTS, "k1")]

    def end_sites(self, ini, *flags, codes=(0, 0, 0)):
        return super().end_sites(ini, *flags, codes=codes)

    def folders(self, ini):
        return (*super().folders(ini), os.path.join(os.path.dirname(ini), "out", "kyoto"))

    def damage_of(self, rank, *folders):
        """A state that this rank alone loads, in its site's copy."""
        for folder in folders:
            path = os.path.join(folder, f"shard-{rank:05d}-00000.safetensors")
            header = launch_case.read(path, "rb")
            length, = struct.unpack("<Q", header[:8])
            rows = json.loads(header[8:8 + length])
            at = 8 + length + next(row["data_offsets"][0] for name, row in rows.items() if name.startswith("exp_avg/"))
            with open(path, "r+b") as f:
                f.seek(at)
                f.write(bytes([header[at] ^ 4]))

    def names_in(self, folder):
        return sorted(n for n in os.listdir(folder) if "step-" in n) if os.path.isdir(folder) else []

    def resume(self, ini, steps):
        results = self.end_sites(ini, "--resume", "--set", f"train.steps={steps}")
        return "".join(err for _, _, err in results)

    def parent(self, folder, steps):
        return json.loads(launch_case.read(os.path.join(folder, f"step-{steps:012d}", "manifest.json")))["parent"]

    def test_a_copy_comes_from_the_site_where_it_is_whole(self):
        ini = self.job("job", self.more, memory=0, every=15)
        self.end_sites(ini, "--set", "train.steps=30")
        tokyo, osaka, kyoto = self.folders(ini)
        step = self.steps(tokyo)[-1]
        whole = self.files(os.path.join(kyoto, step))
        made = json.loads(whole["manifest.json"])["self"]
        # As it is loaded: tokyo's is damaged, and osaka's, which comes in its place.
        self.damage_of(0, os.path.join(tokyo, step))
        self.damage_of(2, os.path.join(osaka, step))
        said = self.resume(ini, 32)
        self.assertIn("site tokyo: its copy of step 30 is damaged (", said)
        self.assertRegex(said, r"site osaka: its copy of step 30 came damaged \(.*its bytes hash to .*\): that of site kyoto is taken")
        self.assertTrue(self.files(os.path.join(tokyo, step)) == whole)
        self.assertEqual(self.parent(tokyo, 32), made)
        self.assertEqual(self.names_in(tokyo), sorted([f"damaged-{step}", *self.steps(kyoto)]))
        self.assertEqual(self.names_in(osaka), self.steps(kyoto))
        # As it is brought to a site that lacks it, and has a link to nowhere in its place; the first that has it is damaged.
        step = self.steps(kyoto)[-1]
        whole = self.files(os.path.join(kyoto, step))
        made = json.loads(whole["manifest.json"])["self"]
        shutil.rmtree(os.path.join(kyoto, step))
        os.symlink("nowhere", os.path.join(kyoto, step))
        self.damage_of(2, os.path.join(tokyo, step))
        said = self.resume(ini, 34)
        self.assertRegex(said, r"site tokyo: its copy of step 32 came damaged \(.*\): that of site osaka is taken")
        self.assertTrue(self.files(os.path.join(kyoto, step)) == whole)
        self.assertEqual(self.parent(tokyo, 34), made)
        self.assertTrue(os.path.islink(os.path.join(kyoto, "damaged-" + step)))
        # Where no site's is whole all go on from the step before, and it makes way.
        before = json.loads(launch_case.read(os.path.join(kyoto, step, "manifest.json")))["self"]
        step = self.steps(kyoto)[-1]
        shutil.rmtree(os.path.join(kyoto, step))
        self.damage_of(2, os.path.join(tokyo, step), os.path.join(osaka, step))
        self.assertIn("step 34 did not come: ", self.resume(ini, 36))
        self.assertEqual(self.parent(tokyo, 36), before)
        for folder in (tokyo, osaka):
            self.assertIn("damaged-" + step, self.names_in(folder))
        self.assertFalse([n for n in self.names_in(kyoto) if step in n or n.startswith(".tmp")])

    def test_nothing_makes_way_for_a_copy_that_is_not_whole(self):
        """Nor for a step that was named, before that is loaded."""
        ini = self.job("job", self.more, memory=0, every=15)
        self.end_sites(ini, "--set", "train.steps=30")
        folders = self.folders(ini)
        self.damage_of(0, *[os.path.join(folder, self.steps(folder)[0]) for folder in folders])
        before = [self.names_in(folder) for folder in folders]
        results = self.end_sites(ini, "--resume", "15", codes=(1, 1, 1))
        self.assertIn("--resume 15: no site's copy of that checkpoint is whole", results[0][2])
        self.assertEqual([self.names_in(folder) for folder in folders], before)

    def test_copies_of_a_damaged_checkpoint_do_not_pile_up(self):
        """Two sites are new, and the only copy is damaged where its own site does not see it."""
        ini = self.job("job", self.more, memory=0)
        self.end_sites(ini, "--set", "train.steps=3")
        tokyo, osaka, kyoto = folders = self.folders(ini)
        step, = self.steps(tokyo)
        shutil.rmtree(osaka)
        shutil.rmtree(kyoto)
        self.damage_of(2, os.path.join(tokyo, step))
        for _ in range(2):
            results = self.end_sites(ini, "--resume", codes=(1, 1, 1))
            self.assertIn("none of any site's checkpoints is whole", results[0][2])
            self.assertEqual([self.names_in(folder) for folder in folders], [[step], [], []])


for name in [n for n in dir(Training) if n.startswith("test_")]:
    setattr(Memory, name, None)
for name in [n for n in dir(Memory) if n.startswith("test_")]:
    if name not in vars(Sites):
        setattr(Sites, name, None)
for name in [n for n in dir(Sites) if n.startswith("test_")]:
    if name not in vars(ThreeSites):
        setattr(ThreeSites, name, None)
del Training

if __name__ == "__main__":
    launch_case.main()
