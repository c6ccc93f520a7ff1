/* script.c - makes a script: phases of the op and the algorithm, chunk after chunk. What follows a
 * sum trails it by some chunks, so that a link carries contributions while sums are made. */
#include <comm/script.h>

#include <base/digest.h>
#include <base/memory.h>
#include <comm/script_moves.h>
#include <comm/script_sums.h>
#include <comm/sums.h>
#include <longhaul/dtype.h>

static void emit_phases(builder_t *b, const phases_t *p)
{
    lh_assert(p->count < PHASES);
    uint32_t most_lag = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->rows[i].lag > most_lag) most_lag = p->rows[i].lag;
    for (uint64_t tick = 0; tick < (uint64_t)b->most_units + most_lag; tick++)
        for (uint32_t i = 0; !b->failed && i < p->count; i++) {
            const uint64_t chunk = tick - p->rows[i].lag;
            if (tick < p->rows[i].lag || chunk >= b->most_units) continue;
            for (uint32_t o = 0; o < b->g->size; o++) {
                const uint64_t unit = b->unit_begin[o] + chunk;
                if (unit >= b->unit_begin[o + 1]) continue;
                b->label = (uint32_t)unit * PHASES + i + 1;
                p->rows[i].emit(b, p->rows[i].hop, o, &b->units[unit]);
            }
        }
}

static lh_status_t emit(builder_t *b)
{
    phases_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    switch (b->how->op) {
    case COLL_BARRIER: moves_barrier(b); break;
    case COLL_ALL_REDUCE:
        if (b->in->at_once) {
            sums_at_once(b);
            break;
        }
        sums_phases(b, p);
        if (b->g->size > 1) p->lag += b->in->lag;
        moves_spread(b, p);
        break;
    case COLL_REDUCE_SCATTER:
    case COLL_REDUCE: sums_phases(b, p); break;
    case COLL_ALL_GATHER:
    case COLL_BROADCAST: moves_spread(b, p); break;
    default: moves_phases(b, p); break;
    }
    const bool fits = p->count < PHASES;
    if (fits) emit_phases(b, p);
    b->label = 0;
    mem_free(p);
    if (!fits)
        return fail(LH_UNSUPPORTED, "'%s': a ring of %u members is too long; take direct",
                    b->how->name, b->g->size);
    return LH_OK;
}

lh_status_t script_new(const script_how_t *how, script_t *out)
{
    builder_t b;
    *out = (script_t){0};
    lh_status_t status = build_open(&b, how, out);
    if (status == LH_OK) status = emit(&b);
    if (status == LH_OK) status = build_finish(&b);
    build_close(&b);
    if (status != LH_OK) script_free(out);
    return status;
}

void script_free(script_t *s)
{
    mem_free(s->steps);
    mem_free(s->next);
    mem_free(s->views);
    mem_free(s->runs);
    mem_free(s->lanes);
    mem_free(s->order);
    mem_free(s->first);
    *s = (script_t){0};
}

uint64_t script_bytes(const script_t *s)
{
    return s->step_count * (sizeof(*s->steps) + sizeof(*s->order) + sizeof(*s->first)) +
           s->next_count * sizeof(*s->next) + s->view_count * sizeof(*s->views) +
           s->run_count * sizeof(*s->runs);
}

/* ---- in a run ---- */

static char *view_base(const script_places_t *places, const script_view_t *v)
{
    switch (v->buffer) {
    case BUFFER_WHOLE: return places->whole + v->at;
    case BUFFER_CUT: return places->cut + v->at;
    case BUFFER_PEER_WHOLE: return places->peers[v->peer].whole + v->at;
    case BUFFER_PEER_CUT: return places->peers[v->peer].cut + v->at;
    default: return places->staging + v->at;
    }
}

/* Element of a buffer in which a run begins. */
static uint64_t run_begin(const script_places_t *places, uint32_t layout, const script_run_t *r)
{
    switch (layout) {
    case LAYOUT_WHOLE: return places->segments[r->segment].whole + r->offset;
    case LAYOUT_CUT: return places->segments[r->segment].cut + r->offset;
    case LAYOUT_PIECE: return r->piece;
    default: return r->packed;
    }
}

char *script_message(const script_t *s, const script_places_t *places, const script_step_t *step,
                     uint32_t *arena)
{
    const script_view_t *v = &step->to;
    lh_assert(step->kind < STEP_SUM && v->buffer <= BUFFER_STAGING);
    *arena = v->buffer == BUFFER_WHOLE ? places->whole_arena
             : v->buffer == BUFFER_CUT ? places->cut_arena
                                       : places->staging_arena;
    char *base = view_base(places, v);
    if (step->run_count == 0) return base;
    return base + run_begin(places, v->layout, &s->runs[step->run]) * lh_dtype_bytes(v->dtype);
}

void script_compute(const script_t *s, const script_places_t *places, const script_step_t *step,
                    sum_source_t *scratch)
{
    lh_assert(step->kind >= STEP_SUM && step->source + step->source_count <= s->view_count);
    const script_view_t *views = &s->views[step->source], *to = &step->to;
    const uint64_t wide = lh_dtype_bytes(to->dtype);
    char *target = view_base(places, to);
    for (uint32_t i = 0; i < step->run_count; i++) {
        const script_run_t *r = &s->runs[step->run + i];
        char *at = target + run_begin(places, to->layout, r) * wide;
        for (uint32_t k = 0; k < step->source_count; k++)
            scratch[k] = (sum_source_t){view_base(places, &views[k]) +
                                            run_begin(places, views[k].layout, r) *
                                                lh_dtype_bytes(views[k].dtype),
                                        views[k].dtype};
        if (step->kind == STEP_COPY)
            memcpy(at, scratch[0].data, r->count * lh_dtype_bytes(views->dtype));
        else
            sum_run(to->dtype, at, step->add, scratch, step->source_count, r->count);
    }
}

/* ---- one script for each shape ---- */

typedef struct script_entry {
    uint64_t *shape; /* [words] all that script_new looks at */
    uint64_t words;
    script_t script;
} script_entry_t;

enum { SHAPE_HEAD = 12 };

/* Without the places of segments, which a run binds. */
static lh_status_t shape_new(const script_how_t *in, uint64_t **out, uint64_t *words)
{
    const coll_how_t *how = in->how;
    const group_t *g = how->group;
    const bool pieces = how->pieces != NULL && how->op != COLL_BARRIER;
    uint64_t count = SHAPE_HEAD + 4 * (uint64_t)g->size;
    for (uint32_t m = 0; pieces && m < g->size; m++)
        count += how->pieces[m].count;
    uint64_t *w = mem_array(count, sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    const uint64_t head[SHAPE_HEAD] = {
        g->size, g->self, how->op, how->root, how->dtype, how->add, how->cut.address != NULL,
        in->lag, in->depth, in->algorithm, in->chunk_bytes,
        /* A slot for all of a member's, which is as long as the buffer. */
        in->at_once ? 1 + how->elements : 0};
    memcpy(w, head, sizeof(head));
    uint64_t at = SHAPE_HEAD;
    for (uint32_t m = 0; m < g->size; m++) {
        w[at++] = g->ranks[m];
        w[at++] = g->site_of[m];
        w[at++] = in->peers != NULL && in->peers[m].mapped;
        w[at++] = pieces ? how->pieces[m].count : 0;
        for (uint32_t i = 0; pieces && i < how->pieces[m].count; i++)
            w[at++] = how->pieces[m].segments[i].count;
    }
    lh_assert(at == count);
    *out = w;
    *words = count;
    return LH_OK;
}

static void entry_free(script_entry_t *e)
{
    if (e == NULL) return;
    script_free(&e->script);
    mem_free(e->shape);
    mem_free(e);
}

static lh_status_t entry_new(script_set_t *set, const script_how_t *how, script_entry_t **out)
{
    script_entry_t **list = mem_grow(set->list, &set->capacity, set->count + 1u, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    set->list = list;
    script_entry_t *e = mem_new(sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    lh_status_t status = shape_new(how, &e->shape, &e->words);
    if (status == LH_OK) status = script_new(how, &e->script);
    if (status != LH_OK) {
        entry_free(e);
        return status;
    }
    list[set->count++] = e;
    *out = e;
    return LH_OK;
}

lh_status_t script_set_take(script_set_t *set, const script_how_t *how, const script_t **out)
{
    uint64_t *shape, words;
    script_entry_t *entry = NULL;
    lh_status_t status = shape_new(how, &shape, &words);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < set->count && entry == NULL; i++)
        if (set->list[i]->words == words &&
            memcmp(set->list[i]->shape, shape, words * sizeof(*shape)) == 0)
            entry = set->list[i];
    mem_free(shape);
    if (entry == NULL) status = entry_new(set, how, &entry);
    if (status == LH_OK) *out = &entry->script;
    return status;
}

uint64_t script_set_bytes(const script_set_t *set)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < set->count; i++)
        bytes += script_bytes(&set->list[i]->script);
    return bytes;
}

void script_set_free(script_set_t *set)
{
    for (uint32_t i = 0; i < set->count; i++)
        entry_free(set->list[i]);
    mem_free(set->list);
    *set = (script_set_t){0};
}

uint64_t script_lane_digest(const script_t *s, uint32_t peer, bool sending, uint64_t seed)
{
    uint64_t digest = seed;
    for (uint32_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i].peer != peer || s->lanes[i].sending != sending) continue;
        for (uint32_t k = 0; k < s->lanes[i].count; k++) {
            const script_step_t *step = &s->steps[s->order[s->lanes[i].first + k]];
            const uint64_t row[3] = {digest, step->bytes, step->tag};
            digest = xxh3(row, sizeof(row));
        }
    }
    return digest;
}

bool script_needs_link(const coll_how_t *how, uint32_t a, uint32_t b)
{
    lh_assert(a < how->group->size && b < how->group->size);
    const group_t *g = how->group;
    if (a == b) return false;
    switch (how->op) {
    case COLL_SEND:
    case COLL_RECV: return a == how->root || b == how->root;
    case COLL_SCATTER:
    case COLL_GATHER: return a == how->root || b == how->root;
    case COLL_ALL_TO_ALL: return true;
    default: break;
    }
    if (g->site_of[a] == g->site_of[b]) return true;
    if (how->op == COLL_BARRIER)
        return g->site_begin[g->site_of[a]] == a && g->site_begin[g->site_of[b]] == b;
    return group_leader(g, g->site_of[b], a) == b || group_leader(g, g->site_of[a], b) == a;
}
