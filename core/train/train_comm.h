/* train/train_comm.h - how the ranks of a run talk: the communicator that moves gradients and
 * values, and the small gathers of the host's own numbers. */
#ifndef TRAIN_TRAIN_COMM_H
#define TRAIN_TRAIN_COMM_H

#include <comm/comm.h>
#include <train/train_ranks.h>

typedef struct train_comm {
    train_ranks_t ranks; /* of agree_new and evaluation_new; context is this struct */
    comm_t *comm;
    control_t *control;
    collective_t *plan;     /* NULL until connected: then gathers go through the control plane */
    char *memory;           /* [ranks][TRAIN_COMM_ROOM] */
    uint64_t planned_bytes; /* of plans and staging, as they were expected */
} train_comm_t;

/* Gathers of up to so many bytes a rank take the fast way, the others the control plane. */
enum { TRAIN_COMM_ROOM = 64 };

typedef struct train_comm_how {
    const job_t *job;
    registry_t *registry;
    const world_t *world;
    control_t *control; /* NULL: planned only, train_comm_connect is refused */
} train_comm_how_t;

/* Stays where it is while it is used. */
lh_status_t train_comm_open(train_comm_t *t, const train_comm_how_t *how) LH_MUST_CHECK;
/* After engine_build or transfers_plan, when all else is planned: counts what that takes. */
lh_status_t train_comm_plan(train_comm_t *t) LH_MUST_CHECK;
/* After engine_build: everything is planned. All ranks call it. */
lh_status_t train_comm_connect(train_comm_t *t) LH_MUST_CHECK;
/* Before memory that travels is freed. together: no rank has failed, so wait until all are here,
 * and a link that ends is no failure any more. */
void train_comm_close(train_comm_t *t, bool together);

#endif
