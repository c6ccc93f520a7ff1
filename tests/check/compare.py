"""compare.py SCRIPT LONGHAUL PLUGINS GOLDEN PEERS: sdk/template/compare_with_transformers finds that plugins of the tree give
what Transformers does, the loss that balances experts with it, and a spec too; that one is wrong whose norm is told another
epsilon, and with which block a difference begins; that an import's warning of a misspelled key is shown; without PyTorch it says what installs it, and the rest is
skipped (77)."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration", "pipelines"))
from transformers_peer import Peer

script, longhaul, plugins, golden, peers = sys.argv[1:6]
failures = []


def words(folder, *flags):
    return script, os.path.join(golden, folder), "--longhaul", longhaul, "--plugins", plugins, *flags


def run(folder, *flags, **environment):
    done = subprocess.run([sys.executable, *words(folder, *flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def expect(what, good, said):
    if not good:
        failures.append(f"{what}: {said}")


peers = os.environ.get("LONGHAUL_PEERS", peers)
compared = os.access(peers, os.X_OK)
if compared:
    spec = os.path.join(os.path.dirname(script), "..", "..", "examples", "specs", "qwen3.ini")
    # The first goes on in the peers' Python by itself; the others are forks of one that has imported all.
    peer = Peer(peers)
    for i, (folder, flags) in enumerate((("qwen3", ()), ("falcon-40b-kind", ()), ("mixtral", ()), ("qwen3", ("--spec", spec)))):
        code, out, err = run(folder, *flags, LONGHAUL_PEERS=peers) if i == 0 else peer.run(*words(folder, *flags))
        lines = out.splitlines()
        expect(folder, code == 0 and [line.split()[:2] for line in lines] == [["same", n] for n in ("greedy", "export", "curve")],
               (code, out, err))
    code, out, err = peer.run(*words("qwen3", "--set", "model.epsilon=0.1"))
    expect("another epsilon", code == 1 and "DIFFERS curve" in out and "--blocks says" in err, (code, out, err))
    for setting, place in (("model.epsilon=0.1", "embedding or head, with all blocks at zero"),  # that of the last norm, too
                           ("model.rope_base=1", "block 0, with all behind it at zero")):
        code, out, err = peer.run(*words("qwen3", "--blocks", "--steps", "1", "--set", setting))
        expect(place, code == 1 and f"DIFFERS at       {place}: a loss of " in out, (code, out, err))
    with tempfile.TemporaryDirectory() as work:  # a key that nobody reads, so that its default counts
        wrong = os.path.join(work, "mixtral")
        shutil.copytree(os.path.join(golden, "mixtral"), wrong)
        with open(os.path.join(wrong, "config.json")) as f:
            config = json.load(f)
        config["num_experts_per_token"] = config.pop("num_experts_per_tok") - 1
        with open(os.path.join(wrong, "config.json"), "w") as f:
            json.dump(config, f)
        code, out, err = peer.run(*words(wrong))
        expect("a misspelled key", "num_experts_per_token" in err and "num_experts_per_tok?" in err, (code, out, err))
    peer.end()
elif subprocess.run([sys.executable, "-c", "import torch, transformers, safetensors"], stderr=subprocess.DEVNULL).returncode != 0:
    code, out, err = run("qwen3", LONGHAUL_PEERS="/nonexistent")
    expect("without peers", code == 2 and "torch" in err and "make peers" in err and "pip install torch" in err, (code, out, err))
for failure in failures:
    print(failure)
if not compared and not failures:
    print(f"skipped: {peers} is not there (make peers, or LONGHAUL_PEERS)")
    sys.exit(77)
sys.exit(bool(failures))
