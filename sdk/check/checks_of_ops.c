/* checks_of_ops.c - ops that a plugin of any kind brings: shapes, costs, gradients, kernels, and what
 * they stand for. A device's kernels for the core's ops are run too, on inputs of shapes that are
 * guessed: an op of the core's that takes one is compared without a line that names it, and the
 * reference device's differentiated. */
#include "check.h"
#include "check_host.h"
#include "node_run.h"
#include "op_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/text.h>
#include <graph/fusion.h>
#include <graph/gradient.h>
#include <graph/recorder.h>

static const double step_size = 1e-5, slope_tolerance = 1e-6, kernel_tolerance = 2e-5;

typedef struct ground { /* the reference device and all ops */
    subject_t *s;
    op_table_t *ops;
    opened_t truth;
    void *config;
    bool is_truth;                  /* the plugin is the reference device itself */
    const plugin_t *const *plugins; /* it and those that it needs */
    uint32_t plugin_count;
} ground_t;

static bool is_device(const subject_t *s)
{
    return s->plugin->kind == LH_KIND_DEVICE;
}

static bool lists_kernel(const plugin_t *p, const op_t *op)
{
    for (uint32_t i = 0; i < p->kernel_count; i++)
        if (p->kernels[i].device == NULL && text_equal(p->kernels[i].op, op->row.name)) return true;
    return false;
}

static void ground_open(subject_t *s, ground_t *g)
{
    *g = (ground_t){.s = s};
    if (s->plugin->op_count == 0 && !is_device(s)) check_skip("it brings no ops");
    const plugin_t *reference = subject_reference(s);
    if (reference == NULL) check_skip("no reference device: %s", fail_reason());
    g->config = subject_config(s, reference);
    g->ops = subject_ops(s);
    g->plugins = subject_plugins(s, &g->plugin_count);
    check_ok(opened_open(reference, check_host(), g->config, &g->truth), "reference device");
    g->is_truth = text_equal(reference->name, s->plugin->name);
}

static void ground_close(ground_t *g)
{
    opened_close(&g->truth);
    op_table_free(g->ops);
    mem_free(g->config);
}

/* ---- a recording of one op, with inputs of shapes that it takes ---- */

/* The last is a cache of one sequence. */
static const uint64_t guesses[][3] = {{7, 8, 0}, {8, 0, 0}, {7, 1, 0},
                                      {1, 0, 0}, {8, 8, 0}, {1, 7, 8}};
enum { GUESSES = 6, MOST_GUESSED = 4 };

static bool has_source(const char *slot)
{
    static const char *const sources[] = {"tokens",  "positions", "starts", "labels",
                                          "weights", "step",      "lengths"};
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (strcmp(slot, sources[i]) == 0) return true;
    return false;
}

static bool want_all(void *context, const char *name)
{
    (void)context, (void)name;
    return true;
}

/* Another value than the default for one attribute, within its range; false: none was found. */
static bool attribute_turn(const lh_option_t *a, void *attributes)
{
    static const char *const numbers[] = {"3", "2", "0.5", "1", "0.25"};
    char word[64];
    if (a->type == LH_OPT_CHOICE) {
        uint32_t is = 0;
        memcpy(&is, (const char *)attributes + a->offset, sizeof(is));
        const char *at = a->range;
        for (uint32_t i = 0; i <= is && at != NULL; i++)
            at = (at = strchr(at, '|')) == NULL ? NULL : at + 1;
        if (at == NULL) at = a->range;
        (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, "|"), at);
        return option_set(a, word, a->key, "/", attributes) == LH_OK;
    }
    if (a->type == LH_OPT_BOOL) {
        const bool is = *((const bool *)attributes + a->offset);
        return option_set(a, is ? "no" : "yes", a->key, "/", attributes) == LH_OK;
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!text_equal(a->fallback, numbers[i]) &&
            option_set(a, numbers[i], a->key, "/", attributes) == LH_OK)
            return true;
    return false;
}

/* What the defaults leave open: the least number of its range. In the turn-th turn, from 1 on, the
 * attribute of that number is another one; NULL: it has no other. */
static void *attributes_guess(const op_t *op, uint32_t turn)
{
    const lh_op_t *row = &op->row;
    unsigned char *out = options_default(row->attributes, row->attribute_count,
                                         row->attributes_bytes);
    for (uint32_t i = 0; i < row->attribute_count; i++) {
        const lh_option_t *a = &row->attributes[i];
        if (a->fallback != NULL || a->range == NULL) continue;
        const uint64_t least = strtoull(a->range, NULL, 10);
        const uint32_t narrow = (uint32_t)least;
        if (a->type == LH_OPT_U32) memcpy(out + a->offset, &narrow, sizeof(narrow));
        if (a->type == LH_OPT_U64) memcpy(out + a->offset, &least, sizeof(least));
    }
    if (turn > 0 && !attribute_turn(&row->attributes[turn - 1], out)) {
        mem_free(out);
        return NULL;
    }
    const uint32_t size = row->attributes_bytes;
    if (size > 0) memcpy(out, &size, sizeof(size));
    return out;
}

/* A recording of the inputs that the n-th combination of guesses has for an op; those with a source
 * of their own are left out. */
static recording_t *record_inputs(const ground_t *g, const op_t *op, uint32_t n, lh_dtype_t compute,
                                  bool (*offers)(void *, const op_t *, const void *,
                                                 const lh_arg_t *),
                                  lh_value_t in[OP_SLOTS])
{
    const recording_how_t how = {.ops = g->ops,
                                 .host = check_host(),
                                 .tokens = guesses[0][0],
                                 .sequences = 1,
                                 .max_documents = 2,
                                 .compute = compute,
                                 .accumulate = compute,
                                 .param = op_case_shape,
                                 .offers = offers,
                                 .device = (void *)(uintptr_t)g->s->plugin};
    recording_t *r;
    check_ok(recorder_new(&how, &r), "recording");
    for (uint32_t i = 0; i < op->in_count; i++) {
        const uint64_t *shape = guesses[i < MOST_GUESSED ? n % GUESSES : 0];
        if (i < MOST_GUESSED) n /= GUESSES;
        if (!has_source(op->slot_name[i]))
            in[i] = op_case_param(&r->graph, op->slot_name[i], shape[0], shape[1], shape[2]);
    }
    return r;
}

/* The n-th combination of guesses; NULL: the op does not take it. */
static recording_t *record_guess(const ground_t *g, const op_t *op, uint32_t n, lh_dtype_t compute,
                                 uint32_t turn)
{
    lh_value_t in[OP_SLOTS] = {0};
    void *attributes = attributes_guess(op, turn);
    if (turn > 0 && attributes == NULL) return NULL;
    recording_t *r = record_inputs(g, op, n, compute, op_case_listed, in);
    r->output = r->graph.api->op(&r->graph, op->row.name,
                                 op->row.attributes_bytes > 0 ? attributes : NULL, in, op->in_count,
                                 NULL);
    mem_free(attributes);
    if (recording_status(r) == LH_OK && r->output != 0) return r;
    recording_free(r);
    return NULL;
}

static uint32_t combinations_of(const op_t *op)
{
    uint32_t combinations = 1;
    for (uint32_t i = 0; i < op->in_count && i < MOST_GUESSED; i++)
        combinations *= GUESSES;
    return combinations;
}

static recording_t *record_turn(const ground_t *g, const op_t *op, lh_dtype_t compute,
                                uint32_t turn)
{
    for (uint32_t n = 0; n < combinations_of(op); n++) {
        recording_t *r = record_guess(g, op, n, compute, turn);
        if (r != NULL) return r;
    }
    return NULL;
}

static recording_t *record_op(const ground_t *g, const op_t *op, lh_dtype_t compute)
{
    return record_turn(g, op, compute, 0);
}

/* Once with the defaults, and once for each attribute; of the core's ops, whose attributes are shapes,
 * with the defaults alone. */
static uint32_t turns_of(const op_t *op)
{
    return op->plugin == NULL ? 1 : 1 + op->row.attribute_count;
}

static const op_t *op_of(const ground_t *g, uint32_t i)
{
    return op_table_find(g->ops, g->s->plugin->ops[i].name);
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
    ground_t g;
    if (s->plugin->op_count == 0) check_skip("it brings no ops");
    ground_open(s, &g);
    for (uint32_t i = 0; i < s->plugin->op_count; i++) {
        const op_t *op = op_of(&g, i);
        lh_cost_t cost = {.struct_size = sizeof(cost)};
        lh_arg_t args[OP_SLOTS] = {0};
        shape_of_anything(op);
        if (op->row.cost == NULL) check_fault("op '%s' has no cost()", op->row.name);
        recording_t *r = record_op(&g, op, LH_DTYPE_F32);
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
    ground_close(&g);
}

/* ---- gradients ---- */

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
static bool probe_op(ground_t *g, const op_t *op, recording_t *r)
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
    ground_t g;
    uint32_t probed = 0;
    ground_open(s, &g);
    for (uint32_t i = 0; i < op_table_count(g.ops); i++) {
        const op_t *op = op_table_at(g.ops, i);
        const bool of_truth = op->plugin == NULL && g.is_truth && lists_kernel(s->plugin, op);
        if (op->row.gradient == NULL || (op->plugin == NULL && !of_truth)) continue;
        for (uint32_t turn = 0; turn < turns_of(op); turn++) {
            recording_t *r = record_turn(&g, op, LH_DTYPE_F64, turn);
            if (r != NULL) probed += probe_op(&g, op, r);
            if (r != NULL) recording_free(r);
        }
    }
    if (probed == 0)
        check_skip("no op of its own has a gradient and kernels in double for the "
                   "reference device");
    ground_close(&g);
}

/* ---- its kernels on other devices ---- */

/* Of numbers of either sign the truth may be none. */
static bool is_near_enough(double got, double want, uint32_t signs)
{
    if (!isfinite(want) && signs != OP_CASE_POSITIVE) return true;
    return fabs(got - want) <= kernel_tolerance * (1 + fabs(want));
}

static void compare_turn(ground_t *g, opened_t *other, const op_t *op, uint32_t turn,
                         uint32_t signs)
{
    recording_t *r = record_turn(g, op, LH_DTYPE_F32, turn);
    recording_t *exact = record_turn(g, op, LH_DTYPE_F64, turn);
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
            if (!is_near_enough(got[i], want[i], signs))
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
static void compare_on(ground_t *g, opened_t *other, const op_t *op)
{
    for (uint32_t turn = 0; turn < turns_of(op); turn++) {
        compare_turn(g, other, op, turn, OP_CASE_POSITIVE);
        if (op->plugin != NULL) compare_turn(g, other, op, turn, 0);
    }
}

static bool first_for_device(const plugin_t *p, uint32_t row)
{
    const char *device = p->kernels[row].device;
    for (uint32_t i = 0; i < row; i++)
        if (p->kernels[i].device != NULL && strcmp(p->kernels[i].device, device) == 0) return false;
    return true;
}

/* A device's kernels for the core's ops. 1: it could be opened. */
static uint32_t core_kernels_agree(ground_t *g)
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
    ground_t g;
    uint32_t devices = 0;
    ground_open(s, &g);
    for (uint32_t i = 0; i < s->plugin->kernel_count; i++) {
        const char *name = s->plugin->kernels[i].device;
        const plugin_t *device;
        opened_t other;
        if (name == NULL || strcmp(name, g.truth.plugin->name) == 0 ||
            !first_for_device(s->plugin, i) ||
            registry_load(s->installed, LH_KIND_DEVICE, name, &device) != LH_OK)
            continue;
        void *config = subject_config(s, device);
        if (opened_open(device, check_host(), config, &other) == LH_OK) {
            devices++;
            for (uint32_t k = 0; k < s->plugin->op_count; k++)
                compare_on(&g, &other, op_of(&g, k));
            opened_close(&other);
        }
        mem_free(config);
    }
    if (is_device(s) && !g.is_truth) devices += core_kernels_agree(&g);
    if (devices == 0) check_skip("it has kernels for no other device that is here");
    ground_close(&g);
}

/* ---- devices that have kernels for its own ops ---- */

/* Calls `run` with each device that is here and that its kernels name, the reference device last.
 * Their number. */
static uint32_t each_device(ground_t *g, void (*run)(ground_t *g, opened_t *on, const op_t *op))
{
    uint32_t devices = 0;
    for (uint32_t i = 0; i < g->s->plugin->kernel_count; i++) {
        const char *name = g->s->plugin->kernels[i].device;
        const plugin_t *device;
        opened_t other;
        if (name == NULL || !first_for_device(g->s->plugin, i)) continue;
        const bool is_truth = strcmp(name, g->truth.plugin->name) == 0;
        void *config = NULL;
        bool opened = is_truth;
        if (!is_truth && registry_load(g->s->installed, LH_KIND_DEVICE, name, &device) == LH_OK) {
            config = subject_config(g->s, device);
            opened = opened_open(device, check_host(), config, &other) == LH_OK;
        }
        for (uint32_t k = 0; opened && k < g->s->plugin->op_count; k++)
            run(g, is_truth ? &g->truth : &other, op_of(g, k));
        if (opened && !is_truth) opened_close(&other);
        mem_free(config);
        devices += opened;
    }
    return devices;
}

/* The op alone, forward, in a dtype that the device has a kernel for; false: it has none. */
static bool run_alone(ground_t *g, opened_t *on, const op_t *op, uint64_t pad, recording_t **r,
                      node_run_t **n)
{
    static const lh_dtype_t dtypes[] = {LH_DTYPE_F64, LH_DTYPE_F32, LH_DTYPE_BF16};
    const node_run_how_t how = {
        .on = on, .others = g->plugins, .other_count = g->plugin_count, .pad = pad};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        *r = record_op(g, op, dtypes[i]);
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
    if (op->plugin == NULL && fabs(got - want) <= kernel_tolerance * (1 + fabs(want))) return true;
    return memcmp(&got, &want, sizeof(got)) == 0;
}

static void rows_may_lie_apart(ground_t *g, opened_t *on, const op_t *op)
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
static uint32_t core_rows_may_lie_apart(ground_t *g)
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
    ground_t g;
    uint32_t devices = 0;
    if (s->plugin->op_count == 0 && !is_device(s)) check_skip("it brings no ops");
    ground_open(s, &g);
    if (s->plugin->op_count > 0) devices += each_device(&g, rows_may_lie_apart);
    if (is_device(s)) devices += core_rows_may_lie_apart(&g);
    if (devices == 0) check_skip("it has kernels for no device that is here");
    ground_close(&g);
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
static void move_line(ground_t *g, opened_t *on, const op_t *op, const recording_t *r,
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

static void lines_stay_apart(ground_t *g, opened_t *on, const op_t *op)
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
    ground_t g;
    if (s->plugin->op_count == 0) check_skip("it brings no ops");
    ground_open(s, &g);
    if (each_device(&g, lines_stay_apart) == 0)
        check_skip("it has kernels for no device that is here");
    ground_close(&g);
}

/* ---- what a row says that its op stands for ---- */

/* A recording, and the values in it that are an op's outputs, in slot order; 0: none is. */
typedef struct made {
    recording_t *r;
    lh_value_t out[OP_SLOTS];
} made_t;

/* False: something was refused, and the recording is gone. */
static bool made_holds(made_t *m)
{
    for (uint32_t i = OP_SLOTS; i-- > 0;)
        if (m->out[i] != 0) m->r->output = m->out[i];
    if (recording_status(m->r) == LH_OK && m->r->output != 0) return true;
    recording_free(m->r);
    return false;
}

static void compare_output(const op_t *op, const opened_t *on, const made_t made[2],
                           node_run_t *const runs[2], uint32_t slot, uint32_t signs,
                           const char *says)
{
    const lh_value_t mine = made[0].out[slot], other = made[1].out[slot];
    if (mine == 0 || other == 0 || !node_run_has(runs[0], mine) || !node_run_has(runs[1], other))
        return;
    const uint64_t n = node_run_elements(runs[0], mine);
    if (node_run_elements(runs[1], other) != n)
        check_fault("op '%s' has %llu elements of '%s', %s has %llu", op->row.name,
                    (unsigned long long)n, op->slot_name[op->in_count + slot], says,
                    (unsigned long long)node_run_elements(runs[1], other));
    double *got = check_memory(n, sizeof(*got)), *want = check_memory(n, sizeof(*want));
    node_run_get(runs[0], mine, got);
    node_run_get(runs[1], other, want);
    for (uint64_t i = 0; i < n; i++)
        if (!is_near_enough(got[i], want[i], signs))
            check_fault("op '%s' on device %s gives %.9g in element %llu of '%s', %s gives %.9g",
                        op->row.name, on->plugin->name, got[i], (unsigned long long)i,
                        op->slot_name[op->in_count + slot], says, want[i]);
    mem_free(got);
    mem_free(want);
}

/* The first by kernels of `on`, the second by those of the reference device, on the same numbers:
 * their inputs are the first values of both. */
static void compare_made(ground_t *g, opened_t *on, const op_t *op, const made_t made[2],
                         const char *says)
{
    static const uint32_t signs[] = {OP_CASE_POSITIVE, 0};
    const node_run_how_t here = {.on = on, .others = g->plugins, .other_count = g->plugin_count};
    node_run_how_t there = here;
    node_run_t *runs[2] = {NULL, NULL};
    there.on = &g->truth;
    const bool both = node_run_new(&here, made[0].r, &runs[0]) == LH_OK &&
                      node_run_new(&there, made[1].r, &runs[1]) == LH_OK;
    for (size_t k = 0; both && k < sizeof(signs) / sizeof(signs[0]); k++) {
        for (uint32_t i = 0; i < 2; i++) {
            op_case_fill(made[i].r, signs[k], g->s->seed, &runs[i], 1);
            check_ok(node_run_go(runs[i], false), op->row.name);
        }
        for (uint32_t slot = 0; slot < op->out_count; slot++)
            compare_output(op, on, made, runs, slot, signs[k], says);
    }
    for (uint32_t i = 0; i < 2; i++)
        if (runs[i] != NULL) node_run_free(runs[i]);
}

enum { AS_ITSELF, AS_EXPANDED, AS_PRODUCT }; /* how an op is recorded */

/* The matmul that product() says the op is. */
static lh_value_t product_record(lh_graph_t *graph, const op_t *op, const void *attributes,
                                 const lh_value_t *in)
{
    bool a = false, b = false;
    (void)op->row.product(attributes, &a, &b);
    const lh_matmul_t how = {.struct_size = sizeof(how), .transpose_a = a, .transpose_b = b};
    const lh_value_t factors[] = {in[0], in[1], op->in_count > 2 ? in[2] : 0};
    return graph->api->op(graph, "matmul", &how, factors, 3, NULL);
}

static bool call_make(const ground_t *g, const op_t *op, uint32_t n, uint32_t turn, uint32_t as,
                      made_t *out)
{
    lh_value_t in[OP_SLOTS] = {0};
    void *guess = attributes_guess(op, turn);
    if (turn > 0 && guess == NULL) return false;
    const void *attributes = op->row.attributes_bytes > 0 ? guess : NULL;
    *out = (made_t){
        .r = record_inputs(g, op, n, LH_DTYPE_F32, as == AS_ITSELF ? op_case_listed : NULL, in)};
    lh_graph_t *graph = &out->r->graph;
    if (as == AS_PRODUCT)
        out->out[0] = product_record(graph, op, attributes, in);
    else
        out->out[0] = graph->api->op(graph, op->row.name, attributes, in, op->in_count,
                                     &out->out[1]);
    mem_free(guess);
    return made_holds(out);
}

/* Whether its call, which is the last, is a product by its attributes. */
static bool is_product(const op_t *op, const recording_t *r)
{
    bool a, b;
    if (r->node_count < 2) return false;
    const graph_node_t *node = &r->nodes[r->node_count - 1];
    return node->op == op && op->row.product(node->attributes, &a, &b);
}

/* The op beside what it is recorded as, with each of its attributes in turn another one. */
static void compare_calls(ground_t *g, opened_t *on, const op_t *op, uint32_t as, const char *says)
{
    for (uint32_t turn = 0; turn < turns_of(op); turn++) {
        made_t made[2];
        uint32_t n = 0;
        const uint32_t most = combinations_of(op);
        while (n < most && !call_make(g, op, n, turn, AS_ITSELF, &made[0]))
            n++;
        if (n == most) continue;
        if (as != AS_PRODUCT || is_product(op, made[0].r)) {
            if (!call_make(g, op, n, turn, as, &made[1]))
                check_fault("op '%s': %s is refused: %s", op->row.name, says, fail_reason());
            compare_made(g, on, op, made, says);
            recording_free(made[1].r);
        }
        recording_free(made[0].r);
    }
}

/* How many values an attribute is given beside its default: of a choice all. */
static uint32_t values_beside(const lh_option_t *a)
{
    uint32_t count = 0;
    if (a->type != LH_OPT_CHOICE) return 1;
    for (const char *at = a->range; at != NULL && (at = strchr(at, '|')) != NULL; at++)
        count++;
    return count;
}

/* The attributes of a call of a way: turns are counted over all its calls, and what this one takes
 * of *turn is taken away. NULL: an attribute has no other value. */
static void *call_attributes(const op_t *op, uint32_t *turn)
{
    void *out = attributes_guess(op, 0);
    for (uint32_t i = 0; i < op->row.attribute_count; i++) {
        const lh_option_t *a = &op->row.attributes[i];
        const uint32_t others = values_beside(a);
        uint32_t moves = *turn <= others ? *turn : 0;
        *turn = *turn <= others ? 0 : *turn - others;
        for (; moves > 0; moves--)
            if (!attribute_turn(a, out)) {
                mem_free(out);
                return NULL;
            }
    }
    return out;
}

static bool way_call(recording_t *r, const pattern_call_t *c, uint32_t *turn,
                     lh_value_t word[PATTERN_WORDS])
{
    const op_t *op = c->op;
    lh_value_t in[OP_SLOTS] = {0}, out[OP_SLOTS] = {0};
    void *attributes = call_attributes(op, turn);
    if (attributes == NULL) return false;
    for (uint32_t i = 0; i < op->in_count; i++)
        if (c->word[i] != PATTERN_NONE) in[i] = word[c->word[i]];
    out[0] = r->graph.api->op(&r->graph, op->row.name,
                              op->row.attributes_bytes > 0 ? attributes : NULL, in, op->in_count,
                              &out[1]);
    mem_free(attributes);
    for (uint32_t i = 0; i < op->out_count; i++) {
        const uint32_t w = c->word[op->in_count + i];
        if (w != PATTERN_NONE) word[w] = out[i];
    }
    return recording_status(r) == LH_OK;
}

static bool offers_any(void *device, const op_t *op, const void *attributes, const lh_arg_t *args)
{
    (void)device, (void)op, (void)attributes, (void)args;
    return true;
}

/* The calls of a way on the op's inputs; to be fused, or of base ops alone. */
static bool way_make(const ground_t *g, const op_t *op, const op_pattern_t *way, uint32_t n,
                     uint32_t turn, bool fused, made_t *out)
{
    lh_value_t in[OP_SLOTS] = {0}, word[PATTERN_WORDS] = {0};
    bool taken = true;
    *out = (made_t){.r = record_inputs(g, op, n, LH_DTYPE_F32, fused ? offers_any : NULL, in)};
    for (uint32_t w = 0; w < way->word_count; w++)
        if (way->slot[w] < op->in_count) word[w] = in[way->slot[w]];
    for (uint32_t c = 0; c < way->call_count && taken; c++)
        taken = way_call(out->r, &way->calls[c], &turn, word);
    for (uint32_t w = 0; w < way->word_count && taken; w++)
        if (way->slot[w] != PATTERN_NONE && way->slot[w] >= op->in_count)
            out->out[way->slot[w] - op->in_count] = word[w];
    return made_holds(out);
}

/* Values that live on keep their numbers. */
static bool way_is_fused(const op_t *op, recording_t *r)
{
    check_ok(fusion_apply(r), op->row.name);
    for (uint32_t i = 1; i < r->node_count; i++)
        if (r->nodes[i].op == op) return true;
    return false;
}

/* A way of `fuses` beside the op that takes its place: the first inputs with which it does, for
 * each turn of the calls' attributes. */
static void compare_way(ground_t *g, opened_t *on, const op_t *op, uint32_t which)
{
    const op_pattern_t *way = &op->patterns[which];
    char says[48];
    uint32_t turns = 1;
    (void)snprintf(says, sizeof(says), "way %u of what it fuses", which + 1);
    for (uint32_t c = 0; c < way->call_count; c++)
        for (uint32_t i = 0; i < way->calls[c].op->row.attribute_count; i++)
            turns += values_beside(&way->calls[c].op->row.attributes[i]);
    for (uint32_t turn = 0; turn < turns; turn++) {
        bool compared = false;
        check_alive();
        for (uint32_t n = 0; n < combinations_of(op) && !compared; n++) {
            made_t made[2];
            if (!way_make(g, op, way, n, turn, true, &made[0])) continue;
            compared = way_is_fused(op, made[0].r) &&
                       way_make(g, op, way, n, turn, false, &made[1]);
            if (compared) {
                compare_made(g, on, op, made, says);
                recording_free(made[1].r);
            }
            recording_free(made[0].r);
        }
    }
}

/* What draws numbers may draw others in another form. */
static void stands_alike(ground_t *g, opened_t *on, const op_t *op)
{
    void *own = (void *)(uintptr_t)g->s->plugin;
    if ((op->row.flags & LH_OP_RANDOM) != 0) return;
    if (op->row.expand != NULL && op_case_listed(own, op, NULL, NULL))
        compare_calls(g, on, op, AS_EXPANDED, "what expand() records");
    if (op->row.product != NULL)
        compare_calls(g, on, op, AS_PRODUCT, "the product that it says it is");
    for (uint32_t i = 0; i < op->pattern_count; i++)
        compare_way(g, on, op, i);
}

static void check_parts(subject_t *s)
{
    ground_t g;
    bool any = false;
    for (uint32_t i = 0; i < s->plugin->op_count; i++) {
        const lh_op_t *row = &s->plugin->ops[i];
        any = any || row->expand != NULL || row->fuses != NULL || row->product != NULL;
    }
    if (!any) check_skip("it brings no ops that stand for others");
    ground_open(s, &g);
    if (each_device(&g, stands_alike) == 0) check_skip("it has kernels for no device that is here");
    ground_close(&g);
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
     CHECK_EVERY_PLUGIN, false, 60, check_parts, NULL},
    {0},
};
