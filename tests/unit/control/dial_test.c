/* dial_test.c - names whose look-up takes its time, and names with an address at which nobody answers. */
#include <unit/base/scratch_files.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <base/sys.h>
#include <control/control_conn.h>

static const uint64_t second = UINT64_C(1000000000);

typedef int (*resolve_t)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* In libc's place. slow.test is known after more than a second; two.test has 127.0.0.2 before
 * 127.0.0.1. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *how,
                struct addrinfo **out)
{
    struct addrinfo *behind = NULL;
    resolve_t real;
    *(void **)(&real) = dlsym(RTLD_NEXT, "getaddrinfo");
    const bool two = strcmp(name, "two.test") == 0, slow = strcmp(name, "slow.test") == 0;
    if (slow) (void)usleep(1200000);
    if (two) assert_int_equal(real("127.0.0.1", service, how, &behind), 0);
    const int error = real(two ? "127.0.0.2" : slow ? "127.0.0.1" : name, service, how, out);
    if (error == 0 && two) (*out)->ai_next = behind;
    return error;
}

static void a_slow_name_leaves_its_machine_the_time_to_answer(void **state)
{
    (void)state;
    int listener, fd;
    uint16_t port;
    assert_int_equal(control_listen("127.0.0.1", 0, &listener, &port), LH_OK);
    if (control_dial("slow.test", port, sys()->now_ns() + second, second, &fd) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    (void)close(fd);
    (void)close(listener);
}

/* A queue that is full drops whoever knocks, as a filter does, or a machine that is down. */
enum { KNOCKS = 4 };
typedef struct deaf {
    int listener, knocks[KNOCKS];
} deaf_t;

static void deaf_begin(deaf_t *d, const char *address, uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    assert_int_equal(inet_pton(AF_INET, address, &at.sin_addr), 1);
    d->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(d->listener, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(d->listener, 0), 0);
    for (int i = 0; i < KNOCKS; i++) {
        d->knocks[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(d->knocks[i], (const struct sockaddr *)&at, sizeof(at));
    }
}

static void deaf_end(const deaf_t *d)
{
    for (int i = 0; i < KNOCKS; i++)
        (void)close(d->knocks[i]);
    (void)close(d->listener);
}

static void an_address_without_answer_leaves_time_for_the_next(void **state)
{
    (void)state;
    int listener, fd;
    uint16_t port;
    deaf_t full;
    assert_int_equal(control_listen("127.0.0.1", 0, &listener, &port), LH_OK);
    deaf_begin(&full, "127.0.0.2", port);
    if (control_dial("two.test", port, sys()->now_ns() + second, second, &fd) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    deaf_end(&full);
    (void)close(fd);
    (void)close(listener);
}

/* A connection at `listener` as it ends: true, its peer is `fd`; false: it was closed and has said nothing. */
static bool accepts(int listener, int fd)
{
    struct sockaddr_in peer, own;
    socklen_t length = sizeof(own);
    char byte;
    struct pollfd p = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
    int s = -1;
    assert_int_equal(control_accept(listener, second, &s), LH_OK);
    assert_int_equal(getpeername(s, (struct sockaddr *)&peer, &length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &length), 0);
    const bool same = peer.sin_port == own.sin_port;
    p = (struct pollfd){.fd = s, .events = POLLIN};
    if (!same) {
        assert_int_equal(poll(&p, 1, 20000), 1);
        assert_int_equal(recv(s, &byte, 1, 0), 0);
    }
    (void)close(s);
    return same;
}

/* Who listens is found behind eight machines that are down, which would take eight times the limit one after the
 * other, and by a connection that has not stood while they were waited for: who listens has no patience with that. */
static void the_first_that_answers_is_found_beside_machines_that_are_down(void **state)
{
    (void)state;
    enum { DEAF = 8 };
    static const char *const addresses[] = {"127.0.0.2", "127.0.0.3", "127.0.0.4",
                                            "127.0.0.5", "127.0.0.6", "127.0.0.7",
                                            "127.0.0.8", "127.0.0.9", "127.0.0.1"};
    deaf_t deaf[DEAF];
    int listener, fd;
    uint16_t port;
    uint32_t index = 0, tried = 0;
    assert_int_equal(control_listen("127.0.0.1", 0, &listener, &port), LH_OK);
    for (int i = 0; i < DEAF; i++)
        deaf_begin(&deaf[i], addresses[i], port);
    control_dials_t how = {.addresses = addresses,
                           .count = DEAF + 1,
                           .port = port,
                           .limit_ns = 2 * second,
                           .silence_ns = second};
    uint64_t begin = sys()->now_ns();
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_OK);
    assert_in_range(sys()->now_ns() - begin, 2 * second, DEAF * second);
    assert_int_equal(index, DEAF);
    assert_int_equal(tried, DEAF + 1);
    assert_false(accepts(listener, fd));
    assert_true(accepts(listener, fd));
    (void)close(fd);

    how.count = DEAF;
    begin = sys()->now_ns();
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_UNREACHABLE);
    assert_in_range(sys()->now_ns() - begin, 2 * second, DEAF * second);
    assert_int_equal(tried, DEAF);
    assert_non_null(strstr(fail_reason(), "rank 0 at 127.0.0.2, port "));

    /* Nobody is waited for behind one that answers. */
    const char *const ahead[] = {"127.0.0.1", "127.0.0.2"};
    how.addresses = ahead;
    how.count = 2;
    how.limit_ns = 600 * second;
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_OK);
    assert_int_equal(index, 0);
    assert_true(accepts(listener, fd));
    (void)close(fd);
    for (int i = 0; i < DEAF; i++)
        deaf_end(&deaf[i]);
    (void)close(listener);
}

/* A place that is bound and does not listen refuses. */
static void *listen_later(void *argument)
{
    (void)usleep(700000);
    assert_int_equal(listen(*(const int *)argument, 8), 0);
    return NULL;
}

static void one_that_refuses_is_tried_again_while_others_are_waited_for(void **state)
{
    (void)state;
    static const char *const addresses[] = {"127.0.0.2", "127.0.0.3"};
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof(at);
    deaf_t deaf;
    pthread_t thread;
    int fd;
    uint32_t index = 0, tried = 0;
    const int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.3", &at.sin_addr), 1);
    assert_int_equal(bind(late, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(late, (struct sockaddr *)&at, &length), 0);
    deaf_begin(&deaf, "127.0.0.2", ntohs(at.sin_port));
    const control_dials_t how = {.addresses = addresses,
                                 .count = 2,
                                 .port = ntohs(at.sin_port),
                                 .limit_ns = 3 * second,
                                 .silence_ns = second};
    assert_int_equal(pthread_create(&thread, NULL, listen_later, (void *)(uintptr_t)&late), 0);
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_OK);
    assert_int_equal(index, 1);
    (void)pthread_join(thread, NULL);
    deaf_end(&deaf);
    (void)close(fd);
    (void)close(late);
}

static void of_those_that_answer_the_first_in_their_order_counts(void **state)
{
    (void)state;
    static const char *const addresses[] = {"no name", "127.0.0.2", "127.0.0.3", "127.0.0.1"};
    int one, other, fd;
    uint16_t port, same;
    uint32_t index = 0, tried = 0;
    control_dials_t how = {
        .addresses = addresses, .count = 4, .limit_ns = 600 * second, .silence_ns = second};
    assert_int_equal(control_listen("127.0.0.1", 0, &one, &port), LH_OK);
    assert_int_equal(control_listen("127.0.0.3", port, &other, &same), LH_OK);
    how.port = port;
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_OK);
    assert_int_equal(index, 2);
    assert_int_equal(tried, 3);
    (void)close(fd);
    (void)close(other);
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_OK);
    assert_int_equal(index, 3);
    (void)close(fd);
    (void)close(one);
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_UNREACHABLE);
    assert_non_null(strstr(fail_reason(), "cannot resolve the address 'no name' of rank 0"));
}

/* A name server that is gone costs its time once a call, and not once a machine. */
static void names_that_take_long_are_not_all_looked_up_at_once(void **state)
{
    (void)state;
    static const char *const addresses[] = {"slow.test", "slow.test", "slow.test", "slow.test"};
    int listener, fd;
    uint16_t port;
    uint32_t index = 0, tried = 0;
    control_dials_t how = {
        .addresses = addresses, .count = 4, .port = 1, .limit_ns = second, .silence_ns = second};
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_UNREACHABLE);
    assert_int_equal(tried, 1);
    assert_int_equal(control_listen("127.0.0.1", 0, &listener, &port), LH_OK);
    how.port = port;
    how.limit_ns = 600 * second;
    assert_int_equal(control_dial_first(&how, &tried, &index, &fd), LH_OK);
    assert_int_equal(tried, 1);
    assert_int_equal(index, 0);
    (void)close(fd);
    (void)close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_name_leaves_its_machine_the_time_to_answer),
        cmocka_unit_test(an_address_without_answer_leaves_time_for_the_next),
        cmocka_unit_test(the_first_that_answers_is_found_beside_machines_that_are_down),
        cmocka_unit_test(one_that_refuses_is_tried_again_while_others_are_waited_for),
        cmocka_unit_test(of_those_that_answer_the_first_in_their_order_counts),
        cmocka_unit_test(names_that_take_long_are_not_all_looked_up_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
