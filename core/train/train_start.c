/* train_start.c - opens the folder of checkpoints and finds where the run goes on: rank 0 looks,
 * all others take its word, so that none starts from another step. */
#include <train/trainer.h>

#include <errno.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>
#include <checkpoint/rank_save.h>

typedef struct start { /* what rank 0 tells */
    uint64_t session;
    uint64_t step;
    lh_status_t status;
    bool resumed;
    char run[RUN_ID], self[SHA256_TEXT];
    char reason[512];
} start_t;

/* What the newest checkpoint says must be what this run would have made of it. */
static lh_status_t check_data_order(const trainer_t *t)
{
    const checkpoint_meta_t *m = &t->resumed->manifest->meta;
    if (m->cursor != m->step * t->job->train.batch)
        return fail(LH_INVALID,
                    "%s: made with a batch of %llu sequences, [train] batch is %llu now: the order "
                    "of the data would change",
                    t->resumed->path, (unsigned long long)(m->step == 0 ? 0 : m->cursor / m->step),
                    (unsigned long long)t->job->train.batch);
    if (m->tokens != m->cursor * t->job->train.sequence)
        return fail(LH_INVALID,
                    "%s: made with sequences of %llu tokens, [train] sequence is %llu now: the "
                    "order of the data would change",
                    t->resumed->path,
                    (unsigned long long)(m->cursor == 0 ? 0 : m->tokens / m->cursor),
                    (unsigned long long)t->job->train.sequence);
    return LH_OK;
}

static lh_status_t find_newest(trainer_t *t)
{
    const char *folder = t->job->checkpoint.folder;
    const lh_status_t status = checkpoint_open_newest(folder, t->below, &t->resumed);
    if (status != LH_OK) return status;
    if (t->resumed == NULL && t->below != UINT64_MAX)
        return fail(LH_CORRUPT, "%s: none of its checkpoints is whole", folder);
    if (t->resumed == NULL) return LH_OK;
    if (t->how->resume) return check_data_order(t);
    return fail(LH_INVALID,
                "%s holds step %llu of an earlier run; go on from it with --resume, or move it "
                "away",
                folder, (unsigned long long)t->resumed->manifest->meta.step);
}

static lh_status_t name_run(trainer_t *t, uint64_t *session)
{
    uint8_t bytes[(RUN_ID - 1) / 2];
    if (sys()->random(bytes, sizeof(bytes)) != 0 || sys()->random(session, sizeof(*session)) != 0)
        return fail_io(errno, "no random bytes to be had");
    if (t->resumed != NULL) {
        (void)snprintf(t->run, sizeof(t->run), "%s", t->resumed->manifest->meta.run);
        return LH_OK;
    }
    for (size_t i = 0; i < sizeof(bytes); i++)
        (void)snprintf(t->run + 2 * i, 3, "%02x", bytes[i]);
    return LH_OK;
}

static lh_status_t open_named(trainer_t *t, const start_t *start)
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(start->step, name);
    char *path = path_join(t->job->checkpoint.folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = checkpoint_open(path, &t->resumed);
    if (status == LH_OK && strcmp(t->resumed->manifest->self, start->self) != 0)
        status = fail(LH_MISMATCH,
                      "%s: not the checkpoint that rank 0 sees there; all hosts must see the same "
                      "folder",
                      path);
    mem_free(path);
    return status;
}

/* Whoever does not see rank 0's folder fails, and the control plane tells all who that is. */
static lh_status_t meet_in_folder(trainer_t *t, uint64_t session)
{
    const char *folder = t->job->checkpoint.folder;
    double seen = 1;
    if (agree_size(&t->agree) == 1) return LH_OK;
    const bool leads = agree_rank(&t->agree) == 0;
    lh_status_t status = leads ? LH_OK : rank_save_look(folder, session);
    if (status == LH_OK) status = agree_sum(&t->agree, &seen, 1);
    if (leads) rank_save_unmark(folder, session);
    return status;
}

/* `opened`: what became of opening the writer, so far. */
static lh_status_t lead_start(trainer_t *t, lh_status_t opened)
{
    start_t start = {.session = 0};
    lh_status_t status = opened == LH_OK ? find_newest(t) : opened;
    if (status == LH_OK) status = name_run(t, &start.session);
    if (status == LH_OK && agree_size(&t->agree) > 1)
        status = rank_save_mark(t->job->checkpoint.folder, start.session);
    start.status = status;
    if (status != LH_OK)
        (void)snprintf(start.reason, sizeof(start.reason), "%.500s", fail_reason());
    memcpy(start.run, t->run, sizeof(start.run));
    start.resumed = t->resumed != NULL;
    if (start.resumed) {
        start.step = t->resumed->manifest->meta.step;
        memcpy(start.self, t->resumed->manifest->self, sizeof(start.self));
    }
    const lh_status_t told = agree_first(&t->agree, &start, sizeof(start));
    if (status != LH_OK || told != LH_OK) return status != LH_OK ? status : told;
    writer_session(t->writer, start.session);
    return meet_in_folder(t, start.session);
}

static lh_status_t follow_start(trainer_t *t, lh_status_t opened)
{
    start_t start = {.session = 0};
    if (opened != LH_OK) return opened; /* the run ends here, and so for all */
    const lh_status_t status = agree_first(&t->agree, &start, sizeof(start));
    if (status != LH_OK) return status;
    if (start.status != LH_OK) return fail(start.status, "%s", start.reason);
    memcpy(t->run, start.run, sizeof(t->run));
    writer_session(t->writer, start.session);
    const lh_status_t met = meet_in_folder(t, start.session);
    return met == LH_OK && start.resumed ? open_named(t, &start) : met;
}

static void take_start(trainer_t *t)
{
    if (t->resumed == NULL) return;
    const checkpoint_meta_t *m = &t->resumed->manifest->meta;
    t->step = t->first_step = m->step;
    t->tokens = m->tokens;
    t->saved_step = m->step;
    writer_parent(t->writer, t->resumed->manifest->self);
}

lh_status_t trainer_start(trainer_t *t)
{
    const writer_how_t how = {.folder = t->job->checkpoint.folder,
                              .keep = t->job->checkpoint.keep,
                              .deadline_ns = t->job->checkpoint.deadline_ns,
                              .rank = agree_rank(&t->agree),
                              .ranks = agree_size(&t->agree)};
    lh_status_t status = writer_open(&how, &t->writer);
    /* Not even rank 0's failure to open may leave the others waiting: it is told below. */
    status = how.rank == 0 ? lead_start(t, status) : follow_start(t, status);
    if (status == LH_OK) take_start(t);
    return status;
}

static lh_status_t load(trainer_t *t, bool *lost)
{
    const lh_status_t status = snapshot_load(t->snapshot, t->resumed, true);
    *lost = status != LH_OK && checkpoint_lost(status, errno);
    return status;
}

/* The engine was built with what the checkpoint before named. */
static lh_status_t check_older(const trainer_t *t)
{
    const char *then = t->resumed->manifest->meta.variants;
    const lh_status_t status = trainer_check_bits(t);
    if (status != LH_OK || !t->job->train.same_bits || then == NULL || *then == '\0' ||
        text_equal(then, t->variants.data))
        return status;
    return fail(LH_MISMATCH,
                "%s: made with other kernels than the checkpoint after it; start again",
                t->resumed->path);
}

/* Whoever found the damage warns, and rank 0. */
static lh_status_t start_older(trainer_t *t, bool lost)
{
    const uint64_t step = t->resumed->manifest->meta.step;
    const bool leads = agree_rank(&t->agree) == 0;
    if (!lost) {
        (void)fail(LH_CORRUPT, "another rank found it damaged");
    }
    if (lost || leads) checkpoint_skip(step);
    checkpoint_close(t->resumed);
    t->resumed = NULL;
    t->below = step;
    const lh_status_t status = leads ? lead_start(t, LH_OK) : follow_start(t, LH_OK);
    if (status != LH_OK) return status;
    take_start(t);
    return check_older(t);
}

lh_status_t trainer_resume(trainer_t *t)
{
    for (;;) {
        bool lost = false;
        lh_status_t status = load(t, &lost);
        if (status != LH_OK && !lost) return status;
        double found = lost;
        status = agree_sum(&t->agree, &found, 1);
        if (status != LH_OK) return status;
        if (found == 0) break;
        status = start_older(t, lost);
        if (status != LH_OK) return status;
    }
    if (agree_rank(&t->agree) == 0) checkpoint_make_way(t->job->checkpoint.folder, t->step);
    return LH_OK;
}
