/* spec_model.c - a spec with its options: values and shapes worked out, rows of parameters as
 * describe() shows them.
 *
 * open() has the options' struct and the host, nothing else, as any plugin: which spec it is of
 * is kept beside the host's services of that name (host_keep). It is where what depends on
 * options is refused: heads that do not divide hidden, a dimension that comes out as 0, a class
 * that has no section.
 *
 * Values are worked out in the order in which they need each other, and kept: lines and shapes
 * read them as they read options. Rows of parameters that are not there with these options
 * (when) are left out, so that import, export and checkpoints know nothing of them. */
#include <spec/spec_model.h>

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <plugin/host.h>
#include <spec/spec_check.h>

/* ---- names of numbers ---- */

/* The words of choices, which have no place in the config, and texts, which have. */
static lh_status_t texts_work_out(lh_model_t *m)
{
    const spec_t *s = m->spec;
    m->texts = spec_pool_new(&m->pool, s->option_count, sizeof(*m->texts));
    if (m->texts == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < s->option_count; i++) {
        char buffer[OPTION_TEXT];
        const lh_option_t *row = &s->rows[i];
        if (row->type != LH_OPT_CHOICE && row->type != LH_OPT_STRING) continue;
        const char *text = option_text(row, m->config, buffer);
        if (text == buffer) text = spec_pool_text(&m->pool, buffer, strlen(buffer));
        if (text == NULL && row->type == LH_OPT_CHOICE) return LH_NO_MEMORY;
        m->texts[i] = text;
    }
    return LH_OK;
}

/* An option's value in the model's config. */
static void option_value(const lh_model_t *m, uint32_t index, spec_value_t *out)
{
    lh_assert(index < m->spec->option_count);
    const lh_option_t *row = &m->spec->rows[index];
    const char *at = (const char *)m->config + row->offset;
    *out = (spec_value_t){.kind = SPEC_WHOLE};
    switch (row->type) {
    case LH_OPT_BOOL:
        out->kind = SPEC_FLAG;
        out->whole = *(const bool *)at;
        break;
    case LH_OPT_F64:
        out->kind = SPEC_REAL;
        memcpy(&out->real, at, sizeof(out->real));
        break;
    case LH_OPT_U64: memcpy(&out->whole, at, sizeof(out->whole)); break;
    default: out->kind = SPEC_TEXT; out->text = m->texts[index] == NULL ? "" : m->texts[index];
    }
}

/* Options, then values, then the block's number: a value may not be called like an option, which
 * spec_check.c refuses, and either may hide `block`. */
static bool scope_find(void *context, const char *name, spec_value_t *out)
{
    const spec_scope_t *scope = context;
    const lh_model_t *m = scope->model;
    uint32_t index;
    if (spec_find_option(m->spec, name, &index) != NULL) {
        option_value(m, index, out);
        return true;
    }
    index = spec_find_value(m->spec, name);
    if (index < m->spec->value_count && m->valued[index] != 0) {
        *out = m->values[index];
        return true;
    }
    if (!scope->in_block || strcmp(name, "block") != 0) return false;
    *out = (spec_value_t){.kind = SPEC_WHOLE, .whole = scope->block};
    return true;
}

/* What might have been meant by a name that is none of them. */
static void scope_offer(void *context, text_nearest_t *near)
{
    const spec_t *s = ((const spec_scope_t *)context)->model->spec;
    for (uint32_t i = 0; i < s->option_count; i++)
        text_nearest_offer(near, s->rows[i].key);
    for (uint32_t i = 0; i < s->value_count; i++)
        text_nearest_offer(near, s->values[i].at->key);
}

spec_names_t spec_scope_names(spec_scope_t *scope, const char *where)
{
    return (spec_names_t){
        .where = where, .find = scope_find, .offer = scope_offer, .context = scope};
}

/* A value needs those that it names first; circles were refused when the spec was read. */
static lh_status_t value_work_out(lh_model_t *m, uint32_t index);

/* The values that a tree names. */
static lh_status_t tree_values_work_out(lh_model_t *m, const spec_node_t *node)
{
    lh_status_t status = LH_OK;
    if (node->kind == SPEC_NODE_WORD && spec_find_option(m->spec, node->text, NULL) == NULL) {
        const uint32_t index = spec_find_value(m->spec, node->text);
        if (index < m->spec->value_count) status = value_work_out(m, index);
    }
    for (const spec_node_t *child = node->first; child != NULL && status == LH_OK;
         child = child->next)
        status = tree_values_work_out(m, child);
    return status;
}

/* It counts as known once all that it needs is. */
static lh_status_t value_work_out(lh_model_t *m, uint32_t index)
{
    lh_assert(index < m->spec->value_count);
    const spec_line_t *line = &m->spec->values[index];
    char where[700];
    if (m->valued[index] != 0) return LH_OK;
    const lh_status_t status = tree_values_work_out(m, line->tree);
    if (status != LH_OK) return status;
    spec_scope_t scope = {.model = m};
    spec_where_line(document_find(m->spec->document, "spec.values"), line->at, where,
                    sizeof(where));
    const spec_names_t names = spec_scope_names(&scope, where);
    m->valued[index] = 1;
    return spec_evaluate(line->tree, &names, &m->values[index]);
}

/* ---- parameters ---- */

/* One expression of a parameter's section as a size. */
static lh_status_t parameter_whole(lh_model_t *m, const spec_parameter_t *p, const char *key,
                                   const spec_node_t *node, uint64_t *out)
{
    char where[800];
    spec_scope_t scope = {.model = m};
    spec_where_parameter(p, key, where, sizeof(where));
    const spec_names_t names = spec_scope_names(&scope, where);
    return spec_whole(node, &names, out);
}

/* One to three sizes, none of them 0. */
static lh_status_t shape_work_out(lh_model_t *m, const spec_parameter_t *p, const char *key,
                                  const spec_node_t *list, uint64_t shape[3])
{
    char where[800];
    uint32_t rank = 0;
    spec_where_parameter(p, key, where, sizeof(where));
    for (const spec_node_t *node = list; node != NULL; node = node->next) {
        if (rank == 3) return fail(LH_INVALID, "%s: expected at most 3 dimensions", where);
        const lh_status_t status = parameter_whole(m, p, key, node, &shape[rank]);
        if (status != LH_OK) return status;
        if (shape[rank++] == 0) return fail(LH_INVALID, "%s: dimension %u is 0", where, rank);
    }
    return LH_OK;
}

/* "split_qkv(source, heads={heads})" with numbers in the place of braces. */
static lh_status_t braces_fill(lh_model_t *m, const spec_parameter_t *p, const char *key,
                               const char *text, const char **out)
{
    char where[800];
    spec_scope_t scope = {.model = m};
    text_t all = {0};
    if (text == NULL) return LH_OK;
    spec_where_parameter(p, key, where, sizeof(where));
    const spec_names_t names = spec_scope_names(&scope, where);
    lh_status_t status = LH_OK;
    for (const char *at = text; *at != '\0' && status == LH_OK;) {
        const size_t plain = strcspn(at, "{"), inside = strcspn(at + plain, "}");
        text_append_n(&all, at, plain);
        at += plain;
        if (*at == '\0') break;
        spec_node_t *tree;
        spec_value_t value;
        if (at[inside] == '\0') {
            status = fail(LH_INVALID, "%s = %s: '{' without '}'", where, text);
            break;
        }
        char *expression = spec_pool_text(&m->pool, at + 1, inside - 1);
        status = expression == NULL ? LH_NO_MEMORY : spec_parse(expression, where, &m->pool, &tree);
        if (status == LH_OK) status = spec_evaluate(tree, &names, &value);
        if (status == LH_OK && value.kind == SPEC_TEXT)
            status = fail(LH_INVALID, "%s = %s: '%s' is no number", where, text, expression);
        if (status == LH_OK) spec_value_text(&value, &all);
        at += inside + 1;
    }
    if (status == LH_OK) status = text_status(&all);
    if (status == LH_OK) {
        *out = spec_pool_text(&m->pool, all.data == NULL ? "" : all.data, all.length);
        if (*out == NULL) status = LH_NO_MEMORY;
    }
    text_free(&all);
    return status;
}

/* lh_param_t.classes; 0, which is of no letters, stands for all. */
static uint64_t class_bits(const spec_t *s, const char *letters)
{
    uint64_t bits = 0;
    for (const char *c = letters; c != NULL && *c != '\0'; c++)
        bits |= 1ull << (strchr(s->letters, *c) - s->letters);
    return bits;
}

/* A row as a plugin's table would have it. */
static lh_status_t row_work_out(lh_model_t *m, const spec_parameter_t *p, lh_param_t *row)
{
    char where[800];
    const spec_parameter_text_t *t = &p->text;
    spec_scope_t scope = {.model = m};
    uint64_t unit = 1, tied = 0;
    *row = (lh_param_t){.name = p->name,
                        .hf_name = t->hf,
                        .part = t->part + 1,
                        .shard = t->cut,
                        .init = t->init + 1,
                        .classes = class_bits(m->spec, t->classes)};
    lh_status_t status = shape_work_out(m, p, "shape", p->shape, row->shape);
    if (status == LH_OK && p->hf_shape != NULL)
        status = shape_work_out(m, p, "hf_shape", p->hf_shape, row->hf_shape);
    if (status == LH_OK) status = parameter_whole(m, p, "unit", p->unit, &unit);
    spec_where_parameter(p, "unit", where, sizeof(where));
    if (status == LH_OK && (unit == 0 || unit > UINT32_MAX))
        status = fail(LH_INVALID, "%s is %llu, expected a number from 1 on", where,
                      (unsigned long long)unit);
    row->unit = (uint32_t)unit;
    spec_where_parameter(p, "std", where, sizeof(where));
    const spec_names_t names = spec_scope_names(&scope, where);
    if (status == LH_OK && p->std != NULL) status = spec_real(p->std, &names, &row->init_scale);
    if (status == LH_OK && row->init_scale < 0)
        status = fail(LH_INVALID, "%s is %g, expected a number from 0 on", where, row->init_scale);
    if (status == LH_OK) status = parameter_whole(m, p, "tied", p->tied, &tied);
    if (tied != 0) row->tied_to = t->tied_to;
    const bool decays = t->decay == 2 || (t->decay == 0 && row->shape[1] != 0);
    row->flags = (decays ? 0 : LH_PARAM_NO_DECAY) | (t->frozen ? LH_PARAM_FROZEN : 0);
    if (status == LH_OK) status = braces_fill(m, p, "import", t->import, &row->hf_import);
    return status == LH_OK ? braces_fill(m, p, "export", t->export, &row->hf_export) : status;
}

/* In the order of the spec; room for all of them. */
static lh_status_t rows_work_out(lh_model_t *m)
{
    const spec_t *s = m->spec;
    m->rows = spec_pool_new(&m->pool, s->parameter_count, sizeof(*m->rows));
    m->of = spec_pool_new(&m->pool, s->parameter_count, sizeof(*m->of));
    if (m->rows == NULL || m->of == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < s->parameter_count; i++) {
        const spec_parameter_t *p = &s->parameters[i];
        uint64_t there;
        lh_status_t status = parameter_whole(m, p, "when", p->when, &there);
        if (status != LH_OK) return status;
        if (there == 0) continue;
        status = row_work_out(m, p, &m->rows[m->row_count]);
        if (status != LH_OK) return status;
        m->of[m->row_count++] = p;
    }
    return LH_OK;
}

bool spec_model_has(const lh_model_t *m, const spec_parameter_t *p)
{
    for (uint32_t i = 0; i < m->row_count; i++)
        if (m->of[i] == p) return true;
    return false;
}

/* ---- sizes and classes ---- */

/* What describe() says of the whole, by the name of an option or value. */
static lh_status_t size_work_out(lh_model_t *m, const char *name, uint64_t *out)
{
    spec_scope_t scope = {.model = m};
    const spec_names_t names = spec_scope_names(&scope, m->spec->where);
    spec_node_t node = {.kind = SPEC_NODE_WORD};
    (void)snprintf(node.text, sizeof(node.text), "%s", name);
    const lh_status_t status = spec_whole(&node, &names, out);
    if (status != LH_OK) return status;
    return *out != 0 ? LH_OK : fail(LH_INVALID, "%s: %s is 0", m->spec->where, name);
}

/* classes in [spec] names a text option, or is the letters themselves. */
static lh_status_t classes_work_out(lh_model_t *m)
{
    const spec_t *s = m->spec;
    uint32_t index;
    const char *letters = s->head.classes;
    if (letters == NULL) return LH_OK;
    if (spec_find_option(s, letters, &index) != NULL) {
        spec_value_t value;
        option_value(m, index, &value);
        letters = value.kind == SPEC_TEXT ? value.text : NULL;
    }
    if (letters == NULL || *letters == '\0')
        return fail(LH_INVALID, "%s: classes names the option %s, which has no letters", s->where,
                    s->head.classes);
    m->classes = spec_pool_new(&m->pool, m->blocks, 1);
    if (m->classes == NULL) return LH_NO_MEMORY;
    const size_t count = strlen(letters);
    for (uint64_t b = 0; b < m->blocks; b++) {
        const char *letter = strchr(s->letters, letters[b % count]);
        if (letter == NULL)
            return fail(LH_INVALID,
                        "%s: block %llu is of class '%c', and there is no "
                        "[spec.block.%c]",
                        s->where, (unsigned long long)b, letters[b % count], letters[b % count]);
        m->classes[b] = (uint8_t)(letter - s->letters);
    }
    return LH_OK;
}

/* Each step needs those before it. */
static lh_status_t model_work_out(lh_model_t *m)
{
    enum { BLOCKS_MOST = 1 << 16 };
    const uint32_t count = m->spec->value_count;
    m->values = spec_pool_new(&m->pool, count + 1, sizeof(*m->values));
    m->valued = spec_pool_new(&m->pool, count + 1, 1);
    if (m->values == NULL || m->valued == NULL) return LH_NO_MEMORY;
    lh_status_t status = texts_work_out(m);
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = value_work_out(m, i);
    if (status == LH_OK) status = size_work_out(m, "blocks", &m->blocks);
    if (status == LH_OK && m->blocks > BLOCKS_MOST)
        status = fail(LH_INVALID, "%s: %llu blocks, expected at most %d", m->spec->where,
                      (unsigned long long)m->blocks, BLOCKS_MOST);
    if (status == LH_OK) status = size_work_out(m, "hidden", &m->hidden);
    if (status == LH_OK) status = size_work_out(m, "vocab", &m->vocab);
    if (status == LH_OK) status = size_work_out(m, "max_tokens", &m->max_tokens);
    if (status == LH_OK) status = classes_work_out(m);
    return status == LH_OK ? rows_work_out(m) : status;
}

/* ---- lh_model_api_t ---- */

/* What was made before a failure goes with the model's pool. */
lh_status_t spec_model_open(const lh_host_t *host, const void *config, lh_model_t **out)
{
    lh_model_t *m = mem_new(sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;
    m->spec = host_kept(host);
    lh_assert(m->spec != NULL);
    m->config = config;
    const lh_status_t status = model_work_out(m);
    if (status != LH_OK) {
        spec_model_close(m);
        return status;
    }
    *out = m;
    return LH_OK;
}

void spec_model_close(lh_model_t *m)
{
    spec_pool_free(&m->pool);
    mem_free(m);
}

/* The tables live as long as the model. */
lh_status_t spec_model_describe(lh_model_t *m, lh_model_info_t *out)
{
    LH_FILL(lh_model_info_t, out, .blocks = (uint32_t)m->blocks, .hidden = m->hidden,
            .vocab = m->vocab, .max_tokens = m->max_tokens, .params = m->rows,
            .param_size = sizeof(m->rows[0]), .param_count = m->row_count,
            .block_classes = m->classes);
    return LH_OK;
}

/* ---- sums over all blocks ---- */

/* `when` takes a line of accumulate or loss out of the model, with what only it reads: a router's
 * second softmax is recorded where experts are balanced, and costs nothing where not. Whether a sum
 * is then added to by one side and not read by the other is seen when parts are recorded, each of
 * which looks at the other's lines. A spec has few of them, so they are walked anew each time. */

/* Whether the line counts: `when` of accumulate and loss, which all others lack. */
static lh_status_t line_counts(lh_model_t *m, const spec_part_t *part, uint32_t block,
                               const spec_line_t *line, bool *out)
{
    spec_scope_t scope = {m, part->part == LH_PART_BLOCK, block};
    char where[700];
    uint64_t when = 1;
    lh_status_t status = LH_OK;
    const spec_node_t *arg = line->tree->first;
    while (arg != NULL && strcmp(arg->keyword, "when") != 0)
        arg = arg->next;
    if (arg != NULL) {
        spec_where_line(part->section, line->at, where, sizeof(where));
        const spec_names_t names = spec_scope_names(&scope, where);
        status = spec_whole(arg, &names, &when);
    }
    *out = when != 0;
    return status;
}

/* Lines above `line` that a tree of it names; a word that is none of them says nothing. */
static void lines_want(const spec_part_t *part, uint32_t line, const spec_node_t *node,
                       bool *wanted)
{
    if (node->kind == SPEC_NODE_WORD) {
        char base[SPEC_NAME] = "";
        lh_assert(spec_slot_dot(node->text) < sizeof(base));
        memcpy(base, node->text, spec_slot_dot(node->text));
        uint32_t from = spec_find_line(part, node->text, line);
        if (from == part->count && base[0] != '\0') from = spec_find_line(part, base, line);
        if (from != part->count) wanted[from] = true;
    }
    for (const spec_node_t *child = node->first; child != NULL; child = child->next)
        lines_want(part, line, child, wanted);
}

/* From below, as a line names only what stands above it. */
lh_status_t spec_model_wanted(lh_model_t *m, const spec_part_t *part, uint32_t block, bool *wanted)
{
    lh_assert(part->count <= SPEC_LINES);
    memset(wanted, 0, part->count * sizeof(*wanted));
    for (uint32_t i = part->count; i-- > 0;) {
        const spec_line_t *line = &part->lines[i];
        if (i + 1 == part->count) wanted[i] = true;
        if (spec_call_kind(line->tree) != SPEC_MAKES) {
            const lh_status_t status = line_counts(m, part, block, line, &wanted[i]);
            if (status != LH_OK) return status;
        }
        if (wanted[i]) lines_want(part, i, line->tree, wanted);
    }
    return LH_OK;
}

lh_status_t spec_model_sum_added(lh_model_t *m, const char *name, bool *out)
{
    const spec_t *s = m->spec;
    lh_status_t status = LH_OK;
    const spec_line_t *line = spec_find_adding(&s->embedding, name);
    *out = false;
    if (line != NULL) status = line_counts(m, &s->embedding, 0, line, out);
    for (uint64_t b = 0; b < m->blocks && status == LH_OK && !*out; b++) {
        const spec_part_t *part = &s->blocks[m->classes == NULL ? 0 : m->classes[b]];
        line = spec_find_adding(part, name);
        if (line != NULL) status = line_counts(m, part, (uint32_t)b, line, out);
    }
    return status;
}

/* The first total() of the sum in a tree; NULL: there is none. */
static const spec_node_t *total_find(const spec_node_t *node, const char *name)
{
    if (spec_call_is_total(node) && strcmp(node->first->text, name) == 0) return node;
    for (const spec_node_t *child = node->first; child != NULL; child = child->next) {
        const spec_node_t *found = total_find(child, name);
        if (found != NULL) return found;
    }
    return NULL;
}

lh_status_t spec_model_sum_read(lh_model_t *m, const char *name, uint64_t *count,
                                const spec_line_t **line)
{
    const spec_part_t *part = &m->spec->tail;
    bool wanted[SPEC_LINES];
    lh_status_t status = spec_model_wanted(m, part, 0, wanted);
    *count = 0;
    for (uint32_t i = 0; i < part->count && status == LH_OK; i++) {
        const spec_node_t *total = wanted[i] ? total_find(part->lines[i].tree, name) : NULL;
        spec_scope_t scope = {.model = m};
        char where[700];
        if (total == NULL) continue;
        spec_where_line(part->section, part->lines[i].at, where, sizeof(where));
        const spec_names_t names = spec_scope_names(&scope, where);
        *line = &part->lines[i];
        return spec_whole(total->first->next, &names, count);
    }
    return status;
}
