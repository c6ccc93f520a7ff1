/* data/charsmap.h - sentencepiece's table of what characters are replaced with before encoding. */
#ifndef DATA_CHARSMAP_H
#define DATA_CHARSMAP_H

#include <base/status.h>

typedef struct charsmap {
    uint32_t *units; /* a double array trie */
    size_t unit_count;
    char *strings; /* NUL-terminated, one after another */
    size_t string_bytes;
} charsmap_t;

/* A normalizer_spec.precompiled_charsmap; length 0 makes an empty map. */
lh_status_t charsmap_read(const char *path, const char *bytes, size_t length,
                          charsmap_t *out) LH_MUST_CHECK;
void charsmap_free(charsmap_t *m);

/* The longest entry that text starts with: returns its length and the replacement, or 0. */
size_t charsmap_longest(const charsmap_t *m, const char *text, size_t length, const char **to);

#endif
