/* pack.cu - segments from one buffer into another, for collectives that want one run: a row of blocks for
 * each segment, 16 bytes a thread where both sides lie so. */
#include "kernel.cuh"

template <typename word>
CUDA_INLINE void segment_copy(const char *from, char *to, uint64_t bytes)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * CUDA_THREADS;
    const uint64_t words = bytes / sizeof(word);
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * CUDA_THREADS + threadIdx.x; i < words;
         i += step)
        reinterpret_cast<word *>(to)[i] = reinterpret_cast<const word *>(from)[i];
}

CUDA_KERNEL(cuda_pack, CUDA_THREADS)
{
    const cuda_pack_segment_t s = p.segments[blockIdx.y];
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * CUDA_THREADS + threadIdx.x;
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * CUDA_THREADS;
    if (p.add != 0) {
        for (uint64_t i = first; i < s.count; i += step)
            element_store(p.y, p.dtype, s.to + i,
                          element_load(p.y, p.dtype, s.to + i) +
                              element_load(p.x, p.dtype, s.from + i));
        return;
    }
    const char *from = static_cast<const char *>(p.x) + s.from * p.bytes;
    char *to = static_cast<char *>(p.y) + s.to * p.bytes;
    const uint64_t bytes = s.count * p.bytes;
    const uint64_t lie = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to);
    if (lie % sizeof(uint4) == 0) {
        const uint64_t whole = bytes / sizeof(uint4) * sizeof(uint4);
        segment_copy<uint4>(from, to, whole);
        for (uint64_t i = whole + first; i < bytes; i += step)
            to[i] = from[i];
    } else if (p.bytes % 4 == 0) {
        segment_copy<uint32_t>(from, to, bytes);
    } else if (p.bytes == 2) {
        segment_copy<uint16_t>(from, to, bytes);
    } else {
        segment_copy<char>(from, to, bytes);
    }
}
