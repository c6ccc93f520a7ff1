/* call.c - calls from INI text: text becomes a tree of constants, variables and functions with
 * libffi's view of each, once and with every mistake a sentence; the tree then runs without
 * allocating. Binding recurses to CALL_DEPTH and no deeper, so running needs no bound of its own.
 *
 * The parser is one of recursive descent that binds as it reads: the type that is wanted is known
 * before an expression is, as a parameter of a function that was found has one. So 2k is a u64 here
 * and an f64 there, and a mistake is told where it stands, with the signature that was expected.
 * The result is not text again and not code: libffi calls each function by its own C prototype,
 * which LH_FUNCTION has made from the same tokens as the signature. */
#include <plugin/call.h>

#include <ctype.h>
#include <ffi.h>
#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <config/quantity.h>
#include <plugin/plugin.h>
#include <plugin/registry.h>

enum { NODE_CONSTANT = 1, NODE_VARIABLE = 2, NODE_FUNCTION = 3 };

/* A constant, a variable or a call of a function. */
typedef struct call_node {
    uint32_t kind;     /* NODE_*                        */
    uint32_t type;     /* CALL_* of what it gives       */
    uint32_t variable; /* index into the scope's        */
    uint32_t arg_count;
    uint32_t args[CALL_PARAMS];    /* indices of nodes, in the function's order */
    call_value_t value;            /* the constant, or the latest               */
    const lh_function_t *function; /* its row */
    lh_call_t call;                /* the hidden first argument points here */
    const lh_call_t *call_pointer;
    ffi_cif cif;
    ffi_type *types[CALL_PARAMS + 1]; /* of the hidden argument and the others */
    void *values[CALL_PARAMS + 1];    /* where they lie: in `value` of other nodes, so that
                                         running copies none */
} call_node_t;

struct call {
    char *text;    /* copy; names and strings lie in it */
    char *where;   /* for sentences                     */
    uint32_t root; /* the node whose value is the text's */
    uint32_t count;
    call_node_t nodes[CALL_NODES]; /* pointers lead from one to another: never copied */
};

/* The state of binding one text. */
typedef struct binder {
    const call_scope_t *scope;
    const char *where;
    char *at; /* what is left of the text */
    call_t *call;
    uint32_t depth; /* calls that are being read, one inside of the other */
} binder_t;

/* What a name with a bracket was found to be. */
typedef struct callee { /* the function whose arguments are read */
    const lh_function_t *function;
    const lh_host_t *host;
    const void *config;
    plugin_signature_t signature;
} callee_t;

/* What an expression must give, and for whom: handed down as the text is read, so that a number
 * knows its type and a mistake its parameter. */
typedef struct wanted {
    uint32_t type;
    const char *function; /* NULL: the whole text */
    const char *param;
} wanted_t;

/* Only blanks separate; a new line never reaches here, as the INI joins continued lines. */
static void skip_space(binder_t *b)
{
    while (*b->at == ' ' || *b->at == '\t')
        b->at++;
}

/* Of the name at the text's start; 0 where none begins there. */
static size_t identifier_length(const char *text)
{
    size_t length = 0;
    if (!isalpha((unsigned char)text[0]) && text[0] != '_') return 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_')
        length++;
    return length;
}

/* Nodes lie in one array of the call, so that a bound call is one piece of memory. */
static lh_status_t call_node_new(binder_t *b, uint32_t kind, uint32_t type, uint32_t *out)
{
    call_t *c = b->call;
    if (c->count == CALL_NODES)
        return fail(LH_INVALID, "%s: more than %d values and calls in one text", b->where,
                    CALL_NODES);
    c->nodes[c->count].kind = kind;
    c->nodes[c->count].type = type;
    *out = c->count++;
    return LH_OK;
}

/* Two sentences: of a whole text, and of an argument. */
static lh_status_t refuse_value_type(const binder_t *b, const char *what, uint32_t type,
                                     const wanted_t *wanted)
{
    const char *has = plugin_type_text(type), *wants = plugin_type_text(wanted->type);
    if (wanted->function == NULL)
        return fail(LH_INVALID, "%s: '%s' gives %s, expected %s", b->where, what, has, wants);
    return fail(LH_INVALID, "%s: '%s' is %s, but %s wants %s for '%s'", b->where, what, has,
                wanted->function, wants, wanted->param);
}

/* A name that is no variable is told with those that are: they differ from key to key of an INI. */
static lh_status_t bind_variable(binder_t *b, const char *name, size_t length,
                                 const wanted_t *wanted, uint32_t *out)
{
    char typed[64];
    text_t list = {0};
    (void)snprintf(typed, sizeof(typed), "%.*s", (int)length, name);
    for (uint32_t i = 0; i < b->scope->variable_count; i++) {
        const call_variable_t *v = &b->scope->variables[i];
        if (strcmp(v->name, typed) != 0) {
            text_printf(&list, "%s%s", list.length > 0 ? ", " : "", v->name);
            continue;
        }
        text_free(&list);
        if (v->type != wanted->type) return refuse_value_type(b, typed, v->type, wanted);
        const lh_status_t status = call_node_new(b, NODE_VARIABLE, v->type, out);
        if (status == LH_OK) b->call->nodes[*out].variable = i;
        return status;
    }
    (void)fail(LH_INVALID, "%s: '%s' is no variable here; there are: %s%s", b->where, typed,
               list.data != NULL ? list.data : "none",
               wanted->type == CALL_STR ? " (a text stands in double quotes)" : "");
    text_free(&list);
    return LH_INVALID;
}

/* A string ends at the next quote: there are no escapes. It lies in the call's copy of the text,
 * where its quote becomes the NUL. */
static lh_status_t bind_string(binder_t *b, const wanted_t *wanted, uint32_t *out)
{
    char *text = b->at + 1, *end = strchr(text, '"');
    if (end == NULL) return fail(LH_INVALID, "%s: no second '\"' behind %s", b->where, b->at);
    *end = '\0';
    b->at = end + 1;
    if (wanted->type != CALL_STR) return refuse_value_type(b, text, CALL_STR, wanted);
    const lh_status_t status = call_node_new(b, NODE_CONSTANT, CALL_STR, out);
    if (status == LH_OK) b->call->nodes[*out].value.str = text;
    return status;
}

/* A number of the type that is wanted, with its unit (config/quantity.h). */
static bool parse_typed_number(const char *text, uint32_t type, call_value_t *out)
{
    switch (type) {
    case CALL_I64: return quantity_i64(text, &out->i64);
    case CALL_U64: return quantity_any(text, &out->u64);
    case CALL_F64: return quantity_f64(text, &out->f64);
    default: return false;
    }
}

/* Everything up to the next separator, so that a sentence shows what was typed and not a part of
 * it. */
static lh_status_t bind_number(binder_t *b, const wanted_t *wanted, uint32_t *out)
{
    char text[64];
    call_value_t value = {0};
    const size_t length = strcspn(b->at, " \t,()=\"");
    if (length >= sizeof(text))
        return fail(LH_INVALID, "%s: '%.*s...' is too long for a number", b->where, 60, b->at);
    memcpy(text, b->at, length);
    text[length] = '\0';
    b->at += length;
    if (!parse_typed_number(text, wanted->type, &value)) {
        if (wanted->param == NULL)
            return fail(LH_INVALID, "%s: '%s' is not a valid %s", b->where, text,
                        plugin_type_text(wanted->type));
        return fail(LH_INVALID, "%s: %s=%s is not a valid %s", b->where, wanted->param, text,
                    plugin_type_text(wanted->type));
    }
    const lh_status_t status = call_node_new(b, NODE_CONSTANT, wanted->type, out);
    if (status == LH_OK) b->call->nodes[*out].value = value;
    return status;
}

/* A function of a table by its name; near collects what else it may have meant. */
static const lh_function_t *search_functions(const lh_function_t *rows, uint32_t count,
                                             const char *name, text_nearest_t *near)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
        text_nearest_offer(near, rows[i].name);
    }
    return NULL;
}

/* Names the plugin, or the core where the name has no prefix, and the nearest name that is
 * there. */
static lh_status_t refuse_function(const binder_t *b, const char *plugin, const char *name,
                                   const text_nearest_t *near)
{
    const char *best = text_nearest_name(near);
    return fail(LH_INVALID, "%s: %s%s has no function '%s'%s%s%s", b->where,
                plugin != NULL ? "plugin " : "", plugin != NULL ? plugin : "the core", name,
                best != NULL ? "; did you mean '" : "", best != NULL ? best : "",
                best != NULL ? "'?" : "");
}

/* plugin:name. The plugin is loaded if it is not yet. One with options that no section sets can't
 * be called: its functions would get no config. */
static lh_status_t find_in_plugin(const binder_t *b, const char *plugin, const char *name,
                                  callee_t *out)
{
    const plugin_t *p;
    text_nearest_t near = {.typed = name};
    if (b->scope->plugins == NULL)
        return fail(LH_INVALID, "%s: %s:%s: no plugin's functions can be called here", b->where,
                    plugin, name);
    const lh_status_t status = registry_find(b->scope->plugins, plugin, &p);
    if (status != LH_OK) return status;
    out->function = search_functions(p->functions, p->function_count, name, &near);
    if (out->function == NULL) return refuse_function(b, plugin, name, &near);
    if (p->option_count > 0 && p->config == NULL)
        return fail(LH_INVALID, "%s: %s:%s: plugin %s has options that nothing in this job sets",
                    b->where, plugin, name, plugin);
    out->host = p->host;
    out->config = p->config;
    return LH_OK;
}

/* The function and what it is called with: the plugin's services and config, or the scope's. */
static lh_status_t find_function(const binder_t *b, const char *plugin, const char *name,
                                 callee_t *out)
{
    const call_scope_t *s = b->scope;
    text_nearest_t near = {.typed = name};
    if (plugin != NULL) {
        const lh_status_t status = find_in_plugin(b, plugin, name, out);
        if (status != LH_OK) return status;
    } else {
        out->function = search_functions(s->functions, s->function_count, name, &near);
        if (out->function == NULL) return refuse_function(b, NULL, name, &near);
        out->host = s->host;
        out->config = s->config;
    }
    const char *fault = plugin_signature_parse(out->function->signature, &out->signature);
    if (fault != NULL)
        return fail(LH_ABI, "%s: %s has the signature '%s': %s", b->where, name,
                    out->function->signature, fault);
    return LH_OK;
}

static lh_status_t bind_expression(binder_t *b, const wanted_t *wanted, uint32_t *out);

/* The parameter that a keyword or the next place stands for. As in Python, places come first and
 * keywords after them; *keyword remembers that one has been seen. */
static lh_status_t pick_param(binder_t *b, const callee_t *f, uint32_t place, bool *keyword,
                              uint32_t *out)
{
    const size_t length = identifier_length(b->at);
    const char *behind = b->at + length + strspn(b->at + length, " \t");
    const bool named = length > 0 && *behind == '=';
    if (!named) {
        if (*keyword)
            return fail(LH_INVALID, "%s: '%s' has no keyword, but stands behind one that has",
                        b->where, b->at);
        if (place >= f->signature.count)
            return fail(LH_INVALID, "%s: %s takes %u arguments; it is %s", b->where,
                        f->function->name, f->signature.count, f->function->signature);
        *out = place;
        return LH_OK;
    }
    char typed[64];
    (void)snprintf(typed, sizeof(typed), "%.*s", (int)length, b->at);
    b->at += (size_t)(behind - b->at) + 1;
    *keyword = true;
    for (uint32_t i = 0; i < f->signature.count; i++) {
        if (strcmp(f->signature.params[i].name, typed) != 0) continue;
        *out = i;
        return LH_OK;
    }
    return fail(LH_INVALID, "%s: %s has no parameter '%s'; it is %s", b->where, f->function->name,
                typed, f->function->signature);
}

/* One argument and what separates it from the next, which stays to be read. */
static lh_status_t bind_argument(binder_t *b, const callee_t *f, uint32_t place, bool *keyword,
                                 bool given[CALL_PARAMS], uint32_t args[CALL_PARAMS])
{
    uint32_t param = 0;
    skip_space(b);
    if (*b->at == '\0')
        return fail(LH_INVALID, "%s: no ')' behind the arguments of %s", b->where,
                    f->function->name);
    if (*b->at == ',' || *b->at == ')')
        return fail(LH_INVALID, "%s: nothing stands before '%c' in the arguments of %s", b->where,
                    *b->at, f->function->name);
    lh_status_t status = pick_param(b, f, place, keyword, &param);
    if (status != LH_OK) return status;
    lh_assert(param < f->signature.count && f->signature.count <= CALL_PARAMS);
    if (given[param])
        return fail(LH_INVALID, "%s: '%s' is given to %s twice", b->where,
                    f->signature.params[param].name, f->function->name);
    given[param] = true;

    const wanted_t wanted = {f->signature.params[param].type, f->function->name,
                             f->signature.params[param].name};
    status = bind_expression(b, &wanted, &args[param]);
    if (status != LH_OK) return status;
    skip_space(b);
    if (*b->at != ',' && *b->at != ')')
        return fail(LH_INVALID, "%s: expected ',' or ')' in the arguments of %s at '%s'", b->where,
                    f->function->name, b->at);
    return LH_OK;
}

/* A parameter that was not given, but has the name of a variable here, gets that variable: a
 * learning rate needs no `step=step`. One without either is refused with the whole signature. */
static lh_status_t bind_missing(binder_t *b, const callee_t *f, const bool given[CALL_PARAMS],
                                uint32_t args[CALL_PARAMS])
{
    for (uint32_t i = 0; i < f->signature.count; i++) {
        const char *name = f->signature.params[i].name;
        bool found = false;
        if (given[i]) continue;
        for (uint32_t v = 0; v < b->scope->variable_count && !found; v++)
            found = strcmp(b->scope->variables[v].name, name) == 0;
        if (!found)
            return fail(LH_INVALID, "%s: '%s' is missing; %s is %s", b->where, name,
                        f->function->name, f->function->signature);
        const wanted_t wanted = {f->signature.params[i].type, f->function->name, name};
        const lh_status_t status = bind_variable(b, name, strlen(name), &wanted, &args[i]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* b->at stands on the opening bracket, and behind the closing one afterwards. */
static lh_status_t bind_arguments(binder_t *b, const callee_t *f, uint32_t args[CALL_PARAMS])
{
    bool given[CALL_PARAMS] = {false}, keyword = false;
    b->at++; /* '(' */
    skip_space(b);
    /* An empty list ends at once; behind a comma an argument must follow. */
    for (uint32_t place = 0; *b->at != ')' || place > 0; place++) {
        const lh_status_t status = bind_argument(b, f, place, &keyword, given, args);
        if (status != LH_OK) return status;
        if (*b->at++ == ')') return bind_missing(b, f, given, args);
    }
    b->at++;
    return bind_missing(b, f, given, args);
}

/* LH_C_* of function.h, in libffi's terms. */
static ffi_type *ffi_of(uint32_t type)
{
    switch (type) {
    case CALL_STATUS: return &ffi_type_sint32;
    case CALL_I64: return &ffi_type_sint64;
    case CALL_U64: return &ffi_type_uint64;
    case CALL_F64: return &ffi_type_double;
    default: return &ffi_type_pointer;
    }
}

/* Fills in what ffi_call needs. The pointers lead to nodes of the same call, which lie in an array
 * that never moves. */
static lh_status_t prepare_node(const binder_t *b, call_node_t *n, const callee_t *f)
{
    lh_assert(f->signature.count <= CALL_PARAMS);
    n->function = f->function;
    n->arg_count = f->signature.count;
    n->call = (lh_call_t){.struct_size = sizeof(n->call), .host = f->host, .config = f->config};
    n->call_pointer = &n->call;
    /* lh_call_t comes by pointer, and libffi wants the address of that pointer. */
    n->types[0] = &ffi_type_pointer;
    n->values[0] = (void *)&n->call_pointer;
    for (uint32_t i = 0; i < n->arg_count; i++) {
        lh_assert(n->args[i] < b->call->count);
        n->types[i + 1] = ffi_of(f->signature.params[i].type);
        n->values[i + 1] = &b->call->nodes[n->args[i]].value;
    }
    if (ffi_prep_cif(&n->cif, FFI_DEFAULT_ABI, n->arg_count + 1, ffi_of(n->type), n->types) !=
        FFI_OK)
        return fail(LH_UNSUPPORTED, "%s: libffi cannot call %s", b->where, f->function->signature);
    return LH_OK;
}

/* name( or plugin:name( ; b->at stands on the bracket. The node is made before the arguments are
 * read, so a call has a smaller number than what it is called with; what it gives is checked
 * before, as then the arguments of a wrong function are no second mistake. */
static lh_status_t bind_function(binder_t *b, const char *plugin, const char *name,
                                 const wanted_t *wanted, uint32_t *out)
{
    callee_t f = {0};
    uint32_t args[CALL_PARAMS] = {0};
    if (b->depth == CALL_DEPTH)
        return fail(LH_INVALID, "%s: calls stand more than %d deep in each other", b->where,
                    CALL_DEPTH);
    lh_status_t status = find_function(b, plugin, name, &f);
    if (status != LH_OK) return status;
    if (f.signature.result != wanted->type)
        return refuse_value_type(b, name, f.signature.result, wanted);

    status = call_node_new(b, NODE_FUNCTION, f.signature.result, out);
    if (status != LH_OK) return status;
    b->depth++;
    status = bind_arguments(b, &f, args);
    b->depth--;
    if (status != LH_OK) return status;
    call_node_t *n = &b->call->nodes[*out];
    memcpy(n->args, args, sizeof(args));
    return prepare_node(b, n, &f);
}

/* A name alone is a variable; with a bracket or a colon behind it, a function. */
static lh_status_t bind_name(binder_t *b, const wanted_t *wanted, uint32_t *out)
{
    char first[64], second[64];
    const size_t length = identifier_length(b->at);
    const char *name = b->at;
    if (length >= sizeof(first))
        return fail(LH_INVALID, "%s: '%.60s...' is too long for a name", b->where, b->at);
    (void)snprintf(first, sizeof(first), "%.*s", (int)length, name);
    b->at += length;
    if (*b->at == ':') {
        const size_t more = identifier_length(++b->at);
        if (more == 0 || more >= sizeof(second) || b->at[more] != '(')
            return fail(LH_INVALID, "%s: expected a function and '(' behind '%s:'", b->where,
                        first);
        (void)snprintf(second, sizeof(second), "%.*s", (int)more, b->at);
        b->at += more;
        return bind_function(b, first, second, wanted, out);
    }
    if (*b->at == '(') return bind_function(b, NULL, first, wanted, out);
    return bind_variable(b, name, length, wanted, out);
}

static lh_status_t bind_expression(binder_t *b, const wanted_t *wanted, uint32_t *out)
{
    skip_space(b);
    if (*b->at == '"') return bind_string(b, wanted, out);
    if (identifier_length(b->at) > 0) return bind_name(b, wanted, out);
    return bind_number(b, wanted, out);
}

/* All or nothing: a text that does not bind leaves no call behind. */
lh_status_t call_bind(const char *text, const char *where, const call_scope_t *scope,
                      uint32_t result, call_t **out)
{
    call_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->text = mem_text(text);
    c->where = mem_text(where);
    lh_status_t status = LH_NO_MEMORY;
    if (c->text == NULL || c->where == NULL) goto free_call;

    binder_t b = {.scope = scope, .where = where, .at = c->text, .call = c};
    /* `at` walks through the call's own copy, in which strings are cut; `where` outlives the
     * binding. */
    const wanted_t wanted = {.type = result};
    status = bind_expression(&b, &wanted, &c->root);
    if (status != LH_OK) goto free_call;
    skip_space(&b);
    if (*b.at != '\0') {
        status = fail(LH_INVALID, "%s: '%s' stands behind the end of the call", where, b.at);
        goto free_call;
    }
    *out = c;
    return LH_OK;

free_call:
    call_free(c);
    return status;
}

/* Room for what a function returns. libffi writes small integers as ffi_arg, which is wider than
 * they are: a status is read from `small` and not from an int32_t at the same address. */
typedef union result {
    ffi_sarg small;
    int64_t i64;
    uint64_t u64;
    double f64;
    const char *str;
    lh_tensor_t *tensor;
} result_t;

/* What the function has said with host->fail, behind where the call stands. */
static lh_status_t refuse_result(const call_t *c, const call_node_t *n)
{
    char said[1024];
    (void)snprintf(said, sizeof(said), "%s", fail_reason());
    return fail(LH_INVALID, "%s: %s: %s", c->where, n->function->name, said);
}

/* Takes a result into the node. A function that returns a status has failed by that; any other has
 * failed if it has called host->fail, whatever it returned. A number that is not finite ends here,
 * before it becomes a learning rate. */
static lh_status_t take_result(const call_t *c, call_node_t *n, const result_t *r)
{
    switch (n->type) {
    case CALL_STATUS: {
        const lh_status_t status = (lh_status_t)r->small;
        if (status == LH_OK || fail_reason()[0] != '\0') return status;
        return fail(status, "%s: %s: %s", c->where, n->function->name, status_text(status));
    }
    case CALL_F64:
        if (!isfinite(r->f64) && fail_reason()[0] == '\0')
            return fail(LH_INVALID, "%s: %s gave %g", c->where, n->function->name, r->f64);
        n->value.f64 = r->f64;
        break;
    case CALL_STR: n->value.str = r->str; break;
    case CALL_TENSOR: n->value.tensor = r->tensor; break;
    default: n->value.u64 = r->u64; break;
    }
    if (fail_reason()[0] != '\0') return refuse_result(c, n);
    return LH_OK;
}

/* Runs the nodes below one, then itself. Depth was bounded when the tree was made. */
static lh_status_t run_node(call_t *c, uint32_t index, const call_value_t *values)
{
    lh_assert(index < c->count);
    call_node_t *n = &c->nodes[index];
    result_t result = {0};
    if (n->kind == NODE_CONSTANT) return LH_OK;
    if (n->kind == NODE_VARIABLE) {
        n->value = values[n->variable];
        return LH_OK;
    }
    for (uint32_t i = 0; i < n->arg_count; i++) {
        const lh_status_t status = run_node(c, n->args[i], values);
        if (status != LH_OK) return status;
    }
    fail_clear();
    ffi_call(&n->cif, n->function->fn, &result, n->values);
    return take_result(c, n, &result);
}

/* Values of an earlier run are overwritten, so a bound call may be run any number of times;
 * arguments are computed before the call that takes them, in the order of its parameters, which may
 * be another than the text's. */
lh_status_t call_run(call_t *c, const call_value_t *values, call_value_t *out)
{
    lh_assert(out != NULL || c->nodes[c->root].type == CALL_STATUS);
    const lh_status_t status = run_node(c, c->root, values);
    if (status == LH_OK && out != NULL) *out = c->nodes[c->root].value;
    return status;
}

const lh_function_t *call_target(const call_t *c)
{
    return c->nodes[c->root].function;
}

bool call_reads(const call_t *c, uint32_t variable)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->nodes[i].kind == NODE_VARIABLE && c->nodes[i].variable == variable) return true;
    return false;
}

void call_free(call_t *c)
{
    if (c == NULL) return;
    mem_free(c->text);
    mem_free(c->where);
    mem_free(c);
}
