/* train/train.h - the train stage: from data and start weights to a row of checkpoints. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include <config/job.h>
#include <control/control.h>
#include <plugin/registry.h>
#include <session/session.h>
#include <train/observer.h>

typedef struct train_programs { /* of one step */
    const session_t *session;
    const program_t *pass, *update;
    uint64_t micro_batches; /* runs of pass on this rank */
} train_programs_t;

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

typedef struct train_how {
    const job_t *job;
    registry_t *registry;
    uint64_t vocab;              /* rows of the embedding; 0: the INI or `given` says            */
    const option_given_t *given; /* model options of an imported config.json                     */
    uint32_t given_count;
    const char *imported;  /* folder of checkpoints whose weights are the start, or NULL: random  */
    observer_t *observer;  /* may be NULL                                                         */
    int32_t eod;           /* ends a document inside a sequence of the data; -1: none */
    uint64_t tokenizer;    /* tokenizer_digest; 0: unknown                                       */
    bool resume;           /* go on from the newest checkpoint, if there is one                   */
    uint64_t dump_batches; /* writes the first N global batches to [pipeline]
                              folder/batches.safetensors */
    /* NULL, or asked once what a step should take, for the observer; called when all is built and
       fills what it knows, the rest stays 0 */
    void (*predict)(const train_programs_t *programs, train_prediction_t *out);
    train_profiler_t *profiler; /* or NULL */
    /* Of a job of several ranks; NULL: alone. Rank 0 alone has use for an observer. */
    control_t *control;
    const world_t *world;
} train_how_t;

/* TRAIN_REFUSED: all steps are made, and the last ones were not applied. */
enum { TRAIN_DONE, TRAIN_TERMINATED, TRAIN_NOT_FINITE, TRAIN_REFUSED };

typedef struct train_result {
    uint32_t outcome; /* TRAIN_* */
    uint64_t steps;
    uint64_t refused;  /* the last steps in a row that were not applied */
    double loss;       /* of the last step           */
    double valid_loss; /* last evaluation; NAN: none */
} train_result_t;

/* LH_OK also when it was terminated after a save: see outcome. */
lh_status_t train_run(const train_how_t *how, train_result_t *out) LH_MUST_CHECK;

#endif
