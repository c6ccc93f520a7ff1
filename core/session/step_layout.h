/* session/step_layout.h - what a training step of a job is on one of its ranks: the sequences of
 * the global batch that it takes, the order in which it takes them, and the programs that are run.
 *
 * `train` builds and runs these programs, `plan` and `bench device` plan them, `check` records
 * them. All of them take the step from here, so that what is checked and planned is what runs.
 *
 * A struct of plain numbers stands between the job and the programs so that any rank's step can
 * be planned on any machine: step_layout asks for neither data nor ranks, and step_programs_new
 * turns it into programs in whatever engine it is given. */
#ifndef SESSION_STEP_LAYOUT_H
#define SESSION_STEP_LAYOUT_H

#include <longhaul/function.h>

#include <config/job.h>
#include <data/batches.h>
#include <plugin/call.h>
#include <program/schedule.h>
#include <session/evaluation.h>
#include <session/preference.h>
#include <session/session.h>

/* Values; owns nothing. */
typedef struct step_layout {
    batch_share_t share; /* of the global batch: this rank's sequences and micro-batches */
    program_how_t train; /* without its schedule */
    program_how_t score; /* the held-out split's, between steps; use 0: none */
} step_layout_t;

/* A pure function: it needs no file, no device and no other rank. documents_per_sample is what
 * step_documents says of the data; 0: not known, then as many as there are tokens. */
step_layout_t step_layout(const job_t *job, uint32_t rank, uint32_t ranks,
                          uint64_t documents_per_sample);

/* train and update belong to the engine; the rest to this struct. */
typedef struct step_programs {
    schedule_t *schedule; /* of this rank's micro-batches; a run of `train` is one of its rounds */
    program_t *train, *update;
    preference_t *preference; /* of a micro-batch; NULL but in phase dpo */
    evaluation_t *evaluation; /* NULL: none during training */
} step_programs_t;

/* Makes the schedule that the job names, and states the programs of a step in the session's engine;
 * engine_plan or engine_build comes after. ranks: who share the runs of an evaluation; NULL: alone,
 * or nothing is run. What was made before a failure is in *out, too. The update is stated before
 * the pass, whose gradients it asks for. Refuses a schedule that has rows for another number of
 * micro-batches than the rank makes. */
lh_status_t step_programs_new(session_t *s, const step_layout_t *layout, const train_ranks_t *ranks,
                              step_programs_t *out) LH_MUST_CHECK;
void step_programs_free(step_programs_t *p); /* the rest goes with the engine */
/* Appends what of the schedule the bits of a step depend on: "depth", "breadth", or a digest of
 * another table. It is part of a run's identity: every table adds gradients in the order of
 * micro-batches, but those of a parameter that two parts of the model share are added in the order
 * of the table's rows. */
void step_accumulation_text(const job_t *job, const schedule_t *s, text_t *out);

/* A split of the job's data, in the order in which training reads it. samples: that training will
 * have asked for at its end (step_samples). beside: as in batches_how_t. */
lh_status_t step_batches_open(const job_t *job, uint32_t split, uint64_t samples, uint32_t vocab,
                              int32_t eod, const batches_t *beside, batches_t **out) LH_MUST_CHECK;
/* The cursor (data/batches.h) behind the job's last step, for one that stands at `cursor` behind
 * `step`: the same wherever in a run it is asked. LH_INVALID: [data] skip can't be read, told with its
 * line. skips may be NULL. */
lh_status_t step_samples(const job_t *job, uint64_t cursor, uint64_t step, batch_skips_t *skips,
                         uint64_t *samples) LH_MUST_CHECK;
/* Whether the layout depends on the data: where documents lie apart, and the INI does not say how
 * many there are. */
bool step_asks_data(const job_t *job);
/* For step_layout: the most documents that a sequence of the two splits holds; 0: as many as
 * tokens, since an eod may stand anywhere, or nobody asks. valid may be NULL. */
uint64_t step_documents(const job_t *job, const batches_t *train, const batches_t *valid,
                        int32_t eod);

/* ---- the calls that an INI makes around a step ---- */

typedef struct step_calls step_calls_t;

/* [optimizer] learning_rate (variables: u64 step, u64 steps), [hook.after_step] (u64 step, f64
 * loss, f64 learning_rate, f64 norm, u64 tokens), [hook.before_save] (u64 step, f64 loss). Every
 * call of the INI is parsed, its function found and its arguments checked here; what is left for a
 * step is to run it. b is used by one thread. */
lh_status_t step_calls_new(const job_t *job, registry_t *registry,
                           step_calls_t **out) LH_MUST_CHECK;
void step_calls_free(step_calls_t *b); /* NULL does nothing */

/* What an INI may call around a step, as help shows it. */
typedef struct step_call {
    const char *section, *key; /* "hook.after_step", "call"                 */
    uint32_t result;           /* CALL_* that the call must give            */
    const char *when;          /* "after every step, once its loss is known" */
    const call_variable_t *variables;
    uint32_t variable_count;
} step_call_t;
extern const step_call_t step_call_kinds[];
extern const uint32_t step_call_kind_count;

/* step counts the steps already made: 0 for the first. A rate that is negative or
 * not finite is refused. */
lh_status_t step_calls_rate(step_calls_t *b, uint64_t step, double *out) LH_MUST_CHECK;
/* Refuses what step_calls_rate would refuse at any step of the job. Where there are more than 10 million,
 * it asks for half as many or more, evenly spread, and the last: a second or so. */
lh_status_t step_calls_rates(step_calls_t *b) LH_MUST_CHECK;

typedef struct step_facts {
    uint64_t step; /* from 1: this many are made */
    uint64_t tokens;
    double loss, learning_rate, norm;
} step_facts_t;
/* Whether the hook takes what only the step's end tells, loss or norm: it is then to be called before
 * another step is queued. The same on all ranks, as their jobs are. */
bool step_calls_read_figures(const step_calls_t *b);
/* LH_OK where there is no hook; what the hook returns, otherwise. */
lh_status_t step_calls_after(step_calls_t *b, const step_facts_t *facts) LH_MUST_CHECK;
lh_status_t step_calls_before_save(step_calls_t *b, uint64_t step, double loss) LH_MUST_CHECK;

/* Learning rates as functions of the step, called from INI text without a
 * prefix: learning_rate = warmup_cosine(step, peak=1e-3, warmup=50, total=1000).
 *
 * step counts the steps already made: 0 for the first one. Outside its range a rate is clamped:
 * after `total` steps the rate stays what it was at the end. */
extern const lh_function_t rate_functions[];
extern const uint32_t rate_function_count;

#endif
