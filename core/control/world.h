/* control/world.h - who takes part: every rank's place, and the groups of ranks that the
 * collectives run over.
 *
 * Ranks are numbered in the order of the INI's sites and hosts. A node is (site, host), so that one
 * machine can play two sites. */
#ifndef CONTROL_WORLD_H
#define CONTROL_WORLD_H

#include <longhaul/link.h>
#include <longhaul/train.h>

#include <base/text.h>
#include <config/job.h>
#include <control/secret.h>
#include <plugin/host.h>

enum { WORLD_SITE_NAME = 32, WORLD_HOST_NAME = 64 };

/* The place of a rank, as all ranks know it. */
typedef struct world_rank {
    uint32_t site, node; /* indices from 0, in the order in which ranks name them first */
    uint32_t local_rank; /* among the ranks of its node                       */
    uint32_t place;      /* among the ranks of its site                       */
    uint32_t pid;        /* for messages                                      */
    char host[WORLD_HOST_NAME];
    char site_name[WORLD_SITE_NAME];
} world_rank_t;

typedef struct world {
    lh_world_t row;      /* rank, size, nodes, sites, epoch, job; plugins see this */
    world_rank_t *ranks; /* [row.size] */
    /* Ranks site by site, in each in their order; and where each site begins there, [sites + 1]. */
    uint32_t *by_site, *site_begin;
    bool inside_nodes; /* [parallel] inside = node: LH_GROUP_SITE is a node's ranks, and ACROSS
                            goes over nodes */
} world_t;

/* `size` ranks of one site and one node without names; fill ranks[] and world_number them. */
lh_status_t world_new(uint32_t rank, uint32_t size, world_t **out) LH_MUST_CHECK;
/* Numbers nodes and sites from the names in ranks[], and counts them. */
void world_number(world_t *w);
/* The world that a job's [launch] and [site.*] ask for, as a rank of it would see it, without any
 * rank running. */
lh_status_t world_plan(const job_t *job, uint32_t rank, world_t **out) LH_MUST_CHECK;
void world_free(world_t *w);

/* How many ranks a site has, and which is the place-th of them: 0 is its lowest. */
uint32_t world_site_size(const world_t *w, uint32_t site);
uint32_t world_site_rank(const world_t *w, uint32_t site, uint32_t place);
/* Borrowed from the world. */
const char *world_site_name(const world_t *w, uint32_t site);

/* LH_LINK_NODE, LH_LINK_SITE or LH_LINK_WAN: the nearest that both share. */
uint32_t world_scope(const world_t *w, uint32_t a, uint32_t b);
/* "rank 3 on osaka/o1" into text. */
void world_rank_text(const world_t *w, uint32_t rank, char *text, size_t bytes);
/* "rank 3 on osaka/o1, ranks 8 to 15 on osaka/o2" for those that are marked in among[size]; after
 * WORLD_SHOWN such runs "and 40 more". */
enum { WORLD_SHOWN = 8 };
void world_ranks_text(const world_t *w, const bool *among, text_t *out);

/* What LH_GROUP_SITE is the ranks of: the rank's site, or its node; how many there are; and how many
 * ranks one has. */
uint32_t world_block(const world_t *w, uint32_t rank);
uint32_t world_blocks(const world_t *w);
uint32_t world_block_size(const world_t *w, uint32_t block);
/* Whether all of them have equally many ranks. */
bool world_blocks_equal(const world_t *w);

/* Ranks that act together, as this rank sees them: sites one after the other, and inside a site in
 * the order of ranks. */
typedef struct group {
    uint32_t size, self;  /* members; this rank's index among them      */
    uint32_t *ranks;      /* [size] world ranks                         */
    uint32_t sites;       /* how many sites have members                */
    uint32_t *site_begin; /* [sites + 1] indices of members             */
    uint32_t *site_of;    /* [size] index of the member's site          */
} group_t;

/* LH_GROUP_SELF, _DATA, _SITE or _ACROSS. ACROSS is refused where sites (or nodes) differ in size. */
lh_status_t world_group_new(const world_t *w, uint32_t which, group_t **out) LH_MUST_CHECK;
void world_group_free(group_t *g);
/* Who stands for `owner` (a member) in a site: itself in its own; elsewhere the member whose place
 * in its site is the owner's place modulo the site's size. */
uint32_t world_group_leader(const group_t *g, uint32_t site, uint32_t owner);
uint32_t world_group_site_size(const group_t *g, uint32_t site); /* its members of the group */
uint32_t world_group_largest_site(const group_t *g);             /* members of it */

/* The world and the job's key as plugins see them, through the host. */
typedef struct published published_t;

/* From here on host->world, rank_info and derive_key speak of this world, and processors are counted as
 * one of the ranks of this machine (base/processors.h); it and the secret (NULL: none) must outlive what
 * is returned. */
lh_status_t world_publish(host_t *host, const world_t *world, const secret_t *secret,
                          published_t **out) LH_MUST_CHECK;
/* The process is alone again; NULL does nothing. */
void world_unpublish(host_t *host, published_t *p);

#endif
