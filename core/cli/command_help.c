/* command_help.c - longhaul help [NAME [MEMBER]] [--as FORM]: commands, sections of the INI, plugins, ops.
 *
 * What it prints stands in the tables that the program works with: rows of commands, options and
 * ops. An op whose name has a dot is a plugin's, which is found by loading them all.
 *
 * What NAME may be, and what is then printed: nothing (commands and all sections of the INI), a
 * command (usage and flags), a section ([train] as train), a plugin (its options, functions, rules
 * and ops), plugin (the one that MEMBER names, and no command or section that has its name), op (all
 * ops, or the one that MEMBER names, with its shapes, formula and gradient), or functions (all that an
 * INI or a model's row can call), rules (all update rules with their keys), or hooks (where an INI
 * calls a function, and what it may use there). `longhaul COMMAND --help` prints the command alone.
 * `longhaul plugins` is here as well, since it prints from the same tables: a line for each plugin
 * that is installed, and why one is not usable. */
#include <stdio.h>

#include <longhaul/ops.h>

#include <cli/cli.h>
#include <cli/manual.h>
#include <config/options.h>
#include <graph/op_table.h>
#include <hf/hf_functions.h>
#include <session/step_layout.h>
#include <spec/spec.h>

/* Usage, summary, and a line for each flag. */
static void print_command(const command_t *c, text_t *out)
{
    cli_usage(c, out);
    text_printf(out, "  %s\n", c->summary);
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++)
        text_printf(out, "  --%s %s  %s\n", c->flags[i].name,
                    c->flags[i].value != NULL ? c->flags[i].value : "", c->flags[i].help);
}

/* The name with its brackets, as it stands in an INI. */
static void print_section(const job_section_t *s, text_t *out)
{
    text_printf(out, "[%s]  %s\n", s->name, s->help);
    options_explain_table(s->rows, s->count, out);
}

/* Every section with every key: what an INI may hold stands on one page. */
static void print_overview(text_t *out)
{
    uint32_t count;
    text_append(out,
                "longhaul trains large language models, from text to a Hugging Face folder.\n\n");
    const command_t *const *all = cli_commands(&count);
    for (uint32_t i = 0; i < count; i++)
        text_printf(out, "  %-9s %s\n", all[i]->name, all[i]->summary);
    text_append(
        out, "\nlonghaul help NAME tells more of a command, a section or a plugin; "
             "longhaul help op of ops,\nlonghaul help functions, rules and hooks of what they say; "
             "longhaul COMMAND --help; longhaul --version\n\n"
             "Sections of PIPELINE.ini:\n\n");
    const job_section_t *sections = job_sections(&count);
    for (uint32_t i = 0; i < count; i++) {
        print_section(&sections[i], out);
        text_append(out, "\n");
    }
}

/* Rules are named plugin:rule, as [optimizer] rule wants them. */
static void print_rules(const plugin_t *p, text_t *out)
{
    for (uint32_t i = 0; i < p->rule_count; i++) {
        const lh_rule_t *rule = &p->rules[i];
        text_printf(out, "\nrule %s:%s  %s\n", p->name, rule->name, rule->help);
        if (rule->option_count > 0) text_printf(out, "keys of [rule.%s]:\n", rule->name);
        options_explain_table(rule->options, rule->option_count, out);
    }
}

/* "title:" and the lines of a text, indented; nothing where the row says nothing. Rows of ops have
 * texts of several lines: shapes, formula, gradient. */
static void print_lines(const char *title, const char *lines, text_t *out)
{
    if (lines == NULL) return;
    text_printf(out, "\n%s:\n", title);
    while (*lines != '\0') {
        const size_t length = strcspn(lines, "\n");
        text_append(out, "  ");
        text_append_n(out, lines, length);
        text_append(out, "\n");
        lines += length + (lines[length] == '\n');
    }
}

/* Words for what an op's row allows the program to do with it. */
static void print_flags(const lh_op_t *op, text_t *out)
{
    static const struct {
        uint32_t flag;
        const char *text;
    } words[] = {
        {LH_OP_ROWS, "rows may be cut"},
        {LH_OP_COLUMNS, "columns may be cut"},
        {LH_OP_RANDOM, "takes random numbers"},
        {LH_OP_COSTLY, "selective recomputation keeps its outputs"},
        {LH_OP_PRODUCT, "a head may be walked in chunks of its rows"},
        {LH_OP_DETACHED, "inputs without a gradient count as constants"},
        {LH_OP_IN_PLACE, "may write over its first input"},
        {LH_OP_LINEAR, "its weight may have an adapter"},
        {LH_OP_PICKS, "its I32 numbers are columns of its first input"},
        {LH_OP_PICKED, "numbers of its first input are below its first attribute"},
        {LH_OP_PLACES, "numbers of its I32 inputs are places that another op made"},
    };
    const char *between = "\n";
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((op->flags & words[i].flag) == 0) continue;
        text_printf(out, "%s%s", between, words[i].text);
        between = "; ";
    }
    if (op->expand != NULL) {
        text_printf(out, "%srecorded as other ops where a device has no kernel", between);
        between = "; ";
    }
    if (op->product != NULL) {
        text_printf(out, "%sproducts that share an input may become one", between);
        between = "; ";
    }
    if (*between == ';') text_append(out, "\n");
}

/* All that the row says. What a row leaves out has no heading here. */
static void print_op(const lh_op_t *op, text_t *out)
{
    text_printf(out, "op %s: %s\n", op->name, op->slots);
    if (op->help != NULL) text_printf(out, "%s\n", op->help);
    print_lines("slots", op->shapes, out);
    if (op->attribute_count > 0 && op->attributes_struct != NULL)
        text_printf(out, "\nattributes (%s):\n", op->attributes_struct);
    else if (op->attribute_count > 0)
        text_append(out, "\nattributes:\n");
    options_explain_table(op->attributes, op->attribute_count, out);
    print_lines("formula", op->formula, out);
    print_lines("gradient", op->backward, out);
    print_lines("takes the place of", op->fuses, out);
    print_flags(op, out);
}

/* Which section its keys stand in depends on its kind. */
static void print_plugin(const plugin_t *p, text_t *out)
{
    static const char *const sections[] = {
        [LH_KIND_MODEL] = "[model]",         [LH_KIND_TRANSPORT] = "[transport.*]",
        [LH_KIND_OPTIMIZER] = "[optimizer]", [LH_KIND_DEVICE] = "[device]",
        [LH_KIND_PARTS] = "[parts.NAME]",
    };
    text_printf(out, "%s %s %s: %s\n%s\n", plugin_kind_text(p->kind), p->name, p->version,
                p->summary, p->path);
    if (p->option_count > 0) text_printf(out, "\nkeys of %s:\n", sections[p->kind]);
    options_explain_table(p->options, p->option_count, out);
    for (uint32_t i = 0; i < p->function_count; i++)
        text_printf(out, "%sfunction %s:%s: %s\n  %s\n", i == 0 ? "\n" : "", p->name,
                    p->functions[i].name, p->functions[i].signature, p->functions[i].help);
    print_rules(p, out);
    for (uint32_t i = 0; i < p->op_count; i++) {
        text_append(out, "\n");
        print_op(&p->ops[i], out);
    }
    if (p->kernel_count > 0) text_printf(out, "\n%u kernels\n", p->kernel_count);
}

/* best holds a copy, as names of files live only while they are listed. */
typedef struct search {
    const char *name;
    bool found;
    text_nearest_t near;
    char best[32];
} search_t;

/* Also offers each name as what might have been meant. */
static lh_status_t compare_name(void *context, const char *name)
{
    search_t *s = context;
    const char *before = s->near.best;
    if (strcmp(name, s->name) == 0) s->found = true;
    text_nearest_offer(&s->near, name);
    if (s->near.best != before) { /* the entry's name lives only now */
        (void)snprintf(s->best, sizeof(s->best), "%s", name);
        s->near.best = s->best;
    }
    return LH_OK;
}

/* Plugins of two kinds may have one name; both are told. */
static lh_status_t print_plugins(cli_t *cli, text_t *out, search_t *s)
{
    bool any = false;
    for (uint32_t kind = LH_KIND_MODEL; kind <= LH_KIND_PARTS; kind++) {
        const plugin_t *p;
        s->found = false;
        lh_status_t status = registry_list(cli->plugins, kind, compare_name, s);
        if (status == LH_OK && s->found) status = registry_load(cli->plugins, kind, s->name, &p);
        if (status != LH_OK) return status;
        if (!s->found) continue;
        print_plugin(p, out);
        any = true;
    }
    s->found = any;
    return LH_OK;
}

/* A name may be a command, a section and a plugin at once, as `train` is: all that have it are
 * printed. */
static lh_status_t print_named(cli_t *cli, text_t *out)
{
    uint32_t count;
    bool known = false;
    search_t s = {.name = cli->name, .near = {.typed = cli->name}};
    text_nearest_offer(&s.near, "op");
    text_nearest_offer(&s.near, "plugin");
    text_nearest_offer(&s.near, "functions");
    text_nearest_offer(&s.near, "rules");
    text_nearest_offer(&s.near, "hooks");
    const command_t *const *all = cli_commands(&count);
    for (uint32_t i = 0; i < count; i++) {
        text_nearest_offer(&s.near, all[i]->name);
        if (strcmp(all[i]->name, cli->name) != 0) continue;
        print_command(all[i], out);
        known = true;
    }
    const job_section_t *sections = job_sections(&count);
    for (uint32_t i = 0; i < count; i++) {
        text_nearest_offer(&s.near, sections[i].name);
        if (strcmp(sections[i].name, cli->name) != 0) continue;
        text_append(out, known ? "\n" : "");
        print_section(&sections[i], out);
        if (strcmp(cli->name, "spec") == 0) spec_help(out);
        known = true;
    }
    const lh_status_t status = print_plugins(cli, out, &s);
    if (status != LH_OK || known || s.found) return status;
    const char *best = text_nearest_name(&s.near);
    return fail(LH_INVALID, "'%s' is no command, section or plugin in %s%s%s%s", cli->name,
                registry_folder_text(cli->plugins), best != NULL ? "; did you mean '" : "",
                best != NULL ? best : "", best != NULL ? "'?" : "");
}

/* ---- help plugin NAME ---- */

/* For registry_list. */
static lh_status_t add_plugin_name(void *context, const char *name)
{
    text_t *names = context;
    text_printf(names, "%s%s", names->length > 0 ? ", " : "", name);
    return LH_OK;
}

/* Says which plugins there are: behind a name that none has, or in place of one. */
static lh_status_t refuse_plugin_name(cli_t *cli)
{
    text_t names = {0};
    lh_status_t status = LH_OK;
    for (uint32_t kind = LH_KIND_MODEL; kind <= LH_KIND_PARTS && status == LH_OK; kind++)
        status = registry_list(cli->plugins, kind, add_plugin_name, &names);
    if (status == LH_OK) status = text_status(&names);
    const char *folder = registry_folder_text(cli->plugins);
    if (status == LH_OK && names.data == NULL)
        status = fail(LH_INVALID, "no plugin lies in %s", folder);
    else if (status == LH_OK && cli->member == NULL)
        status = fail(LH_INVALID, "help plugin: name one of those in %s: %s", folder, names.data);
    else if (status == LH_OK)
        status = fail(LH_INVALID, "there is no plugin '%s' in %s; there are: %s", cli->member,
                      folder, names.data);
    text_free(&names);
    return status;
}

/* What `help NAME` prints of plugins. */
static lh_status_t print_member_plugin(cli_t *cli, text_t *out)
{
    search_t s = {.name = cli->member, .near = {.typed = cli->member}};
    if (cli->member == NULL) return refuse_plugin_name(cli);
    const lh_status_t status = print_plugins(cli, out, &s);
    if (status != LH_OK || s.found) return status;
    const char *best = text_nearest_name(&s.near);
    if (best == NULL) return refuse_plugin_name(cli);
    return fail(LH_INVALID, "there is no plugin '%s' in %s; did you mean '%s'?", cli->member,
                registry_folder_text(cli->plugins), best);
}

/* ---- help op [NAME] ---- */

/* Plugins that are not usable bring no ops. op_table_add refuses two ops of one name. */
static lh_status_t add_ops_of(void *ops, const plugin_t *p)
{
    return op_table_add(ops, p->ops, sizeof(lh_op_t), p->op_count, p->name);
}

/* Then the conventions that all of them follow. */
static void print_all_ops(const op_table_t *ops, text_t *out)
{
    for (uint32_t i = 0; i < op_table_count(ops); i++) {
        const op_t *op = op_table_at(ops, i);
        text_printf(out, "%-18s %s", op->row.name, op->row.help != NULL ? op->row.help : "");
        if (op->plugin != NULL) text_printf(out, " (plugin %s)", op->plugin);
        text_append(out, "\n");
    }
    text_append(out, "\n" LH_OPS_CONVENTIONS);
}

/* Offers the nearest name of those that are known. */
static lh_status_t print_one_op(const op_table_t *ops, const char *name, text_t *out)
{
    const op_t *found = op_table_find(ops, name);
    if (found != NULL) {
        print_op(&found->row, out);
        return LH_OK;
    }
    text_nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < op_table_count(ops); i++)
        text_nearest_offer(&near, op_table_at(ops, i)->row.name);
    const char *best = text_nearest_name(&near);
    return fail(LH_INVALID, "there is no op '%s'%s%s%s", name,
                best != NULL ? "; did you mean '" : "; longhaul help op lists them",
                best != NULL ? best : "", best != NULL ? "'?" : "");
}

/* Plugins are loaded, all that are installed, only where the core has no op of that name. */
static lh_status_t print_ops(cli_t *cli, text_t *out)
{
    op_table_t *ops;
    lh_status_t status = op_table_new(&ops);
    if (status != LH_OK) return status;
    if (cli->member == NULL || op_table_find(ops, cli->member) == NULL)
        status = registry_each(cli->plugins, add_ops_of, ops);
    if (status == LH_OK && cli->member == NULL) print_all_ops(ops, out);
    if (status == LH_OK && cli->member != NULL) status = print_one_op(ops, cli->member, out);
    op_table_free(ops);
    return status;
}

/* ---- help functions ---- */

/* Functions of the core or of a plugin, whose name goes before theirs; NULL: the core. */
static void print_functions(const char *plugin, const lh_function_t *rows, uint32_t count,
                            text_t *out)
{
    for (uint32_t i = 0; i < count; i++)
        text_printf(out, "  %s%s%s  %s\n    %s\n", plugin == NULL ? "" : plugin,
                    plugin == NULL ? "" : ":", rows[i].name, rows[i].signature, rows[i].help);
}

static lh_status_t add_functions_of(void *out, const plugin_t *p)
{
    print_functions(p->name, p->functions, p->function_count, out);
    return LH_OK;
}

/* The core's by what may call them, then those of every plugin that is installed. */
static lh_status_t print_all_functions(cli_t *cli, text_t *out)
{
    text_append(out,
                "Transforms of weights, in a model's rows (hf_import, hf_export); the tensor out "
                "is given by itself:\n");
    print_functions(NULL, weight_functions, weight_function_count, out);
    text_append(out, "\nLearning rates ([optimizer] learning_rate):\n");
    print_functions(NULL, rate_functions, rate_function_count, out);
    text_append(out, "\nOf plugins, anywhere their signature fits:\n");
    return registry_each(cli->plugins, add_functions_of, out);
}

/* ---- help rules, help hooks ---- */

static lh_status_t add_rules_of(void *out, const plugin_t *p)
{
    print_rules(p, out);
    return LH_OK;
}

static lh_status_t print_all_rules(cli_t *cli, text_t *out)
{
    text_append(out,
                "Update rules, as [optimizer] rule names them, and the keys of their sections; "
                "of all plugins that are installed:\n");
    return registry_each(cli->plugins, add_rules_of, out);
}

/* From the table by which calls are bound. */
static void print_hooks(text_t *out)
{
    text_append(out, "Where an INI calls a function, the type that it must give, and the variables "
                     "that it may use:\n");
    for (uint32_t i = 0; i < step_call_kind_count; i++) {
        const step_call_t *c = &step_call_kinds[i];
        text_printf(out, "\n[%s] %s  gives %s; called %s\n", c->section, c->key,
                    plugin_type_text(c->result), c->when);
        for (uint32_t k = 0; k < c->variable_count; k++)
            text_printf(out, "  %s %s\n", plugin_type_text(c->variables[k].type),
                        c->variables[k].name);
    }
    text_append(out, "\nlonghaul help functions lists what can be called there.\n");
}

/* Collected as one text first, so that a failure in the middle prints nothing. */
static int help_command(cli_t *cli)
{
    text_t out = {0};
    lh_status_t status = LH_OK;
    const bool ops = cli->name != NULL && strcmp(cli->name, "op") == 0;
    const bool plugin = cli->name != NULL && strcmp(cli->name, "plugin") == 0;
    const char *form = cli_flag(cli, "as");
    if (cli->member != NULL && !ops && !plugin)
        status = fail(LH_INVALID,
                      "help: '%s' has no members; 'op' and 'plugin' have, as in help op matmul",
                      cli->name);
    else if (form != NULL && cli->name != NULL)
        status = fail(LH_INVALID, "help --as %s is of everything: without '%s'", form, cli->name);
    else if (form != NULL)
        status = manual_append(cli, form, &out);
    else if (cli->help_of != NULL)
        print_command(cli->help_of, &out);
    else if (cli->name == NULL)
        print_overview(&out);
    else if (ops)
        status = print_ops(cli, &out);
    else if (plugin)
        status = print_member_plugin(cli, &out);
    else if (strcmp(cli->name, "functions") == 0)
        status = print_all_functions(cli, &out);
    else if (strcmp(cli->name, "rules") == 0)
        status = print_all_rules(cli, &out);
    else if (strcmp(cli->name, "hooks") == 0)
        print_hooks(&out);
    else
        status = print_named(cli, &out);
    if (status == LH_OK) status = text_status(&out);
    if (status == LH_OK && out.data != NULL) status = cli_print_shown(out.data);
    text_free(&out);
    return status;
}

const command_t command_help = {
    .name = "help",
    .summary = "commands and options; of a command, an INI section or a plugin with its NAME; op "
               "lists ops, op NAME tells of one; functions, rules, hooks list those",
    .needs = CLI_NEEDS_PLUGINS | CLI_TAKES_NAME | CLI_TAKES_MEMBER,
    .run = help_command,
    .flags = {{"as", "FORM",
               "all of it as a man page (man, man-ini) or as completion for a shell (bash, zsh)"}},
};

/* ---- longhaul plugins ---- */

/* Counts decide the exit code: a plugin that is not usable makes it a refusal. */
typedef struct plugin_listing {
    registry_t *plugins;
    uint32_t kind;
    uint32_t usable, refused;
    text_t cards; /* as the last transport told of them */
} plugin_listing_t;

/* Two transports of one library tell of the same cards: they are shown once. */
static void list_cards(plugin_listing_t *l, const plugin_t *p)
{
    text_t cards = {0};
    cli_cards(p, &cards);
    const bool told = cards.data == NULL ||
                      (l->cards.data != NULL && strcmp(l->cards.data, cards.data) == 0);
    for (const char *at = told ? "" : cards.data; *at != '\0';) {
        const int length = (int)strcspn(at, "\n");
        cli_print_line("%24s%.*s", "", length, at);
        at += length + (at[length] == '\n');
    }
    if (told) {
        text_free(&cards);
    } else {
        text_free(&l->cards);
        l->cards = cards;
    }
}

/* Two lines for a plugin that is usable, what it is and where it lies, and those of its cards; one
 * for a plugin that is not, with the reason that loading it has just given. Loading is the only way
 * to know what is in a file. */
static lh_status_t list_one(void *context, const char *name)
{
    plugin_listing_t *l = context;
    const plugin_t *p;
    const char *kind = plugin_kind_text(l->kind);
    const lh_status_t status = registry_load(l->plugins, l->kind, name, &p);
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK) {
        l->refused++;
        cli_print_line("%-10s %-12s not usable: %s", kind, name, fail_reason());
        return LH_OK;
    }
    l->usable++;
    cli_print_line("%-10s %-12s %-8s %s", kind, name, p->version, p->summary);
    cli_print_line("%24s%s", "", p->path);
    list_cards(l, p);
    return LH_OK;
}

/* By kind, and inside a kind as the registry finds them. */
static int plugins_command(cli_t *cli)
{
    plugin_listing_t l = {.plugins = cli->plugins};
    for (l.kind = LH_KIND_MODEL; l.kind <= LH_KIND_PARTS; l.kind++) {
        const lh_status_t status = registry_list(cli->plugins, l.kind, list_one, &l);
        if (status != LH_OK) {
            text_free(&l.cards);
            return status;
        }
    }
    text_free(&l.cards);
    /* An empty folder is most often the wrong one. */
    if (l.usable + l.refused == 0)
        cli_print_line("no plugin lies in %s", registry_folder_text(cli->plugins));
    return l.refused == 0 ? EXIT_DONE : EXIT_REFUSED;
}

const command_t command_plugins = {
    .name = "plugins",
    .summary =
        "what is installed, with the cards that transports tell of, and why what is not usable "
        "is not",
    .needs = CLI_NEEDS_PLUGINS,
    .run = plugins_command,
};
