"""A training over two sites in namespaces: kill -9 of everything, then --resume, ends in the same bits."""
import os
import random
import signal
import subprocess
import time

import launch_case
from launch_case import SOURCE, TORTURE, clean_environment
from launch_namespaces import HOSTS, NamespaceCase, need_namespaces
from launch_train import JOB
import launch_train

PLACES = """address = 10.77.0.1
port = 29400
secret = job.key
join_timeout = 30s
[site.tokyo]
hosts = t1:2
[site.osaka]
hosts = o1:1
"""


class Sites(NamespaceCase):
    weights = launch_train.Train.weights

    def job(self, folder):
        path = os.path.join(self.folder, folder)
        os.makedirs(path)
        with open(os.path.join(path, "job.ini"), "w") as f:
            f.write(JOB.format(source=SOURCE, steps=12, ranks=1) + PLACES)
        return os.path.join(path, "job.ini")

    def start_hosts(self, ini, *flags, command="run", before=()):
        """`before` stands before the command on the last host."""
        return [subprocess.Popen([*self.wrap(host), *(before if host == HOSTS[-1] else ()), launch_case.LONGHAUL,
                                  command, ini, "--host", host, *flags],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=clean_environment(LH_MARK=self.folder)) for host in HOSTS]

    def finish_well(self, processes):
        results = [self.finish(p, 200) for p in processes]
        self.assertEqual([r[0] for r in results], [0, 0], results)

    def test_a_host_that_sees_another_folder_is_named_before_training(self):
        ini = self.job("apart")
        shared = os.path.join(self.folder, "apart", "out", "checkpoints")
        alone = os.path.join(self.folder, "apart", "alone")
        os.makedirs(shared)
        os.makedirs(alone)
        subprocess.run([launch_case.LONGHAUL, "prepare", ini], check=True, capture_output=True)
        mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', alone, shared)
        for code, _, err in map(self.finish, self.start_hosts(ini, command="train", before=mount)):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, "rank 2 on osaka/o1 .*failed in its start: .*/checkpoints: what rank 0 has just made")
        self.assertEqual([n for folder in (shared, alone) for n in os.listdir(folder) if "shared" in n], [])
        self.nothing_is_left()

    def test_a_host_with_other_tokens_is_named_before_training(self):
        ini = self.job("tokens")
        subprocess.run([launch_case.LONGHAUL, "prepare", ini], check=True, capture_output=True)
        corpus, other = (os.path.join(self.folder, "tokens", "out", name) for name in ("corpus.bin", "other.bin"))
        with open(corpus, "rb") as f:
            data = bytearray(f.read())
        data[0] ^= 1
        with open(other, "wb") as f:
            f.write(data)
        mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', other, corpus)
        for code, _, err in map(self.finish, self.start_hosts(ini, command="train", before=mount)):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"the ranks' token files differ \(digests: ranks 0 to 1: train \w+, held out \w+; "
                                  r"rank 2: train \w+, held out \w+\)")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "tokens", "out", "checkpoints", "latest")))
        self.nothing_is_left()

    def test_a_run_goes_on_after_all_was_killed(self):
        whole = self.job("whole")
        begin = time.time()
        self.finish_well(self.start_hosts(whole))
        length = time.time() - begin
        self.nothing_is_left()
        random.seed(5)
        for i in range(20 if TORTURE else 1):
            ini = self.job(f"cut{i}")
            processes = self.start_hosts(ini)
            time.sleep(random.uniform(0.3, 0.9) * length)
            for pid in launch_case.processes_with(self.mark):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for p in processes:
                p.communicate()
            self.nothing_is_left()
            self.finish_well(self.start_hosts(ini, "--resume"))
            self.assertEqual(self.weights(ini), self.weights(whole))
            self.nothing_is_left()


if __name__ == "__main__":
    need_namespaces()
    launch_case.main()
