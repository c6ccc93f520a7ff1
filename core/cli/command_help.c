/* command_help.c - longhaul help [NAME]: commands, sections of the INI, plugins. */
#include <cli/commands.h>

#include <stdio.h>

#include <cli/arguments.h>
#include <config/explain.h>

static void print_command(const command_t *c, text_t *out)
{
    command_usage(c, out);
    text_printf(out, "  %s\n", c->summary);
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++)
        text_printf(out, "  --%s %s  %s\n", c->flags[i].name,
                    c->flags[i].value != NULL ? c->flags[i].value : "", c->flags[i].help);
}

static void print_section(const job_section_t *s, text_t *out)
{
    text_printf(out, "[%s]  %s\n", s->name, s->help);
    explain_table(s->rows, s->count, out);
}

static void print_overview(text_t *out)
{
    uint32_t count;
    text_append(out,
                "longhaul trains large language models, from text to a Hugging Face folder.\n\n");
    const command_t *all = commands(&count);
    for (uint32_t i = 0; i < count; i++)
        text_printf(out, "  %-9s %s\n", all[i].name, all[i].summary);
    text_append(out, "\nlonghaul help NAME tells more of a command, a section or a plugin; "
                     "longhaul --version\n\nSections of PIPELINE.ini:\n\n");
    const job_section_t *sections = job_sections(&count);
    for (uint32_t i = 0; i < count; i++) {
        print_section(&sections[i], out);
        text_append(out, "\n");
    }
}

static void print_rules(const plugin_t *p, text_t *out)
{
    for (uint32_t i = 0; i < p->rule_count; i++) {
        const lh_rule_t *rule = &p->rules[i];
        text_printf(out, "\nrule %s:%s  %s\n", p->name, rule->name, rule->help);
        if (rule->option_count > 0) text_printf(out, "keys of [rule.%s]:\n", rule->name);
        explain_table(rule->options, rule->option_count, out);
    }
}

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
    explain_table(p->options, p->option_count, out);
    for (uint32_t i = 0; i < p->function_count; i++)
        text_printf(out, "%sfunction %s:%s: %s\n  %s\n", i == 0 ? "\n" : "", p->name,
                    p->functions[i].name, p->functions[i].signature, p->functions[i].help);
    print_rules(p, out);
    for (uint32_t i = 0; i < p->op_count; i++) {
        text_printf(out, "\nop %s: %s\n", p->ops[i].name, p->ops[i].slots);
        explain_table(p->ops[i].attributes, p->ops[i].attribute_count, out);
    }
    if (p->kernel_count > 0) text_printf(out, "\n%u kernels\n", p->kernel_count);
}

typedef struct search {
    const char *name;
    bool found;
    nearest_t near;
    char best[32];
} search_t;

static lh_status_t compare_name(void *context, const char *name)
{
    search_t *s = context;
    const char *before = s->near.best;
    if (strcmp(name, s->name) == 0) s->found = true;
    nearest_offer(&s->near, name);
    if (s->near.best != before) { /* the entry's name lives only now */
        (void)snprintf(s->best, sizeof(s->best), "%s", name);
        s->near.best = s->best;
    }
    return LH_OK;
}

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

static lh_status_t print_named(cli_t *cli, text_t *out)
{
    uint32_t count;
    bool known = false;
    search_t s = {.name = cli->name, .near = {.typed = cli->name}};
    const command_t *all = commands(&count);
    for (uint32_t i = 0; i < count; i++) {
        nearest_offer(&s.near, all[i].name);
        if (strcmp(all[i].name, cli->name) != 0) continue;
        print_command(&all[i], out);
        known = true;
    }
    const job_section_t *sections = job_sections(&count);
    for (uint32_t i = 0; i < count; i++) {
        nearest_offer(&s.near, sections[i].name);
        if (strcmp(sections[i].name, cli->name) != 0) continue;
        text_append(out, known ? "\n" : "");
        print_section(&sections[i], out);
        known = true;
    }
    const lh_status_t status = print_plugins(cli, out, &s);
    if (status != LH_OK || known || s.found) return status;
    const char *best = nearest_name(&s.near);
    return fail(LH_INVALID, "'%s' is no command, section or plugin in %s%s%s%s", cli->name,
                registry_folder(cli->plugins), best != NULL ? "; did you mean '" : "",
                best != NULL ? best : "", best != NULL ? "'?" : "");
}

int command_help(cli_t *cli)
{
    text_t out = {0};
    lh_status_t status = LH_OK;
    if (cli->name == NULL)
        print_overview(&out);
    else
        status = print_named(cli, &out);
    if (status == LH_OK) status = text_status(&out);
    if (status == LH_OK && out.data != NULL) status = print_shown(out.data);
    text_free(&out);
    return status;
}
