/* watch/chart.h - line charts as inline SVG, drawn without scripts; a page's script may add a
 * cursor.
 *
 * A chart is a struct that a caller fills and that is drawn at once: nothing is kept, and all
 * numbers remain the caller's. Text is appended to a page; text_t remembers a lack of memory, so
 * only the flame chart, which allocates for itself, returns a status. */
#ifndef WATCH_CHART_H
#define WATCH_CHART_H

#include <base/text.h>
#include <engine/engine.h>

/* x need not be in order for dots; a line is drawn in the order that it has. */
typedef struct chart_series {
    const char *name;
    const char *style;   /* CSS class: "faint", "line", "dots" */
    const double *x, *y; /* [count]; points that are not finite are left out */
    size_t count;
} chart_series_t;

/* y_name is not drawn: the title says it on the page. */
typedef struct chart {
    const char *title, *x_name, *y_name;
    const chart_series_t *series;
    uint32_t series_count;
    bool from_zero; /* the y axis begins at 0 */
    bool wide;      /* takes the page's width; otherwise a third of it */
} chart_t;

/* Long series are thinned to the smallest and largest value per column of pixels. A chart of no
 * points says that nothing was measured. */
void chart_draw(const chart_t *chart, text_t *out);

/* Text safe inside HTML elements and attributes; control characters become spaces. */
void chart_escape(text_t *out, const char *text);

/* The time of one step as a flame chart: a box for the step, below it its lists of calls, their
 * directions, the parts and blocks of the model, and the ops, each as wide as its time. An inline
 * SVG without scripts; nothing for no frames. Boxes too narrow to be seen are left out,
 * their time stays in the boxes above them. Frames of one name under the same parents are added up,
 * whatever their order. */
lh_status_t chart_draw_flame(const profile_frame_t *frames, uint32_t count,
                             text_t *out) LH_MUST_CHECK;

#endif
