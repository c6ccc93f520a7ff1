/* command_eval.c - longhaul eval PIPELINE.ini [--json] [--per-document]: the loss of held-out data,
 * and how often the right one of several continuations is the likeliest.
 *
 * A job has one set, that of [eval], or several, [eval.NAME]. A split of the job's data goes through
 * in sequences of training's length, as the evaluation during training does it; a JSONL file goes
 * document by document, each from its own beginning, and is tokenized here; so do choices, as
 * documents of which the prompt does not count. All files share one program, all splits another; the
 * weights are read once. The result is printed, and kept as eval.json in the pipeline's folder.
 *
 * With --json, and in eval.json, of one set:
 *
 *     {"loss": 1.52, "perplexity": 4.57, "tokens": 98304}
 *     {"acc": 0.25, "acc_norm": 0.5, "acc_bytes": 0.5, "questions": 4}
 *
 * and of several {"sets": [{"name": "wiki", "loss": ...}, ...]}. acc, acc_norm and acc_bytes are the
 * share of questions whose right choice has the largest log-likelihood, that divided by the
 * choice's characters, and by its bytes; of equals the first counts, as in lm-evaluation-harness.
 *
 * With --per-document a line like the following comes before it for each document or question,
 * numbered from 0, with "set" in front where there are several:
 *
 *     {"document": 7, "tokens": 212, "loss": 1.48}
 *     {"question": 7, "answer": 1, "loglikelihood": [-9.25, -8.5]} */
#include <cli/command_run.h>

#include <math.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <cli/model_source.h>
#include <data/choices.h>
#include <data/encode_documents.h>
#include <engine/weights.h>
#include <format/json.h>
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

/* A set on its way: what is read of it, and what came of it. */
typedef struct eval_set {
    const job_eval_set_t *job;
    bool by_split;
    bool pairs; /* of phase dpo: losses are of pairs, which the sum counts in place of tokens */
    uint32_t split;
    batches_t *batches; /* of a split */
    corpus_t corpus;    /* of a file of documents */
    choices_t choices;  /* of a file of questions */
    bool per_document, named;
    evaluation_sum_t sum;
    double *loglikelihood; /* [choices.all_count] */
    uint64_t right[3];     /* questions answered: by sum, by characters, by bytes */
} eval_set_t;

/* What all sets share. */
typedef struct eval_run {
    const job_t *job;
    session_t *session;
    const model_source_t *source;
    const tokenizer_t *tokenizer; /* of files: that of [eval], else the source's */
    eval_set_t *sets;             /* [job->eval_set_count] */
    evaluation_t *splits, *files; /* NULL: there is no such set */
    bool by_split;                /* at least one */
} eval_run_t;

/* *out is SPLIT_*, whose order is that of the names. */
static bool split_named(const char *data, uint32_t *out)
{
    static const char *const names[] = {"train", "valid", "test"};
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(data, names[i]) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

enum { SECTION_NAME = 128 };

/* "eval.wiki", or "eval" of the only one; what a sentence calls a set's section. */
static const char *section_name(const eval_set_t *s, char out[SECTION_NAME])
{
    (void)snprintf(out, SECTION_NAME, "eval%s%s", s->named ? "." : "",
                   s->named ? s->job->name : "");
    return out;
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
static lh_status_t read_corpus(const job_t *job, const job_eval_set_t *set,
                               const tokenizer_t *tokenizer, corpus_t *out)
{
    const documents_how_t how = {.path = set->data,
                                 .key = set->key,
                                 .tokenizer = tokenizer,
                                 .line_bytes = job->limits.line_bytes,
                                 .window_bytes = job->limits.window_bytes,
                                 .bos = set->bos,
                                 .tokens = set->tokens_per_document};
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

/* Begins a line about one document or question; eval_line_end prints it. Nothing is printed where
 * memory is short: the result follows. */
static void eval_line_begin(const eval_set_t *s, const char *what, uint64_t number,
                            json_writer_t *w)
{
    json_open(w, NULL, '{');
    if (s->named) json_put_text(w, "set", s->job->name);
    json_put_u64(w, what, number);
}

static void eval_line_end(json_writer_t *w)
{
    json_close(w);
    if (!w->to->failed) (void)puts(w->to->data);
    text_free(w->to);
}

/* The mean of a document; a document without tokens that count has none. */
static void on_document(void *context, uint64_t document, const evaluation_sum_t *sum)
{
    eval_set_t *s = context;
    text_t line = {0};
    json_writer_t w = {.to = &line, .style = JSON_SPACED};
    s->sum.nll += sum->nll;
    s->sum.tokens += sum->tokens;
    if (!s->per_document) return;
    eval_line_begin(s, "document", document, &w);
    json_put_u64(&w, "tokens", sum->tokens);
    if (sum->tokens == 0)
        json_put_nil(&w, "loss");
    else
        json_put_real(&w, "loss", sum->nll / (double)sum->tokens);
    eval_line_end(&w);
}

static void on_choice(void *context, uint64_t choice, const evaluation_sum_t *sum)
{
    eval_set_t *s = context;
    lh_assert(choice < s->choices.all_count);
    s->loglikelihood[choice] = -sum->nll;
}

/* Which of a question's choices has the largest log-likelihood, divided by nothing (0), its
 * characters (1) or its bytes (2). */
static uint32_t likeliest_choice(const eval_set_t *s, const question_t *q, int by)
{
    uint32_t best = 0;
    double most = 0;
    for (uint32_t i = 0; i < q->count; i++) {
        const choice_t *c = &s->choices.all[q->first + i];
        const double by_what = by == 0 ? 1 : (double)(by == 1 ? c->characters : c->bytes);
        const double value = s->loglikelihood[q->first + i] / by_what;
        if (i > 0 && !(value > most)) continue;
        most = value;
        best = i;
    }
    return best;
}

/* Counts the questions that are answered right, and shows each where that is asked for. */
static void questions_count(eval_set_t *s)
{
    for (size_t n = 0; n < s->choices.count; n++) {
        const question_t *q = &s->choices.questions[n];
        for (int by = 0; by < 3; by++)
            s->right[by] += likeliest_choice(s, q, by) == q->right;
        if (!s->per_document) continue;
        text_t line = {0};
        json_writer_t w = {.to = &line, .style = JSON_SPACED};
        eval_line_begin(s, "question", n, &w);
        json_put_u64(&w, "answer", q->right);
        json_open(&w, "loglikelihood", '[');
        for (uint32_t i = 0; i < q->count; i++)
            json_put_real(&w, NULL, s->loglikelihood[q->first + i]);
        json_close(&w);
        eval_line_end(&w);
    }
}

/* A choice is a document of which the prompt does not count. */
static lh_status_t eval_choices(const eval_run_t *r, eval_set_t *s)
{
    const size_t count = s->choices.all_count;
    evaluation_document_t *documents = mem_array(count, sizeof(*documents));
    s->loglikelihood = mem_array(count, sizeof(*s->loglikelihood));
    lh_status_t status = documents == NULL || s->loglikelihood == NULL ? LH_NO_MEMORY : LH_OK;
    for (size_t i = 0; status == LH_OK && i < count; i++) {
        const choice_t *c = &s->choices.all[i];
        documents[i] = (evaluation_document_t){c->ids, c->count, c->context};
    }
    if (status == LH_OK) status = evaluation_documents(r->files, documents, count, on_choice, s);
    if (status == LH_OK) questions_count(s);
    mem_free(documents);
    return status;
}

/* A split's samples, in sequences of training's length. */
static lh_status_t split_open(const eval_run_t *r, eval_set_t *s)
{
    const batches_how_t data = {.data = &r->job->data,
                                .folder = r->job->pipeline.folder,
                                .split = s->split,
                                .sequence = r->job->train.sequence,
                                .phase = r->job->train.phase,
                                .vocab = (uint32_t)weights_parameters(r->session->weights)->vocab,
                                .eod = model_source_eod(r->source)};
    return batches_open(&data, &s->batches);
}

/* A row of the embedding for each id: a tokenizer of another model has ids that this one does not. */
static lh_status_t ids_check(const eval_run_t *r, const eval_set_t *s, const int32_t *ids,
                             size_t count)
{
    const uint64_t vocab = weights_parameters(r->session->weights)->vocab;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint64_t)ids[i] >= vocab)
            return fail(LH_INVALID,
                        "%s: the tokenizer makes the id %d of it; the model has ids 0 to %llu",
                        s->job->data, ids[i], (unsigned long long)vocab - 1);
    return LH_OK;
}

/* What a set's file holds. */
static lh_status_t set_read(const eval_run_t *r, eval_set_t *s)
{
    char section[SECTION_NAME];
    const uint64_t most = weights_parameters(r->session->weights)->max_tokens;
    if (s->job->kind == EVAL_CHOICE) {
        const choices_how_t how = {.set = s->job,
                                   .tokenizer = r->tokenizer,
                                   .line_bytes = r->job->limits.line_bytes,
                                   .window_bytes = r->job->limits.window_bytes,
                                   .tokens = most};
        lh_status_t status = choices_read(&how, &s->choices);
        for (size_t i = 0; status == LH_OK && i < s->choices.all_count; i++)
            status = ids_check(r, s, s->choices.all[i].ids, s->choices.all[i].count);
        return status;
    }
    lh_status_t status = read_corpus(r->job, s->job, r->tokenizer, &s->corpus);
    if (status == LH_OK) status = ids_check(r, s, s->corpus.ids, s->corpus.id_count);
    if (status != LH_OK || s->corpus.longest <= most + 1) return status;
    return fail(LH_INVALID,
                "%s: a document has %llu tokens, the model is made for %llu; set [%s] "
                "tokens_per_document",
                s->job->data, (unsigned long long)s->corpus.longest, (unsigned long long)most,
                section_name(s, section));
}

/* A program for all splits, in sequences of training's length. */
static lh_status_t splits_program(eval_run_t *r)
{
    const job_t *job = r->job;
    const bool apart = job->data.documents == DOCUMENTS_APART;
    const evaluation_how_t how = {.session = r->session,
                                  .sequences = job->train.micro_batch,
                                  .rows = job->train.sequence,
                                  .max_documents = job->train.micro_batch *
                                                   (apart ? job->train.sequence : 1),
                                  .narrow_logits = job->train.logits == LOGITS_COMPUTE,
                                  .pairs = job->train.phase == PHASE_DPO};
    const lh_status_t status = session_check_sequence(r->session);
    return status == LH_OK ? evaluation_new(&how, &r->splits) : status;
}

/* Files are read, splits opened and programs made before the engine is built, when there is memory
 * for weights; so what is refused is refused before anything is scored. The row of the files'
 * program is as long as the longest document, so that each is scored in one piece. */
static lh_status_t sets_prepare(eval_run_t *r)
{
    uint64_t rows = PACKED_TOKENS;
    bool files = false;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < r->job->eval_set_count; i++) {
        eval_set_t *s = &r->sets[i];
        if (s->by_split) {
            status = split_open(r, s);
            continue;
        }
        files = true;
        status = set_read(r, s);
        /* A row holds a document without its last id, so this has room to spare. */
        if (s->corpus.longest > rows) rows = s->corpus.longest;
        if (s->choices.longest > rows) rows = s->choices.longest;
    }
    if (status == LH_OK && r->by_split) status = splits_program(r);
    if (status == LH_OK && files) {
        const evaluation_how_t how = {.session = r->session,
                                      .sequences = 1,
                                      .rows = rows,
                                      .max_documents = PACKED_DOCUMENTS,
                                      .narrow_logits = r->job->train.logits == LOGITS_COMPUTE};
        status = evaluation_new(&how, &r->files);
    }
    if (status == LH_OK) status = engine_build(r->session->engine);
    return status == LH_OK ? model_source_weights(r->source, r->session) : status;
}

/* In the order of the INI. Of a split each sample counts once, but for those at its end that don't
 * fill a run of the program, where one is filled before. */
static lh_status_t sets_run(eval_run_t *r)
{
    lh_status_t status = sets_prepare(r);
    for (uint32_t i = 0; status == LH_OK && i < r->job->eval_set_count; i++) {
        eval_set_t *s = &r->sets[i];
        if (s->by_split)
            status = evaluation_split(r->splits, s->batches, 0, &s->sum);
        else if (s->job->kind == EVAL_CHOICE)
            status = eval_choices(r, s);
        else
            status = evaluation_documents(r->files, s->corpus.documents, s->corpus.count,
                                          on_document, s);
    }
    return status;
}

static void sets_free(eval_run_t *r)
{
    evaluation_free(r->splits);
    evaluation_free(r->files);
    for (uint32_t i = 0; r->sets != NULL && i < r->job->eval_set_count; i++) {
        batches_close(r->sets[i].batches);
        mem_free(r->sets[i].corpus.documents);
        mem_free(r->sets[i].corpus.ids);
        choices_free(&r->sets[i].choices);
        mem_free(r->sets[i].loglikelihood);
    }
    mem_free(r->sets);
}

/* The name of a set in front of its line, where it has one. */
static void tell_line(const eval_set_t *s, const char *line)
{
    if (s->named)
        cli_print_line("%s: %s of %s", s->job->name, line, s->job->data);
    else
        cli_print_line("%s of %s", line, s->job->data);
}

/* The members of a set's result. perplexity is e to the mean loss; it may be too large for a number
 * where the loss is not, and is null then. */
static lh_status_t tell_loss(const eval_set_t *s, bool json, json_writer_t *out)
{
    char line[160];
    if (s->sum.tokens == 0)
        return fail(LH_INVALID, "%s: no %s to evaluate", s->job->data,
                    s->pairs ? "pairs" : "tokens");
    const double loss = s->sum.nll / (double)s->sum.tokens;
    if (!isfinite(loss)) return fail(LH_INVALID, "the loss of %s is not finite", s->job->data);
    json_put_real(out, "loss", loss);
    if (s->pairs) {
        json_put_u64(out, "pairs", s->sum.tokens);
        (void)snprintf(line, sizeof(line), "loss %.6f  over %llu pairs", loss,
                       (unsigned long long)s->sum.tokens);
        if (!json) tell_line(s, line);
        return LH_OK;
    }
    json_put_real(out, "perplexity", exp(loss));
    json_put_u64(out, "tokens", s->sum.tokens);
    (void)snprintf(line, sizeof(line), "loss %.6f  perplexity %.4f  over %llu tokens", loss,
                   exp(loss), (unsigned long long)s->sum.tokens);
    if (!json) tell_line(s, line);
    return LH_OK;
}

static lh_status_t tell_choices(const eval_set_t *s, bool json, json_writer_t *out)
{
    char line[160];
    const double n = (double)s->choices.count;
    if (s->choices.count == 0) return fail(LH_INVALID, "%s: no questions to ask", s->job->data);
    for (size_t i = 0; i < s->choices.all_count; i++)
        if (!isfinite(s->loglikelihood[i]))
            return fail(LH_INVALID, "a log-likelihood of %s is not finite", s->job->data);
    const double share[] = {(double)s->right[0] / n, (double)s->right[1] / n,
                            (double)s->right[2] / n};
    json_put_real(out, "acc", share[0]);
    json_put_real(out, "acc_norm", share[1]);
    json_put_real(out, "acc_bytes", share[2]);
    json_put_u64(out, "questions", s->choices.count);
    (void)snprintf(line, sizeof(line), "acc %.4f  acc_norm %.4f  over %zu questions", share[0],
                   share[1], s->choices.count);
    if (!json) tell_line(s, line);
    return LH_OK;
}

static lh_status_t eval_tell(const cli_t *cli, const eval_run_t *r)
{
    text_t json = {0};
    json_writer_t w = {.to = &json, .style = JSON_SPACED};
    lh_status_t status = LH_OK;
    const bool as_json = cli_flag(cli, "json") != NULL, several = r->sets[0].named;
    json_open(&w, NULL, '{');
    if (several) json_open(&w, "sets", '[');
    for (uint32_t i = 0; status == LH_OK && i < r->job->eval_set_count; i++) {
        const eval_set_t *s = &r->sets[i];
        if (several) {
            json_open(&w, NULL, '{');
            json_put_text(&w, "name", s->job->name);
        }
        status = s->job->kind == EVAL_CHOICE ? tell_choices(s, as_json, &w)
                                             : tell_loss(s, as_json, &w);
        if (several) json_close(&w);
    }
    if (several) json_close(&w);
    json_close(&w);
    text_append(&json, "\n");
    if (status == LH_OK) status = text_status(&json);
    if (status == LH_OK && as_json) (void)fputs(json.data, stdout);

    char *path = path_join(r->job->pipeline.folder, "eval.json");
    if (status == LH_OK)
        status = path == NULL ? LH_NO_MEMORY : folder_make(r->job->pipeline.folder);
    if (status == LH_OK) status = file_replace(path, json.data, json.length);
    mem_free(path);
    text_free(&json);
    return status;
}

/* Whether sets are splits, which are ids already and have no documents. */
static lh_status_t sets_begin(const cli_t *cli, eval_run_t *r, bool *text)
{
    const bool per_document = cli_flag(cli, "per-document") != NULL;
    r->sets = mem_array(r->job->eval_set_count, sizeof(*r->sets));
    if (r->sets == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < r->job->eval_set_count; i++) {
        eval_set_t *s = &r->sets[i];
        char section[SECTION_NAME];
        s->job = &r->job->eval_sets[i];
        s->named = s->job->name != NULL;
        s->per_document = per_document;
        s->by_split = split_named(s->job->data, &s->split);
        s->pairs = s->by_split && r->job->train.phase == PHASE_DPO;
        r->by_split |= s->by_split;
        if (!s->by_split) *text = true;
        if (s->by_split && per_document)
            return fail(LH_INVALID, "--per-document needs [%s] data to be a JSONL file; it is %s",
                        section_name(s, section), s->job->data);
    }
    return LH_OK;
}

/* The model is opened frozen: no optimizer, no gradients. Tokenizers are needed for text alone; a
 * split is ids already. */
static int eval_stage(cli_t *cli)
{
    eval_run_t run = {.job = cli->job};
    model_source_t source = {0};
    tokenizer_t *own = NULL;
    bool text = false;
    lh_status_t status = sets_begin(cli, &run, &text);
    if (status == LH_OK)
        status = model_source_open(cli->job, cli->plugins,
                                   text ? TOKENIZER_NEEDED : TOKENIZER_IF_NAMED, &source);
    /* The source has that of [prepare], which says how many rows the model has. */
    if (status == LH_OK && text && cli->job->eval.tokenizer != NULL)
        status = model_source_tokenizer(cli->job, cli->job->eval.tokenizer, &own);
    if (status == LH_OK) {
        session_how_t how = model_source_session(&source, cli->plugins);
        how.frozen = true;
        how.pairs = run.by_split;
        run.source = &source;
        run.tokenizer = own != NULL ? own : source.tokenizer;
        status = session_open(&how, &run.session);
    }
    if (status == LH_OK) status = sets_run(&run);
    if (status == LH_OK) status = eval_tell(cli, &run);
    sets_free(&run);
    session_close(run.session);
    model_source_close(&source);
    tokenizer_free(own);
    return status;
}

const command_t command_eval = {
    .name = "eval",
    .summary = "loss of held-out data, or of a JSONL file document by document; choices",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = command_run_stage,
    .stage = eval_stage,
    .flags = {CLI_FLAG_JSON,
              {"per-document", NULL, "a line of JSON for each document or question"}},
};
