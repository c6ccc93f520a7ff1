/* checks_of_ops.c - ops that a plugin of any kind brings: shapes, costs, gradients, kernels, and what
 * they stand for. A device's kernels for the core's ops are run too, on inputs of shapes that are
 * guessed: an op of the core's that takes one is compared without a line that names it, and the
 * reference device's differentiated. */
#include "check.h"
#include "check_host.h"
#include "node_run.h"
#include "op_cases.h"
#include "op_ground.h"
#include "op_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/text.h>
#include <graph/gradient.h>
#include <graph/recorder.h>

static const double step_size = 1e-5, slope_tolerance = 1e-6;

static bool lists_kernel(const plugin_t *p, const op_t *op)
{
    for (uint32_t i = 0; i < p->kernel_count; i++)
        if (p->kernels[i].device == NULL && text_equal(p->kernels[i].op, op->row.name)) return true;
    return false;
}

/* ---- shapes and costs ---- */

static void shape_of_anything(const op_t *op)
{
    void *attributes = options_default(op->row.attributes, op->row.attribute_count,
                                       op->row.attributes_bytes);
    memcpy(attributes, &op->row.attributes_bytes, sizeof(uint32_t));
    for (uint32_t rank = 0; rank <= LH_MAX_RANK; rank++) {
        lh_arg_t args[OP_SLOTS] = {0};
        for (uint32_t i = 0; i < op->in_count; i++) {
            args[i] = (lh_arg_t){.dtype = LH_DTYPE_F32, .rank = rank};
            for (uint32_t k = 0; k < rank; k++)
                args[i].shape[k] = 3 + k;
        }
        check_host_faults(NULL);
        const lh_status_t status = op->row.shape(check_host(), attributes, args,
                                                 op->in_count + op->out_count);
        if (status != LH_OK && check_host_reason()[0] == '\0')
            check_fault("op '%s' refuses inputs of rank %u without saying why", op->row.name, rank);
    }
    mem_free(attributes);
}

static void ops_have_shapes_and_costs(subject_t *s)
{
    op_ground_t g;
    if (s->plugin->op_count == 0) check_skip("it brings no ops");
    op_ground_open(s, &g);
    for (uint32_t i = 0; i < s->plugin->op_count; i++) {
        const op_t *op = op_ground_op(&g, i);
        lh_cost_t cost = {.struct_size = sizeof(cost)};
        lh_arg_t args[OP_SLOTS] = {0};
        shape_of_anything(op);
        if (op->row.cost == NULL) check_fault("op '%s' has no cost()", op->row.name);
        recording_t *r = op_ground_record(&g, op, LH_DTYPE_F32);
        if (r == NULL) check_warn("op '%s' takes none of the shapes that were tried", op->row.name);
        const graph_node_t *node = &r->nodes[r->node_count - 1];
        for (uint32_t k = 0; k < node_slots(node); k++)
            if (node->slots[k] != 0) args[k] = r->values[node->slots[k]].arg;
        op->row.cost(node->attributes, args, node_slots(node), &cost);
        if (!(cost.flops >= 0 && cost.bytes > 0 && isfinite(cost.flops) && isfinite(cost.bytes)))
            check_fault("op '%s' costs %g flops and %g bytes", op->row.name, cost.flops,
                        cost.bytes);
        recording_free(r);
    }
    op_ground_close(&g);
}

/* ---- gradients ---- */

static bool want_all(void *context, const char *name)
{
    (void)context, (void)name;
    return true;
}

static double minimised(node_run_t *n, const recording_t *r, lh_value_t seed, double *y, double *w)
{
    double sum = 0;
    check_ok(node_run_go(n, true), "forward");
    node_run_get(n, r->output, y);
    node_run_get(n, seed, w);
    for (uint64_t i = 0; i < node_run_elements(n, r->output); i++)
        sum += y[i] * w[i];
    return sum;
}

static void probe_param(node_run_t *n, const op_t *op, const recording_t *r, lh_value_t seed,
                        lh_value_t x, lh_value_t gradient)
{
    const uint64_t count = node_run_elements(n, x), outs = node_run_elements(n, r->output);
    double *at = check_memory(count, sizeof(*at)), *found = check_memory(count, sizeof(*found));
    double *y = check_memory(outs, sizeof(*y)), *w = check_memory(outs, sizeof(*w));
    check_ok(node_run_go(n, false), "backward");
    node_run_get(n, x, at);
    node_run_get(n, gradient, found);
    for (uint64_t i = 0; i < count; i++) {
        const double was = at[i];
        double slope = 0;
        for (int side = -1; side <= 1; side += 2) {
            at[i] = was + side * step_size;
            node_run_set(n, x, at);
            slope += side * minimised(n, r, seed, y, w) / (2 * step_size);
        }
        at[i] = was;
        node_run_set(n, x, at);
        if (!(fabs(found[i] - slope) <= slope_tolerance * (1 + fabs(slope))))
            check_fault("op '%s': the gradient of '%s', element %llu, is %.9g, the slope is %.9g",
                        op->row.name, r->values[x].name, (unsigned long long)i, found[i], slope);
    }
    mem_free(at);
    mem_free(found);
    mem_free(y);
    mem_free(w);
}

static lh_value_t gradient_of(const recording_t *r, const char *name)
{
    lh_value_t last = 0;
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_GRADIENT && strcmp(r->values[v].name, name) == 0) last = v;
    return last;
}

static bool are_numbers(node_run_t *n, lh_value_t v)
{
    const uint64_t count = node_run_elements(n, v);
    double *numbers = check_memory(count, sizeof(*numbers));
    bool finite = true;
    node_run_get(n, v, numbers);
    for (uint64_t i = 0; i < count; i++)
        finite = finite && isfinite(numbers[i]);
    mem_free(numbers);
    return finite;
}

/* Of numbers above 0, which every op takes, and of either sign where it takes those (no root of
 * them). False: the reference device has no kernels for it in double. */
static bool probe_op(op_ground_t *g, const op_t *op, recording_t *r)
{
    static const uint32_t signs[] = {OP_CASE_POSITIVE, 0};
    const lh_arg_t y = r->values[r->output].arg;
    lh_value_t none;
    node_run_t *n;
    const lh_value_t seed = recording_argument(r, y.dtype, y.rank, y.shape);
    if (gradient_append(r, seed, 0, want_all, NULL, &none) != LH_OK)
        check_fault("op '%s' can't be differentiated: %s", op->row.name, fail_reason());
    const node_run_how_t how = {
        .on = &g->truth, .others = g->plugins, .other_count = g->plugin_count};
    const lh_status_t status = node_run_new(&how, r, &n);
    if (status == LH_UNSUPPORTED) return false;
    check_ok(status, op->row.name);
    for (size_t k = 0; k < sizeof(signs) / sizeof(signs[0]); k++) {
        op_case_fill(r, signs[k], g->s->seed, &n, 1);
        check_ok(node_run_go(n, true), "forward");
        if (signs[k] != OP_CASE_POSITIVE && !are_numbers(n, r->output)) continue;
        for (lh_value_t v = 1; v < r->value_count; v++) {
            if (r->values[v].kind != VALUE_PARAM) continue;
            const lh_value_t gradient = gradient_of(r, r->values[v].name);
            if (gradient != 0) probe_param(n, op, r, seed, v, gradient);
        }
    }
    node_run_free(n);
    return true;
}

static void gradients_are_slopes(subject_t *s)
{
    op_ground_t g;
    uint32_t probed = 0;
    op_ground_open(s, &g);
    for (uint32_t i = 0; i < op_table_count(g.ops); i++) {
        const op_t *op = op_table_at(g.ops, i);
        const bool of_truth = op->plugin == NULL && g.is_truth && lists_kernel(s->plugin, op);
        if (op->row.gradient == NULL || (op->plugin == NULL && !of_truth)) continue;
        for (uint32_t turn = 0; turn < op_ground_turns(op); turn++) {
            recording_t *r = op_ground_turn(&g, op, LH_DTYPE_F64, turn);
            if (r != NULL) probed += probe_op(&g, op, r);
            if (r != NULL) recording_free(r);
        }
    }
    if (probed == 0)
        check_skip("no op of its own has a gradient and kernels in double for the "
                   "reference device");
    op_ground_close(&g);
}

/* ---- its kernels on other devices ---- */

static void compare_turn(op_ground_t *g, opened_t *other, const op_t *op, uint32_t turn,
                         uint32_t signs)
{
    recording_t *r = op_ground_turn(g, op, LH_DTYPE_F32, turn);
    recording_t *exact = op_ground_turn(g, op, LH_DTYPE_F64, turn);
    const node_run_how_t here = {.on = other, .others = g->plugins, .other_count = g->plugin_count};
    node_run_how_t there = here;
    node_run_t *runs[2] = {NULL, NULL};
    there.on = &g->truth;
    if (r == NULL || node_run_new(&here, r, &runs[0]) != LH_OK) return;
    if (exact == NULL || node_run_new(&there, exact, &runs[1]) != LH_OK) { /* not in double */
        if (node_run_new(&there, r, &runs[1]) != LH_OK) return;
    }
    op_case_fill(r, signs, g->s->seed, runs, 2);
    check_ok(node_run_go(runs[0], false), op->row.name);
    check_ok(node_run_go(runs[1], false), op->row.name);
    for (lh_value_t v = 1; v < r->value_count; v++) {
        if (r->values[v].kind != VALUE_RESULT || !node_run_has(runs[0], v)) continue;
        const uint64_t n = node_run_elements(runs[0], v);
        double *got = check_memory(n, sizeof(*got)), *want = check_memory(n, sizeof(*want));
        node_run_get(runs[0], v, got);
        node_run_get(runs[1], v, want);
        for (uint64_t i = 0; i < n; i++)
            if (!op_ground_near(got[i], want[i], signs))
                check_fault("op '%s' on device %s gives %.9g in element %llu, on the reference "
                            "device %.9g",
                            op->row.name, other->plugin->name, got[i], (unsigned long long)i,
                            want[i]);
        mem_free(got);
        mem_free(want);
    }
    node_run_free(runs[0]);
    node_run_free(runs[1]);
    recording_free(r);
    recording_free(exact);
}

/* Numbers of either sign come to a plugin's own ops: where the truth of them is none, neither is the
 * kernel's. */
static void compare_on(op_ground_t *g, opened_t *other, const op_t *op)
{
    for (uint32_t turn = 0; turn < op_ground_turns(op); turn++) {
        compare_turn(g, other, op, turn, OP_CASE_POSITIVE);
        if (op->plugin != NULL) compare_turn(g, other, op, turn, 0);
    }
}

/* A device's kernels for the core's ops. 1: it could be opened. */
static uint32_t core_kernels_agree(op_ground_t *g)
{
    opened_t own;
    void *config = subject_config(g->s, g->s->plugin);
    const bool opened = opened_open(g->s->plugin, check_host(), config, &own) == LH_OK;
    for (uint32_t i = 0; opened && i < op_table_count(g->ops); i++) {
        const op_t *op = op_table_at(g->ops, i);
        if (op->plugin == NULL && lists_kernel(g->s->plugin, op)) compare_on(g, &own, op);
    }
    if (opened) opened_close(&own);
    mem_free(config);
    return opened;
}

static void kernels_agree(subject_t *s)
{
    op_ground_t g;
    op_ground_open(s, &g);
    uint32_t devices = op_ground_devices(&g, false, compare_on);
    if (op_ground_is_device(s) && !g.is_truth) devices += core_kernels_agree(&g);
    if (devices == 0) check_skip("it has kernels for no other device that is here");
    op_ground_close(&g);
}

/* ---- devices that have kernels for its own ops ---- */

/* The op alone, forward, in a dtype that the device has a kernel for; false: it has none. */
static bool run_alone(op_ground_t *g, opened_t *on, const op_t *op, uint64_t pad, recording_t **r,
                      node_run_t **n)
{
    static const lh_dtype_t dtypes[] = {LH_DTYPE_F64, LH_DTYPE_F32, LH_DTYPE_BF16};
    const node_run_how_t how = {
        .on = on, .others = g->plugins, .other_count = g->plugin_count, .pad = pad};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        *r = op_ground_record(g, op, dtypes[i]);
        if (*r == NULL) continue;
        if (node_run_new(&how, *r, n) == LH_OK) {
            op_case_fill(*r, OP_CASE_POSITIVE, g->s->seed, n, 1);
            check_ok(node_run_go(*n, true), op->row.name);
            return true;
        }
        recording_free(*r);
    }
    return false;
}

/* ---- rows further apart than they are wide ---- */

/* Of an op of the core's, a library may take another algorithm for other rows. */
static bool is_same(const op_t *op, double got, double want)
{
    if (op->plugin == NULL && op_ground_near(got, want, OP_CASE_POSITIVE)) return true;
    return memcmp(&got, &want, sizeof(got)) == 0;
}

static void rows_may_lie_apart(op_ground_t *g, opened_t *on, const op_t *op)
{
    enum { PAD = 5 };
    recording_t *dense, *padded;
    node_run_t *runs[2];
    if (!run_alone(g, on, op, 0, &dense, &runs[0])) return;
    if (!run_alone(g, on, op, PAD, &padded, &runs[1])) return; /* fits() says that it can't */
    for (lh_value_t v = 1; v < dense->value_count; v++) {
        if (dense->values[v].kind != VALUE_RESULT || !node_run_has(runs[0], v)) continue;
        const uint64_t n = node_run_elements(runs[0], v);
        double *want = check_memory(n, sizeof(*want)), *got = check_memory(n, sizeof(*got));
        node_run_get(runs[0], v, want);
        node_run_get(runs[1], v, got);
        for (uint64_t i = 0; i < n; i++)
            if (!is_same(op, got[i], want[i]))
                check_fault(
                    "op '%s' on device %s gives %.9g in element %llu where rows lie further "
                    "apart than they are wide, else %.9g",
                    op->row.name, on->plugin->name, got[i], (unsigned long long)i, want[i]);
        mem_free(want);
        mem_free(got);
    }
    if (!node_run_kept_between(runs[1]))
        check_fault("op '%s' on device %s writes between rows that lie apart", op->row.name,
                    on->plugin->name);
    node_run_free(runs[0]);
    node_run_free(runs[1]);
    recording_free(dense);
    recording_free(padded);
}

/* A device's kernels for the core's ops: a model's views come to them so. 1: it could be opened. */
static uint32_t core_rows_may_lie_apart(op_ground_t *g)
{
    opened_t own;
    void *config = subject_config(g->s, g->s->plugin);
    const bool opened = opened_open(g->s->plugin, check_host(), config, &own) == LH_OK;
    for (uint32_t i = 0; opened && i < op_table_count(g->ops); i++) {
        const op_t *op = op_table_at(g->ops, i);
        if (op->plugin == NULL && lists_kernel(g->s->plugin, op)) rows_may_lie_apart(g, &own, op);
    }
    if (opened) opened_close(&own);
    mem_free(config);
    return opened;
}

static void check_pitch(subject_t *s)
{
    op_ground_t g;
    uint32_t devices = 0;
    if (s->plugin->op_count == 0 && !op_ground_is_device(s)) check_skip("it brings no ops");
    op_ground_open(s, &g);
    if (s->plugin->op_count > 0) devices += op_ground_devices(&g, true, rows_may_lie_apart);
    if (op_ground_is_device(s)) devices += core_rows_may_lie_apart(&g);
    if (devices == 0) check_skip("it has kernels for no device that is here");
    op_ground_close(&g);
}

/* ---- what claims rows or columns does not mix them ---- */

/* Which elements of a value belong to the i-th row, or column; what has none belongs to all. */
typedef struct line {
    bool columns;
    uint64_t count, at; /* of the op's first input */
} line_t;

static bool has_lines(const lh_arg_t *arg, const line_t *l)
{
    return arg->rank > 0 && arg->shape[l->columns ? arg->rank - 1 : 0] == l->count &&
           (l->columns || arg->rank > 1 || l->count > 1);
}

static bool is_in_line(const lh_arg_t *arg, uint64_t elements, const line_t *l, uint64_t i)
{
    if (l->columns) return i % arg->shape[arg->rank - 1] == l->at;
    return i / (elements / arg->shape[0]) == l->at;
}

/* Changes the line in every input that has such lines, runs, and looks at the others' outputs. */
static void move_line(op_ground_t *g, opened_t *on, const op_t *op, const recording_t *r,
                      node_run_t *n, double *const *before, const line_t *l)
{
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const lh_arg_t *arg = &r->values[v].arg;
        if (r->values[v].kind != VALUE_PARAM) continue;
        const uint64_t count = node_run_elements(n, v);
        double *numbers = check_memory(count, sizeof(*numbers));
        memcpy(numbers, before[v], count * sizeof(*numbers));
        for (uint64_t i = 0; i < count && has_lines(arg, l); i++)
            if (is_in_line(arg, count, l, i)) numbers[i] = 0.5 + numbers[i] / 2;
        node_run_set(n, v, numbers);
        mem_free(numbers);
    }
    check_ok(node_run_go(n, true), op->row.name);
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const lh_arg_t *arg = &r->values[v].arg;
        if (r->values[v].kind != VALUE_RESULT || !node_run_has(n, v) || !has_lines(arg, l))
            continue;
        const uint64_t count = node_run_elements(n, v);
        double *numbers = check_memory(count, sizeof(*numbers));
        node_run_get(n, v, numbers);
        for (uint64_t i = 0; i < count; i++)
            if (!is_in_line(arg, count, l, i) &&
                memcmp(&numbers[i], &before[v][i], sizeof(*numbers)) != 0)
                check_fault("op '%s' on device %s claims %s, and what stands in %s %llu of its "
                            "inputs changes element %llu of '%s'",
                            op->row.name, on->plugin->name,
                            l->columns ? "LH_OP_COLUMNS" : "LH_OP_ROWS",
                            l->columns ? "column" : "row", (unsigned long long)l->at,
                            (unsigned long long)i, op->slot_name[r->values[v].slot]);
        mem_free(numbers);
    }
    (void)g;
}

static void lines_stay_apart(op_ground_t *g, opened_t *on, const op_t *op)
{
    recording_t *r;
    node_run_t *n;
    if ((op->row.flags & (LH_OP_ROWS | LH_OP_COLUMNS)) == 0) return;
    if (!run_alone(g, on, op, 0, &r, &n)) return;
    double **before = check_memory(r->value_count, sizeof(*before));
    lh_value_t first = 0;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        before[v] = NULL;
        if (!node_run_has(n, v)) continue;
        before[v] = check_memory(node_run_elements(n, v) + 1, sizeof(**before));
        node_run_get(n, v, before[v]);
        if (first == 0 && r->values[v].kind == VALUE_PARAM && r->values[v].arg.rank == 2) first = v;
    }
    for (uint32_t columns = 0; columns < 2 && first != 0; columns++) {
        const lh_arg_t *x = &r->values[first].arg;
        line_t l = {.columns = columns != 0, .count = x->shape[columns]};
        if ((op->row.flags & (columns != 0 ? LH_OP_COLUMNS : LH_OP_ROWS)) == 0) continue;
        for (l.at = 0; l.at < l.count; l.at++)
            move_line(g, on, op, r, n, before, &l);
    }
    for (lh_value_t v = 1; v < r->value_count; v++)
        mem_free(before[v]);
    mem_free(before);
    node_run_free(n);
    recording_free(r);
}

static void check_rows(subject_t *s)
{
    op_ground_t g;
    if (s->plugin->op_count == 0) check_skip("it brings no ops");
    op_ground_open(s, &g);
    if (op_ground_devices(&g, true, lines_stay_apart) == 0)
        check_skip("it has kernels for no device that is here");
    op_ground_close(&g);
}

const check_t checks_of_ops[] = {
    {"ops.shapes", "its ops say why they refuse a shape, and what they cost", CHECK_EVERY_PLUGIN,
     false, 30, ops_have_shapes_and_costs, NULL},
    {"ops.gradients", "gradients of its ops are the slopes of their outputs, in double",
     CHECK_EVERY_PLUGIN, false, 60, gradients_are_slopes, NULL},
    {"ops.kernels", "its ops compute the same on every device that it has kernels for",
     CHECK_EVERY_PLUGIN, false, 60, kernels_agree, NULL},
    {"ops.pitch",
     "rows of its ops' and its kernels' arguments may lie further apart than they are wide",
     CHECK_EVERY_PLUGIN, false, 60, check_pitch, NULL},
    {"ops.rows", "what claims LH_OP_ROWS or LH_OP_COLUMNS mixes none of them", CHECK_EVERY_PLUGIN,
     false, 60, check_rows, NULL},
    {"ops.parts", "expand, fuses and product say of its ops what their kernels compute",
     CHECK_EVERY_PLUGIN, false, 60, op_parts_check, NULL},
    {0},
};
