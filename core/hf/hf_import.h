/* hf/hf_import.h - a Hugging Face folder becomes a committed checkpoint at step 0. */
#ifndef HF_HF_IMPORT_H
#define HF_HF_IMPORT_H

#include <format/shard_index.h>
#include <graph/parameters.h>
#include <plugin/call.h>

typedef struct hf_import_how {
    const char *from;   /* Hugging Face folder                                       */
    const char *folder; /* receives checkpoints/, config.json, tokenizer files       */
    const lh_hf_t *table;
    const parameters_t *parameters;
    const char *model_options;    /* "key = value" lines for the manifest; NULL: none   */
    const shard_limits_t *limits; /* NULL: defaults                                  */
    const lh_host_t *host;        /* for the functions that rows call                 */
    registry_t *plugins;          /* that they may name as plugin:function(...); NULL */
} hf_import_how_t;

typedef struct hf_import_result {
    uint64_t tensors, bytes; /* read from the folder */
} hf_import_result_t;

/* Streams tensor by tensor: never more than one of theirs and one of ours in memory. `folder`
 * appears whole or not at all; an earlier import in it is replaced. */
lh_status_t hf_import(const hf_import_how_t *how, hf_import_result_t *out) LH_MUST_CHECK;

#endif
