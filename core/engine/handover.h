/* engine/handover.h - how transfers start and end on a device that works off a queue, and how bytes
 * get to memory that the host reaches.
 *
 * Two threads meet here. The control thread queues work on the device and starts transfers; the
 * progress thread of core/comm carries transfers out, asks a gate whether it may read, and tells it
 * when it has written. The gate's functions are all of this folder that the progress thread calls.
 *
 * A synchronous device has made what a transfer reads when its start is called, and the host waits
 * for what comes. Elsewhere nobody waits: the start queues copies of what is read into a mirror in
 * pinned memory (none where the host reaches the device's own) and an event behind them; the
 * transfer begins once that is past, in the thread that drives transfers. Its end sets a word. A
 * stream awaits the word, copies back what came, and records an event for which the computing
 * stream waits where the values are used. A device that can't await words makes the host wait
 * there.
 *
 * A captured list has no events that the host could ask: the queue signals a word when what is read
 * is copied out. A replay starts the list's transfers first, each behind its word. Where one list
 * starts a transfer and another waits for it, what comes is copied back beside all lists, and a
 * second word says so to the stream that waits: an event of one can't be waited for inside another.
 * The host sets that word where nothing is under way, as a replay waits whether or not.
 *
 * A mirror holds what travels and nothing else: of an allocation with frozen parameters, or with
 * activations of which few are summed, that is a small part. */
#ifndef ENGINE_HANDOVER_H
#define ENGINE_HANDOVER_H

#include <engine/engine_state.h>
#include <program/flow.h>

/* Bytes [begin, end) of an allocation that travel, and where they lie in its mirror. */
typedef struct mirror_extent {
    uint64_t begin, end; /* there         */
    uint64_t at;         /* in the mirror */
} mirror_extent_t;

/* Pinned memory in which the host finds what travels of an allocation that it can't reach. One for
 * each such allocation, from engine_plan to engine_close. */
struct mirror {
    const allocation_t *of;
    allocation_t pinned;      /* the extents, one after the other */
    mirror_extent_t *extents; /* ascending, apart */
    uint32_t count;
    size_t capacity;
};

/* A copy between a value on the device and its place in the mirror. */
typedef struct handover_copy {
    lh_place_t device, mirror;
    uint64_t bytes;
} handover_copy_t;

/* Runs of a transfer that may be queued: one under way, and one that the host has queued ahead.
 * The events of a run may be recorded again once they are past. */
enum { HANDOVER_TURNS = 2 };

enum { HANDOVER_CAPTURED = HANDOVER_TURNS }; /* the turn whose events replays hold */

typedef struct handover_turn {
    lh_event_t *made;    /* what is read, on the computing stream */
    lh_event_t *read;    /* it is copied out                      */
    lh_event_t *arrived; /* what came is copied in                */
} handover_turn_t;

/* Of one transfer, from engine_plan to engine_close. Words are uint32_t in the engine's pinned
 * memory, each in a cache line of its own; they are set on one side and cleared on the other, so
 * they are atomic. The progress thread reads `turn` while the transfer is under way, and meanwhile
 * nobody changes it. All else is the control thread's. */
struct handover {
    engine_t *engine;
    const transfer_t *transfer;
    handover_turn_t turns[HANDOVER_TURNS + 1];
    uint32_t turn;           /* of the last start */
    bool under_way;          /* started, and no stream waits for it yet */
    bool crosses;            /* a list may wait for what another one started */
    bool open;               /* started by the list that is captured, which does not wait for it */
    uint64_t word;           /* in the engine's pinned allocation: the transfer has written */
    uint64_t asked;          /* there: what is read is, in a captured list */
    uint64_t there;          /* there: what came is copied in, where it crosses lists */
    handover_copy_t *copies; /* out, then in */
    uint32_t out_count, in_count;
};

/* engine_plan, once flows are finished: a handover for every transfer, mirrors for what they touch.
 * Nothing for a synchronous device whose memory the host reaches. */
lh_status_t handovers_plan(engine_t *e) LH_MUST_CHECK;
/* engine_build, once memory is there. */
lh_status_t handovers_place(engine_t *e) LH_MUST_CHECK;
/* Nothing of them is queued any more. */
void handovers_free(engine_t *e);

/* Whether lists with transfers may be captured. */
bool handovers_capture(const engine_t *e);
/* All calls of a captured list are queued: joins the streams that have work of it. */
lh_status_t handovers_captured(engine_t *e) LH_MUST_CHECK;
/* Starts a transfer of a captured list, or gets it ready to be waited for, before the replay. */
lh_status_t handover_replay(engine_t *e, const transfer_t *t, bool waits) LH_MUST_CHECK;

/* Memory in which the host finds the bytes of an allocation: the allocation itself, or its
 * mirror. */
const allocation_t *handover_allocation(const engine_t *e, const allocation_t *allocation);
/* Where it lies there: bytes from the start, of what travels. */
uint64_t handover_offset(const engine_t *e, const allocation_t *allocation, uint64_t offset);

/* What calls of a list do: a start behind what is queued so far, and a wait of what is
 * queued from now on. */
lh_status_t handover_start(engine_t *e, const transfer_t *t) LH_MUST_CHECK;
lh_status_t handover_wait(engine_t *e, const transfer_t *t) LH_MUST_CHECK;

#endif
