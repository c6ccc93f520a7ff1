/* model_layout.c - parses a model's options, opens it, lists its parameters. */
#include <cli/model_layout.h>

#include <base/memory.h>
#include <train/session.h>

lh_status_t model_layout_open(const job_t *job, registry_t *registry, const option_given_t *given,
                              uint32_t given_count, uint64_t vocab, model_layout_t *out)
{
    model_layout_t l = {0};
    lh_status_t status = registry_load(registry, LH_KIND_MODEL, job->model.plugin, &l.plugin);
    if (status != LH_OK) return status;
    if (l.plugin->model->hf == NULL)
        return fail(LH_UNSUPPORTED, "the model plugin %s has no Hugging Face form", l.plugin->name);

    l.options = plugin_options(l.plugin);
    status = session_model_options(job, l.plugin, vocab, given, given_count, &l.config);
    if (status == LH_OK) {
        plugin_configure(registry, l.plugin, l.config);
        status = l.plugin->model->open(l.plugin->host, l.config, &l.model);
    }
    if (status == LH_OK) status = parameters_new(l.plugin->model, l.model, &l.parameters);
    if (status == LH_OK)
        *out = l;
    else
        model_layout_close(&l);
    return status;
}

void model_layout_close(model_layout_t *l)
{
    if (l->parameters != NULL) parameters_free(l->parameters);
    if (l->model != NULL) l->plugin->model->close(l->model);
    if (l->config != NULL) job_free_config(&l->options, l->config);
    *l = (model_layout_t){0};
}

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
