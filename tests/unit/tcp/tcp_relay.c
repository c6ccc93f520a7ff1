/* tcp_relay.c - see tcp_relay.h. The plugin's address: 4, 0, port (big-endian), IPv4 address. */
#include "tcp_relay.h"
#include "tcp_kit.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

int relay_dial(const lh_address_t *to)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    KIT_MUST(to->bytes[0] == 4);
    memcpy(&a.sin_port, to->bytes + 2, 2);
    memcpy(&a.sin_addr, to->bytes + 4, 4);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&a, sizeof(a)) != 0) {
        (void)close(fd);
        return -1;
    }
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

void relay_open(relay_t *r, const lh_address_t *to)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(a);
    memset(r, 0, sizeof(*r));
    r->near = r->far = -1;
    r->flip_at[0] = r->flip_at[1] = r->repeat_from = r->repeat_to = -1;
    r->to = r->own = *to;
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int bad = bind(r->listener, (const struct sockaddr *)&a, sizeof(a)) |
                    listen(r->listener, 8) |
                    getsockname(r->listener, (struct sockaddr *)&a, &length);
    KIT_MUST(bad == 0);
    memcpy(r->own.bytes + 2, &a.sin_port, 2);
}

static void put(int fd, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        const ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
        if (n <= 0) return;
        bytes += n;
        length -= (size_t)n;
    }
}

static void keep(relay_t *r, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const int64_t at = (int64_t)(r->passed[0] + i);
        if (at >= r->repeat_from && at < r->repeat_to) r->kept[at - r->repeat_from] = bytes[i];
    }
}

/* False: that side has closed. */
static bool pass(relay_t *r, int side, int from, int to)
{
    uint8_t bytes[4096];
    const size_t most = r->piece == 0 || r->piece > sizeof(bytes) ? sizeof(bytes) : r->piece;
    const ssize_t n = recv(from, bytes, most, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    const int64_t at = r->flip_at[side] - (int64_t)r->passed[side];
    if (r->flip_at[side] >= 0 && at >= 0 && at < n) bytes[at] ^= (uint8_t)(1u << r->flip_bit);
    if (side == 0) keep(r, bytes, (size_t)n);
    put(to, bytes, (size_t)n);
    r->passed[side] += (uint64_t)n;
    if (side == 0 && r->repeat_to >= 0 && (int64_t)r->passed[0] >= r->repeat_to) {
        put(to, r->kept, (size_t)(r->repeat_to - r->repeat_from));
        r->repeat_to = -1;
    }
    return true;
}

void relay_step(relay_t *r)
{
    const int one = 1;
    if (r->near < 0) {
        r->near = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
        if (r->near < 0) return;
        (void)setsockopt(r->near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        r->far = relay_dial(&r->to);
    }
    if (pass(r, 0, r->near, r->far) && pass(r, 1, r->far, r->near)) return;
    (void)shutdown(r->near, SHUT_RDWR);
    (void)shutdown(r->far, SHUT_RDWR);
}

void relay_close(relay_t *r)
{
    if (r->near >= 0) (void)close(r->near);
    if (r->far >= 0) (void)close(r->far);
    (void)close(r->listener);
}
