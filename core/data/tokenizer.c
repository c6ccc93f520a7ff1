/* tokenizer.c - finds out what kind of tokenizer a path names, has it read, and answers questions.
 */
#include <data/tokenizer.h>

#include <sys/stat.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <data/tokenizer_inside.h>

enum { FILE_BYTES = 256 << 20, VOCABULARY = 4 << 20, VOCABULARY_MOST = 1 << 30 };
enum { TOKEN_BYTES = 4096, MERGES = 8 << 20 };

static lh_status_t read_json(tokenizer_t *t, const char *path)
{
    json_t *root = NULL;
    lh_status_t status = tokenizer_load_json(t, path, &root);
    if (status != LH_OK) return status;

    const bool is_whole = json_is_object(json_object_get(root, "model"));
    status = is_whole ? tokenizer_read_json(t, path, root) : tokenizer_read_pair(t, path, root);
    json_decref(root);
    return status;
}

static lh_status_t read_by_content(tokenizer_t *t, const char *path)
{
    char *bytes;
    size_t length;
    lh_status_t status = file_read(path, t->limits.file_bytes, &bytes, &length);
    if (status != LH_OK) return status;

    size_t start = length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (start < length && strchr(" \t\r\n", bytes[start]) != NULL && bytes[start] != '\0')
        start++;
    const char first = start < length ? bytes[start] : '\0';
    /* a sentencepiece model starts with its first piece: field 1, of type bytes, of which the first
     * field is the text; 0x0A would be white space, too */
    if (length >= 3 && bytes[0] == '\n' && bytes[2] == '\n')
        status = tokenizer_read_sentencepiece(t, path, bytes, length);
    else if (first == '{')
        status = LH_AGAIN;
    else if (length == 0)
        status = fail(LH_INVALID, "%s is empty", path);
    else if (memchr(bytes, '\n', length) != NULL && memchr(bytes, ' ', length) != NULL)
        status = tokenizer_read_ranks(t, path, bytes, length);
    else
        status = fail(LH_INVALID,
                      "%s is no tokenizer: neither JSON nor a sentencepiece model nor a list "
                      "of ranks",
                      path);
    mem_free(bytes);
    return status == LH_AGAIN ? read_json(t, path) : status;
}

/* The vocabulary that belongs to a list of merges; NULL without memory, or `path` itself. */
static char *vocabulary_of(const char *path)
{
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
            if (other.failed || file_exists(other.data)) return other.data;
            text_free(&other);
        }
    }
    return mem_text(path);
}

/* The tokenizer's file in a folder. */
static lh_status_t find_in_folder(const char *folder, char **out)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "encoder.json"};

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
                "the folder %s has no tokenizer: tokenizer.json, tokenizer.model or vocab.json "
                "is expected",
                folder);
}

static lh_status_t find_file(const char *path, char **out)
{
    struct stat info;
    if (sys()->stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return find_in_folder(path, out);
    *out = vocabulary_of(path);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Once all is read: what added tokens look like in a text, and what decoding may skip. */
static lh_status_t finish(tokenizer_t *t)
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
            status = byte_trie_add(token->normalized ? &t->added.normalized : &t->added.raw, text,
                                   length, (int32_t)i);
    }
    normalize_scratch_close(&scratch);
    return status;
}

lh_status_t tokenizer_load(const char *path, const tokenizer_limits_t *limits, tokenizer_t **out)
{
    char *file = NULL;
    lh_status_t status = find_file(path, &file);
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
    unicode_classes_fill(&t->pretokenizer.classes);
    status = tokenizer_add_file(t, file);
    if (status == LH_OK) status = read_by_content(t, file);
    if (status == LH_OK) status = finish(t);
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
    for (size_t i = 0; i < t->decoder.replace_count; i++) {
        mem_free(t->decoder.replaces[i].from);
        mem_free(t->decoder.replaces[i].to);
    }
    mem_free(t->decoder.surface);
    mem_free(t->skipped);
    piece_table_free(&t->added_pieces);
    added_tokens_free(&t->added);
    pretokenizer_free(&t->pretokenizer);
    normalizer_free(&t->normalizer);
    bpe_free(&t->bpe);
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
    const int32_t id = piece_table_find(&t->added_pieces, piece, strlen(piece));
    return id >= 0 ? id : piece_table_find(&t->pieces, piece, strlen(piece));
}

size_t tokenizer_file_count(const tokenizer_t *t)
{
    return t->file_count;
}

const char *tokenizer_file(const tokenizer_t *t, size_t index)
{
    return t->files[index];
}
