/* tcp_frame.h - what goes over a stream: frames of a 64-byte head and a payload. Pure functions:
 * bytes in, a struct or the reason why not out.
 *
 *  0 type, flags (0), stream (16 bits)     24 offset of the payload in its message
 *  4 CRC32C of the first 48, itself 0       32 bytes of the whole message
 *  8 sequence of the frame in its stream   40 length of the payload; 44 tag of the message
 * 16 number of the message; 20 grants      48 seal: CRC32C of the payload and zeroes, or a GCM tag
 *
 * Heads, the sizes of greeting and welcome, where a greeting has its magic and version, and a refusal by
 * version stay as they are, so that ends of different versions can say so.
 *
 * All little-endian. grants: how many receives the sender of this frame has posted, ever. */
#ifndef TCP_FRAME_H
#define TCP_FRAME_H

#include <longhaul/link.h>

/* Sizes on the wire. A head is a cache line; a payload is bounded so that a stranger's length can't
 * ask for memory. */
enum {
    FRAMES_VERSION = 4, /* of all that goes over a stream */
    HEAD_BYTES = 64,
    HEAD_PROVEN = 48, /* of it, covered by a GCM tag */
    SEAL_BYTES = 16,
    TOKEN_BYTES = 16,
    HELLO_BYTES = 80,
    WELCOME_BYTES = 24,
    PAYLOAD_MAX = 4 << 20,
    PAD_BYTES = 32 << 10,
    STREAMS_MAX = 64,
};
#define MESSAGE_MAX ((uint64_t)1 << 40)

enum {
    FRAME_DATA = 1,
    FRAME_GRANT = 2, /* nothing but grants                                                   */
    FRAME_END = 3,   /* the sender gives up: offset is -status, message and tag what it is about,
                        total the bytes of its receive                                        */
    FRAME_HELLO = 4,
    FRAME_WELCOME = 5,
    FRAME_PAD = 6, /* of no message: nobody looks at what it holds (tcp_warm.c) */
    FRAME_TYPES
};

/* A head, by its fields; sequence and stream are set by stream_add. */
typedef struct frame {
    uint8_t type;
    uint16_t stream;
    uint64_t sequence;
    uint32_t message, grants;
    uint64_t offset, total;
    uint32_t length, tag;
    uint8_t seal[SEAL_BYTES];
} frame_t;

void frame_write(const frame_t *f, uint8_t out[HEAD_BYTES]);
/* NULL, or why these bytes are no head. */
const char *frame_read(const uint8_t in[HEAD_BYTES], frame_t *out);

/* Of the payload, where no tag is used. */
bool frame_crc_is(const frame_t *f, uint32_t crc);
void frame_set_crc(frame_t *f, uint32_t crc);

typedef struct greeting { /* what the end that dials says first on every stream */
    lh_hello_t hello;
    uint32_t to; /* rank that it wants to reach */
    uint32_t security;
    uint32_t stream, streams; /* number of this one; how many it would like */
    uint32_t step; /* of which a larger number has to be a multiple; 0: it may not be larger */
    uint8_t token[TOKEN_BYTES]; /* of the connection that this stream joins, for stream > 0 */
} greeting_t;

/* NULL, or why these bytes are none; likewise below. */
void greeting_write(const greeting_t *g, uint8_t out[HELLO_BYTES]);
const char *greeting_read(const uint8_t in[HELLO_BYTES], greeting_t *out);
/* Whether it is one, but not of FRAMES_VERSION: then nothing else in it is to be read. */
bool greeting_is_of_other_version(const uint8_t in[HELLO_BYTES]);

/* Why a greeting is turned away; each has its sentence in welcome_reason. */
enum { /* welcome_t.answer */
       WELCOME = 0,
       REFUSED_JOB,
       REFUSED_EPOCH,
       REFUSED_RANK,
       REFUSED_SECURITY,
       REFUSED_TWICE,
       REFUSED_STREAM,
       REFUSED_HOST,
       REFUSED_VERSION,
       REFUSED_ANSWERS
};
/* What the end that listens answers to a greeting. */
typedef struct welcome {
    uint32_t answer;
    uint32_t streams; /* of the connection; REFUSED_VERSION: the listener's FRAMES_VERSION */
    uint8_t token[TOKEN_BYTES];
} welcome_t;

void welcome_write(const welcome_t *w, uint8_t out[WELCOME_BYTES]);
const char *welcome_read(const uint8_t in[WELCOME_BYTES], welcome_t *out);
const char *welcome_reason(uint32_t answer); /* of a refusal */

#endif
