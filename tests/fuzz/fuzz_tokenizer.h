/* fuzz_tokenizer.h - a tokenizer made of an input, and what any tokenizer must bear. */
#ifndef TESTS_FUZZ_TOKENIZER_H
#define TESTS_FUZZ_TOKENIZER_H

#include <fuzz/fuzz.h>

#include <string.h>

#include <tokenizer/tokenizer.h>

static const char fuzz_text[] =
    "  Hello, w\xC3\xB6rld 12345's\n\n\tend<s> \xE2\x96\x81\xF0\x9F\x98\x80"
    "aaaa aaaa\xFF\xC3 \xEF\xBF\xBD</s><|endoftext|> ";

static inline void fuzz_encode(const tokenizer_t *t, tokenizer_scratch_t *scratch, const char *text,
                               size_t length, token_spelling_t spelling)
{
    token_ids_t ids = {0};
    text_t back = {0};
    if (fuzz_accepted(tokenizer_encode(t, scratch, text, length, spelling, &ids))) {
        for (size_t i = 0; i < ids.count; i++)
            FUZZ_ASSERT(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_vocab_size(t));
        (void)fuzz_accepted(tokenizer_decode(t, ids.ids, ids.count, false, &back));
    }
    text_free(&back);
    token_ids_free(&ids);
}

static inline void fuzz_tokenizer(const char *path)
{
    static const tokenizer_limits_t limits = {.vocabulary = 5000};
    tokenizer_t *t;
    tokenizer_scratch_t *scratch;
    if (!fuzz_accepted(tokenizer_load(path, &limits, &t))) return;
    FUZZ_ASSERT(tokenizer_vocab_size(t) <= 5000);
    if (fuzz_accepted(tokenizer_scratch_new(t, &scratch))) {
        for (token_spelling_t how = SPELLING_AS_REFERENCE; how <= SPELLING_IS_TOKEN; how++)
            fuzz_encode(t, scratch, fuzz_text, sizeof(fuzz_text) - 1, how);
        tokenizer_scratch_free(scratch);
    }
    tokenizer_free(t);
}

#endif
