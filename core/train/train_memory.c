/* train_memory.c - snapshots that stay in memory.
 *
 * A checkpoint on disk costs what a disk costs, so it is made now and then, and a rank that is lost
 * takes all steps since with it. A snapshot costs a copy of memory and, where there are several
 * machines, one message to a rank of another one, which travels beside the steps: so it can be made
 * often. Each rank has two slots for its own images and two for each that it keeps for another: the
 * last image stays whole until the next one is whole everywhere.
 *
 * The memory is the launcher's (launch_start.c): it outlives the ranks, not the launcher. After a
 * loss each image is on its own machine, or with the partner of a machine that is gone. Whoever
 * holds one writes it as that rank's share of a checkpoint; an image that the partner holds as well
 * is written by its own rank, if that is there. The step then is on disk, and what follows is the
 * restart that there is without any of this: any layout loads it. That costs a save at each restart,
 * and saves a second way to load.
 *
 * A machine that comes back may hold images of an earlier start, of steps that the others have made again
 * since, as its folder may hold checkpoints of them (train_sites.c). So of two images, as of an image and a
 * checkpoint, that of the later start counts, and of one start the newer step. An image's start is known by
 * its manifest, as a checkpoint's is (incarnation_of), and all ranks tell it with what they hold. Where
 * nothing says it the newer step counts. */
#include <train/train_memory.h>

#include <errno.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/incarnation.h>
#include <checkpoint/memory_image.h>

/* ---- after a loss ---------------------------------------------------------------------------- */

/* Images that one rank tells of: all that it can hold. */
enum { TOLD_MOST = MEMORY_SLOTS };

/* As it travels. */
typedef struct memory_told {
    /* It may go on from a checkpoint; its launcher holds memory; it has its folder. */
    uint32_t resume, has, opened;
    uint32_t place; /* its site where each has a folder of its own, else 0 */
    /* Of who leads in a folder: the newest good step there and 1, and what has made it; 0: none. */
    uint64_t newest;
    incarnation_t newest_made;
    incarnation_t made; /* which start its images are of: each one empties the memory */
    uint32_t count;
    memory_key_t keys[TOLD_MOST];
} memory_told_t;

static bool same_image(const memory_key_t *a, const memory_key_t *b)
{
    return a->session == b->session && a->step == b->step && a->ranks == b->ranks;
}

static bool rank_tells(const memory_told_t *told, const memory_key_t *key, uint32_t rank)
{
    for (uint32_t i = 0; i < told->count && i < TOLD_MOST; i++)
        if (same_image(&told->keys[i], key) && told->keys[i].rank == rank) return true;
    return false;
}

/* Of the ranks that write into the folder of a place: who writes the image of `rank`. That rank, else
 * the lowest that has it. size: nobody has. */
static uint32_t holder_of(const memory_told_t *all, uint32_t size, uint32_t place,
                          const memory_key_t *key, uint32_t rank)
{
    if (rank < size && all[rank].place == place && rank_tells(&all[rank], key, rank)) return rank;
    uint32_t r = 0;
    while (r < size && (all[r].place != place || !rank_tells(&all[r], key, rank)))
        r++;
    return r;
}

static bool all_held(const memory_told_t *all, uint32_t size, uint32_t place,
                     const memory_key_t *key)
{
    for (uint32_t r = 0; r < key->ranks; r++)
        if (holder_of(all, size, place, key, r) == size) return false;
    return key->ranks > 0;
}

/* The newest step in any folder, and 1. */
static uint64_t newest_on_disk(const memory_told_t *all, uint32_t size)
{
    uint64_t newest = 0;
    for (uint32_t r = 0; r < size; r++)
        if (all[r].newest > newest) newest = all[r].newest;
    return newest;
}

/* An image that is whole between those of a place, or a checkpoint. */
typedef struct kept_step {
    uint64_t step;
    const incarnation_t *made;
} kept_step_t;

static bool kept_goes_before(kept_step_t a, kept_step_t b)
{
    if (incarnation_later(a.made, b.made)) return true;
    return !incarnation_later(b.made, a.made) && a.step > b.step;
}

/* No folder has one that is as good. */
static bool kept_goes_before_disk(const memory_told_t *all, uint32_t size, kept_step_t image)
{
    for (uint32_t r = 0; r < size; r++) {
        const kept_step_t newest = {all[r].newest - 1, &all[r].newest_made};
        if (all[r].newest > 0 && !kept_goes_before(image, newest)) return false;
    }
    return true;
}

/* The one to go on from, of those that are whole between those of a place. All ranks find the same one.
 * *of: what a rank tells of it. */
static bool choose_image(const memory_told_t *all, uint32_t size, memory_key_t *out,
                         const memory_told_t **of)
{
    *of = NULL;
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t i = 0; i < all[r].count && i < TOLD_MOST; i++) {
            const memory_key_t *key = &all[r].keys[i];
            const kept_step_t image = {key->step, &all[r].made};
            if (!kept_goes_before_disk(all, size, image)) continue;
            if (*of != NULL && !kept_goes_before(image, (kept_step_t){out->step, &(*of)->made}))
                continue;
            if (!all_held(all, size, all[r].place, key)) continue;
            *out = *key;
            *of = &all[r];
        }
    return *of != NULL;
}

/* The start that has gone on without an image, which would be taken by its step alone: by what is taken of
 * memory (NULL: nothing is), and by what is on disk. 0: none. */
static uint64_t image_is_stale(const memory_told_t *all, uint32_t size, kept_step_t image,
                               const kept_step_t *taken)
{
    uint64_t since = 0;
    if (taken != NULL && image.step >= taken->step && incarnation_later(taken->made, image.made))
        since = taken->made->number;
    for (uint32_t r = 0; r < size; r++)
        if (all[r].newest > 0 && image.step + 1 >= all[r].newest &&
            all[r].newest_made.number > since && incarnation_later(&all[r].newest_made, image.made))
            since = all[r].newest_made.number;
    return since;
}

/* By rank 0: the newest such image. It goes when the memory is laid out anew. */
static void warn_of_stale(const memory_told_t *all, uint32_t size, const kept_step_t *taken)
{
    kept_step_t newest = {0};
    uint64_t since = 0;
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t i = 0; i < all[r].count && i < TOLD_MOST; i++) {
            const kept_step_t image = {all[r].keys[i].step, &all[r].made};
            const uint64_t stale = image_is_stale(all, size, image, taken);
            if (stale == 0 || (newest.made != NULL && image.step <= newest.step)) continue;
            if (!all_held(all, size, all[r].place, &all[r].keys[i])) continue;
            newest = image;
            since = stale;
        }
    if (newest.made != NULL)
        log_line(LH_LOG_WARN,
                 "step %llu was whole in memory, made in incarnation %llu of the run, which has "
                 "gone on without it in incarnation %llu: it is not taken",
                 (unsigned long long)newest.step, (unsigned long long)newest.made->number,
                 (unsigned long long)since);
}

static uint32_t own_place(const trainer_t *t)
{
    const world_t *w = t->how->world;
    return t->memory.apart ? w->ranks[w->row.rank].site : 0;
}

/* One that can't be opened, or lies behind steps that were not
 * applied, is none. */
static lh_status_t tell_newest_step(const char *folder, uint64_t step, memory_told_t *own)
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    checkpoint_t *c = NULL;
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = checkpoint_open(path, &c);
    const int error = errno;
    mem_free(path);
    if (status != LH_OK && checkpoint_damaged(status, error)) {
        fail_clear();
        return LH_OK;
    }
    if (status != LH_OK) return status;
    if (manifest_refused(c->manifest) == 0) {
        own->newest = step + 1;
        own->newest_made = incarnation_of(c->manifest);
    }
    checkpoint_close(c);
    return LH_OK;
}

/* Whoever looks for a checkpoint afterwards says what was damaged. */
static lh_status_t tell_newest(const char *folder, memory_told_t *own)
{
    checkpoint_steps_t steps;
    lh_status_t status = checkpoint_steps(folder, &steps);
    for (size_t i = 0; i < steps.count && status == LH_OK && own->newest == 0; i++)
        status = tell_newest_step(folder, steps.steps[i], own);
    mem_free(steps.steps);
    return status;
}

/* What a save to the disk has left of steps behind those that were not applied is none to go back to. */
static void tell_found(const memory_found_t *found, memory_told_t *own)
{
    for (uint32_t i = 0; i < found->count && own->count < TOLD_MOST; i++) {
        const memory_image_t *image = &found->images[i];
        if (manifest_refused(image->manifest) > 0) continue;
        if (own->count == 0) own->made = incarnation_of(image->manifest);
        if (own->count > 0 && image->key.session != own->keys[0].session) continue;
        own->keys[own->count++] = image->key;
    }
}

static lh_status_t tell_images(trainer_t *t, lh_status_t opened, const memory_found_t *found,
                               memory_told_t *all)
{
    memory_told_t own = {.resume = opened == LH_OK && t->how->resume && t->how->resume_step == NULL,
                         .has = t->writer == NULL || writer_memory_fd(t->writer) >= 0,
                         .opened = opened == LH_OK,
                         .place = own_place(t)};
    if (own.resume && writer_leads(t->writer) &&
        tell_newest(t->job->checkpoint.folder, &own) != LH_OK)
        own.resume = own.opened = 0; /* whoever looks for a checkpoint says why */
    tell_found(found, &own);
    if (t->agree.ranks == NULL) { /* what it has kept for the others counts */
        all[0] = own;
        return LH_OK;
    }
    return t->agree.ranks->gather(t->agree.ranks->context, &own, sizeof(own), all);
}

static const memory_image_t *find_image(const memory_found_t *found, const memory_key_t *key,
                                        uint32_t rank)
{
    for (uint32_t i = 0; i < found->count; i++)
        if (same_image(&found->images[i].key, key) && found->images[i].key.rank == rank)
            return &found->images[i];
    return NULL;
}

/* Every image that is this rank's to write. */
static lh_status_t write_images(const trainer_t *t, const memory_found_t *found,
                                const memory_told_t *all, const memory_key_t *key)
{
    const uint32_t size = train_agree_size(&t->agree), self = train_agree_rank(&t->agree);
    const uint32_t place = own_place(t);
    lh_status_t status = LH_OK;
    if (!all_held(all, size, place, key)) return LH_OK; /* it gets a copy of another site's */
    for (uint32_t r = 0; r < key->ranks && status == LH_OK; r++) {
        if (holder_of(all, size, place, key, r) != self) continue;
        const memory_image_t *image = find_image(found, key, r);
        lh_assert(image != NULL);
        status = memory_image_write(image, t->job->checkpoint.folder, 0, 0);
    }
    return status;
}

/* What any of them meets, all have. */
static lh_status_t agree_on(trainer_t *t, lh_status_t *status)
{
    char sentence[AGREE_SENTENCE];
    (void)snprintf(sentence, sizeof(sentence), "%s", *status == LH_OK ? "" : fail_reason());
    const lh_status_t agreed = train_agree_failure(&t->agree, status, sentence, sizeof(sentence));
    if (agreed == LH_OK && *status != LH_OK) (void)fail(*status, "%s", sentence);
    return agreed;
}

/* All write; then who has the image of rank 0, whose manifest counts, commits, or clears away. */
static lh_status_t write_step(trainer_t *t, const memory_found_t *found, const memory_told_t *all,
                              const memory_key_t *key, lh_status_t *saved)
{
    const uint32_t size = train_agree_size(&t->agree), place = own_place(t);
    const bool commits = all_held(all, size, place, key) &&
                         holder_of(all, size, place, key, 0) == train_agree_rank(&t->agree);
    *saved = write_images(t, found, all, key);
    const lh_status_t status = agree_on(t, saved);
    if (status != LH_OK || (!commits && *saved != LH_OK)) return status;
    if (commits) {
        char self[SHA256_TEXT], reason[AGREE_SENTENCE];
        saver_share_t share = memory_image_share(find_image(found, key, 0),
                                                 t->job->checkpoint.folder, 0);
        share.leads = true;
        share.apart = t->memory.apart;
        const bool whole = *saved == LH_OK;
        const checkpoint_keep_t keep = snapshot_keep(t->job);
        if (whole) *saved = saver_share_commit(&share, self);
        if (whole && *saved == LH_OK) checkpoint_displace(share.folder, share.meta->step, &keep);
        (void)snprintf(reason, sizeof(reason), "%s", *saved == LH_OK ? "" : fail_reason());
        if (*saved != LH_OK) saver_share_abandon(&share);
        if (*saved != LH_OK) (void)fail(*saved, "%s", reason);
        if (!whole) return LH_OK;
    }
    return agree_on(t, saved);
}

static void tell_rescue(const trainer_t *t, const memory_told_t *all, const memory_key_t *key,
                        lh_status_t saved)
{
    uint32_t elsewhere = 0;
    char newest[64] = "there was no checkpoint on disk";
    for (uint32_t r = 0; r < key->ranks; r++)
        elsewhere += r >= train_agree_size(&t->agree) || !rank_tells(&all[r], key, r);
    const uint64_t before = newest_on_disk(all, train_agree_size(&t->agree));
    if (before > 0)
        (void)snprintf(newest, sizeof(newest), "the newest on disk was step %llu",
                       (unsigned long long)(before - 1));
    if (saved == LH_OK)
        log_line(
            LH_LOG_INFO,
            "step %llu was whole in memory (%u of %u snapshots with a partner) and is saved: %s",
            (unsigned long long)key->step, elsewhere, key->ranks, newest);
    else
        log_line(LH_LOG_WARN, "step %llu was whole in memory, but could not be saved: %s",
                 (unsigned long long)key->step, fail_reason());
}

/* With t->memory.keeps. */
static lh_status_t rescue_images(trainer_t *t, lh_status_t opened, memory_told_t *all)
{
    const uint32_t size = train_agree_size(&t->agree);
    memory_found_t found;
    memory_key_t key = {0};
    memory_find(t->writer == NULL ? -1 : writer_memory_fd(t->writer), &found);
    lh_status_t status = tell_images(t, opened, &found, all), saved = LH_OK;
    bool opens = status == LH_OK;
    for (uint32_t r = 0; r < size; r++) {
        t->memory.keeps = t->memory.keeps && all[r].has;
        opens = opens && all[r].opened;
    }
    if (status == LH_OK && !t->memory.keeps && size > 1 && train_agree_rank(&t->agree) == 0)
        log_line(LH_LOG_WARN, "[checkpoint] memory_every: no rank's snapshots stay in memory, as "
                              "that needs ranks that longhaul itself has started");
    const memory_told_t *of = NULL;
    const bool looks = opens && all[0].resume, taken = looks && choose_image(all, size, &key, &of);
    if (looks && train_agree_rank(&t->agree) == 0)
        warn_of_stale(all, size, taken ? &(kept_step_t){key.step, &of->made} : NULL);
    if (taken) {
        status = write_step(t, &found, all, &key, &saved);
        if (status == LH_OK && saved == LH_OK) t->memory.rescued = key.step;
        if (status == LH_OK && train_agree_rank(&t->agree) == 0) tell_rescue(t, all, &key, saved);
    }
    memory_found_close(&found);
    return status;
}

lh_status_t train_memory_rescue(trainer_t *t, lh_status_t opened)
{
    const uint32_t size = train_agree_size(&t->agree);
    t->memory.apart = t->job->checkpoint.apart && size > 1 && t->how->world->row.sites > 1;
    t->memory.keeps = t->job->checkpoint.memory_every > 0;
    lh_status_t status = LH_OK;
    if (t->memory.keeps) {
        memory_told_t *all = mem_array(size, sizeof(*all));
        status = all == NULL ? LH_NO_MEMORY : rescue_images(t, opened, all);
        mem_free(all);
    }
    t->memory.keeps = t->memory.keeps &&
                      size > 1; /* one that is left may go on from an image, and makes none */
    t->memory.on = t->memory.apart || t->memory.keeps;
    return status;
}

/* ---- with whom ------------------------------------------------------------------------------- */

/* The n-th rank of a node; its ranks need not follow each other. */
static uint32_t rank_of_node(const world_t *w, uint32_t node, uint32_t n)
{
    uint32_t count = 0, r = 0;
    for (uint32_t i = 0; i < w->row.size; i++)
        count += w->ranks[i].node == node;
    lh_assert(count > 0);
    for (n %= count; r < w->row.size; r++)
        if (w->ranks[r].node == node && n-- == 0) break;
    return r;
}

static uint32_t site_of_node(const world_t *w, uint32_t node)
{
    return w->ranks[rank_of_node(w, node, 0)].site;
}

uint32_t train_memory_partner(const world_t *w, uint32_t rank)
{
    const world_rank_t *own = &w->ranks[rank];
    for (int near = 1; near >= 0; near--)
        for (uint32_t i = 1; i < w->row.nodes; i++) {
            const uint32_t node = (own->node + i) % w->row.nodes;
            if (near && site_of_node(w, node) != own->site) continue;
            return rank_of_node(w, node, own->local_rank);
        }
    return w->row.size;
}

/* Where sites have folders of their own, an image goes to each other site, in memory as well. */
static uint32_t targets_of(const world_t *w, uint32_t rank, bool apart, uint32_t *out)
{
    const world_rank_t *own = &w->ranks[rank];
    uint32_t count = 0;
    if (!apart) {
        out[0] = train_memory_partner(w, rank);
        return out[0] == w->row.size ? 0 : 1;
    }
    for (uint32_t i = 1; i < w->row.sites; i++) {
        const uint32_t site = (own->site + i) % w->row.sites;
        out[count++] = world_site_rank(w, site, own->place % world_site_size(w, site));
    }
    return count;
}

static uint64_t ranks_of_site(const job_site_t *s)
{
    uint64_t ranks = 0;
    for (uint32_t i = 0; i < s->host_count; i++)
        ranks += s->hosts[i].ranks;
    return ranks;
}

/* Where sites have folders of their own, each rank's snapshot goes to each other site as well, by its place in its
 * own: of how many the first rank of a site, which has most, keeps the snapshots. */
static uint64_t guests_of_site(const job_t *job, uint32_t site)
{
    const uint64_t own = ranks_of_site(&job->sites[site]);
    uint64_t guests = 0;
    for (uint32_t i = 0; i < job->site_count && own > 0; i++)
        if (i != site) guests += (ranks_of_site(&job->sites[i]) + own - 1) / own;
    return guests;
}

/* Else it goes to the next host of its site, or to the next one where the site has no other
 * (train_memory_partner). *site, *host: the one behind them by that rule. */
static void next_host(const job_t *job, uint32_t *site, uint32_t *host)
{
    const uint32_t in_site = job->sites[*site].host_count;
    if (in_site > 1) {
        *host = (*host + 1) % in_site;
        return;
    }
    do
        *site = (*site + 1) % job->site_count;
    while (job->sites[*site].host_count == 0);
    *host = 0;
}

/* Of how many ranks of other hosts the first rank of a host keeps the snapshots. */
static uint64_t guests_of_host(const job_t *job, uint32_t site, uint32_t host)
{
    const uint64_t own = job->sites[site].hosts[host].ranks;
    uint64_t guests = 0;
    for (uint32_t i = 0; i < job->site_count; i++)
        for (uint32_t k = 0; k < job->sites[i].host_count && own > 0; k++) {
            uint32_t to_site = i, to_host = k;
            next_host(job, &to_site, &to_host);
            if (to_site != site || to_host != host || (i == site && k == host)) continue;
            guests += (job->sites[i].hosts[k].ranks + own - 1) / own;
        }
    return guests;
}

uint64_t train_memory_guests(const job_t *job, bool apart)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < job->site_count; i++)
        for (uint32_t k = 0; k < job->sites[i].host_count; k++) {
            const uint64_t guests = apart ? guests_of_site(job, i) : guests_of_host(job, i, k);
            if (guests > most) most = guests;
        }
    return most;
}

static uint32_t group_member_of(const group_t *g, uint32_t rank)
{
    uint32_t m = 0;
    while (m < g->size && g->ranks[m] != rank)
        m++;
    lh_assert(m < g->size);
    return m;
}

/* One message from rank to rank, of a whole slot. */
static lh_status_t plan_copy(trainer_t *t, uint32_t op, uint32_t peer, uint32_t guest,
                             uint32_t slot, uint64_t bytes, collective_t **out)
{
    char name[48];
    const uint32_t from = op == COLL_SEND ? train_agree_rank(&t->agree) : peer;
    (void)snprintf(name, sizeof(name), "snapshot of rank %u in slot %u", from, slot);
    coll_how_t how = {.name = name,
                      .op = op,
                      .group = comm_group(t->comm.comm, LH_GROUP_DATA),
                      .dtype = LH_DTYPE_F32,
                      .elements = bytes / sizeof(float),
                      .service = LH_SERVICE_BULK,
                      .whole = {writer_slot(t->writer, guest, slot), t->memory.arena}};
    if (how.group == NULL) return LH_INVALID;
    how.root = group_member_of(how.group, peer);
    return collective_new(t->comm.comm, &how, out);
}

static lh_status_t plan_copies(trainer_t *t)
{
    train_memory_t *m = &t->memory;
    uint64_t all;
    void *memory = writer_memory(t->writer, &all);
    lh_status_t status = comm_arena(t->comm.comm, memory, all, -1, 0, &m->arena);
    const uint64_t own = m->bytes[train_agree_rank(&t->agree)];
    for (uint32_t slot = 0; slot < MEMORY_OWN && status == LH_OK; slot++) {
        for (uint32_t i = 0; i < m->target_count && status == LH_OK; i++)
            status = plan_copy(t, COLL_SEND, m->targets[i], 0, slot, own,
                               &m->send[i * MEMORY_OWN + slot]);
        for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++)
            status = plan_copy(t, COLL_RECV, m->guests[i], i + 1, slot, m->bytes[m->guests[i]],
                               &m->receive[i * MEMORY_OWN + slot]);
    }
    return status;
}

/* Whose images are kept here, and how long their slots are: each rank tells, as parts differ. */
static lh_status_t find_guests(trainer_t *t, const world_t *w)
{
    train_memory_t *m = &t->memory;
    const uint64_t own = writer_slot_bytes(t->writer);
    lh_status_t status = t->agree.ranks->gather(t->agree.ranks->context, &own, sizeof(own),
                                                m->bytes);
    uint32_t *targets = mem_array(w->row.size, sizeof(*targets));
    uint64_t *rooms = mem_array(w->row.size, sizeof(*rooms));
    if (targets == NULL || rooms == NULL) status = LH_NO_MEMORY;
    m->target_count = targets_of(w, w->row.rank, m->apart, m->targets);
    for (uint32_t r = 0; r < w->row.size && status == LH_OK; r++) {
        const uint32_t count = targets_of(w, r, m->apart, targets);
        for (uint32_t i = 0; i < count; i++) {
            if (targets[i] != w->row.rank) continue;
            rooms[m->guest_count] = m->bytes[r];
            m->guests[m->guest_count++] = r;
        }
    }
    if (status == LH_OK && m->guest_count > 0)
        status = writer_guests(t->writer, rooms, m->guest_count);
    mem_free(rooms);
    mem_free(targets);
    return status;
}

lh_status_t train_memory_plan(trainer_t *t)
{
    const world_t *w = t->how->world;
    train_memory_t *m = &t->memory;
    if (!m->on) return LH_OK;
    lh_status_t status = snapshot_new(t->session->weights, t->session->transfers, &t->snapshot);
    writer_head(t->writer, trainer_manifest_head(t));
    if (status == LH_OK)
        status = writer_layout(t->writer, t->snapshot->tensors, t->snapshot->count);
    if (status != LH_OK || w->row.nodes == 1) return status;
    m->bytes = mem_array(w->row.size, sizeof(*m->bytes));
    m->targets = mem_array(w->row.size, sizeof(*m->targets));
    m->guests = mem_array(w->row.size, sizeof(*m->guests));
    m->send = mem_array((size_t)w->row.size * MEMORY_OWN, sizeof(*m->send));
    m->receive = mem_array((size_t)w->row.size * MEMORY_OWN, sizeof(*m->receive));
    if (m->bytes == NULL || m->targets == NULL || m->guests == NULL || m->send == NULL ||
        m->receive == NULL)
        return LH_NO_MEMORY;
    status = find_guests(t, w);
    if (status == LH_OK) status = plan_copies(t);
    m->travels = status == LH_OK;
    return status;
}

void train_memory_close(trainer_t *t)
{
    train_memory_t *m = &t->memory;
    mem_free(m->bytes);
    mem_free(m->targets);
    mem_free(m->guests);
    mem_free(m->send);
    mem_free(m->receive);
}

/* ---- beside the steps ------------------------------------------------------------------------ */

/* A step that is saved on disk, and the last one, need none. */
bool train_memory_due(const trainer_t *t, uint64_t step)
{
    const job_checkpoint_t *how = &t->job->checkpoint;
    if (!t->memory.keeps || step == 0 || step % how->memory_every != 0) return false;
    return (how->every == 0 || step % how->every != 0) && step < t->job->train.steps;
}

bool train_memory_send(trainer_t *t, uint32_t slot)
{
    t->memory.slot = slot;
    t->memory.due = t->memory.travels;
    return t->memory.travels;
}

lh_status_t train_memory_start(trainer_t *t)
{
    train_memory_t *m = &t->memory;
    if (!m->due) return LH_OK;
    m->due = false;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++)
        status = collective_start(m->receive[i * MEMORY_OWN + m->slot]);
    for (uint32_t i = 0; i < m->target_count && status == LH_OK; i++)
        status = collective_start(m->send[i * MEMORY_OWN + m->slot]);
    return status;
}

lh_status_t train_memory_test(trainer_t *t)
{
    train_memory_t *m = &t->memory;
    if (m->due) return LH_AGAIN;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++)
        status = collective_test(m->receive[i * MEMORY_OWN + m->slot]);
    for (uint32_t i = 0; i < m->target_count && status == LH_OK; i++)
        status = collective_test(m->send[i * MEMORY_OWN + m->slot]);
    return status;
}
