/* train/generation.h - continues a row of token ids, token by token, with a cache of keys and
 * values. */
#ifndef TRAIN_GENERATION_H
#define TRAIN_GENERATION_H

#include <train/sampling.h>
#include <train/session.h>

typedef struct generation generation_t;

typedef struct generation_how {
    session_t *session;  /* its engine is built here: no other program may follow */
    uint64_t prompt;     /* longest prompt, in tokens                            */
    uint64_t tokens;     /* most new ones                                        */
    uint64_t vocabulary; /* ids from here on are never picked (rows of padding); 0: all rows */
    sampling_t sampling;
} generation_how_t;

lh_status_t generation_new(const generation_how_t *how, generation_t **out) LH_MUST_CHECK;
void generation_free(generation_t *g); /* NULL does nothing */

/* Writes up to `tokens` new ids after the prompt; ends early behind an id equal to `end` (-1:
 * none), which is written too. each, if not NULL, sees every id as it is made. */
lh_status_t generation_run(generation_t *g, const int32_t *prompt, uint64_t prompt_count,
                           int32_t end, void (*each)(void *context, int32_t id), void *context,
                           int32_t *out, uint64_t *out_count) LH_MUST_CHECK;

#endif
