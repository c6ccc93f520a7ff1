/* recorder_test.c - what a recording holds, what is filled in, and how a wrong call is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/status.h>
#include <graph/fusion.h>
#include <graph/gradient.h>
#include <graph/op_table.h>
#include <graph/recorder.h>
#include <ops/ops_collective.h>

#include <longhaul/model.h>

#include <cmocka.h> /* last: it has a fail() of its own */

enum { TOKENS = 8, HIDDEN = 16, HEADS = 4, HEAD_DIM = 4 };

static op_table_t *ops;

static lh_status_t param_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    (void)context;
    shape[0] = shape[1] = HIDDEN;
    *rank = name[0] == 'w' ? 2 : 1; /* "wq" is a matrix, "norm" a vector */
    return LH_OK;
}

static recording_t *new_recording(lh_dtype_t compute)
{
    const recording_how_t how = {.ops = ops,
                                 .tokens = TOKENS,
                                 .sequences = 2,
                                 .max_documents = 5,
                                 .compute = compute,
                                 .accumulate = LH_DTYPE_F32,
                                 .param = param_shape};
    recording_t *r;
    assert_int_equal(recorder_new(&how, &r), LH_OK);
    return r;
}

static lh_value_t part_input(recording_t *r)
{
    const uint64_t shape[] = {TOKENS, HIDDEN};
    return recording_argument(r, r->how.compute, 2, shape);
}

/* An op of a plugin whose row fills in its attribute and knows when there is nothing to do. */
typedef struct times {
    uint32_t struct_size, factor; /* 0: as many as x has columns; 1: the op does nothing */
} times_t;

static lh_status_t times_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[1] = args[0];
    return LH_OK;
}

static void times_complete(void *attributes, const lh_arg_t *args)
{
    times_t *how = attributes;
    if (how->factor == 0) how->factor = (uint32_t)args[0].shape[1];
}

static bool times_one(const void *attributes)
{
    return ((const times_t *)attributes)->factor == 1;
}

/* One that lays rows of x where another op says. */
static lh_status_t lay_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[2] = args[0];
    return LH_OK;
}

/* One that stands for two activations and their product. */
static lh_status_t both_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[2] = args[0];
    return LH_OK;
}

/* One that stands for an activation that lives on, and its product, which it can add. */
static lh_status_t pair_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[2] = args[3] = args[0];
    return LH_OK;
}

/* One that works in place and would have more columns there than there are. */
static lh_status_t grow_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[1] = args[0];
    args[1].shape[1] *= 2;
    return LH_OK;
}

static const lh_op_t plugin_ops[] = {
    {.name = "acme.times",
     .slots = "x -> y",
     .attributes_bytes = sizeof(times_t),
     .shape = times_shape,
     .complete = times_complete,
     .vanishes = times_one},
    {.name = "acme.lay", .slots = "x to -> y", .shape = lay_shape, .flags = LH_OP_PLACES},
    {.name = "acme.grow", .slots = "x -> x", .shape = grow_shape},
    {.name = "acme.both",
     .slots = "a b -> y",
     .shape = both_shape,
     .fuses = "activate a -> u; activate b -> v; multiply u v -> y"},
    {.name = "acme.pair",
     .slots = "a b -> y z+",
     .shape = pair_shape,
     .fuses = "activate a -> y; multiply y b -> z"},
};
enum { PLUGIN_OPS = sizeof(plugin_ops) / sizeof(plugin_ops[0]) };

static int load(void **state)
{
    (void)state;
    assert_int_equal(op_table_new(&ops), LH_OK);
    assert_int_equal(op_table_add(ops, plugin_ops, sizeof(plugin_ops[0]), PLUGIN_OPS, "acme"),
                     LH_OK);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    op_table_free(ops);
    return 0;
}

static const graph_node_t *maker(const recording_t *r, lh_value_t v)
{
    return &r->nodes[r->values[v].node];
}

static void equal_sources_are_one_value(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const float a[] = {1, 2}, b[] = {1, 3};
    assert_int_equal(g->api->param(g, "wq"), g->api->param(g, "wq"));
    assert_int_not_equal(g->api->param(g, "wq"), g->api->param(g, "wk"));
    assert_int_equal(g->api->input(g, LH_INPUT_TOKENS), g->api->input(g, LH_INPUT_TOKENS));
    assert_int_equal(g->api->constant(g, a, 2), g->api->constant(g, a, 2));
    assert_int_not_equal(g->api->constant(g, a, 2), g->api->constant(g, b, 2));
    assert_int_not_equal(g->api->constant(g, a, 2), g->api->constant(g, a, 1));
    recording_free(r);
}

static void linear_is_a_matmul_with_b_transposed(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_BF16);
    lh_graph_t *g = &r->graph;
    const lh_value_t y = lh_linear(g, part_input(r), g->api->param(g, "wq"), 0);
    assert_string_equal(maker(r, y)->op->row.name, "matmul");
    assert_int_equal(((const lh_matmul_t *)maker(r, y)->attributes)->transpose_b, 1);
    assert_int_equal(r->values[y].arg.dtype, LH_DTYPE_BF16);
    recording_free(r);
}

static void inputs_left_out_are_the_ones_their_slots_name(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const float f[HEAD_DIM / 2] = {1, 0.5f};
    const lh_rope_t turn = {.struct_size = sizeof(turn), .heads = HEADS, .head_dim = HEAD_DIM};
    const lh_attention_t how = {.struct_size = sizeof(how), .heads = HEADS, .head_dim = HEAD_DIM};
    const lh_value_t q = lh_rotate(g, part_input(r), g->api->constant(g, f, 2), &turn);
    const lh_value_t y = lh_attend(g, q, q, q, &how);
    assert_int_equal(recording_status(r), LH_OK);

    const graph_value_t *positions = &r->values[maker(r, q)->slots[1]];
    const graph_value_t *starts = &r->values[maker(r, y)->slots[3]];
    assert_int_equal(positions->which, LH_INPUT_POSITIONS);
    assert_int_equal(positions->arg.shape[0], TOKENS);
    assert_int_equal(starts->which, LH_INPUT_STARTS);
    assert_int_equal(starts->arg.shape[0], 6);
    assert_int_equal(maker(r, y)->slots[4], 0); /* slopes? stay out */
    recording_free(r);
}

static void attributes_say_what_zero_stood_for(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const float f[HEAD_DIM / 2] = {1, 0.5f};
    const lh_rope_t turn = {.struct_size = sizeof(turn), .heads = HEADS, .head_dim = HEAD_DIM};
    const lh_attention_t how = {.struct_size = sizeof(how), .heads = HEADS, .head_dim = HEAD_DIM};
    const lh_value_t x = part_input(r);
    const lh_value_t q = lh_rotate(g, x, g->api->constant(g, f, 2), &turn);
    const lh_value_t y = lh_attend(g, q, q, q, &how);
    const lh_value_t e = lh_embed(g, 0, g->api->param(g, "wte"));
    assert_int_equal(((const lh_rope_t *)maker(r, q)->attributes)->pairs, HEAD_DIM / 2);
    assert_int_equal(((const lh_attention_t *)maker(r, y)->attributes)->kv_heads, HEADS);
    assert_int_equal(((const lh_rows_t *)maker(r, e)->attributes)->rows, HIDDEN);
    recording_free(r);
}

/* Known for the recording, not for each call; where it is not known what a call says stays. */
static void attention_is_told_that_documents_are_whole_rows(void **state)
{
    (void)state;
    for (uint32_t known = 0; known < 2; known++) {
        recording_t *r = new_recording(LH_DTYPE_F32);
        r->how.document_rows = known ? 7 : 0;
        lh_graph_t *g = &r->graph;
        const lh_attention_t how = {
            .struct_size = sizeof(how), .heads = HEADS, .head_dim = HEAD_DIM, .document_rows = 3};
        const lh_value_t x = part_input(r);
        const lh_value_t y = lh_attend(g, x, x, x, &how);
        assert_int_equal(recording_status(r), LH_OK);
        assert_int_equal(((const lh_attention_t *)maker(r, y)->attributes)->document_rows,
                         known ? 7 : 3);
        recording_free(r);
    }
}

static void outputs_named_like_an_input_lie_in_its_memory(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_BF16);
    lh_graph_t *g = &r->graph;
    const uint64_t n = 100;
    const lh_value_t grad = recording_argument(r, LH_DTYPE_F32, 1, &n);
    const lh_value_t master = recording_argument(r, LH_DTYPE_F32, 1, &n);
    const lh_sgd_t how = {.struct_size = sizeof(how)};
    const lh_value_t in[] = {grad, master};
    lh_value_t more[2];
    const lh_value_t updated = g->api->op(g, "sgd", &how, in, 2, more);
    assert_int_equal(recording_status(r), LH_OK);
    assert_int_equal(r->values[updated].arg.alias_slot, 2);
    assert_int_equal(more[0], 0); /* no m1 came in, so none goes out */
    assert_int_equal(r->values[more[1]].arg.dtype, LH_DTYPE_BF16); /* w: the compute dtype */
    recording_free(r);
}

static void communication_in_a_group_of_one_vanishes(void **state)
{
    (void)state;
    static const char *const names[] = {"all_reduce", "replicate", "reduce_scatter", "all_gather",
                                        "all_to_all"};
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const lh_value_t x = part_input(r);
    const op_collective_t one = {.struct_size = sizeof(one), .ways = 1};
    const op_collective_t two = {.struct_size = sizeof(two), .ways = 2};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const uint32_t nodes = r->node_count;
        assert_int_equal(g->api->op(g, names[i], &one, &x, 1, NULL), x);
        assert_int_equal(r->node_count, nodes);
        const lh_value_t y = g->api->op(g, names[i], &two, &x, 1, NULL);
        assert_int_not_equal(y, x);
        assert_int_equal(((const op_collective_t *)maker(r, y)->attributes)->bytes,
                         TOKENS * HIDDEN * 4);
    }
    const lh_value_t positions = g->api->input(g, LH_INPUT_POSITIONS);
    const lh_value_t all = g->api->op(g, "all_gather", &two, &positions, 1, NULL);
    assert_int_equal(((const op_collective_t *)maker(r, all)->attributes)->bytes, TOKENS * 4);
    recording_free(r);
}

/* ---- refusals ---- */

static lh_value_t call(recording_t *r, const char *op, const void *how, lh_value_t a, lh_value_t b,
                       lh_value_t c)
{
    const lh_value_t in[] = {a, b, c};
    return r->graph.api->op(&r->graph, op, how, in, c != 0 ? 3 : b != 0 ? 2 : 1, NULL);
}

static void unknown_op(recording_t *r)
{
    (void)call(r, "swish", NULL, part_input(r), 0, 0);
}
static void missing_input(recording_t *r)
{
    (void)call(r, "add", NULL, part_input(r), 0, 0);
}
static void too_many(recording_t *r)
{
    const lh_value_t x = part_input(r);
    (void)call(r, "add", NULL, x, x, x);
}
static void wrong_width(recording_t *r)
{
    const uint64_t shape[] = {TOKENS, HIDDEN + 1};
    const lh_value_t x = recording_argument(r, LH_DTYPE_F32, 2, shape);
    (void)lh_rms_norm(&r->graph, x, r->graph.api->param(&r->graph, "norm"), 1e-5);
}
static void wrong_matrix(recording_t *r)
{
    const uint64_t shape[] = {TOKENS, 3};
    const lh_value_t x = recording_argument(r, LH_DTYPE_F32, 2, shape);
    (void)lh_linear(&r->graph, x, r->graph.api->param(&r->graph, "wq"), 0);
}
static void wrong_dtype(recording_t *r)
{
    const uint64_t shape[] = {TOKENS, HIDDEN};
    const lh_value_t x = recording_argument(r, LH_DTYPE_BF16, 2, shape);
    (void)lh_linear(&r->graph, x, r->graph.api->param(&r->graph, "wq"), 0);
}
static void wrong_heads(recording_t *r)
{
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = 4, .kv_heads = 3, .head_dim = HEAD_DIM};
    const lh_value_t x = part_input(r);
    (void)lh_attend(&r->graph, x, x, x, &how);
}
static void order_that_nobody_made(recording_t *r)
{
    const lh_picks_t how = {sizeof(how), 1};
    const lh_value_t positions = r->graph.api->input(&r->graph, LH_INPUT_POSITIONS);
    (void)call(r, "gather_rows", &how, part_input(r), positions, 0);
}
static void places_that_nobody_made(recording_t *r)
{
    const lh_value_t positions = r->graph.api->input(&r->graph, LH_INPUT_POSITIONS);
    (void)call(r, "acme.lay", NULL, part_input(r), positions, 0);
}
static void output_larger_than_its_memory(recording_t *r)
{
    (void)call(r, "acme.grow", NULL, part_input(r), 0, 0);
}
static void unknown_value(recording_t *r)
{
    (void)lh_add(&r->graph, part_input(r), 77);
}
static bool any_adapted(void *context, const char *name, double *scale, bool *magnitude)
{
    (void)context, (void)name;
    *scale = 1;
    *magnitude = false;
    return true;
}
static void unknown_matrix_where_adapters_are(recording_t *r)
{
    r->how.adapted = any_adapted;
    (void)lh_linear(&r->graph, part_input(r), 0x7fffffff, 0);
}
static void unknown_input(recording_t *r)
{
    (void)r->graph.api->input(&r->graph, 9);
}
static void attributes_where_none_are(recording_t *r)
{
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    const lh_value_t x = part_input(r);
    (void)call(r, "add", &how, x, x, 0);
}
static void attributes_too_long(recording_t *r)
{
    const struct {
        uint32_t size, function;
        uint64_t unknown;
    } how = {16, LH_ACT_SILU, 1};
    (void)call(r, "activate", &how, part_input(r), 0, 0);
}
static void loss_that_is_no_number(recording_t *r)
{
    r->graph.api->loss(&r->graph, "z", part_input(r));
}
static void loss_of_whole_numbers(recording_t *r)
{
    const uint64_t one = 1;
    r->graph.api->loss(&r->graph, "z", recording_argument(r, LH_DTYPE_I32, 1, &one));
}
static void loss_of_no_value(recording_t *r)
{
    r->graph.api->loss(&r->graph, "z", 77);
}
static void sum_of_a_matrix(recording_t *r)
{
    r->graph.api->accumulate(&r->graph, "load", part_input(r));
}
static void sum_of_no_value(recording_t *r)
{
    r->graph.api->accumulate(&r->graph, "load", 77);
}
static void parameter_without_a_name(recording_t *r)
{
    (void)r->graph.api->param(&r->graph, "norm");
    (void)r->graph.api->param(&r->graph, NULL);
}
static void constant_of_nothing(recording_t *r)
{
    (void)r->graph.api->constant(&r->graph, NULL, 4);
}
static void op_without_a_name(recording_t *r)
{
    const lh_value_t x = part_input(r);
    (void)r->graph.api->op(&r->graph, NULL, NULL, &x, 1, NULL);
}
static void inputs_that_are_not_there(recording_t *r)
{
    (void)r->graph.api->op(&r->graph, "add", NULL, NULL, 2, NULL);
}
static void loss_without_a_name(recording_t *r)
{
    const uint64_t one = 1;
    r->graph.api->loss(&r->graph, NULL, recording_argument(r, LH_DTYPE_F32, 1, &one));
}
static void sum_without_a_name(recording_t *r)
{
    const uint64_t two = 2;
    r->graph.api->accumulate(&r->graph, NULL, recording_argument(r, LH_DTYPE_F32, 1, &two));
}
static void total_without_a_name(recording_t *r)
{
    (void)r->graph.api->total(&r->graph, NULL, 2);
}

static const struct {
    void (*record)(recording_t *r);
    const char *sentence;
} refusals[] = {
    {unknown_op, "there is no op 'swish' in the core or a loaded plugin"},
    {missing_input, "op add lacks its input b"},
    {too_many, "op add takes 2 inputs, 3 were given"},
    {wrong_width, "norm: rms_norm wants w of 17, or of a group's width that divides it, found 16"},
    {wrong_matrix, "wq: linear: input weight is F32 [16, 16], expected F32 [any, 3]"},
    {wrong_dtype, "wq: linear: input weight is F32 [16, 16], expected BF16 [any, 16]"},
    {wrong_heads, "attention: heads 4 is not a multiple of kv_heads 3"},
    {order_that_nobody_made,
     "gather_rows: input order is an input of the step, expected what another op made"},
    {places_that_nobody_made,
     "acme.lay: input to is an input of the step, expected what another op made"},
    {output_larger_than_its_memory,
     "op acme.grow: output x lies in its input's memory, expected its shape"},
    {unknown_value, "op add: input b is value 77, which does not exist"},
    {unknown_matrix_where_adapters_are,
     "op linear: input weight is value 2147483647, which does not exist"},
    {unknown_input, "there is no run-time input 9"},
    {attributes_where_none_are, "op add has no attributes, and some were given"},
    {attributes_too_long, "op activate has attributes of 8 bytes, 16 were given"},
    {loss_that_is_no_number, "loss z is not one F32 value"},
    {loss_of_whole_numbers, "loss z is not one F32 value"},
    {loss_of_no_value, "loss z is not one F32 value"},
    {sum_of_a_matrix, "what is added to load is not a vector of F32"},
    {sum_of_no_value, "what is added to load is not a vector of F32"},
    {parameter_without_a_name, "the name of a parameter is NULL"},
    {constant_of_nothing, "what a constant is made of is NULL"},
    {op_without_a_name, "the name of an op is NULL"},
    {inputs_that_are_not_there, "the list of an op's inputs is NULL"},
    {loss_without_a_name, "the name of a loss is NULL"},
    {sum_without_a_name, "the name of a sum is NULL"},
    {total_without_a_name, "the name of a sum is NULL"},
};

static void a_call_that_cannot_be_recorded_is_remembered_with_its_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        recording_t *r = new_recording(LH_DTYPE_F32);
        refusals[i].record(r);
        assert_int_equal(lh_add(&r->graph, part_input(r), part_input(r)), 0);
        fail_clear();
        assert_int_not_equal(recording_status(r), LH_OK);
        assert_string_equal(fail_reason(), refusals[i].sentence);
        recording_free(r);
    }
}

static void places_that_another_op_made_are_taken(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    const lh_top_k_t how = {.struct_size = sizeof(how), .k = 2};
    const lh_value_t x = part_input(r);
    lh_value_t ids = 0;
    (void)r->graph.api->op(&r->graph, "top_k", &how, &x, 1, &ids);
    assert_int_not_equal(call(r, "acme.lay", NULL, x, ids, 0), 0);
    assert_int_equal(recording_status(r), LH_OK);
    recording_free(r);
}

static void the_sentence_begins_with_the_part(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    assert_int_equal(recording_status_of(r, LH_PART_BLOCK, 3), LH_OK);
    wrong_width(r);
    assert_int_equal(recording_status_of(r, LH_PART_BLOCK, 3), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "block 3, norm: rms_norm wants w of 17, or of a group's width "
                        "that divides it, found 16");
    assert_int_equal(recording_status_of(r, LH_PART_HEAD, 0), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "head, norm: "));
    recording_free(r);
}

/* ---- what is fused ---- */

static bool any_call(void *device, const op_t *op, const void *attributes, const lh_arg_t *args)
{
    (void)device, (void)op, (void)attributes, (void)args;
    return true;
}

/* Of an activation times itself the two that the pattern names are one node, which stays as it is. */
static void a_node_is_one_call_of_a_pattern(void **state)
{
    (void)state;
    for (uint32_t apart = 0; apart < 2; apart++) {
        recording_t *r = new_recording(LH_DTYPE_F32);
        lh_graph_t *g = &r->graph;
        const lh_value_t x = part_input(r), u = lh_activate(g, x, LH_ACT_SILU);
        const lh_value_t v = apart ? lh_activate(g, x, LH_ACT_TANH) : u;
        r->output = lh_multiply(g, u, v);
        r->how.offers = any_call;
        assert_int_equal(fusion_apply(r), LH_OK);
        assert_int_equal(r->node_count, apart ? 2 : 3); /* node 0 is none */
        assert_string_equal(maker(r, r->output)->op->row.name, apart ? "acme.both" : "multiply");
        recording_free(r);
    }
}

/* The fused op stands where the activation stood: there the sum that the product is added onto must have begun. */
static void a_fused_op_adds_onto_what_is_there_before_it(void **state)
{
    (void)state;
    for (uint32_t before = 0; before < 2; before++) {
        recording_t *r = new_recording(LH_DTYPE_F32);
        lh_graph_t *g = &r->graph;
        const lh_value_t x = part_input(r);
        const lh_value_t early = lh_activate(g, x, LH_ACT_TANH), u = lh_activate(g, x, LH_ACT_SILU);
        const lh_value_t late = lh_activate(g, x, LH_ACT_GELU), z = lh_multiply(g, u, x);
        r->nodes[r->values[z].node].adds_to[r->values[z].slot] = before ? early : late;
        r->output = z;
        r->how.offers = any_call;
        assert_int_equal(fusion_apply(r), LH_OK);
        assert_string_equal(maker(r, z)->op->row.name, before ? "acme.pair" : "multiply");
        assert_int_equal(maker(r, z)->adds_to[r->values[z].slot], before ? early : late);
        recording_free(r);
    }
}

/* ---- equality ---- */

typedef struct variant {
    double epsilon;
    const char *weight;
    float constant;
    uint32_t function;
    lh_dtype_t dtype;
} variant_t;

static recording_t *record_variant(const variant_t *v)
{
    recording_t *r = new_recording(v->dtype);
    lh_graph_t *g = &r->graph;
    const lh_value_t x = part_input(r);
    const lh_value_t n = lh_rms_norm(g, x, g->api->param(g, "norm"), v->epsilon);
    const lh_value_t y = lh_linear(g, n, g->api->param(g, v->weight), 0);
    const float factors[HIDDEN] = {v->constant};
    r->output = lh_multiply(g, lh_activate(g, y, v->function),
                            g->api->constant(g, factors, HIDDEN));
    assert_int_equal(recording_status(r), LH_OK);
    return r;
}

static void recordings_are_equal_when_nothing_differs(void **state)
{
    (void)state;
    static const variant_t usual = {1e-5, "wq", 1, LH_ACT_SILU, LH_DTYPE_F32};
    static const variant_t others[] = {
        {1e-6, "wq", 1, LH_ACT_SILU, LH_DTYPE_F32},  {1e-5, "wk", 1, LH_ACT_SILU, LH_DTYPE_F32},
        {1e-5, "wq", 2, LH_ACT_SILU, LH_DTYPE_F32},  {1e-5, "wq", 1, LH_ACT_GELU, LH_DTYPE_F32},
        {1e-5, "wq", 1, LH_ACT_SILU, LH_DTYPE_BF16},
    };
    static const char *const in[] = {"rms_norm", "matmul", "multiply", "activate", "rms_norm"};
    recording_t *a = record_variant(&usual), *b = record_variant(&usual);
    assert_true(recording_equal(a, b));
    assert_int_equal(recording_difference(a, b), 0);
    (void)lh_activate(&b->graph, b->output, LH_ACT_TANH);
    assert_int_equal(recording_difference(a, b), a->node_count);
    assert_int_equal(recording_difference(b, a), a->node_count);
    recording_free(b);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        b = record_variant(&others[i]);
        assert_false(recording_equal(a, b));
        assert_string_equal(a->nodes[recording_difference(a, b)].op->row.name, in[i]);
        recording_free(b);
    }
    recording_free(a);
}

/* ---- the reverse pass ---- */

static bool want(void *context, const char *name)
{
    return strcmp(context, name) == 0;
}

static lh_value_t seed_of(recording_t *r)
{
    const lh_arg_t y = r->values[r->output].arg;
    return recording_argument(r, r->how.compute, y.rank, y.shape);
}

static void only_what_is_wanted_has_a_gradient(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_BF16);
    lh_graph_t *g = &r->graph;
    const lh_value_t x = part_input(r);
    const lh_value_t a = lh_linear(g, x, g->api->param(g, "wq"), 0);
    r->output = lh_linear(g, lh_activate(g, a, LH_ACT_SILU), g->api->param(g, "wk"), 0);
    const uint32_t forward = r->node_count;
    lh_value_t gx;
    assert_int_equal(gradient_append(r, seed_of(r), 0, want, "wk", &gx), LH_OK);
    assert_int_equal(gx, 0);
    assert_int_equal(r->node_count, forward + 1); /* one matmul: gy' a */
    const graph_value_t *found = &r->values[r->nodes[forward].slots[5]];
    assert_int_equal(found->kind, VALUE_GRADIENT);
    assert_string_equal(found->name, "wk");
    assert_int_equal(found->arg.dtype, LH_DTYPE_F32); /* the accumulation dtype */
    assert_true(r->nodes[forward].backward);
    recording_free(r);
}

static void a_loss_is_seeded_with_one(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const uint64_t one = 1;
    const lh_value_t x = recording_argument(r, LH_DTYPE_F32, 1, &one);
    const lh_value_t squared = lh_multiply(g, x, x);
    g->api->loss(g, "square", squared);
    lh_value_t gx;
    assert_int_equal(gradient_append(r, 0, x, want, "", &gx), LH_OK);
    const lh_value_t seed = r->nodes[2].slots[0];
    assert_int_equal(r->values[seed].kind, VALUE_CONSTANT);
    assert_true(r->values[seed].constant[0] == 1);
    assert_int_not_equal(gx, 0);
    recording_free(r);
}

static void an_op_without_a_gradient_is_refused_by_name(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const lh_value_t logits = lh_linear(g, part_input(r), g->api->param(g, "wq"), 0);
    const lh_value_t stats = g->api->op(g, "ce_stats", NULL, &logits, 1, NULL);
    g->api->loss(g, "ce", g->api->op(g, "ce_loss", NULL, &stats, 1, NULL));
    lh_value_t none;
    assert_int_equal(gradient_append(r, 0, 0, want, "wq", &none), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(),
                        "op ce_loss has no gradient, and a parameter that is trained "
                        "or the part's input lies behind it");
    recording_free(r);
}

static void a_gradient_through_a_statistic_is_refused(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    const lh_value_t x = part_input(r);
    const lh_value_t in[] = {x, g->api->param(g, "norm")};
    lh_value_t rstd;
    (void)g->api->op(g, "rms_norm", &how, in, 2, &rstd);
    r->output = lh_add(g, rstd, rstd);
    lh_value_t gx;
    assert_int_equal(gradient_append(r, seed_of(r), x, want, "norm", &gx), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "op rms_norm has no gradient for its input x here");
    recording_free(r);
}

static void a_plugins_row_completes_its_attributes_and_says_when_it_does_nothing(void **state)
{
    (void)state;
    recording_t *r = new_recording(LH_DTYPE_F32);
    lh_graph_t *g = &r->graph;
    const lh_value_t x = part_input(r);
    const times_t how = {sizeof(how), 0}, once = {sizeof(once), 1};
    const lh_value_t y = g->api->op(g, "acme.times", &how, &x, 1, NULL);
    assert_int_not_equal(y, x);
    assert_int_equal(((const times_t *)maker(r, y)->attributes)->factor, HIDDEN);
    const uint32_t nodes = r->node_count;
    assert_int_equal(g->api->op(g, "acme.times", &once, &x, 1, NULL), x);
    assert_int_equal(r->node_count, nodes);
    recording_free(r);
}

static void record_everything(recording_t *r)
{
    lh_graph_t *g = &r->graph;
    const lh_value_t x = part_input(r);
    const lh_value_t n = lh_rms_norm(g, x, g->api->param(g, "norm"), 1e-5);
    r->output = lh_add(g, x, lh_linear(g, n, g->api->param(g, "wq"), 0));
    lh_value_t gx;
    if (r->output == 0) return;
    const lh_value_t seed = seed_of(r);
    if (seed == 0) return;
    (void)(gradient_append(r, seed, x, want, "wq", &gx) == LH_OK);
}

static void a_recording_that_finds_no_memory_says_so_and_loses_none(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 80; n++) {
        recording_t *r = new_recording(LH_DTYPE_F32);
        mem_fail_at(n, false);
        record_everything(r);
        mem_fail_at(0, false);
        assert_true(r->status == LH_OK || r->status == LH_NO_MEMORY);
        recording_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_sources_are_one_value),
        cmocka_unit_test(linear_is_a_matmul_with_b_transposed),
        cmocka_unit_test(inputs_left_out_are_the_ones_their_slots_name),
        cmocka_unit_test(attributes_say_what_zero_stood_for),
        cmocka_unit_test(attention_is_told_that_documents_are_whole_rows),
        cmocka_unit_test(outputs_named_like_an_input_lie_in_its_memory),
        cmocka_unit_test(communication_in_a_group_of_one_vanishes),
        cmocka_unit_test(a_call_that_cannot_be_recorded_is_remembered_with_its_reason),
        cmocka_unit_test(places_that_another_op_made_are_taken),
        cmocka_unit_test(the_sentence_begins_with_the_part),
        cmocka_unit_test(a_node_is_one_call_of_a_pattern),
        cmocka_unit_test(a_fused_op_adds_onto_what_is_there_before_it),
        cmocka_unit_test(recordings_are_equal_when_nothing_differs),
        cmocka_unit_test(only_what_is_wanted_has_a_gradient),
        cmocka_unit_test(a_loss_is_seeded_with_one),
        cmocka_unit_test(an_op_without_a_gradient_is_refused_by_name),
        cmocka_unit_test(a_gradient_through_a_statistic_is_refused),
        cmocka_unit_test(a_plugins_row_completes_its_attributes_and_says_when_it_does_nothing),
        cmocka_unit_test(a_recording_that_finds_no_memory_says_so_and_loses_none),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
