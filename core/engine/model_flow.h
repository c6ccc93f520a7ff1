/* engine/model_flow.h - writes the flows of training, scoring and generation. */
#ifndef ENGINE_MODEL_FLOW_H
#define ENGINE_MODEL_FLOW_H

#include <engine/program.h>

/* Fills p->flow as p->how says, with a round of the schedule; NULL: one micro-batch, there and back
 * where it trains. */
lh_status_t model_flow_write(program_t *p, const schedule_t *schedule) LH_MUST_CHECK;

#endif
