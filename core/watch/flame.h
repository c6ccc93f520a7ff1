/* watch/flame.h - the time of one step as a flame chart: a box for the step, below it its passes,
 * their directions, the parts and blocks of the model, and the ops, each as wide as its time. */
#ifndef WATCH_FLAME_H
#define WATCH_FLAME_H

#include <base/text.h>
#include <graph/engine.h>

/* An inline SVG without scripts; nothing for no frames. Boxes too narrow to be seen are left out,
 * their time stays in the boxes above them. */
lh_status_t flame_draw(const profile_frame_t *frames, uint32_t count, text_t *out) LH_MUST_CHECK;

#endif
