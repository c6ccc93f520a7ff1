/* transport_messages.c - messages between two ends: sizes, places, depths and order. */
#include "transport_facts.h"

const uint64_t transport_sizes[TRANSPORT_SIZES] = {
    0, 1, 3, 7, 63, 64, 65, 1000, 4095, 4096, 4097, 16384, 65535, 65549, 262147, 1048577, 67108864};

void sizes_arrive(end_t *e)
{
    end_meet(e);
    buffer_t out = buffer_new(e, transport_sizes[TRANSPORT_SIZES - 1], false, LH_REMOTE_READ);
    buffer_t in = buffer_new(e, transport_sizes[TRANSPORT_SIZES - 1], false, LH_REMOTE_READ);
    for (uint32_t i = 0; i < TRANSPORT_SIZES; i++) {
        buffer_fill(out.data, transport_sizes[i], i + e->side);
        end_receive(e, &in, 0, transport_sizes[i], i, 100 + i);
        end_send(e, &out, 0, transport_sizes[i], i, 200 + i);
        const lh_wire_event_t got = end_await(e, LH_WIRE_RECEIVED, 100 + i);
        const lh_wire_event_t sent = end_await(e, LH_WIRE_SENT, 200 + i);
        CHECK(got.status == LH_OK && got.bytes == transport_sizes[i] && got.tag == i);
        CHECK(sent.status == LH_OK && sent.bytes == transport_sizes[i]);
        buffer_check(in.data, transport_sizes[i], i + 1 - e->side);
    }
    CHECK(e->event_count == 0, "an event too many");
    end_barrier(e);
    e->api->cancel(e->conn);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    e->api->close_conn(e->conn);
    buffer_free(e, &out);
    buffer_free(e, &in);
}

void unaligned_memory_is_taken(end_t *e)
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

void a_receive_may_be_longer_than_its_message(end_t *e)
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

void posting_is_allowed_before_the_connection_is_up(end_t *e)
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
void a_full_queue_says_again_and_loses_nothing(end_t *e)
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

void a_full_queue_of_receives_says_again(end_t *e)
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
void messages_of_a_direction_keep_their_order(end_t *e)
{
    enum { MESSAGES = 2000, ROOM = 90112, SLOTS = 8 };
    end_meet(e);
    buffer_t out = buffer_new(e, (uint64_t)ROOM * SLOTS, false, 0);
    buffer_t in = buffer_new(e, (uint64_t)ROOM * SLOTS, false, 0);
    uint32_t sent = 0, freed = 0, posted = 0, got = 0;
    lh_wire_event_t event;
    const uint64_t until = check_now_ns() + 90000000000ull;
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
