/* chat_fuzz.c - a line of a chat file by every format. The first byte chooses the tokenizer, the format
 * and whether lines have two answers. What is taken has parts that are none of them empty, but for the
 * one between two answers, which differ, and are all of its ids; what is not leaves the lists as they
 * were; and both do the same again. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <data/chat.h>

#define TOKENIZERS LH_TEST_DATA "/tokenizers/"

static const char *const kinds[] = {TOKENIZERS "gpt2-tiny", TOKENIZERS "mini-llama",
                                    TOKENIZERS "stories260K", TOKENIZERS "unigram"};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), FORMATS = CHAT_QWEN25 };

static struct machine {
    tokenizer_t *tokenizer;
    tokenizer_scratch_t *scratch;
    chat_t *chat; /* NULL: the tokenizer lacks what the format asks for */
    chat_scratch_t room;
} machines[KINDS][FORMATS][2];

static struct machine *machine_of(size_t kind, uint32_t format, bool pairs)
{
    static char messages[] = "messages", prompt[] = "prompt", answer[] = "answer";
    static char chosen[] = "chosen", rejected[] = "rejected";
    struct machine *m = &machines[kind][format][pairs];
    if (m->tokenizer != NULL) return m;
    const job_chat_t job = {.format = format + 1,
                            .pairs = pairs,
                            .messages = messages,
                            .prompt = prompt,
                            .answer = answer,
                            .chosen = chosen,
                            .rejected = rejected};
    FUZZ_ASSERT(tokenizer_load(kinds[kind], NULL, &m->tokenizer) == LH_OK);
    FUZZ_ASSERT(tokenizer_scratch_new(m->tokenizer, &m->scratch) == LH_OK);
    (void)fuzz_accepted(chat_new(&job, m->tokenizer, &m->chat));
    return m;
}

/* Two answers: 0 stands between the parts of the one and of the other. */
static void pair_check(const token_ids_t *ids, const token_ids_t *parts)
{
    size_t between = 0, empty = 0, first = 0;
    for (size_t i = 0; i < parts->count; i++)
        if (parts->ids[i] == 0) between = i, empty++;
    for (size_t i = 0; i < between; i++)
        first += (size_t)parts->ids[i];
    FUZZ_ASSERT(empty == 1 && between >= 2 && parts->count - between >= 3);
    FUZZ_ASSERT(first != ids->count - first ||
                memcmp(ids->ids, ids->ids + first, first * sizeof(*ids->ids)) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) return 0;
    const bool pairs = bytes[0] / KINDS / FORMATS % 2 == 1;
    struct machine *m = machine_of(bytes[0] % KINDS, bytes[0] / KINDS % FORMATS, pairs);
    fuzz_part_t line;
    token_ids_t ids = {0}, parts = {0}, again = {0}, same = {0};
    if (m->chat == NULL) return 0;
    fuzz_cut(bytes + 1, size - 1, 0, &line, 1);
    const int taken = fuzz_accepted(
        chat_encode(m->chat, &m->room, m->scratch, line.bytes, line.size, &ids, &parts));
    FUZZ_ASSERT(taken || (ids.count == 0 && parts.count == 0));
    FUZZ_ASSERT(!taken || parts.count >= 2);
    size_t sum = 0;
    for (size_t i = 0; i < parts.count; i++) {
        FUZZ_ASSERT(parts.ids[i] > 0 || (pairs && parts.ids[i] == 0));
        sum += (size_t)parts.ids[i];
    }
    FUZZ_ASSERT(sum == ids.count);
    if (taken && pairs) pair_check(&ids, &parts);
    FUZZ_ASSERT(taken == fuzz_accepted(chat_encode(m->chat, &m->room, m->scratch, line.bytes,
                                                   line.size, &again, &same)));
    FUZZ_ASSERT(again.count == ids.count && same.count == parts.count);
    FUZZ_ASSERT(ids.count == 0 || memcmp(ids.ids, again.ids, ids.count * sizeof(*ids.ids)) == 0);
    FUZZ_ASSERT(parts.count == 0 ||
                memcmp(parts.ids, same.ids, parts.count * sizeof(*parts.ids)) == 0);
    token_ids_free(&ids);
    token_ids_free(&parts);
    token_ids_free(&again);
    token_ids_free(&same);
    fuzz_parts_free(&line, 1);
    return 0;
}
