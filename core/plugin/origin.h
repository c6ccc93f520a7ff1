/* plugin/origin.h - what of a plugin's file no table says: the id of its build, and the libraries
 * that came into the process with it. */
#ifndef PLUGIN_ORIGIN_H
#define PLUGIN_ORIGIN_H

#include <link.h>

#include <base/text.h>

enum { ORIGIN_BUILD = 2 * 32 + 1 };

typedef struct origin {
    uintptr_t base;           /* where the file is mapped                      */
    char build[ORIGIN_BUILD]; /* hexadecimal; "" where the linker wrote none   */
    char *libraries;          /* ", " between; NULL where there was nothing new */
} origin_t;

/* loaded: the plugin, the last that was loaded but for its libraries. */
lh_status_t origin_find(const struct link_map *loaded, origin_t *out) LH_MUST_CHECK;
void origin_free(origin_t *o);
/* Whether this thread is in code of that file, or was called by it. */
bool origin_is_on_stack(const origin_t *o);

#endif
