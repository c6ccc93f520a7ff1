/* train/train_told.h - where each site has checkpoints of its own: what the sites tell each other of
 * their folders, and which step is chosen of all that they have.
 *
 * All ranks have the same table, and so choose the same step. */
#ifndef TRAIN_TRAIN_TOLD_H
#define TRAIN_TRAIN_TOLD_H

#include <checkpoint/incarnation.h>
#include <train/train_state.h>

/* TOLD_STEPS: of a folder at a time. */
enum { TOLD_STEPS = 8, TOLD_REASON = 256 };

typedef struct told_step { /* a checkpoint that can be opened */
    uint64_t step;
    uint64_t refused; /* steps right before it that were not applied */
    incarnation_t made;
    uint32_t rank, site; /* who tells it; that rank leads in the folder of its site */
    char self[SHA256_TEXT];
} told_step_t;

/* As it travels: of a rank that does not lead only the status. */
typedef struct told_site {
    lh_status_t status;
    uint32_t site, leads, resume, named;
    uint64_t named_step;
    uint64_t rest;        /* the newest step that it has yet to tell and 1; 0: it has told all */
    incarnation_t before; /* the last start that its folder has seen */
    uint32_t damaged;     /* it has checkpoints that can't be opened */
    uint32_t count;
    told_step_t steps[TOLD_STEPS];
    char reason[TOLD_REASON];
} told_site_t;

typedef struct train_told {
    told_site_t *ranks; /* [size]: what each has told last */
    uint32_t size;
    told_step_t *steps; /* [count]: all that were told */
    size_t count, capacity;
    const told_step_t *chosen; /* of them; NULL: nobody has any */
    /* Whether checkpoints behind steps that were not applied speak for the start that made them: not
     * where they are all that later starts have, and an earlier one has a good one. */
    bool refused_speak;
} train_told_t;

/* What is in the folders of all sites of what t->below leaves, of a step that was named that one alone: the newest
 * checkpoints of each, and older ones for as long as they may matter to the choice, or stand above the
 * chosen step. All ranks. `opened`: what became of opening this rank's writer. What a rank has met is
 * told as its status. *out is to be cleared, whatever this returns. */
lh_status_t train_told_gather(const trainer_t *t, lh_status_t opened,
                              train_told_t *out) LH_MUST_CHECK;
void train_told_clear(train_told_t *told);

/* What this rank has of a step; NULL: nothing. */
const told_step_t *train_told_find(const train_told_t *told, uint32_t rank, uint64_t step);
/* Whether two are one checkpoint, or copies of it. */
bool train_told_same(const told_step_t *a, const told_step_t *b);
/* The last start of its run that has gone on without it; 0: none has. */
uint64_t train_told_stale(const train_told_t *told, const told_step_t *s);

#endif
