"""What an export does to what is there already: only an earlier export is replaced; what anybody else
put there, or works on, stays."""
import fcntl
import os
import shutil

from pipeline_case import DATA, REFUSED, SOURCE, PipelineCase, main

FROM = os.path.join(SOURCE, "tests", "golden", "llama")


def files_under(folder):
    """path -> bytes; without the record of which stage ran."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in set(names) - {"stages.json"}:
            with open(os.path.join(at, name), "rb") as f:
                found[os.path.relpath(os.path.join(at, name), folder)] = f.read()
    return found


class ExportFolder(PipelineCase):
    def in_run(self):
        return sorted(set(os.listdir(self.path("work", "run"))) - {"stages.json"})

    def imported(self, **export):
        """A job in work/ whose model is there."""
        os.mkdir(self.path("work"))
        shutil.copytree(FROM, self.path("work", "from"))
        job = self.ini({"pipeline": {"name": "x", "stages": "import export", "folder": "run"},
                        "import": {"from": "from"}, "device": {"plugin": "cpu"},
                        "model": {"plugin": "llama", "vocab": "from_import"}, "export": export},
                       "work/job.ini")
        self.run_longhaul("import", job)
        return job

    def refused(self, job, folder, *words, more=()):
        """Nothing changes and nothing is left behind."""
        before = files_under(self.path("work"))
        _, said = self.run_longhaul("export", job, "--set", "export.folder=" + folder, *more,
                                    code=REFUSED)
        self.assertEqual(files_under(self.path("work")), before)
        for word in words:
            self.assertIn(word, said)

    def test_only_an_export_is_replaced(self):
        job = self.imported()
        for _ in range(2):
            self.run_longhaul("export", job)
        whole = sorted(os.listdir(self.path("work", "run", "hf")))
        for name in ("README.md", ".gitattributes", "notes/thesis.txt", "config.json.orig",
                     "model-of-mine.safetensors", "evil\x1b[2J"):
            with self.subTest(name=name):
                path = self.path("work", "run", "hf", name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as f:
                    f.write("years of work")
                self.refused(job, "hf", "is left alone", name.split("/")[0].replace("\x1b", "\\x1b"))
                os.unlink(path)
                if "/" in name:
                    os.rmdir(os.path.dirname(path))
        self.run_longhaul("export", job, "--set", "export.shard_bytes=20kB")
        self.assertIn("model.safetensors.index.json", os.listdir(self.path("work", "run", "hf")))
        self.run_longhaul("export", job)
        self.assertEqual(sorted(os.listdir(self.path("work", "run", "hf"))), whole)
        self.assertEqual(self.in_run(), ["hf", "import"])

    def test_a_link_among_its_files_is_not_of_an_export(self):
        job = self.imported()
        self.run_longhaul("export", job)
        os.symlink(self.path("work", "from"), self.path("work", "run", "hf", "vocab.json"))
        self.refused(job, "hf", "vocab.json", "is left alone")

    def test_what_the_job_works_with_is_no_target(self):
        job = self.imported()
        with open(self.path("work", "config.json"), "w") as f:
            f.write("{}")
        shutil.copy(self.path("work", "config.json"), self.path("work", "run"))
        for folder in (".", "..", "../run", "../../work", "import", "import/checkpoints",
                       "../from", self.path("work", "from") + "//"):
            with self.subTest(folder=folder):
                self.refused(job, folder)
        self.refused(job, "../from", "the model that is imported")
        self.refused(job, "../run", "the pipeline's folder")
        shutil.copytree(os.path.join(DATA, "stories260K"), self.path("work", "tokenizer"))
        for name in ("tokenizer", "tokenizer/tokenizer.json"):
            self.refused(job, "../tokenizer", "the tokenizer",
                         more=["--set", "prepare.tokenizer=" + self.path("work", name)])
        os.symlink(self.path("work", "run"), self.path("work", "link"))
        self.refused(job, "../link", "the pipeline's folder")

    def test_the_name_of_the_target(self):
        job = self.imported()
        for _ in range(2):
            self.run_longhaul("export", job, "--set", "export.folder=hf//")
        self.assertIn("config.json", os.listdir(self.path("work", "run", "hf")))
        self.refused(job, "hf/.", "ends in no name")
        self.refused(job, "hf/..")
        self.refused(job, "", "folder is empty")
        os.symlink("hf", self.path("work", "run", "link"))
        for folder in ("link", "link/"):
            self.refused(job, folder, "a symbolic link")
        self.refused(job, "import/config.json", "not a folder")
        os.mkdir(self.path("work", "run", "empty"))
        self.run_longhaul("export", job, "--set", "export.folder=empty")

    def test_what_a_killed_export_left_is_swept_and_nothing_else(self):
        job = self.imported()
        self.run_longhaul("export", job)
        names = ["hf.tmp-00000001", "hf.tmp-00000002", "hf.tmp-00000003.old", "hf.tmp-00000004",
                 "hf.tmp-mine"]
        for name in names:
            os.mkdir(self.path("work", "run", name))
            for file in ("config.json", "config.json.tmp-0123abcd"):
                with open(self.path("work", "run", name, file), "w") as f:
                    f.write("{}")
        with open(self.path("work", "run", names[1], "thesis.txt"), "w") as f:
            f.write("years of work")
        live = os.open(self.path("work", "run", names[3]), os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(live, fcntl.LOCK_EX)
        self.run_longhaul("export", job)
        self.assertEqual(self.in_run(),
                         ["hf", names[1], names[3], names[4], "import"])
        os.close(live)
        self.run_longhaul("export", job)
        self.assertEqual(self.in_run(),
                         ["hf", names[1], names[4], "import"])

    def test_exports_at_the_same_time_each_come_whole(self):
        job = self.imported()
        runs = [self.path("work", "run%d" % i) for i in range(4)]
        for run in runs:
            shutil.copytree(self.path("work", "run"), run)
        for _ in range(4):
            at_once = [self.start("export", job, "--set", "pipeline.folder=" + run, "--set",
                                  "export.folder=" + self.path("work", "run", "hf")) for run in runs]
            said = [process.communicate(timeout=120) for process in at_once]
            self.assertEqual([process.returncode for process in at_once], [0] * 4, said)
            self.assertEqual(self.in_run(), ["hf", "import"])
        self.assertEqual(sorted(os.listdir(self.path("work", "run", "hf"))),
                         ["config.json", "generation_config.json", "model.safetensors"])

    def test_a_new_import_leaves_notes_alone(self):
        job = self.imported()
        self.run_longhaul("import", job)
        notes = self.path("work", "run", "import", "checkpoints", "notes.txt")
        with open(notes, "w") as f:
            f.write("years of work")
        _, said = self.run_longhaul("import", job, code=REFUSED)
        self.assertIn("checkpoints/notes.txt", said)
        self.assertTrue(os.path.exists(notes))


main()
