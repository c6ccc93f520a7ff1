/* wan_lab.c - sites that are joined by long links, on one machine without netem. Each site is a
 * network namespace, each link a pair of TUN devices, and this process is the fibre between them:
 * it reads packets at one end and writes them at the other after the time that they would have
 * taken.
 *
 *   wan_lab SITES LINK...    LINK = A,B,DELAY_NS,BITS_PER_SECOND,LOSS,QUEUE_BYTES,LATE,MTU,OFFLOAD,SEED
 *
 * A direction of a link sends one packet after the other at its rate; what waits for that is the
 * queue of the router before it, and a packet that finds QUEUE_BYTES in it is dropped (drop-tail).
 * Then a packet is lost with the probability LOSS, from a generator of its own, so that the n-th
 * packet of a run fares as that of the next run. Then it takes DELAY_NS, and with the probability LATE a
 * millisecond more, in which others overtake it. OFFLOAD lets the kernel
 * hand over super-packets of up to 64 KiB: that carries several Gb/s on one core, but such a packet
 * is queued and lost as a whole.
 *
 * Site S has the address 10.90.0.S+1 on each of its devices wan0, wan1, ... in the order of its
 * links. Sites without a link of their own reach each other through others, by the fewest links;
 * the sites between forward. The namespaces have no names: others enter them through this process's
 * descriptors
 * (/proc/PID/fd/N), which it prints when all is ready, so nothing stays behind when it is killed.
 *
 * It obeys lines on its input, each answered with a line: "cut K" and "heal K" (what is under way
 * in link K is lost with a cut), "single K" (cuts one TCP connection of the link: the first that sends
 * data from then on), "set K DELAY_NS BITS_PER_SECOND LOSS QUEUE_BYTES LATE", "counts". It
 * ends with its input. Exit code 77 and a sentence: this machine can't do it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <net/route.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    SITES_MAX = 8,
    LINKS_MAX = 16,
    PACKET_MAX = 1 << 17, /* a super-packet and its head fit    */
    BATCH = 64,           /* packets of a turn of one direction */
    WIRE_HEAD = 38,       /* bytes of Ethernet around a packet: head, checksum, preamble, gap */
    LATE_NS = 1000000,
    SINGLE_BYTES = 1000, /* of a packet, from which on a single connection is chosen */
    QUEUE_PACKETS = 50000,
    CANNOT = 77,
};

typedef struct packet {
    struct packet *next;
    uint64_t due_ns;
    size_t bytes; /* of data: the head of virtio, then the IP packet */
    char data[];
} packet_t;

typedef struct figures {
    double delay_ns, bits_per_second, loss, queue_bytes, late;
} figures_t;

typedef struct fifo { /* packets under way, in the order in which they arrive */
    packet_t *first, **last;
} fifo_t;

typedef struct line { /* a direction of a link */
    int from, to;
    fifo_t ways[2];   /* the second of those that are late */
    uint64_t free_ns; /* when the packets taken so far have been sent */
    uint64_t random;
    uint64_t packets, bytes, lost, full, cut, late;
} line_t;

typedef struct wan_link { /* lines: from site[0] to site[1] and back */
    uint32_t site[2];
    uint32_t mtu;
    bool offload, is_cut;
    bool cuts_single;
    uint32_t ports; /* of the connection that is cut, both at once; 0: not chosen yet */
    figures_t figures;
    line_t lines[2];
} wan_link_t;

static wan_link_t links[LINKS_MAX];
static uint32_t link_count, site_count;
static int site_fds[SITES_MAX], home_fd;
static uint32_t device_count[SITES_MAX];
static char device_of[SITES_MAX][LINKS_MAX][IFNAMSIZ]; /* by site and link */

static void give_up(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void give_up(const char *fmt, ...)
{
    const int error = errno;
    va_list args;
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, ": %s\n", strerror(error));
    exit(error == EPERM || error == EACCES || error == ENOENT || error == ENODEV ? CANNOT : 1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void enter(int fd)
{
    if (setns(fd, CLONE_NEWNET) != 0) give_up("a network namespace can't be entered");
}

static void write_file(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) give_up("%s can't be written", path);
    (void)close(fd);
}

static void device_up(int fd, const char *name)
{
    struct ifreq r = {.ifr_flags = IFF_UP | IFF_RUNNING};
    (void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    if (ioctl(fd, SIOCSIFFLAGS, &r) != 0) give_up("%s can't be brought up", name);
}

static struct sockaddr address_of(uint32_t site)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(0x0a5a0001u + site)}; /* 10.90.0.1 + site */
    struct sockaddr out;
    memcpy(&out, &a, sizeof(out));
    return out;
}

/* Without IPv6: its own packets would be in the counts, and take draws of what is lost. */
static void site_new(uint32_t site)
{
    static const char no_ipv6[] = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    if (unshare(CLONE_NEWNET) != 0) give_up("no network namespace can be made");
    if (access(no_ipv6, F_OK) == 0) write_file(no_ipv6, "1");
    site_fds[site] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (site_fds[site] < 0 || fd < 0) give_up("site %u can't be made", site);
    device_up(fd, "lo");
    write_file("/proc/sys/net/ipv4/ip_forward", "1");
    (void)close(fd);
    enter(home_fd);
}

static int tun_open(const wan_link_t *k, const char *name)
{
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) give_up("/dev/net/tun can't be opened");
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    (void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    if (ioctl(fd, TUNSETIFF, &r) != 0) give_up("the device %s can't be made", name);
    if (k->offload && ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0)
        give_up("%s can't take super-packets", name);
    return fd;
}

/* One end of a link: its device with the site's address, which all of the site's devices have. */
static int device_new(wan_link_t *k, uint32_t number, uint32_t site)
{
    char *name = device_of[site][number];
    (void)snprintf(name, IFNAMSIZ, "wan%u", device_count[site]++);
    enter(site_fds[site]);
    const int tun = tun_open(k, name);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = {0};
    (void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    r.ifr_addr = address_of(site);
    if (ioctl(fd, SIOCSIFADDR, &r) != 0) give_up("%s can't have its address", name);
    r.ifr_mtu = (int)k->mtu;
    if (ioctl(fd, SIOCSIFMTU, &r) != 0) give_up("%s can't have an MTU of %u", name, k->mtu);
    r.ifr_qlen = QUEUE_PACKETS; /* the queue that counts is ours: the kernel's must not be full */
    if (ioctl(fd, SIOCSIFTXQLEN, &r) != 0) give_up("%s can't have its queue", name);
    device_up(fd, name);
    (void)close(fd);
    enter(home_fd);
    return tun;
}

/* Links to every site, from `to` outwards; the way of a site is its first link on the shortest
 * path. */
static void find_ways(uint32_t to, uint32_t way[SITES_MAX])
{
    uint32_t queue[SITES_MAX] = {to}, count = 1;
    bool seen[SITES_MAX] = {false};
    seen[to] = true;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < link_count; k++)
            for (int end = 0; end < 2; end++) {
                const uint32_t other = links[k].site[!end];
                if (links[k].site[end] != queue[i] || seen[other]) continue;
                seen[other] = true;
                way[other] = k;
                queue[count++] = other;
            }
    if (count < site_count) {
        (void)fprintf(stderr, "no path joins all %u sites\n", site_count);
        exit(2);
    }
}

static void routes_new(uint32_t to)
{
    uint32_t way[SITES_MAX] = {0};
    find_ways(to, way);
    for (uint32_t site = 0; site < site_count; site++) {
        if (site == to) continue;
        enter(site_fds[site]);
        const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        struct rtentry route = {.rt_dst = address_of(to),
                                .rt_flags = RTF_UP | RTF_HOST,
                                .rt_dev = device_of[site][way[site]]};
        if (ioctl(fd, SIOCADDRT, &route) != 0) give_up("site %u can't have its routes", site);
        (void)close(fd);
        enter(home_fd);
    }
}

/* xorshift64*: 53 bits of it as a number below 1. */
static double draw(line_t *l)
{
    l->random ^= l->random >> 12;
    l->random ^= l->random << 25;
    l->random ^= l->random >> 27;
    return (double)((l->random * 0x2545f4914f6cdd1dull) >> 11) / 9007199254740992.0;
}

static void queue_up(fifo_t *l, const char *data, size_t bytes, uint64_t due_ns)
{
    packet_t *p = malloc(sizeof(*p) + bytes);
    if (p == NULL) give_up("no memory for a packet");
    *p = (packet_t){.due_ns = due_ns, .bytes = bytes};
    memcpy(p->data, data, bytes);
    *l->last = p;
    l->last = &p->next;
}

/* Both ports of an IPv4 TCP packet, the same number for either direction; 0: it is none. */
static uint32_t ports_of(const char *ip, size_t bytes)
{
    enum { TCP = 6, LEAST = 40 };
    uint16_t ports[2];
    const size_t head = bytes < LEAST ? 0 : 4 * ((size_t)ip[0] & 15);
    if (head < 20 || head + 20 > bytes || ip[9] != TCP) return 0;
    memcpy(ports, ip + head, sizeof(ports));
    return ports[0] < ports[1] ? (uint32_t)ports[0] << 16 | ports[1]
                               : (uint32_t)ports[1] << 16 | ports[0];
}

static bool is_cut(wan_link_t *k, const char *ip, size_t bytes)
{
    if (k->is_cut) return true;
    if (!k->cuts_single) return false;
    const uint32_t ports = ports_of(ip, bytes);
    if (k->ports == 0 && bytes >= SINGLE_BYTES) k->ports = ports;
    return ports != 0 && ports == k->ports;
}

static void take_packet(wan_link_t *k, line_t *l, const char *data, size_t bytes)
{
    struct virtio_net_hdr head;
    const figures_t *f = &k->figures;
    memcpy(&head, data, sizeof(head));
    const size_t ip = bytes - sizeof(head);
    const size_t part = head.gso_size != 0 ? head.gso_size : ip;
    const size_t segments = (ip + part - 1) / part;
    const uint64_t now = now_ns();
    if (is_cut(k, data + sizeof(head), ip)) {
        l->cut++;
        return;
    }
    const uint64_t begin = l->free_ns > now ? l->free_ns : now;
    if ((double)(begin - now) * f->bits_per_second / 8e9 + (double)ip > f->queue_bytes) {
        l->full++;
        return;
    }
    const double wire = (double)(ip + segments * WIRE_HEAD);
    l->free_ns = begin + (uint64_t)(wire * 8e9 / f->bits_per_second);
    double kept = 1;
    for (size_t i = 0; f->loss > 0 && i < segments; i++)
        kept *= 1 - f->loss;
    if (kept < 1 && draw(l) >= kept) {
        l->lost++;
        return;
    }
    l->packets += segments;
    l->bytes += ip;
    const bool late = f->late > 0 && draw(l) < f->late;
    l->late += late;
    queue_up(&l->ways[late], data, bytes,
             l->free_ns + (uint64_t)f->delay_ns + (late ? LATE_NS : 0));
}

static bool take(wan_link_t *k, line_t *l)
{
    static char data[PACKET_MAX];
    int count = 0;
    for (; count < BATCH; count++) {
        const ssize_t n = read(l->from, data, sizeof(data));
        if (n <= (ssize_t)sizeof(struct virtio_net_hdr)) break;
        take_packet(k, l, data, (size_t)n);
    }
    return count > 0;
}

static void drop_first(fifo_t *l)
{
    packet_t *p = l->first;
    l->first = p->next;
    if (l->first == NULL) l->last = &l->first;
    free(p);
}

/* Of both ways, what is due first. */
static bool deliver(line_t *l)
{
    const uint64_t now = now_ns();
    for (int count = 0; count < BATCH; count++) {
        const packet_t *on_time = l->ways[0].first, *late = l->ways[1].first;
        const bool is_late = on_time == NULL || (late != NULL && late->due_ns < on_time->due_ns);
        const packet_t *p = is_late ? late : on_time;
        if (p == NULL || p->due_ns > now) return count > 0;
        if (write(l->to, p->data, p->bytes) < 0 && errno == EAGAIN) return count > 0;
        drop_first(&l->ways[is_late]);
    }
    return true;
}

static void cut(wan_link_t *k)
{
    k->is_cut = true;
    for (int i = 0; i < 4; i++) {
        line_t *l = &k->lines[i / 2];
        fifo_t *way = &l->ways[i % 2];
        for (; way->first != NULL; l->cut++)
            drop_first(way);
    }
}

static void tell_counts(void)
{
    for (uint32_t i = 0; i < link_count; i++)
        for (int d = 0; d < 2; d++) {
            const line_t *l = &links[i].lines[d];
            (void)printf("%s%llu %llu %llu %llu %llu %llu", i + (uint32_t)d > 0 ? " " : "",
                         (unsigned long long)l->packets, (unsigned long long)l->bytes,
                         (unsigned long long)l->lost, (unsigned long long)l->full,
                         (unsigned long long)l->cut, (unsigned long long)l->late);
        }
    (void)printf("\n");
}

static void obey(const char *line)
{
    uint32_t number = LINKS_MAX;
    figures_t f;
    if (strncmp(line, "counts", 6) == 0) {
        tell_counts();
    } else if (sscanf(line, "cut %u", &number) == 1 && number < link_count) {
        cut(&links[number]);
        (void)printf("done\n");
    } else if (sscanf(line, "heal %u", &number) == 1 && number < link_count) {
        links[number].is_cut = links[number].cuts_single = false;
        (void)printf("done\n");
    } else if (sscanf(line, "single %u", &number) == 1 && number < link_count) {
        links[number].cuts_single = true;
        links[number].ports = 0;
        (void)printf("done\n");
    } else if (sscanf(line, "set %u %lf %lf %lf %lf %lf", &number, &f.delay_ns, &f.bits_per_second,
                      &f.loss, &f.queue_bytes, &f.late) == 6 &&
               number < link_count && f.bits_per_second > 0) {
        links[number].figures = f;
        (void)printf("done\n");
    } else {
        (void)printf("what is \"%s\"?\n", line);
    }
    (void)fflush(stdout);
}

/* False: the input has ended. */
static bool hear(void)
{
    static char text[256];
    static size_t length;
    for (;;) {
        const ssize_t n = read(STDIN_FILENO, text + length, sizeof(text) - 1 - length);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        if (n == 0) return false;
        length += (size_t)n;
        text[length] = '\0';
        for (char *end; (end = strchr(text, '\n')) != NULL;) {
            *end = '\0';
            obey(text);
            length -= (size_t)(end + 1 - text);
            memmove(text, end + 1, length + 1);
        }
        if (length == sizeof(text) - 1) length = 0;
    }
}

static void rest(void)
{
    struct pollfd fds[2 * LINKS_MAX + 1];
    nfds_t count = 0;
    uint64_t due = UINT64_MAX;
    for (uint32_t i = 0; i < link_count; i++)
        for (int d = 0; d < 2; d++) {
            const line_t *l = &links[i].lines[d];
            fds[count++] = (struct pollfd){.fd = l->from, .events = POLLIN};
            for (int way = 0; way < 2; way++)
                if (l->ways[way].first != NULL && l->ways[way].first->due_ns < due)
                    due = l->ways[way].first->due_ns;
        }
    fds[count++] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    const uint64_t now = now_ns(), left = due > now ? due - now : 0;
    const struct timespec time = {.tv_sec = (time_t)(left / 1000000000u),
                                  .tv_nsec = (long)(left % 1000000000u)};
    (void)ppoll(fds, count, due == UINT64_MAX ? NULL : &time, NULL);
}

static void carry(void)
{
    enum { LISTEN_NS = 1000000 };
    uint64_t heard = 0;
    for (;;) {
        bool moved = false;
        for (uint32_t i = 0; i < link_count; i++)
            for (int d = 0; d < 2; d++) {
                moved |= take(&links[i], &links[i].lines[d]);
                moved |= deliver(&links[i].lines[d]);
            }
        if (!moved) rest();
        const uint64_t now = now_ns();
        if (moved && now - heard < LISTEN_NS) continue;
        if (!hear()) return;
        heard = now;
    }
}

static bool read_link(const char *text, wan_link_t *k)
{
    unsigned offload;
    unsigned long long seed;
    figures_t *f = &k->figures;
    if (sscanf(text, "%u,%u,%lf,%lf,%lf,%lf,%lf,%u,%u,%llu", &k->site[0], &k->site[1], &f->delay_ns,
               &f->bits_per_second, &f->loss, &f->queue_bytes, &f->late, &k->mtu, &offload,
               &seed) != 10)
        return false;
    k->offload = offload != 0;
    for (uint32_t d = 0; d < 2; d++) {
        for (int way = 0; way < 2; way++)
            k->lines[d].ways[way].last = &k->lines[d].ways[way].first;
        k->lines[d].random = (seed * 2 + d + 1) * 0x9e3779b97f4a7c15ull;
    }
    return k->site[0] < site_count && k->site[1] < site_count && k->site[0] != k->site[1] &&
           f->bits_per_second > 0 && f->delay_ns >= 0;
}

static void build(void)
{
    home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home_fd < 0) give_up("/proc/self/ns/net can't be opened");
    for (uint32_t s = 0; s < site_count; s++)
        site_new(s);
    for (uint32_t i = 0; i < link_count; i++) {
        int ends[2];
        for (uint32_t end = 0; end < 2; end++)
            ends[end] = device_new(&links[i], i, links[i].site[end]);
        for (uint32_t d = 0; d < 2; d++) {
            links[i].lines[d].from = ends[d];
            links[i].lines[d].to = ends[!d];
        }
    }
    for (uint32_t s = 0; s < site_count; s++)
        routes_new(s);
}

int main(int argc, char **argv)
{
    site_count = argc > 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    link_count = argc > 2 ? (uint32_t)argc - 2 : 0;
    bool well = site_count >= 2 && site_count <= SITES_MAX && link_count <= LINKS_MAX;
    for (uint32_t i = 0; well && i < link_count; i++)
        well = read_link(argv[i + 2], &links[i]);
    if (!well) {
        (void)fprintf(stderr, "wan_lab SITES LINK..., see the top of wan_lab.c\n");
        return 2;
    }
    (void)prctl(PR_SET_TIMERSLACK, 1ul);
    (void)prctl(PR_SET_PDEATHSIG, 9ul); /* SIGKILL: nothing has to be tidied */
    (void)setpriority(PRIO_PROCESS, 0, -15);
    build();
    (void)fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    (void)printf("ready");
    for (uint32_t s = 0; s < site_count; s++)
        (void)printf(" %d", site_fds[s]);
    (void)printf("\n");
    (void)fflush(stdout);
    carry();
    return 0;
}
