/* graph/parameter_draw.h - draws start values ahead of the thread that takes them, on every processor that
 * this process may use, so that drawing and copying to a device go on side by side. The bits do not
 * depend on the number of threads. */
#ifndef GRAPH_PARAMETER_DRAW_H
#define GRAPH_PARAMETER_DRAW_H

#include <graph/parameters.h>

typedef struct parameter_draw parameter_draw_t;

/* Start values of elements [begin, begin + count) of one parameter. */
typedef struct parameter_span {
    uint32_t parameter; /* index */
    uint64_t begin, count;
    const float *values; /* [count], valid until the next span is taken */
} parameter_span_t;

/* threads: how many draw, the calling one included; 0: as many as processors (base/processors.h). There are fewer where
 * the machine gives no more. Takes two buffers of 1 MiB. The parameters are borrowed until
 * parameter_draw_free. [serial] */
lh_status_t parameter_draw_new(const parameters_t *p, uint64_t seed, double init_std,
                               uint32_t threads, parameter_draw_t **out) LH_MUST_CHECK;
/* Starts to draw elements [begin, end) of a parameter. All of them must have been taken as spans
 * before the next call. [serial] */
void parameter_draw_start(parameter_draw_t *in, uint32_t parameter, uint64_t begin, uint64_t end);
/* Takes the next span, in order; false: there are no more. The span behind it is drawn meanwhile.
 * [serial] */
bool parameter_draw_next(parameter_draw_t *in, parameter_span_t *out);
/* Ends the threads. NULL does nothing. [serial] */
void parameter_draw_free(parameter_draw_t *in);

#endif
