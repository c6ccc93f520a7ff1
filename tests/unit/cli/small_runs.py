"""small_runs.py LONGHAUL FIXTURES: a small model is trained, then evaluated and asked to generate: documents without
tokens, flags that contradict each other, a stdout that takes nothing, and plugins that leave in the middle of a run."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from small_job import MODEL, TRAIN

PROGRAM, FIXTURES = map(os.path.abspath, sys.argv[1:3])
INI = """[pipeline]
name = small
stages = prepare train eval
folder = out
[prepare]
input = a.jsonl
tokenizer = t/tokenizer.json
append = none
""" + MODEL + TRAIN + """threads = 1
[eval]
data = e.jsonl
[generate]
ids = 0,1
tokens = 2
"""
failures = []


def run(words, **how):
    return subprocess.run([PROGRAM] + words.split(), stderr=subprocess.PIPE, timeout=120, **how)


def expect(words, code, said, **how):
    done = run(words, stdout=subprocess.PIPE, **how)
    if done.returncode != code or said not in done.stdout + done.stderr:
        failures.append(f"{words}: exit code {done.returncode}, {done.stdout!r} {done.stderr!r}")


def write(path, data):
    with open(path, "w") as f:
        f.write(data)


def lines(*texts):
    return "".join(json.dumps({"text": t}) + "\n" for t in texts)


def documents_without_tokens():
    for texts, count in [(["", "abab"], b"over 3 tokens"), (["", ""], b"no tokens to evaluate"), (["abab", ""], b"over 3 tokens")]:
        write("e.jsonl", lines(*texts))
        expect("eval job.ini", 1 if count.startswith(b"no") else 0, count)


def a_greedy_draw():
    for flag in ["temperature 0.5", "top-k 3", "top-p 0.5"]:
        expect(f"generate job.ini --greedy --{flag}", 1,
               f"longhaul: --greedy and --{flag.split()[0]}: what takes the likeliest token draws none\n".encode())
    expect("generate job.ini --greedy", 0, b"")
    expect("generate job.ini --top-k 2 --set generate.greedy=no", 0, b"")


def a_stdout_that_is_full():
    write("e.jsonl", lines("abab"))
    if not os.path.exists("/dev/full"):
        return
    for words in ["eval job.ini", "generate job.ini --json", "check job.ini", "--version"]:
        with open("/dev/full", "w") as full:
            done = run(words, stdout=full)
        said = done.stderr.decode().splitlines()[-1:]
        if done.returncode != 1 or said not in (["longhaul: cannot write to stdout"],
                                                ["longhaul: cannot write to stdout: No space left on device"]):
            failures.append(f"{words} >/dev/full: exit code {done.returncode}, {done.stderr!r}")


def streams_that_are_closed():
    """No file may take a stream's number, as what is printed would land in it; and train.log has every line."""
    command = ["sh", "-c", f'exec "{PROGRAM}" train job.ini --set pipeline.folder=closed --set train.steps=1000000 '
               f'--set data.train="{os.getcwd()}/out/corpus" --set train.log_every=1 0>&- 1>&- 2>&-']
    process = subprocess.Popen(command)
    log = "closed/train.log"
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until and not (os.path.exists(log) and os.path.getsize(log)):
        time.sleep(0.05)
    if process.poll() is not None or not os.path.exists(log) or os.path.getsize(log) == 0:
        failures.append(f"train with closed streams: exit code {process.poll()}, train.log is empty")
    else:
        streams = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1, 2)]
        if streams != ["/dev/null"] * 3:
            failures.append(f"train with closed streams: they are {streams}")
    process.kill()
    process.wait()


def plugins_that_leave():
    """Whoever ends the process with exit code 0 has not run the job, in a rank of several or alone."""
    shutil.copytree(os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "lib/longhaul"), "plugins")
    for name in ("exits_in_open", "leaves_in_open"):
        shutil.copy(os.path.join(FIXTURES, "optimizers", f"{name}.so"), "plugins/optimizers")
    said = rb".*/optimizers/exits_in_open\.so: calls exit with code 0\n"
    rank = rb"longhaul: rank [01] on \S+"
    for ranks, name, code, line in ((1, "exits_in_open", 1, rb"longhaul: " + said),
                                    (2, "exits_in_open", 1, rank + rb" failed[^:]*: " + said),
                                    (2, "leaves_in_open", 3, rank + rb" ended with code 0 and without a word.*\n")):
        words = (f"train job.ini --plugins {os.getcwd()}/plugins --set pipeline.folder=left --set launch.ranks_per_node={ranks} "
                 f"--set data.train={os.getcwd()}/out/corpus --set optimizer.plugin={name}")
        done = run(words, stdout=subprocess.PIPE)
        if done.returncode != code or re.fullmatch(line, done.stderr) is None:
            failures.append(f"{words}: exit code {done.returncode}, {done.stderr!r}")


def a_profile():
    """The fifth step of a run kernel by kernel: a table, the same rows as JSON, and a time line; a run that is shorter has none."""
    words = f"train job.ini --profile --set data.train={os.getcwd()}/out/corpus --set pipeline.folder="
    here = dict(os.environ, XDG_CACHE_HOME=os.path.join(os.getcwd(), "cache"))  # no record of this machine
    expect(words + "short --set train.steps=2", 0, b"--profile: the run was too short, no step was profiled", env=here)
    words += "profiled --set train.steps=6"
    done = run(words, stdout=subprocess.PIPE, env=here)
    said = done.stdout.decode().splitlines()
    first = next((i + 1 for i, line in enumerate(said) if line.split()[:3] == ["part", "op", "kernel"]), None)
    if done.returncode != 0 or first is None:
        failures.append(f"{words}: exit code {done.returncode}, {done.stdout!r} {done.stderr!r}")
        return
    with open("profiled/profile.json") as f:
        rows = json.load(f)
    with open("profiled/profile.trace.json") as f:
        names = {event["name"] for event in json.load(f)["traceEvents"]}
    ops = {row["op"] for row in rows}
    table = said[first:first + len(rows)]
    if not {"matmul", "attention", "attention_grad"} <= ops & names or abs(sum(row["share"] for row in rows) - 1) > 1e-6:
        failures.append(f"a profile of {ops}, its time line of {names}, {rows}")
    if [line.split()[0] for line in table] != [row["part"] for row in rows] or not all(line.endswith("%") for line in table):
        failures.append(f"a profile is shown as {said}, and is {rows}")
    if said[first + len(rows):first + len(rows) + 1] != ["of limit: unknown until longhaul bench device has measured this device"]:
        failures.append(f"a profile without a record of the device ends {said[first + len(rows):]}")


def a_picture():
    """Of the block, by Graphviz where it is."""
    if shutil.which("dot"):
        expect("plan job.ini --graph block.svg", 0, b"whole step")
        with open("block.svg") as f:
            if not {"<svg", "matmul", "attention_grad"} <= set(re.findall(r"<svg|[a-z_]+", f.read())):
                failures.append("plan --graph: block.svg does not show the block")
    expect("plan job.ini --graph none.svg", 1, b"none.svg can't be drawn: Graphviz' dot is not installed (package graphviz)",
           env=dict(os.environ, PATH="/nowhere"))
    if [name for name in os.listdir() if name.startswith("none.svg")]:
        failures.append("plan --graph without Graphviz leaves a file")


with tempfile.TemporaryDirectory(prefix="longhaul-small-") as folder:
    os.chdir(folder)
    os.mkdir("t")
    write("t/tokenizer.json", json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}))
    write("a.jsonl", lines("ab" * 40))
    write("job.ini", INI)
    expect("prepare job.ini", 0, b"")
    expect("train job.ini", 0, b"")
    documents_without_tokens()
    a_greedy_draw()
    a_profile()
    a_picture()
    a_stdout_that_is_full()
    streams_that_are_closed()
    plugins_that_leave()
    os.chdir("/")
for failure in failures:
    print(failure)
sys.exit(bool(failures))
