"""What tests of the real cuda plugin share, where there is no GPU: trainings over the stand-ins of libcuda,
libcublasLt and libnccl (tests/fake_cuda), which `[device] libraries` names."""
import os

from pipeline_case import DONE, PipelineCase, logical, set_flags

LIBRARIES = os.environ.get("LONGHAUL_FAKE_CUDA", "")
CUDNN = os.environ.get("LONGHAUL_CUDNN", "")  # empty: the build found no headers of cuDNN
KERNELS = os.environ.get("LONGHAUL_GPU_KERNELS", "")  # empty: the build had no nvcc
TWO = ["launch.ranks_per_node=2"]


class CudaCase(PipelineCase):
    def prepared(self):
        job = self.small_job(train={"steps": 3, "batch": 4, "micro_batch": 1},
                             comm={"bucket": "16KiB"}, device={"threads": None})
        self.run_longhaul("prepare", job)
        return job

    def folder_without(self, *names):
        """With all of the stand-ins but these; what is no library hides what the machine itself may have,
        where LD_LIBRARY_PATH names the folder."""
        folder = self.path("without_" + names[0])
        os.makedirs(folder)
        for name in os.listdir(LIBRARIES):
            if name.startswith("lib") and name not in names:
                os.symlink(os.path.join(LIBRARIES, name), os.path.join(folder, name))
        for name in names:
            with open(os.path.join(folder, name), "w") as f:
                f.write("no library " * 100)
        return folder

    def train(self, job, folder, *sets, fake="", code=DONE, device="cuda", flags=(),
              libraries=LIBRARIES, captures=True, **environment):
        """Trains in a folder of its own; what it said. captures: no list may be left launched."""
        if not os.path.isdir(self.path(folder)):
            self.link_data(folder)
        texts = ("pipeline.folder=" + folder, "device.plugin=" + device) + sets
        if device == "cuda":
            texts += ("device.libraries=" + libraries,)
        words = set_flags(*texts)
        env = dict(os.environ, LH_FAKE_CUDA=("delay_us=20 lazy=1 " + fake).strip(), **environment)
        out, said = self.run_longhaul("train", job, *flags, *words, code=code, env=env)
        if captures:
            self.assertNotIn("launched one by one", out + said)
        return out + said

    def assert_same(self, folder, other):
        self.assertEqual(self.curve(folder), self.curve(other))
        self.assertEqual(logical(self.step_folder(3, folder)), logical(self.step_folder(3, other)))
