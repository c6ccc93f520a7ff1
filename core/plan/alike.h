/* plan/alike.h - which ranks of a large job have programs and transfers that are alike, so that one
 * stands for the others. */
#ifndef PLAN_ALIKE_H
#define PLAN_ALIKE_H

#include <control/world.h>

/* What the programs and the list of transfers of a rank follow from. Its programs follow from the job, which
 * all share, and its layout (step_layout.h); its transfers from those, from the optimizer's tables, which are
 * the same on all ranks (optimizer_tables.h), and from how many ranks each of its groups has. Which place
 * it has in them says what part of the elements it holds, and so the size of what sites sum again, but
 * neither which transfers there are nor their order. How many ranks its site has, and how many the others,
 * says for how many owners it stands. */
typedef struct alike {
    uint64_t rows, micro_batches;
    uint32_t ways[LH_GROUPS], site_ranks;
} alike_t;

/* world: as any of the job's ranks sees it. */
alike_t alike_of(const job_t *job, const world_t *world, uint32_t rank);
bool alike_same(const alike_t *a, const alike_t *b);

#endif
