/* script.c - makes a script: phases of the op and the algorithm, chunk after chunk. What follows a
 * sum trails it by some chunks, so that a link carries contributions while sums are made. */
#include <comm/script.h>

#include <base/digest.h>
#include <base/memory.h>
#include <comm/script_build.h>
#include <comm/sums.h>
#include <tensor/dtype.h>

static void emit_phases(builder_t *b, const phases_t *p)
{
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
        spread_phases(b, p);
        break;
    case COLL_REDUCE_SCATTER:
    case COLL_REDUCE: sums_phases(b, p); break;
    case COLL_ALL_GATHER:
    case COLL_BROADCAST: spread_phases(b, p); break;
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
    *s = (script_t){0};
}

static void place(script_view_t *v, char *staging, uint32_t arena)
{
    if (!v->staged) return;
    v->base = staging + (uintptr_t)v->base;
    v->arena = arena;
    v->staged = false;
}

void script_place(script_t *s, char *staging, uint32_t arena)
{
    for (uint32_t i = 0; i < s->step_count; i++)
        place(&s->steps[i].to, staging, arena);
    for (uint32_t i = 0; i < s->view_count; i++)
        place(&s->views[i], staging, arena);
}

static char *at(const script_view_t *v, const script_run_t *r)
{
    const uint64_t offset[] = {[LAYOUT_WHOLE] = r->whole,
                               [LAYOUT_CUT] = r->cut,
                               [LAYOUT_PIECE] = r->piece,
                               [LAYOUT_PACKED] = r->packed};
    return v->base + offset[v->layout] * dtype_bytes(v->dtype);
}

void script_compute(const script_t *s, const script_step_t *step, sum_source_t *scratch)
{
    const script_view_t *views = &s->views[step->source];
    for (uint32_t i = 0; i < step->run_count; i++) {
        const script_run_t *r = &s->runs[step->run + i];
        if (step->kind == STEP_COPY) {
            memcpy(at(&step->to, r), at(views, r), r->count * dtype_bytes(views->dtype));
            continue;
        }
        for (uint32_t k = 0; k < step->source_count; k++)
            scratch[k] = (sum_source_t){at(&views[k], r), views[k].dtype};
        sum_run(step->to.dtype, at(&step->to, r), step->add, scratch, step->source_count, r->count);
    }
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
    return group_stand_in(g, g->site_of[b], a) == b || group_stand_in(g, g->site_of[a], b) == a;
}
