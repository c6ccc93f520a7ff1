/* device_rate_file.c - a device's record as JSON in the user's cache folder. */
#include <plan/device_rate.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/digest.h>
#include <base/file.h>
#include <base/memory.h>
#include <data/json_parse.h>
#include <tensor/dtype.h>

enum { RECORD_LIMIT = 1 << 20, RECORD_VERSION = 1, DIGEST_SHOWN = 16 };

static char *cache_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && *cache == '/') return path_join(cache, "longhaul");
    if (home == NULL || *home != '/') {
        (void)fail(LH_INVALID, "neither XDG_CACHE_HOME nor HOME names a folder to keep records in");
        return NULL;
    }
    return path_join(home, ".cache/longhaul");
}

lh_status_t device_rate_path(const char *fingerprint, char **out)
{
    char digest[SHA256_TEXT], name[64];
    const lh_status_t status = sha256_of(fingerprint, strlen(fingerprint), digest);
    if (status != LH_OK) return status;
    (void)snprintf(name, sizeof(name), "device-%.*s.json", DIGEST_SHOWN, digest);

    char *folder = cache_folder();
    if (folder == NULL) return LH_INVALID;
    char *path = path_join(folder, name);
    mem_free(folder);
    if (path == NULL) return LH_NO_MEMORY;
    *out = path;
    return LH_OK;
}

static bool read_number(const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) return false;
    *out = json_number_value(value);
    return isfinite(*out) && *out >= 0;
}

static bool read_text(const json_t *object, const char *key, char *out, size_t room)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) >= room) return false;
    (void)snprintf(out, room, "%s", text);
    return true;
}

static lh_status_t read_peaks(const json_t *peaks, const char *path, device_rate_t *r)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)peaks, name, value)
    {
        lh_dtype_t dtype;
        if (!dtype_find(name, &dtype) || !read_number(peaks, name, &r->peak_flops[dtype]))
            return fail(LH_INVALID, "%s: peak_flops of '%s' is no rate of a dtype", path, name);
    }
    return LH_OK;
}

static lh_status_t read_ops(const json_t *ops, const char *path, device_rate_t *r)
{
    size_t index;
    json_t *row;
    json_array_foreach((json_t *)ops, index, row)
    {
        op_rate_t op = {0};
        if (!read_text(row, "kind", op.kind, sizeof(op.kind)) ||
            !read_number(row, "flops", &op.flops) || !read_number(row, "bytes", &op.bytes) ||
            !read_number(row, "efficiency", &op.efficiency) || op.efficiency <= 0)
            return fail(LH_INVALID, "%s: ops[%zu] is not {kind, flops, bytes, efficiency above 0}",
                        path, index);
        const lh_status_t status = device_rate_add(r, &op);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t read_record(const json_t *root, const char *path, device_rate_t *r)
{
    const json_t *peaks = json_object_get(root, "peak_flops"), *ops = json_object_get(root, "ops");
    if (json_integer_value(json_object_get(root, "version")) != RECORD_VERSION)
        return fail(LH_INVALID, "%s: not a device record of version %d", path, RECORD_VERSION);
    if (!read_text(root, "fingerprint", r->fingerprint, sizeof(r->fingerprint)) ||
        !read_text(root, "name", r->name, sizeof(r->name)) ||
        !read_number(root, "bytes_per_second", &r->bytes_per_second) ||
        !read_number(root, "launch_s", &r->launch_s) || !json_is_object(peaks) ||
        !json_is_array(ops))
        return fail(LH_INVALID,
                    "%s: fingerprint, name, bytes_per_second, launch_s, peak_flops or ops is "
                    "missing or no text, number, object, list",
                    path);
    const lh_status_t status = read_peaks(peaks, path, r);
    return status == LH_OK ? read_ops(ops, path, r) : status;
}

static lh_status_t load_file(const char *path, device_rate_t *out)
{
    char *data;
    size_t length;
    json_t *root;
    lh_status_t status = file_read(path, RECORD_LIMIT, &data, &length);
    if (status != LH_OK) return status;
    status = json_parse(path, data, length, &root);
    mem_free(data);
    if (status != LH_OK) return status;
    status = read_record(root, path, out);
    json_decref(root);
    return status;
}

lh_status_t device_rate_load(const char *fingerprint, device_rate_t *out, bool *known)
{
    char *path;
    device_rate_t r = {0};
    lh_status_t status = device_rate_path(fingerprint, &path);
    if (status != LH_OK) return status;
    const bool there = file_exists(path);
    if (there) status = load_file(path, &r);
    mem_free(path);

    /* A digest is cut short in the file's name: the whole fingerprint decides. */
    const bool same = there && status == LH_OK && strcmp(r.fingerprint, fingerprint) == 0;
    if (!same) device_rate_free(&r);
    if (status != LH_OK) return status;
    *out = r;
    *known = same;
    return LH_OK;
}

static json_t *write_record(const device_rate_t *r)
{
    json_t *peaks = json_object(), *ops = json_array();
    for (uint32_t d = 0; d < LH_DTYPES; d++)
        if (r->peak_flops[d] > 0)
            json_object_set_new(peaks, dtype_name(d), json_real(r->peak_flops[d]));
    for (uint32_t i = 0; i < r->op_count; i++) {
        const op_rate_t *op = &r->ops[i];
        json_array_append_new(ops, json_pack("{s:s, s:f, s:f, s:f}", "kind", op->kind, "flops",
                                             op->flops, "bytes", op->bytes, "efficiency",
                                             op->efficiency));
    }
    return json_pack("{s:i, s:s, s:s, s:f, s:f, s:o, s:o}", "version", RECORD_VERSION, "name",
                     r->name, "fingerprint", r->fingerprint, "bytes_per_second",
                     r->bytes_per_second, "launch_s", r->launch_s, "peak_flops", peaks, "ops", ops);
}

lh_status_t device_rate_save(const device_rate_t *r)
{
    char *path;
    lh_status_t status = device_rate_path(r->fingerprint, &path);
    if (status != LH_OK) return status;

    char *folder = path_folder(path);
    json_t *root = write_record(r);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    if (folder == NULL || text == NULL)
        status = fail(LH_NO_MEMORY, "%s: no memory to write it", path);
    if (status == LH_OK) status = folder_make(folder);
    if (status == LH_OK) status = file_replace(path, text, strlen(text));
    free(text);
    json_decref(root);
    mem_free(folder);
    mem_free(path);
    return status;
}
