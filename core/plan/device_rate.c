/* device_rate.c - times from rates: the nearest measured call of the same kind tells how close to
 * peak or bandwidth a call comes. */
#include <plan/device_rate.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/text.h>
#include <longhaul/ops.h>
#include <tensor/dtype.h>

static bool is_float(lh_dtype_t dtype)
{
    switch (dtype) {
    case LH_DTYPE_F32:
    case LH_DTYPE_BF16:
    case LH_DTYPE_F16:
    case LH_DTYPE_F8E4M3:
    case LH_DTYPE_F8E5M2:
    case LH_DTYPE_F64: return true;
    default: return false;
    }
}

lh_dtype_t call_dtype(const program_call_t *call)
{
    for (uint32_t i = 0; i < call->arg_count; i++)
        if (is_float(call->args[i].dtype)) return call->args[i].dtype;
    return LH_DTYPE_F32;
}

void call_kind(const program_call_t *call, char out[CALL_KIND])
{
    if (call->op == NULL) {
        (void)snprintf(out, CALL_KIND, "fill");
        return;
    }
    char sides[8] = "";
    const char *op = call->op->row.name;
    if (text_equal(op, "matmul")) {
        const lh_matmul_t *how = call->attributes;
        (void)snprintf(sides, sizeof(sides), " %c%c",
                       how != NULL && how->transpose_a != 0 ? 't' : 'n',
                       how != NULL && how->transpose_b != 0 ? 't' : 'n');
    }
    (void)snprintf(out, CALL_KIND, "%.47s%s %s", op, sides, dtype_name(call_dtype(call)));
}

double device_rate_ideal(const device_rate_t *r, lh_dtype_t dtype, double flops, double bytes)
{
    double peak = dtype < LH_DTYPES ? r->peak_flops[dtype] : 0;
    if (peak <= 0) peak = r->peak_flops[LH_DTYPE_F32];
    const double compute = peak > 0 ? flops / peak : 0;
    const double move = r->bytes_per_second > 0 ? bytes / r->bytes_per_second : 0;
    return fmax(compute, move);
}

/* How many times larger or smaller one call is than another, in powers of e. */
static double distance(const op_rate_t *op, double flops, double bytes)
{
    return fabs(log((op->flops + 1) / (flops + 1))) + fabs(log((op->bytes + 1) / (bytes + 1)));
}

double device_rate_seconds(const device_rate_t *r, const program_call_t *call, bool *measured)
{
    char kind[CALL_KIND];
    call_kind(call, kind);
    const op_rate_t *nearest = NULL;
    for (uint32_t i = 0; i < r->op_count; i++) {
        const op_rate_t *op = &r->ops[i];
        if (strcmp(op->kind, kind) != 0) continue;
        if (nearest == NULL ||
            distance(op, call->flops, call->bytes) < distance(nearest, call->flops, call->bytes))
            nearest = op;
    }
    *measured = nearest != NULL;
    const double ideal = device_rate_ideal(r, call_dtype(call), call->flops, call->bytes);
    return ideal / (nearest == NULL ? 1 : nearest->efficiency) + r->launch_s;
}

lh_status_t device_rate_add(device_rate_t *r, const op_rate_t *op)
{
    for (uint32_t i = 0; i < r->op_count; i++) {
        op_rate_t *have = &r->ops[i];
        if (strcmp(have->kind, op->kind) != 0 || have->flops != op->flops ||
            have->bytes != op->bytes)
            continue;
        *have = *op;
        return LH_OK;
    }
    op_rate_t *ops = mem_grow(r->ops, &r->op_capacity, (size_t)r->op_count + 1, sizeof(*ops));
    if (ops == NULL) return LH_NO_MEMORY;
    r->ops = ops;
    r->ops[r->op_count++] = *op;
    return LH_OK;
}

void device_rate_free(device_rate_t *r)
{
    mem_free(r->ops);
    *r = (device_rate_t){0};
}
