/* ib_private_test.c - `security = private` of apn over the stand-in of libibverbs: what arrives is what
 * was sent, over queue pairs that fail, too; what lies in the peer's memory is not the text; and
 * what was changed on its way ends the connection before anybody reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ib_facts.h"
#include "ib_ring.h"

static void sealed_messages_arrive(end_t *e)
{
    static const uint64_t sizes[] = {1, 8, 1000, 16384, 16385, 65536, 65537, 1000000, 3000001};
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t out = buffer_new(e, 4 << 20, false, 0), in = buffer_new(e, 4 << 20, false, 0);
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        (void)ib_exchange(e, &out, &in, 1, sizes[i]);
    (void)ib_exchange(e, &out, &in, 256, 8);
    end_receive(e, &in, 0, 0, 1, 1);
    end_send(e, &out, 0, 0, 1, 1);
    CHECK(end_await(e, LH_WIRE_RECEIVED, 1).bytes == 0);
    (void)end_await(e, LH_WIRE_SENT, 1);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* Of 6 MB the window has room for one. */
static void ends_that_both_do_not_poll_keep_their_requests(end_t *e)
{
    ib_rest(e, LH_SECURITY_PRIVATE, 32, 200000, 8);
}

static void a_changing_fabric_is_borne(end_t *e)
{
    ib_random_messages(e, LH_SECURITY_PRIVATE, 1, 100000);
}

static void ports_that_come_and_go_are_borne(end_t *e)
{
    ib_random_messages(e, LH_SECURITY_PRIVATE, 2, 100000);
}

/* Rings that are full all the time: five frames of 64 KiB, of which the window has one. */
static void a_few_frames_carry_many(end_t *e)
{
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t out = buffer_new(e, 32 << 20, false, 0), in = buffer_new(e, 32 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 16, 2 << 20);
    end_barrier(e);
}

/* The stand-in shows what it was given to send: ours is not among it. */
static void nobody_reads_it_on_the_way(end_t *e)
{
    static const char text[] = "the quick brown fox jumps over the lazy dog";
    char path[64];
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t b = buffer_new(e, 200000, false, 0);
    (void)snprintf(path, sizeof(path), "/tmp/ib_private.%d", (int)getpid());
    if (e->side == 0) {
        ib_tap(path);
        for (uint32_t i = 0; i + sizeof(text) < 200000; i += sizeof(text))
            memcpy(b.data + i, text, sizeof(text));
        end_send(e, &b, 0, 200000, 3, 1);
        (void)end_await(e, LH_WIRE_SENT, 1);
        ib_tap("");
        FILE *f = fopen(path, "r");
        CHECK(f != NULL);
        (void)unlink(path);
        static char all[1 << 20];
        const size_t bytes = fread(all, 1, sizeof(all), f);
        (void)fclose(f);
        CHECK(bytes > 200000, "%zu bytes were seen", bytes);
        CHECK(memmem(all, bytes, text, 8) == NULL);
    } else {
        end_receive(e, &b, 0, 200000, 3, 1);
        (void)end_await(e, LH_WIRE_RECEIVED, 1);
        CHECK(memcmp(b.data, text, sizeof(text)) == 0);
    }
    end_barrier(e);
}

/* Side 0 sends what was changed by a bit; `at`: which byte of its next packet of a frame. */
static void changed(end_t *e, const char *order, const char *words)
{
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t b = buffer_new(e, 50000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 50000, 3, 1);
    if (e->side == 1) end_poll(e);
    end_barrier(e);
    if (e->side == 0) {
        for (int i = 0; i < 100; i++)
            end_poll(e);
        ib_order(order);
        end_send(e, &b, 0, 50000, 3, 1);
    }
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    CHECK(down.status == LH_CORRUPT, "status %d: %s", down.status, down.reason);
    CHECK(strstr(down.reason, words) != NULL, "%s", down.reason);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    const uint32_t type = e->side == 0 ? LH_WIRE_SENT : LH_WIRE_RECEIVED;
    CHECK(end_await(e, type, 1).status == LH_CORRUPT || e->side == 0);
    end_barrier(e);
}

static void a_payload_that_was_changed_is_corrupt(end_t *e)
{
    changed(e, "flip=1000", "was not sealed with this connection's key");
}

static void a_head_that_was_changed_is_corrupt(end_t *e)
{
    changed(e, "flip=9", "was not sealed with this connection's key");
}

/* A frame that says to be another than it is was sealed for another place. */
static void a_frame_in_another_place_is_corrupt(end_t *e)
{
    changed(e, "immediate=1", "was not sealed with this connection's key");
}

static void a_frame_without_a_place_is_corrupt(end_t *e)
{
    changed(e, "immediate=0x80000", "has no place");
}

static void frames_of_a_peer_without_the_key_are_denied(end_t *e)
{
    end_listen(e, LH_SECURITY_PRIVATE);
    if (e->side == 0) ib_order("flip=1 flip_of=80"); /* the share */
    e->conn = end_join_at(e, LH_SERVICE_GRADIENT, RIG_CONN, LH_SECURITY_PRIVATE);
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    if (e->side == 1)
        CHECK(down.status == LH_DENIED && strstr(down.reason, "could not prove") != NULL, "%s",
              down.reason);
    end_barrier(e);
}

/* No key of a rank's own memory exists that a peer could write by. */
static void arenas_are_not_registered(end_t *e)
{
    end_listen(e, LH_SECURITY_PRIVATE);
    const uint64_t before = ib_count("regions");
    if (e->side == 1) {
        (void)buffer_new(e, 1 << 20, false, 0);
        CHECK(ib_count("regions") == before);
    }
    end_barrier(e);
}

/* A processor seals, which can't reach it; and no card knows of it, so that no peer writes there. */
static void memory_of_a_device_is_refused(end_t *e)
{
    lh_region_t *region;
    const int fd = memfd_create("device", MFD_CLOEXEC);
    char *base = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0 && base != MAP_FAILED);
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_CUDA,
                              .base = base,
                              .bytes = 4096,
                              .fd = fd,
                              .numa = -1};
    ib_meet(e, LH_SECURITY_PRIVATE);
    const uint64_t before = ib_count("regions");
    CHECK(e->api->register_memory(e->transport, 0, &arena, &region) == LH_OK);
    CHECK(e->side == 0 || ib_count("regions") == before, "%llu, %llu before",
          (unsigned long long)ib_count("regions"), (unsigned long long)before);
    CHECK(e->api->isend(e->conn, region, base, 100, 1, 1) == LH_UNSUPPORTED);
    CHECK(strstr(check_host_reason(), "security = private is for memory of the host") != NULL, "%s",
          check_host_reason());
    end_barrier(e);
}

/* What this end has yet to send is nobody's to write: neither the frames below those that come, nor
 * the board above the one that is the peer's. Side 0 is a peer that knows key and address. */
static void expect_refused(end_t *e)
{
    const lh_wire_event_t down = end_await(e, LH_WIRE_DOWN, RIG_CONN);
    if (e->side == 0)
        CHECK(down.status == LH_CORRUPT && strstr(down.reason, "remote access error") != NULL,
              "status %d: %s", down.status, down.reason);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    end_barrier(e);
}

static void frames_that_leave_are_not_written_by_a_peer(end_t *e)
{
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t b = buffer_new(e, 50000, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 50000, 3, 1);
    if (e->side == 1) end_poll(e);
    end_barrier(e);
    if (e->side == 0) {
        ib_order(
            "astray=-65536 astray_of=32768"); /* of the first frame, which is 64 KiB and more */
        end_send(e, &b, 0, 50000, 3, 1);
    }
    expect_refused(e);
}

static void a_share_that_leaves_is_not_written_by_a_peer(end_t *e)
{
    char order[60];
    end_listen(e, LH_SECURITY_PRIVATE);
    (void)snprintf(order, sizeof(order), "astray=%zu astray_of=%zu", sizeof(ib_board_t),
                   sizeof(ib_share_t));
    if (e->side == 0) ib_order(order);
    e->conn = end_join_at(e, LH_SERVICE_GRADIENT, RIG_CONN, LH_SECURITY_PRIVATE);
    expect_refused(e);
}

/* It is with the threads while the peer's end is seen. */
static void what_came_before_an_end_is_opened(end_t *e)
{
    enum { BYTES = 2 << 20 };
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t b = buffer_new(e, BYTES, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, BYTES, 3, 1);
    if (e->side == 1) end_poll(e);
    end_barrier(e);
    if (e->side == 0) {
        buffer_fill(b.data, BYTES, 7);
        end_send(e, &b, 0, BYTES, 3, 1);
        CHECK(end_await(e, LH_WIRE_SENT, 1).status == LH_OK);
        e->api->cancel(e->conn);
        (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    }
    end_barrier(e); /* nobody has polled on side 1 */
    if (e->side == 1) {
        const lh_wire_event_t got = end_await(e, LH_WIRE_RECEIVED, 1);
        CHECK(got.status == LH_OK, "status %d: %s", got.status, got.reason);
        buffer_check(b.data, BYTES, 7);
        CHECK(end_await(e, LH_WIRE_DOWN, RIG_CONN).status == LH_PEER_LOST);
    }
    end_barrier(e);
}

/* Frames are as many, and as long, as they were made: what is in force says so. */
static void a_new_tuning_tells_what_frames_allow(end_t *e)
{
    const lh_tuning_t wanted = {
        .struct_size = sizeof(wanted), .chunk_bytes = 8 << 20, .inflight_bytes = 64 << 20};
    lh_tuning_t got = {.struct_size = sizeof(got)};
    ib_meet(e, LH_SECURITY_PRIVATE);
    CHECK(e->api->retune(e->conn, &wanted, &got) == LH_OK);
    CHECK(got.chunk_bytes >= 64 << 10 && got.chunk_bytes < (64 << 10) + 64, "%llu",
          (unsigned long long)got.chunk_bytes);
    CHECK(got.inflight_bytes == 5 * got.chunk_bytes, "%llu",
          (unsigned long long)got.inflight_bytes);
    buffer_t out = buffer_new(e, 4 << 20, false, 0), in = buffer_new(e, 4 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 2, 2 << 20);
    end_barrier(e);
}

/* A connection by `wanted`, of whose frames one end may lock `room` bytes; what that end says of it. */
static void join_with_room(end_t *e, const lh_tuning_t *wanted, int room, char *said, size_t most)
{
    char order[60];
    lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    params.tuning = wanted;
    params.security = LH_SECURITY_PRIVATE;
    end_listen(e, LH_SECURITY_PRIVATE);
    (void)snprintf(order, sizeof(order), "memory_most=%d", room);
    if (e->side == 1) ib_order(order);
    ib_join_heard(e, &params, said, most);
}

/* One end may lock less than the frames of 64 MiB take: what can be had of them, and a warning; what is
 * in force says so at both ends, and messages go through. */
static void a_window_that_memory_has_no_room_for_is_cut(end_t *e)
{
    enum { WANTED = 64 << 20, CHUNK = 64 << 10, ROOM = 20 << 20 };
    char said[512];
    lh_tuning_t got = {.struct_size = sizeof(got)};
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted),
                                .streams = 16,
                                .chunk_bytes = CHUNK,
                                .inflight_bytes = WANTED};
    join_with_room(e, &wanted, ROOM, said, sizeof(said));
    CHECK((strstr(said, "a window of 67108864 bytes takes ") != NULL) == (e->side == 1), "%s",
          said);
    CHECK(e->side == 0 ||
              strstr(said, " bytes of registered memory, more than fake0 gives; ") != NULL,
          "%s", said);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->retune(e->conn, NULL, &got) == LH_OK);
    CHECK(got.inflight_bytes >= ROOM / 4 && got.inflight_bytes <= ROOM / 2, "%llu",
          (unsigned long long)got.inflight_bytes);
    ib_order("memory_most=0");
    buffer_t out = buffer_new(e, 32 << 20, false, 0), in = buffer_new(e, 32 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 16, 2 << 20);
    CHECK(ib_count("rnr") == 0 && ib_count("overruns") == 0);
    end_barrier(e);
}

/* One end may lock what the frames of 4 MiB take and those of two threads of three beside: the window
 * stays at both ends, and that end says what its threads lack. A frame is 64 bytes longer than its chunk. */
static void frames_of_threads_that_memory_has_no_room_for_are_told(end_t *e)
{
    enum { WANTED = 4 << 20, CHUNK = 64 << 10, FRAME = CHUNK + 64, FRAMES = WANTED / CHUNK + 2 };
    enum { THREADS = 3, ROOM = 2 * (FRAMES + 4) * FRAME };
    char said[512], expected[160];
    lh_tuning_t got = {.struct_size = sizeof(got)};
    const lh_tuning_t wanted = {
        .struct_size = sizeof(wanted), .chunk_bytes = CHUNK, .inflight_bytes = WANTED};
    join_with_room(e, &wanted, ROOM, said, sizeof(said));
    (void)snprintf(expected, sizeof(expected),
                   " a window of %d bytes and %d threads take %d bytes of registered memory, more "
                   "than fake0 gives; %d instead",
                   WANTED, THREADS, 2 * (FRAMES + 2 * THREADS) * FRAME, 2 * FRAMES * FRAME);
    CHECK((strstr(said, expected) != NULL) == (e->side == 1), "%s", said);
    (void)end_await(e, LH_WIRE_UP, RIG_CONN);
    CHECK(e->api->retune(e->conn, NULL, &got) == LH_OK && got.inflight_bytes == WANTED, "%llu",
          (unsigned long long)got.inflight_bytes);
    ib_order("memory_most=0");
    buffer_t out = buffer_new(e, 32 << 20, false, 0), in = buffer_new(e, 32 << 20, false, 0);
    (void)ib_exchange(e, &out, &in, 16, 2 << 20);
    end_barrier(e);
}

/* 4 MiB, of 64 KiB each: set by hand. */
static void a_window_of_one_s_own_is_refused_with_what_it_takes(end_t *e)
{
    lh_conn_t *conn;
    const lh_conn_params_t params = end_params(e, LH_SERVICE_GRADIENT, RIG_CONN);
    lh_conn_params_t sealed = params;
    sealed.security = LH_SECURITY_PRIVATE;
    end_listen(e, LH_SECURITY_PRIVATE);
    if (e->side == 0) {
        ib_order("memory_most=4000000");
        CHECK(e->api->connect(e->transport, &e->address, &sealed, &conn) == LH_IO);
        CHECK(strstr(check_host_reason(), "window = 4194304: with security = private it takes ") !=
                      NULL &&
                  strstr(check_host_reason(),
                         " bytes of registered memory, more than fake0 gives") != NULL,
              "%s", check_host_reason());
    }
    end_barrier(e);
}

/* While threads have frames of it. */
static void a_cancel_waits_for_no_peer(end_t *e)
{
    ib_meet(e, LH_SECURITY_PRIVATE);
    buffer_t b = buffer_new(e, 64 << 20, false, 0);
    if (e->side == 1) end_receive(e, &b, 0, 64 << 20, 1, 1);
    if (e->side == 1) end_poll(e);
    end_barrier(e);
    if (e->side == 0) end_send(e, &b, 0, 64 << 20, 1, 1);
    for (int i = 0; i < 20; i++)
        end_poll(e);
    const uint64_t begin = ib_ran_ns(e);
    e->api->cancel(e->conn);
    (void)end_await(e, LH_WIRE_DRAINED, RIG_CONN);
    CHECK(ib_ran_ns(e) - begin < 100000000);
    memset(b.data, 1, b.bytes); /* it is this end's again */
    end_barrier(e);
}

int main(int argc, char **argv)
{
    static const char *const many[] = {"queue_pairs=4", "chunk=64KiB", NULL};
    static const char *const few[] = {"queue_pairs=2", "chunk=64KiB", "window=64KiB",
                                      "seal_threads=1", NULL};
    static const char *const one[] = {"chunk=64KiB", "window=4MiB", "seal_threads=1", NULL};
    static const char *const shaky[] = {"bind=127.0.0.1, 127.0.0.2", "queue_pairs=4", "chunk=64KiB",
                                        "ack_timeout=12", NULL};
    static const char *const threads[] = {"seal_threads=3", NULL};
    static const fact_t facts[] = {
#define FACT(name, settings) {#name, name, false, settings}
        FACT(sealed_messages_arrive, NULL),
        FACT(ends_that_both_do_not_poll_keep_their_requests, many),
        FACT(a_changing_fabric_is_borne, many),
        FACT(ports_that_come_and_go_are_borne, shaky),
        FACT(a_few_frames_carry_many, few),
        FACT(nobody_reads_it_on_the_way, NULL),
        FACT(a_payload_that_was_changed_is_corrupt, NULL),
        FACT(a_head_that_was_changed_is_corrupt, NULL),
        FACT(a_frame_in_another_place_is_corrupt, NULL),
        FACT(a_frame_without_a_place_is_corrupt, NULL),
        FACT(frames_of_a_peer_without_the_key_are_denied, NULL),
        FACT(arenas_are_not_registered, NULL),
        FACT(memory_of_a_device_is_refused, NULL),
        FACT(frames_that_leave_are_not_written_by_a_peer, few),
        FACT(a_share_that_leaves_is_not_written_by_a_peer, NULL),
        FACT(what_came_before_an_end_is_opened, one),
        FACT(a_new_tuning_tells_what_frames_allow, few),
        FACT(a_window_that_memory_has_no_room_for_is_cut, NULL),
        FACT(frames_of_threads_that_memory_has_no_room_for_are_told, threads),
        FACT(a_window_of_one_s_own_is_refused_with_what_it_takes, one),
        FACT(a_cancel_waits_for_no_peer, threads),
    };
    (void)setenv("FAKE_VERBS", "devices=2", 1);
    ib_facts_begin();
    return fact_main("apn", facts, sizeof(facts) / sizeof(facts[0]), argc > 1 ? argv[1] : NULL);
}
