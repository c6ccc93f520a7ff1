/* cli/model_source.h - where a job's model comes from: the tokenizer that gives the vocabulary, an
 * imported config.json that gives the options, the checkpoint that gives the weights. */
#ifndef CLI_MODEL_SOURCE_H
#define CLI_MODEL_SOURCE_H

#include <checkpoint/checkpoint.h>
#include <checkpoint/hf_config.h>
#include <config/job.h>
#include <data/tokenizer.h>
#include <plugin/loader.h>

typedef struct model_source {
    const job_t *job;
    char *import_folder; /* what the import stage made; NULL: the job imports nothing */
    char *import_checkpoints;
    hf_config_t config; /* of the imported config.json */
    option_given_t *given;
    uint32_t given_count;
    tokenizer_t *tokenizer; /* NULL: the job names none */
    uint64_t vocab; /* rows of the embedding that the tokenizer asks for; 0: the options say */
} model_source_t;

/* Reads the imported config.json and loads the tokenizer: [prepare] tokenizer, else what was
 * imported with the model. needs_tokenizer: none is refused. */
lh_status_t model_source_open(const job_t *job, registry_t *registry, bool needs_tokenizer,
                              model_source_t *out) LH_MUST_CHECK;
void model_source_close(model_source_t *s);

/* The weights to evaluate, export or continue: the newest checkpoint of training, else the import.
 */
lh_status_t model_source_checkpoint(const model_source_t *s, checkpoint_t **out) LH_MUST_CHECK;
/* Ids that stand for text: the tokenizer's, without the rows that only fill up; 0: unknown. */
uint64_t model_source_vocabulary(const model_source_t *s);

#endif
