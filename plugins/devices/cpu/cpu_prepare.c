/* cpu_prepare.c - prepares and launches every op: checks a call against the dtypes of its op's row,
 * folds its arguments into rows and lets the op of the device's instruction set plan its phases.
 *
 * Every kernel source is compiled once per instruction set and leaves one table per set; the macros
 * below list them all, so that the choice is an index made when a call is prepared and not a branch
 * when it is launched. On x86-64 there are four sets, elsewhere one, and fewer in a build with
 * sanitizers. */
#include "cpu_prepare.h"

#include "../op_slots.h"

#include "onednn.h"
#include "processor.h"

#include <stdio.h>

/* One table of ops for each kernel source and instruction set. */
#define TABLE_EXTERN(isa, table) extern const cpu_op_t table##_##isa[];
#define EXTERN_BASELINE(table) TABLE_EXTERN(baseline, table)
CPU_TABLES(EXTERN_BASELINE)
#define ROW_BASELINE(table) table##_baseline,
static const cpu_op_t *const tables_baseline[] = {CPU_TABLES(ROW_BASELINE) NULL};

#if CPU_SETS > 1
#define EXTERN_AVX2(table) TABLE_EXTERN(avx2, table)
CPU_TABLES(EXTERN_AVX2)
#define ROW_AVX2(table) table##_avx2,
static const cpu_op_t *const tables_avx2[] = {CPU_TABLES(ROW_AVX2) NULL};
#endif
#if CPU_SETS > 2
#define EXTERN_AVX512(table) TABLE_EXTERN(avx512, table)
CPU_TABLES(EXTERN_AVX512)
#define ROW_AVX512(table) table##_avx512,
static const cpu_op_t *const tables_avx512[] = {CPU_TABLES(ROW_AVX512) NULL};
#endif
#if CPU_SETS > 3
#define EXTERN_AVX512_BF16(table) TABLE_EXTERN(avx512_bf16, table)
CPU_TABLES(EXTERN_AVX512_BF16)
#define ROW_AVX512_BF16(table) table##_avx512_bf16,
static const cpu_op_t *const tables_avx512_bf16[] = {CPU_TABLES(ROW_AVX512_BF16) NULL};
#endif

static const cpu_op_t *const *const tables[CPU_ISAS] = {
    [CPU_BASELINE] = tables_baseline,
#if CPU_SETS > 1
    [CPU_AVX2] = tables_avx2,
#endif
#if CPU_SETS > 2
    [CPU_AVX512] = tables_avx512,
#endif
#if CPU_SETS > 3
    [CPU_AVX512_BF16] = tables_avx512_bf16,
#endif
};

/* Some dozens of ops, once a prepared call: no index is worth it. */
static const cpu_op_t *op_find(uint32_t isa, const char *name)
{
    for (const cpu_op_t *const *table = tables[isa]; *table != NULL; table++) {
        for (const cpu_op_t *op = *table; op->name != NULL; op++) {
            if (strcmp(op->name, name) == 0) return op;
        }
    }
    return NULL;
}

/* Words of "a b? -> c", or letters of "xx?y". */
static uint32_t slots_count(const char *text, bool words)
{
    uint32_t count = 0;
    for (const char *p = text; *p != '\0'; p++) {
        const bool first = p == text || p[-1] == ' ';
        count += words ? first && *p != ' ' && *p != '-' : *p != '?';
    }
    return count;
}

/* A kernel source that forgets an op, or a slot of one, is found out before any job meets it. */
lh_status_t cpu_selftest(const lh_host_t *host)
{
    static const lh_op_t rows[] = {
#define OP_ROW(name, text) {LH_OP_TEXT(text)},
        LH_OPS_BASE(OP_ROW) LH_OPS_MORE(OP_ROW)
#undef OP_ROW
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const cpu_op_t *op = op_find(CPU_BASELINE, rows[i].name);
        if (op == NULL) return host->fail(host, LH_INVALID, "the cpu has no %s", rows[i].name);
        if (slots_count(rows[i].slots, true) != slots_count(op->slots, false))
            return host->fail(host, LH_INVALID,
                              "%s has slots '%s', the cpu has dtypes '%s' for them", op->name,
                              rows[i].slots, op->slots);
    }
    return LH_OK;
}

#define BIT(dtype) (1u << LH_DTYPE_##dtype)

/* The letters of cpu_op_t.slots, as bits of dtypes. */
static uint32_t letter_dtypes(char letter)
{
    switch (letter) {
    case 'x':
    case 'y': return BIT(F32) | BIT(BF16);
    case 'm': return BIT(F32) | BIT(BF16) | BIT(F16);
    case 'v': return BIT(F32) | BIT(BF16) | BIT(F16) | BIT(F64) | BIT(I32);
    case 'f': return BIT(F32);
    case 'i': return BIT(I32);
    default: return 0;
    }
}

static const op_slots_how_t how_slots = {.device = "the cpu", .dtypes = letter_dtypes};

/* Rows of the instruction sets differ in plan() only. */
lh_status_t cpu_fits(const lh_host_t *host, LH_UNUSED const lh_device_t *d,
                     LH_UNUSED const void *config, const lh_kernel_desc_t *desc)
{
    const cpu_op_t *op = op_find(CPU_BASELINE, desc->op);
    if (op == NULL) return host->fail(host, LH_UNSUPPORTED, "the cpu has no %s", desc->op);
    return op_slots_check(&how_slots, host, op->slots, desc);
}

/* Every slot that is there, checked and folded. What takes values of any dtype (v) walks any rows. */
static lh_status_t args_take(lh_prepared_t *k, const cpu_op_t *op, const lh_kernel_desc_t *desc)
{
    op_slots_rows_t rows[LH_MAX_SLOTS];
    k->arg_count = desc->arg_count;
    const bool uneven = strchr(op->slots, 'v') != NULL;
    const lh_status_t status = op_slots_take_all(k->host, desc, uneven, k->arg, rows);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < desc->arg_count; i++)
        k->view[i] = (cpu_view_t){.rows = rows[i].rows,
                                  .width = rows[i].width,
                                  .pitch = rows[i].pitch,
                                  .dtype = k->arg[i].dtype,
                                  .flags = k->arg[i].flags};
    return LH_OK;
}

/* Only one variant of each own kernel exists for an instruction set; a plan() with more of them
 * sets plan->variant and plan->name itself. */
static lh_status_t plan_finish(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                               lh_kernel_plan_t *mine)
{
    const uint32_t isa = k->device->isa;
    mine->struct_size = sizeof(*mine);
    mine->flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE;
    mine->host_bytes += sizeof(*k);
    /* A resume on a processor with other instructions is refused by this: other bits. */
    if (mine->variant == 0) mine->variant = isa + 1;
    if (mine->name[0] == '\0')
        snprintf(mine->name, sizeof(mine->name), "%s.%s.%s", desc->op,
                 op_slots_dtype_text(k->arg[0].dtype), processor_isa_name(isa));
    const lh_status_t status = op_slots_check_plan(k->host, desc, mine);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < k->arg_count; i++) {
        mine->layout[i] = LH_LAYOUT_DENSE;
        mine->layout_bytes[i] = k->view[i].rows * k->view[i].width *
                                lh_dtype_bytes(k->view[i].dtype);
    }
    return LH_OK;
}

/* The plan comes last and may fail after it has made things of its own: cpu_kernel_free takes
 * those, too. */
lh_status_t cpu_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                        lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    lh_status_t status = cpu_fits(host, d, NULL, desc);
    if (status != LH_OK) return status;
    const cpu_op_t *op = op_find(d->isa, desc->op);
    if (op == NULL) return host->fail(host, LH_UNSUPPORTED, "the cpu has no %s", desc->op);
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;

    /* The plugin's own struct first; the host's, which may be shorter, gets a copy at the end. */
    lh_kernel_plan_t mine = {0};
    k->host = host;
    k->device = d;
    k->how = op_attributes_of(desc->attributes);
    status = args_take(k, op, desc);
    if (status == LH_OK) status = op->plan(k, desc, &mine);
    if (status == LH_OK) status = plan_finish(k, desc, &mine);
    if (status != LH_OK) {
        cpu_kernel_free(k);
        return status;
    }
    lh_fill(plan, &mine, sizeof(mine));
    *out = k;
    return LH_OK;
}

/* Phase after phase: the end of one is a barrier, so a phase may read what the one before it
 * wrote. */
lh_status_t cpu_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    for (uint32_t i = 0; i < k->arg_count; i++) {
        k->at[i] = k->view[i].rows != 0 ? call->args[i].address : NULL;
    }
    k->scratch = call->scratch.address;
    k->stream = call->stream;
    for (uint32_t i = 0; i < k->phases; i++) {
        const cpu_phase_t *phase = &k->phase[i];
        if (phase->alone == NULL) {
            cpu_run(call->stream, k, phase->work, phase->parts);
            continue;
        }
        const lh_status_t status = phase->alone(k);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Also between two tries of a plan. */
void cpu_matmuls_free(lh_prepared_t *k)
{
    for (size_t i = 0; i < sizeof(k->matmul) / sizeof(k->matmul[0]); i++) {
        onednn_matmul_free(k->matmul[i]);
        k->matmul[i] = NULL;
    }
}

void cpu_kernel_free(lh_prepared_t *k)
{
    if (k == NULL) return;
    cpu_matmuls_free(k);
    k->host->release(k->host, k);
}
