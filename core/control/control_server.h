/* control/control_server.h - rank 0's end of the star: hears the ranks, and ends the job for all when one
 * is lost. For control_open.c, which starts the thread that runs it. */
#ifndef CONTROL_CONTROL_SERVER_H
#define CONTROL_CONTROL_SERVER_H

#include <control/control.h>
#include <control/control_state.h>

/* Made with the listening socket, before the thread starts; control_server_run is what rank 0's
 * thread does, until the plane is closed. */
lh_status_t control_server_new(control_t *c, control_server_t **out) LH_MUST_CHECK;
void control_server_free(control_server_t *s);
void control_server_run(control_t *c);

#endif
