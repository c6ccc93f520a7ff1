/* chat_text.c - what becomes of messages by a format's texts, and of which messages a conversation is.
 *
 * A format is filled in and never interpreted: its parts are texts with one word for what a message
 * says, so a template that decides by anything but roles and their order has no place here. That is
 * what lets a line be refused with a sentence of its own, where a program in Jinja would write
 * something. A message that spells one of a format's own tokens would end its turn early, in training
 * as later in use; such a line is refused.
 *
 * A line with two answers is two conversations. Each is written whole and by itself, their prompt
 * twice: that costs a second pass over it, and lets one function say what a conversation is. */
#include <data/chat_text.h>

#include <stdio.h>

#include <base/memory.h>
#include <tokenizer/unicode_patterns.h>

/* A message's text, which lies in the line's document. */
typedef struct message_text {
    const char *bytes;
    size_t length;
} message_text_t;

/* The roles of a prompt and of its answer. */
static const message_text_t user_role = {"user", 4}, assistant_role = {"assistant", 9};

/* One conversation while it is written. */
typedef struct conversation {
    const chat_format_t *format;
    chat_text_t *out;
    message_text_t system; /* that still has to be joined with a user's message; NULL: none */
    size_t number;         /* of messages written */
    size_t last_user;      /* number of the last message of a user's; 0: there is none */
    size_t known;          /* replies of so many first messages are no answers: what is trained on
                              comes behind them */
} conversation_t;

/* What the text held before is gone. */
static conversation_t conversation_new(const chat_format_t *f, chat_text_t *out)
{
    out->text.length = out->cut_count = 0;
    return (conversation_t){.format = f, .out = out};
}

void chat_text_free(chat_text_t *text)
{
    text_free(&text->text);
    mem_free(text->cuts);
    *text = (chat_text_t){0};
}

static lh_status_t cut_add(chat_text_t *s)
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
    text_t *out = &v->out->text;
    const bool joins = part == &v->format->part[CHAT_PART_JOINED];
    lh_status_t status = LH_OK;
    for (const char *at = part->data == NULL ? "" : part->data; status == LH_OK && *at != '\0';) {
        if (text_starts(at, CHAT_CONTENT)) {
            if (reply) status = cut_add(v->out);
            if (content.length > 0) text_append_n(out, content.bytes, content.length);
            at += strlen(CHAT_CONTENT);
        } else if (joins && text_starts(at, CHAT_SYSTEM)) {
            text_append_n(out, v->system.bytes, v->system.length);
            at += strlen(CHAT_SYSTEM);
        } else {
            text_append_n(out, at++, 1);
        }
    }
    if (status == LH_OK && reply) status = cut_add(v->out);
    return status == LH_OK ? text_status(out) : status;
}

/* The user's part around the joined text. */
static lh_status_t joined_write(conversation_t *v, message_text_t content)
{
    chat_text_t inner = {0};
    conversation_t w = {.format = v->format, .out = &inner, .system = v->system};
    lh_status_t status = part_write(&w, &v->format->part[CHAT_PART_JOINED], content, false);
    v->system = (message_text_t){0};
    if (status == LH_OK) {
        message_text_t all = {inner.text.data, inner.text.length};
        if ((v->format->trim & CHAT_TRIM_JOINED) != 0) all = message_trimmed(all);
        status = part_write(v, &v->format->part[CHAT_PART_USER], all, false);
    }
    chat_text_free(&inner);
    return status;
}

/* number counts from 1, for sentences. */
static lh_status_t marks_check(const chat_format_t *f, message_text_t m, size_t number)
{
    for (uint32_t i = 0; i < f->mark_count; i++)
        if (memmem(m.bytes, m.length, f->marks[i], strlen(f->marks[i])) != NULL)
            return fail(LH_INVALID,
                        "message %zu holds '%s', which is a token of the format %s; expected text",
                        number, f->marks[i], f->name);
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

static bool part_is_empty(const chat_format_t *f, uint32_t part)
{
    return f->part[part].length == 0;
}

/* The next message of the conversation. */
static lh_status_t message_write(conversation_t *v, message_text_t role, message_text_t m)
{
    const chat_format_t *f = v->format;
    const size_t number = ++v->number;
    lh_status_t status = marks_check(f, m, number);
    if (status != LH_OK) return status;
    if (number == 1 && f->unsaid != NULL && !role_is(role, "system"))
        status = part_write(v, &f->part[CHAT_PART_SYSTEM],
                            (message_text_t){f->unsaid, strlen(f->unsaid)}, false);
    if (status != LH_OK) return status;
    const bool waits = f->joins_last && number < v->last_user; /* the system's text does */
    if (role_is(role, "user")) {
        const bool joins = v->system.bytes != NULL && !waits;
        const bool alone = !joins || (f->trim & CHAT_TRIM_JOINED) == 0;
        if ((f->trim & CHAT_TRIM_USER) != 0 && alone) m = message_trimmed(m);
        return joins ? joined_write(v, m) : part_write(v, &f->part[CHAT_PART_USER], m, false);
    }
    if (role_is(role, "assistant")) {
        if (v->system.bytes != NULL && !waits)
            return fail(LH_INVALID,
                        "message %zu: role 'assistant' found, expected 'user', whose message holds "
                        "the system's in the format %s",
                        number, f->name);
        if ((f->trim & CHAT_TRIM_REPLY) != 0) m = message_trimmed(m);
        status = part_write(v, &f->part[CHAT_PART_REPLY], m, number > v->known);
        return status == LH_OK ? part_write(v, &f->part[CHAT_PART_TAIL], m, false) : status;
    }
    if (!role_is(role, "system")) return role_refuse(role, number);
    if (number != 1)
        return fail(LH_INVALID,
                    "message %zu: role 'system' found, expected user or assistant behind the first",
                    number);
    if ((f->trim & CHAT_TRIM_SYSTEM) != 0) m = message_trimmed(m);
    if (!part_is_empty(f, CHAT_PART_SYSTEM))
        return part_write(v, &f->part[CHAT_PART_SYSTEM], m, false);
    if (part_is_empty(f, CHAT_PART_JOINED))
        return fail(LH_INVALID, "message %zu: the format %s has no place for role 'system'", number,
                    f->name);
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

/* A text begins, of a line: its messages, or its prompt as a user's. *list: these messages, or NULL. */
static lh_status_t line_write(conversation_t *v, const json_value_t *root,
                              const json_value_t **list)
{
    const chat_format_t *f = v->format;
    message_text_t prompt;
    *list = json_member(root, f->messages);
    if (*list == NULL && json_member(root, f->prompt) == NULL)
        return fail(LH_INVALID,
                    "neither '%.40s' nor '%.40s' is there; expected messages, or a prompt "
                    "and its answer",
                    f->messages, f->prompt);
    lh_status_t status = part_write(v, &f->part[CHAT_PART_BEGIN], (message_text_t){"", 0}, false);
    if (status != LH_OK) return status;
    if (*list != NULL) {
        last_user_note(v, 0, *list);
        return messages_write(v, f->messages, *list);
    }
    status = message_take_text(root, f->prompt, 0, &prompt);
    return status == LH_OK ? message_write(v, user_role, prompt) : status;
}

lh_status_t chat_text_line(const chat_format_t *f, const json_value_t *root, chat_text_t *out)
{
    conversation_t v = conversation_new(f, out);
    const json_value_t *list;
    message_text_t answer;
    lh_status_t status = line_write(&v, root, &list);
    if (status == LH_OK && list == NULL) {
        status = message_take_text(root, f->answer, 0, &answer);
        if (status == LH_OK) status = message_write(&v, assistant_role, answer);
    }
    if (status == LH_OK && out->cut_count == 0)
        status = fail(LH_INVALID, "no message is the assistant's; expected an answer to train on");
    return status;
}

/* What stands before an answer, without blanks at its end: these are of the answer's first token. */
static lh_status_t answer_open(conversation_t *v)
{
    const text_t *reply = &v->format->part[CHAT_PART_REPLY];
    const char *content = strstr(reply->data, CHAT_CONTENT);
    size_t length = (size_t)(content - reply->data);
    while (length > 0 && reply->data[length - 1] == ' ')
        length--;
    text_append_n(&v->out->text, reply->data, length);
    return text_status(&v->out->text);
}

lh_status_t chat_text_question(const chat_format_t *f, const json_value_t *root, chat_text_t *out)
{
    conversation_t v = conversation_new(f, out);
    const json_value_t *list;
    lh_status_t status = line_write(&v, root, &list);
    if (status == LH_OK && list != NULL) {
        const message_text_t last = role_of(json_item(list, json_size(list) - 1));
        if (!role_is(last, "user"))
            status = fail(LH_INVALID,
                          "the last message is of role '%s', expected a user's to answer",
                          last.bytes);
    }
    return status == LH_OK ? answer_open(&v) : status;
}

lh_status_t chat_text_prompt(const chat_format_t *f, const char *text, size_t length,
                             chat_text_t *out)
{
    conversation_t v = conversation_new(f, out);
    lh_status_t status = part_write(&v, &f->part[CHAT_PART_BEGIN], (message_text_t){"", 0}, false);
    if (status == LH_OK) status = message_write(&v, user_role, (message_text_t){text, length});
    return status == LH_OK ? answer_open(&v) : status;
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
static lh_status_t prompt_take(const chat_format_t *f, const json_value_t *root,
                               const json_value_t **out)
{
    const json_value_t *first = json_member(root, f->chosen),
                       *second = json_member(root, f->rejected);
    const message_text_t roles[] = {first_role(first), first_role(second)};
    *out = json_member(root, f->prompt);
    if (*out == NULL && json_is_list(first) && json_is_list(second) &&
        messages_common(first, second) == 0)
        return fail(LH_INVALID,
                    "'%.40s' and '%.40s' have no message in common, and '%.40s' is not there; "
                    "expected a prompt, or two lists of messages that begin with it",
                    f->chosen, f->rejected, f->prompt);
    if (*out == NULL) return LH_OK;
    for (int i = 0; i < 2; i++) {
        if (!role_is(roles[i], "user") && !role_is(roles[i], "system")) continue;
        if (!begins_with(first, *out) || !begins_with(second, *out))
            return fail(LH_INVALID,
                        "'%.40s' begins with a message of role '%s', and '%.40s' is not what both "
                        "answers begin with; expected answers of the assistant's, or that prompt "
                        "before both",
                        i == 0 ? f->chosen : f->rejected, roles[i].bytes, f->prompt);
        *out = NULL;
        return LH_OK;
    }
    return LH_OK;
}

/* The prompt is a text, the user's, or a list of messages; so is the answer, the assistant's. Without
 * a prompt each list is a conversation, and what both begin with in common is the prompt. */
lh_status_t chat_text_side(const chat_format_t *f, const json_value_t *root, const char *key,
                           chat_text_t *out)
{
    conversation_t v = conversation_new(f, out);
    message_text_t text;
    const json_value_t *prompt, *answer = json_member(root, key);
    const json_value_t *first = json_member(root, f->chosen),
                       *second = json_member(root, f->rejected);
    if (first == NULL || second == NULL)
        return fail(LH_INVALID, "'%.40s' is not there; expected '%.40s' and '%.40s', two answers",
                    first == NULL ? f->chosen : f->rejected, f->chosen, f->rejected);
    lh_status_t status = prompt_take(f, root, &prompt);
    if (status != LH_OK) return status;
    if (prompt == NULL && !json_is_list(answer))
        return fail(LH_INVALID,
                    "'%.40s' is not there, and '%.40s' is no list; expected a prompt, or two lists "
                    "of messages that begin with it",
                    f->prompt, key);
    const size_t before = prompt == NULL ? 0 : json_is_list(prompt) ? json_size(prompt) : 1;
    v.known = SIZE_MAX;
    last_user_note(&v, 0, prompt);
    last_user_note(&v, before, answer);
    status = part_write(&v, &f->part[CHAT_PART_BEGIN], (message_text_t){"", 0}, false);
    if (status == LH_OK && prompt != NULL && !json_is_list(prompt)) {
        status = message_take_text(root, f->prompt, 0, &text);
        if (status == LH_OK) status = message_write(&v, user_role, text);
    } else if (status == LH_OK && prompt != NULL) {
        status = messages_write(&v, f->prompt, prompt);
    }
    v.known = v.number + messages_common(first, second);
    if (status == LH_OK && json_is_list(answer)) {
        status = messages_write(&v, key, answer);
    } else if (status == LH_OK) {
        status = message_take_text(root, key, 0, &text);
        if (status == LH_OK) status = message_write(&v, assistant_role, text);
    }
    if (status == LH_OK && out->cut_count == 0)
        status = fail(
            LH_INVALID,
            "'%.40s' has no answer of its own; expected a message of the assistant's that "
            "the other does not begin with",
            key);
    return status;
}
