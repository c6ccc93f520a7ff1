/* The cpu device's kernels against the reference device (double inside, results rounded to the same
 * dtype), on every instruction set this machine has, with one and two threads.
 *
 * Tolerances are relative to the largest element of an output. By element: a few F32 roundings,
 * 1e-6. Sums of n terms of size 1 in F32 with partial sums: their roundings walk, n^0.5 6e-8 at
 * most, and results are of size n^0.5 or are divided by n; 3e-6 covers n = 4096. Slopes of tanh and
 * erf: 1 - t^2 cancels near the flat ends and is then multiplied by up to 9, 4e-6. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <longhaul/dtype.h>

#include "cpu_rigs.h"

#define ELEMENT 1e-6
#define SUM 3e-6
#define SLOPE 4e-6
#define EACH(type, item, ...)                                                                \
    for (const type *item = (const type[]){__VA_ARGS__},                                     \
                    *item##_end = item + sizeof((const type[]){__VA_ARGS__}) / sizeof(type); \
         item < item##_end; item++)
#define EACH_DTYPE(d) EACH(lh_dtype_t, d, LH_DTYPE_F32, LH_DTYPE_BF16)
#define EACH_SHAPE(s) \
    EACH(shape_t, s, {1, 5, 0}, {7, 53, 3}, {130, 384, 0}, {67, 128, 128}, {3, 1000, 0})

typedef struct shape {
    uint64_t rows, width, pad;
} shape_t;

enum { DATA = 6 };
static double data[DATA][CPU_RIGS_MAX_ELEMENTS];
static double ids[4096], positive[4096];

/* Whole numbers in [from, to]. */
static void whole_numbers(double *out, uint64_t count, uint64_t seed, double from, double to)
{
    rig_random(seed, out, count);
    for (uint64_t i = 0; i < count; i++)
        out[i] = floor(from + (out[i] + 1) / 2 * (to - from + 1));
}

static int setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < DATA; i++)
        rig_random(i + 1, data[i], CPU_RIGS_MAX_ELEMENTS);
    for (uint32_t i = 0; i < 4096; i++)
        positive[i] = 0.5 + fabs(data[5][i]);
    cpu_rigs_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cpu_rigs_close();
    return 0;
}

static void elements_add_in_any_mix(void **state)
{
    (void)state;
    EACH_SHAPE(s) EACH_DTYPE(a) EACH_DTYPE(b) EACH_DTYPE(y)
    {
        CPU_CHECK("add", NULL, ELEMENT, cpu_padded(cpu_in(*a, data[0], s->rows, s->width), s->pad),
                  cpu_in(*b, data[1], s->rows, s->width),
                  cpu_padded(cpu_out(*y, s->rows, s->width), s->pad));
    }
    CPU_CHECK("add", NULL, ELEMENT, cpu_line(LH_DTYPE_F32, data[0], 100003),
              cpu_line(LH_DTYPE_BF16, data[1], 100003),
              cpu_over(cpu_out_line(LH_DTYPE_F32, 100003), 1));
}

static void a_factor_may_be_a_column_or_a_row(void **state)
{
    (void)state;
    EACH_SHAPE(s) EACH_DTYPE(a) EACH_DTYPE(b)
    {
        const rig_slot_t x = cpu_padded(cpu_in(*a, data[0], s->rows, s->width), s->pad);
        const rig_slot_t y = cpu_out(*a, s->rows, s->width);
        CPU_CHECK("multiply", NULL, ELEMENT, x, cpu_in(*b, data[1], s->rows, s->width), y);
        CPU_CHECK("multiply", NULL, ELEMENT, x, cpu_in(*b, data[1], s->rows, 1), y);
        CPU_CHECK("multiply", NULL, ELEMENT, x, cpu_line(*b, data[1], s->width), y);
        CPU_CHECK("scale", NULL, ELEMENT, x, cpu_line(LH_DTYPE_F32, data[2], 1), y);
    }
}

static void copies_convert_and_walk_strides(void **state)
{
    (void)state;
    EACH_SHAPE(s) EACH_DTYPE(from) EACH(lh_dtype_t, to, LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_F64)
    {
        const rig_slot_t x = cpu_padded(cpu_in(*from, data[0], s->rows, s->width), s->pad);
        const rig_slot_t y = cpu_padded(cpu_out(*to, s->rows, s->width), s->pad / 2);
        CPU_CHECK("copy", NULL, 0, x, y);
        CPU_CHECK("copy", NULL, ELEMENT, x, cpu_adds(y, data[1]));
    }
    whole_numbers(ids, 4096, 9, -1000, 1000);
    CPU_CHECK("copy", NULL, 0, cpu_line(LH_DTYPE_I32, ids, 999), cpu_out_line(LH_DTYPE_F32, 999));
    CPU_CHECK("copy", NULL, 0, cpu_line(LH_DTYPE_F64, ids, 999), cpu_out_line(LH_DTYPE_I32, 999));
}

/* 256 is the first number with a neighbour two away: odd ones above lie on a tie. */
static void a_tie_rounds_to_even(void **state)
{
    (void)state;
    static double ties[401];
    for (uint32_t i = 0; i < 401; i++)
        ties[i] = (i % 2 == 0 ? 1 : -1) * (256.0 + i) * 0x1p-20;
    ties[400] = INFINITY;
    ties[399] = NAN;
    ties[398] = 3.4e38; /* past the largest BF16, rounds to infinity */
    ties[397] = -1e-40; /* below the smallest that is normalized */
    CPU_CHECK("copy", NULL, 0, cpu_line(LH_DTYPE_F32, ties, 401), cpu_out_line(LH_DTYPE_BF16, 401));
    CPU_CHECK("copy", NULL, 0, cpu_line(LH_DTYPE_F64, ties, 401), cpu_out_line(LH_DTYPE_BF16, 401));
}

static void activations_and_gates_have_their_slopes(void **state)
{
    (void)state;
    static double wide[DATA][8192]; /* up to the flat ends of tanh and erf */
    for (uint32_t i = 0; i < DATA; i++) {
        for (uint32_t j = 0; j < 8192; j++)
            wide[i][j] = data[i][j] * (j % 3 == 0 ? 12 : 2);
    }
    EACH(uint32_t, f, LH_ACT_NONE, LH_ACT_SILU, LH_ACT_GELU, LH_ACT_GELU_TANH, LH_ACT_TANH)
    EACH_DTYPE(d) EACH(shape_t, s, {1, 5, 0}, {31, 53, 3}, {20, 384, 0})
    {
        const lh_activate_t how = {sizeof(how), *f};
        const rig_slot_t a = cpu_padded(cpu_in(*d, wide[0], s->rows, s->width), s->pad);
        const rig_slot_t b = cpu_in(*d, wide[1], s->rows, s->width);
        const rig_slot_t gy = cpu_in(*d, data[2], s->rows, s->width);
        const rig_slot_t y = cpu_padded(cpu_out(*d, s->rows, s->width), s->pad);
        CPU_CHECK("activate", &how, ELEMENT, a, y);
        CPU_CHECK("activate_grad", &how, SLOPE, gy, a, y);
        CPU_CHECK("gate", &how, ELEMENT, a, b, y);
        CPU_CHECK("gate_grad", &how, SLOPE, gy, a, b, y, y);
    }
}

static void rms_norm_and_its_gradient(void **state)
{
    (void)state;
    EACH_SHAPE(s) EACH_DTYPE(d) EACH(uint32_t, one_plus, 0, 1)
    {
        const lh_norm_t how = {sizeof(how), *one_plus, 1e-5};
        const rig_slot_t x = cpu_padded(cpu_in(*d, data[0], s->rows, s->width), s->pad);
        const rig_slot_t gy = cpu_in(*d, data[1], s->rows, s->width);
        const rig_slot_t w = cpu_line(*d, data[2], s->width);
        const rig_slot_t y = cpu_padded(cpu_out(*d, s->rows, s->width), s->pad);
        const rig_slot_t gw = cpu_out_line(LH_DTYPE_F32, s->width);
        const rig_slot_t rstd = cpu_line(LH_DTYPE_F32, positive, s->rows);
        CPU_CHECK("rms_norm", &how, SUM, x, w, y, cpu_out_line(LH_DTYPE_F32, s->rows));
        CPU_CHECK("rms_norm", &how, SUM, x, w, y, RIG_NONE);
        CPU_CHECK("rms_norm_grad", &how, SUM, gy, x, w, rstd, y, gw);
        CPU_CHECK("rms_norm_grad", &how, SUM, gy, x, w, rstd, y, cpu_adds(gw, data[3]));
        const rig_slot_t residual = cpu_padded(cpu_in(*d, data[3], s->rows, s->width), s->pad);
        CPU_CHECK("rms_norm_grad_add", &how, cpu_rounded_part(SUM, *d), gy, x, w, rstd, residual, y,
                  gw);
        CPU_CHECK("rms_norm_grad_add", &how, cpu_rounded_part(SUM, *d), gy, x, w, rstd, residual, y,
                  cpu_adds(gw, data[3]));
        CPU_CHECK("add_rms_norm", &how, SUM, x, gy, w, y, y, cpu_out_line(LH_DTYPE_F32, s->rows));
    }
}

static void layer_norm_and_its_gradient(void **state)
{
    (void)state;
    EACH_SHAPE(s) EACH_DTYPE(d)
    {
        const lh_norm_t how = {sizeof(how), 0, 1e-5};
        const rig_slot_t x = cpu_padded(cpu_in(*d, data[0], s->rows, s->width), s->pad);
        const rig_slot_t gy = cpu_in(*d, data[1], s->rows, s->width);
        const rig_slot_t w = cpu_line(*d, data[2], s->width), b = cpu_line(*d, data[3], s->width);
        const rig_slot_t y = cpu_padded(cpu_out(*d, s->rows, s->width), s->pad);
        const rig_slot_t g = cpu_out_line(LH_DTYPE_F32, s->width);
        const rig_slot_t mean = cpu_line(LH_DTYPE_F32, data[4], s->rows);
        const rig_slot_t rstd = cpu_line(LH_DTYPE_F32, positive, s->rows);
        const rig_slot_t each = cpu_out_line(LH_DTYPE_F32, s->rows);
        CPU_CHECK("layer_norm", &how, SUM, x, w, b, y, each, each);
        CPU_CHECK("layer_norm", &how, SUM, x, w, RIG_NONE, y, RIG_NONE, RIG_NONE);
        CPU_CHECK("layer_norm_grad", &how, SUM, gy, x, w, mean, rstd, y, g, g);
        CPU_CHECK("layer_norm_grad", &how, SUM, gy, x, w, mean, rstd, y, cpu_adds(g, data[4]),
                  RIG_NONE);
        CPU_CHECK("layer_norm_grad", &how, SUM, gy, x, w, mean, rstd, y, cpu_adds(g, data[4]),
                  cpu_adds(g, data[5]));
        const rig_slot_t residual = cpu_padded(cpu_in(*d, data[3], s->rows, s->width), s->pad);
        CPU_CHECK("layer_norm_grad_add", &how, cpu_rounded_part(SUM, *d), gy, x, w, mean, rstd,
                  residual, y, g, g);
        CPU_CHECK("layer_norm_grad_add", &how, cpu_rounded_part(SUM, *d), gy, x, w, mean, rstd,
                  residual, y, cpu_adds(g, data[4]), RIG_NONE);
    }
}

/* The gradient of a norm, then an add of what comes by the residual. */
static void gradients_with_a_residual_have_the_bits_of_their_parts(void **state)
{
    (void)state;
    static double found[2][CPU_RIGS_MAX_ELEMENTS], sums[4][1024];
    static const struct {
        const char *whole, *part;
        uint32_t statistics, weights; /* slots of the statistics, and of gradients of weights */
    } ops[] = {{"rms_norm_grad_add", "rms_norm_grad", 1, 1},
               {"layer_norm_grad_add", "layer_norm_grad", 2, 2}};
    EACH_SHAPE(s) EACH_DTYPE(d) EACH(uint32_t, o, 0, 1)
    {
        rig_t *rig = cpu_rigs_best();
        const lh_norm_t how = {sizeof(how), 1, 1e-5};
        const rig_slot_t x = cpu_padded(cpu_in(*d, data[0], s->rows, s->width), s->pad);
        const rig_slot_t residual = cpu_padded(cpu_in(*d, data[3], s->rows, s->width), s->pad);
        rig_slot_t parts[8] = {cpu_in(*d, data[1], s->rows, s->width), x,
                               cpu_line(*d, data[2], s->width)};
        rig_slot_t whole[9], gx = cpu_in(*d, NULL, s->rows, s->width);
        uint32_t n = 3;
        for (uint32_t i = 0; i < ops[*o].statistics; i++)
            parts[n++] = cpu_line(LH_DTYPE_F32, i + 1 < ops[*o].statistics ? data[4] : positive,
                                  s->rows);
        memcpy(whole, parts, sizeof(parts));
        whole[n] = residual;
        gx.out = found[0];
        parts[n] = whole[n + 1] = gx;
        whole[n + 1].out = found[1];
        for (uint32_t i = 0; i < ops[*o].weights; i++) {
            parts[n + 1 + i] = RIG_OUT(F32, sums[i], s->width);
            whole[n + 2 + i] = RIG_OUT(F32, sums[2 + i], s->width);
        }
        assert_int_equal(rig_run(rig, ops[*o].part, &how, parts, n + 1 + ops[*o].weights), LH_OK);
        gx.in = found[0];
        rig_slot_t sum = cpu_in(*d, NULL, s->rows, s->width);
        sum.out = found[0];
        const rig_slot_t add[] = {gx, residual, sum};
        assert_int_equal(rig_run(rig, "add", NULL, add, 3), LH_OK);
        assert_int_equal(rig_run(rig, ops[*o].whole, &how, whole, n + 2 + ops[*o].weights), LH_OK);
        assert_memory_equal(found[0], found[1], s->rows * s->width * sizeof(double));
        for (uint32_t i = 0; i < ops[*o].weights; i++)
            assert_memory_equal(sums[i], sums[2 + i], s->width * sizeof(double));
    }
}

/* The angle is a product in F32; up to 2^17 positions, where F32 has no digits to spare. */
static void rope_turns_pairs(void **state)
{
    (void)state;
    static double frequencies[64];
    for (uint32_t i = 0; i < 64; i++)
        frequencies[i] = pow(10000, -i / 64.0);
    whole_numbers(ids, 300, 3, 0, 131072);
    EACH_DTYPE(d)
    EACH(lh_rope_t, how, {sizeof(lh_rope_t), 3, 16, 8, 0, 0, 0},
         {sizeof(lh_rope_t), 2, 64, 32, 0, 1, 1.25}, {sizeof(lh_rope_t), 2, 20, 5, 0, 0, 0},
         {sizeof(lh_rope_t), 4, 10, 5, 1, 0, 0}, {sizeof(lh_rope_t), 1, 128, 64, 1, 1, 0.5})
    {
        const uint64_t width = (uint64_t)how->heads * how->head_dim;
        const rig_slot_t x = cpu_padded(cpu_in(*d, data[0], 300, width), 16);
        const rig_slot_t positions = cpu_line(LH_DTYPE_I32, ids, 300);
        const rig_slot_t f = cpu_line(LH_DTYPE_F32, frequencies, how->pairs);
        CPU_CHECK("rope", how, ELEMENT, x, positions, f, cpu_out(*d, 300, width));
        rig_slot_t over = cpu_over(cpu_padded(cpu_out(*d, 300, width), 16), 1);
        CPU_CHECK("rope", how, ELEMENT, x, positions, f, over);
    }
}

static void embeddings_look_up_and_sum(void **state)
{
    (void)state;
    whole_numbers(ids, 4096, 4, -2, 120); /* some belong to nobody */
    EACH_DTYPE(d)
    EACH(shape_t, s, {1, 5, 0}, {700, 53, 3}, {257, 384, 0})
    EACH(lh_rows_t, part, {sizeof(lh_rows_t), 0, 0, 100}, {sizeof(lh_rows_t), 0, 40, 60})
    {
        const rig_slot_t tokens = cpu_line(LH_DTYPE_I32, ids, s->rows);
        const rig_slot_t gy = cpu_padded(cpu_in(*d, data[0], s->rows, s->width), s->pad);
        const rig_slot_t gtable = cpu_out(LH_DTYPE_F32, part->rows, s->width);
        CPU_CHECK("embed", part, 0, tokens, cpu_in(*d, data[1], part->rows, s->width),
                  cpu_padded(cpu_out(*d, s->rows, s->width), s->pad));
        CPU_CHECK("embed", part, 0, tokens, cpu_in(LH_DTYPE_F32, data[1], part->rows, s->width),
                  cpu_out(*d, s->rows, s->width));
        CPU_CHECK("embed_grad", part, SUM, tokens, gy, gtable);
        CPU_CHECK("embed_grad", part, SUM, tokens, gy, cpu_adds(gtable, data[2]));
    }
}

static void rows_and_columns_are_summed(void **state)
{
    (void)state;
    EACH_SHAPE(s) EACH_DTYPE(d)
    {
        const rig_slot_t x = cpu_padded(cpu_in(*d, data[0], s->rows, s->width), s->pad);
        const rig_slot_t line = cpu_out_line(LH_DTYPE_F32, s->width);
        const rig_slot_t column = cpu_out(*d, s->rows, 1);
        CPU_CHECK("sum_rows", NULL, SUM, x, line);
        CPU_CHECK("sum_rows", NULL, SUM, x, cpu_adds(line, data[1]));
        CPU_CHECK("sum_columns", NULL, SUM, x, column);
        CPU_CHECK("sum_columns", NULL, SUM, x, cpu_adds(column, data[1]));
        EACH_DTYPE(other)
        {
            const rig_slot_t change = cpu_in(*other, data[1], s->rows, s->width);
            const rig_slot_t magnitude = cpu_line(*other, data[2], s->rows);
            const rig_slot_t y = cpu_out_line(LH_DTYPE_F32, s->rows);
            CPU_CHECK("dora_scale", NULL, SUM, x, change, magnitude, y, y);
        }
    }
    CPU_CHECK("sum_rows", NULL, SUM, cpu_in(LH_DTYPE_F32, data[0], 4096, 61),
              cpu_out_line(LH_DTYPE_F32, 61));
}

static void cross_entropy_in_three_steps(void **state)
{
    (void)state;
    static double logits[CPU_RIGS_MAX_ELEMENTS], stats[3 * 512], weights[512];
    for (uint64_t i = 0; i < CPU_RIGS_MAX_ELEMENTS; i++)
        logits[i] = 20 * data[0][i];
    for (uint64_t i = 0; i < 512; i++) {
        stats[3 * i] = 21;
        stats[3 * i + 1] = positive[i];
        stats[3 * i + 2] = data[2][i];
        weights[i] = i % 5 == 0 ? 0 : positive[i] / 512;
    }
    EACH(shape_t, s, {1, 5, 0}, {37, 53, 3}, {129, 1000, 0}, {500, 97, 0})
    EACH(lh_rows_t, part, {sizeof(lh_rows_t), 0, 0, 0}, {sizeof(lh_rows_t), 0, 3, 2})
    EACH_DTYPE(d)
    {
        const double top = (double)s->width;
        whole_numbers(ids, s->rows, s->width, -1, top);
        const rig_slot_t x = cpu_padded(cpu_in(*d, logits, s->rows, s->width), s->pad);
        const rig_slot_t labels = cpu_line(LH_DTYPE_I32, ids, s->rows);
        const rig_slot_t known = cpu_in(LH_DTYPE_F32, stats, s->rows, 3);
        const rig_slot_t w = cpu_line(LH_DTYPE_F32, weights, s->rows);
        const rig_slot_t loss = cpu_out_line(LH_DTYPE_F32, 1);
        CPU_CHECK("ce_stats", part, SUM, x, labels, cpu_out(LH_DTYPE_F32, s->rows, 3));
        CPU_CHECK("ce_loss", part, SUM, known, w, loss);
        CPU_CHECK("ce_loss", part, SUM, known, w, cpu_adds(loss, data[3]));
    }
}

/* Statistics of logits of dtype d as ce_stats would give them, which ce_grad relies on for the label. */
static void stats_of(lh_dtype_t d, const double *logits, const shape_t *s, double *stats)
{
    for (uint64_t i = 0; i < s->rows; i++) {
        const double *row = logits + i * s->width;
        double top = rig_round(d, row[0]), sum = 0;
        for (uint64_t j = 0; j < s->width; j++)
            top = fmax(top, rig_round(d, row[j]));
        for (uint64_t j = 0; j < s->width; j++)
            sum += exp(rig_round(d, row[j]) - top);
        const bool mine = ids[i] >= 0 && ids[i] < (double)s->width;
        stats[3 * i] = top;
        stats[3 * i + 1] = sum;
        stats[3 * i + 2] = mine ? rig_round(d, row[(uint64_t)ids[i]]) : 0;
    }
}

static void the_logits_gradient_may_lie_over_them(void **state)
{
    (void)state;
    static double stats[3 * 512];
    EACH(shape_t, s, {1, 5, 0}, {37, 53, 3}, {129, 1000, 0}, {500, 97, 0}) EACH_DTYPE(d)
    {
        whole_numbers(ids, s->rows, s->width, -1, (double)s->width);
        stats_of(LH_DTYPE_F32, data[0], s, stats);
        const rig_slot_t x = cpu_padded(cpu_in(LH_DTYPE_F32, data[0], s->rows, s->width), s->pad);
        const rig_slot_t labels = cpu_line(LH_DTYPE_I32, ids, s->rows);
        const rig_slot_t known = cpu_in(LH_DTYPE_F32, stats, s->rows, 3);
        const rig_slot_t w = cpu_line(LH_DTYPE_F32, positive, s->rows);
        const rig_slot_t g = cpu_out(*d, s->rows, s->width);
        CPU_CHECK("ce_grad", NULL, SUM, x, labels, known, w, cpu_padded(g, s->pad));
        if (*d == LH_DTYPE_F32 || s->pad == 0)
            CPU_CHECK("ce_grad", NULL, SUM, x, labels, known, w,
                      cpu_over(cpu_padded(g, s->pad), 1));
        stats_of(*d, data[0], s, stats);
        const rig_slot_t same = cpu_padded(cpu_in(*d, data[0], s->rows, s->width), s->pad);
        CPU_CHECK("ce_grad", NULL, SUM, same, labels, known, w, cpu_over(cpu_padded(g, s->pad), 1));
    }
}

/* Rows of the gradient are more than half as long as those of the logits that they lie over: behind
 * the first row there is none that may go at once with the next. */
static void the_logits_gradient_may_have_room_between_its_rows(void **state)
{
    (void)state;
    enum { ROWS = 3, WIDTH = 20000, PITCH = WIDTH + 4 };
    static double stats[3 * ROWS], apart[ROWS * WIDTH], over[ROWS * WIDTH];
    const shape_t s = {ROWS, WIDTH, 0};
    rig_t *rig = cpu_rigs_best();
    whole_numbers(ids, ROWS, WIDTH, -1, WIDTH);
    stats_of(LH_DTYPE_F32, data[0], &s, stats);
    rig_slot_t slots[] = {cpu_in(LH_DTYPE_F32, data[0], ROWS, WIDTH),
                          cpu_line(LH_DTYPE_I32, ids, ROWS), cpu_in(LH_DTYPE_F32, stats, ROWS, 3),
                          cpu_line(LH_DTYPE_F32, positive, ROWS),
                          cpu_in(LH_DTYPE_BF16, NULL, ROWS, WIDTH)};
    slots[4].out = apart;
    assert_int_equal(rig_run(rig, "ce_grad", NULL, slots, 5), LH_OK);
    /* Their memory is read as that of the logits: of each F32 the lower half is the first BF16. */
    slots[4] = cpu_over(cpu_padded(cpu_in(LH_DTYPE_BF16, NULL, ROWS, WIDTH), PITCH - WIDTH), 1);
    slots[0].out = over;
    assert_int_equal(rig_run(rig, "ce_grad", NULL, slots, 5), LH_OK);
    for (uint64_t i = 0; i < ROWS * WIDTH; i++) {
        const uint64_t at = i / WIDTH * PITCH + i % WIDTH;
        const uint32_t both = lh_f32_bits((float)over[at / 2]);
        const float found = lh_bf16_to_f32((uint16_t)(at % 2 == 0 ? both & 0xffff : both >> 16));
        assert_true((double)found == apart[i]);
    }
}

/* Of every pair of dtypes; over the logits where both are of one. Every fifth token is masked. */
static void cross_entropy_in_one_pass(void **state)
{
    (void)state;
    static double logits[CPU_RIGS_MAX_ELEMENTS], weights[512];
    for (uint64_t i = 0; i < CPU_RIGS_MAX_ELEMENTS; i++)
        logits[i] = 20 * data[0][i];
    for (uint64_t i = 0; i < 512; i++)
        weights[i] = i % 5 == 0 ? 0 : positive[i] / 512;
    EACH(shape_t, s, {1, 5, 0}, {3, 1, 0}, {37, 53, 3}, {129, 1000, 0}, {500, 97, 0})
    EACH_DTYPE(dx) EACH_DTYPE(dg)
    {
        whole_numbers(ids, s->rows, s->width, -1, (double)s->width);
        const rig_slot_t x = cpu_padded(cpu_in(*dx, logits, s->rows, s->width), s->pad);
        const rig_slot_t labels = cpu_line(LH_DTYPE_I32, ids, s->rows);
        const rig_slot_t w = cpu_line(LH_DTYPE_F32, weights, s->rows);
        const rig_slot_t loss = cpu_out_line(LH_DTYPE_F32, 1);
        const rig_slot_t g = cpu_padded(cpu_out(*dg, s->rows, s->width), s->pad);
        CPU_CHECK("cross_entropy", NULL, SUM, x, labels, w, loss, g);
        CPU_CHECK("cross_entropy", NULL, SUM, x, labels, w, cpu_adds(loss, data[3]), g);
        if (*dx == *dg) CPU_CHECK("cross_entropy", NULL, SUM, x, labels, w, loss, cpu_over(g, 1));
    }
}

/* The same bits as of its parts, on which old jobs and those of other devices rely. */
static void cross_entropy_in_one_pass_has_the_bits_of_its_parts(void **state)
{
    (void)state;
    static double weights[512], found[2][CPU_RIGS_MAX_ELEMENTS], stats[3 * 512], loss[2];
    for (uint64_t i = 0; i < 512; i++)
        weights[i] = i % 5 == 0 ? 0 : positive[i] / 512;
    EACH(shape_t, s, {1, 5, 0}, {37, 53, 3}, {129, 1000, 0}, {3, 20000, 0}, {500, 97, 0})
    EACH_DTYPE(dx) EACH_DTYPE(dg)
    {
        rig_t *rig = cpu_rigs_best();
        whole_numbers(ids, s->rows, s->width, -1, (double)s->width);
        const rig_slot_t x = cpu_padded(cpu_in(*dx, data[0], s->rows, s->width), s->pad);
        const rig_slot_t labels = cpu_line(LH_DTYPE_I32, ids, s->rows);
        const rig_slot_t w = cpu_line(LH_DTYPE_F32, weights, s->rows);
        rig_slot_t known = cpu_in(LH_DTYPE_F32, NULL, s->rows, 3),
                   g = cpu_in(*dg, NULL, s->rows, s->width);
        const rig_slot_t sum = RIG_OUT(F32, &loss[0], 1), whole = RIG_OUT(F32, &loss[1], 1);
        known.out = stats;
        g.out = found[0];
        const rig_slot_t first[] = {x, labels, known};
        assert_int_equal(rig_run(rig, "ce_stats", NULL, first, 3), LH_OK);
        known = cpu_in(LH_DTYPE_F32, stats, s->rows, 3);
        const rig_slot_t second[] = {known, w, sum}, third[] = {x, labels, known, w, g};
        assert_int_equal(rig_run(rig, "ce_loss", NULL, second, 3), LH_OK);
        const lh_status_t parts = rig_run(rig, "ce_grad", NULL, third, 5);
        if (parts != LH_OK && *dx != LH_DTYPE_F32)
            continue; /* rows longer than those of the logits */
        assert_int_equal(parts, LH_OK);
        g.out = found[1];
        const rig_slot_t all[] = {x, labels, w, whole, g};
        assert_int_equal(rig_run(rig, "cross_entropy", NULL, all, 5), LH_OK);
        assert_memory_equal(&loss[0], &loss[1], sizeof(loss[0]));
        assert_memory_equal(found[0], found[1], s->rows * s->width * sizeof(double));
    }
}

/* Past the ends of the exponential: 0, and neither infinite nor no number. */
static void far_logits_weigh_nothing(void **state)
{
    (void)state;
    static double logits[CPU_RIGS_MAX_ELEMENTS], stats[3 * 512];
    static const double far[] = {-86, -88, -103, -104, -1e3, -3e38, -INFINITY, 3};
    const shape_t s = {37, 53, 0};
    for (uint64_t i = 0; i < s.rows * s.width; i++)
        logits[i] = i % 3 == 0 ? data[0][i] : far[i % 8];
    whole_numbers(ids, s.rows, s.width, -1, (double)s.width);
    stats_of(LH_DTYPE_F32, logits, &s, stats);
    const rig_slot_t x = cpu_in(LH_DTYPE_F32, logits, s.rows, s.width);
    const rig_slot_t labels = cpu_line(LH_DTYPE_I32, ids, s.rows);
    const rig_slot_t known = cpu_in(LH_DTYPE_F32, stats, s.rows, 3);
    const rig_slot_t w = cpu_line(LH_DTYPE_F32, positive, s.rows);
    EACH_DTYPE(d)
    CPU_CHECK("ce_grad", NULL, SUM, x, labels, known, w, cpu_out(*d, s.rows, s.width));
    for (uint64_t i = 0; i < s.rows; i++)
        ids[i] = (double)
                     s.width; /* no row's label: its logit would set the size of what is allowed */
    CPU_CHECK("ce_stats", NULL, SUM, x, labels, cpu_out(LH_DTYPE_F32, s.rows, 3));
}

static void squares_count_what_is_not_finite(void **state)
{
    (void)state;
    static double x[20000];
    EACH(uint64_t, n, 1, 53, 4096, 4097, 20000) EACH_DTYPE(d)
    {
        memcpy(x, data[0], sizeof(x));
        const rig_slot_t y = cpu_out(LH_DTYPE_F32, (*n + 4095) / 4096, 2);
        CPU_CHECK("sum_squares", NULL, SUM, cpu_line(*d, x, *n), y);
        x[*n - 1] = INFINITY;
        x[*n / 2] = NAN;
        x[0] = -INFINITY;
        CPU_CHECK("sum_squares", NULL, SUM, cpu_line(*d, x, *n), y);
    }
}

static void clip_sets_factor_norm_and_whether_to_apply(void **state)
{
    (void)state;
    EACH(double, allowed, 0, 1, 1000)
    EACH(double, broken, 0, 3) EACH(double, sum, 2.5, INFINITY, NAN)
    {
        double squares[10] = {1, 0, 2, 0, 3, 0, 4, 0, *sum, *broken};
        double step[2 * LH_STEP_WORDS] = {0};
        for (uint32_t row = 0; row < 2; row++) {
            step[row * LH_STEP_WORDS + LH_STEP_GRAD_SCALE] = 0.5 + row;
            step[row * LH_STEP_WORDS + LH_STEP_APPLY] = 1;
            step[row * LH_STEP_WORDS + LH_STEP_MAX_NORM] = *allowed;
        }
        CPU_CHECK("clip", NULL, ELEMENT, cpu_in(LH_DTYPE_F32, squares, 5, 2),
                  cpu_in(LH_DTYPE_F32, step, 2, LH_STEP_WORDS),
                  cpu_over(cpu_out(LH_DTYPE_F32, 2, LH_STEP_WORDS), 2));
    }
}

static void updates_follow_torch(void **state)
{
    (void)state;
    const lh_adamw_t adamw = {sizeof(adamw), 0, 0.9, 0.95, 1e-8, 0.1};
    static double m2[40000];
    for (uint32_t i = 0; i < 40000; i++)
        m2[i] = fabs(data[3][i]);
    EACH(uint64_t, n, 1, 53, 40000) EACH_DTYPE(d) EACH(double, apply, 0, 1)
    {
        double step[LH_STEP_WORDS] = {[LH_STEP_LEARNING_RATE] = 0.01,
                                      [LH_STEP_GRAD_SCALE] = 0.25,
                                      [LH_STEP_NUMBER] = 7,
                                      [LH_STEP_APPLY] = *apply};
        const rig_slot_t g = cpu_line(LH_DTYPE_F32, data[0], *n);
        const rig_slot_t p = cpu_line(LH_DTYPE_F32, data[1], *n);
        const rig_slot_t m = cpu_line(LH_DTYPE_F32, data[2], *n);
        const rig_slot_t out = cpu_out_line(LH_DTYPE_F32, *n);
        const rig_slot_t words = cpu_line(LH_DTYPE_F32, step, LH_STEP_WORDS);
        rig_slot_t w = cpu_out_line(*d, *n);
        w.in = data[4];
        CPU_CHECK("adamw", &adamw, ELEMENT, g, p, m, cpu_line(LH_DTYPE_F32, m2, *n), words,
                  cpu_over(out, 2), cpu_over(out, 3), cpu_over(out, 4), w);
        EACH(lh_sgd_t, sgd, {sizeof(lh_sgd_t), 0, 0.9, 0.1}, {sizeof(lh_sgd_t), 1, 0.9, 0})
        {
            CPU_CHECK("sgd", sgd, ELEMENT, g, p, m, words, cpu_over(out, 2), cpu_over(out, 3), w);
            CPU_CHECK("sgd", sgd, ELEMENT, g, p, RIG_NONE, words, cpu_over(out, 2), RIG_NONE, w);
        }
    }
}

typedef struct product {
    uint64_t m, n, k, pad;
} product_t;

/* Sums of k products in F32; BF16 inputs are exact in it. Biases and activations add roundings. */
static void products_of_all_transposes(void **state)
{
    (void)state;
    EACH(product_t, p, {1, 53, 5, 0}, {53, 1, 7, 3}, {5, 53, 1, 0}, {64, 48, 32, 16},
         {130, 96, 257, 0})
    EACH(uint32_t, flips, 0, 1, 2, 3) EACH_DTYPE(d) EACH_DTYPE(to)
    {
        if (*d == LH_DTYPE_F32 && *to == LH_DTYPE_BF16) continue;
        const bool ta = (*flips & 1) != 0, tb = (*flips & 2) != 0;
        lh_matmul_t how = {sizeof(how), ta, tb, LH_ACT_NONE};
        const rig_slot_t a = cpu_padded(
            ta ? cpu_in(*d, data[0], p->k, p->m) : cpu_in(*d, data[0], p->m, p->k), p->pad);
        const rig_slot_t b = cpu_padded(
            tb ? cpu_in(*d, data[1], p->n, p->k) : cpu_in(*d, data[1], p->k, p->n), p->pad);
        const rig_slot_t c = cpu_padded(cpu_out(*to, p->m, p->n), p->pad);
        const rig_slot_t bias = cpu_line(*d, data[2], p->n);
        CPU_CHECK("matmul", &how, SUM, a, b, RIG_NONE, RIG_NONE, RIG_NONE, c, RIG_NONE, RIG_NONE);
        CPU_CHECK("matmul", &how, SUM, a, b, bias, RIG_NONE, RIG_NONE, cpu_adds(c, data[3]),
                  RIG_NONE, RIG_NONE);
        how.activation = LH_ACT_GELU;
        /* In BF16 what is activated is what aux keeps: half a step of it may come through. */
        const double rounded = *to == LH_DTYPE_BF16 ? 1.0 / 128 : SUM;
        CPU_CHECK("matmul", &how, rounded, a, b, bias, RIG_NONE, RIG_NONE, c, c, RIG_NONE);
        CPU_CHECK("matmul", &how, rounded, a, b, bias, RIG_NONE, RIG_NONE, c, RIG_NONE, RIG_NONE);
    }
}

/* Big enough that the BF16 path through F32 takes two blocks, of rows or, for a gradient of
 * weights, of depth. Inputs are whole eighths: every sum is exact, so that no order of adding
 * shows. */
static void long_products_are_cut_into_blocks(void **state)
{
    (void)state;
    static double a[330 * 2000], b[2000 * 40];
    for (uint32_t i = 0; i < 330 * 2000; i++)
        a[i] = floor(data[0][i] * 8) / 8;
    for (uint32_t i = 0; i < 2000 * 40; i++)
        b[i] = floor(data[1][i] * 8) / 8;
    EACH_DTYPE(to)
    {
        const lh_matmul_t forward = {sizeof(forward), 0, 1, LH_ACT_NONE};
        const lh_matmul_t weight = {sizeof(weight), 1, 0, LH_ACT_NONE};
        const rig_slot_t x = cpu_in(LH_DTYPE_BF16, a, 330, 2000);
        const rig_slot_t y = cpu_out(*to, 330, 40), g = cpu_out(*to, 2000, 40);
        const rig_slot_t bias = cpu_line(LH_DTYPE_BF16, b, 40);
        const rig_slot_t w = cpu_in(LH_DTYPE_BF16, b, 40, 2000),
                         gy = cpu_in(LH_DTYPE_BF16, b, 330, 40);
        CPU_CHECK("matmul", &forward, 0, x, w, bias, RIG_NONE, RIG_NONE, y, RIG_NONE, RIG_NONE);
        CPU_CHECK("matmul", &forward, 0, x, w, RIG_NONE, RIG_NONE, RIG_NONE, cpu_adds(y, b),
                  RIG_NONE, RIG_NONE);
        CPU_CHECK("matmul", &weight, 0, x, gy, bias, RIG_NONE, RIG_NONE, g, RIG_NONE, RIG_NONE);
        CPU_CHECK("matmul", &weight, 0, x, gy, RIG_NONE, RIG_NONE, RIG_NONE, cpu_adds(g, b),
                  RIG_NONE, RIG_NONE);
    }
}

static void what_the_device_cannot_do_is_refused_with_a_reason(void **state)
{
    (void)state;
    const rig_slot_t x = cpu_in(LH_DTYPE_F32, data[0], 4, 8), y = cpu_out(LH_DTYPE_F32, 4, 8);
    const rig_slot_t none[] = {cpu_in(LH_DTYPE_F32, data[0], 0, 8), cpu_out(LH_DTYPE_F32, 0, 8)};
    const rig_slot_t mixed[] = {x, cpu_out(LH_DTYPE_BF16, 4, 8)};
    const rig_slot_t shapes[] = {x, cpu_in(LH_DTYPE_F32, data[1], 5, 8), y};
    rig_t *rig = cpu_rigs_best();
    assert_int_equal(rig_run(rig, "activate", NULL, none, 2), LH_INVALID);
    assert_string_equal(rig_reason(), "activate: dimension 1 of slot 1 has 0 elements");
    assert_int_equal(rig_run(rig, "activate", NULL, mixed, 2), LH_UNSUPPORTED);
    assert_string_equal(rig_reason(),
                        "activate on " RIGS_DEVICE " does not mix f32 and bf16 (slot 2)");
    assert_int_equal(rig_run(rig, "add", NULL, shapes, 3), LH_UNSUPPORTED);
    assert_string_equal(rig_reason(), "add: slot 2 is 5 x 8, slot 1 is 4 x 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_add_in_any_mix),
        cmocka_unit_test(a_factor_may_be_a_column_or_a_row),
        cmocka_unit_test(copies_convert_and_walk_strides),
        cmocka_unit_test(a_tie_rounds_to_even),
        cmocka_unit_test(activations_and_gates_have_their_slopes),
        cmocka_unit_test(rms_norm_and_its_gradient),
        cmocka_unit_test(layer_norm_and_its_gradient),
        cmocka_unit_test(gradients_with_a_residual_have_the_bits_of_their_parts),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(embeddings_look_up_and_sum),
        cmocka_unit_test(rows_and_columns_are_summed),
        cmocka_unit_test(cross_entropy_in_three_steps),
        cmocka_unit_test(the_logits_gradient_may_lie_over_them),
        cmocka_unit_test(the_logits_gradient_may_have_room_between_its_rows),
        cmocka_unit_test(cross_entropy_in_one_pass),
        cmocka_unit_test(cross_entropy_in_one_pass_has_the_bits_of_its_parts),
        cmocka_unit_test(far_logits_weigh_nothing),
        cmocka_unit_test(squares_count_what_is_not_finite),
        cmocka_unit_test(clip_sets_factor_norm_and_whether_to_apply),
        cmocka_unit_test(updates_follow_torch),
        cmocka_unit_test(products_of_all_transposes),
        cmocka_unit_test(long_products_are_cut_into_blocks),
        cmocka_unit_test(what_the_device_cannot_do_is_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
