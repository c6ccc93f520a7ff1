/* op_pattern.c - parses "op a b -> x; op x c -> y | ...", and refuses what no recording could match.
 */
#include <graph/op_pattern.h>

#include <base/memory.h>
#include <base/text.h>

enum { WORD_BYTES = 64, WAYS = 8 };

typedef struct reader {
    const char *at;
    op_t *fused;
    op_t *const *ops;
    uint32_t op_count;
    char words[PATTERN_WORDS][WORD_BYTES];
    bool made[PATTERN_WORDS]; /* by a call so far */
} reader_t;

static lh_status_t refuse(const reader_t *p, const char *what, const char *name)
{
    return fail(LH_INVALID, "op %s fuses '%s': %s%s%s", p->fused->row.name, p->fused->row.fuses,
                what, name[0] == '\0' ? "" : " ", name);
}

/* The next word, or one of ; | -> ; empty at the end. */
static lh_status_t next(reader_t *p, char word[WORD_BYTES])
{
    p->at += strspn(p->at, " ");
    size_t length = strcspn(p->at, " ;|");
    if (length == 0 && *p->at != '\0') length = 1;
    if (length >= WORD_BYTES) return refuse(p, "a word is too long", "");
    memcpy(word, p->at, length);
    word[length] = '\0';
    p->at += length;
    return LH_OK;
}

static bool ends_call(const char *word)
{
    return word[0] == ';' || word[0] == '|' || word[0] == '\0';
}

static const op_t *op_named(const reader_t *p, const char *name)
{
    for (uint32_t i = 0; i < p->op_count; i++)
        if (text_equal(p->ops[i]->row.name, name)) return p->ops[i];
    return NULL;
}

/* The word's number; a new one gets the fused op's slot of that name. */
static lh_status_t word_number(reader_t *p, op_pattern_t *pattern, const char *word, uint8_t *out)
{
    const op_t *op = p->fused;
    for (uint32_t i = 0; i < pattern->word_count; i++)
        if (text_equal(p->words[i], word)) {
            *out = (uint8_t)i;
            return LH_OK;
        }
    if (pattern->word_count == PATTERN_WORDS) return refuse(p, "there are too many words", "");
    const uint32_t number = pattern->word_count++;
    memcpy(p->words[number], word, WORD_BYTES);
    p->made[number] = false;
    pattern->slot[number] = PATTERN_NONE;
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++)
        if (text_equal(op->slot_name[s], word)) pattern->slot[number] = (uint8_t)s;
    *out = (uint8_t)number;
    return LH_OK;
}

/* A word in an input slot: made by a call before, or an input of the fused op. */
static lh_status_t input_take(reader_t *p, op_pattern_t *pattern, const char *word, uint8_t *out)
{
    const lh_status_t status = word_number(p, pattern, word, out);
    if (status != LH_OK) return status;
    if (p->made[*out] || pattern->slot[*out] < p->fused->in_count) return LH_OK;
    return refuse(p, "no call before gives", word);
}

static lh_status_t output_take(reader_t *p, op_pattern_t *pattern, const char *word, uint8_t *out)
{
    *out = PATTERN_NONE;
    if (text_equal(word, "_")) return LH_OK;
    const lh_status_t status = word_number(p, pattern, word, out);
    if (status != LH_OK) return status;
    if (p->made[*out] || pattern->slot[*out] < p->fused->in_count)
        return refuse(p, "a call gives what is there already:", word);
    p->made[*out] = true;
    return LH_OK;
}

/* "op a b -> x y", up to and with what ends it. */
static lh_status_t call_read(reader_t *p, op_pattern_t *pattern, char word[WORD_BYTES])
{
    lh_status_t status = next(p, word);
    if (status != LH_OK) return status;
    if (pattern->call_count == LH_FUSES) return refuse(p, "there are too many calls", "");
    pattern_call_t *call = &pattern->calls[pattern->call_count++];
    memset(call->word, PATTERN_NONE, sizeof(call->word));
    call->op = op_named(p, word);
    if (call->op == NULL) return refuse(p, "there is no op", word);

    bool output = false;
    uint32_t slot = 0, end = call->op->in_count;
    while ((status = next(p, word)) == LH_OK && !ends_call(word)) {
        if (text_equal(word, "->") && !output) {
            output = true;
            slot = call->op->in_count;
            end = slot + call->op->out_count;
            continue;
        }
        if (slot == end) return refuse(p, "too many values for", call->op->row.name);
        status = output ? output_take(p, pattern, word, &call->word[slot])
                        : input_take(p, pattern, word, &call->word[slot]);
        if (status != LH_OK) return status;
        slot++;
    }
    return status;
}

/* Matching goes from the last call back over values: each call must give one to a later call, and
 * the fused op must get what it needs and give what it has. */
static lh_status_t way_check(const reader_t *p, const op_pattern_t *pattern)
{
    const op_t *op = p->fused;
    for (uint32_t c = 0; c + 1 < pattern->call_count; c++) {
        bool used = false;
        for (uint32_t d = c + 1; d < pattern->call_count; d++)
            for (uint32_t i = 0; i < pattern->calls[d].op->in_count; i++)
                for (uint32_t o = pattern->calls[c].op->in_count; o < OP_SLOTS; o++)
                    used = used || (pattern->calls[c].word[o] != PATTERN_NONE &&
                                    pattern->calls[c].word[o] == pattern->calls[d].word[i]);
        if (!used)
            return refuse(p, "no later call takes what is given by",
                          pattern->calls[c].op->row.name);
    }
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++) {
        bool named = op->optional[s];
        for (uint32_t w = 0; w < pattern->word_count; w++)
            named = named || pattern->slot[w] == s;
        if (!named) return refuse(p, "nothing is its slot", op->slot_name[s]);
    }
    uint32_t same_struct = 0;
    for (uint32_t c = 0; c < pattern->call_count; c++)
        same_struct += pattern->calls[c].op->row.attributes_bytes == op->row.attributes_bytes;
    if (op->row.fuse == NULL && op->row.attributes_bytes != 0 && same_struct != 1)
        return refuse(p, "its attributes are not those of one call, and it has no fuse()", "");
    return LH_OK;
}

static lh_status_t ways_read(reader_t *p, op_pattern_t ways[WAYS], uint32_t *count)
{
    char word[WORD_BYTES];
    do {
        if (*count == WAYS) return refuse(p, "there are too many ways", "");
        op_pattern_t *way = &ways[(*count)++];
        *way = (op_pattern_t){0};
        lh_status_t status;
        do
            status = call_read(p, way, word);
        while (status == LH_OK && word[0] == ';');
        if (status == LH_OK) status = way_check(p, way);
        if (status != LH_OK) return status;
    } while (word[0] == '|');
    return LH_OK;
}

lh_status_t op_patterns_parse(op_t *op, op_t *const *ops, uint32_t count)
{
    if (op->row.fuses == NULL) return LH_OK;
    op_pattern_t ways[WAYS];
    uint32_t way_count = 0;
    reader_t p = {.at = op->row.fuses, .fused = op, .ops = ops, .op_count = count};
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++)
        if (op->alias[s] != 0) return refuse(&p, "an op that writes in place can't", "");
    const lh_status_t status = ways_read(&p, ways, &way_count);
    if (status != LH_OK) return status;
    op->patterns = mem_array(way_count, sizeof(*op->patterns));
    if (op->patterns == NULL) return LH_NO_MEMORY;
    memcpy(op->patterns, ways, way_count * sizeof(*ways));
    op->pattern_count = way_count;
    return LH_OK;
}
