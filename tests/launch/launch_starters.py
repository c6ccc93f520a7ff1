"""Ranks that others start: the variables of torchrun, Open MPI, PMIx and Slurm, and a real mpirun."""
import hashlib
import os
import re
import shutil
import socket
import subprocess
import time

import launch_case
from launch_case import LaunchCase, clean_environment

KEY = "[launch]\nsecret = job.key\n"


class Starters(LaunchCase):
    def all_ranks(self, ini, environments):
        """Starts a process for each, and gives (code, out, err) of all."""
        processes = [self.start(ini, **e) for e in environments]
        return [self.finish(p) for p in processes]

    def check_two(self, ini, environments):
        results = self.all_ranks(ini, environments)
        self.assertEqual([r[0] for r in results], [0, 0], results)
        self.assertRegex(results[0][1], r"\Arank 0 of 2 on \S+\n\Z")
        self.assertEqual(results[1][1:], ("", ""))
        self.nothing_is_left()
        self.assertEqual([n for n in os.listdir(os.path.join(self.folder, "out")) if "rendezvous" in n], [])

    def test_torchrun(self):
        port = launch_case.free_port()
        self.check_two(self.ini(KEY), [
            dict(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, LOCAL_WORLD_SIZE=2, MASTER_ADDR="localhost", MASTER_PORT=port)
            for r in (0, 1)])

    def store_below_a_free_port(self):
        """A socket that listens; the ranks will take the port behind its own."""
        while True:
            store, behind = socket.socket(), socket.socket()
            store.bind(("127.0.0.1", 0))
            store.listen()
            with behind:
                try:
                    behind.bind(("127.0.0.1", store.getsockname()[1] + 1))
                    return store
                except (OSError, OverflowError):
                    store.close()

    def test_torchrun_whose_store_has_the_port(self):
        with self.store_below_a_free_port() as store:
            self.check_two(self.ini(KEY), [
                dict(RANK=r, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=store.getsockname()[1],
                     TORCHELASTIC_USE_AGENT_STORE="True") for r in (0, 1)])

    def test_open_mpi(self):
        self.check_two(self.ini(KEY), [
            dict(OMPI_COMM_WORLD_RANK=r, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_SIZE=2, PMIX_NAMESPACE="77.1")
            for r in (0, 1)])

    def test_pmix_alone_takes_the_size_from_the_ini(self):
        self.check_two(self.ini(KEY + "ranks_per_node = 2\n"),
                       [dict(PMIX_RANK=r, PMIX_NAMESPACE="slurm.77.0") for r in (0, 1)])

    def test_slurm(self):
        self.check_two(self.ini(KEY), [
            dict(SLURM_PROCID=r, SLURM_STEP_NUM_TASKS=2, SLURM_LOCALID=r, SLURM_JOB_ID=77, SLURM_STEP_ID=0)
            for r in (0, 1)])

    def test_a_job_of_slurm_that_is_begun_again_takes_no_address_of_before(self):
        os.mkdir(os.path.join(self.folder, "out"))
        with open(os.path.join(self.folder, "out", "rendezvous-77-0"), "w") as f:
            f.write("127.0.0.1 9\n")  # of a rank 0 that was killed
        again = dict(SLURM_STEP_NUM_TASKS=2, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_RESTART_COUNT=1)
        ini = self.ini(KEY + "join_timeout = 10s\n")
        one = self.start(ini, SLURM_PROCID=1, **again)
        time.sleep(1)
        zero = self.start(ini, SLURM_PROCID=0, **again)
        results = [self.finish(p) for p in (zero, one)]
        self.assertEqual([r[0] for r in results], [0, 0], results)
        self.assertEqual(os.listdir(os.path.join(self.folder, "out")).count("rendezvous-77-0-1"), 0)

    def test_a_batch_script_of_slurm_is_no_rank(self):
        code, out, err = self.run_ranks(self.ini("[launch]\nranks_per_node = 2\n"), SLURM_PROCID=0, SLURM_NTASKS=4,
                                        SLURM_JOB_ID=77)
        self.assertEqual(code, 0, err)
        self.assertIn("rank 0 of 2", out)

    def test_what_ends_a_rank_before_it_meets_others_is_told_once(self):
        os.mkdir(os.path.join(self.folder, "out"))
        with open(os.path.join(self.folder, "out", "rendezvous-job1"), "w") as f:
            f.write("zz")
        code, out, err = self.run_ranks(self.ini(KEY), OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2,
                                        PMIX_NAMESPACE="job1")
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(err, r"\Arank 1: error: \S+/rendezvous-job1 holds no address and port\n\Z")
        log = launch_case.read(os.path.join(self.folder, "out", "rank-1.log"))
        self.assertEqual(launch_case.without_times(log), err)

    def test_without_a_key_the_start_is_refused(self):
        code, _, err = self.run_ranks(self.ini(), RANK=0, WORLD_SIZE=2, MASTER_ADDR="localhost", MASTER_PORT=1)
        self.assertEqual(code, 1)
        self.assertIn("2 ranks that torchrun has started share no key: name a file in [launch] secret", err)

    def test_contradictions_are_refused(self):
        master = dict(MASTER_ADDR="localhost", MASTER_PORT=29999)
        for more, environment, sentence in (
                ("", dict(RANK=2, WORLD_SIZE=2, **master), "torchrun says that this is rank 2 of 2: ranks count from 0"),
                ("", dict(RANK=0, **master), "RANK is set as torchrun does, but WORLD_SIZE is not"),
                ("", dict(RANK="x", WORLD_SIZE=2, **master), "the variable RANK is 'x', expected a whole number"),
                ("", dict(RANK=0, WORLD_SIZE=2), "MASTER_ADDR and MASTER_PORT are not: where is rank 0?"),
                ("[site.a]\nhosts = x:3\n", dict(RANK=0, WORLD_SIZE=2, **master), "torchrun starts 2 ranks, [site.*] hosts name 3"),
                ("[site.a]\nhosts = x:3\n", dict(RANK=0, WORLD_SIZE=1, **master), "torchrun starts 1 ranks, [site.*] hosts name 3"),
                ("ranks_per_node = 3\n", dict(RANK=0, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, **master),
                 "torchrun starts 2 ranks on this machine, [launch] ranks_per_node says 3"),
                ("ranks_per_node = 3\n", dict(SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=1, SLURM_JOB_ID=7, SLURM_STEP_ID=0),
                 "Slurm starts 1 ranks, [launch] ranks_per_node says 3"),
                ("", dict(LONGHAUL_LAUNCH="rank=0"), "is for ranks that longhaul starts itself: unset it")):
            code, _, err = self.run_ranks(self.ini(KEY + more), **environment)
            self.assertEqual(code, 1, err)
            self.assertIn(sentence, err)

    def refusal(self, first, second):
        """What rank 0 says where each of two commands is a rank; seconds until both have ended."""
        port = launch_case.free_port()
        begin = time.monotonic()
        processes = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(
            LH_MARK=self.folder, RANK=r, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
            for r, c in enumerate((first, second))]
        results = [self.finish(p) for p in processes]
        seconds = time.monotonic() - begin
        self.assertEqual([r[0] for r in results], [1, 1], results)
        self.assertEqual(results[1][2], "")
        return results[0][2], seconds

    def differs(self, first, second, name, one, two):
        text, seconds = self.refusal(first, second)
        place = r" on rank %d \(\S+\)"
        self.assertRegex(text, r"\Alonghaul: ranks differ; nothing was started\n"
                         rf"  {re.escape(name)}: {one}{place % 0}; {two}{place % 1}\n\Z")
        self.assertLess(seconds, 20)  # unit.launch.launch_facts_test holds the second; two programs begin and end here
        return seconds

    def command(self, ini, *flags, program=None):
        return [program or launch_case.PROGRAM, "train", ini, *flags]

    def test_what_differs_is_told_once(self):
        worst = 0
        rule = "[optimizer]\nrule = rules:adamw\n"
        for more, section, key, one, two in (
                ("", "train", "batch", "8", "16"), ("", "data", "seed", "1", "2"), ("", "model", "init_std", "0.02", "0.03"),
                ("", "optimizer", "clip", "1", "0"), ("", "group.a", "match", "b", "c"), (rule, "rule.adamw", "beta1", "0.8", "0.9"),
                ("", "hook.after_step", "call", "constant(1)", "constant(2)"), ("", "checkpoint", "every", "1", "2"),
                ("", "comm", "bits", "canonical", "ordered"), ("", "transport.node", "fallback", "tcp", "shm"),
                ("", "transport.site", "security", "proven", "private"), ("", "parallel", "accumulation", "depth", "breadth")):
            inis = [self.ini(f"{KEY}join_timeout = 5s\n{more}[{section}]\n{key} = {value}\n", name=f"{i}.ini") for i, value in enumerate((one, two))]
            with self.subTest(section=section):
                worst = max(worst, self.differs(*map(self.command, inis), f"[{section}] {key}", re.escape(one), re.escape(two)))
        print(f"slowest refusal, from the start of both processes: {worst:.2f} s")

    def test_a_plugin_with_another_byte_is_told(self):
        plugins = os.path.join(os.path.dirname(os.path.dirname(launch_case.LONGHAUL)), "lib", "longhaul")
        other = os.path.join(self.folder, "plugins")
        shutil.copytree(plugins, other)
        path = os.path.join(other, "transports", "shm.so")
        with open(path, "ab") as f:
            f.write(b"\0")
        digests = [hashlib.sha256(launch_case.read(p, "rb")).hexdigest()[:16]
                   for p in (os.path.join(plugins, "transports", "shm.so"), path)]
        ini = self.ini(KEY)
        values = [rf"\S+ abi \d+ sha256 {d}" for d in digests]
        self.differs(self.command(ini), self.command(ini, "--plugins", other), "transport plugin shm", *values)

    def test_another_program_is_told(self):
        other = os.path.join(self.folder, "other")
        shutil.copy(launch_case.PROGRAM, other)
        with open(other, "ab") as f:
            f.write(b"\0")
        plugins = os.path.join(os.path.dirname(os.path.dirname(launch_case.LONGHAUL)), "lib", "longhaul")
        ini = self.ini(KEY)
        values = [r"\S+ sha256 " + hashlib.sha256(launch_case.read(p, "rb")).hexdigest()[:16]
                  for p in (launch_case.PROGRAM, other)]
        self.differs(self.command(ini), self.command(ini, "--plugins", plugins, program=other), "program", *values)

    def kill_one_of_three(self, victim):
        """(code, out, err) of all, once they are at work."""
        port = launch_case.free_port()
        ini = self.ini(KEY)
        processes = [self.start(ini, RANK=r, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                LH_STEPS=100000) for r in (0, 1, 2)]
        for r in (1, 2):
            log = os.path.join(self.folder, "out", f"rank-{r}.log")
            launch_case.wait_for(lambda: os.path.exists(log) and f"rank {r}" in launch_case.read(log))
        processes[victim].kill()
        results = [self.finish(p, 5) for p in processes]
        self.assertEqual([r[0] for r in results], [-9 if r == victim else 3 for r in (0, 1, 2)], results)
        return results

    def test_a_rank_that_dies_is_told_once(self):
        results = self.kill_one_of_three(2)
        self.assertRegex(results[0][2], r"\Alonghaul: rank 2 on \S+ \(process \d+\) was lost[^\n]*: its connection (ended|broke: [^\n]*)\n\Z")
        self.assertEqual(results[1][2], "")

    def test_where_rank_0_dies_all_others_tell(self):
        """As nobody else may be left to."""
        results = self.kill_one_of_three(0)
        for r in (1, 2):
            self.assertRegex(results[r][2], rf"\Arank {r}: error: rank 0 on \S+ \(process \d+\) was lost[^\n]*\n\Z")

    def test_a_real_mpirun(self):
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun (Debian: openmpi-bin)")
        environment = clean_environment(LH_MARK=self.folder, OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,
                                        OMPI_MCA_rmaps_base_oversubscribe=1)
        command = ["mpirun", "-n", "3", launch_case.PROGRAM, "train", self.ini(KEY)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\Arank 0 of 3 on \S+\n\Z")
        self.nothing_is_left()
        environment["LH_FAILS"] = "1"
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("token 70000 of 512"), 1, done.stderr)
        self.nothing_is_left()


if __name__ == "__main__":
    launch_case.main()
