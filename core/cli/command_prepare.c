/* command_prepare.c - longhaul prepare PIPELINE.ini: JSONL to token files.
 *
 * The work is data/prepare.h's; here are the tokenizer, the filter that the INI may name, and what
 * a person sees meanwhile. A run that is stopped by a signal leaves no half data set, as prepare
 * renames its files at the end.
 *
 * On a terminal one line that renews itself, elsewhere the same every few seconds:
 *
 *      42.1%  18.3 MB/s  4.60M tokens/s  12345 documents  3 rejected  ETA 12.5 s */
#include <stdio.h>

#include <base/log.h>
#include <base/sys.h>
#include <base/text.h>
#include <cli/command_run.h>
#include <cli/model_source.h>
#include <data/prepare.h>
#include <plugin/call.h>
#include <watch/progress.h>

/* What a person sees while text is tokenized: one line that renews itself on a terminal, plain
 * lines elsewhere. */
typedef struct prepare_progress {
    bool terminal; /* stderr is one that shows a line that renews itself */
    uint64_t start_ns, shown_ns;
} prepare_progress_t;

static const uint64_t terminal_ns = UINT64_C(200000000); /* between two renewals  */
static const uint64_t plain_ns = UINT64_C(5000000000);   /* between two plain lines */

/* Must be followed by prepare_progress_end, or log lines stay in the manner of a terminal with a
 * line below them. */
static void prepare_progress_begin(prepare_progress_t *p)
{
    *p = (prepare_progress_t){.terminal = progress_renews()};
    p->start_ns = p->shown_ns = sys()->now_ns();
    log_over_progress(p->terminal);
}

/* Since prepare_progress_begin. */
static double prepare_progress_seconds(const prepare_progress_t *p)
{
    return (double)(sys()->now_ns() - p->start_ns) / 1e9;
}

/* As prepare_how_t.progress: context is a prepare_progress_t. Called often; something is shown at
 * most once in terminal_ns or plain_ns. The share is of bytes read, as nobody knows how many
 * documents there are. */
static void prepare_progress_show(void *context, const prepare_counts_t *c)
{
    prepare_progress_t *p = context;
    const uint64_t now = sys()->now_ns();
    if (now - p->shown_ns < (p->terminal ? terminal_ns : plain_ns) || c->bytes_read == 0) return;
    p->shown_ns = now;

    char rate[16], tokens[16], left[24], rejected[40] = "", line[256];
    const double seconds = prepare_progress_seconds(p);
    const double per_second = (double)c->bytes_read / seconds;
    /* A file may have grown since it was measured. */
    const uint64_t ahead = c->bytes_total > c->bytes_read ? c->bytes_total - c->bytes_read : 0;
    (void)snprintf(rate, sizeof(rate), "%.1f", per_second / 1e6);
    text_count((double)c->tokens / seconds, tokens);
    text_duration((double)ahead / per_second, left);
    if (c->rejected > 0)
        (void)snprintf(rejected, sizeof(rejected), "  %llu rejected",
                       (unsigned long long)c->rejected);
    const int length = snprintf(line, sizeof(line),
                                "%5.1f%%  %s MB/s  %s tokens/s  %llu documents%s  ETA %s",
                                100 * (double)c->bytes_read / (double)(c->bytes_read + ahead), rate,
                                tokens, (unsigned long long)c->documents, rejected, left);
    if (!p->terminal)
        log_line(LH_LOG_INFO, "%s", line);
    else if (length > 0 && !progress_put(line))
        p->terminal = false;
}

/* Clears the line, so that what comes next begins on an empty one. */
static void prepare_progress_end(prepare_progress_t *p)
{
    if (p->terminal && !progress_put("")) p->terminal = false;
    log_over_progress(false);
}

/* [prepare] accept: bound once, with every mistake a sentence before the first line is read. *out
 * NULL: no filter. */
static lh_status_t filter_bind(const cli_t *cli, call_t **out)
{
    static const call_variable_t variables[] = {{"tokens", CALL_U64}};
    const call_scope_t scope = {
        .variables = variables, .variable_count = 1, .plugins = cli->plugins};
    *out = NULL;
    if (cli->job->prepare.accept == NULL) return LH_OK;
    return call_bind(cli->job->prepare.accept, "[prepare] accept", &scope, CALL_U64, out);
}

/* As prepare_how_t.accept: context is the call. A filter that fails ends the stage. */
static lh_status_t filter_run(void *context, uint64_t tokens, bool *keep)
{
    const call_value_t value = {.u64 = tokens};
    call_value_t result;
    const lh_status_t status = call_run(context, &value, &result);
    if (status == LH_OK) *keep = result.u64 != 0;
    return status;
}

/* That of [prepare], else the one beside the weights that the job imports. The folder that an
 * import reads from, and not what it has made: prepare may come first. */
static lh_status_t prepare_load_tokenizer(const job_t *job, tokenizer_t **out)
{
    const char *path = job->prepare.tokenizer != NULL ? job->prepare.tokenizer : job->import.from;
    if (path == NULL)
        return fail(LH_INVALID, "%s: no tokenizer; name one in [prepare] tokenizer", job->path);
    return model_source_tokenizer(job, path, out);
}

/* What was left out is told with the reason for it, where there was any. */
static void counts_tell(const cli_t *cli, const prepare_counts_t *c, const tokenizer_t *tokenizer,
                        double seconds)
{
    char time[24], bytes[16], tokens[16];
    text_duration(seconds, time);
    text_bytes((double)c->bytes_read, bytes);
    text_count((double)c->tokens, tokens);
    cli_print_line("prepared %s: %llu documents, %s tokens of %d (%s), from %s in %s, %.1f MB/s",
                   cli->job->prepare.output, (unsigned long long)c->documents, tokens,
                   tokenizer_vocab_size(tokenizer), tokenizer_kind(tokenizer), bytes, time,
                   (double)c->bytes_read / 1e6 / seconds);
    if (c->rejected > 0)
        cli_print_line("%llu lines were rejected; %s/prepare.rejected.txt lists them",
                       (unsigned long long)c->rejected, cli->job->pipeline.folder);
    if (c->filtered > 0)
        cli_print_line("%llu documents were dropped by %s", (unsigned long long)c->filtered,
                       cli->job->prepare.accept);
}

/* The job's own outputs are looked up first, so that a pattern in [prepare] input does not read
 * what this stage writes. */
static lh_status_t prepare_lines(const cli_t *cli, const tokenizer_t *tokenizer, call_t *filter)
{
    const job_t *job = cli->job;
    prepare_progress_t progress;
    prepare_counts_t counts;
    job_outputs_t own;
    lh_status_t status = job_outputs_find(job, &own);
    if (status != LH_OK) return status;
    status = sys_stop_watch();
    if (status != LH_OK) {
        job_outputs_free(&own);
        return status;
    }
    const prepare_how_t how = {.prepare = &job->prepare,
                               .own = &own,
                               .base = job->base,
                               .folder = job->pipeline.folder,
                               .line_bytes = job->limits.line_bytes,
                               .window_bytes = job->limits.window_bytes,
                               .tokenizer = tokenizer,
                               .chat = &job->chat,
                               .accept = filter == NULL ? NULL : filter_run,
                               .accept_context = filter,
                               .progress = prepare_progress_show,
                               .progress_context = &progress,
                               .stopping = sys_stop_requested};
    prepare_progress_begin(&progress);
    status = prepare_run(&how, &counts);
    const double seconds = prepare_progress_seconds(&progress);
    prepare_progress_end(&progress);
    job_outputs_free(&own);
    sys_stop_unwatch();
    if (status == LH_OK) counts_tell(cli, &counts, tokenizer, seconds);
    return status;
}

/* Tokenizer and filter first: both may be refused before a file is opened. */
static int prepare_stage(cli_t *cli)
{
    tokenizer_t *tokenizer = NULL;
    call_t *filter = NULL;
    if (cli->job->prepare.input == NULL)
        return fail(LH_INVALID, "%s: [prepare] input is not set", cli->job->path);

    lh_status_t status = prepare_load_tokenizer(cli->job, &tokenizer);
    if (status == LH_OK) status = filter_bind(cli, &filter);
    if (status == LH_OK) status = prepare_lines(cli, tokenizer, filter);
    if (filter != NULL) call_free(filter);
    tokenizer_free(tokenizer);
    return status;
}

const command_t command_prepare = {
    .name = "prepare",
    .summary = "JSONL text to token files",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS,
    .run = command_run_stage,
    .stage = prepare_stage,
};
