/* script_bench.h - scripts of all ranks of a group, carried out in one process in random order: every
 * message has its match, nothing waits for ever, no memory is touched while a message holds it, and
 * the bits are those of the canonical sum. */
#ifndef SCRIPT_BENCH_H
#define SCRIPT_BENCH_H

#include <comm/collective.h>
#include <comm/quantize.h>
#include <comm/script_make.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <longhaul/dtype.h>

#include "canonical_sum.h"

#include <cmocka.h>

enum { MOST_RANKS = 8, MOST_SEGMENTS = 16 };

typedef struct spec {
    const char *sites; /* a letter a rank */
    uint32_t op, algorithm, root;
    lh_dtype_t dtype, border;
    uint32_t between, middle;
    uint64_t elements, chunk;
    bool cut, add, scattered, mapped, at_once, on_device;
    bool whole_numbers; /* sums of them are the same in any order */
} spec_t;

typedef struct message {
    uint32_t step;
    char *copy; /* of the bytes when it was posted */
    bool sent, received;
} message_t;

typedef struct posted { /* one lane of one rank */
    uint32_t cursor;    /* posted so far    */
    message_t *messages;
} posted_t;

typedef struct rank {
    world_t *world;
    group_t *group;
    coll_how_t how;
    script_t script;
    script_places_t bound;
    script_peer_t peers[MOST_RANKS];
    char *whole, *cut, *before_whole, *before_cut, *staging;
    float *errors, *expected_errors; /* border I8; before the run, and after it */
    uint32_t *left;
    bool *done;
    uint32_t done_count;
    posted_t *lanes;
    sum_source_t scratch[MOST_RANKS];
} rank_t;

typedef struct bench {
    spec_t spec;
    uint32_t size;
    rank_t ranks[MOST_RANKS];
    coll_segment_t segments[MOST_RANKS][MOST_SEGMENTS];
    coll_piece_t pieces[MOST_RANKS], owned[MOST_RANKS];
    coll_segment_t all[MOST_RANKS * MOST_SEGMENTS]; /* those of `owned` in a row */
    float *packed;                                  /* [elements] the sum, where the border is I8 */
    uint64_t cut_elements;
    uint64_t random;
    uint32_t lag;
    coll_device_t device; /* nothing is told to it */
} bench_t;

static inline uint64_t draw(bench_t *b, uint64_t below)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (b->random >> 33) % below;
}

/* Segments dealt out in turn, of odd lengths, with cuts in another order than wholes. */
static inline void deal_pieces(bench_t *b)
{
    const spec_t *s = &b->spec;
    uint32_t counts[MOST_RANKS] = {0};
    uint64_t held[MOST_RANKS] = {0};
    const uint64_t part = s->scattered ? s->elements / (b->size * 5) + 1
                                       : (s->elements + b->size - 1) / b->size;
    uint32_t owner = 0;
    for (uint64_t at = 0; at < s->elements; owner = (owner + 1) % b->size) {
        uint64_t count = s->scattered ? 1 + draw(b, 2 * part) : part;
        if (count > s->elements - at) count = s->elements - at;
        if (counts[owner] == MOST_SEGMENTS - 1) count = s->elements - at;
        assert_true(counts[owner] < MOST_SEGMENTS);
        b->segments[owner][counts[owner]++] = (coll_segment_t){at, count, held[owner]};
        held[owner] += count + (s->scattered ? 3 : 0);
        at += count;
    }
    for (uint32_t r = 0; r < b->size; r++) {
        b->pieces[r] = (coll_piece_t){b->segments[r], counts[r]};
        if (held[r] > b->cut_elements) b->cut_elements = held[r];
    }
}

/* Root alone owns all where the op says so. */
static inline void own_pieces(bench_t *b)
{
    const bool rooted = b->spec.op == COLL_BROADCAST || b->spec.op == COLL_REDUCE;
    memcpy(b->owned, b->pieces, sizeof(b->owned));
    if (rooted) {
        memset(b->owned, 0, sizeof(b->owned));
        b->segments[0][0] = (coll_segment_t){0, b->spec.elements, 0};
        b->owned[b->spec.root] = (coll_piece_t){b->segments[0], b->spec.elements > 0};
    }
    uint32_t count = 0;
    for (uint32_t r = 0; r < b->size; r++)
        for (uint32_t i = 0; i < b->owned[r].count; i++)
            b->all[count++] = b->owned[r].segments[i];
}

static inline void fill_random(bench_t *b, char *data, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        if (b->spec.whole_numbers) {
            test_store(b->spec.dtype, data, i, (float)draw(b, 16));
            continue;
        }
        const float mantissa = (float)draw(b, 1u << 24) / (float)(1u << 24) - 0.5f;
        test_store(b->spec.dtype, data, i, mantissa * (float)(1u << draw(b, 16)));
    }
}

static inline uint64_t cut_room(const bench_t *b)
{
    return b->spec.op == COLL_ALL_TO_ALL ? b->spec.elements * b->size + 64 : b->cut_elements + 64;
}

static inline void open_rank(bench_t *b, uint32_t r)
{
    rank_t *k = &b->ranks[r];
    const uint64_t item = lh_dtype_bytes(b->spec.dtype);
    assert_int_equal(world_new(r, b->size, &k->world), LH_OK);
    for (uint32_t i = 0; i < b->size; i++)
        (void)snprintf(k->world->ranks[i].site_name, WORLD_SITE_NAME, "%c", b->spec.sites[i]);
    world_number(k->world);
    assert_int_equal(world_group_new(k->world, LH_GROUP_DATA, &k->group), LH_OK);
    k->whole = mem_new(b->spec.elements * item + 64);
    k->before_whole = mem_new(b->spec.elements * item + 64);
    k->cut = mem_new(cut_room(b) * item);
    k->before_cut = mem_new(cut_room(b) * item);
    fill_random(b, k->whole, b->spec.elements);
    fill_random(b, k->cut, cut_room(b));
    memcpy(k->before_whole, k->whole, b->spec.elements * item);
    memcpy(k->before_cut, k->cut, cut_room(b) * item);
}

static inline bool in_site(const bench_t *b, uint32_t x, uint32_t y)
{
    const group_t *g = b->ranks[0].group;
    return g->site_of[x] == g->site_of[y];
}

/* Members are numbered as ranks here: the letters ascend. */
static inline void make_script(bench_t *b, uint32_t r)
{
    rank_t *k = &b->ranks[r];
    for (uint32_t p = 0; p < b->size; p++)
        k->peers[p] = (script_peer_t){.whole = b->ranks[p].whole,
                                      .cut = b->ranks[p].cut,
                                      .mapped = b->spec.mapped && in_site(b, p, r)};
    k->how = (coll_how_t){.name = "test",
                          .op = b->spec.op,
                          .group = k->group,
                          .dtype = b->spec.dtype,
                          .border = b->spec.border,
                          .root = b->spec.root,
                          .elements = b->spec.elements,
                          .pieces = b->owned,
                          .whole = {k->whole, 0},
                          .cut = {b->spec.cut ? k->cut : NULL, 1},
                          .add = b->spec.add,
                          .device = b->spec.on_device ? &b->device : NULL};
    const script_how_t how = {.how = &k->how,
                              .algorithm = b->spec.algorithm,
                              .between = b->spec.between,
                              .middle = b->spec.middle,
                              .chunk_bytes = b->spec.chunk,
                              .lag = b->lag,
                              .depth = 1 + (uint32_t)draw(b, 3),
                              .window = draw(b, 2) * draw(b, 2000),
                              .at_once = b->spec.at_once,
                              .peers = k->peers};
    assert_int_equal(script_new(&how, &k->script), LH_OK);
    for (uint32_t i = 0; b->spec.on_device && i < k->script.step_count; i++)
        assert_true(k->script.steps[i].kind < STEP_SUM); /* the processor can't touch it */
    k->staging = mem_new(k->script.staging_bytes);
    k->bound = (script_places_t){.whole = k->whole,
                                 .cut = b->spec.cut ? k->cut : NULL,
                                 .staging = k->staging,
                                 .peers = k->peers,
                                 .segments = b->all};
    k->errors = mem_new(k->script.error_elements * sizeof(float));
    k->expected_errors = mem_new(k->script.error_elements * sizeof(float));
    for (uint64_t i = 0; i < k->script.error_elements; i++)
        k->errors[i] = (float)draw(b, 1000) / 500 - 1;
    k->bound.errors = k->errors;
    k->left = mem_array(k->script.step_count, sizeof(*k->left));
    k->done = mem_array(k->script.step_count, sizeof(*k->done));
    k->lanes = mem_array(k->script.lane_count, sizeof(*k->lanes));
    for (uint32_t i = 0; i < k->script.step_count; i++)
        k->left[i] = k->script.steps[i].needs;
    for (uint32_t i = 0; i < k->script.lane_count; i++)
        k->lanes[i].messages = mem_array(k->script.lanes[i].count, sizeof(message_t));
    assert_true(k->script.most_sources <= MOST_RANKS);
}

static inline void finish_step(rank_t *k, uint32_t id)
{
    const script_step_t *step = &k->script.steps[id];
    assert_false(k->done[id]);
    k->done[id] = true;
    k->done_count++;
    for (uint32_t i = 0; i < step->next_count; i++) {
        assert_true(k->left[k->script.next[step->next + i]] > 0);
        k->left[k->script.next[step->next + i]]--;
    }
}

static inline char *message_of(const rank_t *k, const script_step_t *step)
{
    uint32_t arena;
    return script_message(&k->script, &k->bound, step, &arena);
}

static inline bool post(rank_t *k, uint32_t lane)
{
    const script_lane_t *l = &k->script.lanes[lane];
    posted_t *p = &k->lanes[lane];
    if (p->cursor == l->count) return false;
    const uint32_t id = k->script.order[l->first + p->cursor];
    const script_step_t *step = &k->script.steps[id];
    if (k->left[id] != 0) return false;
    message_t *m = &p->messages[p->cursor++];
    m->step = id;
    m->copy = mem_new(step->bytes);
    if (l->sending)
        memcpy(m->copy, message_of(k, step), step->bytes);
    else if (step->bytes > 0)
        memset(message_of(k, step), 0xa5, step->bytes); /* the transport's own from now on */
    if (!l->sending) memset(m->copy, 0xa5, step->bytes);
    return true;
}

static inline int find_lane(const rank_t *k, uint32_t peer, bool sending)
{
    for (uint32_t i = 0; i < k->script.lane_count; i++)
        if (k->script.lanes[i].peer == peer && k->script.lanes[i].sending == sending) return (int)i;
    return -1;
}

static inline bool deliver(bench_t *b, uint32_t r, uint32_t lane)
{
    rank_t *k = &b->ranks[r];
    const script_lane_t *l = &k->script.lanes[lane];
    if (l->sending) return false;
    rank_t *from = &b->ranks[l->peer];
    const int other = find_lane(from, r, true);
    assert_true(other >= 0);
    const uint32_t total = from->script.lanes[other].count;
    assert_int_equal(total, l->count);
    for (uint32_t i = 0; i < k->lanes[lane].cursor && i < from->lanes[other].cursor; i++) {
        message_t *in = &k->lanes[lane].messages[i], *out = &from->lanes[other].messages[i];
        if (in->received) continue;
        const script_step_t *to = &k->script.steps[in->step];
        const script_step_t *source = &from->script.steps[out->step];
        assert_int_equal(to->bytes, source->bytes);
        assert_int_equal(to->tag, source->tag);
        if (to->bytes > 0) {
            assert_memory_equal(message_of(from, source), out->copy, to->bytes);
            assert_memory_equal(message_of(k, to), in->copy, to->bytes);
            memcpy(message_of(k, to), message_of(from, source), to->bytes);
        }
        in->received = out->sent = true;
        finish_step(k, in->step);
        finish_step(from, out->step);
        return true;
    }
    return false;
}

static inline bool compute(bench_t *b, uint32_t r)
{
    rank_t *k = &b->ranks[r];
    const uint32_t count = k->script.step_count;
    const uint32_t start = count == 0 ? 0 : (uint32_t)draw(b, count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = (start + i) % count;
        const script_step_t *step = &k->script.steps[id];
        if (step->kind < STEP_SUM || k->done[id] || k->left[id] != 0) continue;
        script_compute(&k->script, &k->bound, step, k->scratch);
        finish_step(k, id);
        return true;
    }
    return false;
}

static inline bool act(bench_t *b, uint32_t r)
{
    rank_t *k = &b->ranks[r];
    const uint32_t choice = (uint32_t)draw(b, 3);
    if (choice == 0 || k->script.lane_count == 0) return compute(b, r);
    const uint32_t lane = (uint32_t)draw(b, k->script.lane_count);
    return choice == 1 ? post(k, lane) : deliver(b, r, lane);
}

/* All that can be done, when chance found nothing. */
static inline bool act_any(bench_t *b)
{
    for (uint32_t r = 0; r < b->size; r++) {
        if (compute(b, r)) return true;
        for (uint32_t i = 0; i < b->ranks[r].script.lane_count; i++)
            if (post(&b->ranks[r], i) || deliver(b, r, i)) return true;
    }
    return false;
}

static inline void play(bench_t *b)
{
    uint32_t idle = 0;
    for (;;) {
        bool done = true;
        for (uint32_t r = 0; r < b->size; r++)
            done = done && b->ranks[r].done_count == b->ranks[r].script.step_count;
        if (done) return;
        idle = act(b, (uint32_t)draw(b, b->size)) ? 0 : idle + 1;
        if (idle > 20) assert_true(act_any(b)); /* else they wait for each other for ever */
    }
}

static inline uint32_t owner_of(const bench_t *b, uint64_t at, uint64_t *cut, uint64_t *piece)
{
    for (uint32_t o = 0; o < b->size; o++) {
        *piece = 0;
        for (uint32_t i = 0; i < b->owned[o].count; i++) {
            const coll_segment_t *s = &b->owned[o].segments[i];
            *cut = s->cut + at - s->whole;
            if (at >= s->whole && at < s->whole + s->count) {
                *piece += at - s->whole;
                return o;
            }
            *piece += s->count;
        }
    }
    assert_true(false);
    return 0;
}

typedef struct place {
    char *data, *before;
    uint64_t at;
} place_t;

static inline place_t place_of(bench_t *b, uint32_t member, bool cut, uint64_t whole_at,
                               uint64_t cut_at)
{
    rank_t *k = &b->ranks[member];
    if (cut && b->spec.cut) return (place_t){k->cut, k->before_cut, cut_at};
    return (place_t){k->whole, k->before_whole, whole_at};
}

static inline void expect(bench_t *b, uint32_t member, const place_t *p, float value)
{
    char bytes[4] = {0};
    const uint64_t item = lh_dtype_bytes(b->spec.dtype);
    test_store(b->spec.dtype, bytes, 0, value);
    if (memcmp(p->data + p->at * item, bytes, item) != 0)
        fail_msg("%s %s, between %u, sites %s, border %s, %llu elements, chunk %llu, cut %d, "
                 "scattered %d, "
                 "mapped %d: member %u, element %llu: %g, expected %g",
                 coll_op_names[b->spec.op], coll_algorithm_names[b->spec.algorithm],
                 b->spec.between, b->spec.sites, lh_dtype_name(b->spec.border),
                 (unsigned long long)b->spec.elements, (unsigned long long)b->spec.chunk,
                 b->spec.cut, b->spec.scattered, b->spec.mapped, member, (unsigned long long)p->at,
                 (double)test_load(b->spec.dtype, p->data, p->at), (double)value);
}

/* One block, of a segment at `at`, as every site packs it: written down once more, with the errors
 * before and after. error[site]: where its leader's errors of the block begin. */
static inline void pack_block(bench_t *b, uint32_t owner, uint64_t at, uint32_t count,
                              const uint64_t *error, void *const *inputs)
{
    const group_t *g = b->ranks[0].group;
    for (uint32_t k = 1; k <= g->sites; k++) {
        const uint32_t site = (g->site_of[owner] + k) % g->sites;
        rank_t *leader = &b->ranks[world_group_leader(g, site, owner)];
        float values[QUANTIZE_BLOCK], most = 0;
        for (uint32_t i = 0; i < count; i++) {
            values[i] = canonical_part(g, b->spec.dtype, inputs, owner, site, at + i) +
                        leader->errors[error[site] + i];
            most = fmaxf(most, fabsf(values[i]));
        }
        const float scale = most / 127;
        for (uint32_t i = 0; i < count; i++) {
            const float whole = most > 0 ? rintf(values[i] * (127 / most)) + 0.0f : 0; /* no -0 */
            const float sent = whole * scale;
            assert_true(fabsf(whole) <= 127);
            assert_true(fabs((double)values[i] - (double)sent) <= (double)scale * 0.50001);
            leader->expected_errors[error[site] + i] = values[i] - sent;
            b->packed[at + i] = k == 1 ? sent : b->packed[at + i] + sent;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        b->packed[at + i] = test_round(LH_DTYPE_BF16, b->packed[at + i]);
}

/* The sum with a border of I8: blocks begin with a segment. Before the run, whose errors are not
 * there yet. */
static inline void pack_all(bench_t *b)
{
    const group_t *g = b->ranks[0].group;
    uint64_t held[MOST_RANKS] = {0}, error[MOST_RANKS];
    void *inputs[MOST_RANKS];
    for (uint32_t r = 0; r < b->size; r++)
        inputs[r] = b->ranks[r].before_whole;
    for (uint32_t o = 0; o < b->size; o++)
        for (uint32_t i = 0; i < b->owned[o].count; i++) {
            const coll_segment_t *s = &b->owned[o].segments[i];
            for (uint64_t done = 0; done < s->count; done += QUANTIZE_BLOCK) {
                const uint64_t left = s->count - done;
                const uint32_t count = left < QUANTIZE_BLOCK ? (uint32_t)left : QUANTIZE_BLOCK;
                for (uint32_t site = 0; site < g->sites; site++) {
                    const uint32_t leader = world_group_leader(g, site, o);
                    error[site] = held[leader];
                    held[leader] += count;
                }
                pack_block(b, o, s->whole + done, count, error, inputs);
            }
        }
    for (uint32_t r = 0; r < b->size; r++)
        assert_int_equal(b->ranks[r].script.error_elements, held[r]);
}

static inline bool packs(const bench_t *b)
{
    return b->spec.border == LH_DTYPE_I8 && coll_op_sums(b->spec.op) &&
           b->ranks[0].group->sites > 1;
}

static inline void check_element(bench_t *b, uint64_t at)
{
    void *inputs[MOST_RANKS];
    uint64_t cut = 0, piece = 0;
    const spec_t *s = &b->spec;
    for (uint32_t r = 0; r < b->size; r++)
        inputs[r] = b->ranks[r].before_whole;
    const uint32_t owner = owner_of(b, at, &cut, &piece);
    const float sum = packs(b) ? b->packed[at]
                               : canonical_sum(b->ranks[0].group, s->dtype, s->border, inputs,
                                               owner, at);
    const bool pieces = s->op != COLL_REDUCE && s->op != COLL_BROADCAST;
    const place_t held = place_of(b, owner, pieces, at, cut);
    const float own = test_load(s->dtype, held.before, held.at);
    for (uint32_t m = 0; m < b->size; m++) {
        const place_t whole = place_of(b, m, false, at, 0);
        switch (s->op) {
        case COLL_ALL_REDUCE: expect(b, m, &whole, sum); break;
        case COLL_ALL_GATHER:
            if (s->on_device && s->cut && m == owner) /* its device copies that */
                expect(b, m, &whole, test_load(s->dtype, whole.before, at));
            else
                expect(b, m, &whole, own);
            break;
        case COLL_BROADCAST:
            expect(b, m, &whole, test_load(s->dtype, b->ranks[s->root].before_whole, at));
            break;
        case COLL_REDUCE:
            if (m == s->root) expect(b, m, &whole, sum);
            break;
        case COLL_REDUCE_SCATTER:
            if (m == owner) expect(b, m, &held, s->add ? own + sum : sum);
            break;
        case COLL_SCATTER:
            if (m == owner)
                expect(b, m, &held, test_load(s->dtype, b->ranks[s->root].before_whole, at));
            break;
        case COLL_GATHER:
            if (m == s->root) expect(b, m, &whole, own);
            break;
        case COLL_ALL_TO_ALL: {
            uint64_t count = 0;
            for (uint32_t i = 0; i < b->owned[owner].count; i++)
                count += b->owned[owner].segments[i].count;
            const place_t got = {b->ranks[owner].cut, NULL, m * count + piece};
            expect(b, owner, &got, test_load(s->dtype, b->ranks[m].before_whole, at));
            break;
        }
        default: break;
        }
    }
}

static inline void close_rank(rank_t *k)
{
    for (uint32_t i = 0; i < k->script.lane_count; i++) {
        for (uint32_t j = 0; j < k->script.lanes[i].count; j++)
            mem_free(k->lanes[i].messages[j].copy);
        mem_free(k->lanes[i].messages);
    }
    mem_free(k->lanes);
    mem_free(k->left);
    mem_free(k->done);
    mem_free(k->whole);
    mem_free(k->cut);
    mem_free(k->before_whole);
    mem_free(k->before_cut);
    mem_free(k->staging);
    mem_free(k->errors);
    mem_free(k->expected_errors);
    script_free(&k->script);
    world_group_free(k->group);
    world_free(k->world);
}

static inline void try_spec(const spec_t *spec)
{
    bench_t *b = mem_new(sizeof(*b));
    b->spec = *spec;
    b->size = (uint32_t)strlen(spec->sites);
    b->random = spec->elements * 31 + spec->chunk * 7 + spec->op + b->size;
    b->lag = (uint32_t)draw(b, 4);
    deal_pieces(b);
    own_pieces(b);
    for (uint32_t r = 0; r < b->size; r++)
        open_rank(b, r);
    for (uint32_t r = 0; r < b->size; r++)
        make_script(b, r);
    for (uint32_t a = 0; a < b->size; a++)
        for (uint32_t c = 0; c < b->size; c++) {
            assert_true(script_lane_digest(&b->ranks[a].script, c, true, false, 5) ==
                        script_lane_digest(&b->ranks[c].script, a, false, false, 5));
            if (find_lane(&b->ranks[a], c, true) >= 0)
                assert_true(script_needs_link(&b->ranks[a].how, a, c));
        }
    b->packed = mem_array(spec->elements + 1, sizeof(float));
    if (packs(b)) pack_all(b);
    play(b);
    for (uint64_t i = 0; i < spec->elements; i++)
        check_element(b, i);
    for (uint32_t r = 0; r < b->size; r++)
        assert_memory_equal(b->ranks[r].errors, b->ranks[r].expected_errors,
                            b->ranks[r].script.error_elements * sizeof(float));
    mem_free(b->packed);
    for (uint32_t r = 0; r < b->size; r++)
        close_rank(&b->ranks[r]);
    mem_free(b);
}

#endif
