/* transport_cards.c - cards, listeners and the connections that begin there. */
#include <poll.h>
#include <time.h>

#include "transport_facts.h"

void capabilities_and_functions_agree(end_t *e)
{
    const lh_transport_api_t *api = e->api;
    static const struct {
        uint32_t security, flag;
    } levels[] = {{LH_SECURITY_PLAIN, 0},
                  {LH_SECURITY_KNOWN, LH_CAN_KNOW},
                  {LH_SECURITY_PROVEN, LH_CAN_PROVE},
                  {LH_SECURITY_PRIVATE, LH_CAN_ENCRYPT}};
    uint32_t count = 0;
    lh_nic_info_t wrong = {.struct_size = sizeof(wrong)};
    CHECK((api->wait_fd == NULL) == (api->arm == NULL), "wait_fd and arm come together");
    CHECK(api->nic_count(e->transport, &count) == LH_OK && count > 0);
    CHECK(api->nic_info(e->transport, count, &wrong) < 0, "a card that is not there");
    CHECK(e->nic.max_sends > 0 && e->nic.max_recvs > 0);
    CHECK(e->nic.max_message_bytes == 0 || e->nic.max_message_bytes >= LH_MESSAGE_LEAST,
          "max_message_bytes is %llu, a run may send %llu",
          (unsigned long long)e->nic.max_message_bytes, (unsigned long long)LH_MESSAGE_LEAST);
    CHECK((e->nic.memory_kinds & LH_MEM_HOST) != 0 && e->nic.name[0] != '\0');
    if (e->side == 0) return;
    for (uint32_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        lh_address_t address;
        lh_listener_t *l;
        const bool offered = (e->nic.flags & levels[i].flag) == levels[i].flag;
        const lh_status_t status = api->listen(e->transport, 0, levels[i].security, &address, &l);
        CHECK(offered ? status == LH_OK : status == LH_UNSUPPORTED, "level %u: %d", i, status);
        CHECK(api->security_levels == 0 || !offered ||
                  (api->security_levels >> levels[i].security & 1) != 0,
              "level %u is given, and security_levels lacks it", i);
        if (offered) api->close_listener(l);
    }
}

void a_sleeper_is_woken_by_a_message(end_t *e)
{
    int fd = -1;
    uint32_t naps = 0;
    lh_wire_event_t event;
    if (e->api->wait_fd == NULL) check_skip("it can't be slept on");
    end_meet(e);
    buffer_t b = buffer_new(e, 100, false, 0);
    CHECK(e->api->wait_fd(e->transport, &fd) == LH_OK && fd >= 0);
    for (uint32_t i = 0; i < 20; i++) {
        if (e->side == 1) {
            end_receive(e, &b, 0, 100, i, i);
            end_tell(e, "", 1);
            while (!end_take(e, LH_WIRE_RECEIVED, i, &event)) {
                struct pollfd p = {.fd = fd, .events = POLLIN};
                if (e->api->arm(e->transport) == LH_OK) {
                    naps++;
                    CHECK(poll(&p, 1, 2000) == 1, "nothing wakes it");
                }
                end_poll(e);
            }
        } else {
            char word;
            end_hear(e, &word, 1);
            (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
            end_send(e, &b, 0, 100, i, i);
            (void)end_await(e, LH_WIRE_SENT, i);
        }
    }
    if (e->side == 1) CHECK(naps >= 15 && naps < 400, "it slept %u times", naps);
    end_barrier(e);
}

void a_listener_serves_several_connections(end_t *e)
{
    enum { CONNS = 5 };
    lh_conn_t *conns[CONNS];
    end_listen(e, LH_SECURITY_PLAIN);
    buffer_t out = buffer_new(e, 64 * CONNS, false, 0), in = buffer_new(e, 64 * CONNS, false, 0);
    for (uint32_t i = 0; i < CONNS; i++) {
        conns[i] = end_join(e, i + 1, RIG_CONN + 1 + i);
        (void)end_await(e, LH_WIRE_UP, RIG_CONN + 1 + i);
    }
    for (uint32_t i = 0; i < CONNS; i++) {
        e->conn = conns[CONNS - 1 - i];
        buffer_fill(out.data + 64 * i, 64, i);
        end_send(e, &out, 64 * i, 64, i, 200 + i);
    }
    for (uint32_t i = 0; i < CONNS; i++) {
        e->conn = conns[CONNS - 1 - i];
        end_receive(e, &in, 64 * i, 64, i, 100 + i);
    }
    for (uint32_t i = 0; i < CONNS; i++) {
        (void)end_await(e, LH_WIRE_RECEIVED, 100 + i);
        (void)end_await(e, LH_WIRE_SENT, 200 + i);
        buffer_check(in.data + 64 * i, 64, i);
    }
    end_barrier(e);
}

void an_address_of_garbage_is_refused(end_t *e)
{
    if (e->side == 1) return;
    for (uint32_t seed = 0; seed < 40; seed++) {
        lh_conn_t *conn = NULL;
        lh_address_t address = {.length = seed * 26};
        const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
        for (uint32_t i = 0; i < address.length; i++)
            address.bytes[i] = (uint8_t)(i * 131 + seed * 29);
        if (e->api->connect(e->transport, &address, &params, &conn) != LH_OK) continue;
        (void)end_await(e, LH_WIRE_DOWN, RIG_CONN);
        (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
        e->api->close_conn(conn);
    }
}

void it_can_be_opened_and_closed_many_times(end_t *e)
{
    for (int i = 0; i < 100; i++) {
        lh_address_t address;
        lh_listener_t *l;
        lh_transport_t *t;
        CHECK(e->api->open(check_host(), e->config, &t) == LH_OK);
        CHECK(e->api->listen(t, 0, LH_SECURITY_PLAIN, &address, &l) == LH_OK);
        e->api->close(t);
    }
}

/* Both ends in one transport, as far as memory lets it come. */
static void live_a_little(end_t *e, lh_transport_t *t)
{
    char data[64];
    lh_wire_event_t events[8];
    lh_listener_t *l;
    lh_address_t address;
    lh_region_t *region;
    lh_hello_t hello;
    lh_conn_t *dialed, *met;
    uint32_t count;
    const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = data,
                              .bytes = sizeof(data),
                              .fd = -1,
                              .numa = -1};
    if (e->api->register_memory(t, 0, &arena, &region) != LH_OK) return;
    if (e->api->listen(t, 0, LH_SECURITY_PLAIN, &address, &l) != LH_OK) return;
    if (e->api->connect(t, &address, &params, &dialed) != LH_OK) return;
    bool admitted = false;
    for (int i = 0; i < 100; i++) {
        if (!admitted && e->api->accept(l, &hello, &met) == LH_OK)
            admitted = e->api->admit(met, &params) == LH_OK;
        if (i == 50) (void)e->api->isend(dialed, region, data, sizeof(data), 1, 1);
        if (e->api->poll(t, events, sizeof(events[0]), 8, &count) != LH_OK) return;
    }
}

void a_failed_allocation_is_survived_and_loses_nothing(end_t *e)
{
    const int64_t before = check_host_blocks();
    for (uint64_t n = 1; n < 1000; n++) {
        lh_transport_t *t;
        check_host_faults(&(host_faults_t){.failing_alloc = n});
        const lh_status_t status = e->api->open(check_host(), e->config, &t);
        CHECK(status == LH_OK || status == LH_NO_MEMORY, "status %d", status);
        if (status == LH_OK) {
            live_a_little(e, t);
            e->api->close(t);
        }
        CHECK(check_host_blocks() == before, "%lld blocks are lost when allocation %llu fails",
              (long long)(check_host_blocks() - before), (unsigned long long)n);
        if (check_host_allocs() < n) break;
    }
    check_host_faults(NULL);
}
