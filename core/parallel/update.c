/* update.c - the optimizer step as a program: norm, clipping, and the rule on every parameter.
 *
 * The update is a program like any other: calls of kernels and of transfers in a flow. Nothing of a
 * step is decided on the host, which therefore need not wait for the norm: the device computes the
 * norm, clips, and decides whether the step counts at all. The price is that a rule has to be
 * recorded from ops.
 *
 * The norm has the same bits at any stage and layout. Each rank squares its elements in blocks of
 * LH_NORM_BLOCK, which no cut divides (shards.h), all ranks gather these partial sums, and every
 * rank adds all of them in the same order. */
#include <parallel/update.h>

#include <base/memory.h>
#include <engine/program.h>
#include <graph/op_table.h>
#include <graph/recorder.h>
#include <longhaul/dtype.h>
#include <parallel/arrange.h>
#include <parallel/transfer_plan.h>

/* Lives while the program is written. */
typedef struct update {
    program_t *p;
    weights_t *w;
    const update_how_t *how;
    const shards_t *shards;
    transfers_t *transfers; /* NULL: alone */
    uint32_t step; /* flow value: F32 [groups, LH_STEP_WORDS]; clip sets factor and verdict */
} update_t;

/* Elements of a parameter whose master and states are here: what this rank updates. */
static lh_slice_t slice_of(const update_t *u, uint32_t parameter)
{
    return shards_slice(u->shards, parameter);
}

/* Adds a store to the weights for store `index` of the shards, and sets the field of the weights by
 * which programs ask for it. */
static lh_status_t store_make(weights_t *w, const shard_store_t *from, uint32_t index)
{
    store_t *s;
    const lh_status_t status = weights_store_add(w, from->name, from->holds, &s);
    if (status != LH_OK) return status;
    if (from->holds == LH_HOLDS_GRAD) w->grad = s;
    if (from->holds == LH_HOLDS_MASTER) w->master = s;
    if (from->holds != LH_HOLDS_STATE) return LH_OK;
    lh_assert(index >= SHARD_STATES);
    s->state = index - SHARD_STATES;
    s->initial = from->initial;
    return LH_OK;
}

/* Memory for the shards of this rank; values have theirs already. */
static lh_status_t stores_add(update_t *u)
{
    weights_t *w = u->w;
    const shards_t *h = u->shards;
    store_t *stores[SHARD_STORES] = {0};
    if (w->grad != NULL)
        return fail(LH_INVALID, "the optimizer step is stated after a training program");
    lh_status_t status = LH_OK;
    for (uint32_t i = SHARD_GRAD; status == LH_OK && i < h->store_count; i++) {
        if (h->stores[i].holds == 0) continue;
        status = store_make(w, &h->stores[i], i);
        stores[i] = w->stores[w->store_count - 1];
    }
    for (uint32_t i = 0; status == LH_OK && i < h->count; i++) {
        const shard_t *shard = &h->list[i];
        lh_assert(shard->store < h->store_count);
        if (shard->store != SHARD_VALUE)
            status = weights_shard_add(w, stores[shard->store], shard->parameter, shard->dtype,
                                       shard->slice, shard->elements);
    }
    return status;
}

/* A parameter's shard in a store as a value of the flow, [elements]. */
static uint32_t store_flat(update_t *u, const store_t *store, uint32_t parameter)
{
    const uint64_t n = store->shards[parameter].elements;
    return flow_reshape(u->p->flow, program_store_value(u->p, store, parameter), 1, &n);
}

/* This rank's slice of a parameter, [elements], in a store that holds just the slice or the
 * whole. */
static uint32_t store_sliced(update_t *u, const store_t *store, uint32_t parameter)
{
    const lh_slice_t mine = slice_of(u, parameter), held = store->shards[parameter].slice;
    lh_assert(mine.begin >= held.begin && mine.end <= held.end);
    const uint32_t all = store_flat(u, store, parameter);
    return flow_rows(u->p->flow, all, mine.begin - held.begin, mine.end - mine.begin);
}

/* The norm over all gradients, then the clip: partial sums [blocks, PARTIAL_WORDS], one row per
 * LH_NORM_BLOCK elements of a whole parameter, in the order of parameters. This rank fills the rows
 * of its own elements, and the gather brings the rows of the other ranks. The clip adds the rows up
 * and writes the factor and the verdict into the step's scalars. */
static void norm_write(update_t *u)
{
    program_t *p = u->p;
    flow_t *f = p->flow;
    const op_table_t *ops = p->engine->how.ops;
    uint64_t partials[2] = {0, PARTIAL_WORDS}, at = 0;
    for (uint32_t i = 0; i < u->w->parameters->count; i++)
        if (transfers_is_updated(u->w, i))
            partials[0] += transfers_norm_blocks(u->w->parameters->items[i].elements);

    const uint64_t step[] = {u->how->optimizer.group_count, LH_STEP_WORDS};
    const lh_arg_t sums_arg = flow_arg(u->w->accumulate, 2, partials),
                   step_arg = flow_arg(LH_DTYPE_F32, 2, step);
    const uint32_t sums = flow_in_arena(f, &sums_arg, ARENA_BUCKETS);
    const uint32_t given = program_input_value(p, LH_INPUT_STEP, &step_arg);
    u->step = program_output_value(p, OUTPUT_STEP, &step_arg, false);
    /* The scalars are copied to an output, in which the clip works. */
    const uint32_t copy[] = {given, u->step};
    flow_kernel(f, op_table_find(ops, "copy"), NULL, copy);

    /* A parameter's rows follow those of the parameter before it, whoever owns it: `at` is its
     * first row, and this rank's own begin `first` rows further on, as its slice begins at a whole
     * block. */
    for (uint32_t i = 0; i < u->w->parameters->count && f->status == LH_OK; i++) {
        if (!transfers_is_updated(u->w, i)) continue;
        const uint64_t n = transfers_norm_blocks(u->w->parameters->items[i].elements);
        const lh_slice_t mine = slice_of(u, i);
        const uint64_t first = mine.begin / LH_NORM_BLOCK;
        const uint32_t slots[] = {
            store_sliced(u, u->w->grad, i),
            flow_rows(f, sums, at + first, transfers_norm_blocks(mine.end) - first)};
        if (mine.end > mine.begin) flow_kernel(f, op_table_find(ops, "sum_squares"), NULL, slots);
        at += n;
    }
    lh_assert(f->status != LH_OK || at == partials[0]);
    if (u->transfers != NULL) arrange_partials(u->transfers, p, sums);
    const uint32_t clip[] = {sums, u->step, u->step};
    flow_kernel(f, op_table_find(ops, "clip"), NULL, clip);
}

/* The update of this rank's slice of one parameter, which the rule is told of as its piece
 * (lh_piece_t): the recording of its rule, and the values of
 * that recording. */
typedef struct piece_update {
    update_t *u;
    uint32_t parameter;
    recording_t *r;                                         /* kept by the program */
    lh_value_t grad, master, states[OP_SLOTS];              /* arguments */
    lh_value_t new_master, new_states[OP_SLOTS], new_value; /* results   */
    uint32_t rank;     /* of the piece's shape: 1, or 2 for a rule that works on rows */
    uint64_t shape[2]; /* [elements], or [rows, columns] */
} piece_update_t;

/* A rule gets what it updates as arguments, and may not ask for parameters by name. */
static lh_status_t no_param(LH_UNUSED void *context, const char *name,
                            LH_UNUSED uint64_t shape[LH_MAX_RANK], LH_UNUSED uint32_t *rank)
{
    return fail(LH_INVALID, "a rule may not name parameter '%s'", name);
}

/* The store that a rule changes: the master or, where there is none, the value itself. */
static const store_t *master_of(const weights_t *w)
{
    return w->master != NULL ? w->master : w->value;
}

/* The store of a rule's state, found by name and initial value as state_store in shards.c made
 * it. */
static const store_t *state_of(const weights_t *w, const lh_rule_state_t *state)
{
    for (uint32_t i = 0; i < w->store_count; i++)
        if (w->stores[i]->holds == LH_HOLDS_STATE && strcmp(w->stores[i]->name, state->name) == 0 &&
            w->stores[i]->initial == state->initial)
            return w->stores[i];
    return NULL;
}

/* Gradient, master and states as arguments of the rule's recording. Each has the shape of this
 * rank's piece, but for a state of another extent, which is [its elements]. */
static lh_status_t piece_arguments(piece_update_t *s, const lh_rule_t *rule)
{
    const weights_t *w = s->u->w;
    s->grad = recording_argument(s->r, w->grad->shards[s->parameter].dtype, s->rank, s->shape);
    s->master = recording_argument(s->r, master_of(w)->shards[s->parameter].dtype, s->rank,
                                   s->shape);
    if (rule->state_count > OP_SLOTS)
        return fail(LH_INVALID, "rule '%s' has %u states; at most %d", rule->name,
                    rule->state_count, OP_SLOTS);
    for (uint32_t k = 0; k < rule->state_count; k++) {
        const uint64_t n = state_of(w, &rule->states[k])->shards[s->parameter].elements;
        const bool like = rule->states[k].extent == LH_EXTENT_ELEMENT;
        s->states[k] = recording_argument(s->r, rule->states[k].dtype, like ? s->rank : 1,
                                          like ? s->shape : &n);
    }
    return recording_status(s->r);
}

/* What a rule gives back is a value of its recording, with the shape of the argument whose place
 * it takes, and no op has written over it since. The argument itself stands for what lies there. */
static lh_status_t piece_result_check(const piece_update_t *s, lh_value_t made, lh_value_t given,
                                      const char *what)
{
    const recording_t *r = s->r;
    if (made == 0 || made >= r->value_count) return fail(LH_INVALID, "it records no new %s", what);
    const lh_arg_t *is = &r->values[made].arg, *was = &r->values[given].arg;
    if (is->rank != was->rank ||
        memcmp(is->shape, was->shape, is->rank * sizeof(is->shape[0])) != 0)
        return fail(LH_INVALID, "its new %s has another shape", what);
    const uint32_t over = made == given ? 0 : recording_written_over(r, made);
    if (over == 0) return LH_OK;
    return fail(LH_INVALID, "its new %s is what op %s, which works in place, has written over",
                what, r->nodes[over].op->row.name);
}

/* Whether the new value is another result too, or an op reads it. */
static bool value_is_shared(const piece_update_t *s, uint32_t state_count)
{
    bool shared = s->new_value == s->new_master;
    for (uint32_t k = 0; k < state_count; k++)
        shared = shared || s->new_states[k] == s->new_value;
    for (uint32_t n = 1; n < s->r->node_count; n++)
        for (uint32_t i = 0; i < s->r->nodes[n].op->in_count; i++)
            shared = shared || s->r->nodes[n].slots[i] == s->new_value;
    return shared;
}

/* Where values lie apart from masters, what a rule gives back as the new value is written to the value's place
 * instead of where it would lie, by the op that makes it. There it is rounded to the value's dtype: nothing else may
 * be made of it that is to be wider, or to lie in an input's memory. */
static lh_status_t piece_value_check(const piece_update_t *s, uint32_t state_count)
{
    if (s->u->w->master == NULL || s->new_value == 0) return LH_OK;
    const graph_value_t *value = &s->r->values[s->new_value];
    if (value->kind != VALUE_RESULT)
        return fail(LH_INVALID, "its new value is made by no op, expected what an op makes");
    const bool placed = s->r->nodes[value->node].op->alias[value->slot] != 0;
    if ((!placed && value->arg.dtype == s->u->w->compute) || !value_is_shared(s, state_count))
        return LH_OK;
    return fail(LH_INVALID,
                "its new value is %s%s, and more is made of it; expected %s, or what an op makes "
                "for that alone",
                lh_dtype_name(value->arg.dtype), placed ? " in an input's memory" : "",
                lh_dtype_name(s->u->w->compute));
}

/* Master and states lie in memory that lasts, which ops of a rule work in. */
static lh_status_t piece_results_check(const piece_update_t *s, const lh_rule_t *rule)
{
    uint32_t over;
    const recording_t *r = s->r;
    const uint32_t reader = recording_late_read(r, &over);
    if (reader != 0)
        return fail(LH_INVALID, "op %s reads what %s, which works in place, has written over",
                    r->nodes[reader].op->row.name, r->nodes[over].op->row.name);
    lh_status_t status = piece_result_check(s, s->new_master, s->master, "master");
    if (status == LH_OK && s->new_value != 0)
        status = piece_result_check(s, s->new_value, s->master, "value");
    if (status == LH_OK) status = piece_value_check(s, rule->state_count);
    for (uint32_t k = 0; status == LH_OK && k < rule->state_count; k++)
        status = piece_result_check(s, s->new_states[k], s->states[k], rule->states[k].name);
    return status;
}

/* Lets the rule record what it does with this rank's piece of a parameter. The program keeps the
 * recording, as calls point into it. */
static lh_status_t piece_record(piece_update_t *s)
{
    update_t *u = s->u;
    const weights_t *w = u->w;
    const parameter_t *p = &w->parameters->items[s->parameter];
    const optimizer_group_t *group = optimizer_group_of(&u->how->optimizer, s->parameter);
    const optimizer_rule_t *rule = &u->how->optimizer.rules[group->rule];
    const recording_how_t how = {.ops = u->p->engine->how.ops,
                                 .host = u->p->engine->how.host,
                                 .tokens = 1,
                                 .sequences = 1,
                                 .max_documents = 1,
                                 .compute = w->compute,
                                 .accumulate = w->accumulate,
                                 .param = no_param};
    lh_status_t status = recorder_new(&how, &s->r);
    if (status == LH_OK) status = program_keep(u->p, s->r);
    if (status == LH_OK) status = piece_arguments(s, rule->rule);
    if (status != LH_OK) return status;

    const lh_slice_t mine = slice_of(u, s->parameter);
    /* What the rule is told: where the piece begins in the parameter, the parameter's name and
     * shape, its decay. A parameter flagged NO_DECAY gets 0, whatever its group says. */
    const lh_piece_t piece = {
        .struct_size = sizeof(piece),
        .param = s->parameter,
        .begin = mine.begin,
        .elements = mine.end - mine.begin,
        .rows = p->rows,
        .columns = p->columns,
        .decay = (p->row->flags & LH_PARAM_NO_DECAY) != 0 ? 0 : group->decay,
        .value_dtype = w->compute,
        .grad_dtype = w->grad->shards[s->parameter].dtype,
        .name = p->name,
        .matrices = p->rank > 2 ? p->shape[0] : 1,
    };
    memcpy(s->new_states, s->states, sizeof(s->states));
    s->new_master = rule->rule->record(rule->config, &s->r->graph, &piece, s->grad, s->master,
                                       s->new_states, &s->new_value);
    status = recording_status(s->r);
    if (status == LH_OK && s->new_master == 0) status = fail(LH_INVALID, "it records nothing");
    if (status == LH_OK) status = piece_results_check(s, rule->rule);
    if (status == LH_OK) return status;
    char *reason = mem_text(fail_reason()); /* fail() writes over its own sentence */
    status = fail(status, "rule '%s' of parameter '%s': %s", rule->rule->name, p->name,
                  reason != NULL ? reason : "refused");
    mem_free(reason);
    return status;
}

/* flow_source_t.leaf: what a rule may name beside its arguments, which are constants and its
 * group's row of the step's scalars, F32 [LH_STEP_WORDS]. */
static uint32_t update_leaf(void *context, const graph_value_t *value)
{
    const piece_update_t *s = context;
    update_t *u = s->u;
    if (value->kind == VALUE_CONSTANT) return program_constant_value(u->p, value);
    if (value->kind == VALUE_INPUT && value->which == LH_INPUT_STEP) {
        const uint64_t words = LH_STEP_WORDS;
        const uint32_t group = u->how->optimizer.group_of != NULL
                                   ? u->how->optimizer.group_of[s->parameter]
                                   : 0;
        return flow_reshape(u->p->flow, flow_rows(u->p->flow, u->step, group, 1), 1, &words);
    }
    u->p->flow->status = fail(LH_INVALID,
                              "a rule may take gradient, master, states, constants and the step's "
                              "scalars; it asks for input %u",
                              value->which);
    return 0;
}

/* Copies a result to its place, unless its op worked in place and has put it there. */
static void result_settle(flow_source_t *source, lh_value_t result, uint32_t place)
{
    flow_t *f = source->flow;
    const uint32_t made = flow_mapped(source, result);
    if (f->status != LH_OK || f->values[made].buffer == f->values[place].buffer) return;
    const uint32_t slots[] = {made, place};
    flow_kernel(f, source->copy, NULL, slots);
}

/* A result may lie where another one goes, as the last step's master does that a rule keeps in a state. Where that
 * one is brought there first, this one is taken out before. */
static void results_part(flow_source_t *source, const lh_value_t *results, const uint32_t *places,
                         uint32_t count)
{
    flow_t *f = source->flow;
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t first = 0; first < i; first++) {
            const uint32_t made = flow_mapped(source, results[i]);
            const uint32_t comes = flow_mapped(source, results[first]);
            if (f->status != LH_OK) return;
            const uint32_t place = f->values[places[first]].buffer;
            if (f->values[made].buffer != place || f->values[comes].buffer == place) continue;
            const lh_arg_t arg = f->values[made].arg;
            const uint32_t slots[] = {made, flow_activation(f, &arg)};
            flow_kernel(f, source->copy, NULL, slots);
            source->map[results[i]] = slots[1];
        }
}

/* This rank's slice in a store as a value of the flow, in the shape of the piece. */
static uint32_t store_shaped(piece_update_t *s, const store_t *store)
{
    return flow_reshape(s->u->p->flow, store_sliced(s->u, store, s->parameter), s->rank, s->shape);
}

/* Maps the recording's arguments to this rank's stores, writes its nodes into the flow, and puts
 * results back. If the rule makes no new value, the new master is cast to one. */
static void piece_write(piece_update_t *s)
{
    update_t *u = s->u;
    const weights_t *w = u->w;
    const lh_rule_t *rule = optimizer_rule_of(&u->how->optimizer, s->parameter);
    flow_source_t source = {.flow = u->p->flow,
                            .recording = s->r,
                            .copy = op_table_find(u->p->engine->how.ops, "copy"),
                            .map = program_map(u->p, s->r),
                            .leaf = update_leaf,
                            .context = s};
    if (source.map == NULL) return;
    const uint32_t master = store_shaped(s, master_of(w));
    lh_value_t results[OP_SLOTS + 1] = {s->new_master};
    uint32_t places[OP_SLOTS + 1] = {master};
    source.map[s->grad] = store_shaped(s, w->grad);
    source.map[s->master] = master;
    for (uint32_t k = 0; k < rule->state_count; k++) {
        const bool like = rule->states[k].extent == LH_EXTENT_ELEMENT;
        const store_t *store = state_of(w, &rule->states[k]);
        results[k + 1] = s->new_states[k];
        places[k + 1] = like ? store_shaped(s, store) : store_flat(u, store, s->parameter);
        source.map[s->states[k]] = places[k + 1];
    }
    /* Where the value is its own master nothing has to be brought back. */
    const bool apart = w->master != NULL;
    const uint32_t value = apart ? store_shaped(s, w->value) : 0;
    if (apart && s->new_value != 0) source.map[s->new_value] = value;

    for (uint32_t n = 1; n < s->r->node_count && u->p->flow->status == LH_OK; n++)
        flow_node(&source, n);
    results_part(&source, results, places, rule->state_count + 1);
    for (uint32_t i = 0; i <= rule->state_count; i++)
        result_settle(&source, results[i], places[i]);
    if (!apart || s->new_value != 0) return;
    const uint32_t cast[] = {master, value};
    flow_kernel(u->p->flow, source.copy, NULL, cast);
}

/* The rule on every parameter of which this rank owns a slice. The value is written with its
 * master, whichever of UPDATE, COPY and GATHER the tables state it by. A rule that works on rows
 * gets its piece as a matrix. */
static lh_status_t rules_write(update_t *u)
{
    const weights_t *w = u->w;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        if (!transfers_is_updated(w, i)) continue;
        const parameter_t *p = &w->parameters->items[i];
        const lh_slice_t mine = slice_of(u, i);
        const uint64_t elements = mine.end - mine.begin;
        if (elements > 0) {
            const bool whole_rows = optimizer_rule_of(&u->how->optimizer, i)->grain >= LH_GRAIN_ROW;
            piece_update_t s = {.u = u, .parameter = i, .rank = whole_rows ? 2 : 1};
            s.shape[0] = whole_rows ? elements / p->columns : elements;
            s.shape[1] = p->columns;
            const lh_status_t status = piece_record(&s);
            if (status != LH_OK) return status;
            piece_write(&s);
        }
        if (u->transfers != NULL) arrange_value_gather(u->transfers, u->p, i);
        if (u->p->flow->status != LH_OK) return u->p->flow->status;
    }
    return LH_OK;
}

/* The tables must update the master and, where master and value are two spaces, bring the master
 * back to the value. */
static lh_status_t moves_check(const update_t *u)
{
    const optimizer_tables_t *t = &u->shards->tables;
    const uint32_t changed = t->master != TABLE_SPACES ? t->master : t->value;
    bool updates = false, returns = changed == t->value;
    for (uint32_t i = 0; i < t->move_count; i++) {
        const lh_move_t *m = &t->moves[i];
        const uint32_t from = t->root[m->from], to = t->root[m->to];
        if (m->what == LH_MOVE_UPDATE && from == t->grad && to == changed && !updates)
            updates = true;
        else if ((m->what == LH_MOVE_COPY || m->what == LH_MOVE_GATHER) && from == t->master &&
                 to == t->value && updates)
            returns = true;
        else if (m->what != LH_MOVE_GATHER && m->what != LH_MOVE_REDUCE)
            return fail(LH_UNSUPPORTED, "a move of kind %u from '%s' to '%s' is not built there",
                        m->what, t->spaces[m->from].name, t->spaces[m->to].name);
    }
    if (!updates || !returns)
        return fail(LH_INVALID, "the optimizer's moves never %s",
                    !updates ? "update the parameters" : "copy the master back to the value");
    return LH_OK;
}

/* Where the tables cut values, the weights keep only this rank's slices. */
static lh_status_t values_cut(update_t *u)
{
    const shards_t *h = u->shards;
    if (!optimizer_tables_is_cut(&h->tables, h->tables.value)) return LH_OK;
    lh_slice_t *slices = mem_array(u->w->parameters->count, sizeof(*slices));
    if (slices == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < h->count; i++)
        if (h->list[i].store == SHARD_VALUE) slices[h->list[i].parameter] = h->list[i].slice;
    const lh_status_t status = weights_value_cut(u->w, slices);
    mem_free(slices);
    return status;
}

/* Over several ranks: makes the transfers, which then own the shards (*shards becomes NULL), and
 * cuts the values. */
static lh_status_t update_transfers_open(update_t *u, engine_t *e, shards_t **shards)
{
    const update_how_t *how = u->how;
    if ((*shards)->group == NULL) return LH_OK;
    const transfers_how_t transfers = {.engine = e,
                                       .weights = u->w,
                                       .world = how->optimizer.world,
                                       .comm = how->comm,
                                       .shards = *shards,
                                       .rounds = how->optimizer.rounds,
                                       .bucket_bytes = how->bucket_bytes,
                                       .border = how->border,
                                       .arrange = arrange_flows};
    const lh_status_t status = transfers_new(&transfers, &u->transfers);
    if (status != LH_OK) return status;
    transfer_plan_use(u->transfers);
    *shards = NULL;
    *how->transfers = u->transfers;
    return values_cut(u);
}

/* All calls of the update, in order: the norm, the clip, then parameter after parameter.
 * arrange_flows later puts the waits for sums before all of them. */
static lh_status_t program_write(update_t *u, engine_t *e, program_t **out)
{
    const program_how_t how = {.use = USE_UPDATE, .sequences = 1, .rows = 1};
    lh_status_t status = program_empty(e, u->w, &how, &u->p);
    if (status != LH_OK) return status;
    norm_write(u);
    status = u->p->flow->status;
    if (status == LH_OK) status = rules_write(u);
    if (status == LH_OK) *out = u->p;
    return status;
}

/* Shards come first, so that tables which can't be held are refused before the weights are touched.
 * The transfers keep the shards where there are several ranks; else they are freed here. */
lh_status_t update_new(engine_t *e, weights_t *w, const update_how_t *how, program_t **out)
{
    update_t u = {.w = w, .how = how};
    shards_t *shards; /* NULL once transfers have them */
    const shards_how_t held = {.parameters = w->parameters,
                               .frozen = w->frozen,
                               .compute = w->compute,
                               .optimizer = &how->optimizer};
    lh_status_t status = shards_new(&held, &shards);
    if (status != LH_OK) return status;
    u.shards = shards;
    status = moves_check(&u);
    if (status == LH_OK) status = update_transfers_open(&u, e, &shards);
    if (status == LH_OK) status = stores_add(&u);
    if (status == LH_OK) status = program_write(&u, e, out);
    shards_free(shards);
    return status;
}
