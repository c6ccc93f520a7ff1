/* plan/step_plan.h - what an optimizer step computes, moves and should take: the sum over the calls
 * of its programs, by op kind and by part, and of what ranks exchange.
 *
 * Two halves: plan_programs_t makes a rank's programs without allocating their memory, and
 * step_plan_t adds up the calls that they consist of. The second is used alone where programs are
 * there already, as in a run that wants a prediction. */
#ifndef PLAN_STEP_PLAN_H
#define PLAN_STEP_PLAN_H

#include <engine/engine.h>
#include <plan/device_rate.h>
#include <program/transfer.h>
#include <session/step_layout.h>
#include <session/train_comm.h>

/* How large the tables of document starts are, and who says so. */
typedef struct plan_documents { /* what is known of the documents in a sequence of the data */
    uint64_t per_sample;        /* as step_layout takes it */
    bool from_files;            /* the token files say it; else it is a bound, or the INI says it */
} plan_documents_t;

/* Looks at the job's token files where documents lie apart and [train] max_documents does not say
 * how many there are. Files that are not there, or that training would refuse, leave the bound; the
 * reason is logged. eod: as train_how_t.eod. */
plan_documents_t plan_documents(const job_t *job, int32_t eod);
/* Where the number is from: "as the token files say". */
const char *plan_documents_text(const job_t *job, const plan_documents_t *documents);

/* session.comm is ignored: plan_programs_open makes the communicator. */
typedef struct plan_programs_how {
    session_how_t session;     /* session.world says whose they are */
    const probe_pair_t *links; /* [link_count] of the job's record, as comm_known_links takes it */
    uint32_t link_count;
    plan_documents_t documents;
} plan_programs_how_t;

/* Everything is owned and goes with plan_programs_close. */
typedef struct plan_programs {
    /* The session of one rank, opened with its world. */
    session_t *session;
    train_comm_t comm; /* planned only; none alone */
    /* What the step of this rank is, from the same function that training asks. */
    step_layout_t layout;
    step_programs_t programs;
    uint64_t planned_ns; /* what it took to write the programs and lay out their memory */
} plan_programs_t;

/* *out stays where it is. Does what the train stage does up to engine_build, by the same functions,
 * so that what is planned is what will run. The device is opened, as kernels are asked of it; its
 * memory is not taken. */
lh_status_t plan_programs_open(const plan_programs_how_t *how, plan_programs_t *out) LH_MUST_CHECK;
void plan_programs_close(plan_programs_t *p);
/* The memory that a rank will hold, of every kind. */
void plan_programs_memory(const plan_programs_t *p, memory_report_t *out);

/* So many ranks are planned one by one. Of more, a few places of one site stand for all that are alike
 * (plan/alike.h): what each holds from step to step is its own, and so is what it sends over borders; the
 * rest of its memory is the most that one of the planned needs. */
enum { PLAN_RANKS_EACH = 64 };

/* What is known of all ranks of a job. */
typedef struct plan_ranks {
    memory_report_t *memory; /* [count] */
    uint64_t *border_bytes;  /* [count] that each sends to other sites in a step */
    double *crosses;         /* [CROSSINGS][sites][sites] of them, from a site to another */
    uint32_t count, planned; /* ranks; those that were planned themselves */
    bool *by_itself;         /* [count] whether it is one of those */
} plan_ranks_t;
void plan_ranks_free(plan_ranks_t *ranks);

/* What every rank of a job will hold and send over borders, planned without any of them running; and
 * whether their lists fit together, as the ranks see for themselves before step 0 (LH_MISMATCH: ranks would wait for
 * each other, transfer_order.h). how->session.world is left out: each rank of the job's world is
 * planned in turn, or a few of many that are alike. The caller frees *out. Ranks are planned one after the
 * other, and each is closed before the next, so a plan of 64 ranks needs little more memory than that of
 * one. */
lh_status_t plan_programs_of_ranks(const plan_programs_how_t *how, plan_ranks_t *out) LH_MUST_CHECK;

/* Parts of a step by which sums are told. A call belongs to exactly one. */
enum { STEP_FORWARD, STEP_BACKWARD, STEP_HEAD, STEP_UPDATE, STEP_PLAN_PARTS };
extern const char *const step_plan_part_names[STEP_PLAN_PARTS];

/* Additive: a sum over calls of what one call counts, times how often it is made. Seconds stay 0
 * without a record. */
typedef struct step_sum {
    uint64_t calls;
    double flops, bytes, seconds;
} step_sum_t;

/* All calls of one kind (device_rate_kind), whatever their sizes. */
typedef struct step_kind {
    char kind[CALL_KIND];
    bool measured; /* the record knows this kind */
    step_sum_t sum;
} step_kind_t;

/* Transfers of one collective op over one group. */
typedef struct step_transfers {
    uint32_t op, group, ways; /* COLLECTIVE_*, LH_GROUP_*, its ranks */
    lh_dtype_t dtype;
    uint64_t starts; /* in a step */
    double bytes;    /* of the whole forms */
} step_transfers_t;

/* kinds and transfers are owned. */
typedef struct step_plan {
    const transfers_t *moved; /* NULL: nothing leaves this site */
    uint64_t border_bytes;    /* that this rank sends to other sites in a step */
    double *crosses;          /* [CROSSINGS][sites] bytes to each site, its own too, with moved */
    double edge[CROSSINGS];   /* over borders: sums that are started last, values that are first */
    double
        trips[CROSSINGS]; /* between sites, of the transfer that takes most one after the other */
    bool repeated[CROSSINGS]; /* moved in more than one round */
    uint64_t *starts;         /* [transfers_count] of each transfer in a step, with moved */
    step_sum_t all, parts[STEP_PLAN_PARTS];
    step_kind_t *kinds; /* by descending time, or bytes where there is none */
    uint32_t kind_count;
    size_t kind_capacity;
    /* How many kinds the record has no row for: their times are those of a perfect device, which a
     * reader must be told. */
    uint32_t unmeasured;         /* kinds */
    step_transfers_t *transfers; /* in the order in which they are started first */
    uint32_t transfer_count;
    size_t transfer_capacity;
} step_plan_t;

/* rate NULL: nothing is known of the device, seconds stay 0. moved: whose plans of transfers say
 * what crosses borders, or NULL. */
lh_status_t step_plan_new(const program_t *pass, const program_t *update, uint64_t rounds,
                          const transfers_t *moved, const device_rate_t *rate,
                          step_plan_t *out) LH_MUST_CHECK;
/* Adds what phase dpo scores before a step, so many micro-batches. NULL: nothing is. */
lh_status_t step_plan_scores(step_plan_t *plan, const preference_t *scores, uint64_t micro_batches,
                             const device_rate_t *rate) LH_MUST_CHECK;
/* Adds a call that a step makes so many times. Transfers count by themselves: they take the links'
 * time and not the device's. */
lh_status_t step_plan_add(step_plan_t *plan, const program_call_t *call, uint64_t times,
                          const device_rate_t *rate) LH_MUST_CHECK;
void step_plan_free(step_plan_t *plan);

/* ---- one profiled step as files: sums by part, op and kernel, and a time line for Chrome's trace
 * viewer (chrome://tracing, Perfetto) ---- */

/* folder/profile.json: [{part, backward, op, kernel, calls, ns, flops, bytes, share, of_limit}].
 * of_limit is engine_profile_of_limit of the two rates, 0 where they are not known. Rows are those
 * of one profiled step; share is of their sum and not of the step's wall time. */
lh_status_t step_profile_write(const char *folder, const profile_row_t *rows, uint32_t count,
                               double peak_flops, double bytes_per_second) LH_MUST_CHECK;
/* folder/profile.trace.json, from the times that the programs' calls hold since profiling was
 * switched on. Calls are drawn back to back; those of micro-batches after the first, which share
 * their calls, are drawn once with the time of all of them. */
lh_status_t step_trace_write(const char *folder, const program_t *pass,
                             const program_t *update) LH_MUST_CHECK;

#endif
