/* flow_view.c - what becomes of the ops that say where something lies (ops/ops_view.h).
 *
 * Reading a part of a value needs no call: some columns of each row, or the same bytes as rows of
 * another width, are a value in the same buffer. The buffer then lives as long as any of its views.
 * Whatever puts several values into one, or takes columns of each head, which no [t, w] with one
 * distance of rows can be, is made by copies; but where a value is made to be copied into columns of
 * another, its maker writes there at once.
 *
 * The gradient of columns is a value of which only some columns are written. Where a recording takes
 * a value apart and uses all of it, the gradients of the parts are a chain of nodes that each add to
 * the one before (graph/gradient.c). Such a chain is found here: its members write their columns,
 * and there are neither zeros nor sums, so that the bits are those of a value that was never
 * apart. */
#include <program/flow_view.h>

#include <longhaul/dtype.h>
#include <ops/ops_view.h>

LH_SLOTS(LH_COLUMNS_GRAD_TEXT);

/* Whether rows lie back to back. */
static bool is_dense(const lh_arg_t *arg)
{
    uint64_t stride = 1;
    for (uint32_t i = arg->rank; i-- > 0; stride *= arg->shape[i])
        if (arg->shape[i] > 1 && arg->stride[i] != stride) return false;
    return true;
}

static void copy_append(flow_source_t *s, uint32_t from, uint32_t to, bool add)
{
    const uint32_t slots[] = {from, to};
    flow_t *f = s->flow;
    flow_kernel(f, s->copy, NULL, slots);
    if (f->status == LH_OK && add) f->calls[f->call_count - 1].add = 1u << 1;
}

uint32_t flow_view_dense(flow_source_t *s, uint32_t value)
{
    flow_t *f = s->flow;
    if (f->status != LH_OK || value == 0 || is_dense(&f->values[value].arg)) return value;
    const lh_arg_t arg = f->values[value].arg;
    const uint32_t to = flow_activation(f, &arg);
    copy_append(s, value, to, false);
    return f->status == LH_OK ? to : 0;
}

/* Whether a node behind another reads a recorded value or adds onto it. */
static bool is_used_behind(const flow_source_t *s, lh_value_t value, uint32_t node)
{
    const recording_t *r = s->recording;
    for (uint32_t n = node + 1; n < r->node_count; n++)
        for (uint32_t i = 0; i < node_slots(&r->nodes[n]); i++) {
            const bool input = i < r->nodes[n].op->in_count;
            if ((input ? r->nodes[n].slots[i] : r->nodes[n].adds_to[i]) == value) return true;
        }
    return false;
}

/* Whether anybody uses a recorded value: a node, the caller, a loss or a sum over blocks. */
static bool is_used(const flow_source_t *s, lh_value_t value)
{
    const recording_t *r = s->recording;
    if (value == s->outside || value == r->output) return true;
    for (uint32_t i = 0; i < r->loss_count; i++)
        if (r->losses[i].value == value) return true;
    for (uint32_t i = 0; i < r->added_count; i++)
        if (r->added[i].value == value) return true;
    return is_used_behind(s, value, 0);
}

void flow_view_settle(flow_source_t *s, const op_t *op, const void *attributes, uint32_t *slots,
                      const lh_value_t *made)
{
    flow_t *f = s->flow;
    const recording_how_t *how = &s->recording->how;
    lh_arg_t args[OP_SLOTS] = {0};
    bool apart = false;
    for (uint32_t i = 0; f->status == LH_OK && i < op->in_count; i++) {
        if (slots[i] != 0) args[i] = f->values[slots[i]].arg;
        apart = apart || !is_dense(&args[i]);
    }
    if (!apart || how->offers == NULL) return;
    for (uint32_t i = op->in_count; i < op->in_count + op->out_count; i++) {
        const lh_value_t v = made[i - op->in_count];
        if (v != 0 && (!op->optional[i] || is_used(s, v))) args[i] = s->recording->values[v].arg;
    }
    if (how->offers(how->device, op, attributes, args)) return;
    for (uint32_t i = 0; i < op->in_count; i++)
        if (slots[i] != 0) args[i] = flow_arg(args[i].dtype, args[i].rank, args[i].shape);
    if (!how->offers(how->device, op, attributes, args)) return; /* kernels are not known here */
    for (uint32_t i = 0; i < op->in_count; i++)
        slots[i] = flow_view_dense(s, slots[i]);
}

/* ---- the chain of gradients of one value's columns ---- */

static const lh_columns_t *node_columns(const recording_t *r, uint32_t node)
{
    return r->nodes[node].attributes;
}

/* The columns_grad that adds onto what a node made; 0: none does. */
static uint32_t chain_next(const recording_t *r, uint32_t node)
{
    const lh_value_t gx = r->nodes[node].slots[out_gx];
    for (uint32_t n = node + 1; n < r->node_count; n++)
        if (r->nodes[n].op->view == VIEW_COLUMNS_GRAD && r->nodes[n].adds_to[out_gx] == gx)
            return n;
    return 0;
}

/* Where the chain of a node begins; 0: with a node of another kind, whose value is whole. */
static uint32_t chain_first(const recording_t *r, uint32_t node)
{
    while (r->nodes[node].adds_to[out_gx] != 0) {
        const graph_value_t *onto = &r->values[r->nodes[node].adds_to[out_gx]];
        if (onto->kind != VALUE_RESULT || r->nodes[onto->node].op->view != VIEW_COLUMNS_GRAD)
            return 0;
        node = onto->node;
    }
    return node;
}

/* Whether a node has no column in common with those before it in its chain. */
static bool chain_apart(const recording_t *r, uint32_t first, uint32_t node)
{
    const lh_columns_t *own = node_columns(r, node);
    for (uint32_t n = first; n != node; n = chain_next(r, n)) {
        const lh_columns_t *other = node_columns(r, n);
        if (other->groups != own->groups) return false;
        if (own->from < other->from + other->count && other->from < own->from + own->count)
            return false;
    }
    return true;
}

/* Whether the members of a chain, up to the first that meets another, write all of its value. */
static bool chain_covers(const recording_t *r, uint32_t first)
{
    uint64_t sum = 0;
    for (uint32_t n = first; n != 0 && chain_apart(r, first, n); n = chain_next(r, n))
        sum += node_columns(r, n)->count;
    return sum == node_columns(r, first)->width / node_columns(r, first)->groups;
}

/* ---- makers that write into columns ---- */

/* Whether all values of a buffer fill it, and are [rows, columns] like one. */
static bool values_fill_buffer(const flow_source_t *s, uint32_t buffer, const lh_arg_t *like)
{
    const flow_t *f = s->flow;
    const flow_buffer_t *b = &f->buffers[buffer];
    if (buffer < s->first_buffer || b->allocation != NULL || b->arena != ARENA_ACTIVATIONS ||
        b->accumulates || b->kept)
        return false;
    for (uint32_t v = s->first_value > 0 ? s->first_value : 1; v < f->value_count; v++) {
        const flow_value_t *value = &f->values[v];
        if (value->buffer == buffer &&
            (value->offset != 0 || value->arg.rank != 2 || !is_dense(&value->arg) ||
             !recording_args_alike(&value->arg, like)))
            return false;
    }
    return true;
}

/* Whether a call gives an output that it may leave out and that nobody uses. */
static bool is_to_go(const flow_source_t *s, const flow_call_t *call, uint32_t slot)
{
    if (slot < call->op->in_count || !call->op->optional[slot]) return false;
    for (lh_value_t v = 1; v < s->recording->value_count; v++)
        if (s->map[v] == call->slots[slot] && is_used(s, v)) return false;
    return true;
}

/* Whether a call touches a buffer; *fine: as a kernel that the device has for rows `pitch` elements
 * apart, too. */
static bool call_touches(const flow_source_t *s, const flow_call_t *call, uint32_t buffer,
                         uint64_t pitch, bool *fine)
{
    const flow_t *f = s->flow;
    const recording_how_t *how = &s->recording->how;
    lh_arg_t args[OP_SLOTS] = {0};
    bool touches = false;
    *fine = call->kind == FLOW_KERNEL;
    for (uint32_t i = 0; i < flow_call_slots(call); i++) {
        if (call->slots[i] == 0) continue;
        args[i] = f->values[call->slots[i]].arg;
        if (f->values[call->slots[i]].buffer == buffer) {
            args[i].stride[0] = pitch;
            touches = true;
        } else if (*fine && is_to_go(s, call, i))
            args[i] = (lh_arg_t){0};
    }
    for (uint32_t i = 0; i < call->moved.read_count; i++)
        touches = touches || f->values[f->moved[call->moved.reads + i]].buffer == buffer;
    for (uint32_t i = 0; i < call->moved.write_count; i++)
        touches = touches || f->values[f->moved[call->moved.writes + i]].buffer == buffer;
    if (touches && *fine) *fine = how->offers(how->device, call->op, call->attributes, args);
    return touches;
}

/* Lets what has made a value write it into columns of another, from column `at` on, and who reads it
 * read it there. False: nothing is changed, and it is to be copied. Rows should begin at places
 * that vectors like. */
static bool value_move(flow_source_t *s, uint32_t value, uint32_t into, uint64_t at)
{
    enum { VECTOR_BYTES = 16 };
    flow_t *f = s->flow;
    const flow_value_t from = f->values[value], to = f->values[into];
    const uint64_t size = lh_dtype_bytes(from.arg.dtype), pitch = to.arg.stride[0];
    if (s->recording->how.offers == NULL || at * size % VECTOR_BYTES != 0 ||
        pitch * size % VECTOR_BYTES != 0 || from.buffer == to.buffer ||
        f->buffers[to.buffer].allocation != NULL || !values_fill_buffer(s, from.buffer, &from.arg))
        return false;
    for (uint32_t c = s->first_call > 0 ? s->first_call : 1; c < f->call_count; c++) {
        bool fine;
        if (call_touches(s, &f->calls[c], from.buffer, pitch, &fine) && !fine) return false;
    }
    for (uint32_t v = s->first_value > 0 ? s->first_value : 1; v < f->value_count; v++) {
        flow_value_t *moved = &f->values[v];
        if (moved->buffer != from.buffer) continue;
        moved->buffer = to.buffer;
        moved->offset = to.offset + at * size;
        moved->arg.stride[0] = pitch;
    }
    return true;
}

/* Whether a copy of a node may be spared so: of whole rows' parts, from a value that a node has made
 * here. What the forward pass makes is not changed by anybody; on the way back sums may be added
 * onto the node's output, which the value's other readers must not see. */
static bool may_spare(const flow_source_t *s, uint32_t index, const op_move_t *move)
{
    const graph_node_t *node = &s->recording->nodes[index];
    const lh_value_t value = node->slots[move->in];
    if (node->op->view != VIEW_CONCAT && node->op->view != VIEW_COLUMNS_GRAD) return false;
    if (move->from.rank != 2 || s->recording->values[value].kind != VALUE_RESULT) return false;
    return !node->backward || (value != s->outside && !is_used_behind(s, value, index));
}

/* ---- nodes ---- */

/* Copy number `index` of a node between its values, as these lie now. */
static bool node_move(const flow_source_t *s, const graph_node_t *node, const uint32_t *slots,
                      uint32_t index, op_move_t *out)
{
    const flow_t *f = s->flow;
    lh_arg_t args[OP_SLOTS] = {0};
    for (uint32_t i = 0; i < node_slots(node); i++)
        if (slots[i] != 0) args[i] = f->values[slots[i]].arg;
    return f->status == LH_OK && op_view_move(node->op->view, node->attributes, args, index, out);
}

/* The copies of a node between its values; spare: those that can be spared are. A value that is moved
 * may stand in another slot, too. */
static void moves_append(flow_source_t *s, uint32_t index, const uint32_t *slots, bool add,
                         bool spare)
{
    flow_t *f = s->flow;
    const graph_node_t *node = &s->recording->nodes[index];
    op_move_t move;
    for (uint32_t i = 0; node_move(s, node, slots, i, &move); i++) {
        if (spare && may_spare(s, index, &move) &&
            value_move(s, slots[move.in], slots[move.out], move.to_at))
            continue;
        const flow_value_t in = f->values[slots[move.in]], out = f->values[slots[move.out]];
        const uint64_t size = lh_dtype_bytes(in.arg.dtype);
        const uint32_t from = flow_value(f, &move.from, in.buffer, in.offset + move.from_at * size);
        const uint32_t to = flow_value(f, &move.to, out.buffer, out.offset + move.to_at * size);
        copy_append(s, from, to, add || move.add);
    }
}

/* The gradient of columns: zeros before the first of a chain that leaves columns out, and sums
 * where two members meet. */
static void columns_grad_node(flow_source_t *s, uint32_t index, uint32_t *slots)
{
    flow_t *f = s->flow;
    const recording_t *r = s->recording;
    const graph_node_t *node = &r->nodes[index];
    const uint32_t first = chain_first(r, index);
    const lh_value_t onto = node->adds_to[out_gx];
    uint32_t *made = &s->map[node->slots[out_gx]];
    if (onto != 0)
        *made = flow_mapped(s, onto);
    else if (*made == 0)
        *made = flow_activation(f, &r->values[node->slots[out_gx]].arg);
    slots[out_gx] = *made;
    if (f->status != LH_OK) return;
    lh_assert(is_dense(&f->values[*made].arg));
    const bool covers = first != 0 && chain_covers(r, first);
    const bool apart = first != 0 && chain_apart(r, first, index);
    if (index == first && !covers) flow_fill(f, *made, false);
    /* Before zeros there is nothing to be written. */
    moves_append(s, index, slots, !apart, covers && apart);
}

/* A view of the node's first input that is its output; 0: no value can be that. */
static uint32_t view_of(flow_source_t *s, const graph_node_t *node, uint32_t input)
{
    flow_t *f = s->flow;
    const flow_value_t x = f->values[input];
    const lh_arg_t *y = &s->recording->values[node->slots[node->op->in_count]].arg;
    if (node->op->view == VIEW_HEADS && is_dense(&x.arg))
        return flow_reshape(f, input, y->rank, y->shape);
    const lh_columns_t *how = node->attributes;
    if (node->op->view != VIEW_COLUMNS || how->groups != 1) return 0;
    /* A view would keep the whole of a gathered parameter from the block's forward to its backward. */
    const flow_buffer_t *of = &f->buffers[x.buffer];
    if (of->allocation == NULL && of->arena == ARENA_GATHERED) return 0;
    lh_arg_t arg = x.arg;
    arg.shape[1] = how->count;
    return flow_value(f, &arg, x.buffer, x.offset + how->from * lh_dtype_bytes(arg.dtype));
}

/* A value that the caller wants in memory of its choice is copied there. */
void flow_view_node(flow_source_t *s, uint32_t index)
{
    flow_t *f = s->flow;
    const graph_node_t *node = &s->recording->nodes[index];
    const op_t *op = node->op;
    const lh_value_t y = node->slots[op->in_count];
    uint32_t slots[OP_SLOTS] = {0};
    lh_assert(op->out_count == 1 && s->recording->values[y].kind == VALUE_RESULT);
    for (uint32_t i = 0; i < op->in_count; i++)
        slots[i] = flow_mapped(s, node->slots[i]);
    if (f->status != LH_OK) return;
    if (op->view == VIEW_COLUMNS_GRAD) {
        columns_grad_node(s, index, slots);
        return;
    }
    if (s->map[y] == 0) {
        s->map[y] = view_of(s, node, slots[0]);
        if (s->map[y] != 0 || f->status != LH_OK) return;
        s->map[y] = flow_activation(f, &s->recording->values[y].arg);
    }
    slots[op->in_count] = s->map[y];
    if (f->status == LH_OK) moves_append(s, index, slots, false, true);
}
