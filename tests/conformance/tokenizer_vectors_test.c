/* tokenizer_vectors_test.c - ids of other implementations: llama.cpp's vectors and the hashes of
 * whole corpora, for the tokenizers under LONGHAUL_REFERENCE, and vectors of the small ones in the
 * tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "../unit/tokenizer/tokenizer_rig.h"
#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>

/* last: it has a macro named fail */
#include <cmocka.h>

enum { FILE_MOST = 64 << 20, TEXTS = 46 };
static const char separator[] = "\n__ggml_vocab_test__\n";

static void decode(machine_t *m)
{
    text_free(&m->text);
    if (tokenizer_decode(m->t, m->ids.ids, m->ids.count, false, &m->text) != LH_OK)
        fail_msg("%s", fail_reason());
    text_append(&m->text, "");
}

static char *reference(const char *name)
{
    const char *folder = getenv("LONGHAUL_REFERENCE");
    if (folder == NULL) {
        printf("skipped: LONGHAUL_REFERENCE is unset\n");
        skip();
    }
    return path_join(folder, name);
}

static char *read_reference(const char *name, size_t *length)
{
    char *path = reference(name), *bytes = NULL;
    if (file_read(path, FILE_MOST, &bytes, length) != LH_OK) fail_msg("%s", fail_reason());
    mem_free(path);
    return bytes;
}

static void check_ids(const machine_t *m, const char *name, size_t text, char **line)
{
    for (size_t i = 0; i < m->ids.count; i++) {
        char *end;
        const long id = strtol(*line, &end, 10);
        if (end == *line || id != m->ids.ids[i])
            fail_msg("%s: text %zu: id %zu is %d, expected %ld", name, text, i, m->ids.ids[i], id);
        *line = end;
    }
    *line += strspn(*line, " ");
    if (**line != '\n' && **line != '\0')
        fail_msg("%s: text %zu: %zu ids are too few", name, text, m->ids.count);
    if (**line == '\n') (*line)++;
}

/* Vectors of chameleon, command-r, deepseek-coder, deepseek-llm and refact lie beside these. Their
 * vocabularies do not: the ids spell the texts by no tokenizer that is there. */
static void the_46_texts_of_llama_cpp_get_the_same_ids(void **state)
{
    static const struct {
        const char *name, *tokenizer;
    } rows[] = {
        {"gpt-2", "gpt2/tokenizer.json"},
        {"gpt-2", "gpt2/encoder.json"},
        {"gpt-2", "gpt2/vocab.bpe"},
        {"falcon", "falcon"},
        {"llama-spm", "llama2/tokenizer.model"},
        {"phi-3", "llama2/tokenizer.model"},
        {"llama-bpe", "llama3/tokenizer.model"},
        {"deepseek-r1-qwen", "qwen2"},
    };
    size_t length, ids_length;
    char *texts = read_reference("data/conformance/llama.cpp/ggml-vocab.inp", &length);
    (void)state;

    for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++) {
        char name[256];
        (void)snprintf(name, sizeof(name), "data/conformance/llama.cpp/ggml-vocab-%s.gguf.out",
                       rows[r].name);
        char *ids = read_reference(name, &ids_length), *line = ids, *text = texts;
        (void)snprintf(name, sizeof(name), "data/tokenizers/%s", rows[r].tokenizer);
        char *path = reference(name);
        machine_t m;
        machine_open(&m, path);
        for (size_t i = 0; i < TEXTS; i++) {
            char *end = strstr(text, separator);
            assert_non_null(end);
            machine_encode(&m, text, (size_t)(end - text), SPELLING_AS_REFERENCE);
            check_ids(&m, rows[r].tokenizer, i, &line);
            decode(&m);
            assert_int_equal(m.text.length, end - text);
            assert_memory_equal(m.text.data, text, m.text.length);
            text = end + strlen(separator);
        }
        machine_close(&m);
        mem_free(path);
        mem_free(ids);
    }
    mem_free(texts);
}

static void hash_ids(digest_t *hash, const token_ids_t *ids)
{
    for (size_t i = 0; i < ids->count; i++) {
        const uint32_t id = (uint32_t)ids->ids[i];
        unsigned char bytes[4];
        for (int k = 0; k < 4; k++)
            bytes[k] = (unsigned char)(id >> (8 * k));
        digest_add(hash, bytes, 4);
    }
}

static void check_corpus(machine_t *m, const char *corpus, const json_t *expected)
{
    char name[256], made[SHA256_TEXT];
    size_t length, tokens = 0;
    digest_t *hash;
    (void)snprintf(name, sizeof(name), "data/corpora/%s", corpus);
    char *bytes = read_reference(name, &length);
    assert_int_equal(digest_new(&hash), LH_OK);

    for (size_t at = 0; at < length;) {
        const size_t size = (size_t)((char *)memchr(bytes + at, '\n', length - at) - bytes) - at;
        json_t *line = json_loadb(bytes + at, size, 0, NULL);
        const json_t *text = json_object_get(line, "text");
        machine_encode(m, json_string_value(text), json_string_length(text), SPELLING_AS_REFERENCE);
        tokens += m->ids.count;
        hash_ids(hash, &m->ids);
        json_decref(line);
        at += size + 1;
    }
    digest_end(hash, made);
    assert_int_equal(tokens, json_integer_value(json_object_get(expected, "tokens")));
    assert_string_equal(made, json_string_value(json_object_get(expected, "sha256_int32le")));
    mem_free(bytes);
}

static void whole_corpora_hash_to_the_same_ids(void **state)
{
    size_t length;
    char *bytes = read_reference("data/conformance/corpus_tokens.json", &length);
    json_t *root = json_loadb(bytes, length, 0, NULL), *files = json_object_get(root, "_files");
    const char *name;
    json_t *file;
    int checked = 0;
    (void)state;

    json_object_foreach(files, name, file)
    {
        const char *corpus, *described = json_string_value(file);
        json_t *expected;
        char relative[256];
        (void)snprintf(relative, sizeof(relative), "data/%.*s", (int)strcspn(described, " "),
                       described);
        char *path = reference(relative);
        machine_t m;
        machine_open(&m, path);
        json_object_foreach(json_object_get(root, name), corpus, expected)
        {
            check_corpus(&m, corpus, expected);
            checked++;
        }
        machine_close(&m);
        mem_free(path);
    }
    assert_int_equal(checked, 39);
    json_decref(root);
    mem_free(bytes);
}

static void the_first_bad_merge_of_the_llama_2_file_is_named(void **state)
{
    char *path = reference("data/tokenizers/llama2/tokenizer.json");
    tokenizer_t *t;
    (void)state;

    assert_int_equal(tokenizer_load(path, NULL, &t), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "merge 18917 "));
    mem_free(path);
}

static void small_tokenizers_agree_with_their_peers(void **state)
{
    size_t length;
    char *bytes;
    const char *name;
    json_t *vectors;
    (void)state;

    assert_int_equal(file_read(LH_TEST_DATA "/tokenizers/vectors.json", FILE_MOST, &bytes, &length),
                     LH_OK);
    json_t *root = json_loadb(bytes, length, JSON_ALLOW_NUL, NULL),
           *texts = json_object_get(root, "texts");
    assert_true(json_array_size(texts) == 100);
    json_object_foreach(json_object_get(root, "tokenizers"), name, vectors)
    {
        char path[512];
        machine_t m;
        (void)snprintf(path, sizeof(path), "%s/tokenizers/%s", LH_TEST_DATA, name);
        machine_open(&m, path);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i);
            const json_t *ids = json_array_get(json_object_get(vectors, "ids"), i);
            machine_encode(&m, json_string_value(text), json_string_length(text),
                           SPELLING_AS_REFERENCE);
            assert_int_equal(m.ids.count, json_array_size(ids));
            for (size_t k = 0; k < m.ids.count; k++)
                assert_int_equal(m.ids.ids[k], json_integer_value(json_array_get(ids, k)));
            decode(&m);
            const json_t *back = json_array_get(json_object_get(vectors, "decoded"), i);
            assert_int_equal(m.text.length, json_string_length(back));
            assert_memory_equal(m.text.data, json_string_value(back), m.text.length);
        }
        machine_close(&m);
    }
    json_decref(root);
    mem_free(bytes);
}

/* The tokenizer.json of a row: that of its base, with what the row sets in its place. */
static char *variant_of(const json_t *row)
{
    char path[512];
    const char *key;
    json_t *value;
    (void)snprintf(path, sizeof(path), "%s/tokenizers/%s/tokenizer.json", LH_TEST_DATA,
                   json_string_value(json_object_get(row, "base")));
    json_t *whole = json_load_file(path, 0, NULL), *model = json_object_get(whole, "model");
    assert_non_null(model);
    json_object_foreach(json_object_get(row, "set"), key, value) assert_int_equal(
        json_object_set(json_object_get(whole, key) != NULL ? whole : model, key, value), 0);
    char *text = json_dumps(whole, JSON_COMPACT);
    json_decref(whole);
    return text;
}

static void every_stage_agrees_with_its_peer(void **state)
{
    size_t length;
    char *bytes, path[] = "/tmp/longhaul-stages-XXXXXX";
    (void)state;

    assert_int_equal(file_read(LH_TEST_DATA "/tokenizers/stages.json", FILE_MOST, &bytes, &length),
                     LH_OK);
    json_t *root = json_loadb(bytes, length, JSON_ALLOW_NUL, NULL),
           *texts = json_object_get(root, "texts"), *rows = json_object_get(root, "rows");
    assert_true(json_array_size(rows) >= 30);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    (void)close(file);
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r);
        char *made = variant_of(row);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(made, 1, strlen(made), out), strlen(made));
        assert_int_equal(fclose(out), 0);
        free(made);
        machine_t m;
        machine_open(&m, path);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i);
            const json_t *ids = json_array_get(json_object_get(row, "ids"), i);
            machine_encode(&m, json_string_value(text), json_string_length(text),
                           SPELLING_AS_REFERENCE);
            if (m.ids.count != json_array_size(ids))
                fail_msg("row %zu, text %zu: %zu ids, expected %zu", r, i, m.ids.count,
                         json_array_size(ids));
            for (size_t k = 0; k < m.ids.count; k++)
                assert_int_equal(m.ids.ids[k], json_integer_value(json_array_get(ids, k)));
            decode(&m);
            const json_t *back = json_array_get(json_object_get(row, "decoded"), i);
            if (m.text.length != json_string_length(back))
                fail_msg("row %zu, text %zu: decoded '%s', expected '%s'", r, i, m.text.data,
                         json_string_value(back));
            assert_memory_equal(m.text.data, json_string_value(back), m.text.length);
        }
        machine_close(&m);
    }
    (void)unlink(path);
    json_decref(root);
    mem_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_tokenizers_agree_with_their_peers),
        cmocka_unit_test(every_stage_agrees_with_its_peer),
        cmocka_unit_test(the_46_texts_of_llama_cpp_get_the_same_ids),
        cmocka_unit_test(whole_corpora_hash_to_the_same_ids),
        cmocka_unit_test(the_first_bad_merge_of_the_llama_2_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
