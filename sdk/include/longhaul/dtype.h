/* longhaul/dtype.h - what a dtype is called, how large it is, and how the 16-bit floats become an
 * F32 and come from one: inline, so that host and plugins round to the same bits. */
#ifndef LH_DTYPE_H
#define LH_DTYPE_H

#include <string.h>

#include <longhaul/tensor.h>

/* Bytes of one element; 0 for NONE and for numbers that no dtype has. */
static inline uint64_t lh_dtype_bytes(lh_dtype_t dtype)
{
    switch (dtype) {
    case LH_DTYPE_F64:
    case LH_DTYPE_I64: return 8;
    case LH_DTYPE_F32:
    case LH_DTYPE_I32: return 4;
    case LH_DTYPE_BF16:
    case LH_DTYPE_F16: return 2;
    case LH_DTYPE_F8E4M3:
    case LH_DTYPE_F8E5M2:
    case LH_DTYPE_U8:
    case LH_DTYPE_I8: return 1;
    default: return 0;
    }
}

/* "BF16", as safetensors writes it; "none" of NONE. */
static inline const char *lh_dtype_name(lh_dtype_t dtype)
{
    switch (dtype) {
    case LH_DTYPE_NONE: return "none";
    case LH_DTYPE_F32: return "F32";
    case LH_DTYPE_BF16: return "BF16";
    case LH_DTYPE_F16: return "F16";
    case LH_DTYPE_F8E4M3: return "F8_E4M3";
    case LH_DTYPE_F8E5M2: return "F8_E5M2";
    case LH_DTYPE_F64: return "F64";
    case LH_DTYPE_I32: return "I32";
    case LH_DTYPE_I64: return "I64";
    case LH_DTYPE_U8: return "U8";
    case LH_DTYPE_I8: return "I8";
    default: return "unknown dtype";
    }
}

/* The bits of a float, and back: by memcpy, which is defined in C and in C++. */
static inline uint32_t lh_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float lh_bits_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Exact: BF16 is the upper half of an F32. */
static inline float lh_bf16_to_f32(uint16_t bits)
{
    return lh_bits_f32((uint32_t)bits << 16);
}

/* To nearest, ties to even. A NaN stays one: its payload may lie in the bits that are cut off. */
static inline uint16_t lh_f32_to_bf16(float value)
{
    const uint32_t bits = lh_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        const uint32_t high = bits >> 16;
        return (uint16_t)((high & 0x7fu) != 0 ? high : high | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Exact. Exponent 31 is infinity and NaN, 0 is zero and the subnormals; 112 is 127 - 15, the
 * difference of the two biases. */
static inline float lh_f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    if (exponent == 31) return lh_bits_f32(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return lh_bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
    const float value = (float)fraction * (1.0f / 16777216); /* 2^-24: exact */
    return lh_bits_f32(sign | lh_f32_bits(value));
}

/* To nearest, ties to even; 65520 and more becomes infinity, a NaN stays one. */
static inline uint16_t lh_f32_to_f16(float value)
{
    const uint32_t bits = lh_f32_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        const uint32_t payload = (rest >> 13) & 0x3ffu;
        return (uint16_t)(sign | 0x7c00u | (payload != 0 ? payload : 0x200u));
    }
    if (rest >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and more */

    /* fraction: 24 bits with the leading one; shift: how many of them a half cannot hold. */
    const uint32_t exponent = rest >> 23;
    if (exponent < 102) return (uint16_t)sign; /* under half of the smallest subnormal */
    const uint32_t fraction = (rest & 0x7fffffu) | 0x800000u;
    const uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    uint32_t half = fraction >> shift;
    const uint32_t lost = fraction & ((1u << shift) - 1u), tie = 1u << (shift - 1);
    if (lost > tie || (lost == tie && (half & 1u) != 0)) half++;
    /* A normal half has its leading one in bit 10: adding one less to the exponent takes it in, and
     * a carry out of the fraction arrives where it belongs. */
    if (exponent >= 113) half += (exponent - 113) << 10;
    return (uint16_t)(sign | half);
}

#endif
