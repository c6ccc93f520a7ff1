/* element.cu - ops that look at one element at a time. Each thread does an octet; what they take is
 * the memory's time. */
#include "kernel.cuh"

CUDA_KERNEL(cuda_copy, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.x, &row, &column)) return;
    octet_store(p.y, row, column, p.x.width, octet_load(p.x, row, column, p.x.width));
}

CUDA_KERNEL(cuda_zero, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.y, &row, &column)) return;
    const octet none = {};
    octet_store(p.y, row, column, p.y.width, none);
}

/* As a double, which holds all but the largest I64. */
CUDA_INLINE double any_load(const void *at, uint32_t dtype, uint64_t i)
{
    switch (dtype) {
    case LH_DTYPE_F64: return static_cast<const double *>(at)[i];
    case LH_DTYPE_I32: return static_cast<const int32_t *>(at)[i];
    case LH_DTYPE_I64: return static_cast<double>(static_cast<const int64_t *>(at)[i]);
    case LH_DTYPE_U8: return static_cast<const uint8_t *>(at)[i];
    case LH_DTYPE_I8: return static_cast<const int8_t *>(at)[i];
    default: return static_cast<double>(element_load(at, dtype, i));
    }
}

/* A double on its way to 16 bits must not be rounded twice: F32 keeps the last bit odd where anything
 * was cut off (round to odd), which leaves no false tie to the second rounding. */
CUDA_INLINE float rounded_to_odd(double value)
{
    const float near = static_cast<float>(value);
    const double back = static_cast<double>(near);
    if (!(fabs(value) <= 3.4028234663852886e38) || back == value) return near;
    uint32_t bits = float_bits(near);
    /* Towards zero first, then the odd bit. */
    if (fabs(back) > fabs(value)) bits -= 1;
    return bits_float(bits | 1u);
}

CUDA_INLINE void any_store(void *at, uint32_t dtype, uint64_t i, double value)
{
    switch (dtype) {
    case LH_DTYPE_F64: static_cast<double *>(at)[i] = value; break;
    case LH_DTYPE_F32: static_cast<float *>(at)[i] = static_cast<float>(value); break;
    case LH_DTYPE_I32: static_cast<int32_t *>(at)[i] = static_cast<int32_t>(rint(value)); break;
    case LH_DTYPE_I64: static_cast<int64_t *>(at)[i] = static_cast<int64_t>(rint(value)); break;
    case LH_DTYPE_U8: static_cast<uint8_t *>(at)[i] = static_cast<uint8_t>(rint(value)); break;
    case LH_DTYPE_I8: static_cast<int8_t *>(at)[i] = static_cast<int8_t>(rint(value)); break;
    default: element_store(at, dtype, i, rounded_to_odd(value)); break;
    }
}

/* Equal dtypes move as they are, which I64 and the 8-bit floats need. */
CUDA_INLINE void same_copy(const cuda_copy_strided_t &p, uint64_t from, uint64_t to)
{
    switch (p.bytes) {
    case 8: static_cast<uint64_t *>(p.y)[to] = static_cast<const uint64_t *>(p.x)[from]; break;
    case 4: static_cast<uint32_t *>(p.y)[to] = static_cast<const uint32_t *>(p.x)[from]; break;
    case 2: static_cast<uint16_t *>(p.y)[to] = static_cast<const uint16_t *>(p.x)[from]; break;
    default: static_cast<uint8_t *>(p.y)[to] = static_cast<const uint8_t *>(p.x)[from]; break;
    }
}

/* For what the octets can't walk: uneven strides, doubles and whole numbers. */
CUDA_KERNEL(cuda_copy_strided, CUDA_THREADS)
{
    uint64_t rest = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t from = 0, to = 0;
    for (int i = 3; i >= 0; i--) {
        const uint64_t at = rest % p.shape[i];
        rest /= p.shape[i];
        from += at * p.x_stride[i];
        to += at * p.y_stride[i];
    }
    if (rest > 0) return; /* behind the last element */
    if (p.bytes != 0) {
        same_copy(p, from, to);
        return;
    }
    double value = any_load(p.x, p.x_dtype, from);
    if (p.add != 0) value += any_load(p.y, p.y_dtype, to);
    any_store(p.y, p.y_dtype, to, value);
}

CUDA_KERNEL(cuda_add, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.a, &row, &column)) return;
    octet a = octet_load(p.a, row, column, p.a.width);
    const octet b = octet_load(p.b, row, column, p.a.width);
    for (uint32_t j = 0; j < OCTET; j++)
        a.v[j] += b.v[j];
    octet_store(p.y, row, column, p.a.width, a);
}

/* b is like a, one column, or one row. */
CUDA_KERNEL(cuda_multiply, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.a, &row, &column)) return;
    octet a = octet_load(p.a, row, column, p.a.width);
    if (p.factor == CUDA_FACTOR_COLUMN) {
        const float b = view_load(p.b, row, 0);
        for (uint32_t j = 0; j < OCTET; j++)
            a.v[j] *= b;
    } else {
        const octet b = octet_load(p.b, p.factor == CUDA_FACTOR_ROW ? 0 : row, column, p.a.width);
        for (uint32_t j = 0; j < OCTET; j++)
            a.v[j] *= b.v[j];
    }
    octet_store(p.y, row, column, p.a.width, a);
}

CUDA_KERNEL(cuda_scale, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.x, &row, &column)) return;
    octet x = octet_load(p.x, row, column, p.x.width);
    const float factor = *p.factor;
    for (uint32_t j = 0; j < OCTET; j++)
        x.v[j] *= factor;
    octet_store(p.y, row, column, p.x.width, x);
}

CUDA_KERNEL(cuda_activate, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.x, &row, &column)) return;
    octet x = octet_load(p.x, row, column, p.x.width);
    for (uint32_t j = 0; j < OCTET; j++)
        x.v[j] = act(p.function, x.v[j]);
    octet_store(p.y, row, column, p.x.width, x);
}

CUDA_KERNEL(cuda_activate_grad, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.x, &row, &column)) return;
    octet g = octet_load(p.gy, row, column, p.x.width);
    const octet x = octet_load(p.x, row, column, p.x.width);
    for (uint32_t j = 0; j < OCTET; j++)
        g.v[j] *= act_slope(p.function, x.v[j]);
    octet_store(p.gx, row, column, p.x.width, g);
}

CUDA_KERNEL(cuda_gate, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.a, &row, &column)) return;
    octet a = octet_load(p.a, row, column, p.a.width);
    const octet b = octet_load(p.b, row, column, p.a.width);
    for (uint32_t j = 0; j < OCTET; j++)
        a.v[j] = act(p.function, a.v[j]) * b.v[j];
    octet_store(p.y, row, column, p.a.width, a);
}

/* Either gradient may lie over the input it belongs to: all is read before anything is written. */
CUDA_KERNEL(cuda_gate_grad, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.a, &row, &column)) return;
    const octet g = octet_load(p.gy, row, column, p.a.width);
    octet a = octet_load(p.a, row, column, p.a.width);
    octet b = octet_load(p.b, row, column, p.a.width);
    for (uint32_t j = 0; j < OCTET; j++) {
        const float x = a.v[j];
        a.v[j] = g.v[j] * b.v[j] * act_slope(p.function, x);
        b.v[j] = g.v[j] * act(p.function, x);
    }
    octet_store(p.ga, row, column, p.a.width, a);
    octet_store(p.gb, row, column, p.a.width, b);
}
