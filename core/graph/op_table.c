/* op_table.c - rows by name: the core's groups, then those of plugins, each checked once.
 *
 * The file's first part parses the two texts of a row: its slots, and the patterns of what it
 * fuses. The second is the table. A plugin's rows come from a shared object that may be older or
 * newer than this core, so each is imported into a row of the size known here before anything of it
 * is read. All refusals name the op and say what was expected. */
#include <graph/op_table.h>

#include <stdio.h>

#include <base/digest.h>
#include <base/memory.h>
#include <base/text.h>
#include <ops/op_rows.h>
#include <plugin/import.h>

enum { NAME_LIMIT = 64, ATTRIBUTES_LIMIT = 4096 };

/* The rows in the order in which they were added, and a hash table over their names. Each row is
 * allocated alone, as recordings hold on to them while the table grows. */
struct op_table {
    op_t **ops; /* [count] */
    uint32_t count;
    size_t capacity;
    uint32_t *buckets;     /* index + 1; 0: empty; open addressing */
    uint32_t bucket_count; /* a power of two, at least twice count */
};

/* The order in which the core's ops are listed; fused ones are tried from the end. */
static const op_rows_t *const core_rows[] = {
    &ops_linear, &ops_embed, &ops_norm,   &ops_route, &ops_attention,  &ops_element,
    &ops_view,   &ops_loss,  &ops_update, &ops_cache, &ops_collective,
};

/* ---- slots ---- */

/* Whether a text is a slot's name: lower-case letters, digits and _, beginning with a letter, and
 * not too long for op_t.slot_name. */
static bool is_slot_name(const char *text, size_t length)
{
    if (length == 0 || length >= sizeof(((op_t *)0)->slot_name[0])) return false;
    if (text[0] < 'a' || text[0] > 'z') return false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
    }
    return true;
}

/* The slot of that name among [first, end); `end`: there is none. */
static uint32_t slots_find(const op_t *op, uint32_t first, uint32_t end, const char *name)
{
    for (uint32_t s = first; s < end; s++)
        if (strcmp(op->slot_name[s], name) == 0) return s;
    return end;
}

/* Reads "~x" at the end of an output's word: the output may lie over input x. *length becomes that of
 * what stands before it. */
static lh_status_t over_take(op_t *op, const char *word, size_t *length, bool output)
{
    char name[sizeof(op->slot_name[0])] = {0};
    const char *mark = memchr(word, '~', *length);
    if (mark == NULL) return LH_OK;
    const size_t before = (size_t)(mark - word), named = *length - before - 1;
    if (named < sizeof(name)) memcpy(name, mark + 1, named);
    const uint32_t input = slots_find(op, 0, op->in_count, name);
    if (!output || input == op->in_count)
        return fail(LH_INVALID, "op %s: '%.*s' can't lie over an input of that name", op->row.name,
                    (int)*length, word);
    op->over[op->in_count + op->out_count] = input + 1;
    *length = before;
    return LH_OK;
}

/* Adds a slot for one word of the text: a name and its marks, "?" for optional, "+" for an output
 * to which kernels can add, "~x" for an output that may lie over an input. An output with the name of
 * an input lies in that input's memory. */
static lh_status_t add_slot(op_t *op, const char *word, size_t length, bool output)
{
    const int shown = (int)length;
    const uint32_t slot = op->in_count + op->out_count;
    if (slot == OP_SLOTS)
        return fail(LH_INVALID, "op %s has more than %d slots", op->row.name, (int)OP_SLOTS);

    const lh_status_t status = over_take(op, word, &length, output);
    if (status != LH_OK) return status;
    while (length > 0 && (word[length - 1] == '?' || word[length - 1] == '+')) {
        if (word[length - 1] == '?') op->optional[slot] = true;
        if (word[length - 1] == '+') op->adds[slot] = true;
        length--;
    }
    if (!is_slot_name(word, length))
        return fail(LH_INVALID, "op %s: slot '%.*s' is not a lower-case name of at most 23 letters",
                    op->row.name, shown, word);
    if (op->adds[slot] && !output)
        return fail(LH_INVALID, "op %s: input '%.*s' can't be added to", op->row.name, shown, word);

    char name[sizeof(op->slot_name[0])] = {0};
    memcpy(name, word, length);
    const uint32_t first = output ? op->in_count : 0;
    if (slots_find(op, first, slot, name) != slot)
        return fail(LH_INVALID, "op %s has two slots '%s'", op->row.name, name);
    if (output) {
        const uint32_t input = slots_find(op, 0, op->in_count, name);
        if (input != op->in_count) op->alias[slot] = input + 1;
    }
    memcpy(op->slot_name[slot], name, sizeof(name));
    if (output)
        op->out_count++;
    else
        op->in_count++;
    return LH_OK;
}

/* Fills in slot names, counts, marks and aliases from op->row.slots, "x w? -> y+ rstd". */
static lh_status_t op_slots_parse(op_t *op)
{
    const char *at = op->row.slots;
    bool output = false;
    while (*(at += strspn(at, " ")) != '\0') {
        const size_t length = strcspn(at, " ");
        if (length == 2 && memcmp(at, "->", 2) == 0) {
            if (output) return fail(LH_INVALID, "op %s has two '->' in its slots", op->row.name);
            output = true;
        } else {
            const lh_status_t status = add_slot(op, at, length, output);
            if (status != LH_OK) return status;
        }
        at += length;
    }
    if (!output || op->in_count + op->out_count == 0)
        return fail(LH_INVALID, "op %s has slots '%s', expected 'inputs -> outputs'", op->row.name,
                    op->row.slots);
    return LH_OK;
}

/* ---- patterns of fused ops ---- */

enum { WORD_BYTES = 64, WAYS = 8 };

/* Reads the text of `fuses` into patterns. Words have a meaning within one way only. */
typedef struct pattern_reader {
    const char *at;
    op_t *fused;
    op_t *const *ops;
    uint32_t op_count;
    char words[PATTERN_WORDS][WORD_BYTES];
    bool made[PATTERN_WORDS]; /* a call that was read gives the word's value */
} pattern_reader_t;

/* Fails with a sentence that shows the whole text. */
static lh_status_t pattern_refuse(const pattern_reader_t *p, const char *what, const char *name)
{
    return fail(LH_INVALID, "op %s fuses '%s': %s%s%s", p->fused->row.name, p->fused->row.fuses,
                what, name[0] == '\0' ? "" : " ", name);
}

/* The next word, or one of ; | -> ; empty at the end of the text. */
static lh_status_t next_word(pattern_reader_t *p, char word[WORD_BYTES])
{
    p->at += strspn(p->at, " ");
    size_t length = strcspn(p->at, " ;|");
    if (length == 0 && *p->at != '\0') length = 1;
    if (length >= WORD_BYTES) return pattern_refuse(p, "a word is too long", "");
    memcpy(word, p->at, length);
    word[length] = '\0';
    p->at += length;
    return LH_OK;
}

/* Whether a word ends a call: the next call or way begins there, or the text ends. */
static bool ends_call(const char *word)
{
    return word[0] == ';' || word[0] == '|' || word[0] == '\0';
}

/* The op of a name among the rows that there are. */
static const op_t *op_named(const pattern_reader_t *p, const char *name)
{
    for (uint32_t i = 0; i < p->op_count; i++)
        if (text_equal(p->ops[i]->row.name, name)) return p->ops[i];
    return NULL;
}

/* The number of a word. A new word is given the fused op's slot of the same name, in which its
 * value lives on; if there is no such slot, the value is gone once the op is fused. */
static lh_status_t word_number(pattern_reader_t *p, op_pattern_t *pattern, const char *word,
                               uint8_t *out)
{
    const op_t *op = p->fused;
    for (uint32_t i = 0; i < pattern->word_count; i++)
        if (text_equal(p->words[i], word)) {
            *out = (uint8_t)i;
            return LH_OK;
        }
    if (pattern->word_count == PATTERN_WORDS)
        return pattern_refuse(p, "there are too many words", "");
    const uint32_t number = pattern->word_count++;
    memcpy(p->words[number], word, WORD_BYTES);
    p->made[number] = false;
    pattern->slot[number] = PATTERN_NONE;
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++)
        if (text_equal(op->slot_name[s], word)) pattern->slot[number] = (uint8_t)s;
    *out = (uint8_t)number;
    return LH_OK;
}

/* Takes a word in an input slot, which must be known: a call before gives it, or it is an input of
 * the fused op. */
static lh_status_t input_take(pattern_reader_t *p, op_pattern_t *pattern, const char *word,
                              uint8_t *out)
{
    const lh_status_t status = word_number(p, pattern, word, out);
    if (status != LH_OK) return status;
    if (p->made[*out] || pattern->slot[*out] < p->fused->in_count) return LH_OK;
    return pattern_refuse(p, "no call before gives", word);
}

/* Takes a word in an output slot: a value that no call gave before, or _ for one that is not
 * used. */
static lh_status_t output_take(pattern_reader_t *p, op_pattern_t *pattern, const char *word,
                               uint8_t *out)
{
    *out = PATTERN_NONE;
    if (text_equal(word, "_")) return LH_OK;
    const lh_status_t status = word_number(p, pattern, word, out);
    if (status != LH_OK) return status;
    if (p->made[*out] || pattern->slot[*out] < p->fused->in_count)
        return pattern_refuse(p, "a call gives what is there already:", word);
    p->made[*out] = true;
    return LH_OK;
}

/* Reads one call, "op a b -> x y", and the word that ends it, which is left in `word`. Inputs that
 * are not named are left out. */
static lh_status_t call_read(pattern_reader_t *p, op_pattern_t *pattern, char word[WORD_BYTES])
{
    lh_status_t status = next_word(p, word);
    if (status != LH_OK) return status;
    if (pattern->call_count == LH_FUSES) return pattern_refuse(p, "there are too many calls", "");
    pattern_call_t *call = &pattern->calls[pattern->call_count++];
    memset(call->word, PATTERN_NONE, sizeof(call->word));
    call->op = op_named(p, word);
    if (call->op == NULL) return pattern_refuse(p, "there is no op", word);

    bool output = false;
    uint32_t slot = 0, end = call->op->in_count;
    while ((status = next_word(p, word)) == LH_OK && !ends_call(word)) {
        if (text_equal(word, "->") && !output) {
            output = true;
            slot = call->op->in_count;
            end = slot + call->op->out_count;
            continue;
        }
        if (slot == end) return pattern_refuse(p, "too many values for", call->op->row.name);
        status = output ? output_take(p, pattern, word, &call->word[slot])
                        : input_take(p, pattern, word, &call->word[slot]);
        if (status != LH_OK) return status;
        slot++;
    }
    return status;
}

/* Checks a way as a whole. fusion.c matches from the last call back along values, so each call must
 * give a value to a later call. The fused op must get all its inputs and give all its outputs. Its
 * attributes are those of the one call with the same struct, unless it has a fuse(). */
static lh_status_t way_check(const pattern_reader_t *p, const op_pattern_t *pattern)
{
    const op_t *op = p->fused;
    for (uint32_t c = 0; c + 1 < pattern->call_count; c++) {
        bool used = false;
        for (uint32_t d = c + 1; d < pattern->call_count; d++)
            for (uint32_t i = 0; i < pattern->calls[d].op->in_count; i++)
                for (uint32_t o = pattern->calls[c].op->in_count; o < OP_SLOTS; o++)
                    used = used || (pattern->calls[c].word[o] != PATTERN_NONE &&
                                    pattern->calls[c].word[o] == pattern->calls[d].word[i]);
        if (!used)
            return pattern_refuse(p, "no later call takes what is given by",
                                  pattern->calls[c].op->row.name);
    }
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++) {
        bool named = op->optional[s];
        for (uint32_t w = 0; w < pattern->word_count; w++)
            named = named || pattern->slot[w] == s;
        if (!named) return pattern_refuse(p, "nothing is its slot", op->slot_name[s]);
    }
    uint32_t same_struct = 0;
    for (uint32_t c = 0; c < pattern->call_count; c++)
        same_struct += pattern->calls[c].op->row.attributes_bytes == op->row.attributes_bytes;
    if (op->row.fuse == NULL && op->row.attributes_bytes != 0 && same_struct != 1)
        return pattern_refuse(p, "its attributes are not those of one call, and it has no fuse()",
                              "");
    return LH_OK;
}

/* Reads all ways. Calls are separated by ; and ways by |. */
static lh_status_t ways_read(pattern_reader_t *p, op_pattern_t ways[WAYS], uint32_t *count)
{
    char word[WORD_BYTES];
    do {
        if (*count == WAYS) return pattern_refuse(p, "there are too many ways", "");
        op_pattern_t *way = &ways[(*count)++];
        *way = (op_pattern_t){0};
        lh_status_t status;
        do
            status = call_read(p, way, word);
        while (status == LH_OK && word[0] == ';');
        if (status == LH_OK) status = way_check(p, way);
        if (status != LH_OK) return status;
    } while (word[0] == '|');
    return LH_OK;
}

/* Fills in op->patterns, which the op's table frees, from op->row.fuses; the ops that the text
 * names are among ops[count]. Refused with a sentence: what does not parse or can't be matched. */
static lh_status_t op_patterns_parse(op_t *op, op_t *const *ops, uint32_t count)
{
    if (op->row.fuses == NULL) return LH_OK;
    op_pattern_t ways[WAYS];
    uint32_t way_count = 0;
    pattern_reader_t p = {.at = op->row.fuses, .fused = op, .ops = ops, .op_count = count};
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++)
        if (op->alias[s] != 0) return pattern_refuse(&p, "an op that writes in place can't", "");
    const lh_status_t status = ways_read(&p, ways, &way_count);
    if (status != LH_OK) return status;
    op->patterns = mem_array(way_count, sizeof(*op->patterns));
    if (op->patterns == NULL) return LH_NO_MEMORY;
    memcpy(op->patterns, ways, way_count * sizeof(*ways));
    op->pattern_count = way_count;
    return LH_OK;
}

/* ---- the table ---- */

/* The bucket that holds the op of that name, or the empty one where it would go (linear
 * probing). */
static uint32_t bucket_of(const op_table_t *t, const char *name)
{
    uint32_t at = (uint32_t)digest_xxh3(name, strlen(name)) & (t->bucket_count - 1);
    while (t->buckets[at] != 0 && strcmp(t->ops[t->buckets[at] - 1]->row.name, name) != 0)
        at = (at + 1) & (t->bucket_count - 1);
    return at;
}

/* Makes room for one more op. When the buckets are half full they are made anew at twice the
 * size. */
static lh_status_t table_make_room(op_table_t *t)
{
    op_t **ops = mem_grow(t->ops, &t->capacity, (size_t)t->count + 1, sizeof(op_t *));
    if (ops == NULL) return LH_NO_MEMORY;
    t->ops = ops;
    if (2 * (t->count + 1) <= t->bucket_count) return LH_OK;

    const uint32_t more = t->bucket_count == 0 ? 128 : 2 * t->bucket_count;
    uint32_t *buckets = mem_array(more, sizeof(uint32_t));
    if (buckets == NULL) return LH_NO_MEMORY;
    mem_free(t->buckets);
    t->buckets = buckets;
    t->bucket_count = more;
    for (uint32_t i = 0; i < t->count; i++)
        t->buckets[bucket_of(t, t->ops[i]->row.name)] = i + 1;
    return LH_OK;
}

/* The core's names have no dot and a plugin's have one, so neither can take the other's. */
static lh_status_t check_op_name(const char *name, bool core)
{
    const size_t length = strlen(name);
    const size_t fine = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    if (length == 0 || length >= NAME_LIMIT || fine != length)
        return fail(LH_INVALID, "'%.64s' is no op's name, expected at most %d of a-z 0-9 _ .", name,
                    NAME_LIMIT - 1);
    if (core == (strchr(name, '.') != NULL))
        return fail(LH_INVALID, "op %s: a plugin's name has a dot, the core's have none", name);
    return LH_OK;
}

/* Checks a row's attributes. They are compared and copied as bytes, so none may be a pointer. Their
 * struct begins with its size, so it has at least four bytes. */
static lh_status_t check_attributes(const lh_op_t *row)
{
    const bool picked = (row->flags & LH_OP_PICKED) != 0;
    if (row->attributes_bytes == 0 && row->attribute_count == 0 && !picked) return LH_OK;
    if (row->attributes_bytes < sizeof(uint32_t) || row->attributes_bytes > ATTRIBUTES_LIMIT)
        return fail(LH_INVALID, "op %s has attributes of %u bytes, expected 4 to %d", row->name,
                    row->attributes_bytes, ATTRIBUTES_LIMIT);
    for (uint32_t i = 0; i < row->attribute_count; i++) {
        lh_option_t option;
        const lh_status_t status = import_row(&option, sizeof(option), row->attributes,
                                              row->attribute_size, i, sizeof(option), row->name);
        if (status != LH_OK) return status;
        if (option.key == NULL || option.offset >= row->attributes_bytes)
            return fail(LH_INVALID, "op %s: attribute %u has no key or lies outside its struct",
                        row->name, i);
        if (option.type == LH_OPT_STRING || option.type == LH_OPT_PATH)
            return fail(LH_INVALID, "op %s: attribute '%s' is text, expected a number", row->name,
                        option.key);
    }
    if (picked && (row->attribute_count == 0 || row->attributes[0].type != LH_OPT_U32))
        return fail(
            LH_INVALID,
            "op %s is LH_OP_PICKED: expected a U32 as its first attribute, which numbers of "
            "its first input are below",
            row->name);
    return LH_OK;
}

/* Checks that a row has what it must have, and that its name is free. */
static lh_status_t check_row(const op_table_t *t, const lh_op_t *row, bool core)
{
    if (row->name == NULL || row->slots == NULL || row->shape == NULL)
        return fail(LH_INVALID, "op %s lacks its %s", row->name == NULL ? "?" : row->name,
                    row->name == NULL    ? "name"
                    : row->slots == NULL ? "slots"
                                         : "shape()");
    lh_status_t status = check_op_name(row->name, core);
    if (status != LH_OK) return status;
    const op_t *other = op_table_find(t, row->name);
    if (other != NULL)
        return fail(LH_INVALID, "op %s is already %s%s", row->name,
                    other->plugin == NULL ? "the core's" : "brought by plugin ",
                    other->plugin == NULL ? "" : other->plugin);
    return check_attributes(row);
}

/* Checks that a product's slots are where all who join or adapt products look for them: two factors,
 * a bias that may be left out, nothing else that a call must have. A linear layer has no more inputs. */
static lh_status_t check_product(const op_t *op)
{
    const bool linear = (op->row.flags & LH_OP_LINEAR) != 0;
    if (!linear && op->row.product == NULL) return LH_OK;
    bool fine = op->in_count >= 2 && op->out_count >= 1 && (!linear || op->in_count <= 3);
    for (uint32_t s = 2; s < op->in_count + op->out_count && fine; s++)
        fine = s == op->in_count || op->optional[s];
    if (fine) return LH_OK;
    return fail(
        LH_INVALID,
        "op %s: slots '%s' are not those of a %s, expected two factors, a bias that may be left "
        "out%s, and one output that may not",
        op->row.name, op->row.slots, linear ? "linear layer" : "product",
        linear ? "" : ", other inputs that may");
}

/* Adds a row, but for its patterns. plugin NULL: a row of the core's. */
static lh_status_t table_add_row(op_table_t *t, const lh_op_t *row, const char *plugin)
{
    lh_status_t status = check_row(t, row, plugin == NULL);
    if (status == LH_OK) status = table_make_room(t);
    if (status != LH_OK) return status;

    op_t *op = mem_new(sizeof(*op));
    if (op == NULL) return LH_NO_MEMORY;
    op->row = *row;
    op->index = t->count;
    op->plugin = plugin;
    status = op_slots_parse(op);
    if (status == LH_OK) status = check_product(op);
    if (status != LH_OK) {
        mem_free(op);
        return status;
    }
    t->buckets[bucket_of(t, row->name)] = t->count + 1;
    t->ops[t->count++] = op;
    return LH_OK;
}

/* Reads the patterns of rows from `first` on, once all of them are there, as they may name each
 * other. */
static lh_status_t patterns_read(op_table_t *t, uint32_t first)
{
    for (uint32_t i = first; i < t->count; i++) {
        const lh_status_t status = op_patterns_parse(t->ops[i], t->ops, t->count);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* The rows are imported one by one; patterns are read when all of them are there. */
lh_status_t op_table_add(op_table_t *t, const lh_op_t *rows, uint32_t row_size, uint32_t count,
                         const char *plugin)
{
    char what[96];
    (void)snprintf(what, sizeof(what), "ops of plugin %.64s", plugin);
    for (uint32_t i = 0; i < count; i++) {
        lh_op_t row;
        lh_status_t status = import_row(&row, sizeof(row), rows, row_size, i,
                                        offsetof(lh_op_t, cost), what);
        if (status == LH_OK) status = table_add_row(t, &row, plugin);
        if (status != LH_OK) return status;
    }
    lh_assert(count <= t->count);
    return patterns_read(t, t->count - count);
}

/* The core's rows go through the same checks as a plugin's; a mistake in one of them fails every
 * start. */
lh_status_t op_table_new(op_table_t **out)
{
    op_table_t *t = mem_new(sizeof(*t));
    if (t == NULL) return LH_NO_MEMORY;
    for (uint32_t g = 0; g < COUNT(core_rows); g++)
        for (uint32_t i = 0; i < core_rows[g]->count; i++) {
            const lh_status_t status = table_add_row(t, &core_rows[g]->rows[i], NULL);
            if (status != LH_OK) {
                op_table_free(t);
                return status;
            }
            if (core_rows[g] == &ops_collective)
                t->ops[t->count - 1]->collective = ops_collective_kinds[i];
            if (core_rows[g] == &ops_view) t->ops[t->count - 1]->view = ops_view_kinds[i];
        }
    const lh_status_t status = patterns_read(t, 0);
    if (status != LH_OK) {
        op_table_free(t);
        return status;
    }
    *out = t;
    return LH_OK;
}

/* Rows of plugins are theirs; what was parsed of them is the table's. */
void op_table_free(op_table_t *t)
{
    if (t == NULL) return;
    for (uint32_t i = 0; i < t->count; i++) {
        mem_free(t->ops[i]->patterns);
        mem_free(t->ops[i]);
    }
    mem_free(t->ops);
    mem_free(t->buckets);
    mem_free(t);
}

const op_t *op_table_find(const op_table_t *t, const char *name)
{
    if (t->bucket_count == 0) return NULL;
    const uint32_t index = t->buckets[bucket_of(t, name)];
    return index == 0 ? NULL : t->ops[index - 1];
}

uint32_t op_table_count(const op_table_t *t)
{
    return t->count;
}

const op_t *op_table_at(const op_table_t *t, uint32_t index)
{
    lh_assert(index < t->count);
    return t->ops[index];
}

/* An op has at most OP_SLOTS slots, so they are looked at in turn. */
uint32_t op_slot(const op_t *op, const char *name)
{
    for (uint32_t s = 0; s < op->in_count + op->out_count; s++)
        if (strcmp(op->slot_name[s], name) == 0) return s;
    return OP_SLOTS;
}
