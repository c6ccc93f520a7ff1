/* control/control.h - the control plane of a job: a star around rank 0 that brings ranks together
 * before step 0, watches that all live, and ends all with one reason when one fails.
 *
 * Connections are TLS 1.3 with a key derived from the job secret (control/secret.h). A thread of
 * its own in every rank sends a heartbeat with the progress word each 250 ms and as a step begins, to rank 0, and on
 * rank 0 to all others; a rank silent for 3 s (of another site than rank 0's: for outage_ns), or
 * whose connection ends without a goodbye, is lost: rank 0 tells all others, and from then on
 * control_failure says who and why on every rank. Rank 0 listens only until all have joined. */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include <control/control_conn.h>
#include <control/world.h>

typedef struct control control_t;

/* [any thread] Blocking, in the same order on all ranks; before step 0 and between phases, never in
 * a step. Every rank gives `bytes` of its own and gets all, in order of ranks: all is [size x
 * bytes]. Ends with LH_PEER_LOST when one is lost. */
lh_status_t control_gather(control_t *c, const void *mine, size_t bytes, void *all) LH_MUST_CHECK;
/* How many bytes each of `ranks` can give at once, at most. */
size_t control_gather_most(uint32_t ranks);
/* A gather of what rank 0 alone gets: the others' `all` may be NULL, and what travels grows with the ranks
 * and not with their square. CONTROL_COLLECT_MOST bytes of each, at most, however many they are. */
enum { CONTROL_COLLECT_MOST = 512 << 10 };
lh_status_t control_collect(control_t *c, const void *mine, size_t bytes, void *all) LH_MUST_CHECK;
lh_status_t control_barrier(control_t *c, const char *where) LH_MUST_CHECK;
/* The same in a channel of their own (control_frame.h; the three above are CONTROL_MAIN's): the order must be
 * the same on all ranks within a channel alone, so two threads of a rank may each gather in one. */
lh_status_t control_gather_on(control_t *c, uint32_t channel, const void *mine, size_t bytes,
                              void *all) LH_MUST_CHECK;
lh_status_t control_collect_on(control_t *c, uint32_t channel, const void *mine, size_t bytes,
                               void *all) LH_MUST_CHECK;
/* [any thread] This rank gathers in that channel, which is not CONTROL_MAIN, no more: who waits there
 * and who comes later goes with LH_CANCELLED, and other ranks wait until the job ends. For a rank that fails
 * while a thread of its own waits in such a gather. */
void control_leave(control_t *c, uint32_t channel);

/* [any thread; one short system call in a step] What this rank is doing, for the sentence when it or another is
 * lost: "step 41, all-reduce of gradients 3". text is copied, cut at 63 bytes. */
void control_progress(control_t *c, uint64_t step, const char *text);
/* Likewise, how long its steps have waited for other ranks, so far: ns are added. */
void control_waited(control_t *c, uint64_t ns);

/* [any thread, no system call but the clock] How a rank fares, as rank 0 knows it by its
 * heartbeats, while the job runs. False on other ranks, and of one that has told nothing yet. */
typedef struct control_member {
    progress_t progress;
    uint64_t silent_ns; /* since its last heartbeat; of rank 0 itself: 0 */
} control_member_t;
bool control_member(const control_t *c, uint32_t rank, control_member_t *out);

/* [any thread, cheap: one atomic load] LH_OK while all live. After that the same answer for ever;
 * control_failure has the sentence: who, where, in which step and collective. */
lh_status_t control_status(const control_t *c);
const char *control_failure(const control_t *c);
/* This rank has seen that `peer` is lost (a transport's LH_WIRE_DOWN), or fails itself (peer is its
 * own rank): tells rank 0, which tells all. The first reason wins; what a rank says of another
 * waits 300 ms for that one's own, which is nearer to the cause. */
void control_fail(control_t *c, uint32_t peer, lh_status_t status, const char *reason);
/* [any thread] On rank 0, once a checkpoint is committed: the job ends on all ranks to go on with
 * machines that are back, where some wait ([launch] go_on_with). On others it does nothing. */
void control_take_in(control_t *c);
/* [any thread] From here on this rank answers a SIGTERM itself, behind its step. Before that its launcher
 * sends none where the job has other machines: the control plane ends the job for all of them. */
void control_heeds(control_t *c);
/* Readable once control_status is not LH_OK: for waits in poll(). */
int control_fd(const control_t *c);

/* So far, for tests: connections that proved no key, handshakes, bytes with TLS. */
typedef struct control_counts {
    uint64_t strangers, handshakes, bytes_sent, bytes_received;
} control_counts_t;
void control_counts(const control_t *c, control_counts_t *out);

#endif
