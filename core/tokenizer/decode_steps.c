/* decode_steps.c - the steps of a decoder, from one list of tokens to the other.
 *
 * Every step is a loop over tokens that appends to the next list. Two lists take turns; nothing here
 * is fast, as what is decoded is what somebody reads. */
#include <tokenizer/decode_steps.h>

#include <base/memory.h>

/* What tokens may become: real decoders stay far below it. */
enum { GROWTH = 64, GROWTH_MORE = 64 * 1024 };

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

static void decode_step_free(decode_step_t *step)
{
    mem_free(step->from);
    mem_free(step->to);
    pattern_regex_free(step->regex);
}

lh_status_t decode_steps_add(decode_steps_t *d, decode_step_t step)
{
    decode_step_t *steps = mem_grow(d->steps, &d->room, d->count + 1, sizeof(*steps));
    if (steps == NULL) {
        decode_step_free(&step);
        return LH_NO_MEMORY;
    }
    d->steps = steps;
    steps[d->count++] = step;
    return LH_OK;
}

void decode_steps_free(decode_steps_t *d)
{
    for (size_t i = 0; i < d->count; i++)
        decode_step_free(&d->steps[i]);
    mem_free(d->steps);
    *d = (decode_steps_t){0};
}

lh_status_t decode_list_end(decode_list_t *list)
{
    size_t *ends = mem_grow(list->ends, &list->room, list->count + 1, sizeof(*ends));
    if (ends == NULL) return LH_NO_MEMORY;
    list->ends = ends;
    ends[list->count++] = list->bytes.length;
    if (list->most > 0 && list->bytes.length > list->most)
        return fail(LH_INVALID, "the tokenizer's decoder makes more than %zu bytes of a text",
                    list->most);
    return LH_OK;
}

void decode_list_free(decode_list_t *list)
{
    text_free(&list->bytes);
    mem_free(list->ends);
    *list = (decode_list_t){0};
}

static piece_t list_token_at(const decode_list_t *list, size_t index)
{
    const size_t start = index == 0 ? 0 : list->ends[index - 1];
    const char *bytes = list->bytes.data == NULL ? "" : list->bytes.data;
    return (piece_t){bytes + start, list->ends[index] - start};
}

static bool token_starts(piece_t token, const char *text, size_t length)
{
    return token.length >= length && memcmp(token.bytes, text, length) == 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

int decode_byte(piece_t piece)
{
    if (piece.length != 6 || memcmp(piece.bytes, "<0x", 3) != 0 || piece.bytes[5] != '>') return -1;
    const int high = hex_digit(piece.bytes[3]), low = hex_digit(piece.bytes[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A token with a character outside the alphabet, such as an added one, stays as it is spelt. */
static lh_status_t decode_byte_level(const decode_list_t *from, decode_list_t *to)
{
    for (size_t i = 0; i < from->count; i++) {
        const piece_t token = list_token_at(from, i);
        if (!piece_append_bytes(token, &to->bytes))
            text_append_n(&to->bytes, token.bytes, token.length);
    }
    return decode_list_end(to);
}

/* Ends a run of bytes that begins at `start` of the list's bytes: one token, or U+FFFD for each. */
static lh_status_t end_run(decode_list_t *to, size_t start)
{
    const size_t count = to->bytes.length - start;
    if (count == 0 || to->bytes.failed) return LH_OK;
    if (text_utf8_valid(to->bytes.data + start, count)) return decode_list_end(to);

    lh_status_t status = LH_OK;
    to->bytes.length = start;
    for (size_t i = 0; i < count && status == LH_OK; i++) {
        text_append(&to->bytes, replacement);
        status = decode_list_end(to);
    }
    return status;
}

static lh_status_t decode_byte_fallback(const decode_list_t *from, decode_list_t *to)
{
    lh_status_t status = LH_OK;
    size_t start = 0; /* of the run of bytes at the end of `to` */

    for (size_t i = 0; i < from->count && status == LH_OK; i++) {
        const piece_t token = list_token_at(from, i);
        const int byte = decode_byte(token);
        if (byte >= 0) {
            text_append_n(&to->bytes, &(char){(char)byte}, 1);
            continue;
        }
        status = end_run(to, start);
        text_append_n(&to->bytes, token.bytes, token.length);
        if (status == LH_OK) status = decode_list_end(to);
        start = to->bytes.length;
    }
    return status == LH_OK ? end_run(to, start) : status;
}

static lh_status_t decode_fuse(const decode_list_t *from, decode_list_t *to)
{
    text_append_n(&to->bytes, from->bytes.data == NULL ? "" : from->bytes.data, from->bytes.length);
    return decode_list_end(to);
}

/* Appends the token with one string in the place of another, from left to right. */
static void append_replaced(piece_t token, const char *what, size_t length, const char *by,
                            size_t by_length, text_t *out)
{
    for (size_t at = 0; at < token.length;) {
        const char *found = length == 0 ? NULL
                                        : memmem(token.bytes + at, token.length - at, what, length);
        const size_t end = found == NULL ? token.length : (size_t)(found - token.bytes);
        text_append_n(out, token.bytes + at, end - at);
        if (found != NULL) text_append_n(out, by, by_length);
        at = found == NULL ? token.length : end + length;
    }
}

static lh_status_t append_matched(const decode_step_t *step, pattern_match_t *match, piece_t token,
                                  text_t *out)
{
    bool found = token.length > 0;
    size_t at = 0, end;

    for (bool behind = false; found; behind = true, at = end) {
        size_t start;
        const lh_status_t status = pattern_regex_find(step->regex, match, token.bytes, token.length,
                                                      at, behind, &found, &start, &end);
        if (status != LH_OK) return status;
        text_append_n(out, token.bytes + at, start - at);
        if (found) text_append_n(out, step->to, step->to_length);
    }
    return LH_OK;
}

static lh_status_t decode_replace(const decode_step_t *step, const decode_list_t *from,
                                  decode_list_t *to)
{
    pattern_match_t *match = NULL;
    lh_status_t status = step->regex == NULL ? LH_OK : pattern_match_new(step->regex, &match);

    for (size_t i = 0; i < from->count && status == LH_OK; i++) {
        const piece_t token = list_token_at(from, i);
        if (step->regex != NULL)
            status = append_matched(step, match, token, &to->bytes);
        else
            append_replaced(token, step->from, step->from_length, step->to, step->to_length,
                            &to->bytes);
        if (status == LH_OK) status = decode_list_end(to);
    }
    pattern_match_free(match);
    return status;
}

static void append_stripped(const decode_step_t *step, piece_t token, text_t *out)
{
    const size_t size = step->from_length;
    lh_assert(size > 0);
    for (size_t i = 0; i < step->start && token_starts(token, step->from, size); i++) {
        token.bytes += size;
        token.length -= size;
    }
    for (size_t i = 0; i < step->stop && token.length >= size &&
                       memcmp(token.bytes + token.length - size, step->from, size) == 0;
         i++)
        token.length -= size;
    text_append_n(out, token.bytes, token.length);
}

/* As the library's: in this order, each over the whole token. */
static void clean_up(text_t *token, text_t *work)
{
    static const char *const rows[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        work->length = 0;
        append_replaced((piece_t){token->data == NULL ? "" : token->data, token->length},
                        rows[i][0], strlen(rows[i][0]), rows[i][1], strlen(rows[i][1]), work);
        const text_t swap = *token;
        *token = *work;
        *work = swap;
    }
}

static void append_wordpiece(const decode_step_t *step, piece_t token, size_t index, text_t *out)
{
    if (index > 0 && token_starts(token, step->from, step->from_length)) {
        token.bytes += step->from_length;
        token.length -= step->from_length;
    } else if (index > 0) {
        text_append(out, " ");
    }
    text_append_n(out, token.bytes, token.length);
}

/* What a step that makes one token of one appends for it. */
static void append_by_step(const decode_step_t *step, piece_t token, size_t index, bool last,
                           text_t *out)
{
    switch (step->by) {
    case DECODE_STRIP: append_stripped(step, token, out); break;
    case DECODE_METASPACE:
        append_replaced(token, step->from, step->from_length, " ",
                        index == 0 && step->first ? 0 : 1, out);
        break;
    case DECODE_WORDPIECE: append_wordpiece(step, token, index, out); break;
    case DECODE_SUFFIX:
        append_replaced(token, step->from, step->from_length, " ", last ? 0 : 1, out);
        break;
    case DECODE_CTC: append_replaced(token, step->from, step->from_length, "", 0, out); break;
    default: lh_assert(false);
    }
}

/* Of a run of equal tokens CTC takes the first, and none that becomes empty. */
static lh_status_t decode_each(const decode_step_t *step, const decode_list_t *from,
                               decode_list_t *to)
{
    text_t made = {0}, work = {0};
    lh_status_t status = LH_OK;

    for (size_t i = 0; i < from->count && status == LH_OK; i++) {
        const piece_t token = list_token_at(from, i);
        const piece_t before = i == 0 ? (piece_t){"", 0} : list_token_at(from, i - 1);
        const bool again = i > 0 && before.length == token.length &&
                           memcmp(before.bytes, token.bytes, token.length) == 0;
        if (step->by == DECODE_CTC && again) continue;
        made.length = 0;
        append_by_step(step, token, i, i + 1 == from->count, &made);
        if (step->cleanup) clean_up(&made, &work);
        status = text_status(&made);
        if (status != LH_OK || (step->by == DECODE_CTC && made.length == 0)) continue;
        const piece_t done = {made.data == NULL ? "" : made.data, made.length};
        if (step->by == DECODE_CTC && step->cleanup)
            append_replaced(done, step->to, step->to_length, " ", 1, &to->bytes);
        else
            text_append_n(&to->bytes, done.bytes, done.length);
        status = decode_list_end(to);
    }
    text_free(&made);
    text_free(&work);
    return status;
}

static lh_status_t decode_apply(const decode_step_t *step, const decode_list_t *from,
                                decode_list_t *to)
{
    switch (step->by) {
    case DECODE_BYTE_LEVEL: return decode_byte_level(from, to);
    case DECODE_BYTE_FALLBACK: return decode_byte_fallback(from, to);
    case DECODE_FUSE: return decode_fuse(from, to);
    case DECODE_REPLACE: return decode_replace(step, from, to);
    default: return decode_each(step, from, to);
    }
}

lh_status_t decode_steps_run(const decode_steps_t *d, decode_list_t *list, text_t *out)
{
    decode_list_t other = {.most = list->bytes.length * GROWTH + GROWTH_MORE};
    lh_status_t status = text_status(&list->bytes);

    list->most = other.most;
    for (size_t i = 0; i < d->count && status == LH_OK; i++) {
        other.count = 0;
        other.bytes.length = 0;
        status = decode_apply(&d->steps[i], list, &other);
        if (status == LH_OK) status = text_status(&other.bytes);
        const decode_list_t swap = *list;
        *list = other;
        other = swap;
    }
    if (status == LH_OK && list->bytes.data != NULL)
        text_append_n(out, list->bytes.data, list->bytes.length);
    decode_list_free(&other);
    return status == LH_OK ? text_status(out) : status;
}
