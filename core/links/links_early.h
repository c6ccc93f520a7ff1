/* links/links_early.h - a probe of the links between sites in a thread of its own, beside what else a job
 * does until it opens its connections.
 *
 * The transport between sites belongs to the probe meanwhile: `links` has it not from links_early_start
 * until links_early_finish has returned. Memory that is registered in between is registered with it then;
 * memory of a device, whose descriptor would be closed by then, is not to be. All functions are for the one
 * thread that opens and closes the links. */
#ifndef LINKS_LINKS_EARLY_H
#define LINKS_LINKS_EARLY_H

#include <links/links.h>

/* As links_probe, begun. All ranks call it, after links_open and once; the list is copied. Where there is
 * nothing to probe nothing is begun. A probe that fails tells the control plane at once, so that no rank
 * waits for its end to hear of it. */
lh_status_t links_early_start(links_t *l, const probe_pair_t *known, uint32_t count) LH_MUST_CHECK;
/* Waits until it is over. LH_OK where none was begun, or where it has been waited for before; after a
 * failure the links can only be closed. */
lh_status_t links_early_finish(links_t *l) LH_MUST_CHECK;
/* A probe is under way, or has not been waited for yet, over a transport that takes a device's memory. */
bool links_early_takes_device(const links_t *l);
/* Before links_close, which wants the transport back: ends a probe that nobody waits for. What this rank
 * has told the control plane goes round first, for half a second at most, or others would hear of
 * connections that were closed, and not why. NULL does nothing. */
void links_early_end(links_t *l);

#endif
