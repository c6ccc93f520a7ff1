/* data/chat.h - conversations as token ids: a line of JSONL with messages, or with a prompt and its
 * answer, becomes one text by a format, and that text ids of which those of answers are known. A line
 * of a job with [chat] pairs has two answers, and becomes two such texts.
 *
 * A format is a table of texts: what stands before the first message, around each, and behind. The
 * ids are those of the whole text, as Transformers' apply_chat_template makes them. An answer's ids
 * are those behind the ids of what stands before it, and they go to the end of what the model is to
 * write: the end mark belongs to the answer, the line feed after it does not. */
#ifndef DATA_CHAT_H
#define DATA_CHAT_H

#include <config/job.h>
#include <data/chat_text.h>
#include <format/json.h>
#include <tokenizer/tokenizer.h>

/* What a job's [chat] comes to with its tokenizer. Never changes, and is shared by threads. */
typedef struct chat chat_t;

/* Refuses a part that is malformed, and a format that asks for a token which the tokenizer lacks.
 * The tokenizer must outlive it; job need not. */
lh_status_t chat_new(const job_chat_t *job, const tokenizer_t *tokenizer,
                     chat_t **out) LH_MUST_CHECK;
void chat_free(chat_t *c); /* NULL does nothing */
/* "chatml", by CHAT_*. */
enum { CHAT_NAME = 16 };
void chat_format_name(uint32_t format, char out[CHAT_NAME]);

/* What one thread needs to encode. Zero-initialise; chat_scratch_free leaves an empty one. */
typedef struct chat_scratch {
    json_document_t *line;
    chat_text_t written;
    token_ids_t before;
} chat_scratch_t;
void chat_scratch_free(chat_scratch_t *scratch);

/* Appends a line's ids to ids, and to parts how many of them are no answer, are one, are none, ...
 * in turn; none of these numbers is 0, and there are at least two. With pairs those of the chosen
 * answer's conversation come first, then a 0, then those of the rejected one's. LH_INVALID: fail_reason() says
 * what is wrong with the line. */
lh_status_t chat_encode(const chat_t *c, chat_scratch_t *scratch, tokenizer_scratch_t *tokenizer,
                        const char *line, size_t length, token_ids_t *ids,
                        token_ids_t *parts) LH_MUST_CHECK;

/* Appends the ids of what is to be answered, and of what stands before an answer: of a line whose
 * messages end with a user's, or of its prompt. A line's answer is not looked at. */
lh_status_t chat_encode_line(const chat_t *c, chat_scratch_t *scratch,
                             tokenizer_scratch_t *tokenizer, const char *line, size_t length,
                             token_ids_t *ids) LH_MUST_CHECK;
/* Likewise of a text that is a user's only message. */
lh_status_t chat_encode_prompt(const chat_t *c, chat_scratch_t *scratch,
                               tokenizer_scratch_t *tokenizer, const char *text, size_t length,
                               token_ids_t *ids) LH_MUST_CHECK;
/* The token that ends an answer in this format; -1: it is spelt in several, or not at all. */
lh_status_t chat_end(const chat_t *c, tokenizer_scratch_t *tokenizer, int32_t *out) LH_MUST_CHECK;

#endif
