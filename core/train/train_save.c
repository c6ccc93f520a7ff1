/* train_save.c - hands the weights and states to the writer and hears what became of them. */
#include <train/trainer.h>

#include <errno.h>
#include <stdio.h>

#include <base/log.h>
#include <base/sys.h>
#include <graph/finish.h>

static void tell(trainer_t *t, const writer_result_t *r, double stall_s)
{
    char path[512], name[32];
    (void)snprintf(name, sizeof(name), "step-%012llu", (unsigned long long)r->step);
    (void)snprintf(path, sizeof(path), "%s/%s", t->job->checkpoint.folder, name);
    const save_report_t report = {.step = r->step,
                                  .path = path,
                                  .stall_s = stall_s,
                                  .committed = r->status == LH_OK,
                                  .reason = r->status == LH_OK ? NULL : r->reason};
    if (t->how->observer != NULL)
        t->how->observer->saved(t->how->observer, &report);
    else if (report.reason != NULL && agree_rank(&t->agree) == 0)
        log_line(LH_LOG_WARN, "step %llu was not saved: %s", (unsigned long long)r->step,
                 r->reason);
}

void trainer_poll_save(trainer_t *t)
{
    writer_result_t result;
    if (t->writer == NULL || writer_poll(t->writer, &result) != LH_OK) return;
    t->waited_ns = 0;
    tell(t, &result, 0);
    /* The last step is tried once more, and then its failure is the run's. */
    if (result.status != LH_OK && t->saved_step == result.step) t->saved_step = UINT64_MAX;
}

lh_status_t trainer_finish_save(trainer_t *t)
{
    writer_result_t result;
    if (t->writer == NULL || !writer_busy(t->writer)) return LH_OK;
    trainer_doing(t, t->step, "the last save");
    const lh_status_t status = writer_wait(t->writer, &result);
    if (status != LH_OK) return status;
    tell(t, &result, 0);
    errno = 0; /* the reason came from the helper and is complete */
    if (result.status != LH_OK) return fail(result.status, "%s", result.reason);
    return LH_OK;
}

/* LH_AGAIN: the save before is still under way after all patience. A save has that once: a disk
 * that hangs must not stop training again at every step that wants to save. */
static lh_status_t begin(trainer_t *t, bool last)
{
    const uint64_t most = t->job->checkpoint.patience_ns, since = sys()->now_ns();
    uint64_t left = t->waited_ns > most ? 0 : most - t->waited_ns;
    if (last) left = UINT64_MAX;
    const struct timespec nap = {.tv_nsec = 1000000};
    lh_status_t status;
    trainer_poll_save(t);
    while ((status = writer_begin(t->writer)) == LH_AGAIN && sys()->now_ns() - since < left) {
        (void)nanosleep(&nap, NULL);
        trainer_poll_save(t);
    }
    if (status == LH_AGAIN) t->waited_ns += sys()->now_ns() - since;
    /* The last save of one rank takes memory bit by bit, as it gives back what steps needed. */
    if (status == LH_OK && (!last || t->comm.comm != NULL)) status = writer_reserve(t->writer);
    return status;
}

/* What the disk or the writer does to a save is told, and training goes on; the last save of a run
 * is what the run is for. */
static lh_status_t not_saved(trainer_t *t, lh_status_t status, bool last, uint64_t since)
{
    errno = 0; /* the sentences are complete */
    if (status == LH_AGAIN) status = fail(LH_TIMED_OUT, "the save before is still being written");
    if (status == LH_OK) status = fail(LH_IO, "another rank cannot save");
    if (last) return status;
    writer_result_t failed = {.status = status, .step = t->step};
    (void)snprintf(failed.reason, sizeof(failed.reason), "%s", fail_reason());
    tell(t, &failed, (double)(sys()->now_ns() - since) * 1e-9);
    return LH_OK;
}

static checkpoint_meta_t describe(trainer_t *t)
{
    return (checkpoint_meta_t){.run = t->run,
                               .config = t->config,
                               .model = t->identity.data,
                               .variants = t->variants.data,
                               .device = t->devices.data,
                               .step = t->step,
                               .seed = t->job->train.seed,
                               .cursor = t->step * t->job->train.batch,
                               .tokens = t->tokens,
                               .plugins = t->plugins,
                               .plugin_count = t->plugin_count};
}

/* What one rank skips or repeats, all do: *skip where one of them cannot save now, *saved where
 * rank 0 has this step already. */
static lh_status_t agree_save(trainer_t *t, bool cannot, bool *skip, bool *saved)
{
    double values[2] = {cannot, 0};
    if (agree_rank(&t->agree) == 0) values[1] = t->saved_step == t->step;
    const lh_status_t status = agree_sum(&t->agree, values, 2);
    *skip = values[0] > 0;
    *saved = values[1] > 0;
    return status;
}

/* What the run does not need any more makes room for its last snapshot. Other ranks may still be
 * reading what they share. */
static lh_status_t take_snapshot(trainer_t *t, bool last)
{
    if (!last || t->comm.comm != NULL) return snapshot_take(t->snapshot, t->writer);
    lh_status_t status = trainer_memory(t); /* as long as there is something to measure */
    if (status == LH_OK) status = engine_finish(t->session->engine);
    return status == LH_OK ? snapshot_take_last(t->snapshot, t->writer) : status;
}

lh_status_t trainer_save(trainer_t *t, bool last)
{
    const bool alone = agree_size(&t->agree) == 1;
    if (alone && t->saved_step == t->step) return LH_OK;
    const uint64_t since = sys()->now_ns();
    trainer_doing(t, t->step, "a save");
    lh_status_t status = begin(t, last);
    bool skip, saved;
    const lh_status_t agreed = agree_save(t, status != LH_OK, &skip, &saved);
    if (agreed != LH_OK) return agreed;
    if (saved) return LH_OK;
    if (skip) return not_saved(t, status, last, since);
    status = bindings_before_save(t->bindings, t->step, t->loss);
    if (status == LH_OK) status = take_snapshot(t, last);
    if (status != LH_OK) return status;
    const checkpoint_meta_t meta = describe(t);
    status = writer_submit(t->writer, &meta);
    if (status != LH_OK) return not_saved(t, status, last, since);
    t->saved_step = t->step;
    return LH_OK;
}
