/* sampling.c - greedy, temperature, top-k and top-p. */
#include <train/sampling.h>

#include <math.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/philox.h>

typedef struct candidate {
    float logit;
    uint32_t id;
} candidate_t;

struct sampler {
    sampling_t how;
    uint64_t vocab;
    candidate_t *candidates; /* [vocab] */
    double *weights;         /* [vocab] */
};

enum { SAMPLING_STREAM = 0x73616d70 }; /* keeps these numbers apart from initial values' */

lh_status_t sampler_new(const sampling_t *how, uint64_t vocab, sampler_t **out)
{
    if (!how->greedy && !(how->temperature > 0))
        return fail(LH_INVALID, "temperature %g is not above 0; for the likeliest token use greedy",
                    how->temperature);
    if (!how->greedy && !(how->top_p > 0 && how->top_p <= 1))
        return fail(LH_INVALID, "top_p %g is not in (0, 1]", how->top_p);

    sampler_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->how = *how;
    s->vocab = vocab;
    s->candidates = mem_array(vocab, sizeof(*s->candidates));
    s->weights = mem_array(vocab, sizeof(*s->weights));
    if (s->candidates == NULL || s->weights == NULL) {
        sampler_free(s);
        return LH_NO_MEMORY;
    }
    *out = s;
    return LH_OK;
}

void sampler_free(sampler_t *s)
{
    if (s == NULL) return;
    mem_free(s->weights);
    mem_free(s->candidates);
    mem_free(s);
}

static uint32_t likeliest(const float *logits, uint64_t vocab)
{
    uint64_t best = 0;
    for (uint64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (uint32_t)best;
}

static int by_logit(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

uint32_t sampler_pick(sampler_t *s, const float *logits, uint64_t index)
{
    if (s->how.greedy) return likeliest(logits, s->vocab);

    for (uint64_t i = 0; i < s->vocab; i++)
        s->candidates[i] = (candidate_t){logits[i], (uint32_t)i};
    qsort(s->candidates, s->vocab, sizeof(*s->candidates), by_logit);

    uint64_t count = s->how.top_k == 0 || s->how.top_k > s->vocab ? s->vocab : s->how.top_k;
    double total = 0;
    for (uint64_t i = 0; i < count; i++) {
        s->weights[i] = exp((double)(s->candidates[i].logit - s->candidates[0].logit) /
                            s->how.temperature);
        total += s->weights[i];
    }
    double kept = 0;
    for (uint64_t i = 0; i < count; i++) {
        kept += s->weights[i];
        if (kept >= s->how.top_p * total) count = i + 1;
    }

    double left = philox_uniform(s->how.seed, SAMPLING_STREAM, index) * kept;
    for (uint64_t i = 0; i + 1 < count; i++) {
        left -= s->weights[i];
        if (left < 0) return s->candidates[i].id;
    }
    return s->candidates[count - 1].id;
}
