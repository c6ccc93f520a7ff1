/* command_import.c - longhaul import PIPELINE.ini: a Hugging Face folder becomes a checkpoint, its
 * config.json the model's options. */
#include <cli/commands.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <checkpoint/hf_config.h>
#include <checkpoint/hf_import.h>
#include <cli/model_layout.h>
#include <cli/model_source.h>

static lh_status_t read_config(const cli_t *cli, hf_config_t *out)
{
    const plugin_t *plugin;
    lh_status_t status = registry_load(cli->plugins, LH_KIND_MODEL, cli->job->model.plugin,
                                       &plugin);
    if (status != LH_OK) return status;
    if (plugin->model->hf == NULL)
        return fail(LH_UNSUPPORTED, "the model plugin %s has no Hugging Face form", plugin->name);
    char *path = path_join(cli->job->import.from, "config.json");
    if (path == NULL) return LH_NO_MEMORY;
    status = hf_config_read(plugin->model->hf, path, out);
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
                           const model_layout_t *layout, const char *folder)
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
    hf_import_result_t result;
    lh_status_t status = text_status(&options);
    if (status == LH_OK) status = hf_import(&how, &result);
    text_free(&options);
    if (status == LH_OK)
        print_line("imported %llu tensors, %.1f MB, from %s", (unsigned long long)result.tensors,
                   (double)result.bytes / 1e6, cli->job->import.from);
    return status;
}

int command_import(cli_t *cli)
{
    if (cli->job->import.from == NULL)
        return fail(LH_INVALID, "%s: [import] from is not set", cli->job->path);
    hf_config_t config;
    model_layout_t layout;
    lh_status_t status = read_config(cli, &config);
    if (status != LH_OK) return status;
    if (config.ignored.data != NULL)
        log_line(LH_LOG_INFO, "%s: config.json: ignored: %s", cli->job->import.from,
                 config.ignored.data);
    status = open_layout(cli, &config, &layout);
    if (status != LH_OK) goto free_config;

    char *folder = job_path(cli->job, "import");
    status = folder == NULL ? LH_NO_MEMORY : convert(cli, &config, &layout, folder);
    mem_free(folder);
    model_layout_close(&layout);
free_config:
    hf_config_free(&config);
    return status;
}
