/* session/session.h - what training, evaluation and generation share: the plugins that a job names,
 * its model, one open device and the weights on it.
 *
 * A session holds everything that depends on the job and on nothing else: no data, no programs, no
 * other rank but through comm. It is opened the same way whether the model is trained, evaluated,
 * planned or only recorded; what differs is said in session_how_t. One thread uses a session at a
 * time. */
#ifndef SESSION_SESSION_H
#define SESSION_SESSION_H

#include <config/job.h>
#include <data/batches.h>
#include <engine/engine.h>
#include <graph/op_table.h>
#include <parallel/update.h>
#include <plugin/registry.h>
#include <session/rule_set.h>
#include <session/train_comm.h>

/* The parameter groups of a job: [optimizer], then every [group.NAME], and which of them each
 * parameter is in. Needs no device. Owned by the session. Group 0 has what no [group.NAME] matches.
 */
typedef struct groups {
    optimizer_group_t *list; /* [optimizer], then [group.NAME] in order */
    double *rates;           /* factor on the learning rate */
    uint32_t count;
    uint32_t *of; /* [parameters] */
    bool *frozen; /* [parameters] by the model or a group */
} groups_t;

/* Strings and lists are the caller's. job, registry, comm and world outlive the session; variants
 * is read until engine_build. */
typedef struct session_how {
    const job_t *job;
    registry_t *registry;
    uint64_t vocab;              /* rows of the embedding; 0: the INI or `given` says */
    const option_given_t *given; /* model options that an imported config.json brings */
    uint32_t given_count;
    lh_dtype_t compute;   /* 0: [train] precision */
    const char *variants; /* NULL, or those of the run that is resumed */
    /* What of a session is left out. A recorded one has an engine without a device: it can state
     * programs and tell what they would refuse, which is all that `check` needs. */
    bool frozen;          /* no optimizer: for evaluation and generation */
    bool pairs;           /* frozen, and pairs of phase dpo are scored all the same */
    bool recorded;        /* no device: programs are recorded, and never planned or built */
    comm_t *comm;         /* with others; NULL: alone, or planned only */
    const world_t *world; /* without comm: whose rank is planned; NULL: alone */
} session_how_t;

/* Fields that are pointers are owned, but for job, registry, the plugins, comm and world.
 * optimizer, rules and groups are empty where it is frozen. */
typedef struct session {
    const job_t *job;
    registry_t *registry;
    const plugin_t *model_plugin, *device_plugin, *optimizer_plugin;
    /* Parsed options, each in the struct that its plugin's table describes. */
    void *model_config, *device_config, *optimizer_config;
    lh_model_t *model;
    lh_optimizer_t *optimizer;
    /* In the order in which each needs the one before: ops of all plugins, the engine that has
     * kernels for them, weights in that engine. */
    op_table_t *ops;
    engine_t *engine;
    weights_t *weights;
    weights_t *reference; /* phase dpo without an adapter: the frozen model; else NULL */
    lh_dtype_t compute;
    comm_t *comm;
    const world_t *world;   /* NULL: alone */
    transfers_t *transfers; /* NULL: alone */

    /* [device] tune, lines of kernel_choice_text: kernels that were timed on such a device; and all
     * that rank 0 has chosen. The engine reads the former until it has the latter. */
    text_t timed, chosen;
    uint32_t timed_now, timed_taken; /* by this start; kernels of this rank that are as rank 0's */
    double timed_s;                  /* that it took */
    rule_set_t rules;                /* of [optimizer] and its groups */
    groups_t groups;                 /* none where it is frozen */
} session_t;

/* The model plugin's options: the INI's, what an import gives, and the vocabulary (0: theirs). The
 * caller frees *out with job_free_config. The vocabulary beats the INI and an import, which may
 * both name another. */
lh_status_t session_model_options(const job_t *job, const plugin_t *plugin, uint64_t vocab,
                                  const option_given_t *given, uint32_t given_count,
                                  void **out) LH_MUST_CHECK;

/* The job's [adapter.NAME] for parameters_adapt, as *out; NULL: it has none. */
const parameters_adapter_t *session_adapter(const job_t *job, parameters_adapter_t *out);

/* Loads plugins, parses their options, opens model and device, makes the weights. Refuses whatever
 * of the job can be known without data. No memory of the device is taken yet; engine_build does
 * that, after all programs are stated. */
lh_status_t session_open(const session_how_t *how, session_t **out) LH_MUST_CHECK;
/* After what others own of its engine's programs (step_programs_free), and after the communicator,
 * whose memory lies here, is closed. */
void session_close(session_t *s); /* NULL does nothing */
/* Whether the job's device can be opened now. It is closed again, and nothing of it is kept. */
lh_status_t session_try_device(const job_t *job, registry_t *registry) LH_MUST_CHECK;

/* [device] tune: in place of engine_plan, after all programs are stated; blocking, all ranks. Rank 0
 * takes what the cache folder has of its device, lets kernels time what it lacks, and keeps that; all
 * others take rank 0's choices, and time nothing. Without the key each just plans. */
lh_status_t session_plan(session_t *s, train_agree_t *ranks) LH_MUST_CHECK;
/* A line in the log of each rank, where the key is set. */
void session_plan_tell(const session_t *s, uint32_t rank);

/* Refuses a [train] sequence that is longer than what the model is made for. */
lh_status_t session_check_sequence(const session_t *s) LH_MUST_CHECK;

/* Rows of sequences for programs that read them: `tokens` of each kind and `starts` document
 * starts, of value 0; max_documents is the caller's to set. What was taken before a failure is in
 * *out. */
lh_status_t session_rows_new(uint64_t tokens, uint64_t starts, batch_rows_t *out) LH_MUST_CHECK;
void session_rows_free(batch_rows_t *rows);
/* Gives a program its inputs from rows: micro-batches of `tokens` tokens each, one after the other.
 */
lh_status_t session_rows_give(const batch_rows_t *rows, uint64_t micro_batches, uint64_t tokens,
                              program_t *program) LH_MUST_CHECK;

/* What the optimizer step is made of, for a rank of `world` (NULL: alone). Also for ranks other
 * than this one: shards of any rank can be computed from it without planning a program. rounds: of the
 * schedule, runs of the training program in a step. */
update_how_t session_update_how(session_t *s, const world_t *world, uint32_t rounds);
/* The optimizer step; before session programs that train and before engine_build. Sets s->transfers
 * where there are other ranks. A model of which every parameter is frozen is refused. */
lh_status_t session_update(session_t *s, uint32_t rounds, program_t **out) LH_MUST_CHECK;

#endif
