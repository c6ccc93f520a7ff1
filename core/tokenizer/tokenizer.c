/* tokenizer.c - finds out what kind of tokenizer a path names and has it read; encodes and decodes.
 *
 * On the way to ids a text is first searched for added tokens, which are cut out whatever stands
 * around them; what lies between is normalized, searched for those added tokens that are looked for
 * after normalizing, cut into pieces, and each piece is encoded. Nothing on that way holds a copy
 * of the text unless a stage changes it.
 *
 * On the way back each id's piece is appended and changed as the file's decoder says. Only what
 * spans several tokens needs state: a run of byte tokens, which are UTF-8 together, and what is cut
 * off at both ends of the text. */
#include <tokenizer/tokenizer.h>

#include <sys/stat.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <tokenizer/tokenizer_files.h>
#include <tokenizer/tokenizer_sentencepiece.h>

/* Defaults of tokenizer_limits_t. VOCABULARY_MOST bounds what a caller may ask for: symbols must
 * stay below 2^31, and aliases of characters have numbers behind those of the pieces. */
enum { FILE_BYTES = 256 << 20, VOCABULARY = 4 << 20, VOCABULARY_MOST = 1 << 30 };
enum { TOKEN_BYTES = 4096, MERGES = 8 << 20 };

/* A tokenizer.json has a "model"; any other object is taken for a vocabulary of pieces and ids. */
static lh_status_t read_json(tokenizer_t *t, const char *path)
{
    json_document_t *file = NULL;
    lh_status_t status = tokenizer_load_json(t, path, &file);
    if (status != LH_OK) return status;

    const json_value_t *root = json_root(file);
    const bool is_whole = json_is_map(json_member(root, "model"));
    status = is_whole ? tokenizer_read_json(t, path, root) : tokenizer_read_pair(t, path, root);
    json_free(file);
    return status;
}

/* A file's name says little about its kind: tokenizer.model is sentencepiece's for Llama 2 and a
 * list of ranks for Llama 3. JSON is read by read_json once the bytes here are freed, as it parses
 * the file itself. */
static lh_status_t read_by_content(tokenizer_t *t, const char *path)
{
    char *bytes;
    size_t length;
    lh_status_t status = file_read(path, t->limits.file_bytes, &bytes, &length);
    if (status != LH_OK) return status;

    /* Behind a byte order mark and white space, what JSON begins with. */
    size_t start = length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (start < length && strchr(" \t\r\n", bytes[start]) != NULL && bytes[start] != '\0')
        start++;
    const char first = start < length ? bytes[start] : '\0';
    /* a sentencepiece model starts with its first piece: field 1, of type bytes, of which the first
     * field is the text. JSON behind blank lines may begin so, too, but no piece of 9 to 32 bytes
     * has a text of 9, 10, 13, 32 or 123, which are white space and '{', and its score beside it. */
    if (first != '{' && length >= 3 && bytes[0] == '\n' && bytes[2] == '\n')
        status = tokenizer_read_sentencepiece(t, path, bytes, length);
    else if (tokenizer_is_llama2c(bytes, length)) /* before JSON: its first byte may be '{' */
        status = tokenizer_read_llama2c(t, path, bytes, length);
    else if (first == '{')
        status = LH_AGAIN;
    else if (length == 0)
        status = fail(LH_INVALID, "%s is empty", path);
    else if (memchr(bytes, '\n', length) != NULL && memchr(bytes, ' ', length) != NULL)
        status = tokenizer_read_ranks(t, path, bytes, length);
    else
        status = fail(LH_INVALID,
                      "%s is no tokenizer: neither JSON nor a sentencepiece model, a list of ranks "
                      "or llama2.c's tokenizer.bin",
                      path);
    mem_free(bytes);
    return status == LH_AGAIN ? read_json(t, path) : status;
}

/* The vocabulary that belongs to a list of merges; NULL without memory, or `path` itself. */
static char *vocabulary_of(const char *path)
{
    /* In the order in which the ends are tried; "merges.txt" would also match "-merges.txt". */
    static const struct {
        const char *merges, *vocabulary[2];
    } pairs[] = {
        {"-merges.txt", {"-vocab.json", NULL}},
        {"merges.txt", {"vocab.json", "encoder.json"}},
        {"vocab.bpe", {"encoder.json", "vocab.json"}},
    };
    for (size_t i = 0; i < 3; i++) {
        if (!text_ends(path, pairs[i].merges)) continue;
        for (size_t k = 0; k < 2 && pairs[i].vocabulary[k] != NULL; k++) {
            text_t other = {0};
            text_append_n(&other, path, strlen(path) - strlen(pairs[i].merges));
            text_append(&other, pairs[i].vocabulary[k]);
            if (!other.failed && file_exists(other.data)) return other.data;
            const bool failed = other.failed;
            text_free(&other);
            if (failed) return NULL;
        }
    }
    return mem_text(path);
}

/* The tokenizer's file in a folder: the first that is there, the one that says most first. */
static lh_status_t find_in_folder(const char *folder, char **out)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "encoder.json", "tokenizer.bin"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *path = path_join(folder, names[i]);
        if (path == NULL) return LH_NO_MEMORY;
        if (file_exists(path)) {
            *out = path;
            return LH_OK;
        }
        mem_free(path);
    }
    return fail(LH_INVALID,
                "the folder %s has no tokenizer: tokenizer.json, tokenizer.model, vocab.json or "
                "tokenizer.bin is expected",
                folder);
}

/* The file to begin with: that of a folder, or the vocabulary beside a list of merges. The caller
 * frees *out. */
static lh_status_t find_tokenizer_file(const char *path, char **out)
{
    struct stat info;
    if (sys()->stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return find_in_folder(path, out);
    *out = vocabulary_of(path);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Once all is read: the size of the vocabulary, what added tokens look like in a text, and what
 * decoding may skip. Tokens that are looked for after normalizing are normalized here once, so that
 * they are found in texts that were. */
static lh_status_t tokenizer_finish(tokenizer_t *t)
{
    const size_t pieces = t->pieces.count, added = t->added_pieces.count;
    normalize_scratch_t scratch = {0};

    t->vocab_size = (int32_t)(pieces > added ? pieces : added);
    t->skipped = mem_new((size_t)t->vocab_size);
    if (t->skipped == NULL) return LH_NO_MEMORY;
    lh_status_t status = normalize_scratch_open(&t->normalizer, &scratch);
    for (size_t i = 0; i < t->added.count && status == LH_OK; i++) {
        const added_token_t *token = &t->added.tokens[i];
        const char *text = token->content;
        size_t length = token->length;
        if (token->special) t->skipped[token->id] = 1;
        if (token->normalized)
            status = normalize(&t->normalizer, &scratch, text, length, &text, &length);
        if (status == LH_OK && length > 0)
            status = piece_trie_add(token->normalized ? &t->added.normalized : &t->added.raw, text,
                                    length, (int32_t)i);
    }
    normalize_scratch_close(&scratch);
    return status;
}

/* The file is named before it is read, so that it comes first among the tokenizer's files. The
 * tokenizer never moves, as parts of it point to each other. */
lh_status_t tokenizer_load(const char *path, const tokenizer_limits_t *limits, tokenizer_t **out)
{
    char *file = NULL;
    lh_status_t status = find_tokenizer_file(path, &file);
    if (status != LH_OK) return status;
    status = LH_NO_MEMORY;
    tokenizer_t *t = mem_new(sizeof(*t));
    if (t == NULL) goto free_file;

    if (limits != NULL) t->limits = *limits;
    if (t->limits.file_bytes == 0) t->limits.file_bytes = FILE_BYTES;
    if (t->limits.vocabulary == 0) t->limits.vocabulary = VOCABULARY;
    if (t->limits.token_bytes == 0) t->limits.token_bytes = TOKEN_BYTES;
    if (t->limits.merges == 0) t->limits.merges = MERGES;
    if (t->limits.vocabulary > VOCABULARY_MOST) t->limits.vocabulary = VOCABULARY_MOST;
    bpe_start(&t->bpe);
    t->unknown = -1;
    unicode_classes_fill(&t->pretokenizer.classes);
    status = tokenizer_add_file(t, file);
    if (status == LH_OK) status = read_by_content(t, file);
    if (status == LH_OK) status = tokenizer_finish(t);
    if (status == LH_OK)
        *out = t;
    else
        tokenizer_free(t);

free_file:
    mem_free(file);
    return status;
}

void tokenizer_free(tokenizer_t *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < t->file_count; i++)
        mem_free(t->files[i]);
    mem_free(t->files);
    mem_free(t->decoder.surface);
    mem_free(t->skipped);
    piece_table_free(&t->added_pieces);
    tokenizer_free_added(&t->added);
    pretokenizer_free(&t->pretokenizer);
    normalizer_free(&t->normalizer);
    bpe_free(&t->bpe);
    unigram_free(&t->unigram);
    wordpiece_free(&t->wordpiece);
    mem_free(t->continuing);
    mem_free(t->ending);
    decode_steps_free(&t->decoder.steps);
    mem_free(t->frame.before);
    mem_free(t->frame.after);
    mem_free(t->types);
    piece_table_free(&t->raw);
    piece_table_free(&t->pieces);
    mem_free(t);
}

int32_t tokenizer_vocab_size(const tokenizer_t *t)
{
    return t->vocab_size;
}

const tokenizer_special_t *tokenizer_special(const tokenizer_t *t)
{
    return &t->special;
}

const char *tokenizer_kind(const tokenizer_t *t)
{
    return t->kind;
}

int32_t tokenizer_find(const tokenizer_t *t, const char *piece)
{
    return tokenizer_id_of(t, piece);
}

const tokenizer_frame_t *tokenizer_frame(const tokenizer_t *t)
{
    return &t->frame;
}

size_t tokenizer_file_count(const tokenizer_t *t)
{
    return t->file_count;
}

const char *tokenizer_file(const tokenizer_t *t, size_t index)
{
    lh_assert(index < t->file_count);
    return t->files[index];
}

/* What stands for a byte that is no UTF-8. */
static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* One call of tokenizer_decode. */
typedef struct decoding {
    const tokenizer_t *t;
    text_t *out;
    size_t start;      /* of what this call appended                                      */
    size_t bytes_from; /* where the run of byte tokens at the end of out starts           */
    bool at_start;     /* sentencepiece: the mark of the dummy prefix may still come       */
} decoding_t;

/* Ends a run of byte tokens at the end of out. They are UTF-8 together, or one U+FFFD each. */
static void end_bytes(decoding_t *d)
{
    const size_t count = d->out->length - d->bytes_from;

    if (count > 0 && !d->out->failed && !text_utf8_valid(d->out->data + d->bytes_from, count)) {
        d->out->length = d->bytes_from;
        for (size_t i = 0; i < count; i++)
            text_append(d->out, replacement);
    }
    d->bytes_from = d->out->length;
}

/* The byte that "<0xNN>" stands for, or -1. */
static int byte_of_piece(const tokenizer_t *t, uint32_t id, piece_t piece)
{
    if (t->decoder.by_type && t->types[id] != PIECE_BYTE) return -1;
    return decode_byte(piece);
}

/* A token with a character outside the alphabet, such as an added one, is written as it is spelt.
 */
static void append_byte_level(piece_t piece, text_t *out)
{
    if (!piece_append_bytes(piece, out)) text_append_n(out, piece.bytes, piece.length);
}

/* Marks become spaces. */
static void append_spaced(const decoder_t *decoder, piece_t piece, text_t *out)
{
    const size_t size = strlen(decoder->mark);
    for (size_t at = 0; at < piece.length;) {
        const char *found = size == 0
                                ? NULL
                                : memmem(piece.bytes + at, piece.length - at, decoder->mark, size);
        const size_t end = found == NULL ? piece.length : (size_t)(found - piece.bytes);
        text_append_n(out, piece.bytes + at, end - at);
        if (found != NULL) text_append(out, " ");
        at = found == NULL ? piece.length : end + size;
    }
}

/* At the start of a text sentencepiece drops the mark that the dummy prefix made; where extra
 * spaces are removed, all of them. */
static piece_t without_prefix(decoding_t *d, piece_t piece)
{
    const decoder_t *decoder = &d->t->decoder;
    const size_t size = strlen(decoder->strip);
    bool seen = false;

    /* Something stands there already, so a mark is a space like any other. */
    if (d->out->length > d->start) d->at_start = false;
    while (d->at_start && size > 0 && piece.length >= size && !(seen && !decoder->strip_all) &&
           memcmp(piece.bytes, decoder->strip, size) == 0) {
        piece.bytes += size;
        piece.length -= size;
        seen = true;
        if (!decoder->strip_all) break;
    }
    if (seen && !decoder->strip_all) d->at_start = false;
    return piece;
}

/* Appends what a token stands for, where the vocabulary is not spelt as raw bytes. */
static void append_token(decoding_t *d, uint32_t id, piece_t piece)
{
    const decoder_t *decoder = &d->t->decoder;

    if (decoder->byte_level) {
        append_byte_level(piece, d->out);
        return;
    }
    const int byte = decoder->byte_fallback ? byte_of_piece(d->t, id, piece) : -1;
    if (byte >= 0) {
        text_append_n(d->out, &(char){(char)byte}, 1);
        return;
    }
    end_bytes(d);
    if (decoder->surface != NULL && d->t->types[id] == PIECE_UNKNOWN) {
        text_append(d->out, decoder->surface);
    } else {
        if (decoder->by_type) piece = without_prefix(d, piece);
        append_spaced(decoder, piece, d->out);
    }
    d->bytes_from = d->out->length;
}

/* False: the file leaves a hole at this id. */
static bool find_piece(const tokenizer_t *t, uint32_t id, piece_t *out)
{
    return piece_table_get(&t->added_pieces, id, out) || piece_table_get(&t->pieces, id, out);
}

size_t tokenizer_open_bytes(const tokenizer_t *t, const int32_t *ids, size_t count)
{
    const bool runs = t->decoder.byte_fallback && !t->decoder.byte_level &&
                      t->spelled != SPELLED_AS_BYTES;
    size_t open = 0;
    for (; runs && open < count; open++) {
        const int32_t id = ids[count - 1 - open];
        piece_t piece;
        if (id < 0 || id >= t->vocab_size) break;
        /* Tokens that decoding may leave out do not end a run of bytes, as nothing is written for
         * them. */
        const bool silent = t->skipped[id] || !find_piece(t, (uint32_t)id, &piece);
        if (!silent && byte_of_piece(t, (uint32_t)id, piece) < 0) break;
    }
    return open;
}

/* By the steps of a tokenizer.json's decoder. */
static lh_status_t decode_by_steps(const tokenizer_t *t, const int32_t *ids, size_t count,
                                   bool skip_special, text_t *out)
{
    decode_list_t list = {0};
    lh_status_t status = LH_OK;

    for (size_t i = 0; i < count && status == LH_OK; i++) {
        piece_t piece;
        if (skip_special && t->skipped[ids[i]]) continue;
        if (!find_piece(t, (uint32_t)ids[i], &piece)) continue;
        text_append_n(&list.bytes, piece.bytes, piece.length);
        status = decode_list_end(&list);
    }
    if (status == LH_OK) status = decode_steps_run(&t->decoder.steps, &list, out);
    decode_list_free(&list);
    return status;
}

/* All ids are checked before anything is appended. */
lh_status_t tokenizer_decode(const tokenizer_t *t, const int32_t *ids, size_t count,
                             bool skip_special, text_t *out)
{
    decoding_t d = {t, out, out->length, out->length, true};
    bool first = true;

    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return fail(LH_INVALID, "token %zu is %d; the tokenizer's ids are 0 to %d", i, ids[i],
                        t->vocab_size - 1);
    if (t->decoder.steps.count > 0) return decode_by_steps(t, ids, count, skip_special, out);
    for (size_t i = 0; i < count; i++) {
        const uint32_t id = (uint32_t)ids[i];
        piece_t piece;
        if (skip_special && t->skipped[id]) continue;
        if (!find_piece(t, id, &piece)) continue; /* the file leaves a hole here */
        if (t->decoder.join && !first) text_append(out, " ");
        first = false;
        if (t->spelled == SPELLED_AS_BYTES)
            text_append_n(out, piece.bytes, piece.length);
        else
            append_token(&d, id, piece);
    }
    if (t->decoder.byte_fallback) end_bytes(&d);
    return text_status(out);
}

lh_status_t tokenizer_digest(const tokenizer_t *t, uint64_t *out)
{
    text_t all = {0};
    for (uint32_t id = 0; id < (uint32_t)t->vocab_size; id++) {
        piece_t piece;
        if (find_piece(t, id, &piece) && t->decoder.byte_level)
            append_byte_level(piece, &all);
        else if (find_piece(t, id, &piece))
            text_append_n(&all, piece.bytes, piece.length);
        const uint64_t end = all.length; /* tells "a", "bc" from "ab", "c" */
        text_append_n(&all, (const char *)&end, sizeof(end));
    }
    const lh_status_t status = text_status(&all);
    if (status == LH_OK) *out = digest_xxh3(all.data, all.length);
    text_free(&all);
    return status;
}

/* Bytes of one text. Spans are of 32 bits, and normalizing with marks may make a text six times
 * longer. */
enum { TEXT_MOST = 1 << 29 };

/* valid: the text with U+FFFD for what is no UTF-8. marked: a piece of it with Metaspace's marks or
 * a space in front. Both are used for one call at a time. */
struct tokenizer_scratch {
    bpe_scratch_t bpe; /* of these, that of the tokenizer's model */
    unigram_scratch_t unigram;
    wordpiece_scratch_t wordpiece;
    normalize_scratch_t normalize;
    pretokenize_scratch_t pretokenize;
    text_t valid, marked;
};

/* One call of tokenizer_encode, for the functions below. */
typedef struct encoding {
    const tokenizer_t *t;
    tokenizer_scratch_t *scratch;
    token_spelling_t spelling;
    token_ids_t *out;
} encoding_t;

lh_status_t tokenizer_scratch_new(const tokenizer_t *t, tokenizer_scratch_t **out)
{
    tokenizer_scratch_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    switch (t->model) {
    case MODEL_BPE: status = bpe_scratch_open(&t->bpe, &s->bpe); break;
    case MODEL_UNIGRAM: status = unigram_scratch_open(&s->unigram); break;
    case MODEL_WORDPIECE: status = wordpiece_scratch_open(&s->wordpiece); break;
    }
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
    unigram_scratch_close(&s->unigram);
    wordpiece_scratch_close(&s->wordpiece);
    normalize_scratch_close(&s->normalize);
    pretokenize_scratch_close(&s->pretokenize);
    text_free(&s->valid);
    text_free(&s->marked);
    mem_free(s);
}

/* A piece that the pretokenizer has cut, or `whole`, a text that none has. */
static lh_status_t encode_piece(const encoding_t *e, const char *text, size_t length,
                                size_t readable, bool whole)
{
    const tokenizer_t *t = e->t;
    tokenizer_scratch_t *s = e->scratch;

    switch (t->model) {
    case MODEL_UNIGRAM:
        return unigram_encode(&t->unigram, &s->unigram, text, length, readable, e->out);
    case MODEL_WORDPIECE:
        return wordpiece_encode(&t->wordpiece, &s->wordpiece, text, length, readable, e->out);
    case MODEL_BPE:
        return whole ? bpe_encode_text(&t->bpe, &s->bpe, text, length, e->out)
                     : bpe_encode(&t->bpe, &s->bpe, text, length, readable, e->out);
    }
    return LH_OK;
}

/* Cuts what is left of a text and encodes the pieces. A text never has more ids than bytes, so room
 * for `length` ids is enough and nothing is checked again on the way. */
static lh_status_t encode_pieces(const encoding_t *e, const char *text, size_t length, bool first)
{
    lh_status_t status = token_ids_reserve(e->out, length);
    if (status != LH_OK) return status;
    if (!e->t->cuts) return encode_piece(e, text, length, length, true);

    const struct span_list *list;
    const size_t before = length;
    status = pretokenize(&e->t->pretokenizer, &e->scratch->pretokenize, first, &text, &length,
                         &list);
    if (status == LH_OK && length > before) status = token_ids_reserve(e->out, length);
    for (size_t i = 0; status == LH_OK && i < list->count; i++) {
        const text_span_t span = list->spans[i];
        status = encode_piece(e, text + span.start, span.end - span.start, length - span.start,
                              false);
    }
    return status;
}

/* What ByteLevel's add_prefix_space and Metaspace do to a text before it is cut. `first`: it begins
 * where the whole text does, which counts for the mark in front with prepend_scheme "first". */
static lh_status_t encode_marked(const encoding_t *e, const char *text, size_t length, bool first)
{
    const pretokenizer_t *p = &e->t->pretokenizer;
    text_t *marked = &e->scratch->marked;

    if (length == 0) return LH_OK;
    if (p->prefix_space && text[0] == ' ') return encode_pieces(e, text, length, first);
    if (!p->prefix_space && !p->metaspace) return encode_pieces(e, text, length, first);

    marked->length = 0;
    marked->failed = false;
    if (p->prefix_space) {
        text_append(marked, " ");
        text_append_n(marked, text, length);
    } else {
        pretokenize_mark(p, first, text, length, marked);
    }
    if (text_status(marked) != LH_OK) return LH_NO_MEMORY;
    return encode_pieces(e, marked->data, marked->length, first);
}

/* What lies between two added tokens: normalized, then searched for those added tokens that are
 * looked for in normalized text. */
static lh_status_t encode_between(const encoding_t *e, const char *text, size_t length, bool first)
{
    const added_tokens_t *added = &e->t->added;
    if (length == 0) return LH_OK;

    lh_status_t status = normalize(&e->t->normalizer, &e->scratch->normalize, text, length, &text,
                                   &length);
    first = first && !e->scratch->normalize.dropped;
    for (size_t at = 0, next = 0; status == LH_OK && next < length;) {
        const added_match_t match = tokenizer_find_added(added, &added->normalized, e->spelling,
                                                         text, length, at, next);
        lh_assert(match.next > next && match.start >= at);
        status = encode_marked(e, text + at, match.start - at, first && at == 0);
        if (status == LH_OK && match.id >= 0) status = token_ids_add(e->out, match.id);
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
        if (text_utf8_decode(p, end, &size) == TEXT_UTF8_BAD)
            text_append_n(out, "\xEF\xBF\xBD", 3);
        else
            text_append_n(out, (const char *)p, size);
        p += size;
    }
    *text = out->data;
    *length = out->length;
    return text_status(out);
}

/* Where a vocabulary is of characters, bytes that are none become U+FFFD first: all behind this may
 * count on UTF-8. The loop goes from one added token to the next; match.end and match.next differ
 * where a token takes white space behind it, which may also belong before the next one. */
lh_status_t tokenizer_encode(const tokenizer_t *t, tokenizer_scratch_t *scratch, const char *text,
                             size_t length, token_spelling_t spelling, token_ids_t *out)
{
    const encoding_t e = {t, scratch, spelling, out};
    lh_status_t status = LH_OK;

    if (length > TEXT_MOST)
        return fail(LH_INVALID, "a text of %zu bytes is too long to encode: at most %d", length,
                    TEXT_MOST);
    if ((t->bpe.characters || t->model != MODEL_BPE) && !text_utf8_valid(text, length))
        status = make_valid(&scratch->valid, &text, &length);
    for (size_t at = 0, next = 0; status == LH_OK && next < length;) {
        const added_match_t match = tokenizer_find_added(&t->added, &t->added.raw, spelling, text,
                                                         length, at, next);
        lh_assert(match.next > next && match.start >= at);
        status = encode_between(&e, text + at, match.start - at, at == 0);
        if (status == LH_OK && match.id >= 0) status = token_ids_add(out, match.id);
        at = match.end;
        next = match.next;
    }
    return status;
}
