/* checks_of_rules.c - update rules that a plugin of any kind brings, recorded and run on the
 * reference device. */
#include "check.h"
#include "check_host.h"
#include "node_run.h"
#include "op_cases.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/philox.h>
#include <graph/recorder.h>
#include <longhaul/dtype.h>

enum { ROWS = 12, COLUMNS = 24, STATES = OP_SLOTS /* as the host takes */ };
static const double tolerance = 1e-5;
#define NOTHING "records nothing"

typedef struct ground {
    subject_t *s;
    op_table_t *ops;
    opened_t truth;
    void *device_config, *rule_config;
    const lh_rule_t *rule;
    const plugin_t *const *plugins; /* with kernels for its ops */
    uint32_t plugin_count;
    uint64_t rows, columns;  /* of the parameter that it updates */
    double gradients, scale; /* what gradients are multiplied by, and LH_STEP_GRAD_SCALE */
    lh_dtype_t compute;      /* what the new value is asked for in; 0: as the rest */
    lh_value_t *value;       /* gets the new value, 0 where the rule makes none; or NULL */
    bool first;              /* step 1, with states as they begin; else step 3 of any */
} ground_t;

static void each_rule(subject_t *s, void (*run)(ground_t *g))
{
    ground_t g = {.s = s, .gradients = 1, .scale = 0.5};
    if (s->plugin->rule_count == 0) check_skip("it brings no rules");
    const plugin_t *reference = subject_reference(s);
    if (reference == NULL) check_skip("no reference device: %s", fail_reason());
    g.device_config = subject_config(s, reference);
    g.ops = subject_ops(s);
    g.plugins = subject_plugins(s, &g.plugin_count);
    check_ok(opened_open(reference, check_host(), g.device_config, &g.truth), "reference device");
    for (uint32_t i = 0; i < s->plugin->rule_count; i++) {
        g.rule = &s->plugin->rules[i];
        g.rows = ROWS;
        g.columns = g.rule->grain == LH_GRAIN_BLOCK && g.rule->grain_elements > 0
                        ? g.rule->grain_elements
                        : COLUMNS;
        const option_table_t table = plugin_rule_options(g.rule);
        g.rule_config = options_default(table.rows, table.count, table.config_size);
        run(&g);
        mem_free(g.rule_config);
    }
    opened_close(&g.truth);
    op_table_free(g.ops);
    mem_free(g.device_config);
}

/* Parameters of all forms: matrices, one that is wide, one that is tall, a vector, which is one row
 * as the host tells it, and one element. */
static void each_shape(ground_t *g, void (*run)(ground_t *g))
{
    const uint64_t rows = g->rows, columns = g->columns;
    const uint64_t shapes[][2] = {{rows, columns}, {3, 40}, {40, 3}, {1, 17}, {1, 1}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        char text[64];
        g->rows = shapes[i][0];
        g->columns = shapes[i][1];
        (void)snprintf(text, sizeof(text), "of a parameter of %llu x %llu",
                       (unsigned long long)g->rows, (unsigned long long)g->columns);
        check_about(text);
        run(g);
    }
    check_about(NULL);
    g->rows = rows;
    g->columns = columns;
}

/* ---- states ---- */

static void states_are_sound(ground_t *g)
{
    const lh_rule_t *rule = g->rule;
    if (rule->state_count > STATES)
        check_fault("rule '%s' has %u states, and the host takes %d", rule->name, rule->state_count,
                    STATES);
    for (uint32_t i = 0; i < rule->state_count; i++) {
        const lh_rule_state_t *state = &rule->states[i];
        bool good = islower((unsigned char)state->name[0]) != 0;
        for (const char *c = state->name; *c != '\0'; c++)
            good = good && (islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_');
        if (!good)
            check_fault("rule '%s': state '%s' is not called in snake_case, as checkpoints need",
                        rule->name, state->name);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(rule->states[k].name, state->name) == 0)
                check_fault("rule '%s': two states are called '%s'", rule->name, state->name);
        if (lh_dtype_bytes(state->dtype) == 0 || state->extent < LH_EXTENT_ELEMENT ||
            state->extent > LH_EXTENT_PARAM)
            check_fault("rule '%s': state '%s' has dtype %u and extent %u", rule->name, state->name,
                        state->dtype, state->extent);
    }
    if (rule->grain < LH_GRAIN_ELEMENT || rule->grain > LH_GRAIN_MATRIX)
        check_fault("rule '%s' has grain %u", rule->name, rule->grain);
    if (rule->grain == LH_GRAIN_BLOCK && rule->grain_elements == 0)
        check_fault("rule '%s' works in blocks of 0 elements", rule->name);
}

/* ---- one update of one piece ---- */

typedef struct piece {
    uint64_t begin, elements;
} piece_t;

typedef struct update { /* new master, then the new states; of the piece alone */
    double *numbers[1 + STATES];
    uint64_t counts[1 + STATES];
    uint32_t count;
} update_t;

static uint64_t state_elements(const ground_t *g, const lh_rule_state_t *state, uint64_t elements)
{
    switch (state->extent) {
    case LH_EXTENT_ROW: return elements / g->columns;
    case LH_EXTENT_COLUMN: return g->columns;
    case LH_EXTENT_BLOCK: {
        const uint64_t grain = g->rule->grain_elements != 0 ? g->rule->grain_elements : 1;
        return (elements + grain - 1) / grain;
    }
    case LH_EXTENT_PARAM: return 1;
    default: return elements;
    }
}

/* slot 0: gradient, 1: master, then states, which are positive, as second moments are. */
static double number_of(const ground_t *g, uint32_t slot, uint64_t element)
{
    if (slot >= 2 && g->first) return g->rule->states[slot - 2].initial;
    const double value = slot < 2 ? philox_normal(g->s->seed, slot, element)
                                  : 0.5 + philox_uniform(g->s->seed, slot, element);
    return (double)(float)value;
}

/* What a dtype keeps of a number, as node_run.h writes and reads it: nothing where it knows no
 * numbers of that dtype. */
static double number_held(lh_dtype_t dtype, double value)
{
    switch (dtype) {
    case LH_DTYPE_F32:
    case LH_DTYPE_F64: return value;
    case LH_DTYPE_BF16: return (double)lh_bf16_to_f32(lh_f32_to_bf16((float)value));
    case LH_DTYPE_F16: return (double)lh_f16_to_f32(lh_f32_to_f16((float)value));
    case LH_DTYPE_I32: return trunc(value);
    default: return 0;
    }
}

static void give(const ground_t *g, node_run_t *n, lh_value_t v, uint32_t slot, uint64_t begin)
{
    const uint64_t count = node_run_elements(n, v);
    double *numbers = check_memory(count, sizeof(*numbers));
    for (uint64_t i = 0; i < count; i++)
        numbers[i] = number_of(g, slot, begin + i) * (slot == 0 ? g->gradients : 1);
    node_run_set(n, v, numbers);
    mem_free(numbers);
}

static void take(node_run_t *n, lh_value_t v, update_t *out)
{
    const uint64_t count = node_run_elements(n, v);
    out->counts[out->count] = count;
    out->numbers[out->count] = check_memory(count, sizeof(double));
    node_run_get(n, v, out->numbers[out->count++]);
}

/* NULL after fail(): the rule can't be recorded. */
static recording_t *try_record(const ground_t *g, const piece_t *p, lh_dtype_t dtype,
                               lh_value_t *in, lh_value_t *out)
{
    const lh_rule_t *rule = g->rule;
    const lh_dtype_t compute = g->compute != 0 ? g->compute : dtype;
    if (rule->state_count > STATES)
        check_skip("rule '%s' has more than %d states", rule->name, STATES);
    const recording_how_t how = {.ops = g->ops,
                                 .host = check_host(),
                                 .tokens = 1,
                                 .sequences = 1,
                                 .max_documents = 1,
                                 .compute = compute,
                                 .accumulate = dtype};
    const lh_piece_t piece = {.struct_size = sizeof(piece),
                              .begin = p->begin,
                              .elements = p->elements,
                              .rows = g->rows,
                              .columns = g->columns,
                              .decay = 0.1,
                              .value_dtype = compute,
                              .grad_dtype = dtype,
                              .name = "check.matrix",
                              .matrices = 1};
    lh_value_t value = 0;
    recording_t *r;
    check_ok(recorder_new(&how, &r), "recording");
    /* As the host does: a matrix for a rule that works on rows, else flat. */
    const bool whole_rows = rule->grain >= LH_GRAIN_ROW;
    const uint64_t shape[] = {whole_rows ? p->elements / g->columns : p->elements, g->columns};
    in[0] = recording_argument(r, dtype, whole_rows ? 2 : 1, shape);
    in[1] = recording_argument(r, dtype, whole_rows ? 2 : 1, shape);
    for (uint32_t i = 0; i < rule->state_count; i++) {
        const uint64_t count = state_elements(g, &rule->states[i], p->elements);
        const bool wide = rule->states[i].dtype == LH_DTYPE_F32 && dtype == LH_DTYPE_F64;
        const bool like = rule->states[i].extent == LH_EXTENT_ELEMENT;
        in[2 + i] = recording_argument(r, wide ? dtype : rule->states[i].dtype,
                                       like && whole_rows ? 2 : 1, like ? shape : &count);
        out[1 + i] = in[2 + i];
    }
    out[0] = rule->record(g->rule_config, &r->graph, &piece, in[0], in[1], &out[1], &value);
    r->output = out[0];
    if (g->value != NULL) *g->value = value;
    if (recording_status(r) == LH_OK && out[0] != 0 && out[0] < r->value_count) return r;
    if (recording_status(r) == LH_OK) (void)fail(LH_INVALID, "rule '%s' " NOTHING, rule->name);
    recording_free(r);
    return NULL;
}

static const char *what_of(const ground_t *g, uint32_t slot);

/* What an op has written over in place is gone, in F32 and in double alike: numbers that are
 * compared would not show it. */
static void nothing_is_read_late(const ground_t *g, const recording_t *r, const lh_value_t *in,
                                 const lh_value_t *out)
{
    uint32_t over;
    const uint32_t reader = recording_late_read(r, &over);
    if (reader != 0)
        check_fault("rule '%s': op %s reads what %s, which works in place, has written over",
                    g->rule->name, r->nodes[reader].op->row.name, r->nodes[over].op->row.name);
    for (uint32_t i = 0; i <= g->rule->state_count; i++) {
        if (out[i] == 0 || out[i] >= r->value_count || out[i] == in[1 + i]) continue;
        over = recording_written_over(r, out[i]);
        if (over != 0)
            check_fault("rule '%s': %s becomes what %s, which works in place, has written over",
                        g->rule->name, what_of(g, i), r->nodes[over].op->row.name);
    }
}

static recording_t *record(const ground_t *g, const piece_t *p, lh_dtype_t dtype, lh_value_t *in,
                           lh_value_t *out)
{
    recording_t *r = try_record(g, p, dtype, in, out);
    if (r == NULL && dtype != LH_DTYPE_F64)
        check_fault("rule '%s' can't be recorded: %s", g->rule->name, fail_reason());
    if (r != NULL) nothing_is_read_late(g, r, in, out);
    return r;
}

/* One run of what the rule has recorded. False: there are no kernels for it. */
static bool recorded_run(const ground_t *g, const recording_t *r, const lh_value_t *in,
                         uint64_t begin, bool apply, node_run_t **out)
{
    node_run_t *n;
    const node_run_how_t how = {.on = (opened_t *)(uintptr_t)&g->truth,
                                .others = g->plugins,
                                .other_count = g->plugin_count};
    if (node_run_new(&how, r, &n) != LH_OK) return false;
    op_case_fill(r, 0, g->s->seed, &n, 1);
    for (uint32_t i = 0; i < 2 + g->rule->state_count; i++)
        give(g, n, in[i], i, begin);
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_INPUT && r->values[v].which == LH_INPUT_STEP) {
            const double words[LH_STEP_WORDS] = {[LH_STEP_LEARNING_RATE] = 0.125,
                                                 [LH_STEP_GRAD_SCALE] = g->scale,
                                                 [LH_STEP_NUMBER] = g->first ? 1 : 3,
                                                 [LH_STEP_APPLY] = apply ? 1 : 0,
                                                 [LH_STEP_MAX_NORM] = 1};
            node_run_set(n, v, words);
        }
    check_ok(node_run_go(n, false), g->rule->name);
    *out = n;
    return true;
}

/* False: there are no kernels for it in that dtype. */
static bool update(const ground_t *g, const piece_t *p, lh_dtype_t dtype, bool apply, update_t *out)
{
    lh_value_t in[2 + STATES], made[1 + STATES];
    node_run_t *n;
    *out = (update_t){0};
    recording_t *r = record(g, p, dtype, in, made);
    if (r == NULL || !recorded_run(g, r, in, p->begin, apply, &n)) return false;
    for (uint32_t i = 0; i < 1 + g->rule->state_count; i++)
        take(n, made[i], out);
    node_run_free(n);
    recording_free(r);
    return true;
}

static void update_free(update_t *u)
{
    for (uint32_t i = 0; i < u->count; i++)
        mem_free(u->numbers[i]);
}

static const char *what_of(const ground_t *g, uint32_t slot)
{
    return slot == 0 ? "the parameter" : g->rule->states[slot - 1].name;
}

static void agrees_with_doubles(ground_t *g)
{
    const piece_t whole = {0, g->rows * g->columns};
    update_t single, exact;
    if (!update(g, &whole, LH_DTYPE_F32, true, &single))
        check_skip("rule '%s': the reference device has no kernel for '%s'", g->rule->name,
                   node_run_lacking());
    if (!update(g, &whole, LH_DTYPE_F64, true, &exact))
        check_skip("rule '%s' can't be run in double: no kernel for '%s'", g->rule->name,
                   node_run_lacking());
    for (uint32_t s = 0; s < single.count; s++)
        for (uint64_t i = 0; i < single.counts[s]; i++) {
            const double got = single.numbers[s][i], want = exact.numbers[s][i];
            if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
                check_fault("rule '%s': element %llu of %s becomes %.9g, in double %.9g",
                            g->rule->name, (unsigned long long)i, what_of(g, s), got, want);
        }
    update_free(&single);
    update_free(&exact);
}

static void waits_to_be_applied(ground_t *g)
{
    const piece_t whole = {0, g->rows * g->columns};
    update_t u;
    if (!update(g, &whole, LH_DTYPE_F32, false, &u))
        check_skip("rule '%s': the reference device has no kernel for '%s'", g->rule->name,
                   node_run_lacking());
    for (uint32_t s = 0; s < u.count; s++) {
        const lh_dtype_t dtype = s == 0 ? LH_DTYPE_F32 : g->rule->states[s - 1].dtype;
        for (uint64_t i = 0; i < u.counts[s]; i++)
            if (u.numbers[s][i] != number_held(dtype, number_of(g, s + 1, i)))
                check_fault("rule '%s': element %llu of %s changes in a step with LH_STEP_APPLY 0",
                            g->rule->name, (unsigned long long)i, what_of(g, s));
    }
    update_free(&u);
    (void)update(g, &whole, LH_DTYPE_F32, true, &u);
    bool changes = false;
    for (uint64_t i = 0; i < u.counts[0]; i++)
        changes = changes || u.numbers[0][i] != number_of(g, 1, i);
    if (!changes)
        check_fault("rule '%s': no element of the parameter changes in a step that is applied",
                    g->rule->name);
    update_free(&u);
}

/* ---- pieces ---- */

static void compare_piece(const ground_t *g, const update_t *whole, const piece_t *p)
{
    update_t part;
    (void)update(g, p, LH_DTYPE_F32, true, &part);
    for (uint32_t s = 0; s < part.count; s++)
        for (uint64_t i = 0; i < part.counts[s]; i++)
            if (part.numbers[s][i] != whole->numbers[s][p->begin + i])
                check_fault("rule '%s': element %llu of %s becomes %.9g where its piece begins at "
                            "%llu, and %.9g in one piece; its grain says that both are the same",
                            g->rule->name, (unsigned long long)(p->begin + i), what_of(g, s),
                            part.numbers[s][i], (unsigned long long)p->begin,
                            whole->numbers[s][p->begin + i]);
    update_free(&part);
}

static void grain_is_true(ground_t *g)
{
    const lh_rule_t *rule = g->rule;
    const uint64_t n = g->rows * g->columns;
    const uint64_t unit = rule->grain == LH_GRAIN_ELEMENT ? 1 : g->columns;
    const piece_t pieces[] = {{0, 3 * unit}, {3 * unit, unit}, {4 * unit, n - 4 * unit}};
    update_t whole;
    if (rule->grain > LH_GRAIN_ROW) return; /* never cut */
    for (uint32_t i = 0; i < rule->state_count; i++)
        if (rule->states[i].extent != LH_EXTENT_ELEMENT) return; /* likewise */
    if (!update(g, &(piece_t){0, n}, LH_DTYPE_F32, true, &whole))
        check_skip("rule '%s': the reference device has no kernel for '%s'", rule->name,
                   node_run_lacking());
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        compare_piece(g, &whole, &pieces[i]);
    update_free(&whole);
}

/* ---- gradients that are scaled ---- */

/* A rule sees gradients times LH_STEP_GRAD_SCALE: sums over ranks, a loss scale and clipping are in
 * it. Powers of two, so that what is multiplied and divided has the same bits. */
static void scale_is_taken_out(ground_t *g)
{
    static const double by = 1024;
    const piece_t whole = {0, g->rows * g->columns};
    update_t plain, scaled;
    if (!update(g, &whole, LH_DTYPE_F32, true, &plain))
        check_skip("rule '%s': the reference device has no kernel for '%s'", g->rule->name,
                   node_run_lacking());
    g->gradients *= by;
    g->scale /= by;
    (void)update(g, &whole, LH_DTYPE_F32, true, &scaled);
    g->gradients /= by;
    g->scale *= by;
    for (uint32_t s = 0; s < plain.count; s++)
        for (uint64_t i = 0; i < plain.counts[s]; i++) {
            const double got = scaled.numbers[s][i], want = plain.numbers[s][i];
            if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
                check_fault("rule '%s': element %llu of %s becomes %.9g where gradients are %g "
                            "times as large and LH_STEP_GRAD_SCALE as much smaller, and %.9g where "
                            "they are not",
                            g->rule->name, (unsigned long long)i, what_of(g, s), got, by, want);
        }
    update_free(&plain);
    update_free(&scaled);
}

/* ---- parameters of all forms ---- */

/* Where the rule writes the new value itself, the host copies nothing: it is the new master,
 * rounded to what is computed with. */
static void value_is_master(ground_t *g)
{
    static const double last_place = 1.0 / 128; /* of BF16 */
    const piece_t whole = {0, g->rows * g->columns};
    lh_value_t in[2 + STATES], made[1 + STATES], value = 0;
    node_run_t *n;
    g->compute = LH_DTYPE_BF16;
    g->value = &value;
    recording_t *r = try_record(g, &whole, LH_DTYPE_F32, in, made);
    g->compute = 0;
    g->value = NULL;
    if (r == NULL || value == 0) {
        recording_free(r);
        return;
    }
    lh_arg_t like = r->values[in[1]].arg;
    like.dtype = LH_DTYPE_BF16;
    if (value >= r->value_count || !recording_args_alike(&r->values[value].arg, &like))
        check_fault("rule '%s': the new value has not the parameter's shape, in the dtype that is "
                    "computed with",
                    g->rule->name);
    r->output = value; /* nobody reads it here, and so it would be left out */
    if (recorded_run(g, r, in, 0, true, &n)) {
        double *got = check_memory(whole.elements, sizeof(*got));
        double *want = check_memory(whole.elements, sizeof(*want));
        node_run_get(n, value, got);
        if (node_run_has(n, made[0])) node_run_get(n, made[0], want);
        for (uint64_t i = 0; i < whole.elements && node_run_has(n, made[0]); i++)
            if (!(fabs(got[i] - want[i]) <= last_place * fabs(want[i])))
                check_fault("rule '%s': element %llu of the new value is %.9g, of the new master "
                            "%.9g",
                            g->rule->name, (unsigned long long)i, got[i], want[i]);
        mem_free(got);
        mem_free(want);
        node_run_free(n);
    }
    recording_free(r);
}

/* As every training begins. */
static void first_step_is_finite(ground_t *g)
{
    const piece_t whole = {0, g->rows * g->columns};
    update_t u;
    g->first = true;
    (void)update(g, &whole, LH_DTYPE_F32, true, &u);
    g->first = false;
    for (uint32_t s = 0; s < u.count; s++)
        for (uint64_t i = 0; i < u.counts[s]; i++)
            if (!isfinite(u.numbers[s][i]))
                check_fault("rule '%s': element %llu of %s is %g after step 1, before which states "
                            "are what they begin with",
                            g->rule->name, (unsigned long long)i, what_of(g, s), u.numbers[s][i]);
    update_free(&u);
}

/* A rule may refuse what it is not made for, in words; what it takes it computes. */
static void form_is_taken(ground_t *g)
{
    const piece_t whole = {0, g->rows * g->columns};
    lh_value_t in[2 + STATES], made[1 + STATES];
    recording_t *r = try_record(g, &whole, LH_DTYPE_F32, in, made);
    if (r == NULL) {
        const bool silent = fail_reason()[0] == '\0' || strstr(fail_reason(), NOTHING) != NULL;
        if (silent) check_fault("rule '%s' records nothing, and does not say why", g->rule->name);
        if (strstr(fail_reason(), g->rule->name) == NULL)
            check_fault("rule '%s' can't be recorded, and its sentence does not say that it is the "
                        "rule that wants something else: %s",
                        g->rule->name, fail_reason());
        return;
    }
    for (uint32_t i = 0; i <= g->rule->state_count; i++)
        if (made[i] == 0 || made[i] >= r->value_count ||
            !recording_args_alike(&r->values[made[i]].arg, &r->values[in[1 + i]].arg))
            check_fault("rule '%s': %s is another shape or dtype once it is updated", g->rule->name,
                        what_of(g, i));
    recording_free(r);
    value_is_master(g);
    first_step_is_finite(g);
    agrees_with_doubles(g);
}

static void forms_are_taken(ground_t *g)
{
    each_shape(g, form_is_taken);
}

static void check_states(subject_t *s)
{
    each_rule(s, states_are_sound);
}

static void check_scale(subject_t *s)
{
    each_rule(s, scale_is_taken_out);
}

static void check_shapes(subject_t *s)
{
    each_rule(s, forms_are_taken);
}

static void check_doubles(subject_t *s)
{
    each_rule(s, agrees_with_doubles);
}

static void check_apply(subject_t *s)
{
    each_rule(s, waits_to_be_applied);
}

static void check_grain(subject_t *s)
{
    each_rule(s, grain_is_true);
}

const check_t checks_of_rules[] = {
    {"rules.states", "states of its rules have names that checkpoints can use, and known extents",
     CHECK_EVERY_PLUGIN, false, 20, check_states, NULL},
    {"rules.double", "its rules compute in F32 what they compute in double", CHECK_EVERY_PLUGIN,
     false, 30, check_doubles, NULL},
    {"rules.apply", "a step that is not applied changes nothing, one that is does",
     CHECK_EVERY_PLUGIN, false, 30, check_apply, NULL},
    {"rules.scale", "gradients count times LH_STEP_GRAD_SCALE", CHECK_EVERY_PLUGIN, false, 30,
     check_scale, NULL},
    {"rules.shapes",
     "its rules update matrices, vectors and single elements, or say which they do not",
     CHECK_EVERY_PLUGIN, false, 30, check_shapes, NULL},
    {"rules.grain", "its rules give the same bits however finely their grain lets them be cut",
     CHECK_EVERY_PLUGIN, false, 30, check_grain, NULL},
    {0},
};
