/* checkpoint/number_format.h - F32, BF16, F16 and F64 into one another, bit by bit: round to
 * nearest even, subnormals kept, and a value that came from the narrow format goes back to the same
 * bits. */
#ifndef CHECKPOINT_NUMBER_FORMAT_H
#define CHECKPOINT_NUMBER_FORMAT_H

#include <base/status.h>

#include <longhaul/tensor.h>

float bf16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);
float f16_to_f32(uint16_t x);
uint16_t f32_to_f16(float x);

/* True for F32, BF16, F16, F64. */
bool number_format_known(lh_dtype_t dtype);
uint64_t number_format_bytes(lh_dtype_t dtype); /* of an element; 0: unknown */
/* count elements; from and to need no alignment and do not overlap. */
void number_format_to_f32(lh_dtype_t dtype, const void *from, float *to, uint64_t count);
void number_format_from_f32(lh_dtype_t dtype, const float *from, void *to, uint64_t count);

#endif
