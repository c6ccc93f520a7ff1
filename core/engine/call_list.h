/* engine/call_list.h - the list that a step launches: no lookup, no allocation, no branch on data.
 *
 * A finished flow becomes one or two lists: for the first round, and for later ones. A list is made
 * in two steps, as kernels are chosen while memory is planned (call_list_choose) and addresses are
 * known only once memory is allocated (call_list_place). Running a list walks an array and calls
 * function pointers. A device that can capture makes a replay of the list when it runs for the second
 * time, and launches that as a whole from then on. The price of a list is that nothing in it can
 * depend on data: what may differ between runs is stated by calls that are left out, or decided by a
 * kernel.
 *
 * The control thread calls everything here. */
#ifndef ENGINE_CALL_LIST_H
#define ENGINE_CALL_LIST_H

#include <engine/engine_state.h>
#include <program/flow.h>

/* One call, ready to be launched. A kernel has `launch`, a fill has `to`, a transfer only its
 * source. All pointers are borrowed. */
typedef struct exec_call {
    lh_status_t (*launch)(lh_prepared_t *k, const lh_launch_t *call); /* NULL: no kernel */
    lh_prepared_t *prepared;
    lh_launch_t call;
    lh_place_t to;             /* fill */
    uint64_t bytes;            /* fill */
    const kernel_t *kernel;    /* NULL: a fill or a transfer */
    const flow_call_t *source; /* the flow's call that this one was made of */
    uint64_t ns;               /* time of all profiled runs */
} exec_call_t;

/* Calls [begin, end) of a list, replayed together, or one transfer (replay NULL). */
typedef struct list_piece {
    uint32_t begin, end;
    lh_replay_t *replay;
} list_piece_t;

/* Owned by a program. Arrays are made by call_list_choose and stay where they are. */
typedef struct call_list {
    exec_call_t *calls; /* [count] */
    lh_place_t *places; /* arguments of all kernels, one call's behind the other's */
    uint32_t count;
    lh_replay_t *replay;      /* NULL: calls are launched one by one */
    lh_replay_t *last_replay; /* for the last round of a step; NULL: it is as the others */
    list_piece_t *pieces;     /* [piece_count] in order; NULL: the list is not captured in pieces */
    uint32_t piece_count;
    bool ran, ran_last; /* in some round; in a step's last one, which may start more transfers */
    bool captured;      /* it was tried, whether or not the list can be */
    lh_event_t **marks; /* [count + 1] while profiling on an asynchronous device */
    uint64_t profiled_runs;
} call_list_t;

/* Whether the device has a kernel for a kernel's call, by its arguments as they are in the flow; for
 * any other call, true. `engine` is an engine_t * (packing_how_t.offers). */
bool call_list_offers(void *engine, const flow_t *flow, const flow_call_t *call);
/* Makes a list of a finished flow's calls, with kernels but without places. later: the list of the
 * second and all later rounds, in which gradients and losses are added to. Calls point into the
 * flow, which outlives the list. *out is freed with call_list_free, after a failure too. */
lh_status_t call_list_choose(engine_t *e, const flow_t *flow, bool later,
                             call_list_t *out) LH_MUST_CHECK;
/* Fills in places and streams, once memory is allocated. */
lh_status_t call_list_place(const engine_t *e, const flow_t *flow, call_list_t *list) LH_MUST_CHECK;
/* Makes the list's replays, once, where the device, every kernel and every transfer can be captured;
 * else does nothing, and calls are launched one by one. A placed list's second run calls it. */
lh_status_t call_list_capture(engine_t *e, call_list_t *list) LH_MUST_CHECK;
/* Queues one run: launched the first time, replayed from the second on where it can be. The first time it waits
 * for transfers that are under way and for those of the list itself (handover.h); so it does in its first last
 * round of a step where the device makes transfers itself. On a synchronous device the list has run when this
 * returns. */
lh_status_t call_list_run(engine_t *e, call_list_t *list) LH_MUST_CHECK;
/* Gets ready for runs that are timed, with all times 0, or ends them. LH_UNSUPPORTED where a device
 * that queues does not tell when an event was passed. */
lh_status_t call_list_profile(engine_t *e, call_list_t *list, bool on) LH_MUST_CHECK;
/* Waits for the last run, and adds its times to its calls. */
lh_status_t call_list_collect(engine_t *e, call_list_t *list) LH_MUST_CHECK;
/* Frees what the list owns, and leaves an empty one; nothing of it is queued any more. */
void call_list_free(engine_t *e, call_list_t *list);

#endif
