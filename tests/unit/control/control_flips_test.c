/* control_flips_test.c - one flipped bit anywhere in what travels between two control planes that
 * have shaken hands: it is found, and no frame that it touches comes out. 10,000 bits, 1,000,000
 * where LONGHAUL_TORTURE asks for it.
 *
 * Who finds a bit ends its connection, and a handshake takes long. Each direction has keys and
 * counters of its own, so a connection serves two bits: one on each way, both frames and records
 * made before either end is given any. And it serves several turns: all but the last one are taken by
 * processes of their own, which have both ends as they were before any bit. Such a process takes
 * longer to make and to end than what it does with a connection, so it has several of these at once;
 * one of them runs at a time, as other tests have the other processors. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <control/control_conn.h>
#include <torture.h>

enum { FRAMES = 3, BYTES = 400, MORE = 20000, WIRE = 1 << 16, RANK = 5 };
enum { CI_FLIPS = 10000, TORTURE_FLIPS = 1000000 };
/* A sanitizer's process takes longer to fork than a handshake. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LINES = 1, TURNS = 1 };
#else
enum { LINES = 16, TURNS = 16 };
#endif

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

enum { WAYS = 2 };
_Static_assert(CI_FLIPS % WAYS == 0 && TORTURE_FLIPS % WAYS == 0, "a bit on each way");

typedef struct wire { /* one way of a line: what `from` has sent, not yet given to `to` */
    control_conn_t *from, *to;
    int in, out; /* where bytes are taken from, where they are given to */
    int to_fd;   /* the other end of out */
    unsigned char bytes[WIRE];
    size_t length, flipped; /* bits are flipped in so many bytes */
    uint64_t bit;           /* that of the turn */
} wire_t;

typedef struct line { /* two ends, and between them who passes bytes on */
    control_conn_t *dials, *accepts;
    int near, far;
    int dials_fd, accepts_fd; /* of the two ends: theirs */
    wire_t wires[WAYS];
} line_t;

static line_t lines[LINES];

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
    l->dials_fd = pair_end(&l->near);
    l->accepts_fd = pair_end(&l->far);
    assert_int_equal(conn_new(tls, l->dials_fd, RANK, FRAME_LARGE, &l->dials), LH_OK);
    assert_int_equal(conn_new(tls, l->accepts_fd, CONN_NO_RANK, FRAME_SMALL, &l->accepts), LH_OK);
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

static void put_part(control_conn_t *from, uint32_t round, uint32_t length)
{
    static unsigned char part[MORE];
    text_t payload = {0};
    memset(part, (int)round + 1, length);
    frame_write_gather(
        &payload,
        &(frame_gather_t){.round = round, .where = "here", .length = length, .bytes = part});
    conn_put(from, FRAME_GATHER, &payload);
    assert_int_equal(conn_drive(from), LH_OK);
    text_free(&payload);
}

/* A record a frame; what follows makes a record whole whose length was flipped upwards. */
static void wire_make(wire_t *w)
{
    for (uint32_t i = 0; i < FRAMES; i++)
        put_part(w->from, i, BYTES);
    w->flipped = take(w->in, w->bytes);
    put_part(w->from, FRAMES, MORE);
    w->length = w->flipped + take(w->in, w->bytes + w->flipped);
}

static void wires_make(line_t *l)
{
    wire_t *wires = l->wires;
    wires[0].from = wires[1].to = l->dials;
    wires[0].to = wires[1].from = l->accepts;
    wires[0].in = wires[1].out = l->near;
    wires[0].out = wires[1].in = l->far;
    wires[0].to_fd = l->accepts_fd;
    wires[1].to_fd = l->dials_fd;
    for (uint32_t i = 0; i < WAYS; i++)
        wire_make(&wires[i]);
}

/* How many came; each must be as it was sent. */
static uint32_t count_frames(control_conn_t *to)
{
    frame_t frame;
    frame_gather_t part;
    uint32_t count = 0;
    while (conn_next(to, &frame) == LH_OK) {
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
    line_t *l = &lines[0];
    line_open(l);
    wires_make(l);
    for (uint32_t i = 0; i < WAYS; i++) {
        const wire_t *w = &l->wires[i];
        give(w->out, w->bytes, w->length);
        assert_int_equal(conn_drive(w->to), LH_OK);
        assert_int_equal(count_frames(w->to), FRAMES + 1);
    }
    line_close(l);
}

static void a_flipped_bit_is_found(wire_t *w)
{
    w->bytes[w->bit / 8] ^= (unsigned char)(1u << w->bit % 8);
    give(w->out, w->bytes, w->length);
    const lh_status_t status = conn_drive(w->to);
    const uint32_t whole = count_frames(w->to);
    if (status == LH_OK || whole > w->bit / 8 / (w->flipped / FRAMES))
        FAIL_TEST("bit %llu of %zu bytes: status %d, %u frames came\n", (unsigned long long)w->bit,
                  w->flipped, (int)status, whole);
}

static void flipped_bits_are_found(uint32_t count)
{
    for (uint32_t i = 0; i < count * WAYS; i++)
        a_flipped_bit_is_found(&lines[i / WAYS].wires[i % WAYS]);
}

static void bits_draw(uint32_t count)
{
    for (uint32_t i = 0; i < count * WAYS; i++) {
        wire_t *w = &lines[i / WAYS].wires[i % WAYS];
        w->bit = next_random() % (w->flipped * 8);
    }
}

/* Sockets are what a fork shares: a process that takes a turn has others under the ends' numbers. */
static void sockets_part(uint32_t count)
{
    for (uint32_t i = 0; i < count * WAYS; i++) {
        wire_t *w = &lines[i / WAYS].wires[i % WAYS];
        const int theirs = pair_end(&w->out);
        assert_int_equal(dup2(theirs, w->to_fd), w->to_fd);
    }
}

/* A turn in a process of its own: a bit on each way of the first `count` lines. */
static void turn_take_apart(uint32_t count)
{
    bits_draw(count);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* A failure ends this process: it must not go on with the tests that follow. */
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1);
        sockets_part(count);
        flipped_bits_are_found(count);
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
}

/* All turns of some lines. The last is this process's own, as it ends both ends of each. */
static void turns_take(uint32_t count, uint32_t turns)
{
    assert_in_range(turns, 1, TURNS);
    for (uint32_t i = 0; i + 1 < turns; i++)
        turn_take_apart(count);
    bits_draw(count);
    flipped_bits_are_found(count);
}

static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    const uint64_t begin = seed;
    for (uint64_t n = 0; n < flips;) {
        const uint64_t left = (flips - n) / WAYS;
        const uint32_t count = left < LINES ? (uint32_t)left : LINES;
        const uint32_t turns = left / count < TURNS ? (uint32_t)(left / count) : TURNS;
        for (uint32_t i = 0; i < count; i++) {
            line_open(&lines[i]);
            wires_make(&lines[i]);
        }
        turns_take(count, turns);
        for (uint32_t i = 0; i < count; i++)
            line_close(&lines[i]);
        n += (uint64_t)count * turns * WAYS;
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
