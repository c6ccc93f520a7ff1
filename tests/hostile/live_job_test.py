"""A training of two ranks, looked at from outside while it runs: what its processes have given up, where the job's
key stands in their memory, and where their sockets listen.

    python3 live_job_test.py LONGHAUL SOURCE
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from two_ranks import training

PROGRAM, SOURCE = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
KEY = bytes(range(11, 235, 7))
LIMIT_S = 60
INI = training(SOURCE, 1000000)


def read(path, mode="r"):
    with open(path, mode) as f:
        return f.read()


def field(path, name):
    """The words behind a name at the start of a line of /proc/PID/status or limits."""
    return re.search(rf"^{name}:?\s+(.*)$", read(path), re.M).group(1).split()


def mappings(pid):
    """(start, end, rights, flags) of each mapping of a process."""
    found, row = [], None
    for line in read(f"/proc/{pid}/smaps").splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ", line)
        if head:
            row = [int(head.group(1), 16), int(head.group(2), 16), head.group(3), ()]
            found.append(row)
        elif line.startswith("VmFlags:"):
            row[3] = line.split()[1:]
    return found


def places_of_key(pid):
    """Flags of each private mapping that holds the key."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for start, end, rights, flags in mappings(pid):
            # Larger ones are a sanitizer's own.
            if not rights.startswith("rw") or not rights.endswith("p") or end - start > 1 << 30:
                continue
            try:
                memory.seek(start)
                if KEY in memory.read(end - start):
                    found.append(flags)
            except (OSError, ValueError):
                continue
    return found


def listeners(pids):
    """Addresses, as /proc/net writes them, on which sockets of these processes listen."""
    owned = set()
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                owned.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue  # a helper, which has ended
    found = []
    for table in filter(os.path.exists, ("/proc/net/tcp", "/proc/net/tcp6")):
        for words in map(str.split, read(table).splitlines()[1:]):
            if words[3] == "0A" and f"socket:[{words[9]}]" in owned:
                found.append(words[1].split(":")[0])
    return found


LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


class LiveJob(unittest.TestCase):
    def start(self, ini=INI, **environment):
        folder = tempfile.TemporaryDirectory(prefix="longhaul-live-")
        self.addCleanup(folder.cleanup)
        self.mark = f"LH_MARK={folder.name}".encode()
        with open(os.open(os.path.join(folder.name, "job.key"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write(KEY.hex() + "\n")
        path = os.path.join(folder.name, "job.ini")
        with open(path, "w") as f:
            f.write(ini)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_", "LOCAL_", "SLURM_", "LONGHAUL_"))}
        log = open(os.path.join(folder.name, "log"), "w")
        self.addCleanup(log.close)
        self.log = log.name
        process = subprocess.Popen([PROGRAM, "run", path], stdout=log, stderr=log,
                                   env={**clean, "LH_MARK": folder.name, **environment})
        self.addCleanup(self.end, process)
        self.wait_for(process, lambda: os.path.exists(os.path.join(folder.name, "out/checkpoints/latest")))
        return process

    def end(self, process):
        process.kill()
        process.wait()
        end = time.time() + LIMIT_S
        while self.processes() and time.time() < end:
            time.sleep(0.01)

    def wait_for(self, process, is_there):
        end = time.time() + LIMIT_S
        while time.time() < end:
            self.assertIsNone(process.poll(), read(self.log))
            found = is_there()
            if found:
                return found
            time.sleep(0.005)
        self.fail(read(self.log))

    def processes(self):
        """Name by pid, of all of the job."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark in read(f"/proc/{pid}/environ", "rb"):
                    found[int(pid)] = read(f"/proc/{pid}/comm").strip()
            except OSError:
                continue
        return found

    def test_processes_have_given_up_what_they_do_not_need(self):
        process, seen = self.start(), []

        def every_name():
            for pid, name in self.processes().items():
                try:
                    given_up = field(f"/proc/{pid}/status", "NoNewPrivs"), field(f"/proc/{pid}/limits", "Max core file size")
                except (OSError, AttributeError):
                    continue  # it has ended
                self.assertEqual(given_up, (["1"], ["0", "0", "bytes"]), name)
                seen.append((pid, name))
            return {name for _, name in seen} >= {"longhaul", "longhaul-spare", "longhaul-save"}
        self.wait_for(process, every_name)
        self.assertEqual(len({pid for pid, name in seen if name == "longhaul"}), 3, "the launcher and its ranks")

    def test_a_core_is_there_for_whoever_asks(self):
        sanitizers = {k: os.environ.get(k, "") + ":disable_coredump=0" for k in ("ASAN_OPTIONS", "TSAN_OPTIONS")}
        process = self.start(LONGHAUL_CORE="1", **sanitizers)
        own = field("/proc/self/limits", "Max core file size")
        self.assertEqual(field(f"/proc/{process.pid}/limits", "Max core file size"), own)

    def test_no_core_would_hold_the_key(self):
        self.start()
        places = {pid: places_of_key(pid) for pid, name in self.processes().items() if name == "longhaul"}
        self.assertEqual(len(places), 3)
        self.assertGreaterEqual(sum(map(len, places.values())), 2, "the ranks have the key")
        for flags in sum(places.values(), []):
            self.assertIn("dd", flags)

    def test_nothing_listens_on_every_address(self):
        self.start()
        found = listeners(self.processes())
        self.assertGreaterEqual(len(found), 2, "the control plane and the transport")
        self.assertEqual([address for address in found if address not in LOOPBACK], [])

    def test_on_one_machine_the_configured_address_opens_nothing(self):
        self.start(INI + "address = 127.0.0.2\n")
        self.assertEqual([address for address in listeners(self.processes()) if address not in LOOPBACK], [])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    unittest.main(verbosity=2)
