"""`bench device` makes the calls that `plan` counts for a rank of the job, however many ranks it has.

    bench_ranks.py LONGHAUL PIPELINE FOLDER"""
import json
import subprocess
import sys

PROGRAM, PIPELINE, FOLDER = sys.argv[1:]
SMALL = ["train.batch=8", "train.micro_batch=2", "train.sequence=32", "pipeline.folder=" + FOLDER]
JOBS = [
    [],
    ["launch.ranks_per_node=2"],
    ["launch.ranks_per_node=4", "optimizer.plugin=zero3"],
    ["site.a.hosts=a1:1", "site.b.hosts=b1:1", "optimizer.plugin=zero2", "parallel.accumulation=breadth"],
    # Queues that await the ends of transfers: of one that a step starts twice, each of its own.
    ["launch.ranks_per_node=2", "train.batch=12", "optimizer.plugin=zero3", "device.plugin=fake"],
    ["launch.ranks_per_node=2", "train.batch=12", "optimizer.plugin=zero3", "device.plugin=fake",
     "device.words=no", "device.host_access=yes"],
]


def said(*command, sets):
    words = [w for s in sets for w in ("--set", s)]
    done = subprocess.run([PROGRAM, *command, *words, "--json"], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} {sets}: {done.stderr}")
    return json.loads(done.stdout)


for sets in JOBS:
    measured = {}
    for row in said("bench", "device", PIPELINE, "--quick", sets=SMALL + sets)["calls"]:
        measured[row["kind"]] = measured.get(row["kind"], 0) + row["calls"]
    plan = said("plan", PIPELINE, sets=SMALL + sets)
    counted = {row["name"]: row["calls"] for row in plan["ops"]}
    if measured != counted:
        sys.exit(f"{sets}: measured {measured}, planned {counted}")
print("as planned")
