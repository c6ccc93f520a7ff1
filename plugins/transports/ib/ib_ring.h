/* ib_ring.h - the arithmetic of grants, credits and immediates; no verbs, no memory of its own.
 *
 * Every end has a board, memory that its peer writes: a ring of grants (one for each receive that
 * the peer has posted, by number) and a ring of notices, each of which says how many receive work
 * requests the peer has posted in all on every queue pair. A slot is written again only when its
 * reader is known to be done with it, so nothing is ever read while the device writes it: a grant's
 * when its message has come, a notice's since each takes a receive work request, of which there are
 * as many as slots.
 *
 * What comes from a peer is copied and checked before it is used: it may have gone wild. */
#ifndef IB_RING_H
#define IB_RING_H

#include <longhaul/link.h>

enum {
    IB_DEPTH = 256, /* receives and sends that a connection has posted at most; a power of two */
    IB_PAIRS_MOST = 16, /* queue pairs of a connection */
    IB_PORTS_MOST = 4,  /* of a rank, over which they are spread */
    IB_RECEIVES = 128,  /* receive work requests of each queue pair that the peer has credits for */
    IB_SPARE = 128,     /* and those that wait beyond them, for what leaves without a credit */
    IB_SPARE_EACH = 5,  /* of these, how many are needed for each queue pair of the connection */
    IB_NOTICES = IB_RECEIVES + IB_SPARE,
    IB_CHUNK_LEAST = 64 << 10,
    IB_CHUNK_MOST = 64 << 20,
    IB_REASON = 240,
    IB_MTU_MOST = 4096,
};

/* ---- immediates: the 32 bits that come with a write ---- */

enum { IB_CHUNK = 0, IB_NOTICE = 1, IB_GOODBYE = 2, IB_SHARE = 3, IB_AWAY = 4 };
enum {
    IB_INDEX_BITS = 20,
    IB_NUMBER_BITS = 9,
    IB_TURN_BITS = 15,
    IB_COUNT_BITS = 10,
}; /* of a chunk: its index, and its message's number; of what is said of a queue pair: its turn, and
    * what came over it */
#define IB_MESSAGE_MOST ((uint64_t)IB_CHUNK_LEAST << IB_INDEX_BITS)
LH_STATIC_ASSERT((1 << IB_NUMBER_BITS) >= 2 * IB_DEPTH, "numbers in flight must differ");

typedef struct ib_immediate {
    uint32_t kind;
    bool last;       /* IB_CHUNK: no chunk of the message has a larger index */
    uint32_t number; /* IB_CHUNK: of the message, its low bits; IB_NOTICE: of grants, 16 low bits;
                      * IB_AWAY: of the immediates that came over the queue pair, low bits */
    uint32_t index;  /* IB_CHUNK: in the message; `private`: the frame's number, its low bits;
                      * IB_AWAY: of the queue pair */
    uint32_t turn;   /* IB_AWAY: of the queue pair, its low bits */
} ib_immediate_t;

uint32_t ib_immediate_write(const ib_immediate_t *from);
/* False: no end of ours has written it. */
bool ib_immediate_read(uint32_t word, ib_immediate_t *out);

/* ---- grants ---- */

typedef struct ib_grant { /* one receive; little-endian, as every field of the board */
    uint64_t number;      /* of the receive, from 1 on: 0 is a slot never written */
    uint64_t address, bytes;
    uint32_t keys[IB_PORTS_MOST]; /* of that memory, by this end's ports */
    uint32_t tag, reserved;
} ib_grant_t;

typedef struct ib_notice {
    uint64_t
        opened; /* `private`: frames of this end that the peer has opened, all before it, too */
    uint64_t posted[IB_PAIRS_MOST]; /* the peer's receive work requests */
} ib_notice_t;

typedef struct ib_share { /* `private`: what an end must know of the other to send it frames */
    uint8_t share[32];    /* X25519                                      */
    uint64_t frames;      /* where they are written, and by which keys   */
    uint32_t keys[IB_PORTS_MOST], slot_bytes, slots;
    uint8_t mac[16]; /* of all before it */
} ib_share_t;

typedef struct ib_board {
    ib_notice_t notices[IB_NOTICES];
    ib_share_t share;
    int32_t status; /* goodbye: why the peer ends the connection */
    uint32_t length;
    char reason[IB_REASON]; /* goodbye: no NUL at its end */
    ib_grant_t grants[IB_DEPTH];
    uint8_t probe[IB_MTU_MOST]; /* nobody reads it */
} ib_board_t;

/* Grants that the 16 low bits of their count, `low`, add to the `known` ones, of which `used`
 * messages have left whole, and may have come before their sender hears of it. -1: more than a peer
 * can have given. */
int32_t ib_grants_new(uint64_t known, uint64_t used, uint32_t low);
/* The grant for message `index` (from 0), checked. False: it is not that one, or no memory. */
bool ib_grant_read(const ib_board_t *board, uint64_t index, ib_grant_t *out);

/* What an end says of a queue pair that is down, its turn and how many immediates came over it in all,
 * is in the immediate itself: it may leave over one queue pair and, of a later turn, over another, so
 * that in one place of the board the earlier could be written over the later. */
/* How many turns later than `known` one is, by its low bits; less than 0: earlier. */
int32_t ib_turn_ahead(uint32_t known, uint32_t low);
/* The count, by its low bits: `done`, which this end knows to have arrived, or a little more. */
uint64_t ib_count_find(uint64_t done, uint32_t low);

/* ---- credits: no write with an immediate leaves before a receive work request waits for it ---- */

/* What others wait for leaves without a credit, or two ends that both wait for one would do so for ever:
 * a notice that gives back half of a queue pair's or tells anew what was lost, and what is said of a queue
 * pair that is down. IB_SPARE work requests wait for these. As long as a peer does not poll there are, over
 * one queue pair, at most: a notice for each half of what the peer has under way on each, three as it may
 * have left without credits, too; two words of each other one; one notice that tells anew. */
LH_STATIC_ASSERT((IB_SPARE_EACH * IB_PAIRS_MOST) <= IB_SPARE,
                 "what leaves without a credit must find a request");

typedef struct ib_credits {
    uint64_t granted; /* by the peer, since the connection began           */
    uint64_t used;    /* by writes of this end; it may be more: IB_SPARE   */
    uint64_t posted;  /* receive work requests of this end, but the spare  */
    uint64_t told;    /* of posted: those that the peer knows of, or soon will */
} ib_credits_t;

void ib_credits_begin(ib_credits_t *c);
/* A queue pair that replaces another, of which this end took `arrived` immediates and the peer
 * `taken`: both ends have posted afresh. False: the peer can't have taken so many or so few.
 * done: those of which this end knew already. */
bool ib_credits_renew(ib_credits_t *c, uint64_t done, uint64_t taken, uint64_t arrived);
/* What the board says now; less than is known is a notice that was overtaken. False: more than the
 * peer can have. */
bool ib_credits_take(ib_credits_t *c, uint64_t granted);
uint64_t ib_credits_left(const ib_credits_t *c);
/* Kept behind it: one for a notice, and `words`, so that the spare ones are seldom needed. */
bool ib_credits_for_chunk(const ib_credits_t *c, uint32_t words);
/* waited: the peer may wait for it. */
bool ib_credits_for_notice(const ib_credits_t *c, bool waited);
/* So many were used that the peer must be told even where there is nothing else to tell. */
bool ib_credits_due(const ib_credits_t *c);

/* ---- messages that come in, chunk by chunk, in any order ---- */

typedef struct ib_inbox { /* of one receive */
    uint64_t room;        /* bytes that were granted     */
    uint64_t bytes;       /* that have come              */
    uint32_t seen, total; /* chunks; total: 0 until the last one has come */
} ib_inbox_t;

/* False: the chunks can't be those of one message that fits. */
bool ib_inbox_take(ib_inbox_t *b, uint32_t index, bool last, uint64_t bytes);
static inline bool ib_inbox_whole(const ib_inbox_t *b)
{
    return b->total != 0 && b->seen == b->total;
}

/* Which of the receives [first, end) the low bits of a number mean. UINT64_MAX: none. */
uint64_t ib_number_find(uint64_t first, uint64_t end, uint32_t low);

/* Chunks of a message; one of no bytes has one. */
uint64_t ib_chunks(uint64_t bytes, uint64_t chunk);

/* ---- frames of `private` ---- */

enum { IB_FRAMES_LEAST = 4, IB_FRAMES_MOST = 1024 };

/* How many an end has each way: the chunks of a window, and beside these, for each thread, one that it seals
 * or opens and one that waits for it. */
uint32_t ib_frames(uint64_t window, uint64_t chunk, uint32_t threads);
/* Whether the peer must be told that `more` of its `frames` may be written again. What it does not know of
 * can carry nothing, so it is a sixteenth of them at most. */
bool ib_frames_due(uint32_t frames, uint64_t more);

/* ---- the greeting: private data of a connect request, and of the reply ---- */

/* Raised with any change of what travels: "lhb6"; and of a rejection that asks for a proof. */
enum { IB_MAGIC = 0x3662686c, IB_CHALLENGE_MAGIC = 0x3263686c };
enum {
    IB_GREETING_BYTES = 56, /* all that a request can hold on every link layer */
    IB_SIGNED_BYTES = 44,   /* of them, those in front of the MAC */
    IB_MAC_BYTES = 12,
    IB_NONCE_BYTES = 12,
    IB_CHALLENGE_BYTES = 4 + IB_NONCE_BYTES,
};

typedef struct ib_greeting {
    uint32_t token; /* of the listener: who was not told its address is a stranger */
    /* Of a queue pair's first turn, where the other end may write; of a later one, how many
     * immediates this end has taken from the queue pair before, of which 32 bits are enough. */
    uint64_t board;
    uint32_t key;          /* of the memory there, by this end's port */
    uint32_t turn;         /* how often this queue pair was replaced */
    uint32_t index, pairs; /* of this queue pair; of the connection */
    uint32_t ports;        /* of this end */
    uint32_t security;     /* LH_SECURITY_* */
    bool first;            /* the connection begins with it: the host is to be asked */
    bool asks;             /* for a challenge; the MAC's place has a nonce */
    lh_hello_t hello;
    uint8_t mac[IB_MAC_BYTES];
} ib_greeting_t;

/* False: the hello holds what no host of ours asks for. */
bool ib_greeting_write(const ib_greeting_t *from, uint8_t out[IB_GREETING_BYTES]);
/* False: too short, or not one of this version. The other end's token is not looked at. */
bool ib_greeting_read(const void *data, size_t bytes, ib_greeting_t *out);

/* The private data of a rejection: "prove it, over this nonce". */
void ib_challenge_write(const uint8_t nonce[IB_NONCE_BYTES], uint8_t out[IB_CHALLENGE_BYTES]);
bool ib_challenge_read(const void *data, size_t bytes, uint8_t nonce[IB_NONCE_BYTES]);

/* Copies a peer's goodbye; what can't be printed becomes '?'. The status of one that makes no sense
 * is LH_PEER_LOST. out has IB_REASON + 1 bytes. */
lh_status_t ib_goodbye_read(const ib_board_t *board, char *out);
void ib_goodbye_write(ib_board_t *board, lh_status_t status, const char *reason);

#endif
