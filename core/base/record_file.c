/* record_file.c - what was written of a record that fails is cut off again. */
#include <base/record_file.h>

#include <errno.h>

#include <base/memory.h>
#include <base/sys.h>

/* A file that is shorter than the part was emptied by somebody else. */
static bool cut_torn(record_file_t *f)
{
    struct stat st;
    if (f->torn == 0) return true;
    if (sys()->fstat(f->fd, &st) != 0) return false;
    const off_t torn = (off_t)f->torn;
    if (st.st_size >= torn && sys_ftruncate(f->fd, st.st_size - torn) != 0) return false;
    f->torn = 0;
    return true;
}

static bool write_all(record_file_t *f, const char *bytes, size_t length)
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

bool record_file_add(record_file_t *f, const void *bytes, size_t length)
{
    if (cut_torn(f) && write_all(f, bytes, length)) return true;
    const int error = errno;
    (void)cut_torn(f);
    f->lost++;
    errno = error;
    return false;
}

/* There is no way to cut at the front: what stays is written once more. */
bool record_file_cut(record_file_t *f, off_t before)
{
    enum { STAYS_MAX = 1 << 20 };
    struct stat st;
    if (before <= 0) return true;
    if (!cut_torn(f)) return false;
    if (sys()->fstat(f->fd, &st) != 0 || st.st_size < before) return false;
    const size_t stays = (size_t)(st.st_size - before);
    char *kept = stays <= STAYS_MAX ? mem_new(stays + 1) : NULL;
    bool cut = kept != NULL && sys()->pread(f->fd, kept, stays, before) == (ssize_t)stays &&
               sys_ftruncate(f->fd, 0) == 0;
    if (cut) cut = stays == 0 || record_file_add(f, kept, stays);
    mem_free(kept);
    return cut;
}
