/* cache.c - appends the keys and values of new tokens to the cache of their sequence. */
#include "vector.h"

enum { X, LENGTHS, CACHE };

/* Which row of the cache row `row` of x goes to; past the capacity: false. */
static bool cache_row(const lh_prepared_t *k, uint64_t row, uint64_t *out)
{
    const uint64_t rows = k->view[X].rows / k->view[LENGTHS].width,
                   capacity = k->arg[CACHE].shape[1];
    const uint64_t sequence = row / rows;
    const int32_t length = ((const int32_t *)k->at[LENGTHS])[sequence];
    const uint64_t at = (uint64_t)(length > 0 ? length : 0) + row % rows;

    *out = sequence * capacity + at;
    return at < capacity;
}

static void cache_write_part(const lh_prepared_t *k, uint32_t part)
{
    const uint64_t bytes = k->view[X].width * cpu_dtype_bytes(k->view[X].dtype);
    uint64_t begin, end, to;

    cpu_range(part, k->number[0], k->view[X].rows, &begin, &end);
    for (uint64_t row = begin; row < end; row++) {
        if (cache_row(k, row, &to)) memcpy(cpu_row(k, CACHE + 1, to), cpu_row(k, X, row), bytes);
    }
}

static lh_status_t cache_write_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                    lh_kernel_plan_t *plan)
{
    (void)desc;
    (void)plan;
    const uint64_t sequences = k->view[LENGTHS].width;
    if (k->arg[CACHE].rank != 3 || k->arg[CACHE].shape[0] != sequences ||
        k->view[X].rows % sequences != 0 || k->view[CACHE].width != k->view[X].width) {
        return k->host->fail(k->host, LH_INVALID,
                             "cache_write: [%llu, %llu] into a cache of %llu sequences, width %llu",
                             (unsigned long long)k->view[X].rows,
                             (unsigned long long)k->view[X].width, (unsigned long long)sequences,
                             (unsigned long long)k->view[CACHE].width);
    }
    k->number[0] = cpu_chunk(k->view[X].rows, 16, 64);
    cpu_phase_add(k, cache_write_part, k->view[X].rows, k->number[0]);
    return LH_OK;
}

extern const cpu_op_t CPU_ISA(cache_ops)[];
const cpu_op_t CPU_ISA(cache_ops)[] = {
    {"cache_write", cache_write_plan},
    {0},
};
