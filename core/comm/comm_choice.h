/* comm/comm_choice.h - which algorithm and which chunk a plan gets. */
#ifndef COMM_COMM_CHOICE_H
#define COMM_COMM_CHOICE_H

#include <comm/comm_state.h>

typedef struct link_figures {
    uint64_t round_trip_ns, bytes_per_second;
} link_figures_t;

typedef struct comm_facts {       /* of all ranks, the same everywhere */
    uint32_t maps[COMM_SERVICES]; /* bit per arena: its peers on the node can map it */
    link_figures_t figures[COMM_SCOPES];
} comm_facts_t;

/* all: [ranks]. The same on all ranks. */
void comm_choose(const collective_t *x, const comm_facts_t *all, script_how_t *out);
uint32_t comm_widest_scope(const world_t *w, const group_t *g);

#endif
