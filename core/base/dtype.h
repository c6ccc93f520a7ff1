/* base/dtype.h - dtypes by their names in files, and rows of elements from one to another. What a
 * single dtype or element is says longhaul/dtype.h.
 *
 * Conversion is for weights on their way from or to a file, once a run: one loop over elements with
 * the dtype looked at in it. Conversion inside a step is an op (`copy`), with a kernel of the
 * device. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <base/status.h>
#include <longhaul/dtype.h>

/* The dtype of a name as safetensors writes it ("BF16", "F8_E4M3"); false: there is none. */
bool dtype_find(const char *name, lh_dtype_t *out);

/* Elements of F32, BF16, F16 or F64 to any of these, rounded to nearest even (F64 to BF16 or F16
 * twice: to F32, then from there); of any dtype to itself, by a copy. Other pairs are
 * LH_UNSUPPORTED. A NaN of BF16 or F16 that went to F32 comes back with its bits. `count` elements;
 * the buffers don't overlap. [any thread] */
lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count) LH_MUST_CHECK;

#endif
