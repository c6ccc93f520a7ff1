/* loader_test.c - which files become plugins, and the sentence for each that does not. */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <base/file.h>
#include <base/sys.h>
#include <config/job_load.h>
#include <plugin/host.h>
#include <plugin/registry.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))
#define FILE_OF(name) LH_FIXTURES "/optimizers/" name ".so"

static host_t *host;
static registry_t *plugins;

static int open_all(void **state)
{
    (void)umask(022);
    if (host_new(&host) != LH_OK || registry_new(LH_FIXTURES, host, &plugins) != LH_OK) return -1;
    return scratch_setup(state);
}

static int close_all(void **state)
{
    registry_free(plugins);
    host_free(host);
    return scratch_teardown(state);
}

static void three_plugins_in_one_process_are_three(void **state)
{
    static const char *const names[] = {"good_one", "good_two", "good_three"};
    const plugin_t *p[3], *again;
    (void)state;
    for (int i = 0; i < 3; i++) {
        if (registry_load(plugins, LH_KIND_OPTIMIZER, names[i], &p[i]) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
        assert_string_equal(p[i]->name, names[i]);
        assert_string_equal(p[i]->version, names[i]);
        assert_int_equal(strlen(p[i]->sha256), 64);
    }
    assert_ptr_not_equal(p[0]->row.optimizer, p[1]->row.optimizer);
    assert_ptr_not_equal(p[1]->row.optimizer, p[2]->row.optimizer);
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "good_two", &again), LH_OK);
    assert_ptr_equal(again, p[1]);
}

static void tables_are_imported_to_this_hosts_rows(void **state)
{
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "good_one", &p), LH_OK);
    assert_int_equal(p->option_count, 2);
    assert_true(p->row.option_size > sizeof(lh_option_t)); /* the fixture's rows are longer */
    assert_string_equal(p->options[1].key, "width");
    assert_string_equal(p->options[1].fallback, "9");
    assert_int_equal(p->function_count, 1);
    assert_string_equal(p->functions[0].name, "twice");
    assert_non_null(p->optimizer->describe);
    assert_null(p->optimizer->slice);
    assert_null(p->model);
    assert_null(p->device);
    lh_optimizer_t *o;
    assert_int_equal(p->optimizer->open(p->host, NULL, &o), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "good_one: a fixture, 0");
}

static void a_part_of_a_plugin_is_imported_with_its_tables(void **state)
{
    const plugin_t *p;
    (void)state;
    if (registry_find(plugins, "acme", &p) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(p->kind, LH_KIND_PARTS);
    assert_int_equal(p->op_count, 1);
    assert_string_equal(p->ops[0].attributes[0].key, "beta");
    assert_int_equal(p->rule_count, 1);
    assert_string_equal(p->rules[0].states[0].name, "momentum");
    assert_non_null(plugin_rule(p, "still"));
    assert_null(plugin_rule(p, "stil"));
    assert_string_equal(fail_reason(), "plugin 'acme' has no rule 'stil'; did you mean 'still'?");
}

#define PARTS_OF(name) LH_FIXTURES "/parts/" name ".so"

static void a_rules_states_have_memory(void **state)
{
    static const struct {
        const char *name, *sentence;
    } wrong[] = {
        {"no_dtype", PARTS_OF("no_dtype") ": state 'momentum' of rule 'still' has dtype 0 and "
                                          "extent 1"},
        {"no_extent", PARTS_OF("no_extent") ": state 'momentum' of rule 'still' has dtype 1 and "
                                            "extent 0"},
        {"no_number", PARTS_OF("no_number") ": state 'momentum' of rule 'still' begins as NaN, "
                                            "expected a number"},
        {"no_block", PARTS_OF("no_block") ": rule 'still' works in blocks of 0 elements"},
    };
    const plugin_t *p;
    (void)state;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(registry_load(plugins, LH_KIND_PARTS, wrong[i].name, &p), LH_ABI);
        assert_string_equal(fail_reason(), wrong[i].sentence);
    }
}

#define MODEL_OF(name) LH_FIXTURES "/models/" name ".so"

static const struct {
    const char *name, *sentence;
} wrong_keys[] = {
    {"no_option", MODEL_OF("no_option") ": config.json key 'num_kv_heads' sets the option "
                                        "'kv_hads', which the plugin has not"},
    {"no_default", MODEL_OF("no_default") ": config.json key 'num_kv_heads', where it is "
                                          "absent: kv_heads = 65: expected 0..64"},
    {"no_null",
     MODEL_OF("no_null") ": config.json key 'num_kv_heads', where it is null: "
                         "kv_heads = none: expected a whole number such as 8, 10k or 2M"},
    {"no_quotient", MODEL_OF("no_quotient") ": config.json key 'num_kv_heads' is derived from "
                                            "'kv_heads / heads', expected the options of two "
                                            "rows before it, as 'hidden / heads'"},
    {"no_condition", MODEL_OF("no_condition") ": config.json key 'num_kv_heads' asks for "
                                              "'kv_heads=0', and no row before it sets that "
                                              "option"},
    {"no_key", MODEL_OF("no_key") ": row 1 of the config.json keys has no key"},
    {"no_place",
     MODEL_OF("no_place") ": config.json key 'a||b' has a place of 0 bytes, expected 1 to 127"},
    {"no_first", MODEL_OF("no_first") ": config.json key 'n_kv=4|kv' has a place 'n_kv=4', "
                                      "expected NAME=VALUE behind the first one"},
    {"no_presence", MODEL_OF("no_presence") ": config.json key 'num_kv_heads|n_kv=65', where it "
                                            "is there: kv_heads = 65: expected 0..64"},
};

static void each_row_of_a_models_keys_is_checked(void **state)
{
    const plugin_t *p;
    (void)state;
    if (registry_load(plugins, LH_KIND_MODEL, "right_keys", &p) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(p->model->hf->key_count, 2);
    for (size_t i = 0; i < COUNT(wrong_keys); i++) {
        assert_int_equal(registry_load(plugins, LH_KIND_MODEL, wrong_keys[i].name, &p), LH_ABI);
        assert_string_equal(fail_reason(), wrong_keys[i].sentence);
    }
}

static void an_older_plugin_gets_zeros(void **state)
{
    const plugin_t *p;
    (void)state;
    if (registry_load(plugins, LH_KIND_OPTIMIZER, "older", &p) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_null(p->row.selftest);
}

static void what_a_plugin_brings_is_known(void **state)
{
    const plugin_t *p, *alone = NULL;
    (void)state;
    if (registry_load(plugins, LH_KIND_OPTIMIZER, "with_library", &p) != LH_OK ||
        registry_load(plugins, LH_KIND_OPTIMIZER, "good_one", &alone) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_non_null(p->origin.libraries);
    assert_non_null(strstr(p->origin.libraries, "libresolv.so"));
    assert_string_equal(p->origin.build, "0123456789abcdef");
    assert_null(alone->origin.libraries);
}

static const struct {
    const char *name, *sentence;
} refused[] = {
    {"wrong_abi", FILE_OF("wrong_abi") ": built for ABI 3.0, this host has 2.8: build it anew"},
    {"wrong_kind", FILE_OF("wrong_kind") ": is of kind device (4), expected optimizer"},
    {"wrong_name", FILE_OF("wrong_name") ": calls itself 'other', expected 'wrong_name'"},
    {"odd_size",
     FILE_OF("odd_size") ": lh_plugin_v2 has 212 bytes, expected a multiple of 8 from 64"},
    {"tiny_size",
     FILE_OF("tiny_size") ": lh_plugin_v2 has 48 bytes, expected a multiple of 8 from 64"},
    {"huge_size",
     FILE_OF("huge_size") ": with a struct_size larger than its lh_plugin_v2, expected a plugin"},
    {"no_symbol", FILE_OF("no_symbol") ": without data named lh_plugin_v2, expected a plugin"},
    {"a_function", FILE_OF("a_function") ": without data named lh_plugin_v2, expected a plugin"},
    {"newer_tail",
     FILE_OF("newer_tail") ": lh_plugin_v2 has 216 bytes and uses those behind the 208 that this "
                           "host knows"},
    {"lacks_describe",
     FILE_OF("lacks_describe") ": .optimizer.describe is NULL; every optimizer brings it"},
    {"lacks_api", FILE_OF("lacks_api") ": of kind optimizer, but .optimizer is NULL"},
    {"two_kinds", FILE_OF("two_kinds") ": of kind optimizer, but .device is set"},
    {"bad_offset",
     FILE_OF("bad_offset") ": option 'streams' lies at byte 100000, which is not an aligned place "
                           "for 8 bytes in a config of 16"},
    {"bad_default", FILE_OF("bad_default") ": default of an option: streams = 99: expected 1..64"},
    {"bad_signature", FILE_OF("bad_signature") ": function 'twice' has the signature 'u64(u64)': a "
                                               "parameter lacks its name"},
    {"undefined",
     FILE_OF("undefined") ": cannot be loaded: undefined symbol: no_such_function_anywhere"},
    {"does_abort", FILE_OF("does_abort") ": loading it ends the process with signal 6, SIGABRT"},
    {"does_call_exit", FILE_OF("does_call_exit") ": loading it calls exit with code 3"},
    {"does_leave_at_once",
     FILE_OF("does_leave_at_once") ": loading it ends the process with exit code 0"},
    {"does_start_thread", FILE_OF("does_start_thread") ": loading it starts a thread; a plugin "
                                                       "must leave this process as it was"},
    {"does_start_process", FILE_OF("does_start_process") ": loading it starts a process; a plugin "
                                                         "must leave this process as it was"},
    {"does_leave_daemon", FILE_OF("does_leave_daemon") ": loading it starts a process; a plugin "
                                                       "must leave this process as it was"},
    {"does_leave_two", FILE_OF("does_leave_two") ": loading it starts a process; a plugin "
                                                 "must leave this process as it was"},
    {"does_set_timer",
     FILE_OF(
         "does_set_timer") ": loading it sets a timer; a plugin must leave this process as it was"},
    {"does_make_timer", FILE_OF("does_make_timer") ": loading it makes a timer; a plugin must "
                                                   "leave this process as it was"},
    {"does_limit_files", FILE_OF("does_limit_files") ": loading it changes limit 7 of getrlimit; a "
                                                     "plugin must leave this process as it was"},
    {"does_take_one_processor",
     FILE_OF("does_take_one_processor") ": loading it changes on which processors it runs; a "
                                        "plugin must leave this process as it was"},
    {"does_be_nice", FILE_OF("does_be_nice") ": loading it changes its priority; a "
                                             "plugin must leave this process as it was"},
    {"does_round_up", FILE_OF("does_round_up") ": loading it changes how floats are rounded; a "
                                               "plugin must leave this process as it was"},
    {"does_flush_to_zero",
     FILE_OF("does_flush_to_zero") ": loading it changes whether tiny floats are flushed to zero "
                                   "(is it linked with -ffast-math?); a plugin must leave this "
                                   "process as it was"},
    {"does_trap_division",
     FILE_OF("does_trap_division") ": loading it changes which float exceptions trap; a plugin "
                                   "must leave this process as it was"},
    {"does_open_masks",
     FILE_OF("does_open_masks") ": loading it changes the umask from 0022 to 0000; a plugin must "
                                "leave this process as it was"},
    {"does_go_to_root", FILE_OF("does_go_to_root") ": loading it changes the working folder; a "
                                                   "plugin must leave this process as it was"},
    {"does_handle_signal",
     FILE_OF("does_handle_signal") ": loading it changes what happens at signal 10, SIGUSR1; a "
                                   "plugin must leave this process as it was"},
    {"does_block_all", FILE_OF("does_block_all") ": loading it changes which signals are blocked; "
                                                 "a plugin must leave this process as it was"},
    {"does_close_input", FILE_OF("does_close_input") ": loading it closes descriptor 0; a plugin "
                                                     "must leave this process as it was"},
    {"does_close_all",
     FILE_OF("does_close_all") ": loading it closes descriptors that are not its own"},
    {"does_set_variable", FILE_OF("does_set_variable") ": loading it changes the environment; a "
                                                       "plugin must leave this process as it was"},
    {"does_change_locale",
     FILE_OF("does_change_locale") ": loading it changes the locale; a plugin must leave this "
                                   "process as it was"},
    {"wild_pointer",
     FILE_OF("wild_pointer") ": reading its tables ends the process with signal 11, SIGSEGV"},
    {"other_head",
     FILE_OF("other_head") ": the head of lh_plugin_v2 is another one once it is loaded"},
    {"selftest_fails",
     FILE_OF("selftest_fails") ": its selftest fails: selftest_fails: no such card"},
    {"selftest_says_nothing",
     FILE_OF("selftest_says_nothing") ": its selftest fails: not supported by this plugin"},
    {"selftest_aborts",
     FILE_OF("selftest_aborts") ": its selftest ends the process with signal 6, SIGABRT"},
    {"good_on",
     FILE_OF("good_on") ": there is no optimizer plugin 'good_on'; did you mean 'good_one'?"},
    {"nothing_like_it",
     FILE_OF("nothing_like_it") ": there is no optimizer plugin 'nothing_like_it'"},
    {"../evil/tcp",
     "'../evil/tcp' is no plugin's name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
    {"", "'' is no plugin's name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
    {"Good", "'Good' is no plugin's name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
    {"a23456789012345678901234567890123", "'a23456789012345678901234567890123' is no plugin's "
                                          "name: expected [a-z][a-z0-9_]*, at most 31 bytes"},
};

static int count_entry(void *context, const char *name)
{
    (void)name;
    ++*(int *)context;
    return 0;
}

static int open_descriptors(void)
{
    int count = 0;
    (void)sys()->list("/proc/self/fd", count_entry, &count);
    return count;
}

/* A refusal leaves nothing behind: no child, no descriptor, no thread. */
static void refuse(registry_t *r, const char *name, const char *sentence)
{
    const plugin_t *p = NULL;
    const int before = open_descriptors();
    if (registry_load(r, LH_KIND_OPTIMIZER, name, &p) == LH_OK) FAIL_TEST("%s was loaded\n", name);
    assert_null(p);
    assert_string_equal(fail_reason(), sentence);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void every_refusal_is_one_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++)
        refuse(plugins, refused[i].name, refused[i].sentence);
}

static void a_constructor_that_never_returns_is_taken_away(void **state)
{
    registry_t *r;
    (void)state;
    assert_int_equal(registry_new(LH_FIXTURES, host, &r), LH_OK);
    registry_use_patience(r, 300);
    const uint64_t begin = sys()->now_ns();
    refuse(r, "does_hang", FILE_OF("does_hang") ": loading it takes longer than 300 ms");
    assert_in_range((sys()->now_ns() - begin) / 1000000, 300, 3000);
    registry_free(r);
}

/* What it inherited is nobody's any more: a lock of this process is free once it is given back. */
static void a_daemon_that_a_constructor_leaves_is_ended(void **state)
{
    char path[64];
    registry_t *r;
    (void)state;
    const int held = memfd_create("held", MFD_CLOEXEC);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", held);
    const int next = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX | LOCK_NB), 0);
    assert_int_not_equal(flock(next, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(registry_new(LH_FIXTURES, host, &r), LH_OK);
    refuse(r, "does_leave_daemon",
           FILE_OF("does_leave_daemon") ": loading it starts a process; a plugin must leave this "
                                        "process as it was");
    (void)close(held);
    assert_int_equal(flock(next, LOCK_EX | LOCK_NB), 0);
    (void)close(next);
    registry_free(r);
}

static void a_descriptor_that_is_left_open_is_named(void **state)
{
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "does_leave_open", &p), LH_ABI);
    const char *found = strstr(fail_reason(), ": loading it leaves open descriptor ");
    assert_non_null(found);
    assert_non_null(strstr(found, "; a plugin must leave this process as it was"));
}

/* Which umask did the audit of the parent see? */
static void who_behaves_only_when_watched_is_found_out(void **state)
{
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "does_behave_when_watched", &p),
                     LH_ABI);
    assert_int_equal(umask(022), 0);
    assert_string_equal(
        fail_reason(),
        FILE_OF("does_behave_when_watched") ": loading it changes "
                                            "the umask from 0022 to 0000; a plugin must leave this "
                                            "process as it was");
}

static void threads_are_fine_while_they_end_or_in_a_selftest(void **state)
{
    static const char *const names[] = {"does_start_and_join", "selftest_passes"};
    const plugin_t *p;
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        if (registry_load(plugins, LH_KIND_OPTIMIZER, names[i], &p) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
}

#ifdef __SANITIZE_ADDRESS__
static const bool allocates =
    false; /* its allocator's locks stay taken in a child, which the C library's do not */
#else
static const bool allocates = true;
#endif

static _Atomic uint32_t at_work; /* a thread's start allocates, too */

static void *work_until(void *stop)
{
    atomic_fetch_add(&at_work, 1);
    while (!atomic_load((_Atomic bool *)stop))
        if (allocates) free(malloc(100));
    return NULL;
}

/* The child has but one thread, whatever the others held when it was forked. */
static void a_plugin_is_tried_beside_threads_at_work(void **state)
{
    _Atomic bool stop = false;
    pthread_t threads[2];
    const plugin_t *p;
    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work_until, &stop), 0);
    while (atomic_load(&at_work) < COUNT(threads))
        (void)sched_yield();
    const lh_status_t loaded = registry_load(plugins, LH_KIND_OPTIMIZER, "beside_threads", &p);
    char reason[512];
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    const lh_status_t bad = registry_load(plugins, LH_KIND_OPTIMIZER, "does_start_thread", &p);
    atomic_store(&stop, true);
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    if (loaded != LH_OK) FAIL_TEST("%s\n", reason);
    assert_int_equal(bad, LH_ABI);
}

static void what_a_terminal_obeys_is_not_passed_on(void **state)
{
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_load(plugins, LH_KIND_OPTIMIZER, "escapes", &p), LH_OK);
    assert_string_equal(p->version, "1\\x1b[2J\\x0a2");
}

/* A registry over files made here. */
static lh_status_t load_bytes(scratch_t *s, const void *bytes, size_t length)
{
    registry_t *r;
    const plugin_t *p;
    assert_int_equal(folder_make(scratch_path(s, "optimizers")), LH_OK);
    scratch_write(s, "optimizers/made.so", bytes, length);
    assert_int_equal(registry_new(s->folder, host, &r), LH_OK);
    const lh_status_t status = registry_load(r, LH_KIND_OPTIMIZER, "made", &p);
    registry_free(r);
    return status;
}

/* A plugin that is right, in a folder of its own. */
static registry_t *copied(scratch_t *s)
{
    size_t length;
    registry_t *r;
    char *bytes = scratch_read(FILE_OF("good_one"), &length);
    assert_int_equal(folder_make(scratch_path(s, "optimizers")), LH_OK);
    scratch_write(s, "optimizers/good_one.so", bytes, length);
    mem_free(bytes);
    assert_int_equal(registry_new(s->folder, host, &r), LH_OK);
    return r;
}

static void refuse_copy(scratch_t *s, registry_t *r, const char *sentence)
{
    const plugin_t *p;
    const int before = open_descriptors();
    assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "good_one", &p), LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()), sentence);
    assert_int_equal(open_descriptors(), before);
}

static void what_others_can_write_is_refused(void **state)
{
    static const struct {
        const char *path;
        mode_t mode, back;
        const char *sentence;
    } rows[] = {
        {"optimizers/good_one.so", 0646, 0644,
         "optimizers/good_one.so: everybody can write it (mode 0646), expected only its owner: "
         "chmod go-w"},
        {"optimizers/good_one.so", 0664, 0644,
         "optimizers/good_one.so: its group can write it (mode 0664), expected only its owner: "
         "chmod go-w"},
        {"optimizers", 0777, 0755,
         "optimizers: everybody can write it (mode 0777), expected only its owner: chmod go-w"},
        {"optimizers", 0775, 0755,
         "optimizers: its group can write it (mode 0775), expected only its owner: chmod go-w"},
        {"optimizers", 01777, 0755,
         "optimizers: everybody can write it (mode 1777), expected only its owner: chmod go-w"},
    };
    const plugin_t *p;
    registry_t *r = copied(*state);
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(chmod(scratch_path(*state, rows[i].path), rows[i].mode), 0);
        refuse_copy(*state, r, rows[i].sentence);
        assert_int_equal(chmod(scratch_path(*state, rows[i].path), rows[i].back), 0);
    }
    assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "good_one", &p), LH_OK);
    registry_free(r);
}

static int strangers_fstat(int fd, struct stat *out)
{
    const int result = sys_real.fstat(fd, out);
    if (S_ISREG(out->st_mode)) out->st_uid = 4711;
    return result;
}

static void a_strangers_file_is_refused(void **state)
{
    char sentence[128];
    sys_t table = sys_real;
    registry_t *r = copied(*state);
    table.fstat = strangers_fstat;
    (void)snprintf(sentence, sizeof(sentence),
                   "optimizers/good_one.so: belongs to user 4711, expected root or user %u",
                   (unsigned)geteuid());
    sys_use(&table);
    refuse_copy(*state, r, sentence);
    sys_use(NULL);
    registry_free(r);
}

static void what_is_no_plain_file_is_refused_without_waiting(void **state)
{
    char other[512], moved[512];
    registry_t *r = copied(*state);
    (void)strcpy(other, scratch_path(*state, "optimizers/good_one.so"));
    (void)strcpy(moved, scratch_path(*state, "moved.so"));

    assert_int_equal(rename(other, moved), 0);
    assert_int_equal(symlink(moved, other), 0);
    refuse_copy(*state, r, "optimizers/good_one.so: is a symbolic link, expected a regular file");
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(other, 0600), 0);
    refuse_copy(*state, r, "optimizers/good_one.so: is a FIFO, expected a regular file");
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkdir(other, 0700), 0);
    refuse_copy(*state, r, "optimizers/good_one.so: is a folder, expected a regular file");
    assert_int_equal(rmdir(other), 0);
    assert_int_equal(rename(moved, other), 0);

    (void)strcpy(other, scratch_path(*state, "optimizers"));
    (void)strcpy(moved, scratch_path(*state, "elsewhere"));
    assert_int_equal(rename(other, moved), 0);
    assert_int_equal(symlink(moved, other), 0);
    refuse_copy(*state, r, "optimizers: is a symbolic link, expected a folder");
    registry_free(r);
}

static lh_status_t load_with(scratch_t *s, registry_t *r, const char *ini)
{
    const char *path = scratch_write(s, "a.ini", ini, strlen(ini));
    const plugin_t *p;
    job_t *job;
    if (job_load(path, NULL, 0, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    registry_use_job(r, job);
    const lh_status_t status = registry_load(r, LH_KIND_OPTIMIZER, "good_one", &p);
    registry_use_job(r, NULL);
    job_free(job);
    return status;
}

#define JOB                                    \
    "[pipeline]\nname = x\nstages = prepare\n" \
    "[prepare]\ninput = a\ntokenizer = b\n"
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

static void a_pinned_plugin_is_that_file_or_none(void **state)
{
    char digest[SHA256_TEXT], ini[512], sentence[512];
    registry_t *r = copied(*state);
    assert_int_equal(file_digest(FILE_OF("good_one"), digest), LH_OK);
    assert_int_equal(load_with(*state, r, JOB "[plugin.good_one]\nsha256 = " ZEROS "\n"),
                     LH_INVALID);
    (void)snprintf(sentence, sizeof(sentence),
                   "optimizers/good_one.so: its SHA-256 is %s, but %s/a.ini:8 pins " ZEROS, digest,
                   ((scratch_t *)*state)->folder);
    assert_string_equal(behind_folder(*state, fail_reason()), sentence);

    (void)snprintf(ini, sizeof(ini),
                   JOB "[plugin.good_two]\nsha256 = " ZEROS "\n"
                       "[plugin.good_one]\nsha256 = %s\n",
                   digest);
    if (load_with(*state, r, ini) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    registry_free(r);
}

static void a_plugin_larger_than_the_limit_is_refused(void **state)
{
    struct stat st;
    char sentence[128];
    registry_t *r = copied(*state);
    assert_int_equal(stat(FILE_OF("good_one"), &st), 0);
    assert_int_equal(load_with(*state, r, JOB "[limits]\nplugin_bytes = 4KiB\n"), LH_INVALID);
    (void)snprintf(sentence, sizeof(sentence),
                   "optimizers/good_one.so: has %lld bytes, expected 1 to 4096",
                   (long long)st.st_size);
    assert_string_equal(behind_folder(*state, fail_reason()), sentence);
    registry_free(r);
}

/* Mapped from the file, its code would be gone, or SIGBUS. */
static void a_file_replaced_after_loading_changes_nothing(void **state)
{
    const plugin_t *p;
    lh_optimizer_t *o;
    registry_t *r = copied(*state);
    assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "good_one", &p), LH_OK);
    scratch_write(*state, "optimizers/good_one.so", "", 0);
    assert_int_equal(p->optimizer->open(p->host, NULL, &o), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "good_one: a fixture, 0");
    scratch_write(*state, "optimizers/good_one.so", ZEROS, sizeof(ZEROS));
    assert_int_equal(p->optimizer->open(p->host, NULL, &o), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "good_one: a fixture, 0");
    registry_free(r);
}

static void junk_is_no_plugin(void **state)
{
    static const unsigned char elf[] = {0x7f, 'E', 'L', 'F', 2, 1, 1, 0};
    assert_int_equal(load_bytes(*state, "#!/bin/sh\n", 10), LH_ABI);
    assert_string_equal(behind_folder(*state, fail_reason()),
                        "optimizers/made.so: not an ELF file, expected a plugin");
    assert_int_equal(load_bytes(*state, elf, sizeof(elf)), LH_ABI);
    assert_int_equal(load_bytes(*state, "", 0), LH_INVALID);
}

static void a_file_cut_anywhere_is_refused_before_it_is_mapped(void **state)
{
    size_t length;
    char *bytes = scratch_read(FILE_OF("good_one"), &length);
    for (int part = 1; part < 16; part++) {
        assert_int_equal(load_bytes(*state, bytes, length * (size_t)part / 16), LH_ABI);
        assert_string_equal(behind_folder(*state, fail_reason()),
                            "optimizers/made.so: truncated, expected a plugin");
    }
    mem_free(bytes);
}

static void flipped_bytes_in_the_headers_never_crash_the_reader(void **state)
{
    size_t length;
    char *bytes = scratch_read(FILE_OF("wrong_abi"), &length); /* it would abort if it were run */
    static const unsigned char values[] = {0x00, 0xff, 0x7f, 0x80};
    for (size_t at = 4; at < 512; at += 3) {
        const char was = bytes[at];
        memcpy(bytes + at, &values[at % 4], 1);
        assert_int_not_equal(load_bytes(*state, bytes, length), LH_OK);
        bytes[at] = was;
    }
    mem_free(bytes);
}

static void a_folder_is_absolute_and_a_missing_one_is_empty(void **state)
{
    registry_t *r;
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_new("lib/longhaul", host, &r), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "lib/longhaul: the folder of plugins is not an absolute path");
    assert_int_equal(registry_new("/nowhere", host, &r), LH_OK);
    assert_int_equal(registry_load(r, LH_KIND_MODEL, "llama", &p), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "/nowhere/models/llama.so: there is no model plugin 'llama'");
    registry_free(r);
}

static void a_long_folder_is_not_cut(void **state)
{
    char folder[4000];
    registry_t *r;
    const plugin_t *p;
    (void)state;
    memset(folder, 'd', sizeof(folder) - 1);
    folder[sizeof(folder) - 1] = '\0';
    folder[0] = '/';
    assert_int_equal(registry_new(folder, host, &r), LH_OK);
    assert_int_not_equal(registry_load(r, LH_KIND_MODEL, "llama", &p), LH_OK);
    registry_free(r);
}

static void a_name_is_cut_at_its_colon(void **state)
{
    char plugin[32];
    const char *name;
    (void)state;
    assert_int_equal(plugin_name_split("rules:adamw", plugin, &name), LH_OK);
    assert_string_equal(plugin, "rules");
    assert_string_equal(name, "adamw");
    static const char *const wrong[] = {
        "adamw", ":adamw", "rules:", "Rules:x", "../x:y", "a23456789012345678901234567890123:x"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        if (plugin_name_split(wrong[i], plugin, &name) == LH_OK) FAIL_TEST("%s\n", wrong[i]);
}

static void a_plugin_brings_those_that_it_needs(void **state)
{
    registry_t *r = NULL;
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_new(LH_FIXTURES, host, &r), LH_OK);
    assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "needs_acme", &p), LH_OK);
    assert_string_equal(p->name, "needs_acme");
    assert_int_equal(registry_count(r), 2);
    assert_string_equal(registry_at(r, 1)->name, "acme");
    for (int i = 0; i < 2; i++) { /* the second time it is loaded, and refused as before */
        assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "needs_nobody", &p), LH_INVALID);
        assert_string_equal(
            fail_reason(),
            LH_FIXTURES "/optimizers/needs_nobody.so needs the plugin 'acmee': " LH_FIXTURES
                        "/parts/acmee.so: there is no parts plugin 'acmee'; did you mean 'acme'?");
    }
    registry_free(r);
}

/* Whatever the job loads first: its model may come behind. */
static void a_plugin_brings_one_of_another_kind(void **state)
{
    registry_t *r = NULL;
    const plugin_t *p;
    (void)state;
    assert_int_equal(registry_new(LH_FIXTURES, host, &r), LH_OK);
    if (registry_load(r, LH_KIND_OPTIMIZER, "needs_a_model", &p) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(registry_count(r), 2);
    assert_string_equal(registry_at(r, 1)->name, "right_keys");
    assert_int_equal(registry_at(r, 1)->kind, LH_KIND_MODEL);
    registry_free(r);
}

static lh_status_t count_good_one(void *context, const char *name)
{
    *(uint32_t *)context += strcmp(name, "good_one") == 0;
    return LH_OK;
}

static void the_first_folder_that_has_it_counts(void **state)
{
    scratch_t *s = *state;
    registry_t *r = copied(s);
    const plugin_t *p;
    uint32_t count, times = 0;
    assert_int_equal(registry_add_folder(r, "lib"), LH_INVALID);
    assert_int_equal(registry_add_folder(r, LH_FIXTURES), LH_OK);
    assert_string_equal(registry_folders(r, &count)[1], LH_FIXTURES);
    assert_int_equal(count, 2);
    assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "good_one", &p), LH_OK);
    assert_string_equal(p->path, scratch_path(s, "optimizers/good_one.so"));
    assert_int_equal(registry_load(r, LH_KIND_OPTIMIZER, "good_two", &p), LH_OK);
    assert_int_equal(registry_list(r, LH_KIND_OPTIMIZER, count_good_one, &times), LH_OK);
    assert_int_equal(times, 1);
    registry_free(r);
}

/* Counts up to two, of which the second is refused. */
static lh_status_t take_one(void *context, const plugin_t *p)
{
    assert_string_equal(p->name, "good_one");
    return ++*(uint32_t *)context < 2 ? LH_OK : LH_AGAIN;
}

static void each_that_can_be_used_is_told(void **state)
{
    scratch_t *s = *state;
    registry_t *r = copied(s);
    uint32_t count = 0;
    (void)scratch_text(s, "optimizers/a_text.so", "no plugin");
    assert_int_equal(registry_each(r, take_one, &count), LH_OK);
    assert_int_equal(count, 1);
    assert_string_equal(fail_reason(), "");
    assert_int_equal(registry_each(r, take_one, &count), LH_AGAIN);
    registry_free(r);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        registry_t *r = NULL;
        const plugin_t *p;
        mem_fail_at(n, false);
        lh_status_t status = registry_new(LH_FIXTURES, host, &r);
        if (status == LH_OK) status = registry_load(r, LH_KIND_PARTS, "acme", &p);
        if (status == LH_OK) status = registry_load(r, LH_KIND_OPTIMIZER, "not_tried_yet", &p);
        mem_fail_at(0, false);
        registry_free(r);
        if (status == LH_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_equal(status, LH_NO_MEMORY);
    }
}

/* ---- where the program lies ---- */

static const char deep_name[] =
    "a_folder_whose_name_is_so_long_that_twenty_of_them_are_more_than_a_"
    "path_may_have_a_folder_whose_name_is_so_long_that_twenty_of_them_"
    "are_more_than_a_path_may_have_a_folder_whose_name_is_so_long_that";
enum { DEEP = 24 };

/* In a process of its own, which goes there step by step: no path is long enough to name it. */
static int deep_run(void)
{
    char folder[] = "/tmp/loader_test_XXXXXX";
    char buffer[1 << 16];
    int status = -1;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0) return 9;
    for (int i = 0; i < DEEP; i++)
        if (mkdir(deep_name, 0700) != 0 || chdir(deep_name) != 0) return 9;
    const int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int to = open("deep", O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
    for (ssize_t got; (got = read(from, buffer, sizeof(buffer))) > 0;)
        if (write(to, buffer, (size_t)got) != got) return 9;
    (void)close(to);
    const pid_t child = fork();
    if (child == 0) {
        (void)execl("./deep", "deep", "where", NULL);
        _exit(9);
    }
    (void)waitpid(child, &status, 0);
    (void)unlink("deep");
    for (int i = 0; i < DEEP; i++)
        if (chdir("..") != 0 || rmdir(deep_name) != 0) return 9;
    (void)rmdir(folder);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}

/* What `deep where` finds: 0, if the status is that of its sentence. */
static int where_am_i(void)
{
    host_t *own;
    registry_t *r;
    if (host_new(&own) != LH_OK) return 9;
    const lh_status_t status = registry_new(NULL, own, &r);
    host_free(own);
    return status == LH_IO && strstr(fail_reason(), "cannot tell where the program lies") != NULL
               ? 0
               : 1;
}

static void a_program_that_lies_too_deep_is_told_so(void **state)
{
    int status;
    (void)state;
    const pid_t child = fork();
    if (child == 0) _exit(deep_run());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "where") == 0) return where_am_i();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_plugins_in_one_process_are_three),
        cmocka_unit_test(a_program_that_lies_too_deep_is_told_so),
        cmocka_unit_test(tables_are_imported_to_this_hosts_rows),
        cmocka_unit_test(a_part_of_a_plugin_is_imported_with_its_tables),
        cmocka_unit_test(a_rules_states_have_memory),
        cmocka_unit_test(each_row_of_a_models_keys_is_checked),
        cmocka_unit_test(an_older_plugin_gets_zeros),
        cmocka_unit_test(what_a_plugin_brings_is_known),
        cmocka_unit_test(every_refusal_is_one_sentence),
        cmocka_unit_test(a_constructor_that_never_returns_is_taken_away),
        cmocka_unit_test(a_daemon_that_a_constructor_leaves_is_ended),
        cmocka_unit_test(a_descriptor_that_is_left_open_is_named),
        cmocka_unit_test(who_behaves_only_when_watched_is_found_out),
        cmocka_unit_test(threads_are_fine_while_they_end_or_in_a_selftest),
        cmocka_unit_test(a_plugin_is_tried_beside_threads_at_work),
        cmocka_unit_test(what_a_terminal_obeys_is_not_passed_on),
        cmocka_unit_test_setup_teardown(what_others_can_write_is_refused, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_strangers_file_is_refused, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(what_is_no_plain_file_is_refused_without_waiting,
                                        scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_pinned_plugin_is_that_file_or_none, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_plugin_larger_than_the_limit_is_refused, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_file_replaced_after_loading_changes_nothing,
                                        scratch_setup, scratch_teardown),
        cmocka_unit_test(junk_is_no_plugin),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_before_it_is_mapped),
        cmocka_unit_test(flipped_bytes_in_the_headers_never_crash_the_reader),
        cmocka_unit_test(a_folder_is_absolute_and_a_missing_one_is_empty),
        cmocka_unit_test(a_long_folder_is_not_cut),
        cmocka_unit_test(a_name_is_cut_at_its_colon),
        cmocka_unit_test(a_plugin_brings_those_that_it_needs),
        cmocka_unit_test(a_plugin_brings_one_of_another_kind),
        cmocka_unit_test_setup_teardown(the_first_folder_that_has_it_counts, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(each_that_can_be_used_is_told, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
