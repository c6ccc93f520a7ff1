/* graph/parameters.h - the logical parameters of a model: what its table says, for every block.
 *
 * Logical names are `embed`, `blocks.7.attn.wq`, `head`: independent of rank, layout and storage.
 * Checkpoints, Hugging Face import and export and the optimizer address parameters by their index
 * here, which is the same on every rank. The table costs some hundred bytes a parameter and holds
 * no weights.
 *
 * Start values are drawn here too: each is a function of the seed, the parameter's name and the
 * element's number (Philox, a counter-based generator), so any rank can draw any range of any
 * parameter and all get the same. */
#ifndef GRAPH_PARAMETERS_H
#define GRAPH_PARAMETERS_H

#include <base/status.h>

#include <longhaul/model.h>

/* One parameter of one block, in its whole form. All fields are set by parameters_new and stay. */
typedef struct parameter {
    char *name;            /* logical                                                        */
    const lh_param_t *row; /* imported; name, hf_name, shape, ...: valid until parameters_free */
    uint32_t part, block;  /* LH_PART_*; 0 for embed and head                                */
    uint32_t rank;         /* 1 to 3                                                         */
    uint64_t shape[LH_MAX_RANK];
    uint64_t rows, columns; /* all dimensions but the last; the last                          */
    uint64_t elements;
    uint32_t storage; /* index of the parameter in whose memory this one lies: itself, or the one
                         it is tied to, which is counted, stored and updated once            */
} parameter_t;

/* Of a model; owned by the weights that are made of it. */
typedef struct parameters {
    parameter_t *items;
    uint32_t count;
    uint32_t blocks;
    uint64_t hidden, vocab, max_tokens;
    uint64_t elements;      /* tied ones counted once */
    uint8_t *block_classes; /* [blocks] */
    lh_param_t *rows;
    uint32_t row_count;
} parameters_t;

/* From an opened model: describe(), checked; LH_INVALID with a sentence that names the parameter.
 * Order: embed, block 0 .. block n - 1, head; within a part the order of the table. */
lh_status_t parameters_new(const lh_model_api_t *api, lh_model_t *model,
                           parameters_t **out) LH_MUST_CHECK;
void parameters_free(parameters_t *p);

/* Index of a logical name; false if there is none. A walk over all names. */
bool parameters_find(const parameters_t *p, const char *name, uint32_t *out);
/* Index of a row's name as a part records it: "attn.wq" in block 7. */
bool parameters_find_local(const parameters_t *p, uint32_t part, uint32_t block, const char *name,
                           uint32_t *out);

/* Elements [begin, begin + count) of a parameter before the first step, in F32. Counter-based,
 * keyed by (seed, name, element): the same on every rank and in every layout. init_std is the
 * job's, used where the row names none. Pure, so that several threads may call it at once. */
void parameter_initial(const parameters_t *p, uint32_t index, uint64_t seed, double init_std,
                       uint64_t begin, uint64_t count, float *out);

/* Draws start values ahead of who takes them, on every processor that this process may use, so
 * that drawing and copying to a device go on side by side. A value depends on its name and place
 * only, so it has the same bits with any number of threads. */
typedef struct parameter_draw parameter_draw_t;

/* Start values of elements [begin, begin + count) of a parameter, in the order of its rows. */
typedef struct parameter_span { /* of one parameter */
    uint32_t parameter;
    uint64_t begin, count;
    const float *values; /* [count], valid until the next span is taken */
} parameter_span_t;

/* `threads`, this one included; 0: as many as processors. Fewer where the machine gives no more.
 * Two buffers of 1 MiB are all that it takes. The parameters are borrowed until
 * parameter_draw_free. [serial] */
lh_status_t parameter_draw_new(const parameters_t *p, uint64_t seed, double init_std,
                               uint32_t threads, parameter_draw_t **out) LH_MUST_CHECK;
/* Starts on elements begin .. end of a parameter. They must have come out as spans before the next
 * call. [serial] */
void parameter_draw_start(parameter_draw_t *in, uint32_t parameter, uint64_t begin, uint64_t end);
/* The spans in order; false: there are no more. The next one is drawn meanwhile. [serial] */
bool parameter_draw_next(parameter_draw_t *in, parameter_span_t *out);
/* NULL does nothing. */
void parameter_draw_free(parameter_draw_t *in);

#endif
