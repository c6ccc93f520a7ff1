/* The cpu's attention against the reference device: every attribute, odd lengths, documents,
 * groups, at every instruction set that this processor has; and the same bits with 1, 2 and 3
 * threads. Likewise cuda's own kernels on the host (RIGS_OF_CUDA in cpu_rigs.h), forwards and
 * backwards; and with RIGS_OF_CUDNN the real cuda plugin, whose attention in BF16 and F16 is cuDNN's,
 * over the stand-ins of NVIDIA's libraries.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../torture.h"
#include "cpu_rigs.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct attention_case {
    const char *name;
    lh_attention_t how;
    uint64_t q_rows, k_rows;
    uint32_t starts_count;
    double starts[8];
    bool slopes;
    uint64_t pad;
    float sharp; /* inputs lie between -sharp and sharp */
} attention_case_t;

/* heads, key heads, head_dim, value_dim; window, full; q_begin, k_begin; scale, soft cap */
#define HOW(h, kv, d, dv, window, full, qb, kb, scale, cap)                       \
    {                                                                             \
        sizeof(lh_attention_t), h, kv, d, dv, window, full, 0, qb, kb, scale, cap \
    }

/* Documents of 70 rows each: starts say so too, for who reads them. */
#define EVEN(d, window_, cap)                                                            \
    {                                                                                    \
        .struct_size = sizeof(lh_attention_t), .heads = 4, .kv_heads = 2, .head_dim = d, \
        .window = window_, .document_rows = 70, .soft_cap = cap                          \
    }

static const attention_case_t cases[] = {
    {"whole rows", EVEN(16, 0, 0), 210, 210, 4, {0, 70, 140, 210}, false, 0, 2},
    {"whole rows, window", EVEN(80, 33, 2), 140, 140, 3, {0, 70, 140}, true, 0, 2},
    {"one token", HOW(2, 2, 16, 0, 0, 0, 0, 0, 0, 0), 1, 1, 2, {0, 1}, false, 0, 1},
    {"causal 65", HOW(2, 1, 64, 0, 0, 0, 0, 0, 0, 0), 65, 65, 2, {0, 65}, false, 0, 1},
    {"causal 300", HOW(6, 2, 32, 0, 0, 0, 0, 0, 0, 0), 300, 300, 2, {0, 300}, false, 0, 2},
    {"few keys heads", HOW(5, 1, 16, 0, 0, 0, 0, 0, 0, 0), 140, 140, 2, {0, 140}, false, 0, 2},
    {"odd widths", HOW(3, 3, 20, 7, 0, 0, 0, 0, 0.3, 0), 70, 70, 2, {0, 70}, false, 0, 1},
    {"odd head", HOW(2, 1, 15, 0, 0, 0, 0, 0, 0, 0), 67, 67, 2, {0, 67}, false, 0, 1},
    {"scale below 0", HOW(2, 2, 16, 0, 0, 0, 0, 0, -0.3, 0), 70, 70, 2, {0, 70}, false, 0, 2},
    {"five vectors", HOW(2, 1, 80, 0, 0, 0, 0, 0, 0, 0), 83, 83, 3, {0, 31, 83}, false, 0, 1},
    {"wide values", HOW(2, 2, 24, 80, 0, 0, 0, 0, 0, 0), 90, 90, 2, {0, 90}, false, 0, 1},
    {"head of 128", HOW(1, 1, 128, 0, 0, 0, 0, 0, 0, 0), 130, 130, 2, {0, 130}, false, 0, 1},
    {"head of 200", HOW(1, 1, 200, 0, 0, 0, 0, 0, 0, 0), 40, 40, 2, {0, 40}, false, 0, 1},
    {"documents",
     HOW(4, 2, 16, 0, 0, 0, 0, 0, 0, 0),
     200,
     200,
     8,
     {0, 3, 3, 67, 130, 131, 200, 200},
     false,
     0,
     2},
    {"rows behind the last document",
     HOW(4, 2, 16, 0, 0, 0, 0, 0, 0, 0),
     150,
     150,
     3,
     {0, 33, 100},
     false,
     0,
     1},
    {"rows before the first document",
     HOW(2, 1, 16, 0, 0, 0, 0, 0, 0, 0),
     80,
     80,
     3,
     {5, 33, 80},
     false,
     0,
     1},
    {"empty documents only", HOW(2, 2, 16, 0, 0, 0, 0, 0, 0, 0), 20, 20, 3, {0, 0, 0}, false, 0, 1},
    {"window of 5", HOW(4, 2, 16, 0, 5, 0, 0, 0, 0, 0), 150, 150, 3, {0, 64, 150}, false, 0, 2},
    {"window of 64", HOW(2, 2, 16, 0, 64, 0, 0, 0, 0, 0), 200, 200, 2, {0, 200}, false, 0, 2},
    {"window of 100", HOW(2, 2, 16, 0, 100, 0, 0, 0, 0, 0), 200, 200, 2, {0, 200}, false, 0, 2},
    {"window of 1", HOW(2, 2, 16, 0, 1, 0, 0, 0, 0, 0), 66, 66, 2, {0, 66}, false, 0, 2},
    {"alibi", HOW(4, 2, 16, 0, 0, 0, 0, 0, 0, 0), 130, 130, 3, {0, 30, 130}, true, 0, 1},
    {"soft cap", HOW(4, 2, 16, 0, 0, 0, 0, 0, 1.0, 2.5), 130, 130, 2, {0, 130}, false, 0, 2},
    {"soft cap, alibi, window",
     HOW(4, 1, 16, 0, 40, 0, 0, 0, 0, 1.5),
     130,
     130,
     3,
     {0, 90, 130},
     true,
     0,
     2},
    {"full", HOW(4, 4, 16, 0, 0, 1, 0, 0, 0, 0), 130, 130, 3, {0, 60, 130}, false, 0, 2},
    {"full, window of 9",
     HOW(2, 2, 16, 0, 9, 1, 0, 0, 0, 0),
     130,
     130,
     3,
     {0, 60, 130},
     false,
     0,
     2},
    {"rows apart", HOW(2, 2, 16, 0, 0, 0, 0, 0, 0, 0), 70, 70, 2, {0, 70}, false, 5, 1},
    {"the ring's other keys",
     HOW(2, 1, 16, 0, 0, 0, 70, 0, 0, 0),
     50,
     70,
     3,
     {0, 40, 120},
     false,
     0,
     1},
    {"the ring's own keys",
     HOW(2, 1, 16, 0, 0, 0, 70, 70, 0, 0),
     50,
     50,
     3,
     {0, 40, 120},
     false,
     0,
     1},
    {"the ring's later keys",
     HOW(2, 1, 16, 0, 0, 0, 0, 70, 0, 0),
     70,
     50,
     3,
     {0, 40, 120},
     false,
     0,
     1},
};

typedef struct numbers { /* of one case */
    uint64_t q, k, v, y, lse;
    double *in_q, *in_k, *in_v, *in_gy, *slopes;
    double *out_y, *out_lse, *gq, *gk, *gv;
} numbers_t;

static double *random_numbers(uint64_t seed, uint64_t count, float sharp, lh_dtype_t dtype)
{
    double *x = calloc(count, sizeof(double));
    assert_non_null(x);
    rig_random(seed, x, count);
    for (uint64_t i = 0; i < count; i++)
        x[i] = rig_round(dtype, x[i] * (double)sharp);
    return x;
}

static numbers_t numbers_new(const attention_case_t *c, lh_dtype_t dtype)
{
    const uint64_t dv = c->how.value_dim != 0 ? c->how.value_dim : c->how.head_dim;
    numbers_t n = {.q = c->q_rows * c->how.heads * c->how.head_dim,
                   .k = c->k_rows * c->how.kv_heads * c->how.head_dim,
                   .v = c->k_rows * c->how.kv_heads * dv,
                   .y = c->q_rows * c->how.heads * dv,
                   .lse = c->q_rows * c->how.heads};
    n.in_q = random_numbers(1, n.q, c->sharp, dtype);
    n.in_k = random_numbers(2, n.k, c->sharp, dtype);
    n.in_v = random_numbers(3, n.v, 1, dtype);
    n.in_gy = random_numbers(4, n.y, 1, dtype);
    n.slopes = random_numbers(5, c->how.heads, 0.2f, LH_DTYPE_F32);
    n.out_y = calloc(n.y, sizeof(double));
    n.out_lse = calloc(n.lse, sizeof(double));
    n.gq = calloc(n.q, sizeof(double));
    n.gk = calloc(n.k, sizeof(double));
    n.gv = calloc(n.v, sizeof(double));
    return n;
}

static void numbers_free(numbers_t *n)
{
    double *const all[] = {n->in_q,  n->in_k,    n->in_v, n->in_gy, n->slopes,
                           n->out_y, n->out_lse, n->gq,   n->gk,    n->gv};
    for (size_t i = 0; i < COUNT(all); i++)
        free(all[i]);
}

static rig_slot_t slot(lh_dtype_t dtype, uint64_t rows, uint64_t width, const double *in,
                       double *out, uint64_t pad)
{
    return (rig_slot_t){
        .dtype = dtype, .rank = 2, .shape = {rows, width}, .in = in, .out = out, .pad = pad};
}

/* Forward, then backward from its results. wide: the dtype of lse and slopes. */
static void run_case(rig_t *rig, const attention_case_t *c, lh_dtype_t dtype, lh_dtype_t wide,
                     numbers_t *n)
{
    const uint64_t h = c->how.heads, kv = c->how.kv_heads, d = c->how.head_dim;
    const uint64_t dv = c->how.value_dim != 0 ? c->how.value_dim : d;
    const rig_slot_t q = slot(dtype, c->q_rows, h * d, n->in_q, NULL, c->pad);
    const rig_slot_t k = slot(dtype, c->k_rows, kv * d, n->in_k, NULL, c->pad);
    const rig_slot_t v = slot(dtype, c->k_rows, kv * dv, n->in_v, NULL, c->pad);
    const rig_slot_t starts = RIG_IN(I32, c->starts, c->starts_count);
    const rig_slot_t slopes = {
        .dtype = c->slopes ? wide : LH_DTYPE_NONE, .rank = 1, .shape = {h}, .in = n->slopes};
    const rig_slot_t forward[] = {q,
                                  k,
                                  v,
                                  starts,
                                  slopes,
                                  slot(dtype, c->q_rows, h * dv, NULL, n->out_y, c->pad),
                                  slot(wide, h, c->q_rows, NULL, n->out_lse, 0)};
    if (rig_run(rig, "attention", &c->how, forward, COUNT(forward)) != LH_OK) {
        fail_msg("%s: %s", c->name, rig_reason());
    }
    const rig_slot_t backward[] = {slot(dtype, c->q_rows, h * dv, n->in_gy, NULL, c->pad),
                                   q,
                                   k,
                                   v,
                                   starts,
                                   slopes,
                                   slot(dtype, c->q_rows, h * dv, n->out_y, NULL, c->pad),
                                   slot(wide, h, c->q_rows, n->out_lse, NULL, 0),
                                   slot(dtype, c->q_rows, h * d, NULL, n->gq, c->pad),
                                   slot(dtype, c->k_rows, kv * d, NULL, n->gk, c->pad),
                                   slot(dtype, c->k_rows, kv * dv, NULL, n->gv, c->pad)};
    if (rig_run(rig, "attention_grad", &c->how, backward, COUNT(backward)) != LH_OK) {
        fail_msg("%s: %s", c->name, rig_reason());
    }
}

/* Relative to the largest number of the tensor. */
static void near(const char *name, const char *part, const double *got, const double *expected,
                 uint64_t count, double tolerance)
{
    const double distance = rig_distance(got, expected, count);
    const double size = rig_size(expected, count);
    if (distance <= tolerance * (size > 1e-3 ? size : 1)) return;
    fail_msg("%s: %s is %g off, of %g at most", name, part, distance, size);
}

static rig_t reference;

enum { ISAS = 4 };
#if defined(RIGS_OF_CUDNN)
/* Work is done after random delays, and again after others. */
#define RIG_OF(threads)          \
    {                            \
        "attention", (threads)*0 \
    }
enum { MOST_THREADS = 2 };
#elif defined(RIGS_OF_CUDA)
#define RIG_OF(threads)        \
    {                          \
        "order", (threads) % 2 \
    }
enum { MOST_THREADS = OF_A_PAIR }; /* 2 stands for the other order */
#else
#define RIG_OF(threads)    \
    {                      \
        "threads", threads \
    }
enum { MOST_THREADS = 3 };
#endif

static void one_open(rig_t *rig, uint64_t threads)
{
    rig_open_with(rig, RIGS_PLUGIN, (const rig_setting_t[]){RIG_OF(threads), {0}});
}

/* The cpu with every instruction set that this processor has; cuda's kernels in one order of threads. */
static uint32_t rigs_open(rig_t *rigs, uint64_t threads)
{
    uint32_t count = 0;
#if defined(RIGS_OF_CUDA) || defined(RIGS_OF_CUDNN)
    one_open(&rigs[count++], threads);
    return count;
#endif
    for (uint64_t isa = 1; isa <= ISAS; isa++) {
        const rig_setting_t settings[] = {{"threads", threads}, {"isa", isa}, {0}};
        if (rig_offers(RIGS_PLUGIN, settings)) rig_open_with(&rigs[count++], RIGS_PLUGIN, settings);
    }
    return count;
}

/* cuda's kernels on the host take long, and their code is one for all dtypes: of a sample every other
 * case is F32's alone. */
static bool case_is_left_out(size_t i, lh_dtype_t dtype)
{
#if defined(RIGS_OF_CUDA)
    return i % 2 != 0 && dtype != LH_DTYPE_F32 && !torture_wanted() && !rig_on_gpu();
#else
    (void)i, (void)dtype;
    return false;
#endif
}

static void cases_compare(lh_dtype_t dtype, uint64_t threads)
{
    /* F32: sums of up to 200 terms. BF16: y is rounded to 8 bits, and y as stored goes into gq, gk.
     */
    const double tolerance = dtype == LH_DTYPE_F32 ? 4e-6 : 1e-2;
    rig_t rigs[ISAS];
    const uint32_t count = rigs_open(rigs, threads);

    for (size_t i = 0; i < COUNT(cases); i++) {
        if (case_is_left_out(i, dtype)) continue;
        numbers_t expected = numbers_new(&cases[i], dtype), got = numbers_new(&cases[i], dtype);
        run_case(&reference, &cases[i], LH_DTYPE_F64, LH_DTYPE_F64, &expected);
        for (uint32_t isa = 0; isa < count; isa++) {
            run_case(&rigs[isa], &cases[i], dtype, LH_DTYPE_F32, &got);
            near(cases[i].name, "y", got.out_y, expected.out_y, got.y, tolerance);
            near(cases[i].name, "lse", got.out_lse, expected.out_lse, got.lse, 4e-6);
            near(cases[i].name, "gq", got.gq, expected.gq, got.q, tolerance);
            near(cases[i].name, "gk", got.gk, expected.gk, got.k, tolerance);
            near(cases[i].name, "gv", got.gv, expected.gv, got.v, tolerance);
        }
        numbers_free(&expected);
        numbers_free(&got);
    }
    for (uint32_t isa = 0; isa < count; isa++)
        rig_close(&rigs[isa]);
}

LH_UNUSED static void f32_is_near_the_reference_at_every_isa(void **state)
{
    (void)state;
    cases_compare(LH_DTYPE_F32, 2);
}

static void bf16_is_near_the_reference_at_every_isa(void **state)
{
    (void)state;
    cases_compare(LH_DTYPE_BF16, 1);
}

static void threads_compare(lh_dtype_t dtype, uint64_t threads)
{
    rig_t single, twin;

    one_open(&single, 1);
    one_open(&twin, threads);
    for (size_t i = 0; i < COUNT(cases); i++) {
        numbers_t a = numbers_new(&cases[i], dtype), b = numbers_new(&cases[i], dtype);
        run_case(&single, &cases[i], dtype, LH_DTYPE_F32, &a);
        run_case(&twin, &cases[i], dtype, LH_DTYPE_F32, &b);
        assert_memory_equal(a.out_y, b.out_y, a.y * sizeof(double));
        assert_memory_equal(a.out_lse, b.out_lse, a.lse * sizeof(double));
        assert_memory_equal(a.gq, b.gq, a.q * sizeof(double));
        assert_memory_equal(a.gk, b.gk, a.k * sizeof(double));
        assert_memory_equal(a.gv, b.gv, a.v * sizeof(double));
        numbers_free(&a);
        numbers_free(&b);
    }
    rig_close(&single);
    rig_close(&twin);
}

LH_UNUSED static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t threads = 2; threads <= MOST_THREADS; threads++) {
        threads_compare(LH_DTYPE_F32, threads);
        threads_compare(LH_DTYPE_BF16, threads);
    }
}

/* ---- generation ---- */

enum { SEQUENCES = 3, CAPACITY = 90, NEW_ROWS = 2, HEADS = 6, KV_HEADS = 2, DIM = 16 };

/* rounded: the dtype that the numbers fit into, whatever dtype they are held in */
static void cached_run(rig_t *rig, const lh_attention_t *how, lh_dtype_t dtype, lh_dtype_t rounded,
                       uint64_t rows, double *cache, double *y)
{
    static const double lengths[SEQUENCES] = {0, 70, 88};
    const uint64_t kv = KV_HEADS * DIM, t = SEQUENCES * rows;
    double *new_rows = random_numbers(6, t * kv, 1, rounded);
    double *q = random_numbers(7, t * HEADS * DIM, 2, rounded);
    const rig_slot_t before = {
        .dtype = dtype, .rank = 3, .shape = {SEQUENCES, CAPACITY, kv}, .in = cache};
    rig_slot_t after = before;
    after.out = cache;
    after.alias_slot = 3;
    const rig_slot_t write[] = {slot(dtype, t, kv, new_rows, NULL, 0),
                                RIG_IN(I32, lengths, SEQUENCES), before, after};
    if (rig_run(rig, "cache_write", NULL, write, COUNT(write)) != LH_OK)
        fail_msg("%s", rig_reason());
    const rig_slot_t attend[] = {
        slot(dtype, t, HEADS * DIM, q, NULL, 0), before,   before,
        RIG_IN(I32, lengths, SEQUENCES),         RIG_NONE, slot(dtype, t, HEADS * DIM, NULL, y, 0)};
    if (rig_run(rig, "attention_cached", how, attend, COUNT(attend)) != LH_OK) {
        fail_msg("%s", rig_reason());
    }
    free(new_rows);
    free(q);
}

static void generation_compare(lh_dtype_t dtype, double tolerance)
{
    static const lh_attention_t hows[] = {
        HOW(HEADS, KV_HEADS, DIM, 0, 0, 0, 0, 0, 0, 0),
        HOW(HEADS, KV_HEADS, DIM, 0, 7, 0, 0, 0, 0, 3),
    };
    enum { CACHE = SEQUENCES * CAPACITY * KV_HEADS * DIM, MOST = SEQUENCES * 40 * HEADS * DIM };
    static const uint64_t row_counts[] = {1, NEW_ROWS, 40};
    static double y[MOST], expected[MOST];
    rig_t cpu;

    one_open(&cpu, 2);
    for (size_t i = 0; i < COUNT(hows) * COUNT(row_counts); i++) {
        const uint64_t rows = row_counts[i / COUNT(hows)];
        const uint64_t count = SEQUENCES * rows * HEADS * DIM;
        double *cache = random_numbers(8, CACHE, 1, dtype);
        double *other = random_numbers(8, CACHE, 1, dtype);
        cached_run(&reference, &hows[i % COUNT(hows)], LH_DTYPE_F64, dtype, rows, cache, expected);
        cached_run(&cpu, &hows[i % COUNT(hows)], dtype, dtype, rows, other, y);
        assert_memory_equal(cache, other, CACHE * sizeof(double));
        near("cached", "y", y, expected, count, tolerance);
        free(cache);
        free(other);
    }
    rig_close(&cpu);
}

LH_UNUSED static void generation_is_near_the_reference(void **state)
{
    (void)state;
    generation_compare(LH_DTYPE_F32, 4e-6);
    generation_compare(LH_DTYPE_BF16, 1e-2);
}

static int reference_open(void **state)
{
    (void)state;
    rig_open(&reference, "reference", NULL);
    return 0;
}

static int reference_close(void **state)
{
    (void)state;
    rig_close(&reference);
    return 0;
}

#if defined(RIGS_OF_CUDNN)
static void f16_is_near_the_reference(void **state)
{
    (void)state;
    cases_compare(LH_DTYPE_F16, 1);
}

static void delays_change_no_bit(void **state)
{
    (void)state;
    threads_compare(LH_DTYPE_BF16, 2);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(RIGS_OF_CUDNN) /* the rest is the own kernels', which have tests of their own */
        cmocka_unit_test(bf16_is_near_the_reference_at_every_isa),
        cmocka_unit_test(f16_is_near_the_reference),
        cmocka_unit_test(delays_change_no_bit),
#else
        cmocka_unit_test(f32_is_near_the_reference_at_every_isa),
        cmocka_unit_test(bf16_is_near_the_reference_at_every_isa),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(generation_is_near_the_reference),
#endif
    };
    return cmocka_run_group_tests(tests, reference_open, reference_close);
}
