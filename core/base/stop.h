/* base/stop.h - SIGTERM, SIGINT and SIGHUP ask a run to save and end; a second one ends it at
 * once. */
#ifndef BASE_STOP_H
#define BASE_STOP_H

#include <base/status.h>

/* From here on the first signal only sets the flag, the second leaves with 128 + its number: what
 * is committed on disk stays as it is. */
lh_status_t stop_watch(void) LH_MUST_CHECK;
void stop_unwatch(void); /* the handlers from before */
bool stop_requested(void);
/* Where nothing watches, from here on: such a signal ends this process at once by that exit code
 * and with a line that names it, or by 128 + its number where it is the second one. What is ignored
 * stays so. Children that a fork makes end as if nothing had been set. */
void stop_at_once(int code);

#endif
