/* graph/draw.h - a recording as a picture, by way of Graphviz.
 *
 * For reading what a model records and what passes make of it: `longhaul plan` draws a block on
 * request. Nothing of a run depends on it. */
#ifndef GRAPH_DRAW_H
#define GRAPH_DRAW_H

#include <base/text.h>
#include <graph/recording.h>

/* What a picture shows. */
typedef struct draw_how {
    const char *title; /* "llama: block"                   */
    bool backward;     /* the reverse pass too, if recorded */
} draw_how_t;

/* Appends the recording in Graphviz' dot language: parameters as boxes, ops with their attributes,
 * shapes on the edges. Check text_status(out) at the end. */
void draw_dot(const recording_t *r, const draw_how_t *how, text_t *out);

/* Draws dot text to an SVG file with Graphviz' `dot`, and waits for it. LH_UNSUPPORTED where that
 * is not installed. While dot runs, the text lies in `path`.dot. */
lh_status_t draw_svg(const char *dot, const char *path) LH_MUST_CHECK;

#endif
