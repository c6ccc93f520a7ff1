/* resume_reads_test.c - a resume reads each byte of its checkpoint's data once: what is checked is
 * what is loaded. */
#include <unit/data/scratch_files.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>
#include <cli/arguments.h>

static const char ini[] = "[pipeline]\nname = reads\nstages = prepare train\n"
                          "[prepare]\ninput = text.jsonl\n"
                          "tokenizer = " LH_TEST_DATA "/tokenizers/mini-llama\n"
                          "[data]\nsplit = 1,0,0\n"
                          "[model]\nplugin = llama\nblocks = 2\nhidden = 64\nheads = 2\nffn = 128\n"
                          "max_tokens = 16\n"
                          "[train]\nsequence = 8\nbatch = 2\nsteps = 1\n"
                          "[optimizer]\nplugin = zero0\nrule = rules:adamw\nlearning_rate = 0.01\n"
                          "[device]\nplugin = cpu\nthreads = 1\n";

/* Of files that hold tensors; shared with the child. */
static struct {
    uint64_t read;
} * counts;

static ssize_t counting_pread(int fd, void *to, size_t bytes, off_t at)
{
    char link[64], path[512];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof(path) - 1);
    const ssize_t got = sys_real.pread(fd, to, bytes, at);
    if (length > 0) path[length] = '\0';
    if (length > 0 && got > 0 && strstr(path, ".safetensors") != NULL)
        counts->read += (uint64_t)got;
    return got;
}

static int command(const char *job, const char *folder, bool resume)
{
    char set[256];
    (void)snprintf(set, sizeof(set), "pipeline.folder=%s", folder);
    const char *const first[] = {"longhaul",      "run",   job, "--plugins",
                                 LH_TEST_PLUGINS, "--set", set};
    const char *const again[] = {"longhaul",      "train", job, "--resume", "--plugins",
                                 LH_TEST_PLUGINS, "--set", set, "--set",    "train.steps=2"};
    const int argc = resume ? 10 : 7;
    char *argv[11] = {0};
    cli_t cli = {0};
    memcpy(argv, resume ? (const void *)again : (const void *)first,
           (size_t)argc * sizeof(argv[0]));
    int code = arguments_parse(argc, argv, &cli);
    if (code == LH_OK) code = cli_open(&cli);
    if (code == LH_OK) code = cli.command->run(&cli);
    if (code != EXIT_DONE) (void)fprintf(stderr, "%s\n", fail_reason());
    cli_close(&cli);
    arguments_free(&cli);
    return code;
}

static void in_child(const char *job, const char *folder, bool resume)
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
        _exit(command(job, folder, resume) == EXIT_DONE ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static void a_resume_reads_each_byte_of_its_checkpoint_once(void **state)
{
    scratch_t *s = *state;
    struct stat shard;
    text_t text = {0};
    char folder[160], path[320];
    for (int i = 0; i < 20; i++)
        text_printf(&text, "{\"text\":\"a few words %d\"}\n", i);
    (void)scratch_text(s, "text.jsonl", text.data);
    text_free(&text);
    char *job = mem_text(scratch_text(s, "reads.ini", ini));
    (void)snprintf(folder, sizeof(folder), "%s/out", s->folder);
    counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(counts, MAP_FAILED);

    in_child(job, folder, false);
    (void)snprintf(path, sizeof(path),
                   "%s/checkpoints/step-000000000001/shard-00000-00000.safetensors", folder);
    assert_int_equal(stat(path, &shard), 0);
    counts->read = 0;
    in_child(job, folder, true);
    assert_int_equal(counts->read, (uint64_t)shard.st_size);
    (void)munmap(counts, sizeof(*counts));
    mem_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resume_reads_each_byte_of_its_checkpoint_once),
    };
    return cmocka_run_group_tests_name("resume reads", tests, scratch_setup, scratch_teardown);
}
