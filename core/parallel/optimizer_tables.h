/* parallel/optimizer_tables.h - what an optimizer's tables of spaces and moves come to here: which
 * spaces are one and the same, which moves are left, and a sentence for what is not built. */
#ifndef PARALLEL_OPTIMIZER_TABLES_H
#define PARALLEL_OPTIMIZER_TABLES_H

#include <base/status.h>

#include <longhaul/optimizer.h>

enum { TABLE_SPACES = 32, TABLE_MOVES = 64 };

typedef struct optimizer_tables {
    lh_space_t spaces[TABLE_SPACES];
    lh_move_t moves[TABLE_MOVES]; /* in the order in which a step runs them */
    uint32_t space_count, move_count;
    /* The space in whose memory this one lies: itself, or one that a REDUCE or GATHER over a single
     * rank makes equal to it. */
    uint32_t root[TABLE_SPACES];
    uint32_t value, grad, master, state; /* roots; TABLE_SPACES: there is none */
    lh_dtype_t grad_dtype, master_dtype; /* 0: as the table leaves open */
} optimizer_tables_t;

/* Asks the optimizer and checks what it says. */
lh_status_t optimizer_tables_read(const lh_optimizer_api_t *api, lh_optimizer_t *optimizer,
                                  const lh_train_t *train, optimizer_tables_t *out) LH_MUST_CHECK;

#endif
