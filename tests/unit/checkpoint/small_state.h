/* small_state.h - a model state of a few tensors whose every value follows from (step, name,
 * index). */
#ifndef TESTS_SMALL_STATE_H
#define TESTS_SMALL_STATE_H

#include <unit/base/scratch_files.h>

#include <checkpoint/checkpoint.h>
#include <checkpoint/commit.h>

enum { SMALL_TENSORS = 4, SMALL_MOST = 64 };

static const checkpoint_tensor_t small_tensors[SMALL_TENSORS] = {
    {.name = "embed", .dtype = LH_DTYPE_F32, .rank = 2, .shape = {8, 4}},
    {.name = "blocks.0.wq",
     .dtype = LH_DTYPE_F32,
     .source = LH_DTYPE_BF16,
     .rank = 2,
     .shape = {4, 4}},
    {.name = "norm", .dtype = LH_DTYPE_F32, .rank = 1, .shape = {4}},
    {.name = "exp_avg/blocks.0.wq", .dtype = LH_DTYPE_F32, .rank = 2, .shape = {4, 4}},
};

static inline uint64_t small_elements(uint32_t tensor)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < small_tensors[tensor].rank; i++)
        elements *= small_tensors[tensor].shape[i];
    return elements;
}

static inline float small_value(uint64_t step, uint32_t tensor, uint64_t index)
{
    return (float)step * 1000.0f + (float)tensor * 100.0f + (float)index + 0.25f;
}

static inline lh_status_t small_save(const char *folder, uint64_t step, uint64_t keep)
{
    float values[SMALL_TENSORS][SMALL_MOST];
    const void *data[SMALL_TENSORS];
    for (uint32_t t = 0; t < SMALL_TENSORS; t++) {
        for (uint64_t i = 0; i < small_elements(t); i++)
            values[t][i] = small_value(step, t, i);
        data[t] = values[t];
    }
    const checkpoint_meta_t meta = {.run = "test", .step = step, .seed = UINT64_MAX};
    commit_t *c;
    lh_status_t status = commit_begin(folder, &meta, "", &c);
    if (status != LH_OK) return status;
    status = commit_write_all(c, 0, small_tensors, data, SMALL_TENSORS, 64);
    if (status != LH_OK) {
        commit_abandon(c);
        return status;
    }
    status = commit_finish(c, NULL);
    if (status == LH_OK) checkpoint_displace(folder, step, &(checkpoint_keep_t){.newest = keep});
    return status;
}

/* Every value is the one that `step` saved. */
static inline void small_check(checkpoint_t *c, uint64_t step)
{
    assert_int_equal(c->manifest->meta.step, step);
    assert_int_equal(c->manifest->tensor_count, SMALL_TENSORS);
    for (uint32_t t = 0; t < SMALL_TENSORS; t++) {
        float values[SMALL_MOST];
        const tensor_part_t whole = {.count = 0};
        const manifest_tensor_t *m = checkpoint_find(c, small_tensors[t].name);
        assert_non_null(m);
        assert_int_equal(checkpoint_read(c, m, &whole, values), LH_OK);
        for (uint64_t i = 0; i < small_elements(t); i++)
            assert_true(values[i] == small_value(step, t, i));
    }
}

/* The step that a folder loads, checked whole; -1: none. */
static inline int64_t small_latest(const char *folder)
{
    checkpoint_t *c = NULL;
    assert_int_equal(checkpoint_open_latest(folder, &c), LH_OK);
    if (c == NULL) return -1;
    const int64_t step = (int64_t)c->manifest->meta.step;
    small_check(c, (uint64_t)step);
    checkpoint_close(c);
    return step;
}

#endif
