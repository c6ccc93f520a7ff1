/* checkpoint.c - opens what a manifest describes, reads it into any layout, finds the newest whole
 * one.
 *
 * Each check rests on the one before: the manifest's seal says that it is what was written, the
 * manifest says what each file's size and header must be, and each part's hash is checked when its
 * bytes are read. Opening reads no data, so that it costs little even for a checkpoint of
 * terabytes; who loads it reads every byte once, and finds damage then. */
#include <checkpoint/checkpoint.h>

#include <errno.h>
#include <fcntl.h>

#include <base/dtype.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>

/* A checkpoint's bytes lie in its own folder: a link is none of ours. */
static const safetensors_limits_t own_limits = {
    .header_bytes = 100000000, .tensors = UINT32_MAX, .refuses_links = true};

/* The reader of the manifest has checked that this fits. */
static uint64_t checkpoint_part_bytes(const manifest_tensor_t *t, const manifest_part_t *part)
{
    lh_assert(safetensors_dtype(t->dtype) != NULL);
    return part->part.count * (safetensors_dtype(t->dtype)->bits / 8);
}

/* What the manifest says of a part is what its file's header says. */
static lh_status_t check_part(const checkpoint_t *c, const manifest_tensor_t *t,
                              const manifest_part_t *part)
{
    lh_assert(part->file < c->manifest->file_count);
    const safetensors_t *file = c->files[part->file];
    const safetensor_t *stored = safetensors_find(file, part->stored);
    if (stored == NULL)
        return fail(LH_CORRUPT, "%s: tensor %s is not in it", file->path, part->stored);
    if (stored->dtype->number != t->dtype || stored->elements != part->part.count)
        return fail(LH_CORRUPT, "%s: tensor %s: %llu elements of %s, the manifest says %llu of %s",
                    file->path, part->stored, (unsigned long long)stored->elements,
                    stored->dtype->name, (unsigned long long)part->part.count,
                    safetensors_dtype(t->dtype)->name);
    return LH_OK;
}

/* Files first, first + step, ..., each against its line of the manifest. */
static lh_status_t open_files(checkpoint_t *c, uint32_t first, uint32_t step)
{
    const manifest_t *m = c->manifest;
    if (c->files == NULL) c->files = mem_array(m->file_count, sizeof(c->files[0]));
    if (c->files == NULL) return LH_NO_MEMORY;
    for (uint32_t i = first; i < m->file_count; i += step) {
        char *path = path_join(c->path, m->files[i].name);
        if (path == NULL) return LH_NO_MEMORY;
        lh_status_t status = safetensors_open(path, &own_limits, &c->files[i]);
        if (status == LH_OK && c->files[i]->file_bytes != m->files[i].bytes)
            status = fail(LH_CORRUPT, "%s: %llu bytes, the manifest says %llu", path,
                          (unsigned long long)c->files[i]->file_bytes,
                          (unsigned long long)m->files[i].bytes);
        if (status == LH_OK && c->files[i]->header_hash != m->files[i].header_hash)
            status = fail(LH_CORRUPT, "%s: its header is not the one the manifest was made with",
                          path);
        mem_free(path);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Every part of the files that are open, before any data is read. */
static lh_status_t check_parts(const checkpoint_t *c)
{
    const manifest_t *m = c->manifest;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        for (uint32_t k = 0; k < m->tensors[i].part_count; k++) {
            if (c->files[m->tensors[i].parts[k].file] == NULL) continue;
            const lh_status_t status = check_part(c, &m->tensors[i], &m->tensors[i].parts[k]);
            if (status != LH_OK) return status;
        }
    return LH_OK;
}

/* A folder that was renamed would take the place of another step. */
static lh_status_t checkpoint_check_name(const checkpoint_t *c)
{
    uint64_t step;
    if (!checkpoint_name_parse(path_name(c->path), &step) || step == c->manifest->meta.step)
        return LH_OK;
    return fail(LH_CORRUPT, "%s: its manifest is that of step %llu", c->path,
                (unsigned long long)c->manifest->meta.step);
}

/* Also closes what was opened of it where it fails. */
static lh_status_t open_once(const char *path, checkpoint_t **out)
{
    checkpoint_t *c = mem_new(sizeof(*c));
    char *manifest = path_join(path, MANIFEST_NAME);
    lh_status_t status = LH_NO_MEMORY;
    if (c == NULL || manifest == NULL) goto close_all;
    c->path = mem_text(path);
    if (c->path == NULL) goto close_all;

    status = manifest_read(manifest, &c->manifest);
    if (status == LH_OK) status = checkpoint_check_name(c);
    if (status == LH_OK) status = open_files(c, 0, 1);
    if (status == LH_OK) status = check_parts(c);
    if (status != LH_OK) goto close_all;
    mem_free(manifest);
    *out = c;
    return LH_OK;

close_all:
    mem_free(manifest);
    checkpoint_close(c);
    return status;
}

/* What failed may succeed the next moment; but not what is not there. */
lh_status_t checkpoint_open(const char *path, checkpoint_t **out)
{
    const lh_status_t status = open_once(path, out);
    return status == LH_IO && errno != ENOENT ? open_once(path, out) : status;
}

lh_status_t checkpoint_open_text(const char *path, const char *text, size_t length,
                                 checkpoint_t **out)
{
    checkpoint_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->path = mem_text(path);
    lh_status_t status = c->path == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) status = manifest_parse(path, text, length, true, &c->manifest);
    if (status == LH_OK) status = checkpoint_check_name(c);
    if (status == LH_OK)
        *out = c;
    else
        checkpoint_close(c);
    return status;
}

void checkpoint_close(checkpoint_t *c)
{
    if (c == NULL) return;
    for (uint32_t i = 0; c->files != NULL && i < c->manifest->file_count; i++)
        safetensors_close(c->files[i]);
    mem_free(c->files);
    manifest_free(c->manifest);
    mem_free(c->scratch);
    mem_free(c->path);
    mem_free(c);
}

const manifest_tensor_t *checkpoint_find(const checkpoint_t *c, const char *name)
{
    return manifest_find(c->manifest, name);
}

lh_status_t checkpoint_check_hash(const checkpoint_t *c, const manifest_part_t *part,
                                  uint64_t found)
{
    if (found == part->xxh3) return LH_OK;
    return fail(LH_CORRUPT, "%s: tensor %s: its bytes hash to %016llx, the manifest says %016llx",
                c->files[part->file]->path, part->stored, (unsigned long long)found,
                (unsigned long long)part->xxh3);
}

/* The bytes of a part, checked, in `to`, which has room for all of it: a hash is of the whole part,
 * so that a piece of it can't be read alone. */
static lh_status_t checkpoint_read_part(const checkpoint_t *c, const manifest_tensor_t *t,
                                        const manifest_part_t *part, void *to)
{
    lh_assert(part->file < c->manifest->file_count);
    const safetensors_t *file = c->files[part->file];
    const uint64_t bytes = checkpoint_part_bytes(t, part);
    const lh_status_t status = safetensors_read(file, safetensors_find(file, part->stored), 0, to,
                                                bytes);
    return status == LH_OK ? checkpoint_check_hash(c, part, digest_xxh3(to, (size_t)bytes))
                           : status;
}

/* Its contents are lost when it grows. */
static lh_status_t scratch_at_least(checkpoint_t *c, uint64_t bytes)
{
    if (c->scratch != NULL && c->scratch_bytes >= bytes) return LH_OK;
    mem_free(c->scratch);
    c->scratch = mem_new((size_t)bytes);
    c->scratch_bytes = c->scratch == NULL ? 0 : bytes;
    return c->scratch == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Where a stored part lies dense in what is wanted of the same box; NULL: it does not. */
static float *part_inside(const tensor_part_t *part, const tensor_part_t *want, float *out)
{
    const bool same = memcmp(part->at, want->at, sizeof(part->at)) == 0 &&
                      memcmp(part->shape, want->shape, sizeof(part->shape)) == 0;
    if (!same || part->first < want->first || part->first + part->count > want->first + want->count)
        return NULL;
    return out + (part->first - want->first);
}

/* Part by part: a stored part that is F32 and lies in what is wanted is read straight into `out`, as
 * in a resume in the same layout; a part that has nothing of what is wanted is not read at all; any
 * other goes through scratch, where the stored form lies behind the room for its F32 form. */
lh_status_t checkpoint_read(checkpoint_t *c, const manifest_tensor_t *t,
                            const tensor_part_t *wanted, float *out)
{
    tensor_part_t want = *wanted;
    if (want.count == 0) want = tensor_part_whole(t->rank, t->shape);

    for (uint32_t i = 0; i < t->part_count; i++) {
        const manifest_part_t *part = &t->parts[i];
        float *inside = part_inside(&part->part, &want, out);
        if (tensor_part_copy(t->rank, t->shape, &part->part, NULL, &want, NULL) == 0) continue;
        if (t->dtype == LH_DTYPE_F32 && inside != NULL) {
            const lh_status_t status = checkpoint_read_part(c, t, part, inside);
            if (status != LH_OK) return status;
            continue;
        }
        const uint64_t bytes = checkpoint_part_bytes(t, part),
                       wide = part->part.count * sizeof(float);
        const bool narrow = t->dtype != LH_DTYPE_F32;
        lh_status_t status = scratch_at_least(c, narrow ? bytes + wide : wide);
        if (status != LH_OK) return status;
        float *values = c->scratch;
        void *stored = narrow ? (char *)c->scratch + wide : c->scratch;
        status = checkpoint_read_part(c, t, part, stored);
        if (status != LH_OK) return status;
        if (narrow)
            status = dtype_convert(LH_DTYPE_F32, values, t->dtype, stored, part->part.count);
        if (status != LH_OK) return status;
        (void)tensor_part_copy(t->rank, t->shape, &part->part, values, &want, out);
    }
    return LH_OK;
}

/* Reads each byte of each part of the files that are open once; nobody wants the values. */
static lh_status_t verify_open(checkpoint_t *c)
{
    const manifest_t *m = c->manifest;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        for (uint32_t k = 0; k < m->tensors[i].part_count; k++) {
            const manifest_part_t *part = &m->tensors[i].parts[k];
            if (c->files[part->file] == NULL) continue;
            lh_status_t status = scratch_at_least(c, checkpoint_part_bytes(&m->tensors[i], part));
            if (status == LH_OK) status = checkpoint_read_part(c, &m->tensors[i], part, c->scratch);
            if (status != LH_OK) return status;
        }
    return LH_OK;
}

/* Opens only what is whole to the last byte. */
static lh_status_t open_verified(const char *path, checkpoint_t **out)
{
    checkpoint_t *c;
    lh_status_t status = checkpoint_open(path, &c);
    if (status != LH_OK) return status;
    status = verify_open(c);
    if (status == LH_IO) status = verify_open(c); /* as with opening */
    if (status == LH_OK)
        *out = c;
    else
        checkpoint_close(c);
    return status;
}

lh_status_t checkpoint_verify(const char *path)
{
    checkpoint_t *c;
    const lh_status_t status = open_verified(path, &c);
    if (status == LH_OK) checkpoint_close(c);
    return status;
}

/* A resume from an older step puts the newer ones aside, and the pointer stays until the next save. */
static bool pointer_leads(const char *folder, const char *name)
{
    char *path = path_join(folder, name);
    const bool leads = path != NULL && file_exists(path);
    mem_free(path);
    return leads;
}

/* The pointer is only a hint: what it names may be gone, and something newer may be whole. newest: that is
 * whole, be it passed over. */
static void check_pointer(const char *folder, uint64_t newest)
{
    char *path = path_join(folder, CHECKPOINT_POINTER), *text = NULL;
    size_t length;
    if (path == NULL || !file_exists(path)) goto free_path;
    if (file_read(path, 256, &text, &length) != LH_OK) {
        log_line(LH_LOG_WARN, "%s", fail_reason());
        goto free_path;
    }
    text[strcspn(text, " \n")] = '\0';
    uint64_t step;
    if (!checkpoint_name_parse(text, &step))
        log_line(LH_LOG_WARN, "%s names no checkpoint; the folder is searched instead", path);
    else if (step > newest)
        log_line(LH_LOG_WARN, "%s names %s, which is not %s; the newest whole one is taken", path,
                 text, pointer_leads(folder, text) ? "whole" : "there");
    mem_free(text);
free_path:
    mem_free(path);
}

/* ENOENT: removed while it was read, or a file of it is missing. EIO: the disk can't read it any
 * more. Any other failure is of this process or its machine, and the checkpoint may be whole. */
bool checkpoint_lost(lh_status_t status, int error)
{
    return status == LH_IO ? error == ENOENT || error == EIO : status == LH_CORRUPT;
}

bool checkpoint_damaged(lh_status_t status, int error)
{
    if (status == LH_IO)
        return checkpoint_lost(status, error) || error == ENOTDIR || error == ELOOP;
    return status != LH_NO_MEMORY && status != LH_UNSUPPORTED;
}

bool checkpoint_gone(const char *path)
{
    struct stat st;
    return sys()->lstat(path, &st) != 0 && errno == ENOENT;
}

void checkpoint_skip(uint64_t step)
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    log_line(LH_LOG_WARN, "%s is skipped: %s", name, fail_reason());
}

/* A refused one is taken where there is no good one: none before it is to be looked for any more. */
void checkpoint_exclude(checkpoint_below_t *below, const checkpoint_t *damaged)
{
    const uint64_t step = damaged->manifest->meta.step;
    if (manifest_refused(damaged->manifest) > 0) below->refused = step;
    if (step < below->good) below->good = step;
}

bool checkpoint_excluded(const checkpoint_below_t *below, const checkpoint_t *c)
{
    const bool good = manifest_refused(c->manifest) == 0;
    return c->manifest->meta.step >= (good ? below->good : below->refused);
}

/* checkpoint_open, or the same with all data verified. */
typedef lh_status_t (*open_func_t)(const char *path, checkpoint_t **out);

/* LH_CORRUPT: damaged, and skipped with a warning. LH_AGAIN: it was removed since it was listed. */
static lh_status_t try_step(const char *folder, uint64_t step, open_func_t open, checkpoint_t **out)
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = open(path, out);
    const int error = errno;
    if (status != LH_OK && checkpoint_gone(path)) {
        status = LH_AGAIN;
    } else if (status != LH_OK && checkpoint_damaged(status, error)) {
        checkpoint_skip(step);
        status = LH_CORRUPT;
    }
    mem_free(path);
    return status;
}

/* Above the good ones that have turned out damaged, where there is no other: the newest that lies behind steps
 * which were not applied. NULL: none is whole. */
static lh_status_t try_refused(const char *folder, const checkpoint_steps_t *steps,
                               const checkpoint_below_t *below, open_func_t open,
                               checkpoint_t **out)
{
    *out = NULL;
    for (size_t i = 0; i < steps->count && *out == NULL; i++) {
        if (steps->steps[i] < below->good || steps->steps[i] >= below->refused) continue;
        const lh_status_t status = try_step(folder, steps->steps[i], open, out);
        if (status != LH_OK && status != LH_CORRUPT) return status;
        if (*out == NULL || !checkpoint_excluded(below, *out)) continue;
        checkpoint_close(*out);
        *out = NULL;
    }
    return LH_OK;
}

/* The newest good one; where there is none, the newest that is whole. Newest first, as the list is;
 * a checkpoint behind steps that were not applied is kept open until a good one below it is found,
 * so that it need not be opened twice. *newest: the newest that is whole, where *out is one. */
static lh_status_t try_steps(const char *folder, const checkpoint_steps_t *steps,
                             const checkpoint_below_t *below, open_func_t open, checkpoint_t **out,
                             uint64_t *newest)
{
    checkpoint_t *refused = NULL, *found = NULL;
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < steps->count && found == NULL; i++) {
        if (steps->steps[i] >= below->good) continue;
        status = try_step(folder, steps->steps[i], open, &found);
        if (status == LH_CORRUPT) status = LH_OK;
        if (status != LH_OK) break;
        if (found == NULL || manifest_refused(found->manifest) == 0) continue;
        if (refused == NULL)
            refused = found;
        else
            checkpoint_close(found);
        found = NULL;
    }
    if (status == LH_OK && found == NULL) {
        checkpoint_t *above;
        status = try_refused(folder, steps, below, open, &above);
        found = above;
        if (status == LH_OK && above == NULL) {
            found = refused;
            refused = NULL;
        } else if (above != NULL) { /* of two refused ones nothing is passed over */
            checkpoint_close(refused);
            refused = NULL;
        }
    }
    if (status == LH_OK && found != NULL)
        *newest = (refused != NULL ? refused : found)->manifest->meta.step;
    if (status == LH_OK && refused != NULL)
        log_line(LH_LOG_WARN, "%s is passed over: the %llu steps before it were not applied",
                 path_name(refused->path), (unsigned long long)manifest_refused(refused->manifest));
    checkpoint_close(refused);
    *out = found;
    return status;
}

static lh_status_t open_newest(const char *folder, const checkpoint_below_t *below,
                               open_func_t open, checkpoint_t **out)
{
    enum { LISTINGS = 16 };
    checkpoint_t *found = NULL;
    size_t count = 0;
    uint64_t newest = 0;
    lh_status_t status = LH_AGAIN;
    /* Who removes old steps has saved newer ones before: they are in the next list. */
    for (int i = 0; i < LISTINGS && status == LH_AGAIN; i++) {
        checkpoint_steps_t steps;
        status = checkpoint_steps(folder, &steps);
        if (status == LH_OK) status = try_steps(folder, &steps, below, open, &found, &newest);
        count = steps.count;
        mem_free(steps.steps);
    }
    if (status == LH_AGAIN)
        return fail(LH_INVALID, "%s: its checkpoints are removed faster than they can be read",
                    folder);
    if (status != LH_OK) return status;
    if (found == NULL && count > 0)
        return fail(LH_CORRUPT, "%s: none of its %zu checkpoints is whole", folder, count);
    if (found != NULL && below->good == UINT64_MAX) check_pointer(folder, newest);
    *out = found;
    return LH_OK;
}

lh_status_t checkpoint_open_step(const char *folder, uint64_t step, checkpoint_t **out)
{
    return try_step(folder, step, checkpoint_open, out);
}

lh_status_t checkpoint_open_latest(const char *folder, checkpoint_t **out)
{
    return open_newest(folder, &CHECKPOINT_ALL, open_verified, out);
}

lh_status_t checkpoint_open_newest(const char *folder, const checkpoint_below_t *below,
                                   checkpoint_t **out)
{
    return open_newest(folder, below, checkpoint_open, out);
}

lh_status_t checkpoint_refuse_extra(const checkpoint_t *c, const parameters_t *p)
{
    for (uint32_t i = 0; i < c->manifest->tensor_count; i++) {
        const char *name = c->manifest->tensors[i].name;
        uint32_t index;
        if (strchr(name, '/') != NULL) continue; /* a state */
        if (!parameters_find(p, name, &index))
            return fail(LH_INVALID, "%s: holds a tensor %s, which the model has no place for",
                        c->path, name);
    }
    return LH_OK;
}

/* ---- a copy to a folder that can't see it ---------------------------------------------------- */

/* The files of a checkpoint as a stream.
 *
 * Nothing is known of a file but its name and length, which the manifest has. What has come is read back
 * against the hashes of that manifest before it is committed: who gives it has read no hash, and its own
 * ranks load other parts than those that are damaged there, so that a copy which is not checked would take
 * the place of what others have. Each file is created anew and synced before the manifest is written. */

void checkpoint_copy_begin(checkpoint_copy_t *s, const manifest_t *manifest, const char *folder,
                           uint32_t first, uint32_t step, bool writes)
{
    lh_assert(step > 0);
    *s = (checkpoint_copy_t){.manifest = manifest,
                             .folder = folder,
                             .first = first,
                             .step = step,
                             .writes = writes,
                             .next = first,
                             .fd = -1};
}

uint64_t checkpoint_copy_bytes(const checkpoint_copy_t *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = s->first; i < s->manifest->file_count; i += s->step)
        bytes += s->manifest->files[i].bytes;
    return bytes;
}

static lh_status_t stream_open(checkpoint_copy_t *s)
{
    const manifest_file_t *f = &s->manifest->files[s->next];
    char *path = path_join(s->folder, f->name);
    if (path == NULL) return LH_NO_MEMORY;
    const int how = s->writes ? O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW : O_RDONLY | O_NOFOLLOW;
    s->fd = sys_open(path, how, 0644);
    if (s->fd < 0 && !s->writes) s->fd = sys_open(path, how, 0); /* as with reads */
    lh_status_t status = LH_OK;
    if (s->fd < 0)
        status = fail_io(errno, "%s: cannot %s", path, s->writes ? "create" : "open");
    else if (s->writes && f->bytes > 0 && sys_fallocate(s->fd, (off_t)f->bytes) != 0)
        status = fail_io(errno, "%s: %llu bytes", path, (unsigned long long)f->bytes);
    mem_free(path);
    s->file = s->next;
    s->next += s->step;
    s->offset = 0;
    return status;
}

static lh_status_t stream_close(checkpoint_copy_t *s)
{
    lh_status_t status = LH_OK;
    const char *name = s->manifest->files[s->file].name;
    if (s->writes && sys_fsync(s->fd) != 0)
        status = fail_io(errno, "%s/%s: cannot sync", s->folder, name);
    if (sys()->close(s->fd) != 0 && status == LH_OK && s->writes)
        status = fail_io(errno, "%s/%s: cannot close", s->folder, name);
    s->fd = -1;
    return status;
}

/* Up to the end of the piece or of the stream. A file without bytes takes none of the piece, so those
 * behind the last full one are made with it. */
lh_status_t checkpoint_copy_move(checkpoint_copy_t *s, void *piece, uint64_t bytes)
{
    char *at = piece;
    const manifest_t *m = s->manifest;
    lh_status_t status = LH_OK;
    while (status == LH_OK) {
        if (s->fd < 0) {
            if (s->next >= m->file_count || (bytes == 0 && m->files[s->next].bytes > 0)) break;
            status = stream_open(s);
            if (status != LH_OK) break;
        }
        const manifest_file_t *f = &m->files[s->file];
        const uint64_t left = f->bytes - s->offset, n = left < bytes ? left : bytes;
        if (n > 0 && s->writes)
            status = file_pwrite(s->fd, f->name, at, (size_t)n, s->offset);
        else if (n > 0)
            status = file_pread(s->fd, f->name, at, (size_t)n, s->offset);
        if (status == LH_IO && !s->writes && n > 0) /* it may succeed the next moment */
            status = file_pread(s->fd, f->name, at, (size_t)n, s->offset);
        at += n;
        bytes -= n;
        s->offset += n;
        if (s->offset < f->bytes) break;
        if (status == LH_OK) status = stream_close(s);
    }
    return status;
}

lh_status_t checkpoint_copy_end(checkpoint_copy_t *s)
{
    const bool whole = s->fd < 0 && s->next >= s->manifest->file_count;
    if (s->fd >= 0) (void)sys()->close(s->fd);
    s->fd = -1;
    if (whole) return LH_OK;
    return fail(LH_INVALID, "%s: only a part of a copy has come", s->folder);
}

lh_status_t checkpoint_copy_verify(const char *folder, const checkpoint_copy_t *streams,
                                   uint32_t count, const char *text, size_t length)
{
    checkpoint_t *c;
    lh_status_t status = checkpoint_open_text(folder, text, length, &c);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        if (streams[i].manifest != NULL) status = open_files(c, streams[i].first, streams[i].step);
    if (status == LH_OK && c->files != NULL) status = check_parts(c);
    if (status == LH_OK && c->files != NULL) status = verify_open(c);
    const int error = errno;
    checkpoint_close(c);
    errno = error;
    return status;
}

lh_status_t checkpoint_copy_manifest(const char *path, char **out, size_t *length)
{
    char *name = path_join(path, MANIFEST_NAME);
    if (name == NULL) return LH_NO_MEMORY;
    lh_status_t status = file_read_plain(name, MANIFEST_MOST, out, length);
    if (status == LH_IO) status = file_read_plain(name, MANIFEST_MOST, out, length);
    mem_free(name);
    return status;
}

/* Every file is there and as long as it should be: whoever wrote it has said so, and is not
 * believed. */
static lh_status_t checkpoint_check_files(const char *staging, const manifest_t *m)
{
    for (uint32_t i = 0; i < m->file_count; i++) {
        struct stat st;
        char *path = path_join(staging, m->files[i].name);
        if (path == NULL) return LH_NO_MEMORY;
        const bool whole = sys()->lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
                           (uint64_t)st.st_size == m->files[i].bytes;
        mem_free(path);
        if (!whole)
            return fail(LH_CORRUPT, "%s: %s has not the %llu bytes that it should", staging,
                        m->files[i].name, (unsigned long long)m->files[i].bytes);
    }
    return LH_OK;
}

lh_status_t checkpoint_copy_commit(commit_t *c, const char *text, size_t length)
{
    manifest_t *m = NULL;
    lh_status_t status = manifest_parse(commit_staging(c), text, length, true, &m);
    if (status == LH_OK) status = checkpoint_check_files(commit_staging(c), m);
    if (status == LH_OK) {
        commit_adopt(c, m, text, length);
        status = commit_finish(c, NULL);
    } else {
        commit_abandon(c);
    }
    manifest_free(m);
    return status;
}
