/* number_format.c - narrow floating point by integer arithmetic, so that no rounding mode, no flush
 * to zero and no quieting of a NaN by the processor can change what a weight file says. */
#include <checkpoint/number_format.h>

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

float bf16_to_f32(uint16_t x)
{
    return bits_float((uint32_t)x << 16);
}

uint16_t f32_to_bf16(float x)
{
    const uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        /* A NaN stays one: its payload may lie in the bits that are cut off. */
        const uint32_t high = bits >> 16;
        return (uint16_t)((high & 0x7fu) != 0 ? high : high | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    const uint32_t exponent = (x >> 10) & 0x1fu;
    const uint32_t fraction = x & 0x3ffu;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float value = (float)fraction * 0x1p-24f; /* exact */
    return bits_float(sign | float_bits(value));
}

uint16_t f32_to_f16(float x)
{
    const uint32_t bits = float_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        const uint32_t payload = (rest >> 13) & 0x3ffu;
        return (uint16_t)(sign | 0x7c00u | (payload != 0 ? payload : 0x200u));
    }
    if (rest >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and more: infinity */

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

uint64_t number_format_bytes(lh_dtype_t dtype)
{
    switch (dtype) {
    case LH_DTYPE_F32: return 4;
    case LH_DTYPE_BF16:
    case LH_DTYPE_F16: return 2;
    case LH_DTYPE_F64: return 8;
    default: return 0;
    }
}

bool number_format_known(lh_dtype_t dtype)
{
    return number_format_bytes(dtype) != 0;
}

void number_format_to_f32(lh_dtype_t dtype, const void *from, float *to, uint64_t count)
{
    const unsigned char *at = from;
    if (dtype == LH_DTYPE_F32) {
        memcpy(to, from, count * sizeof(float));
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint16_t narrow;
        double wide;
        if (dtype == LH_DTYPE_F64) {
            memcpy(&wide, at + i * sizeof(wide), sizeof(wide));
            to[i] = (float)wide;
            continue;
        }
        memcpy(&narrow, at + i * sizeof(narrow), sizeof(narrow));
        to[i] = dtype == LH_DTYPE_BF16 ? bf16_to_f32(narrow) : f16_to_f32(narrow);
    }
}

void number_format_from_f32(lh_dtype_t dtype, const float *from, void *to, uint64_t count)
{
    unsigned char *at = to;
    if (dtype == LH_DTYPE_F32) {
        memcpy(to, from, count * sizeof(float));
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (dtype == LH_DTYPE_F64) {
            const double wide = (double)from[i];
            memcpy(at + i * sizeof(wide), &wide, sizeof(wide));
            continue;
        }
        const uint16_t narrow = dtype == LH_DTYPE_BF16 ? f32_to_bf16(from[i]) : f32_to_f16(from[i]);
        memcpy(at + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
}
