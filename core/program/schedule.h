/* program/schedule.h - the order of a step: a table of rows {program, chunk, micro-batch, frame}.
 *
 * A model is a line of parts: the embedding, the blocks, the head. A chunk is a run of them. A row
 * takes one micro-batch through one chunk, there or back; what the way back needs of the way there
 * is its frame, which the forward row takes and the last backward row gives back. The head goes
 * there and back in its forward row, as its logits exist for some rows only.
 *
 * Depth-first and breadth-first are generated, any other table is read from a file. All are checked
 * when they are made, and model_flow.c writes programs from them. */
#ifndef PROGRAM_SCHEDULE_H
#define PROGRAM_SCHEDULE_H

#include <base/status.h>

enum {
    SCHEDULE_FORWARD,
    SCHEDULE_BACKWARD,         /* both of these: */
    SCHEDULE_BACKWARD_INPUT,   /* all that leads to the gradient of the chunk's input           */
    SCHEDULE_BACKWARD_WEIGHTS, /* what leads to gradients of its weights only, some time later */
    SCHEDULE_PROGRAMS
};
extern const char *const schedule_programs[SCHEDULE_PROGRAMS]; /* "backward_input" */

/* A row: what is done, to which part of the model, for which micro-batch, with which frame. */
typedef struct schedule_row {
    uint32_t program, chunk, micro_batch, frame; /* frame: which of the chunk's */
    uint32_t line;                               /* of the file; 0: it was generated */
} schedule_row_t;

typedef struct schedule schedule_t;
/* A checked table; owned by who made it, read only while programs are written. */
struct schedule {
    char *name; /* for sentences: the file, or "depth-first" */
    schedule_row_t *rows;
    uint32_t count;
    uint32_t chunks, micro_batches;
    uint32_t frames; /* of each chunk, at most: micro-batches that are under way there */
    bool forward_only;
    /* Where the table repeats itself for the next micro-batches, a program is written for one round
     * of it only and run for each. */
    uint32_t rounds, round_rows, round_micro_batches;
};

enum { SCHEDULE_MICRO_BATCHES = 1 << 20, SCHEDULE_CHUNKS = 1 << 12, SCHEDULE_ROWS = 1 << 24 };

/* Each micro-batch there and back through one chunk, which is the whole model. */
lh_status_t schedule_depth(uint32_t micro_batches, schedule_t **out) LH_MUST_CHECK;
/* All micro-batches through each part before the next part. */
lh_status_t schedule_breadth(uint32_t blocks, uint32_t micro_batches,
                             schedule_t **out) LH_MUST_CHECK;
/* Forward through one chunk, for scores and generation. */
lh_status_t schedule_forward(uint32_t micro_batches, schedule_t **out) LH_MUST_CHECK;
/* A CSV: the line "program,chunk,micro_batch,frame", then a row each; empty lines and those that
 * begin with # are left out. */
lh_status_t schedule_read(const char *path, schedule_t **out) LH_MUST_CHECK;
/* The same of [length] bytes that were read already; NUL follows them. */
lh_status_t schedule_parse(const char *name, const char *text, size_t length,
                           schedule_t **out) LH_MUST_CHECK;
void schedule_free(schedule_t *s); /* NULL does nothing */

/* Whether a model of so many blocks can be cut into its chunks. */
lh_status_t schedule_fits(const schedule_t *s, uint32_t blocks) LH_MUST_CHECK;
/* Parts [*first, *end) of a chunk: 0 is the embedding, blocks + 1 the head. Chunks share the blocks
 * evenly, the embedding is with the first and the head with the last; or each part is one. */
void schedule_parts(const schedule_t *s, uint32_t blocks, uint32_t chunk, uint32_t *first,
                    uint32_t *end);

#endif
