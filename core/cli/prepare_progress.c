/* prepare_progress.c - the progress line of prepare and its plain twin. */
#include <cli/prepare_progress.h>

#include <stdio.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>
#include <watch/progress.h>

static const uint64_t terminal_ns = UINT64_C(200000000); /* between two renewals  */
static const uint64_t plain_ns = UINT64_C(5000000000);   /* between two plain lines */

void prepare_progress_begin(prepare_progress_t *p)
{
    *p = (prepare_progress_t){.terminal = isatty(STDERR_FILENO) == 1};
    p->start_ns = p->shown_ns = sys()->now_ns();
    log_over_progress(p->terminal);
}

double prepare_progress_seconds(const prepare_progress_t *p)
{
    return (double)(sys()->now_ns() - p->start_ns) / 1e9;
}

void prepare_progress_show(void *context, const prepare_counts_t *c)
{
    prepare_progress_t *p = context;
    const uint64_t now = sys()->now_ns();
    if (now - p->shown_ns < (p->terminal ? terminal_ns : plain_ns) || c->bytes_read == 0) return;
    p->shown_ns = now;

    char rate[16], tokens[16], left[24], rejected[40] = "", line[256];
    const double seconds = prepare_progress_seconds(p);
    const double per_second = (double)c->bytes_read / seconds;
    /* A file may have grown since it was measured. */
    const uint64_t ahead = c->bytes_total > c->bytes_read ? c->bytes_total - c->bytes_read : 0;
    (void)snprintf(rate, sizeof(rate), "%.1f", per_second / 1e6);
    count_text((double)c->tokens / seconds, tokens);
    duration_text((double)ahead / per_second, left);
    if (c->rejected > 0)
        (void)snprintf(rejected, sizeof(rejected), "  %llu rejected",
                       (unsigned long long)c->rejected);
    const int length = snprintf(line, sizeof(line),
                                "%s%5.1f%%  %s MB/s  %s tokens/s  %llu documents%s  ETA %s",
                                p->terminal ? "\r\033[K" : "",
                                100 * (double)c->bytes_read / (double)(c->bytes_read + ahead), rate,
                                tokens, (unsigned long long)c->documents, rejected, left);
    if (!p->terminal)
        log_line(LH_LOG_INFO, "%s", line);
    else if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        p->terminal = false;
}

void prepare_progress_end(prepare_progress_t *p)
{
    static const char clear[] = "\r\033[K";
    if (p->terminal && write(STDERR_FILENO, clear, sizeof(clear) - 1) < 0) p->terminal = false;
    log_over_progress(false);
}
