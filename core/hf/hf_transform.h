/* hf/hf_transform.h - how the values that a parameter has in a Hugging Face tensor lie there: in its
 * place, moved by rows or columns, changed one by one, or as a function of the whole tensor.
 *
 * Whoever converts goes through a parameter in pieces where it can, so that a tensor of gigabytes
 * never lies in memory as F32. Only what a plugin's own function does is not known: it gets both sides
 * whole, in files that are mapped (hf_whole_new). */
#ifndef HF_HF_TRANSFORM_H
#define HF_HF_TRANSFORM_H

#include <hf/hf_functions.h>
#include <hf/hf_weights.h>
#include <plugin/call.h>

/* What a transform's text may refer to. */
typedef struct hf_transform {
    const parameters_t *parameters;
    const lh_host_t *host;
    /* Plugins whose functions a text may name; NULL: none. */
    registry_t *plugins;
    /* Where hf_whole_new may make its files. */
    const char *folder;
    /* Of hf_export; false: of hf_import. */
    bool exports;
} hf_transform_t;

/* A tensor as matrices, one under the other: one of one column where it has one dimension, and as
 * many as the first of three says. */
typedef struct hf_matrices {
    uint64_t count, rows, columns;
} hf_matrices_t;

/* One user's way between the two. */
typedef struct hf_lines {
    uint32_t moves; /* HF_* of hf_functions.h; HF_ROWS where there is no function */
    hf_matrices_t own, tensor;
    /* [own.rows] the row, or column, of each of the tensor's matrices in which a row of the
     * parameter's lies. NULL: elements are in the tensor as in the parameter. */
    uint64_t *line;
} hf_lines_t;

/* Finds out by running the function over the numbers of rows. A mistake of the text is told here; one
 * of shapes makes it HF_WHOLE, and hf_transform_run tells it. */
lh_status_t hf_lines_new(const hf_transform_t *how, const hf_tensor_t *tensor,
                         const hf_user_t *user, hf_lines_t *out) LH_MUST_CHECK;
void hf_lines_free(hf_lines_t *l);

/* Of HF_ROWS and HF_EACH: how many elements from `at` of the user's on, before `end`, lie side by side
 * in the tensor too, and where the first does. */
uint64_t hf_lines_run(const hf_lines_t *l, uint64_t at, uint64_t end, uint64_t *in_tensor);
/* Of all but HF_WHOLE: elements [at, at + count) of the user's, of `size` bytes each, out of the whole
 * tensor or into it. */
void hf_lines_gather(const hf_lines_t *l, uint64_t at, uint64_t count, uint64_t size,
                     const void *tensor, void *own);
void hf_lines_scatter(const hf_lines_t *l, uint64_t at, uint64_t count, uint64_t size,
                      const void *own, void *tensor);

/* F32 [elements], zeroed, for a function that wants a tensor whole: of some MiB at most in memory, else
 * in a file without a name in how->folder, which is mapped. So it takes room on that disk instead, and of
 * memory only what the system can take back. A full disk is LH_IO here, not a signal later. */
lh_status_t hf_whole_new(const hf_transform_t *how, uint64_t elements, float **out) LH_MUST_CHECK;
void hf_whole_free(float *values, uint64_t elements); /* NULL does nothing */

/* Dense F32 both. Import: source is the Hugging Face tensor, out what the user has of it. Export:
 * out is the tensor, and only the user's part of it is written. */
lh_status_t hf_transform_run(const hf_transform_t *how, const hf_tensor_t *tensor,
                             const hf_user_t *user, float *source, float *out) LH_MUST_CHECK;
/* Of HF_EACH: `count` elements in their place. */
lh_status_t hf_transform_each(const hf_transform_t *how, const hf_user_t *user, float *values,
                              uint64_t count) LH_MUST_CHECK;

#endif
