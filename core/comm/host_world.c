/* host_world.c - rows of the border made from a world. */
#include <comm/host_world.h>

#include <stdio.h>
#include <string.h>

#include <base/memory.h>

struct published {
    const world_t *world;
    const secret_t *secret;
    lh_rank_info_t *ranks;
};

static lh_status_t derive(const void *context, const char *purpose, uint32_t peer, void *out,
                          size_t bytes)
{
    const published_t *p = context;
    const lh_world_t *w = &p->world->row;
    char own[96];
    if ((size_t)snprintf(own, sizeof(own), "plugin %s", purpose) >= sizeof(own))
        return fail(LH_INVALID, "a key's purpose is at most 88 bytes: '%s'", purpose);
    return secret_derive(p->secret, own, w->epoch, w->rank, peer, out, bytes);
}

lh_status_t world_publish(host_t *host, const world_t *world, const secret_t *secret,
                          published_t **out)
{
    published_t *p = mem_new(sizeof(*p));
    lh_rank_info_t *ranks = p == NULL ? NULL : mem_array(world->row.size, sizeof(*ranks));
    if (ranks == NULL) {
        mem_free(p);
        return LH_NO_MEMORY;
    }
    for (uint32_t r = 0; r < world->row.size; r++) {
        const world_rank_t *from = &world->ranks[r];
        ranks[r] = (lh_rank_info_t){.struct_size = sizeof(ranks[r]),
                                    .rank = r,
                                    .node = from->node,
                                    .site = from->site,
                                    .local_rank = from->local_rank,
                                    .device = from->local_rank};
        memcpy(ranks[r].host_name, from->host, sizeof(from->host));
    }
    *p = (published_t){world, secret, ranks};
    host_set_world(host, &(host_world_t){.row = world->row,
                                         .ranks = ranks,
                                         .derive = secret != NULL ? derive : NULL,
                                         .context = p});
    *out = p;
    return LH_OK;
}

void world_unpublish(host_t *host, published_t *p)
{
    if (p == NULL) return;
    host_set_world(host, NULL);
    mem_free(p->ranks);
    mem_free(p);
}
