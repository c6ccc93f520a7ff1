/* exercise.h - opens a plugin of any kind, uses a little of all it must have, and closes it again.
 */
#ifndef EXERCISE_H
#define EXERCISE_H

#include "subject.h"

/* The first status that was not LH_OK; what was opened is closed whatever happens. config is made
 * by subject_config. */
lh_status_t exercise(subject_t *s, const lh_host_t *host, const void *config) LH_MUST_CHECK;

#endif
