/* engine/block_sums.h - sums over a model's embedding and blocks, of which the head makes losses of
 * its own (lh_graph_api_t.accumulate and total): how evenly tokens went to the experts of all blocks,
 * say.
 *
 * A sum is of one micro-batch. Each block adds to it on the way there; the head reads it, and what
 * its losses say of it goes back into every block. So it is a value that all instances of a
 * micro-batch share, and its gradient is another. For model_program.c, while a program is written;
 * failures beyond those that are returned are left in the flow's status. */
#ifndef ENGINE_BLOCK_SUMS_H
#define ENGINE_BLOCK_SUMS_H

#include <engine/instance.h>
#include <engine/part_record.h>

/* One of them. */
typedef struct block_sum {
    const char *name; /* a recording's */
    lh_arg_t arg;
    uint32_t *total, *gradient; /* [micro-batches of a run] flow values; 0: not there yet */
} block_sum_t;

/* Zero-initialised but for the program; block_sums_free leaves nothing behind. */
typedef struct block_sums {
    program_t *p;
    block_sum_t *list; /* [count] */
    uint32_t count;
    size_t capacity;
} block_sums_t;

/* Finds the sums that the embedding and blocks [count] add to and `head` reads (its recording is NULL
 * where it reads none). LH_INVALID unless each is both added to and read, with one length, and where
 * the program trains has a loss that depends on it. */
lh_status_t block_sums_find(block_sums_t *s, const part_t *embed, const part_t *blocks,
                            uint32_t count, const part_t *head) LH_MUST_CHECK;
void block_sums_free(block_sums_t *s);

/* Adds what the instance has made on its way there; the first one of a micro-batch writes. */
void block_sums_add(block_sums_t *s, instance_t *v);
/* Gives an instance on its way back the gradients of the sums that it added to. */
void block_sums_seed(const block_sums_t *s, instance_t *v);
/* Appends the head's losses of a micro-batch's sums, there and, where the program trains, back in one
 * go. */
void block_sums_lose(block_sums_t *s, const part_t *head, uint32_t micro_batch);

#endif
