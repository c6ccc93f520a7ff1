/* comm/script_make.h - makes a script for one rank from what is asked of a collective. It is apart
 * from script.h since it needs the builder, which needs scripts. */
#ifndef COMM_SCRIPT_MAKE_H
#define COMM_SCRIPT_MAKE_H

#include <comm/script.h>

/* Makes this rank's script. `how` is the same on every rank of the group but for group->self; the
 * scripts of all members fit together. On failure *out is empty. script_free frees it. */
lh_status_t script_new(const script_how_t *how, script_t *out) LH_MUST_CHECK;

#endif
