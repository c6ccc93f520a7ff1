/* preference.c - pairs of answers scored by two models. */
#include <session/preference.h>

#include <math.h>

#include <base/memory.h>
#include <engine/model_program.h>
#include <program/schedule.h>

enum { POLICY, REFERENCE, MODELS };

struct preference {
    session_t *session;
    program_t *programs[MODELS];
    uint64_t tokens;      /* of a run */
    float *stats[MODELS]; /* [tokens, 3], OUTPUT_STATS */
};

static lh_status_t programs_make(preference_t *p, const program_how_t *shape)
{
    schedule_t *schedule = NULL;
    session_t *s = p->session;
    lh_status_t status = schedule_forward(1, &schedule);
    for (uint32_t i = 0; status == LH_OK && i < MODELS; i++) {
        const bool other = i == REFERENCE;
        const program_how_t how = {.use = USE_SCORE,
                                   .sequences = shape->sequences,
                                   .rows = shape->rows,
                                   .max_documents = shape->max_documents,
                                   .narrow_logits = shape->narrow_logits,
                                   .unadapted = other && s->reference == NULL,
                                   .schedule = schedule};
        weights_t *weights = other && s->reference != NULL ? s->reference : s->weights;
        status = program_new(s->engine, weights, &how, &p->programs[i]);
    }
    schedule_free(schedule);
    return status;
}

lh_status_t preference_new(session_t *s, const program_how_t *shape, preference_t **out)
{
    lh_assert(s->reference != NULL || s->job->adapter.name != NULL);
    preference_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    p->session = s;
    p->tokens = shape->sequences * shape->rows;
    for (uint32_t i = 0; i < MODELS; i++)
        p->stats[i] = mem_array(3 * p->tokens, sizeof(float));
    const bool room = p->stats[POLICY] != NULL && p->stats[REFERENCE] != NULL;
    const lh_status_t status = room ? programs_make(p, shape) : LH_NO_MEMORY;
    if (status != LH_OK) {
        preference_free(p);
        return status;
    }
    *out = p;
    return LH_OK;
}

void preference_free(preference_t *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; i < MODELS; i++)
        mem_free(p->stats[i]);
    mem_free(p);
}

const program_t *preference_program(const preference_t *p, uint32_t which)
{
    lh_assert(which < MODELS);
    return p->programs[which];
}

/* The reference first: its run is then over when the policy's is, which waits for the update before
 * it. */
static lh_status_t pairs_run(preference_t *p, const batch_rows_t *rows)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = MODELS; status == LH_OK && i-- > 0;) {
        status = session_rows_give(rows, 1, p->tokens, p->programs[i]);
        if (status == LH_OK) status = program_run(p->programs[i], 0);
    }
    for (uint32_t i = MODELS; status == LH_OK && i-- > 0;)
        status = program_output(p->programs[i], OUTPUT_STATS, p->stats[i],
                                3 * p->tokens * sizeof(float));
    return status;
}

/* A token's log-probability: the label's logit less the logarithm of the sum of exponentials. */
static double token_logp(const float *stats, uint64_t token)
{
    const float *s = stats + 3 * token;
    return (double)s[2] - (double)s[0] - log((double)s[1]);
}

/* What the policy has gained over the reference on the answer in rows [begin, end), a document. Its
 * sign: 1 chosen, -1 rejected, 0 no answer at all, as in padding. */
static double answer_gain(const preference_t *p, const batch_rows_t *rows, uint64_t begin,
                          uint64_t end, int *sign)
{
    double gain = 0;
    *sign = 0;
    for (uint64_t i = begin; i < end; i++) {
        if (rows->weights[i] == 0) continue;
        *sign = rows->weights[i] > 0 ? 1 : -1;
        gain += token_logp(p->stats[POLICY], i) - token_logp(p->stats[REFERENCE], i);
    }
    return gain;
}

/* -log sigmoid(x), without an overflow. */
static double loss_of(double x)
{
    return x > 0 ? log1p(exp(-x)) : -x + log1p(exp(x));
}

/* A pair is two documents in turn, rows [begin, middle) and [middle, end). */
static void pair_add(const preference_t *p, const batch_rows_t *rows, const uint64_t at[3],
                     double margin, bool weigh, preference_sum_t *sum)
{
    const double beta = p->session->job->dpo.beta;
    const double weight = beta / (1 + exp(beta * margin));
    sum->pairs++;
    sum->loss += loss_of(beta * margin);
    sum->margin += margin;
    sum->won += margin > 0 ? 1 : 0;
    for (uint64_t i = at[0]; weigh && i < at[2]; i++)
        rows->weights[i] *= (float)weight;
}

lh_status_t preference_score(preference_t *p, const batch_rows_t *rows, bool weigh,
                             preference_sum_t *sum)
{
    uint64_t at[3] = {0};
    double chosen = 0;
    const lh_status_t status = pairs_run(p, rows);
    if (status != LH_OK) return status;
    for (uint64_t d = 0; d < rows->max_documents; d++) {
        const uint64_t begin = (uint64_t)rows->starts[d], end = (uint64_t)rows->starts[d + 1];
        int sign;
        lh_assert(begin <= end && end <= p->tokens);
        const double gain = answer_gain(p, rows, begin, end, &sign);
        if (sign > 0) {
            at[0] = begin;
            at[1] = end;
            chosen = gain;
        } else if (sign < 0) {
            lh_assert(at[1] == begin); /* behind its chosen one */
            at[2] = end;
            pair_add(p, rows, at, chosen - gain, weigh, sum);
        }
    }
    return LH_OK;
}
