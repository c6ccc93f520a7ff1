/* session/session.h - what training, evaluation and generation share: the plugins that a job names,
 * its model, one open device and the weights on it. */
#ifndef SESSION_SESSION_H
#define SESSION_SESSION_H

#include <config/job.h>
#include <data/batches.h>
#include <engine/engine.h>
#include <graph/op_table.h>
#include <parallel/update.h>
#include <plugin/registry.h>

/* The parameter groups of a job: [optimizer], then every [group.NAME], and which
 * of them each parameter is in. Needs no device. */
typedef struct groups {
    optimizer_group_t *list; /* [optimizer], then [group.NAME] in order */
    double *rates;           /* factor on the learning rate */
    uint32_t count;
    uint32_t *of; /* [parameters] */
    bool *frozen; /* [parameters] by the model or a group */
} groups_t;

typedef struct session_how {
    const job_t *job;
    registry_t *registry;
    uint64_t vocab;              /* rows of the embedding; 0: the INI or `given` says */
    const option_given_t *given; /* model options that an imported config.json brings */
    uint32_t given_count;
    lh_dtype_t compute;   /* 0: [train] precision */
    const char *variants; /* NULL, or those of the run that is resumed */
    bool frozen;          /* no optimizer: for evaluation and generation */
    bool recorded;        /* no device: programs are recorded, and never planned or built */
    comm_t *comm;         /* with others; NULL: alone, or planned only */
    const world_t *world; /* without comm: whose rank is planned; NULL: alone */
} session_how_t;

typedef struct session {
    const job_t *job;
    registry_t *registry;
    const plugin_t *model_plugin, *device_plugin, *optimizer_plugin;
    void *model_config, *device_config, *optimizer_config;
    lh_model_t *model;
    lh_optimizer_t *optimizer;
    op_table_t *ops;
    engine_t *engine;
    weights_t *weights;
    lh_dtype_t compute;
    comm_t *comm;
    const world_t *world;   /* NULL: alone */
    transfers_t *transfers; /* NULL: alone */

    optimizer_rule_t rule; /* of [optimizer] */
    void *rule_config;
    option_table_t rule_table;
    groups_t groups; /* none where it is frozen */
} session_t;

/* The model plugin's options: the INI's, what an import gives, and the vocabulary (0: theirs). The
 * caller frees *out with job_free_config. */
lh_status_t session_model_options(const job_t *job, const plugin_t *plugin, uint64_t vocab,
                                  const option_given_t *given, uint32_t given_count,
                                  void **out) LH_MUST_CHECK;

/* Loads plugins, parses their options, opens model and device, makes the weights. */
lh_status_t session_open(const session_how_t *how, session_t **out) LH_MUST_CHECK;
void session_close(session_t *s); /* NULL does nothing */

/* Refuses a [train] sequence that is longer than what the model is made for. */
lh_status_t session_check_sequence(const session_t *s) LH_MUST_CHECK;

/* Rows of sequences for programs that read them: `tokens` of each kind and `starts` document starts,
 * of value 0; max_documents is the caller's to set. What was taken before a failure is in *out. */
lh_status_t session_rows_new(uint64_t tokens, uint64_t starts, batch_rows_t *out) LH_MUST_CHECK;
void session_rows_free(batch_rows_t *rows);
/* Gives a program its inputs from rows: micro-batches of `tokens` tokens each, one after the other. */
lh_status_t session_rows_give(const batch_rows_t *rows, uint64_t micro_batches, uint64_t tokens,
                              program_t *program) LH_MUST_CHECK;

/* What the optimizer step is made of, for a rank of `world` (NULL: alone). */
update_how_t session_update_how(session_t *s, const world_t *world, uint32_t micro_batches);
/* The optimizer step; before session programs that train and before engine_build. */
lh_status_t session_update(session_t *s, uint32_t micro_batches, program_t **out) LH_MUST_CHECK;

#endif
