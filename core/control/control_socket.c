/* control_socket.c - resolve, bind, dial; and who has a port that is taken. */
#include <control/control_socket.h>

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <base/sys.h>
#include <base/text.h>

enum { BACKLOG = 1024, PATH_BYTES = 320, SILENCE_MS = 3000, PAUSE_MS = 1000 };
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* headers older than the kernel */
#endif

static lh_status_t resolve(const char *address, uint16_t port, bool listens, struct addrinfo **out)
{
    char service[8];
    const struct addrinfo how = {.ai_family = AF_UNSPEC,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    (void)snprintf(service, sizeof(service), "%u", port);
    const int error = getaddrinfo(address, service, &how, out);
    if (error != 0)
        return fail(listens ? LH_INVALID : LH_UNREACHABLE,
                    "cannot resolve the address '%s' of rank 0: %s", address,
                    error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    return LH_OK;
}

/* The inode of the socket that listens on the port, as /proc/net/tcp tells; 0: not seen. */
static unsigned long listening_inode(const char *table, uint16_t port)
{
    char line[512];
    unsigned long inode = 0;
    FILE *f = fopen(table, "re");
    if (f == NULL) return 0;
    while (inode == 0 && fgets(line, sizeof(line), f) != NULL) {
        unsigned local, state;
        unsigned long found;
        if (sscanf(line, " %*u: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*u %*u %lu", &local,
                   &state, &found) == 3 &&
            local == port && state == 0x0a)
            inode = found;
    }
    (void)fclose(f);
    return inode;
}

static bool has_socket(const char *pid, const char *wanted)
{
    char path[PATH_BYTES], target[64];
    bool found = false;
    (void)snprintf(path, sizeof(path), "/proc/%.16s/fd", pid);
    DIR *folder = opendir(path);
    if (folder == NULL) return false;
    for (const struct dirent *e; !found && (e = readdir(folder)) != NULL;) {
        (void)snprintf(path, sizeof(path), "/proc/%.16s/fd/%.16s", pid, e->d_name);
        const ssize_t length = readlink(path, target, sizeof(target) - 1);
        if (length <= 0) continue;
        target[length] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    (void)closedir(folder);
    return found;
}

/* " by process 123 (name)", or nothing. */
static void append_owner(uint16_t port, text_t *out)
{
    char wanted[64], path[PATH_BYTES], name[64];
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    if (inode == 0) inode = listening_inode("/proc/net/tcp6", port);
    DIR *processes = inode == 0 ? NULL : opendir("/proc");
    if (processes == NULL) return;
    (void)snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    for (const struct dirent *e; (e = readdir(processes)) != NULL;) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || !has_socket(e->d_name, wanted)) continue;
        (void)snprintf(path, sizeof(path), "/proc/%.16s/comm", e->d_name);
        FILE *f = fopen(path, "re");
        const bool named = f != NULL && fgets(name, sizeof(name), f) != NULL;
        if (f != NULL) (void)fclose(f);
        text_printf(out, " by process %s (%s)", e->d_name, named ? text_trim(name) : "?");
        break;
    }
    (void)closedir(processes);
}

static lh_status_t refuse_bind(const char *address, uint16_t port)
{
    const int error = errno;
    if (error != EADDRINUSE)
        return fail_io(errno, "rank 0 cannot listen on %s, port %u", address, port);
    text_t owner = {0};
    append_owner(port, &owner);
    const lh_status_t status = fail(LH_INVALID,
                                    "port %u on %s is used%s; rank 0 is to listen there", port,
                                    address, owner.length > 0 ? owner.data : "");
    text_free(&owner);
    return status;
}

lh_status_t control_listen(const char *address, uint16_t port, int *fd, uint16_t *bound)
{
    struct addrinfo *found;
    const int yes = 1;
    lh_status_t status = resolve(address, port, true, &found);
    if (status != LH_OK) return status;
    const int s = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) {
        status = fail_io(errno, "cannot make a socket");
    } else {
        (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
        if (bind(s, found->ai_addr, found->ai_addrlen) != 0 || listen(s, BACKLOG) != 0)
            status = refuse_bind(address, port);
    }
    if (status == LH_OK) status = control_port(s, bound);
    if (status == LH_OK)
        *fd = s;
    else if (s >= 0)
        (void)close(s);
    freeaddrinfo(found);
    return status;
}

lh_status_t control_port(int fd, uint16_t *port)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof(name);
    if (getsockname(fd, (struct sockaddr *)&name, &length) != 0)
        return fail_io(errno, "no port of the socket on which rank 0 listens");
    *port = ntohs(name.ss_family == AF_INET6
                      ? ((const struct sockaddr_in6 *)(const void *)&name)->sin6_port
                      : ((const struct sockaddr_in *)(const void *)&name)->sin_port);
    return LH_OK;
}

/* Small frames go out at once. A cut link is tried again each second: the kernel would double the
 * pauses, and be silent for as long again as the cut was (Linux 6.15 on; before, it is). */
static void set_options(int fd, uint64_t silence_ns)
{
    const int yes = 1, pause = PAUSE_MS, told = (int)(silence_ns / 1000000);
    const int silence = told > SILENCE_MS ? told : SILENCE_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &pause, sizeof(pause));
}

lh_status_t control_accept(int listener, uint64_t silence_ns, int *fd)
{
    const int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s < 0) return LH_AGAIN; /* also those that are gone again */
    set_options(s, silence_ns);
    *fd = s;
    return LH_OK;
}

/* An IPv4 connection to a socket that listens for both kinds has an address of IPv6's. */
static void unmap(struct sockaddr_storage *name, socklen_t *length)
{
    const struct sockaddr_in6 six = *(const struct sockaddr_in6 *)(const void *)name;
    struct sockaddr_in four = {.sin_family = AF_INET};
    if (name->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return;
    memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
    *length = sizeof(four);
    memcpy(name, &four, sizeof(four));
}

static bool is_loopback(const struct sockaddr_storage *name)
{
    if (name->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)name)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)(const void *)name)->sin_addr.s_addr) >> 24 == 127;
}

bool control_local(int fd, char text[CONTROL_ADDRESS])
{
    struct sockaddr_storage name;
    socklen_t length = sizeof(name);
    text[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&name, &length) != 0) return false;
    unmap(&name, &length);
    if (getnameinfo((const struct sockaddr *)&name, length, text, CONTROL_ADDRESS, NULL, 0,
                    NI_NUMERICHOST) != 0)
        text[0] = '\0';
    return is_loopback(&name);
}

/* 0 or an errno. */
static int connect_until(int s, const struct addrinfo *to, uint64_t deadline_ns)
{
    int error = 0;
    socklen_t length = sizeof(error);
    if (connect(s, to->ai_addr, to->ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    for (;;) {
        const uint64_t now = sys()->now_ns();
        if (now >= deadline_ns) return ETIMEDOUT;
        struct pollfd p = {.fd = s, .events = POLLOUT};
        const int ready = poll(&p, 1, (int)((deadline_ns - now) / 1000000) + 1);
        if (ready < 0 && errno != EINTR) return errno;
        if (ready > 0) break;
    }
    if (getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    return error;
}

lh_status_t control_dial(const char *address, uint16_t port, uint64_t deadline_ns,
                         uint64_t silence_ns, int *fd)
{
    struct addrinfo *found;
    int error = EHOSTUNREACH;
    lh_status_t status = resolve(address, port, false, &found);
    if (status != LH_OK) return status;
    for (const struct addrinfo *a = found; a != NULL && error != 0; a = a->ai_next) {
        const int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        error = s < 0 ? errno : connect_until(s, a, deadline_ns);
        if (error == 0) {
            set_options(s, silence_ns);
            *fd = s;
        } else if (s >= 0) {
            (void)close(s);
        }
    }
    freeaddrinfo(found);
    if (error == 0) return LH_OK;
    return fail(LH_UNREACHABLE, "rank 0 at %s, port %u: %s", address, port, strerror(error));
}
