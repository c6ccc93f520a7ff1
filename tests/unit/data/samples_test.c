/* samples_test.c - the order of samples against numpy's own figures and an independent
 * implementation of GPTDataset (tests/reference/gptdataset.py). */
#include <unit/base/comma_locale.h>
#include <unit/data/order_reference.h>

#include <data/indexed.h>
#include <data/samples.h>

static void numpys_legacy_shuffle_is_reproduced(void **state)
{
    (void)state;
    static const struct {
        uint32_t seed, first[10], shuffled[10];
    } rows[] = {
        {0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {2, 8, 4, 9, 1, 6, 7, 3, 0, 5}},
        {42, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {8, 1, 5, 0, 7, 2, 9, 4, 3, 6}},
        {1234567890, {1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, {0, 1, 9, 6, 2, 4, 5, 8, 7, 3}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        mt19937_t g;
        uint32_t items[10];
        memcpy(items, rows[i].first, sizeof(items));
        samples_mt19937_seed(&g, rows[i].seed);
        samples_mt19937_shuffle(&g, items, 10);
        assert_memory_equal(items, rows[i].shuffled, sizeof(items));
    }
}

static void the_words_of_seed_5489_are_those_that_cpp_requires(void **state)
{
    (void)state;
    mt19937_t g;
    samples_mt19937_seed(&g, 5489);
    assert_int_equal(samples_mt19937_next(&g), 3499211612u);
    for (int i = 2; i < 10000; i++)
        (void)samples_mt19937_next(&g);
    assert_int_equal(samples_mt19937_next(&g),
                     4123659995u); /* also std::mt19937's required value */
}

static void the_order_of_the_openwebtext_pair_is_megatrons(void **state)
{
    (void)state;
    const char *folder = getenv("LONGHAUL_REFERENCE");
    if (folder == NULL) {
        print_message("LONGHAUL_REFERENCE is not set, the OpenWebText pair can't be shipped\n");
        skip();
    }
    char prefix[1024], json[1024];
    (void)snprintf(prefix, sizeof(prefix), "%s/data/megatron/meg-gpt2-openwebtext_text_document",
                   folder);
    (void)snprintf(json, sizeof(json), "%s/data/megatron/gptdataset_reference.json", folder);
    check_reference(prefix, json, 5000);
}

/* A set of `documents` sequences with lengths that a reader can follow; ids count up. */
static void write_set(scratch_t *s, const char *name, int documents)
{
    indexed_writer_t *w;
    int32_t ids[512], next = 0;
    assert_int_equal(indexed_writer_open(scratch_path(s, name), 50000, &w), LH_OK);
    for (int d = 0; d < documents; d++) {
        const int length = 1 + (d * 37) % 200;
        for (int k = 0; k < length; k++)
            ids[k] = next++ % 50000;
        assert_int_equal(indexed_writer_add(w, ids, (uint64_t)length), LH_OK);
    }
    assert_int_equal(indexed_writer_commit(w), LH_OK);
}

static void the_order_of_a_made_up_set_is_numpys(void **state)
{
    scratch_t *s = *state;
    write_set(s, "made", 1000);
    char prefix[600];
    (void)strcpy(prefix, scratch_path(s, "made"));
    check_reference(prefix, LH_TEST_DATA "/data/made_order.json", 50000);
}

static void what_the_last_token_predicts_begins_the_next_sample(void **state)
{
    scratch_t *s = *state;
    enum { SEQUENCE = 16 };
    int32_t a[SEQUENCE + 1], b[SEQUENCE + 1];
    indexed_t *set;
    samples_t *order;
    write_set(s, "shared", 40);
    assert_int_equal(indexed_open(scratch_path(s, "shared"), 50000, &set), LH_OK);
    const samples_how_t how = {
        .set = set, .name = "x", .end = set->sequences, .sequence = SEQUENCE, .seed = 1};
    assert_int_equal(samples_new(&how, &order), LH_OK);
    for (uint64_t i = 0; i < order->count; i++)
        order->shuffle[i] = (uint32_t)i;
    for (uint64_t i = 0; i + 1 < order->count; i++) {
        assert_int_equal(samples_read(order, i, a, NULL), LH_OK);
        assert_int_equal(samples_read(order, i + 1, b, NULL), LH_OK);
        assert_int_equal(a[SEQUENCE], b[0]);
    }
    samples_free(order);
    indexed_close(set);
}

static void a_split_rounds_half_to_even_and_covers_everything(void **state)
{
    (void)state;
    uint64_t b[3][2];
    assert_int_equal(samples_split("969,30,1", 1000, b), LH_OK);
    assert_int_equal(b[0][1], 969);
    assert_int_equal(b[1][1], 999);
    assert_int_equal(b[2][1], 1000);
    assert_int_equal(samples_split("1, 1", 5, b), LH_OK); /* 2.5 rounds to 2 */
    assert_int_equal(b[0][1], 2);
    assert_int_equal(b[1][0], 2);
    assert_int_equal(b[1][1], 5);
    assert_int_equal(b[2][0], b[2][1]);
    static const char *const bad[] = {"", "a", "1,,1", "1,1,1,1", "0,0,0", "-1,2", "nan", "1;2"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(samples_split(bad[i], 10, b), LH_INVALID);
}

static void shares_and_weights_do_not_ask_the_locale(void **state)
{
    (void)state;
    uint64_t b[3][2];
    samples_blend_list_t list;
    comma_locale = true;
    const lh_status_t split = samples_split("0.5,0.25,0.25", 8, b);
    const lh_status_t blend = samples_blend_parse("a:0.5, b:1.5", &list);
    comma_locale = false;
    assert_int_equal(split, LH_OK);
    assert_int_equal(b[0][1], 4);
    assert_int_equal(b[1][1], 6);
    assert_int_equal(blend, LH_OK);
    assert_true(list.parts[0].weight == 0.25);
    assert_true(list.parts[1].weight == 0.75);
    samples_blend_list_free(&list);
}

static void too_little_text_for_one_sample_is_a_sentence(void **state)
{
    scratch_t *s = *state;
    indexed_t *set;
    samples_t *order;
    write_set(s, "little", 2); /* 1 + 38 tokens */
    assert_int_equal(indexed_open(scratch_path(s, "little"), 50000, &set), LH_OK);
    samples_how_t how = {
        .set = set, .name = "the valid split of little", .end = 2, .sequence = 39, .seed = 1};
    assert_int_equal(samples_new(&how, &order), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "the valid split of little has 39 tokens, one sample takes 40");
    how.sequence = 38;
    assert_int_equal(samples_new(&how, &order), LH_OK);
    assert_int_equal(order->count, 1);
    samples_free(order);
    how.end = 0;
    assert_int_equal(samples_new(&how, &order), LH_INVALID);
    assert_string_equal(fail_reason(), "the valid split of little has no sequences");
    indexed_close(set);
}

static void a_seed_that_numpy_would_refuse_is_refused(void **state)
{
    (void)state;
    samples_t *order;
    const samples_how_t how = {.end = 1, .seed = UINT64_C(1) << 32};
    assert_int_equal(samples_new(&how, &order), LH_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numpys_legacy_shuffle_is_reproduced),
        cmocka_unit_test(the_words_of_seed_5489_are_those_that_cpp_requires),
        cmocka_unit_test(the_order_of_the_openwebtext_pair_is_megatrons),
        cmocka_unit_test(the_order_of_a_made_up_set_is_numpys),
        cmocka_unit_test(what_the_last_token_predicts_begins_the_next_sample),
        cmocka_unit_test(a_split_rounds_half_to_even_and_covers_everything),
        cmocka_unit_test(shares_and_weights_do_not_ask_the_locale),
        cmocka_unit_test(too_little_text_for_one_sample_is_a_sentence),
        cmocka_unit_test(a_seed_that_numpy_would_refuse_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
