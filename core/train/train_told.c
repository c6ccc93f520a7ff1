/* train_told.c - the table of what all sites have, and the choice of the step to go on from.
 *
 * Each site's leader tells the newest steps of its folder, all ranks gather that, and choose. Where a
 * folder has more, which may matter, its leader tells those too, and all choose again: mostly one round
 * does, as sites have the same steps.
 *
 * Which one is chosen. A checkpoint is stale where a later start of its run has gone on without it: that
 * start has saved something, and no site has both (train_sites.c says how that comes about). A site that
 * has both took part in the later start, which left it nothing above what it went on from: so the older
 * one is what that start has gone on from, or somebody has put it back. Of those that are not stale the
 * newest good one is chosen. Checkpoints behind steps that were not applied are not good, but they do
 * show that their start has gone on without others. Where that leaves no good one, good ones that are
 * stale by nothing else are better than those; and where there is no good one at all the newest is taken. */
#include <train/train_told.h>

#include <stdio.h>
#include <string.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/checkpoint_folder.h>

/* ---- a folder -------------------------------------------------------------------------------- */

/* A file with the name of a step, which somebody has put there, never was a checkpoint. */
static bool told_is_file(const char *folder, uint64_t step)
{
    struct stat st;
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    const bool file = path != NULL && sys()->lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    mem_free(path);
    return file;
}

/* Opening looks at every file's size and header; one that is damaged is told and left out, as is one whose data
 * were. */
static lh_status_t told_add_step(const trainer_t *t, uint64_t step, told_site_t *own)
{
    const char *folder = t->job->checkpoint.folder;
    checkpoint_t *c = NULL;
    const lh_status_t status = checkpoint_open_step(folder, step, &c);
    if (status == LH_CORRUPT && !told_is_file(folder, step)) own->damaged = 1;
    if (status == LH_CORRUPT || status == LH_AGAIN) return LH_OK;
    if (status != LH_OK) return status;
    if (!checkpoint_excluded(&t->below, c)) {
        lh_assert(own->count < TOLD_STEPS);
        told_step_t *to = &own->steps[own->count++];
        *to = (told_step_t){.step = step,
                            .refused = manifest_refused(c->manifest),
                            .made = incarnation_of(c->manifest)};
        memcpy(to->self, c->manifest->self, sizeof(to->self));
    }
    checkpoint_close(c);
    return LH_OK;
}

/* What rank 0 was told to resume from counts for all: another site's launcher may have been given another
 * command, and one that starts ranks again before training has begun does not repeat a step that was named,
 * as rank 0's alone knows of that. */
static lh_status_t told_named(const trainer_t *t, told_site_t *own)
{
    const train_ranks_t *ranks = t->agree.ranks;
    const uint64_t *step = t->how->resume_step;
    const uint64_t none = UINT64_MAX, mine = step == NULL ? none : *step;
    uint64_t *all = mem_array(ranks->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = ranks->gather(ranks->context, &mine, sizeof(mine), all);
    own->named = status == LH_OK && all[0] != none;
    own->named_step = own->named != 0 ? all[0] : 0;
    mem_free(all);
    return status;
}

/* Those that may be gone on from, newest first. */
static lh_status_t told_list(const trainer_t *t, const told_site_t *own, checkpoint_steps_t *out)
{
    const lh_status_t status = checkpoint_steps(t->job->checkpoint.folder, out);
    const uint64_t bound = t->below.good > t->below.refused ? t->below.good : t->below.refused;
    size_t asked = 0;
    for (size_t i = 0; i < out->count; i++)
        if (out->steps[i] < bound && (own->named == 0 || out->steps[i] == own->named_step))
            out->steps[asked++] = out->steps[i];
    out->count = asked;
    return status;
}

/* From the *next of the list on. */
static lh_status_t told_go_on(const trainer_t *t, const checkpoint_steps_t *list, size_t *next,
                              told_site_t *own)
{
    lh_status_t status = LH_OK;
    while (*next < list->count && own->count < TOLD_STEPS && status == LH_OK)
        status = told_add_step(t, list->steps[(*next)++], own);
    own->rest = *next < list->count ? list->steps[*next] + 1 : 0;
    return status;
}

/* ---- the choice ------------------------------------------------------------------------------ */

const told_step_t *train_told_find(const train_told_t *told, uint32_t rank, uint64_t step)
{
    for (size_t i = 0; i < told->count; i++)
        if (told->steps[i].rank == rank && told->steps[i].step == step) return &told->steps[i];
    return NULL;
}

bool train_told_same(const told_step_t *a, const told_step_t *b)
{
    return a->step == b->step && strcmp(a->self, b->self) == 0;
}

static bool told_in_one_site(const train_told_t *told, const told_step_t *a, const told_step_t *b)
{
    for (size_t i = 0; i < told->count; i++) {
        if (!train_told_same(&told->steps[i], a)) continue;
        const told_step_t *beside = train_told_find(told, told->steps[i].rank, b->step);
        if (beside != NULL && train_told_same(beside, b)) return true;
    }
    return false;
}

uint64_t train_told_stale(const train_told_t *told, const told_step_t *s)
{
    uint64_t since = 0;
    for (size_t i = 0; i < told->count; i++) {
        const told_step_t *later = &told->steps[i];
        if (later->refused > 0 && !told->refused_speak) continue;
        if (later->made.number > since && incarnation_later(&later->made, &s->made) &&
            !told_in_one_site(told, later, s))
            since = later->made.number;
    }
    return since;
}

/* The newest that is not stale; of several copies that which was told first. */
static const told_step_t *told_newest(const train_told_t *told, bool good)
{
    const told_step_t *best = NULL;
    for (size_t i = 0; i < told->count; i++) {
        const told_step_t *s = &told->steps[i];
        if ((s->refused == 0) != good || (best != NULL && s->step <= best->step)) continue;
        if (train_told_stale(told, s) == 0) best = s;
    }
    return best;
}

static void told_choose(train_told_t *told)
{
    told->refused_speak = true;
    told->chosen = told_newest(told, true);
    if (told->chosen != NULL) return;
    told->refused_speak = false;
    told->chosen = told_newest(told, true);
    if (told->chosen != NULL) return;
    told->refused_speak = true;
    told->chosen = told_newest(told, false);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* What came with the last gather, and the choice of all so far. */
static lh_status_t told_add(train_told_t *told)
{
    for (uint32_t r = 0; r < told->size; r++)
        for (uint32_t i = 0; i < told->ranks[r].count && i < TOLD_STEPS; i++) {
            void *grown = mem_grow(told->steps, &told->capacity, told->count + 1,
                                   sizeof(told->steps[0]));
            if (grown == NULL) return LH_NO_MEMORY;
            told->steps = grown;
            told_step_t *s = &told->steps[told->count++];
            *s = told->ranks[r].steps[i];
            s->rank = r;
            s->site = told->ranks[r].site;
        }
    told_choose(told);
    return LH_OK;
}

/* What this rank has yet to tell may stand above the chosen step, be a good one, or the one from which a
 * later start has gone on. */
static bool told_lacks(const train_told_t *told, uint32_t rank)
{
    const told_step_t *chosen = told->chosen;
    const uint64_t rest = told->ranks[rank].rest;
    if (chosen == NULL || rest == 0) return false;
    return rest > chosen->step || chosen->refused > 0 || !told->refused_speak;
}

/* Whether another gather follows, and this rank has something to tell in it. */
static bool told_lacks_any(const train_told_t *told, uint32_t self, bool *own)
{
    bool any = false;
    for (uint32_t r = 0; r < told->size; r++) {
        if (told->ranks[r].status != LH_OK) return false;
        any = any || told_lacks(told, r);
    }
    *own = told_lacks(told, self);
    return any;
}

lh_status_t train_told_gather(const trainer_t *t, lh_status_t opened, train_told_t *out)
{
    const train_ranks_t *ranks = t->agree.ranks;
    told_site_t own = {.status = opened,
                       .site = t->how->world->ranks[ranks->rank].site,
                       .leads = t->writer != NULL && writer_leads(t->writer),
                       .resume = t->how->resume};
    checkpoint_steps_t list = {0};
    size_t next = 0;
    bool tells = own.leads != 0;
    lh_status_t status;
    *out = (train_told_t){.size = ranks->size};
    out->ranks = mem_array(out->size, sizeof(out->ranks[0]));
    if (out->ranks == NULL) return LH_NO_MEMORY;
    status = told_named(t, &own);
    if (status != LH_OK) return status;
    if (tells && own.status == LH_OK)
        own.status = incarnation_read(t->job->checkpoint.folder, &own.before);
    if (tells && own.status == LH_OK) own.status = told_list(t, &own, &list);
    do {
        own.count = 0;
        if (tells && own.status == LH_OK) own.status = told_go_on(t, &list, &next, &own);
        if (own.status != LH_OK)
            (void)snprintf(own.reason, sizeof(own.reason), "%.255s", fail_reason());
        status = ranks->gather(ranks->context, &own, sizeof(own), out->ranks);
        if (status == LH_OK) status = told_add(out);
    } while (status == LH_OK && told_lacks_any(out, ranks->rank, &tells));
    mem_free(list.steps);
    return status;
}

void train_told_clear(train_told_t *told)
{
    mem_free(told->steps);
    mem_free(told->ranks);
    *told = (train_told_t){0};
}
