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

static inline float test_round(lh_dtype_t dtype, float value)
{
    return dtype == LH_DTYPE_BF16 ? lh_bf16_to_f32(lh_f32_to_bf16(value)) : value;
}

/* inputs[member]; the element `at` belongs to `owner`. What one site adds. */
static inline float canonical_part(const group_t *g, lh_dtype_t dtype, void *const *inputs,
                                   uint32_t owner, uint32_t site, uint64_t at)
{
    const uint32_t begin = g->site_begin[site], size = g->site_begin[site + 1] - begin;
    const uint32_t last = world_group_leader(g, site, owner) - begin;
    float inside = test_load(dtype, inputs[begin + (last + 1) % size], at);
    for (uint32_t i = 2; i <= size; i++)
        inside += test_load(dtype, inputs[begin + (last + i) % size], at);
    return inside;
}

/* border BF16: what a site adds and the sum are rounded, where there are several sites. */
static inline float canonical_sum(const group_t *g, lh_dtype_t dtype, lh_dtype_t border,
                                  void *const *inputs, uint32_t owner, uint64_t at)
{
    float total = 0;
    const uint32_t home = g->site_of[owner];
    for (uint32_t k = 1; k <= g->sites; k++) {
        const uint32_t site = (home + k) % g->sites;
        float inside = canonical_part(g, dtype, inputs, owner, site, at);
        if (g->sites > 1) inside = test_round(border, inside);
        total = k == 1 ? inside : total + inside;
    }
    return g->sites > 1 ? test_round(border, total) : total;
}

#endif
