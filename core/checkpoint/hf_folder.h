/* checkpoint/hf_folder.h - a folder that appears whole or not at all, in the place of an earlier
 * one of its kind. hf_folder_begin, then the caller fills hf_folder_path, then hf_folder_publish or
 * hf_folder_abandon. */
#ifndef CHECKPOINT_HF_FOLDER_H
#define CHECKPOINT_HF_FOLDER_H

#include <checkpoint/own_files.h>

typedef struct hf_folder hf_folder_t;

/* Refuses what is there already unless it holds nothing but `own`; sweeps what killed runs left;
 * then makes a new folder beside it, locked as long as this process works there. */
lh_status_t hf_folder_begin(const char *folder, const own_files_t *own,
                            hf_folder_t **out) LH_MUST_CHECK;
const char *hf_folder_path(const hf_folder_t *f); /* of the new one, to be filled */
/* Looks again, then renames it to its place. Frees f whatever it returns. */
lh_status_t hf_folder_publish(hf_folder_t *f) LH_MUST_CHECK;
/* Removes the new folder, frees f; fail_reason() stays as it is. */
void hf_folder_abandon(hf_folder_t *f);

#endif
