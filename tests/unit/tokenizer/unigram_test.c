/* unigram_test.c - the best cut of a text: against every cut of short ones, and against a plain
 * Viterbi over whole texts without words, cache or array. */
#include <unit/base/scratch_files.h>

#include <float.h>
#include <math.h>

#include <base/memory.h>
#include <base/philox.h>
#include <base/text.h>
#include <subword/double_array.h>
#include <subword/unigram.h>

enum { PIECES = 400, LONGEST = 60000, ROUNDS = 60, SHORT = 10, SHORT_ROUNDS = 400 };

/* Characters of one to four bytes. The first one, the space mark, only begins pieces, so that texts
 * fall into words, as they do in models of languages with spaces; the last one no piece has. */
static const char *const characters[] = {
    "\xE2\x96\x81", "a", "b", "c", "\xC3\xA9", ".", "\n", "\xE7\x8C\xAB", "\xF0\x9F\x98\x80", "z"};
enum { CHARACTERS = 10, KNOWN = 9 };

typedef struct made {
    piece_table_t pieces;
    unigram_t u;
    unigram_scratch_t scratch;
    uint64_t counter;
} made_t;

static uint64_t draw(uint64_t *counter, uint64_t below)
{
    return (uint64_t)(philox_uniform(11, 2, (*counter)++) * (double)below);
}

/* Scores are multiples of 1/8 where `even`, so that many ways are exactly as likely as others. */
static void make(made_t *m, bool single, bool even)
{
    size_t count = 0;
    double lowest = INFINITY;

    m->u = (unigram_t){.single = single, .unknown = 0, .score_count = PIECES};
    m->u.scores = mem_array(PIECES, sizeof(double));
    assert_int_equal(piece_table_add(&m->pieces, "test", 0, "<unk>", 5), LH_OK);
    count++;
    for (size_t tried = 0; count < PIECES && tried < 4 * PIECES; tried++) {
        text_t piece = {0};
        const size_t length = 1 + draw(&m->counter, 4);
        for (size_t i = 0; i < length; i++)
            text_append(
                &piece,
                characters[i == 0 ? draw(&m->counter, KNOWN) : 1 + draw(&m->counter, KNOWN - 1)]);
        if (piece_table_find(&m->pieces, piece.data, piece.length) < 0) {
            double score = -1.0 - (double)draw(&m->counter, 90) / 8;
            if (!even) score -= philox_uniform(11, 2, m->counter++);
            if (single) score = (float)score;
            m->u.scores[count] = score;
            if (score < lowest) lowest = score;
            assert_int_equal(
                piece_table_add(&m->pieces, "test", (uint32_t)count, piece.data, piece.length),
                LH_OK);
            count++;
        }
        text_free(&piece);
    }
    uint8_t taken[PIECES] = {0};
    memset(taken + 1, 1, count - 1);
    assert_int_equal(unigram_finish(&m->u, "test", &m->pieces, taken, lowest), LH_OK);
    assert_int_equal(unigram_scratch_open(&m->scratch), LH_OK);
}

static void drop(made_t *m)
{
    unigram_scratch_close(&m->scratch);
    unigram_free(&m->u);
    piece_table_free(&m->pieces);
}

static void random_text(uint64_t *counter, size_t length, size_t most, text_t *out)
{
    out->length = 0;
    while (out->length < length)
        text_append(out, characters[draw(counter, 3) == 0 ? 0 : draw(counter, most)]);
}

/* sentencepiece's loop (unigram_model.cc, EncodeOptimized), with a search through the table for
 * every substring. */
static size_t plain_viterbi(const made_t *m, const char *text, size_t length, int32_t *ids)
{
    const unigram_t *u = &m->u;
    typedef struct place {
        double score;
        size_t start;
        int32_t id;
        bool seen;
    } place_t;
    place_t *best = mem_array(length + 1, sizeof(*best));

    for (size_t at = 0, size; at < length; at += size) {
        bool found = false;
        size = text_utf8_size((unsigned char)text[at]);
        for (size_t end = at + 1; end <= length && end <= at + 16; end++) {
            const int32_t id = piece_table_find(&m->pieces, text + at, end - at);
            if (id <= 0) continue;
            const double score = u->scores[id] + best[at].score;
            if (!best[end].seen || score > best[end].score)
                best[end] = (place_t){u->single ? (float)score : score, at, id, true};
            if (end - at == size) found = true;
        }
        if (found) continue;
        double score = u->unknown_score + best[at].score;
        if (u->single) score = (float)score;
        if (!best[at + size].seen || score > best[at + size].score)
            best[at + size] = (place_t){score, at, 0, true};
    }
    size_t count = 0;
    for (size_t end = length; end > 0; end = best[end].start) {
        if (best[end].id == 0 && count > 0 && ids[count - 1] == 0) continue; /* a run is one */
        ids[count++] = best[end].id;
    }
    for (size_t i = 0; i < count / 2; i++) {
        const int32_t id = ids[i];
        ids[i] = ids[count - 1 - i];
        ids[count - 1 - i] = id;
    }
    mem_free(best);
    return count;
}

static void check_texts(bool single, bool even)
{
    made_t m = {.counter = single ? 1 : 1000000};
    token_ids_t ids = {0};
    text_t text = {0};
    int32_t *expected = mem_array(LONGEST + 8, sizeof(*expected));

    make(&m, single, even);
    for (int round = 0; round < ROUNDS; round++) {
        /* One in eight is so long that a float's last bit is worth a hundredth. */
        random_text(&m.counter, draw(&m.counter, round % 8 == 0 ? LONGEST : 500), CHARACTERS,
                    &text);
        ids.count = 0;
        assert_int_equal(token_ids_reserve(&ids, text.length), LH_OK);
        assert_int_equal(unigram_encode(&m.u, &m.scratch, text.length == 0 ? "" : text.data,
                                        text.length, text.length, &ids),
                         LH_OK);
        const size_t count = plain_viterbi(&m, text.data, text.length, expected);
        assert_int_equal(ids.count, count);
        if (count > 0) assert_memory_equal(ids.ids, expected, count * sizeof(*expected));
    }
    mem_free(expected);
    text_free(&text);
    token_ids_free(&ids);
    drop(&m);
}

static void words_and_cache_change_no_ids(void **state)
{
    (void)state;
    check_texts(true, false);
    check_texts(true, true);
    check_texts(false, false);
    check_texts(false, true);
}

/* The best of all ways to go on from here, each tried. */
static double best_of_all(const made_t *m, const char *text, size_t length)
{
    if (length == 0) return 0;
    const size_t size = text_utf8_size((unsigned char)text[0]);
    double best = -INFINITY;
    for (size_t end = 1; end <= length; end++) {
        const int32_t id = piece_table_find(&m->pieces, text, end);
        if (id <= 0 && end != size) continue;
        const double score = (id <= 0 ? m->u.unknown_score : m->u.scores[id]) +
                             best_of_all(m, text + end, length - end);
        if (score > best) best = score;
    }
    return best;
}

static void no_other_cut_is_likelier(void **state)
{
    made_t m = {.counter = 77};
    token_ids_t ids = {0};
    text_t text = {0};
    (void)state;

    make(&m, false, false);
    for (int round = 0; round < SHORT_ROUNDS; round++) {
        random_text(&m.counter, 1 + draw(&m.counter, SHORT), KNOWN, &text);
        ids.count = 0;
        assert_int_equal(token_ids_reserve(&ids, text.length), LH_OK);
        assert_int_equal(
            unigram_encode(&m.u, &m.scratch, text.data, text.length, text.length, &ids), LH_OK);
        double sum = 0;
        bool unknown = false;
        for (size_t i = 0; i < ids.count; i++) {
            unknown = unknown || ids.ids[i] == 0;
            sum += m.u.scores[ids.ids[i]];
        }
        /* A run of unknown characters is one id, which does not say how many they were. */
        if (!unknown) assert_float_equal(sum, best_of_all(&m, text.data, text.length), 1e-9);
    }
    text_free(&text);
    token_ids_free(&ids);
    drop(&m);
}

static void without_an_unknown_id_a_text_is_refused(void **state)
{
    made_t m = {.counter = 5};
    token_ids_t ids = {0};
    (void)state;

    make(&m, false, false);
    m.u.unknown = -1;
    assert_int_equal(token_ids_reserve(&ids, 3), LH_OK);
    assert_int_equal(unigram_encode(&m.u, &m.scratch, "z", 1, 1, &ids), LH_INVALID);
    assert_string_equal(fail_reason(), "the character 'z' is not in the vocabulary, and the "
                                       "tokenizer has no id for unknown ones");
    token_ids_free(&ids);
    drop(&m);
}

static void the_array_has_what_was_put_in(void **state)
{
    enum { STRINGS = 3000, BYTES = 12 };
    piece_table_t table = {0};
    array_entry_t *entries = mem_array(STRINGS, sizeof(*entries));
    double_array_t array = {0};
    uint64_t counter = 9;
    char bytes[BYTES];
    (void)state;

    for (uint32_t id = 0; id < STRINGS;) {
        const size_t length = 1 + draw(&counter, BYTES - 1);
        for (size_t i = 0; i < length; i++)
            bytes[i] = (char)draw(&counter, i < 2 ? 256 : 3);
        if (piece_table_find(&table, bytes, length) >= 0) continue;
        assert_int_equal(piece_table_add(&table, "test", id++, bytes, length), LH_OK);
    }
    for (uint32_t id = 0; id < STRINGS; id++) {
        piece_t piece;
        assert_true(piece_table_get(&table, id, &piece));
        entries[id] = (array_entry_t){piece.bytes, (uint32_t)piece.length, (int32_t)id};
    }
    assert_int_equal(double_array_make("test", entries, STRINGS, &array), LH_OK);
    for (int round = 0; round < 20000; round++) {
        const size_t length = draw(&counter, BYTES + 1);
        for (size_t i = 0; i < length; i++)
            bytes[i] = (char)draw(&counter, i < 2 ? 256 : 3);
        int32_t value = -1, expected = -1;
        size_t longest = 0;
        for (size_t size = 1; size <= length; size++) {
            const int32_t id = piece_table_find(&table, bytes, size);
            if (id < 0) continue;
            expected = id;
            longest = size;
        }
        assert_int_equal(double_array_longest(&array, bytes, length, &value), longest);
        assert_int_equal(value, expected);
    }
    mem_free(entries);
    double_array_free(&array);
    piece_table_free(&table);
}

static void an_empty_array_has_nothing(void **state)
{
    double_array_t array = {0};
    int32_t value;
    (void)state;

    assert_int_equal(double_array_make("test", NULL, 0, &array), LH_OK);
    for (int byte = 0; byte < 256; byte++) {
        const char text[] = {(char)byte, (char)byte};
        assert_int_equal(double_array_longest(&array, text, 2, &value), 0);
    }
    double_array_free(&array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_cache_change_no_ids),
        cmocka_unit_test(no_other_cut_is_likelier),
        cmocka_unit_test(without_an_unknown_id_a_text_is_refused),
        cmocka_unit_test(the_array_has_what_was_put_in),
        cmocka_unit_test(an_empty_array_has_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
