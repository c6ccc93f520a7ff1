/* adapted_layer.c - the calls of an adapter: LoRA's two products, and DoRA's magnitude of each column. */
#include <graph/adapted_layer.h>

#include <longhaul/ops.h>

#include <base/memory.h>
#include <base/text.h>

/* A factor of a matrix's adapter, "wq.lora_a". */
static lh_value_t record_factor(recording_t *r, const char *matrix, char factor)
{
    text_t name = {0};
    text_printf(&name, "%s.lora_%c", matrix, factor);
    const lh_status_t status = text_status(&name);
    recording_failed(r, status);
    const lh_value_t v = status == LH_OK ? r->graph.api->param(&r->graph, name.data) : 0;
    text_free(&name);
    return v;
}

static lh_value_t record_two(recording_t *r, const char *op, lh_value_t a, lh_value_t b)
{
    const lh_value_t in[] = {a, b};
    return r->graph.api->op(&r->graph, op, NULL, in, 2, NULL);
}

/* What each row of W + scale B A is to be multiplied with, [out] F32. The product is made for this
 * alone, at the size of W, and is gone when its norms are known. */
static lh_value_t record_magnitude(recording_t *r, const char *name, lh_value_t weight,
                                   lh_value_t a, lh_value_t b, lh_value_t scale)
{
    const lh_graph_api_t *api = r->graph.api;
    const lh_matmul_t product = {.struct_size = sizeof(product)};
    const lh_value_t of[] = {record_two(r, "scale", b, scale), a};
    const lh_value_t change = api->op(&r->graph, "matmul", &product, of, 2, NULL);
    const lh_value_t in[] = {weight, change, record_factor(r, name, 'm')};
    return api->op(&r->graph, "dora_scale", NULL, in, 3, NULL);
}

/* y of a layer without its bias, with that. No op adds a row to all rows but a matmul: one with zeros
 * does, of the small matrix that the adapter has anyway. */
static lh_value_t record_bias(recording_t *r, lh_value_t y, lh_value_t low, lh_value_t b,
                              lh_value_t bias)
{
    static const float zero = 0;
    const lh_graph_api_t *api = r->graph.api;
    const lh_matmul_t product = {.struct_size = sizeof(product), .transpose_b = 1};
    const lh_value_t nothing = record_two(r, "scale", low, api->constant(&r->graph, &zero, 1));
    const lh_value_t of[] = {nothing, b, bias};
    return record_two(r, "add", y, api->op(&r->graph, "matmul", &product, of, 3, NULL));
}

lh_value_t adapted_layer_change(recording_t *r, const lh_value_t *in, lh_value_t bias, lh_value_t y,
                                double scale, bool magnitude)
{
    const lh_graph_api_t *api = r->graph.api;
    const float factor = (float)scale;
    char *name = mem_text(r->values[in[1]].name);
    if (name == NULL) {
        recording_failed(r, LH_NO_MEMORY);
        return 0;
    }
    const lh_value_t a = record_factor(r, name, 'a'), low = record_two(r, "linear", in[0], a);
    const lh_value_t b = record_factor(r, name, 'b'), change = record_two(r, "linear", low, b);
    const lh_value_t by = api->constant(&r->graph, &factor, 1);
    lh_value_t sum = record_two(r, "add", y, record_two(r, "scale", change, by));
    if (magnitude) sum = record_two(r, "multiply", sum, record_magnitude(r, name, in[1], a, b, by));
    mem_free(name);
    return magnitude && bias != 0 ? record_bias(r, sum, low, b, bias) : sum;
}

bool adapted_layer_is(const recording_t *r, const op_t *op, const lh_value_t *in, uint32_t in_count,
                      double *scale, bool *magnitude)
{
    if (r->how.adapted == NULL || r->adapting || (op->row.flags & LH_OP_LINEAR) == 0) return false;
    /* Inputs are checked once it is known what the call is. */
    const bool there = in_count > 1 && in[1] != 0 && in[1] < r->value_count;
    const graph_value_t *weight = there ? &r->values[in[1]] : NULL;
    return weight != NULL && weight->kind == VALUE_PARAM &&
           r->how.adapted(r->how.context, weight->name, scale, magnitude);
}
