/* indexed.c - validates an index in one streaming pass, then reads tokens by position; and writes a
 * pair in memory that does not grow with it.
 *
 * Reading: the head says how large the file must be, and only then are tables allocated. Each
 * sequence must begin where the one before it does or behind, and end inside of the .bin.
 *
 * Writing: tokens go straight to the .bin, but the index begins with tables of lengths and offsets
 * whose size is not known before the end. So lengths go to a third file, from which all three
 * tables are made when the input has ended. All files have names in .tmp until the commit renames
 * two of them. */
#include <data/indexed.h>

#include <errno.h>
#include <fcntl.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian, as are we");

/* Megatron's dtypes by their code; bytes 0 is what no token id is stored as. */
static const struct {
    uint32_t bytes;
    const char *name;
} dtypes[] = {
    [1] = {1, "uint8"}, [2] = {1, "int8"},    [3] = {2, "int16"},   [4] = {4, "int32"},
    [5] = {8, "int64"}, [6] = {0, "float64"}, [7] = {0, "float32"}, [8] = {2, "uint16"},
};

/* An .idx that is being read. */
typedef struct index_file {
    const char *path;
    int fd;
    uint64_t size, bin_bytes, boundaries;
} index_file_t;

/* Magic, version, dtype and the two counts, which nothing is believed of yet. */
static lh_status_t index_head_read(const index_file_t *f, indexed_t *set, uint64_t *boundaries)
{
    unsigned char head[INDEXED_HEAD_BYTES];
    if (f->size < sizeof(head))
        return fail(LH_INVALID, "%s: %llu bytes, an index has at least %d", f->path,
                    (unsigned long long)f->size, INDEXED_HEAD_BYTES);
    const lh_status_t status = file_pread(f->fd, f->path, head, sizeof(head), 0);
    if (status != LH_OK) return status;
    if (memcmp(head, INDEXED_MAGIC, INDEXED_MAGIC_BYTES) != 0)
        return fail(LH_INVALID,
                    "%s: its first 9 bytes are %02x%02x%02x%02x%02x%02x%02x%02x%02x, a Megatron "
                    "index begins with 4d4d49444944580000 (MMIDIDX)",
                    f->path, head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7],
                    head[8]);

    uint64_t version;
    memcpy(&version, head + 9, 8);
    memcpy(&set->sequences, head + 18, 8);
    memcpy(boundaries, head + 26, 8);
    if (version != INDEXED_VERSION)
        return fail(LH_INVALID, "%s: version %llu at byte 9, expected %d", f->path,
                    (unsigned long long)version, INDEXED_VERSION);
    set->dtype_code = head[17];
    if (set->dtype_code == 0 || set->dtype_code >= sizeof(dtypes) / sizeof(dtypes[0]))
        return fail(LH_INVALID, "%s: dtype code %u at byte 17, expected 1 to 8", f->path,
                    set->dtype_code);
    set->token_bytes = dtypes[set->dtype_code].bytes;
    if (set->token_bytes == 0)
        return fail(LH_INVALID, "%s: dtype code %u at byte 17 is %s, token ids are whole numbers",
                    f->path, set->dtype_code, dtypes[set->dtype_code].name);
    return LH_OK;
}

/* The only size that fits the counts; tables are allocated after this. */
static lh_status_t size_check(const index_file_t *f, const indexed_t *set)
{
    uint64_t tables, documents, total;
    const bool fits = checked_mul(set->sequences, 12, &tables) &&
                      checked_mul(f->boundaries, 8, &documents) &&
                      checked_add(tables, documents, &total) &&
                      checked_add(total, INDEXED_HEAD_BYTES, &total);
    if (!fits || total != f->size)
        return fail(LH_INVALID,
                    "%s: %llu bytes, but 34 + 12 x %llu sequences + 8 x %llu boundaries are wanted",
                    f->path, (unsigned long long)f->size, (unsigned long long)set->sequences,
                    (unsigned long long)f->boundaries);
    if (f->boundaries == 0)
        return fail(LH_INVALID, "%s: no document boundary at byte 26, at least one is expected",
                    f->path);
    return LH_OK;
}

/* Sequence i against the one before it and the .bin; counts its tokens. */
static lh_status_t sequence_check(const index_file_t *f, indexed_t *set, uint64_t i)
{
    const int32_t length = set->lengths[i];
    const uint64_t offset = set->offsets[i];
    if (length < 0)
        return fail(LH_INVALID, "%s: sequence %llu has %d tokens at byte %llu, expected 0 or more",
                    f->path, (unsigned long long)i, length,
                    (unsigned long long)(INDEXED_HEAD_BYTES + 4 * i));
    const uint64_t before = i == 0 ? 0 : set->offsets[i - 1];
    if (offset < before || offset % set->token_bytes != 0)
        return fail(LH_INVALID,
                    "%s: sequence %llu begins at %llu of the .bin, expected at least %llu and a "
                    "multiple of %u",
                    f->path, (unsigned long long)i, (unsigned long long)offset,
                    (unsigned long long)before, set->token_bytes);
    uint64_t end;
    if (!checked_add(offset, (uint64_t)length * set->token_bytes, &end) || end > f->bin_bytes)
        return fail(LH_INVALID,
                    "%s: sequence %llu has %d tokens at byte %llu, but %s has %llu bytes", f->path,
                    (unsigned long long)i, length, (unsigned long long)offset, set->bin_path,
                    (unsigned long long)f->bin_bytes);
    set->tokens += (uint64_t)length;
    return LH_OK;
}

/* The tables of lengths and offsets. */
static lh_status_t sequences_read(const index_file_t *f, indexed_t *set)
{
    set->lengths = mem_array(set->sequences, sizeof(*set->lengths));
    set->offsets = mem_array(set->sequences, sizeof(*set->offsets));
    if (set->lengths == NULL || set->offsets == NULL) return LH_NO_MEMORY;

    const uint64_t lengths_bytes = set->sequences * sizeof(*set->lengths);
    lh_status_t status = file_pread(f->fd, f->path, set->lengths, lengths_bytes,
                                    INDEXED_HEAD_BYTES);
    if (status == LH_OK)
        status = file_pread(f->fd, f->path, set->offsets, set->sequences * sizeof(*set->offsets),
                            INDEXED_HEAD_BYTES + lengths_bytes);
    for (uint64_t i = 0; i < set->sequences && status == LH_OK; i++)
        status = sequence_check(f, set, i);
    return status;
}

/* Boundaries are checked but not kept: samples are made of sequences. */
static lh_status_t boundaries_check(const index_file_t *f, const indexed_t *set)
{
    enum { PIECE = 4096 };
    uint64_t piece[PIECE], before = 0;
    /* They are the last table of the file. */
    const uint64_t begin = f->size - f->boundaries * 8;
    for (uint64_t at = 0; at < f->boundaries; at += PIECE) {
        const uint64_t left = f->boundaries - at, count = left < PIECE ? left : PIECE;
        const lh_status_t status = file_pread(f->fd, f->path, piece, count * 8, begin + at * 8);
        if (status != LH_OK) return status;
        for (uint64_t i = 0; i < count; i++) {
            const bool first = at + i == 0, last = at + i + 1 == f->boundaries;
            if (piece[i] < before || piece[i] > set->sequences || (first && piece[i] != 0))
                return fail(LH_INVALID,
                            "%s: document boundary %llu is %llu; boundaries go from 0 up to %llu "
                            "and never down",
                            f->path, (unsigned long long)(at + i), (unsigned long long)piece[i],
                            (unsigned long long)set->sequences);
            if (last && piece[i] != set->sequences)
                return fail(LH_INVALID,
                            "%s: the last document boundary, %llu, is %llu; expected the number of "
                            "sequences, %llu",
                            f->path, (unsigned long long)(at + i), (unsigned long long)piece[i],
                            (unsigned long long)set->sequences);
            before = piece[i];
        }
    }
    return LH_OK;
}

/* The whole index; it is closed again, as nothing of it is needed but the tables. */
static lh_status_t index_read(const char *path, uint64_t bin_bytes, indexed_t *set)
{
    index_file_t f = {.path = path, .bin_bytes = bin_bytes};
    lh_status_t status = file_open(path, &f.fd, &f.size);
    if (status != LH_OK) return status;
    status = index_head_read(&f, set, &f.boundaries);
    if (status == LH_OK) status = size_check(&f, set);
    if (status == LH_OK) status = sequences_read(&f, set);
    if (status == LH_OK) status = boundaries_check(&f, set);
    if (status == LH_OK) set->documents = f.boundaries - 1;
    (void)sys()->close(f.fd);
    return status;
}

/* Every failure goes through indexed_close, which closes and frees what is there. */
lh_status_t indexed_open(const char *prefix, uint32_t vocab, indexed_t **out)
{
    text_t bin = {0}, idx = {0};
    indexed_t *set = mem_new(sizeof(*set));
    if (set == NULL) return LH_NO_MEMORY;
    set->fd = -1;
    set->users = 1;
    set->vocab = vocab;
    text_printf(&bin, "%s.bin", prefix);
    text_printf(&idx, "%s.idx", prefix);
    set->bin_path = bin.data;

    uint64_t bin_bytes;
    lh_status_t status = bin.failed ? LH_NO_MEMORY : text_status(&idx);
    if (status == LH_OK) status = file_open(set->bin_path, &set->fd, &bin_bytes);
    if (status == LH_OK) status = index_read(idx.data, bin_bytes, set);
    text_free(&idx);
    if (status != LH_OK) {
        indexed_close(set);
        return status;
    }
    *out = set;
    return LH_OK;
}

/* indexed_open has checked the table that is read again here, and what was made of it since then is
 * checked where it would be an index. */
lh_status_t indexed_boundaries(indexed_t *set)
{
    if (set->boundaries != NULL) return LH_OK;
    int fd;
    uint64_t size;
    text_t idx = {0};
    text_printf(&idx, "%.*sidx", (int)(strlen(set->bin_path) - strlen("bin")), set->bin_path);
    uint64_t *all = mem_array(set->documents + 1, sizeof(*all));
    lh_status_t status = all == NULL ? LH_NO_MEMORY : text_status(&idx);
    if (status == LH_OK) status = file_open(idx.data, &fd, &size);
    if (status == LH_OK) {
        status = file_pread(fd, idx.data, all, (set->documents + 1) * sizeof(*all),
                            INDEXED_HEAD_BYTES + 12 * set->sequences);
        (void)sys()->close(fd);
    }
    for (uint64_t i = 0; status == LH_OK && i <= set->documents; i++)
        if (all[i] > set->sequences || (i > 0 && all[i] < all[i - 1]))
            status = fail(LH_INVALID, "%s: has changed since it was opened", idx.data);
    text_free(&idx);
    if (status == LH_OK)
        set->boundaries = all;
    else
        mem_free(all);
    return status;
}

indexed_t *indexed_share(indexed_t *set)
{
    lh_assert(set->users > 0);
    set->users++;
    return set;
}

bool indexed_has_prefix(const indexed_t *set, const char *prefix)
{
    const size_t length = strlen(prefix);
    return strncmp(set->bin_path, prefix, length) == 0 &&
           text_equal(set->bin_path + length, ".bin");
}

void indexed_close(indexed_t *set)
{
    lh_assert(set == NULL || set->users > 0);
    if (set == NULL || --set->users > 0) return;
    if (set->fd >= 0) (void)sys()->close(set->fd);
    mem_free(set->boundaries);
    mem_free(set->offsets);
    mem_free(set->lengths);
    mem_free(set->bin_path);
    mem_free(set);
}

/* One stored id as a wide number, so that every dtype is checked alike. */
static int64_t index_token_at(const void *bytes, uint32_t dtype_code, uint64_t i)
{
    switch (dtype_code) {
    case 1: return ((const uint8_t *)bytes)[i];
    case 2: return ((const int8_t *)bytes)[i];
    case 3: return ((const int16_t *)bytes)[i];
    case 4: return ((const int32_t *)bytes)[i];
    case 5: return ((const int64_t *)bytes)[i];
    default: return ((const uint16_t *)bytes)[i];
    }
}

/* By pread in pieces through the stack: nothing is allocated and any thread may read. Each id is
 * checked here, as nothing behind this looks at it before it is an index into a table of
 * embeddings. */
lh_status_t indexed_read(const indexed_t *set, uint64_t sequence, uint64_t at, uint64_t count,
                         int32_t *out)
{
    lh_assert(sequence < set->sequences);
    lh_assert(count <= (uint64_t)set->lengths[sequence] &&
              at <= (uint64_t)set->lengths[sequence] - count);
    lh_assert(set->token_bytes > 0);
    enum { PIECE_BYTES = 8192 };
    int64_t piece[PIECE_BYTES / sizeof(int64_t)]; /* int64_t for its alignment */
    /* ids of this dtype in the buffer */
    const uint64_t room = PIECE_BYTES / set->token_bytes;
    uint64_t offset = set->offsets[sequence] + at * set->token_bytes;
    while (count > 0) {
        const uint64_t now = count < room ? count : room;
        const lh_status_t status = file_pread(set->fd, set->bin_path, piece, now * set->token_bytes,
                                              offset);
        if (status != LH_OK) return status;
        for (uint64_t i = 0; i < now; i++) {
            const int64_t id = index_token_at(piece, set->dtype_code, i);
            if (id < 0 || id >= (int64_t)set->vocab)
                return fail(LH_INVALID, "%s: token id %lld at byte %llu, the vocabulary has %u",
                            set->bin_path, (long long)id,
                            (unsigned long long)(offset + i * set->token_bytes), set->vocab);
            out[i] = (int32_t)id;
        }
        out += now;
        offset += now * set->token_bytes;
        count -= now;
    }
    return LH_OK;
}

/* The lengths of all sequences, which are in memory, and the beginnings of some, spread evenly. */
lh_status_t indexed_digest(const indexed_t *set, uint64_t *out)
{
    enum { LOOK = 256 };
    int32_t ids[LOOK];
    const uint64_t looks = set->sequences < INDEXED_LOOKS ? set->sequences : INDEXED_LOOKS;
    uint64_t parts[INDEXED_LOOKS + 2] = {
        set->documents, digest_xxh3(set->lengths, set->sequences * sizeof(int32_t))};
    for (uint64_t i = 0; i < looks; i++) {
        const uint64_t at = i * (set->sequences / looks);
        const uint64_t length = (uint64_t)set->lengths[at], count = length < LOOK ? length : LOOK;
        const lh_status_t status = indexed_read(set, at, 0, count, ids);
        if (status != LH_OK) return status;
        parts[2 + i] = digest_xxh3(ids, count * sizeof(*ids));
    }
    *out = digest_xxh3(parts, (size_t)(2 + looks) * sizeof(*parts));
    return LH_OK;
}

/* The writer, from here on. BUFFER_BYTES: what each of its files gathers before a write. */
enum { BUFFER_BYTES = 1024 * 1024 };
/* The files of a writer; the third is removed at the end. */
enum { FILE_BIN, FILE_IDX, FILE_LENGTHS, FILE_COUNT };
static const char *const suffixes[FILE_COUNT] = {".bin", ".idx", ".lengths"};

typedef struct out_file { /* a file that is written from front to back */
    char *path, *final_path;
    int fd;
    bool renamed;          /* path may be another's by now */
    unsigned char *buffer; /* [BUFFER_BYTES] */
    size_t held;
    uint64_t written;
    digest_t *sum; /* of what was written */
} out_file_t;

/* A pair that is being written, by one thread. */
struct indexed_writer {
    char *folder;
    uint32_t vocab, dtype_code, token_bytes;
    uint64_t documents, sequences;
    uint64_t lengths; /* in FILE_LENGTHS: one for each sequence, 0 for a document without */
    out_file_t files[FILE_COUNT];
    bool finished;
};

/* Writes what is held; the digest is of all that was written. */
static lh_status_t out_flush(out_file_t *f)
{
    const lh_status_t status = file_write(f->fd, f->path, f->buffer, f->held);
    digest_add(f->sum, f->buffer, f->held);
    f->written += f->held;
    f->held = 0;
    return status;
}

/* Appends up to BUFFER_BYTES at once. */
static lh_status_t out_put(out_file_t *f, const void *from, size_t bytes)
{
    lh_assert(bytes <= BUFFER_BYTES && f->held <= BUFFER_BYTES);
    if (f->held + bytes > BUFFER_BYTES) {
        const lh_status_t status = out_flush(f);
        if (status != LH_OK) return status;
    }
    memcpy(f->buffer + f->held, from, bytes);
    f->held += bytes;
    return LH_OK;
}

/* Takes the temporary file for this process alone (file_take locks it), so that two runs can't
 * write one pair. */
static lh_status_t out_open(out_file_t *f, const char *prefix, const char *suffix)
{
    text_t path = {0}, final_path = {0};
    text_printf(&path, "%s%s.tmp", prefix, suffix);
    text_printf(&final_path, "%s%s", prefix, suffix);
    f->path = path.data;
    f->final_path = final_path.data;
    f->buffer = mem_new(BUFFER_BYTES);
    if (path.failed || final_path.failed || f->buffer == NULL) return LH_NO_MEMORY;
    const lh_status_t status = digest_new(&f->sum);
    return status == LH_OK ? file_take(f->path, &f->fd) : status;
}

/* Once a file: the digest ends here. Later calls leave out->sha256 as it is. */
static void out_sum(out_file_t *f, pair_sum_t *out)
{
    out->bytes = f->written;
    if (f->sum != NULL) digest_end(f->sum, out->sha256);
    f->sum = NULL;
}

/* Removes the file unless it has its final name. */
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
    return sys_fsync(f->fd) == 0 ? LH_OK : fail_io(errno, "%s: cannot sync", f->path);
}

static lh_status_t out_rename(out_file_t *f)
{
    f->renamed = sys_rename(f->path, f->final_path) == 0;
    if (f->renamed) return LH_OK;
    return fail_io(errno, "%s: cannot rename %s to it", f->final_path, f->path);
}

/* The dtype is what Megatron chooses for a vocabulary of this size. */
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

/* Also behind a commit, whose files have their final names and stay. */
void indexed_writer_discard(indexed_writer_t *w)
{
    if (w == NULL) return;
    for (int i = 0; i < FILE_COUNT; i++)
        out_discard(&w->files[i]);
    mem_free(w->folder);
    mem_free(w);
}

/* Ids to the .bin, in pieces, as uint16 where the vocabulary allows it. */
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
    lh_assert(!w->finished);
    /* A length is 32 bits in the index. */
    if (count > INT32_MAX)
        return fail(LH_INVALID, "document %llu has %llu tokens, an index holds at most %d",
                    (unsigned long long)w->documents, (unsigned long long)count, INT32_MAX);
    lh_status_t status = put_ids(w, ids, count);
    if (status != LH_OK) return status;
    const int32_t length = (int32_t)count;
    status = out_put(&w->files[FILE_LENGTHS], &length, sizeof(length));
    if (status != LH_OK) return status;
    w->documents++;
    w->lengths++;
    if (count > 0) w->sequences++;
    return LH_OK;
}

/* Stands in the file of lengths for an empty sequence inside a document. */
enum { LENGTH_EMPTY = INT32_MIN };

/* The first as any document; what follows it as the lengths of sequences that begin none, below 0. */
lh_status_t indexed_writer_add_parts(indexed_writer_t *w, const int32_t *ids,
                                     const int32_t *lengths, uint64_t parts)
{
    lh_assert(parts > 0 && lengths[0] > 0);
    lh_status_t status = indexed_writer_add(w, ids, (uint64_t)lengths[0]);
    for (uint64_t i = 1; status == LH_OK && i < parts; i++) {
        ids += lengths[i - 1];
        lh_assert(lengths[i] >= 0);
        const int32_t more = lengths[i] == 0 ? LENGTH_EMPTY : -lengths[i];
        status = put_ids(w, ids, (uint64_t)lengths[i]);
        if (status == LH_OK) status = out_put(&w->files[FILE_LENGTHS], &more, sizeof(more));
        w->lengths++;
        w->sequences++;
    }
    return status;
}

/* The reverse of index_head_read. */
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

/* In the order in which they lie in the index. */
enum { TABLE_LENGTHS, TABLE_OFFSETS, TABLE_BOUNDARIES, TABLE_COUNT };

/* One of the index's tables, from the lengths read once more. A document's boundary is known once
 * the next one begins. */
static lh_status_t put_table(indexed_writer_t *w, int table)
{
    enum { PIECE = 4096 };
    int32_t lengths[PIECE];
    out_file_t *idx = &w->files[FILE_IDX], *from = &w->files[FILE_LENGTHS];
    uint64_t offset = 0, boundary = 0;
    lh_status_t status = LH_OK;
    lh_assert(from->held == 0);
    if (table == TABLE_BOUNDARIES) status = out_put(idx, &boundary, sizeof(boundary));

    for (uint64_t at = 0; at < w->lengths && status == LH_OK; at += PIECE) {
        const uint64_t left = w->lengths - at, now = left < PIECE ? left : PIECE;
        status = file_pread(from->fd, from->path, lengths, now * sizeof(*lengths),
                            at * sizeof(*lengths));
        for (uint64_t i = 0; i < now && status == LH_OK; i++) {
            /* An empty document is a boundary that repeats the one before it; it has no
             * sequence. */
            const bool empty = lengths[i] == 0, begins = lengths[i] >= 0 && at + i > 0;
            const int32_t length = lengths[i] == LENGTH_EMPTY ? 0
                                   : lengths[i] < 0           ? -lengths[i]
                                                              : lengths[i];
            if (table == TABLE_BOUNDARIES && begins)
                status = out_put(idx, &boundary, sizeof(boundary));
            else if (!empty && table == TABLE_OFFSETS)
                status = out_put(idx, &offset, sizeof(offset));
            else if (!empty && table == TABLE_LENGTHS)
                status = out_put(idx, &length, sizeof(length));
            boundary += empty ? 0 : 1;
            offset += (uint64_t)length * w->token_bytes;
        }
    }
    if (status == LH_OK && table == TABLE_BOUNDARIES && w->lengths > 0)
        status = out_put(idx, &boundary, sizeof(boundary));
    return status;
}

/* Both files are synced before their names change: a name that survives a loss of power has its
 * data. */
lh_status_t indexed_writer_finish(indexed_writer_t *w, pair_sums_t *out)
{
    lh_assert(!w->finished);
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

/* The old index goes first: from then on, until the new one is there, no index stands under the
 * name, so that a crash at any moment leaves a whole pair or one that can't be opened. */
static lh_status_t writer_do_commit(indexed_writer_t *w)
{
    out_file_t *bin = &w->files[FILE_BIN], *idx = &w->files[FILE_IDX];
    pair_sums_t sums;
    lh_status_t status = w->finished ? LH_OK : indexed_writer_finish(w, &sums);
    if (status != LH_OK) return status;
    if (sys()->unlink(idx->final_path) != 0 && errno != ENOENT)
        return fail_io(errno, "%s: cannot take the old index away", idx->final_path);
    status = folder_sync(w->folder);
    if (status == LH_OK) status = out_rename(bin);
    if (status == LH_OK) status = out_rename(idx);
    if (status == LH_OK) status = folder_sync(w->folder);
    return status;
}

lh_status_t indexed_writer_commit(indexed_writer_t *w)
{
    const lh_status_t status = writer_do_commit(w);
    indexed_writer_discard(w);
    return status;
}
