/* spec/spec_model.h - a spec with the options of a job: an opened model, as any plugin's. */
#ifndef SPEC_SPEC_MODEL_H
#define SPEC_SPEC_MODEL_H

#include <spec/spec_read.h>

/* The first three of lh_model_api_t; the fourth is spec_record. */
lh_status_t spec_model_open(const lh_host_t *host, const void *config, lh_model_t **out);
void spec_model_close(lh_model_t *m);
lh_status_t spec_model_describe(lh_model_t *m, lh_model_info_t *out);

/* What open makes; its own files and spec_record read it. */
struct lh_model {
    const spec_t *spec;
    const void *config;
    const char **texts;   /* [option_count] words of choices, texts; NULL: a number, or not set */
    spec_value_t *values; /* [spec->value_count], worked out */
    uint8_t *valued;      /* [value_count] 1: is known       */
    lh_param_t *rows;     /* those that are there            */
    uint32_t row_count;
    const spec_parameter_t **of; /* [row_count] */
    uint8_t *classes;            /* [blocks] */
    uint64_t blocks, hidden, vocab, max_tokens;
    spec_pool_t pool;
};

/* Names of numbers, for spec_evaluate: options, values, and in a block its number. */
typedef struct spec_scope {
    lh_model_t *model;
    bool in_block;
    uint32_t block;
} spec_scope_t;
spec_names_t spec_scope_names(spec_scope_t *scope, const char *where);
/* Whether the parameter is there with these options. */
bool spec_model_has(const lh_model_t *m, const spec_parameter_t *p);

/* With the options of a job: wanted[i] is whether line i is recorded. The last one is, and lines of
 * accumulate and loss whose `when` is not 0, and those that such lines need. wanted:
 * [part->count]. */
lh_status_t spec_model_wanted(lh_model_t *m, const spec_part_t *part, uint32_t block,
                              bool *wanted) LH_MUST_CHECK;
/* Whether any block, or the embedding, adds to the sum. */
lh_status_t spec_model_sum_added(lh_model_t *m, const char *name, bool *out) LH_MUST_CHECK;
/* How many values the head reads of the sum: 0, none. *line: where. */
lh_status_t spec_model_sum_read(lh_model_t *m, const char *name, uint64_t *count,
                                const spec_line_t **line) LH_MUST_CHECK;

#endif
