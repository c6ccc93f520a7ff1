/* model_program.c - writes programs of a model: row by row of the schedule, an instance for each
 * part of the row's chunk.
 *
 * Parts are recorded, equal blocks once; each row of the schedule appends its parts' nodes
 * (instance.c). A row leaves to later rows of its micro-batch the instances' maps, the hidden state
 * that goes on, and the gradient that comes back. How long each value lives is stated nowhere:
 * flow_finish finds it by the calls that use the value.
 *
 * A schedule may take the first blocks in legs (part_legs.h), each a row, and the first one back in
 * halves (part_halves.h). Where a block is found to have fewer legs than it has rows, or no halves, the
 * rows of those that it lacks are empty. */
#include <engine/model_program.h>

#include <base/memory.h>
#include <engine/block_sums.h>
#include <engine/engine.h>
#include <engine/instance.h>
#include <engine/part_halves.h>
#include <graph/op_table.h>
#include <longhaul/dtype.h>
#include <program/schedule.h>

/* What is kept while a flow is written. Micro-batches are counted within a run. A NULL recording of
 * heads[1] means that all chunks are whole. */
typedef struct model_flow {
    program_t *p;
    bool train;
    part_t embed;
    part_t *blocks;        /* [blocks]; equal ones share a recording                   */
    instance_t *instances; /* [1 + blocks][micro-batches of a run]: embed, blocks       */
    uint32_t *hidden;      /* [micro-batches of a run] flow value, [tokens, hidden]      */
    uint32_t *gradient;    /* [micro-batches of a run] flow value, its gradient          */
    head_parts_t heads[2]; /* for a whole chunk; for the rows that remain, if any       */
    uint64_t chunk;        /* rows of the head's chunks                                 */
    block_sums_t sums;     /* over embedding and blocks                                 */
    uint32_t leg_blocks;   /* that the schedule takes in legs                           */
    part_legs_t legs[PART_LEG_BLOCKS];
} model_flow_t;

/* A chunk of the head: the bytes of logits to aim at (16 MiB), what the rows are a multiple of, and
 * the fewest rows, as fewer would make slow matrix products. CHUNK_SHARE: of a device with memory of
 * its own, the part that logits may take. */
enum { CHUNK_BYTES = 16 << 20, CHUNK_MULTIPLE = 64, CHUNK_ROWS = 1024, CHUNK_SHARE = 32 };

/* Bytes of logits to aim at. On a processor they should stay in its caches. A device with memory of
 * its own has none of that size, and each chunk reads and writes the whole gradient of the head's
 * weight again (2 GB for a vocabulary of 128k and 2,048 columns): there the chunks are as large as
 * memory allows. That follows from how much memory there is in all, and not from what is free at the
 * moment, rounded down to a power of two: how rows are cut decides in which order they are summed,
 * so it must be the same in every run. */
static uint64_t chunk_bytes(const engine_t *e)
{
    uint64_t total = 0;
    lh_device_memory_t memory;
    if (e->device == NULL || (e->properties.flags & LH_DEVICE_HOST_ACCESS) != 0) return CHUNK_BYTES;
    if (engine_device_memory(e, &memory)) total = memory.total_bytes / CHUNK_SHARE;
    uint64_t bytes = CHUNK_BYTES;
    while (bytes <= total / 2)
        bytes *= 2;
    return bytes;
}

/* Rows of a chunk: as many as fit the bytes, in chunks of nearly equal size. A row of F64, of which
 * only tests make any, counts as one of F32. */
static uint64_t chunk_choose(const program_t *p)
{
    if (p->how.head_chunk != 0)
        return p->how.head_chunk < p->tokens ? p->how.head_chunk : p->tokens;
    const uint64_t each = part_logits_dtype(p) == LH_DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
    const uint64_t row_bytes = p->weights->parameters->vocab * each;
    uint64_t rows = chunk_bytes(p->engine) / row_bytes / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
    if (rows < CHUNK_ROWS) rows = CHUNK_ROWS;
    if (rows >= p->tokens) return p->tokens;
    const uint64_t chunks = (p->tokens + rows - 1) / rows, even = (p->tokens + chunks - 1) / chunks;
    return (even + CHUNK_MULTIPLE - 1) / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
}

/* Records every block, and lets each that is equal to an earlier block share that one's recording.
 * Only then are the recordings that are left differentiated: a differentiated recording has more
 * nodes, and would not be equal. */
static lh_status_t blocks_record(model_flow_t *m)
{
    program_t *p = m->p;
    for (uint32_t b = 0; b < p->weights->parameters->blocks; b++) {
        lh_status_t status = part_record(p, LH_PART_BLOCK, b, p->tokens, &m->blocks[b]);
        if (status != LH_OK) return status;

        bool known = false;
        for (uint32_t other = 0; other < b && !known; other++) {
            /* Only with blocks that have a recording of their own, so with each recording once. */
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

/* Cuts the blocks that the schedule takes in legs, each by its own parameters: those of an equal block,
 * whose recording it shares, may be tied otherwise. */
static lh_status_t legs_find(model_flow_t *m, const schedule_t *s)
{
    program_t *p = m->p;
    lh_status_t status = LH_OK;
    lh_assert(s->leg_blocks <= PART_LEG_BLOCKS && (s->leg_blocks == 0 || s->legs == PART_LEGS));
    for (uint32_t b = 0; b < s->leg_blocks && status == LH_OK; b++) {
        part_t part = m->blocks[b];
        part.block = b;
        status = part_legs_find(p, &part, &m->legs[b]);
        m->leg_blocks = b + 1;
        if (status != LH_OK || m->legs[b].count == 1) continue;
        p->leg_blocks++;
        if (m->legs[b].count > p->legs) p->legs = m->legs[b].count;
    }
    return status;
}

/* Finds whether the first block goes back in the halves that the schedule has for it. */
static lh_status_t halves_find(model_flow_t *m, const schedule_t *s)
{
    program_t *p = m->p;
    if (!s->halves) return LH_OK;
    const part_leg_t last = m->leg_blocks > 0 ? m->legs[0].list[0] : part_leg_whole(&m->blocks[0]);
    return part_halves_find(p, &m->embed, m->blocks, &last, &p->halves);
}

/* The head is recorded twice where the rows are no whole number of chunks: for a chunk, and for the
 * rows that remain. */
static lh_status_t parts_record(model_flow_t *m, const schedule_t *s)
{
    program_t *p = m->p;
    lh_status_t status = part_record(p, LH_PART_EMBED, 0, p->tokens, &m->embed);
    if (status == LH_OK && m->train) status = part_differentiate(p, &m->embed, p->weights->compute);
    if (status == LH_OK) status = blocks_record(m);
    if (status == LH_OK) status = legs_find(m, s);
    if (status == LH_OK) status = halves_find(m, s);
    if (status == LH_OK) status = part_record_head(p, m->chunk, m->train, &m->heads[0]);
    if (status == LH_OK && p->tokens % m->chunk != 0)
        status = part_record_head(p, p->tokens % m->chunk, m->train, &m->heads[1]);
    return status;
}

/* The instance of a part for a micro-batch. part: 0 is the embedding, 1 to `blocks` are blocks. */
static instance_t *instance_of(model_flow_t *m, uint32_t part, uint32_t micro_batch)
{
    lh_assert(part <= m->p->weights->parameters->blocks && micro_batch < m->p->round_micro_batches);
    return &m->instances[(size_t)part * m->p->round_micro_batches + micro_batch];
}

/* Flow values of the whole micro-batch that chunks of the head read and write; 0: not wanted. */
typedef struct head_values {
    uint32_t x, x_gradient;       /* input of the last matmul, [tokens, width], and its gradient */
    uint32_t loss, stats, logits; /* outputs: [1], [tokens, 3], [tokens, vocab] */
} head_values_t;

/* Lets a chunk's logits and stats lie in its rows of the program's outputs, if there are such
 * outputs; the loss is one sum over all chunks. */
static void chunk_outputs(const program_t *p, const head_values_t *all, instance_t *logits_maker,
                          instance_t *loss, uint64_t begin, uint64_t rows)
{
    if (all->logits != 0)
        logits_maker->map[logits_maker->part->output] = flow_rows(p->flow, all->logits, begin,
                                                                  rows);
    if (loss == NULL || loss->map == NULL) return;
    if (all->stats != 0) loss->map[loss->part->stats] = flow_rows(p->flow, all->stats, begin, rows);
    loss->map[loss->part->loss] = all->loss;
}

/* The gradient of the logits in the compute dtype, as matmuls take it; behind a cap it is wide. */
static uint32_t gradient_narrowed(program_t *p, uint32_t gradient)
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

/* Appends logits, loss and, where the program trains, the way back, for rows [begin, begin + rows).
 * The gradient of x lies in those rows of one value; the gradient of the head's weight is added up
 * chunk by chunk. */
static void head_chunk(model_flow_t *m, const head_values_t *all, uint32_t micro_batch,
                       uint64_t begin, uint64_t rows)
{
    program_t *p = m->p;
    const head_parts_t *head = &m->heads[rows == m->chunk ? 0 : 1];
    const bool capped = head->cap.r != NULL, scored = p->how.use != USE_DECODE;
    instance_t matmul, cap = {0}, loss = {0};

    instance_begin(&matmul, p, &head->matmul, 0, micro_batch, begin);
    if (capped) instance_begin(&cap, p, &head->cap, 0, micro_batch, begin);
    if (scored) instance_begin(&loss, p, &head->loss, 0, micro_batch, begin);
    if (p->flow->status != LH_OK) return;
    chunk_outputs(p, all, capped ? &cap : &matmul, scored ? &loss : NULL, begin, rows);

    uint32_t logits = instance_forward(&matmul, flow_rows(p->flow, all->x, begin, rows));
    if (capped) logits = instance_forward(&cap, logits);
    if (!scored) return;
    uint32_t gradient = instance_forward(&loss, logits);
    if (!m->train) return;
    if (capped) gradient = gradient_narrowed(p, instance_backward(&cap, gradient, 0));
    (void)instance_backward(&matmul, gradient, flow_rows(p->flow, all->x_gradient, begin, rows));
}

/* The outputs that the use of the program asks for, which are made at the first micro-batch, and
 * the gradient of x. */
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

/* Appends head and loss, chunk by chunk; returns the gradient of the blocks' output. The first
 * chunk is the turn of the flow: values that were made before and are used behind it are what is
 * saved for the way back. */
static uint32_t walk_head(model_flow_t *m, uint32_t micro_batch)
{
    program_t *p = m->p;
    const part_t *front = &m->heads[0].front;
    instance_t before;
    uint32_t x = m->hidden[micro_batch];
    if (front->r != NULL) {
        instance_begin(&before, p, front, 0, micro_batch, 0);
        x = instance_forward(&before, x);
    }
    if (p->flow->status != LH_OK) return 0;
    const head_values_t all = head_outputs(m, x);
    if (p->flow->turn == 0) p->flow->turn = p->flow->call_count;
    for (uint64_t begin = 0; begin < p->tokens; begin += m->chunk) {
        const uint64_t left = p->tokens - begin;
        head_chunk(m, &all, micro_batch, begin, left < m->chunk ? left : m->chunk);
    }
    if (!m->train || front->r == NULL) return all.x_gradient;
    return instance_backward(&before, all.x_gradient, 0);
}

/* ---- rows of the schedule ---- */

/* The legs of a part; NULL: it has none. Block 0 is part 1. */
static const part_legs_t *legs_of(const model_flow_t *m, uint32_t part)
{
    return part > 0 && part <= m->leg_blocks ? &m->legs[part - 1] : NULL;
}

/* Lets an instance take one leg of its part. */
static void leg_take(const model_flow_t *m, instance_t *v, uint32_t part, uint32_t leg)
{
    const part_legs_t *legs = legs_of(m, part);
    lh_assert(leg < (legs == NULL ? 1 : legs->count));
    if (legs != NULL) v->leg = legs->list[leg];
}

/* Appends a part's forward pass, or a leg of it: 0 is the embedding, then come blocks, then the head,
 * which goes there and back. */
static void part_forward(model_flow_t *m, uint32_t part, uint32_t leg, uint32_t micro_batch)
{
    const uint32_t blocks = m->p->weights->parameters->blocks;
    if (part > blocks) {
        block_sums_lose(&m->sums, &m->heads[0].sums, micro_batch);
        m->gradient[micro_batch] = walk_head(m, micro_batch);
        return;
    }
    instance_t *v = instance_of(m, part, micro_batch);
    if (leg == 0)
        instance_begin(v, m->p, part == 0 ? &m->embed : &m->blocks[part - 1],
                       part == 0 ? 0 : part - 1, micro_batch, 0);
    leg_take(m, v, part, leg);
    m->hidden[micro_batch] = instance_forward(v, m->hidden[micro_batch]);
    if (part_leg_ends_forward(&v->leg, v->part)) block_sums_add(&m->sums, v);
}

/* Appends a part's way back, or a leg of it. The head has had its own. The embedding has gradients of
 * weights only, which come with its backward or backward_weights row. */
static void part_backward(model_flow_t *m, uint32_t program, uint32_t part, uint32_t leg,
                          uint32_t micro_batch)
{
    program_t *p = m->p;
    if (part > p->weights->parameters->blocks || p->flow->status != LH_OK) return;
    instance_t *v = instance_of(m, part, micro_batch);
    uint32_t *gradient = &m->gradient[micro_batch];
    leg_take(m, v, part, leg);
    block_sums_seed(&m->sums, v);
    if (part == 0) {
        if (program != SCHEDULE_BACKWARD_INPUT) (void)instance_backward(v, *gradient, 0);
        return;
    }
    if (program == SCHEDULE_BACKWARD_WEIGHTS) {
        instance_backward_weights(v);
        return;
    }
    instance_recompute(v, p->how.recompute);
    *gradient = program == SCHEDULE_BACKWARD ? instance_backward(v, *gradient, 0)
                                             : instance_backward_input(v, *gradient);
    if (*gradient == 0 && p->flow->status == LH_OK)
        p->flow->status = fail(LH_INVALID, "no gradient flows through block %u", part - 1);
}

/* Appends a row: the parts of its chunk in order, or on the way back from the last to the first. A block
 * that has no halves goes whole in the row of the first. */
static void row_write(model_flow_t *m, const schedule_t *s, const schedule_row_t *row)
{
    uint32_t first, end;
    const uint32_t leg = schedule_leg(s, row->chunk);
    lh_assert(row->micro_batch < m->p->round_micro_batches);
    schedule_parts(s, m->p->weights->parameters->blocks, row->chunk, &first, &end);
    const part_legs_t *legs = legs_of(m, first);
    uint32_t program = row->program;
    if (legs != NULL && leg >= legs->count) return; /* its block has fewer */
    const bool whole = s->halves && !m->p->halves;
    if (whole && program == SCHEDULE_BACKWARD_WEIGHTS) return;
    if (whole && program == SCHEDULE_BACKWARD_INPUT) program = SCHEDULE_BACKWARD;
    if (program == SCHEDULE_FORWARD) {
        for (uint32_t part = first; part < end && m->p->flow->status == LH_OK; part++)
            part_forward(m, part, leg, row->micro_batch);
    } else {
        for (uint32_t part = end; part-- > first && m->p->flow->status == LH_OK;)
            part_backward(m, program, part, leg, row->micro_batch);
    }
}

/* Fills the gradients of parameters that no call uses with zeros, or the update would read what the
 * memory held before. In a store that is done in the first round only, as no later round adds
 * to such a gradient. */
static void unused_zero(program_t *p)
{
    const weights_t *w = p->weights;
    flow_t *f = p->flow;
    const uint32_t known = f->buffer_count;
    bool *used = mem_array(known, sizeof(*used));
    if (used == NULL) {
        f->status = LH_NO_MEMORY;
        return;
    }
    for (uint32_t v = 1; v < f->value_count; v++)
        used[f->values[v].buffer] = true;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        if (!w->grad->shards[i].present || f->status != LH_OK) continue;
        const uint32_t value = program_gradient(p, i);
        if (value == 0) break;
        const uint32_t buffer = f->values[value].buffer;
        if (buffer >= known || !used[buffer]) flow_fill(f, value, !f->buffers[buffer].each_micro);
    }
    mem_free(used);
}

/* Records the parts, then writes one round of the schedule. */
static lh_status_t rows_write(model_flow_t *m, const schedule_t *s)
{
    program_t *p = m->p;
    const uint32_t blocks = p->weights->parameters->blocks;
    lh_assert(m->train == !s->forward_only);
    m->blocks = mem_array(blocks, sizeof(*m->blocks));
    m->instances = mem_array(((size_t)blocks + 1) * p->round_micro_batches, sizeof(*m->instances));
    m->hidden = mem_array(p->round_micro_batches, sizeof(*m->hidden));
    m->gradient = mem_array(p->round_micro_batches, sizeof(*m->gradient));
    if (m->blocks == NULL || m->instances == NULL || m->hidden == NULL || m->gradient == NULL)
        return LH_NO_MEMORY;
    lh_status_t status = schedule_fits(s, blocks);
    if (status == LH_OK) status = parts_record(m, s);
    if (status == LH_OK)
        status = block_sums_find(&m->sums, &m->embed, m->blocks, blocks, &m->heads[0].sums);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < s->round_rows; i++) {
        p->flow->row = i;
        row_write(m, s, &s->rows[i]);
    }
    p->row_count = s->round_rows;
    if (m->train) unused_zero(p);
    return p->flow->status;
}

/* Writes the flow by the schedule; without one, by that of a single micro-batch, there and back
 * where the program trains. */
static lh_status_t model_flow_write(program_t *p, const schedule_t *schedule)
{
    model_flow_t m = {
        .p = p, .train = p->how.use == USE_TRAIN, .chunk = chunk_choose(p), .sums = {.p = p}};
    schedule_t *own = NULL;
    lh_status_t status = LH_OK;
    if (schedule == NULL) status = m.train ? schedule_depth(1, &own) : schedule_forward(1, &own);
    if (status == LH_OK) status = rows_write(&m, schedule == NULL ? own : schedule);
    schedule_free(own);
    block_sums_free(&m.sums);
    mem_free(m.blocks);
    mem_free(m.instances);
    mem_free(m.hidden);
    mem_free(m.gradient);
    return status;
}

/* Refuses sizes with which there is nothing to write. */
static lh_status_t program_how_check(const program_how_t *how)
{
    if (how->sequences == 0 || how->rows == 0)
        return fail(LH_INVALID, "a program of %llu sequences of %llu tokens has nothing to do",
                    (unsigned long long)how->sequences, (unsigned long long)how->rows);
    if (how->use != USE_DECODE) return LH_OK;
    if (how->capacity < how->rows)
        return fail(LH_INVALID, "a cache of %llu rows is too small for %llu tokens",
                    (unsigned long long)how->capacity, (unsigned long long)how->rows);
    return LH_OK;
}

/* Where no optimizer has made a store of gradients, one of whole gradients is made here, for tests
 * and references. */
lh_status_t program_new(engine_t *e, weights_t *w, const program_how_t *how, program_t **out)
{
    lh_status_t status = program_how_check(how);
    program_t *p;
    if (status == LH_OK) status = program_empty(e, w, how, &p);
    if (status != LH_OK) return status;
    if (how->use == USE_TRAIN && !w->bucketed) status = weights_gradients_default(w);
    if (status == LH_OK) status = model_flow_write(p, how->schedule);
    if (status == LH_OK) status = program_pack(p);
    if (status == LH_OK) *out = p;
    return status;
}
