/* comm/sums.h - adds contributions element by element in one given order, so that every
 * instruction set, chunk and algorithm gives the same bits. */
#ifndef COMM_SUMS_H
#define COMM_SUMS_H

#include <base/status.h>
#include <longhaul/tensor.h>

typedef struct sum_source {
    const void *data;
    lh_dtype_t dtype; /* F32 or BF16 */
} sum_source_t;

/* to[i] = ((s[0][i] + s[1][i]) + s[2][i]) + ..., in F32, rounded once if `to` is BF16; with add:
 * to[i] = to[i] + that sum. Sources may be `to` itself, but don't overlap it otherwise. */
void sum_run(lh_dtype_t dtype, void *to, bool add, const sum_source_t *sources, uint32_t count,
             uint64_t elements);

/* For tests: 0 plain, 1 AVX2, 2 AVX-512 at most; what the processor lacks is not taken. */
void sum_level(uint32_t level);

#endif
