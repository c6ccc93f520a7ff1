/* command_check.c - longhaul check PIPELINE.ini: everything that can be known without a device, a
 * tokenizer or a network, in milliseconds.
 *
 * Plugins are loaded and asked, since only they know their options; a model or an optimizer is
 * opened and closed again, as that is where it refuses them. What the checks have parsed is kept
 * until the end, because explaining prints the effective value of every key with where it comes
 * from.
 *
 * The check is a walk from what is cheap to what is not: options, rates, then files, then the step.
 *
 * The output is an INI that can be run in place of the one that was checked: a comment for each
 * plugin with its file and digest, then all sections that a stage of the job reads, each key with
 * its value and where that is from,
 *
 *     [train]
 *     batch              = 8                              ; examples/shakespeare.ini:27
 *     micro_batch        = 8                              ; command line, overrides base.ini:9
 *     seed               = 1                              ; default
 *
 * and at last, in comments, the bytes that ranks hold from step to step. */
#include <cli/command_check.h>

#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <cli/check.h>
#include <cli/check_connect.h>
#include <cli/model_source.h>
#include <config/options.h>
#include <config/quantity.h>
#include <control/secret.h>
#include <hf/hf_weights.h>
#include <launch/launch.h>
#include <links/carrier.h>
#include <plugin/call.h>
#include <session/step_layout.h>
#include <watch/scrape.h>

/* config is owned, but for a rule's; options and given are borrowed. */
typedef struct checked { /* a plugin (or rule) and what it reads */
    const plugin_t *plugin;
    option_table_t options;
    const option_given_t *given;
    uint32_t given_count;
    void *config;
} checked_t;

/* One run of the checks. out is set only where the result is to be printed. The lists below are
 * filled in the order of the checks, and read by what explains them. */
typedef struct check {
    cli_t *cli;
    const job_t *job;
    /* One for each plugin that the job names; transports by class of link. */
    checked_t model, optimizer, device;
    checked_t transports[JOB_SCOPES], fallbacks[JOB_SCOPES], collectives[JOB_SCOPES];
    check_step_t step; /* none where the job does not train */
    rule_set_t rules;  /* of [optimizer] and its groups */
    char vocab[32];
    uint64_t guessed_vocab; /* 0: the INI or an import says it */
    /* given points into it, and model.given at given. */
    hf_config_t imported;
    option_given_t *given;
    text_t *out;
} check_t;

/* Leaves *out empty where the job names none. */
static lh_status_t open_plugin(check_t *c, uint32_t kind, const char *section, const char *name,
                               checked_t *out)
{
    const plugin_t *plugin;
    if (name == NULL) return LH_OK; /* no stage needs it */
    lh_status_t status = registry_load(c->cli->plugins, kind, name, &plugin);
    if (status != LH_OK) return status;
    out->plugin = plugin;
    out->options = plugin_options(plugin);
    status = job_parse_plugin(c->job, section, &out->options, out->given, out->given_count,
                              &out->config);
    if (status == LH_OK) registry_configure(c->cli->plugins, plugin, out->config);
    return status;
}

/* The vocabulary is known only once the tokenizer is read; until then any will do. guessed_vocab
 * says that the number is made up: sizes that are printed from it are marked. Fixed, as the core's
 * key of that name may hold a word. */
static lh_status_t give_vocab(check_t *c)
{
    uint64_t rows;
    const job_model_t *m = &c->job->model;
    c->given = mem_array(1, sizeof(*c->given));
    if (c->given == NULL) return LH_NO_MEMORY;
    if (m->vocab == NULL || !quantity_u64(m->vocab, &rows))
        rows = c->guessed_vocab = m->vocab_multiple;
    (void)snprintf(c->vocab, sizeof(c->vocab), "%llu", (unsigned long long)rows);
    c->given[0] = (option_given_t){
        .key = "vocab", .value = c->vocab, .origin = "[model] vocab", .fixed = true};
    c->model.given = c->given;
    c->model.given_count = 1;
    return LH_OK;
}

/* What the config.json that is to be imported says of the model. No other file of its folder is
 * read: weights are the import stage's. */
static lh_status_t give_imported(check_t *c)
{
    const plugin_t *plugin;
    lh_status_t status = model_source_plugin(c->job, c->cli->plugins, &plugin);
    if (status == LH_OK) status = model_source_config(plugin, c->job->import.from, &c->imported);
    if (status != LH_OK) return status;
    model_source_tell(plugin, c->job->import.from, &c->imported);
    status = model_source_given(&c->imported, "imported config.json", &c->given);
    c->model.given = c->given;
    c->model.given_count = c->imported.count;
    return status;
}

/* What is to be generated, behind a prompt of one token at least. */
static lh_status_t check_room(const check_t *c, const lh_model_api_t *api, lh_model_t *model)
{
    parameters_t *p = NULL;
    if (!job_has_stage(c->job, STAGE_GENERATE)) return LH_OK;
    lh_status_t status = parameters_new(api, model, &p);
    if (status == LH_OK && c->job->generate.tokens >= p->max_tokens)
        status = fail(LH_INVALID,
                      "%s: [generate] tokens = %llu behind a prompt; the model is made for %llu",
                      c->job->path, (unsigned long long)c->job->generate.tokens,
                      (unsigned long long)p->max_tokens);
    parameters_free(p);
    return status;
}

/* What an export asks of a model: names in Hugging Face's files, for all that it writes. Behind the
 * training is late to hear of it. */
static lh_status_t check_form(const check_t *c, const lh_model_api_t *api, lh_model_t *model)
{
    parameters_adapter_t how;
    parameters_t *p = NULL;
    hf_weights_t names = {0};
    if (!job_has_stage(c->job, STAGE_EXPORT)) return LH_OK;
    if (api->hf == NULL)
        JOB_REFUSE(c->job, "pipeline", "stages",
                   "... export: the model plugin %s has no Hugging Face form",
                   c->model.plugin->name);
    const parameters_adapter_t *adapter = session_adapter(c->job, &how);
    const bool alone = c->job->export.adapter == EXPORT_ADAPTER_SEPARATE;
    lh_status_t status = parameters_new(api, model, &p);
    if (status == LH_OK && adapter != NULL) status = parameters_adapt(p, adapter);
    if (status == LH_OK) status = hf_weights_new(p, alone ? HF_OF_ADAPTER : HF_OF_MODEL, &names);
    hf_weights_free(&names);
    parameters_free(p);
    return status;
}

/* An import's options come from the folder that is to be imported, as the stage that imports may
 * not have run yet. */
static lh_status_t check_model_plugin(check_t *c)
{
    lh_model_t *model;
    const bool imports = c->job->import.from != NULL && c->job->model.plugin != NULL;
    lh_status_t status = imports ? give_imported(c) : give_vocab(c);
    if (status == LH_OK)
        status = open_plugin(c, LH_KIND_MODEL, "model", c->job->model.plugin, &c->model);
    if (status != LH_OK || c->model.plugin == NULL) return status;
    const lh_model_api_t *api = c->model.plugin->model;
    status = api->open(c->model.plugin->host, c->model.config, &model);
    if (status != LH_OK) return status;
    status = check_room(c, api, model);
    if (status == LH_OK) status = check_form(c, api, model);
    api->close(model);
    return status;
}

/* Opening it is the only way to ask a plugin whether it takes its options. The rule is not given to
 * it: that is checked by itself below. */
static lh_status_t check_optimizer(check_t *c)
{
    lh_optimizer_t *optimizer;
    lh_status_t status = open_plugin(c, LH_KIND_OPTIMIZER, "optimizer", c->job->optimizer.plugin,
                                     &c->optimizer);
    if (status != LH_OK || c->optimizer.plugin == NULL) return status;
    const lh_optimizer_api_t *api = c->optimizer.plugin->optimizer;
    status = api->open(c->optimizer.plugin->host, c->optimizer.config, &optimizer);
    if (status == LH_OK) api->close(optimizer);
    return status;
}

/* [rule.X] of a rule that the job does not use, [parts.X] or [plugin.X] of a plugin that is not
 * there. A section of a name that nobody reads is most often a misspelt one. */
static lh_status_t check_named_sections(check_t *c)
{
    for (uint32_t i = 0; i < document_section_count(c->job->document); i++) {
        const document_section_t *s = document_section(c->job->document, i);
        const plugin_t *parts;
        char where[600];
        if (text_starts(s->name, "parts.")) {
            const lh_status_t status = registry_load(c->cli->plugins, LH_KIND_PARTS, s->name + 6,
                                                     &parts);
            if (status != LH_OK) return status;
        }
        if (text_starts(s->name, "plugin.")) {
            document_where(s->file, s->line, where, sizeof(where));
            const lh_status_t status = registry_has(c->cli->plugins, s->name + 7, where);
            if (status != LH_OK) return status;
        }
        if (text_starts(s->name, "rule.") && !rule_set_reads(&c->rules, s->name)) {
            text_t named = {0};
            for (uint32_t k = 0; k < c->rules.count; k++)
                text_printf(&named, "%s%s", k > 0 ? ", " : "", c->rules.named[k].text);
            document_where(s->file, s->line, where, sizeof(where));
            const lh_status_t status = fail(
                LH_INVALID, "%s: [%s] is read by nobody: the job's rule is %s", where, s->name,
                c->rules.count > 0 && named.data != NULL ? named.data : "not set");
            text_free(&named);
            return status;
        }
    }
    return LH_OK;
}

/* [model] ops names plugins that are loaded for their ops. A plugin that brings no op is most often
 * a model's name in the wrong key. */
static lh_status_t check_ops(check_t *c)
{
    if (c->job->model.ops == NULL) return LH_OK;
    char *list = mem_text(c->job->model.ops), *rest = list;
    lh_status_t status = list == NULL ? LH_NO_MEMORY : LH_OK;
    while (status == LH_OK && rest != NULL) {
        const plugin_t *plugin;
        status = registry_find(c->cli->plugins, text_trim(strsep(&rest, ",")), &plugin);
        if (status == LH_OK && plugin->op_count == 0)
            status = fail(LH_INVALID, "[model] ops: plugin %s brings no op", plugin->name);
    }
    mem_free(list);
    return status;
}

/* Bound and dropped: what prepare would refuse is refused here. */
static lh_status_t check_filter(check_t *c)
{
    static const call_variable_t variables[] = {{"tokens", CALL_U64}};
    const call_scope_t scope = {
        .variables = variables, .variable_count = 1, .plugins = c->cli->plugins};
    call_t *call;
    if (c->job->prepare.accept == NULL) return LH_OK;
    const lh_status_t status = call_bind(c->job->prepare.accept, "[prepare] accept", &scope,
                                         CALL_U64, &call);
    if (status == LH_OK) call_free(call);
    return status;
}

/* Learning rate and hooks are bound as training binds them; the rate of step 0 is computed, too. */
static lh_status_t check_calls(check_t *c)
{
    step_calls_t *calls;
    lh_status_t status = check_filter(c);
    if (status != LH_OK || c->job->optimizer.learning_rate == NULL) return status;
    status = step_calls_new(c->job, c->cli->plugins, &calls);
    if (status != LH_OK) return status;
    double first;
    if (c->job->train.steps > 0) status = step_calls_rate(calls, 0, &first);
    step_calls_free(calls);
    return status;
}

/* What the INI does not name is usual here, and is loaded only for links that there are. usual is
 * room for the name that carrier_plugin chooses. */
static lh_status_t find_transport(const check_t *c, uint32_t scope, char usual[32],
                                  const char **name)
{
    *name = c->job->transports[scope].plugin;
    if (*name != NULL || !launch_has_links(c->cli->launch, scope)) return LH_OK;
    *name = carrier_plugin(c->job, c->cli->plugins, scope, usual);
    return *name == NULL ? LH_INVALID : LH_OK;
}

/* Whether it can work here at all; where there are no such links, whether it could give what its
 * section asks for anywhere: the INI is the same for all machines. */
static lh_status_t ask_carrier(const check_t *c, uint32_t scope, const checked_t *one,
                               const char *other)
{
    if (!launch_has_links(c->cli->launch, scope))
        return carrier_check_level(c->job, scope, one->plugin);
    return carrier_check(c->job, c->cli->plugins, scope, one->plugin->name, other);
}

/* Ranks that were started find it out together. The plugin is asked first, and then its fallback, which
 * all ranks would take. A fallback that is not needed here is still held against the level: where it is
 * needed, the job would end in the meeting. */
static lh_status_t check_carrier(const check_t *c, uint32_t scope)
{
    const checked_t *one = &c->transports[scope], *two = &c->fallbacks[scope];
    if (launch_is_started(c->cli->launch)) return LH_OK;
    const lh_status_t status = ask_carrier(c, scope, one,
                                           two->plugin != NULL ? two->plugin->name : NULL);
    if (status == LH_OK && two->plugin != NULL)
        return carrier_check_level(c->job, scope, two->plugin);
    if (status != LH_UNSUPPORTED || two->plugin == NULL) return status;
    log_line(LH_LOG_WARN, "%s; the fallback '%s' would be used on all ranks", fail_reason(),
             two->plugin->name);
    return ask_carrier(c, scope, two, one->plugin->name);
}

/* A plugin of a section that others share, parsed beside the keys of those. */
static lh_status_t parse_transport(const check_t *c, uint32_t scope, checked_t *one,
                                   const checked_t *two, const checked_t *three)
{
    const option_table_t others[2] = {two->options, three->options};
    if (one->plugin == NULL) return LH_OK;
    return job_parse_transport(c->job, scope, &one->options, others, 2, &one->config);
}

static lh_status_t load_transport(const check_t *c, const char *name, checked_t *out)
{
    if (name == NULL) return LH_OK;
    const lh_status_t status = registry_load(c->cli->plugins, LH_KIND_TRANSPORT, name,
                                             &out->plugin);
    if (status == LH_OK) out->options = plugin_options(out->plugin);
    return status;
}

/* A transport, its fallback and the plugin of collectives stand in one section, where each reads its own
 * keys. Each parse knows the others' keys, so that none refuses a key of another. */
static lh_status_t check_transport(check_t *c, uint32_t scope)
{
    lh_assert(scope > 0 && scope < JOB_SCOPES);
    const job_transport_t *t = &c->job->transports[scope];
    const char *name;
    char usual[32];
    checked_t *one = &c->transports[scope], *two = &c->fallbacks[scope],
              *three = &c->collectives[scope];
    lh_status_t status = find_transport(c, scope, usual, &name);
    if (status != LH_OK || name == NULL) return status;
    status = load_transport(c, name, one);
    if (status == LH_OK) status = load_transport(c, t->fallback, two);
    if (status == LH_OK) status = load_transport(c, t->collectives, three);
    if (status == LH_OK && three->plugin != NULL && three->plugin->transport->collectives == NULL)
        status = fail(LH_UNSUPPORTED, "[transport.%s] collectives = %s: it makes no collectives",
                      job_scope_names[scope], t->collectives);
    if (status == LH_OK) status = parse_transport(c, scope, one, two, three);
    if (status == LH_OK) status = parse_transport(c, scope, two, one, three);
    if (status == LH_OK) status = parse_transport(c, scope, three, one, two);
    return status == LH_OK ? check_carrier(c, scope) : status;
}

/* Every class of link that the job has; with its fallback, where one is named. */
static lh_status_t check_transports(check_t *c)
{
    lh_status_t status = LH_OK;
    for (uint32_t scope = LH_LINK_NODE; status == LH_OK && scope < JOB_SCOPES; scope++)
        status = check_transport(c, scope);
    return status;
}

/* Where rank 0 is, which makes the key; the others wait for it. Only where there will be several
 * ranks: a job that is alone needs no key. */
static lh_status_t check_secret_file(const check_t *c)
{
    const char *path = c->job->launch.secret;
    const bool several = job_ranks(c->job) > 1 || launch_size(c->cli->launch) > 1;
    if (path == NULL || !several || !launch_leads(c->cli->launch) ||
        launch_is_started(c->cli->launch))
        return LH_OK;
    return secret_check(path);
}

/* Where the stages begin; other machines get what those stages leave. The first launcher's machine
 * is where prepare, import and export run. */
static lh_status_t check_stage_files(const check_t *c)
{
    if (!launch_leads(c->cli->launch)) return LH_OK;
    lh_status_t status = check_inputs_there(c->job);
    if (status != LH_OK || !job_has_stage(c->job, STAGE_EXPORT)) return status;
    char *imported = c->job->import.from == NULL ? NULL : job_path(c->job, "import");
    if (imported == NULL && c->job->import.from != NULL) return LH_NO_MEMORY;
    status = check_export_target(c->job, imported);
    mem_free(imported);
    return status;
}

/* Left out where the INI does not say enough of a step. */
static lh_status_t check_step(check_t *c)
{
    if (!check_step_is_told(c->job)) return LH_OK;
    const check_step_how_t how = {.job = c->job,
                                  .registry = c->cli->plugins,
                                  .given = c->given,
                                  .given_count = c->model.given_count,
                                  .guessed_vocab = c->guessed_vocab};
    const lh_status_t status = check_step_open(&how, &c->step);
    if (status != LH_OK) return status;
    check_borders(c->step.session);
    return check_step_order(&c->step);
}

/* Where figures go to while it trains. A node exporter passes over files of other names in silence. */
static lh_status_t check_watch(const job_t *job)
{
    char host[SCRAPE_HOST], where[JOB_WHERE_BYTES], reason[1024];
    uint16_t port;
    job_watch_t w;
    lh_status_t status = job_watch_parse(job, &w);
    if (status != LH_OK) return status;
    if (w.metrics != NULL) status = scrape_address(w.metrics, host, &port);
    if (status != LH_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
        job_where(job, "watch", "metrics", where);
        status = fail(status, "%s: metrics: %s", where, reason);
    } else if (w.textfile != NULL && !text_ends(w.textfile, ".prom")) {
        job_where(job, "watch", "textfile", where);
        status = fail(LH_INVALID, "%s: textfile = %s: a name that ends in .prom was expected",
                      where, w.textfile);
    }
    job_watch_free(&w);
    return status;
}

/* Batches that are left out of the data. */
static lh_status_t check_skips(const job_t *job)
{
    uint64_t samples;
    return step_samples(job, 0, 0, NULL, &samples);
}

/* In the order of the sections, so that the first mistake told is the first one to be found. Called
 * by each rank as well; so nothing here may depend on which machine this is, but for what asks
 * `launch`. */
static lh_status_t check_options(check_t *c)
{
    lh_status_t status = check_skips(c->job);
    if (status == LH_OK) status = check_model_plugin(c);
    if (status == LH_OK) status = check_optimizer(c);
    if (status == LH_OK) status = rule_set_make(c->job, c->cli->plugins, &c->rules);
    if (status == LH_OK)
        status = open_plugin(c, LH_KIND_DEVICE, "device", c->job->device.plugin, &c->device);
    if (status == LH_OK) status = check_transports(c);
    if (status == LH_OK) status = check_secret_file(c);
    if (status == LH_OK) status = check_ops(c);
    if (status == LH_OK) status = check_named_sections(c);
    if (status == LH_OK) status = check_calls(c);
    if (status == LH_OK) status = check_inputs(c->job);
    if (status == LH_OK) status = check_watch(c->job);
    return status;
}

/* The rates of all steps: a function of a plugin may go wrong at a late one, which would end the run
 * there. Not for every rank that starts, as there may be millions. */
static lh_status_t check_rates(const check_t *c)
{
    step_calls_t *calls;
    if (c->job->optimizer.learning_rate == NULL) return LH_OK;
    lh_status_t status = step_calls_new(c->job, c->cli->plugins, &calls);
    if (status != LH_OK) return status;
    status = step_calls_rates(calls);
    step_calls_free(calls);
    return status;
}

/* What each rank checks by itself, then what one process checks for all. */
static lh_status_t check_all(check_t *c)
{
    lh_status_t status = check_options(c);
    if (status == LH_OK) status = check_rates(c);
    if (status == LH_OK) status = check_stage_files(c);
    if (status == LH_OK) status = check_step(c);
    return status;
}

/* The key's file is hidden for as long as it might be the key itself. Two tables: the core's keys
 * of the section, then the plugin's. */
static void explain_one(const check_t *c, const char *section, const checked_t *checked)
{
    option_table_t tables[2] = {{0}, checked->options};
    options_how_t how = job_plugin_how(c->job, section, tables, checked->given,
                                       checked->given_count);
    if (strcmp(section, "launch") == 0) how.hidden = "secret";
    /* Where the INI says nothing, another section has decided: its default would be refused when it
     * is read back. */
    static const option_given_t apart = {"documents", "apart", "[train] phase", false},
                                ordered = {"bits", "ordered", "[transport.node] collectives",
                                           false};
    const bool by_phase = strcmp(section, "data") == 0 && c->job->train.phase != PHASE_PRETRAIN;
    const bool by_library = strcmp(section, "comm") == 0 &&
                            c->job->transports[LH_LINK_NODE].collectives != NULL;
    if (by_phase || by_library) {
        how.given = by_phase ? &apart : &ordered;
        how.given_count = 1;
    }
    options_explain(&how, c->out);
    text_append(c->out, "\n");
}

/* A section that is not there and that no stage asks for has nothing to say. Sections of stages
 * that the job does not have are left out, so that the output is of this job and not of all that
 * could be. */
static bool is_shown(const check_t *c, const job_section_t *s)
{
    if (document_find(c->job->document, s->name) != NULL) return true;
    for (uint32_t i = 0; i < c->job->stage_count; i++)
        if ((s->stages & (1u << c->job->stages[i])) != 0 ||
            strcmp(job_stage_names[c->job->stages[i]], s->name) == 0)
            return true;
    return s->stages == 0 && s->rows != NULL && strchr(s->name, '.') == NULL &&
           strcmp(s->name, "generate") != 0 && strcmp(s->name, "eval") != 0 &&
           strcmp(s->name, "export") != 0;
}

/* Four tables: the core's, the plugin's, the fallback's, that of the collectives. */
static void explain_transport(const check_t *c, const char *section)
{
    uint32_t scope = LH_LINK_NODE;
    while (strcmp(section + strlen("transport."), job_scope_names[scope]) != 0) {
        scope++;
        lh_assert(scope < JOB_SCOPES);
    }
    option_table_t tables[4] = {{0},
                                c->transports[scope].options,
                                c->fallbacks[scope].options,
                                c->collectives[scope].options};
    options_how_t how = job_plugin_how(c->job, section, tables, NULL, 0);
    how.table_count = 4;
    options_explain(&how, c->out);
    text_append(c->out, "\n");
}

/* Sections with a plugin's keys are these three; transports have a function of their own. */
static const checked_t *checked_of(const check_t *c, const char *section)
{
    if (strcmp(section, "model") == 0) return &c->model;
    return strcmp(section, "optimizer") == 0 ? &c->optimizer : &c->device;
}

/* Each section whose name begins so, in the order of the INI. */
static void explain_groups(const check_t *c, const char *prefix, const option_table_t *table)
{
    for (uint32_t i = 0; i < document_section_count(c->job->document); i++) {
        const document_section_t *s = document_section(c->job->document, i);
        if (!text_starts(s->name, prefix)) continue;
        const options_how_t how = {
            .document = c->job->document, .section = s->name, .tables = table, .table_count = 1};
        options_explain(&how, c->out);
        text_append(c->out, "\n");
    }
}

/* An architecture in the INI: a key of these sections is whatever the spec calls it, so there
 * are as many rows as entries. */
static lh_status_t explain_spec(const check_t *c)
{
    for (uint32_t i = 0; i < document_section_count(c->job->document); i++) {
        const document_section_t *s = document_section(c->job->document, i);
        if (!text_equal(s->name, "spec") && !text_starts(s->name, "spec.")) continue;
        lh_option_t *rows = mem_array(s->entry_count, sizeof(*rows));
        if (rows == NULL) return LH_NO_MEMORY;
        for (uint32_t k = 0; k < s->entry_count; k++)
            rows[k] = (lh_option_t){.key = s->entries[k]->key,
                                    .fallback = "",
                                    .help = "a line of a spec",
                                    .type = LH_OPT_STRING};
        const option_table_t table = {.rows = rows, .count = s->entry_count, .owner = "the core"};
        const options_how_t how = {
            .document = c->job->document, .section = s->name, .tables = &table, .table_count = 1};
        options_explain(&how, c->out);
        text_append(c->out, "\n");
        mem_free(rows);
    }
    return LH_OK;
}

/* Plugins that only bring functions, ops or rules are known by having been loaded. */
static void explain_parts(const check_t *c)
{
    for (uint32_t i = 0; i < registry_count(c->cli->plugins); i++) {
        const plugin_t *p = registry_at(c->cli->plugins, i);
        char section[64];
        if (p->kind != LH_KIND_PARTS || p->option_count == 0) continue;
        (void)snprintf(section, sizeof(section), "parts.%s", p->name);
        const checked_t checked = {.plugin = p, .options = plugin_options(p)};
        explain_one(c, section, &checked);
    }
}

/* Every section that a stage reads, in the order of the tables, with each value's origin. Begins
 * with the plugins and the digests of their files, so that a printed check says what it was checked
 * against, and what [plugin.NAME] sha256 would pin can be copied from it: whole, and on a line of its
 * own, as a comment too has no more than the bytes of a line. Sections with a star stand for any number
 * of the INI's own; the others are printed once, if anything reads them. */
static lh_status_t explain_all(const check_t *c)
{
    uint32_t count;
    char prefix[32];
    const job_section_t *all = job_sections(&count);
    for (uint32_t i = 0; i < registry_count(c->cli->plugins); i++) {
        const plugin_t *p = registry_at(c->cli->plugins, i);
        text_t file = {0};
        text_printf(&file, "%s %s %s: %s", plugin_kind_text(p->kind), p->name, p->version, p->path);
        options_append_comment(&file, c->out);
        text_printf(c->out, ";     sha256 %s\n", p->sha256);
        text_free(&file);
    }
    text_append(c->out, "\n");
    for (uint32_t i = 0; i < count; i++) {
        const job_section_t *s = &all[i];
        static const checked_t none = {0};
        const option_table_t core = {.rows = s->rows, .count = s->count, .owner = "the core"};
        const size_t length = strlen(s->name);
        if (s->rows == NULL) continue;
        if (text_ends(s->name, ".*")) {
            (void)snprintf(prefix, sizeof(prefix), "%.*s", (int)(length - 1), s->name);
            explain_groups(c, prefix, &core);
        } else if (!is_shown(c, s)) {
            continue;
        } else if (text_starts(s->name, "transport.")) {
            explain_transport(c, s->name);
        } else {
            explain_one(c, s->name, s->plugin_key == NULL ? &none : checked_of(c, s->name));
        }
    }
    for (uint32_t i = 0; i < c->rules.count; i++) {
        const rule_named_t *named = &c->rules.named[i];
        const checked_t rule = {.plugin = named->plugin, .options = named->table};
        if (named->table.count > 0) explain_one(c, named->section, &rule);
    }
    explain_parts(c);
    return explain_spec(c);
}

/* Everything may be missing, where a check failed early. */
static void free_check(check_t *c)
{
    checked_t *const checked[] = {&c->model, &c->optimizer, &c->device};
    check_step_close(&c->step);
    for (size_t i = 0; i < sizeof(checked) / sizeof(checked[0]); i++)
        if (checked[i]->config != NULL) job_free_config(&checked[i]->options, checked[i]->config);
    for (uint32_t i = 0; i < JOB_SCOPES; i++) {
        const checked_t *const all[] = {&c->transports[i], &c->fallbacks[i], &c->collectives[i]};
        for (uint32_t k = 0; k < 3; k++)
            if (all[k]->config != NULL) job_free_config(&all[k]->options, all[k]->config);
    }
    rule_set_free(&c->rules);
    mem_free(c->given);
    hf_config_free(&c->imported);
}

/* Prints nothing; the failure's sentence is all. */
lh_status_t check_job(cli_t *cli)
{
    check_t c = {.cli = cli, .job = cli->job};
    const lh_status_t status = check_all(&c);
    free_check(&c);
    return status;
}

lh_status_t check_job_options(cli_t *cli)
{
    check_t c = {.cli = cli, .job = cli->job};
    const lh_status_t status = check_options(&c);
    free_check(&c);
    return status;
}

/* A disk that is full at the first save is better known before the first step. */
static lh_status_t explain_room(check_t *c)
{
    check_disk_t room;
    const lh_status_t status = check_disk(c->step.session, c->step.programs.schedule->rounds,
                                          &room);
    if (status != LH_OK) return status;
    text_t disk = {0};
    check_disk_text(c->job, &room, &disk);
    options_append_comment(&disk, c->out);
    text_free(&disk);
    const job_checkpoint_t *how = &c->job->checkpoint;
    char every[48] = "";
    if (how->keep_every > 0)
        (void)snprintf(every, sizeof(every), ", keep_every = %llu",
                       (unsigned long long)how->keep_every);
    if (room.free_bytes / room.count < room.bytes)
        log_line(LH_LOG_WARN, "[checkpoint] keep = %llu%s%s: there is no room for so many",
                 (unsigned long long)how->keep, every, how->keep_best ? ", keep_best = yes" : "");
    return LH_OK;
}

/* Prints only where everything is well, so the output of a failure is its sentence. */
static int check_command(cli_t *cli)
{
    text_t out = {0};
    check_t c = {.cli = cli, .job = cli->job, .out = &out};
    lh_status_t status = LH_OK;
    if (cli_flag(cli, "connect") != NULL) {
        /* A rank checks them before it meets the others. */
        if (!launch_is_started(cli->launch)) status = check_job_options(cli);
        return status == LH_OK ? check_connect(cli) : status;
    }
    status = check_all(&c);
    if (status == LH_OK) {
        check_halves(cli->job);
        status = explain_all(&c);
        if (status == LH_OK && c.step.session != NULL) status = check_step_memory(&c.step, &out);
        if (status == LH_OK && c.step.session != NULL) status = explain_room(&c);
        if (status == LH_OK) check_links(cli->job, &out);
    }
    if (status == LH_OK) {
        status = text_status(&out);
    }
    if (status == LH_OK && out.data != NULL) status = cli_print_shown(out.data);
    text_free(&out);
    free_check(&c);
    return status;
}

const command_t command_check = {
    .name = "check",
    .summary = "validate a pipeline without touching a device; print every effective value",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL | CLI_HAS_RANKS |
             CLI_RANKS_CONNECT,
    .run = check_command,
    .check = check_job_options,
    .flags = {{"connect", NULL,
               "instead, on every machine: meet as ranks do and dial every pair of hosts"},
              CLI_FLAG_HOST},
};
