"""What verify says of what it finds, and that a run beside it which removes old steps disturbs neither
it nor who looks for the newest checkpoint."""
import hashlib
import os
import resource
import shutil

from pipeline_case import DONE, REFUSED, PipelineCase, main

NOBODY = 65534


class Verify(PipelineCase):
    def trained(self, **train):
        job = self.small_job(train=dict({"steps": 2}, **train), checkpoint={"every": 1})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        return job

    def verify(self, path, code=REFUSED, **more):
        return self.run_longhaul("verify", path, code=code, **more)

    def test_what_holds_no_checkpoint_is_not_damaged(self):
        os.mkdir(self.path("empty"))
        said, why = self.verify("empty")
        self.assertEqual((said, why), ("", "longhaul: empty: holds no checkpoint\n"))
        said, why = self.verify("nowhere")
        self.assertEqual((said, why), ("", "longhaul: nowhere: there is no such folder\n"))
        os.mkdir(self.path("step-000000000007"))
        said, _ = self.verify("step-000000000007")
        self.assertIn("damaged", said)

    def flip(self, *path):
        with open(self.path(*path), "r+b") as f:
            f.seek(-3, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-3, os.SEEK_END)
            f.write(bytes([byte ^ 4]))

    def test_a_pair_of_token_files_is_verified(self):
        job = self.small_job(train={"steps": 1}, eval={"data": "valid"})
        self.run_longhaul("prepare", job)
        whole = "%s/corpus.idx: whole\n%s/corpus.bin: whole\n"
        for path, folder in (("out", "out"), ("out/corpus.idx", "out"), ("out/corpus.bin", "out")):
            said, _ = self.verify(path, code=DONE)
            more = "out: no checkpoints\n" if path == "out" else ""
            self.assertEqual(said, whole % (folder, folder) + more)
        os.rename(self.path("out"), self.path("moved"))
        said, _ = self.verify("moved", code=DONE)
        self.assertEqual(said, whole % ("moved", "moved") + "moved: no checkpoints\n")
        os.rename(self.path("moved"), self.path("out"))
        self.flip("out", "corpus.idx")
        said, why = self.verify("out")
        self.assertRegex(said, "(?s)corpus.idx: damaged: .*out/corpus.bin: whole\n")
        self.assertIn("out/prepare.json: 1 of the 2 token files", why)
        sentence = (r"longhaul: \S+out/corpus\.idx: its SHA-256 is [0-9a-f]{64}, \S+out/prepare\.json "
                    r"says [0-9a-f]{64}; prepare it again\n$")
        for command in ("train", "run"):
            _, why = self.run_longhaul(command, job, code=REFUSED)
            self.assertRegex(why, sentence)
        self.run_longhaul("prepare", job)
        self.run_longhaul("run", job)
        self.flip("out", "corpus.idx")
        _, why = self.run_longhaul("eval", job, code=REFUSED)
        self.assertRegex(why, sentence)
        self.run_longhaul("prepare", job)
        self.run_longhaul("eval", job)
        self.flip("out", "corpus.bin")
        said, _ = self.verify("out/corpus.bin")
        self.assertRegex(said, "(?s)corpus.idx: whole\n.*out/corpus.bin: damaged: ")
        said, why = self.verify("out")  # its checkpoints are looked at all the same
        self.assertRegex(said, "(?s)corpus.bin: damaged: .*step-000000000001: whole\n")
        self.assertIn("out: not all of it is whole", why)
        self.run_longhaul("prepare", job)
        for text in ("[1, 2]", "no JSON", '{"pair": "of another program"}', '{"a": [%s0]}' % ("0," * 5000000)):
            with open(self.path("out", "prepare.json"), "w") as f:
                f.write(text)
            _, why = self.run_longhaul("eval", job)
            self.assertIn("corpus.idx is not compared with it\n", why)
        os.remove(self.path("out", "prepare.json"))
        _, why = self.verify("out/corpus.bin")
        self.assertIn("no prepare.json beside it says what it must be", why)

    def test_checkpoints_of_a_job_that_prepared_nothing_are_found(self):
        self.trained()
        os.remove(self.path("out", "prepare.json"))
        said, _ = self.verify("out", code=DONE)
        self.assertIn("out/checkpoints/step-000000000002: whole\n", said)
        # What an import makes lies in a folder of its own.
        os.mkdir(self.path("out", "import"))
        shutil.copytree(self.path("out", "checkpoints"), self.path("out", "import", "checkpoints"))
        said, _ = self.verify("out", code=DONE)
        for folder in ("out/import/checkpoints", "out/checkpoints"):
            self.assertIn("\n%s/step-000000000002: whole\n" % folder, "\n" + said)
        os.remove(self.path("out", "import", "checkpoints", "step-000000000002", "manifest.json"))
        said, why = self.verify("out")
        self.assertIn("out/import/checkpoints/step-000000000002: damaged: ", said)
        self.assertIn("\nout/checkpoints/step-000000000002: whole\n", said)
        self.assertIn("out/import/checkpoints: 1 of 2 checkpoints are damaged", why)
        self.assertIn("out: not all of it is whole", why)
        shutil.rmtree(self.path("out", "checkpoints"))
        said, why = self.verify("out")
        self.assertIn("out/import/checkpoints/step-000000000002: damaged: ", said)

    def test_a_newer_version_is_not_damaged(self):
        self.trained()
        manifest = os.path.join(self.step_folder(2), "manifest.json")
        with open(manifest) as f:
            text = f.read()
        head = text[:text.index('"self": ')].replace('"version": 1,', '"version": 2,')
        with open(manifest, "w") as f:
            f.write(head + '"self": "%s"\n}\n' % hashlib.sha256(head.encode()).hexdigest())
        said, why = self.verify("out/checkpoints")
        self.assertIn("step-000000000002: made by a newer version: ", said)
        self.assertIn("step-000000000001: whole", said)
        self.assertIn("of 2 checkpoints 0 are damaged and 1 cannot be read", why)

    def test_what_may_not_be_read_is_not_damaged(self):
        self.trained()
        os.chmod(os.path.join(self.step_folder(2), "manifest.json"), 0)
        more = {}
        if os.geteuid() == 0:
            os.chmod(self.folder, 0o755)
            more = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        said, _ = self.verify("out/checkpoints", **more)
        self.assertIn("step-000000000002: cannot be read: ", said)
        self.assertIn("Permission denied", said)
        self.assertNotIn("damaged", said)

    def test_more_files_than_a_process_gets_unasked(self):
        """Ranks' files are open all at once."""
        job = self.small_job(train={"steps": 1, "micro_batch": 1}, launch={"ranks_per_node": 4})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        said, _ = self.verify(self.path("out", "checkpoints"), code=DONE,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (6, most)))
        self.assertIn("step-000000000001: whole", said)

    def test_a_file_in_the_place_of_a_step_is_skipped(self):
        job = self.trained()
        with open(self.step_folder(8), "w"):
            pass
        os.mkfifo(self.step_folder(9))
        said, _ = self.verify("out/checkpoints")
        for step in (8, 9):
            self.assertIn("step-%012d: damaged: " % step, said)
        _, said = self.run_longhaul("generate", job, "--ids", "1,2", "--tokens", "1")
        self.assertIn("step-000000000009 is skipped", said)
        self.run_longhaul("export", job)
        self.run_longhaul("train", job, "--resume", "--set", "train.steps=3")
        names = os.listdir(self.path("out", "checkpoints"))
        for name in ("damaged-step-000000000008", "damaged-step-000000000009",
                     "step-000000000003"):
            self.assertIn(name, names)

    def test_names_reach_the_terminal_as_text(self):
        self.trained()
        os.rename(self.path("out", "checkpoints"), self.path("x\x1b[2J\ny"))
        said, _ = self.verify("x\x1b[2J\ny", code=DONE)
        self.assertNotIn("\x1b", said)
        self.assertEqual(said.count("\n"), 2)
        self.assertIn("x\\x1b[2J\\x0ay/step-000000000002: whole", said)

    def test_steps_that_are_removed_meanwhile_are_no_news(self):
        job = self.trained()
        run = self.start("train", job, "--resume", "--set", "train.steps=400", "--set",
                         "checkpoint.keep=2", "--set", "checkpoint.every=1")
        try:
            for _ in range(12):
                said, _ = self.verify("out/checkpoints", code=DONE)
                self.assertNotIn("damaged", said)
                _, said = self.run_longhaul("generate", job, "--ids", "1,2", "--tokens", "1")
                self.assertNotIn("skipped", said)
        finally:
            self.kill(run)


main()
