/* recorded_calls.c - transfers that a model has recorded, taken into the table of the exchange, and
 * where the waits for what two ranks send each other stand.
 *
 * A recording states a start and, right behind it, the wait for it (program/flow.h). Starts stay where
 * they are, as both ends have them in one order. The waits of pairs are put off: of a receive to the
 * first call that touches what came, of a send to the first that writes what is sent, or to the list's
 * end. What is computed in between hides the transfer, and two ranks may both send before either takes.
 *
 * A send reads a copy of its own (flow.c), which nobody writes again, so its wait is the list's last.
 * The price is memory: all copies that a list sends are there until then. A wait further in front would
 * free it, and stop schedules in a circle in which one rank sends all micro-batches of a chunk before it
 * takes the first that comes back.
 *
 * A recorded collective's wait stays: what follows it reads what came. */
#include <parallel/recorded_calls.h>

#include <stdio.h>

#include <base/memory.h>

/* Fills in this rank's end, and a name that is the same at both: the n-th from one to the other,
 * whatever else either of them starts. */
static lh_status_t pair_complete(const transfers_t *t, const group_t *g, transfer_t *x)
{
    const bool sends = x->op == COLLECTIVE_SEND;
    const uint32_t peer = sends ? x->to : x->from;
    uint32_t before = 0;
    if (peer >= g->size || peer == g->self)
        return fail(LH_INVALID, "'%s': peer %u of %u in group '%s' is %s", x->name, peer, g->size,
                    collective_groups[x->group],
                    peer == g->self ? "this rank itself" : "not there");
    *(sends ? &x->from : &x->to) = g->self;
    for (uint32_t i = 0; i < t->count; i++) {
        const transfer_t *other = &t->list[i]->transfer;
        before += other->op == x->op && other->group == x->group && other->from == x->from &&
                  other->to == x->to;
    }
    (void)snprintf(x->name, TRANSFER_NAME, "activations %u, %u to %u, tag %u", before, x->from,
                   x->to, x->tag);
    return LH_OK;
}

/* This world must have the group that a recording names, with as many ranks as the recording was
 * made for. Completes a send or receive. */
static lh_status_t recorded_check(const transfers_t *t, transfer_t *x)
{
    group_t *g;
    if (x->group == LH_GROUP_SELF || x->group >= LH_GROUPS)
        return fail(LH_INVALID, "'%s': group %u is none of ranks", x->name, x->group);
    lh_status_t status = world_group_new(t->world, x->group, &g);
    if (status != LH_OK) return status;
    const uint32_t size = g->size;
    if (size == x->ways && collective_is_pair(x->op)) status = pair_complete(t, g, x);
    world_group_free(g);
    if (size == x->ways) return status;
    return fail(LH_INVALID, "'%s' is recorded over %u ranks; group '%s' has %u", x->name, x->ways,
                collective_groups[x->group], size);
}

/* The value that a recorded transfer reads, or writes; 0: it is a receive, or a send. */
static uint32_t recorded_value(const flow_t *f, uint32_t at, uint32_t count)
{
    lh_assert(count <= 1);
    return count == 0 ? 0 : f->moved[at];
}

/* A recording states a start and, right behind it, the wait for it. Both become calls of the
 * exchange, with a row of the table that knows which values they read and write. `start` points
 * into the flow's calls; the wait is start[1]. */
static lh_status_t recorded_take(transfers_t *t, program_t *p, flow_call_t *start)
{
    const flow_moved_t *moved = &start->moved;
    const uint32_t values[] = {recorded_value(p->flow, moved->reads, moved->read_count),
                               recorded_value(p->flow, moved->writes, moved->write_count)};
    move_t row = {.transfer = *start->transfer,
                  .kind = MOVE_RECORDED,
                  .count = 2,
                  .program = p,
                  .values = (uint32_t *)(uintptr_t)values,
                  .arena = ARENA_ACTIVATIONS};
    move_t *m;
    lh_assert(start[1].kind == FLOW_WAIT);
    lh_status_t status = recorded_check(t, &row.transfer);
    if (status == LH_OK) status = transfers_add(t, &row, &m);
    if (status != LH_OK) return status;
    t->recorded = true;
    start[0].transfer = start[1].transfer = &m->transfer;
    return LH_OK;
}

/* ---- waits of pairs ---- */

/* A wait that was taken out of its place, to be put back further behind. */
typedef struct held_wait {
    flow_call_t call;
    uint32_t before; /* 1 + the index of another that is held for the same buffer; 0: none */
    bool writes;     /* its transfer writes the buffer; else it reads it */
    bool put;
} held_wait_t;

/* One pass over a flow's calls, of which some are written anew. */
typedef struct put_off {
    const flow_t *flow;
    held_wait_t *held; /* [count] in the order of their starts */
    uint32_t count;
    uint32_t *of;       /* [buffers] 1 + the index of the last wait that is held for it; 0: none */
    flow_call_t *calls; /* becomes the flow's */
    uint32_t to;
} put_off_t;

static bool is_pair_wait(const flow_call_t *call)
{
    return call->kind == FLOW_WAIT && collective_is_pair(call->transfer->op);
}

/* A pair moves one value. */
static void wait_hold(put_off_t *o, const flow_call_t *call)
{
    const flow_t *f = o->flow;
    const flow_moved_t *moved = &call->moved;
    const bool writes = moved->write_count > 0;
    lh_assert(moved->read_count + moved->write_count == 1);
    uint32_t *of = &o->of[f->values[f->moved[writes ? moved->writes : moved->reads]].buffer];
    o->held[o->count++] = (held_wait_t){.call = *call, .before = *of, .writes = writes};
    *of = o->count;
}

/* Puts a wait in front of a call, whose part, block and row it counts for; NULL: at the end. */
static void wait_put(put_off_t *o, held_wait_t *held, const flow_call_t *here)
{
    const flow_t *f = o->flow;
    flow_call_t *call = &o->calls[o->to++];
    *call = held->call;
    call->part = here != NULL ? here->part : f->part;
    call->block = here != NULL ? here->block : f->block;
    call->row = here != NULL ? here->row : f->row;
    call->backward = here != NULL ? here->backward : f->backward;
    held->put = true;
}

/* The call touches a value: what comes into its buffer must be there, and before it writes what is sent
 * of it must be gone. */
static void value_meet(put_off_t *o, uint32_t value, bool writes, const flow_call_t *here)
{
    if (value == 0) return;
    uint32_t next;
    for (uint32_t at = o->of[o->flow->values[value].buffer]; at != 0; at = next) {
        held_wait_t *held = &o->held[at - 1];
        next = held->before;
        if (!held->put && (writes || held->writes)) wait_put(o, held, here);
    }
}

static void call_meet(put_off_t *o, const flow_call_t *call)
{
    const flow_t *f = o->flow;
    const uint32_t reads = call->kind == FLOW_KERNEL ? call->op->in_count : 0;
    for (uint32_t s = 0; s < flow_call_slots(call); s++)
        value_meet(o, call->slots[s], s >= reads, call);
    for (uint32_t i = 0; i < call->moved.read_count; i++)
        value_meet(o, f->moved[call->moved.reads + i], false, call);
    for (uint32_t i = 0; i < call->moved.write_count; i++)
        value_meet(o, f->moved[call->moved.writes + i], true, call);
}

/* As many calls come out as went in. The mark of the turn stays in front of the call that it was in
 * front of. */
static void calls_put_off(put_off_t *o, flow_t *f)
{
    uint32_t turn = 0;
    o->to = 1;
    for (uint32_t c = 1; c < f->call_count; c++) {
        const flow_call_t *call = &f->calls[c];
        if (c == f->turn) turn = o->to;
        if (is_pair_wait(call)) {
            wait_hold(o, call);
            continue;
        }
        call_meet(o, call);
        o->calls[o->to++] = *call;
    }
    if (f->turn == f->call_count) turn = o->to;
    for (uint32_t i = 0; i < o->count; i++)
        if (!o->held[i].put) wait_put(o, &o->held[i], NULL);
    lh_assert(o->to == f->call_count);
    mem_free(f->calls);
    f->calls = o->calls;
    f->call_capacity = f->call_count;
    f->turn = turn;
}

/* Before anything else is put in: places of other transfers are those of the calls as they stand then. */
static lh_status_t waits_put_off(flow_t *f)
{
    uint32_t waits = 0;
    for (uint32_t c = 1; c < f->call_count; c++)
        waits += is_pair_wait(&f->calls[c]);
    if (waits == 0) return LH_OK;
    put_off_t o = {.flow = f,
                   .held = mem_array(waits, sizeof(*o.held)),
                   .of = mem_array(f->buffer_count, sizeof(*o.of)),
                   .calls = mem_array(f->call_count, sizeof(*o.calls))};
    const bool made = o.held != NULL && o.of != NULL && o.calls != NULL;
    if (made)
        calls_put_off(&o, f);
    else
        mem_free(o.calls);
    mem_free(o.held);
    mem_free(o.of);
    return made ? LH_OK : LH_NO_MEMORY;
}

lh_status_t recorded_calls_take(transfers_t *t, program_t *p)
{
    lh_status_t status = LH_OK;
    if (p->how.use == USE_UPDATE) return LH_OK;
    for (uint32_t c = 1; c < p->flow->call_count && status == LH_OK; c++)
        if (p->flow->calls[c].kind == FLOW_COLLECTIVE)
            status = recorded_take(t, p, &p->flow->calls[c]);
    return status == LH_OK ? waits_put_off(p->flow) : status;
}
