#!/usr/bin/env python3
"""Runs what README.md and docs/ show: its INI is checked, its commands are run (with few steps), its C compiles.

    readme_blocks.py SOURCE_DIR BUILD_DIR
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (os.path.abspath(p) for p in sys.argv[1:3])
BINARY = os.path.join(BUILD, "bin", "longhaul")
FEW = " --set train.steps=3 --set train.evaluate_every=0 --set device.threads=1 --set generate.tokens=4 --set eval.data=test"


def blocks(page, language):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as f:
        return re.findall(r"^```%s\n(.*?)^```" % language, f.read(), re.S | re.M)


def headings(path):
    """As a browser of the repository names them in links."""
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"(?ms)^```.*?^```", "", f.read())
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", t).lower()).replace(" ", "-") for t in titles}


class Readme(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(os.path.join(SOURCE, "examples"), os.path.join(self.folder, "examples"))

    def shell(self, command):
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def test_the_ini_shown_is_accepted_and_says_what_the_example_says(self):
        (shown,) = blocks("README.md", "ini")
        path = os.path.join(self.folder, "examples", "shown.ini")
        with open(path, "w", encoding="utf-8") as f:
            f.write(shown)
        printed = self.shell(f"{BINARY} check examples/shown.ini")
        example = self.shell(f"{BINARY} check examples/shakespeare.ini")

        def values(text):
            found, section = {}, ""
            for line in text.splitlines():
                if line.startswith("["):
                    section = line
                elif " = " in line and not line.startswith(";"):
                    key, value = line.split(" = ", 1)
                    found[section, key.strip()] = value.split(" ; ")[0].strip()
            return found
        mine, theirs = values(printed), values(example)
        for key in (("[train]", "steps"), ("[model]", "hidden"), ("[model]", "blocks"), ("[train]", "batch"),
                    ("[optimizer]", "learning_rate"), ("[prepare]", "tokenizer"), ("[train]", "precision")):
            self.assertEqual(mine.get(key), theirs.get(key), key)

    def test_every_command_shown_runs(self):
        ran = 0
        for block in blocks("README.md", "sh"):
            for line in block.splitlines():
                command = line.split("    #")[0].split("  #")[0].strip()
                if not command or command.startswith("make "):
                    continue  # make runs this test
                installed = os.path.join(self.folder, "installed")
                for shown, here in (('"$PWD/build/installed"', installed), ("build/installed", installed),
                                    ("build/release/bin/longhaul", "@"), ("build/release", BUILD), ("@", BINARY)):
                    command = command.replace(shown, here)
                if re.search(r"longhaul (run|plan|generate) ", command):
                    command += FEW
                self.shell(command)
                ran += 1
        self.assertGreaterEqual(ran, 5)

    def test_commands_of_fine_tuning_run(self):
        for line in "\n".join(blocks("docs/fine-tuning.md", "sh")).splitlines():
            if not line.strip():
                continue
            command = line.split("#")[0].strip().replace("longhaul ", BINARY + " ", 1)
            self.shell(command + (FEW if re.search(r"longhaul (run|plan|generate) ", command) else ""))

    def test_pages_and_headings_that_are_linked_exist(self):
        pages = ["README.md"] + ["docs/" + p for p in os.listdir(os.path.join(SOURCE, "docs"))]
        for page in pages:
            with open(os.path.join(SOURCE, page), encoding="utf-8") as f:
                for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", f.read()):
                    if target.startswith("http"):
                        continue
                    path = os.path.normpath(os.path.join(SOURCE, os.path.dirname(page), target)) if target \
                        else os.path.join(SOURCE, page)
                    self.assertTrue(os.path.exists(path), f"{page} links {target}")
                    if heading:
                        self.assertIn(heading, headings(path), f"{page} links {target}#{heading}")

    def test_it_is_said_where_data_comes_from(self):
        data = os.path.join(SOURCE, "examples", "data")
        with open(os.path.join(data, "NOTICE.md"), encoding="utf-8") as f:
            said = " ".join(re.findall(r"(?m)^\| ([^|]+) \|", f.read()))
        for name in sorted(os.listdir(data)):
            if name != "NOTICE.md":
                self.assertIn(name, said)

    def test_c_that_pages_show_compiles(self):
        with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as f:
            compiler = re.search(r"^CMAKE_C_COMPILER:\w+=(.+)$", f.read(), re.M).group(1)
        pages = ["README.md"] + ["docs/" + p for p in sorted(os.listdir(os.path.join(SOURCE, "docs"))) if p.endswith(".md")]
        compiled = 0
        for page in pages:
            for block in blocks(page, "c"):  # functions and tables of a plugin, which nothing here uses
                done = subprocess.run([compiler, "-std=c17", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow",
                                       "-Wconversion", "-Werror", "-Wno-unused-function", "-Wno-unused-const-variable",
                                       "-I" + os.path.join(SOURCE, "sdk", "include"), "-x", "c", "-"],
                                      input="#include <longhaul/decoder.h>\n" + block, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, f"{page}:\n{block}\n{done.stderr}")
                compiled += 1
        self.assertGreater(compiled, 0)

    def test_keys_that_pages_name_are_known(self):
        for page in ("docs/data.md", "docs/hugging-face.md", "docs/fine-tuning.md"):
            for block in blocks(page, "ini"):
                for section in re.findall(r"^\[([\w.]+)\]", block, re.M):
                    known = self.shell("%s help '%s'" % (BINARY, re.sub(r"^(group|adapter|eval)\..*", r"\1.*", section)))
                    body = block.split(f"[{section}]", 1)[1].split("\n[", 1)[0]
                    for key in re.findall(r"^(\w+)\s*=", body, re.M):
                        self.assertIn(key, known, f"{page}: [{section}] {key}")

    def test_the_readme_is_short(self):
        with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
            self.assertLess(len(f.readlines()), 200)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
