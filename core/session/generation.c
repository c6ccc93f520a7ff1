/* generation.c - a prompt goes through in pieces of PREFILL rows, then one row a token.
 *
 * The last piece of a prompt is padded to PREFILL rows with its own last token. The cache rows of
 * that padding are garbage, but length tells which rows count, and the tokens that follow are
 * written over them. */
#include <session/generation.h>

#include <math.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/philox.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>

enum { PREFILL = 32 };

struct generation {
    generation_how_t how;
    program_t *prefill, *decode;
    sampler_t *sampler;
    uint64_t vocab;  /* columns of the logits */
    float *logits;   /* [PREFILL, vocab]      */
    int32_t *tokens; /* [PREFILL]             */
    int32_t *positions;
    int32_t length; /* rows in the cache */
};

/* capacity: rows of the cache, a multiple of PREFILL, so that a padded piece never runs over its
 * end. */
static lh_status_t new_program(generation_t *g, uint64_t rows, uint64_t capacity, program_t **out)
{
    const program_how_t how = {
        .use = USE_DECODE, .sequences = 1, .rows = rows, .capacity = capacity};
    return program_new(g->how.session->engine, g->how.session->weights, &how, out);
}

lh_status_t generation_new(const generation_how_t *how, generation_t **out)
{
    const parameters_t *p = weights_parameters(how->session->weights);
    const uint64_t vocabulary = how->vocabulary == 0 || how->vocabulary > p->vocab
                                    ? p->vocab
                                    : how->vocabulary;
    if (how->prompt == 0)
        return fail(LH_INVALID, "the prompt is empty; at least one token is needed");
    if (how->prompt > p->max_tokens || how->tokens > p->max_tokens - how->prompt)
        return fail(LH_INVALID,
                    "%llu tokens of prompt and %llu new ones; the model is made for %llu",
                    (unsigned long long)how->prompt, (unsigned long long)how->tokens,
                    (unsigned long long)p->max_tokens);

    generation_t *g = mem_new(sizeof(*g));
    if (g == NULL) return LH_NO_MEMORY;
    g->how = *how;
    g->vocab = p->vocab;
    const uint64_t capacity = (how->prompt + how->tokens + PREFILL - 1) / PREFILL * PREFILL;
    lh_status_t status = generation_sampler_new(&how->sampling, vocabulary, &g->sampler);
    if (status == LH_OK) status = new_program(g, PREFILL, capacity, &g->prefill);
    if (status == LH_OK) status = new_program(g, 1, capacity, &g->decode);
    if (status == LH_OK) status = engine_build(how->session->engine);
    if (status == LH_OK) {
        g->logits = mem_array(PREFILL * p->vocab, sizeof(*g->logits));
        g->tokens = mem_array(PREFILL, sizeof(*g->tokens));
        g->positions = mem_array(PREFILL, sizeof(*g->positions));
        if (g->logits == NULL || g->tokens == NULL || g->positions == NULL) status = LH_NO_MEMORY;
    }
    if (status != LH_OK) {
        generation_free(g);
        return status;
    }
    *out = g;
    return LH_OK;
}

/* Programs go with the engine. */
void generation_free(generation_t *g)
{
    if (g == NULL) return;
    generation_sampler_free(g->sampler);
    mem_free(g->positions);
    mem_free(g->tokens);
    mem_free(g->logits);
    mem_free(g);
}

/* Runs rows [length, length + rows) with `valid` of them meant; the rest is padding, whose cache
 * rows are written again before anybody sees them. Leaves the logits of all rows. */
static lh_status_t generation_feed(generation_t *g, program_t *p, uint64_t rows, const int32_t *ids,
                                   uint64_t valid)
{
    lh_assert(valid > 0 && valid <= rows && rows <= PREFILL);
    for (uint64_t i = 0; i < rows; i++) {
        const uint64_t at = i < valid ? i : valid - 1;
        g->tokens[i] = ids[at];
        g->positions[i] = g->length + (int32_t)at;
    }
    const uint64_t bytes = rows * sizeof(int32_t);
    lh_status_t status = program_input(p, LH_INPUT_TOKENS, g->tokens, bytes);
    if (status == LH_OK) status = program_input(p, LH_INPUT_POSITIONS, g->positions, bytes);
    if (status == LH_OK) status = program_input(p, LH_INPUT_LENGTHS, &g->length, sizeof(g->length));
    if (status == LH_OK) status = program_run(p, 0);
    if (status == LH_OK)
        status = program_output(p, OUTPUT_LOGITS, g->logits, rows * g->vocab * sizeof(float));
    if (status == LH_OK) g->length += (int32_t)valid;
    return status;
}

/* last points at the logits behind the last token so far: of the prompt's last row, then of the
 * only row. */
lh_status_t generation_run(generation_t *g, const int32_t *prompt, uint64_t prompt_count,
                           int32_t end, void (*each)(void *context, int32_t id), void *context,
                           int32_t *out, uint64_t *out_count)
{
    if (prompt_count == 0 || prompt_count > g->how.prompt)
        return fail(LH_INVALID, "a prompt of %llu tokens; 1 to %llu were planned",
                    (unsigned long long)prompt_count, (unsigned long long)g->how.prompt);
    for (uint64_t i = 0; i < prompt_count; i++)
        if (prompt[i] < 0 || (uint64_t)prompt[i] >= g->vocab)
            return fail(LH_INVALID, "token %llu of the prompt is %d; the model has ids 0 to %llu",
                        (unsigned long long)i, prompt[i], (unsigned long long)g->vocab - 1);

    lh_status_t status = LH_OK;
    const float *last = g->logits;
    g->length = 0;
    for (uint64_t at = 0; at < prompt_count && status == LH_OK; at += PREFILL) {
        const uint64_t valid = prompt_count - at < PREFILL ? prompt_count - at : PREFILL;
        status = generation_feed(g, g->prefill, PREFILL, prompt + at, valid);
        last = g->logits + (valid - 1) * g->vocab;
    }
    uint64_t made = 0;
    while (status == LH_OK && made < g->how.tokens) {
        const int32_t id = (int32_t)generation_sampler_pick(g->sampler, last, made);
        out[made++] = id;
        if (each != NULL) each(context, id);
        if (id == end || made == g->how.tokens) break;
        status = generation_feed(g, g->decode, 1, &id, 1);
        last = g->logits;
    }
    if (status == LH_OK) *out_count = made;
    return status;
}

/* ---- greedy, temperature, top-k and top-p ---- */

typedef struct candidate {
    float logit;
    uint32_t id;
} candidate_t;

/* Buffers for one pick; weights holds exp((logit - largest) / temperature) in the order of
 * candidates. */
struct sampler {
    sampling_t how;
    uint64_t vocab;
    candidate_t *candidates; /* [vocab] */
    double *weights;         /* [vocab] */
};

enum { SAMPLING_STREAM = 0x73616d70 }; /* keeps these numbers apart from initial values' */

lh_status_t generation_sampler_new(const sampling_t *how, uint64_t vocab, sampler_t **out)
{
    lh_assert(vocab > 0 && vocab <= UINT32_MAX);
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
        generation_sampler_free(s);
        return LH_NO_MEMORY;
    }
    *out = s;
    return LH_OK;
}

void generation_sampler_free(sampler_t *s)
{
    if (s == NULL) return;
    mem_free(s->weights);
    mem_free(s->candidates);
    mem_free(s);
}

/* The first of equals, as by_logit orders them. */
static uint32_t sampling_likeliest(const float *logits, uint64_t vocab)
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

/* Walks down the sorted list until a random share of the kept weight is used up. Sums are not
 * normalized; both sides of each comparison are in the same unit. */
uint32_t generation_sampler_pick(sampler_t *s, const float *logits, uint64_t index)
{
    if (s->how.greedy) return sampling_likeliest(logits, s->vocab);

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
    /* The smallest head of the list that has top_p of the weight; the one that crosses the border
     * is in it. */
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
    lh_assert(count > 0 && count <= s->vocab);
    return s->candidates[count - 1].id;
}
