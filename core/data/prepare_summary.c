/* prepare_summary.c - writes prepare.json and prepare.rejected.txt. */
#include <data/prepare_summary.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <data/json_parse.h>

static const char summary_name[] = "prepare.json";
static const char rejected_name[] = "prepare.rejected.txt";
enum { FLUSH_BYTES = 64 * 1024 };

/* A file's name may be any bytes; a JSON string holds UTF-8. */
static json_t *shown_path(const char *path)
{
    text_t shown = {0};
    text_append_shown(&shown, path, false);
    json_t *string = shown.failed || shown.data == NULL ? NULL : json_string(shown.data);
    text_free(&shown);
    return string;
}

/* Takes the reference to files and gives it back, or NULL without memory. */
static json_t *with_file(json_t *files, json_t *file)
{
    if (files != NULL && json_array_append_new(files, file) == 0) return files;
    if (files == NULL) json_decref(file);
    json_decref(files);
    return NULL;
}

static lh_status_t digests_of_tokenizer(const tokenizer_t *t, json_t **out)
{
    json_t *files = json_array();
    for (size_t i = 0; i < tokenizer_file_count(t) && files != NULL; i++) {
        char digest[SHA256_TEXT];
        const lh_status_t status = sha256_file(tokenizer_file(t, i), digest);
        if (status != LH_OK) {
            json_decref(files);
            return status;
        }
        files = with_file(files, json_pack("{so, ss}", "path", shown_path(tokenizer_file(t, i)),
                                           "sha256", digest));
    }
    *out = files;
    return files != NULL ? LH_OK : fail(LH_NO_MEMORY, "out of memory: %s", summary_name);
}

static json_t *digests_of_input(const prepare_facts_t *facts)
{
    json_t *files = json_array();
    for (uint32_t i = 0; i < facts->files->count && files != NULL; i++)
        files = with_file(
            files, json_pack("{so, sI, ss}", "path", shown_path(facts->files->paths[i]), "bytes",
                             (json_int_t)facts->read[i].bytes, "sha256", facts->read[i].sha256));
    return files;
}

/* Takes the reference to tokenizer. */
static json_t *summary(const prepare_facts_t *facts, json_t *tokenizer)
{
    static const char *const prepends[] = {"none", "bos"}, *const appends[] = {"none", "eod",
                                                                               "eos"};
    const prepare_how_t *how = facts->how;
    const prepare_counts_t *c = facts->counts;
    /* clang-format off */
    return json_pack("{ss, ss, ss, ss, sI, sI, sI, sI, sI, s{ss, sI, so}, so, so}",
                     "output", how->prepare->output, "key", how->prepare->key,
                     "prepend", prepends[how->prepare->prepend],
                     "append", appends[how->prepare->append],
                     "documents", (json_int_t)c->documents,
                     "empty", (json_int_t)c->empty,
                     "tokens", (json_int_t)c->tokens,
                     "rejected", (json_int_t)c->rejected,
                     "filtered", (json_int_t)c->filtered,
                     "tokenizer",
                     "kind", tokenizer_kind(how->tokenizer),
                     "vocabulary", (json_int_t)tokenizer_vocab_size(how->tokenizer),
                     "files", tokenizer,
                     "files", digests_of_input(facts),
                     "pair", pair_record_json(how->folder, how->prepare->output, &facts->sums));
    /* clang-format on */
}

lh_status_t prepare_summary_text(const prepare_facts_t *facts, char **out)
{
    json_t *tokenizer;
    json_use_memory();
    const lh_status_t status = digests_of_tokenizer(facts->how->tokenizer, &tokenizer);
    if (status != LH_OK) return status;
    json_t *root = summary(facts, tokenizer);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    json_decref(root);
    if (text == NULL) return fail(LH_NO_MEMORY, "out of memory: %s", summary_name);
    *out = mem_text(text);
    free(text);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

lh_status_t prepare_summary_write(const char *folder, const char *text)
{
    char *path = path_join(folder, summary_name);
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_replace(path, text, strlen(text));
    mem_free(path);
    return status;
}

static lh_status_t remove_file(const char *path)
{
    if (sys()->unlink(path) == 0 || errno == ENOENT) return LH_OK;
    return fail(LH_IO, "%s: cannot remove", path);
}

lh_status_t prepare_summary_remove(const char *folder)
{
    char *path = path_join(folder, summary_name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = remove_file(path);
    mem_free(path);
    /* The pair may lie in another folder: no power loss leaves the old one beside a new pair. */
    if (status == LH_OK) status = folder_sync(folder);
    return status;
}

struct rejected_list {
    char *path, *temporary;
    int fd;
    text_t held;
    bool any, committed;
};

lh_status_t rejected_list_open(const char *folder, rejected_list_t **out)
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

lh_status_t rejected_list_add(rejected_list_t *list, const char *path, uint64_t line,
                              const char *reason)
{
    text_append_shown(&list->held, path, false);
    text_printf(&list->held, ":%" PRIu64 ": %s\n", line, reason);
    list->any = true;
    const lh_status_t status = text_status(&list->held);
    return status == LH_OK && list->held.length > FLUSH_BYTES ? rejected_flush(list) : status;
}

lh_status_t rejected_list_commit(rejected_list_t *list)
{
    if (!list->any) return remove_file(list->path);
    const lh_status_t status = rejected_flush(list);
    if (status != LH_OK) return status;
    if (sys_fsync(list->fd) != 0) return fail(LH_IO, "%s: cannot sync", list->temporary);
    if (sys_rename(list->temporary, list->path) != 0)
        return fail(LH_IO, "%s: cannot rename %s to it", list->path, list->temporary);
    list->committed = true;
    return LH_OK;
}

void rejected_list_close(rejected_list_t *list)
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
