/* model_flow.c - writes the flows of training, scoring and generation. */
#include <graph/model_flow.h>

#include <base/memory.h>
#include <graph/op_table.h>
#include <graph/visit.h>
#include <tensor/dtype.h>

typedef struct model_flow {
    program_t *p;
    bool train;
    part_t embed;
    part_t *blocks;        /* [blocks]; equal ones share a recording                   */
    visit_t *visits;       /* [1 + blocks][lanes]: embed, blocks                        */
    head_parts_t heads[2]; /* for a whole chunk; for the rows that remain, if any       */
    uint64_t chunk;
} model_flow_t;

enum { CHUNK_BYTES = 16 << 20, CHUNK_MULTIPLE = 64, CHUNK_ROWS = 1024 };

/* Rows of logits at a time: as many as fit a budget, in chunks of nearly equal size. */
static uint64_t chunk_choose(const program_t *p)
{
    if (p->how.head_chunk != 0)
        return p->how.head_chunk < p->tokens ? p->how.head_chunk : p->tokens;
    const uint64_t row_bytes = p->weights->parameters->vocab * sizeof(float);
    uint64_t rows = CHUNK_BYTES / row_bytes / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
    if (rows < CHUNK_ROWS) rows = CHUNK_ROWS; /* fewer would make slow matrix products */
    if (rows >= p->tokens) return p->tokens;
    const uint64_t chunks = (p->tokens + rows - 1) / rows, even = (p->tokens + chunks - 1) / chunks;
    return (even + CHUNK_MULTIPLE - 1) / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
}

static lh_status_t blocks_record(model_flow_t *m)
{
    program_t *p = m->p;
    for (uint32_t b = 0; b < p->weights->parameters->blocks; b++) {
        lh_status_t status = part_record(p, LH_PART_BLOCK, b, p->tokens, &m->blocks[b]);
        if (status != LH_OK) return status;

        bool known = false;
        for (uint32_t other = 0; other < b && !known; other++) {
            /* Only those that stand for themselves; a differentiated recording has more nodes. */
            if (m->blocks[other].block != other || !part_equal(p, &m->blocks[other], &m->blocks[b]))
                continue;
            m->blocks[b] = m->blocks[other];
            known = true;
        }
    }
    for (uint32_t b = 0; m->train && b < p->weights->parameters->blocks; b++) {
        if (m->blocks[b].block == b) {
            const lh_status_t status = part_differentiate(p, &m->blocks[b], p->weights->compute);
            if (status != LH_OK) return status;
        } else {
            m->blocks[b] = m->blocks[m->blocks[b].block];
        }
    }
    p->block = m->blocks[0].r;
    return LH_OK;
}

static lh_status_t parts_record(model_flow_t *m)
{
    program_t *p = m->p;
    lh_status_t status = part_record(p, LH_PART_EMBED, 0, p->tokens, &m->embed);
    if (status == LH_OK && m->train) status = part_differentiate(p, &m->embed, p->weights->compute);
    if (status == LH_OK) status = blocks_record(m);
    if (status == LH_OK) status = head_record(p, m->chunk, m->train, &m->heads[0]);
    if (status == LH_OK && p->tokens % m->chunk != 0)
        status = head_record(p, p->tokens % m->chunk, m->train, &m->heads[1]);
    return status;
}

/* Of a lane on its way through a block; 0: the embedding. */
static visit_t *visit_of(model_flow_t *m, uint32_t block, uint32_t lane)
{
    return &m->visits[(size_t)block * m->p->lanes + lane];
}

/* Every lane through a block before any goes to the next. hidden: [lanes] in and out. */
static void forward_blocks(model_flow_t *m, uint32_t *hidden)
{
    program_t *p = m->p;
    for (uint32_t b = 0; b <= p->weights->parameters->blocks; b++) {
        for (uint32_t lane = 0; lane < p->lanes && p->flow->status == LH_OK; lane++) {
            visit_t *v = visit_of(m, b, lane);
            visit_begin(v, p, b == 0 ? &m->embed : &m->blocks[b - 1], b == 0 ? 0 : b - 1, lane, 0);
            hidden[lane] = visit_forward(v, hidden[lane]);
        }
    }
}

/* Values of the whole program that chunks of the head read and write. */
typedef struct head_values {
    uint32_t x, x_gradient; /* input of the last matmul [tokens, width], and its gradient */
    uint32_t loss, stats, logits;
} head_values_t;

/* Outputs land in the program's where it has them. */
static void chunk_outputs(const program_t *p, const head_values_t *all, visit_t *logits_maker,
                          visit_t *loss, uint64_t begin, uint64_t rows)
{
    if (all->logits != 0)
        logits_maker->map[logits_maker->part->output] = flow_rows(p->flow, all->logits, begin,
                                                                  rows);
    if (loss == NULL || loss->map == NULL) return;
    if (all->stats != 0) loss->map[loss->part->stats] = flow_rows(p->flow, all->stats, begin, rows);
    loss->map[loss->part->loss] = all->loss;
}

/* The gradient of the logits, in F32 behind ops by element, as the matmuls take it. */
static uint32_t narrowed(program_t *p, uint32_t gradient)
{
    flow_t *f = p->flow;
    if (f->status != LH_OK || f->values[gradient].arg.dtype == p->weights->compute) return gradient;
    lh_arg_t arg = f->values[gradient].arg;
    arg.dtype = p->weights->compute;
    const uint32_t to = flow_activation(f, &arg);
    const uint32_t slots[] = {gradient, to};
    flow_kernel(f, op_table_find(p->engine->how.ops, "copy"), NULL, slots);
    return to;
}

static void head_chunk(model_flow_t *m, const head_values_t *all, uint32_t lane, uint64_t begin,
                       uint64_t rows)
{
    program_t *p = m->p;
    const head_parts_t *head = &m->heads[rows == m->chunk ? 0 : 1];
    const bool capped = head->cap.r != NULL, scored = p->how.use != USE_DECODE;
    visit_t matmul, cap = {0}, loss = {0};

    visit_begin(&matmul, p, &head->matmul, 0, lane, begin);
    if (capped) visit_begin(&cap, p, &head->cap, 0, lane, begin);
    if (scored) visit_begin(&loss, p, &head->loss, 0, lane, begin);
    if (p->flow->status != LH_OK) return;
    chunk_outputs(p, all, capped ? &cap : &matmul, scored ? &loss : NULL, begin, rows);

    uint32_t logits = visit_forward(&matmul, flow_rows(p->flow, all->x, begin, rows));
    if (capped) logits = visit_forward(&cap, logits);
    if (!scored) return;
    uint32_t gradient = visit_forward(&loss, logits);
    if (!m->train) return;
    if (capped) gradient = narrowed(p, visit_backward(&cap, gradient, 0));
    (void)visit_backward(&matmul, gradient, flow_rows(p->flow, all->x_gradient, begin, rows));
}

static head_values_t head_outputs(model_flow_t *m, uint32_t x)
{
    program_t *p = m->p;
    const weights_t *w = p->weights;
    const lh_dtype_t wide = w->compute == LH_DTYPE_F64 ? LH_DTYPE_F64 : LH_DTYPE_F32;
    const uint64_t logits[] = {p->tokens, w->parameters->vocab}, stats[] = {p->tokens, 3},
                   one[] = {1};
    const lh_arg_t logits_arg = flow_arg(wide, 2, logits), stats_arg = flow_arg(wide, 2, stats),
                   loss_arg = flow_arg(wide, 1, one);
    head_values_t all = {.x = x};
    if (p->how.use == USE_DECODE || p->how.wants_logits)
        all.logits = program_output_value(p, OUTPUT_LOGITS, &logits_arg, false);
    if (p->how.use == USE_SCORE)
        all.stats = program_output_value(p, OUTPUT_STATS, &stats_arg, false);
    if (p->how.use != USE_DECODE) all.loss = program_output_value(p, OUTPUT_LOSS, &loss_arg, true);
    if (m->train && p->flow->status == LH_OK)
        all.x_gradient = flow_activation(p->flow, &p->flow->values[x].arg);
    return all;
}

/* Head and loss, chunk by chunk; returns the gradient of the blocks' output. */
static uint32_t walk_head(model_flow_t *m, uint32_t hidden, uint32_t lane)
{
    program_t *p = m->p;
    const part_t *front = &m->heads[0].front;
    visit_t before;
    uint32_t x = hidden;
    if (front->r != NULL) {
        visit_begin(&before, p, front, 0, lane, 0);
        x = visit_forward(&before, hidden);
    }
    if (p->flow->status != LH_OK) return 0;
    const head_values_t all = head_outputs(m, x);
    if (lane == 0) p->flow->turn = p->flow->call_count;
    for (uint64_t begin = 0; begin < p->tokens; begin += m->chunk) {
        const uint64_t left = p->tokens - begin;
        head_chunk(m, &all, lane, begin, left < m->chunk ? left : m->chunk);
    }
    if (!m->train || front->r == NULL) return all.x_gradient;
    return visit_backward(&before, all.x_gradient, 0);
}

/* gradient: [lanes] of the last block's output. */
static void walk_back(model_flow_t *m, uint32_t *gradient)
{
    program_t *p = m->p;
    for (uint32_t b = p->weights->parameters->blocks; b > 0; b--) {
        for (uint32_t lane = 0; lane < p->lanes && p->flow->status == LH_OK; lane++) {
            visit_recompute(visit_of(m, b, lane), p->how.recompute);
            gradient[lane] = visit_backward(visit_of(m, b, lane), gradient[lane], 0);
            if (gradient[lane] == 0 && p->flow->status == LH_OK)
                p->flow->status = fail(LH_INVALID, "no gradient flows through block %u", b - 1);
        }
    }
    for (uint32_t lane = 0; lane < p->lanes && p->flow->status == LH_OK; lane++)
        (void)visit_backward(visit_of(m, 0, lane), gradient[lane], 0);
}

/* A parameter that nothing uses has a gradient of zero. */
static void unused_zero(program_t *p)
{
    const weights_t *w = p->weights;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        if (!w->grad->pieces[i].present || p->flow->status != LH_OK) continue;
        const uint32_t value = program_gradient(p, i);
        if (value == 0) return;
        bool used = false;
        const uint32_t buffer = p->flow->values[value].buffer;
        for (uint32_t v = 1; v < value && !used; v++)
            used = p->flow->values[v].buffer == buffer;
        if (!used) flow_fill(p->flow, value, !p->flow->buffers[buffer].each_micro);
    }
}

lh_status_t model_flow_write(program_t *p)
{
    const uint32_t blocks = p->weights->parameters->blocks;
    model_flow_t m = {.p = p, .train = p->how.use == USE_TRAIN, .chunk = chunk_choose(p)};
    uint32_t *values = mem_array(p->lanes, sizeof(*values)); /* on their way there and back */
    m.blocks = mem_array(blocks, sizeof(*m.blocks));
    m.visits = mem_array(((size_t)blocks + 1) * p->lanes, sizeof(*m.visits));
    const bool room = values != NULL && m.blocks != NULL && m.visits != NULL;
    lh_status_t status = room ? parts_record(&m) : LH_NO_MEMORY;
    if (status == LH_OK) {
        forward_blocks(&m, values);
        for (uint32_t lane = 0; lane < p->lanes; lane++)
            values[lane] = walk_head(&m, values[lane], lane);
        if (m.train) walk_back(&m, values);
        if (m.train) unused_zero(p);
        status = p->flow->status;
    }
    mem_free(values);
    mem_free(m.blocks);
    mem_free(m.visits);
    return status;
}
