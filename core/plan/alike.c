/* alike.c - the facts of a rank that its programs follow from. */
#include <plan/alike.h>

#include <string.h>

#include <session/step_layout.h>

alike_t alike_of(const job_t *job, const world_t *world, uint32_t rank)
{
    const step_layout_t layout = step_layout(job, rank, world->row.size, 0);
    const uint32_t block = world_block(world, rank);
    alike_t facts;
    memset(&facts, 0, sizeof(facts)); /* compared as bytes */
    facts.rows = layout.share.rows;
    facts.micro_batches = layout.share.micro_batches;
    facts.ways[LH_GROUP_SELF] = 1;
    facts.ways[LH_GROUP_DATA] = world->row.size;
    facts.ways[LH_GROUP_SITE] = world_block_size(world, block);
    facts.ways[LH_GROUP_ACROSS] = world_blocks(world);
    facts.site_ranks = world_site_size(world, world->ranks[rank].site);
    return facts;
}

bool alike_same(const alike_t *a, const alike_t *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}
