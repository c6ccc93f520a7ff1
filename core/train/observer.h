/* train/observer.h - what a run tells whoever watches it: progress line, metrics, event files and
 * report implement this; training itself prints nothing.
 *
 * Calls come from the control thread, between steps. Pointers are valid during the call. An
 * observer allocates only in begin. */
#ifndef TRAIN_OBSERVER_H
#define TRAIN_OBSERVER_H

#include <engine/engine.h>
#include <links/link_probe.h>

enum {               /* what a step's wall time went into */
       PART_DATA,    /* making batches and handing them to the device  */
       PART_COMPUTE, /* forward and backward passes                    */
       PART_UPDATE,  /* norm, clipping, optimizer                      */
       PART_EVALUATE,
       PART_SAVE,  /* the stall of a checkpoint, not its writing     */
       PART_WATCH, /* hooks, metrics and progress                    */
       STEP_PARTS
};

enum { STEP_SCOPES = 4 };

typedef struct run_start {
    const char *name;   /* of the pipeline */
    const char *folder; /* of the pipeline: where what is watched is written */
    const char *model, *optimizer, *rule, *device, *device_name, *precision;
    uint64_t steps, first_step; /* first_step > 0: resumed */
    uint64_t parameters, tokens_per_step, sequence, batch, micro_batch;
    uint32_t ranks, sites;
    double flops_per_step;   /* useful ones */
    double peak_flops;       /* measured rate of the device's matmuls; 0: unknown */
    double bytes_per_second; /* of its memory, read and written together; 0: unknown */
    double predicted_step_s; /* by `plan`; 0: none */
    uint64_t train_tokens;   /* in the data set */
    const memory_report_t *memory;
    const probe_pair_t *links; /* [link_count] between sites, as they were measured */
    uint32_t link_count;
} run_start_t;

typedef struct step_report {
    uint64_t step; /* from 1: this many are done */
    double loss, cross_entropy;
    double learning_rate, gradient_norm;
    bool applied; /* false: loss or gradients were not finite, nothing was changed */
    double seconds, part_s[STEP_PARTS];
    /* Of compute and update: waiting for transfers, by class of link (LH_LINK_*). Alone: 0. */
    double exposed_s[STEP_SCOPES];
    double tokens_per_s;
    uint64_t tokens; /* since the start of training */
} step_report_t;

typedef struct evaluation_report {
    uint64_t step;
    double loss; /* mean over tokens */
    uint64_t tokens;
    double seconds;
} evaluation_report_t;

typedef struct save_report {
    uint64_t step;
    const char *path;
    double stall_s;
    bool committed;     /* false: handed to the writer, or failed: see reason */
    const char *reason; /* NULL, or why a save failed */
} save_report_t;

typedef struct rank_memory { /* of a rank, at the end */
    uint32_t rank;
    memory_report_t planned;
    memory_report_t measured; /* 0: not to be told apart from the rest of the process */
    uint64_t device_bytes;    /* that this process holds, as the device says; 0: unknown */
    uint64_t resident_bytes;  /* peak of the process */
} rank_memory_t;

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

typedef struct observer {
    void (*begin)(struct observer *o, const run_start_t *start);
    void (*step)(struct observer *o, const step_report_t *step);
    void (*evaluated)(struct observer *o, const evaluation_report_t *evaluation);
    void (*saved)(struct observer *o, const save_report_t *save);
    void (*end)(struct observer *o, const run_end_t *end);
} observer_t;

#endif
