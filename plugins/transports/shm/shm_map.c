/* shm_map.c - registered memory, and a peer's as this process maps it: its descriptor travels over
 * the connection's socket, then the peer's arena can be read (and written, where it allows that) in
 * place.
 *
 * Two ways that must meet: the host carries a small text (offer_t) from rank to rank, and the
 * descriptor comes by the connection's own socket. take() waits for both and compares them. Which
 * of a peer's regions are mapped here is told to it by a bit in shared memory: from then on it may
 * send direct records. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm_packet.h"

typedef struct offer { /* what the host carries: it names the descriptor that comes by socket */
    uint64_t bytes;
    uint32_t id;
    uint32_t access;
} offer_t;

static const uint64_t page_bytes = 4096;

/* A region that could shrink under the peer would kill it at its next access, so it is sealed. */
static lh_status_t region_seal(const lh_host_t *host, int fd)
{
    const int have = fcntl(fd, F_GET_SEALS);
    if (have >= 0 && (have & F_SEAL_SHRINK) != 0) return LH_OK;
    if (have >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) return LH_OK;
    return host->fail(host, LH_INVALID,
                      "the descriptor behind registered memory is no memfd that can be sealed "
                      "against shrinking");
}

/* Nothing is mapped or pinned: it is this process's own memory. A region without a descriptor can
 * be sent from, by copies, and not offered. */
lh_status_t shm_register(lh_transport_t *t, uint32_t nic, const lh_arena_t *memory,
                         lh_region_t **out)
{
    const lh_host_t *host = t->host;
    if (nic != 0) return host->fail(host, LH_INVALID, "there is one card, not %u", nic);
    if (memory->kind != LH_MEM_HOST)
        return host->fail(host, LH_UNSUPPORTED, "memory of kind %u, only the host's is taken",
                          memory->kind);
    const lh_status_t status = memory->fd >= 0 ? region_seal(host, memory->fd) : LH_OK;
    if (status != LH_OK) return status;
    lh_region_t *r = host->alloc(host, sizeof(*r), 64);
    if (r == NULL) return LH_NO_MEMORY;
    r->arena = *memory;
    r->id = memory->fd >= 0 && t->next_region < SHM_REGIONS ? t->next_region++ : SHM_REGIONS;
    r->next = t->regions;
    t->regions = r;
    *out = r;
    return LH_OK;
}

/* The peer's mapping of it stays as long as the connection. */
void shm_release(lh_transport_t *t, lh_region_t *r)
{
    lh_region_t **at = &t->regions;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    t->host->release(t->host, r);
}

/* Unmaps it; nobody may look at it any more. */
void shm_remote_free(lh_remote_t *m)
{
    const lh_host_t *host = m->transport->host;
    lh_remote_t **at = &m->transport->remotes;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (m->map != NULL) (void)munmap(m->map, m->map_bytes);
    if (m->fd >= 0) (void)close(m->fd);
    host->release(host, m);
}

/* Sealed, and as long as it is said to be: else an access could be a SIGBUS. */
static bool is_whole(int fd, uint64_t bytes, uint64_t fd_offset)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    const off_t size = lseek(fd, 0, SEEK_END);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && size >= 0 && bytes <= (uint64_t)size &&
           fd_offset <= (uint64_t)size - bytes;
}

/* An offer has come over the socket; it is mapped when the host takes it. */
lh_status_t shm_remote_new(lh_conn_t *c, uint32_t id, uint64_t bytes, uint64_t fd_offset,
                           uint32_t access, int fd)
{
    const lh_host_t *host = c->transport->host;
    const bool sound = fd >= 0 && bytes > 0 && id < SHM_REGIONS && c->mapped[id] == NULL &&
                       is_whole(fd, bytes, fd_offset);
    lh_remote_t *m = sound ? host->alloc(host, sizeof(*m), 64) : NULL;
    if (m == NULL) {
        if (fd >= 0) (void)close(fd);
        return LH_CORRUPT;
    }
    *m = (lh_remote_t){.transport = c->transport,
                       .next = c->transport->remotes,
                       .conn = c,
                       .id = id,
                       .access = access,
                       .fd = fd,
                       .bytes = bytes,
                       .fd_offset = fd_offset};
    c->transport->remotes = m;
    c->mapped[id] = m;
    return LH_OK;
}

/* Regions that the host still holds outlive the connection, until it forgets them. */
void shm_remotes_close(lh_conn_t *c)
{
    for (uint32_t i = 0; i < SHM_REGIONS; i++) {
        lh_remote_t *m = c->mapped[i];
        c->mapped[i] = NULL;
        if (m == NULL) continue;
        m->conn = NULL;
        if (!m->taken || m->forgotten) shm_remote_free(m);
    }
}

/* LH_AGAIN as long as the connection is not open, or its socket is full. */
static lh_status_t region_offer(lh_conn_t *c, lh_region_t *region, lh_address_t *out)
{
    const lh_host_t *host = c->transport->host;
    const lh_arena_t *a = &region->arena;
    if (c->state != SHM_OPEN)
        return c->state < SHM_OPEN ? LH_AGAIN
                                   : host->fail(host, c->why, "rank %u: %s", c->peer, c->reason);
    if (region->id >= SHM_REGIONS)
        return host->fail(host, LH_UNSUPPORTED,
                          "memory without a memfd, or more than %d arenas, can't be offered",
                          SHM_REGIONS);
    if ((a->access & (LH_REMOTE_READ | LH_REMOTE_WRITE)) == 0)
        return host->fail(host, LH_DENIED, "this memory was not registered for others");
    shm_packet_t packet = shm_packet(SHM_OFFERED);
    packet.id = region->id;
    packet.bytes = a->bytes;
    packet.fd_offset = a->fd_offset;
    packet.access = a->access;
    const lh_status_t status = shm_packet_send(c->socket, &packet, a->fd);
    if (status == LH_AGAIN) return status;
    if (status != LH_OK)
        return host->fail(host, status, "rank %u closed its end, or its process ended", c->peer);
    const offer_t text = {.bytes = a->bytes, .id = region->id, .access = a->access};
    out->length = sizeof(text);
    memcpy(out->bytes, &text, sizeof(text));
    return LH_OK;
}

/* A mapping begins at a page: what lies before the region in its file is mapped as well, and not
 * looked at. */
static lh_status_t map_remote(lh_remote_t *m)
{
    const uint64_t past = m->fd_offset % page_bytes;
    const int access = PROT_READ | ((m->access & LH_REMOTE_WRITE) != 0 ? PROT_WRITE : 0);
    void *map = mmap(NULL, m->bytes + past, access, MAP_SHARED, m->fd,
                     (off_t)(m->fd_offset - past));
    if (map == MAP_FAILED)
        return m->transport->host->fail(m->transport->host, LH_IO,
                                        "mmap of %llu bytes of a peer's memory",
                                        (unsigned long long)m->bytes);
    m->map = map;
    m->map_bytes = m->bytes + past;
    m->base = m->map + past;
    /* Without huge pages for shared memory this fails, and nothing is lost but speed. */
    (void)madvise(map, m->map_bytes, MADV_HUGEPAGE);
    (void)close(m->fd);
    m->fd = -1;
    return LH_OK;
}

/* Each offer is taken once. The bit that is set last is what lets the peer send directly. */
static lh_status_t offer_take(lh_conn_t *c, const lh_address_t *address, lh_remote_t **out)
{
    offer_t text;
    const lh_host_t *host = c->transport->host;
    if (address->length != sizeof(text))
        return host->fail(host, LH_INVALID, "an offer of %u bytes, expected %zu", address->length,
                          sizeof(text));
    memcpy(&text, address->bytes, sizeof(text));
    if (text.id >= SHM_REGIONS)
        return host->fail(host, LH_INVALID, "an offer of region %u, expected less than %d", text.id,
                          SHM_REGIONS);
    /* The host's text may be faster than the descriptor. */
    if (c->mapped[text.id] == NULL && c->state < SHM_BROKEN) shm_conn_read(c);
    lh_remote_t *m = c->mapped[text.id];
    if (m == NULL) {
        if (c->state >= SHM_BROKEN || c->ended)
            return host->fail(host, LH_PEER_LOST, "rank %u ended before its offer came", c->peer);
        return LH_AGAIN;
    }
    if (m->bytes != text.bytes || m->access != text.access || m->taken)
        return host->fail(host, LH_INVALID,
                          "an offer of region %u with %llu bytes; the connection brought %llu",
                          text.id, (unsigned long long)text.bytes, (unsigned long long)m->bytes);
    const lh_status_t status = map_remote(m);
    if (status != LH_OK) return status;
    m->taken = true;
    atomic_fetch_or(&c->shared->sides[c->side].taken[m->id / SHM_WORD],
                    (uint64_t)1 << m->id % SHM_WORD);
    *out = m;
    return LH_OK;
}

/* The mapping stays while the connection lives: the peer may have sent messages that lie there. */
static void remote_forget(lh_remote_t *remote)
{
    remote->forgotten = true;
    if (remote->conn == NULL) shm_remote_free(remote);
}

/* longhaul/draft/onesided.h: a copy by the sender into the peer's mapped memory. */
static lh_status_t remote_put(lh_conn_t *c, lh_region_t *region, const void *data,
                              lh_remote_t *remote, uint64_t offset, uint64_t bytes, uint32_t tag,
                              uint64_t cookie)
{
    const lh_host_t *host = c->transport->host;
    if ((remote->access & LH_REMOTE_WRITE) == 0)
        return host->fail(host, LH_DENIED, "rank %u offered this memory for reading only", c->peer);
    if (bytes > remote->bytes || offset > remote->bytes - bytes)
        return host->fail(host, LH_INVALID, "a put of %llu bytes at %llu into %llu bytes",
                          (unsigned long long)bytes, (unsigned long long)offset,
                          (unsigned long long)remote->bytes);
    return shm_post_put(c, &(shm_operation_t){.data = (char *)(uintptr_t)data,
                                              .bytes = bytes,
                                              .cookie = cookie,
                                              .region = region,
                                              .remote = remote,
                                              .offset = offset,
                                              .tag = tag,
                                              .kind = SHM_PUT});
}

static lh_status_t remote_map(lh_remote_t *remote, const void **out)
{
    *out = remote->base;
    return LH_OK;
}

const lh_mapping_api_t shm_mapping = {
    .struct_size = sizeof(shm_mapping),
    .offer = region_offer,
    .take = offer_take,
    .forget = remote_forget,
    .map = remote_map,
};

const lh_one_sided_api_t shm_one_sided = {.struct_size = sizeof(shm_one_sided), .put = remote_put};
