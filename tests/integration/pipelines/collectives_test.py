#!/usr/bin/env python3
"""Every collective between processes over the transports that are there: results are right, in any site, by any
algorithm. LONGHAUL_TORTURE runs the whole list instead of a sample."""
import itertools
import json
import os
import subprocess
import sys

BINARY = os.environ["LONGHAUL_BINARY"]
OPS = ["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "scatter", "gather", "all-to-all"]
SHAPES = [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (3, 3)]
TRANSPORTS = ["shm", "tcp"]
ALGORITHMS = ["auto", "direct", "ring"]


def cases():
    everything = list(itertools.product(OPS, SHAPES, TRANSPORTS, ALGORITHMS, ["f32", "bf16"]))
    usable = [c for c in everything if c[2] == "tcp" or c[1][1] == 1]  # shm is for one machine, one site
    return usable if os.environ.get("LONGHAUL_TORTURE") else usable[::31]


def run(op, shape, transport, algorithm, dtype):
    command = [BINARY, "bench", "collectives", "--quick", "--json", "--op", op, "--ranks", str(shape[0]), "--sites",
               str(shape[1]), "--transport", transport, "--algorithm", algorithm, "--dtype", dtype, "--sizes",
               "4..1MiB"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if out.returncode != 0:
        return f"{' '.join(command)}\n{out.stderr}"
    rows = json.loads(out.stdout)["rows"]
    wrong = [row["bytes"] for row in rows if row["wrong"]]
    return f"{' '.join(command)}: wrong at {wrong} bytes" if wrong or len(rows) < 9 else None


faults = [fault for fault in (run(*case) for case in cases()) if fault]
print("\n".join(faults) if faults else f"{len(cases())} cases are right")
sys.exit(1 if faults else 0)
