/* reference_number.c - elements of every dtype as doubles, and tensors of them as rows and columns.
 */
#include <math.h>

#include "reference.h"

/* The floating formats below 32 bits. finite_only: no infinity, and NaN is all ones (E4M3). */
typedef struct small_float {
    int exponent_bits, mantissa_bits;
    bool finite_only;
} small_float_t;

static const small_float_t bf16 = {8, 7, false};
static const small_float_t f16 = {5, 10, false};
static const small_float_t f8e4m3 = {4, 3, true};
static const small_float_t f8e5m2 = {5, 2, false};

static double small_decode(const small_float_t *f, uint32_t bits)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1;
    const uint32_t mantissa_mask = (1u << f->mantissa_bits) - 1u;
    const uint32_t exponent_mask = (1u << f->exponent_bits) - 1u;
    const uint32_t mantissa = bits & mantissa_mask;
    const uint32_t exponent = bits >> f->mantissa_bits & exponent_mask;
    const double sign = bits >> (f->mantissa_bits + f->exponent_bits) != 0 ? -1.0 : 1.0;

    if (exponent == exponent_mask && f->finite_only && mantissa == mantissa_mask) return NAN;
    if (exponent == exponent_mask && !f->finite_only) {
        return mantissa == 0 ? sign * INFINITY : NAN;
    }
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return sign * ldexp(mantissa + mantissa_mask + 1u, (int)exponent - bias - f->mantissa_bits);
}

static uint32_t small_encode(const small_float_t *f, double value)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1;
    const uint32_t mantissa_mask = (1u << f->mantissa_bits) - 1u;
    const uint32_t exponent_mask = (1u << f->exponent_bits) - 1u;
    const uint32_t sign = signbit(value) != 0 ? 1u << (f->exponent_bits + f->mantissa_bits) : 0;
    const uint32_t infinity = exponent_mask << f->mantissa_bits;
    const uint32_t largest = f->finite_only ? (infinity | mantissa_mask) - 1u : infinity - 1u;
    const double size = fabs(value);

    if (isnan(value)) return sign | infinity | mantissa_mask;
    if (isinf(value)) return sign | (f->finite_only ? infinity | mantissa_mask : infinity);

    int exponent = size > 0 ? ilogb(size) : -bias;
    if (exponent < 1 - bias) exponent = 1 - bias; /* subnormal: the spacing stays */
    /* In units of the last place; a carry out of the mantissa runs into the exponent by itself. */
    const double units = nearbyint(ldexp(size, f->mantissa_bits - exponent));
    if (exponent > bias + 1) return sign | (f->finite_only ? infinity | mantissa_mask : infinity);
    const uint32_t base = (uint32_t)(exponent + bias - 1) << f->mantissa_bits;
    const uint32_t bits = base + (uint32_t)units;
    if (bits > largest) return sign | (f->finite_only ? infinity | mantissa_mask : infinity);
    return sign | bits;
}

#define LOAD_AS(T)                      \
    {                                   \
        T value_;                       \
        memcpy(&value_, at, sizeof(T)); \
        return (double)value_;          \
    }

static uint32_t load_bits(const char *at, size_t bytes)
{
    uint8_t small;
    uint16_t large;
    memcpy(&small, at, 1);
    if (bytes == 1) return small;
    memcpy(&large, at, 2);
    return large;
}

double element_load(lh_dtype_t dtype, const char *at)
{
    switch (dtype) {
    case LH_DTYPE_F32: LOAD_AS(float)
    case LH_DTYPE_F64: LOAD_AS(double)
    case LH_DTYPE_I32: LOAD_AS(int32_t)
    case LH_DTYPE_I64: LOAD_AS(int64_t)
    case LH_DTYPE_U8: LOAD_AS(uint8_t)
    case LH_DTYPE_I8: LOAD_AS(int8_t)
    case LH_DTYPE_BF16: return (double)lh_bf16_to_f32((uint16_t)load_bits(at, 2));
    case LH_DTYPE_F16: return small_decode(&f16, load_bits(at, 2));
    case LH_DTYPE_F8E4M3: return small_decode(&f8e4m3, load_bits(at, 1));
    case LH_DTYPE_F8E5M2: return small_decode(&f8e5m2, load_bits(at, 1));
    default: return NAN;
    }
}

#define STORE_AS(T, value)              \
    {                                   \
        const T value_ = (T)(value);    \
        memcpy(at, &value_, sizeof(T)); \
        break;                          \
    }

void element_store(lh_dtype_t dtype, char *at, double value)
{
    switch (dtype) {
    case LH_DTYPE_F32: STORE_AS(float, value)
    case LH_DTYPE_F64: STORE_AS(double, value)
    case LH_DTYPE_I32: STORE_AS(int32_t, nearbyint(value))
    case LH_DTYPE_I64: STORE_AS(int64_t, nearbyint(value))
    case LH_DTYPE_U8: STORE_AS(uint8_t, nearbyint(value))
    case LH_DTYPE_I8: STORE_AS(int8_t, nearbyint(value))
    case LH_DTYPE_BF16: STORE_AS(uint16_t, small_encode(&bf16, value))
    case LH_DTYPE_F16: STORE_AS(uint16_t, small_encode(&f16, value))
    case LH_DTYPE_F8E4M3: STORE_AS(uint8_t, small_encode(&f8e4m3, value))
    case LH_DTYPE_F8E5M2: STORE_AS(uint8_t, small_encode(&f8e5m2, value))
    default: break;
    }
}

tensor_t tensor_view(const lh_arg_t *arg, void *address, uint64_t valid_rows)
{
    tensor_t x = {.arg = arg,
                  .address = address,
                  .rows = 1,
                  .width = 1,
                  .element_bytes = lh_dtype_bytes(arg->dtype)};

    if (arg->dtype == LH_DTYPE_NONE) x.address = NULL;
    if (arg->rank > 0) x.width = arg->shape[arg->rank - 1];
    for (uint32_t i = 0; i + 1 < arg->rank; i++)
        x.rows *= arg->shape[i];
    /* A count bounds the first dimension; of a vector that is its elements. */
    if (arg->rank == 1 && valid_rows < x.width) x.width = valid_rows;
    if (arg->rank > 1 && valid_rows < arg->shape[0]) {
        x.rows = x.rows / arg->shape[0] * valid_rows;
    }
    return x;
}

bool given(const tensor_t *x)
{
    return x->address != NULL;
}

static char *element_at(const tensor_t *x, uint64_t row, uint64_t column)
{
    const lh_arg_t *arg = x->arg;

    if (arg->rank == 2) {
        return x->address + (row * arg->stride[0] + column * arg->stride[1]) * x->element_bytes;
    }
    uint64_t offset = arg->rank > 0 ? column * arg->stride[arg->rank - 1] : 0;

    for (uint32_t i = arg->rank; i-- > 1;) {
        const uint64_t extent = i > 1 ? arg->shape[i - 1] : row + 1;
        offset += row % extent * arg->stride[i - 1];
        row /= extent;
    }
    return x->address + offset * x->element_bytes;
}

double element_get(const tensor_t *x, uint64_t row, uint64_t column)
{
    return element_load(x->arg->dtype, element_at(x, row, column));
}

int64_t get_integer(const tensor_t *x, uint64_t row, uint64_t column)
{
    return (int64_t)get(x, row, column);
}

void put(const tensor_t *y, uint64_t row, uint64_t column, double value)
{
    if (!given(y)) return;

    char *at = element_at(y, row, column);
    if ((y->arg->flags & LH_ARG_ADD) != 0) value += element_load(y->arg->dtype, at);
    element_store(y->arg->dtype, at, value);
}
