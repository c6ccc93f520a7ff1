/* step_trace_test.c - the profile as a file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <jansson.h>

#include <base/file.h>
#include <base/memory.h>
#include <plan/step_plan.h>

#include <cmocka.h>
#undef fail

static char folder[] = "/tmp/step_trace_test_XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return folder_remove(folder) != LH_OK;
}

static void shares_are_of_the_whole_step(void **state)
{
    (void)state;
    const profile_row_t rows[] = {
        {.part = "blocks",
         .op = "matmul",
         .kernel = "a \"b\"",
         .calls = 4,
         .ns = 750,
         .flops = 150,
         .bytes = 1},
        {.part = "head",
         .op = "copy",
         .kernel = "c",
         .calls = 1,
         .ns = 250,
         .bytes = 200,
         .backward = true},
    };
    char *data, *path = path_join(folder, "profile.json");
    size_t length;
    assert_int_equal(step_profile_write(folder, rows, 2, 4e8, 2e9), LH_OK);
    assert_int_equal(file_read(path, 1 << 20, &data, &length), LH_OK);
    json_t *root = json_loads(data, 0, NULL);
    assert_int_equal(json_array_size(root), 2);
    const json_t *first = json_array_get(root, 0), *second = json_array_get(root, 1);
    assert_string_equal(json_string_value(json_object_get(first, "kernel")), "a \"b\"");
    assert_int_equal(json_integer_value(json_object_get(first, "ns")), 750);
    assert_true(json_real_value(json_object_get(first, "share")) == 0.75);
    assert_true(json_is_true(json_object_get(second, "backward")));
    assert_true(json_real_value(json_object_get(second, "share")) == 0.25);
    assert_true(fabs(json_real_value(json_object_get(first, "of_limit")) - 0.5) < 1e-9);
    assert_true(fabs(json_real_value(json_object_get(second, "of_limit")) - 0.4) < 1e-9);
    json_decref(root);
    mem_free(data);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares_are_of_the_whole_step)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
