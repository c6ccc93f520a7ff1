/* commands.c - the table of commands: a row each, in the order that help shows. */
#include <cli/commands.h>

#define JOB (CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS)

static const command_t table[] = {
    {.name = "check",
     .summary = "validate a pipeline without touching a device; print every effective value",
     .needs = JOB,
     .run = command_check  },
    {.name = "plugins",
     .summary = "what is installed, and why what is not usable is not",
     .needs = CLI_NEEDS_PLUGINS,
     .run = command_plugins},
    {.name = "help",
     .summary = "commands and options; of a command, an INI section or a plugin with its NAME",
     .needs = CLI_NEEDS_PLUGINS | CLI_TAKES_NAME,
     .run = command_help   },
};

const command_t *commands(uint32_t *count)
{
    *count = sizeof(table) / sizeof(table[0]);
    return table;
}
