/* engine/call_list.h - the list that a step launches: no lookup, no allocation, no branch on data.
 *
 * A finished flow becomes one or two lists, of the first round and of later ones. A list is made
 * in two steps, as kernels are chosen while memory is planned (call_list_choose) and addresses are
 * known only once it is allocated (call_list_place). Running it walks an array and calls function
 * pointers; a device that can capture makes one replay of it, which is then launched as a whole.
 *
 * All is called by the control thread. */
#ifndef ENGINE_CALL_LIST_H
#define ENGINE_CALL_LIST_H

#include <engine/engine_state.h>
#include <program/flow.h>

/* One call, ready to be launched. A kernel has launch, a fill has `to`, a transfer only its
 * source. */
typedef struct exec_call {
    lh_status_t (*launch)(lh_prepared_t *k, const lh_launch_t *call); /* NULL: fill */
    lh_prepared_t *prepared;
    lh_launch_t call;
    lh_place_t to; /* fill */
    uint64_t bytes;
    const kernel_t *kernel;
    const flow_call_t *source;
    uint64_t ns; /* while profiling */
} exec_call_t;

/* Owned by a program. Arrays are made by call_list_choose and stay. */
typedef struct call_list {
    exec_call_t *calls;
    lh_place_t *places; /* of all calls, one after the other */
    uint32_t count;
    lh_replay_t *replay;      /* NULL: launched one by one */
    lh_replay_t *last_replay; /* of the last micro-batch, where that one starts more; NULL */
    lh_event_t **marks;       /* [count + 1] while profiling on an asynchronous device */
    uint64_t profiled_runs;
} call_list_t;

/* Calls of a finished flow that the list has, with kernels chosen but without places. later: from
 * the second round on, where gradients and losses are added to. Calls point into the flow, which
 * outlives the list. */
lh_status_t call_list_choose(engine_t *e, const flow_t *flow, bool later,
                             call_list_t *out) LH_MUST_CHECK;
/* Fills in places and streams, once memory is allocated. */
void call_list_place(const engine_t *e, const flow_t *flow, call_list_t *list);
/* Makes a replay of it where device and kernels can; where they can't, nothing, and calls are
 * launched one by one. */
lh_status_t call_list_capture(engine_t *e, call_list_t *list) LH_MUST_CHECK;
/* Queues one run. On a device that is synchronous it has run when this returns. */
lh_status_t call_list_run(engine_t *e, call_list_t *list) LH_MUST_CHECK;
/* Gets ready for runs that are timed, or ends them. */
lh_status_t call_list_profile(engine_t *e, call_list_t *list, bool on) LH_MUST_CHECK;
/* Adds the times of the last run to its calls; waits for it. */
lh_status_t call_list_collect(engine_t *e, call_list_t *list) LH_MUST_CHECK;
void call_list_free(engine_t *e, call_list_t *list);

#endif
