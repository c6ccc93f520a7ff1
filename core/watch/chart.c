/* chart.c - charts as SVG text: axes with round numbers, series as polylines or dots; and a step as
 * a flame chart.
 *
 * All is drawn here and not by a script of the page: so a report shows its curves in mail, in a
 * viewer without scripts, and in ten years. A long series is thinned to the lowest and the highest
 * point per column, which keeps every spike that a mean would hide. */
#include <watch/chart.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/text.h>

/* Least range of the y axis, as a share of its values: a narrower one is drawn wider, as ticks show
 * four digits. */
static const double least_range = 1e-3;

/* In units of the SVG's view box, which a page scales. The script of report.c has the four margins
 * too: change both. */
enum { LEFT = 56, RIGHT = 14, TOP = 12, BOTTOM = 30, TICKS = 5, COLUMNS = 400 };

/* The place of a chart's data on its drawing. */
typedef struct frame {
    double x0, x1, y0, y1; /* data range */
    double width, height;  /* of the SVG */
} frame_t;

/* Everything on the page that somebody else wrote goes through here: names of runs, plugins,
 * devices, sites. Bytes above 0x7f pass, so UTF-8 stays what it is. */
void chart_escape(text_t *out, const char *text)
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

/* Data to places of the SVG, whose y grows downwards. f->x1 > f->x0 and f->y1 > f->y0, which
 * frame_of_chart makes sure of. */
static double frame_x(const frame_t *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (f->width - LEFT - RIGHT);
}

static double frame_y(const frame_t *f, double y)
{
    return f->height - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (f->height - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten that cuts the range into about TICKS pieces. So ticks are numbers
 * that a person would choose. */
static double round_step(double range)
{
    const double raw = range / TICKS, power = pow(10, floor(log10(raw)));
    const double lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

/* A loss that was not finite makes a gap and no point. */
static bool series_has_point(const chart_series_t *s, size_t i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

/* The range of all series together; false: not one point can be drawn. The y range is widened to
 * whole ticks, so that the top and the bottom line have a number. */
static bool frame_of_chart(const chart_t *c, frame_t *f)
{
    bool any = false;
    for (uint32_t k = 0; k < c->series_count; k++)
        for (size_t i = 0; i < c->series[k].count; i++) {
            const chart_series_t *s = &c->series[k];
            if (!series_has_point(s, i)) continue;
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

/* Large numbers with a unit letter: 1.2M tokens. */
static void tick_text(double value, char out[16])
{
    if (value >= 1e4 && value < 1e18)
        text_count(value, out);
    else
        (void)snprintf(out, 16, "%.4g", value);
}

/* A value that is nearly 0 by rounding is shown as 0 and not as 1e-17. */
static void draw_axes(const chart_t *c, const frame_t *f, text_t *out)
{
    char tick[16];
    const double step = round_step(f->y1 - f->y0);
    const int ticks = (int)lround((f->y1 - f->y0) / step);
    for (int i = 0; i <= ticks; i++) {
        const double y = f->y0 + i * step;
        const double at = frame_y(f, y), shown = fabs(y) < step * 1e-9 ? 0 : y;
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
                    frame_x(f, first + i * across), f->height - 10, first + i * across);
    text_printf(out, "<text class=\"axis\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">",
                f->width - RIGHT, f->height - BOTTOM - 6);
    chart_escape(out, c->x_name);
    text_append(out, "</text>");
}

/* Few points, of evaluations: they are not thinned, and each has a title that a pointer shows. */
static void draw_dots(const chart_series_t *s, const frame_t *f, text_t *out)
{
    for (size_t i = 0; i < s->count; i++)
        if (series_has_point(s, i))
            text_printf(out,
                        "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s %g: "
                        "%.4f</title></circle>",
                        frame_x(f, s->x[i]), frame_y(f, s->y[i]), s->name, s->x[i], s->y[i]);
}

/* Each column keeps its lowest and its highest point, in the order in which they come: at most two
 * points for each column of pixels, however long the run was. A polyline of the series' own style:
 * a faint one below, a strong one above. */
static void draw_line(const chart_series_t *s, const frame_t *f, text_t *out)
{
    const size_t stride = s->count / COLUMNS + 1;
    text_printf(out, "<polyline class=\"%s\" points=\"", s->style);
    for (size_t begin = 0; begin < s->count; begin += stride) {
        size_t low = SIZE_MAX, high = SIZE_MAX;
        for (size_t i = begin; i < begin + stride && i < s->count; i++) {
            if (!series_has_point(s, i)) continue;
            if (low == SIZE_MAX || s->y[i] < s->y[low]) low = i;
            if (high == SIZE_MAX || s->y[i] > s->y[high]) high = i;
        }
        if (low == SIZE_MAX) continue;
        const size_t first = low < high ? low : high, second = low < high ? high : low;
        text_printf(out, "%.1f,%.1f ", frame_x(f, s->x[first]), frame_y(f, s->y[first]));
        if (second != first)
            text_printf(out, "%.1f,%.1f ", frame_x(f, s->x[second]), frame_y(f, s->y[second]));
    }
    text_append(out, "\"/>");
}

/* Only where there is more than one series to be told apart. An empty series has no entry. */
static void draw_legend(const chart_t *c, text_t *out)
{
    text_append(out, "<p class=\"legend\">");
    for (uint32_t k = 0; k < c->series_count; k++) {
        if (c->series[k].count == 0) continue;
        text_printf(out, "<span><i class=\"key %s\"></i>", c->series[k].style);
        chart_escape(out, c->series[k].name);
        text_append(out, "</span>");
    }
    text_append(out, "</p>");
}

/* data-x0 and the like are for the page's script, which turns a pointer's place back into numbers.
 */
void chart_draw(const chart_t *c, text_t *out)
{
    frame_t f = {.width = c->wide ? 1040 : 336, .height = c->wide ? 340 : 220};

    text_printf(out, "<figure class=\"%s\"><figcaption>", c->wide ? "wide" : "third");
    chart_escape(out, c->title);
    text_append(out, "</figcaption>");
    if (!frame_of_chart(c, &f)) {
        text_append(out, "<p class=\"none\">nothing was measured</p></figure>");
        return;
    }
    text_printf(out,
                "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" data-x0=\"%.17g\" data-x1=\"%.17g\" "
                "data-y0=\"%.17g\" data-y1=\"%.17g\" aria-label=\"",
                f.width, f.height, f.x0, f.x1, f.y0, f.y1);
    chart_escape(out, c->title);
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

/* Flame charts: a tree of frames, laid out from left to right in the order in which they first ran.
 */

/* WIDTH and ROW in units of the view box; LETTER is about the width of a letter, by which it is
 * decided whether a label fits. NONE is 0 as box 0 is nobody's child. */
enum { WIDTH = 1080, ROW = 20, DEPTHS = 5, LABEL = 48, LETTER = 6, NONE = 0 };
static const double least_width = 0.3;

/* Boxes are kept in an array and name each other by index, since the array moves when it grows. */
typedef struct box {
    char label[LABEL];
    uint32_t parent, depth;       /* the first box is the step, and its own parent */
    uint32_t first, last, beside; /* children, and the next of its own parent; NONE */
    uint64_t ns, placed_ns;       /* placed: of its children so far */
    uint64_t at_ns;
    const char *colour; /* of an op's */
} box_t;

/* boxes is owned. Box 0 is the step; the others follow in the order in which they were made. */
typedef struct flame {
    box_t *boxes;
    uint32_t count;
    size_t capacity;
} flame_t;

/* The child of that name, made where there is none. Linear in the number of siblings: a step has
 * some tens of them. */
static lh_status_t flame_child(flame_t *f, uint32_t parent, const char *label, uint32_t *out)
{
    lh_assert(parent < f->count);
    for (uint32_t i = f->boxes[parent].first; i != NONE; i = f->boxes[i].beside)
        if (strcmp(f->boxes[i].label, label) == 0) {
            *out = i;
            return LH_OK;
        }
    box_t *boxes = mem_grow(f->boxes, &f->capacity, f->count + 1u, sizeof(*boxes));
    if (boxes == NULL) return LH_NO_MEMORY;
    f->boxes = boxes;
    const uint32_t made = f->count++;
    boxes[made] = (box_t){.parent = parent, .depth = boxes[parent].depth + 1};
    (void)snprintf(boxes[made].label, LABEL, "%s", label);
    /* Behind the last child, so that siblings stay in the order in which they were first seen. */
    *(boxes[parent].first == NONE ? &boxes[parent].first
                                  : &boxes[boxes[parent].last].beside) = made;
    boxes[parent].last = made;
    *out = made;
    return LH_OK;
}

/* Colours of the page, by what the op's row says of it: products, what else is costly (attention),
 * what waits for other ranks, the rest; p0 and p5 are for boxes that only hold others. Classes of
 * the page's style. */
static const char *frame_colour(const profile_frame_t *frame)
{
    if (frame->waits) return "p3";
    if ((frame->op_flags & LH_OP_PRODUCT) != 0) return "p1";
    return (frame->op_flags & LH_OP_COSTLY) != 0 ? "p2" : "p4";
}

/* A frame's time belongs to its op and to every box above: list, direction, part. The update's
 * program has a list but no parts, so its ops stand right below it. */
static lh_status_t flame_add(flame_t *f, const profile_frame_t *frame)
{
    char part[LABEL];
    const bool update = strcmp(frame->list, frame->part) == 0;
    (void)snprintf(part, sizeof(part), "%s", frame->part);
    if (strcmp(frame->part, "blocks") == 0)
        (void)snprintf(part, sizeof(part), "block %u", (unsigned)frame->block);
    /* From the outside in: the list, its direction, the part, the op. */
    const char *const path[] = {frame->list, frame->backward ? "backward" : "forward", part,
                                frame->op};
    uint32_t at = 0;
    f->boxes[0].ns += frame->ns;
    for (uint32_t i = 0; i < sizeof(path) / sizeof(path[0]); i++) {
        if (update && (i == 1 || i == 2)) continue; /* has neither directions nor parts */
        const lh_status_t status = flame_child(f, at, path[i], &at);
        if (status != LH_OK) return status;
        f->boxes[at].ns += frame->ns;
    }
    f->boxes[at].colour = frame_colour(frame);
    return LH_OK;
}

static const char *box_colour(const box_t *b)
{
    if (b->first != NONE) return b->depth == 0 ? "p5" : "p0";
    return b->colour == NULL ? "p4" : b->colour;
}

/* The title is what a pointer shows; the label only where there is room for it. Too narrow a box
 * would be a line of its border and nothing else. */
static void flame_draw_box(const flame_t *f, const box_t *b, text_t *out)
{
    lh_assert(b->depth < DEPTHS);
    const double all = (double)f->boxes[0].ns;
    const double x = (double)b->at_ns / all * WIDTH, width = (double)b->ns / all * WIDTH;
    const double y = (double)(b->depth * ROW);
    if (width < least_width) return;
    text_printf(out,
                "<g><rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"/><title>",
                box_colour(b), x, y, width, ROW - 1);
    if (b->parent != 0) {
        chart_escape(out, f->boxes[b->parent].label);
        text_append(out, ", ");
    }
    chart_escape(out, b->label);
    text_printf(out, ": %.3f ms, %.1f %%</title>", (double)b->ns * 1e-6, 100 * (double)b->ns / all);
    if (width > (double)(LETTER * (strlen(b->label) + 1))) {
        text_printf(out, "<text x=\"%.2f\" y=\"%.0f\">", x + LETTER / 2, y + ROW * 0.7);
        chart_escape(out, b->label);
        text_append(out, "</text>");
    }
    text_append(out, "</g>");
}

/* One walk over the array places all: a child begins where its siblings before it end, inside its
 * parent. */
static void flame_draw_boxes(flame_t *f, text_t *out)
{
    text_printf(out, "<svg class=\"flame\" viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH,
                ROW * DEPTHS);
    for (uint32_t i = 0; i < f->count; i++) { /* parents come before their children */
        box_t *b = &f->boxes[i], *parent = &f->boxes[b->parent];
        lh_assert(b->parent < i || i == 0);
        if (i > 0) {
            b->at_ns = parent->at_ns + parent->placed_ns;
            parent->placed_ns += b->ns;
        }
        flame_draw_box(f, b, out);
    }
    text_append(out, "</svg>");
}

/* Box 0 is the step and is there before anything is added. */
lh_status_t chart_draw_flame(const profile_frame_t *frames, uint32_t count, text_t *out)
{
    flame_t f = {.count = 1};
    f.boxes = mem_grow(NULL, &f.capacity, 1, sizeof(*f.boxes));
    if (f.boxes == NULL) return LH_NO_MEMORY;
    f.boxes[0] = (box_t){.label = "step"};
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = flame_add(&f, &frames[i]);
    if (status == LH_OK && f.boxes[0].ns > 0) flame_draw_boxes(&f, out);
    mem_free(f.boxes);
    return status;
}
