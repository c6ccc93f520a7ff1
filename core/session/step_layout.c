/* step_layout.c - from a job and a rank to the programs of its training step. */
#include <session/step_layout.h>

#include <base/digest.h>
#include <engine/weights.h>

/* Rows of the table of document starts, 4 bytes each: a bound for data of very short documents. */
enum { DOCUMENTS_LIMIT = 1 << 20 };

/* How many documents `rows` sequences may hold: one each when they are joined. */
static uint64_t documents_of(const job_t *job, uint64_t rows, uint64_t per_sample)
{
    const job_train_t *train = &job->train;
    if (!step_asks_data(job))
        return job->data.documents == DOCUMENTS_JOINED ? rows : train->max_documents;
    const bool bounded = per_sample > 0 && per_sample < train->sequence;
    const uint64_t all = (bounded ? per_sample : train->sequence) * rows;
    return all > DOCUMENTS_LIMIT ? DOCUMENTS_LIMIT : all;
}

step_layout_t step_layout(const job_t *job, uint32_t rank, uint32_t ranks,
                          uint64_t documents_per_sample)
{
    const job_train_t *train = &job->train;
    step_layout_t l = {.share = batch_share(train->batch, train->micro_batch, rank, ranks)};
    l.train = (program_how_t){
        .use = USE_TRAIN,
        .sequences = l.share.rows,
        .rows = train->sequence,
        .max_documents = documents_of(job, l.share.rows, documents_per_sample),
        .recompute = train->recompute,
        .head_chunk = train->head_chunk,
        .replicas = ranks,
    };
    if (train->evaluate_every == 0) return l;
    l.score = (program_how_t){
        .use = USE_SCORE,
        .sequences = train->micro_batch,
        .rows = train->sequence,
        .max_documents = documents_of(job, train->micro_batch, documents_per_sample),
    };
    return l;
}

static lh_status_t read_schedule(const job_t *job, uint32_t micro_batches, schedule_t **out)
{
    const lh_status_t status = schedule_read(job->parallel.schedule, out);
    if (status != LH_OK || (*out)->micro_batches == micro_batches) return status;
    return fail(
        LH_INVALID,
        "%s: has rows for %u micro-batches, expected %u: as many as a rank makes of [train] "
        "batch = %llu and micro_batch = %llu",
        job->parallel.schedule, (*out)->micro_batches, micro_batches,
        (unsigned long long)job->train.batch, (unsigned long long)job->train.micro_batch);
}

static lh_status_t make_schedule(const session_t *s, uint64_t passes, schedule_t **out)
{
    const job_parallel_t *parallel = &s->job->parallel;
    if (passes > SCHEDULE_MICRO_BATCHES)
        return fail(LH_INVALID,
                    "%s: a step has %llu micro-batches on each rank, expected at most %d",
                    s->job->path, (unsigned long long)passes, SCHEDULE_MICRO_BATCHES);
    const uint32_t count = (uint32_t)passes;
    if (parallel->schedule != NULL) return read_schedule(s->job, count, out);
    if (parallel->accumulation == ACCUMULATION_DEPTH) return schedule_depth(count, out);
    return schedule_breadth(weights_parameters(s->weights)->blocks, count, out);
}

/* Frames say where things lie, which no bit depends on; and there is one order in which a single
 * micro-batch can go. */
void step_accumulation_text(const job_t *job, const schedule_t *s, text_t *out)
{
    const char *name = s->round_micro_batches == 1 ? "depth" : "breadth";
    if (job->parallel.schedule == NULL || s->round_micro_batches == 1) {
        text_append(out, name);
        return;
    }
    uint64_t digest = s->round_micro_batches;
    for (uint32_t i = 0; i < s->round_rows; i++) {
        const schedule_row_t *row = &s->rows[i];
        const uint64_t words[] = {digest, row->program, row->chunk, row->micro_batch};
        digest = xxh3(words, sizeof(words));
    }
    text_printf(out, "table %016llx", (unsigned long long)digest);
}

lh_status_t step_programs_new(session_t *s, const step_layout_t *layout, const train_ranks_t *ranks,
                              step_programs_t *out)
{
    const evaluation_how_t evaluation = {.session = s,
                                         .sequences = layout->score.sequences,
                                         .rows = layout->score.rows,
                                         .max_documents = layout->score.max_documents,
                                         .ranks = ranks};
    *out = (step_programs_t){0};
    /* The optimizer first: it says which gradients there are. */
    lh_status_t status = make_schedule(s, layout->share.passes, &out->schedule);
    if (status == LH_OK) status = session_update(s, out->schedule->rounds, &out->update);
    program_how_t train = layout->train;
    train.schedule = out->schedule;
    if (status == LH_OK) status = program_new(s->engine, s->weights, &train, &out->train);
    if (status == LH_OK && layout->score.use != 0)
        status = evaluation_new(&evaluation, &out->evaluation);
    return status;
}

void step_programs_free(step_programs_t *p)
{
    evaluation_free(p->evaluation);
    schedule_free(p->schedule);
    *p = (step_programs_t){0};
}

lh_status_t step_batches_open(const job_t *job, uint32_t split, uint32_t vocab, int32_t eod,
                              const batches_t *beside, batches_t **out)
{
    const job_train_t *train = &job->train;
    const batches_how_t how = {.data = &job->data,
                               .folder = job->pipeline.folder,
                               .split = split,
                               .sequence = train->sequence,
                               .samples = split == SPLIT_TRAIN ? train->steps * train->batch : 0,
                               .vocab = vocab,
                               .eod = eod,
                               .beside = beside};
    return batches_open(&how, out);
}

bool step_asks_data(const job_t *job)
{
    return job->data.documents == DOCUMENTS_APART && job->train.max_documents == 0;
}

uint64_t step_documents(const job_t *job, const batches_t *train, const batches_t *valid,
                        int32_t eod)
{
    if (eod >= 0 || !step_asks_data(job)) return 0;
    const uint64_t most = batches_documents_per_sample(train);
    const uint64_t more = valid == NULL ? 0 : batches_documents_per_sample(valid);
    return more > most ? more : most;
}
