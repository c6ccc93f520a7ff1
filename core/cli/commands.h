/* cli/commands.h - the commands of `longhaul`. Each is one function in a file of its own and one
 * row in commands.c; main.c parses the arguments, calls it, prints why it failed and picks the exit
 * code. A command prints results to stdout, and nothing to stderr but through base/log.h. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <comm/control.h>
#include <config/job.h>
#include <plugin/loader.h>

typedef struct cli cli_t;
typedef struct launch launch_t;

/* A flag of one command: "--name VALUE", or "--name" alone when value is NULL. */
typedef struct cli_flag {
    const char *name;  /* without the dashes */
    const char *value; /* "N", "FILE"; NULL: a switch */
    const char *help;
} cli_flag_t;

enum {
    CLI_NEEDS_JOB = 1u << 0, /* first argument is PIPELINE.ini; --set works; cli->job is loaded */
    CLI_NEEDS_PLUGINS = 1u << 1, /* cli->plugins is there; --plugins works                      */
    CLI_TAKES_NAME = 1u << 2,    /* an optional argument, cli->name                             */
    CLI_MAY_TAKE_JOB = 1u << 3,  /* an optional PIPELINE.ini, behind the name                   */
    CLI_HAS_RANKS = 1u << 4,     /* calls launch_ranks: may be one of several                   */
};

enum { CLI_FLAGS = 12 };

typedef struct command {
    const char *name;
    const char *summary;
    uint32_t needs;         /* CLI_* */
    int (*run)(cli_t *cli); /* exit code, or a negative lh_status_t whose sentence is printed */
    cli_flag_t flags[CLI_FLAGS]; /* ends with a NULL name */
} command_t;

struct cli {
    const command_t *command;
    const char *name;  /* optional argument, or NULL              */
    const char *ini;   /* PIPELINE.ini                            */
    const char **sets; /* --set section.key=value                 */
    uint32_t set_count;
    const char *plugin_folder;     /* --plugins DIR, or NULL                  */
    bool confines;                 /* confined.h: files of strangers are read in a child */
    const char *values[CLI_FLAGS]; /* of the command's flags; "" for a switch; NULL: not given */
    job_t *job;
    host_t *host;
    registry_t *plugins;
    launch_t *launch;   /* launch.h: this process's place among the job's ranks */
    control_t *control; /* inside launch_ranks(): the control plane and the world of a job of */
    world_t *world;     /* several ranks; else NULL                                          */
};

const command_t *commands(uint32_t *count);

/* The value of a flag of this command; "" for a switch; NULL when it was not given. */
const char *cli_flag(const cli_t *cli, const char *name);

/* Prints what holds others' texts, such as a plugin's help: what a terminal would obey as \xNN. */
lh_status_t print_shown(const char *text) LH_MUST_CHECK;

/* A line of results that holds others' texts, such as a path: likewise, and it stays one line. What
 * cannot be shown for want of memory is left out. */
void print_line(const char *fmt, ...) LH_PRINTF(1, 2);

int command_run(cli_t *cli);
int command_prepare(cli_t *cli);
int command_import(cli_t *cli);
int command_train(cli_t *cli);
int command_eval(cli_t *cli);
int command_export(cli_t *cli);
int command_generate(cli_t *cli);
int command_plan(cli_t *cli);
int command_bench(cli_t *cli);
/* Runs one stage (STAGE_*) and remembers with what inputs it ended well. */
int command_stage(cli_t *cli, uint32_t stage);

int command_check(cli_t *cli);
/* All that check knows, without a word when it is well. */
lh_status_t cli_check(cli_t *cli) LH_MUST_CHECK;
int command_help(cli_t *cli);
int command_plugins(cli_t *cli);
int command_verify(cli_t *cli);

#endif
