"""A checkpoint is evaluated, generated from and exported with the options that it was trained with."""
import hashlib
import json
import os

from pipeline_case import DATA, REFUSED, PipelineCase, main


class SameModel(PipelineCase):
    def test_options_of_another_model_are_refused(self):
        job = self.small_job(train={"steps": 2}, eval={"data": "valid"})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        commands = (["eval"], ["generate", "--ids", "1,2", "--tokens", "2"], ["export"])
        for command in commands:
            for key, value in (("heads", "2"), ("rope_base", "5000"), ("epsilon", "0.25"),
                               ("max_tokens", "128")):
                with self.subTest(command=command[0], key=key):
                    _, said = self.run_longhaul(command[0], job, *command[1:], "--set",
                                                "model.%s=%s" % (key, value), code=REFUSED)
                    self.assertIn("was made with 'model.%s = " % key, said)
                    self.assertIn("now it is 'model.%s = %s'" % (key, value), said)
                    self.assertIn("step-000000000002", said)
            self.assertFalse(os.path.exists(self.path("out", "hf")))
        for command in commands:
            self.run_longhaul(command[0], job, *command[1:], "--set", "train.precision=bf16",
                              "--set", "device.threads=2", "--set", "train.micro_batch=1",
                              "--set", "data.split=50,50,0", "--set", "optimizer.rule=rules:sgd")

    def test_another_tokenizer_is_refused(self):
        job = self.small_job(train={"steps": 2})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        with open(DATA + "/stories260K/tokenizer.json") as f:
            tokenizer = json.load(f)
        vocabulary = tokenizer["model"]["vocab"]
        other = ["--set", "prepare.tokenizer=" + self.path("other.json")]
        last = sorted(vocabulary, key=vocabulary.get)[-2:]
        # Two that a text begins with alike, and two bytes that are no character, decode to the same by themselves.
        for a, b in (("\u2581t", "t"), ("<0xE2>", "<0xE3>"), last):
            vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
            with open(self.path("other.json"), "w") as f:
                json.dump(tokenizer, f)
            _, said = self.run_longhaul("eval", job, *other, code=REFUSED)
            self.assertIn("was made with 'tokenizer.content = ", said)
            if [a, b] != last:
                vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
        for command in (["eval"], ["generate", "--prompt", "a", "--tokens", "2"], ["export"],
                        ["train", "--resume", "--set", "train.steps=4"]):
            _, said = self.run_longhaul(command[0], job, *command[1:], *other, code=REFUSED)
            self.assertRegex(said, r"was made with 'tokenizer\.content = \w{16}', now it is 'tokenizer\.content = ")
        self.assertFalse(os.path.exists(self.path("out", "hf")))

    def test_a_checkpoint_that_says_nothing_of_its_model_is_taken(self):
        job = self.small_job(train={"steps": 1})
        self.run_longhaul("prepare", job)
        self.run_longhaul("train", job)
        self.seal_again(self.step_folder(1), model="")
        self.run_longhaul("generate", job, "--ids", "1,2", "--tokens", "2")
        self.run_longhaul("export", job)

    def seal_again(self, folder, **changes):
        path = os.path.join(folder, "manifest.json")
        with open(path) as f:
            lines = f.read().split("\n")
        for key, value in changes.items():
            (at,) = [i for i, line in enumerate(lines) if line.startswith('"%s": ' % key)]
            lines[at] = '"%s": %s,' % (key, json.dumps(value))
        (seal,) = [i for i, line in enumerate(lines) if line.startswith('"self": ')]
        head = "\n".join(lines[:seal]) + "\n"
        lines[seal] = '"self": "%s"' % hashlib.sha256(head.encode()).hexdigest()
        with open(path, "w") as f:
            f.write("\n".join(lines))


main()
