/* train_run.c - the loop: step, evaluate, save, until the steps are made or somebody says stop; and how
 * a run begins and ends for whoever watches it.
 *
 * What is due between two steps is done in one place, where all ranks have made the same ones and have
 * learnt the same numbers with the last: an evaluation, a save or an end is met by all without an
 * exchange of its own. The price is that whoever asks for one waits for the end of a step, or of two
 * on a device that queues work (train_step.c).
 *
 * The loop holds no state of its own: a resumed run starts with t->step where the checkpoint left
 * it, and from there does what the first run would have done. */
#include <train/train_run.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/processors.h>
#include <base/sys.h>
#include <base/text.h>
#include <data/batches.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <format/safetensors.h>
#include <train/train.h>
#include <train/train_memory.h>
#include <train/train_save.h>
#include <train/train_step.h>
#include <train/trainer.h>

/* Batch after batch into three tensors, one at a time, since N batches may be more than memory
 * holds. The order is that of training. */
static lh_status_t write_batches(safetensors_writer_t *w, batches_t *data,
                                 const batch_skips_t *skips, uint64_t count, uint64_t batch,
                                 const batch_rows_t *rows, uint64_t bytes)
{
    lh_status_t status = LH_OK;
    for (uint64_t i = 0, at = 0; i < count && status == LH_OK; i++, at += batch) {
        at = batch_skips_next(skips, at, batch);
        status = batches_fill(data, at, batch, rows);
        if (status == LH_OK) status = safetensors_write(w, 0, i * bytes, rows->tokens, bytes);
        if (status == LH_OK) status = safetensors_write(w, 1, i * bytes, rows->labels, bytes);
        if (status == LH_OK) status = safetensors_write(w, 2, i * bytes, rows->weights, bytes);
    }
    return status;
}

static lh_status_t write_batches_file(const char *path, batches_t *data, const batch_skips_t *skips,
                                      uint64_t count, uint64_t batch, uint64_t sequence,
                                      const batch_rows_t *rows)
{
    const safetensors_row_t tensors[] = {
        {"tokens", LH_DTYPE_I32, 3, {count, batch, sequence}},
        {"labels", LH_DTYPE_I32, 3, {count, batch, sequence}},
        {"weights", LH_DTYPE_F32, 3, {count, batch, sequence}},
    };
    safetensors_writer_t *w;
    lh_status_t status = safetensors_create(path, tensors, 3, NULL, 0, &w);
    if (status != LH_OK) return status;
    status = write_batches(w, data, skips, count, batch, rows, batch * sequence * 4);
    if (status == LH_OK) return safetensors_finish(w, NULL);
    safetensors_abandon(w);
    return status;
}

/* tokens, labels I32 [count, batch, sequence] and weights F32 of the same shape. An older file is
 * replaced. The file is complete or not there: it is written under another name and renamed at the
 * end. */
static lh_status_t batch_dump(const char *path, batches_t *data, const batch_skips_t *skips,
                              uint64_t count, uint64_t batch, uint64_t sequence,
                              uint64_t max_documents)
{
    text_t temporary = {0};
    text_printf(&temporary, "%s.tmp", path);
    batch_rows_t rows;
    lh_status_t status = session_rows_new(batch * sequence, max_documents + 1, &rows);
    rows.max_documents = max_documents;
    if (status == LH_OK) status = text_status(&temporary);
    if (status == LH_OK) {
        (void)sys()->unlink(temporary.data); /* of a run that was killed here */
        status = write_batches_file(temporary.data, data, skips, count, batch, sequence, &rows);
    }
    if (status == LH_OK && sys_rename(temporary.data, path) != 0)
        status = fail_io(errno, "%s: cannot rename %s to it", path, temporary.data);
    if (status != LH_OK && !temporary.failed) (void)sys()->unlink(temporary.data);
    session_rows_free(&rows);
    text_free(&temporary);
    return status;
}

/* Only rank 0 writes. It reads the global batch and not its share, hence room for the documents of
 * all micro-batches of all ranks. */
static lh_status_t run_dump(trainer_t *t)
{
    const job_train_t *train = &t->job->train;
    if (t->how->dump_batches == 0 || train_agree_rank(&t->agree) > 0) return LH_OK;

    char *path = path_join(t->job->pipeline.folder, "batches.safetensors");
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = batch_dump(
        path, t->data, &t->skips, t->how->dump_batches, train->batch, train->sequence,
        t->batch[0].max_documents * t->layout.share.micro_batches * train_agree_size(&t->agree));
    if (status == LH_OK)
        log_line(LH_LOG_INFO, "first %llu batches written to %s",
                 (unsigned long long)t->how->dump_batches, path);
    mem_free(path);
    return status;
}

/* A run of the pass program is a round of the schedule. */
static train_programs_t programs_of(const trainer_t *t)
{
    return (train_programs_t){.session = t->session,
                              .pass = t->programs.train,
                              .update = t->programs.update,
                              .rounds = t->programs.schedule->rounds,
                              .preference = t->programs.preference,
                              .micro_batches = t->layout.share.micro_batches};
}

/* What carries the links of this rank, for the record of the run. */
static void name_transports(const trainer_t *t, run_start_t *start)
{
    if (t->comm.comm == NULL || comm_is_planned(t->comm.comm)) return;
    for (uint32_t s = LH_LINK_NODE; s < STEP_SCOPES; s++) {
        link_class_t class;
        links_class(comm_links(t->comm.comm), s, &class);
        start->transports[s] = class.transport;
        start->security[s] = class.security;
        start->cards[s] = class.card;
    }
}

/* Where a container's quota bounds them, as a machine of many processors that trains on two would
 * surprise. */
static void tell_processors(void)
{
    processors_t here;
    text_t text = {0};
    processors_here(&here);
    if (processors_tell(&here, &text) && !text.failed)
        log_line(LH_LOG_INFO, "threads are counted by %s", text.data);
    text_free(&text);
}

/* A launcher starts ranks again, and a run of one rank that stands alone has none. */
static void tell_restart(const trainer_t *t)
{
    const uint64_t restarts = t->job->launch.restarts;
    if (restarts > 0 && t->how->world == NULL)
        log_line(LH_LOG_WARN,
                 "[launch] restart = %llu: one rank has no launcher that would start it again",
                 (unsigned long long)restarts);
}

static bool evaluation_is_due(const trainer_t *t)
{
    if (t->programs.evaluation == NULL) return false;
    return t->step % t->job->train.evaluate_every == 0 || t->step == t->job->train.steps;
}

/* Of the start weights, or what the run before was ended in front of. */
static bool begins_with_evaluation(const trainer_t *t)
{
    return (t->step == 0 || t->unevaluated) && evaluation_is_due(t);
}

/* The log of a fresh run begins anew first: a job that is started again in the same folder would
 * otherwise keep lines of a run that is gone. */
static void tell_start(trainer_t *t, memory_report_t *memory)
{
    const job_t *job = t->job;
    if (t->first_step == 0 && t->how->restarts == 0) log_begin_anew();
    program_cost_t pass, update;
    train_prediction_t prediction = {0};
    const train_programs_t programs = programs_of(t);
    if (t->how->predict != NULL) t->how->predict(&programs, &prediction);
    program_cost(t->programs.train, &pass);
    program_cost(t->programs.update, &update);
    double scored = 0;
    for (uint32_t i = 0; t->programs.preference != NULL && i < 2; i++) {
        program_cost_t score;
        program_cost(preference_program(t->programs.preference, i), &score);
        scored += score.flops * (double)t->layout.share.micro_batches;
    }
    trainer_planned_memory(t, memory);
    uint32_t link_count = 0;
    const probe_pair_t *links = t->comm.comm == NULL
                                    ? NULL
                                    : links_pairs(comm_links(t->comm.comm), &link_count);
    run_start_t start = {.name = job->pipeline.name,
                         .folder = job->pipeline.folder,
                         .model = job->model.plugin,
                         .optimizer = job->optimizer.plugin,
                         .rule = job->optimizer.rule,
                         .device = job->device.plugin,
                         .device_name = engine_properties(t->session->engine)->name,
                         .precision = job->train.precision == PRECISION_BF16 ? "bf16" : "f32",
                         .steps = job->train.steps,
                         .pairs = t->programs.preference != NULL,
                         .ranks = train_agree_size(&t->agree),
                         .sites = t->how->world == NULL ? 1 : t->how->world->row.sites,
                         .first_step = t->first_step,
                         .evaluates = begins_with_evaluation(t),
                         .parameters = weights_parameters(t->session->weights)->elements,
                         .tokens_per_step = job->train.batch * job->train.sequence,
                         .sequence = job->train.sequence,
                         .batch = job->train.batch,
                         .micro_batch = job->train.micro_batch,
                         .flops_per_step = pass.flops * t->programs.schedule->rounds +
                                           update.flops + scored,
                         .peak_flops = prediction.peak_flops,
                         .bytes_per_second = prediction.bytes_per_second,
                         .predicted_step_s = prediction.step_s,
                         .train_tokens = batches_samples(t->data) * job->train.sequence,
                         .memory = memory,
                         .links = links,
                         .link_count = link_count,
                         .save_every = job->checkpoint.every,
                         .restarts = t->how->restarts,
                         .memory_step = t->memory.rescued == t->first_step ? t->first_step : 0,
                         .restart_reason = t->how->restart_reason,
                         .control = t->how->control,
                         .world = t->how->world};
    name_transports(t, &start);
    if (t->session->transfers != NULL) start.values_way = transfers_way(t->session->transfers);
    if (t->how->observer != NULL) t->how->observer->begin(t->how->observer, &start);
    session_plan_tell(t->session, train_agree_rank(&t->agree));
    tell_processors();
    tell_restart(t);
    if (!job->train.deterministic)
        log_line(LH_LOG_INFO, "deterministic = no: two runs may differ in their bits");
}

/* A run whose last steps were refused has failed for whoever watches, though every call went well and
 * the caller gets LH_OK with its outcome. The sentence is written over the one of no failure. */
static lh_status_t run_told_status(const train_result_t *out, lh_status_t status, char *reason,
                                   size_t bytes)
{
    if (status != LH_OK || (out->outcome != TRAIN_NOT_FINITE && out->outcome != TRAIN_REFUSED))
        return status;
    (void)snprintf(reason, bytes, "the last %llu steps were not finite and not applied",
                   (unsigned long long)out->refused);
    return LH_INVALID;
}

/* The sentence is a copy: who watches may fail by itself. Called whether or not the run succeeded,
 * but only if it was opened: an observer that heard no begin hears no end. */
static void run_tell_end(trainer_t *t, lh_status_t status, const char *reason, uint64_t since)
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
                           .memory = t->ranks_memory,
                           .memory_count = t->ranks_memory == NULL ? 0
                                                                   : train_agree_size(&t->agree)};
    if (t->how->observer != NULL) t->how->observer->end(t->how->observer, &end);
}

/* ---- the loop ---- */

/* Who sent little in steps may have much to send now, and no step follows by which the others know. */
static void share_evenly(const trainer_t *t)
{
    if (t->comm.comm != NULL) comm_even(t->comm.comm);
}

/* All ranks take part, as runs of the split are shared out. Called before step 1 too, so that
 * curves begin with the start weights; on a resume only where the run before was asked to end behind a step
 * with an evaluation, which it has left out as an end must not take long. */
static lh_status_t run_evaluate(trainer_t *t)
{
    if (!evaluation_is_due(t)) return LH_OK;
    evaluation_sum_t sum;
    trainer_doing(t, t->step, "evaluation");
    share_evenly(t);
    uint64_t clock = sys()->now_ns();
    const uint64_t since = clock;
    const lh_status_t status = evaluation_split(t->programs.evaluation, t->valid,
                                                t->job->train.evaluate_batches, &sum);
    if (status != LH_OK) return status;
    trainer_clock(t, PART_EVALUATE, &clock);
    t->valid_loss = sum.tokens == 0 ? (double)NAN : sum.nll / (double)sum.tokens;
    t->valid_step = t->step;
    const evaluation_report_t report = {.step = t->step,
                                        .loss = t->valid_loss,
                                        .pairs = t->programs.preference != NULL,
                                        .tokens = sum.tokens,
                                        .seconds = (double)(clock - since) * 1e-9};
    if (t->how->observer != NULL) t->how->observer->evaluated(t->how->observer, &report);
    return LH_OK;
}

/* Polls the save under way even where none is due: a disk that was slow is heard of at the next
 * step and not at the next save. */
static lh_status_t run_save(trainer_t *t, bool last)
{
    const uint64_t every = t->job->checkpoint.every;
    uint64_t clock = sys()->now_ns();
    trainer_poll_save(t);
    const bool whole = last || t->asked_step == t->step || (every != 0 && t->step % every == 0);
    if (!whole && !train_memory_due(t, t->step)) return LH_OK;
    share_evenly(t);
    const lh_status_t status = whole ? trainer_save(t, last) : trainer_save_memory(t);
    trainer_clock(t, PART_SAVE, &clock);
    return status;
}

/* The step that is measured kernel by kernel, for the report; 0: none. Only a rank with an observer
 * or a profiler measures, which is rank 0. */
static uint64_t profiled_step(const trainer_t *t)
{
    const bool wanted = t->how->observer != NULL || t->how->profiler != NULL;
    return wanted && engine_can_profile(t->session->engine) ? t->first_step + PROFILED_STEP : 0;
}

/* Called twice for each step, with begin and without; both do nothing except around the profiled
 * one. */
static lh_status_t run_profile(trainer_t *t, bool begin)
{
    if (t->step + (begin ? 1u : 0u) != profiled_step(t)) return LH_OK;
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

/* What is being saved was whole before the step that failed, and is kept where that failed for
 * another reason than the device. By one rank: several keep what all of them wrote, and the others
 * are ending. The step's failure is what is told. */
static lh_status_t save_keep(trainer_t *t, lh_status_t failed)
{
    enum { WHY_BYTES = 2048 };
    char why[WHY_BYTES];
    if (train_agree_size(&t->agree) > 1) return failed;
    (void)snprintf(why, sizeof(why), "%s", fail_reason());
    while (t->taking && trainer_take(t) == LH_OK)
        continue;
    return why[0] == '\0' ? failed : fail(failed, "%s", why);
}

/* Leaves the loop for one of four reasons: the steps are made, loss or gradients were not finite in
 * too many steps in a row, somebody asked for an end, or a failure. The first and third end with a
 * save; the others do not. */
static lh_status_t run_loop(trainer_t *t, train_result_t *out)
{
    const job_train_t *train = &t->job->train;
    lh_status_t status = begins_with_evaluation(t) ? run_evaluate(t) : LH_OK;
    t->begun_ns = sys()->now_ns(); /* the evaluation of the start weights is no part of a step */
    memset(t->part_ns, 0, sizeof(t->part_ns));

    while (status == LH_OK && t->step < train->steps) {
        bool applied = true;
        status = run_profile(t, true);
        if (status == LH_OK && t->queued == t->step) status = train_step_queue(t);
        if (status == LH_OK) status = train_step_ahead(t);
        if (status == LH_OK) status = train_step_finish(t, &applied);
        if (status == LH_OK) status = run_profile(t, false);
        if (status != LH_OK && t->taking) status = save_keep(t, status);
        if (status != LH_OK) break;

        t->not_finite = applied ? 0 : t->not_finite + 1;
        if (train->not_finite_limit > 0 && t->not_finite >= train->not_finite_limit) {
            out->outcome = TRAIN_NOT_FINITE;
            break;
        }
        if (t->queued > t->step) { /* nothing is due between the two, but a save may have ended */
            trainer_poll_save(t);
            continue;
        }
        if (trainer_stop_asked(t) && t->step < train->steps) {
            out->outcome = TRAIN_TERMINATED;
            break;
        }
        status = run_evaluate(t);
        if (status == LH_OK) status = run_save(t, false);
    }
    if (status == LH_OK) share_evenly(t);
    /* A run that ends as not finite saves nothing more: the last checkpoint stays the newest. */
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
    if (status == LH_OK) status = sys_stop_watch();
    const bool opened = status == LH_OK;
    if (opened) {
        if (how->control != NULL) control_heeds(how->control);
        tell_start(&t, &memory);
        status = run_loop(&t, out);
        sys_stop_unwatch();
        if (out->outcome == TRAIN_DONE && t.not_finite > 0) out->outcome = TRAIN_REFUSED;
        out->steps = t.step;
        out->refused = t.not_finite;
        out->leaving = out->outcome == TRAIN_TERMINATED && t.leaving;
        out->saved = t.saved_step == t.step;
        out->loss = t.loss;
        out->valid_loss = t.valid_loss;
    }
    /* Kept before others fail too: what ended the run is what the program says at its end. Closing
     * makes calls that may fail and put another sentence in the place of this one. */
    char reason[2048];
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    if (opened) {
        const lh_status_t told = run_told_status(out, status, reason, sizeof(reason));
        run_tell_end(&t, told, reason, since);
    }
    t.failed = status != LH_OK;
    /* Before links end, so that others hear the reason and not that a link broke. */
    if (t.failed && t.comm.comm != NULL)
        control_fail(how->control, how->world->row.rank, status, reason);
    trainer_close(&t);
    if (status == LH_OK) return LH_OK;
    return fail(status, "%s", reason);
}
