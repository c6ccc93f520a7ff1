/* train/train_state.h - the state of a training run, shared by the files that open, step and save it.
 *
 * trainer_t is plain data that trainer.c makes and that train_step.c, train_run.c and train_save.c
 * change; it is owned by train_run's stack frame and touched by the control thread alone. It is one
 * struct and not three since a step, a save and an evaluation need most of it. */
#ifndef TRAIN_TRAIN_STATE_H
#define TRAIN_TRAIN_STATE_H

#include <checkpoint/writer.h>
#include <session/snapshot.h>
#include <session/step_layout.h>
#include <session/train_comm.h>
#include <train/train.h>

enum { RUN_ID = 33, FINGERPRINT_TEXT = 192 };

/* What all ranks agree on in each step. */
enum { AGREE_STOP, AGREE_SAVE, AGREE_ASKED, AGREE_EXPOSED, AGREE_NUMBERS };

/* Images of what ranks save, and where they go: train_memory.c. */
typedef struct train_memory {
    bool on;    /* the writer has slots for them */
    bool keeps; /* snapshots stay in memory: [checkpoint] memory_every */
    bool apart; /* sites have checkpoints of their own, for which images travel, too */
    /* The step that this start has found in memory alone, and saved; 0: none. Where the run has gone on
     * without it (train_sites.c), or it turned out damaged, this start is from another one. */
    uint64_t rescued;
    /* To which ranks this one's images go, and those whose images come here; a message each for
     * both slots. due: what is in `slot` is to be sent. */
    bool travels, due;
    uint32_t target_count, guest_count, slot;
    uint32_t *targets, *guests;
    uint64_t *bytes; /* [ranks] of a slot of each */
    uint32_t arena;
    collective_t **send, **receive; /* [target_count][2], [guest_count][2] */
} train_memory_t;

/* Fields are roughly in the order in which they come to life. A pointer is NULL until its part is
 * made, so trainer_close can be called after any failure. */
typedef struct trainer {
    /* Of the caller, unchanged while the run lives; job is how->job. */
    const train_how_t *how;
    const job_t *job;
    /* Talk with other ranks: comm moves gradients, agree the host's own numbers by way of it. */
    train_comm_t comm; /* of several ranks; comm.comm is NULL alone */
    train_agree_t agree;
    step_calls_t *calls;
    /* The writer's processes were forked before a device was opened, so they hold no copy of its
     * memory. */
    writer_t *writer;
    checkpoint_t *resumed;    /* while opening */
    bool named;               /* somebody has named its step, be it to rank 0 alone */
    checkpoint_below_t below; /* which may be resumed: others have turned out damaged */
    /* Model, device, programs. The layout is a guess until the data says how many documents a
     * sequence may hold. */
    session_t *session;
    step_layout_t layout; /* bound by the data once that is open */
    step_programs_t programs;
    snapshot_t *snapshot;
    /* A batch is copied out of the token files into these rows, and from there to the device. */
    batches_t *data, *valid; /* valid NULL: nothing is evaluated during training */
    batch_skips_t skips;
    uint64_t samples;    /* that the training split was opened for */
    batch_rows_t *batch; /* [share.micro_batches] one after the other in memory */
    uint64_t gathered;   /* the step whose sequences lie there, not yet weighed; 0: of none */
    float *step_rows;    /* [groups, LH_STEP_WORDS]: what the last step_update was given, then what
                                came back of the last step that was finished */
    double
        rates[STAGING_SLOTS]; /* learning rates of steps that are queued, by step % STAGING_SLOTS */
    double agreed[AGREE_NUMBERS]; /* what ranks told each other in the last step, or are about to */
    uint64_t agreed_step;         /* of which AGREE_ASKED wants a checkpoint */
    double exposed_s;             /* of the last step that was told; AGREE_EXPOSED of the next */
    double least_exposed_s; /* of the step before t->step, by the rank that had least; no step: 0 */
    float *losses;          /* OUTPUT_LOSSES; NULL alone  */
    /* Phase dpo: of the global batches of steps that are queued, by step % STAGING_SLOTS. */
    preference_sum_t pairs[STAGING_SLOTS];
    int32_t (*seeds)[4]; /* [share.micro_batches]             */

    /* Progress: what a checkpoint of this moment would say. tokens counts those of steps that were
     * refused, too. */
    uint64_t step;   /* made so far: their figures were read */
    uint64_t cursor; /* of the data, behind them: data/batches.h */
    uint64_t queued; /* given to the device so far: `step`, or one or two more inside the loop */
    uint64_t first_step;
    uint64_t tokens; /* seen since the start of training */
    /* How the run ends, as far as it is known yet. */
    bool failed;         /* others may be gone: nothing waits for them */
    uint64_t asked_step; /* somebody wants a checkpoint of this step, all ranks know it; 0: none */
    bool stop;           /* a rank was asked to save and end, all know it since the last step */
    bool leaving;        /* it was its machine alone that is to leave: [launch] notice */
    /* The save under way. Once the run is open only train_save.c writes these. */
    uint64_t saved_step; /* of the last save that was handed over; UINT64_MAX: none */
    uint32_t save_phase; /* train_save.c: the same on all ranks */
    train_memory_t memory;
    uint32_t memory_slot;        /* of the image that is under way */
    uint64_t session_number;     /* of this start, the same on all ranks */
    uint64_t incarnation;        /* likewise: checkpoint/incarnation.h; 0: none is needed */
    bool save_to_disk;           /* it is to be written, too */
    bool taking;                 /* its tensors are being copied, beside the step that is queued */
    struct train_fetch *fetch;   /* while opening: what sites lack, train_sites.c */
    writer_result_t save_result; /* of this rank in that phase, once save_ended */
    bool save_ended;
    uint64_t waited_ns; /* that training stood still for the save under way        */
    /* Of the last steps: how many in a row were refused, their loss, and where their wall time
     * went. part_ns is cleared when a step is told. */
    uint64_t not_finite;            /* steps in a row, those before a resume included */
    checkpoint_scalar_t scalars[3]; /* what a save says of that, evaluation and the start */
    double loss, valid_loss;
    uint64_t valid_step; /* of which valid_loss is; UINT64_MAX: none */
    bool unevaluated;    /* the run before was ended before the evaluation behind first_step */
    uint64_t begun_ns, part_ns[STEP_PARTS];

    /* Who this run is, for the manifest: an id that all runs of the job share through resumes, a
     * digest of its INI, the kernels that were chosen, what its bits depend on (identity), and the
     * fingerprints of all devices. */
    char run[RUN_ID];
    char config[SHA256_TEXT];
    text_t variants;
    text_t identity;
    text_t devices; /* of all ranks */
    checkpoint_plugin_t plugins[8];
    uint32_t plugin_count;
    /* Told at the end; owned. */
    profile_row_t *profile; /* of one step */
    uint32_t profile_count;
    profile_frame_t *frames; /* of the same step */
    uint32_t frame_count;
    rank_memory_t *ranks_memory; /* of all ranks, once the steps are made */
} trainer_t;

/* Of a manifest: what the run says about itself takes so many bytes, at most. */
uint64_t trainer_manifest_head(const trainer_t *t);
/* For the sentence when this rank or another is lost: "in step 40, evaluation". text may be NULL.
 */
void trainer_doing(const trainer_t *t, uint64_t step, const char *text);
/* Adds the time since *since to a part and moves *since on. */
void trainer_clock(trainer_t *t, uint32_t part, uint64_t *since);
/* Somebody asked for an end. Several ranks stop only by t->stop, which all learnt in the same
 * exchange of the same step. A single process asks its own flag, too, which may have been raised
 * since. */
bool trainer_stop_asked(const trainer_t *t);

#endif
