/* tokenizer_encode.c - the way of a text: added tokens are cut out, what lies between is
 * normalised, cut into pieces and encoded. */
#include <base/memory.h>
#include <data/tokenizer_inside.h>

enum { TEXT_MOST = 1 << 29 }; /* bytes of one text; normalising may make it six times longer */

struct tokenizer_scratch {
    bpe_scratch_t bpe;
    normalize_scratch_t normalize;
    pretokenize_scratch_t pretokenize;
    text_t valid, marked;
};

/* One call of tokenizer_encode. */
typedef struct encoding {
    const tokenizer_t *t;
    tokenizer_scratch_t *scratch;
    token_spelling_t spelling;
    token_ids_t *out;
} encoding_t;

void token_ids_free(token_ids_t *ids)
{
    mem_free(ids->ids);
    *ids = (token_ids_t){0};
}

lh_status_t tokenizer_scratch_new(const tokenizer_t *t, tokenizer_scratch_t **out)
{
    tokenizer_scratch_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;

    lh_status_t status = bpe_scratch_open(&t->bpe, &s->bpe);
    if (status == LH_OK) status = normalize_scratch_open(&t->normalizer, &s->normalize);
    if (status == LH_OK) status = pretokenize_scratch_open(&t->pretokenizer, &s->pretokenize);
    if (status != LH_OK) {
        tokenizer_scratch_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void tokenizer_scratch_free(tokenizer_scratch_t *s)
{
    if (s == NULL) return;
    bpe_scratch_close(&s->bpe);
    normalize_scratch_close(&s->normalize);
    pretokenize_scratch_close(&s->pretokenize);
    text_free(&s->valid);
    text_free(&s->marked);
    mem_free(s);
}

static lh_status_t reserve_ids(token_ids_t *out, size_t more)
{
    int32_t *ids = mem_grow(out->ids, &out->capacity, out->count + more, sizeof(*ids));
    if (ids == NULL) return LH_NO_MEMORY;
    out->ids = ids;
    return LH_OK;
}

static lh_status_t append_id(token_ids_t *out, int32_t id)
{
    const lh_status_t status = reserve_ids(out, 1);
    if (status == LH_OK) out->ids[out->count++] = id;
    return status;
}

static lh_status_t encode_pieces(const encoding_t *e, const char *text, size_t length)
{
    bpe_scratch_t *scratch = &e->scratch->bpe;
    lh_status_t status = reserve_ids(e->out, length);
    if (status != LH_OK) return status;
    if (!e->t->cuts) return bpe_encode_text(&e->t->bpe, scratch, text, length, e->out);

    const struct span_list *list;
    status = pretokenize(&e->t->pretokenizer, &e->scratch->pretokenize, text, length, &list);
    for (size_t i = 0; status == LH_OK && i < list->count; i++) {
        const text_span_t span = list->spans[i];
        status = bpe_encode(&e->t->bpe, scratch, text + span.start, span.end - span.start,
                            length - span.start, e->out);
    }
    return status;
}

static void mark_spaces(const char *text, size_t length, const char *mark, text_t *out)
{
    for (size_t at = 0; at < length;) {
        const char *space = memchr(text + at, ' ', length - at);
        const size_t end = space == NULL ? length : (size_t)(space - text);
        text_append_n(out, text + at, end - at);
        if (space != NULL) text_append(out, mark);
        at = end + 1;
    }
}

/* `first`: the piece begins where the whole text does. */
static lh_status_t encode_marked(const encoding_t *e, const char *text, size_t length, bool first)
{
    const pretokenizer_t *p = &e->t->pretokenizer;
    text_t *marked = &e->scratch->marked;

    if (length == 0) return LH_OK;
    if (p->prefix_space && text[0] == ' ') return encode_pieces(e, text, length);
    if (!p->prefix_space && !p->metaspace) return encode_pieces(e, text, length);

    marked->length = 0;
    marked->failed = false;
    if (p->prefix_space) {
        text_append(marked, " ");
        text_append_n(marked, text, length);
    } else {
        const size_t size = strlen(p->mark);
        const bool has_mark = text[0] == ' ' ||
                              (length >= size && memcmp(text, p->mark, size) == 0);
        if (!has_mark && (p->prepend == PREPEND_ALWAYS || (p->prepend == PREPEND_FIRST && first)))
            text_append(marked, p->mark);
        mark_spaces(text, length, p->mark, marked);
    }
    if (text_status(marked) != LH_OK) return LH_NO_MEMORY;
    return encode_pieces(e, marked->data, marked->length);
}

static lh_status_t encode_between(const encoding_t *e, const char *text, size_t length, bool first)
{
    const added_tokens_t *added = &e->t->added;
    if (length == 0) return LH_OK;

    lh_status_t status = normalize(&e->t->normalizer, &e->scratch->normalize, text, length, &text,
                                   &length);
    for (size_t at = 0, next = 0; status == LH_OK && next < length;) {
        const added_match_t match = added_tokens_find(added, &added->normalized, e->spelling, text,
                                                      length, at, next);
        status = encode_marked(e, text + at, match.start - at, first && at == 0);
        if (status == LH_OK && match.id >= 0) status = append_id(e->out, match.id);
        at = match.end;
        next = match.next;
    }
    return status;
}

/* Puts U+FFFD for every byte that is not UTF-8. */
static lh_status_t make_valid(text_t *out, const char **text, size_t *length)
{
    const unsigned char *p = (const unsigned char *)*text, *end = p + *length;

    out->length = 0;
    out->failed = false;
    while (p < end) {
        uint32_t size;
        if (utf8_decode(p, end, &size) == UNICODE_BAD)
            text_append_n(out, "\xEF\xBF\xBD", 3);
        else
            text_append_n(out, (const char *)p, size);
        p += size;
    }
    *text = out->data;
    *length = out->length;
    return text_status(out);
}

lh_status_t tokenizer_encode(const tokenizer_t *t, tokenizer_scratch_t *scratch, const char *text,
                             size_t length, token_spelling_t spelling, token_ids_t *out)
{
    const encoding_t e = {t, scratch, spelling, out};
    lh_status_t status = LH_OK;

    if (length > TEXT_MOST)
        return fail(LH_INVALID, "a text of %zu bytes is too long to encode: at most %d", length,
                    TEXT_MOST);
    if (t->bpe.characters && !utf8_valid(text, length))
        status = make_valid(&scratch->valid, &text, &length);
    for (size_t at = 0, next = 0; status == LH_OK && next < length;) {
        const added_match_t match = added_tokens_find(&t->added, &t->added.raw, spelling, text,
                                                      length, at, next);
        status = encode_between(&e, text + at, match.start - at, at == 0);
        if (status == LH_OK && match.id >= 0) status = append_id(out, match.id);
        at = match.end;
        next = match.next;
    }
    return status;
}
