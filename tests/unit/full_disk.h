/* full_disk.h - a disk that takes so many bytes more, for what writes through sys(). */
#ifndef UNIT_FULL_DISK_H
#define UNIT_FULL_DISK_H

#include <errno.h>
#include <unistd.h>

#include <base/sys.h>

static size_t space; /* bytes that it still takes */

static inline ssize_t write_while_space(int fd, const void *from, size_t bytes)
{
    if (space > 0) {
        const ssize_t got = write(fd, from, bytes < space ? bytes : space);
        if (got > 0) space -= (size_t)got;
        return got;
    }
    errno = ENOSPC;
    return -1;
}

#endif
