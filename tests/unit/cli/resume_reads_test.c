/* resume_reads_test.c - a resume reads each byte of its checkpoint's data once: what is checked is
 * what is loaded; one that the disk does not give is out of the way when its step is saved again.
 */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>
#include <cli/cli.h>

static const char ini[] = "[pipeline]\nname = reads\nstages = prepare train\n"
                          "[prepare]\ninput = text.jsonl\n"
                          "tokenizer = " LH_TEST_DATA "/tokenizers/stories260K\n"
                          "[data]\nsplit = 1,0,0\n"
                          "[model]\nplugin = llama\nblocks = 2\nhidden = 64\nheads = 2\nffn = 128\n"
                          "max_tokens = 16\n"
                          "[train]\nsequence = 8\nbatch = 2\n"
                          "[checkpoint]\nevery = 1\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\nlearning_rate = 0.01\n"
                          "[device]\nplugin = cpu\nthreads = 1\n";

/* Of files that hold tensors; shared with the child. */
static struct {
    uint64_t read;
    char bad[32]; /* a folder whose tensors the disk does not give; "": none */
} * counts;

static ssize_t counting_pread(int fd, void *to, size_t bytes, off_t at)
{
    char link[64], path[512];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof(path) - 1);
    const ssize_t got = sys_real.pread(fd, to, bytes, at);
    if (length > 0) path[length] = '\0';
    if (length <= 0 || got <= 0 || strstr(path, ".safetensors") == NULL) return got;
    counts->read += (uint64_t)got;
    if (counts->bad[0] == '\0' || strstr(path, counts->bad) == NULL) return got;
    errno = EIO;
    return -1;
}

/* `run` for the first step, `train --resume` for more, `generate` for none. */
static int command(const char *job, const char *folder, int steps)
{
    static const char *const names[] = {"generate", "run", "train"};
    char set[256], count[32];
    (void)snprintf(set, sizeof(set), "pipeline.folder=%s", folder);
    (void)snprintf(count, sizeof(count), "train.steps=%d", steps == 0 ? 1 : steps);
    const char *const given[] = {"longhaul",
                                 names[steps > 1 ? 2 : steps],
                                 job,
                                 "--plugins",
                                 LH_TEST_PLUGINS,
                                 "--set",
                                 set,
                                 "--set",
                                 count,
                                 steps == 0 ? "--prompt" : "--resume",
                                 "a few",
                                 "--tokens",
                                 "1"};
    const int argc = steps == 0 ? 13 : steps == 1 ? 9 : 10;
    char *argv[14] = {0};
    cli_t cli = {0};
    memcpy(argv, (const void *)given, (size_t)argc * sizeof(argv[0]));
    int code = cli_parse(argc, argv, &cli);
    if (code == LH_OK) code = cli_open(&cli);
    if (code == LH_OK) code = cli.command->run(&cli);
    if (code != EXIT_DONE) (void)fprintf(stderr, "%s\n", fail_reason());
    cli_close(&cli);
    cli_free(&cli);
    return code;
}

static void in_child(int steps, const char *job, const char *folder)
{
    int how;
    const pid_t child = fork();
    if (child == 0) {
        static sys_t seam;
        const int nothing = open("/dev/null", O_WRONLY);
        seam = sys_real;
        seam.pread = counting_pread;
        sys_use(&seam);
        (void)dup2(nothing, STDOUT_FILENO);
        _exit(command(job, folder, steps) == EXIT_DONE ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

/* The job's INI, its text and an empty folder. */
static char *make_job(scratch_t *s, char folder[160])
{
    text_t text = {0};
    for (int i = 0; i < 20; i++)
        text_printf(&text, "{\"text\":\"a few words %d\"}\n", i);
    (void)scratch_text(s, "text.jsonl", text.data);
    text_free(&text);
    (void)snprintf(folder, 160, "%s/out", s->folder);
    return mem_text(scratch_text(s, "reads.ini", ini));
}

static bool has(const char *folder, const char *name)
{
    char path[320];
    (void)snprintf(path, sizeof(path), "%s/checkpoints/%s/manifest.json", folder, name);
    return file_exists(path);
}

static void a_resume_reads_each_byte_of_its_checkpoint_once(void **state)
{
    struct stat shard;
    char folder[160], path[320], *job = make_job(*state, folder);
    in_child(1, job, folder);
    (void)snprintf(path, sizeof(path),
                   "%s/checkpoints/step-000000000001/shard-00000-00000.safetensors", folder);
    assert_int_equal(stat(path, &shard), 0);
    counts->read = 0;
    in_child(2, job, folder);
    assert_int_equal(counts->read, (uint64_t)shard.st_size);
    mem_free(job);
}

/* Weights are a third of what a step holds with AdamW; the header and a page are read besides. */
static void generation_reads_the_weights_alone(void **state)
{
    struct stat shard;
    char folder[160], path[320], *job = make_job(*state, folder);
    in_child(1, job, folder);
    in_child(2, job, folder);
    (void)snprintf(path, sizeof(path),
                   "%s/checkpoints/step-000000000002/shard-00000-00000.safetensors", folder);
    assert_int_equal(stat(path, &shard), 0);
    counts->read = 0;
    in_child(0, job, folder);
    assert_in_range(counts->read, shard.st_size / 3, shard.st_size / 3 + (1 << 16));

    (void)snprintf(counts->bad, sizeof(counts->bad), "/step-000000000002/");
    counts->read = 0;
    in_child(0, job, folder);
    counts->bad[0] = '\0';
    assert_true(counts->read > (uint64_t)shard.st_size / 3);
    assert_true(has(folder, "step-000000000002")); /* only who trains renames */
    mem_free(job);
}

static void a_step_that_the_disk_does_not_give_is_saved_again(void **state)
{
    char folder[160], *job = make_job(*state, folder);
    in_child(1, job, folder);
    in_child(2, job, folder);
    (void)snprintf(counts->bad, sizeof(counts->bad), "/step-000000000002/");
    in_child(3, job, folder);
    counts->bad[0] = '\0';
    assert_true(has(folder, "damaged-step-000000000002"));
    assert_true(has(folder, "step-000000000002") && has(folder, "step-000000000003"));
    assert_true(has(folder, "step-000000000001"));
    mem_free(job);
}

static int setup(void **state)
{
    if (scratch_setup(state) != 0) return -1;
    counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return counts == MAP_FAILED ? -1 : 0;
}

static int teardown(void **state)
{
    (void)munmap(counts, sizeof(*counts));
    return scratch_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_resume_reads_each_byte_of_its_checkpoint_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(generation_reads_the_weights_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_step_that_the_disk_does_not_give_is_saved_again, setup,
                                        teardown),
    };
    return cmocka_run_group_tests_name("resume reads", tests, NULL, NULL);
}
