/* file.c - whole reads and writes, replaced files, folders, paths, and files that grow by records.
 *
 * All calls of the system go through sys(), so that a test can make each of them fail in turn, but
 * for sealing a memfd and asking for the working folder. A path is opened without following what
 * may block: O_NONBLOCK, as the open of a FIFO waits for a writer, and then fstat, as a name can
 * lead to anything. */
#include <base/file.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>

/* Takes over the descriptor got: hands it on as *fd where it is a regular file's, else closes
 * it. */
static lh_status_t give_regular(const char *path, int got, int *fd, struct stat *st)
{
    lh_status_t status = LH_OK;
    if (sys()->fstat(got, st) != 0)
        status = fail_io(errno, "%s: cannot stat", path);
    else if (!S_ISREG(st->st_mode))
        status = fail(LH_INVALID, "%s: not a regular file", path);
    if (status == LH_OK)
        *fd = got;
    else
        (void)sys()->close(got);
    return status;
}

/* For reading; flags: O_NOFOLLOW or 0. The kernel says ELOOP for a link at the path's end. */
static lh_status_t open_with(const char *path, int flags, int *fd, uint64_t *size)
{
    const int got = sys_open(path, O_RDONLY | O_NONBLOCK | flags, 0);
    if (got < 0 && errno == ELOOP && (flags & O_NOFOLLOW) != 0)
        return fail(LH_INVALID, "%s: a symbolic link, a regular file was expected", path);
    if (got < 0) return fail_io(errno, "%s: cannot open", path);

    struct stat st;
    const lh_status_t status = give_regular(path, got, fd, &st);
    if (status == LH_OK && size != NULL) *size = (uint64_t)st.st_size;
    return status;
}

lh_status_t file_open(const char *path, int *fd, uint64_t *size)
{
    return open_with(path, 0, fd, size);
}

lh_status_t file_open_plain(const char *path, int *fd, uint64_t *size)
{
    return open_with(path, O_NOFOLLOW, fd, size);
}

/* The sentence of a file that ends too early, with its length: the place at which a read found
 * nothing may lie far behind that. */
static lh_status_t fail_short(int fd, const char *path, uint64_t wanted)
{
    struct stat st;
    if (sys()->fstat(fd, &st) != 0) return fail_io(errno, "%s: cannot stat", path);
    return fail(LH_CORRUPT, "%s: has %llu bytes, at least %llu are expected", path,
                (unsigned long long)st.st_size, (unsigned long long)wanted);
}

lh_status_t file_pread(int fd, const char *path, void *to, size_t bytes, uint64_t offset)
{
    char *at = to;
    while (bytes > 0) {
        const ssize_t got = sys()->pread(fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return fail_io(errno, "%s: cannot read %zu bytes at %llu", path, bytes,
                           (unsigned long long)offset);
        if (got == 0) return fail_short(fd, path, offset + bytes);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return LH_OK;
}

lh_status_t file_pwrite(int fd, const char *path, const void *from, size_t bytes, uint64_t offset)
{
    const char *at = from;
    while (bytes > 0) {
        const ssize_t got = sys()->pwrite(fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return fail_io(errno, "%s: cannot write %zu bytes at %llu", path, bytes,
                           (unsigned long long)offset);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return LH_OK;
}

lh_status_t file_write(int fd, const char *path, const void *from, size_t bytes)
{
    const char *at = from;
    while (bytes > 0) {
        const ssize_t got = sys()->write(fd, at, bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_io(errno, "%s: cannot write %zu bytes", path, bytes);
        at += got;
        bytes -= (size_t)got;
    }
    return LH_OK;
}

/* A line that failed while it was printed has set the stream's error flag; errno is another call's
 * by then, so the sentence names an error only where the flush itself fails. */
lh_status_t file_finish_stdout(void)
{
    if (fflush(stdout) != 0) return fail_io(errno, "cannot write to stdout");
    return ferror(stdout) ? fail_io(0, "cannot write to stdout") : LH_OK;
}

/* Files of /proc say that they are empty, whatever a read of them gives: to take one for an empty
 * file would be wrong without a word. */
static lh_status_t check_empty(int fd, const char *path)
{
    char byte;
    if (sys()->pread(fd, &byte, 1, 0) == 0) return LH_OK;
    return fail(LH_INVALID, "%s: not a regular file: its size is 0, and yet it is not empty", path);
}

static lh_status_t read_with(const char *path, int flags, uint64_t limit, char **out,
                             size_t *length)
{
    int fd;
    uint64_t size = 0;
    lh_status_t status = open_with(path, flags, &fd, &size);
    if (status != LH_OK) return status;

    char *data = NULL;
    if (size > limit) {
        status = fail(LH_INVALID, "%s: %llu bytes, at most %llu are allowed", path,
                      (unsigned long long)size, (unsigned long long)limit);
        goto close_fd;
    }
    if (size == 0) status = check_empty(fd, path);
    if (status != LH_OK) goto close_fd;
    data = mem_new((size_t)size + 1);
    if (data == NULL) {
        status = LH_NO_MEMORY;
        goto close_fd;
    }
    status = file_pread(fd, path, data, (size_t)size, 0);
    if (status != LH_OK) goto free_data;

    (void)sys()->close(fd);
    *out = data;
    *length = (size_t)size;
    return LH_OK;

free_data:
    mem_free(data);
close_fd:
    (void)sys()->close(fd);
    return status;
}

lh_status_t file_read(const char *path, uint64_t limit, char **out, size_t *length)
{
    return read_with(path, 0, limit, out, length);
}

lh_status_t file_read_plain(const char *path, uint64_t limit, char **out, size_t *length)
{
    return read_with(path, O_NOFOLLOW, limit, out, length);
}

lh_status_t file_digest(const char *path, char out[SHA256_TEXT])
{
    enum { BLOCK = 1 << 20 };
    int fd;
    uint64_t size;
    digest_t *d;
    lh_status_t status = file_open(path, &fd, &size);
    if (status != LH_OK) return status;

    char *block = mem_new(BLOCK);
    if (block == NULL) {
        status = LH_NO_MEMORY;
        goto close_fd;
    }
    status = digest_new(&d);
    if (status != LH_OK) goto free_block;
    /* The size is the one at the beginning: a file that shrinks meanwhile fails file_pread, one
     * that grows is read up to there. */
    for (uint64_t at = 0; at < size && status == LH_OK; at += BLOCK) {
        const size_t part = size - at < BLOCK ? (size_t)(size - at) : (size_t)BLOCK;
        status = file_pread(fd, path, block, part, at);
        if (status == LH_OK) digest_add(d, block, part);
    }
    digest_end(d, out); /* after a failure, too: it frees the context */

free_block:
    mem_free(block);
close_fd:
    (void)sys()->close(fd);
    return status;
}

bool file_exists(const char *path)
{
    struct stat st;
    return sys()->stat(path, &st) == 0;
}

/* A rename is on disk only when the folder is. */
lh_status_t folder_sync(const char *path)
{
    const int fd = sys_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fail_io(errno, "%s: cannot open the folder", path);

    lh_status_t status = LH_OK;
    if (sys_fsync(fd) != 0) status = fail_io(errno, "%s: cannot sync the folder", path);
    if (sys()->close(fd) != 0 && status == LH_OK) status = fail_io(errno, "%s: cannot close", path);
    return status;
}

/* O_NOFOLLOW: a link that a stranger put at the path of a log would have this program write
 * elsewhere. */
static lh_status_t regular_create(const char *path, int flags, int *fd)
{
    const int got = sys_open(path, O_CREAT | O_NOFOLLOW | O_NONBLOCK | flags, 0644);
    if (got < 0) return fail_io(errno, "%s: cannot create", path);

    struct stat st;
    return give_regular(path, got, fd, &st);
}

lh_status_t file_begin(const char *path, int flags, int *fd)
{
    return regular_create(path, ((flags & O_RDWR) != 0 ? 0 : O_WRONLY) | flags, fd);
}

static bool is_same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool file_is(int fd, const char *path)
{
    struct stat named, held;
    return sys()->lstat(path, &named) == 0 && sys()->fstat(fd, &held) == 0 &&
           is_same_inode(&named, &held);
}

bool file_same(const char *a, const char *b)
{
    struct stat x, y;
    return sys()->stat(a, &x) == 0 && sys()->stat(b, &y) == 0 && is_same_inode(&x, &y);
}

/* One try. LH_AGAIN: the path leads to another file than the one that was opened and locked, as
 * whoever had it before has renamed or removed it, or this function has taken the name from a file
 * of two names. */
static lh_status_t file_take_once(const char *path, int *fd)
{
    int got;
    struct stat st;
    lh_status_t status = regular_create(path, O_RDWR, &got);
    if (status != LH_OK) return status;
    lh_assert(got >= 0);
    if (sys()->lock(got) != 0 && errno == EWOULDBLOCK)
        status = fail(LH_INVALID, "%s: another process writes it", path);
    else if (!file_is(got, path))
        status = LH_AGAIN;
    else if (sys()->fstat(got, &st) != 0)
        status = fail_io(errno, "%s: cannot stat", path);
    else if (st.st_nlink > 1) /* emptying it would empty what its other name stands for */
        status = sys()->unlink(path) == 0 ? LH_AGAIN : fail_io(errno, "%s: cannot remove", path);
    else if (sys_ftruncate(got, 0) != 0)
        status = fail_io(errno, "%s: cannot empty it", path);
    if (status == LH_OK)
        *fd = got;
    else
        (void)sys()->close(got);
    return status;
}

/* Each try that fails means that somebody else got on in between, so a hundred of them are many. */
lh_status_t file_take(const char *path, int *fd)
{
    enum { TRIES = 100 };
    lh_status_t status = LH_AGAIN;
    for (int i = 0; i < TRIES && status == LH_AGAIN; i++)
        status = file_take_once(path, fd);
    return status == LH_AGAIN ? fail_io(errno, "%s: cannot lock", path) : status;
}

/* A new file with these bytes, where it is `synced` on disk when it returns LH_OK; otherwise there is
 * none. */
static lh_status_t write_whole(const char *path, const void *bytes, size_t length, bool synced)
{
    int fd;
    lh_status_t status = file_begin(path, O_EXCL, &fd);
    if (status != LH_OK) {
        (void)sys()->unlink(path); /* nobody else has this name */
        return status;
    }
    status = file_write(fd, path, bytes, length);
    if (status == LH_OK && synced && sys_fsync(fd) != 0)
        status = fail_io(errno, "%s: cannot sync", path);
    if (sys()->close(fd) != 0 && status == LH_OK) status = fail_io(errno, "%s: cannot close", path);
    if (status != LH_OK) (void)sys()->unlink(path);
    return status;
}

/* The temporary name beside a path. Several processes may replace one file at the same time, so
 * each takes a name of its own; it lies in the same folder, as rename does not cross file
 * systems. */
static lh_status_t temporary_beside(const char *path, char **out)
{
    uint32_t random;
    if (sys()->random(&random, sizeof(random)) != 0)
        return fail_io(errno, "%s: no random bytes for a name", path);
    const size_t room = strlen(path) + sizeof(".tmp-") + 2 * sizeof(random);
    char *name = mem_new(room);
    if (name == NULL) return LH_NO_MEMORY;
    (void)snprintf(name, room, "%s.tmp-%08x", path, random);
    *out = name;
    return LH_OK;
}

static lh_status_t write_beside(const char *path, const void *bytes, size_t length, bool synced)
{
    char *temporary = NULL;
    lh_status_t status = temporary_beside(path, &temporary);
    if (status != LH_OK) return status;
    status = write_whole(temporary, bytes, length, synced);
    if (status == LH_OK && sys_rename(temporary, path) != 0) {
        status = fail_io(errno, "%s: cannot rename %s to it", path, temporary);
        (void)sys()->unlink(temporary);
    }
    mem_free(temporary);
    return status;
}

lh_status_t file_show(const char *path, const void *bytes, size_t length)
{
    return write_beside(path, bytes, length, true);
}

lh_status_t file_renew(const char *path, const void *bytes, size_t length)
{
    return write_beside(path, bytes, length, false);
}

lh_status_t file_replace(const char *path, const void *bytes, size_t length)
{
    char *folder = path_folder(path);
    if (folder == NULL) return LH_NO_MEMORY;
    lh_status_t status = file_show(path, bytes, length);
    if (status == LH_OK) status = folder_sync(folder);
    mem_free(folder);
    return status;
}

/* From the root down, each part of the path by its own mkdir: to look first would race with others
 * who make the same folders. `last` tells the end of the copy from the slashes that are put
 * back. */
lh_status_t folder_make(const char *path)
{
    char *copy = mem_text(path);
    if (copy == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    for (char *at = copy + 1; status == LH_OK && *copy != '\0'; at++) {
        if (*at != '/' && *at != '\0') continue;
        const bool last = *at == '\0';
        *at = '\0';
        struct stat st;
        if (sys()->mkdir(copy, 0755) != 0 && errno != EEXIST)
            status = fail_io(errno, "%s: cannot make the folder", copy);
        else if (sys()->stat(copy, &st) != 0)
            status = fail_io(errno, "%s: cannot stat", copy);
        else if (!S_ISDIR(st.st_mode))
            status = fail(LH_INVALID, "%s: not a folder", copy);
        if (last) break;
        *at = '/';
    }
    mem_free(copy);
    return status;
}

uint32_t folders_missing(const char *path)
{
    uint32_t count = 0;
    char *at = mem_text(path);
    while (at != NULL && strcmp(at, "/") != 0 && strcmp(at, ".") != 0 && !file_exists(at)) {
        char *above = path_folder(at);
        mem_free(at);
        at = above;
        count++;
    }
    count = at == NULL ? 0 : count;
    mem_free(at);
    return count;
}

void folders_unmake(const char *path, uint32_t count)
{
    char *at = mem_text(path);
    while (at != NULL && count > 0) {
        char *above = path_folder(at);
        count = sys()->rmdir(at) == 0 ? count - 1 : 0;
        mem_free(at);
        at = above;
    }
    mem_free(at);
}

/* For sys()->list: context is the folder's path. */
static int remove_entry(void *context, const char *name)
{
    char *path = path_join(context, name);
    if (path == NULL) return -1;

    struct stat st;
    int result = sys()->lstat(path, &st);
    if (result == 0 && S_ISDIR(st.st_mode))
        result = folder_remove(path) == LH_OK ? 0 : -1;
    else if (result == 0)
        result = sys()->unlink(path);
    mem_free(path);
    return result;
}

lh_status_t folder_remove(const char *path)
{
    struct stat st;
    if (sys()->lstat(path, &st) != 0)
        return errno == ENOENT ? LH_OK : fail_io(errno, "%s: cannot stat", path);
    if (S_ISLNK(st.st_mode))
        return sys()->unlink(path) == 0 ? LH_OK
                                        : fail_io(errno, "%s: cannot remove the link", path);

    char *copy = mem_text(path);
    if (copy == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    if (sys()->list(path, remove_entry, copy) != 0 || sys()->rmdir(path) != 0)
        status = fail_io(errno, "%s: cannot remove the folder", path);
    mem_free(copy);
    return status;
}

/* Goes up from `below` by ".." and compares inodes, so that links and mounts count as the system
 * sees them; texts of paths would have to be resolved first, which races. The root is its own
 * "..". */
bool folder_holds(const char *above, const char *below)
{
    struct stat wanted, st, last = {0};
    char path[PATH_MAX];
    size_t length = strlen(below);
    if (sys()->stat(above, &wanted) != 0 || length >= sizeof(path)) return false;
    memcpy(path, below, length + 1);
    while (sys()->stat(path, &st) == 0 && !is_same_inode(&st, &last)) {
        if (is_same_inode(&st, &wanted)) return true;
        if (length + sizeof("/..") > sizeof(path)) return false;
        memcpy(path + length, "/..", sizeof("/.."));
        length += strlen("/..");
        last = st;
    }
    return false;
}

/* As the XDG rules say: a variable that is no absolute path is ignored. Beside other programs'
 * caches and not in the pipeline's folder, as a device is the same for all pipelines. */
static char *cache_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && *cache == '/') return path_join(cache, "longhaul");
    if (home == NULL || *home != '/') {
        (void)fail(LH_INVALID, "neither XDG_CACHE_HOME nor HOME names a folder to keep records in");
        return NULL;
    }
    return path_join(home, ".cache/longhaul");
}

/* 16 digits of the digest are enough for a name. */
lh_status_t path_in_cache(const char *kind, const char *text, const char *end, char **out)
{
    char digest[SHA256_TEXT], name[64];
    const lh_status_t status = digest_of(text, strlen(text), digest);
    if (status != LH_OK) return status;
    (void)snprintf(name, sizeof(name), "%s-%.16s.%s", kind, digest, end);

    char *folder = cache_folder();
    if (folder == NULL) return LH_INVALID;
    char *path = path_join(folder, name);
    mem_free(folder);
    if (path == NULL) return LH_NO_MEMORY;
    *out = path;
    return LH_OK;
}

char *path_join(const char *folder, const char *name)
{
    if (name[0] == '/' || folder[0] == '\0') return mem_text(name);
    const size_t room = strlen(folder) + strlen(name) + 2;
    char *path = mem_new(room);
    if (path == NULL) return NULL;
    (void)snprintf(path, room, "%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/",
                   name);
    return path;
}

char *path_absolute(const char *path)
{
    char folder[PATH_MAX];
    if (path[0] == '/') return mem_text(path);
    while (path[0] == '.' && path[1] == '/')
        path += 1 + strspn(path + 1, "/");
    if (getcwd(folder, sizeof(folder)) == NULL) {
        if (errno == ERANGE)
            (void)fail(LH_INVALID, "%s: the path of the working folder is longer than %d bytes",
                       path, PATH_MAX - 1);
        else
            (void)fail_io(errno, "%s: the working folder has no name", path);
        return NULL;
    }
    return strcmp(path, ".") == 0 || path[0] == '\0' ? mem_text(folder) : path_join(folder, path);
}

lh_status_t path_program_root(char **out)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (length <= 0 || (size_t)length >= sizeof(program) - 1)
        return fail_io(length <= 0 ? errno : ENAMETOOLONG,
                       "/proc/self/exe: cannot tell where the program lies");
    program[length] = '\0';
    char *bin = path_folder(program);
    *out = bin == NULL ? NULL : path_folder(bin);
    mem_free(bin);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

char *path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return mem_text(".");
    return mem_text_n(path, slash == path ? 1 : (size_t)(slash - path));
}

const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* The kernel says EBUSY as long as somebody has the memory mapped for writing or a page of it is in
 * use by I/O: both pass, so it is asked again every LOOK_MS. */
lh_status_t file_seal(int fd, const char *what)
{
    enum { LOOK_MS = 10, MS = 1000000 };
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    const uint64_t end = sys()->now_ns() + (uint64_t)FILE_SEAL_MS * MS;
    while (fcntl(fd, F_ADD_SEALS, seals) != 0) {
        if (errno != EBUSY || sys()->now_ns() >= end) return fail_io(errno, "cannot seal %s", what);
        (void)usleep(LOOK_MS * 1000);
    }
    return LH_OK;
}

/* Files that grow by whole records: what was written of a record that fails is cut off again, at
 * once or before the next one, so that a full disk costs lines and never leaves half of one. */

/* Cuts off what was written of a record that failed. A file that is shorter than that part was
 * emptied by somebody else: there is nothing left to cut. */
static bool records_cut_torn(file_records_t *f)
{
    struct stat st;
    if (f->torn == 0) return true;
    if (sys()->fstat(f->fd, &st) != 0) return false;
    const off_t torn = (off_t)f->torn;
    if (st.st_size >= torn && sys_ftruncate(f->fd, st.st_size - torn) != 0) return false;
    f->torn = 0;
    return true;
}

/* f->torn counts what is in the file of this record: after a failure, what has to go again. */
static bool records_write(file_records_t *f, const char *bytes, size_t length)
{
    while (f->torn < length) {
        const ssize_t got = sys()->write(f->fd, bytes + f->torn, length - f->torn);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        f->torn += (size_t)got;
    }
    f->torn = 0;
    return true;
}

/* A part that cannot be cut off now, as the disk fails, is cut off before the next record is
 * written. */
bool file_records_add(file_records_t *f, const void *bytes, size_t length)
{
    lh_assert(f->fd >= 0);
    if (records_cut_torn(f) && records_write(f, bytes, length)) return true;
    const int error = errno;
    (void)records_cut_torn(f);
    f->lost++;
    errno = error;
    return false;
}

/* There is no way to cut a file at its front: what stays is read, the file emptied, and it is
 * written once more as one record. For that it has to fit in memory: more than STAYS_MAX stays with
 * all before it. */
bool file_records_cut(file_records_t *f, off_t before)
{
    lh_assert(f->fd >= 0);
    enum { STAYS_MAX = 1 << 20 };
    struct stat st;
    if (before <= 0) return true;
    if (!records_cut_torn(f)) return false;
    if (sys()->fstat(f->fd, &st) != 0 || st.st_size < before) return false;
    const size_t stays = (size_t)(st.st_size - before);
    char *kept = stays <= STAYS_MAX ? mem_new(stays + 1) : NULL;
    bool cut = kept != NULL && sys()->pread(f->fd, kept, stays, before) == (ssize_t)stays &&
               sys_ftruncate(f->fd, 0) == 0;
    if (cut) cut = stays == 0 || file_records_add(f, kept, stays);
    mem_free(kept);
    return cut;
}
