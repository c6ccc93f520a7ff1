/* cpu_rigs.c - one call on every rig of the cpu device against the reference device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cpu_rigs.h"

enum { MOST_RIGS = 8, THREAD_COUNTS = 2 };

static rig_t reference;
static rig_t rigs[MOST_RIGS]; /* pairs: one thread, two threads */
static uint32_t rig_count;
static double expected[LH_MAX_SLOTS][CPU_RIGS_MAX_ELEMENTS];
static double got[THREAD_COUNTS][LH_MAX_SLOTS][CPU_RIGS_MAX_ELEMENTS];
static double compared; /* address that marks an output */

void cpu_rigs_open(void)
{
    rig_open(&reference, "reference", NULL);
#if defined(RIGS_OF_CUDA)
    for (uint32_t turn = 0; rig_on_gpu() && turn < THREAD_COUNTS; turn++)
        rig_open_with(&rigs[rig_count++], "cuda", (const rig_setting_t[]){{"capture", 1}, {0}});
    if (rig_count > 0) return;
    for (uint32_t order = 0; order < THREAD_COUNTS; order++) {
        const rig_setting_t settings[] = {{"order", order}, {0}};
        rig_open_with(&rigs[rig_count++], RIGS_PLUGIN, settings);
    }
#else
    for (uint32_t isa = 1; rig_count < MOST_RIGS; isa++) { /* 0 is auto */
        const rig_setting_t wanted[] = {{"isa", isa}, {0}};
        if (!rig_offers(RIGS_PLUGIN, wanted)) break;
        for (uint32_t threads = 1; threads <= THREAD_COUNTS; threads++) {
            const rig_setting_t settings[] = {{"isa", isa}, {"threads", threads}, {0}};
            rig_open_with(&rigs[rig_count++], RIGS_PLUGIN, settings);
        }
    }
#endif
}

void cpu_rigs_close(void)
{
    for (uint32_t i = 0; i < rig_count; i++)
        rig_close(&rigs[i]);
    rig_close(&reference);
    rig_count = 0;
}

rig_t *cpu_rigs_best(void)
{
    return &rigs[rig_count - 1];
}

rig_slot_t cpu_in(lh_dtype_t dtype, const double *data, uint64_t rows, uint64_t width)
{
    return (rig_slot_t){.dtype = dtype, .rank = 2, .shape = {rows, width}, .in = data};
}

rig_slot_t cpu_line(lh_dtype_t dtype, const double *data, uint64_t n)
{
    return (rig_slot_t){.dtype = dtype, .rank = 1, .shape = {n}, .in = data};
}

rig_slot_t cpu_out(lh_dtype_t dtype, uint64_t rows, uint64_t width)
{
    return (rig_slot_t){.dtype = dtype, .rank = 2, .shape = {rows, width}, .out = &compared};
}

rig_slot_t cpu_out_line(lh_dtype_t dtype, uint64_t n)
{
    return (rig_slot_t){.dtype = dtype, .rank = 1, .shape = {n}, .out = &compared};
}

rig_slot_t cpu_adds(rig_slot_t out, const double *data)
{
    out.in = data;
    out.flags |= LH_ARG_ADD;
    return out;
}

rig_slot_t cpu_over(rig_slot_t out, uint32_t slot)
{
    out.alias_slot = slot;
    return out;
}

rig_slot_t cpu_padded(rig_slot_t slot, uint64_t pad)
{
    slot.pad = pad;
    return slot;
}

static uint64_t elements_of(const rig_slot_t *slot)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < slot->rank; i++)
        n *= slot->shape[i];
    return n;
}

static void run_on(rig_t *rig, double (*out)[CPU_RIGS_MAX_ELEMENTS], const char *op,
                   const void *attributes, const rig_slot_t *slots, uint32_t count)
{
    rig_slot_t mine[LH_MAX_SLOTS];
    for (uint32_t i = 0; i < count; i++) {
        mine[i] = slots[i];
        if (slots[i].out == NULL) continue;
        if (elements_of(&slots[i]) > CPU_RIGS_MAX_ELEMENTS) fail_msg("%s: case too big", op);
        mine[i].out = out[i];
    }
    if (rig_run(rig, op, attributes, mine, count) != LH_OK)
        fail_msg("%s on %s: %s", op, rig->properties.fingerprint, rig_reason());
}

/* A difference of the size of the last bit of BF16 or F16 may come from a sum that lay near a tie. */
static double allowed_at(const rig_slot_t *slot, double tolerance, double size, double value)
{
    const double allowed = tolerance * size;
    if (tolerance == 0) return 0;
    if (slot->dtype == LH_DTYPE_BF16) return allowed + fabs(value) / 128;
    /* Subnormals, below 2^-14, have steps of 2^-24. */
    if (slot->dtype == LH_DTYPE_F16) return allowed + fmax(fabs(value) / 1024, 0x1p-24);
    return allowed;
}

double cpu_rounded_part(double tolerance, lh_dtype_t d)
{
    if (d == LH_DTYPE_BF16) return 1.0 / 128;
    return d == LH_DTYPE_F16 ? 1.0 / 1024 : tolerance;
}

static void compare(const rig_t *rig, const char *op, uint32_t i, const rig_slot_t *slot,
                    double tolerance, const double *values)
{
    const uint64_t n = elements_of(slot);
    const double size = rig_size(expected[i], n);
    for (uint64_t e = 0; e < n; e++) {
        const double want = expected[i][e], have = values[e];
        if (want == have || (isnan(want) && isnan(have))) continue;
        if (fabs(have - want) <= allowed_at(slot, tolerance, size, want)) continue;
        fail_msg("%s on %s: slot %u element %llu is %.9g, expected %.9g (largest %.3g)", op,
                 rig->properties.fingerprint, i + 1, (unsigned long long)e, have, want, size);
    }
}

/* Which of a pair a check takes where it takes one. Multiples of the golden ratio: an op whose checks
 * come at a distance, in a loop over shapes, does not always meet the same. */
static bool in_turn(uint32_t check, uint32_t rig)
{
    const uint32_t first = check * 2654435761u >> 31;
    return OF_A_PAIR > 1 || ((first ^ rig / THREAD_COUNTS ^ rig) & 1) == 0;
}

void cpu_rigs_check(const char *op, const void *attributes, double tolerance,
                    const rig_slot_t *slots, uint32_t count)
{
    static uint32_t checks;
    checks++;
    run_on(&reference, expected, op, attributes, slots, count);
    for (uint32_t r = 0; r < rig_count; r++) {
        if (!in_turn(checks, r)) continue;
        double(*out)[CPU_RIGS_MAX_ELEMENTS] = got[r % THREAD_COUNTS];
        run_on(&rigs[r], out, op, attributes, slots, count);
        for (uint32_t i = 0; i < count; i++) {
            if (slots[i].out == NULL) continue;
            compare(&rigs[r], op, i, &slots[i], tolerance, out[i]);
            /* Only a library's product may depend on the number of threads. */
            if (OF_A_PAIR == 1 || r % THREAD_COUNTS == 0 || strcmp(op, "matmul") == 0) continue;
            if (memcmp(got[0][i], got[1][i], elements_of(&slots[i]) * sizeof(double)) != 0)
                fail_msg("%s on %s: slot %u differs from one thread's", op,
                         rigs[r].properties.fingerprint, i + 1);
        }
    }
}
