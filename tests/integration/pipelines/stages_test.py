"""A pipeline's stages: what has not changed is skipped, what has is run again, what is wrong is refused
before anything is made; calls from the INI reach a third party's plugin; exit codes; help."""
import fcntl
import gzip
import json
import os
import re
import shutil
import signal
import struct
import subprocess

from pipeline_case import (BINARY, DATA, DONE, NOT_FINITE, REFUSED, SOURCE, USAGE, PipelineCase,
                           add_plugin, checkpoint_digest, log_lines, main, read_json_lines, set_flags,
                           tensors_of)


class Stages(PipelineCase):
    def stages_run(self, job, *args):
        _, said = self.run_longhaul("run", job, *args)
        return re.findall(r"^.*-- (\w+)$", said, re.M), re.findall(r"-- (\w+): nothing", said)

    def test_stages_are_skipped_until_their_inputs_change(self):
        job = self.small_job(stages="prepare train eval export generate",
                             train={"steps": 3}, eval={"data": "valid"},
                             generate={"prompt": "Once", "tokens": 5})
        every = ["prepare", "train", "eval", "export", "generate"]
        self.assertEqual(self.stages_run(job), (every, []))
        self.assertEqual(self.stages_run(job), ([], every))
        # How it is computed, by whom, and who looks on, are no inputs.
        self.assertEqual(self.stages_run(job, *set_flags(
            "launch.bind=no", "comm.chunk=64KiB", "parallel.accumulation=breadth",
            "transport.wan.rate=1Gbps", "watch.report=1s")), ([], every))
        self.assertEqual(self.stages_run(job, "--set", "generate.seed=5"),
                         (["generate"], every[:-1]))
        self.assertEqual(self.stages_run(job, "--set", "generate.seed=5"), ([], every))
        self.assertEqual(self.stages_run(job, "--set", "export.dtype=bf16")[0],
                         ["export", "generate"])
        # What was made is gone: made again.
        os.unlink(self.path("out", "eval.json"))
        self.assertIn("eval", self.stages_run(job)[0])
        for name in ("corpus.bin", "corpus.idx"):
            os.unlink(self.path("out", name))
            self.assertIn("prepare", self.stages_run(job)[0])

    def test_a_file_beside_the_named_one_of_a_tokenizer_is_an_input(self):
        there = shutil.copytree(DATA + "/gpt2-tiny", self.path("pair"))
        for named in ("vocab.json", "merges.txt"):
            job = self.small_job(stages="prepare", prepare={"tokenizer": os.path.join(there, named), "prepend": "none"})
            self.stages_run(job)
            self.assertEqual(self.stages_run(job), ([], ["prepare"]))
            other = "merges.txt" if named == "vocab.json" else "vocab.json"
            os.utime(os.path.join(there, other), ns=(1, 1))
            self.assertEqual(self.stages_run(job), (["prepare"], []))

    def test_a_set_of_a_blend_that_no_stage_makes_is_an_input_of_training(self):
        self.run_longhaul("prepare", self.small_job())
        for end in (".bin", ".idx"):
            shutil.copy(self.path("out", "corpus" + end), self.path("other" + end))
        job = self.small_job(train={"steps": 2}, data={"train": "corpus:0.5, %s:0.5" % self.path("other")})
        self.stages_run(job)
        self.assertEqual(self.stages_run(job), ([], ["prepare", "train"]))
        os.utime(self.path("other.idx"), ns=(1, 1))
        _, said = self.run_longhaul("run", job, code=REFUSED)
        self.assertIn("-- train\n", said)
        self.assertIn("--resume", said)

    def test_a_pair_of_any_names_is_exported_under_those_of_transformers(self):
        """With the configuration beside it, by which text is cut."""
        wanted = {"tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer"}'}
        for name in ("vocab.json", "merges.txt"):
            with open(os.path.join(DATA, "gpt2-tiny", name)) as f:
                wanted[name] = f.read()
        for vocabulary, merges in (("vocab.json", "merges.txt"), ("my-vocab.json", "my-merges.txt"),
                                   ("encoder.json", "vocab.bpe")):
            folder = vocabulary.split(".")[0]
            os.mkdir(self.path(folder))
            for name, text in ((vocabulary, wanted["vocab.json"]), (merges, wanted["merges.txt"]),
                               ("tokenizer_config.json", wanted["tokenizer_config.json"])):
                self.write(os.path.join(folder, name), text)
            job = self.small_job(stages="prepare train export", train={"steps": 0},
                                 prepare={"tokenizer": self.path(folder, vocabulary), "prepend": "none"})
            self.run_longhaul("run", job, "--set", "pipeline.folder=of-" + folder)
            for name, text in wanted.items():
                with open(self.path("of-" + folder, "hf", name)) as f:
                    self.assertEqual(f.read(), text, folder)
            with open(self.path("of-" + folder, "hf", "config.json")) as f:
                self.assertEqual(json.load(f)["vocab_size"], 5056)  # of 5,000 tokens: [model] vocab_multiple is 64

    def test_the_file_of_llama2c_is_exported_by_its_folder_too(self):
        os.mkdir(self.path("there"))
        file = shutil.copy(SOURCE + "/tests/data/tokenizers/stories260K/tokenizer.bin", self.path("there"))
        with open(file, "rb") as f:
            wanted = f.read()
        job = self.small_job(stages="prepare train export", train={"steps": 0},
                             prepare={"tokenizer": self.path("there"), "prepend": "none"})
        self.run_longhaul("run", job)
        with open(self.path("out", "hf", "tokenizer.bin"), "rb") as f:
            self.assertEqual(f.read(), wanted)
        self.run_longhaul("export", job)  # over its own

    def test_tokens_of_another_tokenizer_are_told(self):
        job = self.small_job(train={"steps": 1})
        self.assertNotIn("another tokenizer", self.run_longhaul("run", job)[1])
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=2")
        self.assertNotIn("another tokenizer", said)
        with open(DATA + "/stories260K/tokenizer.json") as f:
            other = self.write("tokenizer.json", f.read() + "\n")
        _, said = self.run_longhaul("train", job, "--resume", "--set", "train.steps=3", "--set",
                                    "prepare.tokenizer=" + other)
        self.assertIn("out/corpus was prepared with another tokenizer than %s; " % other, said)

    def test_data_too_few_for_a_split_are_told_with_their_number(self):
        few = self.write("few.jsonl", '{"text": "Once upon a time there was a dog."}\n' * 5)
        job = self.small_job(prepare={"input": few}, data={"split": "969,30,1"}, train={"evaluate_every": 1})
        _, said = self.run_longhaul("run", job, code=REFUSED)
        self.assertIn("the valid split of corpus is empty: of 5 sequences [data] split = 969,30,1 leaves it none", said)

    def test_stages_without_training_see_what_they_read(self):
        job = self.small_job(stages="prepare eval export", train={"steps": 2}, eval={"data": "valid"})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        self.assertEqual(self.stages_run(job)[1], ["prepare"])
        self.assertEqual(self.stages_run(job), ([], ["prepare", "eval", "export"]))
        # Other held-out documents, and other sequences: another loss.
        for change in ("data.split=60,40,0", "train.sequence=16"):
            self.assertEqual(self.stages_run(job, "--set", change)[0], ["eval"])
        # Other weights.
        self.run_longhaul("train", job, "--resume", "--set", "train.steps=4")
        self.assertEqual(self.stages_run(job, "--set", "train.steps=4")[0], ["eval", "export"])

    def test_a_tokenizer_that_no_stage_prepares_with_is_an_input_behind_training(self):
        tokenizer = shutil.copy(DATA + "/stories260K/tokenizer.json", self.path("tokenizer.json"))
        self.run_longhaul("prepare", self.small_job(prepare={"tokenizer": tokenizer}))
        job = self.small_job(stages="train export generate", train={"steps": 1}, prepare={"tokenizer": tokenizer},
                             generate={"prompt": "Once", "tokens": 2})
        self.assertEqual(self.stages_run(job), (["train", "export", "generate"], []))
        self.assertEqual(self.stages_run(job), ([], ["train", "export", "generate"]))
        os.utime(tokenizer, ns=(1, 1))
        self.assertEqual(self.stages_run(job), (["export", "generate"], ["train"]))

    def test_what_check_prints_beside_a_library_is_a_job_again(self):
        job = self.small_job(transport__node={"collectives": "nvlink"})
        out, _ = self.run_longhaul("check", job)
        self.assertRegex(out, r"\nbits += ordered +; \[transport.node\] collectives\n")
        self.run_longhaul("check", self.write("again.ini", out))

    def test_a_change_of_the_data_reaches_every_stage_behind_it(self):
        job = self.small_job(stages="prepare train eval", train={"steps": 2},
                             eval={"data": "valid"})
        self.run_longhaul("run", job)
        with open(self.path("stories.jsonl"), "a") as f:
            f.write('{"text": "One more story."}\n')
        # Training goes on only where it is asked to: its checkpoints are not thrown away.
        _, said = self.run_longhaul("run", job, code=REFUSED)
        self.assertIn("-- prepare\n", said)
        self.assertIn("-- train\n", said)
        self.assertIn("--resume", said)

    def test_data_that_change_during_training_are_trained_on_by_the_next_run(self):
        job = self.small_job(stages="prepare train", train={"steps": 400})
        process = self.start("run", job)
        metrics = self.path("out", "metrics.jsonl")
        self.wait_for(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 0, process)
        process.send_signal(signal.SIGSTOP)
        self.assertFalse(os.path.exists(self.step_folder(400)))
        with open(self.path("stories.jsonl"), "a") as f:
            f.write('{"text": "One more story."}\n')
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=600)
        self.assertEqual(process.returncode, DONE)
        _, said = self.run_longhaul("run", job, code=REFUSED)
        self.assertIn("-- prepare\n", said)
        self.assertIn("-- train\n", said)
        self.assertIn("--resume", said)

    def test_a_stage_alone_ends_well_without_the_text_that_was_prepared(self):
        job = self.small_job(train={"steps": 2}, generate={"prompt": "Once", "tokens": 3})
        self.run_longhaul("prepare", job)
        os.unlink(self.path("stories.jsonl"))
        self.run_longhaul("train", job)
        self.run_longhaul("generate", job)

    def test_a_step_that_is_gone_is_trained_again(self):
        job = self.small_job(stages="prepare train export", train={"steps": 4},
                             checkpoint={"every": 2})
        self.run_longhaul("run", job)
        whole = checkpoint_digest(self.step_folder(4))
        shutil.rmtree(self.step_folder(4))
        _, said = self.run_longhaul("run", job, code=REFUSED)
        self.assertNotIn("-- train: nothing has changed", said)
        self.assertIn("--resume", said)
        self.assertEqual(self.stages_run(job, "--resume"), (["train"], ["prepare", "export"]))
        self.assertEqual(checkpoint_digest(self.step_folder(4)), whole)

    def test_a_wrong_ini_leaves_nothing_behind(self):
        for change, word in (({"train": {"stepz": 3}}, "steps"),
                             ({"trian": {"steps": 3}}, "train"),
                             ({"model": {"plugin": "lama"}}, "lama"),
                             ({"optimizer": {"rule": "rules:adam"}}, "adam"),
                             ({"optimizer": {"learning_rate": "warmup_cosin(step)"}},
                              "warmup_cosin"),
                             ({"train": {"batch": 3}}, "micro_batch"),
                             ({"model": {"hidden": "x"}}, "hidden")):
            with self.subTest(word=word):
                job = self.small_job(**change)
                for command in ("check", "run"):
                    _, said = self.run_longhaul(command, job, code=REFUSED)
                    self.assertIn(word, said)
                    self.assertLessEqual(said.count("\n"), 3, said)
                self.assertFalse(os.path.exists(self.path("out")), word)

    def test_exit_codes(self):
        self.run_longhaul(code=USAGE)
        self.run_longhaul("rnu", "job.ini", code=USAGE)
        self.run_longhaul("train", code=USAGE)
        job = self.small_job(train={"steps": 2})
        self.run_longhaul("train", job, "--nothing", code=USAGE)
        self.run_longhaul("run", self.path("missing.ini"), code=REFUSED)
        self.run_longhaul("eval", job, code=REFUSED)  # nothing to evaluate yet
        self.run_longhaul("run", job, code=DONE)
        # A rate that throws every weight out of range.
        _, said = self.run_longhaul(
            "train", job, "--set", "optimizer.learning_rate=1e30", "--set", "train.steps=40",
            "--set", "train.not_finite_limit=3", "--set", "optimizer.clip=0", "--set",
            "pipeline.folder=hot", "--set", "data.train=%s" % self.path("out", "corpus"),
            code=NOT_FINITE)
        self.assertIn("not finite", said)
        self.assertEqual(log_lines(self.path("hot", "train.log"))[-1], said.splitlines()[-1])
        self.assertIn("stopped: 3 steps in a row", said.splitlines()[-1])
        # Who watches hears of no good end.
        with open(self.path("hot", "status.json")) as f:
            end = json.load(f)["end"]
        self.assertEqual((end["failed"], end["reason"]), (True, "the last 3 steps were not finite and not applied"))
        with open(self.path("hot", "report.html")) as f:
            self.assertIn(end["reason"], f.read())

    def test_stdout_that_cannot_be_written_is_no_success(self):
        job = self.small_job(train={"steps": 1})
        with open("/dev/full", "w") as full:
            done = subprocess.run([BINARY, "check", job], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, REFUSED)

    def test_names_of_folders_steer_no_terminal(self):
        odd = self.path("e\x1b]0;x\x07\u009b31m\u202e\n")
        os.mkdir(odd)
        job = self.small_job(stages="prepare train export", train={"steps": 2})
        os.rename(job, os.path.join(odd, "job.ini"))
        job = os.path.join(odd, "job.ini")
        for command in ("run", "plan", "check", "eval"):
            said = self.run_longhaul(command, job)
            for text in said:
                self.assertNotRegex(text, "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
            shown = "e\\x1b]0;x\\x07\\xc2\\x9b31m\\xe2\\x80\\xae\\x0a/"
            self.assertTrue(command == "eval" or shown in said[0], said)
        with open(os.path.join(odd, "out", "train.log"), "rb") as f:
            self.assertNotRegex(f.read(), b"[\x00-\x08\x0b-\x1f\x7f]")

    def test_what_a_later_stage_would_refuse_is_refused_first(self):
        two = {"launch": {"ranks_per_node": 2}}
        sites = {"site.a": {"hosts": "localhost:1"}, "site.b": {"hosts": "other:1"},
                 "launch": {"secret": "key", "address": "127.0.0.1", "port": 1234},
                 "transport.wan": {"plugin": "shm"}}
        os.mkfifo(self.path("fifo"))
        os.chmod(self.write("open", "ab" * 32), 0o644)
        os.chmod(self.write("short", "ab"), 0o600)
        for changes, sentence in (
                (sites, r"\[transport\.wan\] security = private: the transport 'shm' cannot give it"),
                # By the plugin's own table: neither a card nor links of that class are needed.
                ({"transport.site": {"plugin": "ib"}},
                 r"\[transport\.site\] security = proven: the transport 'ib' cannot give it; write security = plain or known, "
                 "or another plugin"),
                ({"transport.wan": {"plugin": "ib"}}, "security = private: .*'ib' .*; write security = plain or known, or"),
                ({"transport.wan": {"plugin": "apn", "security": "proven"}},
                 "security = proven: .*'apn' .*; write security = plain or known or private, or another plugin"),
                ({"transport.wan": {"plugin": "shm", "fallback": "shm"}}, "'shm' cannot give it; write security = plain, or"),
                ({"transport.wan": {"plugin": "tcp", "fallback": "shm"}}, "'shm' cannot give it; write security = plain, or"),
                ({"transport.wan": {"plugin": "tcp", "steams": 4}}, r"unknown key 'steams' in \[transport\.wan\]; did you mean 'streams'\?"),
                ({"launch": dict(two["launch"], secret="open")}, "open has mode 0644"),
                ({"launch": dict(two["launch"], secret="short")}, "short: a key is 64 hex.*2 bytes"),
                ({"launch": dict(two["launch"], secret="fifo")}, "fifo is not a regular file"),
                ({"launch": {"address": "x;rm -rf"}}, r"job\.ini:\d+: address = x;rm -rf: expected"),
                ({"launch": {"address": "-h"}}, "address = -h: expected")):
            with self.subTest(sentence=sentence):
                job = self.small_job(**{k.replace(".", "__"): v for k, v in changes.items()})
                for command in ("check", "run"):
                    _, said = self.run_longhaul(command, job, code=REFUSED)
                    self.assertRegex(said, sentence)
                    self.assertFalse(os.path.exists(self.path("out")))
        for address in ("localhost", "10.0.0.1", "fe80::1%eth0", "node-1.example.org"):
            self.run_longhaul("check", self.small_job(launch={"address": address}))
        for section in ({"plugin": "shm", "security": "plain"}, {"plugin": "ib", "security": "known"}, {"plugin": "apn"},
                        {"steams": 4}):  # no plugin named and no such links: whose key it would be is not asked
            self.run_longhaul("check", self.small_job(transport__wan=section))
        _, said = self.run_longhaul("check", self.small_job(transport__site={"plugin": "ib", "fallback": "tcp"}))
        self.assertRegex(said, "'ib' cannot give it.*; the fallback 'tcp' would be used on all ranks")

    def test_a_split_without_a_share_is_refused_before_anything_is_made(self):
        for changes, name in (({"train": {"steps": 2}}, "eval reads the valid"),
                              ({"train": {"steps": 2, "evaluate_every": 1}}, "train reads the valid"),
                              ({"eval": {"data": "test"}}, "eval reads the test")):
            job = self.small_job(stages="prepare train eval", data={"split": "1,0,0"}, **changes)
            for command in ("check", "run"):
                _, said = self.run_longhaul(command, job, code=REFUSED)
                self.assertRegex(said, r"split = 1,0,0: %s split, whose share is 0\n" % name)
                self.assertFalse(os.path.exists(self.path("out")))

    def test_a_folder_whose_name_is_no_utf8_is_refused(self):
        odd = self.path(os.fsdecode(b"a\xffb"))
        os.mkdir(odd)
        job = os.path.join(odd, "job.ini")
        os.rename(self.small_job(), job)
        for command in ("check", "run", "prepare"):
            _, said = self.run_longhaul(command, job, code=REFUSED)
            self.assertRegex(said, r"^longhaul: \S+/a\\xffb/out: the path is not UTF-8; .*\n$")
        self.assertEqual(os.listdir(odd), ["job.ini"])
        self.run_longhaul("run", job, "--set", "train.steps=2", "--set",
                          "pipeline.folder=" + self.path("out"))
        with open(self.path("out", "prepare.json")) as f:
            json.load(f)

    def test_a_refused_prepare_leaves_no_folder(self):
        job = self.small_job(pipeline={"folder": None})
        self.write("stories.jsonl", "no JSON\n")
        self.run_longhaul("prepare", job, code=REFUSED)
        self.assertFalse(os.path.exists(self.path("out")))
        self.run_longhaul("prepare", job, "--set", "prepare.output=more/corpus", code=REFUSED)
        self.assertFalse(os.path.exists(self.path("out")))
        os.mkdir(self.path("out"))
        self.run_longhaul("prepare", job, code=REFUSED)
        self.assertEqual(os.listdir(self.path("out")), [])

    def test_a_tokenizer_of_an_unknown_kind_leaves_no_folder(self):
        for text, sentence in (
                ('{"model": {"type": "Chars", "vocab": {"a": 0}}}',
                 "tokenizer.json: the model is of type 'Chars'; BPE, Unigram and WordPiece are supported"),
                ('{"model": {"vocab": {"a": 0}, "merges": []}, "decoder": {"type": "Morse"}}',
                 "tokenizer.json: a decoder of type 'Morse' is not supported; expected ")):
            job = self.small_job(prepare={"tokenizer": self.write("tokenizer.json", text)})
            for command in ("prepare", "run"):
                out, err = self.run_longhaul(command, job, code=REFUSED)
                self.assertIn(sentence, err)
                self.assertEqual(len([line for line in err.splitlines() if line.startswith("longhaul:")]), 1, err)
                self.assertEqual(out, "")
            self.assertFalse(os.path.exists(self.path("out")))

    def test_flags_have_the_range_of_their_keys(self):
        job = self.small_job(train={"steps": 0})
        for flag, value, sentence in (
                ("seed", "99999999999999999999999", "too large"),
                ("seed", "x", "not a whole number"), ("tokens", "0", "tokens = 0: expected 1..1M"),
                ("top-p", "2", "top_p = 2: expected 0..1"),
                ("temperature", "101", "temperature = 101: expected 0..100")):
            _, said = self.run_longhaul("generate", job, "--ids", "1", "--" + flag, value,
                                        code=REFUSED)
            self.assertIn("--" + flag, said)
            self.assertIn(sentence, said)

    def test_a_flag_of_drawing_goes_before_the_inis_greedy(self):
        job = self.small_job(train={"steps": 0}, generate={"greedy": "yes", "tokens": 20})
        self.run_longhaul("run", job)
        made = [self.run_longhaul("generate", job, "--ids", "1", "--json", *more)[0]
                for more in ((), ("--seed", "2"), ("--temperature", "2"), ("--top-k", "50"), ("--top-p", "0.9"))]
        self.assertEqual(made[0], made[1])
        for drawn in made[2:]:
            self.assertNotEqual(drawn, made[0])

    def test_paths_behind_flags_are_those_of_the_working_folder(self):
        """And those of the INI and of --set are the INI's folder's."""
        os.mkdir(self.path("jobs"))
        job = os.path.join("jobs", "job.ini")
        os.rename(self.small_job(train={"steps": 0}, generate={"tokens": 4}), self.path(job))
        self.run_longhaul("run", job)
        self.assertTrue(os.path.isdir(self.path("jobs", "out")))
        self.write("prompts.jsonl", '{"prompt": "Once"}\n')
        made = [self.run_longhaul("generate", job, "--json", *more)[0]
                for more in (("--prompts", "prompts.jsonl"), ("--set", "generate.prompts=../prompts.jsonl"))]
        self.assertEqual(json.loads(made[0]), json.loads(made[1]))
        if shutil.which("dot"):
            self.run_longhaul("plan", job, "--graph", "block.svg")
            self.assertTrue(os.path.exists(self.path("block.svg")))

    def test_a_working_folder_of_a_long_path(self):
        job = self.small_job()
        there = "for i in $(seq 21); do mkdir -p %s && cd -P %s; done; exec %s check job.ini"
        name = "d" * 200
        done = subprocess.run(["bash", "-c", there % (name, name, BINARY)], cwd=self.folder,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, REFUSED, done.stderr)
        self.assertIn("the path of the working folder is longer than 4095 bytes", done.stderr)
        self.assertTrue(os.path.exists(job))

    def test_help_and_check_tell_every_option(self):
        job = self.small_job(train={"steps": 1})
        out, _ = self.run_longhaul("check", job)
        for plugin, section in (("llama", "model"), ("cpu", "device"), ("zero0", "optimizer")):
            text, _ = self.run_longhaul("help", plugin)
            for option in re.findall(r"^\s*(\w+) = ", text, re.M):
                self.assertRegex(out, r"(?m)^;? ?%s\b" % option)
        for section in ("prepare", "train", "checkpoint", "optimizer", "eval", "generate"):
            text, _ = self.run_longhaul("help", section)
            with open(os.path.join(SOURCE, "core", "config", "job.c")) as f:
                rows = re.search(r"%s_rows\[\] = \{(.*?)\n\};" % section, f.read(), re.S).group(1)
            # Rows of LH_OPTION_* name their key; the file's own macros take the field's name.
            for macro, field, key in re.findall(r'(\w+)\(job_%s_t, (\w+), "?(\w*)' % section, rows):
                self.assertIn(key if macro.startswith("LH_OPTION_") else field, text, section)
        text, _ = self.run_longhaul("plugins")
        for name in ("llama", "gpt2", "zero0", "rules", "cpu"):
            self.assertRegex(text, r"\b%s\b" % name)

    def test_evaluation_in_training_is_that_of_eval(self):
        job = self.small_job(train={"steps": 6, "evaluate_every": 3}, eval={"data": "valid"})
        self.run_longhaul("run", job)
        out, _ = self.run_longhaul("eval", job, "--json")
        rows = read_json_lines(self.path("out", "metrics.jsonl"))
        last = [r for r in rows if "evaluation" in r][-1]
        self.assertEqual(last["step"], 6)
        self.assertLess(abs(last["evaluation"]["loss"] - json.loads(out)["loss"]), 1e-6)
        self.assertEqual(last["evaluation"]["tokens"], json.loads(out)["tokens"])

    def test_what_cuts_a_batch_changes_rounding_only(self):
        losses = {}
        job = self.small_job(train={"steps": 8})
        self.run_longhaul("prepare", job)
        for way in ("train.micro_batch=4", "train.micro_batch=1", "train.recompute=full",
                    "train.head_chunk=16", "device.threads=2"):
            folder = "out-" + way.replace("=", "-")
            self.run_longhaul("train", job, "--set", way, "--set", "pipeline.folder=" + folder,
                              "--set", "data.train=" + self.path("out", "corpus"))
            losses[way] = [r["loss"] for r in
                           read_json_lines(self.path(folder, "metrics.jsonl"))
                           if "learning_rate" in r]
        for way, curve in losses.items():
            self.assertEqual(len(curve), 8)
            for a, b in zip(curve, losses["train.micro_batch=4"]):
                self.assertLess(abs(a - b), 1e-5 * b, way)

    def test_step_0_is_saved_and_dumped_batches_are_those_of_the_run(self):
        job = self.small_job(train={"steps": 4})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job, "--dump-batches", "4")
        dumped = tensors_of(self.path("out", "batches.safetensors"))
        self.assertEqual(dumped["tokens"][:2], ("I32", [4, 4, 32]))
        self.assertEqual(dumped["labels"][:2], ("I32", [4, 4, 32]))
        tokens, labels = dumped["tokens"][2], dumped["labels"][2]
        for row in range(16):
            a, b = tokens[row * 128:row * 128 + 128], labels[row * 128:row * 128 + 128]
            self.assertEqual(a[4:], b[:-4])
        start = ["--set", "pipeline.folder=start", "--set", "train.steps=0", "--set",
                 "data.train=" + self.path("out", "corpus")]
        self.run_longhaul("train", job, *start)
        first = checkpoint_digest(self.step_folder(0, "start"))
        self.run_longhaul("train", job, *start, "--set", "pipeline.folder=again")
        self.assertEqual(first, checkpoint_digest(self.step_folder(0, "again")))
        self.run_longhaul("train", job, *start, "--set", "pipeline.folder=other", "--set",
                          "train.seed=2")
        self.assertNotEqual(first[0], checkpoint_digest(self.step_folder(0, "other"))[0])

    def test_a_run_leaves_a_report_metrics_and_events(self):
        job = self.small_job(train={"steps": 3, "evaluate_every": 2})
        self.run_longhaul("run", job)
        for name in ("report.html", "metrics.jsonl", "train.log"):
            self.assertGreater(os.path.getsize(self.path("out", name)), 0, name)
        evaluated = [r["step"] for r in read_json_lines(self.path("out", "metrics.jsonl")) if "evaluation" in r]
        self.assertEqual(evaluated, [0, 2, 3])  # the start weights and the last step too
        self.assertEqual(len(os.listdir(self.path("out", "events"))), 1)
        with open(self.path("out", "report.html")) as f:
            page = f.read()
        self.assertNotRegex(page, r"(src|href)=[\"']https?:")

    def test_the_first_samples_of_a_file_that_is_packed_come_out_the_same(self):
        plain = self.small_job(train={"steps": 1})
        self.run_longhaul("prepare", plain)
        with open(self.path("stories.jsonl"), "rb") as f, \
                gzip.open(self.path("packed.jsonl.gz"), "wb") as out:
            out.write(f.read())
        self.run_longhaul("prepare", plain, "--set", "pipeline.folder=packed", "--set",
                          "prepare.input=packed.jsonl.gz", "--set", "prepare.workers=2")
        for kind in ("bin", "idx"):
            with open(self.path("out", "corpus." + kind), "rb") as a, \
                    open(self.path("packed", "corpus." + kind), "rb") as b:
                self.assertEqual(a.read(), b.read(), kind)


class OwnFiles(PipelineCase):
    """What a job reads and what it writes are never the same file."""

    def kept(self, name, sentence, *sets, command="run", job=None):
        """The file at `name` is refused before anything is written, and keeps its bytes."""
        with open(self.path(name), "rb") as f:
            before = f.read()
        there = sorted(os.listdir(self.folder)), sorted(os.listdir(self.path("out")))
        job = job or self.small_job(train={"steps": 2})
        for command in ("check", command):
            args = set_flags(*sets)
            _, said = self.run_longhaul(command, job, *args, code=REFUSED)
            self.assertRegex(said, sentence)
            self.assertEqual(said.count("\n"), 1, said)
        with open(self.path(name), "rb") as f:
            self.assertEqual(f.read(), before)
        after = sorted(os.listdir(self.folder)), sorted(os.listdir(self.path("out")))
        self.assertEqual(after, there)

    def input_named(self, name, by):
        shutil.copy(self.stories(), self.path(name))
        self.small_job()
        self.kept(name, r"\[prepare\] input: \S+%s would be lost: %s writes over it" %
                  (re.escape(os.path.basename(name)), by), "prepare.input=" + name)
        os.unlink(self.path(name))

    def test_an_input_that_the_job_writes_is_refused(self):
        os.mkdir(self.path("out"))
        for name, by in (("out/corpus.bin", "prepare"), ("out/corpus.idx.tmp", "prepare"),
                         ("out/prepare.json", "prepare"), ("out/prepare.rejected.txt", "prepare"),
                         ("out/train.log", "train"), ("out/metrics.jsonl", "train"),
                         ("out/rank-1.log", "train"), ("out/report.html", "train"),
                         ("out/stages.json", "run"), ("out/eval.json", "eval"),
                         ("out/generated.json", "generate")):
            with self.subTest(name=name):
                self.input_named(name, by)

    def test_other_names_of_a_file_are_the_same_file(self):
        os.mkdir(self.path("out"))
        shutil.copy(self.stories(), self.path("out", "train.log"))
        job = self.small_job(train={"steps": 2})
        os.symlink("out/train.log", self.path("soft.jsonl"))
        os.link(self.path("out", "train.log"), self.path("hard.jsonl"))
        for name in ("soft.jsonl", "hard.jsonl"):
            self.kept(name, "would be lost: train", "prepare.input=" + name, job=job)
            self.kept(name, r"\[eval\] data: .*would be lost", "eval.data=" + name, job=job)
            self.kept(name, r"\[prepare\] tokenizer: .*would be lost", "prepare.tokenizer=" + name,
                      command="train", job=job)
            self.kept(name, r"\[parallel\] schedule: .*would be lost", "parallel.schedule=" + name,
                      command="train", job=job)

    def test_an_output_that_leaves_a_folder_yet_to_be_made(self):
        shutil.copy(self.stories(), self.path("data.bin"))
        job = self.small_job(train={"steps": 2})
        for output in ("../data", "./..//data", "new/.././../data"):
            sets = ("prepare.input=data.bin", "prepare.output=" + output, "data.train=" + output)
            for command in ("check", "run", "prepare"):
                args = set_flags(*sets)
                _, said = self.run_longhaul(command, job, *args, code=REFUSED)
                self.assertRegex(said, r"data\.bin would be lost: prepare writes over it")
        self.assertEqual(sorted(os.listdir(self.folder)), ["data.bin", "job.ini", "stories.jsonl"])

    def test_an_ini_under_a_name_of_the_job_is_refused(self):
        os.mkdir(self.path("out"))
        for name in ("report.html", "stages.json"):
            os.rename(self.small_job(pipeline={"folder": "."}), self.path(name))
            self.kept(name, r"\[pipeline\] folder: .*%s would be lost" % name, job=self.path(name))
            job = self.write("job.ini", "include = %s\n" % name)
            self.kept(name, r"\[pipeline\] folder: .*%s would be lost" % name, job=job)
            os.unlink(self.path(name))

    def test_a_pattern_leaves_the_jobs_own_files_out(self):
        job = self.small_job(pipeline={"folder": "."}, prepare={"input": "*.jsonl"},
                             train={"steps": 2})
        self.run_longhaul("run", job)
        self.assertIn("metrics.jsonl", os.listdir(self.folder))
        _, said = self.run_longhaul("run", job, "--resume")
        self.assertIn("-- prepare: nothing has changed", said)
        self.run_longhaul("prepare", job)
        os.rename(self.path("stories.jsonl"), self.path("stories"))
        _, said = self.run_longhaul("prepare", job, code=REFUSED)
        self.assertIn("no file matches", said)

    def test_a_pattern_does_not_hide_what_a_stranger_left(self):
        job = self.small_job(pipeline={"folder": "."}, prepare={"input": "*.jsonl"})
        with open(self.path("stories.jsonl")) as f:
            mine = f.read()
        self.write("metrics.jsonl", mine)
        for command in ("prepare", "run"):
            _, said = self.run_longhaul(command, job, code=REFUSED)
            self.assertRegex(said, r"input: .*metrics\.jsonl would be lost: train writes over it")
        with open(self.path("metrics.jsonl")) as f:
            self.assertEqual(f.read(), mine)

    def test_a_second_name_of_a_temporary_file_keeps_its_bytes(self):
        job = self.small_job()
        os.mkdir(self.path("out"))
        for name in ("corpus.bin.tmp", "corpus.idx.tmp", "corpus.lengths.tmp",
                     "prepare.rejected.txt.tmp"):
            os.link(self.write("precious", "mine\n"), self.path("out", name))
            self.run_longhaul("prepare", job)
            with open(self.path("precious")) as f:
                self.assertEqual(f.read(), "mine\n")
            self.assertFalse(os.path.exists(self.path("out", name)))

    def test_a_second_name_does_not_break_a_lock(self):
        job = self.small_job()
        os.mkdir(self.path("out"))
        with open(self.path("out", "corpus.bin.tmp"), "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            os.link(self.path("out", "corpus.bin.tmp"), self.path("copy"))
            _, said = self.run_longhaul("prepare", job, code=REFUSED)
            self.assertIn("corpus.bin.tmp: another process writes it", said)
            self.assertTrue(os.path.exists(self.path("out", "corpus.bin.tmp")))


class Calls(PipelineCase):
    def plugins(self):
        return ["--plugins", add_plugin(self, "parts", "test_hooks")]

    def test_hooks_see_what_the_metrics_say(self):
        steps, saves = self.path("steps.txt"), self.path("saves.txt")
        job = self.small_job(
            train={"steps": 6}, checkpoint={"every": 2},
            hook__after_step={"call": 'test_hooks:note_step("%s", step, loss, learning_rate, '
                                      'norm, tokens=tokens)' % steps},
            hook__before_save={"call": 'test_hooks:note_save("%s", step=step, loss=loss)' % saves})
        self.run_longhaul("run", job, *self.plugins())
        rows = [r for r in read_json_lines(self.path("out", "metrics.jsonl"))
                if "learning_rate" in r]
        told = read_json_lines(steps)
        self.assertEqual([r["step"] for r in told], [1, 2, 3, 4, 5, 6])
        for row, note in zip(rows, told):
            self.assertLess(abs(row["loss"] - note["loss"]), 1e-6)
            self.assertLess(abs(row["learning_rate"] - note["rate"]), 1e-9)
            self.assertEqual(note["tokens"], note["step"] * 4 * 32)
        self.assertEqual([r["step"] for r in read_json_lines(saves)], [2, 4, 6])

    def test_a_locale_that_a_plugin_sets_changes_no_number(self):
        """One with a comma for a point, set in the first step."""
        with open(self.path("comma.src"), "w") as f:
            f.write('LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n')
        if shutil.which("localedef"):
            subprocess.run(["localedef", "-c", "-i", self.path("comma.src"), self.path("comma")], capture_output=True)
        if not os.path.exists(self.path("comma", "LC_NUMERIC")):
            self.skipTest("localedef makes no locale here")
        saves, page = self.path("saves.txt"), self.path("figures.prom")
        job = self.small_job(train={"steps": 6}, checkpoint={"every": 2}, watch={"textfile": page},
                             hook__after_step={"call": 'test_hooks:speak("comma")'},
                             hook__before_save={"call": 'test_hooks:note_save("%s", step=step, loss=loss)' % saves})
        _, said = self.run_longhaul("run", job, *self.plugins(), env={**os.environ, "LOCPATH": self.folder})
        self.assertEqual([r["step"] for r in read_json_lines(saves)], [2, 4, 6])
        with open(page) as f, open(self.path("out", "train.log")) as log:
            texts = {"figures": f.read(), "train.log": log.read(), "the terminal": said}
        self.assertIn('longhaul_step{', texts["figures"])
        for what, text in texts.items():
            self.assertRegex(text, r"\d\.\d", what)
            self.assertNotRegex(text, r"\d,\d", what)

    def test_a_hook_that_fails_ends_the_run_with_its_sentence(self):
        job = self.small_job(hook__after_step={"call": "test_hooks:refuse(step, at=3)"})
        self.run_longhaul("prepare", job)
        _, said = self.run_longhaul("train", job, *self.plugins(), code=REFUSED)
        self.assertIn("step 3 is one too many", said)

    def test_a_learning_rate_of_a_plugin_is_used(self):
        job = self.small_job(train={"steps": 5},
                             optimizer={"learning_rate": "test_hooks:stairs(step, height=1e-3)"})
        self.run_longhaul("run", job, *self.plugins())
        rates = [r["learning_rate"] for r in read_json_lines(self.path("out", "metrics.jsonl"))
                 if "learning_rate" in r]
        for rate, wanted in zip(rates, (1e-3, 1e-3, 5e-4, 5e-4, 1e-3 / 3)):
            self.assertLess(abs(rate - wanted), 1e-9)

    def test_a_rate_that_goes_wrong_at_a_late_step_is_refused_by_check(self):
        job = self.small_job(train={"steps": 4},
                             optimizer={"learning_rate": "test_hooks:slide(step, height=3.0)"})
        plugins = self.plugins()
        self.run_longhaul("check", job, *plugins)
        for steps, wrong in ((5, "-1 at step 4"), (30000000, "-3 at step 6")):  # of many, every third
            _, said = self.run_longhaul("check", job, *plugins, "--set", "train.steps=%d" % steps,
                                        code=REFUSED)
            self.assertIn("learning_rate is %s; a rate is not negative" % wrong, said)

    def test_a_filter_drops_documents(self):
        job = self.small_job(train={"steps": 1})
        self.run_longhaul("prepare", job)
        lengths = self.lengths("out")
        limit = sorted(lengths)[len(lengths) // 2]
        self.run_longhaul("prepare", job, *self.plugins(), "--set", "pipeline.folder=cut", "--set",
                          "prepare.accept=test_hooks:shorter_than(tokens, %d)" % limit)
        kept = self.lengths("cut")
        self.assertTrue(0 < len(kept) < len(lengths))
        self.assertEqual(kept, [n for n in lengths if n < limit])

    def lengths(self, folder):
        with open(self.path(folder, "corpus.idx"), "rb") as f:
            raw = f.read()
        _, _, count, _ = struct.unpack_from("<QBQQ", raw, 9)
        return list(struct.unpack_from("<%di" % count, raw, 34))

    def test_calls_that_do_not_fit_are_refused_by_check(self):
        for call in ("test_hooks:refuse(step)", "test_hooks:refuse(step, at=x)",
                     "test_hooks:nothing(step)", "nobody:refuse(step, at=1)",
                     "test_hooks:refuse(step, at=1) and more"):
            job = self.small_job(hook__after_step={"call": call})
            _, said = self.run_longhaul("check", job, *self.plugins(), code=REFUSED)
            self.assertIn("longhaul:", said)


main()
