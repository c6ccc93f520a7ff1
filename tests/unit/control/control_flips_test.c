/* control_flips_test.c - one flipped bit anywhere in what travels between two control planes that
 * have shaken hands: it is found, and no frame that it touches comes out. 10,000 bits, 1,000,000
 * where LONGHAUL_TORTURE asks for it. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <control/control_conn.h>
#include <torture.h>

enum { FRAMES = 3, BYTES = 400, MORE = 20000, WIRE = 1 << 16, RANK = 5 };
enum { CI_FLIPS = 10000, TORTURE_FLIPS = 1000000 };

static secret_t *secret;
static control_tls_t *tls;
static uint64_t seed = 20261122, flips = CI_FLIPS;

static uint64_t next_random(void)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

typedef struct line { /* two ends, and between them who passes bytes on */
    control_conn_t *dials, *accepts;
    int near, far;
} line_t;

static int pair_end(int *ours)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    *ours = ends[0];
    return ends[1];
}

static size_t take(int from, unsigned char *bytes)
{
    const ssize_t got = recv(from, bytes, WIRE, 0);
    return got > 0 ? (size_t)got : 0;
}

static void give(int to, const unsigned char *bytes, size_t length)
{
    assert_int_equal(send(to, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
}

static void pass(int from, int to)
{
    unsigned char bytes[WIRE];
    const size_t length = take(from, bytes);
    if (length > 0) give(to, bytes, length);
}

static void line_open(line_t *l)
{
    assert_int_equal(conn_new(tls, pair_end(&l->near), RANK, FRAME_LARGE, &l->dials), LH_OK);
    assert_int_equal(conn_new(tls, pair_end(&l->far), CONN_NO_RANK, FRAME_SMALL, &l->accepts),
                     LH_OK);
    while (!conn_is_proven(l->dials) || !conn_is_proven(l->accepts)) {
        assert_int_equal(conn_drive(l->dials), LH_OK);
        pass(l->near, l->far);
        assert_int_equal(conn_drive(l->accepts), LH_OK);
        pass(l->far, l->near);
    }
}

static void line_close(line_t *l)
{
    conn_free(l->dials);
    conn_free(l->accepts);
    (void)close(l->near);
    (void)close(l->far);
}

static void put_part(line_t *l, uint32_t round, uint32_t length)
{
    static unsigned char part[MORE];
    text_t payload = {0};
    memset(part, (int)round + 1, length);
    frame_write_gather(&payload, round, "here", part, length);
    conn_put(l->dials, FRAME_GATHER, &payload);
    assert_int_equal(conn_drive(l->dials), LH_OK);
    text_free(&payload);
}

/* A record a frame; what follows makes a record whole whose length was flipped upwards. */
static size_t make_wire(line_t *l, unsigned char *wire, size_t *flipped)
{
    for (uint32_t i = 0; i < FRAMES; i++)
        put_part(l, i, BYTES);
    *flipped = take(l->near, wire);
    put_part(l, FRAMES, MORE);
    return *flipped + take(l->near, wire + *flipped);
}

/* How many came; each must be as it was sent. */
static uint32_t count_frames(line_t *l)
{
    frame_t frame;
    frame_gather_t part;
    uint32_t count = 0;
    while (conn_next(l->accepts, &frame) == LH_OK) {
        assert_int_equal(frame_read_gather(&frame, &part), LH_OK);
        assert_int_equal(part.round, count);
        assert_int_equal(part.length, count < FRAMES ? BYTES : MORE);
        for (uint32_t i = 0; i < part.length; i++)
            assert_int_equal(part.bytes[i], count + 1);
        count++;
    }
    return count;
}

static void what_is_not_touched_arrives(void **state)
{
    (void)state;
    line_t l;
    unsigned char wire[WIRE];
    size_t flipped;
    line_open(&l);
    const size_t length = make_wire(&l, wire, &flipped);
    give(l.far, wire, length);
    assert_int_equal(conn_drive(l.accepts), LH_OK);
    assert_int_equal(count_frames(&l), FRAMES + 1);
    line_close(&l);
}

static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    const uint64_t begin = seed;
    for (uint64_t n = 0; n < flips; n++) {
        line_t l;
        unsigned char wire[WIRE];
        size_t flipped;
        line_open(&l);
        const size_t length = make_wire(&l, wire, &flipped);
        const uint64_t bit = next_random() % (flipped * 8);
        wire[bit / 8] ^= (unsigned char)(1u << bit % 8);
        give(l.far, wire, length);
        const lh_status_t status = conn_drive(l.accepts);
        const uint32_t whole = count_frames(&l);
        if (status == LH_OK || whole > bit / 8 / (flipped / FRAMES))
            FAIL_TEST("bit %llu of %zu bytes: status %d, %u frames came\n", (unsigned long long)bit,
                      flipped, (int)status, whole);
        line_close(&l);
    }
    print_message("%llu flipped bits of %llu found, seed %llu\n", (unsigned long long)flips,
                  (unsigned long long)flips, (unsigned long long)begin);
}

static int begin_all(void **state)
{
    (void)state;
    const char *wanted = getenv("LONGHAUL_SEED");
    if (torture_wanted()) flips = TORTURE_FLIPS;
    if (wanted != NULL) seed = strtoull(wanted, NULL, 10);
    if (secret_random(&secret) != LH_OK) return -1;
    return control_tls_new(secret, &tls) == LH_OK ? 0 : -1;
}

static int end_all(void **state)
{
    (void)state;
    control_tls_free(tls);
    secret_free(secret);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_touched_arrives),
        cmocka_unit_test(every_flipped_bit_is_found),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
