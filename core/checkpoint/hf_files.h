/* checkpoint/hf_files.h - the small files of a Hugging Face folder that are carried along. */
#ifndef CHECKPOINT_HF_FILES_H
#define CHECKPOINT_HF_FILES_H

#include <base/status.h>

/* Copies the known tokenizer, template and generation files that are in `from`. */
lh_status_t hf_files_copy(const char *from, const char *to) LH_MUST_CHECK;
/* Copies a tokenizer named by one of its files: vocab.json brings merges.txt, tokenizer.json its
 * configuration. */
lh_status_t hf_files_copy_tokenizer(const char *file, const char *to) LH_MUST_CHECK;
/* Whether a file of this name is among them. */
bool hf_files_carries(const char *name);

#endif
