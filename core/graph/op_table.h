/* graph/op_table.h - every op that can be recorded: the core's rows and those of loaded plugins.
 *
 * A row (lh_op_t) states as text its slots and the recordings that it may take the place of, so
 * that a plugin writes one line and no tables. The texts are parsed once, when the row is added: a
 * mistake in a row is told when its plugin is loaded, and everything after that reads numbers. The
 * table is made before the first model is recorded and not changed later, so any thread may read it
 * without a lock. */
#ifndef GRAPH_OP_TABLE_H
#define GRAPH_OP_TABLE_H

#include <base/status.h>

#include <longhaul/graph.h>

typedef struct op_table op_table_t;
typedef struct op op_t;

enum { OP_SLOTS = LH_MAX_SLOTS };

/* A pattern: lh_op_t.fuses read into calls whose slots are numbered words. core/graph/fusion.c
 * looks for its calls in a recording. */
enum { PATTERN_WORDS = 24, PATTERN_NONE = 0xff };

/* One call of a pattern, "op a b -> x y". */
typedef struct pattern_call {
    const op_t *op;
    /* By slot of that op, the word that names its value. PATTERN_NONE: an input that is left out,
     * an output that nobody uses. */
    uint8_t word[OP_SLOTS];
} pattern_call_t;

/* One way to record what a fused op does. Words are numbered in the order in which they first
 * appear in the text. */
typedef struct op_pattern {
    pattern_call_t calls[LH_FUSES];
    uint32_t call_count, word_count;
    /* By word, the fused op's slot. PATTERN_NONE: a value that is gone once the op is fused. */
    uint8_t slot[PATTERN_WORDS];
} op_pattern_t;

/* An op's row, imported from core or plugin, with its texts parsed once. Slots are numbered from
 * 0, inputs before outputs; arrays are by slot. Recordings, flows and kernels point to it, so it
 * stays where it is while its table lives. */
struct op {
    lh_op_t row;
    uint32_t index; /* in its table; stable while the table lives */
    uint32_t in_count, out_count;
    char slot_name[OP_SLOTS][24]; /* inputs, then outputs */
    bool optional[OP_SLOTS];      /* "w?"                 */
    bool adds[OP_SLOTS];          /* "y+": kernels can add to this output (LH_ARG_ADD) */
    uint32_t alias[OP_SLOTS];     /* outputs named like an input: its slot, from 1; 0: own memory */
    uint32_t over[OP_SLOTS];      /* "y~x": the slot of x, from 1: y may lie there; 0: it may not */
    op_pattern_t *patterns;       /* the ways of row.fuses; owned by the table */
    uint32_t pattern_count;
    const char *plugin;  /* the plugin's name; NULL: the core */
    uint32_t collective; /* COLLECTIVE_* (ops_collective.h): a transfer, not a kernel; 0: neither */
    uint32_t view;       /* VIEW_* (ops_view.h): places and copies, not a kernel; 0: neither */
};

/* A table that holds the core's ops. It is freed after all recordings, as nodes point to its rows.
 * NULL is freed by doing nothing. */
lh_status_t op_table_new(op_table_t **out) LH_MUST_CHECK;
void op_table_free(op_table_t *t);

/* Adds a plugin's rows, row_size bytes apart. Refused with a sentence (LH_INVALID, or LH_ABI for
 * rows that are too short): a name without a dot or one that is taken, slots that don't parse,
 * attributes that don't fit their struct, no shape(). Rows before the refused one stay. `rows` and
 * `plugin` outlive the table, as plugins do. */
lh_status_t op_table_add(op_table_t *t, const lh_op_t *rows, uint32_t row_size, uint32_t count,
                         const char *plugin) LH_MUST_CHECK;

/* The op of that name; NULL: there is none. One hash and, as a rule, one comparison. */
const op_t *op_table_find(const op_table_t *t, const char *name);
/* Ops in the order in which they were added: the core's, then each plugin's. */
uint32_t op_table_count(const op_table_t *t);
const op_t *op_table_at(const op_table_t *t, uint32_t index);

/* The number of a slot by its name, from 0, inputs before outputs; OP_SLOTS: there is none. */
uint32_t op_slot(const op_t *op, const char *name);

#endif
