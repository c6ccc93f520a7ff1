/* matrix_rules_test.c - muon and adafactor against the formulas of torch.optim written out in
 * doubles, over three steps, on vectors, wide and tall matrices and stacks of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <base/status.h>
#include <graph/recorder.h>
#include <longhaul/dtype.h>

#include "differences.h"
#include <longhaul/rule.h>

#include <cmocka.h> /* last: it has a fail() of its own */

enum { MOST = 96, STEPS = 3 };
static const double rate = 0.05, decay = 0.1, scale = 0.5;

/* A parameter, what it is trained by, and what the doubles say of it. */
typedef struct matrix_run {
    const lh_plugin_t *rules;
    interpreter_how_t how; /* read for as long as the interpreter lives */
    const lh_rule_t *rule;
    uint64_t rows, columns, matrices;
    op_table_t *ops;
    recording_t *r;
    interpreter_t *it;
    lh_value_t grad, master, states[2], value;
    double expected[MOST], m1[MOST], row[MOST], column[MOST];
} matrix_run_t;

static double number(uint64_t i, uint64_t step)
{
    return sin(1.7 * (double)i + 0.3 * (double)step) + 0.01 * (double)(i % 7);
}

/* A rule's options are those of its table; the defaults here are those that it states. */
static const struct {
    double momentum, epsilon;
    uint64_t steps;
    uint32_t scale;
    bool nesterov;
} muon_config = {0.95, 1e-7, 5, 0, true};
static const struct {
    double beta2_decay, epsilon, least, clip;
} adafactor_config = {0.8, 1.1920929e-7, 1e-3, 1};

static const lh_rule_t *rule_of(const lh_plugin_t *rules, const char *name)
{
    for (uint32_t i = 0; i < rules->rule_count; i++)
        if (strcmp(rules->rules[i].name, name) == 0) return &rules->rules[i];
    fail_msg("no rule %s", name);
    return NULL;
}

static lh_status_t record(matrix_run_t *run, const char *rule, uint64_t rows, uint64_t columns,
                          uint64_t matrices)
{
    run->rows = rows;
    run->columns = columns;
    run->matrices = matrices;
    run->rules = test_plugin("parts", "rules");
    run->rule = rule_of(run->rules, rule);
    assert_int_equal(op_table_new(&run->ops), LH_OK);
    assert_int_equal(
        op_table_add(run->ops, run->rules->ops, run->rules->op_size, run->rules->op_count, "rules"),
        LH_OK);
    const recording_how_t recording = {
        .ops = run->ops, .host = test_host(), .compute = LH_DTYPE_BF16, .accumulate = LH_DTYPE_F32};
    assert_int_equal(recorder_new(&recording, &run->r), LH_OK);
    const uint64_t shape[] = {rows, columns};
    run->grad = recording_argument(run->r, LH_DTYPE_F32, 2, shape);
    run->master = recording_argument(run->r, LH_DTYPE_F32, 2, shape);
    for (uint32_t i = 0; i < run->rule->state_count; i++) {
        const bool like = run->rule->states[i].extent == LH_EXTENT_ELEMENT;
        run->states[i] = recording_argument(run->r, LH_DTYPE_F32, like ? 2 : 1,
                                            like ? shape : &shape[i]);
    }
    const lh_piece_t piece = {.struct_size = sizeof(piece),
                              .elements = rows * columns,
                              .rows = rows,
                              .columns = columns,
                              .decay = decay,
                              .name = "blocks.0.w",
                              .matrices = matrices};
    lh_value_t states[] = {run->states[0], run->states[1]};
    const void *config = strcmp(rule, "muon") == 0 ? (const void *)&muon_config : &adafactor_config;
    run->r->output = run->rule->record(config, &run->r->graph, &piece, run->grad, run->master,
                                       states, &run->value);
    /* somebody must want the value in the compute dtype */
    if (run->value != 0) run->r->output = lh_add(&run->r->graph, run->value, run->value);
    return recording_status(run->r);
}

static void start(matrix_run_t *run, const char *rule, uint64_t rows, uint64_t columns,
                  uint64_t matrices)
{
    *run = (matrix_run_t){0};
    assert_int_equal(record(run, rule, rows, columns, matrices), LH_OK);
    run->how = (interpreter_how_t){.host = test_host(),
                                   .device = test_plugin("devices", "reference"),
                                   .plugins = &run->rules,
                                   .plugin_count = 1};
    assert_int_equal(interpreter_new(&run->how, run->r, &run->it), LH_OK);
    float *master = interpreter_at(run->it, run->master);
    for (uint64_t i = 0; i < rows * columns; i++) {
        master[i] = (float)number(i, 100);
        run->expected[i] = master[i];
    }
}

static void end(matrix_run_t *run)
{
    interpreter_free(run->it);
    recording_free(run->r);
    op_table_free(run->ops);
}

static void give_step(matrix_run_t *run, uint32_t step, float apply)
{
    float *words = interpreter_at(run->it, run->r->graph.api->input(&run->r->graph, LH_INPUT_STEP));
    float *grad = interpreter_at(run->it, run->grad);
    words[LH_STEP_LEARNING_RATE] = (float)rate;
    words[LH_STEP_GRAD_SCALE] = (float)scale;
    words[LH_STEP_NUMBER] = (float)step;
    words[LH_STEP_APPLY] = apply;
    for (uint64_t i = 0; i < run->rows * run->columns; i++)
        grad[i] = (float)number(i, step);
    assert_int_equal(interpreter_run(run->it, false), LH_OK);
}

/* ---- the formulas ---- */

/* z [n, n] = x x', x [n, m]. */
static void gram(const double *x, uint64_t n, uint64_t m, double *z)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < m; k++)
                sum += x[i * m + k] * x[j * m + k];
            z[i * n + j] = sum;
        }
}

/* zeropower_via_newtonschulz of torch.optim.Muon on x [n, m], n <= m, in doubles. */
static void orthogonalise(double *x, uint64_t n, uint64_t m)
{
    double norm = 0, z[MOST], by[MOST], out[MOST];
    for (uint64_t i = 0; i < n * m; i++)
        norm += x[i] * x[i];
    for (uint64_t i = 0; i < n * m; i++)
        x[i] /= fmax(sqrt(norm), 1e-7);
    for (int round = 0; round < 5; round++) {
        gram(x, n, m, z);
        gram(z, n, n, by); /* z is symmetric: z z' = z z */
        for (uint64_t i = 0; i < n * n; i++)
            by[i] = -4.7750 * z[i] + 2.0315 * by[i];
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t k = 0; k < m; k++) {
                double sum = 3.4445 * x[i * m + k];
                for (uint64_t j = 0; j < n; j++)
                    sum += by[i * n + j] * x[j * m + k];
                out[i * m + k] = sum;
            }
        for (uint64_t i = 0; i < n * m; i++)
            x[i] = out[i];
    }
}

/* Of the matrix whose rows begin at `first`. */
static void muon_matrix_step(matrix_run_t *run, uint32_t step, uint64_t first)
{
    const uint64_t rows = run->rows / run->matrices, columns = run->columns;
    const bool tall = rows > columns;
    double x[MOST], *m1 = run->m1 + first * columns, *expected = run->expected + first * columns;
    for (uint64_t i = 0; i < rows * columns; i++) {
        const double g = scale * (double)(float)number(first * columns + i, step);
        m1[i] = 0.95 * m1[i] + 0.05 * g;
        const uint64_t turned = i % columns * rows + i / columns;
        x[tall ? turned : i] = 0.05 * g + 0.95 * m1[i];
    }
    orthogonalise(x, tall ? columns : rows, tall ? rows : columns);
    const double ratio = sqrt(fmax(1, (double)rows / (double)columns));
    for (uint64_t i = 0; i < rows * columns; i++) {
        const uint64_t turned = i % columns * rows + i / columns;
        expected[i] = expected[i] * (1 - rate * decay) - rate * ratio * x[tall ? turned : i];
    }
}

static void muon_step(matrix_run_t *run, uint32_t step)
{
    for (uint64_t i = 0; i < run->matrices; i++)
        muon_matrix_step(run, step, i * (run->rows / run->matrices));
}

static double root_mean_square(const double *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

static void adafactor_step(matrix_run_t *run, uint32_t step)
{
    const uint64_t rows = run->rows, columns = run->columns, n = rows * columns;
    const double mix = pow(step, -0.8);
    double g[MOST], u[MOST], mean = 0;
    for (uint64_t i = 0; i < n; i++)
        g[i] = scale * (double)(float)number(i, step);
    for (uint64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (uint64_t k = 0; k < columns; k++)
            sum += g[r * columns + k] * g[r * columns + k];
        run->row[r] += mix * (sum / (double)columns - run->row[r]);
        mean += run->row[r] / (double)rows;
    }
    for (uint64_t k = 0; k < columns; k++) {
        double sum = 0;
        for (uint64_t r = 0; r < rows; r++)
            sum += g[r * columns + k] * g[r * columns + k];
        run->column[k] += mix * (sum / (double)rows - run->column[k]);
    }
    for (uint64_t i = 0; i < n; i++) {
        const double column = run->column[i % columns];
        u[i] = g[i] / sqrt(rows == 1 ? column : run->row[i / columns] * column / mean);
    }
    const double pace = fmax(1e-3, root_mean_square(run->expected, n)) * fmin(rate, 1 / sqrt(step));
    const double length = fmax(1, root_mean_square(u, n));
    for (uint64_t i = 0; i < n; i++)
        run->expected[i] = run->expected[i] * (1 - rate * decay) - pace / length * u[i];
}

static const uint64_t shapes[][2] = {{1, 12}, {5, 12}, {12, 5}, {9, 9}, {12, 1}};

static void agrees(const char *rule, const uint64_t *shape, uint64_t matrices,
                   void (*by_formula)(matrix_run_t *run, uint32_t step))
{
    matrix_run_t run;
    start(&run, rule, shape[0], shape[1], matrices);
    const float *master = interpreter_at(run.it, run.master);
    const uint16_t *value = interpreter_at(run.it, run.value);
    for (uint32_t step = 1; step <= STEPS; step++) {
        give_step(&run, step, 1);
        by_formula(&run, step);
        for (uint64_t i = 0; i < shape[0] * shape[1]; i++) {
            if (!(fabs(master[i] - run.expected[i]) <= 2e-6))
                fail_msg("%s, [%d, %d], step %u, element %d: %.9g, expected %.9g", rule,
                         (int)shape[0], (int)shape[1], step, (int)i, (double)master[i],
                         run.expected[i]);
            assert_int_equal(value[i], lh_f32_to_bf16(master[i]));
        }
    }
    end(&run);
}

static void muon_is_that_of_pytorch(void **state)
{
    (void)state;
    for (size_t i = 1; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        agrees("muon", shapes[i], 1, muon_step);
}

/* As many as one concat joins, fewer, more, and many more; wide, square and tall. */
static void each_matrix_of_a_stack_is_muon_s(void **state)
{
    (void)state;
    static const uint64_t stacks[][3] = {{4, 2, 3}, {2, 2, 5}, {5, 2, 2}, {3, 4, 2}, {17, 2, 2}};
    for (size_t i = 0; i < sizeof(stacks) / sizeof(stacks[0]); i++)
        agrees("muon", (const uint64_t[]){stacks[i][0] * stacks[i][1], stacks[i][2]}, stacks[i][0],
               muon_step);
}

static void adafactor_is_that_of_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        agrees("adafactor", shapes[i], 1, adafactor_step);
}

/* Also where gradients are not numbers, which is why such a step is not applied. */
static void a_step_that_is_not_applied_changes_nothing(void **state)
{
    (void)state;
    static const char *const rules[] = {"muon", "adafactor"};
    for (size_t k = 0; k < 2; k++) {
        matrix_run_t run;
        start(&run, rules[k], 5, 12, 1);
        give_step(&run, 1, 1);
        float before[MOST], states[2][MOST];
        const float *master = interpreter_at(run.it, run.master);
        memcpy(before, master, sizeof(float) * 60);
        memcpy(states[0], interpreter_at(run.it, run.states[0]), sizeof(float) * 5);
        float *grad = interpreter_at(run.it, run.grad);
        for (uint64_t i = 0; i < 60; i++)
            grad[i] = NAN;
        float *words = interpreter_at(run.it,
                                      run.r->graph.api->input(&run.r->graph, LH_INPUT_STEP));
        words[LH_STEP_APPLY] = 0;
        assert_int_equal(interpreter_run(run.it, false), LH_OK);
        assert_memory_equal(before, master, sizeof(float) * 60);
        assert_memory_equal(states[0], interpreter_at(run.it, run.states[0]), sizeof(float) * 5);
        end(&run);
    }
}

static void muon_refuses_what_is_no_matrix(void **state)
{
    (void)state;
    static const struct {
        uint64_t rows, columns, matrices;
        const char *says;
    } cases[] = {{1, 12, 1, "found a vector of 12"}, {4, 12, 4, "found a vector of 12"}};
    for (size_t i = 0; i < 2; i++) {
        matrix_run_t run = {0};
        assert_int_equal(record(&run, "muon", cases[i].rows, cases[i].columns, cases[i].matrices),
                         LH_INVALID);
        assert_non_null(strstr(fail_reason(), cases[i].says));
        recording_free(run.r);
        op_table_free(run.ops);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(muon_is_that_of_pytorch),
        cmocka_unit_test(each_matrix_of_a_stack_is_muon_s),
        cmocka_unit_test(adafactor_is_that_of_pytorch),
        cmocka_unit_test(a_step_that_is_not_applied_changes_nothing),
        cmocka_unit_test(muon_refuses_what_is_no_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
