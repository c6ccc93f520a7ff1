"""Ranks that others start: the variables of torchrun, Open MPI, PMIx and Slurm, and a real mpirun."""
import os
import shutil
import socket
import subprocess

import launch_case
from launch_case import LaunchCase, clean_environment

KEY = "[launch]\nsecret = job.key\n"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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
        port = free_port()
        self.check_two(self.ini(KEY), [
            dict(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r, LOCAL_WORLD_SIZE=2, MASTER_ADDR="localhost", MASTER_PORT=port)
            for r in (0, 1)])

    def test_torchrun_whose_store_has_the_port(self):
        with socket.socket() as store:
            store.bind(("127.0.0.1", 0))
            store.listen()
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
        self.assertEqual(launch_case.read(os.path.join(self.folder, "out", "rank-1.log")), err)

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
                ("ranks_per_node = 3\n", dict(RANK=0, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, **master),
                 "torchrun starts 2 ranks on this machine, [launch] ranks_per_node says 3"),
                ("", dict(LONGHAUL_LAUNCH="rank=0"), "is for ranks that longhaul starts itself: unset it")):
            code, _, err = self.run_ranks(self.ini(KEY + more), **environment)
            self.assertEqual(code, 1, err)
            self.assertIn(sentence, err)

    def test_what_differs_is_told_once(self):
        port = free_port()
        other = self.ini(KEY + "[train]\nbatch = 16\n", name="b.ini")
        ini = self.ini(KEY + "[train]\nbatch = 8\n")
        two = [dict(RANK=r, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for r in (0, 1)]
        results = [self.finish(p) for p in [self.start(ini, **two[0]), self.start(other, **two[1])]]
        self.assertEqual([r[0] for r in results], [1, 1], results)
        self.assertRegex(results[0][2], r"\Alonghaul: ranks differ; nothing was started\n"
                                        r"  \[train\] batch: 8 on rank 0 \(\S+\); 16 on rank 1 \(\S+\)\n\Z")
        self.assertEqual(results[1][2], "")

    def test_a_rank_that_dies_is_told_once(self):
        port = free_port()
        ini = self.ini(KEY)
        processes = [self.start(ini, RANK=r, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                                LH_STEPS=100000) for r in (0, 1, 2)]
        log = os.path.join(self.folder, "out", "rank-2.log")
        launch_case.wait_for(lambda: os.path.exists(log) and "rank 2" in launch_case.read(log))
        processes[2].kill()
        results = [self.finish(p, 5) for p in processes]
        self.assertEqual([r[0] for r in results], [3, 3, -9], results)
        self.assertRegex(results[0][2], r"\Alonghaul: rank 2 on \S+ \(process \d+\) was lost[^\n]*: its connection (ended|broke: [^\n]*)\n\Z")
        self.assertEqual(results[1][2], "")

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
