/* checkpoint/tensor_part.h - which elements of a logical tensor somebody holds: a box (what tensor
 * parallelism leaves), and of the box a range in row-major order (what an optimizer's cut leaves).
 *
 * Everything about layouts is here: whoever saves says which parts it holds, whoever loads which it
 * wants, and neither knows how many ranks the other had. A part's elements lie dense, in the order
 * of its box. */
#ifndef CHECKPOINT_TENSOR_PART_H
#define CHECKPOINT_TENSOR_PART_H

#include <longhaul/tensor.h>

#include <base/status.h>

typedef struct tensor_part {
    uint64_t at[LH_MAX_RANK];    /* first element of the box, per dimension of the tensor */
    uint64_t shape[LH_MAX_RANK]; /* of the box                                            */
    uint64_t first, count;       /* elements of the box, counted in its row-major order    */
} tensor_part_t;

/* The whole of a tensor. */
tensor_part_t tensor_part_whole(uint32_t rank, const uint64_t *shape);
/* Elements [begin, begin + count) of a whole tensor. */
tensor_part_t tensor_part_range(uint32_t rank, const uint64_t *shape, uint64_t begin,
                                uint64_t count);
bool tensor_part_is_whole(const tensor_part_t *p, uint32_t rank, const uint64_t *shape);
/* Lies inside the tensor, in checked arithmetic. */
bool tensor_part_fits(const tensor_part_t *p, uint32_t rank, const uint64_t *shape);

/* Two parts of a tensor of this rank share an element, or their boxes do and are not the same. */
bool tensor_part_overlaps(const tensor_part_t *a, const tensor_part_t *b, uint32_t rank);

/* Walks a part as runs of elements that lie side by side in the logical tensor. */
typedef struct tensor_run {
    uint64_t logical; /* index of the run's first element in the whole tensor */
    uint64_t local;   /* in the part                                          */
    uint64_t count;
} tensor_run_t;

/* A walk under way; tensor_walk_start fills it. */
typedef struct tensor_walk {
    tensor_part_t part;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
    uint64_t row;  /* elements that are contiguous in box and tensor */
    uint64_t done; /* elements handed out */
} tensor_walk_t;

void tensor_walk_start(tensor_walk_t *w, const tensor_part_t *part, uint32_t rank,
                       const uint64_t *shape);
bool tensor_walk_next(tensor_walk_t *w, tensor_run_t *out);

/* Copies what from and to have in common: F32 elements. Returns how many; with from NULL
 * it only counts. */
uint64_t tensor_part_copy(uint32_t rank, const uint64_t *shape, const tensor_part_t *from_part,
                          const float *from, const tensor_part_t *to_part, float *to);

/* Whether parts hold each element of a tensor exactly once. Sorts the pointers. Every part fits
 * into the tensor. key: any number that whoever made the parts could not choose. In n log n steps
 * for n parts, whatever they are. */
bool tensor_cover_once(const tensor_part_t **parts, uint32_t count, uint32_t rank,
                       const uint64_t *shape, uint64_t key);

#endif
