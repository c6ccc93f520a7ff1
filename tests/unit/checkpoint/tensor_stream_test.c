/* tensor_stream_test.c - a tensor that is read some elements at a time is the one that is read whole,
 * in any layout, from anywhere; and damage of a part that is touched is found. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>
#include <unistd.h>

#include <base/dtype.h>
#include <checkpoint/tensor_stream.h>

enum { MATRICES = 2, ROWS = 6, COLUMNS = 10, ELEMENTS = MATRICES * ROWS * COLUMNS, MOST_PARTS = 6 };

static const uint64_t shape[LH_MAX_RANK] = {MATRICES, ROWS, COLUMNS};

static tensor_part_t range(uint64_t first, uint64_t count)
{
    return tensor_part_range(3, shape, first, count);
}

/* Ranges that were not written in their order; matrices, one of them in two; columns, whose rows have
 * gaps between them. */
static uint32_t layout(int which, tensor_part_t parts[MOST_PARTS])
{
    if (which == 0) {
        parts[0] = range(77, 43);
        parts[1] = range(0, 5);
        parts[2] = range(5, 72);
        return 3;
    }
    if (which == 1) {
        for (uint64_t i = 0; i < 3; i++)
            parts[i] = (tensor_part_t){.at = {i == 0 ? 1 : 0},
                                       .shape = {1, ROWS, COLUMNS},
                                       .first = i == 2   ? 0
                                                : i == 1 ? 13
                                                         : 0,
                                       .count = i == 0   ? 60
                                                : i == 1 ? 47
                                                         : 13};
        return 3;
    }
    for (uint64_t i = 0; i < 2; i++)
        parts[i] = (tensor_part_t){.at = {0, 0, i * 4},
                                   .shape = {MATRICES, ROWS, i == 0 ? 4 : 6},
                                   .count = (uint64_t)MATRICES * ROWS * (i == 0 ? 4 : 6)};
    return 2;
}

enum { LAYOUTS = 3 };

static float value_at(uint64_t element)
{
    return (float)element - 60.0f; /* exact as BF16, too */
}

static checkpoint_t *save(scratch_t *s, const tensor_part_t *parts, uint32_t count,
                          lh_dtype_t dtype)
{
    static float values[MOST_PARTS][ELEMENTS];
    static uint16_t narrow[MOST_PARTS][ELEMENTS];
    checkpoint_tensor_t tensors[MOST_PARTS];
    const void *data[MOST_PARTS];
    for (uint32_t i = 0; i < count; i++) {
        tensor_walk_t walk;
        tensor_run_t run;
        tensors[i] = (checkpoint_tensor_t){
            .name = "t", .dtype = dtype, .rank = 3, .part = parts[i]};
        memcpy(tensors[i].shape, shape, sizeof(shape));
        tensor_walk_start(&walk, &parts[i], 3, shape);
        while (tensor_walk_next(&walk, &run))
            for (uint64_t k = 0; k < run.count; k++)
                values[i][run.local + k] = value_at(run.logical + k);
        if (dtype != LH_DTYPE_F32)
            assert_int_equal(
                dtype_convert(dtype, narrow[i], LH_DTYPE_F32, values[i], parts[i].count), LH_OK);
        data[i] = dtype == LH_DTYPE_F32 ? (const void *)values[i] : narrow[i];
    }
    const checkpoint_meta_t meta = {.run = "test", .step = 1};
    commit_t *commit;
    checkpoint_t *c = NULL;
    assert_int_equal(commit_begin(s->folder, &meta, "", &commit), LH_OK);
    if (commit_write_all(commit, 0, tensors, data, count, 0) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    if (commit_finish(commit, NULL) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(checkpoint_open(scratch_path(s, "step-000000000001"), &c), LH_OK);
    return c;
}

static void check_range(checkpoint_t *c, uint64_t begin, uint64_t count, uint64_t step)
{
    tensor_stream_t *stream;
    float out[ELEMENTS];
    assert_int_equal(tensor_stream_open(c, checkpoint_find(c, "t"), begin, count, &stream), LH_OK);
    for (uint64_t done = 0; done < count; done += step) {
        const uint64_t n = count - done < step ? count - done : step;
        assert_int_equal(tensor_stream_next(stream, out, n), LH_OK);
        for (uint64_t i = 0; i < n; i++)
            assert_true(out[i] == value_at(begin + done + i));
    }
    tensor_stream_close(stream);
}

static void any_range_of_any_layout_comes_in_pieces(void **state)
{
    (void)state;
    static const uint64_t steps[] = {1, 7, ELEMENTS};
    static const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
    for (int which = 0; which < LAYOUTS; which++)
        for (size_t d = 0; d < 2; d++) {
            scratch_t s;
            void *at = NULL;
            tensor_part_t parts[MOST_PARTS];
            assert_int_equal(scratch_setup(&at), 0);
            s = *(scratch_t *)at;
            checkpoint_t *c = save(&s, parts, layout(which, parts), dtypes[d]);
            for (uint64_t begin = 0; begin <= ELEMENTS; begin += 13)
                for (size_t k = 0; k < 3; k++) {
                    check_range(c, begin, ELEMENTS - begin, steps[k]);
                    check_range(c, begin / 2, ELEMENTS - begin, steps[k]);
                }
            checkpoint_close(c);
            assert_int_equal(scratch_teardown(&at), 0);
        }
}

/* Of a part, elements 5 to 76: a byte of the last one is changed, and the first are wanted. */
static void damage_behind_what_is_wanted_is_found(void **state)
{
    scratch_t *s = *state;
    tensor_part_t parts[MOST_PARTS];
    tensor_stream_t *stream;
    float out[8];
    checkpoint_t *c = save(s, parts, layout(0, parts), LH_DTYPE_F32);
    const manifest_tensor_t *t = checkpoint_find(c, "t");
    for (uint32_t i = 0; i < t->part_count; i++) {
        const manifest_part_t *part = &t->parts[i];
        if (part->part.count != 72) continue;
        const safetensors_t *file = c->files[part->file];
        const safetensor_t *stored = safetensors_find(file, part->stored);
        const int fd = open(file->path, O_WRONLY);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "x", 1, (off_t)(stored->offset + stored->bytes - 2)), 1);
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(tensor_stream_open(c, t, 6, 8, &stream), LH_OK);
    assert_int_equal(tensor_stream_next(stream, out, 4), LH_OK);
    assert_int_equal(tensor_stream_next(stream, out, 4), LH_CORRUPT);
    assert_non_null(strstr(fail_reason(), "its bytes hash to"));
    tensor_stream_close(stream);
    check_range(c, 77, 43, 8); /* of another part */
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_range_of_any_layout_comes_in_pieces),
        cmocka_unit_test_setup_teardown(damage_behind_what_is_wanted_is_found, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
