/* checkpoint/hf_files.h - the small files of a Hugging Face folder that are carried along, and
 * folders that appear whole or not at all. */
#ifndef CHECKPOINT_HF_FILES_H
#define CHECKPOINT_HF_FILES_H

#include <base/status.h>

/* Copies the known tokenizer, template and generation files that are in `from`. */
lh_status_t hf_files_copy(const char *from, const char *to) LH_MUST_CHECK;
/* Copies a tokenizer named by one of its files: vocab.json brings merges.txt, tokenizer.json its
 * configuration. */
lh_status_t hf_files_copy_tokenizer(const char *file, const char *to) LH_MUST_CHECK;

/* A new folder beside `folder`; the caller fills it, then hf_folder_publish or folder_remove. */
lh_status_t hf_folder_stage(const char *folder, char **out) LH_MUST_CHECK;
/* Renames the staged folder to `folder`. What is there already must hold `proof` (a file that only
 * an earlier one of ours has): it is replaced. Frees staged on success. */
lh_status_t hf_folder_publish(char *staged, const char *folder, const char *proof) LH_MUST_CHECK;

#endif
