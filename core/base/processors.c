/* processors.c - affinity as the kernel tells it; quotas of version 2 in cpu.max ("200000 100000":
 * microseconds in each period; "max": none), of version 1 in cpu.cfs_quota_us (-1: none) and
 * cpu.cfs_period_us.
 *
 * A quota of 2.5 processors counts as 3: two threads would leave a fifth of it unused, three are
 * stopped for a sixth of each period. */
#include <base/processors.h>

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include <base/control_group.h>

static _Atomic uint32_t processors_sharers = 1;

/* A kernel of more processors than a set has room for tells none: all that are there, then. */
static uint32_t processors_allowed(void)
{
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_COUNT(&mine) > 0)
        return (uint32_t)CPU_COUNT(&mine);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

/* The numbers at the beginning of a file; false: there are not so many. */
static bool processors_numbers(const control_group_t *g, const char *name, int count, uint64_t *out)
{
    FILE *f = control_group_open(g, name);
    bool all = f != NULL;
    for (int i = 0; all && i < count; i++) {
        int64_t number = 0; /* -1 is none, and so is whatever is no number */
        all = fscanf(f, "%" SCNd64, &number) == 1 && number > 0;
        out[i] = all ? (uint64_t)number : 0;
    }
    if (f != NULL) (void)fclose(f);
    return all;
}

/* Of one group, rounded up. */
static uint32_t processors_of_group(const control_group_t *g)
{
    uint64_t us[2] = {0, 1}; /* that it has of a period, and the period */
    const bool set = g->unified ? processors_numbers(g, "cpu.max", 2, us)
                                : processors_numbers(g, "cpu.cfs_quota_us", 1, &us[0]) &&
                                      processors_numbers(g, "cpu.cfs_period_us", 1, &us[1]);
    if (!set) return PROCESSORS_NO_QUOTA;
    const uint64_t whole = us[0] / us[1] + (us[0] % us[1] != 0);
    return whole < PROCESSORS_NO_QUOTA ? (uint32_t)whole : PROCESSORS_NO_QUOTA;
}

static uint32_t processors_quota(const char *root)
{
    control_group_t g;
    uint32_t least = PROCESSORS_NO_QUOTA;
    if (!control_group_find(root, CONTROLLER_PROCESSORS, &g)) return least;
    do {
        const uint32_t own = processors_of_group(&g);
        if (own < least) least = own;
    } while (control_group_rise(&g));
    return least;
}

/* What is left over goes to nobody: one process with more would only wait for the others. */
void processors_read(const char *root, uint32_t sharers, processors_t *out)
{
    *out = (processors_t){.allowed = processors_allowed(),
                          .quota = processors_quota(root),
                          .sharers = sharers > 0 ? sharers : 1};
    out->count = out->allowed;
    if (out->quota == PROCESSORS_NO_QUOTA) return;
    const uint32_t share = out->quota < out->sharers ? 1 : out->quota / out->sharers;
    if (share < out->count) out->count = share;
}

void processors_share(uint32_t sharers)
{
    atomic_store(&processors_sharers, sharers);
}

void processors_here(processors_t *out)
{
    processors_read("/", atomic_load(&processors_sharers), out);
}

uint32_t processors_count(void)
{
    processors_t here;
    processors_here(&here);
    return here.count;
}

bool processors_tell(const processors_t *p, text_t *out)
{
    if (p->count >= p->allowed) return false;
    text_printf(out,
                "%u processor%s of the %u that this process may run on, as the quota of its "
                "control group says",
                p->count, p->count == 1 ? "" : "s", p->allowed);
    if (p->sharers > 1) text_printf(out, ": %u, shared by %u ranks", p->quota, p->sharers);
    return true;
}
