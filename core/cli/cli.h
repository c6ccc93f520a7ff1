/* cli/cli.h - the command line of `longhaul`. A command is a function and its row; a file has one,
 * or two that are counterparts, and cli.c lists them. main.c parses the arguments, calls the
 * function, prints why it failed and picks the exit code. A command prints results to stdout, and
 * nothing to stderr but through base/log.h.
 *
 * A command returns an exit code (base/status.h) or a negative lh_status_t; only main.c turns the
 * latter into a sentence and a code. Commands of stages have two functions: `run`, which for all of
 * them is command_run_stage, and `stage`, which does the work in one process or in each rank. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <checkpoint/folder_lock.h>
#include <launch/launch.h>
#include <launch/request.h>

typedef struct cli cli_t;

/* A flag of one command: "--name VALUE", or "--name" alone when value is NULL. Rows end with one
 * whose name is NULL. Values are texts: a command parses them itself, and says which flag was
 * wrong. A value in brackets may be left out: "--name=VALUE", "--name" before a word that is a whole
 * number, or "--name" alone. */
typedef struct cli_flag {
    const char *name;  /* without the dashes */
    const char *value; /* "N", "FILE", "[STEP]"; NULL: a switch */
    const char *help;
} cli_flag_t;

/* What main.c does for a command before it runs: bits of command_t.needs. */
enum {
    CLI_NEEDS_JOB = 1u << 0, /* first argument is PIPELINE.ini; --set works; cli->job is loaded */
    CLI_NEEDS_PLUGINS = 1u << 1, /* cli->plugins is there; --plugins works                      */
    CLI_TAKES_NAME = 1u << 2,    /* an optional argument, cli->name                             */
    CLI_MAY_TAKE_JOB = 1u << 3,  /* an optional PIPELINE.ini, behind the name                   */
    CLI_HAS_RANKS = 1u << 4,     /* may be one of several ranks                   */
    CLI_TAKES_MEMBER = 1u << 5,  /* an optional argument behind the name, cli->member           */
    CLI_RANKS_CONNECT = 1u << 7, /* with CLI_HAS_RANKS: only where --connect is given           */
    CLI_NEEDS_MODEL = 1u << 6,   /* where there is a job, its model plugin is named: from_import is
                                    resolved                                                    */
};

/* Most flags of a command, with the row that ends them. */
enum { CLI_FLAGS = 12 };

/* Flags that several commands have. */
#define CLI_FLAG_RESUME                                                              \
    {                                                                                \
        "resume", "[STEP]",                                                          \
            "go on from the newest checkpoint, if there is one, or from that step's" \
    }
#define CLI_FLAG_HOST                                                                        \
    {                                                                                        \
        "host", "NAME", "which of [site.*] hosts this machine is; its own name if not given" \
    }
#define CLI_FLAG_JSON                            \
    {                                            \
        "json", NULL, "print the result as JSON" \
    }

/* One constant per command, in the file of that command. cli.c collects them by name. */
typedef struct command {
    const char *name;
    const char *summary;
    uint32_t needs;         /* CLI_* */
    int (*run)(cli_t *cli); /* exit code, or a negative lh_status_t whose sentence is printed */
    /* NULL, or what the stage of that name does; run is command_run_stage then. */
    int (*stage)(cli_t *cli);
    /* Of a command that may be one of several ranks: what each checks before it meets the others.
     */
    lh_status_t (*check)(cli_t *cli);
    /* Of a command that trains: launch_how_t.leads, with the cli_t as context. */
    void (*leads)(void *context, bool here);
    cli_flag_t flags[CLI_FLAGS]; /* ends with a NULL name */
    /* With CLI_TAKES_NAME: NULL, or what is said behind the command's name where no NAME is given, as
     * it can do nothing without. */
    const char *nameless;
    /* NULL, or refuses words and flags that do not go together: a wrong command line. Called once NAME
     * and INI are there, before anything is read. */
    lh_status_t (*parse)(const cli_t *cli);
    /* NULL, or the flag with which the INI is asked for no more than what the stage of this
     * command's name needs, though it may name others. */
    const char *alone;
} command_t;

/* A command line that was parsed, and what it was given to work with. One per process; main.c owns
 * it, and cli_close frees what cli_open made. */
struct cli {
    const command_t *command;
    /* Words of the command line, argv's own strings. */
    const command_t *help_of; /* COMMAND --help asks for this one's; NULL */
    const char *name;         /* optional argument, or NULL              */
    const char *member;       /* of what is named: `help op matmul`; or NULL */
    const char *ini;          /* PIPELINE.ini                            */
    const char **sets;        /* --set section.key=value                 */
    uint32_t set_count;
    const char **plugin_folders; /* --plugins DIR, in the order given         */
    uint32_t plugin_folder_count;
    bool confines;                 /* files of strangers are read in a child: base/child.h */
    const char *values[CLI_FLAGS]; /* of the command's flags; "" for a switch; NULL: not given */
    /* NULL where the command takes no INI; the three below are NULL where it needs no plugins. */
    job_t *job;
    host_t *host;
    registry_t *plugins;
    /* There once the command runs; its functions say what is asked of it (launch/launch.h). */
    launch_t *launch;      /* this process's place among the job's ranks */
    struct writer *writer; /* of a process that will train: forked first of all; else NULL */
    /* the pipeline's folder is this process's, by folder_lock, until cli_close */
    bool holds_folder;
    bool follows; /* another launcher of the job has it */
    folder_lock_t folder_lock;
    request_server_t *requests; /* NULL: this process takes none */
};

/* Whether its value may be left out. */
static inline bool cli_flag_may_lack_value(const cli_flag_t *flag)
{
    return flag->value != NULL && flag->value[0] == '[';
}

/* The rows of all commands, in the order that help shows. */
const command_t *const *cli_commands(uint32_t *count);

/* The value of a flag of this command; "" for a switch; NULL when it was not given. name is without
 * dashes and must be one of the running command's; another gives NULL. */
const char *cli_flag(const cli_t *cli, const char *name);

/* Prints what holds others' texts, such as a plugin's help: what a terminal would obey as \xNN. */
lh_status_t cli_print_shown(const char *text) LH_MUST_CHECK;

/* Prints a text that this program wrote, such as JSON, as lines of its own; frees it. */
lh_status_t cli_print_text(text_t *text) LH_MUST_CHECK;
/* What a transport tells of this machine's cards, a line each, or the sentence why there are none;
 * nothing for a plugin that does not tell. */
void cli_cards(const plugin_t *transport, text_t *out);

/* A line of results that holds others' texts, such as a path: likewise, and it stays one line. What
 * cannot be shown for want of memory is left out. */
void cli_print_line(const char *fmt, ...) LH_PRINTF(1, 2);

/* Fills command, name, ini, sets, plugin_folders and values; argv[0] is the program. Strings are
 * argv's; free with cli_free. A failure here is a question of usage. */
lh_status_t cli_parse(int argc, char **argv, cli_t *out) LH_MUST_CHECK;
void cli_free(cli_t *cli);

/* What the command needs: job, host, plugins, its place among the job's ranks. A failure leaves
 * what was opened for cli_close. Loads no plugin yet: the registry looks for them when they are
 * asked for. */
lh_status_t cli_open(cli_t *cli) LH_MUST_CHECK;
void cli_close(cli_t *cli);

/* The command line by which a rank of this job is started to run `command`, ended by NULL: the same
 * INI and settings, and those of this command's flags that `command` has. Free with cli_words_free.
 * For a launcher, which starts this program once more for each rank. */
lh_status_t cli_words(const cli_t *cli, const command_t *command, char ***out) LH_MUST_CHECK;
void cli_words_free(char **words);

/* "longhaul train PIPELINE.ini [--resume] ..." */
void cli_usage(const command_t *command, text_t *out);

#endif
