"""What benchmarks share: sides that are measured in turn (A B A B ...), so that a change of the machine's mood strikes
all of them; the interpreter of the peers; medians, ratios and goals as a table and as JSON."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DATA = os.path.join(ROOT, "examples", "data")
PEERS = os.path.join(HERE, "peers")


def peers_python():
    """The interpreter that has the peers (make peers, or LONGHAUL_PEERS), or None."""
    path = os.environ.get("LONGHAUL_PEERS", os.path.join(ROOT, "build", "peers", "bin", "python"))
    return path if os.access(path, os.X_OK) else None


def run(command, **more):
    """stdout; whoever fails ends the benchmark with its last words."""
    out = subprocess.run(command, capture_output=True, text=True, errors="replace", **more)
    if out.returncode != 0:
        sys.exit("%s\nended with %d: %s" % (" ".join(command), out.returncode, (out.stderr.strip() or out.stdout)[-2000:]))
    return out.stdout


def options(doc, rounds=3):
    """What every benchmark takes; the caller adds its own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longhaul", default=os.path.join(ROOT, "build", "release", "bin", "longhaul"),
                        help="the program; build/release/bin/longhaul if not given")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each side; %d if not given" % rounds)
    parser.add_argument("--no-peers", action="store_true", help="only ours")
    parser.add_argument("--folder", help="where scratch files go; the system's temporary folder if not given")
    parser.add_argument("--json", metavar="FILE", help="also write every figure of every round here")
    return parser


def check(given):
    """Stops where there is nothing to measure; says once what is left out."""
    if not os.access(given.longhaul, os.X_OK):
        sys.exit("%s is not there; make build first, or name one with --longhaul" % given.longhaul)
    given.longhaul = os.path.abspath(given.longhaul)
    if given.rounds < 1:
        sys.exit("--rounds %d: at least 1" % given.rounds)
    given.python = None if given.no_peers else peers_python()
    if given.python is None and not given.no_peers:
        print("no peers: make peers installs them, or LONGHAUL_PEERS names a Python that has them; only ours is measured")


def machine():
    """What the figures were taken on; a load above the work of the benchmark itself spoils them."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            name = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), name)
    except OSError:
        pass
    return {"processor": name, "processors": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}


def opening(given):
    """Prints the machine; returns what the JSON begins with."""
    facts = machine()
    print("%(processor)s, %(processors)d processors, load %(load).2f before" % facts
          + "; %d rounds in turn" % given.rounds)
    if facts["load"] > 0.5:
        print("the machine is busy with something else: these figures mean little")
    return {"machine": facts, "rounds": given.rounds, "results": []}


def in_turn(sides, rounds):
    """{name: [what a call gave, by round]} of {name: function}: A B A B ..., never A A B B."""
    got = {name: [] for name in sides}
    for n in range(rounds):
        for name, measure in sides.items():
            if sys.stderr.isatty():
                print("\r%-60s\r" % ("round %d of %d: %s" % (n + 1, rounds, name)), end="", file=sys.stderr, flush=True)
            got[name].append(measure())
    if sys.stderr.isatty():
        print("\r%60s\r" % "", end="", file=sys.stderr, flush=True)
    return got


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def least(rows, key):
    return min(row[key] for row in rows)


def most(rows, key):
    return max(row[key] for row in rows)


class Goals:
    """Counts what was held against a goal."""

    def __init__(self):
        self.met, self.missed, self.open = 0, 0, 0

    def at_least(self, value, goal, form="%.2fx"):
        return self._text(value, goal, ">=", value is not None and value >= goal, form)

    def at_most(self, value, goal, form="%.2fx"):
        return self._text(value, goal, "<=", value is not None and value <= goal, form)

    def _text(self, value, goal, sign, met, form):
        shown = "%s %s" % (sign, form % goal)
        if value is None:
            self.open += 1
            return shown + ", no figure"
        self.met, self.missed = self.met + met, self.missed + (not met)
        return "%s of %s%s" % (form % value, shown, "" if met else "  MISSED")

    def closing(self):
        """Returns how many were missed."""
        print("\n%d goals met, %d missed%s" % (self.met, self.missed, ", %d without figures" % self.open if self.open else ""))
        return self.missed


def table(head, rows):
    """Columns as wide as what stands in them: text to the left, figures to the right."""
    shown = [[("-" if cell is None else str(cell)) for cell in row] for row in [head] + rows]
    wide = [max(len(row[i]) for row in shown) for i in range(len(head))]
    for row in shown:
        cells = [cell.ljust(w) if i in (0, len(head) - 1) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, wide))]
        print("  ".join(cells).rstrip())


def closing(given, report):
    """Writes the JSON, with the load of the machine afterwards. Long benchmarks call it after every result, so that
    what breaks later costs nothing that was measured."""
    report["load_after"] = round(os.getloadavg()[0], 2)
    if given.json:
        with open(given.json, "w") as f:
            json.dump(report, f, indent=1)
