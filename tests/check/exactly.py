"""exactly.py CHECK PLUGINS FILE ONLY SAYS NAME...: longhaul-check fails or warns about these checks of FILE and no
others, each with SAYS in its reason. That it was spoiled when it was loaded is known: file.constructors is not looked at."""
import json
import subprocess
import sys

check, plugins, path, only, says = sys.argv[1:6]
expected = set(sys.argv[6:])
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
silent = [name for name, r in found.items() if says not in r.get("reason", "")]
for name in silent:
    print(name, "does not say", repr(says), "but", found[name].get("reason", ""))
if silent or set(found) != expected or done.returncode != (1 if failed else 0) or not rows:
    sys.exit(f"expected {sorted(expected)}, exit code {done.returncode}")
