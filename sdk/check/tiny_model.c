/* tiny_model.c - finds the options of a small model by trying. */
#include "tiny_model.h"

#include <stdio.h>

#include <base/memory.h>
#include <config/options.h>

#include "check.h"
#include "check_host.h"

enum {
    SMALL_ENOUGH = 3000,
    LEAST_BLOCKS = 2,
    LEAST_HIDDEN = 8,
    LEAST_VOCAB = 16,
    LEAST_TOKENS = 16
};

static lh_status_t param_shape(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                               uint32_t *rank)
{
    const tiny_use_t *use = context;
    const parameters_t *all = use->of->parameters;
    uint32_t index;
    if (!parameters_find_local(all, use->part, use->block, name, &index))
        return fail(LH_INVALID, "part %u, block %u asks for '%s', which is not in its table",
                    use->part, use->block, name);
    if (use->used != NULL) use->used[index] = use->used[all->items[index].storage] = true;
    memcpy(shape, all->items[index].shape, sizeof(all->items[index].shape));
    *rank = all->items[index].rank;
    return LH_OK;
}

lh_status_t tiny_model_record(tiny_use_t *use, uint64_t tokens, lh_dtype_t compute,
                              recording_t **out)
{
    const tiny_model_t *t = use->of;
    const recording_how_t how = {.ops = t->ops,
                                 .host = check_host(),
                                 .tokens = tokens,
                                 .sequences = 1,
                                 .max_documents = 2,
                                 .compute = compute,
                                 .accumulate = compute == LH_DTYPE_F64 ? LH_DTYPE_F64
                                                                       : LH_DTYPE_F32,
                                 .param = param_shape,
                                 .context = use};
    const uint64_t shape[] = {tokens, t->parameters->hidden};
    recording_t *r;
    lh_status_t status = recording_new(&how, &r);
    if (status != LH_OK) return status;
    const lh_value_t x = use->part == LH_PART_EMBED
                             ? r->graph.api->input(&r->graph, LH_INPUT_TOKENS)
                             : recording_argument(r, compute, 2, shape);
    r->output = t->api->record(t->model, &r->graph, use->part, use->block, x);
    status = recording_status(r);
    if (status == LH_OK && r->output == 0)
        status = fail(LH_INVALID, "part %u, block %u records nothing", use->part, use->block);
    if (status == LH_OK)
        *out = r;
    else
        recording_free(r);
    return status;
}

static void let_go(tiny_model_t *t)
{
    parameters_free(t->parameters);
    if (t->model != NULL) t->api->close(t->model);
    t->parameters = NULL;
    t->model = NULL;
}

static lh_status_t record_each(const tiny_model_t *t)
{
    for (uint32_t i = 0; i < t->parameters->blocks + 2; i++) {
        recording_t *r;
        tiny_use_t use = {.of = t, .part = LH_PART_BLOCK, .block = i};
        if (i >= t->parameters->blocks) {
            use.part = i == t->parameters->blocks ? LH_PART_EMBED : LH_PART_HEAD;
            use.block = 0;
        }
        const lh_status_t status = tiny_model_record(&use, TINY_TOKENS, LH_DTYPE_F32, &r);
        if (status != LH_OK) return status;
        recording_free(r);
    }
    return LH_OK;
}

/* Opens it with the config at hand; closed again where it is of no use. */
static lh_status_t try_open(tiny_model_t *t)
{
    lh_status_t status = t->api->open(check_host(), t->config, &t->model);
    if (status != LH_OK) {
        t->model = NULL;
        return fail(status, "%s", check_host_reason());
    }
    status = parameters_new(t->api, t->model, &t->parameters);
    if (status == LH_OK) status = record_each(t);
    if (status != LH_OK) let_go(t);
    return status;
}

/* Elements of the model that the config makes; UINT64_MAX: none that is of use. */
static uint64_t size_of(tiny_model_t *t)
{
    if (try_open(t) != LH_OK) return UINT64_MAX;
    const parameters_t *p = t->parameters;
    const bool good = p->blocks >= LEAST_BLOCKS && p->hidden >= LEAST_HIDDEN &&
                      p->vocab >= LEAST_VOCAB && p->max_tokens >= LEAST_TOKENS;
    const uint64_t size = good ? p->elements : UINT64_MAX;
    let_go(t);
    return size;
}

static bool is_fixed(const subject_t *s, const char *key)
{
    const size_t length = strlen(key);
    for (uint32_t i = 0; i < s->set_count; i++)
        if (strncmp(s->sets[i], key, length) == 0 && s->sets[i][length] == '=') return true;
    return false;
}

static uint64_t number_at(const lh_option_t *row, const char *config)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    memcpy(&wide, config + row->offset, row->type == LH_OPT_U64 ? sizeof(wide) : 0);
    memcpy(&narrow, config + row->offset, row->type == LH_OPT_U32 ? sizeof(narrow) : 0);
    return row->type == LH_OPT_U64 ? wide : narrow;
}

static bool number_set(const lh_option_t *row, uint64_t value, void *config)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return option_set(row, text, row->key, "/", config) == LH_OK;
}

/* Halves the one number that makes the model smallest; false: none does. */
static bool shrink(const subject_t *s, tiny_model_t *t, uint64_t *size)
{
    const option_table_t table = plugin_options(t->plugin);
    uint32_t best = table.count;
    for (uint32_t i = 0; i < table.count; i++) {
        const lh_option_t *row = &table.rows[i];
        const uint64_t was = number_at(row, t->config);
        if (was < 2 || is_fixed(s, row->key) || !number_set(row, was / 2, t->config)) continue;
        const uint64_t now = size_of(t);
        if (now < *size) {
            *size = now;
            best = i;
        }
        (void)number_set(row, was, t->config);
    }
    if (best == table.count) return false;
    (void)number_set(&table.rows[best], number_at(&table.rows[best], t->config) / 2, t->config);
    return true;
}

void tiny_model_open(subject_t *s, tiny_model_t *out)
{
    tiny_model_t t = {.plugin = s->plugin, .api = s->plugin->model};
    t.config = subject_config(s, s->plugin);
    check_ok(op_table_new(&t.ops), "ops");
    check_ok(op_table_add(t.ops, s->plugin->ops, sizeof(*s->plugin->ops), s->plugin->op_count,
                          s->plugin->name),
             "its ops");
    if (try_open(&t) != LH_OK)
        check_fault("it refuses the defaults of its options: %s; give others with --set",
                    fail_reason());
    uint64_t size = t.parameters->elements;
    let_go(&t);
    while (size > SMALL_ENOUGH && shrink(s, &t, &size)) {
    }
    check_ok(try_open(&t), "the small model");
    *out = t;
}

void tiny_model_close(tiny_model_t *t)
{
    let_go(t);
    op_table_free(t->ops);
    mem_free(t->config);
}
