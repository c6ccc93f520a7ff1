/* control/control_client.h - the end of the star that all ranks but 0 have, and heralds: it joins rank 0, or
 * whoever leads, and hears how the job fares. For control_open.c, which starts the thread that runs it. */
#ifndef CONTROL_CONTROL_CLIENT_H
#define CONTROL_CONTROL_CLIENT_H

#include <control/control_state.h>

/* Made before the thread starts, and dials nobody yet; control_client_run is what the thread of every other
 * rank than 0 does, until the plane is closed. */
lh_status_t control_client_new(control_t *c, control_client_t **out) LH_MUST_CHECK;
void control_client_free(control_client_t *k);
void control_client_run(control_t *c);

#endif
