/* out_of_memory_test.c - whole commands with the n-th allocation failing, once or from there on: a
 * sentence, no leak, no descriptor left, nothing half written; and where a command says that all is
 * well, its files are those of a run without any failure.
 *
 * Every n is a process of its own. A sample of them by default; all with LONGHAUL_TORTURE, from
 * LONGHAUL_FIRST on where that is set. */
#include <unit/base/scratch_files.h>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/digest.h>
#include <base/log.h>
#include <base/sys.h>
#include <cli/cli.h>
#include <torture.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_LEAK_CHECK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_LEAK_CHECK 1
#endif
#endif
#ifdef HAS_LEAK_CHECK
#include <sanitizer/lsan_interface.h>
#endif

enum { ARGUMENTS = 24, SAMPLES = 24, CODE_LEAK = 40, CODE_DESCRIPTORS, CODE_SILENT, CODE_OTHER };

static const char ini[] = "[pipeline]\nname = memory\nstages = prepare train export generate\n"
                          "[prepare]\ninput = text.jsonl\n"
                          "tokenizer = " LH_TEST_DATA "/tokenizers/stories260K\n"
                          "workers = 1\n"
                          "[data]\nsplit = 1,0,0\n"
                          "[model]\nplugin = llama\nblocks = 1\nhidden = 16\nheads = 2\nffn = 32\n"
                          "max_tokens = 16\n"
                          "[train]\nsequence = 8\nbatch = 2\nsteps = 1\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\nlearning_rate = 0.01\n"
                          "[device]\nplugin = cpu\nthreads = 1\n"
                          "[generate]\nprompt = a\ntokens = 3\ngreedy = yes\n";

static const char import_ini[] = "[pipeline]\nname = memory\nstages = import\n"
                                 "[model]\nplugin = llama\nvocab = from_import\n"
                                 "[import]\nfrom = " LH_TEST_DATA "/../golden/llama\n";

typedef struct scenario {
    const char *command;
    const char *ini;         /* in the scratch folder              */
    const char *set;         /* or NULL                            */
    const char *given;       /* files of the base run that it needs */
    const char *compared[3]; /* files in the pipeline's folder     */
} scenario_t;

#define CHECKPOINT "checkpoints/step-000000000001/"
static const scenario_t scenarios[] = {
    {"check", "memory.ini", NULL, "", {NULL}},
    {"prepare", "memory.ini", NULL, "", {"corpus.bin", "corpus.idx", "prepare.json"}},
    {"train",
     "memory.ini",
     NULL,
     "corpus.bin corpus.idx",
     {CHECKPOINT "shard-00000-00000.safetensors"}},
    {"train --resume", "memory.ini", "train.steps=2", "corpus.bin corpus.idx checkpoints", {NULL}},
    {"import", "import.ini", NULL, "", {NULL}},
    {"export", "memory.ini", NULL, "checkpoints", {"hf/config.json", "hf/model.safetensors"}},
    {"generate", "memory.ini", NULL, "checkpoints", {"generated.json"}},
};

static char home[64], base[160]; /* the scratch folder, and that of the run without failures */

static int open_descriptors(void)
{
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL)
        count++;
    if (d != NULL) (void)closedir(d);
    return count;
}

/* argv as it would be typed; texts lie in storage. */
static int make_arguments(const scenario_t *s, const char *folder, char *argv[ARGUMENTS],
                          char storage[4096])
{
    int argc = 0;
    size_t used = 0;
    argv[argc++] = storage;
    used += (size_t)snprintf(storage, 4096, "longhaul") + 1;
#define ADD(...)                                                                \
    do {                                                                        \
        argv[argc++] = storage + used;                                          \
        used += (size_t)snprintf(storage + used, 4096 - used, __VA_ARGS__) + 1; \
    } while (0)
    const size_t word = strcspn(s->command, " ");
    ADD("%.*s", (int)word, s->command);
    ADD("%s/%s", home, s->ini);
    if (s->command[word] != '\0') ADD("%s", s->command + word + 1);
    ADD("--plugins");
    ADD("%s", LH_TEST_PLUGINS);
    ADD("--set");
    ADD("pipeline.folder=%s", folder);
    if (s->set != NULL) {
        ADD("--set");
        ADD("%s", s->set);
    }
#undef ADD
    argv[argc] = NULL;
    return argc;
}

static int run_command(const scenario_t *s, const char *folder)
{
    static char storage[4096];
    char *argv[ARGUMENTS];
    cli_t cli = {0};
    int code = cli_parse(make_arguments(s, folder, argv, storage), argv, &cli);
    if (code == LH_OK) code = cli_open(&cli);
    if (code == LH_OK) code = cli.command->run(&cli);
    if (code < 0) log_line(LH_LOG_INFO, "%s", fail_reason());
    const bool said = fail_reason()[0] != '\0';
    cli_close(&cli);
    cli_free(&cli);
    if (code == LH_NO_MEMORY) return said ? EXIT_REFUSED : CODE_SILENT;
    if (code < 0) return CODE_OTHER;
    return code;
}

static void redirect(const char *log)
{
    const int nothing = open("/dev/null", O_WRONLY);
    const int errors = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)dup2(nothing, STDOUT_FILENO);
    (void)dup2(errors, STDERR_FILENO);
    (void)close(nothing);
    (void)close(errors);
}

static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}

/* n 0: nothing fails. *allocations is how many there were. Plugins stay loaded, so their images'
 * files stay open: what `spare` allows. */
static int in_process(const scenario_t *s, const char *folder, uint64_t n, bool forever,
                      const char *log, uint64_t *allocations)
{
    int ends[2];
    if (pipe(ends) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        static sys_t quick;
        uint64_t count;
        (void)close(ends[0]);
        quick = sys_real; /* the disk is not what is tested */
        quick.fsync = no_fsync;
        sys_use(&quick);
        redirect(log);
        fail_clear();
        const int before = open_descriptors();
        const uint64_t begun = mem_count();
        mem_fail_at(n, forever);
        int code = run_command(s, folder);
        mem_fail_at(0, false);
        count = mem_count() - begun;
        enum { PLUGINS_OPEN = 6 };
        if (open_descriptors() > before + PLUGINS_OPEN) code = CODE_DESCRIPTORS;
#ifdef HAS_LEAK_CHECK
        if (__lsan_do_recoverable_leak_check() != 0) code = CODE_LEAK;
#endif
        if (write(ends[1], &count, sizeof(count)) != (ssize_t)sizeof(count)) code = CODE_OTHER;
        _exit(code);
    }
    int how = 0;
    uint64_t count = 0;
    (void)close(ends[1]);
    const ssize_t got = read(ends[0], &count, sizeof(count));
    (void)close(ends[0]);
    if (waitpid(child, &how, 0) != child) return -1;
    if (allocations != NULL) *allocations = got == (ssize_t)sizeof(count) ? count : 0;
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static void shell(const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    assert_int_equal(system(line), 0);
}

/* A file of a run, but that its folder's name is the base run's. */
static char *file_rebased(const char *folder, const char *path, size_t *length)
{
    char own[192], others[192];
    size_t bytes, used = 0;
    (void)snprintf(own, sizeof(own), "%s/", folder);
    (void)snprintf(others, sizeof(others), "%s/", base);
    char *file = scratch_read(path, &bytes);
    char *out = mem_new(2 * bytes + 1); /* the base's name is no longer than twice the other */
    assert_non_null(out);
    assert_true(strlen(others) <= 2 * strlen(own));
    const char *at = file, *const end = file + bytes;
    for (const char *found = at; found != NULL;) {
        found = memmem(at, (size_t)(end - at), own, strlen(own));
        const size_t before = (size_t)((found != NULL ? found : end) - at);
        memcpy(out + used, at, before);
        used += before;
        if (found == NULL) continue;
        memcpy(out + used, others, strlen(others));
        used += strlen(others);
        at = found + strlen(own);
    }
    mem_free(file);
    *length = used;
    return out;
}

static bool is_same_content(const char *folder, const char *name)
{
    char path[512], theirs[512];
    size_t length, expected_length;
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    (void)snprintf(theirs, sizeof(theirs), "%s/%s", base, name);
    if (!file_exists(path)) return false;
    char *found = file_rebased(folder, path, &length);
    char *expected = scratch_read(theirs, &expected_length);
    const bool same = length == expected_length && memcmp(found, expected, length) == 0;
    mem_free(found);
    mem_free(expected);
    return same;
}

static void assert_same_content(const char *folder, const char *name, uint64_t n)
{
    if (is_same_content(folder, name)) return;
    print_error("%s: allocation %llu failed unheard\n", name, (unsigned long long)n);
    _fail(__FILE__, __LINE__);
}

/* For sys()->list: context is the folder's path. 1: it is what a save or another writer left. */
static int leftover_entry(void *context, const char *name)
{
    static const char *const patterns[] = {"*.tmp", "tmp*", "*.tmp-*"};
    char path[512];
    struct stat st;
    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
        if (fnmatch(patterns[i], name, 0) == 0) return 1;
    (void)snprintf(path, sizeof(path), "%s/%s", (const char *)context, name);
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return 0;
    return sys()->list(path, leftover_entry, path) == 1;
}

static bool has_leftovers(const char *folder)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s", folder);
    return sys()->list(path, leftover_entry, path) == 1;
}

/* Sweeping takes memory too. What a process without any left behind lies in a folder that no loader
 * looks at, and the next run sweeps it. */
static void assert_nothing_half_written(const scenario_t *s, const char *folder, bool forever,
                                        const char *log)
{
    if (!has_leftovers(folder)) return;
    assert_true(forever);
    assert_int_equal(in_process(s, folder, 0, false, log, NULL), EXIT_DONE);
    assert_false(has_leftovers(folder));
}

typedef struct folder_copy { /* a folder, and what becomes it */
    const char *from, *to;
} folder_copy_t;

static void path_copy(const char *from, const char *to);

/* For sys()->list: context is a folder_copy_t. */
static int copy_entry(void *context, const char *name)
{
    const folder_copy_t *c = context;
    char from[512], to[512];
    (void)snprintf(from, sizeof(from), "%s/%s", c->from, name);
    (void)snprintf(to, sizeof(to), "%s/%s", c->to, name);
    path_copy(from, to);
    return 0;
}

static void path_copy(const char *from, const char *to)
{
    struct stat st;
    assert_int_equal(lstat(from, &st), 0);
    if (S_ISDIR(st.st_mode)) {
        folder_copy_t c = {from, to};
        assert_int_equal(mkdir(to, st.st_mode & 0777), 0);
        assert_int_equal(sys()->list(from, copy_entry, &c), 0);
    } else if (S_ISLNK(st.st_mode)) {
        char target[512] = "";
        assert_in_range(readlink(from, target, sizeof(target) - 1), 1, sizeof(target) - 2);
        assert_int_equal(symlink(target, to), 0);
    } else {
        size_t length;
        char *bytes = scratch_read(from, &length);
        const int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, st.st_mode & 0777);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, bytes, length), (ssize_t)length);
        (void)close(fd);
        mem_free(bytes);
    }
}

/* Without a shell, whose commands would take longer than most of the processes that are tested. A
 * helper that such a process leaves may remove files of its own meanwhile. */
static void make_folder(const scenario_t *s, const char *folder)
{
    enum { TRIES = 100, PAUSE_US = 10000 };
    for (int i = 0; folder_remove(folder) != LH_OK; i++) {
        assert_true(i < TRIES);
        (void)usleep(PAUSE_US);
    }
    assert_int_equal(mkdir(folder, 0777), 0);
    folder_copy_t c = {base, folder};
    char name[64];
    for (const char *rest = s->given; *rest != '\0'; rest += strspn(rest, " ")) {
        const size_t length = strcspn(rest, " ");
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, rest);
        (void)copy_entry(&c, name);
        rest += length;
    }
}

static void fail_each(scratch_t *s, const scenario_t *scenario, bool forever)
{
    char folder[160], log[160];
    uint64_t total, refused = 0, tried = 0;
    (void)snprintf(folder, sizeof(folder), "%s/run", s->folder);
    (void)snprintf(log, sizeof(log), "%s/log", s->folder);
    make_folder(scenario, folder);
    int code = in_process(scenario, folder, 0, false, log, &total);
    if (code != EXIT_DONE) shell("cat %s >&2; false", log);
    const bool all = torture_wanted();
    const uint64_t step = all || total < SAMPLES ? 1 : total / SAMPLES;
    const char *first = getenv("LONGHAUL_FIRST");
    for (uint64_t n = first == NULL ? 1 : strtoull(first, NULL, 10); n <= total;
         n += step, tried++) {
        make_folder(scenario, folder);
        code = in_process(scenario, folder, n, forever, log, NULL);
        if (code == EXIT_DONE) {
            for (size_t i = 0; i < 3 && scenario->compared[i] != NULL; i++)
                assert_same_content(folder, scenario->compared[i], n);
        } else if (code != EXIT_REFUSED) {
            print_error("%s: allocation %llu of %llu%s: code %d\n", scenario->command,
                        (unsigned long long)n, (unsigned long long)total,
                        forever ? " and all that follow" : "", code);
            shell("cat %s >&2; false", log);
        }
        refused += code == EXIT_REFUSED;
        assert_nothing_half_written(scenario, folder, forever, log);
    }
    print_message("%s: %llu of %llu allocations failed%s, %llu times it ended with a sentence\n",
                  scenario->command, (unsigned long long)tried, (unsigned long long)total,
                  forever ? " with all that follow" : "", (unsigned long long)refused);
    assert_true(first != NULL || refused > tried / 2); /* late ones may be borne */
}

#ifndef HAS_LEAK_CHECK
typedef int sgemm_t(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                    const float *, int64_t, float, float *, int64_t);

/* oneDNN is the cpu device's, which opens it all the same. It compiles a product when one of that kind is
 * first asked for: by one thread, as there must be no other when processes are forked. */
static void onednn_begin(void)
{
    enum { SIDE = 8 };
    static const char turns[] = "NT";
    static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    void (*threads)(int) = NULL;
    sgemm_t *product = NULL;
    void *library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, "dnnl_sgemm");
    void *team = library == NULL ? NULL : dlsym(library, "omp_set_num_threads");
    if (found == NULL || team == NULL) return;
    memcpy(&product, &found, sizeof(found));
    memcpy(&threads, &team, sizeof(team));
    threads(1);
    for (uint32_t i = 0; i < 8; i++)
        (void)product(turns[i & 1], turns[i >> 1 & 1], SIDE, SIDE, SIDE, 1, a, SIDE, b, SIDE,
                      (float)(i >> 2), c, SIDE);
}
#else
static void onednn_begin(void) /* a sample: and a library of this size is much to follow */
{
}
#endif

/* What other libraries do when they are used first: once, and not in each of the thousands of processes
 * that are forked of this one. None of it is an allocation that fails here. */
static void libraries_begin(void)
{
    char sum[SHA256_TEXT];
    assert_int_equal(digest_of("", 0, sum), LH_OK);
    onednn_begin();
}

static int setup(void **state)
{
    static const scenario_t run = {"run", "memory.ini", NULL, "", {NULL}};
    if (scratch_setup(state) != 0) return -1;
    scratch_t *s = *state;
    char log[160];
    text_t text = {0};
    libraries_begin();
    for (int i = 0; i < 20; i++)
        text_printf(&text, "{\"text\":\"a few words %d\"}\n", i);
    (void)snprintf(home, sizeof(home), "%s", s->folder);
    (void)scratch_text(s, "memory.ini", ini);
    (void)scratch_text(s, "import.ini", import_ini);
    (void)scratch_text(s, "text.jsonl", text.data);
    text_free(&text);
    (void)snprintf(base, sizeof(base), "%s/base", s->folder);
    (void)snprintf(log, sizeof(log), "%s/log", s->folder);
    if (in_process(&run, base, 0, false, log, NULL) == EXIT_DONE) return 0;
    shell("cat %s >&2", log);
    return -1;
}

static void one(void **state, size_t i)
{
    fail_each(*state, &scenarios[i], false);
    fail_each(*state, &scenarios[i], true);
}

static void check_survives_every_failed_allocation(void **state)
{
    one(state, 0);
}

static void prepare_survives_every_failed_allocation(void **state)
{
    one(state, 1);
}

static void training_survives_every_failed_allocation(void **state)
{
    one(state, 2);
}

static void a_resume_survives_every_failed_allocation(void **state)
{
    one(state, 3);
}

static void an_import_survives_every_failed_allocation(void **state)
{
    one(state, 4);
}

static void an_export_survives_every_failed_allocation(void **state)
{
    one(state, 5);
}

static void generating_survives_every_failed_allocation(void **state)
{
    one(state, 6);
}

int main(int argc, char **argv) /* [a glob over the names of tests] */
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_survives_every_failed_allocation),
        cmocka_unit_test(prepare_survives_every_failed_allocation),
        cmocka_unit_test(training_survives_every_failed_allocation),
        cmocka_unit_test(a_resume_survives_every_failed_allocation),
        cmocka_unit_test(an_import_survives_every_failed_allocation),
        cmocka_unit_test(an_export_survives_every_failed_allocation),
        cmocka_unit_test(generating_survives_every_failed_allocation),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("out of memory", tests, setup, scratch_teardown);
}
