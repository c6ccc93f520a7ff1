/* engine/part_record.h - records a model's parts for a program: embedding, blocks, and the head
 * cut where its logits begin.
 *
 * A part is recorded by the model's plugin, fused, and where the program trains differentiated. The
 * head is not kept whole: logits [tokens, vocab] in F32 would be the largest value of most models,
 * by far. So the head is cut at its last matmul, and everything from there on is recorded for a
 * chunk of rows, with the loss and its gradient in the same go; the logits of a chunk are gone
 * before the next chunk's are made. The price: only ops by element may stand behind that matmul,
 * and its products are smaller.
 *
 * The control thread calls all of this while programs are written. */
#ifndef ENGINE_PART_RECORD_H
#define ENGINE_PART_RECORD_H

#include <engine/program.h>

/* A recording with the values at its borders. Equal blocks share the recording. */
typedef struct part {
    recording_t *r;           /* the program's; NULL: the part has no nodes */
    uint32_t part, block;     /* LH_PART_*, number of the block */
    lh_value_t input, output; /* of the recording; input 0: the embedding, which reads tokens */
    lh_value_t seed;          /* gradient of the output; after part_differentiate */
    lh_value_t gradient;      /* of the input; 0: none is wanted */
    uint32_t forward_end;     /* nodes from here on are the reverse pass */
    lh_value_t stats, loss;   /* of head_parts_t.loss only: [rows, 3] where it scores, [1] */
} part_t;

/* Records the embedding or a block for `tokens` rows of a micro-batch, and fuses the recording;
 * input and output are [tokens, hidden]. The program owns the recording. LH_INVALID where the model
 * gives another shape. */
lh_status_t part_record(program_t *p, uint32_t part, uint32_t block, uint64_t tokens,
                        part_t *out) LH_MUST_CHECK;
/* Appends the reverse pass. seed_dtype: of the output's gradient, which comes from the next
 * part. */
lh_status_t part_differentiate(program_t *p, part_t *part, lh_dtype_t seed_dtype) LH_MUST_CHECK;
/* Whether b's calls are a's with other parameters: the recordings are equal, and the same
 * parameters are frozen, as those have no gradient. */
bool part_equal(const program_t *p, const part_t *a, const part_t *b);

/* The head in sections, so that the logits exist for a chunk of rows only. */
typedef struct head_parts {
    part_t front;  /* all rows: up to the last matmul, the final norm as a rule; r NULL: nothing */
    part_t matmul; /* a chunk: the product that makes the logits, [rows, vocab]                  */
    part_t cap;    /* a chunk: ops by element behind the product; r NULL: nothing                */
    part_t loss;   /* a chunk: cross-entropy; output is the gradient of the logits, for TRAIN    */
    part_t sums;   /* once: losses of sums over the blocks, which depend on nothing else; r NULL */
} head_parts_t;

/* Records the front for all tokens of a micro-batch and the rest for `rows`. differentiate: appends
 * reverse passes, for TRAIN. LH_UNSUPPORTED where the head can't be cut. */
lh_status_t part_record_head(program_t *p, uint64_t rows, bool differentiate,
                             head_parts_t *out) LH_MUST_CHECK;

/* The dtype of the logits of a program: F32 (F64 where it computes in that), or of narrow ones the
 * compute dtype. */
lh_dtype_t part_logits_dtype(const program_t *p);

#endif
