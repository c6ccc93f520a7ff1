/* plan/job_programs.h - the programs of a job's training step, as the train stage makes them, with
 * kernels and memory planned but nothing allocated. */
#ifndef PLAN_JOB_PROGRAMS_H
#define PLAN_JOB_PROGRAMS_H

#include <train/evaluation.h>
#include <train/session.h>
#include <train/train_comm.h>

typedef struct job_programs {
    session_t *session;
    train_comm_t comm; /* planned only; none alone */
    program_t *pass, *update;
    evaluation_t *evaluation; /* NULL: none during training */
    uint64_t micro_batches;   /* runs of pass in a step */
    uint64_t rows, lanes;     /* sequences of a pass, passes of a run */
} job_programs_t;

/* how->world says whose they are; *out stays where it is. */
lh_status_t job_programs_open(const session_how_t *how, job_programs_t *out) LH_MUST_CHECK;
void job_programs_close(job_programs_t *p);
/* All that a rank will hold. */
void job_programs_memory(const job_programs_t *p, memory_report_t *out);

#endif
