/* confine_test.c - a confined process can do its work, and nothing beside it. Each case is a child,
 * as there is no way back. */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/child.h>

enum { SKIPPED = 77, PATH = 96 };
static char above[32], in[PATH], out[PATH], secret[PATH], linked[PATH];

static void write_file(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    (void)close(fd);
}

static int make_folders(void **state)
{
    char path[PATH + 8];
    (void)state;
    (void)snprintf(above, sizeof(above), "/tmp/longhaul-confine-XXXXXX");
    assert_non_null(mkdtemp(above));
    (void)snprintf(in, sizeof(in), "%s/in", above);
    (void)snprintf(out, sizeof(out), "%s/out", above);
    (void)snprintf(secret, sizeof(secret), "%s/secret", above);
    (void)snprintf(linked, sizeof(linked), "%s/in/link", above);
    assert_int_equal(mkdir(in, 0700), 0);
    assert_int_equal(mkdir(out, 0700), 0);
    write_file(secret);
    (void)snprintf(path, sizeof(path), "%s/file", in);
    write_file(path);
    assert_int_equal(symlink(secret, linked), 0);
    return 0;
}

static int remove_folders(void **state)
{
    char command[64];
    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", above);
    return system(command);
}

/* 0: it did not fail; else what errno said. */
static int error_of(long result)
{
    return result < 0 ? errno : 0;
}

static int open_error(const char *folder, const char *name, int flags)
{
    char path[2 * PATH];
    (void)snprintf(path, sizeof(path), "%s%s%s", folder, name[0] != '\0' ? "/" : "", name);
    const int fd = open(path, flags | O_CLOEXEC, 0600);
    const int error = error_of(fd);
    if (fd >= 0) (void)close(fd);
    return error;
}

#define EXPECT(error, what)                                                     \
    do {                                                                        \
        const int got = (what);                                                 \
        if (got == (error)) break;                                              \
        fprintf(stderr, "%s: %s, expected %s\n", #what, strerror(got), #error); \
        _exit(1);                                                               \
    } while (0)

static void in_child(uint32_t wanted, void (*tries)(void))
{
    const char *const read[] = {in, "/nowhere/at/all", NULL}, *const write[] = {out, NULL};
    const confine_t may = {.read = read, .write = write};
    int how;
    (void)fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if ((child_confine(&may) & wanted) != wanted) _exit(SKIPPED);
        tries();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == SKIPPED) skip();
    assert_int_equal(WEXITSTATUS(how), 0);
}

static void try_files(void)
{
    char from[PATH + 8], to[PATH + 8], away[64];
    (void)snprintf(from, sizeof(from), "%s/a", out);
    (void)snprintf(to, sizeof(to), "%s/b", out);
    (void)snprintf(away, sizeof(away), "%s/b", above);
    EXPECT(0, open_error(in, "file", O_RDONLY));
    EXPECT(0, open_error(in, "", O_RDONLY | O_DIRECTORY));
    EXPECT(0, open_error(out, "a", O_RDWR | O_CREAT | O_TRUNC));
    EXPECT(0, error_of(rename(from, to)));
    EXPECT(ENOENT, open_error(in, "no-such-file", O_RDONLY));
    EXPECT(EACCES, open_error(in, "file", O_WRONLY));
    EXPECT(EACCES, open_error(in, "new", O_WRONLY | O_CREAT));
    EXPECT(EACCES, open_error(in, "link", O_RDONLY));
    EXPECT(EACCES, open_error(above, "secret", O_RDONLY));
    EXPECT(EACCES, open_error(above, "new", O_WRONLY | O_CREAT));
    EXPECT(EACCES, open_error(above, "", O_RDONLY | O_DIRECTORY));
    EXPECT(EACCES, open_error("/proc/self", "environ", O_RDONLY));
    EXPECT(EACCES, error_of(unlink(secret)));
    EXPECT(EACCES, error_of(rename(to, away)));
    EXPECT(EACCES, error_of(symlink("/etc", from)));
    EXPECT(0, error_of(unlink(to)));
}

static void try_calls(void)
{
    char *const words[] = {"true", NULL}, *const none[] = {NULL};
    char byte = 0;
    const struct iovec own = {&byte, 1};
    EXPECT(EPERM, error_of(execve("/bin/true", words, none)));
    EXPECT(EPERM, error_of(execveat(AT_FDCWD, "/bin/true", words, none, 0)));
    EXPECT(EPERM, error_of(socket(AF_INET, SOCK_STREAM, 0)));
    EXPECT(EPERM, error_of(socket(AF_UNIX, SOCK_STREAM, 0)));
    EXPECT(EPERM, error_of(socket(AF_NETLINK, SOCK_RAW, 0)));
    EXPECT(EPERM, error_of(ptrace(PTRACE_TRACEME, 0, NULL, NULL)));
    EXPECT(EPERM, error_of(process_vm_readv(getppid(), &own, 1, &own, 1, 0)));
    EXPECT(EPERM, error_of(setpgid(0, 0)));
    EXPECT(EPERM, error_of(setsid()));
    EXPECT(EPERM, error_of(mount("none", in, "tmpfs", 0, NULL)));
    EXPECT(EPERM, error_of(unshare(CLONE_NEWUSER)));
    EXPECT(EPERM, error_of(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL)));
    EXPECT(ENOSYS, error_of(syscall(SYS_clone3, NULL, 0)));
    EXPECT(EPERM, error_of(syscall(SYS_bpf, 0, NULL, 0)));
    EXPECT(EPERM, error_of(syscall(SYS_io_uring_setup, 1, NULL)));
    EXPECT(EPERM, error_of(syscall(SYS_userfaultfd, 0)));
    EXPECT(EPERM, error_of(syscall(SYS_keyctl, 0, 0)));
    EXPECT(EPERM, error_of(chmod(secret, 0644)));
    EXPECT(EPERM, error_of(truncate(secret, 0)));
    EXPECT(EPERM, open_error(above, "secret", O_RDONLY | O_TRUNC));
#ifdef SYS_open
    EXPECT(EPERM, error_of(syscall(SYS_open, secret, O_RDONLY | O_TRUNC, 0)));
#endif
    EXPECT(0, open_error(out, "new", O_WRONLY | O_CREAT | O_TRUNC));
    EXPECT(ENOSYS, error_of(syscall(SYS_openat2, AT_FDCWD, secret, NULL, 0)));
    EXPECT(EPERM, error_of(prlimit(getppid(), RLIMIT_NOFILE, NULL, NULL)));
    EXPECT(0, error_of(prlimit(0, RLIMIT_NOFILE, NULL, NULL)));
    EXPECT(EPERM, error_of(ioctl(STDIN_FILENO, TIOCSTI, "x")));
}

/* What is refused to it stays possible to nobody that it starts. */
static void try_children(void)
{
    int how;
    const pid_t child = fork();
    if (child == 0) {
        EXPECT(EPERM, error_of(socket(AF_INET, SOCK_STREAM, 0)));
        EXPECT(EACCES, open_error(above, "secret", O_RDONLY));
        EXPECT(EPERM, error_of(setsid()));
        _exit(0);
    }
    EXPECT(0, error_of(child));
    EXPECT(0, error_of(waitpid(child, &how, 0)));
    EXPECT(0, how);
}

/* The terminal's and the parent's are others: only what it started may be ended. */
static void try_signals(void)
{
    EXPECT(EPERM, error_of(kill(getppid(), 0)));
    EXPECT(0, error_of(kill(getpid(), 0)));
}

static void files_elsewhere_stay_shut(void **state)
{
    (void)state;
    in_child(CONFINE_FILES, try_files);
}

static void calls_of_no_reader_are_refused(void **state)
{
    (void)state;
    in_child(CONFINE_CALLS, try_calls);
}

static void children_are_confined_too(void **state)
{
    (void)state;
    in_child(CONFINE_FILES | CONFINE_CALLS, try_children);
}

static void signals_stay_inside(void **state)
{
    enum { VERSION = 1, WITH_SIGNALS = 6 };
    (void)state;
    if (syscall(SYS_landlock_create_ruleset, NULL, 0, VERSION) < WITH_SIGNALS) skip();
    in_child(CONFINE_FILES, try_signals);
}

static void an_unconfined_process_could(void **state)
{
    (void)state;
    assert_int_equal(open_error(in, "link", O_RDONLY), 0);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_elsewhere_stay_shut),
        cmocka_unit_test(calls_of_no_reader_are_refused),
        cmocka_unit_test(children_are_confined_too),
        cmocka_unit_test(signals_stay_inside),
        cmocka_unit_test(an_unconfined_process_could),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
