/* verbs_calls.c - the calls of libibverbs beside the fast path. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "verbs_fake.h"

#define CALL(type, name) FAKE_EXPORT type name

CALL(verbs_device_t **, ibv_get_device_list)(int *count);
CALL(void, ibv_free_device_list)(verbs_device_t **list);
CALL(const char *, ibv_get_device_name)(verbs_device_t *device);
CALL(verbs_context_t *, ibv_open_device)(verbs_device_t *device);
CALL(int, ibv_close_device)(verbs_context_t *context);
CALL(int, ibv_query_device)(verbs_context_t *context, verbs_limits_t *out);
CALL(int, ibv_query_port)(verbs_context_t *context, uint8_t port, verbs_port_t *out);
CALL(verbs_pd_t *, ibv_alloc_pd)(verbs_context_t *context);
CALL(int, ibv_dealloc_pd)(verbs_pd_t *pd);
CALL(verbs_mr_t *, ibv_reg_mr)(verbs_pd_t *pd, void *address, size_t bytes, int access);
CALL(int, ibv_dereg_mr)(verbs_mr_t *mr);
CALL(verbs_mr_t *, ibv_reg_dmabuf_mr)
(verbs_pd_t *pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access);
CALL(verbs_qp_t *, ibv_create_qp)(verbs_pd_t *pd, verbs_qp_init_t *how);
CALL(int, ibv_modify_qp)(verbs_qp_t *qp, verbs_qp_attr_t *attr, int mask);
CALL(int, ibv_destroy_qp)(verbs_qp_t *qp);
CALL(int, ibv_query_ece)(verbs_qp_t *qp, verbs_ece_t *ece);
CALL(int, ibv_set_ece)(verbs_qp_t *qp, verbs_ece_t *ece);
CALL(verbs_channel_t *, ibv_create_comp_channel)(verbs_context_t *context);
CALL(int, ibv_destroy_comp_channel)(verbs_channel_t *channel);
CALL(verbs_cq_t *, ibv_create_cq)
(verbs_context_t *context, int entries, void *cq_context, verbs_channel_t *channel, int vector);
CALL(int, ibv_destroy_cq)(verbs_cq_t *cq);
CALL(int, ibv_get_cq_event)(verbs_channel_t *channel, verbs_cq_t **cq, void **cq_context);
CALL(void, ibv_ack_cq_events)(verbs_cq_t *cq, unsigned int count);
CALL(const char *, ibv_wc_status_str)(int status);

verbs_device_t fake_devices[FAKE_DEVICES] = {{.name = "fake0"}, {.name = "fake1"}};

/* Of the environment, for who asks before an engine runs. */
static bool is_ordered_at_first(const char *order)
{
    const char *text = getenv("FAKE_VERBS");
    return text != NULL && engine.users == 0 && strstr(text, order) != NULL;
}

static int device_count(void)
{
    if (engine.orders.no_device != 0 || is_ordered_at_first("no_device=1")) return 0;
    return engine.orders.devices == 2 || is_ordered_at_first("devices=2") ? 2 : 1;
}

verbs_device_t **ibv_get_device_list(int *count)
{
    verbs_device_t **list = calloc(FAKE_DEVICES + 1, sizeof(*list));
    const char *folder = getenv("FAKE_VERBS_FOLDER");
    if (list == NULL) return NULL;
    if (folder != NULL)
        (void)snprintf(fake_devices[0].folder, sizeof(fake_devices[0].folder), "%s", folder);
    *count = device_count();
    for (int i = 0; i < *count; i++)
        list[i] = &fake_devices[i];
    return list;
}

void ibv_free_device_list(verbs_device_t **list)
{
    free(list);
}

const char *ibv_get_device_name(verbs_device_t *device)
{
    return device->name;
}

verbs_context_t *ibv_open_device(verbs_device_t *device)
{
    verbs_context_t *context = calloc(1, sizeof(*context));
    if (context != NULL) *context = (verbs_context_t){.device = device, .ops = fake_ops};
    return context;
}

int ibv_close_device(verbs_context_t *context)
{
    free(context);
    return 0;
}

int ibv_query_device(verbs_context_t *context, verbs_limits_t *out)
{
    (void)context;
    engine_lock();
    const uint64_t wrs = engine.orders.wrs_most, entries = engine.orders.cqe_most;
    engine_unlock();
    *out = (verbs_limits_t){.wrs = wrs != 0 ? (int)wrs : 1 << 14,
                            .entries = entries != 0 ? (int)entries : 1 << 20,
                            .ports = FAKE_DEVICE_PORT};
    return 0;
}

int ibv_query_port(verbs_context_t *context, uint8_t port, verbs_port_t *out)
{
    const uint64_t number = 1 + (context->device == &fake_devices[1]);
    if (port != FAKE_DEVICE_PORT) return EINVAL;
    engine_lock();
    const bool down = engine.orders.port_down != 0 || is_ordered_at_first("port_down=1") ||
                      engine.orders.dead_device == number;
    const bool other = engine.orders.mtu != 0 &&
                       (engine.orders.mtu_of == 0 || engine.orders.mtu_of == number);
    *out = (verbs_port_t){.state = down ? 1 : VERBS_PORT_ACTIVE,
                          .mtu_most = 5,
                          .mtu = other ? (int)engine.orders.mtu : 5,
                          .gids = 8,
                          .message_most = 1u << 30,
                          .width = 2,
                          .speed = 32,
                          .link_layer = engine.orders.infiniband_of == number
                                            ? VERBS_LINK_INFINIBAND
                                            : VERBS_LINK_ETHERNET};
    engine_unlock();
    return 0;
}

verbs_pd_t *ibv_alloc_pd(verbs_context_t *context)
{
    verbs_pd_t *pd = calloc(1, sizeof(*pd));
    if (pd != NULL) pd->context = context;
    return pd;
}

int ibv_dealloc_pd(verbs_pd_t *pd)
{
    free(pd);
    return 0;
}

/* Beside what is registered. */
static bool fits(size_t bytes)
{
    uint64_t all = bytes;
    for (uint32_t i = 0; i < FAKE_MRS; i++)
        if (engine.mrs[i] != NULL) all += engine.mrs[i]->bytes;
    return engine.orders.memory_most == 0 || all <= engine.orders.memory_most;
}

/* behind: NULL, or where memory of another kind is reached. */
static verbs_mr_t *register_at(verbs_pd_t *pd, void *address, size_t bytes, int access,
                               char *behind)
{
    static uint32_t made;
    verbs_mr_t *mr = NULL;
    engine_lock();
    uint32_t at = 0;
    while (at < FAKE_MRS && engine.mrs[at] != NULL)
        at++;
    if (at < FAKE_MRS && engine.orders.no_memory == 0 && fits(bytes)) mr = calloc(1, sizeof(*mr));
    if (mr != NULL) {
        *mr = (verbs_mr_t){.context = pd->context, .pd = pd, .address = address, .bytes = bytes};
        mr->lkey = mr->rkey = ++made % (1u << 20) * FAKE_MRS + at;
        engine.mrs[at] = mr;
        engine.access[at] = access;
        engine.behind[at] = behind;
        engine.counts.regions++;
    }
    engine_unlock();
    if (mr == NULL) errno = ENOMEM;
    return mr;
}

verbs_mr_t *ibv_reg_mr(verbs_pd_t *pd, void *address, size_t bytes, int access)
{
    return register_at(pd, address, bytes, access, NULL);
}

/* Any file that can be mapped stands for a dma-buf. */
verbs_mr_t *ibv_reg_dmabuf_mr(verbs_pd_t *pd, uint64_t offset, size_t bytes, uint64_t address,
                              int fd, int access)
{
    engine_lock();
    const bool none = engine.orders.no_dmabuf != 0, fails = engine.orders.dmabuf_fails != 0;
    engine_unlock();
    if (none || (fails && fd >= 0)) {
        errno = none ? EOPNOTSUPP : ENOMEM;
        return NULL;
    }
    char *behind = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (behind == MAP_FAILED) return NULL;
    verbs_mr_t *mr = register_at(pd, (void *)(uintptr_t)address, bytes, access, behind);
    if (mr == NULL) (void)munmap(behind, bytes);
    return mr;
}

int ibv_dereg_mr(verbs_mr_t *mr)
{
    engine_lock();
    engine.mrs[mr->rkey % FAKE_MRS] = NULL;
    char *behind = engine.behind[mr->rkey % FAKE_MRS];
    engine_unlock();
    if (behind != NULL) (void)munmap(behind, mr->bytes);
    free(mr);
    return 0;
}

/* ---- queue pairs ---- */

/* As a driver that locks what its card works on: 1 is a completion queue, 2 a queue pair. */
static bool is_locked_out(uint64_t what)
{
    engine_lock();
    const bool out = engine.orders.no_pinning == what;
    engine_unlock();
    if (out) errno = ENOMEM;
    return out;
}

verbs_qp_t *ibv_create_qp(verbs_pd_t *pd, verbs_qp_init_t *how)
{
    engine_lock();
    const uint64_t most = engine.orders.wrs_most;
    engine_unlock();
    if (most != 0 && (how->cap.send_wrs > most || how->cap.recv_wrs > most)) {
        errno = EINVAL;
        return NULL;
    }
    if (is_locked_out(2)) return NULL;
    fake_qp_t *q = calloc(1, sizeof(*q));
    if (q == NULL) return NULL;
    q->sends = calloc(how->cap.send_wrs, sizeof(q->sends[0]));
    q->receives = calloc(how->cap.recv_wrs, sizeof(q->receives[0]));
    if (q->sends == NULL || q->receives == NULL) abort();
    q->send_room = how->cap.send_wrs;
    q->receive_room = how->cap.recv_wrs;
    engine_lock();
    q->serial = ++engine.pairs_made;
    q->ece = (verbs_ece_t){.vendor = engine.orders.ece != 0 ? FAKE_VENDOR : 0,
                           .options = (uint32_t)engine.orders.ece};
    q->open = (verbs_qp_t){.context = pd->context,
                           .qp_context = how->qp_context,
                           .pd = pd,
                           .send_cq = how->send_cq,
                           .recv_cq = how->recv_cq,
                           .number = 0x100 + q->serial};
    q->behind = engine.qps;
    engine.qps = q;
    engine_unlock();
    return &q->open;
}

static void count_label(uint32_t label)
{
    uint32_t at = 0;
    while (at < FAKE_LABELS && engine.labels[at] != label && engine.labels[at] != 0)
        at++;
    if (at == FAKE_LABELS || engine.labels[at] == label) return;
    engine.labels[at] = label;
    engine.counts.labels++;
}

/* In the order that a card wants them; what it was told last is counted. */
int ibv_modify_qp(verbs_qp_t *qp, verbs_qp_attr_t *attr, int mask)
{
    fake_qp_t *q = (fake_qp_t *)qp;
    const bool follows = attr->state == q->state + 1 ||
                         (attr->state == VERBS_QP_INIT && q->state == VERBS_QP_INIT) ||
                         attr->state == VERBS_QP_ERROR;
    if ((mask & VERBS_QP_STATE) == 0 || !follows) return EINVAL;
    engine_lock();
    q->state = attr->state;
    q->connected = q->connected || attr->state == VERBS_QP_RTS;
    if (attr->state == VERBS_QP_ERROR) pair_fail(q, VERBS_WC_OK);
    if (attr->state == VERBS_QP_RTR) {
        count_label(attr->way.route.flow_label);
        engine.counts.gid = attr->way.route.gid;
        engine.counts.path_mtu = (uint64_t)attr->mtu;
        engine.counts.traffic_class = attr->way.route.traffic_class;
    }
    if (attr->state == VERBS_QP_RTS) engine.counts.ack_timeout = attr->timeout;
    engine_unlock();
    return 0;
}

int ibv_destroy_qp(verbs_qp_t *qp)
{
    engine_lock();
    pair_free((fake_qp_t *)qp);
    engine_unlock();
    return 0;
}

int ibv_query_ece(verbs_qp_t *qp, verbs_ece_t *ece)
{
    *ece = ((fake_qp_t *)qp)->ece;
    return 0;
}

/* What both have, before the queue pair may receive. */
int ibv_set_ece(verbs_qp_t *qp, verbs_ece_t *ece)
{
    fake_qp_t *q = (fake_qp_t *)qp;
    if (q->state != VERBS_QP_INIT) return EINVAL;
    if (q->ece.vendor == 0 || ece->vendor != q->ece.vendor) return EOPNOTSUPP;
    engine_lock();
    q->ece.options &= ece->options;
    engine.counts.ece_taken = q->ece.options;
    engine_unlock();
    return 0;
}

verbs_channel_t *ibv_create_comp_channel(verbs_context_t *context)
{
    fake_channel_t *c = calloc(1, sizeof(*c));
    if (c == NULL) return NULL;
    if (!events_open(&c->events)) {
        free(c);
        return NULL;
    }
    c->open = (verbs_channel_t){.context = context, .fd = c->events.fd};
    return &c->open;
}

int ibv_destroy_comp_channel(verbs_channel_t *channel)
{
    fake_channel_t *c = (fake_channel_t *)channel;
    if (c->open.users > 0) return EBUSY;
    events_close(&c->events);
    free(c);
    return 0;
}

verbs_cq_t *ibv_create_cq(verbs_context_t *context, int entries, void *cq_context,
                          verbs_channel_t *channel, int vector)
{
    (void)vector;
    engine_lock();
    const uint64_t most = engine.orders.cqe_most;
    engine_unlock();
    if (most != 0 && (uint64_t)entries > most) {
        errno = EINVAL;
        return NULL;
    }
    if (is_locked_out(1)) return NULL;
    fake_cq_t *cq = calloc(1, sizeof(*cq));
    if (cq != NULL) cq->rows = calloc((size_t)entries, sizeof(cq->rows[0]));
    if (cq == NULL || cq->rows == NULL) {
        free(cq);
        return NULL;
    }
    cq->open = (verbs_cq_t){
        .context = context, .channel = channel, .cq_context = cq_context, .entries = entries};
    cq->room = (uint32_t)entries;
    if (channel != NULL) channel->users++;
    return &cq->open;
}

static bool is_row(const void *row, const void *what)
{
    return row == what;
}

int ibv_destroy_cq(verbs_cq_t *open)
{
    fake_cq_t *cq = (fake_cq_t *)open;
    fake_channel_t *c = (fake_channel_t *)open->channel;
    engine_lock();
    if (c != NULL) {
        events_drop(&c->events, is_row, cq, NULL);
        c->open.users--;
    }
    engine_unlock();
    free(cq->rows);
    free(cq);
    return 0;
}

int ibv_get_cq_event(verbs_channel_t *channel, verbs_cq_t **cq, void **cq_context)
{
    fake_cq_t *row = events_get(&((fake_channel_t *)channel)->events);
    if (row == NULL) return -1;
    *cq = &row->open;
    *cq_context = row->open.cq_context;
    return 0;
}

void ibv_ack_cq_events(verbs_cq_t *cq, unsigned int count)
{
    (void)cq;
    (void)count;
}

const char *ibv_wc_status_str(int status)
{
    static const char *const texts[] = {
        [VERBS_WC_OK] = "success",
        [VERBS_WC_FLUSHED] = "Work Request Flushed Error",
        [VERBS_WC_REMOTE_INVALID] = "remote invalid request error",
        [VERBS_WC_REMOTE_ACCESS] = "remote access error",
        [VERBS_WC_RETRIES_EXCEEDED] = "transport retry counter exceeded",
        [21] = "general error",
    };
    if (status < 0 || status > 21 || texts[status] == NULL) return "an error";
    return texts[status];
}
