/* wrong_any.c - what any kind of plugin can get wrong; the right one is an optimizer. */
#include <fcntl.h>

#include "wrong_plugin.h"

WRONG(nothing)
{
}

WRONG(a_name_of_its_own)
{
}

WRONG(a_symbol_more)
{
}

WRONG(a_symbol_of_nobody)
{
}

WRONG(a_default_out_of_range)
{
    options[0].fallback = "1";
}

WRONG(a_key_of_the_hosts)
{
    options[0].key = "clip";
}

WRONG(a_help_with_a_stop)
{
    options[0].help = "gradients that are summed at a time.";
}

WRONG(a_choice_of_anything)
{
    options[0].type = LH_OPT_CHOICE;
    options[0].range = "one|surely/no:value";
    options[0].fallback = "one";
}

LH_FUNCTION(u64, falls, (u64, tokens))
{
    volatile uint64_t *nowhere = (uint64_t *)(uintptr_t)tokens;
    return *nowhere;
}

WRONG(a_function_that_crashes)
{
    static const lh_function_t functions[] = {LH_FUNCTION_ENTRY(falls, "crashes")};
    it.functions = functions;
    it.function_size = sizeof(functions[0]);
    it.function_count = 1;
}

static lh_status_t open_and_leave_a_file(const lh_host_t *host, const void *config,
                                         lh_optimizer_t **out)
{
    if (open("/dev/null", O_RDONLY) < 0) return LH_IO;
    return right_plugin.optimizer->open(host, config, out);
}

WRONG(a_file_left_open)
{
    optimizer.open = open_and_leave_a_file;
}

static lh_status_t open_without_looking(const lh_host_t *host, const void *config,
                                        lh_optimizer_t **out)
{
    char *memory = host->alloc(host, 64, 64);
    memory[0] = 1;
    host->release(host, memory);
    return right_plugin.optimizer->open(host, config, out);
}

WRONG(an_alloc_not_looked_at)
{
    optimizer.open = open_without_looking;
}

static lh_status_t open_unless_stopping(const lh_host_t *host, const void *config,
                                        lh_optimizer_t **out)
{
    void *memory = host->alloc(host, 64, 64);
    if (memory == NULL) return LH_NO_MEMORY;
    if (host->stopping(host)) return LH_CANCELLED;
    host->release(host, memory);
    return right_plugin.optimizer->open(host, config, out);
}

WRONG(a_leak_when_stopping)
{
    optimizer.open = open_unless_stopping;
}
