/* wrong_parts.c - ops and rules that are wrong in one thing. */
#include "wrong_plugin.h"

static void cost_nothing(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                         lh_cost_t *out)
{
    (void)attributes, (void)args, (void)arg_count;
    LH_FILL(lh_cost_t, out, .flops = -1);
}

/* Right: an op whose seed is the one of a step and nothing else. */
static lh_status_t draws_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                               uint32_t arg_count)
{
    (void)attributes;
    const lh_arg_t *seed = &args[1];
    if (seed->dtype != LH_DTYPE_I32 || seed->rank != 1 || seed->shape[0] != 4)
        return host->fail(host, LH_INVALID, "wrong.draws: seed is no [4] of I32");
    args[arg_count - 1] = args[0];
    return LH_OK;
}

static void draws_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                       lh_cost_t *out)
{
    (void)attributes, (void)args, (void)arg_count;
    LH_FILL(lh_cost_t, out, .flops = 1, .bytes = 1);
}

WRONG(an_op_that_draws)
{
    ops[it.op_count++] = (lh_op_t){.name = "wrong.draws",
                                   .slots = "x seed -> y",
                                   .help = "adds numbers that it draws",
                                   .flags = LH_OP_RANDOM,
                                   .shape = draws_shape,
                                   .cost = draws_cost};
}

WRONG(an_op_without_words)
{
    ops[0].formula = NULL;
}

WRONG(an_op_that_pays)
{
    ops[0].cost = cost_nothing;
}

static void gradient_as_it_comes(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                 const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
}

WRONG(a_gradient_as_it_comes)
{
    ops[0].gradient = gradient_as_it_comes;
}

WRONG(a_kernel_that_is_off)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].device, "cpu") == 0 && kernels[i].dtypes[0] == LH_DTYPE_F32) {
            right_row = kernels[i];
            kernels[i].launch = launch_and_add;
            return;
        }
}

static bool product_turned(const void *attributes, bool *transpose_a, bool *transpose_b)
{
    (void)attributes;
    *transpose_a = *transpose_b = false;
    return true;
}

WRONG(a_product_the_wrong_way_round)
{
    for (uint32_t i = 0; i < it.op_count; i++)
        if (ops[i].product != NULL) ops[i].product = product_turned;
}

WRONG(two_states_of_a_name)
{
    static lh_rule_state_t states[2];
    memcpy(states, rules[0].states, sizeof(states));
    memcpy(states[1].name, states[0].name, sizeof(states[0].name));
    rules[0].states = states;
}

static lh_value_t record_half(lh_graph_t *g, lh_value_t v)
{
    static const float half = 0.5f;
    const lh_value_t in[] = {v, g->api->constant(g, &half, 1)};
    return g->api->op(g, "scale", NULL, in, 2, NULL);
}

static lh_value_t record_scaled(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                lh_value_t grad, lh_value_t master, lh_value_t *states,
                                lh_value_t *value)
{
    return record_half(g,
                       right_plugin.rules[0].record(config, g, piece, grad, master, states, value));
}

static lh_value_t record_looking_back(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                      lh_value_t grad, lh_value_t master, lh_value_t *states,
                                      lh_value_t *value)
{
    const lh_value_t y = right_plugin.rules[0].record(config, g, piece, grad, master, states,
                                                      value);
    return lh_add(g, y, master);
}

WRONG(a_rule_that_looks_back)
{
    rules[0].record = record_looking_back;
}

WRONG(a_rule_that_never_waits)
{
    rules[0].record = record_scaled;
}

static lh_value_t record_by_place(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                  lh_value_t grad, lh_value_t master, lh_value_t *states,
                                  lh_value_t *value)
{
    lh_piece_t other = *piece;
    other.decay *= piece->begin == 0 ? 1 : 2;
    return right_plugin.rules[0].record(config, g, &other, grad, master, states, value);
}

WRONG(a_grain_that_lies)
{
    rules[0].record = record_by_place;
}

static lh_value_t record_by_dtype(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                  lh_value_t grad, lh_value_t master, lh_value_t *states,
                                  lh_value_t *value)
{
    lh_piece_t other = *piece;
    other.decay *= piece->value_dtype == LH_DTYPE_F32 ? 2 : 1;
    return right_plugin.rules[0].record(config, g, &other, grad, master, states, value);
}

static lh_value_t record_half_a_value(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                      lh_value_t grad, lh_value_t master, lh_value_t *states,
                                      lh_value_t *value)
{
    const lh_value_t y = right_plugin.rules[0].record(config, g, piece, grad, master, states,
                                                      value);
    *value = record_half(g, *value);
    return y;
}

WRONG(a_value_of_its_own)
{
    rules[0].record = record_half_a_value;
}

WRONG(another_decay_in_f32)
{
    rules[0].record = record_by_dtype;
}
