/* checks_of_tables.c - options, functions and help texts, as an INI and `longhaul help` meet them.
 */
#include "check.h"

#include <ctype.h>
#include <fenv.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <config/options.h>
#include <plugin/call.h>
#include <plugin/plugin.h>

static void help_check(const char *what, const char *name, const char *help)
{
    if (help == NULL || help[0] == '\0') check_fault("%s '%s' has no help text", what, name);
    if (help[strlen(help) - 1] == '.')
        check_fault("%s '%s': its help '%s' ends with a full stop; others' don't", what, name,
                    help);
}

static void everything_has_help(subject_t *s)
{
    const plugin_t *p = s->plugin;
    if (p->version == NULL || p->version[0] == '\0') check_fault("it has no version");
    if (p->summary == NULL || p->summary[0] == '\0') check_fault("it has no summary");
    for (uint32_t i = 0; i < p->option_count; i++)
        help_check("option", p->options[i].key, p->options[i].help);
    for (uint32_t i = 0; i < p->function_count; i++)
        help_check("function", p->functions[i].name, p->functions[i].help);
    for (uint32_t i = 0; i < p->rule_count; i++) {
        const option_table_t table = plugin_rule_options(&p->rules[i]);
        help_check("rule", p->rules[i].name, p->rules[i].help);
        for (uint32_t k = 0; k < table.count; k++)
            help_check("option", table.rows[k].key, table.rows[k].help);
    }
    for (uint32_t i = 0; i < p->op_count; i++) {
        const lh_op_t *op = &p->ops[i];
        help_check("op", op->name, op->help);
        if (op->shapes == NULL || op->formula == NULL || op->backward == NULL)
            check_fault("op '%s' says nothing of its slots' shapes, its formula or its gradient",
                        op->name);
        for (uint32_t k = 0; k < op->attribute_count; k++)
            help_check("attribute", op->attributes[k].key, op->attributes[k].help);
    }
}

static void key_check(const char *key)
{
    bool good = islower((unsigned char)key[0]) != 0;
    for (const char *c = key; *c != '\0'; c++)
        good = good && (islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_');
    if (!good) check_fault("option '%s' is not called in snake_case", key);
}

static const char *section_of(uint32_t kind)
{
    switch (kind) {
    case LH_KIND_MODEL: return "model";
    case LH_KIND_OPTIMIZER: return "optimizer";
    case LH_KIND_DEVICE: return "device";
    case LH_KIND_TRANSPORT: return "transport.node";
    default: return "parts.it";
    }
}

/* Keys that the core gives a plugin of the kind itself. */
static bool is_given(uint32_t kind, const char *key)
{
    return kind == LH_KIND_MODEL && strcmp(key, "vocab") == 0;
}

/* transport.node, .site and .wan are one row of the core's. */
static const job_section_t *core_section(uint32_t kind)
{
    const job_section_t *found = job_section(section_of(kind));
    if (found == NULL && kind == LH_KIND_TRANSPORT) found = job_section("transport.*");
    return found;
}

static void option_keys_are_its_own(subject_t *s)
{
    const plugin_t *p = s->plugin;
    const job_section_t *core = core_section(p->kind);
    for (uint32_t i = 0; i < p->option_count; i++) {
        const char *key = p->options[i].key;
        key_check(key);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(key, p->options[k].key) == 0) check_fault("option '%s' stands twice", key);
        for (uint32_t k = 0; core != NULL && k < core->count; k++)
            if (strcmp(key, core->rows[k].key) == 0 && !is_given(p->kind, key))
                check_fault("option '%s' is a key of the host's own in [%s]", key,
                            section_of(p->kind));
    }
}

/* An INI with one line, through the parser of a run. */
static lh_status_t parse_line(subject_t *s, const option_table_t *table, const char *line)
{
    document_t *d = NULL;
    text_t path = {0}, text = {0};
    text_printf(&path, "%s/options.ini", s->scratch);
    text_printf(&text, "[it]\n%s\n", line);
    check_ok(text_status(&text), "text");
    check_ok(file_replace(path.data, text.data, text.length), "file");
    check_ok(document_load(path.data, &d), "INI");
    const options_how_t how = {.document = d,
                               .section = "it",
                               .tables = table,
                               .table_count = 1,
                               .optional = true,
                               .folder = "/"};
    const lh_status_t status = options_parse(&how);
    document_free(d);
    text_free(&path);
    text_free(&text);
    return status;
}

static void wrong_options_are_refused(subject_t *s)
{
    option_table_t table = plugin_options(s->plugin);
    table.config = NULL;
    if (parse_line(s, &table, "surely_no_such_key = 1") == LH_OK)
        check_fault("an unknown key is accepted");
    for (uint32_t i = 0; i < table.count; i++) {
        const lh_option_t *row = &table.rows[i];
        text_t line = {0};
        if (row->type == LH_OPT_STRING || row->type == LH_OPT_PATH) continue;
        text_printf(&line, "%s = surely/no:value", row->key);
        check_ok(text_status(&line), "text");
        if (parse_line(s, &table, line.data) == LH_OK)
            check_fault("option '%s' takes 'surely/no:value'", row->key);
        text_free(&line);
    }
}

/* ---- functions ---- */

static void argument_text(uint32_t type, text_t *out)
{
    switch (type) {
    case CALL_I64: text_append(out, "3"); break;
    case CALL_U64: text_append(out, "2"); break;
    case CALL_F64: text_append(out, "0.5"); break;
    case CALL_STR: text_append(out, "\"text\""); break;
    default: text_append(out, "tensor"); break;
    }
}

enum { TIMES = 8 };

static double number_of(uint32_t type, const call_value_t *value)
{
    return type == CALL_F64   ? value->f64
           : type == CALL_I64 ? (double)value->i64
                              : (double)value->u64;
}

/* A failure has a reason of the function's own, and not the text of its status. */
static void run_function(call_t *call, const lh_function_t *f, const call_value_t *value,
                         call_value_t *out)
{
    char silent[256];
    const int rounding = fegetround();
    fail_clear();
    check_alive();
    const lh_status_t status = call_run(call, value, out);
    (void)snprintf(silent, sizeof(silent), "longhaul-check: %s: %s", f->name, status_text(status));
    if (status != LH_OK && (fail_reason()[0] == '\0' || strcmp(fail_reason(), silent) == 0))
        check_fault("function '%s' fails ('%s') without saying why with host->fail", f->name,
                    status_text(status));
    if (fegetround() != rounding)
        check_fault("function '%s' leaves another rounding mode behind", f->name);
}

/* What it answers is its business; that it can be called, and that a failure has a reason, is not.
 */
static void call_function(subject_t *s, const lh_function_t *f)
{
    plugin_signature_t signature;
    text_t text = {0};
    const char *wrong = plugin_signature_parse(f->signature, &signature);
    if (wrong != NULL) check_fault("function '%s': %s", f->name, wrong);
    text_printf(&text, "%s:%s(", s->plugin->name, f->name);
    for (uint32_t i = 0; i < signature.count; i++) {
        if (i > 0) text_append(&text, ", ");
        argument_text(signature.params[i].type, &text);
    }
    text_append(&text, ")");
    check_ok(text_status(&text), "text");

    float data[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    lh_tensor_t tensor = {.struct_size = sizeof(tensor),
                          .dtype = LH_DTYPE_F32,
                          .rank = 2,
                          .shape = {3, 4},
                          .stride = {4, 1},
                          .data = data,
                          .data_bytes = sizeof(data)};
    const call_variable_t variable = {"tensor", CALL_TENSOR};
    const call_scope_t scope = {
        .variables = &variable, .variable_count = 1, .plugins = s->own, .host = s->plugin->host};
    call_t *call = NULL;
    check_ok(call_bind(text.data, "longhaul-check", &scope, signature.result, &call), text.data);
    call_value_t value = {.tensor = &tensor}, out = {0}, again = {0};
    run_function(call, f, &value, &out);
    /* A tensor's function may have changed it. */
    bool takes_tensor = false;
    for (uint32_t i = 0; i < signature.count; i++)
        takes_tensor = takes_tensor || signature.params[i].type == CALL_TENSOR;
    const uint32_t files = subject_descriptors();
    for (int i = 0; i < TIMES; i++)
        run_function(call, f, &value, &again);
    if (subject_descriptors() > files)
        check_fault("function '%s' leaves a descriptor open each time", f->name);
    if (!takes_tensor && signature.result != CALL_STATUS && signature.result != CALL_STR &&
        memcmp(&out, &again, sizeof(out)) != 0)
        check_fault("function '%s' gives another result for the same arguments: %s was %.17g and "
                    "is %.17g",
                    f->name, text.data, number_of(signature.result, &out),
                    number_of(signature.result, &again));
    call_free(call);
    text_free(&text);
}

static void functions_can_be_called(subject_t *s)
{
    if (s->plugin->function_count == 0) check_skip("it brings no functions");
    void *config = subject_config(s, s->plugin);
    registry_configure(s->own, s->plugin, config);
    for (uint32_t i = 0; i < s->plugin->function_count; i++)
        call_function(s, &s->plugin->functions[i]);
}

const check_t checks_of_tables[] = {
    {"tables.help", "it, its options, functions, rules and ops say what they are for",
     CHECK_EVERY_KIND, false, 10, everything_has_help, NULL},
    {"tables.keys", "its options have keys of their own, in snake_case", CHECK_EVERY_KIND, false,
     10, option_keys_are_its_own, NULL},
    {"tables.refuses", "unknown keys and values that are none are refused", CHECK_EVERY_KIND, false,
     20, wrong_options_are_refused, NULL},
    {"functions.calls",
     "its functions can be called, give the same for the same, and say why when they fail",
     CHECK_EVERY_PLUGIN, false, 20, functions_can_be_called, NULL},
    {0},
};
