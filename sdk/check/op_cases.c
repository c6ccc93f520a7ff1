/* op_cases.c - a line or two of recording for each op. */
#include "op_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/philox.h>
#include <graph/fusion.h>
#include <graph/gradient.h>
#include <graph/recorder.h>
#include <longhaul/dtype.h>

#include "check.h"

enum { VOCABULARY = 11, LABELS = 5, HEAD_DIM = 6 };

lh_value_t op_case_param(lh_graph_t *g, const char *name, uint64_t rows, uint64_t columns,
                         uint64_t depth)
{
    char text[96];
    const uint64_t shape[] = {rows, columns, depth};
    int length = snprintf(text, sizeof(text), "%s", name);
    for (uint32_t i = 0; i < 3 && shape[i] != 0; i++)
        length += snprintf(text + length, sizeof(text) - (size_t)length, "%c%llu",
                           i == 0 ? ' ' : 'x', (unsigned long long)shape[i]);
    return g->api->param(g, text);
}

lh_status_t op_case_shape(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                          uint32_t *rank)
{
    (void)context;
    char *at = strchr(name, ' ');
    *rank = 0;
    for (; at != NULL && *at != '\0' && *rank < LH_MAX_RANK;)
        shape[(*rank)++] = strtoull(at + 1, &at, 10);
    return *rank > 0 ? LH_OK : fail(LH_INVALID, "parameter '%s' has no shape in its name", name);
}

#define W(name, rows, columns) op_case_param(g, name, rows, columns, 0)
#define CASE(name)                                                          \
    static lh_value_t name(LH_UNUSED lh_graph_t *g, LH_UNUSED lh_value_t x, \
                           LH_UNUSED uint64_t rows, LH_UNUSED uint64_t width)

static lh_value_t op(lh_graph_t *g, const char *name, const void *attributes, lh_value_t a,
                     lh_value_t b, lh_value_t c, lh_value_t d)
{
    const lh_value_t in[] = {a, b, c, d};
    const uint32_t count = d != 0 ? 4 : c != 0 ? 3 : b != 0 ? 2 : 1;
    return g->api->op(g, name, attributes, in, count, NULL);
}

CASE(linear)
{
    return lh_linear(g, x, W("w", 10, width), 0);
}
CASE(linear_bias)
{
    return lh_linear(g, x, W("w", 10, width), W("b", 10, 0));
}
CASE(two_users)
{
    return lh_add(g, lh_linear(g, x, W("w", width, width), 0),
                  lh_linear(g, x, W("u", width, width), 0));
}
CASE(silu)
{
    return lh_activate(g, x, LH_ACT_SILU);
}
CASE(gelu)
{
    return lh_activate(g, x, LH_ACT_GELU);
}
CASE(gelu_tanh)
{
    return lh_activate(g, x, LH_ACT_GELU_TANH);
}
CASE(tanh_)
{
    return lh_activate(g, x, LH_ACT_TANH);
}
CASE(rms)
{
    return lh_rms_norm(g, x, W("w", width, 0), 1e-5);
}
CASE(rms_one_plus)
{
    const lh_norm_t how = {sizeof(how), 1, 1e-5};
    return op(g, "rms_norm", &how, x, W("w", width, 0), 0, 0);
}
CASE(layer)
{
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    return op(g, "layer_norm", &how, x, W("w", width, 0), W("b", width, 0), 0);
}
CASE(layer_no_bias)
{
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    return op(g, "layer_norm", &how, x, W("w", width, 0), 0, 0);
}
CASE(sum)
{
    return lh_add(g, x, W("a", rows, width));
}
CASE(product)
{
    return lh_multiply(g, x, W("a", rows, width));
}
CASE(product_of_columns)
{
    return lh_multiply(g, x, W("a", width, 0));
}
CASE(product_of_rows)
{
    return lh_multiply(g, x, W("a", rows, 1));
}
CASE(magnitude)
{
    return lh_multiply(
        g, lh_linear(g, x, W("w", 10, width), 0),
        op(g, "dora_scale", NULL, W("u", 10, width), W("v", 10, width), W("m", 10, 0), 0));
}
CASE(scaled)
{
    static const float factor = 0.375f;
    return op(g, "scale", NULL, x, g->api->constant(g, &factor, 1), 0, 0);
}
CASE(table)
{
    return lh_embed(g, g->api->input(g, LH_INPUT_TOKENS), W("table", VOCABULARY, width));
}

static lh_value_t rotated(lh_graph_t *g, uint64_t rows, uint32_t pairs, uint32_t interleaved)
{
    static const float frequencies[] = {1, 0.25f, 0.0625f};
    const lh_rope_t how = {.struct_size = sizeof(how),
                           .heads = 2,
                           .head_dim = HEAD_DIM,
                           .pairs = pairs,
                           .interleaved = interleaved};
    return lh_rotate(g, W("q", rows, 2 * HEAD_DIM), g->api->constant(g, frequencies, pairs), &how);
}
CASE(rope_half)
{
    return rotated(g, rows, 3, 0);
}
CASE(rope_pairs)
{
    return rotated(g, rows, 3, 1);
}
CASE(rope_partial)
{
    return rotated(g, rows, 2, 0);
}

static lh_value_t attended(lh_graph_t *g, uint64_t rows, lh_attention_t how)
{
    how.struct_size = sizeof(how);
    how.heads = 4;
    how.kv_heads = 2;
    how.head_dim = HEAD_DIM;
    return lh_attend(g, W("q", rows, 4 * HEAD_DIM), W("k", rows, 2 * HEAD_DIM),
                     W("v", rows, 2 * HEAD_DIM), &how);
}
CASE(causal)
{
    return attended(g, rows, (lh_attention_t){0});
}
CASE(window)
{
    return attended(g, rows, (lh_attention_t){.window = 3});
}
CASE(capped)
{
    return attended(g, rows, (lh_attention_t){.soft_cap = 2, .scale = 0.3});
}
CASE(full)
{
    return attended(g, rows, (lh_attention_t){.full = 1});
}
CASE(even_documents) /* two, by op_case_fill */
{
    const uint32_t half = rows % 2 == 0 ? (uint32_t)rows / 2 : 0;
    return attended(g, rows, (lh_attention_t){.document_rows = half});
}

CASE(cross_entropy)
{
    const lh_value_t labels = g->api->input(g, LH_INPUT_LABELS);
    const lh_value_t weights = g->api->input(g, LH_INPUT_WEIGHTS);
    const lh_value_t stats = op(g, "ce_stats", NULL, x, labels, 0, 0);
    (void)op(g, "ce_loss", NULL, stats, weights, 0, 0);
    return op(g, "ce_grad", NULL, x, labels, stats, weights);
}
CASE(cross_entropy_in_one)
{
    lh_value_t gradient;
    const lh_value_t loss = g->api->op(g, "cross_entropy", NULL, &x, 1, &gradient);
    return loss == 0 ? 0 : gradient;
}
CASE(squares)
{
    const lh_value_t sums = op(g, "sum_squares", NULL, W("g", rows * width * 100, 0), 0, 0, 0);
    return op(g, "clip", NULL, sums, g->api->input(g, LH_INPUT_STEP), 0, 0);
}
CASE(adamw)
{
    const uint64_t n = rows * width;
    const lh_adamw_t how = {sizeof(how), 0, 0.9, 0.95, 1e-8, 0.1};
    const lh_value_t in[] = {W("g", n, 0), W("master", n, 0), W("m1", n, 0), W("m2", n, 0),
                             g->api->input(g, LH_INPUT_STEP)};
    return g->api->op(g, "adamw", &how, in, 5, NULL);
}
CASE(sgd)
{
    const uint64_t n = rows * width;
    const lh_sgd_t how = {sizeof(how), 1, 0.9, 0.1};
    return op(g, "sgd", &how, W("g", n, 0), W("master", n, 0), W("m1", n, 0),
              g->api->input(g, LH_INPUT_STEP));
}
CASE(copied)
{
    return op(g, "copy", NULL, x, 0, 0, 0);
}
CASE(gated)
{
    return lh_multiply(g, lh_activate(g, lh_linear(g, x, W("w", width, width), 0), LH_ACT_SILU),
                       lh_linear(g, x, W("u", width, width), 0));
}
CASE(added_norm)
{
    const lh_value_t s = lh_add(g, x, W("a", rows, width));
    return lh_add(g, s, lh_rms_norm(g, s, W("w", width, 0), 1e-5));
}
CASE(activated)
{
    return lh_activate(g, lh_linear(g, x, W("w", 10, width), W("b", 10, 0)), LH_ACT_GELU_TANH);
}

CASE(soft)
{
    return op(g, "softmax", NULL, x, 0, 0, 0);
}
/* As of heads; where the width is odd, of one group. */
CASE(rms_of_groups)
{
    return lh_rms_norm(g, x, W("w", width % 2 == 0 ? width / 2 : width, 0), 1e-5);
}
/* Of as many experts as there are columns each token takes two: most experts have few tokens, or
 * none. Picks are by x itself, so that all devices make the same. */
CASE(experts)
{
    const lh_top_k_t top = {.struct_size = sizeof(top), .k = 2};
    const lh_route_t route = {sizeof(route), (uint32_t)width};
    const lh_picks_t picks = {sizeof(picks), 2};
    const lh_grouped_t up = {sizeof(up), 1}, down = {sizeof(down), 0};
    lh_value_t ids, offsets;
    const lh_value_t shares = g->api->op(g, "top_k", &top, &x, 1, &ids);
    const lh_value_t order = g->api->op(g, "route", &route, &ids, 1, &offsets);
    const lh_value_t to = op(g, "gather_rows", &picks, x, order, 0, 0);
    const lh_value_t wide = op(g, "grouped_matmul", &up, to,
                               op_case_param(g, "up", width, 10, width), offsets, 0);
    const lh_value_t made = op(g, "grouped_matmul", &down, wide,
                               op_case_param(g, "down", width, 10, 7), offsets, 0);
    return op(g, "scatter_rows", &picks, made, order, shares, 0);
}

enum { UPDATE = OP_CASE_WIDE | OP_CASE_FORWARD | OP_CASE_POSITIVE };
const op_case_t op_cases[] = {
    {"linear", linear, 0},
    {"linear with a bias", linear_bias, 0},
    {"two linears of one input", two_users, 0},
    {"activate silu", silu, 0},
    {"activate gelu", gelu, 0},
    {"activate gelu_tanh", gelu_tanh, 0},
    {"activate tanh", tanh_, 0},
    {"rms_norm", rms, 0},
    {"rms_norm by 1 + w", rms_one_plus, 0},
    {"layer_norm", layer, 0},
    {"layer_norm without a bias", layer_no_bias, 0},
    {"add", sum, 0},
    {"multiply", product, 0},
    {"multiply by a row", product_of_columns, 0},
    {"multiply by a column", product_of_rows, 0},
    {"scale", scaled, 0},
    {"dora_scale", magnitude, 0},
    {"embed", table, 0},
    {"rope by halves", rope_half, 0},
    {"rope by pairs", rope_pairs, 0},
    {"rope of a part", rope_partial, 0},
    {"causal attention", causal, 0},
    {"attention over a window", window, 0},
    {"attention with a soft cap", capped, 0},
    {"full attention", full, 0},
    {"attention over documents of as many rows", even_documents, 0},
    {"softmax", soft, 0},
    {"rms_norm of groups", rms_of_groups, 0},
    {"routed experts", experts, 0},
    {"cross-entropy", cross_entropy, OP_CASE_WIDE | OP_CASE_FORWARD},
    {"cross-entropy in one pass", cross_entropy_in_one, OP_CASE_FORWARD},
    {"squares and clip", squares, OP_CASE_WIDE | OP_CASE_FORWARD},
    {"adamw", adamw, UPDATE},
    {"sgd", sgd, UPDATE},
    {"copy", copied, OP_CASE_FORWARD},
    {"gate", gated, OP_CASE_FUSED},
    {"add_rms_norm", added_norm, OP_CASE_FUSED},
    {"linear with an activation", activated, OP_CASE_FUSED},
};
const uint32_t op_case_count = sizeof(op_cases) / sizeof(op_cases[0]);

/* ---- recording ---- */

bool op_case_listed(void *device, const op_t *o, const void *attributes, const lh_arg_t *args)
{
    const plugin_t *p = device;
    (void)attributes, (void)args;
    for (uint32_t i = 0; i < p->kernel_count; i++)
        if (strcmp(p->kernels[i].op, o->row.name) == 0) return true;
    return false;
}

static bool want_all(void *context, const char *name)
{
    (void)context, (void)name;
    return true;
}

static lh_status_t differentiate(recording_t *r, lh_value_t x, bool fused)
{
    const lh_arg_t y = r->values[r->output].arg;
    lh_value_t into;
    const lh_value_t seed = recording_argument(r, y.dtype, y.rank, y.shape);
    const lh_status_t status = gradient_append(r, seed, x, want_all, NULL, &into);
    return status == LH_OK && fused ? fusion_apply_backward(r, into) : status;
}

lh_status_t op_case_record(const op_case_t *c, const op_table_t *ops, const plugin_t *device,
                           uint64_t rows, uint64_t width, lh_dtype_t compute, recording_t **out)
{
    const lh_dtype_t wide = compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
    const recording_how_t how = {.ops = ops,
                                 .host = device->host,
                                 .tokens = rows,
                                 .sequences = 1,
                                 .max_documents = 2,
                                 .compute = compute,
                                 .accumulate = wide,
                                 .param = op_case_shape,
                                 .offers = op_case_listed,
                                 .device = (void *)(uintptr_t)device};
    const uint64_t shape[] = {rows, width};
    recording_t *r;
    lh_status_t status = recorder_new(&how, &r);
    if (status != LH_OK) return status;
    const lh_value_t x = recording_argument(r, compute, 2, shape);
    r->output = c->record(&r->graph, x, rows, width);
    status = recording_status(r);
    const bool fused = (c->flags & OP_CASE_FUSED) != 0;
    if (status == LH_OK && fused) status = fusion_apply(r);
    if (status == LH_OK && (c->flags & OP_CASE_FORWARD) == 0) status = differentiate(r, x, fused);
    if (status == LH_OK)
        *out = r;
    else
        recording_free(r);
    return status;
}

/* ---- numbers ---- */

static double rounded(lh_dtype_t dtype, double value)
{
    const float single = (float)value;
    if (dtype == LH_DTYPE_BF16) return (double)lh_bf16_to_f32(lh_f32_to_bf16(single));
    if (dtype == LH_DTYPE_F16) return (double)lh_f16_to_f32(lh_f32_to_f16(single));
    return dtype == LH_DTYPE_F32 ? (double)single : value;
}

static double input_number(const recording_t *r, uint32_t which, uint64_t i, uint64_t n)
{
    static const double step[LH_STEP_WORDS] = {
        [LH_STEP_LEARNING_RATE] = 0.125,
        [LH_STEP_GRAD_SCALE] = 0.5,
        [LH_STEP_NUMBER] = 3,
        [LH_STEP_APPLY] = 1,
        [LH_STEP_MAX_NORM] = 1,
    };
    const uint64_t middle = r->how.tokens / 2;
    switch (which) {
    case LH_INPUT_STARTS: return i == 0 ? 0 : (double)(i == 1 ? middle : r->how.tokens);
    case LH_INPUT_POSITIONS: return (double)(i < middle ? i : i - middle);
    case LH_INPUT_WEIGHTS: return 1.0 / (double)n;
    case LH_INPUT_STEP: return step[i % LH_STEP_WORDS];
    default: return (double)((i * 7 + i / 3) % LABELS);
    }
}

void op_case_fill(const recording_t *r, uint32_t flags, uint64_t seed, node_run_t *const *runs,
                  uint32_t count)
{
    for (lh_value_t v = 1; v < r->value_count; v++) {
        const graph_value_t *value = &r->values[v];
        const bool input = value->kind == VALUE_INPUT, gradient = value->kind == VALUE_GRADIENT;
        if (!input && !gradient && value->kind != VALUE_PARAM && value->kind != VALUE_ARGUMENT)
            continue;
        const uint64_t n = node_run_elements(runs[0], v);
        double *numbers = check_memory(n, sizeof(*numbers));
        for (uint64_t i = 0; i < n; i++) {
            const double any = (flags & OP_CASE_POSITIVE) != 0 ? 0.5 + philox_uniform(seed, v, i)
                                                               : philox_normal(seed, v, i);
            numbers[i] = input      ? input_number(r, value->which, i, n)
                         : gradient ? 1.5
                                    : rounded(value->arg.dtype, any);
        }
        for (uint32_t k = 0; k < count; k++)
            node_run_set(runs[k], v, numbers);
        mem_free(numbers);
    }
}

/* ---- kernels alone ---- */

lh_status_t op_cases_prepare(subject_t *s, const lh_host_t *host, lh_device_t *d,
                             lh_stream_t *stream)
{
    static const char *const names[] = {"add", "multiply"};
    lh_arg_t args[3];
    for (uint32_t i = 0; i < 3; i++)
        args[i] = (lh_arg_t){.dtype = LH_DTYPE_F32, .rank = 2, .shape = {8, 16}, .stride = {16, 1}};
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
        for (uint32_t i = 0; i < s->plugin->kernel_count; i++) {
            const lh_kernel_t *row = &s->plugin->kernels[i];
            lh_kernel_plan_t plan = {.struct_size = sizeof(plan)};
            lh_prepared_t *prepared = NULL;
            const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                           .flags = LH_KERNEL_ORDERED,
                                           .op = names[k],
                                           .args = args,
                                           .arg_size = sizeof(args[0]),
                                           .arg_count = 3,
                                           .scratch_limit_bytes = 1 << 30,
                                           .stream = stream};
            if (strcmp(row->op, names[k]) != 0 ||
                (row->dtypes[0] != LH_DTYPE_NONE && row->dtypes[0] != LH_DTYPE_F32))
                continue;
            const lh_status_t status = row->prepare(host, d, &desc, &plan, &prepared);
            if (status == LH_UNSUPPORTED) continue;
            if (status != LH_OK) return status;
            row->release(prepared);
            break;
        }
    return LH_OK;
}
