/* comm/quantize.h - F32 as INT8 in blocks: how a site's part of a sum crosses a border at a quarter of
 * the bytes.
 *
 * A block is an F32 scale and up to QUANTIZE_BLOCK signed bytes; a byte q stands for scale * q. The
 * scale is the block's largest magnitude over 127, so one large number costs precision in its block
 * alone. What rounding loses is kept by whoever packs, and packed with the next values at the same
 * place (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", 2014): over steps the
 * values that were sent add up to those that were meant, to within one rounding. */
#ifndef COMM_QUANTIZE_H
#define COMM_QUANTIZE_H

#include <base/status.h>

enum { QUANTIZE_BLOCK = 128 };

/* Bytes of `elements` in blocks, the last of which may be shorter: 1.03 an element. */
uint64_t quantize_bytes(uint64_t elements);
/* Where in them the block of element `at` begins; `at` is a multiple of QUANTIZE_BLOCK. */
uint64_t quantize_offset(uint64_t at);

/* Packs values[i] + errors[i] as one block of count <= QUANTIZE_BLOCK, and leaves in `errors` what was
 * lost. A block with a number that is not finite, or that is too large for its scale to be, becomes
 * NaN throughout, so that no rank takes it for a gradient, and its errors stay as they were. */
void quantize_pack(const float *values, float *errors, uint32_t count, char *block);
/* The values of a block. */
void quantize_unpack(const char *block, uint32_t count, float *values);

/* For tests: 0 plain, 1 AVX2 where the processor has it. */
void quantize_level(uint32_t level);

#endif
