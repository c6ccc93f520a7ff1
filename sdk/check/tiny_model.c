/* tiny_model.c - finds the options of a small model by trying. */
#include "tiny_model.h"

#include <stdio.h>

#include <base/memory.h>
#include <config/options.h>
#include <graph/recorder.h>

#include "check.h"
#include "check_host.h"

enum {
    SMALL_ENOUGH = 3000,
    LEAST_BLOCKS = 2,
    LEAST_HIDDEN = 8,
    LEAST_VOCAB = 16,
    LEAST_TOKENS = 16
};

static lh_status_t param_shape(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                               uint32_t *rank)
{
    const tiny_use_t *use = context;
    const parameters_t *all = use->of->parameters;
    uint32_t index;
    if (!parameters_find_local(all, use->part, use->block, name, &index))
        return fail(LH_INVALID, "parameter '%s' is in none of the model's rows for this part",
                    name);
    if (use->used != NULL) use->used[index] = use->used[all->items[index].storage] = true;
    memcpy(shape, all->items[index].shape, sizeof(all->items[index].shape));
    *rank = all->items[index].rank;
    return LH_OK;
}

/* The last recording that went wrong did so by the shape of a parameter; and how far it came. */
static bool misshapen;
static uint64_t reached;

lh_status_t tiny_model_record(tiny_use_t *use, uint64_t tokens, lh_dtype_t compute,
                              recording_t **out)
{
    const tiny_model_t *t = use->of;
    const recording_how_t how = {.ops = t->ops,
                                 .host = check_host(),
                                 .tokens = tokens,
                                 .sequences = 1,
                                 .max_documents = 2,
                                 .compute = compute,
                                 .accumulate = compute == LH_DTYPE_F64 ? LH_DTYPE_F64
                                                                       : LH_DTYPE_F32,
                                 .param = param_shape,
                                 .context = use};
    const uint64_t shape[] = {tokens, t->parameters->hidden};
    recording_t *r;
    check_alive();
    lh_status_t status = recorder_new(&how, &r);
    if (status != LH_OK) return status;
    const lh_value_t x = use->part == LH_PART_EMBED
                             ? r->graph.api->input(&r->graph, LH_INPUT_TOKENS)
                             : recording_argument(r, compute, 2, shape);
    char called[TINY_PART_TEXT + 16], part[TINY_PART_TEXT];
    (void)snprintf(called, sizeof(called), "record() of %s",
                   tiny_model_part_text(use->part, use->block, part));
    check_calls(called);
    r->output = t->api->record(t->model, &r->graph, use->part, use->block, x);
    check_calls(NULL);
    status = recording_status_of(r, use->part, use->block);
    if (status == LH_OK && (r->output == 0 || r->output >= r->value_count)) {
        recording_failed(r, fail(LH_INVALID, "it records nothing"));
        status = recording_status_of(r, use->part, use->block);
    }
    const uint64_t columns = use->part == LH_PART_HEAD ? t->parameters->vocab
                                                       : t->parameters->hidden;
    const lh_arg_t *y = status == LH_OK ? &r->values[r->output].arg : NULL;
    if (y != NULL && (y->rank != 2 || y->shape[0] != tokens || y->shape[1] != columns)) {
        recording_failed(r, fail(LH_INVALID,
                                 "its output is [%llu, %llu] of rank %u, expected [%llu, %llu]",
                                 (unsigned long long)y->shape[0], (unsigned long long)y->shape[1],
                                 y->rank, (unsigned long long)tokens, (unsigned long long)columns));
        status = recording_status_of(r, use->part, use->block);
    }
    misshapen = status != LH_OK && r->misshapen;
    reached = ((uint64_t)use->part << 48) + ((uint64_t)use->block << 32) + r->node_count;
    if (status == LH_OK)
        *out = r;
    else
        recording_free(r);
    return status;
}

static void let_go(tiny_model_t *t)
{
    parameters_free(t->parameters);
    check_calls("close()");
    if (t->model != NULL) t->api->close(t->model);
    check_calls(NULL);
    t->parameters = NULL;
    t->model = NULL;
}

uint32_t tiny_model_part(const tiny_model_t *t, uint32_t i, uint32_t *block)
{
    *block = i == 0 || i > t->parameters->blocks ? 0 : i - 1;
    return i == 0 ? LH_PART_EMBED : i > t->parameters->blocks ? LH_PART_HEAD : LH_PART_BLOCK;
}

const char *tiny_model_part_text(uint32_t part, uint32_t block, char out[TINY_PART_TEXT])
{
    if (part == LH_PART_BLOCK)
        (void)snprintf(out, TINY_PART_TEXT, "block %u", block);
    else
        (void)snprintf(out, TINY_PART_TEXT, "%s", part == LH_PART_EMBED ? "embedding" : "head");
    return out;
}

/* What was refused is tried once more. Where it is taken then, the sentence of the refusal is of
 * little use: record() does not do the same for the same. */
static lh_status_t record_again(tiny_use_t *use, lh_status_t refusal)
{
    char sentence[1200];
    recording_t *r;
    const bool was_misshapen = misshapen;
    const uint64_t was_reached = reached;
    (void)snprintf(sentence, sizeof(sentence), "%s", fail_reason());
    const lh_status_t status = tiny_model_record(use, TINY_TOKENS, LH_DTYPE_F32, &r);
    if (status == LH_OK) recording_free(r);
    if (status == LH_OK)
        (void)fail(refusal,
                   "%s; called once more record() is not refused, so it is not pure: what it "
                   "records is by something besides its arguments",
                   sentence);
    else
        (void)fail(refusal, "%s", sentence);
    misshapen = was_misshapen;
    reached = was_reached;
    return refusal;
}

static lh_status_t record_each(const tiny_model_t *t)
{
    for (uint32_t i = 0; i < t->parameters->blocks + 2; i++) {
        recording_t *r;
        tiny_use_t use = {.of = t};
        use.part = tiny_model_part(t, i, &use.block);
        const lh_status_t status = tiny_model_record(&use, TINY_TOKENS, LH_DTYPE_F32, &r);
        if (status != LH_OK) return t->spec ? status : record_again(&use, status);
        recording_free(r);
    }
    return LH_OK;
}

/* Opens it with the config at hand; closed again where it is of no use. */
static lh_status_t try_open(tiny_model_t *t)
{
    check_alive();
    check_host_faults(NULL);
    misshapen = false; /* of an earlier model: where this one is not recorded, nothing was */
    reached = 0;
    check_calls("open()");
    lh_status_t status = t->api->open(t->host, t->config, &t->model);
    check_calls(NULL);
    t->refused = status != LH_OK;
    if (status != LH_OK) {
        t->model = NULL;
        return t->spec ? status : fail(status, "%s", check_host_reason());
    }
    check_calls("describe()");
    status = parameters_new(t->api, t->model, &t->parameters);
    check_calls(NULL);
    if (status == LH_OK) status = record_each(t);
    if (status != LH_OK) let_go(t);
    return status;
}

/* Elements of the model that the config makes; UINT64_MAX: none that is of use. */
static uint64_t size_of(tiny_model_t *t)
{
    const lh_status_t status = try_open(t);
    t->unusable = status != LH_OK && !t->refused;
    if (status != LH_OK) return UINT64_MAX;
    const parameters_t *p = t->parameters;
    const bool good = p->blocks >= LEAST_BLOCKS && p->hidden >= LEAST_HIDDEN &&
                      p->vocab >= LEAST_VOCAB && p->max_tokens >= LEAST_TOKENS;
    const uint64_t size = good ? p->elements : UINT64_MAX;
    let_go(t);
    return size;
}

static bool is_fixed(const subject_t *s, const char *key)
{
    const size_t length = strlen(key);
    for (uint32_t i = 0; i < s->set_count; i++)
        if (strncmp(s->sets[i], key, length) == 0 && s->sets[i][length] == '=') return true;
    return false;
}

static uint64_t number_at(const lh_option_t *row, const char *config)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    memcpy(&wide, config + row->offset, row->type == LH_OPT_U64 ? sizeof(wide) : 0);
    memcpy(&narrow, config + row->offset, row->type == LH_OPT_U32 ? sizeof(narrow) : 0);
    return row->type == LH_OPT_U64 ? wide : narrow;
}

static bool number_set(const lh_option_t *row, uint64_t value, void *config)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return option_set(row, text, row->key, "/", config) == LH_OK;
}

/* Halves the one number that makes the model smallest; false: none does. */
static bool shrink(const subject_t *s, tiny_model_t *t, uint64_t *size)
{
    const option_table_t table = plugin_options(t->plugin);
    uint32_t best = table.count;
    for (uint32_t i = 0; i < table.count; i++) {
        const lh_option_t *row = &table.rows[i];
        const uint64_t was = number_at(row, t->config);
        if (was < 2 || is_fixed(s, row->key) || !number_set(row, was / 2, t->config)) continue;
        const uint64_t now = size_of(t);
        if (now < *size) {
            *size = now;
            best = i;
        }
        (void)number_set(row, was, t->config);
    }
    if (best == table.count) return false;
    (void)number_set(&table.rows[best], number_at(&table.rows[best], t->config) / 2, t->config);
    return true;
}

/* Its functions are called with this model's options, as in a run. */
static void finish(subject_t *s, tiny_model_t *t)
{
    check_ok(try_open(t), "the small model");
    t->registry = s->own;
    registry_configure(s->own, s->plugin, t->config);
}

/* A spec's required numbers are drawn on where it takes them and can't be recorded. Where none can,
 * it is told how that ended which came furthest. */
static lh_status_t open_first(const subject_t *s, tiny_model_t *t)
{
    enum { TRIES = 2000 };
    uint64_t furthest = 0;
    text_t said = {0};
    lh_status_t status = try_open(t);
    if (status == LH_OK || t->refused || !t->spec) return status;
    for (uint64_t i = 0; i < TRIES && status != LH_OK && !(misshapen && !t->refused); i++) {
        if (!t->refused && (said.data == NULL || reached > furthest)) {
            furthest = reached;
            text_free(&said);
            text_append(&said, fail_reason());
        }
        subject_draw(s, i, t->config);
        status = try_open(t);
    }
    if (status != LH_OK && !(misshapen && !t->refused))
        (void)fail(status, "%s", said.data == NULL ? "" : said.data);
    t->refused = false; /* draws that open() refuses are none */
    text_free(&said);
    return status;
}

void tiny_model_open(subject_t *s, tiny_model_t *out)
{
    tiny_model_t t = {
        .plugin = s->plugin, .api = s->plugin->model, .host = subject_host(s), .spec = s->spec};
    t.config = subject_config(s, s->plugin);
    t.ops = subject_ops(s);
    if (open_first(s, &t) != LH_OK && !t.refused)
        check_fault("with the defaults of its options: %s", fail_reason());
    if (t.refused)
        check_fault("it refuses the defaults of its options: %s; give others with --set",
                    fail_reason());
    uint64_t size = t.parameters->elements;
    let_go(&t);
    while (size > SMALL_ENOUGH && shrink(s, &t, &size)) {
    }
    finish(s, &t);
    *out = t;
}

void tiny_model_close(tiny_model_t *t)
{
    let_go(t);
    if (t->registry != NULL) { /* else they are another's, whom it is like */
        registry_configure(t->registry, t->plugin, NULL);
        op_table_free(t->ops);
    }
    mem_free(t->config);
}

bool tiny_model_like(const tiny_model_t *t, void *config, tiny_model_t *out)
{
    *out = (tiny_model_t){.plugin = t->plugin, .api = t->api, .host = t->host, .spec = t->spec};
    out->config = config;
    out->ops = t->ops;
    if (try_open(out) == LH_OK) return true;
    tiny_model_close(out);
    return false;
}

/* ---- instances ---- */

enum { MOST_ELEMENTS = 24000, LEAST_INSTANCES = 4, MOST_INSTANCES = 6 };

/* As an INI writes it; of the plugin's options, valid until the next call. */
static const char *text_of(const lh_option_t *row, const void *config)
{
    static char text[OPTION_TEXT];
    const char *it = option_text(row, config, text);
    return it == NULL ? "" : it;
}

bool tiny_model_changed(const tiny_model_t *t, const option_table_t *table, uint32_t i)
{
    char is[OPTION_TEXT];
    void *usual = check_memory(1, table->config_size + 64);
    (void)snprintf(is, sizeof(is), "%s", text_of(&table->rows[i], t->config));
    bool same = table->rows[i].fallback != NULL &&
                option_set(&table->rows[i], table->rows[i].fallback, "default", "/", usual) ==
                    LH_OK &&
                strcmp(is, text_of(&table->rows[i], usual)) == 0;
    mem_free(usual);
    return !same;
}

/* No option of an earlier row has this value. */
static bool is_unlike(const tiny_model_t *t, const option_table_t *table, uint32_t row,
                      uint64_t value)
{
    for (uint32_t i = 0; i < row; i++) {
        const uint32_t type = table->rows[i].type;
        if ((type == LH_OPT_U64 || type == LH_OPT_U32) &&
            number_at(&table->rows[i], t->config) == value)
            return false;
    }
    return true;
}

/* ---- what a spec can't be recorded with ---- */

/* Of an option: what was said of the first value with which the spec can't be recorded, and whether
 * another value makes another model. By row, over the instances of a check. */
typedef struct doubt {
    char sentence[1200];
    bool moved;
} doubt_t;
static doubt_t *doubts;

/* The model that t's options make is not the one that they make with this value. */
static bool is_another(tiny_model_t *t, const lh_option_t *row, const char *value)
{
    const option_table_t table = plugin_options(t->plugin);
    tiny_model_t now = *t, then = *t;
    now.parameters = then.parameters = NULL;
    then.config = check_memory(1, table.config_size + 64);
    memcpy(then.config, t->config, table.config_size);
    check_ok(option_set(row, value, row->key, "/", then.config), row->key);
    const bool both = try_open(&now) == LH_OK && try_open(&then) == LH_OK;
    const bool another = !both || !tiny_model_equal(&now, &then);
    let_go(&now);
    let_go(&then);
    mem_free(then.config);
    return another;
}

static void doubt_value(const tiny_model_t *t, const lh_option_t *row, const char *value)
{
    doubt_t *d = &doubts[row - t->plugin->options];
    if (d->sentence[0] == '\0')
        (void)snprintf(d->sentence, sizeof(d->sentence),
                       "it takes %s = %s, and then the model can't be recorded, as with any value "
                       "of %s by which it would be another: %s",
                       row->key, value, row->key, fail_reason());
}

/* Keeps the value where the model can still be recorded and is small. */
static bool try_value(tiny_model_t *t, const lh_option_t *row, const char *value)
{
    char was[OPTION_TEXT];
    (void)snprintf(was, sizeof(was), "%s", text_of(row, t->config));
    if (strcmp(was, value) == 0) return false;
    const bool taken = option_set(row, value, row->key, "/", t->config) == LH_OK;
    const uint64_t size = taken ? size_of(t) : 0;
    if (taken && t->refused && fail_reason()[0] == '\0')
        check_fault("open() refuses %s = %s without saying why", row->key, value);
    const bool doubtful = t->spec && !misshapen;
    if (taken && t->unusable && doubtful) doubt_value(t, row, value);
    if (taken && t->unusable && !doubtful)
        check_fault("open() takes %s = %s, and then the model can't be recorded: %s", row->key,
                    value, fail_reason());
    doubt_t *d = &doubts[row - t->plugin->options];
    if (t->spec && taken && size < UINT64_MAX) d->moved = d->moved || is_another(t, row, was);
    if (taken && size <= MOST_ELEMENTS) return true;
    check_ok(option_set(row, was, row->key, "/", t->config), row->key);
    return false;
}

/* Numbers to try in the place of v: small ones may count (blocks, heads of keys), larger ones are
 * widths, which others divide. 0 may stand for "none" or "as derived". */
enum { OTHERS = TINY_TURNS };
static void others_of(uint64_t v, uint64_t others[OTHERS])
{
    const uint64_t of_none[] = {2, 6, 4, 3, 1, 8}, of_one[] = {4, 2, 3, 6, 8, 5};
    const uint64_t of_few[] = {v + 1, v * 2, v * 3, 1, 6, 5};
    const uint64_t of_many[] = {v * 2, v * 3, v + 2, v + 1, v / 2, 6};
    memcpy(others, v == 0 ? of_none : v == 1 ? of_one : v < 4 ? of_few : of_many, sizeof(of_none));
}

/* Whether another value makes another model in one of many that are drawn: in the small one a head may
 * be too narrow for any other number of what turns in it. */
static bool moves_elsewhere(subject_t *s, const option_table_t *table, uint32_t row)
{
    enum { DRAWS = 200 };
    const lh_option_t *it = &table->rows[row];
    tiny_model_t t = {
        .plugin = s->plugin, .api = s->plugin->model, .host = subject_host(s), .spec = s->spec};
    uint64_t others[OTHERS];
    bool moved = false;
    if (it->type != LH_OPT_U64 && it->type != LH_OPT_U32) return false;
    t.config = subject_config(s, s->plugin);
    t.ops = subject_ops(s);
    for (uint64_t i = 0; i < DRAWS && !moved; i++) {
        tiny_model_t then = t;
        subject_draw(s, i, t.config);
        if (size_of(&t) > 100 * MOST_ELEMENTS || try_open(&t) != LH_OK) continue;
        others_of(number_at(it, t.config), others);
        then.config = check_memory(1, table->config_size + 64);
        for (uint32_t k = 0; k < OTHERS && !moved; k++) {
            memcpy(then.config, t.config, table->config_size);
            if (others[k] == number_at(it, t.config) || !number_set(it, others[k], then.config) ||
                try_open(&then) != LH_OK)
                continue;
            moved = !tiny_model_equal(&t, &then);
            let_go(&then);
        }
        mem_free(then.config);
        let_go(&t);
    }
    op_table_free(t.ops);
    mem_free(t.config);
    return moved;
}

static void tell_doubts(subject_t *s, const option_table_t *table)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (doubts[i].sentence[0] != '\0' && !doubts[i].moved && !moves_elsewhere(s, table, i))
            check_fault("%s", doubts[i].sentence);
    mem_free(doubts);
    doubts = NULL;
}

static void vary_number(tiny_model_t *t, const option_table_t *table, uint32_t i, uint32_t turn,
                        bool unlike)
{
    const lh_option_t *row = &table->rows[i];
    const uint64_t v = number_at(row, t->config);
    uint64_t others[OTHERS];
    others_of(v, others);
    for (uint32_t k = 0; k < OTHERS; k++) {
        char text[32];
        const uint64_t value = others[(k + turn - 1) % OTHERS];
        if (value == v || (unlike && !is_unlike(t, table, i, value))) continue;
        (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
        if (try_value(t, row, text)) return;
    }
}

static void vary_fraction(tiny_model_t *t, const lh_option_t *row)
{
    double v = 0;
    memcpy(&v, (const char *)t->config + row->offset, sizeof(v));
    const double others[] = {v * 2, v / 2, v + 0.5, v + 1, 0.25};
    for (uint32_t k = 0; k < sizeof(others) / sizeof(others[0]); k++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "%.17g", others[k]);
        if (others[k] != v && others[k] != 0 && try_value(t, row, text)) return;
    }
}

static uint32_t choices_of(const lh_option_t *row)
{
    uint32_t count = 1;
    for (const char *c = row->range; c != NULL && *c != '\0'; c++)
        count += *c == '|';
    return row->type == LH_OPT_CHOICE ? count : 0;
}

/* The word that stands `turn` places behind the one that is set. */
static void vary_choice(tiny_model_t *t, const lh_option_t *row, uint32_t turn)
{
    char word[64];
    uint32_t is = 0;
    memcpy(&is, (const char *)t->config + row->offset, sizeof(is));
    const char *at = row->range;
    for (uint32_t i = (is + turn) % choices_of(row); i > 0; i--)
        at = strchr(at, '|') + 1;
    (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, "|"), at);
    (void)try_value(t, row, word);
}

/* Switches are all the other way in the first turn; later, by the bits of their numbers, so that any
 * two of them differ in some turn. */
static bool is_switched(uint32_t number, uint32_t turn)
{
    return turn == 1 || (number >> (turn - 2) & 1) != 0;
}

static void vary_row(tiny_model_t *t, const option_table_t *table, uint32_t i, uint32_t turn,
                     bool first)
{
    const lh_option_t *row = &table->rows[i];
    uint32_t number = 0; /* among switches */
    for (uint32_t k = 0; k < i; k++)
        number += table->rows[k].type == LH_OPT_BOOL;
    switch (row->type) {
    case LH_OPT_CHOICE: vary_choice(t, row, turn); break;
    case LH_OPT_BOOL:
        if (is_switched(number, turn))
            (void)try_value(t, row, strcmp(text_of(row, t->config), "yes") == 0 ? "no" : "yes");
        break;
    case LH_OPT_U64:
    case LH_OPT_U32: vary_number(t, table, i, turn, first); break;
    case LH_OPT_F64: vary_fraction(t, row); break;
    default: break;
    }
}

/* Choices and switches, then numbers, as what these may be depends on those; and once more all that
 * another has made possible. */
static void vary(const subject_t *s, tiny_model_t *t, uint32_t turn)
{
    enum { PASSES = 3 };
    const option_table_t table = plugin_options(t->plugin);
    bool *done = check_memory(table.count + 1u, sizeof(*done));
    for (uint32_t pass = 0; pass < PASSES; pass++)
        for (uint32_t i = 0; i < table.count; i++) {
            const lh_option_t *row = &table.rows[i];
            const bool words = row->type == LH_OPT_CHOICE || row->type == LH_OPT_BOOL;
            char was[OPTION_TEXT];
            if (is_fixed(s, row->key) || done[i] || words == (pass == 1)) continue;
            if (pass == 0 && !words) continue;
            (void)snprintf(was, sizeof(was), "%s", text_of(row, t->config));
            vary_row(t, &table, i, turn, pass < 2);
            done[i] = strcmp(was, text_of(row, t->config)) != 0;
        }
    mem_free(done);
}

/* "with blocks=4 hidden=16 ...": what is not its default. */
static void tell_about(const tiny_model_t *t)
{
    char text[480];
    int length = snprintf(text, sizeof(text), "with");
    const option_table_t table = plugin_options(t->plugin);
    for (uint32_t i = 0; i < table.count && length < (int)sizeof(text); i++)
        if (tiny_model_changed(t, &table, i))
            length += snprintf(text + length, sizeof(text) - (size_t)length, " %s=%s",
                               table.rows[i].key, text_of(&table.rows[i], t->config));
    check_about(text);
}

static void run_with(subject_t *s, tiny_model_t *t, void (*run)(subject_t *s, tiny_model_t *t))
{
    tell_about(t);
    run(s, t);
    check_about(NULL);
    tiny_model_close(t);
}

void tiny_model_with(subject_t *s, uint32_t row, uint32_t given, uint32_t turn,
                     void (*run)(subject_t *s, tiny_model_t *t))
{
    const option_table_t table = plugin_options(s->plugin);
    tiny_model_t t;
    doubts = check_memory(table.count + 1u, sizeof(*doubts));
    tiny_model_open(s, &t);
    let_go(&t);
    if (given != row) vary_row(&t, &table, given, 1, false);
    vary_row(&t, &table, row, turn, false);
    finish(s, &t);
    run_with(s, &t, run);
    mem_free(doubts);
    doubts = NULL;
}

void tiny_model_even(subject_t *s, void (*run)(subject_t *s, tiny_model_t *t))
{
    static const uint64_t factors[] = {2, 4, 8};
    const option_table_t table = plugin_options(s->plugin);
    tiny_model_t t;
    doubts = check_memory(table.count + 1u, sizeof(*doubts));
    tiny_model_open(s, &t);
    let_go(&t);
    for (uint32_t i = 0; i < table.count; i++) {
        const lh_option_t *row = &table.rows[i];
        const uint64_t was = number_at(row, t.config);
        if (was % 2 == 0 || is_fixed(s, row->key)) continue; /* 0 of all that is no whole number */
        for (uint32_t k = 0; k < sizeof(factors) / sizeof(factors[0]); k++) {
            char text[32];
            (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)(was * factors[k]));
            if (try_value(&t, row, text)) break;
        }
    }
    finish(s, &t);
    run_with(s, &t, run);
    mem_free(doubts);
    doubts = NULL;
}

void tiny_model_each(subject_t *s, void (*run)(subject_t *s, tiny_model_t *t))
{
    const option_table_t table = plugin_options(s->plugin);
    uint32_t instances = LEAST_INSTANCES;
    doubts = check_memory(table.count + 1u, sizeof(*doubts));
    for (uint32_t i = 0; i < table.count; i++)
        if (choices_of(&table.rows[i]) > instances) instances = choices_of(&table.rows[i]);
    if (instances > MOST_INSTANCES) instances = MOST_INSTANCES;
    for (uint32_t turn = 0; turn < instances; turn++) {
        tiny_model_t t;
        tiny_model_open(s, &t);
        if (turn > 0) {
            let_go(&t);
            vary(s, &t, turn);
            finish(s, &t);
        }
        run_with(s, &t, run);
    }
    tell_doubts(s, &table);
}

/* ---- two models ---- */

static bool same_row(const parameter_t *a, const parameter_t *b)
{
    return strcmp(a->name, b->name) == 0 && a->rank == b->rank && a->storage == b->storage &&
           memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
}

static recording_t *part_of(tiny_model_t *t, uint32_t i)
{
    recording_t *r;
    tiny_use_t use = {.of = t};
    use.part = tiny_model_part(t, i, &use.block);
    check_ok(tiny_model_record(&use, TINY_TOKENS, LH_DTYPE_F32, &r), "recording");
    return r;
}

bool tiny_model_equal(tiny_model_t *a, tiny_model_t *b)
{
    const parameters_t *p = a->parameters, *q = b->parameters;
    if (p->blocks != q->blocks || p->hidden != q->hidden || p->vocab != q->vocab ||
        p->max_tokens != q->max_tokens || p->count != q->count)
        return false;
    for (uint32_t i = 0; i < p->count; i++)
        if (!same_row(&p->items[i], &q->items[i])) return false;
    bool equal = true;
    for (uint32_t i = 0; i < p->blocks + 2 && equal; i++) {
        recording_t *x = part_of(a, i), *y = part_of(b, i);
        equal = recording_equal(x, y);
        recording_free(x);
        recording_free(y);
    }
    return equal;
}
