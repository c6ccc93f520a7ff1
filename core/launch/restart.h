/* launch/restart.h - whether ranks that have ended start again: how often that was done lately, and
 * whether it is the same failure over and over.
 *
 * Each launcher judges by itself, from what its own ranks left on the board. All of them come to
 * the same answer, as the end of a job reaches every rank with the same culprit. */
#ifndef LAUNCH_RESTART_H
#define LAUNCH_RESTART_H

#include <base/text.h>
#include <control/control_state.h>

/* Why the ranks of an epoch ended, as far as it tells one failure from another. */
typedef struct restart_cause {
    uint32_t rank; /* that was lost */
    uint64_t step; /* in which it was; 0: in none */
    /* A signal that ended it, or a status (negative), of the rank's or of whoever missed it. */
    int32_t how;
} restart_cause_t;

/* RESTART_SAME: so many times in a row is a loop. */
enum { RESTART_SAME = 3 };

enum restart_answer {
    RESTART_AGAIN,
    RESTART_NEVER, /* none are to be made */
    RESTART_SPENT, /* as many as are allowed were made within the window */
    RESTART_LOOP,  /* the same rank, in the same step, by the same cause, RESTART_SAME times */
};

/* Zero but for the first two. Nanoseconds of sys()->now_ns. */
typedef struct restarts {
    uint64_t most, window_ns;
    uint64_t *times; /* [most] a ring of those that were made; NULL: none was */
    uint64_t made;   /* in all */
    restart_cause_t last;
    uint32_t same; /* how often in a row it was that */
} restarts_t;

/* The ranks have ended by this cause. RESTART_AGAIN counts as a restart that is made now. */
enum restart_answer restart_judge(restarts_t *r, const restart_cause_t *cause, uint64_t now);
/* Restarts within the window that ends now. */
uint64_t restart_count(const restarts_t *r, uint64_t now);
/* Appends what becomes of it to the sentence why the ranks ended: "; starting again, 2 of 3 within
 * 1h". Nothing for RESTART_NEVER. */
void restart_tell(const restarts_t *r, enum restart_answer answer, uint64_t now, text_t *out);
void restart_free(restarts_t *r);

/* Whether an end is one after which ranks start again: somebody who was there is lost. What never
 * came is for a person: at a job's first start an address, a port or a machine is wrong more often
 * than it is late. A culprit of status 0 is nobody that is known. met: this machine's ranks have met
 * the others; first: it is the job's first epoch here. */
bool restart_is_loss(const control_culprit_t *culprit, bool met, bool first);

#endif
