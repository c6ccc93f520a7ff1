/* tcp_zero.c - MSG_ZEROCOPY: see tcp_zero.h.
 *
 * What a copy costs is a processor's time, and what its absence costs is the wait: the kernel sends
 * from the caller's pages, now and again where a packet is lost, so these are the caller's only when
 * the peer has acknowledged them. Hence, by itself, only inside a site, where that takes no longer
 * than the sending does, as the receiver acknowledges at once (zero_answer); between sites a buffer
 * would come back a round trip later. And only where a device reads the pages: on the way to a process
 * of this machine, or through an interface that the kernel makes up, they are copied after all.
 *
 * A head leaves by a copy, as its memory is used again with the next batch; its payload alone is sent
 * from its pages. Each such call gets the next number of its socket, from 0, and the socket's error
 * queue says which numbers the kernel has let go of: ranges, mostly in order, at a reset in any. Until
 * then the call counts among the frames of its message that have not left (operation_t.frames), so
 * that the message can't be done.
 *
 * An end. What a socket holds when its connection is broken must be let go of before its buffers are
 * the caller's: the socket is reset but kept (zero_reset), which throws away its queue, and is closed
 * when the error queue has told of all numbers. What a device is just reading it lets go of within
 * microseconds. Where one does not in ZERO_WAIT_NS, as a card that has hung, the socket is closed all
 * the same: the kernel keeps pages from being freed as long as it needs them, and what they hold by
 * then can't harm, as the peer has been reset, and would find another checksum or seal. */
#include "tcp_zero.h"

#include <errno.h>

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "tcp_card.h"

/* Of a message, and of its part in a frame: below, pages cost more than a copy. */
enum { MESSAGE_LEAST = 64 << 10, PART_LEAST = 32 << 10 };
LH_STATIC_ASSERT((ZERO_SENDS & (ZERO_SENDS - 1)) == 0, "rows by number, also where numbers wrap");

void zero_begin(stream_t *s)
{
    const uint32_t wish = s->transport->config->zero_copy;
    const bool is_far = s->conn->link.scope == LH_LINK_WAN;
    const int on = 1;
    bool is_real = true, leads_away = true;
    if (s->seals[0] != NULL && seal_encrypts(s->seals[0])) return;
    if (wish != ZERO_YES && !is_far) leads_away = card_leads_away(s->fd, &is_real);
    /* Whatever this end does itself: it doesn't know the peer's options. */
    s->zero.peers = leads_away;
    if (wish == ZERO_NO || (wish == ZERO_AUTO && is_far) || !leads_away || !is_real) return;
    /* Without the option the flag means nothing to the kernel: it copies, and tells of no number. */
    s->zero.on = setsockopt(s->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
}

static bool is_large(const frame_t *f)
{
    return f->type == FRAME_DATA && f->total >= MESSAGE_LEAST && f->length >= PART_LEAST;
}

bool zero_takes(const stream_t *s, const frame_t *f)
{
    return s->zero.on && is_large(f);
}

/* The kernel would let an acknowledgement wait for data that go the other way, up to 40 ms. */
void zero_answer(stream_t *s, const frame_t *f)
{
    const int now = 1;
    if (s->zero.peers && is_large(f))
        (void)setsockopt(s->fd, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof(now));
}

/* No room for another number (optmem_max), too many pages (RLIMIT_MEMLOCK), or memory whose pages
 * can't be had, as a device's driver has mapped it. */
static bool is_for_copies(int error)
{
    return error == ENOBUFS || error == EFAULT || error == EINVAL || error == EOPNOTSUPP;
}

ssize_t zero_send(stream_t *s, uint32_t frame)
{
    zero_t *z = &s->zero;
    const struct msghdr message = {.msg_iov = s->vectors + s->vector_done, .msg_iovlen = 1};
    if (z->next - z->first < ZERO_SENDS) {
        const ssize_t n = sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY);
        if (n > 0) {
            zero_send_t *row = &z->sends[z->next++ % ZERO_SENDS];
            *row = (zero_send_t){.message = s->frames[frame].message, .held = true};
            s->conn->sends[row->message % DEPTH].frames++;
            return n;
        }
        if (!is_for_copies(errno)) return n;
        /* Where there was no room there will be; of other memory there is more. */
        if (errno != ENOBUFS) z->on = false;
    }
    s->frames[frame].zero_copies = false;
    return sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool zero_holds(const stream_t *s)
{
    return s->zero.first != s->zero.next;
}

/* Of a connection that has broken no message is done any more. */
void zero_release(stream_t *s, uint32_t from, uint32_t to)
{
    zero_t *z = &s->zero;
    for (uint32_t n = z->first; n != z->next; n++) {
        zero_send_t *row = &z->sends[n % ZERO_SENDS];
        if (n - from > to - from || !row->held) continue;
        row->held = false;
        if (s->conn->state < CONN_BROKEN) stream_part_left(s, row->message);
    }
    while (zero_holds(s) && !z->sends[z->first % ZERO_SENDS].held)
        z->first++;
}

/* What the error queue has besides is not of sends. */
static bool zero_read(struct msghdr *message, struct sock_extended_err *out)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (!(c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) &&
            !(c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR))
            continue;
        memcpy(out, CMSG_DATA(c), sizeof(*out));
        return out->ee_errno == 0 && out->ee_origin == SO_EE_ORIGIN_ZEROCOPY;
    }
    return false;
}

/* The kernel says where it had to copy, as the way turned out: then the pages were for nothing. */
static void zero_take(stream_t *s, const struct sock_extended_err *e)
{
    const lh_host_t *host = s->transport->host;
    const bool copied = (e->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0;
    zero_release(s, e->ee_info, e->ee_data);
    host->count(host, copied ? "tcp.zero_copies_copied" : "tcp.zero_copies",
                (double)(e->ee_data - e->ee_info) + 1);
    if (copied && s->transport->config->zero_copy != ZERO_YES) s->zero.on = false;
}

void zero_collect(stream_t *s)
{
    while (zero_holds(s)) {
        union {
            char bytes[CMSG_SPACE(sizeof(struct sock_extended_err) + sizeof(struct sockaddr_in6))];
            struct cmsghdr aligned;
        } control;
        struct sock_extended_err e;
        struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof(control)};
        const ssize_t n = recvmsg(s->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return;
        if (zero_read(&message, &e)) zero_take(s, &e);
    }
}

void zero_reset(stream_t *s)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    (void)connect(s->fd, &none, sizeof(none));
    zero_collect(s);
}
