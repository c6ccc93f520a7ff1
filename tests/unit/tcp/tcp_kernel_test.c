/* tcp_kernel_test.c - what the tcp transport tells of the kernel and of interfaces: its tables of counters,
 * and lines of this machine's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tcp_kernel.h"

static void a_counter_is_found_by_its_group_and_name(void **state)
{
    static const char table[] = "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
                                "Tcp: RtoAlgorithm MaxConn RetransSegs InErrs\nTcp: 1 -1 77 0\n"
                                "Udp: InErrors RetransSegs\nUdp: 5 18446744073709551614\n";
    (void)state;
    assert_true(tcp_kernel_counter(table, "Tcp:", "RetransSegs") == 77);
    assert_true(tcp_kernel_counter(table, "Tcp:", "InErrs") == 0);
    assert_true(tcp_kernel_counter(table, "Udp:", "InErrors") == 5);
    assert_true(tcp_kernel_counter(table, "Udp:", "RetransSegs") == UINT64_MAX - 1);
    assert_true(tcp_kernel_counter(table, "Ip:", "DefaultTTL") == 64);
    /* What is no count, of another group, or not there at all. */
    assert_true(tcp_kernel_counter(table, "Tcp:", "MaxConn") == UINT64_MAX);
    assert_true(tcp_kernel_counter(table, "Tcp:", "InErrors") == UINT64_MAX);
    assert_true(tcp_kernel_counter(table, "Tcp:", "Retrans") == UINT64_MAX);
    assert_true(tcp_kernel_counter(table, "TcpExt:", "RetransSegs") == UINT64_MAX);
}

static void a_table_that_is_cut_has_what_is_whole(void **state)
{
    (void)state;
    assert_true(tcp_kernel_counter("", "Tcp:", "A") == UINT64_MAX);
    assert_true(tcp_kernel_counter("Tcp: A B", "Tcp:", "A") == UINT64_MAX);
    assert_true(tcp_kernel_counter("Tcp: A B\n", "Tcp:", "A") == UINT64_MAX);
    assert_true(tcp_kernel_counter("Tcp: A B\nUdp: 1 2\n", "Tcp:", "A") == UINT64_MAX);
    assert_true(tcp_kernel_counter("Tcp: A B\nTcp: 1", "Tcp:", "A") == 1);
    assert_true(tcp_kernel_counter("Tcp: A B\nTcp: 1", "Tcp:", "B") == UINT64_MAX);
    assert_true(tcp_kernel_counter("Tcp: A B\nTcp: 1 ", "Tcp:", "B") == UINT64_MAX);
}

static void add_line(void *context, const char *text)
{
    char *all = context;
    const size_t at = strlen(all);
    assert_true(text[0] != '\0' && strchr(text, '\n') == NULL);
    (void)snprintf(all + at, 16384 - at, "%s\n", text);
}

/* Counters are the kernel's, or name the interface whose line stands above them. */
static void counters_have_names(const char *all)
{
    static char lines[16384];
    char *rest = lines, expected[128] = "  counters: ";
    (void)snprintf(lines, sizeof(lines), "%s", all);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] != ' ' && strncmp(line, "TCP of this kernel:", 19) != 0)
            (void)snprintf(expected, sizeof(expected),
                           "  counters of %.*s: ", (int)strcspn(line, ":"), line);
        if (strncmp(line, "  counters", 10) == 0)
            assert_int_equal(strncmp(line, expected, strlen(expected)), 0);
    }
}

/* Whatever there is on this machine: /proc may be hidden, and no other interface be up. */
static void this_machine_is_told_of_line_by_line(void **state)
{
    static char all[16384], again[16384];
    (void)state;
    assert_int_equal(tcp_kernel_tell(NULL, add_line, all), LH_OK);
    assert_int_equal(strncmp(all, "TCP of this kernel:", 19), 0);
    assert_non_null(strstr(all, " buffers beyond the limits may "));
    FILE *f = fopen("/proc/net/snmp", "re");
    if (f != NULL) {
        (void)fclose(f);
        assert_non_null(strstr(all, "\n  counters: "));
    }
    counters_have_names(all);
    /* What is no counter is told alike each time. */
    assert_int_equal(tcp_kernel_tell(NULL, add_line, again), LH_OK);
    assert_int_equal(strcspn(all, "\n"), strcspn(again, "\n"));
    assert_memory_equal(all, again, strcspn(all, "\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counter_is_found_by_its_group_and_name),
        cmocka_unit_test(a_table_that_is_cut_has_what_is_whole),
        cmocka_unit_test(this_machine_is_told_of_line_by_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
