/* hf/hf_folder.h - a folder that appears whole or not at all, in the place of an earlier one of its
 * kind. hf_folder_begin, then the caller fills hf_folder_path, then hf_folder_publish or
 * hf_folder_abandon.
 *
 * A user may name any folder as the target, also one that holds years of work. So a folder is
 * replaced only where it holds nothing but what an import or export writes, and nothing else in it
 * is ever removed, whatever happens in between. */
#ifndef HF_HF_FOLDER_H
#define HF_HF_FOLDER_H

#include <base/status.h>
#include <base/text.h>

/* Which names an import and an export write: patterns of paths in the folder, of regular files
 * besides those that are carried along, and of folders; NULL ends each. */
typedef struct hf_own_files {
    const char *const *files, *const *folders;
    const char *sign;  /* the one of these files that every folder of the kind has */
    const char *extra; /* one more file in the folder itself, or NULL */
} hf_own_files_t;

/* The kinds of folder that are written here; of_adapter: an export of an adapter alone. One kind is
 * never taken for another: an import in the place of an export is refused. */
extern const hf_own_files_t hf_own_files_of_import, hf_own_files_of_export, hf_own_files_of_adapter;

/* Appends the path in the folder of the first entry that is none of these, shown; *count is of what
 * was seen until there. */
lh_status_t hf_own_files_look(const char *folder, const hf_own_files_t *own, text_t *foreign,
                              uint64_t *count) LH_MUST_CHECK;
/* Removes these files, then the folder, which fails where it holds another. */
lh_status_t hf_own_files_remove(const char *folder, const hf_own_files_t *own) LH_MUST_CHECK;

/* A new folder that is being filled, by one process at a time. */
typedef struct hf_folder hf_folder_t;

/* Refuses what is there already unless it holds nothing but `own`; sweeps what killed runs left;
 * then makes a new folder beside it, locked as long as this process works there. */
lh_status_t hf_folder_begin(const char *folder, const hf_own_files_t *own,
                            hf_folder_t **out) LH_MUST_CHECK;
const char *hf_folder_path(const hf_folder_t *f); /* of the new one, to be filled */
/* A name in the new folder for a file that loses it at once; where a run is killed in between, the file
 * is swept with the rest. */
#define HF_FOLDER_NAMELESS "values.tmp"
/* Looks again, then renames it to its place; what stood there is removed, or a warning says where it is
 * left. LH_IO may mean that the new folder stands there and may not outlast a loss of power, or that the
 * old one could not be put back: the sentence says where that is. Frees f whatever it returns. */
lh_status_t hf_folder_publish(hf_folder_t *f) LH_MUST_CHECK;
/* Removes the new folder, frees f; fail_reason() stays as it is. */
void hf_folder_abandon(hf_folder_t *f);

/* The small files of a Hugging Face folder that are carried along: copies the known tokenizer,
 * template and generation files that are in `from`. One that `to` has already stays as it is. */
lh_status_t hf_files_copy(const char *from, const char *to) LH_MUST_CHECK;
/* Copies a tokenizer named by one of its files: vocab.json brings merges.txt, tokenizer.json its
 * configuration. */
lh_status_t hf_files_copy_tokenizer(const char *file, const char *to) LH_MUST_CHECK;
/* Copies GPT-2's two files, which have several names (X-vocab.json, encoder.json), under those that
 * Transformers looks for, vocab.json and merges.txt, and the tokenizer_config.json beside them,
 * which says how text is cut. */
lh_status_t hf_files_copy_pair(const char *vocabulary, const char *merges,
                               const char *to) LH_MUST_CHECK;
/* Whether a file of this name is among them. */
bool hf_files_carries(const char *name);

#endif
