/* The reference device against PyTorch's numbers in double precision (op_values.h). Tolerance: sums
 * of few terms in double, 1e-12. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device_rig.h"
#include "op_values.h"

static rig_t rig;

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define RUN(op, how, ...)                                                                         \
    do {                                                                                          \
        const rig_slot_t slots_[] = {__VA_ARGS__};                                                \
        if (rig_run(&rig, op, how, slots_, COUNT(slots_)) != LH_OK) fail_msg("%s", rig_reason()); \
    } while (0)
#define CLOSE(got, expected)                                          \
    do {                                                              \
        assert_int_equal(COUNT(got), COUNT(expected));                \
        assert_true(rig_distance(got, expected, COUNT(got)) < 1e-12); \
    } while (0)

static void matmul_adds_bias_activation_and_what_was_there(void **state)
{
    (void)state;
    for (uint32_t flips = 0; flips < 4; flips++) {
        const lh_matmul_t how = {sizeof(how), flips & 1, flips >> 1, LH_ACT_GELU};
        double c[15], aux[15], amax[1];
        rig_slot_t sum = RIG_OUT(F64, c, 3, 5);
        sum.in = matmul_c0;
        sum.flags = LH_ARG_ADD;
        RUN("matmul", &how,
            (flips & 1) != 0 ? RIG_IN(F64, matmul_at, 4, 3) : RIG_IN(F64, matmul_a, 3, 4),
            (flips & 2) != 0 ? RIG_IN(F64, matmul_bt, 5, 4) : RIG_IN(F64, matmul_b, 4, 5),
            RIG_IN(F64, matmul_bias, 5), RIG_NONE, RIG_NONE, sum, RIG_OUT(F64, aux, 3, 5),
            RIG_OUT(F64, amax, 1));
        CLOSE(c, matmul_c);
        CLOSE(aux, matmul_aux);
    }
}

static void matmul_scales_and_tells_its_largest(void **state)
{
    (void)state;
    static const double a[] = {1, -2, 3, 4}, b[] = {1, 0, 0, 1}, two[] = {2}, half[] = {0.25};
    static const double expected[] = {0.5, -1, 1.5, 2}, largest[] = {2};
    double c[4], amax[1];
    RUN("matmul", NULL, RIG_IN(F64, a, 2, 2), RIG_IN(F64, b, 2, 2), RIG_NONE, RIG_IN(F64, two, 1),
        RIG_IN(F64, half, 1), RIG_OUT(F64, c, 2, 2), RIG_NONE, RIG_OUT(F64, amax, 1));
    CLOSE(c, expected);
    CLOSE(amax, largest);
}

/* More rows and columns than are summed at once, and no multiples of that: each sum has the bits that it has by
 * itself. */
static void matmul_adds_in_order_whatever_is_summed_at_once(void **state)
{
    (void)state;
    enum { ROWS = 37, DEPTH = 11, COLUMNS = 133 };
    static double a[ROWS * DEPTH], b[DEPTH * COLUMNS], c[ROWS * COLUMNS], expected[ROWS * COLUMNS];
    rig_random(3, a, COUNT(a));
    rig_random(4, b, COUNT(b));
    for (uint32_t flips = 0; flips < 4; flips++) {
        const bool a_turned = (flips & 1) != 0, b_turned = (flips & 2) != 0;
        const lh_matmul_t how = {
            .struct_size = sizeof(how), .transpose_a = a_turned, .transpose_b = b_turned};
        for (uint32_t i = 0; i < COUNT(expected); i++) {
            const uint32_t row = i / COLUMNS, column = i % COLUMNS;
            double sum = 0;
            for (uint32_t k = 0; k < DEPTH; k++)
                sum += a[a_turned ? k * ROWS + row : row * DEPTH + k] *
                       b[b_turned ? column * DEPTH + k : k * COLUMNS + column];
            expected[i] = sum;
        }
        RUN("matmul", &how, a_turned ? RIG_IN(F64, a, DEPTH, ROWS) : RIG_IN(F64, a, ROWS, DEPTH),
            b_turned ? RIG_IN(F64, b, COLUMNS, DEPTH) : RIG_IN(F64, b, DEPTH, COLUMNS), RIG_NONE,
            RIG_NONE, RIG_NONE, RIG_OUT(F64, c, ROWS, COLUMNS), RIG_NONE, RIG_NONE);
        assert_memory_equal(c, expected, sizeof(c));
    }
}

static void rms_norm_and_its_gradient(void **state)
{
    (void)state;
    for (uint32_t one_plus = 0; one_plus < 2; one_plus++) {
        const lh_norm_t how = {sizeof(how), one_plus, 1e-3};
        double y[18], rstd[3], gx[18], gw[6];
        RUN("rms_norm", &how, RIG_IN(F64, norm_x, 3, 6), RIG_IN(F64, norm_w, 6),
            RIG_OUT(F64, y, 3, 6), RIG_OUT(F64, rstd, 3));
        RUN("rms_norm_grad", &how, RIG_IN(F64, norm_gy, 3, 6), RIG_IN(F64, norm_x, 3, 6),
            RIG_IN(F64, norm_w, 6), RIG_IN(F64, rstd, 3), RIG_OUT(F64, gx, 3, 6),
            RIG_OUT(F64, gw, 6));
        CLOSE(rstd, rms_rstd);
        assert_true(rig_distance(y, one_plus != 0 ? rms1_y : rms_y, 18) < 1e-12);
        assert_true(rig_distance(gx, one_plus != 0 ? rms1_gx : rms_gx, 18) < 1e-12);
        assert_true(rig_distance(gw, one_plus != 0 ? rms1_gw : rms_gw, 6) < 1e-12);

        double sum[18], expected[18];
        RUN("rms_norm_grad_add", &how, RIG_IN(F64, norm_gy, 3, 6), RIG_IN(F64, norm_x, 3, 6),
            RIG_IN(F64, norm_w, 6), RIG_IN(F64, rstd, 3), RIG_IN(F64, norm_x, 3, 6),
            RIG_OUT(F64, sum, 3, 6), RIG_OUT(F64, gw, 6));
        for (int i = 0; i < 18; i++)
            expected[i] = (one_plus != 0 ? rms1_gx : rms_gx)[i] + norm_x[i];
        CLOSE(sum, expected);
        assert_true(rig_distance(gw, one_plus != 0 ? rms1_gw : rms_gw, 6) < 1e-12);
    }
}

static void add_rms_norm_norms_the_sum(void **state)
{
    (void)state;
    const lh_norm_t how = {sizeof(how), 0, 1e-3};
    double b[18], sum[18], y[18], rstd[3];
    for (int i = 0; i < 18; i++)
        b[i] = norm_x[i] - norm_gy[i];
    RUN("add_rms_norm", &how, RIG_IN(F64, norm_gy, 3, 6), RIG_IN(F64, b, 3, 6),
        RIG_IN(F64, norm_w, 6), RIG_OUT(F64, sum, 3, 6), RIG_OUT(F64, y, 3, 6),
        RIG_OUT(F64, rstd, 3));
    CLOSE(sum, norm_x);
    CLOSE(y, rms_y);
}

static void layer_norm_and_its_gradient(void **state)
{
    (void)state;
    const lh_norm_t how = {sizeof(how), 0, 1e-3};
    double y[18], mean[3], rstd[3], gx[18], gw[6], gb[6];
    RUN("layer_norm", &how, RIG_IN(F64, norm_x, 3, 6), RIG_IN(F64, norm_w, 6),
        RIG_IN(F64, norm_b, 6), RIG_OUT(F64, y, 3, 6), RIG_OUT(F64, mean, 3),
        RIG_OUT(F64, rstd, 3));
    RUN("layer_norm_grad", &how, RIG_IN(F64, norm_gy, 3, 6), RIG_IN(F64, norm_x, 3, 6),
        RIG_IN(F64, norm_w, 6), RIG_IN(F64, mean, 3), RIG_IN(F64, rstd, 3), RIG_OUT(F64, gx, 3, 6),
        RIG_OUT(F64, gw, 6), RIG_OUT(F64, gb, 6));
    CLOSE(y, layer_y);
    CLOSE(mean, layer_mean);
    CLOSE(rstd, layer_rstd);
    CLOSE(gx, layer_gx);
    CLOSE(gw, layer_gw);
    CLOSE(gb, layer_gb);

    double sum[18], expected[18];
    RUN("layer_norm_grad_add", &how, RIG_IN(F64, norm_gy, 3, 6), RIG_IN(F64, norm_x, 3, 6),
        RIG_IN(F64, norm_w, 6), RIG_IN(F64, mean, 3), RIG_IN(F64, rstd, 3),
        RIG_IN(F64, norm_x, 3, 6), RIG_OUT(F64, sum, 3, 6), RIG_OUT(F64, gw, 6),
        RIG_OUT(F64, gb, 6));
    for (int i = 0; i < 18; i++)
        expected[i] = layer_gx[i] + norm_x[i];
    CLOSE(sum, expected);
    CLOSE(gw, layer_gw);
    CLOSE(gb, layer_gb);
}

static void rope_turns_pairs_and_back(void **state)
{
    (void)state;
    lh_rope_t how = {sizeof(how), 2, 6, 2, 0, 0, 1.5};
    double half[48], pairs[48], gx[48];
#define ROPE(x, y)                                                           \
    RUN("rope", &how, RIG_IN(F64, x, 4, 12), RIG_IN(I32, rope_positions, 4), \
        RIG_IN(F32, rope_frequencies, 2), RIG_OUT(F64, y, 4, 12))
    ROPE(rope_x, half);
    how.inverse = 1;
    ROPE(rope_gy, gx);
    how.inverse = 0;
    how.interleaved = 1;
    ROPE(rope_x, pairs);
    CLOSE(half, rope_half);
    CLOSE(gx, rope_gx);
    CLOSE(pairs, rope_pairs);
}

typedef struct attention_values {
    lh_attention_t how;
    double starts[4];
    uint64_t starts_count;
    bool slopes;
    const double *y, *lse, *gq, *gk, *gv;
} attention_values_t;

#define ATTENTION(name) name##_y, name##_lse, name##_gq, name##_gk, name##_gv
static const attention_values_t attention_values[] = {
    {{0, 4, 2, 3, 2, 0, 0, 0, 0, 0, 0, 0}, {0, 3, 3, 7}, 4, false, ATTENTION(causal)},
    {{0, 4, 2, 3, 2, 3, 0, 0, 0, 0, 0, 0.7}, {0, 7, 7}, 3, false, ATTENTION(window)},
    {{0, 4, 2, 3, 2, 0, 0, 0, 0, 0, 0, 0}, {0, 2, 6}, 3, true, ATTENTION(alibi)},
    {{0, 4, 2, 3, 2, 2, 1, 0, 0, 0, 0, 0}, {0, 3, 7}, 3, false, ATTENTION(full)},
};

static void attention_and_its_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(attention_values); i++) {
        const attention_values_t *a = &attention_values[i];
        lh_attention_t how = a->how;
        how.struct_size = sizeof(how);
        double y[56], lse[28], gq[84], gk[42], gv[28];
        const rig_slot_t slopes = a->slopes ? RIG_IN(F64, attend_slopes, 4) : RIG_NONE;
        const rig_slot_t starts = RIG_IN(I32, a->starts, a->starts_count);
        RUN("attention", &how, RIG_IN(F64, attend_q, 7, 12), RIG_IN(F64, attend_k, 7, 6),
            RIG_IN(F64, attend_v, 7, 4), starts, slopes, RIG_OUT(F64, y, 7, 8),
            RIG_OUT(F64, lse, 4, 7));
        RUN("attention_grad", &how, RIG_IN(F64, attend_gy, 7, 8), RIG_IN(F64, attend_q, 7, 12),
            RIG_IN(F64, attend_k, 7, 6), RIG_IN(F64, attend_v, 7, 4), starts, slopes,
            RIG_IN(F64, y, 7, 8), RIG_IN(F64, lse, 4, 7), RIG_OUT(F64, gq, 7, 12),
            RIG_OUT(F64, gk, 7, 6), RIG_OUT(F64, gv, 7, 4));
        assert_true(rig_distance(y, a->y, 56) < 1e-12);
        assert_true(rig_distance(lse, a->lse, 28) < 1e-12);
        assert_true(rig_distance(gq, a->gq, 84) < 1e-12);
        assert_true(rig_distance(gk, a->gk, 42) < 1e-12);
        assert_true(rig_distance(gv, a->gv, 28) < 1e-12);
    }
}

/* A sequence attended to in pieces through the cache gives what it gives in one go. */
static void attention_cached_continues_a_sequence(void **state)
{
    (void)state;
    lh_attention_t how = attention_values[1].how;
    how.struct_size = sizeof(how);
    double k_cache[2 * 8 * 6] = {0}, v_cache[2 * 8 * 4] = {0}, y[5 * 8], lengths[] = {6, 2};
    rig_slot_t k = RIG_OUT(F64, k_cache, 2, 8, 6), v = RIG_OUT(F64, v_cache, 2, 8, 4);
    k.in = k_cache;
    v.in = v_cache;
    k.alias_slot = v.alias_slot = 3;
    /* What is there already: 6 rows of sequence 0, 2 of sequence 1. */
    for (int i = 0; i < 6 * 6; i++)
        k_cache[i] = attend_k[i];
    for (int i = 0; i < 6 * 4; i++)
        v_cache[i] = attend_v[i];
    for (int i = 0; i < 2 * 6; i++)
        k_cache[8 * 6 + i] = attend_k[i];
    for (int i = 0; i < 2 * 4; i++)
        v_cache[8 * 4 + i] = attend_v[i];
    double new_k[2 * 6], new_v[2 * 4], q[2 * 12];
    for (int i = 0; i < 6; i++)
        new_k[i] = attend_k[36 + i], new_k[6 + i] = attend_k[12 + i];
    for (int i = 0; i < 4; i++)
        new_v[i] = attend_v[24 + i], new_v[4 + i] = attend_v[8 + i];
    for (int i = 0; i < 12; i++)
        q[i] = attend_q[72 + i], q[12 + i] = attend_q[24 + i];
    const rig_slot_t old_k = RIG_IN(F64, k_cache, 2, 8, 6), old_v = RIG_IN(F64, v_cache, 2, 8, 4);
    RUN("cache_write", NULL, RIG_IN(F64, new_k, 2, 6), RIG_IN(I32, lengths, 2), old_k, k);
    RUN("cache_write", NULL, RIG_IN(F64, new_v, 2, 4), RIG_IN(I32, lengths, 2), old_v, v);
    RUN("attention_cached", &how, RIG_IN(F64, q, 2, 12), old_k, old_v, RIG_IN(I32, lengths, 2),
        RIG_NONE, RIG_OUT(F64, y, 2, 8));
    assert_true(rig_distance(y, window_y + 48, 8) < 1e-12);
    assert_true(rig_distance(y + 8, window_y + 16, 8) < 1e-12);
}

static void activations_gates_and_their_gradients(void **state)
{
    (void)state;
    static const struct {
        uint32_t function;
        const double *y, *gx, *gate, *ga, *gb;
    } table[] = {
        {LH_ACT_SILU, silu_y, silu_gx, silu_gate, silu_ga, silu_gb},
        {LH_ACT_GELU, gelu_y, gelu_gx, gelu_gate, gelu_ga, gelu_gb},
        {LH_ACT_TANH, tanh_y, tanh_gx, tanh_gate, tanh_ga, tanh_gb},
        {LH_ACT_GELU_TANH, gelu_tanh_y, gelu_tanh_gx, gelu_tanh_gate, gelu_tanh_ga, gelu_tanh_gb},
    };
    for (size_t i = 0; i < COUNT(table); i++) {
        const lh_activate_t how = {sizeof(how), table[i].function};
        const rig_slot_t x = RIG_IN(F64, act_x, 2, 5), b = RIG_IN(F64, act_b, 2, 5);
        const rig_slot_t gy = RIG_IN(F64, act_gy, 2, 5);
        double y[10], gx[10], gate[10], ga[10], gb[10];
        RUN("activate", &how, x, RIG_OUT(F64, y, 2, 5));
        RUN("activate_grad", &how, gy, x, RIG_OUT(F64, gx, 2, 5));
        RUN("gate", &how, x, b, RIG_OUT(F64, gate, 2, 5));
        RUN("gate_grad", &how, gy, x, b, RIG_OUT(F64, ga, 2, 5), RIG_OUT(F64, gb, 2, 5));
        assert_true(rig_distance(y, table[i].y, 10) < 1e-12);
        assert_true(rig_distance(gx, table[i].gx, 10) < 1e-12);
        assert_true(rig_distance(gate, table[i].gate, 10) < 1e-12);
        assert_true(rig_distance(ga, table[i].ga, 10) < 1e-12);
        assert_true(rig_distance(gb, table[i].gb, 10) < 1e-12);
    }
}

static void cross_entropy_in_three_steps_and_in_one(void **state)
{
    (void)state;
    double stats[12], loss[1], grad[24];
    const rig_slot_t logits = RIG_IN(F64, ce_logits, 4, 6), labels = RIG_IN(I32, ce_labels, 4);
    const rig_slot_t weights = RIG_IN(F64, ce_weights, 4);
    RUN("ce_stats", NULL, logits, labels, RIG_OUT(F64, stats, 4, 3));
    RUN("ce_grad", NULL, logits, labels, RIG_IN(F64, stats, 4, 3), weights,
        RIG_OUT(F64, grad, 4, 6));
    RUN("ce_loss", NULL, RIG_IN(F64, stats, 4, 3), weights, RIG_OUT(F64, loss, 1));
    CLOSE(grad, ce_grad);
    CLOSE(loss, ce_loss);
    grad[0] = loss[0] = 0;
    RUN("cross_entropy", NULL, logits, labels, weights, RIG_OUT(F64, loss, 1),
        RIG_OUT(F64, grad, 4, 6));
    CLOSE(grad, ce_grad);
    CLOSE(loss, ce_loss);
}

static void a_label_of_another_part_has_logit_0(void **state)
{
    (void)state;
    const lh_rows_t how = {sizeof(how), 0, 100, 6};
    const double labels[] = {102, 99, 106, 0};
    double stats[12];
    RUN("ce_stats", &how, RIG_IN(F64, ce_logits, 4, 6), RIG_IN(I32, labels, 4),
        RIG_OUT(F64, stats, 4, 3));
    assert_true(stats[2] == ce_logits[2]);
    assert_true(stats[5] == 0 && stats[8] == 0 && stats[11] == 0);
}

static void embed_looks_up_and_its_gradient_sums(void **state)
{
    (void)state;
    const lh_rows_t how = {sizeof(how), 0, 10, 3};
    static const double table[] = {1, 2, 3, 4, 5, 6}, tokens[] = {12, 10, 9, 12};
    static const double gy[] = {1, 10, 2, 20, 4, 40, 8, 80},
                        there[] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    static const double rows[] = {5, 6, 1, 2, 0, 0, 5, 6},
                        sums[] = {2.5, 20.5, 0.5, 0.5, 9.5, 90.5};
    double y[8], gtable[6];
    rig_slot_t add = RIG_OUT(F64, gtable, 3, 2);
    add.in = there;
    add.flags = LH_ARG_ADD;
    RUN("embed", &how, RIG_IN(I32, tokens, 4), RIG_IN(F64, table, 3, 2), RIG_OUT(F64, y, 4, 2));
    RUN("embed_grad", &how, RIG_IN(I32, tokens, 4), RIG_IN(F64, gy, 4, 2), add);
    CLOSE(y, rows);
    CLOSE(gtable, sums);
}

static void sums_products_and_scales(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4, 5, 6}, row[] = {1, 10, 100}, column[] = {2, 3};
    static const double factor[] = {0.5};
    static const double down[] = {5, 7, 9}, across[] = {6, 15}, twice[] = {2, 4, 6, 8, 10, 12};
    static const double by_row[] = {1, 20, 300, 4, 50, 600}, by_column[] = {2, 4, 6, 12, 15, 18};
    static const double halves[] = {0.5, 1, 1.5, 2, 2.5, 3};
    double y[6], sum[3], side[2];
    const rig_slot_t in = RIG_IN(F64, x, 2, 3), out = RIG_OUT(F64, y, 2, 3);
    RUN("sum_rows", NULL, in, RIG_OUT(F64, sum, 3));
    CLOSE(sum, down);
    RUN("sum_columns", NULL, in, RIG_OUT(F64, side, 2, 1));
    CLOSE(side, across);
    RUN("add", NULL, in, in, out);
    CLOSE(y, twice);
    static const double w[] = {3, 4, 0, 0, 0, 0}, change[] = {0, 8, 5, 0, 0, 0}, more[] = {2, 9};
    static const double by[] = {7.0 / 13.341664064126334, 0},
                        inverse[] = {1 / 13.341664064126334, 0};
    double scales[2], inverses[2];
    RUN("dora_scale", NULL, RIG_IN(F64, w, 2, 3), RIG_IN(F64, change, 2, 3), RIG_IN(F64, more, 2),
        RIG_OUT(F64, scales, 2), RIG_OUT(F64, inverses, 2));
    CLOSE(scales, by);
    CLOSE(inverses, inverse);
    RUN("multiply", NULL, in, RIG_IN(F64, row, 3), out);
    CLOSE(y, by_row);
    RUN("multiply", NULL, in, RIG_IN(F64, column, 2, 1), out);
    CLOSE(y, by_column);
    RUN("scale", NULL, in, RIG_IN(F32, factor, 1), out);
    CLOSE(y, halves);
}

static void sum_squares_counts_what_is_not_finite(void **state)
{
    (void)state;
    static double x[5000], y[4];
    for (int i = 0; i < 5000; i++)
        x[i] = 2;
    x[4999] = INFINITY;
    RUN("sum_squares", NULL, RIG_IN(F64, x, 5000), RIG_OUT(F64, y, 2, 2));
    assert_true(y[0] == 4 * 4096 && y[1] == 0 && y[3] == 1);
}

static void clip_writes_norm_factor_and_apply_to_all_rows(void **state)
{
    (void)state;
    double squares[] = {9, 0, 16, 0}, step[2 * LH_STEP_WORDS] = {0}, out[2 * LH_STEP_WORDS];
    for (int row = 0; row < 2; row++) {
        step[row * LH_STEP_WORDS + LH_STEP_GRAD_SCALE] = 0.5;
        step[row * LH_STEP_WORDS + LH_STEP_MAX_NORM] = 1;
    }
    rig_slot_t in = RIG_IN(F64, step, 2, LH_STEP_WORDS);
    rig_slot_t after = RIG_OUT(F64, out, 2, LH_STEP_WORDS);
    after.alias_slot = 2;
    RUN("clip", NULL, RIG_IN(F64, squares, 2, 2), in, after);
    for (int row = 0; row < 2; row++) {
        const double *o = out + row * LH_STEP_WORDS;
        assert_true(o[LH_STEP_NORM] == 2.5 && o[LH_STEP_APPLY] == 1);
        assert_true(fabs(o[LH_STEP_GRAD_SCALE] - 0.5 / 2.500001) < 1e-12);
    }
    squares[3] = 1;
    RUN("clip", NULL, RIG_IN(F64, squares, 2, 2), in, after);
    assert_true(out[LH_STEP_APPLY] == 0);
}

/* Two steps of the rule in place; a third with APPLY 0 must change nothing. */
static void two_steps(const char *op, const void *how, bool second_moment, double *master,
                      double *m1, double *m2, double *w)
{
    for (int i = 0; i < 3; i++) {
        const double step[LH_STEP_WORDS] = {[LH_STEP_LEARNING_RATE] = 0.1,
                                            [LH_STEP_GRAD_SCALE] = 0.5,
                                            [LH_STEP_NUMBER] = i + 1,
                                            [LH_STEP_APPLY] = i < 2 ? 1 : 0};
        rig_slot_t slots[9], *s = slots;
        *s++ = RIG_IN(F64, i == 0 ? update_g1 : update_g2, 5);
        *s++ = RIG_IN(F64, master, 5);
        *s++ = RIG_IN(F64, m1, 5);
        if (second_moment) *s++ = RIG_IN(F64, m2, 5);
        *s++ = RIG_IN(F32, step, LH_STEP_WORDS);
        *s = RIG_OUT(F64, master, 5);
        s++->alias_slot = 2;
        *s = RIG_OUT(F64, m1, 5);
        s++->alias_slot = 3;
        if (second_moment) {
            *s = RIG_OUT(F64, m2, 5);
            s++->alias_slot = 4;
        }
        *s = RIG_OUT(F64, w, 5);
        s++->in = w;
        assert_int_equal(rig_run(&rig, op, how, slots, (uint32_t)(s - slots)), LH_OK);
    }
}

static void adamw_is_that_of_pytorch(void **state)
{
    (void)state;
    const lh_adamw_t how = {sizeof(how), 0, 0.8, 0.9, 1e-3, 0.2};
    double master[5], m1[5] = {0}, m2[5] = {0}, w[5] = {0};
    memcpy(master, update_start, sizeof(master));
    two_steps("adamw", &how, true, master, m1, m2, w);
    /* the rate 0.1 is given in F32 */
    assert_true(rig_distance(master, adamw_master, 5) < 1e-8);
    CLOSE(m1, adamw_m1);
    CLOSE(m2, adamw_m2);
    CLOSE(w, master);
}

static void sgd_is_that_of_pytorch(void **state)
{
    (void)state;
    for (uint32_t nesterov = 0; nesterov < 2; nesterov++) {
        const lh_sgd_t how = {sizeof(how), nesterov, 0.7, 0};
        double master[5], m1[5] = {0}, w[5] = {0};
        memcpy(master, update_start, sizeof(master));
        two_steps("sgd", &how, false, master, m1, NULL, w);
        assert_true(rig_distance(master, nesterov != 0 ? nesterov_master : sgd_master, 5) < 1e-8);
        assert_true(rig_distance(m1, nesterov != 0 ? nesterov_m1 : sgd_m1, 5) < 1e-12);
    }
}

static void numbers_round_to_the_nearest_even(void **state)
{
    (void)state;
    static const double x[] = {1.00390625, 1.01171875, -3.4e38, 1e-40, INFINITY, 0.1, 65520, 449};
    static const double bf16[] = {1,        1.015625,      -INFINITY, 0x1p-133,
                                  INFINITY, 0.10009765625, 65536,     448};
    static const double f16[] = {1.00390625, 1.01171875,      -INFINITY, 0,
                                 INFINITY,   0.0999755859375, INFINITY,  449};
    static const double e4m3_bits[] = {0x38, 0x38, 0xff, 0, 0x7f, 0x1d, 0x7f, 0x7e};
    double y[8];
    RUN("copy", NULL, RIG_IN(F64, x, 8), RIG_OUT(BF16, y, 8));
    CLOSE(y, bf16);
    RUN("copy", NULL, RIG_IN(F64, x, 8), RIG_OUT(F16, y, 8));
    CLOSE(y, f16);
    RUN("copy", NULL, RIG_IN(F64, x, 8), RIG_OUT(F8E4M3, y, 8));
    CLOSE(y, e4m3_bits);
}

static void rows_may_lie_apart(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4, 5, 6};
    static const double expected[] = {11, 12, 13, 14, 15, 16};
    double y[6] = {10, 10, 10, 10, 10, 10};
    rig_slot_t in = RIG_IN(F32, x, 3, 2), out = RIG_OUT(BF16, y, 3, 2);
    in.pad = 3;
    out.pad = 1;
    out.in = y;
    out.flags = LH_ARG_ADD;
    RUN("copy", NULL, in, out);
    CLOSE(y, expected);
}

static void rows_beyond_a_count_are_left_alone(void **state)
{
    (void)state;
    static const double x[] = {1, 2, 3, 4, 5, 6}, three[] = {3}, count[] = {2};
    static const double expected[] = {3, 6, 9, 12, 0, 0};
    double y[6] = {0};
    rig_slot_t in = RIG_IN(F64, x, 3, 2), out = RIG_OUT(F64, y, 3, 2);
    out.in = y;
    in.count_slot = out.count_slot = 4;
    RUN("scale", NULL, in, RIG_IN(F32, three, 1), out, RIG_IN(I32, count, 1));
    CLOSE(y, expected);
}

static int plugin_open(void **state)
{
    (void)state;
    rig_open(&rig, "reference", NULL);
    return 0;
}

static int plugin_close(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_adds_bias_activation_and_what_was_there),
        cmocka_unit_test(matmul_scales_and_tells_its_largest),
        cmocka_unit_test(matmul_adds_in_order_whatever_is_summed_at_once),
        cmocka_unit_test(rms_norm_and_its_gradient),
        cmocka_unit_test(add_rms_norm_norms_the_sum),
        cmocka_unit_test(layer_norm_and_its_gradient),
        cmocka_unit_test(rope_turns_pairs_and_back),
        cmocka_unit_test(attention_and_its_gradient),
        cmocka_unit_test(attention_cached_continues_a_sequence),
        cmocka_unit_test(activations_gates_and_their_gradients),
        cmocka_unit_test(cross_entropy_in_three_steps_and_in_one),
        cmocka_unit_test(a_label_of_another_part_has_logit_0),
        cmocka_unit_test(embed_looks_up_and_its_gradient_sums),
        cmocka_unit_test(sums_products_and_scales),
        cmocka_unit_test(sum_squares_counts_what_is_not_finite),
        cmocka_unit_test(clip_writes_norm_factor_and_apply_to_all_rows),
        cmocka_unit_test(adamw_is_that_of_pytorch),
        cmocka_unit_test(sgd_is_that_of_pytorch),
        cmocka_unit_test(numbers_round_to_the_nearest_even),
        cmocka_unit_test(rows_may_lie_apart),
        cmocka_unit_test(rows_beyond_a_count_are_left_alone),
    };
    return cmocka_run_group_tests(tests, plugin_open, plugin_close);
}
