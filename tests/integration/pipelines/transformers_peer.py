"""One process of the Python of the peers for all that a test asks of PyTorch and Transformers: importing them takes some five
seconds of a processor, which is longer than most answers do."""
import json
import os
import subprocess
import tempfile

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "transformers_probe.py")


class Peer:
    def __init__(self, python):
        self.python, self.process, self.said = python, None, None

    def ask(self, **request):
        """What transformers_probe.py answers. Where it has ended, as a folder could not be loaded, RuntimeError has its words, and
        what is asked next begins another."""
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.said = tempfile.TemporaryFile("w+")
            self.process = subprocess.Popen([self.python, "-B", PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.said, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.said.seek(0)
            raise RuntimeError(self.said.read()[-3000:])
        return json.loads(line)

    def run(self, *words, models=()):
        """Exit code, stdout and stderr of a script with its arguments, in a fork of that process. models: classes of Transformers that
        are imported before, so that each script which needs them does not."""
        with tempfile.TemporaryDirectory() as folder:
            names = [os.path.join(folder, name) for name in ("out", "err")]
            code = self.ask(run=words, out=names[0], err=names[1], models=list(models))["code"]
            texts = []
            for name in names:
                with open(name, encoding="utf-8", errors="replace") as f:
                    texts.append(f.read())
        return code, *texts

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.said.close()
            self.process = None
