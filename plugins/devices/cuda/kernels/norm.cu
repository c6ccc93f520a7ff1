/* norm.cu - RMS and layer norm, with a residual added before, and their gradients.
 *
 * A team of threads takes a group: a row, or so many columns of it as the weight has (norms of heads).
 * Rows are read twice, the second time from the caches. The gradient of the weight is summed in three
 * fixed steps: a team's groups in their order, the teams of a block, and the blocks
 * (cuda_sum_partials); how groups fall to blocks depends on shapes alone. */
#include "kernel.cuh"

/* Row and first column of a group of d columns. */
CUDA_INLINE void group_at(const cuda_view_t &x, uint64_t group, uint64_t d, uint64_t *row,
                          uint64_t *column)
{
    const uint64_t each = x.width / d;
    *row = each == 1 ? group : group / each;
    *column = each == 1 ? 0 : (group - *row * each) * d;
}

CUDA_KERNEL(cuda_norm, CUDA_TEAM_LIMIT)
{
    const uint64_t group = team_row();
    const bool mine = group < p.groups;
    const bool adds = p.b.at != nullptr;
    const uint64_t step = static_cast<uint64_t>(blockDim.x) * OCTET, d = mine ? p.d : 0;
    uint64_t row, first;
    group_at(p.x, group, p.d, &row, &first);

    float total = 0; /* of the elements, or of their squares */
    for (uint64_t c = threadIdx.x * OCTET; c < d; c += step) {
        octet x = octet_load(p.x, row, first + c, first + d);
        if (adds) {
            const octet b = octet_load(p.b, row, first + c, first + d);
            for (uint32_t j = 0; j < OCTET; j++)
                x.v[j] = as_stored(x.v[j] + b.v[j], p.sum.dtype);
            octet_store(p.sum, row, first + c, first + d, x);
        }
        for (uint32_t j = 0; j < OCTET; j++)
            total += p.centred != 0 ? x.v[j] : x.v[j] * x.v[j];
    }
    total = team_sum(total);

    const cuda_view_t &from = adds ? p.sum : p.x; /* each thread reads what it wrote itself */
    float mean = 0;
    if (p.centred != 0) {
        mean = total / static_cast<float>(p.d);
        total = 0;
        for (uint64_t c = threadIdx.x * OCTET; c < d; c += step) {
            const octet x = octet_load(from, row, first + c, first + d);
            for (uint32_t j = 0; j < OCTET; j++)
                if (c + j < d) total += (x.v[j] - mean) * (x.v[j] - mean);
        }
        total = team_sum(total);
    }
    const float rstd = 1.0f / sqrtf(total / static_cast<float>(p.d) +
                                    static_cast<float>(p.epsilon));
    if (mine && threadIdx.x == 0 && p.mean != nullptr) p.mean[group] = mean;
    if (mine && threadIdx.x == 0 && p.rstd != nullptr) p.rstd[group] = rstd;

    for (uint64_t c = threadIdx.x * OCTET; c < d; c += step) {
        octet x = octet_load(from, row, first + c, first + d);
        const octet w = octet_load(p.w, 0, c, d);
        for (uint32_t j = 0; j < OCTET; j++)
            x.v[j] = (x.v[j] - mean) * rstd * (p.one_plus != 0 ? 1.0f + w.v[j] : w.v[j]);
        if (p.bias.at != nullptr) {
            const octet bias = octet_load(p.bias, 0, c, d);
            for (uint32_t j = 0; j < OCTET; j++)
                x.v[j] += bias.v[j];
        }
        octet_store(p.y, row, first + c, first + d, x);
    }
}

/* gx of one group, and what it adds to the sums of the weight's gradient, whose columns belong to the
 * threads of the team. */
CUDA_INLINE void grad_group(const cuda_norm_grad_t &p, uint64_t group, bool mine,
                            float *weight_sums, float *bias_sums)
{
    const uint64_t step = static_cast<uint64_t>(blockDim.x) * OCTET, d = mine ? p.d : 0;
    const float mean = mine && p.centred != 0 ? p.mean[group] : 0.0f;
    const float rstd = mine ? p.rstd[group] : 0.0f;
    uint64_t row, first;
    group_at(p.x, group, p.d, &row, &first);

    float along = 0, level = 0; /* sums of g n and of g */
    for (uint64_t c = threadIdx.x * OCTET; c < d; c += step) {
        const octet gy = octet_load(p.gy, row, first + c, first + d);
        const octet x = octet_load(p.x, row, first + c, first + d);
        const octet w = octet_load(p.w, 0, c, d);
        for (uint32_t j = 0; j < OCTET; j++) {
            if (c + j >= d) break;
            const float n = (x.v[j] - mean) * rstd;
            const float g = gy.v[j] * (p.one_plus != 0 ? 1.0f + w.v[j] : w.v[j]);
            along += g * n;
            level += g;
            weight_sums[c + j] += gy.v[j] * n;
            if (bias_sums != nullptr) bias_sums[c + j] += gy.v[j];
        }
    }
    along = team_sum(along) / static_cast<float>(p.d);
    level = p.centred != 0 ? team_sum(level) / static_cast<float>(p.d) : 0.0f;

    for (uint64_t c = threadIdx.x * OCTET; c < d; c += step) {
        octet gy = octet_load(p.gy, row, first + c, first + d);
        const octet x = octet_load(p.x, row, first + c, first + d);
        const octet w = octet_load(p.w, 0, c, d);
        for (uint32_t j = 0; j < OCTET; j++) {
            const float g = gy.v[j] * (p.one_plus != 0 ? 1.0f + w.v[j] : w.v[j]);
            gy.v[j] = rstd * (g - level - (x.v[j] - mean) * rstd * along);
        }
        if (p.residual.at != nullptr) {
            const octet more = octet_load(p.residual, row, first + c, first + d);
            for (uint32_t j = 0; j < OCTET; j++)
                gy.v[j] = as_stored(gy.v[j], p.gx.dtype) + more.v[j]; /* bits of the two ops */
        }
        octet_store(p.gx, row, first + c, first + d, gy);
    }
}

/* The block's groups fall to its teams in turn; every team goes round as often, with nothing to do
 * behind the last group. Dynamic shared memory: [teams, d] sums for the weight, then for the bias. */
CUDA_KERNEL(cuda_norm_grad, CUDA_TEAM_LIMIT)
{
    CUDA_DYNAMIC(float, shared);
    const uint64_t begin = blockIdx.x * p.block_groups;
    const uint64_t end = p.groups - begin < p.block_groups ? p.groups : begin + p.block_groups;
    const uint64_t all = blockDim.y * p.d;
    const bool has_bias = p.bias_sums != nullptr;
    float *weight_out = p.weight_sums + blockIdx.x * p.d;
    float *bias_out = has_bias ? p.bias_sums + blockIdx.x * p.d : nullptr;
    float *weight = p.in_shared != 0 ? shared + threadIdx.y * p.d : weight_out;
    float *bias = has_bias && p.in_shared != 0 ? shared + all + threadIdx.y * p.d : bias_out;

    for (uint64_t c = threadIdx.x * OCTET; c < p.d; c += static_cast<uint64_t>(blockDim.x) * OCTET) {
        for (uint64_t j = c; j < c + OCTET && j < p.d; j++) {
            weight[j] = 0;
            if (has_bias) bias[j] = 0;
        }
    }
    for (uint64_t group = begin; group < end; group += blockDim.y)
        grad_group(p, group + threadIdx.y, group + threadIdx.y < end, weight, bias);
    if (p.in_shared == 0) return;

    __syncthreads();
    const uint64_t threads = static_cast<uint64_t>(blockDim.x) * blockDim.y;
    for (uint64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < p.d; c += threads) {
        float sum = 0, level = 0;
        for (uint32_t team = 0; team < blockDim.y; team++) {
            sum += shared[team * p.d + c];
            if (has_bias) level += shared[all + team * p.d + c];
        }
        weight_out[c] = sum;
        if (has_bias) bias_out[c] = level;
    }
}
