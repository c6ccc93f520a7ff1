/* chat.c - formats of conversations as tables, and the ids of a conversation that is written by one
 * of them.
 *
 * The tables are those of the models' own templates, which are programs in Jinja: what these do
 * with messages of text, without tools, fits a line for each role.
 *
 * A text is encoded whole. Where an answer begins and ends among the ids is found by encoding what
 * stands before: its ids are the beginning of the whole's, as formats have a token of their own or
 * a line feed there. Where a token reaches over the border all the same, it counts as the answer's.
 * That costs as many encodings of half the text as it has answers twice; keeping offsets of bytes
 * beside ids would cost every tokenizer more. */
#include <data/chat.h>

#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <format/json.h>

/* trim: CHAT_TRIM_*, as the model's own template does. spelt: what stands in <..> is letters and no
 * token, as the model itself has it. The rest is of chat_format_t, which a row becomes. */
typedef struct format_row {
    const char *part[CHAT_PARTS], *unsaid;
    uint32_t trim;
    bool spelt, joins_last;
} format_row_t;

static const char turns_joined[] = "{system}\n\n{content}";
#define CHATML                                                     \
    {                                                              \
        "", "<|im_start|>system\n{content}<|im_end|>\n",           \
            "<|im_start|>user\n{content}<|im_end|>\n",             \
            "<|im_start|>assistant\n{content}<|im_end|>", "\n", "" \
    }

/* By CHAT_*. */
static const format_row_t formats[] = {
    [CHAT_NONE] = {.part = {""}},
    [CHAT_CHATML] = {.part = CHATML},
    [CHAT_LLAMA2] = {.part = {"", "", "{bos}[INST] {content} [/INST]", " {content} {eos}", "",
                              "<<SYS>>\n{system}\n<</SYS>>\n\n{content}"},
                     .trim = CHAT_TRIM_USER | CHAT_TRIM_REPLY | CHAT_TRIM_JOINED},
    [CHAT_LLAMA3] =
        {.part = {"{bos}", "<|start_header_id|>system<|end_header_id|>\n\n{content}<|eot_id|>",
                  "<|start_header_id|>user<|end_header_id|>\n\n{content}<|eot_id|>",
                  "<|start_header_id|>assistant<|end_header_id|>\n\n{content}<|eot_id|>", "", ""},
         .trim = CHAT_TRIM_EACH},
    [CHAT_MISTRAL] = {.part = {"{bos}", "", "[INST] {content}[/INST]", " {content}{eos}", "",
                               turns_joined},
                      .trim = CHAT_TRIM_REPLY,
                      .joins_last = true},
    [CHAT_GEMMA] = {.part = {"{bos}", "", "<start_of_turn>user\n{content}<end_of_turn>\n",
                             "<start_of_turn>model\n{content}<end_of_turn>", "\n", turns_joined},
                    .trim = CHAT_TRIM_USER | CHAT_TRIM_REPLY},
    [CHAT_PHI3] = {.part = {"", "<|system|>\n{content}<|end|>\n", "<|user|>\n{content}<|end|>\n",
                            "<|assistant|>\n{content}<|end|>", "\n", ""}},
    [CHAT_ZEPHYR] = {.part = {"", "<|system|>\n{content}{eos}\n", "<|user|>\n{content}{eos}\n",
                              "<|assistant|>\n{content}{eos}", "\n", ""},
                     .spelt = true},
    [CHAT_PLAIN] = {.part = {"", "{content}\n", "{content}", "{content}{eos}", "", ""}},
    [CHAT_QWEN2] = {.part = CHATML, .unsaid = "You are a helpful assistant."},
    [CHAT_QWEN25] = {.part = CHATML,
                     .unsaid = "You are Qwen, created by Alibaba Cloud. You are a helpful "
                               "assistant."},
};

struct chat {
    const tokenizer_t *tokenizer;
    char name[CHAT_NAME];
    bool pairs, spelt;
    chat_format_t format; /* its texts, keys and marks are owned here */
};

void chat_format_name(uint32_t format, char out[CHAT_NAME])
{
    const char *at = JOB_CHAT_FORMATS;
    for (uint32_t i = 0; i < format; i++)
        at += strcspn(at, "|") + 1;
    (void)snprintf(out, CHAT_NAME, "%.*s", (int)strcspn(at, "|"), at);
}

/* ---- the parts ---- */

/* A token that the text spells, so that a message that spells it can be told. */
static lh_status_t mark_add(chat_t *c, const char *text, size_t length)
{
    if (length == 0 || c->format.mark_count == CHAT_MARKS) return LH_OK;
    char *mark = mem_new(length + 1);
    if (mark == NULL) return LH_NO_MEMORY;
    memcpy(mark, text, length);
    for (uint32_t i = 0; i < c->format.mark_count; i++)
        if (strcmp(c->format.marks[i], mark) == 0) {
            mem_free(mark);
            return LH_OK;
        }
    c->format.marks[c->format.mark_count++] = mark;
    return LH_OK;
}

/* {bos} or {eos} as the tokenizer spells it. */
static lh_status_t token_write(chat_t *c, const char *word, int32_t id, text_t *out)
{
    const size_t at = out->length;
    if (id < 0)
        return fail(LH_INVALID, "[chat] format = %s has %s, but the tokenizer has no such token",
                    c->name, word);
    lh_status_t status = tokenizer_decode(c->tokenizer, &id, 1, false, out);
    if (status != LH_OK || out->length == at) return status;
    return mark_add(c, out->data + at, out->length - at);
}

/* One character or {word} of a part, as typed in an INI or in the tables above; *at moves on. */
static lh_status_t part_step(chat_t *c, const char *key, const char **at, text_t *out)
{
    static const char escapes[] = "nts\\", means[] = "\n\t \\";
    const tokenizer_special_t *special = tokenizer_special(c->tokenizer);
    if (**at == '\\') {
        const char *known = (*at)[1] == '\0' ? NULL : strchr(escapes, (*at)[1]);
        if (known == NULL)
            return fail(LH_INVALID, "[chat] %s: '%.2s' found, expected \\n, \\t, \\s or \\\\", key,
                        *at);
        text_append_n(out, &means[known - escapes], 1);
        *at += 2;
        return LH_OK;
    }
    const bool bos = text_starts(*at, "{bos}");
    if (bos || text_starts(*at, "{eos}")) {
        *at += strlen("{bos}");
        return bos ? token_write(c, "{bos}", special->bos, out)
                   : token_write(c, "{eos}", special->eos, out);
    }
    text_append_n(out, (*at)++, 1);
    return LH_OK;
}

/* Told once: a tokenizer that lacks one token of a format mostly lacks them all. */
static void mark_missing(chat_t *c, const char *word)
{
    c->spelt = true;
    log_line(LH_LOG_WARN,
             "[chat] format = %s: the tokenizer has no token '%s', so it is encoded as text",
             c->name, word);
}

/* Words in <..> and [..] that are tokens. A format that names a token which the tokenizer does not
 * have is encoded as text, letter for letter: that may be meant, and mostly is not. */
static lh_status_t marks_find(chat_t *c, const text_t *part)
{
    const char *text = part->data == NULL ? "" : part->data;
    lh_status_t status = LH_OK;
    for (const char *at = text; status == LH_OK && (at = strpbrk(at, "<[")) != NULL; at++) {
        const char *end = strchr(at, *at == '<' ? '>' : ']');
        char word[64];
        if (end == NULL || (size_t)(end - at) + 2 > sizeof(word)) continue;
        memcpy(word, at, (size_t)(end - at) + 1);
        word[end - at + 1] = '\0';
        if (tokenizer_find(c->tokenizer, word) >= 0)
            status = mark_add(c, word, strlen(word));
        else if (!c->spelt && at[0] == '<' && at[1] != '<' && at[1] != '/' &&
                 (at == text || at[-1] != '<'))
            mark_missing(c, word);
    }
    return status;
}

static lh_status_t part_make(chat_t *c, const char *key, const char *text, text_t *out)
{
    lh_status_t status = LH_OK;
    for (const char *at = text; status == LH_OK && *at != '\0';)
        status = part_step(c, key, &at, out);
    if (status == LH_OK) text_append_n(out, "", 0);
    if (status == LH_OK) status = text_status(out);
    return status == LH_OK ? marks_find(c, out) : status;
}

/* Parts of [chat] take the place of the format's. */
static lh_status_t parts_make(chat_t *c, const job_chat_t *job)
{
    static const char *const keys[] = {"begin", "system", "user", "reply", "tail", "joined"};
    const char *const own[] = {job->begin, job->system, job->user,
                               job->reply, job->tail,   job->joined};
    const format_row_t *format = &formats[job->format];
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < CHAT_PARTS; i++) {
        const char *text = own[i] != NULL ? own[i] : format->part[i];
        const bool message = i == CHAT_PART_USER || i == CHAT_PART_REPLY ||
                             (text[0] != '\0' && i == CHAT_PART_SYSTEM);
        const char *content = strstr(text, CHAT_CONTENT);
        const bool joins = i == CHAT_PART_JOINED && text[0] != '\0';
        if ((message || joins) && content == NULL)
            return fail(LH_INVALID, "[chat] %s = %s: expected {content} in it", keys[i], text);
        if (joins && strstr(text, CHAT_SYSTEM) == NULL)
            return fail(LH_INVALID, "[chat] %s = %s: expected {system} in it", keys[i], text);
        /* What is trained on begins there: a second one would begin what is not. */
        if (i == CHAT_PART_REPLY && strstr(content + 1, CHAT_CONTENT) != NULL)
            return fail(LH_INVALID, "[chat] %s = %s: expected {content} once in it", keys[i], text);
        status = part_make(c, keys[i], text, &c->format.part[i]);
    }
    return status;
}

lh_status_t chat_new(const job_chat_t *job, const tokenizer_t *tokenizer, chat_t **out)
{
    lh_assert(job->format != CHAT_NONE && job->format < sizeof(formats) / sizeof(formats[0]));
    chat_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->tokenizer = tokenizer;
    chat_format_name(job->format, c->name);
    c->format.name = c->name;
    c->format.trim = formats[job->format].trim;
    c->spelt = formats[job->format].spelt;
    c->format.joins_last = formats[job->format].joins_last;
    c->format.unsaid = formats[job->format].unsaid;
    c->format.messages = mem_text(job->messages);
    c->format.prompt = mem_text(job->prompt);
    c->format.answer = mem_text(job->answer);
    c->format.chosen = mem_text(job->chosen);
    c->format.rejected = mem_text(job->rejected);
    c->pairs = job->pairs;
    const bool all = c->format.messages != NULL && c->format.prompt != NULL &&
                     c->format.answer != NULL && c->format.chosen != NULL &&
                     c->format.rejected != NULL;
    lh_status_t status = all ? parts_make(c, job) : LH_NO_MEMORY;
    if (status != LH_OK) {
        chat_free(c);
        return status;
    }
    *out = c;
    return LH_OK;
}

void chat_free(chat_t *c)
{
    if (c == NULL) return;
    for (uint32_t i = 0; i < CHAT_PARTS; i++)
        text_free(&c->format.part[i]);
    for (uint32_t i = 0; i < c->format.mark_count; i++)
        mem_free(c->format.marks[i]);
    mem_free(c->format.messages);
    mem_free(c->format.prompt);
    mem_free(c->format.answer);
    mem_free(c->format.chosen);
    mem_free(c->format.rejected);
    mem_free(c);
}

void chat_scratch_free(chat_scratch_t *scratch)
{
    json_free(scratch->line);
    chat_text_free(&scratch->written);
    token_ids_free(&scratch->before);
    *scratch = (chat_scratch_t){0};
}

/* ---- a text as ids ---- */

/* Whether ids [count] of the whole say what the text before has left, in other pieces; *out: how
 * many of them. A line feed before a word, for one, may be cut otherwise than one at the end. */
static lh_status_t ids_respelt(const chat_t *c, const int32_t *left, size_t left_count,
                               const int32_t *ids, size_t count, size_t *out)
{
    enum { PIECES = 16 };
    text_t wanted = {0}, found = {0};
    lh_status_t status = tokenizer_decode(c->tokenizer, left, left_count, false, &wanted);
    *out = 0;
    for (size_t k = 1; status == LH_OK && *out == 0 && k <= PIECES && k <= count; k++) {
        found.length = 0;
        status = tokenizer_decode(c->tokenizer, ids, k, false, &found);
        if (status == LH_OK && found.length == wanted.length &&
            (found.length == 0 || memcmp(found.data, wanted.data, found.length) == 0))
            *out = k;
    }
    text_free(&wanted);
    text_free(&found);
    return status;
}

/* How many of the whole's ids stand before byte `at`: as many as the text before has in common with
 * it, and those that say the rest of it in other pieces. */
static lh_status_t ids_before(const chat_t *c, chat_scratch_t *s, tokenizer_scratch_t *tokenizer,
                              size_t at, const int32_t *ids, size_t count, size_t *out)
{
    token_ids_t *before = &s->before;
    before->count = 0;
    lh_status_t status = tokenizer_encode(c->tokenizer, tokenizer, s->written.text.data, at,
                                          SPELLING_IS_TOKEN, before);
    size_t same = 0, more = 0;
    while (status == LH_OK && same < before->count && same < count &&
           before->ids[same] == ids[same])
        same++;
    if (status == LH_OK && same < before->count)
        status = ids_respelt(c, before->ids + same, before->count - same, ids + same, count - same,
                             &more);
    *out = same + more;
    return status;
}

/* Parts in turn: what is no answer, then an answer, and so on. At each cut the part at hand ends; one
 * that would be empty is taken back instead, and the part before it goes on. The first id of all is
 * never an answer's, as nothing comes before it. */
static lh_status_t parts_find(const chat_t *c, chat_scratch_t *s, tokenizer_scratch_t *tokenizer,
                              const int32_t *ids, size_t count, token_ids_t *parts)
{
    const size_t first = parts->count;
    size_t done = 0;
    lh_status_t status = LH_OK;
    for (size_t i = 0; status == LH_OK && i < s->written.cut_count; i++) {
        size_t at = count;
        if (s->written.cuts[i] < s->written.text.length)
            status = ids_before(c, s, tokenizer, s->written.cuts[i], ids, count, &at);
        if (at < 1) at = 1;
        if (at > count) at = count;
        if (status != LH_OK) break;
        if (at > done)
            status = token_ids_add(parts, (int32_t)(at - done));
        else if (parts->count > first)
            at = done - (size_t)parts->ids[--parts->count];
        done = at;
    }
    if (status == LH_OK && done < count) status = token_ids_add(parts, (int32_t)(count - done));
    if (status == LH_OK && parts->count - first < 2)
        status = fail(LH_INVALID, "its answers have no token; expected some to train on");
    return status;
}

/* The text at hand as ids and parts, behind those that are there. */
static lh_status_t ids_with_parts(const chat_t *c, chat_scratch_t *scratch,
                                  tokenizer_scratch_t *tokenizer, token_ids_t *ids,
                                  token_ids_t *parts)
{
    const size_t ids_were = ids->count;
    lh_status_t status = tokenizer_encode(
        c->tokenizer, tokenizer,
        scratch->written.text.data == NULL ? "" : scratch->written.text.data,
        scratch->written.text.length, SPELLING_IS_TOKEN, ids);
    if (status == LH_OK && ids->count > ids_were)
        return parts_find(c, scratch, tokenizer, ids->ids + ids_were, ids->count - ids_were, parts);
    return status != LH_OK ? status
                           : fail(LH_INVALID, "it has no token; expected an answer to train on");
}

/* Two that are equal say nothing of what is preferred: they are most likely a mistake. */
static lh_status_t pair_encode(const chat_t *c, chat_scratch_t *scratch,
                               tokenizer_scratch_t *tokenizer, token_ids_t *ids, token_ids_t *parts)
{
    const size_t begin = ids->count;
    size_t second = begin;
    lh_status_t status = LH_OK;
    for (int i = 0; status == LH_OK && i < 2; i++) {
        second = ids->count;
        if (i == 1) status = token_ids_add(parts, 0);
        if (status == LH_OK)
            status = chat_text_side(&c->format, json_root(scratch->line),
                                    i == 0 ? c->format.chosen : c->format.rejected,
                                    &scratch->written);
        if (status == LH_OK) status = ids_with_parts(c, scratch, tokenizer, ids, parts);
    }
    if (status != LH_OK) return status;
    const size_t count = second - begin;
    if (ids->count - second != count ||
        memcmp(ids->ids + begin, ids->ids + second, count * sizeof(*ids->ids)) != 0)
        return LH_OK;
    return fail(LH_INVALID,
                "'%.40s' and '%.40s' are equal, the same %zu tokens; expected answers that differ",
                c->format.chosen, c->format.rejected, count);
}

lh_status_t chat_encode(const chat_t *c, chat_scratch_t *scratch, tokenizer_scratch_t *tokenizer,
                        const char *line, size_t length, token_ids_t *ids, token_ids_t *parts)
{
    const size_t ids_were = ids->count, parts_were = parts->count;
    lh_status_t status = json_line_read(line, length, &scratch->line);
    if (status == LH_OK && c->pairs)
        status = pair_encode(c, scratch, tokenizer, ids, parts);
    else if (status == LH_OK && (status = chat_text_line(&c->format, json_root(scratch->line),
                                                         &scratch->written)) == LH_OK)
        status = ids_with_parts(c, scratch, tokenizer, ids, parts);
    if (status == LH_OK) return LH_OK;
    ids->count = ids_were;
    parts->count = parts_were;
    return status;
}

/* What was written last as ids, whole. */
static lh_status_t prompt_ids(const chat_t *c, const chat_scratch_t *s,
                              tokenizer_scratch_t *tokenizer, token_ids_t *ids)
{
    return tokenizer_encode(c->tokenizer, tokenizer,
                            s->written.text.data == NULL ? "" : s->written.text.data,
                            s->written.text.length, SPELLING_IS_TOKEN, ids);
}

lh_status_t chat_encode_line(const chat_t *c, chat_scratch_t *scratch,
                             tokenizer_scratch_t *tokenizer, const char *line, size_t length,
                             token_ids_t *ids)
{
    lh_status_t status = json_line_read(line, length, &scratch->line);
    if (status == LH_OK)
        status = chat_text_question(&c->format, json_root(scratch->line), &scratch->written);
    return status == LH_OK ? prompt_ids(c, scratch, tokenizer, ids) : status;
}

lh_status_t chat_encode_prompt(const chat_t *c, chat_scratch_t *scratch,
                               tokenizer_scratch_t *tokenizer, const char *text, size_t length,
                               token_ids_t *ids)
{
    const lh_status_t status = chat_text_prompt(&c->format, text, length, &scratch->written);
    return status == LH_OK ? prompt_ids(c, scratch, tokenizer, ids) : status;
}

/* What stands behind an answer's content ends with it, where its last id spells one of the format's
 * tokens. */
lh_status_t chat_end(const chat_t *c, tokenizer_scratch_t *tokenizer, int32_t *out)
{
    const text_t *reply = &c->format.part[CHAT_PART_REPLY];
    const char *behind = strstr(reply->data, CHAT_CONTENT) + strlen(CHAT_CONTENT);
    token_ids_t ids = {0};
    text_t spelt = {0};
    *out = -1;
    lh_status_t status = tokenizer_encode(c->tokenizer, tokenizer, behind, strlen(behind),
                                          SPELLING_IS_TOKEN, &ids);
    if (status == LH_OK && ids.count > 0)
        status = tokenizer_decode(c->tokenizer, &ids.ids[ids.count - 1], 1, false, &spelt);
    for (uint32_t i = 0; status == LH_OK && spelt.data != NULL && i < c->format.mark_count; i++)
        if (strcmp(c->format.marks[i], spelt.data) == 0) *out = ids.ids[ids.count - 1];
    token_ids_free(&ids);
    text_free(&spelt);
    return status;
}
