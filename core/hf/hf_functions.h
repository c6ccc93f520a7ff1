/* hf/hf_functions.h - the core's own functions for weights, which the hf_import and hf_export texts of
 * a parameter's row call. All are status(tensor source, ..., tensor out); F32, dense. */
#ifndef HF_HF_FUNCTIONS_H
#define HF_HF_FUNCTIONS_H

#include <longhaul/function.h>

extern const lh_function_t weight_functions[];
extern const uint32_t weight_function_count;

/* What a function does to a tensor, so that a large one can be taken in pieces. */
enum {
    HF_WHOLE,   /* not known: it gets the whole tensor, as a plugin's own function does */
    HF_ROWS,    /* each row of the parameter is one of the tensor's, as it is            */
    HF_COLUMNS, /* each row of the parameter is a column of the tensor                   */
    HF_EACH,    /* each element is made from the one in its place                        */
};

/* HF_*; HF_WHOLE where it is none of weight_functions. */
uint32_t weight_function_moves(const lh_function_t *function);

#endif
