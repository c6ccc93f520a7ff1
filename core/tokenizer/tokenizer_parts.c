/* tokenizer_parts.c - what the readers of several file kinds do alike: pieces, merges, added tokens
 * and special ones within the limits of a hostile file; the search for added tokens in a text; and
 * where a text may be cut into words without changing its ids. */
#include <tokenizer/tokenizer_parts.h>

#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>

lh_status_t tokenizer_add_file(tokenizer_t *t, const char *path)
{
    char **files = mem_grow(t->files, &t->file_room, t->file_count + 1, sizeof(*files));
    if (files == NULL) return LH_NO_MEMORY;
    t->files = files;
    files[t->file_count] = mem_text(path);
    if (files[t->file_count] == NULL) return LH_NO_MEMORY;
    t->file_count++;
    return LH_OK;
}

/* How many values a JSON file may hold before it is refused: an added token has up to nine, a merge
 * three; the rest is small. */
static uint64_t most_values(const tokenizer_limits_t *limits)
{
    enum { REST = 100000 };
    return UINT64_C(9) * limits->vocabulary + UINT64_C(3) * limits->merges + REST;
}

lh_status_t tokenizer_load_json(const tokenizer_t *t, const char *path, json_document_t **out)
{
    return json_read(path, t->limits.file_bytes, most_values(&t->limits), out);
}

/* -1: none of the 64 */
static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

long tokenizer_base64(const char *text, size_t length, char *out)
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

lh_status_t tokenizer_add_piece(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                size_t length)
{
    if (length > t->limits.token_bytes)
        return fail(LH_INVALID,
                    "%s: the piece with the id %u has %zu bytes; at most %u are supported", path,
                    id, length, t->limits.token_bytes);
    return piece_table_add(&t->pieces, path, id, bytes, length);
}

lh_status_t tokenizer_join(tokenizer_t *t, const char *path, uint32_t left, uint32_t right,
                           uint32_t rank, uint32_t made)
{
    lh_assert(left != BPE_NONE && right != BPE_NONE && made != BPE_NONE);
    if (t->bpe.merge_count >= t->limits.merges)
        return fail(LH_INVALID, "%s: more than %u merges, the limit", path, t->limits.merges);
    return bpe_add_merge(&t->bpe, left, right, rank, made);
}

lh_status_t tokenizer_check_id(const tokenizer_t *t, const char *path, int64_t id,
                               const char *piece)
{
    if (id >= 0 && id < (int64_t)t->limits.vocabulary) return LH_OK;
    return fail(LH_INVALID, "%s: '%s' has the id %lld; ids from 0 to %u are supported", path, piece,
                (long long)id, t->limits.vocabulary - 1);
}

lh_status_t tokenizer_read_vocabulary(tokenizer_t *t, const char *path,
                                      const json_value_t *vocabulary)
{
    if (json_size(vocabulary) == 0) return fail(LH_INVALID, "%s: the vocabulary is empty", path);
    for (json_walk_t w = json_walk(vocabulary); json_next(&w);) {
        if (!json_is_whole(w.value))
            return fail(LH_INVALID, "%s: '%s' has no whole number for an id", path, w.key);
        const int64_t id = json_whole(w.value);
        lh_status_t status = tokenizer_check_id(t, path, id, w.key);
        if (status == LH_OK)
            status = tokenizer_add_piece(t, path, (uint32_t)id, w.key, strlen(w.key));
        if (status != LH_OK) return status;
    }
    t->bpe.first_alias = (uint32_t)t->pieces.count;
    return LH_OK;
}

/* Real files lack bytes that UTF-8 does not have or that their text did not: these are unknown.
 * Without plain ASCII, though, it is no byte-level vocabulary. */
lh_status_t tokenizer_bytes_from_alphabet(tokenizer_t *t, const char *path)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char spelt[4];
        const size_t size = text_utf8_encode(piece_character_of_byte((uint8_t)byte), spelt);
        const int32_t id = piece_table_find(&t->pieces, spelt, size);
        if (id >= 0)
            t->bpe.bytes[byte] = (uint32_t)id;
        else if ((byte >= 0x20 && byte <= 0x7E) || byte == '\n')
            return fail(LH_INVALID, "%s: the byte 0x%02X has no piece of its own, spelt '%.*s'",
                        path, byte, (int)size, spelt);
    }
    return LH_OK;
}

lh_status_t tokenizer_bytes_from_fallback(tokenizer_t *t, const char *path)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char spelt[8];
        (void)snprintf(spelt, sizeof(spelt), "<0x%02X>", byte);
        const int32_t id = piece_table_find(&t->pieces, spelt, 6);
        if (id < 0)
            return fail(LH_INVALID, "%s: byte_fallback is on, but the piece '%s' is missing", path,
                        spelt);
        t->bpe.bytes[byte] = (uint32_t)id;
        t->unigram.bytes[byte] = id;
    }
    t->bpe.byte_fallback = t->model == MODEL_BPE;
    t->unigram.byte_fallback = t->model == MODEL_UNIGRAM;
    return LH_OK;
}

/* A piece of a single character is that character's symbol; texts start as characters then. */
lh_status_t tokenizer_characters(tokenizer_t *t)
{
    t->bpe.characters = true;
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece) || piece.length == 0) continue;
        uint32_t size;
        const unsigned char *p = (const unsigned char *)piece.bytes;
        const uint32_t c = text_utf8_decode(p, p + piece.length, &size);
        if (size != piece.length) continue;
        const lh_status_t status = bpe_add_character(&t->bpe, c, id);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* The symbols at one place: pieces of a single character, but for what marks the place. */
static lh_status_t add_placed_characters(tokenizer_t *t, uint32_t place)
{
    const char *before = (place & BPE_CONTINUES) != 0 ? t->continuing : "";
    const char *behind = (place & BPE_ENDS) != 0 ? t->ending : "";
    const size_t front = strlen(before), back = strlen(behind);

    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece) || piece.length <= front + back) continue;
        if (memcmp(piece.bytes, before, front) != 0) continue;
        if (memcmp(piece.bytes + piece.length - back, behind, back) != 0) continue;
        uint32_t size;
        const size_t length = piece.length - front - back;
        const unsigned char *p = (const unsigned char *)piece.bytes + front;
        const uint32_t c = text_utf8_decode(p, p + length, &size);
        const int byte = t->bpe.characters ? 0 : piece_byte_of_character(c);
        if (size != length || byte < 0) continue;
        const uint32_t character = t->bpe.characters ? c : (uint32_t)byte;
        const lh_status_t status = bpe_add_character(&t->bpe, character | place, id);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

lh_status_t tokenizer_placed_characters(tokenizer_t *t)
{
    const uint32_t places = (t->continuing != NULL ? BPE_CONTINUES : 0u) |
                            (t->ending != NULL ? BPE_ENDS : 0u);
    lh_status_t status = LH_OK;

    lh_assert(places != 0);
    t->bpe.characters = t->spelled != SPELLED_BYTE_LEVEL;
    t->bpe.places = places;
    for (uint32_t i = 0; i < 4 && status == LH_OK; i++) {
        const uint32_t place = i * BPE_CONTINUES; /* none, either, both */
        if ((place & ~places) == 0) status = add_placed_characters(t, place);
    }
    return status;
}

/* What a merge makes is not in the file: it is the piece that is spelt as both together, without
 * what says of the right one that it goes on. */
lh_status_t tokenizer_add_merge(tokenizer_t *t, const char *where, const char *left,
                                size_t left_length, const char *right, size_t right_length,
                                uint32_t rank)
{
    const char *prefix = t->continuing == NULL ? "" : t->continuing;
    const size_t size = strlen(prefix);
    if (size > right_length || memcmp(right, prefix, size) != 0)
        return fail(LH_INVALID,
                    "%s joins '%.*s' and '%.*s', but the second does not begin with '%s'", where,
                    (int)left_length, left, (int)right_length, right, prefix);
    text_t both = {0};
    text_append_n(&both, left, left_length);
    text_append_n(&both, right + size, right_length - size);
    lh_status_t status = text_status(&both);
    if (status != LH_OK) {
        text_free(&both);
        return status;
    }
    /* The three spellings that must be pieces, so that a refusal can name the one that is not. */
    const struct {
        const char *bytes;
        size_t length;
        int32_t id;
    } parts[] = {
        {left, left_length, piece_table_find(&t->pieces, left, left_length)},
        {right, right_length, piece_table_find(&t->pieces, right, right_length)},
        {both.data, both.length, piece_table_find(&t->pieces, both.data, both.length)},
    };
    for (size_t i = 0; i < 3 && status == LH_OK; i++)
        if (parts[i].id < 0)
            status = fail(LH_INVALID,
                          "%s joins '%.*s' and '%.*s', but '%.*s' is not a piece of the vocabulary",
                          where, (int)left_length, left, (int)right_length, right,
                          (int)parts[i].length, parts[i].bytes);
    if (status == LH_OK)
        status = tokenizer_join(t, where, (uint32_t)parts[0].id, (uint32_t)parts[1].id, rank,
                                (uint32_t)parts[2].id);
    text_free(&both);
    return status;
}

/* Frees token.content on failure. */
static lh_status_t added_tokens_add(added_tokens_t *a, added_token_t token)
{
    added_token_t *tokens = mem_grow(a->tokens, &a->room, a->count + 1, sizeof(*tokens));
    if (tokens == NULL) {
        mem_free(token.content);
        return LH_NO_MEMORY;
    }
    a->tokens = tokens;
    tokens[a->count++] = token;
    a->searched += token.implicit ? 0 : 1;
    return LH_OK;
}

/* An added token may be a piece of the model as well, under the same id: files of Hugging Face list
 * their special tokens in both places. */
lh_status_t tokenizer_add_token(tokenizer_t *t, const char *path, added_token_t token)
{
    lh_assert(token.id >= 0);
    const uint32_t id = (uint32_t)token.id;
    piece_t other;
    const int32_t known = piece_table_find(&t->pieces, token.content, token.length);
    /* The id is that of another piece. */
    const bool taken = piece_table_get(&t->pieces, id, &other) && known != token.id;
    lh_status_t status = LH_OK;

    if (token.length == 0) {
        status = fail(LH_INVALID, "%s: the added token %d is empty", path, token.id);
    } else if (token.length > t->limits.token_bytes) {
        status = fail(LH_INVALID, "%s: the added token %d has %zu bytes; at most %u are supported",
                      path, token.id, token.length, t->limits.token_bytes);
    } else if (known >= 0 && known != token.id) {
        status = fail(LH_INVALID,
                      "%s: '%s' has the id %d as an added token and %d in the vocabulary", path,
                      token.content, token.id, known);
    } else if (taken) {
        status = fail(LH_INVALID, "%s: '%s' and the piece '%.*s' both have the id %d", path,
                      token.content, (int)other.length, other.bytes, token.id);
    } else if (piece_table_get(&t->added_pieces, id, &other) && other.length == token.length &&
               memcmp(other.bytes, token.content, token.length) == 0) {
        mem_free(token.content); /* listed twice: the first one stands */
        return LH_OK;
    } else {
        status = piece_table_add(&t->added_pieces, path, id, token.content, token.length);
    }
    if (status != LH_OK) {
        mem_free(token.content);
        return status;
    }
    return added_tokens_add(&t->added, token);
}

lh_status_t tokenizer_add_special(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                  size_t length)
{
    const added_token_t token = {.id = (int32_t)id,
                                 .content = mem_text_n(bytes, length),
                                 .length = length,
                                 .special = true,
                                 .implicit = true};
    return token.content == NULL ? LH_NO_MEMORY : tokenizer_add_token(t, path, token);
}

lh_status_t tokenizer_read_token(tokenizer_t *t, const char *path, int32_t id, const char *content,
                                 const json_value_t *entry, bool ordinary_normalized)
{
    const json_value_t *normalized = json_member(entry, "normalized");
    added_token_t token = {
        .id = id,
        .content = mem_text(content),
        .length = strlen(content),
        .special = json_is_yes(json_member(entry, "special")),
        .normalized = json_is_yes(normalized),
        .single_word = json_is_yes(json_member(entry, "single_word")),
        .lstrip = json_is_yes(json_member(entry, "lstrip")),
        .rstrip = json_is_yes(json_member(entry, "rstrip")),
    };
    if (normalized == NULL && ordinary_normalized) token.normalized = !token.special;
    return token.content == NULL ? LH_NO_MEMORY : tokenizer_add_token(t, path, token);
}

lh_status_t tokenizer_use_byte_level(tokenizer_t *t, pattern_t pattern)
{
    t->kind = "byte-level BPE";
    t->spelled = SPELLED_BYTE_LEVEL;
    t->decoder.byte_level = true;
    if (pattern == PATTERN_UNKNOWN) return LH_OK;
    return pretokenizer_add(&t->pretokenizer,
                            (split_step_t){.by = SPLIT_PATTERN, .pattern = pattern});
}

/* The config is noted among the tokenizer's files, as export and digests need it too. */
lh_status_t tokenizer_load_config(tokenizer_t *t, const char *path, json_document_t **out)
{
    char *folder = path_folder(path);
    char *config = folder == NULL ? NULL : path_join(folder, "tokenizer_config.json");
    mem_free(folder);
    if (config == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    *out = NULL;
    if (file_exists(config)) {
        status = tokenizer_load_json(t, config, out);
        if (status == LH_OK) status = tokenizer_add_file(t, config);
        if (status != LH_OK && *out != NULL) {
            json_free(*out);
            *out = NULL;
        }
    }
    mem_free(config);
    return status;
}

int32_t tokenizer_id_of(const tokenizer_t *t, const char *piece)
{
    const int32_t id = piece_table_find(&t->added_pieces, piece, strlen(piece));
    return id >= 0 ? id : piece_table_find(&t->pieces, piece, strlen(piece));
}

/* The first of the names that is a piece or an added token; -1: none. */
static int32_t first_known(const tokenizer_t *t, const char *const *names)
{
    for (; *names != NULL; names++) {
        const int32_t id = tokenizer_id_of(t, *names);
        if (id >= 0) return id;
    }
    return -1;
}

/* "bos_token": "<s>" or {"content": "<s>"} or null. What the file does not mention is guessed. */
static int32_t special_of(const tokenizer_t *t, const json_value_t *config, const char *key,
                          const char *const *names)
{
    const json_value_t *value = json_member(config, key);
    if (json_is_map(value)) value = json_member(value, "content");
    if (json_is_text(value)) return tokenizer_id_of(t, json_text(value));
    return value != NULL ? -1 : first_known(t, names);
}

/* Names by which special tokens are known, the more particular first. */
void tokenizer_find_special(tokenizer_t *t, const json_value_t *config)
{
    static const char *const bos[] = {"<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>", NULL};
    static const char *const eos[] = {"</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", NULL};
    static const char *const pad[] = {"<pad>", "<|padding|>", "[PAD]", "<|finetune_right_pad_id|>",
                                      NULL};
    static const char *const unk[] = {"<unk>", "[UNK]", NULL};
    static const char *const eod[] = {"<|endoftext|>", "<|end_of_text|>", NULL};

    t->special.bos = special_of(t, config, "bos_token", bos);
    t->special.eos = special_of(t, config, "eos_token", eos);
    t->special.pad = special_of(t, config, "pad_token", pad);
    t->special.unk = t->unknown >= 0 ? t->unknown : special_of(t, config, "unk_token", unk);
    t->special.eod = first_known(t, eod);
    if (t->special.eod < 0) t->special.eod = t->special.eos;
}

void tokenizer_free_added(added_tokens_t *a)
{
    for (size_t i = 0; i < a->count; i++)
        mem_free(a->tokens[i].content);
    mem_free(a->tokens);
    piece_trie_free(&a->raw);
    piece_trie_free(&a->normalized);
    *a = (added_tokens_t){0};
}

/* The class of the character that ends before `at`: goes back over up to three bytes that follow a
 * first one. */
static uint8_t class_before(const char *text, size_t at)
{
    lh_assert(at > 0);
    size_t start = at;
    do
        start--;
    while (start > 0 && at - start < 4 && text_utf8_follows(text[start]));

    uint32_t size;
    return unicode_class(text_utf8_decode((const unsigned char *)text + start,
                                          (const unsigned char *)text + at, &size));
}

/* The class of the character at `at`, and its size in bytes. */
static uint8_t class_after(const char *text, size_t length, size_t at, uint32_t *size)
{
    return unicode_class(text_utf8_decode((const unsigned char *)text + at,
                                          (const unsigned char *)text + length, size));
}

/* Whether the token at [start, end) counts: not where the caller wants special ones to be text, and
 * with single_word only beside what is no word. */
static bool is_taken(const added_token_t *token, token_spelling_t spelling, const char *text,
                     size_t length, size_t start, size_t end)
{
    uint32_t size;

    if (spelling == SPELLING_IS_TEXT && (token->special || token->implicit)) return false;
    if (spelling == SPELLING_AS_REFERENCE && token->implicit) return false;
    if (!token->single_word) return true;
    if (start > 0 && (class_before(text, start) & CLASS_WORD) != 0) return false;
    return end == length || (class_after(text, length, end, &size) & CLASS_WORD) == 0;
}

/* The start of the white space before `at`, not before `from`. skip_spaces, below, gives the end of
 * that which begins at `at`. */
static size_t skip_spaces_back(const char *text, size_t at, size_t from)
{
    while (at > from && (class_before(text, at) & CLASS_SPACE) != 0) {
        at--;
        while (at > from && text_utf8_follows(text[at]))
            at--;
    }
    return at;
}

static size_t skip_spaces(const char *text, size_t length, size_t at)
{
    uint32_t size;
    while (at < length && (class_after(text, length, at, &size) & CLASS_SPACE) != 0)
        at += size;
    return at;
}

/* A token that is_taken refuses is passed over whole, as the reference goes on behind a match. */
added_match_t tokenizer_find_added(const added_tokens_t *a, const piece_trie_t *among,
                                   token_spelling_t spelling, const char *text, size_t length,
                                   size_t floor, size_t from)
{
    /* A token that took the spaces behind it puts the floor behind where the search goes on. */
    lh_assert(floor <= length && from <= length);
    const added_match_t none = {-1, length, length, length};
    if (among->count == 0 || (spelling == SPELLING_AS_REFERENCE && a->searched == 0)) return none;

    for (size_t at = from; at < length;) {
        /* Most bytes of a text begin no added token, which a look into the table of first bytes
         * tells. */
        if (among->first[(uint8_t)text[at]] == 0) {
            at++;
            continue;
        }
        int32_t index;
        const size_t size = piece_trie_longest(among, text + at, length - at, &index);
        if (size == 0) {
            at++;
            continue;
        }
        const size_t after = at + size;
        lh_assert(index >= 0 && (size_t)index < a->count);
        const added_token_t *token = &a->tokens[index];
        if (is_taken(token, spelling, text, length, at, after)) {
            size_t start = token->lstrip ? skip_spaces_back(text, at, floor) : at;
            if (start < floor) start = floor;
            const size_t end = token->rstrip ? skip_spaces(text, length, after) : after;
            return (added_match_t){token->id, start, end, after};
        }
        at = after;
    }
    return none;
}

/* From here on: where a text may be cut before its pieces are joined. True if a space mark (U+2581)
 * stands in the piece behind a character that is none. */
static bool has_mark_inside(piece_t piece)
{
    static const char mark[] = "\xE2\x96\x81";

    for (size_t i = 1; i + 3 <= piece.length; i++) {
        if (memcmp(piece.bytes + i, mark, 3) != 0) continue;
        if (i < 3 || memcmp(piece.bytes + i - 3, mark, 3) != 0) return true;
    }
    return false;
}

/* Then a mark does not always begin a word, and a text can't be cut before it. */
static bool any_has_mark_inside(const piece_table_t *pieces)
{
    for (uint32_t id = 0; id < pieces->count; id++) {
        piece_t piece;
        if (piece_table_get(pieces, id, &piece) && has_mark_inside(piece)) return true;
    }
    return false;
}

static bool is_byte_symbol(const bpe_t *b, uint64_t symbol)
{
    for (size_t byte = 0; byte < 256; byte++)
        if (b->bytes[byte] == symbol) return true;
    return false;
}

/* True if a byte's piece takes part in a join. */
static bool joins_bytes(const bpe_t *b)
{
    uint32_t low = UINT32_MAX, high = 0; /* mostly a run of ids, which no join has */

    for (size_t byte = 0; byte < 256; byte++) {
        if (b->bytes[byte] < low) low = b->bytes[byte];
        if (b->bytes[byte] > high) high = b->bytes[byte];
    }
    /* Looking at all merges takes a moment, so the range of ids tells first whether one may be a
     * byte's. */
    for (size_t slot = 0; slot < b->merge_slots; slot++) {
        const uint64_t pair = b->merges[slot].pair, left = pair >> 32, right = pair & UINT32_MAX;
        if (pair == BPE_FREE) continue;
        if (left >= low && left <= high && is_byte_symbol(b, left)) return true;
        if (right >= low && right <= high && is_byte_symbol(b, right)) return true;
    }
    return false;
}

/* Unknown bytes may be one id, or be left out so that their neighbours meet: no cut beside them
 * then. The bytes 0xC0, 0xC1 and from 0xF5 on are in no UTF-8 and do not count. */
static bool has_unknown_bytes(const bpe_t *b)
{
    for (size_t byte = 0; byte < 0xF5; byte++)
        if (b->bytes[byte] == BPE_NONE && byte != 0xC0 && byte != 0xC1) return true;
    return false;
}

/* Unknown characters next to each other may be one id: no cut beside them. */
static void join_unknown(bpe_t *b)
{
    for (unsigned char c = 0; c < 128; c++) {
        if (bpe_find_character(b, c) < b->first_alias) continue;
        for (unsigned char other = 0; other < 128; other++) {
            piece_neighbours_add_ascii(&b->neighbours, c, other);
            piece_neighbours_add_ascii(&b->neighbours, other, c);
        }
    }
}

/* Adds the neighbours in all pieces, as bytes. What is not in the alphabet is an added token, which
 * texts are searched for before. */
static lh_status_t add_pieces(tokenizer_t *t)
{
    text_t bytes = {0};

    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece)) continue;
        if (t->spelled == SPELLED_BYTE_LEVEL) {
            bytes.length = 0;
            if (!piece_append_bytes(piece, &bytes)) continue;
            piece = (piece_t){bytes.data, bytes.length};
        }
        piece_neighbours_add(&t->bpe.neighbours, piece.bytes, piece.length);
    }
    const lh_status_t status = text_status(&bytes);
    text_free(&bytes);
    return status;
}

/* Each reason not to cut is one that changes ids: pieces that are written as their parts, bytes or
 * characters without a symbol, whose runs may be one id, and bytes that joins take part in, as a
 * cut between characters would not see them. Where unknown characters are written as one symbol
 * only ASCII is told apart, as any two others may be a run of them. */
lh_status_t tokenizer_cut_words(tokenizer_t *t)
{
    bpe_t *b = &t->bpe;
    const bool unknown = b->characters && !b->byte_fallback;

    if (b->unused != NULL) return LH_OK; /* how they are written depends on the whole text */
    if (b->places != 0) return LH_OK;    /* a word that was cut would have other ends */
    if (!b->characters && has_unknown_bytes(b)) return LH_OK;
    if (b->byte_fallback && joins_bytes(b)) return LH_OK;
    if (unknown && (b->unknown == BPE_NONE || bpe_find_character(b, 0x2581) >= b->first_alias ||
                    any_has_mark_inside(&t->pieces)))
        return LH_OK;

    lh_status_t status = piece_neighbours_open(&b->neighbours, unknown ? 0 : t->pieces.pieces);
    if (status == LH_OK) status = add_pieces(t);
    if (status != LH_OK) return status;
    if (unknown) join_unknown(b);
    b->by_words = true;
    return LH_OK;
}
