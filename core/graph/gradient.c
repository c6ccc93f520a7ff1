/* gradient.c - the reverse pass: walks a recording's nodes back and records each op's gradient.
 *
 * A value that is used several times gets several contributions to its gradient, one from each node
 * that reads it. If the node that makes a later contribution can add, it adds onto the memory of
 * the earlier one, which saves an `add` and a value. That is right only while nothing else reads or
 * holds that memory; a gradient that passes through an op unchanged, say, is held twice. Otherwise
 * an `add` is recorded.
 *
 * Gradients of parameters are a kind of their own (VALUE_GRADIENT): their memory outlives the
 * recording, and each micro-batch adds to it. */
#include <graph/gradient.h>

#include <base/memory.h>
#include <graph/recording.h>
#include <ops/ops_view.h>

/* The walk back. Arrays are by value of the forward pass; values of the reverse pass have larger
 * ids. */
typedef struct reverse {
    recording_t *r;
    uint32_t node_end;      /* nodes [1, node_end) are the forward pass               */
    lh_value_t value_end;   /* values [1, value_end) are its values                   */
    bool *needed;           /* by value: a gradient that is wanted flows through it   */
    lh_value_t *gradient;   /* by value: the sum so far; 0: nothing has arrived       */
    uint32_t call_begin;    /* first node that the gradient function at hand recorded */
    const lh_value_t *into; /* [into_count] all that this function returned           */
    uint32_t into_count;
} reverse_t;

/* Whether a dtype can have a gradient: token ids and other integers have none. */
static bool has_gradient_dtype(lh_dtype_t d)
{
    return d == LH_DTYPE_F32 || d == LH_DTYPE_BF16 || d == LH_DTYPE_F16 || d == LH_DTYPE_F64;
}

/* An op without inputs that has a gradient takes what it makes from another rank, where it may
 * depend on parameters; one without outputs hands its inputs to another rank, whence their
 * gradient comes. */
static bool op_takes_elsewhere(const op_t *op)
{
    return op->in_count == 0 && op->row.gradient != NULL;
}

static bool op_gives_elsewhere(const op_t *op)
{
    return op->out_count == 0 && op->row.gradient != NULL;
}

/* Marks the values that depend on a wanted parameter, on the input or on other ranks. Only those
 * need a gradient, so ops that depend on frozen parameters alone record none. One walk forward is
 * enough, as nodes are in order. */
static void mark_needed(reverse_t *p, lh_value_t input, bool (*wanted)(void *, const char *),
                        void *context)
{
    const recording_t *r = p->r;
    for (lh_value_t v = 1; v < p->value_end; v++)
        if (r->values[v].kind == VALUE_PARAM) p->needed[v] = wanted(context, r->values[v].name);
    if (input != 0) p->needed[input] = true;
    for (uint32_t i = 0; i < r->total_count; i++)
        p->needed[r->totals[i].value] = true;

    for (uint32_t n = 1; n < p->node_end; n++) {
        const graph_node_t *node = &r->nodes[n];
        bool any = op_takes_elsewhere(node->op);
        for (uint32_t s = 0; s < node->op->in_count; s++)
            any = any || p->needed[node->slots[s]];
        for (uint32_t s = node->op->in_count; any && s < node_slots(node); s++)
            if (node->slots[s] != 0 && has_gradient_dtype(r->values[node->slots[s]].arg.dtype))
                p->needed[node->slots[s]] = true;
    }
    p->needed[0] = false;
}

/* Whether any node reads a value, or adds onto its memory. Looks at the whole recording, which is
 * short, once for each contribution. */
static bool is_read(const recording_t *r, lh_value_t v)
{
    for (uint32_t n = 1; n < r->node_count; n++) {
        const graph_node_t *node = &r->nodes[n];
        for (uint32_t s = 0; s < node->op->in_count; s++)
            if (node->slots[s] == v) return true;
        for (uint32_t s = node->op->in_count; s < node_slots(node); s++)
            if (node->adds_to[s] == v) return true;
    }
    return false;
}

/* Whether a value is or may be a view of another's memory. */
static bool is_view(const recording_t *r, lh_value_t v)
{
    const uint32_t view = r->nodes[r->values[v].node].op->view;
    return view != 0 && view != VIEW_COLUMNS_GRAD;
}

/* Whether a node of the reverse pass writes a value into memory of its own, and no node reads it.
 * Then adding there, or making the write an addition, changes nothing for any other node. */
static bool is_unread_result(const recording_t *r, lh_value_t v)
{
    const graph_value_t *value = &r->values[v];
    if (value->kind != VALUE_RESULT) return false;
    const graph_node_t *node = &r->nodes[value->node];
    return node->backward && node->op->alias[value->slot] == 0 && !is_view(r, v) && !is_read(r, v);
}

/* Whether a contribution was made just now, for this one input, by a node that can add. A value
 * that a gradient function returned for two inputs is held twice, and may not be turned into an
 * addition for one of them. */
static bool can_add(const reverse_t *p, lh_value_t v)
{
    const recording_t *r = p->r;
    if (!is_unread_result(r, v)) return false;
    const graph_node_t *node = &r->nodes[r->values[v].node];
    if (r->values[v].node < p->call_begin || !node->op->adds[r->values[v].slot]) return false;
    uint32_t times = 0;
    for (uint32_t i = 0; i < p->into_count; i++)
        times += p->into[i] == v;
    return times == 1;
}

/* Whether a sum has its memory for itself: it is not the gradient of another value, too. */
static bool can_be_added_to(const reverse_t *p, lh_value_t v)
{
    if (!is_unread_result(p->r, v)) return false;
    uint32_t holders = 0;
    for (lh_value_t i = 1; i < p->value_end; i++)
        holders += p->gradient[i] == v;
    return holders == 1;
}

/* Lets the node of v write it by adding onto the memory of `onto`: LH_ARG_ADD for its kernel. */
static void set_adds_to(recording_t *r, lh_value_t v, lh_value_t onto)
{
    lh_assert(v > 0 && v < r->value_count && onto < r->value_count);
    r->nodes[r->values[v].node].adds_to[r->values[v].slot] = onto;
}

/* Records an op of the core's without attributes, of one input (b 0) or two. */
static lh_value_t record_core_op(recording_t *r, const char *op, lh_value_t a, lh_value_t b)
{
    const lh_value_t in[] = {a, b};
    return r->graph.api->op(&r->graph, op, NULL, in, b == 0 ? 1 : 2, NULL);
}

/* Takes a contribution c to the gradient of a value v that is no parameter. If it is the first, it
 * is the sum so far; else its node adds onto the sum so far if that is possible; else an `add` is
 * recorded. Contributions come in the order of the walk back, so sums have the same bits each
 * time. */
static void contribute_value(reverse_t *p, lh_value_t v, lh_value_t c)
{
    lh_assert(v > 0 && v < p->value_end);
    recording_t *r = p->r;
    const lh_value_t sum = p->gradient[v];
    if (sum == 0)
        p->gradient[v] = c;
    else if (can_add(p, c) && can_be_added_to(p, sum) &&
             r->values[c].arg.dtype == r->values[sum].arg.dtype) {
        set_adds_to(r, c, sum);
        p->gradient[v] = c;
    } else
        p->gradient[v] = record_core_op(r, "add", sum, c);
}

/* Whether a value's columns are written by copies, and zeros before them: no sum over micro-batches
 * can begin so. */
static bool is_made_of_copies(const recording_t *r, lh_value_t c)
{
    return r->values[c].kind == VALUE_RESULT && r->nodes[r->values[c].node].op->view != 0;
}

/* Takes a contribution to a parameter's gradient: a value of kind VALUE_GRADIENT in the
 * accumulation dtype, for which the program decides where it lies and which node writes first. The
 * node that makes it must be able to add, as later micro-batches do; if it can't, a copy, which
 * can, is put between. */
static void contribute_param(reverse_t *p, lh_value_t v, lh_value_t c)
{
    lh_assert(v > 0 && v < p->value_end);
    recording_t *r = p->r;
    if (!can_add(p, c) || is_made_of_copies(r, c)) c = record_core_op(r, "copy", c, 0);
    if (r->status != LH_OK) return;

    char *name = mem_text(r->values[v].name);
    if (name == NULL) {
        recording_failed(r, LH_NO_MEMORY);
        return;
    }
    r->values[c].kind = VALUE_GRADIENT;
    r->values[c].name = name;
    recording_retype(r, c, r->how.accumulate);
    if (p->gradient[v] != 0) set_adds_to(r, c, p->gradient[v]);
    p->gradient[v] = c;
}

/* Whether two arguments have one shape, as a gradient and its value must. Their dtypes may differ:
 * a parameter's gradient has the accumulation dtype, that of logits a wide one. */
static bool same_arg_shape(const lh_arg_t *a, const lh_arg_t *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0;
}

/* Checks and takes what a gradient function returned for one input. may_be_none: 0 is an answer. */
static lh_status_t input_gradient_take(reverse_t *p, const graph_node_t *node, uint32_t slot,
                                       bool may_be_none)
{
    lh_assert(slot < p->into_count && p->into_count <= OP_SLOTS);
    recording_t *r = p->r;
    const lh_value_t v = node->slots[slot], c = p->into[slot];
    if (c == 0 && may_be_none) return LH_OK;
    if (c == 0)
        return fail(LH_UNSUPPORTED, "op %s has no gradient for its input %s here",
                    node->op->row.name, node->op->slot_name[slot]);
    if (c >= r->value_count || !same_arg_shape(&r->values[c].arg, &r->values[v].arg))
        return fail(LH_INVALID,
                    "the gradient of op %s for its input %s is shaped unlike that input",
                    node->op->row.name, node->op->slot_name[slot]);
    if (r->values[v].kind == VALUE_PARAM)
        contribute_param(p, v, c);
    else
        contribute_value(p, v, c);
    return recording_status(r);
}

/* Records the gradient of one node, if a gradient of one of its outputs has arrived, or it has
 * none, and one of its inputs needs one, or it has none. The op may answer "none" for an input
 * only where some output that is not optional has got no gradient, and no optional output has got
 * any; or where its row says that it takes inputs for constants. */
static lh_status_t walk_node(reverse_t *p, uint32_t index)
{
    lh_assert(index > 0 && index < p->node_end);
    recording_t *r = p->r;
    const graph_node_t node = r->nodes[index]; /* a copy: recording moves the array */
    const op_t *op = node.op;
    lh_value_t from[OP_SLOTS] = {0}, into[OP_SLOTS] = {0};
    bool wanted[OP_SLOTS] = {false};

    bool arrives = op_gives_elsewhere(op), any = op_takes_elsewhere(op);
    bool lacks = false, extra = false;
    for (uint32_t i = 0; i < op->out_count; i++) {
        const uint32_t slot = op->in_count + i;
        from[i] = p->gradient[node.slots[slot]];
        arrives = arrives || from[i] != 0;
        lacks = lacks || (from[i] == 0 && !op->optional[slot]);
        extra = extra || (from[i] != 0 && op->optional[slot]);
    }
    for (uint32_t i = 0; i < op->in_count; i++) {
        wanted[i] = p->needed[node.slots[i]];
        any = any || wanted[i];
    }
    if (!arrives || !any) return LH_OK;
    if (op->row.gradient == NULL)
        return fail(LH_UNSUPPORTED,
                    "op %s has no gradient, and a parameter that is trained or the part's input "
                    "lies behind it",
                    op->row.name);

    const bool detached = (op->row.flags & LH_OP_DETACHED) != 0;
    p->call_begin = r->node_count;
    p->into = into;
    p->into_count = op->in_count;
    op->row.gradient(&r->graph, node.attributes, node.slots, from, wanted, into);
    lh_status_t status = recording_status(r);
    for (uint32_t i = 0; i < op->in_count && status == LH_OK; i++)
        if (wanted[i]) status = input_gradient_take(p, &node, i, detached || (lacks && !extra));
    return status;
}

/* Takes what a loss or a sum of the model's own gives to a value, which may be a parameter itself. */
static void contribute_seed(reverse_t *p, lh_value_t v, lh_value_t c)
{
    if (p->r->values[v].kind != VALUE_PARAM)
        contribute_value(p, v, c);
    else if (p->needed[v] && recording_status(p->r) == LH_OK)
        contribute_param(p, v, c);
}

/* Begins the way back: with `seed` for the part's output, with 1 for each loss of the model's own,
 * and with the sum's gradient for each value that is added to one. */
static lh_status_t plant_seeds(reverse_t *p, lh_value_t seed)
{
    recording_t *r = p->r;
    if (seed != 0) {
        if (r->output == 0 || seed >= r->value_count ||
            !same_arg_shape(&r->values[seed].arg, &r->values[r->output].arg))
            return fail(LH_INVALID, "the gradient from above is not shaped like the part's output");
        contribute_value(p, r->output, seed);
    }
    const float one = 1;
    for (uint32_t i = 0; i < r->loss_count; i++)
        contribute_seed(p, r->losses[i].value, r->graph.api->constant(&r->graph, &one, 1));
    for (uint32_t i = 0; i < r->added_count; i++)
        if (r->added[i].gradient != 0) contribute_seed(p, r->added[i].value, r->added[i].gradient);
    return recording_status(r);
}

/* Walks the nodes of the forward pass, the last first. Nodes that are recorded meanwhile are marked
 * as the reverse pass. */
static lh_status_t walk_nodes(reverse_t *p, lh_value_t seed)
{
    p->r->backward = true;
    lh_status_t status = plant_seeds(p, seed);
    for (uint32_t n = p->node_end; n-- > 1 && status == LH_OK;) {
        p->r->gradient_of = n;
        status = walk_node(p, n);
    }
    p->r->backward = false;
    p->r->gradient_of = 0;
    return status;
}

/* The two arrays are freed at the end: what stays is in the recording. */
lh_status_t gradient_append(recording_t *r, lh_value_t seed, lh_value_t input,
                            bool (*wanted)(void *context, const char *name), void *context,
                            lh_value_t *input_gradient)
{
    lh_status_t status = recording_status(r);
    if (status != LH_OK) return status;
    reverse_t p = {.r = r, .node_end = r->node_count, .value_end = r->value_count};
    p.needed = mem_array(r->value_count, sizeof(bool));
    if (p.needed == NULL) return LH_NO_MEMORY;
    p.gradient = mem_array(r->value_count, sizeof(lh_value_t));
    if (p.gradient == NULL) {
        status = LH_NO_MEMORY;
        goto free_needed;
    }
    mark_needed(&p, input, wanted, context);
    status = walk_nodes(&p, seed);
    if (status == LH_OK) *input_gradient = input == 0 ? 0 : p.gradient[input];
    for (uint32_t i = 0; i < r->total_count; i++)
        r->totals[i].gradient = p.gradient[r->totals[i].value];
    recording_failed(r, status);

    mem_free(p.gradient);
free_needed:
    mem_free(p.needed);
    return status;
}
