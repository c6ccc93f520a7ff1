/* progress.c - the progress line and its plain twin.
 *
 * A terminal gets one line that renews itself, a file or a pipe gets a line every log_every steps.
 * What a terminal can do is asked of the environment, never tried: an escape sequence that is not
 * understood stays in the log for ever. */
#include <watch/progress.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>
#include <base/text.h>

enum { RENEW_NS = 100000000 }; /* a terminal line is renewed ten times a second at most */

/* NO_COLOR is a convention of many programs (no-color.org): set and not empty. */
bool progress_renews(void)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    if (isatty(STDERR_FILENO) != 1 || (no_color != NULL && no_color[0] != '\0')) return false;
    return term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

/* Whether the locale that the environment names is of UTF-8: else a line is of ASCII alone. The
 * first of these that is set counts, whether that locale is installed or not. As the C library
 * would choose, without asking it: the program never sets a locale. */
static bool progress_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *locale = getenv(names[i]);
        if (locale == NULL || locale[0] == '\0') continue;
        return strcasestr(locale, "utf-8") != NULL || strcasestr(locale, "utf8") != NULL;
    }
    return false;
}

/* Cells of the terminal's width that a line may fill: asked now, as a window changes. The last one
 * stays free, as some terminals begin a new line there. The window of stderr; a terminal that does
 * not tell its size has 80 columns. */
static uint32_t progress_cells(void)
{
    enum { USUAL = 80 };
    struct winsize size;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return (known ? size.ws_col : USUAL) - 1u;
}

/* Bytes of the text that so many cells hold. Never inside a character. A byte that is no UTF-8
 * counts as one cell. */
static size_t progress_cut(const char *text, uint32_t cells)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < cells && text[bytes] != '\0'; i++) {
        const size_t length = text_utf8_character(text + bytes);
        bytes += length == 0 ? 1 : length;
    }
    return bytes;
}

/* Carriage return, erase to the end of the line, text: one write, so that lines of other processes
 * do not come between. */
bool progress_put(const char *text)
{
    char line[512];
    const int length = snprintf(line, sizeof(line), "\r\033[K%.*s",
                                (int)progress_cut(text, progress_cells()), text);
    return length < 0 || write(STDERR_FILENO, line, strnlen(line, sizeof(line))) >= 0;
}

/* log_over_progress lets log lines clear the line first, from now on. */
void progress_begin(progress_line_t *p, const run_start_t *start, uint64_t log_every)
{
    char parameters[16], tokens[16];
    *p = (progress_line_t){.terminal = progress_renews(),
                           .utf8 = progress_utf8(),
                           .steps = start->steps,
                           .first_step = start->first_step,
                           .log_every = log_every == 0 ? 1 : log_every,
                           .flops_per_step = start->flops_per_step,
                           .peak_flops = start->peak_flops};
    text_count((double)start->parameters, parameters);
    text_count((double)start->tokens_per_step, tokens);
    log_line(LH_LOG_INFO, "%s: %s with %s parameters, %s, %s with %s, on %s", start->name,
             start->model, parameters, start->precision, start->optimizer, start->rule,
             start->device_name);
    log_line(LH_LOG_INFO, "%llu steps of %s tokens (%llu x %llu, %llu at a time)%s",
             (unsigned long long)start->steps, tokens, (unsigned long long)start->batch,
             (unsigned long long)start->sequence, (unsigned long long)start->micro_batch,
             start->first_step > 0 ? ", resumed" : "");
    if (start->ranks > 1)
        log_line(LH_LOG_INFO, "%u ranks, %u site%s", start->ranks, start->sites,
                 start->sites == 1 ? "" : "s");
    if (start->first_step > 0)
        log_line(LH_LOG_INFO, "resumed after step %llu%s", (unsigned long long)start->first_step,
                 start->first_step < start->steps ? "" : ": nothing is left to train");
    log_over_progress(p->terminal);
}

/* The share of the device's matmul rate; empty where that was never measured. Of the whole step,
 * with everything that does not compute: so it is lower than what a profile says of a kernel. */
static void share_text(const progress_line_t *p, double seconds, char out[32])
{
    out[0] = '\0';
    if (p->peak_flops > 0 && seconds > 0)
        (void)snprintf(out, 32, "  %.0f%% of peak",
                       100 * p->flops_per_step / seconds / p->peak_flops);
}

/* The share of the step that waited for transfers; empty alone. Over all classes of links. */
static void exposed_text(const step_report_t *s, char out[40])
{
    double waited = 0;
    for (int i = 0; i < STEP_SCOPES; i++)
        waited += s->exposed_s[i];
    out[0] = '\0';
    if (waited > 0 && s->seconds > 0)
        (void)snprintf(out, 40, "  %.1f%% exposed", 100 * waited / s->seconds);
}

/* As wide as the numbers leave room for, which are `taken` cells; none rather than a short one. */
enum { BAR_MOST = 20, BAR_LEAST = 5, BAR_BYTES = 3 * BAR_MOST + 2 };
/* Rounded down, so that a full bar means that all steps are made. BAR_BYTES has three bytes a cell,
 * as the blocks take in UTF-8. */
static void bar_text(const progress_line_t *p, uint64_t step, uint32_t taken, char out[BAR_BYTES])
{
    const char *full = p->utf8 ? "█" : "#", *empty = p->utf8 ? "░" : ".";
    const uint32_t cells = progress_cells(), room = cells > taken + 1 ? cells - taken - 1 : 0;
    const uint32_t width = room < BAR_LEAST ? 0 : room < BAR_MOST ? room : BAR_MOST;
    lh_assert(width <= BAR_MOST);
    const uint64_t filled = p->steps == 0 ? width : step * width / p->steps;
    size_t length = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < width; i++)
        length += (size_t)snprintf(out + length, BAR_BYTES - length, "%s%s",
                                   i < filled ? full : empty, i + 1 == width ? " " : "");
}

/* What a step is told by on one line of a terminal. Where that leaves no room for the shortest bar,
 * first what waited and then the share of the peak is left out: how far it is and how long it takes
 * stay for last. The cells it takes. */
static uint32_t figures_text(const progress_line_t *p, const step_report_t *s, const char *rate,
                             const char *left, const char *share, const char *exposed,
                             char out[256])
{
    const uint32_t cells = progress_cells();
    for (int kept = 2;; kept--) {
        const int length = snprintf(out, 256, "%llu/%llu  loss %.4f  %s tok/s%s%s  ETA %s",
                                    (unsigned long long)s->step, (unsigned long long)p->steps,
                                    s->loss, rate, kept >= 1 ? share : "", kept >= 2 ? exposed : "",
                                    left);
        lh_assert(length > 0);
        if (kept == 0 || (uint32_t)length + BAR_LEAST + 1 <= cells) return (uint32_t)length;
    }
}

/* The bar gets the room that the numbers leave; on a narrow terminal the numbers are cut and not
 * wrapped. A terminal that can't be written to any more gets plain lines from the next step on. s
 * is the step at hand; only the time left looks further back. */
static void progress_step_show(progress_line_t *p, const step_report_t *s)
{
    char rate[16], left[24], share[32], exposed[40], won[32] = "";
    if (s->pairs > 0) (void)snprintf(won, sizeof(won), "  accuracy %.3f", s->pairs_won / s->pairs);
    text_count(s->tokens_per_s, rate);
    text_duration(p->seconds_a_step * (double)(p->steps - s->step), left);
    share_text(p, s->seconds, share);
    exposed_text(s, exposed);

    if (!p->terminal) {
        log_line(LH_LOG_INFO,
                 "step %llu/%llu  loss %.4f%s  rate %.3g  norm %.3f  %s tokens/s%s%s  ETA %s",
                 (unsigned long long)s->step, (unsigned long long)p->steps, s->loss, won,
                 s->learning_rate, s->gradient_norm, rate, share, exposed, left);
        return;
    }
    char text[256], bar[BAR_BYTES], line[BAR_BYTES + 256];
    const uint32_t taken = figures_text(p, s, rate, left, share, exposed, text);
    bar_text(p, s->step, taken, bar);
    (void)snprintf(line, sizeof(line), "%s%s", bar, text);
    if (!progress_put(line)) p->terminal = false;
}

/* The time left is of a running mean over some twenty steps, so that it follows a run that gets
 * slower without jumping at every save. */
void progress_step(progress_line_t *p, const step_report_t *s)
{
    lh_assert(p->log_every > 0); /* progress_begin was called */
    p->seconds_a_step = p->seconds_a_step <= 0 ? s->seconds
                                               : 0.95 * p->seconds_a_step + 0.05 * s->seconds;
    if (!s->applied)
        log_line(LH_LOG_WARN, "step %llu is not finite (loss %g, gradient norm %g): not applied",
                 (unsigned long long)s->step, s->loss, s->gradient_norm);

    const bool last = s->step == p->steps;
    const uint64_t now = sys()->now_ns();
    if (p->terminal) {
        if (now - p->shown_ns < RENEW_NS && !last) return;
    } else if (s->step != 1 && s->step % p->log_every != 0 && !last) {
        return;
    }
    p->shown_ns = now;
    progress_step_show(p, s);
}

/* One line at any output, since it is rare. */
void progress_evaluated(progress_line_t *p, const evaluation_report_t *e)
{
    (void)p;
    if (e->pairs) {
        log_line(LH_LOG_INFO, "step %llu  held-out loss %.4f  (%llu pairs)",
                 (unsigned long long)e->step, e->loss, (unsigned long long)e->tokens);
        return;
    }
    log_line(LH_LOG_INFO, "step %llu  held-out loss %.4f  perplexity %.2f  (%llu tokens)",
             (unsigned long long)e->step, e->loss, exp(e->loss), (unsigned long long)e->tokens);
}

void progress_saved(progress_line_t *p, const save_report_t *s)
{
    (void)p;
    if (s->reason != NULL)
        log_line(LH_LOG_WARN, "step %llu was not %s: %s", (unsigned long long)s->step,
                 s->memory ? "kept in memory" : "saved", s->reason);
    else if (s->memory) /* they come often */
        log_line(LH_LOG_DEBUG, "step %llu is whole in memory", (unsigned long long)s->step);
    else if (s->committed)
        log_line(LH_LOG_INFO, "step %llu saved to %s", (unsigned long long)s->step, s->path);
}

/* What failed is said by the program itself, at its very end. */
void progress_end(progress_line_t *p, const run_end_t *end)
{
    char took[24];
    if (p->terminal && !progress_put("")) p->terminal = false;
    log_over_progress(false);
    text_duration(end->seconds, took);
    if (end->reason == NULL)
        log_line(LH_LOG_INFO, "%llu steps in %s", (unsigned long long)(end->steps - p->first_step),
                 took);
}
