/* cli/check_step.h - the training step of a job, recorded without a device: what planning or training
 * would refuse is refused here, and what each rank holds from step to step is counted. */
#ifndef CLI_CHECK_STEP_H
#define CLI_CHECK_STEP_H

#include <base/text.h>
#include <session/step_layout.h>

typedef struct check_step_how {
    const job_t *job;
    registry_t *registry;
    const option_given_t *given; /* to the model, the vocabulary too */
    uint32_t given_count;
    uint64_t guessed_vocab; /* rows of the embedding that only the tokenizer knows; 0: known */
} check_step_how_t;

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
 * ends. Of more than CHECK_STEP_RANKS ranks only rank 0's own list is walked. */
enum { CHECK_STEP_RANKS = 16 };
lh_status_t check_step_order(const check_step_t *s) LH_MUST_CHECK;
void check_step_close(check_step_t *s);
/* Appends the bytes that each rank holds from step to step, as a table of comment lines. */
lh_status_t check_step_memory(const check_step_t *s, text_t *out) LH_MUST_CHECK;

#endif
