/* report.c - key figures, curves, where the time and the memory went.
 *
 * Each function below writes one section of the page and leaves out what was not measured: a page
 * without a profile has no empty table of kernels. Text that others wrote goes through
 * chart_escape; numbers are printed by format. Memory that is lacking is remembered by text_t and
 * told once, at the end. */
#include <watch/report.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <longhaul/link.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <engine/engine.h>
#include <links/link_crowd.h>
#include <watch/chart.h>
#include <watch/metrics.h>

/* What never changes of the page: its style, light and dark, and the script that gives charts a
 * cursor. Nothing is fetched from a network. The constants are kept as a browser reads them. */
/* clang-format off */
static const char report_head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>";

static const char report_style[] =
    "</title>\n<style>\n"
    ":root{--page:#f6f7f9;--card:#fff;--ink:#16202c;--soft:#5b6775;--rule:#e3e7ec;--line:#1f6feb;"
    "--faint:#a9c7f7;--dot:#d9480f;--good:#1a7f4b;--bad:#c92a2a;"
    "--p0:#8ea7c4;--p1:#1f6feb;--p2:#12b886;--p3:#d9480f;--p4:#ae3ec9;--p5:#868e96}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#0f141a;--card:#171e26;--ink:#e6ebf1;--soft:#"
    "94a1b0;"
    "--rule:#27313c;--line:#6ea8fe;--faint:#41659c;--dot:#ff922b;--good:#51cf66;--bad:#ff6b6b;"
    "--p0:#627890;--p1:#4d8ff5;--p2:#20c997;--p3:#ff922b;--p4:#cc5de8;--p5:#868e96}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}\n"
    "h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em}h2{font-size:17px;margin:36px 0 12px}\n"
    ".sub{color:var(--soft);margin:0 0 24px}.bad{color:var(--bad)}.good{color:var(--good)}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}\n"
    ".card,figure,.panel{background:var(--card);border:1px solid var(--rule);border-radius:10px}\n"
    ".card{padding:14px 16px}.card "
    "b{display:block;font-size:22px;font-weight:600;letter-spacing:-.01em;"
    "font-variant-numeric:tabular-nums}.card span{color:var(--soft);font-size:13px}\n"
    ".charts{display:grid;grid-template-columns:repeat(3,1fr);gap:14px;margin-top:14px}\n"
    "figure{margin:0;padding:14px 14px 8px;position:relative}figure.wide{grid-column:1/-1}\n"
    "figcaption{font-weight:600;font-size:14px;margin-bottom:4px}.none{color:var(--soft)}\n"
    "svg{width:100%;height:auto;display:block}.grid{stroke:var(--rule);stroke-width:1}\n"
    ".tick,.axis{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}\n"
    "polyline{fill:none;stroke-linejoin:round}polyline.line{stroke:var(--line);stroke-width:2}\n"
    "polyline.faint{stroke:var(--faint);stroke-width:1}.dot{fill:var(--dot)}\n"
    ".legend{margin:2px 0 6px;color:var(--soft);font-size:13px}.legend span{margin-right:18px}\n"
    ".key{display:inline-block;width:14px;height:3px;margin-right:6px;vertical-align:middle;border-"
    "radius:2px}\n"
    ".key.line{background:var(--line)}.key.faint{background:var(--faint)}"
    ".key.dots{background:var(--dot);width:8px;height:8px;border-radius:50%}\n"
    ".panel{padding:16px}.bar{display:flex;height:22px;border-radius:6px;overflow:hidden;margin-"
    "bottom:12px}\n"
    ".bar "
    "i{display:block}.p0{background:var(--p0)}.p1{background:var(--p1)}.p2{background:var(--p2)}"
    ".p3{background:var(--p3)}.p4{background:var(--p4)}.p5{background:var(--p5)}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\n"
    "th{text-align:left;color:var(--soft);font-weight:500;font-size:12.5px}\n"
    "th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--rule)}tr:last-child "
    "td{border-bottom:0}\n"
    "td.n,th.n{text-align:right;white-space:nowrap}td.w{width:30%}td.w "
    "i{display:block;height:8px;border-radius:4px;background:var(--line)}\n"
    ".swatch{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}\n"
    ".flame{margin-bottom:14px}.flame .p0{fill:var(--p0)}.flame .p1{fill:var(--p1)}.flame "
    ".p2{fill:var(--p2)}"
    ".flame .p3{fill:var(--p3)}.flame .p4{fill:var(--p4)}.flame .p5{fill:var(--p5)}\n"
    ".flame text{font-size:11px;fill:#fff;pointer-events:none}.flame g:hover rect{opacity:.75}\n"
    "#tip{position:absolute;pointer-events:none;background:var(--ink);color:var(--page);font-size:"
    "12px;"
    "padding:3px "
    "8px;border-radius:5px;opacity:0;white-space:nowrap;font-variant-numeric:tabular-nums}\n"
    ".cursor{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3;opacity:0}\n"
    "@media(max-width:760px){.charts{grid-template-columns:1fr}}\n"
    "</style></head><body><main>\n";

static const char report_script[] =
    "<div id=\"tip\"></div><script>\n"
    "(function(){var tip=document.getElementById('tip');\n"
    "document.querySelectorAll('figure svg').forEach(function(svg){\n"
    " var line=svg.querySelector('polyline.line')||svg.querySelector('polyline');if(!line)return;\n"
    " var pts=line.getAttribute('points').trim().split(' ').map(function(p){return "
    "p.split(',').map(Number)});\n"
    " var box=svg.viewBox.baseVal,d=svg.dataset,L=56,R=14,T=12,B=30;\n"
    " var "
    "c=document.createElementNS('http://www.w3.org/2000/"
    "svg','line');c.setAttribute('class','cursor');\n"
    " c.setAttribute('y1',T);c.setAttribute('y2',box.height-B);svg.appendChild(c);\n"
    " svg.addEventListener('mousemove',function(e){var r=svg.getBoundingClientRect();\n"
    "  var x=(e.clientX-r.left)/r.width*box.width,best=pts[0];\n"
    "  pts.forEach(function(p){if(Math.abs(p[0]-x)<Math.abs(best[0]-x))best=p});\n"
    "  var vx=+d.x0+(best[0]-L)/(box.width-L-R)*(d.x1-d.x0);\n"
    "  var vy=+d.y0+(box.height-B-best[1])/(box.height-T-B)*(d.y1-d.y0);\n"
    "  c.setAttribute('x1',best[0]);c.setAttribute('x2',best[0]);c.style.opacity=1;\n"
    "  tip.textContent='step '+Math.round(vx)+'   '+vy.toPrecision(4);tip.style.opacity=1;\n"
    "  tip.style.left=(e.pageX+14)+'px';tip.style.top=(e.pageY-10)+'px'});\n"
    " svg.addEventListener('mouseleave',function(){tip.style.opacity=0;c.style.opacity=0})})})();\n"
    "</script>\n</main></body></html>\n";
/* clang-format on */

/* Rows of the table of kernels; links tuned anew; restarts; and steps over which a loss is smoothed. */
enum { PROFILE_SHOWN = 16, CHANGES_SHOWN = 16, RESTARTS_SHOWN = 16, SMOOTHED = 20 };

/* The columns lie in one piece of memory, which is the only one to be freed. */
typedef struct curves { /* columns of metrics.jsonl */
    /* Lengths of the columns below. */
    size_t steps, evaluations;
    double *x, *loss, *smooth, *rate, *norm, *speed; /* [steps]       */
    double *ex, *eloss;                              /* [evaluations] */
    /* Over all steps that the file has, those of runs before a resume included. */
    double part_s[STEP_PARTS], seconds; /* sums          */
    double exposed_s[STEP_SCOPES];
    double tokens; /* up to the last step, of whatever batches; 0: none was made */
    double *memory;
} curves_t;

/* A mean that forgets: over SMOOTHED steps, in a short run over a twentieth of it. A loss that is
 * not finite leaves it where it was. An exponential mean: each step moves it by 1/window of the
 * difference. c->smooth may begin with NAN, where the first losses were not finite. */
static void curves_smooth(curves_t *c)
{
    const double window = fmax(1, fmin(SMOOTHED, (double)c->steps / SMOOTHED));
    double mean = NAN;
    for (size_t i = 0; i < c->steps; i++) {
        if (isfinite(c->loss[i]))
            mean = isfinite(mean) ? mean + (c->loss[i] - mean) / window : c->loss[i];
        c->smooth[i] = mean;
    }
}

/* The report is made of the file that the run wrote, and not of what is in memory: one that a
 * resumed run writes shows the steps before it, too. Eight columns of equal length; not all of a
 * column is used, as evaluations are fewer than lines. */
static lh_status_t curves_read(const char *folder, curves_t *c)
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
        if (isfinite(p->tokens)) c->tokens = p->tokens;
        if (isfinite(p->seconds)) c->seconds += p->seconds;
        for (int k = 0; k < STEP_PARTS; k++)
            if (isfinite(p->part_s[k])) c->part_s[k] += p->part_s[k];
        for (int k = 0; k < STEP_SCOPES; k++)
            if (isfinite(p->exposed_s[k])) c->exposed_s[k] += p->exposed_s[k];
    }
    lh_assert(c->steps + c->evaluations == count);
    mem_free(points);
    curves_smooth(c);
    return LH_OK;
}

/* For qsort, smallest first. */
static int by_curve_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Steps that save or evaluate are slower than the rest: a mean would count them as speed. Without
 * memory for a sorted copy the last value has to do. */
static double report_median(const double *values, size_t count)
{
    if (count == 0) return NAN;
    double *sorted = mem_array(count, sizeof(double));
    if (sorted == NULL) return values[count - 1];
    memcpy(sorted, values, count * sizeof(double));
    qsort(sorted, count, sizeof(double), by_curve_value);
    const double middle = sorted[count / 2];
    mem_free(sorted);
    return middle;
}

/* A large number with its name below. */
static void report_card(text_t *out, const char *value, const char *name)
{
    text_append(out, "<div class=\"card\"><b>");
    chart_escape(out, value);
    text_append(out, "</b><span>");
    chart_escape(out, name);
    text_append(out, "</span></div>");
}

/* Also opens the page. The reason of a failed run stands here, in red. */
static void report_header(const run_start_t *s, const run_end_t *e, text_t *out)
{
    char parameters[16];
    text_count((double)s->parameters, parameters);
    text_append(out, report_head);
    chart_escape(out, s->name);
    text_append(out, " - Longhaul");
    text_append(out, report_style);
    text_append(out, "<h1>");
    chart_escape(out, s->name);
    text_append(out, "</h1><p class=\"sub\">");
    chart_escape(out, s->model);
    text_printf(out, ", %s parameters, ", parameters);
    chart_escape(out, s->precision);
    text_append(out, ", ");
    chart_escape(out, s->optimizer);
    text_append(out, " with ");
    chart_escape(out, s->rule);
    text_append(out, ", on ");
    chart_escape(out, s->device_name);
    if (e->reason != NULL) {
        text_append(out, "<br><b class=\"bad\">");
        chart_escape(out, e->reason);
        text_append(out, "</b>");
    }
    if (s->restarts > 0) {
        text_printf(out, "<br>started again by its launcher %llu time%s, the last time after: ",
                    (unsigned long long)s->restarts, s->restarts == 1 ? "" : "s");
        chart_escape(out, s->restart_reason);
    }
    text_append(out, "</p>\n");
}

/* The figures that are asked for first; what is not known has no card. The loss that is shown is
 * the smoothed one of the last step, as a single step says little. */
static void report_cards(const run_start_t *s, const curves_t *c, text_t *out)
{
    char value[64], tokens[16];
    const double speed = report_median(c->speed, c->steps);

    /* In the order in which people ask: how good, how fast, how much. */
    text_append(out, "<div class=\"cards\">");
    if (c->steps > 0) {
        (void)snprintf(value, sizeof(value), "%.4f", c->smooth[c->steps - 1]);
        report_card(out, value, "training loss, smoothed");
    }
    if (c->evaluations > 0) {
        (void)snprintf(value, sizeof(value), "%.4f", c->eloss[c->evaluations - 1]);
        report_card(out, value, "held-out loss");
        (void)snprintf(value, sizeof(value), "%.2f", exp(c->eloss[c->evaluations - 1]));
        if (!s->pairs) report_card(out, value, "held-out perplexity");
    }
    if (isfinite(speed)) {
        text_count(speed, tokens);
        report_card(out, tokens, "tokens/s, median");
    }
    if (s->peak_flops > 0 && isfinite(speed)) {
        const double seconds = (double)s->tokens_per_step / speed;
        (void)snprintf(value, sizeof(value), "%.0f %%",
                       100 * s->flops_per_step / seconds / s->peak_flops);
        report_card(out, value, "of the matrix rate, whole step");
    }
    text_count(c->tokens, tokens);
    report_card(out, tokens, "tokens seen");
    text_duration(c->seconds, value);
    report_card(out, value, "in steps");
    text_append(out, "</div>\n");
}

/* The loss gets three series and the page's width; the others a third each. from_zero: rates and
 * norms are compared by height, losses by shape. */
static void report_charts(const curves_t *c, text_t *out)
{
    /* Three layers: each step faintly, the smoothed line above it, evaluations as dots. */
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

/* Where the time of a step went, and what of it was exposed communication by class of link. Means
 * over all steps: seconds of each part over the number of steps. Exposed communication is part of
 * compute and update, so it stands in rows of its own below. */
static void report_parts(const run_start_t *s, const curves_t *c, text_t *out)
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

/* What became of them while the run went on: the last CHANGES_SHOWN of a line each. */
static void report_changes(const text_t *changes, text_t *out)
{
    size_t count = 0;
    if (changes->length == 0) return;
    for (const char *at = changes->data; *at != '\0'; at++)
        count += *at == '\n';
    text_append(out, "<p>Tuned anew while it trained:");
    if (count > CHANGES_SHOWN)
        text_printf(out, " (the last %d of %zu; metrics.jsonl has all)", CHANGES_SHOWN, count);
    text_append(out, "</p><ul>");
    for (const char *at = changes->data; *at != '\0'; count--) {
        const size_t length = strcspn(at, "\n");
        char line[512];
        (void)snprintf(line, sizeof(line), "%.*s", (int)length, at);
        at += length + 1;
        if (count > CHANGES_SHOWN) continue;
        text_append(out, "<li>");
        chart_escape(out, line);
        text_append(out, "</li>");
    }
    text_append(out, "</ul>");
}

/* Rows of links that nobody measured are left out, and so is the section where none was. A rate
 * there and back, as links need not be alike in both directions. */
static void report_links(const run_start_t *s, const text_t *changes, text_t *out)
{
    bool any = false;
    for (uint32_t i = 0; i < s->link_count; i++)
        any |= s->links[i].figures.measured_s != 0;
    if (!any) return;
    text_append(
        out, "<h2>Links between sites, as measured</h2><div class=\"panel\"><table><tr>"
             "<th>link</th><th class=\"n\">round trip, ms</th><th class=\"n\">Gb/s there</th>"
             "<th class=\"n\">Gb/s back</th><th class=\"n\">loss, at most</th><th>tuned</th></tr>");
    for (uint32_t i = 0; i < s->link_count; i++) {
        const probe_pair_t *p = &s->links[i];
        const probe_figures_t *f = &p->figures;
        const double loss = f->loss_most[0] > f->loss_most[1] ? f->loss_most[0] : f->loss_most[1];
        if (f->measured_s == 0) continue;
        text_append(out, "<tr><td>");
        chart_escape(out, p->site[0]);
        text_append(out, " - ");
        chart_escape(out, p->site[1]);
        text_printf(out,
                    "</td><td class=\"n\">%.2f</td><td class=\"n\">%.3g</td>"
                    "<td class=\"n\">%.3g</td><td class=\"n\">",
                    (double)f->round_trip_ns * 1e-6, 8e-9 * (double)f->rate[0],
                    8e-9 * (double)f->rate[1]);
        if (loss >= 0) text_printf(out, "%.0e", loss);
        text_append(out, "</td><td>");
        chart_escape(out, f->tuned);
        text_append(out, "</td></tr>");
    }
    text_append(out, "</table>");
    char at_once[256];
    const bool is_whole = s->sites > 1 && s->link_count == s->sites * (s->sites - 1) / 2;
    if (is_whole && link_crowd_text(s->links, s->sites, at_once, sizeof(at_once))) {
        text_append(out, "<p>");
        chart_escape(out, at_once);
        text_append(out, "</p>");
    }
    report_changes(changes, out);
    text_append(out, "</div>\n");
}

/* The last RESTARTS_SHOWN of them: when, after which step, why. */
static void report_restarts(const metrics_restarts_t *r, text_t *out)
{
    const size_t first = r->count > RESTARTS_SHOWN ? r->count - RESTARTS_SHOWN : 0;
    if (r->count == 0) return;
    text_append(out, "<h2>Started again by the launcher</h2><div class=\"panel\"><table><tr>"
                     "<th>time</th><th class=\"n\">went on after step</th><th>as</th></tr>");
    for (size_t i = first; i < r->count; i++) {
        const metrics_again_t *a = &r->rows[i];
        text_append(out, "<tr><td>");
        chart_escape(out, a->time);
        text_printf(out, "</td><td class=\"n\">%llu%s</td><td>", (unsigned long long)a->step,
                    a->memory ? ", in memory" : "");
        chart_escape(out, a->reason);
        text_append(out, "</td></tr>");
    }
    text_append(out, "</table>");
    if (first > 0)
        text_printf(out, "<p class=\"sub\">The last %d of %zu; metrics.jsonl has all.</p>",
                    RESTARTS_SHOWN, r->count);
    text_append(out, "</div>\n");
}

/* GFLOP/s and GB/s are flops and bytes by nanosecond. The share is of all profiled kernels. of
 * limit is a dash where the device was never measured. */
static void report_kernel(const run_start_t *s, const profile_row_t *r, double total, text_t *out)
{
    const double limit = engine_profile_of_limit(r, s->peak_flops, s->bytes_per_second);
    text_append(out, "<tr><td>");
    chart_escape(out, r->part);
    text_printf(out, "%s</td><td>", r->backward ? ", backward" : "");
    chart_escape(out, r->op);
    text_append(out, "</td><td>");
    chart_escape(out, r->kernel);
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

/* Rows come sorted by time; PROFILE_SHOWN of them are shown, with the flame chart above. A failed
 * flame chart fails the page: it is for want of memory. */
static lh_status_t report_profile(const run_start_t *s, const run_end_t *e, text_t *out)
{
    double total = 0;
    for (uint32_t i = 0; i < e->profile_count; i++)
        total += (double)e->profile[i].ns;
    if (total <= 0) return LH_OK;

    text_append(out, "<h2>Kernels of one step</h2><div class=\"panel\">");
    const lh_status_t status = chart_draw_flame(e->frames, e->frame_count, out);
    text_append(out, "<table><tr><th>part</th><th>op</th><th>kernel</th><th class=\"n\">calls</th>"
                     "<th class=\"n\">ms</th><th class=\"n\">GFLOP/s</th><th class=\"n\">GB/s</th>"
                     "<th class=\"n\">of limit</th><th>share</th></tr>");
    for (uint32_t i = 0; i < e->profile_count && i < PROFILE_SHOWN; i++)
        report_kernel(s, &e->profile[i], total, out);
    text_append(out, "</table></div>\n");
    return status;
}

/* Memory per rank and kind: what was planned beside what was measured. */

/* More ranks than this are told by metrics.jsonl; the report shows the first and the largest. */
enum { RANKS_SHOWN = 8 };

/* Nothing where there is none, so that the table is easy to look over. */
static void memory_cell(uint64_t bytes, text_t *out)
{
    char size[16];
    if (bytes > 0) text_bytes((double)bytes, size);
    text_printf(out, "<td class=\"n\">%s</td>", bytes > 0 ? size : "");
}

/* The first ranks, or the first and the largest. shown gets pointers into end; returns how many. */
static uint32_t memory_choose_ranks(const run_end_t *end, const rank_memory_t *shown[RANKS_SHOWN])
{
    const rank_memory_t *most = &end->memory[0];
    uint32_t count = 0;
    for (uint32_t i = 0; i < end->memory_count; i++)
        if (end->memory[i].measured.total_bytes > most->measured.total_bytes)
            most = &end->memory[i];
    if (end->memory_count <= RANKS_SHOWN) {
        for (uint32_t i = 0; i < end->memory_count; i++)
            shown[count++] = &end->memory[i];
        return count;
    }
    shown[count++] = &end->memory[0];
    if (most != shown[0]) shown[count++] = most;
    return count;
}

/* A kind of which no shown rank has any gets no row. */
static bool memory_is_used(const rank_memory_t *const *shown, uint32_t count, uint32_t kind)
{
    for (uint32_t i = 0; i < count; i++)
        if (shown[i]->planned.bytes[kind] > 0 || shown[i]->measured.bytes[kind] > 0) return true;
    return false;
}

/* One rank needs no number over its columns. Two columns for each rank. */
static void memory_head(const rank_memory_t *const *shown, uint32_t count, text_t *out)
{
    text_append(out, "<h2>Memory</h2><div class=\"panel\"><table><tr><th>kind</th>");
    for (uint32_t i = 0; i < count; i++)
        if (count > 1)
            text_printf(out, "<th class=\"n\">rank %u planned</th><th class=\"n\">measured</th>",
                        shown[i]->rank);
        else
            text_append(out, "<th class=\"n\">planned</th><th class=\"n\">measured</th>");
    text_append(out, "</tr>");
}

/* A row of what is measured alone. device: what the device says that this process holds; else the
 * process's own peak. */
static void memory_measured_row(const char *name, const rank_memory_t *const *shown, uint32_t count,
                                bool device, text_t *out)
{
    text_printf(out, "<tr><td>%s</td>", name);
    for (uint32_t i = 0; i < count; i++) {
        text_append(out, "<td></td>");
        memory_cell(device ? shown[i]->device_bytes : shown[i]->resident_bytes, out);
    }
    text_append(out, "</tr>");
}

/* What is measured for the process as a whole has one column, so its planned cell stays empty. Rows
 * in the order of MEMORY_*, then the sum, then what the device and the system say of the whole
 * process. */
static void memory_write_ranks(const run_end_t *end, text_t *out)
{
    lh_assert(end->memory_count > 0);
    const rank_memory_t *shown[RANKS_SHOWN];
    const uint32_t count = memory_choose_ranks(end, shown);
    lh_assert(count > 0 && count <= RANKS_SHOWN);
    memory_head(shown, count, out);
    for (uint32_t k = 0; k < MEMORY_KINDS; k++) {
        if (!memory_is_used(shown, count, k)) continue;
        text_printf(out, "<tr><td>%s</td>", engine_memory_text(k));
        for (uint32_t i = 0; i < count; i++) {
            memory_cell(shown[i]->planned.bytes[k], out);
            memory_cell(shown[i]->measured.bytes[k], out);
        }
        text_append(out, "</tr>");
    }
    text_append(out, "<tr><td><b>total, without pinned</b></td>");
    for (uint32_t i = 0; i < count; i++) {
        memory_cell(shown[i]->planned.total_bytes, out);
        memory_cell(shown[i]->measured.total_bytes, out);
    }
    text_append(out, "</tr>");
    if (shown[0]->device_bytes > 0)
        memory_measured_row("held on the device", shown, count, true, out);
    memory_measured_row("process, at its peak", shown, count, false, out);
    text_append(out, "</table><p class=\"sub\">Measured: pages in memory where the host reaches "
                     "them, else what the device gave. What libraries keep is part of the process "
                     "only.");
    if (count < end->memory_count)
        text_printf(out, " Shown are rank 0 and the largest of %u; metrics.jsonl has all.",
                    end->memory_count);
    text_append(out, "</p></div>\n");
}

/* A run that failed before its end has gathered nothing: then this rank's plan and the process's
 * own peak. */
static void report_memory(const run_start_t *start, const run_end_t *end, text_t *out)
{
    if (end->memory_count > 0) {
        memory_write_ranks(end, out);
        return;
    }
    if (start->memory == NULL) return;
    const rank_memory_t own = {.planned = *start->memory, .resident_bytes = end->resident_bytes};
    const run_end_t alone = {.memory = &own, .memory_count = 1};
    memory_write_ranks(&alone, out);
}

/* The page is built in memory and replaces the old one at once, so a reader never sees half of it.
 * Without fsync, as what it is made of has none either: a rank that is told of the job's end writes it
 * on its way out, and where others write much the disk may take longer than all of the end may. */
lh_status_t report_write(const char *folder, const run_start_t *start, const run_end_t *end)
{
    curves_t c;
    lh_status_t status = curves_read(folder, &c);
    if (status != LH_OK) return status;

    text_t page = {0}, changes = {0};
    metrics_restarts_t restarts = {0};
    if (start->link_count > 0) status = metrics_read_changes(folder, &changes);
    if (status == LH_OK && (start->restarts > 0 || start->first_step > 0))
        status = metrics_read_restarts(folder, &restarts);
    report_header(start, end, &page);
    report_cards(start, &c, &page);
    report_charts(&c, &page);
    report_parts(start, &c, &page);
    report_links(start, &changes, &page);
    report_restarts(&restarts, &page);
    if (status == LH_OK) status = report_profile(start, end, &page);
    report_memory(start, end, &page);
    text_append(&page, report_script);

    char *path = path_join(folder, "report.html");
    if (status == LH_OK) status = path == NULL ? LH_NO_MEMORY : text_status(&page);
    if (status == LH_OK) status = file_renew(path, page.data, page.length);
    mem_free(path);
    text_free(&page);
    text_free(&changes);
    mem_free(restarts.rows);
    mem_free(c.memory);
    return status;
}
