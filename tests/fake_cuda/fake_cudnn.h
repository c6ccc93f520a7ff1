/* fake_cudnn.h - what the two files of the stand-in of cuDNN share: an operation graph, as its backend
 * API describes it, and what is done with one. */
#ifndef FAKE_CUDNN_H
#define FAKE_CUDNN_H

#include <cudnn.h>

#include "fake_cuda.h"

enum { FAKE_DIMS = 4, FAKE_TENSORS = 96, FAKE_OPERATIONS = 64, FAKE_OPERANDS = 3 };

typedef struct fake_tensor {
    int64_t uid, dim[FAKE_DIMS], stride[FAKE_DIMS];
    cudnnDataType_t dtype;
    bool is_virtual, by_value;
    int ragged; /* the tensor that has its offsets; -1: none */
    bool produced;
} fake_tensor_t;

typedef struct fake_operation {
    cudnnBackendDescriptorType_t type;
    int mode; /* of a pointwise operation or a reduction */
    int64_t axis;
    int in[FAKE_OPERANDS], out; /* tensors; -1: none. x, b and t */
} fake_operation_t;

/* Lives as long as the process: queued work and captured graphs name it. */
typedef struct fake_graph {
    fake_tensor_t tensor[FAKE_TENSORS];
    fake_operation_t operation[FAKE_OPERATIONS];
    int tensors, operations;
    int64_t workspace_bytes;
    struct fake_graph *next;
} fake_graph_t;

/* fake_cudnn_run.c: whether it can do all of it; then queues it. Places are by tensor; 0: none. */
bool fake_graph_known(const fake_graph_t *g);
cuda_result_t fake_graph_queue(const fake_graph_t *g, cuda_stream_t stream,
                               const cuda_address_t places[FAKE_TENSORS], cuda_address_t workspace);

#endif
