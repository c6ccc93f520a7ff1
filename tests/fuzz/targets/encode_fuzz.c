/* encode_fuzz.c - text through tokenizers of every kind. The first byte chooses one. Byte-level
 * kinds give back every byte; what was encoded before makes no difference to any of them. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <tokenizer/tokenizer.h>

#define TOKENIZERS LH_TEST_DATA "/tokenizers/"

static const struct {
    const char *path;
    bool lossless;
} kinds[] = {
    {TOKENIZERS "gpt2-tiny", true},
    {TOKENIZERS "mini-llama", false},
    {TOKENIZERS "stories260K", false},
    {TOKENIZERS "stories260K/tokenizer.model", false},
    {TOKENIZERS "spm-bpe.model", false},
    {TOKENIZERS "spm-unigram.model", false},
    {TOKENIZERS "spm-unigram-bytes.model", false},
    {TOKENIZERS "unigram", false},
    {TOKENIZERS "wordpiece", false},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static struct machine {
    tokenizer_t *t;
    tokenizer_scratch_t *scratch; /* lives on: what it remembers may not show */
} machines[KINDS];

static struct machine *machine_of(size_t kind)
{
    struct machine *m = &machines[kind];
    if (m->t == NULL) {
        FUZZ_ASSERT(tokenizer_load(kinds[kind].path, NULL, &m->t) == LH_OK);
        FUZZ_ASSERT(tokenizer_scratch_new(m->t, &m->scratch) == LH_OK);
    }
    return m;
}

static void check(const struct machine *m, const fuzz_part_t *text, token_spelling_t spelling,
                  bool lossless, bool compare)
{
    token_ids_t ids = {0}, again = {0};
    text_t back = {0};
    tokenizer_scratch_t *fresh;
    FUZZ_ASSERT(tokenizer_encode(m->t, m->scratch, text->bytes, text->size, spelling, &ids) ==
                LH_OK);
    for (size_t i = 0; i < ids.count; i++)
        FUZZ_ASSERT(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_vocab_size(m->t));
    if (compare) { /* seldom: what it remembers takes two megabytes */
        FUZZ_ASSERT(tokenizer_scratch_new(m->t, &fresh) == LH_OK);
        FUZZ_ASSERT(tokenizer_encode(m->t, fresh, text->bytes, text->size, spelling, &again) ==
                    LH_OK);
        FUZZ_ASSERT(ids.count == again.count);
        FUZZ_ASSERT(ids.count == 0 ||
                    memcmp(ids.ids, again.ids, ids.count * sizeof(*ids.ids)) == 0);
        tokenizer_scratch_free(fresh);
    }
    FUZZ_ASSERT(tokenizer_decode(m->t, ids.ids, ids.count, false, &back) == LH_OK);
    if (lossless)
        FUZZ_ASSERT(back.length == text->size &&
                    (text->size == 0 || memcmp(back.data, text->bytes, text->size) == 0));
    text_free(&back);
    token_ids_free(&again);
    token_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) return 0;
    const size_t kind = bytes[0] % KINDS;
    fuzz_part_t text;
    fuzz_cut(bytes + 1, size - 1, 0, &text, 1);
    check(machine_of(kind), &text, (token_spelling_t)(bytes[0] / KINDS % 3), kinds[kind].lossless,
          bytes[0] >= 192);
    fuzz_parts_free(&text, 1);
    return 0;
}
