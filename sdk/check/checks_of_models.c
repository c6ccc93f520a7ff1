/* checks_of_models.c - a small instance of a model: its recording, its gradients, its Hugging Face
 * form. */
#include "check.h"
#include "check_host.h"
#include "cuts.h"
#include "tiny_model.h"

#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/philox.h>
#include <base/text.h>
#include <checkpoint/commit.h>
#include <config/options.h>
#include <engine/engine.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <hf/hf_export.h>
#include <hf/hf_import.h>
#include <hf/hf_weights.h>
#include <plugin/host.h>

enum { SEQUENCES = 2, ROWS = 8, TOKENS = SEQUENCES * ROWS };

static recording_t *record(tiny_use_t *use, uint64_t tokens)
{
    recording_t *r;
    if (tiny_model_record(use, tokens, LH_DTYPE_F32, &r) != LH_OK)
        check_fault("for %llu tokens: %s", (unsigned long long)tokens, fail_reason());
    return r;
}

static void can_be_recorded(subject_t *s, tiny_model_t *t)
{
    (void)s, (void)t; /* tiny_model_each has done it */
}

/* The precision of a job that names none. A model that F32 alone is for is right, and its jobs say so. */
static void can_be_recorded_in_bf16(subject_t *s, tiny_model_t *t)
{
    (void)s;
    for (uint32_t i = 0; i < t->parameters->blocks + 2; i++) {
        tiny_use_t use = {.of = t};
        recording_t *r;
        use.part = tiny_model_part(t, i, &use.block);
        if (tiny_model_record(&use, TINY_TOKENS, LH_DTYPE_BF16, &r) != LH_OK)
            check_warn("in bf16, which [train] precision is where it is not set: %s",
                       fail_reason());
        recording_free(r);
    }
}

static void every_parameter_is_used(subject_t *s, tiny_model_t *t)
{
    (void)s;
    bool *used = check_memory(t->parameters->count, sizeof(*used));
    for (uint32_t i = 0; i < t->parameters->blocks + 2; i++) {
        tiny_use_t use = {.of = t, .used = used};
        use.part = tiny_model_part(t, i, &use.block);
        recording_free(record(&use, TINY_TOKENS));
    }
    for (uint32_t i = 0; i < t->parameters->count; i++)
        if (!used[i])
            check_fault("parameter '%s' is in its table, but record() never asks for it",
                        t->parameters->items[i].name);
    mem_free(used);
}

/* As everybody trains: what scales or shifts a row is no matrix whose entries should stay small. */
static void vectors_are_spared(subject_t *s, tiny_model_t *t)
{
    (void)s;
    for (uint32_t i = 0; i < t->parameters->count; i++) {
        const parameter_t *p = &t->parameters->items[i];
        if (p->rank > 1 || (p->row->flags & (LH_PARAM_NO_DECAY | LH_PARAM_FROZEN)) != 0) continue;
        check_warn("parameter '%s' is a vector, and weight decay pulls it to zero; expected %s, as "
                   "of norms and biases elsewhere",
                   p->name, t->spec ? "decay = matrices or no" : "LH_PARAM_NO_DECAY");
    }
}

/* "rms_norm (parameter 'attn_norm')" */
static const char *call_text(const recording_t *r, uint32_t node, char out[160])
{
    const graph_node_t *n = &r->nodes[node];
    const char *param = NULL;
    for (uint32_t i = 0; i < n->op->in_count && param == NULL; i++)
        if (n->slots[i] != 0 && r->values[n->slots[i]].kind == VALUE_PARAM)
            param = r->values[n->slots[i]].name;
    if (param == NULL)
        (void)snprintf(out, 160, "%.64s", n->op->row.name);
    else
        (void)snprintf(out, 160, "%.64s (parameter '%.64s')", n->op->row.name, param);
    return out;
}

/* Says of two recordings of a part which call is the first that is another one. */
static void tell_impure(const tiny_use_t *use, const recording_t *first, const recording_t *second)
{
    char part[TINY_PART_TEXT], was[160], is[160];
    const uint32_t node = recording_difference(first, second);
    const bool in_first = node < first->node_count, in_second = node < second->node_count;
    (void)tiny_model_part_text(use->part, use->block, part);
    if (node == 0)
        check_fault("%s is recorded another way the second time: its calls are the same, and what "
                    "it returns, minimises or sums up is not",
                    part);
    if (!in_first || !in_second)
        check_fault("%s is recorded another way the second time: call %u, %s, is there the %s time "
                    "only",
                    part, node, call_text(in_first ? first : second, node, was),
                    in_first ? "first" : "second");
    (void)call_text(first, node, was);
    (void)call_text(second, node, is);
    if (strcmp(was, is) == 0)
        check_fault("%s is recorded another way the second time: call %u, %s, has other inputs or "
                    "attributes",
                    part, node, was);
    check_fault("%s is recorded another way the second time: call %u was %s and is %s", part, node,
                was, is);
}

static void recording_is_pure(subject_t *s, tiny_model_t *t)
{
    static const uint64_t tokens[] = {TINY_TOKENS, 1, 12, TINY_TOKENS};
    (void)s;
    for (uint32_t i = 0; i < t->parameters->blocks + 2; i++) {
        tiny_use_t use = {.of = t};
        use.part = tiny_model_part(t, i, &use.block);
        recording_t *r[4];
        for (uint32_t k = 0; k < 4; k++)
            r[k] = record(&use, tokens[k]);
        if (!recording_equal(r[0], r[3])) tell_impure(&use, r[0], r[3]);
        for (uint32_t k = 0; k < 4; k++)
            recording_free(r[k]);
    }
}

/* ---- in the engine, in double ---- */

typedef struct run {
    tiny_model_t *model;
    engine_t *engine;
    weights_t *weights;
    program_t *train, *score;
    void *device_config;
    const plugin_t **plugins; /* of the engine */
    int32_t tokens[TOKENS];
} run_t;

static void give(program_t *p, const run_t *run)
{
    int32_t labels[TOKENS], positions[TOKENS], starts[SEQUENCES + 1];
    double weights[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        labels[i] = run->tokens[(i * 5 + 3) % TOKENS];
        positions[i] = (int32_t)(i % ROWS);
        weights[i] = 1.0 / TOKENS;
    }
    for (uint32_t i = 0; i <= SEQUENCES; i++)
        starts[i] = (int32_t)(i * ROWS);
    check_ok(program_input(p, LH_INPUT_TOKENS, run->tokens, sizeof(run->tokens)), "tokens");
    check_ok(program_input(p, LH_INPUT_LABELS, labels, sizeof(labels)), "labels");
    check_ok(program_input(p, LH_INPUT_POSITIONS, positions, sizeof(positions)), "positions");
    check_ok(program_input(p, LH_INPUT_STARTS, starts, sizeof(starts)), "starts");
    check_ok(program_input(p, LH_INPUT_WEIGHTS, weights, sizeof(weights)), "weights");
}

static void engine_start(subject_t *s, run_t *run, const plugin_t *reference)
{
    uint32_t count;
    const plugin_t *const *own = subject_plugins(s, &count);
    const plugin_t **plugins = check_memory(count + 1u, sizeof(*plugins));
    memcpy(plugins, own, count * sizeof(*plugins));
    plugins[count] = reference;
    const engine_how_t how = {.host = check_host(),
                              .device = reference,
                              .device_config = run->device_config,
                              .plugins = plugins,
                              .plugin_count = count + 1u,
                              .ops = run->model->ops};
    check_ok(engine_open(&how, &run->engine), "engine");
    const weights_how_t weights = {
        .api = run->model->api, .model = run->model->model, .compute = LH_DTYPE_F64};
    check_ok(weights_new(run->engine, &weights, &run->weights), "weights");
    program_how_t program = {.use = USE_TRAIN, .sequences = SEQUENCES, .rows = ROWS};
    check_ok(program_new(run->engine, run->weights, &program, &run->train), "training program");
    program.use = USE_SCORE;
    program.wants_logits = true;
    check_ok(program_new(run->engine, run->weights, &program, &run->score), "scoring program");
    check_ok(engine_build(run->engine), "engine");
    run->plugins = plugins;
}

static void run_open(subject_t *s, tiny_model_t *model, run_t *run)
{
    const plugin_t *reference = subject_reference(s);
    if (reference == NULL) check_skip("no reference device: %s", fail_reason());
    *run = (run_t){.model = model};
    run->device_config = subject_config(s, reference);
    engine_start(s, run, reference);
    /* Far from zero, so that no gradient is small by chance; of many blocks nearer to it, as what is
     * added block by block grows until softmaxes are steps, which have no slopes to see. */
    const double deviation = model->parameters->blocks <= 4 ? 0.3 : 0.1;
    check_ok(weights_initialize(run->weights, s->seed, deviation), "weights");
    for (uint32_t i = 0; i < TOKENS; i++)
        run->tokens[i] = (int32_t)(philox_uniform(s->seed, 99, i) *
                                   (double)(run->model->parameters->vocab - 1));
    give(run->train, run);
    give(run->score, run);
}

static void run_close(run_t *run)
{
    engine_close(run->engine);
    mem_free(run->plugins);
    mem_free(run->device_config);
}

/* What is minimised: the cross-entropy, made in double of what it is made of, and the model's own
 * losses, which are F64 here. */
static double loss_of(run_t *run)
{
    double stats[TOKENS][3], sum = 0, own = 0;
    check_ok(program_run(run->score, 0), "scoring");
    check_ok(program_output(run->score, OUTPUT_STATS, stats, sizeof(stats)), "scoring");
    for (uint32_t i = 0; i < TOKENS; i++)
        sum += log(stats[i][1]) + stats[i][0] - stats[i][2];
    if (program_output_bytes(run->score, OUTPUT_EXTRA) == sizeof(own))
        check_ok(program_output(run->score, OUTPUT_EXTRA, &own, sizeof(own)), "own losses");
    return sum / TOKENS + own;
}

/* Central difference in double: the error of the step is h squared times the third derivative, that
 * of the sum 1e-16 / h. */
static double slope_along(run_t *run, uint32_t i, uint64_t e, double value, double h)
{
    double slope = 0;
    for (int side = -1; side <= 1; side += 2) {
        const double moved = value + side * h;
        check_ok(weights_write(run->weights, SPACE_PARAMETER, i, e, 1, LH_DTYPE_F64, &moved),
                 "value");
        slope += side * loss_of(run) / (2 * h);
    }
    check_ok(weights_write(run->weights, SPACE_PARAMETER, i, e, 1, LH_DTYPE_F64, &value), "value");
    return slope;
}

static bool is_slope(double gradient, double slope)
{
    return fabs(slope - gradient) < 1e-8 + 1e-6 * fabs(gradient);
}

/* Where the first look differs, half the step takes the error of the step out (Richardson): a loss
 * that bends much is no fault. */
static void probe_element(run_t *run, uint32_t i, uint64_t e)
{
    static const double h = 1e-5;
    double value, gradient;
    check_ok(weights_read(run->weights, SPACE_PARAMETER, i, e, 1, LH_DTYPE_F64, &value), "value");
    check_ok(weights_read(run->weights, SPACE_GRAD, i, e, 1, LH_DTYPE_F64, &gradient), "gradient");
    double slope = slope_along(run, i, e, value, h);
    if (is_slope(gradient, slope)) return;
    slope = (4 * slope_along(run, i, e, value, h / 2) - slope) / 3;
    if (!is_slope(gradient, slope))
        check_fault("the loss's slope along element %llu of '%s' is %.10g, its gradient says "
                    "%.10g",
                    (unsigned long long)e, run->model->parameters->items[i].name, slope, gradient);
}

static void gradients_are_slopes(subject_t *s, tiny_model_t *t)
{
    enum { PROBES = 3, MOST_BLOCKS = 3 };
    run_t run;
    run_open(s, t, &run);
    if (run.train == NULL) return;
    check_ok(program_run(run.train, 0), "training");
    check_ok(engine_wait(run.engine), "training");
    for (uint32_t i = 0; i < run.model->parameters->count; i++) {
        const parameter_t *p = &run.model->parameters->items[i];
        if (p->storage != i || weights_frozen(run.weights, i)) continue;
        /* The way back to the first blocks is through all others. */
        if (p->block >= MOST_BLOCKS && p->block + 1 < run.model->parameters->blocks) continue;
        for (uint32_t k = 0; k < PROBES; k++)
            probe_element(&run, i, (uint64_t)(philox_uniform(s->seed, i, k) * (double)p->elements));
    }
    run_close(&run);
}

static void no_token_sees_what_follows(subject_t *s, tiny_model_t *t)
{
    run_t run;
    run_open(s, t, &run);
    const uint64_t vocab = run.model->parameters->vocab;
    double *before = check_memory(TOKENS * vocab, sizeof(*before));
    double *after = check_memory(TOKENS * vocab, sizeof(*after));
    const uint64_t bytes = TOKENS * vocab * sizeof(*before);
    if (program_output_bytes(run.score, OUTPUT_LOGITS) != bytes)
        check_skip("its logits are not [tokens, vocab]");
    check_ok(program_run(run.score, 0), "scoring");
    check_ok(program_output(run.score, OUTPUT_LOGITS, before, bytes), "logits");
    run.tokens[ROWS - 1] = (run.tokens[ROWS - 1] + 1) % (int32_t)vocab;
    give(run.score, &run);
    check_ok(program_run(run.score, 0), "scoring");
    check_ok(program_output(run.score, OUTPUT_LOGITS, after, bytes), "logits");
    for (uint64_t i = 0; i < TOKENS * vocab; i++)
        if (i / vocab != ROWS - 1 && before[i] != after[i])
            check_fault("the last token of the first sequence changes the logits of token %llu of "
                        "sequence %llu",
                        (unsigned long long)(i / vocab % ROWS),
                        (unsigned long long)(i / vocab / ROWS));
    mem_free(before);
    mem_free(after);
    run_close(&run);
}

/* ---- Hugging Face ---- */

static const char *option_of(void *context, const char *key)
{
    static char text[OPTION_TEXT];
    const tiny_model_t *t = context;
    const option_table_t table = plugin_options(t->plugin);
    for (uint32_t i = 0; i < table.count; i++)
        if (strcmp(table.rows[i].key, key) == 0)
            return option_text(&table.rows[i], t->config, text);
    return NULL;
}

static char *folder_of(const subject_t *s, const char *name)
{
    char *path = path_join(s->scratch, name);
    if (path == NULL) check_fault("%s", fail_reason());
    return path;
}

/* Any numbers will do; they have to come back. */
static void make_checkpoint(const tiny_model_t *t, const char *folder, uint64_t seed)
{
    const parameters_t *p = t->parameters;
    checkpoint_tensor_t *tensors = check_memory(p->count, sizeof(*tensors));
    void **data = check_memory(p->count, sizeof(*data));
    const checkpoint_meta_t meta = {.run = "check"};
    commit_t *c;
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        if (item->storage != i) continue;
        float *values = check_memory(item->elements, sizeof(*values));
        for (uint64_t k = 0; k < item->elements; k++)
            values[k] = (float)philox_normal(seed, i, k);
        data[count] = values;
        tensors[count] = (checkpoint_tensor_t){
            .name = item->name, .dtype = LH_DTYPE_F32, .rank = item->rank};
        memcpy(tensors[count++].shape, item->shape, sizeof(item->shape));
    }
    check_ok(commit_begin(folder, &meta, "", &c), "checkpoint");
    check_ok(commit_write_all(c, 0, tensors, (const void *const *)data, count, 0), "checkpoint");
    check_ok(commit_finish(c, NULL), "checkpoint");
}

static void export_to(subject_t *s, tiny_model_t *t, const char *from, const char *to)
{
    checkpoint_t *c = NULL;
    hf_export_result_t result;
    check_ok(checkpoint_open_latest(from, &c), "checkpoint");
    const hf_export_how_t how = {.from = c,
                                 .folder = to,
                                 .table = t->api->hf,
                                 .parameters = t->parameters,
                                 .option = option_of,
                                 .context = t,
                                 .dtype = EXPORT_F32,
                                 .host = s->plugin->host,
                                 .plugins = s->own,
                                 .bos = -1,
                                 .eos = -1};
    check_ok(hf_export(&how, &result), "export");
    checkpoint_close(c);
}

static void import_from(subject_t *s, tiny_model_t *t, const char *from, const char *to)
{
    hf_import_result_t result;
    const hf_import_how_t how = {.from = from,
                                 .folder = to,
                                 .table = t->api->hf,
                                 .parameters = t->parameters,
                                 .host = s->plugin->host,
                                 .plugins = s->own};
    check_ok(hf_import(&how, &result), "import of what it exported");
}

static void compare_checkpoints(const tiny_model_t *t, const char *a, const char *b)
{
    checkpoint_t *x = NULL, *y = NULL;
    check_ok(checkpoint_open_latest(a, &x), "checkpoint");
    check_ok(checkpoint_open_latest(b, &y), "checkpoint");
    if (x == NULL || y == NULL) check_fault("an import left no checkpoint");
    for (uint32_t i = 0; i < t->parameters->count; i++) {
        const parameter_t *p = &t->parameters->items[i];
        if (p->storage != i) continue;
        const manifest_tensor_t *in_x = checkpoint_find(x, p->name);
        const manifest_tensor_t *in_y = checkpoint_find(y, p->name);
        if (in_y == NULL) check_fault("'%s' does not come back", p->name);
        float *of_x = check_memory(p->elements, sizeof(*of_x));
        float *of_y = check_memory(p->elements, sizeof(*of_y));
        check_ok(checkpoint_read(x, in_x, &(tensor_part_t){0}, of_x), p->name);
        check_ok(checkpoint_read(y, in_y, &(tensor_part_t){0}, of_y), p->name);
        for (uint64_t k = 0; k < p->elements; k++)
            if (memcmp(&of_x[k], &of_y[k], sizeof(*of_x)) != 0)
                check_fault("element %llu of '%s' was %.9g and comes back as %.9g",
                            (unsigned long long)k, p->name, (double)of_x[k], (double)of_y[k]);
        mem_free(of_x);
        mem_free(of_y);
    }
    checkpoint_close(x);
    checkpoint_close(y);
}

/* The options that an import gets: defaults, and what config.json says. */
static void *options_of(tiny_model_t *t, const hf_config_t *config)
{
    const option_table_t table = plugin_options(t->plugin);
    void *again = options_default(table.rows, table.count, table.config_size);
    for (uint32_t i = 0; i < config->count; i++)
        for (uint32_t k = 0; k < table.count; k++)
            if (strcmp(table.rows[k].key, config->options[i].key) == 0)
                check_ok(
                    option_set(&table.rows[k], config->options[i].value, "config.json", "/", again),
                    table.rows[k].key);
    return again;
}

/* Whether the model is another one with what came back of the k-th option alone. An option may come
 * back in other words, as 0 that stands for "derived" does, and the model be the same. */
static bool matters(tiny_model_t *t, uint32_t k, const char *is)
{
    const option_table_t table = plugin_options(t->plugin);
    void *config = options_default(table.rows, table.count, table.config_size);
    char text[OPTION_TEXT];
    tiny_model_t other;
    for (uint32_t i = 0; i < table.count; i++) {
        const char *value = i == k ? is : option_text(&table.rows[i], t->config, text);
        check_ok(option_set(&table.rows[i], value == NULL ? "" : value, "option", "/", config),
                 table.rows[i].key);
    }
    if (!tiny_model_like(t, config, &other)) return true;
    const bool equal = tiny_model_equal(t, &other);
    tiny_model_close(&other);
    return !equal;
}

/* Tells the option by which an imported model is another one. */
static void tell_difference(tiny_model_t *t, const void *again)
{
    const option_table_t table = plugin_options(t->plugin);
    for (uint32_t k = 0; k < table.count; k++) {
        char a[OPTION_TEXT], b[OPTION_TEXT];
        const char *was = option_text(&table.rows[k], t->config, a);
        const char *is = option_text(&table.rows[k], again, b);
        if (was != NULL && is != NULL && strcmp(was, is) != 0 && matters(t, k, is))
            check_fault("option '%s' is %s, and %s after export and import: its model is another "
                        "one then",
                        table.rows[k].key, was, is);
    }
}

static void compare_options(tiny_model_t *t, const char *folder)
{
    hf_config_t config;
    tiny_model_t other;
    char *path = path_join(folder, "config.json");
    check_ok(hf_config_read(t->api->hf, path, &config), "config.json that it exported");
    void *again = options_of(t, &config);
    tell_difference(t, again);
    if (!tiny_model_like(t, again, &other))
        check_fault("it refuses the options of the config.json that it exported: %s",
                    fail_reason());
    if (!tiny_model_equal(t, &other))
        check_fault("the model that comes of the exported config.json is another one");
    tiny_model_close(&other);
    hf_config_free(&config);
    mem_free(path);
}

/* ---- options ---- */

static bool *made_a_difference,
    *was_changed; /* by row, over all instances of this process's check */

/* Numbers and switches; a choice may be a name that only config.json has. */
static bool must_matter(const lh_option_t *row)
{
    return row->type == LH_OPT_BOOL || row->type == LH_OPT_U64 || row->type == LH_OPT_U32 ||
           row->type == LH_OPT_F64;
}

static void options_matter(subject_t *s, tiny_model_t *t)
{
    (void)s;
    const option_table_t table = plugin_options(t->plugin);
    for (uint32_t k = 0; k < table.count; k++) {
        const lh_option_t *row = &table.rows[k];
        if (!must_matter(row) || row->fallback == NULL || !tiny_model_changed(t, &table, k))
            continue;
        was_changed[k] = true;
        made_a_difference[k] = made_a_difference[k] || matters(t, k, row->fallback);
    }
}

/* Where all are changed together another may hide it (heads of two columns have one frequency, which
 * no base changes), or a switch by which alone it counts is off: by itself, then with each switch the
 * other way. */
static void look_alone(subject_t *s, const option_table_t *table, uint32_t k)
{
    const uint32_t type = table->rows[k].type;
    const uint32_t turns = type == LH_OPT_U64 || type == LH_OPT_U32 ? TINY_TURNS : 1;
    for (uint32_t i = 0; i <= table->count; i++) {
        const uint32_t given = i == 0 ? k : i - 1;
        if (i > 0 && (given == k || table->rows[given].type != LH_OPT_BOOL)) continue;
        for (uint32_t turn = 1; turn <= turns && !made_a_difference[k]; turn++)
            tiny_model_with(s, k, given, turn, options_matter);
    }
}

/* What an option that changes nothing means for an import, where a key of config.json sets it; else
 * "". */
static const char *told_by_key(const subject_t *s, const char *option)
{
    static char text[256];
    hf_table_t keys = {0};
    hf_alternative_t place;
    text[0] = '\0';
    if (s->plugin->model->hf == NULL) return text;
    check_ok(hf_table_import(s->plugin->model->hf, &keys), "its table of keys");
    for (uint32_t i = 0; i < keys.count && text[0] == '\0'; i++) {
        const char *at = keys.keys[i].key;
        if (text_equal(keys.keys[i].option, option) && hf_next_alternative(&at, &place))
            (void)snprintf(text, sizeof(text),
                           "; a config.json that says another '%s' would be computed as one that "
                           "does not",
                           place.path);
    }
    hf_table_free(&keys);
    return text;
}

/* A warning and no failure: what an option needs to count may be out of reach here, a text that
 * nobody draws, or a sequence longer than a small model's. */
static void check_options(subject_t *s)
{
    const option_table_t table = plugin_options(s->plugin);
    made_a_difference = check_memory(table.count + 1u, sizeof(bool));
    was_changed = check_memory(table.count + 1u, sizeof(bool));
    tiny_model_each(s, options_matter);
    for (uint32_t k = 0; k < table.count; k++)
        if (was_changed[k] && !made_a_difference[k]) look_alone(s, &table, k);
    for (uint32_t k = 0; k < table.count; k++)
        if (was_changed[k] && !made_a_difference[k])
            check_warn(
                "option '%s' changes nothing in any instance that was tried: the model has the "
                "same tables and recordings with its default%s",
                table.rows[k].key, told_by_key(s, table.rows[k].key));
}

static void hugging_face_and_back(subject_t *s, tiny_model_t *t)
{
    if (t->api->hf == NULL) check_skip("it has no Hugging Face form");
    char *first = folder_of(s, "first"), *hf = folder_of(s, "hf"), *back = folder_of(s, "back");
    check_ok(folder_make(first), first);
    make_checkpoint(t, first, s->seed);
    export_to(s, t, first, hf);
    import_from(s, t, hf, back);
    char *checkpoints = path_join(back, "checkpoints");
    compare_checkpoints(t, first, checkpoints);
    compare_options(t, hf);
    check_ok(folder_remove(first), first);
    check_ok(folder_remove(hf), hf);
    check_ok(folder_remove(back), back);
    mem_free(checkpoints);
    mem_free(first);
    mem_free(hf);
    mem_free(back);
}

/* ---- as the table wants them: over every instance ---- */

#define EACH(name, run)            \
    static void name(subject_t *s) \
    {                              \
        tiny_model_each(s, run);   \
    }
EACH(check_opens, can_be_recorded)
EACH(check_bf16, can_be_recorded_in_bf16)
EACH(check_parameters, every_parameter_is_used)
EACH(check_decay, vectors_are_spared)
EACH(check_recording, recording_is_pure)
EACH(check_gradients, gradients_are_slopes)
EACH(check_causal, no_token_sees_what_follows)
EACH(check_hugging_face, hugging_face_and_back)

/* What the host can't do yet is listed, so that nobody takes it for checked. */
static void in_stages(subject_t *s)
{
    (void)s;
    check_skip("not built yet: the host cuts no model into pipeline stages");
}

#define MODEL(name, sentence, seconds, run)                                       \
    {                                                                             \
        name, sentence, CHECK_KIND(MODEL) | CHECK_SPEC, false, seconds, run, NULL \
    }
const check_t checks_of_models[] = {
    MODEL("model.opens", "small instances of it can be recorded, whichever options are changed", 60,
          check_opens),
    MODEL("model.precision",
          "it can be recorded in BF16, too, which a job trains in that names no precision", 60,
          check_bf16),
    MODEL("model.parameters", "every parameter of its table is recorded", 60, check_parameters),
    MODEL("model.decay", "vectors, as norms and biases are, are spared weight decay", 60,
          check_decay),
    MODEL("model.recording", "a part is recorded the same way each time, for any number of tokens",
          60, check_recording),
    MODEL("model.gradients", "gradients of small instances are the slopes of their loss, in double",
          240, check_gradients),
    MODEL("model.causal", "no token's logits depend on tokens that follow", 120, check_causal),
    MODEL("model.hugging_face", "export, then import gives every bit and every option back", 120,
          check_hugging_face),
    MODEL("model.options", "each number and switch among its options changes the model", 60,
          check_options),
    MODEL("model.tensor_ranks",
          "cut in two as shard, unit and its ops' split say, its parts compute the same", 120,
          model_is_cut),
    MODEL("model.stages", "cut into pipeline stages anywhere it computes the same", 30, in_stages),
    {0},
};
