/* safetensors_writer.c - a header from rows, and data written at their places. */
#include <checkpoint/safetensors_writer.h>

#include <errno.h>
#include <fcntl.h>

#include <base/checked.h>
#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/json_text.h>

struct safetensors_writer {
    char *path;
    int fd;
    uint32_t count;
    uint64_t *offset;  /* in the file */
    uint64_t *missing; /* bytes not yet written */
    uint64_t bytes;    /* of the file */
    uint64_t header_hash;
};

bool safetensors_row_bytes(const safetensors_row_t *row, uint64_t *out)
{
    const safetensors_dtype_t *dtype = safetensors_dtype(row->dtype);
    uint64_t bytes = dtype == NULL ? 0 : dtype->bits / 8;
    for (uint32_t i = 0; i < row->rank; i++)
        if (!checked_mul(bytes, row->shape[i], &bytes)) return false;
    if (bytes > INT64_MAX) return false;
    *out = bytes;
    return true;
}

static lh_status_t header_row(text_t *t, const char *path, const safetensors_row_t *row,
                              uint64_t begin, uint64_t end)
{
    const safetensors_dtype_t *dtype = safetensors_dtype(row->dtype);
    if (dtype == NULL)
        return fail(LH_INVALID, "%s: tensor %s: dtype %u has no safetensors name", path, row->name,
                    row->dtype);
    text_append(t, ",");
    json_text_quote(t, row->name);
    text_printf(t, ":{\"dtype\":\"%s\",\"shape\":[", dtype->name);
    for (uint32_t i = 0; i < row->rank; i++)
        text_printf(t, "%s%llu", i > 0 ? "," : "", (unsigned long long)row->shape[i]);
    text_printf(t, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                (unsigned long long)end);
    return LH_OK;
}

/* Fills offsets and sizes; the text gets the 8 bytes of its own length in front. */
static lh_status_t make_header(safetensors_writer_t *w, const safetensors_row_t *rows,
                               const safetensors_pair_t *pairs, uint32_t pair_count, text_t *t)
{
    text_append_n(t, "\0\0\0\0\0\0\0\0", 8);
    text_append(t, "{\"__metadata__\":{\"format\":\"pt\"");
    for (uint32_t i = 0; i < pair_count; i++) {
        text_append(t, ",");
        json_text_quote(t, pairs[i].key);
        text_append(t, ":");
        json_text_quote(t, pairs[i].value);
    }
    text_append(t, "}");

    uint64_t at = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        uint64_t end;
        if (rows[i].rank > LH_MAX_RANK || !safetensors_row_bytes(&rows[i], &w->missing[i]) ||
            !checked_add(at, w->missing[i], &end) || end > INT64_MAX)
            return fail(LH_INVALID, "%s: tensor %s: more than 2^63 bytes", w->path, rows[i].name);
        const lh_status_t status = header_row(t, w->path, &rows[i], at, end);
        if (status != LH_OK) return status;
        w->offset[i] = at;
        at = end;
    }
    text_append(t, "}");
    while (t->length % 8 != 0 && !t->failed)
        text_append(t, " ");
    if (t->failed) return text_status(t);

    for (uint32_t i = 0; i < w->count; i++)
        w->offset[i] += t->length;
    w->bytes = at + t->length;
    const uint64_t length = t->length - 8;
    w->header_hash = xxh3(t->data + 8, (size_t)length);
    for (uint32_t i = 0; i < 8; i++)
        t->data[i] = (char)(length >> (8 * i));
    return LH_OK;
}

/* A full disk shows here, before a byte of data has moved. */
static lh_status_t reserve(const safetensors_writer_t *w)
{
    if (sys_fallocate(w->fd, (off_t)w->bytes) == 0) return LH_OK;
    const int error = errno;
    struct statvfs disk;
    const bool known = sys()->fstatvfs(w->fd, &disk) == 0;
    errno = error;
    if (!known)
        return fail(LH_IO, "%s: cannot reserve %llu bytes", w->path, (unsigned long long)w->bytes);
    return fail(LH_IO, "%s: cannot reserve %llu bytes, the disk has %llu free", w->path,
                (unsigned long long)w->bytes,
                (unsigned long long)disk.f_bavail * (unsigned long long)disk.f_frsize);
}

lh_status_t safetensors_create(const char *path, const safetensors_row_t *rows, uint32_t row_count,
                               const safetensors_pair_t *pairs, uint32_t pair_count,
                               safetensors_writer_t **out)
{
    text_t header = {0};
    safetensors_writer_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->fd = -1;
    w->count = row_count;
    w->path = mem_text(path);
    w->offset = mem_array(row_count, sizeof(w->offset[0]));
    w->missing = mem_array(row_count, sizeof(w->missing[0]));
    lh_status_t status = LH_NO_MEMORY;
    if (w->path == NULL || w->offset == NULL || w->missing == NULL) goto abandon;

    status = make_header(w, rows, pairs, pair_count, &header);
    if (status != LH_OK) goto abandon;
    w->fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (w->fd < 0) {
        status = fail(LH_IO, "%s: cannot create", path);
        goto abandon;
    }
    status = reserve(w);
    if (status != LH_OK) goto abandon;
    status = file_pwrite(w->fd, path, header.data, header.length, 0);
    if (status != LH_OK) goto abandon;
    text_free(&header);
    *out = w;
    return LH_OK;

abandon:
    text_free(&header);
    safetensors_abandon(w);
    return status;
}

lh_status_t safetensors_write(safetensors_writer_t *w, uint32_t row, uint64_t at, const void *from,
                              uint64_t bytes)
{
    if (bytes > w->missing[row])
        return fail(LH_INVALID, "%s: row %u: %llu bytes more than it has", w->path, row,
                    (unsigned long long)(bytes - w->missing[row]));
    const lh_status_t status = file_pwrite(w->fd, w->path, from, (size_t)bytes,
                                           w->offset[row] + at);
    if (status == LH_OK) w->missing[row] -= bytes;
    return status;
}

lh_status_t safetensors_finish(safetensors_writer_t *w, safetensors_written_t *out)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < w->count && status == LH_OK; i++)
        if (w->missing[i] > 0)
            status = fail(LH_INVALID, "%s: %llu bytes of row %u were not written", w->path,
                          (unsigned long long)w->missing[i], i);
    /* After a failed fsync the kernel may have dropped the data: a second fsync would lie. */
    if (status == LH_OK && sys_fsync(w->fd) != 0) status = fail(LH_IO, "%s: cannot sync", w->path);
    const int fd = w->fd;
    w->fd = -1;
    if (sys()->close(fd) != 0 && status == LH_OK) status = fail(LH_IO, "%s: cannot close", w->path);
    if (status == LH_OK && out != NULL) *out = (safetensors_written_t){w->bytes, w->header_hash};
    safetensors_abandon(w);
    return status;
}

void safetensors_abandon(safetensors_writer_t *w)
{
    if (w == NULL) return;
    if (w->fd >= 0) (void)sys()->close(w->fd);
    mem_free(w->missing);
    mem_free(w->offset);
    mem_free(w->path);
    mem_free(w);
}
