/* transfer_rows.c - walks the lists of calls of one rank.
 *
 * The call lists are walked as a step runs them: every transfer must be waited for before anything
 * uses its values, and before it is started again.
 *
 * What a transfer reads or writes is busy from its start to its wait. Values are told apart by
 * buffer. A buffer of an arena is known by its number in the flow, as no other flow may find its
 * values there; a buffer of a store, which all programs share, by its place in the allocation. */
#include <parallel/transfer_rows.h>

#include <stdlib.h>

#include <base/memory.h>

typedef struct pending { /* a transfer that is under way */
    const transfer_t *transfer;
    const program_t *program;  /* that started it */
    const flow_call_t *call;   /* the start; borrowed from the program's flow */
    uint32_t touch, touch_end; /* in walk_t.touches: what it touches in the list that is walked */
} pending_t;

typedef struct touch { /* of a buffer of that list's flow */
    uint32_t buffer;
    bool writes;
} touch_t;

/* A buffer of a flow that lies in a store, from `begin` to `end` of its allocation. */
typedef struct shared {
    uintptr_t allocation;
    uint64_t begin, end;
    uint64_t reach; /* the largest `end` of it and those before it in the allocation */
    uint32_t buffer;
} shared_t;

/* One rank's walk through some steps. `pending` lasts from list to list, `busy` is made anew for
 * each. */
typedef struct walk {
    const engine_t *engine;
    pending_t *pending; /* [count] in the order of their starts */
    uint32_t count;
    size_t capacity;
    /* [buffers of the flow] which pending transfer touches a buffer: 2 * (its index + 1), and 1
     * more if the transfer writes there; 0: none. */
    uint32_t *busy;
    touch_t *touches;
    uint32_t touch_count;
    size_t touch_capacity;
    shared_t *shared; /* [shared_count] buffers of the flow that lie in stores, sorted */
    uint32_t shared_count;
    transfer_row_t *rows;
    uint32_t row_count;
    size_t row_capacity;
} walk_t;

static int by_place(const void *a, const void *b)
{
    const shared_t *x = a, *y = b;
    if (x->allocation != y->allocation) return x->allocation < y->allocation ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Of the flow that is walked: a program may have joined in a store what another one has not, so buffers
 * of one flow may overlap, too. */
static void shared_list(walk_t *w, const flow_t *f)
{
    w->shared_count = 0;
    for (uint32_t i = 1; i < f->buffer_count; i++) {
        const flow_buffer_t *b = &f->buffers[i];
        if (b->allocation == NULL) continue;
        w->shared[w->shared_count++] = (shared_t){(uintptr_t)b->allocation, b->offset,
                                                  b->offset + b->bytes, 0, i};
    }
    if (w->shared_count == 0) return;
    qsort(w->shared, w->shared_count, sizeof(*w->shared), by_place);
    for (uint32_t i = 0; i < w->shared_count; i++) {
        shared_t *at = &w->shared[i];
        const bool follows = i > 0 && at[-1].allocation == at->allocation;
        at->reach = follows && at[-1].reach > at->end ? at[-1].reach : at->end;
    }
}

static lh_status_t touch_add(walk_t *w, uint32_t buffer, bool writes)
{
    touch_t *touches = mem_grow(w->touches, &w->touch_capacity, w->touch_count + 1u,
                                sizeof(*touches));
    if (touches == NULL) return LH_NO_MEMORY;
    w->touches = touches;
    touches[w->touch_count++] = (touch_t){buffer, writes};
    return LH_OK;
}

/* The buffers in stores that may have memory in common with one of another flow: from the first that
 * begins behind its end back to where none reaches to its begin. */
static lh_status_t touch_shared(walk_t *w, const flow_buffer_t *b, bool writes)
{
    const shared_t end = {.allocation = (uintptr_t)b->allocation, .begin = b->offset + b->bytes};
    uint32_t low = 0, high = w->shared_count;
    if (b->allocation == NULL) return LH_OK;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (by_place(&w->shared[middle], &end) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    lh_status_t status = LH_OK;
    for (uint32_t i = low; i-- > 0 && status == LH_OK;) {
        const shared_t *s = &w->shared[i];
        if (s->allocation != end.allocation || s->reach <= b->offset) break;
        if (s->end > b->offset) status = touch_add(w, s->buffer, writes);
    }
    return status;
}

/* What a pending transfer touches in the flow of p: its own buffers if p started it, else those in
 * stores that both programs see. What is written comes last, as it counts where both are. */
static lh_status_t touches_list(walk_t *w, const program_t *p, pending_t *x)
{
    const flow_t *from = x->program->flow;
    const uint32_t *lists[] = {from->moved + x->call->moved.reads,
                               from->moved + x->call->moved.writes};
    const uint32_t counts[] = {x->call->moved.read_count, x->call->moved.write_count};
    lh_status_t status = LH_OK;
    x->touch = w->touch_count;
    for (uint32_t l = 0; l < 2; l++) {
        for (uint32_t i = 0; status == LH_OK && i < counts[l]; i++) {
            const uint32_t buffer = from->values[lists[l][i]].buffer;
            status = from == p->flow ? touch_add(w, buffer, l == 1)
                                     : touch_shared(w, &from->buffers[buffer], l == 1);
        }
    }
    x->touch_end = w->touch_count;
    return status;
}

static void busy_mark(walk_t *w, uint32_t index)
{
    lh_assert(index < w->count);
    const pending_t *x = &w->pending[index];
    for (uint32_t i = x->touch; i < x->touch_end; i++)
        w->busy[w->touches[i].buffer] = 2 * (index + 1) + w->touches[i].writes;
}

/* Marks all pending transfers anew. A mark can't just be taken away with its transfer, as several
 * transfers may touch one buffer. */
static void busy_fill(walk_t *w, const program_t *p)
{
    memset(w->busy, 0, p->flow->buffer_count * sizeof(*w->busy));
    for (uint32_t i = 0; i < w->count; i++)
        busy_mark(w, i);
}

/* The index of a pending transfer; w->count: it is not under way. */
static uint32_t pending_find(const walk_t *w, const transfer_t *t)
{
    uint32_t i = 0;
    while (i < w->count && w->pending[i].transfer != t)
        i++;
    return i;
}

/* Appends a row with all of the transfer but its number, which may differ from rank to rank. */
static lh_status_t transfer_row_add(walk_t *w, const flow_call_t *call)
{
    transfer_row_t *rows = mem_grow(w->rows, &w->row_capacity, w->row_count + 1u, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    w->rows = rows;
    transfer_row_t *row = &rows[w->row_count++];
    memset(row, 0, sizeof(*row)); /* padding too: rows travel, and are compared, as bytes */
    memcpy(row->transfer.name, call->transfer->name, TRANSFER_NAME);
    row->receives = call->transfer->op == COLLECTIVE_RECEIVE;
    row->transfer.op = row->receives ? COLLECTIVE_SEND : call->transfer->op;
    row->transfer.group = call->transfer->group;
    row->transfer.ways = call->transfer->ways;
    row->transfer.from = call->transfer->from;
    row->transfer.to = call->transfer->to;
    row->transfer.tag = call->transfer->tag;
    row->transfer.dtype = call->transfer->dtype;
    row->transfer.elements = call->transfer->elements;
    row->transfer.add = call->transfer->add;
    row->waits = call->kind == FLOW_WAIT;
    return LH_OK;
}

/* A start: the transfer must not be under way, as its memory belongs to one run at a time. */
static lh_status_t start_step(walk_t *w, const program_t *p, const flow_call_t *call)
{
    if (pending_find(w, call->transfer) < w->count)
        return fail(LH_INVALID, "'%s' is started again before it was waited for",
                    call->transfer->name);
    pending_t *pending = mem_grow(w->pending, &w->capacity, w->count + 1u, sizeof(*pending));
    if (pending == NULL) return LH_NO_MEMORY;
    w->pending = pending;
    pending[w->count] = (pending_t){.transfer = call->transfer, .program = p, .call = call};
    const lh_status_t status = touches_list(w, p, &pending[w->count]);
    if (status == LH_OK) busy_mark(w, w->count++);
    return status;
}

/* A wait, which may stand where nothing was started: in the first step, or where another program
 * has waited already. */
static void wait_step(walk_t *w, const program_t *p, const flow_call_t *call)
{
    const uint32_t at = pending_find(w, call->transfer);
    if (at == w->count) return;
    memmove(&w->pending[at], &w->pending[at + 1], (w->count - at - 1) * sizeof(*w->pending));
    w->count--;
    busy_fill(w, p);
}

/* A kernel or a fill. It may read what a transfer only reads; any other use of a busy buffer is
 * refused. */
static lh_status_t kernel_step(const walk_t *w, const program_t *p, const flow_call_t *call)
{
    const uint32_t slots = call->kind == FLOW_FILL ? 1 : call->op->in_count + call->op->out_count;
    for (uint32_t s = 0; s < slots; s++) {
        if (call->slots[s] == 0) continue;
        const uint32_t busy = w->busy[p->flow->values[call->slots[s]].buffer];
        if (busy == 0) continue;
        const bool reads = call->kind == FLOW_KERNEL && s < call->op->in_count;
        if (reads && busy % 2 == 0) continue; /* both only read */
        lh_assert(busy / 2 - 1 < w->count);
        const transfer_t *t = w->pending[busy / 2 - 1].transfer;
        return fail(LH_INVALID, "%s uses values of '%s', which nobody has waited for",
                    call->kind == FLOW_FILL ? "a fill" : call->op->row.name, t->name);
    }
    return LH_OK;
}

/* Whether some of the values that a transfer moves, one behind the other in flow_t.moved, lie in
 * an arena. */
static bool moved_in_arena(const flow_t *f, uint32_t begin, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++)
        if (f->buffers[f->values[f->moved[begin + k]].buffer].allocation == NULL) return true;
    return false;
}

/* One run of a program's list. later: not the first round; last: the last round of the step. At the
 * end of the list no transfer may be under way that works in the arenas, as the next list uses
 * their memory for itself; transfers in stores may go on. */
static lh_status_t list_walk(walk_t *w, const program_t *p, bool later, bool last)
{
    lh_status_t status = LH_OK;
    shared_list(w, p->flow);
    w->touch_count = 0;
    for (uint32_t i = 0; status == LH_OK && i < w->count; i++)
        status = touches_list(w, p, &w->pending[i]);
    if (status != LH_OK) return status;
    busy_fill(w, p);
    for (uint32_t i = 1; status == LH_OK && i < p->flow->call_count; i++) {
        const flow_call_t *call = &p->flow->calls[i];
        if ((later ? call->first_only : call->later_only) || (call->last_only && !last)) continue;
        if (call->transfer != NULL) status = transfer_row_add(w, call);
        if (call->kind == FLOW_COLLECTIVE && status == LH_OK) {
            status = start_step(w, p, call);
        } else if (call->kind == FLOW_WAIT) {
            wait_step(w, p, call);
        } else if (call->transfer == NULL) {
            status = kernel_step(w, p, call);
        }
    }
    for (uint32_t i = 0; status == LH_OK && i < w->count; i++) {
        const pending_t *x = &w->pending[i];
        const flow_t *f = x->program->flow;
        const flow_moved_t *moved = &x->call->moved;
        if (moved_in_arena(f, moved->reads, moved->read_count) ||
            moved_in_arena(f, moved->writes, moved->write_count))
            return fail(LH_INVALID, "'%s' is not waited for in the list whose memory it works in",
                        x->transfer->name);
    }
    return status;
}

/* The runs of a step that differ from each other: the first, one in between, the last. */
static lh_status_t program_walk(walk_t *w, const program_t *p)
{
    const uint32_t runs = p->how.use == USE_TRAIN ? p->rounds : 1;
    lh_status_t status = list_walk(w, p, false, runs <= 1);
    if (status == LH_OK && runs > 2) status = list_walk(w, p, true, false);
    if (status == LH_OK && runs > 1) status = list_walk(w, p, true, true);
    return status;
}

/* All programs whose use (USE_*) is wanted, in the order in which they were made. */
static lh_status_t programs_walk(walk_t *w, bool (*wanted)(uint32_t use))
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < w->engine->program_count; i++)
        if (wanted(w->engine->programs[i]->how.use))
            status = program_walk(w, w->engine->programs[i]);
    return status;
}

static bool is_train(uint32_t use)
{
    return use == USE_TRAIN;
}

static bool is_update(uint32_t use)
{
    return use == USE_UPDATE;
}

static bool is_other(uint32_t use)
{
    return use != USE_TRAIN && use != USE_UPDATE;
}

bool transfer_rows_pair(const transfer_row_t *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (collective_is_pair(rows[i].transfer.op)) return true;
    return false;
}

lh_status_t transfer_rows(const engine_t *e, transfer_row_t **rows, uint32_t *count)
{
    walk_t w = {.engine = e};
    uint32_t buffers = 1;
    for (uint32_t i = 0; i < e->program_count; i++)
        if (e->programs[i]->flow->buffer_count > buffers)
            buffers = e->programs[i]->flow->buffer_count;
    w.busy = mem_array(buffers, sizeof(*w.busy));
    w.shared = mem_array(buffers, sizeof(*w.shared));
    lh_status_t status = w.busy == NULL || w.shared == NULL ? LH_NO_MEMORY : LH_OK;
    /* Three steps: the first; one that starts while new values of the step before travel; and one
     * with an evaluation before it, which reads those values. */
    for (uint32_t step = 0; step < 3 && status == LH_OK; step++) {
        if (step == 2) status = programs_walk(&w, is_other);
        if (status == LH_OK) status = programs_walk(&w, is_train);
        if (status == LH_OK) status = programs_walk(&w, is_update);
    }
    mem_free(w.pending);
    mem_free(w.busy);
    mem_free(w.touches);
    mem_free(w.shared);
    if (status != LH_OK) {
        mem_free(w.rows);
        return status;
    }
    *rows = w.rows;
    *count = w.row_count;
    return LH_OK;
}
