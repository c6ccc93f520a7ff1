/* block_sums.c - the calls that add to sums over blocks and make losses of them.
 *
 * Sums are found by name, of which a model has a few: nothing is looked up once a flow is written. */
#include <engine/block_sums.h>

#include <string.h>

#include <base/memory.h>

static block_sum_t *sum_find(const block_sums_t *s, const char *name)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (strcmp(s->list[i].name, name) == 0) return &s->list[i];
    return NULL;
}

/* Notes the sums that a part adds to; all of a name are as long. */
static lh_status_t part_sums_add(block_sums_t *s, const part_t *part)
{
    const recording_t *r = part->r;
    const lh_dtype_t wide = s->p->weights->compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
    for (uint32_t i = 0; i < r->added_count; i++) {
        const uint64_t count = r->values[r->added[i].value].arg.shape[0];
        block_sum_t *known = sum_find(s, r->added[i].name);
        if (known != NULL && known->arg.shape[0] != count)
            return fail(LH_INVALID, "block %u adds %llu values to sum '%s', others %llu",
                        part->block, (unsigned long long)count, r->added[i].name,
                        (unsigned long long)known->arg.shape[0]);
        if (known != NULL) continue;
        block_sum_t *list = mem_grow(s->list, &s->capacity, (size_t)s->count + 1, sizeof(*list));
        if (list == NULL) return LH_NO_MEMORY;
        s->list = list;
        block_sum_t *made = &list[s->count++];
        *made = (block_sum_t){.name = r->added[i].name, .arg = flow_arg(wide, 1, &count)};
        made->total = mem_array(s->p->round_micro_batches, sizeof(*made->total));
        made->gradient = mem_array(s->p->round_micro_batches, sizeof(*made->gradient));
        if (made->total == NULL || made->gradient == NULL) return LH_NO_MEMORY;
    }
    return LH_OK;
}

/* Whether the head reads what is added to, as long as it is added to, for a loss. */
static lh_status_t head_check(const block_sums_t *s, const recording_t *head)
{
    const bool train = s->p->how.use == USE_TRAIN;
    for (uint32_t i = 0; head != NULL && i < head->total_count; i++) {
        const graph_sum_t *t = &head->totals[i];
        const block_sum_t *known = sum_find(s, t->name);
        if (known == NULL || known->arg.shape[0] != head->values[t->value].arg.shape[0])
            return fail(LH_INVALID,
                        "the head reads sum '%s' of %llu values, to which no block adds", t->name,
                        (unsigned long long)head->values[t->value].arg.shape[0]);
        if (train && t->gradient == 0)
            return fail(LH_INVALID, "no loss depends on sum '%s'", t->name);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        bool read = false;
        for (uint32_t k = 0; head != NULL && k < head->total_count; k++)
            read = read || strcmp(head->totals[k].name, s->list[i].name) == 0;
        if (!read)
            return fail(LH_INVALID, "blocks add to sum '%s', which the head does not read",
                        s->list[i].name);
    }
    return LH_OK;
}

lh_status_t block_sums_find(block_sums_t *s, const part_t *embed, const part_t *blocks,
                            uint32_t count, const part_t *head)
{
    lh_status_t status = part_sums_add(s, embed);
    for (uint32_t b = 0; status == LH_OK && b < count; b++)
        if (blocks[b].block == b) status = part_sums_add(s, &blocks[b]);
    if (status != LH_OK || s->p->how.use == USE_DECODE) return status;
    return head_check(s, head->r);
}

void block_sums_free(block_sums_t *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        mem_free(s->list[i].total);
        mem_free(s->list[i].gradient);
    }
    mem_free(s->list);
    *s = (block_sums_t){.p = s->p};
}

void block_sums_add(block_sums_t *s, instance_t *v)
{
    program_t *p = s->p;
    const recording_t *r = v->part->r;
    for (uint32_t i = 0; i < r->added_count && p->how.use != USE_DECODE; i++) {
        block_sum_t *sum = sum_find(s, r->added[i].name);
        const uint32_t from = flow_mapped(&v->source, r->added[i].value);
        if (from == 0) return;
        uint32_t *total = &sum->total[v->micro_batch];
        if (*total == 0) {
            *total = flow_activation(p->flow, &sum->arg);
            if (*total == 0) return;
            flow_buffer_t *buffer = &p->flow->buffers[p->flow->values[*total].buffer];
            buffer->accumulates = buffer->each_micro = true;
        }
        const uint32_t slots[] = {from, *total};
        flow_kernel(p->flow, v->source.copy, NULL, slots);
    }
}

void block_sums_seed(const block_sums_t *s, instance_t *v)
{
    const recording_t *r = v->part->r;
    for (uint32_t i = 0; i < r->added_count; i++)
        v->map[r->added[i].gradient] = sum_find(s, r->added[i].name)->gradient[v->micro_batch];
}

void block_sums_lose(block_sums_t *s, const part_t *head, uint32_t micro_batch)
{
    program_t *p = s->p;
    const recording_t *r = head->r;
    instance_t v;
    if (r == NULL || p->flow->status != LH_OK) return;
    instance_begin(&v, p, head, 0, micro_batch, 0);
    if (p->flow->status != LH_OK) return;
    for (uint32_t i = 0; i < r->total_count; i++)
        v.map[r->totals[i].value] = sum_find(s, r->totals[i].name)->total[micro_batch];
    (void)instance_forward(&v, 0);
    if (p->how.use != USE_TRAIN || p->flow->status != LH_OK) return;
    instance_walk(&v, true, false); /* totals' gradients are read behind the walk */
    for (uint32_t i = head->forward_end; i < r->node_count; i++)
        flow_node(&v.source, i);
    for (uint32_t i = 0; i < r->total_count && p->flow->status == LH_OK; i++)
        sum_find(s, r->totals[i].name)->gradient[micro_batch] = flow_mapped(&v.source,
                                                                            r->totals[i].gradient);
}
