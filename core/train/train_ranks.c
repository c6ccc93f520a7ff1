/* train_ranks.c - sums and words of rank 0, by one gather. */
#include <train/train_ranks.h>

#include <stdio.h>
#include <string.h>

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

static void join_texts(const char (*all)[AGREE_TEXT], uint32_t size, text_t *out)
{
    for (uint32_t r = 0, end; r < size; r = end) {
        for (end = r + 1; end < size && strcmp(all[r], all[end]) == 0; end++) {
        }
        if (r == 0 && end == size)
            text_append(out, all[0]);
        else if (end == r + 1)
            text_printf(out, "%srank %u: %s", r == 0 ? "" : "; ", r, all[r]);
        else
            text_printf(out, "%sranks %u to %u: %s", r == 0 ? "" : "; ", r, end - 1, all[r]);
    }
}

lh_status_t agree_text(agree_t *a, const char *mine, text_t *out)
{
    char own[AGREE_TEXT] = {0};
    (void)snprintf(own, sizeof(own), "%s", mine);
    const uint32_t size = agree_size(a);
    char(*all)[AGREE_TEXT] = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    if (a->ranks != NULL)
        status = a->ranks->gather(a->ranks->context, own, sizeof(own), all);
    else
        memcpy(all[0], own, sizeof(own));
    if (status == LH_OK) {
        for (uint32_t r = 0; r < size; r++)
            all[r][AGREE_TEXT - 1] = '\0';
        join_texts((const char(*)[AGREE_TEXT])all, size, out);
        status = text_status(out);
    }
    mem_free(all);
    return status;
}
