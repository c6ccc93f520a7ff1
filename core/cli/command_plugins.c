/* command_plugins.c - longhaul plugins: a line for each file in the folders of plugins. */
#include <cli/commands.h>

#include <stdio.h>

typedef struct listing {
    registry_t *plugins;
    uint32_t kind;
    uint32_t usable, refused;
} listing_t;

static lh_status_t print_refused(uint32_t kind, const char *name)
{
    text_t line = {0};
    text_printf(&line, "%-10s %-12s not usable: ", plugin_kind_text(kind), name);
    text_append_shown(&line, fail_reason(), false);
    const lh_status_t status = text_status(&line);
    if (status == LH_OK) printf("%s\n", line.data);
    text_free(&line);
    return status;
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
    printf("%-10s %-12s %-8s %s\n%24s%s\n", plugin_kind_text(l->kind), name, p->version, p->summary,
           "", p->path);
    return LH_OK;
}

int command_plugins(cli_t *cli)
{
    listing_t l = {.plugins = cli->plugins};
    for (l.kind = LH_KIND_MODEL; l.kind <= LH_KIND_PARTS; l.kind++) {
        const lh_status_t status = registry_list(cli->plugins, l.kind, print_one, &l);
        if (status != LH_OK) return status;
    }
    if (l.usable + l.refused == 0) printf("no plugin lies in %s\n", registry_folder(cli->plugins));
    return l.refused == 0 ? EXIT_DONE : EXIT_REFUSED;
}
