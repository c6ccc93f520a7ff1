/* safetensors.c - the header's rules, one by one, each with a sentence of its own.
 *
 * A reader believes nothing: sizes are checked before memory is taken for them, products before
 * they wrap, and offsets against the file. Tensors are kept in the order of their data, in which
 * the check for holes and overlaps is one walk; a list of indices beside them is sorted by name for
 * finding.
 *
 * A writer knows all shapes before the first byte of data, so it writes the header once, reserves
 * the whole file, where a full disk shows, and lets tensors come in any order. */
#include <format/safetensors.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <format/json.h>

/* LENGTH_BYTES: in front of the header. HEADER_MOST: the reference reader's limit, which no caller
 * gets past; HEADER_USUAL: without another limit. The last two bound the values of the JSON, before
 * they are held, by the tensors that are allowed. */
enum {
    LENGTH_BYTES = 8,
    HEADER_MOST = 100000000,
    HEADER_USUAL = 16 << 20,
    ENTRY_VALUES = 16, /* of a tensor's entry, with eight dimensions */
    METADATA_VALUES = 100000,
};

/* All names that the reference reader knows. Those without a number of ours can be listed and
 * checked, but not converted. */
static const safetensors_dtype_t dtypes[] = {
    {"BOOL", 8, LH_DTYPE_NONE},
    {"U8", 8, LH_DTYPE_U8},
    {"I8", 8, LH_DTYPE_I8},
    {"F8_E5M2", 8, LH_DTYPE_F8E5M2},
    {"F8_E4M3", 8, LH_DTYPE_F8E4M3},
    {"F8_E8M0", 8, LH_DTYPE_NONE},
    {"F8_E4M3FNUZ", 8, LH_DTYPE_NONE},
    {"F8_E5M2FNUZ", 8, LH_DTYPE_NONE},
    {"I16", 16, LH_DTYPE_NONE},
    {"U16", 16, LH_DTYPE_NONE},
    {"F16", 16, LH_DTYPE_F16},
    {"BF16", 16, LH_DTYPE_BF16},
    {"I32", 32, LH_DTYPE_I32},
    {"U32", 32, LH_DTYPE_NONE},
    {"F32", 32, LH_DTYPE_F32},
    {"I64", 64, LH_DTYPE_I64},
    {"U64", 64, LH_DTYPE_NONE},
    {"F64", 64, LH_DTYPE_F64},
    {"C64", 64, LH_DTYPE_NONE},
    {"F6_E2M3", 6, LH_DTYPE_NONE},
    {"F6_E3M2", 6, LH_DTYPE_NONE},
    {"F4", 4, LH_DTYPE_NONE},
};
enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

const safetensors_dtype_t *safetensors_dtype_named(const char *name)
{
    for (uint32_t i = 0; i < DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

lh_status_t safetensors_dtype_refuse(const char *path, const char *tensor, const char *found,
                                     bool ours)
{
    text_t names = {0};
    for (uint32_t i = 0; i < DTYPES; i++)
        if (!ours || dtypes[i].number != LH_DTYPE_NONE)
            text_printf(&names, "%s%s", names.length == 0 ? "" : " ", dtypes[i].name);
    lh_status_t status = text_status(&names);
    if (status == LH_OK)
        status = fail(LH_INVALID, "%s: tensor %s: unknown dtype %.64s, one of %s was expected",
                      path, tensor, found, names.data);
    text_free(&names);
    return status;
}

/* "PATH: tensor NAME: WHAT is FOUND, WANTED was expected" */
static lh_status_t refuse_value(const char *path, const char *name, const char *what,
                                const json_value_t *value, const char *wanted)
{
    char found[JSON_FOUND];
    json_found(value, found);
    return fail(LH_INVALID, "%s: tensor %s: %s is %s, %s was expected", path, name, what, found,
                wanted);
}

const safetensors_dtype_t *safetensors_dtype(lh_dtype_t number)
{
    for (uint32_t i = 0; i < DTYPES; i++)
        if (dtypes[i].number == number && number != LH_DTYPE_NONE) return &dtypes[i];
    return NULL;
}

/* "shape": the dimensions and their product. */
static lh_status_t read_shape(const char *path, const json_value_t *entry, safetensor_t *t)
{
    const json_value_t *shape = json_member(entry, "shape");
    if (!json_is_list(shape)) return refuse_value(path, t->name, "shape", shape, "a list");
    const size_t rank = json_size(shape);
    if (rank > SAFETENSORS_RANK)
        return fail(LH_INVALID, "%s: tensor %s: %zu dimensions, at most %d are allowed", path,
                    t->name, rank, SAFETENSORS_RANK);

    t->rank = (uint32_t)rank;
    t->elements = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        const json_value_t *size = json_item(shape, i);
        if (!json_count(size, &t->shape[i])) {
            char what[32];
            (void)snprintf(what, sizeof(what), "dimension %u", i);
            return refuse_value(path, t->name, what, size, "a whole number of 0 or more");
        }
        if (!checked_mul(t->elements, t->shape[i], &t->elements))
            return fail(LH_INVALID, "%s: tensor %s: more than 2^64 elements", path, t->name);
    }
    return LH_OK;
}

/* "data_offsets": where the data lie behind the header, which must be exactly as many as shape and
 * dtype need. t->offset is from the header's end until check_extents makes it the file's. */
static lh_status_t read_extent(const char *path, const json_value_t *entry, uint64_t data_bytes,
                               safetensor_t *t)
{
    const json_value_t *offsets = json_member(entry, "data_offsets");
    const json_value_t *begin = json_item(offsets, 0), *end = json_item(offsets, 1);
    uint64_t last;
    if (json_size(offsets) != 2 || !json_count(begin, &t->offset) || !json_count(end, &last) ||
        last < t->offset)
        return refuse_value(path, t->name, "data_offsets", offsets,
                            "[begin, end] with 0 <= begin <= end");
    if (last > data_bytes)
        return fail(LH_INVALID,
                    "%s: tensor %s: its data end at %llu, the file holds %llu bytes of data", path,
                    t->name, (unsigned long long)last, (unsigned long long)data_bytes);

    /* Some dtypes have less than a byte an element: rows of them must still end on a byte. */
    uint64_t bits;
    if (!checked_mul(t->elements, t->dtype->bits, &bits))
        return fail(LH_INVALID, "%s: tensor %s: more than 2^64 bits", path, t->name);
    if (bits % 8 != 0)
        return fail(LH_INVALID, "%s: tensor %s: %llu bits are no whole number of bytes", path,
                    t->name, (unsigned long long)bits);
    t->bytes = last - t->offset;
    if (t->bytes != bits / 8)
        return fail(LH_INVALID, "%s: tensor %s: %llu bytes of data, its shape and dtype need %llu",
                    path, t->name, (unsigned long long)t->bytes, (unsigned long long)(bits / 8));
    return LH_OK;
}

/* One entry of the header. The name is borrowed from the JSON, which the file keeps. */
static lh_status_t read_header_entry(const char *path, const char *name, const json_value_t *entry,
                                     uint64_t data_bytes, safetensor_t *t)
{
    if (strlen(name) > SAFETENSORS_NAME)
        return fail(LH_INVALID, "%s: tensor %.64s...: a name of %zu bytes, at most %d are allowed",
                    path, name, strlen(name), SAFETENSORS_NAME);
    t->name = name;
    if (!json_is_map(entry)) return refuse_value(path, name, "its entry", entry, "an object");

    const json_value_t *written = json_member(entry, "dtype");
    const char *dtype = json_text(written);
    if (dtype == NULL) return refuse_value(path, name, "dtype", written, "a text");
    t->dtype = safetensors_dtype_named(dtype);
    if (t->dtype == NULL) return safetensors_dtype_refuse(path, name, dtype, false);

    lh_status_t status = read_shape(path, entry, t);
    if (status == LH_OK) status = read_extent(path, entry, data_bytes, t);
    return status;
}

/* Empty tensors may share an offset; the names give these an order too, as qsort keeps none. */
static int by_offset(const void *a, const void *b)
{
    const safetensor_t *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty ones first */
    return strcmp(x->name, y->name);
}

/* Data without holes and overlaps, up to the end of the file. */
static lh_status_t check_extents(safetensors_t *s)
{
    uint64_t at = 0;
    lh_assert(s->file_bytes >= LENGTH_BYTES + s->header_bytes);
    for (uint32_t i = 0; i < s->count; i++) {
        safetensor_t *t = &s->tensors[i];
        if (t->offset != at)
            return fail(LH_INVALID, "%s: tensor %s: its data begin at %llu, %s at %llu", s->path,
                        t->name, (unsigned long long)t->offset,
                        t->offset < at ? "the one before ends" : "a hole is left",
                        (unsigned long long)at);
        at += t->bytes;
        t->offset += LENGTH_BYTES + s->header_bytes;
    }
    const uint64_t data = s->file_bytes - LENGTH_BYTES - s->header_bytes;
    if (at != data)
        return fail(LH_INVALID, "%s: %llu bytes of data follow the last tensor", s->path,
                    (unsigned long long)(data - at));
    return LH_OK;
}

/* key: "" for the whole of it */
static lh_status_t refuse_metadata(const char *path, const char *key, const json_value_t *value,
                                   const char *wanted)
{
    char found[JSON_FOUND];
    json_found(value, found);
    return fail(LH_INVALID, "%s: __metadata__%s%.64s is %s, %s was expected", path,
                *key == '\0' ? "" : ": ", key, found, wanted);
}

/* "__metadata__" holds texts and nothing else. */
static lh_status_t check_metadata(const char *path, const json_value_t *metadata)
{
    if (json_is_nil(metadata)) return LH_OK;
    if (!json_is_map(metadata)) return refuse_metadata(path, "", metadata, "an object");
    for (json_walk_t w = json_walk(metadata); json_next(&w);)
        if (!json_is_text(w.value)) return refuse_metadata(path, w.key, w.value, "a text");
    return LH_OK;
}

/* Indices into tensors, by the names that stand there. */
static int by_header_name(const void *a, const void *b, void *tensors)
{
    const safetensor_t *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* All entries; their number is checked before memory is taken for them. */
static lh_status_t read_tensors(safetensors_t *s, uint64_t limit)
{
    const json_value_t *header = json_root(s->header);
    const size_t entries = json_size(header);
    /* It is an entry of the header, but no tensor. */
    const bool described = json_member(header, "__metadata__") != NULL;
    if (entries - described > limit)
        return fail(LH_INVALID, "%s: %zu tensors, at most %llu are allowed", s->path,
                    entries - described, (unsigned long long)limit);
    s->tensors = mem_array(entries, sizeof(s->tensors[0]));
    s->by_name = mem_array(entries, sizeof(s->by_name[0]));
    if (s->tensors == NULL || s->by_name == NULL) return LH_NO_MEMORY;

    for (json_walk_t w = json_walk(header); json_next(&w);) {
        lh_status_t status;
        if (strcmp(w.key, "__metadata__") == 0) {
            status = check_metadata(s->path, w.value);
        } else {
            lh_assert(s->count < entries);
            status = read_header_entry(s->path, w.key, w.value,
                                       s->file_bytes - LENGTH_BYTES - s->header_bytes,
                                       &s->tensors[s->count]);
            /* Sorted once all are there; until then the identity. */
            s->by_name[s->count] = s->count;
            s->count++;
        }
        if (status != LH_OK) return status;
    }
    if (s->count > 0) {
        qsort(s->tensors, s->count, sizeof(s->tensors[0]), by_offset);
        qsort_r(s->by_name, s->count, sizeof(s->by_name[0]), by_header_name, s->tensors);
    }
    return check_extents(s);
}

/* The length, then the text, of which the hash is taken as it stands in the file. */
static lh_status_t read_header(safetensors_t *s, const safetensors_limits_t *limits)
{
    uint64_t most = limits->header_bytes == 0 ? HEADER_USUAL : limits->header_bytes;
    if (most > HEADER_MOST) most = HEADER_MOST;
    if (s->file_bytes < LENGTH_BYTES + 2) /* "{}" */
        return fail(LH_INVALID, "%s: %llu bytes, a safetensors file has at least %d", s->path,
                    (unsigned long long)s->file_bytes, LENGTH_BYTES + 2);

    unsigned char head[LENGTH_BYTES];
    lh_status_t status = file_pread(s->fd, s->path, head, sizeof(head), 0);
    if (status != LH_OK) return status;
    /* The length is little-endian on any machine. */
    for (uint32_t i = 0; i < LENGTH_BYTES; i++)
        s->header_bytes |= (uint64_t)head[i] << (8 * i);
    /* Both limits before memory is taken for the header. */
    if (s->header_bytes > most)
        return fail(LH_INVALID, "%s: a header of %llu bytes, at most %llu are allowed", s->path,
                    (unsigned long long)s->header_bytes, (unsigned long long)most);
    if (s->header_bytes > s->file_bytes - LENGTH_BYTES)
        return fail(LH_INVALID, "%s: a header of %llu bytes, the file has %llu behind its length",
                    s->path, (unsigned long long)s->header_bytes,
                    (unsigned long long)(s->file_bytes - LENGTH_BYTES));

    char *text = mem_new((size_t)s->header_bytes + 1);
    if (text == NULL) return LH_NO_MEMORY;
    status = file_pread(s->fd, s->path, text, (size_t)s->header_bytes, LENGTH_BYTES);
    if (status == LH_OK) s->header_hash = digest_xxh3(text, (size_t)s->header_bytes);
    if (status == LH_OK && text[0] != '{')
        status = fail(LH_INVALID, "%s: the header begins at byte %d with 0x%02x, '{' was expected",
                      s->path, LENGTH_BYTES, (unsigned char)text[0]);
    if (status == LH_OK)
        status = json_parse(s->path, text, (size_t)s->header_bytes,
                            ENTRY_VALUES * limits->tensors + METADATA_VALUES, &s->header);
    mem_free(text);
    return status;
}

/* Every failure goes through safetensors_close, which takes a file that is half made. */
lh_status_t safetensors_open(const char *path, const safetensors_limits_t *limits,
                             safetensors_t **out)
{
    safetensors_limits_t most = limits == NULL ? (safetensors_limits_t){0} : *limits;
    if (most.tensors == 0) most.tensors = SAFETENSORS_USUAL;
    safetensors_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->fd = -1;

    lh_status_t status = LH_NO_MEMORY;
    s->path = mem_text(path);
    if (s->path == NULL) goto close_file;
    status = most.refuses_links ? file_open_plain(path, &s->fd, &s->file_bytes)
                                : file_open(path, &s->fd, &s->file_bytes);
    if (status != LH_OK) goto close_file;
    status = read_header(s, &most);
    if (status != LH_OK) goto close_file;
    status = read_tensors(s, most.tensors);
    if (status != LH_OK) goto close_file;
    *out = s;
    return LH_OK;

close_file:
    safetensors_close(s);
    return status;
}

void safetensors_close(safetensors_t *s)
{
    if (s == NULL) return;
    if (s->fd >= 0) (void)sys()->close(s->fd);
    json_free(s->header);
    mem_free(s->by_name);
    mem_free(s->tensors);
    mem_free(s->path);
    mem_free(s);
}

/* A binary search over the names. */
const safetensor_t *safetensors_find(const safetensors_t *s, const char *name)
{
    /* The name is in [low, high) of by_name, if it is anywhere. */
    uint32_t low = 0, high = s->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const safetensor_t *t = &s->tensors[s->by_name[middle]];
        const int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* A place outside of the tensor is refused and not asserted: it may come from another file, such as
 * a manifest. */
lh_status_t safetensors_read(const safetensors_t *s, const safetensor_t *t, uint64_t at, void *to,
                             uint64_t bytes)
{
    if (at > t->bytes || bytes > t->bytes - at)
        return fail(LH_INVALID, "%s: tensor %s: bytes %llu to %llu were asked for, it has %llu",
                    s->path, t->name, (unsigned long long)at, (unsigned long long)(at + bytes),
                    (unsigned long long)t->bytes);
    lh_assert(t->offset + t->bytes <= s->file_bytes);
    return file_pread(s->fd, s->path, to, (size_t)bytes, t->offset + at);
}

/* Borrowed from the header. */
const char *safetensors_metadata(const safetensors_t *s, const char *key)
{
    return json_text(json_member(json_member(json_root(s->header), "__metadata__"), key));
}

/* A file that is being written, by one thread. Places and sizes are fixed by the header; missing
 * counts down to 0 for each row. */
struct safetensors_writer {
    char *path;
    int fd;
    uint32_t count;
    uint64_t *offset;  /* in the file */
    uint64_t *missing; /* bytes not yet written */
    uint64_t bytes;    /* of the file */
    uint64_t header_hash;
};

/* 0 for a dtype without a name here, which header_row refuses. */
bool safetensors_row_bytes(const safetensors_row_t *row, uint64_t *out)
{
    lh_assert(row->rank <= LH_MAX_RANK);
    const safetensors_dtype_t *dtype = safetensors_dtype(row->dtype);
    uint64_t bytes = dtype == NULL ? 0 : dtype->bits / 8;
    for (uint32_t i = 0; i < row->rank; i++)
        if (!checked_mul(bytes, row->shape[i], &bytes)) return false;
    if (bytes > INT64_MAX) return false;
    *out = bytes;
    return true;
}

/* One entry of the header; begin and end count from the header's end. */
static lh_status_t header_row(json_writer_t *w, const char *path, const safetensors_row_t *row,
                              uint64_t begin, uint64_t end)
{
    const safetensors_dtype_t *dtype = safetensors_dtype(row->dtype);
    if (dtype == NULL)
        return fail(LH_INVALID, "%s: tensor %s: dtype %u has no safetensors name", path, row->name,
                    row->dtype);
    lh_assert(begin <= end);
    json_open(w, row->name, '{');
    json_put_text(w, "dtype", dtype->name);
    json_open(w, "shape", '[');
    for (uint32_t i = 0; i < row->rank; i++)
        json_put_u64(w, NULL, row->shape[i]);
    json_close(w);
    json_open(w, "data_offsets", '[');
    json_put_u64(w, NULL, begin);
    json_put_u64(w, NULL, end);
    json_close(w);
    json_close(w);
    return LH_OK;
}

/* Fills offsets and sizes; the text gets the 8 bytes of its own length in front. */
static lh_status_t make_header(safetensors_writer_t *w, const safetensors_row_t *rows,
                               const safetensors_pair_t *pairs, uint32_t pair_count, text_t *t)
{
    /* The length is not known yet; it is filled in at the end. */
    text_append_n(t, "\0\0\0\0\0\0\0\0", 8);
    json_writer_t json = {.to = t, .style = JSON_TIGHT};
    json_open(&json, NULL, '{');
    json_open(&json, "__metadata__", '{');
    json_put_text(&json, "format", "pt");
    for (uint32_t i = 0; i < pair_count; i++)
        json_put_text(&json, pairs[i].key, pairs[i].value);
    json_close(&json);

    uint64_t at = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        uint64_t end;
        if (rows[i].rank > LH_MAX_RANK || !safetensors_row_bytes(&rows[i], &w->missing[i]) ||
            !checked_add(at, w->missing[i], &end) || end > INT64_MAX)
            return fail(LH_INVALID, "%s: tensor %s: more than 2^63 bytes", w->path, rows[i].name);
        const lh_status_t status = header_row(&json, w->path, &rows[i], at, end);
        if (status != LH_OK) return status;
        if (t->length > LENGTH_BYTES + HEADER_MOST) break; /* refused below */
        w->offset[i] = at;
        at = end;
    }
    json_close(&json);
    /* Blanks at the header's end align the data to 8 bytes, as the format asks of writers. */
    while (t->length % 8 != 0 && !t->failed)
        text_append(t, " ");
    if (t->failed) return text_status(t);
    const uint64_t length = t->length - 8;
    if (length > HEADER_MOST)
        return fail(LH_INVALID, "%s: a header of more than %d bytes for %u tensors, none is read",
                    w->path, HEADER_MOST, w->count);

    for (uint32_t i = 0; i < w->count; i++)
        w->offset[i] += t->length;
    w->bytes = at + t->length;
    w->header_hash = digest_xxh3(t->data + 8, (size_t)length);
    for (uint32_t i = 0; i < 8; i++)
        t->data[i] = (char)(length >> (8 * i));
    return LH_OK;
}

/* A full disk shows here, before a byte of data has moved. */
static lh_status_t safetensors_writer_reserve(const safetensors_writer_t *w)
{
    if (sys_fallocate(w->fd, (off_t)w->bytes) == 0) return LH_OK;
    /* Asking for the free space must not lose the reason. */
    const int error = errno;
    struct statvfs disk;
    const bool known = sys()->fstatvfs(w->fd, &disk) == 0;
    errno = error;
    if (!known)
        return fail_io(errno, "%s: cannot reserve %llu bytes", w->path,
                       (unsigned long long)w->bytes);
    return fail_io(errno, "%s: cannot reserve %llu bytes, the disk has %llu free", w->path,
                   (unsigned long long)w->bytes,
                   (unsigned long long)disk.f_bavail * (unsigned long long)disk.f_frsize);
}

/* O_EXCL and O_NOFOLLOW: nothing that stands there is written over, and no link is followed. */
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
        status = fail_io(errno, "%s: cannot create", path);
        goto abandon;
    }
    status = safetensors_writer_reserve(w);
    if (status != LH_OK) goto abandon;
    /* The file has its full size by now, so a reader can't tell by header and size that a crash has
     * left data out: it is whole once safetensors_finish has returned LH_OK, and not before. */
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
    lh_assert(row < w->count);
    /* Bytes are counted and not marked, so a piece that is written twice shows only as too many. */
    if (bytes > w->missing[row])
        return fail(LH_INVALID, "%s: row %u: %llu bytes more than it has", w->path, row,
                    (unsigned long long)(bytes - w->missing[row]));
    const lh_status_t status = file_pwrite(w->fd, w->path, from, (size_t)bytes,
                                           w->offset[row] + at);
    if (status == LH_OK) w->missing[row] -= bytes;
    return status;
}

/* A file with a hole is never called finished. */
lh_status_t safetensors_finish(safetensors_writer_t *w, safetensors_written_t *out)
{
    lh_assert(w->fd >= 0);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < w->count && status == LH_OK; i++)
        if (w->missing[i] > 0)
            status = fail(LH_INVALID, "%s: %llu bytes of row %u were not written", w->path,
                          (unsigned long long)w->missing[i], i);
    /* After a failed fsync the kernel may have dropped the data: a second fsync would lie. */
    if (status == LH_OK && sys_fsync(w->fd) != 0)
        status = fail_io(errno, "%s: cannot sync", w->path);
    const int fd = w->fd;
    w->fd = -1;
    if (sys()->close(fd) != 0 && status == LH_OK)
        status = fail_io(errno, "%s: cannot close", w->path);
    if (status == LH_OK && out != NULL) *out = (safetensors_written_t){w->bytes, w->header_hash};
    safetensors_abandon(w);
    return status;
}

/* Frees a writer in whatever state it is. */
void safetensors_abandon(safetensors_writer_t *w)
{
    if (w == NULL) return;
    if (w->fd >= 0) (void)sys()->close(w->fd);
    mem_free(w->missing);
    mem_free(w->offset);
    mem_free(w->path);
    mem_free(w);
}
