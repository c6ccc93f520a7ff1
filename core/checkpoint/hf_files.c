/* hf_files.c - copies by a list of known names: nothing else of a stranger's folder is carried
 * along. */
#include <checkpoint/hf_files.h>

#include <fcntl.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>

enum { FILE_MOST = 256 << 20 };

static const char *const carried[] = {
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};
/* Files that belong to the tokenizer that is named by the first. */
static const struct {
    const char *file, *with;
} together[] = {
    {"vocab.json", "merges.txt"},
    {"merges.txt", "vocab.json"},
    {"tokenizer.json", "tokenizer_config.json"},
    {"tokenizer.json", "special_tokens_map.json"},
    {"tokenizer.model", "tokenizer_config.json"},
};

static lh_status_t write_new(const char *path, const char *data, size_t length)
{
    const int fd = sys()->open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0) return fail(LH_IO, "%s: cannot create", path);
    lh_status_t status = file_write(fd, path, data, length);
    if (status == LH_OK && sys()->fsync(fd) != 0) status = fail(LH_IO, "%s: cannot sync", path);
    if (sys()->close(fd) != 0 && status == LH_OK) status = fail(LH_IO, "%s: cannot close", path);
    return status;
}

static lh_status_t copy_file(const char *from, const char *to_folder, const char *name)
{
    char *data = NULL, *to = path_join(to_folder, name);
    size_t length;
    lh_status_t status = to == NULL ? LH_NO_MEMORY : file_read(from, FILE_MOST, &data, &length);
    if (status == LH_OK && !file_exists(to)) status = write_new(to, data, length);
    mem_free(data);
    mem_free(to);
    return status;
}

static lh_status_t copy_if_there(const char *from_folder, const char *to, const char *name)
{
    char *from = path_join(from_folder, name);
    if (from == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_exists(from) ? copy_file(from, to, name) : LH_OK;
    mem_free(from);
    return status;
}

lh_status_t hf_files_copy(const char *from, const char *to)
{
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < sizeof(carried) / sizeof(carried[0]) && status == LH_OK; i++)
        status = copy_if_there(from, to, carried[i]);
    return status;
}

lh_status_t hf_files_copy_tokenizer(const char *file, const char *to)
{
    struct stat st;
    if (sys()->stat(file, &st) == 0 && S_ISDIR(st.st_mode)) return hf_files_copy(file, to);

    lh_status_t status = copy_file(file, to, path_name(file));
    char *folder = path_folder(file);
    if (folder == NULL) return LH_NO_MEMORY;
    for (size_t i = 0; i < sizeof(together) / sizeof(together[0]) && status == LH_OK; i++)
        if (strcmp(together[i].file, path_name(file)) == 0)
            status = copy_if_there(folder, to, together[i].with);
    mem_free(folder);
    return status;
}

typedef struct sweep {
    const char *parent, *name; /* of the folder */
    bool there;                /* the folder is in its place */
} sweep_t;

/* What a run that was killed left: NAME.tmp-01234567, and with .old what stood in its place, which
 * is kept until NAME is there again. */
static int sweep_entry(void *context, const char *entry)
{
    enum { DIGITS = 8 };
    const sweep_t *s = context;
    const size_t length = strlen(s->name);
    if (strncmp(entry, s->name, length) != 0 || !text_starts(entry + length, ".tmp-")) return 0;
    const char *digits = entry + length + strlen(".tmp-");
    const size_t count = strspn(digits, "0123456789abcdef");
    const bool old = strcmp(digits + count, ".old") == 0;
    if (count != DIGITS || (digits[count] != '\0' && !(old && s->there))) return 0;
    char *path = path_join(s->parent, entry);
    if (path != NULL && folder_remove(path) != LH_OK) fail_clear(); /* the next run tries again */
    mem_free(path);
    return 0;
}

lh_status_t hf_folder_stage(const char *folder, char **out)
{
    uint32_t random;
    text_t name = {0};
    if (sys()->random(&random, sizeof(random)) != 0)
        return fail(LH_IO, "%s: no random bytes for a name", folder);
    char *parent = path_folder(folder);
    if (parent == NULL) return LH_NO_MEMORY;
    lh_status_t status = folder_make(parent);
    sweep_t sweep = {parent, path_name(folder), file_exists(folder)};
    if (status == LH_OK) (void)sys()->list(parent, sweep_entry, &sweep);
    mem_free(parent);
    if (status != LH_OK) return status;

    text_printf(&name, "%s.tmp-%08x", folder, random);
    status = text_status(&name);
    if (status == LH_OK && sys()->mkdir(name.data, 0755) != 0)
        status = fail(LH_IO, "%s: cannot make the folder", name.data);
    if (status == LH_OK)
        *out = name.data;
    else
        text_free(&name);
    return status;
}

/* What stands in the way goes aside first, and comes back if the rename fails. */
static lh_status_t replace(const char *staged, const char *folder, const char *aside)
{
    if (sys()->rename(folder, aside) != 0)
        return fail(LH_IO, "%s: cannot rename %s to it", aside, folder);
    if (sys()->rename(staged, folder) == 0) return LH_OK;
    const lh_status_t status = fail(LH_IO, "%s: cannot rename %s to it", folder, staged);
    (void)sys()->rename(aside, folder);
    return status;
}

lh_status_t hf_folder_publish(char *staged, const char *folder, const char *proof)
{
    text_t aside = {0};
    text_printf(&aside, "%s.old", staged);
    char *known = path_join(folder, proof), *parent = path_folder(folder);
    lh_status_t status = text_status(&aside);
    if (known == NULL || parent == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK) status = folder_sync(staged);
    if (status != LH_OK) goto free_names;

    const bool there = file_exists(folder);
    if (there && !file_exists(known))
        status = fail(LH_INVALID, "%s is there and holds no %s: it is left alone", folder, proof);
    else if (there)
        status = replace(staged, folder, aside.data);
    else if (sys()->rename(staged, folder) != 0)
        status = fail(LH_IO, "%s: cannot rename %s to it", folder, staged);
    if (status == LH_OK) status = folder_sync(parent);
    if (status == LH_OK && there) status = folder_remove(aside.data);
    if (status == LH_OK) mem_free(staged);
free_names:
    text_free(&aside);
    mem_free(parent);
    mem_free(known);
    return status;
}
