/* kernel.cuh - what the kernels share: elements of every dtype as floats, eight of them at a time, and
 * sums over the threads that share a row.
 *
 * An octet is eight elements from a column that 8 divides, as floats: two accesses of 16 bytes in F32,
 * one in BF16 and F16, where the view says that they lie aligned (CUDA_VIEW_VECTOR); else, and at the
 * end of a row, element by element. The dtype is a number in the view, the same for all threads, so
 * one kernel serves all and the branch costs nothing beside the memory.
 *
 * Sums go through fixed trees: lanes by halves, then warps in their order. */
#ifndef CUDA_KERNEL_CUH
#define CUDA_KERNEL_CUH

#include <longhaul/ops.h>

#include "cuda_params.h"

#if defined(__CUDACC__)
#define CUDA_KERNEL(name, threads) \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const name##_t p)
#define CUDA_DYNAMIC(type, name)                              \
    extern __shared__ __align__(16) unsigned char dynamic_[]; \
    type *const name = reinterpret_cast<type *>(dynamic_)
#else
#include <longhaul/dtype.h>

#include "host_run.h"
#endif

#define CUDA_INLINE static __device__ __forceinline__

constexpr uint32_t OCTET = 8, WARP = 32;

struct octet {
    float v[OCTET];
};

/* ---- 16-bit floats: one instruction each on the GPU ---- */

CUDA_INLINE float bits_float(uint32_t bits)
{
#if defined(__CUDACC__)
    return __uint_as_float(bits);
#else
    return lh_bits_f32(bits);
#endif
}

CUDA_INLINE float bf16_float(uint32_t bits)
{
    return bits_float(bits << 16);
}

CUDA_INLINE uint16_t float_bf16(float value)
{
#if defined(__CUDACC__)
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    return lh_f32_to_bf16(value);
#endif
}

CUDA_INLINE float f16_float(uint32_t bits)
{
#if defined(__CUDACC__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(bits)));
    return value;
#else
    return lh_f16_to_f32(static_cast<uint16_t>(bits));
#endif
}

CUDA_INLINE uint16_t float_f16(float value)
{
#if defined(__CUDACC__)
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    return lh_f32_to_f16(value);
#endif
}

/* Two in one word, the first in its lower half. */
CUDA_INLINE uint32_t bf16_pair(float low, float high)
{
#if defined(__CUDACC__)
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return float_bf16(low) | static_cast<uint32_t>(float_bf16(high)) << 16;
#endif
}

/* ---- elements ---- */

CUDA_INLINE float element_load(const void *at, uint32_t dtype, uint64_t i)
{
    if (dtype == LH_DTYPE_F32) return static_cast<const float *>(at)[i];
    const uint32_t bits = static_cast<const uint16_t *>(at)[i];
    return dtype == LH_DTYPE_BF16 ? bf16_float(bits) : f16_float(bits);
}

CUDA_INLINE void element_store(void *at, uint32_t dtype, uint64_t i, float value)
{
    if (dtype == LH_DTYPE_F32)
        static_cast<float *>(at)[i] = value;
    else
        static_cast<uint16_t *>(at)[i] = dtype == LH_DTYPE_BF16 ? float_bf16(value)
                                                                : float_f16(value);
}

CUDA_INLINE float view_load(const cuda_view_t &x, uint64_t row, uint64_t column)
{
    return element_load(x.at, x.dtype, row * x.pitch + column);
}

/* Adds to what is there where the view asks for it. */
CUDA_INLINE void view_store(const cuda_view_t &y, uint64_t row, uint64_t column, float value)
{
    const uint64_t i = row * y.pitch + column;
    if ((y.flags & CUDA_VIEW_ADD) != 0) value += element_load(y.at, y.dtype, i);
    element_store(y.at, y.dtype, i, value);
}

/* As it would be read again. */
CUDA_INLINE float as_stored(float value, uint32_t dtype)
{
    if (dtype == LH_DTYPE_BF16) return bf16_float(float_bf16(value));
    if (dtype == LH_DTYPE_F16) return f16_float(float_f16(value));
    return value;
}

/* ---- octets ---- */

CUDA_INLINE float half_float(uint32_t dtype, uint32_t bits)
{
    return dtype == LH_DTYPE_BF16 ? bf16_float(bits) : f16_float(bits);
}

CUDA_INLINE uint32_t halves(uint32_t dtype, float low, float high)
{
    if (dtype == LH_DTYPE_BF16) return bf16_pair(low, high);
    return float_f16(low) | static_cast<uint32_t>(float_f16(high)) << 16;
}

CUDA_INLINE bool octet_whole(const cuda_view_t &x, uint64_t column, uint64_t end)
{
    return (x.flags & CUDA_VIEW_VECTOR) != 0 && column + OCTET <= end && column % OCTET == 0;
}

/* Columns [column, column + 8) of a row, 0 from `end` on. */
CUDA_INLINE octet octet_load(const cuda_view_t &x, uint64_t row, uint64_t column, uint64_t end)
{
    const uint64_t i = row * x.pitch + column;
    octet o;

    if (!octet_whole(x, column, end)) {
        for (uint32_t j = 0; j < OCTET; j++)
            o.v[j] = column + j < end ? element_load(x.at, x.dtype, i + j) : 0.0f;
    } else if (x.dtype == LH_DTYPE_F32) {
        const uint4 *from = reinterpret_cast<const uint4 *>(static_cast<const float *>(x.at) + i);
        const uint4 a = from[0], b = from[1];
        o.v[0] = bits_float(a.x), o.v[1] = bits_float(a.y), o.v[2] = bits_float(a.z);
        o.v[3] = bits_float(a.w), o.v[4] = bits_float(b.x), o.v[5] = bits_float(b.y);
        o.v[6] = bits_float(b.z), o.v[7] = bits_float(b.w);
    } else {
        const uint4 a = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(x.at) + i);
        const uint32_t words[4] = {a.x, a.y, a.z, a.w};
        for (uint32_t j = 0; j < 4; j++) {
            o.v[2 * j] = half_float(x.dtype, words[j] & 0xffffu);
            o.v[2 * j + 1] = half_float(x.dtype, words[j] >> 16);
        }
    }
    return o;
}

CUDA_INLINE uint32_t float_bits(float value)
{
#if defined(__CUDACC__)
    return __float_as_uint(value);
#else
    return lh_f32_bits(value);
#endif
}

CUDA_INLINE void octet_store(const cuda_view_t &y, uint64_t row, uint64_t column, uint64_t end,
                             octet o)
{
    const uint64_t i = row * y.pitch + column;

    if ((y.flags & CUDA_VIEW_ADD) != 0) {
        const octet old = octet_load(y, row, column, end);
        for (uint32_t j = 0; j < OCTET; j++)
            o.v[j] += old.v[j];
    }
    if (!octet_whole(y, column, end)) {
        for (uint32_t j = 0; j < OCTET; j++)
            if (column + j < end) element_store(y.at, y.dtype, i + j, o.v[j]);
    } else if (y.dtype == LH_DTYPE_F32) {
        uint4 *to = reinterpret_cast<uint4 *>(static_cast<float *>(y.at) + i);
        to[0] = make_uint4(float_bits(o.v[0]), float_bits(o.v[1]), float_bits(o.v[2]),
                           float_bits(o.v[3]));
        to[1] = make_uint4(float_bits(o.v[4]), float_bits(o.v[5]), float_bits(o.v[6]),
                           float_bits(o.v[7]));
    } else {
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(y.at) + i) = make_uint4(
            halves(y.dtype, o.v[0], o.v[1]), halves(y.dtype, o.v[2], o.v[3]),
            halves(y.dtype, o.v[4], o.v[5]), halves(y.dtype, o.v[6], o.v[7]));
    }
}

/* The octet of this thread where threads go over a whole tensor; false behind its end. */
CUDA_INLINE bool octet_mine(const cuda_view_t &x, uint64_t *row, uint64_t *column)
{
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t each = (x.width + OCTET - 1) / OCTET;

    if (x.rows == 1) { /* most tensors: no division */
        *row = 0;
        *column = i * OCTET;
        return i < each;
    }
    *row = i / each;
    *column = (i - *row * each) * OCTET;
    return *row < x.rows;
}

/* ---- sums ---- */

CUDA_INLINE float warp_sum(float value)
{
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}

CUDA_INLINE float warp_max(float value)
{
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
}

/* A team: the blockDim.x threads, whole warps, that share a row; blockDim.y teams make a block. Every
 * thread of the block must come here, and gets its team's sum. */
CUDA_INLINE float team_sum(float value)
{
    __shared__ float parts[WARP];
    const uint32_t warps = blockDim.x / WARP;

    value = warp_sum(value);
    if (warps == 1) return value;
    __syncthreads(); /* those of the last call have been read */
    const uint32_t first = threadIdx.y * warps;
    if (threadIdx.x % WARP == 0) parts[first + threadIdx.x / WARP] = value;
    __syncthreads();
    float sum = 0;
    for (uint32_t i = 0; i < warps; i++)
        sum += parts[first + i];
    return sum;
}

/* Likewise, the largest. */
CUDA_INLINE float team_max(float value)
{
    __shared__ float parts[WARP];
    const uint32_t warps = blockDim.x / WARP;

    value = warp_max(value);
    if (warps == 1) return value;
    __syncthreads();
    const uint32_t first = threadIdx.y * warps;
    if (threadIdx.x % WARP == 0) parts[first + threadIdx.x / WARP] = value;
    __syncthreads();
    float largest = parts[first];
    for (uint32_t i = 1; i < warps; i++)
        largest = fmaxf(largest, parts[first + i]);
    return largest;
}

/* The row of this thread's team where a block has one row for each; may lie behind the last. */
CUDA_INLINE uint64_t team_row()
{
    return static_cast<uint64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

/* ---- activations: f and f' of ops.h ---- */

CUDA_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

CUDA_INLINE float normal_cdf(float x)
{
    return 0.5f * erfcf(-0.70710678f * x);
}

CUDA_INLINE float gelu_inner(float x)
{
    return tanhf(0.79788456f * (x + 0.044715f * x * x * x));
}

CUDA_INLINE float act(uint32_t function, float x)
{
    switch (function) {
    case LH_ACT_SILU: return x * sigmoid(x);
    case LH_ACT_GELU: return x * normal_cdf(x);
    case LH_ACT_GELU_TANH: return 0.5f * x * (1.0f + gelu_inner(x));
    case LH_ACT_TANH: return tanhf(x);
    default: return x;
    }
}

CUDA_INLINE float act_slope(uint32_t function, float x)
{
    switch (function) {
    case LH_ACT_SILU: {
        const float s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
    case LH_ACT_GELU: return normal_cdf(x) + x * expf(-0.5f * x * x) * 0.39894228f;
    case LH_ACT_GELU_TANH: {
        const float t = gelu_inner(x);
        return 0.5f * (1.0f + t) +
               0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
    }
    case LH_ACT_TANH: {
        const float t = tanhf(x);
        return 1.0f - t * t;
    }
    default: return 1.0f;
    }
}

#endif
