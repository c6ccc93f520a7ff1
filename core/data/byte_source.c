/* byte_source.c - streaming decompression behind one read call.
 *
 * A source is one buffer of input and a kind of file. The kind's step moves bytes from the input to
 * the caller's memory as far as both allow; the loop around it refills the input and tells the end
 * of the file from one that was cut off. Both libraries get their memory from us, so that it is
 * counted and tests can let it fail.
 *
 * Invariant: input[at, end) is what has been read from the file and not used; taken counts all
 * bytes read, used or not, and is what messages give as the place of damage. */
#include <data/byte_source.h>

#include <errno.h>
#include <zlib.h>
#define ZSTD_STATIC_LINKING_ONLY /* its allocator */
#include <zstd.h>
#include <zstd_errors.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>

/* zlib: the largest window, and 16 for gzip's header instead of its own. */
enum { INPUT_BYTES = 256 * 1024, ZLIB_WINDOW_GZIP = 15 + 16, MAGIC_MOST = 4 };

/* Moves bytes from input to output as far as both allow. Sets *took and *made. */
typedef lh_status_t (*step_t)(byte_source_t *s, void *to, size_t room, size_t *took, size_t *made);

/* A form of file, told by its first bytes. A name that ends in suffix promises it. */
typedef struct source_kind {
    const char *name, *suffix;
    unsigned char magic[MAGIC_MOST];
    size_t magic_bytes;
    unsigned char first_mask; /* bits of the first byte that count */
    step_t step;
} source_kind_t;

/* One open file, for one thread. */
struct byte_source {
    char *path;
    uint64_t window_bytes;
    int fd;
    const source_kind_t *kind;
    /* bytes read from the file */
    uint64_t taken;
    digest_t *digest;
    unsigned char *input; /* [INPUT_BYTES] */
    size_t at, end;       /* what of input is still to be used */
    bool file_ended;
    bool inside; /* of a compressed stream that has not ended */
    z_stream zlib;
    bool zlib_made;
    ZSTD_DCtx *zstd;
};

/* zlib's and zstd's calls for memory. */
static void *zlib_new(void *context, unsigned count, unsigned size)
{
    (void)context;
    return mem_array(count, size);
}

static void foreign_free(void *context, void *memory)
{
    (void)context;
    mem_free(memory);
}

static void *zstd_new(void *context, size_t size)
{
    (void)context;
    return mem_lend(size);
}

/* A file as it is. */
static lh_status_t plain_step(byte_source_t *s, void *to, size_t room, size_t *took, size_t *made)
{
    const size_t left = s->end - s->at, bytes = left < room ? left : room;
    memcpy(to, s->input + s->at, bytes);
    *took = *made = bytes;
    return LH_OK;
}

/* Begins the first member of a file, or the next one behind it. */
static lh_status_t gzip_start(byte_source_t *s)
{
    if (s->zlib_made) return inflateReset(&s->zlib) == Z_OK ? LH_OK : LH_INVALID;

    s->zlib.zalloc = zlib_new;
    s->zlib.zfree = foreign_free;
    if (inflateInit2(&s->zlib, ZLIB_WINDOW_GZIP) != Z_OK)
        return fail(LH_NO_MEMORY, "out of memory: %s: gzip", s->path);
    s->zlib_made = true;
    return LH_OK;
}

/* Zeros behind a member are padding, as for gzip: of a tape's or a device's blocks. */
static size_t gzip_padding(const byte_source_t *s)
{
    size_t at = s->at;
    while (s->zlib_made && at < s->end && s->input[at] == 0)
        at++;
    return at - s->at;
}

/* Between two members, padding is passed over and the next one begun; inside of one, zlib goes
 * on. */
static lh_status_t gzip_step(byte_source_t *s, void *to, size_t room, size_t *took, size_t *made)
{
    const size_t left = s->end - s->at;
    if (!s->inside) {
        *took = gzip_padding(s);
        if (left == 0 || *took > 0) return LH_OK;
        const lh_status_t status = gzip_start(s);
        if (status != LH_OK) return status;
        s->inside = true;
    }
    /* zlib counts in 32 bits. */
    if (room > UINT32_MAX) room = UINT32_MAX;
    s->zlib.next_in = s->input + s->at;
    s->zlib.avail_in = (unsigned)left;
    s->zlib.next_out = to;
    s->zlib.avail_out = (unsigned)room;

    const int result = inflate(&s->zlib, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR) return fail(LH_NO_MEMORY, "out of memory: %s: gzip", s->path);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return fail(LH_CORRUPT, "%s: damaged gzip data before byte %llu: %s", s->path,
                    (unsigned long long)s->taken, s->zlib.msg == NULL ? "?" : s->zlib.msg);
    if (result == Z_STREAM_END) s->inside = false;
    *took = left - s->zlib.avail_in;
    *made = room - s->zlib.avail_out;
    return LH_OK;
}

/* The window is bounded before a frame is looked at: its header may ask for gigabytes. */
static lh_status_t zstd_start(byte_source_t *s)
{
    const ZSTD_customMem memory = {zstd_new, foreign_free, NULL};
    s->zstd = ZSTD_createDCtx_advanced(memory);
    if (s->zstd == NULL) return fail(LH_NO_MEMORY, "out of memory: %s: zstd", s->path);
    if (ZSTD_isError(ZSTD_DCtx_setMaxWindowSize(s->zstd, (size_t)s->window_bytes)) != 0)
        return fail(LH_INVALID, "%s: a zstd window of %llu bytes", s->path,
                    (unsigned long long)s->window_bytes);
    return LH_OK;
}

/* zstd goes from frame to frame by itself. It may hold output back without any input left, so it is
 * called inside of a frame even then. */
static lh_status_t zstd_step(byte_source_t *s, void *to, size_t room, size_t *took, size_t *made)
{
    if (s->zstd == NULL) {
        const lh_status_t status = zstd_start(s);
        if (status != LH_OK) return status;
    }
    ZSTD_inBuffer in = {s->input + s->at, s->end - s->at, 0};
    ZSTD_outBuffer out = {to, room, 0};
    if (in.size == 0 && !s->inside) return LH_OK;
    const size_t result = ZSTD_decompressStream(s->zstd, &out, &in);
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation)
        return fail(LH_NO_MEMORY, "out of memory: %s: zstd", s->path);
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
        return fail(LH_INVALID,
                    "%s: zstd data with a window of more than %llu bytes, [limits] window_bytes",
                    s->path, (unsigned long long)s->window_bytes);
    if (ZSTD_isError(result) != 0)
        return fail(LH_CORRUPT, "%s: damaged zstd data before byte %llu: %s", s->path,
                    (unsigned long long)s->taken, ZSTD_getErrorName(result));
    /* 0: a frame has ended and all of it was given out. */
    s->inside = result != 0;
    *took = in.pos;
    *made = out.pos;
    return LH_OK;
}

/* From the most particular to plain, which every file is. */
static const source_kind_t kinds[] = {
    {"gzip", ".gz", {0x1f, 0x8b}, 2, 0xff, gzip_step},
    {"zstd", ".zst", {0x28, 0xb5, 0x2f, 0xfd}, 4, 0xff, zstd_step},
    /* A frame to skip comes first, as pzstd writes it. */
    {"zstd", ".zst", {0x50, 0x2a, 0x4d, 0x18}, 4, 0xf0, zstd_step},
    {"plain", "", {0}, 0, 0, plain_step},
};

/* At least a magic number's bytes, if the file has them: a read may give fewer than were asked for.
 */
static lh_status_t source_refill(byte_source_t *s)
{
    s->at = s->end = 0;
    while (!s->file_ended && s->end < MAGIC_MOST) {
        const ssize_t got = sys()->read(s->fd, s->input + s->end, INPUT_BYTES - s->end);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return fail_io(errno, "%s: cannot read at byte %llu", s->path,
                           (unsigned long long)s->taken);
        s->file_ended = got == 0;
        s->end += (size_t)got;
    }
    s->taken += s->end;
    digest_add(s->digest, s->input, s->end);
    return LH_OK;
}

/* Looks at the first refill of the input. */
static bool has_magic(const byte_source_t *s, const source_kind_t *k)
{
    return k->magic_bytes == 0 ||
           (s->end >= k->magic_bytes && (s->input[0] & k->first_mask) == k->magic[0] &&
            memcmp(s->input + 1, k->magic + 1, k->magic_bytes - 1) == 0);
}

/* Sets s->kind. No magic can begin a JSON line, so content decides and a name can only contradict
 * it: the loop goes from the last kind to the first, and the last match is the most particular
 * one. */
static lh_status_t tell_kind(byte_source_t *s)
{
    const size_t count = sizeof(kinds) / sizeof(kinds[0]);
    const source_kind_t *named = &kinds[count - 1];
    for (size_t i = count; i-- > 0;) {
        const source_kind_t *k = &kinds[i];
        if (has_magic(s, k)) s->kind = k;
        if (k->magic_bytes > 0 && text_ends(s->path, k->suffix)) named = k;
    }
    if (named->magic_bytes > 0 && s->kind->step != named->step)
        return fail(LH_INVALID, "%s: the name ends in %s, but the content is not %s", s->path,
                    named->suffix, named->name);
    return LH_OK;
}

/* The first block is read here, as it tells the kind. */
lh_status_t byte_source_open(const char *path, uint64_t window_bytes, byte_source_t **out)
{
    byte_source_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->fd = -1;
    s->window_bytes = window_bytes;

    lh_status_t status = LH_NO_MEMORY;
    s->path = mem_text(path);
    s->input = mem_new(INPUT_BYTES);
    if (s->path == NULL || s->input == NULL) goto close_source;
    status = digest_new(&s->digest);
    if (status != LH_OK) goto close_source;
    status = file_open(path, &s->fd, NULL);
    if (status != LH_OK) goto close_source;
    status = source_refill(s);
    if (status != LH_OK) goto close_source;
    status = tell_kind(s);
    if (status != LH_OK) goto close_source;
    *out = s;
    return LH_OK;

close_source:
    byte_source_close(s);
    return status;
}

void byte_source_close(byte_source_t *s)
{
    if (s == NULL) return;
    char unused[SHA256_TEXT];
    if (s->digest != NULL) digest_end(s->digest, unused);
    if (s->zlib_made) (void)inflateEnd(&s->zlib);
    (void)ZSTD_freeDCtx(s->zstd);
    if (s->fd >= 0) (void)sys()->close(s->fd);
    mem_free(s->input);
    mem_free(s->path);
    mem_free(s);
}

/* A step may take input without making output, as headers and padding do, or make output without
 * taking input; only where it does neither is more input needed. */
lh_status_t byte_source_read(byte_source_t *s, void *to, size_t room, size_t *got)
{
    lh_assert(room > 0);
    for (;;) {
        size_t took = 0, made = 0;
        lh_status_t status = s->kind->step(s, to, room, &took, &made);
        if (status != LH_OK) return status;
        lh_assert(took <= s->end - s->at && made <= room);
        s->at += took;
        if (made > 0) {
            *got = made;
            return LH_OK;
        }
        if (took > 0 || s->at < s->end) continue;

        status = source_refill(s);
        if (status != LH_OK) return status;
        if (s->end > 0) continue;
        /* The end of the file inside of a stream is damage, not an end. */
        if (s->inside)
            return fail(LH_CORRUPT, "%s: ends at byte %llu inside a %s stream", s->path,
                        (unsigned long long)s->taken, s->kind->name);
        *got = 0;
        return LH_OK;
    }
}

uint64_t byte_source_taken(const byte_source_t *s)
{
    return s->taken;
}

/* A digest that nobody asks for is ended by byte_source_close. */
void byte_source_digest(byte_source_t *s, char out[SHA256_TEXT])
{
    lh_assert(s->digest != NULL);
    digest_end(s->digest, out);
    s->digest = NULL;
}
