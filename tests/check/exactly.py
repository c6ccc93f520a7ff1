"""exactly.py CHECK PLUGINS FILE ONLY NAME...: longhaul-check fails or warns about these checks of FILE and no
others. That it was spoiled when it was loaded is known: file.constructors is not looked at."""
import json
import subprocess
import sys

check, plugins, path, only = sys.argv[1:5]
expected = set(sys.argv[5:])
command = [check, "--json", "--plugins", plugins] + (["--only", only] if only else []) + [path]
done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=280)
rows = [json.loads(line) for line in done.stdout.splitlines()]
found = {r["check"]: r for r in rows if r["result"] not in ("pass", "skip")}
skipped = {r["check"] for r in rows if r["result"] == "skip"}
if "file.constructors" not in expected:
    found.pop("file.constructors", None)
expected -= skipped & {"file.constructors"}  # a sanitizer brings constructors of its own
for name in sorted(set(found) ^ expected):
    row = found.get(name, {})
    print(name, "is", row.get("result", "well"), row.get("reason", ""))
failed = any(r["result"] not in ("warn",) for r in found.values())
if set(found) != expected or done.returncode != (1 if failed else 0) or not rows:
    sys.exit(f"expected {sorted(expected)}, exit code {done.returncode}")
