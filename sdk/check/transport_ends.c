/* transport_ends.c - how connections end: by a mistake, a death, a cancel or a refusal. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "transport_facts.h"

/* Ends of a broken connection: it is down for this reason, and what was outstanding drains. */
static lh_wire_event_t expect_down(end_t *e, lh_status_t why)
{
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == why, "status %d instead of %d: %s", down.status, why, down.reason);
    CHECK(down.reason[0] != '\0', "it says why");
    return down;
}

void a_message_too_long_ends_both_as_truncated(end_t *e)
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

void two_tags_that_differ_end_both_and_are_named(end_t *e)
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
    for (uint32_t polls = 1; !end_take(e, LH_WIRE_DRAINED, RIG_CONN, &event); polls++) {
        end_poll(e);
        /* A machine that ran something else meanwhile is no fault of the transport. */
        CHECK(check_now_ns() < until || polls < 100, "not drained within 100 ms");
    }
    for (uint32_t i = 0; i < count; i++) {
        CHECK(end_take(e, LH_WIRE_RECEIVED, 100 + i, &event));
        CHECK(end_take(e, LH_WIRE_SENT, 200 + i, &event));
    }
    for (int i = 0; i < 100; i++)
        end_poll(e);
    while (end_take(e, LH_WIRE_DEGRADED, RIG_CONN, &event)) /* it may have been that before */
        ;
    CHECK(e->event_count == 0, "an event after the last");
    CHECK(e->api->isend(e->conn, NULL, "", 0, 1, 1) < 0, "a dead connection takes no send");
}

void a_killed_peer_is_noticed_and_all_drains(end_t *e)
{
    const uint64_t limit_ns = 3500000000ull;
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    /* Before the barrier, which may see the death already: nothing is taken after it. */
    if (e->side == 0) post_some(e, &b, 4);
    end_barrier(e);
    if (e->side == 1) {
        end_poll(e);
        (void)raise(SIGKILL);
    }
    const uint64_t begin = check_now_ns();
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == LH_PEER_LOST || down.status == LH_TIMED_OUT, "status %d", down.status);
    CHECK(check_now_ns() - begin < limit_ns);
    (void)fprintf(stderr, "    noticed after %.1f ms\n", (double)(check_now_ns() - begin) / 1e6);
    expect_drained(e, 4);
    e->api->close_conn(e->conn);
    buffer_free(e, &b);
}

void a_cancel_is_local_and_drains(end_t *e)
{
    char word = 0;
    end_meet(e);
    buffer_t b = buffer_new(e, 200000, false, 0);
    end_barrier(e); /* it may be up at one end, and not yet at the other */
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

void what_was_sent_before_a_close_still_arrives(end_t *e)
{
    end_meet(e);
    buffer_t b = buffer_new(e, 8000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 8000, 1, 1);
    end_barrier(e);
    if (e->side == 0) {
        buffer_fill(b.data, 8000, 4);
        end_send(e, &b, 0, 8000, 1, 1);
        (void)end_await(e, LH_WIRE_SENT, 1);
        e->api->cancel(e->conn);
    } else {
        (void)end_await(e, LH_WIRE_RECEIVED, 1);
        buffer_check(b.data, 8000, 4);
    }
    end_barrier(e);
}

void a_dialer_that_is_not_admitted_learns_it(end_t *e)
{
    end_listen(e, LH_SECURITY_PLAIN);
    const lh_conn_params_t params = end_params(e, 1, RIG_CONN);
    if (e->side == 0) {
        e->conn = end_dial(e, &params);
        const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
        CHECK(down.status < 0 && down.reason[0] != '\0', "status %d: %s", down.status, down.reason);
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
