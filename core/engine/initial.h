/* engine/initial.h - draws the start values of parameters ahead, on every processor that this
 * process may use. A value depends on its name and place only, so it has the same bits with any
 * number of threads. */
#ifndef ENGINE_INITIAL_H
#define ENGINE_INITIAL_H

#include <graph/parameters.h>

typedef struct initial initial_t;

typedef struct initial_piece { /* of one parameter */
    uint32_t parameter;
    uint64_t begin, count;
    const float *values; /* [count], valid until the next piece is taken */
} initial_piece_t;

/* `threads`, this one included; 0: as many as processors. Fewer where the machine gives no more.
 * The parameters are borrowed until initial_free. [serial] */
lh_status_t initial_new(const parameters_t *p, uint64_t seed, double init_std, uint32_t threads,
                        initial_t **out) LH_MUST_CHECK;
/* Starts on elements begin .. end of a parameter. They must have come out as pieces before the next
 * call. [serial] */
void initial_start(initial_t *in, uint32_t parameter, uint64_t begin, uint64_t end);
/* The pieces in order; false: there are no more. The next one is drawn meanwhile. [serial] */
bool initial_next(initial_t *in, initial_piece_t *out);
/* NULL does nothing. */
void initial_free(initial_t *in);

#endif
