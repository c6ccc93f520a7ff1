/* checkpoint/hf_weights.h - which Hugging Face tensor each logical parameter comes from, and the
 * transform between the two. */
#ifndef CHECKPOINT_HF_WEIGHTS_H
#define CHECKPOINT_HF_WEIGHTS_H

#include <checkpoint/hf_table.h>
#include <graph/parameters.h>
#include <plugin/call.h>

typedef struct hf_user { /* a parameter that lies in a Hugging Face tensor, alone or with others */
    char *tensor;        /* its name: "model.layers.7.self_attn.q_proj.weight" */
    uint32_t parameter;
} hf_user_t;

typedef struct hf_tensor {
    const char *name;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
    uint64_t elements;
    const hf_user_t *users;
    uint32_t user_count;
} hf_tensor_t;

typedef struct hf_weights {
    hf_tensor_t *tensors; /* sorted by name; tied parameters have none */
    uint32_t count;
    hf_user_t *users;
    uint32_t user_count;
    hf_user_t *tied; /* names under which a tied parameter may stand in a file all the same */
    uint32_t tied_count;
} hf_weights_t;

/* Checks that the rows that share a tensor agree on its shape and fill it. */
lh_status_t hf_weights_new(const parameters_t *parameters, hf_weights_t *out) LH_MUST_CHECK;
void hf_weights_free(hf_weights_t *w);

typedef struct hf_transform {
    const parameters_t *parameters;
    const lh_host_t *host;
    registry_t *plugins; /* NULL: none */
} hf_transform_t;

/* Dense F32 both. Import: source is the Hugging Face tensor. Export: out is, and only the
 * parameter's part of it is written. */
lh_status_t hf_transform_import(const hf_transform_t *how, const hf_tensor_t *tensor,
                                uint32_t parameter, float *source, float *out) LH_MUST_CHECK;
lh_status_t hf_transform_export(const hf_transform_t *how, const hf_tensor_t *tensor,
                                uint32_t parameter, float *source, float *out) LH_MUST_CHECK;

/* "[512, 64]" */
enum { HF_SHAPE_TEXT = 128 };
void hf_shape_text(uint32_t rank, const uint64_t *shape, char out[HF_SHAPE_TEXT]);

#endif
