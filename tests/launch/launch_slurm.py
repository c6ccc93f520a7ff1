"""A real Slurm of one machine: munged, slurmctld and slurmd, started here and ended here."""
import json
import os
import shutil
import socket
import subprocess
import time

import launch_case
from launch_case import LaunchCase, clean_environment
import launch_train

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
CONF = """ClusterName=longhaul
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/linear
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldParameters=enable_configless
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class SlurmCase(LaunchCase):
    def setUp(self):
        super().setUp()
        self.slurm = os.path.join(self.folder, "slurm")
        os.chmod(self.folder, 0o755)
        for name in ("", "state", "spool"):
            os.makedirs(os.path.join(self.slurm, name), 0o755, exist_ok=True)
        self.daemons = []
        self.addCleanup(self.stop)
        key = os.path.join(self.slurm, "munge.key")
        with open(key, "wb") as f:
            f.write(os.urandom(1024))
        os.chmod(key, 0o600)
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.slurm}/munge.socket",
                    f"--pid-file={self.slurm}/munged.pid", f"--log-file={self.slurm}/munged.log",
                    f"--seed-file={self.slurm}/munged.seed")
        conf = os.path.join(self.slurm, "slurm.conf")
        with open(conf, "w") as f:
            f.write(CONF.format(host=socket.gethostname().split(".")[0], ports=free_ports(2), folder=self.slurm,
                                cpus=os.cpu_count()))
        self.environment = clean_environment(SLURM_CONF=conf)
        launch_case.wait_for(lambda: os.path.exists(f"{self.slurm}/munge.socket"), 10)
        self.daemon("slurmctld", "-D", "-f", conf)
        self.daemon("slurmd", "-D", "-f", conf)
        try:
            launch_case.wait_for(self.is_idle, 30)
        except AssertionError:
            self.skipTest("slurmd does not come up here: " + self.last_lines())

    def daemon(self, *command):
        with open(os.path.join(self.slurm, command[0] + ".out"), "w") as out:
            path = shutil.which(command[0]) or "/usr/sbin/" + command[0]
            self.daemons.append(subprocess.Popen([path, *command[1:]], stdout=out, stderr=out,
                                                 env=getattr(self, "environment", clean_environment())))

    def stop(self):
        for process in reversed(self.daemons):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def last_lines(self):
        lines = []
        for name in ("munged.out", "slurmctld.log", "slurmctld.out", "slurmd.log", "slurmd.out"):
            path = os.path.join(self.slurm, name)
            if os.path.exists(path):
                lines += launch_case.read(path).strip().splitlines()[-3:]
        return " | ".join(lines)

    def is_idle(self):
        done = subprocess.run(["sinfo", "-h", "-o", "%t"], env=self.environment, capture_output=True, text=True)
        return "idle" in done.stdout


class Slurm(SlurmCase):
    def srun(self, ini, **more):
        environment = dict(self.environment, LH_MARK=self.folder, **more)
        return subprocess.run(["srun", "--overcommit", "-n", "3", launch_case.PROGRAM, "train", ini], env=environment,
                              cwd=self.folder, capture_output=True, text=True, timeout=90)

    def test_ranks_of_a_step_take_their_places(self):
        ini = self.ini("[launch]\nsecret = job.key\n")
        done = self.srun(ini)
        self.assertEqual(done.returncode, 0, done.stderr + self.last_lines())
        self.assertRegex(done.stdout, r"\Arank 0 of 3 on \S+\n\Z")
        done = self.srun(ini, LH_FAILS="2")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("token 70000 of 512"), 1, done.stderr)
        time.sleep(0.2)


class Batch(SlurmCase):
    """deploy/longhaul.sbatch, with the program itself."""

    def sbatch(self, ini):
        script = os.path.join(launch_case.SOURCE, "deploy", "longhaul.sbatch")
        done = subprocess.run(["sbatch", "--parsable", "--overcommit", "--export=ALL", f"--output={self.folder}/job.log", script, ini],
                              env=dict(self.environment, LH_MARK=self.folder, LONGHAUL=launch_case.LONGHAUL), cwd=self.folder,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr + self.last_lines())
        return done.stdout.strip()

    def facts(self, job):
        done = subprocess.run(["scontrol", "--oneliner", "show", "job", job], env=self.environment, capture_output=True, text=True)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def wait_for(self, condition, seconds=120):
        try:
            launch_case.wait_for(condition, seconds)
        except AssertionError:
            log = os.path.join(self.folder, "job.log")
            self.fail((launch_case.read(log) if os.path.exists(log) else "no log") + self.last_lines())

    def test_a_batch_job_ends_and_one_that_is_told_to_leave_comes_again(self):
        ini = os.path.join(self.folder, "job.ini")

        def write(steps):
            with open(ini, "w") as f:
                f.write(launch_train.JOB.format(source=launch_case.SOURCE, steps=steps, ranks=2) + "secret = job.key\n")
        write(4)
        job = self.sbatch(ini)
        self.wait_for(lambda: self.facts(job).get("JobState") == "COMPLETED")
        self.assertTrue(os.path.isdir(os.path.join(self.folder, "out", "checkpoints", "step-000000000004")))
        write(1000000)
        os.unlink(os.path.join(self.folder, "job.log"))
        job = self.sbatch(ini)
        rows = os.path.join(self.folder, "out", "metrics.jsonl")
        size = os.path.getsize(rows)
        self.wait_for(lambda: os.path.getsize(rows) > size + 2000)
        # As Slurm itself does five minutes before the limit of time: the steps are told, the script goes on.
        subprocess.run(["scancel", "--signal=TERM", job], env=self.environment, check=True)
        self.wait_for(lambda: self.facts(job).get("Restarts") == "1")
        self.assertIn("exit code 75: back into the queue", launch_case.read(os.path.join(self.folder, "job.log")))
        subprocess.run(["scancel", job], env=self.environment, check=True)
        self.wait_for(lambda: self.facts(job).get("JobState") == "CANCELLED")
        # For good, and saved: what may not come again is stopped.
        os.unlink(os.path.join(self.folder, "job.log"))
        job = self.sbatch(ini)
        size = os.path.getsize(rows)
        self.wait_for(lambda: os.path.getsize(rows) > size + 2000)
        subprocess.run(["scontrol", "update", f"JobId={job}", "Requeue=0"], env=self.environment, check=True)
        subprocess.run([launch_case.LONGHAUL, "stop", os.path.join(self.folder, "out")], check=True, capture_output=True, timeout=60)
        self.wait_for(lambda: self.facts(job).get("JobState") == "FAILED")
        self.assertEqual(self.facts(job)["ExitCode"], "75:0")
        last = max(json.loads(line).get("step", 0) for line in launch_case.read(rows).splitlines())
        self.assertIn(f"step-{last:012d}", os.listdir(os.path.join(self.folder, "out", "checkpoints")))


if __name__ == "__main__":
    missing = [n for n in NEEDED if shutil.which(n) is None and not os.path.exists("/usr/sbin/" + n)]
    if missing:
        launch_case.skip("there is no " + ", ".join(missing) + " (Debian: slurmctld slurmd slurm-client munge)")
    if os.geteuid() != 0:
        launch_case.skip("slurmd needs root")
    launch_case.main()
