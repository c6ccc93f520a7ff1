/* spec_record.c - lines of a part become calls of the recorder, in their order.
 *
 * An op's row says what an argument is: one without a keyword, or whose keyword is a slot of the
 * op's, is a tensor; any other is an attribute, which the op's own table parses. So ops that a
 * plugin brings are called like the core's. Arguments without a keyword fill the op's inputs in
 * order; those inputs that the core fills in by itself (positions, starts) are passed over,
 * unless more are given than there are others: rope(x, frequencies) and embed(tokens, table).
 *
 * What can't be recorded is told with the line, what it calls and the shapes of what it is
 * given. The first failure is the recording's, as with a plugin, and no further line is begun.
 *
 * A part is recorded anew for each use and block. Names are looked up each time, by comparing
 * texts: a block has some twenty lines, and is recorded before step 0 only.
 *
 *     k = rope(linear(n, wk), f, heads=kv, head_dim=d)
 *
 * calls, where kv is 2 and d 16,
 *
 *     linear      x = what line n made, weight = the parameter wk
 *     rope        x = that, positions = the step's (passed over), frequencies = what line f made;
 *                 "2" and "16" go through the rows `heads` and `head_dim` of rope's attributes
 *
 * and leaves in the line's place what rope gave, and rope itself, which knows the slots of its
 * other outputs. */
#include <spec/spec_record.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <graph/recorder.h>
#include <longhaul/positions.h>
#include <spec/spec_check.h>

/* What a line has made: the first output of its op, and the others by slot. */
typedef struct made {
    const op_t *op; /* NULL: no op, or its other outputs are not to be had */
    lh_value_t first, more[OP_SLOTS];
} made_t;

/* One part that is being recorded. */
typedef struct writer {
    lh_model_t *m;
    lh_graph_t *g;
    recording_t *r;
    const spec_part_t *part;
    spec_scope_t scope;
    lh_value_t input;
    made_t *made;  /* [part->count] */
    uint32_t line; /* at hand */
    char where[700];
} spec_writer_t;

/* Keeps the sentence of the last fail() as the recording's. 0, as a call that is not recorded. */
static lh_value_t writer_refuses(const spec_writer_t *w, lh_status_t status)
{
    recording_failed(w->r, status);
    return 0;
}

/* ---- attributes ---- */

/* What is written into attributes: an op's struct, or that of a maker. */
typedef struct attribute_table {
    const char *name; /* of what is called */
    const lh_option_t *rows;
    uint32_t row_size, count;
} attribute_table_t;

/* Rows of a plugin's op may be longer than this host's. */
static const lh_option_t *attribute_row(const attribute_table_t *t, uint32_t index)
{
    lh_assert(index < t->count);
    return (const lh_option_t *)(const void *)((const char *)t->rows + (size_t)index * t->row_size);
}

/* A flag or a number in the place of yes|no says which. */
static bool is_yes_no(const lh_option_t *row)
{
    return row->type == LH_OPT_BOOL ||
           (row->type == LH_OPT_CHOICE && text_equal(row->range, "no|yes"));
}

/* The expression is worked out and written as text, which the row's own parser then takes:
 * ranges, units and words of choices are its own to check. */
static lh_status_t attribute_set(const spec_writer_t *w, const attribute_table_t *t,
                                 const lh_option_t *row, const spec_node_t *arg, void *attributes)
{
    char where[800];
    spec_scope_t scope = w->scope;
    spec_value_t value;
    text_t text = {0};
    (void)snprintf(where, sizeof(where), "%s: %s()", w->where, t->name);
    const spec_names_t names = spec_scope_names(&scope, where);
    lh_status_t status = spec_evaluate(arg, &names, &value);
    if (status != LH_OK) return status;
    if (value.kind == SPEC_WHOLE && is_yes_no(row)) value.kind = SPEC_FLAG;
    if (value.kind == SPEC_FLAG && !is_yes_no(row)) value.kind = SPEC_WHOLE;
    spec_value_text(&value, &text);
    status = text_status(&text);
    if (status == LH_OK)
        status = option_set(row, text.data == NULL ? "" : text.data, where, NULL, attributes);
    text_free(&text);
    return status;
}

/* Rows that no argument names have their defaults. */
static lh_status_t attributes_fill(const spec_writer_t *w, const attribute_table_t *t,
                                   const spec_node_t *call, void *attributes)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const lh_option_t *row = attribute_row(t, i);
        const spec_node_t *arg = call->first;
        while (arg != NULL && strcmp(arg->keyword, row->key) != 0)
            arg = arg->next;
        lh_status_t status = LH_OK;
        if (arg != NULL)
            status = attribute_set(w, t, row, arg, attributes);
        else if (row->fallback == NULL)
            status = fail(LH_INVALID, "%s: %s() lacks %s (%s)", w->where, t->name, row->key,
                          row->help);
        else
            status = option_set(row, row->fallback, w->where, NULL, attributes);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static bool attribute_known(const attribute_table_t *t, const char *key)
{
    for (uint32_t i = 0; i < t->count; i++)
        if (strcmp(attribute_row(t, i)->key, key) == 0) return true;
    return false;
}

/* The sentence of a keyword that is neither; op NULL: of a maker, which has no inputs. */
static lh_status_t refuse_keyword(const spec_writer_t *w, const attribute_table_t *t,
                                  const op_t *op, const char *keyword)
{
    text_nearest_t near = {.typed = keyword};
    for (uint32_t i = 0; i < t->count; i++)
        text_nearest_offer(&near, attribute_row(t, i)->key);
    for (uint32_t i = 0; op != NULL && i < op->in_count; i++)
        text_nearest_offer(&near, op->slot_name[i]);
    char meant[SPEC_MEANT];
    return fail(LH_INVALID, "%s: %s() has no '%s'%s", w->where, t->name, keyword,
                spec_meant(&near, meant));
}

/* ---- makers: constants and inputs of the recording ---- */

/* As op's attributes, by tables: their arguments are checked and explained like an op's. */
typedef struct rotary_how {
    lh_rotary_t rotary;
    uint64_t dims;
} rotary_how_t;
#define R rotary_how_t
static const lh_option_t rotary_rows[] = {
    LH_OPTION_U64(R, dims, "dims", NULL, "2..65536", "components of a head that turn"),
    LH_OPTION_F64(R, rotary.base, "base", "10000", "1..1e12", "base of the frequencies"),
    LH_OPTION_CHOICE(R, rotary.scaling, "scaling", "default", "default|linear|llama3",
                     "how they are stretched"),
    LH_OPTION_F64(R, rotary.factor, "factor", "1", "1..1e6", "how much longer"),
    LH_OPTION_F64(R, rotary.low, "low", "1", "0..1e6", "llama3: wavelengths over original / low"),
    LH_OPTION_F64(R, rotary.high, "high", "4", "0..1e6",
                  "llama3: wavelengths under original / high"),
    LH_OPTION_U64(R, rotary.original, "original", "8192", "1..16777216",
                  "llama3: longest sequence"),
};
#undef R

typedef struct alibi_how {
    uint64_t heads;
    double divisor;
} alibi_how_t;
static const lh_option_t alibi_rows[] = {
    LH_OPTION_U64(alibi_how_t, heads, "heads", NULL, "1..65536", "query heads"),
    LH_OPTION_F64(alibi_how_t, divisor, "divisor", "1", "1e-9..1e9", "slopes are divided by it"),
};

typedef struct constant_how {
    double value;
} constant_how_t;
static const lh_option_t constant_rows[] = {
    LH_OPTION_F64(constant_how_t, value, "value", NULL, NULL, "the number"),
};

typedef union maker_how {
    rotary_how_t rotary;
    alibi_how_t alibi;
    constant_how_t constant;
} maker_how_t;

/* For each maker how many numbers it gives, and which. */
static uint64_t rotary_count(const maker_how_t *how)
{
    return how->rotary.dims / 2;
}
static void rotary_values(const maker_how_t *how, float *out)
{
    lh_rotary_fill(&how->rotary.rotary, how->rotary.dims, out);
}
static uint64_t alibi_count(const maker_how_t *how)
{
    return how->alibi.heads;
}
static void alibi_values(const maker_how_t *how, float *out)
{
    lh_alibi_fill(how->alibi.heads, how->alibi.divisor, out);
}
static uint64_t constant_count(LH_UNUSED const maker_how_t *how)
{
    return 1;
}
static void constant_values(const maker_how_t *how, float *out)
{
    *out = (float)how->constant.value;
}

/* What makes a constant: its attributes, how many numbers, and which. */
static const struct maker {
    const char *name;
    const lh_option_t *rows;
    uint32_t count;
    uint64_t (*length)(const maker_how_t *how);
    void (*values)(const maker_how_t *how, float *out);
} makers[] = {
#define ROWS(r) r, (uint32_t)(sizeof(r) / sizeof((r)[0]))
    {"rotary", ROWS(rotary_rows), rotary_count, rotary_values},
    {"alibi", ROWS(alibi_rows), alibi_count, alibi_values},
    {"constant", ROWS(constant_rows), constant_count, constant_values},
#undef ROWS
};

static const struct maker *maker_find(const char *name)
{
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
        if (strcmp(makers[i].name, name) == 0) return &makers[i];
    return NULL;
}

void spec_record_help(text_t *out)
{
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++) {
        text_printf(out, "\n%s(...) makes a constant of:\n", makers[i].name);
        options_explain_table(makers[i].rows, makers[i].count, out);
    }
    text_append(out, "\ninput(NAME) is an input of the step: tokens, positions, starts, seed\n");
    text_append(out, "\nNAME = accumulate(TENSOR, when=N) adds to a sum over embedding and blocks\n"
                     "NAME = loss(TENSOR, when=N) is minimised beside the cross-entropy\n"
                     "total(NAME, count=N) is that sum in the head, of N values\n");
}

/* The recorder copies the numbers, and knows equal ones again: all blocks share their
 * frequencies. */
static lh_value_t constant_make(const spec_writer_t *w, const struct maker *maker,
                                const spec_node_t *call)
{
    maker_how_t how;
    memset(&how, 0, sizeof(how));
    const attribute_table_t t = {maker->name, maker->rows, sizeof(lh_option_t), maker->count};
    lh_status_t status = LH_OK;
    for (const spec_node_t *arg = call->first; arg != NULL && status == LH_OK; arg = arg->next)
        if (arg->keyword[0] == '\0')
            status = fail(LH_INVALID, "%s: %s() takes no tensor", w->where, maker->name);
        else if (!attribute_known(&t, arg->keyword))
            status = refuse_keyword(w, &t, NULL, arg->keyword);
    if (status == LH_OK) status = attributes_fill(w, &t, call, &how);
    if (status != LH_OK) return writer_refuses(w, status);
    const uint64_t count = maker->length(&how);
    float *values = mem_array(count, sizeof(*values));
    if (values == NULL) return writer_refuses(w, LH_NO_MEMORY);
    maker->values(&how, values);
    const lh_value_t made = w->g->api->constant(w->g, values, count);
    mem_free(values);
    return made;
}

/* ---- tensors ---- */

static lh_value_t call_write(spec_writer_t *w, const spec_node_t *call, made_t *made);

/* A name that spec_check.c let pass, as behind a keyword an option or the word of a choice may stand;
 * here it is known that the keyword is an input. */
static lh_value_t refuse_no_tensor(const spec_writer_t *w, const char *name)
{
    text_nearest_t near = {.typed = name};
    text_nearest_offer(&near, w->part->input);
    for (uint32_t i = 0; i < w->line; i++)
        text_nearest_offer(&near, w->part->lines[i].at->key);
    for (uint32_t i = 0; i < w->m->spec->parameter_count; i++)
        if (spec_part_has(w->m->spec, w->part, &w->m->spec->parameters[i]))
            text_nearest_offer(&near, w->m->spec->parameters[i].name);
    char meant[SPEC_MEANT];
    return writer_refuses(w,
                          fail(LH_INVALID,
                               "%s: '%s' is no line above, no parameter of this part and not its "
                               "input, %s%s",
                               w->where, name, w->part->input, spec_meant(&near, meant)));
}

/* "line.slot": another output of that line's op. */
static lh_value_t slot_find(const spec_writer_t *w, const char *name)
{
    char base[SPEC_NAME] = "";
    lh_assert(spec_slot_dot(name) < sizeof(base)); /* a node's text */
    memcpy(base, name, spec_slot_dot(name));
    const char *slot_name = name + spec_slot_dot(name) + 1;
    const uint32_t line = spec_find_line(w->part, base, w->line);
    if (line == w->part->count) return refuse_no_tensor(w, name);
    const made_t *made = &w->made[line];
    const uint32_t slot = made->op == NULL ? OP_SLOTS : op_slot(made->op, slot_name);
    if (slot < OP_SLOTS && slot > made->op->in_count)
        return made->more[slot - made->op->in_count - 1];
    if (slot < OP_SLOTS && slot == made->op->in_count) return made->first;
    return writer_refuses(w,
                          fail(LH_INVALID, "%s: %s(), which makes %s, has no output '%s'", w->where,
                               made->op == NULL ? "a name" : made->op->row.name, base, slot_name));
}

/* 0 is also a parameter that is not there with these options: an input that is left out. */
static lh_value_t word_write(spec_writer_t *w, const char *name)
{
    const uint32_t line = spec_find_line(w->part, name, w->line);
    if (line != w->part->count) return w->made[line].first;
    if (strcmp(name, w->part->input) == 0) return w->input;
    const spec_parameter_t *p = spec_find_parameter(w->m->spec, w->part, name);
    if (p != NULL) return spec_model_has(w->m, p) ? w->g->api->param(w->g, name) : 0;
    return slot_find(w, name);
}

/* An argument that is an input of an op. */
static lh_value_t tensor_write(spec_writer_t *w, const spec_node_t *node)
{
    if (w->r->status != LH_OK) return 0;
    if (node->kind == SPEC_NODE_WORD) return word_write(w, node->text);
    if (node->kind == SPEC_NODE_CALL && !spec_is_function(node->text))
        return call_write(w, node, NULL);
    return writer_refuses(
        w, fail(LH_INVALID, "%s: a number stands where a tensor is wanted", w->where));
}

/* ---- ops ---- */

/* Whether the core fills an input in where it is left out. */
static bool slot_is_filled(const op_t *op, uint32_t slot)
{
    return !op->optional[slot] && recorder_input_of(op->slot_name[slot]) != 0;
}

/* The slot of the n-th argument without a keyword; in_count: there is none. */
static uint32_t slot_at(const op_t *op, const spec_node_t *call, uint32_t place)
{
    uint32_t plain = 0, others = 0;
    for (const spec_node_t *arg = call->first; arg != NULL; arg = arg->next)
        plain += arg->keyword[0] == '\0';
    for (uint32_t i = 0; i < op->in_count; i++)
        others += !slot_is_filled(op, i);
    for (uint32_t i = 0; i < op->in_count; i++) {
        if (plain <= others && slot_is_filled(op, i)) continue;
        if (place-- == 0) return i;
    }
    return op->in_count;
}

/* Whether a word that gave no tensor is left out on purpose: a parameter that is not there. */
static bool is_left_out(const spec_writer_t *w, const spec_node_t *arg)
{
    return arg->kind == SPEC_NODE_WORD &&
           spec_find_line(w->part, arg->text, w->line) == w->part->count &&
           spec_find_parameter(w->m->spec, w->part, arg->text) != NULL;
}

/* Inputs in slot order. */
static lh_status_t inputs_write(spec_writer_t *w, const attribute_table_t *t, const op_t *op,
                                const spec_node_t *call, lh_value_t in[OP_SLOTS])
{
    bool taken[OP_SLOTS] = {false};
    uint32_t place = 0;
    for (const spec_node_t *arg = call->first; arg != NULL; arg = arg->next) {
        uint32_t slot;
        if (arg->keyword[0] != '\0') {
            slot = op_slot(op, arg->keyword);
            if (slot >= op->in_count && attribute_known(t, arg->keyword)) continue;
            if (slot >= op->in_count) return refuse_keyword(w, t, op, arg->keyword);
        } else {
            slot = slot_at(op, call, place++);
        }
        if (slot == op->in_count)
            return fail(LH_INVALID, "%s: %s() takes %u inputs (%s)", w->where, op->row.name,
                        op->in_count, op->row.slots);
        lh_assert(slot < op->in_count && slot < OP_SLOTS);
        if (taken[slot])
            return fail(LH_INVALID, "%s: %s() is given its input %s twice", w->where, op->row.name,
                        op->slot_name[slot]);
        taken[slot] = true;
        in[slot] = tensor_write(w, arg);
        if (w->r->status != LH_OK) return w->r->status;
        if (in[slot] == 0 && !is_left_out(w, arg))
            return fail(LH_INVALID, "%s: %s() is given nothing as its input %s", w->where,
                        op->row.name, op->slot_name[slot]);
    }
    return LH_OK;
}

/* "[64, 32]" */
static void value_shape_text(const spec_writer_t *w, lh_value_t value, text_t *out)
{
    lh_assert(value != 0 && value < w->r->value_count);
    const lh_arg_t *arg = &w->r->values[value].arg;
    for (uint32_t d = 0; d < arg->rank; d++)
        text_printf(out, "%s%llu", d == 0 ? "[" : ", ", (unsigned long long)arg->shape[d]);
    text_append(out, "]");
}

/* "x [64, 32], weight [96, 31]" */
static void input_shapes_text(const spec_writer_t *w, const op_t *op, const lh_value_t in[OP_SLOTS],
                              text_t *out)
{
    const char *between = "";
    for (uint32_t i = 0; i < op->in_count; i++) {
        if (in[i] == 0) continue;
        text_printf(out, "%s%s ", between, op->slot_name[i]);
        value_shape_text(w, in[i], out);
        between = ", ";
    }
}

/* What the op says, behind where it is called and with what. */
static void call_explain(const spec_writer_t *w, const op_t *op, const lh_value_t in[OP_SLOTS])
{
    text_t text = {0};
    text_printf(&text, "%s: %s() of ", w->where, op->row.name);
    input_shapes_text(w, op, in, &text);
    text_append(&text, ": ");
    if (!text.failed) recording_explain(w->r, text.data);
    text_free(&text);
}

/* Inputs first, as they may be calls that are recorded before this one. */
static lh_value_t op_write(spec_writer_t *w, const op_t *op, const spec_node_t *call, made_t *made)
{
    const attribute_table_t t = {op->row.name, op->row.attributes, op->row.attribute_size,
                                 op->row.attribute_count};
    lh_value_t in[OP_SLOTS] = {0}, more[OP_SLOTS] = {0};
    lh_status_t status = inputs_write(w, &t, op, call, in);
    if (w->r->status != LH_OK) return 0;
    const uint32_t bytes = op->row.attributes_bytes;
    char *attributes = status != LH_OK || bytes == 0 ? NULL : mem_new(bytes);
    if (status == LH_OK && bytes != 0 && attributes == NULL) status = LH_NO_MEMORY;
    if (attributes != NULL) memcpy(attributes, &bytes, sizeof(bytes));
    if (status == LH_OK && bytes != 0) status = attributes_fill(w, &t, call, attributes);
    lh_value_t first = 0;
    if (status == LH_OK) {
        first = w->g->api->op(w->g, op->row.name, attributes, in, op->in_count, more);
        if (w->r->status != LH_OK) call_explain(w, op, in);
    }
    mem_free(attributes);
    recording_failed(w->r, status);
    if (made != NULL) {
        made->op = op;
        memcpy(made->more, more, sizeof(more));
    }
    return first;
}

/* A sum, in the head. */
static lh_value_t total_write(const spec_writer_t *w, const spec_node_t *call)
{
    lh_assert(call->first != NULL && call->first->next != NULL); /* spec_check's total_check */
    const char *name = call->first->text;
    spec_scope_t scope = w->scope;
    uint64_t count = 0;
    bool added;
    const spec_names_t names = spec_scope_names(&scope, w->where);
    lh_status_t status = spec_whole(call->first->next, &names, &count);
    if (status == LH_OK) status = spec_model_sum_added(w->m, name, &added);
    if (status == LH_OK && !added)
        status = fail(LH_INVALID, "%s: total(%s): with these options nothing is added to it",
                      w->where, name);
    if (status == LH_OK && count == 0)
        status = fail(LH_INVALID, "%s: total(%s, count=0): expected a number from 1 on", w->where,
                      name);
    return status == LH_OK ? w->g->api->total(w->g, name, count) : writer_refuses(w, status);
}

/* A maker, an input of the step, a sum, or an op; made: of a line, whose other outputs may be asked
 * for. */
static lh_value_t call_write(spec_writer_t *w, const spec_node_t *call, made_t *made)
{
    const struct maker *maker = maker_find(call->text);
    if (maker != NULL) return constant_make(w, maker, call);
    if (spec_call_is_total(call)) return total_write(w, call);
    if (strcmp(call->text, "input") == 0)
        return w->g->api->input(w->g, spec_input(call->first->text));
    const op_t *op = op_table_find(w->r->how.ops, call->text);
    if (op != NULL) return op_write(w, op, call, made);

    text_nearest_t near = {.typed = call->text};
    for (uint32_t i = 0; i < op_table_count(w->r->how.ops); i++)
        text_nearest_offer(&near, op_table_at(w->r->how.ops, i)->row.name);
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
        text_nearest_offer(&near, makers[i].name);
    char meant[SPEC_MEANT];
    return writer_refuses(w, fail(LH_INVALID,
                                  "%s: there is no op '%s' in the core or in [model] ops%s",
                                  w->where, call->text, spec_meant(&near, meant)));
}

/* ---- a part ---- */

/* The lines of a part; of a block those of its class. */
static const spec_part_t *spec_part_of(const lh_model_t *m, uint32_t part, uint32_t block)
{
    const spec_t *s = m->spec;
    switch (part) {
    case LH_PART_EMBED: return &s->embedding;
    case LH_PART_HEAD: return &s->tail;
    default:
        lh_assert(part == LH_PART_BLOCK && (m->classes == NULL || block < m->blocks));
        return &s->blocks[m->classes == NULL ? 0 : m->classes[block]];
    }
}

/* What is added must be as long as what the head reads. */
static lh_status_t sum_check(const spec_writer_t *w, const char *name, lh_value_t value)
{
    lh_assert(value != 0 && value < w->r->value_count);
    const lh_arg_t *arg = &w->r->values[value].arg;
    const spec_line_t *line = NULL;
    uint64_t count;
    const lh_status_t status = spec_model_sum_read(w->m, name, &count, &line);
    if (status != LH_OK) return status;
    if (line == NULL)
        return fail(LH_INVALID, "%s: with these options the head does not read it", w->where);
    if (arg->rank != 1 || arg->shape[0] == count) return LH_OK; /* the recorder's, or fine */
    return fail(LH_INVALID, "%s: accumulate() of [%llu]; [spec.head] %s, line %u, reads %llu",
                w->where, (unsigned long long)arg->shape[0], line->at->key, line->at->line,
                (unsigned long long)count);
}

/* accumulate or loss. The recorder says what it does not take; where stands before. */
static void statement_write(spec_writer_t *w, const spec_line_t *line)
{
    lh_assert(line->tree->first != NULL); /* spec_check's statement_check */
    const char *name = line->at->key;
    const bool sum = spec_call_kind(line->tree) == SPEC_ACCUMULATES;
    const lh_value_t value = tensor_write(w, line->tree->first);
    text_t text = {0};
    if (w->r->status != LH_OK) return;
    lh_status_t status = LH_OK;
    if (value == 0)
        status = fail(LH_INVALID, "%s: %s() is given nothing", w->where, line->tree->text);
    if (status == LH_OK && sum) status = sum_check(w, name, value);
    recording_failed(w->r, status);
    if (status != LH_OK) return;
    if (sum)
        w->g->api->accumulate(w->g, name, value);
    else
        w->g->api->loss(w->g, name, value);
    if (w->r->status == LH_OK) return;
    text_printf(&text, "%s: %s() of ", w->where, line->tree->text);
    value_shape_text(w, value, &text);
    text_append(&text, ": ");
    if (!text.failed) recording_explain(w->r, text.data);
    text_free(&text);
}

/* The last line of a part gives hidden columns for each token, of the head the vocabulary's. The
 * core would refuse other shapes too, but knows no lines. */
static lh_value_t spec_output_check(const spec_writer_t *w, lh_value_t output)
{
    if (w->r->status != LH_OK) return 0;
    if (output == 0)
        return writer_refuses(w, fail(LH_INVALID, "%s: the part's result is nothing", w->where));
    const lh_arg_t *arg = &w->r->values[output].arg;
    const bool head = w->part->part == LH_PART_HEAD;
    const uint64_t columns = head ? w->m->vocab : w->m->hidden;
    text_t shape = {0};
    if (arg->rank == 2 && arg->shape[0] == w->r->how.tokens && arg->shape[1] == columns)
        return output;
    value_shape_text(w, output, &shape);
    if (text_status(&shape) == LH_OK)
        (void)fail(LH_INVALID, "%s: the part's result is %s, expected [%llu, %llu]: tokens, %s",
                   w->where, shape.data, (unsigned long long)w->r->how.tokens,
                   (unsigned long long)columns, head ? "vocab" : "hidden");
    const lh_status_t status = shape.failed ? LH_NO_MEMORY : LH_INVALID;
    text_free(&shape);
    return writer_refuses(w, status);
}

/* lh_model_api_t.record. The last line's value is the part's output. */
lh_value_t spec_record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                       lh_value_t input)
{
    const spec_part_t *lines = spec_part_of(m, part, block);
    lh_assert(lines->count > 0 && lines->count <= SPEC_LINES);
    spec_writer_t w = {.m = m,
                       .g = g,
                       .r = (recording_t *)g,
                       .part = lines,
                       .scope = {m, part == LH_PART_BLOCK, block},
                       .input = input,
                       .made = mem_array(lines->count, sizeof(made_t))};
    bool wanted[SPEC_LINES];
    lh_value_t last = 0;
    if (w.made == NULL) return writer_refuses(&w, LH_NO_MEMORY);
    recording_failed(w.r, spec_model_wanted(m, lines, block, wanted));
    for (w.line = 0; w.line < lines->count && w.r->status == LH_OK; w.line++) {
        const spec_line_t *line = &lines->lines[w.line];
        if (!wanted[w.line]) continue;
        spec_where_line(lines->section, line->at, w.where, sizeof(w.where));
        if (spec_call_kind(line->tree) != SPEC_MAKES) {
            statement_write(&w, line);
            continue;
        }
        made_t made = {0};
        made.first = line->tree->kind == SPEC_NODE_CALL ? call_write(&w, line->tree, &made)
                                                        : tensor_write(&w, line->tree);
        w.made[w.line] = made;
        last = made.first;
    }
    mem_free(w.made);
    return spec_output_check(&w, last);
}
