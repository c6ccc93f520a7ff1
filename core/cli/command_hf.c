/* command_hf.c - the two ways between Hugging Face and this program. longhaul import PIPELINE.ini:
 * a folder becomes a checkpoint, its config.json the model's options. longhaul export PIPELINE.ini:
 * the newest checkpoint becomes a folder.
 *
 * Neither way computes anything: names are mapped by the table of the model's plugin, values are
 * converted from dtype to dtype, shard by shard. An import reads files that somebody else made, so
 * it runs in a child process that may open nothing but what it needs (base/child.h); what it finds
 * goes back as a struct of numbers.
 *
 * Folders:
 *
 *     import   [import] from  ->  import/checkpoints (step 0) and config.json of the pipeline
 *     export   newest checkpoint of training, else of the import  ->  [export] folder */
#include <base/child.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <cli/check.h>
#include <cli/command_run.h>
#include <cli/model_source.h>
#include <config/options.h>
#include <hf/hf_config.h>
#include <hf/hf_export.h>
#include <hf/hf_import.h>

/* ---- import ---- */

/* What an import may open: its folders, what plugins need, and the files that links of the model's
 * and of the adapter's folder lead to, as the Hugging Face cache is made of such. Lists for
 * child.h. The strings of `links` are owned, the others borrowed. */
typedef struct import_paths { /* ended by NULL, as child.h takes them */
    /* Paths that may be read, with all that lies below them. */
    const char **read;
    const char *write[3];
    char **links; /* of `read`: what is to be freed */
    uint32_t link_count;
    size_t link_room;
} import_paths_t;

/* Where the loader looks for the libraries of a plugin that a model's row names. */
static const char *const libraries[] = {"/usr", "/lib", "/lib64", "/etc/ld.so.cache"};
enum { LIBRARIES = sizeof(libraries) / sizeof(libraries[0]) };

/* Context of add_link. */
typedef struct link_listing {
    import_paths_t *paths;
    const char *folder;
} link_listing_t;

/* Only a regular file: a folder would bring all that lies in it. */
static bool leads_to_file(const char *path)
{
    struct stat st;
    return sys()->lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && sys()->stat(path, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* What is no link is reached through its folder anyway. */
static int add_link(void *context, const char *name)
{
    const link_listing_t *l = context;
    import_paths_t *p = l->paths;
    char *path = path_join(l->folder, name);
    if (path == NULL) return -1;
    if (!leads_to_file(path)) {
        mem_free(path);
        return 0;
    }
    char **links = mem_grow(p->links, &p->link_room, p->link_count + 1, sizeof(*links));
    if (links == NULL) {
        mem_free(path);
        return -1;
    }
    p->links = links;
    p->links[p->link_count++] = path;
    return 0;
}

/* Of `read` only the links were made here. */
static void import_paths_free(import_paths_t *p)
{
    for (uint32_t i = 0; i < p->link_count; i++)
        mem_free(p->links[i]);
    mem_free(p->links);
    mem_free(p->read);
    *p = (import_paths_t){.read = NULL};
}

/* read has room for the folders, the plugins, the libraries, the links and the NULL at the end. */
static lh_status_t import_paths_find(const cli_t *cli, import_paths_t *out)
{
    const char *from = cli->job->import.from, *const given[] = {from, cli->job->import.adapter};
    import_paths_t p = {.write = {cli->job->pipeline.folder, "/dev/null"}};
    fail_clear();
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        link_listing_t listing = {&p, given[i]};
        /* A folder that cannot be listed is the import's to tell of. */
        if (given[i] != NULL && sys()->list(given[i], add_link, &listing) != 0 &&
            fail_reason()[0] != '\0')
            goto no_memory;
    }
    uint32_t folder_count;
    const char *const *folders = registry_folders(cli->plugins, &folder_count);
    p.read = mem_array(p.link_count + LIBRARIES + folder_count + 3u, sizeof(*p.read));
    if (p.read == NULL) goto no_memory;
    uint32_t count = 0;
    p.read[count++] = from;
    if (cli->job->import.adapter != NULL) p.read[count++] = cli->job->import.adapter;
    for (uint32_t i = 0; i < folder_count; i++)
        p.read[count++] = folders[i];
    for (uint32_t i = 0; i < LIBRARIES; i++)
        p.read[count++] = libraries[i];
    for (uint32_t i = 0; i < p.link_count; i++)
        p.read[count++] = p.links[i];
    *out = p;
    return LH_OK;
no_memory:
    import_paths_free(&p);
    return LH_NO_MEMORY;
}

/* The model is opened with the options of the config.json that is being imported: the shapes of its
 * parameters follow from them. */
static lh_status_t import_layout(const cli_t *cli, const hf_config_t *config, model_layout_t *out)
{
    option_given_t *given;
    lh_status_t status = model_source_given(config, "config.json", &given);
    if (status != LH_OK) return status;
    status = model_layout_open(cli->job, cli->plugins, given, config->count, 0, out);
    mem_free(given);
    return status;
}

/* What PEFT's configuration says of the job's adapter. */
static hf_adapter_t adapter_of(const job_t *job)
{
    return (hf_adapter_t){.rank = job->adapter.rank,
                          .alpha = job->adapter.alpha,
                          .dora = job->adapter.kind == ADAPTER_DORA,
                          .base = job->import.from};
}

/* Tensors, shard by shard, into a checkpoint of step 0. model_options is what the manifest keeps of
 * the config.json. */
static lh_status_t import_tensors(const cli_t *cli, const hf_config_t *config,
                                  const model_layout_t *layout, const char *folder,
                                  hf_import_result_t *out)
{
    text_t options = {0};
    hf_config_text(config, &options);
    const job_limits_t *limits = &cli->job->limits;
    const shard_limits_t shards = {
        .file = {.header_bytes = limits->header_bytes, .tensors = limits->tensors},
        .shards = limits->shards};
    const hf_import_how_t how = {.from = cli->job->import.from,
                                 .folder = folder,
                                 .table = layout->plugin->model->hf,
                                 .parameters = layout->parameters,
                                 .adapter = cli->job->import.adapter,
                                 .adapter_is = adapter_of(cli->job),
                                 .model_options = options.data,
                                 .limits = &shards,
                                 .host = layout->plugin->host,
                                 .plugins = cli->plugins};
    lh_status_t status = text_status(&options);
    if (status == LH_OK) status = hf_import(&how, out);
    text_free(&options);
    return status;
}

/* All that the child needs; it is forked, so pointers hold. */
typedef struct importer {
    const cli_t *cli;
    const plugin_t *plugin;
    const char *folder;
} importer_t;

/* All that reads a file of the Hugging Face folder. out is a hf_import_result_t. Runs in the child,
 * or in this process where nothing is confined, as in tests. */
static lh_status_t import_folder(void *context, void *out)
{
    const importer_t *im = context;
    hf_config_t config;
    model_layout_t layout;
    lh_status_t status = model_source_config(im->plugin, im->cli->job->import.from, &config);
    if (status != LH_OK) return status;
    model_source_tell(im->plugin, im->cli->job->import.from, &config);
    status = import_layout(im->cli, &config, &layout);
    if (status == LH_OK) {
        status = import_tensors(im->cli, &config, &layout, im->folder, out);
        model_layout_close(&layout);
    }
    hf_config_free(&config);
    return status;
}

/* It needs a folder to write in before it can make one. A folder that was made for the import goes
 * again if it fails. */
static lh_status_t import_confined(importer_t *im, hf_import_result_t *out)
{
    const char *own = im->cli->job->pipeline.folder;
    const uint32_t missing = folders_missing(own);
    import_paths_t paths;
    lh_status_t status = import_paths_find(im->cli, &paths);
    if (status != LH_OK) return status;
    /* What the child may do, what it does, and how many bytes of result come back. */
    const confine_work_t child = {.what = "the import",
                                  .may = {.read = paths.read, .write = paths.write},
                                  .work = import_folder,
                                  .context = im,
                                  .result_bytes = sizeof(*out)};
    status = folder_make(own);
    if (status == LH_OK) status = child_run_confined(&child, out);
    if (status != LH_OK) folders_unmake(own, missing);
    import_paths_free(&paths);
    return status;
}

/* The plugin is loaded out here: the child inherits it. */
static int import_stage(cli_t *cli)
{
    if (cli->job->import.from == NULL)
        return fail(LH_INVALID, "%s: [import] from is not set", cli->job->path);
    importer_t im = {.cli = cli};
    hf_import_result_t result;
    lh_status_t status = model_source_plugin(cli->job, cli->plugins, &im.plugin);
    if (status != LH_OK) return status;
    char *folder = job_path(cli->job, "import");
    if (folder == NULL) return LH_NO_MEMORY;
    im.folder = folder;
    status = cli->confines ? import_confined(&im, &result) : import_folder(&im, &result);
    mem_free(folder);
    if (status == LH_OK)
        cli_print_line("imported %llu tensors, %.1f MB, from %s",
                       (unsigned long long)result.tensors, (double)result.bytes / 1e6,
                       cli->job->import.from);
    return status;
}

static void append_left_out(const char *what, const text_t *keys, text_t *out)
{
    text_t all = {0};
    if (keys->data == NULL) return;
    text_printf(&all, "%s: %s", what, keys->data);
    options_append_comment(&all, out);
    text_free(&all);
}

/* The [model] section that says what config.json says. Values are the options' own, as they were
 * parsed: what is printed can stand in an INI. */
static int import_print(cli_t *cli)
{
    hf_config_t config;
    model_layout_t layout;
    text_t out = {0};
    const plugin_t *plugin;
    if (cli->job->import.from == NULL)
        return fail(LH_INVALID, "%s: [import] from is not set", cli->job->path);
    lh_status_t status = model_source_plugin(cli->job, cli->plugins, &plugin);
    if (status != LH_OK) return status;
    status = model_source_config(plugin, cli->job->import.from, &config);
    if (status != LH_OK) return status;
    status = import_layout(cli, &config, &layout);
    if (status != LH_OK) goto free_config;

    text_printf(&out, "[model]\nplugin = %s\n", plugin->name);
    for (uint32_t i = 0; i < config.count; i++) {
        const char *value = model_layout_option(&layout, config.options[i].key);
        text_printf(&out, "%s = %s\n", config.options[i].key, value == NULL ? "" : value);
    }
    append_left_out("ignored", &config.ignored, &out);
    append_left_out("not read", &config.unread, &out);
    status = text_status(&out);
    if (status == LH_OK) status = cli_print_shown(out.data);
    text_free(&out);
    model_layout_close(&layout);
free_config:
    hf_config_free(&config);
    return status;
}

static int import_run(cli_t *cli)
{
    return cli_flag(cli, "print") != NULL ? import_print(cli) : command_run_stage(cli);
}

const command_t command_import = {
    .name = "import",
    .summary = "a Hugging Face folder to a checkpoint",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = import_run,
    .stage = import_stage,
    .flags = {{"print", NULL, "only print the [model] section that config.json stands for"}},
    .alone = "print",
};

/* ---- export ---- */

/* The merges of a tokenizer that is GPT-2's pair; NULL: it is none. */
static const char *merges_of(const tokenizer_t *t)
{
    const char *second = tokenizer_file_count(t) > 1 ? tokenizer_file(t, 1) : NULL;
    const bool config = second != NULL && text_ends(second, "tokenizer_config.json");
    return config ? NULL : second;
}

/* The tokenizer's files are copied where the job has one of its own; an imported model's come from
 * its import. */
static lh_status_t export_checkpoint(const cli_t *cli, const model_source_t *source,
                                     model_layout_t *layout, checkpoint_t *from)
{
    const job_export_t *wanted = &cli->job->export;
    const bool own_tokenizer = source->tokenizer != NULL && source->import_folder == NULL;
    const char *own = own_tokenizer ? cli->job->prepare.tokenizer : NULL;
    const hf_adapter_t adapter = adapter_of(cli->job);
    const hf_export_how_t how = {
        .from = from,
        .separate = wanted->adapter == EXPORT_ADAPTER_SEPARATE ? &adapter : NULL,
        .folder = wanted->folder,
        .imported = source->import_folder,
        .tokenizer = own,
        .vocabulary = own == NULL ? NULL : tokenizer_file(source->tokenizer, 0),
        .merges = own == NULL ? NULL : merges_of(source->tokenizer),
        .table = layout->plugin->model->hf,
        .parameters = layout->parameters,
        .option = model_layout_option,
        .context = layout,
        .host = layout->plugin->host,
        .plugins = cli->plugins,
        .dtype = wanted->dtype,
        .shard_bytes = wanted->shard_bytes,
        .bos = own_tokenizer ? tokenizer_special(source->tokenizer)->bos : -1,
        .eos = own_tokenizer ? tokenizer_special(source->tokenizer)->eos : -1,
    };
    hf_export_result_t result;
    const lh_status_t status = hf_export(&how, &result);
    if (status == LH_OK)
        cli_print_line("exported %llu tensors of step %llu, %.1f MB in %u file%s, to %s",
                       (unsigned long long)result.tensors,
                       (unsigned long long)from->manifest->meta.step, (double)result.bytes / 1e6,
                       result.shards, result.shards == 1 ? "" : "s", wanted->folder);
    return status;
}

/* A model that was imported brings its tokenizer's files, whichever tokenizer it was trained with since.
 * Not refused: other files may give the same ids. */
static lh_status_t tell_other_tokenizer(const cli_t *cli, const model_source_t *source)
{
    tokenizer_t *imported = NULL;
    uint64_t digest = 0;
    const char *own = cli->job->prepare.tokenizer;
    if (own == NULL || source->import_folder == NULL || source->tokenizer == NULL ||
        cli->job->export.adapter == EXPORT_ADAPTER_SEPARATE)
        return LH_OK;
    lh_status_t status = model_source_tokenizer(cli->job, source->import_folder, &imported);
    if (status == LH_OK) status = tokenizer_digest(imported, &digest);
    tokenizer_free(imported);
    if (status == LH_NO_MEMORY) return status;
    fail_clear();
    if (status == LH_OK && digest == source->tokenizer_digest) return LH_OK;
    log_line(
        LH_LOG_WARN,
        "the export has the tokenizer of the model that was imported, if that has one, and not "
        "%s, which is another",
        own);
    return LH_OK;
}

/* In the order of cost: target folder, checkpoint, which is read whole, model, tensors. */
static int export_stage(cli_t *cli)
{
    model_source_t source;
    model_layout_t layout;
    checkpoint_t *checkpoint = NULL;
    lh_status_t status = model_source_open(cli->job, cli->plugins, TOKENIZER_IF_NAMED, &source);
    if (status != LH_OK) return status;
    status = check_export_target(cli->job, source.import_folder);
    if (status == LH_OK) status = model_source_checkpoint(&source, &checkpoint);
    if (status != LH_OK) goto close_source;
    status = model_layout_open(cli->job, cli->plugins, source.given, source.given_count,
                               source.vocab, &layout);
    if (status != LH_OK) goto close_checkpoint;

    status = model_source_same_model(&source, checkpoint, layout.plugin, layout.config);
    if (status == LH_OK) status = tell_other_tokenizer(cli, &source);
    if (status == LH_OK) status = export_checkpoint(cli, &source, &layout, checkpoint);
    model_layout_close(&layout);
close_checkpoint:
    checkpoint_close(checkpoint);
close_source:
    model_source_close(&source);
    return status;
}

const command_t command_export = {
    .name = "export",
    .summary = "the newest checkpoint to a Hugging Face folder",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = command_run_stage,
    .stage = export_stage,
};
