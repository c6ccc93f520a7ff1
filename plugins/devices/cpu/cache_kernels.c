/* cache_kernels.c - appends the keys and values of new tokens to the cache of their sequence.
 *
 * Where rows go is read from device memory (lengths), so a call is planned once and serves every
 * token of a generation. */
#include "vector.h"

LH_SLOTS(LH_CACHE_WRITE_TEXT);

/* Which row of the cache row `row` of x goes to; past the capacity: false. */
static bool cache_row(const lh_prepared_t *k, uint64_t row, uint64_t *out)
{
    const uint64_t rows = k->view[in_x].rows / k->view[in_lengths].width,
                   capacity = k->arg[in_cache].shape[1];
    const uint64_t sequence = row / rows;
    const int32_t length = ((const int32_t *)k->at[in_lengths])[sequence];
    const uint64_t at = (uint64_t)(length > 0 ? length : 0) + row % rows;

    *out = sequence * capacity + at;
    return at < capacity;
}

static void cache_write_part(const lh_prepared_t *k, uint32_t part)
{
    const uint64_t bytes = k->view[in_x].width * lh_dtype_bytes(k->view[in_x].dtype);
    uint64_t begin, end, to;

    cpu_range(part, k->number[0], k->view[in_x].rows, &begin, &end);
    for (uint64_t row = begin; row < end; row++) {
        if (cache_row(k, row, &to)) memcpy(cpu_row(k, out_cache, to), cpu_row(k, in_x, row), bytes);
    }
}

/* The cache is an output that lies in its input's memory: rows that are not written stay. */
static lh_status_t cache_write_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                    lh_kernel_plan_t *plan)
{
    (void)desc;
    (void)plan;
    const uint64_t sequences = k->view[in_lengths].width;
    if (k->arg[in_cache].rank != 3 || k->arg[in_cache].shape[0] != sequences ||
        k->view[in_x].rows % sequences != 0 || k->view[in_cache].width != k->view[in_x].width) {
        return k->host->fail(k->host, LH_INVALID,
                             "cache_write: [%llu, %llu] into a cache of %llu sequences, width %llu",
                             (unsigned long long)k->view[in_x].rows,
                             (unsigned long long)k->view[in_x].width, (unsigned long long)sequences,
                             (unsigned long long)k->view[in_cache].width);
    }
    k->number[0] = cpu_chunk(k->view[in_x].rows, 16, 64);
    cpu_phase_add(k, cache_write_part, k->view[in_x].rows, k->number[0]);
    return LH_OK;
}

extern const cpu_op_t CPU_ISA(cache_ops)[];
const cpu_op_t CPU_ISA(cache_ops)[] = {
    {"cache_write", "xixx", cache_write_plan},
    {0},
};
