"""train.log says which plugins a run was made by: name, version, digest, ABI, build and what came with them."""
import hashlib
import os
import re
import shutil
import subprocess

from pipeline_case import BINARY, PipelineCase, main

PLUGINS = os.path.join(os.path.dirname(os.path.dirname(BINARY)), "lib", "longhaul")
FILES = {"model": "models/llama", "optimizer": "optimizers/zero0", "parts": "parts/rules", "device": "devices/cpu"}
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z plugin (\w+) (\w+) (\S+): sha256 ([0-9a-f]{64}), abi (\d+\.\d+), build-id (\w+), new libraries: (.*)")


def build_id(path):
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True).stdout
    found = re.search(r"Build ID: (\w+)", notes)
    return found.group(1) if found else "none"


class PluginRecord(PipelineCase):
    def test_each_plugin_has_a_line(self):
        _, err = self.run_longhaul("run", self.small_job(train={"steps": 2}))
        with open(self.path("out", "train.log")) as f:
            rows = {m.group(1): m for m in map(LINE.match, f) if m}
        self.assertEqual(sorted(rows), sorted(FILES))
        for kind, name in FILES.items():
            path = os.path.join(PLUGINS, name + ".so")
            with open(path, "rb") as f:
                digest = hashlib.sha256(f.read()).hexdigest()
            self.assertEqual((rows[kind].group(2), rows[kind].group(4)), (os.path.basename(name), digest))
            if shutil.which("readelf"):
                self.assertEqual(rows[kind].group(6), build_id(path))
        self.assertNotIn("sha256", err)


main()
