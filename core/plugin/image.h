/* plugin/image.h - a plugin's file before any of its code runs: a sealed copy in memory, and what
 * its ELF tables say of it (the head of its lh_plugin_v2, what it exports, imports and runs when it
 * is loaded).
 *
 * Three steps in this order: image_open decides whether the file may be trusted and copies it,
 * image_check_pin compares its digest with the job's, image_peek reads the head. Only then is the
 * copy given to dlopen (registry.c). One thread at a time; the functions on image_bytes_t keep
 * nothing and may be called by any. */
#ifndef PLUGIN_IMAGE_H
#define PLUGIN_IMAGE_H

#include <base/digest.h>
#include <config/job.h>

enum { IMAGE_LIMIT = 256 << 20 }; /* where no job sets [limits] plugin_bytes */

typedef struct image_bytes { /* a whole ELF file in memory; nothing in it is trusted */
    const unsigned char *bytes;
    size_t size;
} image_bytes_t;

typedef struct image {
    image_bytes_t map; /* the copy, read-only                                           */
    int fd;            /* memfd; stays open for ever once dlopen saw it: glibc knows a library by
                          path, and /proc/self/fd/N of a later one would be taken for this one */
    char sha256[SHA256_TEXT]; /* of the copy */
} image_t;

/* Nobody but root and the user who runs this program may have written the file or write into its
 * folder; the folders above are not looked at. A symbolic link, a FIFO or a device, a stranger's
 * file and one that others can write are refused, each with its sentence. name is for the memfd,
 * as /proc shows it; limit: bytes. */
lh_status_t image_open(const char *path, const char *name, uint64_t limit,
                       image_t *out) LH_MUST_CHECK;
/* Only for an image that was never given to dlopen. */
void image_close(image_t *image);

/* [plugin.NAME] sha256 against the file's. job may be NULL: then nothing is pinned. */
lh_status_t image_check_pin(const job_t *job, const char *path, const char *name,
                            const char *sha256) LH_MUST_CHECK;

typedef struct image_head { /* the first 48 bytes of lh_plugin_t, which hold no pointer */
    uint32_t struct_size, abi_version, kind, config_size;
    char name[32]; /* may lack its NUL */
} image_head_t;

/* Reads the head. Returns NULL, or what is wrong ("not an ELF file"), to stand behind "path: ".
 * Every offset is checked against the image's size. */
const char *image_peek(image_bytes_t image, image_head_t *out);

/* Bytes from `into` (an address as linked) to the end of the PT_LOAD that holds it; 0 if none does.
 * The image has passed image_peek, as for the functions below. */
uint64_t image_room(image_bytes_t image, uint64_t into);

typedef struct image_symbol {
    const char *name; /* in the image */
    bool defined;     /* else: wanted from elsewhere */
    bool weak;
} image_symbol_t;

/* Calls each for every dynamic symbol that others see. */
void image_each_symbol(image_bytes_t image,
                       void (*each)(void *context, const image_symbol_t *symbol), void *context);
/* Calls each for every library that the image names (DT_NEEDED). */
void image_each_needed(image_bytes_t image, void (*each)(void *context, const char *name),
                       void *context);
/* Functions that loading runs, beside those of the compiler's start files. */
uint32_t image_constructors(image_bytes_t image);

#endif
