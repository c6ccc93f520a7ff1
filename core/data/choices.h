/* data/choices.h - questions with several continuations of which one is right, as token ids: a line
 * of JSONL each, {"prompt": "...", "choices": ["...", "..."], "answer": 0}.
 *
 * What is encoded, and how it is cut, is what lm-evaluation-harness does for tasks of the kind
 * multiple_choice (TemplateLM._encode_pair and HFLM._loglikelihood_tokens), so that the
 * log-likelihoods of a model are those that it reports:
 *
 *     white space at the prompt's end goes over to what continues it;
 *     ids = encode(prompt), then encode(prompt + delimiter + choice) without as many ids as
 *           encode(prompt) has;
 *     an empty prompt is the begin token, or where the tokenizer has none the end token;
 *     of what is longer than the model takes, ids at the front are left out. */
#ifndef DATA_CHOICES_H
#define DATA_CHOICES_H

#include <config/job.h>
#include <tokenizer/tokenizer.h>

/* One continuation of a question. */
typedef struct choice {
    const int32_t *ids; /* [count]: the prompt's, then its own, of which there is at least one */
    uint64_t count, context; /* context: how many are the prompt's, at least one               */
    /* Of the choice's text alone, as its log-likelihood is weighed by. */
    uint64_t characters, bytes;
} choice_t;

typedef struct question {
    size_t first;   /* of its choices among all                     */
    uint32_t count; /* at least one                                 */
    uint32_t right; /* which of them, from 0                        */
} question_t;

/* All questions of a file. Zero-initialise; choices_free leaves an empty one. */
typedef struct choices {
    question_t *questions; /* [count]        */
    size_t count, capacity;
    choice_t *all; /* [all_count] */
    size_t all_count, all_capacity;
    /* Every choice's ids, one behind the other; choices point into it once all are read. */
    token_ids_t ids;
    uint64_t longest; /* ids of the longest choice */
} choices_t;

/* What the lines are, beside the set's keys. */
typedef struct choices_how {
    const job_eval_set_t *set;
    const tokenizer_t *tokenizer;
    uint64_t line_bytes, window_bytes; /* as [limits] */
    uint64_t tokens;                   /* that the model takes at once */
} choices_how_t;

/* Reads set->data. LH_INVALID: "file:line: reason"; what was read so far is in *out. */
lh_status_t choices_read(const choices_how_t *how, choices_t *out) LH_MUST_CHECK;
void choices_free(choices_t *c);

/* Appends one line's question; a line that is refused appends nothing. ids of choices are not set,
 * as their array may still move; choices_read does that. */
lh_status_t choices_add_line(choices_t *c, const choices_how_t *how, tokenizer_scratch_t *scratch,
                             const char *line, size_t length) LH_MUST_CHECK;

#endif
