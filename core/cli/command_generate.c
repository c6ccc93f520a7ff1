/* command_generate.c - longhaul generate PIPELINE.ini [--prompt TEXT | --ids 1,2,3 | --prompts FILE]
 * [--chat] [--greedy] ...
 *
 * One text is shown as it is made. A token may end in the middle of a character, or be changed in
 * its look by the next one (a blank that belongs to the word behind it), so what is printed is only
 * what no later token can change. The texts of a file are continued some at once, and each is shown
 * when its batch is done. All stands in generated.json at the end, with the ids.
 *
 * generated.json, and what --json prints instead of text:
 *
 *     {"prompt_ids": [..], "new_ids": [..], "text": "..."}
 *
 * and of a file such an object for each line, {"texts": [{..}, ..]}, which --json prints as lines.
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
#include <data/chat.h>
#include <data/input_lines.h>
#include <format/json.h>
#include <session/generation.h>
#include <session/snapshot.h>

/* Strings belong to the job or to the command line. */
typedef struct request { /* [generate] with the flags of the command line on top */
    const char *prompt, *ids, *prompts;
    uint64_t tokens, batch;
    sampling_t sampling;
    bool json, chat;
} request_t;

/* What is continued. */
typedef struct prompts {
    token_ids_t *list; /* [count] */
    size_t count, capacity;
    uint64_t longest;
    int32_t end; /* of an answer in the format of a conversation; -1: none */
} prompts_t;

/* What reads prompts. */
typedef struct prompt_reader {
    const cli_t *cli;
    const request_t *request;
    const tokenizer_t *tokenizer;
    tokenizer_scratch_t *scratch;
    chat_t *chat; /* NULL: texts are continued as they are */
    chat_scratch_t chat_scratch;
    json_document_t *line;
} prompt_reader_t;

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
    static const char *const starts[] = {"prompt", "ids", "prompts"};
    for (size_t i = 0; i < 3; i++)
        for (size_t k = i + 1; k < 3; k++)
            if (cli_flag(cli, starts[i]) != NULL && cli_flag(cli, starts[k]) != NULL)
                return fail(LH_INVALID, "--%s and --%s: only one of them can be the start",
                            starts[i], starts[k]);
    if (cli_flag(cli, "ids") != NULL && cli_flag(cli, "chat") != NULL)
        return fail(LH_INVALID, "--ids and --chat: ids are taken as they are");
    for (size_t i = 0; i < sizeof(draws) / sizeof(draws[0]); i++)
        if (cli_flag(cli, "greedy") != NULL && cli_flag(cli, draws[i]) != NULL)
            return fail(LH_INVALID, "--greedy and --%s: what takes the likeliest token draws none",
                        draws[i]);
    return LH_OK;
}

/* What is the start on the command line takes the place of the INI's. */
static lh_status_t read_request(const cli_t *cli, request_t *out)
{
    const job_generate_t *g = &cli->job->generate;
    const char *prompt = cli_flag(cli, "prompt"), *ids = cli_flag(cli, "ids"),
               *prompts = cli_flag(cli, "prompts");
    *out = (request_t){.prompt = g->prompt,
                       .ids = g->ids,
                       .prompts = g->prompts,
                       .tokens = g->tokens,
                       .batch = g->batch,
                       .sampling = {g->greedy, g->temperature, g->top_k, g->top_p, g->seed},
                       .json = cli_flag(cli, "json") != NULL,
                       .chat = g->chat || cli_flag(cli, "chat") != NULL};
    if (prompt != NULL || ids != NULL || prompts != NULL) {
        out->prompt = prompt;
        out->ids = ids;
        out->prompts = prompts;
    }
    if (out->prompts != NULL) out->ids = NULL;
    if (out->ids != NULL) out->chat = false;
    if (cli_flag(cli, "temperature") != NULL || cli_flag(cli, "top-k") != NULL ||
        cli_flag(cli, "top-p") != NULL)
        out->sampling.greedy = false; /* the INI's: whoever says how to draw wants to */
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

/* A text as it is, with a begin token before it where [generate] bos asks for one. */
static lh_status_t encode_plain(prompt_reader_t *r, const char *text, size_t length,
                                token_ids_t *out)
{
    const tokenizer_special_t *special = tokenizer_special(r->tokenizer);
    const int32_t bos = special->bos, eod = special->eod;
    lh_status_t status = LH_OK;
    if (r->cli->job->generate.bos && bos < 0)
        JOB_REFUSE(r->cli->job, "generate", "bos", "yes: the tokenizer has no begin token");
    if (r->cli->job->generate.bos) status = token_ids_add(out, bos);
    if (status == LH_OK && length > 0)
        status = tokenizer_encode(r->tokenizer, r->scratch, text, length, SPELLING_IS_TOKEN, out);
    /* Nothing to begin with: what stands before a document in training. */
    if (status == LH_OK && out->count == 0 && (bos >= 0 || eod >= 0))
        status = token_ids_add(out, bos >= 0 ? bos : eod);
    return status;
}

/* A place for one more; its ids are the caller's to add. */
static lh_status_t prompt_new(prompts_t *p, token_ids_t **out)
{
    token_ids_t *list = mem_grow(p->list, &p->capacity, p->count + 1, sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    p->list = list;
    p->list[p->count] = (token_ids_t){0};
    *out = &p->list[p->count++];
    return LH_OK;
}

static lh_status_t prompts_read_line(prompt_reader_t *r, const char *line, size_t length,
                                     token_ids_t *out)
{
    const char *text;
    size_t bytes;
    if (r->chat != NULL)
        return chat_encode_line(r->chat, &r->chat_scratch, r->scratch, line, length, out);
    const lh_status_t status = json_line_text(line, length, r->cli->job->chat.prompt, &r->line,
                                              &text, &bytes);
    return status == LH_OK ? encode_plain(r, text, bytes, out) : status;
}

/* Every line of the file, before anything is generated: a bad one costs no time. */
static lh_status_t prompts_read_file(prompt_reader_t *r, prompts_t *out)
{
    const job_limits_t *limits = &r->cli->job->limits;
    const char *const path = r->request->prompts;
    input_texts_t *lines = NULL;
    lh_status_t status = input_texts_open(&path, 1, NULL, limits->line_bytes, limits->window_bytes,
                                          &lines);
    for (bool end = false; status == LH_OK && !end;) {
        const char *line;
        size_t length;
        token_ids_t *ids;
        status = input_texts_next_line(lines, &line, &length, &end);
        if (status != LH_OK || end) break;
        status = prompt_new(out, &ids);
        if (status == LH_OK)
            status = input_texts_place(lines, prompts_read_line(r, line, length, ids));
    }
    input_texts_close(lines);
    if (status == LH_OK && out->count == 0)
        status = fail(LH_INVALID, "%s: no prompt in it; expected one a line", path);
    return status;
}

/* The format of [chat], and the token by which its answers end. */
static lh_status_t reader_open(prompt_reader_t *r, int32_t *end)
{
    const job_t *job = r->cli->job;
    lh_status_t status = tokenizer_scratch_new(r->tokenizer, &r->scratch);
    if (status != LH_OK || !r->request->chat) return status;
    if (job->chat.format == CHAT_NONE)
        JOB_REFUSE(job, "generate", "chat", "yes: [chat] format is not set; longhaul help chat");
    status = chat_new(&job->chat, r->tokenizer, &r->chat);
    return status == LH_OK ? chat_end(r->chat, r->scratch, end) : status;
}

/* ids are taken as they are; texts are encoded. */
static lh_status_t read_prompts(const cli_t *cli, const request_t *r, const tokenizer_t *tokenizer,
                                prompts_t *out)
{
    prompt_reader_t reader = {.cli = cli, .request = r, .tokenizer = tokenizer};
    const char *prompt = r->prompt == NULL ? "" : r->prompt;
    token_ids_t *ids;
    lh_status_t status = LH_OK;
    out->end = -1;
    if (r->ids == NULL) status = reader_open(&reader, &out->end);
    if (status == LH_OK && r->prompts != NULL) {
        status = prompts_read_file(&reader, out);
    } else if (status == LH_OK) {
        status = prompt_new(out, &ids);
        if (status == LH_OK && r->ids != NULL)
            status = token_ids_parse(r->ids, ids);
        else if (status == LH_OK && reader.chat != NULL)
            status = chat_encode_prompt(reader.chat, &reader.chat_scratch, reader.scratch, prompt,
                                        strlen(prompt), ids);
        else if (status == LH_OK)
            status = encode_plain(&reader, prompt, strlen(prompt), ids);
    }
    for (size_t i = 0; i < out->count; i++)
        if (out->list[i].count > out->longest) out->longest = out->list[i].count;
    chat_free(reader.chat);
    chat_scratch_free(&reader.chat_scratch);
    json_free(reader.line);
    tokenizer_scratch_free(reader.scratch);
    return status;
}

static void prompts_free(prompts_t *p)
{
    for (size_t i = 0; i < p->count; i++)
        token_ids_free(&p->list[i]);
    mem_free(p->list);
}

/* Bytes of a text without a character at its end that is not whole yet: it can come in several
 * tokens. A character has four bytes at most, so at most three are looked at from behind. What is
 * no UTF-8 anyway counts as whole. */
static size_t settled_bytes(const char *text, size_t length)
{
    size_t back = 0;
    while (back < 3 && back < length && text_utf8_follows(text[length - 1 - back]))
        back++;
    if (back >= length) return length;
    const size_t wanted = text_utf8_size((unsigned char)text[length - 1 - back]);
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
        const size_t until = all ? text.length : settled_bytes(text.data, text.length);
        lh_assert(until <= text.length);
        if (until > p->shown) {
            p->status = print_generated(text.data + p->shown, until - p->shown);
            p->shown = until;
        }
        (void)fflush(stdout);
    }
    text_free(&text);
}

/* generation_run's callback, once for each new id of the only text. It can't return a status, so that
 * is kept. Also called for the ids of the prompt, so that the text begins with it. */
static void id_show(void *context, LH_UNUSED uint64_t text, int32_t id)
{
    printer_t *p = context;
    if (p->silent || p->status != LH_OK) return;
    p->status = token_ids_add(&p->ids, id);
    if (p->status == LH_OK) show_text(p, false);
}

static void generated_put_ids(json_writer_t *w, const char *key, const int32_t *ids, uint64_t count)
{
    json_open(w, key, '[');
    for (uint64_t i = 0; i < count; i++)
        json_put_u64(w, NULL, (uint64_t)ids[i]);
    json_close(w);
}

/* One text as a member of generated.json. */
static lh_status_t generated_put_text(const tokenizer_t *tokenizer, const generation_text_t *t,
                                      json_writer_t *w)
{
    text_t text = {0};
    lh_status_t status = LH_OK;
    if (tokenizer != NULL) status = tokenizer_decode(tokenizer, t->out, t->made, true, &text);
    json_open(w, NULL, '{');
    generated_put_ids(w, "prompt_ids", t->prompt, t->prompt_count);
    generated_put_ids(w, "new_ids", t->out, t->made);
    /* Bytes that are no UTF-8 have no JSON string: the ids say all. */
    if (text_utf8_valid(text.data, text.length))
        json_put_text_n(w, "text", text.data, text.length);
    else
        json_put_nil(w, "text");
    json_close(w);
    text_free(&text);
    return status;
}

/* What becomes of texts. */
typedef struct teller {
    const cli_t *cli;
    const request_t *request;
    const tokenizer_t *tokenizer;
    text_t dump;       /* of generated.json, so far */
    json_writer_t out; /* to it */
} teller_t;

/* A text of a file is shown whole, with its number. */
static lh_status_t show_whole(const teller_t *t, const generation_text_t *text)
{
    printer_t printer = {.tokenizer = t->tokenizer};
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; status == LH_OK && i < text->prompt_count; i++)
        status = token_ids_add(&printer.ids, text->prompt[i]);
    for (uint64_t i = 0; status == LH_OK && i < text->made; i++)
        status = token_ids_add(&printer.ids, text->out[i]);
    (void)printf("[%llu] ", (unsigned long long)text->number);
    if (status == LH_OK) show_text(&printer, true);
    if (status == LH_OK) status = printer.status;
    (void)printf("\n");
    token_ids_free(&printer.ids);
    return status;
}

/* Texts that are done. */
static lh_status_t texts_tell(teller_t *t, const generation_text_t *texts, uint64_t count)
{
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; status == LH_OK && i < count; i++) {
        const bool several = t->request->prompts != NULL;
        text_t one = {0};
        json_writer_t w = {.to = &one, .style = JSON_SPACED};
        status = generated_put_text(t->tokenizer, &texts[i], &w);
        if (status == LH_OK) status = text_status(&one);
        if (status == LH_OK) json_put_as_is(&t->out, NULL, one.data);
        if (status == LH_OK && t->request->json) (void)printf("%s\n", one.data);
        if (status == LH_OK && !t->request->json && several) status = show_whole(t, &texts[i]);
        text_free(&one);
    }
    return status;
}

/* generated.json begins: of a file its texts are a list. The teller stays where it is. */
static void texts_tell_begin(teller_t *t)
{
    t->out = (json_writer_t){.to = &t->dump, .style = JSON_SPACED};
    if (t->request->prompts == NULL) return;
    json_open(&t->out, NULL, '{');
    json_open(&t->out, "texts", '[');
}

/* Written after all was shown: a file that can't be written fails the command but not the reader. */
static lh_status_t texts_tell_end(teller_t *t)
{
    const char *folder = t->cli->job->pipeline.folder;
    while (t->out.depth > 0)
        json_close(&t->out);
    char *path = path_join(folder, "generated.json");
    lh_status_t status = path == NULL ? LH_NO_MEMORY : text_status(&t->dump);
    if (status == LH_OK) status = folder_make(folder);
    if (status == LH_OK) status = file_replace(path, t->dump.data, t->dump.length);
    mem_free(path);
    return status;
}

/* The only text, as it is made. */
static lh_status_t generate_one(generation_t *generation, teller_t *t, generation_text_t *text)
{
    printer_t printer = {.tokenizer = t->tokenizer,
                         .silent = t->request->json || t->tokenizer == NULL};
    for (uint64_t i = 0; i < text->prompt_count; i++)
        id_show(&printer, 0, text->prompt[i]);
    lh_status_t status = generation_run(generation, text, 1, id_show, &printer);
    if (status == LH_OK) status = printer.status;
    if (status == LH_OK) show_text(&printer, true);
    if (status == LH_OK) status = printer.status;
    if (status == LH_OK && !printer.silent) (void)printf("\n");
    token_ids_free(&printer.ids);
    return status == LH_OK ? texts_tell(t, text, 1) : status;
}

/* A batch at a time, in the order of the file. */
static lh_status_t generate_all(generation_t *generation, teller_t *t, const prompts_t *prompts,
                                uint64_t batch)
{
    const uint64_t tokens = t->request->tokens;
    generation_text_t *texts = mem_array(batch, sizeof(*texts));
    int32_t *ids = mem_array(batch * (tokens + 1), sizeof(*ids));
    lh_status_t status = texts == NULL || ids == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint64_t at = 0; status == LH_OK && at < prompts->count; at += batch) {
        const uint64_t left = prompts->count - at, count = left < batch ? left : batch;
        for (uint64_t i = 0; i < count; i++)
            texts[i] = (generation_text_t){.prompt = prompts->list[at + i].ids,
                                           .prompt_count = prompts->list[at + i].count,
                                           .number = at + i,
                                           .out = ids + i * (tokens + 1)};
        if (t->request->prompts == NULL) {
            status = generate_one(generation, t, texts);
            continue;
        }
        status = generation_run(generation, texts, count, NULL, NULL);
        if (status == LH_OK) status = texts_tell(t, texts, count);
    }
    mem_free(ids);
    mem_free(texts);
    return status;
}

/* Memory and programs are made for the prompts that are there and the tokens that are asked for. The
 * text ends where the model says so: at the id that ends a document, or an answer. */
static lh_status_t generate_texts(const cli_t *cli, const request_t *r, model_source_t *source,
                                  const prompts_t *prompts)
{
    session_how_t how = model_source_session(source, cli->plugins);
    how.frozen = true;
    session_t *session = NULL;
    generation_t *generation = NULL;
    teller_t teller = {.cli = cli, .request = r, .tokenizer = source->tokenizer};
    const uint64_t batch = r->batch < prompts->count ? r->batch : prompts->count;
    lh_status_t status = session_open(&how, &session);
    if (status == LH_OK) {
        const generation_how_t what = {.session = session,
                                       .sequences = batch,
                                       .prompt = prompts->longest,
                                       .tokens = r->tokens,
                                       .vocabulary = model_source_vocabulary(source),
                                       .ends = {model_source_eod(source), prompts->end},
                                       .sampling = r->sampling};
        status = generation_new(&what, &generation);
    }
    for (size_t i = 0; status == LH_OK && i < prompts->count; i++)
        status = generation_check(generation, prompts->list[i].ids, prompts->list[i].count);
    if (status == LH_OK) status = model_source_weights(source, session);
    texts_tell_begin(&teller);
    if (status == LH_OK) status = generate_all(generation, &teller, prompts, batch);
    if (status == LH_OK) status = texts_tell_end(&teller);
    text_free(&teller.dump);
    generation_free(generation);
    session_close(session);
    return status;
}

/* With ids alone no tokenizer is needed, and no text is shown where none is there. */
static int generate_stage(cli_t *cli)
{
    request_t request;
    model_source_t source;
    prompts_t prompts = {0};

    lh_status_t status = read_request(cli, &request);
    if (status == LH_OK)
        status = model_source_open(cli->job, cli->plugins,
                                   request.ids == NULL ? TOKENIZER_NEEDED : TOKENIZER_IF_THERE,
                                   &source);
    if (status != LH_OK) return status;
    status = read_prompts(cli, &request, source.tokenizer, &prompts);
    if (status == LH_OK) status = generate_texts(cli, &request, &source, &prompts);
    prompts_free(&prompts);
    model_source_close(&source);
    return status;
}

const command_t command_generate = {
    .name = "generate",
    .summary = "continue a prompt, or those of a file",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = command_run_stage,
    .stage = generate_stage,
    .flags = {{"prompt", "TEXT", "instead of [generate] prompt"},
              {"ids", "LIST", "token ids, separated by commas, instead of a prompt"},
              {"prompts", "FILE", "a prompt, or messages, a line of JSON, instead of one"},
              {"chat", NULL, "prompts are what a user says, in the format of [chat]"},
              {"tokens", "N", "how many new ones at most"},
              {"greedy", NULL, "always the likeliest token"},
              {"temperature", "T", "above 0; lower is more certain"},
              {"top-k", "K", "only the K likeliest; 0: all"},
              {"top-p", "P", "only the likeliest that hold this share of the probability"},
              {"seed", "N", "another seed, another text"},
              CLI_FLAG_JSON},
};
