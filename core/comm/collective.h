/* comm/collective.h - collectives over a group of ranks, planned once before step 0 and run any
 * number of times.
 *
 * A buffer of `elements` is cut into one piece for each member of the group, its owner: a list of
 * segments. Sums are canonical: inside a site from the leader's next member round to the
 * leader, one after the other, then over sites from the owner's next site round to its own, in
 * F32. So bits depend on ownership and on the group, never on chunk, bucket, algorithm, transport
 * or timing. all_reduce is reduce_scatter plus all_gather.
 *
 * All ranks plan the same collectives in the same order and start them in the same order. */
#ifndef COMM_COLLECTIVE_H
#define COMM_COLLECTIVE_H

#include <comm/coll.h>

typedef struct comm comm_t; /* comm.h */

extern const char *const coll_op_names[COLL_OPS]; /* "all-reduce" */
extern const char *const coll_algorithm_names[COLL_ALGORITHMS];

/* Plans; before comm_connect, which makes what a run needs, from the links as they turned out. */
lh_status_t collective_new(comm_t *c, const coll_how_t *how, collective_t **out) LH_MUST_CHECK;
/* From here on: after comm_connect. */
uint32_t collective_algorithm(const collective_t *x);
/* Bytes this rank sends in a run, by scope (index LH_LINK_*; what mapped members read in place is
 * not sent), and the staging memory it works in, which plans share. */
void collective_bytes(const collective_t *x, uint64_t sent[4], uint64_t *staging);
const char *collective_name(const collective_t *x);

/* Queues a run and returns; one run of a plan at a time. No allocation. */
lh_status_t collective_start(collective_t *x) LH_MUST_CHECK;
/* The same for who does not wait itself: the run begins once the gate is past. */
lh_status_t collective_start_behind(collective_t *x, const collective_gate_t *gate) LH_MUST_CHECK;
/* LH_OK: done and its memory is the caller's again. LH_AGAIN: not yet. Else it failed, as all will.
 */
lh_status_t collective_test(collective_t *x);
/* Drives the transports itself until done. Never longer than [comm] timeout without progress: then
 * the sentence names the peer that is waited for. */
lh_status_t collective_wait(collective_t *x) LH_MUST_CHECK;

void collective_times(const collective_t *x, collective_times_t *out);
/* For comm_close: a plan ends with its comm. */
void collective_free(collective_t *x);

#endif
