"""`longhaul new` and the recipes: what it writes is checked, planned and run as it is; a recipe has as many parameters as the
model whose name it bears."""
import json
import os
import re
import shutil

from pipeline_case import REFUSED, SOURCE, PipelineCase, main

EXAMPLES = os.path.join(SOURCE, "examples")
RECIPES = os.path.join(EXAMPLES, "recipes")
REFERENCE = os.environ.get("LONGHAUL_REFERENCE", "")
# As their publishers count them (safetensors' parameters of the model cards; Mistral's and Falcon's index files).
PUBLISHED = {"llama-3-8b": 8030261248, "mistral-7b": 7248023552, "qwen3-8b": 8190735360, "gemma-2-9b": 9241705984,
             "falcon-7b": 6921720704, "mixtral-8x7b": 46702792704}
# What the number of parameters does not show, of their config.json files: base of the rotary frequencies, epsilon, longest
# sequence, and what is not the plugin's default (window, caps, the scale of scores, the loss that balances experts).
SAID = {"llama-3-8b": (500000, 1e-5, 8192, {"window": "0", "rope_scaling": "default"}),
        "mistral-7b": (1000000, 1e-5, 32768, {"window": "0", "rope_scaling": "default"}),
        "qwen3-8b": (1000000, 1e-6, 40960, {"head_dim": "128", "rope_scaling": "default"}),
        "gemma-2-9b": (10000, 1e-6, 8192, {"window": "4096", "layers": "wf", "query_scale": "256", "attention_cap": "50.0",
                                           "logit_cap": "30.0", "rope_scaling": "default"}),
        "falcon-7b": (10000, 1e-5, 2048, {"alibi": "no", "parallel": "yes", "multi_query": "yes", "biased": "no", "grouped": "no"}),
        "mixtral-8x7b": (1000000, 1e-5, 32768, {"window": "0", "rope_scaling": "default", "chosen": "2", "balanced": "no",
                                                "balance": "0.02"})}
SHORT = ("--set", "train.steps=3", "--set", "train.evaluate_every=0", "--set", "device.threads=1")


class New(PipelineCase):
    def setUp(self):
        super().setUp()
        shutil.copytree(os.path.join(EXAMPLES, "data"), self.path("data"))

    def new(self, name, *words, code=0):
        return self.run_longhaul("new", name, *words, code=code)

    def quota(self):
        """Processors by the quotas of this process's control group and of those above it, of version 2 or 1, where these lie as usual."""
        own = [line.rstrip("\n").split(":", 2)[1:] for line in open("/proc/self/cgroup")]
        least = 1 << 30
        for where, names in (("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"))):
            for path in (path for controllers, path in own if where in controllers.split(",")):
                while True:
                    try:
                        words = [w for name in names for w in open(f"/sys/fs/cgroup/{where}{path}/{name}").read().split()]
                        quota, period = map(int, words)
                        least = min(least, -(-quota // period)) if quota > 0 else least  # -1: none
                    except (OSError, ValueError):  # not of this version; "max": none
                        pass
                    if path in ("", "/"):
                        break
                    path = path.rpartition("/")[0]
        return least

    def run_short(self, name):
        self.run_longhaul("check", name + ".ini")
        self.run_longhaul("plan", name + ".ini")
        self.run_longhaul("run", name + ".ini", *SHORT)
        with open(self.path("out", name, "eval.json")) as f:
            got = json.load(f)
        self.assertTrue(os.path.exists(self.path("out", name, "hf", "model.safetensors")))
        return got

    def test_a_small_model_of_ones_own(self):
        said, _ = self.new("story", "--data", "data/tinyshakespeare.jsonl", "--tokenizer", "data/gpt2-tiny/vocab.json")
        # The processors are the fastest here, unless there is a GPU; reference is none to train on.
        found = re.fullmatch(r"story.ini: (cpu with (\d+) threads|cuda), precision = (f32|bf16), micro_batch = 4; "
                             r"longhaul run story.ini\n", said)
        self.assertTrue(found, said)
        with open(self.path("story.ini")) as f:
            written = f.read()
        self.assertIn("precision   = " + found.group(3), written)
        if found.group(2):
            self.assertEqual(int(found.group(2)), min(len(os.sched_getaffinity(0)), self.quota()))
            self.assertIn("[device]\nplugin      = cpu\nthreads     = %s " % found.group(2), written)
        self.assertGreater(self.run_short("story")["tokens"], 1000)
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith(".")], [])

    def test_a_device_that_is_named_is_taken(self):
        """With the dtype that it says it is faster with, and threads where it has some."""
        own = ("--data", "data/tinyshakespeare.jsonl", "--tokenizer", "data/gpt2-tiny/vocab.json")
        said, _ = self.new("slow", *own, "--device", "reference")
        self.assertRegex(said, r"^slow.ini: reference, precision = (f32|bf16), micro_batch = 4; ")
        with open(self.path("slow.ini")) as f:
            self.assertNotIn("threads", f.read())
        self.run_longhaul("check", "slow.ini")
        _, said = self.new("none", *own, "--device", "abacus", code=REFUSED)
        self.assertIn("--device abacus: no such plugin in ", said)

    def test_an_imported_model_goes_on_in_each_phase(self):
        """The model and its tokenizer are those of the folder; nothing else is said of either."""
        for phase, data, counted in (("pretrain", "tinystories-1000.jsonl", "tokens"), ("sft", "chat.jsonl", "tokens"),
                                     ("dpo", "pairs.jsonl", "pairs")):
            with self.subTest(phase=phase):
                self.new(phase, "--data", "data/" + data, "--from", "data/stories260K", "--phase", phase)
                self.assertGreater(self.run_short(phase)[counted], 0)

    def test_the_key_of_a_text_is_found(self):
        for name, line, key in (("usual", {"id": "a", "text": "b"}, "text"), ("only", {"n": 1, "story": "b"}, "story")):
            self.write(name + ".jsonl", (json.dumps(line) + "\n") * 50)
            self.new(name, "--data", name + ".jsonl", "--tokenizer", "data/gpt2-tiny/vocab.json")
            with open(self.path(name + ".ini")) as f:
                self.assertIn("key       = %s\n" % key, f.read())

    def test_a_batch_of_ones_own_recipe_is_divided(self):
        os.mkdir(self.path("my ;recipes"))
        with open(os.path.join(RECIPES, "small.ini")) as f:
            self.write("my ;recipes/six.ini", f.read() + "\n[train]\nbatch = 6\n")
        self.write(".story.draft.ini", "of another `longhaul new story`\n")
        said, _ = self.new("story", "--data", "data/tinyshakespeare.jsonl", "--tokenizer", "data/gpt2-tiny/vocab.json",
                           "--recipe", "my ;recipes/six.ini")
        self.assertIn(", micro_batch = 2; ", said)
        self.run_longhaul("check", "story.ini")
        self.assertEqual([name for name in os.listdir(self.folder) if "draft" in name], [".story.draft.ini"])

    def test_what_is_refused_leaves_nothing(self):
        own = ("--tokenizer", "data/gpt2-tiny/vocab.json")
        text, chat = ("--data", "data/tinyshakespeare.jsonl"), ("--data", "data/chat.jsonl")
        imported = ("--from", "data/stories260K")
        self.write("two.jsonl", '{"title": "a", "story": "b"}\n')
        self.write("taken.ini", "mine\n")
        self.write("a,b.ini", "[model]\nplugin = llama\n")
        before = sorted(os.listdir(self.folder))
        for name, words, sentence in (
                ("a/b", text + own, "'a/b' is no name"),
                ("x", own, "--data names the JSONL files"),
                ("x", text, "--tokenizer names a tokenizer, or --from"),
                ("x", ("--data", "none.jsonl") + own, "no file matches 'none.jsonl'"),
                ("x", ("--data", "a;b.jsonl") + own, "--data: byte 0x3b in it can't stand in an INI"),
                ("x", ("--data", "two.jsonl") + own, "two.jsonl:1: no key is a document's text for certain; found title, story"),
                ("x", text + imported + ("--phase", "sft"), "tinyshakespeare.jsonl:1: --phase sft wants lines with messages"),
                ("x", chat + imported + ("--phase", "dpo"), "chat.jsonl:1: --phase dpo wants lines with chosen and rejected"),
                ("x", chat + own + ("--phase", "dpo"), "a new model has nothing to compare with"),
                ("x", text + imported + ("--phase", "rlhf"), "--phase rlhf: expected pretrain, sft or dpo"),
                ("x", text + own + ("--recipe", "lama"), "there is no recipe 'lama' in "),
                ("x", text + own + ("--recipe", "a,b.ini"), "a,b.ini': an INI can't include a file with a comma"),
                ("x", text + imported + ("--recipe", "small"), "the model is the one of --from"),
                ("x", text + ("--from", "data/gpt2-tiny"), "config.json"),
                ("x", text + ("--tokenizer", "data/none.json"), "x.ini:16: tokenizer = "),
                ("x", text + own + ("--recipe", "mixtral-8x7b"), "with micro_batch = 1 and recompute = full"),
                ("taken", text + own, "taken.ini: is there already, and stays as it is")):
            with self.subTest(words=words):
                _, said = self.new(name, *words, code=REFUSED)
                self.assertIn(sentence, said)
                self.assertNotIn("draft", said)
                self.assertEqual(sorted(os.listdir(self.folder)), before)

    def recipe_job(self, recipe):
        return self.write(recipe + ".ini", "include = %s/pretrain.ini, %s/%s.ini\n[pipeline]\nname = %s\nstages = prepare train\n"
                          "[prepare]\ninput = data/tinyshakespeare.jsonl\ntokenizer = data/gpt2-tiny/vocab.json\n"
                          "[train]\nmicro_batch = 1\n" % (RECIPES, RECIPES, recipe, recipe))

    def test_recipes_are_the_models_of_their_names(self):
        phases = {"pretrain", "sft", "dpo", "small"}
        self.assertEqual({n[:-4] for n in os.listdir(RECIPES)}, phases | set(PUBLISHED))
        for recipe, parameters in PUBLISHED.items():
            with self.subTest(recipe=recipe):
                job = self.recipe_job(recipe)
                said, _ = self.run_longhaul("check", job)
                model = dict(re.findall(r"(?m)^(\w+) += (\S+)", said.split("[model]\n")[1].split("\n[")[0]))
                base, epsilon, longest, others = SAID[recipe]
                self.assertEqual([float(model[key]) for key in ("rope_base", "epsilon", "max_tokens")], [base, epsilon, longest])
                self.assertEqual({key: model.get(key) for key in others}, others)
                planned, _ = self.run_longhaul("plan", "--json", job)
                self.assertEqual(json.loads(planned)["parameters"], parameters)

    def test_the_small_recipe_is_as_small_as_it_says(self):
        with open(os.path.join(RECIPES, "small.ini")) as f:
            self.assertIn("0.8 million parameters, and 256 for each id of the vocabulary", f.readline())
        planned, _ = self.run_longhaul("plan", "--json", self.recipe_job("small"))
        self.assertEqual(json.loads(planned)["parameters"], 803968 + 256 * 5056)  # 5,000 tokens, padded to a multiple of 64

    def test_recipes_are_what_their_config_says(self):
        for recipe, folder in (("mistral-7b", "mistral-7b-v0.3"), ("falcon-7b", "falcon-7b")):
            source = os.path.join(REFERENCE, "data", "hf-metadata", folder)
            if not REFERENCE or not os.path.isdir(source):
                self.skipTest("LONGHAUL_REFERENCE names no folder with published config.json files")
            job = self.ini({"pipeline": {"name": "x", "stages": "import"}, "import": {"from": source},
                            "model": {"plugin": "from_import"}})
            said, _ = self.run_longhaul("import", "--print", job)
            rows = {line for line in said.splitlines() if " = " in line and not line.endswith((" = 0", " = default"))}
            with open(os.path.join(RECIPES, recipe + ".ini")) as f:
                ours = f.read().split("[train]")[0]
            self.assertEqual(rows, {line for line in ours.splitlines() if " = " in line and line[0] != ";"})


if __name__ == "__main__":
    main()
