/* golden.c - the references that PyTorch made. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <engine/weights.h>
#include <format/safetensors.h>
#include <longhaul/dtype.h>

const golden_model_t golden_models[GOLDEN_MODELS] = {
    {"llama",
     "llama",
     {{"blocks", "2"},
      {"hidden", "32"},
      {"ffn", "56"},
      {"heads", "4"},
      {"kv_heads", "2"},
      {"head_dim", "8"},
      {"vocab", "131"},
      {"max_tokens", "128"},
      {"epsilon", "1e-5"},
      {"rope_base", "10000"},
      {NULL, NULL}}},
    {"llama-tied-scaled-rope",
     "llama",
     {{"blocks", "2"},
      {"hidden", "32"},
      {"ffn", "56"},
      {"heads", "4"},
      {"kv_heads", "2"},
      {"head_dim", "16"},
      {"vocab", "131"},
      {"max_tokens", "128"},
      {"epsilon", "1e-6"},
      {"tied", "yes"},
      {"rope_base", "500000"},
      {"rope_scaling", "llama3"},
      {"rope_factor", "8"},
      {"rope_low", "1"},
      {"rope_high", "4"},
      {"rope_original", "32"},
      {NULL, NULL}}},
    {"gpt2",
     "gpt2",
     {{"blocks", "2"},
      {"hidden", "32"},
      {"heads", "4"},
      {"vocab", "131"},
      {"max_tokens", "128"},
      {"epsilon", "1e-5"},
      {NULL, NULL}}},
    {.name = "qwen2", .plugin = "qwen"},
    {.name = "qwen3", .plugin = "qwen"},
    {.name = "mistral-window", .plugin = "llama"},
    {.name = "gptneox", .plugin = "gptneox"},
    {.name = "falcon-7b-kind", .plugin = "falcon"},
    {.name = "falcon-40b-kind", .plugin = "falcon"},
    {.name = "falcon-rw-kind", .plugin = "falcon"},
    {.name = "gemma", .plugin = "gemma"},
    {.name = "gemma2", .plugin = "gemma"},
    {.name = "gemma3", .plugin = "gemma"},
    {.name = "mixtral", .plugin = "mixtral"},
};

static char *path_of(const golden_model_t *m, const char *file)
{
    text_t path = {0};
    text_printf(&path, "%s/%s/%s", rig_folder("LH_TEST_GOLDEN", LH_TEST_GOLDEN), m->name, file);
    return path.data;
}

bool golden_there(const golden_model_t *m)
{
    char *path = path_of(m, "config.json");
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* Options of a model's config.json, by its plugin's table. */
typedef struct read_config {
    hf_config_t config; /* holds what options point to */
    rig_option_t options[GOLDEN_OPTIONS];
} read_config_t;

static read_config_t *read_configs[GOLDEN_MODELS];

void golden_read_config(const char *model, const char *path, hf_config_t *held,
                        rig_option_t out[GOLDEN_OPTIONS])
{
    host_t *host;
    registry_t *registry;
    const plugin_t *plugin;
    OK(host_new(&host));
    OK(registry_new(rig_folder("LH_TEST_PLUGINS", LH_TEST_PLUGINS), host, &registry));
    OK(registry_load(registry, LH_KIND_MODEL, model, &plugin));
    OK(hf_config_read(plugin->model->hf, path, held));
    assert_true(held->count < GOLDEN_OPTIONS);
    for (uint32_t i = 0; i < held->count; i++)
        out[i] = (rig_option_t){held->options[i].key, held->options[i].value};
    out[held->count] = (rig_option_t){NULL, NULL};
    registry_free(registry);
    host_free(host);
}

static read_config_t *read_config(const golden_model_t *m)
{
    read_config_t *c = mem_new(sizeof(*c));
    char *path = path_of(m, "config.json");
    assert_non_null(c);
    golden_read_config(m->plugin, path, &c->config, c->options);
    mem_free(path);
    return c;
}

const rig_option_t *golden_options(const golden_model_t *m)
{
    if (m->options[0].key != NULL && getenv("LH_TEST_GOLDEN") == NULL) return m->options;
    lh_assert(m >= golden_models && m < golden_models + GOLDEN_MODELS);
    read_config_t **c = &read_configs[m - golden_models];
    if (*c == NULL) *c = read_config(m);
    return (*c)->options;
}

static void *tensor_bytes(const golden_model_t *m, const char *file, const char *name,
                          lh_dtype_t dtype, uint64_t *count)
{
    char *path = path_of(m, file);
    safetensors_t *s;
    OK(safetensors_open(path, NULL, &s));
    const safetensor_t *t = safetensors_find(s, name);
    void *out = NULL;
    if (t != NULL) {
        assert_int_equal(t->dtype->number, dtype);
        out = mem_new(t->bytes);
        assert_non_null(out);
        OK(safetensors_read(s, t, 0, out, t->bytes));
        *count = t->elements;
    }
    safetensors_close(s);
    mem_free(path);
    return out;
}

float *golden_tensor(const golden_model_t *m, const char *file, const char *name, uint64_t *count)
{
    return tensor_bytes(m, file, name, LH_DTYPE_F32, count);
}

void golden_batch(const golden_model_t *m, uint32_t step,
                  int32_t out[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)])
{
    uint64_t count = 0;
    const size_t tokens = GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1);
    int32_t *all = tensor_bytes(m, "batch.safetensors", "tokens", LH_DTYPE_I32, &count);
    assert_true(count >= (step + 1) * tokens);
    memcpy(out, all + step * tokens, tokens * sizeof(*out));
    mem_free(all);
}

/* Of groups of `queries` query heads, a key head and a value head: part 0, 1 or 2. */
static float *split_heads(const parameter_t *p, float *from, uint64_t queries, uint64_t groups,
                          unsigned part)
{
    const uint64_t mine = part == 0 ? queries : 1, head = p->elements / (mine * groups);
    float *to = mem_array(p->elements, sizeof(float));
    assert_non_null(to);
    for (uint64_t i = 0; i < p->elements; i++) {
        const uint64_t n = i / head, group = n / mine;
        const uint64_t first = part == 0 ? 0 : queries + part - 1;
        to[i] = from[(group * (queries + 2) + first + n % mine) * head + i % head];
    }
    mem_free(from);
    return to;
}

/* The few transforms that these models need, apart from the core's own so that they check it. */
static float *transformed(const parameter_t *p, float *from)
{
    const char *how = p->row->hf_import;
    if (how == NULL) return from;
    unsigned part = 0, parts = 1, heads, kv;
    if (sscanf(how, "split_qkv(source, heads=%u, kv_heads=%u, part=%u)", &heads, &kv, &part) == 3)
        return split_heads(p, from, heads / kv, kv, part);
    const bool columns = sscanf(how, "columns_in(source, part=%u, parts=%u)", &part, &parts) == 2;
    const bool rows = sscanf(how, "rows_in(source, part=%u, parts=%u)", &part, &parts) == 2;
    const uint64_t in = p->columns, out = p->rows, wide = columns ? out * parts : out;
    float *to = mem_array(p->elements, sizeof(float));
    assert_non_null(to);
    for (uint64_t i = 0; rows && i < p->elements; i++)
        to[i] = from[part * p->elements + i];
    for (uint64_t o = 0; !rows && o < out; o++)
        for (uint64_t i = 0; i < in; i++)
            to[o * in + i] = from[i * wide + (columns ? part * out : 0) + o];
    mem_free(from);
    return to;
}

/* A Hugging Face name with the block's number, and the expert's, in it. */
static void put_name(text_t *out, const char *prefix, const parameter_t *p, uint64_t expert)
{
    text_append(out, prefix);
    for (const char *at = p->row->hf_name; *at != '\0'; at++) {
        if (strncmp(at, "{}", 2) == 0) {
            text_printf(out, "%u", p->block);
            at += 1;
        } else if (strncmp(at, "{e}", 3) == 0) {
            text_printf(out, "%llu", (unsigned long long)expert);
            at += 2;
        } else {
            text_append_n(out, at, 1);
        }
    }
}

/* [experts, rows, columns], an expert a tensor. */
static float *expert_values(const golden_model_t *m, const char *file, const char *prefix,
                            const parameter_t *p)
{
    float *all = mem_array(p->elements, sizeof(float));
    const uint64_t one = p->elements / p->shape[0];
    assert_non_null(all);
    for (uint64_t e = 0; e < p->shape[0]; e++) {
        text_t name = {0};
        uint64_t count = 0;
        put_name(&name, prefix, p, e);
        float *values = golden_tensor(m, file, name.data, &count);
        assert_non_null(values);
        assert_int_equal(count, one);
        memcpy(all + e * one, values, one * sizeof(float));
        mem_free(values);
        text_free(&name);
    }
    return all;
}

/* Gradients of routed experts have the names of Transformers' module, which stacks w1 over w3. NULL:
 * it is none. */
static float *routed_gradient(const golden_model_t *m, const char *file, const char *prefix,
                              const parameter_t *p)
{
    static const char *const of[][2] = {{".gate.weight", "gate.weight"},
                                        {".w1.weight", "experts.gate_up_proj"},
                                        {".w3.weight", "experts.gate_up_proj"},
                                        {".w2.weight", "experts.down_proj"}};
    if (*prefix == '\0' || strstr(p->row->hf_name, ".block_sparse_moe.") == NULL) return NULL;
    uint32_t which = 0;
    while (strstr(p->row->hf_name, of[which][0]) == NULL)
        which++;
    text_t name = {0};
    uint64_t count = 0;
    text_printf(&name, "%smodel.layers.%u.mlp.%s", prefix, p->block, of[which][1]);
    float *all = golden_tensor(m, file, name.data, &count);
    text_free(&name);
    assert_non_null(all);
    if (which == 0 || which == 3) return all;
    assert_int_equal(count, 2 * p->elements);
    const uint64_t one = p->elements / p->shape[0];
    for (uint64_t e = 0; e < p->shape[0]; e++)
        memmove(all + e * one, all + (2 * e + (which == 2)) * one, one * sizeof(float));
    return all;
}

float *golden_parameter(const golden_model_t *m, const char *file, const char *prefix,
                        const parameter_t *p)
{
    float *routed = routed_gradient(m, file, prefix, p);
    if (routed != NULL) return routed;
    text_t name = {0};
    uint64_t count = 0;
    if (strstr(p->row->hf_name, "{e}") != NULL) return expert_values(m, file, prefix, p);
    put_name(&name, prefix, p, 0);
    float *values = golden_tensor(m, file, name.data, &count);
    text_free(&name);
    /* GPT-NeoX's files keep the head's old name, which its parameter no longer has. */
    if (values == NULL && strcmp(p->row->hf_name, "embed_out.weight") == 0) {
        text_printf(&name, "%slm_head.weight", prefix);
        values = golden_tensor(m, file, name.data, &count);
        text_free(&name);
    }
    return values == NULL ? NULL : transformed(p, values);
}

void golden_weights(const golden_model_t *m, rig_t *rig)
{
    for (uint32_t i = 0; i < rig->parameters->count; i++) {
        const parameter_t *p = &rig->parameters->items[i];
        if (p->storage != i) continue;
        float *values = golden_parameter(m, "model.safetensors", "", p);
        if (values == NULL) print_error("no tensor %s\n", p->row->hf_name);
        assert_non_null(values);
        weights_shard_t held; /* of a parameter that is cut, its slice */
        assert_true(weights_shard(rig->weights, SPACE_PARAMETER, i, &held));
        const uint64_t begin = held.slice.begin, count = held.slice.end - begin;
        OK(weights_write(rig->weights, SPACE_PARAMETER, i, begin, count, LH_DTYPE_F32,
                         values + begin));
        mem_free(values);
    }
}

static uint32_t numbers_of(const golden_model_t *m, const char *file, const char *key, double *out,
                           uint32_t max)
{
    char *path = path_of(m, file), *text;
    size_t length;
    OK(file_read(path, 1 << 20, &text, &length));
    text_t quoted = {0};
    text_printf(&quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted.data);
    bool list = false;
    if (at != NULL) {
        at += quoted.length;
        list = at[strspn(at, " \n")] == '[';
        if (list) at = strchr(at, '[') + 1;
    }
    uint32_t count = 0;
    for (char *end; at != NULL && count < max; at = end + strspn(end, " \n,")) {
        out[count] = strtod(at, &end);
        if (end == at) break;
        count++;
        if (!list) break;
    }
    text_free(&quoted);
    mem_free(text);
    mem_free(path);
    return count;
}

uint32_t golden_numbers(const golden_model_t *m, const char *key, double *out, uint32_t max)
{
    return numbers_of(m, "expected.json", key, out, max);
}

double golden_norm_tolerance(const golden_model_t *m, const rig_t *rig, lh_dtype_t compute)
{
    if (compute == LH_DTYPE_F32) return 1e-2;
    bool routed = false;
    for (uint32_t i = 0; i < rig->parameters->count; i++)
        routed = routed || rig->parameters->items[i].rank == 3;
    double most = routed || rig->parameters->blocks > 4 ? 0.15 : 5e-2;
    double wide[GOLDEN_STEPS], narrow[GOLDEN_STEPS];
    const uint32_t count = golden_numbers(m, "gradient_norms_fp32", wide, GOLDEN_STEPS);
    const uint32_t own = golden_numbers(m, "gradient_norms_bf16_autocast", narrow, GOLDEN_STEPS);
    assert_true(own == 0 || own == count);
    for (uint32_t i = 0; i < own; i++)
        most = fmax(most, 2 * fabs(narrow[i] - wide[i]) / wide[i]);
    return most;
}

double golden_curve(const golden_model_t *m, lh_dtype_t compute, uint32_t rows,
                    double losses[GOLDEN_STEPS], double norms[GOLDEN_STEPS])
{
    static const char own[] = "micro_batches.json";
    const bool wide = compute == LH_DTYPE_F32;
    char *path = path_of(m, own), curve[64], norm[64], by[16] = "";
    const char *file = "expected.json";
    double tolerance;
    if (rows < GOLDEN_BATCH && file_exists(path)) {
        file = own;
        (void)snprintf(by, sizeof(by), "_by_%u", rows);
    }
    mem_free(path);
    (void)snprintf(curve, sizeof(curve), "loss_curve_%s%s", wide ? "fp32" : "bf16_autocast", by);
    (void)snprintf(norm, sizeof(norm), "gradient_norms_fp32%s", by);
    assert_int_equal(numbers_of(m, file, curve, losses, GOLDEN_STEPS), GOLDEN_STEPS);
    assert_int_equal(numbers_of(m, file, norm, norms, GOLDEN_STEPS), GOLDEN_STEPS);
    assert_int_equal(golden_numbers(m, wide ? "curve_fp32_rel" : "curve_bf16_rel", &tolerance, 1),
                     1);
    return tolerance;
}
