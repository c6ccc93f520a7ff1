/* cli/check.h - what can be known of a job beyond its options without a device: whether the files
 * that it reads are there or made before, whether it would write over them, and its training step,
 * recorded. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include <base/text.h>
#include <config/job.h>
#include <session/step_layout.h>

/* Refuses a file that the INI names, or that is the INI, and that is one of the job's own; what is
 * not there, or what only a pattern matches, is no matter. Called at the start of each stage, as
 * well as by `check`: files may have come since. */
lh_status_t check_inputs(const job_t *job) LH_MUST_CHECK;
/* Refuses an input, tokenizer or data set of the job's stages that is neither there nor made by an
 * earlier stage. Where the first rank is: others may see other files. */
lh_status_t check_inputs_there(const job_t *job) LH_MUST_CHECK;
/* Refuses an [export] folder that is or holds what the job keeps elsewhere. import_folder: of the
 * import stage, NULL: none. */
lh_status_t check_export_target(const job_t *job, const char *import_folder) LH_MUST_CHECK;

/* ---- the training step ---- */

typedef struct check_step_how {
    const job_t *job;
    registry_t *registry;
    const option_given_t *given; /* to the model, the vocabulary too */
    uint32_t given_count;
    uint64_t guessed_vocab; /* rows of the embedding that only the tokenizer knows; 0: known */
} check_step_how_t;

/* Owned by whoever opened it; session and programs are those of rank 0. */
typedef struct check_step {
    check_step_how_t how;
    world_t *world; /* as rank 0 sees it */
    session_t *session;
    step_programs_t programs;
} check_step_t;

/* False: the INI does not say enough of a training step, as where no stage trains. */
bool check_step_is_told(const job_t *job);
/* Records model, gradient, optimizer step and evaluation as rank 0 will. *out stays where it is and
 * is closed whatever is returned. */
lh_status_t check_step_open(const check_step_how_t *how, check_step_t *out) LH_MUST_CHECK;
/* Whether the ranks' lists of transfers fit together: every start meets its partners, every wait
 * ends. Of up to CHECK_STEP_RECORDED ranks each is recorded and freed again; of more, one for all
 * that are alike, and sums over sites are then compared without their sizes. */
enum { CHECK_STEP_RECORDED = 16 };
lh_status_t check_step_order(const check_step_t *s) LH_MUST_CHECK;
void check_step_close(check_step_t *s);
/* What the checkpoints of a training take on disk, and what is there for them. */
typedef struct check_disk {
    uint64_t bytes; /* of one: all weights and states, as FP32; headers and manifest left out */
    /* That lie there at once at the end: [checkpoint] keep, the one that is saved, what keep_every leaves
     * besides, and one for keep_best. */
    uint64_t count;
    uint64_t free_bytes; /* where they lie, or will; UINT64_MAX: not known */
    /* Of snapshots that stay in memory: about so many bytes, so many a rank; 0: none do. */
    uint64_t snapshot_bytes, snapshots;
} check_disk_t;
/* session: with its model and optimizer, recorded or built. */
lh_status_t check_disk(session_t *session, uint32_t rounds, check_disk_t *out) LH_MUST_CHECK;
/* "checkpoints: 2.3 GiB each, 4 at once: 9.2 GiB, of 21 GiB free in out/x/checkpoints; snapshots: 4 of 575 MiB in
 * the memory of each rank", the last with [checkpoint] memory_every. */
void check_disk_text(const job_t *job, const check_disk_t *room, text_t *out);
/* Warns of a job whose values cross borders in every pass; for `plan` too. Nothing where there is
 * one site. */
void check_borders(const session_t *s);
/* Warns of a job that may go on without some of its machines, where nothing says which of two equal halves
 * does: whoever is left of a site, or of a host, that is lost then waits for it. */
void check_halves(const job_t *job);
/* A line for each link between the job's sites that an earlier run has measured. A record that can't be
 * used is a warning. */
void check_links(const job_t *job, text_t *out);
/* Appends the bytes that each rank holds from step to step, as a table of comment lines. */
lh_status_t check_step_memory(const check_step_t *s, text_t *out) LH_MUST_CHECK;

#endif
