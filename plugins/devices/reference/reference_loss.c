/* reference_loss.c - cross entropy in three steps, so that a vocabulary may be cut over parts and
 * the logits walked in chunks. */
#include <math.h>

#include "reference.h"

/* Column of the logits that belongs to this label, or their width if another part has it. */
static uint64_t label_column(const lh_rows_t *how, const tensor_t *logits, int64_t label)
{
    const uint64_t rows = how->rows != 0 && how->rows < logits->width ? how->rows : logits->width;

    if (label < 0 || (uint64_t)label < how->first || (uint64_t)label - how->first >= rows) {
        return logits->width;
    }
    return (uint64_t)label - how->first;
}

/* logits labels -> stats; of each row the maximum, the sum of exp(logit - maximum), the label's
 * logit (0 where the label is another part's) */
void op_ce_stats(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    const tensor_t logits = at[in_logits], labels = at[in_labels], stats = at[out_stats];

    for (uint64_t i = 0; i < logits.rows; i++) {
        const uint64_t column = label_column(&how->rows, &logits, get_integer(&labels, 0, i));
        double largest = -INFINITY, sum = 0;
        for (uint64_t j = 0; j < logits.width; j++)
            largest = fmax(largest, get(&logits, i, j));
        for (uint64_t j = 0; j < logits.width; j++)
            sum += exp(get(&logits, i, j) - largest);
        put(&stats, i, 0, largest);
        put(&stats, i, 1, sum);
        put(&stats, i, 2, column < logits.width ? get(&logits, i, column) : 0);
    }
}

/* logits labels stats weights -> glogits; weight (softmax - one-hot). May lie over the logits, in a
 * narrower dtype too: an element is read before the one at its index is written, in ascending
 * order. */
void op_ce_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const tensor_t logits = at[in_logits], labels = at[in_labels], stats = at[in_stats],
                   weights = at[in_weights], glogits = at[out_glogits];

    for (uint64_t i = 0; i < logits.rows; i++) {
        const uint64_t column = label_column(&how->rows, &logits, get_integer(&labels, 0, i));
        const double largest = get(&stats, i, 0), sum = get(&stats, i, 1);
        for (uint64_t j = 0; j < logits.width; j++) {
            const double p = exp(get(&logits, i, j) - largest) / sum;
            put(&glogits, i, j, get(&weights, 0, i) * (p - (j == column ? 1 : 0)));
        }
    }
}

/* stats weights -> loss+ */
void op_ce_loss(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    (void)how;
    const tensor_t stats = at[in_stats], weights = at[in_weights], loss = at[out_loss];
    double sum = 0;

    for (uint64_t i = 0; i < stats.rows; i++) {
        const double token = log(get(&stats, i, 1)) + get(&stats, i, 0) - get(&stats, i, 2);
        sum += get(&weights, 0, i) * token;
    }
    put(&loss, 0, 0, sum);
}
