/* command_export.c - longhaul export PIPELINE.ini: the newest checkpoint becomes a Hugging Face
 * folder. */
#include <cli/command_run.h>

#include <base/file.h>
#include <base/memory.h>
#include <cli/check_inputs.h>
#include <cli/model_source.h>
#include <hf/hf_export.h>

static lh_status_t convert(const cli_t *cli, const model_source_t *source, model_layout_t *layout,
                           checkpoint_t *from)
{
    const job_export_t *wanted = &cli->job->export;
    const bool own_tokenizer = source->tokenizer != NULL && source->import_folder == NULL;
    const hf_export_how_t how = {
        .from = from,
        .folder = wanted->folder,
        .imported = source->import_folder,
        .tokenizer = own_tokenizer ? cli->job->prepare.tokenizer : NULL,
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
    if (status == LH_OK) status = convert(cli, &source, &layout, checkpoint);
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
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS,
    .run = command_run_stage,
    .stage = export_stage,
};
