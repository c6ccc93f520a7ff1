/* plugin/trust.h - who may have written a plugin's file: nobody but root and the user who runs this
 * program. Its folder is looked at too, the folders above are not. */
#ifndef PLUGIN_TRUST_H
#define PLUGIN_TRUST_H

#include <config/job.h>

/* Opens the file for reading. A symbolic link, a FIFO or a device, a stranger's file and one that
 * others can write are refused, each with its sentence. limit: bytes. */
lh_status_t trust_open(const char *path, uint64_t limit, int *fd, uint64_t *size) LH_MUST_CHECK;

/* [plugin.NAME] sha256 against the file's. job may be NULL: then nothing is pinned. */
lh_status_t trust_pin(const job_t *job, const char *path, const char *name,
                      const char *sha256) LH_MUST_CHECK;

#endif
