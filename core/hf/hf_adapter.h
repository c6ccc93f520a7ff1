/* hf/hf_adapter.h - an adapter's folder in PEFT's format: adapter_model.safetensors, with the two
 * factors of each matrix, and adapter_config.json, which says how they are meant.
 *
 * A configuration has some forty keys, most of which are about how an adapter is trained. Those that
 * say what its numbers mean are checked, and what is not built is refused: another scale, or factors
 * the other way round, would change every output in silence. */
#ifndef HF_HF_ADAPTER_H
#define HF_HF_ADAPTER_H

#include <format/shard_index.h>
#include <hf/hf_weights.h>

#define HF_ADAPTER_WEIGHTS "adapter_model.safetensors"
#define HF_ADAPTER_CONFIG "adapter_config.json"

/* What an adapter is, beside its values. */
typedef struct hf_adapter {
    uint64_t rank;
    double alpha;
    bool dora;
    const char *base; /* the folder or name of the model that it changes; NULL: not said */
} hf_adapter_t;

/* The tensors of an open folder. Zeroed, it has none. */
typedef struct hf_adapter_files {
    safetensors_t *file;
    shard_tensor_t *tensors; /* [file->count] in the order of the file's */
} hf_adapter_files_t;

/* Refuses a configuration of another rank or alpha, or of another kind than LoRA. limits may be NULL.
 * What was opened before a failure is in *out. */
lh_status_t hf_adapter_open(const char *folder, const hf_adapter_t *wanted,
                            const shard_limits_t *limits, hf_adapter_files_t *out) LH_MUST_CHECK;
void hf_adapter_close(hf_adapter_files_t *a);
/* NULL: it has no tensor of that name. */
const shard_tensor_t *hf_adapter_find(const hf_adapter_files_t *a, const char *name);
bool hf_adapter_has(const hf_adapter_files_t *a, const shard_tensor_t *t);
/* The first tensor that is not among `used` [count], of which some may be NULL; NULL: all are. */
const shard_tensor_t *hf_adapter_unread(const hf_adapter_files_t *a,
                                        const shard_tensor_t *const *used, uint32_t count);
/* LH_INVALID, with its name: there is one. */
lh_status_t hf_adapter_refuse_extra(const hf_adapter_files_t *a, const shard_tensor_t *const *used,
                                    uint32_t count) LH_MUST_CHECK;

/* Norms of the rows of a matrix, in doubles, times `by`, added to out [rows]. */
void hf_adapter_add_norms(const float *matrix, uint64_t rows, uint64_t columns, double by,
                          float *out);

/* adapter_config.json into a folder; target_modules are those of the tensors' names. */
lh_status_t hf_adapter_write_config(const hf_adapter_t *adapter, const hf_weights_t *weights,
                                    const char *folder) LH_MUST_CHECK;

#endif
