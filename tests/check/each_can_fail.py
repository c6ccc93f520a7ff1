"""each_can_fail.py CHECK NAME...: the checks of longhaul-check are those that a plugin of this folder fails, each and
no others. Exempt are those that no plugin can fail here: what is not built yet is skipped for each plugin, and transport.wan
wherever the kernel has no sch_netem."""
import subprocess
import sys

listed = subprocess.run([sys.argv[1], "--list"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
checks = {line.split()[0] for line in listed.stdout.splitlines()}
failed = set(sys.argv[2:])
exempt = {"model.stages", "transport.wan"}
for name in sorted(exempt - checks):
    print(name, "is exempt and no check")
for name in sorted(exempt & failed):
    print(name, "is failed by a plugin and exempt")
for name in sorted(checks - failed - exempt):
    print(name, "is failed by no plugin")
for name in sorted(failed - checks):
    print(name, "is no check")
sys.exit(checks != failed | exempt or bool(failed & exempt))
