/* record_file.c - what was written of a record that fails is cut off again. */
#include <base/record_file.h>

#include <errno.h>

#include <base/sys.h>

/* A file that is shorter than the part was emptied by somebody else. */
static bool cut_torn(record_file_t *f)
{
    struct stat st;
    if (f->torn == 0) return true;
    if (sys()->fstat(f->fd, &st) != 0) return false;
    const off_t torn = (off_t)f->torn;
    if (st.st_size >= torn && sys()->ftruncate(f->fd, st.st_size - torn) != 0) return false;
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
