/* plan/job_programs.h - the programs of a job's training step, as the train stage makes them, with
 * kernels and memory planned but nothing allocated. */
#ifndef PLAN_JOB_PROGRAMS_H
#define PLAN_JOB_PROGRAMS_H

#include <session/step_layout.h>
#include <session/train_comm.h>

typedef struct job_documents { /* what is known of the documents in a sequence of the data */
    uint64_t per_sample;       /* as step_layout takes it */
    bool from_files;           /* the token files say it; else it is a bound, or the INI says it */
} job_documents_t;

/* Looks at the job's token files where documents lie apart and [train] max_documents does not say
 * how many there are. Files that are not there, or that training would refuse, leave the bound; the
 * reason is logged. eod: as train_how_t.eod. */
job_documents_t job_documents(const job_t *job, int32_t eod);
/* Where the number is from: "as the token files say". */
const char *job_documents_text(const job_t *job, const job_documents_t *documents);

typedef struct job_programs_how {
    session_how_t session; /* session.world says whose they are */
    job_documents_t documents;
} job_programs_how_t;

typedef struct job_programs {
    session_t *session;
    train_comm_t comm; /* planned only; none alone */
    step_layout_t layout;
    step_programs_t programs;
    uint64_t planned_ns; /* what it took to write the programs and lay out their memory */
} job_programs_t;

/* *out stays where it is. */
lh_status_t job_programs_open(const job_programs_how_t *how, job_programs_t *out) LH_MUST_CHECK;
void job_programs_close(job_programs_t *p);
/* All that a rank will hold. */
void job_programs_memory(const job_programs_t *p, memory_report_t *out);

/* What every rank of a job will hold, planned without any of them running; and whether their lists
 * fit together, as the ranks see for themselves before step 0 (LH_MISMATCH: ranks would wait for each
 * other, transfer_order.h). how->session.world is left out: each rank of the job's world is planned
 * in turn. The caller frees *out [ranks] with mem_free. */
lh_status_t job_programs_of_ranks(const job_programs_how_t *how, memory_report_t **out,
                                  uint32_t *ranks) LH_MUST_CHECK;

#endif
