/* links_probe_test.c - a whole probe of a link between two sites that are this machine, where the plugin
 * or the other end does not do as it mostly does. */
#include <unit/links/forked_ranks.h>

#include <links/links_probe.h>

static const lh_transport_api_t *real; /* of the transport between sites */
static bool has_led, stood_still;

/* A site's only rank, by its place in the table of all addresses: one machine for each, though both
 * are this one. */
static lh_status_t address_apart(lh_transport_t *t, const lh_address_t *address, char *text,
                                 size_t room)
{
    (void)t;
    (void)snprintf(text, room, "10.0.0.%d:1",
                   (int)((address - me.links->addresses) / LINKS_SCOPES) + 1);
    return LH_OK;
}

static lh_status_t tune_nothing(lh_transport_t *t, const lh_link_t *link, uint32_t choice,
                                lh_tuning_t *out, char *why, size_t room)
{
    (void)t, (void)link, (void)out, (void)why, (void)room;
    return fail(LH_UNSUPPORTED, "choice %u of a link that it does not know", choice);
}

/* A lead is a message's first word: 3 is the end of a probe (KIND_END). */
static lh_status_t send_and_see(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                                uint32_t tag, uint64_t cookie)
{
    uint32_t kind = 0;
    if (bytes >= sizeof(kind)) memcpy(&kind, data, sizeof(kind));
    has_led = has_led || kind == 3;
    return real->isend(c, region, data, bytes, tag, cookie);
}

/* The lead has left, and for longer than the other end waits for this one to close nothing is taken. */
static lh_status_t poll_late(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                             uint32_t capacity, uint32_t *count)
{
    const lh_status_t status = real->poll(t, events, event_size, capacity, count);
    if (has_led && !stood_still) {
        stood_still = true;
        (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 500000000}, NULL);
    }
    return status;
}

/* The end that leads is held up when it has said that the probe is over. */
static void probes(void)
{
    static lh_transport_api_t api;
    two_sites();
    carrier_t *c = me.links->carriers[LH_LINK_WAN];
    real = c->api;
    api = *real;
    api.address_text = address_apart;
    api.tune = tune_nothing;
    if (me.self == 0) api.isend = send_and_see;
    if (me.self == 0) api.poll = poll_late;
    c->api = &api;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    CHECK(me.self == 1 || stood_still);
    uint32_t count;
    const probe_pair_t *p = links_pairs(me.links, &count);
    CHECK(count == 1 && p->figures.measured_s != 0 && p->figures.round_trip_ns != 0);
    CHECK(p->figures.rate[0] != 0 && p->figures.rate[1] != 0 && p->figures.choice == 0);
    CHECK(strcmp(p->figures.tuned, "not tuned: choice 0 of a link that it does not know") == 0);
    end();
}

static void a_probe_of_a_plugin_without_a_tuning_ends_well_however_late(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", probes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_of_a_plugin_without_a_tuning_ends_well_however_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
