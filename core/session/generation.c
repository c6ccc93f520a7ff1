/* generation.c - prompts go through in pieces of PREFILL rows, then one row a token.
 *
 * All texts of a batch go through together. The last piece of a prompt is padded to PREFILL rows with
 * its own last token; a text that has no more to say, or that another one is longer than, is fed
 * padding alone. The cache rows of padding are garbage, but a text's length tells which rows count,
 * and the tokens that follow are written over them. */
#include <session/generation.h>

#include <math.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/philox.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>

enum { PREFILL = 32 };

/* What a text is fed next: ids [valid]; 0: padding. */
typedef struct feed {
    const int32_t *ids;
    uint64_t valid;
} feed_t;

struct generation {
    generation_how_t how;
    program_t *prefill, *decode;
    sampler_t *sampler;
    uint64_t vocab;     /* columns of the logits              */
    float *logits;      /* [sequences, PREFILL, vocab]        */
    int32_t *tokens;    /* [sequences, PREFILL]               */
    int32_t *positions; /* likewise                           */
    int32_t *lengths;   /* [sequences]: rows in each's cache  */
    feed_t *feeds;      /* [sequences]                        */
    const float **last; /* [sequences]: the logits behind the last token so far */
    bool *done;         /* [sequences]                        */
};

/* capacity: rows of a cache. Pieces of a text begin at multiples of PREFILL, so that a padded one
 * never runs over the end of a multiple; padding of a text beside others begins anywhere. */
static lh_status_t new_program(generation_t *g, uint64_t rows, uint64_t capacity, program_t **out)
{
    const program_how_t how = {
        .use = USE_DECODE, .sequences = g->how.sequences, .rows = rows, .capacity = capacity};
    return program_new(g->how.session->engine, g->how.session->weights, &how, out);
}

static lh_status_t buffers_new(generation_t *g)
{
    const uint64_t n = g->how.sequences;
    g->logits = mem_array(n * PREFILL * g->vocab, sizeof(*g->logits));
    g->tokens = mem_array(n * PREFILL, sizeof(*g->tokens));
    g->positions = mem_array(n * PREFILL, sizeof(*g->positions));
    g->lengths = mem_array(n, sizeof(*g->lengths));
    g->feeds = mem_array(n, sizeof(*g->feeds));
    g->last = mem_array(n, sizeof(*g->last));
    g->done = mem_array(n, sizeof(*g->done));
    return g->logits == NULL || g->tokens == NULL || g->positions == NULL || g->lengths == NULL ||
                   g->feeds == NULL || g->last == NULL || g->done == NULL
               ? LH_NO_MEMORY
               : LH_OK;
}

lh_status_t generation_new(const generation_how_t *how, generation_t **out)
{
    const parameters_t *p = weights_parameters(how->session->weights);
    const uint64_t vocabulary = how->vocabulary == 0 || how->vocabulary > p->vocab
                                    ? p->vocab
                                    : how->vocabulary;
    lh_assert(how->sequences > 0);
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
    uint64_t capacity = (how->prompt + how->tokens + PREFILL - 1) / PREFILL * PREFILL;
    if (how->sequences > 1) capacity += PREFILL;
    lh_status_t status = generation_sampler_new(&how->sampling, vocabulary, &g->sampler);
    if (status == LH_OK) status = new_program(g, PREFILL, capacity, &g->prefill);
    if (status == LH_OK) status = new_program(g, 1, capacity, &g->decode);
    if (status == LH_OK) status = engine_build(how->session->engine);
    if (status == LH_OK) status = buffers_new(g);
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
    mem_free(g->done);
    mem_free(g->last);
    mem_free(g->feeds);
    mem_free(g->lengths);
    mem_free(g->positions);
    mem_free(g->tokens);
    mem_free(g->logits);
    mem_free(g);
}

/* The rows of one text. Padding repeats what is meant, at its position, as a position must be one
 * that the model has. */
static void feed_place(generation_t *g, uint64_t text, uint64_t rows)
{
    const feed_t *f = &g->feeds[text];
    const int32_t length = g->lengths[text];
    lh_assert(f->valid <= rows);
    for (uint64_t i = 0; i < rows; i++) {
        const uint64_t at = i < f->valid ? i : f->valid - 1, row = text * rows + i;
        g->tokens[row] = f->valid == 0 ? 0 : f->ids[at];
        if (f->valid > 0)
            g->positions[row] = length + (int32_t)at;
        else
            g->positions[row] = length > 0 ? length - 1 : 0;
    }
}

/* Of what is no number no token is the likeliest: id 0 would come of it, again and again. */
static lh_status_t refuse_no_numbers(const float *logits, uint64_t vocab)
{
    uint64_t i = 0;
    while (i < vocab && logits[i] < INFINITY)
        i++;
    if (i == vocab) return LH_OK;
    return fail(LH_INVALID, "the model's logit of token %llu is %g: its weights are not finite",
                (unsigned long long)i, (double)logits[i]);
}

/* Runs `rows` rows of each text, of which its feed says how many are meant; the cache rows of the
 * rest are written again before anybody sees them. Leaves the logits of all rows, and in last those
 * of each text that was fed. */
static lh_status_t generation_feed(generation_t *g, program_t *p, uint64_t rows)
{
    const uint64_t n = g->how.sequences, bytes = n * rows * sizeof(int32_t);
    lh_assert(rows <= PREFILL);
    for (uint64_t t = 0; t < n; t++)
        feed_place(g, t, rows);
    lh_status_t status = program_input(p, LH_INPUT_TOKENS, g->tokens, bytes);
    if (status == LH_OK) status = program_input(p, LH_INPUT_POSITIONS, g->positions, bytes);
    if (status == LH_OK)
        status = program_input(p, LH_INPUT_LENGTHS, g->lengths, n * sizeof(*g->lengths));
    if (status == LH_OK) status = program_run(p, 0);
    if (status == LH_OK)
        status = program_output(p, OUTPUT_LOGITS, g->logits, n * rows * g->vocab * sizeof(float));
    for (uint64_t t = 0; status == LH_OK && t < n; t++) {
        const uint64_t valid = g->feeds[t].valid;
        if (valid == 0) continue;
        g->lengths[t] += (int32_t)valid;
        g->last[t] = g->logits + (t * rows + valid - 1) * g->vocab;
        status = refuse_no_numbers(g->last[t], g->vocab);
    }
    return status;
}

lh_status_t generation_check(const generation_t *g, const int32_t *prompt, uint64_t count)
{
    if (count == 0 || count > g->how.prompt)
        return fail(LH_INVALID, "a prompt of %llu tokens; 1 to %llu were planned",
                    (unsigned long long)count, (unsigned long long)g->how.prompt);
    for (uint64_t i = 0; i < count; i++)
        if (prompt[i] < 0 || (uint64_t)prompt[i] >= g->vocab)
            return fail(LH_INVALID, "token %llu of the prompt is %d; the model has ids 0 to %llu",
                        (unsigned long long)i, prompt[i], (unsigned long long)g->vocab - 1);
    return LH_OK;
}

/* Prompts, piece by piece, until the longest is through. What a shorter one's last piece has left in
 * last would be written over, so its first id is picked at once. */
static lh_status_t prompts_feed(generation_t *g, const generation_text_t *texts, uint64_t count,
                                int32_t *first)
{
    uint64_t longest = 0;
    lh_status_t status = LH_OK;
    for (uint64_t t = 0; t < count; t++)
        if (texts[t].prompt_count > longest) longest = texts[t].prompt_count;
    for (uint64_t at = 0; at < longest && status == LH_OK; at += PREFILL) {
        for (uint64_t t = 0; t < g->how.sequences; t++) {
            const uint64_t left = t >= count || texts[t].prompt_count <= at
                                      ? 0
                                      : texts[t].prompt_count - at;
            g->feeds[t] = (feed_t){left > 0 ? texts[t].prompt + at : NULL,
                                   left < PREFILL ? left : PREFILL};
        }
        status = generation_feed(g, g->prefill, PREFILL);
        for (uint64_t t = 0; t < count && status == LH_OK; t++)
            if (g->feeds[t].valid > 0 && texts[t].prompt_count <= at + PREFILL)
                first[t] = (int32_t)generation_sampler_pick(g->sampler, g->last[t],
                                                            texts[t].number << 32);
    }
    return status;
}

/* An id that was picked is written and shown; a text that ends with it is fed no more. */
static void text_take(generation_t *g, generation_text_t *texts, uint64_t t, int32_t id,
                      void (*each)(void *context, uint64_t text, int32_t id), void *context)
{
    generation_text_t *text = &texts[t];
    text->out[text->made++] = id;
    if (each != NULL) each(context, t, id);
    g->done[t] = id == g->how.ends[0] || id == g->how.ends[1] || text->made == g->how.tokens;
}

lh_status_t generation_run(generation_t *g, generation_text_t *texts, uint64_t count,
                           void (*each)(void *context, uint64_t text, int32_t id), void *context)
{
    lh_status_t status = LH_OK;
    lh_assert(count > 0 && count <= g->how.sequences);
    for (uint64_t t = 0; t < count && status == LH_OK; t++)
        status = generation_check(g, texts[t].prompt, texts[t].prompt_count);
    int32_t *ids = status == LH_OK ? mem_array(count, sizeof(*ids)) : NULL;
    if (ids == NULL) return status == LH_OK ? LH_NO_MEMORY : status;
    memset(g->lengths, 0, g->how.sequences * sizeof(*g->lengths));
    for (uint64_t t = 0; t < g->how.sequences; t++)
        g->done[t] = t >= count || g->how.tokens == 0;
    for (uint64_t t = 0; t < count; t++)
        texts[t].made = 0;
    status = prompts_feed(g, texts, count, ids);
    for (uint64_t t = 0; t < count && status == LH_OK; t++)
        if (!g->done[t]) text_take(g, texts, t, ids[t], each, context);
    while (status == LH_OK) {
        uint64_t going = 0;
        for (uint64_t t = 0; t < g->how.sequences; t++) {
            g->feeds[t] = g->done[t] ? (feed_t){NULL, 0} : (feed_t){&ids[t], 1};
            going += !g->done[t];
        }
        if (going == 0) break;
        status = generation_feed(g, g->decode, 1);
        for (uint64_t t = 0; t < count && status == LH_OK; t++) {
            if (g->done[t]) continue;
            ids[t] = (int32_t)generation_sampler_pick(g->sampler, g->last[t],
                                                      texts[t].number << 32 | texts[t].made);
            text_take(g, texts, t, ids[t], each, context);
        }
    }
    mem_free(ids);
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
