"""each_can_fail.py CHECK NAME...: the checks of longhaul-check are those that a plugin of this folder fails, each and
no others."""
import subprocess
import sys

listed = subprocess.run([sys.argv[1], "--list"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
checks = {line.split()[0] for line in listed.stdout.splitlines()}
failed = set(sys.argv[2:])
for name in sorted(checks - failed):
    print(name, "is failed by no plugin")
for name in sorted(failed - checks):
    print(name, "is no check")
sys.exit(checks != failed or not checks)
