/* engine/call_list.h - runs a call list: no lookup, no allocation, no branch on data. */
#ifndef ENGINE_CALL_LIST_H
#define ENGINE_CALL_LIST_H

#include <engine/engine_state.h>
#include <program/flow.h>

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

typedef struct call_list {
    exec_call_t *calls;
    lh_place_t *places; /* of all calls, one after the other */
    uint32_t count;
    lh_replay_t *replay;      /* NULL: launched one by one */
    lh_replay_t *last_replay; /* of the last micro-batch, where that one starts more; NULL */
    lh_event_t **marks;       /* [count + 1] while profiling on an asynchronous device */
    uint64_t profiled_runs;
} call_list_t;

/* Calls of a finished flow, with kernels chosen but without places. later: from the second
 * micro-batch on. */
lh_status_t call_list_choose(engine_t *e, const flow_t *flow, bool later,
                             call_list_t *out) LH_MUST_CHECK;
/* Places, once memory is allocated. */
void call_list_place(const engine_t *e, const flow_t *flow, call_list_t *list);
/* Makes a replay of it where device and kernels can. */
lh_status_t call_list_capture(engine_t *e, call_list_t *list) LH_MUST_CHECK;
lh_status_t call_list_run(engine_t *e, call_list_t *list) LH_MUST_CHECK;
/* Gets ready for runs that are timed, or ends them. */
lh_status_t call_list_profile(engine_t *e, call_list_t *list, bool on) LH_MUST_CHECK;
/* Adds the times of the last run to its calls; waits for it. */
lh_status_t call_list_collect(engine_t *e, call_list_t *list) LH_MUST_CHECK;
void call_list_free(engine_t *e, call_list_t *list);

#endif
