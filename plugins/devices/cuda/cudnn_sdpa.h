/* cudnn_sdpa.h - attention by cuDNN, as C sees it: a graph of cuDNN's that is made once and run often.
 *
 * cudnn_sdpa.cc builds it by NVIDIA's cudnn-frontend, headers without a library. A build that did not
 * find them has no cudnn_sdpa.cc, and LH_CUDNN is not defined: then nothing here can be had, as the
 * functions at the end say. */
#ifndef CUDNN_SDPA_H
#define CUDNN_SDPA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The tensors of both ops; those that only the gradient has come last. */
enum {
    CUDNN_SDPA_Q,
    CUDNN_SDPA_K,
    CUDNN_SDPA_V,
    CUDNN_SDPA_Y,
    CUDNN_SDPA_LSE,
    CUDNN_SDPA_GY,
    CUDNN_SDPA_GQ,
    CUDNN_SDPA_GK,
    CUDNN_SDPA_GV,
    CUDNN_SDPA_TENSORS,
};

/* Documents lie one behind the other in rows that all tensors share; where each begins and how long it
 * is stand in device memory, so that one graph does for every step. */
typedef struct cudnn_sdpa_how {
    int capability;          /* of the GPU: 10 major + minor */
    bool backward;           /* the gradient */
    bool ordered;            /* of the gradient: every sum in one order, the same bits every time */
    bool f16;                /* F16; else BF16 */
    bool full;               /* not causal */
    int64_t documents, rows; /* of a run; no document has more than `rows` rows */
    int64_t total_rows;      /* of the tensors */
    int64_t heads, kv_heads, head_dim, value_dim;
    int64_t window; /* rows that a query sees, itself included; 0: all */
    double scale;   /* on scores */
    /* Elements from row to row; of lse, whose rows lie side by side, from head to head. 0: not there. */
    int64_t pitch[CUDNN_SDPA_TENSORS];
} cudnn_sdpa_how_t;

/* What a run is given, all in device memory. */
typedef struct cudnn_sdpa_places {
    void *tensor[CUDNN_SDPA_TENSORS];
    const int32_t *offset[CUDNN_SDPA_TENSORS]; /* [documents + 1] of that tensor, in elements */
    const int32_t *lengths;                    /* [documents] */
    void *workspace;
} cudnn_sdpa_places_t;

typedef struct cudnn_sdpa cudnn_sdpa_t;

enum { CUDNN_SDPA_ERROR_BYTES = 256 };

#ifdef LH_CUDNN

enum { CUDNN_SDPA_BUILT = 1 };

/* Takes libcudnn as dlopen() gave it, for the whole process: all devices of a process have the same.
 * Its version, 10000 major + 100 minor + patch; 0: it is no libcudnn. */
size_t cudnn_sdpa_library(void *library);
/* cuDNN's handle for the current context; NULL: `error` says why. */
void *cudnn_sdpa_handle_new(char error[CUDNN_SDPA_ERROR_BYTES]);
void cudnn_sdpa_handle_free(void *handle);

/* A graph and the first plan for it whose workspace is within the limit. variant: 0, or what
 * cudnn_sdpa_variant() said of the plan that is to be taken again. NULL: `error` says why not. */
cudnn_sdpa_t *cudnn_sdpa_new(void *handle, const cudnn_sdpa_how_t *how, uint32_t variant,
                             uint64_t limit_bytes, char error[CUDNN_SDPA_ERROR_BYTES]);
void cudnn_sdpa_free(cudnn_sdpa_t *s);
uint64_t cudnn_sdpa_workspace(const cudnn_sdpa_t *s); /* bytes */
uint32_t cudnn_sdpa_variant(const cudnn_sdpa_t *s);   /* of the plan: engine and knobs; never 0 */

/* Queues it on a CUstream. One thread at a time for a handle. */
bool cudnn_sdpa_run(const cudnn_sdpa_t *s, void *handle, void *stream,
                    const cudnn_sdpa_places_t *places, char error[CUDNN_SDPA_ERROR_BYTES]);

#else

enum { CUDNN_SDPA_BUILT = 0 };

static inline size_t cudnn_sdpa_library(void *library)
{
    (void)library;
    return 0;
}
static inline void *cudnn_sdpa_handle_new(char error[CUDNN_SDPA_ERROR_BYTES])
{
    (void)error;
    return NULL;
}
static inline void cudnn_sdpa_handle_free(void *handle)
{
    (void)handle;
}
static inline cudnn_sdpa_t *cudnn_sdpa_new(void *handle, const cudnn_sdpa_how_t *how,
                                           uint32_t variant, uint64_t limit_bytes,
                                           char error[CUDNN_SDPA_ERROR_BYTES])
{
    (void)handle, (void)how, (void)variant, (void)limit_bytes, (void)error;
    return NULL;
}
static inline void cudnn_sdpa_free(cudnn_sdpa_t *s)
{
    (void)s;
}
static inline uint64_t cudnn_sdpa_workspace(const cudnn_sdpa_t *s)
{
    (void)s;
    return 0;
}
static inline uint32_t cudnn_sdpa_variant(const cudnn_sdpa_t *s)
{
    (void)s;
    return 0;
}
static inline bool cudnn_sdpa_run(const cudnn_sdpa_t *s, void *handle, void *stream,
                                  const cudnn_sdpa_places_t *places,
                                  char error[CUDNN_SDPA_ERROR_BYTES])
{
    (void)s, (void)handle, (void)stream, (void)places, (void)error;
    return false;
}

#endif

#ifdef __cplusplus
}
#endif

#endif
