/* choices_fuzz.c - a line of a file of questions. The first byte chooses the tokenizer, what stands
 * before a choice, and how long a text may be. What is taken has choices with a prompt's id in front
 * and ids of their own, all of which are there; what is not leaves the lists as they were. */
#include <fuzz/fuzz.h>

#include <data/choices.h>

#define TOKENIZERS LH_TEST_DATA "/tokenizers/"

static const char *const kinds[] = {TOKENIZERS "gpt2-tiny", TOKENIZERS "stories260K",
                                    TOKENIZERS "unigram", TOKENIZERS "wordpiece"};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), DELIMITERS = DELIMITER_NONE + 1 };

static tokenizer_t *tokenizers[KINDS];
static tokenizer_scratch_t *scratches[KINDS];

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static char prompt[] = "prompt", list[] = "choices", answer[] = "answer";
    if (size == 0) return 0;
    const size_t kind = bytes[0] % KINDS;
    if (tokenizers[kind] == NULL) {
        FUZZ_ASSERT(tokenizer_load(kinds[kind], NULL, &tokenizers[kind]) == LH_OK);
        FUZZ_ASSERT(tokenizer_scratch_new(tokenizers[kind], &scratches[kind]) == LH_OK);
    }
    const job_eval_set_t set = {.kind = EVAL_CHOICE,
                                .bos = tokenizer_special(tokenizers[kind])->bos >= 0 &&
                                       bytes[0] >= 128,
                                .prompt = prompt,
                                .choices = list,
                                .answer = answer,
                                .delimiter = bytes[0] / KINDS % DELIMITERS};
    const choices_how_t how = {
        .set = &set, .tokenizer = tokenizers[kind], .tokens = bytes[0] % 2 == 0 ? 8 : 512};
    choices_t made = {0};
    fuzz_part_t line;
    fuzz_cut(bytes + 1, size - 1, 0, &line, 1);
    const int taken = fuzz_accepted(
        choices_add_line(&made, &how, scratches[kind], line.bytes, line.size));
    FUZZ_ASSERT(made.count == (taken ? 1 : 0));
    size_t ids = 0;
    for (size_t i = 0; i < made.all_count; i++) {
        const choice_t *c = &made.all[i];
        FUZZ_ASSERT(c->context >= 1 && c->count > c->context && c->count <= how.tokens + 1);
        FUZZ_ASSERT(c->characters >= 1 && c->bytes >= c->characters);
        FUZZ_ASSERT(c->count <= made.longest);
        ids += c->count;
    }
    FUZZ_ASSERT(ids == made.ids.count);
    FUZZ_ASSERT(!taken || (made.questions[0].count == made.all_count &&
                           made.questions[0].right < made.questions[0].count));
    choices_free(&made);
    fuzz_parts_free(&line, 1);
    return 0;
}
