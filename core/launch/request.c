/* request.c - files as requests, and the thread that looks for them.
 *
 * A file and not a socket or a signal: it works for whoever may write in the folder, from another
 * machine that sees it over a network file system, and through containers whose process numbers
 * differ. Nor does it open a port. The price is that somebody has to look: a thread of its own,
 * some times a second, so that a file system that hangs never stops a training.
 *
 * Taking the file away is the answer. A stop becomes a SIGTERM of this process: a run that was asked
 * to end through its folder ends by the code that ends one at a signal, and in no other way. But a
 * second SIGTERM is an end at once, and somebody who asks for a stop twice, or two who do not know of
 * each other, want the save both times: of plain stops one becomes a signal, and the others are taken
 * and do nothing.
 *
 * Processes are forked beside this thread: a child that tries a plugin, one that imports. What a
 * thread holds at that moment nobody lets go in the child. So it allocates nothing in its loop, and
 * it is waited for until it is there: starting a thread takes locks of the allocator, which an
 * allocator without handlers of fork (AddressSanitizer's, before gcc 14) leaves taken. */
#include <launch/request.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>

/* LOOK_MS: between two looks. REQUEST_BYTES: the most that is read of a file. */
enum { LOOK_MS = 200, REQUEST_BYTES = 512 };

enum { KINDS = 2 };
static const char *const request_names[KINDS] = {".request-stop", ".request-save"};

struct request_server {
    char *folder;
    char *paths[KINDS]; /* NULL: not served */
    pthread_t thread;
    int end_fd; /* readable once the thread is to end */
    _Atomic bool accepts, save;
    bool passes; /* this process passes signals on to ranks */
    bool passed; /* a stop has become a signal; the thread's own */
    bool warned; /* of a file that was nobody's to write */
};

/* ---- the thread ---- */

/* The file's two lines. False: there is none, or it is not to be taken. */
static bool request_read(request_server_t *s, const char *path, char text[REQUEST_BYTES])
{
    struct stat file, folder;
    const int fd = sys_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) return false;
    const bool known = sys()->fstat(fd, &file) == 0 && S_ISREG(file.st_mode) &&
                       sys()->stat(s->folder, &folder) == 0;
    const bool good = known && (file.st_uid == geteuid() || file.st_uid == 0 ||
                                file.st_uid == folder.st_uid);
    const ssize_t got = good ? sys()->pread(fd, text, REQUEST_BYTES - 1, 0) : -1;
    (void)sys()->close(fd);
    text[got > 0 ? got : 0] = '\0';
    if (known && !good && !s->warned) {
        s->warned = true;
        log_line(LH_LOG_WARN, "%s: belongs to user %u, who may ask nothing of this run", path,
                 file.st_uid);
    }
    return got >= 0;
}

/* The first line becomes the word; who asks is what stands in the second, or "somebody". */
static const char *request_split(char *text)
{
    char *end = strchr(text, '\n');
    if (end == NULL) return "somebody";
    *end = '\0';
    char *who = text_trim(end + 1);
    return *who == '\0' ? "somebody" : who;
}

/* What a second SIGTERM does. Two of them would be one while the first is pending, so that it is two
 * signals for whoever ends all ranks by them; a process that is alone just ends, with that code. */
static void request_end_now(const request_server_t *s)
{
    if (!s->passes) _exit(128 + SIGTERM);
    (void)kill(getpid(), SIGINT);
}

static void request_look(request_server_t *s, uint32_t kind)
{
    char text[REQUEST_BYTES];
    lh_assert(kind < KINDS);
    const char *path = s->paths[kind];
    const bool save = kind == 1;
    if (path == NULL || (save && !atomic_load(&s->accepts))) return;
    if (!request_read(s, path, text) || sys()->unlink(path) != 0) return;
    const char *who = request_split(text);
    if (save) {
        log_line(LH_LOG_INFO, "a checkpoint is asked for by %s", who);
        atomic_store(&s->save, true);
        return;
    }
    const bool now = strcmp(text, REQUEST_NOW) == 0;
    log_line(LH_LOG_INFO, "%s is asked for by %s", now ? "an end at once" : "an end", who);
    if (now) request_end_now(s);
    /* A launcher that watches ranks takes its signals from a descriptor: there nothing is known of
     * them here, and it tells this one from others by its sender (starter_hear_signal). */
    const bool again = s->passed || sys_stop_requested();
    s->passed = true;
    if (now || !again) (void)kill(getpid(), SIGTERM);
}

static void *request_thread(void *argument)
{
    request_server_t *s = argument;
    struct pollfd end = {.fd = s->end_fd, .events = POLLIN};
    while (poll(&end, 1, LOOK_MS) <= 0)
        for (uint32_t kind = 0; kind < KINDS; kind++)
            request_look(s, kind);
    return NULL;
}

/* ---- in the run ---- */

static void request_free(request_server_t *s)
{
    if (s->end_fd >= 0) (void)close(s->end_fd);
    for (uint32_t kind = 0; kind < KINDS; kind++)
        mem_free(s->paths[kind]);
    mem_free(s->folder);
    mem_free(s);
}

static lh_status_t request_start(request_server_t *s)
{
    const int error = thread_start(&s->thread, "lh-request", request_thread, s);
    if (error != 0) return fail(LH_NO_MEMORY, "cannot look for requests: %s", strerror(error));
    return LH_OK;
}

lh_status_t request_serve(const char *folder, uint32_t which, request_server_t **out)
{
    request_server_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->end_fd = eventfd(0, EFD_CLOEXEC);
    s->folder = mem_text(folder);
    s->passes = (which & REQUEST_PASSES) != 0;
    lh_status_t status = s->end_fd < 0 ? fail_io(errno, "cannot look for requests") : LH_OK;
    if (status == LH_OK && s->folder == NULL) status = LH_NO_MEMORY;
    for (uint32_t kind = 0; kind < KINDS && status == LH_OK; kind++) {
        if ((which & 1u << kind) == 0) continue;
        s->paths[kind] = path_join(folder, request_names[kind]);
        if (s->paths[kind] == NULL) status = LH_NO_MEMORY;
        if (status == LH_OK) (void)sys()->unlink(s->paths[kind]);
    }
    if (status == LH_OK) status = request_start(s);
    if (status != LH_OK) {
        request_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void request_accept_saves(request_server_t *s, bool accept)
{
    if (s == NULL) return;
    atomic_store(&s->save, false);
    atomic_store(&s->accepts, accept);
}

bool request_take_save(request_server_t *s)
{
    return s != NULL && atomic_exchange(&s->save, false);
}

void request_end(request_server_t *s)
{
    const uint64_t one = 1;
    if (s == NULL) return;
    (void)!write(s->end_fd, &one, sizeof(one));
    (void)pthread_join(s->thread, NULL);
    request_free(s);
}

/* ---- of whoever asks ---- */

static char *request_path(const char *folder, uint32_t which)
{
    lh_assert(which == REQUEST_STOP || which == REQUEST_SAVE);
    return path_join(folder, request_names[which == REQUEST_SAVE]);
}

/* Written beside its place and renamed: a request is read whole. */
lh_status_t request_put(const char *folder, uint32_t which, const char *word)
{
    char host[64] = "";
    text_t text = {0};
    char *path = request_path(folder, which);
    if (path == NULL) return LH_NO_MEMORY;
    if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
    text_printf(&text, "%s\nprocess %d on %s\n", word, (int)getpid(), host);
    lh_status_t status = text_status(&text);
    if (status == LH_OK) status = file_show(path, text.data, text.length);
    text_free(&text);
    mem_free(path);
    return status;
}

bool request_pending(const char *folder, uint32_t which)
{
    char *path = request_path(folder, which);
    const bool there = path != NULL && file_exists(path);
    mem_free(path);
    return there;
}

void request_withdraw(const char *folder, uint32_t which)
{
    char *path = request_path(folder, which);
    if (path != NULL) (void)sys()->unlink(path);
    mem_free(path);
}
