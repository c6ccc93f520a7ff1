/* cuda_rows.c - prepares and launches the plugin's own kernels: what all ops have in common. */
#include "cuda_rows.h"

#include "../op_slots.h"

#include <stdio.h>

static const cuda_op_t *const tables[] = {
    cuda_element_ops,   cuda_norm_ops,  cuda_loss_ops,    cuda_update_ops,
    cuda_attention_ops, cuda_route_ops, cuda_product_ops,
};

static const cuda_op_t *op_find(const char *name)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        for (const cuda_op_t *op = tables[i]; op->name != NULL; op++) {
            if (strcmp(op->name, name) == 0) return op;
        }
    }
    return NULL;
}

#define BIT(dtype) (1u << LH_DTYPE_##dtype)

/* The letters of cuda_op_t.slots, as bits of dtypes. */
static uint32_t letter_dtypes(char letter)
{
    switch (letter) {
    case 'x':
    case 'y':
    case 'm': return BIT(F32) | BIT(BF16) | BIT(F16);
    case 'v':
        return BIT(F32) | BIT(BF16) | BIT(F16) | BIT(F64) | BIT(I32) | BIT(I64) | BIT(U8) |
               BIT(I8) | BIT(F8E4M3) | BIT(F8E5M2);
    case 'f': return BIT(F32);
    case 'i': return BIT(I32);
    default: return 0;
    }
}

static const op_slots_how_t how_slots = {.device = "cuda", .dtypes = letter_dtypes};

lh_status_t cuda_rows_fits(const lh_host_t *host, LH_UNUSED const lh_device_t *d,
                           LH_UNUSED const void *config, const lh_kernel_desc_t *desc)
{
    const cuda_op_t *op = op_find(desc->op);
    if (op == NULL) return host->fail(host, LH_UNSUPPORTED, "cuda has no %s", desc->op);
    return op_slots_check(&how_slots, host, op->slots, desc);
}

static lh_status_t args_take(lh_prepared_t *k, const lh_kernel_desc_t *desc)
{
    op_slots_rows_t rows[LH_MAX_SLOTS];
    k->arg_count = desc->arg_count;
    const bool uneven = strchr(k->op->slots, 'v') != NULL;
    const lh_status_t status = op_slots_take_all(k->host, desc, uneven, k->arg, rows);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < desc->arg_count; i++)
        k->view[i] = (cuda_view_t){.rows = rows[i].rows,
                                   .width = rows[i].width,
                                   .pitch = rows[i].pitch,
                                   .dtype = k->arg[i].dtype,
                                   .flags = (k->arg[i].flags & LH_ARG_ADD) != 0 ? CUDA_VIEW_ADD
                                                                                : 0};
    return LH_OK;
}

/* Variant 1, where a plan did not choose among several. Who changes an order of sums counts it up. */
static lh_status_t plan_finish(const lh_prepared_t *k, const lh_kernel_desc_t *desc,
                               lh_kernel_plan_t *mine)
{
    mine->struct_size = sizeof(*mine);
    mine->flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE;
    mine->host_bytes += sizeof(*k);
    if (mine->variant == 0) mine->variant = 1;
    if (mine->name[0] == '\0')
        snprintf(mine->name, sizeof(mine->name), "%s.%s.cuda", desc->op,
                 op_slots_dtype_text(k->arg[0].dtype));
    const lh_status_t status = op_slots_check_plan(k->host, desc, mine);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < k->arg_count; i++) {
        mine->layout[i] = LH_LAYOUT_DENSE;
        mine->layout_bytes[i] = cuda_elements(&k->view[i]) * lh_dtype_bytes(k->view[i].dtype);
    }
    return LH_OK;
}

lh_status_t cuda_rows_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    lh_status_t status = cuda_rows_fits(host, d, NULL, desc);
    if (status != LH_OK) return status;
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;

    /* The plugin's own struct first; the host's, which may be shorter, gets a copy at the end. */
    lh_kernel_plan_t mine = {0};
    k->host = host;
    k->op = op_find(desc->op);
    k->how = op_attributes_of(desc->attributes);
    k->shared_most = cuda_shared_most(d);
    status = args_take(k, desc);
    if (status == LH_OK) status = k->op->plan(k, &mine);
    if (status == LH_OK) status = plan_finish(k, desc, &mine);
    if (status != LH_OK) {
        cuda_rows_release(k);
        return status;
    }
    lh_fill(plan, &mine, sizeof(mine));
    *out = k;
    return LH_OK;
}

/* Whether octets lie on 16 bytes is known only here: it takes the address. */
static void view_place(cuda_view_t *v, void *address)
{
    const uint64_t bytes = lh_dtype_bytes(v->dtype);
    v->at = address;
    v->flags &= ~(uint32_t)CUDA_VIEW_VECTOR;
    if ((uintptr_t)address % 16 == 0 && (v->rows == 1 || v->pitch * bytes % 16 == 0))
        v->flags |= CUDA_VIEW_VECTOR;
}

lh_status_t cuda_rows_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    for (uint32_t i = 0; i < k->arg_count; i++) {
        if (k->view[i].rows != 0) view_place(&k->view[i], call->args[i].address);
    }
    k->scratch = call->scratch.address;
    return k->op->launch(k, call->stream);
}

void cuda_rows_release(lh_prepared_t *k)
{
    if (k != NULL) k->host->release(k->host, k);
}

/* ---- for plans ---- */

lh_status_t cuda_check_shape(const lh_prepared_t *k, uint32_t slot, uint64_t rows, uint64_t width)
{
    const cuda_view_t *v = &k->view[slot];
    if (!cuda_has(k, slot) || (v->rows == rows && v->width == width)) return LH_OK;
    return k->host->fail(k->host, LH_UNSUPPORTED, "%s: slot %u is %llu x %llu, not %llu x %llu",
                         k->op->name, slot + 1, (unsigned long long)v->rows,
                         (unsigned long long)v->width, (unsigned long long)rows,
                         (unsigned long long)width);
}

lh_status_t cuda_check_like(const lh_prepared_t *k, uint32_t like, uint32_t slot)
{
    const cuda_view_t *v = &k->view[slot], *other = &k->view[like];
    if (!cuda_has(k, slot) || (v->rows == other->rows && v->width == other->width)) return LH_OK;
    return k->host->fail(
        k->host, LH_UNSUPPORTED, "%s: slot %u is %llu x %llu, slot %u is %llu x %llu", k->op->name,
        slot + 1, (unsigned long long)v->rows, (unsigned long long)v->width, like + 1,
        (unsigned long long)other->rows, (unsigned long long)other->width);
}

lh_status_t cuda_check_flat(const lh_prepared_t *k, uint32_t slot, uint64_t elements)
{
    const cuda_view_t *v = &k->view[slot];
    if (!cuda_has(k, slot)) return LH_OK;
    if (cuda_elements(v) == elements && (v->rows == 1 || v->pitch == v->width)) return LH_OK;
    return k->host->fail(k->host, LH_UNSUPPORTED,
                         "%s: slot %u is not a flat array of %llu elements", k->op->name, slot + 1,
                         (unsigned long long)elements);
}

/* ---- for launches ---- */

void cuda_fold(cuda_view_t *const *views, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const cuda_view_t *v = views[i];
        if (v->at != NULL && v->rows > 1 && v->pitch != v->width) return;
    }
    for (uint32_t i = 0; i < count; i++) {
        views[i]->width *= views[i]->rows;
        views[i]->pitch = views[i]->width;
        views[i]->rows = 1;
        if (views[i]->at != NULL) view_place(views[i], views[i]->at);
    }
}

lh_status_t cuda_launch_octets(lh_stream_t *s, const char *kernel, const cuda_view_t *x,
                               const void *params, size_t bytes)
{
    const uint64_t octets = x->rows * cuda_parts(x->width, 8);
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(octets, CUDA_THREADS), 1, 1},
                                .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, kernel, &shape, params, bytes);
}

uint32_t cuda_team(uint64_t width)
{
    uint32_t threads = 32;
    while (threads < CUDA_TEAM_LIMIT && (uint64_t)threads * 8 < width)
        threads *= 2;
    return threads;
}

lh_status_t cuda_launch_teams(lh_stream_t *s, const char *kernel, uint64_t rows, uint64_t width,
                              const void *params, size_t bytes)
{
    const uint32_t team = cuda_team(width), teams = team < CUDA_THREADS ? CUDA_THREADS / team : 1;
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(rows, teams), 1, 1},
                                .block = {team, teams, 1}};
    return cuda_launch(s, kernel, &shape, params, bytes);
}

lh_status_t cuda_launch_partials(lh_stream_t *s, const float *partial, uint64_t parts,
                                 const cuda_view_t *y, float count)
{
    const cuda_sum_partials_t p = {.partial = partial, .parts = parts, .y = *y, .count = count};
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(y->width, CUDA_COLUMN_LANES), 1, 1},
                                .block = {CUDA_COLUMN_LANES, CUDA_ROW_LANES, 1}};
    return cuda_launch(s, "cuda_sum_partials", &shape, &p, sizeof(p));
}
