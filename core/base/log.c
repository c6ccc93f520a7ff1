/* log.c - one write per line, so that lines of several threads do not mix.
 *
 * A line is made on the stack, with its time, rank and level, and goes to stderr by one writev and
 * to the files by one write each, under O_APPEND. Nothing is allocated and no thread of its own
 * writes: a line that a queue held when the process died would be the one that is looked for.
 *
 * One lock, `turn`, guards the sinks' state. It is not held while stderr is written, nor while
 * another line is logged: what a sink has to say about itself it says after letting go. What every
 * line asks (threshold, rank, which files there are) is atomic and needs no lock. */
#include <base/log.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/status.h>
#include <base/sys.h>
#include <base/text.h>

enum { PATH_BYTES = 512 };

/* A file that gets all lines. fd is file.fd for those who don't hold the lock: whether there is a
 * file at all, and where an assertion writes. */
typedef struct sink {
    _Atomic int fd; /* -1: none */
    file_records_t file;
    off_t before;          /* bytes that the file had when it was set: of runs before this one */
    uint32_t reopened;     /* sys_reopen_asked() of which it knows */
    char path[PATH_BYTES]; /* for sentences */
} sink_t;

static _Atomic int32_t threshold = LH_LOG_INFO;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* of the sinks' files and paths */
static sink_t also = {.fd = -1}, rank_file = {.fd = -1};
static _Atomic uint32_t own_rank;
static _Atomic bool over_progress; /* stderr is a terminal whose last line is a progress line */

/* Rows of the tables below: LH_LOG_*, and the last line of a process. */
enum { LEVEL_END = LH_LOG_ERROR + 1, LEVELS };
static const char *const prefixes[LEVELS] = {"debug: ", "", "warning: ", "error: ", "longhaul: "};
static const char *const priorities[LEVELS] = {"<7>", "<6>", "<4>", "<3>", "<3>"}; /* of syslog */

/* Writes a text without what a terminal obeys, cut where `room` ends; 9 bytes are the most that one
 * step writes: two bytes as \xNN, and a NUL. All lines of the text but the first begin with blanks,
 * so that nobody's text passes for a line of ours. */
static size_t log_escape(char *to, size_t room, const char *from)
{
    size_t length = 0;
    for (size_t bytes, plain; *from != '\0' && length + 9 < room; from += bytes + plain) {
        bytes = *from == '\n' || *from == '\t' ? 0 : text_control(from);
        plain = bytes == 0 ? text_utf8_character(from) : 0;
        memcpy(to + length, from, plain);
        length += plain;
        if (*from == '\n') length += (size_t)snprintf(to + length, room - length, "  ");
        for (size_t i = 0; i < bytes; i++)
            length += (size_t)snprintf(to + length, room - length, "\\x%02x",
                                       (unsigned char)from[i]);
    }
    to[length] = '\0';
    return length;
}

enum { TIME_AHEAD = TEXT_TIME }; /* bytes of the time of day and a blank ahead of a file's line */

/* Every line is made with room for its time, which only files get: line_show() begins behind it. */
static void put_time(char *line)
{
    text_time(sys()->wall_ns(), line);
    line[TIME_AHEAD - 1] = ' ';
}

/* JOURNAL_STREAM is inherited, also by a process whose stderr was sent elsewhere: so the stream is
 * compared by device and inode, as systemd.exec(5) says. */
static bool is_journal(void)
{
    unsigned long long device, inode;
    struct stat st;
    const char *stream = getenv("JOURNAL_STREAM");
    return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

/* Writes a line to stderr without its time, by one call, as lines of threads would mix otherwise.
 * For journald each line of a text is an entry and gets its priority; a text of too many lines ends
 * in one entry. clear: what removes the progress line, or "". */
static void line_show(int32_t row, const char *clear, const char *line, size_t length)
{
    enum { PARTS = 64 };
    struct iovec parts[PARTS] = {{.iov_base = (void *)(uintptr_t)clear, .iov_len = strlen(clear)}};
    const bool journal = is_journal();
    int count = 1;
    for (size_t at = TIME_AHEAD, end; at < length && count + 2 <= PARTS; at = end) {
        const char *next = journal && count + 4 <= PARTS ? memchr(line + at, '\n', length - at)
                                                         : NULL;
        end = next == NULL ? length : (size_t)(next - line) + 1;
        if (journal)
            parts[count++] = (struct iovec){(void *)(uintptr_t)priorities[row],
                                            strlen(priorities[row])};
        parts[count++] = (struct iovec){(void *)(uintptr_t)(line + at), end - at};
    }
    (void)!writev(STDERR_FILENO, parts, count);
}

/* The sentence of an assertion, without the lock: it may be held by a thread that is stuck, or by
 * this one. Two lines may mix here for once. */
static void write_last_line(const char *sentence, bool shown)
{
    char line[1024];
    char name[32] = "";
    const int files[] = {atomic_load(&rank_file.fd), atomic_load(&also.fd)};
    const char *clear = files[0] < 0 && atomic_load(&over_progress) ? "\r\033[K" : "";
    if (files[0] >= 0) (void)snprintf(name, sizeof(name), "rank %u: ", atomic_load(&own_rank));
    put_time(line);
    const int wanted = snprintf(line + TIME_AHEAD, sizeof(line) - TIME_AHEAD,
                                "%slonghaul: %.900s\n", name, sentence);
    const size_t length = TIME_AHEAD + (wanted < 0 ? 0 : (size_t)wanted);
    if (shown) line_show(LEVEL_END, clear, line, length);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (files[i] >= 0) (void)!write(files[i], line, length);
}

/* Sets a sink's file; -1: none. The file before it ends with a line, there and on stderr, that says
 * how many lines it lacks. */
static void sink_set(sink_t *s, int fd, const char *path)
{
    char old[PATH_BYTES];
    struct stat st;
    status_assert_print(write_last_line);
    (void)pthread_mutex_lock(&turn);
    const uint64_t lost = s->file.lost;
    s->file.lost = 0;
    memcpy(old, s->path, sizeof(old));
    (void)pthread_mutex_unlock(&turn);
    if (lost > 0) log_line(LH_LOG_WARN, "%s: %llu lines were lost", old, (unsigned long long)lost);

    (void)pthread_mutex_lock(&turn);
    s->file = (file_records_t){.fd = fd};
    s->reopened = sys_reopen_asked();
    s->before = fd >= 0 && sys()->fstat(fd, &st) == 0 ? st.st_size : 0;
    (void)snprintf(s->path, sizeof(s->path), "%s", path);
    atomic_store(&s->fd, fd);
    (void)pthread_mutex_unlock(&turn);
}

/* Opens the name anew, and gives the new file the descriptor of the old one, which is the caller's.
 * False with errno where it can't be opened: the old one goes on. Under the lock. */
static bool sink_reopen(sink_t *s)
{
    const uint32_t asked = sys_reopen_asked();
    if (s->reopened == asked) return true;
    s->reopened = asked;
    const int flags = fcntl(s->file.fd, F_GETFL);
    const int fd = flags < 0 ? -1
                             : sys_open(s->path, (flags & O_ACCMODE) | O_APPEND | O_CREAT, 0666);
    if (fd < 0) return false;
    /* What plugins print comes by stdout, which a rank has in its file too. */
    struct stat old, out;
    const bool printed = s == &rank_file && fstat(s->file.fd, &old) == 0 &&
                         fstat(STDOUT_FILENO, &out) == 0 && old.st_dev == out.st_dev &&
                         old.st_ino == out.st_ino;
    const bool done = dup3(fd, s->file.fd, O_CLOEXEC) >= 0 &&
                      (!printed || dup2(fd, STDOUT_FILENO) >= 0);
    const int error = errno;
    (void)sys()->close(fd);
    errno = error;
    if (!done) return false;
    s->file.torn = 0;
    s->before = 0;
    return true;
}

/* Adds a line. The first that is lost is told on stderr and in the other file; what comes of
 * telling it cannot come here again, as `lost` is above 1 by then. */
static void sink_add(sink_t *s, const char *line, size_t length)
{
    char path[PATH_BYTES];
    if (atomic_load(&s->fd) < 0) return;
    (void)pthread_mutex_lock(&turn);
    if (s->file.fd < 0) { /* ended meanwhile */
        (void)pthread_mutex_unlock(&turn);
        return;
    }
    const bool anew = sink_reopen(s);
    const int not_anew = errno;
    const bool written = file_records_add(&s->file, line, length);
    const int error = errno;
    if (!anew) memcpy(path, s->path, sizeof(path));
    const bool first = !written && s->file.lost == 1;
    if (first) memcpy(path, s->path, sizeof(path));
    (void)pthread_mutex_unlock(&turn);
    if (!anew)
        log_line(LH_LOG_WARN,
                 "%s: cannot open it anew: %s; lines go on to the file that had this name", path,
                 strerror(not_anew));
    if (first)
        log_line(LH_LOG_WARN, "%s: cannot write: %s; lines are lost until it can be written", path,
                 strerror(error));
}

/* One line, to all that want it; errno is kept for callers who log before they look at it. shown:
 * on stderr, too. */
LH_PRINTF(3, 0)
static void write_line(int32_t level, bool shown, const char *fmt, va_list args)
{
    const int error = errno;
    char text[2048], line[4096];
    (void)vsnprintf(text, sizeof(text), fmt, args);
    const int32_t row = level < LH_LOG_DEBUG ? LH_LOG_DEBUG : level;
    lh_assert(row < LEVELS);
    const bool ranked = atomic_load(&rank_file.fd) >= 0;
    char name[32] = "";
    if (ranked) (void)snprintf(name, sizeof(name), "rank %u: ", atomic_load(&own_rank));
    const char *clear = !ranked && atomic_load(&over_progress) ? "\r\033[K" : "";
    put_time(line);
    const int named = snprintf(line + TIME_AHEAD, sizeof(line) - TIME_AHEAD, "%s%s", name,
                               prefixes[row]);
    size_t length = TIME_AHEAD + (size_t)named;
    length += log_escape(line + length, sizeof(line) - length - 1, text);
    line[length++] = '\n';
    if (shown && (!ranked || row >= LH_LOG_WARN)) line_show(row, clear, line, length);
    sink_add(&rank_file, line, length);
    sink_add(&also, line, length);
    errno = error;
}

void log_line(int32_t level, const char *fmt, ...)
{
    va_list args;
    if (level < atomic_load(&threshold)) return;
    va_start(args, fmt);
    write_line(level > LH_LOG_ERROR ? LH_LOG_ERROR : level, true, fmt, args);
    va_end(args);
}

LH_PRINTF(2, 3)
static void write_at(int32_t level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    write_line(level, true, fmt, args);
    va_end(args);
}

void log_end(const char *sentence)
{
    write_at(LEVEL_END, "%s", sentence);
}

void log_note(int32_t level, const char *fmt, ...)
{
    va_list args;
    if (level < atomic_load(&threshold)) return;
    va_start(args, fmt);
    write_line(LH_LOG_INFO, false, fmt, args);
    va_end(args);
}

void log_threshold(int32_t level)
{
    atomic_store(&threshold, level);
}

void log_also(int fd, const char *path)
{
    sink_set(&also, fd, path);
}

void log_as_rank(uint32_t rank, int fd, const char *path)
{
    atomic_store(&own_rank, rank);
    sink_set(&rank_file, fd, path);
}

void log_begin_anew(void)
{
    (void)pthread_mutex_lock(&turn);
    if (rank_file.file.fd >= 0 && file_records_cut(&rank_file.file, rank_file.before))
        rank_file.before = 0;
    (void)pthread_mutex_unlock(&turn);
}

/* Another thread may have held the lock at the fork, and does not exist here: it is never taken
 * again, as there is no file any more. */
void log_forked(void)
{
    atomic_store(&also.fd, -1);
    atomic_store(&rank_file.fd, -1);
    atomic_store(&over_progress, false);
}

void log_over_progress(bool on)
{
    status_assert_print(write_last_line);
    atomic_store(&over_progress, on);
}
