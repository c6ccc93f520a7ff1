/* progress.c - the progress line and its plain twin. */
#include <watch/progress.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>

enum { RENEW_NS = 100000000 }; /* a terminal line is renewed ten times a second at most */

void duration_text(double seconds, char out[24])
{
    const uint64_t s = seconds < 0 ? 0 : (uint64_t)(seconds + 0.5);
    if (seconds < 60)
        (void)snprintf(out, 24, "%.1f s", seconds);
    else if (s < 3600)
        (void)snprintf(out, 24, "%llum %02llus", (unsigned long long)(s / 60),
                       (unsigned long long)(s % 60));
    else
        (void)snprintf(out, 24, "%lluh %02llum", (unsigned long long)(s / 3600),
                       (unsigned long long)(s % 3600 / 60));
}

static void scaled_text(double number, double base, const char *const *units, int count, char *out)
{
    int unit = 0;
    while (unit + 1 < count && number >= base * 0.9995) {
        number /= base;
        unit++;
    }
    const int decimals = unit == 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
    (void)snprintf(out, 16, "%.*f%s", decimals, number, units[unit]);
}

void count_text(double count, char out[16])
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    scaled_text(count, 1000, units, 6, out);
}

void bytes_text(double bytes, char out[16])
{
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    scaled_text(bytes, 1024, units, 5, out);
}

void progress_begin(progress_line_t *p, const run_start_t *start, uint64_t log_every)
{
    char parameters[16], tokens[16];
    *p = (progress_line_t){.terminal = isatty(STDERR_FILENO) == 1,
                           .steps = start->steps,
                           .log_every = log_every == 0 ? 1 : log_every,
                           .flops_per_step = start->flops_per_step,
                           .peak_flops = start->peak_flops};
    count_text((double)start->parameters, parameters);
    count_text((double)start->tokens_per_step, tokens);
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

/* The share of the device's matmul rate; empty where that was never measured. */
static void share_text(const progress_line_t *p, double seconds, char out[32])
{
    out[0] = '\0';
    if (p->peak_flops > 0 && seconds > 0)
        (void)snprintf(out, 32, "  %.0f%% of peak",
                       100 * p->flops_per_step / seconds / p->peak_flops);
}

/* The share of the step that waited for transfers; empty alone. */
static void exposed_text(const step_report_t *s, char out[40])
{
    double waited = 0;
    for (int i = 0; i < STEP_SCOPES; i++)
        waited += s->exposed_s[i];
    out[0] = '\0';
    if (waited > 0 && s->seconds > 0)
        (void)snprintf(out, 40, "  %.1f%% exposed", 100 * waited / s->seconds);
}

static void show(progress_line_t *p, const step_report_t *s)
{
    char rate[16], left[24], share[32], exposed[40];
    count_text(s->tokens_per_s, rate);
    duration_text(p->seconds_a_step * (double)(p->steps - s->step), left);
    share_text(p, s->seconds, share);
    exposed_text(s, exposed);

    if (!p->terminal) {
        log_line(LH_LOG_INFO,
                 "step %llu/%llu  loss %.4f  rate %.3g  norm %.3f  %s tokens/s%s%s  ETA %s",
                 (unsigned long long)s->step, (unsigned long long)p->steps, s->loss,
                 s->learning_rate, s->gradient_norm, rate, share, exposed, left);
        return;
    }
    enum { WIDTH = 20 };
    char bar[3 * WIDTH + 1] = "", line[512];
    const uint64_t filled = p->steps == 0 ? WIDTH : s->step * WIDTH / p->steps;
    for (uint64_t i = 0; i < WIDTH; i++)
        (void)strncat(bar, i < filled ? "█" : "░", sizeof(bar) - strlen(bar) - 1);
    const int length = snprintf(line, sizeof(line),
                                "\r\033[K%s %llu/%llu  loss %.4f  %s tok/s%s%s  ETA %s", bar,
                                (unsigned long long)s->step, (unsigned long long)p->steps, s->loss,
                                rate, share, exposed, left);
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0) p->terminal = false;
}

void progress_step(progress_line_t *p, const step_report_t *s)
{
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
    show(p, s);
}

void progress_evaluated(progress_line_t *p, const evaluation_report_t *e)
{
    (void)p;
    log_line(LH_LOG_INFO, "step %llu  held-out loss %.4f  perplexity %.2f  (%llu tokens)",
             (unsigned long long)e->step, e->loss, exp(e->loss), (unsigned long long)e->tokens);
}

void progress_saved(progress_line_t *p, const save_report_t *s)
{
    (void)p;
    if (s->reason != NULL)
        log_line(LH_LOG_WARN, "step %llu was not saved: %s", (unsigned long long)s->step,
                 s->reason);
    else if (s->committed)
        log_line(LH_LOG_INFO, "step %llu saved to %s", (unsigned long long)s->step, s->path);
}

void progress_end(progress_line_t *p, const run_end_t *end)
{
    char took[24];
    if (p->terminal && write(STDERR_FILENO, "\r\033[K", 4) < 0) p->terminal = false;
    log_over_progress(false);
    duration_text(end->seconds, took);
    if (end->reason == NULL)
        log_line(LH_LOG_INFO, "%llu steps in %s", (unsigned long long)end->steps, took);
}
