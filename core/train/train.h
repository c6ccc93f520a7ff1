/* train/train.h - what a training run is asked and what it tells whoever watches it: progress line,
 * metrics, event files and report implement the observer; training itself prints nothing.
 *
 * train_how_t is the request that a command makes of train_run (train_run.h); the reports are what
 * an observer_t hears while the run goes on. Both stand in one header that has no code of its own,
 * as trainer.h needs the one and train_run.h the other: so the files of this folder include each
 * other in one direction only. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include <config/job.h>
#include <control/control.h>
#include <engine/engine.h>
#include <links/link_tuner.h>
#include <plugin/registry.h>
#include <session/preference.h>
#include <session/session.h>

/* ---- what it tells ----
 *
 * Calls come from the control thread, between steps. Pointers are valid during the call. An
 * observer should allocate in begin and end alone. */

enum {               /* what a step's wall time went into */
       PART_DATA,    /* making batches and handing them to the device  */
       PART_COMPUTE, /* forward and backward passes                    */
       PART_UPDATE,  /* norm, clipping, optimizer                      */
       PART_EVALUATE,
       PART_SAVE,  /* the stall of a checkpoint, not its writing     */
       PART_WATCH, /* hooks, metrics and progress                    */
       STEP_PARTS
};

enum { STEP_SCOPES = 4, STEP_FLOWS = 8, STEP_BORDERS = 56, STEP_CHANGES = 8 };

/* What a run is, told once when all is built and before step 1. Strings belong to the job or to the
 * engine; whoever wants them after the call copies them. */
typedef struct run_start {
    const char *name;   /* of the pipeline */
    const char *folder; /* of the pipeline: where what is watched is written */
    const char *model, *optimizer, *rule, *device, *device_name, *precision;
    uint64_t steps, first_step; /* first_step > 0: resumed */
    bool evaluates;             /* before its first step, what first_step left */
    /* The last three are in tokens and sequences as [train] names them; batch is the global one, of
     * all ranks. */
    uint64_t parameters, tokens_per_step, sequence, batch, micro_batch;
    bool pairs; /* phase dpo: losses are of pairs of answers, and have no perplexity */
    uint32_t ranks, sites;
    /* The next four let a watcher say how near the run comes to what the device can do. The first
     * is counted from the programs; the others are 0 where nobody has measured the device, and a
     * share of an unknown peak is left out rather than guessed. */
    double flops_per_step;   /* of this rank; useful ones (program_cost) */
    double peak_flops;       /* measured rate of the device's matmuls; 0: unknown */
    double bytes_per_second; /* of its memory, read and written together; 0: unknown */
    double predicted_step_s; /* by `plan`; 0: none */
    uint64_t train_tokens;   /* in the data set */
    /* Planned bytes of this rank by kind, as the arena was laid out. Pages are not touched at this
     * point, so nothing measured stands here yet. */
    const memory_report_t *memory;
    /* By LH_LINK_*: what carries links of a class, at which level of security, and by which card of
     * this rank's machine, as the transport names it; NULL: this rank has none of them. */
    const char *transports[STEP_SCOPES], *security[STEP_SCOPES], *cards[STEP_SCOPES];
    /* By which memory gathered values travel, and why; NULL or empty: there was no choice. */
    const char *values_way;
    const probe_pair_t *links; /* [link_count] between sites, as they were measured */
    uint32_t link_count;
    uint64_t save_every; /* steps; 0: only at the end */
    uint64_t restarts;   /* by the launcher, in this job, with this one; 0: it is the first start */
    const char *restart_reason; /* why the ranks before ended; NULL where restarts is 0 */
    uint64_t memory_step; /* first_step, where it was found in memory alone; 0: it was on disk */
    /* Of a job of several ranks, until the run's end was told, from any thread: how the others
     * fare, and who they are. NULL: alone. */
    const control_t *control;
    const world_t *world;
} run_start_t;

/* One step, told by rank 0 after its update. Loss and norm are of the global batch, so every rank
 * would tell the same. */
typedef struct step_report {
    uint64_t step; /* from 1: this many are done */
    /* Loss is what was differentiated; cross_entropy leaves out what the model adds to it by
     * itself. */
    double loss, cross_entropy;
    double learning_rate, gradient_norm;
    bool applied; /* false: loss or gradients were not finite, nothing was changed */
    /* Phase dpo, else 0: of the batch, and how many of them the chosen answer has gained in; the
     * gain over the rejected one is the mean margin of preference.h. */
    double pairs, pairs_won, margin;
    /* Wall time since the report before, and how it divides: what the parts do not cover is time
     * between them. */
    double seconds, part_s[STEP_PARTS];
    /* Of compute and update: waiting for transfers, by class of link (LH_LINK_*). Alone: 0. */
    double exposed_s[STEP_SCOPES];
    /* Of the step before, over all classes, by the rank that waited least: it waited for no slower one,
     * so that this is what links cost, and the rest of the others' time what ranks do. */
    double least_exposed_s;
    /* What links of this rank to other sites have carried; of more sites than STEP_FLOWS the first. */
    link_flow_t flows[STEP_FLOWS];
    uint32_t flow_count;
    /* By all ranks of each site, from any to any; of more than eight sites the first ways. */
    uint32_t border_count;
    link_border_t borders[STEP_BORDERS];
    /* Links between any sites that were tuned anew since the step before, or have another rate. */
    uint32_t change_count;
    link_change_t changes[STEP_CHANGES];
    double tokens_per_s;
    uint64_t tokens; /* since the start of training */
} step_report_t;

/* Of a held-out split, after the step that it names; step 0 is the start weights. */
typedef struct evaluation_report {
    uint64_t step;
    double loss; /* mean over tokens, or in phase dpo over pairs */
    bool pairs;
    uint64_t tokens; /* or pairs */
    double seconds;
} evaluation_report_t;

/* A save is told when it is refused or has failed, and when it is committed. That it was handed
 * over is told by nobody, as nothing is safe then. */
typedef struct save_report {
    uint64_t step;
    const char *path;
    /* How long training stood still for it; 0 where the save is told from a poll, which stalls
     * nobody. */
    double stall_s;
    bool committed;     /* false: refused or failed, see reason */
    bool memory;        /* a snapshot that stays in memory: path is none that is there */
    const char *reason; /* NULL where it was committed */
    bool has_room;      /* known is what was left where checkpoints lie before it was committed */
    uint64_t free_bytes;
} save_report_t;

typedef struct rank_memory { /* of a rank, at the end */
    uint32_t rank;
    memory_report_t planned;
    memory_report_t measured; /* 0: not to be told apart from the rest of the process */
    uint64_t device_bytes;    /* that this process holds, as the device says; 0: unknown */
    uint64_t resident_bytes;  /* peak of the process */
} rank_memory_t;

/* The last thing that an observer hears, also of a run that failed. Pointers are the trainer's and
 * are gone after the call. */
typedef struct run_end {
    uint64_t steps; /* made in all */
    double seconds;
    lh_status_t status;
    const char *reason;           /* NULL when all went well */
    const profile_row_t *profile; /* one profiled step, by descending time; NULL: none */
    uint32_t profile_count;
    const profile_frame_t *frames; /* of the same step; NULL: none */
    uint32_t frame_count;
    uint64_t resident_bytes; /* peak of the process */
    const rank_memory_t
        *memory; /* [memory_count] of all ranks; NULL: the run failed before the end */
    uint32_t memory_count;
} run_end_t;

/* Whoever watches puts this struct first in its own and casts back. All five functions must be set;
 * a run without a watcher has a NULL observer instead. */
typedef struct observer {
    void (*begin)(struct observer *o, const run_start_t *start);
    void (*step)(struct observer *o, const step_report_t *step);
    void (*evaluated)(struct observer *o, const evaluation_report_t *evaluation);
    void (*saved)(struct observer *o, const save_report_t *save);
    void (*end)(struct observer *o, const run_end_t *end);
} observer_t;

/* ---- what it is asked ---- */

/* What a prediction or a profile is made of. Everything belongs to the run and lives until it
 * closes. */
typedef struct train_programs { /* of one step */
    const session_t *session;
    const program_t *pass, *update;
    uint64_t rounds; /* runs of pass on this rank: those of its schedule */
    /* Phase dpo: what is scored before, once a micro-batch; else NULL. */
    const preference_t *preference;
    uint64_t micro_batches; /* of this rank */
} train_programs_t;

/* Filled by the command, which knows the record of the device; this folder does not see `plan`. */
typedef struct train_prediction {
    double peak_flops;       /* of the device's matmuls in the run's precision */
    double bytes_per_second; /* of its memory, read and written together */
    double step_s;
} train_prediction_t;

/* Who wants to know more of the one step that is measured call by call than run_end tells. */
typedef struct train_profiler {
    void (*profiled)(struct train_profiler *p, const train_programs_t *programs,
                     const profile_row_t *rows, uint32_t count);
} train_profiler_t;

/* Read-only for the run. Everything that it points to outlives train_run. */
typedef struct train_how {
    const job_t *job;
    registry_t *registry;
    uint64_t vocab;              /* rows of the embedding; 0: the INI or `given` says            */
    const option_given_t *given; /* model options of an imported config.json                     */
    uint32_t given_count;
    const char *imported; /* folder of checkpoints whose weights are the start, or NULL: random  */
    observer_t *observer; /* may be NULL                                                         */
    int32_t eod;          /* ends a document inside a sequence of the data; -1: none */
    uint64_t tokenizer;   /* tokenizer_digest; 0: unknown                                       */
    bool resume;          /* go on from the newest checkpoint, if there is one                   */
    const uint64_t *resume_step; /* from that step's and no other; NULL: the newest */
    uint64_t restarts;           /* how often the launcher has started this training again */
    const char *restart_reason;  /* what for */
    uint64_t dump_batches;       /* writes the first N global batches to [pipeline]
                              folder/batches.safetensors */
    /* NULL, or asked once what a step should take, for the observer; called when all is built and
       fills what it knows, the rest stays 0 */
    void (*predict)(const train_programs_t *programs, train_prediction_t *out);
    train_profiler_t *profiler; /* or NULL */
    /* NULL, or asked by rank 0 in each step whether somebody wants a checkpoint of it beside those of
       [checkpoint] every: true is kept for the save, which all ranks then make after `step` */
    bool (*save_asked)(void *context, uint64_t step);
    void *save_context;
    /* Forked while the process had one thread; train_run closes it, whatever it returns. NULL:
       train_run forks it. */
    struct writer *writer;
    /* Of a job of several ranks; NULL: alone. Rank 0 alone has use for an observer. */
    control_t *control;
    const world_t *world;
} train_how_t;

/* TRAIN_REFUSED: all steps are made, and the last ones were not applied. */
enum { TRAIN_DONE, TRAIN_TERMINATED, TRAIN_NOT_FINITE, TRAIN_REFUSED };

/* Filled as far as the run came, also where train_run fails once it was opened. steps counts all
 * that were ever made, those of runs before a resume included. */
typedef struct train_result {
    uint32_t outcome; /* TRAIN_* */
    uint64_t steps;
    uint64_t refused;  /* the last steps in a row that were not applied */
    bool leaving;      /* TRAIN_TERMINATED as a machine leaves, and the job goes on without it */
    bool saved;        /* the last step is; where a machine leaves it may not be */
    double loss;       /* of the last step           */
    double valid_loss; /* last evaluation; NAN: none */
} train_result_t;

#endif
