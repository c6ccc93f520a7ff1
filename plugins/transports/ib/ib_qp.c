/* ib_qp.c - a queue pair's way through its states, which this transport takes itself: librdmacm says
 * what the two ends have agreed on, and here is added what it does not choose: the GID and with it the
 * version of RoCE, the MTU of the INI, a flow label for each queue pair, and enhanced features of cards
 * (ECE), where both ends have them.
 *
 * RoCE makes the UDP source port of the flow label's lower 14 bits, and switches spread packets over
 * paths of one cost by it. So queue pairs of a connection have labels that differ there, and one that
 * replaces another has a new one: it may find a way around what the other failed of. */
#include <errno.h>

#include "ib.h"

enum { LABELS = (1 << 14) - 1 };

/* The error is errno's then: the host's sentence ends with it, and so does a connection's. */
static lh_status_t qp_refuse(const ib_pair_t *p, const char *what, int error)
{
    const lh_conn_t *c = p->conn;
    const lh_host_t *host = c->transport->host;
    char limit[IB_LOCK_TEXT];
    ib_lock_text_of(c->transport, error, limit, sizeof(limit));
    errno = error;
    (void)host->fail(host, LH_IO, "%s of a queue pair of %s%s", what,
                     c->transport->ports[p->port].device, limit);
    errno = error;
    return LH_IO;
}

static verbs_qp_t *qp_create(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    const ib_verbs_t *v = &c->transport->verbs;
    const ib_port_t *port = &c->transport->ports[p->port];
    verbs_qp_init_t how = {
        .send_cq = c->cqs[p->port],
        .recv_cq = c->cqs[p->port],
        .cap = {.send_wrs = c->transport->wrs,
                .recv_wrs = c->transport->wrs,
                .send_sges = 1,
                .recv_sges = 1,
                .inline_bytes = IB_INLINE},
        .type = VERBS_RC,
    };
    verbs_qp_t *qp = v->create_qp(port->pd, &how);
    p->inline_bytes = IB_INLINE;
    if (qp != NULL) return qp;
    how.cap.inline_bytes = p->inline_bytes = 0; /* a device may have no room for them */
    return v->create_qp(port->pd, &how);
}

/* To a state, as librdmacm says, and with what is chosen here. */
static int qp_enter(ib_pair_t *p, int state)
{
    const lh_conn_t *c = p->conn;
    const ib_verbs_t *v = &c->transport->verbs;
    const ib_port_t *port = &c->transport->ports[p->port];
    verbs_qp_attr_t attr = {.state = state};
    int mask = 0;
    if (v->init_qp_attr(p->id, &attr, &mask) != 0) return errno != 0 ? errno : EIO;
    if (state == VERBS_QP_RTR) {
        /* Older kernels set bits that are their own alone. */
        if (port->link_layer == VERBS_LINK_INFINIBAND) mask &= ~0xe00000;
        if (attr.way.has_route != 0) {
            if (port->gid != IB_GID_OPEN) attr.way.route.gid = (uint8_t)port->gid;
            attr.way.route.flow_label = 1 +
                                        (c->label + p->index + IB_PAIRS_MOST * p->turn) % LABELS;
        }
        if (attr.mtu > (int)port->mtu) attr.mtu = port->mtu;
    }
    return v->modify_qp(p->qp, &attr, mask);
}

static bool has_ece(const ib_verbs_t *v)
{
    return v->query_ece != NULL && v->set_ece != NULL && v->set_local_ece != NULL &&
           v->get_remote_ece != NULL;
}

/* Tells the other end of what this one has, or has taken of what the other has. */
static void tell_ece(const ib_pair_t *p)
{
    const ib_verbs_t *v = &p->conn->transport->verbs;
    verbs_ece_t ece = {0};
    if (has_ece(v) && v->query_ece(p->qp, &ece) == 0 && ece.vendor != 0)
        (void)v->set_local_ece(p->id, &ece);
}

/* Where the other end has told of any. What a card does not take is none at the end that listens,
 * which then tells of none; the end that dials has offered it. */
static int take_ece(const ib_pair_t *p)
{
    const lh_conn_t *c = p->conn;
    const ib_verbs_t *v = &c->transport->verbs;
    verbs_ece_t ece = {0};
    if (!has_ece(v) || v->get_remote_ece(p->id, &ece) != 0 || ece.vendor == 0) return 0;
    ece.mask = 0;
    const int error = v->set_ece(p->qp, &ece);
    if (error == 0 && !c->dials) tell_ece(p);
    return c->dials && error != EOPNOTSUPP ? error : 0;
}

/* Credits of a later turn are its greeting's to set. */
lh_status_t ib_pair_make(ib_pair_t *p)
{
    lh_conn_t *c = p->conn;
    lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    if (p->sent == NULL) p->sent = host->alloc(host, IB_SEND_WRS * sizeof(*p->sent), 64);
    if (p->sent == NULL) {
        errno = ENOMEM;
        return LH_NO_MEMORY;
    }
    p->qp = qp_create(p);
    if (p->qp == NULL) return qp_refuse(p, "the making", errno);
    const int error = qp_enter(p, VERBS_QP_INIT);
    if (error != 0) return qp_refuse(p, "the first state", error);
    if (c->dials) tell_ece(p);
    p->spent = 0;
    p->failing = p->unanswered = p->flushed = false;
    p->stopped_ns = 0;
    p->heard_ns = host->now_ns(host);
    if (p->turn == 0) ib_credits_begin(&p->credits);
    if (ib_pair_receives(p, t->wrs)) return LH_OK;
    return qp_refuse(p, "receive work requests", errno);
}

/* The first state is entered again: what may be written here was agreed on since. */
lh_status_t ib_pair_ready(ib_pair_t *p)
{
    int error = qp_enter(p, VERBS_QP_INIT);
    if (error == 0) error = take_ece(p);
    if (error == 0) error = qp_enter(p, VERBS_QP_RTR);
    if (error == 0) error = qp_enter(p, VERBS_QP_RTS);
    return error == 0 ? LH_OK : qp_refuse(p, "the states", error);
}

bool ib_pair_stop(ib_pair_t *p)
{
    verbs_qp_attr_t attr = {.state = VERBS_QP_ERROR};
    return p->conn->transport->verbs.modify_qp(p->qp, &attr, VERBS_QP_STATE) == 0;
}

void ib_pair_unmake(ib_pair_t *p)
{
    if (p->qp != NULL) (void)p->conn->transport->verbs.destroy_qp(p->qp);
    p->qp = NULL;
}
