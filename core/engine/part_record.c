/* part_record.c - records a model's parts for a program.
 *
 * While a part is recorded, its parameters can be asked for by the names that the model uses inside
 * it. The sections of the head are made by recording the whole head once, finding where to cut, and
 * replaying each section's nodes into a recording of its own with another number of rows. So a
 * model need not know of chunks. */
#include <engine/part_record.h>

#include <base/memory.h>
#include <graph/fusion.h>
#include <graph/gradient.h>
#include <graph/op_table.h>
#include <graph/recorder.h>

/* What param() may name while a part is recorded. Lies on the stack of whoever records. */
typedef struct local_names {
    const weights_t *weights;
    uint32_t part, block;
} local_names_t;

/* recording_how_t.param: the shape of "attn.wq" in the block that is recorded. */
static lh_status_t local_shape(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                               uint32_t *rank)
{
    const local_names_t *local = context;
    uint32_t index;
    if (!parameters_find_local(local->weights->parameters, local->part, local->block, name, &index))
        return fail(LH_INVALID, "parameter '%s' is in none of the model's rows for this part",
                    name);
    const parameter_t *param = &local->weights->parameters->items[index];
    memcpy(shape, param->shape, sizeof(param->shape));
    *rank = param->rank;
    return LH_OK;
}

/* recording_how_t.adapted. */
static bool local_adapted(void *context, const char *name, double *scale, bool *magnitude)
{
    const local_names_t *local = context;
    const parameters_t *p = local->weights->parameters;
    uint32_t index;
    if (!parameters_find_local(p, local->part, local->block, name, &index) ||
        p->items[index].adapter == 0)
        return false;
    *scale = p->adapter_scale;
    *magnitude = p->adapter_factors == ADAPTER_FACTORS;
    return true;
}

/* Each adapted matrix of a part was taken by a linear layer; in another op its adapter would be
 * trained in vain. */
static lh_status_t adapters_check(const local_names_t *local, const recording_t *r)
{
    const parameters_t *p = local->weights->parameters;
    for (uint32_t i = 0; r->how.adapted != NULL && i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        if (item->adapter == 0 || item->part != local->part || item->block != local->block)
            continue;
        const char *factor = p->items[item->adapter].row->name;
        bool used = false;
        for (lh_value_t v = 1; v < r->value_count && !used; v++)
            used = r->values[v].kind == VALUE_PARAM && strcmp(r->values[v].name, factor) == 0;
        if (!used)
            return fail(LH_UNSUPPORTED,
                        "parameter '%s' is not the matrix of a linear layer; an adapter is for "
                        "those alone",
                        item->name);
    }
    return LH_OK;
}

/* For gradient_append: whether a parameter of the part has a gradient, as it exists and is not
 * frozen. */
static bool local_wanted(void *context, const char *name)
{
    const local_names_t *local = context;
    uint32_t index;
    return parameters_find_local(local->weights->parameters, local->part, local->block, name,
                                 &index) &&
           !local->weights->frozen[index];
}

/* recording_how_t.offers: whether the device has a kernel for a call. Without a device it has
 * none. */
static bool device_offers(void *device, const op_t *op, const void *attributes,
                          const lh_arg_t *args)
{
    const engine_t *engine = device;
    return engine->kernels != NULL && kernel_is_offered(engine->kernels, op, attributes, args);
}

/* An empty recording, which the program owns. */
static lh_status_t recording_for(program_t *p, uint64_t tokens, local_names_t *local,
                                 recording_t **out)
{
    const weights_t *w = p->weights;
    const recording_how_t how = {
        .ops = p->engine->how.ops,
        .host = p->engine->how.host,
        .tokens = tokens,
        .sequences = p->how.sequences,
        .max_documents = p->how.max_documents != 0 ? p->how.max_documents : p->how.sequences,
        .document_rows = p->how.document_rows,
        .compute = w->compute,
        .accumulate = w->accumulate,
        .param = local_shape,
        .adapted = w->parameters->factor_rows != NULL && !p->how.unadapted ? local_adapted : NULL,
        .context = local,
        .offers = device_offers,
        .device = p->engine,
    };
    recording_t *r;
    lh_status_t status = recorder_new(&how, &r);
    if (status == LH_OK) status = program_keep(p, r);
    if (status == LH_OK) *out = r;
    return status;
}

/* Nobody gives a model what the rules of an update are told: it would read zeros in all steps. */
static lh_status_t part_inputs_check(const part_t *part)
{
    for (lh_value_t v = 1; v < part->r->value_count; v++)
        if (part->r->values[v].kind == VALUE_INPUT && part->r->values[v].which == LH_INPUT_STEP)
            return fail(LH_UNSUPPORTED,
                        "the model's part %u, block %u reads the step's numbers, which only "
                        "updates are given",
                        part->part, part->block);
    return LH_OK;
}

/* Lets the model's plugin record a part. The embedding begins with tokens, I32 [tokens], other
 * parts with the hidden state, [tokens, hidden] in the compute dtype. */
static lh_status_t part_record_whole(program_t *p, uint32_t part, uint32_t block, uint64_t tokens,
                                     local_names_t *local, part_t *out)
{
    const weights_t *w = p->weights;
    *out = (part_t){.part = part, .block = block};
    const lh_status_t status = recording_for(p, tokens, local, &out->r);
    if (status != LH_OK) return status;

    lh_graph_t *g = &out->r->graph;
    const uint64_t shape[] = {tokens, w->parameters->hidden};
    const lh_value_t input = part == LH_PART_EMBED
                                 ? g->api->input(g, LH_INPUT_TOKENS)
                                 : recording_argument(out->r, w->compute, 2, shape);
    if (part != LH_PART_EMBED) out->input = input;
    out->output = w->api->record(w->model, g, part, block, input);
    const lh_status_t recorded = recording_status_of(out->r, part, block);
    if (recorded != LH_OK) return recorded;
    if (out->output == 0 || out->output >= out->r->value_count)
        return fail(LH_INVALID, "the model records nothing for part %u, block %u", part, block);
    out->r->output = out->output;
    return part_inputs_check(out);
}

/* A part's output must be [tokens, columns]: columns is hidden, or of the head the vocabulary. */
static lh_status_t part_output_check(const part_t *part, uint64_t tokens, uint64_t columns)
{
    const lh_arg_t *arg = &part->r->values[part->output].arg;
    if (arg->rank == 2 && arg->shape[0] == tokens && arg->shape[1] == columns) return LH_OK;
    return fail(LH_INVALID,
                "the model's part %u, block %u gives rank %u, [%llu, %llu]; expected [%llu, %llu]",
                part->part, part->block, arg->rank, (unsigned long long)arg->shape[0],
                (unsigned long long)arg->shape[1], (unsigned long long)tokens,
                (unsigned long long)columns);
}

/* A loss of the model's own counts as its mean over the step's micro-batches of all ranks, as the
 * cross-entropy does: each is scaled by 1 / their number. */
static lh_status_t losses_average(const program_t *p, recording_t *r)
{
    const uint32_t replicas = p->how.replicas > 1 ? p->how.replicas : 1;
    const uint32_t all = (p->how.micro_batches > 1 ? p->how.micro_batches : 1) * replicas;
    if (all == 1) return LH_OK;
    lh_graph_t *g = &r->graph;
    const float share = 1.0f / (float)all;
    for (uint32_t i = 0; i < r->loss_count; i++) {
        const lh_value_t in[] = {r->losses[i].value, g->api->constant(g, &share, 1)};
        r->losses[i].value = g->api->op(g, "scale", NULL, in, 2, NULL);
    }
    return recording_status(r);
}

/* Sums over blocks are added to before the head and read there. */
static lh_status_t part_sums_check(const recording_t *r, uint32_t part)
{
    if (part == LH_PART_HEAD && r->added_count > 0)
        return fail(LH_UNSUPPORTED, "the head adds to sum '%s'; only embedding and blocks may",
                    r->added[0].name);
    if (part != LH_PART_HEAD && r->total_count > 0)
        return fail(LH_UNSUPPORTED, "a block reads sum '%s'; only the head may", r->totals[0].name);
    return LH_OK;
}

/* The names that param() may use lie on this function's stack, so the recording forgets them. */
lh_status_t part_record(program_t *p, uint32_t part, uint32_t block, uint64_t tokens, part_t *out)
{
    local_names_t local = {p->weights, part, block};
    lh_status_t status = part_record_whole(p, part, block, tokens, &local, out);
    if (status == LH_OK) status = part_output_check(out, tokens, p->weights->parameters->hidden);
    if (status == LH_OK) status = adapters_check(&local, out->r);
    if (status == LH_OK) status = part_sums_check(out->r, part);
    if (status == LH_OK) status = losses_average(p, out->r);
    if (status == LH_OK) status = fusion_apply(out->r);
    if (status != LH_OK) return status;
    out->forward_end = out->r->node_count;
    out->r->how.context = NULL;
    return LH_OK;
}

/* The output's gradient is an argument, shaped like the output, in seed_dtype: gradients of
 * activations are in the compute dtype, those of logits may be wider. */
lh_status_t part_differentiate(program_t *p, part_t *part, lh_dtype_t seed_dtype)
{
    lh_assert(part->output > 0 && part->output < part->r->value_count);
    local_names_t local = {p->weights, part->part, part->block};
    recording_t *r = part->r;
    r->how.context = &local;
    const lh_arg_t *arg = &r->values[part->output].arg;
    const uint32_t rank = arg->rank;
    uint64_t shape[LH_MAX_RANK];
    memcpy(shape, arg->shape, sizeof(shape));
    part->seed = recording_argument(r, seed_dtype, rank, shape);
    for (uint32_t i = 0; i < r->added_count; i++) {
        const lh_arg_t added = r->values[r->added[i].value].arg;
        r->added[i].gradient = recording_argument(r, added.dtype, 1, added.shape);
    }
    lh_status_t status = gradient_append(r, part->seed, part->input, local_wanted, &local,
                                         &part->gradient);
    if (status == LH_OK) status = fusion_apply_backward(r, part->gradient);
    r->how.context = NULL;
    return status != LH_OK ? status : recording_status(r);
}

/* Whether the same parameters are frozen in both parts, whose recordings name the same ones. */
static bool frozen_alike(const weights_t *w, const part_t *a, const part_t *b)
{
    for (uint32_t i = 1; i < a->r->value_count; i++) {
        const graph_value_t *v = &a->r->values[i];
        uint32_t in_a, in_b;
        if (v->kind != VALUE_PARAM) continue;
        if (!parameters_find_local(w->parameters, a->part, a->block, v->name, &in_a) ||
            !parameters_find_local(w->parameters, b->part, b->block, v->name, &in_b) ||
            w->frozen[in_a] != w->frozen[in_b])
            return false;
    }
    return true;
}

bool part_equal(const program_t *p, const part_t *a, const part_t *b)
{
    return recording_equal(a->r, b->r) && frozen_alike(p->weights, a, b);
}

/* Replays nodes of a recording into another one, by the functions that a model calls: shapes are
 * found anew. */
typedef struct replay {
    const recording_t *from;
    recording_t *to;
    lh_value_t *map; /* [from->value_count] */
} replay_t;

/* The value of the new recording for one of the old; leaves are recorded when they are first
 * met. */
static lh_value_t replay_value(replay_t *s, lh_value_t value)
{
    lh_assert(value < s->from->value_count);
    if (value == 0 || s->map[value] != 0) return value == 0 ? 0 : s->map[value];
    lh_graph_t *g = &s->to->graph;
    const graph_value_t *v = &s->from->values[value];
    switch (v->kind) {
    case VALUE_PARAM: s->map[value] = g->api->param(g, v->name); break;
    case VALUE_INPUT: s->map[value] = g->api->input(g, v->which); break;
    case VALUE_CONSTANT: s->map[value] = g->api->constant(g, v->constant, v->constant_count); break;
    default: break;
    }
    return s->map[value];
}

/* Records the same op with the same attributes. The recorder asks the device again whether it has a
 * kernel, for these rows. */
static void replay_node(replay_t *s, uint32_t index)
{
    lh_assert(index > 0 && index < s->from->node_count);
    const graph_node_t *node = &s->from->nodes[index];
    const op_t *op = node->op;
    lh_value_t in[OP_SLOTS], more[OP_SLOTS] = {0};
    for (uint32_t i = 0; i < op->in_count; i++)
        in[i] = replay_value(s, node->slots[i]);

    lh_graph_t *g = &s->to->graph;
    const lh_value_t first = g->api->op(g, op->row.name, node->attributes, in, op->in_count, more);
    for (uint32_t i = 0; i < op->out_count; i++) {
        const lh_value_t old = node->slots[op->in_count + i];
        if (old != 0) s->map[old] = i == 0 ? first : more[i - 1];
    }
}

/* Marks the values that `value` is made of, itself included; marks is [r->value_count]. */
static void mark_makers(const recording_t *r, lh_value_t value, bool *marks)
{
    marks[value] = true;
    for (uint32_t n = r->node_count; n-- > 1;) {
        const graph_node_t *node = &r->nodes[n];
        bool makes = false;
        for (uint32_t s = node->op->in_count; s < node_slots(node); s++)
            makes = makes || (node->slots[s] != 0 && marks[node->slots[s]]);
        for (uint32_t s = 0; makes && s < node->op->in_count; s++)
            marks[node->slots[s]] = true;
    }
}

static bool makes_marked(const graph_node_t *node, const bool *marks)
{
    for (uint32_t s = node->op->in_count; s < node_slots(node); s++)
        if (node->slots[s] != 0 && marks[node->slots[s]]) return true;
    return false;
}

/* Records nodes [range[0], range[1]) of `from` once more, as a part of their own: its argument,
 * shaped like `argument`, stands for value border[0], and its output is what value border[1]
 * became. Nodes that this output is not made of are left out. */
static lh_status_t section_record(program_t *p, const part_t *from, const uint32_t range[2],
                                  const lh_value_t border[2], const lh_arg_t *argument, part_t *out)
{
    local_names_t local = {p->weights, LH_PART_HEAD, 0};
    *out = (part_t){.part = LH_PART_HEAD};
    lh_status_t status = recording_for(p, argument->shape[0], &local, &out->r);
    if (status != LH_OK) return status;

    lh_assert(border[0] < from->r->value_count && border[1] < from->r->value_count);
    replay_t s = {from->r, out->r, mem_array(from->r->value_count, sizeof(lh_value_t))};
    if (s.map == NULL) return LH_NO_MEMORY;
    out->input = recording_argument(out->r, argument->dtype, argument->rank, argument->shape);
    s.map[border[0]] = out->input;
    bool *marks = mem_array(from->r->value_count, sizeof(*marks));
    if (marks == NULL) {
        mem_free(s.map);
        return LH_NO_MEMORY;
    }
    mark_makers(from->r, border[1], marks);
    for (uint32_t i = range[0]; i < range[1]; i++)
        if (makes_marked(&from->r->nodes[i], marks)) replay_node(&s, i);
    mem_free(marks);
    out->output = s.map[border[1]];
    out->r->output = out->output;
    mem_free(s.map);
    status = recording_status(out->r);
    if (status == LH_OK) status = fusion_apply(out->r);
    out->forward_end = out->r->node_count;
    out->r->how.context = NULL;
    return status;
}

/* Where the head is cut. */
typedef struct head_cut {
    uint32_t matmul;   /* the node of the last product */
    lh_value_t x, raw; /* its input that comes from the blocks, [tokens, width]; its result */
} head_cut_t;

/* Whether a value may depend on the blocks' output: it is that argument, or a node made it. */
static bool value_depends(const recording_t *r, lh_value_t value)
{
    const uint32_t kind = value == 0 ? VALUE_NONE : r->values[value].kind;
    return kind == VALUE_RESULT || kind == VALUE_ARGUMENT;
}

/* Whether a product multiplies what comes from the blocks, and takes nothing else that a node made:
 * it is replayed alone. */
static bool product_stands_alone(const recording_t *r, const graph_node_t *node)
{
    bool alone = value_depends(r, node->slots[0]);
    for (uint32_t i = 1; i < node->op->in_count; i++)
        alone = alone && !value_depends(r, node->slots[i]);
    return alone;
}

/* Walks back from the logits over ops by element (a soft cap, say) to the matmul. Each of those ops
 * may depend on one value only: they are replayed and differentiated for a chunk of rows, whose one
 * argument is the product. */
static lh_status_t head_cut_find(const part_t *head, head_cut_t *out)
{
    const recording_t *r = head->r;
    const uint32_t by_element = LH_OP_ROWS | LH_OP_COLUMNS;
    lh_value_t at = head->output;
    while (r->values[at].kind == VALUE_RESULT) {
        const uint32_t index = r->values[at].node;
        const graph_node_t *node = &r->nodes[index];
        const op_t *op = node->op;
        if ((op->row.flags & LH_OP_PRODUCT) != 0) {
            if (!product_stands_alone(r, node)) break;
            *out = (head_cut_t){index, node->slots[0], at};
            return LH_OK;
        }
        lh_value_t before = 0;
        for (uint32_t i = 0; i < op->in_count; i++) {
            if (!value_depends(r, node->slots[i])) continue;
            if (before != 0 && before != node->slots[i])
                before = 0, i = op->in_count;
            else
                before = node->slots[i];
        }
        if ((op->row.flags & by_element) != by_element || before == 0)
            return fail(LH_UNSUPPORTED,
                        "op %s stands between the head's last matmul and the logits; only ops by "
                        "element on one value may",
                        op->row.name);
        at = before;
    }
    return fail(LH_UNSUPPORTED, "the head's logits do not come from a matmul with a parameter, and "
                                "with one or a constant as its bias");
}

/* Whether no node from `begin` on that the logits are made of takes a parameter or an input, of
 * which a chunk would need other rows. */
static bool only_constants(const recording_t *r, uint32_t begin, const bool *logits)
{
    for (uint32_t n = begin; n < r->node_count; n++)
        for (uint32_t i = 0; makes_marked(&r->nodes[n], logits) && i < r->nodes[n].op->in_count;
             i++) {
            const lh_value_t v = r->nodes[n].slots[i];
            if (v != 0 && (r->values[v].kind == VALUE_PARAM || r->values[v].kind == VALUE_INPUT))
                return false;
        }
    return true;
}

/* Losses are F32 whatever the compute dtype is, but F64 in a reference run; so are logits, unless
 * the program is to have narrow ones. */
lh_dtype_t part_logits_dtype(const program_t *p)
{
    const lh_dtype_t compute = p->weights->compute;
    if (p->how.narrow_logits && p->how.use != USE_DECODE) return compute;
    return compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
}

/* Records what a program that trains makes of a chunk's logits: the loss, and as output their
 * gradient. */
static void loss_train(part_t *out, lh_value_t logits, lh_value_t labels, lh_value_t weights)
{
    lh_graph_t *g = &out->r->graph;
    const lh_value_t in[] = {logits, labels, weights};
    lh_value_t more[OP_SLOTS] = {0};
    out->loss = g->api->op(g, "cross_entropy", NULL, in, 3, more);
    out->output = more[0];
}

/* Records what a program that scores makes of them: stats [rows, 3], and the loss. */
static void loss_score(part_t *out, lh_value_t logits, lh_value_t labels, lh_value_t weights)
{
    lh_graph_t *g = &out->r->graph;
    const lh_value_t of_stats[] = {logits, labels};
    out->stats = g->api->op(g, "ce_stats", NULL, of_stats, 2, NULL);
    const lh_value_t of_loss[] = {out->stats, weights};
    out->loss = out->output = g->api->op(g, "ce_loss", NULL, of_loss, 2, NULL);
}

/* Records the cross-entropy of a chunk of logits, [rows, vocab]. ops_embed.c says why the gradient
 * is recorded, and not derived. It comes in what this recording computes in: the dtype that the
 * products of the way back take or, where a cap comes between, that of the logits. */
static lh_status_t loss_record(program_t *p, uint64_t rows, bool capped, part_t *out)
{
    const weights_t *w = p->weights;
    local_names_t local = {w, LH_PART_HEAD, 0};
    *out = (part_t){.part = LH_PART_HEAD};
    const lh_status_t status = recording_for(p, rows, &local, &out->r);
    if (status != LH_OK) return status;

    lh_graph_t *g = &out->r->graph;
    const uint64_t shape[] = {rows, w->parameters->vocab};
    if (capped) out->r->how.compute = part_logits_dtype(p);
    const lh_value_t logits = recording_argument(out->r, part_logits_dtype(p), 2, shape);
    const lh_value_t labels = g->api->input(g, LH_INPUT_LABELS);
    const lh_value_t weights = g->api->input(g, LH_INPUT_WEIGHTS);
    if (p->how.use == USE_TRAIN)
        loss_train(out, logits, labels, weights);
    else
        loss_score(out, logits, labels, weights);
    out->input = logits;
    out->forward_end = out->r->node_count;
    out->r->how.context = NULL;
    return recording_status(out->r);
}

/* Records the product: x [rows, width] in the compute dtype, logits [rows, vocab]. */
static lh_status_t matmul_record(program_t *p, const part_t *whole, const head_cut_t *cut,
                                 uint64_t rows, part_t *out)
{
    const uint64_t x_shape[] = {rows, whole->r->values[cut->x].arg.shape[1]};
    const lh_arg_t x = flow_arg(p->weights->compute, 2, x_shape);
    const uint32_t range[] = {cut->matmul, cut->matmul + 1};
    const lh_value_t border[] = {cut->x, cut->raw};
    const lh_status_t status = section_record(p, whole, range, border, &x, out);
    if (status != LH_OK) return status;
    recording_retype(out->r, out->output, part_logits_dtype(p));
    return LH_OK;
}

/* Records what follows the product, [rows, vocab] in the logits' dtype. */
static lh_status_t cap_record(program_t *p, const part_t *whole, const head_cut_t *cut,
                              uint64_t rows, part_t *out)
{
    bool *marks = mem_array(whole->r->value_count, sizeof(*marks));
    if (marks == NULL) return LH_NO_MEMORY;
    mark_makers(whole->r, whole->output, marks);
    const bool simple = only_constants(whole->r, cut->matmul + 1, marks);
    mem_free(marks);
    if (!simple)
        return fail(LH_UNSUPPORTED, "an op behind the head's last matmul takes a parameter or an "
                                    "input; only constants may");
    const uint64_t shape[] = {rows, p->weights->parameters->vocab};
    const lh_arg_t raw = flow_arg(part_logits_dtype(p), 2, shape);
    const uint32_t range[] = {cut->matmul + 1, whole->r->node_count};
    const lh_value_t border[] = {cut->raw, whole->output};
    return section_record(p, whole, range, border, &raw, out);
}

/* Records what comes before the product, for all rows of the micro-batch at once: the final norm,
 * as a rule. */
static lh_status_t front_record(program_t *p, const part_t *whole, const head_cut_t *cut,
                                part_t *out)
{
    const uint32_t range[] = {1, cut->matmul};
    const lh_value_t border[] = {whole->input, cut->x};
    const lh_arg_t hidden = whole->r->values[whole->input].arg;
    return section_record(p, whole, range, border, &hidden, out);
}

/* A node that makes nothing hands a value to another rank. Neither logits nor losses are made of
 * it, so it would be left out. */
static lh_status_t head_sends_refuse(const recording_t *r)
{
    for (uint32_t i = 1; i < r->node_count; i++)
        if (r->nodes[i].op->out_count == 0)
            return fail(LH_UNSUPPORTED, "the head records op %s; only embedding and blocks may",
                        r->nodes[i].op->row.name);
    return LH_OK;
}

/* Logits exist for a chunk of rows at a time and sums for the whole micro-batch, so neither may be
 * made of the other. */
static lh_status_t head_apart(const part_t *whole)
{
    const recording_t *r = whole->r;
    bool *marks = mem_array(r->value_count, sizeof(*marks));
    lh_status_t status = marks == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) mark_makers(r, whole->output, marks);
    for (uint32_t i = 0; status == LH_OK && i < r->total_count; i++)
        if (marks[r->totals[i].value])
            status = fail(LH_UNSUPPORTED, "the head's logits depend on sum '%s'; only losses may",
                          r->totals[i].name);
    if (status == LH_OK) memset(marks, 0, r->value_count * sizeof(*marks));
    for (uint32_t i = 0; status == LH_OK && i < r->loss_count; i++) {
        mark_makers(r, r->losses[i].value, marks);
        if (marks[whole->input])
            status = fail(LH_UNSUPPORTED,
                          "loss '%s' of the head depends on rows; only sums over the blocks may be "
                          "minimised there",
                          r->losses[i].metric);
    }
    for (uint32_t i = 0; status == LH_OK && i < r->total_count; i++)
        if (!marks[r->totals[i].value])
            status = fail(LH_INVALID, "the head reads sum '%s', and no loss depends on it",
                          r->totals[i].name);
    mem_free(marks);
    return status;
}

/* Records what the head's losses are made of, as a part whose arguments are the sums. */
static lh_status_t sums_record(program_t *p, part_t *whole, bool differentiate, part_t *out)
{
    recording_t *from = whole->r;
    local_names_t local = {p->weights, LH_PART_HEAD, 0};
    *out = (part_t){.part = LH_PART_HEAD};
    if (from->loss_count == 0) return LH_OK;
    lh_status_t status = losses_average(p, from);
    if (status == LH_OK) status = recording_for(p, p->tokens, &local, &out->r);
    if (status != LH_OK) return status;
    lh_graph_t *g = &out->r->graph;
    replay_t s = {from, out->r, mem_array(from->value_count, sizeof(lh_value_t))};
    bool *marks = mem_array(from->value_count, sizeof(*marks));
    if (s.map == NULL || marks == NULL) status = LH_NO_MEMORY;
    for (uint32_t i = 0; status == LH_OK && i < from->total_count; i++)
        s.map[from->totals[i].value] = g->api->total(
            g, from->totals[i].name, from->values[from->totals[i].value].arg.shape[0]);
    for (uint32_t i = 0; status == LH_OK && i < from->loss_count; i++)
        mark_makers(from, from->losses[i].value, marks);
    for (uint32_t i = 1; status == LH_OK && i < from->node_count; i++)
        if (makes_marked(&from->nodes[i], marks)) replay_node(&s, i);
    for (uint32_t i = 0; status == LH_OK && i < from->loss_count; i++) {
        out->output = replay_value(&s, from->losses[i].value);
        g->api->loss(g, from->losses[i].metric, out->output);
    }
    mem_free(s.map);
    mem_free(marks);
    if (status == LH_OK) status = recording_status(out->r);
    if (status == LH_OK) status = fusion_apply(out->r);
    out->forward_end = out->r->node_count;
    if (status == LH_OK && differentiate)
        status = gradient_append(out->r, 0, 0, local_wanted, &local, &out->gradient);
    out->r->how.context = NULL;
    return status;
}

/* The whole head is recorded for all tokens first, to be checked and cut; no program runs that
 * recording. */
lh_status_t part_record_head(program_t *p, uint64_t rows, bool differentiate, head_parts_t *out)
{
    const weights_t *w = p->weights;
    local_names_t local = {w, LH_PART_HEAD, 0};
    part_t whole;
    head_cut_t cut = {0};
    *out = (head_parts_t){0};
    lh_status_t status = part_record_whole(p, LH_PART_HEAD, 0, p->tokens, &local, &whole);
    if (status == LH_OK) status = part_output_check(&whole, p->tokens, w->parameters->vocab);
    if (status == LH_OK) status = part_sums_check(whole.r, LH_PART_HEAD);
    if (status == LH_OK) status = head_sends_refuse(whole.r);
    if (status == LH_OK) status = head_apart(&whole);
    if (status == LH_OK) status = head_cut_find(&whole, &cut);
    if (status != LH_OK) return status;

    const bool capped = cut.raw != whole.output, fronted = cut.x != whole.input;
    if (fronted) status = front_record(p, &whole, &cut, &out->front);
    if (status == LH_OK) status = matmul_record(p, &whole, &cut, rows, &out->matmul);
    if (status == LH_OK && capped) status = cap_record(p, &whole, &cut, rows, &out->cap);
    if (status == LH_OK) status = loss_record(p, rows, capped, &out->loss);
    if (status == LH_OK && p->how.use != USE_DECODE)
        status = sums_record(p, &whole, differentiate, &out->sums);
    whole.r->how.context = NULL;
    if (!differentiate) return status;
    if (status == LH_OK && fronted) status = part_differentiate(p, &out->front, w->compute);
    if (status == LH_OK && capped) status = part_differentiate(p, &out->cap, part_logits_dtype(p));
    return status == LH_OK ? part_differentiate(p, &out->matmul, w->compute) : status;
}
