"""without_device.py CHECK PLUGINS FILE: where a device plugin finds no device, every check that needs one is skipped with
what the plugin says; what looks at its file and tables is not."""
import json
import subprocess
import sys

check, plugins, path = sys.argv[1:4]
done = subprocess.run([check, "--json", "--plugins", plugins, path], stdout=subprocess.PIPE, text=True, timeout=280)
rows = {r["check"]: r for r in map(json.loads, done.stdout.splitlines())}
needing = {"life.repeats", "life.out_of_memory", "life.faulty_host", "device.properties", "device.memory", "device.streams",
           "device.kernels", "device.padded", "device.adds", "device.same_bits"}
found = {name for name, r in rows.items() if r["result"] == "skip" and r["reason"] == "it finds no device here: no card answers"}
for name in sorted(found ^ needing):
    print(name, rows.get(name))
passed = {name for name, r in rows.items() if r["result"] == "pass"}
sys.exit(found != needing or done.returncode != 0 or not {"device.rows", "file.loads", "tables.keys"} <= passed)
