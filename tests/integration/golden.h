/* golden.h - the references that PyTorch made (tests/golden): weights, batches, gradients, losses.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "rig.h"

#include <hf/hf_config.h>

enum { GOLDEN_STEPS = 16, GOLDEN_BATCH = 4, GOLDEN_SEQUENCE = 32 };

typedef struct golden_model {
    const char *name, *plugin; /* folder of tests/golden; model plugin */
    rig_option_t options[20];  /* config.json by hand; none: golden_options reads it */
} golden_model_t;

/* GOLDEN_FIRST of them go every way that a test has, the others some. */
enum { GOLDEN_FIRST = 3, GOLDEN_MODELS = 14, GOLDEN_OPTIONS = 32 };
extern const golden_model_t golden_models[GOLDEN_MODELS];

/* Whether the folder of models has it: LH_TEST_GOLDEN may name another folder than tests/golden, with
 * some models of the same names and other sizes. */
bool golden_there(const golden_model_t *m);
/* Ended by a row of NULL; of the process's life. */
const rig_option_t *golden_options(const golden_model_t *m);
/* The options that a config.json has for a model plugin, ended by a row of NULL. The caller frees *held
 * with hf_config_free, and no sooner, as it has their texts. */
void golden_read_config(const char *model, const char *path, hf_config_t *held,
                        rig_option_t out[GOLDEN_OPTIONS]);
/* A tensor of a file in the model's folder, as floats; `prefix` goes before the Hugging Face name.
 * The caller frees. NULL when the file has none of that name. */
float *golden_tensor(const golden_model_t *m, const char *file, const char *name, uint64_t *count);
/* Tokens of step i: [GOLDEN_BATCH, GOLDEN_SEQUENCE + 1]. */
void golden_batch(const golden_model_t *m, uint32_t step,
                  int32_t out[GOLDEN_BATCH * (GOLDEN_SEQUENCE + 1)]);
/* A parameter's values as the core holds them, out of the Hugging Face tensor of that file. */
float *golden_parameter(const golden_model_t *m, const char *file, const char *prefix,
                        const parameter_t *p);
void golden_weights(const golden_model_t *m, rig_t *rig);
/* How far norms of gradients may be from those of FP32, relatively: BF16 adds its rounding up over
 * the blocks, and may send a token to another expert. Where the model's references have norms of PyTorch's own
 * BF16, twice as far as those are, too: a step of a curve that jumps does so in any BF16. */
double golden_norm_tolerance(const golden_model_t *m, const rig_t *rig, lh_dtype_t compute);
/* Numbers of an array in expected.json, up to max; returns how many: none without that key. A plain
 * number counts as one. */
uint32_t golden_numbers(const golden_model_t *m, const char *key, double *out, uint32_t max);
/* The curve of micro-batches of `rows` sequences; returns how far it may be off, relatively. A loss
 * of a model's own may depend on how a batch is cut (micro_batches.json). */
double golden_curve(const golden_model_t *m, lh_dtype_t compute, uint32_t rows,
                    double losses[GOLDEN_STEPS], double norms[GOLDEN_STEPS]);

#endif
