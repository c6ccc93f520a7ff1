/* cuts.c - tensor parallelism as model.h describes it, executed.
 *
 * A part is recorded whole and run by one rank. Then each of its ops is run by two ranks on what
 * each of them would have: a parameter's rows or columns (shard, unit), a value's half where the op
 * that made it left it cut, everything else whole. What two ranks get must be the whole again (both
 * have the same), its halves along one dimension, or a sum: the host then adds, as it does behind a
 * matrix that is cut by input columns. Anything else is a cut that does not work, and it is told
 * with the op and the parameter. Nothing is known of any op here but its row: so the same holds for
 * a third party's. */
#include "cuts.h"

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <graph/recorder.h>

#include "check.h"
#include "check_host.h"
#include "node_run.h"
#include "op_cases.h"

enum { WAYS = 2, WHOLE = LH_MAX_RANK };
static const double tolerance = 1e-9;

/* A part, run whole, and which of its values are cut. */
typedef struct cut {
    subject_t *s;
    tiny_model_t *model;
    opened_t *on;
    const plugin_t *const *plugins;
    uint32_t plugin_count;
    uint32_t part, block;
    recording_t *r;
    node_run_t *whole;
    uint32_t *along; /* by value: the dimension that is cut, or WHOLE */
    bool any;        /* something is cut */
} cut_t;

static const char *place_of(const cut_t *c)
{
    static char text[TINY_PART_TEXT];
    return tiny_model_part_text(c->part, c->block, text);
}

/* ---- parameters ---- */

static const parameter_t *parameter_of(const cut_t *c, const char *name)
{
    uint32_t index;
    const parameters_t *p = c->model->parameters;
    if (!parameters_find_local(p, c->part, c->block, name, &index))
        check_fault("%s: parameter '%s' is not in its table", place_of(c), name);
    return &p->items[index];
}

/* The dimension that the row says; experts are another group's. */
static uint32_t dimension_of(const parameter_t *p)
{
    switch (p->row->shard) {
    case LH_SHARD_OUT:
    case LH_SHARD_VOCAB: return p->rank > 1 ? p->rank - 2 : 0;
    case LH_SHARD_IN: return p->rank - 1;
    default: return WHOLE;
    }
}

/* Which rows are whose expert stands in whole numbers that an op of this part has made. */
static bool is_told_of_experts(const cut_t *c, const graph_node_t *node)
{
    for (uint32_t i = 0; i < node->op->in_count; i++) {
        const graph_value_t *v = &c->r->values[node->slots[i]];
        if (node->slots[i] != 0 && v->kind == VALUE_RESULT && v->arg.dtype == LH_DTYPE_I32)
            return true;
    }
    return false;
}

/* What reads it without knowing that: such an op has a router's scores, of all experts. NULL: none. */
static const char *reader_of_all_experts(const cut_t *c, lh_value_t parameter)
{
    for (uint32_t n = 1; n < c->r->node_count; n++) {
        const graph_node_t *node = &c->r->nodes[n];
        for (uint32_t i = 0; i < node->op->in_count; i++)
            if (node->slots[i] == parameter && !is_told_of_experts(c, node))
                return node->op->row.name;
    }
    return NULL;
}

/* The expert group has no part of what all of its ranks must know whole: a router and its bias. A
 * matrix or a vector for each expert is read with the route. */
static void experts_are_routed(const cut_t *c)
{
    for (lh_value_t v = 1; v < c->r->value_count; v++) {
        if (c->r->values[v].kind != VALUE_PARAM) continue;
        const parameter_t *p = parameter_of(c, c->r->values[v].name);
        const char *reader = p->row->shard == LH_SHARD_EXPERT && p->rank != 3
                                 ? reader_of_all_experts(c, v)
                                 : NULL;
        if (reader != NULL)
            check_fault(
                "%s: '%s' has %u dimension%s and is cut by experts, and %s reads it without "
                "being told which rows are an expert's: what routes is whole on every rank",
                place_of(c), p->row->name, p->rank, p->rank == 1 ? "" : "s", reader);
    }
}

/* Whether what is cut of this part can be cut in two without separating what `unit` holds
 * together. */
static bool divides(const cut_t *c)
{
    for (lh_value_t v = 1; v < c->r->value_count; v++) {
        if (c->r->values[v].kind != VALUE_PARAM) continue;
        const parameter_t *p = parameter_of(c, c->r->values[v].name);
        const uint32_t d = dimension_of(p);
        const uint64_t unit = p->row->unit > 0 ? p->row->unit : 1;
        if (d != WHOLE && p->shape[d] % (WAYS * unit) != 0) return false;
    }
    return true;
}

/* ---- halves ---- */

static lh_arg_t half_of(const lh_arg_t *whole, uint32_t along)
{
    lh_arg_t half = *whole;
    if (along != WHOLE) half.shape[along] /= WAYS;
    return half;
}

static uint64_t elements_of(const lh_arg_t *arg)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < arg->rank; i++)
        n *= arg->shape[i];
    return n;
}

/* One rank's half of dense numbers of that shape; the caller frees. */
static double *take_half(const double *numbers, const lh_arg_t *whole, uint32_t along,
                         uint32_t rank)
{
    const lh_arg_t arg = half_of(whole, along);
    const uint64_t n = elements_of(&arg);
    double *half = check_memory(n + 1, sizeof(*half));
    uint64_t inner = 1;
    for (uint32_t i = along == WHOLE ? whole->rank : along + 1; i < whole->rank; i++)
        inner *= whole->shape[i];
    const uint64_t run = along == WHOLE ? n : arg.shape[along] * inner;
    for (uint64_t i = 0; i < n; i++)
        half[i] = numbers[along == WHOLE ? i : i / run * run * WAYS + rank * run + i % run];
    return half;
}

static double *numbers_of(const cut_t *c, lh_value_t v)
{
    double *numbers = check_memory(node_run_elements(c->whole, v) + 1, sizeof(*numbers));
    node_run_get(c->whole, v, numbers);
    return numbers;
}

/* ---- one op on one rank ---- */

typedef struct made { /* by a rank, of one op: outputs in slot order; NULL: left out */
    double *numbers[OP_SLOTS];
    lh_arg_t args[OP_SLOTS];
} made_t;

static void made_free(made_t *m)
{
    for (uint32_t i = 0; i < OP_SLOTS; i++)
        mem_free(m->numbers[i]);
    *m = (made_t){0};
}

/* Attributes of a rank; the caller frees. */
static void *attributes_of(const cut_t *c, const graph_node_t *node, uint32_t rank)
{
    const lh_op_t *row = &node->op->row;
    if (node->attributes == NULL) return NULL;
    void *out = check_memory(1, row->attributes_bytes);
    memcpy(out, node->attributes, row->attributes_bytes);
    check_host_faults(NULL);
    if (row->split != NULL && row->split(check_host(), node->attributes, rank, WAYS, out) != LH_OK)
        check_fault("%s: the parameters can be cut in two as shard and unit say, but %s can't: %s",
                    place_of(c), row->name,
                    check_host_reason()[0] != '\0' ? check_host_reason() : fail_reason());
    return out;
}

/* How two ranks are given what no row speaks of, in the order that is tried. */
enum {
    ALONE =
        1u << 0, /* an optional parameter that is whole is rank 0's: a bias that is added once */
    HALVES =
        1u << 1, /* constants are cut like the heads that they are for: slopes of ALiBi        */
    TRIES = 1u << 2
};

static bool is_left_out(const cut_t *c, const graph_node_t *node, uint32_t slot, uint32_t rank,
                        uint32_t try)
{
    const lh_value_t v = node->slots[slot];
    return (try & ALONE) != 0 && rank > 0 && node->op->optional[slot] && v != 0 &&
           c->r->values[v].kind == VALUE_PARAM && c->along[v] == WHOLE;
}

static uint32_t along_of(const cut_t *c, lh_value_t v, uint32_t try)
{
    const graph_value_t *value = &c->r->values[v];
    const bool even = value->constant_count > 0 && value->constant_count % WAYS == 0;
    return (try & HALVES) != 0 && value->kind == VALUE_CONSTANT && even ? 0 : c->along[v];
}

/* Whether trying it that way differs from another. */
static bool is_of_use(const cut_t *c, const graph_node_t *node, uint32_t try)
{
    bool alone = false, halves = false;
    for (uint32_t i = 0; i < node->op->in_count; i++) {
        alone = alone || is_left_out(c, node, i, 1, ALONE);
        halves = halves || (node->slots[i] != 0 &&
                            along_of(c, node->slots[i], HALVES) != along_of(c, node->slots[i], 0));
    }
    return ((try & ALONE) == 0 || alone) && ((try & HALVES) == 0 || halves);
}

static const char *parameter_of_node(const cut_t *c, const graph_node_t *node)
{
    for (uint32_t i = 0; i < node->op->in_count; i++)
        if (node->slots[i] != 0 && c->r->values[node->slots[i]].kind == VALUE_PARAM)
            return c->r->values[node->slots[i]].name;
    return NULL;
}

/* " (parameter 'wo')" */
static const char *about_parameter(const cut_t *c, const graph_node_t *node)
{
    static char text[96];
    const char *name = parameter_of_node(c, node);
    (void)snprintf(text, sizeof(text), name == NULL ? "%s" : " (parameter '%s')",
                   name == NULL ? "" : name);
    return text;
}

/* NULL after fail(): the op does not take what a rank has. */
static recording_t *record_on_rank(const cut_t *c, const graph_node_t *node, uint32_t rank,
                                   uint32_t try, lh_value_t *in, lh_value_t *out)
{
    const recording_how_t how = {.ops = c->model->ops,
                                 .host = check_host(),
                                 .tokens = c->r->how.tokens,
                                 .sequences = 1,
                                 .max_documents = 2,
                                 .compute = LH_DTYPE_F64,
                                 .accumulate = LH_DTYPE_F64,
                                 .offers = op_case_listed,
                                 .device = (void *)(uintptr_t)c->on->plugin};
    recording_t *r;
    check_ok(recorder_new(&how, &r), "recording");
    for (uint32_t i = 0; i < node->op->in_count; i++) {
        const lh_value_t v = node->slots[i];
        if (v == 0 || is_left_out(c, node, i, rank, try)) continue;
        const lh_arg_t arg = half_of(&c->r->values[v].arg, along_of(c, v, try));
        in[i] = recording_argument(r, arg.dtype, arg.rank, arg.shape);
    }
    void *attributes = attributes_of(c, node, rank);
    out[0] = r->graph.api->op(&r->graph, node->op->row.name, attributes, in, node->op->in_count,
                              &out[1]);
    mem_free(attributes);
    if (recording_status(r) == LH_OK && out[0] != 0) {
        r->output = out[0];
        return r;
    }
    recording_free(r);
    return NULL;
}

/* False after fail(): the op does not take it. */
static bool run_on_rank(const cut_t *c, const graph_node_t *node, uint32_t rank, uint32_t try,
                        made_t *made)
{
    lh_value_t in[OP_SLOTS] = {0}, out[OP_SLOTS] = {0};
    node_run_t *n;
    recording_t *r = record_on_rank(c, node, rank, try, in, out);
    if (r == NULL) return false;
    const node_run_how_t how = {.on = c->on, .others = c->plugins, .other_count = c->plugin_count};
    if (node_run_new(&how, r, &n) != LH_OK)
        check_skip("the reference device has no kernel for '%s' in double", node_run_lacking());
    for (uint32_t i = 0; i < node->op->in_count; i++) {
        if (in[i] == 0) continue;
        const lh_value_t v = node->slots[i];
        double *numbers = numbers_of(c, v);
        double *half = take_half(numbers, &c->r->values[v].arg, along_of(c, v, try), rank);
        node_run_set(n, in[i], half);
        mem_free(half);
        mem_free(numbers);
    }
    check_ok(node_run_go(n, true), node->op->row.name);
    for (uint32_t i = 0; i < node->op->out_count; i++) {
        if (out[i] == 0 || !node_run_has(n, out[i])) continue;
        made->args[i] = r->values[out[i]].arg;
        made->numbers[i] = check_memory(node_run_elements(n, out[i]) + 1, sizeof(double));
        node_run_get(n, out[i], made->numbers[i]);
    }
    node_run_free(n);
    recording_free(r);
    return true;
}

/* ---- what two ranks have made ---- */

static bool is_near(double got, double want)
{
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

/* Each rank has its half along that dimension; WHOLE: all of it. */
static bool is_half(const made_t *made, uint32_t slot, const double *want, const lh_arg_t *whole,
                    uint32_t along)
{
    const lh_arg_t arg = half_of(whole, along);
    for (uint32_t rank = 0; rank < WAYS; rank++) {
        if (made[rank].numbers[slot] == NULL || !recording_args_alike(&made[rank].args[slot], &arg))
            return false;
        double *half = take_half(want, whole, along, rank);
        bool same = true;
        for (uint64_t i = 0; i < elements_of(&arg) && same; i++)
            same = is_near(made[rank].numbers[slot][i], half[i]);
        mem_free(half);
        if (!same) return false;
    }
    return true;
}

static bool is_sum(const made_t *made, uint32_t slot, const double *want, const lh_arg_t *whole)
{
    for (uint32_t rank = 0; rank < WAYS; rank++)
        if (made[rank].numbers[slot] == NULL ||
            !recording_args_alike(&made[rank].args[slot], whole))
            return false;
    for (uint64_t i = 0; i < elements_of(whole); i++) {
        double sum = 0;
        for (uint32_t rank = 0; rank < WAYS; rank++)
            sum += made[rank].numbers[slot][i];
        if (!is_near(sum, want[i])) return false;
    }
    return true;
}

/* False: nothing of the kind. */
static bool understand(cut_t *c, const graph_node_t *node, const made_t *made)
{
    for (uint32_t i = 0; i < node->op->out_count; i++) {
        const lh_value_t v = node->slots[node->op->in_count + i];
        if (v == 0 || !node_run_has(c->whole, v)) continue;
        const lh_arg_t *arg = &c->r->values[v].arg;
        double *want = numbers_of(c, v);
        bool found = is_half(made, i, want, arg, WHOLE);
        c->along[v] = WHOLE;
        for (uint32_t d = 0; d < arg->rank && !found; d++) {
            if (arg->shape[d] % WAYS != 0 || !is_half(made, i, want, arg, d)) continue;
            found = true;
            c->along[v] = d;
        }
        if (!found) found = is_sum(made, i, want, arg);
        mem_free(want);
        if (!found) return false;
    }
    return true;
}

static bool has_cut_input(const cut_t *c, const graph_node_t *node)
{
    for (uint32_t i = 0; i < node->op->in_count; i++)
        if (node->slots[i] != 0 && c->along[node->slots[i]] != WHOLE) return true;
    return false;
}

static void follow_node(cut_t *c, const graph_node_t *node)
{
    bool understood = false, ran_once = false;
    char refusal[512] = "";
    if (!has_cut_input(c, node)) return;
    c->any = true;
    for (uint32_t try = 0; try < TRIES && !understood; try++) {
        made_t made[WAYS] = {0};
        bool ran = is_of_use(c, node, try);
        for (uint32_t rank = 0; rank < WAYS && ran; rank++) {
            ran = run_on_rank(c, node, rank, try, &made[rank]);
            if (!ran && refusal[0] == '\0')
                (void)snprintf(refusal, sizeof(refusal), "%s", fail_reason());
        }
        ran_once = ran_once || ran;
        understood = ran && understand(c, node, made);
        for (uint32_t rank = 0; rank < WAYS; rank++)
            made_free(&made[rank]);
    }
    if (!understood && !ran_once)
        check_fault("%s: cut in two as shard and unit say, %s%s gets what it does not take: %s",
                    place_of(c), node->op->row.name, about_parameter(c, node), refusal);
    if (!understood)
        check_fault("%s: cut in two as shard and unit say, what %s%s gives is neither the whole, "
                    "nor its halves, nor parts of a sum",
                    place_of(c), node->op->row.name, about_parameter(c, node));
}

/* ---- parts and instances ---- */

/* False: it can't be cut in two. */
static bool follow_part(cut_t *c)
{
    tiny_use_t use = {.of = c->model, .part = c->part, .block = c->block};
    const node_run_how_t how = {.on = c->on, .others = c->plugins, .other_count = c->plugin_count};
    check_ok(tiny_model_record(&use, TINY_TOKENS, LH_DTYPE_F64, &c->r), "recording");
    experts_are_routed(c);
    const bool fits = divides(c);
    if (fits && node_run_new(&how, c->r, &c->whole) != LH_OK)
        check_skip("the reference device has no kernel for '%s' in double", node_run_lacking());
    if (fits) {
        c->along = check_memory(c->r->value_count, sizeof(*c->along));
        op_case_fill(c->r, 0, c->s->seed, &c->whole, 1);
        check_ok(node_run_go(c->whole, true), "forward");
        for (lh_value_t v = 1; v < c->r->value_count; v++)
            c->along[v] = c->r->values[v].kind == VALUE_PARAM
                              ? dimension_of(parameter_of(c, c->r->values[v].name))
                              : WHOLE;
        for (uint32_t n = 1; n < c->r->node_count; n++)
            follow_node(c, &c->r->nodes[n]);
        if (c->part != LH_PART_HEAD && c->along[c->r->output] != WHOLE)
            check_fault("%s: cut in two as shard and unit say, its output stays cut; expected the "
                        "whole, as behind a matrix of LH_SHARD_IN",
                        place_of(c));
        node_run_free(c->whole);
        mem_free(c->along);
    }
    recording_free(c->r);
    return fits;
}

static uint32_t instances_cut; /* of this check; a process each */

static void follow_model(subject_t *s, tiny_model_t *t)
{
    opened_t on;
    const plugin_t *reference = subject_reference(s);
    if (reference == NULL) check_skip("no reference device: %s", fail_reason());
    void *config = subject_config(s, reference);
    check_ok(opened_open(reference, check_host(), config, &on), "reference device");
    cut_t all = {.s = s, .model = t, .on = &on};
    all.plugins = subject_plugins(s, &all.plugin_count);
    for (uint32_t i = 0; i < t->parameters->blocks + 2; i++) {
        cut_t c = all;
        c.part = tiny_model_part(t, i, &c.block);
        instances_cut += follow_part(&c) && c.any;
    }
    opened_close(&on);
    mem_free(config);
}

void model_is_cut(subject_t *s)
{
    instances_cut = 0;
    tiny_model_each(s, follow_model);
    tiny_model_even(s, follow_model);
    if (instances_cut == 0)
        check_skip("no part of its small instances is cut in two: shard says none, or unit "
                   "does not divide");
}
