/* checkpoint/own_files.h - which names an import and an export write. A folder is replaced only
 * where it holds nothing else, and nothing else in it is ever removed. */
#ifndef CHECKPOINT_OWN_FILES_H
#define CHECKPOINT_OWN_FILES_H

#include <base/text.h>

/* Patterns of paths in the folder, of regular files besides those that hf_files.h carries and of
 * folders; NULL ends each. */
typedef struct own_files {
    const char *const *files, *const *folders;
    const char *extra; /* one more file in the folder itself, or NULL */
} own_files_t;

extern const own_files_t own_files_of_import, own_files_of_export;

/* Appends the path in the folder of the first entry that is none of these, shown; *count is of what
 * was seen until there. */
lh_status_t own_files_look(const char *folder, const own_files_t *own, text_t *foreign,
                           uint64_t *count) LH_MUST_CHECK;
/* Removes these files, then the folder, which fails where it holds another. */
lh_status_t own_files_remove(const char *folder, const own_files_t *own) LH_MUST_CHECK;

#endif
