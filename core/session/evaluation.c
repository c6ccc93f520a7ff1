/* evaluation.c - fills the scoring program's inputs and adds up what comes out.
 *
 * Ranks take runs of a split in turn, and each keeps the sum of each of its runs apart. They are
 * gathered and added in the order of runs, so the result does not depend on how many ranks there
 * were. Documents are packed greedily in the order of the file: attention does not reach over their
 * borders, so what stands beside a document does not change its loss. */
#include <session/evaluation.h>

#include <math.h>

#include <base/memory.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <program/schedule.h>
#include <session/preference.h>

/* One set of buffers, used again for every run. */
struct evaluation {
    evaluation_how_t how;
    program_t *program;       /* NULL with pairs */
    preference_t *preference; /* NULL without */
    uint64_t tokens;          /* of one run */
    batch_rows_t batch;
    float *stats;                 /* [tokens, 3] */
    evaluation_sum_t *mine, *all; /* of runs: [turns], [ranks][turns] */
    uint64_t turns;
};

static uint64_t rank_count(const evaluation_t *e)
{
    return e->how.ranks == NULL ? 1 : e->how.ranks->size;
}

lh_status_t evaluation_new(const evaluation_how_t *how, evaluation_t **out)
{
    evaluation_t *e = mem_new(sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    e->how = *how;
    e->tokens = how->sequences * how->rows;
    e->stats = mem_array(3 * e->tokens, sizeof(float));

    lh_status_t status = session_rows_new(e->tokens, how->max_documents + 1, &e->batch);
    e->batch.max_documents = how->max_documents;
    if (e->stats == NULL) status = LH_NO_MEMORY;
    schedule_t *schedule = NULL;
    if (status == LH_OK) status = schedule_forward(1, &schedule);
    if (status == LH_OK) {
        const program_how_t program = {.use = USE_SCORE,
                                       .sequences = how->sequences,
                                       .rows = how->rows,
                                       .max_documents = how->max_documents,
                                       .narrow_logits = how->narrow_logits,
                                       .document_rows = how->document_rows,
                                       .schedule = schedule};
        status = how->pairs ? preference_new(how->session, &program, &e->preference)
                            : program_new(how->session->engine, how->session->weights, &program,
                                          &e->program);
    }
    schedule_free(schedule);
    if (status != LH_OK) {
        evaluation_free(e);
        return status;
    }
    *out = e;
    return LH_OK;
}

void evaluation_free(evaluation_t *e)
{
    if (e == NULL) return;
    preference_free(e->preference);
    mem_free(e->all);
    mem_free(e->mine);
    mem_free(e->stats);
    session_rows_free(&e->batch);
    mem_free(e);
}

/* Blocks until the device is done. */
static lh_status_t batch_score(evaluation_t *e)
{
    lh_status_t status = session_rows_give(&e->batch, 1, e->tokens, e->program);
    if (status == LH_OK) status = program_run(e->program, 0);
    if (status == LH_OK)
        status = program_output(e->program, OUTPUT_STATS, e->stats, 3 * e->tokens * sizeof(float));
    return status;
}

/* Loss of rows [begin, end) that count. */
static void add_rows(const evaluation_t *e, uint64_t begin, uint64_t end, evaluation_sum_t *sum)
{
    lh_assert(begin <= end && end <= e->tokens);
    for (uint64_t i = begin; i < end; i++) {
        const float *s = e->stats + 3 * i;
        if (e->batch.weights[i] == 0) continue;
        /* log-sum-exp with the largest logit taken out: log(sum) + max - label. */
        sum->nll += log((double)s[1]) + (double)s[0] - (double)s[2];
        sum->tokens++;
    }
}

/* Weight 0 takes a token out of the loss; the other values must only be legal ones. */
static void batch_clear(evaluation_t *e)
{
    memset(e->batch.tokens, 0, e->tokens * sizeof(int32_t));
    memset(e->batch.labels, 0, e->tokens * sizeof(int32_t));
    memset(e->batch.positions, 0, e->tokens * sizeof(int32_t));
    memset(e->batch.weights, 0, e->tokens * sizeof(float));
}

/* Samples [first, first + count) and padding behind them; count 0: a turn for the others' sake. */
static lh_status_t score_run(evaluation_t *e, batches_t *data, uint64_t first, uint64_t count,
                             evaluation_sum_t *sum)
{
    lh_assert(count <= e->how.sequences);
    *sum = (evaluation_sum_t){0, 0};
    lh_status_t status = batches_fill(data, first, count, &e->batch);
    if (status != LH_OK) return status;
    if (count < e->how.sequences) batches_pad(data, count, e->how.sequences, &e->batch);
    if (e->preference != NULL) {
        preference_sum_t pairs = {0};
        status = preference_score(e->preference, &e->batch, false, &pairs);
        *sum = (evaluation_sum_t){pairs.loss, (uint64_t)pairs.pairs};
        return status;
    }
    status = batch_score(e);
    if (status == LH_OK) add_rows(e, 0, e->tokens, sum);
    return status;
}

/* Room for the sums of this rank's turns and of everybody's. Grown only; both arrays are lost on
 * failure, and turns says so. */
static lh_status_t sums_room(evaluation_t *e, uint64_t turns)
{
    if (turns <= e->turns) return LH_OK;
    mem_free(e->mine);
    mem_free(e->all);
    e->turns = 0;
    e->mine = mem_array(turns, sizeof(*e->mine));
    e->all = mem_array(turns * rank_count(e), sizeof(*e->all));
    if (e->mine == NULL || e->all == NULL) return LH_NO_MEMORY;
    e->turns = turns;
    return LH_OK;
}

/* A large split has more sums than one gather takes: then so many turns of all ranks at a time,
 * each of which goes to its rank's place. */
static lh_status_t sums_gather_pieces(evaluation_t *e, uint64_t turns, uint64_t most)
{
    const train_ranks_t *ranks = e->how.ranks;
    evaluation_sum_t *piece = mem_array(most * ranks->size, sizeof(*piece));
    lh_status_t status = piece == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint64_t at = 0, count; status == LH_OK && at < turns; at += count) {
        count = turns - at < most ? turns - at : most;
        status = ranks->gather(ranks->context, e->mine + at, count * sizeof(*piece), piece);
        for (uint64_t r = 0; status == LH_OK && r < ranks->size; r++)
            memcpy(e->all + r * turns + at, piece + r * count, count * sizeof(*piece));
    }
    mem_free(piece);
    return status;
}

static lh_status_t sums_gather(evaluation_t *e, uint64_t turns)
{
    lh_assert(turns <= e->turns);
    const train_ranks_t *ranks = e->how.ranks;
    if (rank_count(e) > 1) {
        const uint64_t most = ranks->most / sizeof(*e->mine);
        if (most > 0 && turns > most) return sums_gather_pieces(e, turns, most);
        return ranks->gather(ranks->context, e->mine, turns * sizeof(*e->mine), e->all);
    }
    memcpy(e->all, e->mine, turns * sizeof(*e->mine));
    return LH_OK;
}

/* A rank that has no run left in the last turn computes one of padding: the turns of all ranks
 * must be as many, as a model's program may gather values from others. */
lh_status_t evaluation_split(evaluation_t *e, batches_t *data, uint64_t runs, evaluation_sum_t *out)
{
    const uint64_t samples = batches_samples(data), rows = e->how.sequences;
    const uint64_t most = samples / rows > 0 ? samples / rows : samples > 0;
    const uint64_t ranks = rank_count(e), rank = ranks > 1 ? e->how.ranks->rank : 0;
    if (runs == 0 || runs > most) runs = most;

    const uint64_t turns = (runs + ranks - 1) / ranks, filled = samples < rows ? samples : rows;
    lh_status_t status = sums_room(e, turns);
    for (uint64_t i = 0; i < turns && status == LH_OK; i++) {
        const uint64_t run = i * ranks + rank;
        status = run < runs ? score_run(e, data, run * rows, filled, &e->mine[i])
                            : score_run(e, data, 0, 0, &e->mine[i]);
    }
    if (status == LH_OK) status = sums_gather(e, turns);
    if (status != LH_OK) return status;

    evaluation_sum_t sum = {0, 0};
    for (uint64_t run = 0; run < runs; run++) {
        const evaluation_sum_t *part = &e->all[run % ranks * turns + run / ranks];
        sum.nll += part->nll;
        sum.tokens += part->tokens;
    }
    *out = sum;
    return LH_OK;
}

/* Puts a document's predicted rows behind `used`; what is behind it stays padding. Positions begin
 * at 0 in each document. starts[number + 1] is set, too, so that a document's end is known before
 * the next is placed. */
static void document_place(evaluation_t *e, const evaluation_document_t *d, uint64_t used,
                           uint64_t number)
{
    lh_assert(used + d->count - 1 <= e->tokens && number < e->batch.max_documents);
    for (uint64_t i = 0; i + 1 < d->count; i++) {
        e->batch.tokens[used + i] = d->ids[i];
        e->batch.labels[used + i] = d->ids[i + 1];
        e->batch.positions[used + i] = (int32_t)i;
        e->batch.weights[used + i] = i + 1 >= d->context ? 1 : 0;
    }
    e->batch.starts[number] = (int32_t)used;
    e->batch.starts[number + 1] = (int32_t)(used + d->count - 1);
}

/* Documents of fewer than two ids take no room but are still told to each, with 0 tokens. */
lh_status_t evaluation_documents(
    evaluation_t *e, const evaluation_document_t *documents, uint64_t count,
    void (*each)(void *context, uint64_t document, const evaluation_sum_t *sum), void *context)
{
    for (uint64_t first = 0; first < count;) {
        uint64_t used = 0, packed = 0, next = first;
        batch_clear(e);
        for (; next < count && packed < e->batch.max_documents; next++) {
            const evaluation_document_t *d = &documents[next];
            const uint64_t rows = d->count < 2 ? 0 : d->count - 1;
            if (rows > e->tokens)
                return fail(LH_INVALID, "document %llu has %llu tokens; at most %llu fit",
                            (unsigned long long)next, (unsigned long long)d->count,
                            (unsigned long long)e->tokens + 1);
            if (used + rows > e->tokens) break;
            if (rows == 0) continue;
            document_place(e, d, used, packed++);
            used += rows;
        }
        for (uint64_t k = packed + 1; k <= e->batch.max_documents; k++)
            e->batch.starts[k] = (int32_t)e->tokens;
        /* The padding behind the last document is a document of its own, where there is room for
         * one. */
        if (packed < e->batch.max_documents) e->batch.starts[packed] = (int32_t)used;
        const lh_status_t status = packed == 0 ? LH_OK : batch_score(e);
        if (status != LH_OK) return status;

        uint64_t at = 0;
        for (uint64_t i = first; i < next; i++) {
            const uint64_t rows = documents[i].count < 2 ? 0 : documents[i].count - 1;
            evaluation_sum_t sum = {0, 0};
            add_rows(e, at, at + rows, &sum);
            at += rows;
            each(context, i, &sum);
        }
        first = next;
    }
    return LH_OK;
}
