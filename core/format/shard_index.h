/* format/shard_index.h - a folder of weights: model.safetensors, or shards named by
 * model.safetensors.index.json, seen as one set of tensors.
 *
 * An index file, of two shards:
 *
 *     {"metadata": {"total_size": 32},
 *      "weight_map": {"a": "model-00001-of-00002.safetensors",
 *                     "b": "model-00002-of-00002.safetensors"}} */
#ifndef FORMAT_SHARD_INDEX_H
#define FORMAT_SHARD_INDEX_H

#include <base/text.h>
#include <format/safetensors.h>

/* A tensor and the file that it lies in; both are the index's. */
typedef struct shard_tensor {
    const safetensors_t *file;
    const safetensor_t *tensor;
} shard_tensor_t;

/* All tensors of a folder. Files stay open, so that a folder which is replaced meanwhile is read as
 * it was. */
typedef struct shard_index {
    safetensors_t **files;
    uint32_t file_count;
    shard_tensor_t *tensors; /* sorted by name */
    uint32_t count;
} shard_index_t;

/* What the files may ask for before they are refused; file.tensors is of all shards together. */
typedef struct shard_limits {
    safetensors_limits_t file;
    uint64_t shards; /* 0: 100,000 */
} shard_limits_t;

/* Names in the index are plain base names; a tensor that the index names and its shard lacks, or
 * that two shards have, is refused. limits NULL: the defaults. */
lh_status_t shard_index_open(const char *folder, const shard_limits_t *limits,
                             shard_index_t **out) LH_MUST_CHECK;
void shard_index_close(shard_index_t *s);
const shard_tensor_t *shard_index_find(const shard_index_t *s, const char *name);

/* A name that stays in its folder: not empty, no slash, no NUL, not "." or "..", at most 255 bytes.
 */
bool shard_name_is_plain(const char *name);

/* The text of model.safetensors.index.json: name i lies in file i. */
typedef struct shard_entry {
    const char *name, *file;
} shard_entry_t;
void shard_index_text(text_t *out, const shard_entry_t *entries, uint32_t count,
                      uint64_t tensor_bytes);

#endif
