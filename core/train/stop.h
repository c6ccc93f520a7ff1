/* train/stop.h - SIGTERM, SIGINT and SIGHUP ask a run to save and end; a second one ends it at
 * once. */
#ifndef TRAIN_STOP_H
#define TRAIN_STOP_H

#include <base/status.h>

/* From here on the first signal only sets the flag, the second leaves with 128 + its number: what
 * is committed on disk stays as it is. */
lh_status_t stop_watch(void) LH_MUST_CHECK;
void stop_unwatch(void); /* the handlers from before */
bool stop_requested(void);

#endif
