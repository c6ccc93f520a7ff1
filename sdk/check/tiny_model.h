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
    const lh_host_t *host; /* of open() */
    bool spec;             /* it is an INI's */
    void *config;          /* freed at close */
    lh_model_t *model;
    op_table_t *ops;
    parameters_t *parameters;
    registry_t *registry; /* whose functions have its config */
    bool refused;         /* open() said no at the last try */
    bool unusable;        /* it said yes, and the rest went wrong */
} tiny_model_t;

/* Options of whole numbers are halved while the model gets smaller and can still be recorded: at
 * least 2 blocks, a width of 8, 16 tokens and a vocabulary of 16. What --set names stays. Ends the
 * check where the model refuses its defaults, and where it takes values and can't be recorded with
 * them. A spec has no code that could refuse (heads of odd width, say): of it what recording
 * refuses counts as refused, but not by a parameter's shape, which is the spec's own, nor where an
 * option has no other value at all. */
void tiny_model_open(subject_t *s, tiny_model_t *out);
/* The plugin's functions get no configuration any more that is freed here. */
void tiny_model_close(tiny_model_t *t);

/* Small models that differ from each other in as many options as the plugin takes: the first is
 * tiny_model_open's, whose numbers are mostly equal (one head, a head as wide as the row); in the
 * others numbers are unlike each other and unlike their defaults, switches are the other way, and
 * each choice has its turn. Calls `run` with each; faults tell which options it had. */
void tiny_model_each(subject_t *s, void (*run)(subject_t *s, tiny_model_t *t));

/* One more, whose whole numbers are even where it takes them, so that what is cut in two divides. */
void tiny_model_even(subject_t *s, void (*run)(subject_t *s, tiny_model_t *t));

/* The first with another value of that row, the turn-th that it takes, and of the row `given` before
 * it; both the same: of that row alone. */
enum { TINY_TURNS = 6 };
void tiny_model_with(subject_t *s, uint32_t row, uint32_t given, uint32_t turn,
                     void (*run)(subject_t *s, tiny_model_t *t));

/* A model of the same plugin with other options, to be closed before `t`; config becomes the
 * model's. False after fail(): it refuses them, and config is freed. */
bool tiny_model_like(const tiny_model_t *t, void *config, tiny_model_t *out);
/* Whether an option of that row is another than its default. */
bool tiny_model_changed(const tiny_model_t *t, const option_table_t *table, uint32_t row);
/* Whether both have the same tables, sizes and recordings. */
bool tiny_model_equal(tiny_model_t *a, tiny_model_t *b);
/* Part (LH_PART_*) and block of the i-th: embedding, the blocks, head; there are blocks + 2. */
uint32_t tiny_model_part(const tiny_model_t *t, uint32_t i, uint32_t *block);

/* "embedding", "block 1" or "head". */
enum { TINY_PART_TEXT = 32 };
const char *tiny_model_part_text(uint32_t part, uint32_t block, char out[TINY_PART_TEXT]);

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
