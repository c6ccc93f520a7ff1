#!/usr/bin/env python3
"""Every collective between processes over the transports that are there: results are right, in any site, by any
algorithm; and between the machines of an INI. LONGHAUL_TORTURE runs the whole list instead of a sample."""
import itertools
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "launch"))
from launch_case import free_port

BINARY = os.environ["LONGHAUL_BINARY"]
MACHINES = """[pipeline]
name = machines
stages = prepare
folder = out
[prepare]
input = none
tokenizer = none
[launch]
address = 127.0.0.1
port = {port}
secret = job.key
[site.tokyo]
hosts = t1:2
[site.osaka]
hosts = o1:1
"""
OPS = ["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "scatter", "gather", "all-to-all"]
DIRECT = ["scatter", "gather", "all-to-all"]
SHAPES = [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (3, 3)]
TRANSPORTS = ["shm", "tcp"]
ALGORITHMS = ["auto", "direct", "ring"]
# Over the stand-in of libibverbs: what a training takes, by up to four ranks, in two sites, too.
RDMA_OPS, RDMA_SHAPES, RDMA = OPS[:3], [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2)], ["ib", "apn"]
FAKE_VERBS = os.environ["LONGHAUL_FAKE_VERBS"]


def differs(op, shape, transport, algorithm, dtype):
    """Whether it is another collective than one that is in the list: these go from each to each by any algorithm, one rank
    sends to nobody, and shm is for one machine, one site."""
    if algorithm != "auto" and (op in DIRECT or shape == (1, 1)):
        return False
    return transport == "tcp" or shape[1] == 1


def cases():
    everything = list(itertools.product(OPS, SHAPES, TRANSPORTS, ALGORITHMS, ["f32", "bf16"]))
    usable = [c for c in everything if differs(*c)]
    rdma = list(itertools.product(RDMA_OPS, RDMA_SHAPES, RDMA, ALGORITHMS, ["f32", "bf16"]))
    return usable + rdma if os.environ.get("LONGHAUL_TORTURE") else usable[::21] + rdma[5::47]


def run(op, shape, transport, algorithm, dtype):
    command = [BINARY, "bench", "collectives", "--quick", "--json", "--op", op, "--ranks", str(shape[0]), "--sites",
               str(shape[1]), "--transport", transport, "--algorithm", algorithm, "--dtype", dtype, "--sizes",
               "4..1MiB"]
    if transport == "ib":  # no level of a link between sites but what it can give
        command += ["--set", "transport.wan.security=known"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ, LD_LIBRARY_PATH=FAKE_VERBS))
    if out.returncode != 0:
        return f"{' '.join(command)}\n{out.stderr}"
    rows = json.loads(out.stdout)["rows"]
    wrong = [row["bytes"] for row in rows if row["wrong"]]
    return f"{' '.join(command)}: wrong at {wrong} bytes" if wrong or len(rows) < 9 else None


def between_machines():
    """As on two machines: a launcher for each, of which the first one's rank 0 tells; both here, over the loopback."""
    with tempfile.TemporaryDirectory() as folder:
        ini = os.path.join(folder, "job.ini")
        with open(ini, "w") as f:
            f.write(MACHINES.format(port=free_port()))
        command = [BINARY, "bench", "collectives", ini, "--quick", "--json", "--op", "all-gather", "--sizes", "4..64KiB"]
        both = [subprocess.Popen([*command, "--host", host], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for host in ("t1", "o1")]
        (out, err), (other, more) = (process.communicate(timeout=300) for process in both)
    if [process.returncode for process in both] != [0, 0]:
        return f"between machines: {err}{more}"
    told = json.loads(out)
    facts = (told["ranks"], told["sites"], told["transport"], len(told["rows"]), sum(row["wrong"] for row in told["rows"]))
    return None if (facts, other) == ((3, 2, "tcp", 8, 0), "") else f"between machines: {facts}, {other}"


faults = [fault for fault in [run(*case) for case in cases()] + [between_machines()] if fault]
print("\n".join(faults) if faults else f"{len(cases())} cases and two machines are right")
sys.exit(1 if faults else 0)
