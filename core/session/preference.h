/* session/preference.h - training on pairs of answers: how likely a chosen and a rejected answer are
 * by the model that is trained and by a frozen reference, the loss of that, and what it makes of the
 * weights of their tokens.
 *
 * Direct preference optimization (Rafailov et al., "Direct preference optimization: your language
 * model is secretly a reward model", 2023). Of a pair, with log-probabilities summed over an answer,
 *     margin = (log p(chosen) - log q(chosen)) - (log p(rejected) - log q(rejected))
 *     loss = -log sigmoid(beta margin)
 * where p is the policy, q the reference. Its gradient is that of cross-entropy in which each token
 * of the chosen answer weighs beta sigmoid(-beta margin), and each of the rejected one as much below
 * 0: so the step that trains is that of any other phase, with weights that are known once both models
 * have scored the pair. The price is a forward pass of each before it; in exchange no device needs a
 * kernel for it, and a micro-batch holds one model's activations at a time. */
#ifndef SESSION_PREFERENCE_H
#define SESSION_PREFERENCE_H

#include <engine/program.h>
#include <session/session.h>

/* Additive over pairs. */
typedef struct preference_sum {
    double pairs, loss, margin;
    double won; /* pairs of a margin above 0, as the chosen answer has gained on the other */
} preference_sum_t;

/* Two scoring programs and what they leave. One thread uses it. */
typedef struct preference preference_t;

/* Sizes of what is scored in a run: those fields of the shape alone are read. Before engine_build.
 * The reference is the session's, or where an adapter trains the model without it. */
lh_status_t preference_new(session_t *s, const program_how_t *shape,
                           preference_t **out) LH_MUST_CHECK;
void preference_free(preference_t *p); /* NULL does nothing; the programs go with the engine */

/* Scores a run's rows (data/batches.h, phase dpo) by both and waits for that; adds to *sum. weigh:
 * rows->weights become what each token's cross-entropy is multiplied with in the gradient of the
 * sum of the pairs' losses. Sums run in double, in the order of tokens. */
lh_status_t preference_score(preference_t *p, const batch_rows_t *rows, bool weigh,
                             preference_sum_t *sum) LH_MUST_CHECK;

/* Of the policy, then of the reference: what a step runs for each micro-batch besides. */
const program_t *preference_program(const preference_t *p, uint32_t which);

#endif
