/* golden.c - the references that PyTorch made. */
#include "golden.h"

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
};

static char *path_of(const golden_model_t *m, const char *file)
{
    text_t path = {0};
    text_printf(&path, "%s/%s/%s", LH_TEST_GOLDEN, m->name, file);
    return path.data;
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

/* The few transforms that these models need, apart from the core's own so that they check it. */
static float *transformed(const parameter_t *p, float *from)
{
    const char *how = p->row->hf_import;
    if (how == NULL) return from;
    unsigned part = 0, parts = 1;
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

float *golden_parameter(const golden_model_t *m, const char *file, const char *prefix,
                        const parameter_t *p)
{
    text_t name = {0};
    const char *hf = p->row->hf_name, *hole = strstr(hf, "{}");
    text_append(&name, prefix);
    if (hole != NULL) {
        text_append_n(&name, hf, (size_t)(hole - hf));
        text_printf(&name, "%u%s", p->block, hole + 2);
    } else {
        text_append(&name, hf);
    }
    uint64_t count = 0;
    float *values = golden_tensor(m, file, name.data, &count);
    text_free(&name);
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
        weights_extent_t held; /* of a parameter that is cut, its slice */
        assert_true(weights_extent(rig->weights, SPACE_PARAMETER, i, &held));
        const uint64_t begin = held.slice.begin, count = held.slice.end - begin;
        OK(weights_write(rig->weights, SPACE_PARAMETER, i, begin, count, LH_DTYPE_F32,
                         values + begin));
        mem_free(values);
    }
}

uint32_t golden_numbers(const golden_model_t *m, const char *key, double *out, uint32_t max)
{
    char *path = path_of(m, "expected.json"), *text;
    size_t length;
    OK(file_read(path, 1 << 20, &text, &length));
    text_t quoted = {0};
    text_printf(&quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted.data);
    assert_non_null(at);
    at += quoted.length;
    const bool list = at[strspn(at, " \n")] == '[';
    if (list) at = strchr(at, '[') + 1;
    uint32_t count = 0;
    for (char *end; count < max; at = end + strspn(end, " \n,")) {
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
