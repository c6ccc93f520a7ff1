/* line_reader.c - cuts a byte stream into lines inside one buffer. */
#include <data/line_reader.h>

#include <base/memory.h>
#include <data/byte_source.h>

enum { BLOCK_BYTES = 256 * 1024 };

struct line_reader {
    const char *const *paths;
    uint32_t path_count;
    uint64_t line_bytes, window_bytes;
    line_file_t *files; /* [path_count] */

    uint32_t file; /* the one being read */
    byte_source_t *source;
    bool source_ended;
    uint64_t number;       /* of the line returned last */
    uint64_t taken_before; /* by files that are finished */

    char *buffer;
    size_t capacity, begin, searched, end; /* [begin, end) is unread; no newline before searched */
};

lh_status_t line_reader_new(const char *const *paths, uint32_t count, uint64_t line_bytes,
                            uint64_t window_bytes, line_reader_t **out)
{
    lh_assert(line_bytes > 0 && window_bytes > 0);
    line_reader_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;
    r->paths = paths;
    r->path_count = count;
    r->line_bytes = line_bytes;
    r->window_bytes = window_bytes;
    r->files = mem_array(count, sizeof(*r->files));
    r->buffer = mem_new(BLOCK_BYTES);
    r->capacity = BLOCK_BYTES;
    if (r->files == NULL || r->buffer == NULL) {
        line_reader_free(r);
        return LH_NO_MEMORY;
    }
    *out = r;
    return LH_OK;
}

void line_reader_free(line_reader_t *r)
{
    if (r == NULL) return;
    byte_source_close(r->source);
    mem_free(r->buffer);
    mem_free(r->files);
    mem_free(r);
}

uint64_t line_reader_taken(const line_reader_t *r)
{
    return r->taken_before + (r->source == NULL ? 0 : byte_source_taken(r->source));
}

const line_file_t *line_reader_files(const line_reader_t *r)
{
    return r->files;
}

/* Reads one block behind what is unread. */
static lh_status_t fill(line_reader_t *r)
{
    lh_assert(r->source != NULL);
    lh_assert(r->begin <= r->searched && r->searched <= r->end && r->end <= r->capacity);
    if (r->begin > 0) {
        memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
        r->searched -= r->begin;
        r->end -= r->begin;
        r->begin = 0;
    }
    char *buffer = mem_grow(r->buffer, &r->capacity, r->end + BLOCK_BYTES / 2, 1);
    if (buffer == NULL) return LH_NO_MEMORY;
    r->buffer = buffer;

    size_t got;
    const lh_status_t status = byte_source_read(r->source, r->buffer + r->end, r->capacity - r->end,
                                                &got);
    if (status != LH_OK) return status;
    r->source_ended = got == 0;
    r->end += got;
    return LH_OK;
}

static lh_status_t file_begin(line_reader_t *r)
{
    lh_assert(r->source == NULL && r->file < r->path_count);
    lh_status_t status = byte_source_open(r->paths[r->file], r->window_bytes, &r->source);
    if (status != LH_OK) return status;
    r->begin = r->searched = r->end = 0;
    r->number = 0;
    r->source_ended = false;
    while (r->end < 3 && !r->source_ended) {
        status = fill(r);
        if (status != LH_OK) return status;
    }
    if (r->end >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0) r->begin = r->searched = 3;
    return LH_OK;
}

static void file_finish(line_reader_t *r)
{
    lh_assert(r->source != NULL && r->file < r->path_count);
    line_file_t *f = &r->files[r->file];
    f->bytes = byte_source_taken(r->source);
    byte_source_digest(r->source, f->sha256);
    r->taken_before += f->bytes;
    byte_source_close(r->source);
    r->source = NULL;
    r->file++;
}

/* Passes over a line that is longer than allowed, a block at a time. */
static lh_status_t skip_line(line_reader_t *r)
{
    for (;;) {
        const char *newline = memchr(r->buffer + r->begin, '\n', r->end - r->begin);
        if (newline != NULL) {
            r->begin = (size_t)(newline - r->buffer) + 1;
            break;
        }
        r->begin = r->searched = r->end;
        if (r->source_ended) break;
        const lh_status_t status = fill(r);
        if (status != LH_OK) return status;
    }
    r->searched = r->begin;
    return LH_OK;
}

/* Finds the end of the line at begin; *newline is NULL at the end of the file or over the cap. */
static lh_status_t find_newline(line_reader_t *r, char **newline)
{
    for (;;) {
        *newline = memchr(r->buffer + r->searched, '\n', r->end - r->searched);
        r->searched = r->end;
        if (*newline != NULL || r->source_ended || r->end - r->begin > r->line_bytes) return LH_OK;
        const lh_status_t status = fill(r);
        if (status != LH_OK) return status;
    }
}

/* *found is false when the file has no more lines. */
static lh_status_t next_in_file(line_reader_t *r, line_t *out, bool *found)
{
    char *newline;
    lh_status_t status = find_newline(r, &newline);
    if (status != LH_OK) return status;

    *found = newline != NULL || r->begin < r->end;
    if (!*found) return LH_OK;
    r->number++;
    const size_t end = newline == NULL ? r->end : (size_t)(newline - r->buffer);
    *out = (line_t){.number = r->number, .file = r->file};
    if (end - r->begin > r->line_bytes) {
        out->too_long = true;
        return skip_line(r);
    }
    out->bytes = r->buffer + r->begin;
    out->length = end - r->begin;
    r->begin = r->searched = newline == NULL ? end : end + 1;
    return LH_OK;
}

lh_status_t line_reader_next(line_reader_t *r, line_t *out, bool *end)
{
    while (r->file < r->path_count) {
        lh_status_t status = LH_OK;
        if (r->source == NULL) status = file_begin(r);
        if (status != LH_OK) return status;

        bool found;
        status = next_in_file(r, out, &found);
        if (status != LH_OK) return status;
        if (found) {
            *end = false;
            return LH_OK;
        }
        file_finish(r);
    }
    *end = true;
    return LH_OK;
}
