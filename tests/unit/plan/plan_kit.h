/* plan_kit.h - what a test needs to plan jobs: a folder for their INIs, a host, and the plugins that
 * were built. plan_start and plan_stop are a pair for cmocka_run_group_tests. */
#ifndef TESTS_PLAN_KIT_H
#define TESTS_PLAN_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#undef fail /* cmocka's; base/status.h has a function of that name */

#include <base/file.h>
#include <plugin/host.h>
#include <plugin/registry.h>

static char folder[] = "/tmp/plan_kit_XXXXXX";
static host_t *host;
static registry_t *registry;

static inline void ok(lh_status_t status)
{
    if (status != LH_OK) print_error("%s\n", fail_reason());
    assert_int_equal(status, LH_OK);
}

static inline int plan_start(LH_UNUSED void **state)
{
    if (mkdtemp(folder) == NULL) return 1;
    ok(host_new(&host));
    ok(registry_new(LH_TEST_PLUGINS, host, &registry));
    return 0;
}

static inline int plan_stop(LH_UNUSED void **state)
{
    registry_free(registry);
    host_free(host);
    return folder_remove(folder) != LH_OK;
}

#endif
