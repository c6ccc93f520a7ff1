/* transfer_check.c - walks a rank's call lists as a step runs them: every transfer is waited for
 * before anybody uses its values, and before it is started again.
 *
 * What a transfer reads or writes is busy from its start to its wait. Values are told apart by
 * buffer: of arenas by their number in the flow, as no other flow may meet them; of stores, which
 * all programs share, by their place in the allocation. */
#include <engine/transfer_check.h>

#include <base/memory.h>
#include <engine/program.h>

typedef struct pending { /* a transfer that is under way */
    const transfer_t *transfer;
    const program_t *program; /* that started it */
    const flow_call_t *call;
} pending_t;

typedef struct walk {
    const engine_t *engine;
    pending_t *pending;
    uint32_t count;
    size_t capacity;
    uint32_t
        *busy; /* [buffers of the flow] 2 * (pending + 1), 1 more if it is written; 0: nobody */
    uint32_t *shared; /* buffers of the flow that other flows may meet */
    uint32_t shared_count;
    transfer_row_t *rows;
    uint32_t row_count;
    size_t row_capacity;
} walk_t;

static bool is_same(const flow_t *a, uint32_t x, const flow_t *b, uint32_t y)
{
    const flow_buffer_t *p = &a->buffers[x], *q = &b->buffers[y];
    if (p->allocation == NULL || q->allocation == NULL) return a == b && x == y;
    return p->allocation == q->allocation && p->offset == q->offset;
}

static void busy_mark(walk_t *w, const program_t *p, uint32_t index)
{
    const pending_t *x = &w->pending[index];
    const flow_t *from = x->program->flow;
    const uint32_t *lists[] = {from->moved + x->call->moved.reads,
                               from->moved + x->call->moved.writes};
    const uint32_t counts[] = {x->call->moved.read_count, x->call->moved.write_count};
    for (uint32_t l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < counts[l]; i++) {
            const uint32_t buffer = from->values[lists[l][i]].buffer, mark = 2 * (index + 1) + l;
            if (from == p->flow) {
                w->busy[buffer] = mark;
                continue;
            }
            for (uint32_t s = 0; s < w->shared_count; s++)
                if (is_same(p->flow, w->shared[s], from, buffer)) w->busy[w->shared[s]] = mark;
        }
    }
}

/* Marks anew, as transfers may meet in a buffer, one behind the other. */
static void busy_fill(walk_t *w, const program_t *p)
{
    memset(w->busy, 0, p->flow->buffer_count * sizeof(*w->busy));
    for (uint32_t i = 0; i < w->count; i++)
        busy_mark(w, p, i);
}

static uint32_t find(const walk_t *w, const transfer_t *t)
{
    uint32_t i = 0;
    while (i < w->count && w->pending[i].transfer != t)
        i++;
    return i;
}

static lh_status_t row_add(walk_t *w, const flow_call_t *call)
{
    transfer_row_t *rows = mem_grow(w->rows, &w->row_capacity, w->row_count + 1u, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    w->rows = rows;
    transfer_row_t *row = &rows[w->row_count++];
    memset(row, 0, sizeof(*row)); /* rows travel, and are compared, as bytes */
    memcpy(row->transfer.name, call->transfer->name, TRANSFER_NAME);
    row->transfer.op = call->transfer->op;
    row->transfer.group = call->transfer->group;
    row->transfer.ways = call->transfer->ways;
    row->transfer.dtype = call->transfer->dtype;
    row->transfer.elements = call->transfer->elements;
    row->transfer.add = call->transfer->add;
    row->waits = call->kind == FLOW_WAIT;
    return LH_OK;
}

static lh_status_t start_step(walk_t *w, const program_t *p, const flow_call_t *call)
{
    if (find(w, call->transfer) < w->count)
        return fail(LH_INVALID, "'%s' is started again before it was waited for",
                    call->transfer->name);
    pending_t *pending = mem_grow(w->pending, &w->capacity, w->count + 1u, sizeof(*pending));
    if (pending == NULL) return LH_NO_MEMORY;
    w->pending = pending;
    pending[w->count++] = (pending_t){call->transfer, p, call};
    busy_mark(w, p, w->count - 1);
    return LH_OK;
}

/* A wait may stand where nothing was started: in the first step, or when other programs waited. */
static void wait_step(walk_t *w, const program_t *p, const flow_call_t *call)
{
    const uint32_t at = find(w, call->transfer);
    if (at == w->count) return;
    memmove(&w->pending[at], &w->pending[at + 1], (w->count - at - 1) * sizeof(*w->pending));
    w->count--;
    busy_fill(w, p);
}

static lh_status_t kernel_step(const walk_t *w, const program_t *p, const flow_call_t *call)
{
    const uint32_t slots = call->kind == FLOW_FILL ? 1 : call->op->in_count + call->op->out_count;
    for (uint32_t s = 0; s < slots; s++) {
        if (call->slots[s] == 0) continue;
        const uint32_t busy = w->busy[p->flow->values[call->slots[s]].buffer];
        if (busy == 0) continue;
        const bool reads = call->kind == FLOW_KERNEL && s < call->op->in_count;
        if (reads && busy % 2 == 0) continue; /* both only read */
        const transfer_t *t = w->pending[busy / 2 - 1].transfer;
        return fail(LH_INVALID, "%s uses values of '%s', which nobody has waited for",
                    call->kind == FLOW_FILL ? "a fill" : call->op->row.name, t->name);
    }
    return LH_OK;
}

static lh_status_t list_walk(walk_t *w, const program_t *p, bool later, bool last)
{
    lh_status_t status = LH_OK;
    w->shared_count = 0;
    for (uint32_t b = 1; b < p->flow->buffer_count; b++)
        if (p->flow->buffers[b].allocation != NULL) w->shared[w->shared_count++] = b;
    busy_fill(w, p);
    for (uint32_t i = 1; status == LH_OK && i < p->flow->call_count; i++) {
        const flow_call_t *call = &p->flow->calls[i];
        if ((later ? call->first_only : call->later_only) || (call->last_only && !last)) continue;
        if (call->transfer != NULL) status = row_add(w, call);
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
        for (uint32_t k = 0; k < x->call->moved.read_count; k++) {
            const flow_t *f = x->program->flow;
            const uint32_t buffer = f->values[f->moved[x->call->moved.reads + k]].buffer;
            if (f->buffers[buffer].allocation == NULL)
                return fail(LH_INVALID,
                            "'%s' is not waited for in the list whose memory it works in",
                            x->transfer->name);
        }
    }
    return status;
}

/* All runs of a step that differ: the first, one in between, the last. */
static lh_status_t program_walk(walk_t *w, const program_t *p)
{
    const uint32_t runs = p->how.use == USE_TRAIN ? p->rounds : 1;
    lh_status_t status = list_walk(w, p, false, runs <= 1);
    if (status == LH_OK && runs > 2) status = list_walk(w, p, true, false);
    if (status == LH_OK && runs > 1) status = list_walk(w, p, true, true);
    return status;
}

static lh_status_t uses_walk(walk_t *w, bool (*wanted)(uint32_t use))
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
    /* A step, the same again while its new values travel, and with a look at them in between. */
    for (uint32_t step = 0; step < 3 && status == LH_OK; step++) {
        if (step == 2) status = uses_walk(&w, is_other);
        if (status == LH_OK) status = uses_walk(&w, is_train);
        if (status == LH_OK) status = uses_walk(&w, is_update);
    }
    mem_free(w.pending);
    mem_free(w.busy);
    mem_free(w.shared);
    if (status != LH_OK) {
        mem_free(w.rows);
        return status;
    }
    *rows = w.rows;
    *count = w.row_count;
    return LH_OK;
}
