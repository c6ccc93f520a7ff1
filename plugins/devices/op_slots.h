/* op_slots.h - what devices with a table of ops check of a call before they plan it: its arguments against
 * the op's text of dtypes, and their leading dimensions folded into rows.
 *
 * A table has a letter for each slot, "xx?y": x and y stand for one dtype each, a question mark says
 * that the slot may be left out. Which dtypes a letter takes is the device's own (op_slots_how_t). */
#ifndef PLUGINS_DEVICES_OP_SLOTS_H
#define PLUGINS_DEVICES_OP_SLOTS_H

#include <string.h>

#include <longhaul/kernel.h>
#include <longhaul/ops.h>

/* The attributes of whichever op it is, by the names of LH_OP_STRUCTS; zero where the caller's struct was
 * shorter or absent. */
typedef union op_attributes {
#define OP_ATTRIBUTES_MEMBER(name, T) T name;
    LH_OP_STRUCTS(OP_ATTRIBUTES_MEMBER)
#undef OP_ATTRIBUTES_MEMBER
} op_attributes_t;

/* As much of the op's struct as both sides know; the rest is zero. from: a desc's attributes. */
static inline op_attributes_t op_attributes_of(const void *from)
{
    op_attributes_t out;
    uint32_t bytes;
    memset(&out, 0, sizeof(out));
    if (from == NULL) return out;
    memcpy(&bytes, from, sizeof(bytes));
    memcpy(&out, from, bytes < sizeof(out) ? bytes : sizeof(out));
    return out;
}

typedef struct op_slots_how {
    const char *device;              /* "the cpu", for sentences */
    uint32_t (*dtypes)(char letter); /* as bits of LH_DTYPE_*; 0: no tensor stands there */
} op_slots_how_t;

/* By the host's size of a row: its lh_arg_t may be longer than this plugin's. */
static inline const lh_arg_t *op_slots_arg(const lh_kernel_desc_t *desc, uint32_t slot)
{
    static const lh_arg_t none = {.dtype = LH_DTYPE_NONE};
    if (slot >= desc->arg_count) return &none;
    return (const lh_arg_t *)((const char *)desc->args + (size_t)slot * desc->arg_size);
}

/* Lower case, as kernels' names have it; lh_dtype_name is that of files. */
static inline const char *op_slots_dtype_text(lh_dtype_t dtype)
{
    static const char *const names[LH_DTYPES] = {"none", "f32", "bf16", "f16", "f8e4m3", "f8e5m2",
                                                 "f64",  "i32", "i64",  "u8",  "i8"};
    return dtype < LH_DTYPES && names[dtype] != NULL ? names[dtype] : "?";
}

/* One slot against its letter; same[] remembers what x and y stood for. */
static inline lh_status_t op_slots_check_one(const op_slots_how_t *how, const lh_host_t *host,
                                             const lh_kernel_desc_t *desc, uint32_t slot,
                                             char letter, bool optional, lh_dtype_t same[2])
{
    const lh_arg_t *arg = op_slots_arg(desc, slot);
    if (arg->dtype == LH_DTYPE_NONE) {
        if (optional || letter == '-') return LH_OK;
        return host->fail(host, LH_INVALID, "%s: slot %u is left out", desc->op, slot + 1);
    }
    if (arg->dtype >= LH_DTYPES || (how->dtypes(letter) & (1u << arg->dtype)) == 0)
        return host->fail(host, LH_UNSUPPORTED, "%s on %s does not take %s in slot %u", desc->op,
                          how->device, op_slots_dtype_text(arg->dtype), slot + 1);
    if (letter == 'x' || letter == 'y') {
        lh_dtype_t *first = &same[letter - 'x'];
        if (*first == LH_DTYPE_NONE) *first = arg->dtype;
        if (*first != arg->dtype)
            return host->fail(host, LH_UNSUPPORTED, "%s on %s does not mix %s and %s (slot %u)",
                              desc->op, how->device, op_slots_dtype_text(*first),
                              op_slots_dtype_text(arg->dtype), slot + 1);
    }
    /* Counted rows and other layouts are for devices that gain by them. */
    if (arg->count_slot != 0)
        return host->fail(host, LH_UNSUPPORTED, "%s on %s takes no counted rows (slot %u)",
                          desc->op, how->device, slot + 1);
    if (arg->layout != LH_LAYOUT_DENSE && arg->layout != LH_LAYOUT_ANY)
        return host->fail(host, LH_UNSUPPORTED, "%s on %s takes dense tensors only (slot %u)",
                          desc->op, how->device, slot + 1);
    return LH_OK;
}

/* By dtypes alone; shapes are for plans. Also for a call without a device, by `longhaul check`. */
static inline lh_status_t op_slots_check(const op_slots_how_t *how, const lh_host_t *host,
                                         const char *slots, const lh_kernel_desc_t *desc)
{
    lh_dtype_t same[2] = {LH_DTYPE_NONE, LH_DTYPE_NONE};
    uint32_t slot = 0;
    for (const char *p = slots; *p != '\0'; p++, slot++) {
        const char letter = *p;
        const bool optional = p[1] == '?';
        const lh_status_t status = op_slots_check_one(how, host, desc, slot, letter, optional,
                                                      same);
        if (status != LH_OK) return status;
        if (optional) p++;
    }
    if (desc->arg_count > slot)
        return host->fail(host, LH_UNSUPPORTED, "%s on %s has %u slots, %u are given", desc->op,
                          how->device, slot, desc->arg_count);
    return LH_OK;
}

/* An argument as rows of equal width. */
typedef struct op_slots_rows {
    uint64_t rows, width;
    uint64_t pitch; /* elements from row to row; 0: they lie unevenly, which only copy can walk */
} op_slots_rows_t;

/* Folds the leading dimensions into rows, where they lie evenly. */
static inline lh_status_t op_slots_fold(const lh_host_t *host, const lh_kernel_desc_t *desc,
                                        uint32_t slot, const lh_arg_t *arg, op_slots_rows_t *out)
{
    op_slots_rows_t v = {.rows = 1, .width = 1, .pitch = 1};
    uint64_t elements = 1;
    for (uint32_t i = 0; i < arg->rank; i++) {
        if (arg->shape[i] == 0 || arg->shape[i] > ((uint64_t)1 << 48) / elements)
            return host->fail(host, LH_INVALID, "%s: dimension %u of slot %u has %llu elements",
                              desc->op, i + 1, slot + 1, (unsigned long long)arg->shape[i]);
        elements *= arg->shape[i];
    }
    if (arg->rank > 0) {
        v.width = arg->shape[arg->rank - 1];
        v.rows = elements / v.width;
        v.pitch = arg->rank > 1 ? arg->stride[arg->rank - 2] : v.width;
        if (arg->stride[arg->rank - 1] != 1 && v.width > 1)
            return host->fail(host, LH_UNSUPPORTED, "%s: the last stride of slot %u is %llu, not 1",
                              desc->op, slot + 1, (unsigned long long)arg->stride[arg->rank - 1]);
    }
    /* Two dimensions are one where the step of the outer is the inner's whole length. */
    for (uint32_t i = 0; i + 2 < arg->rank; i++)
        if (arg->shape[i] > 1 && arg->stride[i] != arg->stride[i + 1] * arg->shape[i + 1])
            v.pitch = 0;
    *out = v;
    return LH_OK;
}

/* A slot that is there, folded. uneven: the op walks rows that lie unevenly, as only copy does. */
static inline lh_status_t op_slots_take(const lh_host_t *host, const lh_kernel_desc_t *desc,
                                        uint32_t slot, bool uneven, op_slots_rows_t *out)
{
    const lh_arg_t *arg = op_slots_arg(desc, slot);
    if (arg->rank > LH_MAX_RANK)
        return host->fail(host, LH_INVALID, "%s: slot %u has rank %u", desc->op, slot + 1,
                          arg->rank);
    const lh_status_t status = op_slots_fold(host, desc, slot, arg, out);
    if (status == LH_OK && out->pitch == 0 && !uneven)
        return host->fail(host, LH_UNSUPPORTED, "%s: the rows of slot %u lie unevenly", desc->op,
                          slot + 1);
    return status;
}

/* Every slot that is there, checked and folded; arg, rows: [desc->arg_count], zero where a slot is
 * left out. */
static inline lh_status_t op_slots_take_all(const lh_host_t *host, const lh_kernel_desc_t *desc,
                                            bool uneven, lh_arg_t *arg, op_slots_rows_t *rows)
{
    for (uint32_t i = 0; i < desc->arg_count; i++) {
        const lh_arg_t *own = op_slots_arg(desc, i);
        arg[i] = (lh_arg_t){.dtype = LH_DTYPE_NONE};
        rows[i] = (op_slots_rows_t){.rows = 0};
        if (own->dtype == LH_DTYPE_NONE) continue;
        const lh_status_t status = op_slots_take(host, desc, i, uneven, &rows[i]);
        if (status != LH_OK) return status;
        arg[i] = *own;
    }
    return LH_OK;
}

/* Whether a plan is the one that the caller names, if it names one, and within what it allows. */
static inline lh_status_t op_slots_check_plan(const lh_host_t *host, const lh_kernel_desc_t *desc,
                                              const lh_kernel_plan_t *plan)
{
    if (desc->variant != 0 && desc->variant != plan->variant)
        return host->fail(host, LH_UNSUPPORTED, "%s: variant %llx is wanted, this is %llx (%s)",
                          desc->op, (unsigned long long)desc->variant,
                          (unsigned long long)plan->variant, plan->name);
    if (plan->scratch_bytes > desc->scratch_limit_bytes && desc->scratch_limit_bytes != 0)
        return host->fail(host, LH_UNSUPPORTED, "%s needs %llu bytes of scratch, %llu are allowed",
                          desc->op, (unsigned long long)plan->scratch_bytes,
                          (unsigned long long)desc->scratch_limit_bytes);
    return LH_OK;
}

#endif
