/* base/record_file.h - a file that grows by whole records: one that cannot be written leaves no
 * part behind, and the next is tried all the same. */
#ifndef BASE_RECORD_FILE_H
#define BASE_RECORD_FILE_H

#include <sys/types.h>

#include <longhaul/base.h>

/* fd is opened with O_APPEND by the caller, who closes it. One thread at a time. */
typedef struct record_file {
    int fd;
    size_t torn; /* bytes of a part at its end that could not be cut off yet */
    uint64_t lost;
} record_file_t;

/* False where the record is lost, with errno. */
bool record_file_add(record_file_t *f, const void *bytes, size_t length);
/* The first `before` bytes go; fd is open for reading too. False: the file is as it was, or, where
 * its disk has failed meanwhile, without some of its records. */
bool record_file_cut(record_file_t *f, off_t before);

#endif
