/* program/schedule.h - the order of a step: a table of rows {program, chunk, micro-batch, frame}.
 *
 * A model is a line of parts: the embedding, the blocks, the head. A chunk is a run of parts. A row
 * takes one micro-batch through one chunk, forward or back; what the way back needs of the forward
 * pass is its frame, which the forward row takes and the last backward row gives back. The head
 * goes there and back in its forward row, as its logits exist for some rows at a time only.
 *
 * Depth-first needs the memory of one micro-batch; breadth-first that of all, and gives transfers
 * more to hide behind. Both are generated; any other table is read from a file. A table is checked
 * when it is made, and engine/model_program.c writes programs from it. */
#ifndef PROGRAM_SCHEDULE_H
#define PROGRAM_SCHEDULE_H

#include <base/status.h>

enum {
    SCHEDULE_FORWARD,
    SCHEDULE_BACKWARD,         /* the whole way back, or it is cut in two:                     */
    SCHEDULE_BACKWARD_INPUT,   /* first, all that leads to the gradient of the chunk's input   */
    SCHEDULE_BACKWARD_WEIGHTS, /* later, what leads to gradients of the chunk's weights only   */
    SCHEDULE_PROGRAMS
};
extern const char *const schedule_programs[SCHEDULE_PROGRAMS]; /* "backward_input" */

/* A row: what is done, to which part of the model, for which micro-batch, with which frame. */
typedef struct schedule_row {
    uint32_t program, chunk, micro_batch, frame; /* SCHEDULE_*; all numbers begin at 0 */
    uint32_t line;                               /* of the file, from 1; 0: generated */
} schedule_row_t;

typedef struct schedule schedule_t;
/* A checked table. Whoever made it owns it; programs read it only while they are written. */
struct schedule {
    char *name;           /* for sentences: the file, or "depth-first" */
    schedule_row_t *rows; /* [count] */
    uint32_t count;
    uint32_t chunks, micro_batches;
    uint32_t frames; /* the most that a chunk has: micro-batches that are under way there at once */
    bool forward_only;
    /* Where each part is a chunk: of this many blocks, the first ones, each is so many chunks instead,
     * its legs. 0 in tables that are read. */
    uint32_t leg_blocks, legs;
    /* The first block's way back is in two, with the embedding's between them; a block that does not go
     * in halves goes whole where the first would. False in tables that are read. */
    bool halves;
    /* Where the table repeats itself for the next micro-batches, a program is written for one round
     * and run once for each: rounds * round_micro_batches is micro_batches. */
    uint32_t rounds, round_rows, round_micro_batches;
};

/* Limits of a table that is read. */
enum { SCHEDULE_MICRO_BATCHES = 1 << 20, SCHEDULE_CHUNKS = 1 << 12, SCHEDULE_ROWS = 1 << 24 };

/* The functions that make a table fail with LH_INVALID and a sentence that names the line, and the
 * caller frees the table by schedule_free.
 *
 * Each micro-batch there and back through one chunk, which is the whole model. */
lh_status_t schedule_depth(uint32_t micro_batches, schedule_t **out) LH_MUST_CHECK;
/* All micro-batches through each part before the next part. The first leg_blocks of the blocks are
 * `legs` chunks each: all go through a leg before the next leg, and back likewise (engine/part_legs.h
 * says why, and where a block is cut). With leg_blocks 0 all go whole, and `legs` says nothing.
 * halves: all go back through the first block's input halves, then through the embedding, then through
 * the block's weights' halves, leg by leg (engine/part_halves.h). */
lh_status_t schedule_breadth(uint32_t blocks, uint32_t leg_blocks, uint32_t legs, bool halves,
                             uint32_t micro_batches, schedule_t **out) LH_MUST_CHECK;
/* Forward through one chunk, for scores and generation. */
lh_status_t schedule_forward(uint32_t micro_batches, schedule_t **out) LH_MUST_CHECK;
/* A CSV: the line "program,chunk,micro_batch,frame", then a row each; empty lines and those that
 * begin with # are left out. */
lh_status_t schedule_read(const char *path, schedule_t **out) LH_MUST_CHECK;
/* As schedule_read, for a file's text, [length] bytes and a NUL; `name` is for sentences. */
lh_status_t schedule_parse(const char *name, const char *text, size_t length,
                           schedule_t **out) LH_MUST_CHECK;
void schedule_free(schedule_t *s); /* NULL does nothing */

/* LH_INVALID where a model of so many blocks can't be cut into the table's chunks. */
lh_status_t schedule_fits(const schedule_t *s, uint32_t blocks) LH_MUST_CHECK;
/* Parts [*first, *end) of a chunk: 0 is the embedding, blocks + 1 the head. Chunks share the blocks
 * evenly, the embedding belongs to the first chunk and the head to the last; or each part is a
 * chunk of its own, where there are blocks + 2 and, with legs, as many more as these are. */
void schedule_parts(const schedule_t *s, uint32_t blocks, uint32_t chunk, uint32_t *first,
                    uint32_t *end);
/* Which leg of its block a chunk is, from 0; 0 for chunks that are none. */
uint32_t schedule_leg(const schedule_t *s, uint32_t chunk);

#endif
