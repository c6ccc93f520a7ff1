/* shm_socket.c - what comes over an open connection's socket: admission, descriptors, the reason of
 * an end, the end itself. It is read seldom: messages do not go over it. */
#include <poll.h>
#include <unistd.h>

#include "shm_packet.h"

/* The end that dialled may be told only once; posting was allowed before. */
static void on_admitted(lh_conn_t *c)
{
    if (c->state != SHM_DIALING) return;
    c->transport->dialing--;
    c->state = SHM_OPEN;
}

/* The text came from another process: it is cut, and only its printable part is shown. */
static void on_goodbye(lh_conn_t *c, shm_packet_t *packet)
{
    const lh_status_t why = packet->status < LH_OK ? packet->status : LH_PEER_LOST;
    packet->text[sizeof(packet->text) - 1] = '\0';
    for (char *p = packet->text; *p != '\0'; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    c->ended = true;
    shm_break(c, why, "%s (said by rank %u)", packet->text, c->peer);
}

/* Takes over fd. An OFFERED region is kept until the host takes it (shm_map.c). */
static void on_packet(lh_conn_t *c, shm_packet_t *packet, int fd)
{
    switch (packet->kind) {
    case 0: return; /* a wake-up */
    case SHM_ADMITTED: on_admitted(c); break;
    case SHM_GOODBYE: on_goodbye(c, packet); break;
    case SHM_OFFERED:
        if (shm_remote_new(c, packet->id, packet->bytes, packet->fd_offset, packet->access, fd) !=
            LH_OK)
            shm_break(c, LH_CORRUPT, "rank %u offers a region that can't be taken: %s", c->peer,
                      fd < 0 ? "its descriptor did not arrive; is the limit of open files too low?"
                             : "its descriptor, length or number is wrong");
        return;
    default: shm_break(c, LH_CORRUPT, "rank %u sent a packet of kind %u", c->peer, packet->kind);
    }
    if (fd >= 0) (void)close(fd);
}

/* A pidfd is readable once the process has ended. */
static bool peer_process_gone(const lh_conn_t *c)
{
    struct pollfd p = {.fd = c->watch, .events = POLLIN};
    return c->watch >= 0 && poll(&p, 1, 0) > 0;
}

/* All packets that are there, then whether the peer is. What it wrote into the ring before it ended
 * is still read: `ended` does not break the connection by itself. */
void shm_conn_read(lh_conn_t *c)
{
    /* Asked first: what a process wrote before it ended is there when its end is seen. */
    const bool gone = peer_process_gone(c);
    while (c->socket >= 0 && c->state < SHM_BROKEN && c->state != SHM_MET) {
        int fd = -1;
        shm_packet_t packet;
        const lh_status_t status = shm_packet_receive(c->socket, &packet, &fd);
        if (status == LH_AGAIN) break;
        if (status == LH_OK) {
            on_packet(c, &packet, fd);
            continue;
        }
        /* Anything else than a packet of ours: whoever writes there is no rank of this version. */
        if (status == LH_CORRUPT)
            shm_break(c, LH_CORRUPT, "rank %u sent what is no packet of ours", c->peer);
        else
            c->ended = true;
        return;
    }
    if (gone) c->ended = true;
}

/* Wakes the peer if it sleeps. Both sides write first and look then (shm_arm), with a full fence in
 * between, so that one of them sees the other: no wake-up is lost, and a peer that spins costs no
 * system call. */
void shm_wake(lh_conn_t *c)
{
    if (!c->published) return;
    c->published = false;
    shm_fence(memory_order_seq_cst);
    _Atomic uint32_t *asleep = &c->shared->sides[1 - c->side].asleep;
    if (atomic_load_explicit(asleep, memory_order_relaxed) == 0) return;
    if (atomic_exchange(asleep, 0) != 0 && c->socket >= 0) shm_packet_wake(c->socket);
}
