/* checkpoint/manifest.h - manifest.json: what a checkpoint is, which tensors it has, in which files
 * they lie and what their bytes must hash to. Its last line is the SHA-256 of all lines before. */
#ifndef CHECKPOINT_MANIFEST_H
#define CHECKPOINT_MANIFEST_H

#include <base/digest.h>
#include <base/text.h>
#include <checkpoint/tensor_part.h>

/* Bytes: some 1.4 million parts, which are as many as tensors (with the optimizer's states) times
 * ranks. What is larger is neither written nor read. */
enum { MANIFEST_VERSION = 1, MANIFEST_MOST = 256 << 20, MANIFEST_PARTS = 8192 /* of a tensor */ };
#define MANIFEST_NAME "manifest.json"

/* A plugin that the run had loaded, as it says itself, and the digest of its file. */
typedef struct checkpoint_plugin {
    const char *kind; /* "model" */
    const char *name, *version, *sha256;
    uint32_t abi;
} checkpoint_plugin_t;

/* Anything small that a resume needs: "loss_scale". Kept as text with 17 digits, so that a double
 * comes back bit for bit. */
typedef struct checkpoint_scalar {
    const char *name;
    double value;
} checkpoint_scalar_t;

/* A scalar: how many steps in a row, right before the save, were not applied as they were not
 * finite. Such a checkpoint is refused wherever one without it stands below: see checkpoint.h. */
#define MANIFEST_REFUSED "refused_steps"

/* A scalar: the start of the run that made it, where several starts may leave what one has to choose from:
 * incarnation.h. */
#define MANIFEST_INCARNATION "incarnation"

/* A scalar: the held-out loss of these weights, where keep_best wants it. */
#define MANIFEST_HELD_OUT "held_out_loss"

/* A scalar, 1: behind the step an evaluation is due, which a run that was asked to end has left to its
 * resume. */
#define MANIFEST_UNEVALUATED "unevaluated"

/* What the run says about itself. Strings are borrowed; NULL is "". */
typedef struct checkpoint_meta {
    const char *run;    /* id of the run, made when it first started */
    const char *config; /* SHA-256 of the effective configuration    */
    const char *model;  /* what the weights and the order of data depend on, "key = value" lines */
    const char *variants; /* engine_variants()                       */
    const char *device;   /* fingerprint                             */
    uint64_t step;        /* steps done */
    uint64_t seed;
    uint64_t cursor; /* global sample index: samples consumed */
    uint64_t tokens; /* seen */
    const checkpoint_plugin_t *plugins;
    uint32_t plugin_count;
    const checkpoint_scalar_t *scalars;
    uint32_t scalar_count;
} checkpoint_meta_t;

/* A tensor, or the part of it that one rank holds. */
typedef struct checkpoint_tensor {
    const char *name;  /* logical: "blocks.3.wq", "exp_avg/blocks.3.wq" */
    lh_dtype_t dtype;  /* of the bytes: F32 for weights and states           */
    lh_dtype_t source; /* that an imported tensor had; LH_DTYPE_NONE: none    */
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK]; /* of the whole tensor */
    tensor_part_t part;          /* count 0: the whole  */
} checkpoint_tensor_t;

/* A safetensors file of the checkpoint. Its size and its header are checked when the checkpoint is
 * opened; its data where it is read. */
typedef struct manifest_file {
    char *name;
    uint64_t bytes;
    uint64_t header_hash; /* XXH3-64 of its safetensors header */
} manifest_file_t;

/* A part of a tensor, as one entry of a file. Owned by the tensor. */
typedef struct manifest_part {
    char *stored; /* name in the safetensors file */
    uint32_t file;
    tensor_part_t part;
    uint64_t xxh3; /* of its bytes */
} manifest_part_t;

/* A tensor under its logical name. Its parts together hold each element exactly once in a manifest
 * that was read; in one that is being built, those that this process has written. */
typedef struct manifest_tensor {
    char *name;
    lh_dtype_t dtype, source;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
    manifest_part_t *parts;
    uint32_t part_count;
    size_t part_capacity;
} manifest_tensor_t;

/* A manifest that was read, or one that is being built. Zero-initialise the latter. */
typedef struct manifest {
    checkpoint_meta_t meta;   /* its strings live in json or with who made it */
    char parent[SHA256_TEXT]; /* `self` of the checkpoint before; "" : none  */
    char self[SHA256_TEXT];
    manifest_file_t *files;
    uint32_t file_count;
    size_t file_capacity;
    manifest_tensor_t *tensors; /* sorted by name after manifest_read */
    uint32_t tensor_count;
    size_t tensor_capacity;
    struct yyjson_doc *json; /* owner of meta's strings after manifest_read */
} manifest_t;

/* Build a manifest. Strings are copied. */
lh_status_t manifest_add_file(manifest_t *m, const char *name, uint32_t *index) LH_MUST_CHECK;
lh_status_t manifest_add_part(manifest_t *m, const checkpoint_tensor_t *tensor, uint32_t file,
                              const char *stored, uint64_t hash) LH_MUST_CHECK;
/* The text with its seal, tensors by name with all their parts; fills m->self. */
lh_status_t manifest_text(manifest_t *m, text_t *out) LH_MUST_CHECK;
/* What a part takes of the text, and with the tensor's first element what the tensor takes besides:
 * of all parts of all ranks together this is the text but for its head and its files. */
lh_status_t manifest_part_bytes(const checkpoint_tensor_t *tensor, uint32_t file,
                                const char *stored, uint64_t *bytes) LH_MUST_CHECK;
/* Seal, version, types, limits, and that each tensor's parts cover it once. */
lh_status_t manifest_read(const char *path, manifest_t **out) LH_MUST_CHECK;
/* As manifest_read, from memory; `whole` false leaves out the last test: one rank's share of a
 * checkpoint. */
lh_status_t manifest_parse(const char *path, const char *text, size_t length, bool whole,
                           manifest_t **out) LH_MUST_CHECK;
void manifest_clear(manifest_t *m); /* what it owns, not itself */
void manifest_free(manifest_t *m);  /* of manifest_read         */
/* MANIFEST_REFUSED; 0: a good one. */
uint64_t manifest_refused(const manifest_t *m);
bool manifest_unevaluated(const manifest_t *m);
/* MANIFEST_INCARNATION; 0: it does not say. */
uint64_t manifest_incarnation(const manifest_t *m);
const manifest_tensor_t *manifest_find(const manifest_t *m, const char *name);

#endif
