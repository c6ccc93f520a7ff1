/* plan/link_wait.h - what a step waits for other sites, by what was measured of the links (docs/links.md,
 * "How long a step waits").
 *
 * Sums of gradients can hide behind the backward pass, new values behind the next forward pass; what
 * is complete last, and what is needed first, can't. */
#ifndef PLAN_LINK_WAIT_H
#define PLAN_LINK_WAIT_H

#include <links/link_probe.h>
#include <plan/step_plan.h>

typedef struct link_wait_how {
    uint32_t sites;
    const double *crosses; /* [CROSSINGS][sites][sites] bytes of a step, from a site to another */
    const probe_pair_t *pairs; /* as links_pair counts them */
    uint32_t pair_count;
    uint64_t rate;              /* the INI's, bytes a second; 0: as measured */
    double edge[CROSSINGS];     /* the share that nothing hides             */
    double window_s[CROSSINGS]; /* in which the rest can hide               */
    double trips[CROSSINGS];    /* one after the other, by the way of the sums; half: one way */
} link_wait_how_t;

typedef struct link_wait {
    double moved_s[CROSSINGS]; /* what the busiest direction of a border takes, alone */
    double wait_s[CROSSINGS];  /* of a step */
} link_wait_t;

/* The share of what crosses borders that `last` bytes of it are; to[sites]: bytes that a rank sends
 * to each site. Those to its own, `site`, cross none. 0: nothing crosses. */
double link_wait_edge(const double *to, uint32_t sites, uint32_t site, double last);
/* False: a border that carries something was not measured. */
bool link_wait(const link_wait_how_t *how, link_wait_t *out);

#endif
