/* step_layout.c - from a job and a rank to the programs of its training step. */
#include <session/step_layout.h>

#include <math.h>
#include <stdio.h>

#include <base/digest.h>
#include <base/memory.h>
#include <base/text.h>
#include <control/world.h>
#include <engine/model_program.h>
#include <engine/part_legs.h>
#include <engine/weights.h>
#include <plugin/host.h>
#include <plugin/registry.h>

/* Rows of the table of document starts, 4 bytes each: a bound for data of very short documents. */
enum { DOCUMENTS_LIMIT = 1 << 20 };

/* How many documents `rows` sequences may hold: one each when they are joined. The bound decides
 * how large the table of document starts is in every micro-batch's inputs. It is the data's own
 * where that is known, since tokens as a bound would make the table as large as the batch. */
static uint64_t documents_of(const job_t *job, uint64_t rows, uint64_t per_sample)
{
    const job_train_t *train = &job->train;
    if (!step_asks_data(job))
        return job->data.documents == DOCUMENTS_JOINED ? rows : train->max_documents;
    const bool bounded = per_sample > 0 && per_sample < train->sequence;
    const uint64_t all = (bounded ? per_sample : train->sequence) * rows;
    return all > DOCUMENTS_LIMIT ? DOCUMENTS_LIMIT : all;
}

/* Joined documents are one for each sequence, rows of padding too. */
static uint32_t document_rows_of(const job_t *job)
{
    const bool whole = job->data.documents == DOCUMENTS_JOINED &&
                       job->train.phase == PHASE_PRETRAIN && job->train.sequence <= UINT32_MAX;
    return whole ? (uint32_t)job->train.sequence : 0;
}

/* The held-out split is scored in runs of micro_batch sequences, whatever the number of ranks, so
 * that its sum has the same bits on any. */
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
        .document_rows = document_rows_of(job),
        .recompute = train->recompute,
        .head_chunk = train->head_chunk,
        .narrow_logits = train->logits == LOGITS_COMPUTE,
        .replicas = ranks,
    };
    if (train->evaluate_every == 0) return l;
    l.score = (program_how_t){
        .use = USE_SCORE,
        .sequences = train->micro_batch,
        .rows = train->sequence,
        .max_documents = documents_of(job, train->micro_batch, documents_per_sample),
        .narrow_logits = l.train.narrow_logits,
        .document_rows = document_rows_of(job),
    };
    return l;
}

/* The file's own mistakes were refused by schedule_read; here it is compared with the job. */
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

/* How many blocks go in legs, breadth-first; where any do, the first one comes back in halves. Between
 * sites nothing else hides what is complete last and needed first. A micro-batch alone goes from one leg
 * to the next at once. */
static uint32_t leg_blocks(const session_t *s, uint32_t blocks, uint32_t micro_batches)
{
    const bool far = s->world != NULL && s->world->row.sites > 1;
    if (!far || micro_batches == 1) return 0;
    return blocks < PART_LEG_BLOCKS ? blocks : PART_LEG_BLOCKS;
}

/* A schedule of the user's comes before `accumulation`, which then says nothing. */
static lh_status_t make_schedule(const session_t *s, uint64_t micro_batches, schedule_t **out)
{
    const job_parallel_t *parallel = &s->job->parallel;
    if (micro_batches > SCHEDULE_MICRO_BATCHES)
        return fail(LH_INVALID,
                    "%s: a step has %llu micro-batches on each rank, expected at most %d",
                    s->job->path, (unsigned long long)micro_batches, SCHEDULE_MICRO_BATCHES);
    const uint32_t count = (uint32_t)micro_batches;
    if (parallel->schedule != NULL) return read_schedule(s->job, count, out);
    if (parallel->accumulation == ACCUMULATION_DEPTH) return schedule_depth(count, out);
    lh_assert(parallel->accumulation == ACCUMULATION_BREADTH);
    const uint32_t blocks = weights_parameters(s->weights)->blocks,
                   in_legs = leg_blocks(s, blocks, count);
    return schedule_breadth(blocks, in_legs, PART_LEGS, in_legs > 0, count, out);
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
        digest = digest_xxh3(words, sizeof(words));
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
                                         .narrow_logits = layout->score.narrow_logits,
                                         .document_rows = layout->score.document_rows,
                                         .pairs = s->job->train.phase == PHASE_DPO,
                                         .ranks = ranks};
    *out = (step_programs_t){0};
    /* The optimizer first: it says which gradients there are. */
    lh_status_t status = make_schedule(s, layout->share.micro_batches, &out->schedule);
    if (status == LH_OK) status = session_update(s, out->schedule->rounds, &out->update);
    program_how_t train = layout->train;
    train.schedule = out->schedule;
    if (status == LH_OK) status = program_new(s->engine, s->weights, &train, &out->train);
    if (status == LH_OK && s->job->train.phase == PHASE_DPO)
        status = preference_new(s, &train, &out->preference);
    if (status == LH_OK && layout->score.use != 0)
        status = evaluation_new(&evaluation, &out->evaluation);
    return status;
}

void step_programs_free(step_programs_t *p)
{
    evaluation_free(p->evaluation);
    preference_free(p->preference);
    schedule_free(p->schedule);
    *p = (step_programs_t){0};
}

lh_status_t step_samples(const job_t *job, uint64_t cursor, uint64_t step, batch_skips_t *skips,
                         uint64_t *samples)
{
    batch_skips_t own;
    char where[JOB_WHERE_BYTES], reason[256];
    const uint64_t steps = job->train.steps, batch = job->train.batch;
    const lh_status_t status = batch_skips_parse(job->data.skip, &own);
    if (status == LH_INVALID) {
        (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
        job_where(job, "data", "skip", where);
        return fail(LH_INVALID, "%s: skip = %s: %s", where, job->data.skip, reason);
    }
    if (status != LH_OK) return status;
    if (skips != NULL) *skips = own;
    *samples = batch_skips_after(&own, cursor, step < steps ? steps - step : 0, batch);
    return LH_OK;
}

/* steps * batch samples are asked for in training, and those that are skipped: the number of epochs,
 * and with it the order of samples, depends on it as Megatron's does. */
lh_status_t step_batches_open(const job_t *job, uint32_t split, uint64_t samples, uint32_t vocab,
                              int32_t eod, const batches_t *beside, batches_t **out)
{
    const job_train_t *train = &job->train;
    const batches_how_t how = {.data = &job->data,
                               .folder = job->pipeline.folder,
                               .split = split,
                               .sequence = train->sequence,
                               .phase = train->phase,
                               .samples = split == SPLIT_TRAIN ? samples : 0,
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
    /* What an eod may do to joined documents it does not do to conversations. */
    const bool cuts = eod >= 0 && job->train.phase == PHASE_PRETRAIN;
    if (cuts || !step_asks_data(job)) return 0;
    const uint64_t most = batches_documents_per_sample(train);
    const uint64_t more = valid == NULL ? 0 : batches_documents_per_sample(valid);
    return more > most ? more : most;
}

/* ---- the calls that an INI makes around a step ---- */

enum { WHERE_BYTES = 512 };

/* where holds the places by which sentences about a call begin; call_bind keeps pointers to them.
 */
struct step_calls {
    uint64_t steps;
    call_scope_t rate_scope, step_scope, save_scope;
    call_t *rate, *after_step, *before_save;
    char where[3][WHERE_BYTES];
};

enum { RATE_STEP = 0 };
static const call_variable_t rate_variables[] = {[RATE_STEP] = {"step", CALL_U64},
                                                 {"steps", CALL_U64}};
enum { STEP_LOSS = 1, STEP_NORM = 3 };
static const call_variable_t step_variables[] = {{"step", CALL_U64},
                                                 [STEP_LOSS] = {"loss", CALL_F64},
                                                 {"learning_rate", CALL_F64},
                                                 [STEP_NORM] = {"norm", CALL_F64},
                                                 {"tokens", CALL_U64}};
static const call_variable_t save_variables[] = {{"step", CALL_U64}, {"loss", CALL_F64}};

/* "train.ini:12: learning_rate", or the INI's name where the default stands. A call is often the
 * default of its option, and then there is no line to name. */
static const char *calls_place(const job_t *job, const char *section, const char *key,
                               char out[WHERE_BYTES])
{
    char where[WHERE_BYTES - 64];
    const document_entry_t *entry = document_entry(document_find(job->document, section), key);
    if (entry == NULL)
        (void)snprintf(where, sizeof(where), "%.*s: [%s]", (int)sizeof(where) - 40, job->path,
                       section);
    else
        document_where(entry->file, entry->line, where, sizeof(where));
    (void)snprintf(out, WHERE_BYTES, "%s: %s", where, key);
    return out;
}

/* Names that a call may use, beside those of plugins (acme:function): the functions below, and the
 * variables of the moment at which it is called. */
static call_scope_t scope_of(registry_t *registry, const lh_host_t *host,
                             const call_variable_t *variables, uint32_t count)
{
    return (call_scope_t){.functions = rate_functions,
                          .function_count = rate_function_count,
                          .variables = variables,
                          .variable_count = count,
                          .plugins = registry,
                          .host = host};
}

#define COUNT(t) (uint32_t)(sizeof(t) / sizeof((t)[0]))

const step_call_t step_call_kinds[] = {
    {"optimizer", "learning_rate", CALL_F64,
     "before each step; steps is [train] steps, step counts those already made", rate_variables,
     COUNT(rate_variables)},
    {"hook.after_step", "call", CALL_STATUS, "after each step; step counts from 1", step_variables,
     COUNT(step_variables)},
    {"hook.before_save", "call", CALL_STATUS, "before each checkpoint is written", save_variables,
     COUNT(save_variables)},
};
const uint32_t step_call_kind_count = COUNT(step_call_kinds);

lh_status_t step_calls_new(const job_t *job, registry_t *registry, step_calls_t **out)
{
    const lh_host_t *host;
    lh_status_t status = host_for(registry_host(registry), "longhaul", &host);
    if (status != LH_OK) return status;
    step_calls_t *b = mem_new(sizeof(*b));
    if (b == NULL) return LH_NO_MEMORY;

    b->steps = job->train.steps;
    b->rate_scope = scope_of(registry, host, rate_variables, COUNT(rate_variables));
    b->step_scope = scope_of(registry, host, step_variables, COUNT(step_variables));
    b->save_scope = scope_of(registry, host, save_variables, COUNT(save_variables));
    status = call_bind(job->optimizer.learning_rate,
                       calls_place(job, "optimizer", "learning_rate", b->where[0]), &b->rate_scope,
                       CALL_F64, &b->rate);
    if (status == LH_OK && job->after_step != NULL)
        status = call_bind(job->after_step,
                           calls_place(job, "hook.after_step", "call", b->where[1]), &b->step_scope,
                           CALL_STATUS, &b->after_step);
    if (status == LH_OK && job->before_save != NULL)
        status = call_bind(job->before_save,
                           calls_place(job, "hook.before_save", "call", b->where[2]),
                           &b->save_scope, CALL_STATUS, &b->before_save);
    if (status != LH_OK) {
        step_calls_free(b);
        return status;
    }
    *out = b;
    return LH_OK;
}

void step_calls_free(step_calls_t *b)
{
    if (b == NULL) return;
    call_free(b->rate);
    call_free(b->after_step);
    call_free(b->before_save);
    mem_free(b);
}

/* The rate goes to the device as FP32, so a finite double that is none there is refused too. Called
 * by every rank for itself; the functions are pure. */
lh_status_t step_calls_rate(step_calls_t *b, uint64_t step, double *out)
{
    lh_assert(b->rate != NULL);
    const call_value_t values[] = {{.u64 = step}, {.u64 = b->steps}};
    call_value_t rate;
    const lh_status_t status = call_run(b->rate, values, &rate);
    if (status != LH_OK) return status;
    if (rate.f64 < 0)
        return fail(LH_INVALID, "%s is %g at step %llu; a rate is not negative", b->where[0],
                    rate.f64, (unsigned long long)step);
    if (!isfinite((float)rate.f64))
        return fail(LH_INVALID, "%s is %g at step %llu; a finite FP32 number is expected",
                    b->where[0], rate.f64, (unsigned long long)step);
    *out = rate.f64;
    return LH_OK;
}

lh_status_t step_calls_rates(step_calls_t *b)
{
    const uint64_t most = 10000000;
    lh_status_t status = LH_OK;
    double rate;
    if (b->steps == 0) return LH_OK;
    const uint64_t last = call_reads(b->rate, RATE_STEP) ? b->steps - 1 : 0;
    const uint64_t apart = 1 + last / most;
    for (uint64_t i = 0; status == LH_OK && i <= last / apart; i++)
        status = step_calls_rate(b, i * apart, &rate);
    return status == LH_OK ? step_calls_rate(b, last, &rate) : status;
}

bool step_calls_read_figures(const step_calls_t *b)
{
    return b->after_step != NULL &&
           (call_reads(b->after_step, STEP_LOSS) || call_reads(b->after_step, STEP_NORM));
}

/* The order of values is that of step_variables. */
lh_status_t step_calls_after(step_calls_t *b, const step_facts_t *f)
{
    if (b->after_step == NULL) return LH_OK;
    const call_value_t values[] = {{.u64 = f->step},
                                   {.f64 = f->loss},
                                   {.f64 = f->learning_rate},
                                   {.f64 = f->norm},
                                   {.u64 = f->tokens}};
    return call_run(b->after_step, values, NULL);
}

lh_status_t step_calls_before_save(step_calls_t *b, uint64_t step, double loss)
{
    if (b->before_save == NULL) return LH_OK;
    const call_value_t values[] = {{.u64 = step}, {.f64 = loss}};
    return call_run(b->before_save, values, NULL);
}

/* ---- learning rates that need no plugin ---- */

/* Rises by equal steps to the peak; the first step already has a rate above zero. */
static double rate_warmed(uint64_t step, double peak, uint64_t warmup)
{
    return peak * (double)(step + 1) / (double)warmup;
}

/* 0 at the end of the warm-up, 1 at `total` and after it. */
static double rate_progress(uint64_t step, uint64_t begin, uint64_t total)
{
    if (step >= total || total <= begin) return 1;
    return (double)(step - begin) / (double)(total - begin);
}

/* Each LH_FUNCTION makes a function and the description by which call_bind checks arguments and
 * help prints them. total and warmup count steps; peak is a rate. */
LH_FUNCTION(f64, constant, (f64, peak))
{
    return peak;
}

/* Half a period of the cosine between warmup and total (Loshchilov and Hutter, SGDR, without
 * restarts). */
LH_FUNCTION(f64, warmup_cosine, (u64, step), (f64, peak), (u64, warmup), (u64, total))
{
    if (step < warmup) return rate_warmed(step, peak, warmup);
    return peak * 0.5 * (1 + cos(3.14159265358979323846 * rate_progress(step, warmup, total)));
}

LH_FUNCTION(f64, warmup_linear, (u64, step), (f64, peak), (u64, warmup), (u64, total))
{
    if (step < warmup) return rate_warmed(step, peak, warmup);
    return peak * (1 - rate_progress(step, warmup, total));
}

/* The decay is linear and counted from the end, so that a run can be made longer by moving total
 * alone. */
LH_FUNCTION(f64, warmup_stable_decay, (u64, step), (f64, peak), (u64, warmup), (u64, decay),
            (u64, total))
{
    if (step < warmup) return rate_warmed(step, peak, warmup);
    const uint64_t begin = total > decay ? total - decay : 0;
    if (step < begin) return peak;
    return peak * (1 - rate_progress(step, begin, total));
}

const lh_function_t rate_functions[] = {
    LH_FUNCTION_ENTRY(constant, "the same rate at every step"),
    LH_FUNCTION_ENTRY(warmup_cosine, "rises for `warmup` steps, then falls along a cosine to 0"),
    LH_FUNCTION_ENTRY(warmup_linear, "rises for `warmup` steps, then falls on a line to 0"),
    LH_FUNCTION_ENTRY(warmup_stable_decay, "rises, stays at the peak, falls over the last `decay`"),
};
const uint32_t rate_function_count = sizeof(rate_functions) / sizeof(rate_functions[0]);
