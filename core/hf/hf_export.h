/* hf/hf_export.h - a checkpoint becomes a folder that Transformers loads. */
#ifndef HF_HF_EXPORT_H
#define HF_HF_EXPORT_H

#include <checkpoint/checkpoint.h>
#include <config/job.h>
#include <graph/parameters.h>
#include <hf/hf_adapter.h>
#include <hf/hf_config.h>
#include <plugin/call.h>

/* What an export reads and where it writes. All is the caller's. */
typedef struct hf_export_how {
    /* Open, the caller's; its parameters are the model's. */
    checkpoint_t *from;
    const char *folder; /* appears whole or not at all; only an earlier export is replaced */
    const char
        *imported; /* folder of hf_import whose dtypes, config.json and tokenizer are kept; NULL */
    const char *tokenizer; /* file of the run's own tokenizer, or NULL: the imported one */
    const char *vocabulary, *merges; /* its two files, where it is GPT-2's pair; else NULL */
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

/* Memory: some MiB; besides, a tensor whose columns are parameters' rows in the file's dtype. One that
 * a plugin's own function puts together lies on the disk as F32, with its largest part (hf_whole_new).
 * out may be NULL. */
lh_status_t hf_export(const hf_export_how_t *how, hf_export_result_t *out) LH_MUST_CHECK;

#endif
