/* control_conn.c - sockets, TLS over them, frames over that.
 *
 * TLS 1.3 with an external pre-shared key that both ends derive from the job's secret: no
 * certificates, no authority, and whoever can't prove the key is cut off after the first message.
 * Each rank's key is another one: proving it says which rank this is. The handshake also makes a
 * new X25519 key for each connection: who learns the secret later can't read what was recorded
 * before. One cipher and one group are offered, as both ends are this program and there is nothing
 * to negotiate.
 *
 * Queued frames are one buffer of bytes a direction. in_at and out_at say how far it is done with;
 * bytes are moved to the front before the next read and not at each frame. */
#include <control/control_conn.h>

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>

enum { BACKLOG = 1024, PATH_BYTES = 320, SILENCE_MS = 3000, PAUSE_MS = 1000 };
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* headers older than the kernel */
#endif

/* A name or a number; rank 0 needs it to bind, the others to dial. Only for those who dial may a
 * name that is not known be known later; for both, where nobody could be asked. */
static lh_status_t address_resolve(const char *address, uint16_t port, bool listens,
                                   struct addrinfo **out)
{
    char service[8];
    const struct addrinfo how = {.ai_family = AF_UNSPEC,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    (void)snprintf(service, sizeof(service), "%u", port);
    const int error = getaddrinfo(address, service, &how, out);
    if (error != 0)
        return fail(listens && error != EAI_AGAIN ? LH_INVALID : LH_UNREACHABLE,
                    "cannot resolve the address '%s' of rank 0: %s", address,
                    error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    return LH_OK;
}

/* A port is found by the inode of its socket, which /proc/PID/fd shows for each process. 0: not
 * seen. State 0A is LISTEN. */
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

/* Whether that process has the socket open. Others' processes can't be looked into: then it has
 * not. */
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

/* A port that is taken is mostly an older run of the same job: the sentence names the process. */
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

bool control_is_absent(const char *address)
{
    struct addrinfo *found;
    if (address_resolve(address, 0, true, &found) != LH_OK) return true;
    const int s = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool absent = s >= 0 && bind(s, found->ai_addr, found->ai_addrlen) != 0 &&
                        errno == EADDRNOTAVAIL;
    if (s >= 0) (void)close(s);
    freeaddrinfo(found);
    return absent;
}

/* SO_REUSEADDR: a port may be listened on again right after a run that ended; one that another
 * process still listens on is refused all the same. */
lh_status_t control_listen(const char *address, uint16_t port, int *fd, uint16_t *bound)
{
    struct addrinfo *found;
    const int yes = 1;
    lh_status_t status = address_resolve(address, port, true, &found);
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

/* Both flags come with the socket: between two calls another thread could start a program, which
 * would inherit it. An error of one connection is no error of the listener. */
lh_status_t control_accept(int listener, uint64_t silence_ns, int *fd)
{
    const int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s < 0) return LH_AGAIN; /* also those that are gone again */
    set_options(s, silence_ns);
    *fd = s;
    return LH_OK;
}

/* An IPv4 connection to a socket that listens for both kinds has an address of IPv6's. */
static void address_unmap(struct sockaddr_storage *name, socklen_t *length)
{
    const struct sockaddr_in6 six = *(const struct sockaddr_in6 *)(const void *)name;
    struct sockaddr_in four = {.sin_family = AF_INET};
    if (name->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return;
    memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
    *length = sizeof(four);
    memcpy(name, &four, sizeof(four));
}

/* 127.0.0.0/8 or ::1. */
static bool is_loopback(const struct sockaddr_storage *name)
{
    if (name->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)name)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)(const void *)name)->sin_addr.s_addr) >> 24 == 127;
}

/* An IPv4 address stands as such, however the listener was bound, so that others can dial it. */
bool control_local(int fd, char text[CONTROL_ADDRESS])
{
    struct sockaddr_storage name;
    socklen_t length = sizeof(name);
    text[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&name, &length) != 0) return false;
    address_unmap(&name, &length);
    if (getnameinfo((const struct sockaddr *)&name, length, text, CONTROL_ADDRESS, NULL, 0,
                    NI_NUMERICHOST) != 0)
        text[0] = '\0';
    return is_loopback(&name);
}

/* A connect that blocks would wait for minutes for a machine that is down. 0 or an errno. */
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

/* When the try at this address is over: those that are left have equal shares, as one at which
 * nobody answers, behind a filter, would take the time of all others. */
static uint64_t address_deadline(const struct addrinfo *at, uint64_t deadline_ns)
{
    uint64_t left = 0;
    const uint64_t now = sys()->now_ns();
    for (; at != NULL; at = at->ai_next)
        left++;
    return now >= deadline_ns ? deadline_ns : now + (deadline_ns - now) / left;
}

/* All addresses of a name in turn, as a machine may have one that is not routed here. One deadline
 * for all, from when they are known: a name server that is gone costs seconds at each look. */
lh_status_t control_dial(const char *address, uint16_t port, uint64_t deadline_ns,
                         uint64_t silence_ns, int *fd)
{
    struct addrinfo *found;
    int error = EHOSTUNREACH;
    const uint64_t begin = sys()->now_ns();
    lh_status_t status = address_resolve(address, port, false, &found);
    if (status != LH_OK) return status;
    deadline_ns += sys()->now_ns() - begin;
    for (const struct addrinfo *a = found; a != NULL && error != 0; a = a->ai_next) {
        const int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        error = s < 0 ? errno : connect_until(s, a, address_deadline(a, deadline_ns));
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

/* ---- many at once ---------------------------------------------------------------------------- */

/* AGAIN_MS: between two tries at one that refuses; FRESH_MS: as long a connection may stand before it says
 * something: who listens lets those go that say nothing for CONTROL_PROVE_MS. */
enum { AGAIN_MS = 250, FRESH_MS = 200 };

/* One address of one machine: error is 0 once it is connected, EINPROGRESS until something is known. */
typedef struct knock {
    uint32_t index;
    int fd, error;
    uint64_t since_ns; /* it was tried, or has failed */
    struct sockaddr_storage name;
    socklen_t length;
} knock_t;

/* Of all machines, in their order. */
typedef struct knocks {
    knock_t *rows;
    size_t capacity;
    uint32_t count;
    char *unknown; /* the sentence of the first machine's name, where that is not known */
} knocks_t;

static void knock_close(knock_t *k, int error)
{
    if (k->fd >= 0) (void)close(k->fd);
    k->fd = -1;
    k->error = error;
}

static void knock_begin(knock_t *k)
{
    k->fd = socket(k->name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool done = k->fd >= 0 &&
                      connect(k->fd, (const struct sockaddr *)&k->name, k->length) == 0;
    k->error = done ? 0 : errno;
    k->since_ns = sys()->now_ns();
    if (k->error != 0 && k->error != EINPROGRESS) knock_close(k, k->error);
}

/* All addresses of one machine. A name that is not known is a machine that does not answer. */
static lh_status_t knocks_begin(knocks_t *all, uint32_t index, const char *address, uint16_t port)
{
    struct addrinfo *found;
    if (address_resolve(address, port, false, &found) != LH_OK) {
        if (index == 0) all->unknown = mem_text(fail_reason());
        fail_clear();
        return LH_OK;
    }
    lh_status_t status = LH_OK;
    for (const struct addrinfo *a = found; a != NULL && status == LH_OK; a = a->ai_next) {
        knock_t *rows = mem_grow(all->rows, &all->capacity, all->count + 1u, sizeof(*rows));
        if (rows == NULL) {
            status = LH_NO_MEMORY;
            break;
        }
        all->rows = rows;
        knock_t *k = &rows[all->count++];
        *k = (knock_t){.index = index, .length = a->ai_addrlen};
        memcpy(&k->name, a->ai_addr, a->ai_addrlen);
        knock_begin(k);
    }
    freeaddrinfo(found);
    return status;
}

/* Waits for news of those that have not answered, until then at most; who refused is tried again when it is
 * time. */
static lh_status_t knocks_wait(knocks_t *all, uint64_t until_ns)
{
    const uint64_t now = sys()->now_ns();
    const uint64_t ms = now >= until_ns ? 0 : (until_ns - now) / 1000000 + 1;
    struct pollfd *fds = mem_array(all->count + 1u, sizeof(*fds)); /* none may be known */
    if (fds == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < all->count; i++)
        fds[i] = (struct pollfd){.fd = all->rows[i].error == EINPROGRESS ? all->rows[i].fd : -1,
                                 .events = POLLOUT};
    (void)poll(fds, all->count, ms < AGAIN_MS ? (int)ms : AGAIN_MS);
    for (uint32_t i = 0; i < all->count; i++) {
        int error = 0;
        socklen_t length = sizeof(error);
        knock_t *k = &all->rows[i];
        if (k->error == ECONNREFUSED &&
            sys()->now_ns() - k->since_ns > AGAIN_MS * UINT64_C(1000000))
            knock_begin(k);
        if (fds[i].fd < 0 || fds[i].revents == 0) continue;
        if (getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
        k->error = error;
        if (error == 0) continue; /* its age is from its first packet on */
        k->since_ns = sys()->now_ns();
        knock_close(k, error);
    }
    mem_free(fds);
    return LH_OK;
}

/* The first that is connected; NULL: none is. *before: whether one of a machine before it, or any where none
 * is, may still answer. */
static knock_t *knocks_first(const knocks_t *all, bool *before)
{
    knock_t *first = NULL;
    *before = false;
    for (uint32_t i = 0; i < all->count && first == NULL; i++)
        if (all->rows[i].error == 0) first = &all->rows[i];
    for (uint32_t i = 0; i < all->count; i++)
        *before = *before || (all->rows[i].error == EINPROGRESS &&
                              (first == NULL || all->rows[i].index < first->index));
    return first;
}

static lh_status_t knocks_fail(const control_dials_t *how, const knocks_t *all)
{
    int error = EHOSTUNREACH;
    if (all->unknown != NULL) return fail_again(LH_UNREACHABLE, all->unknown);
    for (uint32_t i = 0; i < all->count && all->rows[i].index == 0; i++)
        error = all->rows[i].error == EINPROGRESS ? ETIMEDOUT : all->rows[i].error;
    return fail(LH_UNREACHABLE, "rank 0 at %s, port %u: %s", how->addresses[0], how->port,
                strerror(error));
}

/* A connection that has stood while others were waited for is made anew. 0 or an errno. */
static int knock_refresh(knock_t *k, const control_dials_t *how)
{
    const uint64_t now = sys()->now_ns();
    const struct addrinfo to = {.ai_addr = (struct sockaddr *)&k->name, .ai_addrlen = k->length};
    if (now - k->since_ns < FRESH_MS * UINT64_C(1000000)) return 0;
    knock_close(k, 0);
    k->fd = socket(k->name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int error = k->fd < 0 ? errno : connect_until(k->fd, &to, now + how->limit_ns);
    if (error != 0) knock_close(k, error);
    return error;
}

/* A machine that is down does not answer at all, and a site that is down is many such machines: one after
 * the other would take the time of each. */
lh_status_t control_dial_first(const control_dials_t *how, uint32_t *tried, uint32_t *index,
                               int *fd)
{
    lh_assert(how->count > 0);
    const uint64_t begin = sys()->now_ns();
    knocks_t all = {0};
    bool before = true;
    knock_t *first = NULL;
    lh_status_t status = LH_OK;
    for (*tried = 0; *tried < how->count && status == LH_OK; ++*tried) {
        if ((first != NULL && !before) || (*tried > 0 && sys()->now_ns() - begin > how->limit_ns))
            break;
        status = knocks_begin(&all, *tried, how->addresses[*tried], how->port);
        if (status == LH_OK) status = knocks_wait(&all, 0);
        first = knocks_first(&all, &before);
    }
    const uint64_t end = sys()->now_ns() + how->limit_ns;
    while (status == LH_OK && before && sys()->now_ns() < end) {
        status = knocks_wait(&all, end);
        first = knocks_first(&all, &before);
    }
    while (status == LH_OK && first != NULL && knock_refresh(first, how) != 0)
        first = knocks_first(&all, &before);
    if (status == LH_OK && first != NULL) {
        set_options(first->fd, how->silence_ns);
        *index = first->index;
        *fd = first->fd;
        first->fd = -1;
    } else if (status == LH_OK) {
        status = knocks_fail(how, &all);
    }
    for (uint32_t i = 0; i < all.count; i++)
        knock_close(&all.rows[i], 0);
    mem_free(all.rows);
    mem_free(all.unknown);
    return status;
}

/* ---- TLS and frames --------------------------------------------------------------------------- */

/* OpenSSL with an external pre-shared key; the end that dials says which rank it is in the key's
 * identity, in clear text: it is a number that everybody may know. */
enum { KEY_BYTES = 32, IDENTITY_BYTES = 32, READ_BYTES = 16384 };

static const char identity_format[] = "longhaul/1/%u";
static const unsigned char cipher_id[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

/* One for all connections of a process. The secret is borrowed: keys are derived from it at each
 * handshake and wiped again. */
struct control_tls {
    SSL_CTX *context;
    const secret_t *secret;
};

/* proven: the handshake is over and used the key. ended: nothing can be read or sent any more.
 * finished: this end has said its last. */
struct control_conn {
    control_tls_t *tls;
    SSL *ssl;
    int fd;
    uint32_t rank;
    bool accepts, proven, ended, finished;
    char identity[IDENTITY_BYTES];
    /* Frames so far in each direction: see frame_cut. */
    uint32_t in_serial, out_serial;
    size_t limit;
    text_t in, out;
    size_t in_at, out_at; /* bytes of them that are done with */
    uint64_t sent, received;
};

/* A session is OpenSSL's form of a pre-shared key. NULL: no key could be made, and the handshake
 * fails. The key itself does not stay in this process's memory. */
static SSL_SESSION *session_for(SSL *ssl, uint32_t rank)
{
    const control_conn_t *c = SSL_get_app_data(ssl);
    unsigned char key[KEY_BYTES];
    if (secret_derive(c->tls->secret, "control plane", 0, 0, rank, key, sizeof(key)) != LH_OK)
        return NULL;
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_id);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session == NULL || cipher == NULL ||
        SSL_SESSION_set1_master_key(session, key, sizeof(key)) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 ||
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        session = NULL;
    }
    OPENSSL_cleanse(key, sizeof(key));
    return session;
}

/* OpenSSL asks the end that dials for its key. */
static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_bytes,
                       SSL_SESSION **out)
{
    control_conn_t *c = SSL_get_app_data(ssl);
    (void)md; /* both ends offer nothing but SHA-256 */
    *out = session_for(ssl, c->rank);
    if (*out == NULL) return 0;
    *id = (const unsigned char *)c->identity;
    *id_bytes = strlen(c->identity);
    return 1;
}

/* An identity that is none of ours finds no key; the handshake then ends, as there is no
 * certificate to fall back on. */
static int find_session(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out)
{
    control_conn_t *c = SSL_get_app_data(ssl);
    char text[IDENTITY_BYTES], again[IDENTITY_BYTES];
    unsigned rank;
    *out = NULL;
    if (id_bytes >= sizeof(text)) return 1;
    memcpy(text, id, id_bytes);
    text[id_bytes] = '\0';
    if (sscanf(text, identity_format, &rank) != 1) return 1;
    (void)snprintf(again, sizeof(again), identity_format, rank);
    if (strcmp(text, again) != 0) return 1;
    *out = session_for(ssl, rank);
    if (*out != NULL) c->rank = rank;
    return 1;
}

/* No tickets and no cache: each connection proves the key anew. SSL_OP_IGNORE_UNEXPECTED_EOF makes
 * a peer that dies look like one that ends; who has said no goodbye is lost either way. */
lh_status_t control_tls_new(const secret_t *secret, control_tls_t **out)
{
    control_tls_t *t = mem_new(sizeof(*t));
    if (t == NULL) return LH_NO_MEMORY;
    SSL_CTX *x = SSL_CTX_new(TLS_method());
    t->context = x;
    t->secret = secret;
    if (x == NULL || SSL_CTX_set_min_proto_version(x, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(x, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(x, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(x, "X25519") != 1 || SSL_CTX_set_num_tickets(x, 0) != 1) {
        control_tls_free(t);
        return fail(LH_UNSUPPORTED, "OpenSSL has no TLS 1.3 with AES-128-GCM and X25519");
    }
    (void)SSL_CTX_set_options(x, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_session_cache_mode(x, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(x, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_psk_use_session_callback(x, use_session);
    SSL_CTX_set_psk_find_session_callback(x, find_session);
    *out = t;
    return LH_OK;
}

void control_tls_free(control_tls_t *t)
{
    if (t == NULL) return;
    SSL_CTX_free(t->context);
    mem_free(t);
}

/* Whoever accepts does not know yet who comes: rank is CONN_NO_RANK until the identity's key is
 * proven. */
lh_status_t conn_new(control_tls_t *t, int fd, uint32_t rank, size_t limit, control_conn_t **out)
{
    control_conn_t *c = mem_new(sizeof(*c));
    if (c == NULL) {
        (void)close(fd);
        return LH_NO_MEMORY;
    }
    *c = (control_conn_t){
        .tls = t, .fd = fd, .rank = rank, .accepts = rank == CONN_NO_RANK, .limit = limit};
    (void)snprintf(c->identity, sizeof(c->identity), identity_format, rank);
    c->ssl = SSL_new(t->context);
    if (c->ssl == NULL || SSL_set_fd(c->ssl, fd) != 1) {
        conn_free(c);
        return fail(LH_NO_MEMORY, "out of memory: a TLS connection");
    }
    SSL_set_app_data(c->ssl, c);
    /* Nobody is trusted by a certificate: an end that answers with one is refused. */
    if (!c->accepts) SSL_set_verify(c->ssl, SSL_VERIFY_PEER, NULL);
    if (c->accepts)
        SSL_set_accept_state(c->ssl);
    else
        SSL_set_connect_state(c->ssl);
    *out = c;
    return LH_OK;
}

void conn_free(control_conn_t *c)
{
    if (c == NULL) return;
    SSL_free(c->ssl);
    (void)close(c->fd);
    text_free(&c->in);
    text_free(&c->out);
    mem_free(c);
}

/* A half close: what was queued before is still sent by the kernel, and what the peer sends can
 * still be read. */
void conn_finish(control_conn_t *c)
{
    if (c->finished) return;
    c->finished = true;
    if (c->proven) (void)SSL_shutdown(c->ssl);
    (void)shutdown(c->fd, SHUT_WR);
}

/* What an OpenSSL call that did not succeed means. LH_AGAIN: it waits for the socket. LH_PEER_LOST:
 * the connection ended or broke. LH_DENIED: TLS refuses the other end. */
static lh_status_t tls_judge(control_conn_t *c, int result)
{
    const int error = errno;
    switch (SSL_get_error(c->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return LH_AGAIN;
    case SSL_ERROR_ZERO_RETURN: return fail(LH_PEER_LOST, "its connection ended");
    case SSL_ERROR_SYSCALL:
        if (error == 0) return fail(LH_PEER_LOST, "its connection ended");
        return fail(LH_PEER_LOST, "its connection broke: %s", strerror(error));
    default: {
        const char *why = ERR_reason_error_string(ERR_peek_error());
        return fail(LH_DENIED, "TLS: %s", why != NULL ? why : "no reason");
    }
    }
}

/* One step of the handshake. That it is over proves nothing yet: see below. */
static lh_status_t tls_shake_hands(control_conn_t *c)
{
    ERR_clear_error();
    errno = 0;
    const int done = SSL_do_handshake(c->ssl);
    if (done != 1) return tls_judge(c, done);
    /* The key is what proves the other end: a session without it proves nothing. */
    if (!SSL_session_reused(c->ssl) || c->rank == CONN_NO_RANK)
        return fail(LH_DENIED, "TLS: the other end did not use the job's key");
    c->proven = true;
    return LH_OK;
}

/* Sends what is queued, as far as the socket takes it. The buffer is emptied once all is out. */
static lh_status_t send_out(control_conn_t *c)
{
    lh_assert(c->proven && c->out_at <= c->out.length);
    while (c->out_at < c->out.length) {
        size_t sent = 0;
        ERR_clear_error();
        errno = 0;
        const int done = SSL_write_ex(c->ssl, c->out.data + c->out_at, c->out.length - c->out_at,
                                      &sent);
        if (done != 1) return tls_judge(c, done);
        c->out_at += sent;
    }
    c->out.length = c->out_at = 0;
    return LH_OK;
}

/* Frames that were cut are moved out of the buffer, before more is read: frame_t points into it
 * until then. */
static void forget_cut(control_conn_t *c)
{
    if (c->in_at == 0) return;
    memmove(c->in.data, c->in.data + c->in_at, c->in.length - c->in_at);
    c->in.length -= c->in_at;
    c->in_at = 0;
}

/* Reads what is there, at most about one frame of the largest size ahead: who does not cut its
 * frames does not fill memory. */
static lh_status_t read_in(control_conn_t *c)
{
    lh_assert(c->proven && c->in_at <= c->in.length);
    char bytes[READ_BYTES];
    forget_cut(c);
    for (;;) {
        size_t got = 0;
        ERR_clear_error();
        errno = 0;
        const int done = SSL_read_ex(c->ssl, bytes, sizeof(bytes), &got);
        if (done != 1) return tls_judge(c, done);
        text_append_n(&c->in, bytes, got);
        if (c->in.failed) return LH_NO_MEMORY;
        if (c->in.length > c->limit + FRAME_HEAD + READ_BYTES) return LH_AGAIN; /* cut first */
    }
}

/* Handshake, sending, reading, in this order, each as far as it goes. A peer that has closed may
 * have said why before: so an end that is met while sending still lets the rest be read. A stranger
 * may send CONN_STRANGER_BYTES before its key is proven. */
lh_status_t conn_drive(control_conn_t *c)
{
    lh_status_t status = LH_OK;
    if (c->ended) return fail(LH_PEER_LOST, "its connection ended");
    if (!c->proven) {
        status = tls_shake_hands(c);
        if (status == LH_AGAIN && c->accepts &&
            BIO_number_read(SSL_get_rbio(c->ssl)) > CONN_STRANGER_BYTES)
            status = fail(LH_DENIED, "TLS: more than %d bytes before the key", CONN_STRANGER_BYTES);
    }
    if (status == LH_OK && !c->finished) status = send_out(c);
    if (status == LH_PEER_LOST && c->proven) status = LH_OK; /* what it said last is read first */
    if (c->proven && (status == LH_OK || status == LH_AGAIN)) status = read_in(c);
    if (status == LH_AGAIN) return LH_OK;
    c->ended = status != LH_OK;
    return status;
}

bool conn_is_proven(const control_conn_t *c)
{
    return c->proven;
}

/* A first message whose identity is a rank's and whose binder is not made with its key has ended
 * the connection. */
bool conn_has_greeted(const control_conn_t *c)
{
    return c->rank != CONN_NO_RANK && !c->ended;
}

uint32_t conn_rank(const control_conn_t *c)
{
    return c->proven ? c->rank : CONN_NO_RANK;
}

/* Only what has come whole. The frame points into the buffer. */
lh_status_t conn_next(control_conn_t *c, frame_t *out)
{
    size_t used = 0;
    if (c->in.length == c->in_at) return LH_AGAIN;
    const lh_status_t status = frame_cut((const unsigned char *)c->in.data + c->in_at,
                                         c->in.length - c->in_at, c->in_serial, c->limit, out,
                                         &used);
    if (status != LH_OK) return status;
    c->in_at += used;
    c->in_serial++;
    return LH_OK;
}

/* After conn_finish nothing is queued any more: who calls need not know. */
void conn_put(control_conn_t *c, uint32_t type, const text_t *payload)
{
    lh_assert(type > 0 && type < FRAME_TYPES);
    if (c->finished) return;
    frame_append(&c->out, type, c->out_serial++, payload);
}

size_t conn_unsent(const control_conn_t *c)
{
    return c->out.length - c->out_at;
}

int conn_fd(const control_conn_t *c)
{
    return c->fd;
}

bool conn_wants_write(const control_conn_t *c)
{
    return SSL_want_write(c->ssl) || (c->proven && conn_unsent(c) > 0);
}

bool conn_is_mute(const control_conn_t *c)
{
    return BIO_number_read(SSL_get_rbio(c->ssl)) == 0;
}

void conn_traffic(control_conn_t *c, uint64_t *sent, uint64_t *received)
{
    const uint64_t out = BIO_number_written(SSL_get_wbio(c->ssl));
    const uint64_t in = BIO_number_read(SSL_get_rbio(c->ssl));
    *sent = out - c->sent;
    *received = in - c->received;
    c->sent = out;
    c->received = in;
}
