/* cli/model_source.h - where a job's model comes from: the tokenizer that gives the vocabulary, an
 * imported config.json that gives the options, the checkpoint that gives the weights.
 *
 * A model's shape has three sources: keys of [model], the config.json of an import, and the
 * vocabulary of a tokenizer. Every command that opens a model comes through here, so all of them
 * combine the three in the same way. */
#ifndef CLI_MODEL_SOURCE_H
#define CLI_MODEL_SOURCE_H

#include <checkpoint/checkpoint.h>
#include <config/job.h>
#include <format/json.h>
#include <graph/parameters.h>
#include <hf/hf_config.h>
#include <plugin/registry.h>
#include <session/session.h>
#include <tokenizer/tokenizer.h>

/* Owned: folders, config, given, tokenizer. given points into config. */
typedef struct model_source {
    const job_t *job;
    /* Both folders are named by the job, whether or not the import stage has run. */
    char *import_folder; /* what the import stage made; NULL: the job imports nothing */
    char *import_checkpoints;
    hf_config_t config; /* of the imported config.json */
    option_given_t *given;
    uint32_t given_count;
    tokenizer_t *tokenizer;    /* NULL: the job names none */
    uint64_t tokenizer_digest; /* 0: likewise */
    uint64_t vocab; /* rows of the embedding that the tokenizer asks for; 0: the options say */
} model_source_t;

/* How much a command needs of the tokenizer; argument of model_source_open. */
enum {
    TOKENIZER_IF_NAMED, /* by [prepare] or [eval] tokenizer              */
    TOKENIZER_PLANNED,  /* likewise; and where the import stage has not run yet, config.json is
                           read where it will take it from: no weights are asked for */
    TOKENIZER_IF_THERE, /* or the imported one, where it can be read     */
    TOKENIZER_NEEDED,   /* or the imported one; none is refused          */
};
/* Reads the imported config.json and loads the tokenizer. Opens no session and no device. */
lh_status_t model_source_open(const job_t *job, registry_t *registry, uint32_t tokenizer,
                              model_source_t *out) LH_MUST_CHECK;
void model_source_close(model_source_t *s);

/* What it gives a session: the job, its plugins, the vocabulary and the imported options. The
 * caller adds what is its own. */
session_how_t model_source_session(const model_source_t *s, registry_t *registry);
/* The id that ends a document in data which the job prepared; -1: there is no tokenizer, or it has
 * none. */
int32_t model_source_eod(const model_source_t *s);

/* [model] plugin = from_import becomes the installed plugin whose table reads the model_type of the
 * config.json that the job imports; every model plugin is loaded for that. Any other job stays as
 * it is. Refused: no such plugin, or two. An architecture in the INI, [model] plugin = spec, is put
 * into the registry (spec/spec.h). */
lh_status_t model_source_choose(job_t *job, registry_t *registry) LH_MUST_CHECK;
/* The job's model plugin; one without a Hugging Face form is refused. */
lh_status_t model_source_plugin(const job_t *job, registry_t *registry,
                                const plugin_t **out) LH_MUST_CHECK;
/* folder/config.json by that plugin's table, which refuses what the model can't do. */
lh_status_t model_source_config(const plugin_t *plugin, const char *folder,
                                hf_config_t *out) LH_MUST_CHECK;
/* Logs what of it counts for nothing: a line for keys that are ignored, one for those not read. */
void model_source_tell(const plugin_t *plugin, const char *folder, const hf_config_t *config);
/* Loads a tokenizer within the job's [limits]. */
lh_status_t model_source_tokenizer(const job_t *job, const char *path,
                                   tokenizer_t **out) LH_MUST_CHECK;

/* What a config.json says, as values of the model's options; they point into the config. Free with
 * mem_free. */
lh_status_t model_source_given(const hf_config_t *config, const char *origin,
                               option_given_t **out) LH_MUST_CHECK;
/* What the newest checkpoint of training holds, else the import: to evaluate and to generate,
 * reading weights only and once. One of a model with other options is refused. After engine_build.
 * A damaged checkpoint is passed over with a warning. */
lh_status_t model_source_weights(const model_source_t *s, const session_t *session) LH_MUST_CHECK;
/* The checkpoint itself, read back whole before: to export. */
lh_status_t model_source_checkpoint(const model_source_t *s, checkpoint_t **out) LH_MUST_CHECK;
/* Refuses a checkpoint of a model with other options. */
lh_status_t model_source_same_model(const model_source_t *s, const checkpoint_t *c,
                                    const plugin_t *plugin, const void *config) LH_MUST_CHECK;
/* Ids that stand for text: the tokenizer's, without the rows that only fill up; 0: unknown. */
uint64_t model_source_vocabulary(const model_source_t *s);

/* ---- a job's model as its plugin describes it, without a device ---- */

/* Everything is owned but the plugin. For conversions, which need names and shapes of parameters
 * and no arithmetic. */
typedef struct model_layout {
    const plugin_t *plugin;
    option_table_t options;
    void *config;
    lh_model_t *model;
    parameters_t *parameters;
    char value[JSON_REAL_TEXT]; /* of the last question */
} model_layout_t;

/* vocab: rows of the embedding that a tokenizer asks for; 0: given or the INI says. A plugin
 * without a Hugging Face form is refused. Refuses options that the plugin refuses. */
lh_status_t model_layout_open(const job_t *job, registry_t *registry, const option_given_t *given,
                              uint32_t given_count, uint64_t vocab,
                              model_layout_t *out) LH_MUST_CHECK;
void model_layout_close(model_layout_t *l);

/* An option's effective value as an INI would say it; NULL: none. Valid until the next question.
 * The context is a model_layout_t. */
const char *model_layout_option(void *context, const char *key);

#endif
