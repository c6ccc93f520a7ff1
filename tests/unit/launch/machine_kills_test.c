/* machine_kills_test.c - the kernel's counts of kills for want of memory, as systems write them. */
#include <unit/base/scratch_files.h>

#include <string.h>

#include <launch/machine.h>

static void put(scratch_t *s, const char *name, const char *text)
{
    char *path = path_join(s->folder, name), *folder = path == NULL ? NULL : path_folder(path);
    assert_non_null(folder);
    assert_int_equal(folder_make(folder), LH_OK);
    scratch_write(s, name, text, strlen(text));
    mem_free(folder);
    mem_free(path);
}

static void told_is(const machine_kills_t *before, const machine_kills_t *after,
                    const char *expected)
{
    text_t told = {0};
    machine_kills_tell(before, after, &told);
    assert_string_equal(told.data == NULL ? "" : told.data, expected);
    text_free(&told);
}

static void version_2(scratch_t *s, const char *events)
{
    put(s, "proc/vmstat", "nr_free_pages 7\noom_kill 3\n");
    put(s, "proc/self/cgroup", "0::/job.slice/run-7.scope\n");
    put(s, "proc/self/mountinfo",
        "24 1 0:22 / /proc rw - proc proc rw\n"
        "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put(s, "sys/fs/cgroup/job.slice/run-7.scope/memory.events", events);
    put(s, "sys/fs/cgroup/job.slice/run-7.scope/memory.max", "max\n");
    put(s, "sys/fs/cgroup/job.slice/memory.max", "536870912\n");
}

static void a_kill_by_the_limit_of_version_2_is_told(void **state)
{
    scratch_t *s = *state;
    machine_kills_t before, after;
    version_2(s, "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 9\n");
    machine_kills_read(s->folder, &before);
    told_is(&before, &before, "");
    version_2(s, "low 0\nhigh 0\nmax 99\noom 2\noom_kill 2\noom_group_kill 9\n");
    machine_kills_read(s->folder, &after);
    told_is(&before, &after,
            ", likely for want of memory: the kernel has killed a process of this control group "
            "for it, whose limit is 512 MiB");
}

/* Version 1, in a container that has a part of the hierarchy under the path of another. */
static void a_kill_by_the_limit_of_version_1_is_told(void **state)
{
    scratch_t *s = *state;
    machine_kills_t before, after;
    put(s, "proc/self/cgroup", "11:cpu,memory2:/x\n9:memory:/docker/07ab/job\n0::/y\n");
    put(s, "proc/self/mountinfo",
        "31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 /docker/07ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put(s, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    put(s, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(s, "sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    machine_kills_read(s->folder, &before);
    put(s, "sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
    machine_kills_read(s->folder, &after);
    told_is(&before, &after,
            ", likely for want of memory: the kernel has killed a process of this control group "
            "for it");
}

static void what_other_groups_lose_is_not_blamed(void **state)
{
    scratch_t *s = *state;
    machine_kills_t before, after;
    version_2(s, "oom_kill 1\n");
    machine_kills_read(s->folder, &before);
    put(s, "proc/vmstat", "oom_kill 8\n");
    machine_kills_read(s->folder, &after);
    told_is(&before, &after, "");
}

static void without_groups_the_machine_s_count_is_told(void **state)
{
    scratch_t *s = *state;
    machine_kills_t before, after;
    machine_kills_read(s->folder, &before); /* no /proc at all */
    told_is(&before, &before, "");
    put(s, "proc/self/cgroup", "0::/\n");
    put(s, "proc/vmstat", "nr_free_pages 7\noom_kill 3\n");
    machine_kills_read(s->folder, &before);
    put(s, "proc/vmstat", "nr_free_pages 7\noom_kill 4\n");
    machine_kills_read(s->folder, &after);
    told_is(&before, &after,
            ", likely for want of memory: the kernel has killed a process of this machine for it");
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(a_kill_by_the_limit_of_version_2_is_told),
        FACT(a_kill_by_the_limit_of_version_1_is_told),
        FACT(what_other_groups_lose_is_not_blamed),
        FACT(without_groups_the_machine_s_count_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
