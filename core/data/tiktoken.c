/* tiktoken.c - reads a rank file: lines of base64(bytes) and a rank, which is the id and the order
 * in which pieces are joined. Text is cut and special tokens are numbered as Llama 3 does. */
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <data/tokenizer_inside.h>

enum { SPECIAL_TOKENS = 256, LINE_MOST = 4096 };

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes into out, which has room for length / 4 * 3. Returns the size, or -1. */
static long base64_decode(const char *text, size_t length, char *out)
{
    long size = 0;

    if (length == 0 || length % 4 != 0) return -1;
    const size_t padding = text[length - 1] != '=' ? 0 : text[length - 2] != '=' ? 1 : 2;
    for (size_t i = 0; i < length; i += 4) {
        uint32_t bits = 0;
        const size_t digits = i + 4 == length ? 4 - padding : 4;
        for (size_t k = 0; k < 4; k++) {
            const int digit = k < digits ? base64_digit(text[i + k]) : 0;
            if (digit < 0) return -1;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (size_t k = 0; k + 1 < digits; k++)
            out[size++] = (char)(bits >> (16 - 8 * k));
    }
    return size;
}

static lh_status_t read_line(tokenizer_t *t, const char *path, size_t number, const char *line,
                             size_t length)
{
    char bytes[LINE_MOST];
    const char *space = memchr(line, ' ', length);
    const size_t text = space == NULL ? 0 : (size_t)(space - line);
    uint64_t rank = 0;
    bool is_number = space != NULL && length > text + 1 && length < text + 20;

    for (size_t i = text + 1; is_number && i < length; i++) {
        is_number = line[i] >= '0' && line[i] <= '9';
        rank = rank * 10 + (uint64_t)(line[i] - '0');
    }
    if (text > LINE_MOST)
        return fail(LH_INVALID, "%s:%zu: a piece of %zu base64 digits; at most %d are supported",
                    path, number, text, LINE_MOST);
    const long size = base64_decode(line, text, bytes);
    if (size <= 0 || !is_number)
        return fail(LH_INVALID,
                    "%s:%zu: '%.*s' found, base64 text, a space and a rank are expected", path,
                    number, length > 40 ? 40 : (int)length, line);
    if (rank >= t->limits.vocabulary)
        return fail(LH_INVALID, "%s:%zu: the rank is %llu; below %u is supported", path, number,
                    (unsigned long long)rank, t->limits.vocabulary);
    return tokenizer_add_piece(t, path, (uint32_t)rank, bytes, (size_t)size);
}

static lh_status_t read_lines(tokenizer_t *t, const char *path, const char *bytes, size_t length)
{
    lh_status_t status = LH_OK;
    size_t number = 1;

    for (size_t at = 0; at < length && status == LH_OK; number++) {
        const char *line = bytes + at, *end = memchr(line, '\n', length - at);
        size_t size = end == NULL ? length - at : (size_t)(end - line);
        at += size + 1;
        if (size > 0 && line[size - 1] == '\r') size--;
        if (size > 0) status = read_line(t, path, number, line, size);
    }
    return status;
}

/* Joining two neighbours whose bytes together are a piece is a merge of that piece's rank,
 * whichever two they are. */
static lh_status_t make_merges(tokenizer_t *t, const char *path)
{
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece)) continue;
        for (size_t cut = 1; cut < piece.length; cut++) {
            const int32_t left = piece_table_find(&t->pieces, piece.bytes, cut);
            if (left < 0) continue;
            const int32_t right = piece_table_find(&t->pieces, piece.bytes + cut,
                                                   piece.length - cut);
            if (right < 0) continue;
            const lh_status_t status = tokenizer_join(t, path, (uint32_t)left, (uint32_t)right, id,
                                                      id);
            if (status != LH_OK) return status;
        }
    }
    return LH_OK;
}

static lh_status_t add_special(tokenizer_t *t, const char *path, uint32_t id, const char *content)
{
    added_token_t token = {.id = (int32_t)id,
                           .content = mem_text(content),
                           .length = strlen(content),
                           .special = true,
                           .implicit = true};
    if (token.content == NULL) return LH_NO_MEMORY;
    return tokenizer_add_token(t, path, token);
}

static lh_status_t add_specials(tokenizer_t *t, const char *path)
{
    static const char *const names[] = {
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
        "<|image|>",
    };
    enum { NAMED = sizeof(names) / sizeof(*names) };
    const uint32_t first = (uint32_t)t->pieces.count;
    lh_status_t status = LH_OK;

    if ((uint64_t)first + SPECIAL_TOKENS > t->limits.vocabulary)
        return fail(LH_INVALID, "%s: %u ranks leave no room for %d special tokens below %u", path,
                    first, SPECIAL_TOKENS, t->limits.vocabulary);
    for (uint32_t i = 0; i < SPECIAL_TOKENS && status == LH_OK; i++) {
        char reserved[48];
        (void)snprintf(reserved, sizeof(reserved), "<|reserved_special_token_%u|>", i - NAMED + 2);
        status = add_special(t, path, first + i, i < NAMED ? names[i] : reserved);
    }
    return status;
}

lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes, size_t length)
{
    t->spelled = SPELLED_AS_BYTES;
    t->kind = "tiktoken";
    lh_status_t status = read_lines(t, path, bytes, length);
    for (unsigned byte = 0; byte < 256 && status == LH_OK; byte++) {
        const int32_t id = piece_table_find(&t->pieces, &(char){(char)byte}, 1);
        if (id < 0)
            status = fail(
                LH_INVALID,
                "%s: the byte 0x%02X has no rank; each of the 256 is expected to have one", path,
                byte);
        else
            t->bpe.bytes[byte] = (uint32_t)id;
    }
    if (status != LH_OK) return status;

    t->bpe.first_alias = (uint32_t)t->pieces.count;
    t->bpe.whole = &t->pieces;
    t->cuts = true;
    status = make_merges(t, path);
    if (status == LH_OK) status = tokenizer_cut_words(t);
    if (status == LH_OK)
        status = pretokenizer_add(&t->pretokenizer,
                                  (split_step_t){.by = SPLIT_PATTERN, .pattern = PATTERN_LLAMA3});
    if (status == LH_OK) status = add_specials(t, path);
    if (status == LH_OK) tokenizer_find_special(t, NULL);
    return status;
}
