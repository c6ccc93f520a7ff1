/* memory_image.c - describes a slot of memory, and finds and writes what is described.
 *
 * An image is judged by what stands in it alone. The head of a slot says how long its manifest is
 * and has a hash of its own; the manifest has its seal and is compared with the head; and each
 * tensor must hash to what the manifest says. A rank may be killed at any moment of a copy, and a
 * partner may have received half of one: such a slot fails one of the three, and the other of the
 * pair, which nobody has touched meanwhile, is taken.
 *
 * An image becomes a checkpoint by the same shares and the same commit as any other
 * (saver_share_write), so that what is loaded after a loss is an ordinary checkpoint: any layout
 * loads it, and it is on the disk when the run goes on. */
#include <checkpoint/memory_image.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <format/safetensors.h>

/* MEMORY_FILE: the one file of an image's manifest, which is the slot itself. */
#define MEMORY_MAGIC UINT64_C(0x32676d696d656d6c)
#define MEMORY_FILE "memory.safetensors"

/* At the begin of a slot; then nothing up to MEMORY_PAGE. */
typedef struct slot_head {
    uint64_t magic;
    memory_key_t key;
    uint64_t manifest_begin, manifest_bytes; /* in the slot */
    uint64_t hash;                           /* of all before */
} slot_head_t;

/* At the begin of the memory. */
typedef struct memory_head {
    uint64_t magic;
    memory_slots_t slots;
    uint64_t hash; /* of all before */
    uint8_t arriving[MEMORY_SLOTS];
} memory_head_t;

_Static_assert(sizeof(memory_head_t) <= MEMORY_PAGE && sizeof(slot_head_t) <= MEMORY_PAGE,
               "a head is a page");

static uint64_t memory_pages(uint64_t bytes)
{
    return (bytes + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE;
}

uint64_t memory_slot_bytes(uint64_t tensors, uint64_t manifest)
{
    return MEMORY_PAGE + memory_pages(tensors) + memory_pages(manifest);
}

uint64_t memory_slots_add(memory_slots_t *s, uint64_t bytes)
{
    lh_assert(s->count + 2 <= MEMORY_SLOTS && bytes % MEMORY_PAGE == 0);
    for (int i = 0; i < 2; i++) {
        const uint64_t begin = s->count == 0
                                   ? MEMORY_PAGE
                                   : s->slot[s->count - 1].begin + s->slot[s->count - 1].bytes;
        s->slot[s->count].begin = begin;
        s->slot[s->count++].bytes = bytes;
    }
    return s->slot[s->count - 1].begin + bytes;
}

void memory_slots_write(const memory_slots_t *s, char *memory)
{
    memory_head_t head = {.magic = MEMORY_MAGIC, .slots = *s};
    head.hash = digest_xxh3(&head, offsetof(memory_head_t, hash));
    for (uint32_t i = 0; i < s->count; i++)
        memory_empty(memory + s->slot[i].begin);
    memcpy(memory, &head, sizeof(head));
}

void memory_arrived(char *memory, uint32_t slot, bool whole)
{
    lh_assert(slot < MEMORY_SLOTS);
    memory[offsetof(memory_head_t, arriving) + slot] = whole ? 0 : 1;
}

void memory_empty(char *slot)
{
    memset(slot, 0, sizeof(slot_head_t));
}

/* The manifest's one file is as long as the slot's tensors; each part is named by where it begins
 * in the slot. */
static lh_status_t describe_parts(const save_job_t *job, const char *slot, manifest_t *m,
                                  uint64_t *end)
{
    uint32_t file;
    lh_status_t status = manifest_add_file(m, MEMORY_FILE, &file);
    *end = MEMORY_PAGE;
    for (uint32_t i = 0; i < job->count && status == LH_OK; i++) {
        const checkpoint_tensor_t *t = &job->tensors[i];
        const uint64_t at = MEMORY_PAGE + job->offset[i];
        const uint64_t bytes = t->part.count * (safetensors_dtype(t->dtype)->bits / 8);
        char place[24];
        (void)snprintf(place, sizeof(place), "%llu", (unsigned long long)at);
        status = manifest_add_part(m, t, file, place, digest_xxh3(slot + at, (size_t)bytes));
        if (at + bytes > *end) *end = at + bytes;
    }
    if (status == LH_OK) m->files[file].bytes = *end;
    *end = memory_pages(*end);
    return status;
}

lh_status_t memory_describe(const save_job_t *job, const memory_key_t *key, char *slot,
                            uint64_t bytes)
{
    manifest_t m = {.meta = job->meta};
    text_t text = {0};
    uint64_t end;
    (void)snprintf(m.parent, sizeof(m.parent), "%s", job->parent);
    lh_status_t status = describe_parts(job, slot, &m, &end);
    if (status == LH_OK) status = manifest_text(&m, &text);
    if (status == LH_OK && (end > bytes || text.length > bytes - end))
        status = fail(LH_INVALID, "what describes a snapshot in memory takes %zu bytes: no room",
                      text.length);
    if (status == LH_OK) {
        slot_head_t head = {.magic = MEMORY_MAGIC,
                            .key = *key,
                            .manifest_begin = end,
                            .manifest_bytes = text.length};
        head.hash = digest_xxh3(&head, offsetof(slot_head_t, hash));
        memcpy(slot + end, text.data, text.length);
        memcpy(slot, &head, sizeof(head));
    }
    text_free(&text);
    manifest_clear(&m);
    return status;
}

/* ---- after a loss ---------------------------------------------------------------------------- */

/* Where a part lies, as its name says: within the slot's tensors. */
static bool part_place(const manifest_part_t *part, uint64_t most, uint64_t *at, uint64_t *bytes)
{
    char *end;
    errno = 0;
    *at = strtoull(part->stored, &end, 10);
    *bytes = part->part.count * sizeof(float);
    return errno == 0 && end != part->stored && *end == '\0' && *at >= MEMORY_PAGE &&
           *at % sizeof(float) == 0 && *at <= most && *bytes <= most - *at;
}

static lh_status_t check_tensors(const memory_image_t *image, uint64_t most)
{
    for (uint32_t i = 0; i < image->manifest->tensor_count; i++) {
        const manifest_tensor_t *t = &image->manifest->tensors[i];
        for (uint32_t k = 0; k < t->part_count; k++) {
            uint64_t at, bytes;
            if (t->dtype != LH_DTYPE_F32 || !part_place(&t->parts[k], most, &at, &bytes))
                return fail(LH_CORRUPT, "tensor %s lies outside of it", t->name);
            const uint64_t found = digest_xxh3(image->slot + at, (size_t)bytes);
            if (found != t->parts[k].xxh3)
                return fail(LH_CORRUPT,
                            "tensor %s: its bytes hash to %016llx, %016llx was expected", t->name,
                            (unsigned long long)found, (unsigned long long)t->parts[k].xxh3);
        }
    }
    return LH_OK;
}

/* A slot whose head is not whole is empty: nobody has finished it. */
lh_status_t memory_image_open(const char *slot, uint64_t bytes, memory_image_t *out)
{
    slot_head_t head;
    if (bytes < MEMORY_PAGE) return LH_AGAIN;
    memcpy(&head, slot, sizeof(head));
    if (head.magic != MEMORY_MAGIC ||
        head.hash != digest_xxh3(&head, offsetof(slot_head_t, hash)) ||
        head.manifest_begin < MEMORY_PAGE || head.manifest_begin > bytes ||
        head.manifest_bytes > bytes - head.manifest_begin || head.key.rank >= head.key.ranks)
        return LH_AGAIN;
    *out = (memory_image_t){.key = head.key, .slot = slot};
    lh_status_t status = manifest_parse("its manifest", slot + head.manifest_begin,
                                        (size_t)head.manifest_bytes, false, &out->manifest);
    if (status == LH_NO_MEMORY) return status;
    if (status == LH_OK && out->manifest->meta.step != head.key.step)
        status = fail(LH_CORRUPT, "its manifest is that of step %llu",
                      (unsigned long long)out->manifest->meta.step);
    if (status == LH_OK) status = check_tensors(out, head.manifest_begin);
    if (status == LH_OK) return LH_OK;
    memory_image_close(out);
    return LH_CORRUPT;
}

void memory_image_close(memory_image_t *image)
{
    manifest_free(image->manifest);
    image->manifest = NULL;
}

saver_share_t memory_image_share(const memory_image_t *image, const char *folder, uint32_t attempt)
{
    return (saver_share_t){.folder = folder,
                           .rank = image->key.rank,
                           .ranks = image->key.ranks,
                           .session = image->key.session,
                           .attempt = attempt,
                           .meta = &image->manifest->meta,
                           .parent = image->manifest->parent};
}

lh_status_t memory_image_write(const memory_image_t *image, const char *folder, uint32_t attempt,
                               uint64_t shard_bytes)
{
    const manifest_t *m = image->manifest;
    saver_share_t share = memory_image_share(image, folder, attempt);
    uint32_t count = 0, at = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        count += m->tensors[i].part_count;
    checkpoint_tensor_t *tensors = mem_array(count == 0 ? 1 : count, sizeof(*tensors));
    const void **data = mem_array(count == 0 ? 1 : count, sizeof(*data));
    lh_status_t status = tensors == NULL || data == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t i = 0; i < m->tensor_count && status == LH_OK; i++) {
        const manifest_tensor_t *t = &m->tensors[i];
        for (uint32_t k = 0; k < t->part_count; k++, at++) {
            tensors[at] = (checkpoint_tensor_t){.name = t->name,
                                                .dtype = t->dtype,
                                                .source = t->source,
                                                .rank = t->rank,
                                                .part = t->parts[k].part};
            memcpy(tensors[at].shape, t->shape, sizeof(t->shape));
            data[at] = image->slot + strtoull(t->parts[k].stored, NULL, 10);
        }
    }
    share.shard_bytes = shard_bytes;
    if (status == LH_OK) status = saver_share_write(&share, tensors, data, count);
    mem_free(data);
    mem_free(tensors);
    return status;
}

/* Maps it whole, as long as it is now: whoever wrote it may have had another layout. */
static bool found_map(int fd, memory_found_t *out, memory_head_t *head)
{
    struct stat st;
    if (fd < 0 || sys()->fstat(fd, &st) != 0 || st.st_size < MEMORY_PAGE) return false;
    void *memory = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return false;
    out->memory = memory;
    out->bytes = (uint64_t)st.st_size;
    memcpy(head, memory, sizeof(*head));
    return head->magic == MEMORY_MAGIC &&
           head->hash == digest_xxh3(head, offsetof(memory_head_t, hash)) &&
           head->slots.count <= MEMORY_SLOTS;
}

void memory_find(int fd, memory_found_t *out)
{
    memory_head_t head;
    *out = (memory_found_t){.memory = NULL};
    if (!found_map(fd, out, &head)) return;
    for (uint32_t i = 0; i < head.slots.count; i++) {
        const uint64_t begin = head.slots.slot[i].begin, bytes = head.slots.slot[i].bytes;
        if (begin > out->bytes || bytes > out->bytes - begin) continue;
        memory_image_t *image = &out->images[out->count];
        const lh_status_t status = memory_image_open(out->memory + begin, bytes, image);
        if (status == LH_OK)
            out->count++;
        else if (status != LH_AGAIN && head.arriving[i] == 0)
            log_line(LH_LOG_WARN, "rank %u's snapshot of step %llu in memory is damaged: %s",
                     image->key.rank, (unsigned long long)image->key.step, fail_reason());
    }
}

void memory_found_close(memory_found_t *found)
{
    for (uint32_t i = 0; i < found->count; i++)
        memory_image_close(&found->images[i]);
    if (found->memory != NULL) (void)munmap(found->memory, found->bytes);
    *found = (memory_found_t){.memory = NULL};
}
