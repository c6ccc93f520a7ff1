/* tiny_model.h - a plugin's model with options turned down until it is small, and its parts
 * recorded. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <graph/op_table.h>
#include <graph/parameters.h>
#include <graph/recording.h>

#include "subject.h"

enum { TINY_TOKENS = 7 };

typedef struct tiny_model {
    const plugin_t *plugin;
    const lh_model_api_t *api;
    void *config; /* freed at close */
    lh_model_t *model;
    op_table_t *ops;
    parameters_t *parameters;
} tiny_model_t;

/* Options of whole numbers are halved while the model gets smaller and can still be recorded: at
 * least 2 blocks, a width of 8, 16 tokens and a vocabulary of 16. What --set names stays. Ends the
 * check where the model refuses its defaults. */
void tiny_model_open(subject_t *s, tiny_model_t *out);
void tiny_model_close(tiny_model_t *t);

/* Which parameters a recording asks for. */
typedef struct tiny_use {
    const tiny_model_t *of;
    uint32_t part, block;
    bool *used; /* [parameters]; may be NULL */
} tiny_use_t;

/* A part for so many tokens of one sequence; *use outlives the recording. */
lh_status_t tiny_model_record(tiny_use_t *use, uint64_t tokens, lh_dtype_t compute,
                              recording_t **out) LH_MUST_CHECK;

#endif
