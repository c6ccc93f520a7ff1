/* prepare.c - takes batches of tokenized lines in input order and writes what comes of them. */
#include <data/prepare.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <data/encode_ring.h>
#include <data/indexed_writer.h>
#include <data/input_files.h>
#include <data/prepare_summary.h>

enum { MOST_WORKERS = 1024 };

typedef struct prepare {
    const prepare_how_t *how;
    prepare_ends_t ends;
    uint64_t rejected_limit; /* one more fails the stage */
    input_files_t files;
    indexed_writer_t *writer;
    rejected_list_t *rejected;
    encode_ring_t *ring;
    prepare_counts_t counts;
} prepare_t;

/* "fail", "skip" or "max:N" as the configuration has checked it. */
static lh_status_t limit_parse(const char *text, uint64_t *out)
{
    *out = 0;
    if (strcmp(text, "skip") == 0) *out = UINT64_MAX;
    if (strcmp(text, "skip") == 0 || strcmp(text, "fail") == 0) return LH_OK;
    char *end;
    errno = 0;
    const bool max = text_starts(text, "max:") && text[4] >= '0' && text[4] <= '9';
    if (max) *out = strtoull(text + 4, &end, 10);
    if (!max || *end != '\0' || errno != 0)
        return fail(LH_INVALID, "[prepare] on_error = %s: fail, skip or max:N is expected", text);
    return LH_OK;
}

static lh_status_t end_find(const char *key, const char *value, int32_t id, const char *name,
                            int32_t *out)
{
    if (id < 0)
        return fail(LH_INVALID, "[prepare] %s = %s, but the tokenizer has no %s token", key, value,
                    name);
    *out = id;
    return LH_OK;
}

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

static uint32_t worker_count(uint64_t asked)
{
    if (asked > 0) return asked < MOST_WORKERS ? (uint32_t)asked : MOST_WORKERS;
    const long here = sysconf(_SC_NPROCESSORS_ONLN);
    return here < 1 ? 1 : here > MOST_WORKERS ? MOST_WORKERS : (uint32_t)here;
}

static lh_status_t take_rejected(prepare_t *p, const encoded_line_t *line, const char *reason)
{
    const char *path = p->files.paths[line->file];
    p->counts.rejected++;
    if (p->counts.rejected <= p->rejected_limit)
        return rejected_list_add(p->rejected, path, line->number, reason);
    if (p->rejected_limit == 0)
        return fail(LH_INVALID, "%s:%" PRIu64 ": %s", path, line->number, reason);
    return fail(LH_INVALID,
                "%s:%" PRIu64 ": %s; this is bad line %" PRIu64 ", [prepare] on_error = %s", path,
                line->number, reason, p->counts.rejected, p->how->prepare->on_error);
}

static lh_status_t take_document(prepare_t *p, const int32_t *ids, uint64_t count)
{
    bool keep = true;
    lh_status_t status = LH_OK;
    if (p->how->accept != NULL) status = p->how->accept(p->how->accept_context, count, &keep);
    if (status != LH_OK) return status;
    if (!keep) {
        p->counts.filtered++;
        return LH_OK;
    }
    status = indexed_writer_add(p->writer, ids, count);
    if (status != LH_OK) return status;
    p->counts.documents++;
    p->counts.empty += count == 0 ? 1 : 0;
    p->counts.tokens += count;
    return LH_OK;
}

static lh_status_t take_batch(prepare_t *p, const encoded_batch_t *batch)
{
    const int32_t *ids = batch->ids.ids;
    for (size_t i = 0; i < batch->count; i++) {
        const encoded_line_t *line = &batch->lines[i];
        lh_status_t status = LH_OK;
        if (line->result == ENCODED_REJECTED)
            status = take_rejected(p, line, batch->reasons.data + line->reason_at);
        if (line->result == ENCODED_TEXT) {
            status = take_document(p, ids, line->tokens);
            ids = ids == NULL ? NULL : ids + line->tokens;
        }
        if (status != LH_OK) return status;
    }
    p->counts.bytes_read = batch->taken;
    if (p->how->progress != NULL) p->how->progress(p->how->progress_context, &p->counts);
    return LH_OK;
}

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

static lh_status_t prepare_open(prepare_t *p)
{
    const job_prepare_t *job = p->how->prepare;
    lh_status_t status = limit_parse(job->on_error, &p->rejected_limit);
    if (status == LH_OK) status = ends_find(p->how, &p->ends);
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
        .tokenizer = p->how->tokenizer,
        .prepend = p->ends.prepend,
        .append = p->ends.append,
        .workers = worker_count(job->workers),
    };
    return encode_ring_start(&encode, &p->ring);
}

/* The summary goes first and comes last: where it stands, all it tells of does too. */
static lh_status_t prepare_commit(prepare_t *p)
{
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
    char *summary = NULL;
    lh_status_t status = indexed_writer_finish(p->writer, &facts.sums);
    if (status == LH_OK) status = prepare_summary_text(&facts, &summary);
    if (status == LH_OK) status = prepare_summary_remove(p->how->folder);
    if (status == LH_OK) status = rejected_list_commit(p->rejected);
    if (status == LH_OK) {
        indexed_writer_t *writer = p->writer;
        p->writer = NULL;
        status = indexed_writer_commit(writer);
    }
    if (status == LH_OK) status = prepare_summary_write(p->how->folder, summary);
    mem_free(summary);
    return status;
}

lh_status_t prepare_run(const prepare_how_t *how, prepare_counts_t *out)
{
    prepare_t p = {.how = how};
    char *output = path_join(how->folder, how->prepare->output);
    char *beside = output == NULL ? NULL : path_folder(output);
    mem_free(output);
    if (beside == NULL) return LH_NO_MEMORY;
    const uint32_t missing = folders_missing(how->folder), missing_beside = folders_missing(beside);
    lh_status_t status = prepare_open(&p);
    if (status == LH_OK) status = take_all(&p);
    if (status == LH_OK) status = prepare_commit(&p);
    encode_ring_stop(p.ring);
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
