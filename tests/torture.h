/* Whether the long lists run whole: LONGHAUL_TORTURE is set, neither empty (which scripts/test exports for its sample)
 * nor 0. */
#ifndef TESTS_TORTURE_H
#define TESTS_TORTURE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool torture_wanted(void)
{
    const char *said = getenv("LONGHAUL_TORTURE");
    return said != NULL && *said != '\0' && strcmp(said, "0") != 0;
}

#endif
