/* update.cu - the gradients' norm, clipping, and the rules that change parameters. */
#include "kernel.cuh"

#include <longhaul/rule.h>

/* A block for 4,096 elements, so that any cut at those borders gives the same sums. */
CUDA_KERNEL(cuda_sum_squares, CUDA_THREADS)
{
    const uint64_t begin = static_cast<uint64_t>(blockIdx.x) * CUDA_SQUARES;
    const uint64_t end = p.x.width - begin < CUDA_SQUARES ? p.x.width : begin + CUDA_SQUARES;
    float sum = 0, broken = 0;

    for (uint64_t c = begin + threadIdx.x * OCTET; c < end; c += CUDA_THREADS * OCTET) {
        const octet x = octet_load(p.x, 0, c, end);
        for (uint32_t j = 0; j < OCTET; j++) {
            sum += x.v[j] * x.v[j];
            if ((float_bits(x.v[j]) & 0x7f800000u) == 0x7f800000u) broken += 1;
        }
    }
    sum = team_sum(sum);
    broken = team_sum(broken);
    if (threadIdx.x != 0) return;
    view_store(p.y, blockIdx.x, 0, sum);
    view_store(p.y, blockIdx.x, 1, broken);
}

/* One block. All fetch, one adds, in double and in the order of the blocks of elements: no tree whose
 * shape would depend on how many there are, as ranks may hold the list with different padding. */
CUDA_KERNEL(cuda_clip, CUDA_THREADS)
{
    __shared__ float words[CUDA_THREADS][2];
    __shared__ double results[2]; /* the norm, and the factor; below 0: do not apply */
    double sum = 0, broken = 0;

    for (uint64_t begin = 0; begin < p.squares.rows; begin += CUDA_THREADS) {
        const uint64_t i = begin + threadIdx.x;
        __syncthreads();
        words[threadIdx.x][0] = i < p.squares.rows ? view_load(p.squares, i, 0) : 0.0f;
        words[threadIdx.x][1] = i < p.squares.rows ? view_load(p.squares, i, 1) : 0.0f;
        __syncthreads();
        for (uint32_t j = 0; threadIdx.x == 0 && j < CUDA_THREADS; j++) {
            sum += static_cast<double>(words[j][0]);
            broken += static_cast<double>(words[j][1]);
        }
    }
    if (threadIdx.x == 0) {
        const double norm = sqrt(sum) * static_cast<double>(view_load(p.step, 0, LH_STEP_GRAD_SCALE));
        const double allowed = static_cast<double>(view_load(p.step, 0, LH_STEP_MAX_NORM));
        const bool apply = broken == 0 && norm <= 1.7976931348623157e308;
        const double share = allowed / (norm + 1e-6); /* as torch.nn.utils.clip_grad_norm_ */
        results[0] = norm;
        results[1] = !apply ? -1 : allowed > 0 && share < 1 ? share : 1;
    }
    __syncthreads();
    const bool apply = results[1] >= 0;
    const double factor = apply ? results[1] : 1;
    for (uint64_t i = threadIdx.x; i < p.step.rows * LH_STEP_WORDS; i += CUDA_THREADS) {
        const uint64_t row = i / LH_STEP_WORDS, word = i % LH_STEP_WORDS;
        float value = view_load(p.step, row, word);
        if (word == LH_STEP_GRAD_SCALE)
            value = static_cast<float>(static_cast<double>(value) * factor);
        if (word == LH_STEP_NORM) value = static_cast<float>(results[0]);
        if (word == LH_STEP_APPLY) value = apply ? 1.0f : 0.0f;
        view_store(p.out, row, word, value);
    }
}

/* What the step and the attributes make of it, once a block: pow is long. */
struct adamw_step {
    float scale, keep, move; /* of the gradient; 1 - rate decay; rate / (1 - beta1^N) */
    float root;              /* 1 / sqrt(1 - beta2^N) */
};

/* beta^number by squaring: whole numbers only, and no table that pow would need. */
CUDA_INLINE double power(double beta, float number)
{
    double result = 1;
    for (uint32_t n = static_cast<uint32_t>(number); n > 0; n /= 2) {
        if (n % 2 == 1) result *= beta;
        beta *= beta;
    }
    return result;
}

/* Loshchilov and Hutter, 2019, as torch.optim.AdamW has it: the value decays before the move. */
CUDA_KERNEL(cuda_adamw, CUDA_THREADS)
{
    __shared__ adamw_step s;
    if (p.step[LH_STEP_APPLY] == 0.0f) return;
    if (threadIdx.x == 0) {
        const double rate = static_cast<double>(p.step[LH_STEP_LEARNING_RATE]);
        const float number = p.step[LH_STEP_NUMBER];
        s.scale = p.step[LH_STEP_GRAD_SCALE];
        s.keep = static_cast<float>(1 - rate * p.decay);
        s.move = static_cast<float>(rate / (1 - power(p.beta1, number)));
        s.root = static_cast<float>(1 / sqrt(1 - power(p.beta2, number)));
    }
    __syncthreads();
    uint64_t row, column;
    if (!octet_mine(p.g, &row, &column)) return;
    const uint64_t n = p.g.width;
    const float beta1 = static_cast<float>(p.beta1), rest1 = static_cast<float>(1 - p.beta1);
    const float beta2 = static_cast<float>(p.beta2), rest2 = static_cast<float>(1 - p.beta2);
    const float epsilon = static_cast<float>(p.epsilon);
    const octet g = octet_load(p.g, 0, column, n);
    octet value = octet_load(p.master, 0, column, n);
    octet m1 = octet_load(p.m1, 0, column, n), m2 = octet_load(p.m2, 0, column, n);
    for (uint32_t j = 0; j < OCTET; j++) {
        const float x = g.v[j] * s.scale;
        m1.v[j] = m1.v[j] * beta1 + rest1 * x;
        m2.v[j] = m2.v[j] * beta2 + rest2 * x * x;
        value.v[j] = value.v[j] * s.keep - s.move * m1.v[j] / (sqrtf(m2.v[j]) * s.root + epsilon);
    }
    octet_store(p.master_out, 0, column, n, value);
    octet_store(p.m1_out, 0, column, n, m1);
    octet_store(p.m2_out, 0, column, n, m2);
    if (p.w.at != nullptr) octet_store(p.w, 0, column, n, value);
}

/* torch.optim.SGD's momentum without dampening, and AdamW's decay. */
CUDA_KERNEL(cuda_sgd, CUDA_THREADS)
{
    uint64_t row, column;
    if (p.step[LH_STEP_APPLY] == 0.0f || !octet_mine(p.g, &row, &column)) return;
    const uint64_t n = p.g.width;
    const float rate = p.step[LH_STEP_LEARNING_RATE], scale = p.step[LH_STEP_GRAD_SCALE];
    const float keep = static_cast<float>(1 - static_cast<double>(rate) * p.decay);
    const float momentum = static_cast<float>(p.momentum);
    octet move = octet_load(p.g, 0, column, n), value = octet_load(p.master, 0, column, n);
    for (uint32_t j = 0; j < OCTET; j++)
        move.v[j] *= scale;
    if (p.m1.at != nullptr) {
        octet m1 = octet_load(p.m1, 0, column, n);
        for (uint32_t j = 0; j < OCTET; j++) {
            m1.v[j] = m1.v[j] * momentum + move.v[j];
            move.v[j] = p.nesterov != 0 ? move.v[j] + momentum * m1.v[j] : m1.v[j];
        }
        octet_store(p.m1_out, 0, column, n, m1);
    }
    for (uint32_t j = 0; j < OCTET; j++)
        value.v[j] = value.v[j] * keep - rate * move.v[j];
    octet_store(p.master_out, 0, column, n, value);
    if (p.w.at != nullptr) octet_store(p.w, 0, column, n, value);
}
