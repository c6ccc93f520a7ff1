/* gathered.c - values that are gathered for a visit and gradients that are whole for a bucket:
 * where they lie in a program. */
#include <parallel/transfers_state.h>

#include <base/memory.h>

static visit_values_t *visit_find(transfers_t *t, const program_t *p, bool backward)
{
    const flow_t *f = p->flow;
    for (uint32_t i = 0; i < t->visit_count; i++) {
        visit_values_t *v = &t->visits[i];
        if (v->program == p && v->part == f->part && v->block == f->block &&
            v->backward == backward)
            return v;
    }
    return NULL;
}

/* Every parameter of the part, each in its own shape; a tied one in the memory of none but itself.
 */
static lh_status_t visit_fill(transfers_t *t, visit_values_t *v)
{
    const parameters_t *p = t->weights->parameters;
    v->parameters = mem_array(p->count, sizeof(*v->parameters));
    v->values = mem_array(p->count, sizeof(*v->values));
    if (v->parameters == NULL || v->values == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        if (item->part != v->part || (item->part == LH_PART_BLOCK && item->block != v->block))
            continue;
        const lh_arg_t arg = flow_arg(t->weights->compute, item->rank, item->shape);
        v->parameters[v->count] = i;
        v->values[v->count++] = flow_in_arena(v->program->flow, &arg, ARENA_GATHERED);
    }
    return v->program->flow->status;
}

static visit_values_t *visit_new(transfers_t *t, program_t *p, bool backward)
{
    visit_values_t *list = mem_grow(t->visits, &t->visit_capacity, t->visit_count + 1u,
                                    sizeof(*list));
    if (list == NULL) {
        p->flow->status = LH_NO_MEMORY;
        return NULL;
    }
    t->visits = list;
    visit_values_t *v = &t->visits[t->visit_count++];
    *v = (visit_values_t){
        .program = p, .part = p->flow->part, .block = p->flow->block, .backward = backward};
    p->flow->status = visit_fill(t, v);
    return p->flow->status == LH_OK ? v : NULL;
}

uint32_t transfers_value(exchange_t *x, program_t *p, uint32_t parameter)
{
    transfers_t *t = (transfers_t *)x;
    flow_t *f = p->flow;
    if (f->status != LH_OK) return 0;
    /* A block's values are dropped after its forward pass; the head's chunks go there and back. */
    const bool backward = f->backward && f->part == LH_PART_BLOCK;
    visit_values_t *v = visit_find(t, p, backward);
    if (v == NULL) v = visit_new(t, p, backward);
    for (uint32_t i = 0; v != NULL && i < v->count; i++)
        if (v->parameters[i] == parameter) return v->values[i];
    if (f->status == LH_OK)
        f->status = fail(LH_INVALID, "parameter '%s' is read by a part that does not list it",
                         t->weights->parameters->items[parameter].name);
    return 0;
}

static bucket_gradients_t *gradients_of(transfers_t *t, program_t *p)
{
    for (uint32_t i = 0; i < t->bucket_count; i++)
        if (t->buckets[i].program == p) return &t->buckets[i];
    bucket_gradients_t *list = mem_grow(t->buckets, &t->bucket_capacity, t->bucket_count + 1u,
                                        sizeof(*list));
    if (list == NULL) return NULL;
    t->buckets = list;
    bucket_gradients_t made = {.program = p};
    made.values = mem_array(t->weights->parameters->count, sizeof(*made.values));
    if (made.values == NULL) return NULL;
    t->buckets[t->bucket_count] = made;
    return &t->buckets[t->bucket_count++];
}

const bucket_gradients_t *transfers_gradients_of(const transfers_t *t, const program_t *p)
{
    for (uint32_t i = 0; i < t->bucket_count; i++)
        if (t->buckets[i].program == p) return &t->buckets[i];
    return NULL;
}

uint32_t transfers_gradient(exchange_t *x, program_t *p, uint32_t parameter)
{
    transfers_t *t = (transfers_t *)x;
    flow_t *f = p->flow;
    const parameter_t *item = &t->weights->parameters->items[parameter];
    bucket_gradients_t *g = f->status == LH_OK ? gradients_of(t, p) : NULL;
    if (g == NULL) {
        if (f->status == LH_OK) f->status = LH_NO_MEMORY;
        return 0;
    }
    uint32_t *value = &g->values[item->storage];
    const lh_arg_t arg = flow_arg(t->weights->grad->pieces[item->storage].dtype, item->rank,
                                  item->shape);
    if (*value == 0) {
        *value = flow_in_arena(f, &arg, ARENA_BUCKETS);
        if (*value == 0) return 0;
        flow_buffer_t *buffer = &f->buffers[f->values[*value].buffer];
        buffer->accumulates = true;
        buffer->each_micro = true;
    }
    return flow_value(f, &arg, f->values[*value].buffer, 0);
}
