/* chart.c - axes with round numbers, series as polylines or dots. */
#include <watch/chart.h>

#include <math.h>
#include <stdio.h>

#include <watch/progress.h>

/* Of its values: a narrower range is drawn wider, as ticks show four digits. */
static const double least_range = 1e-3;

enum { LEFT = 56, RIGHT = 14, TOP = 12, BOTTOM = 30, TICKS = 5, COLUMNS = 400 };

typedef struct frame {
    double x0, x1, y0, y1; /* data range */
    double width, height;  /* of the SVG */
} frame_t;

void html_escape(text_t *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&': text_append(out, "&amp;"); break;
        case '<': text_append(out, "&lt;"); break;
        case '>': text_append(out, "&gt;"); break;
        case '"': text_append(out, "&quot;"); break;
        case '\'': text_append(out, "&#39;"); break;
        default:
            if ((unsigned char)*text < 0x20)
                text_append(out, " ");
            else
                text_append_n(out, text, 1);
        }
    }
}

static double place_x(const frame_t *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (f->width - LEFT - RIGHT);
}

static double place_y(const frame_t *f, double y)
{
    return f->height - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (f->height - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten that cuts the range into about TICKS pieces. */
static double round_step(double range)
{
    const double raw = range / TICKS, power = pow(10, floor(log10(raw)));
    const double lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static bool usable(const chart_series_t *s, size_t i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

static bool find_range(const chart_t *c, frame_t *f)
{
    bool any = false;
    for (uint32_t k = 0; k < c->series_count; k++)
        for (size_t i = 0; i < c->series[k].count; i++) {
            const chart_series_t *s = &c->series[k];
            if (!usable(s, i)) continue;
            if (!any) *f = (frame_t){s->x[i], s->x[i], s->y[i], s->y[i], f->width, f->height};
            any = true;
            f->x0 = fmin(f->x0, s->x[i]);
            f->x1 = fmax(f->x1, s->x[i]);
            f->y0 = fmin(f->y0, s->y[i]);
            f->y1 = fmax(f->y1, s->y[i]);
        }
    if (!any) return false;
    if (c->from_zero) f->y0 = fmin(0, f->y0);
    if (f->x1 <= f->x0) f->x1 = f->x0 + 1;
    /* A range of rounding errors is no range: its ticks would not differ. */
    const double least = fmax(1e-9, least_range * fmax(fabs(f->y0), fabs(f->y1)));
    if (f->y1 - f->y0 < least) f->y1 = f->y0 + fmax(least, 0.1 * fabs(f->y0));
    const double step = round_step(f->y1 - f->y0);
    f->y0 = floor(f->y0 / step) * step;
    f->y1 = ceil(f->y1 / step) * step;
    return true;
}

static void tick_text(double value, char out[16])
{
    if (value >= 1e4 && value < 1e18)
        count_text(value, out);
    else
        (void)snprintf(out, 16, "%.4g", value);
}

static void draw_axes(const chart_t *c, const frame_t *f, text_t *out)
{
    char tick[16];
    const double step = round_step(f->y1 - f->y0);
    const int ticks = (int)lround((f->y1 - f->y0) / step);
    for (int i = 0; i <= ticks; i++) {
        const double y = f->y0 + i * step;
        const double at = place_y(f, y), shown = fabs(y) < step * 1e-9 ? 0 : y;
        tick_text(shown, tick);
        text_printf(out,
                    "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\"/>"
                    "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
                    LEFT, at, f->width - RIGHT, at, LEFT - 8, at + 4, tick);
    }
    const double across = round_step(f->x1 - f->x0);
    const double first = ceil(f->x0 / across) * across;
    for (int i = 0; first + i * across <= f->x1; i++)
        text_printf(out,
                    "<text class=\"tick\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%g</text>",
                    place_x(f, first + i * across), f->height - 10, first + i * across);
    text_printf(out, "<text class=\"axis\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">",
                f->width - RIGHT, f->height - BOTTOM - 6);
    html_escape(out, c->x_name);
    text_append(out, "</text>");
}

static void draw_dots(const chart_series_t *s, const frame_t *f, text_t *out)
{
    for (size_t i = 0; i < s->count; i++)
        if (usable(s, i))
            text_printf(out,
                        "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s %g: "
                        "%.4f</title></circle>",
                        place_x(f, s->x[i]), place_y(f, s->y[i]), s->name, s->x[i], s->y[i]);
}

static void draw_line(const chart_series_t *s, const frame_t *f, text_t *out)
{
    const size_t stride = s->count / COLUMNS + 1;
    text_printf(out, "<polyline class=\"%s\" points=\"", s->style);
    for (size_t begin = 0; begin < s->count; begin += stride) {
        size_t low = SIZE_MAX, high = SIZE_MAX;
        for (size_t i = begin; i < begin + stride && i < s->count; i++) {
            if (!usable(s, i)) continue;
            if (low == SIZE_MAX || s->y[i] < s->y[low]) low = i;
            if (high == SIZE_MAX || s->y[i] > s->y[high]) high = i;
        }
        if (low == SIZE_MAX) continue;
        const size_t first = low < high ? low : high, second = low < high ? high : low;
        text_printf(out, "%.1f,%.1f ", place_x(f, s->x[first]), place_y(f, s->y[first]));
        if (second != first)
            text_printf(out, "%.1f,%.1f ", place_x(f, s->x[second]), place_y(f, s->y[second]));
    }
    text_append(out, "\"/>");
}

static void draw_legend(const chart_t *c, text_t *out)
{
    text_append(out, "<p class=\"legend\">");
    for (uint32_t k = 0; k < c->series_count; k++) {
        if (c->series[k].count == 0) continue;
        text_printf(out, "<span><i class=\"key %s\"></i>", c->series[k].style);
        html_escape(out, c->series[k].name);
        text_append(out, "</span>");
    }
    text_append(out, "</p>");
}

void chart_draw(const chart_t *c, text_t *out)
{
    frame_t f = {.width = c->wide ? 1040 : 336, .height = c->wide ? 340 : 220};

    text_printf(out, "<figure class=\"%s\"><figcaption>", c->wide ? "wide" : "third");
    html_escape(out, c->title);
    text_append(out, "</figcaption>");
    if (!find_range(c, &f)) {
        text_append(out, "<p class=\"none\">nothing was measured</p></figure>");
        return;
    }
    text_printf(out,
                "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" data-x0=\"%.17g\" data-x1=\"%.17g\" "
                "data-y0=\"%.17g\" data-y1=\"%.17g\" aria-label=\"",
                f.width, f.height, f.x0, f.x1, f.y0, f.y1);
    html_escape(out, c->title);
    text_append(out, "\">");
    draw_axes(c, &f, out);
    for (uint32_t k = 0; k < c->series_count; k++) {
        const chart_series_t *s = &c->series[k];
        if (strcmp(s->style, "dots") == 0)
            draw_dots(s, &f, out);
        else
            draw_line(s, &f, out);
    }
    text_append(out, "</svg>");
    if (c->series_count > 1) draw_legend(c, out);
    text_append(out, "</figure>\n");
}
