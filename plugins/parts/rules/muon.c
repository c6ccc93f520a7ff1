/* muon.c - Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"), as
 * torch.optim.Muon has it: momentum, then the nearest matrix whose singular values are all alike,
 * then the step.
 *
 * That matrix comes of five Newton-Schulz iterations, which push every singular value s of a matrix
 * of norm 1 towards 1: X = a X + (b G + c G G) X with G = X X', so that s becomes
 * a s + b s^3 + c s^5. The coefficients are those of the paper: fast near 0, and good to between
 * 0.7 and 1.2. G is of the shorter side: a tall matrix has G = X' X behind X instead. These are
 * matrix products and sums of the core's ops, in F32 (PyTorch rounds them to BF16); the kernels
 * here are what stands before and behind. */
#include "muon.h"

#include <math.h>

static const double a = 3.4445, b = -4.7750, c = 2.0315;

/* Whether two arguments are of one shape of two dimensions. */
static bool shapes_alike(const lh_arg_t *x, const lh_arg_t *y)
{
    return x->rank == 2 && y->rank == 2 && x->shape[0] == y->shape[0] && x->shape[1] == y->shape[1];
}

lh_status_t muon_direction_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    LH_SLOTS(MUON_DIRECTION_TEXT);
    const muon_direction_t *how = attributes;
    (void)arg_count, (void)slot_count;
    if (!shapes_alike(&args[in_g], &args[in_m1]))
        return host->fail(host, LH_INVALID, "muon: g and m1 are not matrices of one shape");
    if (how->matrices == 0 || args[in_g].shape[0] % how->matrices != 0)
        return host->fail(host, LH_INVALID, "muon: %llu rows are not %llu matrices",
                          (unsigned long long)args[in_g].shape[0],
                          (unsigned long long)how->matrices);
    if (args[in_g].shape[0] == how->matrices)
        return host->fail(host, LH_INVALID,
                          "muon is for matrices, found a vector of %llu; give it another rule by a "
                          "[group.NAME]",
                          (unsigned long long)args[in_g].shape[1]);
    args[out_m1] = args[in_m1];
    args[out_y] = args[in_m1];
    return LH_OK;
}

lh_status_t muon_move_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                            uint32_t arg_count)
{
    LH_SLOTS(MUON_MOVE_TEXT);
    (void)attributes, (void)arg_count, (void)slot_count;
    if (!shapes_alike(&args[in_y], &args[in_master]))
        return host->fail(host, LH_INVALID, "muon: y and master are not matrices of one shape");
    args[out_master] = args[in_master];
    args[out_w] = args[in_master];
    args[out_w].dtype = LH_DTYPE_NONE; /* the recorder's compute dtype */
    return LH_OK;
}

/* An estimate for both: bounded by memory. */
void muon_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count, lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const double n = (double)args[0].shape[0] * (double)args[0].shape[1];
    LH_FILL(lh_cost_t, out, .flops = 6 * n, .bytes = 20 * n);
}

/* ---- kernels ---- */

enum { MUON_STEP = 2 }; /* slot, of both ops */

/* scratch: a sum of squares of each row. */
static uint64_t row_sums(uint64_t rows, uint64_t columns)
{
    (void)columns;
    return rows;
}

static uint64_t no_scratch(uint64_t rows, uint64_t columns)
{
    (void)rows, (void)columns;
    return 0;
}

static inline void direction_sums(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(MUON_DIRECTION_TEXT);
    (void)slot_count;
    const muon_direction_t *how = call->how;
    const bool applied = rules_applied(call);
    const double scale = rules_word(call, LH_STEP_GRAD_SCALE);
    const double keep = how->momentum, mix = 1 - keep;
    const uint64_t end = rules_begin(call, call->rows, part + 1);
    for (uint64_t row = rules_begin(call, call->rows, part); row < end; row++) {
        double sum = 0;
        for (uint64_t i = row * call->columns; i < (row + 1) * call->columns; i++) {
            if (!applied) {
                rules_set(call, out_y, i, 0, wide);
                continue;
            }
            const double x = scale * rules_get(call, in_g, i, wide);
            const double m = keep * rules_get(call, in_m1, i, wide) + mix * x;
            const double u = how->nesterov != 0 ? keep * m + mix * x : m;
            rules_set(call, out_m1, i, m, wide);
            rules_set(call, out_y, i, u, wide);
            sum += u * u;
        }
        call->scratch[row] = sum;
    }
}

/* Of each matrix, in the order of rows, whoever summed them. What its rows are divided by stands in
 * the place of its first row's sum. */
static void direction_norm(rules_call_t *call)
{
    const muon_direction_t *how = call->how;
    const uint64_t each = call->rows / how->matrices;
    for (uint64_t first = 0; first < call->rows; first += each) {
        double sum = 0;
        for (uint64_t row = first; row < first + each; row++)
            sum += call->scratch[row];
        call->scratch[first] = 1 / fmax(sqrt(sum), how->epsilon);
    }
}

static inline void direction_scale(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(MUON_DIRECTION_TEXT);
    (void)in_g, (void)slot_count;
    const muon_direction_t *how = call->how;
    const uint64_t each = call->rows / how->matrices;
    const uint64_t end = rules_begin(call, call->rows, part + 1);
    for (uint64_t row = rules_begin(call, call->rows, part); row < end; row++) {
        const double by = call->scratch[row / each * each];
        for (uint64_t i = row * call->columns; i < (row + 1) * call->columns; i++)
            rules_set(call, out_y, i, by * rules_get(call, out_y, i, wide), wide);
    }
}

static inline void move_step(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(MUON_MOVE_TEXT);
    (void)slot_count;
    const muon_move_t *how = call->how;
    if (!rules_applied(call)) return;
    const double rate = rules_word(call, LH_STEP_LEARNING_RATE);
    const double keep = 1 - rate * how->decay, along = rate * how->ratio;
    const uint64_t end = rules_begin(call, call->rows, part + 1) * call->columns;
    for (uint64_t i = rules_begin(call, call->rows, part) * call->columns; i < end; i++) {
        const double master = keep * rules_get(call, in_master, i, wide) -
                              along * rules_get(call, in_y, i, wide);
        rules_set(call, out_master, i, master, wide);
        rules_set_w(call, out_w, i, rules_get(call, out_master, i, wide));
    }
}

RULES_PASS(direction_sums)
RULES_PASS(direction_scale)
RULES_PASS(move_step)

static const rules_kernel_t direction_kernel = {
    .name = "muon_direction.rules",
    .attribute_bytes = sizeof(muon_direction_t),
    .shaped = 0,
    .step = MUON_STEP,
    .scratch = row_sums,
    .in = {{{direction_sums_f32, direction_scale_f32}, {direction_norm}},
           {{direction_sums_f64, direction_scale_f64}, {direction_norm}}},
};

enum { MOVE_W = 4 };
static const rules_kernel_t move_kernel = {
    .name = "muon_move.rules",
    .attribute_bytes = sizeof(muon_move_t),
    .shaped = 0,
    .step = MUON_STEP,
    .w = MOVE_W,
    .scratch = no_scratch,
    .in = {{{move_step_f32}, {0}}, {{move_step_f64}, {0}}},
};

lh_status_t muon_direction_prepare(const lh_host_t *host, lh_device_t *d,
                                   const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                   lh_prepared_t **out)
{
    (void)d;
    return rules_prepare(host, &direction_kernel, desc, plan, out);
}

lh_status_t muon_move_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    (void)d;
    return rules_prepare(host, &move_kernel, desc, plan, out);
}

/* ---- the rule ---- */

static lh_value_t scaled_value(lh_graph_t *g, lh_value_t x, double factor)
{
    const float number = (float)factor;
    const lh_value_t in[] = {x, g->api->constant(g, &number, 1)};
    return g->api->op(g, "scale", NULL, in, 2, NULL);
}

static lh_value_t muon_product(lh_graph_t *g, lh_value_t x, lh_value_t y, bool turn_x, bool turn_y)
{
    const lh_matmul_t how = {sizeof(how), turn_x, turn_y, LH_ACT_NONE};
    const lh_value_t in[] = {x, y};
    return g->api->op(g, "matmul", &how, in, 2, NULL);
}

/* One iteration on x, whose rows are more than its columns where tall. */
static lh_value_t newton_schulz(lh_graph_t *g, lh_value_t x, bool tall)
{
    const lh_value_t gram = muon_product(g, x, x, tall, !tall);
    const lh_value_t square = muon_product(g, gram, gram, false, false);
    /* As arguments of one call C would leave open which is recorded first; gcc took this order. */
    const lh_value_t of_square = scaled_value(g, square, c);
    const lh_value_t of_gram = scaled_value(g, gram, b);
    const lh_value_t by = lh_add(g, of_gram, of_square);
    const lh_value_t turned = tall ? muon_product(g, x, by, false, false)
                                   : muon_product(g, by, x, false, false);
    return lh_add(g, scaled_value(g, x, a), turned);
}

static lh_value_t piece_turned(lh_graph_t *g, const muon_config_t *how, const lh_piece_t *piece,
                               lh_value_t x)
{
    for (uint64_t i = 0; i < how->steps; i++)
        x = newton_schulz(g, x, piece->rows / piece->matrices > piece->columns);
    return x;
}

/* Each matrix of a stack by itself, from number `first` on: a view of y. What they become is joined
 * to one row, four at a time, as `concat` takes four. */
static lh_value_t stack_turned(lh_graph_t *g, const muon_config_t *how, const lh_piece_t *piece,
                               lh_value_t y, uint64_t first, uint64_t count)
{
    const uint64_t elements = piece->rows / piece->matrices * piece->columns;
    if (count == 1) {
        const lh_value_t row = lh_heads(g, y, piece->rows * piece->columns);
        const lh_value_t own = lh_columns(g, row, first * elements, elements);
        return lh_heads(g, piece_turned(g, how, piece, lh_heads(g, own, piece->columns)), elements);
    }
    const uint64_t each = (count + 3) / 4;
    const lh_concat_t side_by_side = {.struct_size = sizeof(side_by_side), .groups = 1};
    lh_value_t parts[4];
    uint32_t n = 0;
    for (uint64_t at = 0; at < count; at += each)
        parts[n++] = stack_turned(g, how, piece, y, first + at,
                                  each < count - at ? each : count - at);
    return g->api->op(g, "concat", &side_by_side, parts, n, NULL);
}

/* How much further a step goes than y: so that wide and tall matrices move alike, or as far as
 * AdamW would move them (Liu et al. 2025, "Muon is scalable for LLM training"). */
static double ratio_of(const muon_config_t *how, const lh_piece_t *piece)
{
    const double rows = (double)(piece->rows / piece->matrices), columns = (double)piece->columns;
    if (how->scale == MUON_SCALE_SHAPE) return sqrt(fmax(1, rows / columns));
    if (how->scale == MUON_SCALE_ADAMW) return 0.2 * sqrt(fmax(rows, columns));
    return 1;
}

lh_value_t muon_record(const void *config, lh_graph_t *g, const lh_piece_t *piece, lh_value_t grad,
                       lh_value_t master, lh_value_t *states, lh_value_t *value)
{
    const muon_config_t *how = config;
    const muon_direction_t direction = {sizeof(direction), how->nesterov, how->momentum,
                                        how->epsilon, piece->matrices};
    const muon_move_t move = {sizeof(move), 0, piece->decay, ratio_of(how, piece)};
    const lh_value_t first[] = {grad, states[0]};
    lh_value_t y = 0;
    states[0] = g->api->op(g, "rules.muon_direction", &direction, first, 2, &y);
    y = piece->matrices == 1
            ? piece_turned(g, how, piece, y)
            : lh_heads(g, stack_turned(g, how, piece, y, 0, piece->matrices), piece->columns);
    const lh_value_t last[] = {y, master};
    return g->api->op(g, "rules.muon_move", &move, last, 2, value);
}
