/* shm_connect.c - how two processes meet: an abstract socket that only this user's processes with
 * the listener's token get past, and the memory of the rings, made by the end that dials.
 *
 * The order of a meeting: who dials makes a sealed memfd, connects, and sends HELLO with token and
 * descriptor; who listens checks user, token and memory, maps it, and hands the connection to the
 * host, which admits it: ADMITTED goes back. Nobody waits in between: each step is one of polls.
 *
 * Security is the kernel's: SO_PEERCRED says which user is at the other end, and memory is reached
 * by a descriptor that was handed over and by nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm_packet.h"

enum { BACKLOG = 128, NAME_BYTES = 16 /* random: nobody can take the name before */ };

typedef struct place { /* what an address holds */
    uint8_t machine[16];
    uint8_t name[NAME_BYTES]; /* of the abstract socket, in binary */
    uint8_t token[SHM_TOKEN];
} place_t;

/* The rings' memory can't change its size; its bytes stay writable, by both. */
static const uint32_t seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/* The same for all processes that can reach each other's sockets and memory: one boot of one
 * kernel. */
lh_status_t shm_machine(const lh_host_t *host, uint8_t out[16])
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    char text[64] = "";
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) (void)close(fd);
    if (length < 36) return host->fail(host, LH_IO, "%s can't be read", path);
    size_t digits = 0;
    memset(out, 0, 16);
    for (const char *c = text; *c != '\0' && digits < 32; c++) {
        const int value = *c >= '0' && *c <= '9'   ? *c - '0'
                          : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10
                                                   : -1;
        if (value < 0) continue;
        out[digits / 2] = (uint8_t)(out[digits / 2] * 16 + value);
        digits++;
    }
    return LH_OK;
}

/* What was asked for and can't be given is refused, never lowered. */
static lh_status_t check_security(lh_transport_t *t, uint32_t security)
{
    static const char *const names[] = {"plain", "known", "proven", "private"};
    if (security == LH_SECURITY_PLAIN) return LH_OK;
    return t->host->fail(t->host, LH_UNSUPPORTED,
                         "security = %s is asked for; memory of one machine offers only plain "
                         "(this user's processes, told apart by the kernel)",
                         security <= LH_SECURITY_PRIVATE ? names[security] : "unknown");
}

/* "longhaul-" and the name in hexadecimal, in the abstract namespace: nothing to remove after a
 * crash. */
static socklen_t abstract_name(const uint8_t name[NAME_BYTES], struct sockaddr_un *out)
{
    static const char prefix[] = "longhaul-";
    size_t at = 1; /* a leading NUL: the name is abstract */
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + at, prefix, sizeof(prefix) - 1);
    at += sizeof(prefix) - 1;
    for (int i = 0; i < NAME_BYTES; i++, at += 2)
        (void)snprintf(out->sun_path + at, 3, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + at);
}

/* c NULL: a listener's. */
static void socket_watch(lh_transport_t *t, int fd, uint32_t events, lh_conn_t *c)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    (void)epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Name and token are random, and go into the address that the host carries. */
lh_status_t shm_listen(lh_transport_t *t, uint32_t nic, uint32_t security, lh_address_t *address,
                       lh_listener_t **out)
{
    const lh_host_t *host = t->host;
    place_t place;
    struct sockaddr_un name;
    if (nic != 0) return host->fail(host, LH_INVALID, "there is one card, not %u", nic);
    lh_status_t status = check_security(t, security);
    if (status == LH_OK) status = host->random(host, place.name, sizeof(place.name));
    if (status == LH_OK) status = host->random(host, place.token, sizeof(place.token));
    if (status != LH_OK) return status;
    lh_listener_t *l = host->alloc(host, sizeof(*l), 64);
    if (l == NULL) return LH_NO_MEMORY;

    const socklen_t length = abstract_name(place.name, &name);
    l->transport = t;
    l->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->socket < 0 || bind(l->socket, (struct sockaddr *)&name, length) != 0 ||
        listen(l->socket, BACKLOG) != 0) {
        status = host->fail(host, LH_IO, "listen on an abstract socket");
        if (l->socket >= 0) (void)close(l->socket);
        host->release(host, l);
        return status;
    }
    for (int i = 0; i < SHM_STRANGERS; i++)
        l->strangers[i].socket = -1;
    memcpy(place.machine, t->machine, sizeof(place.machine));
    memcpy(l->token, place.token, sizeof(l->token));
    address->length = sizeof(place);
    memcpy(address->bytes, &place, sizeof(place));
    socket_watch(t, l->socket, EPOLLIN | EPOLLET, NULL);
    l->next = t->listeners;
    t->listeners = l;
    *out = l;
    return LH_OK;
}

void shm_close_listener(lh_listener_t *l)
{
    lh_transport_t *t = l->transport;
    lh_listener_t **at = &t->listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    for (int i = 0; i < SHM_STRANGERS; i++)
        if (l->strangers[i].socket >= 0) (void)close(l->strangers[i].socket);
    (void)close(l->socket);
    t->host->release(t->host, l);
}

/* In the transport's list from here on; shm_close_conn takes it out again. */
static lh_conn_t *conn_new(lh_transport_t *t, shm_state_t state, int socket)
{
    lh_conn_t *c = t->host->alloc(t->host, sizeof(*c), 64);
    if (c == NULL) return NULL;
    c->transport = t;
    c->state = state;
    c->socket = socket;
    c->watch = -1;
    c->memory = -1;
    c->next = t->conns;
    t->conns = c;
    return c;
}

/* The end of a process is seen even where a child of it still holds the socket. Where it can't be
 * watched (another namespace) the socket's end must do. */
static void watch_peer(lh_conn_t *c)
{
    struct ucred who;
    socklen_t length = sizeof(who);
    socket_watch(c->transport, c->socket, EPOLLIN, c);
    if (getsockopt(c->socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || who.pid <= 0) return;
    c->watch = (int)syscall(SYS_pidfd_open, who.pid, 0);
    if (c->watch >= 0) socket_watch(c->transport, c->watch, EPOLLIN, c);
}

/* What is `out` at one end is `in` at the other. What is mapped before a failure goes with the
 * connection. */
static lh_status_t map_rings(lh_conn_t *c, int fd, uint64_t ring_bytes)
{
    const lh_host_t *host = c->transport->host;
    void *shared = mmap(NULL, SHM_HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return host->fail(host, LH_IO, "mmap of a connection's memory");
    c->shared = shared;
    shm_ring_t *lanes[2] = {c->side == 0 ? &c->out : &c->in, c->side == 0 ? &c->in : &c->out};
    for (uint32_t i = 0; i < 2; i++)
        if (!shm_ring_map(lanes[i], &c->shared->lanes[i], fd, SHM_HEAD_BYTES + i * ring_bytes,
                          ring_bytes))
            return host->fail(host, LH_IO, "mmap of a ring of %llu bytes",
                              (unsigned long long)ring_bytes);
    return LH_OK;
}

/* Of the end that dials. Zeroed by the kernel: both counters of both rings begin at 0. */
static lh_status_t make_rings(lh_conn_t *c, int *out)
{
    const lh_host_t *host = c->transport->host;
    const uint64_t ring_bytes = c->transport->config.ring_bytes;
    const int fd = memfd_create("longhaul-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return host->fail(host, LH_IO, "memfd_create");
    lh_status_t status = LH_OK;
    if (ftruncate(fd, (off_t)(SHM_HEAD_BYTES + 2 * ring_bytes)) != 0 ||
        fcntl(fd, F_ADD_SEALS, seals) != 0)
        status = host->fail(host, LH_IO, "a memfd for two rings of %llu bytes",
                            (unsigned long long)ring_bytes);
    if (status == LH_OK) status = map_rings(c, fd, ring_bytes);
    if (status != LH_OK) {
        (void)close(fd);
        return status;
    }
    *out = fd;
    return LH_OK;
}

/* One try; LH_AGAIN: the listener's backlog or the socket is full. The memfd is closed once it was
 * sent: the mapping keeps it. */
static lh_status_t dial_listener(lh_conn_t *c)
{
    place_t place;
    struct sockaddr_un name;
    lh_transport_t *t = c->transport;
    memcpy(&place, c->address.bytes, sizeof(place));
    const socklen_t length = abstract_name(place.name, &name);
    if (c->socket < 0)
        c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->socket < 0) return LH_IO;
    if (connect(c->socket, (struct sockaddr *)&name, length) != 0 && errno != EISCONN)
        return errno == EAGAIN || errno == EINTR ? LH_AGAIN : LH_UNREACHABLE;

    shm_packet_t hello = shm_packet(SHM_HELLO);
    hello.hello = c->hello;
    hello.bytes = t->config.ring_bytes;
    hello.checksum = c->checksum;
    memcpy(hello.token, place.token, sizeof(hello.token));
    const lh_status_t status = shm_packet_send(c->socket, &hello, c->memory);
    if (status != LH_OK) return status;
    (void)close(c->memory);
    c->memory = -1;
    watch_peer(c);
    return LH_OK;
}

/* Of every step of a connection that dials: greets, then waits to be admitted. */
void shm_dial(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    if (c->memory >= 0) { /* not greeted yet */
        const lh_status_t status = dial_listener(c);
        if (status != LH_OK && status != LH_AGAIN) {
            shm_break(c, LH_UNREACHABLE, "rank %u: nobody listens at its socket: %s", c->peer,
                      strerror(errno));
            return;
        }
    }
    if (host->now_ns(host) > c->give_up_ns)
        shm_break(c, LH_UNREACHABLE, "rank %u did not answer at its socket", c->peer);
}

/* Made by another boot of the kernel, an address names nothing here. */
static lh_status_t check_address(lh_transport_t *t, const lh_address_t *address, uint32_t peer)
{
    place_t place;
    const lh_host_t *host = t->host;
    if (address->length != sizeof(place))
        return host->fail(host, LH_INVALID, "rank %u: an address of %u bytes, expected %zu", peer,
                          address->length, sizeof(place));
    memcpy(&place, address->bytes, sizeof(place));
    if (memcmp(place.machine, t->machine, sizeof(place.machine)) != 0)
        return host->fail(host, LH_UNREACHABLE,
                          "rank %u is on another machine, where shared memory does not reach",
                          peer);
    return LH_OK;
}

/* Tries once at once; whether the peer is there is found out by polls, until give_up_ns. */
lh_status_t shm_connect(lh_transport_t *t, const lh_address_t *address,
                        const lh_conn_params_t *params, lh_conn_t **out)
{
    lh_status_t status = check_security(t, params->security);
    if (status == LH_OK) status = check_address(t, address, params->peer);
    if (status != LH_OK) return status;
    lh_conn_t *c = conn_new(t, SHM_DIALING, -1);
    if (c == NULL) return LH_NO_MEMORY;
    /* Kept until it is greeted: the listener's backlog may be full at first. */
    c->address = *address;
    c->hello = params->hello;
    c->cookie = params->cookie;
    c->peer = params->peer;
    c->checksum = t->config.checksum;
    c->give_up_ns = t->host->now_ns(t->host) +
                    (params->dial_ns != 0 ? params->dial_ns : 30000000000ull);
    status = make_rings(c, &c->memory);
    if (status != LH_OK) {
        shm_close_conn(c);
        return status;
    }
    t->dialing++;
    *out = c;
    shm_dial(c);
    return LH_OK;
}

/* In constant time, as of every secret. */
static bool same_token(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (int i = 0; i < SHM_TOKEN; i++)
        differ |= (uint8_t)(a[i] ^ b[i]);
    return differ == 0;
}

/* Memory that its maker could shrink under us would kill us at the next access. */
static bool is_our_memory(int fd, uint64_t ring_bytes)
{
    const int have = fcntl(fd, F_GET_SEALS);
    const off_t size = lseek(fd, 0, SEEK_END);
    return have >= 0 && (have & F_SEAL_SHRINK) != 0 && ring_bytes >= SHM_RING_LEAST &&
           ring_bytes <= SHM_RING_MOST && (ring_bytes & (ring_bytes - 1)) == 0 &&
           (uint64_t)size == SHM_HEAD_BYTES + 2 * ring_bytes;
}

/* counted: somebody came who had no business here. */
static void forget_stranger(lh_listener_t *l, shm_stranger_t *s, bool counted)
{
    const lh_host_t *host = l->transport->host;
    (void)close(s->socket);
    s->socket = -1;
    if (counted) host->count(host, "shm.strangers", 1);
}

/* Accepts as far as there is room; those of other users are closed at once. Beyond SHM_STRANGERS
 * the kernel's backlog holds them. */
static void meet_strangers(lh_listener_t *l)
{
    const lh_host_t *host = l->transport->host;
    for (int i = 0; i < SHM_STRANGERS; i++) {
        shm_stranger_t *s = &l->strangers[i];
        struct ucred who;
        socklen_t length = sizeof(who);
        if (s->socket >= 0) continue;
        s->socket = accept4(l->socket, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s->socket < 0) return;
        s->until_ns = host->now_ns(host) + SHM_STRANGER_NS;
        if (getsockopt(s->socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
            who.uid != geteuid())
            forget_stranger(l, s, true);
        else
            socket_watch(l->transport, s->socket, EPOLLIN | EPOLLET, NULL);
    }
}

/* LH_AGAIN: it has said nothing yet, or nothing right. What is wrong is not answered. */
static lh_status_t stranger_hear(lh_listener_t *l, shm_stranger_t *s, lh_conn_t **out)
{
    int fd = -1;
    shm_packet_t packet;
    lh_transport_t *t = l->transport;
    lh_status_t status = shm_packet_receive(s->socket, &packet, &fd);
    if (status == LH_AGAIN && t->host->now_ns(t->host) < s->until_ns) return LH_AGAIN;
    if (status != LH_OK || packet.kind != SHM_HELLO || fd < 0 ||
        !same_token(packet.token, l->token) || !is_our_memory(fd, packet.bytes)) {
        if (fd >= 0) (void)close(fd);
        forget_stranger(l, s, true);
        return LH_AGAIN;
    }
    lh_conn_t *c = conn_new(t, SHM_MET, s->socket);
    if (c == NULL) {
        (void)close(fd);
        forget_stranger(l, s, false);
        return LH_NO_MEMORY;
    }
    /* The socket is the connection's now; it is watched again when the host has admitted it. */
    (void)epoll_ctl(t->epoll, EPOLL_CTL_DEL, s->socket, NULL);
    s->socket = -1;
    c->side = 1; /* the end that listens */
    c->hello = packet.hello;
    c->peer = packet.hello.rank;
    c->checksum = packet.checksum != 0;
    status = map_rings(c, fd, packet.bytes);
    (void)close(fd);
    if (status != LH_OK) {
        shm_close_conn(c);
        return status;
    }
    *out = c;
    return LH_OK;
}

/* The first of the strangers that has shown the token. */
lh_status_t shm_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out)
{
    meet_strangers(l);
    /* Those that have said nothing yet are passed over; one that lies is forgotten in passing. */
    for (int i = 0; i < SHM_STRANGERS; i++) {
        if (l->strangers[i].socket < 0) continue;
        const lh_status_t status = stranger_hear(l, &l->strangers[i], out);
        if (status == LH_AGAIN) continue;
        if (status == LH_OK) *hello = (*out)->hello;
        return status;
    }
    return LH_AGAIN;
}

/* From here on the connection is open at this end; the other one learns it by ADMITTED. */
lh_status_t shm_admit(lh_conn_t *c, const lh_conn_params_t *params)
{
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    const lh_status_t status = check_security(t, params->security);
    if (status != LH_OK) return status;
    if (c->checksum != t->config.checksum)
        return host->fail(host, LH_MISMATCH, "rank %u has checksum = %s, this one %s", c->peer,
                          c->checksum ? "yes" : "no", c->checksum ? "no" : "yes");
    c->cookie = params->cookie;
    c->peer = params->peer;
    const shm_packet_t packet = shm_packet(SHM_ADMITTED);
    if (shm_packet_send(c->socket, &packet, -1) != LH_OK)
        return host->fail(host, LH_PEER_LOST, "rank %u has gone before it was admitted", c->peer);
    c->state = SHM_OPEN;
    watch_peer(c);
    return LH_OK;
}

/* From here on what this end sent is not to be believed, and nothing comes any more. */
static void hang_up(lh_conn_t *c)
{
    if (c->shared != NULL) atomic_store(&c->shared->sides[c->side].gone, 1);
    if (c->socket >= 0) (void)close(c->socket);
    if (c->watch >= 0) (void)close(c->watch);
    if (c->memory >= 0) (void)close(c->memory);
    c->socket = c->watch = c->memory = -1;
}

/* Into SHM_BROKEN, from any state before. */
static void leave_state(lh_conn_t *c, lh_status_t why)
{
    if (c->state == SHM_DIALING) c->transport->dialing--;
    c->state = SHM_BROKEN;
    c->why = why;
}

void shm_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...)
{
    va_list args;
    if (c->state >= SHM_BROKEN) return;
    leave_state(c, why);
    va_start(args, fmt);
    (void)vsnprintf(c->reason, sizeof(c->reason), fmt, args);
    va_end(args);
    /* The peer is told why, if it is still there to read it. */
    if (c->socket >= 0 && !c->ended) {
        shm_packet_t packet = shm_packet(SHM_GOODBYE);
        packet.status = why;
        memcpy(packet.text, c->reason, sizeof(packet.text));
        (void)shm_packet_send(c->socket, &packet, -1);
    }
    hang_up(c);
}

/* Local: the peer is not asked. It learns of it as of a death. */
void shm_cancel(lh_conn_t *c)
{
    if (c->state >= SHM_BROKEN) return;
    leave_state(c, LH_CANCELLED);
    hang_up(c);
}

/* The rings are unmapped here and not when it broke, as what the peer wrote is read to the end. */
void shm_close_conn(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    shm_cancel(c);
    shm_remotes_close(c);
    shm_ring_unmap(&c->out);
    shm_ring_unmap(&c->in);
    if (c->shared != NULL) (void)munmap(c->shared, SHM_HEAD_BYTES);
    lh_conn_t **at = &t->conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    t->host->release(t->host, c);
}
