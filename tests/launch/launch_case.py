"""What tests of launching share: an INI in a scratch folder, processes, and what they must not leave."""
import contextlib
import fcntl
import glob
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest

PROGRAM = LONGHAUL = ""
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TORTURE = os.environ.get("LONGHAUL_TORTURE", "") not in ("", "0")
STARTERS = ("RANK", "WORLD_", "LOCAL_", "MASTER_", "OMPI_", "PMIX_", "SLURM_", "LH_", "LONGHAUL_LAUNCH")
SAVERS = ("(longhaul-save", "(longhaul-spare")  # as /proc/PID/stat begins
INI = """[pipeline]
name = launch
stages = prepare
folder = out
[prepare]
input = x.jsonl
tokenizer = vocab.json
"""


def clean_environment(**more):
    """Without what other starters of ranks may have left in the environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(STARTERS)}
    kept.update({k: str(v) for k, v in more.items()})
    return kept


def read(path, mode="r"):
    with open(path, mode) as f:
        return f.read()


def environment(pid):
    """Of a process, as bytes. Without a file object: polls ask for that of each process of this machine fifty times a second."""
    fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    try:
        found = part = os.read(fd, 65536)
        while len(part) == 65536:
            part = os.read(fd, 65536)
            found += part
        return found
    finally:
        os.close(fd)


def without_times(log):
    """A log's lines as they are on stderr. Each must have had its time of day."""
    lines = log.splitlines(True)
    for line in lines:
        if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line):
            raise AssertionError(f"no time of day: {line!r}")
    return "".join(line[25:] for line in lines)


def listeners():
    """Inodes of all sockets of this network namespace that listen."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in read(table).splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add(words[9])
    return found


def owned_by_others(inodes, mark):
    """Those of the inodes that processes without the mark have open: of other tests."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in environment(pid):
                continue
            for fd in os.listdir(f"/proc/{pid}/fd"):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    return {i for i in inodes if f"socket:[{i}]" in found}


def segments():
    """Files of shared memory; folders there are other tests'."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {n for n in names if os.path.isfile(os.path.join("/dev/shm", n))}


def processes_with(mark):
    """Pids whose environment holds the mark."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() not in environment(pid):
                continue
            state = state_of(pid)
        except OSError:
            continue
        if state != "Z":
            found.append(int(pid))
    return found


def state_of(pid):
    """The letter in which the kernel tells a process's state: R, S, D, T where it is stopped ..."""
    return read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0]


def parent_of(pid):
    """0: it has ended."""
    with contextlib.suppress(OSError):
        return int(read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[1])
    return 0


def descendants(pid):
    """The processes that one has started, and those that they have."""
    parents = {int(p): parent_of(int(p)) for p in os.listdir("/proc") if p.isdigit()}
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found and p not in found}:
        found |= more
    return found - {pid}


def waits_of(pid):
    """What each thread of a process waits for, as far as the kernel tells."""
    text = ""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for name in ("stat", "wchan", "syscall", "stack"):
                with contextlib.suppress(OSError):
                    text += f"{task} {name} {read(f'/proc/{pid}/task/{task}/{name}').strip()}\n"
    return text


held = []  # sockets of free_port


def free_port():
    """One that nobody is given again while this program runs: it stays bound, which a listener that reuses addresses may share."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", 0))
    held.append(s)
    return s.getsockname()[1]


def wait_until_taken(pid, number):
    """Until a process has been handed a signal that it was sent: two that are pending at once are one."""
    def is_pending():
        with contextlib.suppress(OSError):  # it may have ended, and what it died of stays there until it is waited for
            masks = re.findall(r"(?m)^(?:SigPnd|ShdPnd):\s+(\w+)$", read(f"/proc/{pid}/status"))
            return state_of(pid) != "Z" and any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
        return False
    wait_for(lambda: not is_pending())


def kill_processes_with(mark, seconds=10):
    """All of them, and those that they start meanwhile."""
    end = time.time() + seconds
    while (left := processes_with(mark)) and time.time() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


class LaunchCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="longhaul-launch-")
        self.mark = f"LH_MARK={self.folder}"
        self.segments = segments()
        self.addCleanup(self.remove_folder)
        self.addCleanup(kill_processes_with, self.mark)  # of a test that failed

    def remove_folder(self):
        shutil.rmtree(self.folder, True)

    def ini(self, more="", name="a.ini"):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(INI + more)
        return path

    def start(self, ini, *flags, wrap=(), preexec_fn=None, **environment):
        return subprocess.Popen([*wrap, PROGRAM, "train", ini, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=clean_environment(LH_MARK=self.folder, **environment), preexec_fn=preexec_fn)

    def terminal(self):
        """A preexec_fn: a session of its own with a terminal, as a shell gives it, for what a SIGHUP then means."""
        leader, follower = pty.openpty()
        for fd in (leader, follower):
            self.addCleanup(os.close, fd)

        def become():
            os.setsid()
            fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
        return become

    def finish(self, process, limit=60):
        """Exit code, stdout, stderr, but for what a sanitizer says of a rank that is killed while it looks for leaks."""
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, re.sub(r"(?m)^==\d+==Unable to get registers from thread \d+\.\n", "", err or "")

    def run_ranks(self, ini, *flags, **environment):
        return self.finish(self.start(ini, *flags, **environment))

    def seen(self):
        """Started ranks so far: pid by number."""
        found = {}
        for pid in processes_with(self.mark):
            try:
                match = re.search(rb"LONGHAUL_LAUNCH=rank=(\d+) ", environment(pid))
                # What a rank forks has its environment too: a launcher's child is a rank, but for savers whose rank has died.
                name = read(f"/proc/{pid}/stat").rsplit(")", 1)[0]
                parent = parent_of(pid)
                helper = name.endswith(SAVERS) or b"LONGHAUL_LAUNCH=rank=" in environment(parent)
            except OSError:
                continue
            if match and not helper:
                found[int(match.group(1))] = pid
        return found

    def ranks(self, count):
        """Pids of started ranks by their number, once all have begun their work."""
        end = time.time() + 60
        while time.time() < end:
            found = self.seen()
            logs = [os.path.join(self.folder, "out", f"rank-{r}.log") for r in range(1, count)]
            if len(found) == count and all(os.path.exists(p) and "rank" in read(p) for p in logs):
                return found
            time.sleep(0.02)
        self.fail(f"the ranks did not begin: only {sorted(self.seen())} of {count} did")

    def forget_logs(self):
        """Of a run that has ended, so that what they say is not taken for the next one's."""
        for path in glob.glob(os.path.join(self.folder, "out", "rank-*.log")):
            os.unlink(path)

    def ports_open(self):
        """Sockets that listen and that a process of this test has."""
        held = set()
        for pid in processes_with(self.mark):
            try:
                held |= {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            except OSError:  # it or a file of its has gone since
                continue
        return [i for i in listeners() if f"socket:[{i}]" in held]

    def nothing_is_left(self):
        end = time.time() + 20
        while processes_with(self.mark) and time.time() < end:
            time.sleep(0.01)
        self.assertEqual(processes_with(self.mark), [])
        self.assertEqual(segments() - self.segments, set())

    def no_port_is_left(self, before):
        """Other processes of this machine open and close ports while it looks: what is left stays."""
        left = listeners() - before
        end = time.time() + 20
        while left and time.time() < end:
            left = (left - owned_by_others(left, self.mark)) & listeners()
            time.sleep(0.02)
        self.assertEqual(left, set())


def main():
    """Called as NAME.py RANK_PROGRAM LONGHAUL."""
    global PROGRAM, LONGHAUL
    PROGRAM, LONGHAUL = sys.argv[1:3]
    unittest.main(module="__main__", argv=sys.argv[:1], verbosity=2, warnings="ignore")


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def wait_for(fact, seconds=60):
    end = time.time() + seconds
    while not fact():
        if time.time() > end:
            raise AssertionError("it did not come to that")
        time.sleep(0.02)
