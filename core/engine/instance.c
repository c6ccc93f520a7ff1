/* instance.c - the nodes of one part's recording become calls of a flow: there, back, and again.
 *
 * What a node reads that no node made is looked up as the instance needs it: the block's parameters,
 * the micro-batch's rows of an input, a cache. */
#include <engine/instance.h>

#include <base/memory.h>
#include <engine/part_halves.h>
#include <graph/op_table.h>
#include <graph/recorder.h>
#include <program/flow_view.h>

/* Whether an input has one entry for each token, [tokens]; the others have one for each sequence or
 * document. */
static bool by_token(uint32_t which)
{
    return which == LH_INPUT_TOKENS || which == LH_INPUT_POSITIONS || which == LH_INPUT_LABELS ||
           which == LH_INPUT_WEIGHTS;
}

/* Inputs have the rows of all micro-batches of a run, one after the other; a recording sees the
 * rows of one micro-batch, and in the head a chunk of those. Document starts and lengths are cut by
 * micro-batch only. */
static uint32_t leaf_input(instance_t *v, const graph_value_t *value)
{
    program_t *p = v->program;
    const bool tokens = by_token(value->which);
    const uint64_t own_rows = tokens ? p->tokens : value->arg.shape[0];
    lh_arg_t whole = value->arg;
    whole.shape[0] = own_rows * p->round_micro_batches;
    const uint32_t all = program_input_value(p, value->which, &whole);
    if (value->arg.shape[0] == whole.shape[0]) return all;
    const uint64_t begin = v->micro_batch * own_rows + (tokens ? v->row_begin : 0);
    return flow_rows(p->flow, all, begin, value->arg.shape[0]);
}

/* flow_source_t.leaf: the flow value of a parameter, gradient, input or constant of the
 * recording. */
static uint32_t instance_leaf(void *context, const graph_value_t *value)
{
    instance_t *v = context;
    program_t *p = v->program;
    const weights_t *w = p->weights;
    if (value->kind == VALUE_INPUT) return leaf_input(v, value);
    if (value->kind == VALUE_CONSTANT) return program_constant_value(p, value);

    uint32_t index;
    if (!parameters_find_local(w->parameters, v->part->part, v->block, value->name, &index)) {
        p->flow->status = fail(LH_INVALID, "block %u has no parameter '%s'", v->block, value->name);
        return 0;
    }
    return value->kind == VALUE_PARAM ? program_parameter(p, index) : program_gradient(p, index);
}

/* Where values are cut over ranks, a block's are gathered again for its way back: the map forgets
 * them, so that the first node that reads one asks for the gather of that direction. */
static void values_forget(instance_t *v)
{
    if (!v->program->weights->gathered) return;
    for (uint32_t i = 1; i < v->part->r->value_count; i++)
        if (v->part->r->values[i].kind == VALUE_PARAM) v->map[i] = 0;
}

void instance_begin(instance_t *v, program_t *p, const part_t *part, uint32_t block,
                    uint32_t micro_batch, uint64_t row_begin)
{
    lh_assert(micro_batch < p->round_micro_batches);
    *v = (instance_t){.program = p,
                      .part = part,
                      .block = block,
                      .micro_batch = micro_batch,
                      .row_begin = row_begin,
                      .leg = part_leg_whole(part)};
    v->map = program_map(p, part->r);
    v->source = (flow_source_t){.flow = p->flow,
                                .recording = part->r,
                                .copy = op_table_find(p->engine->how.ops, "copy"),
                                .map = v->map,
                                .leaf = instance_leaf,
                                .context = v};
}

static void instance_mark(const instance_t *v, bool backward)
{
    flow_t *f = v->program->flow;
    f->part = v->part->part;
    f->block = v->block;
    f->backward = backward;
}

void instance_walk(instance_t *v, bool backward, bool whole)
{
    const flow_t *f = v->program->flow;
    instance_mark(v, backward);
    v->source.first_call = f->call_count;
    v->source.first_value = f->value_count;
    v->source.first_buffer = whole ? f->buffer_count : UINT32_MAX;
    v->source.outside = backward ? v->part->gradient : v->part->output;
}

/* A node of the part's recording; those from forward_end on are the way back. */
static const graph_node_t *node_at(const instance_t *v, uint32_t index)
{
    lh_assert(index < v->part->r->node_count);
    return &v->part->r->nodes[index];
}

/* Appends the write of x [sequences * rows, width] to the block's cache number `place`, behind the
 * rows that are in it already. Returns the cache after it, [sequences, capacity, width]; the value
 * before it lies in the same memory. */
static uint32_t cache_append(instance_t *v, uint32_t x, uint32_t lengths, uint32_t place)
{
    program_t *p = v->program;
    flow_t *f = p->flow;
    if (f->status != LH_OK) return 0;
    const cache_entry_t entry = {.sequences = p->how.sequences,
                                 .capacity = p->how.capacity,
                                 .width = f->values[x].arg.shape[1],
                                 .block = v->block,
                                 .place = place};
    uint64_t offset;
    f->status = weights_cache(p->weights, &entry, &offset);
    if (f->status != LH_OK) return 0;

    const uint64_t shape[] = {entry.sequences, entry.capacity, entry.width};
    const lh_arg_t arg = flow_arg(p->weights->compute, 3, shape);
    const uint32_t buffer = flow_buffer(f, &p->engine->caches, offset, flow_arg_bytes(&arg));
    const uint32_t before = buffer == 0 ? 0 : flow_value(f, &arg, buffer, 0);
    const uint32_t after = buffer == 0 ? 0 : flow_value(f, &arg, buffer, 0);
    const uint32_t slots[] = {x, lengths, before, after};
    flow_kernel(f, op_table_find(p->engine->how.ops, "cache_write"), NULL, slots);
    return after;
}

/* The name of the input whose cache a slot takes: "k" for "k_cache". False: the slot takes no
 * cache. Names of slots are shorter than 24 bytes (op_t.slot_name). */
static bool cache_of(const char *slot, char name[24])
{
    const size_t length = strlen(slot), suffix = strlen("_cache");
    lh_assert(length < 24);
    if (length <= suffix || strcmp(slot + length - suffix, "_cache") != 0) return false;
    memcpy(name, slot, length - suffix);
    name[length - suffix] = '\0';
    return true;
}

/* The flow value of a node's input, by the input's name; 0: it has none. */
static uint32_t mapped_input(instance_t *v, const graph_node_t *node, const char *name)
{
    const uint32_t slot = op_slot(node->op, name);
    return slot < node->op->in_count ? flow_mapped(&v->source, node->slots[slot]) : 0;
}

/* Whether the form with a cache can stand for the op: it gets that one's attributes, and inputs by
 * their names. slots: of the form's inputs; for a cache's, what is written there. */
static lh_status_t cached_check(const op_t *op, const op_t *with_cache, const uint32_t *slots)
{
    const char *name = op->row.name, *form = with_cache->row.name;
    if (with_cache->row.attributes_bytes > op->row.attributes_bytes)
        return fail(LH_INVALID,
                    "%s can't generate: its attributes have %u bytes, and %s, its form with a "
                    "cache, expects %u",
                    name, op->row.attributes_bytes, form, with_cache->row.attributes_bytes);
    for (uint32_t s = 0; s < with_cache->in_count; s++)
        if (slots[s] == 0 && !with_cache->optional[s])
            return fail(LH_INVALID,
                        "%s can't generate: there is nothing for input %s of %s, its form with a "
                        "cache",
                        name, with_cache->slot_name[s], form);
    return LH_OK;
}

/* Appends, instead of a node, the op with a cache that the op's row names for generation. So
 * attention q k v starts slopes -> y lse becomes two cache writes and attention_cached q k_cache
 * v_cache lengths slopes -> y. A block's caches are numbered in the order of the nodes and slots
 * that have one; *places is how many there are so far. */
static void decode_cached(instance_t *v, const graph_node_t *node, uint32_t *places)
{
    program_t *p = v->program;
    flow_t *f = p->flow;
    const op_t *op = node->op;
    const char *name = op->row.cached(node->attributes);
    const op_t *with_cache = name == NULL ? NULL : op_table_find(p->engine->how.ops, name);
    if (with_cache == NULL) {
        f->status = fail(LH_UNSUPPORTED, "%s can't generate: %s%s", op->row.name,
                         name == NULL ? "with these attributes it has no form with a cache"
                                      : "there is no op ",
                         name == NULL ? "" : name);
        return;
    }
    const lh_arg_t lengths_arg = flow_arg(LH_DTYPE_I32, 1, &p->how.sequences);
    const uint32_t lengths = program_input_value(p, LH_INPUT_LENGTHS, &lengths_arg);
    uint32_t slots[OP_SLOTS] = {0};
    char of[24];
    for (uint32_t s = 0; s < with_cache->in_count; s++) {
        const char *slot = with_cache->slot_name[s];
        if (recorder_input_of(slot) == LH_INPUT_LENGTHS)
            slots[s] = lengths;
        else
            slots[s] = mapped_input(v, node, cache_of(slot, of) ? of : slot);
    }
    if (f->status == LH_OK) f->status = cached_check(op, with_cache, slots);
    for (uint32_t s = 0; s < with_cache->in_count && f->status == LH_OK; s++)
        if (cache_of(with_cache->slot_name[s], of) && slots[s] != 0)
            slots[s] = cache_append(v, flow_view_dense(&v->source, slots[s]), lengths, (*places)++);
    const lh_value_t y = node->slots[op->in_count], made[OP_SLOTS] = {y};
    flow_view_settle(&v->source, with_cache, node->attributes, slots, made);
    if (f->status != LH_OK) return;

    v->map[y] = flow_activation(f, &v->part->r->values[y].arg);
    slots[with_cache->in_count] = v->map[y];
    flow_kernel(f, with_cache, node->attributes, slots);
}

/* Adds the losses that the model records to those of the program. */
static void losses_add(instance_t *v)
{
    program_t *p = v->program;
    const recording_t *r = v->part->r;
    for (uint32_t i = 0; i < r->loss_count && p->how.use != USE_DECODE; i++) {
        const uint32_t from = flow_mapped(&v->source, r->losses[i].value);
        if (from == 0) return;
        const lh_arg_t arg = p->flow->values[from].arg;
        const uint32_t slots[] = {from, program_output_value(p, OUTPUT_EXTRA, &arg, true)};
        flow_kernel(p->flow, v->source.copy, NULL, slots);
    }
}

uint32_t instance_forward(instance_t *v, uint32_t input)
{
    if (v->program->flow->status != LH_OK) return 0;
    instance_walk(v, false, true);
    if (v->part->input != 0) v->map[v->part->input] = input;
    const bool decode = v->program->how.use == USE_DECODE;
    uint32_t caches = 0;
    for (uint32_t i = v->leg.forward; i < v->leg.forward_end && v->program->flow->status == LH_OK;
         i++) {
        if (decode && node_at(v, i)->op->row.cached != NULL)
            decode_cached(v, node_at(v, i), &caches);
        else
            flow_node(&v->source, i);
    }
    if (!part_leg_ends_forward(&v->leg, v->part)) return input;
    losses_add(v);
    /* The next part, transfers and outputs take rows that lie back to back. */
    return flow_view_dense(&v->source, flow_mapped(&v->source, v->part->output));
}

void instance_recompute(instance_t *v, uint32_t recompute)
{
    if (recompute == RECOMPUTE_NONE || v->program->flow->status != LH_OK) return;
    instance_walk(v, true, true);
    values_forget(v);
    for (uint32_t i = v->leg.forward; i < v->leg.forward_end; i++) {
        const graph_node_t *node = node_at(v, i);
        const bool costly = (node->op->row.flags & LH_OP_COSTLY) != 0;
        if (recompute == RECOMPUTE_SELECTIVE && costly) continue;
        if (part_halves_meet(node->op)) continue;
        for (uint32_t s = node->op->in_count; s < node->op->in_count + node->op->out_count; s++)
            if (node->slots[s] != 0) v->map[node->slots[s]] = 0;
        flow_node(&v->source, i);
    }
}

/* Starts the way back with the gradient of the output. */
static void backward_begin(instance_t *v, uint32_t gradient, bool whole)
{
    lh_assert(v->part->seed > 0 && v->part->seed < v->part->r->value_count);
    instance_walk(v, true, whole);
    values_forget(v);
    v->map[v->part->seed] = gradient;
}

uint32_t instance_backward(instance_t *v, uint32_t gradient, uint32_t into)
{
    flow_t *f = v->program->flow;
    const part_t *part = v->part;
    if (f->status != LH_OK) return 0;
    backward_begin(v, gradient, true);
    if (into != 0 && part->gradient != 0 && v->map[part->gradient] == 0)
        v->map[part->gradient] = into;
    for (uint32_t i = v->leg.backward; i < v->leg.backward_end; i++)
        flow_node(&v->source, i);
    if (!part_leg_ends_backward(&v->leg, part)) return gradient;
    if (part->gradient == 0) return 0;

    const uint32_t made = flow_view_dense(&v->source, flow_mapped(&v->source, part->gradient));
    if (into == 0 || made == into || f->status != LH_OK) return made;
    const uint32_t slots[] = {made, into};
    flow_kernel(f, v->source.copy, NULL, slots);
    return into;
}

/* Appends the leg's nodes of the first half of the way back, or (not input) of the second. */
static void backward_half(instance_t *v, bool input)
{
    flow_t *f = v->program->flow;
    bool *leads = mem_array(v->part->r->node_count, sizeof(*leads));
    f->status = leads == NULL ? LH_NO_MEMORY : part_halves_mark(v->part, leads);
    for (uint32_t i = v->leg.backward; i < v->leg.backward_end && f->status == LH_OK; i++)
        if (leads[i] == input) flow_node(&v->source, i);
    mem_free(leads);
}

uint32_t instance_backward_input(instance_t *v, uint32_t gradient)
{
    if (v->program->flow->status != LH_OK) return 0;
    backward_begin(v, gradient, false);
    backward_half(v, true);
    if (!part_leg_ends_backward(&v->leg, v->part)) return gradient;
    if (v->part->gradient == 0) return 0;
    return flow_view_dense(&v->source, flow_mapped(&v->source, v->part->gradient));
}

void instance_backward_weights(instance_t *v)
{
    if (v->program->flow->status != LH_OK) return;
    instance_walk(v, true, false);
    backward_half(v, false);
}
