/* op_parts.c - what an op's row says that it stands for, beside what its kernels compute: what expand() records,
 * the calls of each way that it fuses, and the product that it says it is. A plugin's rows are believed where a
 * device lacks the kernel, so a wrong one would train wrong there and nowhere else. */
#include "op_parts.h"

#include <stdio.h>

#include <base/memory.h>
#include <graph/fusion.h>

#include "check.h"
#include "op_cases.h"
#include "op_ground.h"

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
        if (!op_ground_near(got[i], want[i], signs))
            check_fault("op '%s' on device %s gives %.9g in element %llu of '%s', %s gives %.9g",
                        op->row.name, on->plugin->name, got[i], (unsigned long long)i,
                        op->slot_name[op->in_count + slot], says, want[i]);
    mem_free(got);
    mem_free(want);
}

/* The first by kernels of `on`, the second by those of the reference device, on the same numbers:
 * their inputs are the first values of both. */
static void compare_made(op_ground_t *g, opened_t *on, const op_t *op, const made_t made[2],
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

static bool call_make(const op_ground_t *g, const op_t *op, uint32_t n, uint32_t turn, uint32_t as,
                      made_t *out)
{
    lh_value_t in[OP_SLOTS] = {0};
    void *guess = op_ground_attributes(op, turn);
    if (turn > 0 && guess == NULL) return false;
    const void *attributes = op->row.attributes_bytes > 0 ? guess : NULL;
    *out = (made_t){
        .r = op_ground_inputs(g, op, n, LH_DTYPE_F32, as == AS_ITSELF ? op_case_listed : NULL, in)};
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
static void compare_calls(op_ground_t *g, opened_t *on, const op_t *op, uint32_t as,
                          const char *says)
{
    for (uint32_t turn = 0; turn < op_ground_turns(op); turn++) {
        made_t made[2];
        uint32_t n = 0;
        const uint32_t most = op_ground_combinations(op);
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
    void *out = op_ground_attributes(op, 0);
    for (uint32_t i = 0; i < op->row.attribute_count; i++) {
        const lh_option_t *a = &op->row.attributes[i];
        const uint32_t others = values_beside(a);
        uint32_t moves = *turn <= others ? *turn : 0;
        *turn = *turn <= others ? 0 : *turn - others;
        for (; moves > 0; moves--)
            if (!op_ground_turn_attribute(a, out)) {
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
static bool way_make(const op_ground_t *g, const op_t *op, const op_pattern_t *way, uint32_t n,
                     uint32_t turn, bool fused, made_t *out)
{
    lh_value_t in[OP_SLOTS] = {0}, word[PATTERN_WORDS] = {0};
    bool taken = true;
    *out = (made_t){.r = op_ground_inputs(g, op, n, LH_DTYPE_F32, fused ? offers_any : NULL, in)};
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
static void compare_way(op_ground_t *g, opened_t *on, const op_t *op, uint32_t which)
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
        for (uint32_t n = 0; n < op_ground_combinations(op) && !compared; n++) {
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
static void stands_alike(op_ground_t *g, opened_t *on, const op_t *op)
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

void op_parts_check(subject_t *s)
{
    op_ground_t g;
    bool any = false;
    for (uint32_t i = 0; i < s->plugin->op_count; i++) {
        const lh_op_t *row = &s->plugin->ops[i];
        any = any || row->expand != NULL || row->fuses != NULL || row->product != NULL;
    }
    if (!any) check_skip("it brings no ops that stand for others");
    op_ground_open(s, &g);
    if (op_ground_devices(&g, true, stands_alike) == 0)
        check_skip("it has kernels for no device that is here");
    op_ground_close(&g);
}
