/* comm/native.h - collectives that a plugin makes on the device's own queue, for groups whose ranks are
 * all on one machine: [transport.node] collectives, over longhaul/collective.h.
 *
 * What they move never comes to the host, so they have neither script nor run: a call is queued behind
 * what the device's queue holds, and that is all. The price is the order of sums, which is the
 * library's ([comm] bits = ordered), and that nothing of a failed call can be told but that it failed.
 * Whoever asks decides call by call (native_offers); groups over several machines stay with the comm.
 *
 * Order of use: native_open, native_use for each group, native_queue, native_join on all ranks, then
 * native_enqueue in steps. One thread, the rank's control thread, calls everything. */
#ifndef COMM_NATIVE_H
#define COMM_NATIVE_H

#include <longhaul/collective.h>

#include <config/job.h>
#include <control/control.h>
#include <control/world.h>
#include <plugin/registry.h>

typedef struct native native_t;

/* Loads and opens the plugin that the job names; *out stays NULL where it names none, or the world has
 * one rank. All that is named outlives the natives. */
lh_status_t native_open(const job_t *job, registry_t *registry, const world_t *world,
                        native_t **out) LH_MUST_CHECK;
/* Leaves all groups; nothing of them is queued any more, or native_cancel was called. NULL does
 * nothing. */
void native_close(native_t *n);

/* Whether the plugin makes this collective (LH_COLL_*) over this rank's group LH_GROUP_*, on queues of
 * that kind. The same on all ranks of the group; n may be NULL. */
bool native_offers(const native_t *n, const char *queue, uint32_t group, uint32_t op,
                   lh_dtype_t dtype);
/* Notes that the group will be used, and tells the bytes of workspace of such a call. */
uint64_t native_use(native_t *n, uint32_t group, const lh_coll_t *call);
/* The device's queue for all calls. */
void native_queue(native_t *n, const lh_native_t *queue);
/* Joins the groups that are used. All ranks of the world call it, also those that use none; n may be
 * NULL on all of them. Waits for all, [comm] timeout at most. */
lh_status_t native_join(native_t *n, control_t *control) LH_MUST_CHECK;
lh_status_t native_enqueue(native_t *n, uint32_t group, const lh_coll_t *call) LH_MUST_CHECK;
/* Makes calls that wait for others end, on this rank. */
void native_cancel(native_t *n);

#endif
