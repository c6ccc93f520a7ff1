/* tcp_kit.h - two ranks of the tcp plugin in one process, each with a host of its own, and what a
 * test does with them again and again. */
#ifndef TCP_KIT_H
#define TCP_KIT_H

#include <longhaul/plugin.h>

/* Also in builds without asserts. */
#define KIT_MUST(fact) ((fact) ? (void)0 : kit_fault(__FILE__, __LINE__, #fact))
void kit_fault(const char *file, int line, const char *fact) __attribute__((noreturn));

typedef struct kit_config { /* as the plugin's option table has it */
    char *bind;
    uint64_t port, streams;
    uint64_t chunk_bytes, buffer_bytes, pace;
    char *congestion;
    char *advertise;
    char *nics;
    uint32_t threads, zero_copy; /* KIT_*, below */
} kit_config_t;
/* 0 is auto, as in the options' words: "auto|0|1|2" and so on, "auto|yes|no". */
#define KIT_THREADS(n) ((n) + 1u)
enum { KIT_ZERO_YES = 1, KIT_ZERO_NO = 2 };

typedef struct kit_host {
    lh_host_t api; /* first: the plugin's pointer is one to this */
    lh_world_t world;
    uint8_t key;              /* what derived keys are made of; 0: the job has none */
    int64_t allocations_left; /* then alloc fails, once; 0: never */
    double strangers;
    uint32_t threads;                  /* that were started and not joined */
    double seals, zero_copies, copied; /* by threads; from pages, and of those copied after all */
    char reason[512];                  /* of the last fail */
    char warned[512];                  /* the last warning */
} kit_host_t;

enum { KIT_EVENTS = 64, KIT_TEXT = 512 };
typedef struct kit_end {
    kit_host_t host;
    kit_config_t config;
    const char *machine; /* the address that the host knows; NULL: all are on one machine */
    lh_transport_t *transport;
    lh_listener_t *listener;
    lh_address_t address;
    lh_conn_t *conn;
    lh_wire_event_t events[KIT_EVENTS]; /* all so far */
    char reasons[KIT_EVENTS][KIT_TEXT];
    uint32_t count;
} kit_end_t;

extern const lh_plugin_t *kit_plugin; /* these two set by kit_load */
extern const lh_transport_api_t *kit_api;
extern lh_link_t kit_link;   /* what connections are told of their link; all zero: nothing */
extern uint32_t kit_service; /* of connections; LH_SERVICE_GRADIENT unless set */
extern uint32_t kit_flags;   /* likewise; LH_CONN_*                            */
int kit_load(void);
void kit_open(kit_end_t *e, uint32_t rank);
void kit_close(kit_end_t *e);
uint64_t kit_now(void);

lh_conn_params_t kit_params(const kit_end_t *from, uint32_t peer, uint32_t security);
/* a listens with `security`, b dials; both are up. */
void kit_join(kit_end_t *a, kit_end_t *b, uint32_t security);
/* What has not come by then does not come: far more than a machine that has much else to do needs. */
#define KIT_PATIENCE_MS 30000u
#define KIT_PATIENCE_NS (KIT_PATIENCE_MS * 1000000ull)
/* What is outstanding behind a DOWN or a cancel is told within so much, whatever the peer does. */
#define KIT_DRAIN_MS 100u
/* Polls both (b may be NULL) until `e` has an event of this type after `from`, or ms are over:
 * NULL. */
const lh_wire_event_t *kit_wait(kit_end_t *a, kit_end_t *b, kit_end_t *e, uint32_t type,
                                uint32_t from, uint32_t ms);
void kit_poll(kit_end_t *e);
const char *kit_reason(const kit_end_t *e, const lh_wire_event_t *event);
void kit_fill(uint8_t *bytes, size_t length, uint32_t seed);

#endif
