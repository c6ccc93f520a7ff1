/* op_ground.h - what checks of ops stand on: the reference device, all ops, and recordings of one op
 * on inputs of shapes that are guessed. Recordings are the caller's, who frees them. */
#ifndef OP_GROUND_H
#define OP_GROUND_H

#include <graph/op_table.h>
#include <graph/recorder.h>

#include "node_run.h"
#include "subject.h"

typedef struct op_ground {
    subject_t *s;
    op_table_t *ops;
    opened_t truth;
    void *config;
    bool is_truth;                  /* the plugin is the reference device itself */
    const plugin_t *const *plugins; /* it and those that it needs */
    uint32_t plugin_count;
} op_ground_t;

/* Skips the check where the plugin brings no ops and is no device, or there is no reference device. */
void op_ground_open(subject_t *s, op_ground_t *g);
void op_ground_close(op_ground_t *g);
bool op_ground_is_device(const subject_t *s);
/* The plugin's i-th op. */
const op_t *op_ground_op(const op_ground_t *g, uint32_t i);

/* The op on the first guessed inputs that it takes, with its attributes' defaults, or in turn 1 and on with one
 * of them another; NULL: it takes none, or the attribute has no other value. */
recording_t *op_ground_record(const op_ground_t *g, const op_t *op, lh_dtype_t compute);
recording_t *op_ground_turn(const op_ground_t *g, const op_t *op, lh_dtype_t compute,
                            uint32_t turn);
/* Once with the defaults, and once for each attribute; of the core's ops, whose attributes are shapes,
 * with the defaults alone. */
uint32_t op_ground_turns(const op_t *op);

/* Combinations of guessed inputs, and a recording of the n-th one's inputs alone; those with a source of
 * their own are left out of `in`. offers: see recording_how_t. */
uint32_t op_ground_combinations(const op_t *op);
recording_t *op_ground_inputs(const op_ground_t *g, const op_t *op, uint32_t n, lh_dtype_t compute,
                              bool (*offers)(void *, const op_t *, const void *, const lh_arg_t *),
                              lh_value_t in[OP_SLOTS]);
/* What the defaults leave open is the least number of its range. In the turn-th turn, from 1 on, the
 * attribute of that number is another one; NULL: it has no other. The caller frees it. */
void *op_ground_attributes(const op_t *op, uint32_t turn);
/* Another value than the one that it has for one attribute, within its range; false: none was found. */
bool op_ground_turn_attribute(const lh_option_t *a, void *attributes);

/* Calls `run` with each of the plugin's ops on each device that is here and that its kernels name; truth: on the
 * reference device, too. Returns the number of devices. */
uint32_t op_ground_devices(op_ground_t *g, bool truth,
                           void (*run)(op_ground_t *g, opened_t *on, const op_t *op));
/* Of numbers of either sign (signs: OP_CASE_POSITIVE or 0) the truth may be none. */
bool op_ground_near(double got, double want, uint32_t signs);

#endif
