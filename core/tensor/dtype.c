/* dtype.c - what a dtype is called, how large it is, and how its values become another's. */
#include <tensor/dtype.h>

#include <math.h>

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[LH_DTYPES] = {
    [LH_DTYPE_NONE] = {"none",    0},
      [LH_DTYPE_F32] = {"F32",     4},
    [LH_DTYPE_BF16] = {"BF16",    2},
      [LH_DTYPE_F16] = {"F16",     2},
    [LH_DTYPE_F8E4M3] = {"F8_E4M3", 1},
      [LH_DTYPE_F8E5M2] = {"F8_E5M2", 1},
    [LH_DTYPE_F64] = {"F64",     8},
      [LH_DTYPE_I32] = {"I32",     4},
    [LH_DTYPE_I64] = {"I64",     8},
      [LH_DTYPE_U8] = {"U8",      1},
    [LH_DTYPE_I8] = {"I8",      1},
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

float bf16_to_f32(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (value != value) return (uint16_t)((bits >> 16) | 0x40); /* quiet, and never infinity */
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float f16_to_f32(uint16_t bits)
{
    const int exponent = (bits >> 10) & 31;
    const float fraction = (float)(bits & 1023);
    float value;
    if (exponent == 31)
        value = fraction == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexpf(fraction, -24);
    else
        value = ldexpf(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t f32_to_f16(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (value != value) return (uint16_t)(sign | 0x7e00);
    const float size = fabsf(value);
    if (size >= 65520.0f) return (uint16_t)(sign | 0x7c00);

    int exponent;
    (void)frexpf(size, &exponent);
    /* Steps of 2^(exponent - 11), of 2^-24 among subnormals; nearbyint rounds ties to even. */
    const int step = exponent - 11 < -24 ? -24 : exponent - 11;
    const uint32_t units = (uint32_t)nearbyintf(ldexpf(size, -step));
    return (uint16_t)(sign | (units + (uint32_t)(step + 24) * 1024));
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
    for (uint64_t i = 0; i < count; i++)
        store(to_dtype, to, i, load(from_dtype, from, i));
    return LH_OK;
}
