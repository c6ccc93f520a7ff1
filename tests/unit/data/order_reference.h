/* order_reference.h - checks the order of a data set's samples against a JSON file made by
 * tests/reference/gptdataset.py. */
#ifndef TESTS_ORDER_REFERENCE_H
#define TESTS_ORDER_REFERENCE_H

#include <unit/base/scratch_files.h>

#include <jansson.h>

#include <base/digest.h>
#include <data/samples.h>

static inline json_t *load_reference(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) FAIL_TEST("%s: %s\n", path, error.text);
    return root;
}

static inline uint64_t number(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static inline void check_digest(const json_t *entry, const void *bytes, size_t count, size_t size,
                                const char *what)
{
    char digest[SHA256_TEXT];
    assert_int_equal(number(entry, "length"), count);
    assert_int_equal(digest_of(bytes, count * size, digest), LH_OK);
    if (strcmp(digest, json_string_value(json_object_get(entry, "sha256"))) != 0)
        FAIL_TEST("%s differs\n", what);
}

static inline void check_sample(const samples_t *s, const json_t *expected)
{
    const uint64_t count = s->sequence + 1;
    int32_t *tokens = mem_array(count, sizeof(*tokens));
    int64_t *wide = mem_array(count, sizeof(*wide));
    char digest[SHA256_TEXT];
    assert_int_equal(samples_read(s, number(expected, "i"), tokens, NULL), LH_OK);
    for (uint64_t k = 0; k < count; k++)
        wide[k] = tokens[k];
    assert_int_equal(digest_of(wide, count * sizeof(*wide), digest), LH_OK);
    assert_string_equal(digest, json_string_value(json_object_get(expected, "sha256")));
    mem_free(wide);
    mem_free(tokens);
}

static inline uint64_t part_of(const char *name)
{
    return strcmp(name, "train") == 0 ? 0 : strcmp(name, "valid") == 0 ? 1 : 2;
}

static inline void check_case(const indexed_t *set, const json_t *c)
{
    uint64_t bounds[3][2];
    const json_t *documents = json_object_get(c, "documents");
    const uint64_t part = part_of(json_string_value(json_object_get(c, "part")));
    const char *split = json_string_value(json_object_get(c, "split"));
    assert_int_equal(samples_split(split, set->sequences, bounds), LH_OK);
    assert_int_equal(bounds[part][0], json_integer_value(json_array_get(documents, 0)));
    assert_int_equal(bounds[part][1], json_integer_value(json_array_get(documents, 1)));

    samples_t *s;
    const samples_how_t how = {
        .set = set,
        .name = "reference",
        .first = bounds[part][0],
        .end = bounds[part][1],
        .sequence = number(c, "sequence_length"),
        .wanted = number(c, "num_samples_requested"), /* null is 0: one epoch */
        .seed = number(c, "seed"),
    };
    assert_int_equal(samples_new(&how, &s), LH_OK);
    assert_int_equal(s->tokens_per_epoch, number(c, "tokens_per_epoch"));
    assert_int_equal(s->epochs, number(c, "num_epochs"));
    assert_int_equal(s->separate_final_epoch,
                     json_is_true(json_object_get(c, "separate_final_epoch")));
    assert_int_equal(s->count, number(c, "num_samples"));
    check_digest(json_object_get(c, "document_index"), s->documents, s->document_count,
                 sizeof(*s->documents), "document index");
    check_digest(json_object_get(c, "sample_index"), s->cuts, s->count + 1, sizeof(*s->cuts),
                 "sample index");
    check_digest(json_object_get(c, "shuffle_index"), s->shuffle, s->count, sizeof(*s->shuffle),
                 "shuffle index");
    size_t i;
    json_t *sample;
    json_array_foreach(json_object_get(c, "samples"), i, sample) check_sample(s, sample);
    samples_free(s);
}

static inline void check_reference(const char *prefix, const char *json, uint32_t vocab)
{
    json_t *root = load_reference(json), *c;
    indexed_t *set;
    size_t i;
    if (indexed_open(prefix, vocab, &set) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_true(json_array_size(json_object_get(root, "cases")) >= 3);
    json_array_foreach(json_object_get(root, "cases"), i, c) check_case(set, c);
    indexed_close(set);
    json_decref(root);
}

#endif
