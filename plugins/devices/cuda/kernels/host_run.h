/* host_run.h - runs a CUDA kernel's blocks on the host: the words that a .cu file takes from CUDA, for
 * g++, so that indexes, tails, strides and orders of sums are tested where there is no GPU.
 *
 * A block's threads are fibers of the calling thread. One runs until it meets a barrier or ends; warps
 * go on when all their lanes have met, the block when all its threads have. Which lane goes first is a
 * matter of host_run_order(): a result that depends on it shows a missing barrier. Shared memory is
 * thread-local, so that several threads may run kernels at once, and holds not-a-number when a block
 * begins. Not modelled: the memory order of unlike blocks, which no kernel here relies on. */
#ifndef CUDA_HOST_RUN_H
#define CUDA_HOST_RUN_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct host_dim {
    unsigned x, y, z;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{x, y, z, w};
}

/* The fiber that runs now; read through macros, as the scheduler changes it. */
extern thread_local host_dim host_thread, host_block, host_threads, host_blocks;
#define threadIdx host_thread
#define blockIdx host_block
#define blockDim host_threads
#define gridDim host_blocks

#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __shared__ static thread_local

/* Waits until all threads of the block (or of the warp) have come here or ended. */
void host_barrier_block();
void host_barrier_warp();
/* What lane `from` of the warp brought to the same call; bits that are set where a lane brought one. */
uint32_t host_shuffle(uint32_t value, unsigned from);
uint32_t host_ballot(bool bit);
/* What all lanes brought to the same call: [32, count], count at most 8; valid until the call after
 * next. */
const uint32_t *host_words(const uint32_t *words, unsigned count);
/* Copies of the calling thread that happen when they are waited for: all but the last `behind` groups,
 * and those that are in no group yet. What is never waited for never happens, and must not be left. */
void host_copy_begin(void *to, const void *from, size_t bytes);
void host_copy_group();
void host_copy_wait(unsigned behind);
unsigned host_lane();
void *host_shared();

static inline void __syncthreads()
{
    host_barrier_block();
}

static inline void __syncwarp()
{
    host_barrier_warp();
}

static inline float __shfl_xor_sync(unsigned, float value, int mask)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    bits = host_shuffle(bits, host_lane() ^ static_cast<unsigned>(mask));
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

static inline int __shfl_xor_sync(unsigned, int value, int mask)
{
    return static_cast<int>(
        host_shuffle(static_cast<uint32_t>(value), host_lane() ^ static_cast<unsigned>(mask)));
}

static inline unsigned __ballot_sync(unsigned, bool bit)
{
    return host_ballot(bit);
}

static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

/* Runs `kernel` over all blocks, one after the other. */
extern "C" void host_run(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                         void (*kernel)(const void *params), const void *params);
/* 0: lanes and blocks in their order; 1: the last one first. For the calling thread. */
extern "C" __attribute__((visibility("default"))) void host_run_order(uint32_t order);

#define CUDA_KERNEL(name, threads)                                              \
    static void name(const name##_t p);                                         \
    static void name##_call(const void *params)                                 \
    {                                                                           \
        name(*static_cast<const name##_t *>(params));                           \
    }                                                                           \
    extern "C" __attribute__((visibility("default"))) void name##_host(         \
        const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, \
        const void *params)                                                     \
    {                                                                           \
        host_run(grid, block, shared_bytes, name##_call, params);               \
    }                                                                           \
    static void name(const name##_t p)

#define CUDA_DYNAMIC(type, name) type *const name = static_cast<type *>(host_shared())

#endif
