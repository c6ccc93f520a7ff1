/* tcp_kernel.c - see tcp_kernel.h. All of it is the kernel's, of all programs of this machine: what a
 * connection of this job has sent again is in its own figures (lh_link_stats_t). What counters say of a
 * measurement is by how much they rose. */
#include "tcp_kernel.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include <longhaul/line.h>

#include "tcp_tuning.h"

/* NETSTAT: bytes of the longest of the two tables of counters, twice what kernels have today. */
enum { KERNEL_WORD = 160, NETSTAT = 16 << 10 };

/* What tells of loss and of timers, then of memory, in the order of their weight. */
static const struct {
    const char *file, *group, *name;
} counters[] = {
    {"/proc/net/snmp", "Tcp:", "RetransSegs"},
    {"/proc/net/snmp", "Tcp:", "InErrs"},
    {"/proc/net/netstat", "TcpExt:", "TCPTimeouts"},
    {"/proc/net/netstat", "TcpExt:", "TCPLostRetransmit"},
    {"/proc/net/netstat", "TcpExt:", "TCPSlowStartRetrans"},
    {"/proc/net/netstat", "TcpExt:", "TCPSpuriousRTOs"},
    {"/proc/net/netstat", "TcpExt:", "TCPSACKReneging"},
    {"/proc/net/netstat", "TcpExt:", "TCPMemoryPressures"},
    {"/proc/net/netstat", "TcpExt:", "PruneCalled"},
    {"/proc/net/netstat", "TcpExt:", "RcvPruned"},
    {"/proc/net/netstat", "TcpExt:", "TCPRcvCollapsed"},
    {"/proc/net/netstat", "TcpExt:", "TCPRcvQDrop"},
    {"/proc/net/netstat", "TcpExt:", "TCPBacklogDrop"},
    {"/proc/net/netstat", "TcpExt:", "TCPZeroWindowDrop"},
    {"/proc/net/netstat", "TcpExt:", "TCPAbortOnMemory"},
};
/* Of an interface. */
static const char *const losses[] = {"rx_errors",      "rx_dropped", "rx_missed_errors",
                                     "rx_fifo_errors", "tx_errors",  "tx_dropped"};
/* Of /proc/sys/net: bytes, but for pages of tcp_mem. */
static const char *const limits[] = {"ipv4/tcp_rmem", "ipv4/tcp_wmem",
                                     "ipv4/tcp_mem",  "core/rmem_max",
                                     "core/wmem_max", "ipv4/tcp_slow_start_after_idle"};

/* At most room - 1 bytes, with a NUL behind them; false: there is no such file. */
static bool card_read(const char *path, char *out, size_t room)
{
    out[0] = '\0';
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    const size_t length = fread(out, 1, room - 1, f);
    (void)fclose(f);
    out[length] = '\0';
    return length > 0;
}

/* The first line of a small file, tabs as blanks. */
static bool card_word(const char *path, char out[KERNEL_WORD])
{
    if (!card_read(path, out, KERNEL_WORD)) return false;
    out[strcspn(out, "\n")] = '\0';
    for (char *at = out; *at != '\0'; at++)
        if (*at == '\t') *at = ' ';
    return out[0] != '\0';
}

/* ---- counters ---- */

/* The line that begins with `group`, at or behind `text`, which is the beginning of one. */
static const char *group_line(const char *text, const char *group)
{
    while (text != NULL && strncmp(text, group, strlen(group)) != 0) {
        text = strchr(text, '\n');
        if (text != NULL) text++;
    }
    return text;
}

/* Two lines of a group: names, and in the same order their values. */
uint64_t tcp_kernel_counter(const char *text, const char *group, const char *name)
{
    const char *names = group_line(text, group);
    const char *values = names == NULL ? NULL : strchr(names, '\n');
    if (values != NULL) values = group_line(values + 1, group);
    while (values != NULL) {
        const size_t n = strcspn(names, " \n"), v = strcspn(values, " \n");
        if (n == strlen(name) && memcmp(names, name, n) == 0)
            return values[0] >= '0' && values[0] <= '9' ? strtoull(values, NULL, 10) : UINT64_MAX;
        if (names[n] != ' ' || values[v] != ' ') break;
        names += n + 1;
        values += v + 1;
    }
    return UINT64_MAX;
}

/* "  counters: RetransSegs 12, 0 in the rest (14)", and of an interface "  counters of eth0: ...": the host
 * keeps such lines without those above them. Of no counter that is known there is no line. */
typedef struct counts {
    lh_line_t line;
    const char *card; /* NULL: the kernel's own */
    uint32_t known, raised;
} counts_t;

static void counts_add(counts_t *c, const char *name, uint64_t value)
{
    if (c->known++ == 0)
        lh_line_add(&c->line, "  counters%s%s:", c->card != NULL ? " of " : "",
                    c->card != NULL ? c->card : "");
    if (value == 0) return;
    lh_line_add(&c->line, "%s %s %llu", c->raised++ > 0 ? "," : "", name,
                (unsigned long long)value);
}

static void counts_tell(counts_t *c, tcp_kernel_line_t line, void *context)
{
    if (c->known > c->raised)
        lh_line_add(&c->line, "%s 0 in the rest (%u)", c->raised > 0 ? "," : "",
                    c->known - c->raised);
    if (c->known > 0) line(context, c->line.text);
}

static void kernel_counters(tcp_kernel_line_t line, void *context)
{
    static const char none[] = "";
    char text[NETSTAT];
    const char *read = none;
    counts_t c = {.known = 0};
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        if (strcmp(read, counters[i].file) != 0) (void)card_read(counters[i].file, text, NETSTAT);
        read = counters[i].file;
        const uint64_t value = tcp_kernel_counter(text, counters[i].group, counters[i].name);
        if (value != UINT64_MAX) counts_add(&c, counters[i].name, value);
    }
    counts_tell(&c, line, context);
}

/* ---- the kernel ---- */

static void kernel_limits(tcp_kernel_line_t line, void *context)
{
    char path[KERNEL_WORD], word[KERNEL_WORD];
    lh_line_t w = {.length = 0};
    bool any = false;
    lh_line_add(&w, "  limits:");
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        (void)snprintf(path, sizeof(path), "/proc/sys/net/%s", limits[i]);
        if (!card_word(path, word)) continue;
        lh_line_add(&w, "%s %s %s", any ? "," : "", strchr(limits[i], '/') + 1, word);
        any = true;
    }
    if (any) line(context, w.text);
}

static void tell_kernel(tcp_kernel_line_t line, void *context)
{
    char controls[KERNEL_WORD], usual[KERNEL_WORD];
    bool force, bbr;
    lh_line_t w = {.length = 0};
    tuning_capabilities(&force, &bbr);
    lh_line_add(&w, "TCP of this kernel:");
    if (card_word("/proc/sys/net/ipv4/tcp_available_congestion_control", controls))
        lh_line_add(&w, " congestion controls %s,", controls);
    if (card_word("/proc/sys/net/ipv4/tcp_congestion_control", usual))
        lh_line_add(&w, " %s where none is set,", usual);
    lh_line_add(&w, " bbr %s, buffers beyond the limits %s",
                bbr ? "may be used" : "may not be used",
                force ? "may be set (CAP_NET_ADMIN)" : "may not be set (CAP_NET_ADMIN is missing)");
    line(context, w.text);
    kernel_limits(line, context);
    kernel_counters(line, context);
}

/* ---- interfaces ---- */

/* Those that other machines may be reached by. */
static bool is_card(const struct ifaddrs *i)
{
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    if (i->ifa_addr->sa_family == AF_INET) return true;
    const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
    return i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr);
}

static const char *card_address(const struct sockaddr *a, char out[INET6_ADDRSTRLEN])
{
    const void *at = a->sa_family == AF_INET
                         ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
                         : (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return inet_ntop(a->sa_family, at, out, INET6_ADDRSTRLEN) != NULL ? out : "?";
}

/* With its first address. */
static void tell_interface(const struct ifaddrs *i, tcp_kernel_line_t line, void *context)
{
    char path[KERNEL_WORD], word[KERNEL_WORD], address[INET6_ADDRSTRLEN];
    lh_line_t w = {.length = 0};
    counts_t c = {.card = i->ifa_name};
    const uint64_t rate = card_rate(i->ifa_name);
    lh_line_add(&w, "%s: %s", i->ifa_name, card_address(i->ifa_addr, address));
    if (rate != 0) lh_line_add(&w, ", %.3g Gb/s", 8e-9 * (double)rate);
    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", i->ifa_name);
    if (card_word(path, word)) lh_line_add(&w, ", MTU %s", word);
    line(context, w.text);
    for (size_t l = 0; l < sizeof(losses) / sizeof(losses[0]); l++) {
        (void)snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/%s", i->ifa_name,
                       losses[l]);
        if (card_word(path, word)) counts_add(&c, losses[l], strtoull(word, NULL, 10));
    }
    counts_tell(&c, line, context);
}

lh_status_t tcp_kernel_tell(LH_UNUSED const lh_host_t *host, tcp_kernel_line_t line, void *context)
{
    struct ifaddrs *all;
    tell_kernel(line, context);
    if (getifaddrs(&all) != 0) return LH_OK;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        const struct ifaddrs *first = all;
        while (first != i && !(is_card(first) && strcmp(first->ifa_name, i->ifa_name) == 0))
            first = first->ifa_next;
        if (first == i && is_card(i)) tell_interface(i, line, context);
    }
    freeifaddrs(all);
    return LH_OK;
}
