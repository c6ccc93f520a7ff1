/* tensor/dtype.h - names and sizes of dtypes, and conversion between the floating ones. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <base/status.h>
#include <longhaul/tensor.h>

uint64_t dtype_bytes(lh_dtype_t dtype);   /* of one element; 0 for NONE and unknown ones    */
const char *dtype_name(lh_dtype_t dtype); /* "BF16", as safetensors writes it; "none"       */
bool dtype_find(const char *name, lh_dtype_t *out); /* false: no such name                   */

float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value); /* to nearest, ties to even; NaN stays NaN */
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

/* Elements of F32, BF16, F16 or F64 to any of these, rounded to nearest even. The buffers don't
 * overlap. */
lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count) LH_MUST_CHECK;

#endif
