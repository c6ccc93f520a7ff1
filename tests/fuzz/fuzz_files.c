/* fuzz_files.c - a few read-only files in memory behind the seam, so that a parser that opens paths
 * is fed a million inputs without a disk. */
#include <fuzz/fuzz.h>

#include <errno.h>
#include <string.h>

#include <base/sys.h>

enum { FILES = 16, OPEN = 32, FIRST_FD = 1 << 20 };
static const char root[] = "/fuzz/";

static struct {
    char path[64];
    const char *bytes;
    size_t size;
} files[FILES];
static size_t file_count, most;

static struct {
    int file; /* index + 1; 0: free */
    size_t at;
} opened[OPEN];

static sys_t table;

static int find(const char *path)
{
    for (size_t i = 0; i < file_count; i++)
        if (strcmp(files[i].path, path) == 0) return (int)i;
    return -1;
}

/* A folder of what is registered, or the root itself. */
static int is_folder(const char *path)
{
    const size_t length = strlen(path);
    for (size_t i = 0; i < file_count; i++)
        if (strncmp(files[i].path, path, length) == 0 &&
            (files[i].path[length] == '/' || path[length - 1] == '/'))
            return 1;
    return 0;
}

static int ours(const char *path)
{
    return strncmp(path, root, sizeof(root) - 1) == 0;
}

static int fuzz_open(const char *path, int flags, mode_t mode)
{
    if (!ours(path)) return sys_real.open(path, flags, mode);
    const int file = find(path);
    errno = file < 0 ? ENOENT : EMFILE;
    if (file < 0) return -1;
    for (int i = 0; i < OPEN; i++) {
        if (opened[i].file != 0) continue;
        opened[i].file = file + 1;
        opened[i].at = 0;
        return FIRST_FD + i;
    }
    return -1;
}

static int fuzz_close(int fd)
{
    if (fd < FIRST_FD) return sys_real.close(fd);
    FUZZ_ASSERT(opened[fd - FIRST_FD].file != 0);
    opened[fd - FIRST_FD].file = 0;
    return 0;
}

static ssize_t fuzz_pread(int fd, void *to, size_t bytes, off_t offset)
{
    if (fd < FIRST_FD) return sys_real.pread(fd, to, bytes, offset);
    const int file = opened[fd - FIRST_FD].file - 1;
    FUZZ_ASSERT(file >= 0);
    const size_t size = files[file].size, at = (size_t)offset;
    if (offset < 0 || at >= size) return 0;
    const size_t left = size - at, count = bytes < left ? bytes : left;
    memcpy(to, files[file].bytes + at, count);
    return (ssize_t)count;
}

static ssize_t fuzz_read(int fd, void *to, size_t bytes)
{
    if (fd < FIRST_FD) return sys_real.read(fd, to, bytes);
    if (most != 0 && bytes > most) bytes = most;
    const ssize_t got = fuzz_pread(fd, to, bytes, (off_t)opened[fd - FIRST_FD].at);
    opened[fd - FIRST_FD].at += (size_t)got;
    return got;
}

static void describe(int file, struct stat *out)
{
    *out = (struct stat){.st_mode = file < 0 ? S_IFDIR | 0755 : S_IFREG | 0644,
                         .st_ino = (ino_t)(file + 2),
                         .st_nlink = 1};
    if (file >= 0) out->st_size = (off_t)files[file].size;
}

static int fuzz_fstat(int fd, struct stat *out)
{
    if (fd < FIRST_FD) return sys_real.fstat(fd, out);
    FUZZ_ASSERT(opened[fd - FIRST_FD].file != 0);
    describe(opened[fd - FIRST_FD].file - 1, out);
    return 0;
}

static int fuzz_stat(const char *path, struct stat *out)
{
    if (!ours(path)) return sys_real.stat(path, out);
    const int file = find(path);
    errno = ENOENT;
    if (file < 0 && !is_folder(path)) return -1;
    describe(file, out);
    return 0;
}

void fuzz_file(const char *path, const void *bytes, size_t size)
{
    FUZZ_ASSERT(ours(path) && strlen(path) < sizeof(files[0].path));
    const int known = find(path);
    const size_t at = known < 0 ? file_count++ : (size_t)known;
    FUZZ_ASSERT(at < FILES);
    (void)snprintf(files[at].path, sizeof(files[at].path), "%s", path);
    files[at].bytes = bytes;
    files[at].size = size;

    table = sys_real;
    table.open = fuzz_open;
    table.close = fuzz_close;
    table.read = fuzz_read;
    table.pread = fuzz_pread;
    table.fstat = fuzz_fstat;
    table.stat = fuzz_stat;
    table.lstat = fuzz_stat;
    sys_use(&table);
}

void fuzz_files_clear(void)
{
    for (int i = 0; i < OPEN; i++)
        FUZZ_ASSERT(opened[i].file == 0);
    file_count = 0;
    most = 0;
}

void fuzz_read_at_most(size_t bytes)
{
    most = bytes;
}

void fuzz_cut(const uint8_t *bytes, size_t size, char mark, fuzz_part_t *parts, size_t count)
{
    const char *at = (const char *)bytes, *end = at + size;
    for (size_t i = 0; i < count; i++) {
        const char *stop = i + 1 < count && at < end ? memchr(at, mark, (size_t)(end - at)) : NULL;
        const size_t length = (size_t)((stop == NULL ? end : stop) - at);
        parts[i].bytes = malloc(length + 1);
        FUZZ_ASSERT(parts[i].bytes != NULL);
        if (length > 0) memcpy(parts[i].bytes, at, length);
        parts[i].bytes[length] = '\0';
        parts[i].size = length;
        at = stop == NULL ? end : stop + 1;
    }
}

void fuzz_parts_free(fuzz_part_t *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(parts[i].bytes);
}
