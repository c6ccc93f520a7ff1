/* arguments.c - reads the command line by the command's own table of flags. */
#include <cli/arguments.h>

#include <base/file.h>
#include <base/memory.h>
#include <cli/launch.h>
#include <plugin/host.h>

typedef struct words {
    int argc;
    char **argv;
    int at;
} words_t;

static bool takes_job(const command_t *c)
{
    return (c->needs & (CLI_NEEDS_JOB | CLI_MAY_TAKE_JOB)) != 0;
}

static lh_status_t find_command(const char *name, const command_t **out)
{
    uint32_t count;
    const command_t *all = commands(&count);
    nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(all[i].name, name) == 0) {
            *out = &all[i];
            return LH_OK;
        }
        nearest_offer(&near, all[i].name);
    }
    const char *best = nearest_name(&near);
    if (best == NULL) return fail(LH_INVALID, "there is no command '%s'", name);
    return fail(LH_INVALID, "there is no command '%s'; did you mean '%s'?", name, best);
}

/* The value behind "--flag" or inside "--flag=value". */
static lh_status_t take_value(words_t *w, const char *flag, const char *equals, const char **out)
{
    if (equals != NULL) {
        *out = equals + 1;
        return LH_OK;
    }
    if (w->at == w->argc) return fail(LH_INVALID, "--%s wants a value", flag);
    *out = w->argv[w->at++];
    return LH_OK;
}

static lh_status_t take_own_flag(cli_t *cli, words_t *w, const char *name, const char *equals)
{
    const cli_flag_t *flags = cli->command->flags;
    nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < CLI_FLAGS && flags[i].name != NULL; i++) {
        nearest_offer(&near, flags[i].name);
        if (strcmp(flags[i].name, name) != 0) continue;
        if (cli->values[i] != NULL) return fail(LH_INVALID, "--%s is given twice", name);
        if (flags[i].value != NULL) return take_value(w, name, equals, &cli->values[i]);
        if (equals != NULL) return fail(LH_INVALID, "--%s takes no value", name);
        cli->values[i] = "";
        return LH_OK;
    }
    if (takes_job(cli->command)) nearest_offer(&near, "set");
    nearest_offer(&near, "plugins");
    const char *best = nearest_name(&near);
    return fail(LH_INVALID, "%s has no flag --%s%s%s%s", cli->command->name, name,
                best != NULL ? "; did you mean --" : "", best != NULL ? best : "",
                best != NULL ? "?" : "");
}

static lh_status_t take_flag(cli_t *cli, words_t *w, const char *word)
{
    char name[64];
    const char *equals = strchr(word, '=');
    const size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
    if (length >= sizeof(name)) return fail(LH_INVALID, "there is no flag --%s", word);
    memcpy(name, word, length);
    name[length] = '\0';

    const bool plugins = (cli->command->needs & (CLI_NEEDS_PLUGINS | CLI_NEEDS_JOB)) != 0;
    if (plugins && strcmp(name, "plugins") == 0)
        return take_value(w, name, equals, &cli->plugin_folder);
    if (takes_job(cli->command) && strcmp(name, "set") == 0)
        return take_value(w, name, equals, &cli->sets[cli->set_count++]);
    return take_own_flag(cli, w, name, equals);
}

static lh_status_t take_word(cli_t *cli, const char *word)
{
    const bool named = (cli->command->needs & CLI_TAKES_NAME) != 0 && cli->name == NULL;
    const char **place = named || !takes_job(cli->command) ? &cli->name : &cli->ini;
    const bool wanted = named || takes_job(cli->command);
    if (!wanted || *place != NULL)
        return fail(LH_INVALID, "%s: '%s' is one argument too many", cli->command->name, word);
    *place = word;
    return LH_OK;
}

lh_status_t arguments_parse(int argc, char **argv, cli_t *out)
{
    cli_t cli = {0};
    if (argc < 2) return fail(LH_INVALID, "no command");
    const char *command = argv[1];
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) command = "help";
    lh_status_t status = find_command(command, &cli.command);
    if (status != LH_OK) return status;
    cli.sets = mem_array((size_t)argc, sizeof(*cli.sets));
    if (cli.sets == NULL) return LH_NO_MEMORY;

    words_t w = {argc, argv, 2};
    bool only_words = false;
    while (status == LH_OK && w.at < argc) {
        const char *word = argv[w.at++];
        if (!only_words && strcmp(word, "--") == 0)
            only_words = true;
        else if (!only_words && strncmp(word, "--", 2) == 0)
            status = take_flag(&cli, &w, word + 2);
        else
            status = take_word(&cli, word);
    }
    if (status == LH_OK && (cli.command->needs & CLI_NEEDS_JOB) != 0 && cli.ini == NULL)
        status = fail(LH_INVALID, "%s: name a PIPELINE.ini", cli.command->name);
    if (status != LH_OK) {
        arguments_free(&cli);
        return status;
    }
    *out = cli;
    return LH_OK;
}

void arguments_free(cli_t *cli)
{
    mem_free(cli->sets);
    cli->sets = NULL;
}

static lh_status_t open_plugins(cli_t *cli)
{
    const char *asked = cli->plugin_folder;
    if (asked == NULL && cli->job != NULL) asked = cli->job->device.plugin_folder;
    char *folder = asked == NULL ? NULL : path_absolute(asked);
    if (asked != NULL && folder == NULL) return LH_NO_MEMORY;

    lh_status_t status = host_new(&cli->host);
    if (status == LH_OK) status = registry_new(folder, cli->host, &cli->plugins);
    if (status == LH_OK) registry_use_job(cli->plugins, cli->job);
    mem_free(folder);
    return status;
}

lh_status_t cli_open(cli_t *cli)
{
    const uint32_t needs = cli->command->needs;
    lh_status_t status = LH_OK;
    if (cli->ini != NULL) status = job_load(cli->ini, cli->sets, cli->set_count, &cli->job);
    if (status == LH_OK && (needs & (CLI_NEEDS_PLUGINS | CLI_NEEDS_JOB)) != 0)
        status = open_plugins(cli);
    if (status == LH_OK) status = launch_open(cli);
    return status;
}

void cli_close(cli_t *cli)
{
    launch_close(cli);
    registry_free(cli->plugins);
    host_free(cli->host);
    job_free(cli->job);
    cli->plugins = NULL;
    cli->host = NULL;
    cli->job = NULL;
}

const char *cli_flag(const cli_t *cli, const char *name)
{
    for (uint32_t i = 0; i < CLI_FLAGS && cli->command->flags[i].name != NULL; i++)
        if (strcmp(cli->command->flags[i].name, name) == 0) return cli->values[i];
    return NULL;
}

void command_usage(const command_t *c, text_t *out)
{
    text_printf(out, "longhaul %s", c->name);
    const bool may = (c->needs & CLI_MAY_TAKE_JOB) != 0;
    if (takes_job(c) && !may) text_append(out, " PIPELINE.ini [--set section.key=value ...]");
    if ((c->needs & CLI_TAKES_NAME) != 0) text_append(out, may ? " NAME" : " [NAME]");
    if (may) text_append(out, " [PIPELINE.ini [--set section.key=value ...]]");
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++)
        text_printf(out, " [--%s%s%s]", c->flags[i].name, c->flags[i].value != NULL ? " " : "",
                    c->flags[i].value != NULL ? c->flags[i].value : "");
    if ((c->needs & (CLI_NEEDS_PLUGINS | CLI_NEEDS_JOB)) != 0) text_append(out, " [--plugins DIR]");
    text_append(out, "\n");
}
