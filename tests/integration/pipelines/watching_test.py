"""Figures of a run over HTTP and as a file, by a plain client, hostile ones and a real Prometheus; the report of a run
that goes on."""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

from pipeline_case import REFUSED, SOURCE, TERMINATED, PipelineCase, log_lines, main, read_json_lines

PAGE = re.compile(r"\A(# (HELP|TYPE) longhaul_\w+ .+|longhaul_(?P<name>\w+)\{(?P<labels>run=\"[^\"]*\"[^}]*)\} (?P<value>\S+))\Z")


def figures(text):
    """name or name,label="x" -> value, without the run's own label."""
    found = {}
    for line in text.splitlines():
        match = PAGE.match(line)
        assert match, line
        if match["name"]:
            found[match["name"] + re.sub(r'\Arun="[^"]*"', "", match["labels"])] = float(match["value"])
    return found


class Watching(PipelineCase):
    def run_of(self, steps=1000000, **changes):
        """A training that has made steps, and the port of its figures."""
        watch = {"metrics": "127.0.0.1:0", "textfile": self.path("small.prom"), "report": "1s"}
        job = self.small_job(train={"steps": steps, "evaluate_every": 5, "evaluate_batches": 1}, watch=watch, **changes)
        self.run_longhaul("prepare", job)
        process = self.start("train", job, stderr=open(self.path("said"), "w"))
        log = self.path("out", "train.log")
        port = lambda: re.findall(r"figures for Prometheus: port (\d+), /metrics", "\n".join(log_lines(log)))
        self.assertTrue(self.wait_for(lambda: os.path.exists(log) and port(), process, seconds=300, pause=0.05))
        self.port = int(port()[0])
        self.wait_for(lambda: self.scrape().get("step", 0) > 0, process, seconds=300, pause=0.05)
        return process

    def page(self, path="/metrics", method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer, body

    def scrape(self):
        return figures(self.page()[1])

    @staticmethod
    def planned(report):
        """Kinds of memory and what is planned of each for rank 0, as a report has them."""
        with open(report) as f:
            memory = f.read().split("<h2>Memory</h2>")[1]
        return dict(re.findall(r'<tr><td>([^<]+)</td><td class="n">([^<]+)</td>', memory))

    def stop(self, process):
        self.run_longhaul("stop", "out")
        self.assertEqual(process.wait(timeout=60), TERMINATED)

    def test_figures_are_those_of_the_run(self):
        process = self.run_of()
        self.wait_for(lambda: "free_bytes" in self.scrape(), process)  # looked up each second, not for a scrape
        answer, _ = self.page()
        self.assertEqual((answer.status, answer.getheader("Content-Type")),
                         (200, "text/plain; version=0.0.4; charset=utf-8"))
        first = self.scrape()
        rows = {row["step"]: row for row in read_json_lines(self.path("out", "metrics.jsonl")) if "loss" in row}
        row = rows[int(first["step"])]
        for name, key in (("loss", "loss"), ("learning_rate", "learning_rate"), ("gradient_norm", "gradient_norm"),
                          ("tokens", "tokens"), ("tokens_total", "tokens"), ("tokens_per_second", "tokens_per_s")):
            self.assertAlmostEqual(first[name], row[key], delta=1e-8 * abs(row[key]), msg=name)
        made = [rows[step] for step in range(1, row["step"] + 1)]
        self.assertAlmostEqual(first["steps_seconds_total"], sum(r["seconds"] for r in made), places=5)
        self.assertAlmostEqual(first['part_seconds_total,part="compute"'], sum(r["parts"]["compute"] for r in made), places=5)
        self.assertEqual((first["running"], first["ranks"], first["planned_steps"]), (1, 1, 1000000))
        room = os.statvfs(self.path("out"))
        self.assertAlmostEqual(first["free_bytes"], room.f_bavail * room.f_frsize, delta=1 << 30)
        self.assertGreater(first["evaluation_loss"], 0)
        self.wait_for(lambda: self.scrape()["tokens_total"] > first["tokens_total"], process, pause=0.02)
        # The same as a file, and the report, while the run goes on.
        self.wait_for(lambda: os.path.exists(self.path("small.prom")), process)
        with open(self.path("small.prom")) as f:
            self.assertEqual(set(figures(f.read())) - set(first), set())
        report = self.path("out", "report.html")
        self.wait_for(lambda: os.path.exists(report), process, pause=0.05)
        self.assertIsNone(process.poll())
        with open(report) as f:
            self.assertIn("<svg", f.read())
        self.stop(process)
        with open(self.path("small.prom")) as f:
            self.assertEqual(figures(f.read())["running"], 0)
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".tmp")], [])

    def test_what_else_is_asked(self):
        process = self.run_of()
        answer, body = self.page(method="HEAD")
        self.assertEqual((answer.status, body), (200, ""))
        self.assertGreater(int(answer.getheader("Content-Length")), 1000)
        for method, path, status in (("GET", "/", 404), ("GET", "/metrics/..", 404), ("POST", "/metrics", 405)):
            self.assertEqual(self.page(path, method)[0].status, status)
        for sent, status in ((b"\x16\x03\x01\x02\n\n", b"400"), (b"GET /metrics\r\n\r\n", b"400"), (b"a" * 5000, b"431")):
            with socket.create_connection(("127.0.0.1", self.port), timeout=20) as s:
                s.sendall(sent)
                self.assertEqual(s.recv(64).split()[1], status)
        self.stop(process)

    def test_who_says_nothing_keeps_nobody_out(self):
        process = self.run_of()
        before = threading.active_count()
        held = [socket.create_connection(("127.0.0.1", self.port), timeout=20) for _ in range(200)]
        for s in held[::2]:
            s.send(b"GET /metrics HTTP/1.1\r\nX: ")
        begin = time.monotonic()
        step = self.scrape()["step"]
        print("a scrape beside 200 silent connections: %.0f ms" % (1000 * (time.monotonic() - begin)))
        # They are closed, the last of them after five seconds.
        end = time.monotonic() + 30
        for s in held:
            s.settimeout(max(0.1, end - time.monotonic()))
            try:
                self.assertEqual(s.recv(1), b"")
            except ConnectionResetError:
                pass
            s.close()
        self.assertGreater(self.scrape()["step"], step)
        self.assertEqual(threading.active_count(), before)
        self.stop(process)

    def test_several_ranks(self):
        process = self.run_of(launch={"ranks_per_node": 2})
        with socket.create_connection(("127.0.0.1", self.port)):
            page = self.scrape()
        self.assertEqual((page["ranks"], page["strangers_total"]), (2, 0))
        self.assertGreater(page['exposed_seconds_total,link="node"'], 0)
        self.assertEqual(page['exposed_seconds_total,link="wan"'], 0)
        self.wait_for(lambda: self.scrape()['control_bytes_total,direction="received"'] > 0, process, pause=0.1)
        # The report says while it trains what it says at the end of the memory planned for transfers.
        report = self.path("out", "report.html")
        self.wait_for(lambda: os.path.exists(report), process, pause=0.05)
        early = self.planned(report)
        self.stop(process)
        self.assertIn("transfers", early)
        self.assertEqual(early["transfers"], self.planned(report)["transfers"])

    def test_an_address_that_is_taken_is_a_warning(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            at = "127.0.0.1:%d" % taken.getsockname()[1]
            job = self.small_job(train={"steps": 3}, watch={"metrics": at})
            self.run_longhaul("prepare", job)
            _, said = self.run_longhaul("train", job)
            self.assertIn("warning: figures are not served: [watch] metrics = %s: cannot listen there: "
                          "Address already in use\n" % at, said)

    def test_a_file_that_cannot_be_written_is_one_warning(self):
        at = self.path("none", "small.prom")
        self.run_longhaul("prepare", self.small_job())
        job = self.small_job(train={"steps": 3}, watch={"textfile": at})
        _, said = self.run_longhaul("train", job)
        warning = "warning: [watch] textfile = %s: cannot be written: No such file or directory; " % at
        self.assertEqual(said.count(warning), 1, said)

    def test_what_check_refuses(self):
        self.run_longhaul("prepare", self.small_job())
        for key, value, sentence in (
                ("metrics", "9400", "metrics: '9400' is no address: HOST:PORT, [HOST]:PORT or :PORT was expected"),
                ("metrics", "a:99999", "metrics: 'a:99999' is no address: "),
                ("textfile", "figures", "a name that ends in .prom was expected")):
            job = self.small_job(watch={key: value})
            for command in ("check", "run"):
                _, said = self.run_longhaul(command, job, code=REFUSED)
                self.assertIn(sentence, said)

    def test_the_dashboard_asks_for_figures_that_there_are(self):
        process = self.run_of(site__tokyo={"hosts": "localhost:1"}, site__osaka={"hosts": "localhost:1"},
                              checkpoint={"every": 5, "keep": 2})
        self.wait_for(lambda: self.scrape().get("saved_step", 0) > 0, process, pause=0.1)
        found = self.scrape()
        room = os.statvfs(self.path("out", "checkpoints"))
        self.assertAlmostEqual(found["checkpoint_free_bytes"], room.f_bavail * room.f_frsize, delta=1 << 30)
        way = ',from="tokyo",to="osaka"'
        # Each step sums gradients of F32 over both: as many bytes come as go, more than the parameters take.
        sent, received = (found[f"link_{end}_bytes_total" + way] for end in ("sent", "received"))
        self.assertGreater(sent, 2 * found["parameters"] * found["step"])
        self.assertAlmostEqual(received / sent, 1, delta=0.2)
        self.assertIn("link_retransmitted_bytes_total" + way, found)
        # By all ranks of a site, told by each at the end of a step: here as many as rank 0 has sent, and what comes back.
        there, back = (found["border_sent_bytes_total" + w] for w in (way, ',from="osaka",to="tokyo"'))
        self.assertGreater(there, 2 * found["parameters"] * (found["step"] - 2))
        self.assertAlmostEqual(back / there, 1, delta=0.2)
        self.assertLess(found["link_now_round_trip_seconds" + way], 1)
        # Measured between machines alone.
        names = {name.split(",")[0] for name in found} | {"link_bytes_per_second", "link_round_trip_seconds", "border_round_trip_seconds"}
        with open(os.path.join(SOURCE, "examples", "grafana.json")) as f:
            board = json.load(f)
        asked = {name for panel in board["panels"] for target in panel["targets"]
                 for name in re.findall(r"longhaul_(\w+)", target["expr"])}
        self.assertGreater(len(asked), 15)
        self.assertEqual(asked - names, set())
        self.stop(process)

    def tool(self, name):
        unpacked = os.path.join(SOURCE, "build", "tools", "usr", "bin")  # by scripts/peers
        path = shutil.which(name, path=os.environ["PATH"] + os.pathsep + unpacked)
        if path is None:
            self.skipTest("no %s here (Debian's package prometheus has it; scripts/peers unpacks it)" % name)
        return path

    def test_promtool_has_nothing_to_say(self):
        promtool = self.tool("promtool")
        process = self.run_of(launch={"ranks_per_node": 2})
        done = subprocess.run([promtool, "check", "metrics"], input=self.page()[1], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        self.stop(process)

    def test_a_prometheus_scrapes_it(self):
        prometheus = self.tool("prometheus")
        process = self.run_of()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            own = free.getsockname()[1]
        self.write("prometheus.yml", "scrape_configs:\n- job_name: longhaul\n  scrape_interval: 1s\n"
                   "  static_configs:\n  - targets: ['127.0.0.1:%d']\n" % self.port)
        server = subprocess.Popen([prometheus, "--config.file=" + self.path("prometheus.yml"),
                                   "--storage.tsdb.path=" + self.path("tsdb"), "--web.listen-address=127.0.0.1:%d" % own],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.end, server)

        def ask(query):
            try:
                with urllib.request.urlopen("http://127.0.0.1:%d/api/v1/query?query=%s" % (own, query), timeout=20) as f:
                    return json.load(f)["data"]["result"]
            except OSError:
                return []
        self.wait_for(lambda: ask("longhaul_step"), server, pause=0.2)
        (found,) = ask("longhaul_step")
        self.assertEqual((found["metric"]["run"], found["metric"]["job"]), ("small", "longhaul"))
        self.assertGreater(float(found["value"][1]), 0)
        (up,) = ask("up")
        self.assertEqual(up["value"][1], "1")
        self.assertEqual({row["metric"]["part"] for row in ask("longhaul_part_seconds_total")},
                         {"data", "compute", "update", "evaluate", "save", "watch"})
        self.stop(process)


if __name__ == "__main__":
    main()
