"""A job's key stands in its file and nowhere else: no command line, no environment, no log, no report, no
checkpoint; and a key pasted into an INI is refused without being repeated.

    python3 secrets_test.py RANK_PROGRAM LONGHAUL
"""

import base64
import os
import subprocess
import sys
import tempfile
import time

RANKS, PROGRAM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
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


def main():
    with tempfile.TemporaryDirectory(prefix="longhaul-secret-") as folder:
        key, ini = os.path.join(folder, "job.key"), os.path.join(folder, "a.ini")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write(KEY.hex() + "\n")
        with open(ini, "w") as f:
            f.write(INI % "job.key")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_", "LOCAL_", "SLURM_"))}
        with open(os.path.join(folder, "stdout"), "wb") as out, open(os.path.join(folder, "stderr"), "wb") as err:
            process = subprocess.Popen([RANKS, "train", ini], stdout=out, stderr=err,
                                       env={**environment, "LH_MARK": folder, "LH_STEPS": "100", "LH_STEP_MS": "5"})
            seen = outside(process, folder.encode())
        assert process.returncode == 0, read(os.path.join(folder, "stderr"))
        assert seen.count(b"LH_MARK=") > 3, "the ranks were not seen"
        assert not shows(seen), "the key stands in a command line or an environment"
        files = [os.path.join(d, f) for d, _, names in os.walk(folder) for f in names]
        assert len(files) > 4, files
        for path in files:
            assert path == key or not shows(read(path)), f"the key stands in {path}"
        assert os.stat(key).st_mode & 0o777 == 0o600

        with open(ini, "w") as f:
            f.write(INI % KEY.hex())
        done = subprocess.run([PROGRAM, "check", ini], capture_output=True, cwd=folder)
        assert done.returncode == 1 and b"a.ini:10: secret is a key; name a file of mode 0600" in done.stderr, done.stderr
        assert not shows(done.stderr + done.stdout)
        os.chmod(key, 0o644)
        with open(ini, "w") as f:
            f.write(INI % "job.key")
        done = subprocess.run([RANKS, "train", ini], capture_output=True, env={**environment, "LH_MARK": folder})
        assert done.returncode == 1 and b"others may read the job's key" in done.stderr, done.stderr
        assert not shows(done.stderr + done.stdout)
    print("the key stands in its file and nowhere else")


main()
