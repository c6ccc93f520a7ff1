/* command_generate.c - longhaul generate PIPELINE.ini [--prompt TEXT | --ids 1,2,3] [--greedy] ...
 *
 * The text is shown as it is made. A token may end in the middle of a character, or be changed in
 * its look by the next one (a blank that belongs to the word behind it), so what is printed is only
 * what no later token can change. All of it stands in generated.json at the end, with the ids.
 *
 * generated.json, and what --json prints instead of text:
 *
 *     {"prompt_ids": [..], "new_ids": [..], "text": "..."}
 *
 * text is of the new ids alone, and null where their bytes are no UTF-8. */
#include <cli/command_run.h>

#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <cli/model_source.h>
#include <config/quantity.h>
#include <format/json.h>
#include <session/generation.h>
#include <session/snapshot.h>

/* Strings belong to the job or to the command line. */
typedef struct request { /* [generate] with the flags of the command line on top */
    const char *prompt, *ids;
    uint64_t tokens;
    sampling_t sampling;
    bool json;
} request_t;

/* ids are all tokens so far, those of the prompt included: decoding begins from the first, as what
 * a token looks like depends on those before it. */
typedef struct printer { /* shows text as it is made */
    const tokenizer_t *tokenizer;
    token_ids_t ids;
    /* Bytes of the decoded text that were printed. */
    size_t shown;
    bool silent;
    lh_status_t status; /* of what could not be shown */
} printer_t;

/* What [generate] allows for its key. The range stands in one place, the row of the option. */
static lh_status_t check_range(const char *name, const char *key, const char *text)
{
    char where[32];
    const job_section_t *s = job_section("generate");
    (void)snprintf(where, sizeof(where), "--%s", name);
    for (uint32_t i = 0; i < s->count; i++)
        if (strcmp(s->rows[i].key, key) == 0)
            return option_set(&s->rows[i], text, where, NULL, NULL);
    return LH_OK;
}

/* Distinguishes what is too large from what is no number, as the first looks right to whoever typed
 * it. */
static lh_status_t number_flag(const cli_t *cli, const char *name, const char *key, uint64_t *out)
{
    const char *text = cli_flag(cli, name);
    if (text == NULL) return LH_OK;
    if (quantity_u64(text, out)) return check_range(name, key, text);
    const bool digits = *text != '\0' && text[strspn(text, "0123456789")] == '\0';
    return fail(LH_INVALID, "--%s %s: %s", name, text,
                digits ? "too large, at most 18446744073709551615" : "not a whole number");
}

/* As number_flag, for reals. */
static lh_status_t real_flag(const cli_t *cli, const char *name, const char *key, double *out)
{
    const char *text = cli_flag(cli, name);
    if (text == NULL) return LH_OK;
    if (quantity_f64(text, out)) return check_range(name, key, text);
    return fail(LH_INVALID, "--%s %s: not a number", name, text);
}

/* Two flags that contradict each other are refused; a flag that overrides the INI is not. */
static lh_status_t check_flags(const cli_t *cli)
{
    static const char *const draws[] = {"temperature", "top-k", "top-p"};
    if (cli_flag(cli, "prompt") != NULL && cli_flag(cli, "ids") != NULL)
        return fail(LH_INVALID, "--prompt and --ids: only one of them can be the start");
    for (size_t i = 0; i < sizeof(draws) / sizeof(draws[0]); i++)
        if (cli_flag(cli, "greedy") != NULL && cli_flag(cli, draws[i]) != NULL)
            return fail(LH_INVALID, "--greedy and --%s: what takes the likeliest token draws none",
                        draws[i]);
    return LH_OK;
}

/* A prompt on the command line takes the place of ids in the INI. */
static lh_status_t read_request(const cli_t *cli, request_t *out)
{
    const job_generate_t *g = &cli->job->generate;
    *out = (request_t){.prompt = g->prompt,
                       .ids = g->ids,
                       .tokens = g->tokens,
                       .sampling = {g->greedy, g->temperature, g->top_k, g->top_p, g->seed},
                       .json = cli_flag(cli, "json") != NULL};
    if (cli_flag(cli, "prompt") != NULL) {
        out->prompt = cli_flag(cli, "prompt");
        out->ids = NULL;
    }
    if (cli_flag(cli, "ids") != NULL) out->ids = cli_flag(cli, "ids");
    if (cli_flag(cli, "greedy") != NULL) out->sampling.greedy = true;

    lh_status_t status = check_flags(cli);
    if (status == LH_OK) status = number_flag(cli, "tokens", "tokens", &out->tokens);
    if (status == LH_OK) status = number_flag(cli, "top-k", "top_k", &out->sampling.top_k);
    if (status == LH_OK) status = number_flag(cli, "seed", "seed", &out->sampling.seed);
    if (status == LH_OK)
        status = real_flag(cli, "temperature", "temperature", &out->sampling.temperature);
    if (status == LH_OK) status = real_flag(cli, "top-p", "top_p", &out->sampling.top_p);
    return status;
}

/* Whether the model has such ids is checked by generation_run. */
static lh_status_t parse_ids(const char *text, token_ids_t *out)
{
    lh_status_t status = LH_OK;
    for (const char *at = text; status == LH_OK && *text != '\0';) {
        char *end;
        const long id = strtol(at, &end, 10);
        const size_t blanks = strspn(end, " ");
        if (end == at || id < 0 || id > INT32_MAX || (end[blanks] != ',' && end[blanks] != '\0'))
            return fail(LH_INVALID,
                        "ids '%s': token ids separated by commas are expected, not '%s'", text, at);
        status = token_ids_add(out, (int32_t)id);
        if (end[blanks] == '\0') break;
        at = end + blanks + 1;
    }
    return status;
}

/* ids are taken as they are; a text is encoded, with a begin token before it where [generate] bos
 * asks for one. */
static lh_status_t read_prompt(const cli_t *cli, const request_t *r, const tokenizer_t *tokenizer,
                               token_ids_t *out)
{
    if (r->ids != NULL) return parse_ids(r->ids, out);

    lh_status_t status = LH_OK;
    const int32_t bos = tokenizer_special(tokenizer)->bos, eod = tokenizer_special(tokenizer)->eod;
    if (cli->job->generate.bos && bos >= 0) status = token_ids_add(out, bos);
    /* What encoding needs between calls; one text is encoded here. */
    tokenizer_scratch_t *scratch = NULL;
    if (status == LH_OK) status = tokenizer_scratch_new(tokenizer, &scratch);
    if (status == LH_OK && r->prompt != NULL)
        status = tokenizer_encode(tokenizer, scratch, r->prompt, strlen(r->prompt),
                                  SPELLING_IS_TOKEN, out);
    tokenizer_scratch_free(scratch);
    /* Nothing to begin with: what stands before a document in training. */
    if (status == LH_OK && out->count == 0 && (bos >= 0 || eod >= 0))
        status = token_ids_add(out, bos >= 0 ? bos : eod);
    return status;
}

/* Bytes of a text without a character at its end that is not whole yet: it can come in several
 * tokens. A character has four bytes at most, so at most three are looked at from behind. What is
 * no UTF-8 anyway counts as whole. */
static size_t settled(const char *text, size_t length)
{
    size_t back = 0;
    while (back < 3 && back < length && ((unsigned char)text[length - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back >= length) return length;
    const unsigned char lead = (unsigned char)text[length - 1 - back];
    const size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return wanted > back + 1 ? length - back - 1 : length;
}

/* On stdout, where a terminal may be: it obeys nothing that a model wrote. The text as it is stands
 * in generated.json. A NUL would end the text for text_append_shown, so pieces between NULs are
 * shown one by one. */
static lh_status_t print_generated(const char *text, size_t length)
{
    text_t shown = {0};
    char *copy = mem_text_n(text, length);
    for (size_t at = 0; copy != NULL && at < length; at += strlen(copy + at) + 1) {
        text_append_shown(&shown, copy + at, true);
        if (at + strlen(copy + at) < length) text_append(&shown, "\\x00");
    }
    const lh_status_t status = copy == NULL ? LH_NO_MEMORY : text_status(&shown);
    if (status == LH_OK && shown.data != NULL) (void)fwrite(shown.data, 1, shown.length, stdout);
    text_free(&shown);
    mem_free(copy);
    return status;
}

/* What is shown no later token changes. all: at the end, when nothing can change any more. */
static void show_text(printer_t *p, bool all)
{
    text_t text = {0};
    if (p->silent) return;
    const size_t open = all ? 0 : tokenizer_open_bytes(p->tokenizer, p->ids.ids, p->ids.count);
    p->status = tokenizer_decode(p->tokenizer, p->ids.ids, p->ids.count - open, true, &text);
    if (p->status == LH_OK && text.data != NULL) {
        const size_t until = all ? text.length : settled(text.data, text.length);
        lh_assert(until <= text.length);
        if (until > p->shown) {
            p->status = print_generated(text.data + p->shown, until - p->shown);
            p->shown = until;
        }
        (void)fflush(stdout);
    }
    text_free(&text);
}

/* generation_run's callback, once for each new id. It can't return a status, so that is kept. Also
 * called for the ids of the prompt, so that the text begins with it. */
static void show(void *context, int32_t id)
{
    printer_t *p = context;
    if (p->silent || p->status != LH_OK) return;
    p->status = token_ids_add(&p->ids, id);
    if (p->status == LH_OK) show_text(p, false);
}

static void put_ids(json_writer_t *w, const char *key, const int32_t *ids, uint64_t count)
{
    json_open(w, key, '[');
    for (uint64_t i = 0; i < count; i++)
        json_put_u64(w, NULL, (uint64_t)ids[i]);
    json_close(w);
}

/* Written after the text was shown: a file that can't be written fails the command but not the
 * reader. */
static lh_status_t tell(const cli_t *cli, const request_t *r, const tokenizer_t *tokenizer,
                        const token_ids_t *prompt, const int32_t *ids, uint64_t count)
{
    text_t text = {0};
    lh_status_t status = LH_OK;
    if (tokenizer != NULL) status = tokenizer_decode(tokenizer, ids, count, true, &text);
    text_t dump = {0};
    json_writer_t w = {.to = &dump, .style = JSON_SPACED};
    json_open(&w, NULL, '{');
    put_ids(&w, "prompt_ids", prompt->ids, prompt->count);
    put_ids(&w, "new_ids", ids, count);
    /* Bytes that are no UTF-8 have no JSON string: the ids say all. */
    if (text_utf8_valid(text.data, text.length))
        json_put_text_n(&w, "text", text.data, text.length);
    else
        json_put_nil(&w, "text");
    json_close(&w);
    char *path = path_join(cli->job->pipeline.folder, "generated.json");
    if (status == LH_OK) status = path == NULL ? LH_NO_MEMORY : text_status(&dump);
    if (status == LH_OK && r->json) (void)printf("%s\n", dump.data);
    if (status == LH_OK) status = folder_make(cli->job->pipeline.folder);
    if (status == LH_OK) status = file_replace(path, dump.data, dump.length);
    mem_free(path);
    text_free(&dump);
    text_free(&text);
    return status;
}

/* Memory and programs are made for the prompt that is there and the tokens that are asked for. */
static lh_status_t generate(const cli_t *cli, const request_t *r, model_source_t *source,
                            const token_ids_t *prompt)
{
    session_how_t how = model_source_session(source, cli->plugins);
    how.frozen = true;
    session_t *session = NULL;
    generation_t *generation = NULL;
    int32_t *ids = mem_array(r->tokens + 1, sizeof(*ids));
    uint64_t count = 0;
    printer_t printer = {.tokenizer = source->tokenizer,
                         .silent = r->json || source->tokenizer == NULL};

    lh_status_t status = ids == NULL ? LH_NO_MEMORY : session_open(&how, &session);
    if (status == LH_OK) {
        const generation_how_t what = {.session = session,
                                       .prompt = prompt->count,
                                       .tokens = r->tokens,
                                       .vocabulary = model_source_vocabulary(source),
                                       .sampling = r->sampling};
        status = generation_new(&what, &generation);
    }
    if (status == LH_OK) status = model_source_weights(source, session);
    for (size_t i = 0; status == LH_OK && i < prompt->count; i++)
        show(&printer, prompt->ids[i]);
    /* The text ends where the model says so, at the id that ends a document. */
    const int32_t end = model_source_eod(source);
    if (status == LH_OK)
        status = generation_run(generation, prompt->ids, prompt->count, end, show, &printer, ids,
                                &count);
    if (status == LH_OK) status = printer.status;
    if (status == LH_OK) show_text(&printer, true);
    if (status == LH_OK) status = printer.status;
    if (status == LH_OK && !printer.silent) (void)printf("\n");
    if (status == LH_OK) status = tell(cli, r, source->tokenizer, prompt, ids, count);
    generation_free(generation);
    session_close(session);
    token_ids_free(&printer.ids);
    mem_free(ids);
    return status;
}

/* With ids alone no tokenizer is needed, and no text is shown where none is there. */
static int generate_stage(cli_t *cli)
{
    request_t request;
    model_source_t source;
    token_ids_t prompt = {0};

    lh_status_t status = read_request(cli, &request);
    if (status == LH_OK)
        status = model_source_open(cli->job, cli->plugins,
                                   request.ids == NULL ? TOKENIZER_NEEDED : TOKENIZER_IF_THERE,
                                   &source);
    if (status != LH_OK) return status;
    status = read_prompt(cli, &request, source.tokenizer, &prompt);
    if (status == LH_OK) status = generate(cli, &request, &source, &prompt);
    token_ids_free(&prompt);
    model_source_close(&source);
    return status;
}

const command_t command_generate = {
    .name = "generate",
    .summary = "continue a prompt",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = command_run_stage,
    .stage = generate_stage,
    .flags = {{"prompt", "TEXT", "instead of [generate] prompt"},
              {"ids", "LIST", "token ids, separated by commas, instead of a prompt"},
              {"tokens", "N", "how many new ones at most"},
              {"greedy", NULL, "always the likeliest token"},
              {"temperature", "T", "above 0; lower is more certain"},
              {"top-k", "K", "only the K likeliest; 0: all"},
              {"top-p", "P", "only the likeliest that hold this share of the probability"},
              {"seed", "N", "another seed, another text"},
              CLI_FLAG_JSON},
};
