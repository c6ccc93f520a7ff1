/* shm_packet.c - packets over an AF_UNIX socket: structs as they are, as both ends are one program
 * on one machine. Descriptors come with them (SCM_RIGHTS), and are closed on every way that does
 * not hand them on, or a peer could use up all that this process may have. */
#include "shm_packet.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

typedef union control { /* of one descriptor, aligned as the system wants it */
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
} control_t;

shm_packet_t shm_packet(uint32_t kind)
{
    return (shm_packet_t){.magic = SHM_MAGIC, .version = SHM_PACKET_VERSION, .kind = kind};
}

/* MSG_NOSIGNAL: a peer that has gone is a status and not SIGPIPE. */
lh_status_t shm_packet_send(int socket, const shm_packet_t *packet, int fd)
{
    control_t control = {0};
    struct iovec part = {(void *)(uintptr_t)packet, sizeof(*packet)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)sizeof(*packet)) return LH_OK;
    return errno == EAGAIN || errno == ENOBUFS ? LH_AGAIN : LH_PEER_LOST;
}

/* Of several descriptors, which we never send, all but the last are closed. */
static int take_descriptor(struct msghdr *message)
{
    int fd = -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL;
         head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            if (fd >= 0) (void)close(fd);
            memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
        }
    }
    return fd;
}

/* Never waits. A packet of another size, magic or version ends the connection: nothing is
 * skipped. */
lh_status_t shm_packet_receive(int socket, shm_packet_t *packet, int *fd)
{
    control_t control;
    struct iovec part = {packet, sizeof(*packet)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    ssize_t got;
    do
        got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0) return errno == EAGAIN ? LH_AGAIN : LH_PEER_LOST;
    *fd = take_descriptor(&message);
    if (got == 0 && *fd < 0) return LH_PEER_LOST;
    if (got == 1 && *fd < 0) {
        packet->kind = 0;
        return LH_OK;
    }
    if (got == (ssize_t)sizeof(*packet) && (message.msg_flags & MSG_TRUNC) == 0 &&
        packet->magic == SHM_MAGIC && packet->version == SHM_PACKET_VERSION && packet->kind != 0)
        return LH_OK;
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
    return LH_CORRUPT;
}

/* A full socket is a socket that wakes its reader already. */
void shm_packet_wake(int socket)
{
    (void)send(socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
