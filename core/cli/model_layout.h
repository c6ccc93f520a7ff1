/* cli/model_layout.h - a job's model as its plugin describes it, without a device: for conversions.
 */
#ifndef CLI_MODEL_LAYOUT_H
#define CLI_MODEL_LAYOUT_H

#include <checkpoint/json_text.h>
#include <config/job.h>
#include <graph/parameters.h>
#include <plugin/loader.h>

typedef struct model_layout {
    const plugin_t *plugin;
    option_table_t options;
    void *config;
    lh_model_t *model;
    parameters_t *parameters;
    char value[JSON_REAL_TEXT]; /* of the last question */
} model_layout_t;

/* vocab: rows of the embedding that a tokenizer asks for; 0: given or the INI says. A plugin
 * without a Hugging Face form is refused. */
lh_status_t model_layout_open(const job_t *job, registry_t *registry, const option_given_t *given,
                              uint32_t given_count, uint64_t vocab,
                              model_layout_t *out) LH_MUST_CHECK;
void model_layout_close(model_layout_t *l);

/* An option's effective value as an INI would say it; NULL: none. Valid until the next question.
 * The context is a model_layout_t. */
const char *model_layout_option(void *context, const char *key);

#endif
