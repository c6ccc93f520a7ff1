/* indexed.c - validates an index in one streaming pass, then reads tokens by position. */
#include <data/indexed.h>

#include <base/checked.h>
#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian, as are we");

static const struct {
    uint32_t bytes;
    const char *name;
} dtypes[] = {
    [1] = {1, "uint8"}, [2] = {1, "int8"},    [3] = {2, "int16"},   [4] = {4, "int32"},
    [5] = {8, "int64"}, [6] = {0, "float64"}, [7] = {0, "float32"}, [8] = {2, "uint16"},
};

typedef struct index_file {
    const char *path;
    int fd;
    uint64_t size, bin_bytes, boundaries;
} index_file_t;

static lh_status_t head_read(const index_file_t *f, indexed_t *set, uint64_t *boundaries)
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

static lh_status_t index_read(const char *path, uint64_t bin_bytes, indexed_t *set)
{
    index_file_t f = {.path = path, .bin_bytes = bin_bytes};
    lh_status_t status = file_open(path, &f.fd, &f.size);
    if (status != LH_OK) return status;
    status = head_read(&f, set, &f.boundaries);
    if (status == LH_OK) status = size_check(&f, set);
    if (status == LH_OK) status = sequences_read(&f, set);
    if (status == LH_OK) status = boundaries_check(&f, set);
    if (status == LH_OK) set->documents = f.boundaries - 1;
    (void)sys()->close(f.fd);
    return status;
}

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

indexed_t *indexed_share(indexed_t *set)
{
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
    if (set == NULL || --set->users > 0) return;
    if (set->fd >= 0) (void)sys()->close(set->fd);
    mem_free(set->offsets);
    mem_free(set->lengths);
    mem_free(set->bin_path);
    mem_free(set);
}

/* One stored id as a wide number. */
static int64_t token_at(const void *bytes, uint32_t dtype_code, uint64_t i)
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

lh_status_t indexed_read(const indexed_t *set, uint64_t sequence, uint64_t at, uint64_t count,
                         int32_t *out)
{
    enum { PIECE_BYTES = 8192 };
    int64_t piece[PIECE_BYTES / sizeof(int64_t)]; /* int64_t for its alignment */
    const uint64_t room = PIECE_BYTES / set->token_bytes;
    uint64_t offset = set->offsets[sequence] + at * set->token_bytes;
    while (count > 0) {
        const uint64_t now = count < room ? count : room;
        const lh_status_t status = file_pread(set->fd, set->bin_path, piece, now * set->token_bytes,
                                              offset);
        if (status != LH_OK) return status;
        for (uint64_t i = 0; i < now; i++) {
            const int64_t id = token_at(piece, set->dtype_code, i);
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

lh_status_t indexed_digest(const indexed_t *set, uint64_t *out)
{
    enum { LOOK = 256 };
    int32_t ids[LOOK];
    const uint64_t looks = set->sequences < INDEXED_LOOKS ? set->sequences : INDEXED_LOOKS;
    uint64_t parts[INDEXED_LOOKS + 2] = {set->documents,
                                         xxh3(set->lengths, set->sequences * sizeof(int32_t))};
    for (uint64_t i = 0; i < looks; i++) {
        const uint64_t at = i * (set->sequences / looks);
        const uint64_t length = (uint64_t)set->lengths[at], count = length < LOOK ? length : LOOK;
        const lh_status_t status = indexed_read(set, at, 0, count, ids);
        if (status != LH_OK) return status;
        parts[2 + i] = xxh3(ids, count * sizeof(*ids));
    }
    *out = xxh3(parts, (size_t)(2 + looks) * sizeof(*parts));
    return LH_OK;
}
