/* spec_text.c - a parser of recursive descent for lines of a spec, and arithmetic on what it
 * made.
 *
 * A tree is made once, when the INI is read, and worked out as often as a part is recorded, each
 * time with other options or another block's number. Its nodes are small blocks of one pool: a
 * spec has some hundred of them, and they go together. A name or number is copied into its node,
 * so that a tree does not lean on the INI's text.
 *
 * Arithmetic has two kinds of numbers. Whole ones are sizes: 64 bits, exact, and what does not
 * fit or does not divide is refused, as a plugin's open() would refuse heads that do not divide
 * hidden. As soon as one operand is a real the result is one, in double. */
#include <spec/spec_text.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <config/quantity.h>

/* ---- memory ---- */

/* The list of blocks grows first: what was allocated has a place in it. */
void *spec_pool_new(spec_pool_t *pool, size_t count, size_t size)
{
    void **owned = mem_grow(pool->owned, &pool->capacity, pool->count + 1, sizeof(*owned));
    if (owned == NULL) return NULL;
    pool->owned = owned;
    void *memory = mem_array(count, size);
    if (memory != NULL) owned[pool->count++] = memory;
    return memory;
}

char *spec_pool_text(spec_pool_t *pool, const char *text, size_t length)
{
    char *copy = spec_pool_new(pool, length + 1, 1);
    if (copy != NULL) memcpy(copy, text, length);
    return copy;
}

void spec_pool_free(spec_pool_t *pool)
{
    for (size_t i = 0; i < pool->count; i++)
        mem_free(pool->owned[i]);
    mem_free(pool->owned);
    *pool = (spec_pool_t){0};
}

/* ---- text to tree ---- */

/* The state of reading one text. */
typedef struct spec_parser {
    const char *text, *at; /* the whole, and what is left of it */
    const char *where;
    spec_pool_t *pool;
    uint32_t depth, nodes;
} spec_parser_t;

static void parser_skip(spec_parser_t *p)
{
    while (*p->at == ' ' || *p->at == '\t')
        p->at++;
}

/* True, and behind it, where the character stands next. */
static bool parser_takes(spec_parser_t *p, char c)
{
    parser_skip(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

/* The sentence has the whole text, as it stands in the INI, and from where on it is wrong. */
static lh_status_t parser_refuse(const spec_parser_t *p, const char *wanted)
{
    if (*p->at == '\0')
        return fail(LH_INVALID, "%s = %s: expected %s at its end", p->where, p->text, wanted);
    return fail(LH_INVALID, "%s = %s: expected %s, found '%.40s'", p->where, p->text, wanted,
                p->at);
}

/* Their number bounds memory and time of a text that wants to be long. */
static lh_status_t spec_node_new(spec_parser_t *p, uint32_t kind, spec_node_t **out)
{
    if (++p->nodes > SPEC_NODES)
        return fail(LH_INVALID, "%s: more than %d names, numbers and calls", p->where, SPEC_NODES);
    spec_node_t *node = spec_pool_new(p->pool, 1, sizeof(*node));
    if (node == NULL) return LH_NO_MEMORY;
    node->kind = kind;
    *out = node;
    return LH_OK;
}

/* Copies a name or number of `length` bytes. */
static lh_status_t node_take(spec_parser_t *p, size_t length, spec_node_t *node)
{
    lh_assert(length > 0);
    if (length >= SPEC_NAME)
        return fail(LH_INVALID, "%s: '%.*s' has %zu bytes, expected at most %d", p->where,
                    (int)length, p->at, length, SPEC_NAME - 1);
    memcpy(node->text, p->at, length);
    p->at += length;
    return LH_OK;
}

static bool is_name_start(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

/* Dots belong to names: acme.cap is an op, ln.weight may be a parameter, best.ids is an output. */
static size_t name_length(const char *at)
{
    size_t length = 0;
    while (is_name_start(at[length]) || isdigit((unsigned char)at[length]) || at[length] == '.')
        length++;
    return length;
}

/* Digits, a point, an exponent with its sign, a unit. */
static size_t number_length(const char *at)
{
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '.' ||
           ((at[length] == '-' || at[length] == '+') && length > 0 &&
            (at[length - 1] == 'e' || at[length - 1] == 'E') &&
            isdigit((unsigned char)at[length + 1])))
        length++;
    return length;
}

static lh_status_t parse_sum(spec_parser_t *p, spec_node_t **out);

/* "keyword =" before an argument, where one stands. */
static lh_status_t parse_keyword(spec_parser_t *p, char keyword[SPEC_NAME])
{
    parser_skip(p);
    const size_t length = is_name_start(*p->at) ? name_length(p->at) : 0;
    const char *behind = p->at + length;
    while (*behind == ' ')
        behind++;
    keyword[0] = '\0';
    if (length == 0 || *behind != '=') return LH_OK;
    if (length >= SPEC_NAME) return parser_refuse(p, "a shorter keyword");
    memcpy(keyword, p->at, length);
    keyword[length] = '\0';
    p->at = behind + 1;
    return LH_OK;
}

/* Behind the bracket. A keyword that stands twice, or before an argument without one, is
 * refused. */
static lh_status_t parse_arguments(spec_parser_t *p, spec_node_t *call)
{
    spec_node_t **to = &call->first;
    if (parser_takes(p, ')')) return LH_OK;
    do {
        char keyword[SPEC_NAME];
        lh_status_t status = parse_keyword(p, keyword);
        if (status == LH_OK) status = parse_sum(p, to);
        if (status != LH_OK) return status;
        for (const spec_node_t *before = call->first; before != *to; before = before->next) {
            if (keyword[0] == '\0' && before->keyword[0] != '\0')
                return fail(LH_INVALID, "%s = %s: what has no name stands behind %s=", p->where,
                            p->text, before->keyword);
            if (keyword[0] != '\0' && strcmp(before->keyword, keyword) == 0)
                return fail(LH_INVALID, "%s = %s: %s= stands twice in %s()", p->where, p->text,
                            keyword, call->text);
        }
        memcpy((*to)->keyword, keyword, sizeof(keyword));
        to = &(*to)->next;
    } while (parser_takes(p, ','));
    return parser_takes(p, ')') ? LH_OK : parser_refuse(p, "a comma or ')'");
}

/* A name, or where a bracket follows a call. */
static lh_status_t parse_named(spec_parser_t *p, spec_node_t **out)
{
    lh_status_t status = spec_node_new(p, SPEC_NODE_WORD, out);
    if (status == LH_OK) status = node_take(p, name_length(p->at), *out);
    if (status != LH_OK || !parser_takes(p, '(')) return status;
    (*out)->kind = SPEC_NODE_CALL;
    return parse_arguments(p, *out);
}

/* One factor; the depth of brackets is bounded here, as each of them comes through here. */
static lh_status_t parse_factor(spec_parser_t *p, spec_node_t **out)
{
    if (p->depth == SPEC_DEPTH)
        return fail(LH_INVALID, "%s = %s: brackets are %d deep", p->where, p->text, SPEC_DEPTH);
    lh_status_t status;
    p->depth++;
    parser_skip(p);
    if (is_name_start(*p->at)) {
        status = parse_named(p, out);
    } else if (isdigit((unsigned char)*p->at) || *p->at == '.') {
        status = spec_node_new(p, SPEC_NODE_NUMBER, out);
        if (status == LH_OK) status = node_take(p, number_length(p->at), *out);
    } else if (parser_takes(p, '(')) {
        status = parse_sum(p, out);
        if (status == LH_OK && !parser_takes(p, ')')) status = parser_refuse(p, "')'");
    } else if (parser_takes(p, '-')) {
        status = spec_node_new(p, SPEC_NODE_OPERATOR, out);
        if (status == LH_OK) (*out)->sign = '~';
        if (status == LH_OK) status = parse_factor(p, &(*out)->first);
    } else {
        status = parser_refuse(p, "a name, a number or a call");
    }
    p->depth--;
    return status;
}

/* Operands with one of two signs between them, from the left: a - b - c is (a - b) - c. */
static lh_status_t parse_operands(spec_parser_t *p, const char signs[2],
                                  lh_status_t (*operand)(spec_parser_t *, spec_node_t **),
                                  spec_node_t **out)
{
    lh_status_t status = operand(p, out);
    for (;;) {
        parser_skip(p);
        if (status != LH_OK || (*p->at != signs[0] && *p->at != signs[1])) return status;
        spec_node_t *left = *out;
        status = spec_node_new(p, SPEC_NODE_OPERATOR, out);
        if (status != LH_OK) return status;
        (*out)->sign = *p->at++;
        (*out)->first = left;
        status = operand(p, &left->next);
    }
}

static lh_status_t parse_product(spec_parser_t *p, spec_node_t **out)
{
    return parse_operands(p, "*/", parse_factor, out);
}

static lh_status_t parse_sum(spec_parser_t *p, spec_node_t **out)
{
    return parse_operands(p, "+-", parse_product, out);
}

/* What is left behind an expression is a mistake: "add(x, a) a". */
lh_status_t spec_parse(const char *text, const char *where, spec_pool_t *pool, spec_node_t **out)
{
    spec_parser_t p = {.text = text, .at = text, .where = where, .pool = pool};
    const lh_status_t status = parse_sum(&p, out);
    parser_skip(&p);
    return status == LH_OK && *p.at != '\0' ? parser_refuse(&p, "nothing more") : status;
}

lh_status_t spec_parse_list(const char *text, const char *where, spec_pool_t *pool,
                            spec_node_t **out)
{
    spec_parser_t p = {.text = text, .at = text, .where = where, .pool = pool};
    lh_status_t status;
    do {
        status = parse_sum(&p, out);
        if (status == LH_OK) out = &(*out)->next;
    } while (status == LH_OK && parser_takes(&p, ','));
    return status == LH_OK && *p.at != '\0' ? parser_refuse(&p, "a comma") : status;
}

/* ---- numbers ---- */

const char *spec_meant(const text_nearest_t *near, char out[SPEC_MEANT])
{
    const char *best = text_nearest_name(near);
    out[0] = '\0';
    if (best != NULL) (void)snprintf(out, SPEC_MEANT, "; did you mean '%.*s'?", SPEC_NAME, best);
    return out;
}

uint32_t spec_call_kind(const spec_node_t *call)
{
    if (call->kind != SPEC_NODE_CALL) return SPEC_MAKES;
    if (strcmp(call->text, "accumulate") == 0) return SPEC_ACCUMULATES;
    return strcmp(call->text, "loss") == 0 ? SPEC_LOSS : SPEC_MAKES;
}

bool spec_call_is_total(const spec_node_t *node)
{
    return node->kind == SPEC_NODE_CALL && strcmp(node->text, "total") == 0;
}

/* A name that calls one of these is no op's, so an op may not be called so in a spec; the core has
 * none of these names. */
bool spec_is_function(const char *name)
{
    static const char *const names[] = {"or", "if", "is", "not"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Whole where it can be read so: 2k is 2000, 1e3 and 0.5 are reals. */
static lh_status_t number_value(const spec_node_t *node, const spec_names_t *names,
                                spec_value_t *out)
{
    *out = (spec_value_t){.kind = SPEC_WHOLE};
    if (quantity_u64(node->text, &out->whole)) return LH_OK;
    out->kind = SPEC_REAL;
    if (quantity_f64(node->text, &out->real)) return LH_OK;
    return fail(LH_INVALID, "%s: '%s' is no number", names->where, node->text);
}

/* A word where a number must stand is a name that means nothing. */
static lh_status_t refuse_word(const spec_value_t *value, const spec_names_t *names)
{
    text_nearest_t near = {.typed = value->text == NULL ? "" : value->text};
    names->offer(names->context, &near);
    char meant[SPEC_MEANT];
    return fail(LH_INVALID, "%s: expected a number, found '%s'%s", names->where, near.typed,
                spec_meant(&near, meant));
}

/* A value that must be a number of either kind. */
static lh_status_t number_of(const spec_node_t *node, const spec_names_t *names, spec_value_t *out)
{
    const lh_status_t status = spec_evaluate(node, names, out);
    return status == LH_OK && out->kind == SPEC_TEXT ? refuse_word(out, names) : status;
}

static double real_of(const spec_value_t *value)
{
    return value->kind == SPEC_REAL ? value->real : (double)value->whole;
}

/* Exact, or refused: no size is rounded or wraps round. */
static lh_status_t whole_result(char sign, uint64_t a, uint64_t b, const spec_names_t *names,
                                spec_value_t *out)
{
    bool fits = true;
    *out = (spec_value_t){.kind = SPEC_WHOLE};
    switch (sign) {
    case '+': fits = !__builtin_add_overflow(a, b, &out->whole); break;
    case '-': fits = !__builtin_sub_overflow(a, b, &out->whole); break;
    case '*': fits = !__builtin_mul_overflow(a, b, &out->whole); break;
    default:
        if (b == 0 || a % b != 0)
            return fail(LH_INVALID, "%s: %llu / %llu is not whole", names->where,
                        (unsigned long long)a, (unsigned long long)b);
        out->whole = a / b;
    }
    if (fits) return LH_OK;
    return fail(LH_INVALID, "%s: %llu %c %llu is no size", names->where, (unsigned long long)a,
                sign, (unsigned long long)b);
}

/* A minus sign before one operand makes a real, as sizes are never negative. */
static lh_status_t operator_value(const spec_node_t *node, const spec_names_t *names,
                                  spec_value_t *out)
{
    spec_value_t a, b = {.kind = SPEC_WHOLE};
    lh_status_t status = number_of(node->first, names, &a);
    if (status == LH_OK && node->sign != '~') status = number_of(node->first->next, names, &b);
    if (status != LH_OK) return status;
    if (node->sign != '~' && a.kind != SPEC_REAL && b.kind != SPEC_REAL)
        return whole_result(node->sign, a.whole, b.whole, names, out);

    const double x = real_of(&a), y = real_of(&b);
    *out = (spec_value_t){.kind = SPEC_REAL};
    switch (node->sign) {
    case '+': out->real = x + y; break;
    case '-': out->real = x - y; break;
    case '*': out->real = x * y; break;
    case '/': out->real = x / y; break;
    default: out->real = -x;
    }
    return isfinite(out->real)
               ? LH_OK
               : fail(LH_INVALID, "%s: %g %c %g is no number", names->where, x, node->sign, y);
}

/* The argument at a place; NULL: there are fewer. */
static const spec_node_t *argument_at(const spec_node_t *call, uint32_t place)
{
    const spec_node_t *node = call->first;
    while (node != NULL && place-- > 0)
        node = node->next;
    return node;
}

/* or and if work out only the argument that they give, so that hidden / heads need not be whole
 * where head_dim is set. */
static lh_status_t function_value(const spec_node_t *node, const spec_names_t *names,
                                  spec_value_t *out)
{
    const char *name = node->text;
    const bool one = strcmp(name, "not") == 0, three = strcmp(name, "if") == 0;
    const uint32_t wanted = one ? 1 : three ? 3 : 2;
    const spec_node_t *a = argument_at(node, 0), *b = argument_at(node, 1);
    if (!spec_is_function(name))
        return fail(LH_INVALID, "%s: %s() is no function of numbers: or, if, is, not", names->where,
                    name);
    if (argument_at(node, wanted - 1) == NULL || argument_at(node, wanted) != NULL)
        return fail(LH_INVALID, "%s: %s() takes %u arguments", names->where, name, wanted);

    spec_value_t first;
    if (strcmp(name, "is") == 0) {
        const lh_status_t status = spec_evaluate(a, names, &first);
        if (status != LH_OK) return status;
        if (first.kind != SPEC_TEXT || b->kind != SPEC_NODE_WORD)
            return fail(LH_INVALID, "%s: is() takes a choice and one of its words", names->where);
        *out = (spec_value_t){.kind = SPEC_FLAG, .whole = strcmp(first.text, b->text) == 0};
        return LH_OK;
    }
    const lh_status_t status = number_of(a, names, &first);
    if (status != LH_OK) return status;
    const bool yes = first.kind == SPEC_REAL ? first.real != 0 : first.whole != 0;
    if (one) {
        *out = (spec_value_t){.kind = SPEC_FLAG, .whole = !yes};
        return LH_OK;
    }
    if (three) return spec_evaluate(yes ? b : argument_at(node, 2), names, out);
    if (!yes) return spec_evaluate(b, names, out);
    *out = first;
    return LH_OK;
}

/* Recursion is as deep as the tree, which SPEC_DEPTH and SPEC_NODES bound. */
lh_status_t spec_evaluate(const spec_node_t *node, const spec_names_t *names, spec_value_t *out)
{
    lh_assert(node != NULL);
    switch (node->kind) {
    case SPEC_NODE_NUMBER: return number_value(node, names, out);
    case SPEC_NODE_CALL: return function_value(node, names, out);
    case SPEC_NODE_OPERATOR: return operator_value(node, names, out);
    default: break;
    }
    if (!names->find(names->context, node->text, out))
        *out = (spec_value_t){.kind = SPEC_TEXT, .text = node->text};
    return LH_OK;
}

lh_status_t spec_whole(const spec_node_t *node, const spec_names_t *names, uint64_t *out)
{
    spec_value_t value;
    const lh_status_t status = number_of(node, names, &value);
    if (status != LH_OK) return status;
    if (value.kind == SPEC_REAL)
        return fail(LH_INVALID, "%s: expected a whole number, found %g", names->where, value.real);
    *out = value.whole;
    return LH_OK;
}

lh_status_t spec_real(const spec_node_t *node, const spec_names_t *names, double *out)
{
    spec_value_t value;
    const lh_status_t status = number_of(node, names, &value);
    if (status == LH_OK) *out = real_of(&value);
    return status;
}

/* 17 digits name every double. */
void spec_value_text(const spec_value_t *value, text_t *out)
{
    switch (value->kind) {
    case SPEC_REAL: text_printf(out, "%.17g", value->real); break;
    case SPEC_FLAG: text_append(out, value->whole != 0 ? "yes" : "no"); break;
    case SPEC_TEXT: text_append(out, value->text == NULL ? "" : value->text); break;
    default: text_printf(out, "%llu", (unsigned long long)value->whole);
    }
}
