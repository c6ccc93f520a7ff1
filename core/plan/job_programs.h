/* plan/job_programs.h - the programs of a job's training step, as the train stage makes them, with
 * kernels and memory planned but nothing allocated. */
#ifndef PLAN_JOB_PROGRAMS_H
#define PLAN_JOB_PROGRAMS_H

#include <train/evaluation.h>
#include <train/session.h>

typedef struct job_programs {
    session_t *session;
    program_t *pass, *update;
    evaluation_t *evaluation; /* NULL: none during training */
    uint64_t micro_batches;   /* runs of pass in a step */
    uint64_t rows, lanes;     /* sequences of a pass, passes of a run */
} job_programs_t;

lh_status_t job_programs_open(const session_how_t *how, job_programs_t *out) LH_MUST_CHECK;
void job_programs_close(job_programs_t *p);

#endif
