/* cuda_launch.h - how a kernel row starts one of the plugin's own kernels. */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <longhaul/kernel.h>

typedef struct cuda_shape {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic shared memory of a block; may pass 48 KiB */
} cuda_shape_t;

/* Bytes of shared memory that a block may have: what its kernel keeps and what the launch asks for. */
uint64_t cuda_shared_most(const lh_device_t *d);
/* [queue] Queues the kernel of this name with `bytes` of params, which are copied before it returns. */
lh_status_t cuda_launch(lh_stream_t *s, const char *kernel, const cuda_shape_t *shape,
                        const void *params, size_t bytes);

#endif
