/* strangers_test.c - who has no key costs a counter: ranks meet while others knock. */
#include <unit/base/scratch_files.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <torture.h>
#include <unit/control/control_ranks.h>

static int knock(uint16_t port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && connect(s, (const struct sockaddr *)&to, sizeof(to)) == 0) return s;
    if (s >= 0) (void)close(s);
    return -1;
}

/* The same without waiting for the other end. */
static int knock_begin(uint16_t port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s >= 0) (void)connect(s, (const struct sockaddr *)&to, sizeof(to));
    return s;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool is_sanitized = true; /* what is freed stays with it for a while */
#else
static const bool is_sanitized = false;
#endif

/* True once the other end has closed. */
static bool is_shut(int s, int seconds)
{
    char bytes[512];
    const struct timeval limit = {.tv_sec = seconds};
    (void)setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    for (;;) {
        const ssize_t got = recv(s, bytes, sizeof(bytes), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
        if (got < 0) return false;
    }
}

typedef struct party { /* rank 0 waits for rank 1 */
    star_t star;
    rank_run_t zero, one;
} party_t;

static void party_open(party_t *p)
{
    assert_int_equal(star_open(&p->star), LH_OK);
    p->zero = (rank_run_t){.how = star_how(&p->star, 0, 2)};
    p->one = (rank_run_t){.how = star_how(&p->star, 1, 2)};
    (void)pthread_create(&p->zero.thread, NULL, rank_open_thread, &p->zero);
}

/* The rank that belongs there comes in, whatever the others do; returns how many were counted. */
static uint64_t party_end(party_t *p, double limit)
{
    control_counts_t counts;
    const uint64_t begin = sys()->now_ns();
    (void)rank_open_thread(&p->one);
    (void)pthread_join(p->zero.thread, NULL);
    const double seconds = seconds_since(begin);
    if (p->one.status != LH_OK) FAIL_TEST("%s\n", p->one.reason);
    assert_int_equal(p->zero.status, LH_OK);
    print_message("the rank came in after %.3f s\n", seconds);
    assert_true(seconds < limit);
    control_counts(p->zero.control, &counts);
    assert_int_equal(counts.handshakes, 1);
    rank_run_t both[2] = {p->zero, p->one};
    ranks_close(both, 2);
    assert_int_equal(both[0].status, LH_OK);
    assert_int_equal(both[1].status, LH_OK);
    secret_free(p->star.secret);
    return counts.strangers;
}

static void garbage_is_closed_and_counted(void **state)
{
    party_t p;
    char bytes[2000];
    (void)state;
    party_open(&p);
    for (uint32_t i = 0; i < 200; i++) {
        const int s = knock(p.star.port);
        assert_true(s >= 0);
        assert_int_equal(sys()->random(bytes, sizeof(bytes)), 0);
        (void)send(s, bytes, 1 + (size_t)i * 9, MSG_NOSIGNAL);
        if (i % 2 == 0) assert_true(i < 8 || is_shut(s, 20));
        (void)close(s);
    }
    assert_true(party_end(&p, 20) >= 190);
}

static void who_says_nothing_is_shut_out_after_two_seconds(void **state)
{
    enum { MANY = 150 };
    party_t p;
    int sockets[MANY];
    (void)state;
    party_open(&p);
    const uint64_t begin = sys()->now_ns();
    for (uint32_t i = 0; i < MANY; i++)
        sockets[i] = knock(p.star.port);
    assert_true(is_shut(sockets[0], 20));
    assert_true(seconds_since(begin) < 10);
    (void)party_end(&p, 20);
    for (uint32_t i = 0; i < MANY; i++)
        (void)close(sockets[i]);
}

static _Atomic uint32_t knocked;

/* One byte a time never gets further than the time that it has. */
static void *drip(void *argument)
{
    const uint16_t port = *(const uint16_t *)argument;
    const int s = knock(port);
    knocked++;
    for (uint32_t i = 0; s >= 0 && i < 60; i++) {
        if (send(s, "\x16\x03\x01\x02", 1, MSG_NOSIGNAL) != 1) break;
        (void)usleep(50000);
    }
    const bool shut = s >= 0 && is_shut(s, 20);
    if (s >= 0) (void)close(s);
    return shut ? argument : NULL;
}

static void slow_talkers_do_not_hold_a_rank_up(void **state)
{
    enum { TALKERS = 16 };
    party_t p;
    pthread_t threads[TALKERS];
    void *shut;
    (void)state;
    knocked = 0;
    party_open(&p);
    for (uint32_t i = 0; i < TALKERS; i++)
        (void)pthread_create(&threads[i], NULL, drip, &p.star.port);
    while (knocked < TALKERS)
        (void)usleep(1000);
    const uint64_t strangers = party_end(&p, 1.9); /* they have two seconds */
    for (uint32_t i = 0; i < TALKERS; i++) {
        (void)pthread_join(threads[i], &shut);
        assert_non_null(shut);
    }
    assert_int_equal(strangers, TALKERS);
}

static void a_tls_client_without_the_key_gets_nothing(void **state)
{
    party_t p;
    (void)state;
    party_open(&p);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    const int s = knock(p.star.port);
    assert_int_equal(SSL_set_fd(ssl, s), 1);
    assert_true(SSL_connect(ssl) != 1);
    SSL_free(ssl);
    SSL_CTX_free(context);
    (void)close(s);
    assert_int_equal(party_end(&p, 10), 1);
}

static void the_port_is_closed_once_all_are_in(void **state)
{
    party_t p;
    (void)state;
    party_open(&p);
    (void)rank_open_thread(&p.one);
    (void)pthread_join(p.zero.thread, NULL);
    assert_int_equal(knock(p.star.port), -1);
    rank_run_t both[2] = {p.zero, p.one};
    ranks_close(both, 2);
    secret_free(p.star.secret);
}

/* KiB of this process that are in memory. */
static long resident(void)
{
    long pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &all, &pages), 2);
    (void)fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* One after another, 50 at a time: a third says nothing, a third half of a record, the rest junk.
 */
static void knock_many(uint16_t port, uint32_t count)
{
    enum { BATCH = 50 };
    int sockets[BATCH];
    char junk[512];
    assert_int_equal(sys()->random(junk, sizeof(junk)), 0);
    for (uint32_t i = 0; i < count; i++) {
        int *s = &sockets[i % BATCH];
        *s = knock(port);
        assert_true(*s >= 0);
        if (i % 3 == 1) (void)send(*s, "\x16\x03\x01\x02\x00", 5, MSG_NOSIGNAL);
        if (i % 3 == 2) (void)send(*s, junk, sizeof(junk), MSG_NOSIGNAL);
        for (uint32_t k = 0; i % BATCH == BATCH - 1 && k < BATCH; k++)
            (void)close(sockets[k]);
    }
}

static void thousands_leave_nothing_behind(void **state)
{
    const uint32_t count = torture_wanted() ? 10000 : 1000;
    party_t p;
    (void)state;
    party_open(&p);
    /* As many at once as there will ever be, however late a busy machine lets the port look. Where it was
     * later still than before, more were held at once: what leaks grows every time. */
    enum { TURNS = 5 };
    uint32_t turns = 1;
    long grown = LONG_MAX;
    knock_many(p.star.port, count);
    while (turns < TURNS && grown >= 4096) {
        const long before = resident();
        const uint64_t begin = sys()->now_ns();
        knock_many(p.star.port, count);
        turns++;
        grown = is_sanitized ? 0 : resident() - before;
        print_message("%u strangers in %.2f s, %ld KiB more\n", count, seconds_since(begin), grown);
    }
    assert_true(grown < 4096);
    /* Of those that say nothing only who was let go before it went by itself. */
    const uint64_t mute = (count + 2) / 3, strangers = party_end(&p, 20);
    assert_in_range(strangers, turns * (count - mute), turns * count);
}

/* Holds as many connections as the port's queue has places and more, each silent, and makes a new
 * one wherever one is shut. */
static void flood(uint16_t port)
{
    enum { HELD = 1500 };
    static struct pollfd held[HELD];
    for (;;) {
        for (uint32_t i = 0; i < HELD; i++) {
            if (held[i].fd > 0 && held[i].revents == 0) continue;
            if (held[i].fd > 0) (void)close(held[i].fd);
            held[i] = (struct pollfd){.fd = knock_begin(port), .events = POLLIN | POLLRDHUP};
        }
        (void)poll(held, HELD, 10);
    }
}

static pid_t start_flood(uint16_t port)
{
    const struct rlimit room = {4096, 4096};
    const pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)setrlimit(RLIMIT_NOFILE, &room);
        flood(port);
    }
    assert_true(pid > 0);
    (void)usleep(500000);
    return pid;
}

static void end_flood(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

static void a_flood_from_one_source_does_not_keep_a_rank_out(void **state)
{
    party_t p;
    (void)state;
    party_open(&p);
    const pid_t pid = start_flood(p.star.port);
    print_message("%llu strangers\n", (unsigned long long)party_end(&p, 30));
    end_flood(pid);
}

/* Seconds of processors that this process has had. */
static double processor_seconds(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* As somebody does who only looks whether the port is open, be it one of the job's own machines. */
static void who_goes_without_a_word_is_forgotten_at_once(void **state)
{
    enum { TIMES = 10 };
    party_t p;
    (void)state;
    party_open(&p);
    const uint64_t begin = sys()->now_ns();
    const double before = processor_seconds();
    for (int i = 0; i < TIMES; i++) {
        const int s = knock(p.star.port);
        assert_true(s >= 0);
        (void)usleep(100000);
        (void)close(s);
    }
    const double share = (processor_seconds() - before) / seconds_since(begin);
    print_message("%.0f %% of a processor\n", 100 * share);
    assert_true(share < 0.3);
    assert_int_equal(party_end(&p, 20), 0);
}

/* All places are taken, and more knock all the time: rank 0 does not look without a pause. */
static void a_flood_leaves_rank_0_its_processor(void **state)
{
    party_t p;
    (void)state;
    party_open(&p);
    const pid_t pid = start_flood(p.star.port);
    const uint64_t begin = sys()->now_ns();
    const double before = processor_seconds();
    (void)usleep(1000000);
    const double share = (processor_seconds() - before) / seconds_since(begin);
    end_flood(pid);
    (void)party_end(&p, 30);
    print_message("%.0f %% of a processor\n", 100 * share);
    if (!is_sanitized) assert_true(share < 0.7);
}

typedef struct far { /* a way to rank 0 on which every message takes 60 ms */
    int listener;
    uint16_t port, to;
} far_t;

/* False: it has ended. */
static bool pass_late(int from, int to)
{
    char bytes[4096];
    const ssize_t got = recv(from, bytes, sizeof(bytes), 0);
    (void)usleep(60000);
    return got > 0 && send(to, bytes, (size_t)got, MSG_NOSIGNAL) == got;
}

/* Where the queue of a listener is full the kernel drops a SYN and says it again after 1, 3, 7 and 15 s. Who connects
 * anew each second, as a rank does once in a while, has the chance of a stranger. -1: `near` has ended. */
static int knock_until_ended(int near, uint16_t port)
{
    struct pollfd ended = {.fd = near, .events = POLLRDHUP};
    while (poll(&ended, 1, 0) == 0) {
        struct pollfd p = {.fd = knock_begin(port), .events = POLLOUT};
        if (p.fd < 0) return -1;
        if (poll(&p, 1, 1000) == 1 && (p.revents & (POLLERR | POLLHUP)) == 0) {
            (void)fcntl(p.fd, F_SETFL, 0);
            return p.fd;
        }
        (void)close(p.fd);
    }
    return -1;
}

/* As over a long line, the connection is there as soon as its first message. */
static void carry(int near, uint16_t port)
{
    struct pollfd p[2] = {{.fd = near, .events = POLLIN}, {.events = POLLIN}};
    (void)poll(p, 1, 2000);
    p[1].fd = knock_until_ended(near, port);
    bool goes_on = p[1].fd >= 0 && pass_late(near, p[1].fd);
    while (goes_on && poll(p, 2, 10000) > 0)
        for (int i = 0; i < 2 && goes_on; i++)
            if (p[i].revents != 0) goes_on = pass_late(p[i].fd, p[1 - i].fd);
    if (p[1].fd >= 0) (void)close(p[1].fd);
}

static void *carry_all(void *argument)
{
    const far_t *f = argument;
    for (int near; (near = accept(f->listener, NULL, NULL)) >= 0;) {
        carry(near, f->to);
        (void)close(near);
    }
    return NULL;
}

static void a_flood_leaves_a_rank_that_has_greeted_its_time(void **state)
{
    party_t p;
    far_t f;
    pthread_t thread;
    (void)state;
    party_open(&p);
    f.to = p.star.port;
    assert_int_equal(control_listen("127.0.0.1", 0, &f.listener, &f.port), LH_OK);
    assert_int_equal(fcntl(f.listener, F_SETFL, 0), 0);
    (void)pthread_create(&thread, NULL, carry_all, &f);
    p.one.how.port = f.port;
    const pid_t pid = start_flood(p.star.port);
    (void)party_end(&p, 30);
    end_flood(pid);
    (void)shutdown(f.listener, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    (void)close(f.listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_is_closed_and_counted),
        cmocka_unit_test(who_says_nothing_is_shut_out_after_two_seconds),
        cmocka_unit_test(slow_talkers_do_not_hold_a_rank_up),
        cmocka_unit_test(a_tls_client_without_the_key_gets_nothing),
        cmocka_unit_test(the_port_is_closed_once_all_are_in),
        cmocka_unit_test(thousands_leave_nothing_behind),
        cmocka_unit_test(a_flood_from_one_source_does_not_keep_a_rank_out),
        cmocka_unit_test(who_goes_without_a_word_is_forgotten_at_once),
        cmocka_unit_test(a_flood_leaves_rank_0_its_processor),
        cmocka_unit_test(a_flood_leaves_a_rank_that_has_greeted_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
