/* transport_facts.c - what every transport plugin must do, each fact run by two processes. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "transport_rig.h"

static const uint64_t sizes[] = {0,    1,    3,     7,     63,    64,     65,      1000,    4095,
                                 4096, 4097, 16384, 65535, 65549, 262147, 1048577, 67108864};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void exchange_sizes(end_t *e, bool shared)
{
    end_meet(e);
    buffer_t out = buffer_new(e, sizes[SIZES - 1], shared, LH_REMOTE_READ);
    buffer_t in = buffer_new(e, sizes[SIZES - 1], shared, LH_REMOTE_READ);
    for (uint32_t i = 0; i < SIZES; i++) {
        buffer_fill(out.data, sizes[i], i + e->side);
        end_receive(e, &in, 0, sizes[i], i, 100 + i);
        end_send(e, &out, 0, sizes[i], i, 200 + i);
        const lh_wire_event_t got = end_await(e, LH_WIRE_RECEIVED, 100 + i);
        const lh_wire_event_t sent = end_await(e, LH_WIRE_SENT, 200 + i);
        CHECK(got.status == LH_OK && got.bytes == sizes[i] && got.tag == i);
        CHECK(sent.status == LH_OK && sent.bytes == sizes[i]);
        buffer_check(in.data, sizes[i], i + 1 - e->side);
    }
    CHECK(e->event_count == 0, "an event too many");
    end_barrier(e);
    e->api->cancel(e->conn);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    e->api->close_conn(e->conn);
    buffer_free(e, &out);
    buffer_free(e, &in);
}

static void sizes_arrive(end_t *e)
{
    exchange_sizes(e, false);
}

/* Takes what the other end offers; NULL where the plugin does not map. */
static const char *offer_and_take(end_t *e, const buffer_t *mine, lh_remote_t **remote)
{
    lh_address_t offer = {0}, theirs;
    const void *map = NULL;
    lh_status_t status;
    const lh_one_sided_api_t *api = e->api->one_sided;
    if (api == NULL || api->map == NULL) check_skip("it maps no memory of a peer");
    while ((status = api->offer(e->conn, mine->region, &offer)) == LH_AGAIN)
        end_poll(e);
    CHECK(status == LH_OK);
    end_tell(e, &offer, sizeof(offer));
    end_hear(e, &theirs, sizeof(theirs));
    while ((status = api->take(e->conn, &theirs, remote)) == LH_AGAIN)
        end_poll(e);
    CHECK(status == LH_OK && api->map(*remote, &map) == LH_OK && map != NULL);
    end_barrier(e);
    return map;
}

static void mapped_memory_is_read_in_place(end_t *e)
{
    const uint64_t bytes = 3 << 20;
    end_meet(e);
    buffer_t mine = buffer_new(e, bytes, true, LH_REMOTE_READ);
    buffer_fill(mine.data, bytes, 11 + e->side);
    lh_remote_t *remote;
    const char *theirs = offer_and_take(e, &mine, &remote);
    buffer_check(theirs, bytes, 11 + 1 - e->side);
    end_barrier(e);
    buffer_fill(mine.data, bytes, 50 + e->side);
    end_barrier(e);
    buffer_check(theirs, bytes, 50 + 1 - e->side);
    end_barrier(e);
    e->api->one_sided->forget(remote);
}

/* Sizes again, where the receiver could copy straight from the sender's memory. */
static void sizes_arrive_from_mapped_memory(end_t *e)
{
    end_meet(e);
    const uint64_t most = sizes[SIZES - 1];
    buffer_t out = buffer_new(e, most, true, LH_REMOTE_READ);
    buffer_t in = buffer_new(e, most, false, 0);
    lh_remote_t *remote;
    (void)offer_and_take(e, &out, &remote);
    for (uint32_t i = 0; i < SIZES; i++) {
        const uint64_t at = most - sizes[i] > 5 ? 5 : 0;
        buffer_fill(out.data + at, sizes[i], i + e->side);
        end_receive(e, &in, 0, sizes[i], i, 100 + i);
        end_send(e, &out, at, sizes[i], i, 200 + i);
        CHECK(end_await(e, LH_WIRE_RECEIVED, 100 + i).bytes == sizes[i]);
        CHECK(end_await(e, LH_WIRE_SENT, 200 + i).status == LH_OK);
        buffer_check(in.data, sizes[i], i + 1 - e->side);
    }
    end_barrier(e);
}

static void unaligned_memory_is_taken(end_t *e)
{
    static const uint64_t starts[] = {1, 3, 17, 4095};
    end_meet(e);
    buffer_t out = buffer_new(e, 1 << 20, false, 0), in = buffer_new(e, 1 << 20, false, 0);
    for (uint32_t i = 0; i < 4; i++) {
        const uint64_t bytes = 99991 * (uint64_t)(i + 1) / 3;
        memset(in.data, 0x55, in.bytes);
        buffer_fill(out.data + starts[i], bytes, i);
        end_receive(e, &in, starts[3 - i], bytes, 5, 1);
        end_send(e, &out, starts[i], bytes, 5, 2);
        (void)end_await(e, LH_WIRE_RECEIVED, 1);
        (void)end_await(e, LH_WIRE_SENT, 2);
        buffer_check(in.data + starts[3 - i], bytes, i);
        CHECK(in.data[starts[3 - i] - 1] == 0x55 && in.data[starts[3 - i] + bytes] == 0x55,
              "bytes around the receive were written");
    }
    end_barrier(e);
}

static void a_receive_may_be_longer_than_its_message(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    memset(b.data, 0x55, b.bytes);
    if (e->side == 0) buffer_fill(b.data, 100001, 3);
    if (e->side == 1) end_receive(e, &b, 0, b.bytes, 9, 1);
    if (e->side == 0) end_send(e, &b, 0, 100001, 9, 1);
    if (e->side == 0) (void)end_await(e, LH_WIRE_SENT, 1);
    if (e->side == 1) {
        CHECK(end_await(e, LH_WIRE_RECEIVED, 1).bytes == 100001);
        buffer_check(b.data, 100001, 3);
        CHECK(b.data[100001] == 0x55);
    }
    end_barrier(e);
}

static void posting_is_allowed_before_the_connection_is_up(end_t *e)
{
    end_listen(e, LH_SECURITY_PLAIN);
    buffer_t out = buffer_new(e, 5000, false, 0), in = buffer_new(e, 5000, false, 0);
    buffer_fill(out.data, 5000, e->side);
    e->conn = end_join(e, LH_SERVICE_BULK, RIG_CONN);
    end_receive(e, &in, 0, 5000, 1, 1);
    end_send(e, &out, 0, 5000, 1, 2);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    (void)end_await(e, LH_WIRE_RECEIVED, 1);
    (void)end_await(e, LH_WIRE_SENT, 2);
    buffer_check(in.data, 5000, 1 - e->side);
    end_barrier(e);
}

/* Posts sends until it is told that there is no more room; nothing of what was taken is lost. */
static void a_full_queue_says_again_and_loses_nothing(end_t *e)
{
    const uint64_t bytes = 300;
    uint32_t posted = 0;
    end_meet(e);
    buffer_t b = buffer_new(e, bytes << 14, false, 0);
    if (e->side == 0) {
        lh_status_t status = LH_OK;
        while (status == LH_OK && posted < 1 << 14) {
            char *data = b.data + posted * bytes;
            buffer_fill(data, bytes, posted);
            status = e->api->isend(e->conn, b.region, data, bytes, posted, posted);
            posted += status == LH_OK;
        }
        CHECK(status == LH_AGAIN && posted >= e->nic.max_sends, "status %d after %u", status,
              posted);
        end_tell(e, &posted, sizeof(posted));
        for (uint32_t i = 0; i < posted; i++)
            CHECK(end_await(e, LH_WIRE_SENT, i).status == LH_OK);
    } else {
        end_hear(e, &posted, sizeof(posted));
        for (uint32_t i = 0; i < posted; i++)
            end_receive(e, &b, i * bytes, bytes, i, i);
        for (uint32_t i = 0; i < posted; i++)
            (void)end_await(e, LH_WIRE_RECEIVED, i);
        for (uint32_t i = 0; i < posted; i++)
            buffer_check(b.data + i * bytes, bytes, i);
    }
    end_barrier(e);
}

static void a_full_queue_of_receives_says_again(end_t *e)
{
    uint32_t posted = 0;
    end_meet(e);
    buffer_t b = buffer_new(e, (uint64_t)8 << 14, false, 0);
    if (e->side == 1) {
        lh_status_t status = LH_OK;
        while (status == LH_OK && posted < 1 << 14) {
            status = e->api->irecv(e->conn, b.region, b.data + 8 * posted, 8, posted, posted);
            posted += status == LH_OK;
        }
        CHECK(status == LH_AGAIN && posted >= e->nic.max_recvs, "status %d after %u", status,
              posted);
        end_tell(e, &posted, sizeof(posted));
        for (uint32_t i = 0; i < posted; i++)
            (void)end_await(e, LH_WIRE_RECEIVED, i);
        for (uint32_t i = 0; i < posted; i++)
            buffer_check(b.data + 8 * i, 8, i);
    } else {
        end_hear(e, &posted, sizeof(posted));
        for (uint32_t i = 0; i < posted; i++) {
            buffer_fill(b.data + 8 * i, 8, i);
            end_send(e, &b, 8 * i, 8, i, i);
        }
        for (uint32_t i = 0; i < posted; i++)
            (void)end_await(e, LH_WIRE_SENT, i);
    }
    end_barrier(e);
}

static uint64_t length_of(uint32_t i)
{
    const uint32_t mixed = i * 2654435761u;
    return mixed % 7 == 0 ? mixed % 90001 : mixed % 513;
}

/* Both directions at once, many sizes, as fast as both go. */
static void messages_of_a_direction_keep_their_order(end_t *e)
{
    enum { MESSAGES = 2000, ROOM = 90112, SLOTS = 8 };
    end_meet(e);
    buffer_t out = buffer_new(e, (uint64_t)ROOM * SLOTS, false, 0);
    buffer_t in = buffer_new(e, (uint64_t)ROOM * SLOTS, false, 0);
    uint32_t sent = 0, freed = 0, posted = 0, got = 0;
    lh_wire_event_t event;
    const uint64_t until = check_now_ns() + 20000000000ull;
    while (freed < MESSAGES || got < MESSAGES) {
        CHECK(check_now_ns() < until);
        if (sent < MESSAGES && sent < freed + SLOTS) {
            char *data = out.data + sent % SLOTS * ROOM;
            buffer_fill(data, length_of(sent), sent);
            if (e->api->isend(e->conn, out.region, data, length_of(sent), sent, sent) == LH_OK)
                sent++;
        }
        if (posted < MESSAGES && posted < got + SLOTS &&
            e->api->irecv(e->conn, in.region, in.data + posted % SLOTS * ROOM, ROOM, posted,
                          posted) == LH_OK)
            posted++;
        end_poll(e);
        if (freed < MESSAGES && end_take(e, LH_WIRE_SENT, freed, &event)) freed++;
        if (got < MESSAGES && end_take(e, LH_WIRE_RECEIVED, got, &event)) {
            CHECK(event.bytes == length_of(got));
            buffer_check(in.data + got % SLOTS * ROOM, event.bytes, got);
            got++;
        }
    }
    end_barrier(e);
}

/* Ends of a broken connection: it is down for this reason, and what was outstanding drains. */
static lh_wire_event_t expect_down(end_t *e, lh_status_t why)
{
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == why, "status %d instead of %d: %s", down.status, why, down.reason);
    CHECK(down.reason[0] != '\0', "it says why");
    return down;
}

static void a_message_too_long_ends_both_as_truncated(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 5000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 4999, 3, 1);
    end_barrier(e);
    if (e->side == 0) end_send(e, &b, 0, 5000, 3, 1);
    (void)expect_down(e, LH_TRUNCATED);
    if (e->side == 1) CHECK(end_await(e, LH_WIRE_RECEIVED, 1).status == LH_TRUNCATED);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    end_barrier(e);
}

static void two_tags_that_differ_end_both_and_are_named(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 64, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 64, 4711, 1);
    end_barrier(e);
    if (e->side == 0) end_send(e, &b, 0, 64, 8150, 1);
    const lh_wire_event_t down = expect_down(e, LH_MISMATCH);
    CHECK(strstr(down.reason, "4711") != NULL && strstr(down.reason, "8150") != NULL, "%s",
          down.reason);
    if (e->side == 1) CHECK(end_await(e, LH_WIRE_RECEIVED, 1).status == LH_MISMATCH);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    end_barrier(e);
}

static void post_some(end_t *e, const buffer_t *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        end_receive(e, b, 0, 1000, 1, 100 + i);
        end_send(e, b, 1000, 100000, 1, 200 + i);
    }
}

/* One event each, whatever its status, and DRAINED behind them all. */
static void expect_drained(end_t *e, uint32_t count)
{
    lh_wire_event_t event;
    const uint64_t until = check_now_ns() + 100000000;
    while (!end_take(e, LH_WIRE_DRAINED, RIG_CONN, &event)) {
        end_poll(e);
        CHECK(check_now_ns() < until, "not drained within 100 ms");
    }
    for (uint32_t i = 0; i < count; i++) {
        CHECK(end_take(e, LH_WIRE_RECEIVED, 100 + i, &event));
        CHECK(end_take(e, LH_WIRE_SENT, 200 + i, &event));
    }
    for (int i = 0; i < 100; i++)
        end_poll(e);
    CHECK(e->event_count == 0, "an event after the last");
    CHECK(e->api->isend(e->conn, NULL, "", 0, 1, 1) < 0, "a dead connection takes no send");
}

static void a_killed_peer_is_noticed_and_all_drains(end_t *e)
{
    const uint64_t limit_ns = 3500000000ull;
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    end_barrier(e);
    if (e->side == 1) {
        end_poll(e);
        (void)raise(SIGKILL);
    }
    const uint64_t begin = check_now_ns();
    post_some(e, &b, 4);
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == LH_PEER_LOST || down.status == LH_TIMED_OUT, "status %d", down.status);
    CHECK(check_now_ns() - begin < limit_ns);
    (void)fprintf(stderr, "    noticed after %.1f ms\n", (double)(check_now_ns() - begin) / 1e6);
    expect_drained(e, 4);
    e->api->close_conn(e->conn);
    buffer_free(e, &b);
}

static void a_cancel_is_local_and_drains(end_t *e)
{
    char word = 0;
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    if (e->side == 0) {
        post_some(e, &b, 4);
        end_poll(e);
        e->api->cancel(e->conn);
        expect_drained(e, 4);
        e->api->close_conn(e->conn);
        end_tell(e, &word, 1);
    } else { /* does nothing meanwhile, and then learns of it */
        CHECK(read(e->channel, &word, 1) == 1);
        (void)expect_down(e, LH_PEER_LOST);
        (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    }
}

static void what_was_sent_before_a_close_still_arrives(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 8000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 8000, 1, 1);
    end_barrier(e);
    if (e->side == 0) {
        buffer_fill(b.data, 8000, 4);
        end_send(e, &b, 0, 8000, 1, 1);
        (void)end_await(e, LH_WIRE_SENT, 1);
        char word;
        end_hear(e, &word, 1);
    } else {
        (void)end_await(e, LH_WIRE_RECEIVED, 1);
        buffer_check(b.data, 8000, 4);
        end_tell(e, "", 1);
    }
}

static void capabilities_and_functions_agree(end_t *e)
{
    const lh_transport_api_t *api = e->api;
    static const struct {
        uint32_t security, flag;
    } levels[] = {{LH_SECURITY_PLAIN, 0},
                  {LH_SECURITY_PROVEN, LH_CAN_PROVE},
                  {LH_SECURITY_PRIVATE, LH_CAN_ENCRYPT}};
    uint32_t count = 0;
    lh_nic_info_t wrong = {.struct_size = sizeof(wrong)};
    CHECK((api->wait_fd == NULL) == (api->arm == NULL), "wait_fd and arm come together");
    CHECK(api->nic_count(e->transport, &count) == LH_OK && count > 0);
    CHECK(api->nic_info(e->transport, count, &wrong) < 0, "a card that is not there");
    CHECK(e->nic.max_sends > 0 && e->nic.max_recvs > 0 && e->nic.max_message_bytes > 0);
    CHECK((e->nic.memory_kinds & LH_MEM_HOST) != 0 && e->nic.name[0] != '\0');
    if (e->side == 0) return;
    for (uint32_t i = 0; i < 3; i++) {
        lh_address_t address;
        lh_listener_t *l;
        const bool offered = (e->nic.flags & levels[i].flag) == levels[i].flag;
        const lh_status_t status = api->listen(e->transport, 0, levels[i].security, &address, &l);
        CHECK(offered ? status == LH_OK : status == LH_UNSUPPORTED, "level %u: %d", i, status);
        if (offered) api->close_listener(l);
    }
}

static void a_sleeper_is_woken_by_a_message(end_t *e)
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

static void a_listener_serves_several_connections(end_t *e)
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

static void an_address_of_garbage_is_refused(end_t *e)
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

static void a_dialer_that_is_not_admitted_learns_it(end_t *e)
{
    end_listen(e, LH_SECURITY_PLAIN);
    const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
    if (e->side == 0) {
        e->conn = end_dial(e, &params);
        (void)end_await(e, LH_WIRE_DOWN, RIG_CONN);
        (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    } else {
        lh_hello_t hello;
        lh_conn_t *conn;
        lh_status_t status;
        while ((status = e->api->accept(e->listener, &hello, &conn)) == LH_AGAIN)
            end_poll(e);
        CHECK(status == LH_OK);
        e->api->close_conn(conn);
    }
    end_barrier(e);
}

static void puts_arrive_in_order(end_t *e)
{
    const lh_one_sided_api_t *api = e->api->one_sided;
    if (api == NULL) check_skip("it offers no one-sided writes");
    const uint64_t bytes = 1 << 20;
    lh_address_t offer = {0};
    lh_remote_t *remote;
    lh_status_t status;
    end_meet(e);
    buffer_t b = buffer_new(e, bytes, true, LH_REMOTE_WRITE | LH_REMOTE_READ);
    if (e->side == 1) {
        while ((status = api->offer(e->conn, b.region, &offer)) == LH_AGAIN)
            end_poll(e);
        CHECK(status == LH_OK);
        end_tell(e, &offer, sizeof(offer));
        CHECK(end_await(e, LH_WIRE_ARRIVED, RIG_CONN).tag == 71);
        buffer_check(b.data + 100, bytes / 2, 1);
        CHECK(end_await(e, LH_WIRE_ARRIVED, RIG_CONN).tag == 72);
    } else {
        end_hear(e, &offer, sizeof(offer));
        while ((status = api->take(e->conn, &offer, &remote)) == LH_AGAIN)
            end_poll(e);
        CHECK(status == LH_OK);
        buffer_fill(b.data, bytes / 2, 1);
        CHECK(api->put(e->conn, b.region, b.data, remote, 100, bytes / 2, 71, 5) == LH_OK);
        CHECK(api->put(e->conn, b.region, b.data, remote, 0, 0, 72, 6) == LH_OK);
        CHECK(api->put(e->conn, b.region, b.data, remote, bytes - 1, 2, 0, 7) < 0, "past the end");
        (void)end_await(e, LH_WIRE_PUT, 5);
        (void)end_await(e, LH_WIRE_PUT, 6);
    }
    end_barrier(e);
}

static void it_can_be_opened_and_closed_many_times(end_t *e)
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

static void a_failed_allocation_is_survived_and_loses_nothing(end_t *e)
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

/* function, check, what holds, whether side 1 is killed */
#define FACTS(X)                                                                                  \
    X(capabilities_and_functions_agree, "transport.capabilities",                                 \
      "what its card says it can and the functions that it has agree", false)                     \
    X(it_can_be_opened_and_closed_many_times, "transport.listens_again",                          \
      "it listens again and again", false)                                                        \
    X(a_failed_allocation_is_survived_and_loses_nothing, "transport.out_of_memory",               \
      "with a connection under way too, any allocation may fail", false)                          \
    X(sizes_arrive, "transport.sizes",                                                            \
      "messages of 0 bytes to 64 MiB arrive as they were, both ways", false)                      \
    X(sizes_arrive_from_mapped_memory, "transport.sizes_mapped",                                  \
      "likewise out of memory that the peer has mapped", false)                                   \
    X(mapped_memory_is_read_in_place, "transport.mapped", "a peer's memory is read in place",     \
      false)                                                                                      \
    X(unaligned_memory_is_taken, "transport.unaligned", "messages may begin and end anywhere",    \
      false)                                                                                      \
    X(a_receive_may_be_longer_than_its_message, "transport.longer_receive",                       \
      "a receive may be longer than its message", false)                                          \
    X(posting_is_allowed_before_the_connection_is_up, "transport.early_posts",                    \
      "what is posted before the connection is up goes through", false)                           \
    X(a_full_queue_says_again_and_loses_nothing, "transport.full_sends",                          \
      "sends beyond its depth are LH_AGAIN, and none that it took is lost", false)                \
    X(a_full_queue_of_receives_says_again, "transport.full_receives", "likewise receives", false) \
    X(messages_of_a_direction_keep_their_order, "transport.order",                                \
      "messages of one direction keep their order", false)                                        \
    X(a_message_too_long_ends_both_as_truncated, "transport.truncated",                           \
      "a receive that is too short ends both ends in LH_TRUNCATED", false)                        \
    X(two_tags_that_differ_end_both_and_are_named, "transport.tags",                              \
      "tags that differ end both ends in LH_MISMATCH, and both are named", false)                 \
    X(a_killed_peer_is_noticed_and_all_drains, "transport.killed_peer",                           \
      "a killed peer is noticed in time, and every operation ends in one event", true)            \
    X(a_cancel_is_local_and_drains, "transport.cancel",                                           \
      "a cancel drains within 100 ms whatever the peer does", false)                              \
    X(what_was_sent_before_a_close_still_arrives, "transport.close",                              \
      "what was sent before a close still arrives", false)                                        \
    X(a_sleeper_is_woken_by_a_message, "transport.sleep",                                         \
      "who sleeps on its descriptor is woken by a message", false)                                \
    X(a_listener_serves_several_connections, "transport.connections",                             \
      "a listener serves several connections, each with messages of its own", false)              \
    X(an_address_of_garbage_is_refused, "transport.garbage", "an address of garbage is refused",  \
      false)                                                                                      \
    X(a_dialer_that_is_not_admitted_learns_it, "transport.not_admitted",                          \
      "who dials and is not admitted learns it", false)                                           \
    X(puts_arrive_in_order, "transport.puts", "one-sided writes arrive whole and in order", false)

const fact_t transport_facts[] = {
#define FACT(run, check, sentence, kills) {#run, run, kills, NULL},
    FACTS(FACT)
#undef FACT
};
const uint32_t transport_fact_count = sizeof(transport_facts) / sizeof(transport_facts[0]);

enum {
#define INDEX(run, check, sentence, kills) AT_##run,
    FACTS(INDEX)
#undef INDEX
};

const check_t checks_of_transports[] = {
#define ROW(run, check, sentence, kills) \
    {check, sentence, CHECK_KIND(TRANSPORT), false, 120, rig_run, &transport_facts[AT_##run]},
    FACTS(ROW)
#undef ROW
        {0},
};
