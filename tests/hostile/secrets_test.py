"""A job's key stands in its file and nowhere else: no command line, no environment, no log, no report, no
checkpoint; and a key pasted into an INI is refused without being repeated.

    python3 secrets_test.py RANK_PROGRAM LONGHAUL SOURCE
"""

import base64
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from two_ranks import training

RANKS, PROGRAM, SOURCE = map(os.path.abspath, sys.argv[1:4])
KEY = bytes(range(7, 231, 7))
FORMS = [KEY, KEY.hex().encode(), KEY.hex().upper().encode(), base64.b64encode(KEY), base64.urlsafe_b64encode(KEY)]
INI = """[pipeline]
name = secret
stages = prepare
folder = out
[prepare]
input = x.jsonl
tokenizer = vocab.json
[launch]
ranks_per_node = 3
secret = %s
"""
TRAINING = training(SOURCE, 40, "security = private\n")
WRITTEN = ("metrics.jsonl", "train.log", "rank-1.log", "report.html", "stages.json", "manifest.json", ".safetensors",
           "tfevents")


def shows(data):
    # Half of it is too much.
    return any(form[:len(form) // 2] in data or form[len(form) // 2:] in data for form in FORMS)


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def outside(process, mark):
    """Command lines and environments of all processes of the job."""
    found = b""
    while process.poll() is None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            environment = read(f"/proc/{pid}/environ")
            if mark in environment:
                found += environment + read(f"/proc/{pid}/cmdline")
        time.sleep(0.02)
    return found


def write_key(folder, mode=0o600):
    path = os.path.join(folder, "job.key")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, mode), "w") as f:
        f.write(KEY.hex() + "\n")
    return path


def write_ini(folder, text):
    path = os.path.join(folder, "a.ini")
    with open(path, "w") as f:
        f.write(text)
    return path


def clean_environment(folder, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_", "LOCAL_", "SLURM_"))}
    return {**kept, "LH_MARK": folder, **more}


def run_job(folder, command, environment):
    """What stands outside of its processes while they run; the job's folder holds the rest."""
    with open(os.path.join(folder, "stdout"), "wb") as out, open(os.path.join(folder, "stderr"), "wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        seen = outside(process, folder.encode())
    assert process.returncode == 0, read(os.path.join(folder, "stderr"))
    return seen


def nothing_shows(folder, key, seen):
    assert not shows(seen), "the key stands in a command line or an environment"
    files = [os.path.join(d, f) for d, _, names in os.walk(folder) for f in names]
    for path in files:
        assert path == key or not shows(read(path)), f"the key stands in {path}"
    assert os.stat(key).st_mode & 0o777 == 0o600
    return files


def ranks_keep_it(folder):
    key, ini = write_key(folder), write_ini(folder, INI % "job.key")
    seen = run_job(folder, [RANKS, "train", ini], clean_environment(folder, LH_STEPS="100", LH_STEP_MS="5"))
    assert seen.count(b"LH_MARK=") > 3, "the ranks were not seen"
    files = nothing_shows(folder, key, seen)
    assert len(files) > 4, files


def training_keeps_it(folder):
    key, ini = write_key(folder), write_ini(folder, TRAINING)
    seen = run_job(folder, [PROGRAM, "run", ini], clean_environment(folder))
    assert seen.count(b"LONGHAUL_LAUNCH=rank=1") > 0, "the ranks were not seen"
    files = nothing_shows(folder, key, seen)
    for name in WRITTEN:
        assert any(name in path for path in files), (name, files)


def check(folder, value, *flags):
    ini = write_ini(folder, INI % value)
    done = subprocess.run([PROGRAM, "check", ini, *flags], capture_output=True, cwd=folder)
    assert not shows(done.stderr + done.stdout), value
    return done


def pasted_keys_are_refused(folder):
    coded, hexadecimal = base64.b64encode(KEY).decode(), KEY.hex()
    for value in (hexadecimal, hexadecimal.upper(), "0x" + hexadecimal, f'"{hexadecimal}"', "./" + hexadecimal, coded,
                  coded.rstrip("="), "./" + coded, f'"{coded}"', base64.urlsafe_b64encode(KEY).decode()):
        done = check(folder, value)
        expected = b"a.ini:10: secret is a key; name a file of mode 0600"
        assert done.returncode == 1 and expected in done.stderr, (value, done.stderr)


def check_shows_a_path(folder):
    """Only one that leads to a file: what else stands there may be a key in some other form."""
    other = " ".join(KEY.hex()[i:i + 8] for i in range(0, 64, 8))
    for name in ("x.jsonl", "vocab.json"):
        with open(os.path.join(folder, name), "w") as f:
            f.write("{}\n")
    for value in ("new.key", other):
        done = check(folder, value)
        assert value.encode() not in done.stdout and b"secret is set" in done.stdout, done
    write_key(folder)
    done = check(folder, "job.key")
    assert done.returncode == 0 and b"secret             = job.key" in done.stdout, done


def a_file_of_others_is_refused(folder):
    key, ini = write_key(folder), write_ini(folder, INI % "job.key")
    os.chmod(key, 0o644)
    done = subprocess.run([RANKS, "train", ini], capture_output=True, env=clean_environment(folder))
    assert done.returncode == 1 and b"others may read the job's key" in done.stderr, done.stderr
    assert not shows(done.stderr + done.stdout)


def main():
    for case in (ranks_keep_it, training_keeps_it, pasted_keys_are_refused, check_shows_a_path,
                 a_file_of_others_is_refused):
        with tempfile.TemporaryDirectory(prefix="longhaul-secret-") as folder:
            case(folder)
    print("the key stands in its file and nowhere else")


main()
