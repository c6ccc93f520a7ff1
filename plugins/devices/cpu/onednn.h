/* onednn.h - matrix products by oneDNN, without linking against it.
 *
 * A product is prepared for one shape and run with any addresses. Scratch comes from the caller, so
 * that the library allocates nothing in a step. */
#ifndef LH_CPU_ONEDNN_H
#define LH_CPU_ONEDNN_H

#include "cpu.h"

typedef struct onednn_matrix { /* dtype NONE: left out */
    lh_dtype_t dtype;          /* F32 or BF16         */
    uint32_t transposed;       /* lies as [columns, rows] */
    uint64_t pitch;            /* elements from line to line in memory */
} onednn_matrix_t;

typedef struct onednn_matmul_how { /* c [m, n] = a [m, k] b [k, n] + bias [n] (+ c) */
    uint64_t m, n, k;
    onednn_matrix_t a, b, bias, c;
    bool add;
    uint32_t lanes; /* threads that may run it at the same time, each in a lane of its own */
} onednn_matmul_how_t;

/* Opens the library. Missing: one sentence that names the Debian package. */
lh_status_t onednn_open(const lh_host_t *host, onednn_t **out);
void onednn_close(onednn_t *o);
/* "2.6.3" */
const char *onednn_version(const onednn_t *o);
/* True where products of BF16 are done by instructions for them. */
bool onednn_has_bf16(const onednn_t *o);
/* True where those are faster than F32 ones: with AMX, and on AMD. Intel's without AMX do half as
 * many multiplications a cycle as F32 (measured: 84 against 150 GFLOP/s a core). */
bool onednn_prefers_bf16(const onednn_t *o);

/* Makes a product; the caller frees it. Fails with LH_UNSUPPORTED where the library has no
 * implementation. */
lh_status_t onednn_matmul_new(onednn_t *o, const onednn_matmul_how_t *how, onednn_matmul_t **out);
void onednn_matmul_free(onednn_matmul_t *p);
/* Of one lane, for onednn_matmul_run. */
uint64_t onednn_matmul_scratch_bytes(const onednn_matmul_t *p);
/* Which implementation the library took, e.g. "brg:avx512_core_bf16"; valid until free. */
const char *onednn_matmul_name(const onednn_matmul_t *p);
/* Lane 0 with the library's own threads, or any lane from inside a parallel region, alone. */
lh_status_t onednn_matmul_run(onednn_matmul_t *p, uint32_t lane, const void *a, const void *b,
                              const void *bias, void *c, void *scratch);

#endif
