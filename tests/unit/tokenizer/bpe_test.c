/* bpe_test.c - joins against the definition, written down naively: the lowest rank, leftmost on
 * ties. */
#include <unit/base/scratch_files.h>

#include <base/philox.h>
#include <subword/bpe.h>

enum { SYMBOLS = 400, LETTERS = 6, LONGEST = 300, ROUNDS = 400 };

static uint64_t draw(uint64_t *counter, uint64_t below)
{
    return (uint64_t)(philox_uniform(3, 4, (*counter)++) * (double)below);
}

typedef struct rules {
    struct rule {
        uint32_t left, right, rank;
    } rows[SYMBOLS];
} rules_t;

/* Symbols 0 to LETTERS - 1 are the letters; each other one is what two earlier ones make. Ranks
 * repeat, so that ties happen. */
static void make_rules(rules_t *r, bpe_t *b, uint64_t seed)
{
    uint64_t counter = seed * 100000;
    bpe_start(b);
    for (uint32_t i = 0; i < LETTERS; i++)
        b->bytes['a' + i] = i;
    b->first_alias = SYMBOLS;
    for (uint32_t made = LETTERS; made < SYMBOLS; made++) {
        bool fresh = false;
        while (!fresh) {
            r->rows[made].left = (uint32_t)draw(&counter, made);
            r->rows[made].right = (uint32_t)draw(&counter, made);
            fresh = true;
            for (uint32_t k = LETTERS; k < made; k++)
                if (r->rows[k].left == r->rows[made].left &&
                    r->rows[k].right == r->rows[made].right)
                    fresh = false;
        }
        r->rows[made].rank = (made - LETTERS) / 3;
        assert_int_equal(
            bpe_add_merge(b, r->rows[made].left, r->rows[made].right, r->rows[made].rank, made),
            LH_OK);
    }
}

static size_t join_naively(const rules_t *r, uint32_t *symbols, size_t count)
{
    for (;;) {
        uint32_t best = UINT32_MAX, made = 0;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (uint32_t k = LETTERS; k < SYMBOLS; k++)
                if (r->rows[k].left == symbols[i] && r->rows[k].right == symbols[i + 1] &&
                    r->rows[k].rank < best) {
                    best = r->rows[k].rank;
                    made = k;
                    at = i;
                }
        if (best == UINT32_MAX) return count;
        symbols[at] = made;
        count--;
        memmove(&symbols[at + 1], &symbols[at + 2], (count - at - 1) * sizeof(*symbols));
    }
}

static void short_and_long_pieces_are_joined_by_the_definition(void **state)
{
    uint64_t counter = 1;
    token_ids_t out = {0};
    (void)state;

    for (uint64_t seed = 1; seed <= 4; seed++) {
        static rules_t rules;
        bpe_t b;
        bpe_scratch_t s;
        make_rules(&rules, &b, seed);
        assert_int_equal(bpe_scratch_open(&b, &s), LH_OK);
        for (int round = 0; round < ROUNDS / 4; round++) {
            char text[LONGEST];
            uint32_t symbols[LONGEST];
            const size_t length = draw(&counter, round % 4 == 0 ? LONGEST : 60);
            for (size_t i = 0; i < length; i++) {
                symbols[i] = (uint32_t)draw(&counter, LETTERS);
                text[i] = (char)('a' + symbols[i]);
            }
            out.ids = mem_grow(out.ids, &out.capacity, LONGEST, sizeof(*out.ids));
            out.count = 0;
            assert_int_equal(bpe_encode(&b, &s, text, length, length, &out), LH_OK);
            assert_int_equal(out.count, join_naively(&rules, symbols, length));
            for (size_t i = 0; i < out.count; i++)
                assert_int_equal(out.ids[i], symbols[i]);
        }
        bpe_scratch_close(&s);
        bpe_free(&b);
    }
    token_ids_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_and_long_pieces_are_joined_by_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
