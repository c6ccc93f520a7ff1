/* wordpiece.c - words by the longest piece first.
 *
 * Looking for the longest piece is one walk through a double array, from the root to where it ends,
 * so a word costs about as many steps as it has bytes. */
#include <subword/wordpiece.h>

#include <base/memory.h>
#include <base/text.h>

/* The array of all pieces that begin with the prefix and go on behind it. */
static lh_status_t make_array(const char *path, const piece_table_t *pieces, const char *prefix,
                              double_array_t *out)
{
    const size_t skip = strlen(prefix);
    size_t count = 0;
    array_entry_t *entries = mem_array(pieces->count, sizeof(*entries));
    if (entries == NULL) return LH_NO_MEMORY;

    for (uint32_t id = 0; id < pieces->count; id++) {
        piece_t piece;
        if (!piece_table_get(pieces, id, &piece) || piece.length <= skip) continue;
        if (memcmp(piece.bytes, prefix, skip) != 0) continue;
        entries[count++] = (array_entry_t){piece.bytes + skip, (uint32_t)(piece.length - skip),
                                           (int32_t)id};
    }
    const lh_status_t status = double_array_make(path, entries, count, out);
    mem_free(entries);
    return status;
}

lh_status_t wordpiece_finish(wordpiece_t *w, const char *path, const piece_table_t *pieces,
                             const char *prefix)
{
    const lh_status_t status = make_array(path, pieces, "", &w->first);
    return status == LH_OK ? make_array(path, pieces, prefix, &w->rest) : status;
}

void wordpiece_free(wordpiece_t *w)
{
    double_array_free(&w->first);
    double_array_free(&w->rest);
}

lh_status_t wordpiece_scratch_open(wordpiece_scratch_t *s)
{
    s->cache = mem_array(WORD_SLOTS, sizeof(*s->cache));
    return s->cache == NULL ? LH_NO_MEMORY : LH_OK;
}

void wordpiece_scratch_close(wordpiece_scratch_t *s)
{
    mem_free(s->cache);
    *s = (wordpiece_scratch_t){0};
}

static bool has_more_characters(const char *text, size_t length, uint64_t most)
{
    if (length <= most) return false; /* as many bytes at most */
    return text_utf8_count(text, length) > most;
}

/* False: the word can't be written as pieces to its end; ids before that are left in out. */
static bool write_pieces(const wordpiece_t *w, const char *text, size_t length, token_ids_t *out)
{
    for (size_t at = 0; at < length;) {
        int32_t id = -1;
        const size_t size = double_array_longest(at == 0 ? &w->first : &w->rest, text + at,
                                                 length - at, &id);
        if (size == 0) return false;
        out->ids[out->count++] = id;
        at += size;
    }
    return true;
}

lh_status_t wordpiece_encode(const wordpiece_t *w, wordpiece_scratch_t *s, const char *text,
                             size_t length, size_t readable, token_ids_t *out)
{
    lh_assert(readable >= length && out->capacity - out->count >= length);
    const size_t start = out->count;
    uint64_t key[3] = {0};
    word_cached_t *cached = NULL;

    if (length == 0) return LH_OK;
    if (length <= WORD_BYTES) {
        word_key(text, length, readable, key);
        cached = &s->cache[word_slot(key)];
        if (word_is(cached, key, (uint8_t)length)) {
            for (size_t i = 0; i < cached->count; i++)
                out->ids[out->count++] = cached->ids[i];
            return LH_OK;
        }
    }
    if (has_more_characters(text, length, w->characters) || !write_pieces(w, text, length, out)) {
        out->count = start;
        if (w->unknown < 0)
            return fail(LH_INVALID,
                        "the word '%.*s' is not in the vocabulary, and the tokenizer's unk_token "
                        "is not a piece",
                        (int)(length < 64 ? length : 64), text);
        out->ids[out->count++] = w->unknown;
    }
    if (cached == NULL || out->count - start > WORD_IDS) return LH_OK;
    memcpy(cached->key, key, sizeof(cached->key));
    cached->tag = (uint8_t)length;
    cached->count = (uint8_t)(out->count - start);
    memcpy(cached->ids, out->ids + start, cached->count * sizeof(*cached->ids));
    return LH_OK;
}
