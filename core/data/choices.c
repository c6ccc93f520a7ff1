/* choices.c - reads questions with several continuations, and cuts them into ids as
 * lm-evaluation-harness does.
 *
 * A prompt is encoded once for itself and once for each choice together with it: what the two have
 * in length is the prompt's. That the ids at the border may differ where a token would reach over
 * it is the harness's own way, and kept, as its figures are what others are compared with. */
#include <data/choices.h>

#include <base/memory.h>
#include <base/text.h>
#include <data/input_lines.h>
#include <format/json.h>
#include <tokenizer/normalize_characters.h>

enum { CHOICES_MOST = 1024 }; /* of one question */

/* A line while it is looked at. */
typedef struct choice_line {
    choices_t *to;
    const choices_how_t *how;
    tokenizer_scratch_t *scratch;
    text_t text;   /* the prompt, a delimiter, a choice */
    size_t prompt; /* bytes of the prompt without white space at its end */
    size_t whole;  /* and with it                                        */
    token_ids_t context, pair;
} choice_line_t;

void choices_free(choices_t *c)
{
    mem_free(c->questions);
    mem_free(c->all);
    token_ids_free(&c->ids);
    *c = (choices_t){0};
}

/* What begins a continuation that has no prompt: the begin token, else the end token. */
static lh_status_t choice_context_empty(choice_line_t *l)
{
    const tokenizer_special_t *special = tokenizer_special(l->how->tokenizer);
    /* The harness's: what ends a text, be it that another token ends a document. */
    const int32_t end = special->eos >= 0 ? special->eos : special->eod;
    const int32_t id = special->bos >= 0 ? special->bos : end;
    if (id < 0)
        return fail(LH_INVALID, "'%.40s' is empty, and the tokenizer has no token to begin with",
                    l->how->set->prompt);
    return token_ids_add(&l->context, id);
}

/* With the begin token in front, where the set asks for it. */
static lh_status_t choice_encode(choice_line_t *l, size_t length, token_ids_t *out)
{
    out->count = 0;
    lh_status_t status = LH_OK;
    if (l->how->set->bos) status = token_ids_add(out, tokenizer_special(l->how->tokenizer)->bos);
    if (status != LH_OK) return status;
    return tokenizer_encode(l->how->tokenizer, l->scratch, l->text.data == NULL ? "" : l->text.data,
                            length, SPELLING_AS_REFERENCE, out);
}

/* The prompt as ids; white space at its end belongs to the choices. */
static lh_status_t choice_context(choice_line_t *l, const json_value_t *prompt)
{
    text_t left = {0};
    if (json_text_length(prompt) == 0) return choice_context_empty(l);
    text_append_n(&l->text, json_text(prompt), json_text_length(prompt));
    l->whole = l->text.length;
    lh_status_t status = text_status(&l->text);
    if (status == LH_OK) status = normalize_strip(false, true, l->text.data, l->text.length, &left);
    l->prompt = left.length;
    text_free(&left);
    if (status == LH_OK) status = choice_encode(l, l->prompt, &l->context);
    if (status == LH_OK && l->context.count == 0)
        status = fail(LH_INVALID, "'%.40s' has no token; expected a text, or an empty one",
                      l->how->set->prompt);
    return status;
}

static lh_status_t choice_ids_add(choices_t *c, const token_ids_t *ids, size_t from)
{
    lh_status_t status = LH_OK;
    for (size_t i = from; status == LH_OK && i < ids->count; i++)
        status = token_ids_add(&c->ids, ids->ids[i]);
    return status;
}

/* number counts from 0, as answers do. The ids of a prompt that is too long are left out from the
 * front; the choice itself must fit. */
static lh_status_t choice_add(choice_line_t *l, const json_value_t *text, size_t number)
{
    static const char *const delimiters[] = {
        [DELIMITER_SPACE] = " ", [DELIMITER_LINE] = "\n", [DELIMITER_NONE] = ""};
    char found[JSON_FOUND];
    choices_t *c = l->to;
    const bool alone = l->whole == 0;
    if (!json_is_text(text) || json_text_length(text) == 0) {
        json_found(text, found);
        return fail(LH_INVALID, "choice %zu is %s, a text of at least one character was expected",
                    number, found);
    }
    l->text.length = l->whole;
    text_append(&l->text, delimiters[l->how->set->delimiter]);
    text_append_n(&l->text, json_text(text), json_text_length(text));
    lh_status_t status = text_status(&l->text);
    if (status == LH_OK && !alone) status = choice_encode(l, l->text.length, &l->pair);
    if (status == LH_OK && alone) {
        l->pair.count = 0;
        status = tokenizer_encode(l->how->tokenizer, l->scratch, l->text.data, l->text.length,
                                  SPELLING_AS_REFERENCE, &l->pair);
    }
    if (status != LH_OK) return status;
    /* The harness does not put the begin token twice where the tokenizer itself writes it. */
    size_t skip = alone ? 0 : l->context.count;
    if (alone && l->pair.count > 1 && l->pair.ids[0] == l->context.ids[0]) skip = 1;
    if (l->pair.count <= skip)
        return fail(LH_INVALID, "choice %zu has no token of its own behind the prompt", number);
    const uint64_t own = l->pair.count - skip, most = l->how->tokens + 1;
    if (own + 1 > most)
        return fail(LH_INVALID, "choice %zu has %llu tokens; the model is made for %llu", number,
                    (unsigned long long)own, (unsigned long long)l->how->tokens);

    choice_t *all = mem_grow(c->all, &c->all_capacity, c->all_count + 1, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    c->all = all;
    const uint64_t room = most - own;
    const uint64_t context = l->context.count < room ? l->context.count : room;
    status = choice_ids_add(c, &l->context, l->context.count - context);
    if (status == LH_OK) status = choice_ids_add(c, &l->pair, skip);
    c->all[c->all_count++] = (choice_t){
        .count = context + own,
        .context = context,
        .characters = text_utf8_count(json_text(text), json_text_length(text)),
        .bytes = json_text_length(text)};
    if (context + own > c->longest) c->longest = context + own;
    return status;
}

/* A number from 0, or the text of one of them. */
static lh_status_t choice_right(const json_value_t *answer, const json_value_t *list,
                                const char *key, uint32_t *out)
{
    char found[JSON_FOUND];
    uint64_t number;
    if (json_count(answer, &number) && number < json_size(list)) {
        *out = (uint32_t)number;
        return LH_OK;
    }
    for (json_walk_t w = json_walk(list); json_is_text(answer) && json_next(&w);)
        if (json_text_length(w.value) == json_text_length(answer) &&
            memcmp(json_text(w.value), json_text(answer), json_text_length(answer)) == 0) {
            *out = (uint32_t)w.index;
            return LH_OK;
        }
    json_found(answer, found);
    return fail(LH_INVALID,
                "'%.40s' is %s, a number from 0 to %zu or the text of a choice was "
                "expected",
                key, found, json_size(list) - 1);
}

static lh_status_t question_add(choice_line_t *l, const json_value_t *root)
{
    const job_eval_set_t *set = l->how->set;
    const json_value_t *prompt = json_member(root, set->prompt);
    const json_value_t *list = json_member(root, set->choices);
    char found[JSON_FOUND];
    choices_t *c = l->to;
    if (!json_is_text(prompt)) {
        json_found(prompt, found);
        return fail(LH_INVALID, "'%.40s' is %s, a text was expected", set->prompt, found);
    }
    if (!json_is_list(list) || json_size(list) == 0 || json_size(list) > CHOICES_MOST) {
        json_found(list, found);
        return fail(LH_INVALID, "'%.40s' is %s, a list of 1 to %d texts was expected", set->choices,
                    found, CHOICES_MOST);
    }
    question_t q = {.first = c->all_count, .count = (uint32_t)json_size(list)};
    lh_status_t status = choice_context(l, prompt);
    for (json_walk_t w = json_walk(list); status == LH_OK && json_next(&w);)
        status = choice_add(l, w.value, w.index);
    if (status == LH_OK)
        status = choice_right(json_member(root, set->answer), list, set->answer, &q.right);
    if (status != LH_OK) return status;
    question_t *questions = mem_grow(c->questions, &c->capacity, c->count + 1, sizeof(*questions));
    if (questions == NULL) return LH_NO_MEMORY;
    c->questions = questions;
    c->questions[c->count++] = q;
    return LH_OK;
}

lh_status_t choices_add_line(choices_t *c, const choices_how_t *how, tokenizer_scratch_t *scratch,
                             const char *line, size_t length)
{
    choice_line_t l = {.to = c, .how = how, .scratch = scratch};
    json_document_t *document = NULL;
    const size_t all_were = c->all_count, ids_were = c->ids.count;
    lh_status_t status = json_line_read(line, length, &document);
    if (status == LH_OK) status = question_add(&l, json_root(document));
    if (status != LH_OK) {
        c->all_count = all_were;
        c->ids.count = ids_were;
    }
    json_free(document);
    text_free(&l.text);
    token_ids_free(&l.context);
    token_ids_free(&l.pair);
    return status;
}

lh_status_t choices_read(const choices_how_t *how, choices_t *out)
{
    input_texts_t *lines = NULL;
    tokenizer_scratch_t *scratch = NULL;
    const char *const path = how->set->data;
    if (how->set->bos && tokenizer_special(how->tokenizer)->bos < 0)
        return fail(LH_INVALID, "%s is to begin with BOS, but the tokenizer has none", path);
    lh_status_t status = tokenizer_scratch_new(how->tokenizer, &scratch);
    if (status == LH_OK)
        status = input_texts_open(&path, 1, NULL, how->line_bytes, how->window_bytes, &lines);
    for (bool end = false; status == LH_OK && !end;) {
        const char *line;
        size_t length;
        status = input_texts_next_line(lines, &line, &length, &end);
        if (status == LH_OK && !end)
            status = input_texts_place(lines, choices_add_line(out, how, scratch, line, length));
    }
    input_texts_close(lines);
    tokenizer_scratch_free(scratch);
    const int32_t *at = out->ids.ids;
    for (size_t i = 0; i < out->all_count; i++) {
        out->all[i].ids = at;
        at += out->all[i].count;
    }
    return status;
}
