/* comm/host_world.h - the world and the job's key as plugins see them, through the host. */
#ifndef COMM_HOST_WORLD_H
#define COMM_HOST_WORLD_H

#include <comm/secret.h>
#include <comm/world.h>
#include <plugin/host.h>

typedef struct published published_t;

/* From here on host->world, rank_info and derive_key speak of this world; it and the secret (NULL:
 * none) must outlive what is returned. */
lh_status_t world_publish(host_t *host, const world_t *world, const secret_t *secret,
                          published_t **out) LH_MUST_CHECK;
/* The process is alone again; NULL does nothing. */
void world_unpublish(host_t *host, published_t *p);

#endif
