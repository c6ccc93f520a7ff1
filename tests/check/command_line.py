"""command_line.py CHECK PLUGIN LONGHAUL: what longhaul-check and longhaul plugins are asked wrongly, or can't say, is a
sentence and no success; and names of files do not reach a terminal as they are."""
import os
import shutil
import subprocess
import sys
import tempfile

check, plugin, longhaul = (os.path.abspath(p) for p in sys.argv[1:4])
failures = []


def run(words, **how):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120, **how)


def refused(words, code, sentence):
    done = run([check] + words, stdout=subprocess.PIPE)
    first = done.stderr.decode().splitlines()[:1]
    if done.returncode != code or first != ["longhaul-check: " + sentence]:
        failures.append(f"{words}: exit code {done.returncode}, {done.stdout!r} {done.stderr!r}")


def flags_without_effect():
    refused(["--only", "nosuchcheck", plugin], 2, "--only nosuchcheck: no check's name matches; --list shows them")
    refused(["--json", "--only", "nosuchcheck", plugin], 2, "--only nosuchcheck: no check's name matches; --list shows them")
    refused(["--only", "^device", plugin], 2, "--only ^device: no check for the kind optimizer matches; --list shows them")
    refused(["--only", "file", "--set", "nosuch=1", plugin], 2, "--set nosuch=1: the plugin has no such option")
    refused(["--only", "file", "--plugins", "/nonexistent", plugin], 2, "--plugins /nonexistent: No such file or directory")
    refused(["--only", "file", "--plugins", "/etc/passwd", plugin], 2, "--plugins /etc/passwd: not a folder")
    refused(["--only", "file", "--seed", "-1", plugin], 2, "--seed: not a whole number: -1")
    refused(["--only", "file", "--seed", "99999999999999999999", plugin], 2, "--seed: not a whole number: 99999999999999999999")
    if run([check, "--only", "file", plugin], stdout=subprocess.PIPE).returncode != 0:
        failures.append("--only file does not pass")


def a_plugin_that_cannot_be_loaded(folder):
    path = os.path.join(folder, "broken.so")
    with open(path, "w") as f:
        f.write("not a shared object")
    done = run([check, "--only", "life", path], stdout=subprocess.PIPE)
    if done.returncode != 1 or b"is not an ELF file" not in done.stdout:
        failures.append(f"--only life of no plugin: exit code {done.returncode}, {done.stdout!r}")


def stdout_that_is_full():
    if not os.path.exists("/dev/full"):
        return
    for words in [["--help"], ["--list"], ["--only", "file", plugin], ["--json", "--only", "file", plugin]]:
        with open("/dev/full", "w") as full:
            done = run([check] + words, stdout=full)
        if done.returncode != 1 or not done.stderr.startswith(b"longhaul-check: cannot write to stdout"):
            failures.append(f"{words} >/dev/full: exit code {done.returncode}, {done.stderr!r}")


def names_that_a_terminal_obeys(folder):
    top = os.path.join(folder, "a\x1b[2J")
    inner = os.path.join(top, "optimizers")
    os.makedirs(inner, mode=0o755)
    odd = os.path.join(inner, "b\x1b[2J\n.so")
    shutil.copy(plugin, os.path.join(inner, os.path.basename(plugin)))
    shutil.copy(plugin, odd)
    for words in [[check, "--only", "file", odd], [check, odd + "none.so"], [check, "--only", odd, plugin],
                  [check, "--only", "file", "--plugins", odd, plugin],
                  [longhaul, "plugins", "--plugins", top], [longhaul, "plugins", "--plugins", inner]]:
        done = run(words, stdout=subprocess.PIPE)
        if b"\x1b" in done.stdout + done.stderr or b"\\x1b[2J" not in done.stdout + done.stderr:
            failures.append(f"{words}: {done.stdout!r} {done.stderr!r}")


with tempfile.TemporaryDirectory(prefix="longhaul-check-") as scratch:
    flags_without_effect()
    a_plugin_that_cannot_be_loaded(scratch)
    stdout_that_is_full()
    names_that_a_terminal_obeys(scratch)
for failure in failures:
    print(failure)
sys.exit(bool(failures))
