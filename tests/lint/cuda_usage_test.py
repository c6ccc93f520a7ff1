"""tests/lint/cuda_usage finds what it is there for, in what nvcc says: spilled registers and new stack frames, of a kernel or of
what it calls, kernels that are new or gone. It needs no nvcc."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda_usage")
KERNEL = """ptxas info    : Compiling entry function '%s' for '%s'
ptxas info    : Function properties for %s
    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads
"""
CALLED = """ptxas info    : Function properties for helper
    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads
"""
USED = """ptxas info    : Used 40 registers, used 1 barriers, %s432 bytes cmem[0]
ptxas info    : Compile time = 46.240 ms
"""


def kernel(name="cuda_add", target="sm_80", own=(0, 0, 0), called=None, shared=""):
    return KERNEL % (name, target, name, *own) + (CALLED % called if called else "") + USED % shared


class CudaUsage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log, self.list = os.path.join(folder.name, "usage.log"), os.path.join(folder.name, "usage.txt")
        self.ends(kernel() + kernel(target="sm_90a", own=(8, 0, 0), shared="128 bytes smem, "), 0, flag="--write")

    def ends(self, log, code, text="", flag=None):
        with open(self.log, "w") as f:
            f.write("ptxas info    : 0 bytes gmem\n" + log)
        done = subprocess.run([sys.executable, SCRIPT, self.log, self.list] + ([flag] if flag else []), capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(text, done.stdout)

    def both(self, **sm_80):
        return kernel(**sm_80) + kernel(target="sm_90a", own=(8, 0, 0), shared="128 bytes smem, ")

    def test_what_is_as_it_was_passes(self):
        with open(self.list) as f:
            rows = [line.split() for line in f if line.startswith("cuda_")]
        self.assertEqual(rows, [["cuda_add", "sm_80", "40", "0", "0", "0"], ["cuda_add", "sm_90a", "40", "128", "8", "0"]])
        self.ends(self.both(), 0, "2 kernels and targets: no spill, no new stack frame")

    def test_a_spill_is_a_fault(self):
        self.ends(self.both(own=(0, 4, 8)), 1, "cuda_add on sm_80: 12 bytes of registers are spilled")
        self.ends(self.both(own=(0, 4, 8), called=(0, 0, 0)), 1, "12 bytes of registers are spilled")
        self.ends(self.both(called=(0, 4, 0)), 1, "4 bytes of registers are spilled")

    def test_a_new_stack_frame_is_a_fault(self):
        self.ends(self.both(own=(16, 0, 0)), 1, "cuda_add on sm_80: a stack frame of 16 bytes, 0 were there")
        self.ends(self.both(called=(16, 0, 0)), 1, "a stack frame of 16 bytes, 0 were there")

    def test_a_kernel_that_is_new_or_gone_is_a_fault(self):
        self.ends(self.both() + kernel("cuda_new"), 1, "cuda_new on sm_80: not in ")
        self.ends(kernel(), 1, "cuda_add on sm_90a: in ")

    def test_a_log_of_something_else_is_a_fault_and_none_is_skipped(self):
        self.ends("nvcc: fatal\n", 1, "no kernels")
        os.remove(self.log)
        done = subprocess.run([sys.executable, SCRIPT, self.log, self.list], capture_output=True, text=True)
        self.assertEqual(done.returncode, 77)


if __name__ == "__main__":
    unittest.main()
