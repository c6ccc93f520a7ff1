/* train_save.c - hands the weights and states to the writer and hears what became of them.
 *
 * Two things are kept apart. A rank's own failure to save (disk full, writer lost) is news that all
 * ranks must share, since a checkpoint of which one part is missing is none: it travels as a number
 * and ends that save on all. A failure of the exchange itself ends the run.
 *
 * A save of several ranks has two phases: each rank writes its part (SAVE_WRITES), and once all
 * have said so rank 0 commits the whole (SAVE_COMMITS). Between the two nothing of it can be
 * opened, and a crash leaves the checkpoint before.
 *
 * A snapshot that stays in memory goes the same way: each rank's saver describes it
 * (SAVE_DESCRIBES), and where there are several machines it then travels to another one
 * (SAVE_COPIES). It is whole once all have said so, and never before the next may be begun. Where sites
 * have checkpoints of their own, a save goes through the same two phases first, so that every site has
 * the images of all ranks; then each writes and commits all of it. */
#include <train/train_save.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <engine/engine.h>
#include <engine/weights.h>
#include <train/train_memory.h>
#include <train/trainer.h>

/* A save of several ranks: all write; once all have, rank 0 commits. Alone, writing is all. Of a
 * snapshot in memory: all describe it; once all have, it travels, where it does. */
enum { SAVE_NONE, SAVE_WRITES, SAVE_COMMITS, SAVE_DESCRIBES, SAVE_COPIES };

static bool save_in_memory(const trainer_t *t)
{
    return !t->save_to_disk && (t->save_phase == SAVE_DESCRIBES || t->save_phase == SAVE_COPIES);
}

/* The observer is told. A rank without one says nothing, but for rank 0, which warns of a failure.
 */
static void save_tell(trainer_t *t, const writer_result_t *r, bool memory, double stall_s)
{
    char path[512], name[32];
    (void)snprintf(name, sizeof(name), "step-%012llu", (unsigned long long)r->step);
    (void)snprintf(path, sizeof(path), "%s/%s", t->job->checkpoint.folder, name);
    const save_report_t report = {.step = r->step,
                                  .path = path,
                                  .memory = memory,
                                  .stall_s = stall_s,
                                  .committed = r->status == LH_OK,
                                  .has_room = r->has_room,
                                  .free_bytes = r->free_bytes,
                                  .reason = r->status == LH_OK ? NULL : r->reason};
    if (t->how->observer != NULL)
        t->how->observer->saved(t->how->observer, &report);
    else if (report.reason != NULL && train_agree_rank(&t->agree) == 0)
        log_line(LH_LOG_WARN, "step %llu was not %s: %s", (unsigned long long)r->step,
                 memory ? "kept in memory" : "saved", r->reason);
}

/* One number of a sum over ranks tells two counts: its rest below SAVE_FAILED is how many are still
 * writing, its multiples how many have failed. Exact for as many ranks as this. */
#define SAVE_FAILED ((double)(1 << 20))

/* The save is over on all ranks, for better or worse; another may begin. */
static void save_ended(trainer_t *t, const writer_result_t *result)
{
    const bool memory = save_in_memory(t);
    t->waited_ns = 0;
    t->save_phase = SAVE_NONE;
    save_tell(t, result, memory, 0);
    /* Forgotten, so that the last save of the run may be made of this step again. */
    if (!memory && result->status != LH_OK && t->saved_step == result->step)
        t->saved_step = UINT64_MAX;
    /* Where machines wait that were lost, all go on from here with them. The last save is the end. */
    if (!memory && result->status == LH_OK && t->how->control != NULL && !t->stop &&
        t->step < t->job->train.steps)
        control_take_in(t->how->control);
}

static bool save_alone(const trainer_t *t)
{
    return train_agree_size(&t->agree) == 1;
}

void trainer_poll_save(trainer_t *t)
{
    writer_result_t result;
    if (t->writer == NULL || !save_alone(t) || writer_poll(t->writer, &result) != LH_OK) return;
    t->save_result = result;
    save_ended(t, &result);
}

/* Called once for each exchange. It polls the writer as a side effect and keeps the answer in
 * t->save_result, as the writer tells it only once. In the second phase only rank 0 has work, so
 * the others have nothing to say. */
double trainer_save_word(trainer_t *t)
{
    if (save_alone(t) || t->save_phase == SAVE_NONE) return 0;
    if (t->save_phase == SAVE_COMMITS && !writer_leads(t->writer)) return 0;
    /* A failure is one of the links, and told where they are used next. */
    if (t->save_phase == SAVE_COPIES) return train_memory_test(t) == LH_OK ? 0 : 1;
    if (!t->save_ended) t->save_ended = writer_poll(t->writer, &t->save_result) == LH_OK;
    if (!t->save_ended) return 1;
    return t->save_result.status == LH_OK ? 0 : SAVE_FAILED;
}

/* All ranks are through with a phase: the next one begins, or the save is whole, which it returns. */
static bool save_moves_on(trainer_t *t)
{
    switch (t->save_phase) {
    case SAVE_DESCRIBES:
        t->save_phase = SAVE_COPIES;
        if (train_memory_send(t, t->memory_slot)) return false;
        return save_moves_on(t); /* there is nobody to send it to */
    case SAVE_COPIES:
        if (!t->save_to_disk) return true;
        t->save_phase = SAVE_WRITES;
        t->save_ended = false;
        writer_write(t->writer);
        return false;
    case SAVE_WRITES:
        t->save_phase = SAVE_COMMITS;
        t->save_ended = false;
        if (writer_leads(t->writer)) writer_commit(t->writer);
        return false;
    default: return true;
    }
}

/* words is the sum that all ranks have, so all take the same branch. The order of the tests is that
 * of the phases: somebody still writes; all have written, so rank 0 commits; it is committed; or
 * somebody failed, and then one more exchange tells all why. */
lh_status_t trainer_save_agreed(trainer_t *t, double words)
{
    if (save_alone(t) || t->save_phase == SAVE_NONE) return LH_OK;
    if (words - SAVE_FAILED * floor(words / SAVE_FAILED) > 0) return LH_OK; /* some are at it */
    const bool committed = words == 0 && save_moves_on(t);
    if (words == 0 && !committed) return LH_OK;
    writer_result_t *r = &t->save_result;
    /* Those that did not fail take over the sentence of the first that did. */
    if (!committed) {
        if (t->save_phase == SAVE_COMMITS && !writer_leads(t->writer)) r->status = LH_OK;
        const lh_status_t status = train_agree_failure(&t->agree, &r->status, r->reason,
                                                       sizeof(r->reason));
        if (status != LH_OK) return status;
    }
    writer_settle(t->writer, committed);
    save_ended(t, r);
    return LH_OK;
}

static void save_nap(void)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    (void)nanosleep(&nap, NULL);
}

/* Until no save is under way, or rank 0's patience is at its end: the same on all ranks. Several
 * ranks exchange once per round even though nothing is trained meanwhile: whether to go on waiting
 * must be the same decision everywhere, and it is rank 0's clock that decides. A nap of a
 * millisecond keeps the loop from burning a processor that the writer needs. */
static lh_status_t save_await(trainer_t *t, uint64_t most_ns)
{
    const uint64_t since = sys()->now_ns();
    bool late = false;
    while (!late && (save_alone(t) ? writer_busy(t->writer) : t->save_phase != SAVE_NONE)) {
        const bool over = train_agree_rank(&t->agree) == 0 && sys()->now_ns() - since >= most_ns;
        lh_status_t status = train_memory_start(t);
        double words[2] = {trainer_save_word(t), over};
        if (status == LH_OK) status = train_agree_sum(&t->agree, words, 2);
        if (status == LH_OK) status = trainer_save_agreed(t, words[0]);
        if (status != LH_OK) return status;
        late = words[1] > 0;
        save_nap();
        trainer_poll_save(t);
    }
    return LH_OK;
}

/* The last save of several machines as one leaves, behind which the others go on. */
static bool save_is_a_leave(const trainer_t *t)
{
    return t->stop && t->leaving && t->step < t->job->train.steps && !save_alone(t) &&
           t->how->world != NULL && t->how->world->row.nodes > 1;
}

/* At the end of a run: waits without a limit, as there is nothing else to do. */
lh_status_t trainer_finish_save(trainer_t *t)
{
    if (t->writer == NULL || !writer_busy(t->writer)) return LH_OK;
    trainer_doing(t, t->step, "the last save");
    const lh_status_t status = save_await(t, UINT64_MAX);
    if (status != LH_OK || t->save_result.status == LH_OK || save_is_a_leave(t)) return status;
    trainer_doing(t, t->step, "the last save"); /* agreeing on it said otherwise */
    return fail_again(t->save_result.status, t->save_result.reason);
}

/* Waits for the save before, starts a new one and takes memory for it. LH_AGAIN: the save before is
 * still under way after all patience. *agreed is the result of the exchanges, whose failure is that
 * of the run. waited_ns remembers how long training has stood still for that one save over all
 * attempts, so that patience is granted once and not at each step that wants to save. */
static lh_status_t save_begin(trainer_t *t, bool last, lh_status_t *agreed)
{
    lh_assert(t->writer != NULL);
    const uint64_t most = t->job->checkpoint.patience_ns, since = sys()->now_ns();
    const uint64_t left = t->waited_ns > most ? 0 : most - t->waited_ns;
    /* What stays in memory must not cost a checkpoint: it takes as long as its message does. */
    *agreed = save_await(t, last || save_in_memory(t) ? UINT64_MAX : left);
    if (*agreed != LH_OK) return *agreed;
    lh_status_t status = writer_begin(t->writer);
    if (status == LH_AGAIN) t->waited_ns += sys()->now_ns() - since;
    /* The last save of one rank takes memory bit by bit, as it gives back what steps needed. */
    if (status == LH_OK && (!last || t->comm.comm != NULL)) status = writer_reserve(t->writer);
    return status;
}

/* What the disk or the writer does to a save is told, and training goes on; the last save of a run
 * is what the run is for, but for one that a machine leaves: the others go on from the save before, as
 * if it had been lost. status LH_OK here means that this rank could have saved and another
 * can't. */
static lh_status_t not_saved(trainer_t *t, lh_status_t status, bool last, uint64_t since)
{
    if (status == LH_AGAIN) status = fail(LH_TIMED_OUT, "the save before is still being written");
    if (status == LH_OK) status = fail_io(0, "another rank cannot save");
    if (last && !save_is_a_leave(t)) return status;
    writer_result_t failed = {.status = status, .step = t->step};
    (void)snprintf(failed.reason, sizeof(failed.reason), "%s", fail_reason());
    save_tell(t, &failed, false, (double)(sys()->now_ns() - since) * 1e-9);
    return LH_OK;
}

/* Points into the trainer. cursor is where the next batch is looked for, by which a resume checks that
 * batch and skipped ranges are still the same. */
static checkpoint_meta_t save_describe(trainer_t *t)
{
    uint32_t scalars = 0;
    if (t->not_finite > 0)
        t->scalars[scalars++] = (checkpoint_scalar_t){MANIFEST_REFUSED, (double)t->not_finite};
    if (t->job->checkpoint.keep_best && t->valid_step == t->step && isfinite(t->valid_loss))
        t->scalars[scalars++] = (checkpoint_scalar_t){MANIFEST_HELD_OUT, t->valid_loss};
    /* Not both of these two. */
    if (t->programs.evaluation != NULL && t->step % t->job->train.evaluate_every == 0 &&
        t->valid_step != t->step)
        t->scalars[scalars++] = (checkpoint_scalar_t){MANIFEST_UNEVALUATED, 1};
    if (t->incarnation > 0)
        t->scalars[scalars++] = (checkpoint_scalar_t){MANIFEST_INCARNATION, (double)t->incarnation};
    return (checkpoint_meta_t){.run = t->run,
                               .config = t->config,
                               .model = t->identity.data,
                               .variants = t->variants.data,
                               .device = t->devices.data,
                               .step = t->step,
                               .seed = t->job->train.seed,
                               .cursor = t->cursor,
                               .tokens = t->tokens,
                               .plugins = t->plugins,
                               .plugin_count = t->plugin_count,
                               .scalars = t->scalars,
                               .scalar_count = scalars};
}

/* What one rank skips or repeats, all do: *skip where one of them cannot save now, *saved where
 * rank 0 has this step already. */
static lh_status_t agree_save(trainer_t *t, bool cannot, bool *skip, bool *saved)
{
    double values[2] = {cannot, 0};
    if (train_agree_rank(&t->agree) == 0) values[1] = t->saved_step == t->step;
    const lh_status_t status = train_agree_sum(&t->agree, values, 2);
    *skip = values[0] > 0;
    *saved = values[1] > 0;
    return status;
}

/* What the run does not need any more makes room for its last snapshot: engine_finish gives device
 * memory back before the copy is taken. With several ranks this is not done, as others may still be
 * reading what they share. */
static lh_status_t save_take(trainer_t *t, bool last)
{
    if (!last || t->comm.comm != NULL) return snapshot_take(t->snapshot, t->writer);
    lh_status_t status = trainer_memory(t); /* as long as there is something to measure */
    if (status == LH_OK) status = engine_finish(t->session->engine);
    return status == LH_OK ? snapshot_take_last(t->snapshot, t->writer) : status;
}

/* All is copied: the writer owns it from here on. One of several ranks can't leave out what all
 * others save. */
static lh_status_t save_submit(trainer_t *t, bool last, uint64_t since)
{
    const checkpoint_meta_t meta = save_describe(t);
    const bool described = !t->save_to_disk || t->memory.apart;
    const lh_status_t status = described ? writer_submit_memory(t->writer, &meta, t->save_to_disk,
                                                                &t->memory_slot)
                                         : writer_submit(t->writer, &meta);
    if (status != LH_OK)
        return t->save_to_disk && save_alone(t) ? not_saved(t, status, last, since) : status;
    if (t->save_to_disk) t->saved_step = t->step;
    t->save_phase = described ? SAVE_DESCRIBES : SAVE_WRITES;
    t->save_ended = false;
    return LH_OK;
}

/* Copies at once, or begins to where a step follows whose rounds may run meanwhile. All ranks answer
 * alike. */
static lh_status_t save_start(trainer_t *t, bool to_disk, bool last, uint64_t since)
{
    const bool follows = !last && t->step < t->job->train.steps;
    lh_status_t status;
    t->save_to_disk = to_disk;
    if (follows && engine_queues(t->session->engine)) {
        status = snapshot_begin(t->snapshot, t->writer);
        t->taking = status == LH_OK;
        return status;
    }
    status = save_take(t, last);
    return status == LH_OK ? save_submit(t, last, since) : status;
}

lh_status_t trainer_take(trainer_t *t)
{
    lh_assert(t->taking);
    const lh_status_t status = snapshot_go_on(t->snapshot, t->writer, &t->taking);
    return status != LH_OK || t->taking ? status : save_submit(t, false, sys()->now_ns());
}

/* The steps: wait for the save before, agree that all can, run the user's hook, copy, hand over. Up
 * to the copy nothing is lost by stopping; after writer_submit the writer owns the copy and
 * training goes on. */
lh_status_t trainer_save(trainer_t *t, bool last)
{
    lh_assert(!t->taking);
    if (save_alone(t) && t->saved_step == t->step) return LH_OK;
    const uint64_t since = sys()->now_ns();
    trainer_doing(t, t->step, "a save");
    lh_status_t agreed, status = save_begin(t, last, &agreed);
    if (agreed != LH_OK) return agreed;
    bool skip, saved;
    agreed = agree_save(t, status != LH_OK, &skip, &saved);
    if (agreed != LH_OK) return agreed;
    /* No save would ever be made again. The others have heard that this one is not, and hear of the
     * end from the control plane. Where a machine leaves all end anyway, and start new processes. */
    if (writer_lost(t->writer) && !(last && save_is_a_leave(t))) return status;
    if (saved) return LH_OK;
    if (skip) return not_saved(t, status, last, since);
    status = step_calls_before_save(t->calls, t->step, t->loss);
    return status == LH_OK ? save_start(t, true, last, since) : status;
}

/* A step that was not applied is none to go back to. */
lh_status_t trainer_save_memory(trainer_t *t)
{
    lh_assert(!t->taking);
    if (t->save_phase != SAVE_NONE || t->not_finite > 0) return LH_OK;
    trainer_doing(t, t->step, "a snapshot");
    lh_status_t status = writer_begin(t->writer);
    if (status == LH_OK) status = writer_reserve(t->writer);
    double cannot = status != LH_OK;
    const lh_status_t agreed = train_agree_sum(&t->agree, &cannot, 1);
    if (agreed != LH_OK) return agreed;
    if (writer_lost(t->writer)) return status;
    if (cannot > 0) {
        writer_result_t failed = {.status = LH_IO, .step = t->step};
        (void)snprintf(failed.reason, sizeof(failed.reason), "%s",
                       status == LH_OK ? "another rank can't" : fail_reason());
        save_tell(t, &failed, true, 0);
        return LH_OK;
    }
    return save_start(t, false, false, sys()->now_ns());
}
