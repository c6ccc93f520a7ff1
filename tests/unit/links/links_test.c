/* links_test.c - links between forked ranks: what reaches whom, what is refused, and how they end. */
#include <unit/links/forked_ranks.h>

static void talk(uint32_t service)
{
    uint64_t seen = 0;
    for (uint32_t r = 0; r < me.size; r++) {
        if (r == me.self) continue;
        link_t *k = links_find(me.links, r, service);
        CHECK(k != NULL && link_peer(k) == r && link_scope(k) == LH_LINK_NODE);
        CHECK(link_recv(k, me.arena, me.memory + 4096 * r, 4096, service, 100 + r) == LH_OK);
        memset(me.memory + 65536 + 4096 * r, (int)(10 * me.self + r), 4096);
        CHECK(link_send(k, me.arena, me.memory + 65536 + 4096 * r, 1000, service, 200 + r) ==
              LH_OK);
    }
    for (uint32_t i = 0; i < 2 * (me.size - 1); i++) {
        const links_event_t event = next_event();
        CHECK(event.bytes == 1000 && event.received == (event.cookie < 200));
        seen += event.cookie;
        if (!event.received) continue;
        const uint32_t r = (uint32_t)event.cookie - 100;
        CHECK(me.memory[4096 * r] == (char)(10 * r + me.self) &&
              me.memory[4096 * r + 999] == (char)(10 * r + me.self));
    }
    uint64_t expected = 0;
    for (uint32_t r = 0; r < me.size; r++)
        if (r != me.self) expected += 300 + 2 * r;
    CHECK(seen == expected);
}

static void two_services(void)
{
    open_links();
    CHECK(links_find(me.links, (me.self + 1) % me.size, LH_SERVICE_GRADIENT) == NULL);
    connect_all(LH_SERVICE_GRADIENT);
    connect_all(LH_SERVICE_CONTROL);
    talk(LH_SERVICE_GRADIENT);
    talk(LH_SERVICE_CONTROL);
    link_class_t node, wan;
    links_class(me.links, LH_LINK_NODE, &node);
    links_class(me.links, LH_LINK_WAN, &wan);
    CHECK(strcmp(node.transport, "shm") == 0 && wan.transport == NULL);
    CHECK(node.bytes_sent >= 2000 * (me.size - 1) && node.bytes_received >= 2000 * (me.size - 1));
    end();
}

static void messages_reach_every_rank_over_every_service(void **state)
{
    (void)state;
    assert_true(ranks(RANKS, "", two_services)); /* the plugin is that of defaults.ini */
    assert_true(ranks(2, "[transport.node]\nplugin = shm\nring = 64KiB\n", two_services));
}

static void maps(void)
{
    open_links();
    memset(me.memory, (int)(me.self + 1), 100);
    connect_all(LH_SERVICE_GRADIENT);
    link_t *k = links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT);
    const char *theirs = link_map(k, me.arena);
    CHECK(theirs != NULL && link_map(k, 1) == NULL);
    meet();
    CHECK(theirs[0] == (char)(2 - me.self) && theirs[99] == (char)(2 - me.self));
    end();
}

static void a_peers_arena_can_be_read_in_place(void **state)
{
    (void)state;
    assert_true(ranks(2, "", maps));
}

/* Known to no transport here, as none takes such: nothing of it is offered, and its number can be had again. */
static void no_device_memory(void)
{
    uint32_t arena = 0;
    open_links();
    CHECK(links_take_device(me.links, LH_LINK_NODE) == LH_UNSUPPORTED);
    CHECK(strstr(fail_reason(), "[transport.node]: 'shm' takes no memory of a device here") !=
          NULL);
    for (uint32_t i = 0; i < 2; i++) {
        if (i > 0) links_arenas_drop(me.links, 1);
        CHECK(links_device_arena(me.links, me.memory, ARENA, 0, 0, &arena) == LH_OK && arena == 1);
    }
    connect_all(LH_SERVICE_GRADIENT);
    CHECK(link_map(links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT), 1) == NULL);
    talk(LH_SERVICE_GRADIENT);
    end();
}

static void memory_of_a_device_is_known_where_it_is_taken_alone(void **state)
{
    (void)state;
    assert_true(ranks(2, "", no_device_memory));
}

static const lh_mapping_api_t *mapping; /* of the transport */
static uint32_t takes, tries;

static lh_status_t take_counted(lh_conn_t *c, const lh_address_t *offer, lh_remote_t **out)
{
    const lh_status_t status = mapping->take(c, offer, out);
    takes += status == LH_OK;
    return status;
}

static lh_status_t map_later(lh_remote_t *remote, const void **out)
{
    return ++tries % 3 != 0 ? LH_AGAIN : mapping->map(remote, out);
}

/* A transport that takes what it was offered at once, and maps it at the third try. */
static void maps_slowly(void)
{
    static lh_transport_api_t api;
    static lh_mapping_api_t slow;
    open_links();
    for (uint32_t i = 0; i < LINKS_SCOPES; i++) {
        carrier_t *carrier = me.links->carriers[i];
        if (carrier == NULL || carrier->api == &api || carrier->api->mapping == NULL) continue;
        api = *carrier->api;
        mapping = api.mapping;
        slow = *mapping;
        slow.take = take_counted;
        slow.map = map_later;
        api.mapping = &slow;
        carrier->api = &api;
    }
    connect_all(LH_SERVICE_GRADIENT);
    CHECK(link_map(links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT), me.arena) != NULL);
    CHECK(tries == 3 && takes == 1);
    meet();
    end();
}

static void what_is_mapped_later_is_taken_once(void **state)
{
    (void)state;
    assert_true(ranks(2, "", maps_slowly));
}

static void refused(const char *words)
{
    const links_how_t h = how();
    CHECK(links_open(&h, &me.links) != LH_OK);
    CHECK(strstr(fail_reason(), words) != NULL);
}

static void refused_level(void)
{
    refused("the transport 'shm' cannot give it");
    CHECK(strstr(fail_reason(), "security = proven") != NULL);
}

static void refused_name(void)
{
    refused("there is no transport plugin 'nonsuch'");
}

static const lh_transport_api_t *of_shm;

static lh_status_t card_of_short_messages(lh_transport_t *t, uint32_t nic, lh_nic_info_t *out)
{
    const lh_status_t status = of_shm->nic_info(t, nic, out);
    out->max_message_bytes = LH_MESSAGE_LEAST - 1;
    return status;
}

static void refused_messages(void)
{
    static lh_transport_api_t api;
    const plugin_t *shm;
    CHECK(registry_load(me.registry, LH_KIND_TRANSPORT, "shm", &shm) == LH_OK);
    of_shm = shm->transport;
    api = *of_shm;
    api.nic_info = card_of_short_messages;
    ((plugin_t *)(uintptr_t)shm)->transport = &api;
    refused(
        "[transport.node]: a message of 'shm' has at most 1073741823 bytes, expected 1073741824");
}

static void what_a_plugin_cannot_do_is_refused_by_name(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.node]\nplugin = shm\nsecurity = proven\n", refused_level));
    assert_true(ranks(2, "[transport.node]\nplugin = nonsuch\n", refused_name));
    assert_true(ranks(2, "", refused_messages));
}

static void one_refuses(void)
{
    if (me.self == 1) me.job->transports[LH_LINK_NODE].security = LH_SECURITY_PRIVATE;
    refused("the transport 'shm' cannot give it");
    CHECK((strncmp(fail_reason(), "rank 1", 6) == 0) == (me.self != 1));
}

static void all_ranks_say_what_one_cannot_do(void **state)
{
    (void)state;
    assert_true(ranks(3, "", one_refuses));
}

static void falls_back(void)
{
    open_links();
    connect_all(LH_SERVICE_GRADIENT);
    talk(LH_SERVICE_GRADIENT);
    CHECK(strcmp(link_transport(links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT)), "shm") ==
          0);
    end();
}

static void one_falls_back(void)
{
    if (me.self == 0) me.job->transports[LH_LINK_NODE].plugin[0] = 'n';
    falls_back();
}

static void a_fallback_is_used_where_it_is_named_and_by_all(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.node]\nplugin = nonsuch\nfallback = shm\n", falls_back));
    assert_true(ranks(2, "[transport.node]\nplugin = shm\nfallback = shm\n", one_falls_back));
}

static void one_arena_more(void)
{
    uint32_t peer = 1 - me.self, arena;
    open_links();
    if (me.self == 1)
        CHECK(links_arena(me.links, me.memory, 100, -1, 0, &arena) == LH_OK && arena == 1);
    CHECK(links_connect(me.links, &peer, 1, LH_SERVICE_GRADIENT) != LH_OK);
    CHECK(strstr(fail_reason(), "box") != NULL);
    links_close(me.links);
}

static void ranks_with_other_arenas_are_refused(void **state)
{
    (void)state;
    assert_true(ranks(2, "", one_arena_more));
}

/* Admits rank 0, which dials, and sends it nothing. */
static void answers_and_is_silent(void)
{
    const carrier_t *c = me.links->carriers[LH_LINK_NODE];
    lh_hello_t hello;
    lh_conn_t *conn;
    const lh_conn_params_t params = {
        .struct_size = sizeof(params), .direction = LH_SEND | LH_RECEIVE, .security = c->security};
    while (c->api->accept(c->listener, &hello, &conn) != LH_OK)
        (void)sched_yield();
    CHECK(c->api->admit(conn, &params) == LH_OK);
    meet();
    c->api->close_conn(conn);
    links_close(me.links);
}

static void waits_for_a_list(void)
{
    const uint32_t peer = 1;
    me.job->launch.join_timeout_ns = 2000000000;
    open_links();
    if (me.self == 1) {
        answers_and_is_silent();
        return;
    }
    CHECK(links_connect(me.links, &peer, 1, LH_SERVICE_GRADIENT) == LH_TIMED_OUT);
    CHECK(strstr(fail_reason(), "rank 1 on box") != NULL &&
          strstr(fail_reason(), "no list of its arenas came within") != NULL);
    /* That is what others hear, and not that this rank has cancelled what it was waiting for. */
    CHECK(control_status(&me.control) == LH_TIMED_OUT && plane->culprit == 0);
    CHECK(strstr(plane->failure, "no list of its arenas came within") != NULL);
    end();
}

static void a_wait_that_is_given_up_is_told_as_such(void **state)
{
    (void)state;
    assert_true(ranks(2, "", waits_for_a_list));
}

static void dies(void)
{
    links_event_t event;
    uint32_t count;
    lh_status_t status = LH_OK;
    open_links();
    connect_all(LH_SERVICE_GRADIENT);
    meet();
    if (me.self == 1) (void)raise(SIGKILL);
    link_t *k = links_find(me.links, 1, LH_SERVICE_GRADIENT);
    status = link_recv(k, me.arena, me.memory, 100, 1, 1);
    const uint64_t begun = sys()->now_ns();
    while (status == LH_OK && sys()->now_ns() - begun < 3000000000ull) {
        links_sleep(me.links, -1, 0, 50000000);
        status = links_poll(me.links, &event, 1, &count);
    }
    CHECK(status == LH_PEER_LOST && sys()->now_ns() - begun < 2000000000); /* silence takes 3 s */
    CHECK(strstr(fail_reason(), "rank 1 on box, link over shm: ") != NULL);
    CHECK(control_status(&me.control) == LH_PEER_LOST && plane->culprit == 1);
    CHECK(links_poll(me.links, &event, 1, &count) == LH_PEER_LOST);
    links_close(me.links);
}

static void a_killed_rank_is_named_with_host_and_transport(void **state)
{
    (void)state;
    assert_true(ranks_killing(3, "", dies, 1));
}

static lh_wire_event_t news[3]; /* what a transport has to tell, once */
static uint32_t news_count;

/* All of it at once, as on a machine whose processor the peer had in between. */
static lh_status_t poll_tells_all(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                                  uint32_t capacity, uint32_t *count)
{
    (void)t;
    if (capacity < news_count || event_size != sizeof(news[0])) return LH_INVALID;
    memcpy(events, news, news_count * sizeof(news[0]));
    *count = news_count;
    news_count = 0;
    return LH_OK;
}

/* Rank 0's link to rank 1, whose transport tells nothing from now on but what is in `news`; NULL on
 * rank 1, which is only there. */
static link_t *link_that_is_told(void)
{
    static lh_transport_api_t api;
    open_links();
    connect_all(LH_SERVICE_GRADIENT);
    meet();
    if (me.self == 1) return NULL;
    link_t *k = links_find(me.links, 1, LH_SERVICE_GRADIENT);
    api = *k->carrier->api;
    api.poll = poll_tells_all;
    k->carrier->api = &api;
    return k;
}

static void tell(const lh_wire_event_t *events, uint32_t count)
{
    memcpy(news, events, count * sizeof(*events));
    news_count = count;
}

static void hears_of_a_flipped_bit(void)
{
    links_event_t event;
    uint32_t count;
    link_t *k = link_that_is_told();
    if (k == NULL) return;
    tell(&(lh_wire_event_t){.type = LH_WIRE_DOWN,
                            .status = LH_CORRUPT,
                            .cookie = (uint64_t)(uintptr_t)k,
                            .reason = "a record that does not match its checksum"},
         1);
    CHECK(links_poll(me.links, &event, 1, &count) == LH_PEER_LOST);
    CHECK(strstr(fail_reason(), "rank 1 on box, link over shm: a record that does not") != NULL);
    CHECK(control_status(&me.control) == LH_PEER_LOST && plane->culprit == 1);
}

static void a_link_that_flips_bits_is_a_lost_one(void **state)
{
    (void)state;
    assert_true(ranks(2, "", hears_of_a_flipped_bit));
}

/* A message of link k, and the end of k behind it. */
static void tell_the_end(link_t *k, uint32_t message, uint64_t cookie)
{
    const uint64_t link = (uint64_t)(uintptr_t)k;
    const uint64_t operation = (uint64_t)(uintptr_t)link_operation(k, cookie, false);
    tell(
        (const lh_wire_event_t[]){
            {.type = message, .cookie = operation, .bytes = 5},
            {.type = LH_WIRE_DOWN, .status = LH_PEER_LOST, .cookie = link},
            {.type = LH_WIRE_DRAINED, .cookie = link},
        },
        3);
}

static void drops_a_link_that_has_ended(void)
{
    links_event_t event;
    uint32_t count;
    link_t *k = link_that_is_told();
    if (k == NULL) return;
    k->leaving = true;
    tell_the_end(k, LH_WIRE_SENT, 1);
    links_sleep(me.links, -1, 0, 1000000);
    CHECK(k->gone && k->drained);
    link_drop(k);
    CHECK(links_poll(me.links, &event, 1, &count) == LH_OK && count == 0);
}

/* Whoever takes events next has sent nothing yet. */
static void a_link_that_is_dropped_leaves_no_event(void **state)
{
    (void)state;
    assert_true(ranks(2, "", drops_a_link_that_has_ended));
}

/* Whether the end was expected or not: it comes behind the message. */
static void receives_as_it_ends(void)
{
    links_event_t event;
    uint32_t count;
    link_t *k = link_that_is_told();
    if (k == NULL) return;
    for (uint32_t leaving = 2; leaving-- > 0;) {
        k->leaving = leaving != 0;
        tell_the_end(k, LH_WIRE_RECEIVED, 7);
        CHECK(links_poll(me.links, &event, 1, &count) == LH_OK && count == 1);
        CHECK(event.received && event.cookie == 7 && event.bytes == 5 && k->gone == k->leaving);
        const lh_status_t status = links_poll(me.links, &event, 1, &count);
        CHECK(status == (k->leaving ? LH_OK : LH_PEER_LOST) && count == 0);
    }
}

static void what_came_before_a_link_ended_is_taken(void **state)
{
    (void)state;
    assert_true(ranks(2, "", receives_as_it_ends));
}

static uint64_t slept(int wake_fd, uint64_t spin_ns, uint64_t timeout_ns)
{
    const uint64_t begun = sys()->now_ns();
    links_sleep(me.links, wake_fd, spin_ns, timeout_ns);
    return sys()->now_ns() - begun;
}

static void wait_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void sleeps(void)
{
    const uint64_t one = 1;
    open_links();
    connect_all(LH_SERVICE_GRADIENT);
    link_t *k = links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT);
    meet();
    if (me.self == 1) {
        meet();
        wait_ms(30);
        CHECK(link_send(k, me.arena, me.memory, 10, 1, 1) == LH_OK);
        CHECK(!next_event().received);
        wait_ms(30);
        control_fail(&me.control, 1, LH_IO, "for the test");
        meet();
        links_close(me.links);
        return;
    }
    CHECK(slept(-1, 0, 5000000) >= 5000000);
    meet(); /* only from here on something is sent */
    const int wake = eventfd(0, EFD_CLOEXEC);
    CHECK(write(wake, &one, sizeof(one)) == sizeof(one));
    CHECK(slept(wake, 0, 1000000000) < 500000000);
    CHECK(link_recv(k, me.arena, me.memory, 10, 1, 1) == LH_OK);
    CHECK(slept(-1, 10000, 3000000000) < 2000000000);
    CHECK(next_event().received);
    /* The failure was said elsewhere: this rank's descriptor is told by its control plane. */
    while (control_status(&me.control) == LH_OK)
        (void)slept(-1, 0, 1000000);
    CHECK(write(me.control.fd, &one, sizeof(one)) == sizeof(one));
    CHECK(slept(-1, 0, 3000000000) < 2000000000);
    meet();
    links_close(me.links);
}

static void a_sleep_ends_with_a_message_a_word_a_failure_or_its_time(void **state)
{
    (void)state;
    assert_true(ranks(2, "", sleeps));
}

/* A transport that is opened reads it by its host. */
static void device_is_told(const char *expected)
{
    const lh_host_t *host;
    published_t *published;
    CHECK(host_for(me.host, "tcp", &host) == LH_OK && host->world->device[0] == '\0');
    CHECK(world_publish(me.host, me.world, NULL, &published) == LH_OK);
    open_links();
    CHECK(strcmp(host->world->device, expected) == 0 && host->world->size == 2);
    end();
    world_unpublish(me.host, published);
    CHECK(host->world->device[0] == '\0');
}

static void told_of_device(void)
{
    device_is_told("0000:3c:00.0");
}

static void told_of_nothing(void)
{
    device_is_told("");
}

static void transports_are_told_where_the_device_is(void **state)
{
    (void)state;
    assert_true(ranks(2, "[device]\nplugin = fake\npci_path = 0000:3c:00.0\n", told_of_device));
    assert_true(ranks(2, "", told_of_nothing));
    /* What is wrong with a device is told when that is opened. */
    assert_true(ranks(2, "[device]\nplugin = nonsuch\n", told_of_nothing));
    assert_true(ranks(2, "[device]\nplugin = reference\n", told_of_nothing));
}

static void alone(void)
{
    links_event_t event;
    uint32_t count = 7;
    links_how_t h = how();
    h.control = NULL;
    CHECK(links_open(&h, &me.links) == LH_OK);
    CHECK(links_connect(me.links, NULL, 0, LH_SERVICE_GRADIENT) == LH_OK);
    CHECK(links_poll(me.links, &event, 1, &count) == LH_OK && count == 0);
    links_close(me.links);
}

static void a_rank_alone_opens_no_transport(void **state)
{
    (void)state;
    assert_true(ranks(1, "[transport.node]\nplugin = nonsuch\n", alone));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_reach_every_rank_over_every_service),
        cmocka_unit_test(a_peers_arena_can_be_read_in_place),
        cmocka_unit_test(memory_of_a_device_is_known_where_it_is_taken_alone),
        cmocka_unit_test(what_is_mapped_later_is_taken_once),
        cmocka_unit_test(what_a_plugin_cannot_do_is_refused_by_name),
        cmocka_unit_test(all_ranks_say_what_one_cannot_do),
        cmocka_unit_test(a_fallback_is_used_where_it_is_named_and_by_all),
        cmocka_unit_test(ranks_with_other_arenas_are_refused),
        cmocka_unit_test(a_wait_that_is_given_up_is_told_as_such),
        cmocka_unit_test(a_killed_rank_is_named_with_host_and_transport),
        cmocka_unit_test(a_link_that_flips_bits_is_a_lost_one),
        cmocka_unit_test(a_link_that_is_dropped_leaves_no_event),
        cmocka_unit_test(what_came_before_a_link_ended_is_taken),
        cmocka_unit_test(a_sleep_ends_with_a_message_a_word_a_failure_or_its_time),
        cmocka_unit_test(transports_are_told_where_the_device_is),
        cmocka_unit_test(a_rank_alone_opens_no_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
