/* spec_check.c - what names in a spec mean, before anything is recorded: none unknown, none in a
 * circle, none that nobody reads.
 *
 * A line may name what stands above it, so its order is that of the recording; a name from
 * further down is told as a cycle where that line needs this one. Values may stand in any order,
 * as they are only numbers. What an op makes of its arguments is known when it is recorded: here
 * a word behind a keyword may be a tensor, a number or the word of a choice, and whichever it is
 * counts as read.
 *
 * In a part a name is, in this order: the latest line above of that name; the part's input; one
 * of its parameters; another output of a line above, line.slot. Outside of parts it is an option
 * or a value, and behind a keyword that before it is a tensor. Each look-up marks what it finds,
 * and what is unmarked at the end is told. */
#include <spec/spec_check.h>

#include <stdio.h>

#include <base/memory.h>
#include <graph/recorder.h>

/* ---- look-ups ---- */

uint32_t spec_find_value(const spec_t *s, const char *name)
{
    uint32_t i = 0;
    while (i < s->value_count && strcmp(s->values[i].at->key, name) != 0)
        i++;
    return i;
}

/* The last line above `before`: a line may take the name of the part's input over. */
uint32_t spec_find_line(const spec_part_t *part, const char *name, uint32_t before)
{
    lh_assert(before <= part->count);
    for (uint32_t i = before; i-- > 0;)
        if (strcmp(part->lines[i].at->key, name) == 0) return i;
    return part->count;
}

/* Of a parameter without classes all blocks have one. */
bool spec_part_has(const spec_t *s, const spec_part_t *part, const spec_parameter_t *p)
{
    if (p->text.part + 1 != part->part) return false;
    lh_assert(p->text.classes == NULL || part->class < s->class_count);
    return p->text.classes == NULL || strchr(p->text.classes, s->letters[part->class]) != NULL;
}

/* Of the part alone: a line of the head can't name a block's parameter. */
const spec_parameter_t *spec_find_parameter(const spec_t *s, const spec_part_t *part,
                                            const char *name)
{
    for (uint32_t i = 0; i < s->parameter_count; i++)
        if (strcmp(s->parameters[i].name, name) == 0 && spec_part_has(s, part, &s->parameters[i]))
            return &s->parameters[i];
    return NULL;
}

size_t spec_slot_dot(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot == NULL ? 0 : (size_t)(dot - name);
}

spec_line_t *spec_find_adding(const spec_part_t *part, const char *name)
{
    for (uint32_t i = 0; i < part->count; i++)
        if (spec_call_kind(part->lines[i].tree) == SPEC_ACCUMULATES &&
            strcmp(part->lines[i].at->key, name) == 0)
            return &part->lines[i];
    return NULL;
}

/* Of the inputs of a step those that a model may read; labels, weights and the step's numbers are the
 * core's, and lengths are of generation alone. */
uint32_t spec_input(const char *name)
{
    const uint32_t which = recorder_input_of(name);
    const bool may_read = which == LH_INPUT_TOKENS || which == LH_INPUT_POSITIONS ||
                          which == LH_INPUT_STARTS || which == LH_INPUT_SEED;
    return may_read ? which : 0;
}

/* ---- a walk over the names of trees ---- */

/* Where the walk is: sentences begin with it. */
typedef struct spec_checker {
    spec_t *s;
    spec_part_t *part; /* NULL: outside of parts */
    uint32_t line;     /* of the part, at hand   */
    char where[700];
} spec_checker_t;

/* Marks an option or a value as read; false: it is neither. */
static bool number_mark(spec_t *s, const char *name)
{
    uint32_t index;
    if (spec_find_option(s, name, &index) != NULL) {
        s->options[index].used = true;
        return true;
    }
    index = spec_find_value(s, name);
    if (index == s->value_count) return false;
    s->values[index].used = true;
    return true;
}

/* Names of numbers, wherever they stand in a tree; words of choices are passed over. */
static void numbers_mark(spec_t *s, const spec_node_t *node)
{
    if (node->kind == SPEC_NODE_WORD) (void)number_mark(s, node->text);
    for (const spec_node_t *child = node->first; child != NULL; child = child->next)
        numbers_mark(s, child);
}

/* The same, of an expression in a line: no op, and no sum, is called in the middle of numbers. */
static lh_status_t numbers_check(spec_t *s, const char *where, const spec_node_t *node)
{
    lh_status_t status = LH_OK;
    if (node->kind == SPEC_NODE_CALL && !spec_is_function(node->text))
        return fail(LH_INVALID, "%s: %s() is no function of numbers: or, if, is, not", where,
                    node->text);
    if (node->kind == SPEC_NODE_WORD) (void)number_mark(s, node->text);
    for (const spec_node_t *child = node->first; child != NULL && status == LH_OK;
         child = child->next)
        status = numbers_check(s, where, child);
    return status;
}

/* is(OPTION, word) of a choice that has no such word would be 0 for ever. */
static lh_status_t words_check(const spec_t *s, const char *where, const spec_node_t *node)
{
    const spec_node_t *name = node->first, *word = name == NULL ? NULL : name->next;
    const lh_option_t *row = NULL;
    if (node->kind == SPEC_NODE_CALL && strcmp(node->text, "is") == 0 && word != NULL &&
        name->kind == SPEC_NODE_WORD && word->kind == SPEC_NODE_WORD)
        row = spec_find_option(s, name->text, NULL);
    if (row != NULL && row->type == LH_OPT_CHOICE) {
        text_nearest_t near = {.typed = word->text};
        bool known = false;
        char one[SPEC_NAME], best[SPEC_NAME] = "", meant[SPEC_MEANT];
        const char *at = row->range;
        while (at != NULL) {
            (void)snprintf(one, sizeof(one), "%.*s", (int)strcspn(at, "|"), at);
            known = known || strcmp(one, word->text) == 0;
            text_nearest_offer(&near, one);
            if (near.best == one) { /* which is written over next */
                memcpy(best, one, sizeof(best));
                near.best = best;
            }
            at = strchr(at, '|');
            if (at != NULL) at++;
        }
        if (!known)
            return fail(LH_INVALID, "%s: is(%s, %s): the choice has no such word (%s)%s", where,
                        name->text, word->text, row->range, spec_meant(&near, meant));
    }
    lh_status_t status = LH_OK;
    for (const spec_node_t *child = node->first; child != NULL && status == LH_OK;
         child = child->next)
        status = words_check(s, where, child);
    return status;
}

static void list_mark(spec_t *s, const spec_node_t *list)
{
    for (const spec_node_t *node = list; node != NULL; node = node->next)
        numbers_mark(s, node);
}

/* Whether a tree of line `from` names another line, as it stands or with a slot. The name of the
 * part's input is that line's only from there on. */
static bool names_line(const spec_part_t *part, uint32_t from, const spec_node_t *node,
                       uint32_t line)
{
    lh_assert(line < part->count);
    const char *key = part->lines[line].at->key;
    if (line >= from && strcmp(key, part->input) == 0) return false;
    if (node->kind == SPEC_NODE_WORD &&
        (strcmp(node->text, key) == 0 ||
         (spec_slot_dot(node->text) == strlen(key) && text_starts(node->text, key))))
        return true;
    for (const spec_node_t *child = node->first; child != NULL; child = child->next)
        if (names_line(part, from, child, line)) return true;
    return false;
}

/* Whether line `from` needs line `to`, by whatever lines between; seen [count] ends circles. */
static bool line_needs(const spec_part_t *part, uint32_t from, uint32_t to, bool *seen)
{
    lh_assert(from < part->count);
    if (names_line(part, from, part->lines[from].tree, to)) return true;
    seen[from] = true;
    for (uint32_t i = 0; i < part->count; i++)
        if (!seen[i] && names_line(part, from, part->lines[from].tree, i) &&
            line_needs(part, i, to, seen))
            return true;
    return false;
}

/* A name that is made further down, or by the line itself. */
static lh_status_t refuse_later(const spec_checker_t *c, uint32_t line)
{
    const spec_part_t *part = c->part;
    bool seen[SPEC_LINES] = {false};
    lh_assert(line < part->count && c->line < part->count && part->count <= SPEC_LINES);
    const char *key = part->lines[line].at->key, *own = part->lines[c->line].at->key;
    if (line == c->line) return fail(LH_INVALID, "%s: a cycle: %s reads itself", c->where, own);
    if (line_needs(part, line, c->line, seen))
        return fail(LH_INVALID, "%s: a cycle: %s reads %s, and %s (line %u) needs %s", c->where,
                    own, key, key, part->lines[line].at->line, own);
    return fail(LH_INVALID, "%s: '%s' is made further down, at line %u", c->where, key,
                part->lines[line].at->line);
}

/* With the nearest of what could stand there. */
static lh_status_t refuse_unknown_name(const spec_checker_t *c, const char *name)
{
    text_nearest_t near = {.typed = name};
    text_nearest_offer(&near, c->part->input);
    for (uint32_t i = 0; i < c->line; i++)
        text_nearest_offer(&near, c->part->lines[i].at->key);
    for (uint32_t i = 0; i < c->s->parameter_count; i++)
        if (spec_part_has(c->s, c->part, &c->s->parameters[i]))
            text_nearest_offer(&near, c->s->parameters[i].name);
    char meant[SPEC_MEANT];
    return fail(LH_INVALID,
                "%s: '%s' is no line above, no parameter of this part and not its input, %s%s",
                c->where, name, c->part->input, spec_meant(&near, meant));
}

/* A line that makes no tensor, where one is named. */
static lh_status_t refuse_statement(const spec_checker_t *c, const spec_line_t *line)
{
    const bool sum = spec_call_kind(line->tree) == SPEC_ACCUMULATES;
    return fail(LH_INVALID, "%s: '%s' (line %u) is a %s and no tensor%s", c->where, line->at->key,
                line->at->line, sum ? "sum" : "loss",
                sum ? "; the head reads it, as total(NAME, count=N)" : "");
}

/* Marks what a tensor's name stands for; *known false: nothing of the part. */
static lh_status_t tensor_mark(spec_checker_t *c, const char *name, bool *known)
{
    spec_part_t *part = c->part;
    char base[SPEC_NAME] = "";
    *known = true;
    uint32_t line = spec_find_line(part, name, c->line);
    const spec_parameter_t *p = spec_find_parameter(c->s, part, name);
    if (line == part->count && strcmp(name, part->input) == 0) {
        part->reads_input = true;
        return LH_OK;
    }
    if (line == part->count && p != NULL) {
        ((spec_parameter_t *)p)->used = true;
        return LH_OK;
    }
    lh_assert(spec_slot_dot(name) < sizeof(base)); /* a node's text */
    memcpy(base, name, spec_slot_dot(name));
    if (line == part->count) line = spec_find_line(part, base, c->line);
    if (line != part->count) {
        if (spec_call_kind(part->lines[line].tree) != SPEC_MAKES)
            return refuse_statement(c, &part->lines[line]);
        part->lines[line].used = true;
        return LH_OK;
    }
    line = spec_find_line(part, name, part->count);
    if (line == part->count) line = spec_find_line(part, base, part->count);
    *known = line != part->count;
    return *known ? refuse_later(c, line) : LH_OK;
}

/* The embedding, then classes of blocks; the head adds to nothing. NULL behind the last. */
static const spec_part_t *part_at(const spec_t *s, uint32_t index)
{
    if (index == 0) return &s->embedding;
    return index <= s->class_count ? &s->blocks[index - 1] : NULL;
}

static bool sum_mark(spec_t *s, const char *name)
{
    const spec_part_t *part;
    bool known = false;
    for (uint32_t i = 0; (part = part_at(s, i)) != NULL; i++) {
        spec_line_t *line = spec_find_adding(part, name);
        if (line == NULL) continue;
        line->used = true;
        known = true;
    }
    return known;
}

static void sum_offer(const spec_t *s, text_nearest_t *near)
{
    const spec_part_t *part;
    for (uint32_t i = 0; (part = part_at(s, i)) != NULL; i++)
        for (uint32_t k = 0; k < part->count; k++)
            if (spec_call_kind(part->lines[k].tree) == SPEC_ACCUMULATES)
                text_nearest_offer(near, part->lines[k].at->key);
}

/* total(NAME, count=N): NAME is a sum, and N how many values it has. */
static lh_status_t total_check(const spec_checker_t *c, const spec_node_t *call)
{
    const spec_node_t *name = call->first, *count = name == NULL ? NULL : name->next;
    if (count == NULL || count->next != NULL || name->kind != SPEC_NODE_WORD ||
        name->keyword[0] != '\0' || strcmp(count->keyword, "count") != 0)
        return fail(LH_INVALID, "%s: total() takes a sum and how long it is: total(NAME, count=N)",
                    c->where);
    if (c->part->part != LH_PART_HEAD)
        return fail(LH_INVALID, "%s: total(%s): only the head reads sums", c->where, name->text);
    const lh_status_t status = numbers_check(c->s, c->where, count);
    if (status != LH_OK || sum_mark(c->s, name->text)) return status;
    text_nearest_t near = {.typed = name->text};
    char meant[SPEC_MEANT];
    sum_offer(c->s, &near);
    return fail(LH_INVALID, "%s: total(%s): no line of embedding or blocks adds to it%s", c->where,
                name->text, spec_meant(&near, meant));
}

static lh_status_t call_check(spec_checker_t *c, const spec_node_t *call);

/* Without a keyword it is a tensor; with one it may be a number too. */
static lh_status_t argument_check(spec_checker_t *c, const spec_node_t *call,
                                  const spec_node_t *arg)
{
    const bool named = arg->keyword[0] != '\0';
    bool known = true;
    if (arg->kind == SPEC_NODE_CALL && !spec_is_function(arg->text)) return call_check(c, arg);
    if (named && arg->kind != SPEC_NODE_WORD) return numbers_check(c->s, c->where, arg);
    if (named && number_mark(c->s, arg->text)) return LH_OK;
    if (arg->kind != SPEC_NODE_WORD)
        return fail(LH_INVALID,
                    "%s: %s() takes a number or an expression by its name, as in "
                    "%s(..., NAME=%s)",
                    c->where, call->text, call->text, arg->text[0] != '\0' ? arg->text : "2");
    const lh_status_t status = tensor_mark(c, arg->text, &known);
    return status == LH_OK && !known && !named ? refuse_unknown_name(c, arg->text) : status;
}

/* A call of an op, of what makes a constant, or of input and total. */
static lh_status_t call_check(spec_checker_t *c, const spec_node_t *call)
{
    lh_status_t status = LH_OK;
    if (spec_call_is_total(call)) return total_check(c, call);
    if (spec_call_kind(call) != SPEC_MAKES)
        return fail(LH_INVALID, "%s: %s() makes no tensor; expected it in a line of its own",
                    c->where, call->text);
    if (strcmp(call->text, "input") == 0) {
        if (call->first != NULL && call->first->next == NULL && spec_input(call->first->text) != 0)
            return LH_OK;
        return fail(LH_INVALID, "%s: input() takes tokens, positions, starts or seed", c->where);
    }
    for (const spec_node_t *arg = call->first; arg != NULL && status == LH_OK; arg = arg->next)
        status = argument_check(c, call, arg);
    return status;
}

/* accumulate(TENSOR, when=N), and loss. */
static lh_status_t statement_check(spec_checker_t *c, const spec_node_t *call)
{
    const spec_node_t *value = call->first, *when = value == NULL ? NULL : value->next;
    if (value == NULL || value->keyword[0] != '\0' ||
        (when != NULL && (strcmp(when->keyword, "when") != 0 || when->next != NULL)))
        return fail(LH_INVALID, "%s: %s() takes one tensor, and when=N", c->where, call->text);
    if (spec_call_kind(call) == SPEC_ACCUMULATES && c->part->part == LH_PART_HEAD)
        return fail(LH_INVALID, "%s: only embedding and blocks add to sums", c->where);
    const lh_status_t status = when == NULL ? LH_OK : numbers_check(c->s, c->where, when);
    return status == LH_OK ? argument_check(c, call, value) : status;
}

/* A line calls something, or gives a tensor another name. */
static lh_status_t line_check(spec_checker_t *c)
{
    lh_assert(c->line < c->part->count);
    const spec_line_t *line = &c->part->lines[c->line];
    bool known;
    spec_where_line(c->part->section, line->at, c->where, sizeof(c->where));
    if (spec_find_parameter(c->s, c->part, line->at->key) != NULL)
        return fail(LH_INVALID, "%s: a parameter has this name too: [spec.parameter.%s]", c->where,
                    line->at->key);
    const lh_status_t words = words_check(c->s, c->where, line->tree);
    if (words != LH_OK) return words;
    if (spec_call_kind(line->tree) != SPEC_MAKES) return statement_check(c, line->tree);
    if (line->tree->kind == SPEC_NODE_CALL && !spec_is_function(line->tree->text))
        return call_check(c, line->tree);
    if (line->tree->kind != SPEC_NODE_WORD)
        return fail(LH_INVALID, "%s = %s: expected a call of an op", c->where, line->at->value);
    const lh_status_t status = tensor_mark(c, line->tree->text, &known);
    return status == LH_OK && !known ? refuse_unknown_name(c, line->tree->text) : status;
}

/* Line by line, then what the walk has not met. A line that nobody reads is most often one whose
 * reader names another by mistake. */
static lh_status_t part_check(spec_t *s, spec_part_t *part)
{
    spec_checker_t c = {.s = s, .part = part};
    for (c.line = 0; c.line < part->count; c.line++) {
        const lh_status_t status = line_check(&c);
        if (status != LH_OK) return status;
    }
    for (uint32_t i = 0; i < part->count; i++) {
        const bool last = i + 1 == part->count;
        const bool makes = spec_call_kind(part->lines[i].tree) == SPEC_MAKES;
        if (makes == last || (makes && part->lines[i].used)) continue;
        spec_where_line(part->section, part->lines[i].at, c.where, sizeof(c.where));
        if (last)
            return fail(LH_INVALID,
                        "%s: %s() makes no tensor, and the last line is the part's "
                        "result",
                        c.where, part->lines[i].tree->text);
        return fail(LH_INVALID,
                    "%s: no line below reads it, and it is not the last, which is the "
                    "part's result",
                    c.where);
    }
    if (part->reads_input || part->part == LH_PART_EMBED) return LH_OK;
    document_where(part->section->file, part->section->line, c.where, sizeof(c.where));
    return fail(LH_INVALID, "%s: no line of [%s] reads its input, %s", c.where, part->section->name,
                part->input);
}

/* ---- values ---- */

/* state [count]: 0 not seen, 1 being looked into, 2 fine. */
static lh_status_t value_circle(const spec_t *s, uint32_t index, const spec_node_t *node,
                                uint8_t *state)
{
    lh_assert(index < s->value_count);
    const uint32_t other = node->kind == SPEC_NODE_WORD &&
                                   spec_find_option(s, node->text, NULL) == NULL
                               ? spec_find_value(s, node->text)
                               : s->value_count;
    lh_status_t status = LH_OK;
    if (other < s->value_count && state[other] == 1) {
        char where[700];
        spec_where_line(document_find(s->document, "spec.values"), s->values[index].at, where,
                        sizeof(where));
        return fail(LH_INVALID, "%s: a cycle: %s reads %s, and %s (line %u) needs %s", where,
                    s->values[index].at->key, node->text, node->text, s->values[other].at->line,
                    s->values[index].at->key);
    }
    if (other < s->value_count && state[other] == 0) {
        state[other] = 1;
        status = value_circle(s, other, s->values[other].tree, state);
        state[other] = 2;
    }
    for (const spec_node_t *child = node->first; child != NULL && status == LH_OK;
         child = child->next)
        status = value_circle(s, index, child, state);
    return status;
}

/* Each value is walked from once; what it reads is marked as read. */
static lh_status_t values_check(spec_t *s)
{
    uint8_t state[SPEC_LINES] = {0};
    lh_status_t status = LH_OK;
    lh_assert(s->value_count <= SPEC_LINES);
    for (uint32_t i = 0; i < s->value_count && status == LH_OK; i++) {
        char where[700];
        const char *key = s->values[i].at->key;
        numbers_mark(s, s->values[i].tree);
        spec_where_line(document_find(s->document, "spec.values"), s->values[i].at, where,
                        sizeof(where));
        if (spec_find_option(s, key, NULL) != NULL)
            return fail(LH_INVALID, "%s: an option has this name too", where);
        status = words_check(s, where, s->values[i].tree);
        if (status != LH_OK) return status;
        if (state[i] != 0) continue;
        state[i] = 1;
        status = value_circle(s, i, s->values[i].tree, state);
        state[i] = 2;
    }
    return status;
}

/* ---- parameters, and what nobody reads ---- */

/* Names between braces in a text that calls a function. Whether the braces are right is seen when
 * the text is made. */
static void braces_mark(spec_t *s, const char *text)
{
    for (const char *at = text; at != NULL && (at = strchr(at, '{')) != NULL;) {
        const size_t length = strcspn(++at, "}");
        spec_node_t *tree;
        char *inside = length == 0 ? NULL : spec_pool_text(&s->pool, at, length);
        if (inside != NULL && spec_parse(inside, "", &s->pool, &tree) == LH_OK)
            numbers_mark(s, tree);
        fail_clear();
    }
}

/* Expressions of a parameter's section, by key. */
typedef struct parameter_list {
    const char *key;
    const spec_node_t *list;
} parameter_list_t;
enum { PARAMETER_LISTS = 6 };

static void parameter_lists(const spec_parameter_t *p, parameter_list_t out[PARAMETER_LISTS])
{
    const parameter_list_t lists[PARAMETER_LISTS] = {{"shape", p->shape}, {"hf_shape", p->hf_shape},
                                                     {"unit", p->unit},   {"std", p->std},
                                                     {"tied", p->tied},   {"when", p->when}};
    memcpy(out, lists, sizeof(lists));
}

/* Options and values that shapes, conditions and transforms name count as read. */
static void parameters_mark(spec_t *s)
{
    for (uint32_t i = 0; i < s->parameter_count; i++) {
        const spec_parameter_t *p = &s->parameters[i];
        parameter_list_t lists[PARAMETER_LISTS];
        parameter_lists(p, lists);
        for (uint32_t k = 0; k < PARAMETER_LISTS; k++)
            list_mark(s, lists[k].list);
        braces_mark(s, p->text.import);
        braces_mark(s, p->text.export);
    }
}

void spec_where_parameter(const spec_parameter_t *p, const char *key, char *out, size_t room)
{
    char place[600];
    const document_entry_t *e = document_entry(p->section, key);
    document_where(e != NULL ? e->file : p->section->file, e != NULL ? e->line : p->section->line,
                   place, sizeof(place));
    (void)snprintf(out, room, "%s: [%s] %s", place, p->section->name, key);
}

static const spec_parameter_t *parameter_named(const spec_t *s, const char *name)
{
    for (uint32_t i = 0; i < s->parameter_count; i++)
        if (strcmp(s->parameters[i].name, name) == 0) return &s->parameters[i];
    return NULL;
}

/* What a parameter's keys name, where the core would know no line: a tie, words of choices. */
static lh_status_t parameters_check(const spec_t *s)
{
    for (uint32_t i = 0; i < s->parameter_count; i++) {
        const spec_parameter_t *p = &s->parameters[i];
        parameter_list_t lists[PARAMETER_LISTS];
        parameter_lists(p, lists);
        char where[800];
        for (uint32_t k = 0; k < PARAMETER_LISTS; k++)
            for (const spec_node_t *node = lists[k].list; node != NULL; node = node->next) {
                spec_where_parameter(p, lists[k].key, where, sizeof(where));
                const lh_status_t status = words_check(s, where, node);
                if (status != LH_OK) return status;
            }
        if (p->text.tied_to == NULL) continue;
        const spec_parameter_t *other = parameter_named(s, p->text.tied_to);
        spec_where_parameter(p, "tied_to", where, sizeof(where));
        text_nearest_t near = {.typed = p->text.tied_to};
        char meant[SPEC_MEANT];
        for (uint32_t k = 0; k < s->parameter_count; k++)
            if (k != i) text_nearest_offer(&near, s->parameters[k].name);
        if (other == NULL)
            return fail(LH_INVALID, "%s = %s: there is no such parameter%s", where, p->text.tied_to,
                        spec_meant(&near, meant));
        if (other == p) return fail(LH_INVALID, "%s = %s: that is itself", where, p->text.tied_to);
    }
    return LH_OK;
}

/* Letters that [spec] says itself; those of a text option are known when it is set. */
static lh_status_t letters_check(const spec_t *s)
{
    const char *letters = s->head.classes;
    if (letters == NULL || spec_find_option(s, letters, NULL) != NULL) return LH_OK;
    for (const char *c = letters; *c != '\0'; c++)
        if (strchr(s->letters, *c) == NULL)
            return fail(LH_INVALID,
                        "%s: classes = %s: there is no text option of that name, and no "
                        "[spec.block.%c]",
                        s->where, letters, *c);
    for (uint32_t i = 0; i < s->class_count; i++)
        if (strchr(letters, s->letters[i]) == NULL) {
            char where[600];
            const document_section_t *section = s->blocks[i].section;
            document_where(section->file, section->line, where, sizeof(where));
            return fail(LH_INVALID, "%s: [%s]: classes = %s in [spec], so that no block is of it",
                        where, section->name, letters);
        }
    return LH_OK;
}

/* What is written down and has no effect is told: a parameter that no line names would be trained
 * nowhere, and yet be saved and exported. */
static lh_status_t unused_check(const spec_t *s)
{
    char where[700];
    for (uint32_t i = 0; i < s->parameter_count; i++) {
        const spec_parameter_t *p = &s->parameters[i];
        static const char *const parts[] = {"[spec.embedding]", "[spec.block]", "[spec.head]"};
        if (p->used) continue;
        lh_assert(p->text.part < SPEC_PARTS);
        document_where(p->section->file, p->section->line, where, sizeof(where));
        return fail(LH_INVALID, "%s: [%s] is read by no line of %s", where, p->section->name,
                    parts[p->text.part]);
    }
    for (uint32_t i = 0; i < s->option_count; i++) {
        if (s->options[i].used) continue;
        document_where(s->options[i].at->file, s->options[i].at->line, where, sizeof(where));
        return fail(LH_INVALID, "%s: [spec.options] %s is read by no line, shape or value", where,
                    s->rows[i].key);
    }
    for (uint32_t i = 0; i < s->value_count; i++) {
        if (s->values[i].used) continue;
        document_where(s->values[i].at->file, s->values[i].at->line, where, sizeof(where));
        return fail(LH_INVALID, "%s: [spec.values] %s is read by no line, shape or value", where,
                    s->values[i].at->key);
    }
    return LH_OK;
}

/* What describe() must say is an option or a value of that name. */
static lh_status_t sizes_check(spec_t *s)
{
    static const char *const names[] = {"blocks", "hidden", "vocab", "max_tokens"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!number_mark(s, names[i]))
            return fail(LH_INVALID, "%s: expected an option or a value named %s", s->where,
                        names[i]);
    const lh_option_t *vocab = spec_find_option(s, "vocab", NULL);
    if (vocab == NULL || vocab->type != LH_OPT_U64)
        return fail(LH_INVALID, "%s: vocab must be an option, and a count: the tokenizer says it",
                    s->where);
    if (s->head.classes != NULL) (void)number_mark(s, s->head.classes);
    /* An option by which model_type is chosen is read by whoever writes config.json. */
    for (uint32_t i = 0; i < s->key_count; i++)
        if (strcmp(s->keys[i].key, "model_type") == 0 && s->keys[i].option != NULL)
            (void)number_mark(s, s->keys[i].option);
    return LH_OK;
}

/* ---- sums, and what the head may say ---- */

/* A loss over all blocks, as the one that balances Mixtral's experts, is made in three places:
 * blocks add vectors to a sum that has a name, the head reads the sum, and a loss of the head says
 * what is minimised.
 *
 *     load    = accumulate(route_load(order.offsets), when=balanced)      in a block
 *     balance = loss(dot(total(load, count=experts), ...), when=balanced) in the head
 *
 * The recorder takes all three (lh_graph_api_t), and refuses what can't be computed, but it knows
 * no lines. So what is wrong with them is found here before, out of the text alone where that is
 * enough:
 *
 *     accumulate    not in the head, and some total reads it
 *     total         only in the head, of a sum to which a line adds
 *     a head's loss of sums and constants, as rows are there a piece at a time
 *     logits        of no sum: it is whole when all pieces of logits have gone by */

/* What a line of the head is made of. */
typedef struct made_of {
    bool rows; /* its input: one row a token */
    bool sums;
} made_of_t;

/* above [line]: of the lines above. Words of input() and total() are no tensors. */
static void made_of(const spec_part_t *part, uint32_t line, const made_of_t *above,
                    const spec_node_t *node, made_of_t *out)
{
    if (spec_call_is_total(node)) {
        out->sums = true;
        return;
    }
    if (node->kind == SPEC_NODE_CALL && strcmp(node->text, "input") == 0) {
        out->rows = true;
        return;
    }
    if (node->kind == SPEC_NODE_WORD) {
        char base[SPEC_NAME] = "";
        uint32_t from = spec_find_line(part, node->text, line);
        lh_assert(spec_slot_dot(node->text) < sizeof(base));
        memcpy(base, node->text, spec_slot_dot(node->text));
        if (from == part->count && base[0] != '\0') from = spec_find_line(part, base, line);
        if (from != part->count) {
            out->rows = out->rows || above[from].rows;
            out->sums = out->sums || above[from].sums;
        } else if (strcmp(node->text, part->input) == 0) {
            out->rows = true;
        }
    }
    for (const spec_node_t *child = node->first; child != NULL; child = child->next)
        made_of(part, line, above, child, out);
}

static lh_status_t tail_check(const spec_t *s)
{
    const spec_part_t *part = &s->tail;
    made_of_t of[SPEC_LINES] = {{false, false}};
    lh_assert(part->count <= SPEC_LINES);
    for (uint32_t i = 0; i < part->count; i++) {
        const spec_line_t *line = &part->lines[i];
        char where[700];
        made_of(part, i, of, line->tree, &of[i]);
        spec_where_line(part->section, line->at, where, sizeof(where));
        if (spec_call_kind(line->tree) == SPEC_LOSS && of[i].rows)
            return fail(LH_INVALID,
                        "%s: a loss of the head that depends on rows; expected one of sums, as "
                        "total(NAME, count=N)",
                        where);
        if (i + 1 == part->count && of[i].sums)
            return fail(LH_INVALID, "%s: the part's result depends on a sum, which only a loss may",
                        where);
    }
    return LH_OK;
}

static lh_status_t spec_sums_check(const spec_t *s)
{
    const spec_part_t *part;
    for (uint32_t i = 0; (part = part_at(s, i)) != NULL; i++)
        for (uint32_t k = 0; k < part->count; k++) {
            const spec_line_t *line = &part->lines[k];
            char where[700];
            if (spec_call_kind(line->tree) != SPEC_ACCUMULATES || line->used) continue;
            spec_where_line(part->section, line->at, where, sizeof(where));
            return fail(LH_INVALID, "%s: no line of [spec.head] reads it, as total(%s, count=N)",
                        where, line->at->key);
        }
    return tail_check(s);
}

/* ---- all of it ---- */

/* Marks first and judges last: any section may name an option. */
lh_status_t spec_check(spec_t *s)
{
    lh_status_t status = sizes_check(s);
    if (status == LH_OK) status = values_check(s);
    if (status != LH_OK) return status;
    parameters_mark(s);
    status = part_check(s, &s->embedding);
    for (uint32_t i = 0; i < s->class_count && status == LH_OK; i++)
        status = part_check(s, &s->blocks[i]);
    if (status == LH_OK) status = part_check(s, &s->tail);
    if (status == LH_OK) status = spec_sums_check(s);
    if (status == LH_OK) status = parameters_check(s);
    if (status == LH_OK) status = letters_check(s);
    return status == LH_OK ? unused_check(s) : status;
}
