/* engine/part_record.h - records a model's parts for a program: embedding, blocks, and the head
 * cut where its logits begin.
 *
 * A part is recorded by the model's plugin, fused, and where the program trains differentiated.
 * The head is not kept as one: logits [tokens, vocab] in F32 would be the largest value of most
 * models, by far. So the head is cut at its last matmul, and everything from there on is recorded
 * for a chunk of rows, with the loss and its gradient in the same go; the logits of a chunk are
 * gone before the next one's are made. */
#ifndef ENGINE_PART_RECORD_H
#define ENGINE_PART_RECORD_H

#include <engine/program.h>

/* A recording with the values at its borders. Equal blocks share the recording. */
typedef struct part {
    recording_t *r; /* kept by the program; NULL: there is nothing to do here */
    uint32_t part, block;
    lh_value_t input, output;
    lh_value_t seed;        /* gradient of the output; after part_differentiate */
    lh_value_t gradient;    /* of the input; 0: none wanted                     */
    uint32_t forward_end;   /* nodes from here on are the reverse pass          */
    lh_value_t stats, loss; /* of head_parts_t.loss only: [rows, 3], [1] */
} part_t;

/* Records embed or a block for `tokens` rows of a micro-batch, and fuses it; input and output are
 * [tokens, hidden]. The program keeps the recording. LH_INVALID where the model gives another
 * shape. */
lh_status_t part_record(program_t *p, uint32_t part, uint32_t block, uint64_t tokens,
                        part_t *out) LH_MUST_CHECK;
/* Appends the reverse pass. seed_dtype is that of the gradient that comes from above. */
lh_status_t part_differentiate(program_t *p, part_t *part, lh_dtype_t seed_dtype) LH_MUST_CHECK;
/* Could b's calls be a's with other parameters? Recordings must be equal, and the same parameters
 * frozen, as those have no gradient. */
bool part_equal(const program_t *p, const part_t *a, const part_t *b);

/* The head in sections, so that the logits exist for a chunk of rows only. */
typedef struct head_parts {
    part_t front;  /* all rows: up to the input of the last matmul (the norm); r NULL: nothing   */
    part_t matmul; /* a chunk: onto the logits, in F32                                          */
    part_t cap;    /* a chunk: ops by element behind it, in F32; r NULL: nothing                 */
    part_t loss;   /* a chunk: cross-entropy; output is the gradient of the logits               */
} head_parts_t;

/* Records front for all of the program's tokens and the rest for `rows`. differentiate: for
 * TRAIN. */
lh_status_t part_record_head(program_t *p, uint64_t rows, bool differentiate,
                             head_parts_t *out) LH_MUST_CHECK;

#endif
