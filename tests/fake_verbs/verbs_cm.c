/* verbs_cm.c - the calls of librdmacm. A port is an abstract socket of this network namespace, so
 * nothing of it lies in the file system, and every address of the machine reaches it. */
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "verbs_fake.h"

#define CALL(type, name) FAKE_EXPORT type name

CALL(cm_channel_t *, rdma_create_event_channel)(void);
CALL(void, rdma_destroy_event_channel)(cm_channel_t *channel);
CALL(int, rdma_create_id)(cm_channel_t *channel, cm_id_t **out, void *context, int space);
CALL(int, rdma_destroy_id)(cm_id_t *id);
CALL(int, rdma_bind_addr)(cm_id_t *id, struct sockaddr *from);
CALL(int, rdma_resolve_addr)
(cm_id_t *id, struct sockaddr *from, struct sockaddr *to, int timeout_ms);
CALL(int, rdma_resolve_route)(cm_id_t *id, int timeout_ms);
CALL(int, rdma_init_qp_attr)(cm_id_t *id, verbs_qp_attr_t *attr, int *mask);
CALL(int, rdma_establish)(cm_id_t *id);
CALL(int, rdma_set_local_ece)(cm_id_t *id, verbs_ece_t *ece);
CALL(int, rdma_get_remote_ece)(cm_id_t *id, verbs_ece_t *ece);
CALL(int, rdma_connect)(cm_id_t *id, cm_param_t *param);
CALL(int, rdma_listen)(cm_id_t *id, int backlog);
CALL(int, rdma_accept)(cm_id_t *id, cm_param_t *param);
CALL(int, rdma_reject)(cm_id_t *id, const void *data, uint8_t bytes);
CALL(int, rdma_disconnect)(cm_id_t *id);
CALL(int, rdma_get_cm_event)(cm_channel_t *channel, cm_event_t **out);
CALL(int, rdma_ack_cm_event)(cm_event_t *event);
CALL(uint16_t, rdma_get_src_port)(cm_id_t *id);
CALL(int, rdma_set_option)(cm_id_t *id, int level, int option, void *value, size_t bytes);
CALL(const char *, rdma_event_str)(int type);

enum { NOBODY_LISTENS = 8, CONSUMER_SAYS_NO = 28, TIMEOUT_DEFAULT = 18 };

static int failed(int error)
{
    errno = error;
    return -1;
}

cm_channel_t *rdma_create_event_channel(void)
{
    fake_cm_channel_t *c = calloc(1, sizeof(*c));
    if (c == NULL) return NULL;
    if (!events_open(&c->events) || !engine_start()) {
        free(c);
        return NULL;
    }
    c->open.fd = c->events.fd;
    return &c->open;
}

static bool any_row(const void *row, const void *what)
{
    (void)row;
    (void)what;
    return true;
}

void rdma_destroy_event_channel(cm_channel_t *channel)
{
    fake_cm_channel_t *c = (fake_cm_channel_t *)channel;
    engine_lock();
    events_drop(&c->events, any_row, NULL, free);
    engine_unlock();
    events_close(&c->events);
    free(c);
    engine_leave();
}

static void say(fake_id_t *id, fake_id_t *listener, int type, int status, const char *data,
                size_t bytes)
{
    fake_cm_event_t *e = calloc(1, sizeof(*e));
    if (e == NULL || bytes > sizeof(e->data)) abort();
    e->open = (cm_event_t){.id = &id->open,
                           .listen_id = listener != NULL ? &listener->open : NULL,
                           .type = type,
                           .status = status};
    if (bytes > 0) {
        memcpy(e->data, data, bytes);
        e->open.param.data = e->data;
        e->open.param.data_bytes = (uint8_t)bytes;
    }
    events_put(&((fake_cm_channel_t *)id->open.channel)->events, e);
}

/* Of each id, bound or connected. */
void cm_removed(const verbs_context_t *device)
{
    for (fake_id_t *id = engine.ids; id != NULL; id = id->next)
        if (id->open.verbs == device) say(id, NULL, CM_DEVICE_REMOVED, 0, NULL, 0);
}

static fake_id_t *id_new(cm_channel_t *channel, void *context, int space)
{
    fake_id_t *id = calloc(1, sizeof(*id));
    if (id == NULL) return NULL;
    id->open.channel = channel;
    id->open.context = context;
    id->open.space = space;
    id->fd = -1;
    id->timeout = TIMEOUT_DEFAULT;
    id->late_end = &id->late;
    id->next = engine.ids;
    engine.ids = id;
    return id;
}

int rdma_create_id(cm_channel_t *channel, cm_id_t **out, void *context, int space)
{
    engine_lock();
    fake_id_t *id = id_new(channel, context, space);
    if (id != NULL) id->own = true;
    engine_unlock();
    if (id == NULL) return failed(ENOMEM);
    *out = &id->open;
    return 0;
}

static bool is_of(const void *row, const void *what)
{
    const fake_cm_event_t *e = row;
    return e->open.id == what;
}

/* Who destroys an id before its queue pair can't use that any more. */
static void detach_qp(fake_id_t *id)
{
    if (id->qp == NULL) return;
    pair_fail(id->qp, VERBS_WC_OK);
    id->qp->id = NULL;
    id->qp = NULL;
}

static bool attach_qp(fake_id_t *id, uint32_t number)
{
    fake_qp_t *q = pair_find(number);
    if (q == NULL || q->id != NULL) return false;
    q->id = id;
    id->qp = q;
    return true;
}

int rdma_destroy_id(cm_id_t *open)
{
    fake_id_t *id = (fake_id_t *)open;
    engine_lock();
    detach_qp(id);
    if (id->state == ID_LISTENING)
        (void)close(id->fd);
    else
        link_close(id);
    events_drop(&((fake_cm_channel_t *)open->channel)->events, is_of, open, free);
    fake_id_t **at = &engine.ids;
    while (*at != id)
        at = &(*at)->next;
    *at = id->next;
    engine_unlock();
    free(id);
    return 0;
}

static bool is_local(const struct sockaddr *address)
{
    struct ifaddrs *all;
    bool found = false;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)address;
        if (ntohl(a->sin_addr.s_addr) >> 24 == 127) return true;
    }
    if (getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != address->sa_family) continue;
        if (address->sa_family == AF_INET)
            found = memcmp(&((const struct sockaddr_in *)(const void *)address)->sin_addr,
                           &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
                           sizeof(struct in_addr)) == 0;
        else if (address->sa_family == AF_INET6)
            found = memcmp(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr,
                           &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr,
                           sizeof(struct in6_addr)) == 0;
    }
    freeifaddrs(all);
    return found;
}

static uint16_t *port_of(struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? &((struct sockaddr_in *)(void *)a)->sin_port
                                   : &((struct sockaddr_in6 *)(void *)a)->sin6_port;
}

static void copy_address(struct sockaddr_storage *out, const struct sockaddr *from)
{
    memset(out, 0, sizeof(*out));
    memcpy(out, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
}

static uint32_t device_of(const struct sockaddr *of)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)of;
    const uint32_t address = of->sa_family == AF_INET ? ntohl(four->sin_addr.s_addr) : 1;
    const bool even = address >> 24 == 127 && (address & 1) == 0;
    return engine.orders.devices == 2 && even;
}

static int take_device(fake_id_t *id, const struct sockaddr *from)
{
    if (engine.orders.no_device != 0 || !is_local(from)) return failed(ENODEV);
    copy_address(&id->open.from.room, from);
    id->open.verbs = &engine.contexts[device_of(from)];
    id->open.port = FAKE_DEVICE_PORT;
    return 0;
}

int rdma_bind_addr(cm_id_t *open, struct sockaddr *from)
{
    engine_lock();
    const int result = take_device((fake_id_t *)open, from);
    engine_unlock();
    return result;
}

int rdma_resolve_addr(cm_id_t *open, struct sockaddr *from, struct sockaddr *to, int timeout_ms)
{
    (void)timeout_ms;
    engine_lock();
    const int result = take_device((fake_id_t *)open, from);
    if (result == 0) {
        const bool apart = engine.orders.apart != 0 && device_of(from) != device_of(to);
        const bool reached = !apart && is_local(to);
        copy_address(&open->to.room, to);
        say((fake_id_t *)open, NULL, reached ? CM_ADDRESS_RESOLVED : CM_ADDRESS_ERROR,
            reached ? 0 : -ENETUNREACH, NULL, 0);
    }
    engine_unlock();
    return result;
}

int rdma_resolve_route(cm_id_t *open, int timeout_ms)
{
    (void)timeout_ms;
    engine_lock();
    say((fake_id_t *)open, NULL, CM_ROUTE_RESOLVED, 0, NULL, 0);
    engine_unlock();
    return 0;
}

/* ---- queue pairs, whose states are their owner's to change ---- */

int rdma_init_qp_attr(cm_id_t *open, verbs_qp_attr_t *attr, int *mask)
{
    const fake_id_t *id = (const fake_id_t *)open;
    const int state = attr->state;
    *attr = (verbs_qp_attr_t){
        .state = state,
        .mtu = 5,
        .port = FAKE_DEVICE_PORT,
        .timeout = id->timeout,
        .way = {.route = {.traffic_class = id->tos}, .has_route = 1, .port = FAKE_DEVICE_PORT}};
    *mask = VERBS_QP_STATE;
    return 0;
}

int rdma_set_local_ece(cm_id_t *open, verbs_ece_t *ece)
{
    engine_lock();
    ((fake_id_t *)open)->ece = *ece;
    engine_unlock();
    return 0;
}

int rdma_get_remote_ece(cm_id_t *open, verbs_ece_t *ece)
{
    engine_lock();
    *ece = ((fake_id_t *)open)->peer_ece;
    engine_unlock();
    return 0;
}

/* ---- meeting ---- */

static socklen_t socket_name(uint16_t port, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "fake-rdma-%u",
                                ntohs(port));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static bool bind_port(int fd, uint16_t *port)
{
    struct sockaddr_un name;
    const bool any = *port == 0;
    for (uint32_t tries = 0; tries < 1000; tries++) {
        if (any) *port = htons((uint16_t)(20000 + engine_random() % 40000));
        const socklen_t length = socket_name(*port, &name);
        if (bind(fd, (struct sockaddr *)&name, length) == 0) return true;
        if (!any) return false;
    }
    return false;
}

int rdma_listen(cm_id_t *open, int backlog)
{
    fake_id_t *id = (fake_id_t *)open;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    engine_lock();
    uint16_t *port = port_of(&open->from.room);
    const bool bound = bind_port(fd, port) && listen(fd, backlog) == 0;
    if (bound) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = id};
        id->fd = fd;
        id->state = ID_LISTENING;
        (void)epoll_ctl(engine.epoll, EPOLL_CTL_ADD, fd, &event);
    }
    engine_unlock();
    if (bound) return 0;
    (void)close(fd);
    return failed(EADDRINUSE);
}

uint16_t rdma_get_src_port(cm_id_t *open)
{
    return *port_of(&open->from.room);
}

/* A copy of the private data, with the order's change. */
static const void *private_of(const cm_param_t *param, uint8_t room[UINT8_MAX])
{
    if (param->data_bytes == 0) return NULL;
    memcpy(room, param->data, param->data_bytes);
    room[param->data_bytes - 1] ^= (uint8_t)engine.orders.private_byte;
    engine.orders.private_byte = 0;
    return room;
}

static frame_t with_ece(const fake_id_t *id, uint32_t kind, uint32_t bytes)
{
    return (frame_t){
        .kind = kind, .bytes = bytes, .rkey = id->ece.vendor, .immediate = id->ece.options};
}

int rdma_connect(cm_id_t *open, cm_param_t *param)
{
    uint8_t room[UINT8_MAX];
    fake_id_t *id = (fake_id_t *)open;
    struct sockaddr_un name;
    if (param->data_bytes > CM_REQUEST_BYTES) return failed(EINVAL);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    engine_lock();
    const socklen_t length = socket_name(*port_of(&open->to.room), &name);
    if (connect(fd, (struct sockaddr *)&name, length) != 0) {
        (void)close(fd);
        say(id, NULL, CM_REJECTED, NOBODY_LISTENS, NULL, 0);
    } else {
        if (!link_open(id, fd)) abort();
        id->state = ID_DIALING;
        (void)attach_qp(id, param->pair);
        const frame_t head = with_ece(id, FRAME_REQUEST, param->data_bytes);
        (void)link_send(id, &head, private_of(param, room));
    }
    engine_unlock();
    return 0;
}

/* It is told of when its request has come. */
void cm_arrivals(fake_id_t *listener)
{
    for (;;) {
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        fake_id_t *id = id_new(listener->open.channel, listener->open.context,
                               listener->open.space);
        if (id == NULL || !link_open(id, fd)) abort();
        id->open.verbs = listener->open.verbs;
        id->open.port = FAKE_DEVICE_PORT;
        id->open.from = listener->open.from;
        id->listener = listener;
        id->state = ID_ASKED;
    }
}

int rdma_accept(cm_id_t *open, cm_param_t *param)
{
    uint8_t room[UINT8_MAX];
    fake_id_t *id = (fake_id_t *)open;
    int error = 0;
    engine_lock();
    if (id->state != ID_ASKED || param->data_bytes > CM_REPLY_BYTES ||
        !attach_qp(id, param->pair)) {
        error = EINVAL;
    } else {
        const frame_t head = with_ece(id, FRAME_REPLY, param->data_bytes);
        id->state = ID_ANSWERED;
        id->own = true;
        (void)link_send(id, &head, private_of(param, room));
    }
    engine_unlock();
    return error == 0 ? 0 : failed(error);
}

/* The end that dialed has its queue pair where it can receive: nobody is told of it there. */
int rdma_establish(cm_id_t *open)
{
    fake_id_t *id = (fake_id_t *)open;
    engine_lock();
    const bool replied = id->state == ID_REPLIED;
    if (replied) {
        id->state = ID_OPEN;
        (void)link_send(id, &(frame_t){.kind = FRAME_READY}, NULL);
    }
    engine_unlock();
    return replied ? 0 : failed(EINVAL);
}

int rdma_reject(cm_id_t *open, const void *data, uint8_t bytes)
{
    fake_id_t *id = (fake_id_t *)open;
    engine_lock();
    (void)link_send(id, &(frame_t){.kind = FRAME_REJECT, .bytes = bytes}, data);
    id->state = ID_OVER;
    engine_unlock();
    return 0;
}

int rdma_disconnect(cm_id_t *open)
{
    fake_id_t *id = (fake_id_t *)open;
    int error = 0;
    engine_lock();
    if (id->state == ID_OPEN || id->state == ID_ANSWERED || id->state == ID_REPLIED)
        (void)link_send(id, &(frame_t){.kind = FRAME_END}, NULL);
    else
        error = EINVAL;
    engine_unlock();
    return error == 0 ? 0 : failed(error);
}

void cm_frame(fake_id_t *id, const frame_t *head, const char *payload)
{
    if (head->kind == FRAME_REQUEST && id->state == ID_ASKED) {
        fake_id_t *listener = engine.ids; /* it may be gone */
        while (listener != NULL && (listener != id->listener || listener->state != ID_LISTENING))
            listener = listener->next;
        id->peer_ece = (verbs_ece_t){.vendor = head->rkey, .options = head->immediate};
        id->told = listener != NULL;
        if (listener != NULL)
            say(id, listener, CM_CONNECT_REQUEST, 0, payload, head->bytes);
        else
            (void)link_send(id, &(frame_t){.kind = FRAME_REJECT}, NULL);
    } else if (head->kind == FRAME_REPLY && id->state == ID_DIALING) {
        id->state = ID_REPLIED;
        id->peer_ece = (verbs_ece_t){.vendor = head->rkey, .options = head->immediate};
        say(id, NULL, CM_CONNECT_RESPONSE, 0, payload, head->bytes);
    } else if (head->kind == FRAME_READY && id->state == ID_ANSWERED) {
        id->state = ID_OPEN;
        say(id, NULL, CM_ESTABLISHED, 0, NULL, 0);
    } else if (head->kind == FRAME_REJECT && id->state == ID_DIALING) {
        id->state = ID_OVER;
        say(id, NULL, CM_REJECTED, CONSUMER_SAYS_NO, payload, head->bytes);
    } else if (head->kind == FRAME_END &&
               (id->state == ID_OPEN || id->state == ID_ANSWERED || id->state == ID_REPLIED)) {
        id->state = ID_OVER;
        say(id, NULL, CM_DISCONNECTED, 0, NULL, 0);
    }
}

/* The packets of a process that has died stop; the kernel of a real one disconnects for it. */
void cm_gone(fake_id_t *id)
{
    if (engine.orders.mute != 0 || link_is_dead(id)) return;
    if (id->state == ID_OPEN || id->state == ID_ANSWERED || id->state == ID_REPLIED)
        say(id, NULL, CM_DISCONNECTED, 0, NULL, 0);
    else if (id->state == ID_DIALING)
        say(id, NULL, CM_REJECTED, NOBODY_LISTENS, NULL, 0);
    id->lost = id->state == ID_ASKED && !id->told;
    id->state = ID_OVER;
    (void)close(id->fd);
    id->fd = -1;
}

int rdma_get_cm_event(cm_channel_t *channel, cm_event_t **out)
{
    engine_lock();
    engine_drive();
    engine_unlock();
    fake_cm_event_t *e = events_get(&((fake_cm_channel_t *)channel)->events);
    if (e == NULL) return -1;
    *out = &e->open;
    return 0;
}

int rdma_ack_cm_event(cm_event_t *event)
{
    free(event);
    return 0;
}

int rdma_set_option(cm_id_t *open, int level, int option, void *value, size_t bytes)
{
    uint8_t byte;
    int error = 0;
    if (level != CM_OPTION_ID || bytes != 1) return failed(EINVAL);
    memcpy(&byte, value, 1);
    engine_lock();
    if (option == CM_OPTION_ACK_TIMEOUT && byte > 31)
        error = EINVAL;
    else if (option == CM_OPTION_ACK_TIMEOUT)
        ((fake_id_t *)open)->timeout = byte;
    else if (option == CM_OPTION_TOS && engine.orders.no_class != 0)
        error = EOPNOTSUPP;
    else if (option == CM_OPTION_TOS)
        ((fake_id_t *)open)->tos = byte;
    engine_unlock();
    return error == 0 ? 0 : failed(error);
}

const char *rdma_event_str(int type)
{
    static const char *const names[] = {
        "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
        "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
        "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
        "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
        "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
        "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL"};
    return type >= 0 && type <= CM_DEVICE_REMOVED ? names[type] : "an event";
}
