/* dtype.c - finds names, and converts element by element.
 *
 * A pair with F64, or of the two 16-bit dtypes, goes through double, which holds every value of the
 * four exactly. There is one rounding, on the way out, but for F64 to BF16 or F16, which is rounded
 * to F32 first. The dtype is looked at for each element: what is converted here comes from a file
 * or goes to one, which takes longer. */
#include <base/dtype.h>

bool dtype_find(const char *name, lh_dtype_t *out)
{
    for (lh_dtype_t d = 1; d < LH_DTYPES; d++) {
        if (lh_dtype_bytes(d) == 0 || strcmp(lh_dtype_name(d), name) != 0) continue;
        *out = d;
        return true;
    }
    return false;
}

/* Element i as a double; one of the four dtypes of dtype_is_float. */
static double dtype_load(lh_dtype_t dtype, const void *from, uint64_t i)
{
    switch (dtype) {
    case LH_DTYPE_F32: return ((const float *)from)[i];
    case LH_DTYPE_F64: return ((const double *)from)[i];
    case LH_DTYPE_BF16: return lh_bf16_to_f32(((const uint16_t *)from)[i]);
    default: return lh_f16_to_f32(((const uint16_t *)from)[i]);
    }
}

static void dtype_store(lh_dtype_t dtype, void *to, uint64_t i, double value)
{
    switch (dtype) {
    case LH_DTYPE_F32: ((float *)to)[i] = (float)value; return;
    case LH_DTYPE_F64: ((double *)to)[i] = value; return;
    case LH_DTYPE_BF16: ((uint16_t *)to)[i] = lh_f32_to_bf16((float)value); return;
    default: ((uint16_t *)to)[i] = lh_f32_to_f16((float)value); return;
    }
}

/* Of BF16 and F16 alone: from and to F32 without a double in between. */
static float narrow_load(lh_dtype_t dtype, const void *from, uint64_t i)
{
    const uint16_t bits = ((const uint16_t *)from)[i];
    return dtype == LH_DTYPE_BF16 ? lh_bf16_to_f32(bits) : lh_f16_to_f32(bits);
}

static void dtype_store_narrow(lh_dtype_t dtype, void *to, uint64_t i, float value)
{
    ((uint16_t *)to)[i] = dtype == LH_DTYPE_BF16 ? lh_f32_to_bf16(value) : lh_f32_to_f16(value);
}

static bool dtype_is_float(lh_dtype_t d)
{
    return d == LH_DTYPE_F32 || d == LH_DTYPE_F64 || d == LH_DTYPE_BF16 || d == LH_DTYPE_F16;
}

lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count)
{
    lh_assert(lh_dtype_bytes(to_dtype) > 0 && lh_dtype_bytes(from_dtype) > 0);
    if (to_dtype == from_dtype) {
        memcpy(to, from, count * lh_dtype_bytes(to_dtype));
        return LH_OK;
    }
    if (!dtype_is_float(to_dtype) || !dtype_is_float(from_dtype))
        return fail(LH_UNSUPPORTED, "no conversion from %s to %s", lh_dtype_name(from_dtype),
                    lh_dtype_name(to_dtype));
    /* F32 and a narrow dtype are converted directly: on the way through a double the processor
     * would make a quiet NaN of a signalling one, and a model that was imported from a narrow file
     * must be exported with the same bits. */
    for (uint64_t i = 0; i < count; i++) {
        if (to_dtype == LH_DTYPE_F32 && from_dtype != LH_DTYPE_F64)
            ((float *)to)[i] = narrow_load(from_dtype, from, i);
        else if (from_dtype == LH_DTYPE_F32 && to_dtype != LH_DTYPE_F64)
            dtype_store_narrow(to_dtype, to, i, ((const float *)from)[i]);
        else
            dtype_store(to_dtype, to, i, dtype_load(from_dtype, from, i));
    }
    return LH_OK;
}
