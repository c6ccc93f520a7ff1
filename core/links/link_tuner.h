/* links/link_tuner.h - while a job trains: when a link between two sites is another than the one that its
 * connections were tuned for. Rules on figures alone, as those of link_probe.h; links_agree.c gathers the
 * figures and has the plugin make parameters of them.
 *
 * Ranks tell each other what they see at the end of each step, and all draw the same conclusion from the
 * same table, so that both ends of a connection are tuned anew before the same step. */
#ifndef LINKS_LINK_TUNER_H
#define LINKS_LINK_TUNER_H

#include <links/link_probe.h>

/* What a rank tells all others of its links to one site, of the last step that its transport has told of. It
 * travels as it lies in memory. */
typedef struct link_told {
    uint64_t sent;          /* bytes that it had to send there so far                  */
    uint64_t round_trip_ns; /* the least; 0: too little was sent, or links were slow   */
    double kept;            /* the least part of its pace that a link has; 0: none has */
    double loss;            /* of a million packets, the most; < 0: not so many so far */
    uint32_t slow;          /* 1: a link did not keep its pace, and what waits may be a queue */
    uint32_t reserved;
} link_told_t;

/* What all ranks of a site have told of their links to another, the last time that they told. So rank 0 knows
 * of links that it has no part in. */
typedef struct link_border {
    uint32_t from, to;      /* sites                                               */
    uint64_t sent;          /* bytes that its ranks had to send there so far       */
    uint64_t round_trip_ns; /* the least; 0: nobody knows it                       */
    double loss;            /* of a million packets, the most; < 0: nobody knows it */
} link_border_t;

/* Figures of a link between two sites. Index 0 is the direction from the lower site to the higher, 1 the
 * way back. kept: of its rate as it was when connections were opened. */
typedef struct tuner_figures {
    uint64_t round_trip_ns; /* 0: no news    */
    double kept[2];         /* <= 0: no news */
    double loss[2];         /* < 0: no news */
} tuner_figures_t;

/* What is in force, and what speaks against it. */
typedef struct link_tuner {
    tuner_figures_t now;
    uint64_t off_ns;   /* least round trip of the steps that `off` counts           */
    uint32_t off;      /* steps in turn whose round trip was off, all the same way  */
    bool longer;       /* which way                                                 */
    uint32_t less[2];  /* steps in turn after which less was lost                   */
    uint32_t patience; /* steps in turn that make a way shorter or less lossy again */
    uint32_t calm;     /* steps since a change in which nothing spoke for another   */
} link_tuner_t;

/* Why connections are tuned anew, or paces have been: bits. */
enum { TUNED_RATE = 1u << 0, TUNED_TRIP = 1u << 1, TUNED_LOSS = 1u << 2 };

/* With the figures by which connections are opened. */
void link_tuner_begin(link_tuner_t *t, const probe_figures_t *opened);
/* After a step of which all ranks of both sites have told `seen`: what is other from now on (TUNED_*), and
 * is in t->now; 0: nothing. */
uint32_t link_tuner_step(link_tuner_t *t, const tuner_figures_t *seen);

/* A link between two sites that was tuned anew, for who watches. */
typedef struct link_change {
    char site[2][WORLD_SITE_NAME];
    uint64_t step;    /* from which on */
    uint64_t rate[2]; /* bytes a second for all ranks, by direction, of which `kept` are parts */
    tuner_figures_t before, now;
    uint32_t why, reserved;  /* TUNED_* */
    char tuned[PROBE_TUNED]; /* the plugin's sentence on the slower direction; "": none */
} link_change_t;

/* "tokyo-osaka: 0.388 Gb/s there instead of 0.776 from step 24 on; window ..." */
void link_tuner_text(const link_change_t *c, char *out, size_t room);
/* What of a connection's parameters is other: "window 1.2 MB instead of 2.4, ..."; "": nothing. */
void link_tuner_changes(const lh_tuning_t *before, const lh_tuning_t *after, char *out,
                        size_t room);

#endif
