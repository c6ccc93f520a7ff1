/* trust.c - owner, permissions and pinned digest of a plugin's file. */
#include <plugin/trust.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

static const char *type_text(mode_t mode)
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

static lh_status_t check_stat(const char *path, const struct stat *st, mode_t type)
{
    const unsigned mode = st->st_mode & 07777;
    if ((st->st_mode & S_IFMT) != type)
        return fail(LH_INVALID, "%s: is %s, expected %s", path, type_text(st->st_mode),
                    type_text(type));
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
static lh_status_t open_checked(const char *path, mode_t type, int *fd, struct stat *st)
{
    const int folder = type == S_IFDIR ? O_DIRECTORY : 0;
    const int got = sys()->open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | folder, 0);
    if (got < 0) {
        const int error = errno;
        if (sys()->lstat(path, st) == 0 && (st->st_mode & S_IFMT) != type)
            return check_stat(path, st, type);
        errno = error;
        return fail(LH_IO, "%s: cannot open", path);
    }
    lh_status_t status = sys()->fstat(got, st) != 0 ? fail(LH_IO, "%s: cannot stat", path)
                                                    : check_stat(path, st, type);
    if (status == LH_OK)
        *fd = got;
    else
        (void)sys()->close(got);
    return status;
}

lh_status_t trust_open(const char *path, uint64_t limit, int *fd, uint64_t *size)
{
    struct stat st;
    int folder_fd;
    char *folder = path_folder(path);
    if (folder == NULL) return LH_NO_MEMORY;
    lh_status_t status = open_checked(folder, S_IFDIR, &folder_fd, &st);
    mem_free(folder);
    if (status != LH_OK) return status;
    (void)sys()->close(folder_fd);

    int got;
    status = open_checked(path, S_IFREG, &got, &st);
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

static lh_status_t refuse_digest(const job_t *job, const char *path, const char *sha256,
                                 const job_pin_t *pin)
{
    char section[64], where[600]; /* a plugin's name has at most 31 bytes */
    (void)snprintf(section, sizeof(section), "plugin.%s", pin->name);
    const document_entry_t *e = section_find(document_find(job->document, section), "sha256");
    document_where(e->file, e->line, where, sizeof(where));
    return fail(LH_INVALID, "%s: its SHA-256 is %s, but %s pins %s", path, sha256, where,
                pin->sha256);
}

lh_status_t trust_pin(const job_t *job, const char *path, const char *name, const char *sha256)
{
    for (uint32_t i = 0; job != NULL && i < job->pin_count; i++) {
        const job_pin_t *pin = &job->pins[i];
        if (pin->sha256 == NULL || strcmp(pin->name, name) != 0) continue;
        if (strcmp(pin->sha256, sha256) != 0) return refuse_digest(job, path, sha256, pin);
    }
    return LH_OK;
}
