/* session/snapshot.h - the weights and optimizer state of a session as the tensors of a checkpoint.
 *
 * Everything is saved as FP32 under logical names, without a trace of how ranks had cut it: so a
 * checkpoint of 8 ranks at ZeRO 3 loads on one at ZeRO 0. The mapping between those names and what
 * this rank holds is made once, as a list of rows.
 *
 * The second half tells which run a checkpoint belongs to: lines of text that are kept in the
 * manifest and compared when it is opened again. */
#ifndef SESSION_SNAPSHOT_H
#define SESSION_SNAPSHOT_H

#include <base/text.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/writer.h>
#include <engine/engine.h>
#include <parallel/transfers.h>
#include <session/session.h>

/* space is SPACE_VALUE, SPACE_PARAMETER for masters, SPACE_STATE + k for the k-th kind of state, or
 * SNAPSHOT_ERRORS: what was lost of sums that left this rank's site (transfers_errors). */
enum { SNAPSHOT_ERRORS = INT32_MAX };
typedef struct snapshot_row { /* what this rank holds of a logical tensor */
    char *name;               /* owned */
    uint32_t space, parameter, rank;
    uint64_t shape[LH_MAX_RANK]; /* of the whole tensor */
    uint64_t begin, count;       /* elements of it      */
    float *errors;               /* SNAPSHOT_ERRORS: [count], of the transfers */
} snapshot_row_t;

/* Loading and saving have lists of their own: a load fills all that a rank holds, a save writes
 * each element on one rank only. */
typedef struct snapshot {
    weights_t *weights;
    snapshot_row_t *rows; /* what a load fills */
    uint32_t row_count;
    checkpoint_tensor_t *tensors; /* what a save consists of: the parts that this rank owns */
    uint32_t *row_of;             /* [count] */
    uint32_t count;
    bool
        adds_nothing; /* an adapter that a checkpoint lacks is loaded as zeros, else left as it is */
    /* Of the take that is under way: the tensor at which it is, and how many of its elements are
     * copied. */
    uint32_t taking;
    uint64_t taken;
} snapshot_t;

/* Lists every stored parameter and every state held here, and of them what weights_owned gives this
 * rank to save: a state whose extent is not its parameter's goes whole with element 0. Errors of sums
 * are a tensor for each site and parameter, as sites have errors of their own. After engine_build and
 * comm_connect. t: NULL, alone. */
lh_status_t snapshot_new(weights_t *w, const transfers_t *t, snapshot_t **out) LH_MUST_CHECK;
void snapshot_free(snapshot_t *s); /* NULL does nothing */

/* Which checkpoints a job keeps, of [checkpoint]: for writer_how_t and checkpoint_displace. */
checkpoint_keep_t snapshot_keep(const job_t *job);

/* Begins to copy all into the writer's places, which were laid out with s->tensors. Forward and
 * backward passes that are queued from now on may run meanwhile, as they write nothing that is saved:
 * the update, and any other upload, only once all is copied. */
lh_status_t snapshot_begin(snapshot_t *s, writer_t *writer) LH_MUST_CHECK;
/* Copies some more, 64 MiB at most; *more is false once that was all. */
lh_status_t snapshot_go_on(snapshot_t *s, writer_t *writer, bool *more) LH_MUST_CHECK;
/* Copies all at once; training stands still for as long. */
lh_status_t snapshot_take(snapshot_t *s, writer_t *writer) LH_MUST_CHECK;
/* As snapshot_take, for the last time: gives masters and each kind of state back as soon as they
 * are copied. After engine_finish. */
lh_status_t snapshot_take_last(const snapshot_t *s, writer_t *writer) LH_MUST_CHECK;

/* Fills what is held here from a checkpoint of any number of ranks, reading no more than that, a
 * second time where the disk failed; with `states` the optimizer's too, and the errors of sums, which
 * begin at zero where the checkpoint has none. Any other tensor that is missing, one of another shape
 * or without a place in the model is refused by name. Reads from disk straight into
 * the weights. Where it fails some are overwritten: the caller loads another checkpoint or gives
 * up. */
lh_status_t snapshot_load(const snapshot_t *s, checkpoint_t *from, bool states) LH_MUST_CHECK;

/* Weights alone, for evaluation and generation, which have no optimizer: from the newest checkpoint
 * of a folder that gives them whole. A damaged one is skipped with a warning; *found is false where
 * the folder has none. model: the lines of snapshot_identity_model, with which the checkpoint's
 * must agree. For a single process: two that search at once may find different checkpoints. */
lh_status_t snapshot_load_newest(weights_t *w, const char *folder, const char *model,
                                 bool *found) LH_MUST_CHECK;

/* Fills the session's reference, whole, from the newest checkpoint of [dpo] reference, else of
 * `imported` (NULL: none). model as above. *digest: of its tensors, the same for another import of the
 * same files. */
lh_status_t snapshot_load_reference(const session_t *s, const char *imported, const char *model,
                                    uint64_t *digest) LH_MUST_CHECK;

/* ---- what a run's bits depend on besides its checkpoint: changed, it would be another run ---- */

/* Appends "section.key = value" lines: the model's options, the data and its order, the batch and
 * the precision, the optimizer's plugin and rule. The number of steps, learning rates, evaluation
 * and saving may change between runs and are not among them. out->failed tells if memory was
 * lacking. */
void snapshot_identity(const session_t *s, text_t *out);
/* The part of it that says which model it is: where nothing is trained. */
void snapshot_identity_model(const job_t *job, const plugin_t *plugin, const void *config,
                             text_t *out);
/* tokenizer_digest of what makes its text; 0, where that is not known, says nothing. */
void snapshot_identity_tokenizer(uint64_t digest, text_t *out);

/* The number that such a text gives for a key, "train.batch"; false where it has none. */
bool snapshot_identity_number(const char *text, const char *key, uint64_t *out);

/* Refuses with the first value that differs of those that both texts name; `then` is what the
 * checkpoint at `path` holds. */
lh_status_t snapshot_identity_compare(const char *path, const char *then,
                                      const char *now) LH_MUST_CHECK;
/* As snapshot_identity_compare, of the model and its tokenizer alone. What an import says of itself
 * has no such lines. */
lh_status_t snapshot_identity_compare_model(const char *path, const char *then,
                                            const char *now) LH_MUST_CHECK;

#endif
