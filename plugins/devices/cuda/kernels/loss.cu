/* loss.cu - cross-entropy in three steps, statistics of the logits, their gradient, the loss; and the
 * first two in one. */
#include "kernel.cuh"

/* The column that belongs to this label; false where another part of the vocabulary has it. */
CUDA_INLINE bool label_column(int32_t label, uint64_t first, uint64_t rows, uint64_t *column)
{
    *column = static_cast<uint64_t>(static_cast<int64_t>(label)) - first;
    return label >= 0 && static_cast<uint64_t>(label) >= first && *column < rows;
}

/* What a softmax needs of a row, in one pass by the team: each thread keeps the largest logit it met
 * and the sum of exponentials below it, which shrinks when a larger one comes (Milakov and Gimelshein,
 * 2018). width 0: the team has no row, and comes along to the barriers. */
CUDA_INLINE void row_stats(const cuda_view_t &logits, uint64_t row, uint64_t width, float *top_out,
                           float *sum_out)
{
    float largest = -INFINITY, sum = 0;

    for (uint64_t c = threadIdx.x * OCTET; c < width; c += blockDim.x * OCTET) {
        const octet x = octet_load(logits, row, c, width);
        float top = largest;
        for (uint32_t j = 0; j < OCTET; j++)
            if (c + j < width) top = fmaxf(top, x.v[j]);
        if (top == -INFINITY) continue; /* nothing counts yet */
        sum *= expf(largest - top);
        for (uint32_t j = 0; j < OCTET; j++)
            if (c + j < width) sum += expf(x.v[j] - top);
        largest = top;
    }
    *top_out = team_max(largest);
    *sum_out = team_sum(largest == -INFINITY ? 0.0f : sum * expf(largest - *top_out));
}

/* weight (softmax - one-hot) of a row, by the block. Where the gradient lies over the logits, what a
 * round of the loop writes trails what it has read; the label's logit comes from elsewhere, as it may
 * be gone. */
CUDA_INLINE void row_grad(const cuda_view_t &logits, const cuda_view_t &glogits, uint64_t row,
                          bool mine, uint64_t label, float label_logit, float top, float sum,
                          float weight)
{
    const uint64_t width = logits.width, step = static_cast<uint64_t>(blockDim.x) * OCTET;
    const float scale = weight / sum;

    for (uint64_t begin = 0; begin < width; begin += step) {
        const uint64_t c = begin + threadIdx.x * OCTET;
        octet x = {};
        if (c < width) x = octet_load(logits, row, c, width);
        __syncthreads();
        for (uint32_t j = 0; j < OCTET; j++) {
            const bool is_label = mine && c + j == label;
            const float logit = is_label ? label_logit : x.v[j];
            x.v[j] = expf(logit - top) * scale - (is_label ? weight : 0.0f);
            if (weight == 0.0f) x.v[j] = 0.0f; /* masked: whatever the logits are */
        }
        if (c < width) octet_store(glogits, row, c, width, x);
    }
}

CUDA_KERNEL(cuda_ce_stats, CUDA_TEAM_LIMIT)
{
    const uint64_t row = team_row(), width = row < p.logits.rows ? p.logits.width : 0;
    float top, sum;
    row_stats(p.logits, row, width, &top, &sum);
    if (width == 0 || threadIdx.x != 0) return;
    uint64_t column;
    const bool mine = label_column(p.labels[row], p.first, p.rows, &column);
    view_store(p.stats, row, 0, top);
    view_store(p.stats, row, 1, sum);
    view_store(p.stats, row, 2, mine ? view_load(p.logits, row, column) : 0.0f);
}

/* A block a row. In 16 bits over F32 logits row r lies where row r / 2 was, which the launches' order has
 * seen to (rows_loss.c). */
CUDA_KERNEL(cuda_ce_grad, CUDA_TEAM_LIMIT)
{
    const uint64_t row = p.row_begin + blockIdx.x;
    uint64_t label;
    const bool mine = label_column(p.labels[row], p.first, p.rows, &label);
    row_grad(p.logits, p.glogits, row, mine, label, view_load(p.stats, row, 2),
             view_load(p.stats, row, 0), view_load(p.stats, row, 1), p.weights[row]);
}

/* A block a row: statistics, kept for the loss, and the gradient while the row is in the cache (128k
 * logits are 256 or 512 KiB, and each SM works on one or two rows). A masked row's logits are not even
 * read. Over the logits only element on element: all threads have the label's logit before one writes. */
CUDA_KERNEL(cuda_cross_entropy, CUDA_TEAM_LIMIT)
{
    const uint64_t row = blockIdx.x;
    const float weight = p.weights[row];
    uint64_t label;
    const bool mine = label_column(p.labels[row], 0, p.logits.width, &label);
    const float label_logit = mine ? view_load(p.logits, row, label) : 0.0f;
    float top = 0, sum = 1;

    if (weight != 0.0f) row_stats(p.logits, row, p.logits.width, &top, &sum);
    row_grad(p.logits, p.glogits, row, mine, label, label_logit, top, sum, weight);
    if (threadIdx.x != 0) return;
    p.stats[3 * row] = top;
    p.stats[3 * row + 1] = sum;
    p.stats[3 * row + 2] = label_logit;
}

/* One block, in double: the loss of many tokens is a small difference of large sums. Each thread adds
 * every 512th token, then the threads' sums by halves. */
CUDA_KERNEL(cuda_ce_loss, CUDA_TEAM_LIMIT)
{
    __shared__ double sums[CUDA_TEAM_LIMIT];
    double sum = 0;
    for (uint64_t i = threadIdx.x; i < p.stats.rows; i += CUDA_TEAM_LIMIT) {
        const float weight = p.weights[i];
        if (weight == 0.0f) continue;
        const float token = logf(view_load(p.stats, i, 1)) + view_load(p.stats, i, 0) -
                            view_load(p.stats, i, 2);
        sum += static_cast<double>(weight) * static_cast<double>(token);
    }
    sums[threadIdx.x] = sum;
    for (uint32_t apart = CUDA_TEAM_LIMIT / 2; apart > 0; apart /= 2) {
        __syncthreads();
        if (threadIdx.x < apart) sums[threadIdx.x] += sums[threadIdx.x + apart];
    }
    if (threadIdx.x != 0) return;
    sum = sums[0];
    if (p.add != 0) sum += static_cast<double>(*p.loss);
    *p.loss = static_cast<float>(sum);
}
