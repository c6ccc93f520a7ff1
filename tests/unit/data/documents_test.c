/* documents_test.c - documents of a JSONL file as ids, one at a time. */
#include <unit/base/scratch_files.h>

#include <data/encode_documents.h>

#define EXAMPLES LH_TEST_DATA "/../../examples/data"

static tokenizer_t *tokenizer;

static int load_tokenizer(void **state)
{
    (void)state;
    return tokenizer_load(EXAMPLES "/stories260K/tokenizer.model", NULL, &tokenizer) == LH_OK ? 0
                                                                                              : -1;
}

static int free_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

static documents_t *open_stories(bool bos, uint64_t tokens)
{
    const documents_how_t how = {.path = EXAMPLES "/tinystories-1000.jsonl",
                                 .key = "text",
                                 .tokenizer = tokenizer,
                                 .line_bytes = 1 << 20,
                                 .window_bytes = 1 << 27,
                                 .bos = bos,
                                 .tokens = tokens};
    documents_t *d;
    if (documents_open(&how, &d) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    return d;
}

static void every_document_comes_once(void **state)
{
    (void)state;
    documents_t *d = open_stories(false, 0);
    const int32_t *ids;
    size_t count, documents = 0;
    for (bool end = false;; documents++) {
        assert_int_equal(documents_next(d, &ids, &count, &end), LH_OK);
        if (end) break;
        assert_true(count > 0);
    }
    assert_int_equal(documents, 1000);
    documents_close(d);
}

static void bos_goes_first_and_counts_in_the_cut(void **state)
{
    (void)state;
    documents_t *plain = open_stories(false, 0), *cut = open_stories(true, 257);
    for (int i = 0; i < 20; i++) {
        const int32_t *a, *b;
        size_t a_count, b_count;
        bool end;
        assert_int_equal(documents_next(plain, &a, &a_count, &end), LH_OK);
        assert_int_equal(documents_next(cut, &b, &b_count, &end), LH_OK);
        assert_int_equal(b[0], 1);
        assert_int_equal(b_count, a_count + 1 < 257 ? a_count + 1 : 257);
        assert_memory_equal(a, b + 1, (b_count - 1) * sizeof(*a));
    }
    documents_close(plain);
    documents_close(cut);
}

static void a_bad_line_fails_with_its_place(void **state)
{
    scratch_t *s = *state;
    const documents_how_t how = {
        .path = scratch_text(s, "d.jsonl", "{\"text\":\"\"}\n{\"text\":2}\n"),
        .key = "text",
        .tokenizer = tokenizer,
        .line_bytes = 100,
        .window_bytes = 1 << 27};
    documents_t *d;
    const int32_t *ids;
    size_t count;
    bool end;
    assert_int_equal(documents_open(&how, &d), LH_OK);
    assert_int_equal(documents_next(d, &ids, &count, &end), LH_OK);
    assert_int_equal(count, 0);
    assert_int_equal(documents_next(d, &ids, &count, &end), LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()),
                        "d.jsonl:2: key 'text' holds a number, a text was expected");
    documents_close(d);
}

static void a_text_that_the_tokenizer_refuses_fails_with_its_place(void **state)
{
    scratch_t *s = *state;
    tokenizer_t *slow;
    const char *path = scratch_text(
        s, "t.json",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"!\": 2}, \"merges\": "
        "[]}, "
        "\"pre_tokenizer\": "
        "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": "
        "{\"Regex\": \"(?:a|a|b)+(?:x|y)\"}}}");
    assert_int_equal(tokenizer_load(path, NULL, &slow), LH_OK);
    const documents_how_t how = {
        .path = scratch_text(
            s, "d.jsonl", "\n{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\"}\n"),
        .key = "text",
        .tokenizer = slow,
        .line_bytes = 100,
        .window_bytes = 1 << 27};
    documents_t *d;
    const int32_t *ids;
    size_t count;
    bool end;
    assert_int_equal(documents_open(&how, &d), LH_OK);
    assert_int_equal(documents_next(d, &ids, &count, &end), LH_INVALID);
    assert_true(
        text_starts(behind_folder(s, fail_reason()),
                    "d.jsonl:2: the tokenizer's pattern '(?:a|a|b)+(?:x|y)' gave up at byte 0"));
    documents_close(d);
    tokenizer_free(slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_document_comes_once),
        cmocka_unit_test(bos_goes_first_and_counts_in_the_cut),
        cmocka_unit_test_setup_teardown(a_bad_line_fails_with_its_place, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_text_that_the_tokenizer_refuses_fails_with_its_place,
                                        scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, load_tokenizer, free_tokenizer);
}
