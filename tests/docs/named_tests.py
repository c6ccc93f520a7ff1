"""named_tests.py SOURCE BUILD - is every test that a page of docs/ or a README names there?

A name counts where it is the whole of a piece of code and its first word is that of a test of BUILD: `unit.data.prepare_test`,
`unit.cli.out_of_memory_test` for the tests below it, `launch.*`. A test that BUILD lacks, as a tool for it is not installed,
must stand in a CMakeLists.txt of tests/ by its name."""
import fnmatch
import glob
import os
import re
import subprocess
import sys


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def main(source, build):
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], capture_output=True, text=True, check=True).stdout
    tests = re.findall(r"Test +#\d+: (\S+)", listed)
    groups = {t.split(".")[0] for t in tests}
    added = "\n".join(read(f) for f in glob.glob(os.path.join(source, "tests", "**", "CMakeLists.txt"), recursive=True))
    # cuda_${name}_test says something of a name, ${name} by itself does not.
    stated = [re.sub(r"\$\{\w+\}", "*", n) for n in re.findall(r"add_(?:test\(NAME |hours_test\()([\w.${}]+)", added)]
    stated = {n for n in stated if re.search(r"\w", n.split(".")[-1])}
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=source, capture_output=True, text=True)
    names = pages.stdout.split() if pages.returncode == 0 else [
        os.path.relpath(f, source) for f in glob.glob(os.path.join(source, "docs", "*.md"))]
    count, lost = 0, []
    for page in names:
        if page.startswith("vendor/") or page == "CHANGELOG.md":  # others'; and what was, not what is
            continue
        for name in sorted(set(re.findall(r"`(\w+(?:\.[\w*]+)+)`", read(os.path.join(source, page))))):
            if name.split(".")[0] not in groups or name.endswith((".c", ".h", ".py", ".md", ".ini", ".json")):
                continue
            count += 1
            if not any(fnmatch.fnmatchcase(name, s) for s in stated) and not any(
                    fnmatch.fnmatchcase(t, name) or t.startswith(name + ".") for t in tests):
                lost.append(f"{page}: {name} is no test")
    for line in lost:
        print(line)
    print(f"{count} names of {len(tests)} tests in {len(names)} pages")
    return 1 if lost or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
