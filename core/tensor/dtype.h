/* tensor/dtype.h - sizes, names and conversions of dtypes in host memory. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <base/status.h>

#include <longhaul/tensor.h>

uint64_t dtype_bytes(lh_dtype_t dtype);   /* of one element; 0 for NONE and unknown ones */
const char *dtype_name(lh_dtype_t dtype); /* "bf16"; "none" */

/* count dense elements; rounds to nearest, ties to even. Same dtype: copied as they are. Refused
 * between floating point and integers and for F8. The ranges do not overlap. */
lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count) LH_MUST_CHECK;
bool dtype_converts(lh_dtype_t to_dtype, lh_dtype_t from_dtype);

uint16_t bf16_from_f32(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f16_from_f32(float value);
float f16_to_f32(uint16_t bits);

#endif
