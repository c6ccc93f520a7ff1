/* confine_calls.c - a filter of system calls (seccomp, classic BPF): what no reader of files needs
 * fails with EPERM. A list of what is refused and not of what is allowed: libraries and plugins of
 * others run behind it, and the next version of the C library. */
#include <base/confine.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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

typedef struct filter {
    struct sock_filter steps[MOST];
    unsigned short count;
} filter_t;

static void add(filter_t *f, unsigned code, uint32_t value, uint8_t then, uint8_t otherwise)
{
    f->steps[f->count++] = (struct sock_filter){(uint16_t)code, then, otherwise, value};
}

static void load(filter_t *f, size_t offset)
{
    add(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void end(filter_t *f, uint32_t result)
{
    add(f, BPF_RET | BPF_K, result, 0, 0);
}

static void end_if(filter_t *f, unsigned test, uint32_t value, uint32_t result)
{
    add(f, BPF_JMP | test | BPF_K, value, 0, 1);
    end(f, result);
}

/* The low half of an argument: both architectures put it first. */
static void refuse_if(filter_t *f, uint32_t call, uint32_t argument, unsigned test, uint32_t value)
{
    add(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
    load(f, offsetof(struct seccomp_data, args) + 8 * argument);
    end_if(f, test, value, SECCOMP_RET_ERRNO | EPERM);
    load(f, offsetof(struct seccomp_data, nr));
}

/* A file that may be read is not to be emptied: Landlock sees to it from Linux 6.2 on. */
static void refuse_emptying(filter_t *f, uint32_t call, uint32_t argument)
{
    add(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 5);
    load(f, offsetof(struct seccomp_data, args) + 8 * argument);
    add(f, BPF_ALU | BPF_AND | BPF_K, O_TRUNC | O_ACCMODE, 0, 0);
    end_if(f, BPF_JEQ, O_TRUNC | O_RDONLY, SECCOMP_RET_ERRNO | EPERM);
    load(f, offsetof(struct seccomp_data, nr));
}

static void write_filter(filter_t *f)
{
    load(f, offsetof(struct seccomp_data, arch));
    add(f, BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0);
    end(f, SECCOMP_RET_KILL_PROCESS); /* calls of 32 bits */
    load(f, offsetof(struct seccomp_data, nr));
    end_if(f, BPF_JGE, OTHER_TABLE, SECCOMP_RET_ERRNO | EPERM);
    for (uint32_t i = 0; i < REFUSED; i++)
        end_if(f, BPF_JEQ, refused[i], SECCOMP_RET_ERRNO | EPERM);
    /* What it would do lies in memory, where no filter looks: the C library takes clone instead. */
    end_if(f, BPF_JEQ, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    end_if(f, BPF_JEQ, CALL_OPENAT2, SECCOMP_RET_ERRNO | ENOSYS);
    refuse_emptying(f, SYS_openat, 2);
#ifdef __x86_64__
    refuse_emptying(f, SYS_open, 1);
#endif
    refuse_if(f, SYS_prlimit64, 0, BPF_JSET, UINT32_MAX); /* of another process */
    refuse_if(f, SYS_clone, 0, BPF_JSET, NEW_SPACES);
    refuse_if(f, SYS_ioctl, 1, BPF_JEQ, TIOCSTI); /* keys typed into the terminal */
    end(f, SECCOMP_RET_ALLOW);
}

bool confine_calls(void)
{
    filter_t f = {.count = 0};
    write_filter(&f);
    const struct sock_fprog program = {.len = f.count, .filter = f.steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
#else
bool confine_calls(void)
{
    return false;
}
#endif

uint32_t confine_process(const confine_t *c)
{
    const uint32_t files = confine_files(c) ? CONFINE_FILES : 0;
    return files | (confine_calls() ? CONFINE_CALLS : 0);
}
