/* collective.c - plans: what is asked for, checked and copied; figures of their runs.
 *
 * Everything that can be refused by looking at one rank is refused here, with a sentence that names
 * the collective: a later difference between ranks (comm_agree.c) or a broken link is then never
 * the first sign of a wrong argument. The runs themselves are comm_runs.c's. */
#include <comm/collective.h>

#include <stdio.h>

#include <base/memory.h>
#include <comm/comm_agree.h>
#include <comm/comm_runs.h>
#include <comm/crossings.h>
#include <longhaul/dtype.h>

const char *const coll_op_names[COLL_OPS] = {
    [0] = "none",
    [COLL_ALL_REDUCE] = "all-reduce",
    [COLL_REDUCE_SCATTER] = "reduce-scatter",
    [COLL_ALL_GATHER] = "all-gather",
    [COLL_BROADCAST] = "broadcast",
    [COLL_REDUCE] = "reduce",
    [COLL_SCATTER] = "scatter",
    [COLL_GATHER] = "gather",
    [COLL_ALL_TO_ALL] = "all-to-all",
    [COLL_BARRIER] = "barrier",
    [COLL_SEND] = "send",
    [COLL_RECV] = "recv",
};
const char *const coll_algorithm_names[COLL_ALGORITHMS] = {
    [COLL_AUTO] = "auto",
    [COLL_DIRECT] = "direct",
    [COLL_RING] = "ring",
    [COLL_HALVING] = "halving",
};

/* Ops that name one member: `root`. */
static bool op_is_rooted(uint32_t op)
{
    return op == COLL_BROADCAST || op == COLL_REDUCE || op == COLL_SCATTER || op == COLL_GATHER ||
           op == COLL_SEND || op == COLL_RECV;
}

/* The one member whose piece is all of the buffer, or SCRIPT_NONE. A broadcast's piece belongs to
 * its root, which has it, and the piece of a pair to the receiver, who gets it: so both ends of a
 * pair see one owner. */
static uint32_t only_owner(const coll_how_t *how)
{
    switch (how->op) {
    case COLL_BROADCAST:
    case COLL_REDUCE:
    case COLL_SEND: return how->root;
    case COLL_RECV: return how->group->self;
    default: return SCRIPT_NONE;
    }
}

/* What needs no piece: names, numbers in range, dtypes and settings that exclude each other. The
 * memory is looked at by collective_check_places, once the pieces are known. */
static lh_status_t check_how(const comm_t *c, const coll_how_t *how)
{
    if (how->name == NULL || how->group == NULL || how->op == 0 || how->op >= COLL_OPS)
        return fail(LH_INVALID, "a collective needs a name, a group and an op from 1 to %d",
                    COLL_OPS - 1);
    if (how->service == 0 || how->service >= COMM_SERVICES)
        return fail(LH_INVALID, "'%s': service %u is none of LH_SERVICE_*", how->name,
                    how->service);
    if (how->service == LH_SERVICE_CONTROL)
        return fail(LH_INVALID,
                    "'%s': service %u is kept for answers of pairs; expected another of "
                    "LH_SERVICE_*",
                    how->name, how->service);
    if (op_is_rooted(how->op) && how->root >= how->group->size)
        return fail(LH_INVALID, "'%s': root %u of a group of %u members", how->name, how->root,
                    how->group->size);
    if (how->algorithm >= COLL_ALGORITHMS)
        return fail(LH_INVALID, "'%s': algorithm %u is none of COLL_*", how->name, how->algorithm);
    if (how->between >= BETWEEN_WAYS)
        return fail(LH_INVALID, "'%s': way %u between sites is none of BETWEEN_*", how->name,
                    how->between);
    if (coll_op_sums(how->op) && how->dtype != LH_DTYPE_F32 && how->dtype != LH_DTYPE_BF16)
        return fail(LH_UNSUPPORTED, "'%s': sums are of F32 or BF16, not of %s", how->name,
                    lh_dtype_name(how->dtype));
    if (how->border != 0 && how->border != LH_DTYPE_F32 && how->border != LH_DTYPE_BF16 &&
        how->border != LH_DTYPE_I8)
        return fail(LH_UNSUPPORTED, "'%s': sums cross borders as F32, BF16 or I8, not as %s",
                    how->name, lh_dtype_name(how->border));
    if (coll_op_sums(how->op) && how->algorithm == COLL_HALVING &&
        c->job->comm.bits != BITS_ORDERED)
        return fail(LH_UNSUPPORTED,
                    "'%s': halving sums in another order than [comm] bits = canonical promises; "
                    "take direct or ring",
                    how->name);
    if (how->op != COLL_BARRIER && how->elements > 0 && lh_dtype_bytes(how->dtype) == 0)
        return fail(LH_INVALID, "'%s': dtype %u has no size", how->name, how->dtype);
    if (how->device != NULL && how->op != COLL_ALL_GATHER)
        return fail(LH_UNSUPPORTED,
                    "'%s': in a device's memory there is an all-gather alone, no %s", how->name,
                    coll_op_names[how->op]);
    if (how->op == COLL_ALL_TO_ALL && how->cut.address == NULL && how->elements > 0)
        return fail(LH_INVALID, "'%s': an all-to-all needs a cut to receive into", how->name);
    if (how->op == COLL_ALL_REDUCE && how->cut.address != NULL)
        return fail(LH_INVALID, "'%s': an all-reduce is in place and takes no cut", how->name);
    return LH_OK;
}

/* That `elements` from a buffer's start lie inside the arena that its place names. A buffer that is
 * not there, or has no elements, is no fault. */
static lh_status_t check_place(const comm_t *c, const coll_how_t *how, const coll_place_t *place,
                               const char *what, uint64_t elements)
{
    uint64_t bytes;
    if (place->address == NULL || elements == 0) return LH_OK;
    if (!checked_mul(elements, lh_dtype_bytes(how->dtype), &bytes))
        return fail(LH_INVALID, "'%s': %llu elements are too many", how->name,
                    (unsigned long long)elements);
    const comm_arena_t *a = place->arena < c->arena_count ? &c->arenas[place->arena] : NULL;
    const uint64_t at = a == NULL ? 0 : (uint64_t)((char *)place->address - a->base);
    if (a == NULL || (char *)place->address < a->base || at > a->bytes || bytes > a->bytes - at)
        return fail(LH_INVALID, "'%s': its %s of %llu bytes does not lie in arena %u", how->name,
                    what, (unsigned long long)bytes, place->arena);
    return LH_OK;
}

/* Elements from the cut's start to the end of its last segment: how much memory the cut takes. */
static uint64_t end_of_cut(const collective_t *x, uint32_t owner)
{
    lh_assert(owner < x->how.group->size);
    uint64_t end = 0;
    for (uint32_t i = 0; i < x->pieces[owner].count; i++) {
        const coll_segment_t *s = &x->pieces[owner].segments[i];
        if (s->cut + s->count > end) end = s->cut + s->count;
    }
    return end;
}

/* The buffers that this rank uses in this op. Only the root of a scatter or a gather has a whole,
 * and the cut of an all-to-all holds what all members send, not this rank's piece alone. */
static lh_status_t collective_check_places(const comm_t *c, const collective_t *x)
{
    const coll_how_t *how = &x->how;
    const bool needs_whole = how->op != COLL_BARRIER && how->elements > 0 &&
                             ((how->op != COLL_SCATTER && how->op != COLL_GATHER) ||
                              how->root == how->group->self || how->cut.address == NULL);
    if (needs_whole && how->whole.address == NULL)
        return fail(LH_INVALID, "'%s': its whole buffer has no address", how->name);
    uint64_t cut = end_of_cut(x, how->group->self);
    if (how->op == COLL_ALL_TO_ALL) {
        cut = 0;
        for (uint32_t i = 0; i < x->pieces[how->group->self].count; i++)
            cut += x->pieces[how->group->self].segments[i].count;
        cut *= how->group->size;
    }
    const lh_status_t status = check_place(c, how, &how->whole, "whole", how->elements);
    return status != LH_OK ? status : check_place(c, how, &how->cut, "cut", cut);
}

/* Pieces of a buffer that is not cut by its caller: equal ones, or all to one owner. The last
 * members have less, or nothing, where the elements do not come out even. */
static void cut_evenly(collective_t *x)
{
    const uint32_t size = x->how.group->size, only = only_owner(&x->how);
    const uint64_t all = x->how.elements, part = (all + size - 1) / size;
    for (uint32_t o = 0; o < size; o++) {
        uint64_t at = part * o < all ? part * o : all;
        uint64_t count = part < all - at ? part : all - at;
        if (only != SCRIPT_NONE) at = 0;
        if (only != SCRIPT_NONE) count = o == only ? all : 0;
        x->segments[o] = (coll_segment_t){at, count, 0};
        x->pieces[o] = (coll_piece_t){&x->segments[o], count > 0};
    }
}

/* A segment that goes on where the owner's last one ends, in the whole and in the cut: one segment
 * may stand for both. Fewer segments are fewer messages, or fewer runs in each of them. */
static bool segment_is_joined(const collective_t *x, uint32_t owner, uint32_t at,
                              const coll_segment_t *s)
{
    if (&x->segments[at] == x->pieces[owner].segments) return false;
    const coll_segment_t *last = &x->segments[at - 1];
    return last->whole + last->count == s->whole && last->cut + last->count == s->cut;
}

/* Copies the caller's pieces and joins neighbours. Overlapping pieces are not looked for: who cuts
 * parameters has checked that every element has one owner (parallel/shards.c). */
static lh_status_t copy_pieces(collective_t *x, const coll_piece_t *pieces)
{
    uint32_t at = 0;
    for (uint32_t o = 0; o < x->how.group->size; o++) {
        x->pieces[o] = (coll_piece_t){&x->segments[at], pieces[o].count};
        for (uint32_t i = 0; i < pieces[o].count; i++) {
            const coll_segment_t s = pieces[o].segments[i];
            uint64_t end;
            if (!checked_add(s.whole, s.count, &end) || end > x->how.elements ||
                !checked_add(s.cut, s.count, &end))
                return fail(LH_INVALID,
                            "'%s': segment %u of member %u, %llu elements at %llu, is not inside "
                            "%llu elements",
                            x->how.name, i, o, (unsigned long long)s.count,
                            (unsigned long long)s.whole, (unsigned long long)x->how.elements);
            if (segment_is_joined(x, o, at, &s)) {
                x->segments[at - 1].count += s.count;
                x->pieces[o].count--;
            } else {
                x->segments[at++] = s;
            }
        }
    }
    return LH_OK;
}

/* Room is made for one segment a member more than the caller gave, for those that are cut here. */
static lh_status_t take_pieces(collective_t *x, const coll_how_t *how)
{
    const bool given = how->pieces != NULL && only_owner(how) == SCRIPT_NONE;
    uint64_t count = how->group->size;
    for (uint32_t o = 0; given && o < how->group->size; o++)
        count += how->pieces[o].count;
    x->segments = mem_array(count, sizeof(*x->segments));
    x->pieces = mem_array(how->group->size, sizeof(*x->pieces));
    if (x->segments == NULL || x->pieces == NULL) return LH_NO_MEMORY;
    x->how.pieces = x->pieces;
    if (given) return copy_pieces(x, how->pieces);
    if (how->op != COLL_BARRIER) cut_evenly(x);
    return LH_OK;
}

/* The plan's own copies of its name, and of the words that a wait tells the control plane. */
static lh_status_t take_names(collective_t *x, const char *name)
{
    text_t doing = {0};
    text_printf(&doing, "%s of %s", coll_op_names[x->how.op], name);
    x->name = mem_text(name);
    x->doing = doing.data;
    x->how.name = x->name;
    return x->name == NULL || doing.failed ? LH_NO_MEMORY : LH_OK;
}

/* Also of a plan that is only half made. The script is not its own: plans of a shape share it. */
void collective_free(collective_t *x)
{
    mem_free(x->segments);
    mem_free(x->pieces);
    mem_free(x->name);
    mem_free(x->doing);
    mem_free(x->peers);
    mem_free(x->places);
    mem_free(x->tracks);
    mem_free(x->scratch);
    mem_free(x->left);
    mem_free(x->ready);
    mem_free(x->sent_to);
    if (x->how.continues == NULL) mem_free(x->bound.errors);
    mem_free(x);
}

/* The list of plans grows first, so that a plan which is complete cannot be lost for want of a
 * place in it. */
lh_status_t collective_new(comm_t *c, const coll_how_t *how, collective_t **out)
{
    lh_assert(!c->connected);
    lh_status_t status = check_how(c, how);
    if (status != LH_OK) return status;
    collective_t **plans = mem_grow(c->plans, &c->plan_capacity, c->plan_count + 1u,
                                    sizeof(collective_t *));
    if (plans == NULL) return LH_NO_MEMORY;
    c->plans = plans;
    collective_t *x = mem_new(sizeof(*x));
    if (x == NULL) return LH_NO_MEMORY;
    x->comm = c;
    x->how = *how;
    x->index = c->plan_count;
    atomic_init(&x->state, PLAN_IDLE);
    status = take_names(x, how->name);
    if (status == LH_OK) status = take_pieces(x, how);
    if (status == LH_OK) status = collective_check_places(c, x);
    if (status != LH_OK) {
        collective_free(x);
        return status;
    }
    x->key = comm_key(&x->how, c->world);
    for (uint32_t i = 0; i < c->plan_count; i++)
        x->number += c->plans[i]->key == x->key;
    c->plans[c->plan_count++] = x;
    *out = x;
    return LH_OK;
}

lh_status_t collective_start(collective_t *x)
{
    return runs_start(x, NULL);
}

lh_status_t collective_start_behind(collective_t *x, const collective_gate_t *gate)
{
    return runs_start(x, gate);
}

bool collective_expect(collective_t *x, bool writes_ahead)
{
    return runs_expect(x, writes_ahead);
}

lh_status_t collective_test(collective_t *x)
{
    return runs_test(x);
}

lh_status_t collective_wait(collective_t *x)
{
    return runs_wait(x);
}

uint32_t collective_algorithm(const collective_t *x)
{
    return x->algorithm;
}

/* STEP_SEND steps were counted when the script was taken: reads in place are not among them. */
void collective_bytes(const collective_t *x, uint64_t sent[4], uint64_t *staging)
{
    for (uint32_t s = 0; s < COMM_SCOPES; s++)
        sent[s] = x->sent[s];
    *staging = x->script == NULL ? 0 : x->script->staging_bytes;
}

void collective_sent_to(const collective_t *x, double times, double *to)
{
    for (uint32_t s = 0; x->sent_to != NULL && s < x->comm->world->row.sites; s++)
        to[s] += times * (double)x->sent_to[s];
}

lh_status_t collective_crossings(const collective_t *x, uint64_t runs, const group_t *group,
                                 const coll_piece_t *pieces, uint64_t *by_rank, uint64_t *between)
{
    coll_how_t how = x->how;
    script_how_t script = {.how = &how};
    if (group != NULL) how.group = group;
    if (pieces != NULL) how.pieces = pieces;
    const lh_status_t status = comm_between(x->comm, &how, &script);
    if (status == LH_OK) crossings_add(&script, runs, x->comm->world, by_rank, between);
    return status;
}

double collective_trips(const collective_t *x)
{
    return x->trips;
}

float *collective_errors(const collective_t *x, uint64_t *elements)
{
    *elements = x->bound.errors == NULL ? 0 : x->script->error_elements;
    return x->bound.errors;
}

const char *collective_name(const collective_t *x)
{
    return x->name;
}

void collective_times(const collective_t *x, collective_times_t *out)
{
    runs_enter(x->comm);
    *out = x->times;
    runs_leave(x->comm);
}
