/* model_source.c - tokenizer, imported options and weights of a job.
 *
 * Where each command gets its weights:
 *
 *     eval, generate   newest whole checkpoint of training, else of the import; weights only
 *     export           the same, read whole and checked before
 *     train            a resume from its own folder (core/train), else the import, else random */
#include <cli/model_source.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <config/quantity.h>
#include <hf/hf_weights.h>
#include <session/session.h>
#include <session/snapshot.h>
#include <spec/spec.h>

/* A job imports where [import] from is set, whether or not it has that stage. Folders are named
 * here whether or not they are there yet. */
static lh_status_t find_import(model_source_t *s)
{
    char *folder = job_path(s->job, "import");
    if (folder == NULL) return LH_NO_MEMORY;
    if (s->job->import.from == NULL) {
        mem_free(folder);
        return LH_OK;
    }
    s->import_folder = folder;
    s->import_checkpoints = path_join(folder, "checkpoints");
    return s->import_checkpoints == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Values are taken as if they stood in the INI, but give way to it; only the vocabulary is fixed.
 */
lh_status_t model_source_given(const hf_config_t *config, const char *origin, option_given_t **out)
{
    option_given_t *given = mem_array(config->count, sizeof(*given));
    if (given == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < config->count; i++) {
        const hf_option_t *o = &config->options[i];
        /* The vocabulary of imported weights is theirs, whatever [model] vocab says by default. */
        given[i] = (option_given_t){.key = o->key,
                                    .value = o->value,
                                    .origin = origin,
                                    .fixed = strcmp(o->key, "vocab") == 0};
    }
    *out = given;
    return LH_OK;
}

/* ---- [model] plugin = from_import ---- */

#define FROM_IMPORT "from_import"

/* Real files have a few KiB. */
enum { CONFIG_MOST = 16 << 20 };

/* Context of offer_plugin. */
typedef struct choice {
    registry_t *registry;
    const char *path, *type; /* of the config.json; its model_type */
    const plugin_t *found;
    text_t known; /* "llama, gpt2": what the plugins that are there read */
} choice_t;

/* Each model plugin that is installed. One that can't be loaded is told and passed over: the one
 * that is wanted may be another. */
static lh_status_t offer_plugin(void *context, const char *name)
{
    choice_t *c = context;
    const plugin_t *p;
    lh_status_t status = registry_load(c->registry, LH_KIND_MODEL, name, &p);
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK) {
        log_line(LH_LOG_WARN, "%s", fail_reason());
        fail_clear();
        return LH_OK;
    }
    const lh_hf_t *hf = p->model->hf;
    if (hf == NULL) return LH_OK;
    text_printf(&c->known, "%s%s", c->known.length == 0 ? "" : ", ", hf->model_type);
    if (!hf_one_of(hf->model_type, c->type)) return LH_OK;
    if (c->found != NULL)
        return fail(LH_INVALID,
                    "%s: model_type %.64s is read by the plugins %s and %s; name one in [model] "
                    "plugin, or with --set model.plugin=NAME",
                    c->path, c->type, c->found->name, p->name);
    c->found = p;
    return LH_OK;
}

/* The plugin whose table has this model_type. Every installed one is asked, so that two which read
 * the same are not chosen between by chance. */
static lh_status_t choose_plugin(choice_t *c)
{
    lh_status_t status = registry_list(c->registry, LH_KIND_MODEL, offer_plugin, c);
    if (status == LH_OK) status = text_status(&c->known);
    if (status == LH_OK && c->found == NULL)
        status = fail(LH_UNSUPPORTED, "%s: model_type is %.64s; the model plugins in %s read %s",
                      c->path, c->type, registry_folder_text(c->registry),
                      c->known.data == NULL ? "none" : c->known.data);
    text_free(&c->known);
    return status;
}

/* The config.json that is to be imported; where its folder is gone, the one that the import stage
 * has kept. mem_free(*out). */
static lh_status_t find_config(const job_t *job, char **out)
{
    char *from = path_join(job->import.from, "config.json");
    char *own = from == NULL || file_exists(from) ? NULL : job_path(job, "import/config.json");
    const bool kept = own != NULL && file_exists(own);
    *out = kept ? own : from;
    mem_free(kept ? from : own);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

lh_status_t model_source_choose(job_t *job, registry_t *registry)
{
    char *path;
    json_document_t *file = NULL;
    choice_t choice = {.registry = registry};
    if (!text_equal(job->model.plugin, FROM_IMPORT)) return spec_adopt(job, registry);
    if (job->import.from == NULL)
        return fail(LH_INVALID,
                    "%s: [model] plugin = " FROM_IMPORT ", but [import] from is not set",
                    job->path);
    lh_status_t status = find_config(job, &path);
    if (status != LH_OK) return status;
    status = json_read(path, CONFIG_MOST, UINT64_MAX, &file);
    choice.path = path;
    if (status == LH_OK) status = json_take_text(path, json_root(file), "model_type", &choice.type);
    if (status == LH_OK) status = choose_plugin(&choice);
    if (status == LH_OK) {
        char *name = mem_text(choice.found->name);
        if (name == NULL) status = LH_NO_MEMORY;
        if (name != NULL) {
            mem_free(job->model.plugin);
            job->model.plugin = name;
        }
    }
    json_free(file);
    mem_free(path);
    return status;
}

/* ---- what a command opens ---- */

lh_status_t model_source_plugin(const job_t *job, registry_t *registry, const plugin_t **out)
{
    const plugin_t *plugin;
    const lh_status_t status = registry_load(registry, LH_KIND_MODEL, job->model.plugin, &plugin);
    if (status != LH_OK) return status;
    if (plugin->model->hf == NULL)
        return fail(LH_UNSUPPORTED, "the model plugin %s has no Hugging Face form", plugin->name);
    *out = plugin;
    return LH_OK;
}

lh_status_t model_source_config(const plugin_t *plugin, const char *folder, hf_config_t *out)
{
    lh_assert(plugin->model->hf != NULL);
    char *path = path_join(folder, "config.json");
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = hf_config_read(plugin->model->hf, path, out);
    mem_free(path);
    return status;
}

void model_source_tell(const plugin_t *plugin, const char *folder, const hf_config_t *config)
{
    if (config->ignored.data != NULL)
        log_line(LH_LOG_INFO, "%s: config.json: ignored: %s", folder, config->ignored.data);
    if (config->unread.data != NULL)
        log_line(LH_LOG_WARN,
                 "%s: config.json: not read, as the model plugin %s knows no such key: %s", folder,
                 plugin->name, config->unread.data);
}

/* A job that imports needs what its import stage has written, and not the folder that this was made
 * from: which may have changed since. */
static lh_status_t read_config(model_source_t *s, registry_t *registry, bool planned)
{
    if (s->import_folder == NULL) return LH_OK;
    const plugin_t *plugin;
    const char *folder = s->import_folder;
    lh_status_t status = model_source_plugin(s->job, registry, &plugin);
    if (status != LH_OK) return status;
    char *path = path_join(folder, "config.json");
    if (path == NULL) return LH_NO_MEMORY;
    if (!file_exists(path) && planned)
        folder = s->job->import.from;
    else if (!file_exists(path))
        status = fail(LH_INVALID, "%s: not there; run the import stage first", path);
    mem_free(path);
    if (status == LH_OK) status = model_source_config(plugin, folder, &s->config);
    if (status != LH_OK) return status;

    s->given_count = s->config.count;
    return model_source_given(&s->config, "imported config.json", &s->given);
}

lh_status_t model_source_tokenizer(const job_t *job, const char *path, tokenizer_t **out)
{
    const job_limits_t *most = &job->limits;
    const tokenizer_limits_t limits = {.vocabulary = (uint32_t)most->vocabulary,
                                       .token_bytes = (uint32_t)most->token_bytes,
                                       .merges = (uint32_t)most->merges,
                                       .file_bytes = most->tokenizer_bytes};
    return tokenizer_load(path, &limits, out);
}

/* The first that is named counts: [prepare], then [eval], then what was imported. */
static lh_status_t source_load_tokenizer(model_source_t *s, uint32_t wanted)
{
    const char *path = s->job->prepare.tokenizer;
    if (path == NULL) path = s->job->eval.tokenizer;
    const bool named = path != NULL;
    if (!named && wanted != TOKENIZER_IF_NAMED && wanted != TOKENIZER_PLANNED)
        path = s->import_folder;
    if (path == NULL && wanted == TOKENIZER_NEEDED)
        return fail(LH_INVALID, "%s: no tokenizer; name one in [prepare] tokenizer", s->job->path);
    if (path == NULL) return LH_OK;

    const lh_status_t status = model_source_tokenizer(s->job, path, &s->tokenizer);
    if (status == LH_OK) return tokenizer_digest(s->tokenizer, &s->tokenizer_digest);
    if (named || wanted == TOKENIZER_NEEDED) return status;
    log_line(LH_LOG_INFO, "ids only, no text: %s", fail_reason());
    return LH_OK;
}

/* Rounded up to a multiple, as matrix kernels like round numbers; the rows behind the last token
 * are never picked. An import's vocabulary is its own. */
static lh_status_t find_vocab(model_source_t *s)
{
    const job_model_t *model = &s->job->model;
    if (s->import_folder != NULL) return LH_OK;
    if (quantity_u64(model->vocab, &s->vocab)) return LH_OK;
    if (!text_equal(model->vocab, "from_tokenizer"))
        return fail(LH_INVALID,
                    "%s: [model] vocab = %s; a number, from_tokenizer, or with an import "
                    "from_import",
                    s->job->path, model->vocab);
    if (s->tokenizer == NULL)
        return fail(LH_INVALID,
                    "%s: [model] vocab = from_tokenizer, but [prepare] tokenizer is not set",
                    s->job->path);
    const uint64_t multiple = model->vocab_multiple == 0 ? 1 : model->vocab_multiple;
    const uint64_t size = (uint64_t)tokenizer_vocab_size(s->tokenizer);
    lh_assert(size > 0);
    s->vocab = (size + multiple - 1) / multiple * multiple;
    return LH_OK;
}

/* The order: folders, then options, then the tokenizer, then the vocabulary that follows from both.
 */
lh_status_t model_source_open(const job_t *job, registry_t *registry, uint32_t tokenizer,
                              model_source_t *out)
{
    model_source_t s = {.job = job};
    lh_status_t status = find_import(&s);
    if (status == LH_OK) status = read_config(&s, registry, tokenizer == TOKENIZER_PLANNED);
    if (status == LH_OK) status = source_load_tokenizer(&s, tokenizer);
    if (status == LH_OK) status = find_vocab(&s);
    if (status != LH_OK) {
        model_source_close(&s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void model_source_close(model_source_t *s)
{
    tokenizer_free(s->tokenizer);
    mem_free(s->given);
    hf_config_free(&s->config);
    mem_free(s->import_checkpoints);
    mem_free(s->import_folder);
    *s = (model_source_t){0};
}

/* One sentence for whoever wanted weights. */
static lh_status_t no_checkpoint(const model_source_t *s)
{
    return fail(LH_INVALID, "%s: holds no checkpoint; run the train or the import stage first",
                s->job->checkpoint.folder);
}

/* Training's checkpoints go before the import, which they were made from. */
lh_status_t model_source_weights(const model_source_t *s, const session_t *session)
{
    /* In the order in which they are looked through. */
    const char *const folders[] = {s->job->checkpoint.folder, s->import_checkpoints};
    bool found = false;
    text_t model = {0};
    snapshot_identity_model(s->job, session->model_plugin, session->model_config, &model);
    snapshot_identity_tokenizer(s->tokenizer_digest, &model);
    lh_status_t status = text_status(&model);
    for (int i = 0; i < 2 && status == LH_OK && !found; i++)
        if (folders[i] != NULL && file_exists(folders[i]))
            status = snapshot_load_newest(session->weights, folders[i], model.data, &found);
    if (status == LH_OK && !found) status = no_checkpoint(s);
    uint64_t digest;
    if (status == LH_OK && session->reference != NULL)
        status = snapshot_load_reference(session, s->import_checkpoints, model.data, &digest);
    text_free(&model);
    return status;
}

/* The same lines as model_source_weights compares, for a checkpoint that the caller has opened. */
lh_status_t model_source_same_model(const model_source_t *s, const checkpoint_t *c,
                                    const plugin_t *plugin, const void *config)
{
    text_t model = {0};
    snapshot_identity_model(s->job, plugin, config, &model);
    snapshot_identity_tokenizer(s->tokenizer_digest, &model);
    lh_status_t status = text_status(&model);
    if (status == LH_OK)
        status = snapshot_identity_compare_model(c->path, c->manifest->meta.model, model.data);
    text_free(&model);
    return status;
}

/* checkpoint_open_latest reads every byte: an export must not carry damage on. */
lh_status_t model_source_checkpoint(const model_source_t *s, checkpoint_t **out)
{
    checkpoint_t *found = NULL;
    lh_status_t status = LH_OK;
    if (file_exists(s->job->checkpoint.folder))
        status = checkpoint_open_latest(s->job->checkpoint.folder, &found);
    if (status == LH_OK && found == NULL && s->import_checkpoints != NULL &&
        file_exists(s->import_checkpoints))
        status = checkpoint_open_latest(s->import_checkpoints, &found);
    if (status != LH_OK) return status;
    if (found == NULL) return no_checkpoint(s);
    *out = found;
    return LH_OK;
}

session_how_t model_source_session(const model_source_t *s, registry_t *registry)
{
    return (session_how_t){.job = s->job,
                           .registry = registry,
                           .vocab = s->vocab,
                           .given = s->given,
                           .given_count = s->given_count};
}

int32_t model_source_eod(const model_source_t *s)
{
    return s->tokenizer == NULL ? -1 : tokenizer_special(s->tokenizer)->eod;
}

/* Not rounded, unlike vocab. */
uint64_t model_source_vocabulary(const model_source_t *s)
{
    return s->tokenizer == NULL ? 0 : (uint64_t)tokenizer_vocab_size(s->tokenizer);
}

/* ---- a model's options parsed, the model opened, its parameters listed ---- */

/* *out is set on success only. */
lh_status_t model_layout_open(const job_t *job, registry_t *registry, const option_given_t *given,
                              uint32_t given_count, uint64_t vocab, model_layout_t *out)
{
    model_layout_t l = {0};
    lh_status_t status = model_source_plugin(job, registry, &l.plugin);
    if (status != LH_OK) return status;
    l.options = plugin_options(l.plugin);
    status = session_model_options(job, l.plugin, vocab, given, given_count, &l.config);
    if (status == LH_OK) {
        registry_configure(registry, l.plugin, l.config);
        status = l.plugin->model->open(l.plugin->host, l.config, &l.model);
    }
    if (status == LH_OK) status = parameters_new(l.plugin->model, l.model, &l.parameters);
    parameters_adapter_t adapter;
    if (status == LH_OK && session_adapter(job, &adapter) != NULL)
        status = parameters_adapt(l.parameters, &adapter);
    if (status == LH_OK)
        *out = l;
    else
        model_layout_close(&l);
    return status;
}

/* Each part may be missing, where opening failed. */
void model_layout_close(model_layout_t *l)
{
    if (l->parameters != NULL) parameters_free(l->parameters);
    if (l->model != NULL) l->plugin->model->close(l->model);
    if (l->config != NULL) job_free_config(&l->options, l->config);
    *l = (model_layout_t){0};
}

/* A callback of hf_export: key by key, as a config.json asks for them. */
const char *model_layout_option(void *context, const char *key)
{
    model_layout_t *l = context;
    const lh_option_t *row = NULL;
    for (uint32_t i = 0; i < l->options.count && row == NULL; i++)
        if (strcmp(l->options.rows[i].key, key) == 0) row = &l->options.rows[i];
    if (row == NULL) return NULL;

    if (row->type == LH_OPT_F64) { /* as Python writes it: it goes into config.json */
        json_real_text(*(const double *)((const char *)l->config + row->offset), l->value);
        return l->value;
    }
    return option_text(row, l->config, l->value);
}
