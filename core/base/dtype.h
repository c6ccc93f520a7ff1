/* base/dtype.h - dtypes by their names in files, and rows of elements from one to another. What a
 * single dtype or element is says longhaul/dtype.h. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <base/status.h>
#include <longhaul/dtype.h>

bool dtype_find(const char *name, lh_dtype_t *out); /* false: no such name */

/* Elements of F32, BF16, F16 or F64 to any of these, rounded to nearest even. The buffers don't
 * overlap. */
lh_status_t dtype_convert(lh_dtype_t to_dtype, void *to, lh_dtype_t from_dtype, const void *from,
                          uint64_t count) LH_MUST_CHECK;

#endif
