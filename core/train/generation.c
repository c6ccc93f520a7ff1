/* generation.c - a prompt goes through in pieces of PREFILL rows, then one row a token. */
#include <train/generation.h>

#include <base/memory.h>

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
    lh_status_t status = sampler_new(&how->sampling, vocabulary, &g->sampler);
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

void generation_free(generation_t *g)
{
    if (g == NULL) return;
    sampler_free(g->sampler);
    mem_free(g->positions);
    mem_free(g->tokens);
    mem_free(g->logits);
    mem_free(g);
}

/* Runs rows [length, length + rows) with `valid` of them meant; the rest is padding, whose cache
 * rows are written again before anybody sees them. Leaves the logits of all rows. */
static lh_status_t feed(generation_t *g, program_t *p, uint64_t rows, const int32_t *ids,
                        uint64_t valid)
{
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
        status = feed(g, g->prefill, PREFILL, prompt + at, valid);
        last = g->logits + (valid - 1) * g->vocab;
    }
    uint64_t made = 0;
    while (status == LH_OK && made < g->how.tokens) {
        const int32_t id = (int32_t)sampler_pick(g->sampler, last, made);
        out[made++] = id;
        if (each != NULL) each(context, id);
        if (id == end || made == g->how.tokens) break;
        status = feed(g, g->decode, 1, &id, 1);
        last = g->logits;
    }
    if (status == LH_OK) *out_count = made;
    return status;
}
