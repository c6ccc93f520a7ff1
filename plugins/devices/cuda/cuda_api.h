/* cuda_api.h - as much of NVIDIA's driver API and of cuBLASLt as the plugin calls: types, numbers and
 * the lists of functions, by the names that the libraries export. The plugin is built without CUDA's
 * headers and linked against nothing of it; cuda_library.c finds the functions at run time.
 *
 * Sources: cuda.h and cublasLt.h of CUDA 13.0 (where those are installed tests/fake_cuda compares:
 * `cuda_headers.c` numbers and structs, `cuda_calls_test.py` what calls take). Of a call that has several
 * versions the list names one that drivers of CUDA 12 and of CUDA 13 both export. */
#ifndef CUDA_API_H
#define CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cuda_result_t;   /* CUresult */
typedef int32_t cuda_ordinal_t;  /* CUdevice */
typedef uint64_t cuda_address_t; /* CUdeviceptr */
typedef struct CUctx_st *cuda_context_t;
typedef struct CUstream_st *cuda_stream_t;
typedef struct CUevent_st *cuda_event_t;
typedef struct CUmod_st *cuda_module_t;
typedef struct CUfunc_st *cuda_function_t;
typedef struct CUgraph_st *cuda_graph_t;
typedef struct CUgraphExec_st *cuda_exec_t;

typedef struct cuda_ipc { /* CUipcMemHandle: may travel to another process */
    char bytes[64];
} cuda_ipc_t;

enum { /* CUresult */
       CUDA_OK = 0,
       CUDA_INVALID_VALUE = 1,
       CUDA_NO_MEMORY = 2,
       CUDA_STUB = 34,
       CUDA_UNAVAILABLE = 46,
       CUDA_NO_DEVICE = 100,
       CUDA_INVALID_DEVICE = 101,
       CUDA_INVALID_IMAGE = 200,
       CUDA_INVALID_CONTEXT = 201,
       CUDA_MAP_FAILED = 205,
       CUDA_NO_BINARY = 209,
       CUDA_ECC = 214,
       CUDA_PEER_UNSUPPORTED = 217,
       CUDA_NVLINK = 220,
       CUDA_UNSUPPORTED_PTX = 222,
       CUDA_CONTAINED = 226,
       CUDA_NOT_FOUND = 500,
       CUDA_NOT_READY = 600,
       CUDA_ILLEGAL_ADDRESS = 700,
       CUDA_LAUNCH_TIMEOUT = 702,
       CUDA_CONTEXT_DESTROYED = 709,
       CUDA_ASSERT = 710,
       CUDA_REGISTERED = 712,
       CUDA_STACK_ERROR = 714,
       CUDA_ILLEGAL_INSTRUCTION = 715,
       CUDA_MISALIGNED = 716,
       CUDA_INVALID_SPACE = 717,
       CUDA_INVALID_PC = 718,
       CUDA_LAUNCH_FAILED = 719,
       CUDA_TENSOR_LEAK = 721,
       CUDA_NOT_SUPPORTED = 801,
       CUDA_DRIVER_MISMATCH = 803,
       CUDA_MPS_TERMINATED = 810,
       CUDA_CAPTURE_UNSUPPORTED = 900,
       CUDA_CAPTURE_UNMATCHED = 903,
       CUDA_CAPTURE_UNJOINED = 904,
       CUDA_CAPTURE_ISOLATION = 905,
       CUDA_CAPTURED_EVENT = 907,
       CUDA_EXTERNAL_DEVICE = 911,
       CUDA_UNKNOWN = 999,
};

enum { /* CUdevice_attribute */
       CUDA_ATTRIBUTE_CLOCK_KHZ = 13,
       CUDA_ATTRIBUTE_CORES = 16,
       CUDA_ATTRIBUTE_MEMORY_KHZ = 36,
       CUDA_ATTRIBUTE_MEMORY_BITS = 37,
       CUDA_ATTRIBUTE_MAJOR = 75,
       CUDA_ATTRIBUTE_MINOR = 76,
       CUDA_ATTRIBUTE_HOST_POINTER = 91, /* registered memory has one address for host and GPU */
       CUDA_ATTRIBUTE_SHARED_BYTES = 97, /* of a block that asks for them */
       CUDA_ATTRIBUTE_READ_ONLY = 113,   /* memory that is mapped read-only can be registered  */
       CUDA_ATTRIBUTE_FLUSHES = 117,     /* how what cards wrote is made seen: bits               */
       CUDA_ATTRIBUTE_ORDERS = 118,      /* to whom it is seen in order without that             */
       CUDA_ATTRIBUTE_DMABUF = 124,
       CUDA_ATTRIBUTE_HOST_NUMA = 134,
};

enum {
    CUDA_STREAM_NON_BLOCKING = 1,        /* CU_STREAM_NON_BLOCKING */
    CUDA_EVENT_DEFAULT = 0,              /* CU_EVENT_DEFAULT: with times */
    CUDA_HOST_PORTABLE = 1,              /* CU_MEMHOSTALLOC_PORTABLE */
    CUDA_HOST_MAPPED = 2,                /* CU_MEMHOSTALLOC_DEVICEMAP */
    CUDA_REGISTER_PORTABLE = 1,          /* CU_MEMHOSTREGISTER_PORTABLE */
    CUDA_REGISTER_MAPPED = 2,            /* CU_MEMHOSTREGISTER_DEVICEMAP */
    CUDA_REGISTER_READ_ONLY = 8,         /* CU_MEMHOSTREGISTER_READ_ONLY */
    CUDA_IPC_LAZY_PEER = 1,              /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
    CUDA_CAPTURE_RELAXED = 2,            /* CU_STREAM_CAPTURE_MODE_RELAXED */
    CUDA_WAIT_GEQ = 0,                   /* CU_STREAM_WAIT_VALUE_GEQ */
    CUDA_WRITE_DEFAULT = 0,              /* CU_STREAM_WRITE_VALUE_DEFAULT: behind a fence */
    CUDA_RANGE_DMABUF = 1,               /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
    CUDA_FLUSHES_HOST = 1,               /* CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST */
    CUDA_FLUSH_CONTEXT = 0,              /* CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX */
    CUDA_FLUSH_OWNER = 100,              /* CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER */
    CUDA_ORDERS_OWNER = 100,             /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER */
    CUDA_FUNCTION_DYNAMIC_SHARED = 8,    /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    CUDA_PLAIN_SHARED_BYTES = 48 * 1024, /* what a block gets unasked */
};

/* Keys of cuLaunchKernel's `extra`: one buffer that holds the kernel's parameters, and its size. */
#define CUDA_LAUNCH_END ((void *)0x00)
#define CUDA_LAUNCH_BUFFER ((void *)0x01)
#define CUDA_LAUNCH_BYTES ((void *)0x02)

/* Name, parameters; all return a cuda_result_t. */
#define CUDA_DRIVER_CALLS(X)                                                                       \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGetErrorName, (cuda_result_t error, const char **out))                                     \
    X(cuGetErrorString, (cuda_result_t error, const char **out))                                   \
    X(cuDeviceGetCount, (int *count))                                                              \
    X(cuDeviceGet, (cuda_ordinal_t * out, int index))                                              \
    X(cuDeviceGetName, (char *name, int bytes, cuda_ordinal_t device))                             \
    X(cuDeviceGetPCIBusId, (char *name, int bytes, cuda_ordinal_t device))                         \
    X(cuDeviceGetAttribute, (int *value, int attribute, cuda_ordinal_t device))                    \
    X(cuDevicePrimaryCtxRetain, (cuda_context_t * out, cuda_ordinal_t device))                     \
    X(cuDevicePrimaryCtxRelease_v2, (cuda_ordinal_t device))                                       \
    X(cuCtxSetCurrent, (cuda_context_t context))                                                   \
    X(cuCtxGetDevice, (cuda_ordinal_t * out))                                                      \
    X(cuCtxGetStreamPriorityRange, (int *least, int *greatest))                                    \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                \
    X(cuMemAlloc_v2, (cuda_address_t * out, size_t bytes))                                         \
    X(cuMemFree_v2, (cuda_address_t address))                                                      \
    X(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags))                                  \
    X(cuMemFreeHost, (void *address))                                                              \
    X(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned flags))                         \
    X(cuMemHostUnregister, (void *address))                                                        \
    X(cuIpcGetMemHandle, (cuda_ipc_t * out, cuda_address_t address))                               \
    X(cuIpcOpenMemHandle_v2, (cuda_address_t * out, cuda_ipc_t handle, unsigned flags))            \
    X(cuIpcCloseMemHandle, (cuda_address_t address))                                               \
    X(cuMemGetHandleForAddressRange,                                                               \
      (void *handle, cuda_address_t address, size_t bytes, int kind, unsigned long long flags))    \
    X(cuFlushGPUDirectRDMAWrites, (int target, int scope))                                         \
    X(cuMemcpyAsync, (cuda_address_t to, cuda_address_t from, size_t bytes, cuda_stream_t stream)) \
    X(cuMemsetD8Async,                                                                             \
      (cuda_address_t to, unsigned char byte, size_t bytes, cuda_stream_t stream))                 \
    X(cuStreamCreateWithPriority, (cuda_stream_t * out, unsigned flags, int priority))             \
    X(cuStreamDestroy_v2, (cuda_stream_t stream))                                                  \
    X(cuStreamSynchronize, (cuda_stream_t stream))                                                 \
    X(cuStreamGetCtx, (cuda_stream_t stream, cuda_context_t * out))                                \
    X(cuStreamWaitEvent, (cuda_stream_t stream, cuda_event_t event, unsigned flags))               \
    X(cuEventCreate, (cuda_event_t * out, unsigned flags))                                         \
    X(cuEventDestroy_v2, (cuda_event_t event))                                                     \
    X(cuEventRecord, (cuda_event_t event, cuda_stream_t stream))                                   \
    X(cuEventQuery, (cuda_event_t event))                                                          \
    X(cuEventSynchronize, (cuda_event_t event))                                                    \
    X(cuEventElapsedTime, (float *ms, cuda_event_t first, cuda_event_t last))                      \
    X(cuStreamBeginCapture_v2, (cuda_stream_t stream, int mode))                                   \
    X(cuStreamEndCapture, (cuda_stream_t stream, cuda_graph_t * out))                              \
    X(cuGraphInstantiateWithFlags,                                                                 \
      (cuda_exec_t * out, cuda_graph_t graph, unsigned long long flags))                           \
    X(cuGraphLaunch, (cuda_exec_t exec, cuda_stream_t stream))                                     \
    X(cuGraphDestroy, (cuda_graph_t graph))                                                        \
    X(cuGraphExecDestroy, (cuda_exec_t exec))                                                      \
    X(cuStreamWaitValue32_v2,                                                                      \
      (cuda_stream_t stream, cuda_address_t word, uint32_t value, unsigned flags))                 \
    X(cuStreamWriteValue32_v2,                                                                     \
      (cuda_stream_t stream, cuda_address_t word, uint32_t value, unsigned flags))                 \
    X(cuModuleLoadData, (cuda_module_t * out, const void *image))                                  \
    X(cuModuleUnload, (cuda_module_t module))                                                      \
    X(cuModuleGetFunction, (cuda_function_t * out, cuda_module_t module, const char *name))        \
    X(cuFuncSetAttribute, (cuda_function_t function, int attribute, int value))                    \
    X(cuLaunchKernel,                                                                              \
      (cuda_function_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       cuda_stream_t stream, void **parameters, void **extra))

/* ---- cuBLASLt ---- */

typedef int32_t cublas_status_t; /* cublasStatus_t */
typedef struct cublasLtContext *cublas_handle_t;
typedef struct cublasLtMatmulDescOpaque *cublas_product_t;
typedef struct cublasLtMatrixLayoutOpaque *cublas_layout_t;
typedef struct cublasLtMatmulPreferenceOpaque *cublas_preference_t;

typedef struct cublas_algorithm { /* cublasLtMatmulAlgo_t: may be kept and compared as bytes */
    uint64_t data[8];
} cublas_algorithm_t;

typedef struct cublas_found { /* cublasLtMatmulHeuristicResult_t */
    cublas_algorithm_t algorithm;
    size_t workspace_bytes;
    cublas_status_t state;
    float waves;
    int reserved[4];
} cublas_found_t;

enum { /* cublasStatus_t */
       CUBLAS_OK = 0,
       CUBLAS_NO_MEMORY = 3,
       CUBLAS_INVALID_VALUE = 7,
       CUBLAS_NOT_SUPPORTED = 15,
};

enum {
    CUBLAS_R_32F = 0, /* cudaDataType_t */
    CUBLAS_R_16F = 2,
    CUBLAS_R_16BF = 14,
    CUBLAS_SUMS_32F = 68,      /* CUBLAS_COMPUTE_32F */
    CUBLAS_SUMS_32F_TF32 = 77, /* CUBLAS_COMPUTE_32F_FAST_TF32 */
    CUBLAS_PLAIN = 0,          /* CUBLAS_OP_N */
    CUBLAS_TURNED = 1,         /* CUBLAS_OP_T */
};

enum { /* cublasLtMatmulDescAttributes_t */
       CUBLAS_DESC_TRANSPOSE_A = 3,
       CUBLAS_DESC_TRANSPOSE_B = 4,
       CUBLAS_DESC_EPILOGUE = 7,
       CUBLAS_DESC_BIAS = 8,
       CUBLAS_DESC_AUX = 11,
       CUBLAS_DESC_AUX_PITCH = 12,
       CUBLAS_DESC_BIAS_TYPE = 26,
};

enum { /* cublasLtEpilogue_t: bits */
       CUBLAS_EPILOGUE_NONE = 1,
       CUBLAS_EPILOGUE_BIAS = 4,
       CUBLAS_EPILOGUE_GELU = 32, /* by tanh */
       CUBLAS_EPILOGUE_AUX = 128, /* keeps the value before the activation */
};

enum { /* cublasLtMatmulPreferenceAttributes_t */
       CUBLAS_PREFER_WORKSPACE = 1,
       CUBLAS_PREFER_REDUCTION = 3,
       CUBLAS_PREFER_ALIGNMENT_A = 5, /* B, C and D follow */
};

enum { /* cublasLtReductionScheme_t, as bits */
       CUBLAS_REDUCTION_COMPUTE_TYPE = 2,
};

#define CUBLAS_CALLS(X)                                                                        \
    X(cublasLtCreate, (cublas_handle_t * out))                                                 \
    X(cublasLtDestroy, (cublas_handle_t handle))                                               \
    X(cublasLtMatmulDescCreate, (cublas_product_t * out, int compute, int scale))              \
    X(cublasLtMatmulDescDestroy, (cublas_product_t product))                                   \
    X(cublasLtMatmulDescSetAttribute,                                                          \
      (cublas_product_t product, int attribute, const void *value, size_t bytes))              \
    X(cublasLtMatrixLayoutCreate,                                                              \
      (cublas_layout_t * out, int type, uint64_t rows, uint64_t columns, int64_t pitch))       \
    X(cublasLtMatrixLayoutDestroy, (cublas_layout_t layout))                                   \
    X(cublasLtMatmulPreferenceCreate, (cublas_preference_t * out))                             \
    X(cublasLtMatmulPreferenceDestroy, (cublas_preference_t preference))                       \
    X(cublasLtMatmulPreferenceSetAttribute,                                                    \
      (cublas_preference_t preference, int attribute, const void *value, size_t bytes))        \
    X(cublasLtMatmulAlgoGetHeuristic,                                                          \
      (cublas_handle_t handle, cublas_product_t product, cublas_layout_t a, cublas_layout_t b, \
       cublas_layout_t c, cublas_layout_t d, cublas_preference_t preference, int wanted,       \
       cublas_found_t found[], int *count))                                                    \
    X(cublasLtMatmul,                                                                          \
      (cublas_handle_t handle, cublas_product_t product, const void *alpha, const void *a,     \
       cublas_layout_t a_layout, const void *b, cublas_layout_t b_layout, const void *beta,    \
       const void *c, cublas_layout_t c_layout, void *d, cublas_layout_t d_layout,             \
       const cublas_algorithm_t *algorithm, void *workspace, size_t workspace_bytes,           \
       cuda_stream_t stream))

typedef size_t cublas_version_call_t(
    void); /* cublasLtGetVersion: 10000 major + 100 minor + patch */

#endif
