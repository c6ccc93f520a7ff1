/* session.c - opens what a job names, in the order that things depend on each other.
 *
 * Options are parsed before anything is opened with them, and model and optimizer are opened before
 * the engine: a plugin that dislikes its options says so before a device is touched. */
#include <session/session.h>

#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <engine/kernel_choice.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <plugin/host.h>

/* ---- groups of parameters ---- */

/* A tied parameter is frozen with the one whose memory it shares. Storage decides and not the
 * parameter: of two names for one memory none may be trained if the other is not. */
static void groups_freeze(groups_t *g, const parameters_t *p, uint32_t parameter)
{
    lh_assert(parameter < p->count);
    for (uint32_t i = 0; i < p->count; i++)
        if (p->items[i].storage == p->items[parameter].storage) g->frozen[i] = true;
}

/* What a group says must be of some effect: weights that are another parameter's go by that one's
 * group, an adapter's matrices are not trained, and norms and biases have no decay. */
static lh_status_t group_check(const job_t *job, const job_group_t *group, uint32_t own,
                               uint32_t decaying)
{
    if (own == 0)
        return fail(LH_INVALID,
                    "%s: [group.%s] match = %s: all of it shares another parameter's weights, "
                    "whose group counts, or is not trained; expected something that is",
                    job->path, group->name, group->match);
    if (decaying > 0 || isnan(group->decay) || group->decay == 0) return LH_OK;
    return fail(LH_INVALID,
                "%s: [group.%s] decay = %g: no parameter that it matches decays, as norms and "
                "biases never do; expected 0, or none",
                job->path, group->name, group->decay);
}

/* The first group that matches has a parameter, so the order of the INI counts. matched counts what
 * this group got; a group that got nothing, as an earlier one took all, is refused too. */
static lh_status_t group_fill(groups_t *g, const job_t *job, const rule_set_t *rules,
                              uint32_t index, const parameters_t *p)
{
    lh_assert(index < job->group_count && index + 1 < g->count);
    const job_group_t *group = &job->groups[index];
    const double decay = isnan(group->decay) ? job->optimizer.decay : group->decay;
    uint32_t matched = 0, own = 0, decaying = 0;
    g->list[index + 1] = (optimizer_group_t){.rule = rules->of[index + 1], .decay = decay};
    g->rates[index + 1] = group->rate;
    for (uint32_t i = 0; i < p->count; i++) {
        if (g->of[i] != 0 || !parameters_match(group->match, p->items[i].name)) continue;
        g->of[i] = index + 1;
        if (group->frozen) groups_freeze(g, p, i);
        matched++;
        if (p->items[i].storage != i || g->frozen[i]) continue;
        own++;
        decaying += (p->items[i].row->flags & LH_PARAM_NO_DECAY) == 0 ? 1 : 0;
    }
    if (matched > 0) return group->frozen ? LH_OK : group_check(job, group, own, decaying);
    return fail(LH_INVALID, "%s: [group.%s] match = %s matches no parameter of the model",
                job->path, group->name, group->match);
}

static void groups_free(groups_t *g)
{
    mem_free(g->list);
    mem_free(g->rates);
    mem_free(g->of);
    mem_free(g->frozen);
    *g = (groups_t){0};
}

/* Sorts every parameter into the first [group.NAME] that matches its logical name, else into group
 * 0. A group that matches none is refused. */
static lh_status_t groups_new(const job_t *job, const rule_set_t *rules,
                              const parameters_t *parameters, groups_t *out)
{
    groups_t g = {.count = job->group_count + 1};
    g.list = mem_array(g.count, sizeof(*g.list));
    g.rates = mem_array(g.count, sizeof(*g.rates));
    g.of = mem_array(parameters->count, sizeof(*g.of));
    g.frozen = mem_array(parameters->count, sizeof(*g.frozen));
    lh_status_t status = LH_OK;
    if (g.list == NULL || g.rates == NULL || g.of == NULL || g.frozen == NULL)
        status = LH_NO_MEMORY;
    if (status == LH_OK) {
        g.list[0] = (optimizer_group_t){.rule = rules->of[0], .decay = job->optimizer.decay};
        g.rates[0] = 1;
    }
    for (uint32_t i = 0; status == LH_OK && i < parameters->count; i++) {
        const parameter_t *own = &parameters->items[parameters->items[i].storage];
        const bool base = job->adapter.name != NULL && !parameters->items[i].factor;
        if (base || (own->row->flags & LH_PARAM_FROZEN) != 0) groups_freeze(&g, parameters, i);
    }
    for (uint32_t i = 0; status == LH_OK && i < job->group_count; i++)
        status = group_fill(&g, job, rules, i, parameters);
    if (status != LH_OK) {
        groups_free(&g);
        return status;
    }
    *out = g;
    return LH_OK;
}

/* ---- the session ---- */

/* Plugins that are named for their ops alone: a comma-separated list, or NULL. */
static lh_status_t load_ops(session_t *s, const char *list)
{
    if (list == NULL) return LH_OK;
    char *copy = mem_text(list), *rest = NULL;
    lh_status_t status = copy == NULL ? LH_NO_MEMORY : LH_OK;
    for (char *name = status == LH_OK ? strtok_r(copy, ",", &rest) : NULL;
         name != NULL && status == LH_OK; name = strtok_r(NULL, ",", &rest)) {
        const plugin_t *plugin;
        status = registry_find(s->registry, text_trim(name), &plugin);
    }
    mem_free(copy);
    return status;
}

static lh_status_t load_plugins(session_t *s, bool frozen)
{
    const job_t *job = s->job;
    lh_status_t status = registry_load(s->registry, LH_KIND_MODEL, job->model.plugin,
                                       &s->model_plugin);
    if (status == LH_OK && job->device.plugin != NULL)
        status = registry_load(s->registry, LH_KIND_DEVICE, job->device.plugin, &s->device_plugin);
    if (status == LH_OK) status = load_ops(s, job->model.ops);
    if (status != LH_OK || frozen) return status;

    status = registry_load(s->registry, LH_KIND_OPTIMIZER, job->optimizer.plugin,
                           &s->optimizer_plugin);
    return status == LH_OK ? rule_set_make(job, s->registry, &s->rules) : status;
}

/* Of every plugin that is loaded by now, those of [model] ops and the rules' included. */
static lh_status_t make_op_table(session_t *s)
{
    lh_status_t status = op_table_new(&s->ops);
    for (uint32_t i = 0; status == LH_OK && i < registry_count(s->registry); i++) {
        const plugin_t *p = registry_at(s->registry, i);
        if (p->op_count > 0)
            status = op_table_add(s->ops, p->ops, sizeof(*p->ops), p->op_count, p->name);
    }
    return status;
}

/* registry_configure keeps the config for functions of the plugin that the INI calls. */
static lh_status_t session_parse(session_t *s, const char *section, const plugin_t *plugin,
                                 void **out)
{
    const option_table_t table = plugin_options(plugin);
    const lh_status_t status = job_parse_plugin(s->job, section, &table, NULL, 0, out);
    if (status == LH_OK) registry_configure(s->registry, plugin, *out);
    return status;
}

lh_status_t session_model_options(const job_t *job, const plugin_t *plugin, uint64_t vocab,
                                  const option_given_t *given, uint32_t given_count, void **out)
{
    char rows[24];
    option_given_t *all = mem_array(given_count + 1, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;

    uint32_t count = 0;
    for (uint32_t i = 0; i < given_count; i++)
        if (vocab == 0 || strcmp(given[i].key, "vocab") != 0) all[count++] = given[i];
    if (vocab != 0) {
        (void)snprintf(rows, sizeof(rows), "%llu", (unsigned long long)vocab);
        all[count++] = (option_given_t){"vocab", rows, "tokenizer", true};
    }
    const option_table_t table = plugin_options(plugin);
    const lh_status_t status = job_parse_plugin(job, "model", &table, all, count, out);
    mem_free(all);
    return status;
}

const parameters_adapter_t *session_adapter(const job_t *job, parameters_adapter_t *out)
{
    if (job->adapter.name == NULL) return NULL;
    *out = (parameters_adapter_t){.match = job->adapter.match,
                                  .rank = job->adapter.rank,
                                  .scale = job->adapter.alpha / (double)job->adapter.rank,
                                  .magnitude = job->adapter.kind == ADAPTER_DORA};
    return out;
}

static lh_status_t open_model(session_t *s, const session_how_t *how)
{
    const lh_status_t status = session_model_options(
        s->job, s->model_plugin, how->vocab, how->given, how->given_count, &s->model_config);
    if (status != LH_OK) return status;
    registry_configure(s->registry, s->model_plugin, s->model_config);
    return s->model_plugin->model->open(s->model_plugin->host, s->model_config, &s->model);
}

/* ---- kernels that were timed: a file for each device, beside its rates ---- */

enum { TIMED_MOST = 4 << 20 };
static const char timed_head[] = "longhaul kernels 1";

/* The first two lines of the file: what it is, and of which device. */
static void timed_begin(const session_t *s, text_t *out)
{
    text_printf(out, "%s\n%s\n", timed_head, engine_properties(s->engine)->fingerprint);
}

/* Of a file that is another device's or another version's nothing is taken. */
static lh_status_t timed_read(session_t *s, const char *path)
{
    text_t head = {0};
    char *found = NULL;
    size_t length = 0;
    timed_begin(s, &head);
    lh_status_t status = text_status(&head);
    if (status == LH_OK) status = file_read(path, TIMED_MOST, &found, &length);
    if (status == LH_OK && text_starts(found, head.data))
        text_append(&s->timed, found + head.length);
    if (status == LH_OK) status = text_status(&s->timed);
    text_free(&head);
    mem_free(found);
    return status;
}

/* What is known of the device counts for every command; only training adds to it. A file that can't
 * be read costs the time to measure again. */
static lh_status_t timed_load(session_t *s)
{
    char *path = NULL;
    lh_status_t status = path_in_cache("kernels", engine_properties(s->engine)->fingerprint, "txt",
                                       &path);
    if (status == LH_OK && file_exists(path)) status = timed_read(s, path);
    mem_free(path);
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK)
        log_line(LH_LOG_WARN, "tune: what was timed before is not known: %s", fail_reason());
    fail_clear();
    engine_tune(s->engine, s->timed.data, false);
    return LH_OK;
}

/* Two runs at once leave the choices of one of them, which then are timed again. */
static lh_status_t timed_write(const session_t *s, const char *path)
{
    text_t text = {0};
    char *folder = path_folder(path);
    timed_begin(s, &text);
    text_append(&text, s->timed.data == NULL ? "" : s->timed.data);
    lh_status_t status = folder == NULL ? LH_NO_MEMORY : text_status(&text);
    if (status == LH_OK) status = folder_make(folder);
    if (status == LH_OK) status = file_replace(path, text.data, text.length);
    text_free(&text);
    mem_free(folder);
    return status;
}

static uint32_t lines_of(const text_t *t)
{
    uint32_t lines = 0;
    for (size_t i = 0; i < t->length; i++)
        lines += t->data[i] == '\n';
    return lines;
}

/* What was timed comes first, as it replaces a line that the device does not offer any more. A folder
 * that can't be written costs the next run the time. */
static lh_status_t timed_keep(session_t *s, uint64_t ns)
{
    text_t all = {0};
    char *path = NULL;
    engine_timed(s->engine, &all);
    const uint32_t lines = lines_of(&all);
    if (s->timed.length > 0 && all.length + s->timed.length < TIMED_MOST / 2)
        text_append(&all, s->timed.data);
    lh_status_t status = text_status(&all);
    if (status != LH_OK || lines == 0) {
        text_free(&all);
        return status;
    }
    text_free(&s->timed);
    s->timed = all;
    s->timed_now = lines;
    s->timed_s = (double)ns * 1e-9;
    status = path_in_cache("kernels", engine_properties(s->engine)->fingerprint, "txt", &path);
    if (status == LH_OK) status = timed_write(s, path);
    if (status != LH_OK)
        log_line(LH_LOG_WARN, "tune: what was timed is not kept: %s", fail_reason());
    mem_free(path);
    return status == LH_NO_MEMORY ? status : LH_OK;
}

/* All ranks have what rank 0 has in a text, and nothing else. */
static lh_status_t text_spread(text_t *t, train_agree_t *ranks)
{
    uint64_t length = t->length;
    lh_status_t status = train_agree_first(ranks, &length, sizeof(length));
    if (status != LH_OK) return status;
    if (length == 0) {
        text_free(t);
        return LH_OK;
    }
    char *text = mem_new(length + 1);
    if (text == NULL) return LH_NO_MEMORY;
    if (train_agree_rank(ranks) == 0) memcpy(text, t->data, length);
    status = train_agree_first(ranks, text, length);
    text_free(t);
    text_append(t, text);
    mem_free(text);
    return status == LH_OK ? text_status(t) : status;
}

/* Counts the kernels of this rank that are as rank 0 timed them. */
static lh_status_t timed_count(session_t *s)
{
    text_t all = {0};
    engine_variants(s->engine, &all);
    const lh_status_t status = text_status(&all);
    if (status == LH_OK) s->timed_taken = kernel_choice_same(all.data, s->timed.data);
    text_free(&all);
    return status;
}

void session_plan_tell(const session_t *s, uint32_t rank)
{
    if (!s->job->device.tune) return;
    if (s->timed_now > 0)
        log_line(LH_LOG_INFO, "tune: %u kernels timed in %.1f s", s->timed_now, s->timed_s);
    log_line(LH_LOG_INFO, "tune: rank %u has %u kernels as rank 0 timed them", rank,
             s->timed_taken);
}

/* What the other ranks take is all that rank 0 has chosen, and no more: a checkpoint names the same, so
 * that they take it again where one is gone on with. */
lh_status_t session_plan(session_t *s, train_agree_t *ranks)
{
    const uint64_t since = sys()->now_ns();
    lh_status_t status = LH_OK;
    if (!s->job->device.tune) return engine_plan(s->engine);
    if (train_agree_rank(ranks) == 0) {
        engine_tune(s->engine, s->timed.data, true);
        status = engine_plan(s->engine);
        engine_tune(s->engine, NULL, false);
        if (status == LH_OK) engine_variants(s->engine, &s->chosen);
        if (status == LH_OK) status = text_status(&s->chosen);
        if (status == LH_OK) status = timed_keep(s, sys()->now_ns() - since);
    }
    if (status == LH_OK) status = text_spread(&s->timed, ranks);
    if (status == LH_OK) status = text_spread(&s->chosen, ranks);
    if (status != LH_OK) return status;
    engine_tune(s->engine, s->chosen.data, false);
    status = engine_plan(s->engine);
    return status == LH_OK ? timed_count(s) : status;
}

/* All plugins are handed over, as any may bring kernels. A recorded engine has no device and is
 * given the model plugin's host. */
static lh_status_t open_engine(session_t *s, const session_how_t *how)
{
    const uint32_t count = registry_count(s->registry);
    const plugin_t **plugins = mem_array(count, sizeof(const plugin_t *));
    if (plugins == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        plugins[i] = registry_at(s->registry, i);

    const plugin_t *device = how->recorded ? NULL : s->device_plugin;
    const engine_how_t engine = {.host = (device != NULL ? device : s->model_plugin)->host,
                                 .device = device,
                                 .device_config = s->device_config,
                                 .plugins = plugins,
                                 .plugin_count = count,
                                 .ops = s->ops,
                                 .unordered = !s->job->train.deterministic,
                                 .variants = how->variants};
    lh_status_t status = engine_open(&engine, &s->engine);
    mem_free(plugins);
    if (status == LH_OK && device != NULL && s->job->device.tune) status = timed_load(s);
    return status;
}

/* Sorts parameters into groups and freezes those that are not trained. Before any program is
 * stated: which gradients there are depends on it. */
static lh_status_t make_groups(session_t *s)
{
    const parameters_t *p = weights_parameters(s->weights);
    const lh_status_t status = groups_new(s->job, &s->rules, p, &s->groups);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < p->count; i++)
        if (s->groups.frozen[i]) weights_freeze(s->weights, i);
    return LH_OK;
}

lh_status_t session_open(const session_how_t *how, session_t **out)
{
    session_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->job = how->job;
    s->registry = how->registry;
    s->comm = how->comm;
    s->world = how->comm != NULL ? comm_world(how->comm) : how->world;
    s->compute = how->compute != 0                             ? how->compute
                 : how->job->train.precision == PRECISION_BF16 ? LH_DTYPE_BF16
                                                               : LH_DTYPE_F32;

    lh_status_t status = load_plugins(s, how->frozen);
    if (status == LH_OK) status = make_op_table(s);
    if (status == LH_OK) status = open_model(s, how);
    if (status == LH_OK && !how->recorded)
        status = session_parse(s, "device", s->device_plugin, &s->device_config);
    if (status == LH_OK && s->optimizer_plugin != NULL)
        status = session_parse(s, "optimizer", s->optimizer_plugin, &s->optimizer_config);
    if (status == LH_OK && s->optimizer_plugin != NULL)
        status = s->optimizer_plugin->optimizer->open(s->optimizer_plugin->host,
                                                      s->optimizer_config, &s->optimizer);
    if (status == LH_OK) status = open_engine(s, how);
    if (status == LH_OK) {
        parameters_adapter_t adapter;
        const weights_how_t weights = {.api = s->model_plugin->model,
                                       .model = s->model,
                                       .compute = s->compute,
                                       .adapter = session_adapter(s->job, &adapter)};
        status = weights_new(s->engine, &weights, &s->weights);
        const weights_how_t reference = {
            .api = weights.api, .model = s->model, .compute = s->compute, .reference = true};
        const bool pairs = s->job->train.phase == PHASE_DPO && (!how->frozen || how->pairs);
        if (status == LH_OK && pairs && weights.adapter == NULL)
            status = weights_new(s->engine, &reference, &s->reference);
    }
    if (status == LH_OK && !how->frozen) status = make_groups(s);
    if (status == LH_OK && !how->frozen) status = session_check_sequence(s);
    if (status != LH_OK) {
        session_close(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

lh_status_t session_check_sequence(const session_t *s)
{
    const uint64_t most = weights_parameters(s->weights)->max_tokens;
    if (s->job->train.sequence <= most) return LH_OK;
    return fail(LH_INVALID, "%s: [train] sequence = %llu, the model is made for %llu tokens",
                s->job->path, (unsigned long long)s->job->train.sequence, (unsigned long long)most);
}

/* Then the update program would have no inputs. */
static bool trains_nothing(const session_t *s)
{
    const uint32_t count = weights_parameters(s->weights)->count;
    for (uint32_t i = 0; i < count; i++)
        if (!s->groups.frozen[i]) return false;
    return true;
}

/* [comm] border as a dtype; 0: auto. */
static lh_dtype_t border_dtype(const job_t *job)
{
    if (job->comm.border == BORDER_AUTO) return 0;
    static const lh_dtype_t dtypes[] = {
        [BORDER_F32] = LH_DTYPE_F32, [BORDER_BF16] = LH_DTYPE_BF16, [BORDER_INT8] = LH_DTYPE_I8};
    return dtypes[job->comm.border];
}

update_how_t session_update_how(session_t *s, const world_t *world, uint32_t rounds)
{
    return (update_how_t){.optimizer = {.api = s->optimizer_plugin->optimizer,
                                        .optimizer = s->optimizer,
                                        .rules = s->rules.rules,
                                        .rule_count = s->rules.count,
                                        .groups = s->groups.list,
                                        .group_count = s->groups.count,
                                        .group_of = s->groups.of,
                                        .rounds = rounds,
                                        .world = world},
                          .comm = s->comm,
                          .bucket_bytes = s->job->comm.bucket_bytes,
                          .border = border_dtype(s->job),
                          .transfers = &s->transfers};
}

lh_status_t session_update(session_t *s, uint32_t rounds, program_t **out)
{
    if (trains_nothing(s))
        return fail(LH_INVALID,
                    "%s: every parameter of the model is frozen; nothing is left to train",
                    s->job->path);
    const update_how_t how = session_update_how(s, s->world, rounds);
    return update_new(s->engine, s->weights, &how, out);
}

lh_status_t session_rows_new(uint64_t tokens, uint64_t starts, batch_rows_t *out)
{
    *out = (batch_rows_t){.tokens = mem_array(tokens, sizeof(int32_t)),
                          .labels = mem_array(tokens, sizeof(int32_t)),
                          .positions = mem_array(tokens, sizeof(int32_t)),
                          .weights = mem_array(tokens, sizeof(float)),
                          .starts = mem_array(starts, sizeof(int32_t))};
    const bool all = out->tokens != NULL && out->labels != NULL && out->positions != NULL &&
                     out->weights != NULL && out->starts != NULL;
    return all ? LH_OK : LH_NO_MEMORY;
}

void session_rows_free(batch_rows_t *rows)
{
    mem_free(rows->tokens);
    mem_free(rows->labels);
    mem_free(rows->positions);
    mem_free(rows->weights);
    mem_free(rows->starts);
    *rows = (batch_rows_t){0};
}

lh_status_t session_rows_give(const batch_rows_t *rows, uint64_t micro_batches, uint64_t tokens,
                              program_t *program)
{
    lh_assert(micro_batches > 0 && tokens > 0);
    const uint64_t bytes = micro_batches * tokens * 4;
    const uint64_t starts = micro_batches * (rows->max_documents + 1) * 4;
    lh_status_t status = program_input(program, LH_INPUT_TOKENS, rows->tokens, bytes);
    if (status == LH_OK)
        status = program_input(program, LH_INPUT_POSITIONS, rows->positions, bytes);
    if (status == LH_OK) status = program_input(program, LH_INPUT_STARTS, rows->starts, starts);
    if (status == LH_OK) status = program_input(program, LH_INPUT_LABELS, rows->labels, bytes);
    if (status == LH_OK) status = program_input(program, LH_INPUT_WEIGHTS, rows->weights, bytes);
    return status;
}

static void free_config(const plugin_t *plugin, void *config)
{
    if (plugin == NULL || config == NULL) return;
    const option_table_t table = plugin_options(plugin);
    job_free_config(&table, config);
}

lh_status_t session_try_device(const job_t *job, registry_t *registry)
{
    const plugin_t *plugin = NULL;
    void *config = NULL;
    lh_device_t *device;
    if (job->device.plugin == NULL) return LH_OK;
    lh_status_t status = registry_load(registry, LH_KIND_DEVICE, job->device.plugin, &plugin);
    if (status != LH_OK) return status;
    const option_table_t table = plugin_options(plugin);
    status = job_parse_plugin(job, "device", &table, NULL, 0, &config);
    if (status == LH_OK) status = plugin->device->open(plugin->host, config, 0, &device);
    if (status == LH_OK) plugin->device->close(device);
    free_config(plugin, config);
    return status;
}

/* The engine first: programs and weights in it hold pointers into all the rest. */
void session_close(session_t *s)
{
    if (s == NULL) return;
    engine_close(s->engine);
    transfers_free(s->transfers);
    if (s->optimizer != NULL) s->optimizer_plugin->optimizer->close(s->optimizer);
    if (s->model != NULL) s->model_plugin->model->close(s->model);
    op_table_free(s->ops);
    free_config(s->model_plugin, s->model_config);
    free_config(s->device_plugin, s->device_config);
    free_config(s->optimizer_plugin, s->optimizer_config);
    text_free(&s->timed);
    text_free(&s->chosen);
    rule_set_free(&s->rules);
    groups_free(&s->groups);
    mem_free(s);
}
