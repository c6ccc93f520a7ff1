/* hf/hf_import.h - a Hugging Face folder becomes a committed checkpoint at step 0. */
#ifndef HF_HF_IMPORT_H
#define HF_HF_IMPORT_H

#include <checkpoint/checkpoint.h>
#include <format/shard_index.h>
#include <graph/parameters.h>
#include <hf/hf_adapter.h>
#include <hf/hf_config.h>
#include <plugin/call.h>

/* What an import reads and where it writes. All is the caller's. */
typedef struct hf_import_how {
    /* The Hugging Face folder. */
    const char *from;
    const char *folder; /* receives checkpoints/, config.json, tokenizer files       */
    /* The model plugin's rows for config.json; stays the plugin's. */
    const lh_hf_t *table;
    const parameters_t *parameters;
    /* A folder in PEFT's format, for the factors of the parameters' adapter; NULL: they are not in
     * the checkpoint, and begin anew. */
    const char *adapter;
    hf_adapter_t adapter_is; /* what its configuration must say */
    /* The model's options as "key = value" lines, for the manifest; NULL: none. */
    const char *model_options;
    const shard_limits_t *limits; /* NULL: defaults                                  */
    const lh_host_t *host;        /* for the functions that rows call                 */
    registry_t *plugins;          /* that they may name as plugin:function(...); NULL */
} hf_import_how_t;

typedef struct hf_import_result {
    uint64_t tensors, bytes; /* read from the folder */
} hf_import_result_t;

/* A parameter that lies in so many tensors of Hugging Face's, and the elements of one of them. */
typedef struct hf_pieces {
    uint32_t tensors; /* 0: none of the import's */
    uint64_t elements;
} hf_pieces_t;

/* Tensors that an import's checkpoint has at most, where Hugging Face's are fewer. */
enum { HF_PIECES = 100000 };

/* Into how many pieces the part of a parameter is cut that comes of one tensor: pieces [count], and
 * the sum over all tensors. One a tensor at least. */
uint64_t hf_import_pieces(const hf_pieces_t *of, uint32_t count, uint32_t *pieces);

/* `folder` appears whole or not at all; an earlier import in it is replaced. Memory: some MiB and a
 * piece of the checkpoint (hf_import_pieces) at a time; besides, a tensor whose columns become rows as
 * it is in the file. One that a plugin's own function takes apart lies on the disk as F32, with its
 * largest part (hf_whole_new). */
lh_status_t hf_import(const hf_import_how_t *how, hf_import_result_t *out) LH_MUST_CHECK;

#endif
