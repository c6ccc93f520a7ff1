/* train_run.c - the loop: step, evaluate, save, until the steps are made or somebody says stop. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/stop.h>
#include <base/sys.h>
#include <base/text.h>
#include <data/batches.h>
#include <engine/engine_profile.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <format/safetensors.h>
#include <train/train.h>
#include <train/trainer.h>

/* Streams batch after batch into three tensors. */
static lh_status_t write_batches(safetensors_writer_t *w, batches_t *data, uint64_t count,
                                 uint64_t batch, const batch_rows_t *rows, uint64_t bytes)
{
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; i < count && status == LH_OK; i++) {
        status = batches_fill(data, i * batch, batch, rows);
        if (status == LH_OK) status = safetensors_write(w, 0, i * bytes, rows->tokens, bytes);
        if (status == LH_OK) status = safetensors_write(w, 1, i * bytes, rows->labels, bytes);
        if (status == LH_OK) status = safetensors_write(w, 2, i * bytes, rows->weights, bytes);
    }
    return status;
}

static lh_status_t write_file(const char *path, batches_t *data, uint64_t count, uint64_t batch,
                              uint64_t sequence, const batch_rows_t *rows)
{
    const safetensors_row_t tensors[] = {
        {"tokens", LH_DTYPE_I32, 3, {count, batch, sequence}},
        {"labels", LH_DTYPE_I32, 3, {count, batch, sequence}},
        {"weights", LH_DTYPE_F32, 3, {count, batch, sequence}},
    };
    safetensors_writer_t *w;
    lh_status_t status = safetensors_create(path, tensors, 3, NULL, 0, &w);
    if (status != LH_OK) return status;
    status = write_batches(w, data, count, batch, rows, batch * sequence * 4);
    if (status == LH_OK) return safetensors_finish(w, NULL);
    safetensors_abandon(w);
    return status;
}

/* tokens, labels I32 [count, batch, sequence] and weights F32 of the same shape. An older file is
 * replaced. */
static lh_status_t batch_dump(const char *path, batches_t *data, uint64_t count, uint64_t batch,
                              uint64_t sequence, uint64_t max_documents)
{
    text_t temporary = {0};
    text_printf(&temporary, "%s.tmp", path);
    batch_rows_t rows = {.tokens = mem_array(batch * sequence, 4),
                         .labels = mem_array(batch * sequence, 4),
                         .positions = mem_array(batch * sequence, 4),
                         .weights = mem_array(batch * sequence, 4),
                         .starts = mem_array(max_documents + 1, 4),
                         .max_documents = max_documents};
    lh_status_t status = text_status(&temporary);
    if (rows.tokens == NULL || rows.labels == NULL || rows.positions == NULL ||
        rows.weights == NULL || rows.starts == NULL)
        status = LH_NO_MEMORY;
    if (status == LH_OK) {
        (void)sys()->unlink(temporary.data); /* of a run that was killed here */
        status = write_file(temporary.data, data, count, batch, sequence, &rows);
    }
    if (status == LH_OK && sys_rename(temporary.data, path) != 0)
        status = fail_io(errno, "%s: cannot rename %s to it", path, temporary.data);
    if (status != LH_OK && !temporary.failed) (void)sys()->unlink(temporary.data);
    mem_free(rows.starts);
    mem_free(rows.weights);
    mem_free(rows.positions);
    mem_free(rows.labels);
    mem_free(rows.tokens);
    text_free(&temporary);
    return status;
}

enum { PROFILED_STEP = 5 }; /* by then pages are touched and libraries warm */

static lh_status_t run_dump(trainer_t *t)
{
    const job_train_t *train = &t->job->train;
    if (t->how->dump_batches == 0 || agree_rank(&t->agree) > 0) return LH_OK;

    char *path = path_join(t->job->pipeline.folder, "batches.safetensors");
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = batch_dump(
        path, t->data, t->how->dump_batches, train->batch, train->sequence,
        t->batch[0].max_documents * t->layout.share.passes * agree_size(&t->agree));
    if (status == LH_OK)
        log_line(LH_LOG_INFO, "first %llu batches written to %s",
                 (unsigned long long)t->how->dump_batches, path);
    mem_free(path);
    return status;
}

static train_programs_t programs_of(const trainer_t *t)
{
    return (train_programs_t){t->session, t->programs.train, t->programs.update,
                              t->programs.schedule->rounds};
}

static void tell_start(trainer_t *t, memory_report_t *memory)
{
    const job_t *job = t->job;
    if (t->first_step == 0) log_begin_anew();
    program_cost_t pass, update;
    train_prediction_t prediction = {0};
    const train_programs_t programs = programs_of(t);
    if (t->how->predict != NULL) t->how->predict(&programs, &prediction);
    program_cost(t->programs.train, &pass);
    program_cost(t->programs.update, &update);
    engine_memory(t->session->engine, memory);
    uint32_t link_count = 0;
    const probe_pair_t *links = t->comm.comm == NULL
                                    ? NULL
                                    : links_pairs(comm_links(t->comm.comm), &link_count);
    const run_start_t start = {.name = job->pipeline.name,
                               .folder = job->pipeline.folder,
                               .model = job->model.plugin,
                               .optimizer = job->optimizer.plugin,
                               .rule = job->optimizer.rule,
                               .device = job->device.plugin,
                               .device_name = engine_properties(t->session->engine)->name,
                               .precision = job->train.precision == PRECISION_BF16 ? "bf16" : "f32",
                               .steps = job->train.steps,
                               .ranks = agree_size(&t->agree),
                               .sites = t->how->world == NULL ? 1 : t->how->world->row.sites,
                               .first_step = t->first_step,
                               .parameters = weights_parameters(t->session->weights)->elements,
                               .tokens_per_step = job->train.batch * job->train.sequence,
                               .sequence = job->train.sequence,
                               .batch = job->train.batch,
                               .micro_batch = job->train.micro_batch,
                               .flops_per_step = pass.flops * t->programs.schedule->rounds +
                                                 update.flops,
                               .peak_flops = prediction.peak_flops,
                               .bytes_per_second = prediction.bytes_per_second,
                               .predicted_step_s = prediction.step_s,
                               .train_tokens = batches_samples(t->data) * job->train.sequence,
                               .memory = memory,
                               .links = links,
                               .link_count = link_count};
    if (t->how->observer != NULL) t->how->observer->begin(t->how->observer, &start);
}

/* The sentence is a copy: who watches may fail by itself. */
static void tell_end(trainer_t *t, lh_status_t status, const char *reason, uint64_t since)
{
    struct rusage usage = {0};
    (void)getrusage(RUSAGE_SELF, &usage);
    const run_end_t end = {.steps = t->step,
                           .seconds = (double)(sys()->now_ns() - since) * 1e-9,
                           .status = status,
                           .reason = status == LH_OK ? NULL : reason,
                           .profile = t->profile,
                           .profile_count = t->profile_count,
                           .frames = t->frames,
                           .frame_count = t->frame_count,
                           .resident_bytes = (uint64_t)usage.ru_maxrss * 1024,
                           .memory = t->memory,
                           .memory_count = t->memory == NULL ? 0 : agree_size(&t->agree)};
    if (t->how->observer != NULL) t->how->observer->end(t->how->observer, &end);
}

void trainer_doing(const trainer_t *t, uint64_t step, const char *text)
{
    if (t->how->control != NULL) control_progress(t->how->control, step, text);
}

static lh_status_t run_evaluate(trainer_t *t)
{
    const uint64_t every = t->job->train.evaluate_every;
    const bool last = t->step == t->job->train.steps;
    if (t->programs.evaluation == NULL || (t->step % every != 0 && !last)) return LH_OK;

    evaluation_sum_t sum;
    trainer_doing(t, t->step, "evaluation");
    uint64_t clock = sys()->now_ns();
    const uint64_t since = clock;
    const lh_status_t status = evaluation_split(t->programs.evaluation, t->valid,
                                                t->job->train.evaluate_batches, &sum);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_EVALUATE, &clock);
    t->valid_loss = sum.tokens == 0 ? (double)NAN : sum.nll / (double)sum.tokens;
    const evaluation_report_t report = {.step = t->step,
                                        .loss = t->valid_loss,
                                        .tokens = sum.tokens,
                                        .seconds = (double)(clock - since) * 1e-9};
    if (t->how->observer != NULL) t->how->observer->evaluated(t->how->observer, &report);
    return LH_OK;
}

static lh_status_t run_save(trainer_t *t, bool last)
{
    const uint64_t every = t->job->checkpoint.every;
    uint64_t clock = sys()->now_ns();
    trainer_poll_save(t);
    if (!last && (every == 0 || t->step % every != 0)) return LH_OK;
    const lh_status_t status = trainer_save(t, last);
    trainer_clock(t, PART_SAVE, &clock);
    return status;
}

/* One step is measured kernel by kernel, for the report, where the device can tell. */
static lh_status_t run_profile(trainer_t *t, bool begin)
{
    const uint64_t chosen = t->first_step + PROFILED_STEP;
    if ((t->how->observer == NULL && t->how->profiler == NULL) ||
        t->step + (begin ? 1u : 0u) != chosen || !engine_can_profile(t->session->engine))
        return LH_OK;
    lh_status_t status = LH_OK;
    if (!begin) status = engine_profile_rows(t->session->engine, &t->profile, &t->profile_count);
    if (status == LH_OK && !begin)
        status = engine_profile_frames(t->session->engine, &t->frames, &t->frame_count);
    if (status == LH_OK && !begin && t->how->profiler != NULL) {
        const train_programs_t programs = programs_of(t);
        t->how->profiler->profiled(t->how->profiler, &programs, t->profile, t->profile_count);
    }
    if (status == LH_OK) status = engine_profile(t->session->engine, begin);
    return status;
}

static lh_status_t run_loop(trainer_t *t, train_result_t *out)
{
    const job_train_t *train = &t->job->train;
    const bool alone = agree_size(&t->agree) == 1;
    lh_status_t status = t->step == 0 ? run_evaluate(t) : LH_OK;
    t->begun_ns = sys()->now_ns(); /* the evaluation of the start weights is no part of a step */
    memset(t->part_ns, 0, sizeof(t->part_ns));

    while (status == LH_OK && t->step < train->steps) {
        bool applied = true;
        status = run_profile(t, true);
        if (status == LH_OK) status = trainer_step(t, &applied);
        if (status == LH_OK) status = run_profile(t, false);
        if (status != LH_OK) break;

        t->not_finite = applied ? 0 : t->not_finite + 1;
        if (train->not_finite_limit > 0 && t->not_finite >= train->not_finite_limit) {
            out->outcome = TRAIN_NOT_FINITE;
            break;
        }
        if ((t->stop || (alone && stop_requested())) && t->step < train->steps) {
            out->outcome = TRAIN_TERMINATED;
            break;
        }
        status = run_evaluate(t);
        if (status == LH_OK) status = run_save(t, false);
    }
    /* Weights that stopped being finite are not worth keeping; the last good checkpoint is. */
    if (status == LH_OK && out->outcome != TRAIN_NOT_FINITE) status = run_save(t, true);
    if (status == LH_OK) status = trainer_finish_save(t);
    if (status == LH_OK && t->session->transfers != NULL)
        status = transfers_finish(t->session->transfers);
    return status == LH_OK ? trainer_memory(t) : status;
}

lh_status_t train_run(const train_how_t *how, train_result_t *out)
{
    trainer_t t;
    memory_report_t memory;
    const uint64_t since = sys()->now_ns();

    (void)signal(SIGPIPE, SIG_IGN); /* whoever reads the log may go */
    *out = (train_result_t){.outcome = TRAIN_DONE, .valid_loss = NAN};
    lh_status_t status = trainer_open(&t, how);
    if (status == LH_OK) status = run_dump(&t);
    if (status == LH_OK) status = stop_watch();
    const bool opened = status == LH_OK;
    if (opened) {
        tell_start(&t, &memory);
        status = run_loop(&t, out);
        stop_unwatch();
        if (out->outcome == TRAIN_DONE && t.not_finite > 0) out->outcome = TRAIN_REFUSED;
        out->steps = t.step;
        out->refused = t.not_finite;
        out->loss = t.loss;
        out->valid_loss = t.valid_loss;
    }
    /* Kept before others fail too: what ended the run is what the program says at its end. */
    char reason[2048];
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    if (opened) tell_end(&t, status, reason, since);
    t.failed = status != LH_OK;
    /* Before links end, so that others hear the reason and not that a link broke. */
    if (t.failed && t.comm.comm != NULL)
        control_fail(how->control, how->world->row.rank, status, reason);
    trainer_close(&t);
    if (status == LH_OK) return LH_OK;
    return fail(status, "%s", reason);
}
