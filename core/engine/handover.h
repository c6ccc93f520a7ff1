/* engine/handover.h - how transfers start and end on a device that works off a queue, and how bytes
 * get to memory that the host reaches.
 *
 * Two threads meet here. The control thread queues work on the device and starts transfers; the
 * progress thread of core/comm carries transfers out, asks a gate whether it may read, and tells
 * the gate when it has written. The gate's functions are the only ones of this folder that the
 * progress thread calls.
 *
 * A synchronous device has made what a transfer reads when its start is called, and the host waits
 * for what comes. With any other device nobody waits. The start queues copies of what is read into
 * a mirror in pinned memory (none where the host reaches the device's own) and an event behind the
 * copies; the transfer begins once that event is past, in the thread that drives transfers. The end
 * of the transfer sets a word. A copying stream awaits the word, copies back what came, and records
 * an event for which the computing stream waits where the values are used. If the device can't
 * await words, the host waits there instead.
 *
 * A captured list has no events that the host could ask: the queue signals a word when what is read
 * is copied out. Before a replay the host starts the list's transfers, each behind its word. Where
 * one list starts a transfer and another waits for it, what comes is copied back outside of all
 * lists, and a second word tells the stream that waits, as an event of one replay can't be waited
 * for inside another. A replay waits for that word in any case, so the host sets it where nothing
 * is under way.
 *
 * How long the device stands at a wait is exposed communication. A fourth word tells when it comes there:
 * the computing stream signals it in front of the wait, and whoever drives transfers looks from the gate's
 * opening to the transfer's end. The start of the next run takes the word back, on the same stream.
 *
 * What a list launches for the first time has its code loaded, and a driver may first wait until all that
 * is queued is done, with other threads' calls held up as long. A queue that held for a word would then hold
 * for ever, as the progress thread must ask the device before the transfer begins. So nothing awaits a
 * word while a list runs for the first time: what earlier lists have started is over before it
 * (handovers_settle), and what it starts itself is held: the host waits for its end, as where the device
 * can't await words. Where the device makes transfers itself a list's first run in the last round of a step is
 * one more first time, as some of them are first started there (call_list.c).
 *
 * A transfer that the device makes itself (exchange_t.native) has neither mirror nor words: a stream of its
 * own waits until what is read is made, the exchange queues the transfer there, and the computing stream
 * waits for the event behind it. Another event in front of that wait says how long it took. The host waits
 * for nothing. Such transfers are in no captured list: their
 * lists are captured in the pieces between transfers (call_list.c). Of the host's transfers one that takes over
 * what such a transfer has left (transfer_t.takes_over) copies out behind the last of them; any other goes past
 * them.
 *
 * A mirror holds what travels and nothing else: of an allocation with frozen parameters, or with
 * activations of which few are summed, that is a small part.
 *
 * Where network cards reach the device's own memory (exchange_t.reach) an allocation needs no mirror, and
 * nothing of it is copied out or in: all else is as above, words and events included. The transfer begins
 * once its start is past on the device, so a card reads what kernels have written and writes where none
 * of them reads; its end is told once the device has what came. A part of its own that a gather has
 * elsewhere the device copies among the copies out. */
#ifndef ENGINE_HANDOVER_H
#define ENGINE_HANDOVER_H

#include <engine/engine_state.h>
#include <program/flow.h>

/* Bytes [begin, end) of an allocation that travel, and where they lie in its mirror. */
typedef struct mirror_range {
    uint64_t begin, end; /* bytes from the start of the allocation */
    uint64_t at;         /* bytes from the start of the mirror     */
} mirror_range_t;

/* Pinned memory in which the host finds what travels of an allocation that it can't reach. One for
 * each such allocation, from engine_plan to engine_close. */
struct mirror {
    const allocation_t *of;
    allocation_t pinned;    /* the ranges, one after the other */
    mirror_range_t *ranges; /* [count] ascending; no two touch */
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

/* The events of one run of a transfer. */
typedef struct handover_turn {
    lh_event_t *made; /* what the transfer reads is computed      */
    lh_event_t *read; /* what the transfer reads is copied out; of a native one: its wait begins */
    lh_event_t *arrived; /* what the transfer has written is copied in */
    bool waited;         /* native: read and arrived are recorded */
} handover_turn_t;

/* The device's side of one transfer, from engine_plan to engine_close. Words are uint32_t in the
 * engine's pinned memory, each in a cache line of its own; one side sets them and the other clears
 * them, so they are atomic. The progress thread reads `turn` while the transfer is under way,
 * during which nobody changes it. All else is the control thread's. */
struct handover {
    engine_t *engine;
    const transfer_t *transfer;
    handover_turn_t turns[HANDOVER_TURNS + 1];
    uint32_t turn;  /* of the last start */
    bool under_way; /* started, and no stream waits for it yet */
    bool crosses;   /* a list may wait for what another one started */
    bool open;      /* the list that is captured has started it, and not yet waited */
    bool native;    /* the device makes it; all of a turn's events are the device's */
    bool held;      /* no queue awaits its end: whoever waits for it does so on the host */
    /* Offsets of the four words in the engine's pinned allocation. */
    uint64_t word;           /* the transfer has written */
    uint64_t asked;          /* captured lists: what the transfer reads is copied out */
    uint64_t there;          /* where `crosses`: what the transfer has written is copied in */
    uint64_t reached;        /* the computing stream has come to the wait for the last run */
    handover_copy_t *copies; /* [out_count + in_count] NULL where the host reaches all memory */
    /* In memory that links reach: out, this rank's own part, from where it lies to `mirror`; in, none. */
    uint32_t out_count, in_count;
};

/* For engine_plan, once flows are finished: makes a handover for every transfer, and mirrors of
 * what transfers touch. Nothing for a synchronous device whose memory the host reaches. */
lh_status_t handovers_plan(engine_t *e) LH_MUST_CHECK;
/* For engine_build, once memory is there: makes events, copying streams and copies. */
lh_status_t handovers_place(engine_t *e) LH_MUST_CHECK;
/* For engine_close; nothing of the handovers is queued any more. */
void handovers_free(engine_t *e);

/* Before a list runs for the first time: waits until all transfers that were started are over, so that no
 * queue holds for one. All ranks run the same lists in the same order, so each has started them. */
lh_status_t handovers_settle(engine_t *e) LH_MUST_CHECK;
/* Whether lists with transfers may be captured. */
bool handovers_capture(const engine_t *e);
/* Called when all calls of a captured list are queued: joins the copying streams to the computing
 * one. */
lh_status_t handovers_captured(engine_t *e) LH_MUST_CHECK;
/* Called in its place where a call of the list has failed: the list is not captured. */
void handovers_uncaptured(engine_t *e);
/* Before a replay: starts a transfer of the list, or (waits) gets it ready for the replay's
 * wait. */
lh_status_t handover_replay(engine_t *e, const transfer_t *t, bool waits) LH_MUST_CHECK;

/* No transfer ends any more, nor is started: sets every word that streams may await. A word that is set
 * twice at a time is one to them, so this is called again until they have run dry. */
void handovers_release(const engine_t *e);

/* Whether links may reach this device's memory by themselves, if cards can: it tells what it shares, it
 * can be told that something has arrived, and streams await words. */
bool handover_can_reach(const engine_t *e);
/* For exchange_t.reach: links reach the allocation itself, and its mirror goes. All that a transfer reads
 * and writes, or nothing of it, lies in such memory. Returns the bytes that the mirror would have had; 0
 * where there is none. */
uint64_t handover_reach(engine_t *e, const allocation_t *allocation);
/* Memory in which the host or links find the bytes of an allocation: the allocation itself, or its
 * mirror. */
const allocation_t *handover_allocation(const engine_t *e, const allocation_t *allocation);
/* Where a byte that travels lies in that memory: `offset` and the result are bytes from the start.
 * After engine_plan. */
uint64_t handover_offset(const engine_t *e, const allocation_t *allocation, uint64_t offset);

/* Before a list runs: it will start this transfer next. false: no more is to be told. */
bool handover_expect(const engine_t *e, const transfer_t *t);
/* What a list's calls do. A start: the transfer begins behind what is queued so far. A wait: what
 * is queued from now on runs behind the transfer; nothing happens where none is under way. */
lh_status_t handover_start(engine_t *e, const transfer_t *t) LH_MUST_CHECK;
lh_status_t handover_wait(engine_t *e, const transfer_t *t) LH_MUST_CHECK;

#endif
