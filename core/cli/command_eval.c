/* command_eval.c - longhaul eval PIPELINE.ini [--json] [--per-document]: the loss of a split of the
 * data, or of a JSONL file document by document.
 *
 * Two ways that share a model and a printer. A split of the job's data goes through in sequences of
 * training's length, as the evaluation during training does it; a JSONL file goes document by
 * document, each from its own beginning, and is tokenized here. The result is printed, and kept as
 * eval.json in the pipeline's folder.
 *
 * With --json, and in eval.json:
 *
 *     {"loss": 1.52, "perplexity": 4.57, "tokens": 98304}
 *
 * With --per-document a line like the following comes before it for each document, numbered from 0:
 *
 *     {"document": 7, "tokens": 212, "loss": 1.48} */
#include <cli/command_run.h>

#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <cli/model_source.h>
#include <data/encode_documents.h>
#include <engine/weights.h>
#include <session/evaluation.h>
#include <session/snapshot.h>

/* Documents are packed side by side into rows of at least so many tokens, and so many in one run; a
 * longer document makes the row longer. */
enum { PACKED_TOKENS = 2048, PACKED_DOCUMENTS = 64 };

/* The whole file in memory: what is evaluated is small beside what is trained on. Both arrays grow;
 * documents point into ids once all are read. */
typedef struct corpus { /* all documents of a file */
    /* All documents' ids, one behind the other. */
    int32_t *ids;
    size_t id_count, id_capacity;
    evaluation_document_t *documents;
    size_t count, capacity;
    uint64_t longest;
} corpus_t;

/* Adds up what on_document is told. */
typedef struct printer {
    bool per_document;
    evaluation_sum_t sum;
} printer_t;

/* *out is SPLIT_*, whose order is that of the names. */
static bool is_split(const char *data, uint32_t *out)
{
    static const char *const names[] = {"train", "valid", "test"};
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(data, names[i]) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

/* An empty document has no ids and is still one. */
static lh_status_t add_ids(corpus_t *c, const int32_t *ids, size_t count)
{
    if (count == 0) return LH_OK;
    int32_t *more = mem_grow(c->ids, &c->id_capacity, c->id_count + count, sizeof(*c->ids));
    if (more == NULL) return LH_NO_MEMORY;
    c->ids = more;
    memcpy(c->ids + c->id_count, ids, count * sizeof(*ids));
    c->id_count += count;
    return LH_OK;
}

/* documents[i].ids is set once all ids are there, as their array may move. */
static lh_status_t add_document(corpus_t *c, const int32_t *ids, size_t count)
{
    const lh_status_t status = add_ids(c, ids, count);
    if (status != LH_OK) return status;
    evaluation_document_t *documents = mem_grow(c->documents, &c->capacity, c->count + 1,
                                                sizeof(*c->documents));
    if (documents == NULL) return LH_NO_MEMORY;
    c->documents = documents;
    c->documents[c->count++].count = count;
    if (count > c->longest) c->longest = count;
    return LH_OK;
}

/* The limits are those of [limits], as for prepare: the file may be a stranger's. */
static lh_status_t read_corpus(const job_t *job, const tokenizer_t *tokenizer, corpus_t *out)
{
    const documents_how_t how = {.path = job->eval.data,
                                 .key = job->eval.key,
                                 .tokenizer = tokenizer,
                                 .line_bytes = job->limits.line_bytes,
                                 .window_bytes = job->limits.window_bytes,
                                 .bos = job->eval.bos,
                                 .tokens = job->eval.tokens_per_document};
    documents_t *reader;
    lh_status_t status = documents_open(&how, &reader);
    if (status != LH_OK) return status;
    /* documents_next hands out memory of its own, good until the next call. */
    for (bool end = false; status == LH_OK && !end;) {
        const int32_t *ids;
        size_t count;
        status = documents_next(reader, &ids, &count, &end);
        if (status == LH_OK && !end) status = add_document(out, ids, count);
    }
    documents_close(reader);
    /* Ids may have moved while the list grew: point into it only now. */
    const int32_t *at = out->ids;
    for (size_t i = 0; i < out->count; i++) {
        out->documents[i].ids = at;
        at += out->documents[i].count;
    }
    lh_assert(status != LH_OK || at == out->ids + out->id_count);
    return status;
}

/* The mean of a document; a document without tokens that count has none. */
static void on_document(void *context, uint64_t document, const evaluation_sum_t *sum)
{
    printer_t *p = context;
    p->sum.nll += sum->nll;
    p->sum.tokens += sum->tokens;
    if (!p->per_document) return;
    if (sum->tokens == 0)
        (void)printf("{\"document\": %llu, \"tokens\": 0, \"loss\": null}\n",
                     (unsigned long long)document);
    else
        (void)printf("{\"document\": %llu, \"tokens\": %llu, \"loss\": %.9g}\n",
                     (unsigned long long)document, (unsigned long long)sum->tokens,
                     sum->nll / (double)sum->tokens);
}

/* Weights are read after the programs are built, when their memory is there. */
static lh_status_t prepare_weights(session_t *session, const model_source_t *source)
{
    const lh_status_t status = engine_build(session->engine);
    return status == LH_OK ? model_source_weights(source, session) : status;
}

/* The program's row is as long as the longest document, so that each is scored in one piece. */
static lh_status_t eval_documents(const job_t *job, session_t *session,
                                  const model_source_t *source, printer_t *printer)
{
    corpus_t corpus = {0};
    evaluation_t *evaluation = NULL;
    lh_status_t status = read_corpus(job, source->tokenizer, &corpus);
    if (status == LH_OK && corpus.longest > weights_parameters(session->weights)->max_tokens + 1)
        status = fail(LH_INVALID,
                      "%s: a document has %llu tokens, the model is made for %llu; set [eval] "
                      "tokens_per_document",
                      job->eval.data, (unsigned long long)corpus.longest,
                      (unsigned long long)weights_parameters(session->weights)->max_tokens);
    if (status == LH_OK) {
        /* A row holds a document without its last id, so this has room to spare. */
        const uint64_t rows = corpus.longest > PACKED_TOKENS ? corpus.longest : PACKED_TOKENS;
        const evaluation_how_t how = {
            .session = session, .sequences = 1, .rows = rows, .max_documents = PACKED_DOCUMENTS};
        status = evaluation_new(&how, &evaluation);
    }
    if (status == LH_OK) status = prepare_weights(session, source);
    if (status == LH_OK)
        status = evaluation_documents(evaluation, corpus.documents, corpus.count, on_document,
                                      printer);
    evaluation_free(evaluation);
    mem_free(corpus.documents);
    mem_free(corpus.ids);
    return status;
}

/* Each sample of the split once, in sequences of training's length. */
static lh_status_t eval_split(const job_t *job, session_t *session, const model_source_t *source,
                              uint32_t split, printer_t *printer)
{
    const batches_how_t data = {.data = &job->data,
                                .folder = job->pipeline.folder,
                                .split = split,
                                .sequence = job->train.sequence,
                                .phase = job->train.phase,
                                .vocab = (uint32_t)weights_parameters(session->weights)->vocab,
                                .eod = model_source_eod(source)};
    batches_t *batches = NULL;
    evaluation_t *evaluation = NULL;
    lh_status_t status = session_check_sequence(session);
    if (status == LH_OK) status = batches_open(&data, &batches);
    if (status == LH_OK) {
        const bool apart = job->data.documents == DOCUMENTS_APART;
        const evaluation_how_t how = {.session = session,
                                      .sequences = job->train.micro_batch,
                                      .rows = job->train.sequence,
                                      .max_documents = job->train.micro_batch *
                                                       (apart ? job->train.sequence : 1)};
        status = evaluation_new(&how, &evaluation);
    }
    if (status == LH_OK) status = prepare_weights(session, source);
    if (status == LH_OK) status = evaluation_split(evaluation, batches, 0, &printer->sum);
    evaluation_free(evaluation);
    batches_close(batches);
    return status;
}

/* perplexity is e to the mean loss; it may be too large for a number where the loss is not, and is
 * null then. */
static lh_status_t tell(const cli_t *cli, const evaluation_sum_t *sum)
{
    char json[160];
    if (sum->tokens == 0) return fail(LH_INVALID, "%s: no tokens to evaluate", cli->job->eval.data);
    const double loss = sum->nll / (double)sum->tokens;
    char perplexity[32] = "null"; /* JSON has no infinity */
    if (isfinite(exp(loss))) (void)snprintf(perplexity, sizeof(perplexity), "%.9g", exp(loss));
    if (!isfinite(loss))
        return fail(LH_INVALID, "the loss of %s is not finite", cli->job->eval.data);
    const int length = snprintf(json, sizeof(json),
                                "{\"loss\": %.9g, \"perplexity\": %s, \"tokens\": %llu}\n", loss,
                                perplexity, (unsigned long long)sum->tokens);
    if (cli_flag(cli, "json") != NULL)
        (void)fputs(json, stdout);
    else
        cli_print_line("loss %.6f  perplexity %.4f  over %llu tokens of %s", loss, exp(loss),
                       (unsigned long long)sum->tokens, cli->job->eval.data);

    char *path = path_join(cli->job->pipeline.folder, "eval.json");
    lh_status_t status = path == NULL ? LH_NO_MEMORY : folder_make(cli->job->pipeline.folder);
    if (status == LH_OK) status = file_replace(path, json, (size_t)length);
    mem_free(path);
    return status;
}

/* The model is opened frozen: no optimizer, no gradients. Tokenizers are needed for text alone; a
 * split is ids already. */
static int eval_stage(cli_t *cli)
{
    const job_t *job = cli->job;
    uint32_t split = 0;
    const bool by_split = is_split(job->eval.data, &split);
    printer_t printer = {.per_document = cli_flag(cli, "per-document") != NULL};
    model_source_t source;
    session_t *session = NULL;
    if (by_split && printer.per_document)
        return fail(LH_INVALID, "--per-document needs [eval] data to be a JSONL file; it is %s",
                    job->eval.data);

    lh_status_t status = model_source_open(
        job, cli->plugins, by_split ? TOKENIZER_IF_NAMED : TOKENIZER_NEEDED, &source);
    if (status != LH_OK) return status;
    session_how_t how = model_source_session(&source, cli->plugins);
    how.frozen = true;
    status = session_open(&how, &session);
    if (status == LH_OK && by_split)
        status = eval_split(job, session, &source, split, &printer);
    else if (status == LH_OK)
        status = eval_documents(job, session, &source, &printer);
    if (status == LH_OK) status = tell(cli, &printer.sum);
    session_close(session);
    model_source_close(&source);
    return status;
}

const command_t command_eval = {
    .name = "eval",
    .summary = "loss of held-out data, or of a JSONL file document by document",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = command_run_stage,
    .stage = eval_stage,
    .flags = {CLI_FLAG_JSON, {"per-document", NULL, "a line of JSON for each document"}},
};
