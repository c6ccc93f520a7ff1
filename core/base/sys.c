/* sys.c - the real system behind the seam, and the flag behind SIGTERM, SIGINT and SIGHUP. */
#include <base/sys.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <base/status.h>
#include <base/text.h>

/* No descriptor of this program outlives an exec: none is a child's to inherit. */
static int real_open(const char *path, int flags, mode_t mode)
{
    return open(path, flags | O_CLOEXEC, mode);
}

static int real_fallocate(int fd, off_t length)
{
    const int error = posix_fallocate(fd, 0, length);
    if (error == 0) return 0;
    errno = error;
    return -1;
}

/* Some file systems know no RENAME_NOREPLACE (EINVAL), nor do old kernels (ENOSYS): there a plain
 * rename has to do. */
static int real_rename_new(const char *from, const char *to)
{
    const int result = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    return result != 0 && (errno == EINVAL || errno == ENOSYS) ? rename(from, to) : result;
}

static int real_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB);
}

/* scandir and not readdir: its order is the same on every file system, and each() may make and
 * remove entries. */
static int real_list(const char *path, int (*each)(void *context, const char *name), void *context)
{
    struct dirent **entries = NULL;
    const int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) return -1;

    int result = 0;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (result == 0 && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            result = each(context, name);
        free(entries[i]);
    }
    free(entries);
    return result;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t real_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static uint64_t real_wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

/* getrandom gives up to 256 bytes whole; more of them may come in parts. */
static int real_random(void *out, size_t bytes)
{
    unsigned char *to = out;
    while (bytes > 0) {
        const ssize_t got = getrandom(to, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        to += got;
        bytes -= (size_t)got;
    }
    return 0;
}

const sys_t sys_real = {
    .open = real_open,
    .close = close,
    .read = read,
    .write = write,
    .pread = pread,
    .pwrite = pwrite,
    .fsync = fsync,
    .ftruncate = ftruncate,
    .fallocate = real_fallocate,
    .fstat = fstat,
    .fstatvfs = fstatvfs,
    .stat = stat,
    .lstat = lstat,
    .mkdir = mkdir,
    .rename = rename,
    .rename_new = real_rename_new,
    .link = link,
    .unlink = unlink,
    .rmdir = rmdir,
    .lock = real_lock,
    .list = real_list,
    .now_ns = real_now_ns,
    .wall_ns = real_wall_ns,
    .random = real_random,
};

/* Not atomic: it changes before threads start, and in tests. */
static const sys_t *in_force = &sys_real;

const sys_t *sys(void)
{
    return in_force;
}

void sys_use(const sys_t *table)
{
    in_force = table == NULL ? &sys_real : table;
}

/* A signal may interrupt these on a file system over the network, where they wait for a server. */
int sys_open(const char *path, int flags, mode_t mode)
{
    return (int)TEMP_FAILURE_RETRY(sys()->open(path, flags, mode));
}

int sys_fsync(int fd)
{
    return (int)TEMP_FAILURE_RETRY(sys()->fsync(fd));
}

int sys_ftruncate(int fd, off_t length)
{
    return (int)TEMP_FAILURE_RETRY(sys()->ftruncate(fd, length));
}

int sys_fallocate(int fd, off_t length)
{
    return (int)TEMP_FAILURE_RETRY(sys()->fallocate(fd, length));
}

int sys_rename(const char *from, const char *to)
{
    return (int)TEMP_FAILURE_RETRY(sys()->rename(from, to));
}

int sys_rename_new(const char *from, const char *to)
{
    return (int)TEMP_FAILURE_RETRY(sys()->rename_new(from, to));
}

/* Signals that ask a run to stop. The handlers set flags and nothing else: what a stop means (a
 * save at the end of the step, agreed between ranks) is for the loop that asks
 * sys_stop_requested. Atomic, as threads ask too, and without locks, as handlers must be. */
static _Atomic int requests;     /* SIGTERM and SIGINT so far */
static _Atomic int hung_up;      /* a SIGHUP came             */
static _Atomic int by_hand;      /* a SIGINT, or that          */
static _Atomic uint32_t reopens; /* SIGHUPs that ask for new logs */

/* Looked at before the terminal can have closed: one that is gone can't be told from none. */
bool sys_has_terminal(void)
{
    static _Atomic int known; /* 1: no; 2: yes */
    if (atomic_load(&known) == 0) {
        const int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (fd >= 0) (void)close(fd);
        atomic_store(&known, fd >= 0 ? 2 : 1);
    }
    return atomic_load(&known) == 2;
}

uint32_t sys_reopen_asked(void)
{
    return atomic_load(&reopens);
}

void sys_reopen_ask(void)
{
    atomic_fetch_add(&reopens, 1);
}

/* Of sys_stop_tell, and by whom it was called: a child of fork inherits both handlers. */
static bool (*_Atomic stop_teller)(bool at_once, int *code);
static volatile pid_t stop_owner;

void sys_stop_tell(bool (*tell)(bool at_once, int *code))
{
    stop_owner = getpid();
    atomic_store(&stop_teller, tell);
}

/* In the handlers below. */
static bool stop_tell(bool at_once, int *code)
{
    bool (*tell)(bool, int *) = atomic_load(&stop_teller);
    return tell != NULL && getpid() == stop_owner && tell(at_once, code);
}

/* A terminal that closes may send SIGHUP twice, or beside another signal: it is not counted among
 * the requests, of which the second ends the process. */
static void on_signal(int number)
{
    if (number == SIGHUP && !sys_has_terminal()) {
        sys_reopen_ask();
        return;
    }
    if (number == SIGHUP) {
        hung_up = by_hand = 1;
        return;
    }
    if (number == SIGINT) by_hand = 1;
    if (atomic_fetch_add(&requests, 1) == 0) return;
    int code = 128 + number;
    (void)stop_tell(true, &code);
    _exit(code);
}

enum { SIGNAL_STACK = 256 << 10 };

/* The calling thread's handlers run on a stack of their own. A library may use the register of the
 * stack for something else for as long as it calls nobody, as oneDNN's product in F32 for AVX2
 * does: a handler that ran where that register points wrote over the heap. Where there is no memory
 * for it, or a sanitizer has made one, things stay as they are. */
static void signal_stack_make(void)
{
    stack_t stack;
    if (sigaltstack(NULL, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) return;
    void *memory = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return;
    stack = (stack_t){.ss_sp = memory, .ss_size = SIGNAL_STACK};
    if (sigaltstack(&stack, NULL) != 0) (void)munmap(memory, SIGNAL_STACK);
}

static struct sigaction signal_action(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
    (void)sigemptyset(&action.sa_mask);
    signal_stack_make();
    return action;
}

enum { WATCHED = 3 };
static const int watched[WATCHED] = {SIGTERM, SIGINT, SIGHUP};
static struct sigaction before[WATCHED]; /* what sys_stop_unwatch brings back */

void sys_reopen_watch(void)
{
    const struct sigaction action = signal_action(on_signal);
    if (!sys_has_terminal()) (void)sigaction(SIGHUP, &action, NULL);
}

lh_status_t sys_stop_watch(void)
{
    const bool terminal = sys_has_terminal();
    const struct sigaction action = signal_action(on_signal);
    requests = hung_up = by_hand = 0;
    for (int i = 0; i < WATCHED; i++) {
        if (sigaction(watched[i], &action, &before[i]) != 0)
            return fail_io(errno, "cannot watch for signal %d", watched[i]);
        /* Who started this under nohup wants it to outlive the terminal. */
        if (watched[i] == SIGHUP && before[i].sa_handler == SIG_IGN && terminal)
            (void)sigaction(SIGHUP, &before[i], NULL);
    }
    return LH_OK;
}

void sys_stop_unwatch(void)
{
    for (int i = 0; i < WATCHED; i++)
        (void)sigaction(watched[i], &before[i], NULL);
}

bool sys_stop_requested(void)
{
    return requests > 0 || hung_up != 0;
}

bool sys_stop_by_hand(void)
{
    return by_hand != 0;
}

/* What end_at_once needs to know; set before its handler is. */
static int code_at_once;
static pid_t owner; /* whose handler it is: a child of fork inherits the handler and not the role */
static char log_at_once[PATH_MAX]; /* of sys_stop_log */

/* Its name is written from its end on, so that a signal meanwhile finds none. */
void sys_stop_log(const char *path)
{
    log_at_once[0] = '\0';
    atomic_signal_fence(memory_order_seq_cst);
    if (path[0] == '\0' || strlen(path) >= sizeof(log_at_once)) return;
    memcpy(log_at_once + 1, path + 1, strlen(path));
    atomic_signal_fence(memory_order_seq_cst);
    log_at_once[0] = path[0];
}

/* Opened by its name, which may lead to another file by now. One write, as each line of a log. */
void sys_stop_say(const char *words)
{
    enum { WORDS = 2048 };
    static const char begins[] = "longhaul: ";
    char text[TEXT_TIME + sizeof(begins) + WORDS];
    struct timespec now = {0};
    size_t length = TEXT_TIME;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    text_time((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, text);
    text[TEXT_TIME - 1] = ' ';
    for (size_t i = 0; begins[i] != '\0'; i++)
        text[length++] = begins[i];
    for (size_t i = 0; words[i] != '\0' && i < WORDS; i++)
        text[length++] = words[i];
    text[length++] = '\n';
    (void)!write(STDERR_FILENO, text + TEXT_TIME, length - TEXT_TIME);
    const int fd = log_at_once[0] == '\0'
                       ? -1
                       : open(log_at_once, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return;
    (void)!write(fd, text, length);
    (void)close(fd);
}

/* The handler of sys_stop_at_once, of async-signal-safe calls alone: hence the texts that are made
 * already. In a child it stands aside: the signal does there what it does by default. */
static void end_at_once(int number)
{
    const char *words = number == SIGTERM
                            ? "stopped by signal 15 (Terminated) while no step was under way"
                        : number == SIGINT
                            ? "stopped by signal 2 (Interrupt) while no step was under way"
                            : "stopped by signal 1 (Hangup) while no step was under way";
    if (getpid() != owner) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        return;
    }
    if (number == SIGHUP && !sys_has_terminal()) {
        sys_reopen_ask();
        return;
    }
    if (number == SIGHUP && sys_stop_requested()) return;
    const bool second = requests > 0;
    int code = second ? 128 + number : code_at_once;
    const bool told = stop_tell(second, &code);
    if (!second && !told) sys_stop_say(words);
    _exit(code);
}

void sys_stop_at_once(int code)
{
    const struct sigaction action = signal_action(end_at_once);
    struct sigaction old;
    code_at_once = code;
    owner = getpid();
    const bool terminal = sys_has_terminal();
    for (int i = 0; i < WATCHED; i++)
        if (sigaction(watched[i], NULL, &old) == 0 &&
            (old.sa_handler != SIG_IGN || (watched[i] == SIGHUP && !terminal)))
            (void)sigaction(watched[i], &action, NULL);
}
