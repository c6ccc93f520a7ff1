/* train_ranks.c - sums and words of rank 0, by one gather. */
#include <train/train_ranks.h>

#include <base/memory.h>

lh_status_t agree_new(const train_ranks_t *ranks, agree_t *out)
{
    *out = (agree_t){0};
    if (ranks == NULL || ranks->size <= 1) return LH_OK;
    out->all = mem_array(ranks->size, AGREE_MOST * sizeof(*out->all));
    if (out->all == NULL) return LH_NO_MEMORY;
    out->ranks = ranks;
    return LH_OK;
}

void agree_free(agree_t *a)
{
    mem_free(a->all);
    *a = (agree_t){0};
}

static void sum(const agree_t *a, double *values, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        values[k] = 0;
        for (uint32_t r = 0; r < a->ranks->size; r++)
            values[k] += a->all[r * count + k];
    }
}

lh_status_t agree_sum(agree_t *a, double *values, uint32_t count)
{
    if (a->ranks == NULL) return LH_OK;
    const train_ranks_t *r = a->ranks;
    const lh_status_t status = r->gather(r->context, values, count * sizeof(*values), a->all);
    if (status == LH_OK) sum(a, values, count);
    return status;
}

lh_status_t agree_start(agree_t *a, const double *values, uint32_t count)
{
    if (a->ranks == NULL || a->ranks->start == NULL) return LH_OK;
    return a->ranks->start(a->ranks->context, values, count * sizeof(*values));
}

lh_status_t agree_finish(agree_t *a, double *values, uint32_t count)
{
    if (a->ranks == NULL) return LH_OK;
    const train_ranks_t *r = a->ranks;
    if (r->start == NULL) return agree_sum(a, values, count);
    const lh_status_t status = r->finish(r->context, count * sizeof(*values), a->all);
    if (status == LH_OK) sum(a, values, count);
    return status;
}

lh_status_t agree_first(agree_t *a, void *value, size_t bytes)
{
    if (a->ranks == NULL) return LH_OK;
    char *all = mem_array(a->ranks->size, bytes);
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = a->ranks->gather(a->ranks->context, value, bytes, all);
    if (status == LH_OK) memcpy(value, all, bytes);
    mem_free(all);
    return status;
}
