/* transport_memory.c - memory of a peer, read in place or written. */
#include "transport_facts.h"

#include <longhaul/draft/onesided.h>

/* Takes what the other end offers; NULL where the plugin does not map. */
static const char *offer_and_take(end_t *e, const buffer_t *mine, lh_remote_t **remote)
{
    lh_address_t offer = {0}, theirs;
    const void *map = NULL;
    lh_status_t status;
    const lh_mapping_api_t *api = e->api->mapping;
    if (api == NULL) check_skip("it maps no memory of a peer");
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

void mapped_memory_is_read_in_place(end_t *e)
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
    e->api->mapping->forget(remote);
}

/* Sizes again, where the receiver could copy straight from the sender's memory. */
void sizes_arrive_from_mapped_memory(end_t *e)
{
    end_meet(e);
    const uint64_t most = transport_sizes[TRANSPORT_SIZES - 1];
    buffer_t out = buffer_new(e, most, true, LH_REMOTE_READ);
    buffer_t in = buffer_new(e, most, false, 0);
    lh_remote_t *remote;
    (void)offer_and_take(e, &out, &remote);
    for (uint32_t i = 0; i < TRANSPORT_SIZES; i++) {
        const uint64_t at = most - transport_sizes[i] > 5 ? 5 : 0;
        buffer_fill(out.data + at, transport_sizes[i], i + e->side);
        end_receive(e, &in, 0, transport_sizes[i], i, 100 + i);
        end_send(e, &out, at, transport_sizes[i], i, 200 + i);
        CHECK(end_await(e, LH_WIRE_RECEIVED, 100 + i).bytes == transport_sizes[i]);
        CHECK(end_await(e, LH_WIRE_SENT, 200 + i).status == LH_OK);
        buffer_check(in.data, transport_sizes[i], i + 1 - e->side);
    }
    end_barrier(e);
}

void puts_arrive_in_order(end_t *e)
{
    const lh_mapping_api_t *api = e->api->mapping;
    const lh_one_sided_api_t *draft = lh_draft_api(&e->plugin->row, LH_DRAFT_ONE_SIDED);
    if (api == NULL || draft == NULL) check_skip("it offers no one-sided writes");
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
        CHECK(draft->put(e->conn, b.region, b.data, remote, 100, bytes / 2, 71, 5) == LH_OK);
        CHECK(draft->put(e->conn, b.region, b.data, remote, 0, 0, 72, 6) == LH_OK);
        CHECK(draft->put(e->conn, b.region, b.data, remote, bytes - 1, 2, 0, 7) < 0,
              "past the end");
        (void)end_await(e, LH_WIRE_PUT, 5);
        (void)end_await(e, LH_WIRE_PUT, 6);
    }
    end_barrier(e);
}
