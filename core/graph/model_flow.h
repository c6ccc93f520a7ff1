/* graph/model_flow.h - writes the flows of training, scoring and generation. */
#ifndef GRAPH_MODEL_FLOW_H
#define GRAPH_MODEL_FLOW_H

#include <graph/program.h>

/* Fills p->flow as p->how says. */
lh_status_t model_flow_write(program_t *p) LH_MUST_CHECK;

#endif
