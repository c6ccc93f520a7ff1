/* writer.c - the trainer's side of saving: shared memory, requests, results, deadlines.
 *
 * Training stands still only while it copies tensors into the arena. All that follows is a saver's,
 * of which nothing is believed: each save has a deadline, a saver that passes it is killed, one
 * that can't be killed (its file system holds it) is left behind, and the reserve goes on. A failed
 * save is a result and never a failure of the run.
 *
 * What describes a save is copied into memory that savers map at the same address: first what every
 * save has (the tensors, at writer_layout), behind it what the run says about itself at this save.
 * The memory is reserved once, without pages, as it can't move while a saver reads it.
 *
 * The state is three flags: begun (places may be filled), busy (submitted, and not settled), asked
 * (a saver is at work for it). With several ranks a save is busy from the submit until all ranks
 * have agreed how it went, and asked only while this rank's saver works. */
#include <checkpoint/writer.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/memory_image.h>
#include <checkpoint/saver.h>
#include <checkpoint/writer_arena.h>
#include <format/safetensors.h>

#include <longhaul/dtype.h>

/* Bytes of a cache line, so that copies into places are whole lines; how long a killed saver is waited for, and one
 * that has died, which mostly has ended by then. */
enum { PLACE_ALIGNMENT = 64, KILL_WAIT_MS = 1000, DEATH_WAIT_MS = 100 };
/* Bytes of a manifest in memory besides its parts, at least: what the run says about itself. */
enum { MANIFEST_HEAD = 256 << 10 };
#define SECOND_NS ((uint64_t)1000000000)
/* Pieces into which parts are cut: bytes of one at least, of a part at most, and of all ranks' parts at
 * most where there are not as many parts. */
enum { PIECE_LEAST = 1 << 20, PART_PIECES = 64, SAVE_PIECES = 32768 };
/* Addresses, not bytes, for what describes a save: pages come as they are written. */
#define JOB_MOST ((uint64_t)2 * MANIFEST_MOST)

/* The trainer's state of saving. One thread uses it. */
struct writer {
    char *folder;
    saver_how_t how;    /* what a saver inherits */
    uint64_t lock_ns;   /* how long the folder's lock is waited for */
    folder_lock_t lock; /* of rank 0 */
    saver_t saver, spare;
    bool lost; /* both died between two looks */

    writer_arena_t arena;
    /* At the begin of JOB_MOST bytes that savers see too. */
    save_job_t *job;
    uint64_t used, fixed; /* bytes of them: in use; by what every save has */
    /* [count], in the same memory: where each tensor's bytes lie in the arena. */
    uint64_t *place, *bytes;
    uint32_t count;
    /* [piece_count], likewise: what is saved of them, and where that lies. */
    checkpoint_tensor_t *pieces;
    uint64_t *offset;
    uint32_t piece_count;
    uint64_t head; /* of writer_head */

    /* Where each save's tensors begin in the arena: always 0 but with `memory`, where two slots take
     * turns. */
    bool memory, kept; /* kept: by somebody who outlives this process */
    memory_slots_t slots;
    uint32_t slot, whole; /* of the save at hand or the next one; of the last whole image, or
                             MEMORY_OWN: there is none */
    bool image, to_disk;  /* the save at hand is described in its slot, and is written as well */

    bool begun;
    bool busy;              /* a save was submitted, and has not ended */
    bool asked;             /* the saver is at work for it */
    bool killed, signalled; /* it is past its deadline; and has been sent a signal */
    bool committed;         /* the saver has said so, and removes what the checkpoint displaces */
    saver_answer_t said;
    /* Of what this rank has committed of the save at hand; "": nothing yet. */
    char self[SHA256_TEXT];
    uint64_t step, started_ns, killed_ns;
};

/* The shared memory first: both processes must inherit the one mapping. */
static lh_status_t start_savers(writer_t *w)
{
    w->job = mmap(NULL, JOB_MOST, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (w->job == MAP_FAILED) {
        w->job = NULL;
        return fail_io(errno, "shared memory for checkpoints");
    }
    w->used = sizeof(*w->job);
    w->how.job = w->job;
    const lh_status_t status = saver_start(&w->how, NULL, &w->saver);
    return status == LH_OK ? saver_start(&w->how, &w->saver, &w->spare) : status;
}

/* Bytes that savers see too; NULL: no room. */
static void *job_room(writer_t *w, uint64_t bytes)
{
    if (bytes > JOB_MOST - w->used) return NULL;
    void *room = (char *)w->job + w->used;
    w->used += (bytes + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
    if (w->used > JOB_MOST) w->used = JOB_MOST;
    return room;
}

static lh_status_t no_room(void)
{
    return fail(LH_INVALID, "what describes a checkpoint takes more than %llu bytes",
                (unsigned long long)JOB_MOST);
}

/* A copy that savers see; NULL stays NULL. */
static lh_status_t job_text(writer_t *w, const char **text)
{
    if (*text == NULL) return LH_OK;
    char *copy = job_room(w, strlen(*text) + 1);
    if (copy == NULL) return no_room();
    memcpy(copy, *text, strlen(*text) + 1);
    *text = copy;
    return LH_OK;
}

/* The same of the plugins' rows and their texts. */
static lh_status_t job_plugins(writer_t *w, checkpoint_meta_t *m)
{
    checkpoint_plugin_t *copy = job_room(w, m->plugin_count * sizeof(*copy));
    if (copy == NULL) return no_room();
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < m->plugin_count && status == LH_OK; i++) {
        copy[i] = m->plugins[i];
        const char **texts[] = {&copy[i].kind, &copy[i].name, &copy[i].version, &copy[i].sha256};
        for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]) && status == LH_OK; k++)
            status = job_text(w, texts[k]);
    }
    m->plugins = copy;
    return status;
}

static lh_status_t job_scalars(writer_t *w, checkpoint_meta_t *m)
{
    checkpoint_scalar_t *copy = job_room(w, m->scalar_count * sizeof(*copy));
    if (copy == NULL) return no_room();
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < m->scalar_count && status == LH_OK; i++) {
        copy[i] = m->scalars[i];
        status = job_text(w, &copy[i].name);
    }
    m->scalars = copy;
    return status;
}

/* What the run says about itself at this save, behind what every save has. */
static lh_status_t job_meta(writer_t *w, const checkpoint_meta_t *meta)
{
    w->used = w->fixed;
    checkpoint_meta_t *m = &w->job->meta;
    *m = *meta;
    const char **texts[] = {&m->run, &m->config, &m->model, &m->variants, &m->device};
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && status == LH_OK; i++)
        status = job_text(w, texts[i]);
    if (status == LH_OK) status = job_plugins(w, m);
    return status == LH_OK ? job_scalars(w, m) : status;
}

/* Rank 0 has yet to lock the folder, and nothing is known of the tensors: savers need neither to be
 * forked. A failure leaves nothing behind. */
lh_status_t writer_start(const writer_how_t *how, writer_t **out)
{
    writer_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->saver.socket = w->spare.socket = w->arena.fd = w->lock.fd = -1;
    w->folder = mem_text(how->folder);
    w->lock_ns = how->lock_ns == 0 ? 30 * SECOND_NS : how->lock_ns;
    w->how = (saver_how_t){.folder = w->folder,
                           .keep = how->keep,
                           .shard_bytes = how->shard_bytes,
                           .rank = how->rank,
                           .ranks = how->ranks,
                           .deadline_ns = how->deadline_ns == 0 ? 600 * SECOND_NS
                                                                : how->deadline_ns};
    w->memory = how->memory;
    w->kept = how->memory && how->memory_fd >= 0;
    w->how.apart = how->apart;
    w->how.leads = how->apart ? how->leads : how->rank == 0;
    w->whole = MEMORY_OWN;
    w->head = MANIFEST_HEAD;
    lh_status_t status = w->folder == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && w->kept)
        w->arena = (writer_arena_t){.fd = how->memory_fd};
    else if (status == LH_OK)
        status = writer_arena_open(&w->arena);
    w->how.arena_fd = w->arena.fd;
    if (status == LH_OK) status = start_savers(w);
    if (status != LH_OK) {
        writer_close(w);
        return status;
    }
    *out = w;
    return LH_OK;
}

/* The lock is handed to both savers before anything is written: whichever of them outlives the
 * trainer, the folder stays taken until it has ended. */
lh_status_t writer_open(writer_t *w)
{
    lh_assert(w->lock.fd < 0);
    if (!w->how.leads) return LH_OK;
    const lh_status_t status = folder_lock_take(w->folder, w->lock_ns, &w->lock);
    if (status != LH_OK) return status;
    saver_lock(&w->saver, w->lock.fd, w->lock.folder_fd);
    saver_lock(&w->spare, w->lock.fd, w->lock.folder_fd);
    return checkpoint_clean(w->folder);
}

/* Back to what there was before writer_layout. */
static void forget_layout(writer_t *w)
{
    writer_arena_unsize(&w->arena);
    w->pieces = NULL;
    w->place = w->bytes = w->offset = NULL;
    w->count = w->piece_count = 0;
    w->used = sizeof(*w->job);
}

/* count 0 stands for the whole. */
static tensor_part_t layout_part(const checkpoint_tensor_t *tensor)
{
    return tensor->part.count == 0 ? tensor_part_whole(tensor->rank, tensor->shape) : tensor->part;
}

/* Gives tensor i its place in the arena, behind what takes *bytes. */
static lh_status_t place_tensor(writer_t *w, uint32_t i, const checkpoint_tensor_t *tensor,
                                uint64_t *bytes)
{
    const tensor_part_t part = layout_part(tensor);
    if (!tensor_part_fits(&part, tensor->rank, tensor->shape))
        return fail(LH_INVALID, "tensor %s: a part lies outside of it", tensor->name);
    const safetensors_row_t row = {
        .name = tensor->name, .dtype = tensor->dtype, .rank = 1, .shape = {part.count}};
    if (safetensors_dtype(tensor->dtype) == NULL || !safetensors_row_bytes(&row, &w->bytes[i]))
        return fail(LH_INVALID, "tensor %s: cannot be stored", tensor->name);
    w->place[i] = *bytes;
    *bytes += (w->bytes[i] + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
    return LH_OK;
}

/* In pieces of so many bytes at least, and at most so many of them. */
static uint64_t layout_piece_count(uint64_t bytes, uint64_t least, uint64_t most)
{
    const uint64_t fit = bytes / least;
    return fit < 1 ? 1 : fit < most ? fit : most;
}

/* A hash is of a whole piece: a rank of another layout that wants a slice of it must read all of it. So
 * large parts are cut, into pieces of a MiB; but all of them stand in one manifest, and so pieces are
 * larger where there would be too many. Sets piece_count, and gives the least size. */
static uint64_t layout_pieces(writer_t *w, uint64_t *most)
{
    const uint64_t ranks = w->how.ranks == 0 ? 1 : w->how.ranks;
    const uint64_t of_a_tensor = MANIFEST_PARTS / 2 / ranks;
    uint64_t least = PIECE_LEAST, all = 0;
    *most = of_a_tensor < 1 ? 1 : of_a_tensor < PART_PIECES ? of_a_tensor : PART_PIECES;
    for (;; least *= 2) {
        all = 0;
        for (uint32_t i = 0; i < w->count; i++)
            all += layout_piece_count(w->bytes[i], least, *most);
        if (all == w->count || all <= SAVE_PIECES / ranks) break;
    }
    w->piece_count = (uint32_t)all;
    return least;
}

/* Appends tensor i's pieces, which lie side by side in its place. */
static lh_status_t cut_tensor(writer_t *w, uint32_t i, const checkpoint_tensor_t *tensor,
                              uint64_t pieces, uint32_t *at)
{
    const tensor_part_t part = layout_part(tensor);
    const uint64_t step = (part.count + pieces - 1) / pieces;
    const char *name = tensor->name;
    const lh_status_t status = job_text(w, &name);
    for (uint64_t k = 0; k < pieces && status == LH_OK; k++) {
        const uint64_t first = k * step, left = part.count - first;
        checkpoint_tensor_t *piece = &w->pieces[*at];
        *piece = *tensor;
        piece->name = name;
        piece->part = part;
        piece->part.first += first;
        piece->part.count = k + 1 < pieces ? step : left;
        w->offset[(*at)++] = w->place[i] + first * lh_dtype_bytes(tensor->dtype);
    }
    return status;
}

static lh_status_t cut_tensors(writer_t *w, const checkpoint_tensor_t *tensors)
{
    uint64_t most;
    const uint64_t least = layout_pieces(w, &most);
    uint32_t at = 0;
    w->pieces = job_room(w, w->piece_count * sizeof(w->pieces[0]));
    w->offset = job_room(w, w->piece_count * sizeof(w->offset[0]));
    if (w->pieces == NULL || w->offset == NULL) return no_room();
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < w->count && status == LH_OK; i++)
        status = cut_tensor(w, i, &tensors[i], layout_piece_count(w->bytes[i], least, most), &at);
    lh_assert(status != LH_OK || at == w->piece_count);
    return status;
}

/* The arena as long as its slots; nothing of what it held before is taken for an image. */
static lh_status_t size_slots(writer_t *w)
{
    const uint32_t last = w->slots.count - 1;
    const lh_status_t status = writer_arena_size(&w->arena, w->slots.slot[last].begin +
                                                                w->slots.slot[last].bytes);
    if (status == LH_OK) memory_slots_write(&w->slots, w->arena.memory);
    w->whole = MEMORY_OWN;
    return status;
}

/* Two slots for so many bytes of tensors, and for what describes them. */
static lh_status_t lay_out_slots(writer_t *w, uint64_t bytes)
{
    uint64_t manifest;
    const lh_status_t status = writer_manifest_bytes(w, &manifest);
    if (status != LH_OK) return status;
    w->slots = (memory_slots_t){.count = 0};
    (void)memory_slots_add(&w->slots, memory_slot_bytes(bytes, manifest + w->head));
    return size_slots(w);
}

void writer_head(writer_t *w, uint64_t bytes)
{
    w->head = bytes > MANIFEST_HEAD ? bytes : MANIFEST_HEAD;
}

/* All or nothing: where it fails the writer has no layout. */
lh_status_t writer_layout(writer_t *w, const checkpoint_tensor_t *tensors, uint32_t count)
{
    lh_assert(!w->busy);
    forget_layout(w);
    uint64_t bytes = 0;
    w->count = count;
    w->place = job_room(w, count * sizeof(w->place[0]));
    w->bytes = job_room(w, count * sizeof(w->bytes[0]));
    lh_status_t status = LH_OK;
    if (w->place == NULL || w->bytes == NULL) status = no_room();
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = place_tensor(w, i, &tensors[i], &bytes);
    if (status == LH_OK) status = cut_tensors(w, tensors);
    if (status == LH_OK && w->memory)
        status = lay_out_slots(w, bytes);
    else if (status == LH_OK)
        status = writer_arena_size(&w->arena, bytes == 0 ? PLACE_ALIGNMENT : bytes);
    if (status != LH_OK) forget_layout(w);
    w->fixed = w->used;
    return status;
}

lh_status_t writer_guests(writer_t *w, const uint64_t *bytes, uint32_t count)
{
    lh_assert(w->memory && !w->busy && w->slots.count == MEMORY_OWN);
    if (count > SAVER_GUESTS)
        return fail(
            LH_INVALID,
            "[checkpoint]: a rank would keep the snapshots of %u ranks of other machines, %d "
            "are the most",
            count, SAVER_GUESTS);
    for (uint32_t i = 0; i < count; i++)
        (void)memory_slots_add(&w->slots, bytes[i]);
    return size_slots(w);
}

bool writer_has_memory(const writer_t *w)
{
    return w->memory;
}

uint64_t writer_slot_bytes(const writer_t *w)
{
    lh_assert(w->slots.count >= MEMORY_OWN);
    return w->slots.slot[0].bytes;
}

void *writer_slot(const writer_t *w, uint32_t guest, uint32_t slot)
{
    lh_assert(slot < MEMORY_OWN && guest * MEMORY_OWN + slot < w->slots.count);
    return w->arena.memory + w->slots.slot[guest * MEMORY_OWN + slot].begin;
}

void *writer_memory(const writer_t *w, uint64_t *bytes)
{
    *bytes = w->arena.bytes;
    return w->arena.memory;
}

int writer_memory_fd(const writer_t *w)
{
    return w->kept ? w->arena.fd : -1;
}

bool writer_leads(const writer_t *w)
{
    return w->how.leads;
}

/* From the arena's begin to where the tensors of the save at hand lie. */
static uint64_t writer_base(const writer_t *w)
{
    return w->memory ? w->slots.slot[w->slot].begin + MEMORY_PAGE : 0;
}

lh_status_t writer_manifest_bytes(const writer_t *w, uint64_t *bytes)
{
    const uint32_t ranks = w->how.ranks == 0 ? 1 : w->how.ranks;
    return commit_manifest_bytes(w->pieces, w->piece_count, w->how.shard_bytes, ranks, bytes);
}

void writer_ahead(writer_t *w)
{
    writer_arena_ahead(&w->arena);
}

lh_status_t writer_reserve(writer_t *w)
{
    if (!w->memory) return writer_arena_take(&w->arena);
    lh_status_t status = LH_OK;
    for (uint32_t i = w->slot; i < w->slots.count && status == LH_OK; i += MEMORY_OWN)
        status = writer_arena_take_part(&w->arena, w->slots.slot[i].begin, w->slots.slot[i].bytes);
    return status;
}

lh_status_t writer_place(writer_t *w, uint32_t index, void **out)
{
    lh_assert(index < w->count && w->arena.memory != NULL);
    const uint64_t at = writer_base(w) + w->place[index];
    const lh_status_t status = writer_arena_take_part(&w->arena, at, w->bytes[index]);
    if (status != LH_OK) return status;
    *out = w->arena.memory + at;
    return LH_OK;
}

uint64_t writer_place_bytes(const writer_t *w, uint32_t index)
{
    lh_assert(index < w->count);
    return w->bytes[index];
}

void writer_session(writer_t *w, uint64_t session)
{
    w->job->session = session;
}

void writer_parent(writer_t *w, const char *self)
{
    (void)snprintf(w->job->parent, sizeof(w->job->parent), "%s", self);
}

bool writer_busy(const writer_t *w)
{
    return w->busy;
}

bool writer_lost(const writer_t *w)
{
    return w->lost;
}

/* The reserve takes the saver's place and forks the next one. The old saver may be alive and hang:
 * its descriptors go with it when its file system lets go. */
static void take_over(writer_t *w)
{
    saver_leave(&w->saver);
    w->saver = w->spare;
    w->spare = (saver_t){.socket = -1};
    w->lost = saver_gone(&w->saver);
    if (!w->lost) saver_fork(&w->saver, &w->spare);
}

/* Who died since the last save is replaced now, before anything is copied. */
lh_status_t writer_begin(writer_t *w)
{
    if (w->busy) return LH_AGAIN;
    if (!w->lost && saver_gone(&w->saver)) take_over(w);
    if (w->lost) {
        return fail_io(0, "the process that saves and the one in reserve were killed: checkpoints "
                          "can't be saved any more");
    }
    if (saver_gone(&w->spare)) {
        saver_leave(&w->spare);
        saver_fork(&w->saver, &w->spare);
    }
    lh_assert(w->arena.memory != NULL); /* writer_layout came first */
    if (w->memory) {
        w->slot = w->whole == 0 ? 1 : 0;
        memory_empty(w->arena.memory + w->slots.slot[w->slot].begin);
    }
    w->begun = true;
    return LH_OK;
}

/* The clock of the deadline starts. Should the saver have died meanwhile, its result will say so.
 */
static void writer_ask(writer_t *w, uint32_t task)
{
    (void)saver_ask(&w->saver, task);
    w->asked = true;
    w->killed = w->signalled = w->committed = false;
    w->started_ns = sys()->now_ns();
}

/* From here on the places are the saver's until the save has ended. */
static lh_status_t submit_task(writer_t *w, const checkpoint_meta_t *meta, uint32_t task)
{
    lh_assert(w->begun && !w->busy);
    w->begun = false;
    w->job->attempt++;
    w->job->tensors = w->pieces;
    w->job->offset = w->offset;
    w->job->count = w->piece_count;
    w->job->arena_bytes = w->arena.bytes;
    w->job->base = writer_base(w);
    w->job->slot_bytes = w->memory ? w->slots.slot[w->slot].bytes : 0;
    w->image = task == SAVER_DESCRIBE;
    w->to_disk = task == SAVER_SAVE;
    w->job->image_count = 0;
    const lh_status_t status = job_meta(w, meta);
    if (status != LH_OK) return status;
    w->busy = true;
    w->step = meta->step;
    w->self[0] = '\0';
    writer_ask(w, task);
    return LH_OK;
}

lh_status_t writer_submit(writer_t *w, const checkpoint_meta_t *meta)
{
    return submit_task(w, meta, SAVER_SAVE);
}

/* All ranks fill the same slot, so guests' images come into the same of theirs. */
static void guests_arrived(writer_t *w, bool whole)
{
    for (uint32_t i = MEMORY_OWN + w->slot; i < w->slots.count; i += MEMORY_OWN)
        memory_arrived(w->arena.memory, i, whole);
}

lh_status_t writer_submit_memory(writer_t *w, const checkpoint_meta_t *meta, bool to_disk,
                                 uint32_t *slot)
{
    lh_assert(w->memory && w->how.ranks > 1);
    *slot = w->slot;
    guests_arrived(w, false);
    const lh_status_t status = submit_task(w, meta, SAVER_DESCRIBE);
    w->to_disk = to_disk;
    return status;
}

void writer_write(writer_t *w)
{
    lh_assert(w->busy && !w->asked && w->image && w->to_disk);
    save_job_t *job = w->job;
    for (uint32_t i = w->slot; i < w->slots.count; i += MEMORY_OWN) {
        job->images[job->image_count].begin = w->slots.slot[i].begin;
        job->images[job->image_count++].bytes = w->slots.slot[i].bytes;
    }
    /* What is described is in memory that another process sees as well. */
    if (!w->lost && saver_gone(&w->saver)) take_over(w);
    writer_ask(w, SAVER_SAVE);
}

void writer_commit(writer_t *w)
{
    lh_assert(w->busy && !w->asked && w->how.ranks > 1 && w->how.leads);
    /* All shares are in files, and so another process can do it as well. */
    if (!w->lost && saver_gone(&w->saver)) take_over(w);
    writer_ask(w, SAVER_COMMIT);
}

void writer_settle(writer_t *w, bool committed)
{
    lh_assert(w->busy && !w->asked && w->how.ranks > 1);
    w->busy = false;
    if (committed && w->self[0] != '\0') writer_parent(w, w->self);
    if (w->image && committed) {
        w->whole = w->slot;
        guests_arrived(w, true);
    }
    if (committed || !w->to_disk || !w->how.leads || w->lost) return;
    w->job->abandoned_step = w->step;
    w->job->abandoned_attempt = w->job->attempt;
    (void)saver_ask(&w->saver, SAVER_ABANDON);
}

/* Fills the result. With several ranks the save stays busy until writer_settle: its places must not
 * be filled while another rank may still have to be waited for. */
static void writer_ended(writer_t *w, lh_status_t status, const char *reason, writer_result_t *out)
{
    lh_assert(w->busy && w->asked);
    w->asked = false;
    w->busy = w->how.ranks > 1; /* until writer_settle */
    *out = (writer_result_t){
        .status = status, .step = w->step, .ns = sys()->now_ns() - w->started_ns};
    (void)snprintf(out->reason, sizeof(out->reason), "%s", reason);
}

/* As the saver says it. What one of several folders has is the checkpoint before of the next save only once all have
 * it: a second try of this step is to have the same manifest (writer_settle). */
static void writer_take(writer_t *w, const saver_answer_t *answer, writer_result_t *out)
{
    if (answer->status == LH_OK) w->job->leftovers = false;
    if (answer->status == LH_OK) memcpy(w->self, answer->self, sizeof(w->self));
    if (w->how.ranks <= 1 && w->self[0] != '\0') writer_parent(w, w->self);
    writer_ended(w, answer->status, answer->reason, out);
    out->has_room = answer->has_room;
    out->free_bytes = answer->free_bytes;
}

/* The saver is gone, or killed and yet there: its file system does not let it go. It will not run
 * again but to end, so that what it shares is free; what it holds of the disk is in its staging
 * folder. What it has committed is saved all the same. */
static void saver_failed(writer_t *w, lh_status_t status, writer_result_t *out)
{
    char reason[128] = "the process that saves has died";
    int how = 0;
    if (w->killed)
        (void)snprintf(reason, sizeof(reason),
                       "step %llu was not written within %.1f s and is given up",
                       (unsigned long long)w->step, (double)w->how.deadline_ns / 1e9);
    else if (saver_reap(&w->saver, DEATH_WAIT_MS, &how))
        (void)snprintf(reason, sizeof(reason),
                       WIFSIGNALED(how) ? "the process that saves was ended by signal %d"
                                        : "the process that saves ended with code %d",
                       WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    take_over(w);
    if (w->committed) {
        log_line(LH_LOG_WARN, "step %llu is saved, but older checkpoints may not be removed: %s",
                 (unsigned long long)w->step,
                 w->killed ? "that takes longer than [checkpoint] deadline" : reason);
        writer_take(w, &w->said, out);
    } else {
        writer_ended(w, status, reason, out);
    }
    w->job->leftovers = true;
}

static bool writer_notes_commit(writer_t *w, const saver_answer_t *answer)
{
    if (!answer->goes_on) return false;
    w->committed = true;
    w->said = *answer;
    w->said.reason[sizeof(w->said.reason) - 1] = '\0';
    return true;
}

/* Waits at most timeout_ms for the saver's word. LH_AGAIN: none that ends the save. A reserve that
 * was forked by a saver says here who it is, once it has become the saver. */
static lh_status_t writer_hear(writer_t *w, int timeout_ms, writer_result_t *out)
{
    struct pollfd fd = {.fd = w->saver.socket, .events = POLLIN};
    if (!w->lost && poll(&fd, 1, timeout_ms) <= 0) return LH_AGAIN;

    saver_answer_t answer;
    ssize_t got;
    do
        got = recv(w->saver.socket, &answer, sizeof(answer), MSG_DONTWAIT);
    while (got == (ssize_t)sizeof(answer) && writer_notes_commit(w, &answer));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return LH_AGAIN;
    if (got != (ssize_t)sizeof(answer)) {
        saver_failed(w, LH_IO, out);
        return LH_OK;
    }
    if (answer.pid > 0) {
        w->saver.pid = answer.pid;
        return LH_AGAIN;
    }
    answer.reason[sizeof(answer.reason) - 1] = '\0';
    writer_take(w, &answer, out);
    return LH_OK;
}

/* Of the saver that is past its deadline: killed, and after a while left to itself. Returns the
 * milliseconds to wait for it until then; 0: it is to be left. */
static int saver_give_up(writer_t *w)
{
    const uint64_t now = sys()->now_ns();
    if (!w->killed) w->killed_ns = now;
    w->killed = true;
    /* Of one that a saver was to fork the first words may be on their way; or they never come, as that one hangs. */
    if (!w->signalled && w->saver.pid != 0) w->signalled = kill(w->saver.pid, SIGKILL) == 0;
    const uint64_t spent = (now - w->killed_ns) / 1000000;
    return spent >= KILL_WAIT_MS ? 0 : KILL_WAIT_MS - (int)spent;
}

lh_status_t writer_poll(writer_t *w, writer_result_t *out)
{
    if (!w->asked) return LH_INVALID;
    const lh_status_t status = writer_hear(w, 0, out);
    if (status == LH_OK || sys()->now_ns() - w->started_ns < w->how.deadline_ns) return status;
    if (saver_give_up(w) > 0) return LH_AGAIN;
    saver_failed(w, LH_TIMED_OUT, out);
    return LH_OK;
}

/* In pieces of 100 ms at most, as the deadline may pass while it waits. */
lh_status_t writer_wait(writer_t *w, writer_result_t *out)
{
    if (!w->asked) return LH_INVALID;
    for (;;) {
        const uint64_t spent = sys()->now_ns() - w->started_ns;
        const bool late = spent >= w->how.deadline_ns;
        const uint64_t ms = late ? 0 : (w->how.deadline_ns - spent) / 1000000 + 1;
        const int timeout_ms = late ? saver_give_up(w) : ms > 100 ? 100 : (int)ms;
        if (writer_hear(w, timeout_ms, out) == LH_OK) return LH_OK;
        if (!late || saver_give_up(w) > 0) continue;
        saver_failed(w, LH_TIMED_OUT, out);
        return LH_OK;
    }
}

/* `wait` for the savers to end, or leave them to themselves. A folder that was made for the lock is
 * removed again only if nothing was ever saved. */
static void end_writer(writer_t *w, bool wait)
{
    const bool wrote = w->job != NULL && w->job->attempt > 0;
    if (wait) { /* the deadline for both: where the first hangs, the other one waits for it */
        const uint64_t begin = sys()->now_ns();
        const uint64_t most = w->how.deadline_ns + (uint64_t)SAVER_ORPHAN_MS * 1000000;
        saver_end(&w->saver, most);
        const uint64_t spent = sys()->now_ns() - begin;
        saver_end(&w->spare, spent < most ? most - spent : 0);
    }
    saver_leave(&w->saver);
    saver_leave(&w->spare);
    writer_arena_close(&w->arena);
    if (w->job != NULL) (void)munmap(w->job, JOB_MOST);
    /* A saver may still write under the lock; without a submit there was none. */
    if (!wrote)
        folder_lock_undo(&w->lock, w->folder);
    else
        folder_lock_give(&w->lock);
    mem_free(w->folder);
    mem_free(w);
}

void writer_close(writer_t *w)
{
    if (w == NULL) return;
    writer_result_t result;
    if (w->asked && writer_wait(w, &result) != LH_OK) lh_assert(!w->asked);
    end_writer(w, true);
}

void writer_leave(writer_t *w)
{
    if (w != NULL) end_writer(w, !w->asked);
}
