"""compare.py SCRIPT LONGHAUL PLUGINS GOLDEN PEERS: sdk/template/compare_with_transformers finds that plugins of the tree give
what Transformers does, and that one is wrong whose norm is told another epsilon; without PyTorch it says what installs it."""
import os
import subprocess
import sys

script, longhaul, plugins, golden, peers = sys.argv[1:6]
failures = []


def run(folder, *flags, **environment):
    done = subprocess.run([sys.executable, script, os.path.join(golden, folder), "--longhaul", longhaul, "--plugins", plugins, *flags],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def expect(what, good, said):
    if not good:
        failures.append(f"{what}: {said}")


peers = os.environ.get("LONGHAUL_PEERS", peers)
if os.access(peers, os.X_OK):
    for folder in ("qwen3", "falcon-40b-kind"):
        code, out, err = run(folder, LONGHAUL_PEERS=peers)
        lines = out.splitlines()
        expect(folder, code == 0 and [line.split()[:2] for line in lines] == [["same", n] for n in ("greedy", "export", "curve")],
               (code, out, err))
    code, out, err = run("qwen3", "--set", "model.epsilon=0.1", LONGHAUL_PEERS=peers)
    expect("another epsilon", code == 1 and "DIFFERS curve" in out, (code, out, err))
elif subprocess.run([sys.executable, "-c", "import torch, transformers, safetensors"], stderr=subprocess.DEVNULL).returncode != 0:
    code, out, err = run("qwen3", LONGHAUL_PEERS="/nonexistent")
    expect("without peers", code == 2 and "torch" in err and "make peers" in err and "pip install torch" in err, (code, out, err))
for failure in failures:
    print(failure)
sys.exit(bool(failures))
