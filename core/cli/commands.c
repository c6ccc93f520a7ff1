/* commands.c - the table of commands: a row each, in the order that help shows. */
#include <cli/commands.h>

#include <stdarg.h>
#include <stdio.h>

#define JOB (CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS)

/* A stage that is run alone is remembered as done too, so that a later `run` skips it. */
#define STAGE(name, stage)                \
    static int run_##name(cli_t *cli)     \
    {                                     \
        return command_stage(cli, stage); \
    }
STAGE(prepare, STAGE_PREPARE)
STAGE(import, STAGE_IMPORT)
STAGE(train, STAGE_TRAIN)
STAGE(eval, STAGE_EVAL)
STAGE(export, STAGE_EXPORT)
STAGE(generate, STAGE_GENERATE)

/* clang-format off */
#define RESUME {"resume", NULL, "go on from the newest checkpoint, if there is one"}
#define HOST {"host", "NAME", "which of [site.*] hosts this machine is; its own name if not given"}
#define JSON_LINES {"json", NULL, "print the result as JSON"}

static const command_t table[] = {
    {.name = "run", .summary = "run the pipeline's stages in order; skip those whose inputs have not changed",
     .needs = JOB | CLI_HAS_RANKS, .run = command_run, .flags = {RESUME, HOST}},
    {.name = "prepare", .summary = "JSONL text to token files", .needs = JOB, .run = run_prepare},
    {.name = "import", .summary = "a Hugging Face folder to a checkpoint", .needs = JOB, .run = run_import},
    {.name = "train", .summary = "train, and save checkpoints", .needs = JOB | CLI_HAS_RANKS, .run = run_train,
     .flags = {RESUME, HOST, {"dump-batches", "N", "also write the first N batches to batches.safetensors"},
               {"profile", NULL, "print one step kernel by kernel; also as profile.json and profile.trace.json"}}},
    {.name = "eval", .summary = "loss of held-out data, or of a JSONL file document by document", .needs = JOB, .run = run_eval,
     .flags = {JSON_LINES, {"per-document", NULL, "a line of JSON for each document"}}},
    {.name = "export", .summary = "the newest checkpoint to a Hugging Face folder", .needs = JOB, .run = run_export},
    {.name = "generate", .summary = "continue a prompt", .needs = JOB, .run = run_generate,
     .flags = {{"prompt", "TEXT", "instead of [generate] prompt"},
               {"ids", "LIST", "token ids, separated by commas, instead of a prompt"},
               {"tokens", "N", "how many new ones at most"},
               {"greedy", NULL, "always the likeliest token"},
               {"temperature", "T", "above 0; lower is more certain"},
               {"top-k", "K", "only the K likeliest; 0: all"},
               {"top-p", "P", "only the likeliest that hold this share of the probability"},
               {"seed", "N", "another seed, another text"},
               JSON_LINES}},
    {.name = "plan", .summary = "memory, arithmetic and expected time of a training step, by part and op", .needs = JOB, .run = command_plan,
     .flags = {JSON_LINES, {"rank", "N", "of this rank; 0 if not given"}, {"graph", "FILE.svg", "draw the model's block; needs Graphviz"}}},
    {.name = "bench", .summary = "measure; NAME is device: its peaks, with a PIPELINE.ini also the ops of its training step; or collectives: time and bandwidth between ranks",
     .needs = CLI_NEEDS_PLUGINS | CLI_TAKES_NAME | CLI_MAY_TAKE_JOB, .run = command_bench,
     .flags = {{"quick", NULL, "in about a second, less exact"},
               {"device", "PLUGIN", "which device, where no pipeline names one"},
               {"op", "NAME", "collectives: all-reduce if not given"},
               {"sizes", "A..B", "collectives: 1KiB..64MiB if not given, each four times the one before"},
               {"ranks", "N", "collectives: that many processes of this machine; 2 if not given"},
               {"sites", "N", "collectives: that many sites, played by this machine"},
               {"transport", "PLUGIN", "collectives: over this one"},
               {"algorithm", "NAME", "collectives: direct, ring or halving"},
               {"dtype", "NAME", "collectives: f32 or bf16"},
               JSON_LINES}},
    /* clang-format on */
    {.name = "check",
     .summary = "validate a pipeline without touching a device; print every effective value",
     .needs = JOB,
     .run = command_check},
    {.name = "verify",
     .summary = "read a checkpoint, all of a folder, or a pair of token files back and check every "
                "byte; NAME is the folder, or a file of the pair",
     .needs = CLI_TAKES_NAME,
     .run = command_verify},
    {.name = "plugins",
     .summary = "what is installed, and why what is not usable is not",
     .needs = CLI_NEEDS_PLUGINS,
     .run = command_plugins},
    {.name = "help",
     .summary = "commands and options; of a command, an INI section or a plugin with its NAME",
     .needs = CLI_NEEDS_PLUGINS | CLI_TAKES_NAME,
     .run = command_help},
};

const command_t *commands(uint32_t *count)
{
    *count = sizeof(table) / sizeof(table[0]);
    return table;
}

lh_status_t print_shown(const char *text)
{
    text_t shown = {0};
    text_append_shown(&shown, text, true);
    const lh_status_t status = text_status(&shown);
    if (status == LH_OK && shown.data != NULL) (void)fputs(shown.data, stdout);
    text_free(&shown);
    return status;
}

void print_line(const char *fmt, ...)
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
