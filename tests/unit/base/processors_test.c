/* processors_test.c - quotas of control groups as systems write them, in a folder that stands for "/";
 * what is left of them for one of several ranks, and how that is told. */
#include <unit/base/scratch_files.h>

#include <sched.h>
#include <string.h>

#include <base/processors.h>

static const char mount_2[] =
    "24 1 0:22 / /proc rw - proc proc rw\n"
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

static void put(scratch_t *s, const char *name, const char *text)
{
    char *path = path_join(s->folder, name), *folder = path == NULL ? NULL : path_folder(path);
    assert_non_null(folder);
    assert_int_equal(folder_make(folder), LH_OK);
    scratch_write(s, name, text, strlen(text));
    mem_free(folder);
    mem_free(path);
}

static uint32_t quota(const scratch_t *s)
{
    processors_t p;
    processors_read(s->folder, 1, &p);
    return p.quota;
}

/* As in a container that has a name space of control groups: its own is the topmost. */
static void a_quota_is_rounded_up(void **state)
{
    static const struct {
        const char *said;
        uint32_t expected;
    } rows[] = {
        {"200000 100000\n", 2},
        {"250000 100000\n", 3},
        {"1000 100000\n", 1},
        {"100000 100000\n", 1},
        {"50000 20000\n", 3},
        {"6400000 100000\n", 64},
        {"max 100000\n", PROCESSORS_NO_QUOTA},
        {"9000000000000000000 1\n", PROCESSORS_NO_QUOTA},
        {"", PROCESSORS_NO_QUOTA},
        {"200000\n", PROCESSORS_NO_QUOTA},
        {"200000 0\n", PROCESSORS_NO_QUOTA},
        {"0 100000\n", PROCESSORS_NO_QUOTA},
        {"-200000 100000\n", PROCESSORS_NO_QUOTA},
        {"two of them\n", PROCESSORS_NO_QUOTA},
    };
    scratch_t *s = *state;
    assert_int_equal(quota(s), PROCESSORS_NO_QUOTA); /* no /proc at all */
    put(s, "proc/self/cgroup", "0::/\n");
    assert_int_equal(quota(s), PROCESSORS_NO_QUOTA); /* mounted nowhere */
    put(s, "proc/self/mountinfo", mount_2);
    assert_int_equal(quota(s), PROCESSORS_NO_QUOTA); /* the controller is off */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put(s, "sys/fs/cgroup/cpu.max", rows[i].said);
        assert_int_equal(quota(s), rows[i].expected);
    }
}

static void the_narrowest_quota_up_to_the_mount_holds(void **state)
{
    scratch_t *s = *state;
    put(s, "proc/self/cgroup", "0::/kubepods/pod7/container\n");
    put(s, "proc/self/mountinfo", mount_2);
    put(s, "sys/fs/cgroup/kubepods/pod7/container/cpu.max", "max 100000\n");
    put(s, "sys/fs/cgroup/kubepods/cpu.max", "4800000 100000\n");
    assert_int_equal(quota(s), 48); /* pod7 has no such file */
    put(s, "sys/fs/cgroup/kubepods/pod7/cpu.max", "350000 100000\n");
    assert_int_equal(quota(s), 4);
    put(s, "sys/fs/cgroup/kubepods/pod7/container/cpu.max", "200000 100000\n");
    assert_int_equal(quota(s), 2);
    put(s, "sys/fs/cgroup/kubepods/cpu.max", "20000 100000\n");
    assert_int_equal(quota(s), 1);
    put(s, "sys/fs/cpu.max", "1 100000\n"); /* above the mount: of nobody */
    put(s, "sys/fs/cgroup/kubepods/cpu.max", "max 100000\n");
    assert_int_equal(quota(s), 2);
}

/* Other controllers begin with the same letters; and what version 2 says beside it does not count. */
static void a_quota_of_version_1_is_found(void **state)
{
    scratch_t *s = *state;
    put(s, "proc/self/cgroup",
        "12:cpuset:/wrong\n7:cpuacct,cpu:/docker/07ab/job\n1:name=systemd:/x\n0::/y\n");
    put(s, "proc/self/mountinfo",
        "31 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "33 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "35 31 0:32 /docker/07ab /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    put(s, "sys/fs/cgroup/unified/cpu.max", "100000 100000\n");
    put(s, "sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000\n");
    put(s, "sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(s), PROCESSORS_NO_QUOTA);
    put(s, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put(s, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(s), PROCESSORS_NO_QUOTA);
    put(s, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "310000\n");
    assert_int_equal(quota(s), PROCESSORS_NO_QUOTA); /* of an unknown period */
    put(s, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    assert_int_equal(quota(s), 7);
}

/* Shares are those of the quota: which processors a process may run on is its own already. */
static void a_quota_is_shared_by_ranks(void **state)
{
    scratch_t *s = *state;
    cpu_set_t mine;
    processors_t p;
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    const uint32_t allowed = (uint32_t)CPU_COUNT(&mine);
    processors_read(s->folder, 4, &p);
    assert_int_equal(p.allowed, allowed);
    assert_int_equal(p.count, allowed);
    put(s, "proc/self/cgroup", "0::/\n");
    put(s, "proc/self/mountinfo", mount_2);
    put(s, "sys/fs/cgroup/cpu.max", "100000 100000\n");
    processors_read(s->folder, 1, &p);
    assert_int_equal(p.count, 1);
    processors_read(s->folder, 4, &p); /* less than one for each */
    assert_int_equal(p.count, 1);
    assert_int_equal(p.quota, 1);
    assert_int_equal(p.allowed, allowed);
    put(s, "sys/fs/cgroup/cpu.max", "3000000000 100000\n"); /* 30,000: more than there are */
    processors_read(s->folder, 2, &p);
    assert_int_equal(p.count, allowed);
    if (allowed < 2) return; /* all that is below needs two */
    put(s, "sys/fs/cgroup/cpu.max", "390000 100000\n");
    processors_read(s->folder, 3, &p);
    assert_int_equal(p.count, 1); /* of four */
    processors_read(s->folder, 2, &p);
    assert_int_equal(p.count, 2);
    processors_read(s->folder, 0, &p); /* nobody is one */
    assert_int_equal(p.sharers, 1);
}

static void told_is(const processors_t *p, const char *expected)
{
    text_t told = {0};
    assert_int_equal(processors_tell(p, &told), expected[0] != '\0');
    assert_string_equal(told.data == NULL ? "" : told.data, expected);
    text_free(&told);
}

static void a_quota_that_bounds_is_told(void **state)
{
    (void)state;
    told_is(&(processors_t){.allowed = 64, .quota = 2, .sharers = 1, .count = 2},
            "2 processors of the 64 that this process may run on, as the quota of its control "
            "group says");
    told_is(&(processors_t){.allowed = 32, .quota = 3, .sharers = 2, .count = 1},
            "1 processor of the 32 that this process may run on, as the quota of its control "
            "group says: 3, shared by 2 ranks");
    told_is(&(processors_t){.allowed = 2, .quota = 2, .sharers = 1, .count = 2}, "");
    told_is(&(processors_t){.allowed = 2, .quota = PROCESSORS_NO_QUOTA, .sharers = 9, .count = 2},
            "");
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(a_quota_is_rounded_up),
        FACT(the_narrowest_quota_up_to_the_mount_holds),
        FACT(a_quota_of_version_1_is_found),
        FACT(a_quota_is_shared_by_ranks),
        cmocka_unit_test(a_quota_that_bounds_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
