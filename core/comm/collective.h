/* comm/collective.h - collectives over a group of ranks, planned once before step 0 and run any
 * number of times.
 *
 * Sums are canonical. Inside a site a sum begins with the contribution of the member behind the
 * leader of the piece's owner and goes round the site to the leader, one after the other; the
 * partial sums of the sites are then added from the owner's next site round to its own; all of it
 * in F32, rounded once at the owner. With a border of BF16 every site's partial sum is rounded to
 * it first, the own site's too, and so is the sum, whether or not they cross a border there; with
 * one of I8 it is packed, with what the run before had lost. So bits depend on ownership, on the
 * group and on the border's dtype, never on chunk, algorithm, transport or timing, and but for I8,
 * whose blocks begin with a segment, not on the bucket. (Only [comm] bits = ordered lets
 * COLL_HALVING add in another
 * order.) all_reduce is reduce_scatter plus all_gather.
 *
 * A plan is paid for before step 0: its script, its staging memory, its state. A run allocates
 * nothing. The price is that sizes and places cannot change from run to run.
 *
 * All ranks plan the same collectives in the same order and start them in the same order. Any
 * thread may start, test and wait, under comm's lock; the order of starts is the caller's to
 * keep. */
#ifndef COMM_COLLECTIVE_H
#define COMM_COLLECTIVE_H

#include <comm/coll.h>

typedef struct comm comm_t; /* comm.h */

extern const char *const coll_op_names[COLL_OPS]; /* "all-reduce" */
extern const char *const coll_algorithm_names[COLL_ALGORITHMS];

/* Plans: checks the request, copies its name and pieces, and gives the plan to the comm, which
 * frees it. Before comm_connect, which makes what a run needs, from the links as they turned out.
 * On failure nothing is left behind, and the sentence names the collective. */
lh_status_t collective_new(comm_t *c, const coll_how_t *how, collective_t **out) LH_MUST_CHECK;
/* COLL_*, as it was chosen. From here on: after comm_connect, but for the bytes. */
uint32_t collective_algorithm(const collective_t *x);
/* Bytes this rank sends in a run, by scope (index LH_LINK_*; what mapped members read in place is
 * not sent), which comm_plan tells too; and, once connected, the staging memory it works in, which
 * plans share. */
void collective_bytes(const collective_t *x, uint64_t sent[4], uint64_t *staging);
/* After comm_plan: adds the bytes that so many runs send to each site of the world, to[sites]. */
void collective_sent_to(const collective_t *x, double times, double *to);
/* After comm_plan: what all members send over borders in so many runs: adds to by_rank[ranks], of what each
 * sends to other sites, and to between[sites * sites], from * sites + to. group and pieces: of another
 * group of the same kind, which plans the same with pieces of its own; NULL: the plan's. */
lh_status_t collective_crossings(const collective_t *x, uint64_t runs, const group_t *group,
                                 const coll_piece_t *pieces, uint64_t *by_rank,
                                 uint64_t *between) LH_MUST_CHECK;
/* After comm_plan: round trips between sites that a run takes one after the other; 0: it crosses none. */
double collective_trips(const collective_t *x);
const char *collective_name(const collective_t *x);
/* A border of I8, once connected: what rounding has taken from the parts that this rank packs, of the
 * owners whose leader it is, in order, and their segments in a row. To be saved and loaded between
 * runs. NULL: it packs nothing. Plans that continue each other have the same. */
float *collective_errors(const collective_t *x, uint64_t *elements);

/* Queues a run and returns; one run of a plan at a time. No allocation. What the run reads must
 * stay as it is, and what it writes be left alone, until the run is done. A failure here is one of
 * the whole comm, but for LH_INVALID: not connected yet, or the plan still runs. */
lh_status_t collective_start(collective_t *x) LH_MUST_CHECK;
/* As collective_start, for a run that a device waits for, and no thread: it begins once the gate is
 * past. Without comm's thread only collective_start, _test and _wait look at the gate. */
lh_status_t collective_start_behind(collective_t *x, const collective_gate_t *gate) LH_MUST_CHECK;
/* Says that a run of this plan will be started, behind those that are expected already and before any
 * other: its receives are posted now, so that what peers send need not wait for this rank's word.
 * Only receives into the comm's own staging memory, where not writes_ahead: nobody reads what the run
 * writes from here on. false: the plan still runs or is expected, all ranks are on one machine, or the
 * comm has failed; the caller then expects nothing that would be started behind it. A start that breaks
 * the promise is a mistake of ours. */
bool collective_expect(collective_t *x, bool writes_ahead);
/* LH_OK: done, and its memory is the caller's again. LH_AGAIN: not yet. Else the comm has failed:
 * this run and all others that are under way never end, and what they write is undefined. Never
 * blocks. */
lh_status_t collective_test(collective_t *x);
/* Drives the transports itself until done. It fails after [comm] timeout without progress, and the
 * sentence names the peer that is waited for; time in which any gate is not past counts only while a
 * device stands at its wait. */
lh_status_t collective_wait(collective_t *x) LH_MUST_CHECK;

void collective_times(const collective_t *x, collective_times_t *out);
/* For comm_close, which frees the links first: no run is under way. */
void collective_free(collective_t *x);

#endif
