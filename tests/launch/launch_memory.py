"""Snapshots that stay in memory: ranks, a machine and bits of it are lost, and the run ends as if nothing had been."""
import json
import os
import re
import shutil
import signal
import socket
import struct
import time

import launch_case
from launch_case import SOURCE
from launch_restart import Training, WAIT
import launch_train

STEPS = 60
PAGE = 4096
SEALED = re.compile(r"step (\d+) was whole in memory \((\d) of (\d) snapshots with a partner\) and is saved: ")


class Memory(Training):
    """No test of its own is inherited: those of Training run where they are."""

    def job(self, folder, more="", memory=2, every=1000, ranks=4):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        text = launch_train.JOB.format(source=SOURCE, steps=STEPS, ranks=ranks).replace("batch = 6", "batch = 8")
        text = text.replace("every = 4\n", f"every = {every}\nmemory_every = {memory}\n")
        if "[site." in more:
            text = text.replace(f"ranks_per_node = {ranks}\n", "")
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(text + more)
        return os.path.join(path, "job.ini")

    def whole(self, more=""):
        ini = self.job("whole", more, memory=0)
        code, _, err = self.finish(self.start_run(ini), WAIT)
        self.assertEqual(code, 0, err)
        return ini

    def log(self, ini, name="train.log"):
        return launch_case.read(os.path.join(os.path.dirname(ini), "out", name))

    def restarts(self, ini):
        return [row["restart"] for row in self.rows(ini) if "restart" in row]

    def same_as(self, ini, whole):
        self.assertEqual(self.weights(ini, STEPS), self.weights(whole, STEPS))
        self.assertEqual(self.losses(ini), self.losses(whole))

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
        for number, (step, victim) in enumerate(((9, 2), (23, 0), (40, 3)), 1):
            launch_case.wait_for(lambda: self.reached(ini, step) and self.kept(ini) > 0 and len(self.seen()) == 4, WAIT)
            kept = self.kept(ini)
            os.kill(self.seen()[victim], signal.SIGKILL)
            launch_case.wait_for(lambda: len(self.restarts(ini)) == number, WAIT)
            last = self.restarts(ini)[-1]
            self.assertGreaterEqual(last["memory_step"], kept)
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
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        more = (f"address = 127.0.0.1\nport = {port}\nsecret = job.key\njoin_timeout = 30s\nrestart = 5\n"
                "[site.tokyo]\nhosts = t1:2\n[site.osaka]\nhosts = o1:2\n")
        hosts = ("t1", "o1")
        whole = self.job("whole", more, memory=0)
        for p in [self.start_run(whole, "--host", host) for host in hosts]:
            code, _, err = self.finish(p, WAIT)
            self.assertEqual(code, 0, err)
        for lost in (1, 0):
            ini = self.job(f"lost-{lost}", more)
            launchers = [self.start_run(ini, "--host", host) for host in hosts]
            launch_case.wait_for(lambda: self.kept(ini) >= 6 and len(self.seen()) == 4, WAIT)
            launchers[lost].kill()  # the ranks of a launcher end with it, and so does its memory
            launchers[lost].communicate()
            launchers[lost] = self.start_run(ini, "--host", hosts[lost], "--resume")
            results = [self.finish(p, WAIT) for p in launchers]
            self.assertEqual([code for code, _, _ in results], [0, 0], results)
            said = SEALED.search(results[0][2])
            self.assertIsNotNone(said, results)
            self.assertEqual(said.groups()[1:], ("2", "4"))
            self.assertGreaterEqual(int(said.group(1)), 6)
            self.same_as(ini, whole)
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
        run = self.start_run(ini)
        code, _, err = self.finish(run, WAIT)  # alone: there is nobody to start again
        self.assertEqual(code, 0, err)
        self.assertNotIn("memory", err)
        shutil.rmtree(os.path.join(os.path.dirname(ini), "out", "checkpoints"))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
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


for name in [n for n in dir(Training) if n.startswith("test_")]:
    setattr(Memory, name, None)
del Training

if __name__ == "__main__":
    launch_case.main()
