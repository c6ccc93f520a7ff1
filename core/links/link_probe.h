/* links/link_probe.h - what is measured of a link between two sites, and the rules by which it is.
 *
 * A probe sends stages: a fixed number of messages at an even pace, both directions at once, and
 * the far end says how fast they came. The pace rises until no more comes; the most that came is
 * the link's rate (docs/links.md). Nothing here sends: probe_stage.c does. The rules are functions
 * of numbers alone, so that they can be tested with links that are made up.
 *
 * Rates are in bytes of payload a second, and times are in nanoseconds, unless a name says
 * otherwise. */
#ifndef LINKS_LINK_PROBE_H
#define LINKS_LINK_PROBE_H

#include <longhaul/link.h>

#include <control/world.h>

enum { PROBE_ADDRESS = 64, PROBE_PLUGIN = 32, PROBE_TUNED = 128 };
enum { PROBE_BEFORE = 4096, PROBE_AFTER = 2048 };
enum { PROBE_CARDS = 8, PROBE_CARD = 16 }; /* of an end; bytes of a card's name, with the NUL */
enum { PROBE_BURSTS = 64 };                /* whose losses are counted */
enum { PROBE_MESSAGES = 128, PROBE_MESSAGE = 1 << 10 }; /* of a stage, most; bytes of one, least */
/* What was busy while a pair of sites was measured: all pairs of its first site, of its second, or of
 * all sites. */
enum { BESIDE_FIRST, BESIDE_SECOND, BESIDE_ALL, BESIDES };

/* One of several cards by which an end of a connection leaves, which are all equally near. */
typedef struct probe_card {
    char name[PROBE_CARD];
    uint64_t rate;          /* bytes a second that it carries; 0: too little was sent to tell */
    uint64_t round_trip_ns; /* the least; 0: not told */
    double loss;            /* bytes sent again in bursts, of those sent */
} probe_card_t;

/* Index 0 is the direction from probe_pair_t.site[0] to site[1], 1 the way back. It travels from
 * rank to rank as it lies in memory; a run's record keeps it (session/link_record.h). */
typedef struct probe_figures {
    uint64_t measured_s;                       /* since 1970; 0: nothing is known */
    uint64_t took_ns;                          /* of the probe                    */
    uint64_t round_trip_ns, median_ns, p99_ns; /* of 64 pings; round_trip_ns is the least */
    uint64_t loaded_ns;                        /* while the ramp ended; 0: the plugin tells none */
    uint64_t path_mtu;                         /* 0: the plugin tells none */
    uint64_t rate[2];                          /* found by the ramp, between two ranks */
    uint64_t asked;               /* [transport.wan] rate, which bounded it; 0: nothing did */
    uint64_t burst[2];            /* came of bursts at 97 % of that  */
    double loss[2], loss_most[2]; /* of packets; most: 95 % sure; < 0: not told */
    double choice_loss[2];        /* that the choice was asked for with, by each end */
    uint32_t choice;              /* of the plugin's tunings; 0: its first */
    uint32_t streams;             /* of the connection that was measured   */
    uint64_t chunk_bytes, window_bytes, buffer_bytes;
    /* By all ranks of both sites at once, the pair alone and beside others (links_crowd.h); 0: not
     * measured. together_ranks: how many of each site were at it; beside_pairs: how many pairs the sites
     * had then; beside_at_s: when the last of these was measured, the same for all of them. A build that
     * did not know one of them has left 0. */
    uint64_t together[2], together_ranks, beside[BESIDES][2], beside_pairs, beside_at_s;
    char tuned[PROBE_TUNED]; /* the plugin's sentence on its parameters; "": none */
    /* By site: those of the rank that measured, where it has several and the plugin tells of
     * them. */
    probe_card_t cards[2][PROBE_CARDS];
    uint32_t card_count[2];
} probe_figures_t;

/* The addresses are part of what makes a record fit: with another cable or machine it is another
 * link. */
typedef struct probe_pair { /* of sites; a row of the record */
    char site[2][WORLD_SITE_NAME];
    char address[2][PROBE_ADDRESS]; /* of the ranks that measure, without ports */
    char plugin[PROBE_PLUGIN];
    probe_figures_t figures;
} probe_pair_t;

/* What a transport and the kernel have said of the machine of a site's first rank, lines with \n between:
 * cards, limits, counters. Before it measured, and of what they said when all was measured the lines
 * that are other; what is longer is cut after a line. */
typedef struct probe_words {
    char site[WORLD_SITE_NAME];
    char address[PROBE_ADDRESS];
    char plugin[PROBE_PLUGIN];
    uint64_t measured_s; /* since 1970 */
    char before[PROBE_BEFORE], after[PROBE_AFTER];
} probe_words_t;

/* What the links of one rank to another site carry while it trains: sums since they were opened, as
 * their transport tells them, and of those that there are the longest round trip and the highest
 * rate at the moment (0: unknown). */
typedef struct link_flow {
    uint32_t site;
    uint64_t sent, received, retransmitted; /* bytes */
    uint64_t round_trip_ns, bytes_per_second;
    /* Of the connection that loses most: of its last million packets, or the bound below which it lies
     * until so many were sent. packets: that it is of; 0: nothing is known. */
    double loss, packets;
} link_flow_t;

/* Whether a record's row is of this link: sites, addresses and plugin are the same. */
bool link_probe_same(const probe_pair_t *a, const probe_pair_t *b);
/* "tokyo-osaka: 0.53 ms, 98.1 Gb/s, loss < 1e-9; ...; limited by the link" */
void link_probe_text(const probe_pair_t *p, char *out, size_t room);
/* Whether a link gives little for what it hangs on, and then why that may be: its slower direction carries less than a
 * tenth of the card's bytes a second (0, or less than 100 Mb/s: unknown), or its ends send packets of
 * different lengths (mtu, by the pair's ends; 0: not told). */
bool link_probe_doubts(const probe_pair_t *p, uint64_t card, const uint64_t mtu[2], char *out,
                       size_t room);

/* What each of the cards of an end carries, into their rates: `sent` bytes over each, by `paths`
 * streams (none: as many each), in bursts at 97 % of `rate`, of which `burst` bytes a second
 * came. */
void link_probe_cards(probe_card_t *cards, const uint64_t *sent, const uint32_t *paths,
                      uint32_t count, double rate, double burst);
/* "tokyo-osaka, cards of tokyo: eth0 4.7 Gb/s at 10.44 ms, eth1 ...; of osaka: ..."; false:
 * neither end has told of several. */
bool link_probe_cards_text(const probe_pair_t *p, char *out, size_t room);
/* Whether one of the cards of site[end] carries less than 70 % of another, and then which. */
bool link_probe_cards_doubt(const probe_pair_t *p, int end, char *out, size_t room);

/* The search for the rate of one direction: each stage is sent faster than the most that came so
 * far, until several in turn bring no more. It begins as all zeroes but for `most`; the first guess goes to
 * `best`, and counts until the first stage. */
typedef struct probe_ramp {
    double best;   /* bytes a second: the most that came */
    bool told;     /* by a stage, so it is no guess      */
    uint32_t flat; /* of stages in turn that brought no more: 2 each, or 1 */
    bool full;     /* one has: the sender is up to speed  */
    bool done;     /* further stages only add to best     */
    bool looks;    /* the next is the long one of link_probe_look */
    bool looked;   /* that was sent                               */
    double most;   /* no stage is sent faster; 0: no bound        */
} probe_ramp_t;

/* Takes in a stage of which `came` bytes a second arrived; trip_ns: round trip under it, 0: not
 * known; least_ns: without load. */
void link_probe_stage(probe_ramp_t *r, double came, uint64_t trip_ns, uint64_t least_ns);
/* How fast the next stage is sent, in bytes a second, and for how long at least. */
double link_probe_pace(const probe_ramp_t *r);
uint64_t link_probe_ns(const probe_ramp_t *r, uint64_t round_trip_ns);
/* How many messages a stage and a burst have where nothing is sent faster than `most`, in bytes a second (0: no
 * bound): PROBE_MESSAGES, or so many that the shortest take a quarter of a second, 8 at least. */
uint32_t link_probe_messages(double most);

/* Once a stage brought no more on a way on which packets are lost, makes the next one long beside a round
 * trip; true: it did, and the ramp is done after that unless all that was sent came. lost: share of the bytes
 * sent so far; packet: bytes of payload of one. */
bool link_probe_look(probe_ramp_t *r, double lost, double packet, uint64_t round_trip_ns);

/* A connection's speed against its pace, step by step while it trains. It begins with pace and most
 * as the connection was opened with, the rest zero. */
typedef struct probe_follow {
    double pace, most;   /* bytes a second: in force; that of the probe, which is not exceeded */
    double sum;          /* of the rates of the steps that `slow` counts                 */
    uint32_t slow, well; /* steps in turn that kept less than 90 % of the pace; that kept it */
    uint32_t patience;   /* steps after which a lowered pace is raised again             */
    bool is_slow;        /* the last step that told a rate did not keep the pace         */
} probe_follow_t;

/* After a step in which it sent at `rate` while it had something to send; 0: too little to tell.
 * True: pace is another now. */
bool link_probe_follow(probe_follow_t *f, double rate, uint64_t trip_ns, uint64_t least_ns);

/* What a connection loses while it trains, in turns of a million packets, which tell 1e-4 within a fifth:
 * bytes sent and sent again when this turn began, and what the last turn has told. It begins as all
 * zeroes. */
typedef struct probe_losses {
    double sent, again;
    double loss, packets; /* packets 0: no turn is over yet */
} probe_losses_t;

/* Takes in sums since the connection was made; packet: bytes of payload of one. True: a turn is over. */
bool link_probe_losses(probe_losses_t *l, double sent, double again, double packet);
/* Payload of a packet on a path of this MTU; 0: not told. */
double link_probe_packet(uint64_t path_mtu);

/* The largest share of `packets` that may be lost on average where `lost` of them were, 95 %
 * sure. */
double link_probe_loss_most(double lost, double packets);
/* What bursts of one direction have sent and lost, in packets, burst by burst. It begins as all zeroes. */
typedef struct probe_tally {
    double sent[PROBE_BURSTS], lost[PROBE_BURSTS];
    uint32_t count;
} probe_tally_t;

/* Takes in a burst; sent 0: the transport does not tell, and nothing is taken in. */
void link_probe_tally(probe_tally_t *t, double sent, double lost);
/* What counts of it: all bursts but those, a third of them at most, that lost far more than the others.
 * True: no further burst is needed, as the share of lost / sent is within a factor of two of the link's, or
 * surely below 1e-3, or fewer than two were lost, or nothing is told, or there is no room for more bursts. */
bool link_probe_tally_sum(const probe_tally_t *t, double *sent, double *lost);
/* The loss that a tuning is asked for with, where there is `loss` now in direction `way`. A neighbour of
 * the plugin's first choice, which was measured to be the best, is asked for as it was then: the order in
 * which a plugin counts them may go by the loss, and the same number would be another one. */
double link_probe_loss_to_tune(const probe_figures_t *f, int way, double loss);
/* How long a probe may take before it cuts its ramp and its bursts short: 3 s, or, if that is more,
 * 40 round trips and two for each of 12 bursts. */
uint64_t link_probe_budget_ns(uint64_t round_trip_ns);
/* Whether round trips are most of that time, so that what only makes a figure better is left out. */
bool link_probe_hurries(uint64_t round_trip_ns);
/* How long it may take in all where bursts go on because too few packets were lost to tell the loss: 3 s, or,
 * if that is more, 40 round trips and 12 bursts. */
uint64_t link_probe_longest_ns(uint64_t round_trip_ns);
/* How long a burst lasts at its pace, if that is not more than it may have bytes. */
uint64_t link_probe_burst_ns(uint64_t round_trip_ns);

/* The rate of a stage in bytes a second, at the end that received it: message i of `count` had come
 * at at_ns[i], and upto[i] bytes by then. The stage began at begun_ns, by the same clock, and
 * way_ns is half a round trip. What waits anywhere makes a message's figure less, nothing makes it
 * more, so the link gives at least the most of these. Not the last alone: it may have met a stream
 * that was still busy. Only the second half of the messages is looked at. */
double link_probe_came(const uint64_t *at_ns, const uint64_t *upto, uint32_t count,
                       int64_t begun_ns, uint64_t way_ns);

/* Takes over what a record says of this very link, if it is younger than age_s and not of the
 * future, and was measured under the bound `asked`: figures under another are of another link. Seconds since
 * 1970. */
void link_probe_take_known(probe_pair_t *p, const probe_pair_t *known, uint32_t count,
                           uint64_t now_s, uint64_t age_s, uint64_t asked);

/* Whether a record's rows of these two sites over this plugin are all of other addresses, and then
 * a sentence that names the youngest. */
bool link_probe_moved(const probe_pair_t *p, const probe_pair_t *known, uint32_t count, char *out,
                      size_t room);
/* Whether no row of a record is of any of these pairs of sites, and then a sentence on whose it
 * is. */
bool link_probe_foreign(const probe_pair_t *pairs, uint32_t pair_count, const probe_pair_t *known,
                        uint32_t count, char *out, size_t room);

/* For a job that is only planned and has no addresses: p becomes the row of this plugin and these
 * sites' names that was measured last. Without one only its names are set. Rows that a bound was on count
 * only where one is `asked` for now, which then comes before what they say of the rate. */
void link_probe_take_named(probe_pair_t *p, const char *site, const char *other, const char *plugin,
                           const probe_pair_t *known, uint32_t count, uint64_t asked);

#endif
