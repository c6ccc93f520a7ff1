/* data/indexed.h - reads and writes Megatron's pair of .bin (token ids back to back) and .idx
 * (where each sequence lies). Everything in the index is checked before any of it is used.
 *
 * The pair is the format of Megatron-LM's IndexedDataset, so corpora that others have prepared can
 * be trained from, and ours by others. Its index has no checksum and no vocabulary: prepare.json
 * has both (prepare.h). */
#ifndef DATA_INDEXED_H
#define DATA_INDEXED_H

#include <base/digest.h>

/* The .idx, little-endian, of S sequences and B boundaries of documents:
 *
 *     bytes    what
 *     9        magic
 *     8        version
 *     1        dtype
 *     8        S
 *     8        B
 *     4 x S    length of each sequence, in tokens
 *     8 x S    where it begins in the .bin, in bytes
 *     8 x B    boundaries: the number of sequences before each document
 *
 * Boundaries begin with 0 and end with S: B = documents + 1. */
#define INDEXED_MAGIC "MMIDIDX\0" /* nine bytes with the literal's own NUL */
/* Of the .idx. */
enum { INDEXED_MAGIC_BYTES = 9, INDEXED_VERSION = 1, INDEXED_HEAD_BYTES = 34 };
enum { INDEXED_INT32 = 4, INDEXED_UINT16 = 8 }; /* dtype codes that the writer chooses from */
/* Below this many vocabulary entries ids are written as uint16. */
enum { INDEXED_UINT16_VOCAB = 65500 };

/* An open pair. Only read after indexed_open, but for users: reads name their place and may come
 * from any thread. The index is in memory, 12 bytes a sequence; the tokens are not. */
typedef struct indexed {
    char *bin_path;
    int fd;
    /* who shares it, each with an indexed_close */
    uint32_t users;
    uint32_t dtype_code, token_bytes;
    uint32_t vocab; /* ids are below this, checked when they are read */
    uint64_t sequences, documents, tokens;
    int32_t *lengths;     /* [sequences] tokens */
    uint64_t *offsets;    /* [sequences] bytes  */
    uint64_t *boundaries; /* [documents + 1] sequences before each document; NULL until asked for */
} indexed_t;

/* Opens PREFIX.bin and PREFIX.idx and checks the whole index. Tokens are checked against vocab when
 * they are read. */
lh_status_t indexed_open(const char *prefix, uint32_t vocab, indexed_t **out) LH_MUST_CHECK;
/* The set itself, for one user more, who closes it as well. [serial] */
indexed_t *indexed_share(indexed_t *set);
/* Fills boundaries, for who reads documents of several sequences; 8 bytes each, so most go without.
 * [serial] */
lh_status_t indexed_boundaries(indexed_t *set) LH_MUST_CHECK;
/* Whether this is the pair that was opened by the prefix. */
bool indexed_has_prefix(const indexed_t *set, const char *prefix);
void indexed_close(indexed_t *set); /* NULL does nothing */

/* Tokens [at, at + count) of a sequence; the caller keeps within its length. [any] */
lh_status_t indexed_read(const indexed_t *set, uint64_t sequence, uint64_t at, uint64_t count,
                         int32_t *out) LH_MUST_CHECK;

/* XXH3-64 of all lengths and of the beginnings of at most INDEXED_LOOKS sequences, evenly spread:
 * the same for the same tokens however they are stored, and for other tokens hardly ever. Few
 * reads. */
enum { INDEXED_LOOKS = 256 };
lh_status_t indexed_digest(const indexed_t *set, uint64_t *out) LH_MUST_CHECK;

/* What a pair's files are, for the record that is kept of them: of one file, and of both. */
typedef struct pair_sum { /* of one file */
    uint64_t bytes;
    char sha256[SHA256_TEXT];
} pair_sum_t;

typedef struct pair_sums {
    pair_sum_t idx, bin;
} pair_sums_t;

/* Writes Megatron's .bin and .idx, byte for byte as its preprocess_data does, in fixed memory.
 * Nothing stands under the final names before commit. */
typedef struct indexed_writer indexed_writer_t;

/* prefix: without .bin and .idx; files grow as PREFIX.{bin,idx,lengths}.tmp. vocab decides the
 * dtype and bounds the ids. */
lh_status_t indexed_writer_open(const char *prefix, uint32_t vocab,
                                indexed_writer_t **out) LH_MUST_CHECK;

/* One document of one sequence. An empty one is a document boundary without a sequence. */
lh_status_t indexed_writer_add(indexed_writer_t *w, const int32_t *ids,
                               uint64_t count) LH_MUST_CHECK;

/* One document of several sequences of the lengths [parts], of which the first is not 0; ids are
 * theirs one after the other. */
lh_status_t indexed_writer_add_parts(indexed_writer_t *w, const int32_t *ids,
                                     const int32_t *lengths, uint64_t parts) LH_MUST_CHECK;

/* Writes what is left, the index too, and tells what the files are now. Nothing can be added then.
 * Commit does it where it was not done. */
lh_status_t indexed_writer_finish(indexed_writer_t *w, pair_sums_t *out) LH_MUST_CHECK;
/* Makes the pair appear: synced, then renamed; an older pair is replaced, its index taken away
 * first, so that no index ever stands beside another's tokens. Frees w, whatever is returned. */
lh_status_t indexed_writer_commit(indexed_writer_t *w) LH_MUST_CHECK;
/* Leaves nothing behind. Frees w; NULL does nothing. */
void indexed_writer_discard(indexed_writer_t *w);

#endif
