/* adafactor.c - Adafactor (Shazeer and Stern 2018, "Adafactor: adaptive learning rates with
 * sublinear memory cost"), as torch.optim.Adafactor has it.
 *
 * Second moments are kept as one number a row and one a column, whose product over their mean
 * stands for that of an element: rows + columns numbers beside AdamW's rows x columns, twice. The
 * price is three passes over a matrix instead of one, and that a matrix stays on one rank, as each
 * column's number is a sum over all rows. A vector is a matrix of a single row, whose columns'
 * numbers are all that there is.
 *
 * Scratch: [rows] sums of squared gradients, [rows] of squared masters, [rows] of squared steps,
 * [columns]. Sums over columns are formed by whoever has the columns, row after row; sums over
 * rows are added in the order of rows: no bit depends on the number of threads. */
#include "adafactor.h"

#include <math.h>

enum { PACE, MEAN }; /* rules_call_t.found: how far a step goes; mean of the rows' moments */

lh_status_t adafactor_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                            uint32_t arg_count)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)attributes, (void)arg_count, (void)slot_count;
    const lh_arg_t *g = &args[in_g], *m = &args[in_master];
    const lh_arg_t *row = &args[in_row], *column = &args[in_column];
    if (g->rank != 2 || m->rank != 2 || g->shape[0] != m->shape[0] || g->shape[1] != m->shape[1] ||
        row->rank != 1 || column->rank != 1 || row->shape[0] != g->shape[0] ||
        column->shape[0] != g->shape[1])
        return host->fail(host, LH_INVALID,
                          "adafactor: g, master, row and column are not of one matrix");
    args[out_master] = args[in_master];
    args[out_row] = args[in_row];
    args[out_column] = args[in_column];
    args[out_w] = args[in_master];
    args[out_w].dtype = LH_DTYPE_NONE; /* the recorder's compute dtype */
    return LH_OK;
}

/* Three passes over gradient and master. */
void adafactor_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                    lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const double n = (double)args[0].shape[0] * (double)args[0].shape[1];
    LH_FILL(lh_cost_t, out, .flops = 14 * n, .bytes = 24 * n);
}

static uint64_t sums_count(uint64_t rows, uint64_t columns)
{
    return 3 * rows + columns;
}

/* Where each kind of sum lies in the scratch. */
static double *masters_of(const rules_call_t *call)
{
    return call->scratch + call->rows;
}

static double *steps_of(const rules_call_t *call)
{
    return call->scratch + 2 * call->rows;
}

static double *columns_of(const rules_call_t *call)
{
    return call->scratch + 3 * call->rows;
}

/* How much of the newest squares a second moment takes. */
static double mix_of(const rules_call_t *call)
{
    const adafactor_how_t *how = call->how;
    return pow(rules_word(call, LH_STEP_NUMBER), -how->beta2_decay);
}

static inline void row_moments(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)slot_count;
    if (!rules_applied(call)) return;
    const double scale = rules_word(call, LH_STEP_GRAD_SCALE);
    const double mix = mix_of(call);
    const uint64_t end = rules_begin(call, call->rows, part + 1);
    for (uint64_t r = rules_begin(call, call->rows, part); r < end; r++) {
        double squares = 0, masters = 0;
        for (uint64_t i = r * call->columns; i < (r + 1) * call->columns; i++) {
            const double x = scale * rules_get(call, in_g, i, wide);
            const double m = rules_get(call, in_master, i, wide);
            squares += x * x;
            masters += m * m;
        }
        const double was = rules_get(call, in_row, r, wide);
        rules_set(call, out_row, r, was + mix * (squares / (double)call->columns - was), wide);
        masters_of(call)[r] = masters;
    }
}

/* The columns of a part, row after row, so that memory is read in its order. */
static inline void column_moments(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)slot_count;
    if (!rules_applied(call)) return;
    const double scale = rules_word(call, LH_STEP_GRAD_SCALE);
    const double mix = mix_of(call);
    const uint64_t begin = rules_begin(call, call->columns, part),
                   end = rules_begin(call, call->columns, part + 1);
    double *squares = columns_of(call);
    for (uint64_t k = begin; k < end; k++)
        squares[k] = 0;
    for (uint64_t r = 0; r < call->rows; r++)
        for (uint64_t k = begin; k < end; k++) {
            const double x = scale * rules_get(call, in_g, r * call->columns + k, wide);
            squares[k] += x * x;
        }
    for (uint64_t k = begin; k < end; k++) {
        const double was = rules_get(call, in_column, k, wide);
        rules_set(call, out_column, k, was + mix * (squares[k] / (double)call->rows - was), wide);
    }
}

/* The mean of the rows' moments, which all elements are divided by. */
static void rows_mean(rules_call_t *call)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)in_g, (void)slot_count;
    const adafactor_how_t *how = call->how;
    double sum = 0;
    if (!rules_applied(call)) return;
    for (uint64_t r = 0; r < call->rows; r++)
        sum += rules_get(call, out_row, r, call->wide);
    call->found[MEAN] = fmax(sum / (double)call->rows, how->epsilon);
}

/* Element i of the step, before it is made shorter: u of the op's text. */
static inline double step_of(const rules_call_t *call, uint64_t r, uint64_t k, double scale,
                             bool wide)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)slot_count;
    const adafactor_how_t *how = call->how;
    const double column = rules_get(call, out_column, k, wide);
    const double v = call->rows == 1
                         ? column
                         : rules_get(call, out_row, r, wide) * column / call->found[MEAN];
    return scale * rules_get(call, in_g, r * call->columns + k, wide) / fmax(sqrt(v), how->epsilon);
}

static inline void step_squares(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)in_g, (void)slot_count;
    if (!rules_applied(call)) return;
    const double scale = rules_word(call, LH_STEP_GRAD_SCALE);
    const uint64_t end = rules_begin(call, call->rows, part + 1);
    for (uint64_t r = rules_begin(call, call->rows, part); r < end; r++) {
        double sum = 0;
        for (uint64_t k = 0; k < call->columns; k++) {
            const double u = step_of(call, r, k, scale, wide);
            sum += u * u;
        }
        steps_of(call)[r] = sum;
    }
}

/* Both are of the whole matrix, before any of it changes. */
static void pace_find(rules_call_t *call)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)in_g, (void)slot_count;
    const adafactor_how_t *how = call->how;
    const double n = (double)call->rows * (double)call->columns;
    double masters = 0, steps = 0;
    if (!rules_applied(call)) return;
    for (uint64_t r = 0; r < call->rows; r++) {
        masters += masters_of(call)[r];
        steps += steps_of(call)[r];
    }
    const double rate = rules_word(call, LH_STEP_LEARNING_RATE);
    const double number = rules_word(call, LH_STEP_NUMBER);
    const double length = fmax(1, sqrt(steps / n) / how->clip);
    call->found[PACE] = fmax(how->least, sqrt(masters / n)) * fmin(rate, 1 / sqrt(number)) / length;
}

static inline void move_masters(rules_call_t *call, uint32_t part, const bool wide)
{
    LH_SLOTS(ADAFACTOR_TEXT);
    (void)slot_count;
    const adafactor_how_t *how = call->how;
    if (!rules_applied(call)) return;
    const double scale = rules_word(call, LH_STEP_GRAD_SCALE);
    const double keep = 1 - rules_word(call, LH_STEP_LEARNING_RATE) * how->decay;
    const uint64_t end = rules_begin(call, call->rows, part + 1);
    for (uint64_t r = rules_begin(call, call->rows, part); r < end; r++)
        for (uint64_t k = 0; k < call->columns; k++) {
            const uint64_t i = r * call->columns + k;
            const double u = step_of(call, r, k, scale, wide);
            rules_set(call, out_master, i,
                      keep * rules_get(call, in_master, i, wide) - call->found[PACE] * u, wide);
            rules_set_w(call, out_w, i, rules_get(call, out_master, i, wide));
        }
}

RULES_PASS(row_moments)
RULES_PASS(column_moments)
RULES_PASS(step_squares)
RULES_PASS(move_masters)

enum { ADAFACTOR_STEP = 4, ADAFACTOR_W = 8 };
static const rules_kernel_t kernel = {
    .name = "adafactor.rules",
    .attribute_bytes = sizeof(adafactor_how_t),
    .shaped = 0,
    .step = ADAFACTOR_STEP,
    .w = ADAFACTOR_W,
    .scratch = sums_count,
    .in = {{{row_moments_f32, column_moments_f32, step_squares_f32, move_masters_f32},
            {rows_mean, NULL, pace_find}},
           {{row_moments_f64, column_moments_f64, step_squares_f64, move_masters_f64},
            {rows_mean, NULL, pace_find}}},
};

lh_status_t adafactor_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    (void)d;
    return rules_prepare(host, &kernel, desc, plan, out);
}

lh_value_t adafactor_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                            lh_value_t grad, lh_value_t master, lh_value_t *states,
                            lh_value_t *value)
{
    const adafactor_config_t *c = config;
    const adafactor_how_t how = {sizeof(how), 0,       c->beta2_decay, c->epsilon,
                                 c->least,    c->clip, piece->decay};
    const lh_value_t in[] = {grad, master, states[0], states[1]};
    lh_value_t more[3] = {0};
    const lh_value_t updated = g->api->op(g, "rules.adafactor", &how, in, 4, more);
    states[0] = more[0];
    states[1] = more[1];
    *value = more[2];
    return updated;
}
