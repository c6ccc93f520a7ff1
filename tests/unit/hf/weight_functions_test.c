/* weight_functions_test.c - transforms against the layouts that the models' own code documents. */
#include <unit/base/scratch_files.h>
#include <unit/plugin/host_kit.h>

#include <hf/hf_functions.h>
#include <plugin/call.h>

static lh_tensor_t tensor(uint64_t rows, uint64_t columns, float *data)
{
    return (lh_tensor_t){.struct_size = sizeof(lh_tensor_t),
                         .dtype = LH_DTYPE_F32,
                         .rank = columns == 0 ? 1 : 2,
                         .shape = {rows, columns},
                         .stride = {columns == 0 ? 1 : columns, 1},
                         .data = data,
                         .data_bytes = rows * (columns == 0 ? 1 : columns) * sizeof(float)};
}

static lh_status_t run(const char *text, lh_tensor_t source, lh_tensor_t out)
{
    static const call_variable_t variables[] = {{"source", CALL_TENSOR}, {"out", CALL_TENSOR}};
    const call_scope_t scope = {.functions = weight_functions,
                                .function_count = weight_function_count,
                                .variables = variables,
                                .variable_count = 2,
                                .host = host};
    const call_value_t values[] = {{.tensor = &source}, {.tensor = &out}};
    call_t *call;
    lh_status_t status = call_bind(text, "row", &scope, CALL_STATUS, &call);
    if (status != LH_OK) return status;
    status = call_run(call, values, NULL);
    call_free(call);
    return status;
}

/* Each number says where it stands: 100 x row + column. */
static void count(float *data, uint64_t rows, uint64_t columns)
{
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t k = 0; k < columns; k++)
            data[i * columns + k] = (float)(100 * i + k);
}

static void conv1d_is_transposed(void **state)
{
    (void)state;
    float from[6], to[6] = {0};
    count(from, 2, 3);
    assert_int_equal(run("transposed(source)", tensor(2, 3, from), tensor(3, 2, to)), LH_OK);
    static const float wanted[] = {0, 100, 1, 101, 2, 102};
    assert_memory_equal(to, wanted, sizeof(wanted));
    assert_int_equal(run("transposed(source)", tensor(2, 3, from), tensor(2, 3, to)), LH_INVALID);
    assert_non_null(
        strstr(fail_reason(), "transposed: source [2, 3] becomes [3, 2], out is [2, 3]"));
}

/* c_attn [in 2, out 6]: q, k, v are columns 0-1, 2-3, 4-5. */
static void a_fused_conv1d_is_cut_by_columns(void **state)
{
    (void)state;
    float from[12], to[4], back[12] = {0};
    char text[64];
    count(from, 2, 6);
    for (int part = 0; part < 3; part++) {
        (void)snprintf(text, sizeof(text), "columns_in(source, part=%d, parts=3)", part);
        assert_int_equal(run(text, tensor(2, 6, from), tensor(2, 2, to)), LH_OK);
        const float first = (float)(2 * part);
        const float wanted[] = {first, first + 100, first + 1, first + 101};
        assert_memory_equal(to, wanted, sizeof(wanted));
        (void)snprintf(text, sizeof(text), "columns_out(source, part=%d, parts=3)", part);
        assert_int_equal(run(text, tensor(2, 2, to), tensor(2, 6, back)), LH_OK);
    }
    assert_memory_equal(back, from, sizeof(from));
    assert_int_equal(
        run("columns_in(source, part=3, parts=3)", tensor(2, 6, from), tensor(2, 2, to)),
        LH_INVALID);
}

static void a_fused_bias_is_cut_by_rows(void **state)
{
    (void)state;
    float from[6] = {0, 1, 2, 3, 4, 5}, to[2], back[6] = {0};
    assert_int_equal(run("rows_in(source, part=1, parts=3)", tensor(6, 0, from), tensor(2, 0, to)),
                     LH_OK);
    assert_true(to[0] == 2 && to[1] == 3);
    assert_int_equal(run("rows_out(source, part=2, parts=3)", tensor(2, 0, to), tensor(6, 0, back)),
                     LH_OK);
    assert_true(back[3] == 0 && back[4] == 2 && back[5] == 3);
}

/* Phi-3's qkv_proj with 2 query heads and 1 key head of 2: rows 0-3 are q, 4-5 k, 6-7 v. */
static void rows_of_unequal_heights_are_cut_and_put_back(void **state)
{
    (void)state;
    static const struct {
        int first, rows;
    } parts[] = {{0, 4}, {4, 2}, {6, 2}};
    float from[16], to[8], back[16] = {0};
    count(from, 8, 2);
    for (int i = 0; i < 3; i++) {
        char text[64];
        const uint64_t rows = (uint64_t)parts[i].rows;
        (void)snprintf(text, sizeof(text), "rows_from(source, first=%d)", parts[i].first);
        assert_int_equal(run(text, tensor(8, 2, from), tensor(rows, 2, to)), LH_OK);
        assert_true(to[0] == (float)(100 * parts[i].first));
        assert_true(to[2 * rows - 1] == (float)(100 * (parts[i].first + parts[i].rows - 1) + 1));
        (void)snprintf(text, sizeof(text), "rows_to(source, first=%d)", parts[i].first);
        assert_int_equal(run(text, tensor(rows, 2, to), tensor(8, 2, back)), LH_OK);
    }
    assert_memory_equal(back, from, sizeof(from));
    assert_int_equal(run("rows_from(source, first=7)", tensor(8, 2, from), tensor(2, 2, to)),
                     LH_INVALID);
    assert_non_null(strstr(fail_reason(), "rows_from: source [8, 2] does not fit out [2, 2]"));
    assert_int_equal(run("rows_to(source, first=7)", tensor(2, 2, to), tensor(8, 2, back)),
                     LH_INVALID);
}

static void elements_are_scaled(void **state)
{
    (void)state;
    const float values[] = {1, -3.25f, 0};
    float from[3], to[3], back[3];
    memcpy(from, values, sizeof(from));
    assert_int_equal(run("scaled(source, factor=0.125)", tensor(3, 0, from), tensor(3, 0, to)),
                     LH_OK);
    assert_true(to[0] == 0.125f && to[1] == -0.40625f && to[2] == 0);
    assert_int_equal(run("scaled(source, factor=8)", tensor(3, 0, to), tensor(3, 0, back)), LH_OK);
    assert_memory_equal(back, values, sizeof(values));
    assert_int_equal(run("scaled(source, factor=8)", tensor(3, 0, to), tensor(2, 0, back)),
                     LH_INVALID);
}

/* 1 + w: the smallest of BF16 that comes back, and one that does not. */
static void a_term_is_added(void **state)
{
    (void)state;
    const float values[] = {0.5f, -0x1.02p-16f, 0x1.02p-20f};
    float from[3], to[3], back[3];
    memcpy(from, values, sizeof(from));
    assert_int_equal(run("plus(source, term=1)", tensor(3, 0, from), tensor(3, 0, to)), LH_OK);
    assert_true(to[0] == 1.5f);
    assert_int_equal(run("plus(source, term=-1)", tensor(3, 0, to), tensor(3, 0, back)), LH_OK);
    assert_memory_equal(back, values, 2 * sizeof(values[0]));
    assert_true(back[2] != values[2]);
    assert_int_equal(run("plus(source, term=1)", tensor(3, 0, from), tensor(2, 0, to)), LH_INVALID);
}

/* Head dimension 2, one column; the rows' order as the modelling code of each family has it. */
static const struct {
    uint64_t heads, kv_heads;
    const char *q, *k, *v; /* head numbers in the fused tensor */
} fused[] = {
    {3, 1, "012", "3", "4"},     /* multi-query: all queries, then K, then V      */
    {4, 2, "0145", "26", "37"},  /* by key/value group: its queries, its K, its V */
    {3, 3, "036", "147", "258"}, /* per head: q, k, v                             */
};

static void fused_qkv_is_split_by_group(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(fused) / sizeof(fused[0]); i++) {
        const char *const parts[] = {fused[i].q, fused[i].k, fused[i].v};
        const uint64_t rows = 2 * (fused[i].heads + 2 * fused[i].kv_heads);
        float from[32], to[32], back[32] = {0};
        for (uint64_t r = 0; r < rows; r++)
            from[r] = (float)r;
        for (int part = 0; part < 3; part++) {
            char text[96];
            const uint64_t own = strlen(parts[part]);
            (void)snprintf(text, sizeof(text), "split_qkv(source, heads=%d, kv_heads=%d, part=%d)",
                           (int)fused[i].heads, (int)fused[i].kv_heads, part);
            assert_int_equal(run(text, tensor(rows, 1, from), tensor(2 * own, 1, to)), LH_OK);
            for (uint64_t h = 0; h < own; h++) {
                const float first = 2.0f * (float)(parts[part][h] - '0');
                assert_true(to[2 * h] == first && to[2 * h + 1] == first + 1);
            }
            memcpy(text, "join_qkv(", 9);
            memmove(text + 9, text + 10, strlen(text + 10) + 1);
            assert_int_equal(run(text, tensor(2 * own, 1, to), tensor(rows, 1, back)), LH_OK);
        }
        assert_memory_equal(back, from, rows * sizeof(float));
    }
    float x[32] = {0};
    assert_int_equal(
        run("split_qkv(source, heads=3, kv_heads=2, part=0)", tensor(14, 1, x), tensor(6, 1, x)),
        LH_INVALID);
    assert_int_equal(
        run("split_qkv(source, heads=3, kv_heads=0, part=0)", tensor(14, 1, x), tensor(6, 1, x)),
        LH_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv1d_is_transposed),
        cmocka_unit_test(a_fused_conv1d_is_cut_by_columns),
        cmocka_unit_test(a_fused_bias_is_cut_by_rows),
        cmocka_unit_test(rows_of_unequal_heights_are_cut_and_put_back),
        cmocka_unit_test(elements_are_scaled),
        cmocka_unit_test(a_term_is_added),
        cmocka_unit_test(fused_qkv_is_split_by_group),
    };
    return cmocka_run_group_tests(tests, open_host, close_host);
}
