/* visit.c - one part of the model on its way through a program. */
#include <graph/visit.h>

#include <graph/op_table.h>
#include <tensor/dtype.h>

static bool by_token(uint32_t which)
{
    return which == LH_INPUT_TOKENS || which == LH_INPUT_POSITIONS || which == LH_INPUT_LABELS ||
           which == LH_INPUT_WEIGHTS;
}

/* Inputs have the rows of all lanes; a lane's recording, and a chunk's of the head, sees some. */
static uint32_t leaf_input(visit_t *v, const graph_value_t *value)
{
    program_t *p = v->program;
    const bool tokens = by_token(value->which);
    const uint64_t lane_rows = tokens ? p->tokens : value->arg.shape[0];
    lh_arg_t whole = value->arg;
    whole.shape[0] = lane_rows * p->lanes;
    const uint32_t all = program_input_value(p, value->which, &whole);
    if (value->arg.shape[0] == whole.shape[0]) return all;
    const uint64_t begin = v->lane * lane_rows + (tokens ? v->row_begin : 0);
    return flow_rows(p->flow, all, begin, value->arg.shape[0]);
}

static uint32_t leaf(void *context, const graph_value_t *value)
{
    visit_t *v = context;
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

/* Weights that are gathered for a visit are gathered again for its way back. */
static void values_forget(visit_t *v)
{
    const exchange_t *x = v->program->engine->exchange;
    if (x == NULL || x->value == NULL) return;
    for (uint32_t i = 1; i < v->part->r->value_count; i++)
        if (v->part->r->values[i].kind == VALUE_PARAM) v->map[i] = 0;
}

void visit_begin(visit_t *v, program_t *p, const part_t *part, uint32_t block, uint32_t lane,
                 uint64_t row_begin)
{
    *v = (visit_t){
        .program = p, .part = part, .block = block, .lane = lane, .row_begin = row_begin};
    v->map = program_map(p, part->r);
    v->source = (flow_source_t){.flow = p->flow,
                                .recording = part->r,
                                .copy = op_table_find(p->engine->how.ops, "copy"),
                                .map = v->map,
                                .leaf = leaf,
                                .context = v};
}

/* Calls from here on belong to this visit. */
static void visit_mark(const visit_t *v, bool backward)
{
    flow_t *f = v->program->flow;
    f->part = v->part->part;
    f->block = v->block;
    f->backward = backward;
}

static const graph_node_t *node_at(const visit_t *v, uint32_t index)
{
    return &v->part->r->nodes[index];
}

static bool is_attention(const graph_node_t *node)
{
    return strcmp(node->op->row.name, "attention") == 0;
}

/* The cache of keys (place even) or values, with the rows of x written behind those already there.
 */
static uint32_t cached(visit_t *v, uint32_t x, uint32_t lengths, uint32_t place)
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
    const uint32_t buffer = flow_buffer(f, &p->engine->caches, offset, arg_bytes(&arg));
    const uint32_t before = buffer == 0 ? 0 : flow_value(f, &arg, buffer, 0);
    const uint32_t after = buffer == 0 ? 0 : flow_value(f, &arg, buffer, 0);
    const uint32_t slots[] = {x, lengths, before, after};
    flow_kernel(f, op_table_find(p->engine->how.ops, "cache_write"), NULL, slots);
    return after;
}

/* attention q k v starts slopes -> y lse becomes two cache writes and
 * attention_cached q k_cache v_cache lengths slopes -> y. */
static void decode_attention(visit_t *v, const graph_node_t *node, uint32_t number)
{
    program_t *p = v->program;
    flow_t *f = p->flow;
    const op_t *op = node->op, *with_cache = op_table_find(p->engine->how.ops, "attention_cached");
    const lh_attention_t *how = node->attributes;
    if (how->full != 0 || with_cache == NULL) {
        f->status = fail(LH_UNSUPPORTED, "attention that is not causal can't generate");
        return;
    }
    const lh_arg_t lengths_arg = flow_arg(LH_DTYPE_I32, 1, &p->how.sequences);
    const uint32_t lengths = program_input_value(p, LH_INPUT_LENGTHS, &lengths_arg);
    const uint32_t q = flow_mapped(&v->source, node->slots[op_slot(op, "q")]);
    const uint32_t k = flow_mapped(&v->source, node->slots[op_slot(op, "k")]);
    const uint32_t x = flow_mapped(&v->source, node->slots[op_slot(op, "v")]);
    const uint32_t slopes = flow_mapped(&v->source, node->slots[op_slot(op, "slopes")]);
    const uint32_t keys = cached(v, k, lengths, 2 * number);
    const uint32_t values = cached(v, x, lengths, 2 * number + 1);
    if (f->status != LH_OK) return;

    const lh_value_t y = node->slots[op->in_count];
    v->map[y] = flow_activation(f, &v->part->r->values[y].arg);
    const uint32_t slots[] = {q, keys, values, lengths, slopes, v->map[y]};
    flow_kernel(f, with_cache, node->attributes, slots);
}

/* Adds the losses that the model records to those of the program. */
static void losses_add(visit_t *v)
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

uint32_t visit_forward(visit_t *v, uint32_t input)
{
    if (v->program->flow->status != LH_OK) return 0;
    visit_mark(v, false);
    if (v->part->input != 0) v->map[v->part->input] = input;
    const bool decode = v->program->how.use == USE_DECODE;
    uint32_t attentions = 0;
    for (uint32_t i = 1; i < v->part->forward_end && v->program->flow->status == LH_OK; i++) {
        if (decode && is_attention(node_at(v, i)))
            decode_attention(v, node_at(v, i), attentions++);
        else
            flow_node(&v->source, i);
    }
    losses_add(v);
    return flow_mapped(&v->source, v->part->output);
}

/* The ops whose results are worth keeping under RECOMPUTE_SELECTIVE: a lot of arithmetic for the
 * bytes they make. */
static bool is_dear(const op_t *op)
{
    static const char *const dear[] = {"matmul", "attention", "grouped_matmul"};
    for (uint32_t i = 0; i < sizeof(dear) / sizeof(dear[0]); i++)
        if (strcmp(op->row.name, dear[i]) == 0) return true;
    return false;
}

void visit_recompute(visit_t *v, uint32_t recompute)
{
    if (recompute == RECOMPUTE_NONE || v->program->flow->status != LH_OK) return;
    visit_mark(v, true);
    values_forget(v);
    for (uint32_t i = 1; i < v->part->forward_end; i++) {
        const graph_node_t *node = node_at(v, i);
        if (recompute == RECOMPUTE_SELECTIVE && is_dear(node->op)) continue;
        for (uint32_t s = node->op->in_count; s < node->op->in_count + node->op->out_count; s++)
            if (node->slots[s] != 0) v->map[node->slots[s]] = 0;
        flow_node(&v->source, i);
    }
}

uint32_t visit_backward(visit_t *v, uint32_t gradient, uint32_t into)
{
    flow_t *f = v->program->flow;
    const part_t *part = v->part;
    if (f->status != LH_OK) return 0;
    visit_mark(v, true);
    values_forget(v);
    v->map[part->seed] = gradient;
    if (into != 0 && part->gradient != 0 && v->map[part->gradient] == 0)
        v->map[part->gradient] = into;
    for (uint32_t i = part->forward_end; i < part->r->node_count; i++)
        flow_node(&v->source, i);
    if (part->gradient == 0) return 0;

    const uint32_t made = flow_mapped(&v->source, part->gradient);
    if (into == 0 || made == into || f->status != LH_OK) return made;
    const uint32_t slots[] = {made, into};
    flow_kernel(f, v->source.copy, NULL, slots);
    return into;
}
