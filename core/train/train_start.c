/* train_start.c - which checkpoint a run goes on from, and what must be as it was then.
 *
 * Rank 0 looks and tells, the others open what it names; where sites have folders of their own all
 * agree (train_sites.c). What the newest one lacks is known only once all ranks have read it: then
 * they go back to an older one together. */
#include <train/train_start.h>

#include <errno.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/manifest.h>
#include <engine/kernel_choice.h>
#include <parallel/optimizer_tables.h>
#include <session/session.h>
#include <train/train_memory.h>
#include <train/train_sites.h>

/* How lines of a run's identity begin that say which ranks made it. */
#define RANKS_LINE "launch.ranks = "
#define SITES_LINE "ranks of sites = "
#define BORDER_LINE "comm.border = "
#define INSIDE_LINE "parallel.inside = "

/* Whether sums are made inside of sites, or of machines, before they go across. The optimizer says it,
 * which is there with the session; whatever it says wrongly is refused later. */
static bool sums_inside(const trainer_t *t)
{
    optimizer_tables_t tables;
    if (t->session == NULL) return false;
    const update_how_t how = session_update_how(t->session, t->how->world, 1);
    if (optimizer_tables_of(&how.optimizer, weights_parameters(t->session->weights),
                            t->session->weights->frozen, t->session->compute, &tables) == LH_OK)
        return tables.cut == LH_GROUP_SITE || tables.across != TABLE_MOVES;
    fail_clear();
    return false;
}

/* "0-1, 2-3": the ranks of each machine. */
static void nodes_text(const world_t *w, text_t *out)
{
    for (uint32_t node = 0; node < w->row.nodes; node++) {
        const char *before = node == 0 ? "" : ", ";
        for (uint32_t r = 0, last; r < w->row.size; r = last + 1) {
            last = r;
            if (w->ranks[r].node != node) continue;
            while (last + 1 < w->row.size && w->ranks[last + 1].node == node)
                last++;
            text_printf(out, "%s%u", before, r);
            if (last > r) text_printf(out, "-%u", last);
            before = "+";
        }
    }
    text_append(out, "\n");
}

/* "2 + 2": sums go through sites. Sums are added by site and then over sites, so how ranks divide
 * into sites is among what the bits depend on; and so is the dtype in which they cross borders. */
void train_start_layout(const trainer_t *t, text_t *out)
{
    static const char *const borders[] = {[BORDER_AUTO] = "auto",
                                          [BORDER_F32] = "f32",
                                          [BORDER_BF16] = "bf16",
                                          [BORDER_INT8] = "int8"};
    const world_t *w = t->how->world;
    text_printf(out, RANKS_LINE "%u\n", train_agree_size(&t->agree));
    if (t->comm.comm == NULL) return;
    text_append(out, SITES_LINE);
    for (uint32_t site = 0; site < w->row.sites; site++)
        text_printf(out, "%s%u", site == 0 ? "" : " + ", world_site_size(w, site));
    text_append(out, "\n");
    /* A machine's ranks are added before machines are, where the cut is inside of those. */
    if (sums_inside(t))
        text_append(out, w->inside_nodes ? INSIDE_LINE "node of " : INSIDE_LINE "site\n");
    if (sums_inside(t) && w->inside_nodes) nodes_text(w, out);
    if (w->row.sites > 1) text_printf(out, BORDER_LINE "%s\n", borders[t->job->comm.border]);
}

/* Ranks of one layout that add in another order end in other bits. A plugin that makes a machine's sums has an
 * order of its own. */
void train_start_sums(const trainer_t *t, text_t *out)
{
    const char *plugin = t->job->transports[LH_LINK_NODE].collectives;
    if (t->comm.comm == NULL) return;
    text_printf(out, "comm.bits = %s%s%s\n",
                t->job->comm.bits == BITS_ORDERED ? "ordered" : "canonical",
                plugin != NULL ? ", by " : "", plugin != NULL ? plugin : "");
}

/* The lines of an identity that are of the layout, or all others. Without a session nothing can be
 * said of what is inside of what. */
static void start_lines(const trainer_t *t, const char *identity, bool of_layout, text_t *out)
{
    for (const char *line = identity; line != NULL && *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        const bool is = text_starts(line, RANKS_LINE) || text_starts(line, SITES_LINE) ||
                        text_starts(line, BORDER_LINE) || text_starts(line, INSIDE_LINE);
        const bool unknown = t->session == NULL && text_starts(line, INSIDE_LINE);
        if (is == of_layout && !unknown) {
            text_append_n(out, line, length);
            text_append(out, "\n");
        }
        line += length + (line[length] == '\n');
    }
}

lh_status_t train_start_by_others(const trainer_t *t, bool *out)
{
    text_t then = {0}, now = {0};
    *out = false;
    if (t->resumed == NULL || t->job->launch.go_on_with == GO_ON_NONE) return LH_OK;
    start_lines(t, t->resumed->manifest->meta.model, true, &then);
    train_start_layout(t, &now);
    const bool failed = then.failed || now.failed;
    *out = !failed && then.length > 0 && !text_equal(then.data, now.data);
    text_free(&then);
    text_free(&now);
    return failed ? LH_NO_MEMORY : LH_OK;
}

lh_status_t train_start_check_bits(const trainer_t *t)
{
    bool others;
    text_t own = {0};
    if (t->resumed == NULL || !t->job->train.same_bits) return LH_OK;
    lh_status_t status = train_start_by_others(t, &others);
    if (others) start_lines(t, t->identity.data, false, &own);
    if (status == LH_OK) status = text_status(&own);
    if (status == LH_OK)
        status = snapshot_identity_compare(t->resumed->path, t->resumed->manifest->meta.model,
                                           others ? own.data : t->identity.data);
    text_free(&own);
    if (status != LH_OK || others) return status;
    const char *then = t->resumed->manifest->meta.device;
    const char *now = t->devices.data;
    if (then != NULL && *then != '\0' && !text_equal(then, now))
        return fail(LH_MISMATCH,
                    "%s was made on '%s', this is '%s': the same bits can't be promised; set "
                    "[train] same_bits = no to go on",
                    t->resumed->path, then, now);
    return LH_OK;
}

/* Sent as bytes from rank 0 to all. session is a random number by which files of this start are
 * told from those of an earlier one that was killed. */
typedef struct start { /* what rank 0 tells */
    uint64_t session;
    uint64_t step;
    lh_status_t status;
    bool resumed;
    char run[RUN_ID], self[SHA256_TEXT];
    char reason[512];
} start_t;

/* What the newest checkpoint says must be what this run would have made of it. A run counts
 * samples, not files or epochs: where the next one is taken follows from steps, batch and [data]
 * skip. A run that goes on with another batch or sequence is another run, which [train] same_bits =
 * no allows: it goes on from the checkpoint's cursor. */
static lh_status_t start_check_order(const trainer_t *t)
{
    const checkpoint_meta_t *m = &t->resumed->manifest->meta;
    const job_train_t *train = &t->job->train;
    const char *path = t->resumed->path;
    uint64_t batch = train->batch, sequence = train->sequence;
    if (train->same_bits) {
        (void)snapshot_identity_number(m->model, "train.batch", &batch);
        (void)snapshot_identity_number(m->model, "train.sequence", &sequence);
        if (batch != train->batch)
            return fail(LH_INVALID,
                        "%s: made with a batch of %llu sequences, [train] batch is %llu now: the "
                        "order of the data would change; set [train] same_bits = no to go on",
                        path, (unsigned long long)batch, (unsigned long long)train->batch);
        if (sequence != train->sequence)
            return fail(LH_INVALID,
                        "%s: made with sequences of %llu tokens, [train] sequence is %llu now: the "
                        "order of the data would change; set [train] same_bits = no to go on",
                        path, (unsigned long long)sequence, (unsigned long long)train->sequence);
        const uint64_t expected = batch_skips_after(&t->skips, 0, m->step, batch);
        if (m->cursor != expected)
            return fail(LH_INVALID,
                        "%s: %llu samples of the data are behind it, with this INI's batch and "
                        "[data] skip they would be %llu: that would be another run; set [train] "
                        "same_bits = no to go on",
                        path, (unsigned long long)m->cursor, (unsigned long long)expected);
    }
    return LH_OK;
}

/* With sequences of another length the data are cut and ordered anew: the run goes on at the same
 * count of tokens of that order. */
static uint64_t start_cursor(const trainer_t *t)
{
    const checkpoint_meta_t *m = &t->resumed->manifest->meta;
    uint64_t sequence = t->job->train.sequence;
    const uint64_t now = sequence;
    (void)snapshot_identity_number(m->model, "train.sequence", &sequence);
    lh_assert(now > 0);
    return sequence == now ? m->cursor : (m->cursor * sequence + now - 1) / now;
}

/* Rank 0 only. The checkpoint of the step that somebody named, and no other. */
static lh_status_t start_find_named(trainer_t *t)
{
    const char *folder = t->job->checkpoint.folder;
    const unsigned long long step = (unsigned long long)*t->how->resume_step;
    char name[CHECKPOINT_NAME];
    checkpoint_name(*t->how->resume_step, name);
    char *path = path_join(folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    if (t->below.good != UINT64_MAX)
        status = fail(LH_CORRUPT, "--resume %llu: %s is damaged", step, path);
    else if (!file_exists(path))
        status = fail(LH_INVALID, "--resume %llu: there is no %s", step, path);
    if (status == LH_OK) status = checkpoint_open(path, &t->resumed);
    mem_free(path);
    return status == LH_OK ? start_check_order(t) : status;
}

/* Rank 0 only. t->below excludes checkpoints that were found damaged in this start; having excluded
 * some and finding no other is an error, as starting from nothing would look like success. */
static lh_status_t start_find_newest(trainer_t *t)
{
    const char *folder = t->job->checkpoint.folder;
    if (t->how->resume_step != NULL) return start_find_named(t);
    const lh_status_t status = checkpoint_open_newest(folder, &t->below, &t->resumed);
    if (status != LH_OK) return status;
    if (t->resumed == NULL && t->below.good != UINT64_MAX)
        return fail(LH_CORRUPT, "%s: none of its checkpoints is whole", folder);
    if (t->resumed == NULL) return LH_OK;
    if (t->how->resume) return start_check_order(t);
    return fail(LH_INVALID,
                "%s holds step %llu of an earlier run; go on from it with --resume, or move it "
                "away",
                folder, (unsigned long long)t->resumed->manifest->meta.step);
}

/* A run that had saved nothing when its ranks were lost is the same run: a site that is away may have
 * committed what the others had yet to, or a machine have it in memory. Rank 0's site may be new. */
static bool start_names_before(trainer_t *t)
{
    if (!t->how->resume || !(t->job->checkpoint.apart || t->memory.keeps)) return false;
    const incarnation_t before = train_sites_before(t);
    if (before.run[0] != '\0') (void)snprintf(t->run, sizeof(t->run), "%s", before.run);
    return before.run[0] != '\0';
}

/* A resumed run keeps the id of the first one, so that all checkpoints of a job's history carry the
 * same. */
static lh_status_t start_name_run(trainer_t *t, uint64_t *session)
{
    uint8_t bytes[(RUN_ID - 1) / 2];
    if (sys()->random(bytes, sizeof(bytes)) != 0 || sys()->random(session, sizeof(*session)) != 0)
        return fail_io(errno, "no random bytes to be had");
    if (t->resumed != NULL) {
        (void)snprintf(t->run, sizeof(t->run), "%s", t->resumed->manifest->meta.run);
        return LH_OK;
    }
    if (start_names_before(t)) return LH_OK;
    for (size_t i = 0; i < sizeof(bytes); i++)
        (void)snprintf(t->run + 2 * i, 3, "%02x", bytes[i]);
    return LH_OK;
}

/* All but rank 0: opens exactly the checkpoint that rank 0 named. The digest of its manifest tells
 * a folder of the same name on another disk. */
static lh_status_t start_open_named(trainer_t *t, const start_t *start)
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

/* Whoever does not see rank 0's folder fails, and the control plane tells all who that is. Rank 0
 * has left a file with the session's number in the folder of checkpoints; whoever does not see it
 * has another folder mounted. The file goes as soon as all have looked. */
static lh_status_t start_meet(trainer_t *t, uint64_t session)
{
    const char *folder = t->job->checkpoint.folder;
    double seen = 1;
    if (train_agree_size(&t->agree) == 1) return LH_OK;
    const bool leads = writer_leads(t->writer);
    lh_status_t status = leads ? LH_OK : checkpoint_folder_look(folder, session);
    if (status == LH_OK) status = train_agree_sum(&t->agree, &seen, 1);
    if (leads) checkpoint_folder_unmark(folder, session);
    return status;
}

/* `opened`: what became of opening the writer, so far. Rank 0. Its failure is told to the others as
 * part of the answer for which they wait, since they would otherwise wait until the timeout. */
static lh_status_t start_lead(trainer_t *t, lh_status_t opened)
{
    start_t start = {.session = 0};
    lh_status_t status = opened == LH_OK ? start_find_newest(t) : opened;
    if (status == LH_OK) status = start_name_run(t, &start.session);
    if (status == LH_OK && train_agree_size(&t->agree) > 1)
        status = checkpoint_folder_mark(t->job->checkpoint.folder, start.session);
    start.status = status;
    if (status != LH_OK)
        (void)snprintf(start.reason, sizeof(start.reason), "%.500s", fail_reason());
    memcpy(start.run, t->run, sizeof(start.run));
    start.resumed = t->resumed != NULL;
    if (start.resumed) {
        start.step = t->resumed->manifest->meta.step;
        memcpy(start.self, t->resumed->manifest->self, sizeof(start.self));
    }
    const lh_status_t told = train_agree_first(&t->agree, &start, sizeof(start));
    if (status != LH_OK || told != LH_OK) return status != LH_OK ? status : told;
    writer_session(t->writer, start.session);
    return start_meet(t, start.session);
}

/* All but rank 0. A rank that could not open its writer does not come to the gather; its failure
 * reaches the others through the control plane. */
static lh_status_t start_follow(trainer_t *t, lh_status_t opened)
{
    start_t start = {.session = 0};
    if (opened != LH_OK) return opened; /* the run ends here, and so for all */
    const lh_status_t status = train_agree_first(&t->agree, &start, sizeof(start));
    if (status != LH_OK) return status;
    if (start.status != LH_OK) return fail(start.status, "%s", start.reason);
    memcpy(t->run, start.run, sizeof(t->run));
    writer_session(t->writer, start.session);
    const lh_status_t met = start_meet(t, start.session);
    return met == LH_OK && start.resumed ? start_open_named(t, &start) : met;
}

/* Where sites have folders of their own: all decide alike by what all tell, and rank 0 names the run.
 * Each site's first rank marks its folder for the others of the site. */
static lh_status_t start_apart(trainer_t *t, lh_status_t opened)
{
    start_t start = {.session = 0};
    lh_status_t status = train_sites_find(t, opened);
    if (status == LH_OK && t->resumed != NULL) status = start_check_order(t);
    if (status == LH_OK && train_agree_rank(&t->agree) == 0) {
        start.status = start_name_run(t, &start.session);
        memcpy(start.run, t->run, sizeof(start.run));
    }
    if (status == LH_OK) status = train_agree_first(&t->agree, &start, sizeof(start));
    if (status == LH_OK && start.status != LH_OK)
        status = fail(start.status, "rank 0 has no random bytes");
    if (status != LH_OK) return status;
    memcpy(t->run, start.run, sizeof(t->run));
    t->session_number = start.session;
    writer_session(t->writer, start.session);
    double marked = 1;
    if (writer_leads(t->writer))
        status = checkpoint_folder_mark(t->job->checkpoint.folder, start.session);
    if (status == LH_OK) status = train_agree_sum(&t->agree, &marked, 1);
    return status == LH_OK ? start_meet(t, start.session) : status;
}

/* Called again when an older checkpoint takes the place of a damaged one. */
static void start_take(trainer_t *t)
{
    if (t->resumed == NULL) return;
    const checkpoint_meta_t *m = &t->resumed->manifest->meta;
    t->step = t->queued = t->first_step = m->step;
    t->tokens = m->tokens;
    t->cursor = start_cursor(t);
    t->not_finite = manifest_refused(t->resumed->manifest); /* steps of this run are counted on */
    t->unevaluated = manifest_unevaluated(t->resumed->manifest);
    t->saved_step = m->step;
    writer_parent(t->writer, t->resumed->manifest->self);
}

/* The lowest rank of its site. */
static bool leads_site(const world_t *w)
{
    return w->ranks[w->row.rank].place == 0;
}

/* Ranks that start again find the folder's lock with those before them for as long as a server of files takes a
 * machine that it does not hear for alive, or as a save of theirs is still being written: it is waited for longer,
 * and what is not had then is a loss, which may be tried again, and no mistake of whoever has started them. */
static lh_status_t open_writer(const trainer_t *t)
{
    enum { TRIES = 4 };
    char why[AGREE_SENTENCE];
    lh_status_t status = writer_open(t->writer);
    for (int i = 1; t->how->restarts > 0 && status == LH_INVALID; i++) {
        (void)snprintf(why, sizeof(why), "%s", fail_reason());
        if (i == TRIES) return fail(LH_TIMED_OUT, "%s", why);
        log_line(LH_LOG_WARN,
                 "%s; that may be what is left of ranks that are lost, and is waited for", why);
        status = writer_open(t->writer);
    }
    return status;
}

lh_status_t train_start_find(trainer_t *t)
{
    const bool apart = t->job->checkpoint.apart && t->how->world != NULL &&
                       t->how->world->row.sites > 1;
    const writer_how_t how = {.folder = t->job->checkpoint.folder,
                              .keep = snapshot_keep(t->job),
                              .deadline_ns = t->job->checkpoint.deadline_ns,
                              .rank = train_agree_rank(&t->agree),
                              .ranks = train_agree_size(&t->agree),
                              .apart = apart,
                              .leads = apart && leads_site(t->how->world),
                              .memory = apart,
                              .memory_fd = -1};
    t->named = t->how->resume_step != NULL;
    lh_status_t status = t->writer != NULL ? LH_OK : writer_start(&how, &t->writer);
    if (status == LH_OK) status = open_writer(t);
    const lh_status_t rescued = status == LH_OK || how.rank == 0 || how.apart
                                    ? train_memory_rescue(t, status)
                                    : LH_OK;
    if (rescued != LH_OK) return rescued;
    /* Not even rank 0's failure to open may leave the others waiting: it is told below. */
    if (t->memory.apart)
        status = start_apart(t, status);
    else
        status = how.rank == 0 ? start_lead(t, status) : start_follow(t, status);
    if (status == LH_OK) start_take(t);
    return status;
}

/* errno is read at once: it tells a file that is gone from a disk that fails. lost: what this rank has read is
 * damaged; whole: no rank has found damage. */
static lh_status_t start_load(trainer_t *t, bool *lost, bool *whole)
{
    lh_status_t status = snapshot_load(t->snapshot, t->resumed, true);
    *lost = status != LH_OK && checkpoint_lost(status, errno);
    if (status != LH_OK && !*lost) return status;
    double found = *lost;
    status = train_agree_sum(&t->agree, &found, 1);
    *whole = found == 0;
    return status;
}

/* The engine was built with what the checkpoint before named. It can't choose anew now, so an older
 * checkpoint that names others is refused. A checkpoint names rank 0's calls; another rank has some
 * of its own, as other places are aligned there. */
static lh_status_t start_check_older(const trainer_t *t)
{
    const char *then = t->resumed->manifest->meta.variants;
    bool others = false;
    lh_status_t status = train_start_check_bits(t);
    if (status == LH_OK) status = train_start_by_others(t, &others);
    if (status != LH_OK || others || !t->job->train.same_bits || then == NULL || *then == '\0' ||
        kernel_choice_agree(t->variants.data, then))
        return status;
    return fail(LH_MISMATCH,
                "%s: made with other kernels than the checkpoint after it; start again",
                t->resumed->path);
}

/* Whoever found the damage warns, and rank 0. checkpoint_skip only warns; the damaged one is moved
 * out of the way when an older one is whole. Everybody then repeats the finding of a start. *brought: as
 * train_sites_fetch has it of the older one. */
static lh_status_t start_older(trainer_t *t, bool lost, bool *brought)
{
    lh_assert(t->resumed != NULL);
    const uint64_t step = t->resumed->manifest->meta.step;
    const bool leads = train_agree_rank(&t->agree) == 0;
    if (!lost) {
        (void)fail(LH_CORRUPT, "another rank found it damaged");
    }
    if (lost || leads) checkpoint_skip(step);
    checkpoint_exclude(&t->below, t->resumed);
    checkpoint_close(t->resumed);
    t->resumed = NULL;
    lh_status_t status = t->memory.apart ? start_apart(t, LH_OK)
                         : leads         ? start_lead(t, LH_OK)
                                         : start_follow(t, LH_OK);
    if (status == LH_OK) status = train_sites_fetch(t, brought);
    if (status != LH_OK || !*brought) return status;
    start_take(t);
    uint64_t samples;
    const lh_status_t asked = step_samples(t->job, t->cursor, t->step, NULL, &samples);
    if (asked != LH_OK) return asked;
    if (samples != t->samples) /* the order of data was made for the checkpoint after it */
        return fail(
            LH_MISMATCH,
            "%s: made with another batch or sequence than the checkpoint after it, which is "
            "damaged: go on from it with --resume %llu",
            t->resumed->path, (unsigned long long)t->step);
    return start_check_older(t);
}

/* Whether a tensor is whole is known only once it is read, and each rank reads other tensors: so after
 * loading all ranks add up who found damage, and if one did all go back together; where sites have copies of
 * their own, only when no other one's is whole, be it found as one is loaded or as it comes from another site.
 * The loop ends since each round excludes a site's copy or a step more. */
lh_status_t train_start_resume(trainer_t *t)
{
    bool brought, whole = false;
    lh_status_t status = train_sites_fetch(t, &brought);
    while (status == LH_OK && !whole) {
        bool lost = false;
        if (brought) status = start_load(t, &lost, &whole);
        if (status != LH_OK || whole) break;
        if (brought) status = train_sites_again(t, lost, &brought);
        if (status == LH_OK && !brought) status = start_older(t, lost, &brought);
    }
    if (status != LH_OK) return status;
    train_sites_loaded(t);
    if (writer_leads(t->writer)) checkpoint_make_way(t->job->checkpoint.folder, t->step, t->named);
    return LH_OK;
}
