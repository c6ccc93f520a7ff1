/* unigram_fuzz.c - a unigram model and a text: lines of a score's byte and a piece, and behind a form
 * feed the text. What comes out of words, cache and array is held against sentencepiece's plain loop
 * over the whole text, with sums in float and in double. */
#include <fuzz/fuzz.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <base/memory.h>
#include <base/text.h>
#include <subword/unigram.h>

enum { PIECES = 64, TEXT = 600, PIECE = 64 };

typedef struct place {
    double score;
    size_t start;
    int32_t id;
    bool seen;
} place_t;

static double rounded(const unigram_t *u, double sum)
{
    return u->single ? (double)(float)sum : sum;
}

static size_t plain_loop(const unigram_t *u, const piece_table_t *pieces, const char *text,
                         size_t length, int32_t *ids)
{
    static place_t best[TEXT + 1];
    memset(best, 0, sizeof(best));
    for (size_t at = 0, size; at < length; at += size) {
        bool found = false;
        size = text_utf8_size((unsigned char)text[at]);
        for (size_t end = at + 1; end <= length && end <= at + PIECE; end++) {
            const int32_t id = piece_table_find(pieces, text + at, end - at);
            if (id <= 0) continue;
            const double score = u->scores[id] + best[at].score;
            if (!best[end].seen || score > best[end].score)
                best[end] = (place_t){rounded(u, score), at, id, true};
            if (end - at == size) found = true;
        }
        const double score = rounded(u, u->unknown_score + best[at].score);
        if (!found && (!best[at + size].seen || score > best[at + size].score))
            best[at + size] = (place_t){score, at, 0, true};
    }
    size_t count = 0;
    for (size_t end = length; end > 0; end = best[end].start)
        if (best[end].id != 0 || count == 0 || ids[count - 1] != 0) ids[count++] = best[end].id;
    return count;
}

/* The plain loop gives the ids from the end. */
static void check(unigram_t *u, const piece_table_t *pieces, const char *text, size_t length)
{
    unigram_scratch_t scratch;
    token_ids_t ids = {0};
    int32_t expected[TEXT + 1];
    double lowest = 0;
    uint8_t taken[PIECES];

    memset(taken, 1, sizeof(taken));
    taken[0] = 0;
    for (uint32_t id = 1; id < pieces->count; id++)
        if (u->scores[id] < lowest) lowest = u->scores[id];
    FUZZ_ASSERT(unigram_finish(u, "fuzz", pieces, taken, lowest) == LH_OK);
    FUZZ_ASSERT(unigram_scratch_open(&scratch) == LH_OK);
    /* Twice, so that the second time words come out of the cache. */
    for (int round = 0; round < 2; round++) {
        ids.count = 0;
        FUZZ_ASSERT(token_ids_reserve(&ids, length + 1) == LH_OK);
        FUZZ_ASSERT(unigram_encode(u, &scratch, text, length, length, &ids) == LH_OK);
        const size_t count = plain_loop(u, pieces, text, length, expected);
        FUZZ_ASSERT(ids.count == count);
        for (size_t i = 0; i < count; i++)
            FUZZ_ASSERT(ids.ids[i] == expected[count - 1 - i]);
    }
    token_ids_free(&ids);
    unigram_scratch_close(&scratch);
}

static void run(const char *lines, size_t lines_length, const char *text, size_t length,
                bool single)
{
    piece_table_t pieces = {0};
    unigram_t u = {.single = single, .score_count = PIECES};
    u.scores = mem_array(PIECES, sizeof(*u.scores));
    FUZZ_ASSERT(u.scores != NULL && piece_table_add(&pieces, "fuzz", 0, "<unk>", 5) == LH_OK);

    for (size_t at = 0; at < lines_length && pieces.count < PIECES;) {
        const char *end = memchr(lines + at, '\n', lines_length - at);
        const size_t size = (end == NULL ? lines_length : (size_t)(end - lines)) - at;
        const char *piece = lines + at + 1;
        if (size > 1 && size <= PIECE && text_utf8_valid(piece, size - 1) &&
            piece_table_find(&pieces, piece, size - 1) < 0) {
            /* Few different scores, so that ways are often equally likely. */
            u.scores[pieces.count] = (float)(-0.1 * (double)(unsigned char)lines[at]);
            FUZZ_ASSERT(piece_table_add(&pieces, "fuzz", (uint32_t)pieces.count, piece, size - 1) ==
                        LH_OK);
        }
        at += size + 1;
    }
    check(&u, &pieces, text, length);
    unigram_free(&u);
    piece_table_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t parts[2];
    fuzz_cut(bytes, size, '\f', parts, 2);
    const char *lines = (const char *)parts[0].bytes, *text = (const char *)parts[1].bytes;
    if (parts[1].size <= TEXT && text_utf8_valid(text, parts[1].size)) {
        run(lines, parts[0].size, text, parts[1].size, true);
        run(lines, parts[0].size, text, parts[1].size, false);
    }
    fuzz_parts_free(parts, 2);
    return 0;
}
