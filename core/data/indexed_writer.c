/* indexed_writer.c - streams tokens to .bin and lengths to a third file, and makes the three tables
 * of the index from those lengths at the end: memory does not grow with the data set. */
#include <data/indexed_writer.h>

#include <errno.h>
#include <fcntl.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <data/indexed.h>

enum { BUFFER_BYTES = 1024 * 1024 };
enum { FILE_BIN, FILE_IDX, FILE_LENGTHS, FILE_COUNT };
static const char *const suffixes[FILE_COUNT] = {".bin", ".idx", ".lengths"};

typedef struct out_file { /* a file that is written from front to back */
    char *path, *final_path;
    int fd;
    bool renamed;          /* path may be another's by now */
    unsigned char *buffer; /* [BUFFER_BYTES] */
    size_t held;
    uint64_t written;
    sha256_t *sum; /* of what was written */
} out_file_t;

struct indexed_writer {
    char *folder;
    uint32_t vocab, dtype_code, token_bytes;
    uint64_t documents, sequences;
    out_file_t files[FILE_COUNT];
    bool finished;
};

static lh_status_t out_flush(out_file_t *f)
{
    const lh_status_t status = file_write(f->fd, f->path, f->buffer, f->held);
    sha256_add(f->sum, f->buffer, f->held);
    f->written += f->held;
    f->held = 0;
    return status;
}

/* bytes <= BUFFER_BYTES */
static lh_status_t out_put(out_file_t *f, const void *from, size_t bytes)
{
    if (f->held + bytes > BUFFER_BYTES) {
        const lh_status_t status = out_flush(f);
        if (status != LH_OK) return status;
    }
    memcpy(f->buffer + f->held, from, bytes);
    f->held += bytes;
    return LH_OK;
}

static lh_status_t out_open(out_file_t *f, const char *prefix, const char *suffix)
{
    text_t path = {0}, final_path = {0};
    text_printf(&path, "%s%s.tmp", prefix, suffix);
    text_printf(&final_path, "%s%s", prefix, suffix);
    f->path = path.data;
    f->final_path = final_path.data;
    f->buffer = mem_new(BUFFER_BYTES);
    if (path.failed || final_path.failed || f->buffer == NULL) return LH_NO_MEMORY;
    const lh_status_t status = sha256_new(&f->sum);
    return status == LH_OK ? file_take(f->path, &f->fd) : status;
}

static void out_sum(out_file_t *f, pair_sum_t *out)
{
    out->bytes = f->written;
    if (f->sum != NULL) sha256_end(f->sum, out->sha256);
    f->sum = NULL;
}

static void out_discard(out_file_t *f)
{
    pair_sum_t nobodys;
    out_sum(f, &nobodys);
    if (f->fd >= 0) {
        if (!f->renamed) (void)sys()->unlink(f->path);
        (void)sys()->close(f->fd); /* and with it the lock */
    }
    mem_free(f->buffer);
    mem_free(f->final_path);
    mem_free(f->path);
}

/* Flushes and syncs; the descriptor stays open for out_discard. */
static lh_status_t out_sync(out_file_t *f)
{
    const lh_status_t status = out_flush(f);
    if (status != LH_OK) return status;
    return sys_fsync(f->fd) == 0 ? LH_OK : fail(LH_IO, "%s: cannot sync", f->path);
}

static lh_status_t out_rename(out_file_t *f)
{
    f->renamed = sys_rename(f->path, f->final_path) == 0;
    if (f->renamed) return LH_OK;
    return fail(LH_IO, "%s: cannot rename %s to it", f->final_path, f->path);
}

lh_status_t indexed_writer_open(const char *prefix, uint32_t vocab, indexed_writer_t **out)
{
    indexed_writer_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->vocab = vocab;
    w->dtype_code = vocab < INDEXED_UINT16_VOCAB ? INDEXED_UINT16 : INDEXED_INT32;
    w->token_bytes = w->dtype_code == INDEXED_UINT16 ? 2 : 4;
    for (int i = 0; i < FILE_COUNT; i++)
        w->files[i].fd = -1;

    w->folder = path_folder(prefix);
    lh_status_t status = w->folder == NULL ? LH_NO_MEMORY : folder_make(w->folder);
    for (int i = 0; i < FILE_COUNT && status == LH_OK; i++)
        status = out_open(&w->files[i], prefix, suffixes[i]);
    if (status != LH_OK) {
        indexed_writer_discard(w);
        return status;
    }
    *out = w;
    return LH_OK;
}

void indexed_writer_discard(indexed_writer_t *w)
{
    if (w == NULL) return;
    for (int i = 0; i < FILE_COUNT; i++)
        out_discard(&w->files[i]);
    mem_free(w->folder);
    mem_free(w);
}

static lh_status_t put_ids(indexed_writer_t *w, const int32_t *ids, uint64_t count)
{
    enum { PIECE = 4096 };
    uint16_t narrow[PIECE];
    for (uint64_t at = 0; at < count; at += PIECE) {
        const uint64_t left = count - at, now = left < PIECE ? left : PIECE;
        const void *from = ids + at;
        for (uint64_t i = 0; i < now; i++) {
            const int32_t id = ids[at + i];
            if (id < 0 || (uint32_t)id >= w->vocab)
                return fail(LH_INVALID, "token id %d, the vocabulary has %u", id, w->vocab);
            narrow[i] = (uint16_t)id;
        }
        if (w->dtype_code == INDEXED_UINT16) from = narrow;
        const lh_status_t status = out_put(&w->files[FILE_BIN], from, (size_t)now * w->token_bytes);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

lh_status_t indexed_writer_add(indexed_writer_t *w, const int32_t *ids, uint64_t count)
{
    if (count > INT32_MAX)
        return fail(LH_INVALID, "document %llu has %llu tokens, an index holds at most %d",
                    (unsigned long long)w->documents, (unsigned long long)count, INT32_MAX);
    lh_status_t status = put_ids(w, ids, count);
    if (status != LH_OK) return status;
    const int32_t length = (int32_t)count;
    status = out_put(&w->files[FILE_LENGTHS], &length, sizeof(length));
    if (status != LH_OK) return status;
    w->documents++;
    if (count > 0) w->sequences++;
    return LH_OK;
}

static lh_status_t put_head(indexed_writer_t *w)
{
    unsigned char head[INDEXED_HEAD_BYTES];
    const uint64_t version = INDEXED_VERSION, boundaries = w->documents + 1;
    memcpy(head, INDEXED_MAGIC, INDEXED_MAGIC_BYTES);
    memcpy(head + 9, &version, 8);
    head[17] = (unsigned char)w->dtype_code;
    memcpy(head + 18, &w->sequences, 8);
    memcpy(head + 26, &boundaries, 8);
    return out_put(&w->files[FILE_IDX], head, sizeof(head));
}

enum { TABLE_LENGTHS, TABLE_OFFSETS, TABLE_BOUNDARIES, TABLE_COUNT };

/* One of the index's tables, from the documents' lengths read once more. */
static lh_status_t put_table(indexed_writer_t *w, int table)
{
    enum { PIECE = 4096 };
    int32_t lengths[PIECE];
    out_file_t *idx = &w->files[FILE_IDX], *from = &w->files[FILE_LENGTHS];
    uint64_t offset = 0, boundary = 0;
    lh_status_t status = LH_OK;
    if (table == TABLE_BOUNDARIES) status = out_put(idx, &boundary, sizeof(boundary));

    for (uint64_t at = 0; at < w->documents && status == LH_OK; at += PIECE) {
        const uint64_t left = w->documents - at, now = left < PIECE ? left : PIECE;
        status = file_pread(from->fd, from->path, lengths, now * sizeof(*lengths),
                            at * sizeof(*lengths));
        for (uint64_t i = 0; i < now && status == LH_OK; i++) {
            const bool empty = lengths[i] == 0;
            boundary += empty ? 0 : 1;
            if (table == TABLE_BOUNDARIES)
                status = out_put(idx, &boundary, sizeof(boundary));
            else if (!empty && table == TABLE_OFFSETS)
                status = out_put(idx, &offset, sizeof(offset));
            else if (!empty)
                status = out_put(idx, &lengths[i], sizeof(lengths[i]));
            offset += (uint64_t)lengths[i] * w->token_bytes;
        }
    }
    return status;
}

lh_status_t indexed_writer_finish(indexed_writer_t *w, pair_sums_t *out)
{
    out_file_t *bin = &w->files[FILE_BIN], *idx = &w->files[FILE_IDX];
    lh_status_t status = out_flush(&w->files[FILE_LENGTHS]);
    if (status == LH_OK) status = put_head(w);
    for (int table = 0; table < TABLE_COUNT && status == LH_OK; table++)
        status = put_table(w, table);
    if (status == LH_OK) status = out_sync(bin);
    if (status == LH_OK) status = out_sync(idx);
    if (status != LH_OK) return status;
    out_sum(bin, &out->bin);
    out_sum(idx, &out->idx);
    w->finished = true;
    return LH_OK;
}

static lh_status_t commit(indexed_writer_t *w)
{
    out_file_t *bin = &w->files[FILE_BIN], *idx = &w->files[FILE_IDX];
    pair_sums_t sums;
    lh_status_t status = w->finished ? LH_OK : indexed_writer_finish(w, &sums);
    if (status != LH_OK) return status;
    if (sys()->unlink(idx->final_path) != 0 && errno != ENOENT)
        return fail(LH_IO, "%s: cannot take the old index away", idx->final_path);
    status = folder_sync(w->folder);
    if (status == LH_OK) status = out_rename(bin);
    if (status == LH_OK) status = out_rename(idx);
    if (status == LH_OK) status = folder_sync(w->folder);
    return status;
}

lh_status_t indexed_writer_commit(indexed_writer_t *w)
{
    const lh_status_t status = commit(w);
    indexed_writer_discard(w);
    return status;
}
