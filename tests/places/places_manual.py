"""Man pages and completion are those of the program's tables, and are what man and bash take; --version says what it is."""
import os
import re
import shutil
import subprocess

from places_case import BUILD, LONGHAUL, SOURCE, PlacesCase, main, read

MANUAL = os.path.join(BUILD, "manual")
PLUGINS = os.path.join(MANUAL, "plugins")


class Manual(PlacesCase):
    def commands(self):
        overview = self.call(LONGHAUL, "help").split("Sections of")[0]
        return re.findall(r"^  (\w+) +\S", overview, re.M)

    def flags(self, command):
        return set(re.findall(r"^  (--[\w-]+)", self.call(LONGHAUL, "help", command), re.M))

    def complete(self, *words):
        """What bash offers behind these words; the last one is what was typed of the word at hand."""
        script = '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _longhaul; printf "%s\\n" "${COMPREPLY[@]}"'
        said = self.call("bash", "-c", script, "bash", os.path.join(MANUAL, "longhaul"), "longhaul", *words,
                         cwd=os.path.join(SOURCE, "examples"))
        return set(said.split())

    def shown(self, page):
        """A page as man shows it; without man, as it stands. man says on stderr what it can't make sense of."""
        path = os.path.join(MANUAL, page)
        if shutil.which("man") is None:
            return read(path).replace("\\-", "-")
        done = subprocess.run(["man", "--warnings=w", "-l", path], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, MANWIDTH="400", LC_ALL="C.UTF-8"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return re.sub(".\x08", "", done.stdout.replace("\u2010", "-"))

    def test_pages_tell_every_command_flag_and_key(self):
        page = self.shown("longhaul.1")
        for command in self.commands():
            self.assertRegex(page, rf"\n +longhaul {command}\b")
            for flag in self.flags(command):
                self.assertIn(flag, page)
        for code in ("0", "1", "2", "3", "4", "5", "75"):
            self.assertRegex(page, rf"\n +{code} +[A-Z]")
        self.assertRegex(page, r"\n +3 +A rank, a link or a GPU was lost, or [^\n]*join_timeout, rejoin or quorum_timeout")
        self.assertRegex(page, r"\n +LC_ALL, LC_CTYPE, LANG\n")
        page = self.shown("longhaul.ini.5")
        keys = 0
        for line in self.call(LONGHAUL, "help", "--plugins", PLUGINS).split("Sections of PIPELINE.ini:")[1].splitlines():
            if line.startswith("["):
                self.assertIn("\n   " + line.split("  ")[0] + "\n", page)
            elif line.strip():
                keys += 1
                self.assertRegex(page, rf"\n +{re.escape(line.split()[0])} (= |\()")
        self.assertGreater(keys, 90)
        for plugin in ("llama", "tcp", "zero3", "cpu"):
            for key in re.findall(r"^  (\w+) {2,}\S", self.call(LONGHAUL, "help", plugin, "--plugins", PLUGINS), re.M):
                self.assertRegex(page, rf"\n +{key} (= |\()")

    def test_completion_offers_what_the_tables_have(self):
        commands = self.commands()
        self.assertEqual(self.complete(""), set(commands) | {"--version", "--help"})
        self.assertEqual(self.complete("ver"), {"verify"})
        common = {"--set", "--plugins"}
        for command in commands:
            self.assertEqual(self.complete(command, "--") - common, self.flags(command), command)
        self.assertEqual(self.complete("train", "job.ini", "--set", "train.st"), {"train.steps="})
        self.assertIn("model.hidden=", self.complete("train", "--set", "model."))
        self.assertEqual(self.complete("help", "lla"), {"llama"})
        for topic in ("op", "plugin", "functions", "rules", "hooks"):
            self.assertIn(topic, self.complete("help", topic))
        self.assertEqual(self.complete("run", "shake"), {"shakespeare.ini"})
        # A plugin of the tests, which nobody installs.
        self.assertEqual(self.complete("help", "fake"), set())

    def test_zsh_takes_the_same(self):
        if shutil.which("zsh") is None:
            self.skipTest("there is no zsh")
        self.call("zsh", "-n", os.path.join(MANUAL, "_longhaul"))

    def test_another_form_is_refused(self):
        done = subprocess.run([LONGHAUL, "help", "--as", "tcsh"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, "longhaul: help --as tcsh: man, man-ini, bash or zsh\n"))
        self.call(LONGHAUL, "help", "train", "--as", "man", code=1)

    def test_the_version_names_the_commit_and_what_it_is_made_of(self):
        lines = dict(re.findall(r"^(commit|compiler|plugin ABI|libraries|built with) +(.+)$", self.call(LONGHAUL, "--version"),
                                re.M))
        self.assertEqual(set(lines), {"commit", "compiler", "plugin ABI", "libraries", "built with"})
        git = subprocess.run(["git", "-C", SOURCE, "log", "-50", "--format=%H"], capture_output=True, text=True)
        if git.returncode == 0 and lines["commit"] != "unknown":
            commit = lines["commit"].split("+")[0]
            self.assertTrue(any(line.startswith(commit) for line in git.stdout.split()), lines["commit"])
        header = read(os.path.join(SOURCE, "sdk", "include", "longhaul", "base.h"))
        major, minor = (re.search(rf"LH_ABI_{n} (\d+)u", header)[1] for n in ("MAJOR", "MINOR"))
        self.assertTrue(lines["plugin ABI"].startswith(f"{major}.{minor}, "))
        if shutil.which("openssl"):
            self.assertIn(" ".join(self.call("openssl", "version").split()[:2]), lines["libraries"])


if __name__ == "__main__":
    main()
