/* shm_packet.h - what travels over the socket beside the rings: a greeting, descriptors, a reason
 * at the end, and wake-ups. Packets keep their borders (SOCK_SEQPACKET); all have one size but the
 * wake-up, which is one byte. */
#ifndef SHM_PACKET_H
#define SHM_PACKET_H

#include "shm.h"

/* "lshm"; both ends must be of one version, as both are of one installation. */
enum { SHM_MAGIC = 0x6d68736c, SHM_PACKET_VERSION = 1 };

/* From who dials, with the memory of the rings; its answer; a region of the sender's, with its
 * memfd; the reason of an end. */
enum { SHM_HELLO = 1, SHM_ADMITTED = 2, SHM_OFFERED = 3, SHM_GOODBYE = 4 };

typedef struct shm_packet {
    uint32_t magic, version, kind, id;
    lh_status_t status; /* GOODBYE */
    uint32_t access;    /* OFFERED */
    uint32_t checksum, reserved;
    uint64_t bytes;     /* HELLO: of a ring; OFFERED: of the region */
    uint64_t fd_offset; /* OFFERED */
    lh_hello_t hello;
    uint8_t token[SHM_TOKEN];
    char text[SHM_REASON]; /* GOODBYE */
} shm_packet_t;

/* A packet of kind, the rest zero. */
shm_packet_t shm_packet(uint32_t kind);
/* fd: travels along; -1: none. LH_AGAIN: the socket is full. LH_PEER_LOST: nobody reads it. */
lh_status_t shm_packet_send(int socket, const shm_packet_t *packet, int fd);
/* *fd is -1 or the caller's. A wake-up has kind 0. LH_AGAIN: none. LH_PEER_LOST: the other end has
 * closed. LH_CORRUPT: no packet of ours. */
lh_status_t shm_packet_receive(int socket, shm_packet_t *packet, int *fd);
void shm_packet_wake(int socket); /* one byte, for a peer that sleeps in epoll */

#endif
