/* image.c - a plugin's file: who may have written it, its copy in a sealed memfd, its pinned digest.
 *
 * A path can lead to another file a moment after it was checked. So the file is opened once, looked
 * at through that descriptor, and copied to memory that nobody can change any more: what is hashed,
 * peeked at, tried in a child and loaded is that copy. It costs the file's size in memory a plugin. */
#include <plugin/image.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

static const char *image_type_text(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a FIFO";
    case S_IFLNK: return "a symbolic link";
    case S_IFSOCK: return "a socket";
    default: return "a device";
    }
}

/* Nobody but root and this user may own or write it: who can, can run code here. */
static lh_status_t image_check_stat(const char *path, const struct stat *st, mode_t type)
{
    const unsigned mode = st->st_mode & 07777;
    if ((st->st_mode & S_IFMT) != type)
        return fail(LH_INVALID, "%s: is %s, expected %s", path, image_type_text(st->st_mode),
                    image_type_text(type));
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return fail(LH_INVALID, "%s: belongs to user %u, expected root or user %u", path,
                    (unsigned)st->st_uid, (unsigned)geteuid());
    if ((mode & (S_IWGRP | S_IWOTH)) != 0)
        return fail(LH_INVALID,
                    "%s: %s can write it (mode %04o), expected only its owner: chmod go-w", path,
                    (mode & S_IWOTH) != 0 ? "everybody" : "its group", mode);
    return LH_OK;
}

/* O_NOFOLLOW: what a link points to may be changed by who owns the folder that it points into.
 * O_NONBLOCK: a FIFO would be waited for. */
static lh_status_t image_open_checked(const char *path, mode_t type, int *fd, struct stat *st)
{
    const int folder = type == S_IFDIR ? O_DIRECTORY : 0;
    const int got = sys()->open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | folder, 0);
    if (got < 0) {
        const int error = errno;
        if (sys()->lstat(path, st) == 0 && (st->st_mode & S_IFMT) != type)
            return image_check_stat(path, st, type);
        errno = error;
        return fail_io(errno, "%s: cannot open", path);
    }
    lh_status_t status = sys()->fstat(got, st) != 0 ? fail_io(errno, "%s: cannot stat", path)
                                                    : image_check_stat(path, st, type);
    if (status == LH_OK)
        *fd = got;
    else
        (void)sys()->close(got);
    return status;
}

static lh_status_t image_open_file(const char *path, uint64_t limit, int *fd, uint64_t *size)
{
    struct stat st = {0};
    int folder_fd;
    char *folder = path_folder(path);
    if (folder == NULL) return LH_NO_MEMORY;
    lh_status_t status = image_open_checked(folder, S_IFDIR, &folder_fd, &st);
    mem_free(folder);
    if (status != LH_OK) return status;
    (void)sys()->close(folder_fd);

    int got;
    status = image_open_checked(path, S_IFREG, &got, &st);
    if (status != LH_OK) return status;
    if (st.st_size <= 0 || (uint64_t)st.st_size > limit) {
        (void)sys()->close(got);
        return fail(LH_INVALID, "%s: has %lld bytes, expected 1 to %llu", path,
                    (long long)st.st_size, (unsigned long long)limit);
    }
    *fd = got;
    *size = (uint64_t)st.st_size;
    return LH_OK;
}

/* Through a buffer of a mebibyte: the file may lie where mmap and copy_file_range do not work. */
static lh_status_t image_copy_file(int from, const char *path, uint64_t size, int to)
{
    enum { PIECE = 1 << 20 };
    const size_t piece = size < PIECE ? (size_t)size : (size_t)PIECE;
    char *buffer = mem_new(piece);
    if (buffer == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    for (uint64_t at = 0; status == LH_OK && at < size; at += piece) {
        const size_t bytes = size - at < piece ? (size_t)(size - at) : piece;
        status = file_pread(from, path, buffer, bytes, at);
        if (status == LH_OK) status = file_write(to, path, buffer, bytes);
    }
    mem_free(buffer);
    return status;
}

static lh_status_t image_seal_and_map(image_t *image, const char *path, uint64_t size)
{
    char what[512];
    (void)snprintf(what, sizeof(what), "the copy of %s", path);
    const lh_status_t status = file_seal(image->fd, what);
    if (status != LH_OK) return status;
    void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, image->fd, 0);
    if (map == MAP_FAILED) return fail_io(errno, "%s: cannot map its copy", path);
    image->map = (peek_image_t){map, (size_t)size};
    return sha256_of(map, (size_t)size, image->sha256);
}

lh_status_t image_open(const char *path, const char *name, uint64_t limit, image_t *out)
{
    char label[48];
    image_t image = {.fd = -1};
    int from = -1;
    uint64_t size = 0;

    lh_status_t status = image_open_file(path, limit, &from, &size);
    if (status != LH_OK) return status;
    (void)snprintf(label, sizeof(label), "longhaul.%.31s", name);
    image.fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (image.fd < 0) {
        status = fail_io(errno, "%s: no memory file for its copy", path);
        goto close_file;
    }
    status = image_copy_file(from, path, size, image.fd);
    if (status == LH_OK) status = image_seal_and_map(&image, path, size);
    if (status == LH_OK)
        *out = image;
    else
        image_close(&image);

close_file:
    (void)sys()->close(from);
    return status;
}

void image_close(image_t *image)
{
    if (image->map.bytes != NULL)
        (void)munmap((void *)(uintptr_t)image->map.bytes, image->map.size);
    if (image->fd >= 0) (void)close(image->fd);
    *image = (image_t){.fd = -1};
}

static lh_status_t image_refuse_digest(const job_t *job, const char *path, const char *sha256,
                                       const job_pin_t *pin)
{
    char section[64], where[600]; /* a plugin's name has at most 31 bytes */
    (void)snprintf(section, sizeof(section), "plugin.%s", pin->name);
    const document_entry_t *e = document_entry(document_find(job->document, section), "sha256");
    document_where(e->file, e->line, where, sizeof(where));
    return fail(LH_INVALID, "%s: its SHA-256 is %s, but %s pins %s", path, sha256, where,
                pin->sha256);
}

lh_status_t image_check_pin(const job_t *job, const char *path, const char *name,
                            const char *sha256)
{
    for (uint32_t i = 0; job != NULL && i < job->pin_count; i++) {
        const job_pin_t *pin = &job->pins[i];
        if (pin->sha256 == NULL || strcmp(pin->name, name) != 0) continue;
        if (strcmp(pin->sha256, sha256) != 0) return image_refuse_digest(job, path, sha256, pin);
    }
    return LH_OK;
}
