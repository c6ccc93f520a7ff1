/* hf/hf_weights.h - which Hugging Face tensor each logical parameter comes from, and the model
 * plugin's table of config.json keys.
 *
 * A parameter's row names a tensor, with {} for the block. Several parameters may name the same
 * one: each then says by a function text how its part is cut out (hf_import) and put back
 * (hf_export).
 *
 * A fused tensor, to be cut for three parameters of block 3, and what their rows say:
 *
 *     tensor                    model.layers.3.self_attn.qkv_proj.weight
 *     hf_name                   model.layers.{}.self_attn.qkv_proj.weight
 *     hf_import of the first    rows_in(source, 0, 3, out)
 *     hf_export of the first    rows_out(source, 0, 3, out)
 *
 * {e} in a name stands for the number of an expert: the parameter is [experts, rows, columns], and
 * each of its experts lies in a tensor of its own, on which the functions work one by one. */
#ifndef HF_HF_WEIGHTS_H
#define HF_HF_WEIGHTS_H

#include <longhaul/model.h>

#include <base/status.h>
#include <graph/parameters.h>

/* A model plugin's table of config.json keys, imported to this host's rows (the plugin may be built
 * against another version of the SDK), and questions about it. Texts in it are the plugin's. */
typedef struct hf_table {
    /* As the plugin has it, but for the rows: keys below instead of its keys. */
    lh_hf_t head;
    lh_hf_key_t *keys;
    uint32_t count;
} hf_table_t;

/* Copies and checks the plugin's rows; hf_table_free gives the copy back. */
lh_status_t hf_table_import(const lh_hf_t *plugin, hf_table_t *out) LH_MUST_CHECK;
void hf_table_free(hf_table_t *t);

/* Cuts the next alternative off "a|+b|c[]"; false at the end. */
typedef struct hf_alternative {
    char path[128];
    /* marked with +: to be written too, beside the first */
    bool also;
    /* ended by [] (which path has not): a list, with a word for each block */
    bool list;
    /* of a place ended by =WORD (which path has not): what it says by being there, whatever stands
     * there; else "" */
    char by_being[128];
} hf_alternative_t;
/* *at is the text at first, and what is still to be cut off later. */
bool hf_next_alternative(const char **at, hf_alternative_t *out);
/* The same of a row's key, whose alternatives are places of config.json: "a|+b|c[]|d=yes". */
bool hf_next_place(const char **at, hf_alternative_t *out);

/* True if "a|b|c" holds value. */
bool hf_one_of(const char *alternatives, const char *value);
/* True for the same number, or the same text with true for yes and false for no. */
bool hf_same_value(const char *a, const char *b);
/* Whether some row of the table sets an option of this name. */
bool hf_is_option(const hf_table_t *t, const char *name);

/* Which parameters: those of the model itself, the factors of an adapter, whose tensors are PEFT's, or
 * all. */
enum { HF_OF_MODEL = 1, HF_OF_ADAPTER = 2, HF_OF_BOTH = 3 };

/* Of a user that is a whole parameter. */
#define HF_NO_EXPERT UINT32_MAX

/* A parameter, or of one with {e} in its name an expert's part of it, that lies in a Hugging Face
 * tensor, alone or with others. */
typedef struct hf_user {
    char *tensor; /* its name: "model.layers.7.self_attn.q_proj.weight" */
    uint32_t parameter;
    uint32_t expert; /* HF_NO_EXPERT, or the first index of what lies there */
} hf_user_t;

/* A tensor as Hugging Face's folder has it. */
typedef struct hf_tensor {
    const char *name;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
    uint64_t elements;
    /* [user_count] the parameters that lie in it, or parts of them, in weights.users */
    const hf_user_t *users;
    uint32_t user_count;
} hf_tensor_t;

typedef struct hf_weights {
    /* [count] sorted by name; tied parameters have none of their own. */
    hf_tensor_t *tensors;
    uint32_t count;
    /* [user_count] owned, sorted by tensor */
    hf_user_t *users;
    uint32_t user_count;
    /* [tied_count] names under which a tied parameter may stand in a file all the same; owned. */
    hf_user_t *tied;
    uint32_t tied_count;
} hf_weights_t;

/* Checks that the rows that share a tensor agree on its shape and fill it. */
lh_status_t hf_weights_new(const parameters_t *parameters, uint32_t which,
                           hf_weights_t *out) LH_MUST_CHECK;
void hf_weights_free(hf_weights_t *w);

/* Shape and elements of what a user has of its parameter: of an expert, all but the first dimension.
 * Returns the rank. */
uint32_t hf_user_shape(const parameters_t *parameters, const hf_user_t *user,
                       uint64_t shape[LH_MAX_RANK], uint64_t *elements);

/* "[512, 64]" */
enum { HF_SHAPE_TEXT = 128 };
void hf_shape_text(uint32_t rank, const uint64_t *shape, char out[HF_SHAPE_TEXT]);

#endif
