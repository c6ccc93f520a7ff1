/* plugin/image.h - a plugin's file as a sealed copy in memory: what was checked can't change before
 * it is loaded. */
#ifndef PLUGIN_IMAGE_H
#define PLUGIN_IMAGE_H

#include <base/digest.h>
#include <config/job.h>
#include <plugin/peek.h>

enum { IMAGE_LIMIT = 256 << 20 }; /* where no job sets [limits] plugin_bytes */

typedef struct image {
    peek_image_t map; /* the copy, read-only                                            */
    int fd;           /* memfd; stays open for ever once dlopen saw it: glibc knows a library by
                         path, and /proc/self/fd/N of a later one would be taken for this one */
    char sha256[SHA256_TEXT];
} image_t;

/* Nobody but root and the user who runs this program may have written the file or write into its
 * folder; the folders above are not looked at. A symbolic link, a FIFO or a device, a stranger's
 * file and one that others can write are refused, each with its sentence. limit: bytes. */
lh_status_t image_open(const char *path, const char *name, uint64_t limit,
                       image_t *out) LH_MUST_CHECK;
/* Only for an image that was never given to dlopen. */
void image_close(image_t *image);

/* [plugin.NAME] sha256 against the file's. job may be NULL: then nothing is pinned. */
lh_status_t image_check_pin(const job_t *job, const char *path, const char *name,
                            const char *sha256) LH_MUST_CHECK;

#endif
