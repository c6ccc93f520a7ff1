/* shares.c - who owns which elements of every parameter. */
#include <parallel/shares.h>

#include <base/checked.h>
#include <base/memory.h>

static bool only_by_element(const lh_rule_t *rule)
{
    for (uint32_t i = 0; i < rule->state_count; i++)
        if (rule->states[i].extent != LH_EXTENT_ELEMENT) return false;
    return true;
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Elements that stay together: a multiple of the norm's block and of the rule's grain. A rule whose
 * states span more than the elements they belong to keeps the parameter whole. */
static uint64_t unit_of(const parameter_t *p, const lh_rule_t *rule)
{
    uint64_t grain = 1, unit;
    if (rule->grain == LH_GRAIN_ROW) grain = p->columns;
    if (rule->grain == LH_GRAIN_BLOCK && rule->grain_elements != 0) grain = rule->grain_elements;
    if (grain == 0 || rule->grain == LH_GRAIN_MATRIX || !only_by_element(rule)) return p->elements;
    if (!checked_mul(LH_NORM_BLOCK / greatest_divisor(LH_NORM_BLOCK, grain), grain, &unit))
        return p->elements;
    return unit;
}

static lh_slice_t default_slice(const parameter_t *p, uint64_t unit, uint32_t ways, uint32_t place)
{
    const uint64_t units = unit == 0 ? 0 : (p->elements + unit - 1) / unit;
    lh_slice_t s = {units * place / ways * unit, units * (place + 1) / ways * unit};
    if (s.begin > p->elements) s.begin = p->elements;
    if (s.end > p->elements) s.end = p->elements;
    return s;
}

/* Every element has exactly one owner: the slices, in order of their begin, follow each other. */
static lh_status_t slices_check(const parameter_t *p, const lh_slice_t *slices, uint32_t ways)
{
    uint64_t at = 0;
    for (uint32_t done = 0; done < ways && at < p->elements; done++) {
        uint32_t next = ways;
        for (uint32_t m = 0; m < ways; m++)
            if (slices[m].begin == at && slices[m].end > at) next = m;
        if (next == ways) break;
        at = slices[next].end;
    }
    uint64_t sum = 0;
    for (uint32_t m = 0; m < ways; m++)
        sum += slices[m].end - slices[m].begin;
    if (at == p->elements && sum == p->elements) return LH_OK;
    return fail(LH_INVALID,
                "the optimizer's slices of parameter '%s' don't give each of its %llu elements to "
                "one rank: nobody, or two, hold element %llu",
                p->name, (unsigned long long)p->elements, (unsigned long long)at);
}

static lh_status_t parameter_cut(const shares_how_t *how, uint32_t index, lh_slice_t *slices)
{
    const parameter_t *p = &how->parameters->items[index];
    if (how->api == NULL || how->api->slice == NULL) {
        const uint64_t unit = unit_of(p, how->rule_of[index]);
        for (uint32_t m = 0; m < how->ways; m++)
            slices[m] = default_slice(p, unit, how->ways, (m + index) % how->ways);
        return LH_OK;
    }
    for (uint32_t m = 0; m < how->ways; m++) {
        const lh_status_t status = how->api->slice(how->optimizer, how->space, index, m,
                                                   &slices[m]);
        if (status != LH_OK) return status;
        if (slices[m].begin > slices[m].end || slices[m].end > p->elements)
            return fail(LH_INVALID,
                        "the optimizer's slice of parameter '%s' for rank %u is %llu to "
                        "%llu; it has %llu elements",
                        p->name, m, (unsigned long long)slices[m].begin,
                        (unsigned long long)slices[m].end, (unsigned long long)p->elements);
        if (slices[m].begin % LH_NORM_BLOCK != 0 && slices[m].begin != p->elements)
            return fail(LH_INVALID,
                        "the optimizer's slice of parameter '%s' for rank %u begins at "
                        "%llu, which is no multiple of %d",
                        p->name, m, (unsigned long long)slices[m].begin, LH_NORM_BLOCK);
    }
    return slices_check(p, slices, how->ways);
}

lh_status_t shares_new(const shares_how_t *how, shares_t *out)
{
    const uint32_t count = how->parameters->count;
    shares_t s = {.ways = how->ways, .count = count};
    s.slices = mem_array((size_t)count * how->ways, sizeof(*s.slices));
    if (s.slices == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const lh_status_t status = parameter_cut(how, i, &s.slices[(size_t)i * how->ways]);
        if (status != LH_OK) {
            shares_free(&s);
            return status;
        }
    }
    *out = s;
    return LH_OK;
}

void shares_free(shares_t *s)
{
    mem_free(s->slices);
    *s = (shares_t){0};
}

lh_slice_t shares_slice(const shares_t *s, uint32_t parameter, uint32_t member)
{
    return s->slices[(size_t)parameter * s->ways + member];
}
