/* shards.c - what a rank has from step to step: who owns which elements, and the list of shards.
 *
 * First the tables are read, then the shares are made for the group that cuts (or, where nothing is
 * cut, for all ranks, whose sums are shared out the same way), then the list of shards is written,
 * parameter by parameter. The order of that list is the order of memory on every rank, which others
 * rely on (cuts_lay in transfer_plan.c): nobody has to ask another rank where its shards lie. */
#include <parallel/shards.h>

#include <stdio.h>

#include <longhaul/dtype.h>

#include <base/memory.h>
#include <program/allocation.h>

/* ---- the shares of a world ---- */

/* An optimizer that cuts nothing is not asked for slices: the core then decides alone which rank
 * sums what. */
static lh_status_t shards_make_shares(shards_t *h)
{
    const optimizer_how_t *optimizer = h->how.optimizer;
    const optimizer_tables_t *tables = &h->tables;
    if (optimizer->world == NULL || optimizer->world->row.size == 1) return LH_OK;
    const lh_rule_t **rules = mem_array(h->parameters->count, sizeof(*rules));
    if (rules == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < h->parameters->count; i++)
        rules[i] = optimizer_rule_of(optimizer, i);
    const bool cut = tables->cut != LH_GROUP_SELF;
    lh_status_t status = world_group_new(optimizer->world, cut ? tables->cut : LH_GROUP_DATA,
                                         &h->group);
    if (status == LH_OK) {
        const shares_how_t how = {.parameters = h->parameters,
                                  .rule_of = rules,
                                  .ways = h->group->size,
                                  .api = cut ? optimizer->api : NULL,
                                  .optimizer = optimizer->optimizer,
                                  .space = tables->grad};
        status = shard_shares_new(&how, &h->shares);
    }
    mem_free(rules);
    return status;
}

lh_slice_t shards_slice(const shards_t *h, uint32_t parameter)
{
    lh_assert(parameter < h->parameters->count);
    const parameter_t *p = &h->parameters->items[parameter];
    if (h->group == NULL || h->tables.cut == LH_GROUP_SELF) return (lh_slice_t){0, p->elements};
    return shard_shares_slice(&h->shares, p->storage, h->group->self);
}

/* ---- the list of shards ---- */

/* Appends one shard. */
static lh_status_t shards_add(shards_t *h, const shard_t *shard)
{
    shard_t *list = mem_grow(h->list, &h->capacity, h->count + 1u, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    h->list = list;
    h->list[h->count++] = *shard;
    return LH_OK;
}

/* States that a store exists: one without `holds` does not. */
static void store_name(shards_t *h, uint32_t store, const char *name, uint32_t holds)
{
    lh_assert(store < SHARD_STORES);
    shard_store_t *s = &h->stores[store];
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    s->holds = holds;
}

/* Elements of a state that belong to a slice. A parameter whose rule has a state of another extent
 * than LH_EXTENT_ELEMENT is never cut (unit_of): one rank has the whole state, and the others
 * nothing. */
static uint64_t state_elements(const lh_rule_t *rule, const lh_rule_state_t *state,
                               const parameter_t *p, lh_slice_t slice)
{
    const uint64_t grain = rule->grain_elements != 0 ? rule->grain_elements : 1;
    lh_assert(slice.begin <= slice.end);
    if (slice.end == slice.begin) return 0;
    switch (state->extent) {
    case LH_EXTENT_ELEMENT: return slice.end - slice.begin;
    case LH_EXTENT_ROW: return p->rows;
    case LH_EXTENT_COLUMN: return p->columns;
    case LH_EXTENT_BLOCK: return (p->elements + grain - 1) / grain;
    default: return 1;
    }
}

/* The number of a state's store. There is one for each pair of name and initial value: rules whose
 * states agree in both share a store. */
static lh_status_t state_store(shards_t *h, const lh_rule_state_t *state, uint32_t *out)
{
    uint32_t store = SHARD_STATES;
    for (; store < h->store_count; store++)
        if (strcmp(h->stores[store].name, state->name) == 0 &&
            h->stores[store].initial == state->initial)
            break;
    *out = store;
    if (store < h->store_count) return LH_OK;
    if (store == SHARD_STORES)
        return fail(LH_UNSUPPORTED, "state '%s': the job's rules have more than %d states",
                    state->name, SHARD_STORES - SHARD_STATES);
    store_name(h, store, state->name, LH_HOLDS_STATE);
    h->stores[store].initial = state->initial;
    h->store_count++;
    return LH_OK;
}

/* Two states of a name would be one store, and one tensor of a checkpoint. */
static lh_status_t states_check(const lh_rule_t *rule)
{
    for (uint32_t k = 0; k < rule->state_count; k++)
        for (uint32_t o = 0; o < k; o++)
            if (strcmp(rule->states[o].name, rule->states[k].name) == 0)
                return fail(LH_INVALID, "rule '%s' has two states '%s'", rule->name,
                            rule->states[k].name);
    return LH_OK;
}

/* Appends one shard for each state of the parameter's rule. */
static lh_status_t states_add(shards_t *h, uint32_t parameter, lh_slice_t mine)
{
    const lh_rule_t *rule = optimizer_rule_of(h->how.optimizer, parameter);
    const parameter_t *p = &h->parameters->items[parameter];
    lh_status_t status = states_check(rule);
    for (uint32_t k = 0; status == LH_OK && k < rule->state_count; k++) {
        const lh_rule_state_t *state = &rule->states[k];
        shard_t shard = {.parameter = parameter,
                         .dtype = state->dtype,
                         .slice = mine,
                         .elements = state_elements(rule, state, p, mine)};
        status = state_store(h, state, &shard.store);
        if (status == LH_OK) status = shards_add(h, &shard);
    }
    return status;
}

/* Appends a slice as a shard of a store, unless the job has no such store. */
static lh_status_t slice_add(shards_t *h, uint32_t store, uint32_t parameter, lh_dtype_t dtype,
                             lh_slice_t slice)
{
    if (h->stores[store].holds == 0) return LH_OK;
    const shard_t shard = {store, parameter, dtype, slice, slice.end - slice.begin};
    return shards_add(h, &shard);
}

/* The stores, then the shards, as the tables list them. A master in the dtype of the value is the
 * value itself. Frozen parameters have values alone, and tied ones lie in the memory of the
 * parameter that they share. */
static lh_status_t shards_list(shards_t *h)
{
    const optimizer_tables_t *t = &h->tables;
    /* A reference run computes in F64 throughout. */
    const bool wide = h->how.compute == LH_DTYPE_F64;
    const lh_dtype_t accumulate = wide ? LH_DTYPE_F64 : LH_DTYPE_F32;
    const lh_dtype_t grad = wide || t->grad_dtype == 0 ? accumulate : t->grad_dtype;
    const lh_dtype_t master = wide || t->master_dtype == 0 ? accumulate : t->master_dtype;
    /* Cut gradients have memory of their own unless they lie inside the whole ones. */
    const bool keeps_cut = optimizer_tables_is_cut(t, t->grad) && t->spaces[t->grad].inside == 0;
    /* A value that is cut is kept by its owner alone; instances gather it into their own memory. */
    const bool values_cut = optimizer_tables_is_cut(t, t->value);

    h->store_count = SHARD_STATES;
    store_name(h, SHARD_VALUE, t->spaces[t->value].name, LH_HOLDS_VALUE);
    store_name(h, SHARD_GRAD, t->spaces[t->grad].name, LH_HOLDS_GRAD);
    if (t->master != TABLE_SPACES && master != h->how.compute)
        store_name(h, SHARD_MASTER, t->spaces[t->master].name, LH_HOLDS_MASTER);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < h->parameters->count; i++) {
        const parameter_t *p = &h->parameters->items[i];
        const lh_slice_t whole = {0, p->elements}, mine = shards_slice(h, i);
        if (p->storage != i) continue;
        status = slice_add(h, SHARD_VALUE, i, h->how.compute, values_cut ? mine : whole);
        if (status != LH_OK || h->how.frozen[i]) continue;
        status = slice_add(h, SHARD_GRAD, i, grad, keeps_cut ? mine : whole);
        if (status == LH_OK) status = slice_add(h, SHARD_MASTER, i, master, mine);
        if (status == LH_OK && t->state != TABLE_SPACES) status = states_add(h, i, mine);
    }
    return status;
}

lh_status_t shards_new(const shards_how_t *how, shards_t **out)
{
    shards_t *h = mem_new(sizeof(*h));
    if (h == NULL) return LH_NO_MEMORY;
    h->how = *how;
    h->parameters = how->parameters;
    lh_status_t status = optimizer_tables_of(how->optimizer, how->parameters, how->frozen,
                                             how->compute, &h->tables);
    if (status == LH_OK) status = shards_make_shares(h);
    if (status == LH_OK) status = shards_list(h);
    h->how = (shards_how_t){0}; /* its pointers may die before the shards do */
    if (status != LH_OK) {
        shards_free(h);
        return status;
    }
    *out = h;
    return LH_OK;
}

lh_status_t shards_turn(shards_t *h, const shards_how_t *how, uint32_t member)
{
    lh_assert(h->group != NULL && member < h->group->size);
    h->group->self = member;
    h->count = 0;
    h->how = *how;
    const lh_status_t status = shards_list(h);
    h->how = (shards_how_t){0};
    return status;
}

void shards_free(shards_t *h)
{
    if (h == NULL) return;
    world_group_free(h->group);
    shard_shares_free(&h->shares);
    mem_free(h->list);
    mem_free(h);
}

/* Takes places in each store as weights_shard_add does, so that alignment is counted alike. */
lh_status_t shards_memory(const shards_t *h, uint64_t alignment, memory_report_t *out)
{
    static const uint32_t kinds[] = {[SHARD_VALUE] = MEMORY_PARAMETERS,
                                     [SHARD_GRAD] = MEMORY_GRADIENTS,
                                     [SHARD_MASTER] = MEMORY_MASTER,
                                     [SHARD_STATES] = MEMORY_STATE};
    allocation_t walk[SHARD_STORES] = {0};
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < h->count; i++) {
        const shard_t *shard = &h->list[i];
        uint64_t offset;
        lh_assert(shard->store < h->store_count);
        walk[shard->store].name = h->stores[shard->store].name;
        status = allocation_take(&walk[shard->store],
                                 shard->elements * lh_dtype_bytes(shard->dtype), alignment,
                                 &offset);
    }
    *out = (memory_report_t){0};
    for (uint32_t i = 0; i < h->store_count; i++) {
        out->bytes[kinds[i < SHARD_STATES ? i : SHARD_STATES]] += walk[i].bytes;
        out->total_bytes += walk[i].bytes;
    }
    return status;
}

/* ---- who owns which elements of a parameter ---- */

/* Whether all states of a rule can be cut with the elements. */
static bool only_by_element(const lh_rule_t *rule)
{
    for (uint32_t i = 0; i < rule->state_count; i++)
        if (rule->states[i].extent != LH_EXTENT_ELEMENT) return false;
    return true;
}

/* How many elements stay together: the least common multiple of the norm's block and the rule's
 * grain. A rule that takes a whole matrix, or what tensor parallelism leaves of it, keeps the
 * parameter whole, and so does a rule whose states are not by element. */
static uint64_t unit_of(const parameter_t *p, const lh_rule_t *rule)
{
    uint64_t grain = 1, unit;
    if (rule->grain == LH_GRAIN_ROW) grain = p->columns;
    if (rule->grain == LH_GRAIN_BLOCK && rule->grain_elements != 0) grain = rule->grain_elements;
    if (grain == 0 || rule->grain >= LH_GRAIN_PIECE || !only_by_element(rule)) return p->elements;
    if (!checked_mul(LH_NORM_BLOCK / greatest_divisor(LH_NORM_BLOCK, grain), grain, &unit))
        return p->elements;
    return unit;
}

/* The slice at `place` of `ways`, in elements; the last unit of a parameter may be shorter. */
static lh_slice_t default_slice(const parameter_t *p, uint64_t unit, uint32_t ways, uint32_t place)
{
    lh_assert(place < ways);
    const uint64_t units = unit == 0 ? 0 : (p->elements + unit - 1) / unit;
    lh_slice_t s = {units * place / ways * unit, units * (place + 1) / ways * unit};
    if (s.begin > p->elements) s.begin = p->elements;
    if (s.end > p->elements) s.end = p->elements;
    return s;
}

/* Every element has exactly one owner: sorted by where they begin, the slices follow each other
 * without a gap, and their lengths add up to the parameter's. */
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

/* All members' slices of one parameter: by the core's rule (shards.h), or as the optimizer slices,
 * whose slices must each begin at a whole unit. */
static lh_status_t parameter_cut(const shares_how_t *how, uint32_t index, lh_slice_t *slices)
{
    const parameter_t *p = &how->parameters->items[index];
    const uint64_t unit = unit_of(p, how->rule_of[index]);
    if (how->api == NULL || how->api->slice == NULL) {
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
        if (slices[m].begin != p->elements && slices[m].begin % unit != 0)
            return fail(LH_INVALID,
                        "the optimizer's slice of parameter '%s' for rank %u begins at %llu, "
                        "expected a multiple of %llu: of the norm's %d elements and of what its "
                        "rule takes together",
                        p->name, m, (unsigned long long)slices[m].begin, (unsigned long long)unit,
                        LH_NORM_BLOCK);
    }
    return slices_check(p, slices, how->ways);
}

lh_status_t shard_shares_new(const shares_how_t *how, shares_t *out)
{
    const uint32_t count = how->parameters->count;
    shares_t s = {.ways = how->ways, .count = count};
    s.slices = mem_array((size_t)count * how->ways, sizeof(*s.slices));
    if (s.slices == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        const lh_status_t status = parameter_cut(how, i, &s.slices[(size_t)i * how->ways]);
        if (status != LH_OK) {
            shard_shares_free(&s);
            return status;
        }
    }
    *out = s;
    return LH_OK;
}

void shard_shares_free(shares_t *s)
{
    mem_free(s->slices);
    *s = (shares_t){0};
}

lh_slice_t shard_shares_slice(const shares_t *s, uint32_t parameter, uint32_t member)
{
    lh_assert(parameter < s->count && member < s->ways);
    return s->slices[(size_t)parameter * s->ways + member];
}
