/* added_tokens.c - finds added tokens as Hugging Face's AddedVocabulary does. */
#include <tokenizer/added_tokens.h>

#include <base/memory.h>

lh_status_t added_tokens_add(added_tokens_t *a, added_token_t token)
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

void added_tokens_free(added_tokens_t *a)
{
    for (size_t i = 0; i < a->count; i++)
        mem_free(a->tokens[i].content);
    mem_free(a->tokens);
    byte_trie_free(&a->raw);
    byte_trie_free(&a->normalized);
    *a = (added_tokens_t){0};
}

static uint8_t class_before(const char *text, size_t at)
{
    lh_assert(at > 0);
    size_t start = at;
    do
        start--;
    while (start > 0 && at - start < 4 && ((unsigned char)text[start] & 0xC0) == 0x80);

    uint32_t size;
    return unicode_class(
        utf8_decode((const unsigned char *)text + start, (const unsigned char *)text + at, &size));
}

static uint8_t class_after(const char *text, size_t length, size_t at, uint32_t *size)
{
    return unicode_class(
        utf8_decode((const unsigned char *)text + at, (const unsigned char *)text + length, size));
}

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

static size_t skip_spaces_back(const char *text, size_t at, size_t from)
{
    while (at > from && (class_before(text, at) & CLASS_SPACE) != 0) {
        at--;
        while (at > from && ((unsigned char)text[at] & 0xC0) == 0x80)
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

added_match_t added_tokens_find(const added_tokens_t *a, const byte_trie_t *among,
                                token_spelling_t spelling, const char *text, size_t length,
                                size_t floor, size_t from)
{
    /* A token that took the spaces behind it puts the floor behind where the search goes on. */
    lh_assert(floor <= length && from <= length);
    const added_match_t none = {-1, length, length, length};
    if (among->count == 0 || (spelling == SPELLING_AS_REFERENCE && a->searched == 0)) return none;

    for (size_t at = from; at < length;) {
        int32_t index;
        const size_t size = among->first[(uint8_t)text[at]] == 0
                                ? 0
                                : byte_trie_longest(among, text + at, length - at, &index);
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
