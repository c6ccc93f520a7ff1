/* data/byte_source.h - the bytes of a file, plain, gzip or zstd, as one stream in fixed memory.
 *
 * The SHA-256 is of the file as it is stored and made on the way, so that a corpus of terabytes is
 * read once and not twice. */
#ifndef DATA_BYTE_SOURCE_H
#define DATA_BYTE_SOURCE_H

#include <base/digest.h>

typedef struct byte_source byte_source_t;

/* The kind is told by the first bytes; a name in .gz or .zst over other content is refused. Several
 * gzip members or zstd frames one after the other are one stream; frames to skip and zeros behind a
 * member hold nothing. A zstd frame takes up to its window of memory, which is no larger than
 * window_bytes (1 KiB to 2 GiB, the format's own bounds). */
lh_status_t byte_source_open(const char *path, uint64_t window_bytes,
                             byte_source_t **out) LH_MUST_CHECK;
void byte_source_close(byte_source_t *s); /* NULL does nothing */

/* At most room (> 0) bytes; *got == 0 only at the end. A file that ends inside a compressed stream
 * is LH_CORRUPT. */
lh_status_t byte_source_read(byte_source_t *s, void *to, size_t room, size_t *got) LH_MUST_CHECK;

uint64_t byte_source_taken(const byte_source_t *s); /* bytes read from the file, as it is stored */

/* SHA-256 of the file as stored. Once, after the end was reached. */
void byte_source_digest(byte_source_t *s, char out[SHA256_TEXT]);

#endif
