/* small_corpus.h - token files that a small run of these tests trains on. */
#ifndef TESTS_SMALL_CORPUS_H
#define TESTS_SMALL_CORPUS_H

#include <unit/base/scratch_files.h>

#include <string.h>

#include <data/indexed.h>

enum { SMALL_CORPUS_TOKENS = 512, SMALL_CORPUS_VOCAB = 64 };

/* corpus.bin and corpus.idx: one sequence, which is one document. */
static inline void small_corpus_write(scratch_t *s)
{
    uint16_t ids[SMALL_CORPUS_TOKENS];
    char index[INDEXED_HEAD_BYTES + 4 + 8 + 2 * 8] = INDEXED_MAGIC;
    const uint64_t version = INDEXED_VERSION, one = 1, two = 2, nothing = 0;
    const uint32_t length = SMALL_CORPUS_TOKENS;
    for (uint32_t i = 0; i < SMALL_CORPUS_TOKENS; i++)
        ids[i] = (uint16_t)(i * 7 % SMALL_CORPUS_VOCAB);
    char *at = index + INDEXED_MAGIC_BYTES;
    memcpy(at, &version, 8);
    at[8] = INDEXED_UINT16;
    memcpy(at + 9, &one, 8);
    memcpy(at + 17, &two, 8);
    memcpy(at + 25, &length, 4);
    memcpy(at + 29, &nothing, 8);
    memcpy(at + 37, &nothing, 8);
    memcpy(at + 45, &one, 8);
    (void)scratch_write(s, "corpus.idx", index, sizeof(index));
    (void)scratch_write(s, "corpus.bin", ids, sizeof(ids));
}

#endif
