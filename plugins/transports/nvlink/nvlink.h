/* nvlink.h - the transport's own types: the libraries, and a group that was joined. */
#ifndef NVLINK_H
#define NVLINK_H

#include <stdatomic.h>

#include <longhaul/plugin.h>

#include "cuda_library.h"
#include "kernels/cuda_params.h"
#include "nccl_api.h"

typedef struct nvlink_config {
    char *libraries; /* folders, between colons; NULL: none */
} nvlink_config_t;

/* Libraries are opened when the first group is made, so that a job can be planned where they are not. */
struct lh_transport {
    const lh_host_t *host;
    const nvlink_config_t *config;
    bool opened;
    cuda_library_t cuda;
    cuda_module_t module; /* of the kernels; of the context in which the first group was joined */
    cuda_function_t pack;
#define NVLINK_FIELD(name, parameters) nccl_result_t(*name) parameters;
    NCCL_CALLS(NVLINK_FIELD)
#undef NVLINK_FIELD
    nccl_text_call_t *ncclGetErrorString;
};

/* A step calls enqueue and test in the control thread; cancel comes from there too. */
struct lh_group {
    lh_transport_t *transport;
    nccl_comm_t comm; /* NULL: aborted */
    cuda_context_t context;
    cuda_stream_t stream; /* of all calls */
    uint32_t rank, size;
    char gpu[256];    /* "GPU 0 (NVIDIA H100, 0000:1b:00.0) of rank 0 on host" */
    const char *last; /* the call that was queued last; NULL: none was */
};

/* nvlink_plugin.c: opens both libraries, once. */
lh_status_t nvlink_open(lh_transport_t *t);

/* nvlink_group.c */
extern const lh_collective_api_t nvlink_collectives;

#endif
