/* session/generation.h - continues rows of token ids, token by token, with a cache of keys and
 * values for each.
 *
 * Two programs share one cache: one takes PREFILL rows of each text at a time for the prompts, the
 * other a single row of each for new tokens. Both are planned for as many texts and the longest one
 * that were asked for, so nothing is allocated while text is made. */
#ifndef SESSION_GENERATION_H
#define SESSION_GENERATION_H

#include <base/status.h>
#include <session/session.h>

/* Picks the next token from logits. In the order in which they narrow the choice: temperature
 * shapes the probabilities, top_k and then top_p cut the list. */
typedef struct sampling {
    bool greedy;
    double temperature; /* > 0; ignored when greedy              */
    uint64_t top_k;     /* 0: all                                */
    double top_p;       /* 1: all; the smallest set of at least this probability */
    uint64_t seed;
} sampling_t;

typedef struct sampler sampler_t;
/* vocab: how many logits may be picked from; those behind are rows that only fill up the embedding.
 */
lh_status_t generation_sampler_new(const sampling_t *how, uint64_t vocab,
                                   sampler_t **out) LH_MUST_CHECK;
void generation_sampler_free(sampler_t *s);

/* logits [vocab]; index numbers the token that is made, so that the same seed gives the same text
 * however generation is cut up. Equal logits: the lower id first. A pure function of seed, index
 * and logits. Not thread-safe, as it sorts in the sampler's buffers. */
uint32_t generation_sampler_pick(sampler_t *s, const float *logits, uint64_t index);

typedef struct generation generation_t;

/* Stays unchanged while the generation lives; prompts of generation_run may be shorter. */
typedef struct generation_how {
    session_t *session;  /* its engine is built here: no other program may follow */
    uint64_t sequences;  /* texts that are continued at once                      */
    uint64_t prompt;     /* longest prompt, in tokens                            */
    uint64_t tokens;     /* most new ones                                        */
    uint64_t vocabulary; /* ids from here on are never picked (rows of padding); 0: all rows */
    int32_t ends[2];     /* ids behind which a text is done; -1: none            */
    sampling_t sampling;
} generation_how_t;

/* Prompt and new tokens together must fit into what the model is made for. */
lh_status_t generation_new(const generation_how_t *how, generation_t **out) LH_MUST_CHECK;
void generation_free(generation_t *g); /* NULL does nothing */

/* Refuses a prompt that generation_run would refuse: of several, all can be checked before the first
 * is continued. */
lh_status_t generation_check(const generation_t *g, const int32_t *prompt,
                             uint64_t count) LH_MUST_CHECK;

/* One text. number tells its draws from those of other texts with the same seed, wherever it stands
 * in a batch. out has room for `tokens` ids. */
typedef struct generation_text {
    const int32_t *prompt; /* [prompt_count] */
    uint64_t prompt_count, number;
    int32_t *out;
    uint64_t made; /* how many of out are there; an end is written too */
} generation_text_t;

/* Continues up to `sequences` texts; each ends behind one of `ends`, or after `tokens` ids. each, if
 * not NULL, sees every id as it is made, with the text's place. May be called again with others; the
 * caches begin anew. */
lh_status_t generation_run(generation_t *g, generation_text_t *texts, uint64_t count,
                           void (*each)(void *context, uint64_t text, int32_t id),
                           void *context) LH_MUST_CHECK;

#endif
