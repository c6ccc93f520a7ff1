/* tokenizer_pair.c - GPT-2's pair of files, and tiktoken's ranks.
 *
 * Neither says how a text is cut before it is encoded: that is in the program of whoever made them.
 * For a pair the class of tokenizer in a tokenizer_config.json beside it tells, and without one it
 * is GPT-2's; ranks are taken for Llama 3's, as are the numbers of its special tokens. */
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <tokenizer/tokenizer_pair.h>

/* "a b": two pieces; the rank is the line's place among the merges. */
static lh_status_t read_merge_line(tokenizer_t *t, const char *path, size_t line_number,
                                   const char *line, size_t length, uint32_t rank)
{
    char where[512];
    (void)snprintf(where, sizeof(where), "%s:%zu:", path, line_number);

    const char *space = memchr(line, ' ', length);
    const size_t left = space == NULL ? 0 : (size_t)(space - line), right = length - left - 1;
    if (space == NULL || memchr(space + 1, ' ', right) != NULL || left == 0 || right == 0)
        return fail(LH_INVALID, "%s '%.*s' is not two pieces with one space between them", where,
                    (int)length, line);
    return tokenizer_add_merge(t, where, line, left, space + 1, right, rank);
}

/* The lines of a text one after the other, without their "\n" or "\r\n". */
typedef struct lines {
    const char *next, *end; /* what is still to come; the caller sets both, the rest is zero */
    const char *line;
    size_t size, number; /* of the line: its bytes, and its place from 1 */
} lines_t;

static bool lines_next(lines_t *l)
{
    if (l->next == l->end) return false;
    const char *newline = memchr(l->next, '\n', (size_t)(l->end - l->next));
    l->line = l->next;
    l->size = (size_t)((newline == NULL ? l->end : newline) - l->line);
    l->next = newline == NULL ? l->end : newline + 1;
    l->number++;
    if (l->size > 0 && l->line[l->size - 1] == '\r') l->size--;
    return true;
}

static lh_status_t read_merges(tokenizer_t *t, const char *path, const char *bytes, size_t length)
{
    lines_t l = {.next = bytes, .end = bytes + length};
    lh_status_t status = LH_OK;
    uint32_t rank = 0;

    while (status == LH_OK && lines_next(&l))
        if (l.size > 0 && !(l.size >= 8 && memcmp(l.line, "#version", 8) == 0))
            status = read_merge_line(t, path, l.number, l.line, l.size, rank++);
    return status;
}

/* The caller frees *out: NAME-merges.txt beside NAME-vocab.json, else merges.txt or vocab.bpe
 * beside the vocabulary. */
static lh_status_t find_merges(const char *vocabulary, char **out)
{
    static const char *const names[] = {"merges.txt", "vocab.bpe"};
    static const char suffix[] = "-vocab.json";
    lh_status_t status = LH_NO_MEMORY;
    char *found = NULL, *folder = path_folder(vocabulary);
    if (folder == NULL) return status;

    if (text_ends(vocabulary, suffix)) {
        text_t name = {0};
        text_append_n(&name, vocabulary, strlen(vocabulary) - strlen(suffix));
        text_append(&name, "-merges.txt");
        if (text_status(&name) != LH_OK) {
            text_free(&name);
            goto free_folder;
        }
        if (file_exists(name.data)) found = name.data;
        if (found == NULL) text_free(&name);
    }
    for (size_t i = 0; i < 2 && found == NULL; i++) {
        char *path = path_join(folder, names[i]);
        if (path == NULL) goto free_folder;
        if (file_exists(path))
            found = path;
        else
            mem_free(path);
    }
    status = LH_OK;
    if (found == NULL)
        status = fail(LH_INVALID,
                      "%s is a vocabulary, but its merges are missing: merges.txt, vocab.bpe "
                      "or NAME-merges.txt is expected beside it",
                      vocabulary);
    else
        *out = found;

free_folder:
    mem_free(folder);
    return status;
}

/* Finds, notes and reads the merges of a vocabulary. */
static lh_status_t load_merges(tokenizer_t *t, const char *vocabulary)
{
    char *path = NULL, *bytes = NULL;
    size_t length;
    lh_status_t status = find_merges(vocabulary, &path);
    if (status != LH_OK) return status;

    status = tokenizer_add_file(t, path);
    if (status != LH_OK) goto free_path;
    status = file_read(path, t->limits.file_bytes, &bytes, &length);
    if (status != LH_OK) goto free_path;
    status = read_merges(t, path, bytes, length);
    mem_free(bytes);

free_path:
    mem_free(path);
    return status;
}

/* "added_tokens_decoder": {"151643": {"content": ..., ...}, ...} */
static lh_status_t read_config_tokens(tokenizer_t *t, const char *path, const json_value_t *config)
{
    const json_value_t *decoder = json_member(config, "added_tokens_decoder");
    if (!json_is_map(decoder)) return LH_OK;
    for (json_walk_t w = json_walk(decoder); json_next(&w);) {
        const char *key = w.key;
        const json_value_t *entry = w.value;
        char *end;
        const long long id = strtoll(key, &end, 10);
        const char *content = json_text(json_member(entry, "content"));
        if (*end != '\0' || end == key || content == NULL)
            return fail(LH_INVALID,
                        "%s: its tokenizer_config.json has the added token '%s' without a "
                        "number or content",
                        path, key);
        lh_status_t status = tokenizer_check_id(t, path, id, content);
        if (status != LH_OK) return status;
        status = tokenizer_read_token(t, path, (int32_t)id, content, entry, false);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Without a config, the end of a document is a token in decoding, and in text only when asked for.
 */
static lh_status_t add_end_token(tokenizer_t *t, const char *path)
{
    static const char end[] = "<|endoftext|>";
    piece_t known;
    const int32_t id = piece_table_find(&t->pieces, end, strlen(end));
    if (id < 0 || piece_table_get(&t->added_pieces, (uint32_t)id, &known)) return LH_OK;

    return tokenizer_add_special(t, path, (uint32_t)id, end, strlen(end));
}

/* The end of a document is added last, as the config may have it already. */
lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path, const json_value_t *vocabulary)
{
    json_document_t *file = NULL;
    lh_status_t status = tokenizer_read_vocabulary(t, path, vocabulary);
    if (status == LH_OK) status = load_merges(t, path);
    if (status == LH_OK) status = tokenizer_bytes_from_alphabet(t, path);
    if (status == LH_OK) status = tokenizer_load_config(t, path, &file);
    if (status != LH_OK) return status;

    const json_value_t *config = json_root(file);
    /* the files don't say how text is cut: the class of the tokenizer does */
    const char *class = json_text(json_member(config, "tokenizer_class"));
    const bool qwen2 = class != NULL && text_starts(class, "Qwen2Tokenizer");
    if (qwen2)
        status = normalizer_add(&t->normalizer,
                                (normalize_step_t){.by = NORMALIZE_UNICODE, .compose = true});
    if (status == LH_OK) status = tokenizer_use_byte_level(t, qwen2 ? PATTERN_QWEN2 : PATTERN_GPT2);
    if (status == LH_OK) status = tokenizer_cut_words(t);
    t->cuts = true;
    t->pretokenizer.prefix_space = json_is_yes(json_member(config, "add_prefix_space"));
    if (status == LH_OK) status = read_config_tokens(t, path, config);
    if (status == LH_OK) status = add_end_token(t, path);
    if (status == LH_OK) tokenizer_find_special(t, config);
    json_free(file);
    return status;
}

/* tiktoken's ranks: lines of base64(bytes), a space and a rank, which is the id and the order in
 * which pieces are joined. Text is cut and special tokens are numbered as Llama 3 does: 256 behind
 * the ranks. */
enum { SPECIAL_TOKENS = 256, LINE_MOST = 4096 };

/* A line's piece. Ranks of more than 18 digits are no numbers here, so the sum can't overflow. */
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
    const long size = tokenizer_base64(line, text, bytes);
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
    lines_t l = {.next = bytes, .end = bytes + length};
    lh_status_t status = LH_OK;

    while (status == LH_OK && lines_next(&l))
        if (l.size > 0) status = read_line(t, path, l.number, l.line, l.size);
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

/* The names of Llama 3 in its order; the rest of the 256 are reserved ones with a running
 * number. */
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
        const char *name = i < NAMED ? names[i] : reserved;
        status = tokenizer_add_special(t, path, first + i, name, strlen(name));
    }
    return status;
}

/* All 256 bytes must have a rank, or a text might not be encodable. A piece that is in the
 * vocabulary as it stands is taken whole, as tiktoken does. */
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
