/* watch/scrape.h - a small HTTP server for one page, /metrics: what Prometheus asks of a run.
 *
 * Whoever connects is a stranger. A request is read into SCRAPE_BYTES and no more, a connection lives
 * SCRAPE_NS at most, SCRAPE_PEERS are open at once, and each is closed after one answer. It never
 * waits for one of them, so that a slow one keeps no other out. Nothing of a request is kept, shown
 * or opened: its path is compared with the one that there is. */
#ifndef WATCH_SCRAPE_H
#define WATCH_SCRAPE_H

#include <base/text.h>

enum { SCRAPE_BYTES = 4096, SCRAPE_PEERS = 16, SCRAPE_HOST = 256 };
#define SCRAPE_NS UINT64_C(5000000000)

/* "HOST:PORT", "[::1]:9400", ":9400": host is "" where all addresses are meant. LH_INVALID: it is
 * none; the sentence says what was found and expected. */
lh_status_t scrape_address(const char *text, char host[SCRAPE_HOST], uint16_t *port) LH_MUST_CHECK;

/* What is to be answered to the bytes that have come so far. SCRAPE_MORE: the request is not whole. */
enum {
    SCRAPE_MORE,
    SCRAPE_PAGE,   /* GET /metrics */
    SCRAPE_HEAD,   /* HEAD /metrics */
    SCRAPE_BAD,    /* 400: no HTTP/1 */
    SCRAPE_OTHER,  /* 404: another path */
    SCRAPE_METHOD, /* 405 */
    SCRAPE_LARGE,  /* 431: not whole in SCRAPE_BYTES */
};
uint32_t scrape_request(const char *bytes, size_t length);

typedef struct scrape scrape_t;

/* Listens and starts a thread. page fills `out` anew, called in that thread, at most ten times a
 * second however many ask. LH_IO: the address is not to be had. */
lh_status_t scrape_open(const char *address, void (*page)(void *context, text_t *out),
                        void *context, scrape_t **out) LH_MUST_CHECK;
/* The port that it became, where the address said 0. */
uint16_t scrape_port(const scrape_t *s);
void scrape_close(scrape_t *s); /* NULL does nothing */

#endif
