/* comm/script_make.h - makes a script for one rank from what is asked of a collective. */
#ifndef COMM_SCRIPT_MAKE_H
#define COMM_SCRIPT_MAKE_H

#include <comm/script.h>

lh_status_t script_new(const script_how_t *how, script_t *out) LH_MUST_CHECK;

#endif
