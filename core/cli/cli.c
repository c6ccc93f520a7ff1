/* cli.c - the command line: which commands there are, what stands behind one's name, and what it is
 * given to work with.
 *
 * A command is added by its own file and by one line of the list below; its row brings the flags by
 * which arguments are read and from which help is made.
 *
 * How a command line is read: `longhaul COMMAND`, then words and flags in any order. Words fill
 * NAME, MEMBER and PIPELINE.ini, as far as the command takes them; a flag is --name, --name=value
 * or --name value; --set and --plugins belong to every command that can use them. */
#include <cli/cli.h>

#include <stdarg.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <checkpoint/writer.h>
#include <cli/model_source.h>
#include <config/job_load.h>
#include <plugin/host.h>
#include <session/session.h>

/* In the order that help shows. */
/* clang-format off */
#define COMMANDS(X) \
    X(new) X(run) X(prepare) X(import) X(train) X(eval) X(export) X(generate) \
    X(status) X(stop) X(save) X(plan) X(bench) X(check) X(verify) X(plugins) X(help)
/* clang-format on */

#define DECLARE(name) extern const command_t command_##name;
COMMANDS(DECLARE)

#define ADDRESS(name) &command_##name,
/* The two macros above make a declaration and an address of each name in the list. */
static const command_t *const table[] = {COMMANDS(ADDRESS)};

/* A constant of the program, free for any thread. */
const command_t *const *cli_commands(uint32_t *count)
{
    *count = sizeof(table) / sizeof(table[0]);
    return table;
}

/* A walk over argv. */
typedef struct words {
    int argc;
    char **argv;
    int at;
} words_t;

/* Whether --set means anything to it. */
static bool takes_job(const command_t *c)
{
    return (c->needs & (CLI_NEEDS_JOB | CLI_MAY_TAKE_JOB)) != 0;
}

/* Whether --plugins does. */
static bool takes_plugins(const command_t *c)
{
    return (c->needs & (CLI_NEEDS_PLUGINS | CLI_NEEDS_JOB)) != 0;
}

/* With the nearest name where there is none. */
static lh_status_t find_command(const char *name, const command_t **out)
{
    uint32_t count;
    const command_t *const *all = cli_commands(&count);
    text_nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(all[i]->name, name) == 0) {
            *out = all[i];
            return LH_OK;
        }
        text_nearest_offer(&near, all[i]->name);
    }
    const char *best = text_nearest_name(&near);
    if (best == NULL) return fail(LH_INVALID, "there is no command '%s'", name);
    return fail(LH_INVALID, "there is no command '%s'; did you mean '%s'?", name, best);
}

/* The value behind "--flag" or inside "--flag=value". */
static lh_status_t take_value(words_t *w, const char *flag, const char *equals, const char **out)
{
    lh_assert(w->at <= w->argc);
    if (equals != NULL) {
        *out = equals + 1;
        return LH_OK;
    }
    if (w->at == w->argc) return fail(LH_INVALID, "--%s wants a value", flag);
    *out = w->argv[w->at++];
    return LH_OK;
}

/* A value that may be left out is the next word where that is a whole number: no INI and no folder
 * is called so by anybody who wants to name it without a path. */
static const char *take_value_if_there(words_t *w, const char *equals)
{
    if (equals != NULL) return equals + 1;
    if (w->at == w->argc || w->argv[w->at][0] == '\0') return "";
    const char *next = w->argv[w->at];
    if (next[strspn(next, "0123456789")] != '\0') return "";
    w->at++;
    return next;
}

/* A flag of the command's row: its value stands in the slot of that row's index. Refused are a flag
 * that comes twice, a value that is missing, and one too many; for an unknown flag the nearest name
 * is offered. */
static lh_status_t take_own_flag(cli_t *cli, words_t *w, const char *name, const char *equals)
{
    const cli_flag_t *flags = cli->command->flags;
    text_nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < CLI_FLAGS && flags[i].name != NULL; i++) {
        text_nearest_offer(&near, flags[i].name);
        if (strcmp(flags[i].name, name) != 0) continue;
        if (cli->values[i] != NULL) return fail(LH_INVALID, "--%s is given twice", name);
        if (cli_flag_may_lack_value(&flags[i])) {
            cli->values[i] = take_value_if_there(w, equals);
            return LH_OK;
        }
        if (flags[i].value != NULL) return take_value(w, name, equals, &cli->values[i]);
        if (equals != NULL) return fail(LH_INVALID, "--%s takes no value", name);
        cli->values[i] = "";
        return LH_OK;
    }
    if (takes_job(cli->command)) text_nearest_offer(&near, "set");
    if (takes_plugins(cli->command)) text_nearest_offer(&near, "plugins");
    const char *best = text_nearest_name(&near);
    return fail(LH_INVALID, "%s has no flag --%s%s%s%s", cli->command->name, name,
                best != NULL ? "; did you mean --" : "", best != NULL ? best : "",
                best != NULL ? "?" : "");
}

/* Two flags belong to every command that can use them: --plugins and --set. */
static lh_status_t take_flag(cli_t *cli, words_t *w, const char *word)
{
    char name[64];
    const char *equals = strchr(word, '=');
    const size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
    if (length >= sizeof(name)) return fail(LH_INVALID, "there is no flag --%s", word);
    memcpy(name, word, length);
    name[length] = '\0';

    if (takes_plugins(cli->command) && strcmp(name, "plugins") == 0)
        return take_value(w, name, equals, &cli->plugin_folders[cli->plugin_folder_count++]);
    if (takes_job(cli->command) && strcmp(name, "set") == 0)
        return take_value(w, name, equals, &cli->sets[cli->set_count++]);
    return take_own_flag(cli, w, name, equals);
}

/* Words without dashes fill the places that the command has, in order: name, member, INI. A word
 * that finds no place is refused by itself, as a file that is silently ignored is worse. */
static lh_status_t take_word(cli_t *cli, const char *word)
{
    const uint32_t needs = cli->command->needs;
    const char **place = NULL;
    if ((needs & CLI_TAKES_NAME) != 0 && cli->name == NULL)
        place = &cli->name;
    else if ((needs & CLI_TAKES_MEMBER) != 0 && cli->member == NULL)
        place = &cli->member;
    else if (takes_job(cli->command) && cli->ini == NULL)
        place = &cli->ini;
    if (place == NULL)
        return fail(LH_INVALID, "%s: '%s' is one argument too many", cli->command->name, word);
    *place = word;
    return LH_OK;
}

/* `longhaul COMMAND ... --help` is `longhaul help COMMAND`, whatever stands beside it: of the command
 * alone, and not of a section or plugin that has its name. */
static void ask_for_help(cli_t *cli)
{
    const command_t *of = cli->command;
    memset(cli->values, 0, sizeof(cli->values));
    if (find_command("help", &cli->command) != LH_OK) return;
    cli->help_of = of;
    cli->name = cli->member = cli->ini = NULL;
    cli->set_count = 0;
}

/* "--" ends the flags, so that a file may be called --set. sets and plugin_folders have room
 * for a value for every word. */
lh_status_t cli_parse(int argc, char **argv, cli_t *out)
{
    cli_t cli = {0};
    if (argc < 2) return fail(LH_INVALID, "no command");
    const char *command = argv[1];
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) command = "help";
    lh_status_t status = find_command(command, &cli.command);
    if (status != LH_OK) return status;
    cli.sets = mem_array((size_t)argc, sizeof(*cli.sets));
    cli.plugin_folders = mem_array((size_t)argc, sizeof(*cli.plugin_folders));
    if (cli.sets == NULL || cli.plugin_folders == NULL) {
        cli_free(&cli);
        return LH_NO_MEMORY;
    }

    words_t w = {argc, argv, 2};
    /* Behind "--". */
    bool only_words = false, asks = false;
    while (status == LH_OK && w.at < argc && !asks) {
        const char *word = argv[w.at++];
        asks = !only_words && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0);
        if (asks)
            ask_for_help(&cli);
        else if (!only_words && strcmp(word, "--") == 0)
            only_words = true;
        else if (!only_words && strncmp(word, "--", 2) == 0)
            status = take_flag(&cli, &w, word + 2);
        else
            status = take_word(&cli, word);
    }
    if (status == LH_OK && (cli.command->needs & CLI_NEEDS_JOB) != 0 && cli.ini == NULL)
        status = fail(LH_INVALID, "%s: name a PIPELINE.ini", cli.command->name);
    if (status == LH_OK && cli.command->nameless != NULL && cli.name == NULL)
        status = fail(LH_INVALID, "%s %s", cli.command->name, cli.command->nameless);
    if (status == LH_OK && cli.command->parse != NULL) status = cli.command->parse(&cli);
    if (status != LH_OK) {
        cli_free(&cli);
        return status;
    }
    *out = cli;
    return LH_OK;
}

void cli_free(cli_t *cli)
{
    mem_free(cli->sets);
    mem_free(cli->plugin_folders);
    cli->sets = NULL;
    cli->plugin_folders = NULL;
}

/* The folders of plugins: of the command line, else of the INI, else beside the program. */
static lh_status_t open_plugins(cli_t *cli)
{
    const char *asked = cli->plugin_folder_count > 0 ? cli->plugin_folders[0] : NULL;
    if (asked == NULL && cli->job != NULL) asked = cli->job->device.plugin_folder;
    char *folder = asked == NULL ? NULL : path_absolute(asked);
    if (asked != NULL && folder == NULL) return LH_NO_MEMORY;

    lh_status_t status = host_new(&cli->host);
    if (status == LH_OK) status = registry_new(folder, cli->host, &cli->plugins);
    for (uint32_t i = 1; i < cli->plugin_folder_count && status == LH_OK; i++) {
        char *more = path_absolute(cli->plugin_folders[i]);
        status = more == NULL ? LH_NO_MEMORY : registry_add_folder(cli->plugins, more);
        mem_free(more);
    }
    if (status == LH_OK) registry_use_job(cli->plugins, cli->job);
    mem_free(folder);
    return status;
}

/* A walk over a dozen rows; it is asked a few times a command. */
const char *cli_flag(const cli_t *cli, const char *name)
{
    lh_assert(cli->command != NULL);
    for (uint32_t i = 0; i < CLI_FLAGS && cli->command->flags[i].name != NULL; i++)
        if (strcmp(cli->command->flags[i].name, name) == 0) return cli->values[i];
    return NULL;
}

/* A rank loads all plugins that the job names before it meets the others, which compares them.
 * launch.h's callback, in the process of each rank. */
static lh_status_t check_rank(void *context)
{
    cli_t *cli = context;
    return cli->command->check(cli);
}

/* Likewise, of commands that train. */
static lh_status_t try_device(void *context)
{
    const cli_t *cli = context;
    return session_try_device(cli->job, cli->plugins);
}

/* Also for commands without ranks: it then says that this process is alone. */
static lh_status_t open_launch(cli_t *cli)
{
    const uint32_t needs = cli->command->needs;
    const bool ranks = (needs & CLI_HAS_RANKS) != 0 &&
                       ((needs & CLI_RANKS_CONNECT) == 0 || cli_flag(cli, "connect") != NULL);
    const launch_how_t how = {.job = cli->job,
                              .ranks = ranks,
                              .votes = cli->command->leads != NULL,
                              .resume = cli_flag(cli, "resume") != NULL,
                              .machine = ranks ? cli_flag(cli, "host") : NULL,
                              .host = cli->host,
                              .plugins = cli->plugins,
                              .check = check_rank,
                              .ready = cli->command->leads != NULL ? try_device : NULL,
                              .leads = cli->command->leads,
                              .context = cli};
    return launch_open(&how, &cli->launch);
}

/* From here on; what the INI itself is refused for is told in any case. */
static lh_status_t take_log_level(const job_t *job)
{
    job_watch_t watch;
    const lh_status_t status = job_watch_parse(job, &watch);
    if (status != LH_OK) return status;
    log_threshold((int32_t)watch.log);
    job_watch_free(&watch);
    return LH_OK;
}

static lh_status_t cli_load_job(cli_t *cli)
{
    const char *alone = cli->command->alone;
    uint32_t stage = 0;
    if (alone == NULL || cli_flag(cli, alone) == NULL)
        return job_load(cli->ini, cli->sets, cli->set_count, &cli->job);
    while (strcmp(job_stage_names[stage], cli->command->name) != 0) {
        stage++;
        lh_assert(stage < JOB_STAGES);
    }
    return job_load_for(cli->ini, cli->sets, cli->set_count, stage, &cli->job);
}

/* The INI comes first, as it may name the folder of plugins. */
lh_status_t cli_open(cli_t *cli)
{
    const uint32_t needs = cli->command->needs;
    lh_status_t status = LH_OK;
    lh_assert((needs & CLI_HAS_RANKS) == 0 || cli->command->check != NULL);
    if (cli->ini != NULL) status = cli_load_job(cli);
    if (status == LH_OK && cli->job != NULL) status = take_log_level(cli->job);
    if (status == LH_OK && (needs & (CLI_NEEDS_PLUGINS | CLI_NEEDS_JOB)) != 0)
        status = open_plugins(cli);
    if (status == LH_OK && cli->job != NULL && (needs & CLI_NEEDS_MODEL) != 0)
        status = model_source_choose(cli->job, cli->plugins);
    if (status == LH_OK) status = open_launch(cli);
    /* From here on the job is that of the machines that take part. */
    if (status == LH_OK && launch_layout(cli->launch) != NULL)
        status = members_narrow(cli->job, launch_layout(cli->launch));
    if (status == LH_OK && cli->job != NULL)
        status = job_take_site(cli->job, launch_site(cli->launch));
    return status;
}

/* The other way round. The pipeline's folder is given free after the launcher has seen the last
 * rank end. */
void cli_close(cli_t *cli)
{
    request_end(cli->requests);
    cli->requests = NULL;
    writer_close(cli->writer); /* nothing was trained */
    cli->writer = NULL;
    launch_close(cli->launch);
    registry_free(cli->plugins);
    host_free(cli->host);
    if (cli->holds_folder) folder_lock_undo(&cli->folder_lock, cli->job->pipeline.folder);
    cli->holds_folder = false;
    job_free(cli->job);
    cli->launch = NULL;
    cli->plugins = NULL;
    cli->host = NULL;
    cli->job = NULL;
}

/* Takes the word, which is NULL without memory. */
static lh_status_t words_add(char **words, uint32_t *count, char *word)
{
    lh_assert(words[*count] == NULL);
    words[*count] = word;
    *count += word != NULL;
    return word == NULL ? LH_NO_MEMORY : LH_OK;
}

/* As one word, --name=value, so that a value which begins with dashes is read as one. */
static lh_status_t words_add_flag(const cli_t *cli, const cli_flag_t *flag, char **words,
                                  uint32_t *count)
{
    text_t word = {0};
    const char *value = cli_flag(cli, flag->name);
    if (value == NULL) return LH_OK;
    const bool bare = flag->value == NULL || (cli_flag_may_lack_value(flag) && value[0] == '\0');
    text_printf(&word, "--%s%s%s", flag->name, bare ? "" : "=", value);
    return word.failed ? LH_NO_MEMORY : words_add(words, count, word.data);
}

/* Ended by NULL, as execv takes them. */
void cli_words_free(char **words)
{
    for (uint32_t i = 0; words[i] != NULL; i++)
        mem_free(words[i]);
    mem_free(words);
}

/* OTHERS is for program, command, INI and the NULL at the end. */
lh_status_t cli_words(const cli_t *cli, const command_t *command, char ***out)
{
    enum { OTHERS = 8 };
    uint32_t count = 0;
    char **words = mem_array(OTHERS + CLI_FLAGS + 2u * (cli->set_count + cli->plugin_folder_count),
                             sizeof(*words));
    if (words == NULL) return LH_NO_MEMORY;
    lh_status_t status = words_add(words, &count, mem_text("longhaul"));
    if (status == LH_OK) status = words_add(words, &count, mem_text(command->name));
    for (uint32_t i = 0; i < cli->set_count && status == LH_OK; i++) {
        status = words_add(words, &count, mem_text("--set"));
        if (status == LH_OK) status = words_add(words, &count, mem_text(cli->sets[i]));
    }
    for (uint32_t i = 0; i < cli->plugin_folder_count && status == LH_OK; i++) {
        status = words_add(words, &count, mem_text("--plugins"));
        if (status == LH_OK) status = words_add(words, &count, mem_text(cli->plugin_folders[i]));
    }
    for (uint32_t i = 0; i < CLI_FLAGS && command->flags[i].name != NULL && status == LH_OK; i++)
        status = words_add_flag(cli, &command->flags[i], words, &count);
    if (status == LH_OK) status = words_add(words, &count, mem_text("--"));
    if (status == LH_OK && cli->name != NULL)
        status = words_add(words, &count, mem_text(cli->name));
    if (status == LH_OK && cli->ini != NULL) status = words_add(words, &count, mem_text(cli->ini));
    if (status == LH_OK)
        *out = words;
    else
        cli_words_free(words);
    return status;
}

/* Made of the same row by which arguments are read, so it can't be out of date. */
void cli_usage(const command_t *c, text_t *out)
{
    text_printf(out, "longhaul %s", c->name);
    const bool may = (c->needs & CLI_MAY_TAKE_JOB) != 0;
    if (takes_job(c) && !may) text_append(out, " PIPELINE.ini [--set section.key=value ...]");
    const bool member = (c->needs & CLI_TAKES_MEMBER) != 0;
    if ((c->needs & CLI_TAKES_NAME) != 0)
        text_append(out, c->nameless != NULL ? " NAME" : member ? " [NAME [MEMBER]]" : " [NAME]");
    if (may) text_append(out, " [PIPELINE.ini [--set section.key=value ...]]");
    for (uint32_t i = 0; i < CLI_FLAGS && c->flags[i].name != NULL; i++)
        text_printf(out, " [--%s%s%s]", c->flags[i].name, c->flags[i].value != NULL ? " " : "",
                    c->flags[i].value != NULL ? c->flags[i].value : "");
    if (takes_plugins(c)) text_append(out, " [--plugins DIR ...]");
    text_append(out, "\n");
}

/* Nothing at all is printed where memory is lacking: half of a text may mean something else. */
lh_status_t cli_print_shown(const char *text)
{
    text_t shown = {0};
    text_append_shown(&shown, text, true);
    const lh_status_t status = text_status(&shown);
    if (status == LH_OK && shown.data != NULL) (void)fputs(shown.data, stdout);
    text_free(&shown);
    return status;
}

lh_status_t cli_print_text(text_t *text)
{
    const lh_status_t status = text_status(text);
    if (status == LH_OK && text->data != NULL) (void)puts(text->data);
    text_free(text);
    return status;
}

static void add_card_line(void *context, const char *line)
{
    text_printf(context, "%s\n", line);
}

void cli_cards(const plugin_t *transport, text_t *out)
{
    const lh_transport_api_t *api = transport->transport;
    if (api == NULL || api->cards == NULL) return;
    if (api->cards(transport->host, add_card_line, out) == LH_OK) return;
    text_printf(out, "%s\n", fail_reason());
    fail_clear();
}

void cli_print_line(const char *fmt, ...)
{
    text_t line = {0}, shown = {0};
    va_list args;
    va_start(args, fmt);
    text_vprintf(&line, fmt, args);
    va_end(args);
    if (!line.failed) text_append_shown(&shown, line.data, false);
    text_append(&shown, "\n");
    if (!line.failed && !shown.failed) (void)fputs(shown.data, stdout);
    text_free(&shown);
    text_free(&line);
}
