/* spec_read.c - sections of the INI as a spec_t: rows of options, parameters and keys of
 * config.json, lines as trees. What their names mean is spec_check.c's.
 *
 * A spec that is included is like one that stands in the job's own INI: sections are what
 * counts, and each entry knows its file. That a name stands once in a section, and a section
 * once in a file, is the INI reader's to see; a job that includes a spec may override single
 * lines of it, which keep their place in the order.
 *
 * Sections that hold keys of ours ([spec], a parameter) are parsed by option tables, as all of
 * the core's are. In the others the keys are the author's: names of options, values and lines.
 *
 * Order: options before all that may name them, classes of blocks before parameters that name
 * classes, keys of config.json behind the options that they set.
 *
 * What becomes of a line of each kind:
 *
 *     heads = count 1..64 4 query heads
 *                       an lh_option_t: key, type, range, default, help
 *     kv_heads = num_key_value_heads, absent heads
 *                       an lh_hf_key_t: option, key, what an absent key stands for
 *     shape = heads * d, hidden
 *                       two trees, worked out when a model is opened
 *     q = linear(n, wq)
 *                       a tree, recorded where it stands */
#include <spec/spec_read.h>

#include <ctype.h>
#include <stdio.h>

#include <base/digest.h>
#include <base/memory.h>
#include <plugin/import.h>

#define TEXT_ROW(S, f, fallback, help) LH_OPTION_STRING(S, f, #f, fallback, help)

/* The keys of [spec]. */
static const lh_option_t head_rows[] = {
    TEXT_ROW(spec_head_t, model_type, "", "model_type of config.json; empty: no Hugging Face form"),
    TEXT_ROW(spec_head_t, architecture, "", "architectures of config.json, with | between"),
    TEXT_ROW(spec_head_t, ignored, "", "tensors that are no weights: *.inv_freq, *.mask"),
    TEXT_ROW(spec_head_t, prefix, "", "what old uploads leave out of tensors' names"),
    TEXT_ROW(spec_head_t, classes, "",
             "text option, or letters: one for each block, begun again where they end"),
};

/* [spec.parameter.NAME]; the choices in the order of LH_PART_*, LH_SHARD_*, LH_INIT_*. */
#define P spec_parameter_text_t
static const lh_option_t parameter_rows[] = {
    LH_OPTION_CHOICE(P, part, "part", "block", "embedding|block|head", "where it is used"),
    TEXT_ROW(P, shape, NULL, "rows, columns; or experts, rows, columns; or one width"),
    LH_OPTION_CHOICE(P, cut, "cut", "none", "none|out|in|vocab|expert",
                     "how tensor parallelism may cut it"),
    TEXT_ROW(P, unit, "1", "rows that a cut may not separate"),
    LH_OPTION_CHOICE(P, init, "init", "normal", "normal|zero|one|residual",
                     "values of a new model"),
    TEXT_ROW(P, std, "", "standard deviation of new values; empty: [model] init_std"),
    LH_OPTION_CHOICE(P, decay, "decay", "matrices", "matrices|no|yes",
                     "whether weight decay counts; matrices: not for one dimension"),
    LH_OPTION_BOOL(P, frozen, "frozen", "no", "never trained"),
    TEXT_ROW(P, hf, "", "its Hugging Face tensor; {} is the block, {e} the expert"),
    TEXT_ROW(P, hf_shape, "", "of that tensor, where it differs"),
    TEXT_ROW(P, import, "", "function that makes the parameter of the tensor"),
    TEXT_ROW(P, export, "", "its inverse"),
    TEXT_ROW(P, tied_to, "", "parameter whose values these are"),
    TEXT_ROW(P, tied, "1", "tied only where this is not 0"),
    TEXT_ROW(P, when, "1", "there only where this is not 0"),
    TEXT_ROW(P, classes, "", "letters of the classes of blocks that have it; empty: all"),
};
#undef P

#define ROW_COUNT(rows) ((uint32_t)(sizeof(rows) / sizeof((rows)[0])))

void spec_where_line(const document_section_t *section, const document_entry_t *at, char *out,
                     size_t room)
{
    char place[500];
    document_where(at->file, at->line, place, sizeof(place));
    (void)snprintf(out, room, "%s: [%s] %s", place, section->name, at->key);
}

/* A row of an INI is the user's: what is wrong with it is no question of the ABI, as of a
 * plugin's. */
static lh_status_t of_user(lh_status_t status)
{
    if (status != LH_ABI) return status;
    char *sentence = mem_text(fail_reason());
    if (sentence == NULL) return LH_NO_MEMORY;
    (void)fail(LH_INVALID, "%s", sentence);
    mem_free(sentence);
    return LH_INVALID;
}

/* ---- options: "TYPE RANGE DEFAULT HELP" ---- */

/* Cuts the next word off; "" at the end. */
static char *word_cut(char **rest)
{
    char *at = *rest;
    while (*at == ' ' || *at == '\t')
        at++;
    char *end = at + strcspn(at, " \t");
    *rest = *end == '\0' ? end : end + 1;
    *end = '\0';
    return at;
}

/* One row, in words: a row of an INI has no commas to lose. offset: eight bytes for each option,
 * as no type needs more. */
static lh_status_t option_read(spec_t *s, const document_section_t *section, uint32_t index)
{
    static const struct {
        const char *word;
        uint32_t type;
    } types[] = {{"count", LH_OPT_U64},
                 {"real", LH_OPT_F64},
                 {"flag", LH_OPT_BOOL},
                 {"choice", LH_OPT_CHOICE},
                 {"text", LH_OPT_STRING}};
    lh_assert(index < section->entry_count && index < SPEC_OPTIONS);
    const document_entry_t *e = section->entries[index];
    char where[700];
    spec_where_line(section, e, where, sizeof(where));
    char *copy = spec_pool_text(&s->pool, e->value, strlen(e->value));
    if (copy == NULL) return LH_NO_MEMORY;

    const char *type = word_cut(&copy), *range = word_cut(&copy), *fallback = word_cut(&copy);
    lh_option_t row = {.key = e->key,
                       .fallback = text_equal(fallback, "-") ? NULL : fallback,
                       .range = text_equal(range, "-") ? NULL : range,
                       .help = text_trim(copy),
                       .offset = 8 * index};
    if (text_equal(fallback, "\"\"")) row.fallback = "";
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].word, type) == 0) row.type = types[i].type;
    if (row.type == 0 || row.help[0] == '\0')
        return fail(LH_INVALID,
                    "%s = %s: expected count, real, flag, choice or text, a range, a default and "
                    "what it is; - for no range or default",
                    where, e->value);
    s->rows[index] = row;
    s->options[index].at = e;
    const option_table_t table = {
        .rows = &s->rows[index], .count = 1, .owner = where, .config_size = 8 * (index + 1)};
    return of_user(options_validate(&table));
}

/* From here on they are the plugin's, which keys of config.json are checked against. */
static lh_status_t options_read(spec_t *s)
{
    const document_section_t *section = document_find(s->document, "spec.options");
    const uint32_t count = section == NULL ? 0 : section->entry_count;
    if (count == 0) return fail(LH_INVALID, "%s: [spec.options] is missing", s->where);
    if (count > SPEC_OPTIONS)
        return fail(LH_INVALID, "%s: [spec.options] has %u keys, expected at most %d", s->where,
                    count, SPEC_OPTIONS);
    s->rows = spec_pool_new(&s->pool, count, sizeof(*s->rows));
    s->options = spec_pool_new(&s->pool, count, sizeof(*s->options));
    if (s->rows == NULL || s->options == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < count && status == LH_OK; i++) {
        status = option_read(s, section, i);
        s->option_count = i + 1;
    }
    s->plugin.options = s->rows;
    s->plugin.option_count = s->option_count;
    return status;
}

const lh_option_t *spec_find_option(const spec_t *s, const char *name, uint32_t *index)
{
    for (uint32_t i = 0; i < s->option_count; i++) {
        if (strcmp(s->rows[i].key, name) != 0) continue;
        if (index != NULL) *index = i;
        return &s->rows[i];
    }
    return NULL;
}

/* ---- lines ---- */

/* Each entry of a section as a tree; *count grows with them. */
static lh_status_t lines_read(spec_t *s, const document_section_t *section, spec_line_t **out,
                              uint32_t *count)
{
    char where[700];
    lh_assert(*count == 0); /* a section is read once */
    if (section->entry_count > SPEC_LINES)
        return fail(LH_INVALID, "%s: [%s] has %u lines, expected at most %d", s->where,
                    section->name, section->entry_count, SPEC_LINES);
    *out = spec_pool_new(&s->pool, section->entry_count, sizeof(**out));
    if (*out == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < section->entry_count; i++) {
        spec_line_t *line = &(*out)[i];
        line->at = section->entries[i];
        spec_where_line(section, line->at, where, sizeof(where));
        const lh_status_t status = spec_parse(line->at->value, where, &s->pool, &line->tree);
        if (status != LH_OK) return status;
        *count = i + 1;
    }
    return LH_OK;
}

static lh_status_t values_read(spec_t *s)
{
    const document_section_t *section = document_find(s->document, "spec.values");
    return section == NULL ? LH_OK : lines_read(s, section, &s->values, &s->value_count);
}

/* A part must have a line: its last one is the result. */
static lh_status_t part_read(spec_t *s, const document_section_t *section, spec_part_t *part)
{
    part->section = section;
    if (section->entry_count == 0) {
        char where[600];
        document_where(section->file, section->line, where, sizeof(where));
        return fail(LH_INVALID, "%s: [%s] has no line", where, section->name);
    }
    return lines_read(s, section, &part->lines, &part->count);
}

/* The next class of blocks; letter '\0': the only one. */
static lh_status_t block_add(spec_t *s, const document_section_t *section, char letter)
{
    if (s->class_count == SPEC_CLASSES)
        return fail(LH_INVALID, "%s: more than %d classes of blocks", s->where, SPEC_CLASSES);
    spec_part_t *part = &s->blocks[s->class_count];
    *part = (spec_part_t){.input = "x", .part = LH_PART_BLOCK, .class = s->class_count};
    s->letters[s->class_count++] = letter;
    return part_read(s, section, part);
}

/* [spec.block], or [spec.block.LETTER] for each class, in the order of the file. */
static lh_status_t blocks_read(spec_t *s)
{
    const document_section_t *one = document_find(s->document, "spec.block");
    lh_status_t status = one == NULL ? LH_OK : block_add(s, one, '\0');
    for (uint32_t i = 0; i < document_section_count(s->document) && status == LH_OK; i++) {
        const document_section_t *section = document_section(s->document, i);
        if (!text_starts(section->name, "spec.block.")) continue;
        const char *letter = section->name + strlen("spec.block.");
        char where[600];
        document_where(section->file, section->line, where, sizeof(where));
        if (one != NULL)
            return fail(LH_INVALID,
                        "%s: [%s] beside [spec.block]; either all blocks are alike, or "
                        "each class has a letter",
                        where, section->name);
        if (!islower((unsigned char)letter[0]) || letter[1] != '\0')
            return fail(LH_INVALID, "%s: [%s]: a class of blocks is a letter of a to z", where,
                        section->name);
        status = block_add(s, section, letter[0]);
    }
    if (status != LH_OK) return status;
    if (s->class_count == 0) return fail(LH_INVALID, "%s: [spec.block] is missing", s->where);
    if ((one == NULL) != (s->head.classes != NULL))
        return fail(LH_INVALID,
                    one == NULL ? "%s: blocks have classes, and classes in [spec] does not say "
                                  "which block is of which"
                                : "%s: classes is set, and [spec.block] is of no class",
                    s->where);
    return LH_OK;
}

/* Each part has a section of its own, and none is optional: a model without a head has no loss. */
static lh_status_t parts_read(spec_t *s)
{
    const document_section_t *embedding = document_find(s->document, "spec.embedding");
    const document_section_t *tail = document_find(s->document, "spec.head");
    if (embedding == NULL || tail == NULL)
        return fail(LH_INVALID, "%s: [spec.%s] is missing", s->where,
                    embedding == NULL ? "embedding" : "head");
    s->embedding = (spec_part_t){.input = "tokens", .part = LH_PART_EMBED};
    s->tail = (spec_part_t){.input = "x", .part = LH_PART_HEAD};
    lh_status_t status = part_read(s, embedding, &s->embedding);
    if (status == LH_OK) status = blocks_read(s);
    return status == LH_OK ? part_read(s, tail, &s->tail) : status;
}

/* ---- parameters ---- */

/* A tree of a text that may be empty. */
static lh_status_t tree_read(spec_t *s, const spec_parameter_t *p, const char *key,
                             const char *text, bool list, spec_node_t **out)
{
    char where[700], place[600];
    if (text == NULL) return LH_OK;
    const document_entry_t *e = document_entry(p->section, key);
    document_where(e != NULL ? e->file : p->section->file, e != NULL ? e->line : p->section->line,
                   place, sizeof(place));
    (void)snprintf(where, sizeof(where), "%s: %s", place, key);
    return list ? spec_parse_list(text, where, &s->pool, out)
                : spec_parse(text, where, &s->pool, out);
}

/* Expressions among the keys; functions in `import` and `export` are the importer's to read. */
static lh_status_t parameter_trees(spec_t *s, spec_parameter_t *p)
{
    const spec_parameter_text_t *t = &p->text;
    lh_status_t status = tree_read(s, p, "shape", t->shape, true, &p->shape);
    if (status == LH_OK) status = tree_read(s, p, "hf_shape", t->hf_shape, true, &p->hf_shape);
    if (status == LH_OK) status = tree_read(s, p, "unit", t->unit, false, &p->unit);
    if (status == LH_OK) status = tree_read(s, p, "std", t->std, false, &p->std);
    if (status == LH_OK) status = tree_read(s, p, "tied", t->tied, false, &p->tied);
    return status == LH_OK ? tree_read(s, p, "when", t->when, false, &p->when) : status;
}

/* What crosses keys of a section. */
static lh_status_t parameter_check(const spec_t *s, const spec_parameter_t *p)
{
    char where[600];
    const spec_parameter_text_t *t = &p->text;
    document_where(p->section->file, p->section->line, where, sizeof(where));
    if ((t->import == NULL) != (t->export == NULL))
        return fail(LH_INVALID, "%s: [%s] has %s and no %s: what is imported must go back", where,
                    p->section->name, t->import != NULL ? "import" : "export",
                    t->import != NULL ? "export" : "import");
    if (t->hf == NULL && s->head.model_type != NULL)
        return fail(LH_INVALID, "%s: 'hf' is missing in [%s], as [spec] has a model_type", where,
                    p->section->name);
    for (const char *c = t->classes; c != NULL && *c != '\0'; c++)
        if (strchr(s->letters, *c) == NULL || t->part + 1 != LH_PART_BLOCK)
            return fail(LH_INVALID, "%s: [%s] classes = %s: there is no [spec.block.%c]", where,
                        p->section->name, t->classes, *c);
    return LH_OK;
}

/* It is counted before it is parsed, so that spec_free finds what a failure leaves in it. */
static lh_status_t parameter_read(spec_t *s, const document_section_t *section)
{
    lh_assert(text_starts(section->name, "spec.parameter."));
    spec_parameter_t *p = &s->parameters[s->parameter_count++];
    p->section = section;
    p->name = section->name + strlen("spec.parameter.");
    const option_table_t table = {.rows = parameter_rows,
                                  .count = ROW_COUNT(parameter_rows),
                                  .owner = "the core",
                                  .config_size = sizeof(p->text),
                                  .config = &p->text};
    const options_how_t how = {
        .document = s->document, .section = section->name, .tables = &table, .table_count = 1};
    lh_status_t status = options_parse(&how);
    if (status == LH_OK) status = parameter_trees(s, p);
    return status == LH_OK ? parameter_check(s, p) : status;
}

/* In the order of the INI, which is that of the model's parameters. */
static lh_status_t parameters_read(spec_t *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < document_section_count(s->document); i++)
        count += text_starts(document_section(s->document, i)->name, "spec.parameter.");
    s->parameters = spec_pool_new(&s->pool, count, sizeof(*s->parameters));
    if (s->parameters == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < document_section_count(s->document) && status == LH_OK; i++) {
        const document_section_t *section = document_section(s->document, i);
        if (text_starts(section->name, "spec.parameter.")) status = parameter_read(s, section);
    }
    return status;
}

/* ---- keys of config.json ---- */

/* "KEY, absent VALUE, when CONDITION, null VALUE, words LIST, derived A / B"; of OPTION.LABEL the
 * label only tells several rows of one option apart. */
static lh_status_t key_read(spec_t *s, const document_section_t *section, uint32_t index)
{
    lh_assert(index < section->entry_count);
    const document_entry_t *e = section->entries[index];
    lh_hf_key_t *row = &s->keys[s->key_count++];
    char where[700];
    spec_where_line(section, e, where, sizeof(where));
    char *rest = spec_pool_text(&s->pool, e->value, strlen(e->value));
    row->option = spec_pool_text(&s->pool, e->key, strcspn(e->key, "."));
    if (rest == NULL || row->option == NULL) return LH_NO_MEMORY;
    row->key = text_trim(strsep(&rest, ","));
    while (rest != NULL) {
        char *value = text_trim(strsep(&rest, ","));
        const char *word = word_cut(&value);
        const char **field = strcmp(word, "absent") == 0    ? &row->fixed
                             : strcmp(word, "when") == 0    ? &row->when
                             : strcmp(word, "null") == 0    ? &row->null
                             : strcmp(word, "words") == 0   ? &row->words
                             : strcmp(word, "derived") == 0 ? &row->derived
                                                            : NULL;
        value = text_trim(value);
        if (field == NULL || *field != NULL || *value == '\0')
            return fail(LH_INVALID,
                        "%s = %s: expected each of absent, when, null, words and derived once, "
                        "with a value; found '%s'",
                        where, e->value, word);
        *field = value;
    }
    return LH_OK;
}

/* Under [spec.config.fixed]: the value that a key must have; [value] of each item of a list; * any;
 * ignored: counts for nothing, which is told. */
static lh_status_t fixed_read(spec_t *s, const document_section_t *section, uint32_t index)
{
    lh_assert(index < section->entry_count);
    const document_entry_t *e = section->entries[index];
    const size_t length = strlen(e->value);
    lh_hf_key_t *row = &s->keys[s->key_count++];
    const bool list = length > 2 && e->value[0] == '[' && e->value[length - 1] == ']';
    row->key = e->key;
    if (text_equal(e->value, "ignored")) return LH_OK;
    char *value = spec_pool_text(&s->pool, e->value + list, length - 2 * list);
    char *key = spec_pool_new(&s->pool, strlen(e->key) + 3, 1);
    if (key == NULL || value == NULL) return LH_NO_MEMORY;
    (void)snprintf(key, strlen(e->key) + 3, "%s%s", e->key, list ? "[]" : "");
    row->key = key;
    row->fixed = value;
    return LH_OK;
}

/* The same checks as of a plugin's row; of an option that is not there the nearest is told. */
static lh_status_t key_check(const spec_t *s, const document_section_t *section, uint32_t index)
{
    lh_assert(index < s->key_count && index < section->entry_count);
    const lh_hf_key_t *row = &s->keys[index];
    char where[700];
    spec_where_line(section, section->entries[index], where, sizeof(where));
    if (spec_find_option(s, row->option, NULL) != NULL)
        return of_user(import_check_hf_key(&s->plugin, where, &s->hf, index));
    text_nearest_t near = {.typed = row->option};
    for (uint32_t i = 0; i < s->option_count; i++)
        text_nearest_offer(&near, s->rows[i].key);
    char meant[SPEC_MEANT];
    return fail(LH_INVALID, "%s: no such option in [spec.options]%s", where,
                spec_meant(&near, meant));
}

/* Both sections as one table: rows that set options, then those that only demand. */
static lh_status_t config_read(spec_t *s)
{
    const document_section_t *keys = document_find(s->document, "spec.config");
    const document_section_t *fixed = document_find(s->document, "spec.config.fixed");
    const uint32_t key_count = keys == NULL ? 0 : keys->entry_count;
    const uint32_t fixed_count = fixed == NULL ? 0 : fixed->entry_count;
    if (s->head.model_type == NULL) {
        if (key_count + fixed_count == 0) return LH_OK;
        return fail(LH_INVALID, "%s: [spec.config] is there, and model_type is not", s->where);
    }
    if (s->head.architecture == NULL || keys == NULL)
        return fail(LH_INVALID, "%s: with a model_type, %s is needed too", s->where,
                    keys == NULL ? "[spec.config]" : "architecture");
    s->keys = spec_pool_new(&s->pool, key_count + fixed_count, sizeof(*s->keys));
    if (s->keys == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    s->hf.keys = s->keys;
    for (uint32_t i = 0; i < key_count && status == LH_OK; i++) {
        status = key_read(s, keys, i);
        if (status == LH_OK) status = key_check(s, keys, i);
    }
    for (uint32_t i = 0; i < fixed_count && status == LH_OK; i++)
        status = fixed_read(s, fixed, i);
    s->hf = (lh_hf_t){.struct_size = sizeof(s->hf),
                      .key_size = sizeof(s->keys[0]),
                      .key_count = s->key_count,
                      .model_type = s->head.model_type,
                      .architecture = s->head.architecture,
                      .ignored = s->head.ignored,
                      .keys = s->keys,
                      .prefix = s->head.prefix};
    return status;
}

/* ---- all of it ---- */

/* A section that no reader here knows is most often a misspelt one. */
static lh_status_t names_check(const spec_t *s)
{
    static const char *const known[] = {"spec",           "spec.options",      "spec.values",
                                        "spec.config",    "spec.config.fixed", "spec.head",
                                        "spec.embedding", "spec.block"};
    for (uint32_t i = 0; i < document_section_count(s->document); i++) {
        const document_section_t *section = document_section(s->document, i);
        text_nearest_t near = {.typed = section->name};
        bool is_known = !text_starts(section->name, "spec.") && !text_equal(section->name, "spec");
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
            is_known = is_known || strcmp(known[k], section->name) == 0;
            text_nearest_offer(&near, known[k]);
        }
        if (is_known || text_starts(section->name, "spec.parameter.") ||
            text_starts(section->name, "spec.block."))
            continue;
        char where[600];
        document_where(section->file, section->line, where, sizeof(where));
        const char *best = text_nearest_name(&near);
        return fail(LH_INVALID, "%s: unknown section [%s]; %s%s%s", where, section->name,
                    best != NULL ? "did you mean [" : "a parameter is [spec.parameter.NAME]",
                    best != NULL ? best : "", best != NULL ? "]?" : "");
    }
    return LH_OK;
}

/* [spec] must be there, if only with nothing in it: it is the place of sentences about the
 * whole. */
static lh_status_t head_read(spec_t *s)
{
    const document_section_t *section = document_find(s->document, "spec");
    if (section == NULL)
        return fail(
            LH_INVALID,
            "%s: [spec] is missing; [model] plugin = spec reads an architecture from it and "
            "from [spec.options], [spec.block] and others",
            document_file(s->document, 0));
    document_where(section->file, section->line, s->where, sizeof(s->where));
    const option_table_t table = {.rows = head_rows,
                                  .count = ROW_COUNT(head_rows),
                                  .owner = "the core",
                                  .config_size = sizeof(s->head),
                                  .config = &s->head};
    const options_how_t how = {
        .document = s->document, .section = "spec", .tables = &table, .table_count = 1};
    return options_parse(&how);
}

/* [spec.config*] and [spec.options] say what options are called and where they come from; the
 * rest is what is computed. */
static bool section_computes(const char *name)
{
    return text_starts(name, "spec.") && !text_starts(name, "spec.config") &&
           !text_equal(name, "spec.options");
}

/* The digest of all sections, in the place of a plugin's file; or of those that compute. */
static lh_status_t sections_digest(const spec_t *s, bool computes, char out[SHA256_TEXT])
{
    text_t all = {0};
    for (uint32_t i = 0; i < document_section_count(s->document); i++) {
        const document_section_t *section = document_section(s->document, i);
        const bool own = text_starts(section->name, "spec.") || text_equal(section->name, "spec");
        if (!own || (computes && !section_computes(section->name))) continue;
        text_printf(&all, "[%s]\n", section->name);
        for (uint32_t k = 0; k < section->entry_count; k++)
            text_printf(&all, "%s = %s\n", section->entries[k]->key, section->entries[k]->value);
    }
    lh_status_t status = text_status(&all);
    if (status == LH_OK) status = digest_of(all.data, all.length, out);
    text_free(&all);
    return status;
}

/* What was read before a mistake goes with it. */
lh_status_t spec_read_sections(const document_t *document, spec_t **out)
{
    spec_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->document = document;
    lh_status_t status = head_read(s);
    if (status == LH_OK) status = names_check(s);
    if (status == LH_OK) status = options_read(s);
    if (status == LH_OK) status = values_read(s);
    if (status == LH_OK) status = parts_read(s);
    if (status == LH_OK) status = parameters_read(s);
    if (status == LH_OK) status = config_read(s);
    if (status == LH_OK) status = sections_digest(s, false, s->plugin.sha256);
    if (status == LH_OK) status = sections_digest(s, true, s->plugin.architecture);
    if (status != LH_OK) {
        spec_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void spec_read_help(text_t *out)
{
    text_append(out, "\n[spec]\n");
    options_explain_table(head_rows, ROW_COUNT(head_rows), out);
    text_append(out, "\n[spec.parameter.NAME]\n");
    options_explain_table(parameter_rows, ROW_COUNT(parameter_rows), out);
}

void spec_free(spec_t *s)
{
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->parameter_count; i++)
        options_free(parameter_rows, ROW_COUNT(parameter_rows), &s->parameters[i].text);
    options_free(head_rows, ROW_COUNT(head_rows), &s->head);
    spec_pool_free(&s->pool);
    mem_free(s->plugin.path);
    mem_free(s);
}
