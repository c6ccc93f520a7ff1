/* bare_card.h - the least that the ib transport's own files ask of a card and of a host, where a test or a
 * fuzz target calls them without the libraries of verbs: registrations are rows of a table, what is
 * destroyed needs nothing, and the clock goes on by a microsecond at each look. What becomes of work
 * requests, and which queue pairs there are, is for whoever includes this. */
#ifndef BARE_CARD_H
#define BARE_CARD_H

#include <string.h>

#include <bare_host.h>
#include <ib.h>

enum { BARE_REGISTRATIONS = 8, BARE_KEY = 77 /* of the other end's board */ };

static struct {
    uint64_t now;
    verbs_mr_t mrs[BARE_REGISTRATIONS];
    uint32_t mr_count;
    verbs_cq_t cq;
    uint8_t peer[sizeof(ib_board_t)]; /* the other end's board: only its address is used */
} bare;

/* ---- the host ---- */

static inline void bare_log(LH_UNUSED const lh_host_t *host, LH_UNUSED int32_t level,
                            LH_UNUSED const char *fmt, ...)
{
}

static inline uint64_t bare_now(LH_UNUSED const lh_host_t *host)
{
    return bare.now += 1000;
}

static inline lh_status_t bare_random(LH_UNUSED const lh_host_t *host, void *out, size_t bytes)
{
    memset(out, 7, bytes);
    return LH_OK;
}

static const lh_world_t bare_world = {.struct_size = sizeof(bare_world), .size = 2};

/* The fields of a lh_host_t; further ones may follow. */
#define BARE_HOST                                                                               \
    .struct_size = sizeof(lh_host_t), .world = &bare_world, .log = bare_log, .fail = bare_fail, \
    .alloc = bare_alloc, .release = bare_release, .now_ns = bare_now, .random = bare_random,    \
    .count = bare_count

/* ---- the card ---- */

static inline verbs_mr_t *bare_reg_mr(verbs_pd_t *pd, void *address, size_t bytes,
                                      LH_UNUSED int access)
{
    if (bare.mr_count == BARE_REGISTRATIONS) abort();
    verbs_mr_t *mr = &bare.mrs[bare.mr_count++];
    *mr = (verbs_mr_t){
        .pd = pd, .address = address, .bytes = bytes, .lkey = bare.mr_count, .rkey = bare.mr_count};
    return mr;
}

static inline int bare_dereg_mr(verbs_mr_t *mr)
{
    mr->bytes = 0;
    return 0;
}

static inline verbs_cq_t *bare_create_cq(verbs_context_t *context, LH_UNUSED int entries,
                                         void *cq_context, LH_UNUSED verbs_channel_t *channel,
                                         LH_UNUSED int vector)
{
    bare.cq = (verbs_cq_t){.context = context, .cq_context = cq_context};
    return &bare.cq;
}

static inline int bare_destroy_cq(LH_UNUSED verbs_cq_t *cq)
{
    return 0;
}

static inline int bare_init_qp_attr(LH_UNUSED cm_id_t *id, LH_UNUSED verbs_qp_attr_t *attr,
                                    int *mask)
{
    *mask = VERBS_QP_STATE;
    return 0;
}

static inline int bare_destroy_qp(LH_UNUSED verbs_qp_t *qp)
{
    return 0;
}

static inline int bare_of_an_id(LH_UNUSED cm_id_t *id)
{
    return 0;
}

static inline const char *bare_why(LH_UNUSED int status)
{
    return "failed";
}

/* A transport of one port over a card that has just come; create_qp, modify_qp and get_event are yet to
 * be given. The three outlive it. */
static inline lh_transport_t bare_transport(const lh_host_t *host, const ib_config_t *config,
                                            verbs_context_t *context)
{
    memset(&bare, 0, sizeof(bare));
    return (lh_transport_t){.host = host,
                            .config = config,
                            .ports = {{.context = context, .mtu = 5, .adaptive = UINT64_MAX}},
                            .port_count = 1,
                            .wrs = IB_SEND_WRS,
                            .verbs = {.reg_mr = bare_reg_mr,
                                      .dereg_mr = bare_dereg_mr,
                                      .create_cq = bare_create_cq,
                                      .destroy_cq = bare_destroy_cq,
                                      .destroy_qp = bare_destroy_qp,
                                      .init_qp_attr = bare_init_qp_attr,
                                      .disconnect = bare_of_an_id,
                                      .destroy_id = bare_of_an_id,
                                      .wc_status_text = bare_why}};
}

/* A connection that is new becomes one whose queue pairs, ids[i] each, are all up. False: it could not be
 * equipped. */
static inline bool bare_conn_open(lh_conn_t *c, const ib_tuning_t *tuning, cm_id_t *ids)
{
    c->pair_count = tuning->queue_pairs;
    c->peer_board = (uint64_t)(uintptr_t)bare.peer;
    c->peer_ports = 1;
    c->tuning = *tuning;
    if (ib_conn_equip(c) != LH_OK) return false;
    for (uint32_t i = 0; i < c->pair_count; i++) {
        ids[i].context = &c->pairs[i].watch;
        c->pairs[i].id = &ids[i];
        c->pairs[i].peer_key = BARE_KEY;
        if (ib_pair_make(&c->pairs[i]) != LH_OK) return false;
        c->pairs[i].state = IB_PAIR_UP;
    }
    atomic_store(&c->pairs_up, c->pair_count);
    c->state = IB_OPEN;
    return true;
}

#endif
