/* control/control_client.h - the other ranks' end of the star: dials rank 0 until it is there, joins, sends
 * heartbeats and hears how the job fares. */
#ifndef CONTROL_CONTROL_CLIENT_H
#define CONTROL_CONTROL_CLIENT_H

#include <control/control_state.h>

lh_status_t control_client_new(control_t *c, control_client_t **out) LH_MUST_CHECK;
void control_client_free(control_client_t *k);
void control_client_run(control_t *c);

#endif
