/* reference_folders_test.c - headers and indexes of published models that may not be shipped;
 * skipped where LONGHAUL_REFERENCE does not name the folder that holds them. */
#include <unit/base/scratch_files.h>

#include <format/shard_index.h>

static const char *reference(char path[512], const char *name)
{
    const char *root = getenv("LONGHAUL_REFERENCE");
    if (root == NULL || *root == '\0') {
        print_message("skipped: LONGHAUL_REFERENCE is not set\n");
        skip();
    }
    (void)snprintf(path, 512, "%s/data/hf-metadata/%s", root, name);
    return path;
}

static void a_published_bf16_shard_is_read(void **state)
{
    (void)state;
    char path[512];
    safetensors_t *s;
    uint16_t first[4];
    assert_int_equal(
        safetensors_open(
            reference(path,
                      "llama-3.2-3b/model-00001-model.layers.0.input_layernorm.weight.safetensors"),
            NULL, &s),
        LH_OK);
    const safetensor_t *t = safetensors_find(s, "model.layers.0.input_layernorm.weight");
    assert_non_null(t);
    assert_string_equal(t->dtype->name, "BF16");
    assert_int_equal(t->rank, 1);
    assert_int_equal(t->shape[0], 3072);
    assert_int_equal(safetensors_read(s, t, 0, first, sizeof(first)), LH_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(first[i] >> 13, 1); /* norms of this size: positive, between 2^-64 and 2 */
    safetensors_close(s);
}

/* Their shards are not here: the index is read up to the first one that is missing. */
static void published_indexes_are_read(void **state)
{
    (void)state;
    static const char *const folders[] = {"llama-3.2-3b", "gemma-2b-it", "mistral-7b-v0.3",
                                          "oasst-pythia-1.4b", "falcon-180b"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        char path[512];
        shard_index_t *index;
        assert_int_equal(shard_index_open(reference(path, folders[i]), NULL, &index), LH_IO);
        assert_non_null(strstr(fail_reason(), ".safetensors: cannot open: No such file"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_published_bf16_shard_is_read),
        cmocka_unit_test(published_indexes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
