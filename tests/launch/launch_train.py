"""Training on several ranks: any of them is killed at a random moment, and the run goes on to the same bits."""
import glob
import hashlib
import os
import random
import shutil
import signal
import subprocess
import time

import launch_case
from launch_case import LaunchCase, SOURCE, TORTURE, clean_environment, listeners

RANKS = 3
STEPS = 12
JOB = """[pipeline]
name = launch
stages = prepare train
folder = out
[prepare]
input = {source}/examples/data/tinyshakespeare.jsonl
tokenizer = {source}/examples/data/gpt2-tiny/vocab.json
[model]
plugin = llama
vocab = from_tokenizer
blocks = 2
hidden = 64
ffn = 128
heads = 2
max_tokens = 64
[train]
sequence = 64
batch = 6
micro_batch = 1
steps = {steps}
precision = f32
[optimizer]
plugin = zero0
rule = rules:adamw
learning_rate = 1e-3
[checkpoint]
every = 4
keep = 2
[device]
plugin = cpu
threads = 1
[launch]
ranks_per_node = {ranks}
"""


class Connect(LaunchCase):
    def check(self, places):
        ini = os.path.join(self.folder, "job.ini")
        with open(ini, "w") as f:
            f.write(JOB.format(source=SOURCE, steps=STEPS, ranks=1) + places)
        done = subprocess.run([launch_case.LONGHAUL, "check", ini, "--connect"], capture_output=True, text=True, timeout=60,
                              env=clean_environment(LH_MARK=self.folder))
        return done.returncode, done.stdout, done.stderr

    def test_hosts_that_one_machine_plays_are_dialed(self):
        code, said, err = self.check("[site.a]\nhosts = localhost:2\n[site.b]\nhosts = localhost:1\n[site.c]\nhosts = localhost:2\n")
        self.assertEqual(code, 0, err)
        pairs = [tuple(row.split()[:4]) for row in said.splitlines()[1:-1]]
        self.assertEqual(pairs, [("a/localhost", "b/localhost", "wan", "tcp"), ("a/localhost", "c/localhost", "wan", "tcp"),
                                 ("b/localhost", "c/localhost", "wan", "tcp")])
        self.assertEqual(said.splitlines()[-1], "5 ranks on 3 hosts have met; 3 pairs of hosts reach each other")
        self.assertEqual(self.check("")[:2], (0, "one rank: there is nobody to reach\n"))
        code, _, err = self.check("[site.a]\nhosts = localhost:1\n[site.b]\nhosts = localhost:1\n[transport.wan]\nplugin = shm\n")
        self.assertNotEqual(code, 0, err)

    def test_a_spare_that_comes_when_the_others_have_met_does_not_wait_for_ever(self):
        places = ("address = 127.0.0.1\nport = {}\nsecret = job.key\njoin_timeout = 30s\n[site.a]\nhosts = t1:1\naddresses = 127.0.0.1\n"
                  "[site.b]\nhosts = o1:1\nspare = o2:1\naddresses = 127.0.0.2, 127.0.0.3\n")
        ini = os.path.join(self.folder, "job.ini")
        with open(ini, "w") as f:
            f.write(JOB.format(source=SOURCE, steps=STEPS, ranks=1) + places.format(launch_case.free_port()))

        def start(host, *flags):
            return subprocess.Popen([launch_case.LONGHAUL, "check", ini, "--connect", "--host", host, *flags], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, env=clean_environment(LH_MARK=self.folder))
        results = [self.finish(p) for p in [start("t1"), start("o1")]]
        self.assertEqual([r[0] for r in results], [0, 0], results)
        code, _, err = self.finish(start("o2", "--set", "launch.join_timeout=1s"), 20)
        self.assertEqual(code, 3, err)
        self.assertIn("longhaul: this machine has not met rank 0 in 1 s: rank 0 at 127.0.0.", err)


class Train(LaunchCase):
    def job(self, folder, ranks=RANKS):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(JOB.format(source=SOURCE, steps=STEPS, ranks=ranks))
        return os.path.join(path, "job.ini")

    def start_run(self, ini, *flags):
        return subprocess.Popen([launch_case.LONGHAUL, "run", ini, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=clean_environment(LH_MARK=self.folder))

    def weights(self, ini, steps=STEPS):
        """Digest of the last checkpoint's tensors."""
        folder = os.path.join(os.path.dirname(ini), "out", "checkpoints", f"step-{steps:012d}")
        digest = hashlib.sha256()
        files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
        self.assertTrue(files)
        for path in files:
            digest.update(launch_case.read(path, "rb"))
        return digest.hexdigest()

    def test_a_starter_that_ignores_the_end_of_children_is_no_matter(self):
        ini = self.job("job", ranks=2)
        done = subprocess.run([launch_case.LONGHAUL, "run", ini], capture_output=True, text=True, timeout=200,
                              env=clean_environment(LH_MARK=self.folder),
                              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.nothing_is_left()

    def test_a_run_that_is_refused_leaves_the_logs_of_ranks(self):
        ini = self.job("job")
        out = os.path.join(os.path.dirname(ini), "out")
        log = os.path.join(out, "rank-1.log")
        self.assertEqual(self.finish(self.start_run(ini), 200)[0], 0)
        with open(log, "a") as f:
            f.write("of before\n")
        train = subprocess.run([launch_case.LONGHAUL, "train", ini], capture_output=True, text=True, timeout=200,
                               env=clean_environment(LH_MARK=self.folder))
        self.assertEqual(train.returncode, 1, train.stderr)
        self.assertIn("go on from it with --resume", train.stderr)
        self.assertIn("of before\n", launch_case.read(log))
        shutil.rmtree(os.path.join(out, "checkpoints"))
        self.assertEqual(self.finish(self.start_run(ini), 200)[0], 0)
        self.assertNotIn("of before", launch_case.read(log))

    def test_values_that_cross_borders_are_warned_of(self):
        said = "values are cut over the ranks of 2 sites: each pass gathers them over borders, forward and backward, 8 bytes"
        ini = self.job("job", 4)
        with open(ini) as f:
            text = f.read()
        with open(ini, "w") as f:
            f.write(text.replace("[launch]\nranks_per_node = 4\n", ""))
        sites = ("--set", "site.a.hosts=localhost:2", "--set", "site.b.hosts=localhost:2", "--set", "train.batch=8")
        for command in ("check", "plan"):
            for sets, warned in ((("zero3", "data"), True), (("zero3", "site"), False), (("zero2", "data"), False)):
                done = subprocess.run([launch_case.LONGHAUL, command, ini, *sites, "--set", f"optimizer.plugin={sets[0]}",
                                       "--set", f"optimizer.cut={sets[1]}"], capture_output=True, text=True, timeout=200)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(said in done.stderr, warned, done.stderr)

    def test_savers_are_forked_before_any_thread_or_plugin(self):
        if b"__tsan_init" in launch_case.read(launch_case.LONGHAUL, "rb"):
            self.skipTest("the sanitizer has a thread of its own")
        library = os.path.join(os.path.dirname(launch_case.PROGRAM), "fork_count.so")
        for ranks in (1, RANKS):
            ini = self.job(f"forks{ranks}", ranks)
            for command in ("run", "train"):  # the second finds a checkpoint there, and is refused
                told = os.path.join(self.folder, f"forks{ranks}.{command}")
                done = subprocess.run([launch_case.LONGHAUL, command, ini], capture_output=True, text=True, timeout=200,
                                      env=clean_environment(LH_MARK=self.folder, LD_PRELOAD=library, FORK_COUNT=told,
                                                            ASAN_OPTIONS="verify_asan_link_order=0"))
                self.assertEqual(done.returncode, 0 if command == "run" else 1, done.stderr)
                # A saver takes its name when it is forked and at each save; threads and plugins are those of the fork.
                lines = launch_case.read(told).splitlines()
                self.assertEqual(set(lines), {"longhaul-save 1 0", "longhaul-spare 1 0"})
                self.assertEqual(lines.count("longhaul-spare 1 0"), ranks)

    def test_any_rank_may_be_killed_and_the_run_goes_on(self):
        whole = self.job("whole")
        begin = time.time()
        code, _, err = self.finish(self.start_run(whole), 200)
        self.assertEqual(code, 0, err)
        length = time.time() - begin
        random.seed(11)
        worst, rounds, noted = 0, 0, 0
        for _ in range(200 if TORTURE else 3):
            before = listeners()
            ini = self.job(f"cut{rounds}")
            shutil.copytree(os.path.join(self.folder, "whole", "out"), os.path.join(self.folder, f"cut{rounds}", "out"),
                            ignore=shutil.ignore_patterns("checkpoints", "*.html", "events", "*.log", "*.jsonl"))
            process = self.start_run(ini)
            victim = random.randrange(RANKS)
            launch_case.wait_for(lambda: victim in self.seen() or process.poll() is not None)
            time.sleep(random.uniform(0, length * 0.7))
            pid = self.seen().get(victim)
            if pid is None:
                self.finish(process)
            else:
                os.kill(pid, signal.SIGKILL)
                killed = time.time()
                code, _, err = self.finish(process)
                worst = max(worst, time.time() - killed)
                if code != 0:  # it had ended in the meantime
                    lines = [line for line in err.splitlines() if line.startswith("longhaul: ")]
                    self.assertEqual((code, len(lines)), (3, 1), err)
                    self.assertRegex(lines[0], rf"^longhaul: rank {victim} on \S+ was killed by signal 9 \(Killed\)")
                    print(lines[0])
                    log = os.path.join(os.path.dirname(ini), "out", "train.log")
                    if os.path.exists(log) and f"{STEPS} steps of" in launch_case.read(log):
                        self.assertEqual(launch_case.without_times(launch_case.read(log)).splitlines()[-1], lines[0])
                        noted += 1
            self.nothing_is_left()
            self.no_port_is_left(before)
            code, _, err = self.finish(self.start_run(ini, "--resume"), 200)
            self.assertEqual(code, 0, err)
            self.assertEqual(self.weights(ini), self.weights(whole))
            shutil.rmtree(os.path.dirname(ini))
            rounds += 1
        print(f"slowest end after a kill: {worst:.2f} s; {noted} of {rounds} were in a training, whose log has it")
        self.assertLess(worst, 3.5)


if __name__ == "__main__":
    launch_case.main()
