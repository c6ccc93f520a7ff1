/* scrape.c - HTTP for one page.
 *
 * A thread of its own with one poll over the listener and some connections. The request's first line
 * alone says what is asked; its other lines are read until the empty one, as a client may not expect
 * an answer before. The answer is built whole, then sent as the socket takes it. */
#include <watch/scrape.h>

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>
#include <config/quantity.h>

/* ---- the address ---- */

lh_status_t scrape_address(const char *text, char host[SCRAPE_HOST], uint16_t *port)
{
    uint64_t number = 0;
    const char *colon = strrchr(text, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - text);
    const bool bracketed = length >= 2 && text[0] == '[' && text[length - 1] == ']';
    const bool bare = memchr(text, ':', length) == NULL;
    if (colon == NULL || !quantity_u64(colon + 1, &number) || number > UINT16_MAX ||
        length >= SCRAPE_HOST || (!bracketed && !bare))
        return fail(LH_INVALID, "'%s' is no address: HOST:PORT, [HOST]:PORT or :PORT was expected",
                    text);
    if (bracketed) length -= 2;
    memcpy(host, text + (bracketed ? 1 : 0), length);
    host[length] = '\0';
    *port = (uint16_t)number;
    return LH_OK;
}

/* ---- a request ---- */

/* The end of the header lines: two line ends in turn, each with or without its carriage return. */
static bool scrape_is_whole(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != '\n') continue;
        size_t next = i + 1;
        if (next < length && bytes[next] == '\r') next++;
        if (next < length && bytes[next] == '\n') return true;
    }
    return false;
}

/* Whether the word at *at is this one; moves behind it and the blank that follows. */
static bool scrape_word(const char *line, size_t length, size_t *at, const char *word)
{
    const size_t bytes = strlen(word);
    lh_assert(*at <= length);
    if (length - *at <= bytes || memcmp(line + *at, word, bytes) != 0 || line[*at + bytes] != ' ')
        return false;
    *at += bytes + 1;
    return true;
}

/* METHOD PATH HTTP/1.x, by single blanks. A query behind the path changes nothing. */
static uint32_t scrape_line(const char *line, size_t length)
{
    static const char page[] = "/metrics", version[] = "HTTP/1.";
    size_t at = 0;
    const char *blank = memchr(line, ' ', length);
    const bool get = scrape_word(line, length, &at, "GET");
    const bool head = !get && scrape_word(line, length, &at, "HEAD");
    if (blank == NULL || blank == line) return SCRAPE_BAD;
    const char *path = blank + 1, *end = memchr(path, ' ', length - (size_t)(path - line));
    if (end == NULL || end == path) return SCRAPE_BAD;
    const size_t rest = length - (size_t)(end + 1 - line);
    if (rest != sizeof(version) || memcmp(end + 1, version, sizeof(version) - 1) != 0)
        return SCRAPE_BAD;
    const char digit = end[sizeof(version)];
    if (digit != '0' && digit != '1') return SCRAPE_BAD;
    if (!get && !head) return SCRAPE_METHOD;
    const char *query = memchr(path, '?', (size_t)(end - path));
    const size_t bytes = (size_t)((query == NULL ? end : query) - path);
    if (bytes != sizeof(page) - 1 || memcmp(path, page, bytes) != 0) return SCRAPE_OTHER;
    return get ? SCRAPE_PAGE : SCRAPE_HEAD;
}

uint32_t scrape_request(const char *bytes, size_t length)
{
    const char *end = length == 0 ? NULL : memchr(bytes, '\n', length);
    if (end == NULL || !scrape_is_whole(bytes, length))
        return length >= SCRAPE_BYTES ? SCRAPE_LARGE : SCRAPE_MORE;
    size_t line = (size_t)(end - bytes);
    if (line > 0 && bytes[line - 1] == '\r') line--;
    return line == 0 ? SCRAPE_BAD : scrape_line(bytes, line);
}

/* ---- connections ---- */

typedef struct scrape_peer {
    int fd; /* -1: this place is free */
    uint64_t since;
    size_t got;           /* bytes of the request */
    size_t sent, to_send; /* of the answer; to_send 0: still reading */
    char *answer;
    char request[SCRAPE_BYTES];
} scrape_peer_t;

struct scrape {
    int listener, end_fd;
    uint16_t port;
    pthread_t thread;
    void (*page)(void *context, text_t *out);
    void *context;
    text_t text;      /* the page, as it was made last */
    uint64_t made_at; /* 0: never */
    scrape_peer_t peers[SCRAPE_PEERS];
};

static void peer_close(scrape_peer_t *p)
{
    if (p->fd < 0) return;
    (void)close(p->fd);
    mem_free(p->answer);
    p->answer = NULL;
    p->fd = -1;
    p->got = p->sent = p->to_send = 0;
}

/* The page is made anew when it is a tenth of a second old, so that a flood of requests costs what
 * ten cost. */
static void scrape_renew(scrape_t *s)
{
    enum { FRESH_NS = 100000000 };
    const uint64_t now = sys()->now_ns();
    if (s->made_at != 0 && now - s->made_at < FRESH_NS) return;
    s->page(s->context, &s->text);
    s->made_at = now;
}

static const char *answer_status(uint32_t what)
{
    switch (what) {
    case SCRAPE_PAGE:
    case SCRAPE_HEAD: return "200 OK";
    case SCRAPE_OTHER: return "404 Not Found";
    case SCRAPE_METHOD: return "405 Method Not Allowed";
    case SCRAPE_LARGE: return "431 Request Header Fields Too Large";
    default: return "400 Bad Request";
    }
}

/* Without memory the connection is just closed. */
static void peer_answer(scrape_t *s, scrape_peer_t *p, uint32_t what)
{
    const bool good = what == SCRAPE_PAGE || what == SCRAPE_HEAD;
    text_t answer = {0};
    lh_assert(p->to_send == 0 && what != SCRAPE_MORE); /* one answer for each connection */
    if (good) scrape_renew(s);
    const char *body = good ? s->text.data : answer_status(what);
    const size_t length = good ? s->text.length : strlen(body);
    text_printf(&answer,
                "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                "Content-Length: %zu\r\nCache-Control: no-store\r\nConnection: close\r\n%s\r\n",
                answer_status(what), length, what == SCRAPE_METHOD ? "Allow: GET, HEAD\r\n" : "");
    if (what != SCRAPE_HEAD) text_append_n(&answer, body, length);
    if (answer.failed || s->text.failed) {
        text_free(&answer);
        peer_close(p);
        return;
    }
    p->answer = answer.data;
    p->to_send = answer.length;
}

/* What is left in the socket is not read: a client that sends more than its request gets a reset
 * behind its answer. */
static void peer_send(scrape_peer_t *p)
{
    lh_assert(p->fd >= 0 && p->sent < p->to_send);
    const ssize_t sent = send(p->fd, p->answer + p->sent, p->to_send - p->sent,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) p->sent += (size_t)sent;
    if (sent <= 0 || p->sent == p->to_send) peer_close(p);
}

static void peer_receive(scrape_t *s, scrape_peer_t *p)
{
    lh_assert(p->got < SCRAPE_BYTES);
    const ssize_t got = recv(p->fd, p->request + p->got, SCRAPE_BYTES - p->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        peer_close(p);
        return;
    }
    p->got += (size_t)got;
    const uint32_t what = scrape_request(p->request, p->got);
    if (what == SCRAPE_MORE) return;
    peer_answer(s, p, what);
    if (p->to_send > 0) peer_send(p);
}

/* A place for one more: a free one, else that of the oldest, who has had the longest time. */
static scrape_peer_t *scrape_place(scrape_t *s)
{
    scrape_peer_t *oldest = &s->peers[0];
    for (uint32_t i = 0; i < SCRAPE_PEERS; i++) {
        if (s->peers[i].fd < 0) return &s->peers[i];
        if (s->peers[i].since < oldest->since) oldest = &s->peers[i];
    }
    peer_close(oldest);
    return oldest;
}

static void scrape_accept(scrape_t *s)
{
    const int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        /* Without a descriptor the caller stays in the queue, and poll would call at once again. */
        const struct timespec pause = {.tv_nsec = 50000000};
        if (errno != EAGAIN) (void)nanosleep(&pause, NULL);
        return;
    }
    scrape_peer_t *p = scrape_place(s);
    lh_assert(p->fd < 0);
    p->fd = fd;
    p->since = sys()->now_ns();
}

/* One turn: who has been here too long goes, whatever it does. */
static void scrape_turn(scrape_t *s, const struct pollfd *fds)
{
    const uint64_t now = sys()->now_ns();
    for (uint32_t i = 0; i < SCRAPE_PEERS; i++) {
        scrape_peer_t *p = &s->peers[i];
        if (p->fd < 0) continue;
        if (now - p->since > SCRAPE_NS)
            peer_close(p);
        else if (fds[i].revents != 0 && p->to_send > 0)
            peer_send(p);
        else if (fds[i].revents != 0)
            peer_receive(s, p);
    }
}

/* Places that are free have the descriptor -1, which poll leaves out. */
static void *scrape_run(void *argument)
{
    enum { LISTENER = SCRAPE_PEERS, END, FDS, TICK_MS = 1000 };
    scrape_t *s = argument;
    struct pollfd fds[FDS];
    for (;;) {
        bool any = false;
        for (uint32_t i = 0; i < SCRAPE_PEERS; i++) {
            const scrape_peer_t *p = &s->peers[i];
            fds[i] = (struct pollfd){.fd = p->fd, .events = p->to_send > 0 ? POLLOUT : POLLIN};
            any = any || p->fd >= 0;
        }
        fds[LISTENER] = (struct pollfd){.fd = s->listener, .events = POLLIN};
        fds[END] = (struct pollfd){.fd = s->end_fd, .events = POLLIN};
        if (poll(fds, FDS, any ? TICK_MS : -1) < 0 && errno != EINTR) return NULL;
        if (fds[END].revents != 0) return NULL;
        scrape_turn(s, fds);
        if (fds[LISTENER].revents != 0) scrape_accept(s);
    }
}

/* ---- open and close ---- */

/* "" means all addresses, of both families where there is IPv6. */
static lh_status_t scrape_listen(scrape_t *s, const char *address)
{
    char host[SCRAPE_HOST], service[8];
    uint16_t port;
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    lh_status_t status = scrape_address(address, host, &port);
    if (status != LH_OK) return status;
    (void)snprintf(service, sizeof(service), "%u", port);
    const int error = getaddrinfo(host[0] == '\0' ? NULL : host, service, &hints, &found);
    if (error != 0) return fail_io(0, "[watch] metrics = %s: %s", address, gai_strerror(error));
    int reason = 0;
    for (uint32_t round = 0; round < 2 && s->listener < 0; round++)
        for (const struct addrinfo *a = found; a != NULL && s->listener < 0; a = a->ai_next) {
            const int yes = 1, no = 0;
            if ((a->ai_family == AF_INET6) != (round == 0)) continue;
            const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
            if (a->ai_family == AF_INET6)
                (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
            if (fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                listen(fd, SCRAPE_PEERS) == 0) {
                s->listener = fd;
                continue;
            }
            reason = errno;
            if (fd >= 0) (void)close(fd);
        }
    freeaddrinfo(found);
    if (s->listener < 0)
        return fail_io(reason, "[watch] metrics = %s: cannot listen there", address);
    return LH_OK;
}

static void scrape_find_port(scrape_t *s)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof(name);
    if (getsockname(s->listener, (struct sockaddr *)&name, &length) != 0) return;
    s->port = ntohs(name.ss_family == AF_INET6
                        ? ((const struct sockaddr_in6 *)(const void *)&name)->sin6_port
                        : ((const struct sockaddr_in *)(const void *)&name)->sin_port);
}

static void scrape_free(scrape_t *s)
{
    for (uint32_t i = 0; i < SCRAPE_PEERS; i++)
        peer_close(&s->peers[i]);
    if (s->listener >= 0) (void)close(s->listener);
    if (s->end_fd >= 0) (void)close(s->end_fd);
    text_free(&s->text);
    mem_free(s);
}

lh_status_t scrape_open(const char *address, void (*page)(void *context, text_t *out),
                        void *context, scrape_t **out)
{
    lh_assert(page != NULL);
    scrape_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->listener = -1;
    s->page = page;
    s->context = context;
    for (uint32_t i = 0; i < SCRAPE_PEERS; i++)
        s->peers[i].fd = -1;
    s->end_fd = eventfd(0, EFD_CLOEXEC);
    lh_status_t status = s->end_fd < 0 ? fail_io(errno, "cannot serve figures") : LH_OK;
    if (status == LH_OK) status = scrape_listen(s, address);
    if (status == LH_OK) {
        scrape_find_port(s);
        const int error = thread_start(&s->thread, "lh-scrape", scrape_run, s);
        if (error != 0) status = fail(LH_NO_MEMORY, "cannot serve figures: %s", strerror(error));
    }
    if (status != LH_OK) {
        scrape_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

uint16_t scrape_port(const scrape_t *s)
{
    return s->port;
}

void scrape_close(scrape_t *s)
{
    const uint64_t one = 1;
    if (s == NULL) return;
    (void)!write(s->end_fd, &one, sizeof(one));
    (void)pthread_join(s->thread, NULL);
    scrape_free(s);
}
