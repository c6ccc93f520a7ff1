/* privileges.c - one call for each. Where the kernel refuses one, the program goes on: they guard
 * against mistakes elsewhere. */
#include <cli/privileges.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static bool wants_core(void)
{
    const char *value = getenv("LONGHAUL_CORE");
    return value != NULL && strcmp(value, "1") == 0;
}

void privileges_drop(void)
{
    static const struct rlimit none = {0, 0};
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!wants_core()) (void)setrlimit(RLIMIT_CORE, &none);
}
