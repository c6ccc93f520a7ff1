/* arrange.c - the pass that puts transfers into programs: calls that start them once what they read
 * is made, and calls that wait for them before what they write is used.
 *
 * A start stands right behind the last call that makes its data, and a wait right before the first
 * that needs it: what stands between them computes while bytes travel. The pass only collects what
 * is to be inserted where; flow_weave then puts all of it in at once, since inserting renumbers
 * calls.
 *
 *    training     sums of gradients, bucket by bucket as they become complete; values that are cut,
 *                 gathered some instances ahead; else waits for new values of the step before
 *    evaluation   values, as in training
 *    update       waits for sums first; partial sums of the norm; new values, bucket by bucket;
 *                 the losses of all ranks, from its first call to its last
 *
 * One round of training over two blocks, with a bucket of gradients for each, where nothing is cut:
 *
 *    forward, head, backward of block 1, start sum 0, backward of block 0, start sum 1 */
#include <parallel/arrange.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <graph/op_table.h>
#include <longhaul/dtype.h>
#include <parallel/recorded_calls.h>

/* The pass over one program. Call 0 stands for no call, as a flow's calls begin at 1. */
typedef struct arranger {
    transfers_t *t;
    program_t *p;
    flow_insert_t *list; /* to be woven */
    uint32_t count;
    size_t capacity;
    uint32_t *first, *last; /* [known] calls that touch a buffer first and last; 0: none */
    uint32_t known;         /* how many buffers the flow had when buffer_uses_find looked at them */
    lh_status_t status;
} arranger_t;

/* Notes a call to be inserted before call `at`. After the first failure nothing is noted any more;
 * `status` says why. */
static void call_put(arranger_t *a, uint32_t at, const flow_call_t *call)
{
    if (a->status != LH_OK) return;
    lh_assert(at > 0 && at <= a->p->flow->call_count);
    flow_insert_t *list = mem_grow(a->list, &a->capacity, a->count + 1u, sizeof(*list));
    if (list == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    a->list = list;
    a->list[a->count++] = (flow_insert_t){at, *call};
}

/* The start (FLOW_COLLECTIVE) or the wait (FLOW_WAIT) of a move, with the values that it
 * touches. */
static flow_call_t call_of(const arranger_t *a, uint32_t kind, const move_t *m)
{
    return (flow_call_t){
        .kind = kind, .transfer = &m->transfer, .moved = transfers_moved(a->t, a->p, m)};
}

/* First and last use of every buffer by a call that computes, before anything is inserted. Buffers
 * that are made later, for transfers, have none. */
static lh_status_t buffer_uses_find(arranger_t *a)
{
    const flow_t *f = a->p->flow;
    a->known = f->buffer_count;
    a->first = mem_array(a->known, sizeof(*a->first));
    a->last = mem_array(a->known, sizeof(*a->last));
    if (a->first == NULL || a->last == NULL) return LH_NO_MEMORY;
    for (uint32_t c = 1; c < f->call_count; c++) {
        for (uint32_t s = 0; s < flow_call_slots(&f->calls[c]); s++) {
            const uint32_t value = f->calls[c].slots[s];
            if (value == 0) continue;
            const uint32_t buffer = f->values[value].buffer;
            if (a->first[buffer] == 0) a->first[buffer] = c;
            a->last[buffer] = c;
        }
    }
    return LH_OK;
}

/* The first or the last use of a value's buffer: `table` is a->first or a->last. 0: nobody uses the
 * value. */
static uint32_t use_of(const arranger_t *a, const uint32_t *table, uint32_t value)
{
    lh_assert(value < a->p->flow->value_count);
    const uint32_t buffer = value == 0 ? 0 : a->p->flow->values[value].buffer;
    return buffer < a->known ? table[buffer] : 0;
}

/* ---- values gathered for instances ---- */

/* Where an instance begins: the first call that uses any of its values. */
typedef struct instance_place {
    uint32_t at, number; /* the call; index into the program's instances, which breaks ties */
    move_t *move;
} instance_place_t;

static int places_earlier_first(const void *a, const void *b)
{
    const instance_place_t *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* For sentences; blocks are named by their number instead. */
static const char *part_name(const gathered_instance_t *v)
{
    return v->part == LH_PART_EMBED ? "embed" : "head";
}

/* The row that gathers one instance's values into their whole forms. */
static lh_status_t instance_move(const arranger_t *a, const gathered_instance_t *v, move_t **out)
{
    move_t row = {.transfer = {.op = COLLECTIVE_ALL_GATHER},
                  .kind = MOVE_INSTANCE,
                  .parameters = v->parameters,
                  .count = v->count,
                  .program = a->p,
                  .values = v->values,
                  .arena = ARENA_GATHERED};
    if (v->part == LH_PART_BLOCK)
        (void)snprintf(row.transfer.name, TRANSFER_NAME, "values of block %u%s", v->block,
                       v->backward ? " again" : "");
    else
        (void)snprintf(row.transfer.name, TRANSFER_NAME, "values of the %s", part_name(v));
    return transfers_add(a->t, &row, out);
}

/* The call in front of which an instance's calls stand, where its first use is `at`: in front of waits
 * for what another rank sends, too, or gathers ahead would begin only once that has come. */
static uint32_t instance_begin(const flow_t *f, uint32_t at)
{
    for (; at > 1; at--) {
        const flow_call_t *before = &f->calls[at - 1];
        if (before->kind != FLOW_WAIT || !collective_is_pair(before->transfer->op)) break;
    }
    return at;
}

/* The wait for instance i stands before its first use, and its start `ahead` instances earlier, as
 * the optimizer's move says. The starts of instances 0 to `ahead` stand at the beginning of the
 * program. A larger `ahead` hides more of the transfers, and each instance ahead takes the memory
 * of its whole values. */
static void instances_put(arranger_t *a)
{
    transfers_t *t = a->t;
    program_t *p = a->p;
    instance_place_t *places = mem_array(p->instance_count + 1u, sizeof(*places));
    uint32_t count = 0;
    if (places == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < p->instance_count && a->status == LH_OK; i++) {
        const gathered_instance_t *v = &p->instances[i];
        uint32_t at = UINT32_MAX;
        for (uint32_t k = 0; k < v->count; k++) {
            const uint32_t use = use_of(a, a->first, v->values[k]);
            if (use != 0 && use < at) at = use;
        }
        if (at == UINT32_MAX) continue;
        lh_assert(count < p->instance_count);
        places[count].at = instance_begin(p->flow, at);
        places[count].number = i;
        a->status = instance_move(a, v, &places[count].move);
        count++;
    }
    /* By first use, as the schedule may run instances in another order than the program lists. */
    qsort(places, count, sizeof(*places), places_earlier_first);
    const uint32_t ahead = optimizer_tables_move(&t->tables, t->tables.instance)->ahead;
    for (uint32_t i = 0; i < count && a->status == LH_OK; i++) {
        for (uint32_t next = i == 0 ? 0 : i + ahead; next <= i + ahead && next < count; next++) {
            const flow_call_t start = call_of(a, FLOW_COLLECTIVE, places[next].move);
            call_put(a, i == 0 ? 1 : places[i].at, &start);
        }
        const flow_call_t wait = call_of(a, FLOW_WAIT, places[i].move);
        call_put(a, places[i].at, &wait);
    }
    mem_free(places);
}

/* ---- new values, gathered after the step before ---- */

/* A bucket of new values is waited for once, before the first call that reads any of them. In
 * training only the first round can come too early, so later rounds leave the wait out. */
static void value_gather_waits_put(arranger_t *a)
{
    transfers_t *t = a->t;
    const uint32_t count = t->weights->parameters->count;
    uint32_t *at = mem_array(t->count + 1u, sizeof(*at));
    if (at == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = 0; i < count && a->status == LH_OK; i++) {
        if (t->value_gather_of[i] == NULL) continue;
        const uint32_t value = program_store_value(a->p, t->weights->value, i);
        a->status = a->p->flow->status;
        const uint32_t use = a->status == LH_OK ? use_of(a, a->first, value) : 0;
        uint32_t row = 0;
        while (t->list[row] != t->value_gather_of[i]) {
            row++;
            lh_assert(row < t->count);
        }
        if (use != 0 && (at[row] == 0 || use < at[row])) at[row] = use;
    }
    for (uint32_t row = 0; row < t->count && a->status == LH_OK; row++) {
        if (at[row] == 0) continue;
        flow_call_t wait = call_of(a, FLOW_WAIT, t->list[row]);
        wait.first_only = a->p->how.use == USE_TRAIN;
        t->list[row]->awaited |= wait.first_only;
        call_put(a, at[row], &wait);
    }
    mem_free(at);
}

/* ---- sums of gradients ---- */

/* A gradient and when it is complete. */
typedef struct ready_gradient {
    uint32_t at;               /* the last call that adds to it */
    uint32_t parameter, value; /* value: its whole form in the flow */
} ready_gradient_t;

/* By the call, then by the parameter, so that the order is the same on every rank. */
static int ready_earlier(const void *a, const void *b)
{
    const ready_gradient_t *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->parameter < y->parameter ? -1 : 1;
}

/* All gradients in the order in which the backward pass completes them, into out [parameters];
 * returns how many. The gradient of a tied parameter is complete with the last part that adds to
 * it. */
static uint32_t gradients_ready(arranger_t *a, ready_gradient_t *out)
{
    transfers_t *t = a->t;
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->weights->parameters->count; i++) {
        if (!transfers_is_updated(t->weights, i)) continue;
        const uint32_t value = t->weights->bucketed
                                   ? a->p->gradients[i]
                                   : program_store_value(a->p, t->weights->grad, i);
        out[count++] = (ready_gradient_t){use_of(a, a->last, value), i, value};
    }
    qsort(out, count, sizeof(*out), ready_earlier);
    return count;
}

/* The transfers that sum one bucket of gradients. `first` sums over the group, and overwrites
 * what was there. `later` does so in later rounds, and adds to the cut gradients instead; NULL
 * where gradients are kept whole or a step has one round. `across` sums over sites, after the
 * last round; NULL where nothing is summed over sites by itself. */
typedef struct bucket {
    move_t *first, *later, *across;
} bucket_t;

/* Adds the rows of one bucket of `count` gradients; `number` is the one that reports show
 * ("gradients 3"). */
static lh_status_t bucket_make(const arranger_t *a, const ready_gradient_t *ready, uint32_t count,
                               uint32_t number, bucket_t *out)
{
    transfers_t *t = a->t;
    const bool bucketed = t->weights->bucketed;
    const bool cut = optimizer_tables_is_cut(&t->tables, t->tables.grad);
    uint32_t *lists = mem_array(2 * (size_t)count, sizeof(*lists));
    if (lists == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        lists[i] = ready[i].parameter;
        lists[count + i] = ready[i].value;
    }
    move_t row = {.transfer = {.op = cut ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_ALL_REDUCE},
                  .kind = MOVE_SUM,
                  .parameters = lists,
                  .count = count};
    if (bucketed) {
        row.program = a->p;
        row.values = lists + count;
        row.arena = ARENA_BUCKETS;
    }
    (void)snprintf(row.transfer.name, TRANSFER_NAME, "gradients %u", number);
    *out = (bucket_t){0};
    lh_status_t status = transfers_add(t, &row, &out->first);
    if (status == LH_OK && bucketed && t->rounds > 1) {
        row.transfer.add = true;
        status = transfers_add(t, &row, &out->later);
    }
    if (status == LH_OK && t->across != NULL) {
        row.transfer.op = COLLECTIVE_ALL_REDUCE;
        row.transfer.add = false;
        row.kind = MOVE_ACROSS;
        row.after = out->later != NULL ? out->later : out->first;
        status = transfers_add(t, &row, &out->across);
    }
    mem_free(lists);
    return status;
}

/* Bytes of the whole gradient, whatever part of it this rank will own. */
static uint64_t gradient_bytes(const transfers_t *t, uint32_t parameter)
{
    return t->weights->parameters->items[parameter].elements *
           lh_dtype_bytes(t->weights->grad->shards[parameter].dtype);
}

/* Puts the starts or the waits (`kind`) of a bucket's sum over the group: one call for the first
 * round and, where there are two forms, one for later rounds. Whole gradients in a store are summed
 * once, in the last round; those that live for a bucket are summed in every round. */
static void bucket_put(arranger_t *a, uint32_t at, uint32_t kind, const bucket_t *b)
{
    flow_call_t first = call_of(a, kind, b->first);
    first.first_only = b->later != NULL;
    first.last_only = kind == FLOW_COLLECTIVE && !a->t->weights->bucketed;
    call_put(a, at, &first);
    if (b->later == NULL) return;
    flow_call_t later = call_of(a, kind, b->later);
    later.later_only = true;
    call_put(a, at, &later);
}

/* Bytes at which a bucket is closed, of which at most `share` should wait for each other. Nothing hides
 * what is complete last and what is needed first, and between sites that takes long: towards the end of
 * a backward pass a bucket of gradients has at most half of what is left, and one of new values at most
 * an eighth of what is before it, down to an eighth of the usual. So of the first blocks, each leg of
 * which is waited for by itself, no bucket holds much of two. */
static uint64_t bucket_most(const transfers_t *t, uint64_t share)
{
    const uint64_t most = transfers_bucket_bytes(t), least = most / 8;
    if (t->bucket_bytes != 0 || t->world->row.sites == 1 || share >= most) return most;
    return share > least ? share : least;
}

/* Buckets in the order in which gradients are complete; a bucket is closed when it has enough
 * bytes. Where whole gradients live for a bucket only, a bucket's wait stands two buckets later:
 * two are then under way while a third is computed, and memory for three is all that is needed.
 * Sums in a store are waited for by the update (sum_waits_put). */
static void sums_put(arranger_t *a)
{
    transfers_t *t = a->t;
    const bool bucketed = t->weights->bucketed;
    ready_gradient_t *ready = mem_array(t->weights->parameters->count, sizeof(*ready));
    if (ready == NULL) {
        a->status = LH_NO_MEMORY;
        return;
    }
    const uint32_t count = gradients_ready(a, ready);
    bucket_t before[2] = {0}; /* the two last buckets, the older one first */
    uint32_t number = 0;
    uint64_t left = 0;
    for (uint32_t i = 0; i < count; i++)
        left += gradient_bytes(t, ready[i].parameter);
    for (uint32_t begin = 0, end; begin < count && a->status == LH_OK; begin = end) {
        const uint64_t most = bucket_most(t, left / 2);
        uint64_t bytes = 0;
        for (end = begin; end < count && (end == begin || bytes < most); end++)
            bytes += gradient_bytes(t, ready[end].parameter);
        left -= bytes;
        bucket_t bucket;
        a->status = bucket_make(a, &ready[begin], end - begin, number++, &bucket);
        if (a->status != LH_OK) break;
        /* Behind the call that completes the bucket's last gradient. */
        const uint32_t at = ready[end - 1].at + 1;
        if (bucketed && before[0].first != NULL) bucket_put(a, at, FLOW_WAIT, &before[0]);
        bucket_put(a, at, FLOW_COLLECTIVE, &bucket);
        if (bucket.across != NULL) {
            flow_call_t across = call_of(a, FLOW_COLLECTIVE, bucket.across);
            across.last_only = true;
            call_put(a, at, &across);
        }
        before[0] = before[1];
        before[1] = bucket;
    }
    for (uint32_t i = 0; bucketed && i < 2; i++)
        if (before[i].first != NULL && a->status == LH_OK)
            bucket_put(a, a->p->flow->call_count, FLOW_WAIT, &before[i]);
    mem_free(ready);
}

/* The update begins when all sums are there. It also waits for those new values of the step before
 * that the training program has not waited for, as it writes their memory again. */
static void sum_waits_put(arranger_t *a)
{
    const transfers_t *t = a->t;
    for (uint32_t i = 0; i < t->count && a->status == LH_OK; i++) {
        const move_t *m = t->list[i];
        /* Sums of gradients that live for a bucket were waited for in training. */
        const bool sum = m->kind == MOVE_ACROSS || (m->kind == MOVE_SUM && !t->weights->bucketed);
        if (!sum && (m->kind != MOVE_VALUE_GATHER || m->awaited)) continue;
        const flow_call_t wait = call_of(a, FLOW_WAIT, m);
        call_put(a, 1, &wait);
    }
}

/* ---- the loss ---- */

/* Whose loss the update's step is. NULL: none, as where only an update is stated. */
static program_t *training_of(const transfers_t *t)
{
    const engine_t *e = t->engine;
    for (uint32_t i = 0; i < e->program_count; i++)
        if (e->programs[i]->weights == t->weights && e->programs[i]->how.use == USE_TRAIN)
            return e->programs[i];
    return NULL;
}

/* A call of op "copy", which is not appended but put somewhere. */
static void copy_put(arranger_t *a, uint32_t at, uint32_t from, uint32_t to)
{
    const flow_call_t call = {.kind = FLOW_KERNEL,
                              .op = op_table_find(a->p->engine->how.ops, "copy"),
                              .slots = {from, to}};
    if (a->p->flow->status == LH_OK) call_put(a, at, &call);
}

/* Every rank's terms of the loss in one row each, gathered while parameters are updated: the host
 * adds them in double, in the order of ranks (train_step.c), which is why they are gathered and not
 * summed. The terms lie in the training program's outputs, where its last round left them; they are
 * copied, as an arena is what travels. */
static void losses_put(arranger_t *a)
{
    static const uint32_t outputs[] = {OUTPUT_LOSS, OUTPUT_EXTRA};
    transfers_t *t = a->t;
    flow_t *f = a->p->flow;
    const program_t *train = training_of(t);
    if (train == NULL || a->status != LH_OK) return;
    const uint64_t terms = train->outputs[OUTPUT_EXTRA].bytes == 0 ? 1 : 2,
                   words = terms * t->world->row.size, one = 1;
    const lh_arg_t all = flow_arg(LH_DTYPE_F32, 1, &words);
    const uint32_t losses = flow_in_arena(f, &all, ARENA_BUCKETS);
    for (uint64_t k = 0; k < terms && f->status == LH_OK; k++) {
        const program_output_t *output = &train->outputs[outputs[k]];
        const lh_arg_t arg = flow_arg(train->flow->values[output->value].arg.dtype, 1, &one);
        const uint32_t buffer = flow_buffer(f, &t->engine->outputs, output->offset, output->bytes);
        const uint32_t from = flow_value(f, &arg, buffer, 0);
        copy_put(a, 1, from, flow_rows(f, losses, t->world->row.rank * terms + k, 1));
    }
    const uint32_t told = program_output_value(a->p, OUTPUT_LOSSES, &all, false);
    move_t *m;
    const move_t row = {.transfer = {.name = "losses", .op = COLLECTIVE_ALL_GATHER},
                        .kind = MOVE_LOSSES,
                        .count = 1,
                        .program = a->p,
                        .values = (uint32_t *)(uintptr_t)&losses,
                        .arena = ARENA_BUCKETS};
    if (f->status == LH_OK) f->status = transfers_add(t, &row, &m);
    if (f->status != LH_OK) {
        a->status = f->status;
        return;
    }
    const flow_call_t start = call_of(a, FLOW_COLLECTIVE, m), wait = call_of(a, FLOW_WAIT, m);
    call_put(a, 1, &start);
    call_put(a, f->call_count, &wait);
    copy_put(a, f->call_count, losses, told);
}

/* ---- all programs ---- */

/* Puts in what a program's use asks for. Of other weights than those that are trained, a reference's,
 * nothing moves but what the model itself has recorded. Inserts at one place keep the order in which
 * they were put. */
static lh_status_t program_arrange(transfers_t *t, program_t *p)
{
    arranger_t a = {.t = t, .p = p};
    const bool trained = p->weights == t->weights;
    a.status = p->flow->status;
    if (a.status == LH_OK) a.status = recorded_calls_take(t, p);
    if (a.status == LH_OK && p->how.use == USE_UPDATE) {
        losses_put(&a); /* before the waits: it hides behind them, too */
        sum_waits_put(&a);
    } else if (a.status == LH_OK && trained) {
        a.status = buffer_uses_find(&a);
        if (a.status == LH_OK && t->weights->gathered) instances_put(&a);
        if (a.status == LH_OK && !t->weights->gathered) value_gather_waits_put(&a);
        if (a.status == LH_OK && p->how.use == USE_TRAIN) sums_put(&a);
    }
    if (a.status == LH_OK) flow_weave(p->flow, a.list, a.count);
    mem_free(a.first);
    mem_free(a.last);
    mem_free(a.list);
    return a.status == LH_OK ? p->flow->status : a.status;
}

/* The update waits for what the others start, so it comes last. */
lh_status_t arrange_flows(exchange_t *x)
{
    transfers_t *t = (transfers_t *)x;
    const engine_t *e = t->engine;
    lh_status_t status = LH_OK;
    for (uint32_t update = 0; update < 2; update++)
        for (uint32_t i = 0; status == LH_OK && i < e->program_count; i++)
            if ((e->programs[i]->how.use == USE_UPDATE) == (update == 1))
                status = program_arrange(t, e->programs[i]);
    return status;
}

/* ---- for the update's flow ---- */

/* Appends the start or the wait of a move to a flow that is being written. */
static void move_call_append(transfers_t *t, program_t *p, uint32_t kind, const move_t *m)
{
    flow_t *f = p->flow;
    const flow_insert_t one = {
        .at = f->call_count,
        .call = {.kind = kind, .transfer = &m->transfer, .moved = transfers_moved(t, p, m)}};
    if (f->status == LH_OK) flow_weave(f, &one, 1);
}

/* The start and the wait stand together: the clip behind them needs all partial sums, and all
 * updates need the clip. Where nothing is cut every rank has all gradients, and nothing is
 * gathered. */
void arrange_partials(transfers_t *t, program_t *update, uint32_t sums)
{
    flow_t *f = update->flow;
    if (t->tables.cut == LH_GROUP_SELF || f->status != LH_OK) return;
    move_t *m;
    const move_t row = {.transfer = {.name = "norm", .op = COLLECTIVE_ALL_GATHER},
                        .kind = MOVE_PARTIALS,
                        .count = 1,
                        .program = update,
                        .values = &sums,
                        .arena = ARENA_BUCKETS};
    f->status = transfers_add(t, &row, &m);
    if (f->status != LH_OK) return;
    move_call_append(t, update, FLOW_COLLECTIVE, m);
    move_call_append(t, update, FLOW_WAIT, m);
}

/* Bytes of the values of updated parameters [begin, end). */
static uint64_t value_bytes(const transfers_t *t, uint32_t begin, uint32_t end)
{
    uint64_t bytes = 0;
    for (uint32_t i = begin; i < end; i++)
        if (transfers_is_updated(t->weights, i))
            bytes += t->weights->parameters->items[i].elements *
                     lh_dtype_bytes(t->weights->compute);
    return bytes;
}

/* Buckets in the order of parameters, as the next forward pass reads them. The open bucket begins
 * behind the last parameter that has a bucket, and is closed behind the parameter that fills it or
 * the last one that is updated. */
void arrange_value_gather(transfers_t *t, program_t *update, uint32_t parameter)
{
    flow_t *f = update->flow;
    if (t->tables.value_gather == TABLE_MOVES || f->status != LH_OK) return;
    const parameters_t *p = t->weights->parameters;
    uint32_t begin = parameter;
    bool more = false;
    while (begin > 0 && t->value_gather_of[begin - 1] == NULL)
        begin--;
    const uint64_t before = value_bytes(t, 0, begin), bytes = value_bytes(t, begin, parameter + 1);
    for (uint32_t i = parameter + 1; i < p->count; i++)
        more = more || transfers_is_updated(t->weights, i);
    /* Inside a site they do not take long, and many small ones do. */
    const uint64_t share = t->group_kind == LH_GROUP_SITE ? UINT64_MAX : before / 8;
    if (more && bytes < bucket_most(t, share)) return;

    uint32_t *list = mem_array(parameter - begin + 1u, sizeof(*list)), count = 0;
    move_t *m = NULL;
    if (list == NULL) {
        f->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t i = begin; i <= parameter; i++)
        if (transfers_is_updated(t->weights, i)) list[count++] = i;
    move_t row = {.transfer = {.op = COLLECTIVE_ALL_GATHER},
                  .kind = MOVE_VALUE_GATHER,
                  .parameters = list,
                  .count = count};
    (void)snprintf(row.transfer.name, TRANSFER_NAME, "new values from %.20s",
                   p->items[list[0]].name);
    f->status = transfers_add(t, &row, &m);
    for (uint32_t i = begin; i <= parameter; i++)
        t->value_gather_of[i] = m;
    mem_free(list);
    if (f->status == LH_OK) move_call_append(t, update, FLOW_COLLECTIVE, m);
}
