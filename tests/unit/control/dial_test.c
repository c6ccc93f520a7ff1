/* dial_test.c - names whose look-up takes its time, and names with an address at which nobody answers. */
#include <unit/base/scratch_files.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
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
    const bool two = strcmp(name, "two.test") == 0;
    if (strcmp(name, "slow.test") == 0) (void)usleep(1200000);
    if (two) assert_int_equal(real("127.0.0.1", service, how, &behind), 0);
    const int error = real(two ? "127.0.0.2" : "127.0.0.1", service, how, out);
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

/* A queue that is full drops whoever knocks, as a filter does. */
static void an_address_without_answer_leaves_time_for_the_next(void **state)
{
    (void)state;
    enum { KNOCKS = 4 };
    struct sockaddr_in at = {.sin_family = AF_INET};
    int listener, fd, knocks[KNOCKS];
    uint16_t port;
    assert_int_equal(control_listen("127.0.0.1", 0, &listener, &port), LH_OK);
    at.sin_port = htons(port);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.2", &at.sin_addr), 1);
    const int full = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(full, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(full, 0), 0);
    for (int i = 0; i < KNOCKS; i++) {
        knocks[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(knocks[i], (const struct sockaddr *)&at, sizeof(at));
    }
    if (control_dial("two.test", port, sys()->now_ns() + second, second, &fd) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    for (int i = 0; i < KNOCKS; i++)
        (void)close(knocks[i]);
    (void)close(fd);
    (void)close(full);
    (void)close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_name_leaves_its_machine_the_time_to_answer),
        cmocka_unit_test(an_address_without_answer_leaves_time_for_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
