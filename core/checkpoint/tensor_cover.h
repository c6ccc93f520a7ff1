/* checkpoint/tensor_cover.h - whether parts hold each element of a tensor exactly once. */
#ifndef CHECKPOINT_TENSOR_COVER_H
#define CHECKPOINT_TENSOR_COVER_H

#include <checkpoint/tensor_part.h>

/* Sorts the pointers. Every part fits into the tensor. key: any number that whoever made the parts
 * could not choose. In n log n steps for n parts, whatever they are. */
bool tensor_cover_once(const tensor_part_t **parts, uint32_t count, uint32_t rank,
                       const uint64_t *shape, uint64_t key);

#endif
