/* input_lines.c - globbing one path component at a time, and a byte stream cut into lines inside
 * one buffer.
 *
 * glob(3) is not used: it would go around sys(), through which tests let system calls fail, and its
 * order follows the locale. Lines are found in one buffer that moves up as it is emptied and grows
 * to the longest line, up to the cap; a longer line is passed over without being held, so no file
 * can make the reader take more.
 *
 * Whether a path is named twice is asked of a hash of the paths so far, as a data set may have a
 * hundred thousand files. */
#include <data/input_lines.h>

#include <errno.h>
#include <fnmatch.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <data/byte_source.h>
#include <format/json.h>

/* Paths that a pattern has matched so far; owned. */
typedef struct path_list {
    char **paths;
    size_t count, capacity;
} path_list_t;

static void path_list_free(path_list_t *list)
{
    for (size_t i = 0; i < list->count; i++)
        mem_free(list->paths[i]);
    mem_free(list->paths);
    *list = (path_list_t){0};
}

static lh_status_t path_list_add(path_list_t *list, const char *folder, const char *name)
{
    char **paths = mem_grow(list->paths, &list->capacity, list->count + 1, sizeof(*paths));
    if (paths == NULL) return LH_NO_MEMORY;
    list->paths = paths;
    paths[list->count] = path_join(folder, name);
    if (paths[list->count] == NULL) return LH_NO_MEMORY;
    list->count++;
    return LH_OK;
}

/* What match_entry needs to know of each name in a folder. */
typedef struct match {
    const char *folder, *pattern;
    path_list_t *found;
    lh_status_t status;
} match_t;

/* FNM_PERIOD: a pattern does not find hidden files, as in a shell. */
static int match_entry(void *context, const char *name)
{
    match_t *m = context;
    if (fnmatch(m->pattern, name, FNM_PERIOD) != 0) return 0;
    m->status = path_list_add(m->found, m->folder, name);
    return m->status == LH_OK ? 0 : -1;
}

bool input_files_is_pattern(const char *path)
{
    return strpbrk(path, "*?[") != NULL;
}

/* Whether a path leads to nothing. Any other error is of something that is there: to pass it over
 * would leave documents out without a word. */
static bool path_is_nothing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
}

/* Every path of `from`, followed by one component of the pattern. */
static lh_status_t path_list_descend(const path_list_t *from, const char *component,
                                     path_list_t *to)
{
    const bool wild = input_files_is_pattern(component);
    for (size_t i = 0; i < from->count; i++) {
        lh_status_t status = LH_OK;
        const char *folder = from->paths[i];
        /* Names come from sys()->list in their order; what is no folder matches nothing. */
        if (wild) {
            match_t m = {.folder = folder, .pattern = component, .found = to};
            const int listed = sys()->list(folder, match_entry, &m);
            status = m.status;
            if (listed != 0 && status == LH_OK && !path_is_nothing(errno))
                status = fail_io(errno, "%s: cannot list", folder);
        } else {
            struct stat st;
            char *path = path_join(folder, component);
            if (path == NULL) return LH_NO_MEMORY;
            if (sys()->stat(path, &st) == 0)
                status = path_list_add(to, folder, component);
            else if (!path_is_nothing(errno))
                status = fail_io(errno, "%s: cannot stat", path);
            mem_free(path);
        }
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* All paths that a pattern names. It is cut up in place, component by component; found begins with
 * the folder that it is relative to, and is replaced by what each component leads to. */
static lh_status_t pattern_expand(const char *folder, char *pattern, path_list_t *found)
{
    lh_status_t status = path_list_add(found, pattern[0] == '/' ? "/" : folder, "");
    if (status != LH_OK) return status;

    char *rest = NULL;
    for (char *part = strtok_r(pattern, "/", &rest); part != NULL && status == LH_OK;
         part = strtok_r(NULL, "/", &rest)) {
        path_list_t next = {0};
        status = path_list_descend(found, part, &next);
        path_list_free(found);
        *found = next;
    }
    return status;
}

/* A list of files while it is being found. */
typedef struct input_finder {
    input_files_t *files;
    const job_outputs_t *own;
    /* Hash of a path to its place in the list: open addressing, place + 1; 0 is free. */
    uint32_t *slots;
    size_t slot_count; /* a power of two */
} input_finder_t;

/* The slot that holds the path, or the free one where it would go. */
static size_t input_finder_slot(const input_finder_t *f, const char *path)
{
    const size_t mask = f->slot_count - 1;
    size_t slot = (size_t)digest_xxh3(path, strlen(path)) & mask;
    while (f->slots[slot] != 0 && strcmp(f->files->paths[f->slots[slot] - 1], path) != 0)
        slot = (slot + 1) & mask;
    return slot;
}

/* Room for one more path: at least half of the slots stay free. */
static lh_status_t input_finder_reserve(input_finder_t *f)
{
    if (((size_t)f->files->count + 1) * 2 <= f->slot_count) return LH_OK;
    const size_t count = f->slot_count == 0 ? 64 : f->slot_count * 4;
    uint32_t *slots = mem_array(count, sizeof(*slots));
    if (slots == NULL) return LH_NO_MEMORY;
    mem_free(f->slots);
    f->slots = slots;
    f->slot_count = count;
    for (uint32_t i = 0; i < f->files->count; i++)
        f->slots[input_finder_slot(f, f->files->paths[i])] = i + 1;
    return LH_OK;
}

/* Adds one file. own is NULL for a path that was named without a pattern: such a one is taken as it
 * is. */
static lh_status_t input_files_add(input_finder_t *f, const char *path, const job_outputs_t *own)
{
    struct stat st;
    input_files_t *files = f->files;
    const lh_status_t status = input_finder_reserve(f);
    if (status != LH_OK) return status;
    const size_t slot = input_finder_slot(f, path);
    if (f->slots[slot] != 0) return fail(LH_INVALID, "input: %s is named twice", path);
    if (sys()->stat(path, &st) != 0) return fail_io(errno, "%s: cannot stat", path);
    /* A file of the job's own is known by what it is and not by its name. */
    const job_output_t *output = own == NULL ? NULL : job_outputs_at(own, &st);
    if (output != NULL && own->ran) return LH_OK;
    if (output != NULL)
        return fail(LH_INVALID, "[prepare] input: %s would be lost: %s writes over it", path,
                    output->by);
    if (!S_ISREG(st.st_mode)) return fail(LH_INVALID, "%s: not a regular file", path);

    const size_t count = files->count, wanted = count + 1;
    /* Three arrays of one length: each grows from the old capacity, and the new one counts once all
     * have. */
    if (wanted > files->capacity) {
        const size_t capacity = wanted * 2;
        size_t paths_room = files->capacity, bytes_room = paths_room, modified_room = paths_room;
        char **paths = mem_grow(files->paths, &paths_room, capacity, sizeof(*paths));
        if (paths == NULL) return LH_NO_MEMORY;
        files->paths = paths;
        uint64_t *bytes = mem_grow(files->bytes, &bytes_room, capacity, sizeof(*bytes));
        if (bytes == NULL) return LH_NO_MEMORY;
        files->bytes = bytes;
        uint64_t *modified = mem_grow(files->modified_ns, &modified_room, capacity, sizeof(*bytes));
        if (modified == NULL) return LH_NO_MEMORY;
        files->modified_ns = modified;
        files->capacity = capacity;
    }
    lh_assert(count < files->capacity);
    files->paths[count] = mem_text(path);
    if (files->paths[count] == NULL) return LH_NO_MEMORY;
    files->bytes[count] = (uint64_t)st.st_size;
    files->modified_ns[count] = (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                                (uint64_t)st.st_mtim.tv_nsec;
    f->slots[slot] = ++files->count;
    return LH_OK;
}

/* One part of the list. */
static lh_status_t add_pattern(input_finder_t *f, const char *folder, const char *pattern)
{
    const uint32_t before = f->files->count;
    const bool wild = input_files_is_pattern(pattern);
    path_list_t found = {0};
    char *copy = mem_text(pattern);
    lh_status_t status = copy == NULL ? LH_NO_MEMORY : pattern_expand(folder, copy, &found);
    for (size_t i = 0; i < found.count && status == LH_OK; i++)
        status = input_files_add(f, found.paths[i], wild ? f->own : NULL);
    if (status == LH_OK && f->files->count == before)
        status = fail(LH_INVALID, "input: no file matches '%s' in %s", pattern, folder);
    path_list_free(&found);
    mem_free(copy);
    return status;
}

/* The list is cut up in a copy. On failure nothing is left in *out. */
lh_status_t input_files_find(const char *folder, const char *list, const job_outputs_t *own,
                             input_files_t *out)
{
    *out = (input_files_t){0};
    input_finder_t finder = {.files = out, .own = own};
    char *copy = mem_text(list);
    if (copy == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    char *rest = NULL;
    for (char *part = strtok_r(copy, ",", &rest); part != NULL && status == LH_OK;
         part = strtok_r(NULL, ",", &rest)) {
        const char *pattern = text_trim(part);
        if (*pattern != '\0') status = add_pattern(&finder, folder, pattern);
    }
    if (status == LH_OK && out->count == 0) status = fail(LH_INVALID, "input: no file is named");
    mem_free(finder.slots);
    mem_free(copy);
    if (status != LH_OK) input_files_free(out);
    return status;
}

lh_status_t input_files_of(const job_t *job, input_files_t *out)
{
    job_outputs_t own;
    lh_status_t status = job_outputs_find(job, &own);
    if (status != LH_OK) return status;
    status = input_files_find(job->base, job->prepare.input, &own, out);
    job_outputs_free(&own);
    return status;
}

void input_files_free(input_files_t *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        mem_free(files->paths[i]);
    mem_free(files->paths);
    mem_free(files->bytes);
    mem_free(files->modified_ns);
    *files = (input_files_t){0};
}

/* Of one read, and the least that the buffer holds. */
enum { BLOCK_BYTES = 256 * 1024 };

/* One thread's, over many files, of which one is open. */
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

/* Reads one block behind what is unread, which moves to the front of the buffer first. Sets
 * source_ended where nothing came. */
static lh_status_t reader_fill(line_reader_t *r)
{
    lh_assert(r->source != NULL);
    lh_assert(r->begin <= r->searched && r->searched <= r->end && r->end <= r->capacity);
    /* What is unread is a part of a line, so little is moved. */
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

/* Opens the next file and passes over a byte order mark, for which three bytes must be there. */
static lh_status_t reader_begin_file(line_reader_t *r)
{
    lh_assert(r->source == NULL && r->file < r->path_count);
    lh_status_t status = byte_source_open(r->paths[r->file], r->window_bytes, &r->source);
    if (status != LH_OK) return status;
    r->begin = r->searched = r->end = 0;
    r->number = 0;
    r->source_ended = false;
    while (r->end < 3 && !r->source_ended) {
        status = reader_fill(r);
        if (status != LH_OK) return status;
    }
    if (r->end >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0) r->begin = r->searched = 3;
    return LH_OK;
}

/* Notes the size and digest of a file that was read to its end. */
static void reader_finish_file(line_reader_t *r)
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
        const lh_status_t status = reader_fill(r);
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
        const lh_status_t status = reader_fill(r);
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
    /* The last line of a file needs no newline. */
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

/* A line is handed out where it lies in the buffer, without a copy; the next call may move it. */
lh_status_t line_reader_next(line_reader_t *r, line_t *out, bool *end)
{
    while (r->file < r->path_count) {
        lh_status_t status = LH_OK;
        if (r->source == NULL) status = reader_begin_file(r);
        if (status != LH_OK) return status;

        bool found;
        status = next_in_file(r, out, &found);
        if (status != LH_OK) return status;
        if (found) {
            *end = false;
            return LH_OK;
        }
        reader_finish_file(r);
    }
    *end = true;
    return LH_OK;
}

/* Lines and the JSON reader, put together. */
struct input_texts {
    line_reader_t *reader;
    json_document_t *document; /* of the last line */
    const char *const *paths;
    const char *key;
    uint64_t line_bytes;
    uint32_t file;   /* of the last line: index into paths */
    uint64_t number; /* of the last line, from 1 in its file */
};

lh_status_t input_texts_open(const char *const *paths, uint32_t count, const char *key,
                             uint64_t line_bytes, uint64_t window_bytes, input_texts_t **out)
{
    input_texts_t *lines = mem_new(sizeof(*lines));
    if (lines == NULL) return LH_NO_MEMORY;
    *lines = (input_texts_t){.paths = paths, .key = key, .line_bytes = line_bytes};
    const lh_status_t status = line_reader_new(paths, count, line_bytes, window_bytes,
                                               &lines->reader);
    if (status != LH_OK) {
        mem_free(lines);
        return status;
    }
    *out = lines;
    return LH_OK;
}

void input_texts_close(input_texts_t *lines)
{
    if (lines == NULL) return;
    json_free(lines->document);
    line_reader_free(lines->reader);
    mem_free(lines);
}

lh_status_t input_texts_place(const input_texts_t *lines, lh_status_t status)
{
    if (status != LH_INVALID) return status;
    char *reason = mem_text(fail_reason());
    if (reason == NULL) return LH_NO_MEMORY;
    status = fail(LH_INVALID, "%s:%llu: %s", lines->paths[lines->file],
                  (unsigned long long)lines->number, reason);
    mem_free(reason);
    return status;
}

/* A line that is too long has no bytes to look at, so it can't be a blank one. */
lh_status_t input_texts_next_line(input_texts_t *lines, const char **bytes, size_t *length,
                                  bool *end)
{
    line_t line;
    do {
        const lh_status_t status = line_reader_next(lines->reader, &line, end);
        if (status != LH_OK || *end) return status;
    } while (!line.too_long && json_line_blank(line.bytes, line.length));

    lines->file = line.file;
    lines->number = line.number;
    *bytes = line.bytes;
    *length = line.length;
    if (!line.too_long) return LH_OK;
    return input_texts_place(
        lines, fail(LH_INVALID, "longer than %llu bytes", (unsigned long long)lines->line_bytes));
}

lh_status_t input_texts_next(input_texts_t *lines, const char **text, size_t *length, bool *end)
{
    const char *bytes;
    size_t size;
    const lh_status_t status = input_texts_next_line(lines, &bytes, &size, end);
    if (status != LH_OK || *end) return status;
    return input_texts_place(
        lines, json_line_text(bytes, size, lines->key, &lines->document, text, length));
}
