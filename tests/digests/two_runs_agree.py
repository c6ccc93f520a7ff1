"""two_runs_agree.py RUN LONGHAUL: a second run of the quick list has the digests of the first, and `compare` sees one that
is not so."""
import os
import subprocess
import sys
import tempfile

RUN, LONGHAUL = sys.argv[1:3]


def digests(verb, path, *more):
    done = subprocess.run([sys.executable, "-B", RUN, verb, path, "--build", LONGHAUL, *more], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


with tempfile.TemporaryDirectory(prefix="longhaul-two-runs-") as folder:
    path = os.path.join(folder, "digests.txt")
    code, said = digests("write", path, "--quick")
    assert code == 0, said
    code, said = digests("compare", path, "--quick")
    assert code == 0 and " 0 of " in " " + said, said
    with open(path) as f:
        lines = f.read().splitlines()
    name, weights, states, curve = lines[1].split()
    with open(path, "w") as f:
        f.write("\n".join([lines[0], " ".join((name, weights, states[:-1] + "x", curve))]) + "\n")
    code, said = digests("compare", path, "--quick")
    assert code == 1 and said.startswith("%s: other bits: states\n1 of 1 jobs differ" % name), said
