/* shm_test.c - what is the shm transport's own: checksums, strangers at its socket, memory that
 * lies, and that nothing of it stays behind. */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <longhaul/draft/onesided.h>

#include "fact_main.h"

enum { RING_RECORD = 48 }; /* bytes of a record before its payload */

/* The first mapping of this process whose name holds `name`, `index`-th from 0. */
static char *mapping(const char *name, uint32_t index, uint64_t *bytes)
{
    char line[512];
    char *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (found == NULL && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long long begin, end;
        if (strstr(line, name) == NULL || sscanf(line, "%llx-%llx", &begin, &end) != 2) continue;
        if (index-- > 0) continue;
        found = (char *)(uintptr_t)begin;
        *bytes = end - begin;
    }
    (void)fclose(maps);
    return found;
}

/* The place in any ring where the text begins; every ring is mapped twice, so there are two. */
static char *in_ring(const char *text, size_t length)
{
    uint64_t bytes = 0;
    char *map, *at = NULL;
    for (uint32_t i = 0; at == NULL && (map = mapping("longhaul-ring", i, &bytes)) != NULL; i++)
        at = memmem(map, bytes, text, length);
    CHECK(at != NULL, "the message is not in the ring");
    return at;
}

static const char message[] = "a message that is small enough for the ring";

/* Side 1 changes what lies in the ring before it receives. */
static void expect_corrupt(end_t *e, ptrdiff_t from_payload, char mask)
{
    end_meet(e);
    buffer_t b = buffer_new(e, sizeof(message), false, 0);
    if (e->side == 0) {
        memcpy(b.data, message, sizeof(message));
        end_send(e, &b, 0, sizeof(message), 3, 1);
        end_barrier(e);
        CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_CORRUPT);
    } else {
        end_barrier(e);
        in_ring(message, sizeof(message))[from_payload] ^= mask;
        end_receive(e, &b, 0, sizeof(message), 3, 1);
        CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_CORRUPT);
        CHECK(end_await(e, LH_WIRE_RECEIVED, 1).status == LH_CORRUPT);
    }
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    end_barrier(e);
}

static void a_flipped_bit_of_a_message_is_corrupt(end_t *e)
{
    expect_corrupt(e, 5, 0x10);
}

static void a_flipped_bit_of_a_length_is_corrupt(end_t *e)
{
    expect_corrupt(e, 8 - RING_RECORD, 0x01);
}

static void a_record_longer_than_the_ring_is_corrupt(end_t *e)
{
    expect_corrupt(e, 26 - RING_RECORD, 0x7f);
}

static void a_kind_that_is_none_is_corrupt(end_t *e)
{
    expect_corrupt(e, -RING_RECORD, 0x40);
}

/* A bit of a direct message: the sender's memory changes after it was hashed. */
static void a_changed_source_of_a_direct_message_is_corrupt(end_t *e)
{
    const uint64_t bytes = 100000;
    lh_address_t offer = {0};
    lh_remote_t *remote;
    lh_status_t status;
    end_meet(e);
    buffer_t b = buffer_new(e, bytes, true, LH_REMOTE_READ);
    if (e->side == 0) {
        CHECK(e->api->mapping->offer(e->conn, b.region, &offer) == LH_OK);
        end_tell(e, &offer, sizeof(offer));
        end_barrier(e);
        end_send(e, &b, 0, bytes, 3, 1);
        b.data[bytes / 2] ^= 1;
        end_barrier(e);
        CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_CORRUPT);
        CHECK(end_await(e, LH_WIRE_SENT, 1).status == LH_CORRUPT);
    } else {
        end_hear(e, &offer, sizeof(offer));
        while ((status = e->api->mapping->take(e->conn, &offer, &remote)) == LH_AGAIN)
            ;
        CHECK(status == LH_OK);
        end_barrier(e);
        end_barrier(e);
        end_receive(e, &b, 0, bytes, 3, 1);
        CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_CORRUPT);
    }
    end_barrier(e);
}

/* It came between the last look and the end that is about to sleep said so: nobody wakes that one. */
static void a_put_that_has_come_keeps_from_sleep(end_t *e)
{
    enum { BYTES = 4096, TAG = 9 };
    const lh_one_sided_api_t *draft = lh_draft_api(&e->plugin->row, LH_DRAFT_ONE_SIDED);
    lh_address_t offer = {0};
    lh_remote_t *remote;
    lh_status_t status;
    char done = 0;
    CHECK(draft != NULL);
    end_meet(e);
    buffer_t b = buffer_new(e, BYTES, true, LH_REMOTE_WRITE | LH_REMOTE_READ);
    if (e->side == 1) {
        CHECK(e->api->mapping->offer(e->conn, b.region, &offer) == LH_OK);
        end_tell(e, &offer, sizeof(offer));
        CHECK(recv(e->channel, &done, sizeof(done), 0) == 1); /* without a poll */
        CHECK(e->api->arm(e->transport) == LH_AGAIN);
        CHECK(end_await(e, LH_WIRE_ARRIVED, RIG_CONN).tag == TAG);
        CHECK(e->api->arm(e->transport) == LH_OK);
    } else {
        end_hear(e, &offer, sizeof(offer));
        while ((status = e->api->mapping->take(e->conn, &offer, &remote)) == LH_AGAIN)
            ;
        CHECK(status == LH_OK);
        CHECK(draft->put(e->conn, b.region, b.data, remote, 0, BYTES, TAG, 1) == LH_OK);
        end_tell(e, &done, sizeof(done));
        (void)end_await(e, LH_WIRE_PUT, 1);
    }
    end_barrier(e);
}

/* The counters themselves are in shared memory: a peer gone wild must not lead anybody astray. */
static void a_head_that_runs_wild_is_corrupt(end_t *e)
{
    uint64_t bytes;
    end_meet(e);
    buffer_t b = buffer_new(e, 64, false, 0);
    end_receive(e, &b, 0, 64, 1, 1);
    end_barrier(e);
    if (e->side == 0) {
        for (uint32_t i = 0; i < 8; i++) {
            char *map = mapping("longhaul-ring", i, &bytes);
            if (map == NULL || bytes != 4096) continue;
            const uint64_t wild = (uint64_t)1 << 50;
            memcpy(map, &wild, sizeof(wild)); /* head of lane 0 comes first */
        }
    } else {
        CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_CORRUPT);
    }
    end_barrier(e);
}

/* More than a ring holds: its sender looks how far the reader is. */
static void a_tail_that_runs_wild_is_corrupt(end_t *e)
{
    enum { BYTES = 2 << 20, LINE = 128 /* from the head of lane 0 to its tail */ };
    const uint64_t wild = (uint64_t)1 << 50;
    uint64_t bytes;
    end_meet(e);
    buffer_t b = buffer_new(e, BYTES, false, 0);
    for (uint32_t i = 0; e->side == 1 && i < 8; i++) {
        char *map = mapping("longhaul-ring", i, &bytes);
        if (map != NULL && bytes == 4096) memcpy(map + LINE, &wild, sizeof(wild));
    }
    end_barrier(e);
    if (e->side == 0) end_send(e, &b, 0, BYTES, 3, 1);
    CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_CORRUPT);
    if (e->side == 0) CHECK(end_await(e, LH_WIRE_SENT, 1).status == LH_CORRUPT);
    end_barrier(e);
}

static int stranger(const end_t *e)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t at = 1 + strlen("longhaul-");
    memcpy(name.sun_path + 1, "longhaul-", strlen("longhaul-"));
    for (int i = 0; i < 16; i++, at += 2) /* the name follows the machine in an address */
        (void)snprintf(name.sun_path + at, 3, "%02x", e->address.bytes[16 + i]);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + at);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0);
    return fd;
}

/* Garbage, silence and a hello without the token: none is ever accepted, and others still are. */
static void strangers_have_no_effect_beyond_a_counter(end_t *e)
{
    enum { STRANGERS = 40 };
    char garbage[600];
    lh_hello_t hello;
    lh_conn_t *conn;
    int fds[STRANGERS];
    end_listen(e, LH_SECURITY_PLAIN);
    if (e->side == 0) {
        memset(garbage, 7, sizeof(garbage));
        for (uint32_t i = 0; i < STRANGERS; i++) {
            fds[i] = stranger(e);
            if (i % 2 == 0) CHECK(send(fds[i], garbage, 1 + i * 14, MSG_NOSIGNAL) > 0);
        }
    }
    end_barrier(e);
    if (e->side == 1) {
        for (int i = 0; i < 1000; i++)
            CHECK(e->api->accept(e->listener, &hello, &conn) == LH_AGAIN);
        CHECK(check_host_metric("shm.strangers") == STRANGERS / 2, "%.0f",
              check_host_metric("shm.strangers"));
    }
    end_barrier(e);
    e->conn = end_join(e, LH_SERVICE_BULK, RIG_CONN);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    if (e->side == 0)
        for (uint32_t i = 0; i < STRANGERS; i++)
            (void)close(fds[i]);
    end_barrier(e);
}

/* More than one look at the sockets tells of, all of which stay readable. */
static void many_connections_that_end_at_once_are_all_lost(end_t *e)
{
    enum { CONNECTIONS = 40, FIRST = 100 };
    lh_conn_t *conns[CONNECTIONS];
    end_listen(e, LH_SECURITY_PLAIN);
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        conns[i] = end_join(e, LH_SERVICE_BULK, FIRST + i);
        (void)end_await(e, LH_WIRE_UP, FIRST + i);
    }
    end_barrier(e);
    for (uint32_t i = 0; e->side == 0 && i < CONNECTIONS; i++)
        e->api->cancel(conns[i]);
    end_barrier(e);
    for (uint32_t i = 0; e->side == 1 && i < CONNECTIONS; i++)
        CHECK(end_await(e, LH_WIRE_DOWN, FIRST + i).status == LH_PEER_LOST);
    end_barrier(e);
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        (void)end_await(e, LH_WIRE_DRAINED, FIRST + i);
        e->api->close_conn(conns[i]);
    }
}

static void memory_that_could_shrink_is_refused(end_t *e)
{
    char path[] = "/tmp/shm_test_XXXXXX";
    lh_region_t *region;
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, 4096) == 0);
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = map,
                              .bytes = 4096,
                              .fd = fd,
                              .numa = -1};
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_INVALID);
    (void)munmap(map, 4096);
    (void)close(fd);
}

/* All descriptors and mappings of a transport end with it. */
static void nothing_stays_behind_a_close(end_t *e)
{
    uint64_t bytes;
    lh_transport_t *own = e->transport;
    const uint32_t before = fact_open_files();
    CHECK(e->api->open(check_host(), e->config, &e->transport) == LH_OK);
    end_meet(e);
    buffer_t b = buffer_new(e, 1 << 20, true, LH_REMOTE_READ);
    lh_address_t offer = {0}, theirs;
    lh_remote_t *remote;
    CHECK(e->api->mapping->offer(e->conn, b.region, &offer) == LH_OK);
    end_tell(e, &offer, sizeof(offer));
    end_hear(e, &theirs, sizeof(theirs));
    while (e->api->mapping->take(e->conn, &theirs, &remote) == LH_AGAIN)
        ;
    end_barrier(e);
    (void)munmap(b.data, b.bytes);
    (void)close(b.fd);
    e->api->close(e->transport);
    e->transport = own;
    CHECK(fact_open_files() == before, "%u files more", fact_open_files() - before);
    CHECK(mapping("longhaul-ring", 0, &bytes) == NULL && mapping("memfd:rig", 0, &bytes) == NULL);
}

static const char *const small_ring[] = {"ring=64KiB", NULL};
static const char *const unchecked[] = {"checksum=no", NULL};
static const char *const all_direct[] = {"direct=1", NULL};

static const char *const *variants[] = {small_ring, unchecked, all_direct};

int main(int argc, char **argv)
{
    static const fact_t facts[] = {
#define FACT(name) {#name, name, false, NULL}
        FACT(a_flipped_bit_of_a_message_is_corrupt),
        FACT(a_flipped_bit_of_a_length_is_corrupt),
        FACT(a_record_longer_than_the_ring_is_corrupt),
        FACT(a_kind_that_is_none_is_corrupt),
        FACT(a_changed_source_of_a_direct_message_is_corrupt),
        FACT(a_head_that_runs_wild_is_corrupt),
        FACT(a_tail_that_runs_wild_is_corrupt),
        FACT(a_put_that_has_come_keeps_from_sleep),
        FACT(strangers_have_no_effect_beyond_a_counter),
        FACT(many_connections_that_end_at_once_are_all_lost),
        FACT(memory_that_could_shrink_is_refused),
        FACT(nothing_stays_behind_a_close),
    };
    const char *only = argc > 1 ? argv[1] : NULL;
    int code = fact_main("shm", facts, sizeof(facts) / sizeof(facts[0]), only);
    for (uint32_t v = 0; only == NULL && v < sizeof(variants) / sizeof(variants[0]); v++)
        for (uint32_t i = 0; i < transport_fact_count; i++) {
            if (strncmp(transport_facts[i].name, "sizes", 5) != 0 &&
                strncmp(transport_facts[i].name, "messages", 8) != 0)
                continue;
            fact_t fact = transport_facts[i];
            fact.settings = variants[v];
            code |= fact_main("shm", &fact, 1, NULL);
        }
    return code;
}
