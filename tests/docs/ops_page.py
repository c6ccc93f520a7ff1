#!/usr/bin/env python3
"""docs/ops.md is what `longhaul help op` says of the core's ops.

    ops_page.py SOURCE_DIR BUILD_DIR            compares, as a test
    ops_page.py SOURCE_DIR BUILD_DIR --write    writes the page: make docs
"""
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (os.path.abspath(p) for p in sys.argv[1:3])
BINARY = os.path.join(BUILD, "bin", "longhaul")
PAGE = os.path.join(SOURCE, "docs", "ops.md")


def help_op(*name):
    with tempfile.TemporaryDirectory() as no_plugins:
        done = subprocess.run([BINARY, "help", "op", *name, "--plugins", no_plugins], capture_output=True, text=True,
                              timeout=60, check=True)
    return done.stdout


def page():
    listed, conventions = help_op().split("\n\n", 1)
    ops = [line.split(None, 1) for line in listed.splitlines()]
    text = "# Ops\n\nMade of the ops' rows by `make docs`; `longhaul help op NAME` prints the same, of a plugin's ops too.\n\n"
    text += conventions.rstrip("\n") + "\n\n| op | |\n| --- | --- |\n"
    text += "".join(f"| [{name}](#{name}) | {what.strip()} |\n" for name, what in ops)
    for name, what in ops:
        head, said, rest = help_op(name).split("\n", 2)
        assert head.startswith(f"op {name}: ") and said == what.strip(), head
        text += f"\n## {name}\n\n```\n{head.split(': ', 1)[1]}\n{rest.rstrip()}\n```\n"
    return text


class OpsPage(unittest.TestCase):
    def test_the_page_is_what_help_says(self):
        with open(PAGE, encoding="utf-8") as f:
            self.assertEqual(f.read(), page(), "docs/ops.md is not what `longhaul help op` says: run make docs")


if "--write" in sys.argv:
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(page())
else:
    unittest.main(argv=sys.argv[:1], verbosity=2)
