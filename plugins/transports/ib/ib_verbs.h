/* ib_verbs.h - what this transport uses of libibverbs and librdmacm: the layouts, and the functions.
 *
 * The two libraries are loaded when the transport is opened, so that one build runs on machines with
 * them and without, and needs no headers of theirs. The layouts below are their binary interface,
 * which has stood since IBVERBS_1.1 (2007); verbs_layout_test compares each field with the headers
 * where a machine has them. Names begin with verbs_ and cm_, so that both can be included at once.
 * A struct that the libraries allocate is declared as far as its last field that is used here. */
#ifndef IB_VERBS_H
#define IB_VERBS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <longhaul/host.h>

#include <netinet/in.h>

/* ---- libibverbs ---- */

typedef struct verbs_device {
    void (*former[2])(void);
    int node_type, transport_type;
    char name[64], uverbs_name[64];
    char uverbs_folder[256], folder[256]; /* in sysfs: /sys/class/infiniband/NAME is `folder` */
} verbs_device_t;
typedef struct verbs_open_device verbs_context_t;
typedef struct verbs_cq verbs_cq_t;
typedef struct verbs_qp verbs_qp_t;
typedef struct verbs_wc verbs_wc_t;
typedef struct verbs_send_wr verbs_send_wr_t;
typedef struct verbs_recv_wr verbs_recv_wr_t;

/* The functions of the fast path are found in the context, in a table that begins with entries of
 * former versions. */
typedef struct verbs_ops {
    void (*former[11])(void);
    int (*poll_cq)(verbs_cq_t *cq, int most, verbs_wc_t *out);
    int (*req_notify_cq)(verbs_cq_t *cq, int solicited_only);
    void (*others[12])(void);
    int (*post_send)(verbs_qp_t *qp, verbs_send_wr_t *first, verbs_send_wr_t **bad);
    int (*post_recv)(verbs_qp_t *qp, verbs_recv_wr_t *first, verbs_recv_wr_t **bad);
    void (*rest[5])(void);
} verbs_ops_t;

struct verbs_open_device { /* their struct has the name verbs_context for something else */
    verbs_device_t *device;
    verbs_ops_t ops;
    int command_fd, async_fd;
};

typedef struct verbs_pd { /* protection domain: who may use which memory */
    verbs_context_t *context;
    uint32_t handle;
} verbs_pd_t;

typedef struct verbs_mr { /* registered memory */
    verbs_context_t *context;
    verbs_pd_t *pd;
    void *address;
    size_t bytes;
    uint32_t handle;
    uint32_t lkey, rkey; /* what this end and what a peer names it by */
} verbs_mr_t;

typedef struct verbs_channel { /* on which completion queues say that they have something */
    verbs_context_t *context;
    int fd;
    int users;
} verbs_channel_t;

struct verbs_cq {
    verbs_context_t *context;
    verbs_channel_t *channel;
    void *cq_context;
    uint32_t handle;
    int entries;
};

typedef struct verbs_cap {
    uint32_t send_wrs, recv_wrs, send_sges, recv_sges, inline_bytes;
} verbs_cap_t;

typedef struct verbs_qp_init {
    void *qp_context;
    verbs_cq_t *send_cq, *recv_cq;
    void *srq;
    verbs_cap_t cap;
    int type; /* VERBS_RC */
    int signal_all;
} verbs_qp_init_t;

struct verbs_qp {
    verbs_context_t *context;
    void *qp_context;
    verbs_pd_t *pd;
    verbs_cq_t *send_cq, *recv_cq;
    void *srq;
    uint32_t handle;
    uint32_t number;
};

typedef struct verbs_sge { /* a piece of this end's memory */
    uint64_t address;
    uint32_t bytes;
    uint32_t lkey;
} verbs_sge_t;

struct verbs_send_wr {
    uint64_t id;
    verbs_send_wr_t *next;
    verbs_sge_t *sges;
    int sge_count;
    int opcode;         /* VERBS_WRITE... */
    unsigned int flags; /* VERBS_SIGNALED, VERBS_INLINE */
    uint32_t immediate; /* big-endian */
    struct {
        uint64_t address;
        uint32_t rkey;
    } remote;
    uint8_t others[72]; /* what other opcodes and types of queue pairs need */
};

struct verbs_recv_wr {
    uint64_t id;
    verbs_recv_wr_t *next;
    verbs_sge_t *sges;
    int sge_count;
};

struct verbs_wc { /* one completion; only id, status and pair are valid where status is not 0 */
    uint64_t id;
    int status; /* VERBS_WC_... */
    int opcode;
    uint32_t vendor;
    uint32_t bytes;
    uint32_t immediate; /* big-endian */
    uint32_t pair;      /* queue pair number */
    uint32_t from_pair;
    unsigned int flags;
    uint16_t pkey_index, slid;
    uint8_t sl, path_bits;
};

typedef struct verbs_limits { /* what a device has at most */
    char firmware[64];
    uint64_t guids[2], memory, pages;
    uint32_t vendor, part, version;
    int pairs, wrs; /* queue pairs, and work requests of each queue of one */
    unsigned int flags;
    int sges, read_sges;
    int queues, entries; /* completion queues, and entries of one */
    int others[22];
    uint16_t pkeys;
    uint8_t ack_delay, ports;
} verbs_limits_t;

typedef struct verbs_port { /* as far as the function of that name has ever filled it */
    int state;              /* VERBS_PORT_ACTIVE */
    int mtu_most, mtu;      /* 1: 256 ... 5: 4096 bytes */
    int gids;
    uint32_t capabilities, message_most, bad_pkeys, bad_qkeys;
    uint16_t pkeys, lid, sm_lid;
    uint8_t lmc, lanes_most, sm_sl, subnet_timeout, init_reply;
    uint8_t width, speed; /* codes: see ib_port_rate */
    uint8_t physical_state, link_layer, flags;
    uint16_t capabilities2;
} verbs_port_t;

typedef struct verbs_route { /* of packets that have a global header, as all of RoCE's have */
    uint64_t to[2];
    uint32_t flow_label;
    uint8_t gid, hops, traffic_class; /* gid: of this end, its place in the port's table */
} verbs_route_t;

typedef struct verbs_way { /* to a peer's port */
    verbs_route_t route;
    uint16_t lid;
    uint8_t sl, path_bits, static_rate;
    uint8_t has_route;
    uint8_t port;
} verbs_way_t;

typedef struct verbs_qp_attr {
    int state, former_state; /* VERBS_QP_... */
    int mtu;                 /* a code, as of a port */
    int migration;
    uint32_t qkey, first_in, first_out, peer_pair;
    unsigned int access;
    verbs_cap_t cap;
    verbs_way_t way, other_way;
    uint16_t pkey, other_pkey;
    uint8_t notify, draining, reads_out, reads_in, rnr_timer;
    uint8_t port, timeout, retries, rnr_retries;
    uint8_t other_port, other_timeout;
    uint32_t rate_limit;
} verbs_qp_attr_t;

typedef struct verbs_ece { /* enhanced features of cards, of which both ends must have the same */
    uint32_t vendor;       /* 0: none */
    uint32_t options, mask;
} verbs_ece_t;

enum { VERBS_RC = 2, VERBS_PORT_ACTIVE = 4 };
enum { VERBS_QP_INIT = 1, VERBS_QP_RTR = 2, VERBS_QP_RTS = 3, VERBS_QP_ERROR = 6 };
enum { VERBS_QP_STATE = 1 << 0 };
enum { VERBS_LINK_INFINIBAND = 1, VERBS_LINK_ETHERNET = 2 };
enum { VERBS_WRITE = 0, VERBS_WRITE_WITH_IMMEDIATE = 1 };
enum { VERBS_SIGNALED = 1 << 1, VERBS_INLINE = 1 << 3 };
enum { VERBS_LOCAL_WRITE = 1, VERBS_REMOTE_WRITE = 1 << 1 };
enum { VERBS_WC_SEND_WRITE = 1, VERBS_WC_RECEIVE_IMMEDIATE = 129 };
enum {
    VERBS_WC_OK = 0,
    VERBS_WC_LOCAL_PROTECTION = 4,
    VERBS_WC_FLUSHED = 5,
    VERBS_WC_REMOTE_INVALID = 9,
    VERBS_WC_REMOTE_ACCESS = 10,
    VERBS_WC_REMOTE_OPERATION = 11,
    VERBS_WC_RETRIES_EXCEEDED = 12,
    VERBS_WC_RNR_RETRIES_EXCEEDED = 13,
};

/* ---- librdmacm: queue pairs that are connected by IP addresses ---- */

typedef struct cm_channel {
    int fd;
} cm_channel_t;

typedef struct cm_id { /* one end of a connection that is, or will be */
    verbs_context_t *verbs;
    cm_channel_t *channel;
    void *context;
    verbs_qp_t *qp;
    union {
        struct sockaddr any;
        struct sockaddr_storage room;
    } from;
    union {
        struct sockaddr any;
        struct sockaddr_storage room;
    } to;
    uint8_t gids[36]; /* GIDs of both ends, and a partition key */
    void *paths;
    int path_count;
    int32_t reserved; /* the route was a struct, and ends here */
    int space;
    uint8_t port;
} cm_id_t;

typedef struct cm_param {
    const void *data; /* private: delivered with the event at the other end */
    uint8_t data_bytes;
    uint8_t responder_resources, initiator_depth, flow_control;
    uint8_t retries, rnr_retries;
    uint8_t srq;
    uint32_t pair;
} cm_param_t;

typedef struct cm_event {
    cm_id_t *id, *listen_id;
    int type;   /* CM_... */
    int status; /* -errno, or why it was rejected: CM_REJECTED_BY_... or another number */
    cm_param_t param;
} cm_event_t;

enum {
    CM_ADDRESS_RESOLVED,
    CM_ADDRESS_ERROR,
    CM_ROUTE_RESOLVED,
    CM_ROUTE_ERROR,
    CM_CONNECT_REQUEST,
    CM_CONNECT_RESPONSE,
    CM_CONNECT_ERROR,
    CM_UNREACHABLE,
    CM_REJECTED,
    CM_ESTABLISHED,
    CM_DISCONNECTED,
    CM_DEVICE_REMOVED,
};
/* Who rejects: with any other number it is a connection manager, for its own sake. */
enum { CM_REJECTED_BY_NOBODY = 8 /* listens there */, CM_REJECTED_BY_PROGRAM = 28 };
enum { CM_SPACE_TCP = 0x106 };
enum { CM_OPTION_ID = 0, CM_OPTION_TOS = 0, CM_OPTION_ACK_TIMEOUT = 3 };
/* Of private data, where librdmacm has taken its own share: the least of all link layers. */
enum { CM_REQUEST_BYTES = 56, CM_REPLY_BYTES = 196, CM_REJECT_BYTES = 148 };

/* ---- the functions: name here, name there, what it returns, what it takes ---- */

#define IB_VERBS_MAP(X)                                                                          \
    X(get_device_list, "ibv_get_device_list", verbs_device_t **, (int *count))                   \
    X(free_device_list, "ibv_free_device_list", void, (verbs_device_t * *list))                  \
    X(get_device_name, "ibv_get_device_name", const char *, (verbs_device_t * device))           \
    X(open_device, "ibv_open_device", verbs_context_t *, (verbs_device_t * device))              \
    X(close_device, "ibv_close_device", int, (verbs_context_t * context))                        \
    X(query_device, "ibv_query_device", int, (verbs_context_t * context, verbs_limits_t * out))  \
    X(query_port, "ibv_query_port", int,                                                         \
      (verbs_context_t * context, uint8_t port, verbs_port_t * out))                             \
    X(alloc_pd, "ibv_alloc_pd", verbs_pd_t *, (verbs_context_t * context))                       \
    X(dealloc_pd, "ibv_dealloc_pd", int, (verbs_pd_t * pd))                                      \
    X(reg_mr, "ibv_reg_mr", verbs_mr_t *,                                                        \
      (verbs_pd_t * pd, void *address, size_t bytes, int access))                                \
    X(dereg_mr, "ibv_dereg_mr", int, (verbs_mr_t * mr))                                          \
    X(create_channel, "ibv_create_comp_channel", verbs_channel_t *, (verbs_context_t * context)) \
    X(destroy_channel, "ibv_destroy_comp_channel", int, (verbs_channel_t * channel))             \
    X(create_cq, "ibv_create_cq", verbs_cq_t *,                                                  \
      (verbs_context_t * context, int entries, void *cq_context, verbs_channel_t *channel,       \
       int vector))                                                                              \
    X(destroy_cq, "ibv_destroy_cq", int, (verbs_cq_t * cq))                                      \
    X(create_qp, "ibv_create_qp", verbs_qp_t *, (verbs_pd_t * pd, verbs_qp_init_t * how))        \
    X(modify_qp, "ibv_modify_qp", int, (verbs_qp_t * qp, verbs_qp_attr_t * attr, int mask))      \
    X(destroy_qp, "ibv_destroy_qp", int, (verbs_qp_t * qp))                                      \
    X(get_cq_event, "ibv_get_cq_event", int,                                                     \
      (verbs_channel_t * channel, verbs_cq_t * *cq, void **cq_context))                          \
    X(ack_cq_events, "ibv_ack_cq_events", void, (verbs_cq_t * cq, unsigned int count))           \
    X(wc_status_text, "ibv_wc_status_str", const char *, (int status))

#define IB_CM_MAP(X)                                                                             \
    X(create_event_channel, "rdma_create_event_channel", cm_channel_t *, (void))                 \
    X(destroy_event_channel, "rdma_destroy_event_channel", void, (cm_channel_t * channel))       \
    X(create_id, "rdma_create_id", int,                                                          \
      (cm_channel_t * channel, cm_id_t * *out, void *context, int space))                        \
    X(destroy_id, "rdma_destroy_id", int, (cm_id_t * id))                                        \
    X(bind_address, "rdma_bind_addr", int, (cm_id_t * id, struct sockaddr * from))               \
    X(resolve_address, "rdma_resolve_addr", int,                                                 \
      (cm_id_t * id, struct sockaddr * from, struct sockaddr * to, int timeout_ms))              \
    X(resolve_route, "rdma_resolve_route", int, (cm_id_t * id, int timeout_ms))                  \
    X(init_qp_attr, "rdma_init_qp_attr", int, (cm_id_t * id, verbs_qp_attr_t * attr, int *mask)) \
    X(establish, "rdma_establish", int, (cm_id_t * id))                                          \
    X(connect, "rdma_connect", int, (cm_id_t * id, cm_param_t * param))                          \
    X(listen, "rdma_listen", int, (cm_id_t * id, int backlog))                                   \
    X(accept, "rdma_accept", int, (cm_id_t * id, cm_param_t * param))                            \
    X(reject, "rdma_reject", int, (cm_id_t * id, const void *data, uint8_t bytes))               \
    X(disconnect, "rdma_disconnect", int, (cm_id_t * id))                                        \
    X(get_event, "rdma_get_cm_event", int, (cm_channel_t * channel, cm_event_t * *out))          \
    X(ack_event, "rdma_ack_cm_event", int, (cm_event_t * event))                                 \
    X(source_port, "rdma_get_src_port", uint16_t, (cm_id_t * id))                                \
    X(set_option, "rdma_set_option", int,                                                        \
      (cm_id_t * id, int level, int option, void *value, size_t bytes))                          \
    X(event_text, "rdma_event_str", const char *, (int type))

/* Those that older versions of the libraries do not have; NULL then. */
#define IB_VERBS_LATER_MAP(X)                                                \
    X(query_ece, "ibv_query_ece", int, (verbs_qp_t * qp, verbs_ece_t * ece)) \
    X(set_ece, "ibv_set_ece", int, (verbs_qp_t * qp, verbs_ece_t * ece))     \
    X(reg_dmabuf_mr, "ibv_reg_dmabuf_mr", verbs_mr_t *,                      \
      (verbs_pd_t * pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access))

#define IB_CM_LATER_MAP(X)                                                         \
    X(set_local_ece, "rdma_set_local_ece", int, (cm_id_t * id, verbs_ece_t * ece)) \
    X(get_remote_ece, "rdma_get_remote_ece", int, (cm_id_t * id, verbs_ece_t * ece))

/* Both libraries, of which every function was found but those of later versions. They are never
 * unloaded: librdmacm keeps devices open and may have threads. */
typedef struct ib_verbs {
#define IB_POINTER(name, symbol, type, arguments) type(*name) arguments;
    IB_VERBS_MAP(IB_POINTER)
    IB_CM_MAP(IB_POINTER) IB_VERBS_LATER_MAP(IB_POINTER) IB_CM_LATER_MAP(IB_POINTER)
#undef IB_POINTER
} ib_verbs_t;

/* LH_NO_DEVICE with one sentence where a library, or a function of it, is missing. */
lh_status_t ib_verbs_load(const lh_host_t *host, ib_verbs_t *out);

#endif
