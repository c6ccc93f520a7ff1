/* unigram.c - the best way through a text, word by word.
 *
 * A text is first cut into words where no piece has the two characters beside each other: every way
 * goes through such a place, so the best way is that of each word, one after another. Words are
 * short and repeat themselves: most come out of the cache.
 *
 * What makes this exact and not nearly so is the rounding. sentencepiece adds the scores of a whole
 * text into a float, and far into a text that float is coarse: two ways of a word whose sums differ
 * by less than its last bit are told apart by where in the text the word stands. So the cache keeps
 * with the ids of a word the margin by which they are the best, and they are taken only where
 * rounding cannot have decided otherwise (unigram_slack); else the word is looked at again with the
 * sum up to it. The sum itself is kept on as the reference does, piece by piece. */
#include <subword/unigram.h>

#include <float.h>
#include <math.h>

#include <base/memory.h>
#include <base/text.h>

/* How far an unknown character lies below the lowest score. */
static const double UNKNOWN_PENALTY = 10.0;

/* A piece that is none: an unknown character. */
enum { EDGE_UNKNOWN = -1 };
#define NOWHERE UINT32_MAX

/* The best way to a place, and how good the best of the others was. */
typedef struct unigram_node {
    double score, second;
    uint32_t start; /* of its last piece; NOWHERE: no way was found yet */
    int32_t id;     /* EDGE_UNKNOWN: an unknown character                */
} unigram_node_t;

/* One call of unigram_encode. */
typedef struct unigram_walk {
    const unigram_t *u;
    unigram_scratch_t *scratch;
    token_ids_t *out;
    double sum;   /* of all scores so far              */
    bool unknown; /* the last id stands for unknown characters, which one more joins */
} unigram_walk_t;

static lh_status_t unigram_add_words(unigram_t *u, const piece_table_t *pieces,
                                     const uint8_t *taken)
{
    lh_status_t status = piece_neighbours_open(&u->neighbours, pieces->pieces);
    for (uint32_t id = 0; id < pieces->count && status == LH_OK; id++) {
        piece_t piece;
        if ((taken == NULL || taken[id] != 0) && piece_table_get(pieces, id, &piece))
            piece_neighbours_add(&u->neighbours, piece.bytes, piece.length);
    }
    return status;
}

lh_status_t unigram_finish(unigram_t *u, const char *path, const piece_table_t *pieces,
                           const uint8_t *taken, double lowest)
{
    lh_assert(u->score_count >= pieces->count);
    array_entry_t *entries = mem_array(pieces->count, sizeof(*entries));
    if (entries == NULL) return LH_NO_MEMORY;

    size_t count = 0;
    u->unknown_score = lowest - UNKNOWN_PENALTY;
    if (u->single) u->unknown_score = (float)lowest - (float)UNKNOWN_PENALTY;
    u->most = fabs(u->unknown_score);
    for (uint32_t id = 0; id < pieces->count; id++) {
        piece_t piece;
        if (!piece_table_get(pieces, id, &piece) || piece.length == 0) continue;
        if (taken != NULL && taken[id] == 0) continue;
        entries[count++] = (array_entry_t){piece.bytes, (uint32_t)piece.length, (int32_t)id};
        if (fabs(u->scores[id]) > u->most) u->most = fabs(u->scores[id]);
    }
    lh_status_t status = double_array_make(path, entries, count, &u->pieces);
    mem_free(entries);
    if (status == LH_OK) status = unigram_add_words(u, pieces, taken);
    if (status != LH_OK) return status;

    for (uint32_t c = 0; c < 128; c++) {
        uint32_t node = ARRAY_ROOT;
        const array_unit_t *unit = double_array_step(&u->pieces, &node, (unsigned char)c);
        u->ascii[c] = unit == NULL ? EDGE_UNKNOWN : unit->value;
    }
    return LH_OK;
}

void unigram_free(unigram_t *u)
{
    double_array_free(&u->pieces);
    mem_free(u->scores);
    piece_neighbours_close(&u->neighbours);
    *u = (unigram_t){0};
}

lh_status_t unigram_scratch_open(unigram_scratch_t *s)
{
    *s = (unigram_scratch_t){0};
    s->cache = mem_array(WORD_SLOTS, sizeof(*s->cache));
    return s->cache == NULL ? LH_NO_MEMORY : LH_OK;
}

void unigram_scratch_close(unigram_scratch_t *s)
{
    mem_free(s->nodes);
    mem_free(s->ends);
    mem_free(s->cache);
    *s = (unigram_scratch_t){0};
}

/* Room for a word of so many bytes; nothing of the last word is kept. */
static lh_status_t unigram_reserve(unigram_scratch_t *s, size_t bytes)
{
    if (bytes < s->room) return LH_OK;
    const size_t room = bytes < 4096 ? 4096 : bytes + bytes / 2;
    struct unigram_node *nodes = mem_array(room, sizeof(*nodes));
    uint32_t *ends = mem_array(room, sizeof(*ends));
    if (nodes == NULL || ends == NULL) {
        mem_free(nodes);
        mem_free(ends);
        return LH_NO_MEMORY;
    }
    mem_free(s->nodes);
    mem_free(s->ends);
    s->nodes = nodes;
    s->ends = ends;
    s->room = room;
    return LH_OK;
}

static double edge_score(const unigram_t *u, int32_t id)
{
    return id == EDGE_UNKNOWN ? u->unknown_score : u->scores[id];
}

/* A sum as the reference keeps it. */
static inline double sum_rounded(const unigram_t *u, double sum)
{
    return u->single ? (double)(float)sum : sum;
}

/* By how much the sums of two ways through a word may differ from what they would be without
 * rounding, both together: each has at most as many additions as the word has bytes, each of which
 * is off by half of the last bit of a sum that is at most this large. Twice that, as what is
 * compared with it was computed with rounding as well. */
static double unigram_slack(const unigram_t *u, double sum, size_t length)
{
    const double largest = fabs(sum) + (double)length * u->most;
    return 2.0 * (double)length * largest * (u->single ? FLT_EPSILON : DBL_EPSILON);
}

/* A way to a place: taken if it is better than the best so far. Of equal ones the first counts, in
 * the order of where their last piece begins. */
static inline void node_offer(unigram_node_t *node, const unigram_t *u, double score,
                              uint32_t start, int32_t id)
{
    if (node->start == NOWHERE || score > node->score) {
        node->second = node->start == NOWHERE ? -INFINITY : node->score;
        node->score = sum_rounded(u, score);
        node->start = start;
        node->id = id;
    } else if (score > node->second) {
        node->second = score;
    }
}

/* All pieces that begin at `at`, and the character there as an unknown one if it is no piece. */
static void unigram_offer_from(const unigram_walk_t *w, const char *text, size_t length, size_t at)
{
    const unigram_t *u = w->u;
    unigram_node_t *nodes = w->scratch->nodes;
    const double till_here = nodes[at].score;
    const size_t size = text_utf8_size((unsigned char)text[at]);
    bool single = false; /* the character is a piece */
    uint32_t node = ARRAY_ROOT;

    for (size_t end = at; end < length;) {
        const array_unit_t *unit = double_array_step(&u->pieces, &node, (unsigned char)text[end++]);
        if (unit == NULL) break;
        if (unit->value < 0) continue;
        node_offer(&nodes[end], u, u->scores[unit->value] + till_here, (uint32_t)at, unit->value);
        if (end - at == size) single = true;
    }
    if (!single)
        node_offer(&nodes[at + size], u, sum_rounded(u, u->unknown_score + till_here), (uint32_t)at,
                   EDGE_UNKNOWN);
}

/* Fills nodes for the word and `ends` with the ends of its pieces, the last one first; returns how
 * many. *margin is by how much the way found is better than any other. */
static size_t unigram_search(const unigram_walk_t *w, const char *text, size_t length,
                             double *margin)
{
    unigram_node_t *nodes = w->scratch->nodes;
    size_t count = 0;

    nodes[0].score = w->sum;
    for (size_t i = 1; i <= length; i++)
        nodes[i].start = NOWHERE;
    for (size_t at = 0; at < length; at += text_utf8_size((unsigned char)text[at]))
        unigram_offer_from(w, text, length, at);
    *margin = INFINITY;
    for (size_t end = length; end > 0; end = nodes[end].start) {
        lh_assert(nodes[end].start < end);
        const double gap = nodes[end].score - nodes[end].second;
        if (gap < *margin) *margin = gap;
        w->scratch->ends[count++] = (uint32_t)end;
    }
    return count;
}

static lh_status_t refuse_unknown_character(const char *text, size_t size)
{
    return fail(LH_INVALID,
                "the character '%.*s' is not in the vocabulary, and the tokenizer has no id for "
                "unknown ones",
                (int)size, text);
}

/* Writes one piece of the way and adds its score. */
static lh_status_t unigram_write(unigram_walk_t *w, int32_t id, const char *text, size_t size)
{
    const unigram_t *u = w->u;
    token_ids_t *out = w->out;

    w->sum = sum_rounded(u, w->sum + edge_score(u, id));
    if (id >= 0 && id != u->unknown) {
        w->unknown = false;
        out->ids[out->count++] = id;
        return LH_OK;
    }
    if (id < 0 && u->unknown < 0) return refuse_unknown_character(text, size);
    if (id < 0 && u->byte_fallback) {
        for (size_t i = 0; i < size; i++)
            out->ids[out->count++] = u->bytes[(unsigned char)text[i]];
        return LH_OK;
    }
    if (!w->unknown) out->ids[out->count++] = u->unknown;
    w->unknown = !u->byte_fallback;
    return LH_OK;
}

/* Looks for the best way through a word and writes it; where `cached` is not NULL it is remembered
 * there, under `tag`. */
static lh_status_t unigram_word(unigram_walk_t *w, const char *text, size_t length,
                                word_cached_t *cached, const uint64_t *key)
{
    const unigram_t *u = w->u;
    double margin;
    lh_status_t status = unigram_reserve(w->scratch, length);
    if (status != LH_OK) return status;

    const double before = w->sum;
    const size_t count = unigram_search(w, text, length, &margin);
    const uint32_t *ends = w->scratch->ends;
    int32_t few[WORD_FEW_IDS];
    bool keep = cached != NULL && count <= WORD_FEW_IDS;
    for (size_t i = 0, from = 0; i < count && status == LH_OK; i++) {
        const size_t end = ends[count - 1 - i];
        const int32_t id = w->scratch->nodes[end].id;
        status = unigram_write(w, id, text + from, end - from);
        /* Bytes of an unknown character could not be written from the cache. */
        if (id < 0 && (u->byte_fallback || u->unknown < 0)) keep = false;
        if (keep) few[i] = id;
        from = end;
    }
    margin -= unigram_slack(u, before, length);
    if (!keep || !(margin > 0)) return status;
    memcpy(cached->key, key, sizeof(cached->key));
    cached->tag = (uint8_t)length;
    cached->count = (uint8_t)count;
    cached->margin = margin > FLT_MAX ? FLT_MAX : nextafterf((float)margin, 0);
    memcpy(cached->few, few, count * sizeof(*few));
    return status;
}

/* A word that is short enough for the cache. */
static lh_status_t unigram_short(unigram_walk_t *w, const char *text, size_t length,
                                 size_t readable)
{
    const unigram_t *u = w->u;
    uint64_t key[3];
    word_key(text, length, readable, key);
    word_cached_t *cached = &w->scratch->cache[word_slot(key)];

    if (!word_is(cached, key, (uint8_t)length) ||
        !((double)cached->margin > unigram_slack(u, w->sum, length)))
        return unigram_word(w, text, length, cached, key);
    for (size_t i = 0; i < cached->count; i++) {
        const lh_status_t status = unigram_write(w, cached->few[i], text, 0);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* A word of one character has one way only. */
static lh_status_t unigram_character(unigram_walk_t *w, const char *text, size_t size)
{
    int32_t id = EDGE_UNKNOWN;

    if (size == 1) {
        id = w->u->ascii[(unsigned char)text[0]];
    } else {
        const array_unit_t *unit = NULL;
        uint32_t node = ARRAY_ROOT;
        size_t i = 0;
        do
            unit = double_array_step(&w->u->pieces, &node, (unsigned char)text[i]);
        while (unit != NULL && ++i < size);
        if (unit != NULL) id = unit->value;
    }
    return unigram_write(w, id, text, size);
}

lh_status_t unigram_encode(const unigram_t *u, unigram_scratch_t *s, const char *text,
                           size_t length, size_t readable, token_ids_t *out)
{
    lh_assert(readable >= length && out->capacity - out->count >= length);
    unigram_walk_t w = {.u = u, .scratch = s, .out = out};
    lh_status_t status = LH_OK;

    for (size_t at = 0; at < length && status == LH_OK;) {
        const char *word = text + at;
        const size_t size = piece_neighbours_word(&u->neighbours, word, length - at);
        if (size == text_utf8_size((unsigned char)*word))
            status = unigram_character(&w, word, size);
        else if (size <= WORD_BYTES)
            status = unigram_short(&w, word, size, readable - at);
        else
            status = unigram_word(&w, word, size, NULL, NULL);
        at += size;
    }
    return status;
}
