/* links/probe_stage.h - one end of a probe: messages to the one peer that it measures the link to, pings for the
 * round trip, and stages both ways. What is asked of them, and how often, is links_probe.c's.
 *
 *   STAGE messages of data at an even pace, fewer under a low bound, and a word: how fast the peer's came,
 *   and whether the sender's own ramp has ended
 *
 * The receives of the next stage are posted before the word leaves, so the peer begins its stage
 * half a round trip later and waits for no grant. */
#ifndef LINKS_PROBE_STAGE_H
#define LINKS_PROBE_STAGE_H

#include <links/link_probe.h>
#include <links/links.h>
#include <links/probe_cards.h>

enum {
    PINGS = 64,
    STAGE = PROBE_MESSAGES,     /* messages of data, most */
    LEAST_DATA = PROBE_MESSAGE, /* bytes of a message     */
    MOST_DATA = 4 << 20,
    PROBE_SETTLE_NS = 60000000, /* after which a plugin's figures are of this stage */
};

/* What an event of the probe's connection is of. */
enum { COOKIE_SENT, COOKIE_DATA, COOKIE_WORD, COOKIE_PING };
/* What the first message of a stage says this stage is, or what comes instead of one. */
enum { KIND_RAMP, KIND_BURST, KIND_AGAIN, KIND_END };

/* Fits into the shortest message of data, and travels as it lies in memory. */
typedef struct probe_word { /* what the ends tell each other; the first bytes of a message */
    uint32_t kind, done;
    uint64_t came;                             /* bytes a second of the peer's stage            */
    uint64_t sent, lost;                       /* bytes of this burst, by its own transport     */
    uint64_t round_trip_ns, median_ns, p99_ns; /* of the pings                                  */
    uint64_t begun_ns;                         /* when its stage began, by the sender's clock     */
    int64_t ahead_ns;                          /* the sender's clock, less the receiver's         */
    uint64_t rate[2];                          /* from the end that dialed to the other, back   */
    double loss;
    uint32_t choice, reserved;
} probe_word_t;
_Static_assert(sizeof(probe_word_t) <= LEAST_DATA, "a word leads the shortest message of data");

/* One end's view of a probe. rate, burst and losses: [0] of what this end sends, [1] of what comes, so the
 * two ends have them the other way round. */
typedef struct probe {
    links_t *l;
    link_t *k;
    lh_region_t *region;
    char *memory; /* data to send, data that came: its first message and the others */
    probe_word_t *own, *its,
        *lead; /* in memory too: to send, to receive, first bytes of data sent */
    uint64_t moved_ns, deadline_ns; /* when anything last came or had left; to cut it short */
    uint32_t out;                   /* sends that have not ended                 */
    uint32_t stage; /* messages of data: link_probe_messages of a bound that both ends have */
    uint32_t came, words, pings;
    uint64_t at_ns[STAGE],
        upto[STAGE];  /* of this stage's data: when a message had come, bytes by then */
    int64_t ahead_ns; /* the other end's clock, less this one's */
    uint64_t sent_ns[PINGS], trips[PINGS];
    probe_ramp_t ramp; /* of what this end sends                    */
    uint64_t loaded_ns;
    uint64_t rate[2], burst[2]; /* what this end sends, what comes          */
    uint64_t sent_before, lost_before;
    probe_tally_t losses[2];  /* of bursts by all tunings: how much is lost is the link's */
    uint64_t burst_took_ns;   /* the last one, with its word                              */
    uint64_t connect_took_ns; /* likewise */
    uint32_t choice;          /* of the plugin's tunings */
    double loss;              /* of the first choice's bursts; 0: of that itself */
    probe_cards_t cards;      /* of this end, in bursts */
    probe_figures_t *figures;
} probe_t;

/* Takes what has ended; sleeps until something does or until_ns. */
lh_status_t probe_turn(probe_t *p, uint64_t until_ns) LH_MUST_CHECK;
/* Where the transport has no room, turns until it has. */
lh_status_t probe_post(probe_t *p, bool sends, void *data, uint64_t bytes,
                       uint64_t cookie) LH_MUST_CHECK;
/* From where all messages of data are sent; and where number `message` of the peer's stage lands. */
char *probe_data_out(const probe_t *p);
char *probe_data_in(const probe_t *p, uint32_t message);
/* The round trip and the other end's clock; afterwards the first stage is expected. */
lh_status_t probe_trip(probe_t *p) LH_MUST_CHECK;
/* The figures that the transport has of the connection; and waits until they are of this stage. */
void probe_stats(const probe_t *p, lh_link_stats_t *out);
lh_status_t probe_settle(probe_t *p) LH_MUST_CHECK;

/* Posts the receives of a whole stage and of the word behind it. */
lh_status_t stage_expect(probe_t *p) LH_MUST_CHECK;
/* Bytes of each of a stage's messages, for it to last `ns` at that pace. */
uint64_t stage_message(const probe_t *p, double pace, uint64_t ns, uint64_t most);
/* A stage both ways. *there: how fast what this end sent came, *here: what the other end sent. Afterwards the
 * next one is expected. */
lh_status_t stage_run(probe_t *p, double pace, uint64_t bytes, uint32_t kind, double *there,
                      double *here) LH_MUST_CHECK;

#endif
