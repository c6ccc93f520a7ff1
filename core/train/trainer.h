/* train/trainer.h - the inside of a training run, shared by the files that open, step and save it.
 */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <checkpoint/writer.h>
#include <session/snapshot.h>
#include <session/step_layout.h>
#include <session/train_comm.h>
#include <train/train.h>

enum { RUN_ID = 33, FINGERPRINT_TEXT = 192 };

typedef struct trainer {
    const train_how_t *how;
    const job_t *job;
    train_comm_t comm; /* of several ranks; comm.comm is NULL alone */
    train_agree_t agree;
    step_calls_t *calls;
    writer_t *writer;
    checkpoint_t *resumed; /* while opening */
    uint64_t below;        /* steps of checkpoints that may be resumed */
    session_t *session;
    step_layout_t layout; /* bound by the data once that is open */
    step_programs_t programs;
    snapshot_t *snapshot;
    batches_t *data, *valid; /* valid NULL: nothing is evaluated during training */
    batch_rows_t *batch;     /* [share.passes] one after the other in memory */
    float *step_rows;        /* [groups, LH_STEP_WORDS]    */
    int32_t (*seeds)[4];     /* [share.passes]             */

    uint64_t step; /* made so far */
    uint64_t first_step;
    uint64_t tokens;     /* seen since the start of training */
    bool failed;         /* others may be gone: nothing waits for them */
    bool stop;           /* a rank was asked to save and end, all know it since the last step */
    uint64_t saved_step; /* of the last save that was handed over; UINT64_MAX: none */
    uint32_t save_phase; /* train_save.c: the same on all ranks */
    writer_result_t save_result; /* of this rank in that phase, once save_ended */
    bool save_ended;
    uint64_t waited_ns;          /* that training stood still for the save under way        */
    uint32_t not_finite;         /* steps in a row */
    checkpoint_scalar_t refused; /* the same, as a save writes it */
    double loss, valid_loss;
    uint64_t begun_ns, part_ns[STEP_PARTS];

    char run[RUN_ID];
    char config[SHA256_TEXT];
    text_t variants;
    text_t identity;
    text_t devices; /* of all ranks */
    checkpoint_plugin_t plugins[8];
    uint32_t plugin_count;
    profile_row_t *profile; /* of one step */
    uint32_t profile_count;
    profile_frame_t *frames; /* of the same step */
    uint32_t frame_count;
    rank_memory_t *memory; /* of all ranks, once the steps are made */
} trainer_t;

lh_status_t trainer_open(trainer_t *t, const train_how_t *how) LH_MUST_CHECK;
void trainer_close(trainer_t *t);

/* For the sentence when this rank or another is lost: "in step 40, evaluation". text may be NULL.
 */
void trainer_doing(const trainer_t *t, uint64_t step, const char *text);
/* Adds the time since *since to a part and moves *since on. */
void trainer_clock(trainer_t *t, uint32_t part, uint64_t *since);

#endif
