/* neighbours_test.c - where a text may be cut: facts, and that cuts change no ids. */
#include <unit/base/scratch_files.h>

#include <base/philox.h>
#include <subword/bpe.h>
#include <subword/token_pieces.h>

enum { SYMBOLS = 700, LONGEST = 400, ROUNDS = 300, PIECE_MOST = 32 };

/* Each character is one of A, U+00E9, U+306E, U+306F, U+732B and U+1F600. */
static const struct {
    const char *pieces[3], *text;
    size_t word;
} facts[] = {
    {{"ab", "bc"}, "abcd", 3},
    {{"a\xC3\xA9"}, "a\xC3\xA9z", 3},
    {{"\xE3\x81\xAE\xE3\x81\xAF"}, "\xE3\x81\xAE\xE3\x81\xAF\xE3\x81\xAF", 6},
    {{"\xE3\x81\xAE\xE3\x81\xAF"}, "\xE3\x81\xAF\xE3\x81\xAE", 3},
    {{"\xE3\x81\xAE"}, "\xE3\x81\xAE\xE3\x81\xAE", 3},
    /* a piece that ends inside of a character, one that begins there, one that does both */
    {{"a\xE3\x81"}, "a\xE3\x81\xAF\xE3\x81\xAF", 4},
    {{"a\xE3\x81"}, "a\xE7\x8C\xAB", 1},
    {{"\xAE\xE3\x81\xAF"}, "\xE3\x81\xAE\xE3\x81\xAF\xE3\x81\xAE", 6},
    {{"\x81\xAE\xE3\x81\xAF"}, "\xE3\x81\xAE\xE3\x81\xAF", 6},
    {{"\xAE\xE3\x81\xAF"}, "\xE7\x8C\xAB\xE3\x81\xAF", 3},
    {{"\xAE\xE3"}, "\xE3\x81\xAE\xE3\x81\xAF\xE7\x8C\xAB", 6},
    {{"\xAE\xE7\x8C"}, "\xE3\x81\xAE\xE7\x8C\xAB\xE7\x8C\xAB", 6},
    {{"\xF0\x9F\x98\x80\xF0"}, "\xF0\x9F\x98\x80\xF0\x9F\x98\x80", 8},
    {{"\x80\x41"}, "\xF0\x9F\x98\x80\x41\x41", 5},
    {{"\xC3\xA9\x41", "\x41\xC3\xA9"}, "\xC3\xA9\x41\xC3\xA9", 5},
};

static void a_word_ends_where_no_piece_goes_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(facts) / sizeof(*facts); i++) {
        piece_neighbours_t n;
        assert_int_equal(piece_neighbours_open(&n, 1000), LH_OK);
        for (size_t k = 0; k < 3 && facts[i].pieces[k] != NULL; k++)
            piece_neighbours_add(&n, facts[i].pieces[k], strlen(facts[i].pieces[k]));
        assert_int_equal(piece_neighbours_word(&n, facts[i].text, strlen(facts[i].text)),
                         facts[i].word);
        piece_neighbours_close(&n);
    }
}

static void without_pairs_only_ascii_and_space_marks_are_told(void **state)
{
    static const char mark[] = "\xC3\xA9z\xE2\x96\x81\xE2\x96\x81z";
    piece_neighbours_t n;
    (void)state;

    assert_int_equal(piece_neighbours_open(&n, 0), LH_OK);
    assert_int_equal(piece_neighbours_word(&n, mark, 10), 3);
    assert_int_equal(piece_neighbours_word(&n, mark + 3, 7), 7);
    assert_int_equal(piece_neighbours_word(&n, "zz", 2), 1);
    piece_neighbours_close(&n);
}

static uint64_t draw(uint64_t *counter, uint64_t below)
{
    return (uint64_t)(philox_uniform(5, 6, (*counter)++) * (double)below);
}

typedef struct spelt {
    char bytes[PIECE_MOST];
    size_t length;
} spelt_t;

static const char *const letters[] = {"a",
                                      " ",
                                      "\xC3\xA9",
                                      "\xC3\xAA",
                                      "\xE3\x81\xAE",
                                      "\xE3\x81\xAF",
                                      "\xE3\x82\xAE",
                                      "\xE7\x8C\xAB",
                                      "\xE7\x8C\xAF",
                                      "\xF0\x9F\x98\x80",
                                      "\xF0\x9F\x98\xAE"};
enum { LETTERS = sizeof(letters) / sizeof(*letters) };

static size_t draw_text(uint64_t *counter, bool valid, char *text)
{
    const size_t wanted = draw(counter, LONGEST - 8);
    size_t length = 0;
    while (length < wanted) {
        const char *letter = letters[draw(counter, LETTERS)];
        memcpy(text + length, letter, strlen(letter));
        length += strlen(letter);
        if (!valid && draw(counter, 20) == 0) length--;
    }
    return length;
}

/* Symbols 0 to 255 are bytes; each other one is a part of some text, cut anywhere. */
static void make_pieces(bpe_t *b, spelt_t *spelt, uint64_t *counter)
{
    size_t count = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        b->bytes[byte] = byte;
        spelt[byte] = (spelt_t){{(char)byte}, 1};
    }
    while (count < SYMBOLS) {
        char text[LONGEST];
        const size_t length = draw_text(counter, true, text);
        const size_t size = 2 + draw(counter, 7), start = draw(counter, LONGEST);
        if (start + size > length) continue;
        for (uint32_t left = 0; left < count; left++) {
            const size_t cut = spelt[left].length;
            if (cut >= size || memcmp(spelt[left].bytes, text + start, cut) != 0) continue;
            for (uint32_t right = 0; right < count && count < SYMBOLS; right++) {
                if (spelt[right].length != size - cut ||
                    memcmp(spelt[right].bytes, text + start + cut, size - cut) != 0)
                    continue;
                spelt[count].length = size;
                memcpy(spelt[count].bytes, text + start, size);
                assert_int_equal(
                    bpe_add_merge(b, left, right, (uint32_t)draw(counter, 200), (uint32_t)count),
                    LH_OK);
                count++;
            }
        }
    }
}

static void a_cut_changes_no_ids(void **state)
{
    static spelt_t spelt[SYMBOLS];
    uint64_t counter = 1;
    size_t words = 0, texts = 0;
    int32_t whole_ids[LONGEST], cut_ids[LONGEST];
    (void)state;

    for (int seed = 0; seed < 5; seed++) {
        bpe_t b;
        bpe_scratch_t s;
        bpe_start(&b);
        b.first_alias = SYMBOLS;
        make_pieces(&b, spelt, &counter);
        assert_int_equal(piece_neighbours_open(&b.neighbours, SYMBOLS), LH_OK);
        for (size_t i = 256; i < SYMBOLS; i++)
            piece_neighbours_add(&b.neighbours, spelt[i].bytes, spelt[i].length);
        assert_int_equal(bpe_scratch_open(&b, &s), LH_OK);
        for (int round = 0; round < ROUNDS; round++) {
            char text[LONGEST];
            token_ids_t whole = {.ids = whole_ids}, cut = {.ids = cut_ids};
            const bool valid = round % 3 > 0;
            const size_t length = draw_text(&counter, valid, text);
            b.by_words = false;
            assert_int_equal(bpe_encode(&b, &s, text, length, length, &whole), LH_OK);
            b.by_words = true;
            assert_int_equal(bpe_encode(&b, &s, text, length, length, &cut), LH_OK);
            assert_int_equal(cut.count, whole.count);
            assert_memory_equal(cut_ids, whole_ids, cut.count * sizeof(*cut_ids));
            for (size_t at = 0; valid && at < length; words++)
                at += piece_neighbours_word(&b.neighbours, text + at, length - at);
            texts += valid && length > 0 ? 1 : 0;
        }
        bpe_scratch_close(&s);
        bpe_free(&b);
    }
    assert_true(words > 5 * texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_ends_where_no_piece_goes_on),
        cmocka_unit_test(without_pairs_only_ascii_and_space_marks_are_told),
        cmocka_unit_test(a_cut_changes_no_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
