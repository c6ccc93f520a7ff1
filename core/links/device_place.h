/* links/device_place.h - tells transports where this rank's device is. */
#ifndef LINKS_DEVICE_PLACE_H
#define LINKS_DEVICE_PLACE_H

#include <config/job.h>
#include <plugin/registry.h>

/* Asks the plugin of [device], which opens nothing for that, and tells plugins by host->world.
 * Once the world is published, as a rank's device goes by its number, and before a transport is
 * opened. A device that says nothing is nowhere. */
lh_status_t device_place_tell(const job_t *job, registry_t *r) LH_MUST_CHECK;

#endif
