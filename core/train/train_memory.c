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
 * and saves a second way to load. */
#include <train/train_memory.h>

#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/memory_image.h>

/* ---- after a loss ---------------------------------------------------------------------------- */

/* Images that one rank tells of; it holds four, or two more for each further rank it keeps them for.
 */
enum { TOLD_MOST = 16 };

/* As it travels. */
typedef struct memory_told {
    uint32_t resume, has; /* it may go on from a checkpoint; its launcher holds memory */
    uint64_t newest;      /* of rank 0: the newest step on disk and 1; 0: none */
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

/* Who writes the image of `rank`: that rank, else the lowest that has it. size: nobody has. */
static uint32_t holder_of(const memory_told_t *all, uint32_t size, const memory_key_t *key,
                          uint32_t rank)
{
    if (rank < size && rank_tells(&all[rank], key, rank)) return rank;
    uint32_t r = 0;
    while (r < size && !rank_tells(&all[r], key, rank))
        r++;
    return r;
}

static bool all_held(const memory_told_t *all, uint32_t size, const memory_key_t *key)
{
    for (uint32_t r = 0; r < key->ranks; r++)
        if (holder_of(all, size, key, r) == size) return false;
    return key->ranks > 0;
}

/* The newest step that is whole between all of them. All ranks find the same one. */
static bool choose_image(const memory_told_t *all, uint32_t size, memory_key_t *out)
{
    bool found = false;
    for (uint32_t r = 0; r < size; r++)
        for (uint32_t i = 0; i < all[r].count && i < TOLD_MOST; i++) {
            const memory_key_t *key = &all[r].keys[i];
            if (key->step < all[0].newest || (found && key->step <= out->step)) continue;
            if (!all_held(all, size, key)) continue;
            *out = *key;
            found = true;
        }
    return found;
}

static lh_status_t tell_images(trainer_t *t, lh_status_t opened, const memory_found_t *found,
                               memory_told_t *all)
{
    memory_told_t own = {.resume = opened == LH_OK && t->how->resume && t->how->resume_step == NULL,
                         .has = writer_has_memory(t->writer)};
    checkpoint_steps_t steps = {0};
    if (train_agree_rank(&t->agree) == 0 && own.resume) {
        if (checkpoint_steps(t->job->checkpoint.folder, &steps) != LH_OK)
            own.resume = 0; /* whoever looks for a checkpoint says why */
        else if (steps.count > 0)
            own.newest = steps.steps[0] + 1;
        mem_free(steps.steps);
    }
    for (uint32_t i = 0; i < found->count && own.count < TOLD_MOST; i++)
        own.keys[own.count++] = found->images[i].key;
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
    lh_status_t status = LH_OK;
    for (uint32_t r = 0; r < key->ranks && status == LH_OK; r++) {
        if (holder_of(all, size, key, r) != self) continue;
        const memory_image_t *image = find_image(found, key, r);
        lh_assert(image != NULL);
        status = memory_image_write(image, t->job->checkpoint.folder, 0);
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
    const uint32_t size = train_agree_size(&t->agree);
    const bool commits = holder_of(all, size, key, 0) == train_agree_rank(&t->agree);
    const memory_image_t *first = commits ? find_image(found, key, 0) : NULL;
    const char *folder = t->job->checkpoint.folder;
    const checkpoint_keep_t keep = {t->job->checkpoint.keep, t->job->checkpoint.keep_every,
                                    t->job->checkpoint.keep_best};
    *saved = write_images(t, found, all, key);
    lh_status_t status = agree_on(t, saved);
    if (status != LH_OK) return status;
    if (commits && *saved == LH_OK) {
        *saved = memory_image_commit(first, folder, &keep);
    } else if (commits) {
        char reason[AGREE_SENTENCE];
        (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
        memory_image_abandon(first, folder);
        (void)fail(*saved, "%s", reason);
        return LH_OK;
    } else if (*saved != LH_OK) {
        return LH_OK;
    }
    return agree_on(t, saved);
}

static void tell_rescue(const trainer_t *t, const memory_told_t *all, const memory_key_t *key,
                        lh_status_t saved)
{
    uint32_t elsewhere = 0;
    char newest[64] = "there was no checkpoint on disk";
    for (uint32_t r = 0; r < key->ranks; r++)
        elsewhere += holder_of(all, train_agree_size(&t->agree), key, r) != r;
    if (all[0].newest > 0)
        (void)snprintf(newest, sizeof(newest), "the newest on disk was step %llu",
                       (unsigned long long)(all[0].newest - 1));
    if (saved == LH_OK)
        log_line(
            LH_LOG_INFO,
            "step %llu was whole in memory (%u of %u snapshots with a partner) and is saved: %s",
            (unsigned long long)key->step, elsewhere, key->ranks, newest);
    else
        log_line(LH_LOG_WARN, "step %llu was whole in memory, but could not be saved: %s",
                 (unsigned long long)key->step, fail_reason());
}

lh_status_t train_memory_rescue(trainer_t *t, lh_status_t opened)
{
    const uint32_t size = train_agree_size(&t->agree);
    if (t->job->checkpoint.memory_every == 0 || size == 1) return LH_OK;
    memory_found_t found;
    memory_key_t key;
    memory_told_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    memory_find(writer_memory_fd(t->writer), &found);
    lh_status_t status = tell_images(t, opened, &found, all), saved = LH_OK;
    t->memory.on = status == LH_OK;
    for (uint32_t r = 0; r < size; r++)
        t->memory.on = t->memory.on && all[r].has;
    if (status == LH_OK && !t->memory.on && train_agree_rank(&t->agree) == 0)
        log_line(LH_LOG_WARN, "[checkpoint] memory_every: no rank's snapshots stay in memory, as "
                              "that needs ranks that longhaul itself has started");
    if (status == LH_OK && all[0].resume && choose_image(all, size, &key)) {
        status = write_step(t, &found, all, &key, &saved);
        if (status == LH_OK && saved == LH_OK) t->memory.rescued = key.step;
        if (status == LH_OK && train_agree_rank(&t->agree) == 0) tell_rescue(t, all, &key, saved);
    }
    memory_found_close(&found);
    mem_free(all);
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

static uint32_t member_of(const group_t *g, uint32_t rank)
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
    how.root = member_of(how.group, peer);
    return collective_new(t->comm.comm, &how, out);
}

static lh_status_t plan_copies(trainer_t *t, const uint64_t *bytes)
{
    train_memory_t *m = &t->memory;
    uint64_t all;
    void *memory = writer_memory(t->writer, &all);
    lh_status_t status = comm_arena(t->comm.comm, memory, all, -1, 0, &m->arena);
    for (uint32_t slot = 0; slot < MEMORY_OWN && status == LH_OK; slot++) {
        status = plan_copy(t, COLL_SEND, m->partner, 0, slot, bytes[train_agree_rank(&t->agree)],
                           &m->send[slot]);
        for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++)
            status = plan_copy(t, COLL_RECV, m->guests[i], i + 1, slot, bytes[m->guests[i]],
                               &m->receive[i * MEMORY_OWN + slot]);
    }
    return status;
}

/* Whose images are kept here, and how long their slots are: each rank tells, as parts differ. */
static lh_status_t find_guests(trainer_t *t, const world_t *w, uint64_t *bytes)
{
    train_memory_t *m = &t->memory;
    const uint64_t own = writer_slot_bytes(t->writer);
    lh_status_t status = t->agree.ranks->gather(t->agree.ranks->context, &own, sizeof(own), bytes);
    m->partner = train_memory_partner(w, w->row.rank);
    for (uint32_t r = 0; r < w->row.size; r++)
        if (train_memory_partner(w, r) == w->row.rank) m->guests[m->guest_count++] = r;
    uint64_t *rooms = mem_array(w->row.size, sizeof(*rooms));
    if (rooms == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < m->guest_count; i++)
        rooms[i] = bytes[m->guests[i]];
    if (status == LH_OK && m->guest_count > 0)
        status = writer_guests(t->writer, rooms, m->guest_count);
    mem_free(rooms);
    return status;
}

lh_status_t train_memory_plan(trainer_t *t)
{
    const world_t *w = t->how->world;
    train_memory_t *m = &t->memory;
    if (!m->on) return LH_OK;
    lh_status_t status = snapshot_new(t->session->weights, t->session->transfers, &t->snapshot);
    if (status == LH_OK)
        status = writer_layout(t->writer, t->snapshot->tensors, t->snapshot->count);
    if (status != LH_OK || w->row.nodes == 1) return status;
    uint64_t *bytes = mem_array(w->row.size, sizeof(*bytes));
    m->guests = mem_array(w->row.size, sizeof(*m->guests));
    m->receive = mem_array((size_t)w->row.size * MEMORY_OWN, sizeof(*m->receive));
    status = bytes == NULL || m->guests == NULL || m->receive == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) status = find_guests(t, w, bytes);
    if (status == LH_OK) status = plan_copies(t, bytes);
    mem_free(bytes);
    m->travels = status == LH_OK;
    return status;
}

void train_memory_close(trainer_t *t)
{
    mem_free(t->memory.guests);
    mem_free(t->memory.receive);
}

/* ---- beside the steps ------------------------------------------------------------------------ */

/* A step that is saved on disk, and the last one, need none. */
bool train_memory_due(const trainer_t *t, uint64_t step)
{
    const job_checkpoint_t *how = &t->job->checkpoint;
    if (!t->memory.on || step == 0 || step % how->memory_every != 0) return false;
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
    return status == LH_OK ? collective_start(m->send[m->slot]) : status;
}

lh_status_t train_memory_test(trainer_t *t)
{
    train_memory_t *m = &t->memory;
    if (m->due) return LH_AGAIN;
    lh_status_t status = collective_test(m->send[m->slot]);
    for (uint32_t i = 0; i < m->guest_count && status == LH_OK; i++)
        status = collective_test(m->receive[i * MEMORY_OWN + m->slot]);
    return status;
}
