/* encode_documents.c - a reader, some workers and a ring of batches between them; and a reader of
 * documents without threads.
 *
 * The ring has a fixed number of slots and batch n lies in slot n % slots. Three counts say how far
 * it has turned: filled by the reader, taken by workers, returned by the caller. Each only grows,
 * and returned <= taken <= filled <= returned + slots. Workers finish in any order, so each batch
 * has a flag of its own, and the caller waits for the one whose turn it is: that is what makes the
 * output independent of the number of threads.
 *
 * One lock guards the counts; nobody holds it while working on a batch. Failures travel with the
 * batch in which they happened and are reported when its turn comes, so they too come in the order
 * of the input. */
#include <data/encode_documents.h>

#include <errno.h>
#include <pthread.h>

#include <base/memory.h>
#include <base/thread.h>
#include <data/input_lines.h>
#include <format/json.h>

/* A batch is full at either: large enough that the lock does not count, small enough that all
 * workers have one near the end of the input. */
enum { BATCH_BYTES = 128 * 1024, BATCH_LINES = 4096 };
/* A batch that one long document blew up gives its memory back. */
enum { KEPT_BYTES = 8 * 1024 * 1024 };

struct encode_ring {
    encode_how_t how;
    line_reader_t *reader;
    encoded_batch_t *batches; /* [slots]; batch n lies in slot n % slots */
    /* two a worker, one for the reader and one for the caller */
    uint64_t slots;

    pthread_mutex_t lock; /* guards what follows, and `encoded` of each batch */
    /* a slot is free for the reader; a batch is there for a worker; a batch is done for the
     * caller */
    pthread_cond_t room, work, done;
    uint64_t filled, taken, returned; /* batches that passed each point */
    bool all_filled, stopping;
    pthread_t *threads; /* [workers + 1] */
    uint32_t thread_count;
};

/* Keeps the calling thread's reason with the batch, for the thread that will report it. */
static void batch_failed(encoded_batch_t *b, lh_status_t status)
{
    b->status = status;
    text_append(&b->why, fail_reason());
}

/* Copies a line out of the reader's buffer, which the next line will write over. */
static lh_status_t line_put(encoded_batch_t *b, const line_t *line)
{
    encoded_line_t *lines = mem_grow(b->lines, &b->line_capacity, b->count + 1, sizeof(*lines));
    if (lines == NULL) return LH_NO_MEMORY;
    b->lines = lines;
    char *bytes = mem_grow(b->bytes, &b->bytes_capacity, b->length + line->length + 1, 1);
    if (bytes == NULL) return LH_NO_MEMORY;
    b->bytes = bytes;

    if (line->length > 0) memcpy(bytes + b->length, line->bytes, line->length);
    lines[b->count++] = (encoded_line_t){
        .number = line->number,
        .file = line->file,
        .at = b->length,
        .length = line->length,
        .too_long = line->too_long,
    };
    b->length += line->length;
    return LH_OK;
}

/* Memory stays for the next round, within bounds. */
static void batch_empty(encoded_batch_t *b)
{
    if (b->bytes_capacity > KEPT_BYTES) {
        mem_free(b->bytes);
        b->bytes = NULL;
        b->bytes_capacity = 0;
    }
    if (b->ids.capacity > KEPT_BYTES / sizeof(*b->ids.ids)) token_ids_free(&b->ids);
    b->ids.count = b->parts.count = b->count = b->length = b->reasons.length = b->why.length = 0;
    b->status = LH_OK;
    b->last = b->encoded = false;
}

/* Lines until the batch is full or the input ends; a failure of reading ends it as well. */
static void batch_fill(encode_ring_t *ring, encoded_batch_t *b)
{
    while (b->length < BATCH_BYTES && b->count < BATCH_LINES && !b->last) {
        line_t line;
        lh_status_t status = line_reader_next(ring->reader, &line, &b->last);
        if (status == LH_OK && !b->last) status = line_put(b, &line);
        if (status != LH_OK) {
            batch_failed(b, status);
            b->last = true;
        }
    }
    b->taken = line_reader_taken(ring->reader);
}

/* The reader's thread: waits for a free slot, fills it, tells the workers. */
static void *reader_run(void *argument)
{
    encode_ring_t *ring = argument;
    for (bool last = false; !last;) {
        (void)pthread_mutex_lock(&ring->lock);
        while (ring->filled - ring->returned == ring->slots && !ring->stopping)
            (void)pthread_cond_wait(&ring->room, &ring->lock);
        /* Looked at under the lock; the batch is the reader's alone until filled grows. */
        const bool stopping = ring->stopping;
        encoded_batch_t *b = &ring->batches[ring->filled % ring->slots];
        (void)pthread_mutex_unlock(&ring->lock);
        if (stopping) break;

        batch_empty(b);
        batch_fill(ring, b);
        last = b->last;
        (void)pthread_mutex_lock(&ring->lock);
        lh_assert(ring->filled - ring->returned < ring->slots);
        ring->filled++;
        ring->all_filled = last;
        (void)pthread_cond_broadcast(&ring->work);
        (void)pthread_mutex_unlock(&ring->lock);
    }
    return NULL;
}

/* Appends a document's ids with what goes around it. As Megatron's preprocess_data: what has no
 * tokens gets no end token either. */
static lh_status_t document_encode(const encode_how_t *how, tokenizer_scratch_t *scratch,
                                   const char *text, size_t length, token_ids_t *ids)
{
    const size_t before = ids->count;
    lh_status_t status = LH_OK;
    if (how->prepend >= 0) status = token_ids_add(ids, how->prepend);
    const size_t begin = ids->count;
    if (status == LH_OK)
        status = tokenizer_encode(how->tokenizer, scratch, text, length, SPELLING_AS_REFERENCE,
                                  ids);
    if (status != LH_OK) return status;
    if (ids->count == begin) {
        ids->count = before;
        return LH_OK;
    }
    return how->append >= 0 ? token_ids_add(ids, how->append) : LH_OK;
}

/* What the tokenizer refuses is a bad line like any other; anything else ends the stage. */
static lh_status_t line_tokenize(const encode_how_t *how, tokenizer_scratch_t *scratch,
                                 encoded_batch_t *b, encoded_line_t *line, const char *text,
                                 size_t length)
{
    const size_t before = b->ids.count;
    const lh_status_t status = document_encode(how, scratch, text, length, &b->ids);
    if (status == LH_INVALID) {
        b->ids.count = before;
        text_append(&b->reasons, fail_reason());
        return LH_OK;
    }
    line->result = ENCODED_TEXT;
    line->tokens = b->ids.count - before;
    return status;
}

/* What a worker keeps from line to line. */
typedef struct worker {
    tokenizer_scratch_t *scratch;
    json_document_t *document;
    chat_scratch_t chat;
} worker_t;

/* A line as a conversation. */
static lh_status_t line_converse(const encode_how_t *how, worker_t *worker, encoded_batch_t *b,
                                 encoded_line_t *line)
{
    const size_t ids = b->ids.count, parts = b->parts.count;
    const lh_status_t status = chat_encode(how->chat, &worker->chat, worker->scratch,
                                           b->bytes + line->at, line->length, &b->ids, &b->parts);
    if (status != LH_OK) return status;
    line->result = ENCODED_TEXT;
    line->tokens = b->ids.count - ids;
    line->parts = b->parts.count - parts;
    return LH_OK;
}

/* Sets the result of a line. Anything but LH_OK is a failure of ours, such as missing memory, and
 * ends the stage; what is wrong with the line is a sentence in b->reasons. */
static lh_status_t line_encode(const encode_how_t *how, worker_t *worker, encoded_batch_t *b,
                               encoded_line_t *line)
{
    const char *bytes = b->bytes + line->at, *text;
    size_t length;
    lh_status_t status = LH_OK;
    line->result = ENCODED_REJECTED;
    line->reason_at = b->reasons.length;
    if (line->too_long) {
        text_printf(&b->reasons, "longer than %llu bytes", (unsigned long long)how->line_bytes);
    } else if (json_line_blank(bytes, line->length)) {
        line->result = ENCODED_BLANK;
        return LH_OK;
    } else {
        if (how->chat != NULL)
            status = line_converse(how, worker, b, line);
        else
            status = json_line_text(bytes, line->length, how->key, &worker->document, &text,
                                    &length);
        if (status == LH_OK && how->chat == NULL)
            status = line_tokenize(how, worker->scratch, b, line, text, length);
        else if (status == LH_INVALID)
            text_append(&b->reasons, fail_reason());
        if (status != LH_INVALID && (status != LH_OK || line->result == ENCODED_TEXT))
            return status;
    }
    text_append_n(&b->reasons, "", 1);
    return text_status(&b->reasons);
}

/* Up to the first failure. */
static void batch_encode(const encode_how_t *how, worker_t *worker, encoded_batch_t *b)
{
    for (size_t i = 0; i < b->count && b->status == LH_OK; i++) {
        const lh_status_t status = line_encode(how, worker, b, &b->lines[i]);
        if (status != LH_OK) batch_failed(b, status);
    }
}

/* The next batch that no worker has; NULL when there will be none. */
static encoded_batch_t *batch_take(encode_ring_t *ring)
{
    encoded_batch_t *b = NULL;
    (void)pthread_mutex_lock(&ring->lock);
    while (ring->taken == ring->filled && !ring->all_filled && !ring->stopping)
        (void)pthread_cond_wait(&ring->work, &ring->lock);
    if (ring->taken < ring->filled && !ring->stopping)
        b = &ring->batches[ring->taken++ % ring->slots];
    (void)pthread_mutex_unlock(&ring->lock);
    return b;
}

/* A worker's thread. One that gets no memory for its scratch still takes batches: it marks them as
 * failed, so that the caller does not wait for ever. */
static void *worker_run(void *argument)
{
    encode_ring_t *ring = argument;
    worker_t worker = {0};
    const lh_status_t made = tokenizer_scratch_new(ring->how.tokenizer, &worker.scratch);
    encoded_batch_t *b;
    while ((b = batch_take(ring)) != NULL) {
        if (made != LH_OK && b->status == LH_OK) batch_failed(b, made);
        batch_encode(&ring->how, &worker, b);
        (void)pthread_mutex_lock(&ring->lock);
        lh_assert(!b->encoded);
        b->encoded = true;
        (void)pthread_cond_signal(&ring->done);
        (void)pthread_mutex_unlock(&ring->lock);
    }
    json_free(worker.document);
    chat_scratch_free(&worker.chat);
    if (made == LH_OK) tokenizer_scratch_free(worker.scratch);
    return NULL;
}

static lh_status_t ring_threads_start(encode_ring_t *ring)
{
    int error = 0;
    for (uint32_t i = 0; i <= ring->how.workers && error == 0; i++) {
        error = i == 0 ? thread_start(&ring->threads[i], "lh-read", reader_run, ring)
                       : thread_start(&ring->threads[i], "lh-encode", worker_run, ring);
        if (error == 0) ring->thread_count++;
    }
    /* thread_start returns what other calls set errno to. */
    errno = error;
    return error == 0 ? LH_OK
                      : fail_io(errno, "cannot start %u threads to tokenize", ring->how.workers);
}

/* Where a thread can't be started, those that were are stopped again. */
lh_status_t encode_ring_start(const encode_how_t *how, encode_ring_t **out)
{
    lh_assert(how->workers > 0 && how->count > 0);
    encode_ring_t *ring = mem_new(sizeof(*ring));
    if (ring == NULL) return LH_NO_MEMORY;
    ring->how = *how;
    ring->slots = 2 * (uint64_t)how->workers + 2;
    (void)pthread_mutex_init(&ring->lock, NULL);
    (void)pthread_cond_init(&ring->room, NULL);
    (void)pthread_cond_init(&ring->work, NULL);
    (void)pthread_cond_init(&ring->done, NULL);

    lh_status_t status = LH_NO_MEMORY;
    ring->batches = mem_array(ring->slots, sizeof(*ring->batches));
    ring->threads = mem_array((size_t)how->workers + 1, sizeof(*ring->threads));
    if (ring->batches != NULL && ring->threads != NULL)
        status = line_reader_new(how->paths, how->count, how->line_bytes, how->window_bytes,
                                 &ring->reader);
    if (status == LH_OK) status = ring_threads_start(ring);
    if (status != LH_OK) {
        encode_ring_stop(ring);
        return status;
    }
    *out = ring;
    return LH_OK;
}

/* Also for a ring that was only half made: what is not there yet is NULL or counted as 0. */
void encode_ring_stop(encode_ring_t *ring)
{
    if (ring == NULL) return;
    (void)pthread_mutex_lock(&ring->lock);
    ring->stopping = true;
    (void)pthread_cond_broadcast(&ring->room);
    (void)pthread_cond_broadcast(&ring->work);
    (void)pthread_mutex_unlock(&ring->lock);
    for (uint32_t i = 0; i < ring->thread_count; i++)
        (void)pthread_join(ring->threads[i], NULL);

    for (uint64_t i = 0; i < ring->slots && ring->batches != NULL; i++) {
        encoded_batch_t *b = &ring->batches[i];
        text_free(&b->why);
        text_free(&b->reasons);
        token_ids_free(&b->ids);
        token_ids_free(&b->parts);
        mem_free(b->lines);
        mem_free(b->bytes);
    }
    line_reader_free(ring->reader);
    mem_free(ring->threads);
    mem_free(ring->batches);
    (void)pthread_cond_destroy(&ring->done);
    (void)pthread_cond_destroy(&ring->work);
    (void)pthread_cond_destroy(&ring->room);
    (void)pthread_mutex_destroy(&ring->lock);
    mem_free(ring);
}

/* The reader sets all_filled together with filled, and the input has a last batch even where it has
 * no line, so the ring has ended once that one was returned. */
lh_status_t encode_ring_next(encode_ring_t *ring, const encoded_batch_t **out)
{
    (void)pthread_mutex_lock(&ring->lock);
    const encoded_batch_t *b = &ring->batches[ring->returned % ring->slots];
    const bool ended = ring->all_filled && ring->returned == ring->filled;
    while (!ended && !(ring->returned < ring->filled && b->encoded))
        (void)pthread_cond_wait(&ring->done, &ring->lock);
    (void)pthread_mutex_unlock(&ring->lock);

    /* The sentence was kept with the batch, as a reason belongs to the thread that has failed. */
    if (!ended && b->status != LH_OK) {
        return fail(b->status, "%s", b->why.data == NULL ? "out of memory" : b->why.data);
    }
    *out = ended ? NULL : b;
    return LH_OK;
}

/* The slot is the reader's again. */
void encode_ring_return(encode_ring_t *ring)
{
    (void)pthread_mutex_lock(&ring->lock);
    lh_assert(ring->returned < ring->filled);
    ring->returned++;
    (void)pthread_cond_signal(&ring->room);
    (void)pthread_mutex_unlock(&ring->lock);
}

const line_file_t *encode_ring_files(const encode_ring_t *ring)
{
    return line_reader_files(ring->reader);
}

/* A reader of documents, one thread's. */
struct documents {
    documents_how_t how;
    input_texts_t *lines;
    tokenizer_scratch_t *scratch;
    token_ids_t ids;
};

/* That a tokenizer has no BOS is found here and not at the first document. */
lh_status_t documents_open(const documents_how_t *how, documents_t **out)
{
    if (how->bos && tokenizer_special(how->tokenizer)->bos < 0)
        return fail(LH_INVALID, "%s is to begin with BOS, but the tokenizer has none", how->path);
    documents_t *d = mem_new(sizeof(*d));
    if (d == NULL) return LH_NO_MEMORY;
    d->how = *how;
    lh_status_t status = tokenizer_scratch_new(how->tokenizer, &d->scratch);
    if (status == LH_OK)
        status = input_texts_open(&d->how.path, 1, how->key, how->line_bytes, how->window_bytes,
                                  &d->lines);
    if (status != LH_OK) {
        documents_close(d);
        return status;
    }
    *out = d;
    return LH_OK;
}

void documents_close(documents_t *d)
{
    if (d == NULL) return;
    input_texts_close(d->lines);
    tokenizer_scratch_free(d->scratch);
    token_ids_free(&d->ids);
    mem_free(d);
}

/* A document is cut behind the tokenizer and not before: how many tokens a text has is not known
 * earlier. */
lh_status_t documents_next(documents_t *d, const int32_t **ids, size_t *count, bool *end)
{
    const char *text;
    size_t length;
    lh_status_t status = input_texts_next(d->lines, &text, &length, end);
    if (status != LH_OK || *end) return status;

    d->ids.count = 0;
    if (d->how.bos) status = token_ids_add(&d->ids, tokenizer_special(d->how.tokenizer)->bos);
    if (status == LH_OK)
        status = tokenizer_encode(d->how.tokenizer, d->scratch, text, length, SPELLING_AS_REFERENCE,
                                  &d->ids);
    if (status != LH_OK) return input_texts_place(d->lines, status);
    *ids = d->ids.ids;
    *count = d->how.tokens != 0 && d->ids.count > d->how.tokens ? d->how.tokens : d->ids.count;
    return LH_OK;
}
