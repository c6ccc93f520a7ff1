/* train/sampling.h - picks the next token from logits. */
#ifndef TRAIN_SAMPLING_H
#define TRAIN_SAMPLING_H

#include <base/status.h>

typedef struct sampling {
    bool greedy;
    double temperature; /* > 0; ignored when greedy              */
    uint64_t top_k;     /* 0: all                                */
    double top_p;       /* 1: all; the smallest set of at least this probability */
    uint64_t seed;
} sampling_t;

typedef struct sampler sampler_t;
lh_status_t sampler_new(const sampling_t *how, uint64_t vocab, sampler_t **out) LH_MUST_CHECK;
void sampler_free(sampler_t *s);

/* logits [vocab]; index numbers the token that is made, so that the same seed gives the same text
 * however generation is cut up. Equal logits: the lower id first. */
uint32_t sampler_pick(sampler_t *s, const float *logits, uint64_t index);

#endif
