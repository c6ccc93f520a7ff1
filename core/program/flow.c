/* flow.c - calls in order, the values they touch, and the buffers in which values lie.
 *
 * Two halves: what appends (values, kernels, nodes of a recording, collectives), and what
 * flow_finish does with the whole. It walks the calls back to find those that are needed, then
 * forward to decide which calls write and which add, then notes each buffer's first and last call,
 * lets outputs take the place of inputs that are read no more, and hands the buffers to
 * allocation_plan. */
#include <program/flow.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <longhaul/dtype.h>
#include <ops/ops_collective.h>
#include <program/flow_view.h>

lh_status_t flow_new(flow_t **out)
{
    flow_t *f = mem_new(sizeof(*f));
    if (f == NULL) return LH_NO_MEMORY;
    f->buffer_count = f->value_count = f->call_count = 1;
    *out = f;
    return LH_OK;
}

void flow_free(flow_t *f)
{
    if (f == NULL) return;
    mem_free(f->buffers);
    mem_free(f->values);
    mem_free(f->calls);
    mem_free(f->moved);
    for (uint32_t i = 0; i < f->recorded_count; i++)
        mem_free(f->recorded[i]);
    mem_free(f->recorded);
    mem_free(f);
}

/* Row-major: the last dimension is fastest, its stride 1. Strides count elements. */
lh_arg_t flow_arg(lh_dtype_t dtype, uint32_t rank, const uint64_t *shape)
{
    lh_arg_t arg = {.dtype = dtype, .rank = rank};
    uint64_t stride = 1;
    for (uint32_t i = rank; i-- > 0;) {
        arg.shape[i] = shape[i];
        arg.stride[i] = stride;
        stride *= shape[i];
    }
    return arg;
}

/* By strides: columns of a wider value reach from their first element to the end of their last. */
uint64_t flow_arg_bytes(const lh_arg_t *arg)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < arg->rank; i++) {
        if (arg->shape[i] == 0) return 0;
        last += (arg->shape[i] - 1) * arg->stride[i];
    }
    return (last + 1) * lh_dtype_bytes(arg->dtype);
}

/* Makes room for one more item. False after a failure, this one or an earlier one. */
static bool flow_grow(flow_t *f, void **items, size_t *capacity, uint32_t count, size_t size)
{
    if (f->status != LH_OK) return false;
    void *bigger = mem_grow(*items, capacity, (size_t)count + 1, size);
    if (bigger == NULL) {
        f->status = LH_NO_MEMORY;
        return false;
    }
    *items = bigger;
    return true;
}

uint32_t flow_buffer(flow_t *f, const allocation_t *allocation, uint64_t offset, uint64_t bytes)
{
    void *items = f->buffers;
    if (!flow_grow(f, &items, &f->buffer_capacity, f->buffer_count, sizeof(*f->buffers))) return 0;
    f->buffers = items;
    f->buffers[f->buffer_count] = (flow_buffer_t){
        .allocation = allocation, .offset = offset, .bytes = bytes};
    return f->buffer_count++;
}

uint32_t flow_value(flow_t *f, const lh_arg_t *arg, uint32_t buffer, uint64_t offset)
{
    const flow_value_t made = {
        .arg = *arg, .buffer = buffer, .offset = offset}; /* arg may lie in the table */
    lh_assert(buffer < f->buffer_count);
    void *items = f->values;
    if (!flow_grow(f, &items, &f->value_capacity, f->value_count, sizeof(*f->values))) return 0;
    f->values = items;
    f->values[f->value_count] = made;
    return f->value_count++;
}

uint32_t flow_activation(flow_t *f, const lh_arg_t *arg)
{
    return flow_in_arena(f, arg, ARENA_ACTIVATIONS);
}

/* The value is dense, whatever the strides of the argument that it is made for. */
uint32_t flow_in_arena(flow_t *f, const lh_arg_t *arg, uint32_t arena)
{
    lh_arg_t dense = flow_arg(arg->dtype, arg->rank, arg->shape);
    dense.count_slot = 0;
    const uint32_t buffer = flow_buffer(f, NULL, 0, flow_arg_bytes(&dense));
    if (buffer == 0) return 0;
    f->buffers[buffer].arena = arena;
    return flow_value(f, &dense, buffer, 0);
}

/* The rows are a value in the same buffer, at a larger offset. */
uint32_t flow_rows(flow_t *f, uint32_t value, uint64_t begin, uint64_t rows)
{
    if (f->status != LH_OK || value == 0) return 0;
    lh_assert(value < f->value_count);
    const flow_value_t v = f->values[value];
    lh_arg_t arg = v.arg;
    arg.shape[0] = rows;
    return flow_value(f, &arg, v.buffer,
                      v.offset + begin * arg.stride[0] * lh_dtype_bytes(arg.dtype));
}

uint32_t flow_reshape(flow_t *f, uint32_t value, uint32_t rank, const uint64_t *shape)
{
    if (f->status != LH_OK || value == 0) return 0;
    lh_assert(value < f->value_count);
    const flow_value_t v = f->values[value];
    const lh_arg_t arg = flow_arg(v.arg.dtype, rank, shape);
    return flow_value(f, &arg, v.buffer, v.offset);
}

/* A new call, marked with the part, block and row that the flow is at. NULL after a failure. */
static flow_call_t *call_add(flow_t *f)
{
    void *items = f->calls;
    if (!flow_grow(f, &items, &f->call_capacity, f->call_count, sizeof(*f->calls))) return NULL;
    f->calls = items;
    flow_call_t *call = &f->calls[f->call_count++];
    *call = (flow_call_t){
        .part = f->part, .block = f->block, .row = f->row, .backward = f->backward};
    return call;
}

void flow_kernel(flow_t *f, const op_t *op, const void *attributes, const uint32_t *slots)
{
    flow_call_t *call = call_add(f);
    if (call == NULL) return;
    call->kind = FLOW_KERNEL;
    call->op = op;
    call->attributes = attributes;
    memcpy(call->slots, slots, (op->in_count + op->out_count) * sizeof(*slots));
}

void flow_fill(flow_t *f, uint32_t value, bool first_only)
{
    flow_call_t *call = call_add(f);
    if (call == NULL) return;
    call->kind = FLOW_FILL;
    call->slots[0] = value;
    call->first_only = first_only;
}

/* Copies values to the end of the list that all transfers share; returns where they begin. */
static uint32_t moved_add(flow_t *f, const uint32_t *values, uint32_t count)
{
    const uint32_t at = f->moved_count;
    void *items = f->moved;
    if (count == 0 || !flow_grow(f, &items, &f->moved_capacity, at + count - 1, sizeof(*f->moved)))
        return 0;
    f->moved = items;
    memcpy(f->moved + at, values, count * sizeof(*values));
    f->moved_count += count;
    return at;
}

flow_moved_t flow_moved(flow_t *f, const uint32_t *reads, uint32_t read_count,
                        const uint32_t *writes, uint32_t write_count)
{
    const flow_moved_t m = {.reads = moved_add(f, reads, read_count),
                            .read_count = read_count,
                            .writes = moved_add(f, writes, write_count),
                            .write_count = write_count};
    return f->status == LH_OK ? m : (flow_moved_t){0};
}

/* By place, then in the order in which inserts were given, as qsort need not be stable. */
static int insert_earlier(const void *a, const void *b)
{
    const flow_insert_t *x = *(const flow_insert_t *const *)a,
                        *y = *(const flow_insert_t *const *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Copies calls and inserts into `calls`, which has room for all and becomes the flow's. An insert
 * is marked with the part, block and row of the call that it stands before, so that profiles and
 * frames count it there. */
static void calls_weave(flow_t *f, const flow_insert_t *const *sorted, uint32_t count,
                        flow_call_t *calls)
{
    uint32_t to = 1, turn = 0, next = 0;
    for (uint32_t i = 1; i <= f->call_count; i++) {
        if (i == f->turn) turn = to;
        const bool end = i == f->call_count;
        const flow_call_t *here = end ? NULL : &f->calls[i];
        for (; next < count && sorted[next]->at == i; next++) {
            flow_call_t *call = &calls[to++];
            *call = sorted[next]->call;
            call->part = end ? f->part : here->part;
            call->block = end ? f->block : here->block;
            call->row = end ? f->row : here->row;
            call->backward = end ? f->backward : here->backward;
        }
        if (!end) calls[to++] = *here;
    }
    lh_assert(next == count);
    mem_free(f->calls);
    f->calls = calls;
    f->call_count = to;
    f->turn = turn;
}

/* Sorts pointers to the inserts, so that calls are copied once whatever their number. */
void flow_weave(flow_t *f, const flow_insert_t *inserts, uint32_t count)
{
    if (f->status != LH_OK || count == 0) return;
    const size_t room = (size_t)f->call_count + count;
    flow_call_t *calls = mem_array(room, sizeof(*calls));
    const flow_insert_t **sorted = mem_array(count, sizeof(const flow_insert_t *));
    if (calls == NULL || sorted == NULL) {
        f->status = LH_NO_MEMORY;
        mem_free(calls);
    } else {
        for (uint32_t i = 0; i < count; i++)
            sorted[i] = &inserts[i];
        qsort(sorted, count, sizeof(const flow_insert_t *), insert_earlier);
        calls_weave(f, sorted, count, calls);
        f->call_capacity = room;
    }
    mem_free(sorted);
}

/* Whether values of a kind come from outside the recording, through flow_source_t.leaf. */
static bool is_leaf(uint32_t kind)
{
    return kind == VALUE_PARAM || kind == VALUE_INPUT || kind == VALUE_CONSTANT ||
           kind == VALUE_GRADIENT;
}

uint32_t flow_mapped(flow_source_t *s, lh_value_t value)
{
    if (value == 0 || s->flow->status != LH_OK) return 0;
    lh_assert(value < s->recording->value_count);
    if (s->map[value] != 0) return s->map[value];

    const graph_value_t *v = &s->recording->values[value];
    if (is_leaf(v->kind)) {
        s->map[value] = s->leaf(s->context, v);
        if (s->map[value] == 0 && s->flow->status == LH_OK) s->flow->status = LH_INVALID;
        return s->map[value];
    }
    s->flow->status = fail(LH_INVALID, "value %u of a recording is used before it is made", value);
    return 0;
}

/* Appends a copy of a value into a new buffer. */
static uint32_t value_copied(flow_source_t *s, uint32_t from)
{
    const lh_arg_t arg = s->flow->values[from].arg;
    const uint32_t to = flow_activation(s->flow, &arg);
    const uint32_t slots[] = {from, to};
    flow_kernel(s->flow, s->copy, NULL, slots);
    return to;
}

/* The value of an output that may replace an input (op_t.alias): it lies where that input lies. An
 * activation may have other readers, and a run-time input or a constant is read again by other
 * instances and runs: they keep the old bytes and the op works on a copy. */
static uint32_t value_aliased(flow_source_t *s, const graph_node_t *node, uint32_t *slots,
                              uint32_t out, const graph_value_t *v)
{
    const op_t *op = node->op;
    const uint32_t in = op->alias[out] - 1;
    if (op->alias[out] == 0 || slots[in] == 0) return flow_activation(s->flow, &v->arg);

    flow_t *f = s->flow;
    const flow_buffer_t *buffer = &f->buffers[f->values[slots[in]].buffer];
    const uint32_t kind = s->recording->values[node->slots[in]].kind;
    if (buffer->allocation == NULL || buffer->kept || kind == VALUE_INPUT || kind == VALUE_CONSTANT)
        slots[in] = value_copied(s, slots[in]);
    return f->status == LH_OK ? flow_value(f, &f->values[slots[in]].arg,
                                           f->values[slots[in]].buffer, f->values[slots[in]].offset)
                              : 0;
}

/* The value of a node's output. It lies, by the first that applies: where an earlier gradient lies
 * onto which the output adds; where the caller wants it; in a leaf's memory (a parameter's
 * gradient); in an input's memory; in a buffer of its own. */
static uint32_t output_of(flow_source_t *s, const graph_node_t *node, uint32_t *slots, uint32_t out)
{
    const lh_value_t value = node->slots[out];
    const graph_value_t *v = &s->recording->values[value];
    flow_t *f = s->flow;
    if (f->status != LH_OK) return 0;
    if (node->adds_to[out] != 0 && v->kind != VALUE_GRADIENT) {
        const uint32_t base = flow_mapped(s, node->adds_to[out]);
        if (base == 0) return 0;
        const flow_value_t onto = f->values[base];
        return flow_value(f, &onto.arg, onto.buffer, onto.offset);
    }
    if (s->map[value] != 0 || is_leaf(v->kind)) return flow_mapped(s, value);
    return value_aliased(s, node, slots, out, v);
}

/* A new transfer that a recording states. Each is allocated alone, as calls point to it. */
static transfer_t *recorded_add(flow_t *f)
{
    void *items = f->recorded;
    if (!flow_grow(f, &items, &f->recorded_capacity, f->recorded_count, sizeof(*f->recorded)))
        return NULL;
    f->recorded = items;
    transfer_t *t = mem_new(sizeof(*t));
    if (t == NULL) f->status = LH_NO_MEMORY;
    if (t != NULL) f->recorded[f->recorded_count++] = t;
    return t;
}

/* Elements of a value. */
static uint64_t value_elements(const flow_t *f, uint32_t value)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < f->values[value].arg.rank; i++)
        elements *= f->values[value].arg.shape[i];
    return elements;
}

/* Names a transfer by its op, its number in the flow and the part: the same on all ranks. */
static void recorded_name(const flow_t *f, const op_t *op, char name[TRANSFER_NAME])
{
    (void)snprintf(name, TRANSFER_NAME, "%.14s %u of part %u, %u%s", op->row.name,
                   f->recorded_count, f->part, f->block, f->backward ? " back" : "");
}

/* A new transfer of a node; `whole` is the value that has its dtype and its elements, which are
 * those of the whole form: the input, or of an all-gather the output. */
static transfer_t *recorded_transfer(flow_t *f, const graph_node_t *node, uint32_t whole)
{
    const op_collective_t *how = node->attributes;
    transfer_t *t = f->status == LH_OK ? recorded_add(f) : NULL;
    if (t == NULL) return NULL;
    recorded_name(f, node->op, t->name);
    t->op = node->op->collective;
    t->group = how->group;
    t->ways = how->ways;
    t->dtype = f->values[whole].arg.dtype;
    t->elements = value_elements(f, whole);
    return t;
}

/* Appends the start of a recorded transfer, and right behind it the wait: how far that may stand behind is
 * seen once all calls are there (parallel/recorded_calls.c). */
static void recorded_calls(flow_t *f, const transfer_t *t, const flow_moved_t *moved)
{
    for (uint32_t kind = FLOW_COLLECTIVE; kind <= FLOW_WAIT; kind++) {
        flow_call_t *call = call_add(f);
        if (call == NULL) return;
        call->kind = kind;
        call->transfer = t;
        call->moved = *moved;
    }
}

/* Whether the result of a transfer may lie in memory of its own; fails where it may not. */
static bool recorded_result_check(flow_t *f, const op_t *op, const graph_value_t *result)
{
    if (!is_leaf(result->kind)) return true;
    f->status = fail(LH_UNSUPPORTED, "op %s can't write a parameter's gradient", op->row.name);
    return false;
}

/* What a transfer has made becomes the value of the recording: by a copy where it is wanted at a
 * place of the caller's choice. */
static void recorded_result(flow_source_t *s, lh_value_t result, uint32_t made)
{
    const uint32_t wanted = s->map[result]; /* 0: anywhere */
    const uint32_t copy[] = {made, wanted};
    if (wanted != 0)
        flow_kernel(s->flow, s->copy, NULL, copy);
    else
        s->map[result] = made;
}

/* Appends a recorded collective: a copy of its input, as other calls may read that and sums are
 * made in place; the start; the wait. */
static void collective_node(flow_source_t *s, const graph_node_t *node)
{
    flow_t *f = s->flow;
    const op_t *op = node->op;
    const uint32_t given = flow_mapped(s, node->slots[0]);
    if (f->status != LH_OK) return;
    if (op->collective == COLLECTIVE_REPLICATE) {
        s->map[node->slots[1]] = given;
        return;
    }
    const graph_value_t *result = &s->recording->values[node->slots[1]];
    if (!recorded_result_check(f, op, result)) return;
    const uint32_t from = value_copied(s, given);
    const bool in_place = op->collective == COLLECTIVE_ALL_REDUCE;
    const uint32_t to = in_place ? from : flow_activation(f, &result->arg);
    const transfer_t *t = recorded_transfer(f, node,
                                            op->collective == COLLECTIVE_ALL_GATHER ? to : from);
    if (t == NULL) return;
    const flow_moved_t moved = flow_moved(f, &from, 1, &to, 1);
    recorded_calls(f, t, &moved);
    recorded_result(s, node->slots[1], to);
}

/* Appends a recorded send: a copy of its input, which may lie in a store or far apart, the start,
 * and the wait, behind which the copy's memory is another's. */
static void send_node(flow_source_t *s, const graph_node_t *node)
{
    flow_t *f = s->flow;
    const op_collective_t *how = node->attributes;
    const uint32_t given = flow_mapped(s, node->slots[0]);
    if (f->status != LH_OK) return;
    const uint32_t from = value_copied(s, given);
    transfer_t *t = recorded_transfer(f, node, from);
    if (t == NULL) return;
    t->to = how->peer;
    t->tag = how->tag;
    const flow_moved_t moved = flow_moved(f, &from, 1, NULL, 0);
    recorded_calls(f, t, &moved);
}

/* Appends a recorded receive: the start, from which on the result's memory is its own, and the
 * wait. */
static void receive_node(flow_source_t *s, const graph_node_t *node)
{
    flow_t *f = s->flow;
    const op_collective_t *how = node->attributes;
    const graph_value_t *result = &s->recording->values[node->slots[0]];
    if (!recorded_result_check(f, node->op, result)) return;
    const uint32_t to = flow_activation(f, &result->arg);
    transfer_t *t = recorded_transfer(f, node, to);
    if (t == NULL) return;
    t->from = how->peer;
    t->tag = how->tag;
    const flow_moved_t moved = flow_moved(f, NULL, 0, &to, 1);
    recorded_calls(f, t, &moved);
    recorded_result(s, node->slots[0], to);
}

/* A node that communicates. */
static void transfer_node(flow_source_t *s, const graph_node_t *node)
{
    if (s->flow->status != LH_OK) return;
    switch (node->op->collective) {
    case COLLECTIVE_SEND: send_node(s, node); return;
    case COLLECTIVE_RECEIVE: receive_node(s, node); return;
    default: collective_node(s, node);
    }
}

/* A node becomes a kernel with its inputs and outputs mapped; a node that communicates becomes a
 * transfer, one that says where something lies a view or copies. An output that adds onto an earlier
 * gradient sets a bit of the call, unless it is a parameter's gradient, for which flow_finish
 * decides. */
void flow_node(flow_source_t *s, uint32_t index)
{
    lh_assert(index > 0 && index < s->recording->node_count);
    const graph_node_t *node = &s->recording->nodes[index];
    const op_t *op = node->op;
    uint32_t slots[OP_SLOTS] = {0}, add = 0;

    if (op->view != 0) {
        flow_view_node(s, index);
        return;
    }
    if (op->collective != 0) {
        transfer_node(s, node);
        return;
    }
    for (uint32_t i = 0; i < op->in_count; i++)
        slots[i] = flow_mapped(s, node->slots[i]);
    flow_view_settle(s, op, node->attributes, slots, &node->slots[op->in_count]);
    for (uint32_t i = op->in_count; i < op->in_count + op->out_count; i++) {
        if (node->slots[i] == 0) continue;
        slots[i] = output_of(s, node, slots, i);
        s->map[node->slots[i]] = slots[i];
        if (node->adds_to[i] != 0 && s->recording->values[node->slots[i]].kind != VALUE_GRADIENT)
            add |= 1u << i;
    }
    flow_kernel(s->flow, op, node->attributes, slots);
    if (s->flow->status == LH_OK) s->flow->calls[s->flow->call_count - 1].add = add;
}

uint32_t flow_call_slots(const flow_call_t *call)
{
    switch (call->kind) {
    case FLOW_KERNEL: return call->op->in_count + call->op->out_count;
    case FLOW_FILL: return 1;
    default: return 0;
    }
}

static uint32_t out_begin(const flow_call_t *call)
{
    return call->kind == FLOW_KERNEL ? call->op->in_count : 0;
}

/* Marks a call as live if it writes an allocation or a buffer that a later call needs, and what a
 * live call reads as needed. An optional output that no call needs is left out. */
static void call_need(flow_t *f, flow_call_t *call, bool *needed)
{
    if (call->transfer != NULL) {
        call->live = true; /* other ranks count on it */
        for (uint32_t i = 0; i < call->moved.read_count; i++)
            needed[f->values[f->moved[call->moved.reads + i]].buffer] = true;
        return;
    }
    for (uint32_t i = out_begin(call); i < flow_call_slots(call); i++) {
        if (call->slots[i] == 0) continue;
        const uint32_t buffer = f->values[call->slots[i]].buffer;
        if (f->buffers[buffer].allocation != NULL || needed[buffer])
            call->live = true;
        else if (call->kind == FLOW_KERNEL && call->op->optional[i])
            call->slots[i] = 0;
    }
    for (uint32_t i = 0; call->live && i < out_begin(call); i++)
        if (call->slots[i] != 0) needed[f->values[call->slots[i]].buffer] = true;
}

/* Drops the calls that are not needed. One walk back finds them, as a call reads only what calls
 * before it have made. */
static lh_status_t dead_drop(flow_t *f)
{
    bool *needed = mem_array(f->buffer_count, sizeof(*needed));
    if (needed == NULL) return LH_NO_MEMORY;
    for (uint32_t i = f->call_count; i-- > 1;)
        call_need(f, &f->calls[i], needed);
    mem_free(needed);

    uint32_t kept = 1, turn = 0;
    for (uint32_t i = 1; i < f->call_count; i++) {
        if (turn == 0 && i >= f->turn) turn = kept;
        if (f->calls[i].live) f->calls[kept++] = f->calls[i];
    }
    f->turn = turn;
    f->call_count = kept;
    return LH_OK;
}

/* Of the calls that write an accumulating buffer the first writes, and all others add. In later
 * rounds the first adds too (add_later, a flag of the later list), unless the buffer starts over in
 * each run (each_micro). */
static lh_status_t order_decide(flow_t *f)
{
    for (uint32_t i = 1; i < f->call_count; i++) {
        flow_call_t *call = &f->calls[i];
        for (uint32_t slot = out_begin(call); slot < flow_call_slots(call); slot++) {
            if (call->slots[slot] == 0) continue;
            flow_buffer_t *buffer = &f->buffers[f->values[call->slots[slot]].buffer];
            if (!buffer->accumulates) continue;
            if (call->kind == FLOW_KERNEL && !call->op->adds[slot])
                return fail(LH_UNSUPPORTED,
                            "op %s can't add onto its output '%s', which gradients need",
                            call->op->row.name, call->op->slot_name[slot]);
            if (buffer->written)
                call->add |= 1u << slot;
            else if (!buffer->each_micro)
                call->add_later |= 1u << slot;
            buffer->written = true;
        }
    }
    return LH_OK;
}

/* Notes that a call touches a value: its buffer lives from the first such call to the last. */
static void value_touch(flow_t *f, uint32_t value, uint32_t call)
{
    if (value == 0) return;
    flow_buffer_t *buffer = &f->buffers[f->values[value].buffer];
    if (buffer->first == 0) buffer->first = call;
    buffer->last = call;
}

/* A transfer touches what it moves at its start and at its wait, so that nothing else gets that
 * memory between the two. */
static void lifetimes_find(flow_t *f)
{
    for (uint32_t i = 1; i < f->call_count; i++) {
        const flow_call_t *call = &f->calls[i];
        for (uint32_t slot = 0; slot < flow_call_slots(call); slot++)
            value_touch(f, call->slots[slot], i);
        for (uint32_t v = 0; v < call->moved.read_count; v++)
            value_touch(f, f->moved[call->moved.reads + v], i);
        for (uint32_t v = 0; v < call->moved.write_count; v++)
            value_touch(f, f->moved[call->moved.writes + v], i);
    }
}

/* The buffer of a value where those of some outputs stand for others: instead [buffer_count], 0: none
 * does. */
static uint32_t buffer_instead(const flow_t *f, const uint32_t *instead, uint32_t value)
{
    const uint32_t buffer = f->values[value].buffer;
    return instead[buffer] != 0 ? instead[buffer] : buffer;
}

/* Whether a call's output may lie where one of its inputs lies (op_t.over): both fill buffers of one
 * arena alone, are of one dtype and shape, and nothing reads the input's from this call on. */
static bool may_replace(const flow_t *f, const uint32_t *instead, uint32_t index, uint32_t in,
                        uint32_t out)
{
    const flow_call_t *call = &f->calls[index];
    const flow_value_t *from = &f->values[call->slots[in]], *to = &f->values[call->slots[out]];
    const uint32_t read = buffer_instead(f, instead, call->slots[in]);
    const flow_buffer_t *old = &f->buffers[read], *new = &f->buffers[to->buffer];
    if (old->allocation != NULL || new->allocation != NULL || old->arena != new->arena)
        return false;
    if (old->last != index || new->first != index) return false;
    for (uint32_t s = 0; s < flow_call_slots(call); s++)
        if (s != in && call->slots[s] != 0 && buffer_instead(f, instead, call->slots[s]) == read)
            return false;
    return (call->add >> out & 1u) == 0 && recording_args_alike(&from->arg, &to->arg) &&
           flow_arg_bytes(&from->arg) == old->bytes && flow_arg_bytes(&to->arg) == new->bytes;
}

/* Lets outputs lie over inputs where their op allows it and nobody else would notice. The input's
 * buffer lives on as the output's, whose own no call touches any more. After lifetimes_find. */
static lh_status_t outputs_lay_over(flow_t *f)
{
    uint32_t *instead = mem_array(f->buffer_count, sizeof(*instead));
    if (instead == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 1; i < f->call_count; i++) {
        const flow_call_t *call = &f->calls[i];
        for (uint32_t s = out_begin(call); s < flow_call_slots(call); s++) {
            const uint32_t over = call->kind == FLOW_KERNEL ? call->op->over[s] : 0;
            if (over == 0 || call->slots[s] == 0 || call->slots[over - 1] == 0) continue;
            if (!may_replace(f, instead, i, over - 1, s)) continue;
            const uint32_t old = buffer_instead(f, instead, call->slots[over - 1]);
            flow_buffer_t *new = &f->buffers[f->values[call->slots[s]].buffer];
            instead[f->values[call->slots[s]].buffer] = old;
            f->buffers[old].last = new->last;
            new->first = new->last = 0;
        }
    }
    for (uint32_t v = 1; v < f->value_count; v++)
        f->values[v].buffer = buffer_instead(f, instead, v);
    mem_free(instead);
    return LH_OK;
}

/* Finds places for all buffers of one arena. Activations that live across the turn, from the
 * forward pass to the way back, are added up as saved bytes. */
static lh_status_t arena_lay(flow_t *f, uint32_t arena, uint64_t alignment)
{
    arena_item_t *items = mem_array(f->buffer_count, sizeof(*items));
    if (items == NULL) return LH_NO_MEMORY;

    uint32_t count = 0;
    for (uint32_t b = 1; b < f->buffer_count; b++) {
        const flow_buffer_t *buffer = &f->buffers[b];
        if (buffer->allocation != NULL || buffer->first == 0 || buffer->arena != arena) continue;
        items[count++] = (arena_item_t){buffer->bytes, buffer->first, buffer->last, 0};
        if (arena == ARENA_ACTIVATIONS && buffer->first < f->turn && buffer->last >= f->turn)
            f->saved_bytes += buffer->bytes;
    }
    const lh_status_t status = allocation_plan(items, count, alignment, &f->arena_bytes[arena],
                                               NULL);
    for (uint32_t b = 1, i = 0; status == LH_OK && b < f->buffer_count; b++) {
        flow_buffer_t *buffer = &f->buffers[b];
        if (buffer->allocation == NULL && buffer->first != 0 && buffer->arena == arena)
            buffer->offset = items[i++].offset;
    }
    mem_free(items);
    return status;
}

lh_status_t flow_finish(flow_t *f, uint64_t alignment)
{
    if (f->status != LH_OK) return f->status;
    lh_status_t status = dead_drop(f);
    if (status == LH_OK) status = order_decide(f);
    if (status != LH_OK) return status;
    lifetimes_find(f);
    status = outputs_lay_over(f);
    for (uint32_t arena = 0; arena < ARENAS && status == LH_OK; arena++)
        status = arena_lay(f, arena, alignment);
    return status;
}
