/* dtype.c - what a dtype is called, how large it is, and how its values become another's. */
#include <tensor/dtype.h>

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[LH_DTYPES] = {
    [LH_DTYPE_NONE] = {"none", 0},      [LH_DTYPE_F32] = {"F32", 4},
    [LH_DTYPE_BF16] = {"BF16", 2},      [LH_DTYPE_F16] = {"F16", 2},
    [LH_DTYPE_F8E4M3] = {"F8_E4M3", 1}, [LH_DTYPE_F8E5M2] = {"F8_E5M2", 1},
    [LH_DTYPE_F64] = {"F64", 8},        [LH_DTYPE_I32] = {"I32", 4},
    [LH_DTYPE_I64] = {"I64", 8},        [LH_DTYPE_U8] = {"U8", 1},
    [LH_DTYPE_I8] = {"I8", 1},
};

uint64_t dtype_bytes(lh_dtype_t dtype)
{
    return dtype < LH_DTYPES ? dtypes[dtype].bytes : 0;
}

const char *dtype_name(lh_dtype_t dtype)
{
    return dtype < LH_DTYPES && dtypes[dtype].name != NULL ? dtypes[dtype].name : "unknown dtype";
}

bool dtype_find(const char *name, lh_dtype_t *out)
{
    for (lh_dtype_t d = 1; d < LH_DTYPES; d++) {
        if (dtypes[d].name == NULL || strcmp(dtypes[d].name, name) != 0) continue;
        *out = d;
        return true;
    }
    return false;
}

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

static double load(lh_dtype_t dtype, const void *from, uint64_t i)
{
    switch (dtype) {
    case LH_DTYPE_F32: return ((const float *)from)[i];
    case LH_DTYPE_F64: return ((const double *)from)[i];
    case LH_DTYPE_BF16: return bf16_to_f32(((const uint16_t *)from)[i]);
    default: return f16_to_f32(((const uint16_t *)from)[i]);
    }
}

static void store(lh_dtype_t dtype, void *to, uint64_t i, double value)
{
    switch (dtype) {
    case LH_DTYPE_F32: ((float *)to)[i] = (float)value; return;
    case LH_DTYPE_F64: ((double *)to)[i] = value; return;
    case LH_DTYPE_BF16: ((uint16_t *)to)[i] = f32_to_bf16((float)value); return;
    default: ((uint16_t *)to)[i] = f32_to_f16((float)value); return;
    }
}

static float narrow_load(lh_dtype_t dtype, const void *from, uint64_t i)
{
    const uint16_t bits = ((const uint16_t *)from)[i];
    return dtype == LH_DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static void narrow_store(lh_dtype_t dtype, void *to, uint64_t i, float value)
{
    ((uint16_t *)to)[i] = dtype == LH_DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
}

static bool is_float(lh_dtype_t d)
{
    return d == LH_DTYPE_F32 || d == LH_DTYPE_F64 || d == LH_DTYPE_BF16 || d == LH_DTYPE_F16;
}

lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count)
{
    if (to_dtype == from_dtype) {
        memcpy(to, from, count * dtype_bytes(to_dtype));
        return LH_OK;
    }
    if (!is_float(to_dtype) || !is_float(from_dtype))
        return fail(LH_UNSUPPORTED, "no conversion from %s to %s", dtype_name(from_dtype),
                    dtype_name(to_dtype));
    /* Between F32 and a narrow one no double stands between: it would quiet a NaN, and what came
     * from a narrow file must go back to the same bits. */
    for (uint64_t i = 0; i < count; i++) {
        if (to_dtype == LH_DTYPE_F32 && from_dtype != LH_DTYPE_F64)
            ((float *)to)[i] = narrow_load(from_dtype, from, i);
        else if (from_dtype == LH_DTYPE_F32 && to_dtype != LH_DTYPE_F64)
            narrow_store(to_dtype, to, i, ((const float *)from)[i]);
        else
            store(to_dtype, to, i, load(from_dtype, from, i));
    }
    return LH_OK;
}
