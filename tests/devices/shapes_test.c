/* Every size from 1 to a little past two vectors, and those round the sizes at which kernels change
 * their ways (a warp, a block, a tile, a chunk), against the reference device: ops that go row by row,
 * and rows of experts, where an expert may have none. Rows lie as close as they can and a little
 * apart, so that nothing but the first is aligned. Every shape comes in one dtype, by turns; in all of
 * them with LONGHAUL_TORTURE=1 and on a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../torture.h"
#include "cpu_rigs.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SUM 4e-6

enum { DATA = 4, ELEMENTS = 1 << 20, MOST_PICKS = 2200 };
static double data[DATA][ELEMENTS], positive[ELEMENTS];
#if defined(RIGS_OF_CUDA)
static const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16, LH_DTYPE_F16};
#else
static const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
#endif

static int setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < DATA; i++)
        rig_random(i + 40, data[i], ELEMENTS);
    for (uint32_t i = 0; i < ELEMENTS; i++)
        positive[i] = 0.5 + fabs(data[0][i]);
    cpu_rigs_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cpu_rigs_close();
    return 0;
}

/* rows x width, with a gap between rows or without */
typedef struct shape {
    uint64_t rows, width, pad;
} shape_t;

/* The address sanitizer's build takes each shape in the dtype that comes after that of a build without
 * it. */
#if defined(__SANITIZE_ADDRESS__)
enum { FIRST_TURN = 1 };
#else
enum { FIRST_TURN = 0 };
#endif

typedef void shape_check_t(const shape_t *s, lh_dtype_t d);

static void each_dtype(shape_check_t *check, shape_t s, uint64_t turn)
{
    const bool all = torture_wanted() || rig_on_gpu();
    for (uint32_t d = 0; d < COUNT(dtypes); d++)
        if (all || d == (turn + FIRST_TURN) % COUNT(dtypes)) check(&s, dtypes[d]);
}

/* Turns are such that neighbours round a sharp size, and the sizes themselves, get every dtype, and a
 * dtype every number of rows. */
static void each_shape(shape_check_t *check)
{
    static const uint64_t sharp[] = {63,  64,  65,   127,  128,  129,  255, 256,
                                     257, 511, 1023, 1025, 2047, 2049, 4103};
    for (uint64_t width = 1; width <= 35; width++) {
        each_dtype(check, (shape_t){1 + width % 3, width, 0}, width / 3);
        each_dtype(check, (shape_t){2 + width % 5, width, 1 + width % 8}, width / 3 + 1);
    }
    for (uint32_t i = 0; i < COUNT(sharp); i++) {
        each_dtype(check, (shape_t){3, sharp[i], 0}, i % 3 + i / 3);
        each_dtype(check, (shape_t){sharp[i] % 300 + 1, 9, 3}, i % 3 + i / 3 + 1);
    }
}

static void elements_check(const shape_t *s, lh_dtype_t d)
{
    const lh_activate_t silu = {sizeof(silu), LH_ACT_SILU};
    const rig_slot_t a = cpu_padded(cpu_in(d, data[0], s->rows, s->width), s->pad);
    const rig_slot_t b = cpu_padded(cpu_in(d, data[1], s->rows, s->width), s->pad);
    const rig_slot_t y = cpu_padded(cpu_out(d, s->rows, s->width), s->pad);
    CPU_CHECK("add", NULL, SUM, a, b, y);
    CPU_CHECK("multiply", NULL, SUM, a, cpu_line(d, data[2], s->width), y);
    CPU_CHECK("multiply", NULL, SUM, a, cpu_in(d, data[2], s->rows, 1), y);
    CPU_CHECK("gate", &silu, SUM, a, b, y);
    CPU_CHECK("gate_grad", &silu, SUM, b, a, b, y, y);
    CPU_CHECK("copy", NULL, 0, a, y);
}

static void elements_of_every_width(void **state)
{
    (void)state;
    each_shape(elements_check);
}

static void norms_check(const shape_t *s, lh_dtype_t d)
{
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    const rig_slot_t x = cpu_padded(cpu_in(d, data[0], s->rows, s->width), s->pad);
    const rig_slot_t gy = cpu_in(d, data[1], s->rows, s->width), w = cpu_line(d, data[2], s->width);
    const rig_slot_t y = cpu_padded(cpu_out(d, s->rows, s->width), s->pad);
    const rig_slot_t g = cpu_out_line(LH_DTYPE_F32, s->width);
    const rig_slot_t each = cpu_out_line(LH_DTYPE_F32, s->rows);
    const rig_slot_t known = cpu_line(LH_DTYPE_F32, positive, s->rows);
    CPU_CHECK("rms_norm", &how, SUM, x, w, y, each);
    CPU_CHECK("add_rms_norm", &how, SUM, x, gy, w, y, y, each);
    CPU_CHECK("rms_norm_grad", &how, SUM, gy, x, w, known, y, g);
    CPU_CHECK("rms_norm_grad_add", &how, cpu_rounded_part(SUM, d), gy, x, w, known, x, y, g);
    /* Of one column nothing is left but roundings. */
    if (s->width > 1) CPU_CHECK("layer_norm", &how, SUM, x, w, w, y, each, each);
    CPU_CHECK("layer_norm_grad", &how, SUM, gy, x, w, known, known, y, g, g);
    CPU_CHECK("layer_norm_grad_add", &how, cpu_rounded_part(SUM, d), gy, x, w, known, known, x, y,
              g, g);
}

static void norms_of_every_width(void **state)
{
    (void)state;
    each_shape(norms_check);
}

/* A label of `width` is nobody's column. The gradient in its own memory and over the logits. */
static void losses_check(const shape_t *s, lh_dtype_t d)
{
    static double labels[512];
    for (uint64_t i = 0; i < s->rows; i++)
        labels[i] = (double)(i * 7 % (s->width + 1));
    const rig_slot_t x = cpu_padded(cpu_in(d, data[0], s->rows, s->width), s->pad);
    const rig_slot_t of = cpu_line(LH_DTYPE_I32, labels, s->rows);
    const rig_slot_t w = cpu_line(LH_DTYPE_F32, positive, s->rows);
    const rig_slot_t loss = cpu_out_line(LH_DTYPE_F32, 1);
    const rig_slot_t g = cpu_padded(cpu_out(d, s->rows, s->width), s->pad);
    CPU_CHECK("cross_entropy", NULL, SUM, x, of, w, loss, g);
    CPU_CHECK("cross_entropy", NULL, SUM, x, of, w, loss, cpu_over(g, 1));
}

static void losses_of_every_width(void **state)
{
    (void)state;
    each_shape(losses_check);
}

/* Norms of heads: groups of a row, of lengths that no vector divides as well. */
static void norms_of_groups(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 3, 8, 20, 64, 65, 128};
    const lh_norm_t how = {sizeof(how), 1, 1e-6};
    for (uint32_t i = 0; i < COUNT(lengths) * COUNT(dtypes); i++) {
        const lh_dtype_t d = dtypes[i % COUNT(dtypes)];
        const uint64_t length = lengths[i / COUNT(dtypes)], width = 5 * length, rows = 19;
        const rig_slot_t x = cpu_padded(cpu_in(d, data[0], rows, width), 8);
        const rig_slot_t gy = cpu_in(d, data[1], rows, width), w = cpu_line(d, data[2], length);
        CPU_CHECK("rms_norm", &how, SUM, x, w, cpu_out(d, rows, width),
                  cpu_out_line(LH_DTYPE_F32, rows * 5));
        CPU_CHECK("rms_norm_grad", &how, SUM, gy, x, w, cpu_line(LH_DTYPE_F32, positive, rows * 5),
                  cpu_out(d, rows, width), cpu_adds(cpu_out_line(LH_DTYPE_F32, length), data[3]));
        CPU_CHECK("rms_norm_grad_add", &how, cpu_rounded_part(SUM, d), gy, x, w,
                  cpu_line(LH_DTYPE_F32, positive, rows * 5), gy, cpu_out(d, rows, width),
                  cpu_out_line(LH_DTYPE_F32, length));
    }
}

static void rows_check(const shape_t *s, lh_dtype_t d)
{
    const rig_slot_t x = cpu_padded(cpu_in(d, data[0], s->rows, s->width), s->pad);
    const rig_slot_t gy = cpu_in(d, data[1], s->rows, s->width);
    const rig_slot_t y = cpu_padded(cpu_out(d, s->rows, s->width), s->pad);
    CPU_CHECK("sum_rows", NULL, SUM, x, cpu_out_line(LH_DTYPE_F32, s->width));
    CPU_CHECK("sum_columns", NULL, SUM, x, cpu_out(LH_DTYPE_F32, s->rows, 1));
    CPU_CHECK("softmax", NULL, SUM, x, y);
    CPU_CHECK("softmax_grad", NULL, SUM, gy, x, y);
    if (s->pad == 0)
        CPU_CHECK("sum_squares", NULL, SUM, cpu_line(d, data[0], s->rows * s->width),
                  cpu_out(LH_DTYPE_F32, (s->rows * s->width + 4095) / 4096, 2));
}

static void sums_and_shares_of_every_width(void **state)
{
    (void)state;
    each_shape(rows_check);
}

/* Tokens that are all one, all unlike, and none of this part. */
static void tables_of_every_size(void **state)
{
    (void)state;
    static double tokens[1200];
    static const uint64_t counts[] = {1, 2, 31, 255, 256, 257, 600};
    for (uint32_t i = 0; i < COUNT(counts) * COUNT(dtypes) * 3; i++) {
        const lh_dtype_t d = dtypes[i % COUNT(dtypes)];
        const uint64_t t = counts[i / COUNT(dtypes) % COUNT(counts)], width = 1 + 7 * (i % 5);
        const uint32_t kind = i / (uint32_t)(COUNT(dtypes) * COUNT(counts));
        const lh_rows_t part = {sizeof(part), 0, kind == 2 ? 900 : 0, 300};
        for (uint64_t j = 0; j < t; j++)
            tokens[j] = kind == 0 ? 7 : (double)(j * 17 % 300);
        const rig_slot_t ids = cpu_line(LH_DTYPE_I32, tokens, t);
        CPU_CHECK("embed", &part, 0, ids, cpu_in(d, data[1], 300, width), cpu_out(d, t, width));
        CPU_CHECK("embed_grad", &part, SUM, ids, cpu_in(d, data[0], t, width),
                  cpu_out(LH_DTYPE_F32, 300, width));
    }
}

/* ---- experts ---- */

typedef struct picks {
    uint64_t tokens, k, experts, width;
    bool to_last; /* all tokens go to the last expert, the others have none */
    double ids[MOST_PICKS], order[MOST_PICKS], offsets[72];
} picks_t;

/* Picks by a rule that leaves every third expert without any; order and offsets as route makes
 * them. */
static void picks_make(picks_t *p, uint64_t seed)
{
    static double random[MOST_PICKS];
    uint64_t placed = 0;
    rig_random(seed, random, MOST_PICKS);
    for (uint64_t i = 0; i < p->tokens * p->k; i++) {
        uint64_t e = (uint64_t)((random[i] + 1) / 2 * (double)p->experts) % p->experts;
        if (e % 3 == 2) e--;
        if (p->to_last) e = p->experts - 1;
        p->ids[i] = (double)e;
    }
    for (uint64_t e = 0; e < p->experts; e++) {
        p->offsets[e] = (double)placed;
        for (uint64_t i = 0; i < p->tokens * p->k; i++)
            if (p->ids[i] == (double)e) p->order[placed++] = (double)i;
    }
    p->offsets[p->experts] = (double)placed;
}

static rig_slot_t matrices(lh_dtype_t d, const double *in, double *out, uint64_t experts,
                           uint64_t rows, uint64_t columns)
{
    return (rig_slot_t){
        .dtype = d, .rank = 3, .shape = {experts, rows, columns}, .in = in, .out = out};
}

/* Both ways round and the gradient of the matrices, [in, out] each. */
static void products_of_experts_check(const picks_t *p, lh_dtype_t d, uint64_t in, uint64_t out,
                                      uint64_t pad)
{
    static double marked; /* an address: the slot is compared */
    const uint64_t many = p->tokens * p->k;
    const rig_slot_t offsets = cpu_line(LH_DTYPE_I32, p->offsets, p->experts + 1);
    const rig_slot_t a = cpu_padded(cpu_in(d, data[1], many, in), pad);
    const rig_slot_t g = cpu_padded(cpu_in(d, data[2], many, out), pad);
    for (uint32_t turned = 0; turned < 2; turned++) {
        const lh_grouped_t how = {sizeof(how), turned};
        const rig_slot_t b = matrices(d, data[3], NULL, p->experts, turned != 0 ? out : in,
                                      turned != 0 ? in : out);
        CPU_CHECK("grouped_matmul", &how, SUM, a, cpu_padded(b, pad), offsets,
                  cpu_padded(cpu_out(d, many, out), pad));
    }
    const rig_slot_t gb = cpu_padded(matrices(LH_DTYPE_F32, NULL, &marked, p->experts, in, out),
                                     pad);
    CPU_CHECK("grouped_matmul_grad", NULL, SUM, a, g, offsets, gb);
    CPU_CHECK("grouped_matmul_grad", NULL, SUM, a, g, offsets, cpu_adds(gb, data[3]));
}

static void rows_of_experts_check(const picks_t *p, lh_dtype_t d)
{
    const uint64_t many = p->tokens * p->k, in = p->width;
    const lh_route_t route = {sizeof(route), (uint32_t)p->experts};
    const lh_picks_t k = {sizeof(k), (uint32_t)p->k};
    const rig_slot_t order = cpu_line(LH_DTYPE_I32, p->order, many);
    const rig_slot_t offsets = cpu_line(LH_DTYPE_I32, p->offsets, p->experts + 1);
    const rig_slot_t few = cpu_in(d, data[0], p->tokens, in), all = cpu_in(d, data[1], many, in);
    const rig_slot_t shares = cpu_in(d, data[2], p->tokens, p->k);
    CPU_CHECK("route", &route, 0, cpu_in(LH_DTYPE_I32, p->ids, p->tokens, p->k),
              cpu_out_line(LH_DTYPE_I32, many), cpu_out_line(LH_DTYPE_I32, p->experts + 1));
    CPU_CHECK("route_load", NULL, SUM, offsets, cpu_out_line(LH_DTYPE_F32, p->experts));
    CPU_CHECK("mean_rows", NULL, SUM, few, cpu_out_line(LH_DTYPE_F32, in));
    CPU_CHECK("mean_rows_grad", NULL, SUM, cpu_line(LH_DTYPE_F32, data[1], in), few,
              cpu_out(d, p->tokens, in));
    CPU_CHECK("dot", NULL, SUM, cpu_line(LH_DTYPE_F32, data[0], many),
              cpu_line(LH_DTYPE_F32, data[1], many), cpu_out_line(LH_DTYPE_F32, 1));
    CPU_CHECK("gather_rows", &k, 0, few, order, cpu_out(d, many, in));
    CPU_CHECK("scatter_rows", &k, SUM, all, order, shares, cpu_out(d, p->tokens, in));
    CPU_CHECK("scatter_rows", &k, SUM, all, order, RIG_NONE, cpu_out(d, p->tokens, in));
    CPU_CHECK("scatter_rows_grad", &k, SUM, few, all, order, shares, cpu_out(d, many, in),
              cpu_out(d, p->tokens, p->k));
    products_of_experts_check(p, d, in, in + 5, 0);
}

/* Cuda's kernels on the host are slow, and cut no product as the cpu device does: sizes at which that
 * one's do are theirs with torture alone. */
static bool takes_large_products(void)
{
#if defined(RIGS_OF_CUDA)
    return rig_on_gpu() || torture_wanted();
#else
    return true;
#endif
}

static void rows_of_experts(void **state)
{
    enum { LARGE = 3 }; /* at the end */
    (void)state;
    static picks_t cases[] = {{.tokens = 1, .k = 1, .experts = 1, .width = 1},
                              {.tokens = 1, .k = 3, .experts = 5, .width = 8},
                              {.tokens = 33, .k = 2, .experts = 4, .width = 31},
                              {.tokens = 130, .k = 2, .experts = 8, .width = 16},
                              {.tokens = 257, .k = 1, .experts = 3, .width = 9},
                              {.tokens = 65, .k = 1, .experts = 5, .width = 17, .to_last = true},
                              {.tokens = 100, .k = 6, .experts = 64, .width = 24},
                              /* Blocks of every size; columns, then lines, in several parts. */
                              {.tokens = 1050, .k = 2, .experts = 4, .width = 8},
                              {.tokens = 20, .k = 1, .experts = 1, .width = 523},
                              {.tokens = 20, .k = 1, .experts = 1, .width = 520}};
    const uint32_t count = takes_large_products() ? COUNT(cases) : COUNT(cases) - LARGE;
    for (uint32_t i = 0; i < count * COUNT(dtypes); i++) {
        picks_make(&cases[i / COUNT(dtypes)], i);
        rows_of_experts_check(&cases[i / COUNT(dtypes)], dtypes[i % COUNT(dtypes)]);
    }
}

/* Rows further apart than they are wide, and arguments of one row; products whose depth is cut, over several
 * blocks of rows and over fewer than one; and widths that no small number divides. */
static void products_of_experts(void **state)
{
    (void)state;
    static picks_t many = {.tokens = 1040, .k = 1, .experts = 3},
                   few = {.tokens = 40, .k = 1, .experts = 1},
                   one = {.tokens = 1, .k = 1, .experts = 1};
    static const struct {
        picks_t *picks;
        uint64_t in, out, pad;
    } cases[] = {{&many, 523, 7, 3}, {&few, 7, 600, 1}, {&few, 1100, 3, 0}, {&few, 2, 521, 5},
                 {&few, 5, 1, 3},    {&few, 1, 5, 3},   {&one, 33, 5, 2},   {&one, 513, 40, 0}};
    if (!takes_large_products()) skip();
    picks_make(&many, 1);
    picks_make(&few, 2);
    picks_make(&one, 3);
    for (uint32_t i = 0; i < COUNT(cases) * COUNT(dtypes); i++)
        products_of_experts_check(cases[i / COUNT(dtypes)].picks, dtypes[i % COUNT(dtypes)],
                                  cases[i / COUNT(dtypes)].in, cases[i / COUNT(dtypes)].out,
                                  cases[i / COUNT(dtypes)].pad);
}

/* Eighths, so that many are equal: then the first column comes first. */
static void the_largest_of_every_width(void **state)
{
    (void)state;
    static double x[70 * 40], ids[70 * 40];
    for (uint32_t i = 0; i < 70 * 40; i++) {
        x[i] = floor(data[0][i] * 8) / 8;
        ids[i] = i % 3;
    }
    for (uint64_t width = 1; width <= 70; width += width < 9 ? 1 : 13) {
        for (uint32_t k = 1; k <= width && k <= 8; k += 3) {
            for (uint32_t d = 0; d < COUNT(dtypes); d++) {
                const lh_top_k_t how = {sizeof(how), k, (uint32_t)width, 0};
                CPU_CHECK("top_k", &how, 0, cpu_in(dtypes[d], x, 11, width),
                          cpu_out(dtypes[d], 11, k), cpu_out(LH_DTYPE_I32, 11, k));
                if (k == 1 && width >= 3)
                    CPU_CHECK("top_k_grad", &how, 0, cpu_in(dtypes[d], data[1], 11, 1),
                              cpu_in(LH_DTYPE_I32, ids, 11, 1), cpu_out(dtypes[d], 11, width));
            }
        }
    }
}

/* A row of the device's table takes arguments by their dtypes, and says so where it has no such op at all. */
static void every_op_has_a_kernel(void **state)
{
    (void)state;
#define OP_NAME(op, text) #op,
    static const char *const names[] = {LH_OPS_BASE(OP_NAME) LH_OPS_MORE(OP_NAME)};
#undef OP_NAME
    const rig_t *rig = cpu_rigs_best();
    for (uint32_t i = 0; i < COUNT(names); i++) {
        const lh_kernel_desc_t none = {.struct_size = sizeof(none), .op = names[i]};
        const lh_kernel_t *row = NULL;
        for (uint32_t n = 0; n < rig->plugin->kernel_count && row == NULL; n++)
            if (strcmp(rig->plugin->kernels[n].op, names[i]) == 0) row = &rig->plugin->kernels[n];
        if (row == NULL) fail_msg("%s has no row for %s", RIGS_DEVICE, names[i]);
        rig_forget();
        if (row->fits == NULL) continue;
        (void)row->fits(rig_host(), rig->device, NULL, &none);
        if (strstr(rig_reason(), " has no ") != NULL) fail_msg("%s", rig_reason());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_kernel), cmocka_unit_test(elements_of_every_width),
        cmocka_unit_test(norms_of_every_width),  cmocka_unit_test(losses_of_every_width),
        cmocka_unit_test(norms_of_groups),       cmocka_unit_test(sums_and_shares_of_every_width),
        cmocka_unit_test(tables_of_every_size),  cmocka_unit_test(rows_of_experts),
        cmocka_unit_test(products_of_experts),   cmocka_unit_test(the_largest_of_every_width),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
