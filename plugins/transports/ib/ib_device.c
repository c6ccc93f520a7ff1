/* ib_device.c - which ports of which devices: those that the bound addresses belong to.
 *
 * librdmacm finds devices by IP addresses, and with them the partition and the GIDs that can be had
 * (ib_gid.c). An id that stays bound keeps the device open. A
 * rank has one port, or each that `bind` lists: memory is registered with all of them, and a
 * connection spreads its queue pairs over them. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>

#include "ib.h"

socklen_t ib_address_length(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

const char *ib_layer_text(uint32_t link_layer)
{
    return link_layer == VERBS_LINK_ETHERNET ? "Ethernet (RoCE)" : "InfiniBand";
}

/* The devices there are, "a, b", for the sentence that says why none was taken. */
static int device_names(lh_transport_t *t, char *out, size_t room)
{
    int count = 0;
    size_t at = 0;
    out[0] = '\0';
    verbs_device_t **list = t->verbs.get_device_list(&count);
    if (list == NULL) return 0;
    for (int i = 0; i < count && at + 1 < room; i++) {
        const int more = snprintf(out + at, room - at, "%s%s", i > 0 ? ", " : "",
                                  t->verbs.get_device_name(list[i]));
        at += more > 0 ? (size_t)more : 0;
    }
    t->verbs.free_device_list(list);
    return count;
}

/* True: an id is bound to the address, and the device behind it is the one that is wanted. */
static bool try_address(lh_transport_t *t, const struct sockaddr *address)
{
    ib_port_t *port = &t->ports[t->port_count];
    cm_id_t *id;
    struct sockaddr_storage from = {0};
    memcpy(&from, address,
           address->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                         : sizeof(struct sockaddr_in6));
    if (t->verbs.create_id(t->events, &id, &t->nobody, CM_SPACE_TCP) != 0) return false;
    if (t->verbs.bind_address(id, (struct sockaddr *)&from) == 0 && id->verbs != NULL) {
        const char *name = t->verbs.get_device_name(id->verbs->device);
        if (t->config->device == NULL || strcmp(name, t->config->device) == 0) {
            port->anchor = id;
            port->context = id->verbs;
            port->here = from;
            port->number = id->port != 0 ? id->port : 1;
            (void)snprintf(port->device, sizeof(port->device), "%s", name);
            return true;
        }
    }
    (void)t->verbs.destroy_id(id);
    return false;
}

static bool try_text(lh_transport_t *t, const char *text)
{
    struct addrinfo *found;
    const struct addrinfo how = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (text[0] == '\0' || getaddrinfo(text, NULL, &how, &found) != 0) return false;
    const bool taken = try_address(t, found->ai_addr);
    freeaddrinfo(found);
    return taken;
}

/* IPv4 first, then IPv6, then loopback: a GID of an IPv4 address is routed by RoCE v2 everywhere. */
static uint32_t interface_rank(const struct ifaddrs *i, const char *wanted)
{
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0) return 0;
    if (wanted != NULL && strcmp(i->ifa_name, wanted) != 0) return 0;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) return 0;
    if (family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr)) return 0;
    }
    return ((i->ifa_flags & IFF_LOOPBACK) != 0 ? 1u : 3u) + (family == AF_INET ? 1 : 0);
}

static bool try_interfaces(lh_transport_t *t, const char *wanted)
{
    struct ifaddrs *all;
    bool taken = false;
    if (getifaddrs(&all) != 0) return false;
    for (uint32_t rank = 4; rank >= 1 && !taken; rank--)
        for (const struct ifaddrs *i = all; i != NULL && !taken; i = i->ifa_next)
            taken = interface_rank(i, wanted) == rank && try_address(t, i->ifa_addr);
    freeifaddrs(all);
    return taken;
}

/* By `gid`, by the address that the host knows, or any. A row that `gid` names is one of the port that
 * has the host's address, where one has: another device's row of that number may be anything. */
static bool try_any(lh_transport_t *t)
{
    ib_port_t *port = &t->ports[t->port_count];
    const char *own = t->host->world->address;
    char named[64] = "";
    if (ib_gid_is_row(t) && try_text(t, own)) {
        if (!ib_gid_row(t, port, named, sizeof(named))) return true;
        (void)t->verbs.destroy_id(port->anchor);
        port->anchor = NULL;
        return try_text(t, named) || try_text(t, own);
    }
    (void)ib_gid_address(t, named, sizeof(named));
    return try_text(t, named) || try_text(t, own) || try_interfaces(t, NULL);
}

static lh_status_t choose_address(lh_transport_t *t, const char *wanted, const char *names)
{
    const lh_host_t *host = t->host;
    const char *device = t->config->device;
    const bool any = strcmp(wanted, "auto") == 0;
    const bool taken = any ? try_any(t) : try_text(t, wanted) || try_interfaces(t, wanted);
    if (taken) return LH_OK;
    return host->fail(host, LH_NO_DEVICE,
                      "no address%s%s of this machine belongs to %s%s (RDMA devices here: %s)",
                      any ? "" : " ", any ? "" : wanted,
                      device != NULL ? "the RDMA device " : "an RDMA device",
                      device != NULL ? device : "", names);
}

/* Of ConnectX cards; others have none of this name. */
static const char adaptive_counter[] = "roce_adp_retrans";

/* What `mtu` says, which is no more than the port has. */
static lh_status_t take_mtu(lh_transport_t *t, ib_port_t *p)
{
    const uint64_t wanted = t->config->mtu;
    uint16_t code = 1;
    if (wanted == 0) return LH_OK;
    while (code <= 5 && ib_mtu_bytes(code) != wanted)
        code++;
    if (code > 5)
        return t->host->fail(t->host, LH_INVALID,
                             "mtu = %llu: expected 256, 512, 1024, 2048 or 4096",
                             (unsigned long long)wanted);
    if (code > p->mtu)
        return t->host->fail(t->host, LH_INVALID, "mtu = %llu: port %u of %s has %u",
                             (unsigned long long)wanted, p->number, p->device,
                             ib_mtu_bytes(p->mtu));
    p->mtu = code;
    return LH_OK;
}

/* Ids that are made later take it like this one. */
static lh_status_t check_class(lh_transport_t *t, const ib_port_t *p)
{
    uint8_t class = (uint8_t)t->config->traffic_class;
    if (class == 0 ||
        t->verbs.set_option(p->anchor, CM_OPTION_ID, CM_OPTION_TOS, &class, sizeof(class)) == 0)
        return LH_OK;
    return t->host->fail(t->host, LH_UNSUPPORTED, "traffic_class = %u: port %u of %s: %s", class,
                         p->number, p->device, strerror(errno));
}

static lh_status_t look_at_port(lh_transport_t *t, ib_port_t *p)
{
    const lh_host_t *host = t->host;
    verbs_port_t port = {0};
    if (t->verbs.query_port(p->context, p->number, &port) != 0)
        return host->fail(host, LH_IO, "ibv_query_port of %s", p->device);
    p->down = port.state != VERBS_PORT_ACTIVE;
    p->rate = p->down ? 0 : ib_port_rate(port.width, port.speed);
    p->adaptive = ib_card_counter(p->context->device->folder, p->number, adaptive_counter);
    p->link_layer = port.link_layer;
    p->mtu = (uint16_t)port.mtu;
    const lh_status_t status = p->down ? LH_OK : take_mtu(t, p);
    return status == LH_OK ? ib_gid_choose(t, p) : status;
}

/* A card whose queues have fewer work requests than are wanted has fewer queue pairs (pairs_fit in ib_params.c), of
 * which one at least must go. */
static lh_status_t look_at_card(lh_transport_t *t, const ib_port_t *p)
{
    const lh_host_t *host = t->host;
    verbs_limits_t limits = {.wrs = 0};
    if (t->verbs.query_device(p->context, &limits) != 0)
        return host->fail(host, LH_IO, "ibv_query_device of %s", p->device);
    const bool few = limits.wrs > 0 && limits.wrs < IB_SEND_WRS;
    const uint32_t wrs = few ? (uint32_t)limits.wrs : IB_SEND_WRS;
    if (wrs < IB_RECEIVES + IB_SPARE_EACH)
        return host->fail(host, LH_UNSUPPORTED,
                          "%s has %u work requests for each queue of a queue pair; expected %u or "
                          "more",
                          p->device, wrs, IB_RECEIVES + IB_SPARE_EACH);
    if (t->wrs != 0 && t->wrs <= wrs) return LH_OK;
    t->wrs = wrs;
    t->wrs_port = (uint32_t)(p - t->ports);
    return LH_OK;
}

bool ib_port_is_up(const lh_transport_t *t, const ib_port_t *p)
{
    verbs_port_t port = {0};
    return t->verbs.query_port(p->context, p->number, &port) == 0 &&
           port.state == VERBS_PORT_ACTIVE;
}

static const char *family_text(const ib_port_t *p)
{
    return p->here.ss_family == AF_INET ? "IPv4" : "IPv6";
}

/* An address's own family, link layer, version of RoCE and MTU stand for all that a peer has to fit to. */
static lh_status_t check_alike(lh_transport_t *t, const ib_port_t *first, const ib_port_t *p)
{
    char here[80], there[80];
    ib_place_text(&first->here, here, sizeof(here));
    ib_place_text(&p->here, there, sizeof(there));
    for (const ib_port_t *o = t->ports; o < p; o++)
        if (memcmp(&o->here, &p->here, sizeof(o->here)) == 0)
            return t->host->fail(t->host, LH_INVALID, "bind has %s twice", there);
    if (p->here.ss_family != first->here.ss_family)
        return t->host->fail(t->host, LH_INVALID,
                             "bind: %s of %s is an %s address, %s of %s an %s one; expected "
                             "addresses of one family",
                             here, first->device, family_text(first), there, p->device,
                             family_text(p));
    if (p->link_layer != first->link_layer)
        return t->host->fail(t->host, LH_INVALID,
                             "bind: %s of %s is %s, %s of %s %s; expected ports of one link layer",
                             here, first->device, ib_layer_text(first->link_layer), there,
                             p->device, ib_layer_text(p->link_layer));
    if (p->down) return LH_OK; /* what it has then says nothing */
    if (p->roce != first->roce && p->roce != 0 && first->roce != 0)
        return t->host->fail(t->host, LH_INVALID,
                             "bind: the GID of %s of %s is of RoCE v%u, that of %s of %s of v%u; "
                             "expected one version (gid)",
                             here, first->device, first->roce, there, p->device, p->roce);
    if (p->mtu == first->mtu) return LH_OK;
    return t->host->fail(
        t->host, LH_INVALID,
        "bind: %s of %s has an MTU of %u bytes, %s of %s %u; expected ports of one "
        "MTU",
        here, first->device, ib_mtu_bytes(first->mtu), there, p->device, ib_mtu_bytes(p->mtu));
}

static bool make_nonblocking(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* A descriptor that is none: what can register a dma-buf says that it is bad. */
static bool takes_dmabuf(const lh_transport_t *t, const ib_port_t *p)
{
    if (t->verbs.reg_dmabuf_mr == NULL) return false;
    errno = 0;
    verbs_mr_t *mr = t->verbs.reg_dmabuf_mr(p->pd, 0, 4096, 0, -1, VERBS_LOCAL_WRITE);
    if (mr != NULL) (void)t->verbs.dereg_mr(mr);
    return mr == NULL && errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS;
}

static lh_status_t open_port(lh_transport_t *t, const char *wanted, const char *names)
{
    ib_port_t *p = &t->ports[t->port_count];
    lh_status_t status = choose_address(t, wanted, names);
    if (status != LH_OK) return status;
    t->port_count++;
    status = look_at_port(t, p);
    if (status == LH_OK) status = look_at_card(t, p);
    if (status == LH_OK) status = check_class(t, p);
    if (status != LH_OK) return status;
    p->pd = t->verbs.alloc_pd(p->context);
    p->channel = t->verbs.create_channel(p->context);
    if (p->pd == NULL || p->channel == NULL || !make_nonblocking(p->channel->fd))
        return t->host->fail(t->host, LH_IO, "a protection domain and a completion channel of %s",
                             p->device);
    t->takes_dmabuf = (t->port_count == 1 || t->takes_dmabuf) && takes_dmabuf(t, p);
    t->rate += p->rate;
    return LH_OK;
}

const ib_port_t *ib_port_first_up(const lh_transport_t *t)
{
    const ib_port_t *first = t->ports;
    while (first + 1 < t->ports + t->port_count && first->down)
        first++;
    return first;
}

/* One that is up, to which the others are held. Those that are down are taken in when they come back,
 * which is seen by dialing. */
static lh_status_t check_ports(lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    const ib_port_t *first = ib_port_first_up(t);
    lh_status_t status = LH_OK;
    if (first->down)
        return host->fail(host, LH_NO_DEVICE, "port %u of %s is down%s", t->ports[0].number,
                          t->ports[0].device, t->port_count > 1 ? ", and so are the others" : "");
    for (uint32_t i = 0; i < t->port_count && status == LH_OK; i++) {
        ib_port_t *p = &t->ports[i];
        status = check_alike(t, first, p);
        if (status != LH_OK || !p->down) continue;
        p->mtu = first->mtu;
        host->log(host, LH_LOG_WARN, "port %u of %s is down; the others carry what there is",
                  p->number, p->device);
    }
    return status;
}

/* Each that `bind` lists. */
static lh_status_t open_ports(lh_transport_t *t, const char *names)
{
    const lh_host_t *host = t->host;
    const char *at = t->config->bind != NULL ? t->config->bind : "auto";
    lh_status_t status = LH_OK;
    for (bool more = true; more && status == LH_OK;) {
        char wanted[128];
        at += strspn(at, " ");
        const size_t length = strcspn(at, ", ");
        const char *behind = at + length + strspn(at + length, " ");
        if (length >= sizeof(wanted) || (*behind != ',' && *behind != '\0') ||
            (length == 0 && (*behind == ',' || t->port_count > 0)))
            return host->fail(host, LH_INVALID,
                              "bind = %s: expected auto, or addresses or interfaces with commas "
                              "between them",
                              t->config->bind);
        if (t->port_count == IB_PORTS_MOST)
            return host->fail(host, LH_INVALID, "bind = %s: a rank has %d ports at most",
                              t->config->bind, IB_PORTS_MOST);
        (void)snprintf(wanted, sizeof(wanted), "%.*s", (int)length, at);
        status = open_port(t, wanted, names);
        more = *behind == ',';
        at = behind + 1;
    }
    return status == LH_OK ? check_ports(t) : status;
}

lh_status_t ib_device_open(lh_transport_t *t)
{
    const lh_host_t *host = t->host;
    char names[256];
    lh_status_t status = ib_verbs_load(host, &t->verbs);
    if (status != LH_OK) return status;
    if (device_names(t, names, sizeof(names)) == 0)
        return host->fail(host, LH_NO_DEVICE, "this machine has no RDMA device");
    t->events = t->verbs.create_event_channel();
    if (t->events == NULL)
        return host->fail(host, LH_NO_DEVICE,
                          "the kernel's RDMA connection manager can't be used (%s): is the module "
                          "rdma_ucm loaded?",
                          strerror(errno));
    if (!make_nonblocking(t->events->fd)) return host->fail(host, LH_IO, "fcntl");
    return open_ports(t, names);
}

/* The longest way to a peer, as it was measured before or by short writes of this connection. */
static uint64_t longest_round_trip(const lh_transport_t *t)
{
    uint64_t longest = 0;
    for (const lh_conn_t *c = t->conns; c != NULL; c = c->next) {
        const uint64_t own = atomic_load_explicit(&c->round_trip_min_ns, memory_order_relaxed);
        const uint64_t trip = c->link.round_trip_ns > own ? c->link.round_trip_ns : own;
        if (c->state == IB_OPEN && trip > longest) longest = trip;
    }
    return longest;
}

/* Adaptive retransmission begins after 2 ms and leaves the ACK timeout aside. On a way that takes
 * longer everything is then sent again before its answer can be here, which looks like a bad link;
 * so it is said once, with what turns it off. */
void ib_device_watch(lh_transport_t *t, uint64_t pause_ns)
{
    enum { ADAPTIVE_MS = 2 };
    const lh_host_t *host = t->host;
    const ib_port_t *p = t->ports;
    const uint64_t now = host->now_ns(host);
    uint64_t counted = 0;
    char bus[128];
    if (t->adaptive_said || now - t->looked_ns < pause_ns) return;
    t->looked_ns = now;
    const uint64_t trip = longest_round_trip(t);
    if (trip < ADAPTIVE_MS * 1000000ull) return;
    for (; p < t->ports + t->port_count; p++) {
        counted = p->adaptive == UINT64_MAX
                      ? UINT64_MAX
                      : ib_card_counter(p->context->device->folder, p->number, adaptive_counter);
        if (counted != UINT64_MAX && counted > p->adaptive) break;
    }
    if (p == t->ports + t->port_count) return;
    t->adaptive_said = true;
    ib_card_bus(p->context->device->folder, bus, sizeof(bus));
    host->log(host, LH_LOG_WARN,
              "%s sends again by a timer of its own, not by ack_timeout (%s: %llu more): it begins "
              "with 2 ms, and an answer takes %.1f ms. As root, at both ends: mlxreg -d %s --yes "
              "--reg_name ROCE_ACCL --set "
              "\"roce_adp_retrans_field_select=0x1,roce_adp_retrans_en=0x0\"",
              p->device, adaptive_counter, (unsigned long long)(counted - p->adaptive),
              (double)trip * 1e-6, bus[0] != '\0' ? bus : p->device);
}

/* Whatever of it was opened. */
void ib_device_close(lh_transport_t *t)
{
    for (uint32_t i = 0; i < t->port_count; i++) {
        const ib_port_t *p = &t->ports[i];
        if (p->channel != NULL) (void)t->verbs.destroy_channel(p->channel);
        if (p->pd != NULL) (void)t->verbs.dealloc_pd(p->pd);
        if (p->anchor != NULL) (void)t->verbs.destroy_id(p->anchor);
    }
    if (t->events != NULL) t->verbs.destroy_event_channel(t->events);
}
