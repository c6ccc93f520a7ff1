/* graph/op_pattern.h - the recordings that a fused op takes the place of: lh_op_t.fuses, read into
 * calls whose slots are numbered words. */
#ifndef GRAPH_OP_PATTERN_H
#define GRAPH_OP_PATTERN_H

#include <base/status.h>
#include <graph/recording.h>

enum { PATTERN_WORDS = 24, PATTERN_NONE = 0xff };

typedef struct pattern_call {
    const op_t *op;
    /* By slot of that op, the word that names its value. PATTERN_NONE: an input that is left out, an
     * output that nobody uses. */
    uint8_t word[OP_SLOTS];
} pattern_call_t;

/* One way. Words are numbered in the order in which they first stand in the text. */
struct op_pattern {
    pattern_call_t calls[LH_FUSES];
    uint32_t call_count, word_count;
    /* By word, the fused op's slot. PATTERN_NONE: a value that is gone once the op is fused. */
    uint8_t slot[PATTERN_WORDS];
};

/* Fills in op->patterns (mem_free) from op->row.fuses; the ops that it names are among ops[count].
 * Refused with a sentence: what does not parse or can't be matched, from the last call back. */
lh_status_t op_patterns_parse(op_t *op, op_t *const *ops, uint32_t count) LH_MUST_CHECK;

#endif
