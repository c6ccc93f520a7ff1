/* ib_params.c - what the host and the INI want of a connection, before it meets anybody and while it
 * lives: level of security, tuning by the link's figures. */
#include <stdio.h>

#include "ib.h"

#define PATIENCE_NS 3000000000ull /* of a peer's silence, where the host names none */

/* What was asked for and can't be given is refused, never lowered. */
lh_status_t ib_check_security(lh_transport_t *t, uint32_t security)
{
    static const char *const names[] = {"plain", "known", "proven", "private"};
    uint8_t key[16];
    if (security == LH_SECURITY_PLAIN) return LH_OK;
    const bool sealed = security == LH_SECURITY_PRIVATE && ib_rules.seals;
    if (security == LH_SECURITY_KNOWN || sealed) /* the host's sentence where the job has no key */
        return t->host->derive_key(t->host, "rdma known", t->host->world->rank, key, sizeof(key));
    return t->host->fail(t->host, LH_UNSUPPORTED,
                         "security = %s is asked for; RDMA writes past the processor, so this "
                         "transport offers plain (a fabric that is trusted), known (both ends "
                         "prove the job's key when they meet)%s",
                         security <= LH_SECURITY_PRIVATE ? names[security] : "unknown",
                         ib_rules.seals ? " and private (sealed frames, for memory of the host)"
                                        : " and nothing more");
}

static ib_wish_t wish_of(const lh_transport_t *t, uint64_t ports)
{
    const ib_config_t *config = t->config;
    const ib_port_t *port = &t->ports[0];
    return (ib_wish_t){.queue_pairs = config->queue_pairs,
                       .chunk_bytes = config->chunk_bytes,
                       .window_bytes = config->window_bytes,
                       .ack_timeout = config->ack_timeout,
                       .pace = config->pace,
                       .ports = ports,
                       .pair_bytes = ib_card_pair_bytes(port->context->device->folder, port->mtu)};
}

lh_status_t ib_tune(lh_transport_t *t, const lh_link_t *link, uint32_t choice, lh_tuning_t *out,
                    char *why, size_t room)
{
    lh_link_t known = {.struct_size = sizeof(known)};
    lh_tuning_t chosen = {.struct_size = sizeof(chosen)};
    const ib_wish_t wish = wish_of(t, t->port_count);
    memcpy(&known, link, link->struct_size < sizeof(known) ? link->struct_size : sizeof(known));
    if (!ib_tuning_offer(&ib_rules, &wish, &known, t->rate, choice, &chosen)) return LH_UNSUPPORTED;
    const ib_tuning_t all = ib_tuning(&ib_rules, &wish, &known, &chosen, t->rate);
    (void)snprintf(
        why, room, "window %.3g MB over %u queue pairs, chunks of %.3g MiB, ACK timeout %.3g ms",
        (double)all.window_bytes / 1e6, all.queue_pairs, (double)all.chunk_bytes / 1048576,
        4.096e-3 * (double)((uint64_t)1 << all.ack_timeout));
    lh_fill(out, &chosen, sizeof(chosen));
    return LH_OK;
}

/* The INI's is the most. 0: none. */
static uint64_t pace_of(const ib_config_t *config, uint64_t wanted)
{
    const uint64_t pace = wanted == UINT64_MAX ? 0 : wanted;
    return config->pace != 0 && (pace == 0 || pace > config->pace) ? config->pace : pace;
}

/* Of the queue pairs that there are this end may use fewer, one of each port at least, so that who has begun with many
 * as nothing was measured needs no new connection for fewer; and all again. But not where the ACK timeout, which is of a
 * connection, is too short for the way by now: a new one then has a longer one, too. */
static void pairs_use(lh_conn_t *c, uint32_t wanted)
{
    const lh_transport_t *t = c->transport;
    const uint32_t least = c->peer_ports > t->port_count ? c->peer_ports : t->port_count;
    const uint64_t trip = atomic_load_explicit(&c->round_trip_min_ns, memory_order_relaxed);
    if (wanted == 0 || t->config->queue_pairs != 0) return;
    if (wanted < c->pair_count && ((uint64_t)4096 << c->tuning.ack_timeout) < 2 * trip) return;
    atomic_store_explicit(&c->pairs_used, wanted < least ? least : wanted, memory_order_relaxed);
}

/* What only a new connection can have, such as more queue pairs than it was made with, stays as it is, and a window is
 * what there are receive work requests for at most. */
lh_status_t ib_retune(lh_conn_t *c, const lh_tuning_t *wanted, lh_tuning_t *in_force)
{
    ib_tuning_t *u = &c->tuning;
    if (wanted != NULL) {
        const lh_host_t *host = c->transport->host;
        lh_tuning_t mine = {.struct_size = sizeof(mine)};
        memcpy(&mine, wanted,
               wanted->struct_size < sizeof(mine) ? wanted->struct_size : sizeof(mine));
        if (mine.chunk_bytes != 0)
            u->chunk_bytes = mine.chunk_bytes < IB_CHUNK_LEAST  ? IB_CHUNK_LEAST
                             : mine.chunk_bytes > IB_CHUNK_MOST ? IB_CHUNK_MOST
                                                                : mine.chunk_bytes;
        if (mine.inflight_bytes != 0) u->window_bytes = mine.inflight_bytes;
        pairs_use(c, mine.streams);
        u->window_most = ib_window_most(ib_pairs_used(c), u->chunk_bytes);
        if (u->window_bytes > u->window_most) u->window_bytes = u->window_most;
        if (mine.pace_bytes_per_second != 0)
            u->pace = pace_of(c->transport->config, mine.pace_bytes_per_second);
        ib_bucket_change(&c->bucket, u->pace, 2 * u->chunk_bytes, host->now_ns(host));
    }
    const bool framed = c->sealed.slots > 0; /* frames are as many and as long as they were made */
    if (in_force != NULL)
        LH_FILL(lh_tuning_t, in_force, .streams = ib_pairs_used(c),
                .chunk_bytes = framed ? ib_private_chunk(c) : u->chunk_bytes,
                .inflight_bytes = framed ? ib_private_window(c) : u->window_bytes,
                .pace_bytes_per_second = u->pace == 0 ? UINT64_MAX : u->pace);
    return LH_OK;
}

/* A window for which there are not enough receive work requests is refused where it was set by hand, else
 * cut. */
static lh_status_t window_fit(lh_conn_t *c)
{
    const lh_host_t *host = c->transport->host;
    ib_tuning_t *u = &c->tuning;
    if (u->window_bytes <= u->window_most) return LH_OK;
    if (c->transport->config->window_bytes != 0)
        return host->fail(host, LH_INVALID,
                          "window = %llu: %u queue pairs with %u receive work requests each and "
                          "chunks of %llu bytes have room for %llu; set more queue_pairs or a "
                          "larger chunk",
                          (unsigned long long)u->window_bytes, u->queue_pairs, IB_RECEIVES - 2,
                          (unsigned long long)u->chunk_bytes, (unsigned long long)u->window_most);
    host->log(host, LH_LOG_WARN,
              "rank %u: a window of %llu bytes is more than %u queue pairs have receive work "
              "requests for; %llu instead",
              c->peer, (unsigned long long)u->window_bytes, u->queue_pairs,
              (unsigned long long)u->window_most);
    u->window_bytes = u->window_most;
    return LH_OK;
}

/* What may leave without a credit grows with the number of queue pairs, and finds a work request on each. More than
 * a card has these for are refused where they were set by hand or the other end has chosen them, else there are
 * fewer, each port having one. */
static lh_status_t pairs_fit(lh_conn_t *c)
{
    const lh_transport_t *t = c->transport;
    const lh_host_t *host = t->host;
    const char *device = t->ports[t->wrs_port].device;
    const uint32_t most = (t->wrs - IB_RECEIVES) / IB_SPARE_EACH;
    const uint32_t least = c->peer_ports > t->port_count ? c->peer_ports : t->port_count;
    const uint32_t wanted = c->dials ? c->tuning.queue_pairs : c->pair_count;
    if (wanted <= most) return LH_OK;
    if (!c->dials || t->config->queue_pairs != 0 || most < least)
        return host->fail(
            host, LH_INVALID,
            "rank %u: a connection of %u queue pairs, and %s has %u work requests for "
            "each queue of one, enough for %u queue pairs",
            c->peer, wanted, device, t->wrs, most);
    host->log(
        host, LH_LOG_WARN,
        "rank %u: %s has %u work requests for each queue of a queue pair, enough for %u queue "
        "pairs; %u instead of %u",
        c->peer, device, t->wrs, most, most, wanted);
    c->tuning.queue_pairs = most;
    c->tuning.window_most = ib_window_most(most, c->tuning.chunk_bytes);
    return LH_OK;
}

lh_status_t ib_take_pairs(lh_conn_t *c)
{
    c->tuning.queue_pairs = c->pair_count;
    c->tuning.window_most = ib_window_most(c->pair_count, c->tuning.chunk_bytes);
    return window_fit(c);
}

/* Structs of the host may be shorter than this plugin's. How many queue pairs there are is for the end that
 * dials to choose: the other one has its number by now, whatever its own figures would make of the link. */
lh_status_t ib_take_params(lh_conn_t *c, const lh_conn_params_t *params)
{
    const lh_host_t *host = c->transport->host;
    lh_link_t link = {.struct_size = sizeof(link)};
    lh_tuning_t tuning = {.struct_size = sizeof(tuning)};
    const uint32_t own = c->transport->port_count;
    const ib_wish_t wish = wish_of(c->transport, c->peer_ports > own ? c->peer_ports : own);
    if (params->link != NULL)
        memcpy(&link, params->link,
               params->link->struct_size < sizeof(link) ? params->link->struct_size : sizeof(link));
    if (params->tuning != NULL)
        memcpy(&tuning, params->tuning,
               params->tuning->struct_size < sizeof(tuning) ? params->tuning->struct_size
                                                            : sizeof(tuning));
    ib_tuning_t *u = &c->tuning;
    *u = ib_tuning(&ib_rules, &wish, &link, &tuning, c->transport->rate);
    c->link = link;
    c->cookie = params->cookie;
    c->peer = params->peer;
    c->patience_ns = params->silence_ns != 0 ? params->silence_ns : PATIENCE_NS;
    ib_bucket_set(&c->bucket, u->pace, 2 * u->chunk_bytes, host->now_ns(host));
    const lh_status_t status = pairs_fit(c);
    if (status != LH_OK) return status;
    return c->dials ? window_fit(c) : ib_take_pairs(c);
}
