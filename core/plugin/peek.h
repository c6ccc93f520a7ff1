/* plugin/peek.h - reads the head of lh_plugin_v1 out of an ELF image, before dlopen runs anything.
 */
#ifndef PLUGIN_PEEK_H
#define PLUGIN_PEEK_H

#include <base/status.h>

typedef struct peek_head { /* the first 48 bytes of lh_plugin_t, which hold no pointer */
    uint32_t struct_size, abi_version, kind, config_size;
    char name[32];
} peek_head_t;

typedef struct peek_image {
    const unsigned char *bytes;
    size_t size;
} peek_image_t;

/* Returns NULL, or what is wrong. Every offset is checked against the image's size. */
const char *peek(peek_image_t image, peek_head_t *out);

/* Bytes from `into` (an address as linked) to the end of the PT_LOAD that holds it; 0 if none does.
 * The image has passed peek. */
uint64_t peek_room(peek_image_t image, uint64_t into);

#endif
