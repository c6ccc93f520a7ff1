/* differences.c - fills a recording with numbers, runs it both ways and compares. */
#include "differences.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <base/philox.h>
#include <base/status.h>
#include <graph/gradient.h>
#include <graph/recorder.h>

#include <cmocka.h> /* last: it has a fail() of its own */

static const double h = 1e-4, tolerance = 1e-7, lay_there = 1.5;

const int32_t test_tokens[TEST_TOKENS] = {3, 0, 3, 1, 4, 3, 0};
static const int32_t starts[TEST_DOCUMENTS + 1] = {0, 3, TEST_TOKENS, TEST_TOKENS};
static const int32_t positions[TEST_TOKENS] = {0, 1, 2, 0, 1, 2, 3};

op_table_t *test_ops(void)
{
    const lh_plugin_t *acme = test_plugin("parts", "acme_ops");
    op_table_t *ops;
    assert_int_equal(op_table_new(&ops), LH_OK);
    assert_int_equal(op_table_add(ops, acme->ops, acme->op_size, acme->op_count, acme->name),
                     LH_OK);
    return ops;
}

recording_t *test_recording(const op_table_t *ops,
                            lh_status_t (*param)(void *context, const char *name, uint64_t *shape,
                                                 uint32_t *rank),
                            void *context)
{
    const recording_how_t how = {.ops = ops,
                                 .host = test_host(),
                                 .tokens = TEST_TOKENS,
                                 .sequences = 1,
                                 .max_documents = TEST_DOCUMENTS,
                                 .compute = LH_DTYPE_F64,
                                 .accumulate = LH_DTYPE_F64,
                                 .param = param,
                                 .context = context};
    recording_t *r;
    assert_int_equal(recorder_new(&how, &r), LH_OK);
    return r;
}

static bool want_all(void *context, const char *name)
{
    (void)context, (void)name;
    return true;
}

void differentiate(differentiated_t *d)
{
    if (recording_status(d->r) != LH_OK) fail_msg("%s", fail_reason());
    const lh_arg_t y = d->r->values[d->r->output].arg;
    d->seed = recording_argument(d->r, LH_DTYPE_F64, y.rank, y.shape);
    if (gradient_append(d->r, d->seed, d->input, want_all, NULL, &d->input_gradient) != LH_OK)
        fail_msg("%s", fail_reason());
}

uint64_t test_elements(const recording_t *r, lh_value_t v)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < r->values[v].arg.rank; i++)
        n *= r->values[v].arg.shape[i];
    return n;
}

void test_fill(interpreter_t *it, const recording_t *r)
{
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const graph_value_t *value = &r->values[v];
        double *at = interpreter_at(it, v);
        const bool numbers = value->kind == VALUE_PARAM || value->kind == VALUE_ARGUMENT;
        for (uint64_t i = 0; numbers && i < test_elements(r, v); i++)
            at[i] = philox_normal(20, v, i);
        if (value->kind != VALUE_INPUT) continue;
        const int32_t *from = value->which == LH_INPUT_STARTS      ? starts
                              : value->which == LH_INPUT_POSITIONS ? positions
                                                                   : test_tokens;
        memcpy(at, from, test_elements(r, v) * sizeof(int32_t));
    }
}

static double minimised(interpreter_t *it, const recording_t *r, lh_value_t seed)
{
    assert_int_equal(interpreter_run(it, true), LH_OK);
    const double *y = interpreter_at(it, r->output), *weight = interpreter_at(it, seed);
    double sum = 0;
    for (uint64_t i = 0; i < test_elements(r, r->output); i++)
        sum += y[i] * weight[i];
    for (uint32_t i = 0; i < r->loss_count; i++)
        sum += *(const double *)interpreter_at(it, r->losses[i].value);
    return sum;
}

double central_difference(interpreter_t *it, const recording_t *r, lh_value_t seed, double *x)
{
    static const struct {
        double steps, weight;
    } points[] = {{1, 8}, {-1, -8}, {2, -1}, {-2, 1}};
    const double was = *x;
    double sum = 0;
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        *x = was + points[i].steps * h;
        sum += points[i].weight * minimised(it, r, seed);
    }
    *x = was;
    return sum / (12 * h);
}

/* The last of a parameter's gradients: they share memory. */
static lh_value_t gradient_of(const recording_t *r, const char *name)
{
    lh_value_t last = 0;
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_GRADIENT && strcmp(r->values[v].name, name) == 0) last = v;
    return last;
}

/* Every element of x; g is its gradient, onto `before`. */
static void check_value(interpreter_t *it, const differentiated_t *d, lh_value_t x, lh_value_t g,
                        double before)
{
    const char *name = d->r->values[x].name == NULL ? "the input" : d->r->values[x].name;
    if (g == 0) fail_msg("%s, %s: no gradient for %s", d->op, d->what, name);
    const uint64_t n = test_elements(d->r, x);
    double *found = malloc(n * sizeof(double)), *at = interpreter_at(it, x);
    memcpy(found, interpreter_at(it, g), n * sizeof(double));
    for (uint64_t i = 0; i < n; i++) {
        const double expected = before + central_difference(it, d->r, d->seed, &at[i]);
        if (!(fabs(found[i] - expected) <= tolerance * (1 + fabs(expected))))
            fail_msg("%s, %s: gradient of %s[%llu] is %.12g, differences say %.12g", d->op, d->what,
                     name, (unsigned long long)i, found[i], expected);
    }
    free(found);
}

void check_differences(const differentiated_t *d, bool add)
{
    const lh_plugin_t *acme = test_plugin("parts", "acme_ops");
    const interpreter_how_t how = {.host = test_host(),
                                   .device = test_plugin("devices", "reference"),
                                   .plugins = &acme,
                                   .plugin_count = 1,
                                   .add = add};
    const recording_t *r = d->r;
    interpreter_t *it;
    if (interpreter_new(&how, r, &it) != LH_OK) fail_msg("%s: %s", d->op, fail_reason());
    test_fill(it, r);
    for (lh_value_t v = 1; v < r->value_count; v++)
        for (uint64_t i = 0; r->values[v].kind == VALUE_GRADIENT && i < test_elements(r, v); i++)
            ((double *)interpreter_at(it, v))[i] = lay_there;

    assert_int_equal(interpreter_run(it, false), LH_OK);
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_PARAM)
            check_value(it, d, v, gradient_of(r, r->values[v].name), add ? lay_there : 0);
    if (d->input != 0) check_value(it, d, d->input, d->input_gradient, 0);
    interpreter_free(it);
}
