/* device_rate_test.c - times computed by hand from a made-up record, and the record as a file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <longhaul/ops.h>
#include <plan/device_rate.h>

#include <cmocka.h>
#undef fail

static char folder[] = "/tmp/device_rate_test_XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || setenv("XDG_CACHE_HOME", folder, 1) != 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return folder_remove(folder) != LH_OK;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static const lh_option_t sides[] = {
    LH_OPTION_CHOICE(lh_matmul_t, transpose_a, "transpose_a", "no", "no|yes", "a is [k, m]"),
    LH_OPTION_CHOICE(lh_matmul_t, transpose_b, "transpose_b", "no", "no|yes", "b is [n, k]"),
};
static const op_t matmul = {.row = {.name = "matmul",
                                    .attributes = sides,
                                    .attribute_size = sizeof(sides[0]),
                                    .attribute_count = 2}};
static const op_t norm = {.row = {.name = "rms_norm"}};
static const lh_matmul_t transposed = {.struct_size = sizeof(transposed), .transpose_b = 1};
static const lh_arg_t bf16 = {.dtype = LH_DTYPE_BF16}, ids = {.dtype = LH_DTYPE_I32};

/* 1 TFLOP/s in BF16, 200 GFLOP/s in F32, 100 GB/s, 2 us a launch; a matmul at half of that when
 * large, at a tenth when small. */
static device_rate_t made_up(void)
{
    static const op_rate_t ops[] = {
        {"matmul nt BF16", 1e9, 1e6, 0.5},
        {"matmul nt BF16", 1e6, 1e4, 0.1},
        {"rms_norm BF16", 1e5, 1e6, 0.8},
    };
    device_rate_t r = {.name = "abacus",
                       .fingerprint = "abacus, 2 rows",
                       .peak_flops = {[LH_DTYPE_F32] = 2e11, [LH_DTYPE_BF16] = 1e12},
                       .bytes_per_second = 1e11,
                       .launch_s = 2e-6};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        assert_int_equal(device_rate_add(&r, &ops[i]), LH_OK);
    return r;
}

static void a_call_takes_the_larger_of_both_bounds(void **state)
{
    (void)state;
    device_rate_t r = made_up();
    bool measured;
    const program_call_t computes = {.op = &matmul,
                                     .attributes = &transposed,
                                     .args = &bf16,
                                     .arg_count = 1,
                                     .flops = 2e9,
                                     .bytes = 1e6};
    /* 2e9 / 1e12 = 2 ms / 1000; at half of it 4 us, and the launch */
    assert_true(near(device_rate_seconds(&r, &computes, &measured), 2e-3 / 0.5 + 2e-6));
    assert_true(measured);
    const program_call_t moves = {
        .op = &norm, .args = &bf16, .arg_count = 1, .flops = 1e5, .bytes = 4e6};
    assert_true(near(device_rate_seconds(&r, &moves, &measured), 4e-5 / 0.8 + 2e-6));
    assert_true(measured);
    device_rate_free(&r);
}

static void the_nearest_size_gives_the_efficiency(void **state)
{
    (void)state;
    device_rate_t r = made_up();
    bool measured;
    const program_call_t small = {.op = &matmul,
                                  .attributes = &transposed,
                                  .args = &bf16,
                                  .arg_count = 1,
                                  .flops = 3e6,
                                  .bytes = 2e4};
    assert_true(near(device_rate_seconds(&r, &small, &measured), 3e-6 / 0.1 + 2e-6));
    device_rate_free(&r);
}

static void another_side_transposed_is_another_kind(void **state)
{
    (void)state;
    device_rate_t r = made_up();
    bool measured = true;
    const program_call_t plain = {
        .op = &matmul, .args = &bf16, .arg_count = 1, .flops = 1e9, .bytes = 1e6};
    assert_true(near(device_rate_seconds(&r, &plain, &measured), 1e-3 + 2e-6));
    assert_false(measured);
    device_rate_free(&r);
}

static void the_first_floating_argument_names_the_dtype(void **state)
{
    (void)state;
    const lh_arg_t args[] = {ids, bf16};
    const op_t embed = {.row = {.name = "embed"}};
    const program_call_t call = {.op = &embed, .args = args, .arg_count = 2};
    const program_call_t fill = {.bytes = 8};
    char kind[CALL_KIND];
    device_rate_kind(&call, kind);
    assert_string_equal(kind, "embed BF16");
    device_rate_kind(&fill, kind);
    assert_string_equal(kind, "fill");
}

static void a_dtype_without_a_peak_counts_at_that_of_f32(void **state)
{
    (void)state;
    device_rate_t r = made_up();
    assert_true(near(device_rate_ideal(&r, LH_DTYPE_F16, 4e11, 0), 2));
    device_rate_free(&r);
}

static void a_record_comes_back_as_it_was_saved(void **state)
{
    (void)state;
    device_rate_t r = made_up(), back;
    bool known;
    assert_int_equal(device_rate_load(r.fingerprint, &back, &known), LH_OK);
    assert_false(known);
    assert_int_equal(device_rate_save(&r), LH_OK);
    assert_int_equal(device_rate_load(r.fingerprint, &back, &known), LH_OK);
    assert_true(known);
    assert_string_equal(back.name, "abacus");
    assert_memory_equal(back.peak_flops, r.peak_flops, sizeof(r.peak_flops));
    assert_true(back.bytes_per_second == 1e11 && back.launch_s == 2e-6);
    assert_int_equal(back.op_count, 3);
    assert_memory_equal(back.ops, r.ops, 3 * sizeof(*r.ops));
    device_rate_free(&back);
    device_rate_free(&r);
}

static void write_record(const char *fingerprint, const char *text)
{
    char *path;
    assert_int_equal(device_rate_path(fingerprint, &path), LH_OK);
    char *above = path_folder(path);
    assert_int_equal(folder_make(above), LH_OK);
    assert_int_equal(file_replace(path, text, strlen(text)), LH_OK);
    mem_free(above);
    mem_free(path);
}

static void a_record_of_another_fingerprint_is_not_used(void **state)
{
    (void)state;
    device_rate_t back = {0};
    bool known = true;
    write_record("mine", "{\"version\": 1, \"fingerprint\": \"theirs\", \"name\": \"x\", "
                         "\"bytes_per_second\": 1, \"launch_s\": 0, \"peak_flops\": {}, "
                         "\"ops\": []}");
    assert_int_equal(device_rate_load("mine", &back, &known), LH_OK);
    assert_false(known);
}

static void a_record_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{\"version\": 2}",
        "{\"version\": 1}",
        "{\"version\": 1, \"fingerprint\": \"bad\", \"name\": \"x\", \"bytes_per_second\": -1, "
        "\"launch_s\": 0, \"peak_flops\": {}, \"ops\": []}",
        "{\"version\": 1, \"fingerprint\": \"bad\", \"name\": \"x\", \"bytes_per_second\": 1, "
        "\"launch_s\": 0, \"peak_flops\": {\"F33\": 1}, \"ops\": []}",
        "{\"version\": 1, \"fingerprint\": \"bad\", \"name\": \"x\", \"bytes_per_second\": 1, "
        "\"launch_s\": 0, \"peak_flops\": {}, \"ops\": [{\"kind\": \"copy\", \"flops\": 1, "
        "\"bytes\": 1, \"efficiency\": 0}]}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        device_rate_t back = {0};
        bool known = false;
        write_record("bad", texts[i]);
        assert_int_equal(device_rate_load("bad", &back, &known), LH_INVALID);
        assert_null(back.ops);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_takes_the_larger_of_both_bounds),
        cmocka_unit_test(the_nearest_size_gives_the_efficiency),
        cmocka_unit_test(another_side_transposed_is_another_kind),
        cmocka_unit_test(the_first_floating_argument_names_the_dtype),
        cmocka_unit_test(a_dtype_without_a_peak_counts_at_that_of_f32),
        cmocka_unit_test(a_record_comes_back_as_it_was_saved),
        cmocka_unit_test(a_record_of_another_fingerprint_is_not_used),
        cmocka_unit_test(a_record_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
