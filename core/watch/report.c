/* report.c - key figures, curves, where the time and the memory went. */
#include <watch/report.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <longhaul/link.h>
#include <watch/chart.h>
#include <watch/flame.h>
#include <watch/memory_table.h>
#include <watch/metrics.h>
#include <watch/progress.h>
#include <watch/report_page.h>

enum { PROFILE_SHOWN = 16, SMOOTHED = 20 };

typedef struct curves { /* columns of metrics.jsonl */
    size_t steps, evaluations;
    double *x, *loss, *smooth, *rate, *norm, *speed; /* [steps]       */
    double *ex, *eloss;                              /* [evaluations] */
    double part_s[STEP_PARTS], seconds;              /* sums          */
    double exposed_s[STEP_SCOPES];
    double *memory;
} curves_t;

/* A mean that forgets: over SMOOTHED steps, in a short run over a twentieth of it. A loss that is
 * not finite leaves it where it was. */
static void smooth(curves_t *c)
{
    const double window = fmax(1, fmin(SMOOTHED, (double)c->steps / SMOOTHED));
    double mean = NAN;
    for (size_t i = 0; i < c->steps; i++) {
        if (isfinite(c->loss[i]))
            mean = isfinite(mean) ? mean + (c->loss[i] - mean) / window : c->loss[i];
        c->smooth[i] = mean;
    }
}

static lh_status_t read_curves(const char *folder, curves_t *c)
{
    metrics_point_t *points;
    size_t count;
    *c = (curves_t){0};
    const lh_status_t status = metrics_read(folder, &points, &count);
    if (status != LH_OK) return status;

    c->memory = mem_array(8 * count + 8, sizeof(double));
    if (c->memory == NULL) {
        mem_free(points);
        return LH_NO_MEMORY;
    }
    double **columns[] = {&c->x,    &c->loss,  &c->smooth, &c->rate,
                          &c->norm, &c->speed, &c->ex,     &c->eloss};
    for (size_t i = 0; i < 8; i++)
        *columns[i] = c->memory + i * (count + 1);

    for (size_t i = 0; i < count; i++) {
        const metrics_point_t *p = &points[i];
        if (p->evaluation) {
            c->ex[c->evaluations] = (double)p->step;
            c->eloss[c->evaluations++] = p->loss;
            continue;
        }
        const size_t n = c->steps++;
        c->x[n] = (double)p->step;
        c->loss[n] = p->loss;
        c->rate[n] = p->learning_rate;
        c->norm[n] = p->gradient_norm;
        c->speed[n] = p->tokens_per_s;
        if (isfinite(p->seconds)) c->seconds += p->seconds;
        for (int k = 0; k < STEP_PARTS; k++)
            if (isfinite(p->part_s[k])) c->part_s[k] += p->part_s[k];
        for (int k = 0; k < STEP_SCOPES; k++)
            if (isfinite(p->exposed_s[k])) c->exposed_s[k] += p->exposed_s[k];
    }
    mem_free(points);
    smooth(c);
    return LH_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *values, size_t count)
{
    if (count == 0) return NAN;
    double *sorted = mem_array(count, sizeof(double));
    if (sorted == NULL) return values[count - 1];
    memcpy(sorted, values, count * sizeof(double));
    qsort(sorted, count, sizeof(double), by_value);
    const double middle = sorted[count / 2];
    mem_free(sorted);
    return middle;
}

static void card(text_t *out, const char *value, const char *name)
{
    text_append(out, "<div class=\"card\"><b>");
    html_escape(out, value);
    text_append(out, "</b><span>");
    html_escape(out, name);
    text_append(out, "</span></div>");
}

static void write_header(const run_start_t *s, const run_end_t *e, text_t *out)
{
    char parameters[16];
    count_text((double)s->parameters, parameters);
    text_append(out, report_head);
    html_escape(out, s->name);
    text_append(out, " - Longhaul");
    text_append(out, report_style);
    text_append(out, "<h1>");
    html_escape(out, s->name);
    text_append(out, "</h1><p class=\"sub\">");
    html_escape(out, s->model);
    text_printf(out, ", %s parameters, ", parameters);
    html_escape(out, s->precision);
    text_append(out, ", ");
    html_escape(out, s->optimizer);
    text_append(out, " with ");
    html_escape(out, s->rule);
    text_append(out, ", on ");
    html_escape(out, s->device_name);
    if (e->reason != NULL) {
        text_append(out, "<br><b class=\"bad\">");
        html_escape(out, e->reason);
        text_append(out, "</b>");
    }
    text_append(out, "</p>\n");
}

static void write_cards(const run_start_t *s, const run_end_t *e, const curves_t *c, text_t *out)
{
    char value[64], tokens[16];
    const double speed = median(c->speed, c->steps);

    text_append(out, "<div class=\"cards\">");
    if (c->steps > 0) {
        (void)snprintf(value, sizeof(value), "%.4f", c->smooth[c->steps - 1]);
        card(out, value, "training loss, smoothed");
    }
    if (c->evaluations > 0) {
        (void)snprintf(value, sizeof(value), "%.4f", c->eloss[c->evaluations - 1]);
        card(out, value, "held-out loss");
        (void)snprintf(value, sizeof(value), "%.2f", exp(c->eloss[c->evaluations - 1]));
        card(out, value, "held-out perplexity");
    }
    if (isfinite(speed)) {
        count_text(speed, tokens);
        card(out, tokens, "tokens/s, median");
    }
    if (s->peak_flops > 0 && isfinite(speed)) {
        const double seconds = (double)s->tokens_per_step / speed;
        (void)snprintf(value, sizeof(value), "%.0f %%",
                       100 * s->flops_per_step / seconds / s->peak_flops);
        card(out, value, "of the matrix rate, whole step");
    }
    count_text((double)e->steps * (double)s->tokens_per_step, tokens);
    card(out, tokens, "tokens seen");
    duration_text(c->seconds, value);
    card(out, value, "in steps");
    text_append(out, "</div>\n");
}

static void write_charts(const curves_t *c, text_t *out)
{
    const chart_series_t loss[] = {{"each step", "faint", c->x, c->loss, c->steps},
                                   {"smoothed", "line", c->x, c->smooth, c->steps},
                                   {"held-out", "dots", c->ex, c->eloss, c->evaluations}};
    const chart_series_t rate = {"rate", "line", c->x, c->rate, c->steps};
    const chart_series_t norm = {"norm", "line", c->x, c->norm, c->steps};
    const chart_series_t speed = {"tokens/s", "line", c->x, c->speed, c->steps};
    const chart_t charts[] = {
        {"Loss", "step", "loss", loss, 3, false, true},
        {"Learning rate", "step", "rate", &rate, 1, true, false},
        {"Tokens per second", "step", "tokens/s", &speed, 1, true, false},
        {"Gradient norm, before clipping", "step", "norm", &norm, 1, true, false},
    };

    text_append(out, "<div class=\"charts\">");
    for (size_t i = 0; i < sizeof(charts) / sizeof(charts[0]); i++)
        chart_draw(&charts[i], out);
    text_append(out, "</div>\n");
}

static void write_parts(const run_start_t *s, const curves_t *c, text_t *out)
{
    if (c->steps == 0 || c->seconds <= 0) return;
    text_append(out,
                "<h2>Where the time of a step goes</h2><div class=\"panel\"><div class=\"bar\">");
    for (int k = 0; k < STEP_PARTS; k++)
        text_printf(out, "<i class=\"p%d\" style=\"width:%.2f%%\" title=\"%s\"></i>", k,
                    100 * c->part_s[k] / c->seconds, step_part_names[k]);
    text_append(out, "</div><table><tr><th>part</th><th class=\"n\">ms a step</th>"
                     "<th class=\"n\">share</th></tr>");
    for (int k = 0; k < STEP_PARTS; k++)
        text_printf(out,
                    "<tr><td><span class=\"swatch p%d\"></span>%s</td><td class=\"n\">%.2f</td>"
                    "<td class=\"n\">%.1f %%</td></tr>",
                    k, step_part_names[k], 1e3 * c->part_s[k] / (double)c->steps,
                    100 * c->part_s[k] / c->seconds);
    static const char *const links[STEP_SCOPES] = {
        [LH_LINK_NODE] = "inside a machine",
        [LH_LINK_SITE] = "inside a site",
        [LH_LINK_WAN] = "between sites",
    };
    for (int k = LH_LINK_NODE; s->ranks > 1 && k < STEP_SCOPES; k++)
        text_printf(out,
                    "<tr><td>of these: exposed communication, %s</td><td class=\"n\">%.2f</td>"
                    "<td class=\"n\">%.1f %%</td></tr>",
                    links[k], 1e3 * c->exposed_s[k] / (double)c->steps,
                    100 * c->exposed_s[k] / c->seconds);
    text_printf(out, "<tr><td><b>whole step</b></td><td class=\"n\"><b>%.2f</b></td><td></td></tr>",
                1e3 * c->seconds / (double)c->steps);
    if (s->predicted_step_s > 0)
        text_printf(out, "<tr><td>planned</td><td class=\"n\">%.2f</td><td></td></tr>",
                    1e3 * s->predicted_step_s);
    text_append(out, "</table></div>\n");
}

static void write_kernel(const run_start_t *s, const profile_row_t *r, double total, text_t *out)
{
    const double limit = profile_row_of_limit(r, s->peak_flops, s->bytes_per_second);
    text_append(out, "<tr><td>");
    html_escape(out, r->part);
    text_printf(out, "%s</td><td>", r->backward ? ", backward" : "");
    html_escape(out, r->op);
    text_append(out, "</td><td>");
    html_escape(out, r->kernel);
    text_printf(out,
                "</td><td class=\"n\">%llu</td><td class=\"n\">%.2f</td><td class=\"n\">%.0f</td>"
                "<td class=\"n\">%.1f</td><td class=\"n\">",
                (unsigned long long)r->calls, (double)r->ns * 1e-6,
                r->ns > 0 ? r->flops / (double)r->ns : 0, r->ns > 0 ? r->bytes / (double)r->ns : 0);
    if (limit > 0)
        text_printf(out, "%.0f %%", 100 * limit);
    else
        text_append(out, "-");
    text_printf(out, "</td><td class=\"w\"><i style=\"width:%.1f%%\"></i></td></tr>",
                100 * (double)r->ns / total);
}

static lh_status_t write_profile(const run_start_t *s, const run_end_t *e, text_t *out)
{
    double total = 0;
    for (uint32_t i = 0; i < e->profile_count; i++)
        total += (double)e->profile[i].ns;
    if (total <= 0) return LH_OK;

    text_append(out, "<h2>Kernels of one step</h2><div class=\"panel\">");
    const lh_status_t status = flame_draw(e->frames, e->frame_count, out);
    text_append(out, "<table><tr><th>part</th><th>op</th><th>kernel</th><th class=\"n\">calls</th>"
                     "<th class=\"n\">ms</th><th class=\"n\">GFLOP/s</th><th class=\"n\">GB/s</th>"
                     "<th class=\"n\">of limit</th><th>share</th></tr>");
    for (uint32_t i = 0; i < e->profile_count && i < PROFILE_SHOWN; i++)
        write_kernel(s, &e->profile[i], total, out);
    text_append(out, "</table></div>\n");
    return status;
}

lh_status_t report_write(const char *folder, const run_start_t *start, const run_end_t *end)
{
    curves_t c;
    lh_status_t status = read_curves(folder, &c);
    if (status != LH_OK) return status;

    text_t page = {0};
    write_header(start, end, &page);
    write_cards(start, end, &c, &page);
    write_charts(&c, &page);
    write_parts(start, &c, &page);
    status = write_profile(start, end, &page);
    memory_table_write(start, end, &page);
    text_append(&page, report_script);

    char *path = path_join(folder, "report.html");
    if (status == LH_OK) status = path == NULL ? LH_NO_MEMORY : text_status(&page);
    if (status == LH_OK) status = file_replace(path, page.data, page.length);
    mem_free(path);
    text_free(&page);
    mem_free(c.memory);
    return status;
}
