"""Plugins that are wrong in one way each, through the program: one sentence, exit code 1, nothing left behind.

The fixtures are those of tests/unit/plugin, which says what each of them does."""
import hashlib
import os
import resource
import shutil
import socket
import stat
import subprocess
import unittest

import pipeline_case
from pipeline_case import BINARY, DONE, REFUSED, PipelineCase, add_plugin, checkpoint_digest

BUILD = os.path.dirname(os.path.dirname(BINARY))
FIXTURES = os.path.join(BUILD, "tests", "plugins", "optimizers")
UNCHANGED = "; a plugin must leave this process as it was"
SYMBOL = "lh_plugin_v2"

# name -> what follows "longhaul: PATH: "
SENTENCES = {
    "wrong_abi": "built for ABI 3.0, this host has 2.8: build it anew",
    "wrong_kind": "is of kind device (4), expected optimizer",
    "wrong_name": "calls itself 'other', expected 'wrong_name'",
    "odd_size": SYMBOL + " has 212 bytes, expected a multiple of 8 from 64",
    "tiny_size": SYMBOL + " has 48 bytes, expected a multiple of 8 from 64",
    "huge_size": "with a struct_size larger than its " + SYMBOL + ", expected a plugin",
    "no_symbol": "without data named " + SYMBOL + ", expected a plugin",
    "a_function": "without data named " + SYMBOL + ", expected a plugin",
    "newer_tail": SYMBOL + " has 216 bytes and uses those behind the 208 that this host knows",
    "lacks_describe": ".optimizer.describe is NULL; every optimizer brings it",
    "lacks_api": "of kind optimizer, but .optimizer is NULL",
    "two_kinds": "of kind optimizer, but .device is set",
    "undefined": "cannot be loaded: undefined symbol: no_such_function_anywhere",
    "wild_pointer": "reading its tables ends the process with signal 11, SIGSEGV",
    "other_head": "the head of " + SYMBOL + " is another one once it is loaded",
    "selftest_fails": "its selftest fails: selftest_fails: no such card",
    "selftest_aborts": "its selftest ends the process with signal 6, SIGABRT",
    "does_abort": "loading it ends the process with signal 6, SIGABRT",
    "does_call_exit": "loading it calls exit with code 3",
    "does_leave_at_once": "loading it ends the process with exit code 0",
    "does_start_thread": "loading it starts a thread" + UNCHANGED,
    "does_start_process": "loading it starts a process" + UNCHANGED,
    "does_leave_daemon": "loading it starts a process" + UNCHANGED,
    "does_leave_two": "loading it starts a process" + UNCHANGED,
    "does_set_timer": "loading it sets a timer" + UNCHANGED,
    "does_make_timer": "loading it makes a timer" + UNCHANGED,
    "does_limit_files": "loading it changes limit 7 of getrlimit" + UNCHANGED,
    "does_take_one_processor": "loading it changes on which processors it runs" + UNCHANGED,
    "does_be_nice": "loading it changes its priority" + UNCHANGED,
    "does_round_up": "loading it changes how floats are rounded" + UNCHANGED,
    "does_flush_to_zero": "loading it changes whether tiny floats are flushed to zero"
                          " (is it linked with -ffast-math?)" + UNCHANGED,
    "does_trap_division": "loading it changes which float exceptions trap" + UNCHANGED,
    "does_open_masks": "loading it changes the umask from 0022 to 0000" + UNCHANGED,
    "does_go_to_root": "loading it changes the working folder" + UNCHANGED,
    "does_handle_signal": "loading it changes what happens at signal 10, SIGUSR1" + UNCHANGED,
    "does_block_all": "loading it changes which signals are blocked" + UNCHANGED,
    "does_close_input": "loading it closes descriptor 0" + UNCHANGED,
    "does_close_all": "loading it closes descriptors that are not its own",
    "does_set_variable": "loading it changes the environment" + UNCHANGED,
    "does_change_locale": "loading it changes the locale" + UNCHANGED,
    "does_behave_when_watched": "loading it changes the umask from 0022 to 0000" + UNCHANGED,
    "does_hang": "loading it takes longer than 5000 ms",
}
ACCEPTED = ["good_one", "older", "does_start_and_join", "selftest_passes"]


class PluginRefusals(PipelineCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(os.umask, os.umask(0o022))
        self.plugins = self.path("plugins")
        shutil.copytree(os.path.join(BUILD, "lib", "longhaul"), self.plugins)
        self.job = self.small_job()

    def install(self, name, data=None):
        to = os.path.join(self.plugins, "optimizers", name + ".so")
        if data is None:
            shutil.copy(os.path.join(FIXTURES, name + ".so"), to)
        else:
            with open(to, "wb") as f:
                f.write(data)
        return to

    def check_arguments(self, name, *more):
        return ["check", self.job, "--plugins", self.plugins, "--set", "optimizer.plugin=" + name,
                *more]

    def refuse(self, name, sentence, *more):
        out, err = self.run_longhaul(*self.check_arguments(name, *more), code=REFUSED)
        self.assertEqual(out, "")
        self.assertEqual(err, "longhaul: " + sentence + "\n")

    def test_each_wrong_plugin_is_one_sentence(self):
        running = []
        for name, sentence in SENTENCES.items():
            path = self.install(name)
            running.append((name, path, sentence, self.start(*self.check_arguments(name))))
            if len(running) >= 4 or name == list(SENTENCES)[-1]:
                for n, p, s, process in running:
                    out, err = process.communicate(timeout=120)
                    with self.subTest(plugin=n):
                        self.assertEqual((process.returncode, out, err),
                                         (REFUSED, "", "longhaul: %s: %s\n" % (p, s)))
                running = []
        # What a constructor started is gone with the child in which it ran.
        for process in os.listdir("/proc"):
            try:
                with open("/proc/%s/maps" % process) as f:
                    self.assertNotIn("memfd:longhaul.does_", f.read(), process)
            except OSError:
                pass

    def test_plugins_of_other_versions_that_fit_are_taken(self):
        for name in ACCEPTED:
            self.install(name)
            out, _ = self.run_longhaul("help", name, "--plugins", self.plugins)
            self.assertIn("optimizer %s %s: a fixture" % (name, name), out)

    def test_what_a_terminal_obeys_is_printed_escaped(self):
        self.install("escapes")
        for arguments in (["help", "escapes"], ["plugins"]):
            out, _ = self.run_longhaul(*arguments, "--plugins", self.plugins)
            self.assertIn("1\\x1b[2J\\x0a2", out)
            self.assertNotIn("\x1b", out)

    def test_a_refused_plugin_is_listed_with_its_reason(self):
        path = self.install("does_abort")
        out, _ = self.run_longhaul("plugins", "--plugins", self.plugins, code=REFUSED)
        self.assertIn("does_abort   not usable: %s: loading it ends the process with signal 6, "
                      "SIGABRT\n" % path, out)

    def test_cut_and_junk_files_are_refused_before_they_are_mapped(self):
        with open(os.path.join(FIXTURES, "good_one.so"), "rb") as f:
            whole = f.read()
        lengths = [1, 3, 4, 16, 63, 64, 100, 512, 4096, len(whole) // 2, len(whole) - 1]
        for length in lengths:
            path = self.install("good_one", whole[:length])
            self.refuse("good_one", "%s: %s, expected a plugin" %
                        (path, "truncated" if length >= 64 else "not an ELF file"))
        path = self.install("good_one", b"")
        self.refuse("good_one", "%s: has 0 bytes, expected 1 to 268435456" % path)
        path = self.install("good_one", b"#!/bin/sh\n" * 100)
        self.refuse("good_one", "%s: not an ELF file, expected a plugin" % path)
        path = self.install("good_one", whole[:4] + b"\x01" + whole[5:])
        self.refuse("good_one", "%s: not a 64-bit shared object, expected a plugin" % path)
        path = self.install("good_one", whole[:18] + b"\x08\x00" + whole[20:])
        self.refuse("good_one", "%s: for another processor, expected a plugin" % path)

    def test_what_others_can_write_is_refused(self):
        path = self.install("good_one")
        folder = os.path.dirname(path)
        for where, mode, who in ((path, 0o666, "everybody"), (path, 0o664, "its group"),
                                 (folder, 0o777, "everybody"), (folder, 0o775, "its group")):
            before = stat.S_IMODE(os.stat(where).st_mode)
            os.chmod(where, mode)
            self.refuse("good_one", "%s: %s can write it (mode %04o), expected only its owner: "
                        "chmod go-w" % (where, who, mode))
            os.chmod(where, before)
        if os.geteuid() == 0:
            os.chown(path, 4711, 4711)
            self.refuse("good_one", path + ": belongs to user 4711, expected root or user 0")

    def test_what_is_no_plain_file_is_refused(self):
        path = self.install("good_one")
        os.rename(path, self.path("moved.so"))
        os.symlink(self.path("moved.so"), path)
        self.refuse("good_one", path + ": is a symbolic link, expected a regular file")
        os.unlink(path)
        os.mkfifo(path)
        self.refuse("good_one", path + ": is a FIFO, expected a regular file")
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            self.refuse("good_one", path + ": is a socket, expected a regular file")
        os.unlink(path)
        os.mkdir(path)
        self.refuse("good_one", path + ": is a folder, expected a regular file")
        folder = os.path.dirname(path)
        os.rename(folder, self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), folder)
        self.refuse("good_one", folder + ": is a symbolic link, expected a folder")

    def test_a_pinned_plugin_is_that_file_or_none(self):
        path = os.path.join(self.plugins, "optimizers", "zero0.so")
        with open(path, "rb") as f:
            found = hashlib.sha256(f.read()).hexdigest()
        wrong = "0" * 64
        pin = "plugin.zero0.sha256="
        self.refuse("zero0", "%s: its SHA-256 is %s, but command line pins %s" %
                    (path, found, wrong), "--set", pin + wrong)
        self.refuse("zero0", "command line: sha256 = abc: expected 64 hexadecimal digits",
                    "--set", pin + "abc")
        self.refuse("zero0", "command line: there is no plugin 'zero00' in %s; did you mean "
                    "'zero0'?" % self.plugins, "--set", "plugin.zero00.sha256=" + found)
        out, _ = self.run_longhaul(*self.check_arguments("zero0", "--set", pin + found.upper()))
        self.assertIn("[plugin.zero0]", out)
        # What is to be pinned is copied from what check prints.
        out, _ = self.run_longhaul(*self.check_arguments("zero0"))
        self.assertRegex(out, r"(?m)^; optimizer zero0 .*/zero0\.so\n; +sha256 %s$" % found)

    def test_ranks_that_do_not_fit_together_are_refused_before_they_start(self):
        job = self.small_job(train={"steps": 1}, device={"plugin": "reference", "threads": None})
        plugins = ["--plugins", add_plugin(self, "optimizers", "half_gradients")]
        sets = ["--set", "optimizer.plugin=half_gradients", "--set", "launch.ranks_per_node=2", "--set"]
        self.run_longhaul("prepare", job)
        for command in ("check", "plan"):
            self.run_longhaul(command, job, *plugins, *sets, "optimizer.fickle=no")
            _, said = self.run_longhaul(command, job, *plugins, *sets, "optimizer.fickle=yes", code=REFUSED)
            self.assertRegex(said, "where rank 0 starts the all_reduce of gradients [0-9]+, rank 1 starts the ")

    def test_plugins_replaced_while_they_run_change_nothing(self):
        job = self.small_job(pipeline={"folder": "out"}, train={"steps": 60, "log_every": 1})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job, "--plugins", self.plugins)
        expected, _ = checkpoint_digest(self.step_folder(60))
        shutil.rmtree(self.path("out", "checkpoints"))
        log = self.path("out", "metrics.jsonl")
        os.unlink(log)

        process = self.start("train", job, "--plugins", self.plugins)
        self.wait_for(lambda: os.path.exists(log) and os.path.getsize(log) > 0, process)
        for folder, _, names in os.walk(self.plugins):
            for name in names:
                with open(os.path.join(folder, name), "r+b") as f:  # the same file, other bytes
                    f.truncate(4096)
                    f.write(os.urandom(4096))
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, DONE, out + err)
        self.assertEqual(checkpoint_digest(self.step_folder(60))[0], expected)

    def test_check_stays_quick(self):
        """Under 50 ms, children included. Processor time, as other tests may run beside this one."""
        if os.environ.get("LONGHAUL_SANITIZED") == "1":
            self.skipTest("sanitizers make it slower")

        def spent():
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime
        best = 1e9
        for _ in range(20):
            begin = spent()
            subprocess.run([BINARY] + self.check_arguments("zero0"), check=True, cwd=self.folder,
                           stdout=subprocess.DEVNULL)
            best = min(best, spent() - begin)
        print("longhaul check: %.1f ms" % (best * 1e3))
        self.assertLess(best, 0.050)


if __name__ == "__main__":
    pipeline_case.main()
