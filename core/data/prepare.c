/* prepare.c - takes batches of tokenized lines in input order and writes what comes of them; finds
 * the prepare.json that tells of a pair, and compares.
 *
 * Three things are written: the pair of token files, the list of rejected lines and the summary.
 * Each grows under a temporary name. The commit takes an old summary away first and writes the new
 * one last: where a summary stands, all that it tells of does too, whenever the process was
 * killed. */
#include <data/prepare.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/processors.h>
#include <base/sys.h>
#include <base/text.h>
#include <config/quantity.h>
#include <data/encode_documents.h>
#include <data/indexed.h>
#include <data/input_lines.h>
#include <format/json.h>

/* What the job puts around each document. */
typedef struct prepare_ends {
    int32_t prepend, append; /* ids around each document; -1: none */
} prepare_ends_t;

/* What the summary tells. */
typedef struct prepare_facts {
    const prepare_how_t *how;
    const prepare_counts_t *counts;
    const input_files_t *files;
    const line_file_t *read; /* [files->count] */
    pair_sums_t sums;        /* of what was written */
} prepare_facts_t;

/* prepare.rejected.txt: "file:line: reason" a line. It is streamed, as nearly all lines of a corpus
 * may be in it. */
typedef struct rejected_list rejected_list_t;

static void rejected_list_close(rejected_list_t *list);

static const char summary_name[] = "prepare.json";
static const char rejected_name[] = "prepare.rejected.txt";
/* Of the list of rejected lines, before a write. */
enum { FLUSH_BYTES = 64 * 1024 };

/* A file's name may be any bytes; a JSON string holds UTF-8. */
static void put_path(json_writer_t *w, const char *path)
{
    text_t shown = {0};
    text_append_shown(&shown, path, false);
    if (shown.failed) w->to->failed = true;
    json_put_text(w, "path", shown.data == NULL ? "" : shown.data);
    text_free(&shown);
}

/* Which tokenizer made the ids: its files by name and digest. */
static lh_status_t put_tokenizer(json_writer_t *w, const tokenizer_t *t)
{
    lh_status_t status = LH_OK;
    json_open(w, "tokenizer", '{');
    json_put_text(w, "kind", tokenizer_kind(t));
    json_put_u64(w, "vocabulary", (uint64_t)tokenizer_vocab_size(t));
    json_open(w, "files", '[');
    for (size_t i = 0; i < tokenizer_file_count(t) && status == LH_OK; i++) {
        char digest[SHA256_TEXT] = "";
        status = file_digest(tokenizer_file(t, i), digest);
        json_open(w, NULL, '{');
        put_path(w, tokenizer_file(t, i));
        json_put_text(w, "sha256", digest);
        json_close(w);
    }
    json_close(w);
    json_close(w);
    return status;
}

/* Which files the documents came from; their digests were made while they were read. */
static void put_input(json_writer_t *w, const prepare_facts_t *facts)
{
    json_open(w, "files", '[');
    for (uint32_t i = 0; i < facts->files->count; i++) {
        json_open(w, NULL, '{');
        put_path(w, facts->files->paths[i]);
        json_put_u64(w, "bytes", facts->read[i].bytes);
        json_put_text(w, "sha256", facts->read[i].sha256);
        json_close(w);
    }
    json_close(w);
}

static uint32_t chat_of(const prepare_how_t *how)
{
    return how->chat == NULL ? CHAT_NONE : how->chat->format;
}

/* Appends the text of prepare.json. */
static lh_status_t prepare_summary_text(const prepare_facts_t *facts, text_t *out)
{
    static const char *const prepends[] = {"none", "bos"}, *const appends[] = {"none", "eod",
                                                                               "eos"};
    const prepare_how_t *how = facts->how;
    const prepare_counts_t *c = facts->counts;
    json_writer_t w = {.to = out, .style = 1};
    char chat[CHAT_NAME];
    chat_format_name(chat_of(how), chat);
    json_open(&w, NULL, '{');
    json_put_text(&w, "output", how->prepare->output);
    json_put_text(&w, "key", how->prepare->key);
    json_put_text(&w, "prepend", prepends[how->prepare->prepend]);
    json_put_text(&w, "append", appends[how->prepare->append]);
    json_put_text(&w, "chat", chat);
    json_put_u64(&w, "documents", c->documents);
    json_put_u64(&w, "empty", c->empty);
    json_put_u64(&w, "tokens", c->tokens);
    json_put_u64(&w, "rejected", c->rejected);
    json_put_u64(&w, "filtered", c->filtered);
    const lh_status_t status = put_tokenizer(&w, how->tokenizer);
    put_input(&w, facts);
    prepare_record_put(&w, how->folder, how->prepare->output, &facts->sums);
    json_close(&w);
    return status == LH_OK ? text_status(out) : status;
}

/* Replaces the file in one step. */
static lh_status_t prepare_summary_write(const char *folder, const text_t *text)
{
    char *path = path_join(folder, summary_name);
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_replace(path, text->data, text->length);
    mem_free(path);
    return status;
}

/* That there is none is fine. */
static lh_status_t remove_file(const char *path)
{
    if (sys()->unlink(path) == 0 || errno == ENOENT) return LH_OK;
    return fail_io(errno, "%s: cannot remove", path);
}

/* Takes an older one away; none is fine. */
static lh_status_t prepare_summary_remove(const char *folder)
{
    char *path = path_join(folder, summary_name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = remove_file(path);
    mem_free(path);
    /* The pair may lie in another folder: no power loss leaves the old one beside a new pair. */
    if (status == LH_OK) status = folder_sync(folder);
    return status;
}

/* any: a line was added. committed: it has its final name, so close does not remove it. */
struct rejected_list {
    char *path, *temporary;
    int fd;
    text_t held;
    bool any, committed;
};

/* Makes the folder too: the pair, whose writer makes its own, may lie elsewhere. */
static lh_status_t rejected_list_open(const char *folder, rejected_list_t **out)
{
    rejected_list_t *list = mem_new(sizeof(*list));
    if (list == NULL) return LH_NO_MEMORY;
    list->fd = -1;
    lh_status_t status = LH_NO_MEMORY;
    text_t temporary = {0};
    list->path = path_join(folder, rejected_name);
    if (list->path == NULL) goto close_list;
    text_printf(&temporary, "%s.tmp", list->path);
    list->temporary = temporary.data;
    if (temporary.failed) goto close_list;
    status = folder_make(folder);
    if (status != LH_OK) goto close_list;
    status = file_take(list->temporary, &list->fd);
    if (status != LH_OK) goto close_list;
    *out = list;
    return LH_OK;

close_list:
    rejected_list_close(list);
    return status;
}

static lh_status_t rejected_flush(rejected_list_t *list)
{
    const lh_status_t status = file_write(list->fd, list->temporary, list->held.data,
                                          list->held.length);
    list->held.length = 0;
    return status;
}

/* Names are shown, not copied: they may hold bytes that a terminal obeys. */
static lh_status_t rejected_list_add(rejected_list_t *list, const char *path, uint64_t line,
                                     const char *reason)
{
    text_append_shown(&list->held, path, false);
    text_printf(&list->held, ":%" PRIu64 ": %s\n", line, reason);
    list->any = true;
    const lh_status_t status = text_status(&list->held);
    return status == LH_OK && list->held.length > FLUSH_BYTES ? rejected_flush(list) : status;
}

/* Makes it appear; a list without a line takes an older one away instead. */
static lh_status_t rejected_list_commit(rejected_list_t *list)
{
    if (!list->any) return remove_file(list->path);
    const lh_status_t status = rejected_flush(list);
    if (status != LH_OK) return status;
    if (sys_fsync(list->fd) != 0) return fail_io(errno, "%s: cannot sync", list->temporary);
    if (sys_rename(list->temporary, list->path) != 0)
        return fail_io(errno, "%s: cannot rename %s to it", list->path, list->temporary);
    list->committed = true;
    return LH_OK;
}

/* leaves nothing uncommitted; NULL does nothing */
static void rejected_list_close(rejected_list_t *list)
{
    if (list == NULL) return;
    if (list->fd >= 0) {
        if (!list->committed) (void)sys()->unlink(list->temporary);
        (void)sys()->close(list->fd); /* and with it the lock */
    }
    text_free(&list->held);
    mem_free(list->temporary);
    mem_free(list->path);
    mem_free(list);
}

/* More threads than any machine has use for. */
enum { MOST_WORKERS = 1024 };

/* One run of the stage, on the caller's thread. */
typedef struct prepare {
    const prepare_how_t *how;
    prepare_ends_t ends;
    uint64_t rejected_limit; /* one more fails the stage */
    input_files_t files;
    indexed_writer_t *writer;
    rejected_list_t *rejected;
    chat_t *chat; /* NULL: lines are documents */
    encode_ring_t *ring;
    prepare_counts_t counts;
} prepare_t;

/* "fail", "skip" or "max:N" as the configuration has checked it: N may be 10k. */
static lh_status_t limit_parse(const char *text, uint64_t *out)
{
    *out = 0;
    if (strcmp(text, "skip") == 0) *out = UINT64_MAX;
    if (strcmp(text, "skip") == 0 || strcmp(text, "fail") == 0) return LH_OK;
    if (text_starts(text, "max:") && quantity_u64(text + 4, out)) return LH_OK;
    return fail(LH_INVALID, "[prepare] on_error = %s: fail, skip or max:N is expected", text);
}

/* The id of a special token that the job asks for; -1 is refused. */
static lh_status_t end_find(const char *key, const char *value, int32_t id, const char *name,
                            int32_t *out)
{
    if (id < 0)
        return fail(LH_INVALID, "[prepare] %s = %s, but the tokenizer has no %s token", key, value,
                    name);
    *out = id;
    return LH_OK;
}

/* The ids of what the job names; a tokenizer without such a token is refused before anything is
 * read. */
static lh_status_t ends_find(const prepare_how_t *how, prepare_ends_t *out)
{
    const tokenizer_special_t *special = tokenizer_special(how->tokenizer);
    *out = (prepare_ends_t){-1, -1};
    lh_status_t status = LH_OK;
    if (how->prepare->prepend == PREPEND_BOS)
        status = end_find("prepend", "bos", special->bos, "BOS", &out->prepend);
    if (status == LH_OK && how->prepare->append == APPEND_EOD)
        status = end_find("append", "eod", special->eod, "end-of-document", &out->append);
    if (status == LH_OK && how->prepare->append == APPEND_EOS)
        status = end_find("append", "eos", special->eos, "EOS", &out->append);
    return status;
}

/* 0: one for each processor that this process may keep busy. */
static uint32_t worker_count(uint64_t asked)
{
    if (asked > 0) return asked < MOST_WORKERS ? (uint32_t)asked : MOST_WORKERS;
    const uint32_t here = processors_count();
    return here < MOST_WORKERS ? here : MOST_WORKERS;
}

/* Lists a bad line, or ends the stage where one is one too many. */
static lh_status_t take_rejected(prepare_t *p, const encoded_line_t *line, const char *reason)
{
    lh_assert(line->file < p->files.count);
    const char *path = p->files.paths[line->file];
    p->counts.rejected++;
    /* Listed even if a later line ends the stage, as the list vanishes then anyway. */
    if (p->counts.rejected <= p->rejected_limit)
        return rejected_list_add(p->rejected, path, line->number, reason);
    if (p->rejected_limit == 0)
        return fail(LH_INVALID, "%s:%" PRIu64 ": %s", path, line->number, reason);
    return fail(LH_INVALID,
                "%s:%" PRIu64 ": %s; this is bad line %" PRIu64 ", [prepare] on_error = %s", path,
                line->number, reason, p->counts.rejected, p->how->prepare->on_error);
}

/* Writes a document, unless the job's filter drops it. The filter sees how many tokens it has, with
 * those around it. */
static lh_status_t take_document(prepare_t *p, const int32_t *ids, uint64_t count,
                                 const int32_t *lengths, uint64_t parts)
{
    bool keep = true;
    lh_status_t status = LH_OK;
    if (p->how->accept != NULL) status = p->how->accept(p->how->accept_context, count, &keep);
    if (status != LH_OK) return status;
    if (!keep) {
        p->counts.filtered++;
        return LH_OK;
    }
    status = parts > 0 ? indexed_writer_add_parts(p->writer, ids, lengths, parts)
                       : indexed_writer_add(p->writer, ids, count);
    if (status != LH_OK) return status;
    p->counts.documents++;
    p->counts.empty += count == 0 ? 1 : 0;
    p->counts.tokens += count;
    return LH_OK;
}

/* The ids of a batch lie one after the other in the order of its lines. */
static lh_status_t take_batch(prepare_t *p, const encoded_batch_t *batch)
{
    const int32_t *ids = batch->ids.ids, *parts = batch->parts.ids;
    for (size_t i = 0; i < batch->count; i++) {
        const encoded_line_t *line = &batch->lines[i];
        lh_status_t status = LH_OK;
        if (line->result == ENCODED_REJECTED)
            status = take_rejected(p, line, batch->reasons.data + line->reason_at);
        if (line->result == ENCODED_TEXT) {
            status = take_document(p, ids, line->tokens, parts, line->parts);
            ids = ids == NULL ? NULL : ids + line->tokens;
            parts = parts == NULL ? NULL : parts + line->parts;
        }
        if (status != LH_OK) return status;
    }
    p->counts.bytes_read = batch->taken;
    if (p->how->progress != NULL) p->how->progress(p->how->progress_context, &p->counts);
    return LH_OK;
}

/* Until the input ends or somebody wants the stage to stop, which is asked between batches. */
static lh_status_t take_all(prepare_t *p)
{
    for (;;) {
        const encoded_batch_t *batch;
        if (p->how->stopping != NULL && p->how->stopping())
            return fail(LH_CANCELLED, "prepare was stopped after %" PRIu64 " of %" PRIu64 " bytes",
                        p->counts.bytes_read, p->counts.bytes_total);
        lh_status_t status = encode_ring_next(p->ring, &batch);
        if (status != LH_OK || batch == NULL) return status;
        status = take_batch(p, batch);
        if (status != LH_OK) return status;
        encode_ring_return(p->ring);
    }
}

/* All that can be wrong with the job is found before the first line is read. */
static lh_status_t prepare_open(prepare_t *p)
{
    const job_prepare_t *job = p->how->prepare;
    lh_status_t status = limit_parse(job->on_error, &p->rejected_limit);
    const bool converses = chat_of(p->how) != CHAT_NONE;
    p->ends = (prepare_ends_t){-1, -1}; /* a format has what stands around its documents */
    if (status == LH_OK && !converses) status = ends_find(p->how, &p->ends);
    if (status == LH_OK && converses) status = chat_new(p->how->chat, p->how->tokenizer, &p->chat);
    if (status == LH_OK)
        status = input_files_find(p->how->base, job->input, p->how->own, &p->files);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < p->files.count; i++)
        p->counts.bytes_total += p->files.bytes[i];

    char *output = path_join(p->how->folder, job->output);
    if (output == NULL) return LH_NO_MEMORY;
    status = indexed_writer_open(output, (uint32_t)tokenizer_vocab_size(p->how->tokenizer),
                                 &p->writer);
    mem_free(output);
    if (status == LH_OK) status = rejected_list_open(p->how->folder, &p->rejected);
    if (status != LH_OK) return status;
    const encode_how_t encode = {
        .paths = (const char *const *)p->files.paths,
        .count = p->files.count,
        .key = job->key,
        .line_bytes = p->how->line_bytes,
        .window_bytes = p->how->window_bytes,
        .tokenizer = p->how->tokenizer,
        .chat = p->chat,
        .prepend = p->ends.prepend,
        .append = p->ends.append,
        .workers = worker_count(job->workers),
    };
    return encode_ring_start(&encode, &p->ring);
}

/* Makes everything appear. The summary goes first and comes last: where it stands, all it tells of
 * does too. */
static lh_status_t prepare_commit(prepare_t *p)
{
    lh_assert(p->writer != NULL && p->ring != NULL);
    /* A pair without a token would be refused by every reader: better to say so here. */
    if (p->counts.tokens == 0)
        return fail(LH_INVALID,
                    "%s holds no text: %" PRIu64 " documents, %" PRIu64 " rejected lines, %" PRIu64
                    " filtered documents",
                    p->how->prepare->input, p->counts.documents, p->counts.rejected,
                    p->counts.filtered);
    prepare_facts_t facts = {
        .how = p->how,
        .counts = &p->counts,
        .files = &p->files,
        .read = encode_ring_files(p->ring),
    };
    text_t summary = {0};
    lh_status_t status = indexed_writer_finish(p->writer, &facts.sums);
    if (status == LH_OK) status = prepare_summary_text(&facts, &summary);
    if (status == LH_OK) status = prepare_summary_remove(p->how->folder);
    if (status == LH_OK) status = rejected_list_commit(p->rejected);
    if (status == LH_OK) {
        /* The commit frees the writer, whatever it returns. */
        indexed_writer_t *writer = p->writer;
        p->writer = NULL;
        status = indexed_writer_commit(writer);
    }
    if (status == LH_OK) status = prepare_summary_write(p->how->folder, &summary);
    text_free(&summary);
    return status;
}

/* Folders that were not there before are taken away again on failure, if they are empty. */
lh_status_t prepare_run(const prepare_how_t *how, prepare_counts_t *out)
{
    prepare_t p = {.how = how};
    char *output = path_join(how->folder, how->prepare->output);
    char *beside = output == NULL ? NULL : path_folder(output);
    mem_free(output);
    if (beside == NULL) return LH_NO_MEMORY;
    /* How many folders of the path are not there yet and would be made. */
    const uint32_t missing = folders_missing(how->folder), missing_beside = folders_missing(beside);
    lh_status_t status = prepare_open(&p);
    if (status == LH_OK) status = take_all(&p);
    if (status == LH_OK) status = prepare_commit(&p);
    encode_ring_stop(p.ring);
    chat_free(p.chat);
    rejected_list_close(p.rejected);
    indexed_writer_discard(p.writer);
    input_files_free(&p.files);
    if (status == LH_OK) *out = p.counts;
    if (status != LH_OK) {
        folders_unmake(beside, missing_beside);
        folders_unmake(how->folder, missing);
    }
    mem_free(beside);
    return status;
}

/* Of a prepare.json, which has some values for each file of the input. */
enum { SUMMARY_MOST = 64 << 20, SUMMARY_VALUES = 4000000 };

/* {"bytes": 8, "sha256": "..."} */
static void put_sum(json_writer_t *w, const char *key, const pair_sum_t *sum)
{
    json_open(w, key, '{');
    json_put_u64(w, "bytes", sum->bytes);
    json_put_text(w, "sha256", sum->sha256);
    json_close(w);
}

/* What lies in the folder is named from there: both may be moved together. */
void prepare_record_put(json_writer_t *w, const char *folder, const char *output,
                        const pair_sums_t *sums)
{
    size_t length = strlen(folder);
    while (length > 0 && folder[length - 1] == '/')
        length--;
    const bool inside = strncmp(output, folder, length) == 0 && output[length] == '/';
    json_open(w, "pair", '{');
    json_put_text(w, "prefix", inside ? output + length + 1 : output);
    put_sum(w, "idx", &sums->idx);
    put_sum(w, "bin", &sums->bin);
    json_close(w);
}

void prepare_record_free(prepare_record_t *r)
{
    mem_free(r->summary);
    mem_free(r->idx);
    mem_free(r->bin);
    *r = (prepare_record_t){0};
}

/* The reverse of put_sum. */
static lh_status_t read_sum(const char *path, const char *key, const json_value_t *row,
                            pair_sum_t *out)
{
    const json_value_t *bytes = json_member(row, "bytes");
    const char *digest = json_text(json_member(row, "sha256"));
    if (!json_is_whole(bytes) || json_whole(bytes) < 0 || digest == NULL ||
        strlen(digest) != SHA256_TEXT - 1)
        return fail(LH_CORRUPT, "%s: pair: %s: a number of bytes and a SHA-256 were expected", path,
                    key);
    out->bytes = (uint64_t)json_whole(bytes);
    memcpy(out->sha256, digest, SHA256_TEXT);
    return LH_OK;
}

/* The record names the pair's prefix, relative to its folder where both lie together. */
static lh_status_t name_files(const char *folder, const char *name, prepare_record_t *r)
{
    text_t idx = {0}, bin = {0};
    char *prefix = path_join(folder, name);
    if (prefix == NULL) return LH_NO_MEMORY;
    text_printf(&idx, "%s.idx", prefix);
    text_printf(&bin, "%s.bin", prefix);
    mem_free(prefix);
    r->idx = idx.data;
    r->bin = bin.data;
    return idx.failed ? text_status(&idx) : text_status(&bin);
}

static lh_status_t read_pair(const char *folder, const json_value_t *pair, prepare_record_t *r)
{
    const char *prefix = json_text(json_member(pair, "prefix"));
    if (prefix == NULL)
        return fail(LH_CORRUPT, "%s: pair: prefix: a string was expected", r->summary);
    lh_status_t status = read_sum(r->summary, "idx", json_member(pair, "idx"), &r->sums.idx);
    if (status == LH_OK)
        status = read_sum(r->summary, "bin", json_member(pair, "bin"), &r->sums.bin);
    return status == LH_OK ? name_files(folder, prefix, r) : status;
}

/* The first file holds the vocabulary. Whoever wrote none has not told. */
static void read_tokenizer(const json_value_t *tokenizer, prepare_record_t *r)
{
    json_walk_t files = json_walk(json_member(tokenizer, "files"));
    const char *digest = json_next(&files) ? json_text(json_member(files.value, "sha256")) : NULL;
    if (digest != NULL && strlen(digest) == SHA256_TEXT - 1)
        memcpy(r->tokenizer, digest, SHA256_TEXT);
}

/* No file, and a file without "pair", are no failure: older versions wrote none. */
lh_status_t prepare_record_read(const char *folder, prepare_record_t *out)
{
    json_document_t *file = NULL;
    prepare_record_t r = {.summary = path_join(folder, summary_name)};
    if (r.summary == NULL) return LH_NO_MEMORY;
    *out = (prepare_record_t){0};
    lh_status_t status = LH_OK;
    if (file_exists(r.summary)) status = json_read(r.summary, SUMMARY_MOST, SUMMARY_VALUES, &file);
    const json_value_t *pair = json_member(json_root(file), "pair");
    if (status == LH_OK && pair != NULL) status = read_pair(folder, pair, &r);
    if (status == LH_OK) read_tokenizer(json_member(json_root(file), "tokenizer"), &r);
    if (status == LH_OK && pair != NULL)
        *out = r;
    else
        prepare_record_free(&r);
    json_free(file);
    return status;
}

/* The record in a folder, if it is of this index. A file of this name may be another program's, and
 * the pair too: what can't be read as a record is told and passed over. Files are compared as files
 * and not by path, so that links to a pair find its record. */
static lh_status_t find_in(const char *folder, const char *idx, prepare_record_t *out)
{
    lh_status_t status = prepare_record_read(folder, out);
    if (status == LH_INVALID || status == LH_CORRUPT) {
        log_line(LH_LOG_WARN, "%s; %s is not compared with it", fail_reason(), idx);
        fail_clear();
        status = LH_OK;
    }
    if (status == LH_OK && out->summary != NULL && !file_same(out->idx, idx))
        prepare_record_free(out);
    return status;
}

/* The record lies beside the pair, or in the pipeline's folder where the pair was written
 * elsewhere. */
lh_status_t prepare_record_find(const char *prefix, const char *folder, prepare_record_t *out)
{
    text_t idx = {0};
    char *beside = path_folder(prefix);
    *out = (prepare_record_t){0};
    text_printf(&idx, "%s.idx", prefix);
    lh_status_t status = beside == NULL ? LH_NO_MEMORY : text_status(&idx);
    if (status == LH_OK) status = find_in(beside, idx.data, out);
    if (status == LH_OK && out->summary == NULL && folder != NULL && !text_equal(folder, beside))
        status = find_in(folder, idx.data, out);
    text_free(&idx);
    mem_free(beside);
    return status;
}

/* Length only: what a copy that was cut off shows. */
static lh_status_t pair_check_bytes(const prepare_record_t *r, const char *path,
                                    const pair_sum_t *sum)
{
    struct stat st;
    if (sys()->stat(path, &st) != 0) return fail_io(errno, "%s: cannot stat", path);
    if ((uint64_t)st.st_size == sum->bytes) return LH_OK;
    return fail(LH_CORRUPT, "%s: %lld bytes, %s says %llu; prepare it again", path,
                (long long)st.st_size, r->summary, (unsigned long long)sum->bytes);
}

/* Length and digest: reads the whole file. */
static lh_status_t pair_check_whole(const prepare_record_t *r, const char *path,
                                    const pair_sum_t *sum)
{
    char found[SHA256_TEXT];
    lh_status_t status = pair_check_bytes(r, path, sum);
    if (status == LH_OK) status = file_digest(path, found);
    if (status != LH_OK || strcmp(found, sum->sha256) == 0) return status;
    return fail(LH_CORRUPT, "%s: its SHA-256 is %s, %s says %s; prepare it again", path, found,
                r->summary, sum->sha256);
}

/* What a run can afford before each start: the index is small beside the .bin. */
lh_status_t prepare_record_check(const prepare_record_t *r)
{
    if (r->summary == NULL) return LH_OK;
    const lh_status_t status = pair_check_bytes(r, r->bin, &r->sums.bin);
    return status == LH_OK ? prepare_record_check_idx(r) : status;
}

lh_status_t prepare_record_check_idx(const prepare_record_t *r)
{
    return pair_check_whole(r, r->idx, &r->sums.idx);
}

lh_status_t prepare_record_check_bin(const prepare_record_t *r)
{
    return pair_check_whole(r, r->bin, &r->sums.bin);
}
