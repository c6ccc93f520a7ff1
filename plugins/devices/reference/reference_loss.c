/* reference_loss.c - cross entropy in three steps, so that a vocabulary may be cut over parts and
 * the logits walked in chunks; and the three in one. */
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

/* As a number of the dtype that statistics of these logits are kept in. */
static double as_statistic(const tensor_t *logits, double value)
{
    return logits->arg->dtype == LH_DTYPE_F64 ? value : (double)(float)value;
}

/* Of a row the maximum, the sum of exp(logit - maximum), and the label's logit (0 where the label is
 * another part's). */
static void row_stats(const tensor_t *logits, uint64_t row, uint64_t column, double out[3])
{
    double largest = -INFINITY, sum = 0;
    for (uint64_t j = 0; j < logits->width; j++)
        largest = fmax(largest, get(logits, row, j));
    for (uint64_t j = 0; j < logits->width; j++)
        sum += exp(get(logits, row, j) - largest);
    out[0] = as_statistic(logits, largest);
    out[1] = as_statistic(logits, sum);
    out[2] = column < logits->width ? as_statistic(logits, get(logits, row, column)) : 0;
}

/* weight (softmax - one-hot). May lie over the logits, in a narrower dtype too: an element is read
 * before the one at its index is written, in ascending order. */
static void row_grad(const tensor_t *logits, uint64_t row, uint64_t column, const double stats[3],
                     double weight, const tensor_t *glogits)
{
    for (uint64_t j = 0; j < logits->width; j++) {
        const double p = exp(get(logits, row, j) - stats[0]) / stats[1];
        put(glogits, row, j, weight * (p - (j == column ? 1 : 0)));
    }
}

static double token_loss(const double stats[3])
{
    return log(stats[1]) + stats[0] - stats[2];
}

/* logits labels -> stats */
void op_ce_stats(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    const tensor_t logits = at[in_logits], labels = at[in_labels], stats = at[out_stats];

    for (uint64_t i = 0; i < logits.rows; i++) {
        double row[3];
        row_stats(&logits, i, label_column(&how->rows, &logits, get_integer(&labels, 0, i)), row);
        for (uint64_t j = 0; j < 3; j++)
            put(&stats, i, j, row[j]);
    }
}

/* logits labels stats weights -> glogits */
void op_ce_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const tensor_t logits = at[in_logits], labels = at[in_labels], stats = at[in_stats],
                   weights = at[in_weights], glogits = at[out_glogits];

    for (uint64_t i = 0; i < logits.rows; i++) {
        const double row[] = {get(&stats, i, 0), get(&stats, i, 1), get(&stats, i, 2)};
        row_grad(&logits, i, label_column(&how->rows, &logits, get_integer(&labels, 0, i)), row,
                 get(&weights, 0, i), &glogits);
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
        const double row[] = {get(&stats, i, 0), get(&stats, i, 1), get(&stats, i, 2)};
        sum += get(&weights, 0, i) * token_loss(row);
    }
    put(&loss, 0, 0, sum);
}

/* logits labels weights -> loss+ glogits; row by row what the three above do */
void op_cross_entropy(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    const tensor_t logits = at[in_logits], labels = at[in_labels], weights = at[in_weights],
                   loss = at[out_loss], glogits = at[out_glogits];
    static const lh_rows_t all = {.struct_size = sizeof(all)};
    double sum = 0;

    (void)how;
    for (uint64_t i = 0; i < logits.rows; i++) {
        const uint64_t column = label_column(&all, &logits, get_integer(&labels, 0, i));
        const double weight = get(&weights, 0, i);
        double row[3];
        row_stats(&logits, i, column, row);
        sum += weight * token_loss(row);
        row_grad(&logits, i, column, row, weight, &glogits);
    }
    put(&loss, 0, 0, sum);
}
