/* wrong_details.c - ops, rules and functions that are wrong in one thing, found by one check each. */
#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "wrong_plugin.h"

/* ---- ops; the right ones are acme.swish and its gradient ---- */

static lh_status_t shape_silently(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                  uint32_t arg_count)
{
    (void)host;
    if (args[0].rank != 2) return LH_INVALID;
    return right_plugin.ops[0].shape(host, attributes, args, arg_count);
}
WRONG(a_shape_refused_without_a_word)
{
    ops[0].shape = shape_silently;
}

static lh_status_t shape_by_division(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                     uint32_t arg_count)
{
    volatile int *nowhere = NULL;
    if (args[0].rank == 0) *nowhere = 1;
    return right_plugin.ops[0].shape(host, attributes, args, arg_count);
}
WRONG(a_shape_that_crashes)
{
    ops[0].shape = shape_by_division;
}

WRONG(an_op_without_a_cost)
{
    ops[0].cost = NULL;
}

static void cost_of_no_number(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                              lh_cost_t *out)
{
    (void)attributes, (void)args, (void)arg_count;
    LH_FILL(lh_cost_t, out, .flops = NAN, .bytes = 1);
}
WRONG(a_cost_that_is_no_number)
{
    ops[0].cost = cost_of_no_number;
}

static void gradient_of_nothing(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward, (void)from, (void)wanted, (void)into;
}
WRONG(a_gradient_of_nothing)
{
    ops[0].gradient = gradient_of_nothing;
}

static void gradient_twice(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    right_plugin.ops[0].gradient(g, attributes, forward, from, wanted, into);
    if (into[0] != 0) into[0] = lh_add(g, into[0], into[0]);
}
WRONG(a_gradient_twice)
{
    ops[0].gradient = gradient_twice;
}

/* Of steepness 1, whatever the model asks for. */
static void gradient_forgets(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                             const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    unsigned char plain[64] = {0};
    const double one = 1;
    uint32_t size;
    memcpy(&size, attributes, sizeof(size));
    memcpy(plain, attributes, size < sizeof(plain) ? size : sizeof(plain));
    memcpy(plain + ops[0].attributes[0].offset, &one, sizeof(one));
    right_plugin.ops[0].gradient(g, plain, forward, from, wanted, into);
}
WRONG(a_gradient_that_forgets_an_attribute)
{
    ops[0].gradient = gradient_forgets;
}

static void gradient_of_defaults(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                 const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    const lh_value_t in[] = {forward[0], from[0]};
    (void)attributes;
    if (wanted[0]) into[0] = g->api->op(g, "acme.swish_grad", attributes, in, 2, NULL);
}
WRONG(a_gradient_of_inputs_exchanged)
{
    ops[0].gradient = gradient_of_defaults;
}

/* Kernels: all rows, whatever the device and dtype, launch as the right one does, and more. */
static lh_status_t (*right_launch[MOST])(lh_prepared_t *k, const lh_launch_t *call);
static lh_kernel_desc_t last; /* the kernel that was prepared last */
static lh_arg_t last_args[8];

/* As the first row of that op: all of an op's have the same. */
static lh_status_t right_prepare(const lh_host_t *host, lh_device_t *d,
                                 const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                 lh_prepared_t **out)
{
    uint32_t i = 0;
    while (i + 1 < right_plugin.kernel_count && strcmp(right_plugin.kernels[i].op, desc->op) != 0)
        i++;
    return right_plugin.kernels[i].prepare(host, d, desc, plan, out);
}

static lh_status_t prepare_and_note(const lh_host_t *host, lh_device_t *d,
                                    const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                    lh_prepared_t **out)
{
    last = *desc;
    memcpy(last_args, desc->args, desc->arg_count * sizeof(last_args[0]));
    return right_prepare(host, d, desc, plan, out);
}

static lh_status_t prepare_dense(const lh_host_t *host, lh_device_t *d,
                                 const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                 lh_prepared_t **out)
{
    lh_kernel_desc_t dense = *desc;
    lh_arg_t args[8];
    memcpy(args, desc->args, desc->arg_count * sizeof(args[0]));
    for (uint32_t i = 0; i < desc->arg_count; i++)
        args[i].stride[0] = args[i].shape[1];
    dense.args = args;
    return right_prepare(host, d, &dense, plan, out);
}

static lh_status_t prepare_wide(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                                lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    lh_kernel_desc_t wide = *desc;
    lh_arg_t args[8];
    memcpy(args, desc->args, desc->arg_count * sizeof(args[0]));
    if (args[0].stride[0] > args[0].shape[1]) args[0].shape[1]++;
    wide.args = args;
    return right_prepare(host, d, &wide, plan, out);
}

static void prepare_by(lh_status_t (*prepare)(const lh_host_t *, lh_device_t *,
                                              const lh_kernel_desc_t *, lh_kernel_plan_t *,
                                              lh_prepared_t **))
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        kernels[i].prepare = prepare;
}

WRONG(rows_that_must_touch)
{
    prepare_by(prepare_dense);
}
WRONG(a_column_too_many)
{
    prepare_by(prepare_wide);
}

/* The last element of the first row, or of the first column, into the second. */
static void mix(const lh_launch_t *call, bool columns)
{
    const uint32_t out = call->arg_count - 1;
    const uint64_t size = last_args[0].dtype == LH_DTYPE_F64   ? 8
                          : last_args[0].dtype == LH_DTYPE_F32 ? 4
                                                               : 2;
    const uint64_t pitch = last_args[out].stride[0] * size;
    char *to = (char *)call->args[out].address + (columns ? size : pitch);
    if (last_args[0].shape[0] < 2) return;
    memcpy(to, call->args[0].address, size); /* of the input's first row and column */
}

/* One launch for each row of the table, as a kernel does not know which it is. */
static lh_status_t (*launch_of(const lh_launch_t *call))(lh_prepared_t *, const lh_launch_t *)
{
    (void)call;
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, last.op) == 0 && kernels[i].dtypes[0] == last_args[0].dtype &&
            strcmp(kernels[i].device, "reference") == 0)
            return right_launch[i];
    return right_launch[0];
}

static lh_status_t launch_mixing_rows(lh_prepared_t *k, const lh_launch_t *call)
{
    const lh_status_t status = launch_of(call)(k, call);
    mix(call, false);
    return status;
}

static lh_status_t launch_mixing_columns(lh_prepared_t *k, const lh_launch_t *call)
{
    const lh_status_t status = launch_of(call)(k, call);
    mix(call, true);
    return status;
}

static lh_status_t launch_for_ever(lh_prepared_t *k, const lh_launch_t *call)
{
    (void)k, (void)call;
    while (pause() != 0) {
    }
    return LH_OK;
}

static lh_status_t launch_and_crash(lh_prepared_t *k, const lh_launch_t *call)
{
    (void)k, (void)call;
    abort();
}

/* On the reference device alone, so that no other differs from it; its gradient goes: what the
 * mixing does to slopes is not the fault that is looked for. */
static void launch_by(lh_status_t (*launch)(lh_prepared_t *, const lh_launch_t *))
{
    prepare_by(prepare_and_note);
    uint32_t count = 0;
    for (uint32_t i = 0; i < it.kernel_count; i++) {
        if (strcmp(kernels[i].device, "reference") != 0) continue;
        kernels[count] = kernels[i];
        right_launch[count] = kernels[i].launch;
        kernels[count++].launch = launch;
    }
    it.kernel_count = count;
    ops[0].gradient = NULL;
}

WRONG(rows_that_mix)
{
    launch_by(launch_mixing_rows);
    ops[0].flags = LH_OP_ROWS;
}
WRONG(columns_that_mix)
{
    launch_by(launch_mixing_columns);
    ops[0].flags = LH_OP_COLUMNS;
    ops[1].flags = LH_OP_COLUMNS;
}
WRONG(a_kernel_that_hangs)
{
    launch_by(launch_for_ever);
}
WRONG(a_kernel_that_crashes)
{
    launch_by(launch_and_crash);
}

/* x s(beta x) is no gelu, and that of steepness 1 a silu alone. */
static void expand_to_gelu(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                           lh_value_t *out)
{
    (void)attributes;
    out[0] = lh_activate(g, in[0], LH_ACT_GELU);
}

WRONG(an_expansion_to_another_function)
{
    ops[0].expand = expand_to_gelu;
}

static bool fuse_any_function(const void *const *calls, void *out)
{
    static const double steepness = 1;
    (void)calls;
    memcpy((char *)out + 8, &steepness, sizeof(steepness));
    return true;
}

WRONG(a_pattern_of_another_function)
{
    ops[0].fuses = "activate x -> y";
    ops[0].fuse = fuse_any_function;
}

WRONG(an_attribute_without_help)
{
    static lh_option_t attributes[4];
    memcpy(attributes, ops[0].attributes, ops[0].attribute_count * sizeof(attributes[0]));
    attributes[0].help = "";
    ops[0].attributes = attributes;
}
WRONG(slots_that_are_no_list)
{
    ops[0].slots = "x y";
}
WRONG(an_op_of_the_cores_name)
{
    ops[0].name = "swish";
}

/* ---- rules; the right ones are adamw and sgd ---- */

static lh_rule_state_t states[4];

static lh_rule_state_t *state_of_first(void)
{
    memcpy(states, rules[0].states, rules[0].state_count * sizeof(states[0]));
    rules[0].states = states;
    return states;
}

WRONG(a_state_in_capitals)
{
    memcpy(state_of_first()->name, "ExpAvg", 7);
}
/* Right: a state may be narrower than the master. */
WRONG(a_state_in_bf16)
{
    state_of_first()->dtype = LH_DTYPE_BF16;
}
WRONG(a_state_that_begins_below_zero)
{
    state_of_first()[1].initial = -1; /* of exp_avg_sq, whose root is taken */
}
/* Right: those that its op does not know stay as they are. */
WRONG(nine_states)
{
    static lh_rule_state_t many[9];
    memcpy(many, rules[0].states, rules[0].state_count * sizeof(many[0]));
    for (uint32_t i = rules[0].state_count; i < 9; i++) {
        many[i] = many[0];
        memcpy(many[i].name, (const char[]){'s', (char)('0' + i), '\0'}, 3);
    }
    rules[0].states = many;
    rules[0].state_count = 9;
}
WRONG(a_state_of_no_dtype)
{
    state_of_first()->dtype = 77;
}
WRONG(a_state_of_no_extent)
{
    state_of_first()->extent = 9;
}
WRONG(a_grain_of_no_kind)
{
    rules[0].grain = 9;
}
WRONG(blocks_of_no_elements)
{
    rules[0].grain = LH_GRAIN_BLOCK;
    rules[0].grain_elements = 0;
}
WRONG(a_rule_without_help)
{
    rules[0].help = NULL;
}

static lh_status_t check_refusing(const lh_host_t *host, const void *config)
{
    (void)config;
    return host->fail(host, LH_INVALID, "no momentum is good enough");
}
WRONG(defaults_that_are_refused)
{
    rules[0].check = check_refusing;
}

#define RULES(fault, body)                                                                       \
    static lh_value_t record_##fault(const void *config, lh_graph_t *g, const lh_piece_t *piece, \
                                     lh_value_t grad, lh_value_t master, lh_value_t *old,        \
                                     lh_value_t *value)                                          \
    {                                                                                            \
        body;                                                                                    \
        return right_plugin.rules[0].record(config, g, piece, grad, master, old, value);         \
    }                                                                                            \
    WRONG(fault)                                                                                 \
    {                                                                                            \
        rules[0].record = record_##fault;                                                        \
    }

RULES(gradients_bent_before_their_scale, grad = lh_activate(g, grad, LH_ACT_TANH))
RULES(an_update_of_nothing, return master)
RULES(an_update_that_is_none, return 0)
RULES(vectors_that_crash, if (piece->rows == 1) abort())
RULES(a_rule_that_hangs, while (piece->elements > 0 && pause() != 0){})
RULES(vectors_refused_without_a_word, if (piece->rows == 1) return 0)
RULES(wide_ones_refused_by_an_op,
      if (piece->columns == 40) return lh_add(g, grad,
                                              g->api->constant(g, (const float[]){1, 2}, 2)))
RULES(a_parameter_by_its_name, (void)g->api->param(g, "embed"))

static lh_value_t record_states_exchanged(const void *config, lh_graph_t *g,
                                          const lh_piece_t *piece, lh_value_t grad,
                                          lh_value_t master, lh_value_t *old, lh_value_t *value)
{
    const lh_value_t y = right_plugin.rules[0].record(config, g, piece, grad, master, old, value);
    if (piece->rows == 1) old[0] = g->api->constant(g, (const float[]){0, 0, 0}, 3);
    return y;
}
WRONG(a_state_of_another_shape)
{
    rules[0].record = record_states_exchanged;
}

static lh_value_t record_by_length(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                   lh_value_t grad, lh_value_t master, lh_value_t *old,
                                   lh_value_t *value)
{
    lh_piece_t other = *piece;
    other.decay *= 1 + (double)piece->elements;
    return right_plugin.rules[0].record(config, g, &other, grad, master, old, value);
}
WRONG(decay_by_length)
{
    rules[0].record = record_by_length;
}

/* ---- functions ---- */

#define FUNCTION(fault, ret, body)                                                                \
    LH_FUNCTION(ret, f_##fault, (u64, step))                                                      \
    {                                                                                             \
        body;                                                                                     \
    }                                                                                             \
    WRONG(fault)                                                                                  \
    {                                                                                             \
        static const lh_function_t row[] = {                                                      \
            {"given", f_##fault##_signature, (void (*)(void))f_##fault, "a number of the step"}}; \
        it.functions = row;                                                                       \
        it.function_size = sizeof(row[0]);                                                        \
        it.function_count = 1;                                                                    \
    }

FUNCTION(
    a_function_that_hangs, f64, while (step > 0 && pause() != 0) {} return 1)
FUNCTION(a_function_that_leaves, f64, if (step > 0) _exit(0); return 1)
FUNCTION(a_function_that_aborts, f64, if (step > 0) abort(); return 1)
FUNCTION(a_function_that_counts, f64, static double times; return times += (double)step)
FUNCTION(a_function_that_opens, u64, return (uint64_t)open("/dev/null", O_RDONLY) * 0 + step)
FUNCTION(a_function_that_fails_silently, status, return step > 0 ? LH_IO : LH_OK)
FUNCTION(a_function_that_rounds_up, f64, (void)fesetround(FE_UPWARD); return (double)step)

#define FUNCTION_ROW(fault, ...)                          \
    WRONG(fault)                                          \
    {                                                     \
        static const lh_function_t row[] = {__VA_ARGS__}; \
        it.functions = row;                               \
        it.function_size = sizeof(row[0]);                \
        it.function_count = sizeof(row) / sizeof(row[0]); \
    }

LH_FUNCTION(f64, twice_the_step, (u64, step))
{
    return 2 * (double)step;
}

#define FN (void (*)(void)) twice_the_step
FUNCTION_ROW(a_signature_of_no_type, {"given", "f64(wide step)", FN, "a number of the step"})
FUNCTION_ROW(a_signature_that_ends_early, {"given", "f64(u64 step", FN, "a number of the step"})
FUNCTION_ROW(a_function_without_help, {"given", "f64(u64 step)", FN, NULL})
FUNCTION_ROW(a_function_that_is_none, {"given", "f64(u64 step)", NULL, "a number of the step"})
FUNCTION_ROW(a_function_with_a_full_stop,
             {"given", twice_the_step_signature, FN, "a number of the step."})
