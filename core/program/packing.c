/* packing.c - finds products that share an input, joins their buffers, and puts one call in the
 * place of several.
 *
 * In this order: what touches each buffer is listed; groups of calls are found whose weights are
 * neighbours; each group is checked (packing_fits) and then applied, the largest first, so that a
 * smaller one may use what a larger one has joined. Buffers are joined in two ways. Weights and
 * their gradients are rows of one matrix: they lie one behind the other, in a store already, in an
 * arena from here on. Outputs and their gradients are columns: every value in the buffer gets the
 * longer stride of the common rows, and whoever reads or writes it sees a view.
 *
 * A gradient's first writer in a step writes, and later ones add: flow_finish decides that by
 * buffer. So all calls that touch the gradients of a group must be of groups with the very same
 * gradients (a set), and a set is joined as a whole or not at all.
 *
 * Columns live as long as the longest-lived of them. Where an op may work in place (LH_OP_IN_PLACE,
 * rotary positions) and is the only one to read a column, its output takes over the column: else q
 * and k as they were before they turned would be kept for v's sake until the way back. */
#include <program/packing.h>

#include <base/memory.h>
#include <longhaul/dtype.h>

/* Roles of a product's slots, whichever op it is of (lh_op_t.product): the inputs are its first ones, and
 * the output is the first. */
enum { FACTOR_A, FACTOR_B, BIAS, OUTPUT };

enum { PACKING_MOST = 8 }; /* products in a group; what is beyond stays apart */

/* The three products of a layer y = x W', told apart by which factor is transposed. `shared` is what
 * all members have in common; `wide` the weight or its gradient, joined by rows; `columns` the
 * output or its gradient, joined by columns. */
enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, KINDS };
static const struct {
    bool transpose_a, transpose_b;
    uint32_t shared, wide, columns;
} kinds[KINDS] = {
    [FORWARD] = {false, true, FACTOR_A, FACTOR_B, OUTPUT},
    [INPUT_GRADIENT] = {false, false, OUTPUT, FACTOR_B, FACTOR_A},
    [WEIGHT_GRADIENT] = {true, false, FACTOR_B, OUTPUT, FACTOR_A},
};

/* Calls that become one. */
typedef struct group {
    uint32_t kind, count;
    uint32_t calls[PACKING_MOST]; /* in the order of their weights */
    uint32_t first, last;         /* of these, by their place in the flow */
    flow_call_t packed;           /* what takes their place, once packing_fits has made it */
    uint32_t next;                /* the next group of its set, from 1; 0: none */
    bool member;                  /* of a set that begins with another group */
} group_t;

/* Lists by buffer: [begin[b], begin[b + 1]) of `items`. */
typedef struct index {
    uint32_t *begin, *items;
} index_t;

typedef struct packer {
    flow_t *f;
    const packing_how_t *how;
    uint32_t buffers;     /* that the flow had before anything was joined */
    index_t uses, values; /* calls that touch a buffer, ascending; values that lie in it */
    uint32_t *origin;     /* [values that the flow had] the buffer in which each lay */
    bool *fixed;          /* [buffers] touched by more than kernels, which alone take views */
    uint32_t *host;       /* [buffers] where a buffer has been joined, itself included; 0: none */
    uint64_t *at, *pitch; /* [buffers] bytes from the host's start; of a host's columns, elements
                               from row to row */
    bool *seen;           /* [calls] looked at */
    uint32_t *joined;     /* [calls] the group that a call has been joined into, from 1; 0: none */
    uint32_t *set;        /* [buffers] by the first gradient: its set's first group, from 1 */
    group_t *groups;
    uint32_t group_count;
    size_t group_capacity;
} packer_t;

/* The buffer in which the value of a slot lay before anything was joined. */
static uint32_t origin_buffer(const packer_t *p, uint32_t call, uint32_t slot)
{
    return p->origin[p->f->calls[call].slots[slot]];
}

static const lh_arg_t *arg_of(const packer_t *p, uint32_t call, uint32_t slot)
{
    return &p->f->values[p->f->calls[call].slots[slot]].arg;
}

/* The slot in which a product has a factor, its bias or its output. */
static uint32_t role_slot(const flow_call_t *call, uint32_t role)
{
    lh_assert(role <= OUTPUT);
    return role == OUTPUT ? call->op->in_count : role;
}

static uint32_t role_buffer(const packer_t *p, uint32_t call, uint32_t role)
{
    return origin_buffer(p, call, role_slot(&p->f->calls[call], role));
}

static const lh_arg_t *role_arg(const packer_t *p, uint32_t call, uint32_t role)
{
    return arg_of(p, call, role_slot(&p->f->calls[call], role));
}

static bool has_bias(const flow_call_t *call)
{
    return call->op->in_count > BIAS && call->slots[BIAS] != 0;
}

/* ---- what touches what ---- */

/* Turns counts by buffer into beginnings, and makes room for the items. */
static lh_status_t index_sum(index_t *x, uint32_t buffers)
{
    uint32_t sum = 0;
    for (uint32_t b = 0; b <= buffers; b++) {
        const uint32_t count = x->begin[b];
        x->begin[b] = sum;
        sum += count;
    }
    x->items = mem_array(sum + 1u, sizeof(*x->items));
    return x->items == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Counts (NULL) or lists the uses of every buffer. A call that touches a buffer twice stands there
 * twice. next: [buffers] where the next item of a buffer goes. */
static void uses_walk(packer_t *p, uint32_t *next)
{
    const flow_t *f = p->f;
    for (uint32_t c = 1; c < f->call_count; c++)
        for (uint32_t s = 0; s < flow_call_slots(&f->calls[c]); s++) {
            if (f->calls[c].slots[s] == 0) continue;
            const uint32_t b = origin_buffer(p, c, s);
            lh_assert(b < p->buffers);
            if (next == NULL)
                p->uses.begin[b]++;
            else
                p->uses.items[next[b]++] = c;
            if (f->calls[c].kind != FLOW_KERNEL) p->fixed[b] = true;
        }
}

static void values_walk(packer_t *p, uint32_t *next)
{
    const flow_t *f = p->f;
    for (uint32_t v = 1; v < f->value_count; v++) {
        if (next == NULL)
            p->values.begin[f->values[v].buffer]++;
        else
            p->values.items[next[f->values[v].buffer]++] = v;
    }
}

/* Fills both indices, and marks what transfers touch, as those take dense values. */
static lh_status_t uses_find(packer_t *p)
{
    const flow_t *f = p->f;
    uses_walk(p, NULL);
    values_walk(p, NULL);
    uint32_t *next = mem_array(p->buffers, sizeof(*next));
    lh_status_t status = next == NULL ? LH_NO_MEMORY : index_sum(&p->uses, p->buffers);
    if (status == LH_OK) status = index_sum(&p->values, p->buffers);
    if (status == LH_OK) {
        memcpy(next, p->uses.begin, p->buffers * sizeof(*next));
        uses_walk(p, next);
        memcpy(next, p->values.begin, p->buffers * sizeof(*next));
        values_walk(p, next);
    }
    mem_free(next);
    for (uint32_t i = 0; i < f->moved_count; i++)
        p->fixed[f->values[f->moved[i]].buffer] = true;
    return status;
}

static bool call_writes(const packer_t *p, uint32_t call, uint32_t buffer)
{
    const flow_call_t *c = &p->f->calls[call];
    for (uint32_t s = c->kind == FLOW_KERNEL ? c->op->in_count : 0; s < flow_call_slots(c); s++)
        if (c->slots[s] != 0 && origin_buffer(p, call, s) == buffer) return true;
    return false;
}

/* ---- groups ---- */

/* Whether an optional output is there for somebody: recorded products have all of theirs until
 * flow_finish drops those that nobody reads. */
static bool is_wanted(const packer_t *p, const flow_call_t *call, uint32_t slot)
{
    if (call->slots[slot] == 0) return false;
    const uint32_t b = p->origin[call->slots[slot]];
    return p->f->buffers[b].allocation != NULL || p->uses.begin[b + 1] - p->uses.begin[b] > 1;
}

/* Whether a product has nothing but its factors, a bias and its output. */
static bool is_bare(const packer_t *p, const flow_call_t *call)
{
    const op_t *op = call->op;
    for (uint32_t s = BIAS + 1; s < op->in_count; s++)
        if (call->slots[s] != 0) return false;
    for (uint32_t s = op->in_count + 1; s < op->in_count + op->out_count; s++)
        if (is_wanted(p, call, s)) return false;
    return true;
}

/* Which of the three products a call is; KINDS: none that can be joined. */
static uint32_t product_kind(const packer_t *p, const flow_call_t *call)
{
    bool a, b;
    if (call->kind != FLOW_KERNEL || call->op->row.product == NULL ||
        !call->op->row.product(call->attributes, &a, &b) || !is_bare(p, call))
        return KINDS;
    uint32_t kind = 0;
    while (kind < KINDS && (kinds[kind].transpose_a != a || kinds[kind].transpose_b != b))
        kind++;
    if (kind == KINDS || (has_bias(call) && kind != FORWARD)) return KINDS;
    const uint32_t wide = p->f->values[call->slots[role_slot(call, kinds[kind].wide)]].buffer;
    if ((call->add != 0 && kind != INPUT_GRADIENT) || p->how->order[wide] == 0) return KINDS;
    return kind;
}

/* Whether two products share what their kind shares, in one place of the schedule, and differ in
 * their weights alone. They are of one op, with the same attributes. */
static bool calls_alike(const packer_t *p, uint32_t kind, uint32_t a, uint32_t b)
{
    const flow_t *f = p->f;
    const flow_call_t *x = &f->calls[a], *y = &f->calls[b];
    const uint32_t bytes = x->op->row.attributes_bytes;
    if (x->op != y->op || (bytes > 0 && memcmp(x->attributes, y->attributes, bytes) != 0))
        return false;
    const uint32_t shared = role_slot(x, kinds[kind].shared);
    const flow_value_t *s = &f->values[x->slots[shared]], *t = &f->values[y->slots[shared]];
    if (s->buffer != t->buffer || s->offset != t->offset || !recording_args_alike(&s->arg, &t->arg))
        return false;
    for (uint32_t i = 0; i < flow_call_slots(x); i++)
        if ((x->slots[i] == 0) != (y->slots[i] == 0) ||
            (x->slots[i] != 0 && arg_of(p, a, i)->dtype != arg_of(p, b, i)->dtype))
            return false;
    return x->part == y->part && x->block == y->block && x->row == y->row &&
           x->backward == y->backward && x->first_only == y->first_only &&
           x->later_only == y->later_only && x->last_only == y->last_only;
}

/* Whether buffer y holds what comes right behind buffer x: in a store by where both lie already, in
 * an arena by who they are, where x ends at a place that y may begin at. */
static bool buffers_adjoin(const packer_t *p, uint32_t x, uint32_t y)
{
    const flow_buffer_t *a = &p->f->buffers[x], *b = &p->f->buffers[y];
    if (p->how->order[x] == 0 || p->how->order[y] != p->how->order[x] + 1) return false;
    if (a->allocation != b->allocation || a->kept != b->kept || a->accumulates != b->accumulates ||
        a->each_micro != b->each_micro)
        return false;
    if (a->allocation != NULL) return a->offset + a->bytes == b->offset;
    return a->arena == b->arena && a->bytes % p->how->alignment == 0;
}

/* The value in a role is all of its buffer. */
static bool role_is_whole(const packer_t *p, uint32_t call, uint32_t role)
{
    const flow_call_t *c = &p->f->calls[call];
    const flow_value_t *v = &p->f->values[c->slots[role_slot(c, role)]];
    return v->offset == 0 && flow_arg_bytes(&v->arg) == p->f->buffers[v->buffer].bytes;
}

/* Whether the weight of call b, and its bias if there is one, follow those of call a. */
static bool weights_adjoin(const packer_t *p, uint32_t kind, uint32_t a, uint32_t b)
{
    const uint32_t wide = kinds[kind].wide;
    if (!role_is_whole(p, a, wide) || !role_is_whole(p, b, wide) ||
        !buffers_adjoin(p, role_buffer(p, a, wide), role_buffer(p, b, wide)))
        return false;
    if (!has_bias(&p->f->calls[a])) return true;
    return role_is_whole(p, a, BIAS) && role_is_whole(p, b, BIAS) &&
           buffers_adjoin(p, role_buffer(p, a, BIAS), role_buffer(p, b, BIAS));
}

/* Appends a group, unless it is of one. */
static lh_status_t group_add(packer_t *p, uint32_t kind, const uint32_t *calls, uint32_t count)
{
    lh_assert(count <= PACKING_MOST);
    if (count < 2) return LH_OK;
    group_t *groups = mem_grow(p->groups, &p->group_capacity, (size_t)p->group_count + 1,
                               sizeof(*groups));
    if (groups == NULL) return LH_NO_MEMORY;
    p->groups = groups;
    group_t *g = &groups[p->group_count++];
    *g = (group_t){.kind = kind, .count = count, .first = calls[0], .last = calls[0]};
    for (uint32_t i = 0; i < count; i++) {
        g->calls[i] = calls[i];
        if (calls[i] < g->first) g->first = calls[i];
        if (calls[i] > g->last) g->last = calls[i];
    }
    return LH_OK;
}

/* Groups of all products that are like call c: they are sorted by their weights and cut where these
 * do not adjoin. */
static lh_status_t groups_of(packer_t *p, uint32_t kind, uint32_t c)
{
    const uint32_t shared = role_buffer(p, c, kinds[kind].shared), wide = kinds[kind].wide;
    const uint32_t *order = p->how->order;
    uint32_t calls[PACKING_MOST], count = 0;
    for (uint32_t u = p->uses.begin[shared]; u < p->uses.begin[shared + 1]; u++) {
        const uint32_t other = p->uses.items[u];
        if (p->seen[other] || count == PACKING_MOST ||
            product_kind(p, &p->f->calls[other]) != kind || !calls_alike(p, kind, c, other))
            continue;
        const uint32_t number = order[role_buffer(p, other, wide)];
        uint32_t i = count;
        while (i > 0 && order[role_buffer(p, calls[i - 1], wide)] > number)
            i--;
        if (i > 0 && order[role_buffer(p, calls[i - 1], wide)] == number)
            continue; /* a group's next */
        memmove(&calls[i + 1], &calls[i], (count - i) * sizeof(*calls));
        calls[i] = other;
        p->seen[other] = true;
        count++;
    }
    lh_status_t status = LH_OK;
    for (uint32_t begin = 0, end; begin < count && status == LH_OK; begin = end) {
        for (end = begin + 1; end < count; end++)
            if (!weights_adjoin(p, kind, calls[end - 1], calls[end])) break;
        status = group_add(p, kind, &calls[begin], end - begin);
    }
    return status;
}

static lh_status_t groups_find(packer_t *p)
{
    lh_status_t status = LH_OK;
    for (uint32_t c = 1; c < p->f->call_count && status == LH_OK; c++) {
        const uint32_t kind = p->seen[c] ? KINDS : product_kind(p, &p->f->calls[c]);
        if (kind != KINDS) status = groups_of(p, kind, c);
    }
    return status;
}

static bool groups_alike(const packer_t *p, const group_t *a, const group_t *b)
{
    bool alike = a->count == b->count;
    for (uint32_t i = 0; alike && i < a->count; i++)
        alike = role_buffer(p, a->calls[i], OUTPUT) == role_buffer(p, b->calls[i], OUTPUT);
    return alike;
}

/* Chains the groups of gradients that are of one set behind the set's first. A set that others touch
 * too is given up: its groups get no calls. */
static void sets_make(packer_t *p)
{
    for (uint32_t i = 0; i < p->group_count; i++) {
        group_t *g = &p->groups[i];
        if (g->kind != WEIGHT_GRADIENT) continue;
        uint32_t *first = &p->set[role_buffer(p, g->calls[0], OUTPUT)];
        if (*first == 0) {
            *first = i + 1;
        } else {
            g->next = p->groups[*first - 1].next;
            g->member = true;
            p->groups[*first - 1].next = i + 1;
        }
    }
    for (uint32_t i = 0; i < p->group_count; i++) {
        group_t *g = &p->groups[i];
        if (g->kind != WEIGHT_GRADIENT || g->member) continue;
        uint32_t all = 1;
        bool alike = true;
        for (uint32_t n = g->next; n != 0; n = p->groups[n - 1].next, all++)
            alike = alike && groups_alike(p, g, &p->groups[n - 1]);
        for (uint32_t m = 0; alike && m < g->count; m++) {
            const uint32_t b = role_buffer(p, g->calls[m], OUTPUT);
            alike = p->uses.begin[b + 1] - p->uses.begin[b] == all;
        }
        if (!alike) g->count = 0;
    }
}

/* ---- may they be joined? ---- */

static bool in_group(const group_t *g, uint32_t call)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (g->calls[i] == call) return true;
    return false;
}

/* Whether no call between `since` and the group's last but its own touches a buffer; reads: reading
 * is no harm. */
static bool is_quiet(const packer_t *p, const group_t *g, uint32_t buffer, uint32_t since,
                     bool reads)
{
    for (uint32_t u = p->uses.begin[buffer]; u < p->uses.begin[buffer + 1]; u++) {
        const uint32_t c = p->uses.items[u];
        if (c <= since || c >= g->last || in_group(g, c)) continue;
        if (!reads || call_writes(p, c, buffer)) return false;
    }
    return true;
}

/* The forward product stands where its first member stood, the gradients where their last did: what
 * they read must be the same there, and nobody may have looked for what they write. */
static bool order_allows(const packer_t *p, const group_t *g)
{
    const uint32_t shared = kinds[g->kind].shared, wide = kinds[g->kind].wide,
                   columns = kinds[g->kind].columns;
    bool fine = is_quiet(p, g, role_buffer(p, g->first, shared), g->first,
                         g->kind != INPUT_GRADIENT);
    for (uint32_t i = 0; fine && i < g->count; i++) {
        const uint32_t c = g->calls[i], column = role_buffer(p, c, columns);
        fine = is_quiet(p, g, role_buffer(p, c, wide), g->first, g->kind != WEIGHT_GRADIENT);
        if (g->kind == FORWARD)
            fine = fine && p->uses.items[p->uses.begin[column]] == c;
        else
            fine = fine && is_quiet(p, g, column, c, true);
        /* All but the first add to the gradient that it has begun. */
        if (g->kind == INPUT_GRADIENT && c != g->first)
            fine = fine && (p->f->calls[c].add >> p->f->calls[c].op->in_count & 1u) != 0;
    }
    return fine;
}

/* Whether all that lies in a buffer are dense values [rows, width] of a dtype, touched by kernels
 * alone: then all of them can become columns of longer rows. */
static bool buffer_is_plain(const packer_t *p, uint32_t buffer, const lh_arg_t *like)
{
    const flow_buffer_t *b = &p->f->buffers[buffer];
    if (b->allocation != NULL || b->arena != ARENA_ACTIVATIONS || b->accumulates || b->kept ||
        p->fixed[buffer] || p->host[buffer] != 0)
        return false;
    for (uint32_t i = p->values.begin[buffer]; i < p->values.begin[buffer + 1]; i++) {
        const flow_value_t *v = &p->f->values[p->values.items[i]];
        if (v->offset != 0 || v->arg.rank != 2 || v->arg.count_slot != 0 ||
            v->arg.stride[0] != v->arg.shape[1] || !recording_args_alike(&v->arg, like))
            return false;
    }
    return true;
}

/* Bytes that a member adds to what its role's buffers become: rows of one matrix, or columns. */
static uint64_t step_of(const packer_t *p, uint32_t call, uint32_t role, bool columns)
{
    const lh_arg_t *arg = role_arg(p, call, role);
    uint64_t elements = arg->shape[arg->rank - 1];
    for (uint32_t i = 0; !columns && i + 1 < arg->rank; i++)
        elements *= arg->shape[i];
    return elements * lh_dtype_bytes(arg->dtype);
}

/* Whether none of the members' buffers in a role is joined yet (FRESH), or all are, one behind the
 * other as they should be (JOINED). */
enum { NEVER, FRESH, JOINED };
static uint32_t role_state(const packer_t *p, const group_t *g, uint32_t role, bool columns)
{
    const uint32_t first = role_buffer(p, g->calls[0], role), host = p->host[first];
    uint64_t at = p->at[first];
    for (uint32_t i = 0; i < g->count; i++) {
        const uint32_t b = role_buffer(p, g->calls[i], role);
        if (p->host[b] != host || (host != 0 && p->at[b] != at)) return NEVER;
        for (uint32_t k = 0; k < i; k++)
            if (role_buffer(p, g->calls[k], role) == b) return NEVER;
        if (columns && host == 0 &&
            (!buffer_is_plain(p, b, role_arg(p, g->calls[i], role)) || at % p->how->alignment != 0))
            return NEVER;
        at += step_of(p, g->calls[i], role, columns);
    }
    return host == 0 ? FRESH : JOINED;
}

/* Gives all values of a buffer another distance of rows. */
static void stride_set(packer_t *p, uint32_t buffer, uint64_t pitch)
{
    for (uint32_t i = p->values.begin[buffer]; i < p->values.begin[buffer + 1]; i++)
        p->f->values[p->values.items[i]].arg.stride[0] = pitch;
}

/* Whether the device has a kernel for a call as it will be: without outputs that nobody wants. */
static bool is_offered(const packer_t *p, const flow_call_t *call)
{
    flow_call_t asked = *call;
    for (uint32_t s = 0; s < flow_call_slots(call); s++)
        if (call->kind == FLOW_KERNEL && s >= call->op->in_count && call->op->optional[s] &&
            !is_wanted(p, call, s))
            asked.slots[s] = 0;
    return p->how->offers(p->how->device, p->f, &asked);
}

/* Whether the device has kernels for all that touch a buffer and stay, as its values are now. */
static bool users_offered(const packer_t *p, const group_t *g, uint32_t buffer)
{
    for (uint32_t u = p->uses.begin[buffer]; u < p->uses.begin[buffer + 1]; u++) {
        const uint32_t c = p->uses.items[u];
        if (p->joined[c] == 0 && !in_group(g, c) && !is_offered(p, &p->f->calls[c])) return false;
    }
    return true;
}

/* Columns of all members together, in elements. */
static uint64_t group_columns(const packer_t *p, const group_t *g)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->count; i++)
        sum += role_arg(p, g->calls[i], kinds[g->kind].columns)->shape[1];
    return sum;
}

/* Tries the strides of columns on, and takes them off again. */
static bool columns_offered(packer_t *p, const group_t *g)
{
    const uint32_t role = kinds[g->kind].columns;
    const uint64_t pitch = group_columns(p, g);
    bool offered = true;
    for (uint32_t i = 0; i < g->count; i++)
        stride_set(p, role_buffer(p, g->calls[i], role), pitch);
    for (uint32_t i = 0; offered && i < g->count; i++)
        offered = users_offered(p, g, role_buffer(p, g->calls[i], role));
    for (uint32_t i = 0; i < g->count; i++)
        stride_set(p, role_buffer(p, g->calls[i], role), role_arg(p, g->calls[i], role)->shape[1]);
    return offered;
}

/* A value over what all members have in a role, in the buffer that hosts it or will. 0 where memory
 * is short. */
static uint32_t wide_value(packer_t *p, const group_t *g, uint32_t role, bool columns)
{
    const uint32_t first = role_buffer(p, g->calls[0], role);
    const uint32_t host = p->host[first] != 0 ? p->host[first] : first;
    const uint32_t along = columns ? 1 : 0;
    lh_arg_t arg = *role_arg(p, g->calls[0], role);
    for (uint32_t i = 1; i < g->count; i++)
        arg.shape[along] += role_arg(p, g->calls[i], role)->shape[along];
    if (columns) arg.stride[0] = p->host[first] != 0 ? p->pitch[host] : arg.shape[1];
    return flow_value(p->f, &arg, host, p->at[first]);
}

/* Makes the call that takes the members' place. False where memory is short. */
static bool packed_make(packer_t *p, group_t *g)
{
    const uint32_t columns = kinds[g->kind].columns, wide = kinds[g->kind].wide;
    const flow_call_t first = p->f->calls[g->first];
    g->packed = first;
    for (uint32_t s = first.op->in_count + 1; s < first.op->in_count + first.op->out_count; s++)
        g->packed.slots[s] = 0;
    g->packed.slots[role_slot(&first, columns)] = wide_value(p, g, columns, true);
    g->packed.slots[role_slot(&first, wide)] = wide_value(p, g, wide, false);
    if (has_bias(&first)) g->packed.slots[BIAS] = wide_value(p, g, BIAS, false);
    return p->f->status == LH_OK;
}

/* Whether a group can be joined as things are; its call is made then. */
static bool packing_fits(packer_t *p, group_t *g)
{
    const uint32_t columns = kinds[g->kind].columns, wide = kinds[g->kind].wide;
    if (g->count == 0 || !order_allows(p, g) || role_state(p, g, wide, false) == NEVER)
        return false;
    if (has_bias(&p->f->calls[g->first]) && role_state(p, g, BIAS, false) == NEVER) return false;
    const uint32_t state = role_state(p, g, columns, true);
    if (state == NEVER || (state == FRESH && !columns_offered(p, g))) return false;
    return packed_make(p, g) && p->how->offers(p->how->device, p->f, &g->packed);
}

/* ---- joining ---- */

/* Moves all values of a buffer to `at` bytes from the start of its host. */
static void buffer_move(packer_t *p, uint32_t buffer, uint32_t host, uint64_t at)
{
    lh_assert(host != 0 && host < p->buffers && buffer < p->buffers);
    p->host[buffer] = host;
    p->at[buffer] = at;
    p->f->buffers[buffer].joined = host;
    for (uint32_t i = p->values.begin[buffer]; i < p->values.begin[buffer + 1]; i++) {
        flow_value_t *v = &p->f->values[p->values.items[i]];
        v->buffer = host;
        v->offset += at;
    }
}

/* Joins what the members have in a role, unless it is joined. The first one's buffer is the host. */
static void role_join(packer_t *p, const group_t *g, uint32_t role, bool columns)
{
    if (role_state(p, g, role, columns) != FRESH) return;
    const uint32_t host = role_buffer(p, g->calls[0], role);
    const uint64_t pitch = columns ? group_columns(p, g) : 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const uint32_t b = role_buffer(p, g->calls[i], role);
        const uint64_t step = step_of(p, g->calls[i], role, columns);
        if (columns) stride_set(p, b, pitch);
        buffer_move(p, b, host, at);
        at += step;
    }
    p->pitch[host] = pitch;
    p->f->buffers[host].bytes = columns ? at * role_arg(p, g->calls[0], role)->shape[0] : at;
}

/* Lets the one op that reads a column, and may work in place, write there too. */
static void column_keep(packer_t *p, const group_t *g, uint32_t member)
{
    const uint32_t b = role_buffer(p, g->calls[member], OUTPUT), begin = p->uses.begin[b];
    if (p->uses.begin[b + 1] - begin != 2) return;
    const uint32_t reader = p->uses.items[begin + 1];
    const flow_call_t *call = &p->f->calls[reader];
    if (p->joined[reader] != 0 || (call->op->row.flags & LH_OP_IN_PLACE) == 0 || call->add != 0 ||
        call->slots[0] == 0 || origin_buffer(p, reader, 0) != b ||
        call->slots[call->op->in_count] == 0)
        return;
    const uint32_t to = origin_buffer(p, reader, call->op->in_count);
    if (!buffer_is_plain(p, to, role_arg(p, g->calls[member], OUTPUT)) ||
        p->uses.items[p->uses.begin[to]] != reader)
        return;
    const uint64_t dense = arg_of(p, reader, call->op->in_count)->stride[0];
    stride_set(p, to, p->pitch[p->host[b]]);
    if (users_offered(p, g, to))
        buffer_move(p, to, p->host[b], p->at[b]);
    else
        stride_set(p, to, dense);
}

static void group_apply(packer_t *p, uint32_t index)
{
    const group_t *g = &p->groups[index];
    role_join(p, g, kinds[g->kind].columns, true);
    role_join(p, g, kinds[g->kind].wide, false);
    if (has_bias(&p->f->calls[g->first])) role_join(p, g, BIAS, false);
    for (uint32_t i = 0; i < g->count; i++)
        p->joined[g->calls[i]] = index + 1;
    for (uint32_t i = 0; g->kind == FORWARD && i < g->count; i++)
        column_keep(p, g, i);
}

/* A set is applied as a whole; any other group is a set of its own. */
static void set_apply(packer_t *p, uint32_t index)
{
    for (uint32_t n = index + 1; n != 0; n = p->groups[n - 1].next)
        if (!packing_fits(p, &p->groups[n - 1])) return;
    for (uint32_t n = index + 1; n != 0; n = p->groups[n - 1].next)
        group_apply(p, n - 1);
}

/* Puts the new calls where they belong, and closes the gaps. */
static void calls_replace(packer_t *p)
{
    flow_t *f = p->f;
    uint32_t kept = 1, turn = 0;
    for (uint32_t c = 1; c < f->call_count; c++) {
        const group_t *g = p->joined[c] == 0 ? NULL : &p->groups[p->joined[c] - 1];
        if (turn == 0 && f->turn != 0 && c >= f->turn) turn = kept;
        if (g == NULL)
            f->calls[kept++] = f->calls[c];
        else if (c == (g->kind == FORWARD ? g->first : g->last))
            f->calls[kept++] = g->packed;
    }
    lh_assert(kept <= f->call_count && turn <= kept);
    f->turn = turn;
    f->call_count = kept;
}

static lh_status_t packer_fill(packer_t *p)
{
    const size_t buffers = (size_t)p->buffers + 1, calls = p->f->call_count;
    p->origin = mem_array(p->f->value_count, sizeof(*p->origin));
    p->uses.begin = mem_array(buffers, sizeof(*p->uses.begin));
    p->values.begin = mem_array(buffers, sizeof(*p->values.begin));
    p->fixed = mem_array(buffers, sizeof(*p->fixed));
    p->host = mem_array(buffers, sizeof(*p->host));
    p->at = mem_array(buffers, sizeof(*p->at));
    p->pitch = mem_array(buffers, sizeof(*p->pitch));
    p->set = mem_array(buffers, sizeof(*p->set));
    p->seen = mem_array(calls, sizeof(*p->seen));
    p->joined = mem_array(calls, sizeof(*p->joined));
    if (p->origin == NULL || p->uses.begin == NULL || p->values.begin == NULL || p->fixed == NULL ||
        p->host == NULL || p->at == NULL || p->pitch == NULL || p->set == NULL || p->seen == NULL ||
        p->joined == NULL)
        return LH_NO_MEMORY;
    for (uint32_t v = 1; v < p->f->value_count; v++)
        p->origin[v] = p->f->values[v].buffer;
    return uses_find(p);
}

static void packer_free(packer_t *p)
{
    mem_free(p->origin);
    mem_free(p->uses.begin);
    mem_free(p->uses.items);
    mem_free(p->values.begin);
    mem_free(p->values.items);
    mem_free(p->fixed);
    mem_free(p->host);
    mem_free(p->at);
    mem_free(p->pitch);
    mem_free(p->set);
    mem_free(p->seen);
    mem_free(p->joined);
    mem_free(p->groups);
}

lh_status_t packing_apply(flow_t *f, const packing_how_t *how)
{
    if (f->status != LH_OK) return f->status;
    packer_t p = {.f = f, .how = how, .buffers = f->buffer_count};
    lh_status_t status = packer_fill(&p);
    if (status == LH_OK) status = groups_find(&p);
    if (status == LH_OK) sets_make(&p);
    for (uint32_t count = PACKING_MOST; status == LH_OK && count >= 2; count--)
        for (uint32_t i = 0; i < p.group_count; i++)
            if (p.groups[i].count == count && !p.groups[i].member) set_apply(&p, i);
    if (status == LH_OK) calls_replace(&p);
    packer_free(&p);
    return status == LH_OK ? f->status : status;
}
