/* comm/between.h - which way an all-reduce takes between sites: predicted from the links that were
 * measured. A function of numbers alone. */
#ifndef COMM_BETWEEN_H
#define COMM_BETWEEN_H

#include <comm/coll.h>

/* From one site to another; 0: not known. */
typedef struct between_link {
    double bytes_per_second, round_trip_s;
} between_link_t;

/* Of one all-reduce. links: [sites * sites], from a to b at a * sites + b. share: [sites] of the
 * elements that a site's members own, together 1. */
typedef struct between_how {
    uint32_t sites;
    const between_link_t *links;
    const double *share;
    /* Of what a site adds, of a sum of some sites (F32), and of the result. */
    double part_bytes, partial_bytes, result_bytes;
    uint32_t asked; /* BETWEEN_*; AUTO: the fastest */
} between_how_t;

/* How long a way takes, in seconds; middle: of a CHAIN. */
double between_seconds(const between_how_t *how, uint32_t way, uint32_t middle);
/* BETWEEN_*, not AUTO; *middle is 0 but for a CHAIN. Where some link is not known, two sites
 * exchange, more mesh, and the middle of a chain is the middle of the list. A chain of two sites, or
 * a ring of them, is a mesh. */
uint32_t between_choose(const between_how_t *how, uint32_t *middle);

#endif
