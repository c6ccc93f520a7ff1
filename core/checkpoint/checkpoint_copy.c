/* checkpoint_copy.c - the files of a checkpoint as a stream.
 *
 * Nothing is known of a file but its name and length, which the manifest has: what is in it is checked
 * where it is loaded, against the hashes of that manifest, as with every checkpoint. So a copy that
 * was cut or changed on its way is found like any other damage, and one that is short is never
 * committed. Each file is created anew and synced before the manifest is written. */
#include <checkpoint/checkpoint_copy.h>

#include <errno.h>
#include <fcntl.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

void copy_stream_begin(copy_stream_t *s, const manifest_t *manifest, const char *folder,
                       uint32_t first, uint32_t step, bool writes)
{
    lh_assert(step > 0);
    *s = (copy_stream_t){.manifest = manifest,
                         .folder = folder,
                         .first = first,
                         .step = step,
                         .writes = writes,
                         .next = first,
                         .fd = -1};
}

uint64_t copy_stream_bytes(const copy_stream_t *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = s->first; i < s->manifest->file_count; i += s->step)
        bytes += s->manifest->files[i].bytes;
    return bytes;
}

static lh_status_t stream_open(copy_stream_t *s)
{
    const manifest_file_t *f = &s->manifest->files[s->next];
    char *path = path_join(s->folder, f->name);
    if (path == NULL) return LH_NO_MEMORY;
    const int how = s->writes ? O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW : O_RDONLY | O_NOFOLLOW;
    s->fd = sys_open(path, how, 0644);
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

static lh_status_t stream_close(copy_stream_t *s)
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
lh_status_t copy_stream_move(copy_stream_t *s, void *piece, uint64_t bytes)
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
        at += n;
        bytes -= n;
        s->offset += n;
        if (s->offset < f->bytes) break;
        if (status == LH_OK) status = stream_close(s);
    }
    return status;
}

lh_status_t copy_stream_end(copy_stream_t *s)
{
    const bool whole = s->fd < 0 && s->next >= s->manifest->file_count;
    if (s->fd >= 0) (void)sys()->close(s->fd);
    s->fd = -1;
    if (whole) return LH_OK;
    return fail(LH_INVALID, "%s: only a part of a copy has come", s->folder);
}

lh_status_t copy_manifest_read(const char *path, char **out, size_t *length)
{
    char *name = path_join(path, MANIFEST_NAME);
    if (name == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_read_plain(name, MANIFEST_MOST, out, length);
    mem_free(name);
    return status;
}

/* Every file is there and as long as it should be: whoever wrote it has said so, and is not
 * believed. */
static lh_status_t check_files(const char *staging, const manifest_t *m)
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

lh_status_t copy_commit(commit_t *c, const char *text, size_t length)
{
    manifest_t *m = NULL;
    lh_status_t status = manifest_parse(commit_staging(c), text, length, true, &m);
    if (status == LH_OK) status = check_files(commit_staging(c), m);
    if (status == LH_OK) {
        commit_adopt(c, m, text, length);
        status = commit_finish(c, NULL, NULL);
    } else {
        commit_leave(c);
    }
    manifest_free(m);
    return status;
}
