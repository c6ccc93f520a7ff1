/* command_verify.c - longhaul verify PATH: reads a checkpoint, every one of a folder, or a pair of
 * token files back from disk and checks every byte.
 *
 * What NAME is decides by itself what is read: one of a pair's files, a folder that prepare has
 * written, a checkpoint, a folder of checkpoints, or a job's folder, which has several of these: the
 * pair, the checkpoint that was imported, and those of training. All is read, even where the first
 * of many is damaged, and then the worst is the result.
 *
 * A line for each thing that was read, and a sentence at the end where one is not whole:
 *
 *     out/shakespeare/checkpoints/step-000000000250: whole
 *     out/shakespeare/checkpoints/step-000000000500: damaged: ...
 *     out/shakespeare/corpus.idx: whole
 *
 * The exit code is that of a refusal as soon as one is damaged or can't be read. */
#include <cli/cli.h>

#include <errno.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/manifest.h>
#include <data/prepare.h>

/* How often a folder is listed anew when everything in it was removed while it was read. */
enum { LISTINGS = 16 };

/* Checkpoints by what became of reading them. unread is neither whole nor damaged: no rights, a
 * disk that fails, a newer format. */
typedef struct tally {
    size_t whole, damaged, unread;
} tally_t;

/* One line, whatever the names of files are. reason: "" for none. The first column of every line is
 * a path, so the output can be searched by it. */
static void print_verdict(const char *path, const char *what, const char *reason)
{
    cli_print_line("%s: %s%s%s", path, what, *reason == '\0' ? "" : ": ", reason);
}

/* errno is kept at once, as it tells a damaged file from one that can't be read. */
static void verify_step(const char *path, tally_t *tally)
{
    const lh_status_t status = checkpoint_verify(path);
    const int error = errno;
    if (status == LH_OK) {
        tally->whole++;
        print_verdict(path, "whole", "");
    } else if (checkpoint_gone(path)) {
        return; /* removed by a run that trains, which has a newer one */
    } else if (checkpoint_damaged(status, error)) {
        tally->damaged++;
        print_verdict(path, "damaged", fail_reason());
    } else {
        tally->unread++;
        print_verdict(path, status == LH_UNSUPPORTED ? "made by a newer version" : "cannot be read",
                      fail_reason());
    }
}

/* In the order of steps. */
static lh_status_t verify_steps(const char *folder, const checkpoint_steps_t *steps, tally_t *tally)
{
    for (size_t i = 0; i < steps->count; i++) {
        char name[CHECKPOINT_NAME];
        checkpoint_name(steps->steps[i], name);
        char *path = path_join(folder, name);
        if (path == NULL) return LH_NO_MEMORY;
        verify_step(path, tally);
        mem_free(path);
    }
    return LH_OK;
}

/* Something unread is the worse news: nobody knows what it is. */
static lh_status_t tally_judge(const char *folder, const tally_t *t)
{
    const size_t count = t->whole + t->damaged + t->unread;
    if (t->unread > 0)
        return fail(LH_INVALID, "%s: of %zu checkpoints %zu are damaged and %zu cannot be read",
                    folder, count, t->damaged, t->unread);
    if (t->damaged > 0)
        return fail(LH_CORRUPT, "%s: %zu of %zu checkpoints are damaged", folder, t->damaged,
                    count);
    return LH_OK;
}

/* By its name alone. */
static bool is_step(const char *path)
{
    uint64_t step;
    return checkpoint_name_parse(path_name(path), &step);
}

/* The folder holds no steps: it is a checkpoint itself, or nothing is there. */
static lh_status_t verify_one(const char *path)
{
    char *manifest = path_join(path, MANIFEST_NAME);
    if (manifest == NULL) return LH_NO_MEMORY;
    const bool nothing = checkpoint_gone(manifest) && !is_step(path);
    mem_free(manifest);
    if (nothing || checkpoint_gone(path)) {
        return fail(LH_INVALID, "%s: %s", path,
                    checkpoint_gone(path) ? "there is no such folder" : "holds no checkpoint");
    }
    tally_t tally = {0};
    verify_step(path, &tally);
    return tally.whole == 1 ? LH_OK : LH_CORRUPT;
}

/* 1 for each that is not as it should be. */
static uint32_t verify_file(const char *path, lh_status_t status)
{
    if (status == LH_OK)
        print_verdict(path, "whole", "");
    else
        print_verdict(path, status == LH_CORRUPT ? "damaged" : "cannot be read", fail_reason());
    return status == LH_OK ? 0 : 1;
}

/* Both are read, whatever the first has shown. */
static lh_status_t verify_pair(const prepare_record_t *r)
{
    uint32_t bad = verify_file(r->idx, prepare_record_check_idx(r));
    bad += verify_file(r->bin, prepare_record_check_bin(r));
    if (bad == 0) return LH_OK;
    return fail(LH_CORRUPT, "%s: %u of the 2 token files it tells of are not as it says",
                r->summary, bad);
}

/* One of the pair's files was named. */
static lh_status_t verify_named_pair(const char *path)
{
    char *prefix = mem_text_n(path, strlen(path) - strlen(".idx"));
    if (prefix == NULL) return LH_NO_MEMORY;
    prepare_record_t record = {0};
    lh_status_t status = prepare_record_find(prefix, NULL, &record);
    if (status == LH_OK && record.summary == NULL)
        status = fail(LH_INVALID,
                      "%s: no prepare.json beside it says what it must be; verify the folder of "
                      "the job that prepared it, if there is one",
                      path);
    if (status == LH_OK) status = verify_pair(&record);
    prepare_record_free(&record);
    mem_free(prefix);
    return status;
}

/* These two call each other once for each folder of checkpoints of a job's. */
static lh_status_t verify_checkpoints(const char *folder, bool of_job);

/* In a job's folder: what the import made, from which training starts, and what training made. */
static const char *const folders_of_job[] = {"import/checkpoints", "checkpoints"};
enum { FOLDERS_OF_JOB = sizeof(folders_of_job) / sizeof(folders_of_job[0]) };

/* One of these; *there stays as it is where the job has none. */
static lh_status_t verify_below(const char *folder, const char *name, bool *there)
{
    char *inside = path_join(folder, name);
    if (inside == NULL) return LH_NO_MEMORY;
    const bool is = file_exists(inside);
    const lh_status_t status = is ? verify_checkpoints(inside, false) : LH_OK;
    *there = *there || is;
    mem_free(inside);
    return status;
}

/* What is wrong in one folder is told before the next one is read. */
static lh_status_t verify_inside(const char *folder)
{
    lh_status_t status = LH_OK;
    bool there = false;
    for (int i = 0; i < FOLDERS_OF_JOB && status != LH_NO_MEMORY; i++) {
        const lh_status_t before = status;
        if (before != LH_OK) log_line(LH_LOG_WARN, "%s", fail_reason());
        status = verify_below(folder, folders_of_job[i], &there);
        if (status == LH_OK && before != LH_OK)
            status = fail(before, "%s: not all of it is whole", folder);
    }
    if (status == LH_OK && !there) cli_print_line("%s: no checkpoints", folder);
    return status;
}

/* Whether one of them is there; false without memory, too. */
static bool has_checkpoints(const char *folder)
{
    bool has = false;
    for (int i = 0; i < FOLDERS_OF_JOB; i++) {
        char *inside = path_join(folder, folders_of_job[i]);
        has = has || (inside != NULL && file_exists(inside));
        mem_free(inside);
    }
    return has;
}

/* A job's folder need not hold a pair: its data may be another job's. */
static bool is_job_folder(const char *path)
{
    char *manifest = path_join(path, MANIFEST_NAME);
    const bool is = manifest != NULL && !is_step(path) && has_checkpoints(path) &&
                    !file_exists(manifest);
    mem_free(manifest);
    return is;
}

/* of_job: the folder is a job's, or holds a pair of token files, and need not hold a checkpoint.
 * Steps may vanish between listing and reading, as a run that trains removes old ones; so an empty
 * result is listed again. */
static lh_status_t verify_checkpoints(const char *folder, bool of_job)
{
    tally_t tally = {0};
    size_t seen = 0;
    for (int i = 0; i < LISTINGS; i++) {
        checkpoint_steps_t steps;
        lh_status_t status = checkpoint_steps(folder, &steps);
        if (status == LH_OK) status = verify_steps(folder, &steps, &tally);
        const size_t listed = steps.count;
        mem_free(steps.steps);
        if (status != LH_OK) return status;
        seen = tally.whole + tally.damaged + tally.unread;
        if (listed == 0 || seen > 0)
            break; /* else all were removed meanwhile: there are newer ones */
    }
    if (seen > 0) return tally_judge(folder, &tally);
    return of_job ? verify_inside(folder) : verify_one(folder);
}

/* A pair that is damaged does not keep the checkpoints from being read. */
static int verify_command(cli_t *cli)
{
    if (text_ends(cli->name, ".idx") || text_ends(cli->name, ".bin"))
        return verify_named_pair(cli->name);

    prepare_record_t record = {0};
    lh_status_t status = prepare_record_read(cli->name, &record);
    const bool paired = record.summary != NULL;
    if (status == LH_OK && paired) status = verify_pair(&record);
    prepare_record_free(&record);
    if (status == LH_OK) return verify_checkpoints(cli->name, paired || is_job_folder(cli->name));
    /* Told now, since the checkpoints may have something to tell themselves. */
    log_line(LH_LOG_WARN, "%s", fail_reason());
    const lh_status_t rest = verify_checkpoints(cli->name, true);
    return rest == LH_OK ? fail(status, "%s: not all of it is whole", cli->name) : rest;
}

const command_t command_verify = {
    .name = "verify",
    .summary = "read a checkpoint, all of a folder, or a pair of token files back and check every "
               "byte; NAME is the folder, or a file of the pair",
    .needs = CLI_TAKES_NAME,
    .run = verify_command,
    .nameless = "what? a checkpoint, a folder of them, or a pair of token files was expected",
};
