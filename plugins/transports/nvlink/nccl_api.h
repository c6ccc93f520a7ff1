/* nccl_api.h - as much of NCCL as the plugin calls, by the names that the library exports. Sources:
 * nccl.h of NCCL 2.28 (where it is installed tests/fake_cuda compares: cuda_headers.c numbers and
 * structs, cuda_calls_test.py what calls take). Non-blocking communicators came with 2.14. */
#ifndef NVLINK_NCCL_API_H
#define NVLINK_NCCL_API_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_api.h"

typedef int32_t nccl_result_t; /* ncclResult_t */
typedef struct ncclComm *nccl_comm_t;

typedef struct nccl_id { /* ncclUniqueId */
    char bytes[128];
} nccl_id_t;

/* The head of ncclConfig_t, as 2.14 had it: later libraries take what follows to be unset. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config_t;

enum {
    NCCL_OK = 0,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
    NCCL_INT8 = 0, /* ncclDataType_t */
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_BFLOAT16 = 9,
    NCCL_SUM = 0,              /* ncclRedOp_t */
    NCCL_VERSION_2_14 = 21400, /* 10000 major + 100 minor + patch, from 2.9 on */
};
#define NCCL_MAGIC 0xcafebeefu

/* Name, parameters; all return an nccl_result_t. */
#define NCCL_CALLS(X)                                                                              \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclGetUniqueId, (nccl_id_t * out))                                                          \
    X(ncclCommInitRankConfig,                                                                      \
      (nccl_comm_t * out, int size, nccl_id_t id, int rank, nccl_config_t *config))                \
    X(ncclCommGetAsyncError, (nccl_comm_t comm, nccl_result_t * out))                              \
    X(ncclCommAbort, (nccl_comm_t comm))                                                           \
    X(ncclCommDestroy, (nccl_comm_t comm))                                                         \
    X(ncclAllReduce, (const void *in, void *out, size_t count, int type, int op, nccl_comm_t comm, \
                      cuda_stream_t stream))                                                       \
    X(ncclReduceScatter, (const void *in, void *out, size_t count, int type, int op,               \
                          nccl_comm_t comm, cuda_stream_t stream))                                 \
    X(ncclAllGather,                                                                               \
      (const void *in, void *out, size_t count, int type, nccl_comm_t comm, cuda_stream_t stream)) \
    X(ncclBroadcast, (const void *in, void *out, size_t count, int type, int root,                 \
                      nccl_comm_t comm, cuda_stream_t stream))                                     \
    X(ncclSend,                                                                                    \
      (const void *in, size_t count, int type, int peer, nccl_comm_t comm, cuda_stream_t stream))  \
    X(ncclRecv,                                                                                    \
      (void *out, size_t count, int type, int peer, nccl_comm_t comm, cuda_stream_t stream))

typedef const char *nccl_text_call_t(nccl_result_t result); /* ncclGetErrorString */

#endif
