/* four_ranks.h - a small state that four ranks save together, one shard each, into /run/checkpoints
 * of whatever file system is in force; every value follows from (step, tensor, index). */
#ifndef TESTS_FOUR_RANKS_H
#define TESTS_FOUR_RANKS_H

#include <base/status.h>
#include <crash/crash_states.h>

#define FOUR_FOLDER "/run/checkpoints"
#define FOUR_OTHER \
    FOUR_FOLDER "/elsewhere" /* a checkpoint that another site has, which no loader finds */

typedef struct four_ranks {
    char said[1024];      /* the last fault's sentence  */
    bool pointer_may_lag; /* a test let the pointer fail */
    bool damage_stands;   /* a test damaged a step     */
    uint64_t losses;      /* faults that are a checkpoint lost, or a wrong one found */
} four_ranks_t;

/* One save; the journal gets its marks. */
lh_status_t four_save(uint64_t step, uint64_t keep);
/* The same by four savers who write into one staging folder, a thread each; mem_shared_table must be
 * in force. */
lh_status_t four_meet(uint64_t session, uint64_t step, uint64_t keep);
/* A copy of `step`, which is FOUR_OTHER, by pieces from two senders. */
lh_status_t four_copy(uint64_t step);
/* What a run does at its start and first save: lock, clean, open the newest, save `step`. */
lh_status_t four_run(uint64_t step, uint64_t keep);
/* A file system, in use behind mem_table, whose disk has got a run of each step from 1 to `steps`: its
 * journal begins after them. Ends the program with a sentence where one of them could not be saved. */
mem_fs_t *four_disk(uint64_t steps, uint64_t keep);

/* A crash_look_t, context a four_ranks_t: the newest checkpoint is one that may be found, is whole,
 * has the values of its step, nothing newer stands there, and the pointer names what it should. */
const char *four_look(void *context, const crash_expect_t *expect);
/* The step that is found; 0: none. Negative: a fault, said in f->said. */
int64_t four_found(four_ranks_t *f);

#endif
