/* manifest_test.c - the size of a manifest, where it is written and where it is read. */
#include <unit/base/scratch_files.h>

#include <checkpoint/manifest.h>

enum { NAME_BYTES = 1 << 20, PARTS = MANIFEST_MOST / NAME_BYTES };

static void what_is_too_large_to_be_read_is_not_written(void **state)
{
    (void)state;
    char *name = mem_array(NAME_BYTES + 1, 1);
    assert_non_null(name);
    memset(name, 'n', NAME_BYTES);
    for (int more = -1; more <= 0; more++) {
        manifest_t m = {.meta = {.step = 1}};
        checkpoint_tensor_t tensor = {
            .name = "w", .dtype = LH_DTYPE_F32, .rank = 1, .shape = {PARTS}};
        text_t text = {0};
        uint32_t file;
        assert_int_equal(manifest_add_file(&m, "a.safetensors", &file), LH_OK);
        for (int i = 0; i < PARTS + more; i++) {
            tensor.part = tensor_part_range(1, tensor.shape, (uint64_t)i, 1);
            assert_int_equal(manifest_add_part(&m, &tensor, file, name, 0), LH_OK);
        }
        assert_int_equal(manifest_text(&m, &text), more < 0 ? LH_OK : LH_INVALID);
        if (more == 0)
            assert_non_null(strstr(fail_reason(), " bytes, at most 268435456 are read again"));
        text_free(&text);
        manifest_clear(&m);
    }
    mem_free(name);
}

/* A reader takes 8192 parts of a tensor. */
static void more_parts_than_are_read_are_not_written(void **state)
{
    (void)state;
    for (uint32_t count = 8192; count <= 8193; count++) {
        manifest_t m = {.meta = {.step = 1}};
        checkpoint_tensor_t tensor = {
            .name = "w", .dtype = LH_DTYPE_F32, .rank = 1, .shape = {count}};
        text_t text = {0};
        uint32_t file;
        assert_int_equal(manifest_add_file(&m, "a.safetensors", &file), LH_OK);
        for (uint32_t i = 0; i < count; i++) {
            tensor.part = tensor_part_range(1, tensor.shape, i, 1);
            assert_int_equal(manifest_add_part(&m, &tensor, file, "w", 0), LH_OK);
        }
        assert_int_equal(manifest_text(&m, &text), count == 8192 ? LH_OK : LH_UNSUPPORTED);
        if (count > 8192)
            assert_string_equal(fail_reason(),
                                "tensor w: more than 8192 parts, which are not read again");
        text_free(&text);
        manifest_clear(&m);
    }
}

static void what_is_too_large_is_not_read(void **state)
{
    scratch_t *s = *state;
    manifest_t *m;
    const char *path = scratch_text(s, "manifest.json", "{");
    assert_int_equal(truncate(path, MANIFEST_MOST + 1), 0);
    assert_int_equal(manifest_read(path, &m), LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()),
                        "manifest.json: 268435457 bytes, at most 268435456 are allowed");
}

/* Three ranks, with a tensor cut among them, one whole, and one in boxes. */
static void its_length_is_known_before_it_is_made(void **state)
{
    (void)state;
    manifest_t all = {.meta = {.step = 1}}, none = {.meta = {.step = 1}};
    uint64_t bytes = 0, part;
    for (uint32_t r = 0; r < 3; r++) {
        checkpoint_tensor_t rows[] = {
            {.name = "cut", .dtype = LH_DTYPE_F32, .rank = 2, .shape = {4, 6}},
            {.name = "boxes",
             .dtype = LH_DTYPE_F32,
             .source = LH_DTYPE_BF16,
             .rank = 2,
             .shape = {2, 3000000}},
            {.name = "\"whole\"", .dtype = LH_DTYPE_F32, .rank = 1, .shape = {7}},
        };
        const char *const stored[] = {"cut@0+4,0+6#8+8", "boxes@0+2,0+1000000", "\"whole\""};
        char name[32];
        uint32_t file;
        rows[0].part = tensor_part_range(2, rows[0].shape, r * 8, 8);
        rows[1].part = (tensor_part_t){
            .at = {0, r * 1000000}, .shape = {2, 1000000}, .count = 2000000};
        (void)snprintf(name, sizeof(name), "%u.safetensors", r);
        assert_int_equal(manifest_add_file(&all, name, &file), LH_OK);
        assert_int_equal(manifest_add_file(&none, name, &file), LH_OK);
        for (uint32_t i = 0; i < 3 - (r > 0); i++) {
            assert_int_equal(manifest_add_part(&all, &rows[i], file, stored[i], 0), LH_OK);
            assert_int_equal(manifest_part_bytes(&rows[i], file, stored[i], &part), LH_OK);
            bytes += part;
        }
    }
    text_t text = {0}, head = {0};
    assert_int_equal(manifest_text(&all, &text), LH_OK);
    assert_int_equal(manifest_text(&none, &head), LH_OK);
    assert_in_range(bytes, text.length - head.length, text.length - head.length + 7 * 7);
    text_free(&head);
    text_free(&text);
    manifest_clear(&none);
    manifest_clear(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_too_large_to_be_read_is_not_written),
        cmocka_unit_test(more_parts_than_are_read_are_not_written),
        cmocka_unit_test(its_length_is_known_before_it_is_made),
        cmocka_unit_test_setup_teardown(what_is_too_large_is_not_read, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
