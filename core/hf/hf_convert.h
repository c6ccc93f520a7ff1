/* hf/hf_convert.h - a Hugging Face folder becomes a committed checkpoint at step 0, and a
 * checkpoint becomes a folder that Transformers loads. */
#ifndef HF_HF_CONVERT_H
#define HF_HF_CONVERT_H

#include <checkpoint/checkpoint.h>
#include <config/job.h>
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

/* Holds one tensor at a time in memory, in three forms: as in the file, as F32, and a parameter's.
 * `folder` appears whole or not at all; an earlier import in it is replaced. */
lh_status_t hf_import(const hf_import_how_t *how, hf_import_result_t *out) LH_MUST_CHECK;

/* What an export reads and where it writes. All is the caller's. */
typedef struct hf_export_how {
    /* Open, the caller's; its parameters are the model's. */
    checkpoint_t *from;
    const char *folder; /* appears whole or not at all; only an earlier export is replaced */
    const char
        *imported; /* folder of hf_import whose dtypes, config.json and tokenizer are kept; NULL */
    const char *tokenizer; /* file of the run's own tokenizer, or NULL: the imported one */
    const lh_hf_t *table;
    const parameters_t *parameters;
    /* NULL, or what is written of the parameters' adapter into an adapter_config.json: then the
     * adapter is exported alone, else added to the weights. */
    const hf_adapter_t *separate;
    const char *(*option)(void *context, const char *key); /* of the model, as text */
    void *context;
    uint32_t dtype;        /* EXPORT_* of config/job.h                       */
    uint64_t shard_bytes;  /* 0: one file                                    */
    const lh_host_t *host; /* for the functions that rows call                 */
    registry_t *plugins;   /* that they may name as plugin:function(...); NULL */
    int64_t bos, eos;      /* for a config.json made anew; -1: none           */
} hf_export_how_t;

typedef struct hf_export_result {
    uint64_t tensors, bytes;
    uint32_t shards;
} hf_export_result_t;

/* Holds one tensor at a time in memory, in three forms: a parameter's, Hugging Face's, and that in
 * the file's dtype. out may be NULL. */
lh_status_t hf_export(const hf_export_how_t *how, hf_export_result_t *out) LH_MUST_CHECK;

#endif
