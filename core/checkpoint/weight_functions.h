/* checkpoint/weight_functions.h - the core's own functions for weight transforms, called by the
 * hf_import and hf_export texts of a parameter's row. */
#ifndef CHECKPOINT_WEIGHT_FUNCTIONS_H
#define CHECKPOINT_WEIGHT_FUNCTIONS_H

#include <longhaul/function.h>

/* All are status(tensor source, ..., tensor out); F32, dense. */
extern const lh_function_t weight_functions[];
extern const uint32_t weight_function_count;

#endif
