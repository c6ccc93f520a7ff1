/* batch_dump.c - streams batch after batch into three tensors. */
#include <train/batch_dump.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <checkpoint/safetensors_writer.h>

static lh_status_t write_batches(safetensors_writer_t *w, batches_t *data, uint64_t count,
                                 uint64_t batch, const batch_rows_t *rows, uint64_t bytes)
{
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; i < count && status == LH_OK; i++) {
        status = batches_fill(data, i * batch, batch, rows);
        if (status == LH_OK) status = safetensors_write(w, 0, i * bytes, rows->tokens, bytes);
        if (status == LH_OK) status = safetensors_write(w, 1, i * bytes, rows->labels, bytes);
        if (status == LH_OK) status = safetensors_write(w, 2, i * bytes, rows->weights, bytes);
    }
    return status;
}

static lh_status_t write_file(const char *path, batches_t *data, uint64_t count, uint64_t batch,
                              uint64_t sequence, const batch_rows_t *rows)
{
    const safetensors_row_t tensors[] = {
        {"tokens", LH_DTYPE_I32, 3, {count, batch, sequence}},
        {"labels", LH_DTYPE_I32, 3, {count, batch, sequence}},
        {"weights", LH_DTYPE_F32, 3, {count, batch, sequence}},
    };
    safetensors_writer_t *w;
    lh_status_t status = safetensors_create(path, tensors, 3, NULL, 0, &w);
    if (status != LH_OK) return status;
    status = write_batches(w, data, count, batch, rows, batch * sequence * 4);
    if (status == LH_OK) return safetensors_finish(w, NULL);
    safetensors_abandon(w);
    return status;
}

lh_status_t batch_dump(const char *path, batches_t *data, uint64_t count, uint64_t batch,
                       uint64_t sequence, uint64_t max_documents)
{
    text_t temporary = {0};
    text_printf(&temporary, "%s.tmp", path);
    batch_rows_t rows = {.tokens = mem_array(batch * sequence, 4),
                         .labels = mem_array(batch * sequence, 4),
                         .positions = mem_array(batch * sequence, 4),
                         .weights = mem_array(batch * sequence, 4),
                         .starts = mem_array(max_documents + 1, 4),
                         .max_documents = max_documents};
    lh_status_t status = text_status(&temporary);
    if (rows.tokens == NULL || rows.labels == NULL || rows.positions == NULL ||
        rows.weights == NULL || rows.starts == NULL)
        status = LH_NO_MEMORY;
    if (status == LH_OK) {
        (void)sys()->unlink(temporary.data); /* of a run that was killed here */
        status = write_file(temporary.data, data, count, batch, sequence, &rows);
    }
    if (status == LH_OK && sys_rename(temporary.data, path) != 0)
        status = fail(LH_IO, "%s: cannot rename %s to it", path, temporary.data);
    if (status != LH_OK && !temporary.failed) (void)sys()->unlink(temporary.data);
    mem_free(rows.starts);
    mem_free(rows.weights);
    mem_free(rows.positions);
    mem_free(rows.labels);
    mem_free(rows.tokens);
    text_free(&temporary);
    return status;
}
