/* packs.c - fills rows with conversations.
 *
 * Documents are shuffled anew in each epoch and put, one after the other, where least room is left
 * of OPEN rows that are still being filled; where none has room, the fullest of them is closed and
 * another one opened. That is best fit with a bound, so that a set of millions takes no search
 * through all rows; at lengths as conversations have them, a few per cent of a row stay empty. An
 * epoch fills rows of its own: each document is in each once. Its rows are shuffled then, since
 * those that were closed early are the well-filled ones; the next epoch's documents are drawn after
 * that, so that an epoch more leaves those before it as they are. */
#include <data/packs.h>

#include <base/memory.h>
#include <base/status.h>
#include <data/samples.h>

enum { OPEN = 64 };

/* A row that is still being filled. */
typedef struct open_row {
    uint32_t row;
    uint64_t room;
} open_row_t;

/* What is filled while an order is made. */
typedef struct packing {
    const packs_how_t *how;
    packs_t *p;
    uint32_t *usable; /* [usable_count] documents that take part */
    uint64_t usable_count;
    uint32_t *row_of;       /* [placed] row of each placed document, in the order of placing */
    uint32_t *placed_order; /* [placed] the documents */
    uint64_t placed;
    size_t row_capacity, order_capacity, shuffle_capacity;
    open_row_t open[OPEN];
    uint32_t open_count;
    mt19937_t random;
} packing_t;

/* A conversation of a document: its sequences, and the places that it takes of a row. */
typedef struct side {
    uint64_t begin, end, places;
} side_t;

/* The conversations of a document: one, or two with an empty sequence between them. Returns how many
 * there would be: out has the first two. */
static uint32_t sides_find(const indexed_t *set, uint64_t document, side_t out[2])
{
    const uint64_t end = set->boundaries[document + 1];
    uint32_t count = 0;
    for (uint64_t s = set->boundaries[document]; s < end; count++) {
        side_t side = {.begin = s};
        uint64_t tokens = 0;
        for (; s < end && set->lengths[s] != 0; s++)
            tokens += (uint64_t)set->lengths[s];
        side.end = s;
        side.places = tokens == 0 ? 0 : tokens - 1;
        if (count < 2) out[count] = side;
        s += s < end ? 1 : 0;
    }
    return count;
}

/* Cuts them to the places of a row. Of two the longer one is cut first. */
static void sides_cut(side_t sides[2], bool pairs, uint64_t sequence)
{
    uint64_t *a = &sides[0].places, *b = &sides[1].places;
    const uint64_t half = sequence / 2;
    if (!pairs) {
        if (*a > sequence) *a = sequence;
    } else if (*a + *b > sequence) {
        const uint64_t room = *b < sequence ? sequence - *b : 0;
        if (*a > half) *a = room > half ? room : half;
        if (*b > sequence - *a) *b = sequence - *a;
    }
}

/* What a set's document must be for the phase. */
static lh_status_t sides_check(const packs_how_t *how, uint64_t document, const side_t sides[2],
                               uint32_t count)
{
    const uint32_t wanted = how->pairs ? 2 : 1;
    bool answered = count == wanted;
    if (count > wanted && !how->pairs)
        return fail(LH_INVALID,
                    "%s: document %llu has two answers to choose from; [train] phase = sft expects "
                    "conversations, dpo pairs",
                    how->name, (unsigned long long)document);
    for (uint32_t i = 0; i < wanted && answered; i++)
        answered = sides[i].end - sides[i].begin >= 2;
    if (answered) return LH_OK;
    return fail(LH_INVALID,
                "%s: document %llu has no %s; [train] phase = %s expects a set that prepare made "
                "with a [chat] format%s",
                how->name, (unsigned long long)document,
                how->pairs ? "two answers to choose from" : "answer", how->pairs ? "dpo" : "sft",
                how->pairs ? " and pairs = yes" : "");
}

/* Places that it takes of a row; 0: it takes no part. */
static lh_status_t document_places(packing_t *g, uint64_t document, uint64_t *out)
{
    const packs_how_t *how = g->how;
    side_t sides[2] = {{0}};
    const uint32_t count = sides_find(how->set, document, sides);
    const lh_status_t status = sides_check(how, document, sides, count);
    if (status != LH_OK) return status;
    *out = sides[0].places + sides[1].places;
    if (*out <= how->sequence) return LH_OK;
    const uint64_t more = how->pairs ? 2 : 1, tokens = *out + more;
    if (how->too_long == TOO_LONG_FAIL)
        return fail(
            LH_INVALID,
            "%s: document %llu has %llu tokens, a sequence of [train] sequence = %llu takes "
            "%llu; set [data] too_long = skip or cut",
            how->name, (unsigned long long)document, (unsigned long long)tokens,
            (unsigned long long)how->sequence, (unsigned long long)(how->sequence + more));
    /* What is left of one that is cut must reach into its first answer. */
    bool keeps = how->too_long == TOO_LONG_CUT;
    sides_cut(sides, how->pairs, how->sequence);
    for (uint32_t i = 0; i < more; i++)
        keeps = keeps && (uint64_t)how->set->lengths[sides[i].begin] <= sides[i].places;
    *out = keeps ? how->sequence : 0;
    g->p->cut += keeps ? 1 : 0;
    g->p->left_out += keeps ? 0 : 1;
    return LH_OK;
}

static lh_status_t usable_find(packing_t *g)
{
    const packs_how_t *how = g->how;
    g->usable = mem_array(how->end - how->first, sizeof(*g->usable));
    if (g->usable == NULL) return LH_NO_MEMORY;
    for (uint64_t d = how->first; d < how->end; d++) {
        uint64_t places;
        const lh_status_t status = document_places(g, d, &places);
        if (status != LH_OK) return status;
        if (places > 0) g->usable[g->usable_count++] = (uint32_t)d;
    }
    if (g->usable_count > 0) return LH_OK;
    return fail(LH_INVALID, "%s: none of its %llu documents fits a sequence of %llu tokens",
                how->name, (unsigned long long)(how->end - how->first),
                (unsigned long long)how->sequence);
}

/* Index into open of the row for so many places: the one with the least room that has it. */
static uint32_t open_find(packing_t *g, uint64_t places)
{
    uint32_t best = g->open_count, fullest = 0;
    for (uint32_t i = 0; i < g->open_count; i++) {
        const uint64_t room = g->open[i].room;
        if (g->how->together && room >= places &&
            (best == g->open_count || room < g->open[best].room))
            best = i;
        if (room < g->open[fullest].room) fullest = i;
    }
    if (best < g->open_count) return best;
    const uint32_t at = g->open_count < OPEN ? g->open_count++ : fullest;
    g->open[at] = (open_row_t){(uint32_t)g->p->count++, g->how->sequence};
    return at;
}

static lh_status_t document_pack(packing_t *g, uint32_t document)
{
    side_t sides[2] = {{0}};
    (void)sides_find(g->how->set, document, sides);
    sides_cut(sides, g->how->pairs, g->how->sequence);
    const uint64_t places = sides[0].places + sides[1].places;
    uint32_t *row_of = mem_grow(g->row_of, &g->row_capacity, g->placed + 1, sizeof(*row_of));
    if (row_of == NULL) return LH_NO_MEMORY;
    g->row_of = row_of;
    uint32_t *order = mem_grow(g->placed_order, &g->order_capacity, g->placed + 1, sizeof(*order));
    if (order == NULL) return LH_NO_MEMORY;
    g->placed_order = order;
    if (g->p->count >= UINT32_MAX || g->placed >= UINT32_MAX)
        return fail(LH_INVALID, "%s: more rows than an index can hold", g->how->name);
    open_row_t *open = &g->open[open_find(g, places)];
    open->room -= places;
    row_of[g->placed] = open->row;
    order[g->placed++] = document;
    return LH_OK;
}

/* Rows [first, p->count), an epoch's, among themselves: a document comes again only when all have
 * come. */
static lh_status_t epoch_shuffle(packing_t *g, uint64_t first)
{
    packs_t *p = g->p;
    uint32_t *shuffle = mem_grow(p->shuffle, &g->shuffle_capacity, p->count, sizeof(*shuffle));
    if (shuffle == NULL) return LH_NO_MEMORY;
    p->shuffle = shuffle;
    for (uint64_t r = first; r < p->count; r++)
        shuffle[r] = (uint32_t)r;
    samples_mt19937_shuffle(&g->random, shuffle + first, p->count - first);
    return LH_OK;
}

/* Each usable document once, in rows of its own. */
static lh_status_t epoch_place(packing_t *g)
{
    const uint64_t first = g->p->count;
    lh_status_t status = LH_OK;
    g->open_count = 0;
    samples_mt19937_shuffle(&g->random, g->usable, g->usable_count);
    for (uint64_t i = 0; status == LH_OK && i < g->usable_count; i++)
        status = document_pack(g, g->usable[i]);
    return status == LH_OK ? epoch_shuffle(g, first) : status;
}

/* Documents by row, in the order in which they were placed: counted, then dealt. */
static lh_status_t rows_list(packing_t *g)
{
    packs_t *p = g->p;
    p->documents = mem_array(g->placed, sizeof(*p->documents));
    p->rows = mem_array(p->count + 1, sizeof(*p->rows));
    uint64_t *next = mem_array(p->count, sizeof(*next));
    if (p->documents == NULL || p->rows == NULL || next == NULL) {
        mem_free(next);
        return LH_NO_MEMORY;
    }
    for (uint64_t i = 0; i < g->placed; i++)
        p->rows[g->row_of[i] + 1]++;
    for (uint64_t r = 0; r < p->count; r++) {
        if (p->rows[r + 1] > p->most) p->most = p->rows[r + 1];
        p->rows[r + 1] += p->rows[r];
        next[r] = p->rows[r];
    }
    if (p->pairs) p->most *= 2;
    for (uint64_t i = 0; i < g->placed; i++)
        p->documents[next[g->row_of[i]]++] = g->placed_order[i];
    mem_free(next);
    return LH_OK;
}

/* Epochs until there are enough rows; an epoch has at least one. */
static lh_status_t packs_fill(packing_t *g)
{
    const packs_t *p = g->p;
    lh_status_t status = usable_find(g);
    while (status == LH_OK && (p->count == 0 || p->count < g->how->wanted))
        status = epoch_place(g);
    return status == LH_OK ? rows_list(g) : status;
}

lh_status_t packs_new(const packs_how_t *how, packs_t **out)
{
    if (how->seed > UINT32_MAX)
        return fail(LH_INVALID, "[data] seed is %llu, numpy's generator takes at most %u",
                    (unsigned long long)how->seed, UINT32_MAX);
    if (how->first == how->end) return fail(LH_INVALID, "%s has no documents", how->name);
    if (how->end >= UINT32_MAX)
        return fail(LH_INVALID, "%s: more documents than an index can hold", how->name);
    lh_status_t status = indexed_boundaries(how->set);
    if (status != LH_OK) return status;
    packs_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    p->set = how->set;
    p->sequence = how->sequence;
    p->pairs = how->pairs;
    packing_t g = {.how = how, .p = p};
    samples_mt19937_seed(&g.random, (uint32_t)how->seed);
    status = packs_fill(&g);
    mem_free(g.usable);
    mem_free(g.row_of);
    mem_free(g.placed_order);
    if (status == LH_OK) {
        p->ids = mem_array(p->sequence + 1, sizeof(*p->ids));
        if (p->ids == NULL) status = LH_NO_MEMORY;
    }
    if (status != LH_OK) {
        packs_free(p);
        return status;
    }
    *out = p;
    return LH_OK;
}

void packs_free(packs_t *p)
{
    if (p == NULL) return;
    mem_free(p->documents);
    mem_free(p->rows);
    mem_free(p->shuffle);
    mem_free(p->ids);
    mem_free(p);
}

/* A conversation at place *at of the row, which moves behind it; weight: of labels of answers.
 * Sequences of odd number in it are answers. */
static lh_status_t side_read(packs_t *p, const side_t *side, float weight, packs_row_t *row,
                             uint64_t *at)
{
    const indexed_t *set = p->set;
    const uint64_t most = side->places + 1;
    uint64_t held = 0;
    row->begins[row->begin_count++] = (uint32_t)*at;
    for (uint64_t s = side->begin; s < side->end && held < most; s++) {
        const uint64_t length = (uint64_t)set->lengths[s], room = most - held;
        const uint64_t count = length < room ? length : room;
        const lh_status_t status = indexed_read(set, s, 0, count, p->ids + held);
        if (status != LH_OK) return status;
        for (uint64_t k = held == 0 ? 1 : held; k < held + count; k++)
            row->weights[*at + k - 1] = (s - side->begin) % 2 != 0 ? weight : 0.0f;
        held += count;
    }
    for (uint64_t k = 0; k + 1 < held; k++) {
        row->tokens[*at + k] = p->ids[k];
        row->labels[*at + k] = p->ids[k + 1];
        row->positions[*at + k] = (int32_t)k;
    }
    lh_assert(held > 1);
    *at += held - 1;
    return LH_OK;
}

/* A document, of at most `sequence` places. */
static lh_status_t document_read(packs_t *p, uint32_t document, packs_row_t *row, uint64_t *at)
{
    side_t sides[2] = {{0}};
    (void)sides_find(p->set, document, sides);
    sides_cut(sides, p->pairs, p->sequence);
    const lh_status_t status = side_read(p, &sides[0], 1, row, at);
    return status == LH_OK && p->pairs ? side_read(p, &sides[1], -1, row, at) : status;
}

lh_status_t packs_read(packs_t *p, uint64_t i, packs_row_t *row)
{
    lh_assert(i < p->count);
    const uint32_t r = p->shuffle[i];
    uint64_t at = 0;
    row->begin_count = 0;
    for (uint64_t d = p->rows[r]; d < p->rows[r + 1]; d++) {
        const lh_status_t status = document_read(p, p->documents[d], row, &at);
        if (status != LH_OK) return status;
    }
    lh_assert(at <= p->sequence);
    if (at < p->sequence) row->begins[row->begin_count++] = (uint32_t)at;
    for (int32_t k = 0; at < p->sequence; at++, k++) {
        row->tokens[at] = row->labels[at] = 0;
        row->positions[at] = k;
        row->weights[at] = 0;
    }
    return LH_OK;
}
