/* train_sites.c - checkpoints of sites that have no file system in common.
 *
 * Each site has a whole copy of every checkpoint, made by the save itself (train_save.c). A site that
 * was cut off, or is new, or has lost its disk, lacks some. At a start one rank of each site tells
 * which it has, so that all choose the same (train_told.c). The manifest is told to all at once, as
 * the session is opened by it. The files come when the links are there: the ranks of the first site that
 * has them send to those of each site that lacks them, by the messages that bring images at a save, a
 * slot's bytes at a time. What has come is read back by its hashes, and committed before anything of it is
 * loaded; nothing makes way for a copy that is not whole, and the next site that has one sends its own.
 *
 * A site may hold steps without which the others have gone on: a save came to its end there alone, then the
 * site was cut off, and the others made these steps again from the checkpoint before. The later start of the
 * run counts (incarnation.h), whichever has the newer step: its metrics have been told, and what members that
 * are most have done is never undone by one that was away. What the site has of the earlier start is set
 * aside there, and it takes the others' copy where it lacks that. Two manifests of one step of which nothing
 * tells that (other runs, or one start, or checkpoints that do not say) are refused: none of them could be the
 * right one to set aside. */
#include <train/train_sites.h>

#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/incarnation.h>
#include <checkpoint/memory_image.h>
#include <control/control.h>
#include <train/train_told.h>

/* A checkpoint that a later start of the run has gone on without. */
typedef struct stale_step {
    uint32_t site;
    uint64_t step, incarnation;
    uint64_t since; /* the last such start */
} stale_step_t;

/* While opening: what is to come from where. */
typedef struct train_fetch {
    char *text; /* of the manifest */
    size_t text_bytes;
    uint32_t from; /* site */
    bool *lacks;   /* [sites] */
    /* [sites]: a copy of theirs has come already in the place of a damaged one, or came damaged. */
    bool *gave;
    /* [stale_count]: those of the chosen step and above, in the folders of all sites. */
    stale_step_t *stale;
    size_t stale_count;
    incarnation_t before; /* the last start that any folder has seen */
} train_fetch_t;

static uint32_t own_site(const trainer_t *t)
{
    return t->how->world->ranks[t->how->world->row.rank].site;
}

/* Where there is none to go on from. What was found damaged was there: to begin anew, or from another step
 * than that which was named, would look like success. */
static lh_status_t check_none(const trainer_t *t, const train_told_t *told)
{
    const told_site_t *lead = &told->ranks[0];
    const unsigned long long named = (unsigned long long)lead->named_step;
    bool damaged = t->below.good != UINT64_MAX;
    for (uint32_t r = 0; r < told->size; r++)
        damaged = damaged || told->ranks[r].damaged != 0;
    if (lead->named != 0 && !damaged)
        return fail(LH_INVALID, "--resume %llu: no site has that checkpoint", named);
    if (lead->named != 0)
        return fail(LH_CORRUPT, "--resume %llu: no site's copy of that checkpoint is whole", named);
    if (!damaged) return LH_OK;
    return fail(LH_CORRUPT, "%s: none of any site's checkpoints is whole",
                t->job->checkpoint.folder);
}

/* What one rank has met ends the start of all, as does what rank 0 was not asked to do. */
static lh_status_t check_told(const trainer_t *t, const train_told_t *told)
{
    const told_site_t *all = told->ranks;
    for (uint32_t r = 0; r < told->size; r++)
        if (all[r].status != LH_OK) return fail(all[r].status, "rank %u: %.255s", r, all[r].reason);
    if (told->chosen == NULL) return check_none(t, told);
    if (all[0].resume != 0) return LH_OK;
    return fail(
        LH_INVALID,
        "%s: a site holds step %llu of an earlier run; go on from it with --resume, or move it "
        "away",
        t->job->checkpoint.folder, (unsigned long long)told->chosen->step);
}

/* Of two checkpoints of one step. */
static const char *lacks_reason(const told_step_t *a, const told_step_t *b)
{
    if (strcmp(a->made.run, b->made.run) != 0) return "they are of two runs";
    if (a->made.number == b->made.number && a->made.number > 0)
        return "both were made in one incarnation";
    return "not both say in which incarnation they were made";
}

/* Whether another one of the chosen step is set aside for it: as the run has gone on without it, or as it
 * lies behind steps that were not applied, of a later start. */
static bool makes_way(const train_told_t *told, const told_step_t *own)
{
    return train_told_stale(told, own) > 0 || (own->refused > 0 && told->chosen->refused == 0 &&
                                               incarnation_later(&own->made, &told->chosen->made));
}

/* Which sites lack it, also as they have another one of that step. */
static lh_status_t find_lacks(const trainer_t *t, const train_told_t *told, bool *any)
{
    train_fetch_t *f = t->fetch;
    const told_step_t *chosen = told->chosen;
    *any = false;
    for (uint32_t r = 0; r < told->size; r++) {
        if (told->ranks[r].leads == 0) continue;
        const told_step_t *own = train_told_find(told, r, chosen->step);
        const bool has = own != NULL && train_told_same(own, chosen);
        if (own != NULL && !has && !makes_way(told, own))
            return fail(LH_MISMATCH,
                        "sites have different checkpoints of step %llu, as rank %u's and others', "
                        "and nothing tells which of them the run has gone on from, as %s: move "
                        "those of one site away",
                        (unsigned long long)chosen->step, r, lacks_reason(own, chosen));
        f->lacks[told->ranks[r].site] = !has;
        *any = *any || !has;
    }
    return LH_OK;
}

/* A stale one below the chosen step is left: nobody loads it while that is there. */
static lh_status_t find_stale(train_fetch_t *f, const train_told_t *told)
{
    f->stale = mem_array(told->count, sizeof(f->stale[0]));
    if (f->stale == NULL) return LH_NO_MEMORY;
    for (size_t i = 0; i < told->count; i++) {
        const told_step_t *s = &told->steps[i];
        const uint64_t since = s->step >= told->chosen->step ? train_told_stale(told, s) : 0;
        if (since > 0)
            f->stale[f->stale_count++] = (stale_step_t){s->site, s->step, s->made.number, since};
    }
    return LH_OK;
}

/* By rank 0: the newest checkpoint that is not gone on from as steps before it were not applied. */
static void warn_of_passed(const trainer_t *t, const train_told_t *told)
{
    const told_step_t *chosen = told->chosen, *passed = NULL;
    for (size_t i = 0; i < told->count && chosen->refused == 0; i++) {
        const told_step_t *s = &told->steps[i];
        const bool newer = s->step >= (passed == NULL ? chosen->step : passed->step + 1);
        if (s->refused > 0 && newer && train_told_stale(told, s) == 0) passed = s;
    }
    if (passed != NULL)
        log_line(LH_LOG_WARN,
                 "site %s: its checkpoint of step %llu is passed over, as the %llu steps before it "
                 "were not applied: the run goes on from step %llu",
                 world_site_name(t->how->world, passed->site), (unsigned long long)passed->step,
                 (unsigned long long)passed->refused, (unsigned long long)chosen->step);
}

/* By rank 0: of two runs the newest step is taken, which may be the one that nobody wants. */
static void warn_of_other_runs(const trainer_t *t, const train_told_t *told)
{
    const told_step_t *chosen = told->chosen;
    for (uint32_t r = 0; r < told->size; r++) {
        const told_step_t *newest = NULL;
        for (size_t i = 0; i < told->count && newest == NULL; i++)
            if (told->steps[i].rank == r) newest = &told->steps[i];
        if (newest == NULL || strcmp(newest->made.run, chosen->made.run) == 0) continue;
        log_line(LH_LOG_WARN,
                 "site %s: its checkpoint of step %llu is of another run than that of step %llu, "
                 "from which all go on",
                 world_site_name(t->how->world, newest->site), (unsigned long long)newest->step,
                 (unsigned long long)chosen->step);
    }
}

/* Whoever has it gives its bytes, all others as many of their own, in as many gathers as it takes. */
static lh_status_t tell_manifest(trainer_t *t, const char *path, uint32_t of)
{
    train_fetch_t *f = t->fetch;
    const uint32_t size = train_agree_size(&t->agree);
    const train_ranks_t *ranks = t->agree.ranks;
    const bool gives = ranks->rank == of;
    lh_status_t status = gives ? checkpoint_copy_manifest(path, &f->text, &f->text_bytes) : LH_OK;
    uint64_t own = status == LH_OK && gives ? f->text_bytes : 0;
    uint64_t *lengths = mem_array(size, sizeof(*lengths));
    if (lengths == NULL) return LH_NO_MEMORY;
    lh_status_t gathered = ranks->gather(ranks->context, &own, sizeof(own), lengths);
    const uint64_t length = gathered == LH_OK ? lengths[of] : 0;
    mem_free(lengths);
    if (status != LH_OK) return status;
    if (gathered != LH_OK) return gathered;
    if (length == 0 || length > MANIFEST_MOST)
        return fail_io(0, "%s: rank %u can't read its manifest", path, of);
    const size_t most = control_gather_most(size);
    char *all = mem_array(size, most), *mine = mem_new((size_t)length);
    if (all == NULL || mine == NULL) gathered = LH_NO_MEMORY;
    if (gives && mine != NULL) memcpy(mine, f->text, (size_t)length);
    for (size_t at = 0; at < length && gathered == LH_OK; at += most) {
        const size_t piece = length - at < most ? length - at : most;
        gathered = ranks->gather(ranks->context, mine + at, piece, all);
        if (gathered == LH_OK) memcpy(mine + at, all + of * piece, piece);
    }
    mem_free(all);
    mem_free(f->text);
    f->text = mine;
    f->text_bytes = (size_t)length;
    return gathered;
}

static lh_status_t open_chosen(trainer_t *t, const train_told_t *told)
{
    const told_step_t *chosen = told->chosen;
    char name[CHECKPOINT_NAME];
    bool any;
    lh_status_t status = find_lacks(t, told, &any);
    if (status == LH_OK) status = find_stale(t->fetch, told);
    if (status != LH_OK) return status;
    if (train_agree_rank(&t->agree) == 0) {
        warn_of_passed(t, told);
        warn_of_other_runs(t, told);
    }
    t->fetch->from = chosen->site;
    checkpoint_name(chosen->step, name);
    char *path = path_join(t->job->checkpoint.folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    if (any) status = tell_manifest(t, path, chosen->rank);
    if (status == LH_OK && t->fetch->lacks[own_site(t)])
        status = checkpoint_open_text(path, t->fetch->text, t->fetch->text_bytes, &t->resumed);
    else if (status == LH_OK)
        status = checkpoint_open(path, &t->resumed);
    if (status == LH_OK && strcmp(t->resumed->manifest->self, chosen->self) != 0)
        status = fail(
            LH_MISMATCH,
            "%s: not the checkpoint that its site's first rank sees there; all hosts of a "
            "site must see the same folder",
            path);
    mem_free(path);
    return status;
}

lh_status_t train_sites_find(trainer_t *t, lh_status_t opened)
{
    const uint32_t sites = t->how->world->row.sites;
    train_told_t told = {0};
    train_sites_close(t);
    t->fetch = mem_new(sizeof(*t->fetch));
    if (t->fetch == NULL) return LH_NO_MEMORY;
    t->fetch->lacks = mem_array(sites, sizeof(*t->fetch->lacks));
    t->fetch->gave = mem_array(sites, sizeof(*t->fetch->gave));
    lh_status_t status = LH_NO_MEMORY;
    if (t->fetch->lacks != NULL && t->fetch->gave != NULL)
        status = train_told_gather(t, opened, &told);
    if (status == LH_OK) t->named = told.ranks[0].named != 0;
    if (status == LH_OK) status = check_told(t, &told);
    for (uint32_t r = 0; status == LH_OK && r < told.size; r++)
        if (told.ranks[r].before.number > t->fetch->before.number)
            t->fetch->before = told.ranks[r].before;
    if (status == LH_OK && told.chosen != NULL) status = open_chosen(t, &told);
    train_told_clear(&told);
    return status;
}

void train_sites_close(trainer_t *t)
{
    if (t->fetch == NULL) return;
    mem_free(t->fetch->text);
    mem_free(t->fetch->lacks);
    mem_free(t->fetch->gave);
    mem_free(t->fetch->stale);
    mem_free(t->fetch);
    t->fetch = NULL;
}

/* ---- what the run has gone on without -------------------------------------------------------- */

/* In this rank's folder, where its site is one that lacks the chosen step, or one that has it. */
static void stale_set_aside(const trainer_t *t, bool lacks)
{
    const train_fetch_t *f = t->fetch;
    for (size_t i = 0; i < f->stale_count; i++)
        if (f->stale[i].site == own_site(t) && f->lacks[own_site(t)] == lacks)
            checkpoint_set_stale(t->job->checkpoint.folder, f->stale[i].step);
}

/* By rank 0, of all such sites. */
static void stale_warn(const trainer_t *t, bool lacks)
{
    const train_fetch_t *f = t->fetch;
    for (size_t i = 0; i < f->stale_count && train_agree_rank(&t->agree) == 0; i++) {
        const stale_step_t *s = &f->stale[i];
        char name[CHECKPOINT_NAME];
        checkpoint_name(s->step, name);
        if (f->lacks[s->site] != lacks) continue;
        log_line(LH_LOG_WARN,
                 "site %s: its checkpoint of step %llu was made in incarnation %llu of the run, "
                 "which has gone on without it in incarnation %llu: it is set aside there as "
                 "stale-%s",
                 world_site_name(t->how->world, s->site), (unsigned long long)s->step,
                 (unsigned long long)s->incarnation, (unsigned long long)s->since, name);
    }
}

void train_sites_loaded(const trainer_t *t)
{
    if (t->fetch == NULL) return;
    if (writer_leads(t->writer)) stale_set_aside(t, false);
    stale_warn(t, false);
}

/* ---- what is lacking ------------------------------------------------------------------------- */

/* As base/status.h keeps them. */
enum { FETCH_REASON = 2048 };

/* One rank's part of a copy: what it sends, or has of each rank that sends to it. */
typedef struct fetch_work {
    trainer_t *t;
    bool gives, takes;
    uint32_t senders;             /* ranks of the site that gives */
    checkpoint_copy_t own, *come; /* come: [guest_count] */
    uint64_t own_left, come_left[SAVER_GUESTS];
    commit_t *commit;
    lh_status_t status;        /* of the files here; the messages go on */
    char reason[FETCH_REASON]; /* of its failure */
    bool damaged;              /* all have agreed on that: it is not whole where it comes from */
} fetch_work_t;

/* The first failure is the one that is told: what follows of it fails by itself. */
static void fetch_note(fetch_work_t *w, lh_status_t status)
{
    if (w->status != LH_OK || status == LH_OK) return;
    w->status = status;
    (void)snprintf(w->reason, sizeof(w->reason), "%s", fail_reason());
}

/* The staging folder is this start's and of this giver: a copy that was cut off before is another one's leftover. */
static lh_status_t fetch_begin(fetch_work_t *w)
{
    trainer_t *t = w->t;
    const world_t *world = t->how->world;
    const manifest_t *m = t->resumed->manifest;
    char name[CHECKPOINT_NAME], staging[CHECKPOINT_NAME + 48];
    checkpoint_name(m->meta.step, name);
    (void)snprintf(staging, sizeof(staging), ".tmp-%s-%016llx-copy-%u", name,
                   (unsigned long long)t->session_number, t->fetch->from);
    const world_rank_t *own = &world->ranks[world->row.rank];
    w->senders = world_site_size(world, own->site);
    if (w->gives) {
        checkpoint_copy_begin(&w->own, m, t->resumed->path, own->place, w->senders, false);
        w->own_left = checkpoint_copy_bytes(&w->own);
    }
    if (!w->takes) return LH_OK;
    w->come = mem_array(t->memory.guest_count + 1u, sizeof(*w->come));
    if (w->come == NULL) return LH_NO_MEMORY;
    const lh_status_t status = commit_join(t->job->checkpoint.folder, &m->meta, m->parent, staging,
                                           COMMIT_FOLLOWS, &w->commit);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < t->memory.guest_count; i++) {
        const world_rank_t *guest = &world->ranks[t->memory.guests[i]];
        if (guest->site != t->fetch->from) continue;
        checkpoint_copy_begin(&w->come[i], m, commit_staging(w->commit), guest->place,
                              world_site_size(world, guest->site), true);
        w->come_left[i] = checkpoint_copy_bytes(&w->come[i]);
    }
    return LH_OK;
}

/* The status of damage where the copy comes from, which is told from a disk that takes none. */
static lh_status_t fetch_damaged(void)
{
    char why[FETCH_REASON];
    (void)snprintf(why, sizeof(why), "%s", fail_reason());
    return fail_again(LH_CORRUPT, why);
}

/* The next piece of what goes to others. */
static lh_status_t fetch_read(fetch_work_t *w, uint64_t room)
{
    void *slot = writer_slot(w->t->writer, 0, 0);
    const lh_status_t status = checkpoint_copy_move(&w->own, slot, room);
    if (status == LH_OK || !checkpoint_lost(status, errno)) return status;
    return fetch_damaged();
}

/* What this rank has written for its site. That it can't be read back is this disk's failure. */
static lh_status_t fetch_verify(const fetch_work_t *w)
{
    const train_fetch_t *f = w->t->fetch;
    if (!w->takes) return LH_OK;
    lh_status_t status = LH_IO;
    for (int i = 0; i < 2 && status == LH_IO; i++) /* it may succeed the next moment */
        status = checkpoint_copy_verify(commit_staging(w->commit), w->come,
                                        w->t->memory.guest_count, f->text, f->text_bytes);
    if (status == LH_OK || status == LH_IO || !checkpoint_damaged(status, errno)) return status;
    return fetch_damaged();
}

/* One piece of each stream; whoever has none left starts nothing, which both ends of a message know by
 * the manifest. *more: something is left. */
static lh_status_t fetch_round(fetch_work_t *w, bool *more)
{
    trainer_t *t = w->t;
    train_memory_t *m = &t->memory;
    const uint64_t room = m->bytes[train_agree_rank(&t->agree)];
    const bool sends = w->own_left > 0;
    lh_status_t status = LH_OK;
    *more = false;
    if (sends && w->status == LH_OK) fetch_note(w, fetch_read(w, room));
    for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++)
        if (w->come_left[i] > 0) status = collective_start(m->receive[i * MEMORY_OWN]);
    for (uint32_t i = 0; i < m->target_count && status == LH_OK && sends; i++)
        if (t->fetch->lacks[t->how->world->ranks[m->targets[i]].site])
            status = collective_start(m->send[i * MEMORY_OWN]);
    for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++) {
        if (w->come_left[i] == 0) continue;
        const uint64_t piece = m->bytes[m->guests[i]];
        status = collective_wait(m->receive[i * MEMORY_OWN]);
        if (status == LH_OK && w->status == LH_OK)
            fetch_note(w,
                       checkpoint_copy_move(&w->come[i], writer_slot(t->writer, i + 1, 0), piece));
        w->come_left[i] -= piece < w->come_left[i] ? piece : w->come_left[i];
        *more = *more || w->come_left[i] > 0;
    }
    for (uint32_t i = 0; i < m->target_count && status == LH_OK && sends; i++)
        if (t->fetch->lacks[t->how->world->ranks[m->targets[i]].site])
            status = collective_wait(m->send[i * MEMORY_OWN]);
    w->own_left -= room < w->own_left ? room : w->own_left;
    *more = *more || w->own_left > 0;
    return status;
}

/* Every rank's files are on the disk and whole: who leads commits. What is stale, or a damaged one of that
 * step, makes way; others above it do once all is loaded. */
static lh_status_t fetch_commit(fetch_work_t *w)
{
    trainer_t *t = w->t;
    const train_fetch_t *f = t->fetch;
    commit_t *c = w->commit;
    w->commit = NULL;
    stale_set_aside(t, true);
    checkpoint_set_damaged(t->job->checkpoint.folder, t->resumed->manifest->meta.step);
    return checkpoint_copy_commit(c, f->text, f->text_bytes);
}

/* What one rank's disk refuses, all hear. */
static lh_status_t fetch_agree(trainer_t *t, lh_status_t status)
{
    char sentence[AGREE_SENTENCE];
    (void)snprintf(sentence, sizeof(sentence), "%s", status == LH_OK ? "" : fail_reason());
    const lh_status_t agreed = train_agree_failure(&t->agree, &status, sentence, sizeof(sentence));
    if (agreed != LH_OK) return agreed;
    return status == LH_OK ? LH_OK : fail(status, "%s", sentence);
}

/* Of the files of this rank. */
static lh_status_t fetch_agree_noted(fetch_work_t *w)
{
    if (w->status != LH_OK) (void)fail_again(w->status, w->reason);
    const lh_status_t status = fetch_agree(w->t, w->status);
    w->damaged = status == LH_CORRUPT;
    return status;
}

/* Closes what is open, once it is known what all have met: of that the sentence stays. */
static lh_status_t fetch_end(fetch_work_t *w, lh_status_t met)
{
    const trainer_t *t = w->t;
    char why[FETCH_REASON];
    (void)snprintf(why, sizeof(why), "%s", met == LH_OK ? "" : fail_reason());
    for (uint32_t i = 0; w->come != NULL && i < t->memory.guest_count; i++)
        if (w->come[i].manifest != NULL) fetch_note(w, checkpoint_copy_end(&w->come[i]));
    if (w->own.manifest != NULL) (void)checkpoint_copy_end(&w->own);
    /* What went through the slots is no image. */
    for (uint32_t i = 0; i <= t->memory.guest_count; i++)
        memory_empty(writer_slot(t->writer, i, 0));
    return met == LH_OK ? LH_OK : fail_again(met, why);
}

static lh_status_t fetch_all(fetch_work_t *w)
{
    bool more = true;
    fetch_note(w, fetch_begin(w));
    lh_status_t status = fetch_agree_noted(w);
    while (status == LH_OK && more)
        status = fetch_round(w, &more);
    status = fetch_end(w, status);
    /* Before it is read back: of what a giver could not read something else has come, which is no damage. */
    if (status == LH_OK) status = fetch_agree_noted(w);
    if (status == LH_OK) fetch_note(w, fetch_verify(w));
    if (status == LH_OK) status = fetch_agree_noted(w);
    if (status != LH_OK) return status;
    if (w->takes && writer_leads(w->t->writer)) fetch_note(w, fetch_commit(w));
    status = fetch_agree_noted(w);
    w->damaged = false; /* it was whole: this is the failure of a disk that takes it */
    return status;
}

/* The first site that has a copy which is still to be tried; the count of sites: none has. */
static uint32_t fetch_giver(const trainer_t *t)
{
    const train_fetch_t *f = t->fetch;
    uint32_t site = 0;
    while (site < t->how->world->row.sites && (f->lacks[site] || f->gave[site]))
        site++;
    return site;
}

/* That site's copy came damaged, as fail_reason() says. False: no other one is to be had. */
static bool fetch_go_on(trainer_t *t)
{
    train_fetch_t *f = t->fetch;
    const world_t *world = t->how->world;
    const unsigned long long step = (unsigned long long)t->resumed->manifest->meta.step;
    f->gave[f->from] = true;
    const uint32_t from = fetch_giver(t);
    const bool more = from < world->row.sites;
    if (train_agree_rank(&t->agree) == 0 && more)
        log_line(LH_LOG_WARN,
                 "site %s: its copy of step %llu came damaged (%s): that of site %s is taken",
                 world_site_name(world, f->from), step, fail_reason(),
                 world_site_name(world, from));
    else if (train_agree_rank(&t->agree) == 0)
        log_line(LH_LOG_WARN, "step %llu did not come: %s", step, fail_reason());
    if (more) f->from = from;
    return more;
}

/* Removes what has come of a damaged copy. All wait for that, which may take long: the next one needs the
 * space. */
static lh_status_t fetch_drop(fetch_work_t *w)
{
    if (writer_leads(w->t->writer)) {
        commit_abandon(w->commit);
        w->commit = NULL;
    }
    return fetch_agree(w->t, LH_OK);
}

/* From one site after the other, until a copy is whole. */
static lh_status_t fetch_any(trainer_t *t, bool *brought)
{
    lh_status_t status;
    bool more;
    do {
        fetch_work_t w = {
            .t = t, .gives = own_site(t) == t->fetch->from, .takes = t->fetch->lacks[own_site(t)]};
        status = fetch_all(&w);
        *brought = !w.damaged;
        more = w.damaged && fetch_go_on(t);
        if (w.damaged) status = fetch_drop(&w);
        if (w.commit != NULL) commit_leave(w.commit);
        mem_free(w.come);
    } while (status == LH_OK && more);
    return status;
}

lh_status_t train_sites_fetch(trainer_t *t, bool *brought)
{
    const world_t *world = t->how->world;
    bool any = false;
    *brought = true;
    if (t->fetch == NULL || t->resumed == NULL) return LH_OK;
    for (uint32_t s = 0; s < world->row.sites; s++)
        any = any || t->fetch->lacks[s];
    if (!any) return LH_OK;
    const uint64_t since = sys()->now_ns();
    lh_status_t status = fetch_any(t, brought);
    if (status != LH_OK || !*brought) return status;
    if (t->fetch->lacks[own_site(t)]) {
        char *path = mem_text(t->resumed->path);
        checkpoint_close(t->resumed);
        t->resumed = NULL;
        status = path == NULL ? LH_NO_MEMORY : checkpoint_open(path, &t->resumed);
        mem_free(path);
    }
    if (status == LH_OK && train_agree_rank(&t->agree) == 0)
        log_line(LH_LOG_INFO, "step %llu was brought to the sites that lacked it in %.1f s",
                 (unsigned long long)t->resumed->manifest->meta.step,
                 (double)(sys()->now_ns() - since) * 1e-9);
    if (status == LH_OK) stale_warn(t, true);
    return status;
}

/* ---- what is damaged in some sites alone ----------------------------------------------------- */

/* Marks the sites of ranks that have found damage. */
static lh_status_t again_gather(trainer_t *t, bool lost, bool *sites)
{
    const train_ranks_t *ranks = t->agree.ranks;
    const uint64_t own = lost;
    uint64_t *all = mem_array(ranks->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = ranks->gather(ranks->context, &own, sizeof(own), all);
    for (uint32_t r = 0; r < ranks->size && status == LH_OK; r++)
        if (all[r] != 0) sites[t->how->world->ranks[r].site] = true;
    mem_free(all);
    return status;
}

/* Those sites lack it from now on. What is stale in sites that lacked it before was set aside with the copy
 * that came. */
static void again_lack(trainer_t *t, const bool *lost)
{
    train_fetch_t *f = t->fetch;
    size_t left = 0;
    for (size_t i = 0; i < f->stale_count; i++)
        if (!f->lacks[f->stale[i].site]) f->stale[left++] = f->stale[i];
    f->stale_count = left;
    for (uint32_t s = 0; s < t->how->world->row.sites; s++)
        f->lacks[s] = lost[s];
}

/* Whoever's copy takes the place of a damaged one gives it once: that one may be damaged anew, on a disk that
 * changes what it is given. */
static lh_status_t again_from(trainer_t *t, uint32_t from, bool *again)
{
    train_fetch_t *f = t->fetch;
    lh_status_t status = LH_OK;
    f->from = from;
    if (f->text == NULL)
        status = tell_manifest(t, t->resumed->path, world_site_rank(t->how->world, from, 0));
    if (status == LH_OK) status = train_sites_fetch(t, again);
    f->gave[f->from] = true;
    return status;
}

lh_status_t train_sites_again(trainer_t *t, bool lost, bool *again)
{
    *again = false;
    if (t->fetch == NULL) return LH_OK;
    const world_t *world = t->how->world;
    const unsigned long long step = (unsigned long long)t->resumed->manifest->meta.step;
    bool *sites = mem_array(world->row.sites, sizeof(*sites));
    if (sites == NULL) return LH_NO_MEMORY;
    lh_status_t status = again_gather(t, lost, sites);
    if (status == LH_OK) again_lack(t, sites);
    const uint32_t from = fetch_giver(t);
    if (status == LH_OK && from < world->row.sites) {
        if (lost)
            log_line(LH_LOG_WARN,
                     "site %s: its copy of step %llu is damaged (%s): that of site %s is taken",
                     world_site_name(world, own_site(t)), step, fail_reason(),
                     world_site_name(world, from));
        /* Where a disk has no room for it all fail: they don't go back, as the step is whole elsewhere. */
        status = again_from(t, from, again);
    }
    mem_free(sites);
    return status;
}

/* ---- which start this is --------------------------------------------------------------------- */

incarnation_t train_sites_before(const trainer_t *t)
{
    incarnation_t before = {.number = 0};
    if (t->fetch != NULL) return t->fetch->before;
    if (incarnation_read(t->job->checkpoint.folder, &before) != LH_OK) fail_clear();
    return before;
}

/* The highest number of all ranks'. */
static lh_status_t highest_of_ranks(trainer_t *t, uint64_t *number)
{
    const train_ranks_t *ranks = t->agree.ranks;
    const uint64_t own = *number;
    if (ranks == NULL) return LH_OK;
    uint64_t *all = mem_array(ranks->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = ranks->gather(ranks->context, &own, sizeof(own), all);
    for (uint32_t r = 0; r < ranks->size && status == LH_OK; r++)
        if (all[r] > *number) *number = all[r];
    mem_free(all);
    return status;
}

/* All have it on their disks before any of them saves: whoever goes on without the others finds it. A folder
 * that was lost, or a checkpoint that was copied here, does not set the count back. */
lh_status_t train_sites_incarnation(trainer_t *t)
{
    const char *folder = t->job->checkpoint.folder;
    const bool leads = writer_leads(t->writer);
    const uint64_t resumed = t->resumed == NULL ? 0 : incarnation_of(t->resumed->manifest).number;
    incarnation_t own = {.number = 0};
    if (!t->job->checkpoint.apart && !t->memory.keeps && resumed == 0) return LH_OK;
    lh_status_t status = leads ? incarnation_read(folder, &own) : LH_OK;
    status = fetch_agree(t, status);
    if (status == LH_OK) status = highest_of_ranks(t, &own.number);
    if (status != LH_OK) return status;
    const uint64_t seen = own.number > resumed ? own.number : resumed;
    own.number = incarnation_after(seen);
    if (own.number == seen && train_agree_rank(&t->agree) == 0)
        log_line(LH_LOG_WARN,
                 "[checkpoint] folder: a start before has the number %llu, the last that there is: "
                 "of what this one saves and what that one has saved nothing tells which is later",
                 (unsigned long long)seen);
    (void)snprintf(own.run, sizeof(own.run), "%s", t->run);
    if (leads) status = incarnation_write(folder, &own);
    status = fetch_agree(t, status);
    if (status == LH_OK) t->incarnation = own.number;
    return status;
}
