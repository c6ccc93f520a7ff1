/* canonical_sum.h - the order of sums as design says it, written down once more for tests: slow,
 * element by element. */
#ifndef CANONICAL_SUM_H
#define CANONICAL_SUM_H

#include <control/world.h>
#include <longhaul/dtype.h>

static inline float test_load(lh_dtype_t dtype, const void *data, uint64_t at)
{
    return dtype == LH_DTYPE_F32 ? ((const float *)data)[at]
                                 : lh_bf16_to_f32(((const uint16_t *)data)[at]);
}

static inline void test_store(lh_dtype_t dtype, void *data, uint64_t at, float value)
{
    if (dtype == LH_DTYPE_F32)
        ((float *)data)[at] = value;
    else
        ((uint16_t *)data)[at] = lh_f32_to_bf16(value);
}

/* inputs[member]; the element `at` belongs to `owner`. */
static inline float canonical_sum(const group_t *g, lh_dtype_t dtype, void *const *inputs,
                                  uint32_t owner, uint64_t at)
{
    float total = 0;
    const uint32_t home = g->site_of[owner];
    for (uint32_t k = 1; k <= g->sites; k++) {
        const uint32_t site = (home + k) % g->sites, begin = g->site_begin[site];
        const uint32_t size = g->site_begin[site + 1] - begin;
        const uint32_t last = world_group_leader(g, site, owner) - begin;
        float inside = test_load(dtype, inputs[begin + (last + 1) % size], at);
        for (uint32_t i = 2; i <= size; i++)
            inside += test_load(dtype, inputs[begin + (last + i) % size], at);
        total = k == 1 ? inside : total + inside;
    }
    return total;
}

#endif
