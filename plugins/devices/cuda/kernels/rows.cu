/* rows.cu - sums and means over rows, sums over columns, products of two rows, norms of rows (dora_scale), and
 * softmax. */
#include "kernel.cuh"

/* First step of a sum over rows: a block takes 32 octets of columns and a chunk of rows; its eight rows
 * of threads take every eighth row, and their sums are added in order. */
CUDA_KERNEL(cuda_sum_rows, CUDA_THREADS)
{
    __shared__ float sums[CUDA_ROW_LANES][CUDA_COLUMN_LANES * OCTET];
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * CUDA_COLUMN_LANES * OCTET;
    const uint64_t column = first + threadIdx.x * OCTET;
    const uint64_t begin = blockIdx.y * p.chunk_rows;
    const uint64_t end = p.x.rows - begin < p.chunk_rows ? p.x.rows : begin + p.chunk_rows;
    octet sum = {};

    if (column < p.x.width) {
        for (uint64_t row = begin + threadIdx.y; row < end; row += CUDA_ROW_LANES) {
            const octet x = octet_load(p.x, row, column, p.x.width);
            for (uint32_t j = 0; j < OCTET; j++)
                sum.v[j] += x.v[j];
        }
    }
    for (uint32_t j = 0; j < OCTET; j++)
        sums[threadIdx.y][threadIdx.x * OCTET + j] = sum.v[j];
    __syncthreads();
    const uint32_t c = threadIdx.y * CUDA_COLUMN_LANES + threadIdx.x; /* as many as columns */
    if (first + c >= p.x.width) return;
    float total = 0;
    for (uint32_t i = 0; i < CUDA_ROW_LANES; i++)
        total += sums[i][c];
    p.partial[blockIdx.y * p.x.width + first + c] = total;
}

/* Second step, also of the norms' gradients: eight threads to a column take every eighth part. */
CUDA_KERNEL(cuda_sum_partials, CUDA_THREADS)
{
    __shared__ float sums[CUDA_ROW_LANES][CUDA_COLUMN_LANES];
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * CUDA_COLUMN_LANES + threadIdx.x;
    float sum = 0;

    if (column < p.y.width) {
        for (uint64_t i = threadIdx.y; i < p.parts; i += CUDA_ROW_LANES)
            sum += p.partial[i * p.y.width + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= p.y.width) return;
    for (uint32_t i = 1; i < CUDA_ROW_LANES; i++)
        sum += sums[i][threadIdx.x];
    view_store(p.y, 0, column, sum / p.count);
}

CUDA_KERNEL(cuda_mean_rows_grad, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.gx, &row, &column)) return;
    octet g = octet_load(p.gy, 0, column, p.gx.width);
    for (uint32_t j = 0; j < OCTET; j++)
        g.v[j] /= static_cast<float>(p.gx.rows);
    octet_store(p.gx, row, column, p.gx.width, g);
}

/* One team: as wide as a router's experts, a few dozen elements. */
CUDA_KERNEL(cuda_dot, CUDA_TEAM_LIMIT)
{
    const uint64_t width = team_row() == 0 ? p.a.width : 0;
    float sum = 0;
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += blockDim.x * OCTET) {
        const octet a = octet_load(p.a, 0, c, width), b = octet_load(p.b, 0, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            sum += a.v[j] * b.v[j];
    }
    sum = team_sum(sum);
    if (width > 0 && threadIdx.x == 0) *p.y = sum;
}

CUDA_KERNEL(cuda_sum_columns, CUDA_TEAM_LIMIT)
{
    const uint64_t row = team_row(), width = row < p.x.rows ? p.x.width : 0;
    float sum = 0;
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += blockDim.x * OCTET) {
        const octet x = octet_load(p.x, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            sum += x.v[j];
    }
    sum = team_sum(sum);
    if (width > 0 && threadIdx.x == 0) view_store(p.y, row, 0, sum);
}

/* Both sums have one order, so that y is 1 to the bit where change and magnitude are 0. */
CUDA_KERNEL(cuda_dora_scale, CUDA_TEAM_LIMIT)
{
    const uint64_t row = team_row(), width = row < p.w.rows ? p.w.width : 0;
    float before = 0, after = 0;
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += blockDim.x * OCTET) {
        const octet w = octet_load(p.w, row, c, width), change = octet_load(p.change, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++) {
            const float changed = w.v[j] + change.v[j];
            before += w.v[j] * w.v[j];
            after += changed * changed;
        }
    }
    before = team_sum(before);
    after = team_sum(after);
    if (width == 0 || threadIdx.x != 0) return;
    const float norm = sqrtf(after);
    p.y[row] = norm > 0 ? (sqrtf(before) + view_load(p.magnitude, 0, row)) / norm : 0;
    if (p.inverse != nullptr) p.inverse[row] = norm > 0 ? 1 / norm : 0;
}

CUDA_KERNEL(cuda_softmax, CUDA_TEAM_LIMIT)
{
    const uint64_t row = team_row(), width = row < p.x.rows ? p.x.width : 0;
    const uint64_t step = static_cast<uint64_t>(blockDim.x) * OCTET;
    float largest = -INFINITY, sum = 0;

    for (uint64_t c = threadIdx.x * OCTET; c < width; c += step) {
        const octet x = octet_load(p.x, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            if (c + j < width) largest = fmaxf(largest, x.v[j]);
    }
    largest = team_max(largest);
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += step) {
        const octet x = octet_load(p.x, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            if (c + j < width) sum += expf(x.v[j] - largest);
    }
    sum = team_sum(sum);
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += step) {
        octet x = octet_load(p.x, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            x.v[j] = expf(x.v[j] - largest) / sum;
        octet_store(p.y, row, c, width, x);
    }
}

CUDA_KERNEL(cuda_softmax_grad, CUDA_TEAM_LIMIT)
{
    const uint64_t row = team_row(), width = row < p.y.rows ? p.y.width : 0;
    const uint64_t step = static_cast<uint64_t>(blockDim.x) * OCTET;
    float along = 0;

    for (uint64_t c = threadIdx.x * OCTET; c < width; c += step) {
        const octet g = octet_load(p.gy, row, c, width), y = octet_load(p.y, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            along += g.v[j] * y.v[j];
    }
    along = team_sum(along);
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += step) {
        octet g = octet_load(p.gy, row, c, width);
        const octet y = octet_load(p.y, row, c, width);
        for (uint32_t j = 0; j < OCTET; j++)
            g.v[j] = y.v[j] * (g.v[j] - along);
        octet_store(p.gx, row, c, width, g);
    }
}
