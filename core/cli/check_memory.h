/* cli/check_memory.h - what each rank will hold from step to step, from a job's plugins alone. */
#ifndef CLI_CHECK_MEMORY_H
#define CLI_CHECK_MEMORY_H

#include <base/text.h>
#include <config/job.h>
#include <plugin/loader.h>

typedef struct check_memory_how {
    const job_t *job;
    const plugin_t *model, *optimizer;
    const lh_rule_t *rule;
    const void *model_config, *optimizer_config, *rule_config;
    uint64_t guessed_vocab; /* rows of the embedding that only the tokenizer knows; 0: known */
} check_memory_how_t;

/* Appends a table of comment lines. */
lh_status_t check_memory(const check_memory_how_t *how, text_t *out) LH_MUST_CHECK;

#endif
