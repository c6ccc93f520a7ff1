"""The ranks of `bench collectives` share the processors evenly where there are more ranks than processors.

    bench_places.py LONGHAUL"""
import collections
import os
import subprocess
import sys
import time

PROGRAM = sys.argv[1]
RANKS, PATIENCE_S = 4, 60
PROCESSORS = sorted(os.sched_getaffinity(0))[:2]
WANTED = {p: RANKS // len(PROCESSORS) for p in PROCESSORS}


def family(pid):
    """The process, which is rank 0, and its children."""
    pids = [pid]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parent = int(stat.read().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            pids.append(int(name))
    return pids


def ranks_by_processor(pid):
    """Those that keep to one."""
    counts = collections.Counter()
    for each in family(pid):
        try:
            own = os.sched_getaffinity(each)
        except ProcessLookupError:
            continue
        if len(own) == 1:
            counts.update(own)
    return dict(counts)


os.sched_setaffinity(0, PROCESSORS)
# Sizes that take seconds: it is looked at while it measures, and then killed.
bench = subprocess.Popen([PROGRAM, "bench", "collectives", "--ranks", str(RANKS), "--sizes", "1MiB..64MiB"],
                         stdout=subprocess.DEVNULL)
seen, until = {}, time.monotonic() + PATIENCE_S
while seen != WANTED and bench.poll() is None and time.monotonic() < until:
    time.sleep(0.01)
    seen = ranks_by_processor(bench.pid)
bench.kill()
bench.wait()
if seen != WANTED:
    sys.exit(f"ranks by processor: {seen}, expected {WANTED}")
print("as many on each")
