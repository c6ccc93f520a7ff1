"""The files of deploy/: the systemd unit by systemd's own reader, the batch script with a stand-in for srun (tests/launch has
the real Slurm), the Kubernetes manifest by the types that its API publishes, and its job by two launchers on this machine."""
import configparser
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

from places_case import BUILD, DATA, LONGHAUL, SOURCE, PlacesCase, main, read

sys.path.insert(0, os.path.join(SOURCE, "tests", "launch"))
from launch_case import free_port

DEPLOY = os.path.join(SOURCE, "deploy")
CODES = {"1", "2", "4", "5"}  # for a person: see docs/operations.md

try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes.client
    from kubernetes.client import models
except ImportError:
    kubernetes = None


def saves(case):
    """Seconds for a save under way and the last one, each phase of both within [checkpoint] deadline."""
    return 4 * int(re.search(r"deadline +(\d+)s ", case.call(LONGHAUL, "help", "checkpoint"))[1])


class Unit(PlacesCase):
    def setUp(self):
        super().setUp()
        self.text = read(os.path.join(DEPLOY, "longhaul@.service"))

    def test_systemd_reads_it_without_a_warning(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("there is no systemd-analyze (Debian: systemd)")
        path = os.path.join(self.folder, "longhaul@night.service")
        with open(path, "w") as f:
            f.write(self.text.replace("/usr/bin/longhaul", LONGHAUL).replace("User=longhaul", "User=root"))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "longhaul" in line]
        self.assertEqual(ours, [])
        # The same reader finds a key that it does not know.
        with open(path, "a") as f:
            f.write("[Service]\nRestartPreventExitCode=1\n")
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
        self.assertIn("RestartPreventExitCode", done.stderr)

    def test_what_starts_again_is_what_may_help(self):
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str
        unit.read_string(self.text)
        service = unit["Service"]
        self.assertEqual(set(service["RestartPreventExitStatus"].split()), CODES | {"143", "200", "203", "217"})  # longhaul stop --now; systemd.exec(5)
        self.assertEqual((service["Restart"], service["SuccessExitStatus"], service["KillMode"]), ("on-failure", "75", "mixed"))
        self.assertEqual(service["OOMPolicy"], "continue")
        self.assertGreater(60 * int(re.fullmatch(r"(\d+)min", service["TimeoutStopSec"])[1]), saves(self))
        words = service["ExecStart"].replace("%i", "night").split()
        self.assertEqual(words[0], "/usr/bin/longhaul")
        said = subprocess.run([LONGHAUL, *words[1:]], capture_output=True, text=True)
        self.assertRegex(said.stderr, r"\Alonghaul: .*/etc/longhaul/night\.ini: cannot read: No such file")


class Batch(PlacesCase):
    def batch(self, code, **more):
        """The script with an srun that ends by this code; what it called, and how it ended."""
        calls = os.path.join(self.folder, "calls")
        for name, body in (("srun", f"exit {code}"), ("scontrol", ""), ("sleep", "")):
            path = os.path.join(self.folder, name)
            with open(path, "w") as f:
                f.write(f'#!/bin/sh\necho {name} "$@" >>{calls}\n{body}\n')
            os.chmod(path, 0o755)
        open(calls, "w").close()
        environment = dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"], SLURM_JOB_ID="7", **more)
        done = subprocess.run(["bash", os.path.join(DEPLOY, "longhaul.sbatch"), "job.ini"], env=environment, timeout=60,
                              capture_output=True, text=True)
        return done.returncode, read(calls).splitlines()

    def test_it_goes_back_into_the_queue_where_that_helps(self):
        run = "srun --kill-on-bad-exit=0 --wait=0 longhaul run job.ini --resume"
        for code in (0, 1, 2, 4, 5):
            self.assertEqual(self.batch(code), (code, [run]))
        for code in (3, 75, 137, 143, 253):
            self.assertEqual(self.batch(code), (code, [run, "scontrol requeue 7", "sleep 60"]))
        self.assertEqual(self.batch(75, SLURM_RESTART_COUNT="20"), (75, [run]))
        self.assertEqual(self.batch(75, SLURM_RESTART_COUNT="20", LONGHAUL_AGAIN="21")[1][1:2], ["scontrol requeue 7"])


@classmethod
def needs_yaml(cls):
    if yaml is None:
        raise unittest.SkipTest("there is no PyYAML (Debian: python3-yaml)")


class Manifest(PlacesCase):
    setUpClass = needs_yaml

    def setUp(self):
        super().setUp()
        with open(os.path.join(DEPLOY, "kubernetes.yaml"), encoding="utf-8") as f:
            self.documents = {d["kind"]: d for d in yaml.safe_load_all(f)}
        self.job = self.documents["Job"]["spec"]
        self.pod = self.job["template"]["spec"]
        self.container = self.pod["containers"][0]

    def compare(self, value, type_name, path):
        """A value by the API's types: no field that they lack, none missing that they require, each of its type."""
        listed = re.fullmatch(r"[Ll]ist\[(.+)\]", type_name)
        mapped = re.fullmatch(r"(?:dict\(|Dict\[)str, (.+)[\])]", type_name)
        if listed:
            self.assertIsInstance(value, list, path)
            for i, item in enumerate(value):
                self.compare(item, listed[1], f"{path}[{i}]")
        elif mapped:
            self.assertIsInstance(value, dict, path)
            for key, item in value.items():
                self.compare(item, mapped[1], f"{path}.{key}")
        elif hasattr(models, type_name):
            model = getattr(models, type_name)
            names = {json_name: name for name, json_name in model.attribute_map.items()}
            self.assertIsInstance(value, dict, path)
            self.assertEqual(set(value) - set(names), set(), f"{path}: fields that {type_name} lacks")
            try:
                model(**{names[key]: item for key, item in value.items()})
            except ValueError as error:  # a required field is missing, or a value can't be
                self.fail(f"{path}: {error}")
            for key, item in value.items():
                self.compare(item, model.openapi_types[names[key]], f"{path}.{key}")
        else:
            kinds = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
            self.assertIsInstance(value, kinds[type_name], path)
            self.assertFalse(type_name == "int" and isinstance(value, bool), path)

    def test_fields_are_those_of_the_published_api(self):
        if kubernetes is None:
            self.skipTest("there is no Python package kubernetes, which has the API's types (scripts/peers installs it)")
        for kind, document in self.documents.items():
            self.compare(document, "V1" + kind, kind)
        with self.assertRaises(AssertionError):
            self.compare({"completionMod": "Indexed", "template": {}}, "V1JobSpec", "Job")
        with self.assertRaises(AssertionError):
            self.compare({"completions": "2", "template": {}}, "V1JobSpec", "Job")

    def test_pods_find_each_other_and_their_volumes(self):
        name = self.documents["Job"]["metadata"]["name"]
        service = self.documents["Service"]
        self.assertEqual((self.job["completionMode"], self.pod["restartPolicy"]), ("Indexed", "Never"))
        self.assertEqual(self.job["completions"], self.job["parallelism"])
        self.assertEqual(self.pod["subdomain"], service["metadata"]["name"])
        self.assertEqual((service["spec"]["clusterIP"], service["spec"]["selector"]), ("None", {"job-name": name}))
        affinity = self.pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
        self.assertEqual(affinity["labelSelector"]["matchLabels"], {"job-name": name})
        ini = self.documents["ConfigMap"]["data"]["job.ini"]
        hosts = re.search(r"^hosts = (.+)$", ini, re.M)[1].split(", ")
        self.assertEqual([h.split(":")[0] for h in hosts], [f"{name}-{i}" for i in range(self.job["completions"])])
        self.assertIn(f"address = {name}-0.{service['metadata']['name']}\n", ini)
        self.assertIn(f"port    = {service['spec']['ports'][0]['port']}\n", ini)
        volumes = {v["name"]: v for v in self.pod["volumes"]}
        used = {m["name"] for c in self.pod["containers"] + self.pod["initContainers"] for m in c.get("volumeMounts", [])}
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], saves(self))
        self.assertIn(f"getent hosts {name}-0.{service['metadata']['name']} ", self.pod["initContainers"][1]["command"][2])
        self.assertEqual(used, set(volumes))
        self.assertEqual(volumes["job"]["configMap"]["name"], self.documents["ConfigMap"]["metadata"]["name"])
        self.assertEqual(volumes["work"]["persistentVolumeClaim"]["claimName"],
                         self.documents["PersistentVolumeClaim"]["metadata"]["name"])
        failed = {str(v) for r in self.job["podFailurePolicy"]["rules"] if r["action"] == "FailJob"
                  for v in r["onExitCodes"]["values"]}
        self.assertEqual(failed, CODES)
        version = re.search(r"project\(longhaul VERSION (\S+)", read(os.path.join(SOURCE, "CMakeLists.txt")))[1]
        images = {c["image"] for c in self.pod["containers"] + self.pod["initContainers"]}
        self.assertEqual(images, {f"longhaul:{version}"})
        for page in (os.path.join(DEPLOY, "Containerfile"), os.path.join(SOURCE, "docs", "operations.md")):
            self.assertIn(f"podman build -t longhaul:{version} -f deploy/Containerfile .", read(page))
        users = re.findall(r"--uid (\d+)", read(os.path.join(DEPLOY, "Containerfile")))
        self.assertEqual([int(u) for u in users], [self.pod["securityContext"]["runAsUser"]])

    def test_pod_0_waits_for_its_own_address(self):
        """Its name may be unknown at first, or lead to the pod before it; the others have nothing to wait for."""
        answers = os.path.join(self.folder, "answers")
        for name, body in (("getent", f"head -n 1 {answers}; sed -i 1d {answers}"), ("sleep", "")):
            with open(os.path.join(self.folder, name), "w") as f:
                f.write(f"#!/bin/sh\n{body}\n")
            os.chmod(os.path.join(self.folder, name), 0o755)
        command = self.pod["initContainers"][1]["command"]
        for index, left in (("0", 1), ("1", 5)):
            with open(answers, "w") as f:
                f.write("\n10.0.0.12 longhaul-0\n10.0.0.12 longhaul-0\n10.0.0.1 longhaul-0\n10.0.0.12 longhaul-0\n")
            environment = dict(os.environ, PATH=self.folder + ":" + os.environ["PATH"], JOB_COMPLETION_INDEX=index, POD_IP="10.0.0.1")
            self.assertEqual(subprocess.run(command, env=environment, timeout=60).returncode, 0)
            self.assertEqual(len(read(answers).splitlines()), left)

    def test_its_job_runs_as_two_machines(self):
        """Each pod's command line by a launcher of its own; --host says what the pod's name would."""
        work = os.path.join(self.folder, "work")
        shutil.copytree(DATA, os.path.join(work, "data"))
        keys = os.path.join(self.folder, "keys")
        os.mkdir(keys)
        ini = os.path.join(self.folder, "job.ini")
        with open(ini, "w") as f:
            f.write(self.documents["ConfigMap"]["data"]["job.ini"].replace("/job/", work + "/").replace("/keys", keys))
        # The init container's command, on a key made as the comment says.
        secret = os.path.join(self.folder, "secret.key")
        with open(secret, "w") as f:
            f.write(os.urandom(32).hex() + "\n")
        os.chmod(secret, 0o440)
        command = [w.replace("/secret/job.key", secret).replace("/keys", keys) for w in self.pod["initContainers"][0]["command"]]
        self.call(*command)
        words = [w.replace("/etc/longhaul/job.ini", ini) for w in self.container["args"]]
        few = []
        for setting in ("train.steps=6", "train.batch=4", "train.micro_batch=1", "train.sequence=32", "launch.address=127.0.0.1",
                        f"launch.port={free_port()}", "device.threads=1", "pipeline.stages=prepare train"):
            few += ["--set", setting]
        pods = []
        for host in ("longhaul-0", "longhaul-1"):
            out = open(os.path.join(self.folder, host + ".log"), "w")
            self.addCleanup(out.close)
            pods.append(subprocess.Popen([LONGHAUL, *words, *few, "--host", host], stdout=out, stderr=out,
                                         stdin=subprocess.DEVNULL))
        end = time.monotonic() + 200
        codes = [p.wait(max(1, end - time.monotonic())) for p in pods]
        said = "".join(read(os.path.join(self.folder, f"longhaul-{i}.log")) for i in (0, 1))
        self.assertEqual(codes, [0, 0], said)
        self.assertIn("step-000000000006", os.listdir(os.path.join(work, "out", "checkpoints")))


class Container(PlacesCase):
    def test_it_builds_and_copies_what_is_there(self):
        """No engine and no registry here: the file's own words. bare_debian does what it does, on a Debian of debootstrap."""
        text = read(os.path.join(DEPLOY, "Containerfile")).replace("\\\n", " ")
        self.assertEqual(re.findall(r"^FROM (.+)$", text, re.M), ["${BASE} AS build", "${BASE}"])
        self.assertIn('ENTRYPOINT ["/usr/bin/longhaul"]', text)
        presets = re.findall(r"--preset (\w+)", text)
        self.assertEqual(set(presets), {"release"})
        self.assertTrue(os.access(os.path.join(SOURCE, "scripts", "packages"), os.X_OK))


if __name__ == "__main__":
    # The Python of the peers where this one lacks the API's types.
    peers = os.environ.get("LONGHAUL_PEERS", os.path.join(SOURCE, "build", "peers", "bin", "python"))
    if kubernetes is None and os.access(peers, os.X_OK) and os.path.realpath(sys.prefix) != os.path.realpath(
            os.path.dirname(os.path.dirname(peers))):
        if subprocess.run([peers, "-c", "import kubernetes, yaml"], capture_output=True).returncode == 0:
            os.execv(peers, [peers, "-B", *sys.argv])
    main()
