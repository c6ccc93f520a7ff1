/* commit.c - the order of writes, syncs and renames that makes a checkpoint whole or absent.
 *
 *  0  a folder without a pointer: fsync of the folders above it, whose names may be new
 *  1  mkdir .tmp-step-N-xxxxxxxx
 *  2  each file: create (exclusive), reserve; then each: write, fsync, close; fsync of the staging
 *     folder
 *  3  manifest.json the same way; fsync of the staging folder
 *  4  rename to step-N, fsync of the folder        <- here it is committed
 *  5  `latest`: temporary file, fsync, rename, fsync of the folder
 *  6  older ones: rename to .del-, fsync of the folder, remove. Whoever commits does that after it has
 *     said so (checkpoint_displace): it may take longer than the save
 *
 * An fsync of a file does not make its name safe, which is the folder's, and a rename may reach the
 * disk before what it renames: hence the order. Data and names are on the disk before the manifest
 * says that they are, and the manifest is before the rename makes the whole visible. What is not
 * atomic is done where nobody looks, and one rename is the only moment at which anything changes
 * for a reader.
 *
 * Space for all files is taken before the first byte of data: a full disk fails the save early, and
 * with nothing to clean up but the staging folder. */
#include <checkpoint/commit.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <format/safetensors.h>

/* Bytes of a file where nobody says otherwise: small enough to be copied about, large enough that a
 * folder stays short. */
enum { SHARD_USUAL_GIB = 4 };

/* A file that is being written. The rows of its header are made before any data comes, as its
 * header is at its beginning. */
typedef struct stream {
    safetensors_writer_t *writer;
    const checkpoint_tensor_t *tensors; /* borrowed until its end */
    char **stored;
    uint32_t tensor_count, file;
    uint64_t *hashes;
} stream_t;

/* A checkpoint that is being written. */
struct commit {
    char *folder, *staging, *target;
    manifest_t manifest;
    uint32_t files;   /* made so far */
    const char *text; /* of the manifest, of a copy; NULL: it is made of `manifest` */
    size_t text_bytes;
    stream_t stream; /* of commit_stream */
    bool again;      /* the step may be there already, the same one */
};

/* A staging folder of one's own must be new; one that several share is made by whoever comes first.
 * Mode 0700: nobody else has to do with half a checkpoint. */
static lh_status_t make_staging(commit_t *c, bool alone)
{
    if (sys()->mkdir(c->staging, 0700) == 0 || (!alone && errno == EEXIST)) return LH_OK;
    return fail_io(errno, "%s: cannot make the folder", c->staging);
}

/* Before any work is done; the rename refuses it once more, without a gap. */
static lh_status_t refuse_saved(const commit_t *c)
{
    struct stat st;
    if (sys()->lstat(c->target, &st) != 0) return LH_OK;
    return fail(LH_INVALID, "%s is there already: a step is saved once", c->target);
}

/* Whether the step is there with this manifest, whose text has been made. One that can't be read is not
 * the same. */
static bool is_saved(const commit_t *c)
{
    manifest_t *there = NULL;
    char *path = path_join(c->target, MANIFEST_NAME);
    const bool same = path != NULL && file_exists(path) && manifest_read(path, &there) == LH_OK &&
                      strcmp(there->self, c->manifest.self) == 0;
    manifest_free(there);
    mem_free(path);
    return same;
}

/* role: of several, who commits; alone: nobody else writes in this staging folder. */
static lh_status_t commit_open(const char *folder, const checkpoint_meta_t *meta,
                               const char *parent, const char *staging, uint32_t role, bool alone,
                               commit_t **out)
{
    lh_assert(staging[0] != '\0');
    lh_status_t status = role == COMMIT_FOLLOWS ? LH_OK : checkpoint_folder_make(folder);
    if (status != LH_OK) return status;
    commit_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;

    char name[CHECKPOINT_NAME];
    checkpoint_name(meta->step, name);
    c->manifest.meta = *meta;
    (void)snprintf(c->manifest.parent, sizeof(c->manifest.parent), "%s", parent);
    c->again = role == COMMIT_LEADS_AGAIN;
    c->folder = mem_text(folder);
    c->target = path_join(folder, name);
    c->staging = path_join(folder, staging);
    if (c->folder == NULL || c->target == NULL || c->staging == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && role == COMMIT_LEADS) status = refuse_saved(c);
    if (status == LH_OK) status = make_staging(c, alone);
    if (status != LH_OK) {
        commit_leave(c);
        return status;
    }
    *out = c;
    return LH_OK;
}

lh_status_t commit_join(const char *folder, const checkpoint_meta_t *meta, const char *parent,
                        const char *staging, uint32_t role, commit_t **out)
{
    return commit_open(folder, meta, parent, staging, role, false, out);
}

/* A random name, as the staging folder of a saver that hangs may still be there. */
lh_status_t commit_begin(const char *folder, const checkpoint_meta_t *meta, const char *parent,
                         commit_t **out)
{
    uint32_t random;
    char name[CHECKPOINT_NAME], staging[CHECKPOINT_NAME + 24];
    if (sys()->random(&random, sizeof(random)) != 0)
        return fail_io(errno, "%s: no random bytes for a name", folder);
    checkpoint_name(meta->step, name);
    (void)snprintf(staging, sizeof(staging), ".tmp-%s-%08x", name, random);
    return commit_open(folder, meta, parent, staging, COMMIT_LEADS, true, out);
}

const char *commit_staging(const commit_t *c)
{
    return c->staging;
}

manifest_t *commit_manifest(commit_t *c)
{
    return &c->manifest;
}

void commit_adopt(commit_t *c, const manifest_t *m, const char *text, size_t length)
{
    memcpy(c->manifest.self, m->self, sizeof(c->manifest.self));
    c->text = text;
    c->text_bytes = length;
}

/* Whatever is missing. A file that is not finished is abandoned, and stays in the staging folder.
 */
static void stream_free(stream_t *s)
{
    safetensors_abandon(s->writer);
    for (uint32_t i = 0; s->stored != NULL && i < s->tensor_count; i++)
        mem_free(s->stored[i]);
    mem_free(s->stored);
    mem_free(s->hashes);
    *s = (stream_t){0};
}

void commit_leave(commit_t *c)
{
    stream_free(&c->stream);
    manifest_clear(&c->manifest);
    mem_free(c->staging);
    mem_free(c->target);
    mem_free(c->folder);
    mem_free(c);
}

void commit_abandon(commit_t *c)
{
    if (c == NULL) return;
    stream_free(&c->stream);
    if (c->staging != NULL) checkpoint_discard(c->staging);
    commit_leave(c);
}

/* count 0 stands for the whole. */
static bool stored_is_whole(const checkpoint_tensor_t *t)
{
    return t->part.count == 0 || tensor_part_is_whole(&t->part, t->rank, t->shape);
}

/* "blocks.0.wq", or with the part: "blocks.0.wq@0+4,8+8#0+12". */
static lh_status_t stored_name(const checkpoint_tensor_t *t, char **out)
{
    text_t name = {0};
    text_append(&name, t->name);
    if (!stored_is_whole(t)) {
        for (uint32_t i = 0; i < t->rank; i++)
            text_printf(&name, "%c%llu+%llu", i == 0 ? '@' : ',', (unsigned long long)t->part.at[i],
                        (unsigned long long)t->part.shape[i]);
        text_printf(&name, "#%llu+%llu", (unsigned long long)t->part.first,
                    (unsigned long long)t->part.count);
    }
    const lh_status_t status = text_status(&name);
    *out = status == LH_OK ? mem_text(name.data) : NULL;
    text_free(&name);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

/* How a part looks in its file: a whole box keeps its shape, so that other tools can read it; a
 * range of one is a flat row. */
static safetensors_row_t stored_row(const checkpoint_tensor_t *t, const char *name)
{
    lh_assert(t->rank <= LH_MAX_RANK);
    safetensors_row_t row = {.name = name, .dtype = t->dtype, .rank = t->rank};
    memcpy(row.shape, t->shape, sizeof(row.shape));
    if (stored_is_whole(t)) return row;
    uint64_t box = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        box *= t->part.shape[i];
    if (t->part.count == box) {
        memcpy(row.shape, t->part.shape, sizeof(row.shape));
    } else {
        row.rank = 1;
        row.shape[0] = t->part.count;
    }
    return row;
}

/* Creates the file with all its space, and its header. */
static lh_status_t stream_begin(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                                uint32_t count, stream_t *s)
{
    char name[64], number[16];
    (void)snprintf(name, sizeof(name), "shard-%05u-%05u.safetensors", rank, c->files++);
    (void)snprintf(number, sizeof(number), "%llu", (unsigned long long)c->manifest.meta.step);
    const safetensors_pair_t pair = {"step", number};
    char *path = path_join(c->staging, name);
    safetensors_row_t *rows = mem_array(count, sizeof(*rows));
    s->tensors = tensors;
    s->tensor_count = count;
    s->stored = mem_array(count, sizeof(s->stored[0]));
    s->hashes = mem_array(count, sizeof(s->hashes[0]));
    lh_status_t status = LH_NO_MEMORY;
    if (path == NULL || rows == NULL || s->stored == NULL || s->hashes == NULL) goto free_rows;

    status = manifest_add_file(&c->manifest, name, &s->file);
    for (uint32_t i = 0; i < count && status == LH_OK; i++) {
        status = stored_name(&tensors[i], &s->stored[i]);
        if (status == LH_OK) rows[i] = stored_row(&tensors[i], s->stored[i]);
    }
    if (status == LH_OK) status = safetensors_create(path, rows, count, &pair, 1, &s->writer);
free_rows:
    mem_free(rows);
    mem_free(path);
    if (status != LH_OK) stream_free(s);
    return status;
}

/* Writes and hashes one tensor. The hash is of memory and not of what is read back: it finds what
 * the disk changes later, too. */
static lh_status_t stream_tensor(stream_t *s, uint32_t index, const void *data)
{
    lh_assert(index < s->tensor_count);
    const safetensors_row_t row = stored_row(&s->tensors[index], s->stored[index]);
    uint64_t bytes;
    const bool fits = safetensors_row_bytes(&row, &bytes);
    lh_assert(fits); /* its file has been made */
    const lh_status_t status = safetensors_write(s->writer, index, 0, data, bytes);
    if (status == LH_OK) s->hashes[index] = digest_xxh3(data, (size_t)bytes);
    return status;
}

/* Syncs and closes the file; its tensors are in the manifest from here on. The stream is empty
 * then, also where it fails. */
static lh_status_t stream_end(commit_t *c, stream_t *s)
{
    safetensors_writer_t *writer = s->writer;
    s->writer = NULL;
    safetensors_written_t written = {0};
    lh_status_t status = safetensors_finish(writer, &written);
    lh_assert(s->file < c->manifest.file_count);
    c->manifest.files[s->file].bytes = written.file_bytes;
    c->manifest.files[s->file].header_hash = written.header_hash;
    for (uint32_t i = 0; i < s->tensor_count && status == LH_OK; i++)
        status = manifest_add_part(&c->manifest, &s->tensors[i], s->file, s->stored[i],
                                   s->hashes[i]);
    stream_free(s);
    return status;
}

static lh_status_t stream_tensors(commit_t *c, stream_t *s, const void *const *data)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < s->tensor_count && status == LH_OK; i++)
        status = stream_tensor(s, i, data[i]);
    if (status == LH_OK) return stream_end(c, s);
    stream_free(s);
    return status;
}

lh_status_t commit_stream(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                          uint32_t count)
{
    lh_assert(c->stream.writer == NULL);
    return stream_begin(c, rank, tensors, count, &c->stream);
}

lh_status_t commit_stream_tensor(commit_t *c, uint32_t index, const void *data)
{
    lh_assert(c->stream.writer != NULL && index < c->stream.tensor_count);
    return stream_tensor(&c->stream, index, data);
}

lh_status_t commit_stream_end(commit_t *c)
{
    lh_assert(c->stream.writer != NULL);
    return stream_end(c, &c->stream);
}

/* 0: the usual size. */
static uint64_t shard_most(uint64_t shard_bytes)
{
    return shard_bytes == 0 ? (uint64_t)SHARD_USUAL_GIB << 30 : shard_bytes;
}

/* How many of the tensors go into one file of at most so many bytes. One at least: a tensor that is
 * larger than a file is a file of its own, and is never cut. */
static lh_status_t commit_fitting(const checkpoint_tensor_t *tensors, uint32_t count, uint64_t most,
                                  uint32_t *out)
{
    uint64_t held = 0, bytes;
    uint32_t i = 0;
    for (; i < count; i++) {
        const safetensors_row_t row = stored_row(&tensors[i], tensors[i].name);
        if (!safetensors_row_bytes(&row, &bytes))
            return fail(LH_INVALID, "tensor %s: more than 2^63 bytes", tensors[i].name);
        if (i > 0 && (held > most || bytes > most - held)) break;
        held += bytes;
    }
    *out = i;
    return LH_OK;
}

/* As many as commit_write_all will make. */
static lh_status_t count_files(const checkpoint_tensor_t *tensors, uint32_t count, uint64_t most,
                               uint32_t *files)
{
    uint32_t fit = 0;
    *files = 0;
    for (uint32_t first = 0; first < count; first += fit) {
        const lh_status_t status = commit_fitting(tensors + first, count - first, most, &fit);
        if (status != LH_OK) return status;
        lh_assert(fit > 0);
        (*files)++;
    }
    return LH_OK;
}

/* Each part is written down alone, with the largest file number that there can be. */
lh_status_t commit_manifest_bytes(const checkpoint_tensor_t *tensors, uint32_t count,
                                  uint64_t shard_bytes, uint32_t ranks, uint64_t *bytes)
{
    lh_assert(ranks > 0);
    enum { FILE_LINE = 128 };
    uint32_t files;
    lh_status_t status = count_files(tensors, count, shard_most(shard_bytes), &files);
    *bytes = (uint64_t)files * FILE_LINE;
    for (uint32_t i = 0; i < count && status == LH_OK; i++) {
        char *stored;
        uint64_t part = 0;
        status = stored_name(&tensors[i], &stored);
        if (status == LH_OK)
            status = manifest_part_bytes(&tensors[i], files * ranks, stored, &part);
        mem_free(stored);
        *bytes += part;
    }
    return status;
}

/* The file of the first tensors is there with its space before the next one is made, and all are
 * before the first byte of data: a disk without room for all of them shows at once. */
lh_status_t commit_write_all(commit_t *c, uint32_t rank, const checkpoint_tensor_t *tensors,
                             const void *const *data, uint32_t count, uint64_t shard_bytes)
{
    const uint64_t most = shard_most(shard_bytes);
    stream_t *streams = mem_array(count == 0 ? 1 : count, sizeof(*streams)); /* one at most each */
    if (streams == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    uint32_t files = 0, first = 0;
    while (status == LH_OK && (first < count || files == 0)) {
        uint32_t fit = 0;
        status = commit_fitting(tensors + first, count - first, most, &fit);
        if (status == LH_OK) status = stream_begin(c, rank, tensors + first, fit, &streams[files]);
        lh_assert(status != LH_OK || fit > 0 || count == 0);
        if (status == LH_OK) files++;
        first += fit;
    }
    for (uint32_t i = 0; i < files && status == LH_OK; i++)
        status = stream_tensors(c, &streams[i], data + (streams[i].tensors - tensors));
    for (uint32_t i = 0; i < files; i++)
        stream_free(&streams[i]);
    mem_free(streams);
    return status;
}

/* Created, written, synced and closed, each of them checked: a disk may say only at the close that
 * it is full. */
static lh_status_t write_manifest(commit_t *c)
{
    text_t text = {0};
    int fd = -1;
    char *path = path_join(c->staging, MANIFEST_NAME);
    lh_status_t status = path == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && c->text != NULL) {
        text_append_n(&text, c->text, c->text_bytes);
        status = text_status(&text);
    } else if (status == LH_OK) {
        status = manifest_text(&c->manifest, &text);
    }
    if (status != LH_OK) goto free_text;

    fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0) {
        status = fail_io(errno, "%s: cannot create", path);
        goto free_text;
    }
    status = file_write(fd, path, text.data, text.length);
    if (status == LH_OK && sys_fsync(fd) != 0) status = fail_io(errno, "%s: cannot sync", path);
    if (sys()->close(fd) != 0 && status == LH_OK) status = fail_io(errno, "%s: cannot close", path);
free_text:
    text_free(&text);
    mem_free(path);
    return status;
}

/* A hint for people and scripts: whoever resumes looks at all that is there. */
static lh_status_t point_latest(const commit_t *c)
{
    char line[CHECKPOINT_NAME + SHA256_TEXT + 2];
    const int length = snprintf(line, sizeof(line), "%s %s\n", path_name(c->target),
                                c->manifest.self);
    char *path = path_join(c->folder, CHECKPOINT_POINTER);
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_replace(path, line, (size_t)length);
    mem_free(path);
    return status;
}

/* Frees the name for another attempt, if what stands there is still this folder: on a network's disk a saver may
 * come so late that the next leader has put its step aside and saved it anew. */
static void take_name_back(const commit_t *c, const struct stat *own)
{
    struct stat there;
    if (sys()->lstat(c->target, &there) != 0) return;
    if (there.st_dev == own->st_dev && there.st_ino == own->st_ino)
        (void)sys_rename(c->target, c->staging);
}

lh_status_t commit_finish(commit_t *c, char self[SHA256_TEXT])
{
    struct stat own = {0};
    lh_status_t status = folder_sync(c->staging);
    if (status == LH_OK) status = write_manifest(c);
    if (status == LH_OK) status = folder_sync(c->staging);
    /* A name is used once: who would commit the same step a second time fails here. What was committed
     * before may not have been synced, so that goes on as if it had been renamed now. */
    const bool saved = status == LH_OK && c->again && is_saved(c);
    (void)sys()->lstat(saved ? c->target : c->staging, &own); /* unknown: its name stays */
    if (saved)
        checkpoint_discard(c->staging);
    else if (status == LH_OK && sys_rename_new(c->staging, c->target) != 0)
        status = fail_io(errno, "%s: cannot rename %s to it", c->target, c->staging);
    if (status != LH_OK) {
        commit_abandon(c);
        return status;
    }

    status = folder_sync(c->folder);
    if (status == LH_OK) {
        if (self != NULL) memcpy(self, c->manifest.self, SHA256_TEXT);
        /* It is committed. What follows is a hint. */
        if (point_latest(c) != LH_OK)
            log_line(LH_LOG_WARN, "%s is saved, but: %s", c->target, fail_reason());
    } else {
        /* Nobody is told that it is saved, and its name is free for another attempt. Its files stay
         * for checkpoint_clean: the rename that the disk may have must not lead to an empty folder.
         */
        take_name_back(c, &own);
    }
    commit_leave(c);
    return status;
}
