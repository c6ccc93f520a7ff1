/* child.c - a child has a pipe for its messages, a group of processes by which it is taken away,
 * and a pidfd that tells its end: the pipe does not, while a process that the child started holds
 * it open.
 *
 * And two doors that the kernel can close behind a process: Landlock for files, seccomp for system
 * calls. Neither needs rights, neither can be opened again, and a kernel that has only one of them
 * closes that one: the caller is told which, and decides. Files are closed by a list of what is
 * allowed, as a reader knows what it reads; system calls by a list of what is refused, as no reader
 * knows what libraries, plugins and the next version of the C library call. The price of the second
 * is that a kernel's new call is open until it is listed. */
#include <base/child.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdnoreturn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>

/* How long to wait before the child is looked at again, in ms: with a descriptor of its end there
 * is no need to. */
enum { LOOK_SELDOM = 60000, LOOK_OFTEN = 20 };

/* What a child does to itself before its work. A parent that ended before PDEATHSIG was set would
 * never send it: hence the look at getppid. */
static noreturn void child_run_work(int (*work)(void *context, int to), void *context, int to,
                                    pid_t parent)
{
    (void)setpgid(0, 0);
    /* Whoever ends the parent ends this, too: nobody else would wait for it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    /* No handlers of exit and no leak check: the memory is a copy of the parent's. */
    _exit(work(context, to));
}

/* Neither end outlives an exec. The parent's end does not block: child_hear waits by poll. The
 * child's may block where the pipe is full. */
static bool open_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return true;
}

int child_start(int (*work)(void *context, int to), void *context, child_t *out)
{
    int ends[2];
    if (!open_pipe(ends)) return CHILD_NO_PIPE;
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        child_run_work(work, context, ends[1], parent);
    }
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return CHILD_NO_PROCESS;
    }
    (void)setpgid(pid, pid); /* whichever of the two comes first */
    const int end = (int)syscall(SYS_pidfd_open, pid, 0);
    *out = (child_t){.pid = pid, .from = ends[0], .end = end};
    return CHILD_STARTED;
}

bool child_say(int to, const void *message, size_t bytes)
{
    lh_assert(bytes <= CHILD_MESSAGE);
    ssize_t wrote;
    do
        wrote = write(to, message, bytes);
    while (wrote < 0 && errno == EINTR);
    return wrote == (ssize_t)bytes;
}

/* WNOWAIT: the child's end stays to be waited for, by child_take_away. */
static bool child_has_ended(const child_t *c)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* False: nothing yet, or nothing any more. After the pipe's end, or a part of a message, which
 * child_say never writes, nothing more is read; the pipe stays open, as a child that writes into a
 * closed one is ended by SIGPIPE. */
static bool take_message(child_t *c, void *message, size_t bytes)
{
    if (c->silent) return false;
    const ssize_t got = read(c->from, message, bytes);
    c->silent = got >= 0 && got != (ssize_t)bytes;
    return got == (ssize_t)bytes;
}

/* How long to sleep in poll: to the deadline, but no longer than the child's end may go
 * unnoticed. */
static int child_pause_ms(const child_t *c, uint64_t now, uint64_t until)
{
    const uint64_t most = c->end < 0 ? LOOK_OFTEN : LOOK_SELDOM;
    const uint64_t left = now >= until ? 0 : (until - now) / 1000000 + 1;
    return (int)(left < most ? left : most);
}

int child_hear(child_t *c, void *message, size_t bytes, uint64_t until)
{
    lh_assert(bytes <= CHILD_MESSAGE && c->pid > 0);
    for (;;) {
        struct pollfd fds[2] = {{.fd = c->silent ? -1 : c->from, .events = POLLIN},
                                {.fd = c->end, .events = POLLIN}};
        const uint64_t now = sys()->now_ns();
        (void)poll(fds, 2, child_pause_ms(c, now, until));
        /* First the end, then the pipe: all that it said is in there once it has ended, while a
         * message that is looked for first may come in between. */
        const bool ended = child_has_ended(c);
        if (take_message(c, message, bytes)) return CHILD_SAID;
        if (ended) return CHILD_ENDED;
        if (now >= until) return CHILD_LATE;
    }
}

int child_take_away(child_t *c)
{
    lh_assert(c->pid > 0);
    int how = 0;
    (void)kill(-c->pid, SIGKILL);
    (void)kill(c->pid, SIGKILL); /* it may have left its group */
    while (waitpid(c->pid, &how, 0) < 0 && errno == EINTR) {
    }
    (void)close(c->from);
    if (c->end >= 0) (void)close(c->end);
    return how;
}

/* Landlock: a ruleset of what may be read and written, then the end of all else. Versions and bits
 * are the kernel's; they stand here because the headers of a build machine may be older. */
#define RIGHTS(first, last) ((UINT64_C(2) << (last)) - (UINT64_C(1) << (first)))

enum { VERSION_REFER = 2, VERSION_TRUNCATE, VERSION_NETWORK, VERSION_DEVICES, VERSION_SCOPES };
enum { REFER_BIT = 13, TRUNCATE_BIT, DEVICES_BIT };
static const uint64_t first_rights = RIGHTS(0, 12); /* of version 1 */
static const uint64_t both_ports = RIGHTS(0, 1);    /* bind and connect of TCP */
static const uint64_t both_scopes = RIGHTS(0,
                                           1); /* abstract sockets, signals to processes outside */
static const uint64_t refer_right = UINT64_C(1) << REFER_BIT;
static const uint64_t truncate_right = UINT64_C(1) << TRUNCATE_BIT;
static const uint64_t devices_right = UINT64_C(1) << DEVICES_BIT;

typedef struct ruleset { /* of the newest version known here; the kernel takes zeros for unknown */
    uint64_t files, network, scopes;
} ruleset_t;

/* What is handled is refused unless a rule allows it: of each version all that the kernel knows. */
static ruleset_t ruleset_of(long version)
{
    ruleset_t r = {.files = first_rights};
    if (version >= VERSION_REFER) r.files |= refer_right;
    if (version >= VERSION_TRUNCATE) r.files |= truncate_right;
    if (version >= VERSION_NETWORK) r.network = both_ports;
    if (version >= VERSION_DEVICES) r.files |= devices_right;
    if (version >= VERSION_SCOPES) r.scopes = both_scopes;
    return r;
}

/* What a rule for one path allows. A file has no rights of folders: the kernel refuses such a
 * rule. */
static uint64_t rights_of(bool writes, bool folder)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_READ_FILE;
    if (folder) rights |= LANDLOCK_ACCESS_FS_READ_DIR;
    if (!writes) return rights;
    rights |= LANDLOCK_ACCESS_FS_WRITE_FILE | truncate_right;
    if (folder)
        rights |= LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                  LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | refer_right;
    return rights;
}

/* Adds a rule to the ruleset `rules`; rights that this kernel does not handle are left out of
 * it. */
static bool rules_allow(int rules, const ruleset_t *handled, const char *path, bool writes)
{
    struct stat st;
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) return true; /* nothing to allow */
    struct landlock_path_beneath_attr beneath = {.parent_fd = fd};
    bool done = fstat(fd, &st) == 0;
    if (done) {
        beneath.allowed_access = rights_of(writes, S_ISDIR(st.st_mode)) & handled->files;
        done = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) == 0;
    }
    (void)close(fd);
    return done;
}

/* NO_NEW_PRIVS is what the kernel asks for in return: no program that is started later gains
 * rights. */
static bool confine_files(const confine_t *c)
{
    const long version = syscall(SYS_landlock_create_ruleset, NULL, 0,
                                 LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) return false;
    const ruleset_t handled = ruleset_of(version);
    const int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0);
    if (rules < 0) return false;
    bool done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
    for (uint32_t i = 0; done && c->read[i] != NULL; i++)
        done = rules_allow(rules, &handled, c->read[i], false);
    for (uint32_t i = 0; done && c->write[i] != NULL; i++)
        done = rules_allow(rules, &handled, c->write[i], true);
    if (done) done = syscall(SYS_landlock_restrict_self, rules, 0) == 0;
    (void)close(rules);
    return done;
}

/* seccomp: a program in classic BPF that the kernel runs before every system call of this process
 * and of those that it starts. A call that it refuses fails with EPERM. */

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef OWN_ARCH
/* Newer than the headers of some build machines; the same on both. */
enum { CALL_OPENAT2 = 437, CALL_FCHMODAT2 = 452, CALL_SETXATTRAT = 463, CALL_REMOVEXATTRAT = 466 };

/* clang-format off */
static const unsigned refused[] = {
    /* another program */
    SYS_execve, SYS_execveat,
    /* the network, and sockets of this machine */
    SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4,
    SYS_sendto, SYS_sendmsg, SYS_sendmmsg,
    /* other processes */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_pidfd_getfd,
    SYS_kcmp, SYS_migrate_pages, SYS_move_pages,
    /* out of the group with which it is taken away */
    SYS_setsid, SYS_setpgid,
    /* the kernel's larger doors */
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_syslog, SYS_acct,
    SYS_quotactl, SYS_swapon, SYS_swapoff, SYS_vhangup, SYS_personality, SYS_lookup_dcookie,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
    /* what is mounted, and who this is */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_move_mount, SYS_fsopen,
    SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr, SYS_unshare, SYS_setns,
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_fanotify_init, SYS_setuid, SYS_setgid,
    SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_setfsuid,
    SYS_setfsgid, SYS_capset,
    /* whose a file is, what it may, when it changed, and on older kernels how long it is: Landlock
     * does not look at these */
    SYS_fchmod, SYS_fchmodat, CALL_FCHMODAT2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_setxattr,
    SYS_lsetxattr, SYS_fsetxattr, CALL_SETXATTRAT, SYS_removexattr, SYS_lremovexattr,
    SYS_fremovexattr, CALL_REMOVEXATTRAT, SYS_mknodat, SYS_truncate,
    /* the machine */
    SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_sethostname,
    SYS_setdomainname,
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS_mknod, SYS_chmod, SYS_chown, SYS_lchown,
    SYS_utime, SYS_utimes, SYS_futimesat,
#endif
};
/* clang-format on */

enum {
    REFUSED = sizeof(refused) / sizeof(refused[0]),
    MOST = 2 * REFUSED + 48,
    OTHER_TABLE = 0x40000000, /* x32's calls, by x86-64's door */
    NEW_SPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                 CLONE_NEWPID | CLONE_NEWNET,
};

/* A program in classic BPF: an accumulator, loads from struct seccomp_data, and jumps forward by a
 * number of steps. */
typedef struct filter {
    struct sock_filter steps[MOST];
    unsigned short count;
} filter_t;

/* then, otherwise: how many steps a jump skips where its test holds, and where it doesn't. */
static void filter_add(filter_t *f, unsigned code, uint32_t value, uint8_t then, uint8_t otherwise)
{
    lh_assert(f->count < MOST);
    f->steps[f->count++] = (struct sock_filter){(uint16_t)code, then, otherwise, value};
}

static void filter_load(filter_t *f, size_t offset)
{
    filter_add(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void filter_end(filter_t *f, uint32_t result)
{
    filter_add(f, BPF_RET | BPF_K, result, 0, 0);
}

/* The accumulator is compared; it stays as it is. */
static void filter_end_if(filter_t *f, unsigned test, uint32_t value, uint32_t result)
{
    filter_add(f, BPF_JMP | test | BPF_K, value, 0, 1);
    filter_end(f, result);
}

/* Refuses one call by its argument's low half, which both architectures put first in memory. The
 * number of the call is loaded again behind it, for the next test; the jump of 4 skips all of
 * this. */
static void filter_refuse_if(filter_t *f, uint32_t call, uint32_t argument, unsigned test,
                             uint32_t value)
{
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
    filter_load(f, offsetof(struct seccomp_data, args) + 8 * argument);
    filter_end_if(f, test, value, SECCOMP_RET_ERRNO | EPERM);
    filter_load(f, offsetof(struct seccomp_data, nr));
}

/* A file that may be read is not to be emptied: Landlock sees to it from Linux 6.2 on. */
static void filter_refuse_emptying(filter_t *f, uint32_t call, uint32_t argument)
{
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 5);
    filter_load(f, offsetof(struct seccomp_data, args) + 8 * argument);
    filter_add(f, BPF_ALU | BPF_AND | BPF_K, O_TRUNC | O_ACCMODE, 0, 0);
    filter_end_if(f, BPF_JEQ, O_TRUNC | O_RDONLY, SECCOMP_RET_ERRNO | EPERM);
    filter_load(f, offsetof(struct seccomp_data, nr));
}

/* The whole filter. It starts with the architecture, as the numbers of calls are another table for
 * another one, and each test ends the program or falls through to the next. */
static void filter_write(filter_t *f)
{
    filter_load(f, offsetof(struct seccomp_data, arch));
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0);
    filter_end(f, SECCOMP_RET_KILL_PROCESS); /* calls of 32 bits */
    filter_load(f, offsetof(struct seccomp_data, nr));
    filter_end_if(f, BPF_JGE, OTHER_TABLE, SECCOMP_RET_ERRNO | EPERM);
    for (uint32_t i = 0; i < REFUSED; i++)
        filter_end_if(f, BPF_JEQ, refused[i], SECCOMP_RET_ERRNO | EPERM);
    /* What clone3 and openat2 are asked for lies in memory, where no filter looks. Where a kernel
     * says that it has no clone3, the C library calls clone. */
    filter_end_if(f, BPF_JEQ, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    filter_end_if(f, BPF_JEQ, CALL_OPENAT2, SECCOMP_RET_ERRNO | ENOSYS);
    filter_refuse_emptying(f, SYS_openat, 2);
#ifdef __x86_64__
    filter_refuse_emptying(f, SYS_open, 1);
#endif
    filter_refuse_if(f, SYS_prlimit64, 0, BPF_JSET, UINT32_MAX); /* of another process */
    filter_refuse_if(f, SYS_clone, 0, BPF_JSET, NEW_SPACES);
    filter_refuse_if(f, SYS_ioctl, 1, BPF_JEQ, TIOCSTI); /* keys typed into the terminal */
    filter_end(f, SECCOMP_RET_ALLOW);
}

static bool confine_calls(void)
{
    filter_t f = {.count = 0};
    filter_write(&f);
    const struct sock_fprog program = {.len = f.count, .filter = f.steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
#else
static bool confine_calls(void)
{
    return false;
}
#endif

uint32_t child_confine(const confine_t *c)
{
    const uint32_t files = confine_files(c) ? CONFINE_FILES : 0;
    return files | (confine_calls() ? CONFINE_CALLS : 0);
}

/* Work in a child that is confined: what the child does and says, and how its end is told. An
 * answer is one message, so that nothing of it can be missing. */
enum { REASON_BYTES = 2048 };

typedef struct answer {
    lh_status_t status;
    char reason[REASON_BYTES];
    alignas(max_align_t) unsigned char result[CONFINE_RESULT];
} answer_t;
_Static_assert(sizeof(answer_t) <= CHILD_MESSAGE, "an answer is one message");

static void confine_tell_missing(const char *what, uint32_t taken)
{
    if ((taken & CONFINE_FILES) == 0)
        log_line(LH_LOG_INFO, "%s may open any file: this kernel gives no Landlock", what);
    if ((taken & CONFINE_CALLS) == 0)
        log_line(LH_LOG_INFO, "%s may make any system call: this kernel gives no filter", what);
}

static int child_to = -1; /* in the child: where it answers, for an assertion that has no context */

static bool confine_tell_parent(const char *sentence)
{
    answer_t a = {.status = STATUS_INTERNAL};
    (void)snprintf(a.reason, sizeof(a.reason), "%s", sentence);
    return child_say(child_to, &a, sizeof(a));
}

/* The child's whole life. stdout is flushed here, as no handler of exit does it. */
static int confine_answer(void *context, int to)
{
    const confine_work_t *c = context;
    answer_t a = {0};
    child_to = to;
    status_assert_tell(confine_tell_parent);
    confine_tell_missing(c->what, child_confine(&c->may));
    fail_clear();
    a.status = c->work(c->context, a.result);
    (void)snprintf(a.reason, sizeof(a.reason), "%s", fail_reason());
    (void)fflush(stdout);
    return child_say(to, &a, sizeof(a)) ? 0 : 1;
}

/* The sentence of a child that ended without an answer. */
static lh_status_t confine_judge(const confine_work_t *c, int how)
{
    if (WIFSIGNALED(how))
        return fail(LH_INVALID, "%s was ended by signal %d (%s)", c->what, WTERMSIG(how),
                    strsignal(WTERMSIG(how)));
    return fail(LH_INVALID, "%s ended with code %d and without a word", c->what, WEXITSTATUS(how));
}

/* Waits for the answer without a deadline: an import may take hours. What the child says is not
 * trusted: its text is cut where it has to end, and a positive status, which is no failure and no
 * result, comes from a child that was taken over. */
static lh_status_t confine_hear(const confine_work_t *c, child_t *child, void *result)
{
    answer_t a;
    const bool answered = child_hear(child, &a, sizeof(a), CHILD_NO_DEADLINE) == CHILD_SAID;
    const int how = child_take_away(child);
    if (!answered || a.status > LH_OK) return confine_judge(c, how);
    a.reason[sizeof(a.reason) - 1] = '\0';
    if (a.status != LH_OK) return fail_again(a.status, a.reason);
    memcpy(result, a.result, c->result_bytes);
    return LH_OK;
}

lh_status_t child_run_confined(const confine_work_t *c, void *result)
{
    lh_assert(c->work != NULL && c->result_bytes <= CONFINE_RESULT);
    child_t child;
    (void)fflush(stdout); /* what waits there is for the parent to write */
    switch (child_start(confine_answer, (void *)(uintptr_t)c, &child)) {
    case CHILD_NO_PIPE: return fail_io(errno, "no pipe to hear of %s", c->what);
    case CHILD_NO_PROCESS: return fail_io(errno, "no process for %s", c->what);
    default: return confine_hear(c, &child, result);
    }
}
