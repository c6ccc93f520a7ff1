/* plugin/peek.h - reads a shared object's ELF image before dlopen runs any of it: the head of its
 * lh_plugin_v2, and what it exports, imports and runs when it is loaded. */
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

typedef struct peek_symbol {
    const char *name;
    bool defined; /* else: wanted from elsewhere */
    bool weak;
} peek_symbol_t;

/* Calls each for every dynamic symbol that others see. The image has passed peek. */
void peek_each_symbol(peek_image_t image, void (*each)(void *context, const peek_symbol_t *symbol),
                      void *context);
/* Libraries that the image names. */
void peek_each_needed(peek_image_t image, void (*each)(void *context, const char *name),
                      void *context);
/* Functions that loading runs, beside those of the compiler's start files. */
uint32_t peek_constructors(peek_image_t image);

#endif
