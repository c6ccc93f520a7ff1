"""The real cuda plugin, end to end, where there is no GPU: over the stand-ins of libcuda and libcublasLt
(tests/fake_cuda), which `[device] libraries` names. Losses are those of `reference`; captured or not,
and at every stage of ZeRO, the bits are the same."""
import os
import re
import socket
import unittest

from cuda_case import CUDNN, KERNELS, LIBRARIES, TWO, CudaCase
from pipeline_case import BINARY, LOST, REFUSED, main


class Cuda(CudaCase):
    def test_losses_are_those_of_reference_and_captures_change_no_bit(self):
        job = self.prepared()
        self.train(job, "reference", device="reference")
        self.train(job, "captured", fake="seed=1")
        self.assert_curves_near("captured", "reference", 1e-4)
        self.train(job, "launched", "device.capture=no", fake="seed=2")
        self.assert_same("launched", "captured")

    def test_logits_in_bf16_have_the_losses_of_reference(self):
        job = self.prepared()
        sets = ("train.precision=bf16", "train.logits=compute")
        self.train(job, "reference", *sets, device="reference")
        self.train(job, "bf16", *sets)
        self.assert_curves_near("bf16", "reference", 3e-2)
        self.train(job, "two", *sets, "optimizer.plugin=zero2", "parallel.accumulation=breadth", *TWO, fake="gpus=2")
        self.assert_curves_near("two", "bf16", 1e-3)

    def test_a_resume_goes_on_with_the_same_bits(self):
        """A step is five launches of graphs, but two in the first, whose lists are captured by their second runs;
        that of step 3's update fails. What is saved of step 2 is copied before it, beside the passes; where one of
        those fails and the device still answers, the rest is copied then."""
        job = self.prepared()
        self.train(job, "whole")
        self.train(job, "early", "checkpoint.every=2", fake="fail=cuGraphLaunch:9:214", code=LOST)
        self.assertTrue(os.path.isdir(self.step_folder(2, "early")))
        self.train(job, "early", "checkpoint.every=2", flags=["--resume"])
        self.assert_same("early", "whole")
        self.train(job, "parts", "checkpoint.every=2", fake="fail=cuGraphLaunch:12:214", code=LOST)
        self.assertTrue(os.path.isdir(self.step_folder(2, "parts")))
        self.train(job, "parts", "checkpoint.every=2", flags=["--resume"])
        self.assert_same("parts", "whole")

    def test_no_memory_for_a_captured_list_leaves_it_launched(self):
        """No plan counts what a driver takes for a graph, and which calls one captures is the driver's affair. Alone,
        and with transfers between ranks in the lists."""
        job = self.prepared()
        self.train(job, "whole")
        for folder, call in (("poor", "cuGraphInstantiate"), ("refused", "cuStreamBeginCapture")):
            fail = "fail=cuGraphInstantiateWithFlags:2:2" if folder == "poor" else "fail=cuStreamBeginCapture_v2:2:900"
            said = self.train(job, folder, fake=fail, captures=False)
            self.assertRegex(said, r"(?m)%s.*; these calls are launched one by one from here on$" % call)
            self.assert_same(folder, "whole")
        sets = ("optimizer.plugin=zero2", *TWO)
        self.train(job, "two", *sets, fake="gpus=2")
        for folder, fail in (("poor_two", "cuGraphInstantiateWithFlags:2:2"),
                             ("refused_two", "cuStreamBeginCapture_v2:2:900")):
            self.train(job, folder, *sets, fake="gpus=2 fail=" + fail, captures=False)
            self.assert_same(folder, "two")

    def choices(self, folder):
        """The products of a checkpoint, by call."""
        with open(os.path.join(self.step_folder(3, folder), "manifest.json")) as f:
            text = f.read()
        return dict(re.findall(r"(matmul [^=\\]*) = (matmul\.\S+\.cublaslt \d+)", text))

    def said(self, folder, rank=0):
        name = "train.log" if rank == 0 else "rank-%d.log" % rank
        with open(self.path(folder, name)) as f:
            return re.findall(r"tune: (.*)", f.read())

    def test_timed_choices_are_kept_and_are_those_of_all_ranks(self):
        """The library's first candidate is slow here, so that who takes the time takes the second."""
        os.environ["XDG_CACHE_HOME"] = self.path("cache")
        self.addCleanup(os.environ.pop, "XDG_CACHE_HOME")
        job = self.prepared()
        self.train(job, "guessed")
        self.train(job, "timed", "device.tune=yes", fake="slow_us=500")
        guessed, timed = self.choices("guessed"), self.choices("timed")
        self.assertEqual(set(guessed), set(timed))
        self.assertGreater(len(timed), 4)
        # A machine that others use may well delay one or the other.
        self.assertGreater(sum(timed[call] != guessed[call] for call in timed), 0.7 * len(timed))
        kept, = os.listdir(self.path("cache", "longhaul"))
        first, last = self.said("timed")
        self.assertRegex(first, r"^%d kernels timed in \d+\.\d s$" % len(timed))
        self.assertEqual(last, "rank 0 has %d kernels as rank 0 timed them" % len(timed))

        # Nothing is timed anew, were the other one the slow one now; and a resume needs no file.
        self.train(job, "again", "device.tune=yes", fake="seed=2")
        self.assertEqual(self.choices("again"), timed)
        self.assertEqual(self.said("again"), [last])
        self.assert_same("again", "timed")
        self.train(job, "parts", "checkpoint.every=2", "train.steps=2", "device.tune=yes")
        refused = self.train(job, "parts", flags=["--resume"], code=REFUSED)
        self.assertIn("device.tune", refused)
        self.train(job, "parts", "device.tune=yes", flags=["--resume"])
        self.assertEqual(self.choices("parts"), timed)

        # Of ranks none but 0 has the file or the time.
        os.remove(self.path("cache", "longhaul", kept))
        self.train(job, "two", "optimizer.plugin=zero1", "device.tune=yes", *TWO,
                   fake="gpus=2 slow_us=500")
        self.assertEqual(len(self.said("two")), 2)
        self.assertEqual(self.said("two", 1),
                         ["rank 1 has %d kernels as rank 0 timed them" % len(self.choices("two"))])

        # What is no such file, or says what the library does not offer, is timed anew.
        path = self.path("cache", "longhaul", kept)
        with open(path) as f:
            text = f.read()
        for number, damaged in enumerate(("longhaul kernels 2\n" + text, re.sub(r"\d+\n", "7\n", text))):
            head = text[:text.index("matmul")]
            if number == 1:
                damaged = head + damaged[damaged.index("matmul"):]
            with open(path, "w") as f:
                f.write(damaged)
            folder = "damaged%d" % number
            self.train(job, folder, "device.tune=yes", fake="slow_us=500")
            self.assertEqual(set(self.choices(folder)), set(timed))
            self.assertEqual(len(self.said(folder)), 2, folder)

    def test_two_ranks_are_the_same_at_every_stage_of_zero(self):
        job = self.prepared()
        self.train(job, "one")
        for stage in range(4):
            folder = "two%d" % stage
            where = ["device.index=0"] if stage % 2 == 0 else []
            self.train(job, folder, "optimizer.plugin=zero%d" % stage,
                       "parallel.accumulation=breadth", *TWO, *where,
                       fake="gpus=2 seed=%d" % stage)
            self.assert_curves_near(folder, "one", 1e-4)
            if stage > 0:
                self.assert_same(folder, "two0")

    def test_products_that_share_an_input_are_one(self):
        """At widths whose columns begin at whole places of the device, 256 bytes."""
        job = self.small_job(model={"hidden": 128, "ffn": 192}, device={"threads": None},
                             train={"steps": 3, "batch": 2, "micro_batch": 1})
        self.run_longhaul("prepare", job)
        self.train(job, "reference", device="reference")
        self.train(job, "one")
        self.assert_curves_near("one", "reference", 1e-4)
        self.train(job, "cut", "optimizer.plugin=zero3", *TWO, fake="gpus=2")
        self.assert_curves_near("cut", "reference", 1e-4)

    def test_a_gpu_that_fails_in_a_step_is_named(self):
        job = self.prepared()
        said = self.train(job, "fails", "checkpoint.every=1", fake="fail=work:900:214", code=LOST)
        for text in ("GPU 0 (Fake GPU 9.0, 0000:1b:00.0) of rank 0 on %s failed: " % socket.gethostname(),
                     "CUDA_ERROR_ECC_UNCORRECTABLE (214)", "last queued: ", "NVRM: Xid"):
            self.assertIn(text, said)
        said = self.train(job, "two", *TWO, fake="gpus=2 fail=work:900:719", code=LOST)
        self.assertRegex(said, r"GPU [01] \(Fake GPU 9\.0, 0000:1[bc]:00\.0\) of rank [01] on ")

    def test_what_is_missing_is_said(self):
        job = self.prepared()
        for number, (fake, sets, text) in enumerate((
                ("gpus=0", [], "finds no GPU"),
                ("capability=75", [], "has compute capability 7.5, 8.0 (A100) or later is needed"),
                ("driver=11080", [], "supports CUDA 11.8, 12.0 or later is needed"),
                ("cublas=110900", [], "libcublasLt.so.13, looked for in %s, then where the system's loader looks, is cuBLASLt "
                                      "11.9, this plugin knows 12 and 13" % LIBRARIES),
                ("driver=12040", [], "supports CUDA 12.4, libcublasLt.so.13 (cuBLASLt 13.0) needs "
                                     "13.0"),
                ("gpus=1", ["device.index=1"], "[device] index is 1, this machine has 1 GPU"),
                ("gpus=2", ["device.index=2"], "[device] index is 2, this machine has 2 GPUs"),
                ("gpus=1", ["device.index=first"], "[device] index is 'first', expected auto or the number of a GPU"),
                ("gpus=1", TWO, "this machine has 1 GPU and rank 1 would be the one to use number 1"),
                ("fail=cuInit:1:34", [], "libcuda.so.1 is the stub that programs are linked with"),
                ("fail=cuInit:1:803", [], "the kernel module of NVIDIA's driver are of different versions"),
                ("fail=cuInit:1:999", [], "NVIDIA's driver fails in cuInit: "),
        )):
            folder = "refused%d" % number
            said = self.train(job, folder, *sets, fake=fake, code=REFUSED)
            self.assertIn(text, said)
            self.assertFalse(os.path.exists(self.path(folder, "metrics.jsonl")))
            self.assertFalse(os.path.exists(self.path(folder, "checkpoints")))

    def test_a_call_without_a_kernel_has_each_rows_reason(self):
        """No row takes heads of more than 256 components."""
        job = self.prepared()
        sets = ["model.hidden=320", "model.heads=1", "model.kv_heads=1"]
        for folder, more, shape in (("single", [], "F32[32,320]"), ("half", ["train.precision=bf16"], "BF16[32,320]")):
            said = self.train(job, folder, *sets, *more, code=REFUSED)
            for text in ("device cuda has no kernel for attention ", shape,
                         "attention: 1 heads of 320 and 320 components; heads have at most 256"):
                self.assertIn(text, said)
            self.assertNotIn("cuda: cuda:", said)
            if CUDNN and folder == "single":
                self.assertIn("cuDNN: attention in BF16 and F16 only", said)
            self.assertFalse(os.path.exists(self.path(folder, "metrics.jsonl")))

    def test_heads_that_a_block_has_no_shared_memory_for_are_refused(self):
        """Blocks of 8.0 and 9.0 hold the gradient of F32 heads of 256 components, those of 8.6 and 8.9 do not."""
        job = self.prepared()
        sets = ["model.hidden=256", "model.heads=1", "model.kv_heads=1", "train.steps=1"]
        said = self.train(job, "small", *sets, fake="capability=86", code=REFUSED)
        self.assertIn("device cuda has no kernel for attention_grad ", said)
        self.assertRegex(said, r"attention_grad: heads of 256 and 256 components take \d+ bytes of shared memory, a block of this "
                               r"GPU has 101376")
        self.assertFalse(os.path.exists(self.path("small", "metrics.jsonl")))
        self.train(job, "fits", *sets, fake="capability=80")

    def test_too_little_memory_is_said_before_any_is_taken(self):
        job = self.prepared()
        said = self.train(job, "small", "train.micro_batch=4", fake="memory_mib=1", code=REFUSED)
        self.assertRegex(said, r"Fake GPU 9\.0 0000:1b:00\.0 has 1\.00 MiB free, this rank needs 1\.\d\d MiB: parameters .*, "
                               r"gradients .*, activations .*; with \[train\] micro_batch = 1 some .*, which would fit; "
                               r"with \[train\] recompute = full some .*, which would not fit")
        self.assertFalse(os.path.exists(self.path("small", "metrics.jsonl")))
        self.train(job, "fits", "train.micro_batch=1", "train.steps=1", fake="memory_mib=2")

    def test_ranks_that_share_a_gpu_are_added_up_before_any_memory_is_taken(self):
        """Each alone would fit."""
        job = self.prepared()
        sets = ["train.micro_batch=2", "train.steps=1"] + TWO
        said = self.train(job, "shared", "device.index=0", *sets, fake="gpus=2 memory_mib=2", code=REFUSED)
        self.assertRegex(said, r"Fake GPU 9\.0 0000:1b:00\.0 has 2\.00 MiB free, the 2 ranks on it need [23]\.\d\d MiB, this one "
                               r"1\.\d\d MiB: parameters .*; with \[train\] micro_batch = 1 some .*, which would( not)? fit; with")
        self.assertFalse(os.path.exists(self.path("shared", "metrics.jsonl")))
        self.train(job, "apart", *sets, fake="gpus=2 memory_mib=2")

    def test_another_gpu_or_library_is_refused_at_a_resume(self):
        job = self.prepared()
        self.train(job, "moved")
        for fake, text in (("cublas=130100", "cuBLASLt 130100"), ("capability=100", "compute capability 10.0")):
            said = self.train(job, "moved", "train.steps=5", fake=fake, flags=["--resume"], code=REFUSED)
            for part in ("was made on 'Fake GPU 9.0, compute capability 9.0", "cuBLASLt 130002", text,
                         "set [train] same_bits = no to go on"):
                self.assertIn(part, said)
            self.assertEqual([row[0] for row in self.curve("moved")][-1], 3)
        self.train(job, "moved", "train.steps=5", "train.same_bits=no", fake="capability=100", flags=["--resume"])
        self.assertEqual([row[0] for row in self.curve("moved")][-1], 5)

    def test_other_commands_need_no_driver(self):
        job = self.prepared()
        for words in (["check", job, "--set", "device.plugin=cuda", "--set", "device.libraries=/nowhere"], ["plugins"],
                      ["help", "cuda"]):
            self.run_longhaul(*words)

    def test_a_library_that_is_missing_is_named_with_where_it_was_looked_for(self):
        job = self.prepared()
        none = self.folder_without("libcuda.so.1")
        said = self.train(job, "no_driver", libraries=none, code=REFUSED, LD_LIBRARY_PATH=none)
        self.assertIn("no NVIDIA driver: libcuda.so.1 was looked for in %s, then where the system's loader looks ([device] "
                      "libraries" % none, said)
        none = self.folder_without("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")
        said = self.train(job, "no_cublas", libraries=none, code=REFUSED, LD_LIBRARY_PATH=none)
        self.assertIn("the library libcublasLt.so.13 or libcublasLt.so.12 (cuBLASLt, of the CUDA toolkit or of PyTorch's "
                      "wheels) was looked for in %s, then" % none, said)
        self.assertIn("[device] libraries", said)
        for folder in ("no_driver", "no_cublas"):
            self.assertFalse(os.path.exists(self.path(folder, "metrics.jsonl")))

    def test_kernels_that_the_driver_does_not_take_are_told(self):
        """A build without nvcc has none at all."""
        job = self.prepared()
        for code in (209, 200):
            said = self.train(job, "kernels%d" % code, fake="fail=cuModuleLoadData:1:%d" % code, code=REFUSED)
            self.assertIn("the plugin's kernels have no code for GPU 0 (Fake GPU 9.0, compute capability 9.0) that a driver for CUDA "
                          "13.0 takes: update the driver" if KERNELS else "this build has no GPU kernels: nvcc was not found", said)

    @unittest.skipUnless(CUDNN, "a build without cuDNN's headers")
    def test_attention_is_cudnns_where_it_can_be(self):
        job = self.prepared()
        half = ["train.precision=bf16", "model.hidden=64"]
        self.train(job, "reference", *half, device="reference")
        self.train(job, "own", *half, "device.attention=own")
        self.train(job, "cudnn", *half, fake="seed=1")
        self.train(job, "launched", *half, "device.capture=no", fake="seed=2")
        self.assert_curves_near("own", "reference", 3e-2)
        self.assert_curves_near("cudnn", "reference", 3e-2)
        self.assert_same("launched", "cudnn")
        said = self.train(job, "fails", *half, fake="fail=cudnnBackendExecute:3:999", code=REFUSED)
        self.assertRegex(said, r"GPU 0 \(Fake GPU 9\.0\): attention(_grad)? of libcudnn\.so\.9: ")
        said = self.train(job, "cudnn", *half, "device.attention=own", "train.steps=5", flags=["--resume"],
                          code=REFUSED)
        self.assertIn(", cuDNN 92500', this is ", said)

    @unittest.skipUnless(CUDNN, "a build without cuDNN's headers")
    def test_cudnn_that_is_missing_or_of_another_version_is_named(self):
        job = self.prepared()
        half = self.folder_without("libcudnn.so.9", "libcudnn.so")
        said = self.train(job, "missing", libraries=half, code=REFUSED, LD_LIBRARY_PATH=half)
        for text in ("the library libcudnn.so.9 (cuDNN, of NVIDIA or of PyTorch's wheels) was looked for in " + half,
                     "not found: [device] libraries names folders to look in first", "attention = own"):
            self.assertIn(text, said)
        said = self.train(job, "other", fake="cudnn=100100", code=REFUSED)
        for text in ("libcudnn.so.9, looked for in " + LIBRARIES, "is cuDNN 10.1, this plugin knows 9: [device] libraries",
                     "attention = own does without it"):
            self.assertIn(text, said)
        os.remove(os.path.join(half, "libcudnn.so.9"))
        os.symlink(os.path.join(os.path.dirname(os.path.dirname(BINARY)), "lib", "longhaul", "optimizers", "zero0.so"),
                   os.path.join(half, "libcudnn.so.9"))
        said = self.train(job, "none", libraries=half, code=REFUSED)
        self.assertIn("libcudnn.so.9, looked for in %s, then where the system's loader looks, is no cuDNN: [device] libraries" % half,
                      said)
        for folder in ("missing", "other", "none"):
            self.assertFalse(os.path.exists(self.path(folder, "metrics.jsonl")))
        self.train(job, "own", "device.attention=own", "train.steps=1", libraries=half, LD_LIBRARY_PATH=half)


if __name__ == "__main__":
    main()
