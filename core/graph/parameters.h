/* graph/parameters.h - the logical parameters of a model: what its table says, for every block.
 *
 * Logical names are `embed`, `blocks.7.attn.wq`, `head`: independent of rank, layout and storage.
 * Checkpoints, Hugging Face import and export and the optimizer address parameters by their index
 * here, which is the same on every rank. The table costs some hundred bytes a parameter and holds
 * no weights.
 *
 * Start values are drawn here too: each is a function of the seed, the parameter's name and the
 * element's number (Philox, a counter-based generator: Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3", 2011). So any rank can draw any range of any parameter, and all ranks get the
 * same values; a generator with a state would be faster, and tie values to the layout. */
#ifndef GRAPH_PARAMETERS_H
#define GRAPH_PARAMETERS_H

#include <base/status.h>

#include <longhaul/model.h>

/* One parameter of one block, in its whole form. All fields are set by parameters_new and stay. */
typedef struct parameter {
    char *name;            /* logical; owned                                                 */
    const lh_param_t *row; /* imported; name, hf_name, shape, ...: valid until parameters_free */
    uint32_t part, block;  /* LH_PART_*; the block's number, 0 for embed and head            */
    uint32_t rank;         /* 1 to 3                                                         */
    uint64_t shape[LH_MAX_RANK];
    uint64_t rows, columns; /* the product of all dimensions but the last; the last           */
    uint64_t elements;
    /* Of a matrix that is adapted: index of the first factor, behind which the others stand.
     * 0: none, as the first parameter is never a factor. */
    uint32_t adapter;
    bool factor;      /* it is one of an adapter's */
    uint32_t storage; /* index of the parameter in whose memory this one lies: its own, or that of
                         the parameter it is tied to, which is counted, stored and updated once */
} parameter_t;

/* All parameters of a model. Not changed once made, so any thread may read it. */
typedef struct parameters {
    parameter_t *items; /* [count] */
    uint32_t count;
    uint32_t blocks;
    uint64_t hidden, vocab, max_tokens; /* as the model describes itself */
    uint64_t elements;                  /* of all; tied parameters count once */
    uint8_t *block_classes;             /* [blocks] */
    lh_param_t *rows;                   /* [row_count] the model's table, imported */
    uint32_t row_count;
    /* Of an adapter: rows of the factors, with names of their own, ADAPTER_FACTORS for each row of
     * the model's, and alpha / rank. */
    lh_param_t *factor_rows;
    uint32_t factor_row_count;
    double adapter_scale;
    uint32_t adapter_factors; /* of a matrix: ADAPTER_FACTORS, or without the magnitude ADAPTER_M */
} parameters_t;

/* A low-rank change of matrices (Hu et al., "LoRA: low-rank adaptation of large language models",
 * 2021): y = x W' becomes x W' + scale (x A') B', with the factors A [rank, in] and B [out, rank]
 * as parameters NAME.lora_a and NAME.lora_b behind the matrix NAME [out, in]. A new A is normal with
 * the variance of PEFT's, a new B zero, so that nothing changes at first. */
typedef struct parameters_adapter {
    const char *match; /* globs over logical names, of matrices of blocks */
    uint64_t rank;
    double scale; /* alpha / rank */
    /* A third factor, NAME.lora_m [out] (Liu et al., "DoRA: weight-decomposed low-rank adaptation",
     * 2024): each row of the changed matrix is scaled so that its norm is that of the row as it was,
     * and lora_m. A difference and not the norm itself, as PEFT has it: so a new one is zero, whatever
     * the matrix is, and a small one is not lost beside a BF16 number of the norm's size. */
    bool magnitude;
} parameters_adapter_t;
enum { ADAPTER_A, ADAPTER_B, ADAPTER_M, ADAPTER_FACTORS };

/* Of a matrix with an adapter, which has the three: index of a factor. */
static inline uint32_t parameter_factor(const parameter_t *matrix, uint32_t factor)
{
    return matrix->adapter + factor;
}
/* Whether a parameter is a lora_m; then its matrix is ADAPTER_FACTORS before it. */
static inline bool parameter_is_magnitude(const parameter_t *p)
{
    return p->factor && p->rank == 1;
}

/* Adds the factors, once. Refused where nothing matches that can be adapted, or the rank is larger
 * than a matrix's side. Indices of parameters change. */
lh_status_t parameters_adapt(parameters_t *p, const parameters_adapter_t *how) LH_MUST_CHECK;
/* Whether one of the comma-separated globs matches a name. Globs are those of fnmatch without
 * flags, so a star matches dots, too. NULL matches nothing. */
bool parameters_match(const char *globs, const char *name);

/* The parameters of an opened model, as its describe() says. Order: embed, block 0 .. block n - 1,
 * head; within a part the order of the table. LH_INVALID with a sentence that names the parameter.
 * Freed by parameters_free, for which NULL does nothing. */
lh_status_t parameters_new(const lh_model_api_t *api, lh_model_t *model,
                           parameters_t **out) LH_MUST_CHECK;
void parameters_free(parameters_t *p);

/* Index of a logical name; false if there is none. Looks at all names in turn. */
bool parameters_find(const parameters_t *p, const char *name, uint32_t *out);
/* Index of a row's name as a part records it: "attn.wq" in block 7. */
bool parameters_find_local(const parameters_t *p, uint32_t part, uint32_t block, const char *name,
                           uint32_t *out);

/* Start values of elements [begin, begin + count) of a parameter, into out [count]. They depend on
 * seed, name and element only, so they are the same on every rank and in every layout. init_std:
 * the job's standard deviation, for rows that name none. Several threads may call it at once. */
void parameter_initial(const parameters_t *p, uint32_t index, uint64_t seed, double init_std,
                       uint64_t begin, uint64_t count, float *out);

#endif
