/* transport_rig.h - two processes, one plugin: each is an end with a transport of its own, and a
 * channel to the other over which addresses and barriers go. */
#ifndef TRANSPORT_RIG_H
#define TRANSPORT_RIG_H

#include "check.h"
#include "check_host.h"

enum { RIG_EVENTS = 1 << 14 };

typedef struct end {
    uint32_t side; /* 0 dials, 1 listens */
    int channel;
    const plugin_t *plugin;
    const lh_transport_api_t *api;
    void *config;
    lh_transport_t *transport;
    lh_listener_t *listener;
    lh_address_t address; /* of side 1's listener, on both */
    lh_nic_info_t nic;
    lh_conn_t *conn;                    /* with cookie RIG_CONN */
    lh_wire_event_t events[RIG_EVENTS]; /* told and not yet asked for, in order */
    char reasons[RIG_EVENTS][160];
    uint32_t event_count;
} end_t;

#define RIG_CONN ((uint64_t)1 << 40)

/* What does not hold ends the check with a sentence. */
#define CHECK(cond, ...) ((cond) ? (void)0 : rig_fault(__FILE__, __LINE__, #cond, " " __VA_ARGS__))
void rig_fault(const char *file, int line, const char *what, const char *fmt, ...) LH_PRINTF(4, 5)
    __attribute__((noreturn));

/* e->plugin is set. settings: "key=value" for its options, NULL-terminated; may be NULL. */
void end_open(end_t *e, uint32_t side, int channel, const char *const *settings);
/* Closes the transport and checks that all its memory came back. */
void end_close(end_t *e);

/* Side 1 listens, side 0 learns the address. */
void end_listen(end_t *e, uint32_t security);
/* Side 0 to side 1's listener; a card that reaches no other process skips the check. */
lh_conn_t *end_dial(end_t *e, const lh_conn_params_t *params);
/* A connection of both; returns before it is up. */
lh_conn_t *end_join_with(end_t *e, const lh_conn_params_t *params);
lh_conn_t *end_join_at(end_t *e, uint32_t service, uint64_t cookie, uint32_t security);
lh_conn_t *end_join(end_t *e, uint32_t service, uint64_t cookie);
/* end_listen, end_join into e->conn and UP. */
void end_meet(end_t *e);
lh_conn_params_t end_params(const end_t *e, uint32_t service, uint64_t cookie);

void end_poll(end_t *e);
/* The event of this type and cookie, once it comes; a fault when it does not within 30 s. */
lh_wire_event_t end_await(end_t *e, uint32_t type, uint64_t cookie);
/* Whether it is there; does not poll. */
bool end_take(end_t *e, uint32_t type, uint64_t cookie, lh_wire_event_t *out);
/* Keeps polling until the other end is here too. */
void end_barrier(end_t *e);
void end_tell(end_t *e, const void *data, size_t bytes);
void end_hear(end_t *e, void *data, size_t bytes);

typedef struct buffer {
    char *data;
    uint64_t bytes;
    lh_region_t *region;
    int fd; /* memfd, or -1 */
} buffer_t;
/* shared: in a memfd that the peer may map. */
buffer_t buffer_new(end_t *e, uint64_t bytes, bool shared, uint32_t access);
void buffer_free(end_t *e, buffer_t *b);
void buffer_fill(char *data, uint64_t bytes, uint64_t seed);
void buffer_check(const char *data, uint64_t bytes, uint64_t seed);

/* Post, polling while the plugin says LH_AGAIN. */
void end_send(end_t *e, const buffer_t *b, uint64_t at, uint64_t bytes, uint32_t tag,
              uint64_t cookie);
void end_receive(end_t *e, const buffer_t *b, uint64_t at, uint64_t bytes, uint32_t tag,
                 uint64_t cookie);

/* A fact is run by both ends, each in a process of its own. */
typedef struct fact {
    const char *name;
    void (*run)(end_t *e);
    bool kills;                  /* side 1 ends by SIGKILL */
    const char *const *settings; /* of the plugin's options */
} fact_t;
extern const fact_t transport_facts[];
extern const uint32_t transport_fact_count;

/* Runs the check's fact over its plugin: check_t.run where check_t.fact is set. */
void rig_run(subject_t *s);

#endif
