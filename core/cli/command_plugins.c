/* command_plugins.c - longhaul plugins: a line for each file in the folders of plugins. */
#include <cli/cli.h>

#include <stdio.h>

typedef struct listing {
    registry_t *plugins;
    uint32_t kind;
    uint32_t usable, refused;
} listing_t;

/* Takes the line. Whatever a file's name is, a terminal obeys nothing of it. */
static lh_status_t print_shown_line(text_t *line)
{
    text_t shown = {0};
    if (!line->failed) text_append_shown(&shown, line->data, false);
    const lh_status_t status = line->failed ? LH_NO_MEMORY : text_status(&shown);
    if (status == LH_OK) printf("%s\n", shown.data);
    text_free(&shown);
    text_free(line);
    return status;
}

static lh_status_t print_refused(uint32_t kind, const char *name)
{
    text_t line = {0};
    text_printf(&line, "%-10s %-12s not usable: %s", plugin_kind_text(kind), name, fail_reason());
    return print_shown_line(&line);
}

static lh_status_t print_usable(uint32_t kind, const char *name, const plugin_t *p)
{
    text_t line = {0}, place = {0};
    text_printf(&line, "%-10s %-12s %-8s %s", plugin_kind_text(kind), name, p->version, p->summary);
    const lh_status_t status = print_shown_line(&line);
    if (status != LH_OK) return status;
    text_printf(&place, "%24s%s", "", p->path);
    return print_shown_line(&place);
}

static lh_status_t print_none(const char *folder)
{
    text_t line = {0};
    text_printf(&line, "no plugin lies in %s", folder);
    return print_shown_line(&line);
}

static lh_status_t print_one(void *context, const char *name)
{
    listing_t *l = context;
    const plugin_t *p;
    const lh_status_t status = registry_load(l->plugins, l->kind, name, &p);
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK) {
        l->refused++;
        return print_refused(l->kind, name);
    }
    l->usable++;
    return print_usable(l->kind, name, p);
}

static int list_plugins(cli_t *cli)
{
    listing_t l = {.plugins = cli->plugins};
    for (l.kind = LH_KIND_MODEL; l.kind <= LH_KIND_PARTS; l.kind++) {
        const lh_status_t status = registry_list(cli->plugins, l.kind, print_one, &l);
        if (status != LH_OK) return status;
    }
    if (l.usable + l.refused == 0) {
        const lh_status_t status = print_none(registry_folder(cli->plugins));
        if (status != LH_OK) return status;
    }
    return l.refused == 0 ? EXIT_DONE : EXIT_REFUSED;
}

const command_t command_plugins = {
    .name = "plugins",
    .summary = "what is installed, and why what is not usable is not",
    .needs = CLI_NEEDS_PLUGINS,
    .run = list_plugins,
};
