"""Several ranks on the real cuda plugin over the stand-ins of NVIDIA's libraries: through the host, and by
NCCL (`[transport.node] collectives = nvlink`)."""
import json
import os
import re
import signal
import socket
import time

from cuda_case import LIBRARIES, TWO, CudaCase
from pipeline_case import LOST, REFUSED, TORTURE, main, read_json_lines, set_flags

FOUR = ["launch.ranks_per_node=4"]
SITES = ["site.a.hosts=localhost:2", "site.b.hosts=localhost:2"]
# One machine under two names: two machines of one site.
NODES = ["site.a.hosts=localhost:2, %s:2" % socket.gethostname(), "parallel.inside=node"]
NCCL = ["transport.node.collectives=nvlink", "transport.node.libraries=" + LIBRARIES]
# A rank on each of two such machines, over the stand-in of libibverbs.
CARDS = ["site.a.hosts=localhost:1, %s:1" % socket.gethostname(), "transport.site.plugin=ib",
         "transport.site.security=plain"]
FAKE_VERBS = os.environ.get("LONGHAUL_FAKE_VERBS", "")


def children_of(parent):
    children = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == parent:
                    children.append(int(pid))
        except (OSError, IndexError):
            continue
    return children


class CudaRanks(CudaCase):
    def ranks(self, job, folder, world, stage, order, *sets, seed=1, **how):
        return self.train(job, folder, "optimizer.plugin=zero%d" % stage,
                          "parallel.accumulation=" + order, *world, *sets,
                          fake="gpus=4 seed=%d" % seed, **how)

    def test_four_ranks_are_the_same_at_every_stage_captured_or_not(self):
        job = self.prepared()
        self.train(job, "one")
        for stage in range(4):
            folder = "four%d" % stage
            self.ranks(job, folder, FOUR, stage, "breadth",
                       "device.capture=" + ("yes" if stage % 2 else "no"), seed=stage)
            self.assert_curves_near(folder, "one", 1e-4)
            if stage > 0:
                self.assert_same(folder, "four0")

    def test_gathered_values_go_from_gpu_to_gpu_by_cards(self):
        """With the bits of mirrors. In the first step the driver loads code meanwhile, and until all that is queued is done it
        holds up whoever tells it of what has arrived."""
        job = self.prepared()
        for stage in (1, 3):
            for kind, dmabuf, text in (
                    ("mirrored", 0, "this driver offers no dma-buf"),
                    ("direct", 1, "gathered values travel in the device's own memory, by dma-buf: ")):
                said = self.train(job, "%s%d" % (kind, stage), "optimizer.plugin=zero%d" % stage, *CARDS,
                                  fake="gpus=1 dmabuf=%d" % dmabuf, LD_LIBRARY_PATH=FAKE_VERBS, FAKE_VERBS="")
                self.assertIn(text, said)
            self.assert_same("direct%d" % stage, "mirrored%d" % stage)

    def test_nccl_gives_the_losses_of_the_host(self):
        job = self.prepared()
        cases = [(world, stage, order)
                 for world in (TWO, FOUR, SITES, NODES) for stage in range(4) for order in ("depth", "breadth")]
        if not TORTURE:
            cases = [(TWO, 0, "depth"), (FOUR, 3, "breadth"), (SITES, 2, "breadth"), (NODES, 1, "depth")]
        for number, (world, stage, order) in enumerate(cases):
            apart = world is SITES or world is NODES
            more = ["optimizer.cut=site"] if apart and stage > 0 else []
            names = ["%s%d" % (kind, number) for kind in ("host", "nccl", "again")]
            self.ranks(job, names[0], world, stage, order, "comm.bits=ordered", *more)
            said = self.ranks(job, names[1], world, stage, order, *NCCL, *more, seed=number)
            whole = not apart or more
            self.assertIn("collectives of %d ranks of a machine by nvlink" % (4 if world is FOUR else 2)
                          if whole else "nvlink is not used", said)
            self.ranks(job, names[2], world, stage, order, *NCCL, "device.capture=no", *more,
                       seed=number + 7)
            self.assert_curves_near(names[1], names[0], 1e-5)
            self.assert_same(names[2], names[1])

    def test_what_a_device_stands_for_nccl_is_exposed(self):
        """An event in front of each wait and the one behind the transfer say it, when the transfer is queued for the second time
        after: the host waits for none of it. Of eight steps six are counted so, with 30 ms at least, as the update needs
        the last gradient's sum. A device stands at one wait at a time."""
        job = self.prepared()
        self.train(job, "nccl", "optimizer.plugin=zero2", *TWO, *NCCL, "train.steps=8", fake="gpus=2 nccl_us=30000")
        rows = [row for row in read_json_lines(self.path("nccl", "metrics.jsonl")) if "exposed" in row]
        self.assertEqual(len(rows), 8)
        stood = {link: sum(row["exposed"][link] for row in rows) for link in ("node", "site", "wan")}
        self.assertGreater(stood["node"], 0.15)
        self.assertLess(stood["node"], sum(row["seconds"] for row in rows))
        self.assertEqual((stood["site"], stood["wan"]), (0, 0))

    def test_a_resume_with_sums_of_another_order_is_refused(self):
        """`bits` unset is ordered beside NCCL, and the host's sums, in whatever order, are others."""
        job = self.prepared()
        self.train(job, "nccl", *TWO, *NCCL, fake="gpus=2")
        for more, now in (([], "canonical"), (["comm.bits=ordered"], "ordered")):
            said = self.train(job, "nccl", *TWO, *more, "train.steps=5", fake="gpus=2", flags=["--resume"], code=REFUSED)
            self.assertIn("was made with 'comm.bits = ordered, by nvlink', now it is 'comm.bits = %s': that would be another run" % now,
                          said)
        self.train(job, "nccl", *TWO, *NCCL, "train.steps=5", fake="gpus=2", flags=["--resume"])
        self.train(job, "whole", *TWO, *NCCL, "train.steps=5", fake="gpus=2 seed=2")
        self.assertEqual(self.curve("nccl"), self.curve("whole"))

    def test_nccl_that_fails_in_a_step_is_named(self):
        job = self.prepared()
        said = self.train(job, "fails", *TWO, *NCCL, fake="gpus=2 fail=ncclAllReduce:5:3", code=LOST)
        self.assertRegex(said, r"GPU [01] \(Fake GPU 9\.0, 0000:1[bc]:00\.0\) of rank [01] on %s, number [01] of 2: NCCL fails in "
                               r"ncclAllReduce: .* \(3\); last queued: \w+" % re.escape(socket.gethostname()))

    def test_what_can_not_be_is_said(self):
        job = self.prepared()
        for number, (fake, sets, text) in enumerate((
                ("", NCCL + ["comm.bits=canonical"],
                 "bits = canonical: [transport.node] collectives = nvlink adds in an order of its own; expected "
                 "[comm] bits = ordered"),
                ("", ["transport.node.plugin=nvlink"],
                 "it carries no messages; name it as collectives = nvlink in [transport.node]"),
                ("", ["transport.node.collectives=shm"], "it makes no collectives"),
                ("", NCCL[:1] + ["transport.node.library=x"], "did you mean 'libraries'?"),
                ("nccl=20500", NCCL, "libnccl.so.2, looked for in %s, then where the system's loader looks, is NCCL 2.5, this "
                 "plugin knows 2.14 and later of 2" % LIBRARIES),
                ("nccl=30000", NCCL, "is NCCL 3.0"),
        )):
            said = self.train(job, "refused%d" % number, *TWO, *sets, fake="gpus=2 " + fake, code=REFUSED)
            self.assertIn(text, said)
        half = self.folder_without("libnccl.so.2")
        said = self.train(job, "no_nccl", *TWO, NCCL[0], "transport.node.libraries=" + half,
                          fake="gpus=2", code=REFUSED, LD_LIBRARY_PATH=half)
        self.assertIn("the library libnccl.so.2 (NCCL, of NVIDIA or of PyTorch's wheels) was looked for in "
                      + half, said)
        self.assertFalse(os.path.exists(self.path("no_nccl", "metrics.jsonl")))

    def test_a_plan_counts_the_workspace(self):
        """Two ranks' pieces of zero3 are no run of memory, so they are packed; what travels by the host has
        mirrors there instead."""
        job = self.prepared()
        memory = []
        for more in ([], NCCL):
            texts = TWO + more + ["device.plugin=cuda", "device.libraries=" + LIBRARIES,
                                  "optimizer.plugin=zero3"]
            words = set_flags(*texts)
            said, _ = self.run_longhaul("plan", job, "--json", *words,
                                        env=dict(os.environ, LH_FAKE_CUDA="gpus=2"))
            memory.append(json.loads(said)["memory"])
        packed = max(memory[1]["gathered blocks"], memory[1]["buckets"]) // 4
        self.assertGreater(memory[1]["transfers"], packed)
        self.assertLess(memory[1]["pinned"], memory[0]["pinned"])

    def test_a_rank_that_dies_leaves_nobody_waiting(self):
        job = self.prepared()
        for number, world in enumerate((TWO, SITES)):
            folder = "dies%d" % number
            self.assert_dies(job, folder, world)

    def assert_dies(self, job, folder, world):
        self.link_data(folder)
        texts = ["pipeline.folder=" + folder, "device.plugin=cuda", "device.libraries=" + LIBRARIES,
                 "optimizer.plugin=zero2", "train.steps=100000"] + world + NCCL
        runner = self.start("train", job, *set_flags(*texts),
                            env=dict(os.environ, LH_FAKE_CUDA="gpus=4 delay_us=20"))
        self.assertTrue(self.wait_for(lambda: os.path.exists(self.path(folder, "metrics.jsonl")) and
                                      len(self.curve(folder)) > 3, runner))
        os.kill(max(children_of(runner.pid)), signal.SIGKILL)
        since = time.monotonic()
        _, said = runner.communicate(timeout=60)
        self.assertEqual(runner.returncode, LOST, said)
        self.assertLess(time.monotonic() - since, 30)


if __name__ == "__main__":
    main()
