/* train_sites.c - checkpoints of sites that have no file system in common.
 *
 * Each site has a whole copy of every checkpoint, made by the save itself (train_save.c). A site that
 * was cut off, or is new, or has lost its disk, lacks some. At a start one rank of each site tells
 * which it has, so that all know the newest that anybody has. The manifest is told to all at once, as
 * the session is opened by it. The files come when the links are there: the ranks of the first site that
 * has them send to those of each site that lacks them, by the messages that bring images at a save, a
 * slot's bytes at a time. What has come is committed before anything of it is loaded.
 *
 * A site may hold steps without which the others have gone on: a save came to its end there alone, then the
 * site was cut off, and the others made these steps again from the checkpoint before. The later start of the
 * run counts (incarnation.h), whichever has the newer step: its metrics have been told, and what members that
 * are most have done is never undone by one that was away. What the site has of the earlier start is set
 * aside there, and it takes the others' copy. Two manifests of one step of which nothing tells that (other
 * runs, or one start, or checkpoints that do not say) are refused: none of them could be the right one to set
 * aside. */
#include <train/train_sites.h>

#include <errno.h>
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

/* TOLD_STEPS: of the newest of a folder. */
enum { TOLD_STEPS = 8, TOLD_REASON = 256 };

typedef struct told_step {
    uint64_t step;
    uint64_t incarnation;
    uint32_t refused; /* it lies behind steps that were not applied */
    char self[SHA256_TEXT], run[RUN_ID];
} told_step_t;

/* As it travels: of a rank that does not lead only the status. */
typedef struct site_told {
    lh_status_t status;
    uint32_t site, leads, resume, named;
    uint64_t named_step;
    uint32_t count;
    told_step_t steps[TOLD_STEPS];
    char reason[TOLD_REASON];
} site_told_t;

/* A checkpoint that a later start of the run has gone on without. */
typedef struct stale_step {
    uint32_t site;
    uint64_t step, incarnation;
} stale_step_t;

/* While opening: what is to come from where. */
typedef struct train_fetch {
    char *text; /* of the manifest */
    size_t text_bytes;
    uint32_t from; /* site */
    bool *lacks;   /* [sites] */
    /* [stale_count], with room for all that ranks can tell: those of the chosen step and above. */
    stale_step_t *stale;
    uint32_t stale_count;
} train_fetch_t;

static uint32_t own_site(const trainer_t *t)
{
    return t->how->world->ranks[t->how->world->row.rank].site;
}

/* Opening looks at every file's size and header; one that is damaged is told and left out. */
static lh_status_t tell_site_step(const char *folder, uint64_t step, site_told_t *own)
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    checkpoint_t *c = NULL;
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = checkpoint_open(path, &c);
    const int error = errno;
    mem_free(path);
    if (status == LH_OK) {
        told_step_t *to = &own->steps[own->count++];
        *to = (told_step_t){.step = step,
                            .incarnation = manifest_incarnation(c->manifest),
                            .refused = manifest_refused(c->manifest) > 0};
        memcpy(to->self, c->manifest->self, sizeof(to->self));
        (void)snprintf(to->run, sizeof(to->run), "%s", c->manifest->meta.run);
        checkpoint_close(c);
        return LH_OK;
    }
    if (!checkpoint_damaged(status, error)) return status;
    checkpoint_skip(step);
    return LH_OK;
}

static lh_status_t look_at_folder(const trainer_t *t, site_told_t *own)
{
    checkpoint_steps_t steps;
    const uint64_t *named = t->how->resume_step;
    lh_status_t status = checkpoint_steps(t->job->checkpoint.folder, &steps);
    if (status != LH_OK) return status;
    for (size_t i = 0; i < steps.count && status == LH_OK && own->count < TOLD_STEPS; i++)
        if (named != NULL ? steps.steps[i] == *named : steps.steps[i] < t->below)
            status = tell_site_step(t->job->checkpoint.folder, steps.steps[i], own);
    mem_free(steps.steps);
    return status;
}

static lh_status_t tell_all(trainer_t *t, lh_status_t opened, site_told_t *all)
{
    site_told_t own = {.status = opened,
                       .site = own_site(t),
                       .leads = t->writer != NULL && writer_leads(t->writer),
                       .resume = t->how->resume,
                       .named = t->how->resume_step != NULL};
    if (own.named != 0) own.named_step = *t->how->resume_step;
    if (own.leads != 0 && own.status == LH_OK) own.status = look_at_folder(t, &own);
    if (own.status != LH_OK)
        (void)snprintf(own.reason, sizeof(own.reason), "%.255s", fail_reason());
    return t->agree.ranks->gather(t->agree.ranks->context, &own, sizeof(own), all);
}

static const told_step_t *find_step(const site_told_t *of, uint64_t step)
{
    for (uint32_t i = 0; i < of->count && i < TOLD_STEPS; i++)
        if (of->steps[i].step == step) return &of->steps[i];
    return NULL;
}

static bool has_told(const site_told_t *of, const told_step_t *step)
{
    const told_step_t *own = find_step(of, step->step);
    return own != NULL && strcmp(own->self, step->self) == 0;
}

/* Whether the run has gone on to `s` without `other`; both say in which start they were made. A site that
 * has both took part in that start, which left it nothing else: somebody has put `other` back to go on
 * from it. */
static bool step_supersedes(const site_told_t *all, uint32_t size, const told_step_t *s,
                            const told_step_t *other)
{
    bool both = false;
    if (other->incarnation == 0 || s->incarnation <= other->incarnation ||
        strcmp(s->run, other->run) != 0)
        return false;
    for (uint32_t r = 0; r < size && !both; r++)
        both = has_told(&all[r], s) && has_told(&all[r], other);
    return !both;
}

/* Of those that are of its run and no worse than the newest, the newest of the latest start. */
static const told_step_t *choose_latest(const site_told_t *all, uint32_t size,
                                        const told_step_t *newest, uint32_t *of)
{
    const told_step_t *best = newest;
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t i = 0; i < all[r].count && i < TOLD_STEPS; i++) {
            const told_step_t *s = &all[r].steps[i];
            const bool newer = s->incarnation == best->incarnation && s->step > best->step &&
                               strcmp(s->run, best->run) == 0;
            if (s->refused != best->refused || !(newer || step_supersedes(all, size, s, best)))
                continue;
            best = s;
            *of = r;
        }
    return best;
}

/* The newest good one, else the newest, unless the run has gone on without it; NULL: none. *of: who tells
 * it, the lowest rank. */
static const told_step_t *choose_step(const site_told_t *all, uint32_t size, uint32_t *of)
{
    const told_step_t *best = NULL;
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t i = 0; i < all[r].count && i < TOLD_STEPS; i++) {
            const told_step_t *s = &all[r].steps[i];
            const bool better = best == NULL || s->refused < best->refused ||
                                (s->refused == best->refused && s->step > best->step);
            if (!better) continue;
            best = s;
            *of = r;
        }
    return best == NULL ? NULL : choose_latest(all, size, best, of);
}

/* What one rank has met ends the start of all, as does what rank 0 was not asked to do. */
static lh_status_t check_told(const trainer_t *t, const site_told_t *all, uint32_t size,
                              const told_step_t *chosen)
{
    const char *folder = t->job->checkpoint.folder;
    for (uint32_t r = 0; r < size; r++)
        if (all[r].status != LH_OK) return fail(all[r].status, "rank %u: %.255s", r, all[r].reason);
    if (chosen == NULL && all[0].named != 0)
        return fail(LH_INVALID, "--resume %llu: no site has that checkpoint",
                    (unsigned long long)all[0].named_step);
    if (chosen == NULL && t->below != UINT64_MAX)
        return fail(LH_CORRUPT, "%s: none of any site's checkpoints is whole", folder);
    if (chosen == NULL || all[0].resume != 0) return LH_OK;
    return fail(
        LH_INVALID,
        "%s: a site holds step %llu of an earlier run; go on from it with --resume, or move it "
        "away",
        folder, (unsigned long long)chosen->step);
}

/* Of what rank r tells of its site's folder, the steps without which the run has gone on to `chosen`, which
 * that site then lacks. */
static void find_stale(train_fetch_t *f, const site_told_t *all, uint32_t size, uint32_t r,
                       const told_step_t *chosen)
{
    for (uint32_t i = 0; i < all[r].count && i < TOLD_STEPS; i++) {
        const told_step_t *s = &all[r].steps[i];
        if (s->step >= chosen->step && step_supersedes(all, size, chosen, s))
            f->stale[f->stale_count++] = (stale_step_t){all[r].site, s->step, s->incarnation};
    }
}

/* Which sites lack it, also as they have another one of that step, without which the run has gone on. */
static lh_status_t find_lacks(const trainer_t *t, const site_told_t *all, uint32_t size,
                              const told_step_t *chosen, bool *any)
{
    train_fetch_t *f = t->fetch;
    *any = false;
    for (uint32_t r = 0; r < size; r++) {
        if (all[r].leads == 0) continue;
        const told_step_t *own = find_step(&all[r], chosen->step);
        const bool has = has_told(&all[r], chosen);
        if (own != NULL && !has && !step_supersedes(all, size, chosen, own))
            return fail(LH_MISMATCH,
                        "sites have different checkpoints of step %llu, as rank %u's and others', "
                        "and nothing tells which of them the run has gone on from: move those of "
                        "one site away",
                        (unsigned long long)chosen->step, r);
        f->lacks[all[r].site] = !has;
        *any = *any || !has;
        find_stale(f, all, size, r, chosen);
    }
    return LH_OK;
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

static lh_status_t open_chosen(trainer_t *t, const site_told_t *all, uint32_t size,
                               const told_step_t *chosen, uint32_t of)
{
    char name[CHECKPOINT_NAME];
    bool any;
    lh_status_t status = find_lacks(t, all, size, chosen, &any);
    if (status != LH_OK) return status;
    t->fetch->from = all[of].site;
    checkpoint_name(chosen->step, name);
    char *path = path_join(t->job->checkpoint.folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    if (any) status = tell_manifest(t, path, of);
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
    const uint32_t size = train_agree_size(&t->agree), sites = t->how->world->row.sites;
    uint32_t of = 0;
    train_sites_close(t);
    t->fetch = mem_new(sizeof(*t->fetch));
    site_told_t *all = mem_array(size, sizeof(*all));
    if (t->fetch != NULL) {
        t->fetch->lacks = mem_array(sites, sizeof(*t->fetch->lacks));
        t->fetch->stale = mem_array((size_t)size * TOLD_STEPS, sizeof(*t->fetch->stale));
    }
    lh_status_t status = LH_NO_MEMORY;
    if (all != NULL && t->fetch != NULL && t->fetch->lacks != NULL && t->fetch->stale != NULL)
        status = tell_all(t, opened, all);
    const told_step_t *chosen = status == LH_OK ? choose_step(all, size, &of) : NULL;
    if (status == LH_OK) status = check_told(t, all, size, chosen);
    if (status == LH_OK && chosen != NULL) status = open_chosen(t, all, size, chosen, of);
    mem_free(all);
    return status;
}

void train_sites_close(trainer_t *t)
{
    if (t->fetch == NULL) return;
    mem_free(t->fetch->text);
    mem_free(t->fetch->lacks);
    mem_free(t->fetch->stale);
    mem_free(t->fetch);
    t->fetch = NULL;
}

/* ---- what the run has gone on without -------------------------------------------------------- */

/* In this rank's folder. */
static void stale_set_aside(const trainer_t *t)
{
    const train_fetch_t *f = t->fetch;
    for (uint32_t i = 0; i < f->stale_count; i++)
        if (f->stale[i].site == own_site(t))
            checkpoint_set_stale(t->job->checkpoint.folder, f->stale[i].step);
}

/* By rank 0, once that is done in all folders. */
static void stale_warn(const trainer_t *t)
{
    const train_fetch_t *f = t->fetch;
    const uint64_t now = manifest_incarnation(t->resumed->manifest);
    for (uint32_t i = 0; i < f->stale_count && train_agree_rank(&t->agree) == 0; i++) {
        const stale_step_t *s = &f->stale[i];
        char name[CHECKPOINT_NAME];
        checkpoint_name(s->step, name);
        log_line(LH_LOG_WARN,
                 "site %s: its checkpoint of step %llu was made in incarnation %llu of the run, "
                 "which has gone on without it in incarnation %llu: it is set aside there as "
                 "stale-%s",
                 world_site_name(t->how->world, s->site), (unsigned long long)s->step,
                 (unsigned long long)s->incarnation, (unsigned long long)now, name);
    }
}

/* ---- what is lacking ------------------------------------------------------------------------- */

/* One rank's part of a copy: what it sends, or has of each rank that sends to it. */
typedef struct fetch_work {
    trainer_t *t;
    bool gives, takes;
    uint32_t senders;             /* ranks of the site that gives */
    checkpoint_copy_t own, *come; /* come: [guest_count] */
    uint64_t own_left, come_left[SAVER_GUESTS];
    commit_t *commit;
    lh_status_t status; /* of the files here; the messages go on */
} fetch_work_t;

static void fetch_note(fetch_work_t *w, lh_status_t status)
{
    if (w->status == LH_OK) w->status = status;
}

/* The staging folder is this start's: a copy that was cut off before is another one's leftover. */
static lh_status_t fetch_begin(fetch_work_t *w)
{
    trainer_t *t = w->t;
    const world_t *world = t->how->world;
    const manifest_t *m = t->resumed->manifest;
    char name[CHECKPOINT_NAME], staging[CHECKPOINT_NAME + 32];
    checkpoint_name(m->meta.step, name);
    (void)snprintf(staging, sizeof(staging), ".tmp-%s-%016llx-copy", name,
                   (unsigned long long)t->session_number);
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
    if (sends && w->status == LH_OK)
        fetch_note(w, checkpoint_copy_move(&w->own, writer_slot(t->writer, 0, 0), room));
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

/* Every rank's files are on the disk: who leads commits. What is stale, or a damaged one of that step, and
 * those above, make way. */
static lh_status_t fetch_commit(fetch_work_t *w)
{
    trainer_t *t = w->t;
    const train_fetch_t *f = t->fetch;
    commit_t *c = w->commit;
    w->commit = NULL;
    const uint64_t step = t->resumed->manifest->meta.step;
    stale_set_aside(t);
    if (step > 0 && file_exists(t->resumed->path))
        checkpoint_make_way(t->job->checkpoint.folder, step - 1, false);
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

static lh_status_t fetch_all(fetch_work_t *w)
{
    trainer_t *t = w->t;
    train_memory_t *m = &t->memory;
    bool more = true;
    fetch_note(w, fetch_begin(w));
    lh_status_t status = fetch_agree(t, w->status);
    while (status == LH_OK && more)
        status = fetch_round(w, &more);
    for (uint32_t i = 0; w->come != NULL && i < m->guest_count; i++)
        if (w->come[i].manifest != NULL) {
            const lh_status_t ended = checkpoint_copy_end(&w->come[i]);
            fetch_note(w, ended);
        }
    if (w->own.manifest != NULL) (void)checkpoint_copy_end(&w->own);
    /* What went through the slots is no image. */
    for (uint32_t i = 0; i <= m->guest_count; i++)
        memory_empty(writer_slot(t->writer, i, 0));
    if (status == LH_OK) status = fetch_agree(t, w->status);
    if (status != LH_OK) return status;
    if (w->takes && writer_leads(t->writer)) fetch_note(w, fetch_commit(w));
    return fetch_agree(t, w->status);
}

lh_status_t train_sites_fetch(trainer_t *t)
{
    const world_t *world = t->how->world;
    bool any = false;
    if (t->fetch == NULL || t->resumed == NULL) return LH_OK;
    for (uint32_t s = 0; s < world->row.sites; s++)
        any = any || t->fetch->lacks[s];
    if (!any) return LH_OK;
    fetch_work_t w = {
        .t = t, .gives = own_site(t) == t->fetch->from, .takes = t->fetch->lacks[own_site(t)]};
    const uint64_t since = sys()->now_ns();
    lh_status_t status = fetch_all(&w);
    if (w.commit != NULL) commit_leave(w.commit);
    mem_free(w.come);
    if (status == LH_OK && w.takes) {
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
    if (status == LH_OK) stale_warn(t);
    return status;
}

/* ---- which start this is --------------------------------------------------------------------- */

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
    if (!t->job->checkpoint.apart && resumed == 0) return LH_OK;
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
