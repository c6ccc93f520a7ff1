/* data/chat_text.h - a conversation as one text: what a line's messages, or its prompt and an answer,
 * become by a format, and where in it answers begin and end.
 *
 * Nothing here knows of ids, and of tokens no more than how they are spelt. Where an answer begins is
 * said in bytes of the text, which chat.c turns into ids, so that each can be read without the other.
 * A format is plain data that chat.c makes and owns. */
#ifndef DATA_CHAT_TEXT_H
#define DATA_CHAT_TEXT_H

#include <base/text.h>
#include <format/json.h>

/* In the parts of a format: where the text of a message stands, and in the joined one the system's. */
#define CHAT_CONTENT "{content}"
#define CHAT_SYSTEM "{system}"

enum {
    CHAT_PART_BEGIN,
    CHAT_PART_SYSTEM,
    CHAT_PART_USER,
    CHAT_PART_REPLY,
    CHAT_PART_TAIL,
    CHAT_PART_JOINED,
    CHAT_PARTS
};

/* Whose messages lose white space at both ends. JOINED: a user's together with the system's that
 * stands in it, and neither of them by itself. */
enum {
    CHAT_TRIM_SYSTEM = 1u << 0,
    CHAT_TRIM_USER = 1u << 1,
    CHAT_TRIM_REPLY = 1u << 2,
    CHAT_TRIM_JOINED = 1u << 3,
    CHAT_TRIM_EACH = CHAT_TRIM_SYSTEM | CHAT_TRIM_USER | CHAT_TRIM_REPLY
};

/* Texts of a format's own tokens, which messages may not spell. */
enum { CHAT_MARKS = 16 };

/* A format as a job has it. */
typedef struct chat_format {
    const char *name;                                     /* for sentences */
    char *messages, *prompt, *answer, *chosen, *rejected; /* members of a line */
    /* With escapes and {bos}, {eos} already written out; {content} and {system} are left. A user's and
     * a reply have {content}, a reply once. */
    text_t part[CHAT_PARTS];
    char *marks[CHAT_MARKS];
    uint32_t mark_count;
    uint32_t trim;   /* CHAT_TRIM_* */
    bool joins_last; /* a system message stands in the last user's message and not in the first */
    const char *unsaid; /* what a system message says where there is none; static; NULL: nothing */
} chat_format_t;

/* A conversation as it was written last. Zero-initialise; chat_text_free leaves an empty one. */
typedef struct chat_text {
    text_t text;
    /* Where in the text something begins that is an answer (even) or is none (odd), after byte 0,
     * which begins what is none. */
    size_t *cuts;
    size_t cut_count, cut_capacity;
} chat_text_t;
void chat_text_free(chat_text_t *text);

/* Each writes *out anew. root: the object of a line; f and root outlive the call. LH_INVALID:
 * fail_reason() says what is wrong with what was to be written. */

/* The line's conversation. There is at least one answer in it. */
lh_status_t chat_text_line(const chat_format_t *f, const json_value_t *root,
                           chat_text_t *out) LH_MUST_CHECK;
/* Of a line with two answers the conversation that ends with the one that `key` names, f->chosen or
 * f->rejected: what both begin with in common is no answer. */
lh_status_t chat_text_side(const chat_format_t *f, const json_value_t *root, const char *key,
                           chat_text_t *out) LH_MUST_CHECK;
/* What is to be answered, and what stands before an answer: of a line whose messages end with a
 * user's, or of its prompt. A line's answer is not looked at. */
lh_status_t chat_text_question(const chat_format_t *f, const json_value_t *root,
                               chat_text_t *out) LH_MUST_CHECK;
/* Likewise of a text that is a user's only message. */
lh_status_t chat_text_prompt(const chat_format_t *f, const char *text, size_t length,
                             chat_text_t *out) LH_MUST_CHECK;

#endif
