/* wrong_transports.c - transports that are wrong in one thing; the right one is shm. */
#include <fcntl.h>
#include <stdlib.h>

#include <longhaul/draft/onesided.h>

#include "wrong_plugin.h"

static const lh_host_t *the_host;

static lh_status_t open_transport(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    the_host = host;
    return right_plugin.transport->open(host, config, out);
}

/* ---- cards, listeners and connections ---- */

static lh_status_t claim_encryption(lh_transport_t *t, uint32_t nic, lh_nic_info_t *info)
{
    const lh_status_t status = right_plugin.transport->nic_info(t, nic, info);
    info->flags |= LH_CAN_ENCRYPT;
    return status;
}

WRONG(a_lock_without_a_key)
{
    transport.nic_info = claim_encryption;
}

static void cancel_nothing(lh_conn_t *c)
{
    (void)c;
}

WRONG(a_cancel_that_waits)
{
    transport.cancel = cancel_nothing;
}

static lh_status_t always_asleep(lh_transport_t *t)
{
    (void)t;
    return LH_OK;
}

static lh_status_t dead_descriptor(lh_transport_t *t, int *fd)
{
    static int pipes[2] = {-1, -1};
    (void)t;
    if (pipes[0] < 0 && posix_openpt(O_RDWR) < 0) return LH_IO;
    if (pipes[0] < 0) pipes[0] = posix_openpt(O_RDWR | O_NOCTTY);
    *fd = pipes[0];
    return LH_OK;
}

WRONG(a_sleep_without_end)
{
    transport.arm = always_asleep;
    transport.wait_fd = dead_descriptor;
}

static lh_status_t connect_anywhere(lh_transport_t *t, const lh_address_t *address,
                                    const lh_conn_params_t *how, lh_conn_t **out)
{
    if (address->length % 26 == 0 && address->length > 500) abort();
    return right_plugin.transport->connect(t, address, how, out);
}

WRONG(an_address_that_kills)
{
    transport.connect = connect_anywhere;
}

enum { LISTENERS = 60 };
static uint32_t listeners; /* that were not closed by themselves */

static lh_status_t listen_while_there_are(lh_transport_t *t, uint32_t nic, uint32_t security,
                                          lh_address_t *address, lh_listener_t **out)
{
    if (listeners == LISTENERS) return LH_IO;
    const lh_status_t status = right_plugin.transport->listen(t, nic, security, address, out);
    if (status == LH_OK) listeners++;
    return status;
}

static void close_one_listener(lh_listener_t *l)
{
    listeners--;
    right_plugin.transport->close_listener(l);
}

WRONG(listeners_that_a_close_forgets)
{
    transport.listen = listen_while_there_are;
    transport.close_listener = close_one_listener;
}

static lh_status_t connect_and_lose(lh_transport_t *t, const lh_address_t *address,
                                    const lh_conn_params_t *how, lh_conn_t **out)
{
    void *memory = the_host->alloc(the_host, 64, 64);
    if (memory == NULL) return LH_NO_MEMORY;
    const lh_status_t status = right_plugin.transport->connect(t, address, how, out);
    if (status != LH_NO_MEMORY) the_host->release(the_host, memory);
    return status;
}

WRONG(a_leak_when_dialing)
{
    transport.open = open_transport;
    transport.connect = connect_and_lose;
}

static lh_status_t accept_as_the_first(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out)
{
    static lh_hello_t first;
    static bool has_first;
    const lh_status_t status = right_plugin.transport->accept(l, hello, out);
    if (status != LH_OK) return status;
    if (!has_first) first = *hello;
    has_first = true;
    *hello = first;
    return LH_OK;
}

WRONG(a_hello_for_all)
{
    transport.accept = accept_as_the_first;
}

/* ---- messages ---- */

static lh_status_t send_less(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                             uint32_t tag, uint64_t cookie)
{
    return right_plugin.transport->isend(c, region, data, bytes == 4097 ? 4096 : bytes, tag,
                                         cookie);
}

WRONG(a_byte_short)
{
    transport.isend = send_less;
}

static lh_status_t send_or_forget(lh_conn_t *c, lh_region_t *region, const void *data,
                                  uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = right_plugin.transport->isend(c, region, data, bytes, tag, cookie);
    return status == LH_AGAIN && bytes == 300 ? LH_OK : status;
}

WRONG(sends_that_are_forgotten)
{
    transport.isend = send_or_forget;
}

static lh_status_t receive_or_forget(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes,
                                     uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = right_plugin.transport->irecv(c, region, data, bytes, tag, cookie);
    return status == LH_AGAIN && bytes == 8 ? LH_OK : status;
}

WRONG(receives_that_are_forgotten)
{
    transport.irecv = receive_or_forget;
}

static lh_status_t receive_at_words(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes,
                                    uint32_t tag, uint64_t cookie)
{
    char *word = (char *)data - (uintptr_t)data % 4;
    return right_plugin.transport->irecv(c, region, word, bytes, tag, cookie);
}

WRONG(receives_at_words_only)
{
    transport.irecv = receive_at_words;
}

/* One is held back, and goes behind the next. */
static lh_status_t send_in_disorder(lh_conn_t *c, lh_region_t *region, const void *data,
                                    uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    enum { LATE = 1500 };
    static uint32_t sends;
    static struct {
        lh_region_t *region;
        const void *data;
        uint64_t bytes, cookie;
        uint32_t tag;
    } held;
    if (++sends == LATE) {
        held.region = region, held.data = data, held.bytes = bytes;
        held.tag = tag, held.cookie = cookie;
        return LH_OK;
    }
    const lh_status_t status = right_plugin.transport->isend(c, region, data, bytes, tag, cookie);
    if (sends != LATE + 1) return status;
    if (status != LH_OK) sends--;
    return status != LH_OK ? status
                           : right_plugin.transport->isend(c, held.region, held.data, held.bytes,
                                                           held.tag, held.cookie);
}

WRONG(a_message_that_is_overtaken)
{
    transport.isend = send_in_disorder;
}

/* ---- events ---- */

static bool is_up;                       /* a connection of this process was */
static void (*spoil)(lh_wire_event_t *); /* type 0: it is not told */

static lh_status_t poll_and_spoil(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                                  uint32_t max, uint32_t *count)
{
    const lh_status_t status = right_plugin.transport->poll(t, events, event_size, max, count);
    uint32_t kept = 0;
    for (uint32_t i = 0; status == LH_OK && i < *count; i++) {
        if (events[i].type == LH_WIRE_UP) is_up = true;
        if (spoil != NULL) spoil(&events[i]);
        if (events[i].type != 0) events[kept++] = events[i];
    }
    *count = kept;
    return status;
}

static lh_status_t send_when_up(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                                uint32_t tag, uint64_t cookie)
{
    if (!is_up) return LH_INVALID;
    return right_plugin.transport->isend(c, region, data, bytes, tag, cookie);
}

WRONG(sends_only_when_up)
{
    transport.poll = poll_and_spoil;
    transport.isend = send_when_up;
}

static struct {
    char *data;
    uint64_t bytes, cookie;
} last_receive;

static lh_status_t receive_and_note(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes,
                                    uint32_t tag, uint64_t cookie)
{
    last_receive.data = data, last_receive.bytes = bytes, last_receive.cookie = cookie;
    return right_plugin.transport->irecv(c, region, data, bytes, tag, cookie);
}

static void clear_the_rest(lh_wire_event_t *e)
{
    if (e->type == LH_WIRE_RECEIVED && e->status == LH_OK && e->cookie == last_receive.cookie &&
        e->bytes < last_receive.bytes)
        last_receive.data[e->bytes] = 0;
}

WRONG(a_receive_that_is_cleared)
{
    spoil = clear_the_rest;
    transport.irecv = receive_and_note;
    transport.poll = poll_and_spoil;
}

static void call_it_lost(lh_wire_event_t *e)
{
    if (e->status == LH_TRUNCATED) e->status = LH_PEER_LOST;
}

WRONG(a_cut_that_is_called_a_loss)
{
    spoil = call_it_lost;
    transport.poll = poll_and_spoil;
}

static void name_no_tags(lh_wire_event_t *e)
{
    if (e->status == LH_MISMATCH) e->reason = "two tags differ";
}

WRONG(tags_that_are_not_named)
{
    spoil = name_no_tags;
    transport.poll = poll_and_spoil;
}

static void forget_receives(lh_wire_event_t *e)
{
    if (e->type == LH_WIRE_RECEIVED && e->status == LH_PEER_LOST) e->type = 0;
}

WRONG(receives_that_end_in_no_event)
{
    spoil = forget_receives;
    transport.poll = poll_and_spoil;
}

static void say_no_reason(lh_wire_event_t *e)
{
    if (e->type == LH_WIRE_DOWN && e->status == LH_UNREACHABLE) e->reason = NULL;
}

WRONG(a_refusal_without_a_reason)
{
    spoil = say_no_reason;
    transport.poll = poll_and_spoil;
}

static uint64_t unsent; /* the cookie of a send that is only said to be done; 0: none */

static lh_status_t send_never(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                              uint32_t tag, uint64_t cookie)
{
    if (bytes != 8000) return right_plugin.transport->isend(c, region, data, bytes, tag, cookie);
    unsent = cookie;
    return LH_OK;
}

static lh_status_t poll_and_say(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                                uint32_t max, uint32_t *count)
{
    const lh_status_t status = right_plugin.transport->poll(t, events, event_size, max, count);
    if (status != LH_OK || unsent == 0 || *count == max) return status;
    events[(*count)++] = (lh_wire_event_t){.type = LH_WIRE_SENT, .cookie = unsent, .bytes = 8000};
    unsent = 0;
    return LH_OK;
}

WRONG(a_send_that_is_only_said)
{
    transport.isend = send_never;
    transport.poll = poll_and_say;
}

/* ---- a peer's memory ---- */

static lh_status_t map_as_it_was(lh_remote_t *remote, const void **out)
{
    enum { BYTES = 3 << 20 };
    static char copy[BYTES];
    const lh_status_t status = right_plugin.transport->mapping->map(remote, out);
    if (status != LH_OK) return status;
    memcpy(copy, *out, BYTES);
    *out = copy;
    return LH_OK;
}

WRONG(a_map_that_is_a_copy)
{
    mapping.map = map_as_it_was;
}

static lh_status_t put_less(lh_conn_t *c, lh_region_t *region, const void *data,
                            lh_remote_t *remote, uint64_t offset, uint64_t bytes, uint32_t tag,
                            uint64_t cookie)
{
    const lh_one_sided_api_t *right = lh_draft_api(&right_plugin, LH_DRAFT_ONE_SIDED);
    return right->put(c, region, data, remote, offset, bytes > 2 ? bytes - 1 : bytes, tag, cookie);
}

WRONG(a_put_a_byte_short)
{
    static const lh_one_sided_api_t less = {.struct_size = sizeof(less), .put = put_less};
    drafts[0].api = &less;
}
