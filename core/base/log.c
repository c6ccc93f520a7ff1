/* log.c - one write per line, so that lines of several threads do not mix. */
#include <base/log.h>

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include <base/text.h>

static _Atomic int32_t threshold = LH_LOG_INFO;
static _Atomic int also = -1, rank_file = -1;
static _Atomic uint32_t own_rank;
static _Atomic bool over_progress;

static const char *const prefixes[] = {"debug: ", "", "warning: ", "error: "};

/* Lines of a text begin with blanks but for the first: nobody's text passes for a line of ours. */
static size_t escape(char *to, size_t room, const char *from)
{
    size_t length = 0;
    for (size_t bytes, plain; *from != '\0' && length + 9 < room; from += bytes + plain) {
        bytes = *from == '\n' || *from == '\t' ? 0 : text_control(from);
        plain = bytes == 0 ? text_character(from) : 0;
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

void log_line(int32_t level, const char *fmt, ...)
{
    if (level < atomic_load(&threshold)) return;

    char text[2048], line[4096];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    const int32_t row = level < LH_LOG_DEBUG ? 0 : level > LH_LOG_ERROR ? LH_LOG_ERROR : level;
    const int file = atomic_load(&rank_file);
    char name[32] = "";
    if (file >= 0) (void)snprintf(name, sizeof(name), "rank %u: ", atomic_load(&own_rank));
    const char *clear = file < 0 && atomic_load(&over_progress) ? "\r\033[K" : "";
    const int start = snprintf(line, sizeof(line), "%s%s%s", clear, name, prefixes[row]);
    size_t length = (size_t)start + escape(line + start, sizeof(line) - (size_t)start - 1, text);
    line[length++] = '\n';
    if (file >= 0 && write(file, line, length) < 0) atomic_store(&rank_file, STDERR_FILENO);
    const int second = atomic_load(&also);
    const size_t skip = strlen(clear);
    if (second >= 0 && write(second, line + skip, length - skip) < 0) atomic_store(&also, -1);
    if ((file < 0 || row >= LH_LOG_WARN) && write(STDERR_FILENO, line, length) < 0) return;
}

void log_threshold(int32_t level)
{
    atomic_store(&threshold, level);
}

void log_also(int fd)
{
    atomic_store(&also, fd);
}

void log_as_rank(uint32_t rank, int fd)
{
    atomic_store(&own_rank, rank);
    atomic_store(&rank_file, fd);
}

void log_over_progress(bool on)
{
    atomic_store(&over_progress, on);
}
