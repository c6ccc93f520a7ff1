/* tokenizer_parts.c - what the readers of several file kinds do alike. */
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <tokenizer/tokenizer_parts.h>

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

/* An added token has up to nine values, a merge three; the rest is small. */
static uint64_t most_values(const tokenizer_limits_t *limits)
{
    enum { REST = 100000 };
    return UINT64_C(9) * limits->vocabulary + UINT64_C(3) * limits->merges + REST;
}

lh_status_t tokenizer_load_json(const tokenizer_t *t, const char *path, json_document_t **out)
{
    return json_read(path, t->limits.file_bytes, most_values(&t->limits), out);
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
        const size_t size = utf8_encode(byte_character((uint8_t)byte), spelt);
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
    }
    t->bpe.byte_fallback = true;
    return LH_OK;
}

lh_status_t tokenizer_characters(tokenizer_t *t)
{
    t->bpe.characters = true;
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece) || piece.length == 0) continue;
        uint32_t size;
        const unsigned char *p = (const unsigned char *)piece.bytes;
        const uint32_t c = utf8_decode(p, p + piece.length, &size);
        if (size != piece.length) continue;
        const lh_status_t status = bpe_add_character(&t->bpe, c, id);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

bool tokenizer_piece_bytes(piece_t piece, text_t *out)
{
    const unsigned char *p = (const unsigned char *)piece.bytes, *end = p + piece.length;

    out->length = 0;
    for (uint32_t size; p < end; p += size) {
        const int byte = byte_of_character(utf8_decode(p, end, &size));
        if (byte < 0) return false;
        text_append_n(out, &(char){(char)byte}, 1);
    }
    return true;
}

lh_status_t tokenizer_add_merge(tokenizer_t *t, const char *where, const char *left,
                                size_t left_length, const char *right, size_t right_length,
                                uint32_t rank)
{
    text_t both = {0};
    text_append_n(&both, left, left_length);
    text_append_n(&both, right, right_length);
    lh_status_t status = text_status(&both);
    if (status != LH_OK) {
        text_free(&both);
        return status;
    }
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

lh_status_t tokenizer_add_token(tokenizer_t *t, const char *path, added_token_t token)
{
    const uint32_t id = (uint32_t)token.id;
    piece_t other;
    const int32_t known = piece_table_find(&t->pieces, token.content, token.length);
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

lh_status_t tokenizer_use_byte_level(tokenizer_t *t, pattern_t pattern)
{
    t->kind = "byte-level BPE";
    t->spelled = SPELLED_BYTE_LEVEL;
    t->decoder.byte_level = true;
    if (pattern == PATTERN_UNKNOWN) return LH_OK;
    return pretokenizer_add(&t->pretokenizer,
                            (split_step_t){.by = SPLIT_PATTERN, .pattern = pattern});
}

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

/* The first of the names that is a piece or an added token; -1: none. */
static int32_t first_known(const tokenizer_t *t, const char *const *names)
{
    for (; *names != NULL; names++) {
        const int32_t id = tokenizer_find(t, *names);
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
    if (json_is_text(value)) return tokenizer_find(t, json_text(value));
    return value != NULL ? -1 : first_known(t, names);
}

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
    t->special.unk = t->bpe.unknown != BPE_NONE ? (int32_t)t->bpe.unknown
                                                : special_of(t, config, "unk_token", unk);
    t->special.eod = first_known(t, eod);
    if (t->special.eod < 0) t->special.eod = t->special.eos;
}
