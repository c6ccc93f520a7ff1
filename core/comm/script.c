/* script.c - what can be done with a script once it is made: its steps are carried out, counted,
 * digested, and shared by all that ask for the same shape. script_make.c makes it.
 *
 * The sums are here too: one loop over sources, compiled for three instruction sets. It is plain
 * addition in a fixed order: the elements of a vector never meet, so its width does not show in the
 * bits. The compiler's vectors are used and no intrinsics, so that the three differ by their target
 * alone. */
#include <comm/script.h>

#include <base/digest.h>
#include <base/memory.h>
#include <comm/quantize.h>
#include <longhaul/dtype.h>

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

void script_forget(script_t *s)
{
    script_t kept = *s;
    kept.steps = NULL;
    kept.next = kept.order = kept.first = NULL;
    kept.views = NULL;
    kept.runs = NULL;
    s->lanes = NULL;
    script_free(s);
    *s = kept;
}

uint64_t script_bytes(const script_t *s)
{
    return s->step_count * (sizeof(*s->steps) + sizeof(*s->order) + sizeof(*s->first)) +
           s->next_count * sizeof(*s->next) + s->view_count * sizeof(*s->views) +
           s->run_count * sizeof(*s->runs);
}

/* ---- sums ---- */

/* One vector is 64 bytes whatever the target: the compiler splits it where registers are shorter. A
 * block is what one turn of the loop adds: 64 elements. */
enum { LANES = 16, UNROLL = 4, BLOCK = LANES * UNROLL };

/* "loose": of data that is aligned to its element only, and may be of another declared type. */
typedef float floats_t __attribute__((vector_size(64)));
typedef float loose_floats_t __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words_t __attribute__((vector_size(64)));
typedef uint16_t halves_t __attribute__((vector_size(32)));
typedef uint16_t loose_halves_t __attribute__((vector_size(32), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* 16 elements from element `at` on, widened to F32: a BF16 is the upper half of a float. Vectors go
 * through pointers: as arguments they would change the ABI with the target. */
INLINE void load(floats_t *out, lh_dtype_t dtype, const char *data, uint64_t at)
{
    if (dtype == LH_DTYPE_F32) {
        *out = *(const loose_floats_t *)(const void *)(data + at * 4);
        return;
    }
    const halves_t halves = *(const loose_halves_t *)(const void *)(data + at * 2);
    *out = (floats_t)(__builtin_convertvector(halves, words_t) << 16);
}

/* The same the other way. As lh_f32_to_bf16: to nearest, ties to even, a NaN stays one. */
INLINE void narrow(words_t *out, const floats_t *value)
{
    const words_t bits = (words_t)*value;
    const words_t high = bits >> 16;
    const words_t rounded = (bits + 0x7fffu + (high & 1u)) >> 16;
    const words_t nan = (words_t)((bits & 0x7fffffffu) > 0x7f800000u);
    const words_t quiet = high | ((words_t)((high & 0x7fu) == 0u) & 0x40u);
    *out = (nan & quiet) | (~nan & rounded);
}

INLINE void store(lh_dtype_t dtype, char *data, uint64_t at, const floats_t *value)
{
    if (dtype == LH_DTYPE_F32) {
        *(loose_floats_t *)(void *)(data + at * 4) = *value;
        return;
    }
    words_t chosen;
    narrow(&chosen, value);
    *(loose_halves_t *)(void *)(data + at * 2) = __builtin_convertvector(chosen, halves_t);
}

/* The sum of a block stays in registers over all sources: memory is read once a source and written
 * once. With add, what was in `to` comes first and the sum is added to it, so that gradients of
 * micro-batches are added in the order in which they were made. */
INLINE void sum_block(const sum_target_t *target, const sum_source_t *sources, uint32_t count,
                      uint64_t at)
{
    const lh_dtype_t dtype = target->dtype;
    char *to = target->data;
    floats_t sum[UNROLL], next[UNROLL];
    for (int k = 0; k < UNROLL; k++)
        load(&sum[k], sources[0].dtype, sources[0].data, at + (uint64_t)(k * LANES));
    for (uint32_t s = 1; s < count; s++)
        for (int k = 0; k < UNROLL; k++) {
            load(&next[k], sources[s].dtype, sources[s].data, at + (uint64_t)(k * LANES));
            sum[k] += next[k];
        }
    for (int k = 0; k < UNROLL; k++) {
        if (target->rounded != 0) {
            words_t half;
            narrow(&half, &sum[k]);
            sum[k] = (floats_t)(half << 16);
        }
        if (target->add) {
            load(&next[k], dtype, to, at + (uint64_t)(k * LANES));
            sum[k] = next[k] + sum[k];
        }
        store(dtype, to, at + (uint64_t)(k * LANES), &sum[k]);
    }
}

/* Two sources of F32 to F32, as each hop of a ring adds them: no question of dtypes in the loop. */
INLINE uint64_t sum_pairs(float *to, const float *a, const float *b, uint64_t elements)
{
    uint64_t at = 0;
    for (; at + BLOCK <= elements; at += BLOCK) {
        loose_floats_t *t = (loose_floats_t *)(void *)(to + at);
        const loose_floats_t *x = (const loose_floats_t *)(const void *)(a + at);
        const loose_floats_t *y = (const loose_floats_t *)(const void *)(b + at);
        const floats_t s0 = x[0] + y[0], s1 = x[1] + y[1], s2 = x[2] + y[2], s3 = x[3] + y[3];
        t[0] = s0;
        t[1] = s1;
        t[2] = s2;
        t[3] = s3;
    }
    return at;
}

INLINE uint64_t sum_blocks(const sum_target_t *to, const sum_source_t *sources, uint32_t count,
                           uint64_t elements)
{
    if (to->dtype == LH_DTYPE_F32 && !to->add && to->rounded == 0 && count == 2 &&
        sources[0].dtype == LH_DTYPE_F32 && sources[1].dtype == LH_DTYPE_F32)
        return sum_pairs(to->data, sources[0].data, sources[1].data, elements);
    uint64_t at = 0;
    for (; at + BLOCK <= elements; at += BLOCK)
        sum_block(to, sources, count, at);
    return at;
}

/* Returns how many elements it has done: whole blocks. script_sum does what is left, one by one. */
typedef uint64_t blocks_fn(const sum_target_t *to, const sum_source_t *sources, uint32_t count,
                           uint64_t elements);

static uint64_t blocks_plain(const sum_target_t *to, const sum_source_t *sources, uint32_t count,
                             uint64_t elements)
{
    return sum_blocks(to, sources, count, elements);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t blocks_avx2(const sum_target_t *to,
                                                            const sum_source_t *sources,
                                                            uint32_t count, uint64_t elements)
{
    return sum_blocks(to, sources, count, elements);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static uint64_t blocks_avx512(
    const sum_target_t *to, const sum_source_t *sources, uint32_t count, uint64_t elements)
{
    return sum_blocks(to, sources, count, elements);
}
#endif

/* Read by every sum, written by tests before they start threads. */
static uint32_t highest = 2;

static blocks_fn *best_blocks(void)
{
#if defined(__x86_64__)
    if (highest >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return blocks_avx512;
    if (highest >= 1 && __builtin_cpu_supports("avx2")) return blocks_avx2;
#endif
    return blocks_plain;
}

void script_sum_level(uint32_t level)
{
    highest = level;
}

/* For the elements behind the last whole block; rounds and widens as load and store do. */
static float element_value(lh_dtype_t dtype, const void *data, uint64_t at)
{
    return dtype == LH_DTYPE_F32 ? ((const float *)data)[at]
                                 : lh_bf16_to_f32(((const uint16_t *)data)[at]);
}

/* `count` elements of a source from `at` on, a whole number of blocks from its start, as floats or
 * halves: where they lie, or unpacked into room [QUANTIZE_BLOCK]. */
static sum_source_t source_at(const sum_source_t *s, uint64_t at, uint32_t count, float *room)
{
    if (s->dtype != LH_DTYPE_I8)
        return (sum_source_t){(const char *)s->data + at * lh_dtype_bytes(s->dtype), s->dtype};
    quantize_unpack((const char *)s->data + quantize_offset(at), count, room);
    return (sum_source_t){room, LH_DTYPE_F32};
}

/* A sum with blocks among its sources, or that is packed in blocks: block after block, through a sum
 * of the block in F32. */
static void sum_packed(const sum_target_t *to, const sum_source_t *sources, uint32_t count,
                       uint64_t elements)
{
    _Alignas(64) float sum[QUANTIZE_BLOCK], room[QUANTIZE_BLOCK];
    const sum_target_t inner = {.data = sum, .dtype = LH_DTYPE_F32};
    for (uint64_t at = 0; at < elements; at += QUANTIZE_BLOCK) {
        const uint64_t left = elements - at;
        const uint32_t n = left < QUANTIZE_BLOCK ? (uint32_t)left : QUANTIZE_BLOCK;
        for (uint32_t s = 0; s < count; s++) {
            const sum_source_t pair[] = {{sum, LH_DTYPE_F32}, source_at(&sources[s], at, n, room)};
            script_sum(&inner, s == 0 ? &pair[1] : pair, s == 0 ? 1 : 2, n);
        }
        if (to->dtype == LH_DTYPE_I8) {
            quantize_pack(sum, to->errors + at, n, (char *)to->data + quantize_offset(at));
            continue;
        }
        sum_target_t outer = *to;
        outer.data = (char *)to->data + at * lh_dtype_bytes(to->dtype);
        script_sum(&outer, &(sum_source_t){sum, LH_DTYPE_F32}, 1, n);
    }
}

static bool is_packed(const sum_target_t *to, const sum_source_t *sources, uint32_t count)
{
    bool packed = to->dtype == LH_DTYPE_I8;
    for (uint32_t s = 0; s < count && !packed; s++)
        packed = sources[s].dtype == LH_DTYPE_I8;
    return packed;
}

void script_sum(const sum_target_t *to, const sum_source_t *sources, uint32_t count,
                uint64_t elements)
{
    lh_assert(count > 0);
    if (is_packed(to, sources, count)) {
        sum_packed(to, sources, count, elements);
        return;
    }
    lh_assert(to->dtype == LH_DTYPE_F32 || to->dtype == LH_DTYPE_BF16);
    lh_assert(to->rounded == 0 || to->rounded == LH_DTYPE_BF16);
    uint64_t at = best_blocks()(to, sources, count, elements);
    for (; at < elements; at++) {
        float sum = element_value(sources[0].dtype, sources[0].data, at);
        for (uint32_t s = 1; s < count; s++)
            sum += element_value(sources[s].dtype, sources[s].data, at);
        if (to->rounded != 0) sum = lh_bf16_to_f32(lh_f32_to_bf16(sum));
        if (to->add) sum = element_value(to->dtype, to->data, at) + sum;
        if (to->dtype == LH_DTYPE_F32)
            ((float *)to->data)[at] = sum;
        else
            ((uint16_t *)to->data)[at] = lh_f32_to_bf16(sum);
    }
}

/* ---- in a run ---- */

/* First byte of what a view names, before the runs of its step are counted in. */
static inline char *view_base(const script_places_t *places, const script_view_t *v)
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
static inline uint64_t run_first_element(const script_places_t *places, uint32_t layout,
                                         const script_run_t *r)
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
    return base +
           run_first_element(places, v->layout, &s->runs[step->run]) * lh_dtype_bytes(v->dtype);
}

/* Where a run lies in a view; blocks of the runs before it are `packed` bytes long together. */
static inline char *run_at(const script_places_t *places, const script_view_t *v,
                           const script_run_t *r, bool blocks, uint64_t packed)
{
    char *base = view_base(places, v);
    if (blocks && v->dtype == LH_DTYPE_I8) return base + packed;
    return base + run_first_element(places, v->layout, r) * lh_dtype_bytes(v->dtype);
}

/* A step of several runs is one of small segments that share a message: each run is found anew
 * in every source, as sources differ in layout. A copy to another dtype is a sum of one. The caller
 * has made sure that all sources are there. */
void script_compute(const script_t *s, const script_places_t *places, const script_step_t *step,
                    sum_source_t *scratch)
{
    lh_assert(step->kind >= STEP_SUM && step->source + step->source_count <= s->view_count);
    const script_view_t *views = &s->views[step->source], *to = &step->to;
    const bool sums = step->kind == STEP_SUM;
    uint64_t packed = 0;
    for (uint32_t i = 0; i < step->run_count; i++) {
        const script_run_t *r = &s->runs[step->run + i];
        char *at = run_at(places, to, r, sums, packed);
        for (uint32_t k = 0; k < step->source_count; k++)
            scratch[k] = (sum_source_t){run_at(places, &views[k], r, sums, packed), views[k].dtype};
        sum_target_t sum = {at, to->dtype, step->rounded, step->add, NULL};
        if (sums && to->dtype == LH_DTYPE_I8) sum.errors = places->errors + r->error;
        if (!sums && views->dtype == to->dtype)
            memcpy(at, scratch[0].data, r->count * lh_dtype_bytes(to->dtype));
        else
            script_sum(&sum, scratch, step->source_count, r->count);
        packed += quantize_bytes(r->count);
    }
}

/* ---- one script for each shape ---- */

/* A script with what it was asked for by. Sets are small (one entry a group, op and shape), so they
 * are looked through from the front. */
typedef struct script_entry {
    uint64_t *shape; /* [words] all that script_new looks at */
    uint64_t words;
    script_t script;
} script_entry_t;

enum { SHAPE_HEAD = 17 };

/* All that script_new looks at, as words that can be compared: the head, then for every member its
 * rank, site, whether it is mapped, and how long its segments are. Where segments lie is left out,
 * as a run binds that. */
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
        g->size, g->self, how->op, how->root, how->dtype, script_part(how), how->add,
        how->device != NULL, how->cut.address != NULL, in->lag, in->depth, in->window,
        in->algorithm, in->between, in->middle, in->chunk_bytes,
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

static void script_entry_free(script_entry_t *e)
{
    if (e == NULL) return;
    script_free(&e->script);
    mem_free(e->shape);
    mem_free(e);
}

/* The entry joins the set only when its script is complete: a failure leaves the set as it was. */
static lh_status_t script_entry_new(script_set_t *set, const script_how_t *how,
                                    script_maker_t *make, script_entry_t **out)
{
    script_entry_t **list = mem_grow(set->list, &set->capacity, set->count + 1u, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    set->list = list;
    script_entry_t *e = mem_new(sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    lh_status_t status = shape_new(how, &e->shape, &e->words);
    if (status == LH_OK) status = make(how, &e->script);
    if (status != LH_OK) {
        script_entry_free(e);
        return status;
    }
    list[set->count++] = e;
    *out = e;
    return LH_OK;
}

/* The words of the request are only compared and then freed; an entry that is added makes its
 * own. */
lh_status_t script_set_take(script_set_t *set, const script_how_t *how, script_maker_t *make,
                            const script_t **out)
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
    if (entry == NULL) status = script_entry_new(set, how, make, &entry);
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
        script_entry_free(set->list[i]);
    mem_free(set->list);
    *set = (script_set_t){0};
}

uint64_t script_lane_digest(const script_t *s, uint32_t peer, bool sending, bool answers,
                            uint64_t seed)
{
    uint64_t digest = seed;
    for (uint32_t i = 0; i < s->lane_count; i++) {
        const script_lane_t *lane = &s->lanes[i];
        if (lane->peer != peer || lane->sending != sending || lane->answers != answers) continue;
        for (uint32_t k = 0; k < s->lanes[i].count; k++) {
            const script_step_t *step = &s->steps[s->order[s->lanes[i].first + k]];
            const uint64_t row[3] = {digest, step->bytes, step->tag};
            digest = digest_xxh3(row, sizeof(row));
        }
    }
    return digest;
}

/* Whether there is an owner in a third site whom each of two members stands for in its own: the owner's place
 * modulo the site's size is the member's. */
static bool both_lead(const group_t *g, uint32_t a, uint32_t b)
{
    const uint32_t sites[] = {g->site_of[a], g->site_of[b]};
    const uint32_t places[] = {a - g->site_begin[sites[0]], b - g->site_begin[sites[1]]};
    uint32_t most = 0;
    for (uint32_t s = 0; s < g->sites; s++)
        if (s != sites[0] && s != sites[1] && world_group_site_size(g, s) > most)
            most = world_group_site_size(g, s);
    for (uint32_t k = places[0]; k < most; k += world_group_site_size(g, sites[0]))
        if (k % world_group_site_size(g, sites[1]) == places[1]) return true;
    return false;
}

/* Asked before there are scripts, as links decide on the algorithm: so it names all pairs that any
 * algorithm might use. Inside a site those are all, over a border the owners and who stands for
 * them, and among three sites or more, of an all-reduce, all who stand for an owner; a barrier
 * crosses borders between the first members of sites. */
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
    if (world_group_leader(g, g->site_of[b], a) == b ||
        world_group_leader(g, g->site_of[a], b) == a)
        return true;
    return how->op == COLL_ALL_REDUCE && g->sites > 2 && both_lead(g, a, b);
}
