"""areas.py SOURCE BUILD [AREA] - is every test of BUILD in an area of tests/areas, has every area tests, and is what begins first
in torture (tests/torture/begin), or runs by turns (tests/torture/turns), a test? With AREA: prints that area's regular expression, or of a name with a dot that
of the test of this name, or says which areas there are."""
import os
import re
import subprocess
import sys


def read_areas(source):
    rows = {}
    with open(os.path.join(source, "tests", "areas")) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                name, pattern = line.split(None, 1)
                rows[name] = pattern.strip()
    return rows


def main(source, build, wanted=None):
    areas = read_areas(source)
    if wanted is not None:
        if "." in wanted:  # no area has one, every test has
            print(f"^{re.escape(wanted)}$")
            return 0
        if wanted not in areas:
            print(f"AREA={wanted}: there is no such area; there are {', '.join(areas)}", file=sys.stderr)
            return 1
        print(areas[wanted])
        return 0
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], capture_output=True, text=True, check=True).stdout
    tests = re.findall(r"Test +#\d+: (\S+)", listed)
    lost = [t for t in tests if not any(re.search(p, t) for p in areas.values())]
    empty = [a for a, p in areas.items() if not any(re.search(p, t) for t in tests)]
    unknown, none = [], False
    for page, column in (("begin", 0), ("turns", 1)):
        with open(os.path.join(source, "tests", "torture", page)) as f:
            named = [line.split()[column] for line in f if line.strip() and not line.startswith("#")]
        none = none or not named
        # A part of a test may be a test under sanitizers alone: integration.cuda_test.some.
        unmade = {t for t in named if t not in tests and t.rpartition(".")[0] not in tests}
        for test in sorted(unmade) + sorted({t for t in named if named.count(t) > 1}):
            print(f"{test} of tests/torture/{page} is no test, or stands there twice")
            unknown.append(test)
    for test in lost:
        print(f"{test} is in no area of tests/areas")
    for area in empty:
        print(f"area {area} of tests/areas has no test")
    print(f"{len(tests)} tests in {len(areas)} areas")
    return 1 if lost or empty or unknown or none or not tests else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
