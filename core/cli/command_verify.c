/* command_verify.c - longhaul verify DIR: reads a checkpoint, or every one of a folder, back from
 * disk and checks every byte. */
#include <cli/commands.h>

#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>

static lh_status_t verify_one(const char *path)
{
    const lh_status_t status = checkpoint_verify(path);
    if (status == LH_OK)
        (void)printf("%s: whole\n", path);
    else
        (void)printf("%s: damaged: %s\n", path, fail_reason());
    return status;
}

static lh_status_t verify_folder(const char *folder, const checkpoint_steps_t *steps)
{
    size_t damaged = 0;
    for (size_t i = 0; i < steps->count; i++) {
        char name[CHECKPOINT_NAME];
        checkpoint_name(steps->steps[i], name);
        char *path = path_join(folder, name);
        if (path == NULL) return LH_NO_MEMORY;
        if (verify_one(path) != LH_OK) damaged++;
        mem_free(path);
    }
    if (damaged == 0) return LH_OK;
    return fail(LH_CORRUPT, "%s: %zu of %zu checkpoints are damaged", folder, damaged,
                steps->count);
}

int command_verify(cli_t *cli)
{
    if (cli->name == NULL)
        return fail(LH_INVALID, "verify which checkpoint? a folder was expected");
    checkpoint_steps_t steps;
    lh_status_t status = checkpoint_steps(cli->name, &steps);
    if (status != LH_OK) return status;
    if (steps.count > 0)
        status = verify_folder(cli->name, &steps);
    else
        status = verify_one(cli->name);
    mem_free(steps.steps);
    return status;
}
