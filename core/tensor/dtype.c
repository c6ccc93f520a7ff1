/* dtype.c - sizes, names and conversions of dtypes in host memory. */
#include <tensor/dtype.h>

static const struct {
    const char *name;
    uint8_t bytes;
    bool real; /* converted through float or double */
} dtypes[LH_DTYPES] = {
    [LH_DTYPE_NONE] = {"none",   0, false},
      [LH_DTYPE_F32] = {"f32",    4, true },
    [LH_DTYPE_BF16] = {"bf16",   2, true },
      [LH_DTYPE_F16] = {"f16",    2, true },
    [LH_DTYPE_F8E4M3] = {"f8e4m3", 1, false},
      [LH_DTYPE_F8E5M2] = {"f8e5m2", 1, false},
    [LH_DTYPE_F64] = {"f64",    8, true },
      [LH_DTYPE_I32] = {"i32",    4, false},
    [LH_DTYPE_I64] = {"i64",    8, false},
      [LH_DTYPE_U8] = {"u8",     1, false},
    [LH_DTYPE_I8] = {"i8",     1, false},
};

uint64_t dtype_bytes(lh_dtype_t dtype)
{
    return dtype < LH_DTYPES ? dtypes[dtype].bytes : 0;
}

const char *dtype_name(lh_dtype_t dtype)
{
    return dtype < LH_DTYPES && dtypes[dtype].name != NULL ? dtypes[dtype].name : "unknown";
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

uint16_t bf16_from_f32(float value)
{
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u); /* quiet NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t f16_from_f32(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536: infinite */
    if (size < 0x38800000u) { /* subnormal: the addition rounds at the right place */
        const float small = float_of(size) + 0.5f;
        return (uint16_t)(sign | (bits_of(small) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13));
}

float f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return float_of(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size >= 0x0400u) return float_of(sign | ((size << 13) + 0x38000000u));
    const float value = (float)size * 0x1p-24f;
    return sign != 0 ? -value : value;
}

static double element_get(lh_dtype_t dtype, const void *from, uint64_t i)
{
    switch (dtype) {
    case LH_DTYPE_F64: return ((const double *)from)[i];
    case LH_DTYPE_F32: return (double)((const float *)from)[i];
    case LH_DTYPE_BF16: return (double)bf16_to_f32(((const uint16_t *)from)[i]);
    default: return (double)f16_to_f32(((const uint16_t *)from)[i]);
    }
}

/* A double goes to 16 bits through F32 rounded to odd, so that it is rounded once. */
static float narrowed_to_odd(double value)
{
    const float nearest = (float)value;
    if ((double)nearest == value || value != value) return nearest;
    uint32_t bits = bits_of(nearest);
    const double size = value < 0 ? -value : value, got = (double)float_of(bits & 0x7fffffffu);
    if (got > size) bits--;
    return float_of(bits | 1u);
}

static void element_set(lh_dtype_t dtype, void *to, uint64_t i, double value)
{
    switch (dtype) {
    case LH_DTYPE_F64: ((double *)to)[i] = value; break;
    case LH_DTYPE_F32: ((float *)to)[i] = (float)value; break;
    case LH_DTYPE_BF16: ((uint16_t *)to)[i] = bf16_from_f32(narrowed_to_odd(value)); break;
    default: ((uint16_t *)to)[i] = f16_from_f32(narrowed_to_odd(value)); break;
    }
}

bool dtype_converts(lh_dtype_t to_dtype, lh_dtype_t from_dtype)
{
    if (to_dtype >= LH_DTYPES || from_dtype >= LH_DTYPES) return false;
    return to_dtype == from_dtype || (dtypes[to_dtype].real && dtypes[from_dtype].real);
}

lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count)
{
    if (!dtype_converts(to_dtype, from_dtype))
        return fail(LH_INVALID, "values of dtype %s do not convert to %s", dtype_name(from_dtype),
                    dtype_name(to_dtype));
    if (to_dtype == from_dtype) {
        if (count > 0) memcpy(to, from, count * dtype_bytes(to_dtype));
        return LH_OK;
    }
    if (to_dtype == LH_DTYPE_BF16 && from_dtype == LH_DTYPE_F32) {
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = bf16_from_f32(((const float *)from)[i]);
        return LH_OK;
    }
    if (to_dtype == LH_DTYPE_F32 && from_dtype == LH_DTYPE_BF16) {
        for (uint64_t i = 0; i < count; i++)
            ((float *)to)[i] = bf16_to_f32(((const uint16_t *)from)[i]);
        return LH_OK;
    }
    for (uint64_t i = 0; i < count; i++)
        element_set(to_dtype, to, i, element_get(from_dtype, from, i));
    return LH_OK;
}
