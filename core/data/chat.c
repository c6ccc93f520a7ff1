/* chat.c - formats of conversations as tables, and what becomes of a line by one of them.
 *
 * The tables are those of the models' own templates, which are programs in Jinja: what these do
 * with messages of text, without tools, fits a line for each role. A message that spells one of a
 * format's own tokens would end its turn early, in training as later in use; such a line is
 * refused.
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
#include <tokenizer/unicode_patterns.h>

enum { PART_BEGIN, PART_SYSTEM, PART_USER, PART_REPLY, PART_TAIL, PART_JOINED, PARTS };

/* Whose messages lose white space at both ends. JOINED: a user's together with the system's that
 * stands in it, and neither of them by itself. */
enum {
    TRIM_SYSTEM = 1u << 0,
    TRIM_USER = 1u << 1,
    TRIM_REPLY = 1u << 2,
    TRIM_JOINED = 1u << 3,
    TRIM_EACH = TRIM_SYSTEM | TRIM_USER | TRIM_REPLY
};

/* trim: TRIM_*, as the model's own template does. spelt: what stands in <..> is letters and no
 * token, as the model itself has it. joins_last: a system message stands in the last user's message
 * and not in the first. unsaid: what a system message says where there is none; NULL: nothing. */
typedef struct chat_format {
    const char *part[PARTS], *unsaid;
    uint32_t trim;
    bool spelt, joins_last;
} chat_format_t;

static const char turns_joined[] = "{system}\n\n{content}";
#define CHATML                                                     \
    {                                                              \
        "", "<|im_start|>system\n{content}<|im_end|>\n",           \
            "<|im_start|>user\n{content}<|im_end|>\n",             \
            "<|im_start|>assistant\n{content}<|im_end|>", "\n", "" \
    }

/* By CHAT_*. */
static const chat_format_t formats[] = {
    [CHAT_NONE] = {.part = {""}},
    [CHAT_CHATML] = {.part = CHATML},
    [CHAT_LLAMA2] = {.part = {"", "", "{bos}[INST] {content} [/INST]", " {content} {eos}", "",
                              "<<SYS>>\n{system}\n<</SYS>>\n\n{content}"},
                     .trim = TRIM_USER | TRIM_REPLY | TRIM_JOINED},
    [CHAT_LLAMA3] =
        {.part = {"{bos}", "<|start_header_id|>system<|end_header_id|>\n\n{content}<|eot_id|>",
                  "<|start_header_id|>user<|end_header_id|>\n\n{content}<|eot_id|>",
                  "<|start_header_id|>assistant<|end_header_id|>\n\n{content}<|eot_id|>", "", ""},
         .trim = TRIM_EACH},
    [CHAT_MISTRAL] = {.part = {"{bos}", "", "[INST] {content}[/INST]", " {content}{eos}", "",
                               turns_joined},
                      .trim = TRIM_REPLY,
                      .joins_last = true},
    [CHAT_GEMMA] = {.part = {"{bos}", "", "<start_of_turn>user\n{content}<end_of_turn>\n",
                             "<start_of_turn>model\n{content}<end_of_turn>", "\n", turns_joined},
                    .trim = TRIM_USER | TRIM_REPLY},
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

/* Texts of a format's own tokens, which messages may not spell. */
enum { MARKS = 16 };

struct chat {
    const tokenizer_t *tokenizer;
    char name[CHAT_NAME];
    char *messages, *prompt, *answer, *chosen, *rejected;
    bool pairs;
    /* With escapes and {bos}, {eos} already written out; {content} and {system} are left. */
    text_t part[PARTS];
    char *marks[MARKS];
    uint32_t mark_count;
    uint32_t trim; /* TRIM_* */
    bool spelt, joins_last;
    const char *unsaid; /* static; NULL: nothing */
};

void chat_format_name(uint32_t format, char out[CHAT_NAME])
{
    const char *at = JOB_CHAT_FORMATS;
    for (uint32_t i = 0; i < format; i++)
        at += strcspn(at, "|") + 1;
    (void)snprintf(out, CHAT_NAME, "%.*s", (int)strcspn(at, "|"), at);
}

/* ---- the parts ---- */

static const char content_word[] = "{content}", system_word[] = "{system}";

/* A token that the text spells, so that a message that spells it can be told. */
static lh_status_t mark_add(chat_t *c, const char *text, size_t length)
{
    if (length == 0 || c->mark_count == MARKS) return LH_OK;
    char *mark = mem_new(length + 1);
    if (mark == NULL) return LH_NO_MEMORY;
    memcpy(mark, text, length);
    for (uint32_t i = 0; i < c->mark_count; i++)
        if (strcmp(c->marks[i], mark) == 0) {
            mem_free(mark);
            return LH_OK;
        }
    c->marks[c->mark_count++] = mark;
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

static bool part_is_empty(const chat_t *c, uint32_t part)
{
    return c->part[part].length == 0;
}

/* Parts of [chat] take the place of the format's. */
static lh_status_t parts_make(chat_t *c, const job_chat_t *job)
{
    static const char *const keys[] = {"begin", "system", "user", "reply", "tail", "joined"};
    const char *const own[] = {job->begin, job->system, job->user,
                               job->reply, job->tail,   job->joined};
    const chat_format_t *format = &formats[job->format];
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < PARTS; i++) {
        const char *text = own[i] != NULL ? own[i] : format->part[i];
        const bool message = i == PART_USER || i == PART_REPLY ||
                             (text[0] != '\0' && i == PART_SYSTEM);
        const char *content = strstr(text, content_word);
        const bool joins = i == PART_JOINED && text[0] != '\0';
        if ((message || joins) && content == NULL)
            return fail(LH_INVALID, "[chat] %s = %s: expected {content} in it", keys[i], text);
        if (joins && strstr(text, system_word) == NULL)
            return fail(LH_INVALID, "[chat] %s = %s: expected {system} in it", keys[i], text);
        /* What is trained on begins there: a second one would begin what is not. */
        if (i == PART_REPLY && strstr(content + 1, content_word) != NULL)
            return fail(LH_INVALID, "[chat] %s = %s: expected {content} once in it", keys[i], text);
        status = part_make(c, keys[i], text, &c->part[i]);
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
    c->trim = formats[job->format].trim;
    c->spelt = formats[job->format].spelt;
    c->joins_last = formats[job->format].joins_last;
    c->unsaid = formats[job->format].unsaid;
    c->messages = mem_text(job->messages);
    c->prompt = mem_text(job->prompt);
    c->answer = mem_text(job->answer);
    c->chosen = mem_text(job->chosen);
    c->rejected = mem_text(job->rejected);
    c->pairs = job->pairs;
    const bool all = c->messages != NULL && c->prompt != NULL && c->answer != NULL &&
                     c->chosen != NULL && c->rejected != NULL;
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
    for (uint32_t i = 0; i < PARTS; i++)
        text_free(&c->part[i]);
    for (uint32_t i = 0; i < c->mark_count; i++)
        mem_free(c->marks[i]);
    mem_free(c->messages);
    mem_free(c->prompt);
    mem_free(c->answer);
    mem_free(c->chosen);
    mem_free(c->rejected);
    mem_free(c);
}

void chat_scratch_free(chat_scratch_t *scratch)
{
    json_free(scratch->line);
    text_free(&scratch->text);
    mem_free(scratch->cuts);
    token_ids_free(&scratch->before);
    *scratch = (chat_scratch_t){0};
}

/* ---- a line as text ---- */

/* A message's text, which lies in the line's document. */
typedef struct message_text {
    const char *bytes;
    size_t length;
} message_text_t;

/* The roles of a prompt and of its answer. */
static const message_text_t user_role = {"user", 4}, assistant_role = {"assistant", 9};

/* One conversation while it is written. */
typedef struct conversation {
    const chat_t *chat;
    chat_scratch_t *scratch;
    message_text_t system; /* that still has to be joined with a user's message; NULL: none */
    size_t number;         /* of messages written */
    size_t last_user;      /* number of the last message of a user's; 0: there is none */
    size_t known;          /* replies of so many first messages are no answers: what is trained on
                              comes behind them */
} conversation_t;

static lh_status_t cut_add(chat_scratch_t *s)
{
    size_t *cuts = mem_grow(s->cuts, &s->cut_capacity, s->cut_count + 1, sizeof(*cuts));
    if (cuts == NULL) return LH_NO_MEMORY;
    s->cuts = cuts;
    cuts[s->cut_count++] = s->text.length;
    return LH_OK;
}

/* What Python's strip, and with it the templates' trim, takes away: white space of Unicode, and the
 * four separators of ASCII. */
static bool character_is_blank(uint32_t c)
{
    return (c >= 0x1C && c <= 0x1F) || (unicode_class(c) & CLASS_SPACE) != 0;
}

/* White space at both ends. */
static message_text_t message_trimmed(message_text_t m)
{
    const unsigned char *begin = (const unsigned char *)m.bytes, *end = begin + m.length;
    uint32_t size;
    while (begin < end && character_is_blank(text_utf8_decode(begin, end, &size)))
        begin += size;
    while (begin < end) {
        const unsigned char *last = end - 1;
        while (last > begin && text_utf8_follows((char)*last))
            last--;
        if (!character_is_blank(text_utf8_decode(last, end, &size)) || last + size != end) break;
        end = last;
    }
    return (message_text_t){(const char *)begin, (size_t)(end - begin)};
}

/* A part with its words filled in, {system} in the joined one alone. Of a reply what is trained on
 * begins with {content} and goes to the end. */
static lh_status_t part_write(conversation_t *v, const text_t *part, message_text_t content,
                              bool reply)
{
    text_t *out = &v->scratch->text;
    const bool joins = part == &v->chat->part[PART_JOINED];
    lh_status_t status = LH_OK;
    for (const char *at = part->data == NULL ? "" : part->data; status == LH_OK && *at != '\0';) {
        if (text_starts(at, content_word)) {
            if (reply) status = cut_add(v->scratch);
            if (content.length > 0) text_append_n(out, content.bytes, content.length);
            at += strlen(content_word);
        } else if (joins && text_starts(at, system_word)) {
            text_append_n(out, v->system.bytes, v->system.length);
            at += strlen(system_word);
        } else {
            text_append_n(out, at++, 1);
        }
    }
    if (status == LH_OK && reply) status = cut_add(v->scratch);
    return status == LH_OK ? text_status(out) : status;
}

/* The user's part around the joined text. */
static lh_status_t joined_write(conversation_t *v, message_text_t content)
{
    chat_scratch_t inner = {0};
    conversation_t w = {.chat = v->chat, .scratch = &inner, .system = v->system};
    lh_status_t status = part_write(&w, &v->chat->part[PART_JOINED], content, false);
    v->system = (message_text_t){0};
    if (status == LH_OK) {
        message_text_t all = {inner.text.data, inner.text.length};
        if ((v->chat->trim & TRIM_JOINED) != 0) all = message_trimmed(all);
        status = part_write(v, &v->chat->part[PART_USER], all, false);
    }
    chat_scratch_free(&inner);
    return status;
}

/* number counts from 1, for sentences. */
static lh_status_t marks_check(const chat_t *c, message_text_t m, size_t number)
{
    for (uint32_t i = 0; i < c->mark_count; i++)
        if (memmem(m.bytes, m.length, c->marks[i], strlen(c->marks[i])) != NULL)
            return fail(LH_INVALID,
                        "message %zu holds '%s', which is a token of the format %s; expected text",
                        number, c->marks[i], c->name);
    return LH_OK;
}

/* The whole text: a role that goes on behind a NUL is another one. */
static bool role_is(message_text_t role, const char *name)
{
    return role.length == strlen(name) && memcmp(role.bytes, name, role.length) == 0;
}

/* A role is whatever stands in the file: it is shown, not copied. */
static lh_status_t role_refuse(message_text_t role, size_t number)
{
    text_t shown = {0};
    for (size_t at = 0; at <= role.length; at += strlen(role.bytes + at) + 1) {
        if (at > 0) text_append(&shown, "\\x00");
        text_append_shown(&shown, role.bytes + at, false);
    }
    const lh_status_t status = fail(
        LH_INVALID, "message %zu: role '%.40s' found, expected system, user or assistant", number,
        shown.data == NULL ? "" : shown.data);
    text_free(&shown);
    return status;
}

/* The next message of the conversation. */
static lh_status_t message_write(conversation_t *v, message_text_t role, message_text_t m)
{
    const chat_t *c = v->chat;
    const size_t number = ++v->number;
    lh_status_t status = marks_check(c, m, number);
    if (status != LH_OK) return status;
    if (number == 1 && c->unsaid != NULL && !role_is(role, "system"))
        status = part_write(v, &c->part[PART_SYSTEM],
                            (message_text_t){c->unsaid, strlen(c->unsaid)}, false);
    if (status != LH_OK) return status;
    const bool waits = c->joins_last && number < v->last_user; /* the system's text does */
    if (role_is(role, "user")) {
        const bool joins = v->system.bytes != NULL && !waits;
        const bool alone = !joins || (c->trim & TRIM_JOINED) == 0;
        if ((c->trim & TRIM_USER) != 0 && alone) m = message_trimmed(m);
        return joins ? joined_write(v, m) : part_write(v, &c->part[PART_USER], m, false);
    }
    if (role_is(role, "assistant")) {
        if (v->system.bytes != NULL && !waits)
            return fail(LH_INVALID,
                        "message %zu: role 'assistant' found, expected 'user', whose message holds "
                        "the system's in the format %s",
                        number, c->name);
        if ((c->trim & TRIM_REPLY) != 0) m = message_trimmed(m);
        status = part_write(v, &c->part[PART_REPLY], m, number > v->known);
        return status == LH_OK ? part_write(v, &c->part[PART_TAIL], m, false) : status;
    }
    if (!role_is(role, "system")) return role_refuse(role, number);
    if (number != 1)
        return fail(LH_INVALID,
                    "message %zu: role 'system' found, expected user or assistant behind the first",
                    number);
    if ((c->trim & TRIM_SYSTEM) != 0) m = message_trimmed(m);
    if (!part_is_empty(c, PART_SYSTEM)) return part_write(v, &c->part[PART_SYSTEM], m, false);
    if (part_is_empty(c, PART_JOINED))
        return fail(LH_INVALID, "message %zu: the format %s has no place for role 'system'", number,
                    c->name);
    v->system = m;
    return LH_OK;
}

/* A text of an object, with a sentence for what else stands there. */
static lh_status_t message_take_text(const json_value_t *map, const char *key, size_t number,
                                     message_text_t *out)
{
    char found[JSON_FOUND], where[32] = "";
    const json_value_t *v = json_member(map, key);
    if (json_is_text(v)) {
        *out = (message_text_t){json_text(v), json_text_length(v)};
        return LH_OK;
    }
    if (number > 0) (void)snprintf(where, sizeof(where), "message %zu: ", number);
    json_found(v, found);
    return fail(LH_INVALID, "%s'%.40s' is %s, a text was expected", where, key, found);
}

/* A message of a list, [number] of the conversation. */
static lh_status_t message_take(const json_value_t *map, size_t number, message_text_t *role,
                                message_text_t *content)
{
    const lh_status_t status = message_take_text(map, "role", number, role);
    return status == LH_OK ? message_take_text(map, "content", number, content) : status;
}

/* The role of a message; "" where it says none. */
static message_text_t role_of(const json_value_t *message)
{
    const json_value_t *role = json_member(message, "role");
    if (!json_is_text(role)) return (message_text_t){"", 0};
    return (message_text_t){json_text(role), json_text_length(role)};
}

/* Notes which of the messages that a list adds to the conversation is the last of a user's; so many
 * come before the list. */
static void last_user_note(conversation_t *v, size_t before, const json_value_t *list)
{
    if (!json_is_list(list)) return;
    for (json_walk_t w = json_walk(list); json_next(&w);)
        if (role_is(role_of(w.value), "user")) v->last_user = before + w.index + 1;
}

static lh_status_t messages_write(conversation_t *v, const char *key, const json_value_t *list)
{
    char found[JSON_FOUND];
    lh_status_t status = LH_OK;
    if (!json_is_list(list) || json_size(list) == 0) {
        json_found(list, found);
        return fail(LH_INVALID, "'%.40s' is %s, a list of messages was expected", key, found);
    }
    for (json_walk_t w = json_walk(list); status == LH_OK && json_next(&w);) {
        message_text_t role, content;
        status = message_take(w.value, v->number + 1, &role, &content);
        if (status == LH_OK) status = message_write(v, role, content);
    }
    return status;
}

/* A text begins, of the line that was read: its object has messages or a prompt. */
static lh_status_t chat_line_begin(conversation_t *v)
{
    const chat_t *c = v->chat;
    const json_value_t *root = json_root(v->scratch->line);
    if (json_member(root, c->messages) == NULL && json_member(root, c->prompt) == NULL)
        return fail(LH_INVALID,
                    "neither '%.40s' nor '%.40s' is there; expected messages, or a prompt "
                    "and its answer",
                    c->messages, c->prompt);
    return part_write(v, &c->part[PART_BEGIN], (message_text_t){"", 0}, false);
}

/* The line's conversation as scratch->text and its cuts. */
static lh_status_t chat_line_write(const chat_t *c, chat_scratch_t *s)
{
    conversation_t v = {.chat = c, .scratch = s};
    message_text_t prompt, answer;
    lh_status_t status = chat_line_begin(&v);
    if (status != LH_OK) return status;
    const json_value_t *root = json_root(s->line), *list = json_member(root, c->messages);
    if (list != NULL) {
        last_user_note(&v, 0, list);
        status = messages_write(&v, c->messages, list);
    } else {
        status = message_take_text(root, c->prompt, 0, &prompt);
        if (status == LH_OK) status = message_take_text(root, c->answer, 0, &answer);
        if (status == LH_OK) status = message_write(&v, user_role, prompt);
        if (status == LH_OK) status = message_write(&v, assistant_role, answer);
    }
    if (status == LH_OK && s->cut_count == 0)
        status = fail(LH_INVALID, "no message is the assistant's; expected an answer to train on");
    return status;
}

/* What stands before an answer, without blanks at its end: these are of the answer's first token. */
static lh_status_t answer_open(conversation_t *v)
{
    const text_t *reply = &v->chat->part[PART_REPLY];
    const char *content = strstr(reply->data, content_word);
    size_t length = (size_t)(content - reply->data);
    while (length > 0 && reply->data[length - 1] == ' ')
        length--;
    text_append_n(&v->scratch->text, reply->data, length);
    return text_status(&v->scratch->text);
}

/* ---- a line with two answers ---- */

/* False where one of them is no text. */
static bool texts_same(const json_value_t *x, const json_value_t *y)
{
    return json_is_text(x) && json_is_text(y) && json_text_length(x) == json_text_length(y) &&
           memcmp(json_text(x), json_text(y), json_text_length(x)) == 0;
}

/* How many messages two lists begin with in common; 0 where one of them is no list. */
static size_t messages_common(const json_value_t *a, const json_value_t *b)
{
    size_t count = 0;
    if (!json_is_list(a) || !json_is_list(b)) return 0;
    json_walk_t of_a = json_walk(a), of_b = json_walk(b);
    while (json_next(&of_a) && json_next(&of_b)) {
        static const char *const keys[] = {"role", "content"};
        for (int i = 0; i < 2; i++)
            if (!texts_same(json_member(of_a.value, keys[i]), json_member(of_b.value, keys[i])))
                return count;
        count++;
    }
    return count;
}

/* The role of a list's first message; "" where there is none. */
static message_text_t first_role(const json_value_t *list)
{
    json_walk_t w = json_walk(list);
    return role_of(json_is_list(list) && json_next(&w) ? w.value : NULL);
}

/* Whether a list of messages begins with the prompt, a text or a list itself. */
static bool begins_with(const json_value_t *list, const json_value_t *prompt)
{
    json_walk_t w = json_walk(list);
    if (json_is_list(prompt))
        return json_size(prompt) > 0 && messages_common(list, prompt) == json_size(prompt);
    return role_is(first_role(list), "user") && json_next(&w) &&
           texts_same(json_member(w.value, "content"), prompt);
}

/* What stands before both answers; *out NULL: nothing but what their lists begin with in common. Data
 * sets such as UltraFeedback have the prompt, and in each list once more: it counts once. */
static lh_status_t prompt_take(const chat_t *c, const json_value_t *root, const json_value_t **out)
{
    const json_value_t *first = json_member(root, c->chosen),
                       *second = json_member(root, c->rejected);
    const message_text_t roles[] = {first_role(first), first_role(second)};
    *out = json_member(root, c->prompt);
    if (*out == NULL && json_is_list(first) && json_is_list(second) &&
        messages_common(first, second) == 0)
        return fail(LH_INVALID,
                    "'%.40s' and '%.40s' have no message in common, and '%.40s' is not there; "
                    "expected a prompt, or two lists of messages that begin with it",
                    c->chosen, c->rejected, c->prompt);
    if (*out == NULL) return LH_OK;
    for (int i = 0; i < 2; i++) {
        if (!role_is(roles[i], "user") && !role_is(roles[i], "system")) continue;
        if (!begins_with(first, *out) || !begins_with(second, *out))
            return fail(LH_INVALID,
                        "'%.40s' begins with a message of role '%s', and '%.40s' is not what both "
                        "answers begin with; expected answers of the assistant's, or that prompt "
                        "before both",
                        i == 0 ? c->chosen : c->rejected, roles[i].bytes, c->prompt);
        *out = NULL;
        return LH_OK;
    }
    return LH_OK;
}

/* The conversation with the answer `key` names as scratch->text and its cuts. The prompt is a text,
 * the user's, or a list of messages; so is the answer, the assistant's. Without a prompt each list
 * is a conversation, and what both begin with in common is the prompt. */
static lh_status_t side_write(const chat_t *c, chat_scratch_t *s, const char *key)
{
    conversation_t v = {.chat = c, .scratch = s};
    message_text_t text;
    const json_value_t *root = json_root(s->line), *prompt;
    const json_value_t *answer = json_member(root, key);
    const json_value_t *first = json_member(root, c->chosen),
                       *second = json_member(root, c->rejected);
    if (first == NULL || second == NULL)
        return fail(LH_INVALID, "'%.40s' is not there; expected '%.40s' and '%.40s', two answers",
                    first == NULL ? c->chosen : c->rejected, c->chosen, c->rejected);
    lh_status_t status = prompt_take(c, root, &prompt);
    if (status != LH_OK) return status;
    if (prompt == NULL && !json_is_list(answer))
        return fail(LH_INVALID,
                    "'%.40s' is not there, and '%.40s' is no list; expected a prompt, or two lists "
                    "of messages that begin with it",
                    c->prompt, key);
    const size_t before = prompt == NULL ? 0 : json_is_list(prompt) ? json_size(prompt) : 1;
    v.known = SIZE_MAX;
    last_user_note(&v, 0, prompt);
    last_user_note(&v, before, answer);
    status = part_write(&v, &c->part[PART_BEGIN], (message_text_t){"", 0}, false);
    if (status == LH_OK && prompt != NULL && !json_is_list(prompt)) {
        status = message_take_text(root, c->prompt, 0, &text);
        if (status == LH_OK) status = message_write(&v, user_role, text);
    } else if (status == LH_OK && prompt != NULL) {
        status = messages_write(&v, c->prompt, prompt);
    }
    v.known = v.number + messages_common(first, second);
    if (status == LH_OK && json_is_list(answer)) {
        status = messages_write(&v, key, answer);
    } else if (status == LH_OK) {
        status = message_take_text(root, key, 0, &text);
        if (status == LH_OK) status = message_write(&v, assistant_role, text);
    }
    if (status == LH_OK && s->cut_count == 0)
        status = fail(
            LH_INVALID,
            "'%.40s' has no answer of its own; expected a message of the assistant's that "
            "the other does not begin with",
            key);
    return status;
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
    lh_status_t status = tokenizer_encode(c->tokenizer, tokenizer, s->text.data, at,
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
    for (size_t i = 0; status == LH_OK && i < s->cut_count; i++) {
        size_t at = count;
        if (s->cuts[i] < s->text.length)
            status = ids_before(c, s, tokenizer, s->cuts[i], ids, count, &at);
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
static lh_status_t chat_text_encode(const chat_t *c, chat_scratch_t *scratch,
                                    tokenizer_scratch_t *tokenizer, token_ids_t *ids,
                                    token_ids_t *parts)
{
    const size_t ids_were = ids->count;
    lh_status_t status = tokenizer_encode(c->tokenizer, tokenizer,
                                          scratch->text.data == NULL ? "" : scratch->text.data,
                                          scratch->text.length, SPELLING_IS_TOKEN, ids);
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
        scratch->text.length = scratch->cut_count = 0;
        second = ids->count;
        if (i == 1) status = token_ids_add(parts, 0);
        if (status == LH_OK) status = side_write(c, scratch, i == 0 ? c->chosen : c->rejected);
        if (status == LH_OK) status = chat_text_encode(c, scratch, tokenizer, ids, parts);
    }
    if (status != LH_OK) return status;
    const size_t count = second - begin;
    if (ids->count - second != count ||
        memcmp(ids->ids + begin, ids->ids + second, count * sizeof(*ids->ids)) != 0)
        return LH_OK;
    return fail(LH_INVALID,
                "'%.40s' and '%.40s' are equal, the same %zu tokens; expected answers that differ",
                c->chosen, c->rejected, count);
}

lh_status_t chat_encode(const chat_t *c, chat_scratch_t *scratch, tokenizer_scratch_t *tokenizer,
                        const char *line, size_t length, token_ids_t *ids, token_ids_t *parts)
{
    const size_t ids_were = ids->count, parts_were = parts->count;
    scratch->text.length = scratch->cut_count = 0;
    lh_status_t status = json_line_read(line, length, &scratch->line);
    if (status == LH_OK && c->pairs)
        status = pair_encode(c, scratch, tokenizer, ids, parts);
    else if (status == LH_OK && (status = chat_line_write(c, scratch)) == LH_OK)
        status = chat_text_encode(c, scratch, tokenizer, ids, parts);
    if (status == LH_OK) return LH_OK;
    ids->count = ids_were;
    parts->count = parts_were;
    return status;
}

/* scratch->text as ids, whole. */
static lh_status_t prompt_ids(const chat_t *c, const chat_scratch_t *s,
                              tokenizer_scratch_t *tokenizer, token_ids_t *ids)
{
    return tokenizer_encode(c->tokenizer, tokenizer, s->text.data == NULL ? "" : s->text.data,
                            s->text.length, SPELLING_IS_TOKEN, ids);
}

lh_status_t chat_encode_line(const chat_t *c, chat_scratch_t *scratch,
                             tokenizer_scratch_t *tokenizer, const char *line, size_t length,
                             token_ids_t *ids)
{
    conversation_t v = {.chat = c, .scratch = scratch};
    message_text_t prompt;
    scratch->text.length = scratch->cut_count = 0;
    lh_status_t status = json_line_read(line, length, &scratch->line);
    if (status == LH_OK) status = chat_line_begin(&v);
    if (status != LH_OK) return status;
    const json_value_t *root = json_root(scratch->line), *list = json_member(root, c->messages);
    if (list != NULL) {
        last_user_note(&v, 0, list);
        status = messages_write(&v, c->messages, list);
        const message_text_t last = role_of(json_item(list, json_size(list) - 1));
        if (status == LH_OK && !role_is(last, "user"))
            status = fail(LH_INVALID,
                          "the last message is of role '%s', expected a user's to answer",
                          last.bytes);
    } else {
        status = message_take_text(root, c->prompt, 0, &prompt);
        if (status == LH_OK) status = message_write(&v, user_role, prompt);
    }
    if (status == LH_OK) status = answer_open(&v);
    return status == LH_OK ? prompt_ids(c, scratch, tokenizer, ids) : status;
}

lh_status_t chat_encode_prompt(const chat_t *c, chat_scratch_t *scratch,
                               tokenizer_scratch_t *tokenizer, const char *text, size_t length,
                               token_ids_t *ids)
{
    conversation_t v = {.chat = c, .scratch = scratch};
    scratch->text.length = scratch->cut_count = 0;
    lh_status_t status = part_write(&v, &c->part[PART_BEGIN], (message_text_t){"", 0}, false);
    if (status == LH_OK) status = message_write(&v, user_role, (message_text_t){text, length});
    if (status == LH_OK) status = answer_open(&v);
    return status == LH_OK ? prompt_ids(c, scratch, tokenizer, ids) : status;
}

/* What stands behind an answer's content ends with it, where its last id spells one of the format's
 * tokens. */
lh_status_t chat_end(const chat_t *c, tokenizer_scratch_t *tokenizer, int32_t *out)
{
    const text_t *reply = &c->part[PART_REPLY];
    const char *behind = strstr(reply->data, content_word) + strlen(content_word);
    token_ids_t ids = {0};
    text_t spelt = {0};
    *out = -1;
    lh_status_t status = tokenizer_encode(c->tokenizer, tokenizer, behind, strlen(behind),
                                          SPELLING_IS_TOKEN, &ids);
    if (status == LH_OK && ids.count > 0)
        status = tokenizer_decode(c->tokenizer, &ids.ids[ids.count - 1], 1, false, &spelt);
    for (uint32_t i = 0; status == LH_OK && spelt.data != NULL && i < c->mark_count; i++)
        if (strcmp(c->marks[i], spelt.data) == 0) *out = ids.ids[ids.count - 1];
    token_ids_free(&ids);
    text_free(&spelt);
    return status;
}
