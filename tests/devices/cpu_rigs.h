/* cpu_rigs.h - the cpu device opened in every way that matters (instruction set, one and two
 * threads), and a check of one call on all of them against the reference device.
 *
 * Compiled with RIGS_OF_CUDA it is the cuda device's own kernels on the host (tests/cuda_host), which
 * are to pass the same tests: with threads in their order and the last one first, in place of one and
 * two threads. Where rig_on_gpu() it is the device itself, twice. */
#ifndef CPU_RIGS_H
#define CPU_RIGS_H

#include "device_rig.h"

enum { CPU_RIGS_MAX_ELEMENTS = 1 << 20 };

#if defined(RIGS_OF_CUDNN)
#define RIGS_PLUGIN "cuda"
#define RIGS_DEVICE "cuda"
#elif defined(RIGS_OF_CUDA)
#define RIGS_PLUGIN "cuda_host"
#define RIGS_DEVICE "cuda"
#else
#define RIGS_PLUGIN "cpu"
#define RIGS_DEVICE "the cpu"
#endif

/* Rigs that a check runs on, of each pair (one and two threads, or cuda's two orders). The address
 * sanitizer looks at accesses to memory, and one of a pair makes nearly all that the other does: there a
 * check takes one of each, by turns. Bits of the two are compared in builds without it. */
#if defined(__SANITIZE_ADDRESS__)
enum { OF_A_PAIR = 1 };
#else
enum { OF_A_PAIR = 2 };
#endif

void cpu_rigs_open(void);
void cpu_rigs_close(void);
/* Rig of the best instruction set and two threads. */
rig_t *cpu_rigs_best(void);

/* Slots for a dtype chosen at run time. cpu_out() marks what is compared. */
rig_slot_t cpu_in(lh_dtype_t dtype, const double *data, uint64_t rows, uint64_t width);
rig_slot_t cpu_line(lh_dtype_t dtype, const double *data, uint64_t n);
rig_slot_t cpu_out(lh_dtype_t dtype, uint64_t rows, uint64_t width);
rig_slot_t cpu_out_line(lh_dtype_t dtype, uint64_t n);
/* An output that adds to data. */
rig_slot_t cpu_adds(rig_slot_t out, const double *data);
/* An output in the memory of a slot (from 1). */
rig_slot_t cpu_over(rig_slot_t out, uint32_t slot);
rig_slot_t cpu_padded(rig_slot_t slot, uint64_t pad);
/* The tolerance of an op that rounds a part to d before it adds another: a part that lay near a tie is
 * off by its own last bit, however small the sum is. */
double cpu_rounded_part(double tolerance, lh_dtype_t d);

/* Every output of op, on every rig, or OF_A_PAIR: |difference| <= tolerance * the largest |expected|
 * of the tensor, or one step of BF16 of that element more, where the output is BF16; tolerance 0 means
 * equal. And one and two threads agree to the bit. Fails the cmocka test with op, rig, slot and
 * element. */
void cpu_rigs_check(const char *op, const void *attributes, double tolerance,
                    const rig_slot_t *slots, uint32_t count);

#define CPU_CHECK(op, how, tolerance, ...)                                              \
    do {                                                                                \
        const rig_slot_t slots_[] = {__VA_ARGS__};                                      \
        cpu_rigs_check(op, how, tolerance, slots_, sizeof(slots_) / sizeof(slots_[0])); \
    } while (0)

#endif
