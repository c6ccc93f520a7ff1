/* rope.cu - rotary positions. A block takes a token: its sines and cosines once for all heads. */
#include "kernel.cuh"

/* Sine and cosine of an angle up to some 10^9: in double it is brought to within pi / 4 of 0, where
 * short polynomials are exact to a rounding of F32 (Cephes, sincosf). The library's sincosf keeps a
 * stack frame for large angles. */
CUDA_INLINE void sine_cosine(float angle, float *sine, float *cosine)
{
    const double turns = rint(static_cast<double>(angle) * 0.63661977236758134308);
    const double high = static_cast<double>(angle) - turns * 1.57079632679489661923;
    const float r = static_cast<float>(high - turns * 6.123233995736766e-17), z = r * r;
    const float s = r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
    const float c = 1.0f - 0.5f * z +
                    z * z * (4.166664568298827e-2f +
                             z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
    switch (static_cast<int64_t>(turns) & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

/* Eight pairs side by side: components from `one` on with those `pairs` further on. */
CUDA_INLINE void octets_turn(const cuda_rope_t &p, const float *turn, uint64_t row, uint64_t one,
                             uint32_t pair)
{
    const uint64_t two = one + p.pairs;
    octet x1 = octet_load(p.x, row, one, one + OCTET), x2 = octet_load(p.x, row, two, two + OCTET);
    for (uint32_t j = 0; j < OCTET; j++) {
        const float c = turn[2 * (pair + j)], s = turn[2 * (pair + j) + 1], x = x1.v[j];
        x1.v[j] = x * c - x2.v[j] * s;
        x2.v[j] = x2.v[j] * c + x * s;
    }
    octet_store(p.y, row, one, one + OCTET, x1);
    octet_store(p.y, row, two, two + OCTET, x2);
}

/* Dynamic shared memory: [pairs, 2]. Pairs are read and written by one thread, so y may lie over x. */
CUDA_KERNEL(cuda_rope, CUDA_THREADS)
{
    CUDA_DYNAMIC(float, turn);
    const uint64_t row = blockIdx.x;
    const uint32_t apart = p.interleaved != 0 ? 1 : p.pairs, next = p.interleaved != 0 ? 2 : 1;
    const uint32_t rest = p.head_dim - 2 * p.pairs; /* of each head, behind the pairs */

    for (uint32_t j = threadIdx.x; j < p.pairs; j += blockDim.x) {
        float s, c;
        sine_cosine(static_cast<float>(p.positions[row]) * p.frequencies[j], &s, &c);
        turn[2 * j] = c * p.magnitude;
        turn[2 * j + 1] = (p.inverse != 0 ? -s : s) * p.magnitude;
    }
    __syncthreads();
    if (p.interleaved == 0 && p.pairs % OCTET == 0) {
        const uint32_t octets = p.pairs / OCTET; /* of each half of a head */
        for (uint32_t i = threadIdx.x; i < p.heads * octets; i += blockDim.x) {
            const uint32_t head = i / octets, j = (i - head * octets) * OCTET;
            octets_turn(p, turn, row, static_cast<uint64_t>(head) * p.head_dim + j, j);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < p.heads * p.pairs; i += blockDim.x) {
            const uint32_t head = i / p.pairs, j = i - head * p.pairs;
            const uint64_t one = static_cast<uint64_t>(head) * p.head_dim + j * next;
            const float x1 = view_load(p.x, row, one), x2 = view_load(p.x, row, one + apart);
            const float c = turn[2 * j], s = turn[2 * j + 1];
            view_store(p.y, row, one, x1 * c - x2 * s);
            view_store(p.y, row, one + apart, x2 * c + x1 * s);
        }
    }
    for (uint32_t i = threadIdx.x; i < p.heads * rest; i += blockDim.x) {
        const uint32_t head = i / rest, j = i - head * rest;
        const uint64_t at = static_cast<uint64_t>(head) * p.head_dim + 2 * p.pairs + j;
        view_store(p.y, row, at, view_load(p.x, row, at));
    }
}
