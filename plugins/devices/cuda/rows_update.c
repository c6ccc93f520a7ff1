/* rows_update.c - the gradients' norm, clipping, and the rules that change parameters, on flat
 * arrays. */
#include "cuda_rows.h"

/* As one row. */
static cuda_view_t flat_view(const lh_prepared_t *k, uint32_t slot)
{
    cuda_view_t v = {0};
    if (cuda_has(k, slot)) {
        v = k->view[slot];
        cuda_view_t *const views[] = {&v};
        cuda_fold(views, 1);
    }
    return v;
}

static lh_status_t sum_squares_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SUM_SQUARES_TEXT);
    (void)plan;
    const uint64_t elements = cuda_elements(&k->view[in_x]);
    const lh_status_t status = cuda_check_flat(k, in_x, elements);
    if (status != LH_OK) return status;
    return cuda_check_shape(k, out_y, cuda_parts(elements, CUDA_SQUARES), 2);
}

static lh_status_t sum_squares_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SUM_SQUARES_TEXT);
    const cuda_sum_squares_t p = {.x = flat_view(k, in_x), .y = k->view[out_y]};
    const cuda_shape_t shape = {.grid = {(uint32_t)k->view[out_y].rows, 1, 1},
                                .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, "cuda_sum_squares", &shape, &p, sizeof(p));
}

static lh_status_t clip_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CLIP_TEXT);
    (void)plan;
    lh_status_t status = cuda_check_shape(k, in_squares, k->view[in_squares].rows, 2);
    if (status == LH_OK)
        status = cuda_check_shape(k, in_step, k->view[in_step].rows, LH_STEP_WORDS);
    return status != LH_OK ? status : cuda_check_like(k, in_step, out_step);
}

static lh_status_t clip_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_CLIP_TEXT);
    const cuda_clip_t p = {
        .squares = k->view[in_squares], .step = k->view[in_step], .out = k->view[out_step]};
    const cuda_shape_t shape = {.grid = {1, 1, 1}, .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, "cuda_clip", &shape, &p, sizeof(p));
}

/* What the rules have in common: flat arrays of one length beside the words of the step. */
static lh_status_t update_plan(lh_prepared_t *k, uint32_t step)
{
    const cuda_view_t *words = &k->view[step];
    if (words->width < LH_STEP_WORDS)
        return k->host->fail(k->host, LH_UNSUPPORTED, "%s: step has %llu words, %d are wanted",
                             k->op->name, (unsigned long long)words->width, LH_STEP_WORDS);
    for (uint32_t i = 0; i < k->arg_count; i++) {
        const lh_status_t status = i == step ? LH_OK
                                             : cuda_check_flat(k, i, cuda_elements(&k->view[0]));
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t adamw_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ADAMW_TEXT);
    (void)plan;
    return update_plan(k, in_step);
}

static lh_status_t adamw_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ADAMW_TEXT);
    const lh_adamw_t *how = &k->how.adamw;
    const cuda_adamw_t p = {.g = flat_view(k, in_g),
                            .master = flat_view(k, in_master),
                            .m1 = flat_view(k, in_m1),
                            .m2 = flat_view(k, in_m2),
                            .master_out = flat_view(k, out_master),
                            .m1_out = flat_view(k, out_m1),
                            .m2_out = flat_view(k, out_m2),
                            .w = flat_view(k, out_w),
                            .step = k->view[in_step].at,
                            .beta1 = how->beta1,
                            .beta2 = how->beta2,
                            .epsilon = how->epsilon,
                            .decay = how->decay};
    return cuda_launch_octets(s, "cuda_adamw", &p.g, &p, sizeof(p));
}

static lh_status_t sgd_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SGD_TEXT);
    (void)plan;
    if (cuda_has(k, in_m1) != cuda_has(k, out_m1))
        return k->host->fail(k->host, LH_INVALID,
                             "sgd: the momentum is an input or an output only");
    return update_plan(k, in_step);
}

static lh_status_t sgd_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SGD_TEXT);
    const cuda_sgd_t p = {.g = flat_view(k, in_g),
                          .master = flat_view(k, in_master),
                          .m1 = flat_view(k, in_m1),
                          .master_out = flat_view(k, out_master),
                          .m1_out = flat_view(k, out_m1),
                          .w = flat_view(k, out_w),
                          .step = k->view[in_step].at,
                          .momentum = k->how.sgd.momentum,
                          .decay = k->how.sgd.decay,
                          .nesterov = k->how.sgd.nesterov};
    return cuda_launch_octets(s, "cuda_sgd", &p.g, &p, sizeof(p));
}

const cuda_op_t cuda_update_ops[] = {
    {"sum_squares", "mf", sum_squares_plan, sum_squares_launch},
    {"clip", "fff", clip_plan, clip_launch},
    {"adamw", "mfmmffmmm?", adamw_plan, adamw_launch},
    {"sgd", "mfm?ffm?m?", sgd_plan, sgd_launch},
    {NULL, NULL, NULL, NULL},
};
