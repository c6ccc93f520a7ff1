"""What cuda_api.h and nccl_api.h say that functions of NVIDIA's take is what NVIDIA's headers say, and libraries that are
installed export each by that name. A call whose parameters are others, or that a library lacks, shows on a GPU else: the
stand-ins are made of the same lists. LH_CUDA_INCLUDE names the folder of the headers; skipped without."""
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = os.environ.get("LONGHAUL_SOURCE", os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
INCLUDE = os.environ.get("LH_CUDA_INCLUDE", "/usr/local/cuda/include")
FOLDERS = [os.path.join(root, name) for root in (os.path.dirname(INCLUDE), "/usr/local/cuda") for name in ("lib64", "lib")] + \
    glob.glob(os.path.join(SOURCE, "build", "peers", "lib", "python3*", "site-packages", "nvidia", "*", "lib"))
DEVICE, NVLINK = os.path.join("plugins", "devices", "cuda"), os.path.join("plugins", "transports", "nvlink")
# A list of calls: file, macro, header, library; and functions that are not in the list, as they answer with something else.
LISTS = [(os.path.join(DEVICE, "cuda_api.h"), "CUDA_DRIVER_CALLS", "cuda.h", "libcuda.so", []),
         (os.path.join(DEVICE, "cuda_api.h"), "CUBLAS_CALLS", "cublasLt.h", "libcublasLt.so.1[23]", ["cublasLtGetVersion"]),
         (os.path.join(NVLINK, "nccl_api.h"), "NCCL_CALLS", "nccl.h", "libnccl.so.2", ["ncclGetErrorString"])]
# Ours and NVIDIA's names of a type, by what both are. Enumerations are ints.
KINDS = {"int": "int CUdevice_attribute CUmemRangeHandleType CUflushGPUDirectRDMAWritesTarget CUflushGPUDirectRDMAWritesScope "
                "CUstreamCaptureMode CUfunction_attribute cublasComputeType_t cudaDataType_t cudaDataType "
                "cublasLtMatmulDescAttributes_t cublasLtMatmulPreferenceAttributes_t ncclDataType_t ncclRedOp_t",
         "result": "cuda_result_t CUresult nccl_result_t ncclResult_t", "device": "cuda_ordinal_t CUdevice",
         "address": "cuda_address_t CUdeviceptr", "context": "cuda_context_t CUcontext", "event": "cuda_event_t CUevent",
         "stream": "cuda_stream_t CUstream cudaStream_t", "module": "cuda_module_t CUmodule",
         "function": "cuda_function_t CUfunction", "graph": "cuda_graph_t CUgraph", "exec": "cuda_exec_t CUgraphExec",
         "ipc": "cuda_ipc_t CUipcMemHandle", "unsigned": "unsigned uint32_t cuuint32_t",
         "handle": "cublas_handle_t cublasLtHandle_t", "product": "cublas_product_t cublasLtMatmulDesc_t",
         "layout": "cublas_layout_t cublasLtMatrixLayout_t", "preference": "cublas_preference_t cublasLtMatmulPreference_t",
         "algorithm": "cublas_algorithm_t cublasLtMatmulAlgo_t", "found": "cublas_found_t cublasLtMatmulHeuristicResult_t",
         "comm": "nccl_comm_t ncclComm_t", "id": "nccl_id_t ncclUniqueId", "config": "nccl_config_t ncclConfig_t"}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}


def plain(text):
    """Without comments, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S)))


def kinds(parameters):
    """Of each parameter its type, without its name."""
    found = []
    for text in parameters.split(","):
        text = re.sub(r"(\w+) ?\[\]", r"*\1", text.replace("unsigned int", "unsigned"))
        words = re.findall(r"\w+|\*", text)[:-1]  # the last is the name
        found.append(" ".join(KIND_OF.get(word, word) for word in words))
    return found


def listed(text, macro):
    """{name: types} of a list of calls."""
    body = re.search(r"#define %s\(X\)((?:[^\n]*\\\n)+[^\n]*)" % macro, text)[1].replace("\\\n", " ")
    return {name: kinds(parameters) for name, parameters in re.findall(r"X\(\s*(\w+),\s*\(([^()]*)\)\)", plain(body))}


def declared(text, name):
    """The types of each declaration of what a library exports by that name: a macro may stand for it."""
    names = {name, re.sub(r"_v\d+$", "", name)} | set(re.findall(r"#define +(\w+) +(?:__CUDA_API_\w+\()?%s\b" % name, text))
    return [kinds(parameters) for parameters in re.findall(r"\b(?:%s) ?\(([^()]*)\) ?;" % "|".join(sorted(names)), plain(text))]


def exported(pattern):
    """(library, names) of the first that is installed; the driver's is the stub that programs are linked with."""
    for folder in FOLDERS:
        for path in sorted(glob.glob(os.path.join(folder, pattern)) + glob.glob(os.path.join(folder, "stubs", pattern))):
            done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True)
            if done.returncode == 0:
                return path, {line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line.split()}
    return None, None


class CudaCalls(unittest.TestCase):
    def ours(self, file, macro):
        with open(os.path.join(SOURCE, file)) as f:
            return listed(f.read(), macro)

    def test_parameters_are_those_of_the_headers(self):
        compared = 0
        for file, macro, header, _, _ in LISTS:
            path = os.path.join(INCLUDE, header)
            if not os.path.exists(path):
                continue
            with open(path, errors="replace") as f:
                text = f.read()
            calls = self.ours(file, macro)
            self.assertGreater(len(calls), 10)
            for name, types in calls.items():
                self.assertIn(types, declared(text, name), name)
            compared += len(calls)
        if compared == 0:
            self.skipTest("%s has none of NVIDIA's headers" % INCLUDE)
        print("%d calls are as the headers have them" % compared)

    def test_libraries_export_each(self):
        if shutil.which("nm") is None:
            self.skipTest("nm is not here")
        seen = []
        for file, macro, _, pattern, more in LISTS:
            path, names = exported(pattern)
            if names is None:
                continue
            self.assertEqual(sorted({*self.ours(file, macro), *more} - names), [], path)
            seen.append(path)
        if not seen:
            self.skipTest("none of NVIDIA's libraries is installed")
        print("names are exported by " + ", ".join(seen))

    def test_libraries_tell_versions_that_are_known(self):
        """As the plugins read them, without a GPU and without a driver."""
        for pattern, call, known in (("libcublasLt.so.1[23]", "cublasLtGetVersion", range(120000, 140000)),
                                     ("libcudnn.so.9", "cudnnGetVersion", range(90000, 100000)),
                                     ("libnccl.so.2", "ncclGetVersion", range(21400, 30000))):
            path, _ = exported(pattern)
            if path is None:
                continue
            function, version = getattr(ctypes.CDLL(path), call), ctypes.c_int()
            if call == "ncclGetVersion":
                self.assertEqual(function(ctypes.byref(version)), 0)
            else:
                function.restype = ctypes.c_size_t
                version.value = function()
            self.assertIn(version.value, known, path)
            print("%s says %d" % (path, version.value))

    def test_what_differs_is_seen(self):
        head = "#define cuTwo cuTwo_v2\nCUresult CUDAAPI cuTwo(CUstream s, unsigned int n, const void* p, CUevent e[]);"
        for parameters, same in (("cuda_stream_t a, unsigned b, const void *c, cuda_event_t *d", True),
                                 ("cuda_stream_t a, unsigned b, const void *c, cuda_event_t d", False),
                                 ("cuda_stream_t a, unsigned long long b, const void *c, cuda_event_t *d", False),
                                 ("unsigned b, cuda_stream_t a, const void *c, cuda_event_t *d", False),
                                 ("cuda_stream_t a, unsigned b, const void *c", False)):
            self.assertEqual(kinds(parameters) in declared(head, "cuTwo_v2"), same, parameters)
        self.assertEqual(declared(head, "cuThree"), [])
        self.assertEqual(listed("#define CALLS(X) \\\n X(one, (int *a)) \\\n X(two, (int a, int b))\n", "CALLS"),
                         {"one": ["int *"], "two": ["int", "int"]})


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    sys.exit(1 if not program.result.wasSuccessful() else 77 if len(program.result.skipped) == 2 else 0)
