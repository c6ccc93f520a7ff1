/* train/snapshot.h - the weights and optimizer state of a session as the tensors of a checkpoint.
 */
#ifndef TRAIN_SNAPSHOT_H
#define TRAIN_SNAPSHOT_H

#include <checkpoint/checkpoint.h>
#include <checkpoint/writer.h>
#include <graph/engine.h>

typedef struct snapshot {
    weights_t *weights;
    checkpoint_tensor_t *tensors;
    uint32_t *spaces, *parameters; /* [count]: what tensor i is a copy of */
    char **names;                  /* [count]: owned                      */
    uint32_t count;
} snapshot_t;

/* Lists every stored parameter and every state held here. After engine_build. */
lh_status_t snapshot_new(weights_t *w, snapshot_t **out) LH_MUST_CHECK;
void snapshot_free(snapshot_t *s); /* NULL does nothing */

/* Copies all into the writer's places, which were laid out with s->tensors. */
lh_status_t snapshot_take(const snapshot_t *s, writer_t *writer) LH_MUST_CHECK;

/* Fills the weights from a checkpoint; with `states` the optimizer's too. A tensor that is missing,
 * has another shape or has no place in the model is refused by name. */
lh_status_t snapshot_load(const snapshot_t *s, checkpoint_t *from, bool states) LH_MUST_CHECK;

/* The same for weights alone, where there is no optimizer: evaluation and generation. */
lh_status_t snapshot_load_weights(weights_t *w, checkpoint_t *from) LH_MUST_CHECK;

#endif
