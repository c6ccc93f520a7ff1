/* hf_folder_test.c - several processes replace one folder at the same time: each of them succeeds,
 * and what stands there in the end is whole and alone. */
#include <unit/base/scratch_files.h>

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/file.h>
#include <base/sys.h>
#include <hf/hf_folder.h>

enum { WRITERS = 4, ROUNDS = 60 };

static lh_status_t put_file(const hf_folder_t *f, const char *name)
{
    char *path = path_join(hf_folder_path(f), name);
    const lh_status_t status = path == NULL ? LH_NO_MEMORY : file_show(path, "{}", 2);
    mem_free(path);
    return status;
}

static lh_status_t replace_once(const char *folder)
{
    hf_folder_t *f;
    lh_status_t status = hf_folder_begin(folder, &hf_own_files_of_export, &f);
    if (status != LH_OK) return status;
    status = put_file(f, "config.json");
    if (status == LH_OK) status = put_file(f, "model.safetensors");
    if (status == LH_OK) return hf_folder_publish(f);
    hf_folder_abandon(f);
    return status;
}

static int replace_often(const char *folder)
{
    for (int i = 0; i < ROUNDS; i++)
        if (replace_once(folder) != LH_OK) {
            print_error("round %d: %s\n", i, fail_reason());
            return 1;
        }
    return 0;
}

static int count_entries(const char *folder)
{
    int count = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    for (const struct dirent *e; (e = readdir(open)) != NULL;)
        count += e->d_name[0] != '.';
    (void)closedir(open);
    return count;
}

static void whoever_replaces_a_folder_beside_others_succeeds(void **state)
{
    scratch_t *s = *state;
    char folder[160];
    pid_t children[WRITERS];
    int how, failed = 0;
    (void)snprintf(folder, sizeof(folder), "%.100s/hf", s->folder);
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(replace_often(folder));
    }
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(waitpid(children[i], &how, 0), children[i]);
        failed += how != 0;
    }
    assert_int_equal(failed, 0);
    assert_int_equal(count_entries(folder), 2);
    assert_int_equal(count_entries(s->folder), 1);
}

/* Another process puts its folder into the place that was cleared for the first one's. */
static struct {
    const char *folder;
    bool done;
} other;

static int rename_after_another(const char *from, const char *to)
{
    if (!other.done && strcmp(to, other.folder) == 0) {
        other.done = true;
        assert_int_equal(replace_once(other.folder), LH_OK);
    }
    return sys_real.rename(from, to);
}

static void a_place_that_another_takes_in_between_is_taken_again(void **state)
{
    scratch_t *s = *state;
    char folder[160];
    sys_t table = sys_real;
    (void)snprintf(folder, sizeof(folder), "%.100s/hf", s->folder);
    assert_int_equal(replace_once(folder), LH_OK);
    other.folder = folder;
    table.rename = rename_after_another;
    sys_use(&table);
    const lh_status_t status = replace_once(folder);
    sys_use(NULL);
    assert_true(other.done);
    if (status != LH_OK) print_error("%s\n", fail_reason());
    assert_int_equal(status, LH_OK);
    assert_int_equal(count_entries(folder), 2);
    assert_int_equal(count_entries(s->folder), 1);
}

static bool is_aside(const char *path)
{
    return strstr(path, ".old") != NULL;
}

static int unlink_not_aside(const char *path)
{
    if (!is_aside(path)) return sys_real.unlink(path);
    errno = EACCES;
    return -1;
}

static ino_t unsynced;
static int fsync_all_but_one(int fd)
{
    struct stat st;
    if (sys_real.fstat(fd, &st) != 0 || st.st_ino != unsynced) return sys_real.fsync(fd);
    errno = EIO;
    return -1;
}

static int rename_not_into_place(const char *from, const char *to)
{
    if (!text_ends(to, "/hf")) return sys_real.rename(from, to);
    errno = EIO;
    return -1;
}

/* With the fault, then without it, which leaves nothing of either. */
static void check_replaced(scratch_t *s, const sys_t *faulty, lh_status_t expected, int in_folder,
                           const char *reason)
{
    char folder[160];
    (void)snprintf(folder, sizeof(folder), "%.100s/hf", s->folder);
    assert_int_equal(replace_once(folder), LH_OK);
    fail_clear();
    sys_use(faulty);
    const lh_status_t status = replace_once(folder);
    sys_use(NULL);
    if (status != expected || strstr(fail_reason(), reason) == NULL)
        FAIL_TEST("status %d: %s\n", (int)status, fail_reason());
    if (in_folder > 0) assert_int_equal(count_entries(folder), in_folder);
    assert_int_equal(file_exists(folder), in_folder > 0);
    assert_int_equal(count_entries(s->folder), in_folder > 0 ? 2 : 1);
    assert_int_equal(replace_once(folder), LH_OK);
    assert_int_equal(replace_once(folder), LH_OK);
    assert_int_equal(count_entries(s->folder), 1);
}

/* The new folder is whole, so there is no error; the next run takes what was left. */
static void an_old_folder_that_stays_is_no_error(void **state)
{
    sys_t table = sys_real;
    table.unlink = unlink_not_aside;
    check_replaced(*state, &table, LH_OK, 2, "");
}

static void a_folder_that_may_not_last_leaves_the_old_one_and_says_where(void **state)
{
    scratch_t *s = *state;
    struct stat st;
    sys_t table = sys_real;
    assert_int_equal(sys_real.stat(s->folder, &st), 0);
    unsynced = st.st_ino;
    table.fsync = fsync_all_but_one;
    check_replaced(s, &table, LH_IO, 2, ".old");
}

static void an_old_folder_that_cannot_come_back_is_told_of(void **state)
{
    sys_t table = sys_real;
    table.rename = rename_not_into_place;
    check_replaced(*state, &table, LH_IO, 0, ".old");
}

/* An adapter alone has no config.json. */
static void an_adapter_alone_takes_the_place_of_an_earlier_one(void **state)
{
    scratch_t *s = *state;
    char folder[160];
    hf_folder_t *f;
    (void)snprintf(folder, sizeof(folder), "%.100s/hf", s->folder);
    for (int i = 0; i < 2; i++) {
        if (hf_folder_begin(folder, &hf_own_files_of_adapter, &f) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
        assert_int_equal(put_file(f, "adapter_config.json"), LH_OK);
        assert_int_equal(put_file(f, "adapter_model.safetensors"), LH_OK);
        assert_int_equal(hf_folder_publish(f), LH_OK);
        assert_int_equal(count_entries(folder), 2);
    }
    assert_int_equal(hf_folder_begin(folder, &hf_own_files_of_export, &f), LH_INVALID);
    assert_int_equal(count_entries(s->folder), 1);
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(whoever_replaces_a_folder_beside_others_succeeds),
        FACT(a_place_that_another_takes_in_between_is_taken_again),
        FACT(an_old_folder_that_stays_is_no_error),
        FACT(a_folder_that_may_not_last_leaves_the_old_one_and_says_where),
        FACT(an_old_folder_that_cannot_come_back_is_told_of),
        FACT(an_adapter_alone_takes_the_place_of_an_earlier_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
