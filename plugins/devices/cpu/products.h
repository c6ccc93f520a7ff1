/* products.h - what kernels share that have oneDNN multiply: which of two ways BF16 goes, by what name a
 * resume knows the choice, places in scratch, and what became of parts. */
#ifndef LH_CPU_PRODUCTS_H
#define LH_CPU_PRODUCTS_H

#include "onednn.h"

#include <stdio.h>

#include <longhaul/fnv.h>

/* Plans phases, scratch, name and variant of one way; wide: BF16 by products of F32. */
typedef lh_status_t (*products_build_t)(lh_prepared_t *k, const lh_kernel_desc_t *desc, bool wide,
                                        lh_kernel_plan_t *plan);

/* BF16 goes through F32 where the processor multiplies that faster, or has no BF16 at all. A variant
 * that is asked for and is not this one, as another machine's choice or an earlier run's, decides
 * otherwise: bits come before speed. */
static inline lh_status_t products_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                        products_build_t build, lh_kernel_plan_t *plan)
{
    const onednn_t *library = k->device->onednn;
    const bool bf16 = k->view[0].dtype == LH_DTYPE_BF16;
    const bool native = k->device->isa >= CPU_AVX512_BF16 && onednn_has_bf16(library);
    const bool wide = bf16 && !(native && onednn_prefers_bf16(library));
    const lh_status_t status = build(k, desc, wide, plan);
    if (status != LH_OK || !native || !bf16 || desc->variant == 0 || desc->variant == plan->variant)
        return status;
    cpu_matmuls_free(k);
    memset(k->phase, 0, sizeof(k->phase));
    k->phases = 0;
    return build(k, desc, !wide, plan);
}

/* Threads of the stream that will run it. */
static inline uint32_t products_threads(const lh_prepared_t *k, const lh_kernel_desc_t *desc)
{
    return desc->stream != NULL ? desc->stream->threads.count : k->device->threads;
}

/* Named after the library's choice. The variant is a hash, of what `hash` has already and of that, so
 * that a resume takes the same or says so. */
static inline void products_name(const lh_prepared_t *k, const char *op, bool wide,
                                 const char *chosen, uint64_t hash, lh_kernel_plan_t *plan)
{
    const char *dtype = k->view[0].dtype == LH_DTYPE_F32 ? "f32" : wide ? "bf16_as_f32" : "bf16";
    char text[128];
    (void)snprintf(plan->name, sizeof(plan->name), "%s.%s.%s", op, dtype, chosen);
    (void)snprintf(text, sizeof(text), "%s %s %u", plan->name, onednn_version(k->device->onednn),
                   k->device->isa);
    hash = lh_fnv_add(hash, text, strlen(text));
    plan->variant = hash == 0 ? 1 : hash;
}

/* The next place in scratch, on a cache line of its own. */
static inline uint64_t products_room(uint64_t *room, uint64_t bytes)
{
    const uint64_t at = *room;
    *room += (bytes + 63) / 64 * 64;
    return at;
}

/* The most that the library wants of one lane for any of the kernel's products. */
static inline uint64_t products_library_bytes(const lh_prepared_t *k)
{
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof(k->matmul) / sizeof(k->matmul[0]); i++) {
        if (k->matmul[i] == NULL) continue;
        const uint64_t bytes = onednn_matmul_scratch_bytes(k->matmul[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* A part returns nothing: it leaves its status, and the first failure is the kernel's. */
static inline lh_status_t products_check(const lh_prepared_t *k, const lh_status_t *status,
                                         uint64_t parts)
{
    for (uint64_t i = 0; i < parts; i++)
        if (status[i] != LH_OK)
            return k->host->fail(k->host, status[i], "oneDNN could not multiply part %llu of %llu",
                                 (unsigned long long)i, (unsigned long long)parts);
    return LH_OK;
}

#endif
