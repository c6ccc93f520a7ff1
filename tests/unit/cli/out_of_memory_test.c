/* out_of_memory_test.c - whole commands with the n-th allocation failing, once or from there on: a
 * sentence, no leak, no descriptor left, nothing half written; and where a command says that all is
 * well, its files are those of a run without any failure.
 *
 * Every n is a process of its own. A sample of them by default; all with LONGHAUL_TORTURE, from
 * LONGHAUL_FIRST on where that is set. */
#include <unit/base/scratch_files.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* But for its folder's name. */
static void assert_same_content(const char *folder, const char *name, uint64_t n)
{
    char line[1024];
    (void)snprintf(line, sizeof(line), "sed 's,%s/,%s/,g' %s/%s | cmp - %s/%s >&2", folder, base,
                   folder, name, base, name);
    if (system(line) == 0) return;
    print_error("allocation %llu failed unheard\n", (unsigned long long)n);
    _fail(__FILE__, __LINE__);
}

static bool has_leftovers(const char *folder)
{
    char line[512];
    (void)snprintf(line, sizeof(line),
                   "test -n \"$(find %s -name '*.tmp' -o -name 'tmp*' -o -name '*.tmp-*')\"",
                   folder);
    return system(line) == 0;
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

static void make_folder(const scenario_t *s, const char *folder)
{
    shell("rm -rf %s && mkdir %s && cd %s && for f in %s; do cp -r $f %s/; done", folder, folder,
          base, s->given, folder);
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

static int setup(void **state)
{
    static const scenario_t run = {"run", "memory.ini", NULL, "", {NULL}};
    if (scratch_setup(state) != 0) return -1;
    scratch_t *s = *state;
    char log[160];
    text_t text = {0};
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
