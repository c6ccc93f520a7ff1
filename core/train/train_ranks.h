/* train/train_ranks.h - the other ranks of a run, as far as the trainer needs to agree with them on
 * numbers of the host: weights of a batch, losses, whether to save. */
#ifndef TRAIN_TRAIN_RANKS_H
#define TRAIN_TRAIN_RANKS_H

#include <base/text.h>

typedef struct train_ranks {
    uint32_t rank, size;
    void *context;
    /* Every rank gives `bytes` of its own and gets all, in order of ranks: all is [size x bytes].
     * Blocking; all ranks call in the same order with the same sizes. No allocation. */
    lh_status_t (*gather)(void *context, const void *mine, size_t bytes, void *all);
    /* The same in two calls, with other work between them; no other gather meanwhile. NULL: only at
     * once. */
    lh_status_t (*start)(void *context, const void *mine, size_t bytes);
    lh_status_t (*finish)(void *context, size_t bytes, void *all);
} train_ranks_t;

enum { AGREE_MOST = 4 };
typedef struct agree {          /* numbers of all ranks */
    const train_ranks_t *ranks; /* NULL: alone */
    double *all;                /* [size][AGREE_MOST] */
} agree_t;

/* ranks NULL, or of size 1: alone. */
lh_status_t agree_new(const train_ranks_t *ranks, agree_t *out) LH_MUST_CHECK;
void agree_free(agree_t *a);
static inline uint32_t agree_rank(const agree_t *a)
{
    return a->ranks == NULL ? 0 : a->ranks->rank;
}
static inline uint32_t agree_size(const agree_t *a)
{
    return a->ranks == NULL ? 1 : a->ranks->size;
}

/* Each value becomes the sum over all ranks, added in their order: the same bits on all of them. */
lh_status_t agree_sum(agree_t *a, double *values, uint32_t count) LH_MUST_CHECK;
/* The same in two calls: the values travel while something else is done. */
lh_status_t agree_start(agree_t *a, const double *values, uint32_t count) LH_MUST_CHECK;
lh_status_t agree_finish(agree_t *a, double *values, uint32_t count) LH_MUST_CHECK;
/* What each rank says of itself (at most AGREE_TEXT bytes with its NUL) as one text, the same on
 * all: once where all say the same, else rank by rank. */
enum { AGREE_TEXT = 192 };
lh_status_t agree_text(agree_t *a, const char *mine, text_t *out) LH_MUST_CHECK;
/* All ranks take what rank 0 gives. */
lh_status_t agree_first(agree_t *a, void *value, size_t bytes) LH_MUST_CHECK;

#endif
