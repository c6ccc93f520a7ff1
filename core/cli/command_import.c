/* command_import.c - longhaul import PIPELINE.ini: a Hugging Face folder becomes a checkpoint, its
 * config.json the model's options. */
#include <cli/commands.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <checkpoint/hf_config.h>
#include <checkpoint/hf_import.h>
#include <cli/confined.h>
#include <cli/import_paths.h>
#include <cli/model_layout.h>
#include <cli/model_source.h>

static lh_status_t load_plugin(const cli_t *cli, const plugin_t **out)
{
    const plugin_t *plugin;
    lh_status_t status = registry_load(cli->plugins, LH_KIND_MODEL, cli->job->model.plugin,
                                       &plugin);
    if (status != LH_OK) return status;
    if (plugin->model->hf == NULL)
        return fail(LH_UNSUPPORTED, "the model plugin %s has no Hugging Face form", plugin->name);
    *out = plugin;
    return LH_OK;
}

static lh_status_t read_config(const cli_t *cli, const plugin_t *plugin, hf_config_t *out)
{
    char *path = path_join(cli->job->import.from, "config.json");
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = hf_config_read(plugin->model->hf, path, out);
    mem_free(path);
    return status;
}

static lh_status_t open_layout(const cli_t *cli, const hf_config_t *config, model_layout_t *out)
{
    option_given_t *given;
    lh_status_t status = model_source_given(config, "config.json", &given);
    if (status != LH_OK) return status;
    status = model_layout_open(cli->job, cli->plugins, given, config->count, 0, out);
    mem_free(given);
    return status;
}

static lh_status_t convert(const cli_t *cli, const hf_config_t *config,
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
                                 .model_options = options.data,
                                 .limits = &shards,
                                 .host = layout->plugin->host,
                                 .plugins = cli->plugins};
    lh_status_t status = text_status(&options);
    if (status == LH_OK) status = hf_import(&how, out);
    text_free(&options);
    return status;
}

typedef struct importer {
    const cli_t *cli;
    const plugin_t *plugin;
    const char *folder;
} importer_t;

/* All that reads a file of the Hugging Face folder. */
static lh_status_t import_folder(void *context, void *out)
{
    const importer_t *im = context;
    hf_config_t config;
    model_layout_t layout;
    lh_status_t status = read_config(im->cli, im->plugin, &config);
    if (status != LH_OK) return status;
    if (config.ignored.data != NULL)
        log_line(LH_LOG_INFO, "%s: config.json: ignored: %s", im->cli->job->import.from,
                 config.ignored.data);
    status = open_layout(im->cli, &config, &layout);
    if (status == LH_OK) {
        status = convert(im->cli, &config, &layout, im->folder, out);
        model_layout_close(&layout);
    }
    hf_config_free(&config);
    return status;
}

/* It needs a folder to write in before it can make one. */
static lh_status_t import_confined(importer_t *im, hf_import_result_t *out)
{
    const char *own = im->cli->job->pipeline.folder;
    const uint32_t missing = folders_missing(own);
    import_paths_t paths;
    lh_status_t status = import_paths_find(im->cli, &paths);
    if (status != LH_OK) return status;
    const confined_t child = {.what = "the import",
                              .may = {.read = paths.read, .write = paths.write},
                              .work = import_folder,
                              .context = im,
                              .result_bytes = sizeof(*out)};
    status = folder_make(own);
    if (status == LH_OK) status = confined_run(&child, out);
    if (status != LH_OK) folders_unmake(own, missing);
    import_paths_free(&paths);
    return status;
}

int command_import(cli_t *cli)
{
    if (cli->job->import.from == NULL)
        return fail(LH_INVALID, "%s: [import] from is not set", cli->job->path);
    importer_t im = {.cli = cli};
    hf_import_result_t result;
    lh_status_t status = load_plugin(cli, &im.plugin);
    if (status != LH_OK) return status;
    char *folder = job_path(cli->job, "import");
    if (folder == NULL) return LH_NO_MEMORY;
    im.folder = folder;
    status = cli->confines ? import_confined(&im, &result) : import_folder(&im, &result);
    mem_free(folder);
    if (status == LH_OK)
        print_line("imported %llu tensors, %.1f MB, from %s", (unsigned long long)result.tensors,
                   (double)result.bytes / 1e6, cli->job->import.from);
    return status;
}
