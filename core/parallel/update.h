/* parallel/update.h - the optimizer step as a program, made from an optimizer's tables and a rule.
 *
 * The optimizer plugin lists spaces and moves (longhaul/optimizer.h); this file gives each space
 * its memory and each move its calls. With one rank REDUCE and GATHER vanish; with more,
 * transfers.h puts them where a step runs them. A table that needs more than is built is refused
 * with a sentence that names the space or the move. */
#ifndef PARALLEL_UPDATE_H
#define PARALLEL_UPDATE_H

#include <engine/engine.h>
#include <parallel/transfers.h>

typedef struct update_rule { /* a rule row with its parsed options */
    const lh_rule_t *rule;   /* imported */
    const void *config;
} update_rule_t;

typedef struct update_group { /* a row of LH_INPUT_STEP; group 0 is [optimizer] itself */
    uint32_t rule;            /* index into rules                                     */
    double decay;             /* of its parameters without the no-decay flag           */
} update_group_t;

typedef struct update_how {
    const lh_optimizer_api_t *api;
    lh_optimizer_t *optimizer; /* opened; closed by the caller after engine_close  */
    const update_rule_t *rules;
    uint32_t rule_count;
    const update_group_t *groups;
    uint32_t group_count;
    const uint32_t *group_of; /* [parameters] index into groups; NULL: all 0      */
    uint32_t micro_batches;   /* runs of the training program in a step          */
    const world_t *world;     /* NULL: alone                                     */
    comm_t *comm;             /* NULL: planned only, no other rank is needed     */
    uint64_t bucket_bytes; /* gradients summed at a time; 0: the optimizer's or the host's choice */
    transfers_t **transfers; /* with a world of several: what moves in a step; freed by the caller
                                after engine_close */
} update_how_t;

/* Gives the weights gradients, master and states as the tables say. Before engine_build, and before
 * any program of these weights. Its one input is LH_INPUT_STEP [groups, LH_STEP_WORDS];
 * whether the step is applied is decided on the device and read from OUTPUT_STEP. */
lh_status_t update_new(engine_t *e, weights_t *w, const update_how_t *how,
                       program_t **out) LH_MUST_CHECK;

#endif
