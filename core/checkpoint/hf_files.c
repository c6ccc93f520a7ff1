/* hf_files.c - copies by a list of known names: nothing else of a stranger's folder is carried
 * along. */
#include <checkpoint/hf_files.h>

#include <fcntl.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>

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
    const int fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0) return fail(LH_IO, "%s: cannot create", path);
    lh_status_t status = file_write(fd, path, data, length);
    if (status == LH_OK && sys_fsync(fd) != 0) status = fail(LH_IO, "%s: cannot sync", path);
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

bool hf_files_carries(const char *name)
{
    for (size_t i = 0; i < sizeof(carried) / sizeof(carried[0]); i++)
        if (strcmp(carried[i], name) == 0) return true;
    return false;
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
