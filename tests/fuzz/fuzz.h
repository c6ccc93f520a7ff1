/* fuzz.h - what a fuzz target stands on: one function that eats bytes, files that are memory, and
 * an assertion that also stands in builds without asserts.
 *
 * A target is one file targets/NAME_fuzz.c that defines LLVMFuzzerTestOneInput. With LH_FUZZ it is
 * linked with libFuzzer; in every other build with replay.c, which feeds it its corpus. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* From the first call on, open() and its kin see these files first: paths below "/fuzz/", in place
 * of the disk. Bytes are borrowed. A file of that name is replaced. */
void fuzz_file(const char *path, const void *bytes, size_t size);
/* All files below /fuzz/ are gone. The target calls it when it is done with an input: what is still
 * open then is a leak, and the run stops. */
void fuzz_files_clear(void);
/* read() gives at most this many bytes at once; 0: no bound. */
void fuzz_read_at_most(size_t bytes);

/* A part of the input, in a block of its own so that a step over its end is seen. */
typedef struct fuzz_part {
    char *bytes; /* NUL follows; free() */
    size_t size;
} fuzz_part_t;
/* Cuts the input at each `mark`; what is missing is empty. The last part keeps further marks. */
void fuzz_cut(const uint8_t *bytes, size_t size, char mark, fuzz_part_t *parts, size_t count);
void fuzz_parts_free(fuzz_part_t *parts, size_t count);

#define FUZZ_ASSERT(fact)                                                                \
    do {                                                                                 \
        if (!(fact)) {                                                                   \
            (void)fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #fact, \
                          fail_reason());                                                \
            abort();                                                                     \
        }                                                                                \
    } while (0)

/* libFuzzer keeps the input of a process that aborts, not of one that leaves. */
static inline bool fuzz_abort(const char *sentence)
{
    (void)fprintf(stderr, "%s\n", sentence);
    abort();
}

__attribute__((constructor)) static void fuzz_keep_what_breaks_assertions(void)
{
    status_assert_tell(fuzz_abort);
}

/* A refusal has a sentence; success is what `status` says. */
static inline int fuzz_accepted(lh_status_t status)
{
    if (status == LH_OK) return 1;
    FUZZ_ASSERT(fail_reason()[0] != '\0');
    fail_clear();
    return 0;
}

#endif
