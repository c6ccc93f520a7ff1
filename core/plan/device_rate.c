/* device_rate.c - times from rates: the nearest measured call of the same kind tells how close to
 * peak or bandwidth a call comes; and the record of a device as a file.
 *
 * Efficiencies are kept by kind and size and not fitted by a formula: libraries change kernels with
 * the size, and a curve through such points is wrong where it matters. The price is that a size far
 * from all that were measured gets a neighbour's efficiency. */
#include <plan/device_rate.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/dtype.h>
#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <format/json.h>

/* Integers move but do not multiply: their peak is nobody's. */
static bool dtype_has_peak(lh_dtype_t dtype)
{
    switch (dtype) {
    case LH_DTYPE_F32:
    case LH_DTYPE_BF16:
    case LH_DTYPE_F16:
    case LH_DTYPE_F8E4M3:
    case LH_DTYPE_F8E5M2:
    case LH_DTYPE_F64: return true;
    default: return false;
    }
}

/* The first argument that is a float decides: for products the dtype in which they are multiplied.
 */
lh_dtype_t device_rate_dtype(const program_call_t *call)
{
    lh_assert(call->arg_count <= OP_SLOTS);
    for (uint32_t i = 0; i < call->arg_count; i++)
        if (dtype_has_peak(call->args[i].dtype)) return call->args[i].dtype;
    return LH_DTYPE_F32;
}

/* " nt": of each attribute transpose_... whether it is set. Products have other speeds with it. */
enum { SIDES = 8 };
/* A blank, up to five letters and the NUL. */
static void sides_text(const program_call_t *call, char out[SIDES])
{
    const lh_op_t *row = &call->op->row;
    size_t length = 0;
    for (uint32_t i = 0; i < row->attribute_count && length + 2 < SIDES; i++) {
        const lh_option_t *option = (const lh_option_t *)((const char *)row->attributes +
                                                          (size_t)i * row->attribute_size);
        uint32_t set = 0;
        if (strncmp(option->key, "transpose_", strlen("transpose_")) != 0) continue;
        if (call->attributes != NULL)
            memcpy(&set, (const char *)call->attributes + option->offset, sizeof(set));
        if (length == 0) out[length++] = ' ';
        out[length++] = set != 0 ? 't' : 'n';
    }
    out[length] = '\0';
}

/* A call without an op sets a value to zero. */
void device_rate_kind(const program_call_t *call, char out[CALL_KIND])
{
    if (call->op == NULL) {
        (void)snprintf(out, CALL_KIND, "fill");
        return;
    }
    char sides[SIDES];
    sides_text(call, sides);
    (void)snprintf(out, CALL_KIND, "%.40s%s %s", call->op->row.name, sides,
                   lh_dtype_name(device_rate_dtype(call)));
}

/* The roofline: whichever of arithmetic and memory takes longer. A dtype that was not measured
 * counts as FP32. */
double device_rate_ideal(const device_rate_t *r, lh_dtype_t dtype, double flops, double bytes)
{
    double peak = dtype < LH_DTYPES ? r->peak_flops[dtype] : 0;
    if (peak <= 0) peak = r->peak_flops[LH_DTYPE_F32];
    const double compute = peak > 0 ? flops / peak : 0;
    const double move = r->bytes_per_second > 0 ? bytes / r->bytes_per_second : 0;
    return fmax(compute, move);
}

/* How many times larger or smaller one call is than another, in powers of e. The sum of two
 * logarithms of ratios, so that twice as large and half as large are equally far; the 1 keeps calls
 * without arithmetic apart from a division by zero. */
static double call_distance(const op_rate_t *op, double flops, double bytes)
{
    return fabs(log((op->flops + 1) / (flops + 1))) + fabs(log((op->bytes + 1) / (bytes + 1)));
}

/* The launch is added and not hidden: on a device that queues launches this errs to the slow side
 * for small calls. */
double device_rate_seconds(const device_rate_t *r, const program_call_t *call, bool *measured)
{
    char kind[CALL_KIND];
    device_rate_kind(call, kind);
    const op_rate_t *nearest = NULL;
    for (uint32_t i = 0; i < r->op_count; i++) {
        const op_rate_t *op = &r->ops[i];
        if (strcmp(op->kind, kind) != 0) continue;
        if (nearest == NULL || call_distance(op, call->flops, call->bytes) <
                                   call_distance(nearest, call->flops, call->bytes))
            nearest = op;
    }
    *measured = nearest != NULL;
    const double ideal = device_rate_ideal(r, device_rate_dtype(call), call->flops, call->bytes);
    return ideal / (nearest == NULL ? 1 : nearest->efficiency) + r->launch_s;
}

lh_status_t device_rate_add(device_rate_t *r, const op_rate_t *op)
{
    for (uint32_t i = 0; i < r->op_count; i++) {
        op_rate_t *have = &r->ops[i];
        if (strcmp(have->kind, op->kind) != 0 || have->flops != op->flops ||
            have->bytes != op->bytes)
            continue;
        *have = *op;
        return LH_OK;
    }
    op_rate_t *ops = mem_grow(r->ops, &r->op_capacity, (size_t)r->op_count + 1, sizeof(*ops));
    if (ops == NULL) return LH_NO_MEMORY;
    r->ops = ops;
    r->ops[r->op_count++] = *op;
    return LH_OK;
}

void device_rate_free(device_rate_t *r)
{
    mem_free(r->ops);
    *r = (device_rate_t){0};
}

/* The record of a device as JSON in the user's cache folder. */

enum { RECORD_LIMIT = 1 << 20, RECORD_VERSION = 1 };

lh_status_t device_rate_path(const char *fingerprint, char **out)
{
    return path_in_cache("device", fingerprint, "json", out);
}

/* A negative or infinite figure would make nonsense of every time that is computed with it. */
static bool rate_read_number(const json_value_t *object, const char *key, double *out)
{
    const json_value_t *value = json_member(object, key);
    if (!json_is_numeric(value)) return false;
    *out = json_number(value);
    return isfinite(*out) && *out >= 0;
}

static bool rate_read_text(const json_value_t *object, const char *key, char *out, size_t room)
{
    const char *text = json_text(json_member(object, key));
    if (text == NULL || strlen(text) >= room) return false;
    (void)snprintf(out, room, "%s", text);
    return true;
}

/* A dtype that this version does not know is refused: the record would be of another program. */
static lh_status_t read_peaks(const json_value_t *peaks, const char *path, device_rate_t *r)
{
    for (json_walk_t w = json_walk(peaks); json_next(&w);) {
        lh_dtype_t dtype;
        if (!dtype_find(w.key, &dtype) || !rate_read_number(peaks, w.key, &r->peak_flops[dtype]))
            return fail(LH_INVALID, "%s: peak_flops of '%s' is no rate of a dtype", path, w.key);
    }
    return LH_OK;
}

/* Rows that are equal in kind and size replace each other, as when they are measured. */
static lh_status_t read_ops(const json_value_t *ops, const char *path, device_rate_t *r)
{
    for (json_walk_t w = json_walk(ops); json_next(&w);) {
        const json_value_t *row = w.value;
        op_rate_t op = {0};
        if (!rate_read_text(row, "kind", op.kind, sizeof(op.kind)) ||
            !rate_read_number(row, "flops", &op.flops) ||
            !rate_read_number(row, "bytes", &op.bytes) ||
            !rate_read_number(row, "efficiency", &op.efficiency) || op.efficiency <= 0)
            return fail(LH_INVALID, "%s: ops[%zu] is not {kind, flops, bytes, efficiency above 0}",
                        path, w.index);
        const lh_status_t status = device_rate_add(r, &op);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* A record of another version is refused; whoever measures writes it anew. */
static lh_status_t rate_read_record(const json_value_t *root, const char *path, device_rate_t *r)
{
    const json_value_t *peaks = json_member(root, "peak_flops"), *ops = json_member(root, "ops");
    if (json_whole(json_member(root, "version")) != RECORD_VERSION)
        return fail(LH_INVALID, "%s: not a device record of version %d", path, RECORD_VERSION);
    if (!rate_read_text(root, "fingerprint", r->fingerprint, sizeof(r->fingerprint)) ||
        !rate_read_text(root, "name", r->name, sizeof(r->name)) ||
        !rate_read_number(root, "bytes_per_second", &r->bytes_per_second) ||
        !rate_read_number(root, "launch_s", &r->launch_s) || !json_is_map(peaks) ||
        !json_is_list(ops))
        return fail(LH_INVALID,
                    "%s: fingerprint, name, bytes_per_second, launch_s, peak_flops or ops is "
                    "missing or no text, number, object, list",
                    path);
    const lh_status_t status = read_peaks(peaks, path, r);
    return status == LH_OK ? read_ops(ops, path, r) : status;
}

static lh_status_t rate_load_file(const char *path, device_rate_t *out)
{
    json_document_t *file;
    lh_status_t status = json_read(path, RECORD_LIMIT, UINT64_MAX, &file);
    if (status != LH_OK) return status;
    status = rate_read_record(json_root(file), path, out);
    json_free(file);
    return status;
}

/* *out is untouched where it fails. */
lh_status_t device_rate_load(const char *fingerprint, device_rate_t *out, bool *known)
{
    char *path;
    device_rate_t r = {0};
    lh_status_t status = device_rate_path(fingerprint, &path);
    if (status != LH_OK) return status;
    const bool there = file_exists(path);
    if (there) status = rate_load_file(path, &r);
    mem_free(path);

    /* A digest is cut short in the file's name: the whole fingerprint decides. */
    const bool same = there && status == LH_OK && strcmp(r.fingerprint, fingerprint) == 0;
    if (!same) device_rate_free(&r);
    if (status != LH_OK) return status;
    *out = r;
    *known = same;
    return LH_OK;
}

/* The fields of rate_read_record, in the same order. */
static void rate_write_record(const device_rate_t *r, text_t *out)
{
    json_writer_t w = {.to = out, .style = 1};
    json_open(&w, NULL, '{');
    json_put_u64(&w, "version", RECORD_VERSION);
    json_put_text(&w, "name", r->name);
    json_put_text(&w, "fingerprint", r->fingerprint);
    json_put_real(&w, "bytes_per_second", r->bytes_per_second);
    json_put_real(&w, "launch_s", r->launch_s);
    json_open(&w, "peak_flops", '{');
    for (uint32_t d = 0; d < LH_DTYPES; d++)
        if (r->peak_flops[d] > 0) json_put_real(&w, lh_dtype_name(d), r->peak_flops[d]);
    json_close(&w);
    json_open(&w, "ops", '[');
    for (uint32_t i = 0; i < r->op_count; i++) {
        const op_rate_t *op = &r->ops[i];
        json_open(&w, NULL, '{');
        json_put_text(&w, "kind", op->kind);
        json_put_real(&w, "flops", op->flops);
        json_put_real(&w, "bytes", op->bytes);
        json_put_real(&w, "efficiency", op->efficiency);
        json_close(&w);
    }
    json_close(&w);
    json_close(&w);
}

/* Replaces the file as a whole; two benches at once leave the record of one of them. */
lh_status_t device_rate_save(const device_rate_t *r)
{
    char *path;
    lh_status_t status = device_rate_path(r->fingerprint, &path);
    if (status != LH_OK) return status;

    text_t text = {0};
    char *folder = path_folder(path);
    rate_write_record(r, &text);
    if (folder == NULL || text.failed) status = LH_NO_MEMORY;
    if (status == LH_OK) status = folder_make(folder);
    if (status == LH_OK) status = file_replace(path, text.data, text.length);
    text_free(&text);
    mem_free(folder);
    mem_free(path);
    return status;
}
