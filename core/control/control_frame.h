/* control/control_frame.h - what travels between the ranks' control planes, as bytes: cut out of a
 * stream, checked and taken apart without a copy, a system call or an allocation.
 *
 * Numbers are little-endian. A text is its length with the NUL (2 bytes), then its bytes. A frame
 * is length of the payload (4), type (4), serial of this direction from 0 on (4), payload. */
#ifndef CONTROL_CONTROL_FRAME_H
#define CONTROL_CONTROL_FRAME_H

#include <stdatomic.h>

#include <longhaul/base.h>

#include <base/text.h>

enum { PROGRESS_WORDS = 8, PROGRESS_TEXT = PROGRESS_WORDS * 8 }; /* bytes, with the NUL */

/* What a rank is doing, where others can read it at any time without a lock: its control thread,
 * and the launcher through memory that both map. Words of 8 bytes, each of them atomic, with a
 * serial around them (a sequence lock): a writer never waits, and a reader that met a write in
 * between reads again. A lock would be held for ever by a rank that was killed in the midst of it.
 */
typedef struct progress_word {
    _Atomic uint64_t serial; /* odd while it is written */
    _Atomic uint64_t step;
    _Atomic uint64_t text[PROGRESS_WORDS];
    _Atomic uint64_t waited_ns; /* by itself: a count that only grows */
} progress_word_t;

typedef struct progress {
    uint64_t step;
    char text[PROGRESS_TEXT]; /* "" before the first */
    uint64_t waited_ns;       /* that its steps have waited for others, so far */
} progress_t;

/* [any thread] Of two at the same time one is kept. text NULL: none. */
void control_progress_write(progress_word_t *w, uint64_t step, const char *text);
void control_progress_read(const progress_word_t *w, progress_t *out);

/* " in step 41, all-reduce of gradients 3", " in all-reduce ..." before the first step, or "". */
enum { PROGRESS_PHRASE = PROGRESS_TEXT + 32 };
void control_progress_phrase(const progress_t *p, char out[PROGRESS_PHRASE]);

enum {
    FRAME_HELLO = 1, /* to rank 0: who this is and what it found; frame_hello_t */
    FRAME_WELCOME,   /* from rank 0: all are here; frame_welcome_t            */
    FRAME_REFUSE,    /* from rank 0: not with this one; frame_notice_t. With LH_AGAIN: dial again */
    FRAME_BEAT,      /* both: still alive, and where; frame_beat_t             */
    FRAME_GATHER,    /* to rank 0: this rank's part; frame_gather_t            */
    FRAME_GATHERED,  /* from rank 0: all parts; frame_gather_t                 */
    FRAME_FAIL,      /* to rank 0: a rank is lost, or fails; frame_notice_t. Or a machine is
                        asked to stop, also to a door (control_stop.h)         */
    FRAME_END,       /* from rank 0: the job ends, and why; frame_notice_t     */
    FRAME_BYE,       /* to rank 0: this rank has ended, and how; frame_notice_t */
    FRAME_WAIT,      /* from rank 0: for whom all wait; frame_notice_t. With LH_AGAIN: rank 0 is not
                        there yet, and this is a door (control_door.h)         */
    FRAME_REGROUP,   /* from rank 0: all end, and meet anew as others; frame_regroup_t */
    FRAME_MET,       /* from rank 0 to votes without ranks: all have met; frame_regroup_t */
    FRAME_TYPES,
};

/* Channels: gathers of all ranks that have an order each, and know nothing of the other's: those of whoever opens,
 * ends and leads the job, and those of a thread that works beside it (links/links_early.h). */
enum { CONTROL_MAIN, CONTROL_ASIDE, CONTROL_CHANNELS };

enum {
    FRAME_VERSION = 10,
    FRAME_HEAD = 12,
    FRAME_SMALL = 1 << 20,  /* largest payload that rank 0 takes  */
    FRAME_LARGE = 64 << 20, /* that the others take of rank 0: what was gathered */
    FRAME_FACTS = 4096,
    FRAME_FACT_TEXT = 128, /* bytes of a name or value, with the NUL */
    FRAME_LAYOUT = 257,    /* of a layout */
    FRAME_TRIED = 2145,    /* of attempts to meet */
    FRAME_REASON = 1900,   /* of a notice                            */
};

/* A wait that people are told of now and then, by control_wait_due. Begins as 0; the first look is
 * the beginning. Nanoseconds of sys()->now_ns. */
typedef struct control_wait {
    uint64_t since, next;
} control_wait_t;
/* When a line about who is waited for is due: each 5 s, after a minute each minute. */
bool control_wait_due(control_wait_t *w, uint64_t now);

/* A frame in the bytes of the stream: nothing is copied. Valid as long as those are. */
typedef struct frame {
    uint32_t type;
    const unsigned char *payload;
    size_t length;
} frame_t;

/* Cuts the next frame off a stream. LH_AGAIN: not all of it is there. LH_CORRUPT after fail(): no
 * frame begins here, or it is longer than limit, or not the one that is due. */
lh_status_t frame_cut(const unsigned char *bytes, size_t length, uint32_t serial, size_t limit,
                      frame_t *out, size_t *used) LH_MUST_CHECK;
/* Appends a frame. */
void frame_append(text_t *out, uint32_t type, uint32_t serial, const text_t *payload);

/* To rank 0, the first frame of a rank. Texts point into the payload, here and below. */
typedef struct frame_hello {
    uint32_t version, rank, size, pid;
    uint32_t
        epoch; /* the least that this rank can be of; 1: any, its launcher has met nobody yet */
    uint32_t stayed; /* 1: control_how_t.stayed */
    const char *site, *host;
    /* Of a job whose members may change: the layout in which this rank is, or what its machine knows
     * where it is a herald, which is no rank, or only asks for news (HELLO_*); the last meeting of its
     * machine, and the layouts in which it was to meet after that: member_record_t. Epoch 0: none. */
    uint32_t herald;
    const char *layout;
    uint32_t met_epoch;
    const char *met, *tried;
    uint32_t fact_count;
    const unsigned char *facts; /* pairs of texts, checked */
} frame_hello_t;

enum { HELLO_RANK, HELLO_HERALD, HELLO_ASKS };

/* Where a rank is, by names: numbers of sites and nodes follow from all places together. */
typedef struct frame_place {
    uint32_t pid;
    const char *site, *host;
} frame_place_t;

/* From rank 0 to all. The epoch is which meeting of the job's ranks this is, from 1 on: one more
 * after each restart. Keys, links and what they carry are of one epoch. */
typedef struct frame_welcome {
    uint64_t job;
    uint32_t epoch, size;
    const char *address;         /* at which rank 0's machine is reached */
    const unsigned char *places; /* of `size` ranks, checked */
} frame_welcome_t;

/* One form for all sentences: who fails, who ends, who is refused and for whom all wait. */
typedef struct frame_notice {
    lh_status_t status;
    uint32_t rank; /* whom it is about */
    uint64_t step; /* in which that rank was, as far as whoever writes this knows */
    const char *reason;
} frame_notice_t;

/* The layout (config/members.h) in which ranks meet next, in which epoch, and why. "": the job is over. */
typedef struct frame_regroup {
    uint32_t epoch;
    const char *layout, *reason;
} frame_regroup_t;

/* Still alive, and what the progress word says. */
typedef struct frame_beat {
    uint64_t step, waited_ns;
    const char *text;
} frame_beat_t;

/* A rank's part, or all parts one after the other. channel, round and where say which gather it is. */
typedef struct frame_gather {
    uint32_t channel, round;
    const char *where;
    uint32_t length;
    const unsigned char *bytes;
} frame_gather_t;

/* LH_CORRUPT after fail() unless the payload is exactly one of its kind. */
lh_status_t frame_read_hello(const frame_t *f, frame_hello_t *out) LH_MUST_CHECK;
lh_status_t frame_read_welcome(const frame_t *f, frame_welcome_t *out) LH_MUST_CHECK;
lh_status_t frame_read_notice(const frame_t *f, frame_notice_t *out) LH_MUST_CHECK;
lh_status_t frame_read_beat(const frame_t *f, frame_beat_t *out) LH_MUST_CHECK;
lh_status_t frame_read_gather(const frame_t *f, frame_gather_t *out) LH_MUST_CHECK;
lh_status_t frame_read_regroup(const frame_t *f, frame_regroup_t *out) LH_MUST_CHECK;

/* Step through what a hello or welcome holds; at begins as facts or places. */
void frame_next_fact(const unsigned char **at, const char **name, const char **value);
void frame_next_place(const unsigned char **at, frame_place_t *out);

/* Build payloads. Longer texts are cut at the limits above. */
void frame_put_u32(text_t *out, uint32_t value);
void frame_put_u64(text_t *out, uint64_t value);
void frame_put_text(text_t *out, const char *text, size_t limit);
void frame_write_hello(text_t *out, const frame_hello_t *hello); /* facts are appended by hand */
void frame_write_notice(text_t *out, const frame_notice_t *notice);
void frame_write_beat(text_t *out, const progress_t *progress);
void frame_write_regroup(text_t *out, const frame_regroup_t *regroup);
void frame_write_gather(text_t *out, const frame_gather_t *part);

/* A rank's hello as it is compared with the others'. */
typedef struct rank_facts {
    frame_hello_t hello; /* its texts are owned by whoever calls */
} rank_facts_t;

/* Whether both say the same in the same order: one walk, as in a job that is well. */
bool control_facts_same(const rank_facts_t *a, const rank_facts_t *b);
/* True if all say the same. Else appends a line for each fact that differs: its values and the
 * ranks that have them. */
bool control_facts_agree(const rank_facts_t *ranks, uint32_t count, text_t *table);
/* True if `all` says what `some` says, and knows no other key of the INI; loads: nor anything else, as who loads
 * no plugin has no fact of one. Else appends a line for each fact that differs, with both values. */
bool control_facts_within(const rank_facts_t *some, const rank_facts_t *all, bool loads,
                          text_t *table);

#endif
