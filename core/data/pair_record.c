/* pair_record.c - finds the prepare.json that tells of a pair, and compares. */
#include <data/pair_record.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <format/json.h>

enum { SUMMARY_MOST = 64 << 20, SUMMARY_VALUES = 4000000 };
static const char summary_name[] = "prepare.json";

static void put_sum(json_writer_t *w, const char *key, const pair_sum_t *sum)
{
    json_open(w, key, '{');
    json_put_u64(w, "bytes", sum->bytes);
    json_put_text(w, "sha256", sum->sha256);
    json_close(w);
}

/* What lies in the folder is named from there: both may be moved together. */
void pair_record_put(json_writer_t *w, const char *folder, const char *output,
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

void pair_record_free(pair_record_t *r)
{
    mem_free(r->summary);
    mem_free(r->idx);
    mem_free(r->bin);
    *r = (pair_record_t){0};
}

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

static lh_status_t name_files(const char *folder, const char *name, pair_record_t *r)
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

static lh_status_t read_pair(const char *folder, const json_value_t *pair, pair_record_t *r)
{
    const char *prefix = json_text(json_member(pair, "prefix"));
    if (prefix == NULL)
        return fail(LH_CORRUPT, "%s: pair: prefix: a string was expected", r->summary);
    lh_status_t status = read_sum(r->summary, "idx", json_member(pair, "idx"), &r->sums.idx);
    if (status == LH_OK)
        status = read_sum(r->summary, "bin", json_member(pair, "bin"), &r->sums.bin);
    return status == LH_OK ? name_files(folder, prefix, r) : status;
}

lh_status_t pair_record_read(const char *folder, pair_record_t *out)
{
    json_document_t *file = NULL;
    pair_record_t r = {.summary = path_join(folder, summary_name)};
    if (r.summary == NULL) return LH_NO_MEMORY;
    *out = (pair_record_t){0};
    lh_status_t status = LH_OK;
    if (file_exists(r.summary)) status = json_read(r.summary, SUMMARY_MOST, SUMMARY_VALUES, &file);
    const json_value_t *pair = json_member(json_root(file), "pair");
    if (status == LH_OK && pair != NULL) status = read_pair(folder, pair, &r);
    if (status == LH_OK && pair != NULL)
        *out = r;
    else
        pair_record_free(&r);
    json_free(file);
    return status;
}

/* A file of this name may be another program's, and the pair too. */
static lh_status_t find_in(const char *folder, const char *idx, pair_record_t *out)
{
    lh_status_t status = pair_record_read(folder, out);
    if (status == LH_INVALID || status == LH_CORRUPT) {
        log_line(LH_LOG_WARN, "%s; %s is not compared with it", fail_reason(), idx);
        fail_clear();
        status = LH_OK;
    }
    if (status == LH_OK && out->summary != NULL && !file_same(out->idx, idx)) pair_record_free(out);
    return status;
}

lh_status_t pair_record_find(const char *prefix, const char *folder, pair_record_t *out)
{
    text_t idx = {0};
    char *beside = path_folder(prefix);
    *out = (pair_record_t){0};
    text_printf(&idx, "%s.idx", prefix);
    lh_status_t status = beside == NULL ? LH_NO_MEMORY : text_status(&idx);
    if (status == LH_OK) status = find_in(beside, idx.data, out);
    if (status == LH_OK && out->summary == NULL && folder != NULL && !text_equal(folder, beside))
        status = find_in(folder, idx.data, out);
    text_free(&idx);
    mem_free(beside);
    return status;
}

static lh_status_t check_bytes(const pair_record_t *r, const char *path, const pair_sum_t *sum)
{
    struct stat st;
    if (sys()->stat(path, &st) != 0) return fail_io(errno, "%s: cannot stat", path);
    if ((uint64_t)st.st_size == sum->bytes) return LH_OK;
    return fail(LH_CORRUPT, "%s: %lld bytes, %s says %llu; prepare it again", path,
                (long long)st.st_size, r->summary, (unsigned long long)sum->bytes);
}

static lh_status_t check_whole(const pair_record_t *r, const char *path, const pair_sum_t *sum)
{
    char found[SHA256_TEXT];
    lh_status_t status = check_bytes(r, path, sum);
    if (status == LH_OK) status = sha256_file(path, found);
    if (status != LH_OK || strcmp(found, sum->sha256) == 0) return status;
    return fail(LH_CORRUPT, "%s: its SHA-256 is %s, %s says %s; prepare it again", path, found,
                r->summary, sum->sha256);
}

lh_status_t pair_record_check(const pair_record_t *r)
{
    if (r->summary == NULL) return LH_OK;
    const lh_status_t status = check_bytes(r, r->bin, &r->sums.bin);
    return status == LH_OK ? pair_record_check_idx(r) : status;
}

lh_status_t pair_record_check_idx(const pair_record_t *r)
{
    return check_whole(r, r->idx, &r->sums.idx);
}

lh_status_t pair_record_check_bin(const pair_record_t *r)
{
    return check_whole(r, r->bin, &r->sums.bin);
}
